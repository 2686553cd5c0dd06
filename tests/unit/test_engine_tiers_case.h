/* SPDX-License-Identifier: Apache-2.0 */
/* How a test of tiers begins: one cache of 8 slots with tiers below it, prompts of N tokens. */
#ifndef TESTS_UNIT_TEST_ENGINE_TIERS_CASE_H
#define TESTS_UNIT_TEST_ENGINE_TIERS_CASE_H

#include "test_engine_tiers.h"

enum { N = 64 };

static struct tiered t;
static struct rig_options options;

/* Sizes; what a test wants otherwise it says before the tiers are there. */
static inline void case_of(uint32_t page)
{
    options = (struct rig_options)RIG_OPTIONS_INIT;
    options.page = page;
    options.slots = 8;
    options.kv_ids = 2048;
    t.rig = NULL;
}

/* `host`, `disk`: so many copies have room. */
static inline void case_open(uint32_t page, uint32_t host, uint32_t disk, uint32_t write)
{
    case_of(page);
    tiered_init(&t, &options, host, disk, write);
}

/* The same, but the options of the tiers can still be changed: then tiered_start. */
static inline void case_prepare(uint32_t page, uint32_t host, uint32_t disk, uint32_t write)
{
    case_of(page);
    tiered_prepare(&t, &options, host, disk, write);
}

static inline void case_restart(void)
{
    tiered_stop(&t);
    tiered_start(&t, &options);
}

/* Prompt `i` of N tokens and one more. */
static inline const int32_t *prompt(uint32_t i)
{
    static int32_t tokens[N + 1];
    rig_fill(tokens, N + 1, 1000 * (int32_t)(i + 1));
    return tokens;
}

#endif

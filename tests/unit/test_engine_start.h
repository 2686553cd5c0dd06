/* SPDX-License-Identifier: Apache-2.0 */
/* One rig with two requests and tokens 1, 2, 3, ...: what the tests of the engine start with. */
#ifndef TEST_ENGINE_START_H
#define TEST_ENGINE_START_H

#include "test_engine_rig.h"

static struct rig rig;
static struct req a, b;
static int32_t tokens[512];

/* A rig with these pages and otherwise defaults; tokens 1, 2, 3, ... */
static inline struct rig_options options_of(uint32_t page)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    rig_fill(tokens, 512, 1);
    return options;
}

static inline void start(uint32_t page)
{
    struct rig_options options = options_of(page);
    rig_init(&rig, &options);
}

static inline uint32_t state_len(uint32_t count)
{
    return rig_lookup(&rig, tokens, count).state_len[SC_TIER_DEVICE];
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The one test case and the main of a program whose tests each have a fresh folder for a store. */
#ifndef TESTS_UNIT_TIER_SUITE_H
#define TESTS_UNIT_TIER_SUITE_H

#include "tier_fixture.h"

static char folder[200];

static void tier_suite_make_(void)
{
    tier_folder_make(folder, sizeof folder, true);
}

static void tier_suite_clean_(void)
{
    tier_folder_remove(folder);
}

/* `turns` 0: once, without an index. */
struct tier_case { const TTest *test; int turns; };

static inline int tier_suite_run(const char *name, double seconds_max,
    const struct tier_case *cases, size_t count)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create("stores");
    tcase_set_timeout(tcase, seconds_max);
    tcase_add_checked_fixture(tcase, tier_suite_make_, tier_suite_clean_);
    for (size_t i = 0; i < count; i++) {
        if (cases[i].turns) tcase_add_loop_test(tcase, cases[i].test, 0, cases[i].turns);
        else tcase_add_test(tcase, cases[i].test);
    }
    suite_add_tcase(suite, tcase);
    return tier_main(suite);
}

/* TIER_MAIN("tier/name", seconds, {test, turns}, ...) */
#define TIER_MAIN(name, seconds_max, ...)                                                          \
    int main(void)                                                                                 \
    {                                                                                              \
        const struct tier_case cases[] = {__VA_ARGS__};                                            \
        return tier_suite_run((name), (seconds_max), cases, sizeof cases / sizeof cases[0]);       \
    }

#endif

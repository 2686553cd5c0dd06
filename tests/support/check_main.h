/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a test program's main(): runs its suite; the exit status. */
#ifndef SC_TESTS_CHECK_MAIN_H
#define SC_TESTS_CHECK_MAIN_H

#include <check.h>

static inline int check_main(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of statecache-bench; runs of the whole program are in replay_runs.py. */
#include "test_bench.h"

#include <stdlib.h>

int main(void)
{
    Suite *suite = suite_create("bench");
    add_trace_cases(suite);
    add_part_cases(suite);
    add_verify_cases(suite);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

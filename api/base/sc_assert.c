/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a process that has found its own data structures broken. The one place where the
 * library writes to standard error: nobody would learn why otherwise. */
#include "base/sc_assert.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"

_Noreturn void sc_assert_fail(const char *expr, const char *file, int line, const char *function)
{
    struct sc_log_builder log = SC_LOG_BUILDER_INIT;
    sc_log_add(&log, "expr", "%s", expr);
    sc_log_add(&log, "at", "%s:%d", file, line);
    sc_log_add(&log, "function", "%s", function);
    sc_log_send(&log, SC_LOG_ERROR, "assert.failed");
    (void)fprintf(stderr, "statecache: %s:%d: %s: assertion failed: %s\n", file, line, function,
        expr);
    abort();
}

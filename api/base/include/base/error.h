/* SPDX-License-Identifier: Apache-2.0 */
/* The thread-local error record and the macros that fill and pass it. */
#ifndef SC_BASE_ERROR_H
#define SC_BASE_ERROR_H

#include "statecache/status.h"

/* Fills the thread's error record and returns `status`, which is not SC_OK. `function` is static.
 * Arguments may point into the record itself. Use through SC_FAIL. */
sc_status sc_error_set(const char *function, sc_status status, int system_code, const char *fmt,
    ...) __attribute__((format(printf, 4, 5)));

#define SC_FAIL(status, ...) sc_error_set(__func__, (status), 0, __VA_ARGS__)
#define SC_FAIL_SYS(status, code, ...) sc_error_set(__func__, (status), (code), __VA_ARGS__)

/* Passes a failure on; the record was filled where the fault was detected. */
#define SC_TRY(expr)                                                                               \
    do {                                                                                           \
        sc_status sc_try_status_ = (expr);                                                         \
        if (sc_try_status_ != SC_OK) return sc_try_status_;                                        \
    } while (0)

/* Bad arguments: `cond` must hold, else SC_ERR_INVALID with the condition as text. */
#define SC_REQUIRE(cond)                                                                           \
    do {                                                                                           \
        if (!(cond)) return SC_FAIL(SC_ERR_INVALID, "requires %s", #cond);                         \
    } while (0)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What failed last on this thread, in the service and in its clients: they use the public library
 * alone, whose own record only the library can write. */
#ifndef SC_WIRE_FAULT_H
#define SC_WIRE_FAULT_H

#include "statecache/status.h"

/* Fills the record and returns `status`, which is not SC_OK. Use through SC_FAULT. */
sc_status sc_fault_set(const char *function, sc_status status, int system_code, const char *fmt,
    ...) __attribute__((format(printf, 4, 5)));
/* Takes over what another record says. */
sc_status sc_fault_take(const sc_error_info *info);
/* Never NULL. */
const sc_error_info *sc_fault_last(void);

#define SC_FAULT(status, ...) sc_fault_set(__func__, (status), 0, __VA_ARGS__)
#define SC_FAULT_SYS(status, code, ...) sc_fault_set(__func__, (status), (code), __VA_ARGS__)

/* Passes a failure on. */
#define SC_PASS(expr)                                                                              \
    do {                                                                                           \
        sc_status sc_pass_status_ = (expr);                                                        \
        if (sc_pass_status_ != SC_OK) return sc_pass_status_;                                      \
    } while (0)

#endif

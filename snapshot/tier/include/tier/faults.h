/* SPDX-License-Identifier: Apache-2.0 */
/* How tests make a single call to the system or to LMDB fail. */
#ifndef SC_TIER_FAULTS_H
#define SC_TIER_FAULTS_H

#include <stddef.h>

/* A transfer moves half of what it was asked to, then goes on: no error, but often forgotten. */
enum { SC_TIER_FAULT_SHORT = 1 << 20 };

/* Asked before each call: 0 lets it happen; else it does not happen and gives this code instead, an
 * errno or an LMDB error. `what` is static. Called on the thread that makes the call. */
struct sc_tier_faults {
    int (*ask)(void *ctx, const char *what);
    void *ctx;
};

static inline int sc_tier_fault(const struct sc_tier_faults *faults, const char *what)
{
    return faults && faults->ask ? faults->ask(faults->ctx, what) : 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* sc_tiers for tests: the same with failing system calls, small stores, and without threads. */
#ifndef SC_TIER_TIERS_HOOKS_H
#define SC_TIER_TIERS_HOOKS_H

#include <stdbool.h>

#include "statecache/tiers.h"
#include "tier/faults.h"

struct sc_tiers_hooks {
    const struct sc_tier_faults *faults; /* of the disk store */
    void (*settling)(void *ctx);         /* before a write waits for commits, if any; NULL */
    void *settling_ctx;
    uint64_t map_bytes;                  /* of the disk store; 0: default */
    uint32_t chunk_bytes;
    const char *system_root;             /* for the limit of host memory */
    uint64_t host_slack;                 /* bytes beyond the budget, against gaps */
    bool manual;                         /* no threads: sc_tiers_step carries out what is asked */
    bool plain;                          /* neither io_uring nor O_DIRECT */
};

/* The static library for programs of this repository shows these, too. */
#define SC_TIERS_HOOK __attribute__((visibility("default")))

/* `hooks` must outlive the tiers. */
SC_TIERS_HOOK sc_status sc_tiers_create_hooked(
    const sc_tiers_options *options, const struct sc_tiers_hooks *hooks, sc_tiers **tiers_out);
/* Of `manual` tiers: carries out the next job that restores, or the next of the others, on this
 * thread. False: there is none. */
SC_TIERS_HOOK bool sc_tiers_step(sc_tiers *tiers, bool restore);
/* What sc_store_verify says of the disk tier; no transfer may be under way. */
SC_TIERS_HOOK sc_status sc_tiers_verify(
    sc_tiers *tiers, uint64_t *records_out, uint64_t *faults_out);

#endif

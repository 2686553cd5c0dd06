/* SPDX-License-Identifier: Apache-2.0 */
/* sc_tiers for tests: the same with failing system calls and small stores. */
#ifndef SC_TIER_TIERS_HOOKS_H
#define SC_TIER_TIERS_HOOKS_H

#include "statecache/tiers.h"
#include "tier/faults.h"

struct sc_tiers_hooks {
    const struct sc_tier_faults *faults; /* of the disk store; "host reserve", "unpack" too */
    uint64_t map_bytes;                  /* of the disk store; 0: default */
    uint32_t chunk_bytes;
    const char *system_root;             /* for the limit of host memory */
    uint64_t host_slack;                 /* bytes beyond the budget, against gaps */
};
/* `hooks` must outlive the tiers. */
sc_status sc_tiers_create_hooked(const sc_tiers_options *options,
    const struct sc_tiers_hooks *hooks, sc_tiers **tiers_out);

#endif

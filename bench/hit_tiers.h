/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers below the device, host memory and disk, in the hit benchmark. */
#ifndef BENCH_HIT_TIERS_H
#define BENCH_HIT_TIERS_H

#include "hit.h"
#include "hit_index.h"

struct hit_tiers;

/* NULL where the cell has none. */
struct hit_tiers *hit_tiers_create(struct hit_job *job, const struct hit_index *device,
    const struct sc_policy_options *options);
void hit_tiers_destroy(struct hit_tiers *tiers);
/* Where the request should resume: the tier, and after how many blocks. Between this and
 * hit_tiers_end nothing leaves that it looks at. */
uint32_t hit_tiers_match(struct hit_tiers *tiers, size_t request, const struct hit_match *device,
    uint32_t *resumed_out);
/* The device's policy does not keep the state after so many blocks of the request. */
void hit_tiers_refused(struct hit_tiers *tiers, size_t request, uint32_t blocks);
/* The request has been served. */
void hit_tiers_end(struct hit_tiers *tiers);
/* A victim goes from the device: sc_policy_options.leaving. */
void hit_tiers_leaving(void *ctx, sc_node node);

#endif

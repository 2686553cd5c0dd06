/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a payload, XXH3-128, piece by piece: so that it is computed while others are on
 * their way to or from the disk. */
#define XXH_INLINE_ALL 1
#include <xxhash.h>

#include "tier_io.h"

static_assert(sizeof(XXH3_state_t) <= sizeof((struct tier_check *)NULL)->state, "room for it");

static XXH3_state_t *state_of(struct tier_check *check)
{
    return (XXH3_state_t *)(void *)check->state;
}

void tier_check_begin(struct tier_check *check)
{
    (void)XXH3_128bits_reset(state_of(check));
}

void tier_check_add(struct tier_check *check, const void *bytes, uint64_t count)
{
    (void)XXH3_128bits_update(state_of(check), bytes, (size_t)count);
}

struct sc_store_hash tier_check_end(struct tier_check *check)
{
    XXH128_hash_t hash = XXH3_128bits_digest(state_of(check));
    return (struct sc_store_hash){hash.low64, hash.high64};
}

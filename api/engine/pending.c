/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixes that a lease is computing and means to save: its prompt's end, its branch point, its
 * breakpoints, others of the policy. Who asks for the same prompt meanwhile may wait for them.
 *
 *     pending[]   lease | position | token before the position          in no order
 *
 * A look-up passes over the array: it compares one token of the key for each entry that could be
 * longer than what it has, and all tokens and marks only where that one is equal. So the cost is a
 * few nanoseconds an entry, and there are at most POINT_MAX + 2 of each lease. A position
 * leaves when its lease is committed that far, whatever became of the save, or ends, or is lost.
 *
 * Rejected: a hash over each prefix. To look up a key it would have to be computed for every
 * position that is pending, which costs more than comparing a token. */
#include <string.h>

#include "cache_internal.h"

sc_status sc_engine_pending_reserve(sc_cache *cache, uint32_t leases)
{
    uint64_t need = cache->pending_count + (uint64_t)leases * (POINT_MAX + 2);
    if (need <= cache->pending_cap) return SC_OK;
    if (need > UINT32_MAX / 2) return SC_FAIL(SC_ERR_NO_MEMORY, "%u leases at once", leases);
    uint32_t cap = (uint32_t)need * 2;
    struct pending *pending = sc_heap_realloc(&cache->heap, cache->pending,
        cache->pending_cap * sizeof *pending, cap * sizeof *pending);
    if (!pending) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u pending positions", cap);
    cache->pending = pending;
    cache->pending_cap = cap;
    return SC_OK;
}

static void add(sc_cache *cache, const struct lease *lease, uint32_t position)
{
    if (position <= lease->len || position < lease->external_len) return;
    SC_ASSERT(cache->pending_count < cache->pending_cap);
    cache->pending[cache->pending_count++] =
        (struct pending){lease, position, lease->tokens[position - 1]};
}

void sc_engine_pending_add(sc_cache *cache, const struct lease *lease)
{
    add(cache, lease, lease->prompt_end);
    add(cache, lease, lease->branch_len);
    for (uint32_t i = 0; i < lease->inner_count; i++) {
        if (lease->inner[i].position != lease->branch_len) {
            add(cache, lease, lease->inner[i].position);
        }
    }
}

void sc_engine_pending_pass(sc_cache *cache, const struct lease *lease, uint32_t len)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < cache->pending_count; i++) {
        const struct pending *pending = &cache->pending[i];
        if (pending->lease == lease && pending->position <= len) continue;
        cache->pending[kept++] = *pending;
    }
    cache->pending_count = kept;
}

static uint32_t marks_below(const sc_mark *marks, uint32_t count, uint32_t position)
{
    while (count > 0 && marks[count - 1].at >= position) count--;
    return count;
}

static bool same_prefix(const struct lease *lease, const sc_key *key, uint32_t position)
{
    if (memcmp(lease->tokens, key->tokens, position * sizeof *key->tokens) != 0) return false;
    uint32_t marks = marks_below(lease->marks, lease->mark_count, position);
    if (marks != marks_below(key->marks, key->mark_count, position)) return false;
    for (uint32_t i = 0; i < marks; i++) {
        if (lease->marks[i].at != key->marks[i].at) return false;
        if (memcmp(lease->marks[i].id, key->marks[i].id, sizeof key->marks[i].id) != 0) {
            return false;
        }
    }
    return true;
}

static sc_step step_of(const sc_cache *cache, const struct lease *lease, uint32_t position)
{
    for (uint32_t i = 0; i < cache->options.depth_max; i++) {
        if (lease->row[i] == NO_ROW) continue;
        const struct step_row *row = &cache->steps[i].rows[lease->row[i]];
        if (row->from < position && position <= row->end) return cache->steps[i].number;
    }
    return 0;
}

uint32_t sc_engine_pending_find(const sc_cache *cache, const struct space *space,
    const sc_key *key, uint32_t len, uint32_t len_max, sc_step *step_out)
{
    const struct lease *found = NULL;
    sc_step best = 0;
    for (uint32_t i = 0; i < cache->pending_count; i++) {
        const struct pending *pending = &cache->pending[i];
        uint32_t position = pending->position;
        if (position < len || (position == len && !found) || position > len_max) continue;
        if (key->tokens[position - 1] != pending->last || pending->lease->space != space) continue;
        sc_step step = step_of(cache, pending->lease, position);
        bool sooner = step != 0 && (best == 0 || step < best);
        if (position == len && !sooner) continue;
        if (!same_prefix(pending->lease, key, position)) continue;
        found = pending->lease;
        len = position;
        best = step;
    }
    *step_out = best;
    return found ? len : 0;
}

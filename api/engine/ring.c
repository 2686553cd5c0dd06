/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of ReplaySSM (statecache/kernels_replay.h): when a row may append, must flush or must fold,
 * and snapshots that consist of a base and its records.
 *
 *     prefill   decode: the first after anything else flushes      a save at the row's end
 *   --[=====]------[F][a][a][a][F][a][a]-- .. --[a][F*]------[F][a][a]--  release: base + 2 records
 *      folds        |  records: 0 1 2 3 0 1 2         '- freezes, saved or not
 *      first        '- reads the source, writes the working slot: the base lies there from now on
 *
 * (a) Records lie on top of the lease's own working slot only (its base), or on that of the
 *     snapshot that it resumed, until its first row has copied both.
 * (b) A row appends only if the row before it was a decode row that had nothing to save at its end
 *     (`open`). So phases depend on the lease's own positions alone: not on neighbours, nor on
 *     whether a save found a slot; and a lease that resumes goes on in the phase of the one that
 *     saved.
 * (c) What the plan counts here, the kernels count in the control words of the slot, by the same
 *     rule: sc_replay_next().
 *
 * (d) History tells where flushes were, since bits of outputs depend on it: each stretch of decode
 *     begins with one; within it the rows before and behind a multiple of the decode interval
 *     flush, and those that find the ring full. A flush that does not follow from this begins a
 *     stretch (`anew`): one for a point that was asked for, the token behind it, the token behind
 *     drafts or behind a state that came from a tier or elsewhere. What accepted drafts themselves
 *     were is not told: their outputs are those of flushing tokens.
 *
 * A snapshot with records owns a slot of the extras pool. When a lease finds none free, the oldest
 * such snapshot that is not in use goes. */
#include "cache_internal.h"

sc_status sc_engine_ring_create(sc_cache *cache)
{
    const sc_schema *schema = NULL;
    uint32_t count = 0;
    bool control = false;
    sc_pool_info info;
    if (!cache->options.extras) return SC_OK;
    SC_TRY(sc_pool_schema(cache->options.extras, &schema));
    SC_TRY(sc_schema_part_count(schema, &count));
    for (uint32_t i = 0; i < count; i++) {
        sc_part part;
        SC_TRY(sc_schema_part(schema, i, &part));
        if (part.kind != SC_PART_EXTRA) continue;
        if (part.layer == 0 && part.index == 0) control = true;
        if (part.index % 2 == 1 && part.dtype == SC_DTYPE_U8) cache->ring_records = part.dims[0];
    }
    if (cache->ring_records == 0) return SC_OK;
    if (!control || cache->ring_records > SC_REPLAY_RECORDS_MAX) {
        return SC_FAIL(SC_ERR_INVALID, "rings of %u records %s control words",
            cache->ring_records, control ? "with" : "without");
    }
    SC_TRY(sc_pool_info_get(cache->options.extras, &info));
    cache->holder_count = info.slot_count + 1; /* and the null slot */
    cache->holders = sc_heap_calloc(&cache->heap, cache->holder_count,
        sizeof *cache->holders);
    if (cache->holders) return SC_OK;
    return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u slots of extras", info.slot_count);
}

void sc_engine_ring_free(sc_cache *cache)
{
    sc_heap_free(&cache->heap, cache->holders, cache->holder_count * sizeof *cache->holders);
}

/* ---- phases ---- */

void sc_engine_ring_plan(const sc_cache *cache, struct step_row *row)
{
    const struct lease *lease = row->lease;
    bool plain = row->decode && !sc_engine_row_uncertain(row);
    bool away = lease->next_source.id != lease->next_dest.id;
    row->flush = SC_REPLAY_NONE;
    row->ring_from = SC_SLOT_NULL;
    if (cache->ring_records == 0) return;
    if (lease->flights == 0 && lease->records > 0) row->ring_from = lease->ring_from;
    row->flush = plain ? SC_REPLAY_FLUSH : SC_REPLAY_FOLD;
    if (plain && lease->issued_open && !row->wants_end) row->flush = SC_REPLAY_APPEND;
    sc_replay_mode mode = sc_replay_next(row->flush, lease->issued_records, cache->ring_records,
        &row->records_after);
    row->open_after = plain && !row->wants_end;
    /* A flush reads the base where it is; what appends or folds needs it in the working slot. */
    row->ring_copy = away && (mode == SC_REPLAY_APPEND || mode == SC_REPLAY_FOLD);
}

/* Where decode positions are saved. */
static bool save_position(const sc_cache *cache, uint32_t len)
{
    bool saved = (cache->options.save_flags & SC_SAVE_DECODE) && cache->decode_interval > 0;
    return saved && len % cache->decode_interval == 0;
}

bool sc_engine_ring_anew(const sc_cache *cache, const struct lease *lease,
    const struct step_row *row)
{
    if (cache->ring_records == 0 || row->flush != SC_REPLAY_FLUSH) return false;
    return !save_position(cache, lease->len) && !save_position(cache, row->end);
}

void sc_engine_ring_issue(const sc_cache *cache, struct lease *lease)
{
    const struct step_row *row = sc_engine_row_before(cache, lease, UINT64_MAX, NULL);
    lease->issued_records = row ? row->records_after : lease->records;
    lease->issued_open = row ? row->open_after : lease->ring_open;
}

void sc_engine_ring_keep_row(struct lease *lease, const struct step_row *row)
{
    lease->records = row->records_after;
    lease->ring_open = row->open_after;
    lease->ring_from = SC_SLOT_NULL;
}

void sc_engine_ring_resume(struct lease *lease, const struct sc_snapshot_info *snapshot)
{
    lease->records = snapshot->records;
    lease->ring_open = snapshot->ring_open;
    lease->ring_from = snapshot->extra;
}

/* ---- snapshots with records ---- */

void sc_engine_ring_register(const struct lease *lease, struct sc_snapshot_info *info)
{
    if (info->token_count != lease->len) return;
    info->ring_open = lease->ring_open;
    info->records = lease->records;
    if (lease->records > 0) info->extra = lease->extra;
}

void sc_engine_ring_saved(sc_cache *cache, struct lease *lease, uint32_t position,
    uint32_t snapshot)
{
    if (lease->records == 0 || position != lease->len) return;
    sc_status status = sc_pool_retag(cache->options.extras, lease->extra, SC_OWNER_SNAPSHOT);
    SC_ASSERT(status == SC_OK); /* (1) */
    lease->extra_kept = true;
    cache->holders[lease->extra.id] =
        (struct ring_holder){SC_NODE_NONE, snapshot, ++cache->holder_clock};
}

void sc_engine_ring_located(sc_cache *cache, const struct lease *lease, sc_node node,
    uint32_t snapshot)
{
    if (!lease->extra_kept) return;
    struct ring_holder *holder = &cache->holders[lease->extra.id];
    if (holder->snapshot == snapshot) holder->node = node;
}

void sc_engine_ring_gone(sc_cache *cache, sc_slot extra)
{
    if (extra.id == 0) return;
    cache->holders[extra.id] = (struct ring_holder){.snapshot = 0};
    sc_engine_slot_free(cache->options.extras, extra);
}

void sc_engine_ring_swap(struct lease *lease, sc_slot fresh)
{
    SC_ASSERT(lease->extra_kept);
    lease->ring_from = lease->extra;
    lease->extra = fresh;
    lease->extra_kept = false;
}

/* Drops one of the snapshots with records, oldest first, that nobody uses. */
static bool drop_one(sc_cache *cache)
{
    struct evict_sink sink;
    uint64_t after = 0;
    sc_engine_sink_init(cache, SC_EVICT_FOR_SLOT, &sink);
    sink.chosen = true;
    for (;;) {
        const struct ring_holder *oldest = NULL;
        struct sc_radix_node_info info;
        for (uint32_t i = 1; i < cache->holder_count; i++) {
            const struct ring_holder *holder = &cache->holders[i];
            if (holder->snapshot == 0 || holder->clock <= after) continue;
            if (!oldest || holder->clock < oldest->clock) oldest = holder;
        }
        if (!oldest) return false;
        after = oldest->clock;
        if (sc_radix_node_get(cache->radix, oldest->node, &info) != SC_OK) continue;
        if (info.snapshot != oldest->snapshot) continue;
        if (sc_radix_snapshot_drop(cache->radix, oldest->node, &sink.sink) == SC_OK) return true;
    }
}

bool sc_engine_ring_evict(sc_cache *cache)
{
    return cache->ring_records > 0 && drop_one(cache);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "hit_index.h"

#include <stdlib.h>

static void sink_kv(void *ctx, const int32_t *ids, uint32_t count, enum sc_radix_cause cause)
{
    (void)ctx;
    (void)ids;
    (void)count;
    (void)cause;
}

static void sink_snapshot(void *ctx, uint32_t snapshot, enum sc_radix_cause cause)
{
    struct hit_index *index = ctx;
    (void)snapshot;
    (void)cause;
    index->evicted++;
}

void hit_index_init(struct hit_index *index, const struct hit_trace *trace, double state_bytes,
    double block_bytes)
{
    *index = (struct hit_index){.state_bytes = state_bytes, .block_bytes = block_bytes};
    index->sink = (struct sc_radix_sink){index, sink_kv, sink_snapshot};
    struct sc_radix_options options = {.page_tokens = 1, .grid_tokens = 1, .with_kv = true};
    bench_must(sc_radix_create(&options, &index->radix), "sc_radix_create");
    bench_must(sc_radix_space_add(index->radix, &index->space), "sc_radix_space_add");
    index->ids = bench_alloc(trace->longest, sizeof *index->ids);
}

void hit_index_deinit(struct hit_index *index)
{
    sc_radix_destroy(index->radix);
    free(index->ids);
    free(index->block_of);
}

double hit_index_bytes(const struct hit_index *index)
{
    struct sc_radix_stats stats;
    sc_radix_stats_get(index->radix, &stats);
    return (double)stats.snapshot_count * index->state_bytes +
        (double)stats.token_count * index->block_bytes;
}

static struct sc_radix_inserted insert(struct hit_index *index, const int32_t *tokens,
    uint32_t blocks, const struct sc_radix_save *save, sc_status *save_status)
{
    struct sc_radix_run run = {0, 0};
    struct sc_radix_inserted inserted;
    struct sc_radix_insert in = {.space = index->space, .tokens = tokens, .token_count = blocks,
        .kv_ids = index->ids, .runs = &run, .run_count = 1, .saves = save,
        .save_count = save ? 1 : 0};
    bench_must(sc_radix_insert(index->radix, &in, &index->sink, NULL, save_status, &inserted),
        "sc_radix_insert");
    return inserted;
}

void hit_index_match(struct hit_index *index, const int32_t *tokens, uint32_t blocks,
    uint32_t usable_blocks, struct hit_match *match)
{
    struct sc_radix_key key = {tokens, blocks, NULL, 0};
    struct sc_radix_match held, usable;
    struct sc_radix_node_info info;
    bench_must(sc_radix_match(index->radix, index->space, &key, blocks, &held),
        "sc_radix_match");
    usable = held;
    if (held.state_len > usable_blocks)
        bench_must(sc_radix_match(index->radix, index->space, &key, usable_blocks, &usable),
            "sc_radix_match");
    *match = (struct hit_match){.held = held.kv_len, .resumed = usable.state_len,
        .deepest = held.state_len > usable_blocks ? held.state_len : 0,
        .state_node = usable.state_node};
    sc_node node = held.kv_len > 0 ? held.node : SC_NODE_NONE;
    if (node != SC_NODE_NONE) {
        bench_must(sc_radix_node_get(index->radix, node, &info), "sc_radix_node_get");
        if (info.end > held.kv_len)
            node = insert(index, tokens, held.kv_len, NULL, NULL).node;
    }
    bench_must(sc_radix_lock(index->radix, node, SC_RADIX_LOCK_KV, &match->receipt),
        "sc_radix_lock");
}

void hit_index_touch(struct hit_index *index, const struct hit_trace *trace, size_t request,
    uint32_t blocks)
{
    struct sc_radix_match match;
    const struct hit_request *r = &trace->requests[request];
    struct sc_radix_key key = {trace->tokens + r->first, blocks, NULL, 0};
    bench_must(sc_radix_match(index->radix, index->space, &key, blocks, &match), "sc_radix_match");
    sc_radix_touch(index->radix, &match);
}

void hit_index_unlock(struct hit_index *index, const struct hit_match *match)
{
    bench_must(sc_radix_unlock(index->radix, match->receipt), "sc_radix_unlock");
}

sc_node hit_index_insert(struct hit_index *index, const int32_t *tokens, uint32_t blocks,
    struct hit_match *match, uint32_t *snapshot_out)
{
    struct sc_radix_save save = {blocks, ++index->snapshot};
    sc_status status = SC_OK;
    struct sc_radix_inserted inserted = insert(index, tokens, blocks, &save, &status);
    struct sc_radix_receipt old = match->receipt;
    bench_must(sc_radix_lock(index->radix, inserted.node, SC_RADIX_LOCK_KV, &match->receipt),
        "sc_radix_lock");
    bench_must(sc_radix_unlock(index->radix, old), "sc_radix_unlock");
    *snapshot_out = save.snapshot;
    index->block_of = bench_grow(index->block_of, &index->block_cap, (size_t)save.snapshot + 1,
        sizeof *index->block_of);
    index->block_of[save.snapshot] = (uint32_t)tokens[blocks - 1];
    return status == SC_OK ? inserted.node : SC_NODE_NONE;
}

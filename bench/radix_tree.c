/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "bench_common.h"
#include "radix_serial.h"

enum { FREED_RING = 1 << 16, SPANS = 1024 };

static void sink_kv(void *ctx, const int32_t *ids, uint32_t count, enum sc_radix_cause cause)
{
    struct radix_tree *tree = ctx;
    (void)cause;
    if (tree->freed_at + count > FREED_RING)
        tree->freed_at = 0;
    memcpy(tree->freed + tree->freed_at, ids, count * sizeof *ids);
    tree->freed_at += count;
}

static void sink_snapshot(void *ctx, uint32_t snapshot, enum sc_radix_cause cause)
{
    (void)ctx;
    (void)snapshot;
    (void)cause;
}

void radix_tree_open(struct radix_tree *tree, bool with_kv)
{
    *tree = (struct radix_tree){.with_kv = with_kv};
    tree->sink = (struct sc_radix_sink){tree, sink_kv, sink_snapshot};
    struct sc_radix_options options = {.page_tokens = 1, .grid_tokens = 64, .with_kv = with_kv};
    tree->freed = bench_alloc(FREED_RING, sizeof *tree->freed);
    memset(tree->freed, 1, FREED_RING * sizeof *tree->freed);
    int32_t *ids = bench_alloc(RADIX_KEY_MAX + RADIX_TURN, sizeof *ids);
    for (int32_t i = 0; i < RADIX_KEY_MAX + RADIX_TURN; i++)
        ids[i] = i;
    tree->ids = ids;
    bench_must(sc_radix_create(&options, &tree->radix), "sc_radix_create");
    sc_radix_purge(tree->radix); /* what an earlier tree has left would hide what this one takes */
    tree->before = radix_memory_get();
    bench_must(sc_radix_space_add(tree->radix, &tree->space), "sc_radix_space_add");
}

void radix_tree_close(struct radix_tree *tree)
{
    sc_radix_destroy(tree->radix);
    free(tree->freed);
    free((void *)tree->ids);
}

sc_node radix_tree_insert_from(struct radix_tree *tree, sc_node from, const int32_t *tokens,
    uint32_t count)
{
    struct sc_radix_run run = {0, 0};
    struct sc_radix_inserted inserted;
    struct sc_radix_insert in = {.space = tree->space, .tokens = tokens, .token_count = count,
        .kv_ids = tree->with_kv ? tree->ids : NULL, .runs = &run, .run_count = 1, .from = from};
    bench_must(sc_radix_insert(tree->radix, &in, &tree->sink, NULL, NULL, &inserted),
        "sc_radix_insert");
    return inserted.node;
}

void radix_tree_insert(struct radix_tree *tree, const int32_t *tokens, uint32_t count)
{
    (void)radix_tree_insert_from(tree, SC_NODE_NONE, tokens, count);
}

uint32_t radix_tree_match(const struct radix_tree *tree, const int32_t *tokens, uint32_t count,
    struct sc_radix_match *match_out)
{
    struct sc_radix_key key = {tokens, count, NULL, 0};
    struct sc_radix_span spans[SPANS];
    uint32_t span_count;
    bench_must(sc_radix_match(tree->radix, tree->space, &key, count, match_out),
        "sc_radix_match");
    if (tree->with_kv)
        bench_must(sc_radix_spans(tree->radix, match_out->node, 0, spans, SPANS, &span_count),
            "sc_radix_spans");
    return match_out->kv_len;
}

uint64_t radix_tree_evict(struct radix_tree *tree, uint64_t tokens)
{
    uint64_t gone;
    uint32_t snapshots;
    bench_must(sc_radix_evict_kv(tree->radix, tokens, &tree->sink, &gone, &snapshots),
        "sc_radix_evict_kv");
    return gone;
}

struct sc_radix_stats radix_tree_stats(const struct radix_tree *tree)
{
    struct sc_radix_stats stats;
    sc_radix_stats_get(tree->radix, &stats);
    return stats;
}

void radix_tree_trim(struct radix_tree *tree)
{
    bench_must(sc_radix_trim(tree->radix, UINT64_MAX, NULL), "sc_radix_trim");
    sc_radix_purge(tree->radix);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "hit_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "bench_common.h"
#include "trace.h"
#include "trace_rows.h"

enum { TURN_BLOCK = 512 };

/* (block before, id) -> block; open addressing. */
struct trie {
    uint64_t *ids;
    uint32_t *parents, *nodes;
    size_t cap;
    uint32_t count;
};

static size_t trie_at(const struct trie *trie, uint32_t parent, uint64_t id)
{
    size_t at = sc_mix64(id * 0x9e3779b97f4a7c15u + parent) & (trie->cap - 1);
    while (trie->nodes[at] && (trie->parents[at] != parent || trie->ids[at] != id))
        at = (at + 1) & (trie->cap - 1);
    return at;
}

static void trie_grow(struct trie *trie)
{
    struct trie old = *trie;
    trie->cap = old.cap ? 2 * old.cap : 4096;
    trie->ids = bench_alloc(trie->cap, sizeof *trie->ids);
    trie->parents = bench_alloc(trie->cap, sizeof *trie->parents);
    trie->nodes = bench_alloc(trie->cap, sizeof *trie->nodes);
    for (size_t i = 0; i < old.cap; i++) {
        if (!old.nodes[i])
            continue;
        size_t at = trie_at(trie, old.parents[i], old.ids[i]);
        trie->ids[at] = old.ids[i];
        trie->parents[at] = old.parents[i];
        trie->nodes[at] = old.nodes[i];
    }
    free(old.ids);
    free(old.parents);
    free(old.nodes);
}

static uint32_t trie_child(struct trie *trie, uint32_t parent, uint64_t id)
{
    if (2 * ((size_t)trie->count + 1) > trie->cap)
        trie_grow(trie);
    size_t at = trie_at(trie, parent, id);
    if (!trie->nodes[at]) {
        trie->ids[at] = id;
        trie->parents[at] = parent;
        trie->nodes[at] = ++trie->count;
    }
    return trie->nodes[at];
}

/* Does this row fit blocks of `block` tokens? Ids may cover all, all whole blocks, or one less. */
static bool row_fits(const struct trace_row *row, uint32_t block)
{
    uint64_t covered = (uint64_t)row->input_len + (row->io ? row->output_len : 0);
    uint64_t full = covered / block, above = (covered + block - 1) / block;
    return row->id_count <= above && row->id_count + (covered % block == 0) >= full;
}

static uint32_t block_find(const struct trace_rows *rows)
{
    uint32_t best = 0;
    size_t best_count = 0;
    for (uint32_t block = 4096; block >= 8; block /= 2) {
        size_t count = 0;
        for (size_t i = 0; i < rows->count; i++)
            count += row_fits(&rows->rows[i], block);
        if (count > best_count) {
            best_count = count;
            best = block;
        }
    }
    return best_count * 10 >= rows->count * 9 ? best : 0;
}

struct loading {
    struct hit_trace *trace;
    struct trie trie, sessions;
    size_t token_cap;
    uint64_t *grown; /* of a session: its length so far, outputs included */
};

struct arrival { uint64_t time_ns; size_t row; };

static int arrival_order(const void *a, const void *b)
{
    const struct arrival *x = a, *y = b;
    if (x->time_ns != y->time_ns)
        return x->time_ns < y->time_ns ? -1 : 1;
    return x->row < y->row ? -1 : 1;
}

/* A turn comes its delay after the one before it; other rows come when they say. */
static struct arrival *arrivals(struct loading *l, const struct trace_rows *rows)
{
    struct arrival *list = bench_alloc(rows->count, sizeof *list);
    uint64_t *last = bench_alloc(rows->count + 2, sizeof *last);
    for (size_t i = 0; i < rows->count; i++) {
        const struct trace_row *row = &rows->rows[i];
        list[i] = (struct arrival){row->time_ns, i};
        if (!rows->turns || !row->has_session)
            continue;
        uint32_t session = trie_child(&l->sessions, 0, row->session);
        uint64_t next = last[session] + row->delay_ns;
        if (last[session] > 0 && next > list[i].time_ns)
            list[i].time_ns = next;
        last[session] = list[i].time_ns;
    }
    free(last);
    if (rows->count > 0)
        qsort(list, rows->count, sizeof *list, arrival_order);
    return list;
}

static void block_add(struct loading *l, uint32_t *parent, uint64_t id)
{
    struct hit_trace *trace = l->trace;
    trace->tokens = bench_grow(trace->tokens, &l->token_cap, trace->total + 1,
        sizeof *trace->tokens);
    *parent = trie_child(&l->trie, *parent, id);
    trace->tokens[trace->total++] = (int32_t)*parent;
}

/* The blocks of a turn: those of the session so far, and new ones of its own. */
static void add_turn(struct loading *l, const struct trace_row *row, struct hit_request *request)
{
    uint32_t session = trie_child(&l->sessions, 0, row->session);
    uint64_t length = l->grown[session] + row->input_len;
    request->input_len = length < UINT32_MAX ? (uint32_t)length : UINT32_MAX;
    request->blocks = request->input_len / l->trace->block;
    uint32_t parent = 0;
    for (uint32_t k = 0; k < request->blocks; k++)
        block_add(l, &parent, ((uint64_t)session << 32) | k);
    l->grown[session] = length + row->output_len;
}

static void add_row(struct loading *l, const struct trace_rows *rows, size_t index,
    const struct arrival *arrival)
{
    struct hit_trace *trace = l->trace;
    const struct trace_row *row = &rows->rows[arrival->row];
    struct hit_request *request = &trace->requests[index];
    uint32_t before = l->trie.count, parent = 0;
    request->time_ns = arrival->time_ns;
    request->first = trace->total;
    request->output_len = row->output_len;
    if (rows->turns) {
        add_turn(l, row, request);
    } else {
        uint32_t whole = row->io ? row->id_count : row->input_len / trace->block;
        request->input_len = row->input_len;
        request->blocks = whole < row->id_count ? whole : row->id_count;
        for (uint32_t k = 0; k < request->blocks; k++)
            block_add(l, &parent, row->ids[k]);
    }
    const int32_t *tokens = trace->tokens + request->first;
    while (request->known < request->blocks && (uint32_t)tokens[request->known] <= before)
        request->known++;
    uint32_t most = request->input_len > 0 ? (request->input_len - 1) / trace->block : 0;
    request->usable = request->blocks < most ? request->blocks : most;
    if (request->blocks > trace->longest)
        trace->longest = request->blocks;
    trace->input_tokens += request->input_len;
}

static void trie_free(struct trie *trie)
{
    free(trie->ids);
    free(trie->parents);
    free(trie->nodes);
}

int hit_trace_load(struct hit_trace *trace, const char *path, uint32_t block, uint32_t limit,
    char *error)
{
    struct trace_rows rows = {0};
    struct loading l = {.trace = trace};
    memset(trace, 0, sizeof *trace);
    int result = trace_rows_read(&rows, path, error);
    const char *name = strrchr(path, '/');
    snprintf(trace->name, sizeof trace->name, "%s", name ? name + 1 : path);
    trace->block = block ? block : rows.turns ? TURN_BLOCK : block_find(&rows);
    if (result == 0 && trace->block == 0) {
        snprintf(error, TRACE_ERROR_BYTES,
            "%s: lengths and hash_ids fit no size of blocks: give --block", path);
        result = -1;
    }
    if (result == 0) {
        trace->count = limit && limit < rows.count ? limit : rows.count;
        trace->requests = bench_alloc(trace->count, sizeof *trace->requests);
        l.grown = bench_alloc(rows.count + 2, sizeof *l.grown);
        struct arrival *list = arrivals(&l, &rows);
        for (size_t i = 0; i < trace->count; i++)
            add_row(&l, &rows, i, &list[i]);
        free(list);
        trace->node_count = l.trie.count;
        trace->hashes = bench_alloc(trace->total, sizeof *trace->hashes);
        for (size_t i = 0; i < trace->total; i++)
            trace->hashes[i] = sc_mix64((uint64_t)(uint32_t)trace->tokens[i]);
    }
    trie_free(&l.trie);
    trie_free(&l.sessions);
    free(l.grown);
    trace_rows_free(&rows);
    return result;
}

void hit_trace_free(struct hit_trace *trace)
{
    free(trace->requests);
    free(trace->tokens);
    free(trace->hashes);
    memset(trace, 0, sizeof *trace);
}

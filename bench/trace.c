/* SPDX-License-Identifier: Apache-2.0 */
/* From bytes to rows (trace_rows.c) to requests: this file turns rows into requests.
 *
 * Scaling. A trace of blocks of B tokens is replayed with blocks of S: what matters for reuse, the
 * number of whole blocks and whether something follows them, is kept.
 *
 *   input   |----B----|----B----|--r--|      blocks: floor(n / B), rest r = n mod B
 *   replay  |--S--|--S--|-r'|                r' = r S / B, at least 1 where r > 0, below S
 *
 * Ids may stop before the input does (some traces hash full blocks only, some leave out the last
 * one): the rest gets ids of its own, so that it matches nothing. The end of what the ids cover is
 * where a later request can go on; where that is inside the prompt and not at its last page, it
 * becomes the request's `end_point`. */
#include "trace.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "bench_common.h"
#include "trace_rows.h"

/* 64-bit keys to small numbers, in order of first appearance; open addressing. */
struct numbering {
    uint64_t *keys;
    uint32_t *values; /* number + 1; 0: empty */
    size_t cap, count;
};

static uint32_t *numbering_find(struct numbering *map, uint64_t key)
{
    size_t at = sc_mix64(key) & (map->cap - 1);
    while (map->values[at] && map->keys[at] != key)
        at = (at + 1) & (map->cap - 1);
    map->keys[at] = key;
    return &map->values[at];
}

static void numbering_grow(struct numbering *map)
{
    struct numbering old = *map;
    map->cap = old.cap ? 2 * old.cap : 1024;
    map->keys = bench_alloc(map->cap, sizeof *map->keys);
    map->values = bench_alloc(map->cap, sizeof *map->values);
    for (size_t i = 0; i < old.cap; i++)
        if (old.values[i])
            *numbering_find(map, old.keys[i]) = old.values[i];
    free(old.keys);
    free(old.values);
}

/* The value slot of `key`: 0 when it is new. */
static uint32_t *numbering_at(struct numbering *map, uint64_t key)
{
    if (2 * (map->count + 1) > map->cap)
        numbering_grow(map);
    uint32_t *value = numbering_find(map, key);
    map->count += *value == 0;
    return value;
}

static void numbering_free(struct numbering *map)
{
    free(map->keys);
    free(map->values);
}

struct building {
    struct workload *workload;
    const struct trace_options *options;
    const struct trace_rows *rows;
    struct numbering blocks;   /* hash id -> block number + 1 */
    struct numbering sessions; /* session or chat -> its newest request + 1 */
    uint32_t block_number;     /* next */
    uint32_t block, scale;
    char *error;
};

static int refuse(struct building *b, const struct trace_row *row, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int refuse(struct building *b, const struct trace_row *row, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int at = snprintf(b->error, TRACE_ERROR_BYTES, "%s:%zu: ", b->options->path, row->line);
    if (at > 0 && at < TRACE_ERROR_BYTES)
        vsnprintf(b->error + at, (size_t)(TRACE_ERROR_BYTES - at), format, args);
    va_end(args);
    return -1;
}

/* Does this row fit blocks of `block` tokens? Ids may cover all, all full blocks, or one less. */
static bool row_fits(const struct trace_row *row, uint32_t block)
{
    uint64_t covered = (uint64_t)row->input_len + (row->io ? row->output_len : 0);
    uint64_t full = covered / block, above = (covered + block - 1) / block;
    return row->id_count <= above && row->id_count + (covered % block == 0) >= full;
}

/* The block size that explains the most rows. */
static uint32_t guess_block(const struct trace_rows *rows)
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

static int32_t block_first_token(struct building *b, const uint64_t *id)
{
    if (!id)
        return (int32_t)b->block_number++; /* of its own: matches nothing */
    uint32_t *number = numbering_at(&b->blocks, *id);
    if (*number == 0)
        *number = ++b->block_number;
    return (int32_t)(*number - 1);
}

static uint32_t scaled(const struct building *b, uint32_t length)
{
    uint32_t rest = length % b->block, short_rest = 0;
    if (rest > 0) {
        short_rest = (uint32_t)((uint64_t)rest * b->scale / b->block);
        if (short_rest == 0)
            short_rest = 1;
    }
    return length / b->block * b->scale + short_rest;
}

/* Rows of one session are served one after the other. */
static void follow(struct building *b, const struct trace_row *row, struct bench_request *request)
{
    int32_t index = (int32_t)b->workload->request_count - 1;
    if (row->has_parent) {
        const uint32_t *parent = numbering_at(&b->sessions, row->parent);
        request->after = (int32_t)*parent - 1;
        if (*parent == 0)
            b->sessions.count--;
    }
    if (row->has_session) {
        uint32_t *newest = numbering_at(&b->sessions, row->session);
        if (!row->has_parent)
            request->after = (int32_t)*newest - 1;
        *newest = (uint32_t)index + 1;
    }
}

static int add_blocks(struct building *b, const struct trace_row *row)
{
    uint32_t prompt = scaled(b, row->input_len), full = row->id_count, total = prompt;
    uint64_t covered = (uint64_t)row->input_len + (row->io ? row->output_len : 0);
    if (full > (covered + b->block - 1) / b->block)
        return refuse(b, row, "%u hash_ids for %llu tokens in blocks of %u", full,
            (unsigned long long)covered, b->block);
    if (full > covered / b->block)
        full = (uint32_t)(covered / b->block); /* the last id is of a partial block */
    if (row->io && full * b->scale > prompt)
        total = full * b->scale;
    struct bench_request *request = workload_add(b->workload);
    request->arrive_ns = row->time_ns;
    request->prompt_len = prompt;
    request->output_len = total - prompt;
    request->output_given = row->io;
    follow(b, row, request);
    uint32_t end = full * b->scale;
    if (end <= prompt && (row->io || end != prompt / b->scale * b->scale))
        request->end_point = end;
    if (!row->io && row->output_len > 0) {
        uint64_t decode = (uint64_t)row->output_len * b->scale / b->block;
        decode = decode ? decode : 1;
        request->output_len = decode < b->options->decode_max ? (uint32_t)decode
                                                              : b->options->decode_max;
    }
    b->workload->has_given_output |= row->io;
    for (uint32_t at = 0, i = 0; at < total; at += b->scale, i++) {
        uint32_t length = total - at < b->scale ? total - at : b->scale;
        int32_t first = block_first_token(b, i < row->id_count ? &row->ids[i] : NULL);
        workload_segment(b->workload, sc_mix64((uint64_t)first + 0x7ace), first, length);
    }
    return 0;
}

/* A turn of a session: its prompt is the former turn's prompt and output, and new tokens. */
static int add_turn(struct building *b, const struct trace_row *row)
{
    struct bench_request *request = workload_add(b->workload);
    follow(b, row, request);
    request->arrive_ns = row->time_ns;
    request->think_ns = row->delay_ns;
    request->prompt_len = row->input_len;
    request->output_len = row->output_len < b->options->decode_max ? row->output_len
                                                                    : b->options->decode_max;
    if (request->after >= 0) {
        const struct bench_request *before = &b->workload->requests[request->after];
        uint64_t length = (uint64_t)before->prompt_len + before->output_len + row->input_len;
        if (length > TRACE_LENGTH_MAX)
            return refuse(b, row, "the session grows beyond %d tokens", TRACE_LENGTH_MAX);
        request->pred = request->after;
        request->from = PROMPT_AFTER_OUTPUT;
        request->prompt_len = (uint32_t)length;
    }
    uint64_t seed = sc_mix64(0x5e5510000u + b->workload->request_count);
    workload_segment(b->workload, seed, -1, row->input_len);
    return 0;
}

static int choose_block(struct building *b)
{
    const struct trace_options *options = b->options;
    if (b->rows->turns) {
        if (options->scale || options->block) {
            snprintf(b->error, TRACE_ERROR_BYTES, "%s: a trace of turns has no blocks to scale",
                options->path);
            return -1;
        }
        return 0;
    }
    b->block = options->block ? options->block : guess_block(b->rows);
    b->scale = options->scale ? options->scale : b->block;
    if (!options->scale && options->scale_max && options->scale_max < b->block)
        b->scale = options->scale_max;
    if (b->block == 0) {
        snprintf(b->error, TRACE_ERROR_BYTES,
            "%s: lengths and hash_ids fit no size of blocks: give --block", options->path);
        return -1;
    }
    if (b->scale > b->block) {
        snprintf(b->error, TRACE_ERROR_BYTES, "%s: --scale %u is longer than its blocks of %u",
            options->path, b->scale, b->block);
        return -1;
    }
    b->workload->block = b->scale;
    b->workload->block_traced = b->block;
    return 0;
}

/* Keeps `limit` rows: whole families, in order of their first rows; the last one may be cut. */
static void take_families(struct trace_rows *rows, uint32_t limit)
{
    struct numbering families = {0};
    uint32_t *family = bench_alloc(rows->count, sizeof *family);
    uint32_t *left = bench_alloc(rows->count, sizeof *left); /* of each family: rows to take */
    for (size_t i = 0; i < rows->count; i++) {
        const struct trace_row *row = &rows->rows[i];
        uint64_t key = row->id_count ? row->ids[0] : row->has_session ? ~row->session : ~i;
        uint32_t *number = numbering_at(&families, key);
        if (*number == 0)
            *number = (uint32_t)families.count;
        family[i] = *number - 1;
        left[family[i]]++;
    }
    for (size_t i = 0; i < rows->count; i++) {
        left[i] = left[i] < limit ? left[i] : limit;
        limit -= left[i];
    }
    size_t kept = 0;
    for (size_t i = 0; i < rows->count; i++) {
        if (left[family[i]] == 0) {
            free(rows->rows[i].ids);
            continue;
        }
        left[family[i]]--;
        rows->rows[kept++] = rows->rows[i];
    }
    rows->count = kept;
    numbering_free(&families);
    free(family);
    free(left);
}

int trace_load(struct workload *workload, const struct trace_options *options,
    char error[TRACE_ERROR_BYTES])
{
    struct trace_rows rows = {0};
    struct building b = {.workload = workload, .options = options, .rows = &rows, .error = error};
    int result = trace_rows_read(&rows, options->path, error);
    if (result == 0 && options->limit)
        take_families(&rows, options->limit);
    if (result == 0)
        result = choose_block(&b);
    for (size_t i = 0; result == 0 && i < rows.count; i++)
        result = rows.turns ? add_turn(&b, &rows.rows[i]) : add_blocks(&b, &rows.rows[i]);
    const char *name = strrchr(options->path, '/');
    snprintf(workload->name, sizeof workload->name, "%s", name ? name + 1 : options->path);
    numbering_free(&b.blocks);
    numbering_free(&b.sessions);
    trace_rows_free(&rows);
    return result;
}

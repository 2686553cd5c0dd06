/* SPDX-License-Identifier: Apache-2.0 */
#include "trace_rows.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "bench_common.h"
#include "trace.h"

enum { BYTES_MAX = 1 << 30 };

struct reading {
    struct trace_rows *rows;
    const char *path;
    size_t line;
    char *error;
    bool seen_blocks;
};

static int fail(struct reading *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fail(struct reading *r, const char *format, ...)
{
    int at = r->line ? snprintf(r->error, TRACE_ERROR_BYTES, "%s:%zu: ", r->path, r->line)
                     : snprintf(r->error, TRACE_ERROR_BYTES, "%s: ", r->path);
    va_list args;
    va_start(args, format);
    if (at > 0 && at < TRACE_ERROR_BYTES)
        vsnprintf(r->error + at, (size_t)(TRACE_ERROR_BYTES - at), format, args);
    va_end(args);
    return -1;
}

/* ------------------------------------------------------------------------------ bytes of a file */

struct bytes {
    char *data;
    size_t count, cap;
};

static int read_all(struct reading *r, struct bytes *bytes)
{
    FILE *file = fopen(r->path, "rb");
    if (!file)
        return fail(r, "%s", strerror(errno));
    size_t got = 1;
    while (got > 0 && bytes->count < BYTES_MAX) {
        bytes->data = bench_grow(bytes->data, &bytes->cap, bytes->count + 65536, 1);
        got = fread(bytes->data + bytes->count, 1, bytes->cap - bytes->count, file);
        bytes->count += got;
    }
    int bad = ferror(file) ? errno : 0;
    fclose(file);
    if (bad)
        return fail(r, "%s", strerror(bad));
    return bytes->count >= BYTES_MAX ? fail(r, "is larger than %d bytes", BYTES_MAX) : 0;
}

static bool is_zstd(const struct bytes *bytes)
{
    static const unsigned char magic[4] = {0x28, 0xb5, 0x2f, 0xfd};
    return bytes->count >= 4 && memcmp(bytes->data, magic, 4) == 0;
}

/* Replaces a zstd stream by what it holds. */
static int unpack(struct reading *r, struct bytes *bytes)
{
    struct bytes plain = {0};
    ZSTD_DStream *stream = ZSTD_createDStream();
    if (!stream)
        bench_fail(BENCH_NO_MEMORY, "out of memory (zstd)");
    ZSTD_inBuffer in = {bytes->data, bytes->count, 0};
    size_t left = 1;
    int result = 0;
    while (result == 0 && (in.pos < in.size || left != 0)) {
        plain.data = bench_grow(plain.data, &plain.cap, plain.count + 131072, 1);
        ZSTD_outBuffer out = {plain.data, plain.cap, plain.count};
        size_t before = in.pos;
        left = ZSTD_decompressStream(stream, &out, &in);
        if (ZSTD_isError(left))
            result = fail(r, "zstd: %s", ZSTD_getErrorName(left));
        else if (left != 0 && in.pos == before && out.pos == plain.count)
            result = fail(r, "zstd: the file is cut off");
        else if (out.pos >= BYTES_MAX)
            result = fail(r, "is larger than %d bytes unpacked", BYTES_MAX);
        plain.count = out.pos;
    }
    ZSTD_freeDStream(stream);
    free(bytes->data);
    *bytes = plain;
    return result;
}

/* ------------------------------------------------------------------------------ fields of a row */

static int get_length(struct reading *r, const json_t *object, const char *name, uint32_t *out)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_integer(value))
        return fail(r, "\"%s\" is not an integer", name);
    json_int_t number = json_integer_value(value);
    if (number < 0 || number > TRACE_LENGTH_MAX)
        return fail(r, "\"%s\" %lld is not in 0..%d", name, (long long)number, TRACE_LENGTH_MAX);
    *out = (uint32_t)number;
    return 0;
}

/* A time in units of `unit_ns`; absent: 0. */
static int get_time(struct reading *r, const json_t *object, const char *name, double unit_ns,
    uint64_t *out)
{
    const json_t *value = json_object_get(object, name);
    *out = 0;
    if (!value)
        return 0;
    double number = json_number_value(value);
    if (!json_is_number(value) || !isfinite(number) || number < 0 || number * unit_ns > 1e18)
        return fail(r, "\"%s\" is not a time", name);
    *out = (uint64_t)(number * unit_ns);
    return 0;
}

/* A session or chat: an integer or a text. -1 error, 0 absent, 1 there. */
static int get_name(struct reading *r, const json_t *object, const char *name, uint64_t *out)
{
    const json_t *value = json_object_get(object, name);
    if (!value)
        return 0;
    if (json_is_integer(value)) {
        *out = (uint64_t)json_integer_value(value);
        return 1;
    }
    if (!json_is_string(value))
        return fail(r, "\"%s\" is neither a number nor a text", name);
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (const char *at = json_string_value(value); *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    *out = hash;
    return 1;
}

static int get_ids(struct reading *r, const json_t *ids, struct trace_row *row)
{
    if (!json_is_array(ids))
        return fail(r, "\"hash_ids\" is not an array");
    size_t count = json_array_size(ids);
    if (count > TRACE_LENGTH_MAX)
        return fail(r, "too many hash_ids");
    for (size_t i = 0; i < count; i++)
        if (!json_is_integer(json_array_get(ids, i)))
            return fail(r, "hash id %zu is not an integer", i);
    row->ids = bench_alloc(count, sizeof *row->ids);
    row->id_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++)
        row->ids[i] = (uint64_t)json_integer_value(json_array_get(ids, i));
    return 0;
}

static struct trace_row *new_row(struct reading *r)
{
    struct trace_rows *rows = r->rows;
    rows->rows = bench_grow(rows->rows, &rows->cap, rows->count + 1, sizeof *rows->rows);
    struct trace_row *row = &rows->rows[rows->count++];
    memset(row, 0, sizeof *row);
    row->line = r->line;
    return row;
}

static int get_session(struct reading *r, const json_t *object, struct trace_row *row)
{
    int chat = get_name(r, object, "chat_id", &row->session);
    if (chat == 1) {
        row->has_parent = true;
        int parent = get_name(r, object, "parent_chat_id", &row->parent);
        if (parent == 0 || (parent == 1 && row->parent == (uint64_t)-1))
            row->parent = UINT64_MAX - 1; /* no row has this id */
        row->has_session = true;
        return parent < 0 ? -1 : 0;
    }
    int named = chat < 0 ? -1 : get_name(r, object, "session", &row->session);
    if (named == 0)
        named = get_name(r, object, "session_id", &row->session);
    row->has_session = named == 1;
    return named < 0 ? -1 : 0;
}

/* The turns of one session in one line. */
static int read_turns(struct reading *r, const json_t *object, const json_t *turns)
{
    struct trace_row first = {.line = r->line};
    if (!json_is_array(turns))
        return fail(r, "\"turns\" is not an array");
    if (get_session(r, object, &first) || get_time(r, object, "timestamp", 1e6, &first.time_ns))
        return -1;
    if (!first.has_session)
        return fail(r, "\"turns\" without \"session\"");
    size_t index;
    const json_t *turn;
    json_array_foreach(turns, index, turn) {
        struct trace_row *row = new_row(r);
        *row = first;
        if (!json_is_object(turn))
            return fail(r, "turn %zu is not an object", index);
        if (get_length(r, turn, "input_length", &row->input_len) ||
            get_length(r, turn, "output_length", &row->output_len) ||
            get_time(r, turn, "delay", 1e6, &row->delay_ns))
            return -1;
        if (row->input_len == 0)
            return fail(r, "turn %zu has no input", index);
    }
    r->rows->turns = true;
    return 0;
}

static int read_object(struct reading *r, const json_t *object)
{
    if (!json_is_object(object))
        return fail(r, "is not a JSON object");
    const json_t *turns = json_object_get(object, "turns");
    const json_t *ids = json_object_get(object, "hash_ids");
    if (turns)
        return read_turns(r, object, turns);
    struct trace_row row = {.line = r->line};
    const json_t *io = json_object_get(object, "io");
    row.io = json_is_true(io) || (json_is_integer(io) && json_integer_value(io) != 0);
    if (get_length(r, object, "input_length", &row.input_len) ||
        get_length(r, object, "output_length", &row.output_len) || get_session(r, object, &row) ||
        get_time(r, object, "timestamp", row.has_parent ? 1e9 : 1e6, &row.time_ns) ||
        get_time(r, object, "delay", 1e6, &row.delay_ns))
        return -1;
    if (!ids && !row.has_session)
        return fail(r, "has neither \"hash_ids\" nor a session");
    if (ids && get_ids(r, ids, &row))
        return -1;
    r->rows->turns |= !ids;
    r->seen_blocks |= ids != NULL;
    if (row.input_len == 0) { /* nothing to serve */
        free(row.ids);
        return 0;
    }
    *new_row(r) = row;
    return 0;
}

static int read_line(struct reading *r, const char *text, size_t length)
{
    size_t blank = strspn(text, " \t\r");
    if (blank >= length)
        return 0;
    json_error_t wrong;
    json_t *object = json_loadb(text, length, JSON_REJECT_DUPLICATES, &wrong);
    if (!object)
        return fail(r, "JSON, column %d: %s", wrong.column, wrong.text);
    int result = read_object(r, object);
    json_decref(object);
    if (result == 0 && r->rows->turns && r->seen_blocks)
        return fail(r, "rows with and without \"hash_ids\" in one trace");
    return result;
}

static int by_time(const void *left, const void *right)
{
    const struct trace_row *a = left, *b = right;
    if (a->time_ns != b->time_ns)
        return a->time_ns < b->time_ns ? -1 : 1;
    return a->line < b->line ? -1 : a->line > b->line;
}

/* A stable sort (merge, bottom up): turns of one line have one time and one line. */
static void sort_rows(struct trace_rows *rows)
{
    bool sorted = true;
    for (size_t i = 1; i < rows->count && sorted; i++)
        sorted = by_time(&rows->rows[i - 1], &rows->rows[i]) <= 0;
    if (sorted)
        return;
    struct trace_row *copy = bench_alloc(rows->count, sizeof *copy);
    for (size_t width = 1; width < rows->count; width *= 2) {
        for (size_t at = 0; at < rows->count; at += 2 * width) {
            size_t middle = at + width < rows->count ? at + width : rows->count;
            size_t end = middle + width < rows->count ? middle + width : rows->count;
            for (size_t i = at, left = at, right = middle; i < end; i++) {
                bool take_left = left < middle && (right >= end ||
                    by_time(&rows->rows[left], &rows->rows[right]) <= 0);
                copy[i] = rows->rows[take_left ? left++ : right++];
            }
        }
        memcpy(rows->rows, copy, rows->count * sizeof *copy);
    }
    free(copy);
}

int trace_rows_read(struct trace_rows *rows, const char *path, char *error)
{
    struct reading r = {.rows = rows, .path = path, .error = error};
    struct bytes bytes = {0};
    int result = read_all(&r, &bytes);
    if (result == 0 && is_zstd(&bytes))
        result = unpack(&r, &bytes);
    bytes.data = bench_grow(bytes.data, &bytes.cap, bytes.count + 1, 1);
    bytes.data[bytes.count] = 0; /* for strspn */
    size_t at = 0;
    while (result == 0 && at < bytes.count) {
        const char *end = memchr(bytes.data + at, '\n', bytes.count - at);
        size_t length = end ? (size_t)(end - bytes.data) - at : bytes.count - at;
        r.line++;
        result = read_line(&r, bytes.data + at, length);
        at += length + 1;
    }
    free(bytes.data);
    r.line = 0;
    if (result == 0 && rows->count == 0)
        result = fail(&r, "has no requests");
    if (result == 0)
        sort_rows(rows);
    return result;
}

void trace_rows_free(struct trace_rows *rows)
{
    for (size_t i = 0; i < rows->count; i++)
        free(rows->rows[i].ids);
    free(rows->rows);
    rows->rows = NULL;
    rows->count = rows->cap = 0;
}

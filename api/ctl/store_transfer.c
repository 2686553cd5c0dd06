/* SPDX-License-Identifier: Apache-2.0 */
/* store export, store import: records as one file (docs/reference/tier-format.md, "export").
 * Nothing that the file says is believed before the check of its record agrees; memory is taken as
 * bytes arrive, not as lengths promise. */
#define XXH_INLINE_ALL 1
#include <xxhash.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"

#define EXPORT_MAGIC UINT32_C(0x58454353) /* "SCEX" */
#define U(x) ((unsigned long long)(x))
enum { EXPORT_VERSION = 1, GROW = 1 << 20 };

struct export_head {
    uint32_t token_count, parent_len, numerics, kind;
    uint8_t fingerprint[16];
    uint64_t adapter_id, adapter_generation;
    double value;
    uint64_t stored_ns;
    uint32_t shard_count, history_count, mark_count, with_kv;
};
struct export_shard {
    uint32_t tp_rank, tp_size, pp_rank, pp_size, layer_first, layer_count;
    uint32_t codec, flags;
    uint64_t state_bytes, kv_bytes, plain_bytes, check_low, check_high;
};
_Static_assert(sizeof(struct export_head) == 80 && sizeof(struct export_shard) == 72, "layout");

struct buffer { uint8_t *bytes; size_t count, cap; };

static bool reserve(struct buffer *buffer, size_t more)
{
    size_t need = buffer->count + more;
    if (need < more) return false;
    if (need <= buffer->cap) return true;
    size_t cap = buffer->cap * 2 > need ? buffer->cap * 2 : need + GROW;
    uint8_t *bytes = realloc(buffer->bytes, cap);
    if (!bytes) return false;
    buffer->bytes = bytes;
    buffer->cap = cap;
    return true;
}

static int say(const char *text)
{
    (void)fprintf(stderr, "statecachectl: %s\n", text);
    return CTL_FAILED;
}

static FILE *file_open(const struct ctl_options *options, bool write)
{
    if (strcmp(options->file, "-") == 0) return write ? stdout : stdin;
    FILE *file = fopen(options->file, write ? "wb" : "rb");
    if (!file) {
        (void)fprintf(stderr, "statecachectl: %s: %s\n", options->file, strerror(errno));
    }
    return file;
}

static int file_close(FILE *file, const char *name, int code)
{
    bool bad = ferror(file) != 0;
    if (file != stdout && file != stdin) bad = fclose(file) != 0 || bad;
    else if (file == stdout) bad = fflush(file) != 0 || bad;
    if (!bad) return code;
    (void)fprintf(stderr, "statecachectl: %s: %s\n", name, strerror(errno));
    return CTL_FAILED;
}

/* ---- export ---- */

/* Head, shards, history, marks, tokens; then each payload. */
static int gather(struct sc_store_reader *reader, struct buffer *out)
{
    struct sc_store_info info;
    struct sc_store_key key;
    uint32_t count = 0;
    sc_store_reader_info(reader, &info);
    (void)sc_store_reader_key(reader, NULL, 0, NULL, 0, &key);
    size_t shards = info.shard_count * sizeof(struct export_shard);
    size_t history = info.history_count * sizeof(struct sc_stretch);
    size_t marks = key.mark_count * sizeof(sc_mark), tokens = key.token_count * sizeof(int32_t);
    size_t fixed = sizeof(struct export_head) + shards + history + marks + tokens;
    out->count = 0;
    if (!reserve(out, fixed + 16 + (size_t)info.payload_bytes)) return say("no memory");
    struct export_head head = {.token_count = info.token_count, .parent_len = info.parent_len,
        .numerics = info.numerics, .kind = info.kind, .value = info.value,
        .stored_ns = info.stored_ns, .shard_count = info.shard_count,
        .history_count = info.history_count};
    uint8_t *at = out->bytes + sizeof head + shards;
    if (sc_store_reader_history(reader, (struct sc_stretch *)(void *)at, info.history_count,
            &count) != SC_OK ||
        sc_store_reader_key(reader, (int32_t *)(void *)(at + history + marks), key.token_count,
            (sc_mark *)(void *)(at + history), key.mark_count, &key) != SC_OK) {
        return ctl_fail("export", CTL_FAILED);
    }
    head.adapter_id = key.adapter_id;
    head.adapter_generation = key.adapter_generation;
    head.mark_count = key.mark_count;
    memcpy(head.fingerprint, key.fingerprint.bytes, 16);
    at = out->bytes + fixed;
    for (uint32_t i = 0; i < info.shard_count; i++) {
        struct sc_store_shard_info it;
        if (sc_store_reader_shard(reader, i, &it) != SC_OK ||
            sc_store_read(reader, i, at, it.state_bytes + it.kv_bytes) != SC_OK) {
            (void)ctl_fail("a record is left out", CTL_FAULTS);
            return CTL_FAULTS;
        }
        at += it.state_bytes + it.kv_bytes;
        head.with_kv |= it.kv_bytes > 0;
        struct export_shard shard = {it.shard.tp_rank, it.shard.tp_size, it.shard.pp_rank,
            it.shard.pp_size, it.shard.layer_first, it.shard.layer_count, it.codec, it.flags,
            it.state_bytes, it.kv_bytes, it.plain_bytes, it.check_low, it.check_high};
        memcpy(out->bytes + sizeof head + i * sizeof shard, &shard, sizeof shard);
    }
    memcpy(out->bytes, &head, sizeof head);
    out->count = (size_t)(at - out->bytes);
    return CTL_OK;
}

static int write_record(FILE *file, const struct buffer *body)
{
    uint64_t bytes = body->count;
    XXH128_hash_t hash = XXH3_128bits(body->bytes, body->count);
    uint64_t check[2] = {hash.low64, hash.high64};
    bool good = fwrite(&bytes, sizeof bytes, 1, file) == 1 &&
        fwrite(body->bytes, body->count, 1, file) == 1 && fwrite(check, sizeof check, 1, file) == 1;
    return good ? CTL_OK : CTL_FAILED;
}

static int export_one(struct sc_store *store, uint32_t id, FILE *file, struct buffer *body,
    uint64_t *count)
{
    struct sc_store_reader *reader = NULL;
    if (sc_store_reader_open_id(store, id, &reader) != SC_OK) {
        return ctl_fail("export", CTL_FAILED);
    }
    int code = gather(reader, body);
    sc_store_reader_close(reader);
    if (code == CTL_OK) code = write_record(file, body);
    *count += code == CTL_OK;
    return code;
}

/* The ids above `id` and itself, as marks in a map of those wanted. */
static bool *wanted_of(struct sc_store *store, uint32_t id)
{
    struct sc_store_iter *iter = NULL;
    struct sc_store_edge edge;
    uint32_t end = 0, *parents = NULL;
    bool found = false;
    if (sc_store_iter_open(store, &iter) != SC_OK) return NULL;
    while (sc_store_iter_next(iter, &edge) == SC_OK) {
        if (edge.info.id >= end) {
            uint32_t more = edge.info.id + 1024, *grown = realloc(parents, more * sizeof *grown);
            if (!grown) break;
            parents = grown;
            for (uint32_t i = end; i < more; i++) parents[i] = SC_STORE_NO_PARENT;
            end = more;
        }
        parents[edge.info.id] = edge.info.parent;
        found = found || (edge.info.id == id && edge.info.has_record);
    }
    sc_store_iter_close(iter);
    bool *wanted = found ? calloc(end + 1, sizeof *wanted) : NULL;
    for (uint32_t at = id; wanted && at < end; at = parents[at]) wanted[at] = true;
    free(parents);
    return wanted;
}

static int export_all(const struct ctl_options *options, struct sc_store *store, FILE *file,
    uint64_t *count)
{
    struct sc_store_iter *iter = NULL;
    struct sc_store_edge edge;
    struct buffer body = {NULL, 0, 0};
    bool *wanted = NULL;
    int code = CTL_OK;
    if (options->has_id && !(wanted = wanted_of(store, options->id))) {
        return say("there is no such record");
    }
    if (sc_store_iter_open(store, &iter) != SC_OK) code = ctl_fail("export", CTL_FAILED);
    sc_status status = SC_OK;
    while (code < CTL_USAGE && (status = sc_store_iter_next(iter, &edge)) == SC_OK) {
        if (!edge.info.has_record || (wanted && !wanted[edge.info.id])) continue;
        int one = export_one(store, edge.info.id, file, &body, count);
        if (one > code) code = one;
        if (wanted && edge.info.id == options->id) break; /* those above came before */
    }
    sc_store_iter_close(iter);
    free(wanted);
    free(body.bytes);
    return code;
}

int ctl_export(const struct ctl_options *options, struct sc_store *store)
{
    const uint32_t start[2] = {EXPORT_MAGIC, EXPORT_VERSION};
    uint64_t end[2] = {0, 0};
    FILE *file = file_open(options, true);
    if (!file) return CTL_FAILED;
    int code = fwrite(start, sizeof start, 1, file) == 1 ? CTL_OK : CTL_FAILED;
    if (code == CTL_OK) code = export_all(options, store, file, &end[1]);
    if (code < CTL_USAGE && fwrite(end, sizeof end, 1, file) != 1) code = CTL_FAILED;
    code = file_close(file, options->file, code);
    (void)fprintf(file == stdout ? stderr : stdout, options->json ?
        "{\"type\":\"export\",\"record_count\":%llu}\n" : "%llu records exported\n", U(end[1]));
    return code;
}

/* ---- import ---- */

enum step { STEP_RECORD, STEP_END, STEP_BAD };

static bool read_bytes(FILE *file, struct buffer *out, uint64_t bytes)
{
    out->count = 0;
    while (out->count < bytes) {
        size_t piece = bytes - out->count < GROW ? (size_t)(bytes - out->count) : GROW;
        if (!reserve(out, piece)) return false;
        if (fread(out->bytes + out->count, 1, piece, file) != piece) return false;
        out->count += piece;
    }
    return true;
}

static enum step next_record(FILE *file, struct buffer *body, uint64_t *count_out)
{
    uint64_t bytes = 0, check[2];
    if (fread(&bytes, sizeof bytes, 1, file) != 1) return STEP_BAD;
    if (bytes == 0) return fread(count_out, sizeof *count_out, 1, file) == 1 ? STEP_END : STEP_BAD;
    if (!read_bytes(file, body, bytes)) return STEP_BAD;
    if (fread(check, sizeof check, 1, file) != 1) return STEP_BAD;
    XXH128_hash_t hash = XXH3_128bits(body->bytes, body->count);
    return hash.low64 == check[0] && hash.high64 == check[1] ? STEP_RECORD : STEP_BAD;
}

struct parsed {
    struct export_head head;
    const uint8_t *shards, *payloads;
    struct sc_store_record record;
    sc_shard *places; /* owned */
};

static bool parse(const struct buffer *body, struct parsed *out)
{
    struct export_head *head = &out->head;
    if (body->count < sizeof *head) return false;
    memcpy(head, body->bytes, sizeof *head);
    if (head->shard_count == 0 || head->shard_count > SC_STORE_SHARDS_MAX ||
        head->token_count > SC_STORE_TOKENS_MAX) {
        return false;
    }
    uint64_t need = sizeof *head + head->shard_count * (uint64_t)sizeof(struct export_shard) +
        head->history_count * (uint64_t)8 + head->mark_count * (uint64_t)20 +
        head->token_count * (uint64_t)4;
    if (need > body->count) return false;
    out->shards = body->bytes + sizeof *head;
    const uint8_t *history = out->shards + head->shard_count * sizeof(struct export_shard);
    const uint8_t *marks = history + head->history_count * (size_t)8;
    const uint8_t *tokens = marks + head->mark_count * (size_t)20;
    out->payloads = body->bytes + need;
    out->places = calloc(head->shard_count, sizeof *out->places);
    if (!out->places) return false;
    for (uint32_t i = 0; i < head->shard_count; i++) {
        struct export_shard shard;
        memcpy(&shard, out->shards + i * sizeof shard, sizeof shard);
        uint64_t left = body->count - need;
        if (shard.state_bytes > left || shard.kv_bytes > left - shard.state_bytes) return false;
        need += shard.state_bytes + shard.kv_bytes;
        out->places[i] = (sc_shard){shard.tp_rank, shard.tp_size, shard.pp_rank, shard.pp_size,
            shard.layer_first, shard.layer_count};
    }
    out->record = (struct sc_store_record){
        .key = {.adapter_id = head->adapter_id, .adapter_generation = head->adapter_generation,
            .tokens = (const int32_t *)(const void *)tokens, .token_count = head->token_count,
            .marks = head->mark_count ? (const sc_mark *)(const void *)marks : NULL,
            .mark_count = head->mark_count},
        .parent_len = head->parent_len, .numerics = head->numerics, .kind = head->kind,
        .value = head->value, .shard_count = head->shard_count, .shards = out->places,
        .history = head->history_count ? (const struct sc_stretch *)(const void *)history : NULL,
        .history_count = head->history_count};
    memcpy(out->record.key.fingerprint.bytes, head->fingerprint, 16);
    return need == body->count;
}

/* A payload is written with the check that it came with, or not at all. */
static sc_status import_shards(struct sc_store *store, struct sc_store_put *put,
    const struct parsed *parsed)
{
    const uint8_t *at = parsed->payloads;
    for (uint32_t i = 0; i < parsed->head.shard_count; i++) {
        struct export_shard shard;
        memcpy(&shard, parsed->shards + i * sizeof shard, sizeof shard);
        struct sc_store_payload payload = {at, shard.state_bytes, shard.kv_bytes,
            shard.plain_bytes, shard.codec, shard.flags};
        XXH128_hash_t hash = XXH3_128bits(at, (size_t)(shard.state_bytes + shard.kv_bytes));
        if (hash.low64 != shard.check_low || hash.high64 != shard.check_high) {
            return SC_ERR_CORRUPT;
        }
        sc_status status = sc_store_shard(store, put, i, &payload, parsed->head.stored_ns);
        if (status != SC_OK) return status;
        at += shard.state_bytes + shard.kv_bytes;
    }
    return SC_OK;
}

static sc_status import_one(struct sc_store *store, const struct parsed *parsed)
{
    struct sc_store_put *put = NULL;
    sc_status each = SC_OK;
    sc_status status = sc_store_begin(store, &parsed->record, parsed->head.with_kv != 0, &put);
    if (status != SC_OK || !put) return status;
    status = import_shards(store, put, parsed);
    if (status != SC_OK) {
        struct sc_error_info error = *sc_last_error();
        (void)fprintf(stderr, "statecachectl: a record is left out: %s\n",
            status == SC_ERR_CORRUPT ? "its payload failed its check" : error.text);
        sc_store_abort(store, put);
        return status;
    }
    status = sc_store_commit(store, &put, 1, parsed->head.stored_ns, &each);
    return status == SC_OK ? each : status;
}

static int import_all(struct sc_store *store, FILE *file, uint64_t *count, uint64_t *left_out)
{
    uint32_t start[2] = {0, 0};
    struct buffer body = {NULL, 0, 0};
    uint64_t said = 0;
    if (fread(start, sizeof start, 1, file) != 1 || start[0] != EXPORT_MAGIC) {
        return say("this is not a file of store export");
    }
    if (start[1] != EXPORT_VERSION) return say("a later version wrote this file");
    enum step step;
    while ((step = next_record(file, &body, &said)) == STEP_RECORD) {
        struct parsed parsed = {.places = NULL};
        sc_status status = parse(&body, &parsed) ? import_one(store, &parsed) : SC_ERR_CORRUPT;
        free(parsed.places);
        if (status == SC_OK) (*count)++;
        else (*left_out)++;
    }
    free(body.bytes);
    if (step == STEP_BAD) return say("the file is cut or damaged: what was before is imported");
    if (said != *count + *left_out) return say("the file has other records than it says");
    return *left_out > 0 ? CTL_FAULTS : CTL_OK;
}

int ctl_import(const struct ctl_options *options, struct sc_store *store)
{
    uint64_t count = 0, left_out = 0;
    FILE *file = file_open(options, false);
    if (!file) return CTL_FAILED;
    int code = import_all(store, file, &count, &left_out);
    code = file_close(file, options->file, code);
    (void)printf(options->json ?
        "{\"type\":\"import\",\"record_count\":%llu,\"left_out_count\":%llu}\n" :
        "%llu records imported, %llu left out\n", U(count), U(left_out));
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a job of the tiers does, stage by stage; a stage that has begun a move of KV is left, and
 * the next one is entered when the move has ended.
 *
 *   STORE    pack the state; read KV behind it  |  complete the entry; or write the record | commit
 *   SPILL    acquire the entry, write the record  |  commit
 *   RESTORE  for each source: read it, unpack the state (the first), write KV  |  release it, next
 *
 * A copy in host memory:   | state as packed | KV of its pages |  ...  | struct host_note |
 * Numbers in brackets are invariants of tiers_internal.h. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/sc_assert.h"
#include "tiers_internal.h"

enum { ALIGN = 4096 };

void sc_tiers_release(struct tiers *tiers, struct sc_tier_job *job)
{
    if (job->held) (void)sc_host_store_release(tiers->host, job->copy);
    if (job->owned) sc_heap_free(&tiers->heap, job->owned, (size_t)job->owned_bytes);
    job->held = false;
    job->owned = job->payload = NULL;
}

static uint32_t bucket_of(uint64_t ns)
{
    uint32_t bucket = 0;
    while (bucket < SC_TIERS_BUCKET_COUNT - 1 && ns >= SC_TIERS_BUCKET_NS(bucket)) bucket++;
    return bucket;
}

static void count(struct tiers *tiers, const struct sc_tier_job *job, uint32_t tier, bool stored)
{
    uint64_t ns = sc_clock_now_ns() - job->began_ns;
    sc_tiers_stats *stats = &tiers->stats;
    sc_mutex_lock(&tiers->lock);
    (stored ? stats->stored : stats->restored)[tier]++;
    (stored ? stats->stored_bytes : stats->restored_bytes)[tier] += job->bytes;
    (stored ? stats->stored_ns : stats->restored_ns)[tier] += ns;
    (stored ? stats->stored_time : stats->restored_time)[tier][bucket_of(ns)]++;
    stats->io_failed_row[tier] = 0;
    sc_mutex_unlock(&tiers->lock);
}

static struct host_note *note_of(void *memory, uint64_t bytes)
{
    return (struct host_note *)(void *)((uint8_t *)memory + bytes - sizeof(struct host_note));
}

static uint64_t kv_bytes_of(const struct tiers *tiers, uint32_t pages)
{
    return tiers->has_mover ? pages * tiers->mover.page_bytes : 0;
}

/* ---- the disk ---- */

static struct sc_store_key key_of(const struct tiers *tiers, const struct sc_tier_job *job,
    uint32_t token_count)
{
    uint32_t marks = job->mark_count;
    while (marks > 0 && job->marks[marks - 1].at >= token_count) marks--;
    return (struct sc_store_key){tiers->fingerprint, job->adapter_id, job->adapter_generation,
        job->tokens, token_count, job->marks, marks};
}

static struct sc_store_want want_of(const struct tiers *tiers)
{
    return (struct sc_store_want){tiers->numerics, &tiers->shard, 1,
        tiers->base.options.disk.lossy};
}

/* The engine's directory says how the state came to be: the store may have another, which it could
 * not drop. */
static sc_status check_history(struct tiers *tiers, const struct sc_tier_job *job,
    struct sc_store_reader *reader, uint32_t token_count)
{
    uint32_t cap = job->history_count, count = 0;
    struct sc_stretch *history = sc_heap_calloc(&tiers->heap, cap + 1u, sizeof *history);
    if (!history) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a history of %u", cap);
    sc_status status = sc_store_reader_history(reader, history, cap, &count);
    bool same = status == SC_OK && count > 0 && history[count - 1].end == token_count;
    for (uint32_t i = 0; same && i < count; i++) {
        uint32_t end = job->history[i].end < token_count ? job->history[i].end : token_count;
        same = history[i].form == job->history[i].form && history[i].end == end;
    }
    sc_heap_free(&tiers->heap, history, (cap + 1u) * sizeof *history);
    if (same || (status != SC_OK && status != SC_ERR_LIMIT)) return status;
    return SC_FAIL(SC_ERR_MISMATCH, "a record of %u tokens with another history", token_count);
}

/* What was there already is a record of the same key: of the same history, too, or it goes. */
static sc_status check_there(struct tiers *tiers, const struct sc_tier_job *job, uint32_t id)
{
    struct sc_store_reader *reader = NULL;
    SC_TRY(sc_store_reader_open_id(tiers->disk, id, &reader));
    sc_status status = check_history(tiers, job, reader, job->token_count);
    sc_store_reader_close(reader);
    if (status == SC_ERR_MISMATCH) (void)sc_store_drop(tiers->disk, id);
    return status;
}

static struct sc_store_record record_of(const struct tiers *tiers, const struct sc_tier_job *job)
{
    return (struct sc_store_record){.key = key_of(tiers, job, job->token_count),
        .parent_len = job->parent_len,
        .numerics = tiers->numerics,
        .kind = job->kind,
        .value = job->value,
        .history = job->history,
        .history_count = job->history_count,
        .shard_count = 1,
        .shards = &tiers->shard};
}

/* Which record of the disk it is. */
static sc_status disk_find(struct tiers *tiers, struct sc_tier_job *job)
{
    const struct sc_store_key key = key_of(tiers, job, job->token_count);
    const struct sc_store_want want = want_of(tiers);
    enum sc_store_reason reason = SC_STORE_ABSENT;
    struct sc_store_info info;
    SC_TRY(sc_store_find(tiers->disk, &key, &want, &reason, &info));
    if (reason != SC_STORE_HIT) {
        return SC_FAIL(SC_ERR_IO, "stored, but not found: %s", sc_store_reason_text(reason));
    }
    job->disk_id = info.id;
    job->disk_tick = info.tick;
    return SC_OK;
}

/* Writes the payload; the commit is left (job->put), unless the record was there already. */
static sc_status disk_write(
    struct tiers *tiers, struct sc_tier_job *job, const struct sc_store_payload *payload)
{
    const struct sc_store_record record = record_of(tiers, job);
    bool with_kv = payload->kv_bytes > 0;
    struct sc_store_put *put = NULL;
    if (!with_kv && record.parent_len > 0)
        (void)sc_tiers_settle(tiers, 0); /* else it gets no parent */
    uint64_t ended = sc_tiers_commits_ended(tiers);
    sc_status status = sc_store_begin(tiers->disk, &record, with_kv, &put);
    if ((status == SC_ERR_NOT_FOUND || status == SC_ERR_BUSY) && sc_tiers_settle(tiers, ended)) {
        status = sc_store_begin(tiers->disk, &record, with_kv, &put);
    }
    SC_TRY(status);
    if (!put) {
        SC_TRY(disk_find(tiers, job));
        return check_there(tiers, job, job->disk_id);
    }
    ended = sc_tiers_commits_ended(tiers);
    status = sc_store_shard(tiers->disk, put, 0, payload, job->now_ns);
    /* What waits for its commit cannot make room yet. */
    if (status == SC_ERR_LIMIT && sc_tiers_settle(tiers, ended)) {
        status = sc_store_shard(tiers->disk, put, 0, payload, job->now_ns);
    }
    if (status == SC_OK) {
        job->put = put;
    } else {
        sc_store_abort(tiers->disk, put);
    }
    return status;
}

/* The write has ended, but for its commit. True: it has ended. */
static bool disk_end(struct tiers *tiers, struct sc_tier_job *job)
{
    if (job->put) {
        sc_tiers_hand_over(tiers, job);
        return false;
    }
    if (job->status == SC_OK)
        count(tiers, job, SC_TIER_TABLE_DISK, true);
    return true;
}

void sc_tiers_commit(struct tiers *tiers, struct sc_tier_job *jobs)
{
    struct sc_store_put *puts[COMMIT_MAX];
    sc_status each[COMMIT_MAX];
    uint32_t puts_count = 0, i = 0;
    uint64_t now_ns = 0;
    for (struct sc_tier_job *job = jobs; job; job = job->next) {
        if (job->now_ns > now_ns)
            now_ns = job->now_ns;
        puts[puts_count++] = job->put;
        job->put = NULL;
    }
    sc_status status = sc_store_commit(tiers->disk, puts, puts_count, now_ns, each);
    for (struct sc_tier_job *job = jobs; job; job = job->next, i++) {
        job->status = status == SC_OK ? each[i] : status;
        if (job->status == SC_OK)
            job->status = disk_find(tiers, job);
        if (job->status == SC_OK)
            count(tiers, job, SC_TIER_TABLE_DISK, true);
    }
}

void sc_tiers_drop(struct tiers *tiers, const struct drop *drop)
{
    if (!tiers->disk) return;
    if (sc_tiers_awaited(tiers, drop->disk_id)) (void)sc_tiers_settle(tiers, 0);
    (void)sc_store_drop_exactly(tiers->disk, drop->disk_id, drop->disk_tick);
}

/* ---- store ---- */

/* Packs the state into an entry of the host tier that has room for its KV, too. */
static sc_status store_host(struct tiers *tiers, struct sc_tier_job *job)
{
    const struct sc_pack_options options = sc_tiers_pack(tiers, SC_TIER_TABLE_HOST);
    const struct sc_codec *codec = NULL;
    uint64_t bound = 0, kv = kv_bytes_of(tiers, job->kv_count);
    void *memory = NULL;
    SC_TRY(sc_codec_by_id(options.codec, &codec));
    SC_TRY(sc_codec_bytes_max(codec, tiers->pool, &bound));
    uint64_t bytes = (bound + kv + sizeof(struct host_note) + 15) / 16 * 16;
    /* The engine has made room; nothing else goes for it: later entries are worth less. */
    SC_TRY(sc_host_store_reserve(tiers->host, job->copy, bytes, -(double)job->copy, &memory));
    struct host_note note = {.kv_bytes = kv, .codec = options.codec,
        .flags = codec->lossy ? SC_STORE_LOSSY : 0};
    sc_status status = SC_OK;
    if (options.zstd_level == 0) {
        status = sc_codec_encode(codec, tiers->pool, job->slot, memory, bound, &note.plain_bytes);
        note.state_bytes = note.plain_bytes;
    } else {
        struct sc_packed packed;
        status = sc_pack(&options, tiers->pool, job->slot, 0, &tiers->heap, &packed);
        if (status == SC_OK) {
            memcpy(memory, packed.bytes, (size_t)packed.state_bytes);
            note = (struct host_note){packed.state_bytes, packed.plain_bytes, kv, packed.codec,
                packed.flags};
            sc_packed_free(&tiers->heap, &packed);
        }
    }
    if (status != SC_OK) {
        (void)sc_host_store_cancel(tiers->host, job->copy);
        return status;
    }
    memcpy(note_of(memory, bytes), &note, sizeof note);
    job->payload = memory;
    job->state_bytes = note.state_bytes;
    job->bytes = note.state_bytes + kv;
    return SC_OK;
}

static sc_status store_disk(struct tiers *tiers, struct sc_tier_job *job)
{
    const struct sc_pack_options options = sc_tiers_pack(tiers, SC_TIER_TABLE_DISK);
    struct sc_packed packed;
    job->kv_bytes = kv_bytes_of(tiers, job->kv_count);
    SC_TRY(sc_pack(&options, tiers->pool, job->slot, job->kv_bytes, &tiers->heap, &packed));
    job->payload = job->owned = packed.bytes;
    job->owned_bytes = packed.capacity;
    job->state_bytes = packed.state_bytes;
    job->plain_bytes = packed.plain_bytes;
    job->codec = packed.codec;
    job->flags = packed.flags;
    job->bytes = packed.state_bytes + job->kv_bytes;
    return SC_OK;
}

/* True: it has ended. */
static bool store_end(struct tiers *tiers, struct sc_tier_job *job)
{
    if (job->tier == SC_TIER_TABLE_HOST) {
        if (job->payload && job->status == SC_OK) {
            job->status = sc_host_store_complete(tiers->host, job->copy);
        } else if (job->payload) {
            (void)sc_host_store_cancel(tiers->host, job->copy);
        }
        job->payload = NULL;
        if (job->status == SC_OK)
            count(tiers, job, SC_TIER_TABLE_HOST, true);
        return true;
    }
    if (job->status == SC_OK) {
        const struct sc_store_payload payload = {job->payload, job->state_bytes, job->kv_bytes,
            job->plain_bytes, job->codec, job->flags};
        job->status = disk_write(tiers, job, &payload);
    }
    sc_tiers_release(tiers, job);
    return disk_end(tiers, job);
}

static bool work_store(struct tiers *tiers, struct sc_tier_job *job)
{
    if (job->tier == SC_TIER_TABLE_REMOTE) {
        job->began_ns = sc_clock_now_ns();
        job->status = sc_tiers_remote_store(tiers, job);
        if (job->status == SC_OK) count(tiers, job, SC_TIER_TABLE_REMOTE, true);
        return true;
    }
    if (job->stage == 0) {
        job->began_ns = sc_clock_now_ns();
        job->status = job->tier == SC_TIER_TABLE_HOST ? store_host(tiers, job)
                                                      : store_disk(tiers, job);
        job->stage = 1;
        if (job->status == SC_OK && job->kv_count > 0 && tiers->has_mover) {
            uint8_t *kv = (uint8_t *)job->payload + job->state_bytes;
            if (sc_tiers_move(tiers, job, false, job->kv_ids, job->kv_count, kv)) return false;
        }
    } else if (job->status == SC_OK) {
        job->status = job->moved;
    }
    return store_end(tiers, job);
}

/* ---- spill ---- */

/* The same state in the disk's codec, with its KV. */
static sc_status recode(struct tiers *tiers, const struct host_note *note, const uint8_t *memory,
    struct sc_packed *packed_out)
{
    const struct sc_pack_options options = sc_tiers_pack(tiers, SC_TIER_TABLE_DISK);
    SC_TRY(sc_unpack(tiers->scratch, tiers->scratch_slot, note->codec, note->flags, memory,
        note->state_bytes, note->plain_bytes, &tiers->heap));
    SC_TRY(sc_pack(&options, tiers->scratch, tiers->scratch_slot, note->kv_bytes, &tiers->heap,
        packed_out));
    memcpy(packed_out->bytes + packed_out->state_bytes, memory + note->state_bytes,
        (size_t)note->kv_bytes);
    packed_out->flags |= note->flags & SC_STORE_LOSSY;
    return SC_OK;
}

static sc_status spill(struct tiers *tiers, struct sc_tier_job *job)
{
    const void *memory = NULL;
    uint64_t bytes = 0;
    SC_TRY(sc_host_store_acquire(tiers->host, job->copy, &memory, &bytes));
    struct host_note note;
    memcpy(&note, (const uint8_t *)memory + bytes - sizeof note, sizeof note);
    struct sc_store_payload payload = {memory, note.state_bytes, note.kv_bytes, note.plain_bytes,
        note.codec, note.flags};
    struct sc_packed packed = {.bytes = NULL};
    sc_status status = SC_OK;
    if (tiers->scratch) {
        status = recode(tiers, &note, memory, &packed);
        payload = (struct sc_store_payload){packed.bytes, packed.state_bytes, note.kv_bytes,
            packed.plain_bytes, packed.codec, packed.flags};
    }
    job->bytes = payload.state_bytes + payload.kv_bytes;
    if (status == SC_OK)
        status = disk_write(tiers, job, &payload);
    if (packed.bytes)
        sc_packed_free(&tiers->heap, &packed);
    (void)sc_host_store_release(tiers->host, job->copy);
    return status;
}

/* ---- restore ---- */

static sc_status source_host(struct tiers *tiers, struct sc_tier_job *job,
    const struct sc_tier_source *source)
{
    const void *memory = NULL;
    uint64_t bytes = 0;
    SC_TRY(sc_host_store_acquire(tiers->host, source->copy, &memory, &bytes));
    struct host_note note;
    memcpy(&note, (const uint8_t *)memory + bytes - sizeof note, sizeof note);
    job->copy = source->copy;
    job->held = true;
    job->payload = (void *)(uintptr_t)memory;
    job->state_bytes = note.state_bytes;
    job->plain_bytes = note.plain_bytes;
    job->kv_bytes = note.kv_bytes;
    job->codec = note.codec;
    job->flags = note.flags;
    return SC_OK;
}

static sc_status source_disk(struct tiers *tiers, struct sc_tier_job *job,
    const struct sc_tier_source *source)
{
    const struct sc_store_key key = key_of(tiers, job, source->token_count);
    const struct sc_store_want want = want_of(tiers);
    enum sc_store_reason reason = SC_STORE_ABSENT;
    struct sc_store_reader *reader = NULL;
    struct sc_store_shard_info info;
    SC_TRY(sc_store_reader_open(tiers->disk, &key, &want, &reason, &reader));
    if (!reader) {
        return SC_FAIL(reason == SC_STORE_DAMAGED ? SC_ERR_CORRUPT : SC_ERR_NOT_FOUND,
            "a record of %u tokens: %s", source->token_count, sc_store_reason_text(reason));
    }
    sc_status status = check_history(tiers, job, reader, source->token_count);
    if (status == SC_OK) status = sc_store_reader_shard(reader, 0, &info);
    uint64_t bytes = status == SC_OK ? info.state_bytes + info.kv_bytes : 1;
    job->owned_bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    job->owned = sc_heap_alloc(&tiers->heap, (size_t)job->owned_bytes, ALIGN);
    if (!job->owned && status == SC_OK) {
        status = SC_FAIL(SC_ERR_NO_MEMORY, "no memory to read a record of %llu bytes",
            (unsigned long long)bytes);
    }
    if (status == SC_OK) status = sc_store_read(reader, 0, job->owned, job->owned_bytes);
    sc_store_reader_close(reader);
    SC_TRY(status);
    job->payload = job->owned;
    job->state_bytes = info.state_bytes;
    job->plain_bytes = info.plain_bytes;
    job->kv_bytes = info.kv_bytes;
    job->codec = info.codec;
    job->flags = info.flags;
    return SC_OK;
}

/* Reads the source in hand; its state goes to the slot if it is the first. */
static sc_status source_read(struct tiers *tiers, struct sc_tier_job *job)
{
    const struct sc_tier_source *source = &job->sources[job->source];
    job->began_ns = sc_clock_now_ns();
    SC_TRY(source->tier == SC_TIER_TABLE_HOST         ? source_host(tiers, job, source)
               : source->tier == SC_TIER_TABLE_REMOTE ? sc_tiers_remote_load(tiers, job, source)
                                                      : source_disk(tiers, job, source));
    job->bytes = job->state_bytes + job->kv_bytes;
    if (source->count > 0 && job->kv_bytes != kv_bytes_of(tiers, source->own_pages)) {
        return SC_FAIL(SC_ERR_MISMATCH, "a record with %llu bytes of KV, not those of %u pages",
            (unsigned long long)job->kv_bytes, source->own_pages);
    }
    if (job->source > 0) return SC_OK;
    return sc_unpack(tiers->pool, job->slot, job->codec, job->flags, job->payload,
        job->state_bytes, job->plain_bytes, &tiers->heap);
}

/* True: its KV is on the way. */
static bool source_move(struct tiers *tiers, struct sc_tier_job *job)
{
    const struct sc_tier_source *source = &job->sources[job->source];
    if (source->count == 0 || !tiers->has_mover) return false;
    uint8_t *kv = (uint8_t *)job->payload + job->state_bytes +
        source->skip * tiers->mover.page_bytes;
    return sc_tiers_move(tiers, job, true, job->kv_ids + source->id_first, source->count, kv);
}

static bool work_restore(struct tiers *tiers, struct sc_tier_job *job)
{
    if (job->stage == 1) { /* the KV of the source in hand has been moved */
        job->status = job->moved;
        job->stage = 2;
    }
    while (job->status == SC_OK) {
        if (job->stage == 2) {
            count(tiers, job, job->sources[job->source].tier, false);
            sc_tiers_release(tiers, job);
            job->stage = 0;
            if (++job->source == job->source_count) break;
        }
        job->status = source_read(tiers, job);
        if (job->status != SC_OK) break;
        job->stage = 1;
        if (source_move(tiers, job)) return false;
        job->stage = 2;
    }
    sc_tiers_release(tiers, job);
    return true;
}

bool sc_tiers_work(struct tiers *tiers, struct sc_tier_job *job)
{
    switch (job->op) {
    case SC_TIER_STORE:
        return work_store(tiers, job);
    case SC_TIER_SPILL:
        job->began_ns = sc_clock_now_ns();
        job->status = spill(tiers, job);
        return disk_end(tiers, job);
    default:
        return work_restore(tiers, job);
    }
}

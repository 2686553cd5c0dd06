/* SPDX-License-Identifier: Apache-2.0 */
/* Creation of sc_tiers, and what the engine calls; its threads are in tiers_threads.c, what a job
 * does in tiers_work.c. */
#include "tiers_internal.h"

#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "base/prng.h"
#include "base/sc_assert.h"

static const struct sc_tier_table table;

/* ---- options ---- */

static sc_status tier_resolve(sc_tier_config *tier, const char *name)
{
    const struct sc_codec *codec = NULL;
    if (tier->bytes == 0) return SC_OK;
    if (tier->write == 0) tier->write = SC_TIER_WRITE_BACK;
    if (tier->write_uses == 0) tier->write_uses = 2;
    if (tier->codec == 0) tier->codec = SC_CODEC_RAW;
    if (tier->write > SC_TIER_WRITE_SELECTIVE || tier->zstd_level > 19) {
        return SC_FAIL(SC_ERR_INVALID, "%s tier: write %u, zstd level %u", name, tier->write,
            tier->zstd_level);
    }
    if (sc_codec_by_id(tier->codec, &codec) != SC_OK) {
        return SC_FAIL(SC_ERR_INVALID, "%s tier: there is no codec %u", name, tier->codec);
    }
    if (codec->lossy && !tier->lossy) {
        return SC_FAIL(SC_ERR_INVALID, "%s tier: codec %s loses precision, which is not allowed",
            name, codec->name);
    }
    return SC_OK;
}

/* Raw, and by itself: the service has tiers of its own below. */
static sc_status remote_resolve(sc_tiers_options *options)
{
    const sc_remote *calls = options->remote_calls;
    sc_tier_config *remote = &options->remote;
    if (remote->bytes == 0 && !calls) return SC_OK;
    SC_REQUIRE(remote->bytes > 0 && calls && calls->struct_size == sizeof *calls);
    SC_REQUIRE(calls->find && calls->store && calls->load && calls->state_bytes > 0);
    SC_REQUIRE(options->host.bytes == 0 && options->disk.bytes == 0);
    SC_TRY(tier_resolve(remote, "remote"));
    if (remote->codec == SC_CODEC_RAW && remote->zstd_level == 0) return SC_OK;
    return SC_FAIL(SC_ERR_INVALID, "a remote tier has states as they are: codec %u, zstd level %u",
        remote->codec, remote->zstd_level);
}

static sc_status options_resolve(const sc_tiers_options *given, sc_tiers_options *options)
{
    *options = (sc_tiers_options)SC_TIERS_OPTIONS_INIT;
    SC_TRY(sc_options_resolve(given, offsetof(sc_tiers_options, file_bytes), options,
        sizeof *options));
    SC_TRY(tier_resolve(&options->host, "host"));
    SC_TRY(tier_resolve(&options->disk, "disk"));
    SC_TRY(remote_resolve(options));
    SC_REQUIRE(options->host.bytes > 0 || options->disk.bytes > 0 || options->remote.bytes > 0);
    SC_REQUIRE(options->disk.bytes == 0 || options->folder);
    if (options->entry_max == 0) options->entry_max = 65536;
    return SC_OK;
}

/* ---- creation ---- */

static sc_status stores_open(struct tiers *tiers, const struct sc_tiers_hooks *hooks)
{
    const sc_tiers_options *options = &tiers->base.options;
    if (options->disk.bytes > 0) {
        struct sc_store_options disk = {.folder = options->folder,
            .bytes_max = options->disk.bytes, .file_bytes = options->file_bytes,
            .allocator = options->allocator, .faults = hooks ? hooks->faults : NULL,
            .map_bytes = hooks ? hooks->map_bytes : 0,
            .chunk_bytes = hooks ? hooks->chunk_bytes : 0};
        if (hooks && hooks->plain) disk.uring = disk.direct = SC_STORE_OFF;
        SC_TRY(sc_store_open(&disk, &tiers->disk));
    }
    if (options->host.bytes == 0 || options->rank_count == 0) return SC_OK;
    uint64_t most = 0; /* the region itself is taken when the backend is known */
    SC_TRY(sc_host_limit(hooks ? hooks->system_root : NULL, 0, options->rank_count, &most));
    if (options->host.bytes <= most) return SC_OK;
    return SC_FAIL(SC_ERR_LIMIT, "a host tier of %llu bytes, the host has %llu left for each rank",
        (unsigned long long)options->host.bytes, (unsigned long long)most);
}

static void tiers_free(struct tiers *tiers)
{
    sc_mutex_lock(&tiers->lock);
    tiers->quit = true;
    while (tiers->manual && sc_tiers_queue_step(tiers, QUEUE_WRITES)) continue; /* drops */
    for (uint32_t i = 0; i < QUEUE_COUNT; i++) {
        (void)pthread_cond_broadcast(&tiers->queues[i].more);
    }
    sc_mutex_unlock(&tiers->lock);
    for (uint32_t i = 0; i < QUEUE_COUNT; i++) {
        if (tiers->queues[i].started) (void)pthread_join(tiers->queues[i].thread, NULL);
        (void)pthread_cond_destroy(&tiers->queues[i].more);
    }
    (void)pthread_cond_destroy(&tiers->idle);
    sc_store_close(tiers->disk);
    sc_mutex_deinit(&tiers->lock);
    struct sc_heap heap = tiers->heap;
    sc_heap_free(&heap, tiers->agreed, tiers->agreed_count * sizeof *tiers->agreed);
    sc_heap_free(&heap, tiers, sizeof *tiers);
}

static void conditions_init(struct tiers *tiers)
{
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* as sc_clock_now_ns */
    (void)pthread_cond_init(&tiers->idle, NULL);
    for (uint32_t i = 0; i < QUEUE_COUNT; i++) {
        tiers->queues[i].end = &tiers->queues[i].first;
        (void)pthread_cond_init(&tiers->queues[i].more, &attr);
    }
    (void)pthread_condattr_destroy(&attr);
}

sc_status sc_tiers_create_hooked(const sc_tiers_options *given, const struct sc_tiers_hooks *hooks,
    sc_tiers **tiers_out)
{
    sc_tiers_options options;
    struct sc_heap heap;
    SC_REQUIRE(given != NULL && tiers_out != NULL);
    SC_TRY(options_resolve(given, &options));
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_SNAPSHOT, options.allocator));
    struct tiers *tiers = sc_heap_calloc(&heap, 1, sizeof *tiers);
    if (!tiers) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for tiers");
    tiers->base = (struct sc_tiers){&table, options};
    tiers->heap = heap;
    tiers->done_end = &tiers->done;
    if (hooks) tiers->host_slack = hooks->host_slack;
    if (hooks) tiers->manual = hooks->manual;
    if (hooks) tiers->settling = hooks->settling;
    if (hooks) tiers->settling_ctx = hooks->settling_ctx;
    if (options.remote_calls) tiers->remote = *options.remote_calls;
    tiers->base.options.remote_calls = NULL; /* the caller's */
    sc_status status = sc_mutex_init(&tiers->lock, SC_RANK_SNAPSHOT);
    if (status != SC_OK) {
        sc_heap_free(&heap, tiers, sizeof *tiers);
        return status;
    }
    conditions_init(tiers);
    status = stores_open(tiers, hooks);
    if (status == SC_OK && !tiers->manual) status = sc_tiers_threads_start(tiers);
    if (status != SC_OK) {
        tiers_free(tiers);
        return status;
    }
    tiers->base.options.folder = NULL; /* the caller's */
    *tiers_out = &tiers->base;
    return SC_OK;
}

sc_status sc_tiers_create(const sc_tiers_options *options, sc_tiers **tiers_out)
{
    return sc_tiers_create_hooked(options, NULL, tiers_out);
}

bool sc_tiers_step(sc_tiers *base, bool restore)
{
    struct tiers *tiers = (struct tiers *)(void *)base;
    SC_ASSERT(tiers->manual);
    sc_mutex_lock(&tiers->lock);
    bool some = sc_tiers_queue_step(tiers, restore ? QUEUE_RESTORES : QUEUE_WRITES);
    if (!some && !restore) some = sc_tiers_queue_step(tiers, QUEUE_COMMITS);
    sc_mutex_unlock(&tiers->lock);
    return some;
}

sc_status sc_tiers_verify(sc_tiers *base, uint64_t *records_out, uint64_t *faults_out)
{
    const struct tiers *tiers = (const struct tiers *)(const void *)base;
    struct sc_store_verify_result result = {0};
    if (tiers->disk) SC_TRY(sc_store_verify(tiers->disk, true, NULL, NULL, &result));
    *records_out = result.record_count;
    *faults_out = result.fault_count;
    return SC_OK;
}

sc_status sc_tiers_destroy(sc_tiers *base)
{
    struct tiers *tiers = (struct tiers *)(void *)base;
    if (!tiers) return SC_OK;
    sc_mutex_lock(&tiers->lock);
    bool bound = tiers->bound;
    sc_mutex_unlock(&tiers->lock);
    if (bound) return SC_FAIL(SC_ERR_BUSY, "a cache uses the tiers");
    tiers_free(tiers);
    return SC_OK;
}

static void tiers_full(struct tiers *tiers, sc_tiers_stats *stats)
{
    struct sc_host_store_stats host;
    struct sc_store_stats disk;
    if (tiers->host && sc_host_store_stats_get(tiers->host, &host) == SC_OK) {
        stats->used_bytes[SC_TIER_TABLE_HOST] = host.used_bytes;
        stats->pinned = host.pinned;
    }
    if (!tiers->disk) return;
    if (sc_store_stats_get(tiers->disk, &disk) == SC_OK) {
        stats->used_bytes[SC_TIER_TABLE_DISK] = disk.used_bytes;
        stats->direct = disk.direct;
        stats->uring = disk.uring;
    }
    stats->disk_broken = sc_store_wear_get(tiers->disk, &stats->disk_written_bytes,
        &stats->disk_day, &stats->disk_day_bytes) == SC_ERR_IO;
}

sc_status sc_tiers_stats_get(sc_tiers *base, sc_tiers_stats *stats_out)
{
    SC_REQUIRE(base != NULL && stats_out != NULL);
    struct tiers *tiers = (struct tiers *)(void *)base;
    size_t bytes = stats_out->struct_size;
    SC_REQUIRE(bytes > sizeof(size_t) && bytes <= sizeof(sc_tiers_stats));
    sc_mutex_lock(&tiers->lock);
    sc_tiers_stats stats = tiers->stats;
    sc_mutex_unlock(&tiers->lock);
    tiers_full(tiers, &stats);
    stats.struct_size = bytes;
    memcpy(stats_out, &stats, bytes);
    return SC_OK;
}

/* ---- what the engine calls ---- */

/* A slot in host memory for the writer, where the tiers' codecs differ. */
static sc_status scratch_create(struct tiers *tiers, const sc_schema *schema)
{
    const sc_tiers_options *options = &tiers->base.options;
    if (options->host.bytes == 0 || options->disk.bytes == 0) return SC_OK;
    if (options->host.codec == options->disk.codec &&
        options->host.zstd_level == options->disk.zstd_level) {
        return SC_OK;
    }
    sc_pool_options pool = SC_POOL_OPTIONS_INIT;
    pool.schema = schema;
    pool.shard = tiers->shard;
    pool.slot_count = 1;
    pool.allocator = options->allocator;
    SC_TRY(sc_pool_create(&pool, &tiers->scratch));
    return sc_pool_alloc(tiers->scratch, 1, SC_OWNER_WORKING, &tiers->scratch_slot);
}

static void scratch_destroy(struct tiers *tiers)
{
    if (!tiers->scratch) return;
    if (tiers->scratch_slot.id) (void)sc_pool_free(tiers->scratch, &tiers->scratch_slot, 1);
    sc_status status = sc_pool_destroy(tiers->scratch);
    SC_ASSERT(status == SC_OK);
    tiers->scratch = NULL;
    tiers->scratch_slot = SC_SLOT_NULL;
}

static sc_status host_create(struct tiers *tiers)
{
    const sc_tiers_options *options = &tiers->base.options;
    sc_backend *backend = NULL;
    if (options->host.bytes == 0) return SC_OK;
    SC_TRY(sc_pool_backend(tiers->pool, &backend));
    struct sc_host_store_options host = {.bytes_max = options->host.bytes + tiers->host_slack,
        .entry_max = options->entry_max, .backend = backend, .must_pin = options->must_pin,
        .allocator = options->allocator};
    return sc_host_store_create(&host, &tiers->host);
}

static sc_status state_bytes(const struct tiers *tiers, uint64_t *bytes)
{
    memset(bytes, 0, SC_TIER_TABLE_TIERS * sizeof *bytes);
    for (uint32_t tier = SC_TIER_TABLE_HOST; tier < SC_TIER_TABLE_TIERS; tier++) {
        const struct sc_codec *codec = NULL;
        if (sc_tiers_tier(tiers, tier)->bytes == 0) continue;
        SC_TRY(sc_codec_by_id(sc_tiers_tier(tiers, tier)->codec, &codec));
        SC_TRY(sc_codec_bytes_max(codec, tiers->pool, &bytes[tier]));
        if (tier == SC_TIER_TABLE_HOST) bytes[tier] += sizeof(struct host_note);
    }
    return SC_OK;
}

/* KV of pages of another size would be read as if it were of these: it is another form. */
static uint32_t numerics_of(const struct tiers *tiers, const struct sc_tier_bind *bind)
{
    uint32_t numerics = tiers->base.options.numerics;
    if (!bind->mover) return numerics;
    uint64_t pages = sc_mix64(bind->mover->page_bytes) ^ bind->page_tokens;
    return (uint32_t)(sc_mix64(pages) ^ numerics);
}

static sc_status tiers_bind(sc_tiers *base, const struct sc_tier_bind *bind, uint64_t *bytes_out)
{
    struct tiers *tiers = (struct tiers *)(void *)base;
    const sc_schema *schema = NULL;
    sc_pool_info info;
    sc_mutex_lock(&tiers->lock);
    bool bound = tiers->bound;
    tiers->bound = true;
    sc_mutex_unlock(&tiers->lock);
    if (bound) return SC_FAIL(SC_ERR_BUSY, "another cache uses the tiers");
    tiers->pool = bind->pool;
    tiers->has_mover = bind->mover != NULL;
    if (bind->mover) tiers->mover = *bind->mover;
    tiers->fingerprint = bind->fingerprint;
    tiers->numerics = numerics_of(tiers, bind);
    sc_status status = sc_pool_info_get(bind->pool, &info);
    if (status == SC_OK) tiers->shard = info.shard;
    if (status == SC_OK) status = sc_pool_schema(bind->pool, &schema);
    if (status == SC_OK) status = state_bytes(tiers, bytes_out);
    if (status == SC_OK && tiers->remote.load) {
        status = bind->mover ? SC_FAIL(SC_ERR_UNSUPPORTED, "a remote tier has no KV") :
            sc_tiers_remote_check(tiers, bytes_out[SC_TIER_TABLE_REMOTE]);
    }
    if (status == SC_OK) status = scratch_create(tiers, schema);
    if (status == SC_OK) status = host_create(tiers);
    if (status == SC_OK) return SC_OK;
    scratch_destroy(tiers);
    sc_mutex_lock(&tiers->lock);
    tiers->bound = false;
    sc_mutex_unlock(&tiers->lock);
    return status;
}

static bool working(const struct tiers *tiers)
{
    for (uint32_t i = 0; i < QUEUE_COUNT; i++) {
        if (tiers->queues[i].busy || tiers->queues[i].first) return true;
    }
    return false;
}

static sc_status tiers_unbind(sc_tiers *base)
{
    struct tiers *tiers = (struct tiers *)(void *)base;
    sc_mutex_lock(&tiers->lock);
    for (uint32_t i = 0; i < QUEUE_COUNT; i++) {
        while (tiers->manual && sc_tiers_queue_step(tiers, i)) continue;
    }
    while (working(tiers)) (void)pthread_cond_wait(&tiers->idle, &tiers->lock.os);
    uint64_t moves = tiers->moves;
    if (moves == 0) {
        SC_ASSERT(!tiers->parked);
        tiers->done = NULL;
        tiers->done_end = &tiers->done;
    }
    sc_mutex_unlock(&tiers->lock);
    if (moves > 0) {
        return SC_FAIL(SC_ERR_BUSY, "%llu moves of KV have not ended", (unsigned long long)moves);
    }
    sc_host_store_destroy(tiers->host);
    tiers->host = NULL;
    scratch_destroy(tiers);
    sc_mutex_lock(&tiers->lock);
    tiers->bound = false;
    sc_mutex_unlock(&tiers->lock);
    return SC_OK;
}

static void tiers_submit(sc_tiers *base, struct sc_tier_job *job)
{
    struct tiers *tiers = (struct tiers *)(void *)base;
    uint32_t queue = job->op == SC_TIER_RESTORE ? QUEUE_RESTORES : QUEUE_WRITES;
    sc_mutex_lock(&tiers->lock);
    sc_tiers_push(&tiers->queues[queue], job);
    sc_mutex_unlock(&tiers->lock);
}

static struct sc_tier_job *tiers_take(sc_tiers *base)
{
    struct tiers *tiers = (struct tiers *)(void *)base;
    sc_mutex_lock(&tiers->lock);
    struct sc_tier_job *job = tiers->done;
    if (job) tiers->done = job->next;
    if (!tiers->done) tiers->done_end = &tiers->done;
    sc_mutex_unlock(&tiers->lock);
    return job;
}

/* Without memory for its turn a copy stays: it is found useless, or driven out, later. */
static void tiers_drop_disk(sc_tiers *base, uint32_t disk_id, uint64_t disk_tick)
{
    struct tiers *tiers = (struct tiers *)(void *)base;
    struct drop *drop = sc_heap_calloc(&tiers->heap, 1, sizeof *drop);
    if (!drop) return;
    drop->disk_id = disk_id;
    drop->disk_tick = disk_tick;
    sc_mutex_lock(&tiers->lock);
    sc_tiers_push(&tiers->queues[QUEUE_WRITES], &drop->job);
    sc_mutex_unlock(&tiers->lock);
}

/* At once: no job names it, and the room may be wanted by one that is waiting. */
static void tiers_drop_host(sc_tiers *base, uint64_t copy)
{
    struct tiers *tiers = (struct tiers *)(void *)base;
    if (tiers->host) (void)sc_host_store_drop(tiers->host, copy);
}

bool sc_tiers_move(struct tiers *tiers, struct sc_tier_job *job, bool write, const int32_t *ids,
    uint32_t count, void *bytes)
{
    sc_kv_mover *mover = &tiers->mover;
    sc_mutex_lock(&tiers->lock);
    uint64_t move = job->move = ++tiers->move_next;
    job->moved = SC_OK;
    job->next = tiers->parked;
    tiers->parked = job;
    tiers->moves++;
    sc_mutex_unlock(&tiers->lock);
    /* From here on the job is perhaps done already. */
    sc_status status = write ? mover->write(mover->ctx, move, ids, count, bytes)
                             : mover->read(mover->ctx, move, ids, count, bytes);
    if (status == SC_OK) return true;
    sc_mutex_lock(&tiers->lock);
    struct sc_tier_job **at = &tiers->parked;
    while (*at && (*at)->move != move) at = &(*at)->next;
    bool mine = *at != NULL; /* else it has ended all the same, against its contract */
    if (mine) {
        *at = job->next;
        tiers->moves--;
    }
    sc_mutex_unlock(&tiers->lock);
    if (!mine) return true;
    job->status = status;
    return false;
}

static sc_status tiers_moved(sc_tiers *base, uint64_t move, sc_status status)
{
    struct tiers *tiers = (struct tiers *)(void *)base;
    sc_mutex_lock(&tiers->lock);
    struct sc_tier_job **at = &tiers->parked;
    while (*at && (*at)->move != move) at = &(*at)->next;
    struct sc_tier_job *job = *at;
    if (job) {
        *at = job->next;
        tiers->moves--;
        job->moved = status;
        uint32_t queue = job->op == SC_TIER_RESTORE ? QUEUE_RESTORES : QUEUE_WRITES;
        sc_tiers_push(&tiers->queues[queue], job);
    }
    sc_mutex_unlock(&tiers->lock);
    if (job) return SC_OK;
    return SC_FAIL(SC_ERR_NOT_FOUND, "move %llu is not on the way", (unsigned long long)move);
}

static const struct sc_tier_table table = {
    .bind = tiers_bind,
    .unbind = tiers_unbind,
    .submit = tiers_submit,
    .take = tiers_take,
    .drop_host = tiers_drop_host,
    .drop_disk = tiers_drop_disk,
    .moved = tiers_moved,
    .load = sc_tiers_load,
    .find = sc_tiers_remote_find,
};

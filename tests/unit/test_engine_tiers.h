/* SPDX-License-Identifier: Apache-2.0 */
/* The rig (test_engine_rig.h) with tiers below it, and a mover of its KV that obeys: at once,
 * later, in another order, with failures, or never. */
#ifndef TESTS_UNIT_TEST_ENGINE_TIERS_H
#define TESTS_UNIT_TEST_ENGINE_TIERS_H

#include <pthread.h>
#include <time.h>

#include "test_engine_rig.h"
#include "tier/tiers_hooks.h"
#include "tier_fixture.h"

enum { MOVES_MAX = 256 };

/* A move that has not been carried out. */
struct move {
    uint64_t ticket;
    const int32_t *ids;
    uint32_t count;
    void *bytes;
    bool write;
};

struct tiered {
    struct rig own;
    struct rig *rig;         /* own, or a simulation's */
    sc_tiers *tiers;
    sc_tiers_options options;
    struct sc_tiers_hooks hooks;
    struct tier_fail fail;
    char folder[256];
    sc_kv_mover mover;
    pthread_mutex_t lock;    /* of the moves */
    struct move moves[MOVES_MAX];
    uint32_t move_count;
    _Atomic bool late;       /* moves wait for tiered_move */
    _Atomic uint32_t refuse; /* so many moves are refused */
    _Atomic uint32_t spoil;  /* so many moves fail */
    bool no_pages;           /* alloc has none */
    struct sc_prng order;    /* of late moves */
    uint64_t waited;         /* leases that waited, in tiered_open */
};

static inline void tiered_carry_out(struct tiered *t, const struct move *move)
{
    size_t page = t->rig->page * sizeof *t->rig->kv;
    uint32_t spoil = atomic_load(&t->spoil);
    bool fails = spoil > 0 && atomic_compare_exchange_strong(&t->spoil, &spoil, spoil - 1);
    for (uint32_t i = 0; i < move->count && !fails; i++) {
        uint8_t *bytes = (uint8_t *)move->bytes + i * page;
        void *kv = t->rig->kv + (size_t)move->ids[i] * t->rig->page;
        if (move->write) {
            memcpy(kv, bytes, page);
        } else {
            memcpy(bytes, kv, page);
        }
    }
    sc_status status = sc_kv_moved(t->rig->cache, move->ticket, fails ? SC_ERR_IO : SC_OK);
    if (status != SC_OK) abort(); /* not on the test's thread */
}

static inline sc_status tiered_move_begin(struct tiered *t, const struct move *move)
{
    uint32_t refuse = atomic_load(&t->refuse);
    if (refuse > 0 && atomic_compare_exchange_strong(&t->refuse, &refuse, refuse - 1)) {
        return SC_ERR_DEVICE_LOST;
    }
    if (!atomic_load(&t->late)) {
        tiered_carry_out(t, move);
        return SC_OK;
    }
    (void)pthread_mutex_lock(&t->lock);
    if (t->move_count == MOVES_MAX) abort();
    t->moves[t->move_count++] = *move;
    (void)pthread_mutex_unlock(&t->lock);
    return SC_OK;
}

static inline sc_status tiered_read(void *ctx, uint64_t ticket, const int32_t *ids,
    uint32_t count, void *bytes)
{
    return tiered_move_begin(ctx, &(struct move){ticket, ids, count, bytes, false});
}

static inline sc_status tiered_write(void *ctx, uint64_t ticket, const int32_t *ids,
    uint32_t count, const void *bytes)
{
    return tiered_move_begin(ctx,
        &(struct move){ticket, ids, count, (void *)(uintptr_t)bytes, true});
}

static inline bool tiered_alloc(void *ctx, uint32_t count, int32_t *ids_out)
{
    struct tiered *t = ctx;
    if (t->no_pages || t->rig->kv_free_count < count) return false;
    for (uint32_t i = 0; i < count; i++) {
        ids_out[i] = t->rig->kv_free[--t->rig->kv_free_count];
        t->rig->kv_where[ids_out[i]] = 2;
        memset(t->rig->kv + (size_t)ids_out[i] * t->rig->page, 0xdd,
            t->rig->page * sizeof *t->rig->kv);
    }
    return true;
}

/* How many moves wait. */
static inline uint32_t tiered_late(struct tiered *t)
{
    (void)pthread_mutex_lock(&t->lock);
    uint32_t count = t->move_count;
    (void)pthread_mutex_unlock(&t->lock);
    return count;
}

/* Carries out one late move, any of them; false: there is none. */
static inline bool tiered_move(struct tiered *t)
{
    (void)pthread_mutex_lock(&t->lock);
    bool some = t->move_count > 0;
    struct move move = {.ticket = 0};
    if (some) {
        uint32_t i = (uint32_t)sc_prng_below(&t->order, t->move_count);
        move = t->moves[i];
        t->moves[i] = t->moves[--t->move_count];
    }
    (void)pthread_mutex_unlock(&t->lock);
    if (some) tiered_carry_out(t, &move);
    return some;
}

static inline void tiered_pause(void)
{
    const struct timespec pause = {0, 20000};
    (void)nanosleep(&pause, NULL);
}

/* Polls once; what has ended goes to `done`. */
static inline uint32_t tiered_poll(struct tiered *t, sc_done *done, uint32_t cap)
{
    uint32_t count = 0;
    rig_ok(sc_cache_poll(t->rig->cache, done, cap, &count));
    return count;
}

/* Tiers without threads: one job; false: there is none. */
static inline bool tiered_step(struct tiered *t)
{
    return sc_tiers_step(t->tiers, false) || sc_tiers_step(t->tiers, true);
}

/* Until every transfer has ended and is applied. Returns how many failed. */
static inline uint32_t tiered_settle(struct tiered *t)
{
    uint32_t failed = 0;
    while (rig_stats(t->rig).transfers_alive > 0) {
        sc_done done[16];
        while (tiered_move(t)) continue;
        while (t->hooks.manual && tiered_step(t)) continue;
        uint32_t count = tiered_poll(t, done, 16);
        for (uint32_t i = 0; i < count; i++) failed += done[i].status != SC_OK;
        rig_ok(sc_cache_apply(t->rig->cache, done, count, t->rig->now_ns));
        rig_verify(t->rig);
        if (count == 0) tiered_pause();
    }
    return failed;
}

/* ---- creation ---- */

/* Bytes of a copy of n pages, as the engine counts them, with some room. */
static inline uint64_t tiered_bytes(const struct tiered *t, uint32_t copies, uint32_t pages)
{
    sc_pool_info info;
    rig_ok(sc_pool_info_get(t->rig->pool, &info));
    uint64_t bytes = info.state_bytes + 64 + (uint64_t)pages * t->rig->page * sizeof(uint64_t);
    return copies * ((bytes + 8192) / 4096 * 4096);
}

/* Tiers, and a cache over the rig's pools, without a namespace. */
static inline void tiered_create(struct tiered *t, const struct rig_options *options)
{
    sc_cache_options cache_options;
    struct rig_options with = *options;
    if (t->options.disk.bytes > 0) t->options.folder = t->folder;
    t->options.allocator = &t->rig->fa.allocator;
    sc_status status = sc_tiers_create_hooked(&t->options, &t->hooks, &t->tiers);
    ck_assert_msg(status == SC_OK, "tiers: %s", sc_last_error()->text);
    with.cache.tiers = t->tiers;
    with.cache.kv_mover = options->cache.without_kv || !t->mover.read ? NULL : &t->mover;
    rig_cache_options(t->rig, &with, &cache_options);
    rig_ok(sc_cache_create(&cache_options, &t->rig->cache));
    t->rig->tails = options->cache.tails;
}

static inline void tiered_start(struct tiered *t, const struct rig_options *options)
{
    tiered_create(t, options);
    rig_ok(sc_namespace_open(t->rig->cache, NULL, 0, 0, &t->rig->ns));
}

/* All but tiers and cache. `host`, `disk`: so many copies of up to 8 pages have room. t->rig: NULL,
 * or whose cache it is. */
static inline void tiered_prepare(struct tiered *t, const struct rig_options *options,
    uint32_t host, uint32_t disk, uint32_t write)
{
    struct rig *rig = t->rig;
    memset(t, 0, sizeof *t);
    t->rig = rig ? rig : &t->own;
    (void)pthread_mutex_init(&t->lock, NULL);
    tier_folder_make(t->folder, sizeof t->folder, true);
    tier_fail_init(&t->fail);
    t->hooks = (struct sc_tiers_hooks){.faults = &t->fail.faults, .map_bytes = 4 << 20,
        .chunk_bytes = 16384};
    sc_prng_seed(&t->order, 5);
    rig_init_pools(t->rig, options);
    t->mover = (sc_kv_mover){t, t->rig->page * sizeof *t->rig->kv, tiered_alloc, tiered_read,
        tiered_write};
    t->options = (sc_tiers_options)SC_TIERS_OPTIONS_INIT;
    t->options.file_bytes = 1 << 20;
    t->options.host.bytes = tiered_bytes(t, host, 8);
    t->options.disk.bytes = tiered_bytes(t, disk, 8);
    t->options.host.write = t->options.disk.write = write;
}

static inline void tiered_init(struct tiered *t, const struct rig_options *options, uint32_t host,
    uint32_t disk, uint32_t write)
{
    tiered_prepare(t, options, host, disk, write);
    tiered_start(t, options);
}

/* The cache and its tiers go; pools, KV and the folder stay. */
static inline void tiered_stop(struct tiered *t)
{
    while (tiered_move(t)) continue;
    rig_verify(t->rig);
    sc_status status;
    while ((status = sc_cache_destroy(t->rig->cache)) == SC_ERR_BUSY) {
        ck_assert_uint_eq(rig_stats(t->rig).leases_alive, 0);
        while (tiered_move(t)) continue;
        tiered_pause();
    }
    rig_ok(status);
    rig_ok(sc_tiers_destroy(t->tiers));
    /* KV ids that the cache had are the engine's again. */
    for (uint32_t id = 0; id < t->rig->kv_ids; id++) {
        if (t->rig->kv_where[id] != 2) continue;
        t->rig->kv_where[id] = 0;
        t->rig->kv_free[t->rig->kv_free_count++] = (int32_t)id;
    }
    ck_assert_uint_eq(fail_alloc_live_blocks(&t->rig->fa), 0);
}

static inline void tiered_free(struct tiered *t)
{
    rig_ok(sc_pool_destroy(t->rig->pool));
    rig_ok(sc_pool_destroy(t->rig->extras));
    sc_schema_release(t->rig->schema);
    sc_schema_release(t->rig->extra_schema);
    free(t->rig->kv);
    free(t->rig->split);
    free(t->rig->marks);
    free(t->rig->kv_where);
    free(t->rig->kv_free);
    tier_folder_remove(t->folder);
    (void)pthread_mutex_destroy(&t->lock);
}

static inline void tiered_deinit(struct tiered *t)
{
    tiered_stop(t);
    tiered_free(t);
}

/* Every payload on disk has a flipped bit. */
static inline void tiered_damage(const struct tiered *t)
{
    DIR *folder = opendir(t->folder);
    ck_assert_ptr_nonnull(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char name[600];
        if (!strstr(entry->d_name, "extent")) continue;
        (void)snprintf(name, sizeof name, "%s/%s", t->folder, entry->d_name);
        int fd = open(name, O_RDWR);
        ck_assert_int_ge(fd, 0);
        for (off_t at = 100; at < 256 * 4096; at += 4096) {
            uint8_t byte = 0;
            if (pread(fd, &byte, 1, at) != 1) break;
            byte ^= 4;
            ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
        }
        (void)close(fd);
    }
    (void)closedir(folder);
}

/* ---- requests ---- */

/* A request that waits for a lower tier, if there is something; checked; what it resumed. */
static inline uint32_t tiered_open(struct tiered *t, struct req *req, const int32_t *tokens,
    uint32_t count)
{
    rig_ok(req_try(t->rig, req, tokens, count));
    if (rig_info(t->rig, req->lease).state == SC_LEASE_WAITING) {
        t->waited++;
        ck_assert_uint_gt(rig_info(t->rig, req->lease).restore_len, 0);
    }
    (void)tiered_settle(t);
    ck_assert_int_eq(rig_info(t->rig, req->lease).state, SC_LEASE_READY);
    req_start(t->rig, req);
    rig_check_lease(t->rig, req);
    return rig_info(t->rig, req->lease).resume_len;
}

static inline uint32_t tiered_serve(struct tiered *t, const int32_t *tokens, uint32_t count)
{
    struct req req;
    uint32_t resumed = tiered_open(t, &req, tokens, count);
    req_run(t->rig, &req, 64);
    req_close(t->rig, &req, 0, SC_RELEASE_KEEP);
    (void)tiered_settle(t);
    return resumed;
}

/* All that the device has goes, KV too. */
static inline void tiered_clear_device(struct tiered *t)
{
    sc_room got;
    (void)tiered_settle(t);
    rig_ok(sc_cache_evict(t->rig->cache, UINT32_MAX, UINT32_MAX, &got));
    rig_drain(t->rig);
    ck_assert_uint_eq(rig_room(t->rig).pages_cached, 0);
    rig_verify(t->rig);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers (h_tiers.h): creation and end, the mover of KV, transfers until they are applied. */
#include "h_tiers.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

/* ------------------------------------------------------------------ folders */

static const char *folder_base(void)
{
    const char *base = getenv("TMPDIR");
    if (access("/dev/shm", W_OK) == 0)
        base = "/dev/shm"; /* thousands of syncs */
    return base ? base : "/tmp";
}

/* Named after the process, so that whoever waits for it can clean up. */
static void folder_make(char *path, size_t bytes)
{
    static _Atomic uint32_t next;
    (void)snprintf(path, bytes, "%s/statecache-harness-%ld-%u", folder_base(), (long)getpid(),
        atomic_fetch_add(&next, 1) % 8);
    (void)mkdir(path, 0700);
}

static void folder_remove(const char *path)
{
    char name[600];
    DIR *folder = opendir(path);
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        (void)unlink(name);
    }
    (void)closedir(folder);
    (void)rmdir(path);
}

void h_tiers_sweep(long pid)
{
    char path[256];
    for (uint32_t i = 0; i < 8; i++) {
        (void)snprintf(path, sizeof path, "%s/statecache-harness-%ld-%u", folder_base(), pid, i);
        folder_remove(path);
    }
}

/* ------------------------------------------------------------------ the mover */

static uint64_t second_word(uint64_t stamp)
{
    return h_mix(stamp, 0x6b76);
}

static bool take_one(_Atomic uint32_t *count)
{
    uint32_t now = atomic_load(count);
    return now > 0 && atomic_compare_exchange_strong(count, &now, now - 1);
}

/* Pages that a store reads are locked, those that a restore writes are nobody else's: so the stamps
 * need no lock. `where`: but where the pages are is known under the world's lock alone; a commit
 * that hands them in may not have returned. A second instance that is fed with records has none. */
static void move_pages(struct h_world *w, const struct h_move *move, bool where)
{
    for (uint32_t i = 0; i < move->count; i++) {
        uint64_t words[2];
        int32_t id = move->ids[i];
        uint8_t *at = move->bytes + (size_t)i * H_PAGE_BYTES;
        H_CHECK(w, id >= 0 && (uint32_t)id < w->cfg.kv_ids, "KV id %d is moved", id);
        H_CHECK(w, !where || w->kv_where[id] == H_KV_INSIDE,
            "KV id %d is moved, which the "
            "cache does not have",
            id);
        if (move->write) {
            memcpy(words, at, sizeof words);
            H_CHECK(w, words[1] == second_word(words[0]),
                "KV that is restored into id %d is not "
                "one page",
                id);
            w->kv_stamp[id] = words[0];
        } else {
            words[0] = w->kv_stamp[id];
            words[1] = second_word(words[0]);
            memcpy(at, words, sizeof words);
        }
    }
}

static sc_status carry_out(struct h_world *w, const struct h_move *move, bool where)
{
    bool fails = take_one(&w->tier.spoil);
    if (!fails) move_pages(w, move, where);
    sc_status status = sc_kv_moved(w->cache, move->ticket, fails ? SC_ERR_IO : SC_OK);
    H_CHECK(w, status == SC_OK, "a move has ended: %s", sc_status_name(status));
    return status;
}

static sc_status move_begin(struct h_world *w, const struct h_move *move)
{
    struct h_tiers *t = &w->tier;
    if (take_one(&t->refuse)) return SC_ERR_DEVICE_LOST;
    if (w->player || w->cfg.tier_prompt) {
        return carry_out(w, move, !w->threaded && !w->player);
    }
    (void)pthread_mutex_lock(&t->lock);
    H_CHECK(w, t->move_count < H_MOVES_MAX, "%u moves at once", t->move_count);
    t->moves[t->move_count++] = *move;
    (void)pthread_mutex_unlock(&t->lock);
    return SC_OK;
}

static sc_status mover_read(
    void *ctx, uint64_t ticket, const int32_t *ids, uint32_t count, void *bytes)
{
    return move_begin(ctx, &(struct h_move){ticket, ids, count, bytes, false});
}

static sc_status mover_write(
    void *ctx, uint64_t ticket, const int32_t *ids, uint32_t count, const void *bytes)
{
    return move_begin(ctx, &(struct h_move){ticket, ids, count, (uint8_t *)(uintptr_t)bytes, true});
}

/* Leaves what the leases of the same acquire may need. */
static bool mover_alloc(void *ctx, uint32_t count, int32_t *ids_out)
{
    struct h_world *w = ctx;
    if (w->tier.no_pages || w->kv_free_count < count + 2 * H_BATCH_MAX) return false;
    for (uint32_t i = 0; i < count; i++) {
        ids_out[i] = h_kv_take(w);
        h_kv_hand_in(w, ids_out[i]);
        w->kv_stamp[ids_out[i]] = UINT64_C(0xdddddddd00000000) + (uint32_t)ids_out[i];
    }
    return true;
}

bool h_tiers_move(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct h_tiers *t = &w->tier;
    struct h_move move = {.ticket = 0};
    (void)pthread_mutex_lock(&t->lock);
    bool some = t->move_count > 0;
    if (some) {
        uint32_t i = h_draw(&s->rng, t->move_count);
        move = t->moves[i];
        t->moves[i] = t->moves[--t->move_count];
    }
    (void)pthread_mutex_unlock(&t->lock);
    if (!some) return false;
    s->totals->tier.moves++;
    (void)H_CALL(s, KV_MOVED, carry_out(w, &move, true));
    return true;
}

/* ------------------------------------------------------------------ creation */

static int ask(void *ctx, const char *what)
{
    struct h_tiers *t = ctx;
    uint64_t call = atomic_fetch_add(&t->fail_calls, 1) + 1;
    if (call != atomic_load(&t->fail_at)) return 0;
    (void)atomic_fetch_add(&t->fail_hits, 1);
    bool transfer = strstr(what, "read") || strstr(what, "write");
    int code = atomic_load(&t->fail_code);
    return code == SC_TIER_FAULT_SHORT && !transfer ? EIO : code;
}

/* Bytes of so many copies of a state and eight pages, as the engine counts them. */
static uint64_t room_for(const struct h_world *w, uint32_t copies)
{
    sc_pool_info info;
    if (sc_pool_info_get(w->pool, &info) != SC_OK) return 0;
    uint64_t bytes = info.state_bytes + 64 + 8u * H_PAGE_BYTES;
    return copies * ((bytes + 8191) / 4096 * 4096);
}

static void options_make(struct h_world *w)
{
    struct h_tiers *t = &w->tier;
    const struct h_config *cfg = &w->cfg;
    t->options = (sc_tiers_options)SC_TIERS_OPTIONS_INIT;
    t->options.host.bytes = room_for(w, cfg->tier_host);
    t->options.disk.bytes = room_for(w, cfg->tier_disk);
    t->options.host.write = cfg->tier_write;
    t->options.disk.write = cfg->tier_disk_write;
    t->options.host.write_uses = t->options.disk.write_uses = cfg->tier_uses;
    t->options.host.zstd_level = cfg->tier_zstd & 1 ? 1 : 0;
    t->options.disk.zstd_level = cfg->tier_zstd & 2 ? 1 : 0;
    t->options.disk.day_bytes = room_for(w, cfg->tier_day);
    t->options.entry_max = cfg->tier_entries;
    if (cfg->tier_cost) {
        t->options.flops_per_s = 1000000000;
        t->options.host.restore_bytes_per_s = 100000000;
        t->options.disk.restore_bytes_per_s = 20000000;
        t->options.host.restore_latency_ns = cfg->tier_cost;
        t->options.disk.restore_latency_ns = 2 * (uint64_t)cfg->tier_cost;
    }
    t->options.folder = t->folder;
    t->options.file_bytes = 1 << 18;
    t->options.allocator = &t->fa.allocator;
    t->faults = (struct sc_tier_faults){ask, t};
    t->hooks = (struct sc_tiers_hooks){.faults = &t->faults,
        .map_bytes = 4 << 20,
        .chunk_bytes = 8192,
        .manual = !w->threaded && !w->player,
        .plain = !w->threaded,
        .host_slack = cfg->tier_slack ? t->options.host.bytes : 0};
    t->mover = (sc_kv_mover){w, H_PAGE_BYTES, mover_alloc, mover_read, mover_write};
}

/* What must be refused. */
static void refusals(struct h_world *w, struct h_sched *s)
{
    struct h_tiers *t = &w->tier;
    sc_tiers *tiers = NULL;
    sc_tiers_options options = t->options;
    sc_tiers_stats stats = {.struct_size = sizeof stats};
    H_CHECK(w, H_CALL(s, TIERS_CREATE, sc_tiers_create(NULL, &tiers)) == SC_ERR_INVALID, "NULL");
    options.host.codec = 99;
    options.host.bytes = 1 << 20;
    H_CHECK(w, H_CALL(s, TIERS_CREATE, sc_tiers_create(&options, &tiers)) == SC_ERR_INVALID,
        "codec 99");
    if (w->cfg.tier_disk > 0) {
        H_CHECK(w, H_CALL(s, TIERS_CREATE, sc_tiers_create(&t->options, &tiers)) == SC_ERR_BUSY,
            "the folder is open");
    }
    H_CHECK(w, H_CALL(s, TIERS_STATS, sc_tiers_stats_get(NULL, &stats)) == SC_ERR_INVALID, "NULL");
}

void h_tiers_create(struct h_world *w)
{
    struct h_tiers *t = &w->tier;
    struct h_sched *s = &w->scheds[0];
    if (w->cfg.tier_host + w->cfg.tier_disk == 0) return;
    if (!t->folder[0]) {
        H_CHECK(w, pthread_mutex_init(&t->lock, NULL) == 0, "mutex");
        fail_alloc_init(&t->fa);
        folder_make(t->folder, sizeof t->folder);
        s->totals->tier.worlds++;
    }
    options_make(w);
    sc_status status;
    for (uint32_t n = 1 + h_draw(&s->rng, 40);; n += 1 + h_draw(&s->rng, 80)) {
        bool disk = w->cfg.tier_disk > 0 && h_one_in(&s->rng, 2);
        struct fail_alloc_mark before = fail_alloc_mark(&t->fa);
        uint64_t hits = t->fail_hits;
        fail_alloc_arm(&t->fa, disk ? 0 : n);
        t->fail_calls = 0;
        t->fail_code = h_one_in(&s->rng, 2) ? EIO : ENOSPC;
        t->fail_at = disk ? n : 0;
        status = H_CALL(s, TIERS_CREATE, sc_tiers_create_hooked(&t->options, &t->hooks, &t->tiers));
        bool failed = fail_alloc_disarm(&t->fa) || t->fail_hits > hits;
        t->fail_at = 0;
        if (status == SC_OK)
            break; /* some failures are no matter */
        s->totals->faults[disk ? H_FAULT_DISK : H_FAULT_MEMORY]++;
        H_CHECK(w, failed && fail_alloc_same(&t->fa, before), "tiers: %s: %s",
            sc_status_name(status), sc_last_error()->text);
    }
    refusals(w, s);
}

void h_tiers_destroy(struct h_world *w, bool keep)
{
    struct h_tiers *t = &w->tier;
    struct h_sched *s = &w->scheds[0];
    if (!t->tiers) return;
    H_OK(w, H_CALL(s, TIERS_DESTROY, sc_tiers_destroy(t->tiers)));
    H_CHECK(w, fail_alloc_live_blocks(&t->fa) == 0, "%u blocks, %u bytes of tiers leaked",
        (uint32_t)fail_alloc_live_blocks(&t->fa), (uint32_t)fail_alloc_live_bytes(&t->fa));
    H_CHECK(w, t->move_count == 0, "%u moves are left", t->move_count);
    t->tiers = NULL;
    t->held_count = 0;
    memset(t->outcome, 0, sizeof t->outcome);
    if (keep) return;
    folder_remove(t->folder);
    (void)pthread_mutex_destroy(&t->lock);
    t->folder[0] = 0;
}

/* ------------------------------------------------------------------ transfers */

/* Where nothing was made to fail, a transfer fails for want of room alone, or behind a record that
 * is gone from the disk; and never since it was asked for wrongly. */
static void check_done(struct h_world *w, const sc_done *done)
{
    static const uint32_t room = B(SC_OK) | B(SC_ERR_LIMIT) | B(SC_ERR_NOT_FOUND);
    static const uint32_t troubles = B(SC_ERR_IO) | B(SC_ERR_NO_MEMORY) | B(SC_ERR_CORRUPT) |
        B(SC_ERR_MISMATCH) | B(SC_ERR_DEVICE_LOST);
    bool troubled = w->tier.troubled || w->tier.fail_hits > 0;
    uint32_t may = troubled ? room | troubles : room;
    H_CHECK(w, may & B(done->status), "ticket %u fails, and nothing is wrong: %s",
        (uint32_t)done->ticket, sc_status_name(done->status));
}

/* Nothing is under way: the engine's account is not less than what is there. Copies on disk that
 * could not be dropped stay. */
static void check_used(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_tiers_stats real = {.struct_size = sizeof real};
    sc_cache_stats stats = h_stats(s);
    H_OK(w, H_CALL(s, TIERS_STATS, sc_tiers_stats_get(w->tier.tiers, &real)));
    bool troubled = w->tier.troubled || w->tier.fail_hits > 0;
    for (uint32_t tier = SC_TIER_HOST; tier <= (troubled ? SC_TIER_HOST : SC_TIER_DISK); tier++) {
        H_CHECK(w, real.used_bytes[tier] <= stats.tier_bytes[tier],
            "tier %u has %u bytes, the engine knows of %u", tier, (uint32_t)real.used_bytes[tier],
            (uint32_t)stats.tier_bytes[tier]);
    }
}

void h_tiers_poll(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct h_tiers *t = &w->tier;
    uint32_t count = 0, cap = h_draw(&s->rng, H_HELD_MAX - t->held_count + 1);
    sc_done *to = t->held + t->held_count;
    H_OK(w, H_CALL(s, POLL, sc_cache_poll(w->cache, to, cap, &count)));
    H_CHECK(w, count <= cap, "%u completions, %u fit", count, cap);
    for (uint32_t i = 0; i < count; i++) {
        check_done(w, &to[i]);
        for (uint32_t k = 0; k < t->held_count + i; k++) {
            H_CHECK(w, t->held[k].ticket != to[i].ticket, "ticket %u is completed twice",
                (uint32_t)to[i].ticket);
        }
        H_CHECK(w,
            t->outcome[to[i].ticket % H_TICKETS] == H_TICKET_ALIVE || to[i].ticket >= H_TICKETS,
            "ticket %u ends again", (uint32_t)to[i].ticket);
        t->outcome[to[i].ticket % H_TICKETS] = H_TICKET_ALIVE;
        h_trace(
            s, "  ticket %u has ended: %s", (uint32_t)to[i].ticket, sc_status_name(to[i].status));
    }
    t->held_count += count;
}

void h_tiers_apply(struct h_sched *s, const sc_done *done, uint32_t count)
{
    struct h_world *w = s->world;
    h_arm(s);
    sc_status status = H_CALL(s, APPLY, sc_cache_apply(w->cache, done, count, w->now_ns));
    (void)h_disarm(s);
    H_CHECK(w, status == SC_OK, "apply: %s: %s", sc_status_name(status), sc_last_error()->text);
    for (uint32_t i = 0; i < count; i++) {
        bool fine = done[i].status == SC_OK;
        w->tier.outcome[done[i].ticket % H_TICKETS] = fine ? H_TICKET_DONE : H_TICKET_FAILED;
        h_trace(
            s, "  ticket %u applied: %s", (uint32_t)done[i].ticket, sc_status_name(done[i].status));
        s->totals->tier.applied++;
        s->totals->tier.applied_failed += !fine;
    }
}

static void wait_a_little(void)
{
    const struct timespec pause = {0, 20000};
    (void)nanosleep(&pause, NULL);
}

void h_tiers_settle(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct h_tiers *t = &w->tier;
    if (!t->tiers) return;
    for (uint32_t idle = 0; h_stats(s).transfers_alive > 0;) {
        bool some = false;
        while (!w->threaded && sc_tiers_step(t->tiers, false)) some = true;
        while (!w->threaded && sc_tiers_step(t->tiers, true)) some = true;
        while (h_tiers_move(s)) some = true;
        h_tiers_poll(s);
        if (t->held_count > 0) h_tiers_apply(s, t->held, t->held_count);
        idle = some || t->held_count > 0 ? 0 : idle + 1;
        t->held_count = 0;
        H_CHECK(w, idle < 200 || w->threaded, "%u transfers do not end",
            (uint32_t)h_stats(s).transfers_alive);
        if (w->threaded && idle) wait_a_little();
    }
    for (uint32_t i = 0; i < w->cfg.scheds; i++) h_tiers_wake(&w->scheds[i]);
    while (!w->threaded && sc_tiers_step(t->tiers, false))
        continue; /* drops */
    if (!w->threaded) check_used(s);
}

/* ------------------------------------------------------------------ leases */

/* The lease stands on what was restored. */
static void stands(struct h_sched *s, struct h_lease *lease, const sc_lease_info *info)
{
    struct h_world *w = s->world;
    if (lease->open >= 0)
        h_kv_give(w, lease->open); /* the copy of a tail that it does not need */
    lease->open = lease->tail_kv = -1;
    lease->resume_len = info->resume_len;
    h_lease_stand(s, lease, info);
    s->totals->tier.restored++;
    s->totals->tier.in_working += info->source_slot == info->working_slot;
}

static void wake(struct h_sched *s, uint32_t index)
{
    struct h_world *w = s->world;
    struct h_lease *lease = &s->leases[index];
    sc_lease_info info;
    H_OK(w, H_CALL(s, INFO, sc_lease_info_get(w->cache, lease->handle, &info)));
    uint8_t outcome = w->tier.outcome[lease->ticket % H_TICKETS];
    bool late = lease->deadline_ns > 0 && lease->deadline_ns <= w->now_ns;
    if (info.state == SC_LEASE_WAITING) {
        H_CHECK(w, outcome == H_TICKET_ALIVE && !late && info.restore_ticket == lease->ticket,
            "lease %u waits for ticket %u, which was applied or is late", index,
            (uint32_t)lease->ticket);
        return;
    }
    uint32_t before = lease->resume_len;
    bool more = info.resume_len == lease->restore_len;
    lease->ticket = 0;
    if (lease->spare >= 0) h_kv_give(w, lease->spare);
    lease->spare = -1;
    H_CHECK(w,
        info.state == SC_LEASE_READY && (more || info.resume_len == before) &&
            info.restore_ticket == 0,
        "after a restore of %u tokens: state %d, %u tokens; %u before", lease->restore_len,
        (int)info.state, info.resume_len, before);
    H_CHECK(w,
        more == (info.reason == SC_REASON_NONE) && (!more || outcome == H_TICKET_DONE) &&
            (info.reason != SC_REASON_TIER_LATE || late) &&
            (info.reason != SC_REASON_TIER_FAILED || outcome != H_TICKET_ALIVE),
        "a restore of %u tokens that is %s: %u tokens, reason %d", lease->restore_len,
        outcome == H_TICKET_DONE ? "applied"
        : outcome                ? "applied as failed"
                                 : "under way",
        info.resume_len, (int)info.reason);
    h_trace(s, "lease %u goes on at %u (%u), reason %d", index, info.resume_len, lease->restore_len,
        (int)info.reason);
    h_decided(w, (uint64_t)info.resume_len << 32 | (uint32_t)info.source_slot);
    h_decided(w, (uint64_t)info.reason);
    s->totals->tier.shorter += info.reason == SC_REASON_TIER_FAILED;
    s->totals->tier.late += info.reason == SC_REASON_TIER_LATE;
    if (more) stands(s, lease, &info);
    h_lease_check(s, lease, true);
}

void h_tiers_wake(struct h_sched *s)
{
    struct h_world *w = s->world;
    bool over = false;
    if (!w->tier.tiers) return;
    for (uint32_t i = 0; i < H_LEASES_MAX; i++) {
        const struct h_lease *lease = &s->leases[i];
        over |= lease->used && lease->ticket && lease->deadline_ns > 0 &&
                lease->deadline_ns <= w->now_ns;
    }
    if (over) H_OK(w, H_CALL(s, APPLY, sc_cache_apply(w->cache, NULL, 0, w->now_ns)));
    for (uint32_t i = 0; i < H_LEASES_MAX; i++) {
        if (s->leases[i].used && s->leases[i].ticket) wake(s, i);
    }
}

void h_tiers_check(struct h_sched *s, const sc_cache_stats *stats)
{
    struct h_world *w = s->world;
    const struct h_tiers *t = &w->tier;
    uint64_t room[4] = {
        0, t->tiers ? t->options.host.bytes : 0, t->tiers ? t->options.disk.bytes : 0, 0};
    for (uint32_t tier = 0; tier < 4; tier++) {
        H_CHECK(w, stats->tier_bytes[tier] <= room[tier], "tier %u has %u bytes, room for %u", tier,
            (uint32_t)stats->tier_bytes[tier], (uint32_t)room[tier]);
        H_CHECK(w, t->tiers || stats->tier_stored[tier] == 0, "tier %u", tier);
    }
    H_CHECK(w, stats->transfers_alive >= t->held_count, "%u transfers, %u have ended",
        (uint32_t)stats->transfers_alive, t->held_count);
}

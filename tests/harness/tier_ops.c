/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of tiers (h_tiers.h): completions are polled and applied, in pieces, in any order,
 * some as failed elsewhere; jobs and moves go on; disks fail and lose bits; the process ends and
 * starts again. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

static const uint64_t day_ns = (uint64_t)86400 * 1000000000;

/* A ticket that nobody has. */
static void poll_nothing(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_done done = {(UINT64_C(1) << 40) + h_draw(&s->rng, 9), SC_OK};
    uint32_t count = 1;
    if (!w->tier.tiers) {
        H_OK(w, H_CALL(s, POLL, sc_cache_poll(w->cache, &done, 1, &count)));
        H_CHECK(w, count == 0, "%u completions of no transfers", count);
    }
    H_OK(w, H_CALL(s, APPLY, sc_cache_apply(w->cache, NULL, 0, w->now_ns)));
    sc_status status = H_CALL(s, APPLY, sc_cache_apply(w->cache, &done, 1, w->now_ns));
    H_CHECK(w, status == SC_ERR_NOT_FOUND, "a transfer that is not: %s", sc_status_name(status));
    status = H_CALL(s, KV_MOVED, sc_kv_moved(w->cache, UINT64_C(1) << 40, SC_OK));
    H_CHECK(w, status == SC_ERR_NOT_FOUND, "a move that is not: %s", sc_status_name(status));
    status = H_CALL(s, KV_MOVED, sc_kv_moved(NULL, 1, SC_OK));
    H_CHECK(w, status == SC_ERR_INVALID, "no cache: %s", sc_status_name(status));
}

void h_op_poll(struct h_sched *s)
{
    struct h_world *w = s->world;
    if (!w->tier.tiers) {
        poll_nothing(s);
        return;
    }
    if (h_one_in(&s->rng, 8)) poll_nothing(s);
    h_tiers_poll(s);
}

/* Lists that must be refused, and change nothing. */
static void apply_badly(struct h_sched *s)
{
    struct h_world *w = s->world;
    const struct h_tiers *t = &w->tier;
    sc_cache_stats stats = h_stats(s);
    sc_room room = h_room(s);
    sc_done list[2] = {{0, SC_OK}, {0, SC_OK}};
    sc_status wanted = SC_ERR_INVALID, status;
    uint32_t count = 2;
    if (t->held_count > 0) list[0] = list[1] = t->held[h_draw(&s->rng, t->held_count)];
    switch (h_draw(&s->rng, 3)) {
    case 0: /* failed here, and the list says it did not */
        if (t->held_count == 0 || list[0].status == SC_OK) return;
        list[0].status = SC_OK;
        wanted = SC_ERR_MISMATCH;
        count = 1;
        break;
    case 1: /* not reported yet */
        wanted = SC_ERR_STATE;
        count = 1;
        for (uint32_t i = 0; i < H_LEASES_MAX; i++) {
            uint64_t ticket = s->leases[i].used ? s->leases[i].ticket : 0;
            bool held = ticket == 0;
            for (uint32_t k = 0; k < t->held_count; k++) held |= t->held[k].ticket == ticket;
            if (!held) list[0] = (sc_done){ticket, SC_ERR_IO};
            if (!held) break;
            if (i + 1 == H_LEASES_MAX) return;
        }
        break;
    default:
        if (t->held_count == 0) return;
        break;
    }
    status = H_CALL(s, APPLY, sc_cache_apply(w->cache, list, count, w->now_ns));
    H_CHECK(
        w, status == wanted, "apply: %s, not %s", sc_status_name(status), sc_status_name(wanted));
    h_same(s, &stats, &room, "a refused apply");
}

void h_op_apply(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct h_tiers *t = &w->tier;
    sc_done list[H_HELD_MAX];
    if (!t->tiers) return;
    if (h_one_in(&s->rng, 128))
        w->now_ns += day_ns; /* a new day, and all pins end */
    if (h_one_in(&s->rng, 6)) apply_badly(s);
    uint32_t count = h_draw(&s->rng, t->held_count + 1);
    if (count < t->held_count && h_one_in(&s->rng, 2)) count = t->held_count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t k = h_draw(&s->rng, t->held_count);
        list[i] = t->held[k];
        t->held[k] = t->held[--t->held_count];
        if (h_one_in(&s->rng, 16))
            list[i].status = SC_ERR_IO; /* on another rank */
    }
    h_trace(s, "apply %u of %u", count, count + t->held_count);
    h_tiers_apply(s, list, count);
    h_tiers_wake(s);
}

void h_op_work(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct h_tiers *t = &w->tier;
    uint32_t moves = h_draw(&s->rng, 4);
    if (!t->tiers) return;
    uint64_t hits = t->fail_hits;
    for (uint32_t n = w->threaded ? 0 : 1 + h_draw(&s->rng, 4); n > 0; n--) {
        h_arm(s);
        bool restore = h_one_in(&s->rng, 2);
        if (!sc_tiers_step(t->tiers, restore)) (void)sc_tiers_step(t->tiers, !restore);
        (void)h_disarm(s);
    }
    while (moves-- > 0 && h_tiers_move(s)) continue;
    if (!w->threaded) s->totals->faults[H_FAULT_DISK] += t->fail_hits - hits;
    h_trace(s, "work");
    sc_tiers_stats stats = {.struct_size = sizeof stats};
    H_OK(w, H_CALL(s, TIERS_STATS, sc_tiers_stats_get(t->tiers, &stats)));
    H_CHECK(w, stats.used_bytes[SC_TIER_DISK] <= t->options.disk.bytes, "%u bytes on disk",
        (uint32_t)stats.used_bytes[SC_TIER_DISK]);
}

/* Bytes of an extent file are other ones: one, or one in each of many blocks. */
static void damage(struct h_sched *s)
{
    struct h_world *w = s->world;
    char path[400];
    (void)snprintf(path, sizeof path, "%s/extent-%05u.dat", w->tier.folder, 0);
    uint32_t blocks = h_one_in(&s->rng, 2) ? 1 : 24;
    int fd = open(path, O_RDWR);
    if (fd < 0) return;
    for (uint32_t block = h_draw(&s->rng, 40); blocks > 0; block++, blocks--) {
        uint8_t byte = 0;
        off_t at = (off_t)block * 4096 + h_draw(&s->rng, 250);
        if (pread(fd, &byte, 1, at) != 1 || byte == 0) continue;
        byte ^= (uint8_t)(1u << h_draw(&s->rng, 8));
        if (pwrite(fd, &byte, 1, at) != 1) continue;
        w->tier.damaged = w->tier.troubled = true;
        s->totals->tier.damaged++;
    }
    (void)close(fd);
}

void h_op_trouble(struct h_sched *s)
{
    static const int codes[] = {ENOSPC, EIO, SC_TIER_FAULT_SHORT};
    struct h_world *w = s->world;
    struct h_tiers *t = &w->tier;
    if (!t->tiers) return;
    uint32_t kind = h_draw(&s->rng, 8);
    if (kind < 2) t->troubled = true;
    switch (kind) {
    case 0:
        atomic_store(&t->spoil, 1);
        break;
    case 1:
        atomic_store(&t->refuse, 1);
        break;
    case 2:
        t->no_pages = !t->no_pages;
        break;
    case 3:
        if (!w->threaded && w->cfg.tier_disk > 0) damage(s);
        break;
    default:
        atomic_store(&t->fail_code, codes[h_draw(&s->rng, 3)]);
        atomic_store(&t->fail_calls, 0);
        atomic_store(&t->fail_at, h_one_in(&s->rng, 4) ? 0 : 1 + h_draw(&s->rng, 30));
        break;
    }
    h_trace(s, "trouble");
}

/* ------------------------------------------------------------------ the end, and a start */

/* All that the cache had is the engine's again. */
static void pages_back(struct h_world *w)
{
    for (uint32_t id = 0; id < w->cfg.kv_ids; id++) {
        if (w->kv_where[id] != H_KV_INSIDE) continue;
        h_kv_give(w, (int32_t)id);
    }
    w->kv_in = w->kv_out = w->acquired = w->released = 0;
    for (uint32_t i = 0; i < H_NS_MAX; i++) w->ns[i] = (struct h_ns){.open = false};
    w->ns_grave_count = 0; /* handles begin anew */
    w->step_grave_count = 0;
    w->newest_step = 0;
    w->plan_count = 0;
    for (uint32_t i = 0; i < H_SCHEDS_MAX; i++) w->scheds[i].grave_count = 0;
}

/* With transfers under way or without, the cache ends and another one finds what is on disk. */
void h_op_reopen(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct h_tiers *t = &w->tier;
    if (!t->tiers || w->record || w->hold) return;
    h_world_quiet(w);
    if (h_one_in(&s->rng, 2)) h_tiers_settle(s);
    h_world_totals(w);
    H_CHECK(w, H_CALL(s, TIERS_DESTROY, sc_tiers_destroy(t->tiers)) == SC_ERR_BUSY, "in use");
    sc_status status;
    while ((status = H_CALL(s, DESTROY, sc_cache_destroy(w->cache))) == SC_ERR_BUSY) {
        if (!h_tiers_move(s) && !w->threaded)
            break; /* the engine still moves KV */
    }
    H_CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    w->cache = NULL;
    pages_back(w);
    t->fail_at = 0;
    h_tiers_destroy(w, true);
    if (!w->threaded && w->cfg.tier_disk > 0 && h_one_in(&s->rng, 8)) damage(s);
    h_tiers_create(w);
    h_cache_create(w, s);
    sc_cache_stats stats = h_stats(s);
    s->totals->tier.reopened++;
    s->totals->tier.loaded += stats.tier_loaded;
    h_trace(s, "opened again: %u records", (uint32_t)stats.tier_loaded);
    H_OK(w, H_CALL(s, VERIFY, sc_cache_verify(w->cache)));
    H_CHECK(w, w->kv_free_count == w->cfg.kv_ids, "%u KV ids are lost",
        w->cfg.kv_ids - w->kv_free_count);
}

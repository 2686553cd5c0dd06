/* SPDX-License-Identifier: Apache-2.0 */
/* A world's life: creation (with its errors), one operation, the counts that must agree after it,
 * and an end at which nothing may be left. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

static const bool op_open[H_OP_COUNT] = {
#define H_OP_OPEN(name, text, weight, open) [H_OP_##name] = (open),
    H_OP_LIST(H_OP_OPEN)
#undef H_OP_OPEN
};

void h_fail(struct h_world *w, const char *file, int line, const char *cond, const char *fmt, ...)
{
    const char *base = strrchr(file, '/');
    va_list args;
    (void)fflush(stdout);
    (void)fprintf(stderr, "%s:%d: %s", base ? base + 1 : file, line, cond);
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fprintf(stderr, "\nSC_SEED=%llu SC_STEPS=%llu\n",
        w->log ? (unsigned long long)w->log->world : 0, (unsigned long long)w->op_count);
    (void)fflush(stderr);
    h_tiers_sweep((long)getpid());
    _exit(1);
}

void h_trace(const struct h_sched *s, const char *fmt, ...)
{
    if (!s->world->trace) return;
    va_list args;
    (void)printf("%6llu %u ", (unsigned long long)s->world->op_count, s->index);
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    (void)printf("\n");
}

/* ------------------------------------------------------------------ creation */

static uint32_t lcm(uint32_t a, uint32_t b)
{
    uint32_t x = a, y = b;
    while (y) {
        uint32_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static sc_part part_of(uint32_t layer, uint32_t group, sc_part_kind kind, uint32_t d0, uint32_t d1,
    uint32_t d2)
{
    sc_part part = {.layer = layer, .group = group, .kind = kind, .dtype = SC_DTYPE_F32,
        .dim_count = d2 ? 3 : 2, .dims = {d0, d1, d2}};
    return part;
}

static void schemas_create(struct h_world *w)
{
    sc_group groups[2] = {{"first", w->cfg.chunk0}, {"second", w->cfg.chunk1}};
    sc_part parts[4] = {part_of(0, 0, SC_PART_CONV, 3, 4, 0),
        part_of(0, 0, SC_PART_RECURRENT, 2, 2, 2), part_of(2, 1, SC_PART_CONV, 2, 4, 0),
        part_of(2, 1, SC_PART_RECURRENT, 1, 2, 4)};
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    options.model = "harness";
    options.revision = "1";
    options.groups = groups;
    options.group_count = w->cfg.chunk1 ? 2 : 1;
    options.parts = parts;
    options.part_count = w->cfg.chunk1 ? 4 : 2;
    options.layer_count = 3;
    options.allocator = &w->fa.allocator;
    H_OK(w, sc_schema_create(&options, &w->schema));
    w->chunk_grid = w->cfg.chunk1 ? lcm(w->cfg.chunk0, w->cfg.chunk1) : w->cfg.chunk0;
    w->grid = lcm(w->chunk_grid, w->cfg.page);
    sc_part extra = part_of(0, 0, SC_PART_EXTRA, 2, 4, 0);
    options.parts = &extra;
    options.part_count = options.group_count = 1;
    H_OK(w, sc_schema_create(&options, &w->extra_schema));
}

static void pools_create(struct h_world *w)
{
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    options.schema = w->schema;
    options.layout = (sc_layout)w->cfg.layout;
    options.slot_count = w->cfg.slots;
    options.backend = w->backend;
    options.allocator = &w->fa.allocator;
    H_OK(w, sc_pool_create(&options, &w->pool));
    options.layout = w->cfg.layout == SC_LAYOUT_PAGE_MAJOR ? SC_LAYOUT_CONTIGUOUS
                                                           : SC_LAYOUT_PAGE_MAJOR;
    options.slot_count = H_SIDE_SLOTS - 1;
    H_OK(w, sc_pool_create(&options, &w->side));
    sc_pool_info info;
    H_OK(w, sc_pool_info_get(w->pool, &info));
    w->view_count = info.part_count;
    H_CHECK(w, w->view_count <= H_PARTS_MAX, "%u parts", w->view_count);
    for (uint32_t part = 0; part < w->view_count; part++) {
        H_OK(w, sc_pool_part_view(w->pool, part, &w->view[part], NULL));
        H_OK(w, sc_pool_part_view(w->side, part, &w->side_view[part], NULL));
        H_CHECK(w, w->view[part].bytes % 8 == 0, "part %u", part);
    }
    if (w->cfg.extras == 0) return;
    options.schema = w->extra_schema;
    options.slot_count = w->cfg.extras;
    H_OK(w, sc_pool_create(&options, &w->extras));
    H_OK(w, sc_pool_part_view(w->extras, 0, &w->extra_view, NULL));
    for (uint32_t slot = 1; slot <= w->cfg.extras; slot++) { /* what alloc must clear */
        h_extra_write(w, (int32_t)slot, UINT32_C(0xbad00000) + slot);
    }
}

static sc_cache_options cache_options(struct h_world *w)
{
    sc_cache_options options = SC_CACHE_OPTIONS_INIT;
    options.pool = w->pool;
    options.extras = w->extras;
    options.page_tokens = w->cfg.page;
    options.without_kv = w->cfg.without_kv != 0;
    options.row_max = w->cfg.row_max;
    options.save_max = w->cfg.save_max;
    options.lease_max = w->cfg.lease_max;
    options.lease_token_max = w->cfg.lease_token_max;
    options.token_max = w->cfg.token_max;
    options.path_snapshots_max = w->cfg.path_max;
    options.save_flags = w->cfg.save_flags;
    options.decode_interval = w->cfg.decode_interval;
    options.keep_cuts = w->cfg.keep_cuts != 0;
    options.depth_max = w->cfg.depth;
    options.draft_max = w->cfg.draft_max;
    options.tails = w->cfg.tails != 0;
    options.policy = h_policies[w->cfg.policy];
    options.policy_blocks = 128;
    options.policy_interval = 32;
    options.policy_alpha = 0.3;
    options.kv_token_bytes = w->cfg.policy % 2 && w->cfg.alphabet == 2 ? 100 : 0;
    if (w->tier.tiers) {
        options.tiers = w->tier.tiers;
        if (w->cfg.tier_mover && !w->cfg.without_kv) options.kv_mover = &w->tier.mover;
        if (w->cfg.tier_cost)
            options.flops_per_token = 1e6; /* a millisecond each */
    }
    options.record = w->record;
    options.record_ctx = w->record_ctx;
    options.allocator = &w->fa.allocator;
    return options;
}

/* Refusals first; each must leave nothing behind. */
void h_cache_create(struct h_world *w, struct h_sched *s)
{
    struct fail_alloc_mark before = fail_alloc_mark(&w->fa);
    struct h_tiers *t = &w->tier;
    sc_cache_options options = cache_options(w);
    sc_cache *cache = NULL;
    H_CHECK(w, H_CALL(s, CREATE, sc_cache_create(NULL, &cache)) == SC_ERR_INVALID, "NULL");
    sc_slot slot;
    H_OK(w, sc_pool_alloc(w->pool, 1, SC_OWNER_WORKING, &slot));
    H_CHECK(w, H_CALL(s, CREATE, sc_cache_create(&options, &cache)) == SC_ERR_BUSY, "taken slot");
    H_OK(w, sc_pool_free(w->pool, &slot, 1));
    sc_status status;
    for (uint64_t n = 1 + h_draw(&s->rng, 9);; n += 1 + h_draw(&s->rng, 12)) {
        bool disk = t->tiers && w->cfg.tier_disk > 0 && h_one_in(&s->rng, 2);
        uint64_t hits = t->fail_hits;
        fail_alloc_arm(&w->fa, disk ? 0 : n);
        t->fail_calls = 0;
        t->fail_code = EIO;
        t->fail_at = disk ? n : 0;
        status = H_CALL(s, CREATE, sc_cache_create(&options, &cache));
        bool failed = fail_alloc_disarm(&w->fa) || t->fail_hits > hits;
        t->fail_at = 0;
        if (!failed || (disk && status == SC_OK)) break;
        s->totals->faults[disk ? H_FAULT_DISK : H_FAULT_MEMORY]++;
        H_CHECK(w,
            status == (disk ? SC_ERR_IO : SC_ERR_NO_MEMORY) && fail_alloc_same(&w->fa, before),
            "%s %u fails: %s: %s", disk ? "call to the disk" : "allocation", (uint32_t)n,
            sc_status_name(status), sc_last_error()->text);
    }
    H_CHECK(w, status == SC_OK && cache, "%s", sc_last_error()->text);
    w->cache = cache;
}

void h_world_create(struct h_world *w)
{
    H_CHECK(w, h_config_good(&w->cfg), "these sizes do not make a world");
    H_CHECK(w, pthread_mutex_init(&w->lock, NULL) == 0, "mutex");
    fail_alloc_init(&w->fa);
    w->next_step = 1;
    for (uint32_t i = 0; i < w->cfg.kv_ids; i++) w->kv_free[i] = (int32_t)i;
    w->kv_free_count = w->cfg.kv_ids;
    for (uint32_t i = 0; i < H_SCHEDS_MAX; i++) {
        w->scheds[i].world = w;
        w->scheds[i].index = i;
        w->scheds[i].totals = &w->totals[i % w->totals_count];
        sc_prng_seed(&w->scheds[i].rng, i);
    }
    schemas_create(w);
    pools_create(w);
    h_tiers_create(w);
    h_cache_create(w, &w->scheds[0]);
    w->scheds[0].totals->worlds++;
}

/* ------------------------------------------------------------------ one operation */

void h_arm(struct h_sched *s)
{
    if (s->world->armed) return;
    fail_alloc_arm(&s->world->fa, s->op.fault);
    if (s->world->tier.tiers) fail_alloc_arm(&s->world->tier.fa, s->op.fault);
    s->world->armed = true;
}

bool h_disarm(struct h_sched *s)
{
    if (!s->world->armed) return false;
    s->world->armed = false;
    bool failed = fail_alloc_disarm(&s->world->fa);
    if (s->world->tier.tiers && fail_alloc_disarm(&s->world->tier.fa)) failed = true;
    if (failed) {
        s->world->tier.troubled = true;
        s->op.fault = 0; /* one a time: what follows in this operation must work */
        s->totals->faults[H_FAULT_MEMORY]++;
        h_trace(s, "  an allocation failed");
    }
    return failed;
}

static void op_empty(struct h_sched *s)
{
    h_world_empty(s->world);
}

static void run_locked(struct h_sched *s)
{
    static void (*const ops[H_OP_COUNT])(struct h_sched *) = {[H_OP_ACQUIRE] = h_op_acquire,
        [H_OP_APPEND] = h_op_append, [H_OP_PLAN] = h_op_plan,
        [H_OP_COMPUTE] = h_op_compute_choose, [H_OP_COMMIT] = h_op_commit,
        [H_OP_ABORT] = h_op_abort, [H_OP_RELEASE] = h_op_release, [H_OP_ADOPT] = h_op_adopt,
        [H_OP_EVICT] = h_op_evict, [H_OP_DRAIN] = h_op_drain, [H_OP_NS_OPEN] = h_op_ns_open,
        [H_OP_NS_CLOSE] = h_op_ns_close, [H_OP_POLL] = h_op_poll,
        [H_OP_LOOKUP] = h_op_lookup_choose, [H_OP_STALE] = h_op_stale, [H_OP_BAD] = h_op_bad,
        [H_OP_COPY] = h_op_copy, [H_OP_FORK] = h_op_fork, [H_OP_FILL] = h_op_fill,
        [H_OP_POOL] = h_op_pool, [H_OP_LOSE] = h_op_lose, [H_OP_VERIFY] = h_op_verify,
        [H_OP_EMPTY] = op_empty, [H_OP_WORK] = h_op_work, [H_OP_APPLY] = h_op_apply,
        [H_OP_TROUBLE] = h_op_trouble, [H_OP_REOPEN] = h_op_reopen};
    if (ops[s->op.code]) ops[s->op.code](s);
}

static void log_op(struct h_world *w, struct h_op op)
{
    struct h_log *log = w->log;
    if (log && w->op_count < log->cap) log->ops[w->op_count] = op;
    w->op_count++;
    w->now_ns++;
    if (log) log->count = w->op_count;
}

void h_op_run(struct h_world *w, struct h_op op)
{
    if (op.code >= H_OP_COUNT || op.sched >= w->cfg.scheds) return; /* of another configuration */
    struct h_sched *s = &w->scheds[op.sched];
    s->op = op;
    sc_prng_seed(&s->rng, op.seed);
    if (w->threaded) (void)pthread_mutex_lock(&w->lock);
    log_op(w, op);
    h_tiers_wake(s);
    /* What verifies a store gives it buffers, which it would need later. */
    bool verifies = op.code == H_OP_VERIFY && !w->tier.tiers;
    if (w->twin && (op.code == H_OP_LOOKUP || op.code == H_OP_READ || verifies ||
                       op.code == H_OP_STALE || op.code == H_OP_BAD)) {
        return;
    }
    run_locked(s);
    if (!op_open[op.code]) {
        H_CHECK(w, !w->armed, "an allocation is still to fail");
        if (!w->threaded || w->op_count % 16 == 0) h_check_counts(s);
    }
    if (w->threaded) (void)pthread_mutex_unlock(&w->lock);
    if (op.code == H_OP_COMPUTE) h_op_compute(s);
    if (op.code == H_OP_LOOKUP) h_op_lookup(s);
    if (op.code == H_OP_READ) h_op_read(s);
    s->totals->ops++;
}

sc_cache_stats h_stats(struct h_sched *s)
{
    sc_cache_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    H_OK(s->world, H_CALL(s, STATS, sc_cache_stats_get(s->world->cache, &stats)));
    return stats;
}

sc_room h_room(struct h_sched *s)
{
    sc_room room;
    memset(&room, 0, sizeof room);
    H_OK(s->world, H_CALL(s, ROOM, sc_cache_room(s->world->cache, &room)));
    return room;
}

void h_same(struct h_sched *s, const sc_cache_stats *stats, const sc_room *room, const char *what)
{
    sc_cache_stats now = h_stats(s);
    sc_room room_now = h_room(s);
    now.refused = stats->refused; /* refusals may be counted */
    now.policy_bytes = stats->policy_bytes; /* what has grown for a call that failed stays grown */
    const char *a = (const char *)&now, *b = (const char *)stats;
    size_t at = 0;
    while (at < sizeof now && a[at] == b[at]) at++;
    H_CHECK(s->world, memcmp(&now, stats, sizeof now) == 0, "%s changed the statistics, byte %u",
        what, (uint32_t)at);
    H_CHECK(s->world, memcmp(&room_now, room, sizeof room_now) == 0, "%s changed the room", what);
}

static uint64_t sum(const uint64_t *values, uint32_t count)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) total += values[i];
    return total;
}

static void check_room(struct h_sched *s, const sc_cache_stats *now)
{
    struct h_world *w = s->world;
    sc_room room = h_room(s);
    sc_pool_info info;
    H_OK(w, sc_pool_info_get(w->pool, &info));
    H_CHECK(w, room.slots_free == info.free_count, "%u free, the pool says %u", room.slots_free,
        info.free_count);
    H_CHECK(w, room.slots_free + room.slots_evictable + room.slots_held + room.slots_draining ==
            w->cfg.slots, "slots: %u free + %u evictable + %u held + %u draining of %u",
        room.slots_free, room.slots_evictable, room.slots_held, room.slots_draining,
        w->cfg.slots);
    H_CHECK(w, info.owner_count[SC_OWNER_SNAPSHOT] == now->snapshots_alive, "%u snapshot slots, %u",
        info.owner_count[SC_OWNER_SNAPSHOT], (uint32_t)now->snapshots_alive);
    H_CHECK(w, room.pages_evictable <= room.pages_cached, "evictable pages");
    if (w->cfg.without_kv) return;
    H_CHECK(w, room.pages_cached + room.pages_held + room.pages_drainable == w->kv_in - w->kv_out,
        "KV ids: %u in the index + %u held + %u to drain, but %u in - %u out",
        (uint32_t)room.pages_cached, (uint32_t)room.pages_held, (uint32_t)room.pages_drainable,
        (uint32_t)w->kv_in, (uint32_t)w->kv_out);
}

void h_check_counts(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_cache_stats now = h_stats(s);
    H_CHECK(w, now.leases_alive == w->leases_alive && now.acquired == w->acquired &&
            now.released == w->released, "leases: %u alive, %u acquired, %u released; the harness "
        "counts %u, %u, %u", (uint32_t)now.leases_alive, (uint32_t)now.acquired,
        (uint32_t)now.released, (uint32_t)w->leases_alive, (uint32_t)w->acquired,
        (uint32_t)w->released);
    H_CHECK(w, now.pages_in == w->kv_in && now.pages_out == w->kv_out,
        "KV ids: in %u of %u, out %u of %u", (uint32_t)now.pages_in, (uint32_t)w->kv_in,
        (uint32_t)now.pages_out, (uint32_t)w->kv_out);
    uint64_t evicted = sum(now.evicted, SC_EVICT_COUNT);
    H_CHECK(w,
        now.saves_published == sum(now.saves_by_kind, 6) &&
            now.saves_published + now.restored - evicted == now.snapshots_alive,
        "published %u, restored %u, evicted %u, alive %u", (uint32_t)now.saves_published,
        (uint32_t)now.restored, (uint32_t)evicted, (uint32_t)now.snapshots_alive);
    H_CHECK(w, now.saves_planned >= now.saves_published + sum(now.saves_skipped, SC_SKIP_COUNT),
        "%u saves planned", (uint32_t)now.saves_planned);
    H_CHECK(w, !w->cfg.token_max || now.tokens_cached <= w->cfg.token_max, "%u tokens",
        (uint32_t)now.tokens_cached);
    check_room(s, &now);
    h_tiers_check(s, &now);
}

/* ------------------------------------------------------------------ the end */

static void totals_take(struct h_sched *s, const sc_cache_stats *stats)
{
    struct h_totals *t = s->totals;
    for (uint32_t i = 0; i < SC_SKIP_COUNT; i++) t->skipped[i] += stats->saves_skipped[i];
    for (uint32_t i = 0; i < SC_EVICT_COUNT; i++) t->evicted[i] += stats->evicted[i];
    for (uint32_t i = 0; i < SC_REASON_COUNT; i++) t->reasons[i] += stats->reason_count[i];
    for (uint32_t i = 0; i < 6; i++) {
        t->published[i] += stats->saves_by_kind[i];
        t->resumed[i] += stats->resumed_by_kind[i];
    }
    t->kv_in += stats->pages_in;
    t->kv_out += stats->pages_out;
    t->adopted += stats->pages_adopted;
    for (uint32_t i = 0; i < 4; i++) {
        t->tier.resumed[i] += stats->resumed_by_tier[i];
        t->tier.stored[i] += stats->tier_stored[i];
        t->tier.dropped[i] += stats->tier_dropped[i];
        t->tier.refused[i] += stats->tier_refused[i];
    }
    t->tier.lost += stats->tier_lost;
}

void h_world_totals(struct h_world *w)
{
    sc_cache_stats stats = h_stats(&w->scheds[0]);
    totals_take(&w->scheds[0], &stats);
}

void h_world_quiet(struct h_world *w)
{
    struct h_sched *s = &w->scheds[0];
    for (uint32_t i = 0; i < w->cfg.scheds; i++) {
        struct h_step *step;
        w->scheds[i].op = (struct h_op){.code = H_OP_EMPTY};
        sc_prng_seed(&w->scheds[i].rng, i); /* whatever the last operation drew */
        while ((step = h_step_oldest(&w->scheds[i])) != NULL) h_step_end(&w->scheds[i], step);
    }
    for (uint32_t i = 0; i < H_SCHEDS_MAX * H_LEASES_MAX; i++) {
        struct h_sched *of = &w->scheds[i / H_LEASES_MAX];
        struct h_lease *lease = &of->leases[i % H_LEASES_MAX];
        if (!lease->used) continue;
        enum sc_release how = i % 2 ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD;
        H_OK(w, H_CALL(s, RELEASE, sc_lease_release(w->cache, lease->handle, 0, how)));
        h_lease_gone(of, lease);
    }
    h_check_counts(s);
}

void h_world_empty(struct h_world *w)
{
    struct h_sched *s = &w->scheds[0];
    sc_room got, room;
    h_world_quiet(w);
    h_tiers_settle(s);
    if (w->now_ns < 500)
        w->now_ns = 500; /* where pins end */
    H_OK(w, H_CALL(s, ACQUIRE, sc_cache_acquire(w->cache, NULL, 0, w->now_ns, NULL, NULL)));
    H_OK(w, H_CALL(s, EVICT, sc_cache_evict(w->cache, UINT32_MAX, UINT32_MAX, &got)));
    while (h_drain(s, 64) > 0) continue;
    room = h_room(s);
    H_CHECK(w, room.slots_free == w->cfg.slots, "%u of %u slots are free at the end",
        room.slots_free, w->cfg.slots);
    H_CHECK(w, room.pages_cached == 0 && room.pages_held == 0 && w->kv_in == w->kv_out,
        "%u pages cached, %u held at the end", (uint32_t)room.pages_cached,
        (uint32_t)room.pages_held);
    H_CHECK(w, w->kv_free_count == w->cfg.kv_ids, "%u KV ids are lost",
        w->cfg.kv_ids - w->kv_free_count);
    H_OK(w, sc_cache_verify(w->cache));
    h_check_counts(s);
    uint64_t live = fail_alloc_live_bytes(&w->fa);
    if (live > w->live_max) w->live_max = live;
}

void h_world_destroy(struct h_world *w)
{
    struct h_sched *s = &w->scheds[0];
    if (w->leases_alive > 0) {
        H_CHECK(w, H_CALL(s, DESTROY, sc_cache_destroy(w->cache)) == SC_ERR_BUSY, "with leases");
    }
    h_world_empty(w);
    h_world_totals(w);
    h_world_discard(w);
}

void h_world_discard(struct h_world *w)
{
    struct h_sched *s = &w->scheds[0];
    H_OK(w, H_CALL(s, DESTROY, sc_cache_destroy(w->cache)));
    h_tiers_destroy(w, false);
    sc_pool_info info;
    H_OK(w, sc_pool_info_get(w->pool, &info));
    H_CHECK(w, info.free_count == w->cfg.slots, "%u of %u slots came back", info.free_count,
        w->cfg.slots);
    H_OK(w, sc_pool_audit(w->pool, true));
    H_OK(w, sc_pool_destroy(w->pool));
    H_OK(w, sc_pool_destroy(w->extras));
    if (w->side_count > 0) H_OK(w, sc_pool_free(w->side, w->side_slots, w->side_count));
    H_OK(w, sc_pool_audit(w->side, true));
    H_OK(w, sc_pool_destroy(w->side));
    sc_schema_release(w->schema);
    sc_schema_release(w->extra_schema);
    H_CHECK(w, fail_alloc_live_blocks(&w->fa) == 0, "%u blocks, %u bytes leaked",
        (uint32_t)fail_alloc_live_blocks(&w->fa), (uint32_t)fail_alloc_live_bytes(&w->fa));
    (void)pthread_mutex_destroy(&w->lock);
}

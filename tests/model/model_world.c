/* SPDX-License-Identifier: Apache-2.0 */
/* A world's life: sizes and weights by seed, creation (with its errors), the counts that must agree
 * after every operation, and an end at which nothing may be left. */
#include <stdlib.h>
#include <string.h>

#include "cache_model.h"

static uint32_t pick(struct sc_prng *rng, const uint32_t *from, uint32_t count)
{
    return from[draw(rng, count)];
}
#define PICK(rng, ...)                                                                             \
    pick((rng), (const uint32_t[]){__VA_ARGS__},                                                   \
        (uint32_t)(sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)))

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

static void config_draw(struct world *w)
{
    static const uint32_t base_weight[OP_COUNT] = {
        [OP_ACQUIRE] = 16, [OP_APPEND] = 8, [OP_STEP] = 40, [OP_RELEASE] = 9, [OP_ADOPT] = 2,
        [OP_EVICT] = 3, [OP_DRAIN] = 3, [OP_NS_OPEN] = 1, [OP_NS_CLOSE] = 1, [OP_POLL] = 1,
        [OP_LOOKUP] = 24, [OP_READ] = 5, [OP_VERIFY] = 3, [OP_CENSUS] = 1};
    struct sc_prng *rng = &w->rng;
    struct config *cfg = &w->cfg;
    cfg->page = PICK(rng, 1, 4, 16);
    cfg->group_count = 1 + draw(rng, 2);
    cfg->chunk[0] = PICK(rng, 4, 8, 16);
    cfg->chunk[1] = PICK(rng, 4, 6, 8);
    cfg->chunk_grid = cfg->group_count == 1 ? cfg->chunk[0] : lcm(cfg->chunk[0], cfg->chunk[1]);
    cfg->grid = lcm(cfg->chunk_grid, cfg->page);
    cfg->slot_count = PICK(rng, 4, 5, 6, 8, 12, 16, 24, 40);
    cfg->extra_count = PICK(rng, 0, 0, 2, 4, 16);
    cfg->alphabet = PICK(rng, 1, 2, 2, 3, 5);
    cfg->wild_tokens = one_in(rng, 4);
    cfg->lease_max = PICK(rng, 2, 4, 6, 10);
    cfg->lease_token_max = PICK(rng, 64, 100, 160);
    cfg->row_max = PICK(rng, 1, 2, 4, 8);
    cfg->save_max = PICK(rng, 1, 2, 4, 12);
    cfg->decode_interval = one_in(rng, 2) ? 0 : cfg->page * PICK(rng, 1, 2, 3, 5);
    cfg->path_max = PICK(rng, 0, 0, 1, 2, 4);
    cfg->token_max = one_in(rng, 5) ? PICK(rng, 48, 128, 400) : 0;
    cfg->save_flags = one_in(rng, 5) ? draw(rng, 16) : SC_SAVE_DEFAULT;
    cfg->layout = one_in(rng, 2) ? SC_LAYOUT_PAGE_MAJOR : SC_LAYOUT_CONTIGUOUS;
    cfg->without_kv = one_in(rng, 7);
    cfg->keep_cuts = one_in(rng, 4);
    cfg->flaky = one_in(rng, 3);
    /* Those whose positions can be told: ends and branch points. */
    static const char *const policies[] = {"lru", "gdsf", "lru", "lru-sup", "lru", "marconi",
        "lru-path"};
    uint32_t mix = cfg->slot_count + 3 * cfg->alphabet + 5 * cfg->lease_max;
    cfg->policy = policies[mix % (sizeof policies / sizeof *policies)];
    for (uint32_t op = 0; op < OP_COUNT; op++) {
        cfg->weight[op] = base_weight[op] * PICK(rng, 0, 1, 2, 4, 4, 4, 8, 8) / 4;
        if (base_weight[op] > 0 && cfg->weight[op] == 0 && !one_in(rng, 3)) cfg->weight[op] = 1;
    }
    if (cfg->weight[OP_ACQUIRE] == 0) cfg->weight[OP_ACQUIRE] = base_weight[OP_ACQUIRE];
    if (cfg->weight[OP_STEP] < base_weight[OP_STEP]) cfg->weight[OP_STEP] = base_weight[OP_STEP];
    if (cfg->weight[OP_RELEASE] == 0) cfg->weight[OP_RELEASE] = base_weight[OP_RELEASE];
}

static sc_part part_of(uint32_t layer, uint32_t group, sc_part_kind kind, uint32_t d0, uint32_t d1,
    uint32_t d2)
{
    sc_part part = {.layer = layer, .group = group, .kind = kind, .dtype = SC_DTYPE_F32,
        .dim_count = d2 ? 3 : 2, .dims = {d0, d1, d2}};
    return part;
}

static void schemas_create(struct world *w)
{
    struct config *cfg = &w->cfg;
    sc_group groups[2] = {{"first", cfg->chunk[0]}, {"second", cfg->chunk[1]}};
    sc_part parts[4] = {part_of(0, 0, SC_PART_CONV, 3, 5, 0),
        part_of(0, 0, SC_PART_RECURRENT, 2, 3, 4),
        part_of(2, 1, SC_PART_CONV, 2, 4, 0), part_of(2, 1, SC_PART_RECURRENT, 1, 4, 8)};
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    options.model = "model test";
    options.revision = "1";
    options.groups = groups;
    options.group_count = cfg->group_count;
    options.parts = parts;
    options.part_count = cfg->group_count * 2;
    options.layer_count = 3;
    options.allocator = &w->fa.allocator;
    CHECK(w, sc_schema_create(&options, &w->schema) == SC_OK, "%s", sc_last_error()->text);
    sc_part extra = part_of(0, 0, SC_PART_EXTRA, 4, 4, 0);
    options.parts = &extra;
    options.part_count = 1;
    options.group_count = 1;
    CHECK(w, sc_schema_create(&options, &w->extra_schema) == SC_OK, "%s", sc_last_error()->text);
}

static void pools_create(struct world *w)
{
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    options.schema = w->schema;
    options.layout = w->cfg.layout;
    options.slot_count = w->cfg.slot_count;
    options.allocator = &w->fa.allocator;
    CHECK(w, sc_pool_create(&options, &w->pool) == SC_OK, "%s", sc_last_error()->text);
    sc_pool_info info;
    CHECK(w, sc_pool_info_get(w->pool, &info) == SC_OK && info.part_count <= 4, "info");
    w->view_count = info.part_count;
    for (uint32_t part = 0; part < info.part_count; part++) {
        CHECK(w, sc_pool_part_view(w->pool, part, &w->view[part], NULL) == SC_OK, "part %u", part);
        CHECK(w, w->view[part].bytes >= 24, "part %u", part);
    }
    if (w->cfg.extra_count == 0) return;
    options.schema = w->extra_schema;
    options.slot_count = w->cfg.extra_count;
    CHECK(w, sc_pool_create(&options, &w->extras) == SC_OK, "%s", sc_last_error()->text);
    CHECK(w, sc_pool_part_view(w->extras, 0, &w->extra_view, NULL) == SC_OK, "extras");
}

static sc_cache_options cache_options(struct world *w)
{
    sc_cache_options options = SC_CACHE_OPTIONS_INIT;
    options.pool = w->pool;
    options.extras = w->extras;
    options.page_tokens = w->cfg.page;
    options.without_kv = w->cfg.without_kv;
    options.row_max = w->cfg.row_max;
    options.save_max = w->cfg.save_max;
    options.lease_max = w->cfg.lease_max;
    options.lease_token_max = w->cfg.lease_token_max;
    options.token_max = w->cfg.token_max;
    options.path_snapshots_max = w->cfg.path_max;
    options.save_flags = w->cfg.save_flags;
    options.decode_interval = w->cfg.decode_interval;
    options.keep_cuts = w->cfg.keep_cuts;
    options.policy = w->cfg.policy;
    options.policy_blocks = 256;
    options.policy_interval = 32;
    options.policy_alpha = 0.3;
    options.allocator = &w->fa.allocator;
    return options;
}

/* A chunk and a page whose lcm is too large for a position. */
static void create_overflow(struct world *w)
{
    sc_group group = {"wide", 65535};
    sc_part part = part_of(0, 0, SC_PART_RECURRENT, 1, 4, 8);
    sc_schema_options schema_options = SC_SCHEMA_OPTIONS_INIT;
    schema_options.model = "wide";
    schema_options.revision = "1";
    schema_options.groups = &group;
    schema_options.group_count = schema_options.part_count = schema_options.layer_count = 1;
    schema_options.parts = &part;
    schema_options.allocator = &w->fa.allocator;
    sc_schema *schema = NULL;
    CHECK(w, sc_schema_create(&schema_options, &schema) == SC_OK, "%s", sc_last_error()->text);
    sc_pool_options pool_options = SC_POOL_OPTIONS_INIT;
    pool_options.schema = schema;
    pool_options.slot_count = 1;
    pool_options.allocator = &w->fa.allocator;
    sc_pool *pool = NULL;
    CHECK(w, sc_pool_create(&pool_options, &pool) == SC_OK, "%s", sc_last_error()->text);
    sc_cache_options options = SC_CACHE_OPTIONS_INIT;
    options.pool = pool;
    options.page_tokens = 1u << 20;
    options.allocator = &w->fa.allocator;
    sc_cache *cache = NULL;
    sc_status status = seen(w, CALL_CREATE, sc_cache_create(&options, &cache));
    CHECK(w, status == SC_ERR_OVERFLOW, "grid: %s", sc_status_name(status));
    CHECK(w, sc_pool_destroy(pool) == SC_OK, "%s", sc_last_error()->text);
    sc_schema_release(schema);
}

/* Refusals first; each must leave nothing behind. */
static void cache_create_badly(struct world *w)
{
    struct fail_alloc_mark before = fail_alloc_mark(&w->fa);
    sc_cache *cache = NULL;
    sc_cache_options options = cache_options(w);
    CHECK(w, seen(w, CALL_CREATE, sc_cache_create(NULL, &cache)) == SC_ERR_INVALID, "NULL");
    options.pool = NULL;
    CHECK(w, seen(w, CALL_CREATE, sc_cache_create(&options, &cache)) == SC_ERR_INVALID, "pool");
    create_overflow(w);
    options = cache_options(w);
    sc_slot slot;
    CHECK(w, sc_pool_alloc(w->pool, 1, SC_OWNER_WORKING, &slot) == SC_OK, "a slot");
    CHECK(w, seen(w, CALL_CREATE, sc_cache_create(&options, &cache)) == SC_ERR_BUSY, "taken slot");
    CHECK(w, sc_pool_free(w->pool, &slot, 1) == SC_OK, "a slot");
    sc_status status;
    for (uint64_t n = 1 + draw(&w->rng, 4);; n += 1 + draw(&w->rng, 12)) {
        fail_alloc_arm(&w->fa, n);
        status = seen(w, CALL_CREATE, sc_cache_create(&options, &cache));
        if (!fail_alloc_disarm(&w->fa)) break;
        CHECK(w, status == SC_ERR_NO_MEMORY, "%s", sc_status_name(status));
        CHECK(w, fail_alloc_same(&w->fa, before), "allocation %u failing leaves memory behind",
            (uint32_t)n);
    }
    CHECK(w, status == SC_OK && cache, "%s", sc_last_error()->text);
    w->cache = cache;
    sc_cache *second = NULL;
    CHECK(w, seen(w, CALL_CREATE, sc_cache_create(&options, &second)) == SC_ERR_BUSY, "second");
    CHECK(w, sc_pool_destroy(w->pool) == SC_ERR_BUSY, "the pool of a cache");
}

void world_init(struct world *w, uint64_t seed, uint64_t steps, enum plant plant, bool twin)
{
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->steps = steps;
    w->plant = plant;
    w->twin = twin;
    w->trace = getenv("SC_TRACE") != NULL;
    w->next_step = 1;
    w->plant_from = 100;
    sc_prng_seed(&w->rng, seed);
    sc_prng_seed(&w->rng_read, sc_mix64(seed));
    fail_alloc_init(&w->fa);
    config_draw(w);
    model_trace(w, "page %u grid %u/%u slots %u extras %u leases %u rows %u saves %u kv %d "
        "token_max %u path %u flags %x decode %u cuts %d flaky %d", w->cfg.page, w->cfg.chunk_grid,
        w->cfg.grid, w->cfg.slot_count, w->cfg.extra_count, w->cfg.lease_max, w->cfg.row_max,
        w->cfg.save_max, !w->cfg.without_kv, (uint32_t)w->cfg.token_max, w->cfg.path_max,
        w->cfg.save_flags, w->cfg.decode_interval, w->cfg.keep_cuts, w->cfg.flaky);
    for (uint32_t i = 0; i < KV_IDS_MAX; i++) w->kv_free[i] = (int32_t)i;
    w->kv_free_count = KV_IDS_MAX;
    schemas_create(w);
    pools_create(w);
    cache_create_badly(w);
    w->stats = world_stats(w);
    if (plant == PLANT_LEAK) w->leaked = w->fa.allocator.alloc(w->fa.allocator.ctx, 24, 16);
    totals.worlds++;
}

sc_cache_stats world_stats(struct world *w)
{
    sc_cache_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    CHECK(w, seen(w, CALL_STATS, sc_cache_stats_get(w->cache, &stats)) == SC_OK, "stats");
    return stats;
}

sc_room world_room(struct world *w)
{
    sc_room room;
    memset(&room, 0, sizeof room);
    CHECK(w, seen(w, CALL_ROOM, sc_cache_room(w->cache, &room)) == SC_OK, "room");
    return room;
}

void world_arm(struct world *w)
{
    if (!w->cfg.flaky || !one_in(&w->rng, 5)) return;
    fail_alloc_arm(&w->fa, 1 + draw(&w->rng, one_in(&w->rng, 3) ? 12 : 3));
    w->armed = true;
}

bool world_disarm(struct world *w)
{
    if (!w->armed) return false;
    w->armed = false;
    bool failed = fail_alloc_disarm(&w->fa);
    totals.alloc_failures += failed;
    if (failed) model_trace(w, "  an allocation failed");
    return failed;
}

void world_same(struct world *w, const sc_cache_stats *stats, const sc_room *room,
    const char *what)
{
    sc_cache_stats now = world_stats(w);
    sc_room room_now = world_room(w);
    now.refused = stats->refused; /* refusals may be counted */
    CHECK(w, memcmp(&now, stats, sizeof now) == 0, "%s changed the statistics", what);
    CHECK(w, memcmp(&room_now, room, sizeof room_now) == 0, "%s changed the room", what);
}

static uint64_t evicted_sum(const sc_cache_stats *stats)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SC_EVICT_COUNT; i++) sum += stats->evicted[i];
    return sum;
}

static void check_counts(struct world *w, const sc_cache_stats *now)
{
    uint32_t alive = 0;
    uint64_t kinds = 0;
    for (uint32_t i = 0; i < LEASES_MAX; i++) alive += w->leases[i].used;
    for (uint32_t i = 0; i < 6; i++) kinds += now->saves_by_kind[i];
    CHECK(w, now->leases_alive == alive, "%u alive, the model has %u", (uint32_t)now->leases_alive,
        alive);
    CHECK(w, now->acquired == w->acquired && now->released == w->released,
        "acquired %u of %u, released %u of %u", (uint32_t)now->acquired, (uint32_t)w->acquired,
        (uint32_t)now->released, (uint32_t)w->released);
    CHECK(w, now->pages_in == w->kv_in && now->pages_out == w->kv_out,
        "KV ids: in %u of %u, out %u of %u", (uint32_t)now->pages_in, (uint32_t)w->kv_in,
        (uint32_t)now->pages_out, (uint32_t)w->kv_out);
    CHECK(w, now->saves_published == kinds, "published %u, by kind %u",
        (uint32_t)now->saves_published, (uint32_t)kinds);
    CHECK(w, now->saves_published - evicted_sum(now) == now->snapshots_alive,
        "published %u, evicted %u, alive %u", (uint32_t)now->saves_published,
        (uint32_t)evicted_sum(now), (uint32_t)now->snapshots_alive);
    CHECK(w, w->known_dead <= evicted_sum(now), "%u snapshots are gone, %u were evicted",
        (uint32_t)w->known_dead, (uint32_t)evicted_sum(now));
    if (w->cfg.token_max) {
        CHECK(w, now->tokens_cached <= w->cfg.token_max, "%u tokens", (uint32_t)now->tokens_cached);
    }
}

static void check_room(struct world *w, const sc_cache_stats *now)
{
    sc_room room = world_room(w);
    sc_pool_info info;
    CHECK(w, sc_pool_info_get(w->pool, &info) == SC_OK, "info");
    CHECK(w, room.slots_free == info.free_count, "%u free, the pool says %u", room.slots_free,
        info.free_count);
    CHECK(w, room.slots_free + room.slots_evictable + room.slots_held + room.slots_draining ==
            w->cfg.slot_count,
        "slots: %u free + %u evictable + %u held + %u draining of %u", room.slots_free,
        room.slots_evictable, room.slots_held, room.slots_draining, w->cfg.slot_count);
    CHECK(w, info.owner_count[SC_OWNER_SNAPSHOT] == now->snapshots_alive, "%u snapshot slots, %u",
        info.owner_count[SC_OWNER_SNAPSHOT], (uint32_t)now->snapshots_alive);
    CHECK(w, room.pages_evictable <= room.pages_cached, "evictable pages");
    if (w->cfg.without_kv) return;
    CHECK(w, room.pages_cached * w->cfg.page == now->tokens_cached, "%u pages, %u tokens",
        (uint32_t)room.pages_cached, (uint32_t)now->tokens_cached);
    CHECK(w, room.pages_cached + room.pages_held + room.pages_drainable == w->kv_in - w->kv_out,
        "KV ids: %u in the index + %u held + %u to drain, but %u in - %u out",
        (uint32_t)room.pages_cached, (uint32_t)room.pages_held, (uint32_t)room.pages_drainable,
        (uint32_t)w->kv_in, (uint32_t)w->kv_out);
}

void world_after_op(struct world *w)
{
    CHECK(w, !w->armed, "an allocation is still to fail");
    sc_cache_stats now = world_stats(w);
    bool evicted = evicted_sum(&now) > evicted_sum(&w->stats) ||
        now.pages_evicted > w->stats.pages_evicted;
    for (uint32_t i = 0; i < SC_SKIP_COUNT; i++) { /* a save that was refused is a failure too */
        w->op_fail = w->op_fail || now.saves_skipped[i] > w->stats.saves_skipped[i];
    }
    check_counts(w, &now);
    check_room(w, &now);
    w->stats = now;
    totals.ops++;
    totals.ops_hit += w->op_hit;
    totals.ops_evict += evicted;
    totals.ops_fail += w->op_fail;
    totals.ops_eventful += w->op_hit || evicted || w->op_fail;
    w->op_hit = w->op_fail = false;
}

/* Everything is evicted and drained: what came in went out, and all slots are free. */
static void empty_cache(struct world *w)
{
    sc_room got, room;
    CHECK(w, seen(w, CALL_EVICT, sc_cache_evict(w->cache, UINT32_MAX, UINT32_MAX, &got)) == SC_OK,
        "evict all");
    room = world_room(w);
    while (room.pages_drainable > 0) {
        drain_some(w, 64);
        room = world_room(w);
    }
    CHECK(w, room.slots_free == w->cfg.slot_count, "%u of %u slots are free", room.slots_free,
        w->cfg.slot_count);
    CHECK(w, room.pages_cached == 0 && room.pages_held == 0, "%u pages cached, %u held",
        (uint32_t)room.pages_cached, (uint32_t)room.pages_held);
    CHECK(w, w->kv_in == w->kv_out, "%u KV ids in, %u out", (uint32_t)w->kv_in,
        (uint32_t)w->kv_out);
    for (uint32_t id = 0; id < KV_IDS_MAX; id++) {
        CHECK(w, !w->kv_inside[id] && w->kv_readers[id] == 0, "KV id %u did not come back", id);
    }
    CHECK(w, w->kv_free_count == KV_IDS_MAX, "%u KV ids are lost",
        KV_IDS_MAX - w->kv_free_count);
    sc_cache_stats stats = world_stats(w);
    CHECK(w, stats.snapshots_alive == 0 && stats.tokens_cached == 0, "%u snapshots, %u tokens",
        (uint32_t)stats.snapshots_alive, (uint32_t)stats.tokens_cached);
    CHECK(w, sc_cache_verify(w->cache) == SC_OK, "%s", sc_last_error()->text);
}

static void totals_add(const sc_cache_stats *stats)
{
    for (uint32_t i = 0; i < SC_SKIP_COUNT; i++) totals.skipped[i] += stats->saves_skipped[i];
    for (uint32_t i = 0; i < SC_EVICT_COUNT; i++) totals.evicted[i] += stats->evicted[i];
    for (uint32_t i = 0; i < SC_REASON_COUNT; i++) totals.reasons[i] += stats->reason_count[i];
    for (uint32_t i = 0; i < 6; i++) {
        totals.published_by_kind[i] += stats->saves_by_kind[i];
        totals.resumed_by_kind[i] += stats->resumed_by_kind[i];
    }
    totals.kv_in += stats->pages_in;
    totals.kv_out += stats->pages_out;
    totals.adopted += stats->pages_adopted;
}

void world_finish(struct world *w)
{
    if (w->flight.active) step_end(w);
    bool alive = false;
    for (uint32_t i = 0; i < LEASES_MAX; i++) alive = alive || w->leases[i].used;
    if (alive) {
        CHECK(w, seen(w, CALL_DESTROY, sc_cache_destroy(w->cache)) == SC_ERR_BUSY, "with leases");
    }
    for (uint32_t i = 0; i < LEASES_MAX; i++) {
        struct m_lease *lease = &w->leases[i];
        if (!lease->used) continue;
        enum sc_release how = one_in(&w->rng, 2) ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD;
        CHECK(w, seen(w, CALL_RELEASE, sc_lease_release(w->cache, lease->handle, 0, how)) == SC_OK,
            "%s", sc_last_error()->text);
        lease_gone(w, lease);
    }
    if (!w->twin) records_forget(w, NS_MAX); /* ends were published without an attempt */
    totals_add(&w->stats);
    if (!one_in(&w->rng, 4)) empty_cache(w);
    CHECK(w, seen(w, CALL_DESTROY, sc_cache_destroy(w->cache)) == SC_OK, "destroy");
    CHECK(w, sc_cache_destroy(NULL) == SC_OK, "NULL");
    sc_pool_info info;
    CHECK(w, sc_pool_info_get(w->pool, &info) == SC_OK, "info");
    CHECK(w, info.free_count == w->cfg.slot_count, "%u of %u slots came back", info.free_count,
        w->cfg.slot_count);
    CHECK(w, sc_pool_audit(w->pool, true) == SC_OK, "%s", sc_last_error()->text);
    CHECK(w, sc_pool_destroy(w->pool) == SC_OK, "pool: %s", sc_last_error()->text);
    CHECK(w, sc_pool_destroy(w->extras) == SC_OK, "extras: %s", sc_last_error()->text);
    sc_schema_release(w->schema);
    sc_schema_release(w->extra_schema);
    CHECK(w, fail_alloc_live_blocks(&w->fa) == 0, "%u blocks, %u bytes leaked",
        (uint32_t)fail_alloc_live_blocks(&w->fa), (uint32_t)fail_alloc_live_bytes(&w->fa));
    records_free(w);
}

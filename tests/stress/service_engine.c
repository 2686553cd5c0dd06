/* SPDX-License-Identifier: Apache-2.0 */
/* A process with a cache of its own, few slots, and the service as its remote tier: what it
 * computes clients and other engines find, and the other way round, so each checks what others
 * wrote.
 *
 *   find, learn --> acquire --> (restored from the service) --> compare --> compute --> keep
 *                                                                 '-- stored when it is evicted
 *
 * An engine asks for a state by exactly its tokens. A service that is away is no finding: it costs
 * hits. A wrong bit, a lease that is not served, an account that is not in order, are. */
#include <string.h>
#include <unistd.h>

#include "statecache/statecache.h"
#include "stress_service.h"

enum { SETTLE_TRIES = 60000, OPEN_TRIES = 4000 };

struct engine {
    const struct sv_world *world;
    struct sv_shared *shared;
    struct sc_prng rng;
    uint32_t tenant;
    sc_schema *schema;
    sc_pool *pool;
    sc_remote remote;
    sc_tiers *tiers;
    sc_cache *cache;
    sc_namespace spaces[SV_ADAPTERS];
    sc_step step;
    sc_cache_stats told; /* what the parent knows */
    uint64_t offsets[SV_PARTS_MAX]; /* of the parts in the service's file */
};

#define must(call)                                                                                 \
    do {                                                                                           \
        if ((call) != SC_OK) sv_finding("engine: %s: %s", #call, sc_last_error()->text);           \
    } while (0)

static uint32_t below(struct engine *e, uint32_t bound)
{
    return (uint32_t)sc_prng_below(&e->rng, bound);
}

/* ---- creation ---- */

/* The model of service_host.c's configuration. */
static void open_pool(struct engine *e)
{
    static const sc_group group = {"gdn", 16};
    static const sc_part all[4] = {
        {.layer = 0, .kind = SC_PART_CONV, .dtype = SC_DTYPE_BF16, .dim_count = 2, .dims = {3, 64}},
        {.layer = 0, .kind = SC_PART_RECURRENT, .dtype = SC_DTYPE_F32, .dim_count = 3,
            .dims = {4, 32, 32}},
        {.layer = 1, .kind = SC_PART_CONV, .dtype = SC_DTYPE_BF16, .dim_count = 2, .dims = {3, 96}},
        {.layer = 1, .kind = SC_PART_RECURRENT, .dtype = SC_DTYPE_BF16, .dim_count = 3,
            .dims = {2, 32, 32}}};
    sc_part parts[4];
    sc_schema_options schema = SC_SCHEMA_OPTIONS_INIT;
    sc_pool_options pool = SC_POOL_OPTIONS_INIT;
    memcpy(parts, all, sizeof parts);
    if (e->world->shape == 0) {
        parts[1].dims[0] = 2;
        parts[1].dims[1] = parts[1].dims[2] = 16;
    }
    schema.model = "stress";
    schema.revision = "preset";
    schema.groups = &group;
    schema.group_count = 1;
    schema.parts = parts;
    schema.part_count = e->world->shape == 0 ? 2 : 4;
    schema.layer_count = e->world->shape == 0 ? 1 : 2;
    must(sc_schema_create(&schema, &e->schema));
    pool.schema = e->schema;
    pool.slot_count = 4 + below(e, 8);
    pool.layout = below(e, 2) ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    must(sc_pool_create(&pool, &e->pool));
}

/* False: it is time to stop. */
static bool open_remote(struct engine *e)
{
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    sc_client_part parts[SV_PARTS_MAX];
    sc_client *client = NULL;
    uint32_t count = 0;
    options.address = e->shared->address;
    options.tenant = sv_tenant_name(e->tenant);
    options.timeout_ms = 10000;
    for (uint32_t i = 0; i < OPEN_TRIES && !atomic_load(&e->shared->stop); i++) {
        if (!client && sc_client_open(&options, &client) != SC_OK) client = NULL;
        if (client && sc_client_parts(client, parts, SV_PARTS_MAX, &count) == SC_OK &&
            sc_client_remote_open(&options, &e->remote) == SC_OK) {
            for (uint32_t p = 0; p < count; p++) e->offsets[p] = parts[p].offset;
            sc_client_close(client);
            return true;
        }
        sc_client_close(client);
        client = NULL;
        (void)usleep(5000);
    }
    sc_client_close(client);
    return false;
}

static void open_cache(struct engine *e)
{
    sc_tiers_options tiers = SC_TIERS_OPTIONS_INIT;
    sc_cache_options cache = SC_CACHE_OPTIONS_INIT;
    tiers.remote.bytes = UINT64_C(1) << 40;
    tiers.remote.write = 1 + below(e, 3);
    tiers.remote_calls = &e->remote;
    tiers.entry_max = below(e, 2) ? 0 : 4 + below(e, 40);
    must(sc_tiers_create(&tiers, &e->tiers));
    cache.pool = e->pool;
    cache.page_tokens = 1;
    cache.without_kv = true;
    cache.tiers = e->tiers;
    cache.policy = e->world->gittins ? "gittins" : "lru";
    must(sc_cache_create(&cache, &e->cache));
    for (uint32_t i = 0; i < SV_ADAPTERS; i++) {
        must(sc_namespace_open(e->cache, NULL, sv_adapter_id(i), 1, &e->spaces[i]));
    }
}

static void close_all(struct engine *e)
{
    if (e->cache) {
        must(sc_cache_verify(e->cache));
        must(sc_cache_destroy(e->cache));
        must(sc_tiers_destroy(e->tiers));
    }
    sc_client_remote_close(&e->remote);
    must(sc_pool_destroy(e->pool));
    sc_schema_release(e->schema);
}

/* ---- states ---- */

/* Writes the state after the first `len` tokens into a slot, or compares. */
static void visit(struct engine *e, int32_t slot, const struct sv_key *key, uint32_t len,
    bool write)
{
    struct sv_key cut = *key;
    sc_pool_info info;
    cut.count = len;
    uint64_t base = sv_base(&cut, len);
    must(sc_pool_info_get(e->pool, &info));
    for (uint32_t i = 0; i < info.part_count; i++) {
        sc_layer_view view;
        sc_part part;
        must(sc_pool_part_view(e->pool, i, &view, &part));
        uint64_t *words = (uint64_t *)((uintptr_t)view.base + (uintptr_t)(slot * view.slot_stride));
        for (uint64_t w = 0; w < view.bytes / 8; w++) {
            uint64_t value = sc_mix64(base + e->offsets[i] / 8 + w);
            if (write) words[w] = value;
            if (words[w] == value) continue;
            sv_finding("engine: word %llu of part %u of the state of %u tokens (family %u, branch "
                "%u, tenant %s, adapter %u) is wrong: %016llx", (unsigned long long)w, i, len,
                key->family, key->branch, sv_tenant_name(key->tenant) ?
                sv_tenant_name(key->tenant) : "-", key->adapter, (unsigned long long)words[w]);
        }
        if (!write) (void)atomic_fetch_add(&e->shared->words, view.bytes / 8);
    }
}

/* Takes what has ended. */
static void apply(struct engine *e)
{
    sc_done done[16];
    uint32_t count = 0;
    must(sc_cache_poll(e->cache, done, 16, &count));
    must(sc_cache_apply(e->cache, done, count, 0));
    if (count == 0) (void)usleep(200);
}

static sc_lease_info wait_ready(struct engine *e, sc_lease lease)
{
    sc_lease_info info;
    for (uint32_t i = 0; i < SETTLE_TRIES; i++) {
        must(sc_lease_info_get(e->cache, lease, &info));
        if (info.state != SC_LEASE_WAITING) return info;
        apply(e);
    }
    sv_finding("engine: a lease waits for ever");
}

static void ask(struct engine *e, const sc_key *key)
{
    sc_find find = {.key = *key};
    must(sc_cache_find(e->cache, &find, 1));
    if (find.status == SC_OK && find.len >= key->token_count) {
        sv_finding("engine: %u of %u tokens found", find.len, key->token_count);
    }
    must(sc_cache_learn(e->cache, &find, 1, 0));
}

/* Computes the rest of the prompt. */
static void compute(struct engine *e, sc_lease lease, const struct sv_key *key, uint32_t from)
{
    sc_row row = {.lease = lease, .from = from, .to = key->count};
    sc_batch batch;
    sc_status each = SC_OK;
    must(sc_step_plan(e->cache, ++e->step, &row, 1, 0, &batch, &each));
    must(each);
    visit(e, batch.block[batch.at_dest], key, key->count, true);
    for (uint32_t i = 0; i < batch.save_count; i++) {
        visit(e, batch.block[batch.at_save_slot + i], key,
            (uint32_t)batch.block[batch.at_save_position + i], true);
    }
    sc_result result = {.lease = lease, .len = key->count};
    must(sc_step_commit(e->cache, e->step, &result, 1, &each));
    must(each);
}

static void request(struct engine *e)
{
    struct sv_key key;
    sc_lease lease;
    sc_status each = SC_OK;
    sv_key_draw(&key, &e->rng);
    key.tenant = e->tenant;
    sc_request asked = {.key = {.ns = e->spaces[key.adapter], .tokens = key.tokens,
        .token_count = key.count}};
    if (below(e, 3) > 0) ask(e, &asked.key);
    must(sc_cache_acquire(e->cache, &asked, 1, 0, &lease, &each));
    if (each == SC_ERR_NO_SLOT) {
        apply(e);
        return;
    }
    must(each);
    sc_lease_info info = wait_ready(e, lease);
    if (info.resume_len > 0) {
        visit(e, info.source_slot, &key, info.resume_len, false);
        (void)atomic_fetch_add(&e->shared->engine_hits, 1);
    }
    if (below(e, 5) > 0) compute(e, lease, &key, info.resume_len);
    must(sc_lease_release(e->cache, lease, 0, below(e, 4) ? SC_RELEASE_KEEP :
        SC_RELEASE_DISCARD));
    (void)atomic_fetch_add(&e->shared->engine_requests, 1);
}

/* It may be killed before its end. */
static void count_restored(struct engine *e)
{
    sc_cache_stats stats = {.struct_size = sizeof stats};
    must(sc_cache_stats_get(e->cache, &stats));
    (void)atomic_fetch_add(&e->shared->engine_restored,
        stats.resumed_by_tier[SC_TIER_REMOTE] - e->told.resumed_by_tier[SC_TIER_REMOTE]);
    (void)atomic_fetch_add(&e->shared->engine_stored,
        stats.tier_stored[SC_TIER_REMOTE] - e->told.tier_stored[SC_TIER_REMOTE]);
    e->told = stats;
}

int sv_engine(const struct sv_world *world, struct sv_shared *shared, uint64_t seed)
{
    static struct engine engine;
    struct engine *e = &engine;
    e->world = world;
    e->shared = shared;
    sc_prng_seed(&e->rng, seed);
    e->tenant = below(e, SV_TENANTS);
    open_pool(e);
    if (open_remote(e)) {
        open_cache(e);
        for (uint32_t i = 0; !atomic_load(&shared->stop); i++) {
            sc_room room;
            request(e);
            if (i % 4 == 0) apply(e);
            if (below(e, 20) == 0) must(sc_cache_evict(e->cache, 0, UINT32_MAX, &room));
            if (i % 64 == 0) must(sc_cache_verify(e->cache));
            if (i % 16 == 0) count_restored(e);
        }
    }
    close_all(e);
    return 0;
}

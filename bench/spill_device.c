/* SPDX-License-Identifier: Apache-2.0 */
/* States between the slots of a device and the host tier, through a cache and its tiers, beside
 * plain copies of as many bytes between the device and pinned memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "place.h"
#include "spill.h"
#include "statecache/cache.h"

#ifdef SC_HAVE_CUDA
#include "gpu/device_memory.h"
#endif

enum { SLOTS = 4, COPIES = 4, DONE_MAX = 16, WARM_UP = 3 };

struct host_side {
    sc_backend *backend;
    sc_schema *schema;
    sc_pool *pool;
    sc_tiers *tiers;
    sc_cache *cache;
    sc_namespace ns;
    sc_step step;
    uint64_t state_bytes;
    sc_devptr there;  /* the plain copies' ends */
    void *here;
};

/* ---- plain copies ---- */

static void *take_here(const sc_backend *backend, size_t bytes)
{
#ifdef SC_HAVE_CUDA
    if (!place_is_host(backend))
        return device_take_host(bytes);
#endif
    (void)backend;
    return spill_buffer((bytes + 4095) / 4096 * 4096, 1);
}

static void give_here(const sc_backend *backend, void *memory)
{
#ifdef SC_HAVE_CUDA
    if (!place_is_host(backend)) {
        device_give_host(memory);
        return;
    }
#endif
    (void)backend;
    free(memory);
}

static double plain_copy(const struct host_side *side, bool down)
{
    double begin = spill_now();
    place_copy(side->backend, down ? dev(side->here) : side->there,
        down ? side->there : dev(side->here), side->state_bytes);
    return spill_now() - begin;
}

/* ---- the tier's ---- */

static void open_side(struct host_side *side, sc_backend *backend, sc_layout layout, sc_dtype dtype)
{
    sc_pool_options pool = SC_POOL_OPTIONS_INIT;
    sc_tiers_options tiers = SC_TIERS_OPTIONS_INIT;
    sc_cache_options cache = SC_CACHE_OPTIONS_INIT;
    sc_pool_info info;
    memset(side, 0, sizeof *side);
    side->backend = backend;
    bench_must(sc_schema_preset("qwen3-next-80b-a3b", dtype, &side->schema), "schema");
    pool.schema = side->schema;
    pool.layout = layout;
    pool.slot_count = SLOTS;
    pool.backend = backend;
    bench_must(sc_pool_create(&pool, &side->pool), "pool");
    bench_must(sc_pool_info_get(side->pool, &info), "pool");
    side->state_bytes = info.state_bytes;
    tiers.host.bytes = COPIES * (info.state_bytes + 8192);
    tiers.host.write = SC_TIER_WRITE_THROUGH;
    bench_must(sc_tiers_create(&tiers, &side->tiers), "tiers");
    cache.pool = side->pool;
    cache.without_kv = true;
    cache.save_flags = SC_SAVE_END;
    cache.policy = "lru";
    cache.tiers = side->tiers;
    bench_must(sc_cache_create(&cache, &side->cache), "cache");
    bench_must(sc_namespace_open(side->cache, NULL, 0, 0, &side->ns), "namespace");
    side->there = place_take(backend, side->state_bytes);
    side->here = take_here(backend, side->state_bytes);
}

static void close_side(struct host_side *side)
{
    bench_must(sc_cache_destroy(side->cache), "cache");
    bench_must(sc_tiers_destroy(side->tiers), "tiers");
    bench_must(sc_pool_destroy(side->pool), "pool");
    sc_schema_release(side->schema);
    place_give(side->backend, side->there, side->state_bytes);
    give_here(side->backend, side->here);
}

static void settle(struct host_side *side)
{
    const struct timespec pause = {0, 10000};
    sc_cache_stats stats = {.struct_size = sizeof stats};
    for (;;) {
        sc_done done[DONE_MAX];
        uint32_t count = 0;
        bench_must(sc_cache_stats_get(side->cache, &stats), "figures");
        if (stats.transfers_alive == 0)
            return;
        bench_must(sc_cache_poll(side->cache, done, DONE_MAX, &count), "poll");
        for (uint32_t i = 0; i < count; i++)
            bench_must(done[i].status, "a transfer");
        bench_must(sc_cache_apply(side->cache, done, count, 0), "apply");
        if (count == 0)
            nanosleep(&pause, NULL);
    }
}

static sc_lease acquire(struct host_side *side, const int32_t *tokens, uint32_t count)
{
    const sc_request request = {.key = {.ns = side->ns, .tokens = tokens, .token_count = count}};
    sc_lease lease;
    sc_status each;
    bench_must(sc_cache_acquire(side->cache, &request, 1, 0, &lease, &each), "acquire");
    bench_must(each, "acquire");
    settle(side);
    return lease;
}

/* A request is served, its state goes down, is evicted and comes back for the next one. Seconds of
 * the two transfers, as the tiers tell them. */
static void down_and_up(struct host_side *side, uint64_t number, double *down_out, double *up_out)
{
    struct spill_key key;
    int32_t tokens[SPILL_TOKENS + 1] = {0};
    sc_tiers_stats before = {.struct_size = sizeof before}, after = before;
    sc_batch batch;
    sc_status each;
    sc_room got;
    spill_key_init(&key, number);
    memcpy(tokens, key.tokens, sizeof key.tokens);
    bench_must(sc_tiers_stats_get(side->tiers, &before), "figures");
    sc_lease lease = acquire(side, tokens, SPILL_TOKENS);
    const sc_row row = {.lease = lease, .to = SPILL_TOKENS};
    bench_must(sc_step_plan(side->cache, ++side->step, &row, 1, 0, &batch, &each), "plan");
    bench_must(each, "plan");
    const sc_result result = {.lease = lease, .len = SPILL_TOKENS};
    bench_must(sc_step_commit(side->cache, side->step, &result, 1, &each), "commit");
    bench_must(sc_lease_release(side->cache, lease, 0, SC_RELEASE_KEEP), "release");
    settle(side);
    bench_must(sc_cache_evict(side->cache, 0, UINT32_MAX, &got), "evict");
    lease = acquire(side, tokens, SPILL_TOKENS + 1);
    sc_lease_info info;
    bench_must(sc_lease_info_get(side->cache, lease, &info), "lease");
    if (info.resume_len != SPILL_TOKENS)
        bench_fail(BENCH_CHECK_FAILED, "a state did not come back from host memory");
    bench_must(sc_lease_release(side->cache, lease, 0, SC_RELEASE_DISCARD), "release");
    bench_must(sc_tiers_stats_get(side->tiers, &after), "figures");
    *down_out = (double)(after.stored_ns[SC_TIER_HOST] - before.stored_ns[SC_TIER_HOST]) / 1e9;
    *up_out = (double)(after.restored_ns[SC_TIER_HOST] - before.restored_ns[SC_TIER_HOST]) / 1e9;
}

/* ---- figures ---- */

struct way { struct radix_samples tier, plain, ratio; };

static void sample(struct way *way, double bytes, double tier, double plain)
{
    radix_sample(&way->tier, bytes / tier / 1e9);
    radix_sample(&way->plain, bytes / plain / 1e9);
    radix_sample(&way->ratio, plain / tier);
}

static void report(struct radix_rows *rows, const char *state, bool down, bool judged,
    struct way *way)
{
    const struct bench_bar none = {BENCH_BAR_NONE, 0}, least = {BENCH_BAR_LEAST, 0.95};
    char name[72];
    snprintf(name, sizeof name, "%s, %s", state, down ? "to the host tier" : "from the host tier");
    radix_row_samples(rows, "device", name, "GB/s", &way->tier, none);
    snprintf(name, sizeof name, "plain copy %s", down ? "to the host" : "from the host");
    radix_row_samples(rows, "device", name, "GB/s", &way->plain, none);
    snprintf(name, sizeof name, "%s, %s / plain", state, down ? "to the tier" : "from the tier");
    radix_row_samples(rows, "device", name, "ratio", &way->ratio, judged ? least : none);
    radix_samples_free(&way->tier);
    radix_samples_free(&way->plain);
    radix_samples_free(&way->ratio);
}

static void one_layout(const struct spill_options *options, sc_backend *backend, sc_layout layout,
    sc_dtype dtype, struct radix_rows *rows)
{
    const struct bench_bar none = {BENCH_BAR_NONE, 0};
    struct host_side side;
    struct way ways[2];
    char state[32], name[72];
    memset(ways, 0, sizeof ways);
    snprintf(state, sizeof state, "%s %s", dtype == SC_DTYPE_F32 ? "fp32" : "bf16",
        layout == SC_LAYOUT_PAGE_MAJOR ? "page-major" : "contiguous");
    open_side(&side, backend, layout, dtype);
    sc_tiers_stats stats = {.struct_size = sizeof stats};
    bench_must(sc_tiers_stats_get(side.tiers, &stats), "figures");
    snprintf(name, sizeof name, "%s: bytes of a state", state);
    radix_row_value(rows, "device", name, "MiB", (double)side.state_bytes / (1 << 20), none);
    snprintf(name, sizeof name, "%s: host memory is pinned", state);
    radix_row_value(rows, "device", name, "", stats.pinned, none);
    for (uint32_t i = 0; i < options->pairs + WARM_UP; i++) {
        double down = 0, up = 0, plain_down = plain_copy(&side, true);
        double plain_up = plain_copy(&side, false);
        down_and_up(&side, i + 1, &down, &up);
        if (i < WARM_UP)
            continue;
        sample(&ways[0], (double)side.state_bytes, down, plain_down);
        sample(&ways[1], (double)side.state_bytes, up, plain_up);
    }
    /* Of a host's own memory the copies are the processor's, and of 38 MiB they are short. */
    bool judged = !place_is_host(backend) && dtype == SC_DTYPE_F32;
    report(rows, state, true, judged, &ways[0]);
    report(rows, state, false, judged, &ways[1]);
    close_side(&side);
}

void spill_device_run(const struct spill_options *options, sc_backend *backend,
    struct radix_rows *rows)
{
    for (uint32_t i = 0; i < 4; i++)
        one_layout(options, backend, i & 1 ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR,
            i & 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32, rows);
}

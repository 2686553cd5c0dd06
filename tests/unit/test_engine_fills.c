/* SPDX-License-Identifier: Apache-2.0 */
/* Slots that a call takes are prepared by the device: no lock of the engine is held meanwhile, and
 * a device that fails leaves nothing behind. */
#include "base/error.h"
#include "kernels/backend.h"
#include "statecache/experimental.h"
#include "test_engine_rig.h"

/* A backend around the host's that makes calls of the cache's own from within the device's. */
static struct {
    struct sc_backend backend;
    struct sc_backend_ops ops;
    struct rig *rig;      /* NULL: is not looked at */
    uint32_t calls, fail; /* fail: the call of that number fails; 0: none */
} device;

static struct rig rig;
static struct req a, b, kids[40];
static int32_t tokens[512];

/* What was recorded, for a cache whose device is in order. */
static uint8_t tape[1 << 16];
static size_t tape_bytes;

static void record(void *ctx, const void *bytes, size_t count)
{
    (void)ctx;
    ck_assert_uint_le(tape_bytes + count, sizeof tape);
    memcpy(tape + tape_bytes, bytes, count);
    tape_bytes += count;
}

/* It decides the same: what failed is in the record. */
static void replay(uint32_t slots)
{
    struct rig other;
    sc_replay *player = NULL;
    sc_cache_options cache_options;
    struct rig_options options = RIG_OPTIONS_INIT;
    options.slots = slots;
    options.extras = 48;
    rig_init_pools(&other, &options);
    rig_cache_options(&other, &options, &cache_options);
    rig_ok(sc_cache_create(&cache_options, &other.cache));
    rig_ok(sc_replay_create(other.cache, &player));
    sc_status status = sc_replay_feed(player, tape, tape_bytes);
    ck_assert_msg(status == SC_OK, "%s", sc_last_error()->text);
    sc_replay_destroy(player);
    sc_room room;
    rig_ok(sc_cache_room(other.cache, &room)); /* its ids are of another rig: let go unseen */
    for (uint64_t i = 0; i < room.pages_cached + room.pages_drainable; i++) {
        other.kv_where[i] = 2;
    }
    other.kv_free_count = 0;
    rig_deinit(&other);
}

/* With a lock of the cache or of a pool held by this thread, these would not return. */
static sc_status probe(void)
{
    sc_room room;
    sc_pool_info info;
    device.calls++;
    if (device.rig && device.rig->cache) {
        rig_ok(sc_cache_room(device.rig->cache, &room));
        ck_assert_int_eq(sc_lease_append(device.rig->cache, (sc_lease){9999, 1}, tokens, 1),
            SC_ERR_STALE); /* a mutator */
        rig_ok(sc_pool_info_get(device.rig->pool, &info));
        rig_ok(sc_pool_info_get(device.rig->extras, &info));
    }
    if (device.calls != device.fail) return SC_OK;
    return sc_error_set(__func__, SC_ERR_DEVICE_LOST, 0, "the device is lost");
}

static sc_status fill(sc_backend *backend, sc_devptr dst, uint8_t value, uint64_t bytes,
    sc_stream *stream)
{
    sc_status status = probe();
    return status == SC_OK ? sc_backend_host_ops.fill(backend, dst, value, bytes, stream) : status;
}

static sc_status copy(sc_backend *backend, enum sc_copy_kind kind,
    const struct sc_backend_span *spans, uint32_t count, sc_stream *stream)
{
    sc_status status = probe();
    if (status != SC_OK) return status;
    return sc_backend_host_ops.copy(backend, kind, spans, count, stream);
}

static sc_status copy_rows(sc_backend *backend, const struct sc_backend_rows *rows,
    sc_stream *stream)
{
    sc_status status = probe();
    return status == SC_OK ? sc_backend_host_ops.copy_rows(backend, rows, stream) : status;
}

static sc_status sync(sc_backend *backend, sc_stream *stream)
{
    (void)backend;
    (void)stream;
    return probe();
}

static void start(uint32_t slots, uint32_t depth)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    device.ops = sc_backend_host_ops;
    device.ops.fill = fill;
    device.ops.copy = copy;
    device.ops.copy_rows = copy_rows;
    device.ops.stream_sync = sync;
    device.backend =
        (struct sc_backend){.ops = &device.ops, .name = "probe", .host_memory = true};
    device.rig = NULL;
    device.fail = device.calls = 0;
    options.backend = &device.backend;
    options.slots = slots;
    options.extras = 48;
    options.cache.depth_max = depth;
    options.cache.record = record;
    tape_bytes = 0;
    rig_fill(tokens, 512, 1);
    rig_init(&rig, &options);
    rig.depth = depth;
    device.rig = &rig;
    device.calls = 0;
}

static void end(void)
{
    device.rig = NULL;
    device.fail = 0;
    rig_deinit(&rig);
}

static uint32_t in_use(void)
{
    sc_pool_info info;
    rig_ok(sc_pool_info_get(rig.pool, &info));
    return info.slot_count - info.free_count;
}

/* Takes part in whatever takes slots: acquire, plan, fork, filled. */
START_TEST(fills__no_lock_is_held)
{
    start(64, 1);
    rig_ok(req_try(&rig, &a, tokens, 40));
    ck_assert_uint_gt(device.calls, 0); /* of the extras at least */
    req_run(&rig, &a, 40);
    req_decode(&rig, &a, tokens + 40, 3);
    uint32_t before = device.calls;
    rig_ok(req_fork(&rig, &a, 3, kids));
    ck_assert_uint_gt(device.calls, before);
    for (int i = 0; i < 3; i++) req_close(&rig, &kids[i], 0, SC_RELEASE_DISCARD);
    sc_request request = {.key = rig_key(&rig, tokens + 100, 32),
        .flags = SC_REQUEST_EXTERNAL, .external_len = 32};
    rig_ok(req_ask(&rig, &b, &request));
    req_fill(&rig, &b, 32, 0); /* saved as the prompt's end: a fresh slot is taken */
    ck_assert_int_ne(rig_info(&rig, b.lease).source_slot, rig_info(&rig, b.lease).working_slot);
    if (SC_ASSERT_LEVEL >= 2) ck_assert_uint_gt(device.calls, before + 20);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    end();
}
END_TEST

START_TEST(acquire__a_device_that_fails_leaves_no_lease)
{
    start(64, 1);
    sc_request requests[40];
    sc_lease leases[40];
    sc_status each[40];
    sc_key key = rig_key(&rig, tokens, 40);
    for (uint32_t i = 0; i < 40; i++) requests[i] = (sc_request){.key = key};
    device.fail = 3;
    rig_ok(sc_cache_acquire(rig.cache, requests, 40, 0, leases, each));
    for (uint32_t i = 0; i < 40; i++) { /* as many are taken under one hold of the lock */
        ck_assert_int_eq(each[i], i < 32 ? SC_ERR_DEVICE_LOST : SC_OK);
        if (i < 32) ck_assert_uint_eq(leases[i].id, 0);
        if (i >= 32) rig_ok(sc_lease_release(rig.cache, leases[i], 0, SC_RELEASE_DISCARD));
    }
    ck_assert_uint_eq(in_use(), 0);
    ck_assert_uint_eq(rig_stats(&rig).leases_alive, 0);
    end();
}
END_TEST

#if SC_ASSERT_LEVEL >= 2 /* else there is nothing to do for slots without control words */
/* With a step behind it that another thread has planned there is no way back. */
START_TEST(plan__a_device_that_fails_plans_nothing)
{
    start(64, 2);
    rig_ok(req_try(&rig, &a, tokens, 40));
    uint32_t before = in_use();
    sc_row row = {.lease = a.lease, .from = 0, .to = 40};
    sc_batch batch;
    sc_status each;
    device.fail = device.calls + 1;
    ck_assert_int_eq(sc_step_plan(rig.cache, ++rig.step, &row, 1, 0, &batch, &each),
        SC_ERR_DEVICE_LOST);
    ck_assert_uint_eq(in_use(), before);
    ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_READY);
    rig_verify(&rig);
    device.fail = 0;
    rig.step--; /* it may be planned again */
    req_run(&rig, &a, 40);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    end();
}
END_TEST

START_TEST(fork__a_device_that_fails_loses_who_wrote)
{
    start(64, 1);
    sc_lease leases[3];
    rig_ok(req_try(&rig, &a, tokens, 40));
    req_run(&rig, &a, 40);
    if (_i) req_decode(&rig, &a, tokens + 40, 3); /* else it stands on a snapshot already */
    device.fail = device.calls + 1;
    ck_assert_int_eq(sc_lease_fork(rig.cache, a.lease, -1, 3, leases), SC_ERR_DEVICE_LOST);
    for (int i = 0; i < 3; i++) ck_assert_uint_eq(leases[i].id, 0);
    ck_assert_uint_eq(rig_stats(&rig).leases_alive, 1);
    ck_assert_int_eq(rig_info(&rig, a.lease).state, _i ? SC_LEASE_LOST : SC_LEASE_READY);
    rig_verify(&rig);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    replay(64);
    end();
}
END_TEST

START_TEST(filled__a_device_that_fails_loses_the_lease)
{
    start(64, 1);
    sc_request request = {.key = rig_key(&rig, tokens, 32), .flags = SC_REQUEST_EXTERNAL,
        .external_len = 32};
    int32_t ids[32];
    rig_ok(req_ask(&rig, &b, &request));
    for (uint32_t i = 0; i < 32; i++) ids[i] = rig_kv_take(&rig);
    device.fail = device.calls + 1;
    ck_assert_int_eq(sc_lease_filled(rig.cache, b.lease, ids, 32, NULL, 0), SC_ERR_DEVICE_LOST);
    for (uint32_t i = 0; i < 32; i++) rig.kv_where[ids[i]] = 2; /* they were taken all the same */
    ck_assert_int_eq(rig_info(&rig, b.lease).state, SC_LEASE_LOST);
    rig_verify(&rig);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    end();
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("engine_fills");
    TCase *tc = tcase_create("fills");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, fills__no_lock_is_held);
    tcase_add_test(tc, acquire__a_device_that_fails_leaves_no_lease);
#if SC_ASSERT_LEVEL >= 2
    tcase_add_test(tc, plan__a_device_that_fails_plans_nothing);
    tcase_add_loop_test(tc, fork__a_device_that_fails_loses_who_wrote, 0, 2);
    tcase_add_test(tc, filled__a_device_that_fails_loses_the_lease);
#endif
    suite_add_tcase(suite, tc);
    return rig_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input: every public call of cache.h with null, zero, overflow, stale handles, a full pool,
 * and with each of its allocations failing once. None aborts, leaks, or changes what was there. */
#include <math.h>

#include "test_engine_rig.h"

static struct rig rig;
static struct req a, b;
static int32_t tokens[512];
static sc_cache_stats stats_before;

static void start_with(struct rig_options *options)
{
    rig_fill(tokens, 512, 1);
    rig_init(&rig, options);
}

static void start(uint32_t page)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    start_with(&options);
}

static void mark_unchanged(void)
{
    stats_before = rig_stats(&rig);
}

static void check_unchanged(void)
{
    sc_cache_stats after = rig_stats(&rig);
    ck_assert_mem_eq(&stats_before, &after, sizeof after);
    rig_verify(&rig);
}

#define invalid(call) ck_assert_int_eq((call), SC_ERR_INVALID)

/* ---- creation ---- */

static void refuse_option(void (*change)(sc_cache_options *options))
{
    struct rig_options options = RIG_OPTIONS_INIT;
    sc_cache_options bad;
    sc_cache *cache = NULL;
    rig_cache_options(&rig, &options, &bad);
    change(&bad);
    struct fail_alloc_mark mark = fail_alloc_mark(&rig.fa);
    invalid(sc_cache_create(&bad, &cache));
    ck_assert_ptr_null(cache);
    ck_assert(fail_alloc_same(&rig.fa, mark));
}

static void no_pool(sc_cache_options *o) { o->pool = NULL; }
static void same_pool(sc_cache_options *o) { o->extras = o->pool; }
static void page_0(sc_cache_options *o) { o->page_tokens = 0; }
static void page_huge(sc_cache_options *o) { o->page_tokens = UINT32_MAX; }
static void rows_huge(sc_cache_options *o) { o->row_max = UINT32_MAX; }
static void saves_huge(sc_cache_options *o) { o->save_max = UINT32_MAX; }
static void leases_huge(sc_cache_options *o) { o->lease_max = UINT32_MAX; }
static void tokens_huge(sc_cache_options *o) { o->lease_token_max = UINT32_MAX; }
static void flags_unknown(sc_cache_options *o) { o->save_flags = 16; }
static void size_0(sc_cache_options *o) { o->struct_size = 0; }
static void size_more(sc_cache_options *o) { o->struct_size = sizeof *o + 8; }
static void interval_odd(sc_cache_options *o) { o->page_tokens = 16; o->decode_interval = 24; }

static void flops_nan(sc_cache_options *o) { o->flops_per_token = NAN; }
static void flops2_negative(sc_cache_options *o) { o->flops_per_token2 = -1; }
static void kv_infinite(sc_cache_options *o) { o->kv_token_bytes = HUGE_VAL; }
static void alpha_negative(sc_cache_options *o) { o->policy_alpha = -0.1; }
static void blocks_huge(sc_cache_options *o) { o->policy_blocks = UINT32_MAX; }
static void interval_huge(sc_cache_options *o) { o->policy_interval = UINT32_MAX; }

START_TEST(sc_cache_create__bad_args)
{
    static void (*const changes[])(sc_cache_options *) = {no_pool, same_pool, page_0, page_huge,
        rows_huge, saves_huge, leases_huge, tokens_huge, flags_unknown, size_0, size_more,
        interval_odd, flops_nan, flops2_negative, kv_infinite, alpha_negative, blocks_huge,
        interval_huge};
    struct rig_options options = RIG_OPTIONS_INIT;
    sc_cache_options good;
    sc_cache *cache = NULL;
    rig_init_pools(&rig, &options);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) refuse_option(changes[i]);
    rig_cache_options(&rig, &options, &good);
    invalid(sc_cache_create(NULL, &cache));
    invalid(sc_cache_create(&good, NULL));
    /* a prime: the grid overflows with no chunk, but this one is legal */
    good.page_tokens = 999983;
    rig_ok(sc_cache_create(&good, &cache));
    rig_ok(sc_cache_destroy(cache));
    sc_allocator half = {NULL, rig.fa.allocator.alloc, NULL};
    good.allocator = &half;
    invalid(sc_cache_create(&good, &cache));
    sc_slot slot;
    rig_ok(sc_pool_alloc(rig.pool, 1, SC_OWNER_WORKING, &slot));
    rig_cache_options(&rig, &options, &good);
    ck_assert_int_eq(sc_cache_create(&good, &cache), SC_ERR_BUSY); /* somebody uses its slots */
    rig_ok(sc_pool_free(rig.pool, &slot, 1));
    good.policy = "clairvoyant";
    ck_assert_int_eq(sc_cache_create(&good, &cache), SC_ERR_NOT_FOUND);
    ck_assert_uint_eq(fail_alloc_live_blocks(&rig.fa), 0);
    good.policy = "gittins";
    rig_ok(sc_cache_create(&good, &rig.cache)); /* it was not left held */
    rig_deinit(&rig);
}
END_TEST

/* The caller of an older version does not know the last options. */
START_TEST(sc_cache_create__older_struct)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    sc_cache_options old;
    rig_init_pools(&rig, &options);
    rig_cache_options(&rig, &options, &old);
    old.save_flags = UINT32_MAX; /* beyond what the size says: not read */
    old.allocator = (const sc_allocator *)(uintptr_t)8;
    old.struct_size = offsetof(sc_cache_options, save_flags);
    rig_ok(sc_cache_create(&old, &rig.cache));
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_create__each_allocation_fails)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.extras = 2;
    sc_cache_options good;
    options.cache.policy = _i ? "gittins" : "lru";
    options.cache.policy_blocks = 100;
    rig_init_pools(&rig, &options);
    rig_cache_options(&rig, &options, &good);
    uint64_t n = 1;
    for (;; n++) {
        sc_cache *cache = NULL;
        fail_alloc_arm(&rig.fa, n);
        sc_status status = sc_cache_create(&good, &cache);
        if (!fail_alloc_disarm(&rig.fa)) {
            rig_ok(status);
            rig.cache = cache;
            break;
        }
        ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
        ck_assert_ptr_null(cache);
        ck_assert_uint_eq(fail_alloc_live_blocks(&rig.fa), 0);
    }
    ck_assert_uint_gt(n, 5);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_destroy__null_and_busy)
{
    rig_ok(sc_cache_destroy(NULL));
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 20));
    mark_unchanged();
    ck_assert_int_eq(sc_cache_destroy(rig.cache), SC_ERR_BUSY);
    check_unchanged();
    req_run(&rig, &a, 20);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* ---- namespaces ---- */

START_TEST(sc_namespace_open__bad_args_and_each_allocation_fails)
{
    start(1);
    sc_namespace ns = {7, 7};
    invalid(sc_namespace_open(NULL, NULL, 0, 0, &ns));
    invalid(sc_namespace_open(rig.cache, NULL, 0, 0, NULL));
    for (uint64_t adapter = 1; adapter <= 100; adapter++) { /* the table grows on the way */
        for (uint64_t n = 1;; n++) {
            mark_unchanged();
            fail_alloc_arm(&rig.fa, n);
            sc_status status = sc_namespace_open(rig.cache, NULL, adapter, 0, &ns);
            if (!fail_alloc_disarm(&rig.fa)) {
                rig_ok(status);
                break;
            }
            ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
            check_unchanged();
        }
        (void)rig_lookup(&rig, tokens, 5);
    }
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_namespace_close__bad_args)
{
    start(1);
    invalid(sc_namespace_close(NULL, rig.ns));
    const sc_namespace bad[] = {
        {0, 0}, {rig.ns.id, rig.ns.generation + 1}, {UINT32_MAX, 1}, {2, 1}};
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(sc_namespace_close(rig.cache, bad[i]), SC_ERR_STALE);
    }
    rig_deinit(&rig);
}
END_TEST

/* ---- look-up, acquire ---- */

struct bad_key { sc_status want; sc_key key; };

static uint32_t bad_keys(struct bad_key *bad)
{
    static const sc_mark beyond = {20, {0}}, twice[] = {{3, {1}}, {3, {2}}};
    const sc_key good = rig_key(&rig, tokens, 20);
    for (uint32_t i = 0; i < 9; i++) bad[i] = (struct bad_key){SC_ERR_INVALID, good};
    bad[0].key.tokens = NULL;
    bad[1].key.token_count = 0;
    bad[2].key.token_count = UINT32_MAX;
    bad[3].key.len_max = 21;
    bad[4].key.ns.generation++;
    bad[4].want = SC_ERR_STALE;
    bad[5].key.ns.id = UINT32_MAX;
    bad[5].want = SC_ERR_STALE;
    bad[6].key.marks = &beyond;
    bad[6].key.mark_count = 1;
    bad[7].key.marks = twice;
    bad[7].key.mark_count = 2;
    bad[8].key.mark_count = 1;
    return 9;
}

START_TEST(sc_cache_lookup__bad_args)
{
    start(1);
    struct bad_key bad[10];
    sc_key keys[11];
    sc_answer answers[11];
    uint32_t count = bad_keys(bad);
    for (uint32_t i = 0; i < count; i++) keys[i] = bad[i].key;
    keys[count] = rig_key(&rig, tokens, 20);
    invalid(sc_cache_lookup(NULL, keys, 1, answers));
    invalid(sc_cache_lookup(rig.cache, NULL, 1, answers));
    invalid(sc_cache_lookup(rig.cache, keys, 1, NULL));
    rig_ok(sc_cache_lookup(rig.cache, NULL, 0, NULL));
    rig_ok(sc_cache_lookup(rig.cache, keys, count + 1, answers));
    for (uint32_t i = 0; i < count; i++) ck_assert_int_eq(answers[i].status, bad[i].want);
    ck_assert_int_eq(answers[count].status, SC_OK); /* its neighbours do it no harm */
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_lease_fork__bad_args)
{
    start(1);
    struct req req;
    sc_lease child = {0, 0};
    (void)req_open(&rig, &req, tokens, 20);
    invalid(sc_lease_fork(NULL, req.lease, -1, 1, &child));
    invalid(sc_lease_fork(rig.cache, req.lease, -1, 0, &child));
    invalid(sc_lease_fork(rig.cache, req.lease, -1, 1, NULL));
    ck_assert_uint_eq(child.id, 0);
    req_close(&rig, &req, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_lease_filled__bad_args)
{
    start(1);
    struct req req;
    int32_t ids[20] = {0};
    (void)req_open(&rig, &req, tokens, 20);
    invalid(sc_lease_filled(NULL, req.lease, ids, 20, NULL, 0));
    invalid(sc_lease_filled(rig.cache, req.lease, NULL, 20, NULL, 0));
    invalid(sc_lease_filled(rig.cache, req.lease, ids, 20, NULL, 1));
    req_close(&rig, &req, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_lease_append_marked__bad_args)
{
    start(1);
    struct req req;
    (void)req_open(&rig, &req, tokens, 20);
    invalid(sc_lease_append_marked(NULL, req.lease, tokens, 1, NULL, 0));
    invalid(sc_lease_append_marked(rig.cache, req.lease, NULL, 1, NULL, 0));
    invalid(sc_lease_append_marked(rig.cache, req.lease, tokens, 1, NULL, 1));
    const sc_mark marks[] = {{19, {0}}, {21, {0}}, {20, {0}}, {20, {0}}};
    invalid(sc_lease_append_marked(rig.cache, req.lease, tokens, 1, &marks[0], 1));
    invalid(sc_lease_append_marked(rig.cache, req.lease, tokens, 1, &marks[1], 1));
    invalid(sc_lease_append_marked(rig.cache, req.lease, tokens, 1, &marks[2], 2));
    invalid(sc_lease_append_marked(rig.cache, req.lease, NULL, 0, &marks[2], 1));
    ck_assert_uint_eq(rig_info(&rig, req.lease).token_count, 20);
    req_close(&rig, &req, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_lease_release_tail__bad_args)
{
    start(1);
    struct req req;
    (void)req_open(&rig, &req, tokens, 20);
    invalid(sc_lease_release_tail(NULL, req.lease, 0, SC_RELEASE_KEEP, -1));
    invalid(sc_lease_release_tail(rig.cache, req.lease, 0, (enum sc_release)7, -1));
    invalid(sc_lease_release_tail(rig.cache, req.lease, 0, SC_RELEASE_KEEP, -2));
    rig_ok(sc_lease_release_tail(rig.cache, req.lease, 0, SC_RELEASE_DISCARD, -1));
    req_forget(&rig, &req);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_acquire__bad_args)
{
    start(1);
    struct bad_key bad[10];
    sc_request requests[14];
    sc_lease leases[14];
    sc_status each[14], want[14];
    memset(requests, 0, sizeof requests);
    uint32_t count = bad_keys(bad);
    for (uint32_t i = 0; i < count; i++) {
        requests[i].key = bad[i].key;
        want[i] = bad[i].want;
    }
    for (uint32_t i = count; i < count + 4; i++) requests[i].key = rig_key(&rig, tokens, 20);
    requests[count].flags = 8;
    want[count++] = SC_ERR_INVALID;
    requests[count].depth = 2;
    want[count++] = SC_ERR_UNSUPPORTED;
    requests[count].reserved[5] = 1;
    want[count++] = SC_ERR_INVALID;
    invalid(sc_cache_acquire(NULL, requests, 1, 0, leases, each));
    invalid(sc_cache_acquire(rig.cache, NULL, 1, 0, leases, each));
    invalid(sc_cache_acquire(rig.cache, requests, 1, 0, NULL, each));
    invalid(sc_cache_acquire(rig.cache, requests, 1, 0, leases, NULL));
    rig_ok(sc_cache_acquire(rig.cache, NULL, 0, 0, NULL, NULL));
    mark_unchanged();
    rig_ok(sc_cache_acquire(rig.cache, requests, count, 0, leases, each));
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(each[i], want[i]);
        ck_assert_uint_eq(leases[i].id, 0);
    }
    check_unchanged();
    requests[count].depth = 1;
    rig_ok(sc_cache_acquire(rig.cache, requests + count - 1, 2, UINT64_MAX, leases, each));
    ck_assert_int_eq(each[1], SC_OK);
    rig_ok(sc_lease_release(rig.cache, leases[1], 0, SC_RELEASE_DISCARD));
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_acquire__each_allocation_fails)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.slots = 64;
    start_with(&options);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP); /* the table of leases starts empty */
    struct req all[40];
    uint64_t failures = 0;
    for (uint32_t i = 0; i < 40; i++) { /* it grows on the way */
        for (uint64_t n = 1;; n++) {
            mark_unchanged();
            fail_alloc_arm(&rig.fa, n);
            sc_status status = req_try(&rig, &all[i], tokens, 60 + i);
            if (!fail_alloc_disarm(&rig.fa)) {
                rig_ok(status);
                break;
            }
            failures++;
            ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
            check_unchanged();
        }
        rig_check_lease(&rig, &all[i]);
    }
    ck_assert_uint_gt(failures, 40 * 3);
    for (uint32_t i = 0; i < 40; i++) req_close(&rig, &all[i], 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_acquire__full_pool)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.slots = 1;
    start_with(&options);
    rig_ok(req_try(&rig, &a, tokens, 20));
    ck_assert_int_eq(req_try(&rig, &b, tokens, 20), SC_ERR_NO_SLOT);
    rig_verify(&rig);
    req_run(&rig, &a, 100); /* its save is skipped */
    ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_NO_SLOT], 1);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP); /* the working slot becomes the snapshot */
    ck_assert_uint_eq(rig_room(&rig).slots_evictable, 1);
    /* The only slot holds what the request would resume; it cannot be both pinned and written, and
     * nobody is there whose release would help: it starts cold. */
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 30), 0);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* ---- leases ---- */

/* Every call on a lease that reads, with a handle that is not alive. */
static void refuse_stale(sc_lease lease)
{
    sc_lease_info info;
    sc_history history[4];
    sc_kv_span spans[4];
    int32_t ids[4];
    uint32_t count = 0;
    mark_unchanged();
    ck_assert_int_eq(sc_lease_info_get(rig.cache, lease, &info), SC_ERR_STALE);
    ck_assert_int_eq(sc_lease_history(rig.cache, lease, history, 4, &count), SC_ERR_STALE);
    ck_assert_int_eq(sc_lease_kv_spans(rig.cache, lease, 0, spans, 4, &count), SC_ERR_STALE);
    ck_assert_int_eq(sc_lease_kv_ids(rig.cache, lease, 0, ids, 4, &count), SC_ERR_STALE);
    ck_assert_int_eq(sc_lease_adopt(rig.cache, lease, &count), SC_ERR_STALE);
    ck_assert_int_eq(sc_lease_append(rig.cache, lease, tokens, 1), SC_ERR_STALE);
    ck_assert_int_eq(sc_lease_release(rig.cache, lease, 0, SC_RELEASE_KEEP), SC_ERR_STALE);
    check_unchanged();
}

START_TEST(leases__stale_handles)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 20));
    sc_lease gone = a.lease;
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    refuse_stale(gone);
    rig_ok(req_try(&rig, &a, tokens, 20));
    refuse_stale(gone);
    refuse_stale((sc_lease){0, 0});
    refuse_stale((sc_lease){a.lease.id, a.lease.generation + 1});
    refuse_stale((sc_lease){UINT32_MAX, a.lease.generation});
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_lease_info_get__bad_args)
{
    start(1);
    sc_lease_info info;
    invalid(sc_lease_info_get(NULL, (sc_lease){1, 1}, &info));
    invalid(sc_lease_info_get(rig.cache, (sc_lease){1, 1}, NULL));
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_lease_history__bad_args)
{
    start(1);
    sc_history history;
    uint32_t count = 0;
    rig_ok(req_try(&rig, &a, tokens, 20));
    invalid(sc_lease_history(NULL, a.lease, &history, 1, &count));
    invalid(sc_lease_history(rig.cache, a.lease, NULL, 1, &count));
    invalid(sc_lease_history(rig.cache, a.lease, &history, 1, NULL));
    rig_ok(sc_lease_history(rig.cache, a.lease, NULL, 0, &count));
    ck_assert_uint_eq(count, 0);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_lease_kv_spans__bad_args)
{
    start(1);
    sc_kv_span span;
    uint32_t count = 0;
    rig_ok(req_try(&rig, &a, tokens, 20));
    invalid(sc_lease_kv_spans(NULL, a.lease, 0, &span, 1, &count));
    invalid(sc_lease_kv_spans(rig.cache, a.lease, 0, NULL, 1, &count));
    invalid(sc_lease_kv_spans(rig.cache, a.lease, 0, &span, 1, NULL));
    rig_ok(sc_lease_kv_spans(rig.cache, a.lease, 0, NULL, 0, &count));
    ck_assert_uint_eq(count, 0);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_lease_kv_ids__bad_args)
{
    start(1);
    int32_t id;
    uint32_t count = 0;
    rig_ok(req_try(&rig, &a, tokens, 20));
    invalid(sc_lease_kv_ids(NULL, a.lease, 0, &id, 1, &count));
    invalid(sc_lease_kv_ids(rig.cache, a.lease, 0, NULL, 1, &count));
    invalid(sc_lease_kv_ids(rig.cache, a.lease, 0, &id, 1, NULL));
    rig_ok(sc_lease_kv_ids(rig.cache, a.lease, UINT32_MAX, NULL, 0, &count));
    ck_assert_uint_eq(count, 0);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_lease_adopt__bad_args)
{
    start(1);
    uint32_t count = 0;
    rig_ok(req_try(&rig, &a, tokens, 20));
    invalid(sc_lease_adopt(NULL, a.lease, &count));
    invalid(sc_lease_adopt(rig.cache, a.lease, NULL));
    struct rig_step step = {.rows = {{&a, 20, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    ck_assert_int_eq(sc_lease_adopt(rig.cache, a.lease, &count), SC_ERR_STATE); /* it runs */
    rig_ok(sc_step_abort(rig.cache, step.number, false));
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_lease_append__bad_args_and_each_allocation_fails)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 20));
    invalid(sc_lease_append(NULL, a.lease, tokens, 1));
    invalid(sc_lease_append(rig.cache, a.lease, NULL, 1));
    rig_ok(sc_lease_append(rig.cache, a.lease, NULL, 0));
    uint64_t failures = 0;
    for (uint64_t n = 1;; n++) {
        mark_unchanged();
        fail_alloc_arm(&rig.fa, n);
        sc_status status = sc_lease_append(rig.cache, a.lease, tokens + 20, 480);
        if (!fail_alloc_disarm(&rig.fa)) {
            rig_ok(status);
            break;
        }
        failures++;
        ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
        ck_assert_uint_eq(rig_info(&rig, a.lease).token_count, 20);
        check_unchanged();
    }
    ck_assert_uint_gt(failures, 1);
    ck_assert_uint_eq(rig_info(&rig, a.lease).token_count, 500);
    req_tokens(&a, tokens + 20, 480);
    req_run(&rig, &a, 200);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_lease_release__bad_args)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 20));
    (void)req_step(&rig, &a, 16);
    mark_unchanged();
    invalid(sc_lease_release(NULL, a.lease, 0, SC_RELEASE_KEEP));
    invalid(sc_lease_release(rig.cache, a.lease, 0, (enum sc_release)2));
    invalid(sc_lease_release(rig.cache, a.lease, 17, SC_RELEASE_KEEP)); /* not committed */
    invalid(sc_lease_release(rig.cache, a.lease, UINT32_MAX, SC_RELEASE_DISCARD));
    check_unchanged();
    req_close(&rig, &a, 16, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* Where memory for keeping is short, the lease goes all the same and nothing leaks. */
START_TEST(sc_lease_release__each_allocation_fails)
{
    uint64_t failures = 0;
    for (uint64_t n = 1;; n++) {
        start(1);
        rig_ok(req_try(&rig, &a, tokens, 20));
        req_run(&rig, &a, 100);
        req_decode(&rig, &a, tokens + 20, 3);
        fail_alloc_arm(&rig.fa, n);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
        bool failed = fail_alloc_disarm(&rig.fa);
        rig_verify(&rig);
        ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_LIMIT], failed);
        ck_assert_uint_eq(rig_lookup(&rig, tokens, 30).state_len[SC_TIER_DEVICE], failed ? 20 : 23);
        rig_deinit(&rig);
        if (!failed) break;
        failures++;
    }
    ck_assert_uint_gt(failures, 0);
}
END_TEST

/* ---- steps ---- */

START_TEST(sc_step_plan__bad_args)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.cache.row_max = 2;
    start_with(&options);
    rig_ok(req_try(&rig, &a, tokens, 20));
    sc_row rows[3] = {
        {a.lease, 0, 20, NULL, 0, 0, NULL}, {a.lease, 0, 20, NULL, 0, 0, NULL},
        {a.lease, 0, 20, NULL, 0, 0, NULL}};
    sc_status each[3];
    sc_batch batch;
    mark_unchanged();
    invalid(sc_step_plan(NULL, 1, rows, 1, 0, &batch, each));
    invalid(sc_step_plan(rig.cache, 1, NULL, 1, 0, &batch, each));
    invalid(sc_step_plan(rig.cache, 1, rows, 0, 0, &batch, each));
    invalid(sc_step_plan(rig.cache, 1, rows, 1, 0, NULL, each));
    invalid(sc_step_plan(rig.cache, 1, rows, 1, 0, &batch, NULL));
    invalid(sc_step_plan(rig.cache, 0, rows, 1, 0, &batch, each));
    ck_assert_int_eq(sc_step_plan(rig.cache, 1, rows, 3, 0, &batch, each), SC_ERR_LIMIT);
    check_unchanged();
    rig_ok(sc_step_plan(rig.cache, 5, rows, 1, 0, &batch, each));
    mark_unchanged();
    ck_assert_int_eq(sc_step_plan(rig.cache, 6, rows, 1, 0, &batch, each), SC_ERR_BUSY);
    check_unchanged();
    rig_ok(sc_step_abort(rig.cache, 5, true));
    invalid(sc_step_plan(rig.cache, 5, rows, 1, 0, &batch, each)); /* not increasing */
    invalid(sc_step_plan(rig.cache, 4, rows, 1, 0, &batch, each));
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_step_plan__bad_rows)
{
    start(16);
    rig_ok(req_try(&rig, &a, tokens, 100));
    (void)req_step(&rig, &a, 32);
    static const uint32_t falling[] = {64, 48}, twice[] = {48, 48}, off_grid[] = {50},
        before[] = {32}, behind[] = {80, 112}, end_inside_page[] = {70};
    const struct { sc_row row; sc_status want; } bad[] = {
        {{{0, 0}, 32, 64, NULL, 0, 0, NULL}, SC_ERR_STALE},
        {{a.lease, 0, 64, NULL, 0, 0, NULL}, SC_ERR_MISMATCH},
        {{a.lease, 33, 64, NULL, 0, 0, NULL}, SC_ERR_MISMATCH},
        {{a.lease, UINT32_MAX, 64, NULL, 0, 0, NULL}, SC_ERR_MISMATCH},
        {{a.lease, 32, 32, NULL, 0, 0, NULL}, SC_ERR_INVALID},
        {{a.lease, 32, 31, NULL, 0, 0, NULL}, SC_ERR_INVALID},
        {{a.lease, 32, 101, NULL, 0, 0, NULL}, SC_ERR_INVALID},
        {{a.lease, 32, UINT32_MAX, NULL, 0, 0, NULL}, SC_ERR_INVALID},
        {{a.lease, 32, 100, NULL, 1, 0, NULL}, SC_ERR_INVALID},
        {{a.lease, 32, 100, falling, 2, 0, NULL}, SC_ERR_INVALID},
        {{a.lease, 32, 100, twice, 2, 0, NULL}, SC_ERR_INVALID},
        {{a.lease, 32, 100, off_grid, 1, 0, NULL}, SC_ERR_INVALID},
        {{a.lease, 32, 100, before, 1, 0, NULL}, SC_ERR_INVALID},
        {{a.lease, 32, 100, behind, 2, 0, NULL}, SC_ERR_INVALID},
        {{a.lease, 32, 70, end_inside_page, 1, 0, NULL}, SC_ERR_INVALID},
    };
    sc_lease_info lease_before = rig_info(&rig, a.lease);
    sc_room room_before = rig_room(&rig);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sc_batch batch;
        sc_status each = SC_OK;
        rig_ok(sc_step_plan(rig.cache, ++rig.step, &bad[i].row, 1, 0, &batch, &each));
        ck_assert_msg(each == bad[i].want, "row %zu: %s", i, sc_status_name(each));
        ck_assert_uint_eq(batch.token_count, 0);
        rig_ok(sc_step_commit(rig.cache, rig.step, NULL, 0, NULL));
        sc_lease_info lease_after = rig_info(&rig, a.lease);
        sc_room room_after = rig_room(&rig);
        ck_assert_mem_eq(&lease_before, &lease_after, sizeof lease_after);
        ck_assert_mem_eq(&room_before, &room_after, sizeof room_after);
        rig_verify(&rig);
    }
    req_run(&rig, &a, 100);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* An allocator that serves every large block from the same memory: 2^31 tokens that are all 0. */
enum { LARGE_BYTES = 4 << 20, ALIAS_BYTES = 16 << 20 };
static void *alias;

static void *alias_alloc(void *ctx, size_t bytes, size_t align)
{
    return bytes < LARGE_BYTES ? rig.fa.allocator.alloc(ctx, bytes, align)
                               : bytes <= ALIAS_BYTES ? alias : NULL;
}

static void alias_free(void *ctx, void *ptr, size_t bytes)
{
    if (bytes < LARGE_BYTES) rig.fa.allocator.free(ctx, ptr, bytes);
}

/* More than 2^31 - 1 tokens in one step: no kernel counts that far. */
START_TEST(sc_step_plan__token_overflow)
{
    enum { LEASES = 1024, TOKENS = 1 << 21 };
    static sc_row rows[LEASES];
    static sc_status each[LEASES];
    struct rig_options options = RIG_OPTIONS_INIT;
    sc_cache_options cache_options;
    sc_batch batch;
    options.slots = options.cache.row_max = LEASES;
    options.cache.save_flags = 0;
    options.cache.lease_token_max = TOKENS;
    options.cache.lease_max = LEASES;
    rig_init_pools(&rig, &options);
    int32_t *zeros = calloc(TOKENS, sizeof *zeros);
    alias = calloc(1, ALIAS_BYTES);
    ck_assert(alias && zeros);
    sc_allocator allocator = {rig.fa.allocator.ctx, alias_alloc, alias_free};
    rig_cache_options(&rig, &options, &cache_options);
    cache_options.allocator = &allocator;
    cache_options.policy = "lru"; /* hashes no prompts: 2^31 tokens take minutes under TSan */
    rig_ok(sc_cache_create(&cache_options, &rig.cache));
    rig_ok(sc_namespace_open(rig.cache, NULL, 0, 0, &rig.ns));
    sc_request request = {.key = rig_key(&rig, zeros, TOKENS)};
    for (uint32_t i = 0; i < LEASES; i++) {
        rows[i].to = TOKENS;
        rig_ok(sc_cache_acquire(rig.cache, &request, 1, 0, &rows[i].lease, each));
        ck_assert_int_eq(each[0], SC_OK);
    }
    rig_ok(sc_step_plan(rig.cache, 1, rows, LEASES, 0, &batch, each));
    for (uint32_t i = 0; i + 1 < LEASES; i++) ck_assert_int_eq(each[i], SC_OK);
    ck_assert_int_eq(each[LEASES - 1], SC_ERR_OVERFLOW); /* 2^31 tokens, one too many */
    ck_assert_uint_eq(batch.token_count, (LEASES - 1u) * TOKENS);
    rig_verify(&rig);
    rig_ok(sc_step_abort(rig.cache, 1, false));
    for (uint32_t i = 0; i < LEASES; i++) {
        rig_ok(sc_lease_release(rig.cache, rows[i].lease, 0, SC_RELEASE_DISCARD));
    }
    rig_deinit(&rig);
    free(alias);
    free(zeros);
}
END_TEST

START_TEST(sc_step_plan__allocates_nothing)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 200));
    uint32_t points[] = {16, 32, 48};
    struct rig_step step = {.rows = {{&a, 100, points, 3}}, .count = 1};
    fail_alloc_arm(&rig.fa, 1);
    rig_plan(&rig, &step);
    ck_assert_uint_eq(fail_alloc_calls(&rig.fa), 0);
    (void)fail_alloc_disarm(&rig.fa);
    rig_ok(sc_step_abort(rig.cache, step.number, false));
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_step_commit_saved__bad_args)
{
    sc_saved saved[2];
    uint32_t count = 77;
    start(16);
    rig_ok(req_try(&rig, &a, tokens, 40));
    struct rig_step step = {.rows = {{&a, 40, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    sc_result good = step.results[0], bad = good;
    bad.len = 39;
    mark_unchanged();
    invalid(sc_step_commit_saved(NULL, step.number, &good, 1, NULL, saved, 2, &count));
    invalid(sc_step_commit_saved(rig.cache, step.number, NULL, 1, NULL, saved, 2, &count));
    invalid(sc_step_commit_saved(rig.cache, step.number, &good, 1, NULL, NULL, 1, &count));
    invalid(sc_step_commit_saved(rig.cache, step.number, &good, 1, NULL, saved, 2, NULL));
    ck_assert_int_eq(sc_step_commit_saved(rig.cache, step.number, &bad, 1, NULL, saved, 2, &count),
        SC_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "length 39, granted was 40"));
    ck_assert_int_eq(
        sc_step_commit_saved(rig.cache, step.number + 1, &good, 1, NULL, saved, 2, &count),
        SC_ERR_NOT_FOUND);
    ck_assert_uint_eq(count, 77);
    check_unchanged();
    rig_commit(&rig, &step);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_step_commit__bad_args)
{
    start(16);
    rig_ok(req_try(&rig, &a, tokens, 40));
    rig_ok(req_try(&rig, &b, tokens + 100, 40));
    struct rig_step step = {.rows = {{&a, 40, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    sc_result good = step.results[0];
    int32_t negative[2] = {1, -1};
    sc_result bad[8] = {good, good, good, good, good, good, good, good};
    static const sc_status want[8] = {SC_ERR_STALE, SC_ERR_STALE, SC_ERR_MISMATCH, SC_ERR_MISMATCH,
        SC_ERR_MISMATCH, SC_ERR_INVALID, SC_ERR_INVALID, SC_ERR_MISMATCH};
    bad[0].lease = b.lease; /* alive, not in the step */
    bad[1].lease.generation++;
    bad[2].len = 39;
    bad[3].kv_count = 1;
    bad[4].kv_count = 3;
    bad[5].kv_ids = NULL;
    bad[6].kv_ids = negative;
    bad[7].len = UINT32_MAX;
    mark_unchanged();
    invalid(sc_step_commit(NULL, step.number, &good, 1, NULL));
    invalid(sc_step_commit(rig.cache, step.number, NULL, 1, NULL));
    invalid(sc_step_commit(rig.cache, step.number, NULL, 0, NULL)); /* a row has no result */
    ck_assert_int_eq(sc_step_commit(rig.cache, step.number + 1, &good, 1, NULL), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_step_commit(rig.cache, 0, &good, 1, NULL), SC_ERR_NOT_FOUND);
    for (uint32_t i = 0; i < 8; i++) {
        sc_status each = SC_OK;
        ck_assert_int_eq(sc_step_commit(rig.cache, step.number, &bad[i], 1, &each), want[i]);
        ck_assert_int_eq(each, want[i]);
        check_unchanged();
    }
    sc_result both[2] = {good, good};
    invalid(sc_step_commit(rig.cache, step.number, both, 2, NULL));
    check_unchanged();
    ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_RUNNING);
    rig_commit(&rig, &step);
    ck_assert_int_eq(sc_step_commit(rig.cache, step.number, &good, 1, NULL), SC_ERR_NOT_FOUND);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* A commit that runs out of memory either changes nothing, or costs no more than a save. */
START_TEST(sc_step_commit__each_allocation_fails)
{
    uint64_t refused = 0, skipped = 0;
    for (uint64_t n = 1;; n++) {
        start(_i ? 16 : 1);
        (void)rig_serve(&rig, tokens, 48, 100, SC_RELEASE_KEEP);
        rig_ok(req_try(&rig, &a, tokens, 160));
        rig_ok(req_try(&rig, &b, tokens, 144));
        uint32_t points[] = {64, 112};
        struct rig_step step = {.rows = {{&a, 160, points, 2}, {&b, 144, points, 2}}, .count = 2};
        rig_plan(&rig, &step);
        rig_forward(&rig, &step);
        mark_unchanged();
        fail_alloc_arm(&rig.fa, n);
        sc_status status = sc_step_commit(rig.cache, step.number, step.results, 2, NULL);
        bool failed = fail_alloc_disarm(&rig.fa);
        if (status != SC_OK) {
            ck_assert(failed);
            ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
            check_unchanged();
            refused++;
            rig_commit(&rig, &step); /* tried again */
            ck_assert_uint_eq(rig_stats(&rig).saves_skipped[SC_SKIP_LIMIT], 0);
        } else {
            rig_committed(&rig, &step);
            bool lost = rig_stats(&rig).saves_skipped[SC_SKIP_LIMIT] > 0;
            ck_assert(lost == failed);
            skipped += lost;
        }
        rig_verify(&rig);
        rig_check_lease(&rig, &a);
        rig_check_lease(&rig, &b);
        req_decode(&rig, &a, tokens + 160, 20);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
        req_close(&rig, &b, 0, SC_RELEASE_KEEP);
        rig_deinit(&rig);
        if (!failed) break;
    }
    ck_assert_uint_gt(refused, 2);
    ck_assert_uint_gt(skipped, 2);
}
END_TEST

START_TEST(sc_step_abort__bad_args)
{
    start(1);
    invalid(sc_step_abort(NULL, 1, false));
    ck_assert_int_eq(sc_step_abort(rig.cache, 1, false), SC_ERR_NOT_FOUND);
    rig_ok(req_try(&rig, &a, tokens, 40));
    struct rig_step step = {.rows = {{&a, 40, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    mark_unchanged();
    ck_assert_int_eq(sc_step_abort(rig.cache, step.number + 1, true), SC_ERR_NOT_FOUND);
    check_unchanged();
    fail_alloc_arm(&rig.fa, 1);
    rig_ok(sc_step_abort(rig.cache, step.number, true));
    ck_assert_uint_eq(fail_alloc_calls(&rig.fa), 0);
    (void)fail_alloc_disarm(&rig.fa);
    ck_assert_int_eq(sc_step_abort(rig.cache, step.number, true), SC_ERR_NOT_FOUND);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* ---- the rest ---- */

START_TEST(sc_cache_poll__bad_args)
{
    start(1);
    sc_done done;
    uint32_t count = 5;
    invalid(sc_cache_poll(NULL, &done, 1, &count));
    invalid(sc_cache_poll(rig.cache, NULL, 1, &count));
    invalid(sc_cache_poll(rig.cache, &done, 1, NULL));
    rig_ok(sc_cache_poll(rig.cache, &done, 1, &count));
    ck_assert_uint_eq(count, 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_apply__bad_args)
{
    start(1);
    sc_done done = {1, SC_OK};
    invalid(sc_cache_apply(NULL, &done, 1, 0));
    invalid(sc_cache_apply(rig.cache, NULL, 1, 0));
    rig_ok(sc_cache_apply(rig.cache, NULL, 0, 0));
    ck_assert_int_eq(sc_cache_apply(rig.cache, &done, 1, 0), SC_ERR_NOT_FOUND);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_room__bad_args)
{
    start(1);
    sc_room room;
    invalid(sc_cache_room(NULL, &room));
    invalid(sc_cache_room(rig.cache, NULL));
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_evict__bad_args_and_no_memory)
{
    start(1);
    sc_room got;
    invalid(sc_cache_evict(NULL, 1, 1, &got));
    invalid(sc_cache_evict(rig.cache, 1, 1, NULL));
    rig_ok(sc_cache_evict(rig.cache, 1, 1, &got)); /* nothing there: an answer */
    ck_assert_uint_eq(got.slots_free, 0);
    (void)rig_serve(&rig, tokens, 100, 100, SC_RELEASE_KEEP);
    fail_alloc_arm(&rig.fa, 1);
    rig_ok(sc_cache_evict(rig.cache, UINT32_MAX, UINT32_MAX, &got));
    ck_assert_uint_eq(fail_alloc_calls(&rig.fa), 0); /* it needs none */
    (void)fail_alloc_disarm(&rig.fa);
    ck_assert_uint_eq(got.pages_drainable, 100);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_trim__bad_args)
{
    start(1);
    uint64_t bytes = 1;
    invalid(sc_cache_trim(NULL, 1, &bytes));
    rig_ok(sc_cache_trim(rig.cache, 0, NULL));
    rig_ok(sc_cache_trim(rig.cache, UINT64_MAX, &bytes));
    ck_assert_uint_eq(bytes, 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_drain__bad_args)
{
    start(1);
    int32_t id;
    uint32_t count = 3;
    invalid(sc_cache_drain(NULL, &id, 1, &count));
    invalid(sc_cache_drain(rig.cache, NULL, 1, &count));
    invalid(sc_cache_drain(rig.cache, &id, 1, NULL));
    rig_ok(sc_cache_drain(rig.cache, &id, 1, &count));
    ck_assert_uint_eq(count, 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_stats_get__bad_args)
{
    start(1);
    sc_cache_stats stats = {.struct_size = sizeof stats};
    invalid(sc_cache_stats_get(NULL, &stats));
    invalid(sc_cache_stats_get(rig.cache, NULL));
    stats.struct_size = 0;
    invalid(sc_cache_stats_get(rig.cache, &stats));
    stats.struct_size = SIZE_MAX;
    invalid(sc_cache_stats_get(rig.cache, &stats));
    rig_deinit(&rig);
}
END_TEST

static void no_line(void *ctx, const char *line)
{
    (void)ctx;
    (void)line;
}

START_TEST(sc_cache_verify_and_dump__bad_args)
{
    start(1);
    invalid(sc_cache_verify(NULL));
    invalid(sc_cache_dump(NULL, rig.ns, no_line, NULL));
    invalid(sc_cache_dump(rig.cache, rig.ns, NULL, NULL));
    ck_assert_int_eq(sc_cache_dump(rig.cache, (sc_namespace){9, 9}, no_line, NULL), SC_ERR_STALE);
    ck_assert_ptr_nonnull(sc_reason_text((sc_reason)-1));
    ck_assert_ptr_nonnull(sc_reason_text(SC_REASON_COUNT));
    rig_deinit(&rig);
}
END_TEST

static void add_calls(TCase *tc)
{
    tcase_add_test(tc, sc_cache_create__bad_args);
    tcase_add_test(tc, sc_cache_create__older_struct);
    tcase_add_loop_test(tc, sc_cache_create__each_allocation_fails, 0, 2);
    tcase_add_test(tc, sc_cache_destroy__null_and_busy);
    tcase_add_test(tc, sc_namespace_open__bad_args_and_each_allocation_fails);
    tcase_add_test(tc, sc_namespace_close__bad_args);
    tcase_add_test(tc, sc_cache_lookup__bad_args);
    tcase_add_test(tc, sc_cache_acquire__bad_args);
    tcase_add_test(tc, sc_lease_fork__bad_args);
    tcase_add_test(tc, sc_lease_filled__bad_args);
    tcase_add_test(tc, sc_lease_append_marked__bad_args);
    tcase_add_test(tc, sc_lease_release_tail__bad_args);
    tcase_add_test(tc, sc_cache_acquire__each_allocation_fails);
    tcase_add_test(tc, sc_cache_acquire__full_pool);
    tcase_add_test(tc, sc_cache_poll__bad_args);
    tcase_add_test(tc, sc_cache_apply__bad_args);
    tcase_add_test(tc, sc_cache_room__bad_args);
    tcase_add_test(tc, sc_cache_evict__bad_args_and_no_memory);
    tcase_add_test(tc, sc_cache_drain__bad_args);
    tcase_add_test(tc, sc_cache_trim__bad_args);
    tcase_add_test(tc, sc_cache_stats_get__bad_args);
    tcase_add_test(tc, sc_cache_verify_and_dump__bad_args);
}

static void add_leases(TCase *tc)
{
    tcase_add_test(tc, leases__stale_handles);
    tcase_add_test(tc, sc_lease_info_get__bad_args);
    tcase_add_test(tc, sc_lease_history__bad_args);
    tcase_add_test(tc, sc_lease_kv_spans__bad_args);
    tcase_add_test(tc, sc_lease_kv_ids__bad_args);
    tcase_add_test(tc, sc_lease_adopt__bad_args);
    tcase_add_test(tc, sc_lease_append__bad_args_and_each_allocation_fails);
    tcase_add_test(tc, sc_lease_release__bad_args);
    tcase_add_test(tc, sc_lease_release__each_allocation_fails);
    tcase_add_test(tc, sc_step_plan__bad_args);
    tcase_add_test(tc, sc_step_plan__bad_rows);
    tcase_add_test(tc, sc_step_plan__token_overflow);
    tcase_add_test(tc, sc_step_plan__allocates_nothing);
    tcase_add_test(tc, sc_step_commit__bad_args);
    tcase_add_test(tc, sc_step_commit_saved__bad_args);
    tcase_add_loop_test(tc, sc_step_commit__each_allocation_fails, 0, 2);
    tcase_add_test(tc, sc_step_abort__bad_args);
}

int main(void)
{
    Suite *suite = suite_create("engine_args");
    TCase *tc = tcase_create("args");
    tcase_set_timeout(tc, 240);
    add_calls(tc);
    add_leases(tc);
    suite_add_tcase(suite, tc);
    return rig_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Each call to the system and to LMDB, and each allocation, made to fail once: no abort, no leak,
 * and afterwards exactly those records are there that were said to be, bit for bit. */
#include <lmdb.h>

#include "tier_suite.h"

enum { RECORDS = 4, BYTES = 40000 };

struct outcome {
    bool opened;
    bool stored[RECORDS]; /* acknowledged, and not dropped since */
    uint64_t evicted_count;
};

static bool is_allowed(sc_status status)
{
    return status == SC_OK || status == SC_ERR_IO || status == SC_ERR_LIMIT ||
        status == SC_ERR_NO_MEMORY || status == SC_ERR_BUSY || status == SC_ERR_CORRUPT ||
        status == SC_ERR_NOT_FOUND || status == SC_ERR_UNSUPPORTED;
}

static void check(sc_status status)
{
    ck_assert_msg(is_allowed(status), "%s: %s", sc_status_name(status), sc_last_error()->text);
}

static void read_all(struct sc_store *store, const struct outcome *outcome)
{
    for (uint32_t i = 0; i < RECORDS; i++) {
        enum sc_store_reason reason = SC_STORE_FAILED;
        bool same = false;
        sc_status status = tier_get(store, i / 2, 20 + i % 2 * 20, BYTES, &reason, &same);
        check(status);
        /* what reads reads right; what does not says so */
        if (status == SC_OK && reason == SC_STORE_HIT) ck_assert(same);
        if (reason == SC_STORE_HIT) ck_assert(outcome->stored[i] || status != SC_OK || same);
    }
}

static void walk(struct sc_store *store)
{
    struct sc_store_iter *iter = NULL;
    struct sc_store_edge edge;
    sc_status status = sc_store_iter_open(store, &iter);
    check(status);
    if (status != SC_OK) return;
    for (uint32_t failures = 0; status != SC_ERR_NOT_FOUND && failures < 3;) {
        status = sc_store_iter_next(iter, &edge);
        check(status);
        failures += status != SC_OK;
    }
    sc_store_iter_close(iter);
}

/* Stores, reads, evicts, walks, verifies: every call site. */
static void scenario(const struct sc_store_options *options, struct outcome *outcome)
{
    struct sc_store *store = NULL;
    sc_status status = sc_store_open(options, &store);
    check(status);
    outcome->opened = status == SC_OK;
    if (status != SC_OK) return;
    for (uint32_t i = 0; i < RECORDS; i++) {
        status = tier_put(store, i / 2, 20 + i % 2 * 20, i % 2 * 20, BYTES);
        check(status);
        outcome->stored[i] = outcome->stored[i] || status == SC_OK;
    }
    read_all(store, outcome);
    walk(store);
    struct sc_store_info info;
    struct tier_key key;
    struct sc_store_verify_result result;
    struct sc_store_gc gc;
    tier_key_init(&key, 0, 20); /* one with a child: leaves an edge */
    if (tier_find(store, &key, &info) == SC_STORE_HIT) {
        status = sc_store_drop(store, info.id);
        check(status);
        if (status == SC_OK) outcome->stored[0] = false;
        else if (tier_find(store, &key, NULL) != SC_STORE_HIT) outcome->stored[0] = false;
    }
    check(sc_store_verify(store, true, NULL, NULL, &result));
    check(sc_store_gc(store, &gc));
    read_all(store, outcome);
    struct sc_store_stats stats;
    status = sc_store_stats_get(store, &stats);
    check(status);
    outcome->evicted_count = status == SC_OK ? stats.evicted_count : RECORDS;
    sc_store_close(store);
}

/* Afterwards, without failures: what was acknowledged is there, but for what was evicted, since a
 * full disk or map makes records go. */
static void expect_outcome(const struct sc_store_options *options, const struct outcome *outcome)
{
    struct sc_store_options plain = *options;
    plain.faults = NULL;
    struct sc_store *store = tier_open(&plain);
    (void)tier_verify(store);
    uint64_t missing = 0;
    for (uint32_t i = 0; i < RECORDS; i++) {
        if (!outcome->stored[i]) continue;
        if (tier_reason(store, i / 2, 20 + i % 2 * 20) == SC_STORE_ABSENT) {
            missing++;
        } else {
            tier_expect(store, i / 2, 20 + i % 2 * 20, BYTES);
        }
    }
    ck_assert_uint_le(missing, outcome->evicted_count);
    ck_assert_int_eq(tier_put(store, 500, 20, 0, BYTES), SC_OK);
    tier_expect(store, 500, 20, BYTES);
    ck_assert_uint_eq(tier_stats(store).pending_bytes, 0);
    sc_store_close(store);
}

/* One run for each call of `what` (NULL: any); returns how many there are. */
static uint64_t fail_each(struct sc_store_options *options, const char *what, int code)
{
    struct fail_alloc fa;
    struct tier_fail fail;
    fail_alloc_init(&fa);
    tier_fail_init(&fail);
    options->allocator = &fa.allocator;
    options->faults = &fail.faults;
    for (uint64_t n = 1;; n++) {
        struct outcome outcome;
        memset(&outcome, 0, sizeof outcome);
        tier_fail_arm(&fail, what, n, code);
        scenario(options, &outcome);
        bool hit = tier_fail_disarm(&fail);
        ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
        if (!hit) return n - 1;
        expect_outcome(options, &outcome);
        tier_folder_remove(folder);
        ck_assert_int_eq(mkdir(folder, 0700), 0);
    }
}

static const int codes[] = {EIO, ENOSPC, ENOMEM, SC_TIER_FAULT_SHORT, MDB_MAP_FULL,
    MDB_READERS_FULL};
enum { CODES = sizeof codes / sizeof codes[0] };

START_TEST(faults__every_call_failing_once)
{
    struct sc_store_options options = tier_options(folder);
    options.uring = SC_STORE_OFF;
    ck_assert_uint_gt(fail_each(&options, NULL, codes[_i]), 100);
}
END_TEST

START_TEST(faults__every_call_of_the_ring_failing_once)
{
    struct sc_store_options options = tier_options(folder);
    options.uring = SC_STORE_ON;
    ck_assert_uint_gt(fail_each(&options, "uring write", codes[_i]), RECORDS);
    ck_assert_uint_gt(fail_each(&options, "uring read", codes[_i]), RECORDS);
}
END_TEST

START_TEST(faults__every_allocation_failing_once)
{
    struct fail_alloc fa;
    struct sc_store_options options = tier_options(folder);
    fail_alloc_init(&fa);
    options.allocator = &fa.allocator;
    options.uring = _i ? SC_STORE_ON : SC_STORE_OFF;
    for (uint64_t n = 1;; n++) {
        struct outcome outcome;
        memset(&outcome, 0, sizeof outcome);
        fail_alloc_arm(&fa, n);
        scenario(&options, &outcome);
        bool failed = fail_alloc_disarm(&fa);
        ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
        if (!failed) {
            ck_assert_uint_gt(n, 50);
            break;
        }
        expect_outcome(&options, &outcome);
        tier_folder_remove(folder);
        ck_assert_int_eq(mkdir(folder, 0700), 0);
    }
}
END_TEST

/* Report 99: a store that failed is never a hit; report 102: and holds nothing. */
START_TEST(report_99__a_failed_store_is_no_record)
{
    static const char *const calls[4] = {"pwrite", "fdatasync", "mdb_put", "mdb_txn_commit"};
    struct tier_fail fail;
    struct sc_store_options options = tier_options(folder);
    tier_fail_init(&fail);
    options.faults = &fail.faults;
    options.uring = SC_STORE_OFF;
    struct sc_store *store = tier_open(&options);
    ck_assert_int_eq(tier_put(store, 1, 20, 0, BYTES), SC_OK);
    uint64_t used = tier_stats(store).used_bytes;
    for (uint32_t i = 0; i < 4; i++) {
        tier_fail_arm(&fail, calls[i], 1, EIO);
        ck_assert_int_eq(tier_put(store, 2, 20, 0, BYTES), SC_ERR_IO);
        ck_assert(tier_fail_disarm(&fail));
        ck_assert_int_eq(tier_reason(store, 2, 20), SC_STORE_ABSENT);
        ck_assert_uint_eq(tier_stats(store).used_bytes, used);
        ck_assert_uint_eq(tier_stats(store).pending_bytes, 0);
    }
    ck_assert_int_eq(tier_put(store, 2, 20, 0, BYTES), SC_OK);
    ck_assert_uint_eq(tier_verify(store), 2);
    sc_store_close(store);
}
END_TEST

/* A store's name is on disk before anything is stored in it, also when who made it has not come as
 * far as that. 0: the folder's own entries; 1: its entry in the folder above. */
START_TEST(open__the_name_of_a_new_store_is_synced_by_who_opens_it)
{
    struct tier_fail fail;
    struct sc_store *store = NULL;
    struct sc_store_options options = tier_options(folder);
    tier_fail_init(&fail);
    options.faults = &fail.faults;
    for (uint32_t i = 0; i < 3; i++) {
        tier_fail_arm(&fail, "fsync folder", 1 + (uint32_t)_i, EIO);
        ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_IO);
        ck_assert(tier_fail_disarm(&fail));
    }
    store = tier_open(&options);
    ck_assert_int_eq(tier_put(store, 1, 20, 0, BYTES), SC_OK);
    sc_store_close(store);
}
END_TEST

/* What was written before a sync that failed is not stored, committed together or later: the next
 * sync would succeed and say nothing about it. */
START_TEST(commit__a_failed_sync_is_not_made_good_by_the_next)
{
    struct tier_fail fail;
    struct sc_store_options options = tier_options(folder);
    struct sc_store_put *puts[RECORDS] = {NULL};
    sc_status each[RECORDS];
    static uint8_t payload[BYTES];
    tier_fail_init(&fail);
    options.faults = &fail.faults;
    struct sc_store *store = tier_open(&options);
    for (uint32_t i = 0; i < RECORDS; i++) {
        struct tier_key key;
        tier_key_init(&key, i, 20);
        struct sc_store_record record = tier_record(&key);
        struct sc_store_payload what = {payload, BYTES, 0, BYTES, 1, 0};
        ck_assert_int_eq(sc_store_begin(store, &record, false, &puts[i]), SC_OK);
        ck_assert_int_eq(sc_store_shard(store, puts[i], 0, &what, 0), SC_OK);
    }
    tier_fail_arm(&fail, "fdatasync", 1, EIO);
    ck_assert_int_eq(sc_store_commit(store, puts, 2, 0, each), SC_OK);
    ck_assert(tier_fail_disarm(&fail));
    ck_assert_int_eq(sc_store_commit(store, puts + 2, RECORDS - 2, 0, each + 2), SC_OK);
    for (uint32_t i = 0; i < RECORDS; i++) ck_assert_int_eq(each[i], SC_ERR_IO);
    ck_assert_uint_eq(tier_stats(store).used_bytes + tier_stats(store).pending_bytes, 0);
    for (uint32_t i = 0; i < RECORDS; i++) {
        ck_assert_int_eq(tier_put(store, i, 20, 0, BYTES), SC_OK);
    }
    ck_assert_uint_eq(tier_verify(store), RECORDS);
    sc_store_close(store);
}
END_TEST

/* Report 102: one write in ten fails; the free space at the end is that of the beginning. */
START_TEST(report_102__failed_writes_give_their_blocks_back)
{
    struct tier_fail fail;
    struct sc_store_options options = tier_options(folder);
    tier_fail_init(&fail);
    options.faults = &fail.faults;
    options.uring = _i ? SC_STORE_ON : SC_STORE_OFF;
    struct sc_store *store = tier_open(&options);
    uint32_t failed = 0;
    for (uint32_t i = 0; i < 200; i++) {
        if (i % 10 == 3) tier_fail_arm(&fail, _i ? "uring write" : "pwrite", 2, EIO);
        sc_status status = tier_put(store, i, 20, 0, BYTES);
        (void)tier_fail_disarm(&fail);
        ck_assert_int_eq(status, i % 10 == 3 ? SC_ERR_IO : SC_OK);
        failed += status != SC_OK;
        if (status != SC_OK) ck_assert_int_eq(tier_reason(store, i, 20), SC_STORE_ABSENT);
    }
    ck_assert_uint_eq(failed, 20);
    ck_assert_uint_eq(tier_stats(store).pending_bytes, 0);
    ck_assert_uint_eq(tier_stats(store).used_bytes, tier_stats(store).record_count * 40960);
    ck_assert_int_eq(sc_store_evict(store, UINT64_MAX / 2, NULL), SC_OK);
    ck_assert_uint_eq(tier_stats(store).used_bytes, 0);
    sc_store_close(store);
}
END_TEST

/* Half of the transfers are done at once, before those that were sent first have ended. */
static int some_short(void *ctx, const char *what)
{
    _Atomic uint64_t *calls = ctx;
    if (strncmp(what, "uring", 5) != 0) return 0;
    return sc_mix64(atomic_fetch_add(calls, 1)) % 2 ? SC_TIER_FAULT_SHORT : 0;
}

/* Many more chunks than may be on their way: the check is that of the payload in its order. */
START_TEST(payload__chunks_that_end_in_any_order_are_checked_in_theirs)
{
    _Atomic uint64_t calls = 0;
    struct sc_tier_faults faults = {some_short, (void *)&calls};
    struct sc_store_options options = tier_options(folder), plain = options;
    options.chunk_bytes = 4096;
    options.uring = SC_STORE_ON;
    options.faults = &faults;
    plain.uring = SC_STORE_OFF;
    for (uint32_t i = 0; i < 8; i++) {
        uint64_t bytes = 900000 + 1237 * i; /* some 220 chunks */
        struct sc_store *store = tier_open(i % 2 ? &options : &plain);
        ck_assert_int_eq(tier_put(store, i, 20, 0, bytes), SC_OK);
        sc_store_close(store);
        store = tier_open(i % 2 ? &plain : &options);
        tier_expect(store, i, 20, bytes);
        sc_store_close(store);
        store = tier_open(&options);
        tier_expect(store, i, 20, bytes);
        sc_store_close(store);
    }
    ck_assert_uint_gt(atomic_load(&calls), 8 * 220);
}
END_TEST

/* A read error is a miss; the record and the others stay. */
START_TEST(read__an_error_of_the_disk_is_a_miss)
{
    struct tier_fail fail;
    struct sc_store_options options = tier_options(folder);
    enum sc_store_reason reason;
    bool same;
    tier_fail_init(&fail);
    options.faults = &fail.faults;
    options.uring = _i ? SC_STORE_ON : SC_STORE_OFF;
    struct sc_store *store = tier_open(&options);
    ck_assert_int_eq(tier_put(store, 1, 20, 0, BYTES), SC_OK);
    ck_assert_int_eq(tier_put(store, 2, 20, 0, BYTES), SC_OK);
    for (uint64_t n = 1; n <= 3; n++) {
        tier_fail_arm(&fail, _i ? "uring read" : "pread", n, EIO);
        ck_assert_int_eq(tier_get(store, 1, 20, BYTES, &reason, &same), SC_ERR_IO);
        ck_assert(tier_fail_disarm(&fail));
    }
    ck_assert_uint_eq(tier_stats(store).io_error_count, 3);
    tier_fail_arm(&fail, _i ? "uring read" : "pread", 1, SC_TIER_FAULT_SHORT);
    tier_expect(store, 1, 20, BYTES);
    ck_assert(tier_fail_disarm(&fail));
    tier_expect(store, 2, 20, BYTES);
    sc_store_close(store);
}
END_TEST

TIER_MAIN("tier/faults", 300,
    {faults__every_call_failing_once, CODES},
    {faults__every_call_of_the_ring_failing_once, CODES},
    {faults__every_allocation_failing_once, 2},
    {open__the_name_of_a_new_store_is_synced_by_who_opens_it, 2},
    {report_99__a_failed_store_is_no_record, 0},
    {commit__a_failed_sync_is_not_made_good_by_the_next, 0},
    {report_102__failed_writes_give_their_blocks_back, 2},
    {payload__chunks_that_end_in_any_order_are_checked_in_theirs, 0},
    {read__an_error_of_the_disk_is_a_miss, 2})

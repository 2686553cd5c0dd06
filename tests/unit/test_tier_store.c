/* SPDX-License-Identifier: Apache-2.0 */
/* The disk store: what is stored comes back, also after a restart, whichever way it does its I/O;
 * what does not fit is a miss that says so. */
#include <math.h>
#include <sys/wait.h>

#include "tier_suite.h"

/* Plain, io_uring, plain and direct, both: those that work here. */
static struct sc_store_options way(int i)
{
    struct sc_store_options options = tier_options(folder);
    options.uring = i & 1 ? SC_STORE_ON : SC_STORE_OFF;
    options.direct = i & 2 ? SC_STORE_ON : SC_STORE_OFF;
    return options;
}

static bool works(const struct sc_store_options *options, struct sc_store **store_out)
{
    sc_status status = sc_store_open(options, store_out);
    if (status == SC_ERR_UNSUPPORTED) {
        (void)printf("skipped here: %s\n", sc_last_error()->text);
        return false;
    }
    ck_assert_msg(status == SC_OK, "%s", sc_last_error()->text);
    return true;
}

static const uint32_t sizes[] = {1, 511, 512, 513, 4095, 4096, 4097, 16384, 16385, 98304, 300001};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* Report 112: sizes that no disk likes. */
START_TEST(report_112__payloads_of_every_odd_size)
{
    struct sc_store_options options = way(_i);
    struct sc_store *store = NULL;
    if (!works(&options, &store)) return;
    ck_assert(tier_stats(store).uring == ((_i & 1) != 0));
    ck_assert(tier_stats(store).direct == ((_i & 2) != 0));
    for (uint32_t i = 0; i < SIZES; i++) {
        ck_assert_int_eq(tier_put(store, i, 64, 0, sizes[i]), SC_OK);
    }
    for (uint32_t i = 0; i < SIZES; i++) tier_expect(store, i, 64, sizes[i]);
    sc_store_close(store);
    store = tier_open(&options);
    for (uint32_t i = 0; i < SIZES; i++) tier_expect(store, i, 64, sizes[i]);
    ck_assert_uint_eq(tier_verify(store), SIZES);
    sc_store_close(store);
}
END_TEST

/* A store written one way is read every other way. */
START_TEST(open__any_way_of_io_reads_any_other)
{
    for (int writer = 0; writer < 4; writer++) {
        struct sc_store_options options = way(writer);
        struct sc_store *store = NULL;
        if (!works(&options, &store)) continue;
        ck_assert_int_eq(tier_put(store, (uint32_t)writer, 10, 0, 50000), SC_OK);
        sc_store_close(store);
    }
    for (int reader = 0; reader < 4; reader++) {
        struct sc_store_options options = way(reader);
        struct sc_store *store = NULL;
        if (!works(&options, &store)) continue;
        for (uint32_t writer = 0; writer < 2; writer++) tier_expect(store, writer, 10, 50000);
        sc_store_close(store);
    }
}
END_TEST

/* Report 113: sizes that are not aligned are no reason to refuse. */
START_TEST(report_113__an_odd_size_opens_in_both_modes)
{
    for (int i = 0; i < 4; i += 2) {
        struct sc_store_options options = way(i);
        struct sc_store *store = NULL;
        if (!works(&options, &store)) continue;
        ck_assert_int_eq(tier_put(store, (uint32_t)i, 32, 0, 3098112), SC_OK);
        tier_expect(store, (uint32_t)i, 32, 3098112);
        sc_store_close(store);
    }
}
END_TEST

/* Visible once every shard is complete, and not before. */
START_TEST(commit__refuses_a_record_that_lacks_a_shard)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    const sc_shard halves[2] = {{0, 2, 0, 1, 0, 0}, {1, 2, 0, 1, 0, 0}};
    struct sc_store_put *puts[2] = {NULL, NULL};
    sc_status each[2] = {SC_OK, SC_OK};
    uint8_t bytes[9000] = {1};
    struct sc_store_payload payload = {bytes, 9000, 0, 9000, 1, 0};
    struct tier_key half, whole;
    tier_key_init(&half, 1, 50);
    tier_key_init(&whole, 2, 50);
    struct sc_store_record record = tier_record(&half), other = tier_record(&whole);
    record.shards = halves;
    record.shard_count = 2;
    ck_assert_int_eq(sc_store_begin(store, &record, false, &puts[0]), SC_OK);
    ck_assert_int_eq(sc_store_shard(store, puts[0], 1, &payload, 0), SC_OK);
    ck_assert_int_eq(sc_store_begin(store, &other, false, &puts[1]), SC_OK);
    ck_assert_int_eq(sc_store_shard(store, puts[1], 0, &payload, 0), SC_OK);
    ck_assert_uint_eq(tier_stats(store).pending_bytes, 2 * 12288);
    ck_assert_int_eq(sc_store_commit(store, puts, 2, 0, each), SC_OK);
    ck_assert_int_eq(each[0], SC_ERR_STATE);
    ck_assert_int_eq(each[1], SC_OK);
    ck_assert_int_eq(tier_find(store, &half, NULL), SC_STORE_ABSENT);
    ck_assert_int_eq(tier_find(store, &whole, NULL), SC_STORE_HIT);
    ck_assert_uint_eq(tier_stats(store).pending_bytes, 0);
    ck_assert_uint_eq(tier_stats(store).used_bytes, 12288);
    sc_store_close(store);
}
END_TEST

/* Report 115: the same key twice is no failure, and no second copy. */
START_TEST(report_115__storing_twice_is_idempotent)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    struct sc_store_put *puts[8], *again = NULL;
    sc_status each[8];
    uint8_t bytes[5000] = {3};
    struct sc_store_payload payload = {bytes, 5000, 0, 5000, 1, 0};
    ck_assert_int_eq(tier_put(store, 0, 20, 0, 5000), SC_OK);
    ck_assert_int_eq(tier_put(store, 0, 20, 0, 5000), SC_OK);
    for (uint32_t i = 0; i < 8; i++) {
        struct tier_key key;
        tier_key_init(&key, 100 + i, 20);
        struct sc_store_record record = tier_record(&key);
        ck_assert_int_eq(sc_store_begin(store, &record, false, &puts[i]), SC_OK);
        ck_assert_int_eq(sc_store_begin(store, &record, false, &again), SC_ERR_BUSY);
        ck_assert_int_eq(sc_store_shard(store, puts[i], 0, &payload, 0), SC_OK);
    }
    ck_assert_int_eq(sc_store_commit(store, puts, 8, 0, each), SC_OK);
    for (uint32_t i = 0; i < 8; i++) ck_assert_int_eq(each[i], SC_OK);
    ck_assert_uint_eq(tier_stats(store).record_count, 9);
    ck_assert_uint_eq(tier_stats(store).stored_count, 9);
    ck_assert_uint_eq(tier_verify(store), 9);
    sc_store_close(store);
}
END_TEST

/* A record that the present kernels cannot use makes room for one that they can. */
START_TEST(commit__replaces_an_unlike_record)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    struct sc_store_reader *reader = NULL;
    struct sc_store_put *put = NULL;
    enum sc_store_reason reason;
    struct tier_key key;
    tier_key_init(&key, 1, 50);
    struct sc_store_record record = tier_record(&key);
    record.numerics = 6;
    struct sc_store_want old = tier_want();
    old.numerics = 6;
    ck_assert_int_eq(tier_put_record(store, &record, 9000, 0, 1, 0), SC_OK);
    ck_assert_int_eq(tier_find(store, &key, NULL), SC_STORE_NUMERICS);
    record.numerics = 7;
    ck_assert_int_eq(sc_store_reader_open(store, &key.key, &old, &reason, &reader), SC_OK);
    ck_assert_ptr_nonnull(reader);
    ck_assert_int_eq(sc_store_begin(store, &record, false, &put), SC_ERR_BUSY);
    sc_store_reader_close(reader);
    ck_assert_int_eq(tier_put_record(store, &record, 3000, 0, 1 << 20 | 50, 0), SC_OK);
    tier_expect(store, 1, 50, 3000);
    ck_assert_int_eq(sc_store_find(store, &key.key, &old, &reason, NULL), SC_OK);
    ck_assert_int_eq(reason, SC_STORE_NUMERICS);
    ck_assert_uint_eq(tier_stats(store).used_bytes, 4096);
    ck_assert_uint_eq(tier_verify(store), 1);
    sc_store_close(store);
}
END_TEST

/* Report 123: a store is opened once: in this process, in another, in a child. */
START_TEST(report_123__opened_twice_is_busy)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options), *second = NULL;
    ck_assert_int_eq(sc_store_open(&options, &second), SC_ERR_BUSY);
    ck_assert_ptr_null(second);
    ck_assert_int_eq(tier_put(store, 1, 10, 0, 100), SC_OK);
    pid_t child = fork();
    if (child == 0) {
        sc_status other = sc_store_open(&options, &second);
        struct sc_store_stats stats;
        sc_status mine = sc_store_stats_get(store, &stats);
        bool told = strstr(sc_last_error()->text, "fork") != NULL;
        sc_store_close(store);
        _exit(other == SC_ERR_BUSY && mine == SC_ERR_STATE && told ? 0 : 1);
    }
    int code = 1;
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    tier_expect(store, 1, 10, 100); /* and the child's close has done nothing to us */
    ck_assert_int_eq(tier_put(store, 2, 10, 0, 100), SC_OK);
    ck_assert_int_eq(sc_store_open(&options, &second), SC_ERR_BUSY);
    sc_store_close(store);
    store = tier_open(&options);
    ck_assert_uint_eq(tier_verify(store), 2);
    sc_store_close(store);
}
END_TEST

/* The lock is an empty file: copies of a store, and backups, come without it. */
START_TEST(open__a_store_without_its_lock_is_one)
{
    struct sc_store_options options = tier_options(folder);
    char path[300];
    struct sc_store *store = tier_open(&options);
    ck_assert_int_eq(tier_put(store, 1, 10, 0, 100), SC_OK);
    sc_store_close(store);
    (void)snprintf(path, sizeof path, "%s/lock", folder);
    ck_assert_int_eq(unlink(path), 0);
    options.must_exist = true;
    store = tier_open(&options);
    tier_expect(store, 1, 10, 100);
    sc_store_close(store);
    (void)snprintf(path, sizeof path, "%s/data.mdb", folder);
    ck_assert_int_eq(unlink(path), 0); /* payloads alone are no store, but not nothing either */
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_CORRUPT);
}
END_TEST

START_TEST(open__refuses_what_is_not_there_and_bad_arguments)
{
    struct sc_store *store = NULL;
    struct sc_store_options options = tier_options("/nonexistent/a/b");
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_IO);
    options.must_exist = true;
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_NOT_FOUND);
    options = tier_options(folder);
    options.must_exist = true;
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_NOT_FOUND);
    char path[300]; /* what is left of one that was killed while it was made is none */
    (void)snprintf(path, sizeof path, "%s/lock", folder);
    ck_assert_int_eq(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_NOT_FOUND);
    options.must_exist = false;
    options.folder = NULL;
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_INVALID);
    options.folder = "";
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_INVALID);
    options = tier_options(folder);
    options.file_bytes = 5000;
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_INVALID);
    options = tier_options(folder);
    options.chunk_bytes = 100;
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_INVALID);
    options = tier_options(folder);
    options.hash_bits = 64;
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_open(NULL, &store), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_open(&options, NULL), SC_ERR_INVALID);
    ck_assert_ptr_null(store);
    sc_store_close(NULL);
}
END_TEST

START_TEST(begin__refuses_bad_arguments)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    struct sc_store_put *put = NULL;
    struct tier_key key;
    tier_key_init(&key, 1, 50);
    struct sc_store_record good = tier_record(&key), bad;
    const struct sc_stretch falling[2] = {{20, 0}, {20, 0}}, shorter[1] = {{40, 0}};
    ck_assert_int_eq(sc_store_begin(NULL, &good, false, &put), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_begin(store, NULL, false, &put), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_begin(store, &good, false, NULL), SC_ERR_INVALID);
#define REFUSED(change, status)                                                                    \
    do {                                                                                           \
        bad = good;                                                                                \
        change;                                                                                    \
        ck_assert_int_eq(sc_store_begin(store, &bad, false, &put), status);                        \
    } while (0)
    REFUSED(bad.key.tokens = NULL, SC_ERR_INVALID);
    REFUSED(bad.key.token_count = 0, SC_ERR_INVALID);
    REFUSED(bad.key.token_count = UINT32_MAX, SC_ERR_INVALID);
    REFUSED((bad.key.marks = NULL, bad.key.mark_count = 1), SC_ERR_INVALID);
    REFUSED(bad.parent_len = 50, SC_ERR_INVALID);
    REFUSED(bad.shards = NULL, SC_ERR_INVALID);
    REFUSED(bad.shard_count = 0, SC_ERR_INVALID);
    REFUSED(bad.shard_count = UINT32_MAX, SC_ERR_INVALID);
    REFUSED(bad.value = (double)INFINITY, SC_ERR_INVALID);
    REFUSED(bad.value = (double)NAN, SC_ERR_INVALID);
    REFUSED(bad.history_count = 1, SC_ERR_INVALID);
    REFUSED((bad.history = falling, bad.history_count = 2), SC_ERR_INVALID);
    REFUSED((bad.history = shorter, bad.history_count = 1), SC_ERR_MISMATCH);
    const sc_shard same[2] = {{0, 0, 0, 0, 0, 0}, {0, 1, 0, 1, 0, 0}};
    REFUSED((bad.shards = same, bad.shard_count = 2), SC_ERR_INVALID);
    key.marks[0].at = 50; /* of the next token */
    REFUSED(bad.key.mark_count = 1, SC_ERR_INVALID);
    key.marks[0].at = key.marks[1].at = 7;
    REFUSED(bad.key.mark_count = 2, SC_ERR_INVALID);
#undef REFUSED
    ck_assert_ptr_null(put);
    sc_store_close(store);
}
END_TEST

START_TEST(calls__refuse_bad_arguments)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    struct sc_store_put *put = NULL;
    struct sc_store_want want = tier_want();
    enum sc_store_reason reason;
    struct tier_key key;
    sc_status each;
    tier_key_init(&key, 1, 50);
    struct sc_store_record good = tier_record(&key);
    ck_assert_int_eq(sc_store_begin(store, &good, false, &put), SC_OK);
    uint8_t bytes[100] = {0};
    struct sc_store_payload payload = {bytes, 100, 0, 100, 1, 0};
    ck_assert_int_eq(sc_store_shard(store, put, 1, &payload, 0), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_shard(store, NULL, 0, &payload, 0), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_shard(store, put, 0, NULL, 0), SC_ERR_INVALID);
    payload.bytes = NULL;
    ck_assert_int_eq(sc_store_shard(store, put, 0, &payload, 0), SC_ERR_INVALID);
    payload = (struct sc_store_payload){bytes, 0, 0, 0, 1, 0};
    ck_assert_int_eq(sc_store_shard(store, put, 0, &payload, 0), SC_ERR_INVALID);
    payload = (struct sc_store_payload){bytes, 50, 50, 50, 1, 0}; /* KV, but begun without */
    ck_assert_int_eq(sc_store_shard(store, put, 0, &payload, 0), SC_ERR_INVALID);
    payload = (struct sc_store_payload){bytes, 100, 0, 100, 1, 4};
    ck_assert_int_eq(sc_store_shard(store, put, 0, &payload, 0), SC_ERR_INVALID);
    payload = (struct sc_store_payload){bytes, UINT64_MAX, 0, 1, 1, 0};
    ck_assert_int_eq(sc_store_shard(store, put, 0, &payload, 0), SC_ERR_INVALID);
    payload = (struct sc_store_payload){bytes, UINT64_MAX / 8, 0, 1, 1, 0};
    ck_assert_int_eq(sc_store_shard(store, put, 0, &payload, 0), SC_ERR_OVERFLOW);
    ck_assert_int_eq(sc_store_commit(store, NULL, 1, 0, &each), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_commit(store, &put, 0, 0, &each), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_commit(store, &put, 1, 0, NULL), SC_ERR_INVALID);
    sc_store_abort(store, put);
    sc_store_abort(store, NULL);
    ck_assert_int_eq(sc_store_find(store, NULL, &want, &reason, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_find(store, &key.key, NULL, &reason, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_find(store, &key.key, &want, NULL, NULL), SC_ERR_INVALID);
    want.shard_count = 0;
    ck_assert_int_eq(sc_store_find(store, &key.key, &want, &reason, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_drop(store, 0), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_store_drop(store, UINT32_MAX), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_store_drop_exactly(NULL, 0, 1), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_drop_exactly(store, 0, 1), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_store_drop_exactly(store, UINT32_MAX, 1), SC_ERR_NOT_FOUND);
    struct sc_store_reader *reader = NULL;
    ck_assert_int_eq(sc_store_reader_open_id(store, 99, &reader), SC_ERR_NOT_FOUND);
    uint64_t wear;
    ck_assert_int_eq(sc_store_file_wear(store, 99, &wear), SC_ERR_NOT_FOUND);
    sc_store_reader_close(NULL);
    ck_assert_uint_eq(tier_stats(store).used_bytes + tier_stats(store).pending_bytes, 0);
    sc_store_close(store);
}
END_TEST

START_TEST(reader__gives_history_shards_and_info)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    const struct sc_stretch history[2] = {{64, SC_FORM_PREFILL}, {80, SC_FORM_DECODE}};
    struct sc_stretch back[2];
    struct sc_store_reader *reader = NULL;
    struct sc_store_shard_info shard;
    struct sc_store_want want = tier_want();
    struct sc_store_info info;
    enum sc_store_reason reason;
    struct tier_key key;
    uint32_t count = 0;
    tier_key_init(&key, 1, 80);
    struct sc_store_record record = tier_record(&key);
    record.history = history;
    record.history_count = 2;
    record.value = 2.5;
    record.kind = 4;
    ck_assert_int_eq(tier_put_record(store, &record, 9000, 3000, 1, 77), SC_OK);
    ck_assert_int_eq(sc_store_reader_open(store, &key.key, &want, &reason, &reader), SC_OK);
    ck_assert_int_eq(reason, SC_STORE_HIT);
    sc_store_reader_info(reader, &info);
    ck_assert(info.value > 2.4 && info.value < 2.6);
    ck_assert_uint_eq(info.kind, 4);
    ck_assert_uint_eq(info.stored_ns, 77);
    ck_assert_uint_eq(info.disk_bytes, 12288);
    ck_assert_int_eq(sc_store_reader_history(reader, back, 1, &count), SC_ERR_LIMIT);
    ck_assert_int_eq(sc_store_reader_history(reader, back, 2, &count), SC_OK);
    ck_assert_mem_eq(back, history, sizeof history);
    ck_assert_int_eq(sc_store_reader_shard(reader, 0, &shard), SC_OK);
    ck_assert_uint_eq(shard.state_bytes, 6000);
    ck_assert_uint_eq(shard.kv_bytes, 3000);
    ck_assert_uint_eq(shard.codec, 1);
    ck_assert_int_eq(sc_store_reader_shard(reader, 1, &shard), SC_ERR_INVALID);
    sc_store_reader_close(reader);
    sc_store_close(store);
}
END_TEST

TIER_MAIN("tier/store", 120,
    {report_112__payloads_of_every_odd_size, 4},
    {open__any_way_of_io_reads_any_other, 0},
    {report_113__an_odd_size_opens_in_both_modes, 0},
    {commit__refuses_a_record_that_lacks_a_shard, 0},
    {report_115__storing_twice_is_idempotent, 0},
    {commit__replaces_an_unlike_record, 0},
    {report_123__opened_twice_is_busy, 0},
    {open__a_store_without_its_lock_is_one, 0},
    {open__refuses_what_is_not_there_and_bad_arguments, 0},
    {begin__refuses_bad_arguments, 0},
    {calls__refuse_bad_arguments, 0},
    {reader__gives_history_shards_and_info, 0})

/* SPDX-License-Identifier: Apache-2.0 */
/* Budgets, eviction, full disks and maps: "not stored" is an answer, and nothing is lost by it. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "tier_suite.h"

/* A small record of so many tokens. */
static sc_status put_keyed(struct sc_store *store, uint32_t sequence, uint32_t token_count,
    double value)
{
    struct tier_key key;
    tier_key_init(&key, sequence, token_count);
    struct sc_store_record record = tier_record(&key);
    record.value = value;
    return tier_put_record(store, &record, 50, 0, sequence, 0);
}

static sc_status put_valued(struct sc_store *store, uint32_t sequence, uint64_t bytes, double value)
{
    struct tier_key key;
    tier_key_init(&key, sequence, 20);
    struct sc_store_record record = tier_record(&key);
    record.value = value;
    return tier_put_record(store, &record, bytes, 0, (uint64_t)sequence << 20 | 20, 0);
}

START_TEST(room__the_least_recently_used_goes_first)
{
    struct sc_store_options options = tier_options(folder);
    options.bytes_max = 10 * 65536;
    struct sc_store *store = tier_open(&options);
    for (uint32_t i = 0; i < 10; i++) ck_assert_int_eq(tier_put(store, i, 20, 0, 65536), SC_OK);
    ck_assert_uint_eq(tier_stats(store).used_bytes, 10 * 65536);
    tier_expect(store, 0, 20, 65536); /* used: stays */
    for (uint32_t i = 10; i < 14; i++) ck_assert_int_eq(tier_put(store, i, 20, 0, 65536), SC_OK);
    tier_expect(store, 0, 20, 65536);
    for (uint32_t i = 1; i < 5; i++) ck_assert_int_eq(tier_reason(store, i, 20), SC_STORE_ABSENT);
    for (uint32_t i = 5; i < 14; i++) tier_expect(store, i, 20, 65536);
    ck_assert_uint_eq(tier_stats(store).evicted_count, 4);
    ck_assert_uint_eq(tier_verify(store), 10);
    sc_store_close(store);
}
END_TEST

START_TEST(room__what_is_worth_more_is_not_evicted_for_less)
{
    struct sc_store_options options = tier_options(folder);
    options.bytes_max = 4 * 65536;
    struct sc_store *store = tier_open(&options);
    for (uint32_t i = 0; i < 4; i++) ck_assert_int_eq(put_valued(store, i, 65536, 10 + i), SC_OK);
    ck_assert_int_eq(put_valued(store, 9, 65536, 9.5), SC_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "worth more"));
    ck_assert_uint_eq(tier_stats(store).refused_value, 1);
    for (uint32_t i = 0; i < 4; i++) tier_expect(store, i, 20, 65536);
    ck_assert_int_eq(put_valued(store, 9, 65536, 10.5), SC_OK);
    ck_assert_int_eq(tier_reason(store, 0, 20), SC_STORE_ABSENT);
    ck_assert_int_eq(put_valued(store, 8, 4 * 65536 + 1, 99), SC_ERR_LIMIT); /* never fits */
    ck_assert_uint_eq(tier_verify(store), 4);
    sc_store_close(store);
    /* values are kept over a restart */
    store = tier_open(&options);
    ck_assert_int_eq(put_valued(store, 7, 65536, 10), SC_ERR_LIMIT);
    ck_assert_int_eq(put_valued(store, 7, 65536, 10.7), SC_OK);
    ck_assert_int_eq(tier_reason(store, 9, 20), SC_STORE_ABSENT);
    sc_store_close(store);
}
END_TEST

START_TEST(room__bytes_written_in_a_day_are_limited)
{
    const uint64_t day = UINT64_C(86400000000000);
    struct sc_store_options options = tier_options(folder);
    options.day_bytes_max = 3 * 8192;
    struct sc_store *store = tier_open(&options);
    struct tier_key key;
    uint32_t n = 0;
    for (int restart = 0; restart < 2; restart++) {
        uint64_t now = (uint64_t)(100 + restart) * day + 5;
        for (uint32_t i = 0; i < 5; i++, n++) {
            tier_key_init(&key, n, 20);
            struct sc_store_record record = tier_record(&key);
            sc_status status = tier_put_record(store, &record, 5000, 0, n, now);
            ck_assert_int_eq(status, i < 3 ? SC_OK : SC_ERR_LIMIT);
            if (i == 1) {
                sc_store_close(store); /* the day goes on over a restart */
                store = tier_open(&options);
            }
        }
        ck_assert_uint_eq(tier_stats(store).day_bytes, 3 * 8192);
        ck_assert_uint_eq(tier_stats(store).refused_day, 2);
        ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "day"));
        /* a clock that steps back gives nothing */
        tier_key_init(&key, 1000, 20);
        struct sc_store_record record = tier_record(&key);
        ck_assert_int_eq(tier_put_record(store, &record, 5000, 0, 1, now - day), SC_ERR_LIMIT);
        ck_assert_uint_eq(tier_stats(store).pending_bytes, 0);
        sc_store_close(store);
        store = tier_open(&options);
    }
    uint64_t wear = 0;
    ck_assert_int_eq(sc_store_file_wear(store, 0, &wear), SC_OK);
    ck_assert_uint_eq(wear, 6 * 8192);
    ck_assert_uint_eq(tier_stats(store).written_bytes, 6 * 8192);
    sc_store_close(store);
}
END_TEST

START_TEST(room__a_payload_lies_in_pieces_when_it_must)
{
    struct sc_store_options options = tier_options(folder);
    options.bytes_max = TIER_FILE_BYTES;
    struct sc_store *store = tier_open(&options);
    for (uint32_t i = 0; i < 64; i++) ck_assert_int_eq(tier_put(store, i, 20, 0, 16384), SC_OK);
    for (uint32_t i = 0; i < 64; i += 2) { /* every other one: holes of 16 KiB */
        struct sc_store_info info;
        struct tier_key key;
        tier_key_init(&key, i, 20);
        ck_assert_int_eq(tier_find(store, &key, &info), SC_STORE_HIT);
        ck_assert_int_eq(sc_store_drop(store, info.id), SC_OK);
    }
    ck_assert_int_eq(put_valued(store, 100, 400000, 1), SC_OK);
    ck_assert_uint_eq(tier_stats(store).evicted_count, 0);
    tier_expect(store, 100, 20, 400000);
    for (uint32_t i = 1; i < 64; i += 2) tier_expect(store, i, 20, 16384);
    struct sc_store_reader *reader = NULL;
    struct sc_store_want want = tier_want();
    struct sc_store_shard_info shard;
    enum sc_store_reason reason;
    struct tier_key key;
    tier_key_init(&key, 100, 20);
    ck_assert_int_eq(sc_store_reader_open(store, &key.key, &want, &reason, &reader), SC_OK);
    ck_assert_int_eq(sc_store_reader_shard(reader, 0, &shard), SC_OK);
    ck_assert_uint_ge(shard.extent_count, 20);
    sc_store_reader_close(reader);
    sc_store_close(store);
    store = tier_open(&options);
    tier_expect(store, 100, 20, 400000);
    ck_assert_uint_eq(tier_verify(store), 33);
    sc_store_close(store);
}
END_TEST

/* Report 114: what is read is not evicted under the reader. Report 96 at this tier. */
START_TEST(report_114__a_record_stays_while_it_is_read)
{
    struct sc_store_options options = tier_options(folder);
    options.bytes_max = 4 * 65536;
    struct sc_store *store = tier_open(&options);
    struct sc_store_reader *reader = NULL;
    struct sc_store_want want = tier_want();
    enum sc_store_reason reason;
    struct tier_key key;
    uint8_t *back = malloc(65536);
    tier_key_init(&key, 0, 20);
    ck_assert_int_eq(tier_put(store, 0, 20, 0, 65536), SC_OK);
    ck_assert_int_eq(sc_store_reader_open(store, &key.key, &want, &reason, &reader), SC_OK);
    for (uint32_t i = 1; i < 40; i++) ck_assert_int_eq(tier_put(store, i, 20, 0, 65536), SC_OK);
    ck_assert_int_eq(sc_store_evict(store, UINT64_MAX / 2, NULL), SC_OK);
    ck_assert_uint_eq(tier_stats(store).record_count, 1);
    struct sc_store_info info;
    sc_store_reader_info(reader, &info);
    ck_assert_int_eq(sc_store_drop(store, info.id), SC_OK); /* no hit any more, but still there */
    ck_assert_int_eq(tier_find(store, &key, NULL), SC_STORE_ABSENT);
    for (uint32_t i = 50; i < 90; i++) ck_assert_int_eq(tier_put(store, i, 20, 0, 65536), SC_OK);
    ck_assert_int_eq(sc_store_read(reader, 0, back, 65536), SC_OK);
    ck_assert(tier_holds(back, 65536, 20));
    ck_assert_uint_eq(tier_stats(store).used_bytes, 4 * 65536);
    sc_store_reader_close(reader); /* it goes, and not only when room is wanted */
    ck_assert_uint_eq(tier_stats(store).used_bytes, 3 * 65536);
    ck_assert_int_eq(tier_put(store, 91, 20, 0, 65536), SC_OK);
    ck_assert_int_eq(tier_put(store, 92, 20, 0, 65536), SC_OK);
    ck_assert_uint_eq(tier_verify(store), 4);
    free(back);
    sc_store_close(store);
}
END_TEST

/* Report 120: a small map under many puts: records make room for each other, also there. */
START_TEST(report_120__a_full_map_evicts_and_goes_on)
{
    struct sc_store_options options = tier_options(folder);
    options.map_bytes = 1 << 20;
    options.bytes_max = 64 << 20;
    struct sc_store *store = tier_open(&options);
    struct sc_store_put *puts[50];
    sc_status each[50];
    uint8_t bytes[16] = {0};
    struct sc_store_payload payload = {bytes, 16, 0, 16, 1, 0};
    uint32_t n = 0;
    for (uint32_t batch = 0; batch < 200; batch++) { /* 10,000 records of 64 tokens */
        for (uint32_t i = 0; i < 50; i++, n++) {
            struct tier_key key;
            tier_key_init(&key, n, 64);
            struct sc_store_record record = tier_record(&key);
            ck_assert_int_eq(sc_store_begin(store, &record, false, &puts[i]), SC_OK);
            ck_assert_int_eq(sc_store_shard(store, puts[i], 0, &payload, 0), SC_OK);
        }
        ck_assert_int_eq(sc_store_commit(store, puts, 50, 0, each), SC_OK);
        for (uint32_t i = 0; i < 50; i++) ck_assert_int_eq(each[i], SC_OK);
    }
    struct sc_store_stats stats = tier_stats(store);
    ck_assert_uint_gt(stats.evicted_count, 5000);
    ck_assert_uint_gt(stats.record_count, 500);
    ck_assert_uint_eq(stats.record_count + stats.evicted_count, 10000);
    ck_assert_int_eq(tier_reason(store, n - 1, 64), SC_STORE_HIT);
    uint64_t freed = 0;
    ck_assert_int_eq(sc_store_evict(store, UINT64_MAX / 2, &freed), SC_OK); /* all can go */
    ck_assert_uint_eq(tier_stats(store).record_count, 0);
    sc_store_close(store);
}
END_TEST

/* One that cannot fit in the map at all is refused, the rest stays. */
START_TEST(room__a_key_too_large_for_the_map_is_not_stored)
{
    struct sc_store_options options = tier_options(folder);
    options.map_bytes = 256 << 10;
    struct sc_store *store = tier_open(&options);
    ck_assert_int_eq(tier_put(store, 1, 64, 0, 100), SC_OK);
    uint32_t count = 100000;
    int32_t *tokens = calloc(count, sizeof *tokens);
    struct tier_key key;
    tier_key_init(&key, 2, 1);
    key.key.tokens = tokens;
    key.key.token_count = count;
    struct sc_store_record record = tier_record(&key);
    record.value = -1; /* not worth the other */
    ck_assert_int_eq(tier_put_record(store, &record, 100, 0, 1, 0), SC_ERR_LIMIT);
    ck_assert_uint_eq(tier_stats(store).refused_map, 1);
    tier_expect(store, 1, 64, 100);
    free(tokens);
    ck_assert_uint_eq(tier_verify(store), 1);
    sc_store_close(store);
}
END_TEST

/* Report 121: a map has the size that it was opened with, for all of its life; another size is for
 * the next open, and nothing is lost by it. */
struct growing { struct sc_store *store; _Atomic bool over; };

static void *find_for_ever(void *arg)
{
    struct growing *growing = arg;
    while (!atomic_load(&growing->over)) {
        enum sc_store_reason reason = tier_reason(growing->store, 1, 64);
        if (reason != SC_STORE_HIT) return arg;
    }
    return NULL;
}

START_TEST(report_121__a_map_grows_between_two_lives)
{
    struct growing growing = {NULL, false};
    struct sc_store_options options = tier_options(folder);
    uint64_t records = 0;
    options.bytes_max = 256 << 20;
    for (uint32_t life = 0; life < 3; life++) {
        pthread_t reader;
        void *wrong = NULL;
        options.map_bytes = (256 << 10) << (2 * life);
        growing.store = tier_open(&options);
        ck_assert_uint_eq(tier_stats(growing.store).map_bytes, options.map_bytes);
        ck_assert_uint_eq(tier_stats(growing.store).record_count, records);
        ck_assert_uint_eq(tier_verify(growing.store), records);
        ck_assert_int_eq(put_valued(growing.store, 7000 + life, 50, 9), SC_OK);
        if (life == 0) ck_assert_int_eq(put_keyed(growing.store, 1, 64, 9), SC_OK);
        atomic_store(&growing.over, false);
        ck_assert_int_eq(pthread_create(&reader, NULL, find_for_ever, &growing), 0);
        pid_t child = fork(); /* another process may not grow it meanwhile */
        if (child == 0) {
            struct sc_store *other = NULL;
            struct sc_store_options larger = options;
            larger.map_bytes *= 2;
            _exit(sc_store_open(&larger, &other) == SC_ERR_BUSY ? 0 : 1);
        }
        int code = 1;
        ck_assert_int_eq(waitpid(child, &code, 0), child);
        ck_assert_int_eq(code, 0);
        for (uint32_t i = 0; tier_stats(growing.store).evicted_count == 0; i++) { /* full */
            ck_assert_int_eq(put_keyed(growing.store, 100000 * (life + 1) + i, 64, 0), SC_OK);
        }
        atomic_store(&growing.over, true);
        ck_assert_int_eq(pthread_join(reader, &wrong), 0);
        ck_assert_ptr_null(wrong);
        ck_assert_uint_gt(tier_stats(growing.store).record_count, records * 2);
        records = tier_stats(growing.store).record_count;
        sc_store_close(growing.store);
    }
    options.map_bytes = 64 << 10; /* too small for what is there: as large as that */
    struct sc_store *store = tier_open(&options);
    ck_assert_uint_eq(tier_verify(store), records);
    sc_store_close(store);
}
END_TEST

/* Report 122: killed readers leave nothing that a later open trips over. */
START_TEST(report_122__killed_readers_leave_no_trace)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    ck_assert_int_eq(tier_put(store, 1, 64, 0, 100), SC_OK);
    sc_store_close(store);
    for (uint32_t i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct sc_store_reader *reader = NULL;
            struct sc_store_iter *iter = NULL;
            struct sc_store_edge edge;
            store = tier_open(&options);
            if (sc_store_reader_open_id(store, 0, &reader) != SC_OK) _exit(1);
            if (sc_store_iter_open(store, &iter) != SC_OK) _exit(1);
            if (sc_store_iter_next(iter, &edge) != SC_OK) _exit(1);
            (void)kill(getpid(), SIGKILL);
        }
        int code = 0;
        ck_assert_int_eq(waitpid(child, &code, 0), child);
        ck_assert(WIFSIGNALED(code));
    }
    store = tier_open(&options);
    struct sc_store_reader *reader = NULL; /* held while much is written: the file stays small */
    ck_assert_int_eq(sc_store_reader_open_id(store, 0, &reader), SC_OK);
    for (uint32_t i = 0; i < 600; i++) {
        ck_assert_int_eq(tier_put(store, 2 + i, 64, 0, 16384), SC_OK);
    }
    char path[300];
    struct stat now;
    (void)snprintf(path, sizeof path, "%s/data.mdb", folder);
    ck_assert_int_eq(stat(path, &now), 0);
    ck_assert_int_lt(now.st_size, 1500000);
    sc_store_reader_close(reader);
    sc_store_close(store);
}
END_TEST

/* Report 109: what a failed write held is free again. A real full disk, where we may mount one. */
START_TEST(report_109__a_full_disk_is_an_answer)
{
    if (geteuid() != 0 || mount("none", folder, "tmpfs", 0, "size=3m") != 0) {
        (void)printf("skipped here: no right to mount a small file system\n");
        return;
    }
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    uint32_t stored = 0;
    for (uint32_t i = 0; i < 100; i++) { /* 6.5 MB into less than 3 */
        sc_status status = tier_put(store, i, 20, 0, 65536);
        ck_assert_int_eq(status, SC_OK); /* the first make room for the last */
        stored++;
        tier_expect(store, i, 20, 65536);
    }
    struct sc_store_stats stats = tier_stats(store);
    ck_assert_uint_gt(stats.evicted_count, 0);
    ck_assert_uint_eq(stats.used_bytes, stats.record_count * 65536);
    ck_assert_int_eq(put_valued(store, 200, 3 << 20, 5), SC_ERR_LIMIT); /* never fits here */
    ck_assert_uint_eq(tier_stats(store).pending_bytes, 0);
    (void)tier_verify(store);
    sc_store_close(store);
    store = tier_open(&options);
    (void)tier_verify(store);
    sc_store_close(store);
    ck_assert_int_eq(umount(folder), 0);
}
END_TEST

/* A disk that is full from the start: nothing can be stored, and that is all. */
START_TEST(room__no_room_for_the_first_file)
{
    struct tier_fail fail;
    struct sc_store_options options = tier_options(folder);
    tier_fail_init(&fail);
    options.faults = &fail.faults;
    struct sc_store *store = tier_open(&options);
    tier_fail_arm(&fail, "fallocate", 1, ENOSPC);
    atomic_store(&fail.always, true);
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_int_eq(tier_put(store, i, 20, 0, 5000), SC_ERR_LIMIT);
        ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "not stored"));
        ck_assert_int_eq(tier_reason(store, i, 20), SC_STORE_ABSENT);
    }
    ck_assert_uint_ge(tier_stats(store).refused_full, 1);
    (void)tier_fail_disarm(&fail);
    for (uint32_t i = 0; i < 100; i++) { /* asked again after a while */
        if (tier_put(store, i, 20, 0, 5000) == SC_OK) break;
    }
    ck_assert_uint_eq(tier_stats(store).record_count, 1);
    sc_store_close(store);
}
END_TEST

START_TEST(gc__gives_files_back)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    for (uint32_t i = 0; i < 30; i++) ck_assert_int_eq(tier_put(store, i, 20, 0, 131072), SC_OK);
    ck_assert_uint_eq(tier_stats(store).file_count, 4);
    uint64_t freed = 0;
    ck_assert_int_eq(sc_store_evict(store, UINT64_MAX / 2, &freed), SC_OK);
    ck_assert_uint_eq(freed, 30 * 131072);
    struct sc_store_gc gc;
    ck_assert_int_eq(sc_store_gc(store, &gc), SC_OK);
    ck_assert_uint_eq(gc.file_count, 4);
    ck_assert_uint_eq(tier_stats(store).file_count, 0);
    ck_assert_int_eq(tier_put(store, 1, 20, 0, 131072), SC_OK);
    tier_expect(store, 1, 20, 131072);
    sc_store_close(store);
    store = tier_open(&options);
    ck_assert_uint_eq(tier_stats(store).file_count, 1);
    ck_assert_uint_eq(tier_verify(store), 1);
    sc_store_close(store);
}
END_TEST

TIER_MAIN("tier/room", 120,
    {room__the_least_recently_used_goes_first, 0},
    {room__what_is_worth_more_is_not_evicted_for_less, 0},
    {room__bytes_written_in_a_day_are_limited, 0},
    {room__a_payload_lies_in_pieces_when_it_must, 0},
    {report_114__a_record_stays_while_it_is_read, 0},
    {report_120__a_full_map_evicts_and_goes_on, 0},
    {room__a_key_too_large_for_the_map_is_not_stored, 0},
    {report_121__a_map_grows_between_two_lives, 0},
    {report_122__killed_readers_leave_no_trace, 0},
    {report_109__a_full_disk_is_an_answer, 0},
    {room__no_room_for_the_first_file, 0},
    {gc__gives_files_back, 0})

/* SPDX-License-Identifier: Apache-2.0 */
/* Kills: a child stores, reads, drops and evicts from three threads until SIGKILL ends it at a
 * random moment. Then the store opens, is consistent, and every record that is visible reads back
 * bit for bit; what was acknowledged is there; what was half written is free space again.
 *
 * SC_TEST_SCALE=400 makes 1,000 and more kills of each kind. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "support/test_scale.h"
#include "tier_fixture.h"

enum { THREADS = 3, KILLS = 250 };

static char folder[200];

static void make(void)
{
    tier_folder_make(folder, sizeof folder, true);
}

static void clean(void)
{
    tier_folder_remove(folder);
}

struct child {
    struct sc_store *store;
    uint64_t seed;
    int acks;         /* a sequence number for each record that is durable */
    bool evicts;
};

struct worker { struct child *child; uint32_t index; };

static uint64_t bytes_of(uint32_t sequence)
{
    return 1 + sc_mix64(sequence) % 60000;
}

/* `kind` carries the sequence number, so that a reader knows the payload. */
static sc_status store_one(struct sc_store *store, uint32_t sequence, uint32_t token_count,
    uint32_t parent_len)
{
    struct tier_key *key = malloc(sizeof *key);
    tier_key_init(key, sequence, token_count);
    struct sc_store_record record = tier_record(key);
    record.parent_len = parent_len;
    record.kind = sequence;
    sc_status status = tier_put_record(store, &record, bytes_of(sequence), 0, sequence, 0);
    free(key);
    return status;
}

static void *work(void *arg)
{
    const struct worker *worker = arg;
    const struct child *child = worker->child;
    struct sc_prng prng;
    sc_prng_seed(&prng, child->seed * 64 + worker->index);
    for (uint32_t turn = 0;; turn++) {
        uint32_t sequence = (uint32_t)(sc_prng_next(&prng) & 0x7fffffff);
        if (store_one(child->store, sequence, 20, 0) == SC_OK) {
            if (write(child->acks, &sequence, sizeof sequence) < 0) _exit(3);
        }
        if (child->evicts && turn % 3 == 0) {
            (void)store_one(child->store, sequence, 40, 20);
            struct sc_store_reader *reader = NULL;
            uint32_t id = (uint32_t)sc_prng_below(&prng, 64);
            if (sc_store_reader_open_id(child->store, id, &reader) == SC_OK) {
                uint8_t *bytes = malloc(60000);
                (void)sc_store_read(reader, 0, bytes, 60000);
                free(bytes);
                sc_store_reader_close(reader);
            }
            (void)sc_store_drop(child->store, (uint32_t)sc_prng_below(&prng, 64));
        }
        if (child->evicts && turn % 7 == 5) (void)sc_store_evict(child->store, 1 << 20, NULL);
    }
    return NULL;
}

static void run_child(const struct sc_store_options *options, uint64_t seed, int acks, bool evicts)
{
    struct child child = {NULL, seed, acks, evicts};
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    uint32_t started = UINT32_MAX;
    if (sc_store_open(options, &child.store) != SC_OK) _exit(2);
    if (write(acks, &started, sizeof started) < 0) _exit(3);
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){&child, i};
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0) _exit(4);
    }
    for (;;) (void)pause();
}

/* Whatever is visible is whole. Returns how many records there are. */
static uint64_t check_visible(struct sc_store *store)
{
    struct sc_store_iter *iter = NULL;
    struct sc_store_edge edge;
    uint64_t count = 0;
    uint8_t *bytes = malloc(60000);
    ck_assert_int_eq(sc_store_iter_open(store, &iter), SC_OK);
    while (sc_store_iter_next(iter, &edge) == SC_OK) {
        struct sc_store_reader *reader = NULL;
        uint32_t sequence = edge.info.kind;
        if (!edge.info.has_record) continue;
        ck_assert_int_eq(sc_store_reader_open_id(store, edge.info.id, &reader), SC_OK);
        ck_assert_uint_eq(edge.info.payload_bytes, bytes_of(sequence));
        ck_assert_int_eq(sc_store_read(reader, 0, bytes, 60000), SC_OK);
        ck_assert(tier_holds(bytes, bytes_of(sequence), sequence));
        for (uint32_t i = edge.info.parent_len; i < edge.info.token_count; i++) {
            ck_assert_int_eq(edge.tokens[i - edge.info.parent_len], tier_token(sequence, i));
        }
        sc_store_reader_close(reader);
        count++;
    }
    sc_store_iter_close(iter);
    free(bytes);
    return count;
}

/* One life: returns the number of acknowledged records, which without evictions must all be there.
 * The kill comes some time after the first few, however slow the machine is. */
static uint32_t one_kill(const struct sc_store_options *options, uint64_t seed, bool evicts,
    uint64_t *records_out)
{
    int acks[2];
    uint32_t sequence = 0, acked[4096], count = 0;
    ck_assert_int_eq(pipe(acks), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        (void)close(acks[0]);
        run_child(options, seed, acks[1], evicts);
    }
    (void)close(acks[1]);
    ck_assert_int_eq(read(acks[0], &sequence, sizeof sequence), sizeof sequence);
    for (uint64_t first = evicts ? 0 : seed % 8; count < first; count++) {
        ck_assert_int_eq(read(acks[0], &acked[count], sizeof sequence), sizeof sequence);
    }
    (void)usleep((useconds_t)(sc_mix64(seed) % 6000));
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    int code = 0;
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_msg(WIFSIGNALED(code), "the child ended by itself: %d", WEXITSTATUS(code));
    while (count < 4096 && read(acks[0], &sequence, sizeof sequence) == sizeof sequence) {
        acked[count++] = sequence;
    }
    (void)close(acks[0]);
    struct sc_store *store = tier_open(options);
    (void)tier_verify(store);
    *records_out = check_visible(store);
    ck_assert_uint_eq(tier_stats(store).reclaimed_count, 0); /* nothing was torn */
    for (uint32_t i = 0; i < count && !evicts; i++) {
        ck_assert_int_eq(tier_reason(store, acked[i], 20), SC_STORE_HIT);
    }
    if (!evicts) { /* half written payloads hold nothing */
        ck_assert_int_eq(sc_store_evict(store, UINT64_MAX / 2, NULL), SC_OK);
        ck_assert_uint_eq(tier_stats(store).used_bytes, 0);
    }
    sc_store_close(store);
    return count;
}

static struct sc_store_options way(uint64_t round)
{
    struct sc_store_options options = tier_options(folder);
    options.uring = round & 1 ? SC_STORE_AUTO : SC_STORE_OFF;
    options.direct = round & 2 ? SC_STORE_AUTO : SC_STORE_OFF;
    options.bytes_max = 0;
    return options;
}

START_TEST(report_111__killed_while_storing)
{
    uint64_t kills = test_scaled(KILLS, 20), acked = 0, records = 0;
    for (uint64_t round = 0; round < kills; round++) {
        struct sc_store_options options = way(round);
        uint64_t there = 0;
        acked += one_kill(&options, round, false, &there);
        records += there;
    }
    (void)printf("%llu kills: %llu records acknowledged, %llu there\n",
        (unsigned long long)kills, (unsigned long long)acked, (unsigned long long)records);
    ck_assert_uint_gt(acked, kills);
    ck_assert_uint_ge(records, acked);
}
END_TEST

START_TEST(crash__killed_while_storing_evicting_reading)
{
    uint64_t kills = test_scaled(KILLS, 20), records = 0;
    for (uint64_t round = 0; round < kills; round++) {
        struct sc_store_options options = way(round);
        uint64_t there = 0;
        options.bytes_max = 2 << 20;
        (void)one_kill(&options, 1000000 + round, true, &there);
        records += there;
    }
    (void)printf("%llu kills: %llu records read back\n", (unsigned long long)kills,
        (unsigned long long)records);
    ck_assert_uint_gt(records, kills);
}
END_TEST

/* The harness notices what it is for: a store whose payload is not what it says. */
START_TEST(crash__the_check_finds_a_wrong_payload)
{
    struct sc_store_options options = way(0);
    struct sc_store *store = tier_open(&options);
    struct sc_store_reader *reader = NULL;
    uint8_t *bytes = malloc(60000);
    ck_assert_int_eq(store_one(store, 7, 20, 0), SC_OK);
    ck_assert_int_eq(sc_store_reader_open_id(store, 0, &reader), SC_OK);
    ck_assert_int_eq(sc_store_read(reader, 0, bytes, 60000), SC_OK);
    ck_assert(tier_holds(bytes, bytes_of(7), 7));
    ck_assert(!tier_holds(bytes, bytes_of(7), 8));
    bytes[bytes_of(7) - 1] ^= 1;
    ck_assert(!tier_holds(bytes, bytes_of(7), 7));
    sc_store_reader_close(reader);
    free(bytes);
    sc_store_close(store);
}
END_TEST

static Suite *crash_suite(void)
{
    Suite *suite = suite_create("tier/crash");
    TCase *tcase = tcase_create("crash");
    tcase_set_timeout(tcase, 3600);
    tcase_add_checked_fixture(tcase, make, clean);
    tcase_add_test(tcase, report_111__killed_while_storing);
    tcase_add_test(tcase, crash__killed_while_storing_evicting_reading);
    tcase_add_test(tcase, crash__the_check_finds_a_wrong_payload);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return tier_main(crash_suite());
}

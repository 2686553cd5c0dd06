/* SPDX-License-Identifier: Apache-2.0 */
/* Kills: a child stores, reads, drops and evicts from six threads until SIGKILL ends it at a random
 * moment with three calls or more under way. Then the store opens, is consistent, and every record
 * that is visible reads back bit for bit; what was acknowledged is there; what was half written is
 * free space again.
 *
 * SC_TEST_SCALE=1000 makes 1,000 kills of each kind. */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "support/test_scale.h"
#include "tier_sequences.h"
#include "tier_suite.h"

enum { THREADS = 6, IN_FLIGHT = 3, KILLS = 100 };

struct child {
    struct sc_store *store;
    uint64_t seed;
    int acks;         /* a sequence number for each record that is durable */
    _Atomic uint32_t *in_flight; /* calls under way; shared with who kills */
    bool evicts;
};

struct worker { struct child *child; uint32_t index; };

static sc_status store_one(const struct child *child, uint32_t sequence, uint32_t token_count,
    uint32_t parent_len)
{
    struct tier_sequence what = {.sequence = sequence, .token_count = token_count,
        .parent_len = parent_len};
    atomic_fetch_add(child->in_flight, 1);
    sc_status status = tier_sequence_put(child->store, &what);
    atomic_fetch_sub(child->in_flight, 1);
    return status;
}

static void read_one(const struct child *child, uint32_t id)
{
    struct sc_store_reader *reader = NULL;
    uint8_t *bytes = malloc(TIER_SEQUENCE_BYTES_MAX);
    atomic_fetch_add(child->in_flight, 1);
    if (sc_store_reader_open_id(child->store, id, &reader) == SC_OK) {
        (void)sc_store_read(reader, 0, bytes, TIER_SEQUENCE_BYTES_MAX);
        sc_store_reader_close(reader);
    }
    atomic_fetch_sub(child->in_flight, 1);
    free(bytes);
}

static void *work(void *arg)
{
    const struct worker *worker = arg;
    const struct child *child = worker->child;
    struct sc_prng prng;
    sc_prng_seed(&prng, child->seed * 64 + worker->index);
    for (uint32_t turn = 0;; turn++) {
        uint32_t sequence = (uint32_t)(sc_prng_next(&prng) & 0x7fffffff);
        if (store_one(child, sequence, 20, 0) == SC_OK) {
            if (write(child->acks, &sequence, sizeof sequence) < 0) _exit(3);
        }
        if (!child->evicts) continue;
        if (turn % 3 == 0) {
            (void)store_one(child, sequence, 40, 20);
            read_one(child, (uint32_t)sc_prng_below(&prng, 64));
        }
        atomic_fetch_add(child->in_flight, 1);
        if (turn % 3 == 0) (void)sc_store_drop(child->store, (uint32_t)sc_prng_below(&prng, 64));
        if (turn % 7 == 5) (void)sc_store_evict(child->store, 1 << 20, NULL);
        atomic_fetch_sub(child->in_flight, 1);
    }
    return NULL;
}

static void run_child(const struct sc_store_options *options, struct child child)
{
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    uint32_t started = UINT32_MAX;
    if (sc_store_open(options, &child.store) != SC_OK) _exit(2);
    if (write(child.acks, &started, sizeof started) < 0) _exit(3);
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){&child, i};
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0) _exit(4);
    }
    for (;;) (void)pause();
}

/* Kills some time after the first few records, however slow the machine is, once enough is under
 * way. Returns how many calls were when it came. */
static uint32_t kill_child(pid_t child, uint64_t seed, const _Atomic uint32_t *in_flight)
{
    (void)usleep((useconds_t)(sc_mix64(seed) % 6000));
    for (uint32_t i = 0; i < 1000 && atomic_load(in_flight) < IN_FLIGHT; i++) (void)usleep(10);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    int code = 0;
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_msg(WIFSIGNALED(code), "the child ended by itself: %d", WEXITSTATUS(code));
    return atomic_load(in_flight);
}

struct life { uint64_t acked, records, kills; };

static void check_store(const struct sc_store_options *options, bool evicts,
    const uint32_t *acked, uint32_t count, struct life *life)
{
    uint64_t records = 0;
    struct sc_store *store = tier_open(options);
    const char *fault = tier_sequences_check(store, &records);
    ck_assert_msg(!fault, "%s", fault);
    for (uint32_t i = 0; i < count && !evicts; i++) {
        struct tier_sequence what = {.sequence = acked[i], .token_count = 20};
        ck_assert(tier_sequence_is_there(store, &what, NULL));
    }
    if (!evicts) { /* half written payloads hold nothing */
        ck_assert_int_eq(sc_store_evict(store, UINT64_MAX / 2, NULL), SC_OK);
        ck_assert_uint_eq(tier_stats(store).used_bytes, 0);
    }
    sc_store_close(store);
    life->records += records;
    life->acked += count;
}

/* One life. Records that were acknowledged must all be there, if none was evicted. */
static void one_kill(const struct sc_store_options *options, uint64_t seed, bool evicts,
    _Atomic uint32_t *in_flight, struct life *life)
{
    int acks[2];
    uint32_t sequence = 0, acked[4096], count = 0;
    ck_assert_int_eq(pipe(acks), 0);
    atomic_store(in_flight, 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        (void)close(acks[0]);
        run_child(options, (struct child){.seed = seed, .acks = acks[1], .in_flight = in_flight,
            .evicts = evicts});
    }
    (void)close(acks[1]);
    ck_assert_int_eq(read(acks[0], &sequence, sizeof sequence), sizeof sequence);
    for (uint64_t first = evicts ? 0 : seed % 8; count < first; count++) {
        ck_assert_int_eq(read(acks[0], &acked[count], sizeof sequence), sizeof sequence);
    }
    life->kills += kill_child(child, seed, in_flight) >= IN_FLIGHT;
    while (count < 4096 && read(acks[0], &sequence, sizeof sequence) == sizeof sequence) {
        acked[count++] = sequence;
    }
    (void)close(acks[0]);
    check_store(options, evicts, acked, count, life);
}

static struct sc_store_options way(uint64_t round)
{
    struct sc_store_options options = tier_options(folder);
    options.uring = round & 1 ? SC_STORE_AUTO : SC_STORE_OFF;
    options.direct = round & 2 ? SC_STORE_AUTO : SC_STORE_OFF;
    options.bytes_max = 0;
    return options;
}

/* Lives until enough ended with three calls under way; the others are checked all the same. */
static struct life kill_many(bool evicts)
{
    struct life life = {0, 0, 0};
    uint64_t kills = test_scaled(KILLS, 20), round = 0;
    _Atomic uint32_t *in_flight = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(in_flight != MAP_FAILED);
    for (; life.kills < kills; round++) {
        ck_assert_uint_lt(round, 3 * kills);
        struct sc_store_options options = way(round);
        if (evicts) options.bytes_max = 2 << 20;
        one_kill(&options, (evicts ? 1000000 : 0) + round, evicts, in_flight, &life);
    }
    (void)munmap((void *)in_flight, 4096);
    (void)printf("%llu kills, %llu with %d calls and more under way: %llu records acknowledged, "
        "%llu read back\n", (unsigned long long)round, (unsigned long long)life.kills, IN_FLIGHT,
        (unsigned long long)life.acked, (unsigned long long)life.records);
    return life;
}

START_TEST(report_111__killed_while_storing)
{
    struct life life = kill_many(false);
    ck_assert_uint_gt(life.acked, life.kills);
    ck_assert_uint_ge(life.records, life.acked);
}
END_TEST

START_TEST(crash__killed_while_storing_evicting_reading)
{
    struct life life = kill_many(true);
    ck_assert_uint_gt(life.records, life.kills);
}
END_TEST

/* The harness notices what it is for: a store whose payload is not what it says. */
START_TEST(crash__the_check_finds_a_wrong_payload)
{
    struct sc_store_options options = way(0);
    struct sc_store *store = tier_open(&options);
    struct tier_sequence what = {.sequence = 7, .token_count = 20};
    struct tier_key *key = malloc(sizeof *key);
    uint64_t records = 0, bytes = tier_sequence_bytes(&what);
    ck_assert_int_eq(tier_sequence_put(store, &what), SC_OK);
    ck_assert_ptr_null(tier_sequences_check(store, &records));
    ck_assert_uint_eq(records, 1);
    tier_key_init(key, 8, 20);
    struct sc_store_record record = tier_record(key);
    record.kind = 7; /* tokens of another */
    ck_assert_int_eq(tier_put_record(store, &record, bytes, 0, tier_sequence_tag(&what), 0), SC_OK);
    ck_assert_ptr_nonnull(strstr(tier_sequences_check(store, &records), "tokens"));
    tier_key_init(key, 9, 20);
    record = tier_record(key);
    record.kind = 9;
    record.numerics = 0;
    what.sequence = 9;
    ck_assert_int_eq(sc_store_evict(store, UINT64_MAX / 2, NULL), SC_OK);
    bytes = tier_sequence_bytes(&what);
    ck_assert_int_eq(tier_put_record(store, &record, bytes, 0, 1, 0), SC_OK); /* other bytes */
    ck_assert_ptr_nonnull(strstr(tier_sequences_check(store, &records), "other bytes"));
    free(key);
    sc_store_close(store);
}
END_TEST

TIER_MAIN("tier/crash", 3600,
    {report_111__killed_while_storing, 0},
    {crash__killed_while_storing_evicting_reading, 0},
    {crash__the_check_finds_a_wrong_payload, 0})

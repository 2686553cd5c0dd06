/* SPDX-License-Identifier: Apache-2.0 */
/* Status, error record, log, PRNG, clock, locks, assertions. */
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/prng.h"
#include "base/sc_assert.h"

/* ---- status ---- */

START_TEST(status__every_code_has_its_name_and_a_text_of_its_own)
{
    static const struct { sc_status status; const char *name; } all[] = {
#define ROW(name, value, text) {name, #name},
        SC_STATUS_LIST(ROW)
#undef ROW
    };
    const int count = (int)(sizeof all / sizeof all[0]);
    ck_assert_int_eq(SC_OK, 0);
    for (int i = 0; i < count; i++) {
        ck_assert_str_eq(sc_status_name(all[i].status), all[i].name);
        ck_assert_uint_gt(strlen(sc_status_text(all[i].status)), 3);
        ck_assert_int_le(all[i].status, 0);
        for (int j = 0; j < i; j++) {
            ck_assert_int_ne(all[i].status, all[j].status);
            ck_assert_str_ne(sc_status_text(all[i].status), sc_status_text(all[j].status));
        }
    }
    ck_assert_int_eq(SC_ERR_NO_SLOT, -3); /* numbers are never reused */
    ck_assert_int_eq(SC_ERR_LOST, -15);
    ck_assert_int_eq(SC_ERR_AGAIN, -16);
    ck_assert_int_eq(SC_ERR_DENIED, -17);
    ck_assert_int_eq(SC_ERR_CLOSED, -18);
}
END_TEST

START_TEST(status__unknown_numbers_are_named_too)
{
    ck_assert_str_eq(sc_status_name((sc_status)-9999), "SC_ERR_UNKNOWN");
    ck_assert_str_eq(sc_status_text((sc_status)77), "unknown status");
}
END_TEST

START_TEST(version__is_three_numbers)
{
    int major, minor, patch, end = 0;
    ck_assert_int_eq(sscanf(sc_version(), "%d.%d.%d%n", &major, &minor, &patch, &end), 3);
    ck_assert_uint_eq((size_t)end, strlen(sc_version()));
    ck_assert_int_eq(major, SC_VERSION_MAJOR);
    ck_assert_int_eq(minor, SC_VERSION_MINOR);
    ck_assert_int_eq(patch, SC_VERSION_PATCH);
}
END_TEST

/* ---- error record ---- */

static sc_status fail_with(int x)
{
    SC_REQUIRE(x > 0);
    if (x == 1) return SC_FAIL(SC_ERR_LIMIT, "limit of %d\nreached", 7);
    if (x == 2) return SC_FAIL_SYS(SC_ERR_IO, 5, "read failed");
    return SC_OK;
}

static sc_status pass_on(int x)
{
    SC_TRY(fail_with(x));
    return SC_OK;
}

START_TEST(error__names_function_and_condition_where_it_was_detected)
{
    ck_assert_ptr_nonnull(sc_last_error());
    ck_assert_int_eq(sc_last_error()->status, SC_OK);
    ck_assert_int_eq(pass_on(0), SC_ERR_INVALID);
    ck_assert_int_eq(sc_last_error()->status, SC_ERR_INVALID);
    ck_assert_str_eq(sc_last_error()->function, "fail_with");
    ck_assert_str_eq(sc_last_error()->text, "requires x > 0");
    ck_assert_int_eq(pass_on(1), SC_ERR_LIMIT);
    ck_assert_str_eq(sc_last_error()->text, "limit of 7 reached"); /* one line */
    ck_assert_int_eq(sc_last_error()->system_code, 0);
    ck_assert_int_eq(pass_on(2), SC_ERR_IO);
    ck_assert_int_eq(sc_last_error()->system_code, 5);
    ck_assert_int_eq(pass_on(3), SC_OK);
    ck_assert_int_eq(sc_last_error()->status, SC_ERR_IO); /* success leaves it alone */
}
END_TEST

START_TEST(error__long_texts_are_cut_and_terminated)
{
    char huge[1000];
    memset(huge, 'x', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    ck_assert_int_eq(SC_FAIL(SC_ERR_INVALID, "%s", huge), SC_ERR_INVALID);
    ck_assert_uint_eq(strlen(sc_last_error()->text), sizeof sc_last_error()->text - 1);
}
END_TEST

START_TEST(error__may_quote_the_record_it_replaces)
{
    (void)SC_FAIL(SC_ERR_IO, "inner");
    (void)SC_FAIL(SC_ERR_LOST, "outer: %s", sc_last_error()->text);
    ck_assert_str_eq(sc_last_error()->text, "outer: inner");
}
END_TEST

static void *other_thread(void *arg)
{
    (void)arg;
    bool clean = sc_last_error()->status == SC_OK;
    (void)SC_FAIL(SC_ERR_CORRUPT, "in the other thread");
    return clean ? (void *)1 : NULL;
}

START_TEST(error__record_belongs_to_the_thread)
{
    pthread_t thread;
    void *clean = NULL;
    (void)SC_FAIL(SC_ERR_IO, "mine");
    ck_assert_int_eq(pthread_create(&thread, NULL, other_thread, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, &clean), 0);
    ck_assert_ptr_nonnull(clean);
    ck_assert_str_eq(sc_last_error()->text, "mine");
}
END_TEST

/* ---- log ---- */

struct seen { int count; enum sc_log_level level; char event[64], fields[2000]; };

static void receive(void *ctx, enum sc_log_level level, const sc_log_record *record)
{
    struct seen *seen = ctx;
    seen->count++;
    seen->level = level;
    (void)snprintf(seen->event, sizeof seen->event, "%s", record->event);
    seen->fields[0] = '\0';
    for (uint32_t i = 0; i < record->field_count; i++) {
        size_t len = strlen(seen->fields);
        (void)snprintf(seen->fields + len, sizeof seen->fields - len, "%s=%s;",
            record->fields[i].key, record->fields[i].value);
    }
}

START_TEST(log__is_silent_by_default_and_after_null)
{
    struct seen seen = {0};
    ck_assert(!sc_log_enabled(SC_LOG_ERROR));
    sc_log_emit(SC_LOG_ERROR, "nobody.listens", NULL, 0);
    sc_log_set(receive, &seen, SC_LOG_DEBUG);
    sc_log_set(NULL, NULL, SC_LOG_DEBUG);
    ck_assert(!sc_log_enabled(SC_LOG_ERROR));
    sc_log_emit(SC_LOG_ERROR, "nobody.listens", NULL, 0);
    ck_assert_int_eq(seen.count, 0);
}
END_TEST

START_TEST(log__delivers_fields_at_or_above_the_level)
{
    struct seen seen = {0};
    struct sc_log_builder log = SC_LOG_BUILDER_INIT;
    sc_log_set(receive, &seen, SC_LOG_WARN);
    ck_assert(!sc_log_enabled(SC_LOG_INFO));
    sc_log_add(&log, "slots", "%d", 17);
    sc_log_add(&log, "name", "%s", "a b");
    sc_log_send(&log, SC_LOG_INFO, "too.low");
    ck_assert_int_eq(seen.count, 0);
    sc_log_send(&log, SC_LOG_WARN, "pool.full");
    ck_assert_int_eq(seen.count, 1);
    ck_assert_int_eq(seen.level, SC_LOG_WARN);
    ck_assert_str_eq(seen.event, "pool.full");
    ck_assert_str_eq(seen.fields, "slots=17;name=a b;");
}
END_TEST

START_TEST(log__cuts_long_values_and_drops_the_thirteenth_field)
{
    struct seen seen = {0};
    struct sc_log_builder log = SC_LOG_BUILDER_INIT;
    sc_log_set(receive, &seen, SC_LOG_DEBUG);
    for (int i = 0; i < 20; i++) sc_log_add(&log, "k", "%0200d", i);
    ck_assert_uint_eq(log.count, SC_LOG_FIELDS_MAX);
    sc_log_send(&log, SC_LOG_INFO, "long");
    ck_assert_uint_eq(strlen(seen.fields), SC_LOG_FIELDS_MAX * (3 + SC_LOG_VALUE_BYTES - 1));
}
END_TEST

/* ---- prng ---- */

START_TEST(prng__bits_are_fixed_by_the_seed)
{
    /* splitmix64's published first outputs for state 0; xoshiro from {1,2,3,4}: by hand
     * rotl(2 * 5, 7) * 9 = 11520, then s1 = 1 ^ (3 ^ 1) ^ ... = 0 gives 0. */
    ck_assert_uint_eq(sc_mix64(0), UINT64_C(0xe220a8397b1dcdaf));
    ck_assert_uint_eq(sc_mix64(UINT64_C(0x9e3779b97f4a7c15)), UINT64_C(0x6e789e6aa1b965f4));
    struct sc_prng prng = {{1, 2, 3, 4}};
    ck_assert_uint_eq(sc_prng_next(&prng), 11520);
    ck_assert_uint_eq(sc_prng_next(&prng), 0);
    struct sc_prng a, b, c;
    sc_prng_seed(&a, 42);
    sc_prng_seed(&b, 42);
    sc_prng_seed(&c, 43);
    int same = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t x = sc_prng_next(&a);
        ck_assert_uint_eq(x, sc_prng_next(&b));
        same += x == sc_prng_next(&c);
    }
    ck_assert_int_eq(same, 0);
}
END_TEST

START_TEST(prng__below_stays_below_and_reaches_all)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 1);
    for (int i = 0; i < 100; i++) ck_assert_uint_eq(sc_prng_below(&prng, 1), 0);
    int seen[7] = {0};
    for (int i = 0; i < 70000; i++) seen[sc_prng_below(&prng, 7)]++;
    for (int i = 0; i < 7; i++) ck_assert_int_gt(seen[i], 9500);
    /* A bound that rejects nearly half of all draws. */
    uint64_t bound = (UINT64_C(1) << 63) + 1, low = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t x = sc_prng_below(&prng, bound);
        ck_assert_uint_lt(x, bound);
        low += x < bound / 2;
    }
    ck_assert_uint_gt(low, 400);
    ck_assert_uint_lt(low, 600);
}
END_TEST

START_TEST(prng__unit_and_normal_have_their_moments)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 3);
    enum { N = 200000 };
    double sum = 0, sum2 = 0, unit = 0;
    for (int i = 0; i < N; i++) {
        double u = sc_prng_unit(&prng), x = sc_prng_normal(&prng);
        ck_assert(u >= 0.0 && u < 1.0);
        ck_assert(isfinite(x));
        unit += u;
        sum += x;
        sum2 += x * x;
    }
    ck_assert_double_eq_tol(unit / N, 0.5, 0.005);
    ck_assert_double_eq_tol(sum / N, 0.0, 0.01);
    ck_assert_double_eq_tol(sum2 / N, 1.0, 0.02);
}
END_TEST

START_TEST(clock__never_goes_back)
{
    uint64_t before = sc_clock_now_ns(), after = before;
    for (int i = 0; i < 1000000 && after == before; i++) {
        after = sc_clock_now_ns();
        ck_assert_uint_ge(after, before);
    }
    ck_assert_uint_gt(after, before);
}
END_TEST

START_TEST(clock__of_a_thread_counts_its_work)
{
    uint64_t before = sc_clock_thread_ns();
    volatile uint32_t sum = 0;
    for (uint32_t i = 0; i < 1000000; i++) sum = sum + i;
    uint64_t worked = sc_clock_thread_ns() - before;
    ck_assert_uint_gt(worked, 10000);
    struct timespec nap = {.tv_nsec = 50000000};
    before = sc_clock_thread_ns();
    nanosleep(&nap, NULL);
    ck_assert_uint_lt(sc_clock_thread_ns() - before, 25000000);
}
END_TEST

/* ---- locks ---- */

START_TEST(lock__init_refuses_null)
{
    ck_assert_int_eq(sc_mutex_init(NULL, SC_RANK_POOL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_rwlock_init(NULL, SC_RANK_POOL), SC_ERR_INVALID);
}
END_TEST

struct locked { struct sc_rwlock lock; struct sc_mutex mutex; long count, other; };

static void *add_many(void *arg)
{
    struct locked *l = arg;
    for (int i = 0; i < 20000; i++) {
        sc_rwlock_lock(&l->lock);
        l->count++;
        sc_rwlock_unlock(&l->lock);
        sc_rwlock_lock_shared(&l->lock);
        sc_mutex_lock(&l->mutex); /* rising rank */
        l->other += l->count > 0;
        sc_mutex_unlock(&l->mutex);
        sc_rwlock_unlock_shared(&l->lock);
    }
    return NULL;
}

START_TEST(lock__excludes)
{
    struct locked l = {.count = 0};
    pthread_t threads[3];
    ck_assert_int_eq(sc_rwlock_init(&l.lock, SC_RANK_ENGINE), SC_OK);
    ck_assert_int_eq(sc_mutex_init(&l.mutex, SC_RANK_BASE), SC_OK);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, add_many, &l), 0);
    }
    for (int i = 0; i < 3; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_int_eq(l.count, 60000);
    ck_assert_int_eq(l.other, 60000);
    sc_rwlock_deinit(&l.lock);
    sc_mutex_deinit(&l.mutex);
}
END_TEST

/* Many readers, more than slots, and writers that change two words one after the other. */
struct crowd {
    struct sc_rwlock lock;
    uint64_t a, b;
    _Atomic uint64_t reads, writes, torn;
    _Atomic int stop;
    uint32_t hold; /* pauses that a reader stays */
};

static void *crowd_read(void *arg)
{
    struct crowd *c = arg;
    while (!atomic_load(&c->stop)) {
        sc_rwlock_lock_shared(&c->lock);
        uint64_t a = c->a;
        for (uint32_t i = 0; i < c->hold; i++) atomic_load(&c->stop);
        if (a != c->b) atomic_fetch_add(&c->torn, 1);
        sc_rwlock_unlock_shared(&c->lock);
        atomic_fetch_add(&c->reads, 1);
    }
    return NULL;
}

static void *crowd_write(void *arg)
{
    struct crowd *c = arg;
    while (!atomic_load(&c->stop)) {
        sc_rwlock_lock(&c->lock);
        c->a++;
        c->b++;
        sc_rwlock_unlock(&c->lock);
        atomic_fetch_add(&c->writes, 1);
    }
    return NULL;
}

/* Until both sides got in, or for long. */
static void crowd_run(struct crowd *c, int readers, int writers, int writes)
{
    enum { MOST = SC_RWLOCK_SLOTS + 16 };
    pthread_t threads[MOST];
    ck_assert_int_le(readers + writers, MOST);
    ck_assert_int_eq(sc_rwlock_init(&c->lock, SC_RANK_ENGINE), SC_OK);
    for (int i = 0; i < readers + writers; i++) {
        void *(*run)(void *) = i < readers ? crowd_read : crowd_write;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run, c), 0);
    }
    struct timespec nap = {0, 5000000};
    for (int i = 0; i < 4000; i++) {
        if (atomic_load(&c->reads) > 100 && atomic_load(&c->writes) > (uint64_t)writes) break;
        nanosleep(&nap, NULL);
    }
    atomic_store(&c->stop, 1);
    for (int i = 0; i < readers + writers; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    sc_rwlock_deinit(&c->lock);
    ck_assert_uint_eq(atomic_load(&c->torn), 0);
    ck_assert_uint_eq(c->a, c->b);
    ck_assert_uint_eq(c->a, atomic_load(&c->writes));
    ck_assert_uint_gt(atomic_load(&c->reads), 100); /* neither side starved */
    ck_assert_uint_gt(c->a, (uint64_t)writes);
}

START_TEST(lock__readers_see_whole_writes)
{
    static const int readers[] = {1, 3, SC_RWLOCK_SLOTS + 14};
    for (int i = 0; i < 3; i++) {
        struct crowd c = {.hold = (uint32_t)i * 50};
        crowd_run(&c, readers[i], 2, 500);
    }
}
END_TEST

/* Readers that stay longer than a writer spins: it sleeps, and is woken. */
START_TEST(lock__a_sleeping_writer_is_woken)
{
    struct crowd c = {.hold = 200000};
    crowd_run(&c, 3, 1, 20);
}
END_TEST

START_TEST(lock__readers_are_together)
{
    struct sc_rwlock lock;
    pthread_t thread;
    struct crowd c = {.hold = 1};
    ck_assert_int_eq(sc_rwlock_init(&c.lock, SC_RANK_ENGINE), SC_OK);
    ck_assert_int_eq(sc_rwlock_init(&lock, SC_RANK_ENGINE), SC_OK);
    sc_rwlock_lock_shared(&c.lock); /* another reader comes and goes meanwhile */
    ck_assert_int_eq(pthread_create(&thread, NULL, crowd_read, &c), 0);
    while (atomic_load(&c.reads) < 10) sched_yield();
    atomic_store(&c.stop, 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    sc_rwlock_unlock_shared(&c.lock);
    sc_rwlock_deinit(&c.lock);
    sc_rwlock_lock(&lock); /* locks are not one */
    sc_rwlock_unlock(&lock);
    sc_rwlock_deinit(&lock);
}
END_TEST

#if SC_ASSERT_LEVEL >= 2
START_TEST(lock__falling_rank_aborts)
{
    struct locked l;
    ck_assert_int_eq(sc_rwlock_init(&l.lock, SC_RANK_ENGINE), SC_OK);
    ck_assert_int_eq(sc_mutex_init(&l.mutex, SC_RANK_BASE), SC_OK);
    sc_mutex_lock(&l.mutex);
    sc_rwlock_lock_shared(&l.lock);
}
END_TEST

START_TEST(lock__same_rank_twice_aborts)
{
    struct sc_mutex a, b;
    ck_assert_int_eq(sc_mutex_init(&a, SC_RANK_POOL), SC_OK);
    ck_assert_int_eq(sc_mutex_init(&b, SC_RANK_POOL), SC_OK);
    sc_mutex_lock(&a);
    sc_mutex_lock(&b);
}
END_TEST
#endif

/* ---- assertions ---- */

START_TEST(assert__fails_by_abort_and_logs)
{
    struct seen seen = {0};
    sc_log_set(receive, &seen, SC_LOG_ERROR);
    SC_ASSERT(1 + 1 == 2);
    ck_assert_int_eq(seen.count, 0);
    SC_ASSERT(seen.count == 1);
}
END_TEST

static int evaluated;
static int evaluate(void)
{
    return ++evaluated;
}

START_TEST(assert__debug_form_costs_nothing_at_level_1)
{
    SC_ASSERT_DEBUG(evaluate() > 0);
    ck_assert_int_eq(evaluated, SC_ASSERT_LEVEL >= 2 ? 1 : 0);
    ck_assert_int_gt(evaluate(), 0);
}
END_TEST

static Suite *base_suite(void)
{
    Suite *suite = suite_create("base");
    TCase *tc = tcase_create("status");
    tcase_add_test(tc, status__every_code_has_its_name_and_a_text_of_its_own);
    tcase_add_test(tc, status__unknown_numbers_are_named_too);
    tcase_add_test(tc, version__is_three_numbers);
    tcase_add_test(tc, error__names_function_and_condition_where_it_was_detected);
    tcase_add_test(tc, error__long_texts_are_cut_and_terminated);
    tcase_add_test(tc, error__may_quote_the_record_it_replaces);
    tcase_add_test(tc, error__record_belongs_to_the_thread);
    suite_add_tcase(suite, tc);
    tc = tcase_create("log");
    tcase_add_test(tc, log__is_silent_by_default_and_after_null);
    tcase_add_test(tc, log__delivers_fields_at_or_above_the_level);
    tcase_add_test(tc, log__cuts_long_values_and_drops_the_thirteenth_field);
    suite_add_tcase(suite, tc);
    tc = tcase_create("prng and clock");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, prng__bits_are_fixed_by_the_seed);
    tcase_add_test(tc, prng__below_stays_below_and_reaches_all);
    tcase_add_test(tc, prng__unit_and_normal_have_their_moments);
    tcase_add_test(tc, clock__never_goes_back);
    tcase_add_test(tc, clock__of_a_thread_counts_its_work);
    suite_add_tcase(suite, tc);
    tc = tcase_create("lock");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, lock__init_refuses_null);
    tcase_add_test(tc, lock__excludes);
    tcase_add_test(tc, lock__readers_see_whole_writes);
    tcase_add_test(tc, lock__a_sleeping_writer_is_woken);
    tcase_add_test(tc, lock__readers_are_together);
#if SC_ASSERT_LEVEL >= 2
    tcase_add_test_raise_signal(tc, lock__falling_rank_aborts, SIGABRT);
    tcase_add_test_raise_signal(tc, lock__same_rank_twice_aborts, SIGABRT);
#endif
    suite_add_tcase(suite, tc);
    tc = tcase_create("assert");
    tcase_add_test_raise_signal(tc, assert__fails_by_abort_and_logs, SIGABRT);
    tcase_add_test(tc, assert__debug_form_costs_nothing_at_level_1);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(base_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

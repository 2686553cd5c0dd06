/* SPDX-License-Identifier: Apache-2.0 */
/* The host tier, and how much memory it may take: on roots of our own making. */
#include <math.h>
#include <pthread.h>

#include "snapshot_fixture.h"
#include "support/test_scale.h"
#include "tier/host_store.h"
#include "tier_fixture.h"

static struct sc_host_store *host(uint64_t blocks, uint32_t entry_max)
{
    struct sc_host_store_options options = {.bytes_max = blocks * 4096, .entry_max = entry_max};
    struct sc_host_store *store = NULL;
    ck_assert_int_eq(sc_host_store_create(&options, &store), SC_OK);
    return store;
}

static sc_status put(struct sc_host_store *store, uint64_t key, uint64_t bytes, double value)
{
    void *memory = NULL;
    sc_status status = sc_host_store_reserve(store, key, bytes, value, &memory);
    if (status != SC_OK) return status;
    ck_assert_uint_eq((uintptr_t)memory % 4096, 0);
    tier_fill(memory, bytes, key);
    return sc_host_store_complete(store, key);
}

static bool holds(struct sc_host_store *store, uint64_t key, uint64_t bytes)
{
    const void *memory = NULL;
    uint64_t got = 0;
    if (sc_host_store_acquire(store, key, &memory, &got) != SC_OK) return false;
    bool same = got == bytes && tier_holds(memory, bytes, key);
    ck_assert_int_eq(sc_host_store_release(store, key), SC_OK);
    return same;
}

static struct sc_host_store_stats stats(struct sc_host_store *store)
{
    struct sc_host_store_stats out;
    ck_assert_int_eq(sc_host_store_stats_get(store, &out), SC_OK);
    return out;
}

START_TEST(host__entries_come_back_and_the_oldest_go)
{
    struct sc_host_store *store = host(10, 100);
    for (uint64_t i = 0; i < 10; i++) ck_assert_int_eq(put(store, i, 4000, 0), SC_OK);
    ck_assert(holds(store, 0, 4000)); /* a use */
    ck_assert_int_eq(put(store, 10, 8000, 0), SC_OK); /* two blocks: 1 and 2 go */
    ck_assert(!sc_host_store_has(store, 1) && !sc_host_store_has(store, 2));
    ck_assert(holds(store, 0, 4000) && holds(store, 10, 8000));
    for (uint64_t i = 3; i < 10; i++) ck_assert(holds(store, i, 4000));
    ck_assert_uint_eq(stats(store).evicted_count, 2);
    ck_assert_uint_eq(stats(store).used_bytes, 10 * 4096);
    ck_assert(!stats(store).pinned);
    uint64_t key = 0;
    ck_assert_int_eq(sc_host_store_next_victim(store, &key), SC_OK);
    ck_assert_uint_eq(key, 0);
    sc_host_store_destroy(store);
}
END_TEST

START_TEST(report_64__a_host_tier_evicts_no_more_than_it_needs)
{
    struct sc_host_store *store = host(100, 1000);
    for (uint64_t i = 0; i < 100; i++) ck_assert_int_eq(put(store, i, 4096, 0), SC_OK);
    for (uint64_t n = 1, evicted = 0; n <= 8; n++) { /* n blocks: the n oldest */
        ck_assert_int_eq(put(store, 1000 + n, n * 4096, 0), SC_OK);
        evicted += n;
        ck_assert_uint_eq(stats(store).evicted_count, evicted);
        ck_assert_uint_eq(stats(store).entry_count, 100 - evicted + n);
        for (uint64_t i = 0; i < 100; i++) {
            ck_assert_int_eq(sc_host_store_has(store, i), i >= evicted);
        }
    }
    sc_host_store_destroy(store);
}
END_TEST

/* Room in several pieces is room; what is read stays where it is. */
START_TEST(host__gaps_are_joined)
{
    struct sc_host_store *store = host(20, 100);
    const void *memory = NULL;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < 10; i++) ck_assert_int_eq(put(store, i, 8000, 5), SC_OK);
    for (uint64_t i = 0; i < 10; i += 2) ck_assert_int_eq(sc_host_store_drop(store, i), SC_OK);
    if (_i) ck_assert_int_eq(sc_host_store_acquire(store, 3, &memory, &bytes), SC_OK);
    ck_assert_int_eq(put(store, 20, 3 * 4096, 0), SC_OK); /* it evicts nothing of value 5 */
    ck_assert_int_eq(put(store, 21, 3 * 4096, 0), SC_OK);
    ck_assert_int_eq(put(store, 22, 4 * 4096, -1), _i ? SC_ERR_LIMIT : SC_OK);
    ck_assert_uint_eq(stats(store).evicted_count, 0);
    for (uint64_t i = 1; i < 10; i += 2) ck_assert(holds(store, i, 8000));
    ck_assert(holds(store, 20, 3 * 4096) && holds(store, 21, 3 * 4096));
    if (_i) {
        ck_assert(tier_holds(memory, 8000, 3));
        ck_assert_int_eq(sc_host_store_release(store, 3), SC_OK);
        ck_assert_int_eq(put(store, 22, 4 * 4096, -1), SC_OK);
    }
    ck_assert(holds(store, 22, 4 * 4096));
    ck_assert_uint_eq(stats(store).used_bytes, 20 * 4096);
    ck_assert_int_eq(put(store, 23, 4096, -2), SC_ERR_LIMIT); /* full */
    sc_host_store_destroy(store);
}
END_TEST

/* Entries are read and dropped while others are moved for new ones. */
struct shuffled { struct sc_host_store *store; _Atomic bool over; _Atomic uint64_t wrong, hits; };

static uint64_t shuffled_bytes(uint64_t key)
{
    return 100 + sc_mix64(key) % 60000;
}

static void *read_shuffled(void *arg)
{
    struct shuffled *shuffled = arg;
    struct sc_prng prng;
    sc_prng_seed(&prng, 3);
    while (!atomic_load(&shuffled->over)) {
        uint64_t key = sc_prng_below(&prng, 64), bytes = 0;
        const void *memory = NULL;
        if (sc_host_store_acquire(shuffled->store, key, &memory, &bytes) != SC_OK) continue;
        bool same = bytes == shuffled_bytes(key) && tier_holds(memory, bytes, key);
        same = sc_host_store_release(shuffled->store, key) == SC_OK && same;
        atomic_fetch_add(same ? &shuffled->hits : &shuffled->wrong, 1);
    }
    return NULL;
}

START_TEST(host__entries_that_move_are_whole_for_readers)
{
    struct shuffled shuffled = {.store = host(200, 100)};
    struct sc_prng prng;
    pthread_t readers[2];
    uint64_t turns = test_scaled(20000, 500), stored = 0;
    sc_prng_seed(&prng, 1);
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_create(&readers[i], NULL, read_shuffled, &shuffled), 0);
    }
    for (uint64_t turn = 0; turn < turns; turn++) {
        uint64_t key = sc_prng_below(&prng, 64);
        if (turn % 3 == 0) (void)sc_host_store_drop(shuffled.store, key);
        else stored += put(shuffled.store, key, shuffled_bytes(key), 0) == SC_OK;
    }
    atomic_store(&shuffled.over, true);
    for (uint32_t i = 0; i < 2; i++) ck_assert_int_eq(pthread_join(readers[i], NULL), 0);
    ck_assert_uint_eq(atomic_load(&shuffled.wrong), 0);
    ck_assert_uint_gt(stored, turns / 10);
    for (uint64_t key = 0; key < 64; key++) {
        if (!sc_host_store_has(shuffled.store, key)) continue;
        ck_assert(holds(shuffled.store, key, shuffled_bytes(key)));
        ck_assert_int_eq(sc_host_store_drop(shuffled.store, key), SC_OK);
    }
    ck_assert_uint_eq(stats(shuffled.store).used_bytes, 0);
    sc_host_store_destroy(shuffled.store);
}
END_TEST

START_TEST(host__what_is_worth_more_stays)
{
    struct sc_host_store *store = host(4, 100);
    for (uint64_t i = 0; i < 4; i++) ck_assert_int_eq(put(store, i, 4096, (double)i), SC_OK);
    ck_assert_int_eq(put(store, 9, 4096, -1), SC_ERR_LIMIT);
    ck_assert_int_eq(put(store, 9, 8192, 0.5), SC_ERR_LIMIT); /* and nothing went for it */
    for (uint64_t i = 0; i < 4; i++) ck_assert(sc_host_store_has(store, i));
    ck_assert_int_eq(put(store, 9, 8192, 1), SC_OK);
    ck_assert(!sc_host_store_has(store, 0) && !sc_host_store_has(store, 1));
    ck_assert_int_eq(put(store, 10, 5 * 4096, 100), SC_ERR_LIMIT);
    ck_assert_uint_eq(stats(store).refused_count, 3);
    sc_host_store_destroy(store);
}
END_TEST

/* Report 96: the source of a copy is neither evicted nor overwritten while it runs. */
START_TEST(report_96__a_source_stays_until_its_copy_is_done)
{
    struct sc_host_store *store = host(4, 8);
    const void *memory = NULL;
    void *other = NULL;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < 4; i++) ck_assert_int_eq(put(store, i, 4096, 0), SC_OK);
    ck_assert_int_eq(sc_host_store_acquire(store, 0, &memory, &bytes), SC_OK);
    for (uint64_t i = 4; i < 40; i++) ck_assert_int_eq(put(store, i, 4096, 0), SC_OK);
    ck_assert(tier_holds(memory, 4096, 0));
    ck_assert_int_eq(sc_host_store_reserve(store, 50, 4 * 4096, 9, &other), SC_ERR_LIMIT);
    ck_assert_int_eq(sc_host_store_drop(store, 0), SC_OK); /* no hit any more; its bytes stay */
    ck_assert(!sc_host_store_has(store, 0));
    ck_assert_int_eq(sc_host_store_drop(store, 0), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_host_store_reserve(store, 0, 4096, 9, &other), SC_ERR_BUSY);
    for (uint64_t i = 40; i < 50; i++) ck_assert_int_eq(put(store, i, 4096, 0), SC_OK);
    ck_assert(tier_holds(memory, 4096, 0));
    ck_assert_int_eq(sc_host_store_release(store, 0), SC_OK);
    ck_assert_int_eq(put(store, 0, 4096, 0), SC_OK);
    ck_assert(holds(store, 0, 4096));
    sc_host_store_destroy(store);
}
END_TEST

/* Report 110: each pin is given back once; more is an error that changes nothing. */
START_TEST(report_110__a_pin_is_given_back_once)
{
    struct sc_host_store *store = host(4, 8);
    const void *memory = NULL;
    uint64_t bytes = 0;
    ck_assert_int_eq(put(store, 1, 4096, 0), SC_OK);
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_int_eq(sc_host_store_acquire(store, 1, &memory, &bytes), SC_OK);
    }
    for (uint32_t i = 0; i < 5; i++) ck_assert_int_eq(sc_host_store_release(store, 1), SC_OK);
    ck_assert_int_eq(sc_host_store_release(store, 1), SC_ERR_STATE);
    ck_assert_int_eq(sc_host_store_release(store, 2), SC_ERR_STATE);
    ck_assert_uint_eq(stats(store).acquired_count, 0);
    ck_assert(holds(store, 1, 4096));
    sc_host_store_destroy(store);
}
END_TEST

START_TEST(host__what_is_not_complete_is_no_hit)
{
    struct sc_host_store *store = host(4, 8);
    const void *source = NULL;
    void *memory = NULL;
    uint64_t bytes = 0;
    ck_assert_int_eq(sc_host_store_reserve(store, 1, 100, 0, &memory), SC_OK);
    ck_assert(!sc_host_store_has(store, 1));
    ck_assert_int_eq(sc_host_store_acquire(store, 1, &source, &bytes), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_host_store_reserve(store, 1, 100, 0, &memory), SC_ERR_BUSY);
    ck_assert_int_eq(sc_host_store_drop(store, 1), SC_ERR_BUSY);
    ck_assert_int_eq(sc_host_store_cancel(store, 1), SC_OK); /* the copy failed */
    ck_assert_int_eq(sc_host_store_cancel(store, 1), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_host_store_complete(store, 1), SC_ERR_NOT_FOUND);
    ck_assert_uint_eq(stats(store).used_bytes, 0);
    ck_assert_int_eq(put(store, 1, 100, 0), SC_OK);
    ck_assert_int_eq(sc_host_store_reserve(store, 1, 100, 0, &memory), SC_ERR_STATE);
    sc_host_store_destroy(store);
}
END_TEST

START_TEST(host__refuses_bad_arguments)
{
    struct sc_host_store_options options = {.bytes_max = 4096, .entry_max = 1};
    struct sc_host_store *store = NULL;
    void *memory = NULL;
    const void *source = NULL;
    uint64_t n = 0;
    ck_assert_int_eq(sc_host_store_create(NULL, &store), SC_ERR_INVALID);
    ck_assert_int_eq(sc_host_store_create(&options, NULL), SC_ERR_INVALID);
    options.bytes_max = 4095;
    ck_assert_int_eq(sc_host_store_create(&options, &store), SC_ERR_INVALID);
    options = (struct sc_host_store_options){.bytes_max = 4096, .entry_max = 0};
    ck_assert_int_eq(sc_host_store_create(&options, &store), SC_ERR_INVALID);
    options.entry_max = 1;
    options.must_pin = true;
    ck_assert_int_eq(sc_host_store_create(&options, &store), SC_ERR_UNSUPPORTED);
    options.must_pin = false;
    ck_assert_int_eq(sc_host_store_create(&options, &store), SC_OK);
    ck_assert_int_eq(sc_host_store_reserve(store, 1, 0, 0, &memory), SC_ERR_INVALID);
    ck_assert_int_eq(sc_host_store_reserve(store, 1, 1, (double)NAN, &memory), SC_ERR_INVALID);
    ck_assert_int_eq(sc_host_store_reserve(store, 1, 1, 0, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_host_store_reserve(NULL, 1, 1, 0, &memory), SC_ERR_INVALID);
    ck_assert_int_eq(sc_host_store_reserve(store, 1, UINT64_MAX, 0, &memory), SC_ERR_LIMIT);
    ck_assert_int_eq(sc_host_store_acquire(NULL, 1, &source, &n), SC_ERR_INVALID);
    ck_assert_int_eq(sc_host_store_next_victim(store, &n), SC_ERR_NOT_FOUND);
    ck_assert(!sc_host_store_has(NULL, 1));
    ck_assert_int_eq(put(store, 1, 1, 0), SC_OK);
    ck_assert_int_eq(sc_host_store_reserve(store, 2, 1, -1, &memory), SC_ERR_LIMIT);
    sc_host_store_destroy(store);
    sc_host_store_destroy(NULL);
}
END_TEST

START_TEST(host__every_allocation_failing_once)
{
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    struct sc_host_store_options options = {.bytes_max = 65536, .entry_max = 40,
        .allocator = &fa.allocator};
    for (uint64_t n = 1;; n++) {
        struct sc_host_store *store = NULL;
        fail_alloc_arm(&fa, n);
        sc_status status = sc_host_store_create(&options, &store);
        for (uint64_t key = 0; key < 16 && status == SC_OK; key++) {
            status = put(store, key, 4096, 0);
            if (status != SC_OK) ck_assert_uint_eq(stats(store).used_bytes, key * 4096);
        }
        bool failed = fail_alloc_disarm(&fa);
        ck_assert_int_eq(status, failed ? SC_ERR_NO_MEMORY : SC_OK);
        sc_host_store_destroy(store);
        ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
        if (!failed) break;
    }
}
END_TEST

/* ---- pinning ---- */

static sc_status refuse_pin(sc_backend *b, uint64_t bytes, struct sc_backend_memory *memory_out)
{
    (void)b;
    (void)memory_out;
    return bytes ? SC_ERR_NO_MEMORY : SC_OK;
}

/* Report 103: memory that cannot be pinned is plain memory, and copies from it are right. */
START_TEST(report_103__without_pinned_memory_it_is_plain)
{
    struct fix_backend fix;
    fix_backend_init(&fix, false);
    if (_i) fix.ops.alloc_host = refuse_pin;
    struct sc_host_store_options options = {.bytes_max = 65536, .entry_max = 8,
        .backend = &fix.backend};
    struct sc_host_store *store = NULL;
    ck_assert_int_eq(sc_host_store_create(&options, &store), SC_OK);
    ck_assert(stats(store).pinned == !_i);
    ck_assert_int_eq(put(store, 1, 10000, 0), SC_OK);
    ck_assert(holds(store, 1, 10000));
    sc_host_store_destroy(store);
    options.must_pin = true;
    sc_status status = sc_host_store_create(&options, &store);
    ck_assert_int_eq(status, _i ? SC_ERR_UNSUPPORTED : SC_OK);
    if (status == SC_OK) sc_host_store_destroy(store);
}
END_TEST

/* ---- limits ---- */

static char root[200];

static void write_file(const char *path, const char *text)
{
    char name[600], command[700];
    (void)snprintf(name, sizeof name, "%s%s", root, path);
    (void)snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s')\"", name);
    ck_assert_int_eq(system(command), 0);
    FILE *file = fopen(name, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void root_make(void)
{
    tier_folder_make(root, sizeof root, true);
    write_file("/proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable:  800000 kB\n");
}

static void root_remove(void)
{
    char command[300];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", root);
    ck_assert_int_eq(system(command), 0);
}

static uint64_t limit(uint64_t reserve, uint32_t share_count)
{
    uint64_t bytes = 0;
    ck_assert_int_eq(sc_host_limit(root, reserve, share_count, &bytes), SC_OK);
    return bytes;
}

START_TEST(limit__is_what_the_host_has)
{
    ck_assert_uint_eq(limit(0, 1), UINT64_C(800000) * 1024);
    ck_assert_uint_eq(limit(800000, 1), UINT64_C(800000) * 1024 - 800000);
    ck_assert_uint_eq(limit(UINT64_MAX, 1), 0);
    write_file("/proc/meminfo", "nothing\n");
    uint64_t bytes = 0;
    ck_assert_int_eq(sc_host_limit(root, 0, 1, &bytes), SC_ERR_IO);
    ck_assert_int_eq(sc_host_limit("/nonexistent", 0, 1, &bytes), SC_ERR_IO);
    ck_assert_int_eq(sc_host_limit(root, 0, 0, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_host_limit(root, 0, 1, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_host_limit(NULL, 0, 1, &bytes), SC_OK); /* the real one */
    ck_assert_uint_gt(bytes, 0);
}
END_TEST

START_TEST(limit__cgroup_v2_counts_every_level)
{
    write_file("/proc/self/cgroup", "0::/a/b/c\n");
    write_file("/sys/fs/cgroup/a/b/c/memory.max", "max\n");
    write_file("/sys/fs/cgroup/a/b/c/memory.current", "5\n");
    ck_assert_uint_eq(limit(0, 1), UINT64_C(800000) * 1024);
    write_file("/sys/fs/cgroup/a/memory.max", "5000000\n"); /* of the one two above */
    write_file("/sys/fs/cgroup/a/memory.current", "2000000\n");
    ck_assert_uint_eq(limit(0, 1), 3000000);
    write_file("/sys/fs/cgroup/a/b/c/memory.max", "1000000\n");
    ck_assert_uint_eq(limit(0, 1), 999995);
    write_file("/sys/fs/cgroup/a/b/memory.high", "400000\n");
    ck_assert_uint_eq(limit(0, 1), 400000);
    write_file("/sys/fs/cgroup/a/b/memory.current", "500000\n"); /* above it already */
    ck_assert_uint_eq(limit(0, 1), 0);
}
END_TEST

START_TEST(limit__cgroup_v1_and_paths_that_are_not_mounted_here)
{
    write_file("/proc/self/cgroup",
        "12:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/abc\n1:name=systemd:/y\n");
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
    ck_assert_uint_eq(limit(0, 1), UINT64_C(800000) * 1024);
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n");
    ck_assert_uint_eq(limit(0, 1), 104857600 - 1000);
    write_file("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "50000000\n");
    write_file("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "10000000\n");
    ck_assert_uint_eq(limit(0, 1), 40000000);
    write_file("/proc/self/cgroup", "4:memories:/docker/abc\n"); /* another controller */
    ck_assert_uint_eq(limit(0, 1), UINT64_C(800000) * 1024);
}
END_TEST

/* Report 101: ranks of one host share one limit, cgroup included, before anything is pinned. */
START_TEST(report_101__ranks_share_what_the_cgroup_has)
{
    write_file("/proc/self/cgroup", "0::/pod\n");
    write_file("/sys/fs/cgroup/pod/memory.max", "104857600\n"); /* 100 MiB, four ranks */
    write_file("/sys/fs/cgroup/pod/memory.current", "4857600\n");
    ck_assert_uint_eq(limit(20000000, 4), 20000000);
    ck_assert_uint_le(4 * limit(0, 4), 100000000);
    struct sc_host_store_options options = {.bytes_max = 60000000, .entry_max = 8,
        .check_limit = true, .system_root = root};
    struct sc_host_store *store = NULL;
    ck_assert_int_eq(sc_host_store_create(&options, &store), SC_OK);
    ck_assert_uint_eq(stats(store).bytes_max, 60000000 / 4096 * 4096);
    sc_host_store_destroy(store);
    options.bytes_max = 100000001;
    ck_assert_int_eq(sc_host_store_create(&options, &store), SC_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "100000000"));
}
END_TEST

/* ---- threads ---- */

struct crowd { struct sc_host_store *store; uint32_t index; uint64_t turns, wrong; };

static void *crowd_run(void *arg)
{
    struct crowd *crowd = arg;
    struct sc_prng prng;
    sc_prng_seed(&prng, crowd->index);
    for (uint64_t turn = 0; turn < crowd->turns; turn++) {
        uint64_t key = sc_prng_below(&prng, 24), bytes = 1000 + key * 700;
        sc_status status = put(crowd->store, key, bytes, (double)(key % 3));
        if (status != SC_OK && status != SC_ERR_STATE && status != SC_ERR_BUSY &&
            status != SC_ERR_LIMIT) {
            crowd->wrong++;
        }
        const void *memory = NULL;
        uint64_t got = 0;
        key = sc_prng_below(&prng, 24);
        if (sc_host_store_acquire(crowd->store, key, &memory, &got) == SC_OK) {
            if (got != 1000 + key * 700 || !tier_holds(memory, got, key)) crowd->wrong++;
            if (sc_host_store_release(crowd->store, key) != SC_OK) crowd->wrong++;
        }
        if (turn % 9 == 0) (void)sc_host_store_drop(crowd->store, key);
    }
    return NULL;
}

/* Report 108 at this tier: what comes back is the entry that was asked for. */
START_TEST(report_108__entries_are_never_mixed_up)
{
    struct sc_host_store *store = host(20, 12);
    struct crowd crowds[4];
    pthread_t threads[4];
    for (uint32_t i = 0; i < 4; i++) {
        crowds[i] = (struct crowd){store, i, test_scaled(3000, 500), 0};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, crowd_run, &crowds[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_uint_eq(crowds[i].wrong, 0);
    }
    ck_assert_uint_gt(stats(store).hit_count, 0);
    ck_assert_uint_gt(stats(store).evicted_count, 0);
    ck_assert_uint_eq(stats(store).acquired_count + stats(store).writing_count, 0);
    sc_host_store_destroy(store);
}
END_TEST

static Suite *host_suite(void)
{
    Suite *suite = suite_create("tier/host");
    TCase *tcase = tcase_create("host");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, host__entries_come_back_and_the_oldest_go);
    tcase_add_test(tcase, report_64__a_host_tier_evicts_no_more_than_it_needs);
    tcase_add_test(tcase, host__what_is_worth_more_stays);
    tcase_add_loop_test(tcase, host__gaps_are_joined, 0, 2);
    tcase_add_test(tcase, host__entries_that_move_are_whole_for_readers);
    tcase_add_test(tcase, report_96__a_source_stays_until_its_copy_is_done);
    tcase_add_test(tcase, report_110__a_pin_is_given_back_once);
    tcase_add_test(tcase, host__what_is_not_complete_is_no_hit);
    tcase_add_test(tcase, host__refuses_bad_arguments);
    tcase_add_test(tcase, host__every_allocation_failing_once);
    tcase_add_loop_test(tcase, report_103__without_pinned_memory_it_is_plain, 0, 2);
    tcase_add_test(tcase, report_108__entries_are_never_mixed_up);
    TCase *limits = tcase_create("limit");
    tcase_add_checked_fixture(limits, root_make, root_remove);
    tcase_add_test(limits, limit__is_what_the_host_has);
    tcase_add_test(limits, limit__cgroup_v2_counts_every_level);
    tcase_add_test(limits, limit__cgroup_v1_and_paths_that_are_not_mounted_here);
    tcase_add_test(limits, report_101__ranks_share_what_the_cgroup_has);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, limits);
    return suite;
}

int main(void)
{
    return tier_main(host_suite());
}

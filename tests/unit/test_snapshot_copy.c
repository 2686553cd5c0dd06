/* SPDX-License-Identifier: Apache-2.0 */
/* sc_state_copy: every layout pair, refusals that change nothing, as few spans as possible. */
#include <pthread.h>
#include <sys/mman.h>

#include "snapshot_fixture.h"
#include "support/test_scale.h"

static const sc_layout layouts[2] = {SC_LAYOUT_PAGE_MAJOR, SC_LAYOUT_CONTIGUOUS};

/* Loop index -> model, source layout, destination layout. */
enum { PAIRS = FIX_COUNT * 4 };
static enum fixture_model pair_model(int i)
{
    return (enum fixture_model)(i / 4);
}
static sc_layout pair_from(int i)
{
    return layouts[(i >> 1) & 1];
}
static sc_layout pair_to(int i)
{
    return layouts[i & 1];
}

/* ---- what is copied ---- */

START_TEST(copy__moves_every_part_and_nothing_else)
{
    sc_pool *from = fix_pool(pair_model(_i), pair_from(_i), 7);
    sc_pool *to = fix_pool(pair_model(_i), pair_to(_i), 9);
    sc_slot a[7], b[9];
    fix_take(from, 7, 100, a);
    fix_take(to, 9, 500, b);
    /* one source twice, the null slot, skipped rows on either side; order up and down */
    const int32_t rows_from[7] = {3, 7, -1, 3, 0, 5, 1};
    const int32_t rows_to[7] = {8, 2, 4, 1, 9, -1, 3};
    struct fix_image before = fix_image(from);
    ck_assert_int_eq(sc_state_copy(from, rows_from, to, rows_to, 7), SC_OK);
    ck_assert(fix_same(before));
    const uint32_t tags[10] = {0, 103, 107, 101, 504, 505, 506, 507, 103, 0};
    for (uint32_t slot = 0; slot < 10; slot++) {
        ck_assert_msg(fix_holds(to, slot, tags[slot]), "slot %u", slot);
    }
    free(before.bytes);
    fix_end(from, a, 7);
    fix_end(to, b, 9);
}
END_TEST

START_TEST(copy__within_one_pool)
{
    sc_pool *pool = fix_pool(pair_model(_i), pair_from(_i), 6);
    sc_slot slots[6];
    fix_take(pool, 6, 40, slots);
    const int32_t from[4] = {1, 1, 0, 2}, to[4] = {4, 3, 6, 2}; /* the last onto itself */
    ck_assert_int_eq(sc_state_copy(pool, from, pool, to, 4), SC_OK);
    const uint32_t tags[7] = {0, 41, 42, 41, 41, 45, 0};
    for (uint32_t slot = 0; slot < 7; slot++) {
        ck_assert_msg(fix_holds(pool, slot, tags[slot]), "slot %u", slot);
    }
    fix_end(pool, slots, 6);
}
END_TEST

/* Bytes that belong to no part of a destination: the memory around it stays as it was. */
START_TEST(copy__leaves_all_memory_outside_the_destination)
{
    sc_pool *from = fix_pool(pair_model(_i), pair_from(_i), 4);
    sc_pool *to = fix_pool(pair_model(_i), pair_to(_i), 4);
    sc_slot a[4], b[4];
    fix_take(from, 4, 10, a);
    fix_take(to, 4, 20, b);
    struct fix_image before = fix_image(to);
    const int32_t row_from = 2, row_to = 3;
    ck_assert_int_eq(sc_state_copy(from, &row_from, to, &row_to, 1), SC_OK);
    sc_pool_info info = fix_info(to);
    uint8_t *mine = malloc(before.count); /* 1: may have changed */
    memset(mine, 0, before.count);
    uint64_t first = UINT64_MAX;
    for (uint32_t part = 0; part < info.part_count; part++) {
        uint64_t at = (uint64_t)(fix_bytes(to, part, 3) - (uint8_t *)sc_host_ptr(info.base));
        memset(mine + at, 1, fix_view(to, part).bytes);
        if (at < first) first = at;
    }
    if (pair_to(_i) == SC_LAYOUT_PAGE_MAJOR) memset(mine + first, 1, info.slot_bytes); /* padding */
    const uint8_t *now = before.of;
    for (uint64_t i = 0; i < before.count; i++) {
        ck_assert(mine[i] || now[i] == before.bytes[i]);
    }
    free(mine);
    free(before.bytes);
    fix_end(from, a, 4);
    fix_end(to, b, 4);
}
END_TEST

START_TEST(copy__onto_itself_moves_no_byte)
{
    struct fix_backend fix;
    fix_backend_init(&fix, true);
    sc_pool *pool = fix_pool_with(FIX_GDN, pair_from(_i), 3, &fix.backend, NULL, NULL);
    sc_slot slots[3];
    fix_take(pool, 3, 5, slots);
    struct fix_image before = fix_image(pool);
    fix_backend_reset(&fix);
    const int32_t ids[3] = {1, 2, 3};
    ck_assert_int_eq(sc_state_copy(pool, ids, pool, ids, 3), SC_OK);
    ck_assert_uint_eq(fix.bytes, 0);
    ck_assert(fix_same(before));
    free(before.bytes);
    fix_end(pool, slots, 3);
}
END_TEST

START_TEST(copy__no_rows_is_fine)
{
    sc_pool *from = fix_pool(FIX_KDA, layouts[0], 2), *to = fix_pool(FIX_KDA, layouts[1], 2);
    const int32_t none[3] = {-1, -1, -1}, free_ids[3] = {1, 2, 1};
    ck_assert_int_eq(sc_state_copy(from, NULL, to, NULL, 0), SC_OK);
    ck_assert_int_eq(sc_state_copy(from, none, to, none, 3), SC_OK);
    /* the other end of a skipped row is not looked at: nothing is allocated here */
    ck_assert_int_eq(sc_state_copy(from, free_ids, to, none, 3), SC_OK);
    ck_assert_int_eq(sc_state_copy(from, none, to, free_ids, 3), SC_OK);
    fix_end(from, NULL, 0);
    fix_end(to, NULL, 0);
}
END_TEST

START_TEST(copy__random_rows_agree_with_a_naive_model)
{
    enum { SLOTS = 24 };
    struct sc_prng prng;
    sc_pool *pools[2] = {fix_pool(pair_model(_i), pair_from(_i), SLOTS),
        fix_pool(pair_model(_i), pair_to(_i), SLOTS)};
    sc_slot slots[2][SLOTS];
    uint32_t tags[2][SLOTS + 1] = {{0}};
    sc_prng_seed(&prng, 7 + (uint64_t)_i);
    for (uint32_t p = 0; p < 2; p++) {
        fix_take(pools[p], SLOTS, 1000 * (p + 1), slots[p]);
        for (uint32_t s = 1; s <= SLOTS; s++) tags[p][s] = 1000 * (p + 1) + s;
    }
    uint64_t done = 0, refused = 0, steps = test_scaled(150, 60);
    for (uint64_t step = 0; step < steps; step++) {
        uint32_t p = (uint32_t)sc_prng_below(&prng, 2), q = (uint32_t)sc_prng_below(&prng, 2);
        int32_t from[8], to[8];
        uint32_t count = (uint32_t)sc_prng_below(&prng, 9), wanted[SLOTS + 1];
        bool bad = false;
        memcpy(wanted, tags[q], sizeof wanted);
        for (uint32_t i = 0; i < count; i++) {
            from[i] = (int32_t)sc_prng_below(&prng, SLOTS + 2) - 1;
            to[i] = (int32_t)sc_prng_below(&prng, SLOTS + 2) - 1;
            if (to[i] == 0) to[i] = -1;
        }
        for (uint32_t i = 0; i < count; i++) {
            if (from[i] < 0 || to[i] < 0) continue;
            wanted[to[i]] = tags[p][from[i]];
            for (uint32_t j = 0; j < count; j++) {
                if (j == i || from[j] < 0 || to[j] < 0) continue;
                if (to[j] == to[i] || (p == q && from[j] == to[i])) bad = true;
            }
        }
        sc_status status = sc_state_copy(pools[p], from, pools[q], to, count);
        ck_assert_int_eq(status, bad ? SC_ERR_INVALID : SC_OK);
        if (!bad) memcpy(tags[q], wanted, sizeof wanted);
        refused += bad;
        done += !bad;
        for (uint32_t s = 0; s <= SLOTS; s++) {
            ck_assert(fix_holds(pools[q], s, tags[q][s]));
        }
    }
    ck_assert_uint_gt(refused, steps / 20);
    ck_assert_uint_gt(done, steps / 5);
    fix_end(pools[0], slots[0], SLOTS);
    fix_end(pools[1], slots[1], SLOTS);
}
END_TEST

/* ---- how it is copied ---- */

START_TEST(copy__a_page_major_state_is_one_descriptor)
{
    struct fix_backend fix;
    fix_backend_init(&fix, true);
    sc_pool *from = fix_pool_with(FIX_KDA, layouts[0], 4, &fix.backend, NULL, NULL);
    sc_pool *to = fix_pool_with(FIX_KDA, layouts[0], 4, &fix.backend, NULL, NULL);
    sc_slot a[4], b[4];
    fix_take(from, 4, 10, a);
    fix_take(to, 4, 20, b);
    const int32_t one_from[1] = {2}, one_to[1] = {3};
    fix_backend_reset(&fix);
    ck_assert_int_eq(sc_state_copy(from, one_from, to, one_to, 1), SC_OK);
    ck_assert_uint_eq(fix.calls, 1);
    ck_assert_uint_eq(fix.spans, 1);
    ck_assert_uint_eq(fix.syncs, 1); /* complete on return */
    const int32_t two_from[2] = {1, 4}, two_to[2] = {4, 1};
    fix_backend_reset(&fix);
    ck_assert_int_eq(sc_state_copy(from, two_from, to, two_to, 2), SC_OK);
    ck_assert_uint_eq(fix.calls, 1);
    ck_assert_uint_eq(fix.spans, 2);
    ck_assert(fix_holds(to, 4, 11) && fix_holds(to, 1, 14) && fix_holds(to, 3, 12));
    fix_end(from, a, 4);
    fix_end(to, b, 4);
}
END_TEST

START_TEST(copy__other_pairs_take_one_span_a_part)
{
    struct fix_backend fix;
    fix_backend_init(&fix, true);
    sc_pool *from = fix_pool_with(FIX_KDA, layouts[_i & 1], 4, &fix.backend, NULL, NULL);
    sc_pool *to = fix_pool_with(FIX_KDA, layouts[1], 4, &fix.backend, NULL, NULL);
    sc_slot a[4], b[4];
    fix_take(from, 4, 10, a);
    fix_take(to, 4, 20, b);
    const int32_t rows_from[2] = {2, 4}, rows_to[2] = {3, 1};
    fix_backend_reset(&fix);
    ck_assert_int_eq(sc_state_copy(from, rows_from, to, rows_to, 2), SC_OK);
    ck_assert_uint_eq(fix.calls, 1);
    ck_assert_uint_eq(fix.spans, 2 * fix_info(from).part_count);
    ck_assert_uint_eq(fix.bytes, 2 * fix_info(from).state_bytes); /* no padding is moved */
    fix_end(from, a, 4);
    fix_end(to, b, 4);
}
END_TEST

START_TEST(copy__neighbours_are_merged)
{
    struct fix_backend fix;
    fix_backend_init(&fix, true);
    sc_pool *from = fix_pool_with(FIX_DENSE, layouts[_i & 1], 8, &fix.backend, NULL, NULL);
    sc_pool *to = fix_pool_with(FIX_DENSE, layouts[_i & 1], 8, &fix.backend, NULL, NULL);
    sc_slot a[8], b[8];
    fix_take(from, 8, 10, a);
    fix_take(to, 8, 20, b);
    const int32_t rows_from[5] = {2, 3, 4, 7, 8}, rows_to[5] = {1, 2, 3, 4, 5};
    fix_backend_reset(&fix);
    ck_assert_int_eq(sc_state_copy(from, rows_from, to, rows_to, 5), SC_OK);
    ck_assert_uint_eq(fix.spans, 2 * (_i & 1 ? fix_info(from).part_count : 1));
    ck_assert_uint_eq(fix.bytes, 5 * fix_info(from).state_bytes);
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert(fix_holds(to, (uint32_t)rows_to[i], 10 + (uint32_t)rows_from[i]));
    }
    fix_end(from, a, 8);
    fix_end(to, b, 8);
}
END_TEST

/* More spans than one list takes: several backend calls, all rows right. */
START_TEST(copy__tens_of_thousands_of_slots_in_one_call)
{
    enum { SLOTS = 33000 }; /* two parts each */
    struct fix_backend fix;
    struct sc_prng prng;
    fix_backend_init(&fix, true);
    sc_pool *from = fix_pool_with(FIX_TINY, layouts[1], SLOTS, &fix.backend, NULL, NULL);
    sc_pool *to = fix_pool_with(FIX_TINY, layouts[0], SLOTS, &fix.backend, NULL, NULL);
    sc_slot *a = calloc(SLOTS, sizeof *a), *b = calloc(SLOTS, sizeof *b);
    int32_t *rows = calloc(2 * SLOTS, sizeof *rows), *rows_to = rows + SLOTS;
    fix_take(from, SLOTS, 1, a);
    fix_take(to, SLOTS, 0, b);
    for (int32_t i = 0; i < SLOTS; i++) rows[i] = rows_to[i] = i + 1;
    sc_prng_seed(&prng, 3);
    for (uint32_t i = SLOTS; i > 1; i--) {
        uint32_t j = (uint32_t)sc_prng_below(&prng, i);
        int32_t swap = rows_to[i - 1];
        rows_to[i - 1] = rows_to[j];
        rows_to[j] = swap;
    }
    int32_t kept = rows_to[12345];
    rows_to[12345] = rows_to[31000]; /* one duplicate among them all */
    struct fix_image before = fix_image(to);
    fix_backend_reset(&fix);
    ck_assert_int_eq(sc_state_copy(from, rows, to, rows_to, SLOTS), SC_ERR_INVALID);
    ck_assert_uint_eq(fix.calls, 0);
    ck_assert(fix_same(before));
    rows_to[12345] = kept;
    ck_assert_int_eq(sc_state_copy(from, rows, to, rows_to, SLOTS), SC_OK);
    ck_assert_uint_eq(fix.calls, 2);
    ck_assert_uint_eq(fix.spans, 2 * SLOTS);
    for (uint32_t i = 0; i < SLOTS; i++) {
        ck_assert(fix_holds(to, (uint32_t)rows_to[i], 1 + (uint32_t)rows[i]));
    }
    free(before.bytes);
    fix_end(from, a, SLOTS);
    fix_end(to, b, SLOTS);
    free(rows);
    free(a);
    free(b);
}
END_TEST

/* A stride that takes slot 3 beyond 4 GiB: 32-bit offsets would land elsewhere. */
START_TEST(copy__offsets_are_64_bit)
{
    const uint64_t stride = UINT64_C(3) << 29, bytes = 5 * stride;
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    const sc_foreign_memory foreign = {.base = sc_host_devptr(map), .bytes = bytes,
        .slot_stride = stride};
    sc_pool *from = fix_pool(FIX_GDN, layouts[_i & 1], 2);
    sc_pool *to = fix_pool_with(FIX_GDN, layouts[0], 4, NULL, NULL, &foreign);
    sc_slot a[2], b[4];
    fix_take(from, 2, 30, a);
    fix_take(to, 4, 60, b);
    ck_assert_int_eq(fix_view(to, 0).slot_stride, (int64_t)stride);
    const int32_t there_from[2] = {1, 2}, there_to[2] = {4, 3};
    ck_assert_int_eq(sc_state_copy(from, there_from, to, there_to, 2), SC_OK);
    ck_assert(fix_holds(to, 4, 31) && fix_holds(to, 3, 32));
    ck_assert(fix_holds(to, 1, 61) && fix_holds(to, 2, 62));
    const int32_t back_from[2] = {4, 2}, back_to[2] = {2, 1};
    ck_assert_int_eq(sc_state_copy(to, back_from, from, back_to, 2), SC_OK);
    ck_assert(fix_holds(from, 2, 31) && fix_holds(from, 1, 62));
    fix_end(from, a, 2);
    fix_end(to, b, 4);
    ck_assert_int_eq(munmap(map, bytes), 0);
}
END_TEST

/* The caller's memory between strided slots is the caller's. */
START_TEST(copy__leaves_the_gaps_of_foreign_memory)
{
    sc_pool *from = fix_pool(FIX_KDA, layouts[_i & 1], 2);
    uint64_t slot_bytes = fix_info(from).slot_bytes;
    uint64_t stride = slot_bytes + 512, bytes = 4 * stride;
    uint8_t *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    ck_assert_ptr_nonnull(memory);
    memset(memory, 0xee, bytes);
    const sc_foreign_memory foreign = {.base = sc_host_devptr(memory), .bytes = bytes,
        .slot_stride = stride};
    sc_pool *to = fix_pool_with(FIX_KDA, layouts[0], 3, NULL, NULL, &foreign);
    sc_slot a[2], b[3];
    fix_take(from, 2, 30, a);
    fix_take(to, 3, 60, b);
    const int32_t rows_from[3] = {1, 2, 0}, rows_to[3] = {1, 2, 3};
    ck_assert_int_eq(sc_state_copy(from, rows_from, to, rows_to, 3), SC_OK);
    ck_assert(fix_holds(to, 1, 31) && fix_holds(to, 2, 32) && fix_holds(to, 3, 0));
    for (uint32_t slot = 0; slot < 4; slot++) {
        for (uint64_t i = slot_bytes; i < stride; i++) {
            ck_assert_uint_eq(memory[slot * stride + i], 0xee);
        }
    }
    fix_end(from, a, 2);
    fix_end(to, b, 3);
    free(memory);
}
END_TEST

/* One array for each part wherever the caller has it, as engines do. */
START_TEST(copy__into_arrays_of_the_caller)
{
    sc_pool *from = fix_pool(FIX_KDA, layouts[_i & 1], 3);
    sc_foreign_part parts[16];
    uint8_t *arrays[16];
    uint32_t part_count = fix_info(from).part_count;
    for (uint32_t p = 0; p < part_count; p++) {
        uint64_t stride = (fix_view(from, p).bytes + 15) / 16 * 16 + 16 * p, bytes = 5 * stride;
        arrays[p] = aligned_alloc(16, bytes);
        ck_assert_ptr_nonnull(arrays[p]);
        memset(arrays[p], 0xee, bytes);
        parts[p] = (sc_foreign_part){.base = sc_host_devptr(arrays[p]), .bytes = bytes,
            .slot_stride = stride};
    }
    const sc_foreign_memory foreign = {.parts = parts, .part_count = part_count};
    sc_pool *to = fix_pool_with(FIX_KDA, layouts[1], 4, NULL, NULL, &foreign);
    sc_slot a[3], b[4];
    fix_take(from, 3, 30, a);
    fix_take(to, 4, 60, b);
    const int32_t rows_from[3] = {2, 0, 3}, rows_to[3] = {4, 1, 3};
    ck_assert_int_eq(sc_state_copy(from, rows_from, to, rows_to, 3), SC_OK);
    ck_assert(fix_holds(to, 4, 32) && fix_holds(to, 1, 0) && fix_holds(to, 3, 33));
    ck_assert(fix_holds(to, 2, 62) && fix_holds(to, 0, 0));
    for (uint32_t p = 0; p < part_count; p++) {
        for (uint64_t i = fix_view(to, p).bytes; i < parts[p].slot_stride; i++) {
            for (uint32_t slot = 0; slot < 5; slot++) {
                ck_assert_uint_eq(arrays[p][slot * parts[p].slot_stride + i], 0xee);
            }
        }
    }
    ck_assert_int_eq(sc_state_copy(to, rows_to, from, rows_from, 1), SC_OK);
    ck_assert(fix_holds(from, 2, 32));
    fix_end(from, a, 3);
    fix_end(to, b, 4);
    for (uint32_t p = 0; p < part_count; p++) free(arrays[p]);
}
END_TEST

struct worker { pthread_t thread; sc_pool *from, *to; uint32_t first; sc_status status; };

static void *worker_run(void *arg)
{
    struct worker *worker = arg;
    for (uint32_t round = 0; round < 50 && worker->status == SC_OK; round++) {
        int32_t from[4], to[4];
        for (uint32_t i = 0; i < 4; i++) {
            from[i] = (int32_t)(1 + (worker->first + i + round) % 16); /* sources are shared */
            to[i] = (int32_t)(1 + worker->first + i);
        }
        worker->status = sc_state_copy(worker->from, from, worker->to, to, 4);
    }
    return NULL;
}

START_TEST(copy__threads_with_slots_of_their_own)
{
    sc_pool *from = fix_pool(FIX_GDN, layouts[_i & 1], 16), *to = fix_pool(FIX_GDN, layouts[0], 16);
    sc_slot a[16], b[16];
    struct worker workers[4];
    fix_take(from, 16, 30, a);
    fix_take(to, 16, 60, b);
    for (uint32_t w = 0; w < 4; w++) {
        workers[w] = (struct worker){.from = from, .to = to, .first = 4 * w, .status = SC_OK};
        ck_assert_int_eq(pthread_create(&workers[w].thread, NULL, worker_run, &workers[w]), 0);
    }
    for (uint32_t w = 0; w < 4; w++) {
        ck_assert_int_eq(pthread_join(workers[w].thread, NULL), 0);
        ck_assert_int_eq(workers[w].status, SC_OK);
    }
    for (uint32_t slot = 0; slot < 16; slot++) {
        ck_assert(fix_holds(to, 1 + slot, 30 + 1 + (slot + 49) % 16));
    }
    fix_end(from, a, 16);
    fix_end(to, b, 16);
}
END_TEST

START_TEST(copy__goes_the_right_way_between_host_and_device)
{
    struct fix_backend device, other;
    fix_backend_init(&device, false);
    fix_backend_init(&other, false);
    sc_pool *host = fix_pool(FIX_GDN, layouts[_i & 1], 2);
    sc_pool *dev = fix_pool_with(FIX_GDN, layouts[0], 2, &device.backend, NULL, NULL);
    sc_pool *far = fix_pool_with(FIX_GDN, layouts[0], 2, &other.backend, NULL, NULL);
    sc_slot a[2], b[2], c[2];
    fix_take(host, 2, 30, a);
    fix_take(dev, 2, 60, b);
    fix_take(far, 2, 90, c);
    const int32_t one = 1, two = 2;
    fix_backend_reset(&device);
    ck_assert_int_eq(sc_state_copy(host, &one, dev, &two, 1), SC_OK);
    ck_assert_uint_eq(device.calls, 1);
    ck_assert_int_eq((int)device.kind, SC_COPY_H2D);
    ck_assert_int_eq(sc_state_copy(dev, &one, host, &two, 1), SC_OK);
    ck_assert_uint_eq(device.calls, 2);
    ck_assert_int_eq((int)device.kind, SC_COPY_D2H);
    ck_assert_int_eq(sc_state_copy(dev, &one, dev, &two, 1), SC_OK);
    ck_assert_uint_eq(device.calls, 3);
    ck_assert_int_eq((int)device.kind, SC_COPY_D2D);
    ck_assert(fix_holds(host, 2, 61) && fix_holds(dev, 2, 61));
    ck_assert_int_eq(sc_state_copy(dev, &one, far, &two, 1), SC_ERR_UNSUPPORTED);
    ck_assert(fix_holds(far, 2, 92));
    fix_end(host, a, 2);
    fix_end(dev, b, 2);
    fix_end(far, c, 2);
}
END_TEST

/* ---- refusals ---- */

static void refuse(sc_pool *from, const int32_t *rows_from, sc_pool *to, const int32_t *rows_to,
    uint32_t count, sc_status wanted)
{
    struct fix_image a = fix_image(from), b = fix_image(to);
    ck_assert_int_eq(sc_state_copy(from, rows_from, to, rows_to, count), wanted);
    ck_assert_int_eq(sc_last_error()->status, wanted);
    ck_assert(fix_same(a) && fix_same(b));
    free(a.bytes);
    free(b.bytes);
}

START_TEST(copy__refuses_null_and_out_of_range)
{
    sc_pool *from = fix_pool(FIX_GDN, layouts[0], 3), *to = fix_pool(FIX_GDN, layouts[_i & 1], 5);
    sc_slot a[3], b[5];
    const int32_t ok[2] = {1, 2};
    fix_take(from, 3, 10, a);
    fix_take(to, 5, 20, b);
    ck_assert_int_eq(sc_state_copy(NULL, ok, to, ok, 2), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy(from, ok, NULL, ok, 2), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy(from, NULL, to, ok, 2), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy(from, ok, to, NULL, 2), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_async(NULL, ok, to, ok, 2, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_async(from, ok, NULL, ok, 2, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_async(from, NULL, to, ok, 2, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_async(from, ok, to, NULL, 2, NULL), SC_ERR_INVALID);
    /* the bad id stands in the last row: the first is not copied either */
    const int32_t negative[2] = {-2, INT32_MIN}, beyond[2] = {6, INT32_MAX}, null_slot[2] = {1, 0};
    for (uint32_t i = 0; i < 2; i++) {
        const int32_t below_row[2] = {1, negative[i]}, above_row[2] = {1, beyond[i]};
        refuse(from, below_row, to, ok, 2, SC_ERR_INVALID);
        refuse(from, ok, to, below_row, 2, SC_ERR_INVALID);
        refuse(from, above_row, to, ok, 2, SC_ERR_STALE);
        refuse(from, ok, to, above_row, 2, SC_ERR_STALE);
    }
    refuse(from, ok, to, null_slot, 2, SC_ERR_INVALID);
    fix_end(from, a, 3);
    fix_end(to, b, 5);
}
END_TEST

START_TEST(copy__refuses_stale_slots)
{
    sc_pool *from = fix_pool(FIX_GDN, layouts[0], 3), *to = fix_pool(FIX_GDN, layouts[_i & 1], 3);
    sc_slot a[3], b[3];
    const int32_t rows[3] = {1, 2, 3};
    fix_take(from, 3, 10, a);
    fix_take(to, 3, 20, b);
    ck_assert_int_eq(sc_pool_free(from, &a[2], 1), SC_OK);
    refuse(from, rows, to, rows, 3, SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_alloc(from, 1, SC_OWNER_SNAPSHOT, &a[2]), SC_OK);
    ck_assert_int_eq(sc_pool_free(to, &b[2], 1), SC_OK);
    refuse(from, rows, to, rows, 3, SC_ERR_STALE);
    fix_end(from, a, 3);
    fix_end(to, b, 2);
}
END_TEST

/* A snapshot is immutable, and what drains is still read; both may be copied from. */
START_TEST(copy__refuses_to_write_over_what_is_kept)
{
    sc_pool *from = fix_pool(FIX_GDN, layouts[0], 3), *to = fix_pool(FIX_GDN, layouts[_i & 1], 3);
    sc_slot a[3], b[3];
    const int32_t rows[3] = {1, 2, 3};
    fix_take(from, 3, 10, a);
    fix_take(to, 3, 20, b);
    ck_assert_int_eq(sc_pool_set_owner(to, b[2], SC_OWNER_SNAPSHOT), SC_OK);
    refuse(from, rows, to, rows, 3, SC_ERR_BUSY);
    ck_assert_int_eq(sc_pool_set_owner(to, b[2], SC_OWNER_DRAINING), SC_OK);
    refuse(from, rows, to, rows, 3, SC_ERR_BUSY);
    ck_assert_int_eq(sc_pool_set_owner(to, b[2], SC_OWNER_IN_FLIGHT), SC_OK);
    ck_assert_int_eq(sc_pool_set_owner(from, a[2], SC_OWNER_SNAPSHOT), SC_OK);
    ck_assert_int_eq(sc_state_copy(from, rows, to, rows, 3), SC_OK);
    fix_end(from, a, 3);
    fix_end(to, b, 3);
}
END_TEST

START_TEST(copy__refuses_duplicates_and_chains)
{
    sc_pool *pool = fix_pool(FIX_KDA, layouts[_i & 1], 6), *to = fix_pool(FIX_KDA, layouts[0], 6);
    sc_slot a[6], b[6];
    fix_take(pool, 6, 10, a);
    fix_take(to, 6, 20, b);
    const int32_t up[3] = {1, 2, 3}, twice[3] = {4, 5, 4};
    refuse(pool, up, to, twice, 3, SC_ERR_INVALID);
    refuse(pool, up, pool, twice, 3, SC_ERR_INVALID);
    const int32_t chain[3] = {2, 4, 5}; /* row 0 writes 2, which row 1 reads */
    refuse(pool, up, pool, chain, 3, SC_ERR_INVALID);
    const int32_t cycle[3] = {2, 3, 1};
    refuse(pool, up, pool, cycle, 3, SC_ERR_INVALID);
    const int32_t self_from[2] = {2, 2}, self_to[2] = {2, 3}; /* row 0 is a no-op, yet writes 2 */
    refuse(pool, self_from, pool, self_to, 2, SC_ERR_INVALID);
    /* between two pools the same numbers mean other slots */
    ck_assert_int_eq(sc_state_copy(pool, up, to, cycle, 3), SC_OK);
    ck_assert(fix_holds(to, 1, 13) && fix_holds(to, 2, 11) && fix_holds(to, 3, 12));
    /* a skipped row neither reads nor writes */
    const int32_t skip_from[3] = {1, -1, 5}, skip_to[3] = {4, 4, -1};
    ck_assert_int_eq(sc_state_copy(pool, skip_from, pool, skip_to, 3), SC_OK);
    fix_end(pool, a, 6);
    fix_end(to, b, 6);
}
END_TEST

static sc_pool *pool_of(const char *revision, sc_shard shard)
{
    sc_schema *schema = fix_schema_of(FIX_MIXED, revision);
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    sc_pool *pool = NULL;
    options.schema = schema;
    options.shard = shard;
    options.slot_count = 2;
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    sc_schema_release(schema);
    return pool;
}

START_TEST(copy__refuses_other_fingerprints_and_shards_as_invalid_pairs)
{
    const sc_shard all = {0}, same = {.tp_size = 1, .layer_count = 4};
    const sc_shard rank0 = {.tp_rank = 0, .tp_size = 2}, rank1 = {.tp_rank = 1, .tp_size = 2};
    const sc_shard low = {.layer_first = 0, .layer_count = 1};
    const sc_shard high = {.layer_first = 3, .layer_count = 1};
    sc_pool *pools[7] = {pool_of("r1", all), pool_of("r1", same), pool_of("r2", all),
        pool_of("r1", rank0), pool_of("r1", rank1), pool_of("r1", low), pool_of("r1", high)};
    sc_slot slots[7];
    const int32_t one = 1;
    for (uint32_t i = 0; i < 7; i++) fix_take(pools[i], 1, 10 * (i + 1), &slots[i]);
    for (uint32_t i = 0; i < 7; i++) {
        for (uint32_t j = 0; j < 7; j++) {
            if (i == j || (i <= 1 && j <= 1)) continue;
            refuse(pools[i], &one, pools[j], &one, 1, SC_ERR_MISMATCH);
            refuse(pools[i], NULL, pools[j], NULL, 0, SC_ERR_MISMATCH);
        }
    }
    ck_assert_int_eq(sc_state_copy(pools[0], &one, pools[1], &one, 1), SC_OK);
    ck_assert(fix_holds(pools[1], 1, 11));
    for (uint32_t i = 0; i < 7; i++) fix_end(pools[i], &slots[i], 1);
}
END_TEST

START_TEST(copy__each_allocation_failing_once)
{
    enum { SLOTS = 200 };
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    sc_pool *from = fix_pool(FIX_GDN, layouts[0], SLOTS);
    sc_pool *to = fix_pool_with(FIX_GDN, layouts[1], SLOTS, NULL, &fa.allocator, NULL);
    sc_slot a[SLOTS], b[SLOTS];
    int32_t rows[SLOTS];
    fix_take(from, SLOTS, 10, a);
    fix_take(to, SLOTS, 1000, b);
    for (int32_t i = 0; i < SLOTS; i++) rows[i] = i + 1;
    struct fix_image before = fix_image(to);
    struct fail_alloc_mark mark = fail_alloc_mark(&fa);
    for (uint64_t n = 1;; n++) {
        fail_alloc_arm(&fa, n);
        sc_status status = sc_state_copy(from, rows, to, rows, SLOTS);
        if (!fail_alloc_disarm(&fa)) {
            ck_assert_int_eq(status, SC_OK);
            ck_assert_uint_gt(n, 1);
            break;
        }
        ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
        ck_assert(fix_same(before));
        ck_assert(fail_alloc_same(&fa, mark));
    }
    ck_assert(fail_alloc_same(&fa, mark));
    for (uint32_t i = 1; i <= SLOTS; i++) ck_assert(fix_holds(to, i, 10 + i));
    fail_alloc_arm(&fa, 1); /* a small call needs no memory */
    ck_assert_int_eq(sc_state_copy(from, rows, to, rows, 16), SC_OK);
    ck_assert(!fail_alloc_disarm(&fa));
    fix_end(from, a, SLOTS);
    fix_end(to, b, SLOTS);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
    free(before.bytes);
}
END_TEST

START_TEST(copy__reports_a_device_that_fails)
{
    struct fix_backend fix;
    struct fail_alloc fa;
    enum { SLOTS = 200 };
    fix_backend_init(&fix, false);
    fail_alloc_init(&fa);
    sc_pool *from = fix_pool(FIX_GDN, layouts[0], SLOTS);
    sc_pool *to = fix_pool_with(FIX_GDN, layouts[1], SLOTS, &fix.backend, &fa.allocator, NULL);
    sc_slot a[SLOTS], b[SLOTS];
    int32_t rows[SLOTS];
    fix_take(from, SLOTS, 10, a);
    fix_take(to, SLOTS, 1000, b);
    for (int32_t i = 0; i < SLOTS; i++) rows[i] = i + 1;
    struct fail_alloc_mark mark = fail_alloc_mark(&fa);
    struct fix_image source = fix_image(from);
    fix_backend_reset(&fix);
    fix.fail_call = 1;
    ck_assert_int_eq(sc_state_copy(from, rows, to, rows, SLOTS), SC_ERR_DEVICE_LOST);
    ck_assert_uint_eq(fix.syncs, 1); /* nothing is still under way when the memory is given back */
    fix_backend_reset(&fix);
    fix.fail_sync = true;
    ck_assert_int_eq(sc_state_copy(from, rows, to, rows, SLOTS), SC_ERR_DEVICE_LOST);
    fix_backend_reset(&fix);
    ck_assert(fail_alloc_same(&fa, mark));
    ck_assert(fix_same(source));
    fix_end(from, a, SLOTS);
    fix_end(to, b, SLOTS);
    free(source.bytes);
}
END_TEST

/* The same checks and bytes; within a device one piece of work for the backend, and no wait. */
START_TEST(copy_async__leaves_the_work_in_the_stream)
{
    enum { SLOTS = 8 };
    struct fix_backend fix;
    fix_backend_init(&fix, false);
    sc_pool *pool = fix_pool_with(FIX_GDN, layouts[_i & 1], SLOTS, &fix.backend, NULL, NULL);
    sc_slot slots[SLOTS];
    const int32_t from[] = {1, 2, -1, 3, 0}, to[] = {4, 5, 6, 3, 7}, twice[] = {4, 4};
    fix_take(pool, SLOTS, 20, slots);
    fix_backend_reset(&fix);
    ck_assert_int_eq(sc_state_copy_async(NULL, from, pool, to, 5, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_async(pool, NULL, pool, to, 5, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_async(pool, from, NULL, to, 5, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_async(pool, from, pool, NULL, 5, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_async(pool, from, pool, twice, 2, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_async(pool, (const int32_t[]){1}, pool,
        (const int32_t[]){SLOTS + 1}, 1, NULL), SC_ERR_STALE);
    ck_assert_uint_eq(fix.calls, 0);
    ck_assert_int_eq(sc_state_copy_async(pool, from, pool, to, 5, NULL), SC_OK);
    ck_assert_uint_eq(fix.calls, 1);
    ck_assert_uint_eq(fix.syncs, 0);
    ck_assert(fix_holds(pool, 4, 21) && fix_holds(pool, 5, 22) && fix_holds(pool, 6, 26));
    ck_assert(fix_holds(pool, 3, 23));
    fix_backend_reset(&fix);
    fix.fail_call = 1;
    ck_assert_int_eq(sc_state_copy_async(pool, from, pool, to, 2, NULL), SC_ERR_DEVICE_LOST);
    ck_assert_uint_eq(fix.syncs, 1);
    fix_backend_reset(&fix);
    fix_end(pool, slots, SLOTS);
}
END_TEST

/* ---- scenarios of other systems, restated ---- */

static void set_all(sc_pool *pool, uint32_t slot, float conv, float matrix)
{
    uint32_t parts = fix_info(pool).part_count;
    for (uint32_t p = 0; p < parts; p++) {
        sc_layer_view view;
        sc_part part;
        ck_assert_int_eq(sc_pool_part_view(pool, p, &view, &part), SC_OK);
        float value = part.kind == SC_PART_CONV ? conv : matrix;
        uint32_t bits, size = sc_dtype_bytes(view.dtype);
        memcpy(&bits, &value, sizeof bits);
        if (view.dtype == SC_DTYPE_BF16) bits >>= 16;
        for (uint64_t i = 0; i < view.bytes; i += size) {
            memcpy(fix_bytes(pool, p, slot) + i, &bits, size);
        }
    }
}

static void expect_all(sc_pool *pool, uint32_t slot, float conv, float matrix)
{
    uint32_t parts = fix_info(pool).part_count;
    for (uint32_t p = 0; p < parts; p++) {
        sc_layer_view view;
        sc_part part;
        ck_assert_int_eq(sc_pool_part_view(pool, p, &view, &part), SC_OK);
        float wanted = part.kind == SC_PART_CONV ? conv : matrix, got;
        uint32_t size = sc_dtype_bytes(view.dtype);
        for (uint64_t i = 0; i < view.bytes; i += size) {
            uint32_t bits = 0;
            memcpy(&bits, fix_bytes(pool, p, slot) + i, size);
            if (view.dtype == SC_DTYPE_BF16) bits <<= 16;
            memcpy(&got, &bits, sizeof got);
            ck_assert(got == wanted);
        }
    }
}

START_TEST(scenario_T1_3__states_survive_a_trip_to_the_host)
{
    sc_pool *device = fix_pool(pair_model(_i), pair_from(_i), 8);
    sc_pool *host = fix_pool(pair_model(_i), pair_to(_i), 3);
    sc_slot d[3], h[3];
    int32_t d_ids[3], h_ids[3];
    const int32_t zeros[3] = {0, 0, 0};
    fix_take(device, 3, 0, d);
    fix_take(host, 3, 0, h);
    for (uint32_t i = 0; i < 3; i++) {
        d_ids[i] = (int32_t)d[i].id;
        h_ids[i] = (int32_t)h[2 - i].id;
        set_all(device, d[i].id, 1, 2);
    }
    ck_assert_int_eq(sc_state_copy(device, d_ids, host, h_ids, 3), SC_OK);
    for (uint32_t i = 0; i < 3; i++) expect_all(host, h[i].id, 1, 2);
    ck_assert_int_eq(sc_state_copy(device, zeros, device, d_ids, 3), SC_OK);
    for (uint32_t i = 0; i < 3; i++) expect_all(device, d[i].id, 0, 0);
    ck_assert_int_eq(sc_state_copy(host, h_ids, device, d_ids, 3), SC_OK);
    for (uint32_t i = 0; i < 3; i++) expect_all(device, d[i].id, 1, 2);
    fix_end(device, d, 3);
    fix_end(host, h, 3);
}
END_TEST

START_TEST(scenario_T1_4__the_state_half_of_a_hybrid_record)
{
    sc_pool *device = fix_pool(pair_model(_i), pair_from(_i), 4);
    sc_pool *host = fix_pool(pair_model(_i), pair_to(_i), 2);
    sc_slot d, h;
    fix_take(device, 1, 0, &d);
    fix_take(host, 1, 0, &h);
    const int32_t d_id = (int32_t)d.id, h_id = (int32_t)h.id, zero = 0;
    set_all(device, d.id, 5, 6);
    ck_assert_int_eq(sc_state_copy(device, &d_id, host, &h_id, 1), SC_OK);
    ck_assert_int_eq(sc_state_copy(device, &zero, device, &d_id, 1), SC_OK);
    expect_all(device, d.id, 0, 0);
    ck_assert_int_eq(sc_state_copy(host, &h_id, device, &d_id, 1), SC_OK);
    expect_all(device, d.id, 5, 6);
    /* without slot ids there is no state part */
    struct fix_image before = fix_image(host);
    ck_assert_int_eq(sc_state_copy(device, NULL, host, NULL, 0), SC_OK);
    ck_assert(fix_same(before));
    free(before.bytes);
    fix_end(device, &d, 1);
    fix_end(host, &h, 1);
}
END_TEST

static Suite *copy_suite(void)
{
    Suite *suite = suite_create("snapshot/copy");
    TCase *tcase = tcase_create("copy");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, copy__moves_every_part_and_nothing_else, 0, PAIRS);
    tcase_add_loop_test(tcase, copy__within_one_pool, 0, PAIRS);
    tcase_add_loop_test(tcase, copy__leaves_all_memory_outside_the_destination, 0, PAIRS);
    tcase_add_loop_test(tcase, copy__onto_itself_moves_no_byte, 1, 3);
    tcase_add_test(tcase, copy__no_rows_is_fine);
    tcase_add_loop_test(tcase, copy__random_rows_agree_with_a_naive_model, 0, PAIRS);
    tcase_add_test(tcase, copy__a_page_major_state_is_one_descriptor);
    tcase_add_loop_test(tcase, copy__other_pairs_take_one_span_a_part, 0, 2);
    tcase_add_loop_test(tcase, copy__neighbours_are_merged, 0, 2);
    tcase_add_test(tcase, copy__tens_of_thousands_of_slots_in_one_call);
    tcase_add_loop_test(tcase, copy__offsets_are_64_bit, 0, 2);
    tcase_add_loop_test(tcase, copy__leaves_the_gaps_of_foreign_memory, 0, 2);
    tcase_add_loop_test(tcase, copy__into_arrays_of_the_caller, 0, 2);
    tcase_add_loop_test(tcase, copy__threads_with_slots_of_their_own, 0, 2);
    tcase_add_loop_test(tcase, copy__goes_the_right_way_between_host_and_device, 0, 2);
    tcase_add_loop_test(tcase, copy__refuses_null_and_out_of_range, 0, 2);
    tcase_add_loop_test(tcase, copy__refuses_stale_slots, 0, 2);
    tcase_add_loop_test(tcase, copy__refuses_to_write_over_what_is_kept, 0, 2);
    tcase_add_loop_test(tcase, copy__refuses_duplicates_and_chains, 0, 2);
    tcase_add_test(tcase, copy__refuses_other_fingerprints_and_shards_as_invalid_pairs);
    tcase_add_test(tcase, copy__each_allocation_failing_once);
    tcase_add_test(tcase, copy__reports_a_device_that_fails);
    tcase_add_loop_test(tcase, copy_async__leaves_the_work_in_the_stream, 0, 2);
    /* conv windows and matrices: GDN, KDA, MIXED */
    tcase_add_loop_test(tcase, scenario_T1_3__states_survive_a_trip_to_the_host, 0, 12);
    tcase_add_loop_test(tcase, scenario_T1_4__the_state_half_of_a_hybrid_record, 0, 12);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(copy_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* ReplaySSM for GDN, KDA and Mamba-2: outputs of appended tokens against plain decode, flushed and
 * folded states bit for bit, phases, copies of base and ring, and rings full of NaN. */
#include <math.h>
#include <stdio.h>

#include "replay_rig.h"

enum { CASES = 40, SSM_FROM = 24 };

static const uint32_t rings[] = {1, 3, 15, 20};

/* Two rigs of the same case: `x` with rings, `y` without. */
static struct ring_rig x, y;

static void open_both(int i)
{
    ring_open(&x, i >= SSM_FROM, i, rings[i / 3 % 4]);
    ring_open(&y, i >= SSM_FROM, i, rings[i / 3 % 4]);
}

static void close_both(void)
{
    ring_close(&x), ring_close(&y);
}

/* Errors of outputs, over all that were appended. */
static double error_sum, want_sum;

static void add_error(int32_t row)
{
    float *got = rig_alloc(x.vo * 4), *want = rig_alloc(x.vo * 4);
    rig_read(got, ring_out(&x, row), x.dtype, x.vo);
    rig_read(want, ring_out(&y, row), x.dtype, x.vo);
    for (size_t n = 0; n < x.vo; n++) {
        error_sum += ((double)got[n] - (double)want[n]) * ((double)got[n] - (double)want[n]);
        want_sum += (double)want[n] * (double)want[n];
    }
    free(got), free(want);
}

static double tolerance(void)
{
    if (x.state == SC_DTYPE_BF16) return 5e-3; /* plain decode rounds the state at each token */
    return x.dtype == SC_DTYPE_BF16 ? 3e-3 : 1e-5;
}

/* After token t: what flushed has the bits of plain decode; where a token was appended the base has
 * not changed. */
static void compare(uint32_t t, const uint8_t *base)
{
    size_t bytes = rig_part_bytes(&x.pool);
    for (int32_t r = 0; r < RING_ROWS; r++) {
        if (r == RING_PAD) {
            rig_all_bytes(ring_out(&x, r), ring_out_bytes(&x), 0);
        } else if (x.mode[r] == SC_REPLAY_FLUSH) {
            ck_assert_mem_eq(ring_out(&x, r), ring_out(&y, r), ring_out_bytes(&x));
            rig_same_slots(&x.pool, x.dest[r], &y.pool, y.dest[r]);
        } else {
            ck_assert_int_eq(x.mode[r], SC_REPLAY_APPEND);
            ck_assert_msg(memcmp(rig_slot(&x.pool, x.source[r]), base + (size_t)r * bytes, bytes)
                == 0, "token %u: the base of row %d was written", t, r);
            add_error(r);
        }
    }
}

static void copy_bases(uint8_t *base)
{
    size_t bytes = rig_part_bytes(&x.pool);
    for (int32_t r = 0; r < RING_ROWS; r++)
        if (r != RING_PAD) memcpy(base + (size_t)r * bytes, rig_slot(&x.pool, x.source[r]), bytes);
}

START_TEST(replay__outputs_are_near_and_flushed_states_equal_plain_decode)
{
    struct sc_prng prng;
    open_both(_i);
    sc_prng_seed(&prng, 3 + (uint64_t)_i);
    uint8_t *base = rig_alloc(rig_part_bytes(&x.pool) * RING_ROWS);
    uint32_t expect[RING_ROWS] = {0}, flushes = 0;
    for (uint32_t t = 0; t < RING_TOKENS; t++) {
        for (int32_t r = 0; r < RING_ROWS; r++)
            x.planned[r] = r == RING_PAD ? SC_REPLAY_NONE : sc_prng_below(&prng, 9) == 0;
        copy_bases(base);
        ring_plain(&y, t);
        ring_step(&x, t);
        compare(t, base);
        for (int32_t r = 0; r < RING_ROWS; r++) {
            if (r == RING_PAD) continue;
            bool flush = x.planned[r] == SC_REPLAY_FLUSH || expect[r] == x.records_max;
            ck_assert_int_eq(x.mode[r], flush ? SC_REPLAY_FLUSH : SC_REPLAY_APPEND);
            ck_assert_int_eq(x.records[r], (int32_t)expect[r]);
            expect[r] = flush ? 0 : expect[r] + 1;
            ck_assert_int_eq(*ring_count(&x, x.slot[r]), (int32_t)expect[r]);
            flushes += flush;
        }
    }
    ck_assert_uint_gt(flushes, 0);
    ck_assert_double_lt(sqrt(error_sum / want_sum), tolerance());
    if (getenv("SC_TEST_SHOW"))
        printf("case %d %s %s state %s: %.2e\n", _i, x.is_ssm ? "ssm" : _i % 2 ? "kda" : "gdn",
            x.dtype == SC_DTYPE_BF16 ? "bf16" : "fp32",
            x.state == SC_DTYPE_BF16 ? "bf16" : "fp32", sqrt(error_sum / want_sum));
    for (int32_t s = 9; s < RING_SLOTS; s++) /* nobody's */
        rig_all_bytes(ring_at(&x, s), x.ring_stride, 0xff);
    free(base), close_both();
}
END_TEST

START_TEST(replay__a_fold_is_the_state_of_plain_decode)
{
    open_both(_i);
    for (uint32_t t = 0; t < RING_TOKENS; t++) {
        ring_plain(&y, t);
        ring_step(&x, t);
        if (t % 7 != 3) continue;
        for (int32_t r = 0; r < RING_ROWS; r++) {
            x.planned[r] = SC_REPLAY_FOLD;
            int32_t other = r == 0 ? 9 : 8 + r;
            if (r != RING_PAD) x.dest[r] = x.source[r] == other ? RING_FIRST + r : other;
        }
        ring_fold(&x);
        for (int32_t r = 0; r < RING_ROWS; r++) {
            if (r == RING_PAD) continue;
            bool had = x.records[r] > 0;
            ck_assert_int_eq(x.mode[r], had ? SC_REPLAY_FOLD : SC_REPLAY_NONE);
            ck_assert_int_eq(*ring_count(&x, x.slot[r]), 0);
            if (had) x.source[r] = x.dest[r];
            rig_same_slots(&x.pool, x.source[r], &y.pool, y.dest[r]);
        }
        for (int32_t r = 0; r < RING_ROWS; r++)
            x.dest[r] = x.source[r], x.planned[r] = SC_REPLAY_APPEND;
    }
    close_both();
}
END_TEST

/* Base, ring and control word of row 0 go to slots that held others; both go on, and neither can
 * tell which is the copy. */
START_TEST(replay__a_copy_of_base_and_ring_goes_on_bit_for_bit)
{
    open_both(_i);
    uint32_t stop = 5 + (uint32_t)_i % 3;
    for (uint32_t t = 0; t < stop; t++) ring_step(&x, t);
    memcpy(rig_slot(&x.pool, 11), rig_slot(&x.pool, x.source[0]), rig_part_bytes(&x.pool));
    memcpy(ring_at(&x, 11), ring_at(&x, x.slot[0]), ring_bytes(&x));
    *ring_count(&x, 11) = *ring_count(&x, x.slot[0]);
    uint8_t *outputs = rig_alloc(RING_TOKENS * ring_out_bytes(&x));
    for (int copy = 0; copy < 2; copy++) {
        int32_t at = copy ? 11 : x.source[0], ring = copy ? 11 : x.slot[0];
        for (uint32_t t = stop; t < RING_TOKENS; t++) {
            for (int32_t r = 0; r < RING_ROWS; r++) x.source[r] = x.dest[r] = x.slot[r] = -1;
            x.source[0] = x.dest[0] = at, x.slot[0] = ring;
            ring_step(&x, t);
            uint8_t *out = outputs + t * ring_out_bytes(&x);
            if (copy) ck_assert_mem_eq(ring_out(&x, 0), out, ring_out_bytes(&x));
            memcpy(out, ring_out(&x, 0), ring_out_bytes(&x));
        }
    }
    rig_same_slots(&x.pool, 11, &x.pool, RING_FIRST);
    ck_assert_int_eq(*ring_count(&x, 11), *ring_count(&x, 5));
    free(outputs), close_both();
}
END_TEST

/* Row 0's outputs and ring do not depend on neighbours, nor on where memory lies. */
START_TEST(replay__neighbours_change_no_bit)
{
    open_both(_i);
    for (int32_t r = 1; r < RING_ROWS; r++) y.source[r] = y.dest[r] = y.slot[r] = -1;
    for (uint32_t t = 0; t < RING_TOKENS; t++) {
        x.planned[2] = t % 2;
        ring_step(&x, t);
        ring_step(&y, t);
        ck_assert_mem_eq(ring_out(&x, 0), ring_out(&y, 0), ring_out_bytes(&x));
    }
    rig_same_slots(&x.pool, RING_FIRST, &y.pool, RING_FIRST);
    ck_assert_mem_eq(ring_at(&x, 5), ring_at(&y, 5), ring_bytes(&x));
    close_both();
}
END_TEST

START_TEST(replay__from_the_zero_state)
{
    open_both(_i);
    for (int32_t r = 0; r < RING_ROWS; r++)
        if (r != RING_PAD) x.source[r] = y.source[r] = 0;
    uint32_t t = 0;
    for (; t < x.records_max && t < 5; t++) {
        ring_plain(&y, t);
        ring_step(&x, t);
        for (int32_t r = 0; r < RING_ROWS; r++) {
            if (r == RING_PAD) continue;
            y.source[r] = y.dest[r];
            add_error(r);
        }
    }
    ck_assert_double_lt(sqrt(error_sum / want_sum), tolerance());
    for (int32_t r = 0; r < RING_ROWS; r++) x.planned[r] = SC_REPLAY_FLUSH;
    ring_plain(&y, t);
    ring_step(&x, t);
    for (int32_t r = 0; r < RING_ROWS; r++)
        if (r != RING_PAD) rig_same_slots(&x.pool, x.dest[r], &y.pool, y.dest[r]);
    close_both();
}
END_TEST

START_TEST(replay__phases)
{
    uint32_t after = 9;
    ck_assert_int_eq(sc_replay_next(SC_REPLAY_APPEND, 0, 2, &after), SC_REPLAY_APPEND);
    ck_assert_uint_eq(after, 1);
    ck_assert_int_eq(sc_replay_next(SC_REPLAY_APPEND, 1, 2, &after), SC_REPLAY_APPEND);
    ck_assert_uint_eq(after, 2);
    ck_assert_int_eq(sc_replay_next(SC_REPLAY_APPEND, 2, 2, &after), SC_REPLAY_FLUSH);
    ck_assert_uint_eq(after, 0);
    ck_assert_int_eq(sc_replay_next(SC_REPLAY_FLUSH, 1, 2, &after), SC_REPLAY_FLUSH);
    ck_assert_uint_eq(after, 0);
    ck_assert_int_eq(sc_replay_next(SC_REPLAY_FOLD, 1, 2, &after), SC_REPLAY_FOLD);
    ck_assert_uint_eq(after, 0);
    ck_assert_int_eq(sc_replay_next(SC_REPLAY_FOLD, 0, 2, &after), SC_REPLAY_NONE);
    ck_assert_int_eq(sc_replay_next(SC_REPLAY_NONE, 1, 2, &after), SC_REPLAY_NONE);
    ck_assert_uint_eq(after, 1);
}
END_TEST

/* The report's own numbers: a ring of 16, 3 tokens accepted, entries 3 .. 15 NaN of a former
 * tenant. Its records were never loaded if what comes is what a clean ring gives. */
START_TEST(report_27__records_beyond_the_count_are_never_read)
{
    ring_open(&x, _i % 3 == 2, _i, 16);
    ring_open(&y, _i % 3 == 2, _i, 16);
    memset(x.ring, 0xff, x.ring_stride * RING_SLOTS);
    for (uint32_t t = 0; t < 4; t++) {
        for (int32_t r = 0; r < RING_ROWS; r++) x.planned[r] = t == 3;
        ring_plain(&y, t);
        ring_step(&x, t);
        for (int32_t r = 0; r < RING_ROWS; r++) {
            float *out = rig_alloc(x.vo * 4);
            rig_read(out, ring_out(&x, r), x.dtype, x.vo);
            for (size_t n = 0; n < x.vo; n++) ck_assert(isfinite(out[n]));
            free(out);
        }
    }
    for (int32_t r = 0; r < RING_ROWS; r++) {
        if (r == RING_PAD) continue;
        ck_assert_int_eq(x.records[r], 3);
        rig_same_slots(&x.pool, x.dest[r], &y.pool, y.dest[r]);
        size_t record = ring_bytes(&x) / 16;
        rig_all_bytes(ring_at(&x, x.slot[r]) + 3 * record, 13 * record, 0xff);
    }
    close_both();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_replay");
    TCase *all = tcase_create("replay");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, replay__outputs_are_near_and_flushed_states_equal_plain_decode, 0,
        CASES);
    tcase_add_loop_test(all, replay__a_fold_is_the_state_of_plain_decode, 0, CASES);
    tcase_add_loop_test(all, replay__a_copy_of_base_and_ring_goes_on_bit_for_bit, 0, CASES);
    tcase_add_loop_test(all, replay__neighbours_change_no_bit, 0, CASES);
    tcase_add_loop_test(all, replay__from_the_zero_state, 0, CASES);
    tcase_add_test(all, replay__phases);
    tcase_add_loop_test(all, report_27__records_beyond_the_count_are_never_read, 0, 12);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

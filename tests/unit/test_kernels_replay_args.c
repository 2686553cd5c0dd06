/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input of the calls with rings: each spoils one field of a call that works; it must answer
 * with the status, write nothing (states, rings, counts, outputs), and work again without it. */
#include "replay_rig.h"

enum { KINDS = 2 };

static struct ring_rig x;
static uint8_t *before;

static size_t all_bytes(void)
{
    return x.pool.bytes + x.ring_stride * RING_SLOTS + RING_CONTROL * RING_SLOTS
        + RING_ROWS * ring_out_bytes(&x);
}

static void gather(uint8_t *to)
{
    memcpy(to, x.pool.memory, x.pool.bytes), to += x.pool.bytes;
    memcpy(to, x.ring, x.ring_stride * RING_SLOTS), to += x.ring_stride * RING_SLOTS;
    memcpy(to, x.control, RING_CONTROL * RING_SLOTS), to += RING_CONTROL * RING_SLOTS;
    memcpy(to, x.out, RING_ROWS * ring_out_bytes(&x));
}

static void refused(sc_status got, sc_status want, const char *what)
{
    uint8_t *now = rig_alloc(all_bytes());
    ck_assert_msg(got == want, "%s: %s, not %s", what, sc_status_name(got), sc_status_name(want));
    ck_assert_uint_gt(strlen(sc_last_error()->text), 3);
    gather(now);
    ck_assert_mem_eq(now, before, all_bytes());
    free(now);
}

#define REFUSES(want, call, field, value)                                                          \
    do {                                                                                           \
        __typeof__(field) good_ = (field);                                                         \
        (field) = (value);                                                                         \
        gather(before);                                                                            \
        refused((call), (want), #field " = " #value);                                              \
        (field) = good_;                                                                           \
    } while (0)
#define INVALID(call, field, value) REFUSES(SC_ERR_INVALID, call, field, value)
#define UNKNOWN(call, field, value) REFUSES(SC_ERR_UNSUPPORTED, call, field, value)

static void open_at(int kind)
{
    ring_open(&x, kind == 1, 0, 3);
    before = rig_alloc(all_bytes());
    for (uint32_t t = 0; t < 2; t++) ring_step(&x, t); /* two records in each ring, modes known */
    ring_aim(&x, 2);
    for (int32_t r = 0; r < RING_ROWS; r++) x.records[r] = r == RING_PAD ? 0 : 2;
}

static void close_all(void)
{
    ring_close(&x), free(before);
}

/* What all calls with a ring refuse; `busy` is the mode of a row that works. */
#define BAD_RING(call, ring, busy)                                                                 \
    do {                                                                                           \
        INVALID(call, (ring).slots.base, 0);                                                       \
        INVALID(call, (ring).slots.base, (ring).slots.base + 2);                                   \
        INVALID(call, (ring).slots.slot_stride, 0);                                                \
        INVALID(call, (ring).slots.slot_stride, -(ring).slots.slot_stride);                        \
        INVALID(call, (ring).slots.slot_stride, (int64_t)(ring).record_bytes * 3 - 64);            \
        INVALID(call, (ring).records_max, 0);                                                      \
        INVALID(call, (ring).records_max, SC_REPLAY_RECORDS_MAX + 1);                              \
        INVALID(call, (ring).records_max, 4); /* more than a slot holds */                         \
        INVALID(call, (ring).record_bytes, 64);                                                    \
        INVALID(call, (ring).record_bytes, (ring).record_bytes + 4);                               \
        INVALID(call, (ring).slot, 0);                                                             \
        INVALID(call, (ring).slot, (ring).slot + 2);                                               \
        INVALID(call, (ring).records, 0);                                                          \
        INVALID(call, (ring).mode, 0);                                                             \
        INVALID(call, x.slot[0], 0);                                                               \
        INVALID(call, x.slot[0], -1);                                                              \
        INVALID(call, x.slot[0], RING_SLOTS);                                                      \
        INVALID(call, x.slot[0], x.slot[2]); /* of two rows */                                     \
        INVALID(call, x.records[0], -1);                                                           \
        INVALID(call, x.records[0], 4);                                                            \
        INVALID(call, x.mode[0], -2);                                                              \
        INVALID(call, x.mode[0], 3);                                                               \
        INVALID(call, x.source[0], RING_SLOTS);                                                    \
        INVALID(call, x.dest[0], x.dest[2]);                                                       \
        INVALID(call, x.dest[0], x.source[2]);                                                     \
        ck_assert_int_eq(x.mode[0], busy);                                                         \
    } while (0)

/* ... and those that take tokens. */
#define BAD_TOKENS(call)                                                                           \
    do {                                                                                           \
        INVALID(call, x.records[0], 3);              /* full: no room to append */                 \
        INVALID(call, x.mode[0], SC_REPLAY_FOLD);    /* a call of its own */                       \
        x.mode[2] = SC_REPLAY_FLUSH;                                                               \
        INVALID(call, x.dest[2], -1);                /* a flush to nowhere */                      \
        INVALID(call, x.dest[2], 0);                                                               \
        x.mode[2] = SC_REPLAY_APPEND;                                                              \
    } while (0)

START_TEST(replay_delta__refuses_bad_arguments)
{
#define CALL sc_k_replay_delta(NULL, &x.delta, NULL)
    int32_t save[RING_ROWS] = {-1, -1, -1, -1};
    open_at(0);
    ck_assert_int_eq(sc_k_replay_delta(NULL, NULL, NULL), SC_ERR_INVALID);
    BAD_RING(CALL, x.delta.ring, SC_REPLAY_APPEND);
    BAD_TOKENS(CALL);
    x.delta.step.save = sc_host_devptr(save);
    INVALID(CALL, save[0], 9); /* a state that an appended token does not have */
    INVALID(CALL, x.delta.step.save, x.delta.step.save + 2);
    INVALID(CALL, x.delta.step.qkv, 0);
    INVALID(CALL, x.delta.step.o, 0);
    INVALID(CALL, x.delta.step.source, 0);
    INVALID(CALL, x.delta.step.dest, 0);
    INVALID(CALL, x.delta.step.g, x.delta.step.g + 1);
    INVALID(CALL, x.delta.step.qkv_stride, 3);
    INVALID(CALL, x.delta.step.shape.heads, 3);
    INVALID(CALL, x.delta.step.shape.k_dim, 257);
    UNKNOWN(CALL, x.delta.step.dtype, SC_DTYPE_F16);
    UNKNOWN(CALL, x.delta.step.state.dtype, SC_DTYPE_U8);
    RIG_OK(CALL);
    x.delta.step.row_count = 0;
    RIG_OK(CALL);
    close_all();
#undef CALL
}
END_TEST

START_TEST(replay_ssm__refuses_bad_arguments)
{
#define CALL sc_k_replay_ssm(NULL, &x.ssm, NULL)
    open_at(1);
    ck_assert_int_eq(sc_k_replay_ssm(NULL, NULL, NULL), SC_ERR_INVALID);
    BAD_RING(CALL, x.ssm.ring, SC_REPLAY_APPEND);
    BAD_TOKENS(CALL);
    INVALID(CALL, x.ssm.step.x, 0);
    INVALID(CALL, x.ssm.step.y, x.ssm.step.b);
    INVALID(CALL, x.ssm.step.a_log, 0);
    INVALID(CALL, x.ssm.step.heads, 3);
    INVALID(CALL, x.ssm.step.state_dim, 257);
    UNKNOWN(CALL, x.ssm.step.dtype, SC_DTYPE_F16);
    RIG_OK(CALL);
    x.ssm.step.row_count = 0;
    RIG_OK(CALL);
    close_all();
#undef CALL
}
END_TEST

START_TEST(replay_fold__refuses_bad_arguments)
{
    open_at(_i);
    for (int32_t r = 0; r < RING_ROWS; r++) x.mode[r] = r == RING_PAD ? -1 : SC_REPLAY_FOLD;
    ck_assert_int_eq(sc_k_replay_delta_fold(NULL, NULL, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_replay_ssm_fold(NULL, NULL, NULL), SC_ERR_INVALID);
    if (_i == 1) {
        BAD_RING(sc_k_replay_ssm_fold(NULL, &x.ssm, NULL), x.ssm.ring, SC_REPLAY_FOLD);
        INVALID(sc_k_replay_ssm_fold(NULL, &x.ssm, NULL), x.dest[0], 0);
        UNKNOWN(sc_k_replay_ssm_fold(NULL, &x.ssm, NULL), x.ssm.step.dtype, SC_DTYPE_F16);
        close_all();
        return;
    }
    const sc_k_decode_packed_params *p = &x.delta.step;
    sc_k_replay_delta_fold_params fold = {.shape = p->shape, .dtype = p->dtype,
        .row_count = RING_ROWS, .source = p->source, .dest = p->dest, .state = p->state,
        .ring = x.delta.ring};
    BAD_RING(sc_k_replay_delta_fold(NULL, &fold, NULL), fold.ring, SC_REPLAY_FOLD);
    INVALID(sc_k_replay_delta_fold(NULL, &fold, NULL), x.dest[0], 0);
    INVALID(sc_k_replay_delta_fold(NULL, &fold, NULL), fold.source, 0);
    INVALID(sc_k_replay_delta_fold(NULL, &fold, NULL), fold.dest, 0);
    INVALID(sc_k_replay_delta_fold(NULL, &fold, NULL), fold.shape.v_heads, 0);
    UNKNOWN(sc_k_replay_delta_fold(NULL, &fold, NULL), fold.dtype, SC_DTYPE_F16);
    close_all();
}
END_TEST

START_TEST(replay_step__refuses_bad_arguments)
{
#define CALL sc_replay_step(NULL, &step, NULL)
    open_at(0);
    sc_replay_step_params step = ring_step_params(&x);
    ck_assert_int_eq(sc_replay_step(NULL, NULL, NULL), SC_ERR_INVALID);
    INVALID(CALL, step.control.base, 0);
    INVALID(CALL, step.control.base, step.control.base + 2);
    INVALID(CALL, step.control.slot_stride, 0);
    INVALID(CALL, step.control.slot_stride, 3);
    INVALID(CALL, step.records_max, 0);
    INVALID(CALL, step.records_max, SC_REPLAY_RECORDS_MAX + 1);
    INVALID(CALL, step.slot, 0);
    INVALID(CALL, step.planned, 0);
    INVALID(CALL, step.records, 0);
    INVALID(CALL, step.mode, step.mode + 1);
    INVALID(CALL, x.slot[0], RING_SLOTS);
    INVALID(CALL, x.slot[0], x.slot[2]);
    INVALID(CALL, x.planned[0], 3);
    INVALID(CALL, x.planned[0], -2);
    REFUSES(SC_ERR_CORRUPT, CALL, *ring_count(&x, x.slot[2]), 4); /* of 3 */
    REFUSES(SC_ERR_CORRUPT, CALL, *ring_count(&x, x.slot[2]), -1);
    RIG_OK(CALL);
    close_all();
#undef CALL
}
END_TEST

START_TEST(record_bytes__refuse_bad_arguments)
{
    uint32_t bytes = 7;
    sc_k_delta_shape shape = {.kind = SC_K_KIND_GDN, .heads = 16, .v_heads = 32, .k_dim = 128,
        .v_dim = 128};
    RIG_OK(sc_k_replay_delta_record_bytes(&shape, SC_DTYPE_BF16, &bytes));
    /* d, decay, beta, norms of k; v and k */
    ck_assert_uint_eq(bytes, 32 * 128 * 4 + 32 * 4 + 32 * 4 + 16 * 4 + 32 * 128 * 2 + 16 * 128 * 2);
    ck_assert_int_eq(sc_k_replay_delta_record_bytes(NULL, SC_DTYPE_F32, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_replay_delta_record_bytes(&shape, SC_DTYPE_F32, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_replay_delta_record_bytes(&shape, SC_DTYPE_U8, &bytes),
        SC_ERR_UNSUPPORTED);
    shape.heads = 5;
    ck_assert_int_eq(sc_k_replay_delta_record_bytes(&shape, SC_DTYPE_F32, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_replay_ssm_record_bytes(4, 3, 64, 128, SC_DTYPE_F32, &bytes),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_replay_ssm_record_bytes(4, 2, 64, 257, SC_DTYPE_F32, &bytes),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_replay_ssm_record_bytes(4, 2, 64, 128, SC_DTYPE_F32, NULL),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_replay_ssm_record_bytes(4, 2, 64, 128, SC_DTYPE_I32, &bytes),
        SC_ERR_UNSUPPORTED);
}
END_TEST

START_TEST(replay__a_plan_that_is_invalid_stays_what_it_is)
{
    uint32_t after = 9;
    ck_assert_int_eq(sc_replay_next((sc_replay_mode)-1, 5, 2, &after), SC_REPLAY_NONE);
    ck_assert_uint_eq(after, 5);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_replay_args");
    TCase *all = tcase_create("args");
    tcase_add_test(all, replay_delta__refuses_bad_arguments);
    tcase_add_test(all, replay_ssm__refuses_bad_arguments);
    tcase_add_loop_test(all, replay_fold__refuses_bad_arguments, 0, KINDS);
    tcase_add_test(all, replay_step__refuses_bad_arguments);
    tcase_add_test(all, record_bytes__refuse_bad_arguments);
    tcase_add_test(all, replay__a_plan_that_is_invalid_stays_what_it_is);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

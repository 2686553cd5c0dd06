/* SPDX-License-Identifier: Apache-2.0 */
/* Field reports that belong to the kernels: rows without a request, ids out of range, states that
 * must not be read, tails of any length, offsets beyond 32 bits. docs/field-reports.md is the
 * table; report_N is entry N there. Most run on every kernel that reads and writes slots. */
#include <check.h>
#include <limits.h>
#include <math.h>
#include <sys/mman.h>

#include "kernels_rig.h"
#include "support/check_main.h"

/* ---- one call of any kernel: rows of a few tokens each ---- */

enum kernel { RECURRENT, CHUNK, CONV_PREFILL, DECODE, CONV_UPDATE, KERNELS };
enum { FIRST_OF_ONE_TOKEN = DECODE }; /* the others take rows of any length */

enum { ROWS = 128, QK = 16, VO = 16, WIDE = 2 * QK + VO, TAPS = 4 };
static const sc_k_delta_shape shape = {.kind = SC_K_KIND_GDN, .heads = 1, .v_heads = 2,
    .k_dim = QK, .v_dim = VO / 2, .qk_l2norm = true};
static float *inputs, *weight; /* [ROWS][WIDE], [WIDE][TAPS] */
static float gate[ROWS][2], beta[ROWS][2];

struct call {
    uint32_t rows;
    int32_t start[ROWS + 1], source[ROWS], dest[ROWS];
    const float *x;  /* of the first token; its gates are those of token `first` */
    uint32_t first;
    float out[ROWS * WIDE]; /* as the kernel left it, poisoned before */
};
static struct call call; /* large: not on the stack */

static bool is_conv(int kernel)
{
    return kernel == CONV_PREFILL || kernel == CONV_UPDATE;
}

static uint32_t out_elems(int kernel)
{
    return is_conv(kernel) ? WIDE : VO;
}

static void setup(void)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 31);
    inputs = rig_normal(&prng, ROWS * WIDE, 1.0f);
    weight = rig_normal(&prng, WIDE * TAPS, 0.5f);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (int h = 0; h < 2; h++) {
            gate[r][h] = -(float)sc_prng_unit(&prng);
            beta[r][h] = (float)sc_prng_unit(&prng);
        }
    }
}

static void teardown(void)
{
    free(inputs);
    free(weight);
}

/* `rows` rows of one token each, none of them a request. */
static void call_init(uint32_t rows)
{
    memset(&call, 0, sizeof call);
    call.rows = rows;
    call.x = inputs;
    for (uint32_t r = 0; r < rows; r++) {
        call.start[r + 1] = (int32_t)r + 1;
        call.source[r] = call.dest[r] = -1;
    }
}

static struct rig_pool pool_of(int kernel, uint32_t slot_count)
{
    return rig_pool(SC_DTYPE_F32, is_conv(kernel) ? (TAPS - 1) * WIDE : (size_t)VO * QK, slot_count,
        0, 0);
}

static sc_status call_conv(int kernel, const struct rig_pool *pool)
{
    uint32_t tokens = (uint32_t)call.start[call.rows];
    if (kernel == CONV_UPDATE) {
        sc_k_conv_update_params p = {.x = sc_host_devptr(call.x), .y = sc_host_devptr(call.out),
            .dtype = SC_DTYPE_F32, .weight = sc_host_devptr(weight),
            .weight_dtype = SC_DTYPE_F32, .act = SC_K_ACT_SILU, .channels = WIDE, .width = TAPS,
            .row_count = call.rows, .source = sc_host_devptr(call.source),
            .dest = sc_host_devptr(call.dest), .window = pool->slots};
        return sc_k_conv_update(NULL, &p, NULL);
    }
    sc_k_conv_prefill_params p = {.x = sc_host_devptr(call.x), .y = sc_host_devptr(call.out),
        .dtype = SC_DTYPE_F32, .weight = sc_host_devptr(weight), .weight_dtype = SC_DTYPE_F32,
        .act = SC_K_ACT_SILU, .channels = WIDE, .width = TAPS, .token_count = tokens,
        .row_count = call.rows, .row_start = sc_host_devptr(call.start),
        .source = sc_host_devptr(call.source), .dest = sc_host_devptr(call.dest),
        .window = pool->slots};
    return sc_k_conv_prefill(NULL, &p, NULL);
}

static sc_status call_delta(int kernel, const struct rig_pool *pool)
{
    if (kernel == DECODE) {
        sc_k_decode_packed_params p = {.qkv = sc_host_devptr(call.x),
            .o = sc_host_devptr(call.out), .dtype = SC_DTYPE_F32,
            .g = sc_host_devptr(gate[call.first]), .beta = sc_host_devptr(beta[call.first]),
            .shape = shape, .row_count = call.rows, .source = sc_host_devptr(call.source),
            .dest = sc_host_devptr(call.dest), .state = pool->slots};
        return sc_k_decode_packed(NULL, &p, NULL);
    }
    sc_k_delta_params p = {.q = sc_host_devptr(call.x), .k = sc_host_devptr(call.x + QK),
        .v = sc_host_devptr(call.x + 2 * QK), .o = sc_host_devptr(call.out), .q_stride = WIDE,
        .k_stride = WIDE, .v_stride = WIDE, .dtype = SC_DTYPE_F32,
        .g = sc_host_devptr(gate[call.first]), .beta = sc_host_devptr(beta[call.first]),
        .shape = shape, .token_count = (uint32_t)call.start[call.rows], .row_count = call.rows,
        .row_start = sc_host_devptr(call.start), .source = sc_host_devptr(call.source),
        .dest = sc_host_devptr(call.dest), .state = pool->slots, .chunk = 16};
    if (kernel == RECURRENT) return sc_k_delta_recurrent(NULL, &p, NULL);
    RIG_OK(sc_k_delta_chunk_scratch(NULL, &p, &p.scratch_bytes));
    void *scratch = rig_alloc(p.scratch_bytes);
    p.scratch = sc_host_devptr(scratch);
    sc_status status = sc_k_delta_chunk(NULL, &p, NULL);
    free(scratch);
    return status;
}

static sc_status call_run(int kernel, const struct rig_pool *pool)
{
    memset(call.out, 0xff, sizeof call.out);
    return is_conv(kernel) ? call_conv(kernel, pool) : call_delta(kernel, pool);
}

/* A state of finite numbers that depend on the slot. */
static void live(const struct rig_pool *pool, int32_t slot)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 500 + (uint64_t)slot);
    float *values = rig_normal(&prng, pool->part_elems, 1.0f);
    rig_put(rig_slot(pool, slot), pool->slots.dtype, values, pool->part_elems);
    free(values);
}

static void check_finite(const float *values, size_t count)
{
    size_t n = 0;
    while (n < count && isfinite(values[n])) n++;
    ck_assert_msg(n == count, "number %zu of %zu is not finite", n, count);
}

static uint8_t *image(const struct rig_pool *pool)
{
    uint8_t *bytes = rig_alloc(pool->bytes);
    memcpy(bytes, pool->memory, pool->bytes);
    return bytes;
}

static void check_image(const struct rig_pool *pool, uint8_t *bytes)
{
    bool same = memcmp(pool->memory, bytes, pool->bytes) == 0;
    free(bytes);
    ck_assert_msg(same, "a slot was written");
}

/* Row `row` of a batch whose rows are slots 1, 2, ... in place must be what it is alone; `batch`
 * and `out` are the pool and the output of the batch. */
static void check_row_alone(int kernel, uint32_t row, const struct rig_pool *batch,
    const float *out)
{
    struct rig_pool pool = pool_of(kernel, row + 2);
    live(&pool, (int32_t)row + 1);
    call_init(1);
    call.x = inputs + (size_t)row * WIDE;
    call.first = row;
    call.source[0] = call.dest[0] = (int32_t)row + 1;
    RIG_OK(call_run(kernel, &pool));
    rig_same_slots(batch, (int32_t)row + 1, &pool, (int32_t)row + 1);
    ck_assert_mem_eq(out + row * out_elems(kernel), call.out, out_elems(kernel) * sizeof *out);
    free(pool.memory);
}

/* ---- classes A and B: where a state is taken and what follows it ---- */

static struct rig_delta sequence(uint32_t chunk, sc_dtype dtype, uint32_t tokens, int32_t position)
{
    struct rig_delta d = {.shape = shape, .dtype = dtype, .chunk = chunk};
    rig_seq_init(&d, 0, tokens, position, 77);
    return d;
}

static uint32_t lcm(uint32_t a, uint32_t b)
{
    uint32_t n = a;
    while (n % b != 0) n += a;
    return n;
}

/* Saves at `save` in one run, stops there in another, and goes on from the save in a third. */
static void save_stop_and_resume(uint32_t chunk, sc_dtype dtype, int32_t position, uint32_t tokens,
    uint32_t save)
{
    struct rig_delta d = sequence(chunk, dtype, tokens, position);
    struct rig_pool pool = rig_pool(dtype, rig_state_elems(&d), 8, 0, 0);
    size_t row = rig_vo(&d) * rig_elem(dtype), rest = (tokens - save) * row;
    live(&pool, 1);
    rig_run(&d, &pool, &(struct rig_piece){0, 0, tokens, 1, 2}, 1,
        &(struct rig_save){0, position + (int32_t)save, 3}, 1);
    uint8_t *want = rig_alloc(rest);
    memcpy(want, rig_o(&d, 0, save), rest);
    memset(rig_o(&d, 0, save), 0xff, rest);
    rig_run(&d, &pool, &(struct rig_piece){0, 0, save, 1, 4}, 1, NULL, 0);
    rig_same_slots(&pool, 3, &pool, 4); /* the state after exactly so many tokens */
    rig_run(&d, &pool, &(struct rig_piece){0, save, tokens, 3, 5}, 1, NULL, 0);
    rig_same_slots(&pool, 5, &pool, 2);
    ck_assert_mem_eq(rig_o(&d, 0, save), want, rest);
    free(want), free(pool.memory), rig_delta_free(&d);
}

START_TEST(report_02__saves_by_the_page_in_a_kernel_that_counts_by_the_chunk)
{
    static const uint32_t chunks[] = {16, 64}, pages[] = {16, 64, 128, 192};
    sc_dtype dtype = _i ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    for (int c = 0; c < 2; c++) {
        for (int p = 0; p < 4; p++) {
            uint32_t grid = lcm(chunks[c], pages[p]), tokens = 3 * grid + 5;
            save_stop_and_resume(chunks[c], dtype, 0, tokens, 2 * grid);
        }
    }
    save_stop_and_resume(64, dtype, 16384, 29056 - 16384 + 40, 29056 - 16384);
}
END_TEST

START_TEST(report_10__tails_of_every_length_after_a_checkpoint)
{
    sc_dtype dtype = _i ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    for (uint32_t len = 65; len <= 200; len++) {
        uint32_t checkpoint = (len - 1) / 64 * 64; /* 65, 129, 193: a tail of one token */
        save_stop_and_resume(64, dtype, 0, len, checkpoint);
        save_stop_and_resume(0, dtype, 0, len, checkpoint);
    }
}
END_TEST

START_TEST(report_10__conv_tails_of_every_length_after_a_checkpoint)
{
    struct rig_pool pool = pool_of(CONV_PREFILL, 4);
    static float whole[ROWS * WIDE];
    for (uint32_t len = 65; len <= ROWS; len++) {
        call_init(1);
        call.start[1] = (int32_t)len, call.source[0] = 0, call.dest[0] = 1;
        RIG_OK(call_run(CONV_PREFILL, &pool));
        memcpy(whole, call.out, sizeof whole);
        call.start[1] = 64, call.dest[0] = 2;
        RIG_OK(call_run(CONV_PREFILL, &pool));
        call.start[1] = (int32_t)len - 64, call.source[0] = 2, call.dest[0] = 3;
        call.x = inputs + (size_t)64 * WIDE;
        RIG_OK(call_run(CONV_PREFILL, &pool));
        rig_same_slots(&pool, 3, &pool, 1);
        ck_assert_mem_eq(call.out, whole + (size_t)64 * WIDE, (len - 64) * WIDE * sizeof(float));
    }
    free(pool.memory);
}
END_TEST

static void check_close(const float *got, const float *want, size_t count)
{
    double error = 0, size = 0;
    for (size_t n = 0; n < count; n++) {
        error += (double)(got[n] - want[n]) * (double)(got[n] - want[n]);
        size += (double)want[n] * (double)want[n];
    }
    ck_assert_msg(error <= 1e-10 * size, "relative error %g", sqrt(error / size));
}

/* The recurrent form and the conv give the bits of one call; the chunk form rounds anew where it is
 * cut off its grid, so there it is the numbers that must agree. */
START_TEST(report_41__a_tokens_then_b_in_one_call)
{
    for (uint32_t n = 1; n < 100; n++) {
        uint32_t a = n / 10, b = n % 10;
        for (uint32_t chunk = 0; chunk <= 16; chunk += 16) {
            struct rig_delta d = sequence(chunk, SC_DTYPE_F32, a + b, 0);
            struct rig_pool pool = rig_pool(SC_DTYPE_F32, rig_state_elems(&d), 5, 0, 0);
            live(&pool, 1);
            rig_run(&d, &pool, &(struct rig_piece){0, 0, a + b, 1, 2}, 1, NULL, 0);
            rig_run(&d, &pool, &(struct rig_piece){0, 0, a, 1, 3}, 1, NULL, 0);
            rig_run(&d, &pool, &(struct rig_piece){0, a, a + b, 3, 4}, 1, NULL, 0);
            if (chunk == 0) rig_same_slots(&pool, 4, &pool, 2);
            check_close(rig_slot(&pool, 4), rig_slot(&pool, 2), pool.part_elems);
            free(pool.memory), rig_delta_free(&d);
        }
        struct rig_pool pool = pool_of(CONV_PREFILL, 5);
        live(&pool, 1);
        call_init(1);
        call.start[1] = (int32_t)(a + b), call.source[0] = 1, call.dest[0] = 2;
        RIG_OK(call_run(CONV_PREFILL, &pool));
        call.start[1] = (int32_t)a, call.dest[0] = 3;
        RIG_OK(call_run(CONV_PREFILL, &pool));
        call.x = inputs + (size_t)a * WIDE;
        call.start[1] = (int32_t)b, call.source[0] = 3, call.dest[0] = 4;
        RIG_OK(call_run(CONV_PREFILL, &pool));
        rig_same_slots(&pool, 4, &pool, 2);
        free(pool.memory);
    }
}
END_TEST

/* ---- class C: rows without a request, ids out of range, what a slot held before ---- */

START_TEST(report_21__rows_of_no_tokens_touch_no_slot)
{
    struct rig_pool pool = pool_of(_i, 12);
    for (int32_t slot = 1; slot < 12; slot++) live(&pool, slot);
    uint8_t *before = image(&pool);
    for (int idle = 0; idle < 2; idle++) {
        call_init(3);
        call.source[0] = call.dest[0] = 4;
        call.dest[1] = 7, call.dest[2] = 9; /* stale: others own these slots now */
        if (_i < FIRST_OF_ONE_TOKEN) {
            call.start[2] = call.start[3] = 1;
            if (idle) call.source[1] = 7, call.source[2] = 9;
        }
        RIG_OK(call_run(_i, &pool));
        memcpy(before + (size_t)4 * rig_part_bytes(&pool), rig_slot(&pool, 4),
            rig_part_bytes(&pool));
        ck_assert_mem_eq(pool.memory, before, pool.bytes);
    }
    check_image(&pool, before);
    free(pool.memory);
}
END_TEST

START_TEST(report_22__a_row_without_a_state_reads_no_slot)
{
    struct rig_pool pool = pool_of(_i, 5); /* NaN, slot 0 too */
    uint32_t elems = out_elems(_i);
    float want[WIDE];
    memset(rig_slot(&pool, 2), 0, rig_part_bytes(&pool));
    call_init(1);
    call.source[0] = 2, call.dest[0] = 3;
    RIG_OK(call_run(_i, &pool));
    memcpy(want, call.out, elems * sizeof *want);
    call.source[0] = 0, call.dest[0] = 4; /* slot 4 was another's, and holds NaN */
    RIG_OK(call_run(_i, &pool));
    rig_same_slots(&pool, 4, &pool, 3);
    check_finite(rig_slot(&pool, 4), pool.part_elems);
    ck_assert_mem_eq(call.out, want, elems * sizeof *want);
    free(pool.memory);
}
END_TEST

START_TEST(report_29__padding_is_no_slot)
{
    struct rig_pool pool = pool_of(_i, 9);
    for (int32_t slot = 1; slot < 9; slot++) live(&pool, slot);
    uint8_t *before = image(&pool);
    call_init(8);
    RIG_OK(call_run(_i, &pool));
    check_image(&pool, before);
    free(pool.memory);
}
END_TEST

/* A batch of `live_rows` in slots 1.. in place, padded to 8 with -1: each row as if alone, and the
 * slots beyond as they were. */
static void check_padded(int kernel, uint32_t live_rows)
{
    struct rig_pool pool = pool_of(kernel, 9);
    float out[8 * WIDE];
    for (int32_t slot = 1; slot < 9; slot++) live(&pool, slot);
    uint8_t *before = image(&pool);
    size_t bytes = rig_part_bytes(&pool);
    call_init(8);
    for (uint32_t r = 0; r < live_rows; r++) call.source[r] = call.dest[r] = (int32_t)r + 1;
    RIG_OK(call_run(kernel, &pool));
    memcpy(out, call.out, sizeof out);
    ck_assert_mem_eq(pool.memory + (live_rows + 1) * bytes, before + (live_rows + 1) * bytes,
        (8 - live_rows) * bytes);
    for (uint32_t r = 0; r < live_rows; r++) check_row_alone(kernel, r, &pool, out);
    free(before), free(pool.memory);
}

START_TEST(report_30__the_lowest_slot_is_safe_from_padding)
{
    check_padded(_i, 5); /* slot 1 is the first that can be handed out */
}
END_TEST

START_TEST(report_31__ids_out_of_range_are_refused)
{
    static const int32_t bad[] = {26, 27, 6947, INT_MAX};
    struct rig_pool pool = pool_of(_i, 26);
    for (int32_t slot = 1; slot < 26; slot++) live(&pool, slot);
    uint8_t *before = image(&pool);
    for (int b = 0; b < 4; b++) {
        for (int as_dest = 0; as_dest < 2; as_dest++) {
            call_init(2);
            call.source[0] = call.dest[0] = 3; /* a good row before the bad one */
            call.source[1] = as_dest ? 5 : bad[b];
            call.dest[1] = as_dest ? bad[b] : -1;
            ck_assert_int_eq(call_run(_i, &pool), SC_ERR_INVALID);
            ck_assert_mem_eq(pool.memory, before, pool.bytes);
        }
    }
    call_init(2); /* -1 is no row */
    RIG_OK(call_run(_i, &pool));
    check_image(&pool, before);
    free(pool.memory);
}
END_TEST

START_TEST(report_32__padding_never_falls_on_the_last_row)
{
    for (uint32_t rows = 1; rows <= 8; rows++) check_padded(_i, rows);
    struct rig_pool pool = pool_of(_i, 9);
    for (int32_t slot = 1; slot < 9; slot++) live(&pool, slot);
    uint8_t *before = image(&pool);
    call_init(6); /* 5 live ones and a pad */
    for (int32_t r = 0; r < 6; r++) call.source[r] = call.dest[r] = r < 5 ? r + 1 : 9;
    ck_assert_int_eq(call_run(_i, &pool), SC_ERR_INVALID); /* not taken for slot 8 */
    check_image(&pool, before);
    free(pool.memory);
}
END_TEST

/* The conv's output is what the update reads. */
START_TEST(report_33__padded_rows_give_zeros_all_the_way)
{
    static float y[8 * WIDE];
    struct rig_pool window = pool_of(CONV_UPDATE, 6), state = pool_of(DECODE, 6);
    call_init(8);
    for (int32_t r = 0; r < 5; r++) call.dest[r] = r + 1, call.source[r] = 0;
    RIG_OK(call_run(CONV_UPDATE, &window));
    memcpy(y, call.out, sizeof y);
    rig_all_bytes(y + 5 * WIDE, 3 * WIDE * sizeof *y, 0);
    call.x = y;
    RIG_OK(call_run(DECODE, &state));
    rig_all_bytes(call.out + 5 * VO, 3 * VO * sizeof *y, 0);
    check_finite(call.out, 8 * VO);
    for (int32_t slot = 1; slot <= 5; slot++) {
        check_finite(rig_slot(&state, slot), state.part_elems);
    }
    free(window.memory), free(state.memory);
}
END_TEST

START_TEST(report_34__as_much_padding_as_tokens)
{
    struct rig_pool pool = pool_of(_i, 80);
    for (int32_t slot = 1; slot < 80; slot++) live(&pool, slot);
    uint8_t *before = image(&pool);
    call_init(128);
    for (int32_t r = 0; r < 64; r++) call.source[r] = call.dest[r] = r + 1;
    RIG_OK(call_run(_i, &pool));
    size_t at = 65 * rig_part_bytes(&pool); /* slots 65 .. 79 */
    ck_assert_mem_eq(pool.memory + at, before + at, pool.bytes - at);
    free(before), free(pool.memory);
}
END_TEST

START_TEST(report_35__more_rows_than_slots)
{
    struct rig_pool pool = pool_of(_i, 6), other = pool_of(_i, 6);
    for (int32_t slot = 1; slot < 6; slot++) live(&pool, slot), live(&other, slot);
    call_init(8);
    call.source[0] = call.dest[0] = 1;
    call.source[1] = call.dest[1] = 3;
    RIG_OK(call_run(_i, &pool));
    call.rows = 2;
    RIG_OK(call_run(_i, &other));
    ck_assert_mem_eq(pool.memory, other.memory, pool.bytes);
    free(pool.memory), free(other.memory);
}
END_TEST

START_TEST(report_42__pads_between_rows_do_not_count)
{
    for (uint32_t chunk = 0; chunk <= 16; chunk += 16) {
        struct rig_delta d = sequence(chunk, SC_DTYPE_F32, 5, 0);
        rig_seq_init(&d, 1, 9, 0, 78);
        struct rig_pool pool = rig_pool(SC_DTYPE_F32, rig_state_elems(&d), 6, 0, 0);
        const struct rig_piece padded[] = {{0, 0, 5, 0, 1}, {-1, 0, 4, -1, -1}, {1, 0, 9, 0, 2}};
        rig_run(&d, &pool, padded, 3, NULL, 0); /* tensors of pads are NaN */
        rig_run(&d, &pool, &(struct rig_piece){0, 0, 5, 0, 3}, 1, NULL, 0);
        rig_run(&d, &pool, &(struct rig_piece){1, 0, 9, 0, 4}, 1, NULL, 0);
        rig_same_slots(&pool, 1, &pool, 3);
        rig_same_slots(&pool, 2, &pool, 4);
        free(pool.memory), rig_delta_free(&d);
    }
}
END_TEST

START_TEST(report_42__pads_between_rows_do_not_enter_the_window)
{
    static float x[18 * WIDE];
    struct rig_pool pool = pool_of(CONV_PREFILL, 5);
    memcpy(x, inputs, sizeof x);
    memset(x + 5 * WIDE, 0xff, 4 * WIDE * sizeof *x);
    call_init(3);
    call.x = x;
    call.start[1] = 5, call.start[2] = 9, call.start[3] = 18;
    call.source[0] = call.source[2] = 0;
    call.dest[0] = 1, call.dest[2] = 2;
    RIG_OK(call_run(CONV_PREFILL, &pool));
    call_init(1);
    call.start[1] = 5, call.source[0] = 0, call.dest[0] = 3;
    RIG_OK(call_run(CONV_PREFILL, &pool));
    call.start[1] = 9, call.dest[0] = 4, call.x = inputs + (size_t)9 * WIDE;
    RIG_OK(call_run(CONV_PREFILL, &pool));
    rig_same_slots(&pool, 1, &pool, 3);
    rig_same_slots(&pool, 2, &pool, 4);
    free(pool.memory);
}
END_TEST

/* ---- class H: offsets ---- */

/* States of 2 MiB: slot 1024 begins at 2^31 bytes. Pages that nobody touches cost nothing. */
START_TEST(report_72__slots_beyond_2_31_bytes)
{
    enum { HEADS = 32, DIM = 128, PART = HEADS * DIM * DIM };
    static const int32_t far_ids[] = {1023, 1024, 1025, 2048};
    struct sc_backend_memory memory = {0};
    RIG_OK(sc_backend_alloc(sc_backend_host(), (uint64_t)2049 * PART * 4, &memory));
    struct rig_pool near = rig_pool(SC_DTYPE_F32, PART, 3, 0, 0), far = near;
    far.slots.base = memory.base;
    far.slots.slot_count = 2049;
    struct sc_prng prng;
    sc_prng_seed(&prng, 3);
    float *qkv = rig_normal(&prng, (size_t)3 * HEADS * DIM, 1.0f), *o = rig_alloc(HEADS * DIM * 4);
    float g[HEADS], b[HEADS];
    for (int h = 0; h < HEADS; h++) g[h] = -0.1f, b[h] = 0.5f;
    int32_t source = 0, dest = 1;
    sc_k_decode_packed_params p = {.qkv = sc_host_devptr(qkv), .o = sc_host_devptr(o),
        .dtype = SC_DTYPE_F32, .g = sc_host_devptr(g), .beta = sc_host_devptr(b),
        .shape = {.kind = SC_K_KIND_GDN, .heads = HEADS, .v_heads = HEADS, .k_dim = DIM,
            .v_dim = DIM, .qk_l2norm = true},
        .row_count = 1, .source = sc_host_devptr(&source), .dest = sc_host_devptr(&dest),
        .state = near.slots};
    RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
    source = 1, dest = 2;
    RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
    p.state = far.slots;
    for (int i = 0; i < 4; i++) {
        source = 0, dest = far_ids[i];
        RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
        rig_same_slots(&far, far_ids[i], &near, 1);
        source = far_ids[i];
        RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
    }
    for (int i = 0; i < 4; i++) rig_same_slots(&far, far_ids[i], &near, 2);
    sc_backend_free(sc_backend_host(), &memory);
    free(qkv), free(o), free(near.memory);
}
END_TEST

/* Rows of a tensor 2^20 elements apart, 2,100 of them: past 2^31 elements.
 * Small pages, so that a row costs one of them. */
START_TEST(report_73__token_times_stride_beyond_2_31)
{
    enum { TOKENS = 2100, OUT = 64 };
    const int64_t stride = 1 << 20;
    uint32_t chunk = _i ? 64 : 0;
    size_t bytes = (size_t)TOKENS * (size_t)stride * 4;
    float *wide = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(wide, MAP_FAILED);
    (void)madvise(wide, bytes, MADV_NOHUGEPAGE);
    struct rig_delta d = sequence(chunk, SC_DTYPE_F32, TOKENS, 0);
    struct rig_pool pool = rig_pool(SC_DTYPE_F32, rig_state_elems(&d), 3, 0, 0);
    struct rig_piece piece = {0, 0, TOKENS, 0, 1};
    struct rig_batch b;
    rig_pack(&b, &d, &piece, 1);
    rig_params(&b, &d, &pool, 1, NULL, 0);
    RIG_OK(chunk ? sc_k_delta_chunk(NULL, &b.p, NULL) : sc_k_delta_recurrent(NULL, &b.p, NULL));
    for (int64_t t = 0; t < TOKENS; t++) {
        memcpy(wide + t * stride, b.q + t * QK, QK * 4);
        memcpy(wide + t * stride + QK, b.k + t * QK, QK * 4);
        memcpy(wide + t * stride + 2 * QK, b.v + t * VO, VO * 4);
    }
    b.p.q = sc_host_devptr(wide), b.p.k = sc_host_devptr(wide + QK);
    b.p.v = sc_host_devptr(wide + 2 * QK), b.p.o = sc_host_devptr(wide + OUT);
    b.p.q_stride = b.p.k_stride = b.p.v_stride = b.p.o_stride = stride;
    b.dest[0] = 2;
    RIG_OK(chunk ? sc_k_delta_chunk(NULL, &b.p, NULL) : sc_k_delta_recurrent(NULL, &b.p, NULL));
    rig_same_slots(&pool, 2, &pool, 1);
    const float *o = b.tensors[3];
    for (int64_t t = 0; t < TOKENS; t++) {
        ck_assert_msg(memcmp(wide + t * stride + OUT, o + t * VO, VO * 4) == 0,
            "output of token %lld", (long long)t);
    }
    ck_assert_int_eq(munmap(wide, bytes), 0);
    rig_batch_free(&b), free(pool.memory), rig_delta_free(&d);
}
END_TEST

#define ADD(name, count) tcase_add_loop_test(tc, name, 0, count)

int main(void)
{
    Suite *suite = suite_create("reports_kernels");
    TCase *tc = tcase_create("reports");
    tcase_set_timeout(tc, 240);
    tcase_add_checked_fixture(tc, setup, teardown);
    ADD(report_02__saves_by_the_page_in_a_kernel_that_counts_by_the_chunk, 2);
    ADD(report_10__tails_of_every_length_after_a_checkpoint, 2);
    ADD(report_10__conv_tails_of_every_length_after_a_checkpoint, 1);
    ADD(report_21__rows_of_no_tokens_touch_no_slot, KERNELS);
    ADD(report_22__a_row_without_a_state_reads_no_slot, KERNELS);
    ADD(report_29__padding_is_no_slot, KERNELS);
    ADD(report_30__the_lowest_slot_is_safe_from_padding, KERNELS);
    ADD(report_31__ids_out_of_range_are_refused, KERNELS);
    ADD(report_32__padding_never_falls_on_the_last_row, KERNELS);
    ADD(report_33__padded_rows_give_zeros_all_the_way, 1);
    ADD(report_34__as_much_padding_as_tokens, KERNELS);
    ADD(report_35__more_rows_than_slots, KERNELS);
    ADD(report_41__a_tokens_then_b_in_one_call, 1);
    ADD(report_42__pads_between_rows_do_not_count, 1);
    ADD(report_42__pads_between_rows_do_not_enter_the_window, 1);
    ADD(report_72__slots_beyond_2_31_bytes, 1);
    ADD(report_73__token_times_stride_beyond_2_31, 2);
    suite_add_tcase(suite, tc);
    return check_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The selective state space against a float64 loop, over random shapes, dtypes and batches; and its
 * bits, which no cut, packing, padding, layout, save or kernel row may change. */
#include <check.h>
#include <math.h>

#include "kernels_rig.h"
#include "support/check_main.h"
#include "statecache/kernels_ssm.h"

enum { CASES = 16, SLOTS = 8, SOURCE = 1 };

/* Cases from CASES on are longer, and chunk by chunk in the tests that say so. */
enum { LONG = 20 };

struct ssm {
    sc_k_ssm_params p;
    uint32_t tokens;
    float *x, *dt, *b, *c, *z, *w; /* what the tensors hold */
    void *t[6];
    struct rig_pool pool;
    uint32_t chunk; /* 0: token by token */
    void *scratch;
};

static float *values(struct sc_prng *prng, sc_dtype dtype, size_t count, float scale, void **tensor)
{
    float *x = rig_normal(prng, count, scale);
    *tensor = rig_tensor(dtype, x, count);
    rig_read(x, *tensor, dtype, count);
    return x;
}

static struct ssm ssm_open(int i, size_t stride, size_t offset)
{
    static const uint32_t dims[][4] = {{4, 2, 64, 128}, {3, 1, 5, 19}, {2, 2, 16, 16},
        {1, 1, 80, 256}};
    struct ssm s = {.tokens = 1 + (uint32_t)(i < CASES ? i * 37 % 60 : i * 97 % 300)};
    struct sc_prng prng;
    sc_prng_seed(&prng, 40 + (uint64_t)i);
    const uint32_t *d = dims[i % 4];
    sc_dtype dtype = i % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    size_t n = s.tokens, wide = (size_t)d[0] * d[2], group = (size_t)d[1] * d[3];
    s.x = values(&prng, dtype, n * wide, 1.0f, &s.t[0]);
    s.dt = values(&prng, dtype, n * d[0], 1.0f, &s.t[1]);
    s.b = values(&prng, dtype, n * group, 1.0f, &s.t[2]);
    s.c = values(&prng, dtype, n * group, 1.0f, &s.t[3]);
    s.z = values(&prng, dtype, n * wide, 1.0f, &s.t[4]);
    s.t[5] = rig_tensor(dtype, NULL, n * wide);
    s.w = rig_normal(&prng, 3 * d[0], 0.7f);
    s.pool = rig_pool(i % 3 == 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32, wide * d[3], SLOTS, stride,
        offset);
    float *state = rig_normal(&prng, s.pool.part_elems, 1.0f);
    rig_put(rig_slot(&s.pool, SOURCE), s.pool.slots.dtype, state, s.pool.part_elems);
    free(state);
    s.p = (sc_k_ssm_params){.x = sc_host_devptr(s.t[0]), .dt = sc_host_devptr(s.t[1]),
        .b = sc_host_devptr(s.t[2]), .c = sc_host_devptr(s.t[3]),
        .z = i % 5 ? sc_host_devptr(s.t[4]) : 0, .y = sc_host_devptr(s.t[5]), .dtype = dtype,
        .a_log = sc_host_devptr(s.w), .dt_bias = i % 3 ? sc_host_devptr(s.w + d[0]) : 0,
        .d = i % 4 ? sc_host_devptr(s.w + 2 * d[0]) : 0, .heads = d[0], .groups = d[1],
        .head_dim = d[2], .state_dim = d[3], .state = s.pool.slots};
    return s;
}

static void ssm_chunked(struct ssm *s, uint32_t chunk)
{
    uint64_t bytes = 0;
    sc_k_ssm_chunk_params p = {.tokens = s->p, .chunk = chunk};
    RIG_OK(sc_k_ssm_chunk_scratch(NULL, &p, &bytes));
    s->chunk = chunk;
    s->scratch = rig_alloc(bytes);
}

static sc_status ssm_call(struct ssm *s, const sc_k_ssm_params *tokens)
{
    sc_k_ssm_chunk_params p = {.tokens = *tokens, .chunk = s->chunk,
        .scratch = sc_host_devptr(s->scratch), .scratch_bytes = UINT64_MAX};
    return s->chunk != 0 ? sc_k_ssm_chunk(NULL, &p, NULL) : sc_k_ssm(NULL, tokens, NULL);
}

static void ssm_close(struct ssm *s)
{
    free(s->scratch);
    free(s->x), free(s->dt), free(s->b), free(s->c), free(s->z), free(s->w);
    for (int i = 0; i < 6; i++) free(s->t[i]);
    free(s->pool.memory);
}

/* Tokens from .. to of the sequence as one row between padded and empty ones; position 10. */
static void run(struct ssm *s, uint32_t from, uint32_t to, int32_t source, int32_t dest,
    int32_t save_pos, int32_t save_slot)
{
    int32_t start[4] = {(int32_t)from, (int32_t)from, (int32_t)to, (int32_t)to};
    int32_t sources[3] = {0, source, -1}, dests[3] = {-1, dest, 7};
    int32_t position[3] = {0, 10 + (int32_t)from, 0}, row = 1;
    sc_k_ssm_params p = s->p;
    p.token_count = s->tokens, p.row_count = 3;
    p.row_start = sc_host_devptr(start), p.position = sc_host_devptr(position);
    p.source = sc_host_devptr(sources), p.dest = sc_host_devptr(dests);
    if (save_pos > 0)
        p.saves = (sc_k_saves){sc_host_devptr(&row), sc_host_devptr(&save_pos),
            sc_host_devptr(&save_slot), 1};
    RIG_OK(ssm_call(s, &p));
}

static size_t y_bytes(const struct ssm *s, uint32_t tokens)
{
    return (size_t)tokens * s->p.heads * s->p.head_dim * rig_elem(s->p.dtype);
}

/* The definition, in float64: y and the state at the end. */
static void oracle(const struct ssm *s, bool from_state, double *y, double *state)
{
    const sc_k_ssm_params *p = &s->p;
    size_t n = p->state_dim, dim = p->head_dim, heads = p->heads;
    float *first = rig_alloc(s->pool.part_elems * 4);
    rig_read(first, rig_slot(&s->pool, SOURCE), s->pool.slots.dtype, s->pool.part_elems);
    for (size_t i = 0; i < s->pool.part_elems; i++) state[i] = from_state ? (double)first[i] : 0;
    for (size_t t = 0; t < s->tokens; t++)
        for (size_t h = 0; h < heads; h++) {
            double raw = (double)s->dt[t * heads + h]
                + (p->dt_bias != 0 ? (double)s->w[heads + h] : 0);
            double dt = raw > 20 ? raw : log1p(exp(raw));
            double alpha = exp(-exp((double)s->w[h]) * dt);
            size_t g = (t * p->groups + h / (heads / p->groups)) * n;
            for (size_t v = 0; v < dim; v++) {
                size_t at = (t * heads + h) * dim + v;
                double sum = 0, *row = state + (h * dim + v) * n;
                for (size_t i = 0; i < n; i++) {
                    row[i] = row[i] * alpha + dt * (double)s->x[at] * (double)s->b[g + i];
                    sum += row[i] * (double)s->c[g + i];
                }
                if (p->d != 0) sum += (double)s->w[2 * heads + h] * (double)s->x[at];
                double z = (double)s->z[at];
                y[at] = p->z != 0 ? sum * z / (1 + exp(-z)) : sum;
            }
        }
    free(first);
}

static double rmse_ratio(const float *got, const double *want, size_t count)
{
    double error = 0, all = 1e-30;
    for (size_t i = 0; i < count; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        all += want[i] * want[i];
    }
    return sqrt(error / all);
}

static void check_float64(int i, uint32_t chunk)
{
    struct ssm s = ssm_open(i, 0, 0);
    if (chunk > 0) ssm_chunked(&s, chunk);
    size_t count = (size_t)s.tokens * s.p.heads * s.p.head_dim;
    double *y = rig_alloc(count * 8), *state = rig_alloc(s.pool.part_elems * 8);
    float *got = rig_alloc(count * 4), *got_state = rig_alloc(s.pool.part_elems * 4);
    bool bf16_state = s.pool.slots.dtype == SC_DTYPE_BF16;
    oracle(&s, i % 2, y, state);
    run(&s, 0, s.tokens, i % 2 ? SOURCE : 0, 2, 0, 0);
    rig_read(got, s.t[5], s.p.dtype, count);
    rig_read(got_state, rig_slot(&s.pool, 2), s.pool.slots.dtype, s.pool.part_elems);
    ck_assert_double_lt(rmse_ratio(got, y, count),
        bf16_state ? 1e-2 : s.p.dtype == SC_DTYPE_BF16 ? 3e-3 : 2e-5);
    ck_assert_double_lt(rmse_ratio(got_state, state, s.pool.part_elems),
        bf16_state ? 1e-2 : 2e-5);
    for (int32_t slot = 3; slot < SLOTS; slot++) rig_untouched(&s.pool, slot);
    free(y), free(state), free(got), free(got_state), ssm_close(&s);
}

static const uint32_t chunks[] = {16, 64, 128, 256, 32};

START_TEST(ssm__matches_float64)
{
    check_float64(_i, 0);
}
END_TEST

START_TEST(chunk__matches_float64)
{
    check_float64(_i, chunks[_i % 5]);
}
END_TEST

/* Cut at grid points, packed otherwise, in another layout, with a save: the same bits. */
START_TEST(chunk__cuts_on_the_grid_change_no_bit)
{
    struct ssm one = ssm_open(_i, 0, 0);
    struct ssm two = ssm_open(_i, 3 * rig_part_bytes(&one.pool) + 64, 192);
    uint32_t n = one.tokens, chunk = chunks[_i % 3];
    ssm_chunked(&one, chunk), ssm_chunked(&two, chunk);
    int32_t a = (int32_t)((10 + n / 3) / chunk * chunk) - 10;
    int32_t b = (int32_t)((10 + n - n / 4) / chunk * chunk) - 10;
    a = a < 0 ? 0 : a, b = b < a ? a : b;
    run(&one, 0, n, SOURCE, 2, a > 0 ? 10 + a : 0, 3);
    run(&two, 0, (uint32_t)a, SOURCE, a > 0 ? 4 : SOURCE, 0, 0);
    run(&two, (uint32_t)a, (uint32_t)b, a > 0 ? 4 : SOURCE, 5, 0, 0);
    run(&two, (uint32_t)b, n, 5, 5, 0, 0);
    ck_assert_mem_eq(one.t[5], two.t[5], y_bytes(&one, n));
    rig_same_slots(&one.pool, 2, &two.pool, 5);
    if (a > 0) rig_same_slots(&one.pool, 3, &two.pool, 4);
    rig_same_slots(&one.pool, SOURCE, &two.pool, SOURCE);
    ssm_close(&one), ssm_close(&two);
}
END_TEST

/* A NaN at a later token reaches no earlier output, wherever in a tile it lies. */
START_TEST(chunk__later_tokens_change_no_earlier_output)
{
    struct ssm one = ssm_open(LONG + 4, 0, 0), two = ssm_open(LONG + 4, 0, 0);
    uint32_t n = one.tokens, at = n / 2 + (uint32_t)_i;
    size_t wide = (size_t)one.p.heads * one.p.head_dim, e = rig_elem(one.p.dtype);
    ssm_chunked(&one, 128), ssm_chunked(&two, 128);
    for (int i = 0; i < 4; i++) { /* x, dt, b, c */
        size_t width = i == 0 ? wide : i == 1 ? one.p.heads : (size_t)one.p.groups
            * one.p.state_dim;
        memset((uint8_t *)two.t[i] + at * width * e, 0xff, (n - at) * width * e);
    }
    run(&one, 0, n, SOURCE, 2, 0, 0);
    run(&two, 0, n, SOURCE, 2, 0, 0);
    ck_assert_mem_eq(one.t[5], two.t[5], y_bytes(&one, at));
    ssm_close(&one), ssm_close(&two);
}
END_TEST

START_TEST(ssm__cuts_saves_and_layouts_change_no_bit)
{
    struct ssm one = ssm_open(_i, 0, 0);
    struct ssm two = ssm_open(_i, 3 * rig_part_bytes(&one.pool) + 64, 192);
    uint32_t n = one.tokens, a = n / 3, b = n - n / 4;
    run(&one, 0, n, SOURCE, 2, 10 + (int32_t)(a > 0 ? a : 1), 3);
    run(&two, 0, a, SOURCE, a > 0 ? 4 : SOURCE, 0, 0);
    run(&two, a, b, a > 0 ? 4 : SOURCE, 5, 0, 0);
    run(&two, b, n, 5, 5, 0, 0);
    ck_assert_mem_eq(one.t[5], two.t[5], y_bytes(&one, n));
    rig_same_slots(&one.pool, 2, &two.pool, 5);
    if (a > 0) rig_same_slots(&one.pool, 3, &two.pool, 4);
    rig_same_slots(&one.pool, SOURCE, &two.pool, SOURCE);
    ssm_close(&one), ssm_close(&two);
}
END_TEST

START_TEST(ssm__padded_and_empty_rows)
{
    struct ssm s = ssm_open(_i, 0, 0);
    if (_i >= 4) ssm_chunked(&s, 32);
    int32_t start[3] = {0, (int32_t)s.tokens, (int32_t)s.tokens};
    int32_t source[2] = {-1, SOURCE}, dest[2] = {2, 3};
    s.p.token_count = s.tokens, s.p.row_count = 2;
    s.p.row_start = sc_host_devptr(start);
    s.p.source = sc_host_devptr(source), s.p.dest = sc_host_devptr(dest);
    RIG_OK(ssm_call(&s, &s.p));
    rig_all_bytes(s.t[5], y_bytes(&s, s.tokens), 0);
    rig_untouched(&s.pool, 2);
    rig_same_slots(&s.pool, 3, &s.pool, SOURCE);
    ssm_close(&s);
}
END_TEST

#define REFUSED(want, field, value)                                                                \
    do {                                                                                           \
        __typeof__(field) good_ = (field);                                                         \
        (field) = (value);                                                                         \
        sc_status got_ = sc_k_ssm(NULL, &s.p, NULL);                                               \
        ck_assert_msg(got_ == (want), "%s = %s: %s", #field, #value, sc_status_name(got_));        \
        ck_assert_uint_gt(strlen(sc_last_error()->text), 3);                                       \
        (field) = good_;                                                                           \
    } while (0)
#define INVALID(field, value) REFUSED(SC_ERR_INVALID, field, value)

START_TEST(ssm__bad_arguments)
{
    struct ssm s = ssm_open(3, 0, 0);
    int32_t start[2] = {0, (int32_t)s.tokens}, source = SOURCE, dest = 2;
    s.p.token_count = s.tokens, s.p.row_count = 1;
    s.p.row_start = sc_host_devptr(start);
    s.p.source = sc_host_devptr(&source), s.p.dest = sc_host_devptr(&dest);
    INVALID(s.p.x, 0);
    INVALID(s.p.dt, 1);
    INVALID(s.p.y, s.p.b);
    INVALID(s.p.a_log, 0);
    INVALID(s.p.heads, 0);
    INVALID(s.p.groups, 0);
    INVALID(s.p.groups, s.p.heads + 1);
    INVALID(s.p.head_dim, 257);
    INVALID(s.p.state_dim, 0);
    INVALID(s.p.state.base, 0);
    INVALID(s.p.state.slot_stride, 8);
    INVALID(s.p.b_stride, 1);
    INVALID(s.p.row_start, 0);
    INVALID(source, SLOTS);
    INVALID(dest, SLOTS);
    INVALID(start[1], (int32_t)s.tokens + 1);
    for (int gated = 1; gated >= 0; gated--) { /* z alone may be left out */
        if (!gated) s.p.z = 0;
        INVALID(s.p.x, 0);
        INVALID(s.p.dt, 0);
        INVALID(s.p.b, 0);
        INVALID(s.p.c, 0);
        INVALID(s.p.y, 0);
    }
    REFUSED(SC_ERR_UNSUPPORTED, s.p.dtype, SC_DTYPE_F16);
    REFUSED(SC_ERR_UNSUPPORTED, s.p.state.dtype, SC_DTYPE_U8);
    ck_assert_int_eq(sc_k_ssm(NULL, NULL, NULL), SC_ERR_INVALID);
    rig_untouched(&s.pool, 2);
    RIG_OK(sc_k_ssm(NULL, &s.p, NULL));
    ssm_close(&s);
}
END_TEST

#undef REFUSED
#define REFUSED(want, field, value)                                                                \
    do {                                                                                           \
        __typeof__(field) good_ = (field);                                                         \
        (field) = (value);                                                                         \
        sc_status got_ = sc_k_ssm_chunk(NULL, &p, NULL);                                           \
        ck_assert_msg(got_ == (want), "%s = %s: %s", #field, #value, sc_status_name(got_));        \
        ck_assert_uint_gt(strlen(sc_last_error()->text), 3);                                       \
        (field) = good_;                                                                           \
    } while (0)

START_TEST(chunk__refuses_bad_arguments)
{
    struct ssm s = ssm_open(3, 0, 0);
    int32_t start[2] = {0, (int32_t)s.tokens}, source = SOURCE, dest = 2;
    int32_t row = 0, pos = 17, slot = 3;
    uint64_t bytes = 77;
    s.p.token_count = s.tokens, s.p.row_count = 1;
    s.p.row_start = sc_host_devptr(start);
    s.p.source = sc_host_devptr(&source), s.p.dest = sc_host_devptr(&dest);
    sc_k_ssm_chunk_params p = {.tokens = s.p, .chunk = 16};
    ck_assert_int_eq(sc_k_ssm_chunk_scratch(NULL, NULL, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_ssm_chunk_scratch(NULL, &p, NULL), SC_ERR_INVALID);
    ck_assert_uint_eq(bytes, 77);
    RIG_OK(sc_k_ssm_chunk_scratch(NULL, &p, &p.scratch_bytes));
    void *scratch = rig_alloc(p.scratch_bytes);
    p.scratch = sc_host_devptr(scratch);
    INVALID(p.chunk, 0);
    INVALID(p.chunk, 48);
    INVALID(p.chunk, 512);
    INVALID(p.scratch, 0);
    INVALID(p.scratch, p.scratch + 4);
    INVALID(p.scratch_bytes, p.scratch_bytes - 1);
    INVALID(p.tokens.x, 0);
    INVALID(p.tokens.state_dim, 0);
    INVALID(p.tokens.heads, 0);
    INVALID(dest, SLOTS);
    INVALID(start[1], (int32_t)s.tokens + 1);
    p.tokens.saves = (sc_k_saves){sc_host_devptr(&row), sc_host_devptr(&pos),
        sc_host_devptr(&slot), 1};
    if (s.tokens >= 17) INVALID(pos, 17); /* off the grid */
    p.tokens.saves.count = 0;
    REFUSED(SC_ERR_UNSUPPORTED, p.tokens.dtype, SC_DTYPE_F16);
    ck_assert_int_eq(sc_k_ssm_chunk(NULL, NULL, NULL), SC_ERR_INVALID);
    rig_untouched(&s.pool, 2);
    RIG_OK(sc_k_ssm_chunk(NULL, &p, NULL));
    free(scratch), ssm_close(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_ssm");
    TCase *all = tcase_create("ssm");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, ssm__matches_float64, 0, CASES);
    tcase_add_loop_test(all, ssm__cuts_saves_and_layouts_change_no_bit, 0, CASES);
    tcase_add_loop_test(all, ssm__padded_and_empty_rows, 0, 8);
    tcase_add_loop_test(all, chunk__matches_float64, 0, CASES + LONG);
    tcase_add_loop_test(all, chunk__cuts_on_the_grid_change_no_bit, 0, CASES + LONG);
    tcase_add_loop_test(all, chunk__later_tokens_change_no_earlier_output, 0, 17);
    tcase_add_test(all, chunk__refuses_bad_arguments);
    tcase_add_test(all, ssm__bad_arguments);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Projections against float64; and their bits, which neither the batch nor a range of outputs may
 * change. */
#include <check.h>
#include <math.h>

#include "kernels_rig.h"
#include "support/check_main.h"
#include "statecache/kernels_project.h"

enum { CASES = 16, TOKENS = 11 };

struct project {
    sc_k_project_params p;
    float *x, *w;
    void *tx, *tw, *ty;
    size_t y_stride;
};

static struct project project_open(int i)
{
    static const uint32_t dims[][2] = {{64, 48}, {1, 1}, {515, 9}, {37, 130}, {1040, 33}};
    struct project s = {0};
    struct sc_prng prng;
    sc_prng_seed(&prng, 70 + (uint64_t)i);
    uint32_t in = dims[i % 5][0], out = dims[i % 5][1];
    sc_dtype dtype = i & 1 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    sc_dtype weight = i & 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    sc_dtype y = i & 4 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    s.x = rig_normal(&prng, (size_t)TOKENS * (in + 3), 1.0f);
    s.w = rig_normal(&prng, (size_t)out * in, 1.0f);
    s.tx = rig_tensor(dtype, s.x, (size_t)TOKENS * (in + 3));
    s.tw = rig_tensor(weight, s.w, (size_t)out * in);
    rig_read(s.x, s.tx, dtype, (size_t)TOKENS * (in + 3));
    rig_read(s.w, s.tw, weight, (size_t)out * in);
    s.y_stride = out + 5;
    s.ty = rig_tensor(y, NULL, TOKENS * s.y_stride);
    s.p = (sc_k_project_params){.x = sc_host_devptr(s.tx), .weight = sc_host_devptr(s.tw),
        .y = sc_host_devptr(s.ty), .x_stride = (int64_t)in + 3, .y_stride = (int64_t)s.y_stride,
        .dtype = dtype, .weight_dtype = weight, .y_dtype = y, .in_dim = in, .out_dim = out,
        .token_count = TOKENS};
    return s;
}

static void project_close(struct project *s)
{
    free(s->x), free(s->w), free(s->tx), free(s->tw), free(s->ty);
}

START_TEST(project__matches_float64)
{
    struct project s = project_open(_i);
    float *got = rig_alloc(TOKENS * s.y_stride * 4);
    double error = 0, all = 1e-30;
    RIG_OK(sc_k_project(NULL, &s.p, NULL));
    rig_read(got, s.ty, s.p.y_dtype, TOKENS * s.y_stride);
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t n = 0; n < s.p.out_dim; n++) {
            double want = 0;
            for (uint32_t k = 0; k < s.p.in_dim; k++)
                want += (double)s.x[t * (s.p.in_dim + 3) + k]
                    * (double)s.w[(size_t)n * s.p.in_dim + k];
            double off = (double)got[t * s.y_stride + n] - want;
            error += off * off, all += want * want;
        }
        rig_all_bytes((uint8_t *)s.ty + (t * s.y_stride + s.p.out_dim) * rig_elem(s.p.y_dtype),
            5 * rig_elem(s.p.y_dtype), 0xff);
    }
    ck_assert_double_lt(sqrt(error / all), s.p.y_dtype == SC_DTYPE_F32 ? 1e-6 : 3e-3);
    free(got), project_close(&s);
}
END_TEST

START_TEST(project__batch_and_ranges_change_no_bit)
{
    struct project one = project_open(_i), two = project_open(_i);
    uint32_t cut = one.p.out_dim / 3;
    size_t e = rig_elem(one.p.y_dtype);
    RIG_OK(sc_k_project(NULL, &one.p, NULL));
    for (uint32_t t = 0; t < TOKENS; t++) /* token by token, in two ranges of outputs */
        for (int half = 0; half < 2; half++) {
            sc_k_project_params p = two.p;
            uint32_t first = half ? cut : 0;
            p.token_count = 1;
            p.x += t * (uint64_t)p.x_stride * rig_elem(p.dtype);
            p.y += (t * two.y_stride + first) * e;
            p.weight += (uint64_t)first * p.in_dim * rig_elem(p.weight_dtype);
            p.out_dim = half ? two.p.out_dim - cut : cut;
            if (p.out_dim > 0) RIG_OK(sc_k_project(NULL, &p, NULL));
        }
    ck_assert_mem_eq(one.ty, two.ty, TOKENS * one.y_stride * e);
    project_close(&one), project_close(&two);
}
END_TEST

START_TEST(low_rank__is_two_projections_with_a_wide_waist)
{
    enum { RANK = 24 };
    struct project s = project_open(_i);
    struct sc_prng prng;
    sc_prng_seed(&prng, 5);
    uint32_t in = s.p.in_dim, out = s.p.out_dim;
    float *down = rig_normal(&prng, (size_t)RANK * in, 0.5f);
    float *up = rig_normal(&prng, (size_t)out * RANK, 0.5f), *waist = rig_alloc(TOKENS * RANK * 4);
    void *td = rig_tensor(s.p.weight_dtype, down, (size_t)RANK * in);
    void *tu = rig_tensor(s.p.weight_dtype, up, (size_t)out * RANK);
    size_t bytes = TOKENS * s.y_stride * rig_elem(s.p.y_dtype);
    sc_k_low_rank_params p = {.x = s.p.x, .down = sc_host_devptr(td), .up = sc_host_devptr(tu),
        .y = s.p.y, .x_stride = s.p.x_stride, .y_stride = s.p.y_stride, .dtype = s.p.dtype,
        .weight_dtype = s.p.weight_dtype, .y_dtype = s.p.y_dtype, .in_dim = in, .rank = RANK,
        .out_dim = out, .token_count = TOKENS, .scratch = sc_host_devptr(waist),
        .scratch_bytes = TOKENS * RANK * 4};
    RIG_OK(sc_k_low_rank(NULL, &p, NULL));
    uint8_t *want = rig_alloc(bytes);
    float *by_hand = rig_alloc(TOKENS * RANK * 4);
    memcpy(want, s.ty, bytes);
    sc_k_project_params a = s.p, b = s.p;
    a.weight = p.down, a.y = sc_host_devptr(by_hand), a.y_stride = 0, a.y_dtype = SC_DTYPE_F32;
    a.out_dim = RANK;
    b.x = a.y, b.x_stride = 0, b.dtype = SC_DTYPE_F32, b.in_dim = RANK, b.weight = p.up;
    RIG_OK(sc_k_project(NULL, &a, NULL));
    RIG_OK(sc_k_project(NULL, &b, NULL));
    ck_assert_mem_eq(s.ty, want, bytes);
    free(down), free(up), free(waist), free(td), free(tu), free(want), free(by_hand);
    project_close(&s);
}
END_TEST

#define INVALID(call, field, value) RIG_REFUSED(SC_ERR_INVALID, call, field, value)

START_TEST(project__refuses_bad_arguments)
{
#define CALL sc_k_project(NULL, &s.p, NULL)
    struct project s = project_open(0);
    ck_assert_int_eq(sc_k_project(NULL, NULL, NULL), SC_ERR_INVALID);
    INVALID(CALL, s.p.x, 0);
    INVALID(CALL, s.p.weight, s.p.weight + 1);
    INVALID(CALL, s.p.y, 0);
    INVALID(CALL, s.p.y, s.p.x);
    INVALID(CALL, s.p.y, s.p.weight + 8);
    INVALID(CALL, s.p.in_dim, 0);
    INVALID(CALL, s.p.in_dim, UINT32_MAX);
    INVALID(CALL, s.p.out_dim, 0);
    INVALID(CALL, s.p.out_dim, UINT32_MAX);
    INVALID(CALL, s.p.x_stride, 1);
    INVALID(CALL, s.p.y_stride, -1);
    INVALID(CALL, s.p.token_count, UINT32_MAX);
    RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, s.p.dtype, SC_DTYPE_F16);
    RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, s.p.weight_dtype, SC_DTYPE_U8);
    RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, s.p.y_dtype, (sc_dtype)0);
    rig_all_bytes(s.ty, TOKENS * s.y_stride * 4, 0xff);
    RIG_OK(CALL);
    project_close(&s);
#undef CALL
}
END_TEST

START_TEST(low_rank__refuses_bad_arguments)
{
#define CALL sc_k_low_rank(NULL, &p, NULL)
    struct project s = project_open(0);
    float *waist = rig_alloc(TOKENS * 8 * 4);
    sc_k_low_rank_params p = {.x = s.p.x, .down = s.p.weight, .up = s.p.weight, .y = s.p.y,
        .dtype = s.p.dtype, .weight_dtype = s.p.weight_dtype, .y_dtype = s.p.y_dtype,
        .in_dim = 16, .rank = 8, .out_dim = 32, .token_count = TOKENS,
        .scratch = sc_host_devptr(waist), .scratch_bytes = TOKENS * 8 * 4};
    ck_assert_int_eq(sc_k_low_rank(NULL, NULL, NULL), SC_ERR_INVALID);
    INVALID(CALL, p.x, 0);
    INVALID(CALL, p.down, 0);
    INVALID(CALL, p.up, p.up + 2);
    INVALID(CALL, p.y, 0);
    INVALID(CALL, p.rank, 0);
    INVALID(CALL, p.in_dim, 0);
    INVALID(CALL, p.out_dim, 0);
    INVALID(CALL, p.scratch, 0);
    INVALID(CALL, p.scratch, p.x);
    INVALID(CALL, p.scratch_bytes, p.scratch_bytes - 1);
    INVALID(CALL, p.y_stride, 1);
    RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, p.dtype, SC_DTYPE_F16);
    rig_all_bytes(s.ty, TOKENS * s.y_stride * 4, 0xff);
    RIG_OK(CALL);
    free(waist), project_close(&s);
#undef CALL
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_project");
    TCase *all = tcase_create("project");
    tcase_set_timeout(all, 60);
    tcase_add_loop_test(all, project__matches_float64, 0, CASES);
    tcase_add_loop_test(all, project__batch_and_ranges_change_no_bit, 0, CASES);
    tcase_add_loop_test(all, low_rank__is_two_projections_with_a_wide_waist, 0, 5);
    tcase_add_test(all, project__refuses_bad_arguments);
    tcase_add_test(all, low_rank__refuses_bad_arguments);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

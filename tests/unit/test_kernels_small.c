/* SPDX-License-Identifier: Apache-2.0 */
/* Gates and norms against the oracle, strides, in-place use, and the kernel table. */
#include <check.h>

#include "kernels_rig.h"
#include "support/check_main.h"
#include "oracle/fixture.h"
#include "ref_math.h"

/* ---- gates ---- */

static void check_gates(const struct fixture *file, const char *prefix, sc_k_gate gate,
    sc_dtype dtype)
{
    char name[32];
    struct fixture_array x[6];
    static const char *const names[6] = {"a", "b", "a_log", "dt_bias", "g", "beta"};
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "%s_%s", prefix, names[i]);
        x[i] = fixture_get(file, name);
    }
    uint32_t tokens = x[0].dims[0], heads = x[1].dims[1], dim = x[0].dims[1] / heads;
    void *a = rig_tensor(dtype, x[0].f, x[0].count), *b = rig_tensor(dtype, x[1].f, x[1].count);
    float *g = rig_tensor(SC_DTYPE_F32, NULL, x[4].count + 1);
    float *beta = rig_tensor(SC_DTYPE_F32, NULL, x[5].count + 1);
    sc_k_gates_params p = {.a = sc_host_devptr(a), .b = sc_host_devptr(b), .dtype = dtype,
        .weights = {.gate = gate, .a_log = sc_host_devptr(x[2].f),
            .dt_bias = sc_host_devptr(x[3].f), .dt_bias_dtype = SC_DTYPE_F32,
            .lower_bound = -5.0f},
        .token_count = tokens, .heads = heads, .dim = dim, .g = sc_host_devptr(g),
        .beta = sc_host_devptr(beta)};
    RIG_OK(sc_k_gates(NULL, &p, NULL));
    for (size_t i = 0; i < x[4].count; i++) { /* relative, and tiny values count as 0 */
        double want = (double)x[4].f[i], error = fabs((double)g[i] - want);
        ck_assert_msg(error <= 4e-6 * fabs(want) + 1e-30 && g[i] <= 0.0f, "%s g[%zu]: %g, not %g",
            prefix, i, (double)g[i], want);
    }
    for (size_t i = 0; i < x[5].count; i++)
        ck_assert_double_le(fabs((double)(beta[i] - x[5].f[i])), 4e-7 * (double)x[5].f[i] + 1e-37);
    rig_all_bytes(g + x[4].count, 4, 0xff);
    rig_all_bytes(beta + x[5].count, 4, 0xff);
    p.weights.beta_doubled = true;
    p.g = 0; /* only beta; then a is not needed */
    p.a = 0;
    float *twice = rig_tensor(SC_DTYPE_F32, NULL, x[5].count);
    p.beta = sc_host_devptr(twice);
    RIG_OK(sc_k_gates(NULL, &p, NULL));
    for (size_t i = 0; i < x[5].count; i++) ck_assert(twice[i] == 2.0f * beta[i]);
    for (int i = 0; i < 6; i++) fixture_free(&x[i]);
    free(a), free(b), free(g), free(beta), free(twice);
}

START_TEST(gates__match_float64_at_both_ends_too)
{
    struct fixture file = fixture_open(SC_FIXTURE_DIR, "gates");
    for (int i = 0; i < 2; i++) {
        sc_dtype dtype = i ? SC_DTYPE_BF16 : SC_DTYPE_F32;
        check_gates(&file, "gdn", SC_K_GATE_GDN, dtype);
        check_gates(&file, "kda", SC_K_GATE_KDA_SOFTPLUS, dtype);
        check_gates(&file, "kdb", SC_K_GATE_KDA_BOUNDED, dtype);
    }
    fixture_close(&file);
}
END_TEST

START_TEST(gates__bounded_works_without_a_log)
{
    float a[4] = {-3.0f, 0.0f, 1.5f, 40.0f}, g[4], zero[1] = {0.0f}, with[4];
    sc_k_gates_params p = {.a = sc_host_devptr(a), .dtype = SC_DTYPE_F32,
        .weights = {.gate = SC_K_GATE_KDA_BOUNDED, .lower_bound = -5.0f}, .token_count = 1,
        .heads = 1, .dim = 4, .g = sc_host_devptr(g)};
    RIG_OK(sc_k_gates(NULL, &p, NULL));
    p.weights.a_log = sc_host_devptr(zero);
    p.g = sc_host_devptr(with);
    RIG_OK(sc_k_gates(NULL, &p, NULL));
    ck_assert_mem_eq(g, with, sizeof g);
    ck_assert_double_eq_tol((double)g[1], -2.5, 1e-6);
    ck_assert(g[3] == -5.0f);
}
END_TEST

/* The gates kernel and the packed decode must agree to the bit; so decode with given gates equals
 * decode with raw ones. */
START_TEST(gates__are_the_gates_of_the_packed_decode)
{
    enum { HV = 2, K = 24, V = 8, QKV = 2 * K + HV * V };
    struct sc_prng prng;
    sc_prng_seed(&prng, 3);
    for (int kind = 0; kind < 3; kind++) {
        uint32_t n = kind == 0 ? 1 : K;
        float *a = rig_normal(&prng, HV * n, 1), *b = rig_normal(&prng, HV, 1);
        float *w = rig_normal(&prng, HV * n + HV, 1), *qkv = rig_normal(&prng, QKV, 1);
        float *g = rig_alloc(HV * n * 4), beta[HV], o[2][HV * V];
        struct rig_pool pool = rig_pool(SC_DTYPE_F32, HV * V * K, 4, 0, 0);
        sc_k_gate_weights weights = {.gate = (sc_k_gate)(kind + 1), .a_log = sc_host_devptr(w),
            .dt_bias = sc_host_devptr(w + HV), .dt_bias_dtype = SC_DTYPE_F32,
            .lower_bound = -4.0f, .beta_doubled = kind == 1};
        sc_k_gates_params gates = {.a = sc_host_devptr(a), .b = sc_host_devptr(b),
            .dtype = SC_DTYPE_F32, .weights = weights, .token_count = 1, .heads = HV, .dim = K,
            .g = sc_host_devptr(g), .beta = sc_host_devptr(beta)};
        RIG_OK(sc_k_gates(NULL, &gates, NULL));
        int32_t source = 0, dest = 1;
        sc_k_decode_packed_params p = {.qkv = sc_host_devptr(qkv), .o = sc_host_devptr(o[0]),
            .dtype = SC_DTYPE_F32, .a = sc_host_devptr(a), .b = sc_host_devptr(b),
            .weights = weights,
            .shape = {.kind = kind == 0 ? SC_K_KIND_GDN : SC_K_KIND_KDA, .heads = 1,
                .v_heads = HV, .k_dim = K, .v_dim = V, .qk_l2norm = true},
            .row_count = 1, .source = sc_host_devptr(&source), .dest = sc_host_devptr(&dest),
            .state = pool.slots};
        RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
        p.g = sc_host_devptr(g), p.beta = sc_host_devptr(beta), p.a = p.b = 0;
        p.o = sc_host_devptr(o[1]);
        dest = 2;
        RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
        ck_assert_mem_eq(o[0], o[1], sizeof o[0]);
        rig_same_slots(&pool, 1, &pool, 2);
        free(a), free(b), free(w), free(qkv), free(g), free(pool.memory);
    }
}
END_TEST

/* ---- norms ---- */

START_TEST(l2norm__matches_float64)
{
    struct fixture file = fixture_open(SC_FIXTURE_DIR, "norms");
    struct fixture_array x = fixture_get(&file, "x"), want = fixture_get(&file, "l2");
    for (int i = 0; i < 4; i++) {
        sc_dtype in = i & 1 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
        sc_dtype out = i & 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
        void *tx = rig_tensor(in, x.f, x.count), *ty = rig_tensor(out, NULL, x.count);
        float *got = rig_alloc(x.count * 4);
        sc_k_l2norm_params p = {.x = sc_host_devptr(tx), .y = sc_host_devptr(ty), .dtype = in,
            .out_dtype = out, .token_count = x.dims[0], .heads = x.dims[1], .dim = x.dims[2]};
        RIG_OK(sc_k_l2norm(NULL, &p, NULL));
        rig_read(got, ty, out, x.count);
        ck_assert_double_lt(fixture_rmse_ratio(got, want.f, x.count),
            out == SC_DTYPE_F32 ? 1e-6 : 3e-3);
        if (in == out) { /* in place: the same bits */
            p.y = p.x;
            RIG_OK(sc_k_l2norm(NULL, &p, NULL));
            ck_assert_mem_eq(tx, ty, x.count * rig_elem(in));
        }
        free(tx), free(ty), free(got);
    }
    fixture_free(&x), fixture_free(&want), fixture_close(&file);
}
END_TEST

static void check_rmsnorm(const struct fixture *file, const char *name, sc_k_act act,
    bool gate_first, bool per_head, sc_dtype dtype)
{
    struct fixture_array x = fixture_get(file, "x"), z = fixture_get(file, "z");
    struct fixture_array weight = fixture_get(file, "weight"), want = fixture_get(file, name);
    size_t n = x.dims[1] * (size_t)x.dims[2], stride = n + 5, tokens = x.dims[0];
    float *wide = rig_alloc(tokens * stride * 4); /* z with a margin in each row */
    for (size_t t = 0; t < tokens; t++) memcpy(wide + t * stride, z.f + t * n, n * 4);
    void *tx = rig_tensor(dtype, x.f, x.count), *tz = rig_tensor(dtype, wide, tokens * stride);
    void *ty = rig_tensor(dtype, NULL, x.count), *tw = rig_tensor(dtype, weight.f, weight.count);
    sc_k_gated_rmsnorm_params p = {.x = sc_host_devptr(tx), .z = sc_host_devptr(tz),
        .y = sc_host_devptr(ty), .z_stride = (int64_t)stride, .dtype = dtype,
        .weight = sc_host_devptr(tw), .weight_dtype = dtype, .weight_per_head = per_head,
        .gate_first = gate_first, .act = act, .token_count = x.dims[0], .heads = x.dims[1],
        .dim = x.dims[2], .eps = per_head ? 1e-6f : 1e-5f};
    RIG_OK(sc_k_gated_rmsnorm(NULL, &p, NULL));
    float *got = rig_alloc(x.count * 4);
    rig_read(got, ty, dtype, x.count);
    ck_assert_double_lt(fixture_rmse_ratio(got, want.f, x.count),
        dtype == SC_DTYPE_F32 ? 1e-6 : 3e-3);
    p.y = p.x;
    RIG_OK(sc_k_gated_rmsnorm(NULL, &p, NULL));
    ck_assert_mem_eq(tx, ty, x.count * rig_elem(dtype));
    free(wide), free(tx), free(tz), free(ty), free(tw), free(got);
    fixture_free(&x), fixture_free(&z), fixture_free(&weight), fixture_free(&want);
}

START_TEST(gated_rmsnorm__matches_float64_in_both_orders)
{
    struct fixture file = fixture_open(SC_FIXTURE_DIR, "norms");
    for (int i = 0; i < 2; i++) {
        sc_dtype dtype = i ? SC_DTYPE_BF16 : SC_DTYPE_F32;
        check_rmsnorm(&file, "silu_norm", SC_K_ACT_SILU, false, false, dtype);
        check_rmsnorm(&file, "silu_gate", SC_K_ACT_SILU, true, false, dtype);
        check_rmsnorm(&file, "sigmoid_norm", SC_K_ACT_SIGMOID, false, false, dtype);
        check_rmsnorm(&file, "sigmoid_gate", SC_K_ACT_SIGMOID, true, false, dtype);
        check_rmsnorm(&file, "per_head", SC_K_ACT_SILU, true, true, dtype);
    }
    fixture_close(&file);
}
END_TEST

/* ---- arithmetic ---- */

/* bf16 rounding as the norm stores it, over patterns that include ties, infinities and NaN. */
START_TEST(bf16__rounds_to_nearest_even)
{
    static const struct { uint32_t in; uint16_t out; } rows[] = {{0x3f800000, 0x3f80},
        {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, {0x3f817fff, 0x3f81},
        {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x00000001, 0x0000},
        {0x80000000, 0x8000}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_assert_uint_eq(ref_to_bf16(ref_bits_f32(rows[i].in)), rows[i].out);
    ck_assert_uint_eq(ref_to_bf16(ref_bits_f32(0x7f800001)) & 0x7fffu, 0x7fc0u); /* still NaN */
}
END_TEST

START_TEST(exp__is_within_two_ulp_and_exact_at_its_ends)
{
    for (double x = -86.9; x < 88.7; x += 0.0137) {
        float got = ref_exp((float)x);
        double want = exp((double)(float)x);
        ck_assert_msg(fabs((double)got - want) <= 2.4e-7 * want, "exp(%g) = %g, not %g", x,
            (double)got, want);
    }
    ck_assert(ref_exp(0.0f) == 1.0f);
    ck_assert(ref_exp(-0.0f) == 1.0f);
    ck_assert(ref_exp(-1000.0f) == 0.0f);
    ck_assert(ref_exp(-INFINITY) == 0.0f);
    ck_assert(isinf(ref_exp(89.0f)));
    ck_assert(isinf(ref_exp(INFINITY)));
    ck_assert(isnan(ref_exp(NAN)));
}
END_TEST

/* ---- kernel table ---- */

START_TEST(choice__names_the_row_and_what_is_missing)
{
    const char *row = NULL;
    for (int op = 0; op < SC_K_OP_COUNT; op++) {
        if (op < SC_K_OP_DELTA_VERIFY) /* a device has rows for these */
            RIG_OK(sc_k_choice(NULL, (sc_k_op)op, SC_DTYPE_BF16, (sc_dtype)0, &row));
        ck_assert_ptr_nonnull(row);
        RIG_OK(sc_k_choice(sc_backend_host(), (sc_k_op)op, SC_DTYPE_F32, (sc_dtype)0, &row));
    }
    RIG_OK(sc_k_choice(NULL, SC_K_OP_DELTA_CHUNK, SC_DTYPE_F32, SC_DTYPE_BF16, &row));
    row = NULL;
    ck_assert_int_eq(sc_k_choice(NULL, SC_K_OP_GATES, SC_DTYPE_F32, SC_DTYPE_F32, &row),
        SC_ERR_UNSUPPORTED); /* gates have no state */
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "state-f32"));
    ck_assert_ptr_null(row);
}
END_TEST

#ifndef SC_TEST_GPU /* there all tests share one process */
/* Read once per process, hence each in its own fork of Check. */
START_TEST(choice__environment_forces_a_row)
{
    const char *row = NULL;
    ck_assert_int_eq(setenv("SC_KERNEL_DELTA_CHUNK", "reference", 1), 0);
    ck_assert_int_eq(setenv("SC_KERNEL_CONV_UPDATE", "sm90", 1), 0);
    RIG_OK(sc_k_choice(NULL, SC_K_OP_DELTA_CHUNK, SC_DTYPE_F32, SC_DTYPE_F32, &row));
    ck_assert_int_eq(sc_k_choice(NULL, SC_K_OP_CONV_UPDATE, SC_DTYPE_F32, SC_DTYPE_F32, &row),
        SC_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "sm90"));
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("kernels_small");
    TCase *all = tcase_create("small");
    tcase_set_timeout(all, 60);
    tcase_add_test(all, gates__match_float64_at_both_ends_too);
    tcase_add_test(all, gates__bounded_works_without_a_log);
    tcase_add_test(all, gates__are_the_gates_of_the_packed_decode);
    tcase_add_test(all, l2norm__matches_float64);
    tcase_add_test(all, gated_rmsnorm__matches_float64_in_both_orders);
    tcase_add_test(all, bf16__rounds_to_nearest_even);
    tcase_add_test(all, exp__is_within_two_ulp_and_exact_at_its_ends);
    tcase_add_test(all, choice__names_the_row_and_what_is_missing);
#ifndef SC_TEST_GPU
    tcase_add_test(all, choice__environment_forces_a_row);
#endif
    suite_add_tcase(suite, all);
    return check_main(suite);
}

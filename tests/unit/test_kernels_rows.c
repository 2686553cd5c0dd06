/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the host's kernel table against each other, over random shapes: every row gives the bits
 * of the reference, but for the chunk form, where the wide rows agree with each other to the bit
 * and with the reference within rounding. Rows that this processor cannot run are passed over. And
 * how SC_KERNELS and SC_KERNEL_<OP> choose. */
#include <check.h>
#include <math.h>

#include "kernel_dispatch.h"
#include "kernels_rig.h"
#include "support/check_main.h"
#include "statecache/kernels_project.h"
#include "replay_rig.h"

enum { OUT_MAX = 3, ROUNDS = 12 };

/* What a call writes; all of it is compared. */
struct outputs {
    void *at[OUT_MAX];
    size_t bytes[OUT_MAX];
    uint32_t count;
};

static size_t total(const struct outputs *out)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < out->count; i++) bytes += out->bytes[i];
    return bytes;
}

static uint8_t *gather(const struct outputs *out)
{
    uint8_t *copy = rig_alloc(total(out)), *at = copy;
    for (uint32_t i = 0; i < out->count; at += out->bytes[i++])
        memcpy(at, out->at[i], out->bytes[i]);
    return copy;
}

static void scatter(const struct outputs *out, const uint8_t *copy)
{
    for (uint32_t i = 0; i < out->count; copy += out->bytes[i++])
        memcpy(out->at[i], copy, out->bytes[i]);
}

/* Root of the mean square of the differences over that of `want`, of the fp32 numbers there. */
static double difference(const uint8_t *got, const uint8_t *want, size_t bytes)
{
    const float *a = (const float *)(const void *)got, *b = (const float *)(const void *)want;
    double sum = 0, all = 1e-30;
    for (size_t i = 0; i < bytes / 4; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue; /* poison that nobody wrote */
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(sum / all);
}

/* Runs every row on the same input. `fused`: wide rows fuse products and sums. */
static void run_rows(sc_k_op op, const void *params, const struct outputs *out, bool fused)
{
    uint32_t count = 0;
    const struct sc_kernel_row *rows = sc_kernel_rows(op, &count);
    uint8_t *before = gather(out), *want = NULL, *wide = NULL;
    ck_assert_str_eq(rows[count - 1].name, "reference");
    RIG_OK(rows[count - 1].launch(params, NULL));
    want = gather(out);
    ck_assert_msg(memcmp(want, before, total(out)) != 0, "op %d wrote nothing", (int)op);
    for (uint32_t i = 0; i + 1 < count; i++) {
        if (rows[i].cc_min > 0 || !sc_kernel_row_runs(&rows[i])) continue;
        scatter(out, before);
        RIG_OK(rows[i].launch(params, NULL));
        uint8_t *got = gather(out);
        const uint8_t *same = fused ? wide : want;
        ck_assert_msg(same == NULL || memcmp(got, same, total(out)) == 0,
            "op %d: row %s differs in its bits", (int)op, rows[i].name);
        if (fused) ck_assert_double_lt(difference(got, want, total(out)), 5e-6);
        if (fused && wide == NULL) wide = got;
        else free(got);
    }
    free(before), free(want), free(wide);
}

static uint32_t between(struct sc_prng *prng, uint32_t low, uint32_t high)
{
    return low + (uint32_t)sc_prng_below(prng, high - low + 1);
}

static sc_dtype any_dtype(struct sc_prng *prng)
{
    return sc_prng_below(prng, 2) ? SC_DTYPE_BF16 : SC_DTYPE_F32;
}

static struct rig_pool filled_pool(struct sc_prng *prng, sc_dtype dtype, size_t elems)
{
    struct rig_pool pool = rig_pool(dtype, elems, 6, 0, 0);
    for (int32_t s = 1; s <= 2; s++) {
        float *x = rig_normal(prng, elems, 1.0f);
        rig_put(rig_slot(&pool, s), dtype, x, elems);
        free(x);
    }
    return pool;
}

/* Slot 1 full of numbers about the smallest normal one, denormals and both zeros among them. */
static void fill_tiny(struct sc_prng *prng, const struct rig_pool *pool)
{
    static const float some[] = {0x1p-126f, -0x1p-127f, 0x1.fcp-127f, 0x1p-133f, 0.0f, -0.0f,
        0x1.02p-126f, -0x1.fep-126f};
    float *x = rig_alloc(pool->part_elems * 4);
    for (size_t n = 0; n < pool->part_elems; n++) x[n] = some[sc_prng_below(prng, 8)];
    rig_put(rig_slot(pool, 1), pool->slots.dtype, x, pool->part_elems);
    free(x);
}

static void *random_tensor(struct sc_prng *prng, sc_dtype dtype, size_t count)
{
    float *x = rig_normal(prng, count, 1.5f);
    void *out = rig_tensor(dtype, x, count);
    free(x);
    return out;
}

START_TEST(rows__elementwise_operations_agree_to_the_bit)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 11 + (uint64_t)_i);
    uint32_t tokens = between(&prng, 1, 9), heads = between(&prng, 1, 5);
    uint32_t dim = between(&prng, 1, 256);
    size_t n = (size_t)tokens * heads * dim;
    sc_dtype dtype = any_dtype(&prng);
    void *x = random_tensor(&prng, dtype, n), *z = random_tensor(&prng, dtype, n);
    void *b = random_tensor(&prng, dtype, (size_t)tokens * heads);
    float *w = rig_normal(&prng, heads * (dim + 1u), 1.0f), *g = rig_alloc(n * 4);
    float *beta = rig_alloc((size_t)tokens * heads * 4);
    void *y = rig_tensor(SC_DTYPE_F32, NULL, n);
    memset(y, 0, n * 4);
    sc_k_gates_params gates = {.a = sc_host_devptr(x), .b = sc_host_devptr(b), .dtype = dtype,
        .weights = {.gate = (sc_k_gate)(1 + _i % 3), .a_log = sc_host_devptr(w),
            .dt_bias = sc_host_devptr(w + heads), .dt_bias_dtype = SC_DTYPE_F32,
            .lower_bound = -5.0f, .beta_doubled = _i % 2},
        .token_count = tokens, .heads = heads, .dim = dim, .g = sc_host_devptr(g),
        .beta = sc_host_devptr(beta)};
    size_t per_head = _i % 3 == 0 ? 1 : dim;
    run_rows(SC_K_OP_GATES, &gates, &(struct outputs){{g, beta},
        {(size_t)tokens * heads * per_head * 4, (size_t)tokens * heads * 4}, 2}, false);
    struct outputs out = {{y}, {n * rig_elem(dtype)}, 1};
    sc_k_gated_rmsnorm_params norm = {.x = sc_host_devptr(x), .z = sc_host_devptr(z),
        .y = sc_host_devptr(y), .dtype = dtype, .weight = sc_host_devptr(w),
        .weight_dtype = SC_DTYPE_F32, .weight_per_head = _i % 2, .gate_first = _i % 3 == 1,
        .act = _i % 2 ? SC_K_ACT_SILU : SC_K_ACT_SIGMOID, .token_count = tokens, .heads = heads,
        .dim = dim, .eps = 1e-6f};
    run_rows(SC_K_OP_GATED_RMSNORM, &norm, &out, false);
    sc_k_l2norm_params l2 = {.x = sc_host_devptr(x), .y = sc_host_devptr(y), .dtype = dtype,
        .out_dtype = dtype, .token_count = tokens, .heads = heads, .dim = dim, .eps = 1e-6f};
    run_rows(SC_K_OP_L2NORM, &l2, &out, false);
    free(x), free(z), free(b), free(w), free(g), free(beta), free(y);
}
END_TEST

START_TEST(rows__convs_agree_to_the_bit)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 211 + (uint64_t)_i);
    uint32_t channels = between(&prng, 1, 300), width = between(&prng, 2, 4);
    uint32_t tokens = between(&prng, 3, 20);
    sc_dtype dtype = any_dtype(&prng);
    struct rig_pool pool = filled_pool(&prng, any_dtype(&prng), (width - 1u) * channels);
    void *x = random_tensor(&prng, dtype, (size_t)tokens * channels);
    void *y = rig_tensor(dtype, NULL, (size_t)tokens * channels);
    void *w = random_tensor(&prng, dtype, (size_t)channels * width);
    void *bias = random_tensor(&prng, dtype, channels);
    int32_t start[4] = {0, (int32_t)between(&prng, 0, tokens - 2), (int32_t)tokens - 1,
        (int32_t)tokens};
    int32_t source[3] = {1, 0, -1}, dest[3] = {1, 3, 4}, save[3] = {-1, 5, -1};
    int32_t save_row = 1, save_pos = 1, save_slot = 5;
    struct outputs out = {{y, pool.memory},
        {(size_t)tokens * channels * rig_elem(dtype), pool.bytes}, 2};
    sc_k_conv_prefill_params p = {.x = sc_host_devptr(x), .y = sc_host_devptr(y), .dtype = dtype,
        .weight = sc_host_devptr(w), .bias = _i % 2 ? sc_host_devptr(bias) : 0,
        .weight_dtype = dtype, .act = _i % 3 ? SC_K_ACT_SILU : SC_K_ACT_IDENTITY,
        .channels = channels, .width = width, .token_count = tokens, .row_count = 3,
        .row_start = sc_host_devptr(start), .source = sc_host_devptr(source),
        .dest = sc_host_devptr(dest),
        .saves = {sc_host_devptr(&save_row), sc_host_devptr(&save_pos),
            sc_host_devptr(&save_slot), start[2] > start[1]},
        .window = pool.slots};
    run_rows(SC_K_OP_CONV_PREFILL, &p, &out, false);
    sc_k_conv_update_params u = {.x = p.x, .y = p.y, .dtype = dtype, .weight = p.weight,
        .bias = p.bias, .weight_dtype = dtype, .act = p.act, .channels = channels,
        .width = width, .row_count = 3, .source = p.source, .dest = p.dest,
        .save = sc_host_devptr(save), .window = pool.slots};
    run_rows(SC_K_OP_CONV_UPDATE, &u, &out, false);
    free(x), free(y), free(w), free(bias), free(pool.memory);
}
END_TEST

/* Half of them sizes that rows in registers have: with a v_dim that is no multiple of rows. */
static uint32_t odd_k_dim(struct sc_prng *prng, int i)
{
    return i % 8 == 3 ? 64u << (i / 8 % 3) : between(prng, 1, 256);
}

static struct rig_delta random_delta(struct sc_prng *prng, int i, uint32_t chunk)
{
    static const uint32_t dims[] = {128, 64, 16, 32, 48};
    bool odd = i % 4 == 3;
    uint32_t heads = between(prng, 1, 2), ratio = between(prng, 1, i % 5 == 0 ? 6 : 2);
    struct rig_delta d = {.shape = {.kind = i % 2 ? SC_K_KIND_KDA : SC_K_KIND_GDN,
        .heads = heads, .v_heads = heads * ratio,
        .k_dim = odd ? odd_k_dim(prng, i) : dims[i % 5],
        .v_dim = odd ? between(prng, 1, 130) : dims[(i + 2) % 5], .qk_l2norm = i % 3 != 2},
        .dtype = any_dtype(prng), .chunk = chunk};
    rig_seq_init(&d, 0, between(prng, 65, 150), (int32_t)between(prng, 0, 70), 31 + (uint64_t)i);
    rig_seq_init(&d, 1, between(prng, 1, 64), 0, 131 + (uint64_t)i);
    rig_seq_init(&d, 2, 1, 5, 231 + (uint64_t)i);
    if (i % 6 == 5) d.seq[1].k[0] = NAN; /* goes to one sequence only, the same way in all rows */
    if (!d.shape.qk_l2norm)
        for (uint32_t s = 0; s < RIG_SEQS; s++)
            for (size_t n = 0; n < d.seq[s].tokens * rig_qk(&d); n++)
                d.seq[s].k[n] *= 0.5f / sqrtf((float)d.shape.k_dim);
    return d;
}

START_TEST(rows__recurrent_and_chunk_forms)
{
    static const uint32_t chunks[] = {0, 16, 32, 64};
    struct sc_prng prng;
    sc_prng_seed(&prng, 311 + (uint64_t)_i);
    for (int form = 0; form < 4; form++) {
        struct rig_delta d = random_delta(&prng, _i, chunks[form]);
        if (form > 0) d.dtype = SC_DTYPE_F32;
        sc_dtype state = form > 0 ? SC_DTYPE_F32 : any_dtype(&prng);
        struct rig_pool pool = filled_pool(&prng, state, rig_state_elems(&d));
        const struct rig_piece pieces[] = {{0, 0, d.seq[0].tokens, 1, 3}, {-1, 0, 2, -1, -1},
            {1, 0, d.seq[1].tokens, 0, 2}};
        int32_t grid = (d.seq[0].position / 64 + 1) * 64;
        const struct rig_save save = {0, grid, 4};
        struct rig_batch b;
        rig_pack(&b, &d, pieces, 3);
        rig_params(&b, &d, &pool, 3, &save, grid <= d.seq[0].position + 64);
        struct outputs out = {{b.tensors[3], pool.memory},
            {b.tokens * rig_vo(&d) * rig_elem(d.dtype), pool.bytes}, 2};
        run_rows(form == 0 ? SC_K_OP_DELTA_RECURRENT : SC_K_OP_DELTA_CHUNK, &b.p, &out, form > 0);
        rig_batch_free(&b);
        free(pool.memory), rig_delta_free(&d);
    }
}
END_TEST

/* Row 0 writes nothing that is larger than its state. */
static void v_zero(void *qkv, const struct rig_delta *d)
{
    size_t at = 2 * rig_qk(d) * rig_elem(d->dtype);
    memset((uint8_t *)qkv + at, 0, rig_vo(d) * rig_elem(d->dtype));
}

START_TEST(rows__decodes_agree_to_the_bit)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 411 + (uint64_t)_i);
    struct rig_delta d = random_delta(&prng, _i, 0);
    size_t n = 2 * rig_qk(&d) + rig_vo(&d), g_count = rig_g(&d);
    struct rig_pool pool = filled_pool(&prng, any_dtype(&prng), rig_state_elems(&d));
    void *qkv = random_tensor(&prng, d.dtype, 3 * n);
    void *o = rig_tensor(d.dtype, NULL, 3 * rig_vo(&d));
    void *a = random_tensor(&prng, d.dtype, 3 * g_count);
    void *b = random_tensor(&prng, d.dtype, 3u * d.shape.v_heads);
    float *w = rig_normal(&prng, d.shape.v_heads + g_count, 1.0f);
    if (_i % 6 == 5) ((uint16_t *)rig_slot(&pool, 1))[1] = 0x7fff; /* a NaN in the state */
    if (_i % 3 == 1) fill_tiny(&prng, &pool);
    if (_i % 3 == 1) v_zero(qkv, &d);
    int32_t source[3] = {1, -1, 0}, dest[3] = {3, 5, 2}, save[3] = {4, -1, -1};
    sc_k_decode_packed_params p = {.qkv = sc_host_devptr(qkv), .o = sc_host_devptr(o),
        .dtype = d.dtype, .a = sc_host_devptr(a), .b = sc_host_devptr(b),
        .weights = {.gate = d.shape.kind == SC_K_KIND_GDN ? SC_K_GATE_GDN
                                                          : SC_K_GATE_KDA_SOFTPLUS,
            .a_log = sc_host_devptr(w), .dt_bias = sc_host_devptr(w + d.shape.v_heads),
            .dt_bias_dtype = SC_DTYPE_F32},
        .shape = d.shape, .row_count = 3, .source = sc_host_devptr(source),
        .dest = sc_host_devptr(dest), .save = sc_host_devptr(save), .state = pool.slots};
    struct outputs out = {{o, pool.memory}, {3 * rig_vo(&d) * rig_elem(d.dtype), pool.bytes}, 2};
    run_rows(SC_K_OP_DECODE_PACKED, &p, &out, false);
    free(qkv), free(o), free(a), free(b), free(w), free(pool.memory), rig_delta_free(&d);
}
END_TEST

/* What decides whether a step on a bf16 state may be fused: elements of k of any size, zeros and
 * too large ones among them, decays from none to all, rows that write nothing. */
START_TEST(rows__bf16_states_of_extreme_tokens_agree_to_the_bit)
{
    static const float size[] = {0.0f, 0x1p-126f, 0x1p-90f, 0x1p-70f, 0x1p-20f, 1.0f, 0x1p60f,
        0x1p126f}, decay[] = {0.0f, -1e-5f, -0.5f, -9.0f, -40.0f, -100.0f};
    struct sc_prng prng;
    sc_prng_seed(&prng, 1311 + (uint64_t)_i);
    struct rig_delta d = {.shape = {.kind = _i % 2 ? SC_K_KIND_KDA : SC_K_KIND_GDN, .heads = 1,
        .v_heads = 2, .k_dim = 64u << _i % 3, .v_dim = 39, .qk_l2norm = _i % 5 > 2},
        .dtype = SC_DTYPE_F32};
    size_t qk = rig_qk(&d), n = 2 * qk + rig_vo(&d);
    struct rig_pool pool = filled_pool(&prng, SC_DTYPE_BF16, rig_state_elems(&d));
    if (_i % 4 == 3) fill_tiny(&prng, &pool);
    float *qkv = rig_normal(&prng, 2 * n, 1.0f), beta[4] = {0.5f, 1.0f, 0.0f, 0x1p-100f};
    float *o = rig_tensor(SC_DTYPE_F32, NULL, 2 * rig_vo(&d)), *g = rig_alloc(2 * rig_g(&d) * 4);
    for (size_t r = 0; r < 2; r++) {
        float q = size[3 + sc_prng_below(&prng, 4)], k = size[(r + (size_t)_i) % 8];
        for (size_t i = 0; i < qk; i++) qkv[r * n + i] *= q;
        for (size_t i = qk; i < 2 * qk; i++) qkv[r * n + i] *= k == 0.0f && i > qk ? 1.0f : k;
        for (size_t i = 2 * qk; i < n; i++) qkv[r * n + i] *= i % 3 == 0 ? 0.0f : 1.0f;
    }
    for (size_t i = 0; i < 2 * rig_g(&d); i++) g[i] = decay[sc_prng_below(&prng, 6)];
    int32_t source[2] = {1, 0}, dest[2] = {3, 2};
    sc_k_decode_packed_params p = {.qkv = sc_host_devptr(qkv), .o = sc_host_devptr(o),
        .dtype = d.dtype, .g = sc_host_devptr(g), .beta = sc_host_devptr(beta), .shape = d.shape,
        .row_count = 2, .source = sc_host_devptr(source), .dest = sc_host_devptr(dest),
        .state = pool.slots};
    struct outputs out = {{o, pool.memory}, {2 * rig_vo(&d) * 4, pool.bytes}, 2};
    run_rows(SC_K_OP_DECODE_PACKED, &p, &out, false);
    free(qkv), free(o), free(g), free(pool.memory);
}
END_TEST

/* A zero state that is written by 1 times k holds k, normalised: of numbers of one size, and of
 * sizes for which a quotient by a reciprocal could not be rounded. */
START_TEST(rows__norms_of_extreme_keys_agree_to_the_bit)
{
    static const int32_t least[] = {-6, -149, -149, -57, -63, 20, 0, 37};
    static const int32_t most[] = {6, -120, 0, 0, -58, 120, 35, 42};
    struct sc_prng prng;
    sc_prng_seed(&prng, 1711 + (uint64_t)_i);
    struct rig_delta d = {.shape = {.kind = SC_K_KIND_GDN, .heads = 1, .v_heads = 1,
        .k_dim = _i / 8 % 3 ? 128 : between(&prng, 1, 256), .v_dim = 4, .qk_l2norm = true},
        .dtype = SC_DTYPE_F32};
    uint32_t k_dim = d.shape.k_dim, size = (uint32_t)_i % 8;
    bool zeros = size == 1 || size == 2 || size == 5;
    struct rig_pool pool = filled_pool(&prng, SC_DTYPE_F32, rig_state_elems(&d));
    float *qkv = rig_normal(&prng, 2 * k_dim + 4, 1.0f), *k = qkv + k_dim;
    float g = 0.0f, beta = 1.0f, o[4] = {0};
    for (uint32_t i = 0; i < k_dim; i++) {
        int32_t exponent = least[size]
            + (int32_t)sc_prng_below(&prng, (uint64_t)(most[size] - least[size] + 1));
        k[i] = ldexpf(k[i] < 0 ? k[i] - 1 : k[i] + 1, exponent);
        if (zeros && sc_prng_below(&prng, 40) == 0) k[i] = -0.0f;
    }
    if (size == 4) k[0] = 0x1p-3f;
    for (uint32_t i = 2 * k_dim; i < 2 * k_dim + 4; i++) qkv[i] = 1.0f;
    int32_t source = 0, dest = 3;
    sc_k_decode_packed_params p = {.qkv = sc_host_devptr(qkv), .o = sc_host_devptr(o),
        .dtype = d.dtype, .g = sc_host_devptr(&g), .beta = sc_host_devptr(&beta),
        .shape = d.shape, .row_count = 1, .source = sc_host_devptr(&source),
        .dest = sc_host_devptr(&dest), .state = pool.slots};
    run_rows(SC_K_OP_DECODE_PACKED, &p,
        &(struct outputs){{o, pool.memory}, {sizeof o, pool.bytes}, 2}, false);
    free(qkv), free(pool.memory);
}
END_TEST

/* Mamba-2 token by token, a token a row: B and x of any size, zeros among them; states of denormals
 * or with a NaN, and none. Of 42 heads 21 share B and C, more than gates are made for at once. */
START_TEST(rows__ssm_steps_agree_to_the_bit)
{
    static const float size[] = {0.0f, 0x1p-126f, 0x1p-70f, 0x1p-40f, 1.0f, 0x1p60f};
    enum { ROWS = 3 };
    struct sc_prng prng;
    sc_prng_seed(&prng, 1511 + (uint64_t)_i);
    uint32_t n = _i % 8 == 7 ? between(&prng, 1, 200) : _i % 8 < 3 ? 64 : 128;
    uint32_t heads = _i % 7 == 5 ? 42 : 4, p_dim = heads == 4 ? 61u + (uint32_t)_i : 9;
    struct rig_pool pool = filled_pool(&prng, _i / 6 % 3 ? SC_DTYPE_BF16 : SC_DTYPE_F32,
        (size_t)heads * p_dim * n);
    if (_i / 12 % 2) fill_tiny(&prng, &pool);
    else if (_i % 5 == 4) ((uint16_t *)rig_slot(&pool, 1))[1] = 0x7fff;
    float *x = rig_normal(&prng, (size_t)ROWS * heads * p_dim, 1);
    float *bc = rig_normal(&prng, (size_t)4 * ROWS * n, 1);
    float *dt = rig_normal(&prng, ROWS * heads, 1);
    float *y = rig_alloc((size_t)ROWS * heads * p_dim * 4), *a_log = rig_normal(&prng, heads, 1);
    for (size_t i = 0; i < (size_t)ROWS * heads * p_dim; i++)
        x[i] *= i % 5 == 0 ? size[sc_prng_below(&prng, 6)] : 1.0f;
    float b_size = size[(size_t)_i % 6];
    for (size_t i = 0; i < (size_t)2 * ROWS * n; i++)
        bc[i] *= b_size == 0.0f && i % n > 0 ? 1.0f : b_size;
    int32_t start[4] = {0, 1, 2, 3}, source[3] = {1, 0, -1}, dest[3] = {3, 2, 4};
    sc_k_ssm_params p = {.x = sc_host_devptr(x), .dt = sc_host_devptr(dt),
        .b = sc_host_devptr(bc), .c = sc_host_devptr(bc + 2 * ROWS * n), .y = sc_host_devptr(y),
        .dtype = SC_DTYPE_F32, .a_log = sc_host_devptr(a_log), .heads = heads, .groups = 2,
        .head_dim = p_dim, .state_dim = n, .token_count = ROWS, .row_count = ROWS,
        .row_start = sc_host_devptr(start), .source = sc_host_devptr(source),
        .dest = sc_host_devptr(dest), .state = pool.slots};
    struct outputs out = {{y, pool.memory}, {(size_t)ROWS * heads * p_dim * 4, pool.bytes}, 2};
    run_rows(SC_K_OP_SSM, &p, &out, false);
    free(x), free(bc), free(dt), free(y), free(a_log), free(pool.memory);
}
END_TEST

START_TEST(rows__projections_and_movers_agree_to_the_bit)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 811 + (uint64_t)_i);
    uint32_t in = between(&prng, 1, 700), out = between(&prng, 1, 40);
    uint32_t tokens = between(&prng, 1, 9);
    sc_dtype dtype = any_dtype(&prng), weight = any_dtype(&prng);
    void *x = random_tensor(&prng, dtype, (size_t)tokens * in);
    void *w = random_tensor(&prng, weight, (size_t)out * in);
    float *y = rig_alloc((size_t)tokens * out * 4);
    sc_k_project_params p = {.x = sc_host_devptr(x), .weight = sc_host_devptr(w),
        .y = sc_host_devptr(y), .dtype = dtype, .weight_dtype = weight, .y_dtype = SC_DTYPE_F32,
        .in_dim = in, .out_dim = out, .token_count = tokens};
    run_rows(SC_K_OP_PROJECT, &p, &(struct outputs){{y}, {(size_t)tokens * out * 4}, 1}, false);
    uint8_t *q = rig_alloc((size_t)out * in);
    float *scale = rig_alloc((size_t)out * 4);
    sc_k_move_part part = {.from = {p.weight, (int64_t)(out * in * rig_elem(weight)), weight, 1},
        .to = {sc_host_devptr(q), (int64_t)out * in, SC_DTYPE_U8, 1},
        .to_scale = {sc_host_devptr(scale), (int64_t)out * 4, SC_DTYPE_F32, 1}, .rows = out,
        .row_elems = in};
    sc_k_move_params move = {.parts = &part, .part_count = 1, .row_count = 1};
    run_rows(SC_K_OP_MOVE, &move,
        &(struct outputs){{q, scale}, {(size_t)out * in, (size_t)out * 4}, 2}, false);
    free(x), free(w), free(y), free(q), free(scale);
}
END_TEST

START_TEST(rows__chunk_scans_agree)
{
    enum { HEADS = 3, P = 24, N = 40, TOKENS = 90 };
    struct sc_prng prng;
    sc_prng_seed(&prng, 911 + (uint64_t)_i);
    struct rig_pool pool = filled_pool(&prng, SC_DTYPE_F32, HEADS * P * N);
    float *x = rig_normal(&prng, TOKENS * HEADS * P, 1), *y = rig_alloc(TOKENS * HEADS * P * 4);
    float *bc = rig_normal(&prng, 2 * TOKENS * N, 1), *dt = rig_normal(&prng, TOKENS * HEADS, 1);
    float *a_log = rig_normal(&prng, HEADS, 1);
    int32_t start[3] = {0, (int32_t)between(&prng, 0, TOKENS), TOKENS};
    int32_t source[2] = {1, 0}, dest[2] = {1, 3}, position[2] = {(int32_t)_i, 0};
    sc_k_ssm_chunk_params p = {.tokens = {.x = sc_host_devptr(x), .dt = sc_host_devptr(dt),
        .b = sc_host_devptr(bc), .c = sc_host_devptr(bc + TOKENS * N), .y = sc_host_devptr(y),
        .dtype = SC_DTYPE_F32, .a_log = sc_host_devptr(a_log), .heads = HEADS, .groups = 1,
        .head_dim = P, .state_dim = N, .token_count = TOKENS, .row_count = 2,
        .row_start = sc_host_devptr(start), .position = sc_host_devptr(position),
        .source = sc_host_devptr(source), .dest = sc_host_devptr(dest), .state = pool.slots},
        .chunk = 32u << _i % 4};
    RIG_OK(sc_k_ssm_chunk_scratch(NULL, &p, &p.scratch_bytes));
    void *scratch = rig_alloc(p.scratch_bytes);
    p.scratch = sc_host_devptr(scratch);
    struct outputs out = {{y, pool.memory}, {TOKENS * HEADS * P * 4, pool.bytes}, 2};
    run_rows(SC_K_OP_SSM_CHUNK, &p, &out, true);
    free(x), free(y), free(bc), free(dt), free(a_log), free(scratch), free(pool.memory);
}
END_TEST

/* One in five inputs writes nothing, in all tokens the same, to a state that is tiny: what is
 * rounded there is denormal. */
static void ring_tiny(struct sc_prng *prng, struct ring_rig *x)
{
    size_t elem = rig_elem(x->dtype), count = x->row_elems[0] * RING_ROWS * RING_TOKENS;
    fill_tiny(prng, &x->pool);
    for (size_t n = 0; n < count; n++)
        if (n % x->row_elems[0] % 5 == 0) memset((uint8_t *)x->in[0] + n * elem, 0, elem);
}

/* Rows with rings that append, flush and fold: what they write is states, outputs and records. */
START_TEST(rows__rings_agree_to_the_bit)
{
    for (int ssm = 0; ssm < 2; ssm++) {
        struct ring_rig x;
        struct sc_prng prng;
        sc_prng_seed(&prng, 1711 + (uint64_t)_i);
        ring_open(&x, ssm, _i, 5);
        if (_i / 4 % 2) ring_tiny(&prng, &x);
        else if (_i % 5 == 3) ((uint16_t *)rig_slot(&x.pool, 1))[1] = 0x7fff; /* a NaN */
        for (uint32_t t = 0; t < 3; t++) ring_step(&x, t);
        x.planned[2] = SC_REPLAY_FLUSH;
        x.mode[2] = SC_REPLAY_FLUSH;
        for (int32_t r = 0; r < RING_ROWS; r++) x.records[r] = 3;
        ring_aim(&x, 3);
        struct outputs out = {{x.out, x.pool.memory, x.ring},
            {RING_ROWS * ring_out_bytes(&x), x.pool.bytes, x.ring_stride * RING_SLOTS}, 3};
        const void *params = ssm ? (const void *)&x.ssm : &x.delta;
        run_rows(ssm ? SC_K_OP_REPLAY_SSM : SC_K_OP_REPLAY_DELTA, params, &out, false);
        const sc_k_decode_packed_params *p = &x.delta.step;
        sc_k_replay_delta_fold_params fold = {.shape = p->shape, .dtype = p->dtype,
            .row_count = RING_ROWS, .source = p->source, .dest = p->dest, .state = p->state,
            .ring = x.delta.ring};
        x.mode[0] = SC_REPLAY_FOLD;
        run_rows(ssm ? SC_K_OP_REPLAY_SSM_FOLD : SC_K_OP_REPLAY_DELTA_FOLD,
            ssm ? params : &fold, &out, false);
        ring_close(&x);
    }
}
END_TEST

/* The environment is read once per process, hence each in its own fork of Check. */

static void choose(const char *name, const char *value)
{
    ck_assert_int_eq(setenv(name, value, 1), 0);
}

START_TEST(rows__the_environment_names_the_first_row)
{
    const char *row = NULL;
    choose("SC_KERNELS", "reference");
    for (int op = 0; op < SC_K_OP_COUNT; op++) {
        RIG_OK(sc_k_choice(NULL, (sc_k_op)op, SC_DTYPE_F32, (sc_dtype)0, &row));
        ck_assert_str_eq(row, "reference");
    }
}
END_TEST

/* "avx512_bf16" exists where states are narrowed; other operations take the first row after it. */
START_TEST(rows__an_operation_without_the_first_row_takes_the_next)
{
    const char *row = NULL, *first = NULL;
    uint32_t count = 0, narrow = 0, i = 0;
    const struct sc_kernel_row *rows = sc_kernel_rows(SC_K_OP_CONV_PREFILL, &count);
    const struct sc_kernel_row *best = sc_kernel_rows(SC_K_OP_DECODE, &narrow);
    choose("SC_KERNELS", "avx512_bf16");
    for (; i < count && first == NULL; i++)
        if (rows[i].cc_min == 0 && sc_kernel_row_runs(&rows[i])) first = rows[i].name;
    if (strcmp(best[0].name, "avx512_bf16") != 0) return; /* another processor's build */
    RIG_OK(sc_k_choice(NULL, SC_K_OP_CONV_PREFILL, SC_DTYPE_F32, SC_DTYPE_F32, &row));
    ck_assert_str_eq(row, first);
    sc_status status = sc_k_choice(NULL, SC_K_OP_DECODE, SC_DTYPE_F32, SC_DTYPE_F32, &row);
    ck_assert_int_eq(status, sc_kernel_row_runs(&best[0]) ? SC_OK : SC_ERR_UNSUPPORTED);
    if (status == SC_OK) ck_assert_str_eq(row, "avx512_bf16");
}
END_TEST

START_TEST(rows__one_operation_may_differ)
{
    uint32_t count = 0;
    const char *row = NULL;
    const struct sc_kernel_row *best = sc_kernel_rows(SC_K_OP_GATES, &count);
    choose("SC_KERNELS", "reference");
    choose("SC_KERNEL_GATES", best[count > 1 ? count - 2 : 0].name);
    if (!sc_kernel_row_runs(&best[count > 1 ? count - 2 : 0])) return;
    RIG_OK(sc_k_choice(NULL, SC_K_OP_GATES, SC_DTYPE_F32, (sc_dtype)0, &row));
    ck_assert_str_eq(row, best[count > 1 ? count - 2 : 0].name);
    RIG_OK(sc_k_choice(NULL, SC_K_OP_L2NORM, SC_DTYPE_F32, (sc_dtype)0, &row));
    ck_assert_str_eq(row, "reference");
}
END_TEST

START_TEST(rows__an_unknown_row_is_an_error_that_names_it)
{
    const char *row = NULL;
    choose("SC_KERNELS", "altivec");
    ck_assert_int_eq(sc_k_choice(NULL, SC_K_OP_GATES, SC_DTYPE_F32, (sc_dtype)0, &row),
        SC_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "altivec"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_rows");
    TCase *all = tcase_create("rows");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, rows__elementwise_operations_agree_to_the_bit, 0, ROUNDS);
    tcase_add_loop_test(all, rows__convs_agree_to_the_bit, 0, ROUNDS);
    tcase_add_loop_test(all, rows__recurrent_and_chunk_forms, 0, 2 * ROUNDS);
    tcase_add_loop_test(all, rows__decodes_agree_to_the_bit, 0, 2 * ROUNDS);
    tcase_add_loop_test(all, rows__bf16_states_of_extreme_tokens_agree_to_the_bit, 0, 2 * ROUNDS);
    tcase_add_loop_test(all, rows__norms_of_extreme_keys_agree_to_the_bit, 0, 4 * ROUNDS);
    tcase_add_loop_test(all, rows__ssm_steps_agree_to_the_bit, 0, 4 * ROUNDS);
    tcase_add_loop_test(all, rows__projections_and_movers_agree_to_the_bit, 0, ROUNDS);
    tcase_add_loop_test(all, rows__chunk_scans_agree, 0, ROUNDS);
    tcase_add_loop_test(all, rows__rings_agree_to_the_bit, 0, 4 * ROUNDS);
    tcase_add_test(all, rows__the_environment_names_the_first_row);
    tcase_add_test(all, rows__an_operation_without_the_first_row_takes_the_next);
    tcase_add_test(all, rows__one_operation_may_differ);
    tcase_add_test(all, rows__an_unknown_row_is_an_error_that_names_it);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Field reports of chunks (class E), numerics (J) and packed sequences (K): the chunk form against
 * the form token by token, at the lengths, gates and packings where others went wrong. report_N is
 * entry N of docs/field-reports.md. */
#include <check.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels_rig.h"
#include "support/check_main.h"

enum { HEADS = 2, V_HEADS = 4, K_DIM = 32, V_DIM = 16 };

static struct rig_delta sequence(int kda, uint32_t tokens, int32_t position, uint64_t seed)
{
    struct rig_delta d = {.shape = {.kind = kda ? SC_K_KIND_KDA : SC_K_KIND_GDN, .heads = HEADS,
        .v_heads = V_HEADS, .k_dim = K_DIM, .v_dim = V_DIM, .qk_l2norm = true},
        .dtype = SC_DTYPE_F32};
    rig_seq_init(&d, 0, tokens, position, seed);
    return d;
}

static struct rig_pool pool_of(const struct rig_delta *d, uint32_t slots)
{
    struct rig_pool pool = rig_pool(SC_DTYPE_F32, rig_state_elems(d), slots, 0, 0);
    struct sc_prng prng;
    sc_prng_seed(&prng, 9);
    float *s = rig_normal(&prng, pool.part_elems, 1.0f);
    rig_put(rig_slot(&pool, 1), SC_DTYPE_F32, s, pool.part_elems);
    free(s);
    return pool;
}

static double ratio(const void *got, const void *want, size_t count)
{
    const float *a = got, *b = want;
    double error = 0, size = 1e-60;
    for (size_t n = 0; n < count; n++) {
        error += ((double)a[n] - (double)b[n]) * ((double)a[n] - (double)b[n]);
        size += (double)b[n] * (double)b[n];
    }
    return sqrt(error / size); /* NaN if anything is */
}

/* Outputs and last state of both forms, from slot 1. */
static void check_forms(struct rig_delta *d, uint32_t chunk, const char *what)
{
    uint32_t tokens = d->seq[0].tokens;
    size_t count = tokens * rig_vo(d);
    struct rig_pool pool = pool_of(d, 4);
    const struct rig_piece to_2 = {0, 0, tokens, 1, 2}, to_3 = {0, 0, tokens, 1, 3};
    rig_run(d, &pool, &to_2, 1, NULL, 0);
    float *want = rig_alloc(count * 4);
    memcpy(want, d->seq[0].o, count * 4);
    d->chunk = chunk;
    rig_run(d, &pool, &to_3, 1, NULL, 0);
    d->chunk = 0;
    double o = ratio(d->seq[0].o, want, count);
    double s = ratio(rig_slot(&pool, 3), rig_slot(&pool, 2), pool.part_elems);
    ck_assert_msg(o < 2e-5 && s < 2e-5, "%s, %u tokens, chunks of %u: output %g, state %g", what,
        tokens, chunk, o, s);
    free(want), free(pool.memory);
}

static void all_gates(struct rig_delta *d, float g)
{
    for (size_t n = 0; n < d->seq[0].tokens * rig_g(d); n++) d->seq[0].g[n] = g;
}

/* ---- class E ---- */

START_TEST(report_43__the_last_chunk_ends_with_its_last_token)
{
    static const uint32_t chunks[] = {16, 32, 64};
    for (int c = 0; c < 3; c++)
        for (uint32_t tokens = 1; tokens <= 2 * chunks[c] + 1; tokens++) {
            struct rig_delta d = sequence(_i, tokens, 0, tokens);
            all_gates(&d, -1.5f); /* a decay that is read elsewhere leaves a state far too large */
            check_forms(&d, chunks[c], "strong decay");
            rig_delta_free(&d);
        }
}
END_TEST

/* Ends where a page begins that cannot be touched. */
struct guarded {
    uint8_t *map, *data;
    size_t bytes;
};

static struct guarded guard(size_t bytes, size_t align, const void *from)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), need = (bytes + align - 1) / align * align;
    struct guarded g = {.bytes = (need + page - 1) / page * page + page};
    g.map = mmap(NULL, g.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(g.map, MAP_FAILED);
    ck_assert_int_eq(mprotect(g.map + g.bytes - page, page, PROT_NONE), 0);
    g.data = g.map + g.bytes - page - need;
    memset(g.map, 0xff, g.bytes - page);
    if (from != NULL) memcpy(g.data, from, bytes);
    return g;
}

/* Tensors, outputs, gates, scratch and the pool end at such pages: reads beyond are seen, too. */
START_TEST(report_44__nothing_beyond_the_last_token_is_touched)
{
    for (uint32_t tokens = 1; tokens <= 130; tokens++) {
        struct rig_delta d = sequence(_i % 2, tokens, 0, tokens);
        struct rig_pool pool = pool_of(&d, 3);
        struct rig_batch b;
        d.chunk = _i < 2 ? 32 : 64;
        rig_pack(&b, &d, &(struct rig_piece){0, 0, tokens, 1, 2}, 1);
        rig_params(&b, &d, &pool, 1, NULL, 0);
        size_t qk = tokens * rig_qk(&d) * 4, vo = tokens * rig_vo(&d) * 4;
        struct guarded g[] = {guard(qk, 4, b.q), guard(qk, 4, b.k), guard(vo, 4, b.v),
            guard(vo, 4, NULL), guard(tokens * rig_g(&d) * 4, 4, b.g),
            guard((size_t)tokens * V_HEADS * 4, 4, b.beta), guard(b.p.scratch_bytes, 64, NULL),
            guard(pool.bytes, 4, pool.memory)};
        sc_k_delta_params p = b.p;
        p.q = sc_host_devptr(g[0].data), p.k = sc_host_devptr(g[1].data);
        p.v = sc_host_devptr(g[2].data), p.o = sc_host_devptr(g[3].data);
        p.g = sc_host_devptr(g[4].data), p.beta = sc_host_devptr(g[5].data);
        p.scratch = sc_host_devptr(g[6].data), p.state.base = sc_host_devptr(g[7].data);
        RIG_OK(sc_k_delta_chunk(NULL, &p, NULL));
        RIG_OK(sc_k_delta_chunk(NULL, &b.p, NULL));
        ck_assert_mem_eq(g[3].data, b.tensors[3], vo);
        ck_assert_mem_eq(g[7].data, pool.memory, pool.bytes);
        for (int i = 0; i < 8; i++) ck_assert_int_eq(munmap(g[i].map, g[i].bytes), 0);
        rig_batch_free(&b), free(pool.memory), rig_delta_free(&d);
    }
}
END_TEST

/* Pages of 40 beside chunks of 16: states exist at multiples of 80, and a save elsewhere inside a
 * row is refused instead of taken at another token. */
START_TEST(report_45__a_page_that_is_no_multiple_of_the_chunk)
{
    struct rig_delta d = sequence(_i, 170, 0, 5), plain = sequence(_i, 170, 0, 5);
    struct rig_pool pool = pool_of(&d, 8);
    struct rig_batch b;
    const struct rig_piece piece = {0, 0, 170, 1, 2};
    const struct rig_save off = {0, 40, 3}, saves[] = {{0, 80, 3}, {0, 160, 4}};
    d.chunk = 16;
    rig_pack(&b, &d, &piece, 1);
    rig_params(&b, &d, &pool, 1, &off, 1);
    ck_assert_int_eq(sc_k_delta_chunk(NULL, &b.p, NULL), SC_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "grid"));
    rig_untouched(&pool, 2), rig_untouched(&pool, 3);
    rig_run(&d, &pool, &piece, 1, saves, 2);
    rig_run(&plain, &pool, &(struct rig_piece){0, 0, 80, 1, 5}, 1, NULL, 0);
    rig_run(&plain, &pool, &(struct rig_piece){0, 80, 160, 5, 6}, 1, NULL, 0);
    for (int32_t s = 3; s <= 4; s++)
        ck_assert_double_lt(ratio(rig_slot(&pool, s), rig_slot(&pool, s + 2), pool.part_elems),
            2e-5);
    rig_batch_free(&b), free(pool.memory), rig_delta_free(&d), rig_delta_free(&plain);
}
END_TEST

/* Which boundary is crossed is a matter of absolute positions. */
START_TEST(report_46__pieces_of_any_length_save_on_the_grid)
{
    static const uint32_t sizes[] = {1, 15, 16, 63, 65};
    enum { TOKENS = 300, GRID = 64, STATES = TOKENS / GRID };
    struct rig_delta plain = sequence(_i % 2, TOKENS, 0, 6), d = sequence(_i % 2, TOKENS, 0, 6);
    struct rig_pool pool = pool_of(&d, 4 + 2 * STATES);
    d.chunk = GRID;
    for (uint32_t s = 0; s < STATES; s++)
        rig_run(&plain, &pool, &(struct rig_piece){0, s * GRID, (s + 1) * GRID,
            s ? 3 + (int32_t)s : 1, 4 + (int32_t)s}, 1, NULL, 0);
    for (uint32_t size = sizes[_i / 2], at = 0; at < TOKENS; at += size) {
        uint32_t end = at + size < TOKENS ? at + size : TOKENS, boundary = end / GRID * GRID;
        struct rig_save save = {0, (int32_t)boundary, 4 + STATES + (int32_t)(boundary / GRID) - 1};
        rig_run(&d, &pool, &(struct rig_piece){0, at, end, at ? 2 + (int32_t)(at / size % 2) : 1,
            2 + (int32_t)((at / size + 1) % 2)}, 1, &save, boundary > at);
    }
    for (int32_t s = 0; s < STATES; s++) {
        double error = ratio(rig_slot(&pool, 4 + STATES + s), rig_slot(&pool, 4 + s),
            pool.part_elems);
        ck_assert_msg(error < 2e-5, "state %d by pieces of %u: %g", s, sizes[_i / 2], error);
    }
    free(pool.memory), rig_delta_free(&d), rig_delta_free(&plain);
}
END_TEST

/* ---- class J ---- */

static const uint32_t chunk_sizes[] = {16, 32, 64};

static void check_chunks(struct rig_delta *d, const char *what)
{
    for (int c = 0; c < 3; c++) check_forms(d, chunk_sizes[c], what);
}

START_TEST(report_83__gates_as_models_have_them_and_beyond)
{
    static const float gates[] = {-0.1f, -1.0f, -2.5f, -3.0f, -5.0f, -20.0f, -1e4f};
    for (int n = 0; n < 8; n++) {
        struct rig_delta d = sequence(_i, 130, 0, 83);
        struct sc_prng prng;
        sc_prng_seed(&prng, 83);
        for (size_t x = 0; x < 130 * rig_g(&d); x++)
            d.seq[0].g[x] = gates[n < 7 ? (size_t)n : sc_prng_below(&prng, 7)];
        check_chunks(&d, n < 7 ? "one gate" : "mixed gates");
        rig_delta_free(&d);
    }
}
END_TEST

START_TEST(report_84__a_gate_of_minus_90_before_and_after_zeros)
{
    for (int at = 0; at < 3; at++) { /* the first token, one inside, the last */
        struct rig_delta d = sequence(_i, 100, 0, 84);
        static const size_t tokens[] = {0, 40, 99};
        all_gates(&d, 0.0f);
        for (size_t n = 0; n < rig_g(&d); n++) d.seq[0].g[tokens[at] * rig_g(&d) + n] = -90.0f;
        check_chunks(&d, "-90 among zeros");
        for (size_t n = 0; n < 100 * rig_g(&d); n++) d.seq[0].g[n] = -90.0f - d.seq[0].g[n];
        check_chunks(&d, "0 among -90");
        rig_delta_free(&d);
    }
}
END_TEST

START_TEST(report_85__decays_down_to_zero)
{
    static const double decays[] = {1.0, 0.5, 1e-3, 6.5e-12, 1e-12, 1e-40, 0.0};
    for (int n = 0; n < 8; n++) {
        struct rig_delta d = sequence(_i, 80, 0, 85);
        struct sc_prng prng;
        sc_prng_seed(&prng, 85);
        if (n < 7) /* one such token in a chunk */
            for (size_t x = 0; x < rig_g(&d); x++)
                d.seq[0].g[20 * rig_g(&d) + x] = (float)log(decays[n]);
        else
            for (size_t x = 0; x < 80 * rig_g(&d); x++)
                d.seq[0].g[x] = (float)log(decays[sc_prng_below(&prng, 7)]);
        check_chunks(&d, "tiny decays");
        rig_delta_free(&d);
    }
}
END_TEST

START_TEST(report_90__a_gate_of_zero_is_a_gate)
{
    for (int n = 0; n < 4; n++) { /* all or half of them; beta 0 or 1; keys that come back */
        struct rig_delta d = sequence(_i, 130, 0, 90);
        struct sc_prng prng;
        sc_prng_seed(&prng, 90);
        for (size_t x = 0; x < 130 * rig_g(&d); x++)
            if (n % 2 == 0 || sc_prng_below(&prng, 2)) d.seq[0].g[x] = 0.0f;
        for (size_t x = 0; x < 130 * V_HEADS; x++)
            d.seq[0].beta[x] = (float)sc_prng_below(&prng, 2);
        for (size_t t = 8; n >= 2 && t < 130; t++)
            memcpy(d.seq[0].k + t * rig_qk(&d), d.seq[0].k + t % 8 * rig_qk(&d), rig_qk(&d) * 4);
        check_chunks(&d, "gates of zero");
        rig_delta_free(&d);
    }
}
END_TEST

/* Inputs of 16 bits, gates made inside a decode or before it: equal bits. And over 10,000 steps the
 * state stays at that of float64, which a beta of 16 bits would not do. */
START_TEST(report_87__beta_is_fp32_on_every_path)
{
    enum { STEPS = 10000, K = 16, V = 8, ROW = 2 * K + V };
    struct sc_prng prng;
    sc_prng_seed(&prng, 87);
    float *x = rig_normal(&prng, (size_t)STEPS * ROW, 1.0f), a_log = -2.0f, dt_bias = -1.0f;
    float *ab = rig_normal(&prng, (size_t)STEPS * 2, 1.0f);
    uint16_t *qkv = rig_tensor(SC_DTYPE_BF16, x, (size_t)STEPS * ROW);
    uint16_t *raw = rig_tensor(SC_DTYPE_BF16, ab, (size_t)STEPS * 2);
    struct rig_pool pool = rig_pool(SC_DTYPE_F32, K * V, 3, 0, 0);
    memset(pool.memory, 0, pool.bytes);
    int32_t slots[2] = {1, 2};
    double state[V][K] = {{0}};
    float g, beta, o[2 * V];
    sc_k_gate_weights weights = {.gate = SC_K_GATE_GDN, .a_log = sc_host_devptr(&a_log),
        .dt_bias = sc_host_devptr(&dt_bias), .dt_bias_dtype = SC_DTYPE_F32};
    for (int t = 0; t < STEPS; t++) {
        sc_k_gates_params gates = {.a = sc_host_devptr(raw + 2 * t),
            .b = sc_host_devptr(raw + 2 * t + 1), .dtype = SC_DTYPE_BF16, .weights = weights,
            .token_count = 1, .heads = 1, .g = sc_host_devptr(&g), .beta = sc_host_devptr(&beta)};
        RIG_OK(sc_k_gates(NULL, &gates, NULL));
        sc_k_decode_packed_params p = {.qkv = sc_host_devptr(qkv + (size_t)t * ROW),
            .o = sc_host_devptr(o), .dtype = SC_DTYPE_BF16, .a = gates.a, .b = gates.b,
            .weights = weights, .shape = {.kind = SC_K_KIND_GDN, .heads = 1, .v_heads = 1,
                .k_dim = K, .v_dim = V, .qk_l2norm = true},
            .row_count = 1, .source = sc_host_devptr(slots), .dest = sc_host_devptr(slots),
            .state = pool.slots};
        RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
        p.a = p.b = 0, p.g = gates.g, p.beta = gates.beta;
        p.source = p.dest = sc_host_devptr(slots + 1), p.o = sc_host_devptr(o + V);
        RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
        ck_assert_mem_eq(o, o + V, V * 2);
        double k[K], norm = 1e-6, b = 1.0 / (1.0 + exp(-(double)rig_wide(raw[2 * t + 1])));
        double sum = (double)rig_wide(raw[2 * t]) - 1.0, alpha = exp(-exp(-2.0) * log1p(exp(sum)));
        for (int i = 0; i < K; i++) {
            k[i] = (double)rig_wide(qkv[(size_t)t * ROW + K + (size_t)i]);
            norm += k[i] * k[i];
        }
        for (int v = 0; v < V; v++) {
            double read = 0, value = (double)rig_wide(qkv[(size_t)t * ROW + 2 * K + (size_t)v]);
            for (int i = 0; i < K; i++) read += (state[v][i] *= alpha) * k[i] / sqrt(norm);
            for (int i = 0; i < K; i++) state[v][i] += b * (value - read) * k[i] / sqrt(norm);
        }
    }
    rig_same_slots(&pool, 1, &pool, 2);
    float want[V * K];
    for (int n = 0; n < V * K; n++) want[n] = (float)state[n / K][n % K];
    ck_assert_double_lt(ratio(rig_slot(&pool, 1), want, V * K), 5e-6);
    free(x), free(ab), free(qkv), free(raw), free(pool.memory);
}
END_TEST

/* Beyond what fp16 holds: outputs are fp32 or bf16, never narrower in range than the state. */
START_TEST(report_88__large_states_give_finite_outputs)
{
    for (uint32_t chunk = 0; chunk <= 64; chunk += 64) {
        struct rig_delta d = sequence(_i % 2, 100, 0, 88);
        d.dtype = _i < 2 ? SC_DTYPE_F32 : SC_DTYPE_BF16;
        d.chunk = chunk;
        free(d.seq[0].o);
        d.seq[0].o = rig_alloc(100 * rig_vo(&d) * 4);
        struct rig_pool pool = pool_of(&d, 3);
        float *state = rig_slot(&pool, 1), largest = 0;
        for (size_t n = 0; n < pool.part_elems; n++) state[n] *= 1e6f;
        for (size_t n = 0; n < 100 * rig_vo(&d); n++) d.seq[0].v[n] *= 1e6f;
        all_gates(&d, -1e-4f);
        rig_run(&d, &pool, &(struct rig_piece){0, 0, 100, 1, 2}, 1, NULL, 0);
        float *o = rig_alloc(100 * rig_vo(&d) * 4);
        rig_read(o, d.seq[0].o, d.dtype, 100 * rig_vo(&d));
        for (size_t n = 0; n < 100 * rig_vo(&d); n++) {
            ck_assert(isfinite(o[n]));
            largest = fmaxf(largest, fabsf(o[n]));
        }
        ck_assert_float_gt(largest, 65504.0f);
        free(o), free(pool.memory), rig_delta_free(&d);
    }
}
END_TEST

/* x / sqrt(sum x^2 + eps): eps beside the sum, not the mean; a key of zeros writes nothing. */
START_TEST(report_89__epsilon_stands_beside_the_sum)
{
    static const double sizes[] = {0.0, 1e-20, 1e-4, 1.0};
    enum { DIM = 128 };
    for (int n = 0; n < 4; n++) {
        float x[DIM], y[DIM];
        for (int i = 0; i < DIM; i++) x[i] = (float)(sizes[n] / sqrt(DIM)) * (i % 2 ? 1.0f : -1.0f);
        sc_k_l2norm_params p = {.x = sc_host_devptr(x), .y = sc_host_devptr(y),
            .dtype = SC_DTYPE_F32, .token_count = 1, .heads = 1, .dim = DIM};
        RIG_OK(sc_k_l2norm(NULL, &p, NULL));
        double factor = 1.0 / sqrt(sizes[n] * sizes[n] + 1e-6);
        for (int i = 0; i < DIM; i++)
            ck_assert_double_le(fabs((double)y[i] - (double)x[i] * factor),
                1e-6 * fabs((double)x[i] * factor));
        for (int norm = 0; norm < 2; norm++) { /* the flag reaches both forms */
            struct rig_delta d = sequence(_i, 70, 0, 89);
            d.shape.qk_l2norm = norm;
            for (size_t i = 0; i < 70 * rig_qk(&d); i++)
                d.seq[0].k[i] *= (float)sizes[n] / sqrtf(K_DIM);
            check_chunks(&d, norm ? "small keys, normalised" : "small keys as they are");
            rig_delta_free(&d);
        }
    }
    struct rig_delta d = sequence(_i, 3, 0, 89); /* decay alone */
    memset(d.seq[0].k, 0, 3 * rig_qk(&d) * 4);
    all_gates(&d, -0.5f);
    struct rig_pool pool = pool_of(&d, 3);
    rig_run(&d, &pool, &(struct rig_piece){0, 0, 3, 1, 2}, 1, NULL, 0);
    const float *before = rig_slot(&pool, 1), *after = rig_slot(&pool, 2);
    for (size_t i = 0; i < pool.part_elems; i++)
        ck_assert_float_le(fabsf(after[i] - before[i] * expf(-1.5f)), 1e-6f * fabsf(before[i]));
    free(pool.memory), rig_delta_free(&d);
}
END_TEST

START_TEST(report_91__scratch_may_hold_anything)
{
    static const int fills[] = {0x00, 0xff, 0x7f, 0x42};
    for (uint32_t tokens = 1; tokens <= 130; tokens += 43) {
        struct rig_delta d = sequence(_i, tokens, 11, 91);
        struct rig_pool pool = pool_of(&d, 6);
        uint8_t *want = rig_alloc(tokens * rig_vo(&d) * 4);
        for (int f = 0; f < 4; f++) {
            struct rig_batch b;
            d.chunk = 64;
            rig_pack(&b, &d, &(struct rig_piece){0, 0, tokens, 1, 2 + f}, 1);
            rig_params(&b, &d, &pool, 1, NULL, 0);
            memset(b.tensors[4], fills[f], b.p.scratch_bytes);
            memset(b.tensors[3], fills[f], tokens * rig_vo(&d) * 4);
            RIG_OK(sc_k_delta_chunk(NULL, &b.p, NULL));
            if (f == 0) memcpy(want, b.tensors[3], tokens * rig_vo(&d) * 4);
            ck_assert_mem_eq(b.tensors[3], want, tokens * rig_vo(&d) * 4);
            rig_same_slots(&pool, 2 + f, &pool, 2);
            rig_batch_free(&b);
        }
        free(want), free(pool.memory), rig_delta_free(&d);
    }
}
END_TEST

/* ---- class K ---- */

START_TEST(report_92__sequences_of_no_tokens)
{
    for (uint32_t chunk = 0; chunk <= 64; chunk += 64) {
        struct rig_delta d = sequence(_i, 64, 0, 92);
        d.chunk = chunk;
        rig_seq_init(&d, 1, 36, 0, 93);
        struct rig_pool pool = pool_of(&d, 12);
        rig_run(&d, &pool, &(struct rig_piece){0, 0, 64, 1, 2}, 1, NULL, 0);
        rig_run(&d, &pool, &(struct rig_piece){1, 0, 36, 0, 3}, 1, NULL, 0);
        for (uint32_t empty = 0; empty < 16; empty++) { /* which of four gaps hold an empty row */
            struct rig_piece pieces[6];
            uint32_t count = 0;
            for (uint32_t gap = 0; gap < 3; gap++) {
                if (empty >> gap & 1)
                    pieces[count++] = (struct rig_piece){0, 0, 0, 1, 6 + (int32_t)gap};
                if (gap == 0) pieces[count++] = (struct rig_piece){0, 0, 64, 1, 4};
                if (gap == 1) pieces[count++] = (struct rig_piece){1, 0, 36, 0, 5};
            }
            if (empty >> 3) pieces[count++] = (struct rig_piece){0, 0, 0, 0, 9};
            memset(rig_slot(&pool, 4), 0xff, 6 * rig_part_bytes(&pool));
            rig_run(&d, &pool, pieces, count, NULL, 0);
            rig_same_slots(&pool, 4, &pool, 2), rig_same_slots(&pool, 5, &pool, 3);
            for (int32_t gap = 0; gap < 3; gap++)
                if (empty >> gap & 1) rig_same_slots(&pool, 6 + gap, &pool, 1);
            if (empty >> 3) rig_all_bytes(rig_slot(&pool, 9), rig_part_bytes(&pool), 0);
        }
        const struct rig_piece none[] = {{0, 0, 0, 1, 6}, {1, 0, 0, 0, 7}};
        rig_run(&d, &pool, none, 2, NULL, 0); /* no token at all */
        rig_same_slots(&pool, 6, &pool, 1);
        rig_all_bytes(rig_slot(&pool, 7), rig_part_bytes(&pool), 0);
        free(pool.memory), rig_delta_free(&d);
    }
}
END_TEST

START_TEST(report_93__empty_rows_between_others_shift_nothing)
{
    static const uint32_t lengths[] = {0, 1, 63, 64, 65};
    struct rig_delta d = sequence(_i, 65, 0, 93);
    struct sc_prng prng;
    struct rig_pool pool = pool_of(&d, 4 + 5 + RIG_PIECES);
    sc_prng_seed(&prng, 93);
    d.chunk = 64;
    for (uint32_t n = 0; n < 5; n++)
        rig_run(&d, &pool, &(struct rig_piece){0, 0, lengths[n], 1, 4 + (int32_t)n}, 1, NULL, 0);
    for (int round = 0; round < 500; round++) {
        struct rig_piece pieces[RIG_PIECES];
        uint32_t count = 1 + (uint32_t)sc_prng_below(&prng, RIG_PIECES), pick[RIG_PIECES];
        for (uint32_t r = 0; r < count; r++) {
            pick[r] = round ? (uint32_t)sc_prng_below(&prng, 5) : r % 2 ? 0 : 3; /* 64, 0, 64 .. */
            pieces[r] = (struct rig_piece){0, 0, lengths[pick[r]], 1, 9 + (int32_t)r};
        }
        rig_run(&d, &pool, pieces, count, NULL, 0);
        for (uint32_t r = 0; r < count; r++)
            rig_same_slots(&pool, 9 + (int32_t)r, &pool, 4 + (int32_t)pick[r]);
    }
    free(pool.memory), rig_delta_free(&d);
}
END_TEST

#define ADD(name, count) tcase_add_loop_test(tc, name, 0, count)

int main(void)
{
    Suite *suite = suite_create("reports_numbers");
    TCase *tc = tcase_create("reports");
    tcase_set_timeout(tc, 240);
    ADD(report_43__the_last_chunk_ends_with_its_last_token, 2);
    ADD(report_44__nothing_beyond_the_last_token_is_touched, 4);
    ADD(report_45__a_page_that_is_no_multiple_of_the_chunk, 2);
    ADD(report_46__pieces_of_any_length_save_on_the_grid, 10);
    ADD(report_83__gates_as_models_have_them_and_beyond, 2);
    ADD(report_84__a_gate_of_minus_90_before_and_after_zeros, 2);
    ADD(report_85__decays_down_to_zero, 2);
    ADD(report_87__beta_is_fp32_on_every_path, 1);
    ADD(report_88__large_states_give_finite_outputs, 4);
    ADD(report_89__epsilon_stands_beside_the_sum, 2);
    ADD(report_90__a_gate_of_zero_is_a_gate, 2);
    ADD(report_91__scratch_may_hold_anything, 2);
    ADD(report_92__sequences_of_no_tokens, 2);
    ADD(report_93__empty_rows_between_others_shift_nothing, 2);
    suite_add_tcase(suite, tc);
    return check_main(suite);
}

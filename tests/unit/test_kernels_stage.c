/* SPDX-License-Identifier: Apache-2.0 */
/* The KDA stage: against float64, the one call against the chain, drafts against decode, ranks
 * against one, and which path a run takes. */
#include <check.h>
#include <math.h>

#include "kernels_rig.h"
#include "statecache/kernels_draft.h"
#include "statecache/kernels_stage.h"
#include "support/check_main.h"
#include "support/fail_alloc.h"

enum { CASES = 16, SLOTS = 8, REQUESTS = 3, TOKENS = 5, ROWS = REQUESTS * TOKENS, RANK = 16 };
enum { HIDDEN = 48 };

struct rig {
    sc_kda_stage_options o;
    sc_kda_stage *stage;
    sc_kda_columns c;
    size_t all;
    void *conv, *f_b, *g_b, *norm, *in_proj, *o_proj, *x, *z, *y, *scratch;
    float *gates;
    struct rig_pool window, state;
    sc_kda_stage_params p;
    int32_t source[REQUESTS], dest[REQUESTS], save[REQUESTS];
};

static void *tensor(struct sc_prng *prng, sc_dtype dtype, size_t count, float scale)
{
    float *x = rig_normal(prng, count, scale);
    void *out = rig_tensor(dtype, x, count);
    free(x);
    return out;
}

static void pools_open(struct rig *s, struct sc_prng *prng, int i)
{
    s->window = rig_pool(s->o.dtype, 3 * s->all * (s->o.conv_width - 1), SLOTS, 0, 0);
    s->state = rig_pool(i % 3 == 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32, s->all * s->o.dim, SLOTS, 0, 0);
    for (int32_t slot = 1; slot <= 2; slot++) {
        float *x = rig_normal(prng, s->window.part_elems, 0.7f);
        rig_put(rig_slot(&s->window, slot), s->o.dtype, x, s->window.part_elems);
        free(x);
        x = rig_normal(prng, s->state.part_elems, 0.3f);
        rig_put(rig_slot(&s->state, slot), s->state.slots.dtype, x, s->state.part_elems);
        free(x);
    }
}

static void key_init(struct rig *s, uint32_t tokens)
{
    static const int32_t source[REQUESTS] = {1, -1, 2}, dest[REQUESTS] = {3, 4, 2};
    static const int32_t save[REQUESTS] = {5, -1, -1};
    memcpy(s->source, source, sizeof source);
    memcpy(s->dest, dest, sizeof dest);
    memcpy(s->save, save, sizeof save);
    s->p = (sc_kda_stage_params){.key = {.requests = REQUESTS, .tokens = tokens,
        .window_stride = s->window.slots.slot_stride, .state_stride = s->state.slots.slot_stride,
        .state_dtype = s->state.slots.dtype}, .x = sc_host_devptr(s->x),
        .z = s->o.g_b == 0 ? sc_host_devptr(s->z) : 0, .y = sc_host_devptr(s->y),
        .source = sc_host_devptr(s->source), .dest = tokens == 1 ? sc_host_devptr(s->dest) : 0,
        .save = tokens == 1 ? sc_host_devptr(s->save) : 0, .window = s->window.slots,
        .state = s->state.slots};
}

static void options_init(struct rig *s, struct sc_prng *prng, int i)
{
    static const uint32_t dims[] = {16, 64, 24, 128};
    uint32_t heads = i % 4 == 3 ? 1 : 2;
    s->o = (sc_kda_stage_options)SC_KDA_STAGE_OPTIONS_INIT;
    s->o.heads = heads, s->o.dim = dims[i % 4], s->o.rank = RANK, s->o.conv_width = 4;
    s->o.dtype = i / 4 % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    s->o.weight_dtype = i % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    s->o.eps = 1e-5f;
    s->all = (size_t)heads * s->o.dim;
    s->conv = tensor(prng, s->o.weight_dtype, 3 * s->all * 4, 0.5f);
    s->f_b = tensor(prng, s->o.weight_dtype, s->all * RANK, 0.3f);
    s->g_b = tensor(prng, s->o.weight_dtype, s->all * RANK, 0.3f);
    s->norm = tensor(prng, s->o.weight_dtype, s->o.dim, 1.0f);
    s->gates = rig_normal(prng, heads + s->all, 0.5f);
    s->o.conv_weight = sc_host_devptr(s->conv), s->o.f_b = sc_host_devptr(s->f_b);
    s->o.g_b = i % 8 == 5 ? 0 : sc_host_devptr(s->g_b);
    s->o.norm_weight = sc_host_devptr(s->norm);
    s->o.gates = (sc_k_gate_weights){.gate = i % 3 ? SC_K_GATE_KDA_BOUNDED
                                                   : SC_K_GATE_KDA_SOFTPLUS,
        .a_log = sc_host_devptr(s->gates), .dt_bias = sc_host_devptr(s->gates + heads),
        .dt_bias_dtype = SC_DTYPE_F32, .lower_bound = -5.0f, .beta_doubled = i % 5 == 1};
}

static struct rig *rig_open(int i)
{
    struct rig *s = rig_alloc(sizeof *s);
    struct sc_prng prng;
    memset(s, 0, sizeof *s);
    sc_prng_seed(&prng, 500 + (uint64_t)i);
    options_init(s, &prng, i);
    RIG_OK(sc_kda_stage_create(NULL, &s->o, NULL, &s->stage));
    RIG_OK(sc_kda_stage_columns(s->stage, &s->c));
    s->x = tensor(&prng, s->o.dtype, (size_t)ROWS * s->c.count, 0.7f);
    s->z = tensor(&prng, s->o.dtype, ROWS * s->all, 1.0f);
    s->y = rig_tensor(s->o.dtype, NULL, ROWS * s->all);
    pools_open(s, &prng, i);
    key_init(s, 1);
    return s;
}

static void rig_close(struct rig *s)
{
    void *all[] = {s->conv, s->f_b, s->g_b, s->norm, s->in_proj, s->o_proj, s->x, s->z, s->y,
        s->scratch, s->gates, s->window.memory, s->state.memory, s};
    sc_kda_stage_destroy(s->stage);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* Scratch for the key; prepares it or not. */
static void scratch(struct rig *s, bool prepare)
{
    uint64_t bytes = 0;
    sc_kda_stage *probe = NULL;
    if (prepare) {
        RIG_OK(sc_kda_stage_prepare(s->stage, &s->p.key, &bytes));
    } else {
        RIG_OK(sc_kda_stage_create(NULL, &s->o, NULL, &probe));
        RIG_OK(sc_kda_stage_prepare(probe, &s->p.key, &bytes));
        sc_kda_stage_destroy(probe);
    }
    free(s->scratch);
    s->scratch = rig_alloc(bytes);
    s->p.scratch = sc_host_devptr(s->scratch), s->p.scratch_bytes = bytes;
}

static size_t y_bytes(const struct rig *s)
{
    return ROWS * s->all * rig_elem(s->o.dtype);
}

/* ---- float64 ---- */

static double *wide(const void *tensor, sc_dtype dtype, size_t count)
{
    float *x = rig_alloc(count * 4);
    double *out = rig_alloc(count * 8);
    rig_read(x, tensor, dtype, count);
    for (size_t i = 0; i < count; i++) out[i] = (double)x[i];
    free(x);
    return out;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Head h of request r: one token from slot `slot`, outputs to y[dim], the state to `state`. */
static void oracle_head(const struct rig *s, size_t r, size_t h, int32_t slot, double *y,
    double *state)
{
    size_t dim = s->o.dim, count = s->c.count;
    double *x = wide(s->x, s->o.dtype, ROWS * count), *c = wide(s->conv, s->o.weight_dtype,
        3 * s->all * 4), *old = wide(rig_slot(&s->window, slot), s->o.dtype, 9 * s->all);
    double *f = wide(s->f_b, s->o.weight_dtype, s->all * RANK);
    double *g = wide(s->g_b, s->o.weight_dtype, s->all * RANK);
    double *norm = wide(s->norm, s->o.weight_dtype, dim), *qkv = rig_alloc(3 * dim * 8);
    double *before = wide(rig_slot(&s->state, slot), s->state.slots.dtype, s->all * dim);
    double *z = wide(s->z, s->o.dtype, ROWS * s->all), sum[2] = {1e-6, 1e-6}, square = 0;
    const double *row = x + r * count;
    for (size_t part = 0; part < 3; part++)
        for (size_t d = 0; d < dim; d++) {
            size_t ch = part * s->all + h * dim + d;
            double a = c[ch * 4 + 3] * row[s->c.qkv + ch];
            for (size_t j = 0; j < 3; j++) a += c[ch * 4 + j] * old[j * 3 * s->all + ch];
            qkv[part * dim + d] = a * sigmoid(a);
            if (part < 2) sum[part] += qkv[part * dim + d] * qkv[part * dim + d];
        }
    double beta = sigmoid(row[s->c.beta + h]) * (s->o.gates.beta_doubled ? 2 : 1);
    double rate = exp((double)s->gates[h]);
    for (size_t k = 0; k < dim; k++) {
        double raw = (double)s->gates[s->o.heads + h * dim + k];
        for (size_t n = 0; n < RANK; n++)
            raw += row[s->c.f_a + n] * f[(h * dim + k) * RANK + n];
        double decay = s->o.gates.gate == SC_K_GATE_KDA_BOUNDED ? -5.0 * sigmoid(rate * raw)
                                                                : -rate * log1p(exp(raw));
        for (size_t v = 0; v < dim; v++)
            state[v * dim + k] = before[(h * dim + v) * dim + k] * exp(decay);
        qkv[k] /= sqrt(sum[0]), qkv[dim + k] /= sqrt(sum[1]);
    }
    for (size_t v = 0; v < dim; v++) {
        double read = 0, out = 0;
        for (size_t k = 0; k < dim; k++) read += state[v * dim + k] * qkv[dim + k];
        double u = beta * (qkv[2 * dim + v] - read);
        for (size_t k = 0; k < dim; k++) {
            state[v * dim + k] += u * qkv[dim + k];
            out += state[v * dim + k] * qkv[k];
        }
        y[v] = out / sqrt((double)dim), square += y[v] * y[v];
    }
    for (size_t v = 0; v < dim; v++) {
        double gate = s->o.g_b == 0 ? z[r * s->all + h * dim + v] : 0;
        for (size_t n = 0; s->o.g_b != 0 && n < RANK; n++)
            gate += row[s->c.g_a + n] * g[(h * dim + v) * RANK + n];
        y[v] *= norm[v] / sqrt(square / (double)dim + 1e-5) * sigmoid(gate);
    }
    free(x), free(c), free(old), free(f), free(g), free(norm), free(qkv), free(before), free(z);
}

static double off(const double *want, const double *got, size_t count)
{
    double error = 0, all = 1e-30;
    for (size_t i = 0; i < count; i++)
        error += (want[i] - got[i]) * (want[i] - got[i]), all += want[i] * want[i];
    return sqrt(error / all);
}

START_TEST(stage__decode_matches_float64)
{
    struct rig *s = rig_open(_i);
    size_t dim = s->o.dim;
    double *y = rig_alloc(dim * 8), *state = rig_alloc(dim * dim * 8);
    double *want_y = rig_alloc(s->all * 8), *want = rig_alloc(s->all * dim * 8);
    for (size_t h = 0; h < s->o.heads; h++) {
        oracle_head(s, 0, h, 1, y, state);
        memcpy(want_y + h * dim, y, dim * 8);
        memcpy(want + h * dim * dim, state, dim * dim * 8);
    }
    scratch(s, true);
    RIG_OK(sc_kda_stage_run(s->stage, &s->p, NULL));
    double *got_y = wide(s->y, s->o.dtype, s->all);
    double *got = wide(rig_slot(&s->state, 3), s->state.slots.dtype, s->all * dim);
    bool exact = s->o.dtype == SC_DTYPE_F32;
    /* a bf16 state is multiplied with factors of 16 bits */
    double least = s->state.slots.dtype == SC_DTYPE_F32 ? 2e-6 : 1e-4;
    ck_assert_double_lt(off(want_y, got_y, s->all), exact ? least : 1e-2);
    ck_assert_double_lt(off(want, got, s->all * dim),
        exact && s->state.slots.dtype == SC_DTYPE_F32 ? 2e-6 : 5e-3);
    rig_same_slots(&s->state, 3, &s->state, 5);   /* the second destination */
    rig_same_slots(&s->window, 3, &s->window, 5);
    rig_untouched(&s->state, 4), rig_untouched(&s->window, 4), rig_untouched(&s->state, 6);
    rig_all_bytes((uint8_t *)s->y + y_bytes(s) / ROWS, y_bytes(s) / ROWS, 0); /* padded */
    free(y), free(state), free(want_y), free(want), free(got_y), free(got);
    rig_close(s);
}
END_TEST

/* ---- one call and chain ---- */

static void same_pools(const struct rig *a, const struct rig *b)
{
    ck_assert_mem_eq(a->state.memory, b->state.memory, a->state.bytes);
    ck_assert_mem_eq(a->window.memory, b->window.memory, a->window.bytes);
}

START_TEST(stage__the_chain_gives_the_bits_of_the_one_call)
{
    for (int drafts = 0; drafts < 2; drafts++) {
        struct rig *one = rig_open(_i), *two = rig_open(_i);
        struct rig *each[2] = {one, two};
        sc_kda_stage_stats stats;
        for (int k = 0; k < 2; k++) {
            key_init(each[k], drafts ? TOKENS : 1);
            each[k]->p.key.window_order = _i % 2 ? SC_K_ORDER_DIM_FIRST : SC_K_ORDER_WIDTH_FIRST;
            /* a padded row's numbers may be anything */
            memset((uint8_t *)each[k]->x + (drafts ? TOKENS : 1) * each[k]->c.count
                * rig_elem(one->o.dtype), 0xff, each[k]->c.count * rig_elem(one->o.dtype));
            scratch(each[k], k == 0);
            RIG_OK(sc_kda_stage_run(each[k]->stage, &each[k]->p, NULL));
        }
        ck_assert_mem_eq(one->y, two->y, y_bytes(one));
        same_pools(one, two);
        RIG_OK(sc_kda_stage_stats_get(one->stage, &stats));
        ck_assert(stats.runs == 1 && stats.fused == 1 && stats.chained == 0);
        RIG_OK(sc_kda_stage_stats_get(two->stage, &stats));
        ck_assert(stats.runs == 1 && stats.fused == 0 && stats.chained == 1);
        rig_close(one), rig_close(two);
    }
}
END_TEST

/* However the gate is made: the same bits. */
START_TEST(stage__gate_paths_change_no_bit)
{
    struct rig *one = rig_open(_i), *two = rig_open(_i);
    sc_kda_stage_stats stats;
    sc_kda_stage_destroy(two->stage);
    two->o.fold_tokens = 1; /* three rows are too many */
    RIG_OK(sc_kda_stage_create(NULL, &two->o, NULL, &two->stage));
    scratch(one, true), scratch(two, true);
    RIG_OK(sc_kda_stage_run(one->stage, &one->p, NULL));
    RIG_OK(sc_kda_stage_run(two->stage, &two->p, NULL));
    ck_assert_mem_eq(one->y, two->y, y_bytes(one));
    same_pools(one, two);
    RIG_OK(sc_kda_stage_stats_get(one->stage, &stats));
    ck_assert(stats.gate_path[one->o.g_b != 0 ? SC_KDA_GATE_FOLD : SC_KDA_GATE_READY] == 1);
    RIG_OK(sc_kda_stage_stats_get(two->stage, &stats));
    ck_assert(stats.gate_path[one->o.g_b != 0 ? SC_KDA_GATE_THIN : SC_KDA_GATE_READY] == 1);
    rig_close(one), rig_close(two);
}
END_TEST

/* Drafts of request 0 and 2 are what decoding them gives; no slot is written. */
START_TEST(stage__drafts_are_decode)
{
    struct rig *one = rig_open(_i), *two = rig_open(_i);
    size_t row = y_bytes(one) / ROWS, e = rig_elem(one->o.dtype);
    key_init(one, TOKENS);
    scratch(one, true), scratch(two, true);
    RIG_OK(sc_kda_stage_run(one->stage, &one->p, NULL));
    for (int32_t slot = 3; slot < SLOTS; slot++) rig_untouched(&one->state, slot);
    uint8_t *x = rig_alloc(REQUESTS * one->c.count * e);
    for (size_t t = 0; t < TOKENS; t++) {
        for (size_t r = 0; r < REQUESTS; r++)
            memcpy(x + r * one->c.count * e,
                (uint8_t *)two->x + (r * TOKENS + t) * one->c.count * e, one->c.count * e);
        two->p.x = sc_host_devptr(x);
        if (two->p.z != 0) { /* ready gates lie row by row, too */
            for (size_t r = 0; r < REQUESTS; r++)
                memcpy((uint8_t *)two->z + r * row, (uint8_t *)one->z + (r * TOKENS + t) * row,
                    row);
        }
        two->source[0] = t > 0 ? 3 : 1;
        RIG_OK(sc_kda_stage_run(two->stage, &two->p, NULL));
        for (size_t r = 0; r < REQUESTS; r++)
            ck_assert_mem_eq((uint8_t *)one->y + (r * TOKENS + t) * row,
                (uint8_t *)two->y + r * row, row);
    }
    free(x), rig_close(one), rig_close(two);
}
END_TEST

/* ---- projections and ranks ---- */

static sc_status add_up(void *ctx, sc_devptr data, sc_dtype dtype, uint64_t count,
    sc_stream *stream)
{
    float *sum = ctx, *mine = sc_host_ptr(data);
    (void)stream;
    ck_assert(dtype == SC_DTYPE_F32);
    for (uint64_t i = 0; i < count; i++) mine[i] += sum[i]; /* the other rank's part */
    return SC_OK;
}

static void projections(struct rig *s, int i)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 900 + (uint64_t)i);
    s->in_proj = tensor(&prng, s->o.weight_dtype, (size_t)s->c.count * HIDDEN, 0.2f);
    s->o_proj = tensor(&prng, s->o.weight_dtype, HIDDEN * s->all, 0.2f);
    s->o.hidden = HIDDEN;
    s->o.in_proj = sc_host_devptr(s->in_proj), s->o.o_proj = sc_host_devptr(s->o_proj);
    free(s->x), free(s->y);
    s->x = tensor(&prng, s->o.dtype, ROWS * HIDDEN, 1.0f);
    s->y = rig_tensor(s->o.dtype, NULL, ROWS * HIDDEN);
    s->p.x = sc_host_devptr(s->x), s->p.y = sc_host_devptr(s->y);
}

START_TEST(stage__projections_are_products_around_it)
{
    struct rig *one = rig_open(_i), *two = rig_open(_i);
    projections(one, _i), projections(two, _i);
    sc_kda_stage_destroy(one->stage);
    RIG_OK(sc_kda_stage_create(NULL, &one->o, NULL, &one->stage));
    scratch(one, true);
    RIG_OK(sc_kda_stage_run(one->stage, &one->p, NULL));
    void *x = rig_tensor(two->o.dtype, NULL, REQUESTS * two->c.count);
    void *y = rig_tensor(two->o.dtype, NULL, REQUESTS * two->all);
    sc_k_project_params in = {.x = two->p.x, .weight = two->o.in_proj, .y = sc_host_devptr(x),
        .dtype = two->o.dtype, .weight_dtype = two->o.weight_dtype, .y_dtype = two->o.dtype,
        .in_dim = HIDDEN, .out_dim = two->c.count, .token_count = REQUESTS}, out = in;
    RIG_OK(sc_k_project(NULL, &in, NULL));
    out.x = sc_host_devptr(y), out.weight = two->o.o_proj, out.y = two->p.y;
    out.in_dim = (uint32_t)two->all, out.out_dim = HIDDEN;
    two->o.in_proj = two->o.o_proj = 0; /* its stage has none */
    two->p.x = sc_host_devptr(x), two->p.y = sc_host_devptr(y);
    scratch(two, true);
    RIG_OK(sc_kda_stage_run(two->stage, &two->p, NULL));
    RIG_OK(sc_k_project(NULL, &out, NULL));
    ck_assert_mem_eq(one->y, two->y, REQUESTS * HIDDEN * rig_elem(one->o.dtype));
    same_pools(one, two);
    free(x), free(y), rig_close(one), rig_close(two);
}
END_TEST

/* One rank's o_proj sums with another's: what reduce was given comes back added. */
START_TEST(stage__ranks_are_summed_by_reduce)
{
    struct rig *one = rig_open(0), *two = rig_open(0);
    projections(one, 0), projections(two, 0);
    sc_kda_stage_destroy(one->stage), sc_kda_stage_destroy(two->stage);
    float other[REQUESTS * HIDDEN];
    for (int i = 0; i < REQUESTS * HIDDEN; i++) other[i] = (float)i;
    two->o.reduce = add_up, two->o.reduce_ctx = other;
    RIG_OK(sc_kda_stage_create(NULL, &one->o, NULL, &one->stage));
    RIG_OK(sc_kda_stage_create(NULL, &two->o, NULL, &two->stage));
    scratch(one, true), scratch(two, true);
    RIG_OK(sc_kda_stage_run(one->stage, &one->p, NULL));
    RIG_OK(sc_kda_stage_run(two->stage, &two->p, NULL));
    for (int i = 0; i < REQUESTS * HIDDEN; i++)
        ck_assert(((float *)two->y)[i] == ((float *)one->y)[i] + other[i]);
    rig_close(one), rig_close(two);
}
END_TEST

/* Head `h` of a stage of two heads, as a rank of its own: its slices of weights, x, slots. */
static void slice(const void *from, void *to, size_t piece, size_t count, size_t pitch,
    size_t first)
{
    for (size_t i = 0; i < count; i++)
        memcpy((uint8_t *)to + i * piece, (const uint8_t *)from + i * pitch + first, piece);
}

static struct rig *rank_open(const struct rig *all, int i, size_t h)
{
    struct rig *s = rig_open(i);
    size_t d = all->o.dim, w = rig_elem(all->o.weight_dtype), e = rig_elem(all->o.dtype);
    size_t state = d * d * rig_elem(all->state.slots.dtype);
    sc_kda_stage_destroy(s->stage);
    slice(all->conv, s->conv, d * 4 * w, 3, 2 * d * 4 * w, h * d * 4 * w);
    slice(all->f_b, s->f_b, d * RANK * w, 1, 0, h * d * RANK * w);
    slice(all->g_b, s->g_b, d * RANK * w, 1, 0, h * d * RANK * w);
    slice(all->gates, s->gates, 4, 1, 0, h * 4);
    slice(all->gates, s->gates + 1, d * 4, 1, 0, (2 + h * d) * 4);
    s->o.heads = 1, s->all = d;
    s->o.gates.dt_bias = sc_host_devptr(s->gates + 1);
    RIG_OK(sc_kda_stage_create(NULL, &s->o, NULL, &s->stage));
    RIG_OK(sc_kda_stage_columns(s->stage, &s->c));
    for (size_t r = 0; r < ROWS; r++) {
        const uint8_t *from = (const uint8_t *)all->x + r * all->c.count * e;
        uint8_t *to = (uint8_t *)s->x + r * s->c.count * e;
        slice(from, to, d * e, 3, 2 * d * e, h * d * e);
        memcpy(to + s->c.beta * e, from + (all->c.beta + h) * e, e);
        memcpy(to + s->c.f_a * e, from + all->c.f_a * e, RANK * e);
        memcpy(to + s->c.g_a * e, from + all->c.g_a * e, RANK * e);
    }
    free(s->window.memory), free(s->state.memory);
    s->window = rig_pool(s->o.dtype, 9 * d, SLOTS, 0, 0);
    s->state = rig_pool(all->state.slots.dtype, d * d, SLOTS, 0, 0);
    for (int32_t slot = 1; slot <= 2; slot++) {
        slice(rig_slot(&all->window, slot), rig_slot(&s->window, slot), d * e, 9, 2 * d * e,
            h * d * e);
        slice(rig_slot(&all->state, slot), rig_slot(&s->state, slot), state, 1, 0, h * state);
    }
    key_init(s, 1);
    return s;
}

START_TEST(stage__two_ranks_are_one)
{
    static const int cases[] = {0, 1, 2, 4, 6};
    int i = cases[_i];
    struct rig *all = rig_open(i);
    size_t d = all->o.dim, e = rig_elem(all->o.dtype);
    struct rig *rank[2] = {rank_open(all, i, 0), rank_open(all, i, 1)};
    scratch(all, true);
    RIG_OK(sc_kda_stage_run(all->stage, &all->p, NULL));
    for (size_t h = 0; h < 2; h++) {
        struct rig *s = rank[h];
        size_t state = rig_part_bytes(&s->state);
        scratch(s, true);
        RIG_OK(sc_kda_stage_run(s->stage, &s->p, NULL));
        for (size_t r = 0; r < REQUESTS; r++)
            ck_assert_mem_eq((uint8_t *)s->y + r * d * e,
                (uint8_t *)all->y + (r * 2 + h) * d * e, d * e);
        for (int32_t slot = 2; slot <= 3; slot++)
            ck_assert_mem_eq(rig_slot(&s->state, slot),
                (uint8_t *)rig_slot(&all->state, slot) + h * state, state);
        rig_close(s);
    }
    rig_close(all);
}
END_TEST

static uint32_t gemm_calls;
static sc_status gemm_answer;

static sc_status gemm(void *ctx, const sc_k_project_params *product, sc_stream *stream)
{
    (void)ctx;
    gemm_calls++;
    return gemm_answer != SC_OK ? gemm_answer : sc_k_project(NULL, product, stream);
}

/* Many tokens: with FAST the caller's product makes the gate and the projections; with EXACT never;
 * the same bits here, since this one is exact. */
START_TEST(stage__gemm_only_when_fast_and_large)
{
    enum { MANY = 80 };
    uint8_t *y[2] = {NULL, NULL};
    for (int fast = 0; fast < 2; fast++) {
        struct rig *s = rig_open(2);
        struct sc_prng prng;
        sc_kda_stage_stats stats;
        int32_t source[MANY], dest[MANY];
        sc_prng_seed(&prng, 4);
        sc_kda_stage_destroy(s->stage);
        s->o.numerics = fast ? SC_NUMERICS_FAST : SC_NUMERICS_EXACT, s->o.gemm = gemm;
        RIG_OK(sc_kda_stage_create(NULL, &s->o, NULL, &s->stage));
        free(s->x), free(s->y);
        s->x = tensor(&prng, s->o.dtype, (size_t)MANY * s->c.count, 0.7f);
        y[fast] = rig_tensor(s->o.dtype, NULL, MANY * s->all);
        s->y = NULL;
        for (int r = 0; r < MANY; r++) source[r] = 1, dest[r] = -1;
        s->p.x = sc_host_devptr(s->x), s->p.y = sc_host_devptr(y[fast]);
        s->p.source = sc_host_devptr(source), s->p.dest = sc_host_devptr(dest), s->p.save = 0;
        s->p.key.requests = MANY;
        gemm_calls = 0, gemm_answer = SC_OK;
        scratch(s, true);
        RIG_OK(sc_kda_stage_run(s->stage, &s->p, NULL));
        ck_assert_uint_eq(gemm_calls, fast ? 1 : 0);
        RIG_OK(sc_kda_stage_stats_get(s->stage, &stats));
        ck_assert(stats.gemm_calls == gemm_calls);
        ck_assert(stats.gate_path[fast ? SC_KDA_GATE_GEMM : SC_KDA_GATE_THIN] == 1);
        gemm_answer = SC_ERR_DEVICE_LOST;
        ck_assert_int_eq(sc_kda_stage_run(s->stage, &s->p, NULL),
            fast ? SC_ERR_DEVICE_LOST : SC_OK);
        if (fast) ck_assert_mem_eq(y[0], y[1], MANY * s->all * rig_elem(s->o.dtype));
        rig_close(s);
    }
    free(y[0]), free(y[1]);
}
END_TEST

/* ---- bad arguments ---- */

#define INVALID(field, value) RIG_REFUSED(SC_ERR_INVALID, CALL, field, value)

START_TEST(stage_create__refuses_bad_arguments)
{
#define CALL sc_kda_stage_create(NULL, &s->o, NULL, &stage)
    struct rig *s = rig_open(0);
    sc_kda_stage *stage = NULL;
    ck_assert_int_eq(sc_kda_stage_create(NULL, NULL, NULL, &stage), SC_ERR_INVALID);
    ck_assert_int_eq(sc_kda_stage_create(NULL, &s->o, NULL, NULL), SC_ERR_INVALID);
    INVALID(s->o.struct_size, 8);
    INVALID(s->o.heads, 0);
    INVALID(s->o.heads, UINT32_MAX);
    INVALID(s->o.dim, 0);
    INVALID(s->o.dim, 12);
    INVALID(s->o.dim, SC_K_DIM_MAX + 8);
    INVALID(s->o.rank, 4);
    INVALID(s->o.rank, 1024);
    INVALID(s->o.conv_width, 5);
    INVALID(s->o.conv_weight, 0);
    INVALID(s->o.f_b, s->o.f_b + 1);
    INVALID(s->o.g_b, s->o.g_b + 1);
    INVALID(s->o.norm_weight, 0);
    INVALID(s->o.gates.gate, SC_K_GATE_GDN);
    INVALID(s->o.gates.gate, (sc_k_gate)9);
    INVALID(s->o.eps, 0.0f);
    INVALID(s->o.scale, NAN);
    INVALID(s->o.in_proj, s->o.f_b); /* without hidden */
    INVALID(s->o.o_proj, s->o.f_b);
    INVALID(s->o.reduce, add_up);    /* without o_proj */
    INVALID(s->o.numerics, (sc_numerics)2);
    RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, s->o.dtype, SC_DTYPE_F16);
    RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, s->o.weight_dtype, (sc_dtype)0);
    ck_assert_ptr_null(stage);
    struct fail_alloc fail;
    fail_alloc_init(&fail);
    for (uint64_t n = 1; n <= 2; n++) { /* each allocation fails once */
        fail_alloc_arm(&fail, n);
        ck_assert_int_eq(sc_kda_stage_create(NULL, &s->o, &fail.allocator, &stage),
            SC_ERR_NO_MEMORY);
        ck_assert(fail_alloc_disarm(&fail));
        ck_assert_ptr_null(stage);
        ck_assert_uint_eq(fail_alloc_live_blocks(&fail), 0);
    }
    RIG_OK(sc_kda_stage_create(NULL, &s->o, &fail.allocator, &stage));
    sc_kda_stage_destroy(stage);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fail), 0);
    ck_assert_int_eq(sc_kda_stage_columns(NULL, &s->c), SC_ERR_INVALID);
    ck_assert_int_eq(sc_kda_stage_columns(s->stage, NULL), SC_ERR_INVALID);
    sc_kda_stage_destroy(NULL);
    rig_close(s);
#undef CALL
}
END_TEST

START_TEST(stage_prepare__refuses_bad_arguments)
{
#define CALL sc_kda_stage_prepare(s->stage, &s->p.key, &bytes)
    struct rig *s = rig_open(0);
    uint64_t bytes = 77;
    sc_kda_stage_stats stats;
    ck_assert_int_eq(sc_kda_stage_prepare(NULL, &s->p.key, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_kda_stage_prepare(s->stage, NULL, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_kda_stage_prepare(s->stage, &s->p.key, NULL), SC_ERR_INVALID);
    INVALID(s->p.key.requests, 0);
    INVALID(s->p.key.requests, UINT32_MAX);
    INVALID(s->p.key.tokens, 0);
    INVALID(s->p.key.tokens, SC_K_DRAFT_MAX + 1);
    INVALID(s->p.key.x_stride, 8);
    INVALID(s->p.key.x_stride, s->c.count + 1);      /* misaligned */
    INVALID(s->p.key.y_stride, (int64_t)s->all + 1);
    INVALID(s->p.key.window_stride, s->p.key.window_stride + 4);
    INVALID(s->p.key.state_stride, 0);
    INVALID(s->p.key.state_stride, s->p.key.state_stride + 8);
    INVALID(s->p.key.window_order, (sc_k_order)2);
    s->p.key.columns = s->c;
    INVALID(s->p.key.columns.beta, s->c.beta + 1);
    INVALID(s->p.key.columns.f_a, s->c.beta);        /* overlap */
    INVALID(s->p.key.columns.count, s->c.g_a);
    RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, s->p.key.state_dtype, SC_DTYPE_U8);
    ck_assert_uint_eq(bytes, 77);
    for (uint32_t n = 1; n <= 64; n++) {
        s->p.key.requests = n;
        RIG_OK(CALL);
        RIG_OK(CALL); /* twice is once */
    }
    RIG_REFUSED(SC_ERR_LIMIT, CALL, s->p.key.requests, 65);
    RIG_OK(sc_kda_stage_stats_get(s->stage, &stats));
    ck_assert_uint_eq(stats.prepared, 64);
    ck_assert(sc_k_project_supports(0) && sc_k_project_supports(64));
    ck_assert(!sc_k_project_supports(65) && !sc_k_project_supports(UINT32_MAX));
    ck_assert_int_eq(sc_kda_stage_stats_get(NULL, &stats), SC_ERR_INVALID);
    ck_assert_int_eq(sc_kda_stage_stats_get(s->stage, NULL), SC_ERR_INVALID);
    rig_close(s);
#undef CALL
}
END_TEST

START_TEST(stage_run__refuses_bad_arguments)
{
#define CALL sc_kda_stage_run(s->stage, &s->p, NULL)
    struct rig *s = rig_open(_i ? 5 : 0); /* 5: the gate is given */
    scratch(s, true);
    ck_assert_int_eq(sc_kda_stage_run(NULL, &s->p, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_kda_stage_run(s->stage, NULL, NULL), SC_ERR_INVALID);
    INVALID(s->p.x, 0);
    INVALID(s->p.x, s->p.x + 8);   /* misaligned */
    INVALID(s->p.y, s->p.y + 4);
    INVALID(s->p.y, s->p.x);
    INVALID(s->p.z, _i ? 0 : s->p.x);
    INVALID(s->p.source, 0);
    INVALID(s->p.dest, 0);
    INVALID(s->p.save, s->p.save + 2);
    INVALID(s->p.window.base, 0);
    INVALID(s->p.window.base, s->p.window.base + 4);
    INVALID(s->p.state.base, s->p.state.base + 8);
    INVALID(s->p.state.slot_stride, s->p.state.slot_stride + 16); /* not the key's */
    INVALID(s->p.scratch, 0);
    INVALID(s->p.scratch_bytes, s->p.scratch_bytes - 1);
    INVALID(s->p.key.requests, 0);
    INVALID(s->p.key.tokens, 2);   /* drafts with destinations */
    INVALID(s->dest[0], 2);        /* another row's source */
    INVALID(s->source[2], SLOTS);
    INVALID(s->save[0], 3);
    rig_all_bytes(s->y, y_bytes(s), 0xff);
    rig_untouched(&s->state, 3), rig_untouched(&s->window, 3);
    RIG_OK(CALL);
    rig_close(s);
#undef CALL
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_stage");
    TCase *all = tcase_create("stage");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, stage__decode_matches_float64, 0, CASES);
    tcase_add_loop_test(all, stage__the_chain_gives_the_bits_of_the_one_call, 0, CASES);
    tcase_add_loop_test(all, stage__gate_paths_change_no_bit, 0, CASES);
    tcase_add_loop_test(all, stage__drafts_are_decode, 0, CASES);
    tcase_add_loop_test(all, stage__projections_are_products_around_it, 0, 8);
    tcase_add_test(all, stage__ranks_are_summed_by_reduce);
    tcase_add_loop_test(all, stage__two_ranks_are_one, 0, 5);
    tcase_add_test(all, stage__gemm_only_when_fast_and_large);
    tcase_add_test(all, stage_create__refuses_bad_arguments);
    tcase_add_test(all, stage_prepare__refuses_bad_arguments);
    tcase_add_loop_test(all, stage_run__refuses_bad_arguments, 0, 2);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

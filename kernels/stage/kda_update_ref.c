/* SPDX-License-Identifier: Apache-2.0 */
/* The KDA update on the host in one call: for each head and request
 *
 *   x columns --conv, silu--> q k v --l2norm--> | one step of S for each token |--> o
 *   f_a . f_b --gate--> alpha                                    g_a . g_b --> z
 *                                                y = o rms weight sigmoid(z)
 *
 * Values are rounded to x's dtype where the chain stores them (after the conv, before the norm),
 * and each sum is that of the operation it stands for; so the bits are the chain's. The two thin
 * products of a head are made for a group of requests at once (project/), into scratch that stays
 * in the cache; a state of one token goes from slot to slot without a stop.
 *
 * Bytes moved: states once in and once out, f_b and g_b once, x and y once: 2 heads dim^2 a request
 * and 2 heads dim rank in all. */
#include "delta/tokens.h"
#include "kernel_dispatch.h"
#include "stage/stage.h"

enum { WIDTH_MAX = 4, GROUP = SC_STAGE_GROUP };

struct update {
    const struct sc_kda_update_params *p;
    uint32_t h, dim, width, first_row, rows; /* rows of the group */
    float *raw, *z, *state; /* scratch: [rows][dim] decay, [rows][dim] gate; [dim][dim] */
    sc_k_delta_shape shape;
    float ext[3][WIDTH_MAX][SC_K_DIM_MAX]; /* inputs of q, k, v: a ring, oldest at `first` */
    uint32_t first;
    float v[TOKENS_MAX][SC_K_DIM_MAX], o[TOKENS_MAX][SC_K_DIM_MAX];
    struct tokens x;
};

/* ---- windows ---- */

static int64_t window_at(const struct update *u, uint32_t part, uint32_t j, int64_t *step)
{
    const struct sc_kda_update_params *p = u->p;
    int64_t all = 3ll * p->options->heads * u->dim;
    int64_t channel = ((int64_t)part * p->options->heads + u->h) * u->dim;
    bool dim_first = p->window_order == SC_K_ORDER_DIM_FIRST;
    *step = dim_first ? u->width - 1 : 1;
    return dim_first ? channel * (u->width - 1) + j : j * all + channel;
}

static void window_load(struct update *u, int32_t slot)
{
    const struct sc_kda_update_params *p = u->p;
    u->first = 0;
    for (uint32_t part = 0; part < 3; part++)
        for (uint32_t j = 0; j + 1 < u->width; j++) {
            int64_t step, at = window_at(u, part, j, &step);
            if (slot == 0) {
                memset(u->ext[part][j], 0, sizeof u->ext[part][j]);
                continue;
            }
            for (uint32_t d = 0; step != 1 && d < u->dim; d++)
                ref_load(u->ext[part][j] + d, ref_slot(&p->window, slot), p->window.dtype,
                    at + d * step, 1);
            if (step == 1)
                ref_load(u->ext[part][j], ref_slot(&p->window, slot), p->window.dtype, at,
                    u->dim);
        }
}

static void window_store(const struct update *u, int32_t slot)
{
    const struct sc_kda_update_params *p = u->p;
    if (slot <= 0) return;
    for (uint32_t part = 0; part < 3; part++)
        for (uint32_t j = 0; j + 1 < u->width; j++) {
            int64_t step, at = window_at(u, part, j, &step);
            const float *line = u->ext[part][(u->first + j) % u->width];
            for (uint32_t d = 0; step != 1 && d < u->dim; d++)
                ref_store(line + d, ref_slot(&p->window, slot), p->window.dtype, at + d * step, 1);
            if (step == 1)
                ref_store(line, ref_slot(&p->window, slot), p->window.dtype, at, u->dim);
        }
}

/* ---- one token ---- */

/* Part `part` of q, k, v of a row of x, after conv and silu, as x's dtype would hold it. */
static void conv(struct update *u, float *restrict out, uint32_t part, int64_t row)
{
    const struct sc_kda_update_params *p = u->p;
    uint32_t all = p->options->heads * u->dim;
    float *newest = u->ext[part][(u->first + u->width - 1) % u->width];
    ref_load(newest, p->x, p->options->dtype, row * p->x_stride + p->columns.qkv
        + (int64_t)part * all + (int64_t)u->h * u->dim, u->dim);
    if (p->options->dtype == SC_DTYPE_F32) ref_round(newest, p->window.dtype, u->dim);
    memset(out, 0, u->dim * sizeof(float));
    for (uint32_t j = 0; j < u->width; j++) {
        const float *tap = u->ext[part][(u->first + j) % u->width];
        const float *weight = p->conv + ((size_t)part * u->width + j) * all + u->h * u->dim;
        for (uint32_t d = 0; d < u->dim; d++) out[d] += weight[d] * tap[d];
    }
    for (uint32_t d = 0; d < u->dim; d++) out[d] = ref_silu(out[d]);
    ref_round(out, p->options->dtype, u->dim);
}

/* The head's outputs of a thin product, of all rows of the group. */
static void waist(const struct update *u, float *out, sc_devptr weight, uint32_t column)
{
    const sc_kda_stage_options *o = u->p->options;
    uint64_t first = (uint64_t)u->h * u->dim * o->rank;
    const sc_k_project_params product = {
        .x = u->p->x + ((uint64_t)u->first_row * (uint64_t)u->p->x_stride + column)
            * sc_kernel_elem_bytes(o->dtype),
        .weight = weight + first * sc_kernel_elem_bytes(o->weight_dtype),
        .y = sc_host_devptr(out), .x_stride = u->p->x_stride, .dtype = o->dtype,
        .weight_dtype = o->weight_dtype, .y_dtype = SC_DTYPE_F32, .in_dim = o->rank,
        .out_dim = u->dim, .token_count = u->rows};
    (void)SC_HOST_FN(sc_k_project)(&product, NULL);
}

/* The row becomes the next token of u->x. */
static void prepare(struct update *u, int64_t row)
{
    const struct sc_kda_update_params *p = u->p;
    uint32_t i = u->x.count++;
    float *q = u->x.q + (size_t)i * u->dim, *k = u->x.k + (size_t)i * u->dim, g[SC_K_DIM_MAX], b;
    conv(u, q, 0, row);
    conv(u, k, 1, row);
    conv(u, u->v[i], 2, row);
    u->first = (u->first + 1) % u->width;
    delta_l2norm(q, u->dim, 1e-6f, delta_scale(&u->shape));
    delta_l2norm(k, u->dim, 1e-6f, 1.0f);
    u->x.kq[i] = ref_dot(k, q, u->dim);
    ref_gate(g, u->raw + (size_t)(row - u->first_row) * u->dim, &p->options->gates, u->h, u->dim);
    delta_alpha(u->x.alpha + (size_t)i * u->dim, &u->shape, g);
    ref_load(&b, p->x, p->options->dtype, row * p->x_stride + p->columns.beta + u->h, 1);
    u->x.beta[i] = ref_beta(b, &p->options->gates);
}

static void finish(struct update *u, float *restrict o, int64_t row)
{
    const struct sc_kda_update_params *p = u->p;
    float z[SC_K_DIM_MAX];
    int64_t at = (int64_t)u->h * u->dim;
    if (p->z != 0)
        ref_load(z, p->z, p->z_dtype, row * p->z_stride + at, u->dim);
    else
        memcpy(z, u->z + (size_t)(row - u->first_row) * u->dim, u->dim * sizeof(float));
    ref_round(o, p->options->dtype, u->dim);
    float rms = 1.0f / sqrtf(ref_dot(o, o, u->dim) / (float)u->dim + p->options->eps);
    for (uint32_t d = 0; d < u->dim; d++) o[d] = o[d] * rms * p->norm[d];
    for (uint32_t d = 0; d < u->dim; d++) o[d] = o[d] * ref_sigmoid(z[d]);
    ref_store(o, p->y, p->options->dtype, row * p->y_stride + at, u->dim);
}

/* ---- states ---- */

/* The tokens of u->x on the state in scratch, rows in blocks. */
static void steps(struct update *u)
{
    uint32_t most = BLOCK_ELEMS / u->dim;
    tokens_ready(&u->x, u->dim, u->p->state.dtype);
    for (uint32_t v0 = 0; v0 < u->dim; v0 += most) {
        uint32_t rows = u->dim - v0 < most ? u->dim - v0 : most;
        for (uint32_t i = 0; i < u->x.count; i++)
            memcpy(u->x.v + (size_t)i * rows, u->v[i] + v0, rows * sizeof(float));
        delta_steps(u->state + (size_t)v0 * u->dim, rows, u->dim, &u->x, u->p->state.dtype);
        for (uint32_t i = 0; i < u->x.count; i++)
            memcpy(u->o[i] + v0, u->x.o + (size_t)i * rows, rows * sizeof(float));
    }
}

#ifdef __AVX2__
/* One token, from slot to slot. */
static bool stream(struct update *u, uint32_t r, int64_t at)
{
    const struct sc_kda_update_params *p = u->p;
    const int32_t *save = sc_host_ptr(p->save);
    if (p->tokens > 1 || !wide_knows(u->dim)) return false;
    struct wide_stream w = {
        .from = wide_at(&p->state, ((const int32_t *)sc_host_ptr(p->source))[r], at),
        .to = {wide_at(&p->state, ((const int32_t *)sc_host_ptr(p->dest))[r], at),
            wide_at(&p->state, save != NULL ? save[r] : 0, at)},
        .rows = u->dim, .dtype = p->state.dtype};
    memcpy(u->x.v, u->v[0], u->dim * sizeof(float));
    tokens_ready(&u->x, u->dim, p->state.dtype);
    wide_stream_run(&w, u->dim, &u->x);
    memcpy(u->o[0], u->x.o, u->dim * sizeof(float));
    return true;
}
#else
static bool stream(struct update *u, uint32_t r, int64_t at)
{
    (void)u, (void)r, (void)at;
    return false;
}
#endif

/* All tokens of request r on a state in scratch. */
static void walk(struct update *u, uint32_t r, int64_t at)
{
    const struct sc_kda_update_params *p = u->p;
    const int32_t *dest = sc_host_ptr(p->dest), *save = sc_host_ptr(p->save);
    const sc_k_slots none = {0};
    struct ref_begin from = ref_begin(&p->state, &none,
        ((const int32_t *)sc_host_ptr(p->source))[r], r);
    uint32_t elems = u->dim * u->dim;
    ref_begin_load(u->state, &from, at, elems);
    for (uint32_t t = 0; t < p->tokens;) {
        int64_t row = (int64_t)r * p->tokens + t;
        for (; u->x.count < TOKENS_MAX && t + u->x.count < p->tokens;)
            prepare(u, row + u->x.count);
        steps(u);
        for (uint32_t i = 0; i < u->x.count; i++) finish(u, u->o[i], row + i);
        t += u->x.count;
        u->x.count = 0;
    }
    if (dest != NULL && dest[r] > 0)
        ref_store(u->state, ref_slot(&p->state, dest[r]), p->state.dtype, at, elems);
    if (save != NULL && save[r] > 0)
        ref_store(u->state, ref_slot(&p->state, save[r]), p->state.dtype, at, elems);
}

static void request_run(struct update *u, uint32_t r)
{
    const struct sc_kda_update_params *p = u->p;
    const int32_t *dest = sc_host_ptr(p->dest), *save = sc_host_ptr(p->save);
    int64_t at = delta_at(&u->shape, u->h, 0);
    window_load(u, ((const int32_t *)sc_host_ptr(p->source))[r]);
    u->x.count = 0;
    if (p->tokens == 1) prepare(u, r);
    if (stream(u, r, at))
        finish(u, u->o[0], r);
    else
        walk(u, r, at);
    if (dest != NULL) window_store(u, dest[r]);
    if (save != NULL) window_store(u, save[r]);
}

/* Outputs of padded rows are zeros. */
static void clear_padding(const struct sc_kda_update_params *p)
{
    const int32_t *source = sc_host_ptr(p->source);
    for (uint32_t r = 0; r < p->requests; r++)
        for (uint32_t t = 0; source[r] < 0 && t < p->tokens; t++)
            ref_store_zero(p->y, p->options->dtype, ((int64_t)r * p->tokens + t) * p->y_stride,
                p->options->heads * p->options->dim);
}

sc_status SC_HOST_FN(sc_kda_update)(const void *params, sc_stream *stream)
{
    (void)stream;
    const struct sc_kda_update_params *p = params;
    const sc_kda_stage_options *o = p->options;
    const int32_t *source = sc_host_ptr(p->source);
    struct update u = {.p = p, .dim = o->dim, .width = o->conv_width,
        .raw = sc_host_ptr(p->scratch), .shape = {.kind = SC_K_KIND_KDA, .heads = o->heads,
        .v_heads = o->heads, .k_dim = o->dim, .v_dim = o->dim, .scale = o->scale}};
    u.z = u.raw + (size_t)GROUP * p->tokens * o->dim;
    u.state = u.z + (size_t)GROUP * p->tokens * o->dim;
    for (uint32_t r0 = 0; r0 < p->requests; r0 += GROUP) {
        uint32_t end = p->requests - r0 < GROUP ? p->requests : r0 + GROUP;
        u.first_row = r0 * p->tokens;
        u.rows = (end - r0) * p->tokens;
        for (u.h = 0; u.h < o->heads; u.h++) {
            waist(&u, u.raw, o->f_b, p->columns.f_a);
            if (p->z == 0) waist(&u, u.z, o->g_b, p->columns.g_a);
            for (uint32_t r = r0; r < end; r++)
                if (source[r] >= 0) request_run(&u, r);
        }
    }
    clear_padding(p);
    return SC_OK;
}

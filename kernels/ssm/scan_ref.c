/* SPDX-License-Identifier: Apache-2.0 */
/* The selective state space on the host, chunk by chunk (the SSD form).
 *
 * Within a chunk, with D(i,j) the decay from token j to token i and S the state before it:
 *
 *   y_i = D(i,start) (S C_i) + sum_{j<=i} (C_i . B_j) D(i,j) dt_j x_j      S <- D(end,start) S
 *                                                                + sum_j D(end,j) dt_j x_j B_j^T
 *
 *             B, C of a group              each head of the group
 *   | cb_ij = C_i . B_j |  once  -->  m_ij = cb_ij D(i,j)     y = D S C + m (dt x)     S
 *
 * The grid is that of absolute positions of each sequence, whatever is packed around it. Decays
 * are products of the tokens' own, never quotients: each is <= 1, and below 2^-100 it counts as 0.
 *
 * Bits. An element is a sum in ascending order over tokens at or before it. Rows "avx2" and
 * "avx512" fuse products and sums (delta/matmul_wide.h) and agree to the bit; the reference does
 * not fuse. Everything else is the same code.
 *
 * Cost: for each token and head 4 N P + 2 C P at chunk C, and C N for each group. */
#include "kernel_dispatch.h"
#include "ref_math.h"
#include "ssm/scan.h"

#ifdef __AVX2__
#include "delta/matmul_wide.h"
#endif

#define DECAY_MIN 7.8886090522101181e-31f /* 2^-100 */

struct scan {
    const sc_k_ssm_params *p;
    struct sc_scan x;
    uint32_t chunk, row, group;
    uint32_t head, count;           /* first head and how many */
    uint32_t np, vp;                /* N and P, rounded up to 16 */
};

/* ---- products ---- */

/* c (+)= a b, a(i, t) = a[i * a_row + t * a_col]. */
static void product(const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
    float *c, size_t c_row, uint32_t rows, uint32_t terms, uint32_t columns, bool add)
{
#ifdef __AVX2__
    mm_run(&(struct mm){.a = a, .b = b, .c = c, .a_row = a_row, .a_col = a_col, .b_row = b_row,
        .c_row = c_row, .terms = terms, .start = add ? MM_ADD : MM_ZERO}, rows, columns);
#else
    for (uint32_t i = 0; i < rows; i++) {
        float *restrict line = c + i * c_row;
        if (!add) memset(line, 0, columns * sizeof(float));
        for (uint32_t t = 0; t < terms; t++) {
            float by = a[i * a_row + t * a_col];
            for (uint32_t j = 0; j < columns; j++) line[j] += by * b[t * b_row + j];
        }
    }
#endif
}

/* c += a b for lower a, diagonal included. */
static void lower(const float *a, size_t a_row, const float *b, float *c, size_t row,
    uint32_t rows)
{
#ifdef __AVX2__
    mm_lower(a, a_row, b, row, c, row, rows, (uint32_t)row);
#else
    for (uint32_t i = 0; i < rows; i++)
        product(a + i * a_row, a_row, 1, b, row, c + i * row, row, 1, i + 1, (uint32_t)row, true);
#endif
}

/* ---- loading ---- */

/* Rows and columns are multiples of 8. */
static void transpose(const float *in, size_t in_row, uint32_t rows, uint32_t columns, float *out,
    size_t out_row)
{
#ifdef __AVX2__
    for (uint32_t i = 0; i < rows; i += 8)
        for (uint32_t k = 0; k < columns; k += 8)
            v16_transpose8(in + i * in_row + k, in_row, out + k * out_row + i, out_row);
#else
    for (uint32_t k = 0; k < columns; k++)
        for (uint32_t i = 0; i < rows; i++) out[k * out_row + i] = in[i * in_row + k];
#endif
}

static int64_t state_at(const struct scan *s, uint32_t which, uint32_t v)
{
    return ((int64_t)(s->head + which) * s->p->head_dim + v) * s->p->state_dim;
}

enum { LINES = 8 }; /* rows of a state that are transposed together */

static void state_load(const struct scan *s, uint32_t which)
{
    const sc_k_ssm_params *p = s->p;
    int32_t source = ((const int32_t *)sc_host_ptr(p->source))[s->row];
    struct ref_begin from = ref_begin(&p->state, &p->initial, source, s->row);
    float *state = s->x.state + (size_t)which * s->np * s->vp, lines[LINES * SC_K_DIM_MAX] = {0};
    for (uint32_t v = 0; v < s->vp; v += LINES) {
        for (uint32_t r = 0; r < LINES; r++)
            if (v + r < p->head_dim)
                ref_begin_load(lines + (size_t)r * s->np, &from, state_at(s, which, v + r),
                    p->state_dim);
            else
                memset(lines + (size_t)r * s->np, 0, s->np * sizeof(float));
        transpose(lines, s->np, LINES, s->np, state + v, s->vp);
    }
}

static void state_store(const struct scan *s, int32_t slot)
{
    const sc_k_ssm_params *p = s->p;
    for (uint32_t which = 0; which < s->count; which++) {
        const float *state = s->x.state + (size_t)which * s->np * s->vp;
        float lines[LINES * SC_K_DIM_MAX];
        for (uint32_t v = 0; v < p->head_dim; v += LINES) {
            transpose(state + v, s->vp, s->np, LINES, lines, s->np);
            for (uint32_t r = 0; r < LINES && v + r < p->head_dim; r++)
                ref_store(lines + (size_t)r * s->np, ref_slot(&p->state, slot), p->state.dtype,
                    state_at(s, which, v + r), p->state_dim);
        }
    }
}

/* B and C of tokens t0.., B once more transposed, and their products. Rows up to a multiple of 16
 * are zeros. */
static void load_group(const struct scan *s, int64_t t0, uint32_t n)
{
    const sc_k_ssm_params *p = s->p;
    uint64_t dense = (uint64_t)p->groups * p->state_dim;
    int64_t bs = sc_kernel_stride(p->b_stride, dense), cs = sc_kernel_stride(p->c_stride, dense);
    int64_t first = (int64_t)s->group * p->state_dim;
    uint32_t np = s->np, all = (n + 15) / 16 * 16;
    memset(s->x.b, 0, (size_t)all * np * sizeof(float));
    memset(s->x.c, 0, (size_t)all * np * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        ref_load(s->x.b + (size_t)i * np, p->b, p->dtype, (t0 + i) * bs + first, p->state_dim);
        ref_load(s->x.c + (size_t)i * np, p->c, p->dtype, (t0 + i) * cs + first, p->state_dim);
    }
    transpose(s->x.b, np, all, np, s->x.bt, s->chunk);
    for (uint32_t i = 0; i < n; i += 16)
        product(s->x.c + (size_t)i * np, np, 1, s->x.bt, s->chunk,
            s->x.cb + (size_t)i * s->chunk, s->chunk, n - i < 16 ? n - i : 16, np, i + 16, false);
}

/* dt x of one head; since[i] = D(i, start), until[j] = D(end, j), m_ij = cb_ij D(i, j). */
static void load_head(const struct scan *s, uint32_t head, int64_t t0, uint32_t n)
{
    const sc_k_ssm_params *p = s->p;
    int64_t xs = sc_kernel_stride(p->x_stride, (uint64_t)p->heads * p->head_dim);
    int64_t ds = sc_kernel_stride(p->dt_stride, p->heads);
    const float *bias = sc_host_ptr(p->dt_bias);
    float rate = ref_exp(((const float *)sc_host_ptr(p->a_log))[head]), total = 1.0f;
    float *restrict until = s->x.until;
    for (uint32_t i = 0; i < n; i++) {
        float *restrict x = s->x.x + (size_t)i * s->vp, *restrict m = s->x.m + (size_t)i * s->chunk;
        const float *cb = s->x.cb + (size_t)i * s->chunk;
        float raw = 0.0f;
        ref_load(&raw, p->dt, p->dtype, (t0 + i) * ds + head, 1);
        ref_load(x, p->x, p->dtype, (t0 + i) * xs + (int64_t)head * p->head_dim, p->head_dim);
        float dt = ref_softplus(raw + (bias != NULL ? bias[head] : 0.0f));
        float alpha = ref_exp(-rate * dt);
        for (uint32_t v = 0; v < p->head_dim; v++) x[v] = dt * x[v];
        for (uint32_t v = p->head_dim; v < s->vp; v++) x[v] = 0.0f;
        for (uint32_t j = 0; j < i; j++) {
            float aged = until[j] * alpha;
            until[j] = aged < DECAY_MIN ? 0.0f : aged;
        }
        until[i] = 1.0f;
        for (uint32_t j = 0; j <= i; j++) m[j] = cb[j] * until[j];
        total = total * alpha;
        total = total < DECAY_MIN ? 0.0f : total;
        s->x.since[i] = total;
    }
}

/* ---- one chunk ---- */

static void store_outputs(const struct scan *s, uint32_t head, int64_t t0, uint32_t n)
{
    const sc_k_ssm_params *p = s->p;
    uint64_t dense = (uint64_t)p->heads * p->head_dim;
    int64_t xs = sc_kernel_stride(p->x_stride, dense), zs = sc_kernel_stride(p->z_stride, dense);
    int64_t ys = sc_kernel_stride(p->y_stride, dense), at = (int64_t)head * p->head_dim;
    float x[SC_K_DIM_MAX];
    for (uint32_t i = 0; i < n; i++) {
        float *restrict y = s->x.y + (size_t)i * s->vp;
        if (p->d != 0) {
            float skip = ((const float *)sc_host_ptr(p->d))[head];
            ref_load(x, p->x, p->dtype, (t0 + i) * xs + at, p->head_dim);
            for (uint32_t v = 0; v < p->head_dim; v++) y[v] += skip * x[v];
        }
        if (p->z != 0) {
            ref_load(x, p->z, p->dtype, (t0 + i) * zs + at, p->head_dim);
            for (uint32_t v = 0; v < p->head_dim; v++) y[v] = y[v] * ref_silu(x[v]);
        }
        ref_store(y, p->y, p->dtype, (t0 + i) * ys + at, p->head_dim);
    }
}

static void scale_rows(float *x, size_t row, const float *by, uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++)
        for (size_t v = 0; v < row; v++) x[i * row + v] = x[i * row + v] * by[i];
}

static void head_chunk(const struct scan *s, uint32_t which, int64_t t0, uint32_t n)
{
    uint32_t np = s->np, vp = s->vp, head = s->head + which;
    float *restrict state = s->x.state + (size_t)which * np * vp;
    load_head(s, head, t0, n);
    product(s->x.c, np, 1, state, vp, s->x.y, vp, n, np, vp, false);
    scale_rows(s->x.y, vp, s->x.since, n);
    lower(s->x.m, s->chunk, s->x.x, s->x.y, vp, n);
    store_outputs(s, head, t0, n);
    scale_rows(s->x.x, vp, s->x.until, n);
    float decay = s->x.since[n - 1];
    for (size_t i = 0; i < (size_t)np * vp; i++) state[i] = state[i] * decay;
    product(s->x.b, 1, np, s->x.x, vp, state, vp, np, n, vp, true);
    ref_round(state, s->p->state.dtype, np * vp);
}

/* ---- rows ---- */

static void saves(const struct scan *s, int64_t pos)
{
    const sc_k_saves *all = &s->p->saves;
    const int32_t *row = sc_host_ptr(all->row), *save_pos = sc_host_ptr(all->pos);
    const int32_t *slot = sc_host_ptr(all->slot);
    for (uint32_t i = 0; i < all->count; i++)
        if (row[i] == (int32_t)s->row && save_pos[i] == pos) state_store(s, slot[i]);
}

/* Heads head .. head + count of one row. */
static void heads_run(const struct scan *s)
{
    const sc_k_ssm_params *p = s->p;
    const int32_t *row_start = sc_host_ptr(p->row_start), *position = sc_host_ptr(p->position);
    int32_t dest = ((const int32_t *)sc_host_ptr(p->dest))[s->row];
    int64_t t = row_start[s->row], end = t + sc_kernel_row_tokens(row_start, s->row);
    int64_t pos = position != NULL ? position[s->row] : 0;
    for (uint32_t i = 0; i < s->count; i++) state_load(s, i);
    while (t < end) {
        int64_t n = s->chunk - pos % s->chunk; /* up to the next grid point */
        if (n > end - t) n = end - t;
        load_group(s, t, (uint32_t)n);
        for (uint32_t i = 0; i < s->count; i++) head_chunk(s, i, t, (uint32_t)n);
        t += n;
        pos += n;
        saves(s, pos);
    }
    if (dest > 0) state_store(s, dest);
}

sc_status SC_HOST_FN(sc_k_ssm_chunk)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_ssm_chunk_params *c = params;
    const sc_k_ssm_params *p = &c->tokens;
    const int32_t *row_start = sc_host_ptr(p->row_start), *source = sc_host_ptr(p->source);
    const int32_t *dest = sc_host_ptr(p->dest);
    uint32_t dense = p->heads * p->head_dim, ratio = p->heads / p->groups;
    int64_t y_stride = sc_kernel_stride(p->y_stride, dense);
    struct scan s = {.p = p, .chunk = c->chunk, .np = (p->state_dim + 15) / 16 * 16,
        .vp = (p->head_dim + 15) / 16 * 16};
    (void)sc_scan_scratch(c, &s.x);
    for (uint32_t r = 0; r < p->row_count; r++) {
        uint32_t count = sc_kernel_row_tokens(row_start, r);
        for (uint32_t t = 0; source[r] < 0 && t < count; t++)
            ref_store_zero(p->y, p->dtype, ((int64_t)row_start[r] + t) * y_stride, dense);
        if (source[r] < 0) continue;
        if (count == 0 && source[r] == dest[r] && p->initial.base == 0) continue;
        s.row = r;
        for (s.head = 0; s.head < p->heads; s.head += s.count) {
            uint32_t left = ratio - s.head % ratio;
            s.group = s.head / ratio;
            s.count = left < SC_SCAN_SHARE ? left : SC_SCAN_SHARE;
            heads_run(&s);
        }
    }
    return SC_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The chunk form with AVX2 or AVX-512: the same algebra as chunk_ref.c (read its drawing first),
 * arranged as products of matrices with fused multiply-adds, so its bits are not the reference's.
 * The two widths agree to the bit: see v16.h and matmul_wide.h.
 *
 * S lies transposed, [K][V], so that vectors run along V. For each q/k head and chunk q and k are
 * prepared once and serve all v heads of the group (SHARE at a time, their states side by side).
 *
 * GDN. Decays are one number a token, so they stay outside of the products:
 *
 *   a_ij = beta_i (k_i . k_j) D(i,j)     k.k and q.k once for all v heads of the group
 *   read = D(i,start) (k_i S)            u = (I + a)^-1 beta (v - read)
 *   o    = D(i,start) (q_i S) + p u      S = D(end,start) S + sum_j k_j (D(end,j) u_j)^T
 *
 * KDA. Decays are one number for each of K. Pairs of one 16-block are made one by one, ageing k_j
 * by a token at a time; pairs of different blocks are products around the block's start, where both
 * factors have decayed and none grown:
 *
 *               j in block 0      block 1        block 2
 *   block 0   | one by one |
 *   block 1   | lk . yT    | one by one |              lk_i = k_i D(i, start of i's block)
 *   block 2   | lk . yT    | lk . yT    | one by one | yT_j = k_j D(end of the block before i's, j)
 *
 * yT ages by a whole block after each one and ends as k_j D(end,j), which the state needs.
 *
 * Bits. As in chunk_ref.c: an element is a sum in ascending order over tokens at or before it; no
 * term of a later token is added, not even times zero. Padding of K and V adds zeros at the end.
 *
 * Cost: as chunk_ref.c, that is 6KV + 128(K + V) a token and v head at C = 64 where a full square
 * would be 128(3K + 2V). Scratch: that of SHARE heads, all of it in L2. */
#include "delta/chunk_wide.h"
#include "delta/matmul_wide.h"
#include "kernel_dispatch.h"

enum { FETCHES = 4 };
#define DECAY_MIN 7.8886090522101181e-31f /* 2^-100: as 0, so that no denormals arise */

/* A chunk of a group of heads. */
struct work {
    int64_t first; /* token */
    uint32_t count, h, hv;
};

struct group {
    const sc_k_delta_params *p;
    struct sc_delta_wide x;
    uint32_t row, h, hv, count;     /* q/k head; first v head and how many */
    uint32_t k_dim, v_dim, kp, vp;  /* as they are, and rounded up to 16 */
    uint32_t k_row, v_row;          /* floats between rows of K or V numbers */
    struct work next;               /* what comes after this chunk; count 0: not known */
};

static void state_load(const struct group *w, uint32_t n)
{
    float *state = w->x.state + (size_t)n * w->kp * w->v_row;
    struct ref_begin from = delta_begin(w->p, w->row);
    if (from.base == 0 || w->k_dim != w->kp || w->v_dim != w->vp)
        memset(state, 0, (size_t)w->kp * w->v_row * sizeof(float));
    for (uint32_t v = 0; from.base != 0 && v < w->v_dim; v += 8) {
        float *lines = w->x.lines;
        uint32_t rows = w->v_dim - v < 8 ? w->v_dim - v : 8;
        if (rows < 8 || w->k_dim != w->kp) memset(lines, 0, 8 * (size_t)w->k_row * sizeof(float));
        for (uint32_t r = 0; r < rows; r++)
            ref_begin_load(lines + (size_t)r * w->k_row, &from,
                delta_at(&w->p->shape, w->hv + n, v + r), w->k_dim);
        for (uint32_t k = 0; k < w->kp; k += 8)
            v16_transpose8(lines + k, w->k_row, state + (size_t)k * w->v_row + v, w->v_row);
    }
}

static void state_store(const struct group *w, uint32_t n, int32_t slot)
{
    const float *state = w->x.state + (size_t)n * w->kp * w->v_row;
    for (uint32_t v = 0; v < w->v_dim; v += 8) {
        float *lines = w->x.lines;
        uint32_t rows = w->v_dim - v < 8 ? w->v_dim - v : 8;
        for (uint32_t k = 0; k < w->kp; k += 8)
            v16_transpose8(state + (size_t)k * w->v_row + v, w->v_row, lines + k, w->k_row);
        for (uint32_t r = 0; r < rows; r++)
            ref_store(lines + (size_t)r * w->k_row, ref_slot(&w->p->state, slot), w->p->state.dtype,
                delta_at(&w->p->shape, w->hv + n, v + r), w->k_dim);
    }
}

/* q and k of tokens t0.., and k transposed; rows up to a multiple of 16 are zeros. */
static void load_qk(const struct group *w, int64_t t0, uint32_t n)
{
    const sc_k_delta_params *p = w->p;
    const sc_k_delta_shape *s = &p->shape;
    uint64_t dense = (uint64_t)s->heads * s->k_dim;
    int64_t qs = sc_kernel_stride(p->q_stride, dense), ks = sc_kernel_stride(p->k_stride, dense);
    uint32_t all = (n + 15) / 16 * 16;
    if (w->k_dim != w->kp) {
        memset(w->x.q, 0, (size_t)all * w->k_row * sizeof(float));
        memset(w->x.k, 0, (size_t)all * w->k_row * sizeof(float));
    }
    for (uint32_t i = 0; i < n; i++)
        delta_load_qk(w->x.q + (size_t)i * w->k_row, w->x.k + (size_t)i * w->k_row, s, p->q,
            (t0 + i) * qs + (int64_t)w->h * w->k_dim, p->k,
            (t0 + i) * ks + (int64_t)w->h * w->k_dim, p->dtype);
    memset(w->x.q + (size_t)n * w->k_row, 0, (size_t)(all - n) * w->k_row * sizeof(float));
    memset(w->x.k + (size_t)n * w->k_row, 0, (size_t)(all - n) * w->k_row * sizeof(float));
}

static void transpose_k(const struct group *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8)
        for (uint32_t k = 0; k < w->kp; k += 8)
            v16_transpose8(w->x.k + (size_t)i * w->k_row + k, w->k_row,
                w->x.kt + (size_t)k * SC_WIDE_C_ROW + i, SC_WIDE_C_ROW);
}

/* ---- what is fetched while something else is computed ---- */

/* After tokens t .. t + n of the row: its next chunk, else the first one of the next heads. */
static struct work next_work(const struct group *w, int64_t t, int64_t n)
{
    const sc_k_delta_params *p = w->p;
    const int32_t *row_start = sc_host_ptr(p->row_start);
    const int32_t *position = sc_host_ptr(p->position);
    int64_t first = t + n, end = row_start[w->row + 1];
    uint32_t hv = w->hv;
    if (first == end) {
        first = row_start[w->row];
        hv += w->count;
    }
    int64_t pos = (position != NULL ? position[w->row] : 0) + first - row_start[w->row];
    int64_t count = p->chunk - pos % p->chunk;
    if (count > end - first) count = end - first;
    if (hv == p->shape.v_heads) count = 0;
    return (struct work){first, (uint32_t)count, hv / (p->shape.v_heads / p->shape.heads), hv};
}

/* `columns` elements of `count` tokens from `first` on, from element `at` of each. */
static struct mm_fetch fetch_rows(const struct group *w, sc_devptr base, int64_t pitch, int64_t at,
    uint32_t columns, int64_t first, uint32_t count)
{
    uint32_t elem_bytes = sc_kernel_elem_bytes(w->p->dtype);
    return (struct mm_fetch){
        .from = (const uint8_t *)sc_host_ptr(base) + (first * pitch + at) * elem_bytes,
        .row_bytes = pitch * elem_bytes, .rows = count, .columns = columns,
        .elem_bytes = elem_bytes};
}

/* v of the head after head `which`; after the last one, of what comes next. */
static struct mm_fetch fetch_v(const struct group *w, uint32_t which, int64_t t0, uint32_t n)
{
    const sc_k_delta_params *p = w->p;
    int64_t pitch = sc_kernel_stride(p->v_stride, (uint64_t)p->shape.v_heads * w->v_dim);
    if (which + 1 < w->count)
        return fetch_rows(w, p->v, pitch, (int64_t)(w->hv + which + 1) * w->v_dim, w->v_dim, t0, n);
    return fetch_rows(w, p->v, pitch, (int64_t)w->next.hv * w->v_dim, w->v_dim, w->next.first,
        w->next.count);
}

/* What head `which` is about to write. */
static struct mm_fetch fetch_o(const struct group *w, uint32_t which, int64_t t0, uint32_t n)
{
    const sc_k_delta_params *p = w->p;
    int64_t pitch = sc_kernel_stride(p->o_stride, (uint64_t)p->shape.v_heads * w->v_dim);
    struct mm_fetch rows = fetch_rows(w, p->o, pitch, (int64_t)(w->hv + which) * w->v_dim,
        w->v_dim, t0, n);
    rows.write = true;
    return rows;
}

/* v_dim rows of a state that begins at `base` (0: there is none). */
static struct mm_fetch fetch_state(const struct group *w, sc_devptr base, sc_dtype dtype,
    uint32_t hv, bool write)
{
    uint32_t elem_bytes = sc_kernel_elem_bytes(dtype);
    if (base == 0) return (struct mm_fetch){0};
    return (struct mm_fetch){
        .from = (const uint8_t *)sc_host_ptr(base) + delta_at(&w->p->shape, hv, 0) * elem_bytes,
        .row_bytes = (int64_t)w->k_dim * elem_bytes, .rows = w->v_dim, .columns = w->k_dim,
        .elem_bytes = elem_bytes, .write = write};
}

/* While head `which` writes its state. With the last of the group: q and k of the next chunk. In
 * the row's last chunk: where the state goes, and the beginning of one of the next heads, as far
 * as there are as many of them. Returns how many, at most FETCHES. */
static uint32_t fetch_next(const struct group *w, uint32_t which, struct mm_fetch *fetch)
{
    const sc_k_delta_params *p = w->p;
    const struct work *next = &w->next;
    uint64_t dense = (uint64_t)p->shape.heads * w->k_dim;
    int64_t at = (int64_t)next->h * w->k_dim;
    uint32_t n = 0, hv = next->hv + which;
    if (which + 1 == w->count) {
        fetch[n++] = fetch_rows(w, p->q, sc_kernel_stride(p->q_stride, dense), at, w->k_dim,
            next->first, next->count);
        fetch[n++] = fetch_rows(w, p->k, sc_kernel_stride(p->k_stride, dense), at, w->k_dim,
            next->first, next->count);
    }
    if (next->hv == w->hv) return n;
    struct ref_begin from = delta_begin(p, w->row);
    int32_t dest = ((const int32_t *)sc_host_ptr(p->dest))[w->row];
    fetch[n++] = fetch_state(w, dest > 0 ? ref_slot(&p->state, dest) : 0, p->state.dtype,
        w->hv + which, true);
    if (next->count > 0 && hv < p->shape.v_heads)
        fetch[n++] = fetch_state(w, from.base, from.dtype, hv, false);
    return n;
}

/* ---- a head's chunk ---- */

static void load_beta(const struct group *w, uint32_t hv, int64_t t0, uint32_t n)
{
    const float *beta = sc_host_ptr(w->p->beta);
    for (uint32_t i = 0; i < n; i++) w->x.beta[i] = beta[(t0 + i) * w->p->shape.v_heads + hv];
}

/* k.k and q.k of all pairs that any v head of the group needs. */
static void gram(const struct group *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        uint32_t rows = n - i < 16 ? n - i : 16;
        struct mm m = {.a = w->x.k + (size_t)i * w->k_row, .a_row = w->k_row, .a_col = 1,
            .b = w->x.kt, .b_row = SC_WIDE_C_ROW, .c = w->x.kk + (size_t)i * SC_WIDE_C_ROW,
            .c_row = SC_WIDE_C_ROW, .terms = w->kp, .start = MM_ZERO};
        mm_run(&m, rows, i + 16);
        m.a = w->x.q + (size_t)i * w->k_row;
        m.c = w->x.qk + (size_t)i * SC_WIDE_C_ROW;
        mm_run(&m, rows, i + 16);
    }
}

/* a, p and the decays of one v head: since[i] = D(i, start), until[j] = D(end, j). */
static void pairs_gdn(const struct group *w, uint32_t hv, int64_t t0, uint32_t n)
{
    const float *g = (const float *)sc_host_ptr(w->p->g);
    v16 least = v16_set(DECAY_MIN);
    float total = 1.0f, *until = w->x.until;
    memset(until, 0, SC_WIDE_C * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        float alpha = ref_exp(g[(t0 + i) * w->p->shape.v_heads + hv]);
        v16 age = v16_set(alpha), beta = v16_set(w->x.beta[i]);
        for (uint32_t j = 0; j < i; j += 16)
            v16_store(until + j, v16_flush(v16_mul(v16_load(until + j), age), least));
        until[i] = 1.0f;
        for (uint32_t j = 0; j <= i; j += 16) {
            size_t at = (size_t)i * SC_WIDE_C_ROW + j;
            v16 d = v16_load(until + j);
            v16_store(w->x.a + at, v16_mul(beta, v16_mul(v16_load(w->x.kk + at), d)));
            v16_store(w->x.p + at, v16_mul(v16_load(w->x.qk + at), d));
        }
        total = total * alpha;
        total = total < DECAY_MIN ? 0.0f : total;
        w->x.since[i] = total;
    }
}

/* x_i <- x_i * by_i */
SC_REF_INLINE void scale_rows(float *x, size_t x_row, const float *by, uint32_t rows,
    uint32_t width)
{
    for (uint32_t i = 0; i < rows; i++) {
        v16 d = v16_set(by[i]);
        for (uint32_t v = 0; v < width; v += 16) {
            float *at = x + i * x_row + v;
            v16_store(at, v16_mul(v16_load(at), d));
        }
    }
}

/* u <- beta (v - read), read in x.o and, unless `since` is NULL, to be decayed first. A v_dim that
 * is no multiple of 16 comes through a line, and what pads it is 0. */
SC_REF_INLINE void write_strength(const struct group *w, uint32_t hv, int64_t t0,
    const float *since, uint32_t n)
{
    const sc_k_delta_params *p = w->p;
    int64_t stride = sc_kernel_stride(p->v_stride, (uint64_t)p->shape.v_heads * w->v_dim);
    for (uint32_t i = 0; i < n; i++) {
        v16 beta = v16_set(w->x.beta[i]), minus = v16_set(-1.0f);
        v16 decay = since != NULL ? v16_set(since[i]) : v16_zero();
        int64_t from = (t0 + i) * stride + (int64_t)hv * w->v_dim;
        float line[SC_K_DIM_MAX];
        if (w->v_dim != w->vp) {
            memset(line, 0, w->vp * sizeof(float));
            ref_load(line, p->v, p->dtype, from, w->v_dim);
        }
        for (uint32_t v = 0; v < w->vp; v += 16) {
            size_t at = (size_t)i * w->v_row + v;
            v16 read = v16_load(w->x.o + at);
            v16 given = w->v_dim != w->vp ? v16_load(line + v)
                                          : v16_take(sc_host_ptr(p->v), p->dtype, from + v);
            if (since != NULL) read = v16_mul(read, decay);
            v16_store(w->x.u + at, v16_mul(beta, v16_add(given, v16_mul(read, minus))));
        }
    }
}

static void store_o(const struct group *w, uint32_t hv, int64_t t0, uint32_t n)
{
    const sc_k_delta_params *p = w->p;
    int64_t stride = sc_kernel_stride(p->o_stride, (uint64_t)p->shape.v_heads * w->v_dim);
    for (uint32_t i = 0; i < n; i++)
        ref_store(w->x.o + (size_t)i * w->v_row, p->o, p->dtype,
            (t0 + i) * stride + (int64_t)hv * w->v_dim, w->v_dim);
}

static void head_gdn(const struct group *w, uint32_t which, int64_t t0, uint32_t n)
{
    uint32_t kp = w->kp, vp = w->vp, k_row = w->k_row, v_row = w->v_row, hv = w->hv + which;
    float *state = w->x.state + (size_t)which * kp * v_row;
    struct mm_fetch next[FETCHES], v = fetch_v(w, which, t0, n), o = fetch_o(w, which, t0, n);
    load_beta(w, hv, t0, n);
    pairs_gdn(w, hv, t0, n);
    struct mm m = {.a = w->x.k, .a_row = k_row, .a_col = 1, .b = state, .b_row = v_row,
        .c = w->x.o, .c_row = v_row, .terms = kp, .start = MM_ZERO};
    mm_run_beside(&m, &(struct mm_beside){.fetch = &v, .fetch_count = 1}, n, vp);
    write_strength(w, hv, t0, w->x.since, n);
    mm_solve(w->x.a, SC_WIDE_C_ROW, w->x.u, v_row, n, vp);
    m.a = w->x.q;
    mm_run_beside(&m, &(struct mm_beside){.out = w->x.since, .fetch = &o, .fetch_count = 1}, n,
        vp);
    mm_lower(w->x.p, SC_WIDE_C_ROW, w->x.u, v_row, w->x.o, v_row, n, vp);
    store_o(w, hv, t0, n);
    scale_rows(w->x.u, v_row, w->x.until, n, vp);
    mm_run_beside(&(struct mm){.a = w->x.k, .a_row = 1, .a_col = k_row, .b = w->x.u,
        .b_row = v_row, .c = state, .c_row = v_row, .terms = n, .start = MM_ADD},
        &(struct mm_beside){.decay = &w->x.since[n - 1],
            .narrow = w->p->state.dtype == SC_DTYPE_BF16, .fetch = next,
            .fetch_count = fetch_next(w, which, next)}, kp, vp);
}

/* ---- KDA ---- */

/* Tokens i0.. of a block: alpha; lk, lq since the block's start; gk, gq since the chunk's start.
 * `since` is the decay from the chunk's start to the block's. Leaves the block's own in `block`. */
static void block_decays(const struct group *w, uint32_t hv, int64_t t0, uint32_t i0, uint32_t m)
{
    uint32_t kp = w->kp;
    v16 least = v16_set(DECAY_MIN);
    const float *g = (const float *)sc_host_ptr(w->p->g);
    for (uint32_t i = i0; i < i0 + m; i++) {
        float *alpha = w->x.alpha + (size_t)(i - i0) * w->k_row;
        memset(alpha, 0, kp * sizeof(float));
        delta_alpha(alpha, &w->p->shape, g + ((t0 + i) * w->p->shape.v_heads + hv) * w->k_dim);
        for (uint32_t k = 0; k < kp; k += 16) {
            size_t at = (size_t)i * w->k_row + k, in = (size_t)(i - i0) * w->k_row + k;
            v16 d = v16_load(alpha + k), from = v16_load(w->x.since + k);
            if (i > i0) d = v16_flush(v16_mul(v16_load(w->x.block + k), d), least);
            v16_store(w->x.block + k, d);
            v16 lk = v16_mul(v16_load(w->x.k + at), d), lq = v16_mul(v16_load(w->x.q + at), d);
            v16_store(w->x.lk + in, lk);
            v16_store(w->x.lq + in, lq);
            v16_store(w->x.gk + at, v16_flush(v16_mul(lk, from), least));
            v16_store(w->x.gq + at, v16_flush(v16_mul(lq, from), least));
        }
    }
}

/* Pairs within the block: y_j, rows of the block, age token by token. */
SC_REF_INLINE void block_pairs(const struct group *w, uint32_t i0, uint32_t m, uint32_t nv)
{
    uint32_t k_row = sc_wide_row(nv * 16);
    v16 least = v16_set(DECAY_MIN);
    for (uint32_t i = 0; i < m; i++) {
        const float *key = w->x.k + (size_t)(i0 + i) * k_row;
        const float *q = w->x.q + (size_t)(i0 + i) * k_row;
        const float *alpha = w->x.alpha + (size_t)i * k_row;
        float *a = w->x.a + (size_t)(i0 + i) * SC_WIDE_C_ROW + i0;
        float *p = w->x.p + (size_t)(i0 + i) * SC_WIDE_C_ROW + i0;
        for (uint32_t j = 0; j < i; j++) {
            float *y = w->x.y + (size_t)j * k_row;
            v16 kk = v16_zero(), qk = v16_zero();
            for (uint32_t l = 0; l < nv; l++) {
                v16 aged = v16_mul(v16_load(y + 16 * l), v16_load(alpha + 16 * l));
                aged = v16_flush(aged, least);
                v16_store(y + 16 * l, aged);
                kk = v16_fma(v16_load(key + 16 * l), aged, kk);
                qk = v16_fma(v16_load(q + 16 * l), aged, qk);
            }
            a[j] = w->x.beta[i0 + i] * v16_sum(kk);
            p[j] = v16_sum(qk);
        }
        v16 own = v16_zero();
        for (uint32_t l = 0; l < nv; l++) {
            v16 y = v16_load(key + 16 * l);
            v16_store(w->x.y + (size_t)i * k_row + 16 * l, y);
            own = v16_fma(v16_load(q + 16 * l), y, own);
        }
        p[i] = v16_sum(own);
    }
}

/* Older tokens age by the block; the block's own, already aged, join them. */
static void block_join(const struct group *w, uint32_t i0, uint32_t m)
{
    uint32_t kp = w->kp;
    v16 least = v16_set(DECAY_MIN);
    for (uint32_t k = 0; k < kp; k++) {
        v16 d = v16_set(w->x.block[k]);
        for (uint32_t j = 0; j < i0; j += 16) {
            float *at = w->x.kt + (size_t)k * SC_WIDE_C_ROW + j;
            v16_store(at, v16_flush(v16_mul(v16_load(at), d), least));
        }
    }
    memset(w->x.y + (size_t)m * w->k_row, 0, (size_t)(16 - m) * w->k_row * sizeof(float));
    for (uint32_t j = 0; j < 16; j += 8)
        for (uint32_t k = 0; k < kp; k += 8)
            v16_transpose8(w->x.y + (size_t)j * w->k_row + k, w->k_row,
                w->x.kt + (size_t)k * SC_WIDE_C_ROW + i0 + j, SC_WIDE_C_ROW);
    for (uint32_t k = 0; k < kp; k += 16)
        v16_store(w->x.since + k, v16_flush(v16_mul(v16_load(w->x.since + k),
            v16_load(w->x.block + k)), least));
}

static void pairs_kda(const struct group *w, uint32_t hv, int64_t t0, uint32_t n)
{
    uint32_t kp = w->kp;
    for (uint32_t k = 0; k < kp; k++) w->x.since[k] = 1.0f;
    for (uint32_t i0 = 0; i0 < n; i0 += 16) {
        uint32_t m = n - i0 < 16 ? n - i0 : 16;
        block_decays(w, hv, t0, i0, m);
        if (i0 > 0) {
            struct mm pair = {.a = w->x.lk, .a_row = w->k_row, .a_col = 1, .b = w->x.kt,
                .b_row = SC_WIDE_C_ROW, .c = w->x.a + (size_t)i0 * SC_WIDE_C_ROW,
                .c_row = SC_WIDE_C_ROW, .terms = kp, .start = MM_ZERO};
            mm_run_beside(&pair, &(struct mm_beside){.out = w->x.beta + i0}, m, i0);
            pair.a = w->x.lq;
            pair.c = w->x.p + (size_t)i0 * SC_WIDE_C_ROW;
            mm_run(&pair, m, i0);
        }
        if (kp == 128)
            block_pairs(w, i0, m, 8);
        else
            block_pairs(w, i0, m, kp / 16);
        block_join(w, i0, m);
    }
}

static void head_kda(const struct group *w, uint32_t which, int64_t t0, uint32_t n)
{
    uint32_t kp = w->kp, vp = w->vp, v_row = w->v_row, hv = w->hv + which;
    float *state = w->x.state + (size_t)which * kp * v_row;
    struct mm_fetch next[FETCHES], v = fetch_v(w, which, t0, n), o = fetch_o(w, which, t0, n);
    load_beta(w, hv, t0, n);
    pairs_kda(w, hv, t0, n);
    struct mm m = {.a = w->x.gk, .a_row = w->k_row, .a_col = 1, .b = state, .b_row = v_row,
        .c = w->x.o, .c_row = v_row, .terms = kp, .start = MM_ZERO};
    mm_run_beside(&m, &(struct mm_beside){.fetch = &v, .fetch_count = 1}, n, vp);
    write_strength(w, hv, t0, NULL, n);
    mm_solve(w->x.a, SC_WIDE_C_ROW, w->x.u, v_row, n, vp);
    m.a = w->x.gq;
    mm_run_beside(&m, &(struct mm_beside){.fetch = &o, .fetch_count = 1}, n, vp);
    mm_lower(w->x.p, SC_WIDE_C_ROW, w->x.u, v_row, w->x.o, v_row, n, vp);
    store_o(w, hv, t0, n);
    mm_run_beside(&(struct mm){.a = w->x.kt, .a_row = SC_WIDE_C_ROW, .a_col = 1, .b = w->x.u,
        .b_row = v_row, .c = state, .c_row = v_row, .terms = n, .start = MM_ADD},
        &(struct mm_beside){.decay = w->x.since, .decay_step = 1,
            .narrow = w->p->state.dtype == SC_DTYPE_BF16, .fetch = next,
            .fetch_count = fetch_next(w, which, next)}, kp, vp);
}

/* ---- rows ---- */

static void saves(const struct group *w, int64_t pos)
{
    const sc_k_saves *s = &w->p->saves;
    const int32_t *row = sc_host_ptr(s->row), *save_pos = sc_host_ptr(s->pos);
    const int32_t *slot = sc_host_ptr(s->slot);
    for (uint32_t i = 0; i < s->count; i++)
        if (row[i] == (int32_t)w->row && save_pos[i] == pos)
            for (uint32_t n = 0; n < w->count; n++) state_store(w, n, slot[i]);
}

static void group_run(struct group *w)
{
    const sc_k_delta_params *p = w->p;
    const int32_t *row_start = sc_host_ptr(p->row_start);
    const int32_t *position = sc_host_ptr(p->position);
    int32_t dest = ((const int32_t *)sc_host_ptr(p->dest))[w->row];
    int64_t t = row_start[w->row], end = row_start[w->row + 1];
    int64_t pos = position != NULL ? position[w->row] : 0;
    bool gdn = p->shape.kind == SC_K_KIND_GDN;
    for (uint32_t i = 0; i < w->count; i++) state_load(w, i);
    while (t < end) {
        int64_t n = p->chunk - pos % p->chunk; /* up to the next grid point */
        if (n > end - t) n = end - t;
        w->next = next_work(w, t, n);
        load_qk(w, t, (uint32_t)n);
        if (gdn) {
            transpose_k(w, (uint32_t)n);
            gram(w, (uint32_t)n);
        }
        for (uint32_t i = 0; i < w->count; i++)
            if (gdn)
                head_gdn(w, i, t, (uint32_t)n);
            else
                head_kda(w, i, t, (uint32_t)n);
        t += n;
        pos += n;
        saves(w, pos);
    }
    for (uint32_t i = 0; dest > 0 && i < w->count; i++) state_store(w, i, dest);
}

sc_status SC_HOST_FN(sc_k_delta_chunk)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_delta_params *p = params;
    const sc_k_delta_shape *s = &p->shape;
    struct group w = {.p = p, .k_dim = s->k_dim, .v_dim = s->v_dim,
        .kp = (s->k_dim + 15) / 16 * 16, .vp = (s->v_dim + 15) / 16 * 16,
        .k_row = sc_wide_row(s->k_dim), .v_row = sc_wide_row(s->v_dim)};
    uint32_t ratio = s->v_heads / s->heads;
    (void)sc_delta_wide_scratch(p, &w.x);
    for (uint32_t r = 0; r < p->row_count; r++) {
        if (delta_row_idle(p, r)) continue;
        w.row = r;
        for (w.hv = 0; w.hv < s->v_heads; w.hv += w.count) {
            uint32_t left = ratio - w.hv % ratio;
            w.h = w.hv / ratio;
            w.count = left < SC_WIDE_SHARE ? left : SC_WIDE_SHARE;
            group_run(&w);
        }
    }
    return SC_OK;
}

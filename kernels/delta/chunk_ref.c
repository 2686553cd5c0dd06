/* SPDX-License-Identifier: Apache-2.0 */
/* The delta rule chunk by chunk on the host: GDN and KDA prefill.
 *
 * Chunks end where the absolute position is a multiple of C, so a cut at such a place changes
 * nothing; the first and last chunk of a call may be shorter:
 *
 *   position   40        64                 128               192   203
 *   row         |--24 tok-|------ C = 64 -----|------ C -------|-11-|
 *                         ^ save              ^ save           ^ save (any of them)
 *
 * In a chunk, with S the state before it and D(i,j) the decay of tokens j+1..i (for each of K):
 *
 *   a_ij = beta_i sum_k k_i D(i,j) k_j            j < i
 *   p_ij =        sum_k q_i D(i,j) k_j            j <= i
 *   u    = (I + a)^-1  beta (v - S (k D(i,start)))      by forward substitution, row by row
 *   o_i  = S (q_i D(i,start)) + sum_{j<=i} p_ij u_j
 *   S    = S D(last,start) + sum_j u_j (k_j D(last,j))^T
 *
 * That is the WY form with the inverse applied instead of built: w and u of the usual split are
 * never made. D is a running product of alpha = exp(g) <= 1, never exp of a difference of sums: no
 * exponent is positive whatever the gate, no cancellation in long sums, and g = -inf works. What
 * has decayed below 2^-100 is taken as 0, which keeps denormals (slow) out of the loops.
 *
 * Bits. Each output element is a sum in source order whose terms belong to tokens at or before it,
 * and to one head; tiles of the matrix product only choose which elements are worked on together.
 * 16-bit states: S is rounded at each chunk end and at the row's end; the rounded S goes on.
 *
 * Bytes moved: each state once in and once out, plus the saves. Cost for a chunk and head: 3 C K V
 * + C^2 (K + V) multiply-adds. Scratch: one head's (delta_scratch.h), so inner loops run in
 * cache. */
#include "delta/delta_ref.h"
#include "delta/delta_scratch.h"
#include "kernel_dispatch.h"

#define DECAY_MIN 7.8886090522101181e-31f /* 2^-100 */

static float *piece(uint8_t *base, uint64_t *used, uint64_t elems)
{
    uint64_t at = *used;
    uint64_t bytes = elems * sizeof(float);
    *used += (bytes + SC_SCRATCH_ALIGN - 1) / SC_SCRATCH_ALIGN * SC_SCRATCH_ALIGN;
    return base != NULL ? (float *)(void *)(base + at) : NULL;
}

uint64_t sc_delta_chunk_scratch(const sc_k_delta_params *params,
    struct sc_delta_chunk_scratch *pieces)
{
    struct sc_delta_chunk_scratch x;
    uint64_t c = params->chunk, k = params->shape.k_dim, v = params->shape.v_dim, used = 0;
    uint8_t *base = pieces != NULL ? sc_host_ptr(params->scratch) : NULL;
    x.state = piece(base, &used, k * v);
    x.q = piece(base, &used, c * k);
    x.k = piece(base, &used, c * k);
    x.alpha = piece(base, &used, c * k);
    x.gq = piece(base, &used, c * k);
    x.gk = piece(base, &used, c * k);
    x.y = piece(base, &used, c * k);
    x.u = piece(base, &used, c * v);
    x.o = piece(base, &used, c * v);
    x.a = piece(base, &used, c * c);
    x.p = piece(base, &used, c * c);
    x.decay = piece(base, &used, k);
    x.beta = piece(base, &used, c);
    if (pieces != NULL) *pieces = x;
    return used;
}

/* c[i][j] += sum_t a(i, t) b[t][j], t ascending, for a tile of 4 rows and two vectors. a(i, t) lies
 * at a[i * a_row + t * a_col]. */
enum { TILE_M = 4, LANES = SC_REF_TILE_LANES, TILE_N = 2 * LANES };

SC_REF_INLINE void tile_full(uint32_t terms, const float *restrict a, size_t a_row, size_t a_col,
    const float *restrict b, size_t b_row, float *restrict c, size_t c_row)
{
    ref_vt acc[TILE_M][2];
    for (uint32_t i = 0; i < TILE_M; i++)
        for (uint32_t j = 0; j < 2; j++) acc[i][j] = *(ref_vt *)(c + i * c_row + LANES * j);
    for (uint32_t t = 0; t < terms; t++) {
        ref_vt b0 = *(const ref_vt *)(b + t * b_row), b1 = *(const ref_vt *)(b + t * b_row + LANES);
        for (uint32_t i = 0; i < TILE_M; i++) {
            acc[i][0] += a[i * a_row + t * a_col] * b0;
            acc[i][1] += a[i * a_row + t * a_col] * b1;
        }
    }
    for (uint32_t i = 0; i < TILE_M; i++)
        for (uint32_t j = 0; j < 2; j++) *(ref_vt *)(c + i * c_row + LANES * j) = acc[i][j];
}

SC_REF_INLINE void row_add(uint32_t n, uint32_t terms, const float *restrict a, size_t a_col,
    const float *restrict b, size_t b_row, float *restrict c)
{
    for (uint32_t t = 0; t < terms; t++) {
        float x = a[t * a_col];
        for (uint32_t j = 0; j < n; j++) c[j] += x * b[t * b_row + j];
    }
}

SC_REF_INLINE void matmul_add(uint32_t m, uint32_t n, uint32_t terms, const float *a, size_t a_row,
    size_t a_col, const float *b, size_t b_row, float *c, size_t c_row)
{
    uint32_t m_full = m / TILE_M * TILE_M, n_full = n / TILE_N * TILE_N;
    for (uint32_t i = 0; i < m_full; i += TILE_M) {
        for (uint32_t j = 0; j < n_full; j += TILE_N)
            tile_full(terms, a + i * a_row, a_row, a_col, b + j, b_row, c + i * c_row + j, c_row);
        for (uint32_t l = 0; l < TILE_M && n_full < n; l++)
            row_add(n - n_full, terms, a + (i + l) * a_row, a_col, b + n_full, b_row,
                c + (i + l) * c_row + n_full);
    }
    for (uint32_t i = m_full; i < m; i++)
        row_add(n, terms, a + i * a_row, a_col, b, b_row, c + i * c_row);
}

/* One head of one row. */
struct head {
    const sc_k_delta_params *p;
    struct sc_delta_chunk_scratch x;
    uint32_t row, hv;
    uint32_t k_dim, v_dim;
};

SC_REF_INLINE void head_load(struct head *h)
{
    uint32_t k_dim = h->k_dim, v_dim = h->v_dim;
    struct ref_begin from = delta_begin(h->p, h->row);
    float line[SC_K_DIM_MAX];
    for (uint32_t v = 0; v < v_dim; v++) {
        ref_begin_load(line, &from, delta_at(&h->p->shape, h->hv, v), k_dim);
        for (uint32_t k = 0; k < k_dim; k++) h->x.state[(size_t)k * v_dim + v] = line[k];
    }
}

SC_REF_INLINE void head_store(const struct head *h, int32_t slot)
{
    uint32_t k_dim = h->k_dim, v_dim = h->v_dim;
    float line[SC_K_DIM_MAX];
    for (uint32_t v = 0; v < v_dim; v++) {
        for (uint32_t k = 0; k < k_dim; k++) line[k] = h->x.state[(size_t)k * v_dim + v];
        ref_store(line, ref_slot(&h->p->state, slot), h->p->state.dtype,
            delta_at(&h->p->shape, h->hv, v), k_dim);
    }
}

/* Tokens t0 .. t0+n: q, k, alpha, their products with the decay since the start, beta, v (in u). */
SC_REF_INLINE void chunk_load(struct head *h, int64_t t0, uint32_t n)
{
    const sc_k_delta_params *p = h->p;
    const sc_k_delta_shape *s = &p->shape;
    uint32_t K = h->k_dim, V = h->v_dim;
    uint64_t qk = (uint64_t)s->heads * K, vo = (uint64_t)s->v_heads * V;
    int64_t qk_at = (int64_t)(h->hv / (s->v_heads / s->heads)) * K;
    int64_t g_dim = s->kind == SC_K_KIND_GDN ? 1 : K;
    float *restrict decay = h->x.decay;
    for (uint32_t k = 0; k < K; k++) decay[k] = 1.0f;
    for (uint32_t i = 0; i < n; i++) {
        int64_t t = t0 + i;
        float *restrict q = h->x.q + (size_t)i * K, *restrict key = h->x.k + (size_t)i * K;
        float *restrict alpha = h->x.alpha + (size_t)i * K;
        float *restrict gq = h->x.gq + (size_t)i * K, *restrict gk = h->x.gk + (size_t)i * K;
        delta_load_qk(q, key, s, p->q, t * sc_kernel_stride(p->q_stride, qk) + qk_at, p->k,
            t * sc_kernel_stride(p->k_stride, qk) + qk_at, p->dtype);
        delta_alpha(alpha, s,
            (const float *)sc_host_ptr(p->g) + (t * s->v_heads + h->hv) * g_dim);
        for (uint32_t k = 0; k < K; k++) {
            float d = decay[k] * alpha[k];
            decay[k] = d < DECAY_MIN ? 0.0f : d;
            gq[k] = q[k] * decay[k];
            gk[k] = key[k] * decay[k];
        }
        h->x.beta[i] = ((const float *)sc_host_ptr(p->beta))[t * s->v_heads + h->hv];
        ref_load(h->x.u + (size_t)i * V, p->v, p->dtype,
            t * sc_kernel_stride(p->v_stride, vo) + (int64_t)h->hv * V, V);
    }
}

/* KDA: a, p, and y_j = k_j D(last, j). y ages by one token at a time. */
SC_REF_INLINE void pairs_kda(struct head *h, uint32_t n)
{
    uint32_t K = h->k_dim, C = h->p->chunk;
    for (uint32_t i = 0; i < n; i++) {
        const float *q = h->x.q + (size_t)i * K, *key = h->x.k + (size_t)i * K;
        const float *restrict alpha = h->x.alpha + (size_t)i * K;
        memcpy(h->x.y + (size_t)i * K, key, K * sizeof(float));
        for (uint32_t j = 0; j < i; j++) {
            float *restrict y = h->x.y + (size_t)j * K;
            for (uint32_t k = 0; k < K; k++) {
                float aged = y[k] * alpha[k];
                y[k] = fabsf(aged) < DECAY_MIN ? 0.0f : aged;
            }
            h->x.a[(size_t)i * C + j] = h->x.beta[i] * ref_dot(key, y, K);
            h->x.p[(size_t)i * C + j] = ref_dot(q, y, K);
        }
        h->x.p[(size_t)i * C + i] = ref_dot(q, key, K);
    }
}

/* GDN: the same with one decay for all of K, kept apart from k. */
SC_REF_INLINE void pairs_gdn(struct head *h, uint32_t n)
{
    uint32_t K = h->k_dim, C = h->p->chunk;
    float decay[64]; /* D(i, j) for the current i */
    for (uint32_t i = 0; i < n; i++) {
        const float *q = h->x.q + (size_t)i * K, *key = h->x.k + (size_t)i * K;
        float alpha = h->x.alpha[(size_t)i * K];
        for (uint32_t j = 0; j < i; j++) {
            float aged = decay[j] * alpha;
            decay[j] = aged < DECAY_MIN ? 0.0f : aged;
            const float *kj = h->x.k + (size_t)j * K;
            h->x.a[(size_t)i * C + j] = h->x.beta[i] * (ref_dot(key, kj, K) * decay[j]);
            h->x.p[(size_t)i * C + j] = ref_dot(q, kj, K) * decay[j];
        }
        decay[i] = 1.0f;
        h->x.p[(size_t)i * C + i] = ref_dot(q, key, K);
    }
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t k = 0; k < K; k++)
            h->x.y[(size_t)j * K + k] = h->x.k[(size_t)j * K + k] * decay[j];
}

/* u <- beta (v - S gk), then row by row minus what earlier rows wrote. */
SC_REF_INLINE void chunk_solve(struct head *h, uint32_t n)
{
    uint32_t K = h->k_dim, V = h->v_dim, C = h->p->chunk;
    float *read = h->x.o; /* free until the outputs are made */
    memset(read, 0, (size_t)n * V * sizeof(float));
    matmul_add(n, V, K, h->x.gk, K, 1, h->x.state, V, read, V);
    for (uint32_t i = 0; i < n; i++) {
        float beta = h->x.beta[i], *restrict u = h->x.u + (size_t)i * V;
        for (uint32_t v = 0; v < V; v++) u[v] = beta * (u[v] - read[(size_t)i * V + v]);
        for (uint32_t j = 0; j < i; j++) h->x.a[(size_t)i * C + j] = -h->x.a[(size_t)i * C + j];
    }
    for (uint32_t i = 0; i < n; i += TILE_M) { /* earlier tiles, then inside the tile */
        uint32_t m = n - i < TILE_M ? n - i : TILE_M;
        matmul_add(m, V, i, h->x.a + (size_t)i * C, C, 1, h->x.u, V, h->x.u + (size_t)i * V, V);
        for (uint32_t l = 1; l < m; l++)
            row_add(V, l, h->x.a + (size_t)(i + l) * C + i, 1, h->x.u + (size_t)i * V, V,
                h->x.u + (size_t)(i + l) * V);
    }
}

SC_REF_INLINE void chunk_output(struct head *h, int64_t t0, uint32_t n)
{
    const sc_k_delta_params *p = h->p;
    uint32_t K = h->k_dim, V = h->v_dim, C = p->chunk;
    int64_t stride = sc_kernel_stride(p->o_stride, (uint64_t)p->shape.v_heads * V);
    memset(h->x.o, 0, (size_t)n * V * sizeof(float));
    matmul_add(n, V, K, h->x.gq, K, 1, h->x.state, V, h->x.o, V);
    for (uint32_t i = 0; i < n; i += TILE_M) {
        uint32_t m = n - i < TILE_M ? n - i : TILE_M;
        matmul_add(m, V, i, h->x.p + (size_t)i * C, C, 1, h->x.u, V, h->x.o + (size_t)i * V, V);
        for (uint32_t l = 0; l < m; l++)
            row_add(V, l + 1, h->x.p + (size_t)(i + l) * C + i, 1, h->x.u + (size_t)i * V, V,
                h->x.o + (size_t)(i + l) * V);
    }
    for (uint32_t i = 0; i < n; i++)
        ref_store(h->x.o + (size_t)i * V, p->o, p->dtype, (t0 + i) * stride + (int64_t)h->hv * V,
            V);
}

SC_REF_INLINE void chunk_state(struct head *h, uint32_t n)
{
    uint32_t K = h->k_dim, V = h->v_dim;
    for (uint32_t k = 0; k < K; k++) {
        float decay = h->x.decay[k], *restrict s = h->x.state + (size_t)k * V;
        for (uint32_t v = 0; v < V; v++) s[v] = s[v] * decay;
    }
    matmul_add(K, V, n, h->x.y, 1, K, h->x.u, V, h->x.state, V);
    ref_round(h->x.state, h->p->state.dtype, K * V);
}

static void chunk(struct head *h, int64_t t0, uint32_t n)
{
    chunk_load(h, t0, n);
    if (h->p->shape.kind == SC_K_KIND_KDA)
        pairs_kda(h, n);
    else
        pairs_gdn(h, n);
    chunk_solve(h, n);
    chunk_output(h, t0, n);
    chunk_state(h, n);
}

static void head_saves(const struct head *h, int64_t pos)
{
    const sc_k_saves *saves = &h->p->saves;
    const int32_t *row = sc_host_ptr(saves->row), *save_pos = sc_host_ptr(saves->pos);
    const int32_t *slot = sc_host_ptr(saves->slot);
    for (uint32_t i = 0; i < saves->count; i++)
        if (row[i] == (int32_t)h->row && save_pos[i] == pos) head_store(h, slot[i]);
}

static void head_run(struct head *h)
{
    const sc_k_delta_params *p = h->p;
    const int32_t *row_start = sc_host_ptr(p->row_start);
    const int32_t *position = sc_host_ptr(p->position);
    int32_t dest = ((const int32_t *)sc_host_ptr(p->dest))[h->row];
    int64_t t = row_start[h->row], end = row_start[h->row + 1];
    int64_t pos = position != NULL ? position[h->row] : 0;
    head_load(h);
    while (t < end) {
        int64_t n = p->chunk - pos % p->chunk; /* up to the next grid point */
        if (n > end - t) n = end - t;
        chunk(h, t, (uint32_t)n);
        t += n;
        pos += n;
        head_saves(h, pos);
    }
    if (dest > 0) head_store(h, dest);
}

sc_status SC_HOST_FN(sc_k_delta_chunk)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_delta_params *p = params;
    struct head h = {.p = p, .k_dim = p->shape.k_dim, .v_dim = p->shape.v_dim};
    (void)sc_delta_chunk_scratch(p, &h.x);
    for (uint32_t r = 0; r < p->row_count; r++) {
        if (delta_row_idle(p, r)) continue;
        for (uint32_t hv = 0; hv < p->shape.v_heads; hv++) {
            h.row = r;
            h.hv = hv;
            head_run(&h);
        }
    }
    return SC_OK;
}

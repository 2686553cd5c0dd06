/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the delta rule with rows of S in registers: the bits of rows_plain.h, because each row
 * is worked on in the same order (16 lanes along K, products rounded before they are added, one
 * tree at the end). Two rows at a time, so that one row's sum across lanes hides behind the other's
 * products; all tokens of a batch pass before the rows are stored.
 *
 *        k_dim = 16 nv
 *   row v    | s0[0] | s0[1] | ... | s0[nv-1] |   x alpha, . k  -> u;  + u k, . q  -> o
 *   row v+1  | s1[0] | s1[1] | ... | s1[nv-1] |
 */
#ifndef SC_ROWS_WIDE_H
#define SC_ROWS_WIDE_H

#include "delta/rows_plain.h"
#include "wide_row.h"

/* Does each of `n` rows of a bf16 state write so much that a step may fuse it (rows_plain.h)? */
SC_REF_INLINE bool wide_fuses(const float *write, uint32_t n, float k_least)
{
    bool all = true;
    if (n == 4) return v4_least(v4_load(write), k_least, 0x1p-80f);
    UNROLL for (uint32_t r = 0; r < n; r++) all &= fabsf(write[r]) * k_least >= 0x1p-80f;
    return all;
}

/* 32 elements of a row, from i on, where it may not: decayed, written, not yet rounded. */
SC_REF_INLINE void wide_apart(const float *restrict old, const struct tokens *x, uint32_t t,
    uint32_t k_dim, uint32_t i, float write, v16 *restrict two)
{
    const float *k = x->k + (size_t)t * k_dim + i, *alpha = x->alpha + (size_t)t * k_dim + i;
    UNROLL for (uint32_t l = 0; l < 32; l += 16)
        two[l / 16] = v16_add(v16_mul(v16_load(old + i + l), v16_load(alpha + l)),
            v16_mul(v16_set(write), v16_load(k + l)));
}

/* A row's step then. Not inlined: where it is not taken it shall cost no register. `o` is what the
 * row gave. */
static __attribute__((noinline)) void wide_step_apart(float *restrict s, const struct tokens *x,
    uint32_t t, uint32_t k_dim, float write, float o)
{
    for (uint32_t i = 0; i < k_dim; i += 32) {
        v16 two[2];
        wide_apart(s, x, t, k_dim, i, write, two);
        wide_round(two, 2, o, false);
        v16_store(s + i, two[0]);
        v16_store(s + i + 16, two[1]);
    }
}

/* S k and S q of `rows` (1 or 2) rows that token t of x decays. */
SC_REF_INLINE void wide_read(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv,
    const struct tokens *x, uint32_t t, float *restrict read)
{
    const float *q = x->q + (size_t)t * nv * 16, *k = x->k + (size_t)t * nv * 16;
    const float *alpha = x->alpha + (size_t)t * nv * 16;
    v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    UNROLL for (uint32_t i = 0; i < nv; i++) {
        v16 a = v16_load(alpha + 16 * i), key = v16_load(k + 16 * i);
        v16 query = v16_load(q + 16 * i);
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            s[r][i] = v16_mul(s[r][i], a);
            sums[r] = v16_add(sums[r], v16_mul(s[r][i], key));
            sums[2 + r] = v16_add(sums[2 + r], v16_mul(s[r][i], query));
        }
    }
    v16_sums(sums, read);
}

/* The same of a bf16 state, which stays as it is. */
SC_REF_INLINE void wide_read_bf16(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv,
    const struct tokens *x, uint32_t t, float *restrict read)
{
    const float *q = x->q + (size_t)t * nv * 16, *k = x->read + (size_t)t * nv * 16;
    v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    UNROLL for (uint32_t i = 0; i < nv; i++) {
        v16 key = v16_load(k + 16 * i), query = v16_load(q + 16 * i);
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            sums[r] = v16_fma(s[r][i], key, sums[r]);
            sums[2 + r] = v16_fma(s[r][i], query, sums[2 + r]);
        }
    }
    v16_sums(sums, read);
    UNROLL for (uint32_t r = 0; r < 2; r++) {
        read[r] = read[r] * x->read_scale[t];
        read[2 + r] = read[2 + r] * x->q_scale[t];
    }
}

/* What the rows write, times k, is added; a bf16 state is decayed before, and rounded. */
SC_REF_INLINE void wide_write(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv,
    const struct tokens *x, uint32_t t, const float *write, const float *out, sc_dtype state)
{
    const float *k = x->k + (size_t)t * nv * 16, *alpha = x->alpha + (size_t)t * nv * 16;
    UNROLL for (uint32_t i = 0; i < nv; i++) {
        v16 key = v16_load(k + 16 * i);
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            v16 added = v16_mul(v16_set(write[r]), key);
            s[r][i] = state == SC_DTYPE_F32 ? v16_add(s[r][i], added)
                                            : v16_fma(s[r][i], v16_load(alpha + 16 * i), added);
        }
    }
    UNROLL for (uint32_t r = 0; r < rows && state == SC_DTYPE_BF16; r++)
        wide_round(s[r], nv, out[r], true);
}

/* The same where a bf16 state may not be fused. */
SC_REF_INLINE void wide_write_apart(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv,
    const struct tokens *x, uint32_t t, const float *write, const float *out)
{
    float line[SC_K_DIM_MAX];
    for (uint32_t r = 0; r < rows; r++) {
        UNROLL for (uint32_t i = 0; i < nv; i++) v16_store(line + 16 * i, s[r][i]);
        wide_step_apart(line, x, t, nv * 16, write[r], out[r]);
        UNROLL for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_load(line + 16 * i);
    }
}

/* `rows` (1 or 2) rows from v on, by token t of x. */
SC_REF_INLINE void wide_token(v16 (*restrict s)[NV_MAX], uint32_t rows, uint32_t nv, uint32_t v,
    uint32_t all_rows, struct tokens *x, uint32_t t, sc_dtype state)
{
    float read[4], write[2], *out = x->o + (size_t)t * all_rows + v;
    if (state == SC_DTYPE_F32)
        wide_read(s, rows, nv, x, t, read);
    else
        wide_read_bf16(s, rows, nv, x, t, read);
    UNROLL for (uint32_t r = 0; r < rows; r++) {
        write[r] = x->beta[t] * (x->v[(size_t)t * all_rows + v + r] - read[r]);
        out[r] = read[2 + r] + write[r] * x->kq[t];
    }
    if (state == SC_DTYPE_F32 || __builtin_expect(wide_fuses(write, rows, x->k_least[t]), 1))
        wide_write(s, rows, nv, x, t, write, out, state);
    else
        wide_write_apart(s, rows, nv, x, t, write, out);
}

/* `n` rows from v on, in registers from the first token to the last. */
SC_REF_INLINE void wide_rows(float *block, uint32_t v, uint32_t n, uint32_t rows, uint32_t nv,
    struct tokens *x, sc_dtype state)
{
    v16 s[2][NV_MAX];
    float *at = block + (size_t)v * nv * 16;
    UNROLL for (uint32_t r = 0; r < n; r++)
        UNROLL for (uint32_t i = 0; i < nv; i++) s[r][i] = v16_load(at + (r * nv + i) * 16);
    for (uint32_t t = 0; t < x->count; t++) wide_token(s, n, nv, v, rows, x, t, state);
    UNROLL for (uint32_t r = 0; r < n; r++)
        UNROLL for (uint32_t i = 0; i < nv; i++) v16_store(at + (r * nv + i) * 16, s[r][i]);
}

SC_REF_INLINE void wide_block(float *block, uint32_t rows, uint32_t nv, struct tokens *x,
    sc_dtype state)
{
    uint32_t v = 0;
    for (; v + 2 <= rows; v += 2) wide_rows(block, v, 2, rows, nv, x, state);
    if (v < rows) wide_rows(block, v, 1, rows, nv, x, state);
}

/* What registers are counted for at compile time: the sizes that models have. */
SC_REF_INLINE bool wide_knows(uint32_t k_dim)
{
    return k_dim == 64 || k_dim == 128 || k_dim == 256;
}

SC_REF_INLINE void wide_sized(float *block, uint32_t rows, uint32_t k_dim, struct tokens *x,
    sc_dtype state)
{
    if (k_dim == 128)
        wide_block(block, rows, 8, x, state);
    else if (k_dim == 64)
        wide_block(block, rows, 4, x, state);
    else
        wide_block(block, rows, 16, x, state);
}

SC_REF_INLINE void wide_steps(float *block, uint32_t rows, uint32_t k_dim, struct tokens *x,
    sc_dtype state)
{
    if (!wide_knows(k_dim))
        plain_steps(block, rows, k_dim, x, state);
    else if (state == SC_DTYPE_F32)
        wide_sized(block, rows, k_dim, x, SC_DTYPE_F32);
    else
        wide_sized(block, rows, k_dim, x, SC_DTYPE_BF16);
}

/* ---- one token, from a slot to a slot without a stop in between ---- */

struct wide_stream {
    const uint8_t *from; /* NULL: zeros */
    uint8_t *to[2];      /* NULL: not stored */
    const uint8_t *next; /* the same rows of the head that comes then; NULL: it is not known */
    uint32_t rows;
    sc_dtype dtype;
};

/* Rows at a time: as many as have registers for their sums. */
#ifdef __AVX512F__
enum { STREAM_ROWS = 4 };
#else
enum { STREAM_ROWS = 2 };
#endif

/* Sums across lanes of what STREAM_ROWS rows are times k, then times q. */
SC_REF_INLINE void wide_sums(const v16 *sums, float *restrict out)
{
#ifdef __AVX512F__
    v16_sums8(sums, out);
#else
    v16_sums(sums, out);
#endif
}

/* Rows v .. v + n between their two passes. */
struct wide_group {
    _Alignas(64) float old[STREAM_ROWS][NV_MAX * 16]; /* fp32: decayed */
    float write[STREAM_ROWS];                         /* times k: what is added */
    uint32_t v;
    bool fused; /* and no NaN is to be rounded */
};

/* How much more of a head is fetched while its token is prepared (wide_stream_begin()); rows use
 * that up evenly. */
enum { BEGIN_ROW_BYTES = 16 };

/* While a group is read and written, a group further on is fetched, and the same group of the next
 * head: `part` of `parts` of it. Prefetches of the processor's own end at each page, and those into
 * the nearest cache are too few under way to hide that; from the second one they come at once. */
SC_REF_INLINE void wide_stream_fetch(const struct wide_stream *w, uint32_t v, uint32_t part,
    uint32_t parts, size_t group_bytes)
{
    size_t at = v * (group_bytes / STREAM_ROWS), bytes = group_bytes / parts;
    size_t ahead = (w->rows - v) * BEGIN_ROW_BYTES;
    if (w->from != NULL) wide_fetch_here(w->from + at + ahead + bytes * part, bytes);
    if (w->next != NULL) wide_fetch_far(w->next + at + ahead + bytes * part, bytes);
}

/* Third `part` (0 .. 2) of what is fetched while a token is prepared. */
SC_REF_INLINE void wide_stream_begin(const uint8_t *from, const uint8_t *next, uint32_t rows,
    uint32_t part)
{
    size_t bytes = (size_t)rows * BEGIN_ROW_BYTES / 3, at = bytes * part;
    if (from != NULL) wide_fetch(from + at, bytes);
    for (size_t line = 0; next != NULL && line < bytes; line += 64)
        wide_fetch_far(next + at + line, 64);
}

/* Their sums become what they write and give. */
SC_REF_INLINE void wide_stream_solve(struct wide_group *g, uint32_t v, uint32_t n,
    const float *read, const float *query, sc_dtype dtype, struct tokens *x)
{
    float read_scale = dtype == SC_DTYPE_F32 ? 1.0f : x->read_scale[0];
    float q_scale = dtype == SC_DTYPE_F32 ? 1.0f : x->q_scale[0];
    g->v = v;
    if (n == 4) {
        v4 write = x->beta[0] * (v4_load(x->v + v) - v4_load(read) * read_scale);
        v4_store(g->write, write);
        v4_store(x->o + v, v4_load(query) * q_scale + write * x->kq[0]);
    }
    UNROLL for (uint32_t r = 0; r < n && n != 4; r++) {
        g->write[r] = x->beta[0] * (x->v[v + r] - read[r] * read_scale);
        x->o[v + r] = query[r] * q_scale + g->write[r] * x->kq[0];
    }
    g->fused = dtype == SC_DTYPE_BF16 && wide_fuses(g->write, n, x->k_least[0]);
    UNROLL for (uint32_t r = 0; r < n && n != 4; r++) g->fused &= x->o[v + r] == x->o[v + r];
    if (n == 4) g->fused &= v4_ordered(v4_load(x->o + v));
}

/* The first pass: decay, read, output. */
SC_REF_INLINE void wide_stream_read(const struct wide_stream *w, struct wide_group *g, uint32_t v,
    uint32_t n, uint32_t nv, sc_dtype dtype, struct tokens *x)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    const uint8_t *from = w->from != NULL ? w->from + v * row_bytes : NULL;
    const float *k = dtype == SC_DTYPE_F32 ? x->k : x->read;
    v16 sums[2 * STREAM_ROWS];
    float dots[2 * STREAM_ROWS];
    UNROLL for (uint32_t r = 0; r < 2 * STREAM_ROWS; r++) sums[r] = v16_zero();
    UNROLL for (uint32_t i = 0; i < nv; i += 2) {
        v16 s[STREAM_ROWS][2];
        if (n == STREAM_ROWS) wide_stream_fetch(w, v, i / 2, nv, n * row_bytes);
        UNROLL for (uint32_t r = 0; r < n; r++) {
            if (from != NULL)
                wide_load(from + r * row_bytes + i * (row_bytes / nv), dtype, 2, s[r]);
            else
                s[r][0] = s[r][1] = v16_zero();
        }
        UNROLL for (uint32_t l = 0; l < 2; l++) {
            v16 key = v16_load(k + 16 * (i + l)), query = v16_load(x->q + 16 * (i + l));
            UNROLL for (uint32_t r = 0; r < n; r++) {
                v16 *read = &sums[r], *out = &sums[STREAM_ROWS + r], old = s[r][l];
                if (dtype == SC_DTYPE_F32) {
                    old = v16_mul(old, v16_load(x->alpha + 16 * (i + l)));
                    *read = v16_add(*read, v16_mul(old, key));
                    *out = v16_add(*out, v16_mul(old, query));
                } else {
                    *read = v16_fma(old, key, *read);
                    *out = v16_fma(old, query, *out);
                }
                v16_store(g->old[r] + 16 * (i + l), old);
            }
        }
    }
    wide_sums(sums, dots);
    wide_stream_solve(g, v, n, dots, dots + STREAM_ROWS, dtype, x);
}

/* The second where rows of a bf16 state may not be fused: seldom, unless a channel of k is zero. */
static __attribute__((noinline)) void wide_stream_apart(const struct wide_stream *w,
    const struct wide_group *g, uint32_t n, uint32_t k_dim, const struct tokens *x)
{
    for (uint32_t r = 0; r < n; r++) {
        size_t at = (size_t)(g->v + r) * k_dim * 2;
        for (uint32_t i = 0; i < k_dim; i += 32) {
            v16 two[2];
            wide_apart(g->old[r], x, 0, k_dim, i, g->write[r], two);
            for (uint32_t j = 0; j < 2; j++)
                if (w->to[j] != NULL)
                    wide_store(w->to[j] + at + (size_t)i * 2, SC_DTYPE_BF16, 2, two,
                        x->o[g->v + r], false);
        }
    }
}

/* Are k and alpha loaded once for all rows of a bf16 state? Not where rounding is arithmetic, which
 * takes the registers. */
#ifdef __AVX512BF16__
enum { WRITE_TOGETHER = 1 };
#else
enum { WRITE_TOGETHER = 0 };
#endif

/* The second of a bf16 state, all rows together. */
SC_REF_INLINE void wide_stream_write_bf16(const struct wide_stream *w, struct wide_group *g,
    uint32_t n, uint32_t nv, const struct tokens *x)
{
    size_t row_bytes = (size_t)nv * 16 * 2;
    v16 u[STREAM_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) u[r] = v16_set(g->write[r]);
    UNROLL for (uint32_t i = 0; i < nv; i += 2) {
        v16 key[2], alpha[2];
        if (n == STREAM_ROWS) wide_stream_fetch(w, g->v, (nv + i) / 2, nv, n * row_bytes);
        UNROLL for (uint32_t l = 0; l < 2; l++) {
            key[l] = v16_load(x->k + 16 * (i + l));
            alpha[l] = v16_load(x->alpha + 16 * (i + l));
        }
        UNROLL for (uint32_t r = 0; r < n; r++) {
            v16 s[2];
            UNROLL for (uint32_t l = 0; l < 2; l++)
                s[l] = v16_fma(v16_load(g->old[r] + 16 * (i + l)), alpha[l],
                    v16_mul(u[r], key[l]));
            v32h least = v32h_none(), half = v32h_narrow(s, &least);
            UNROLL for (uint32_t j = 0; j < 2; j++)
                if (w->to[j] != NULL)
                    v32h_store((uint16_t *)(void *)(w->to[j] + (g->v + r) * row_bytes) + 16 * i,
                        half);
        }
    }
}

/* The second. */
SC_REF_INLINE void wide_stream_write(const struct wide_stream *w, struct wide_group *g, uint32_t n,
    uint32_t nv, sc_dtype dtype, const struct tokens *x)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    if (dtype == SC_DTYPE_BF16 && __builtin_expect(!g->fused, 0)) {
        for (uint32_t i = nv / 2; i < nv && n == STREAM_ROWS; i++)
            wide_stream_fetch(w, g->v, i, nv, n * row_bytes);
        wide_stream_apart(w, g, n, nv * 16, x);
        return;
    }
    if (dtype == SC_DTYPE_BF16 && WRITE_TOGETHER) {
        wide_stream_write_bf16(w, g, n, nv, x);
        return;
    }
    UNROLL for (uint32_t r = 0; r < n; r++) {
        v16 s[NV_MAX], u = v16_set(g->write[r]);
        if (n == STREAM_ROWS) wide_stream_fetch(w, g->v, n + r, 2 * n, n * row_bytes);
        UNROLL for (uint32_t i = 0; i < nv; i++) {
            v16 old = v16_load(g->old[r] + 16 * i), added = v16_mul(u, v16_load(x->k + 16 * i));
            s[i] = dtype == SC_DTYPE_F32 ? v16_add(old, added)
                                         : v16_fma(old, v16_load(x->alpha + 16 * i), added);
        }
        UNROLL for (uint32_t j = 0; j < 2; j++)
            if (w->to[j] != NULL)
                wide_store(w->to[j] + (g->v + r) * row_bytes, dtype, nv, s, x->o[g->v + r], true);
    }
}


/* A group is read before the one in front of it is written: what it reads fills the time that the
 * other's sums take. */
SC_REF_INLINE void wide_stream_all(const struct wide_stream *w, uint32_t nv, sc_dtype dtype,
    struct tokens *x)
{
    struct wide_group group[2];
    uint32_t rows = w->rows, v = 0, at = 0;
    if (rows >= STREAM_ROWS) {
        wide_stream_read(w, &group[0], 0, STREAM_ROWS, nv, dtype, x);
        for (v = STREAM_ROWS; v + STREAM_ROWS <= rows; v += STREAM_ROWS, at = 1 - at) {
            wide_stream_read(w, &group[1 - at], v, STREAM_ROWS, nv, dtype, x);
            wide_stream_write(w, &group[at], STREAM_ROWS, nv, dtype, x);
        }
        wide_stream_write(w, &group[at], STREAM_ROWS, nv, dtype, x);
    }
    for (uint32_t left = rows % STREAM_ROWS; left > 0; left--, v++) {
        wide_stream_read(w, &group[0], v, 1, nv, dtype, x);
        wide_stream_write(w, &group[0], 1, nv, dtype, x);
    }
}

SC_REF_INLINE void wide_stream_sized(const struct wide_stream *w, uint32_t k_dim, sc_dtype dtype,
    struct tokens *x)
{
    if (k_dim == 128)
        wide_stream_all(w, 8, dtype, x);
    else if (k_dim == 64)
        wide_stream_all(w, 4, dtype, x);
    else
        wide_stream_all(w, 16, dtype, x);
}

/* From a slot to one slot: compiled without a question for each line. `next` is `from` where it is
 * not known: that is in a cache, and to fetch it again costs next to nothing. */
SC_REF_INLINE void wide_stream_one(const struct wide_stream *w, struct tokens *x)
{
    struct wide_stream one = {.from = w->from, .to = {w->to[0], NULL},
        .next = w->next != NULL ? w->next : w->from, .rows = w->rows, .dtype = SC_DTYPE_BF16};
    if (one.from == NULL || one.to[0] == NULL || one.next == NULL) __builtin_unreachable();
    wide_stream_all(&one, 8, SC_DTYPE_BF16, x);
}

/* One token that is ready (x->count == 1), for a k_dim that wide_knows(). */
SC_REF_INLINE void wide_stream_run(const struct wide_stream *w, uint32_t k_dim, struct tokens *x)
{
    bool one = w->from != NULL && w->to[0] != NULL && w->to[1] == NULL;
    if (one && WRITE_TOGETHER && k_dim == 128 && w->dtype == SC_DTYPE_BF16)
        wide_stream_one(w, x);
    else if (w->dtype == SC_DTYPE_F32)
        wide_stream_sized(w, k_dim, SC_DTYPE_F32, x);
    else
        wide_stream_sized(w, k_dim, SC_DTYPE_BF16, x);
}

#endif

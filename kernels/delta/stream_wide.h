/* SPDX-License-Identifier: Apache-2.0 */
/* One token of the delta rule, from a slot to a slot without a stop in between: the bits of
 * rows_plain.h, a group of rows at a time. */
#ifndef SC_STREAM_WIDE_H
#define SC_STREAM_WIDE_H

#include "delta/rows_wide.h"

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

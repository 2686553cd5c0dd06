/* SPDX-License-Identifier: Apache-2.0 */
/* One token of the delta rule, from a slot to a slot without a stop in between: the bits of
 * rows_plain.h, a group of rows at a time. A group is read before the one in front of it is
 * written: what it reads fills the time that the other's sums take.
 *
 *   read 0, solve 0 | read 1, solve 1, write 0 | read 2, solve 2, write 1 | ... | write of the last
 *
 * To solve a group (sums across lanes, then what it writes and gives) is a chain of some 70 cycles,
 * in which what comes after it fills up what a processor can look ahead. For bf16 states with
 * AVX512_BF16 its steps stand among those of the write (wide_turns()), or of a write and a read
 * (wide_threes()). */
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
    _Alignas(64) float old[STREAM_ROWS][NV_MAX * 16]; /* fp32: decayed; kept unless `again` */
    float write[STREAM_ROWS];                         /* times k: what is added */
    uint32_t v;
    bool fused; /* bf16 alone: and no NaN is to be rounded */
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

/* Their sums become what they write and give; n is not 4. */
SC_REF_INLINE void wide_stream_solve(struct wide_group *g, uint32_t v, uint32_t n,
    const float *read, const float *query, sc_dtype dtype, struct tokens *x)
{
    float read_scale = dtype == SC_DTYPE_F32 ? 1.0f : x->read_scale[0];
    float q_scale = dtype == SC_DTYPE_F32 ? 1.0f : x->q_scale[0];
    g->v = v;
    UNROLL for (uint32_t r = 0; r < n; r++) {
        g->write[r] = x->beta[0] * (x->v[v + r] - read[r] * read_scale);
        x->o[v + r] = query[r] * q_scale + g->write[r] * x->kq[0];
    }
    g->fused = dtype == SC_DTYPE_BF16 && wide_fuses(g->write, n, x->k_least[0]);
    UNROLL for (uint32_t r = 0; r < n; r++) g->fused &= x->o[v + r] == x->o[v + r];
}

/* The same of four. */
SC_REF_INLINE void wide_stream_solve4(struct wide_group *g, uint32_t v, v4 read, v4 query,
    sc_dtype dtype, struct tokens *x)
{
    float read_scale = dtype == SC_DTYPE_F32 ? 1.0f : x->read_scale[0];
    float q_scale = dtype == SC_DTYPE_F32 ? 1.0f : x->q_scale[0];
    v4 write = x->beta[0] * (v4_load(x->v + v) - read * read_scale);
    v4 out = query * q_scale + write * x->kq[0];
    g->v = v;
    v4_store(g->write, write);
    v4_store(x->o + v, out);
    if (dtype == SC_DTYPE_BF16)
        g->fused = v4_least(write, x->k_least[0], FUSE_LEAST) & v4_ordered(out); /* no branch */
}

/* The first pass up to what lanes sum up: decay, read, output. `again`: rows of a bf16 state are
 * not kept, the second pass widens them again. */
SC_REF_INLINE void wide_stream_read(const struct wide_stream *w, struct wide_group *g, uint32_t v,
    uint32_t n, uint32_t nv, sc_dtype dtype, bool again, const struct tokens *x,
    v16 *restrict sums_out)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    const uint8_t *from = w->from != NULL ? w->from + v * row_bytes : NULL;
    const float *k = dtype == SC_DTYPE_F32 ? x->k : x->read;
    v16 sums[2 * STREAM_ROWS];
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
                if (!again) v16_store(g->old[r] + 16 * (i + l), old);
            }
        }
    }
    UNROLL for (uint32_t r = 0; r < 2 * STREAM_ROWS; r++) sums_out[r] = sums[r];
}

/* What lanes summed up, solved. */
SC_REF_INLINE void wide_stream_end(struct wide_group *g, uint32_t v, uint32_t n, sc_dtype dtype,
    struct tokens *x, const v16 *restrict sums)
{
    float dots[2 * STREAM_ROWS];
    wide_sums(sums, dots);
    if (n == 4)
        wide_stream_solve4(g, v, v4_load(dots), v4_load(dots + STREAM_ROWS), dtype, x);
    else
        wide_stream_solve(g, v, n, dots, dots + STREAM_ROWS, dtype, x);
}

/* 32 elements of a bf16 row, in fp32. */
SC_REF_INLINE void wide_row_keep(const uint8_t *from, float *restrict to)
{
    v16 two[2];
    wide_load(from, SC_DTYPE_BF16, 2, two);
    v16_store(to, two[0]);
    v16_store(to + 16, two[1]);
}

/* The second where rows of a bf16 state may not be fused: seldom, unless a channel of k is zero. */
static __attribute__((noinline)) void wide_stream_apart(const struct wide_stream *w,
    struct wide_group *g, uint32_t n, uint32_t k_dim, bool again, const struct tokens *x)
{
    const uint8_t *from = again ? w->from + (size_t)g->v * k_dim * 2 : NULL;
    for (uint32_t r = 0; r < n && again; r++)
        for (uint32_t i = 0; i < k_dim; i += 32)
            wide_row_keep(from + ((size_t)r * k_dim + i) * 2, g->old[r] + i);
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

/* The second where it may not be fused, with its fetches. */
SC_REF_INLINE void wide_stream_write_apart(const struct wide_stream *w, struct wide_group *g,
    uint32_t n, uint32_t nv, bool again, const struct tokens *x)
{
    for (uint32_t i = nv / 2; i < nv && n == STREAM_ROWS; i++)
        wide_stream_fetch(w, g->v, i, nv, n * (size_t)nv * 32);
    wide_stream_apart(w, g, n, nv * 16, again, x);
}

/* The second. */
SC_REF_INLINE void wide_stream_write(const struct wide_stream *w, struct wide_group *g, uint32_t n,
    uint32_t nv, sc_dtype dtype, const struct tokens *x)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    if (dtype == SC_DTYPE_BF16 && __builtin_expect(!g->fused, 0)) {
        wide_stream_write_apart(w, g, n, nv, false, x);
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

/* Rows that no group has, one at a time. */
SC_REF_INLINE void wide_stream_rest(const struct wide_stream *w, uint32_t v, uint32_t nv,
    sc_dtype dtype, struct tokens *x)
{
    struct wide_group g;
    v16 sums[2 * STREAM_ROWS];
    for (uint32_t left = w->rows % STREAM_ROWS; left > 0; left--, v++) {
        wide_stream_read(w, &g, v, 1, nv, dtype, false, x, sums);
        wide_stream_end(&g, v, 1, dtype, x, sums);
        wide_stream_write(w, &g, 1, nv, dtype, x);
    }
}

SC_REF_INLINE void wide_stream_all(const struct wide_stream *w, uint32_t nv, sc_dtype dtype,
    struct tokens *x)
{
    struct wide_group group[2];
    v16 sums[2 * STREAM_ROWS];
    uint32_t rows = w->rows, at = 0, v = 0;
    for (; v + STREAM_ROWS <= rows; v += STREAM_ROWS, at = 1 - at) {
        wide_stream_read(w, &group[at], v, STREAM_ROWS, nv, dtype, false, x, sums);
        wide_stream_end(&group[at], v, STREAM_ROWS, dtype, x, sums);
        if (v > 0) wide_stream_write(w, &group[1 - at], STREAM_ROWS, nv, dtype, x);
    }
    if (v > 0) wide_stream_write(w, &group[1 - at], STREAM_ROWS, nv, dtype, x);
    wide_stream_rest(w, v, nv, dtype, x);
}

/* ---- bf16 states where an instruction rounds: groups in turns, step by step ---- */

#ifdef __AVX512BF16__
enum { STREAM_STEPS = V16_SUMS8_STEPS + 1 };

/* The sums of a group on their way to what it writes. */
struct wide_solve {
    struct v16_sums8 sums;
    struct wide_group *g;
    uint32_t v;
};

SC_REF_INLINE void wide_solve_step(struct wide_solve *z, uint32_t step, struct tokens *x)
{
    if (step < V16_SUMS8_STEPS) {
        v16_sums8_step(&z->sums, step);
        return;
    }
    wide_stream_solve4(z->g, z->v, (v4)_mm256_castps256_ps128(z->sums.sums),
        (v4)_mm256_extractf128_ps(z->sums.sums, 1), SC_DTYPE_BF16, x);
}

/* Group g is written while that of `z` (NULL: none) is solved. */
SC_REF_INLINE void wide_turn_write(const struct wide_stream *w, struct wide_group *g, uint32_t nv,
    bool again, struct tokens *x, struct wide_solve *z)
{
    size_t row_bytes = (size_t)nv * 16 * 2;
    v16 u[STREAM_ROWS];
    UNROLL for (uint32_t r = 0; r < STREAM_ROWS; r++) u[r] = v16_set(g->write[r]);
    UNROLL for (uint32_t i = 0; i < nv; i += 2) {
        v16 key[2], alpha[2];
        UNROLL for (uint32_t t = i * STREAM_STEPS / nv; t < (i + 2) * STREAM_STEPS / nv; t++)
            if (z != NULL) wide_solve_step(z, t, x);
        wide_stream_fetch(w, g->v, (nv + i) / 2, nv, STREAM_ROWS * row_bytes);
        UNROLL for (uint32_t l = 0; l < 2; l++) {
            key[l] = v16_load(x->k + 16 * (i + l));
            alpha[l] = v16_load(x->alpha + 16 * (i + l));
        }
        UNROLL for (uint32_t r = 0; r < STREAM_ROWS; r++) {
            size_t at = (g->v + r) * row_bytes + 32 * i;
            v16 s[2] = {v16_zero(), v16_zero()};
            if (again)
                wide_load(w->from + at, SC_DTYPE_BF16, 2, s);
            else
                wide_load((const uint8_t *)(g->old[r] + 16 * i), SC_DTYPE_F32, 2, s);
            UNROLL for (uint32_t l = 0; l < 2; l++)
                s[l] = v16_fma(s[l], alpha[l], v16_mul(u[r], key[l]));
            v32h least = v32h_none(), half = v32h_narrow(s, &least);
            UNROLL for (uint32_t j = 0; j < 2; j++)
                if (w->to[j] != NULL) v32h_store((uint16_t *)(void *)(w->to[j] + at), half);
        }
    }
}

SC_REF_INLINE void wide_turn(const struct wide_stream *w, struct wide_group *g, uint32_t nv,
    bool again, struct tokens *x, struct wide_solve *z)
{
    if (__builtin_expect(g->fused, 1)) {
        wide_turn_write(w, g, nv, again, x, z);
        return;
    }
    UNROLL for (uint32_t t = 0; t < STREAM_STEPS && z != NULL; t++) wide_solve_step(z, t, x);
    wide_stream_write_apart(w, g, STREAM_ROWS, nv, again, x);
}

/* Group g is written while that of `z` is solved and rows v .. are read, all by widening: nothing
 * is kept of rows that are read, which leaves registers for the sums of a third group. */
SC_REF_INLINE void wide_three(const struct wide_stream *w, const struct wide_group *g, uint32_t v,
    uint32_t nv, struct tokens *x, struct wide_solve *z, v16 *restrict next)
{
    size_t row_bytes = (size_t)nv * 16 * 2;
    v16 u[STREAM_ROWS], sums[2 * STREAM_ROWS];
    UNROLL for (uint32_t r = 0; r < 2 * STREAM_ROWS; r++) sums[r] = v16_zero();
    UNROLL for (uint32_t r = 0; r < STREAM_ROWS; r++) u[r] = v16_set(g->write[r]);
    UNROLL for (uint32_t i = 0; i < nv; i += 2) {
        v16 key[2], alpha[2], read[2], query[2]; /* loaded once: no store may change them */
        UNROLL for (uint32_t t = i * STREAM_STEPS / nv; t < (i + 2) * STREAM_STEPS / nv; t++)
            wide_solve_step(z, t, x);
        wide_stream_fetch(w, v, i / 2, nv, STREAM_ROWS * row_bytes);
        wide_stream_fetch(w, g->v, (nv + i) / 2, nv, STREAM_ROWS * row_bytes);
        UNROLL for (uint32_t l = 0; l < 2; l++) {
            key[l] = v16_load(x->k + 16 * (i + l));
            alpha[l] = v16_load(x->alpha + 16 * (i + l));
            read[l] = v16_load(x->read + 16 * (i + l));
            query[l] = v16_load(x->q + 16 * (i + l));
        }
        UNROLL for (uint32_t r = 0; r < STREAM_ROWS; r++) {
            size_t at = (g->v + r) * row_bytes + 32 * i;
            v16 s[2], ahead[2];
            wide_load(w->from + (v + r) * row_bytes + 32 * i, SC_DTYPE_BF16, 2, ahead);
            UNROLL for (uint32_t l = 0; l < 2; l++) {
                sums[r] = v16_fma(ahead[l], read[l], sums[r]);
                sums[STREAM_ROWS + r] = v16_fma(ahead[l], query[l], sums[STREAM_ROWS + r]);
            }
            wide_load(w->from + at, SC_DTYPE_BF16, 2, s);
            UNROLL for (uint32_t l = 0; l < 2; l++)
                s[l] = v16_fma(s[l], alpha[l], v16_mul(u[r], key[l]));
            v32h least = v32h_none();
            v32h_store((uint16_t *)(void *)(w->to[0] + at), v32h_narrow(s, &least));
        }
    }
    UNROLL for (uint32_t r = 0; r < 2 * STREAM_ROWS; r++) next[r] = sums[r];
}

/* From a slot to one slot, where rows are widened again. All rows before v are read, group[*at] is
 * solved and the last of them; so it is with the v that it returns. In between three groups are in
 * work, up to one that may not be fused, from which on wide_turns() has two (a call in this loop
 * would cost registers):
 *
 *   read 1 | write 0, solve 1, read 2 | write 1, solve 2, read 3 | ... | write n - 1, solve n */
SC_REF_INLINE uint32_t wide_threes(const struct wide_stream *w, struct wide_group *group,
    uint32_t *at, uint32_t v, uint32_t nv, struct tokens *x)
{
    if (v + 2 * STREAM_ROWS > w->rows) return v;
    struct wide_solve z = {.g = &group[1 - *at], .v = v};
    v16 next[2 * STREAM_ROWS];
    wide_stream_read(w, z.g, v, STREAM_ROWS, nv, SC_DTYPE_BF16, true, x, z.sums.a);
    for (v += STREAM_ROWS; v + STREAM_ROWS <= w->rows && group[*at].fused; v += STREAM_ROWS) {
        wide_three(w, &group[*at], v, nv, x, &z, next);
        UNROLL for (uint32_t r = 0; r < 2 * STREAM_ROWS; r++) z.sums.a[r] = next[r];
        z.g = &group[*at], z.v = v;
        *at = 1 - *at;
    }
    wide_turn(w, &group[*at], nv, true, x, &z);
    *at = 1 - *at;
    return v;
}

/* `again`: rows are widened again rather than kept; from a slot to one slot. */
SC_REF_INLINE void wide_turns(const struct wide_stream *w, uint32_t nv, bool again,
    struct tokens *x)
{
    struct wide_group group[2];
    struct wide_solve z;
    uint32_t v = 0, at = 0;
    if (w->rows >= STREAM_ROWS) {
        wide_stream_read(w, &group[0], 0, STREAM_ROWS, nv, SC_DTYPE_BF16, again, x, z.sums.a);
        z.g = &group[0], z.v = 0;
        UNROLL for (uint32_t t = 0; t < STREAM_STEPS; t++) wide_solve_step(&z, t, x);
        v = again ? wide_threes(w, group, &at, STREAM_ROWS, nv, x) : STREAM_ROWS;
        for (; v + STREAM_ROWS <= w->rows; v += STREAM_ROWS, at = 1 - at) {
            z.g = &group[1 - at], z.v = v;
            wide_stream_read(w, z.g, v, STREAM_ROWS, nv, SC_DTYPE_BF16, again, x, z.sums.a);
            wide_turn(w, &group[at], nv, again, x, &z);
        }
        wide_turn(w, &group[at], nv, again, x, NULL);
    }
    wide_stream_rest(w, v, nv, SC_DTYPE_BF16, x);
}

/* From a slot to one slot: compiled without a question for each line. `next` is `from` where it is
 * not known: that is in a cache, and to fetch it again costs next to nothing. Zen 4 stores 32
 * bytes a cycle and widens 64, so that it does so again rather than keep rows; a Xeon has one port
 * that widens. Later processors of AMD take the form of Zen 4, unmeasured. */
SC_REF_INLINE void wide_turns_one(const struct wide_stream *w, struct tokens *x)
{
    struct wide_stream one = {.from = w->from, .to = {w->to[0], NULL},
        .next = w->next != NULL ? w->next : w->from, .rows = w->rows, .dtype = SC_DTYPE_BF16};
    if (one.from == NULL || one.to[0] == NULL || one.next == NULL) __builtin_unreachable();
    if (__builtin_cpu_is("amd"))
        wide_turns(&one, 8, true, x);
    else
        wide_turns(&one, 8, false, x);
}

SC_REF_INLINE void wide_stream_bf16(const struct wide_stream *w, uint32_t k_dim, struct tokens *x)
{
    if (k_dim == 128 && w->from != NULL && w->to[0] != NULL && w->to[1] == NULL)
        wide_turns_one(w, x);
    else if (k_dim == 128)
        wide_turns(w, 8, false, x);
    else if (k_dim == 64)
        wide_turns(w, 4, false, x);
    else
        wide_turns(w, 16, false, x);
}
#endif

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

/* One token that is ready (x->count == 1), for a k_dim that wide_knows(). */
SC_REF_INLINE void wide_stream_run(const struct wide_stream *w, uint32_t k_dim, struct tokens *x)
{
    if (w->dtype == SC_DTYPE_F32) {
        wide_stream_sized(w, k_dim, SC_DTYPE_F32, x);
        return;
    }
#ifdef __AVX512BF16__
    wide_stream_bf16(w, k_dim, x);
#else
    wide_stream_sized(w, k_dim, SC_DTYPE_BF16, x);
#endif
}

#endif

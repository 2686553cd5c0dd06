/* SPDX-License-Identifier: Apache-2.0 */
/* The delta rule with a ring, on the host.
 *
 * APPEND, one head: S is never put together. The decays are carried back over the records into q
 * and k, so that the base is read once, as it is:
 *
 *   w <- q a_t          newest record first:   c_j = k_j . w,  w <- w a_j
 *   o = S0 w + sum_j d_j c_j + u (k . q)       the same with k for what u = beta (v - ..) needs
 *
 *      base  [ S0 row ] . w ---+                 decays multiply, at most 1 each: nothing overflows
 *      ring  [ d_0 .. d_n-1 ] -+--> o, u         record n of the ring gets d = u and the inputs
 *
 * FLUSH and FOLD take the steps of the recurrent form once more, from the raw inputs, with the rows
 * of S in registers from the first record to the token.
 *
 * Bytes moved: APPEND the base once in, the records' d, k and decays in, one record out; FLUSH the
 * state in and out, the records' inputs in. Cost of APPEND: 2 K V multiply-adds and
 * n (2 K + 2 V) for n records; of FLUSH n + 1 decode steps, without their memory. */
#include "delta/tokens.h"
#include "kernel_dispatch.h"
#ifdef __AVX2__
#include "replay/delta_flush_wide.h"
#endif
#include "replay/replay_rows.h"
#include "replay/ring.h"

/* One row of a call, and where in the ring its records lie. */
struct job {
    const sc_k_decode_params *p; /* NULL: no token (FOLD) */
    const sc_k_delta_shape *s;
    const sc_k_slots *state;
    const sc_k_ring *ring;
    struct ring_delta at;
    sc_dtype dtype;
    uint32_t r, records;
    int32_t source, dest, save;
};

SC_REF_INLINE const float *record_f32(const uint8_t *record, uint64_t offset)
{
    return (const float *)(const void *)(record + offset);
}

/* ---- output only ---- */

/* read[v] = S0[v] . wk, out[v] = S0[v] . wq for `rows` rows of a base. */
SC_REF_INLINE void read_plain(float *restrict read, float *restrict out, const uint8_t *from,
    uint32_t rows, uint32_t k_dim, sc_dtype dtype, const float *wk, const float *wq)
{
    float line[SC_K_DIM_MAX];
    for (uint32_t v = 0; v < rows; v++) {
        const float *s = (const float *)(const void *)from + (size_t)v * k_dim;
        if (dtype != SC_DTYPE_F32) {
            ref_load(line, sc_host_devptr(from), dtype, (int64_t)v * k_dim, k_dim);
            s = line;
        }
        read[v] = ref_dot(s, wk, k_dim);
        out[v] = ref_dot(s, wq, k_dim);
    }
}

#ifdef __AVX2__
/* Two rows at a time: the bits of ref_dot(). */
SC_REF_INLINE void read_wide(float *restrict read, float *restrict out, const uint8_t *from,
    uint32_t rows, uint32_t nv, sc_dtype dtype, const float *wk, const float *wq, bool fetch)
{
    size_t row_bytes = (size_t)nv * 16 * (dtype == SC_DTYPE_F32 ? 4 : 2);
    uint32_t v = 0;
    for (; v + 2 <= rows; v += 2) {
        const uint8_t *at = from + v * row_bytes;
        v16 sums[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
        float dots[4];
        UNROLL for (uint32_t i = 0; i < nv; i += 2) {
            v16 s[2][2];
            UNROLL for (uint32_t j = 0; j < 2; j++) {
                const uint8_t *two = at + j * row_bytes + i * (row_bytes / nv);
                if (fetch) wide_fetch_read(two, 2 * row_bytes / nv);
                wide_load(two, dtype, 2, s[j]);
            }
            UNROLL for (uint32_t l = 0; l < 2; l++) {
                v16 key = v16_load(wk + 16 * (i + l)), query = v16_load(wq + 16 * (i + l));
                UNROLL for (uint32_t j = 0; j < 2; j++) {
                    sums[j] = v16_add(sums[j], v16_mul(s[j][l], key));
                    sums[2 + j] = v16_add(sums[2 + j], v16_mul(s[j][l], query));
                }
            }
        }
        v16_sums(sums, dots);
        read[v] = dots[0], read[v + 1] = dots[1];
        out[v] = dots[2], out[v + 1] = dots[3];
    }
    if (v < rows)
        read_plain(read + v, out + v, from + v * row_bytes, rows - v, nv * 16, dtype, wk, wq);
}

/* For a k_dim that wide_knows(). */
SC_REF_INLINE void read_sized(float *restrict read, float *restrict out, const uint8_t *from,
    uint32_t rows, uint32_t k_dim, sc_dtype dtype, const float *wk, const float *wq, bool fetch)
{
    if (k_dim == 128)
        read_wide(read, out, from, rows, 8, dtype, wk, wq, fetch);
    else if (k_dim == 64)
        read_wide(read, out, from, rows, 4, dtype, wk, wq, fetch);
    else
        read_wide(read, out, from, rows, 16, dtype, wk, wq, fetch);
}
#endif

static void read_base(float *restrict read, float *restrict out, const struct job *j, uint32_t hv,
    const float *wk, const float *wq)
{
    uint32_t k_dim = j->s->k_dim, rows = j->s->v_dim;
    if (j->source == 0) {
        memset(read, 0, rows * sizeof(float));
        memset(out, 0, rows * sizeof(float));
        return;
    }
    const uint8_t *from = (const uint8_t *)sc_host_ptr(ref_slot(j->state, j->source))
        + delta_at(j->s, hv, 0) * (j->state->dtype == SC_DTYPE_F32 ? 4 : 2);
    sc_dtype dtype = j->state->dtype;
#ifdef __AVX2__
    if (wide_knows(k_dim)) {
        if (dtype == SC_DTYPE_F32 && wide_fetches_itself())
            read_sized(read, out, from, rows, k_dim, SC_DTYPE_F32, wk, wq, false);
        else if (dtype == SC_DTYPE_F32)
            read_sized(read, out, from, rows, k_dim, SC_DTYPE_F32, wk, wq, true);
        else
            read_sized(read, out, from, rows, k_dim, SC_DTYPE_BF16, wk, wq, true);
        return;
    }
#endif
    read_plain(read, out, from, rows, k_dim, dtype, wk, wq);
}

SC_REF_INLINE void decay_two(float *restrict a, float *restrict b, const float *decay, uint32_t n,
    uint32_t decays)
{
    if (decays == 1)
        for (uint32_t i = 0; i < n; i++) a[i] = a[i] * decay[0], b[i] = b[i] * decay[0];
    else
        for (uint32_t i = 0; i < n; i++) a[i] = a[i] * decay[i], b[i] = b[i] * decay[i];
}

/* What record i has of the next head: pieces that are too short for a processor to fetch them by
 * itself. Of the last head it is what happens to come then. */
SC_REF_INLINE void record_fetch(const struct job *j, const uint8_t *record, uint32_t hv)
{
#ifdef __AVX2__
    const sc_k_delta_shape *s = j->s;
    uint32_t elem = j->dtype == SC_DTYPE_F32 ? 4 : 2, ratio = s->v_heads / s->heads;
    wide_fetch_far(record + j->at.d + (size_t)(hv + 1) * s->v_dim * 4, s->v_dim * sizeof(float));
    if (j->at.decays > 1)
        wide_fetch_far(record + j->at.decay + (size_t)(hv + 1) * s->k_dim * 4,
            s->k_dim * sizeof(float));
    if ((hv + 1) % ratio == 0)
        wide_fetch_far(record + j->at.k + (size_t)(hv + 1) / ratio * s->k_dim * elem,
            (size_t)s->k_dim * elem);
#else
    (void)j, (void)record, (void)hv;
#endif
}

/* Carries wq and wk back over the records, and reads each record's k with both on the way. */
SC_REF_INLINE void walk_back(const struct job *j, uint32_t hv, float *restrict wk,
    float *restrict wq, float *restrict ck, float *restrict cq)
{
    const sc_k_delta_shape *s = j->s;
    uint32_t h = hv / (s->v_heads / s->heads), decays = j->at.decays;
    float key[SC_K_DIM_MAX];
    for (uint32_t i = j->records; i-- > 0;) {
        const uint8_t *record = ring_record(j->ring, j->r, i);
        const float *decay = record_f32(record, j->at.decay) + (size_t)hv * decays;
        record_fetch(j, record, hv);
        float inverse = record_f32(record, j->at.inverse)[h];
        ref_load(key, sc_host_devptr(record + j->at.k), j->dtype, (int64_t)h * s->k_dim, s->k_dim);
        ck[i] = inverse * ref_dot(key, wk, s->k_dim);
        cq[i] = inverse * ref_dot(key, wq, s->k_dim);
        decay_two(wk, wq, decay, s->k_dim, decays);
    }
}

/* What row r's token leaves in the ring, but for its heads' d. */
static void record_write(const struct job *j, uint32_t hv, const struct tokens *x, const float *d)
{
    const sc_k_delta_shape *s = j->s;
    uint32_t ratio = s->v_heads / s->heads, h = hv / ratio, elem = j->dtype == SC_DTYPE_F32 ? 4 : 2;
    uint8_t *record = ring_record(j->ring, j->r, j->records);
    memcpy(record + j->at.d + (size_t)hv * s->v_dim * 4, d, s->v_dim * sizeof(float));
    memcpy(record + j->at.decay + (size_t)hv * j->at.decays * 4, x->alpha, j->at.decays * 4);
    memcpy(record + j->at.beta + (size_t)hv * 4, x->beta, sizeof(float));
    memcpy(record + j->at.v + (size_t)hv * s->v_dim * elem,
        (const uint8_t *)sc_host_ptr(j->p->v) + decode_v_at(j->p, j->r, hv) * elem,
        (size_t)s->v_dim * elem);
    if (hv % ratio != 0) return;
    float key[SC_K_DIM_MAX], inverse = 1.0f;
    const uint8_t *k = (const uint8_t *)sc_host_ptr(j->p->k) + decode_k_at(j->p, j->r, hv) * elem;
    memcpy(record + j->at.k + (size_t)h * s->k_dim * elem, k, (size_t)s->k_dim * elem);
    ref_load(key, sc_host_devptr(k), j->dtype, 0, s->k_dim);
    if (s->qk_l2norm) inverse = 1.0f / sqrtf(ref_dot(key, key, s->k_dim) + 1e-6f);
    memcpy(record + j->at.inverse + (size_t)h * 4, &inverse, sizeof inverse);
}

static void append_head(const struct job *j, uint32_t hv)
{
    const sc_k_delta_shape *s = j->s;
    uint64_t vo = (uint64_t)s->v_heads * s->v_dim;
    float wk[SC_K_DIM_MAX], wq[SC_K_DIM_MAX], read[SC_K_DIM_MAX], out[SC_K_DIM_MAX];
    float ck[SC_REPLAY_RECORDS_MAX], cq[SC_REPLAY_RECORDS_MAX];
    struct tokens x;
    x.count = 0;
    decode_token(&x, j->p, j->r, hv);
    ref_load(x.v, j->p->v, j->dtype, decode_v_at(j->p, j->r, hv), s->v_dim);
    memcpy(wk, x.k, s->k_dim * sizeof(float));
    memcpy(wq, x.q, s->k_dim * sizeof(float));
    decay_two(wk, wq, x.alpha, s->k_dim, s->k_dim);
    walk_back(j, hv, wk, wq, ck, cq);
    read_base(read, out, j, hv, wk, wq);
    for (uint32_t i = 0; i < j->records; i++) {
        const float *d = record_f32(ring_record(j->ring, j->r, i), j->at.d) + (size_t)hv * s->v_dim;
        for (uint32_t v = 0; v < s->v_dim; v++) {
            read[v] = read[v] + d[v] * ck[i];
            out[v] = out[v] + d[v] * cq[i];
        }
    }
    for (uint32_t v = 0; v < s->v_dim; v++) {
        read[v] = x.beta[0] * (x.v[v] - read[v]);
        out[v] = out[v] + read[v] * x.kq[0];
    }
    record_write(j, hv, &x, read);
    ref_store(out, j->p->o, j->dtype,
        j->r * sc_kernel_stride(j->p->o_stride, vo) + (int64_t)hv * s->v_dim, s->v_dim);
}

/* ---- flush ---- */

/* Record i becomes the next token of x; its output is of no interest. */
SC_REF_INLINE void record_token(struct tokens *x, const struct job *j, uint32_t i, uint32_t hv,
    uint32_t v0, uint32_t rows)
{
    const sc_k_delta_shape *s = j->s;
    const uint8_t *record = ring_record(j->ring, j->r, i);
    const float *decay = record_f32(record, j->at.decay) + (size_t)hv * j->at.decays;
    int64_t h = hv / (s->v_heads / s->heads);
    uint32_t t = x->count++;
    float *alpha = x->alpha + (size_t)t * s->k_dim, *k = x->k + (size_t)t * s->k_dim;
    delta_load_k(k, s, sc_host_devptr(record + j->at.k), h * s->k_dim, j->dtype);
    memcpy(x->q + (size_t)t * s->k_dim, k, s->k_dim * sizeof(float)); /* if plain_steps() asks */
    x->kq[t] = 0.0f;
    for (uint32_t d = 0; d < s->k_dim; d++) alpha[d] = decay[j->at.decays == 1 ? 0 : d];
    x->beta[t] = record_f32(record, j->at.beta)[hv];
    ref_load(x->v + (size_t)t * rows, sc_host_devptr(record + j->at.v), j->dtype,
        (int64_t)hv * s->v_dim + v0, rows);
}

SC_REF_INLINE void base_load(float *block, const struct job *j, int64_t at, uint32_t n)
{
    const sc_k_slots none = {.base = 0};
    struct ref_begin from = ref_begin(j->state, &none, j->source, 0);
    ref_begin_load(block, &from, at, n);
}

/* The row's own token comes last. */
SC_REF_INLINE void own_token(struct tokens *x, const struct job *j, uint32_t hv, uint32_t v0,
    uint32_t rows)
{
    ref_load(x->v + (size_t)x->count * rows, j->p->v, j->dtype,
        decode_v_at(j->p, j->r, hv) + v0, rows);
    decode_token(x, j->p, j->r, hv);
}

/* All tokens in one go, from slot to slot where that can be streamed. */
SC_REF_INLINE void flush_once(const struct job *j, int64_t at, uint32_t rows, struct tokens *x)
{
    tokens_ready(x, j->s->k_dim, j->state->dtype);
#ifdef __AVX2__
    if (wide_knows(j->s->k_dim) && x->count > 0) {
        struct wide_stream w = {.from = wide_at(j->state, j->source, at),
            .to = {wide_at(j->state, j->dest, at), wide_at(j->state, j->save, at)},
            .rows = rows, .dtype = j->state->dtype};
        flush_wide(&w, j->s->k_dim, x, j->p != NULL);
        return;
    }
#endif
    float block[BLOCK_ELEMS];
    uint32_t n = rows * j->s->k_dim;
    base_load(block, j, at, n);
    delta_steps(block, rows, j->s->k_dim, x, j->state->dtype);
    block_store(block, j->state, j->dest, at, n);
    block_store(block, j->state, j->save, at, n);
}

/* More than TOKENS_MAX of them: the block waits between two batches. */
SC_REF_INLINE void flush_long(const struct job *j, uint32_t hv, uint32_t v0, uint32_t rows,
    struct tokens *x)
{
    float block[BLOCK_ELEMS];
    int64_t at = delta_at(j->s, hv, v0);
    uint32_t n = rows * j->s->k_dim, tokens = j->records + (j->p != NULL);
    base_load(block, j, at, n);
    for (uint32_t i = 0; i < tokens;) {
        for (x->count = 0; i < j->records && x->count < TOKENS_MAX;)
            record_token(x, j, i++, hv, v0, rows);
        if (i == j->records && j->p != NULL && x->count < TOKENS_MAX) {
            own_token(x, j, hv, v0, rows);
            i++;
        }
        tokens_ready(x, j->s->k_dim, j->state->dtype);
        delta_steps(block, rows, j->s->k_dim, x, j->state->dtype);
    }
    block_store(block, j->state, j->dest, at, n);
    block_store(block, j->state, j->save, at, n);
}

static void flush_block(const struct job *j, uint32_t hv, uint32_t v0)
{
    const sc_k_delta_shape *s = j->s;
    uint32_t rows = block_rows(s, v0);
    struct tokens x;
    x.count = 0;
    if (j->records + (j->p != NULL) > TOKENS_MAX) {
        flush_long(j, hv, v0, rows, &x);
    } else {
        for (uint32_t i = 0; i < j->records; i++) record_token(&x, j, i, hv, v0, rows);
        if (j->p != NULL) own_token(&x, j, hv, v0, rows);
        flush_once(j, delta_at(s, hv, v0), rows, &x);
    }
    if (j->p == NULL) return;
    ref_store(x.o + (size_t)(x.count - 1) * rows, j->p->o, j->dtype,
        j->r * sc_kernel_stride(j->p->o_stride, (uint64_t)s->v_heads * s->v_dim)
            + (int64_t)hv * s->v_dim + v0, rows);
}

/* ---- calls ---- */

sc_status SC_HOST_FN(sc_k_replay_delta)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_replay_delta_params *c = params;
    const sc_k_decode_params apart = delta_unpack(&c->step), *p = &apart;
    const int32_t *source = sc_host_ptr(p->source), *dest = sc_host_ptr(p->dest);
    const int32_t *save = sc_host_ptr(p->save);
    uint32_t vo = p->shape.v_heads * p->shape.v_dim;
    struct job j = {.p = p, .s = &p->shape, .state = &p->state, .ring = &c->ring,
        .at = ring_delta_at(&p->shape, p->dtype), .dtype = p->dtype};
    for (j.r = 0; j.r < p->row_count; j.r++) {
        int32_t mode = ring_mode(&c->ring, source, j.r);
        if (mode == SC_REPLAY_NONE) {
            ref_store_zero(p->o, p->dtype, j.r * sc_kernel_stride(p->o_stride, vo), vo);
            continue;
        }
        j.records = ring_records(&c->ring, j.r);
        j.source = source[j.r], j.dest = dest[j.r], j.save = save != NULL ? save[j.r] : 0;
        for (uint32_t hv = 0; hv < p->shape.v_heads; hv++) {
            if (mode == SC_REPLAY_APPEND) append_head(&j, hv);
            for (uint32_t v0 = 0; mode == SC_REPLAY_FLUSH && v0 < p->shape.v_dim;
                 v0 += block_rows(&p->shape, v0))
                flush_block(&j, hv, v0);
        }
    }
    return SC_OK;
}

sc_status SC_HOST_FN(sc_k_replay_delta_fold)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_replay_delta_fold_params *p = params;
    const int32_t *source = sc_host_ptr(p->source), *dest = sc_host_ptr(p->dest);
    struct job j = {.s = &p->shape, .state = &p->state, .ring = &p->ring,
        .at = ring_delta_at(&p->shape, p->dtype), .dtype = p->dtype};
    for (j.r = 0; j.r < p->row_count; j.r++) {
        if (ring_mode(&p->ring, source, j.r) != SC_REPLAY_FOLD) continue;
        j.records = ring_records(&p->ring, j.r);
        j.source = source[j.r], j.dest = dest[j.r];
        for (uint32_t hv = 0; hv < p->shape.v_heads; hv++)
            for (uint32_t v0 = 0; v0 < p->shape.v_dim; v0 += block_rows(&p->shape, v0))
                flush_block(&j, hv, v0);
    }
    return SC_OK;
}

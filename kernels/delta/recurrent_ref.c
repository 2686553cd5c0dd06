/* SPDX-License-Identifier: Apache-2.0 */
/* The delta rule token by token on the host: packed batches and packed decode.
 *
 * Rows of S never meet: row v needs only its own K values and q, k, alpha of the token. So a block
 * of rows stays in a buffer on the stack while the tokens of one sequence pass:
 *
 *   S[v0 .. v0+n) --load--> block --step--> ... --step--> block --store--> dest, saves
 *
 * 16-bit states are rounded after every step, which is what storing and loading them would do;
 * hence T tokens in one call and T calls of one token give the same bits.
 *
 * Bytes moved: each state once in and once out. Cost: about 4 K V multiply-adds a token and
 * head. */
#include "delta/tokens.h"
#include "kernel_dispatch.h"

SC_REF_INLINE void block_saves(const float *block, const sc_k_delta_params *p, uint32_t r,
    int64_t pos, int64_t at, uint32_t n)
{
    const int32_t *row = sc_host_ptr(p->saves.row), *save_pos = sc_host_ptr(p->saves.pos);
    const int32_t *slot = sc_host_ptr(p->saves.slot);
    for (uint32_t i = 0; i < p->saves.count; i++)
        if (row[i] == (int32_t)r && save_pos[i] == pos)
            block_store(block, &p->state, slot[i], at, n);
}

/* Is the state of row r wanted after `pos` tokens? */
SC_REF_INLINE bool saved_at(const sc_k_delta_params *p, uint32_t r, int64_t pos)
{
    const int32_t *row = sc_host_ptr(p->saves.row), *save_pos = sc_host_ptr(p->saves.pos);
    for (uint32_t i = 0; i < p->saves.count; i++)
        if (row[i] == (int32_t)r && save_pos[i] == pos) return true;
    return false;
}

/* Rows v0.. of one head of one sequence, all its tokens, TOKENS_MAX at a time or up to a save. */
static void recurrent_block(const sc_k_delta_params *p, uint32_t r, uint32_t hv, uint32_t v0)
{
    const sc_k_delta_shape *s = &p->shape;
    const int32_t *row_start = sc_host_ptr(p->row_start);
    const int32_t *position = sc_host_ptr(p->position);
    uint32_t rows = block_rows(s, v0), n = rows * s->k_dim;
    int64_t stride = sc_kernel_stride(p->o_stride, (uint64_t)s->v_heads * s->v_dim);
    int64_t at = delta_at(s, hv, v0), pos = position != NULL ? position[r] : 0;
    float block[BLOCK_ELEMS];
    struct tokens x;
    struct ref_begin from = delta_begin(p, r);
    ref_begin_load(block, &from, at, n);
    for (int64_t t = row_start[r], end = row_start[r + 1]; t < end;) {
        bool save = false;
        for (x.count = 0; t + x.count < end && x.count < TOKENS_MAX && !save;) {
            token_load(&x, p, t + x.count, hv, v0, rows);
            save = p->saves.count > 0 && saved_at(p, r, pos + x.count);
        }
        tokens_ready(&x, s->k_dim, p->state.dtype);
        delta_steps(block, rows, s->k_dim, &x, p->state.dtype);
        for (uint32_t i = 0; i < x.count; i++)
            ref_store(x.o + (size_t)i * rows, p->o, p->dtype,
                (t + i) * stride + (int64_t)hv * s->v_dim + v0, rows);
        t += x.count;
        pos += x.count;
        if (save) block_saves(block, p, r, pos, at, n);
    }
    block_store(block, &p->state, ((const int32_t *)sc_host_ptr(p->dest))[r], at, n);
}

sc_status SC_HOST_FN(sc_k_delta_recurrent)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_delta_params *p = params;
    for (uint32_t r = 0; r < p->row_count; r++) {
        if (delta_row_idle(p, r)) continue;
        for (uint32_t hv = 0; hv < p->shape.v_heads; hv++)
            for (uint32_t v0 = 0; v0 < p->shape.v_dim; v0 += block_rows(&p->shape, v0))
                recurrent_block(p, r, hv, v0);
    }
    return SC_OK;
}

/* Rows v0.. of a head through a block, for what cannot be streamed. */
SC_REF_INLINE void decode_block(const sc_k_decode_params *p, uint32_t r, int64_t at,
    uint32_t rows, struct tokens *x)
{
    const int32_t *source = sc_host_ptr(p->source), *dest = sc_host_ptr(p->dest);
    const int32_t *save = sc_host_ptr(p->save);
    uint32_t n = rows * p->shape.k_dim;
    float block[BLOCK_ELEMS];
    struct ref_begin from = ref_begin(&p->state, &p->initial, source[r], r);
    ref_begin_load(block, &from, at, n);
    delta_steps(block, rows, p->shape.k_dim, x, p->state.dtype);
    block_store(block, &p->state, dest[r], at, n);
    if (save != NULL) block_store(block, &p->state, save[r], at, n);
}

#ifdef __AVX2__
/* The state that is worked on after element `at` of row r: that of its next head, or of the next
 * row's first. */
SC_REF_INLINE const uint8_t *decode_next(const sc_k_decode_params *p, uint32_t r, int64_t at)
{
    const int32_t *source = sc_host_ptr(p->source);
    int64_t head = delta_at(&p->shape, 1, 0), end = delta_at(&p->shape, p->shape.v_heads, 0);
    if (at + head < end) return wide_at(&p->state, source[r], at + head);
    return r + 1 < p->row_count ? wide_at(&p->state, source[r + 1], at + head - end) : NULL;
}

SC_REF_INLINE void decode_rows(const sc_k_decode_params *p, uint32_t r, int64_t at,
    uint32_t rows, struct tokens *x)
{
    if (!wide_knows(p->shape.k_dim) || p->initial.base != 0) {
        decode_block(p, r, at, rows, x);
        return;
    }
    const int32_t *save = sc_host_ptr(p->save);
    struct wide_stream w = {
        .from = wide_at(&p->state, ((const int32_t *)sc_host_ptr(p->source))[r], at),
        .to = {wide_at(&p->state, ((const int32_t *)sc_host_ptr(p->dest))[r], at),
            wide_at(&p->state, save != NULL ? save[r] : 0, at)},
        .next = decode_next(p, r, at), .rows = rows, .dtype = p->state.dtype};
    wide_stream_run(&w, p->shape.k_dim, x);
}

/* Third `part` of what is fetched of a head while its token is prepared. */
SC_REF_INLINE void decode_begin(const sc_k_decode_params *p, uint32_t r, uint32_t hv,
    uint32_t part)
{
    if (p->initial.base != 0) return;
    const int32_t *source = sc_host_ptr(p->source);
    int64_t at = delta_at(&p->shape, hv, 0);
    wide_stream_begin(wide_at(&p->state, source[r], at), decode_next(p, r, at), p->shape.v_dim,
        part);
}
#else
#define decode_rows decode_block
#define decode_begin(p, r, hv, part) ((void)0)
#endif

/* The one token of a head, x->count == 1. v heads that share q and k find them in token 1. */
SC_REF_INLINE void decode_prepare(struct tokens *x, const sc_k_decode_params *p, uint32_t r,
    uint32_t hv)
{
    const sc_k_delta_shape *s = &p->shape;
    uint32_t shares = s->v_heads / s->heads;
    decode_begin(p, r, hv, 0);
    if (hv % shares == 0) decode_qk(x, shares > 1, p, r, hv);
    if (shares > 1) {
        memcpy(x->q, x->q + s->k_dim, s->k_dim * sizeof(float));
        memcpy(x->k, x->k + s->k_dim, s->k_dim * sizeof(float));
        x->kq[0] = x->kq[1];
    }
    decode_begin(p, r, hv, 1);
    apart_gates(x->alpha, &x->beta[0], p, r, hv);
    tokens_ready(x, s->k_dim, p->state.dtype);
    decode_begin(p, r, hv, 2);
}

static void decode_head(const sc_k_decode_params *p, uint32_t r, uint32_t hv, struct tokens *x)
{
    const sc_k_delta_shape *s = &p->shape;
    uint64_t vo = (uint64_t)s->v_heads * s->v_dim;
    decode_prepare(x, p, r, hv);
    for (uint32_t v0 = 0, rows; v0 < s->v_dim; v0 += rows) {
        rows = block_rows(s, v0);
        ref_load(x->v, p->v, p->dtype, decode_v_at(p, r, hv) + v0, rows);
        decode_rows(p, r, delta_at(s, hv, v0), rows, x);
        ref_store(x->o, p->o, p->dtype,
            r * sc_kernel_stride(p->o_stride, vo) + (int64_t)hv * s->v_dim + v0, rows);
    }
}

sc_status SC_HOST_FN(sc_k_decode)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_decode_params *p = params;
    const int32_t *source = sc_host_ptr(p->source);
    uint32_t vo = p->shape.v_heads * p->shape.v_dim;
    struct tokens x;
    x.count = 1;
    for (uint32_t r = 0; r < p->row_count; r++) {
        if (source[r] < 0) {
            ref_store_zero(p->o, p->dtype, r * sc_kernel_stride(p->o_stride, vo), vo);
            continue;
        }
        for (uint32_t hv = 0; hv < p->shape.v_heads; hv++) decode_head(p, r, hv, &x);
    }
    return SC_OK;
}

sc_status SC_HOST_FN(sc_k_decode_packed)(const void *params, sc_stream *stream)
{
    const sc_k_decode_params p = delta_unpack(params);
    return SC_HOST_FN(sc_k_decode)(&p, stream);
}

sc_status SC_HOST_FN(sc_k_qkv_split)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_qkv_split_params *p = params;
    uint64_t elem_bytes = sc_kernel_elem_bytes(p->dtype), qk = p->qk_dim, v = p->v_dim;
    uint64_t pitch = (uint64_t)sc_kernel_stride(p->qkv_stride, 2 * qk + v) * elem_bytes;
    const struct {
        sc_devptr to;
        int64_t stride;
        uint64_t first, width;
    } parts[] = {{p->q, p->q_stride, 0, qk}, {p->k, p->k_stride, qk, qk},
        {p->v, p->v_stride, 2 * qk, v}};
    for (uint32_t i = 0; i < 3; i++)
        for (uint64_t t = 0; parts[i].to != 0 && t < p->token_count; t++)
            memcpy(sc_host_ptr(parts[i].to + t * elem_bytes
                    * (uint64_t)sc_kernel_stride(parts[i].stride, parts[i].width)),
                sc_host_ptr(p->qkv + t * pitch + parts[i].first * elem_bytes),
                parts[i].width * elem_bytes);
    return SC_OK;
}

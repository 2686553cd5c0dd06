/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel tests share: tensors of either dtype, poisoned pools of any stride, and a batch
 * of the delta rule that is packed from pieces of sequences and whose outputs go back to them. */
#ifndef SC_TESTS_KERNELS_RIG_H
#define SC_TESTS_KERNELS_RIG_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "kernels/backend.h"

#define RIG_OK(expr)                                                                               \
    do {                                                                                           \
        sc_status rig_status_ = (expr);                                                            \
        ck_assert_msg(rig_status_ == SC_OK, "%s: %s: %s", #expr, sc_status_name(rig_status_),      \
            sc_last_error()->text);                                                                \
    } while (0)

static inline void *rig_alloc(size_t bytes)
{
    void *ptr = aligned_alloc(64, (bytes + 64) / 64 * 64);
    ck_assert_ptr_nonnull(ptr);
    memset(ptr, 0xff, (bytes + 64) / 64 * 64); /* NaN in either dtype */
    return ptr;
}

static inline size_t rig_elem(sc_dtype dtype)
{
    return dtype == SC_DTYPE_BF16 ? 2 : 4;
}

static inline uint16_t rig_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float rig_wide(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline void rig_put(void *out, sc_dtype dtype, const float *in, size_t count)
{
    if (dtype == SC_DTYPE_F32)
        memcpy(out, in, count * 4);
    else
        for (size_t n = 0; n < count; n++) ((uint16_t *)out)[n] = rig_bf16(in[n]);
}

static inline void rig_read(float *out, const void *in, sc_dtype dtype, size_t count)
{
    if (dtype == SC_DTYPE_F32)
        memcpy(out, in, count * 4);
    else
        for (size_t n = 0; n < count; n++) out[n] = rig_wide(((const uint16_t *)in)[n]);
}

/* A new tensor of `dtype` with these values, or poisoned when `in` is NULL. */
static inline void *rig_tensor(sc_dtype dtype, const float *in, size_t count)
{
    void *out = rig_alloc(count * rig_elem(dtype));
    if (in != NULL) rig_put(out, dtype, in, count);
    return out;
}

/* Bell-shaped, mean 0, variance `scale`^2: sums of four 16-bit numbers. */
static inline float *rig_normal(struct sc_prng *prng, size_t count, float scale)
{
    float *out = rig_alloc(count * 4);
    for (size_t n = 0; n < count; n++) {
        uint64_t u = sc_prng_next(prng);
        uint64_t sum = (u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48);
        out[n] = scale * 1.7320508f * ((float)sum / 65536.0f - 2.0f);
    }
    return out;
}

/* A poisoned pool part: all bytes 0xff, slot 0 too, so that whoever reads it shows. */
struct rig_pool {
    sc_k_slots slots;
    uint8_t *memory;
    size_t bytes;
    size_t part_elems;
};

static inline struct rig_pool rig_pool(sc_dtype dtype, size_t part_elems, uint32_t slot_count,
    size_t stride, size_t offset)
{
    struct rig_pool pool = {.part_elems = part_elems};
    size_t dense = part_elems * rig_elem(dtype);
    if (stride == 0) stride = dense;
    pool.bytes = offset + stride * slot_count;
    pool.memory = rig_alloc(pool.bytes);
    pool.slots = (sc_k_slots){.base = sc_host_devptr(pool.memory + offset),
        .slot_stride = (int64_t)stride, .dtype = dtype, .slot_count = slot_count};
    return pool;
}

static inline void *rig_slot(const struct rig_pool *pool, int32_t slot)
{
    return sc_host_ptr(pool->slots.base + (uint64_t)(slot * pool->slots.slot_stride));
}

static inline size_t rig_part_bytes(const struct rig_pool *pool)
{
    return pool->part_elems * rig_elem(pool->slots.dtype);
}

static inline void rig_same_slots(const struct rig_pool *a, int32_t a_slot,
    const struct rig_pool *b, int32_t b_slot)
{
    ck_assert_mem_eq(rig_slot(a, a_slot), rig_slot(b, b_slot), rig_part_bytes(a));
}

/* All bytes are `value`; one assertion, since Check writes each down. */
static inline void rig_all_bytes(const void *ptr, size_t bytes, uint8_t value)
{
    const uint8_t *at = ptr;
    size_t n = 0;
    while (n < bytes && at[n] == value) n++;
    ck_assert_msg(n == bytes, "byte %zu of %zu is 0x%02x, not 0x%02x", n, bytes,
        n < bytes ? at[n] : 0, value);
}

/* No byte of the slot was written. */
static inline void rig_untouched(const struct rig_pool *pool, int32_t slot)
{
    rig_all_bytes(rig_slot(pool, slot), rig_part_bytes(pool), 0xff);
}

/* ---- sequences of the delta rule ---- */

struct rig_seq {
    uint32_t tokens;
    int32_t position;         /* absolute position of its first token here */
    float *q, *k, *v, *g, *beta;
    uint8_t *o;               /* outputs as the kernel wrote them */
};

enum { RIG_SEQS = 3, RIG_PIECES = 8, RIG_SAVES = 8 };

struct rig_delta {
    sc_k_delta_shape shape;
    sc_dtype dtype;
    uint32_t chunk;           /* 0: recurrent */
    struct rig_seq seq[RIG_SEQS];
};

struct rig_piece {
    int32_t seq;              /* -1: no row, `to` tokens of padding */
    uint32_t from, to;        /* tokens of the sequence */
    int32_t source, dest;
};

struct rig_save {
    int32_t row, pos, slot;
};

static inline size_t rig_qk(const struct rig_delta *d)
{
    return (size_t)d->shape.heads * d->shape.k_dim;
}

static inline size_t rig_vo(const struct rig_delta *d)
{
    return (size_t)d->shape.v_heads * d->shape.v_dim;
}

static inline size_t rig_g(const struct rig_delta *d)
{
    return (size_t)d->shape.v_heads * (d->shape.kind == SC_K_KIND_GDN ? 1 : d->shape.k_dim);
}

static inline size_t rig_state_elems(const struct rig_delta *d)
{
    return rig_vo(d) * d->shape.k_dim;
}

static inline void rig_seq_init(struct rig_delta *d, uint32_t i, uint32_t tokens,
    int32_t position, uint64_t seed)
{
    struct sc_prng prng;
    struct rig_seq *s = &d->seq[i];
    sc_prng_seed(&prng, seed);
    s->tokens = tokens;
    s->position = position;
    s->q = rig_normal(&prng, tokens * rig_qk(d), 1.0f);
    s->k = rig_normal(&prng, tokens * rig_qk(d), 1.0f);
    s->v = rig_normal(&prng, tokens * rig_vo(d), 1.0f);
    s->g = rig_alloc(tokens * rig_g(d) * 4);
    s->beta = rig_alloc((size_t)tokens * d->shape.v_heads * 4);
    for (size_t n = 0; n < tokens * rig_g(d); n++)
        s->g[n] = -0.5f * (float)(sc_prng_unit(&prng) * sc_prng_unit(&prng));
    for (size_t n = 0; n < (size_t)tokens * d->shape.v_heads; n++)
        s->beta[n] = (float)sc_prng_unit(&prng);
    s->o = rig_alloc(tokens * rig_vo(d) * rig_elem(d->dtype));
}

static inline void rig_delta_free(struct rig_delta *d)
{
    for (uint32_t i = 0; i < RIG_SEQS; i++) {
        struct rig_seq *s = &d->seq[i];
        free(s->q), free(s->k), free(s->v), free(s->g), free(s->beta), free(s->o);
    }
}

static inline uint8_t *rig_o(const struct rig_delta *d, uint32_t seq, uint32_t token)
{
    return d->seq[seq].o + token * rig_vo(d) * rig_elem(d->dtype);
}

/* Packed arrays of one call. */
struct rig_batch {
    sc_k_delta_params p;
    int32_t start[RIG_PIECES + 1], position[RIG_PIECES], source[RIG_PIECES], dest[RIG_PIECES];
    int32_t save_row[RIG_SAVES], save_pos[RIG_SAVES], save_slot[RIG_SAVES];
    float *q, *k, *v, *g, *beta;
    void *tensors[5];
    uint32_t tokens;
};

static inline void rig_pack(struct rig_batch *b, const struct rig_delta *d,
    const struct rig_piece *pieces, uint32_t count)
{
    memset(b, 0, sizeof *b);
    for (uint32_t r = 0; r < count; r++) b->tokens += pieces[r].to - pieces[r].from;
    size_t room = b->tokens + 1;
    b->q = rig_alloc(room * rig_qk(d) * 4), b->k = rig_alloc(room * rig_qk(d) * 4);
    b->v = rig_alloc(room * rig_vo(d) * 4), b->g = rig_alloc(room * rig_g(d) * 4);
    b->beta = rig_alloc(room * d->shape.v_heads * 4);
    uint32_t at = 0;
    for (uint32_t r = 0; r < count; r++) {
        const struct rig_piece *x = &pieces[r];
        uint32_t n = x->to - x->from;
        b->start[r] = (int32_t)at;
        b->source[r] = x->source;
        b->dest[r] = x->dest;
        if (x->seq >= 0) {
            const struct rig_seq *s = &d->seq[x->seq];
            b->position[r] = s->position + (int32_t)x->from;
            size_t qk = rig_qk(d), vo = rig_vo(d), g = rig_g(d), h = d->shape.v_heads;
            memcpy(b->q + at * qk, s->q + x->from * qk, n * qk * 4);
            memcpy(b->k + at * qk, s->k + x->from * qk, n * qk * 4);
            memcpy(b->v + at * vo, s->v + x->from * vo, n * vo * 4);
            memcpy(b->g + at * g, s->g + x->from * g, n * g * 4);
            memcpy(b->beta + at * h, s->beta + x->from * h, n * h * 4);
        }
        at += n;
    }
    b->start[count] = (int32_t)at;
}

static inline void rig_params(struct rig_batch *b, const struct rig_delta *d,
    const struct rig_pool *pool, uint32_t count, const struct rig_save *saves, uint32_t save_count)
{
    size_t room = b->tokens + 1;
    b->tensors[0] = rig_tensor(d->dtype, b->q, room * rig_qk(d));
    b->tensors[1] = rig_tensor(d->dtype, b->k, room * rig_qk(d));
    b->tensors[2] = rig_tensor(d->dtype, b->v, room * rig_vo(d));
    b->tensors[3] = rig_tensor(d->dtype, NULL, room * rig_vo(d));
    for (uint32_t i = 0; i < save_count; i++) {
        b->save_row[i] = saves[i].row;
        b->save_pos[i] = saves[i].pos;
        b->save_slot[i] = saves[i].slot;
    }
    b->p = (sc_k_delta_params){.q = sc_host_devptr(b->tensors[0]),
        .k = sc_host_devptr(b->tensors[1]), .v = sc_host_devptr(b->tensors[2]),
        .o = sc_host_devptr(b->tensors[3]), .dtype = d->dtype, .g = sc_host_devptr(b->g),
        .beta = sc_host_devptr(b->beta), .shape = d->shape, .token_count = b->tokens,
        .row_count = count, .row_start = sc_host_devptr(b->start),
        .position = sc_host_devptr(b->position), .source = sc_host_devptr(b->source),
        .dest = sc_host_devptr(b->dest),
        .saves = {sc_host_devptr(b->save_row), sc_host_devptr(b->save_pos),
            sc_host_devptr(b->save_slot), save_count},
        .state = pool->slots, .chunk = d->chunk};
    if (d->chunk != 0) {
        RIG_OK(sc_k_delta_chunk_scratch(NULL, &b->p, &b->p.scratch_bytes));
        b->tensors[4] = rig_alloc(b->p.scratch_bytes);
        b->p.scratch = sc_host_devptr(b->tensors[4]);
    }
}

static inline void rig_batch_free(struct rig_batch *b)
{
    free(b->q), free(b->k), free(b->v), free(b->g), free(b->beta);
    for (uint32_t i = 0; i < 5; i++) free(b->tensors[i]);
}

/* Runs the pieces as one call; outputs go to their sequences. A padded piece must give zeros, the
 * token after the batch must stay poisoned. */
static inline void rig_run(struct rig_delta *d, const struct rig_pool *pool,
    const struct rig_piece *pieces, uint32_t count, const struct rig_save *saves,
    uint32_t save_count)
{
    struct rig_batch b;
    rig_pack(&b, d, pieces, count);
    rig_params(&b, d, pool, count, saves, save_count);
    if (d->chunk != 0)
        RIG_OK(sc_k_delta_chunk(NULL, &b.p, NULL));
    else
        RIG_OK(sc_k_delta_recurrent(NULL, &b.p, NULL));
    size_t row = rig_vo(d) * rig_elem(d->dtype);
    const uint8_t *o = b.tensors[3];
    for (uint32_t r = 0; r < count; r++) {
        size_t n = pieces[r].to - pieces[r].from;
        const uint8_t *from = o + (size_t)b.start[r] * row;
        if (pieces[r].seq >= 0 && pieces[r].source >= 0)
            memcpy(rig_o(d, (uint32_t)pieces[r].seq, pieces[r].from), from, n * row);
        else
            rig_all_bytes(from, n * row, 0);
    }
    rig_all_bytes(o + b.tokens * row, row, 0xff);
    rig_batch_free(&b);
}

/* `call` with `field` at a bad `value`: this status, with a text; the field is as before then. */
#define RIG_REFUSED(want, call, field, value)                                                      \
    do {                                                                                           \
        __typeof__(field) good_ = (field);                                                         \
        (field) = (value);                                                                         \
        sc_status got_ = (call);                                                                   \
        ck_assert_msg(got_ == (want), "%s = %s: %s", #field, #value, sc_status_name(got_));        \
        ck_assert_uint_gt(strlen(sc_last_error()->text), 3);                                       \
        (field) = good_;                                                                           \
    } while (0)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Decode from separate tensors, the split of a packed batch, and dense beginnings: each gives the
 * bits of the form that the other tests compare with the oracle. */
#include <check.h>

#include "kernels_rig.h"
#include "support/check_main.h"
#include "statecache/kernels_draft.h"
#include "statecache/kernels_ssm.h"

enum { CASES = 12, ROWS = 4, SLOTS = 10, WIDTH = 4 };

/* A decode of four rows: in place, padded, from zeros, to another slot with a save. */
struct decode {
    struct rig_delta d;
    struct rig_pool pool;
    uint32_t qkv, gates;
    void *packed, *q, *k, *v, *a, *b, *o;
    float *w;
    int32_t source[ROWS], dest[ROWS], save[ROWS];
    sc_k_decode_packed_params p;
};

static void *tensor(struct sc_prng *prng, sc_dtype dtype, size_t count)
{
    float *x = rig_normal(prng, count, 1.0f);
    void *out = rig_tensor(dtype, x, count);
    free(x);
    return out;
}

static void fill(struct sc_prng *prng, const struct rig_pool *pool, int32_t slot)
{
    float *x = rig_normal(prng, pool->part_elems, 0.5f);
    rig_put(rig_slot(pool, slot), pool->slots.dtype, x, pool->part_elems);
    free(x);
}

static void shape_init(struct rig_delta *d, int i)
{
    static const uint32_t dims[][4] = {{1, 2, 128, 128}, {2, 2, 64, 24}, {1, 3, 19, 37},
        {2, 4, 256, 16}};
    const uint32_t *n = dims[i % 4];
    *d = (struct rig_delta){.shape = {.kind = i % 2 ? SC_K_KIND_KDA : SC_K_KIND_GDN,
        .heads = n[0], .v_heads = n[1], .k_dim = n[2], .v_dim = n[3], .qk_l2norm = i % 3 != 2},
        .dtype = i / 2 % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32};
}

static struct decode decode_open(int i)
{
    struct decode s = {.source = {1, -1, 0, 2}, .dest = {1, 3, 4, 5}, .save = {-1, -1, 6, 7}};
    struct sc_prng prng;
    sc_prng_seed(&prng, 900 + (uint64_t)i);
    shape_init(&s.d, i);
    sc_dtype dtype = s.d.dtype;
    s.qkv = (uint32_t)(2 * rig_qk(&s.d) + rig_vo(&s.d));
    s.gates = (uint32_t)rig_g(&s.d);
    s.pool = rig_pool(i % 3 ? SC_DTYPE_F32 : SC_DTYPE_BF16, rig_state_elems(&s.d), SLOTS, 0, 0);
    fill(&prng, &s.pool, 1), fill(&prng, &s.pool, 2);
    s.packed = tensor(&prng, dtype, (size_t)ROWS * s.qkv);
    s.q = rig_tensor(dtype, NULL, ROWS * (rig_qk(&s.d) + 8));
    s.k = rig_tensor(dtype, NULL, ROWS * rig_qk(&s.d));
    s.v = rig_tensor(dtype, NULL, ROWS * rig_vo(&s.d));
    s.a = tensor(&prng, dtype, (size_t)ROWS * s.gates);
    s.b = tensor(&prng, dtype, (size_t)ROWS * s.d.shape.v_heads);
    s.o = rig_tensor(dtype, NULL, ROWS * rig_vo(&s.d));
    s.w = rig_normal(&prng, s.gates + s.d.shape.v_heads, 0.5f);
    return s;
}

static void decode_point(struct decode *s)
{
    s->p = (sc_k_decode_packed_params){.qkv = sc_host_devptr(s->packed),
        .o = sc_host_devptr(s->o), .dtype = s->d.dtype, .a = sc_host_devptr(s->a),
        .b = sc_host_devptr(s->b),
        .weights = {.gate = s->d.shape.kind == SC_K_KIND_GDN ? SC_K_GATE_GDN
                                                             : SC_K_GATE_KDA_SOFTPLUS,
            .a_log = sc_host_devptr(s->w), .dt_bias = sc_host_devptr(s->w + s->d.shape.v_heads),
            .dt_bias_dtype = SC_DTYPE_F32},
        .shape = s->d.shape, .row_count = ROWS, .source = sc_host_devptr(s->source),
        .dest = sc_host_devptr(s->dest), .save = sc_host_devptr(s->save),
        .state = s->pool.slots};
}

static void decode_close(struct decode *s)
{
    void *all[] = {s->packed, s->q, s->k, s->v, s->a, s->b, s->o, s->w, s->pool.memory};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* The packed batch as three tensors, q with a margin. */
static sc_k_qkv_split_params split_params(const struct decode *s)
{
    return (sc_k_qkv_split_params){.qkv = sc_host_devptr(s->packed), .q = sc_host_devptr(s->q),
        .k = sc_host_devptr(s->k), .v = sc_host_devptr(s->v),
        .q_stride = (int64_t)rig_qk(&s->d) + 8, .dtype = s->d.dtype,
        .qk_dim = (uint32_t)rig_qk(&s->d), .v_dim = (uint32_t)rig_vo(&s->d), .token_count = ROWS};
}

static sc_k_decode_params apart_params(const struct decode *s)
{
    const sc_k_decode_packed_params *p = &s->p;
    return (sc_k_decode_params){.q = sc_host_devptr(s->q), .k = sc_host_devptr(s->k),
        .v = sc_host_devptr(s->v), .o = p->o, .q_stride = (int64_t)rig_qk(&s->d) + 8,
        .dtype = p->dtype, .a = p->a, .b = p->b, .weights = p->weights, .shape = p->shape,
        .row_count = ROWS, .source = p->source, .dest = p->dest, .save = p->save,
        .state = p->state};
}

START_TEST(decode__separate_tensors_give_the_bits_of_the_packed_row)
{
    struct decode one = decode_open(_i), two = decode_open(_i);
    decode_point(&one), decode_point(&two);
    size_t bytes = ROWS * rig_vo(&one.d) * rig_elem(one.d.dtype);
    sc_k_qkv_split_params split = split_params(&two);
    RIG_OK(sc_k_qkv_split(NULL, &split, NULL));
    sc_k_decode_params apart = apart_params(&two);
    RIG_OK(sc_k_decode_packed(NULL, &one.p, NULL));
    RIG_OK(sc_k_decode(NULL, &apart, NULL));
    ck_assert_mem_eq(one.o, two.o, bytes);
    for (int32_t slot = 0; slot < SLOTS; slot++) rig_same_slots(&one.pool, slot, &two.pool, slot);
    rig_untouched(&two.pool, 3); /* of the padded row */
    rig_all_bytes((uint8_t *)two.o + bytes / ROWS, bytes / ROWS, 0);
    rig_same_slots(&two.pool, 5, &two.pool, 7);
    decode_close(&one), decode_close(&two);
}
END_TEST

START_TEST(split__copies_columns_and_nothing_else)
{
    struct decode s = decode_open(_i);
    size_t e = rig_elem(s.d.dtype), qk = rig_qk(&s.d), vo = rig_vo(&s.d);
    sc_k_qkv_split_params p = split_params(&s);
    p.v = 0;
    RIG_OK(sc_k_qkv_split(NULL, &p, NULL));
    for (size_t t = 0; t < ROWS; t++) {
        const uint8_t *row = (const uint8_t *)s.packed + t * s.qkv * e;
        ck_assert_mem_eq((uint8_t *)s.q + t * (qk + 8) * e, row, qk * e);
        ck_assert_mem_eq((uint8_t *)s.k + t * qk * e, row + qk * e, qk * e);
        rig_all_bytes((uint8_t *)s.q + (t * (qk + 8) + qk) * e, 8 * e, 0xff);
    }
    rig_all_bytes(s.v, ROWS * vo * e, 0xff); /* left out */
    p.v = sc_host_devptr(s.v), p.token_count = ROWS - 1;
    RIG_OK(sc_k_qkv_split(NULL, &p, NULL));
    ck_assert_mem_eq(s.v, (uint8_t *)s.packed + 2 * qk * e, vo * e);
    rig_all_bytes((uint8_t *)s.v + (ROWS - 1) * vo * e, vo * e, 0xff);
    decode_close(&s);
}
END_TEST

/* ---- dense beginnings ---- */

/* Slots 1 .. ROWS of the pool hold what an array of beginnings has, rounded; others poison. */
static sc_k_slots beginnings(struct sc_prng *prng, const struct rig_pool *pool, sc_dtype dtype)
{
    size_t n = pool->part_elems;
    float *x = rig_normal(prng, ROWS * n, 0.5f);
    void *dense = rig_tensor(dtype, x, ROWS * n);
    rig_read(x, dense, dtype, ROWS * n);
    memset(pool->memory, 0xff, pool->bytes);
    for (int32_t r = 0; r < ROWS; r++)
        rig_put(rig_slot(pool, r + 1), pool->slots.dtype, x + (size_t)r * n, n);
    free(x);
    return (sc_k_slots){.base = sc_host_devptr(dense), .dtype = dtype, .slot_count = ROWS,
        .slot_stride = (int64_t)(n * rig_elem(dtype))};
}

/* Runs a call from slots 1 .. ROWS to slots 5 .. 8, poisons those slots but what was left, and runs
 * it from the array: the same bytes in `out` and in the pool. */
#define SAME_FROM_DENSE(call, params_source, params_dest, params_initial, slots, out, out_bytes)   \
    do {                                                                                           \
        int32_t from_[] = {1, 2, -1, 4}, none_[] = {0, 0, -1, 0}, to_[] = {5, 6, 7, 8};            \
        size_t bytes_ = (out_bytes);                                                               \
        (params_source) = sc_host_devptr(from_);                                                   \
        if ((params_dest) != 0) (params_dest) = sc_host_devptr(to_);                               \
        RIG_OK(call);                                                                              \
        uint8_t *want_ = rig_alloc(bytes_), *left_ = rig_alloc((slots)->bytes);                    \
        memcpy(want_, out, bytes_);                                                                \
        memcpy(left_, (slots)->memory, (slots)->bytes);                                            \
        if (bytes_ > 0) memset(out, 0xff, bytes_);                                                 \
        for (int32_t s_ = 1; s_ < SLOTS; s_++)                                                     \
            memset(rig_slot(slots, s_), 0xff, rig_part_bytes(slots));                              \
        (params_source) = sc_host_devptr(none_);                                                   \
        (params_initial) = dense;                                                                  \
        RIG_OK(call);                                                                              \
        ck_assert_mem_eq(out, want_, bytes_);                                                      \
        for (int32_t s_ = 5; s_ < SLOTS; s_++)                                                     \
            ck_assert_mem_eq(rig_slot(slots, s_), left_ + (size_t)s_ * rig_part_bytes(slots),      \
                rig_part_bytes(slots));                                                            \
        free(want_), free(left_);                                                                  \
    } while (0)

START_TEST(initial__decode)
{
    struct decode s = decode_open(_i);
    struct sc_prng prng;
    sc_prng_seed(&prng, 5);
    decode_point(&s);
    s.p.save = 0;
    sc_k_slots dense = beginnings(&prng, &s.pool, _i % 2 ? SC_DTYPE_F32 : SC_DTYPE_BF16);
    SAME_FROM_DENSE(sc_k_decode_packed(NULL, &s.p, NULL), s.p.source, s.p.dest, s.p.initial,
        &s.pool, s.o, ROWS * rig_vo(&s.d) * rig_elem(s.d.dtype));
    free(sc_host_ptr(dense.base)), decode_close(&s);
}
END_TEST

/* Rows of 5, 70, 3 (padded) and no tokens. */
static void batch_open(struct rig_batch *b, struct rig_delta *d, const struct rig_pool *pool)
{
    const struct rig_piece pieces[ROWS] = {{0, 0, 5, 1, 5}, {1, 0, 70, 2, 6}, {-1, 0, 3, -1, 7},
        {2, 0, 0, 4, 8}};
    rig_seq_init(d, 0, 5, 0, 1), rig_seq_init(d, 1, 70, 30, 2), rig_seq_init(d, 2, 1, 0, 3);
    rig_pack(b, d, pieces, ROWS);
    rig_params(b, d, pool, ROWS, NULL, 0);
}

START_TEST(initial__recurrent_and_chunk)
{
    struct rig_delta d;
    struct rig_batch b;
    struct sc_prng prng;
    sc_prng_seed(&prng, 6);
    shape_init(&d, _i / 2);
    d.chunk = _i % 2 ? 32 : 0;
    struct rig_pool pool = rig_pool(_i % 3 ? SC_DTYPE_F32 : SC_DTYPE_BF16, rig_state_elems(&d),
        SLOTS, 0, 0);
    batch_open(&b, &d, &pool);
    sc_k_slots dense = beginnings(&prng, &pool, _i % 4 < 2 ? SC_DTYPE_F32 : SC_DTYPE_BF16);
    size_t bytes = b.tokens * rig_vo(&d) * rig_elem(d.dtype);
    if (d.chunk != 0)
        SAME_FROM_DENSE(sc_k_delta_chunk(NULL, &b.p, NULL), b.p.source, b.p.dest, b.p.initial,
            &pool, b.tensors[3], bytes);
    else
        SAME_FROM_DENSE(sc_k_delta_recurrent(NULL, &b.p, NULL), b.p.source, b.p.dest,
            b.p.initial, &pool, b.tensors[3], bytes);
    free(sc_host_ptr(dense.base)), free(pool.memory), rig_batch_free(&b), rig_delta_free(&d);
}
END_TEST

START_TEST(initial__verify_and_commit)
{
    struct rig_delta d;
    struct rig_batch b;
    struct sc_prng prng;
    int32_t node[ROWS] = {2, 68, -1, -1};
    sc_prng_seed(&prng, 7);
    shape_init(&d, _i);
    struct rig_pool pool = rig_pool(_i % 3 ? SC_DTYPE_F32 : SC_DTYPE_BF16, rig_state_elems(&d),
        SLOTS, 0, 0);
    batch_open(&b, &d, &pool);
    sc_k_slots dense = beginnings(&prng, &pool, SC_DTYPE_F32);
    sc_k_delta_commit_params commit = {.tokens = b.p, .node = sc_host_devptr(node)};
    sc_k_delta_verify_params verify = {.tokens = b.p, .tokens_max = 70};
    verify.tokens.dest = 0;
    RIG_OK(sc_k_delta_verify_scratch(NULL, &verify, &verify.tokens.scratch_bytes));
    void *scratch = rig_alloc(verify.tokens.scratch_bytes);
    verify.tokens.scratch = sc_host_devptr(scratch);
    SAME_FROM_DENSE(sc_k_delta_verify(NULL, &verify, NULL), verify.tokens.source,
        verify.tokens.dest, verify.tokens.initial, &pool, b.tensors[3],
        b.tokens * rig_vo(&d) * rig_elem(d.dtype));
    free(sc_host_ptr(dense.base));
    dense = beginnings(&prng, &pool, SC_DTYPE_BF16);
    SAME_FROM_DENSE(sc_k_delta_commit(NULL, &commit, NULL), commit.tokens.source,
        commit.tokens.dest, commit.tokens.initial, &pool, scratch, 0);
    free(sc_host_ptr(dense.base)), free(scratch), free(pool.memory);
    rig_batch_free(&b), rig_delta_free(&d);
}
END_TEST

START_TEST(initial__conv)
{
    enum { C = 70, TOKENS = 12 };
    struct sc_prng prng;
    sc_prng_seed(&prng, 8 + (uint64_t)_i);
    sc_dtype dtype = _i % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    struct rig_pool pool = rig_pool(_i % 3 ? dtype : SC_DTYPE_BF16, (WIDTH - 1) * C, SLOTS, 0, 0);
    void *x = tensor(&prng, dtype, TOKENS * C), *y = rig_tensor(dtype, NULL, TOKENS * C);
    void *w = tensor(&prng, dtype, WIDTH * C);
    int32_t start[ROWS + 1] = {0, 2, 9, 12, 12}, node[ROWS] = {0, 5, -1, -1};
    sc_k_slots dense = beginnings(&prng, &pool, SC_DTYPE_F32);
    size_t bytes = TOKENS * C * rig_elem(dtype);
    sc_k_conv_prefill_params p = {.x = sc_host_devptr(x), .y = sc_host_devptr(y), .dtype = dtype,
        .weight = sc_host_devptr(w), .weight_dtype = dtype, .act = SC_K_ACT_SILU, .channels = C,
        .width = WIDTH, .token_count = TOKENS, .row_count = ROWS,
        .row_start = sc_host_devptr(start), .dest = sc_host_devptr(start), .window = pool.slots};
    sc_k_conv_prefill_params each[3] = {p, p, p};
    each[1].dest = 0;
    SAME_FROM_DENSE(sc_k_conv_prefill(NULL, &each[0], NULL), each[0].source, each[0].dest,
        each[0].initial, &pool, y, bytes);
    free(sc_host_ptr(dense.base)), dense = beginnings(&prng, &pool, SC_DTYPE_F32);
    sc_k_conv_verify_params verify = {.tokens = each[1]};
    SAME_FROM_DENSE(sc_k_conv_verify(NULL, &verify, NULL), verify.tokens.source,
        verify.tokens.dest, verify.tokens.initial, &pool, y, bytes);
    free(sc_host_ptr(dense.base)), dense = beginnings(&prng, &pool, SC_DTYPE_F32);
    sc_k_conv_commit_params commit = {.tokens = each[2], .node = sc_host_devptr(node)};
    SAME_FROM_DENSE(sc_k_conv_commit(NULL, &commit, NULL), commit.tokens.source,
        commit.tokens.dest, commit.tokens.initial, &pool, y, 0);
    free(sc_host_ptr(dense.base)), dense = beginnings(&prng, &pool, SC_DTYPE_F32);
    sc_k_conv_update_params u = {.x = p.x, .y = p.y, .dtype = dtype, .weight = p.weight,
        .weight_dtype = dtype, .channels = C, .width = WIDTH, .row_count = ROWS,
        .dest = sc_host_devptr(start), .window = pool.slots};
    SAME_FROM_DENSE(sc_k_conv_update(NULL, &u, NULL), u.source, u.dest, u.initial, &pool, y,
        ROWS * C * rig_elem(dtype));
    free(sc_host_ptr(dense.base)), free(pool.memory), free(x), free(y), free(w);
}
END_TEST

#ifndef SC_TEST_GPU /* no device row takes the second order */
/* ---- the second order of windows ---- */

enum { CHANNELS = 70, DRAFTS = 4, WIDE = WIDTH - 1 + DRAFTS - 1 };

/* Slot `slot` of `to` gets that of `from`, [inputs][channels] turned to [channels][inputs]. */
static void turn(const struct rig_pool *from, const struct rig_pool *to, int32_t slot,
    size_t inputs)
{
    size_t e = rig_elem(from->slots.dtype);
    for (size_t j = 0; j < inputs; j++)
        for (size_t c = 0; c < CHANNELS; c++)
            memcpy((uint8_t *)rig_slot(to, slot) + (c * inputs + j) * e,
                (uint8_t *)rig_slot(from, slot) + (j * CHANNELS + c) * e, e);
}

/* Both pools have the same windows, each in its order. */
static void same_turned(const struct rig_pool *wide, const struct rig_pool *dim, size_t inputs)
{
    struct rig_pool turned = rig_pool(wide->slots.dtype, wide->part_elems, SLOTS, 0, 0);
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        turn(wide, &turned, slot, inputs);
        rig_same_slots(&turned, slot, dim, slot);
    }
    free(turned.memory);
}

struct order {
    void *x, *w, *y[2];
    struct rig_pool pool[2]; /* width first, dim first */
    size_t bytes, inputs;
};

static struct order order_open(int i, size_t inputs)
{
    struct order o = {.inputs = inputs};
    struct sc_prng prng;
    sc_prng_seed(&prng, 60 + (uint64_t)i);
    sc_dtype dtype = i % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    o.x = tensor(&prng, dtype, 12 * CHANNELS), o.w = tensor(&prng, dtype, WIDTH * CHANNELS);
    o.bytes = 12 * CHANNELS * rig_elem(dtype);
    for (int k = 0; k < 2; k++) {
        o.y[k] = rig_tensor(dtype, NULL, 12 * CHANNELS);
        o.pool[k] = rig_pool(dtype, inputs * CHANNELS, SLOTS, 0, 0);
    }
    for (int32_t slot = 1; slot <= 4; slot++)
        fill(&prng, &o.pool[0], slot), turn(&o.pool[0], &o.pool[1], slot, inputs);
    return o;
}

static void order_close(struct order *o)
{
    ck_assert_mem_eq(o->y[0], o->y[1], o->bytes);
    same_turned(&o->pool[0], &o->pool[1], o->inputs);
    free(o->x), free(o->w), free(o->y[0]), free(o->y[1]);
    free(o->pool[0].memory), free(o->pool[1].memory);
}

START_TEST(order__dim_first_windows_give_the_same_bits)
{
    struct order o = order_open(_i, WIDTH - 1);
    sc_dtype dtype = o.pool[0].slots.dtype;
    int32_t start[ROWS + 1] = {0, 2, 9, 12, 12}, source[ROWS] = {1, 0, -1, 4};
    int32_t dest[ROWS] = {5, 6, 7, 8}, node[ROWS] = {0, 5, -1, -1}, row = 1, pos = 3, slot = 9;
    for (int k = 0; k < 2; k++) {
        sc_k_conv_prefill_params p = {.x = sc_host_devptr(o.x), .y = sc_host_devptr(o.y[k]),
            .dtype = dtype, .weight = sc_host_devptr(o.w), .weight_dtype = dtype,
            .act = SC_K_ACT_SILU, .channels = CHANNELS, .width = WIDTH, .token_count = 12,
            .row_count = ROWS, .row_start = sc_host_devptr(start),
            .source = sc_host_devptr(source), .dest = sc_host_devptr(dest),
            .saves = {sc_host_devptr(&row), sc_host_devptr(&pos), sc_host_devptr(&slot), 1},
            .window = o.pool[k].slots, .order = k ? SC_K_ORDER_DIM_FIRST : 0};
        if (_i / 2 == 0) RIG_OK(sc_k_conv_prefill(NULL, &p, NULL));
        sc_k_conv_commit_params commit = {.tokens = p, .node = sc_host_devptr(node)};
        if (_i / 2 == 1) RIG_OK(sc_k_conv_commit(NULL, &commit, NULL));
        sc_k_conv_verify_params verify = {.tokens = p};
        verify.tokens.dest = 0, verify.tokens.saves.count = 0;
        if (_i / 2 == 1) RIG_OK(sc_k_conv_verify(NULL, &verify, NULL));
        sc_k_conv_update_params u = {.x = p.x, .y = p.y, .dtype = dtype, .weight = p.weight,
            .weight_dtype = dtype, .channels = CHANNELS, .width = WIDTH, .row_count = ROWS,
            .source = p.source, .dest = p.dest, .window = p.window, .order = p.order};
        if (_i / 2 == 2) RIG_OK(sc_k_conv_update(NULL, &u, NULL));
        p.order = (sc_k_order)7;
        ck_assert_int_eq(sc_k_conv_prefill(NULL, &p, NULL), SC_ERR_INVALID);
    }
    order_close(&o);
}
END_TEST

START_TEST(order__dim_first_rows_with_a_cursor)
{
    struct order o = order_open(_i, WIDE);
    sc_dtype dtype = o.pool[0].slots.dtype;
    int32_t start[4] = {0, 4, 7, 8}, slot[3] = {1, 2, -1}, accepted[3] = {1, 3, 1};
    for (int k = 0; k < 2; k++) {
        sc_k_conv_update_spec_params p = {.x = sc_host_devptr(o.x), .y = sc_host_devptr(o.y[k]),
            .dtype = dtype, .weight = sc_host_devptr(o.w), .weight_dtype = dtype,
            .act = SC_K_ACT_SILU, .channels = CHANNELS, .width = WIDTH, .drafts_max = DRAFTS,
            .token_count = 12, .row_count = 3, .row_start = sc_host_devptr(start),
            .slot = sc_host_devptr(slot), .accepted = sc_host_devptr(accepted),
            .window = o.pool[k].slots, .order = k ? SC_K_ORDER_DIM_FIRST : 0};
        RIG_OK(sc_k_conv_update_spec(NULL, &p, NULL));
    }
    order_close(&o);
}
END_TEST
#endif

START_TEST(initial__ssm)
{
    enum { HEADS = 2, P = 20, N = 33, TOKENS = 12 };
    struct sc_prng prng;
    sc_prng_seed(&prng, 9 + (uint64_t)_i);
    struct rig_pool pool = rig_pool(_i % 2 ? SC_DTYPE_F32 : SC_DTYPE_BF16, HEADS * P * N, SLOTS,
        0, 0);
    float *x = rig_normal(&prng, TOKENS * HEADS * P, 1), *y = rig_alloc(TOKENS * HEADS * P * 4);
    float *bc = rig_normal(&prng, 2 * TOKENS * N, 1), *dt = rig_normal(&prng, TOKENS * HEADS, 1);
    float *a_log = rig_normal(&prng, HEADS, 1);
    int32_t start[ROWS + 1] = {0, 2, 9, 12, 12};
    sc_k_ssm_params p = {.x = sc_host_devptr(x), .dt = sc_host_devptr(dt),
        .b = sc_host_devptr(bc), .c = sc_host_devptr(bc + TOKENS * N), .y = sc_host_devptr(y),
        .dtype = SC_DTYPE_F32, .a_log = sc_host_devptr(a_log), .heads = HEADS, .groups = 1,
        .head_dim = P, .state_dim = N, .token_count = TOKENS, .row_count = ROWS,
        .row_start = sc_host_devptr(start), .dest = sc_host_devptr(start), .state = pool.slots};
    sc_k_slots dense = beginnings(&prng, &pool, SC_DTYPE_F32);
    SAME_FROM_DENSE(sc_k_ssm(NULL, &p, NULL), p.source, p.dest, p.initial, &pool, y,
        TOKENS * HEADS * P * 4);
    free(sc_host_ptr(dense.base)), free(pool.memory);
    free(x), free(y), free(bc), free(dt), free(a_log);
}
END_TEST

#ifndef SC_TEST_GPU /* the same checks; index arrays are not read beforehand there */
/* ---- bad arguments ---- */

#define INVALID(field, value) RIG_REFUSED(SC_ERR_INVALID, CALL, field, value)

START_TEST(decode__refuses_bad_arguments)
{
#define CALL sc_k_decode(NULL, &p, NULL)
    struct decode s = decode_open(2);
    decode_point(&s);
    sc_k_decode_params p = apart_params(&s);
    ck_assert_int_eq(sc_k_decode(NULL, NULL, NULL), SC_ERR_INVALID);
    INVALID(p.q, 0);
    INVALID(p.k, p.k + 1);
    INVALID(p.v, 0);
    INVALID(p.o, 0);
    INVALID(p.o, p.v);
    INVALID(p.a, 0);
    INVALID(p.b, 0);
    INVALID(p.q_stride, 1);
    INVALID(p.v_stride, -1);
    INVALID(p.row_count, UINT32_MAX);
    INVALID(p.source, 0);
    INVALID(p.dest, 0);
    INVALID(p.shape.heads, 0);
    INVALID(p.state.base, 0);
    INVALID(s.dest[2], 2);  /* another row's source */
    INVALID(s.dest[2], SLOTS);
    INVALID(s.save[2], 4);  /* the row's own destination */
    RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, p.dtype, SC_DTYPE_F16);
    p.initial = (sc_k_slots){.base = p.state.base, .slot_stride = p.state.slot_stride,
        .dtype = p.state.dtype, .slot_count = ROWS};
    INVALID(p.initial.slot_count, ROWS - 1);
    INVALID(p.initial.slot_stride, 4);
    INVALID(p.initial.base, p.initial.base + 1);
    RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, p.initial.dtype, SC_DTYPE_F16);
    rig_all_bytes(s.o, ROWS * rig_vo(&s.d) * rig_elem(s.d.dtype), 0xff);
    rig_untouched(&s.pool, 4), rig_untouched(&s.pool, 5);
    decode_close(&s);
#undef CALL
}
END_TEST

START_TEST(split__refuses_bad_arguments)
{
#define CALL sc_k_qkv_split(NULL, &p, NULL)
    struct decode s = decode_open(1);
    sc_k_qkv_split_params p = split_params(&s);
    ck_assert_int_eq(sc_k_qkv_split(NULL, NULL, NULL), SC_ERR_INVALID);
    INVALID(p.qkv, 0);
    INVALID(p.q, p.qkv);
    INVALID(p.k, p.k + 1);
    INVALID(p.qk_dim, 0);
    INVALID(p.v_dim, 0);
    INVALID(p.v_dim, UINT32_MAX);
    INVALID(p.qkv_stride, s.qkv - 1);
    INVALID(p.k_stride, -1);
    INVALID(p.token_count, UINT32_MAX);
    RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, p.dtype, SC_DTYPE_F16);
    rig_all_bytes(s.q, ROWS * (rig_qk(&s.d) + 8) * rig_elem(s.d.dtype), 0xff);
    RIG_OK(CALL);
    decode_close(&s);
#undef CALL
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("kernels_decode");
    TCase *all = tcase_create("decode");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, decode__separate_tensors_give_the_bits_of_the_packed_row, 0, CASES);
    tcase_add_loop_test(all, split__copies_columns_and_nothing_else, 0, CASES);
    tcase_add_loop_test(all, initial__decode, 0, CASES);
    tcase_add_loop_test(all, initial__recurrent_and_chunk, 0, 2 * CASES);
    tcase_add_loop_test(all, initial__verify_and_commit, 0, CASES);
    tcase_add_loop_test(all, initial__conv, 0, 6);
    tcase_add_loop_test(all, initial__ssm, 0, 2);
#ifndef SC_TEST_GPU
    tcase_add_loop_test(all, order__dim_first_windows_give_the_same_bits, 0, 6);
    tcase_add_loop_test(all, order__dim_first_rows_with_a_cursor, 0, 2);
    tcase_add_test(all, decode__refuses_bad_arguments);
    tcase_add_test(all, split__refuses_bad_arguments);
#endif
    suite_add_tcase(suite, all);
    return check_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Layers with rings for tests: three sequences and a padded row between them, decoded side by side
 * by the plain kernels and by those with a ring, from pools, rings and control words of which
 * every byte was NaN before. */
#ifndef SC_TESTS_REPLAY_RIG_H
#define SC_TESTS_REPLAY_RIG_H

#include "kernels_rig.h"
#include "statecache/kernels_replay.h"

enum { RING_ROWS = 4, RING_PAD = 1, RING_SLOTS = 12, RING_TOKENS = 48, RING_FIRST = 1 };

/* One layer, its inputs for all tokens and rows, and memory for two runs. */
struct ring_rig {
    sc_k_replay_delta_params delta;
    sc_k_replay_ssm_params ssm;
    bool is_ssm;
    sc_dtype dtype, state;
    uint32_t records_max;
    size_t vo;               /* outputs of a row */
    size_t row_elems[5];     /* of each input tensor; ssm: x dt b c z; delta: qkv alone */
    void *in[5];
    float *wide[5];          /* what they hold */
    float *g, *beta;         /* delta: [token][row].. */
    size_t g_row, beta_row;
    float *weights;          /* ssm: a_log, dt_bias, d */
    void *out;               /* [RING_ROWS][vo] of the newest step */
    struct rig_pool pool;
    uint8_t *ring, *control; /* [RING_SLOTS] */
    size_t ring_stride;
    int32_t source[RING_ROWS], dest[RING_ROWS], slot[RING_ROWS], planned[RING_ROWS];
    int32_t records[RING_ROWS], mode[RING_ROWS];
};

enum { RING_CONTROL = 64 }; /* bytes from one slot's control words to the next */

static inline int32_t *ring_count(const struct ring_rig *x, int32_t slot)
{
    return (int32_t *)(void *)(x->control + slot * RING_CONTROL);
}

static inline uint8_t *ring_at(const struct ring_rig *x, int32_t slot)
{
    return x->ring + (size_t)slot * x->ring_stride;
}

static inline size_t ring_bytes(const struct ring_rig *x)
{
    return (size_t)x->records_max * (x->is_ssm ? x->ssm.ring : x->delta.ring).record_bytes;
}

static inline void ring_input(struct ring_rig *x, struct sc_prng *prng, int i, size_t row)
{
    size_t count = row * RING_ROWS * RING_TOKENS;
    x->row_elems[i] = row;
    x->wide[i] = rig_normal(prng, count, 1.0f);
    x->in[i] = rig_tensor(x->dtype, x->wide[i], count);
    rig_read(x->wide[i], x->in[i], x->dtype, count);
}

static inline void ring_delta_init(struct ring_rig *x, struct sc_prng *prng, int i)
{
    static const uint32_t dims[][4] = {{2, 4, 64, 32}, {1, 2, 128, 40}, {1, 3, 19, 7},
        {2, 2, 16, 16}, {1, 1, 256, 70}};
    const uint32_t *d = dims[i % 5];
    sc_k_delta_shape shape = {.kind = i % 2 ? SC_K_KIND_KDA : SC_K_KIND_GDN, .heads = d[0],
        .v_heads = d[1], .k_dim = d[2], .v_dim = d[3], .qk_l2norm = true};
    x->vo = (size_t)d[1] * d[3];
    x->g_row = d[1] * (i % 2 ? d[2] : 1u), x->beta_row = d[1];
    size_t count = (size_t)RING_TOKENS * RING_ROWS;
    ring_input(x, prng, 0, 2u * d[0] * d[2] + x->vo);
    x->g = rig_alloc(count * x->g_row * 4), x->beta = rig_alloc(count * x->beta_row * 4);
    for (size_t n = 0; n < count * x->g_row; n++)
        x->g[n] = -0.5f * (float)(sc_prng_unit(prng) * sc_prng_unit(prng));
    for (size_t n = 0; n < count * x->beta_row; n++) x->beta[n] = (float)sc_prng_unit(prng);
    x->pool = rig_pool(x->state, x->vo * d[2], RING_SLOTS, 0, 0);
    x->delta.step = (sc_k_decode_packed_params){.dtype = x->dtype, .shape = shape,
        .row_count = RING_ROWS, .state = x->pool.slots};
    uint32_t bytes = 0;
    RIG_OK(sc_k_replay_delta_record_bytes(&shape, x->dtype, &bytes));
    x->delta.ring.record_bytes = bytes + 64; /* more than is needed is allowed */
}

static inline void ring_ssm_init(struct ring_rig *x, struct sc_prng *prng, int i)
{
    static const uint32_t dims[][4] = {{4, 2, 64, 128}, {3, 1, 5, 19}, {2, 2, 16, 16},
        {1, 1, 80, 256}, {36, 2, 33, 64}, /* 18 heads share B and C */
        {2, 1, 130, 128},                 /* two blocks of rows a head */
        {5, 1, 20, 64}};
    const uint32_t *d = dims[i % 7];
    x->vo = (size_t)d[0] * d[2];
    const size_t rows[5] = {x->vo, d[0], (size_t)d[1] * d[3], (size_t)d[1] * d[3], x->vo};
    for (int t = 0; t < 5; t++) ring_input(x, prng, t, rows[t]);
    x->weights = rig_normal(prng, 3 * d[0], 0.7f);
    x->pool = rig_pool(x->state, x->vo * d[3], RING_SLOTS, 0, 0);
    x->ssm.step = (sc_k_ssm_params){.dtype = x->dtype, .a_log = sc_host_devptr(x->weights),
        .dt_bias = i % 3 ? sc_host_devptr(x->weights + d[0]) : 0,
        .d = i % 4 ? sc_host_devptr(x->weights + 2 * d[0]) : 0, .heads = d[0], .groups = d[1],
        .head_dim = d[2], .state_dim = d[3], .row_count = RING_ROWS, .state = x->pool.slots};
    RIG_OK(sc_k_replay_ssm_record_bytes(d[0], d[1], d[2], d[3], x->dtype,
        &x->ssm.ring.record_bytes));
}

/* Case i of GDN, KDA (is_ssm false, i even or odd) or Mamba-2. Slots RING_FIRST .. of the pool hold
 * one state for each row, the rest is NaN; control words of allocated ring slots are 0. */
static inline void ring_open(struct ring_rig *x, bool is_ssm, int i, uint32_t records_max)
{
    struct sc_prng prng;
    memset(x, 0, sizeof *x);
    sc_prng_seed(&prng, 600 + (uint64_t)i + 1000u * is_ssm);
    x->is_ssm = is_ssm, x->records_max = records_max;
    x->dtype = i / 2 % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    x->state = i % 3 == 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    if (is_ssm) ring_ssm_init(x, &prng, i);
    else ring_delta_init(x, &prng, i);
    for (int32_t s = 0; s < RING_ROWS; s++) {
        float *state = rig_normal(&prng, x->pool.part_elems, 1.0f);
        rig_put(rig_slot(&x->pool, RING_FIRST + s), x->state, state, x->pool.part_elems);
        free(state);
    }
    sc_k_ring *ring = is_ssm ? &x->ssm.ring : &x->delta.ring;
    x->ring_stride = (size_t)records_max * ring->record_bytes + 256;
    x->ring = rig_alloc(x->ring_stride * RING_SLOTS);
    x->control = rig_alloc(RING_CONTROL * RING_SLOTS);
    x->out = rig_tensor(x->dtype, NULL, x->vo * RING_ROWS);
    ring->slots = (sc_k_slots){.base = sc_host_devptr(x->ring),
        .slot_stride = (int64_t)x->ring_stride, .dtype = SC_DTYPE_U8, .slot_count = RING_SLOTS};
    ring->records_max = records_max;
    ring->slot = sc_host_devptr(x->slot);
    ring->records = sc_host_devptr(x->records), ring->mode = sc_host_devptr(x->mode);
    for (int32_t r = 0; r < RING_ROWS; r++) {
        x->source[r] = x->dest[r] = r == RING_PAD ? -1 : RING_FIRST + r;
        x->slot[r] = r == RING_PAD ? -1 : 5 + r;
        if (r != RING_PAD) *ring_count(x, 5 + r) = 0;
    }
}

static inline void ring_close(struct ring_rig *x)
{
    for (int i = 0; i < 5; i++) free(x->in[i]), free(x->wide[i]);
    free(x->g), free(x->beta), free(x->weights), free(x->out), free(x->pool.memory);
    free(x->ring), free(x->control);
}

/* Tensors of token t. */
static inline sc_devptr ring_in(const struct ring_rig *x, int i, uint32_t t)
{
    return sc_host_devptr((uint8_t *)x->in[i]
        + (size_t)t * RING_ROWS * x->row_elems[i] * rig_elem(x->dtype));
}

static inline void ring_aim(struct ring_rig *x, uint32_t t)
{
    sc_devptr source = sc_host_devptr(x->source), dest = sc_host_devptr(x->dest);
    if (x->is_ssm) {
        sc_k_ssm_params *p = &x->ssm.step;
        p->x = ring_in(x, 0, t), p->dt = ring_in(x, 1, t), p->b = ring_in(x, 2, t);
        p->c = ring_in(x, 3, t), p->z = ring_in(x, 4, t), p->y = sc_host_devptr(x->out);
        p->source = source, p->dest = dest;
        return;
    }
    sc_k_decode_packed_params *p = &x->delta.step;
    p->qkv = ring_in(x, 0, t), p->o = sc_host_devptr(x->out);
    p->g = sc_host_devptr(x->g + (size_t)t * RING_ROWS * x->g_row);
    p->beta = sc_host_devptr(x->beta + (size_t)t * RING_ROWS * x->beta_row);
    p->source = source, p->dest = dest;
}

/* Token t of every row by the plain kernel, from source to dest. */
static inline void ring_plain(struct ring_rig *x, uint32_t t)
{
    ring_aim(x, t);
    if (!x->is_ssm) {
        RIG_OK(sc_k_decode_packed(NULL, &x->delta.step, NULL));
        return;
    }
    int32_t start[RING_ROWS + 1];
    for (int32_t r = 0; r <= RING_ROWS; r++) start[r] = r;
    sc_k_ssm_params p = x->ssm.step;
    p.row_start = sc_host_devptr(start), p.token_count = RING_ROWS;
    RIG_OK(sc_k_ssm(NULL, &p, NULL));
}

static inline sc_replay_step_params ring_step_params(struct ring_rig *x)
{
    return (sc_replay_step_params){.control = {.base = sc_host_devptr(x->control),
        .slot_stride = RING_CONTROL, .slot_count = RING_SLOTS}, .records_max = x->records_max,
        .row_count = RING_ROWS, .slot = sc_host_devptr(x->slot),
        .planned = sc_host_devptr(x->planned), .records = sc_host_devptr(x->records),
        .mode = sc_host_devptr(x->mode)};
}

/* Token t of every row with rings, as `planned` says. */
static inline void ring_step(struct ring_rig *x, uint32_t t)
{
    sc_replay_step_params step = ring_step_params(x);
    RIG_OK(sc_replay_step(NULL, &step, NULL));
    ring_aim(x, t);
    if (x->is_ssm) RIG_OK(sc_k_replay_ssm(NULL, &x->ssm, NULL));
    else RIG_OK(sc_k_replay_delta(NULL, &x->delta, NULL));
}

/* Rows whose plan says FOLD: base and records become the state in dest. */
static inline void ring_fold(struct ring_rig *x)
{
    sc_replay_step_params step = ring_step_params(x);
    RIG_OK(sc_replay_step(NULL, &step, NULL));
    ring_aim(x, 0);
    if (x->is_ssm) {
        RIG_OK(sc_k_replay_ssm_fold(NULL, &x->ssm, NULL));
        return;
    }
    const sc_k_decode_packed_params *p = &x->delta.step;
    RIG_OK(sc_k_replay_delta_fold(NULL, &(sc_k_replay_delta_fold_params){.shape = p->shape,
        .dtype = p->dtype, .row_count = RING_ROWS, .source = p->source, .dest = p->dest,
        .state = p->state, .ring = x->delta.ring}, NULL));
}

static inline void *ring_out(const struct ring_rig *x, int32_t row)
{
    return (uint8_t *)x->out + (size_t)row * x->vo * rig_elem(x->dtype);
}

static inline size_t ring_out_bytes(const struct ring_rig *x)
{
    return x->vo * rig_elem(x->dtype);
}

#endif

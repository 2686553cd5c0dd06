/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor-parallel ranks in one process. Each has its heads' channels of q, k and v, part by part,
 * runs conv, chunk prefill and decode on pools of its own, some tokens with a ring, and projects
 * its outputs; what it leaves are the bits of one rank for these heads, and the sum of the
 * projections is that of one rank. Mamba-2 (without the conv, which is the same): the same bits. */
#include <check.h>
#include <math.h>

#include "kernels_rig.h"
#include "statecache/kernels_project.h"
#include "statecache/kernels_replay.h"
#include "support/check_main.h"

/* TOKENS are prefilled, one decoded, the others decoded with a ring: appended and flushed. */
enum { TOKENS = 70, RINGED = 6, RECORDS = 3, ALL = TOKENS + 1 + RINGED };
enum { WIDTH = 4, HEADS = 4, OUT = 24, CHUNK = 64, CASES = 10 };

static const uint32_t ratios[] = {1, 2, 3, 4, 8}, dims[] = {64, 96, 128, 192, 256};

/* A layer as one rank holds it; `x` is [ALL][channels]. */
struct layer {
    sc_k_delta_shape shape;
    sc_dtype dtype;
    uint32_t channels, outputs, gates;
    float *x, *weight, *g, *beta, *project;
    struct rig_pool window, state;
    float *y, *o, *sum;
};

static struct layer layer_new(sc_k_delta_shape shape, sc_dtype state)
{
    struct layer l = {.shape = shape, .outputs = shape.v_heads * shape.v_dim,
        .gates = shape.v_heads * (shape.kind == SC_K_KIND_GDN ? 1 : shape.k_dim)};
    l.channels = 2 * shape.heads * shape.k_dim + l.outputs;
    l.x = rig_alloc((size_t)ALL * l.channels * 4);
    l.weight = rig_alloc(l.channels * WIDTH * 4ull);
    l.g = rig_alloc((size_t)ALL * l.gates * 4);
    l.beta = rig_alloc((size_t)ALL * shape.v_heads * 4);
    l.project = rig_alloc(l.outputs * OUT * 4ull);
    l.y = rig_alloc((size_t)ALL * l.channels * 4);
    l.o = rig_alloc((size_t)ALL * l.outputs * 4);
    l.sum = rig_alloc((size_t)ALL * OUT * 4);
    l.window = rig_pool(SC_DTYPE_F32, (WIDTH - 1) * l.channels, 2, 0, 0);
    l.state = rig_pool(state, (size_t)l.outputs * shape.k_dim, 2, 0, 0);
    return l;
}

static void layer_free(struct layer *l)
{
    free(l->x), free(l->weight), free(l->g), free(l->beta), free(l->project);
    free(l->y), free(l->o), free(l->sum), free(l->window.memory), free(l->state.memory);
}

static void prefill(struct layer *l)
{
    int32_t start[2] = {0, TOKENS}, zero = 0, one = 1;
    sc_k_conv_prefill_params c = {.x = sc_host_devptr(l->x), .y = sc_host_devptr(l->y),
        .dtype = SC_DTYPE_F32, .weight = sc_host_devptr(l->weight), .weight_dtype = SC_DTYPE_F32,
        .act = SC_K_ACT_SILU, .channels = l->channels, .width = WIDTH, .token_count = TOKENS,
        .row_count = 1, .row_start = sc_host_devptr(start), .source = sc_host_devptr(&zero),
        .dest = sc_host_devptr(&one), .window = l->window.slots};
    RIG_OK(sc_k_conv_prefill(NULL, &c, NULL));
    size_t qk = (size_t)l->shape.heads * l->shape.k_dim;
    sc_k_delta_params p = {.q = sc_host_devptr(l->y), .k = sc_host_devptr(l->y + qk),
        .v = sc_host_devptr(l->y + 2 * qk), .o = sc_host_devptr(l->o), .q_stride = l->channels,
        .k_stride = l->channels, .v_stride = l->channels, .dtype = SC_DTYPE_F32,
        .g = sc_host_devptr(l->g), .beta = sc_host_devptr(l->beta), .shape = l->shape,
        .token_count = TOKENS, .row_count = 1, .row_start = c.row_start, .source = c.source,
        .dest = c.dest, .state = l->state.slots, .chunk = CHUNK};
    RIG_OK(sc_k_delta_chunk_scratch(NULL, &p, &p.scratch_bytes));
    void *scratch = rig_alloc(p.scratch_bytes);
    p.scratch = sc_host_devptr(scratch);
    RIG_OK(sc_k_delta_chunk(NULL, &p, NULL));
    free(scratch);
}

/* A ring of one slot for a layer; records of `record_bytes`. */
struct one_ring {
    uint8_t *memory;
    int32_t control[2], slot, planned, records, mode;
    sc_k_ring ring;
};

static void one_ring_open(struct one_ring *r, uint32_t record_bytes)
{
    size_t bytes = (size_t)RECORDS * record_bytes;
    *r = (struct one_ring){.memory = rig_alloc(2 * bytes), .slot = 1};
    r->ring = (sc_k_ring){.slots = {.base = sc_host_devptr(r->memory),
        .slot_stride = (int64_t)bytes, .slot_count = 2}, .records_max = RECORDS,
        .record_bytes = record_bytes, .slot = sc_host_devptr(&r->slot),
        .records = sc_host_devptr(&r->records), .mode = sc_host_devptr(&r->mode)};
}

static void one_ring_step(struct one_ring *r)
{
    RIG_OK(sc_replay_step(NULL, &(sc_replay_step_params){.control = {
        .base = sc_host_devptr(r->control), .slot_stride = sizeof(int32_t), .slot_count = 2},
        .records_max = RECORDS, .row_count = 1, .slot = sc_host_devptr(&r->slot),
        .planned = sc_host_devptr(&r->planned), .records = sc_host_devptr(&r->records),
        .mode = sc_host_devptr(&r->mode)}, NULL));
}

/* Token t; with a ring, if there is one. */
static void decode(struct layer *l, size_t t, struct one_ring *r)
{
    int32_t one = 1;
    float *y = l->y + t * l->channels;
    sc_k_conv_update_params c = {.x = sc_host_devptr(l->x + t * l->channels),
        .y = sc_host_devptr(y), .dtype = SC_DTYPE_F32, .weight = sc_host_devptr(l->weight),
        .weight_dtype = SC_DTYPE_F32, .act = SC_K_ACT_SILU, .channels = l->channels,
        .width = WIDTH, .row_count = 1, .source = sc_host_devptr(&one),
        .dest = sc_host_devptr(&one), .window = l->window.slots};
    RIG_OK(sc_k_conv_update(NULL, &c, NULL));
    sc_k_decode_packed_params p = {.qkv = sc_host_devptr(y),
        .o = sc_host_devptr(l->o + t * l->outputs), .dtype = SC_DTYPE_F32,
        .g = sc_host_devptr(l->g + t * l->gates),
        .beta = sc_host_devptr(l->beta + t * l->shape.v_heads), .shape = l->shape,
        .row_count = 1, .source = c.source, .dest = c.dest, .state = l->state.slots};
    if (r == NULL) {
        RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
        return;
    }
    one_ring_step(r);
    RIG_OK(sc_k_replay_delta(NULL, &(sc_k_replay_delta_params){p, r->ring}, NULL));
}

static void decode_all(struct layer *l)
{
    struct one_ring ring;
    uint32_t bytes = 0;
    RIG_OK(sc_k_replay_delta_record_bytes(&l->shape, SC_DTYPE_F32, &bytes));
    one_ring_open(&ring, bytes);
    decode(l, TOKENS, NULL);
    for (size_t t = TOKENS + 1; t < ALL; t++) decode(l, t, &ring);
    ck_assert_int_eq(ring.records, 1); /* three appended, a flush, two appended: on a new base */
    free(ring.memory);
}

static void run(struct layer *l)
{
    prefill(l);
    decode_all(l);
    sc_k_project_params p = {.x = sc_host_devptr(l->o), .weight = sc_host_devptr(l->project),
        .y = sc_host_devptr(l->sum), .dtype = SC_DTYPE_F32, .weight_dtype = SC_DTYPE_F32,
        .y_dtype = SC_DTYPE_F32, .in_dim = l->outputs, .out_dim = OUT,
        .token_count = ALL};
    RIG_OK(sc_k_project(NULL, &p, NULL));
}

/* Channel of the whole layer that is channel `c` of rank `rank` of `ranks`: q, k and v each have
 * their own range. */
static size_t channel_of(const struct layer *part, uint32_t rank, uint32_t ranks, size_t c)
{
    size_t qk = (size_t)part->shape.heads * part->shape.k_dim, vo = part->outputs;
    if (c < qk) return rank * qk + c;
    if (c < 2 * qk) return ranks * qk + rank * qk + (c - qk);
    return 2 * ranks * qk + rank * vo + (c - 2 * qk);
}

static void split(struct layer *part, const struct layer *all, uint32_t rank, uint32_t ranks)
{
    for (size_t c = 0; c < part->channels; c++) {
        size_t from = channel_of(part, rank, ranks, c);
        memcpy(part->weight + c * WIDTH, all->weight + from * WIDTH, WIDTH * 4);
        for (size_t t = 0; t < ALL; t++)
            part->x[t * part->channels + c] = all->x[t * all->channels + from];
    }
    for (size_t t = 0; t < ALL; t++) {
        size_t g = part->gates, h = part->shape.v_heads;
        memcpy(part->g + t * g, all->g + t * all->gates + rank * g, g * 4);
        memcpy(part->beta + t * h, all->beta + t * all->shape.v_heads + rank * h, h * 4);
    }
    for (size_t n = 0; n < OUT; n++)
        memcpy(part->project + n * part->outputs,
            all->project + n * all->outputs + (size_t)rank * part->outputs, part->outputs * 4ull);
}

static void check_part(const struct layer *part, const struct layer *all, uint32_t rank,
    uint32_t ranks)
{
    size_t bytes = rig_part_bytes(&part->state), vo = part->outputs;
    ck_assert_msg(memcmp(rig_slot(&part->state, 1),
        (uint8_t *)rig_slot(&all->state, 1) + rank * bytes, bytes) == 0,
        "state of rank %u of %u", rank, ranks);
    const float *window = rig_slot(&part->window, 1), *whole = rig_slot(&all->window, 1);
    for (size_t w = 0; w < WIDTH - 1; w++)
        for (size_t c = 0; c < part->channels; c++)
            ck_assert(window[w * part->channels + c]
                == whole[w * all->channels + channel_of(part, rank, ranks, c)]);
    for (size_t t = 0; t < ALL; t++)
        ck_assert_msg(memcmp(part->o + t * vo, all->o + t * all->outputs + rank * vo, vo * 4) == 0,
            "output of token %zu, rank %u of %u", t, rank, ranks);
}

static struct layer whole_layer(int i)
{
    sc_k_delta_shape shape = {.kind = i % 2 ? SC_K_KIND_KDA : SC_K_KIND_GDN, .heads = HEADS,
        .v_heads = HEADS * ratios[i % 5], .k_dim = dims[i % 5], .v_dim = i < 5 ? dims[i % 5] : 24,
        .qk_l2norm = true};
    struct layer all = layer_new(shape, i % 4 < 2 ? SC_DTYPE_F32 : SC_DTYPE_BF16);
    struct sc_prng prng;
    sc_prng_seed(&prng, 94 + (uint64_t)i);
    float *lists[] = {all.x, all.weight, all.project};
    size_t counts[] = {(size_t)ALL * all.channels, (size_t)all.channels * WIDTH,
        (size_t)all.outputs * OUT};
    for (int n = 0; n < 3; n++)
        for (size_t k = 0; k < counts[n]; k++) lists[n][k] = (float)sc_prng_unit(&prng) - 0.5f;
    for (size_t n = 0; n < (size_t)ALL * all.gates; n++)
        all.g[n] = -0.5f * (float)sc_prng_unit(&prng);
    for (size_t n = 0; n < (size_t)ALL * shape.v_heads; n++)
        all.beta[n] = (float)sc_prng_unit(&prng);
    return all;
}

static void check_ranks(const struct layer *all, uint32_t ranks)
{
    double sums[ALL * OUT] = {0}, error = 0, size = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        sc_k_delta_shape shape = all->shape;
        shape.heads /= ranks, shape.v_heads /= ranks;
        struct layer part = layer_new(shape, all->state.slots.dtype);
        split(&part, all, rank, ranks);
        run(&part);
        check_part(&part, all, rank, ranks);
        for (size_t n = 0; n < ALL * OUT; n++) sums[n] += (double)part.sum[n];
        layer_free(&part);
    }
    for (size_t n = 0; n < ALL * OUT; n++) {
        error += (sums[n] - (double)all->sum[n]) * (sums[n] - (double)all->sum[n]);
        size += (double)all->sum[n] * (double)all->sum[n];
    }
    ck_assert_msg(sqrt(error / size) < 1e-6, "%u ranks: sums differ by %g", ranks,
        sqrt(error / size));
}

START_TEST(ranks__two_and_four_are_one)
{
    struct layer all = whole_layer(_i);
    run(&all);
    check_ranks(&all, 2), check_ranks(&all, 4);
    layer_free(&all);
}
END_TEST

/* ---- Mamba-2 ---- */

/* Inputs of a layer as one rank holds them: x, dt, B, C for all tokens; weights of each head. */
struct ssm_layer {
    uint32_t heads, groups, head_dim, state_dim;
    size_t width[4];
    float *in[4], *weight[3], *y;
    struct rig_pool state;
};

static struct ssm_layer ssm_new(uint32_t heads, uint32_t groups, uint32_t head_dim,
    uint32_t state_dim, sc_dtype state)
{
    struct ssm_layer l = {.heads = heads, .groups = groups, .head_dim = head_dim,
        .state_dim = state_dim, .width = {(size_t)heads * head_dim, heads,
            (size_t)groups * state_dim, (size_t)groups * state_dim}};
    for (int i = 0; i < 4; i++) l.in[i] = rig_alloc(ALL * l.width[i] * 4);
    for (int i = 0; i < 3; i++) l.weight[i] = rig_alloc(heads * 4ull);
    l.y = rig_alloc(ALL * l.width[0] * 4);
    l.state = rig_pool(state, l.width[0] * state_dim, 2, 0, 0);
    return l;
}

static void ssm_free(struct ssm_layer *l)
{
    for (int i = 0; i < 4; i++) free(l->in[i]);
    for (int i = 0; i < 3; i++) free(l->weight[i]);
    free(l->y), free(l->state.memory);
}

/* From token t on. */
static sc_k_ssm_params ssm_at(const struct ssm_layer *l, size_t t)
{
    return (sc_k_ssm_params){.x = sc_host_devptr(l->in[0] + t * l->width[0]),
        .dt = sc_host_devptr(l->in[1] + t * l->width[1]),
        .b = sc_host_devptr(l->in[2] + t * l->width[2]),
        .c = sc_host_devptr(l->in[3] + t * l->width[3]),
        .y = sc_host_devptr(l->y + t * l->width[0]), .dtype = SC_DTYPE_F32,
        .a_log = sc_host_devptr(l->weight[0]), .dt_bias = sc_host_devptr(l->weight[1]),
        .d = sc_host_devptr(l->weight[2]), .heads = l->heads, .groups = l->groups,
        .head_dim = l->head_dim, .state_dim = l->state_dim, .row_count = 1,
        .state = l->state.slots};
}

static void ssm_run(struct ssm_layer *l)
{
    int32_t start[2] = {0, TOKENS}, zero = 0, one = 1;
    sc_k_ssm_chunk_params p = {.tokens = ssm_at(l, 0), .chunk = CHUNK};
    struct one_ring ring;
    uint32_t bytes = 0;
    p.tokens.row_start = sc_host_devptr(start), p.tokens.token_count = TOKENS;
    p.tokens.source = sc_host_devptr(&zero), p.tokens.dest = sc_host_devptr(&one);
    RIG_OK(sc_k_ssm_chunk_scratch(NULL, &p, &p.scratch_bytes));
    void *scratch = rig_alloc(p.scratch_bytes);
    p.scratch = sc_host_devptr(scratch);
    RIG_OK(sc_k_ssm_chunk(NULL, &p, NULL));
    free(scratch);
    sc_k_ssm_params step = ssm_at(l, TOKENS);
    start[1] = 1, step.row_start = p.tokens.row_start, step.token_count = 1;
    step.source = step.dest = p.tokens.dest;
    RIG_OK(sc_k_ssm(NULL, &step, NULL));
    RIG_OK(sc_k_replay_ssm_record_bytes(l->heads, l->groups, l->head_dim, l->state_dim,
        SC_DTYPE_F32, &bytes));
    one_ring_open(&ring, bytes);
    for (size_t t = TOKENS + 1; t < ALL; t++) {
        sc_k_replay_ssm_params r = {ssm_at(l, t), ring.ring};
        r.step.source = r.step.dest = p.tokens.dest;
        one_ring_step(&ring);
        RIG_OK(sc_k_replay_ssm(NULL, &r, NULL));
    }
    free(ring.memory);
}

START_TEST(ranks__of_mamba2_are_one)
{
    sc_dtype dtype = _i % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    uint32_t head_dim = _i < 2 ? 64 : 20, state_dim = _i < 2 ? 128 : 19;
    struct ssm_layer all = ssm_new(8, 4, head_dim, state_dim, dtype);
    struct sc_prng prng;
    sc_prng_seed(&prng, 940 + (uint64_t)_i);
    for (int i = 0; i < 4; i++)
        for (size_t n = 0; n < ALL * all.width[i]; n++)
            all.in[i][n] = (float)sc_prng_unit(&prng) - 0.5f;
    for (int i = 0; i < 3; i++)
        for (size_t n = 0; n < all.heads; n++) all.weight[i][n] = (float)sc_prng_unit(&prng) - 0.5f;
    ssm_run(&all);
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
        for (uint32_t rank = 0; rank < ranks; rank++) {
            struct ssm_layer l = ssm_new(8 / ranks, 4 / ranks, head_dim, state_dim, dtype);
            size_t bytes = rig_part_bytes(&l.state), wide = l.width[0] * 4;
            for (int i = 0; i < 4; i++)
                for (size_t t = 0; t < ALL; t++)
                    memcpy(l.in[i] + t * l.width[i],
                        all.in[i] + t * all.width[i] + rank * l.width[i], l.width[i] * 4);
            for (int i = 0; i < 3; i++)
                memcpy(l.weight[i], all.weight[i] + rank * l.heads, l.heads * 4ull);
            ssm_run(&l);
            ck_assert_msg(memcmp(rig_slot(&l.state, 1),
                (uint8_t *)rig_slot(&all.state, 1) + rank * bytes, bytes) == 0, "rank %u", rank);
            for (size_t t = 0; t < ALL; t++)
                ck_assert_mem_eq(l.y + t * l.width[0],
                    all.y + t * all.width[0] + rank * l.width[0], wide);
            ssm_free(&l);
        }
    }
    ssm_free(&all);
}
END_TEST

/* Cut evenly, 2 of 2 ranks would begin inside k; counts that do not divide are no shape. */
START_TEST(report_94__packed_heads_are_cut_part_by_part)
{
    struct layer all = whole_layer(_i);
    run(&all);
    check_ranks(&all, 1), check_ranks(&all, 2);
    sc_k_delta_shape shape = all.shape;
    shape.heads = HEADS / 2, shape.v_heads = HEADS / 2 * ratios[_i % 5];
    struct layer part = layer_new(shape, all.state.slots.dtype);
    size_t c = (size_t)shape.heads * shape.k_dim; /* its first of k */
    ck_assert_uint_eq(channel_of(&part, 1, 2, c), 3 * c);
    ck_assert_uint_ne(channel_of(&part, 1, 2, c), part.channels + c);
    int32_t one = 1;
    sc_k_decode_packed_params p = {.qkv = sc_host_devptr(all.y), .o = sc_host_devptr(all.o),
        .dtype = SC_DTYPE_F32, .g = sc_host_devptr(all.g), .beta = sc_host_devptr(all.beta),
        .shape = {.kind = SC_K_KIND_GDN, .heads = HEADS - 1, .v_heads = HEADS, .k_dim = 64,
            .v_dim = 24},
        .row_count = 1, .source = sc_host_devptr(&one), .dest = sc_host_devptr(&one),
        .state = all.state.slots};
    ck_assert_int_eq(sc_k_decode_packed(NULL, &p, NULL), SC_ERR_INVALID);
    layer_free(&part), layer_free(&all);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_ranks");
    TCase *tc = tcase_create("ranks");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, ranks__two_and_four_are_one, 0, CASES);
    tcase_add_loop_test(tc, ranks__of_mamba2_are_one, 0, 4);
    tcase_add_loop_test(tc, report_94__packed_heads_are_cut_part_by_part, 0, 5);
    suite_add_tcase(suite, tc);
    return check_main(suite);
}

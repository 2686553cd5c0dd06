/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor-parallel ranks in one process. Each has its heads' channels of q, k and v, part by part,
 * runs conv, chunk prefill and decode on pools of its own, and projects its outputs; what it leaves
 * are the bits of one rank for these heads, and the sum of the projections is that of one rank. */
#include <check.h>
#include <math.h>

#include "kernels_rig.h"
#include "statecache/kernels_project.h"
#include "support/check_main.h"

enum { TOKENS = 70, WIDTH = 4, HEADS = 4, OUT = 24, CHUNK = 64, CASES = 10 };

static const uint32_t ratios[] = {1, 2, 3, 4, 8}, dims[] = {64, 96, 128, 192, 256};

/* A layer as one rank holds it; `x` is [TOKENS + 1][channels], the last token is decoded. */
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
    l.x = rig_alloc((TOKENS + 1) * l.channels * 4ull);
    l.weight = rig_alloc(l.channels * WIDTH * 4ull);
    l.g = rig_alloc((TOKENS + 1) * l.gates * 4ull);
    l.beta = rig_alloc((TOKENS + 1) * shape.v_heads * 4ull);
    l.project = rig_alloc(l.outputs * OUT * 4ull);
    l.y = rig_alloc((TOKENS + 1) * l.channels * 4ull);
    l.o = rig_alloc((TOKENS + 1) * l.outputs * 4ull);
    l.sum = rig_alloc((TOKENS + 1) * OUT * 4ull);
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

static void decode(struct layer *l)
{
    int32_t one = 1;
    float *y = l->y + (size_t)TOKENS * l->channels;
    sc_k_conv_update_params c = {.x = sc_host_devptr(l->x + (size_t)TOKENS * l->channels),
        .y = sc_host_devptr(y), .dtype = SC_DTYPE_F32, .weight = sc_host_devptr(l->weight),
        .weight_dtype = SC_DTYPE_F32, .act = SC_K_ACT_SILU, .channels = l->channels,
        .width = WIDTH, .row_count = 1, .source = sc_host_devptr(&one),
        .dest = sc_host_devptr(&one), .window = l->window.slots};
    RIG_OK(sc_k_conv_update(NULL, &c, NULL));
    sc_k_decode_packed_params p = {.qkv = sc_host_devptr(y),
        .o = sc_host_devptr(l->o + (size_t)TOKENS * l->outputs), .dtype = SC_DTYPE_F32,
        .g = sc_host_devptr(l->g + (size_t)TOKENS * l->gates),
        .beta = sc_host_devptr(l->beta + (size_t)TOKENS * l->shape.v_heads), .shape = l->shape,
        .row_count = 1, .source = c.source, .dest = c.dest, .state = l->state.slots};
    RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
}

static void run(struct layer *l)
{
    prefill(l);
    decode(l);
    sc_k_project_params p = {.x = sc_host_devptr(l->o), .weight = sc_host_devptr(l->project),
        .y = sc_host_devptr(l->sum), .dtype = SC_DTYPE_F32, .weight_dtype = SC_DTYPE_F32,
        .y_dtype = SC_DTYPE_F32, .in_dim = l->outputs, .out_dim = OUT,
        .token_count = TOKENS + 1};
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
        for (size_t t = 0; t <= TOKENS; t++)
            part->x[t * part->channels + c] = all->x[t * all->channels + from];
    }
    for (size_t t = 0; t <= TOKENS; t++) {
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
    for (size_t t = 0; t <= TOKENS; t++)
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
    size_t counts[] = {(TOKENS + 1ull) * all.channels, (size_t)all.channels * WIDTH,
        (size_t)all.outputs * OUT};
    for (int n = 0; n < 3; n++)
        for (size_t k = 0; k < counts[n]; k++) lists[n][k] = (float)sc_prng_unit(&prng) - 0.5f;
    for (size_t n = 0; n < (TOKENS + 1ull) * all.gates; n++)
        all.g[n] = -0.5f * (float)sc_prng_unit(&prng);
    for (size_t n = 0; n < (TOKENS + 1ull) * shape.v_heads; n++)
        all.beta[n] = (float)sc_prng_unit(&prng);
    return all;
}

static void check_ranks(const struct layer *all, uint32_t ranks)
{
    double sums[(TOKENS + 1) * OUT] = {0}, error = 0, size = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        sc_k_delta_shape shape = all->shape;
        shape.heads /= ranks, shape.v_heads /= ranks;
        struct layer part = layer_new(shape, all->state.slots.dtype);
        split(&part, all, rank, ranks);
        run(&part);
        check_part(&part, all, rank, ranks);
        for (size_t n = 0; n < (TOKENS + 1) * OUT; n++) sums[n] += (double)part.sum[n];
        layer_free(&part);
    }
    for (size_t n = 0; n < (TOKENS + 1) * OUT; n++) {
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
    tcase_add_loop_test(tc, report_94__packed_heads_are_cut_part_by_part, 0, 5);
    suite_add_tcase(suite, tc);
    return check_main(suite);
}

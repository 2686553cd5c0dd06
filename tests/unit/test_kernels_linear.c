/* SPDX-License-Identifier: Apache-2.0 */
/* Whole layers against the operations that they are made of, and their forms against each other:
 * what verify and commit give is what decoding the same tokens gives. */
#include <check.h>

#include "kernels_rig.h"
#include "support/check_main.h"
#include "statecache/kernels_linear.h"

enum { CASES = 16, SLOTS = 10, TOKENS = 40, WIDTH = 4, DRAFTS = 7 };

struct layer {
    sc_linear_layer l;
    sc_dtype dtype;
    uint32_t windows;
    size_t channels, vo, decay, heads;
    void *x, *a, *b, *o, *w, *bias, *scratch;
    float *gate_w;
    struct rig_pool window[3], state;
    sc_linear_batch batch;
    int32_t start[4], position[3], source[3], dest[3];
};

static void *tensor(struct sc_prng *prng, sc_dtype dtype, size_t count)
{
    float *x = rig_normal(prng, count, 0.7f);
    void *out = rig_tensor(dtype, x, count);
    free(x);
    return out;
}

/* Slot 1 has a state, others are poison; the same numbers whatever the number of windows. */
static void pools_open(struct layer *s, struct sc_prng *prng, sc_dtype state)
{
    size_t qk = (size_t)s->l.shape.heads * s->l.shape.k_dim, first = 0;
    size_t width[3] = {s->windows == 1 ? s->channels : qk, qk, s->vo};
    float *x = rig_normal(prng, (WIDTH - 1) * s->channels, 0.7f);
    for (uint32_t i = 0; i < s->windows; i++) {
        s->window[i] = rig_pool(s->dtype, (WIDTH - 1) * width[i], SLOTS, 0, 0);
        for (size_t j = 0; j + 1 < WIDTH; j++)
            rig_put((uint8_t *)rig_slot(&s->window[i], 1) + j * width[i] * rig_elem(s->dtype),
                s->dtype, x + j * s->channels + first, width[i]);
        first += width[i];
    }
    free(x);
    s->state = rig_pool(state, s->vo * s->l.shape.k_dim, SLOTS, 0, 0);
    x = rig_normal(prng, s->state.part_elems, 0.3f);
    rig_put(rig_slot(&s->state, 1), state, x, s->state.part_elems);
    free(x);
}

static void layer_weights(struct layer *s, struct sc_prng *prng, int i)
{
    bool kda = s->l.shape.kind == SC_K_KIND_KDA;
    s->w = tensor(prng, SC_DTYPE_F32, s->channels * WIDTH);
    s->bias = tensor(prng, SC_DTYPE_F32, s->channels);
    s->gate_w = rig_normal(prng, s->heads + s->decay, 0.5f);
    s->l.conv_weight = sc_host_devptr(s->w);
    s->l.conv_bias = i % 5 == 0 ? sc_host_devptr(s->bias) : 0;
    s->l.conv_dtype = SC_DTYPE_F32, s->l.conv_act = SC_K_ACT_SILU, s->l.conv_width = WIDTH;
    s->l.chunk = 16;
    s->l.gates = (sc_k_gate_weights){.gate = !kda ? SC_K_GATE_GDN
            : i % 4 == 1 ? SC_K_GATE_KDA_SOFTPLUS : SC_K_GATE_KDA_BOUNDED,
        .a_log = sc_host_devptr(s->gate_w), .dt_bias = sc_host_devptr(s->gate_w + s->heads),
        .dt_bias_dtype = SC_DTYPE_F32, .lower_bound = -5.0f};
}

static struct layer *layer_open(int i, uint32_t windows)
{
    struct layer *s = rig_alloc(sizeof *s);
    struct sc_prng prng;
    sc_prng_seed(&prng, 300 + (uint64_t)i);
    memset(s, 0, sizeof *s);
    s->dtype = i / 2 % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    s->windows = windows;
    s->l.shape = (sc_k_delta_shape){.kind = i % 2 ? SC_K_KIND_KDA : SC_K_KIND_GDN, .heads = 1,
        .v_heads = i % 2 ? 1 : 2, .k_dim = i % 3 ? 64 : 19, .v_dim = i % 3 ? 24 : 37,
        .qk_l2norm = true};
    s->heads = s->l.shape.v_heads, s->vo = s->heads * s->l.shape.v_dim;
    s->channels = 2 * (size_t)s->l.shape.k_dim + s->vo;
    s->decay = s->heads * (i % 2 ? s->l.shape.k_dim : 1);
    layer_weights(s, &prng, i);
    s->x = tensor(&prng, s->dtype, TOKENS * s->channels);
    s->a = tensor(&prng, s->dtype, TOKENS * s->decay);
    s->b = tensor(&prng, s->dtype, TOKENS * s->heads);
    s->o = rig_tensor(s->dtype, NULL, TOKENS * s->vo);
    pools_open(s, &prng, i % 3 == 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32);
    s->batch = (sc_linear_batch){.x = sc_host_devptr(s->x), .a = sc_host_devptr(s->a),
        .b = sc_host_devptr(s->b), .o = sc_host_devptr(s->o), .dtype = s->dtype,
        .row_start = sc_host_devptr(s->start), .position = sc_host_devptr(s->position),
        .source = sc_host_devptr(s->source), .dest = sc_host_devptr(s->dest),
        .window_count = windows, .state = s->state.slots, .tokens_max = DRAFTS};
    for (uint32_t w = 0; w < windows; w++) s->batch.window[w] = s->window[w].slots;
    return s;
}

static void layer_close(struct layer *s)
{
    void *all[] = {s->x, s->a, s->b, s->o, s->w, s->bias, s->scratch, s->gate_w, s->state.memory,
        s->window[0].memory, s->window[1].memory, s->window[2].memory, s};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static size_t o_row(const struct layer *s)
{
    return s->vo * rig_elem(s->dtype);
}

static void scratch(struct layer *s, sc_linear_form form)
{
    free(s->scratch);
    RIG_OK(sc_linear_scratch(NULL, &s->l, &s->batch, form, &s->batch.scratch_bytes));
    s->scratch = rig_alloc(s->batch.scratch_bytes);
    s->batch.scratch = sc_host_devptr(s->scratch);
}

/* Tokens from .. to of the sequence between an empty and a padded row. */
static void rows(struct layer *s, uint32_t from, uint32_t to, int32_t source, int32_t dest)
{
    const int32_t start[4] = {(int32_t)from, (int32_t)from, (int32_t)to, (int32_t)to};
    memcpy(s->start, start, sizeof start);
    s->position[1] = (int32_t)from;
    s->source[0] = 0, s->source[1] = source, s->source[2] = -1;
    s->dest[0] = 9, s->dest[1] = dest, s->dest[2] = 8;
    s->batch.token_count = TOKENS, s->batch.row_count = 3;
}

/* Token t from slot to slot. */
static void decode(struct layer *s, uint32_t t, int32_t source, int32_t dest)
{
    sc_linear_batch all = s->batch;
    uint64_t e = rig_elem(s->dtype);
    s->source[0] = source, s->dest[0] = dest;
    s->batch.row_count = s->batch.token_count = 1;
    s->batch.x += t * s->channels * e, s->batch.a += t * s->decay * e;
    s->batch.b += t * s->heads * e, s->batch.o += t * s->vo * e;
    scratch(s, SC_LINEAR_DECODE);
    RIG_OK(sc_linear_decode(NULL, &s->l, &s->batch, NULL));
    s->batch = all;
}

static void same_slots(const struct layer *a, int32_t a_slot, const struct layer *b,
    int32_t b_slot)
{
    rig_same_slots(&a->state, a_slot, &b->state, b_slot);
    if (a->windows == b->windows)
        for (uint32_t i = 0; i < a->windows; i++)
            rig_same_slots(&a->window[i], a_slot, &b->window[i], b_slot);
}

START_TEST(decode__three_windows_give_the_bits_of_one)
{
    struct layer *one = layer_open(_i, 1), *two = layer_open(_i, 3);
    for (uint32_t t = 0; t < 6; t++) {
        decode(one, t, t ? 2 : 1, 2);
        decode(two, t, t ? 2 : 1, 2);
    }
    ck_assert_mem_eq(one->o, two->o, 6 * o_row(one));
    rig_all_bytes((uint8_t *)one->o + 6 * o_row(one), o_row(one), 0xff);
    same_slots(one, 2, two, 2);
    layer_close(one), layer_close(two);
}
END_TEST

/* The operations one by one, on one window. */
static void by_hand(struct layer *s)
{
    size_t e = rig_elem(s->dtype), qk = (size_t)s->l.shape.heads * s->l.shape.k_dim;
    void *y = rig_tensor(s->dtype, NULL, TOKENS * s->channels), *own = NULL;
    float *g = rig_alloc(TOKENS * s->decay * 4), *beta = rig_alloc(TOKENS * s->heads * 4);
    const sc_linear_batch *b = &s->batch;
    sc_k_conv_prefill_params conv = {.x = b->x, .y = sc_host_devptr(y), .dtype = s->dtype,
        .weight = s->l.conv_weight, .bias = s->l.conv_bias, .weight_dtype = SC_DTYPE_F32,
        .act = s->l.conv_act, .channels = (uint32_t)s->channels, .width = WIDTH,
        .token_count = TOKENS, .row_count = 3, .row_start = b->row_start,
        .position = b->position, .source = b->source, .dest = b->dest, .saves = b->saves,
        .window = s->window[0].slots};
    sc_k_gates_params gates = {.a = b->a, .b = b->b, .dtype = s->dtype, .weights = s->l.gates,
        .token_count = TOKENS, .heads = (uint32_t)s->heads, .dim = s->l.shape.k_dim,
        .g = sc_host_devptr(g), .beta = sc_host_devptr(beta)};
    sc_k_delta_params delta = {.q = conv.y, .k = conv.y + qk * e, .v = conv.y + 2 * qk * e,
        .o = b->o, .q_stride = (int64_t)s->channels, .k_stride = (int64_t)s->channels,
        .v_stride = (int64_t)s->channels, .dtype = s->dtype, .g = gates.g, .beta = gates.beta,
        .shape = s->l.shape, .token_count = TOKENS, .row_count = 3, .row_start = b->row_start,
        .position = b->position, .source = b->source, .dest = b->dest, .saves = b->saves,
        .state = s->state.slots, .chunk = s->l.chunk};
    RIG_OK(sc_k_conv_prefill(NULL, &conv, NULL));
    RIG_OK(sc_k_gates(NULL, &gates, NULL));
    RIG_OK(sc_k_delta_chunk_scratch(NULL, &delta, &delta.scratch_bytes));
    own = rig_alloc(delta.scratch_bytes);
    delta.scratch = sc_host_devptr(own);
    RIG_OK(sc_k_delta_chunk(NULL, &delta, NULL));
    free(y), free(own), free(g), free(beta);
}

START_TEST(extend__gives_the_bits_of_the_calls_and_of_any_cut_on_the_grid)
{
    struct layer *one = layer_open(_i, _i % 2 ? 1 : 3), *two = layer_open(_i, 1);
    struct layer *cut = layer_open(_i, 1);
    int32_t row = 1, pos = 16, slot = 4;
    const sc_k_saves saves = {sc_host_devptr(&row), sc_host_devptr(&pos), sc_host_devptr(&slot), 1};
    rows(one, 0, TOKENS, 1, 2), rows(two, 0, TOKENS, 1, 2);
    one->batch.saves = two->batch.saves = saves;
    scratch(one, SC_LINEAR_EXTEND);
    RIG_OK(sc_linear_extend(NULL, &one->l, &one->batch, NULL));
    by_hand(two);
    ck_assert_mem_eq(one->o, two->o, TOKENS * o_row(one));
    same_slots(one, 2, two, 2), same_slots(one, 4, two, 4);
    scratch(cut, SC_LINEAR_EXTEND);
    for (uint32_t from = 0, i = 0; i < 2; i++, from = 16) {
        rows(cut, from, i ? TOKENS : 16, i ? 3 : 1, 3);
        free(cut->scratch), cut->scratch = NULL;
        scratch(cut, SC_LINEAR_EXTEND);
        RIG_OK(sc_linear_extend(NULL, &cut->l, &cut->batch, NULL));
    }
    ck_assert_mem_eq(cut->o, two->o, TOKENS * o_row(one));
    same_slots(cut, 3, two, 2);
    rig_untouched(&one->state, 8), rig_untouched(&one->window[0], 8); /* of the padded row */
    layer_close(one), layer_close(two), layer_close(cut);
}
END_TEST

/* The same windows as [channels][inputs]: every form gives the same outputs. */
START_TEST(linear__windows_of_the_other_order)
{
    struct layer *one = layer_open(_i, 1), *two = layer_open(_i, 1);
    size_t e = rig_elem(one->dtype), c = one->channels;
    for (size_t j = 0; j + 1 < WIDTH; j++)
        for (size_t n = 0; n < c; n++)
            memcpy((uint8_t *)rig_slot(&two->window[0], 1) + (n * (WIDTH - 1) + j) * e,
                (uint8_t *)rig_slot(&one->window[0], 1) + (j * c + n) * e, e);
    two->batch.order = SC_K_ORDER_DIM_FIRST;
    for (int k = 0; k < 2; k++) {
        struct layer *s = k ? two : one;
        rows(s, 0, TOKENS - 2, 1, 2);
        scratch(s, SC_LINEAR_EXTEND);
        RIG_OK(sc_linear_extend(NULL, &s->l, &s->batch, NULL));
        decode(s, TOKENS - 2, 2, 3);
        decode(s, TOKENS - 1, 3, 3);
    }
    ck_assert_mem_eq(one->o, two->o, TOKENS * o_row(one));
    rig_same_slots(&one->state, 3, &two->state, 3);
    layer_close(one), layer_close(two);
}
END_TEST

/* A tree: 0-1-2 and 0-3-4, 4-5, and 6 from the state. */
static const int32_t parents[DRAFTS] = {-1, 0, 1, 0, 3, 4, -1};
static const int32_t path[4] = {0, 3, 4, 5};

/* Drafts are tokens 0 .. DRAFTS - 1 of the sequence. */
static void drafts(struct layer *s, int32_t *parent)
{
    rows(s, 0, DRAFTS, 1, 0);
    s->batch.token_count = DRAFTS, s->batch.dest = 0;
    for (uint32_t t = 0; t < DRAFTS; t++) parent[t] = parents[t];
    s->batch.parent = sc_host_devptr(parent);
}

START_TEST(verify__and_commit_are_decode_along_the_path)
{
    struct layer *one = layer_open(_i, _i % 4 < 2 ? 1 : 3);
    struct layer *two = layer_open(_i, _i % 4 < 2 ? 1 : 3);
    int32_t parent[DRAFTS], node[3] = {-1, 5, -1}, row = 1, pos = 2, slot = 4;
    void *nodes[4] = {NULL};
    bool stored = _i % 3 == 0;
    drafts(one, parent);
    for (uint32_t i = 0; stored && i <= one->windows; i++) {
        const struct rig_pool *pool = i ? &one->window[i - 1] : &one->state;
        nodes[i] = rig_alloc(3 * DRAFTS * rig_part_bytes(pool));
        *(i ? &one->batch.windows[i - 1] : &one->batch.states) =
            (sc_k_node_store){sc_host_devptr(nodes[i]), DRAFTS};
    }
    scratch(one, SC_LINEAR_VERIFY);
    RIG_OK(sc_linear_verify(NULL, &one->l, &one->batch, NULL));
    for (int32_t i = 2; i < SLOTS; i++) rig_untouched(&one->state, i);
    for (uint32_t i = 0; i < 4; i++) {
        decode(two, (uint32_t)path[i], i ? 2 : 1, 2);
        ck_assert_mem_eq((uint8_t *)one->o + (size_t)path[i] * o_row(one),
            (uint8_t *)two->o + (size_t)path[i] * o_row(one), o_row(one));
        if (i == 1) /* what the save must be */
            memcpy(rig_slot(&two->state, 6), rig_slot(&two->state, 2),
                rig_part_bytes(&two->state));
    }
    rows(one, 0, DRAFTS, 1, 2);
    one->batch.token_count = DRAFTS;
    one->batch.dest = sc_host_devptr(one->dest), one->batch.node = sc_host_devptr(node);
    one->batch.saves = (sc_k_saves){sc_host_devptr(&row), sc_host_devptr(&pos),
        sc_host_devptr(&slot), 1};
    scratch(one, SC_LINEAR_COMMIT);
    RIG_OK(sc_linear_commit(NULL, &one->l, &one->batch, NULL));
    same_slots(one, 2, two, 2);
    rig_same_slots(&one->state, 4, &two->state, 6);
    for (uint32_t i = 0; i < 4; i++) free(nodes[i]);
    layer_close(one), layer_close(two);
}
END_TEST

/* ---- bad arguments ---- */

static void unchanged(const struct layer *s)
{
    for (int32_t i = 2; i < SLOTS; i++) {
        rig_untouched(&s->state, i);
        for (uint32_t w = 0; w < s->windows; w++) rig_untouched(&s->window[w], i);
    }
    rig_all_bytes(s->o, TOKENS * o_row(s), 0xff);
}

#define INVALID(field, value) RIG_REFUSED(SC_ERR_INVALID, CALL, field, value)
/* What every form refuses: the last operation's arguments, too, before the first one writes. */
#define BAD_LAYER()                                                                                \
    do {                                                                                           \
        INVALID(s->batch.x, 0);                                                                    \
        INVALID(s->batch.a, 0);                                                                    \
        INVALID(s->batch.b, 0);                                                                    \
        INVALID(s->batch.source, 0);                                                               \
        INVALID(s->batch.window_count, 2);                                                         \
        INVALID(s->batch.state.base, 0);                                                           \
        INVALID(s->batch.state.slot_stride, 8);                                                    \
        INVALID(s->batch.window[s->windows - 1].base, 0);                                          \
        INVALID(s->batch.x_stride, 3);                                                             \
        INVALID(s->batch.scratch, 0);                                                              \
        INVALID(s->batch.scratch, s->batch.scratch + 8);                                           \
        INVALID(s->batch.scratch_bytes, s->batch.scratch_bytes - 64);                              \
        INVALID(s->l.conv_weight, 0);                                                              \
        INVALID(s->l.conv_width, 5);                                                               \
        INVALID(s->l.shape.heads, 0);                                                              \
        INVALID(s->l.shape.k_dim, 0);                                                              \
        INVALID(s->l.shape.v_dim, SC_K_DIM_MAX + 1);                                               \
        INVALID(s->l.gates.a_log, 0);                                                              \
        INVALID(s->l.gates.gate, SC_K_GATE_KDA_BOUNDED); /* of another kind */                     \
        RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, s->batch.dtype, SC_DTYPE_F16);                       \
        RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, s->batch.state.dtype, SC_DTYPE_U8);                  \
        unchanged(s);                                                                              \
    } while (0)

START_TEST(linear_decode__refuses_bad_arguments)
{
#define CALL sc_linear_decode(NULL, &s->l, &s->batch, NULL)
    struct layer *s = layer_open(_i ? 0 : 4, _i ? 3 : 1);
    ck_assert_int_eq(sc_linear_decode(NULL, NULL, &s->batch, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_linear_decode(NULL, &s->l, NULL, NULL), SC_ERR_INVALID);
    s->source[0] = 1, s->dest[0] = 2;
    s->batch.row_count = s->batch.token_count = 1;
    scratch(s, SC_LINEAR_DECODE);
    BAD_LAYER();
    INVALID(s->batch.o, 0);
    INVALID(s->batch.dest, 0);
    INVALID(s->dest[0], SLOTS);
    INVALID(s->batch.row_count, 2); /* is not token_count */
    unchanged(s);
    RIG_OK(CALL);
    layer_close(s);
#undef CALL
}
END_TEST

START_TEST(linear_extend__refuses_bad_arguments)
{
#define CALL sc_linear_extend(NULL, &s->l, &s->batch, NULL)
    struct layer *s = layer_open(_i ? 0 : 4, _i ? 3 : 1);
    ck_assert_int_eq(sc_linear_extend(NULL, NULL, &s->batch, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_linear_extend(NULL, &s->l, NULL, NULL), SC_ERR_INVALID);
    rows(s, 0, TOKENS, 1, 2);
    scratch(s, SC_LINEAR_EXTEND);
    BAD_LAYER();
    INVALID(s->batch.o, 0);
    INVALID(s->batch.dest, 0);
    INVALID(s->batch.row_start, 0);
    INVALID(s->l.chunk, 48);
    INVALID(s->start[3], TOKENS + 1);
    INVALID(s->dest[1], 9); /* of another row */
    unchanged(s);
    RIG_OK(CALL);
    layer_close(s);
#undef CALL
}
END_TEST

START_TEST(linear_verify__refuses_bad_arguments)
{
#define CALL sc_linear_verify(NULL, &s->l, &s->batch, NULL)
    struct layer *s = layer_open(_i ? 0 : 4, _i ? 3 : 1);
    int32_t parent[DRAFTS];
    ck_assert_int_eq(sc_linear_verify(NULL, NULL, &s->batch, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_linear_verify(NULL, &s->l, NULL, NULL), SC_ERR_INVALID);
    drafts(s, parent);
    scratch(s, SC_LINEAR_VERIFY);
    BAD_LAYER();
    INVALID(s->batch.o, 0);
    INVALID(s->batch.tokens_max, DRAFTS - 1);
    INVALID(s->batch.tokens_max, SC_K_DRAFT_MAX + 1);
    INVALID(parent[3], 3);
    unchanged(s);
    RIG_OK(CALL);
    layer_close(s);
#undef CALL
}
END_TEST

START_TEST(linear_commit__refuses_bad_arguments)
{
#define CALL sc_linear_commit(NULL, &s->l, &s->batch, NULL)
    struct layer *s = layer_open(_i ? 0 : 4, _i ? 3 : 1);
    int32_t parent[DRAFTS], node[3] = {-1, 4, -1};
    ck_assert_int_eq(sc_linear_commit(NULL, NULL, &s->batch, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_linear_commit(NULL, &s->l, NULL, NULL), SC_ERR_INVALID);
    drafts(s, parent);
    rows(s, 0, DRAFTS, 1, 2);
    s->batch.token_count = DRAFTS;
    s->batch.dest = sc_host_devptr(s->dest), s->batch.node = sc_host_devptr(node);
    scratch(s, SC_LINEAR_COMMIT);
    BAD_LAYER();
    INVALID(s->batch.node, 0);
    INVALID(s->batch.dest, 0);
    INVALID(node[1], DRAFTS);
    unchanged(s);
    RIG_OK(CALL);
    layer_close(s);
#undef CALL
}
END_TEST

START_TEST(linear_scratch__refuses_bad_arguments)
{
#define CALL sc_linear_scratch(NULL, &s->l, &s->batch, SC_LINEAR_EXTEND, &bytes)
    struct layer *s = layer_open(0, 1);
    uint64_t bytes = 77;
    rows(s, 0, TOKENS, 1, 2);
    ck_assert_int_eq(sc_linear_scratch(NULL, NULL, &s->batch, SC_LINEAR_DECODE, &bytes),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_linear_scratch(NULL, &s->l, NULL, SC_LINEAR_DECODE, &bytes),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_linear_scratch(NULL, &s->l, &s->batch, SC_LINEAR_DECODE, NULL),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_linear_scratch(NULL, &s->l, &s->batch, (sc_linear_form)5, &bytes),
        SC_ERR_INVALID);
    INVALID(s->l.chunk, 0);
    INVALID(s->l.shape.k_dim, SC_K_DIM_MAX + 1);
    INVALID(s->batch.token_count, UINT32_MAX);
    ck_assert_uint_eq(bytes, 77);
    RIG_OK(CALL);
    ck_assert_uint_gt(bytes, 77);
    layer_close(s);
#undef CALL
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_linear");
    TCase *all = tcase_create("linear");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, decode__three_windows_give_the_bits_of_one, 0, CASES);
    tcase_add_loop_test(all, extend__gives_the_bits_of_the_calls_and_of_any_cut_on_the_grid, 0,
        CASES);
    tcase_add_loop_test(all, linear__windows_of_the_other_order, 0, 4);
    tcase_add_loop_test(all, verify__and_commit_are_decode_along_the_path, 0, CASES);
    tcase_add_loop_test(all, linear_decode__refuses_bad_arguments, 0, 2);
    tcase_add_loop_test(all, linear_extend__refuses_bad_arguments, 0, 2);
    tcase_add_loop_test(all, linear_verify__refuses_bad_arguments, 0, 2);
    tcase_add_loop_test(all, linear_commit__refuses_bad_arguments, 0, 2);
    tcase_add_test(all, linear_scratch__refuses_bad_arguments);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

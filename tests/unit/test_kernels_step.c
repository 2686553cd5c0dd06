/* SPDX-License-Identifier: Apache-2.0 */
/* A decode step gives the bits of the conv update followed by the packed decode: outputs, windows
 * and states, whatever the shape, the rows and the dtypes; and refuses calls that do not belong
 * together. Shapes are such that a device takes its one launch for some and two for others. */
#include "kernels_rig.h"
#include "support/check_main.h"

enum { ROWS = 6, SLOTS = 14, WIDTH = 4 };

static const struct dims { uint32_t heads, v_heads, k_dim, v_dim, rows; } dims[] = {
    {2, 4, 128, 128, ROWS}, {1, 1, 128, 64, 1}, {1, 2, 128, 32, ROWS}, {16, 32, 128, 128, ROWS},
    {1, 4, 128, 128, ROWS}, {1, 2, 64, 16, ROWS}, {1, 1, 19, 37, 3},
#ifdef SC_TEST_GPU
    {48, 96, 128, 128, ROWS}, /* the launch for many heads */
#endif
};
enum { DIMS = sizeof dims / sizeof dims[0], TYPES = 4, CASES = 2 * TYPES * DIMS };

struct step {
    struct dims d;
    sc_k_kind kind;
    sc_dtype dtype, state;
    uint32_t qkv, vo, gates;
    void *x, *y, *o, *weight, *a, *b;
    float *a_log, *dt_bias;
    int32_t source[ROWS], dest[ROWS], save[ROWS];
    struct rig_pool windows, states;
    sc_k_conv_update_params conv;
    sc_k_decode_packed_params decode;
};

static void *random_tensor(struct sc_prng *prng, sc_dtype dtype, size_t count, float scale)
{
    float *values = rig_normal(prng, count, scale);
    void *out = rig_tensor(dtype, values, count);
    free(values);
    return out;
}

/* From the zero state, from another slot, in place, a padding row, saves. */
static void rows_init(struct step *s)
{
    static const int32_t source[ROWS] = {1, 2, -1, 0, 5, 6}, dest[ROWS] = {1, 7, 8, 9, 5, -1};
    static const int32_t save[ROWS] = {-1, 10, 11, 12, 13, -1};
    memcpy(s->source, source, sizeof source);
    memcpy(s->dest, dest, sizeof dest);
    memcpy(s->save, save, sizeof save);
}

static struct rig_pool pool_init(struct sc_prng *prng, sc_dtype dtype, size_t elems)
{
    struct rig_pool pool = rig_pool(dtype, elems, SLOTS, 0, 0);
    for (int32_t slot = 1; slot <= 6; slot++) {
        float *values = rig_normal(prng, elems, 0.3f);
        rig_put(rig_slot(&pool, slot), dtype, values, elems);
        free(values);
    }
    return pool;
}

static void step_init(struct step *s, int i)
{
    struct sc_prng prng;
    const struct dims d = dims[i / (2 * TYPES)];
    bool kda = i % 2 != 0, wide = i / 2 % TYPES == 3;
    sc_prng_seed(&prng, 40 + (uint64_t)i);
    *s = (struct step){.d = d, .kind = kda ? SC_K_KIND_KDA : SC_K_KIND_GDN,
        .dtype = wide ? SC_DTYPE_F32 : SC_DTYPE_BF16,
        .state = i / 2 % TYPES == 1 ? SC_DTYPE_BF16 : SC_DTYPE_F32};
    s->vo = d.v_heads * d.v_dim;
    s->qkv = 2 * d.heads * d.k_dim + s->vo;
    s->gates = d.v_heads * (kda ? d.k_dim : 1);
    rows_init(s);
    s->x = random_tensor(&prng, s->dtype, (size_t)ROWS * s->qkv, 1.0f);
    s->y = rig_tensor(s->dtype, NULL, (size_t)ROWS * s->qkv);
    s->o = rig_tensor(s->dtype, NULL, (size_t)ROWS * s->vo);
    s->weight = random_tensor(&prng, s->dtype, (size_t)s->qkv * WIDTH, 0.4f);
    s->a = random_tensor(&prng, s->dtype, (size_t)ROWS * s->gates, 1.0f);
    s->b = random_tensor(&prng, s->dtype, (size_t)ROWS * d.v_heads, 1.0f);
    s->a_log = rig_normal(&prng, d.v_heads, 0.5f);
    s->dt_bias = rig_normal(&prng, s->gates, 0.5f);
    s->windows = pool_init(&prng, s->dtype, (size_t)(WIDTH - 1) * s->qkv);
    s->states = pool_init(&prng, s->state, (size_t)s->vo * d.k_dim);
    s->conv = (sc_k_conv_update_params){.x = sc_host_devptr(s->x), .y = sc_host_devptr(s->y),
        .dtype = s->dtype, .weight = sc_host_devptr(s->weight), .weight_dtype = s->dtype,
        .act = i / 2 % TYPES == 2 ? SC_K_ACT_IDENTITY : SC_K_ACT_SILU, .channels = s->qkv,
        .width = WIDTH, .row_count = d.rows, .source = sc_host_devptr(s->source),
        .dest = sc_host_devptr(s->dest), .save = sc_host_devptr(s->save),
        .window = s->windows.slots, .window_settled = i % 3 != 0};
    s->decode = (sc_k_decode_packed_params){.qkv = s->conv.y, .o = sc_host_devptr(s->o),
        .dtype = s->dtype, .a = sc_host_devptr(s->a), .b = sc_host_devptr(s->b),
        .weights = {.gate = kda ? SC_K_GATE_KDA_SOFTPLUS : SC_K_GATE_GDN,
            .a_log = sc_host_devptr(s->a_log), .dt_bias = sc_host_devptr(s->dt_bias),
            .dt_bias_dtype = SC_DTYPE_F32},
        .shape = {.kind = s->kind, .heads = d.heads, .v_heads = d.v_heads, .k_dim = d.k_dim,
            .v_dim = d.v_dim, .qk_l2norm = true},
        .row_count = d.rows, .source = s->conv.source, .dest = s->conv.dest,
        .save = s->conv.save, .state = s->states.slots, .state_settled = i % 3 != 0};
}

static void step_free(struct step *s)
{
    void *all[] = {s->x, s->y, s->o, s->weight, s->a, s->b, s->a_log, s->dt_bias,
        s->windows.memory, s->states.memory};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

START_TEST(step__gives_the_bits_of_the_two_calls)
{
    struct step one, two;
    step_init(&one, _i);
    step_init(&two, _i);
    for (int again = 0; again < 2; again++) { /* the second from what the first wrote */
        RIG_OK(sc_k_decode_step(NULL, &one.conv, &one.decode, NULL));
        RIG_OK(sc_k_conv_update(NULL, &two.conv, NULL));
        RIG_OK(sc_k_decode_packed(NULL, &two.decode, NULL));
        ck_assert_mem_eq(one.o, two.o, (size_t)ROWS * one.vo * rig_elem(one.dtype));
        for (int32_t slot = 0; slot < SLOTS; slot++) {
            rig_same_slots(&one.windows, slot, &two.windows, slot);
            rig_same_slots(&one.states, slot, &two.states, slot);
        }
    }
    rig_untouched(&one.windows, 0);
    rig_untouched(&one.states, 8); /* the padding row's destination */
    if (one.d.rows == ROWS) ck_assert_mem_eq(rig_slot(&one.states, 5), rig_slot(&one.states, 13),
        rig_part_bytes(&one.states));
    step_free(&one);
    step_free(&two);
}
END_TEST

START_TEST(step__refuses_calls_that_do_not_belong_together)
{
    struct step s;
    uint64_t bytes;
    step_init(&s, 0);
    bytes = (uint64_t)ROWS * s.vo * rig_elem(s.dtype);
    ck_assert_int_eq(sc_k_decode_step(NULL, NULL, &s.decode, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_decode_step(NULL, &s.conv, NULL, NULL), SC_ERR_INVALID);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        __typeof__(field) good_ = (field);                                                         \
        (field) = (value);                                                                         \
        ck_assert_int_eq(sc_k_decode_step(NULL, &s.conv, &s.decode, NULL), SC_ERR_INVALID);        \
        ck_assert_uint_gt(strlen(sc_last_error()->text), 3);                                       \
        (field) = good_;                                                                           \
    } while (0)
    REFUSED(s.conv.channels, s.qkv - 8);
    REFUSED(s.conv.row_count, ROWS - 1);
    REFUSED(s.decode.row_count, ROWS - 1);
    REFUSED(s.decode.source, sc_host_devptr(s.dest));
    REFUSED(s.decode.dest, sc_host_devptr(s.source));
    REFUSED(s.conv.save, 0);
    REFUSED(s.decode.qkv, sc_host_devptr(s.x));
    REFUSED(s.conv.y_stride, s.qkv + 2);
    REFUSED(s.conv.width, 5);   /* what the two calls refuse */
    REFUSED(s.decode.b, 0);
#undef REFUSED
    rig_all_bytes(s.o, bytes, 0xff);
    rig_untouched(&s.windows, 7);
    rig_untouched(&s.states, 7);
    RIG_OK(sc_k_decode_step(NULL, &s.conv, &s.decode, NULL));
    s.conv.row_count = s.decode.row_count = 0;
    RIG_OK(sc_k_decode_step(NULL, &s.conv, &s.decode, NULL));
    step_free(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_step");
    TCase *all = tcase_create("all");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, step__gives_the_bits_of_the_two_calls, 0, CASES);
    tcase_add_test(all, step__refuses_calls_that_do_not_belong_together);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

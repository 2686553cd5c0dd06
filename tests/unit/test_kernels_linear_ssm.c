/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of Mamba-2 as one call: the bits of the calls that they are made of, at random shapes, and
 * what they refuse. sweep_rig.h says how to run one case. */
#include <check.h>

#include "statecache/kernels_linear.h"
#include "statecache/kernels_ssm.h"
#include "support/check_main.h"
#include "sweep_rig.h"

struct layer {
    sc_linear_layer l;
    sc_linear_batch b;
    struct sw_batch rows;
    struct sw_tensor x, dt, o, o2, weight, bias;
    struct sw_pool window, state, window2, state2; /* the last two: of the single calls */
    float *weights;
    uint32_t inner, shared, channels;
    int32_t save[SW_ROWS];
    void *scratch;
};

/* The same slots with the same numbers, elsewhere and without gaps. */
static struct sw_pool twin(const struct sw_pool *x)
{
    struct sw_pool y = {.p = rig_pool(x->p.slots.dtype, x->p.part_elems, SW_SLOTS, 0, 0)};
    for (int32_t s = 0; s < SW_SLOTS; s++)
        memcpy(rig_slot(&y.p, s), rig_slot(&x->p, s), rig_part_bytes(&x->p));
    return y;
}

static void shape_make(struct layer *s)
{
    uint32_t groups = 1 + sw_below(2), heads = groups * (1 + sw_below(3));
    s->l.ssm = (sc_linear_ssm){.heads = heads, .groups = groups, .head_dim = sw_dim(64),
        .state_dim = sw_dim(128)};
    s->inner = heads * s->l.ssm.head_dim, s->shared = groups * s->l.ssm.state_dim;
    s->channels = s->inner + 2 * s->shared;
    s->weights = rig_normal(&sw_prng, 3 * heads, 0.6f);
    s->l.ssm.a_log = sc_host_devptr(s->weights);
    s->l.ssm.dt_bias = sw_chance(0.7) ? sc_host_devptr(s->weights + heads) : 0;
    s->l.ssm.d = sw_chance(0.7) ? sc_host_devptr(s->weights + 2 * heads) : 0;
    s->l.chunk = 16u << sw_below(5);
    s->weight = sw_dense(SC_DTYPE_F32, s->channels, 4, 0.5f);
    s->bias = sw_dense(SC_DTYPE_F32, 1, s->channels, 0.5f);
    s->l.conv_weight = sw_ptr(&s->weight), s->l.conv_bias = sw_ptr(&s->bias);
    s->l.conv_dtype = SC_DTYPE_F32, s->l.conv_act = SC_K_ACT_SILU, s->l.conv_width = 4;
    sw_note(" heads %u/%u P %u N %u C %u", heads, groups, s->l.ssm.head_dim, s->l.ssm.state_dim,
        s->l.chunk);
}

static void layer_open(struct layer *s, bool decode)
{
    sc_dtype dtype = sw_dtype();
    memset(s, 0, sizeof *s);
    shape_make(s);
    s->rows = sw_batch(decode ? 1 : 200, decode ? 0 : s->l.chunk, decode);
    size_t n = s->rows.tokens + 1, from = (size_t)s->rows.first, to = (size_t)s->rows.last;
    s->x = sw_tensor(dtype, n, s->channels), s->dt = sw_tensor(dtype, n, s->l.ssm.heads);
    s->o = sw_tensor(dtype, n, s->inner), s->o2 = sw_tensor(dtype, n, s->inner);
    sw_fill(&s->x, from, to, 1.0f), sw_fill(&s->dt, from, to, 1.0f);
    s->window = sw_pool(dtype, 3u * s->channels), sw_batch_fill(&s->rows, &s->window, 0.7f);
    s->state = sw_pool(sw_dtype(), (size_t)s->inner * s->l.ssm.state_dim);
    sw_batch_fill(&s->rows, &s->state, 0.6f);
    s->window2 = twin(&s->window), s->state2 = twin(&s->state);
    for (uint32_t r = 0; r < s->rows.rows; r++)
        s->save[r] = sw_chance(0.4) ? sw_slot_id(&s->rows) : -1;
    s->b = (sc_linear_batch){.x = sw_ptr(&s->x), .a = sw_ptr(&s->dt), .o = sw_ptr(&s->o),
        .x_stride = s->x.pitch, .a_stride = s->dt.pitch, .o_stride = s->o.pitch, .dtype = dtype,
        .token_count = s->rows.tokens, .row_count = s->rows.rows,
        .row_start = sc_host_devptr(s->rows.start), .position = sc_host_devptr(s->rows.position),
        .source = sc_host_devptr(s->rows.source), .dest = sc_host_devptr(s->rows.dest),
        .save = decode ? sc_host_devptr(s->save) : 0, .saves = sw_saves(&s->rows),
        .window = {s->window.p.slots}, .window_count = 1, .state = s->state.p.slots,
        .order = sw_chance(0.3) ? SC_K_ORDER_DIM_FIRST : SC_K_ORDER_WIDTH_FIRST};
}

static void layer_close(struct layer *s)
{
    struct sw_tensor *all[] = {&s->x, &s->dt, &s->o, &s->o2, &s->weight, &s->bias};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) sw_free(all[i]);
    sw_pool_free(&s->window), sw_pool_free(&s->state), sw_pool_free(&s->window2);
    sw_pool_free(&s->state2), free(s->weights), free(s->scratch);
}

static void layer_scratch(struct layer *s, sc_linear_form form)
{
    RIG_OK(sc_linear_scratch(NULL, &s->l, &s->b, form, &s->b.scratch_bytes));
    s->scratch = rig_alloc(s->b.scratch_bytes);
    s->b.scratch = sc_host_devptr(s->scratch);
}

/* The state space on what the conv left in y. */
static sc_k_ssm_params ssm_params(const struct layer *s, const struct sw_tensor *y)
{
    uint64_t elem = rig_elem(s->b.dtype);
    int64_t pitch = (int64_t)y->stride;
    return (sc_k_ssm_params){.x = sw_ptr(y), .dt = s->b.a, .b = sw_ptr(y) + s->inner * elem,
        .c = sw_ptr(y) + (s->inner + s->shared) * elem, .y = sw_ptr(&s->o2), .x_stride = pitch,
        .dt_stride = s->b.a_stride, .b_stride = pitch, .c_stride = pitch,
        .y_stride = s->o2.pitch, .dtype = s->b.dtype, .a_log = s->l.ssm.a_log,
        .dt_bias = s->l.ssm.dt_bias, .d = s->l.ssm.d, .heads = s->l.ssm.heads,
        .groups = s->l.ssm.groups, .head_dim = s->l.ssm.head_dim,
        .state_dim = s->l.ssm.state_dim, .token_count = s->b.token_count,
        .row_count = s->b.row_count, .row_start = s->b.row_start, .position = s->b.position,
        .source = s->b.source, .dest = s->b.dest, .saves = s->b.saves,
        .state = s->state2.p.slots};
}

static void calls_run(struct layer *s, bool decode)
{
    struct sw_tensor y = sw_tensor(s->b.dtype, s->rows.tokens + 1, s->channels);
    int32_t start[SW_ROWS + 1];
    for (int32_t r = 0; r <= SW_ROWS; r++) start[r] = r;
    const sc_k_conv_prefill_params conv = {.x = s->b.x, .y = sw_ptr(&y),
        .x_stride = s->b.x_stride, .y_stride = y.pitch, .dtype = s->b.dtype,
        .weight = s->l.conv_weight, .bias = s->l.conv_bias, .weight_dtype = SC_DTYPE_F32,
        .act = SC_K_ACT_SILU, .channels = s->channels, .width = 4,
        .token_count = s->b.token_count, .row_count = s->b.row_count,
        .row_start = decode ? sc_host_devptr(start) : s->b.row_start, .position = s->b.position,
        .source = s->b.source, .dest = s->b.dest, .saves = decode ? (sc_k_saves){0} : s->b.saves,
        .window = s->window2.p.slots, .order = s->b.order};
    RIG_OK(sc_k_conv_prefill(NULL, &conv, NULL));
    sc_k_ssm_chunk_params p = {.tokens = ssm_params(s, &y), .chunk = s->l.chunk};
    if (decode) {
        p.tokens.row_start = sc_host_devptr(start), p.tokens.saves = (sc_k_saves){0};
        RIG_OK(sc_k_ssm(NULL, &p.tokens, NULL));
    } else {
        RIG_OK(sc_k_ssm_chunk_scratch(NULL, &p, &p.scratch_bytes));
        void *scratch = rig_alloc(p.scratch_bytes);
        p.scratch = sc_host_devptr(scratch);
        RIG_OK(sc_k_ssm_chunk(NULL, &p, NULL));
        free(scratch);
    }
    sw_free(&y);
}

/* Slots of both pools that are not second destinations are equal; those are what dest is. */
static void compare_pools(const struct layer *s, const struct sw_pool *a, const struct sw_pool *b,
    bool decode)
{
    for (int32_t slot = 0; slot < SW_SLOTS; slot++) {
        bool second = false;
        for (uint32_t r = 0; r < s->rows.rows && decode; r++) {
            if (slot != s->save[r] || s->rows.source[r] < 0) continue;
            second = true;
            if (s->rows.dest[r] > 0)
                SW_ASSERT(memcmp(rig_slot(&a->p, slot), rig_slot(&a->p, s->rows.dest[r]),
                    rig_part_bytes(&a->p)) == 0);
        }
        if (!second)
            ck_assert_msg(memcmp(rig_slot(&a->p, slot), rig_slot(&b->p, slot),
                rig_part_bytes(&a->p)) == 0, "%s: slot %d differs", sw_shape, slot);
    }
}

START_TEST(mamba__a_layer_gives_the_bits_of_the_calls)
{
    struct layer s;
    bool decode = _i % 2 == 1;
    sw_open("mamba", _i);
    layer_open(&s, decode);
    layer_scratch(&s, decode ? SC_LINEAR_DECODE : SC_LINEAR_EXTEND);
    if (decode)
        RIG_OK(sc_linear_decode(NULL, &s.l, &s.b, NULL));
    else
        RIG_OK(sc_linear_extend(NULL, &s.l, &s.b, NULL));
    calls_run(&s, decode);
    for (size_t t = (size_t)s.rows.first; t < (size_t)s.rows.last; t++)
        SW_ASSERT(memcmp(sw_row(&s.o, t), sw_row(&s.o2, t),
            s.inner * rig_elem(s.b.dtype)) == 0);
    sw_gaps(&s.o, (size_t)s.rows.first, (size_t)s.rows.last);
    compare_pools(&s, &s.state, &s.state2, decode);
    compare_pools(&s, &s.window, &s.window2, decode);
    layer_close(&s);
}
END_TEST

#define INVALID(field, value) RIG_REFUSED(SC_ERR_INVALID, CALL, field, value)

START_TEST(linear_ssm__refuses_bad_arguments)
{
    struct layer s;
    uint64_t bytes = 77;
    bool decode = _i == 1;
    sw_open("mamba", 1000 + _i);
    layer_open(&s, decode);
    layer_scratch(&s, decode ? SC_LINEAR_DECODE : SC_LINEAR_EXTEND);
#define CALL                                                                                       \
    (decode ? sc_linear_decode(NULL, &s.l, &s.b, NULL) : sc_linear_extend(NULL, &s.l, &s.b, NULL))
    INVALID(s.l.ssm.groups, 0);
    INVALID(s.l.ssm.groups, s.l.ssm.heads + 1);
    INVALID(s.l.ssm.head_dim, 0);
    INVALID(s.l.ssm.state_dim, SC_K_DIM_MAX + 1);
    INVALID(s.l.ssm.a_log, 0);
    INVALID(s.l.conv_weight, 0);
    INVALID(s.b.window_count, 3);
    INVALID(s.b.x, 0);
    INVALID(s.b.a, 0);
    INVALID(s.b.o, 0);
    INVALID(s.b.source, 0);
    INVALID(s.b.dest, 0);
    INVALID(s.b.scratch_bytes, s.b.scratch_bytes - 64);
    INVALID(s.b.token_count, UINT32_MAX);
    RIG_REFUSED(SC_ERR_UNSUPPORTED, CALL, s.b.dtype, SC_DTYPE_F16);
    if (!decode) INVALID(s.l.chunk, 48);
    if (decode) INVALID(s.b.save, 2);
#undef CALL
    ck_assert_int_eq(sc_linear_verify(NULL, &s.l, &s.b, NULL), SC_ERR_UNSUPPORTED);
    ck_assert_int_eq(sc_linear_commit(NULL, &s.l, &s.b, NULL), SC_ERR_UNSUPPORTED);
    ck_assert_int_eq(sc_linear_scratch(NULL, &s.l, &s.b, SC_LINEAR_VERIFY, &bytes),
        SC_ERR_UNSUPPORTED);
    ck_assert_int_eq(sc_linear_scratch(NULL, &s.l, NULL, SC_LINEAR_DECODE, &bytes),
        SC_ERR_INVALID);
    ck_assert_uint_eq(bytes, 77);
    sw_untouched(&s.state), sw_untouched(&s.window); /* nothing has changed */
    sw_gaps(&s.o, 0, 0);
    layer_close(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_linear_ssm");
    TCase *all = tcase_create("mamba");
    tcase_set_timeout(all, 300);
    tcase_add_loop_test(all, mamba__a_layer_gives_the_bits_of_the_calls, 0, sw_cases(80));
    tcase_add_loop_test(all, linear_ssm__refuses_bad_arguments, 0, 2);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

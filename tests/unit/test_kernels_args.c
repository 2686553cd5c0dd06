/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input of every launcher: each line of a table spoils one field of a call that works; the call
 * must answer with the status, leave outputs and slots as they were, and work again without it. */
#include <check.h>
#include <math.h>

#include "kernels_rig.h"
#include "support/check_main.h"

enum { ROWS = 3, TOKENS = 12, H = 1, HV = 2, K = 16, V = 8, C = 2 * H * K + HV * V, W = 4 };
enum { SLOTS = 8, QKV = C };

/* Everything that the calls of this file point to. */
struct arena {
    float x[TOKENS * C], y[TOKENS * C], weight[C * W], bias[C];
    float q[TOKENS * H * K], k[TOKENS * H * K], v[TOKENS * HV * V], o[TOKENS * HV * V];
    float g[TOKENS * HV * K], beta[TOKENS * HV], a[TOKENS * HV * K], b[TOKENS * HV];
    float a_log[HV], dt_bias[HV * K];
    int32_t start[ROWS + 1], position[ROWS], source[ROWS], dest[ROWS], save[ROWS];
    int32_t save_row[2], save_pos[2], save_slot[2];
};

static struct arena m; /* each test runs in its own fork */
static struct rig_pool state, window;
static void *scratch;
static uint8_t *before;

static sc_k_conv_prefill_params prefill;
static sc_k_conv_update_params update;
static sc_k_gates_params gates;
static sc_k_l2norm_params l2norm;
static sc_k_gated_rmsnorm_params rmsnorm;
static sc_k_delta_params delta;
static sc_k_decode_packed_params decode;

#define P(array) sc_host_devptr(m.array)

static void indices(void)
{
    static const int32_t start[] = {0, 4, 4, 12}, position[] = {0, 7, 60}, source[] = {1, 2, 0};
    static const int32_t dest[] = {1, 3, 4};
    memcpy(m.start, start, sizeof start);
    memcpy(m.position, position, sizeof position);
    memcpy(m.source, source, sizeof source);
    memcpy(m.dest, dest, sizeof dest);
    m.save[0] = m.save[1] = -1;
    m.save[2] = 5;
    m.save_row[0] = 2, m.save_pos[0] = 64, m.save_slot[0] = 5;
    m.save_row[1] = m.save_pos[1] = m.save_slot[1] = -1;
}

static void setup(void)
{
    float *all = (float *)(void *)&m;
    struct sc_prng prng;
    sc_prng_seed(&prng, 1);
    for (size_t n = 0; n < offsetof(struct arena, start) / 4; n++)
        all[n] = 0.1f * (float)sc_prng_unit(&prng);
    for (size_t n = 0; n < TOKENS * HV * K; n++) m.g[n] = -m.g[n];
    indices();
    state = rig_pool(SC_DTYPE_F32, HV * V * K, SLOTS, 0, 0);
    window = rig_pool(SC_DTYPE_F32, (W - 1) * C, SLOTS, 0, 0);
    for (int32_t s = 1; s <= 2; s++) {
        memset(rig_slot(&state, s), 0, rig_part_bytes(&state));
        memset(rig_slot(&window, s), 0, rig_part_bytes(&window));
    }
    const sc_k_saves saves = {P(save_row), P(save_pos), P(save_slot), 2};
    const sc_k_gate_weights weights = {.gate = SC_K_GATE_GDN, .a_log = P(a_log),
        .dt_bias = P(dt_bias), .dt_bias_dtype = SC_DTYPE_F32, .lower_bound = -5.0f};
    const sc_k_delta_shape shape = {.kind = SC_K_KIND_GDN, .heads = H, .v_heads = HV, .k_dim = K,
        .v_dim = V, .qk_l2norm = true};
    prefill = (sc_k_conv_prefill_params){.x = P(x), .y = P(y), .dtype = SC_DTYPE_F32,
        .weight = P(weight), .bias = P(bias), .weight_dtype = SC_DTYPE_F32, .act = SC_K_ACT_SILU,
        .channels = C, .width = W, .token_count = TOKENS, .row_count = ROWS,
        .row_start = P(start), .position = P(position), .source = P(source), .dest = P(dest),
        .saves = saves, .window = window.slots};
    update = (sc_k_conv_update_params){.x = P(x), .y = P(y), .dtype = SC_DTYPE_F32,
        .weight = P(weight), .bias = P(bias), .weight_dtype = SC_DTYPE_F32, .act = SC_K_ACT_SILU,
        .channels = C, .width = W, .row_count = ROWS, .source = P(source), .dest = P(dest),
        .save = P(save), .window = window.slots};
    gates = (sc_k_gates_params){.a = P(a), .b = P(b), .dtype = SC_DTYPE_F32, .weights = weights,
        .token_count = TOKENS, .heads = HV, .dim = K, .g = P(g), .beta = P(beta)};
    l2norm = (sc_k_l2norm_params){.x = P(x), .y = P(y), .dtype = SC_DTYPE_F32,
        .token_count = TOKENS, .heads = 1, .dim = C};
    rmsnorm = (sc_k_gated_rmsnorm_params){.x = P(o), .z = P(v), .y = P(o), .dtype = SC_DTYPE_F32,
        .weight = P(weight), .weight_dtype = SC_DTYPE_F32, .act = SC_K_ACT_SILU,
        .token_count = TOKENS, .heads = HV, .dim = V, .eps = 1e-6f};
    delta = (sc_k_delta_params){.q = P(q), .k = P(k), .v = P(v), .o = P(o),
        .dtype = SC_DTYPE_F32, .g = P(g), .beta = P(beta), .shape = shape, .token_count = TOKENS,
        .row_count = ROWS, .row_start = P(start), .position = P(position), .source = P(source),
        .dest = P(dest), .saves = saves, .state = state.slots, .chunk = 16};
    RIG_OK(sc_k_delta_chunk_scratch(NULL, &delta, &delta.scratch_bytes));
    scratch = rig_alloc(delta.scratch_bytes);
    delta.scratch = sc_host_devptr(scratch);
    decode = (sc_k_decode_packed_params){.qkv = P(x), .o = P(o), .dtype = SC_DTYPE_F32,
        .a = P(a), .b = P(b), .weights = weights, .shape = shape, .row_count = ROWS,
        .source = P(source), .dest = P(dest), .save = P(save), .state = state.slots};
    before = rig_alloc(sizeof m + state.bytes + window.bytes);
}

static void teardown(void)
{
    free(state.memory), free(window.memory), free(scratch), free(before);
}

static void remember(void)
{
    memcpy(before, &m, sizeof m);
    memcpy(before + sizeof m, state.memory, state.bytes);
    memcpy(before + sizeof m + state.bytes, window.memory, window.bytes);
}

static void nothing_changed(void)
{
    ck_assert_mem_eq(before, &m, sizeof m);
    ck_assert_mem_eq(before + sizeof m, state.memory, state.bytes);
    ck_assert_mem_eq(before + sizeof m + state.bytes, window.memory, window.bytes);
}

/* With `field` spoilt the call is refused and writes nothing. */
#define REFUSES(want, call, field, value)                                                          \
    do {                                                                                           \
        __typeof__(field) good_ = (field);                                                         \
        (field) = (value);                                                                         \
        remember();                                                                                \
        sc_status got_ = (call);                                                                   \
        ck_assert_msg(got_ == (want), "%s = %s: %s, not %s", #field, #value,                       \
            sc_status_name(got_), #want);                                                          \
        ck_assert_uint_gt(strlen(sc_last_error()->text), 3);                                       \
        nothing_changed();                                                                         \
        (field) = good_;                                                                           \
    } while (0)
#define INVALID(call, field, value) REFUSES(SC_ERR_INVALID, call, field, value)
#define UNKNOWN(call, field, value) REFUSES(SC_ERR_UNSUPPORTED, call, field, value)

/* What all operations with rows and slots have in common. */
#define BAD_ROWS(call)                                                                             \
    do {                                                                                           \
        INVALID(call, m.source[0], SLOTS);     /* slot out of range */                             \
        INVALID(call, m.dest[2], SLOTS);                                                           \
        INVALID(call, m.dest[2], INT32_MAX);                                                       \
        INVALID(call, m.dest[2], 3);           /* destination of two rows */                       \
        INVALID(call, m.dest[2], 2);           /* another row's source */                          \
        INVALID(call, m.source[2], 4 - 1);     /* the same, seen from the source */                \
    } while (0)
#define BAD_SLOTS(call, slots)                                                                     \
    do {                                                                                           \
        INVALID(call, (slots).base, 0);                                                            \
        INVALID(call, (slots).base, (slots).base + 2);                                             \
        INVALID(call, (slots).slot_stride, 0);                                                     \
        INVALID(call, (slots).slot_stride, -(slots).slot_stride);                                  \
        INVALID(call, (slots).slot_stride, (slots).slot_stride - 4);                               \
        INVALID(call, (slots).slot_stride, (slots).slot_stride + 2);                               \
        INVALID(call, (slots).slot_stride, INT64_MAX / 4 * 4); /* slot times stride overflows */   \
        UNKNOWN(call, (slots).dtype, SC_DTYPE_F16);                                                \
        UNKNOWN(call, (slots).dtype, (sc_dtype)0);                                                 \
    } while (0)
#define BAD_BATCH(call, p)                                                                         \
    do {                                                                                           \
        INVALID(call, (p).row_start, 0);                                                           \
        INVALID(call, (p).row_start, (p).row_start + 2);                                           \
        INVALID(call, (p).source, 0);                                                              \
        INVALID(call, (p).dest, 0);                                                                \
        INVALID(call, (p).position, (p).position + 1);                                             \
        INVALID(call, (p).saves.row, 0);                                                           \
        INVALID(call, (p).saves.pos, 0);                                                           \
        INVALID(call, (p).saves.slot, 0);                                                          \
        INVALID(call, (p).token_count, TOKENS - 1); /* a row beyond the batch */                   \
        INVALID(call, (p).token_count, UINT32_MAX);                                                \
        INVALID(call, m.start[2], 3);          /* rows overlap */                                  \
        INVALID(call, m.start[0], -1);                                                             \
        INVALID(call, m.position[1], -1);                                                          \
        INVALID(call, m.position[2], INT32_MAX - 3); /* the end overflows */                       \
        INVALID(call, m.save_row[0], ROWS);                                                        \
        INVALID(call, m.save_row[0], 1);       /* an empty row has no position to save */          \
        INVALID(call, m.save_slot[0], 0);                                                          \
        INVALID(call, m.save_slot[0], -1);                                                         \
        INVALID(call, m.save_slot[0], SLOTS);                                                      \
        INVALID(call, m.save_slot[0], 4);      /* the row's own destination */                     \
        INVALID(call, m.save_slot[0], 1);      /* another row's source */                          \
        INVALID(call, m.save_pos[0], 60);      /* not after the row's start */                     \
        INVALID(call, m.save_pos[0], 80);      /* after its end */                                 \
        INVALID(call, m.save_pos[0], -16);                                                         \
        INVALID(call, m.source[2], -1);        /* a save of a row that is none */                  \
        BAD_ROWS(call);                                                                            \
    } while (0)

START_TEST(conv_prefill__refuses_bad_arguments)
{
#define CALL sc_k_conv_prefill(NULL, &prefill, NULL)
    ck_assert_int_eq(sc_k_conv_prefill(NULL, NULL, NULL), SC_ERR_INVALID);
    INVALID(CALL, prefill.x, 0);
    INVALID(CALL, prefill.y, 0);
    INVALID(CALL, prefill.y, prefill.x);         /* overlap */
    INVALID(CALL, prefill.y, prefill.x + 4 * C);
    INVALID(CALL, prefill.x, prefill.x + 1);
    INVALID(CALL, prefill.weight, 0);
    INVALID(CALL, prefill.bias, prefill.bias + 1);
    INVALID(CALL, prefill.channels, 0);
    INVALID(CALL, prefill.channels, UINT32_MAX);
    INVALID(CALL, prefill.width, 1);
    INVALID(CALL, prefill.width, 5);
    INVALID(CALL, prefill.act, SC_K_ACT_SIGMOID);
    INVALID(CALL, prefill.x_stride, C - 1);
    INVALID(CALL, prefill.y_stride, -C);
    INVALID(CALL, prefill.y_stride, INT64_MAX);
    UNKNOWN(CALL, prefill.dtype, SC_DTYPE_U8);
    UNKNOWN(CALL, prefill.weight_dtype, SC_DTYPE_I32);
    BAD_SLOTS(CALL, prefill.window);
    BAD_BATCH(CALL, prefill);
    RIG_OK(CALL);
#undef CALL
}
END_TEST

START_TEST(conv_update__refuses_bad_arguments)
{
#define CALL sc_k_conv_update(NULL, &update, NULL)
    ck_assert_int_eq(sc_k_conv_update(NULL, NULL, NULL), SC_ERR_INVALID);
    INVALID(CALL, update.x, 0);
    INVALID(CALL, update.y, 0);
    INVALID(CALL, update.y, update.x);
    INVALID(CALL, update.weight, 0);
    INVALID(CALL, update.channels, 0);
    INVALID(CALL, update.width, 1);
    INVALID(CALL, update.width, 5);
    INVALID(CALL, update.row_count, UINT32_MAX);
    INVALID(CALL, update.x_stride, 1);
    INVALID(CALL, update.source, 0);
    INVALID(CALL, update.dest, 0);
    INVALID(CALL, update.save, update.save + 1);
    INVALID(CALL, m.save[2], 4);
    INVALID(CALL, m.save[2], 1);
    INVALID(CALL, m.save[2], SLOTS);
    UNKNOWN(CALL, update.dtype, SC_DTYPE_F16);
    UNKNOWN(CALL, update.weight_dtype, (sc_dtype)0);
    BAD_SLOTS(CALL, update.window);
    BAD_ROWS(CALL);
    RIG_OK(CALL);
#undef CALL
}
END_TEST

START_TEST(gates__refuses_bad_arguments)
{
#define CALL sc_k_gates(NULL, &gates, NULL)
    ck_assert_int_eq(sc_k_gates(NULL, NULL, NULL), SC_ERR_INVALID);
    INVALID(CALL, gates.a, 0);
    INVALID(CALL, gates.b, 0);
    INVALID(CALL, gates.g, gates.g + 2);
    INVALID(CALL, gates.beta, gates.beta + 2);
    INVALID(CALL, gates.heads, 0);
    INVALID(CALL, gates.heads, UINT32_MAX);
    INVALID(CALL, gates.token_count, UINT32_MAX);
    INVALID(CALL, gates.a_stride, HV - 1);
    INVALID(CALL, gates.b_stride, -1);
    INVALID(CALL, gates.weights.gate, (sc_k_gate)0);
    INVALID(CALL, gates.weights.a_log, 0);
    INVALID(CALL, gates.weights.dt_bias, gates.weights.dt_bias + 1);
    UNKNOWN(CALL, gates.weights.dt_bias_dtype, SC_DTYPE_U8);
    UNKNOWN(CALL, gates.dtype, SC_DTYPE_F16);
    gates.weights.gate = SC_K_GATE_KDA_BOUNDED;
    INVALID(CALL, gates.dim, 0);
    INVALID(CALL, gates.dim, SC_K_DIM_MAX + 1);
    INVALID(CALL, gates.weights.lower_bound, 0.0f);
    INVALID(CALL, gates.weights.lower_bound, -5.1f);
    INVALID(CALL, gates.weights.lower_bound, NAN);
    RIG_OK(CALL);
    gates.g = gates.beta = 0;
    ck_assert_int_eq(CALL, SC_ERR_INVALID);
#undef CALL
}
END_TEST

START_TEST(norms__refuse_bad_arguments)
{
#define CALL sc_k_l2norm(NULL, &l2norm, NULL)
    ck_assert_int_eq(sc_k_l2norm(NULL, NULL, NULL), SC_ERR_INVALID);
    INVALID(CALL, l2norm.x, 0);
    INVALID(CALL, l2norm.y, l2norm.y + 3);
    INVALID(CALL, l2norm.heads, 0);
    INVALID(CALL, l2norm.dim, 0);
    INVALID(CALL, l2norm.dim, UINT32_MAX);
    INVALID(CALL, l2norm.token_count, UINT32_MAX);
    INVALID(CALL, l2norm.x_stride, C - 1);
    INVALID(CALL, l2norm.eps, -1.0f);
    INVALID(CALL, l2norm.eps, NAN);
    UNKNOWN(CALL, l2norm.dtype, (sc_dtype)0);
    UNKNOWN(CALL, l2norm.out_dtype, SC_DTYPE_F16);
    RIG_OK(CALL);
#undef CALL
#define CALL sc_k_gated_rmsnorm(NULL, &rmsnorm, NULL)
    ck_assert_int_eq(sc_k_gated_rmsnorm(NULL, NULL, NULL), SC_ERR_INVALID);
    INVALID(CALL, rmsnorm.x, 0);
    INVALID(CALL, rmsnorm.z, 0);
    INVALID(CALL, rmsnorm.y, 0);
    INVALID(CALL, rmsnorm.weight, 0);
    INVALID(CALL, rmsnorm.heads, 0);
    INVALID(CALL, rmsnorm.dim, 0);
    INVALID(CALL, rmsnorm.z_stride, HV * V - 1);
    INVALID(CALL, rmsnorm.act, SC_K_ACT_IDENTITY);
    INVALID(CALL, rmsnorm.eps, 0.0f);
    INVALID(CALL, rmsnorm.eps, INFINITY);
    UNKNOWN(CALL, rmsnorm.dtype, SC_DTYPE_F16);
    UNKNOWN(CALL, rmsnorm.weight_dtype, (sc_dtype)0);
    RIG_OK(CALL);
#undef CALL
}
END_TEST

#define BAD_SHAPE(call, s)                                                                         \
    do {                                                                                           \
        INVALID(call, (s).kind, (sc_k_kind)0);                                                     \
        INVALID(call, (s).heads, 0);                                                               \
        INVALID(call, (s).heads, 3); /* does not divide the v heads */                             \
        INVALID(call, (s).v_heads, 0);                                                             \
        INVALID(call, (s).v_heads, UINT32_MAX);                                                    \
        INVALID(call, (s).k_dim, 0);                                                               \
        INVALID(call, (s).k_dim, SC_K_DIM_MAX + 1);                                                \
        INVALID(call, (s).v_dim, 0);                                                               \
        INVALID(call, (s).v_dim, SC_K_DIM_MAX + 1);                                                \
        INVALID(call, (s).scale, NAN);                                                             \
    } while (0)
#define BAD_DELTA(call)                                                                            \
    do {                                                                                           \
        BAD_SHAPE(call, delta.shape);                                                              \
        INVALID(call, delta.q, 0);                                                                 \
        INVALID(call, delta.k, delta.k + 1);                                                       \
        INVALID(call, delta.v, 0);                                                                 \
        INVALID(call, delta.o, 0);                                                                 \
        INVALID(call, delta.o, delta.v);                                                           \
        INVALID(call, delta.g, 0);                                                                 \
        INVALID(call, delta.beta, 0);                                                              \
        INVALID(call, delta.q_stride, H * K - 1);                                                  \
        INVALID(call, delta.k_stride, -1);                                                         \
        INVALID(call, delta.v_stride, 1);                                                          \
        INVALID(call, delta.o_stride, INT64_MAX);                                                  \
        UNKNOWN(call, delta.dtype, SC_DTYPE_F16);                                                  \
        BAD_SLOTS(call, delta.state);                                                              \
        BAD_BATCH(call, delta);                                                                    \
    } while (0)

START_TEST(recurrent__refuses_bad_arguments)
{
    ck_assert_int_eq(sc_k_delta_recurrent(NULL, NULL, NULL), SC_ERR_INVALID);
    BAD_DELTA(sc_k_delta_recurrent(NULL, &delta, NULL));
    RIG_OK(sc_k_delta_recurrent(NULL, &delta, NULL));
}
END_TEST

START_TEST(chunk__refuses_bad_arguments)
{
#define CALL sc_k_delta_chunk(NULL, &delta, NULL)
    ck_assert_int_eq(sc_k_delta_chunk(NULL, NULL, NULL), SC_ERR_INVALID);
    BAD_DELTA(CALL);
    INVALID(CALL, delta.chunk, 0);
    INVALID(CALL, delta.chunk, 48);
    INVALID(CALL, delta.chunk, 128);
    INVALID(CALL, m.save_pos[0], 65); /* off the grid */
    INVALID(CALL, delta.scratch, 0);
    INVALID(CALL, delta.scratch, delta.scratch + 4);
    INVALID(CALL, delta.scratch_bytes, delta.scratch_bytes - 1);
    RIG_OK(CALL);
#undef CALL
}
END_TEST

START_TEST(chunk_scratch__refuses_bad_arguments)
{
#define CALL sc_k_delta_chunk_scratch(NULL, &delta, &bytes)
    uint64_t bytes = 77;
    ck_assert_int_eq(sc_k_delta_chunk_scratch(NULL, NULL, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_delta_chunk_scratch(NULL, &delta, NULL), SC_ERR_INVALID);
    INVALID(CALL, delta.chunk, 0);
    INVALID(CALL, delta.shape.k_dim, SC_K_DIM_MAX + 1);
    INVALID(CALL, delta.shape.v_dim, 0);
    UNKNOWN(CALL, delta.dtype, SC_DTYPE_I32);
    ck_assert_uint_eq(bytes, 77);
    RIG_OK(CALL);
    ck_assert_uint_gt(bytes, 77);
    uint64_t small = bytes;
    delta.row_count *= 7; /* the host's need grows with neither rows nor tokens */
    delta.token_count *= 7;
    RIG_OK(CALL);
    ck_assert_uint_eq(bytes, small);
#undef CALL
}
END_TEST

START_TEST(decode__refuses_bad_arguments)
{
#define CALL sc_k_decode_packed(NULL, &decode, NULL)
    ck_assert_int_eq(sc_k_decode_packed(NULL, NULL, NULL), SC_ERR_INVALID);
    BAD_SHAPE(CALL, decode.shape);
    INVALID(CALL, decode.qkv, 0);
    INVALID(CALL, decode.o, 0);
    INVALID(CALL, decode.a, 0);
    INVALID(CALL, decode.b, 0);
    INVALID(CALL, decode.g, decode.a + 1);
    INVALID(CALL, decode.beta, decode.b + 1);
    INVALID(CALL, decode.weights.a_log, 0);
    INVALID(CALL, decode.weights.gate, SC_K_GATE_KDA_SOFTPLUS); /* not of this kind */
    INVALID(CALL, decode.shape.kind, SC_K_KIND_KDA);
    INVALID(CALL, decode.qkv_stride, QKV - 1);
    INVALID(CALL, decode.o_stride, 1);
    INVALID(CALL, decode.a_stride, -1);
    INVALID(CALL, decode.b_stride, 1);
    INVALID(CALL, decode.row_count, UINT32_MAX);
    INVALID(CALL, decode.source, 0);
    INVALID(CALL, decode.dest, 0);
    INVALID(CALL, decode.save, decode.save + 2);
    INVALID(CALL, m.save[2], 4);
    INVALID(CALL, m.save[0], 2);
    UNKNOWN(CALL, decode.dtype, SC_DTYPE_U8);
    BAD_SLOTS(CALL, decode.state);
    BAD_ROWS(CALL);
    RIG_OK(CALL);
#undef CALL
}
END_TEST

START_TEST(choice__refuses_bad_arguments)
{
    const char *row = NULL;
    ck_assert_int_eq(sc_k_choice(NULL, SC_K_OP_COUNT, SC_DTYPE_F32, (sc_dtype)0, &row),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_choice(NULL, (sc_k_op)-1, SC_DTYPE_F32, (sc_dtype)0, &row),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_choice(NULL, SC_K_OP_GATES, SC_DTYPE_F32, (sc_dtype)0, NULL),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_k_choice(NULL, SC_K_OP_GATES, SC_DTYPE_F16, (sc_dtype)0, &row),
        SC_ERR_UNSUPPORTED);
    ck_assert_int_eq(sc_k_choice(NULL, SC_K_OP_DELTA_CHUNK, SC_DTYPE_F32, SC_DTYPE_F16, &row),
        SC_ERR_UNSUPPORTED);
    ck_assert_ptr_null(row);
}
END_TEST

/* Nothing to do is not an error, whatever the pointers. */
START_TEST(launchers__no_rows_no_tokens_is_fine)
{
    remember();
    prefill.row_count = update.row_count = delta.row_count = decode.row_count = 0;
    gates.token_count = l2norm.token_count = rmsnorm.token_count = 0;
    prefill.source = update.source = delta.source = decode.source = 0;
    RIG_OK(sc_k_conv_prefill(NULL, &prefill, NULL));
    RIG_OK(sc_k_conv_update(NULL, &update, NULL));
    RIG_OK(sc_k_delta_recurrent(NULL, &delta, NULL));
    RIG_OK(sc_k_delta_chunk(NULL, &delta, NULL));
    RIG_OK(sc_k_decode_packed(NULL, &decode, NULL));
    RIG_OK(sc_k_gates(NULL, &gates, NULL));
    RIG_OK(sc_k_l2norm(NULL, &l2norm, NULL));
    RIG_OK(sc_k_gated_rmsnorm(NULL, &rmsnorm, NULL));
    nothing_changed();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_args");
    TCase *bad = tcase_create("bad");
    tcase_set_timeout(bad, 60);
    tcase_add_checked_fixture(bad, setup, teardown);
    tcase_add_test(bad, conv_prefill__refuses_bad_arguments);
    tcase_add_test(bad, conv_update__refuses_bad_arguments);
    tcase_add_test(bad, gates__refuses_bad_arguments);
    tcase_add_test(bad, norms__refuse_bad_arguments);
    tcase_add_test(bad, recurrent__refuses_bad_arguments);
    tcase_add_test(bad, chunk__refuses_bad_arguments);
    tcase_add_test(bad, chunk_scratch__refuses_bad_arguments);
    tcase_add_test(bad, decode__refuses_bad_arguments);
    tcase_add_test(bad, choice__refuses_bad_arguments);
    tcase_add_test(bad, launchers__no_rows_no_tokens_is_fine);
    suite_add_tcase(suite, bad);
    return check_main(suite);
}

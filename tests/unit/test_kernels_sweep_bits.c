/* SPDX-License-Identifier: Apache-2.0 */
/* Bits of one sequence (contract 9), at random shapes: however its prefill is cut at grid points,
 * packed with neighbours and padding, batched in decode, laid out in memory or run beside others on
 * threads, outputs, states, windows and saves are those of the sequence alone in one piece. Each
 * row of the host's table is compared with itself; those of vectors also with each other. */
#include <check.h>
#include <pthread.h>

#include "statecache/kernels_choice.h"
#include "statecache/kernels_linear.h"
#include "support/check_main.h"
#include "sweep_rig.h"

enum { BEDS = 4, NEIGHBOURS = 3, OWN = 1, SAVED = 2, FREE = 3, SLOTS = 12 };

static const char *const row_names[] = {"reference", "avx2", "avx512", "avx512_bf16"};
enum { ROW_NAMES = sizeof row_names / sizeof row_names[0] };

/* One layer and one sequence of it: `prompt` tokens in chunk form, then decode. */
struct model {
    sc_linear_layer layer;
    sc_dtype dtype, state;
    uint32_t channels, heads, inputs, outputs, chunk; /* inputs of a gate, outputs of a token */
    size_t part;
    int32_t position;
    uint32_t prompt, tokens, save; /* tokens before the save; 0: none */
    float *x, *a, *b, *weight, *a_log, *dt_bias, *window0, *state0;
};

/* What a run left. */
struct outcome {
    uint8_t *o, *state, *window, *saved;
};

/* One run: how the sequence is cut and surrounded follows from `seed`; 0: alone, uncut. */
struct bed {
    const struct model *m;
    sc_backend *backend;
    uint64_t seed;
    struct sc_prng prng;
    struct rig_pool window, pool;
    struct outcome out;
    sc_k_order order;
};

static uint32_t below(struct bed *bed, uint32_t n)
{
    return (uint32_t)sc_prng_below(&bed->prng, n);
}

static struct model model_make(void)
{
    struct model m = {.dtype = sw_dtype(), .state = sw_dtype()};
    uint32_t share = 1 + sw_below(2), heads = 1 + sw_below(2), k = sw_dim(70), v = sw_dim(70);
    bool kda = sw_chance(0.5);
    m.chunk = 16u << sw_below(3), m.heads = heads * share;
    m.channels = 2 * heads * k + m.heads * v, m.inputs = m.heads * (kda ? k : 1);
    m.outputs = m.heads * v, m.part = (size_t)m.heads * k * v;
    m.prompt = 1 + sw_below(200), m.tokens = m.prompt + sw_below(6);
    m.position = (int32_t)sw_below(300);
    m.x = rig_normal(&sw_prng, (size_t)m.tokens * m.channels, 1.0f);
    m.a = rig_normal(&sw_prng, (size_t)m.tokens * m.inputs, 1.0f);
    m.b = rig_normal(&sw_prng, (size_t)m.tokens * m.heads, 1.0f);
    m.weight = rig_normal(&sw_prng, (size_t)m.channels * 4, 0.5f);
    m.a_log = rig_normal(&sw_prng, m.heads, 0.5f);
    m.dt_bias = rig_normal(&sw_prng, m.inputs, 1.0f);
    m.window0 = rig_normal(&sw_prng, 3u * m.channels, 0.7f);
    m.state0 = rig_normal(&sw_prng, m.part, 0.6f);
    m.layer = (sc_linear_layer){.shape = {.kind = kda ? SC_K_KIND_KDA : SC_K_KIND_GDN,
        .heads = heads, .v_heads = m.heads, .k_dim = k, .v_dim = v, .qk_l2norm = true},
        .conv_weight = sc_host_devptr(m.weight), .conv_dtype = SC_DTYPE_F32,
        .conv_act = SC_K_ACT_SILU, .conv_width = 4, .gates = {.gate = kda
            ? SC_K_GATE_KDA_BOUNDED : SC_K_GATE_GDN, .a_log = sc_host_devptr(m.a_log),
            .dt_bias = sc_host_devptr(m.dt_bias), .dt_bias_dtype = SC_DTYPE_F32,
            .lower_bound = -5.0f}, .chunk = m.chunk};
    int32_t first = (m.position / (int32_t)m.chunk + 1) * (int32_t)m.chunk - m.position;
    if ((uint32_t)first < m.prompt) m.save = (uint32_t)first;
    sw_note(" %s %d states %d heads %u/%u K %u V %u C %u position %d prompt %u of %u", kda ? "kda"
        : "gdn", (int)m.dtype, (int)m.state, heads, m.heads, k, v, m.chunk, m.position, m.prompt,
        m.tokens);
    return m;
}

static void model_free(struct model *m)
{
    free(m->x), free(m->a), free(m->b), free(m->weight), free(m->a_log), free(m->dt_bias);
    free(m->window0), free(m->state0);
}

/* Windows of either order hold the same inputs. */
static void window_put(struct bed *bed, int32_t slot, const float *inputs)
{
    const struct model *m = bed->m;
    float *turned = rig_alloc(3u * m->channels * sizeof *turned);
    for (uint32_t w = 0; w < 3; w++)
        for (uint32_t c = 0; c < m->channels; c++)
            turned[bed->order == SC_K_ORDER_DIM_FIRST ? c * 3 + w : w * m->channels + c] =
                inputs[w * m->channels + c];
    rig_put(rig_slot(&bed->window, slot), m->dtype, turned, 3u * m->channels);
    free(turned);
}

static uint8_t *window_take(const struct bed *bed, int32_t slot)
{
    const struct model *m = bed->m;
    size_t elem = rig_elem(m->dtype);
    uint8_t *out = rig_alloc(3u * m->channels * elem);
    const uint8_t *from = rig_slot(&bed->window, slot);
    for (uint32_t w = 0; w < 3; w++)
        for (uint32_t c = 0; c < m->channels; c++)
            memcpy(out + (w * m->channels + c) * elem, from + (bed->order == SC_K_ORDER_DIM_FIRST
                ? c * 3 + w : w * m->channels + c) * elem, elem);
    return out;
}

static uint8_t *state_take(const struct bed *bed, int32_t slot)
{
    uint8_t *out = rig_alloc(rig_part_bytes(&bed->pool));
    memcpy(out, rig_slot(&bed->pool, slot), rig_part_bytes(&bed->pool));
    return out;
}

static void bed_open(struct bed *bed)
{
    const struct model *m = bed->m;
    sc_prng_seed(&bed->prng, bed->seed + 1);
    size_t gap = bed->seed != 0 ? 16u * (1 + below(bed, 8)) : 0;
    if (bed->seed != 0 && below(bed, 2) == 1) bed->order = SC_K_ORDER_DIM_FIRST;
    bed->pool = rig_pool(m->state, m->part, SLOTS, m->part * rig_elem(m->state) + gap, gap);
    bed->window = rig_pool(m->dtype, 3u * m->channels, SLOTS,
        3u * m->channels * rig_elem(m->dtype) + gap, gap);
    for (int32_t slot = OWN; slot < SLOTS; slot++) { /* neighbours begin with something, too */
        if (slot == SAVED) continue;
        window_put(bed, slot, m->window0);
        rig_put(rig_slot(&bed->pool, slot), m->state, m->state0, m->part);
    }
    bed->out.o = rig_alloc((size_t)m->tokens * m->outputs * rig_elem(m->dtype));
}

/* One call: tokens [from, to) of the sequence among `before` and `after` rows of others, which run
 * over the same tokens from elsewhere in it. */
struct call {
    int32_t start[2 * NEIGHBOURS + 2], position[2 * NEIGHBOURS + 1];
    int32_t source[2 * NEIGHBOURS + 1], dest[2 * NEIGHBOURS + 1];
    uint32_t from[2 * NEIGHBOURS + 1];
    uint32_t rows, own, tokens;
    int32_t save_row, save_pos, save_slot;
};

static void call_row(struct bed *bed, struct call *c, uint32_t from, uint32_t count, int32_t slot)
{
    bool none = slot != OWN && below(bed, 4) == 0;
    c->from[c->rows] = from;
    c->position[c->rows] = bed->m->position + (int32_t)from;
    c->source[c->rows] = none ? -1 : slot, c->dest[c->rows] = none ? -1 : slot;
    c->start[c->rows + 1] = c->start[c->rows] + (int32_t)count;
    c->rows++, c->tokens += count;
}

static struct call call_make(struct bed *bed, uint32_t from, uint32_t to, bool decode)
{
    struct call c = {.save_row = -1, .save_pos = -1, .save_slot = -1};
    uint32_t before = bed->seed != 0 ? below(bed, NEIGHBOURS + 1) : 0;
    uint32_t after = bed->seed != 0 ? below(bed, NEIGHBOURS + 1) : 0;
    int32_t slot = FREE;
    for (uint32_t i = 0; i < before + 1 + after; i++) {
        uint32_t at = below(bed, bed->m->tokens), most = bed->m->tokens - at;
        if (i == before) {
            c.own = c.rows;
            call_row(bed, &c, from, to - from, OWN);
        } else {
            call_row(bed, &c, at, decode ? 1 : below(bed, most < 70 ? most + 1 : 70), slot++);
        }
    }
    if (!decode && bed->m->save > from && bed->m->save <= to)
        c.save_row = (int32_t)c.own, c.save_pos = bed->m->position + (int32_t)bed->m->save,
        c.save_slot = SAVED;
    return c;
}

/* The columns of all rows' tokens, one after the other. */
static void *packed(const struct bed *bed, const struct call *c, const float *from, size_t width)
{
    float *wide = rig_alloc((c->tokens + 1) * width * sizeof *wide);
    for (uint32_t r = 0; r < c->rows; r++)
        memcpy(wide + (size_t)c->start[r] * width, from + c->from[r] * width,
            (size_t)(c->start[r + 1] - c->start[r]) * width * sizeof *wide);
    void *out = rig_tensor(bed->m->dtype, wide, c->tokens * width + 1);
    free(wide);
    return out;
}

static void call_run(struct bed *bed, struct call *c, bool decode)
{
    const struct model *m = bed->m;
    sc_linear_form form = decode ? SC_LINEAR_DECODE : SC_LINEAR_EXTEND;
    size_t row = m->outputs * rig_elem(m->dtype);
    void *t[] = {packed(bed, c, m->x, m->channels), packed(bed, c, m->a, m->inputs),
        packed(bed, c, m->b, m->heads), rig_alloc((c->tokens + 1) * row), NULL};
    sc_linear_batch b = {.x = sc_host_devptr(t[0]), .a = sc_host_devptr(t[1]),
        .b = sc_host_devptr(t[2]), .o = sc_host_devptr(t[3]), .dtype = m->dtype,
        .token_count = c->tokens, .row_count = c->rows, .row_start = sc_host_devptr(c->start),
        .position = sc_host_devptr(c->position), .source = sc_host_devptr(c->source),
        .dest = sc_host_devptr(c->dest), .saves = {sc_host_devptr(&c->save_row),
            sc_host_devptr(&c->save_pos), sc_host_devptr(&c->save_slot), decode ? 0 : 1},
        .window = {bed->window.slots}, .window_count = 1, .state = bed->pool.slots,
        .order = bed->order};
    RIG_OK(sc_linear_scratch(bed->backend, &m->layer, &b, form, &b.scratch_bytes));
    t[4] = rig_alloc(b.scratch_bytes);
    b.scratch = sc_host_devptr(t[4]);
    if (decode)
        RIG_OK(sc_linear_decode(bed->backend, &m->layer, &b, NULL));
    else
        RIG_OK(sc_linear_extend(bed->backend, &m->layer, &b, NULL));
    memcpy(bed->out.o + c->from[c->own] * row, (uint8_t *)t[3] + (size_t)c->start[c->own] * row,
        (size_t)(c->start[c->own + 1] - c->start[c->own]) * row);
    for (size_t i = 0; i < 5; i++) free(t[i]);
}

static void *bed_run(void *argument)
{
    struct bed *bed = argument;
    const struct model *m = bed->m;
    bed_open(bed);
    for (uint32_t at = 0, to; at < m->prompt; at = to) {
        uint32_t position = (uint32_t)m->position + at;
        to = m->prompt;
        if (bed->seed != 0) { /* at a grid point, some chunks on */
            uint32_t next = (position / m->chunk + 1 + below(bed, 4)) * m->chunk - position;
            to = at + next < m->prompt ? at + next : m->prompt;
        }
        struct call c = call_make(bed, at, to, false);
        call_run(bed, &c, false);
    }
    for (uint32_t at = m->prompt; at < m->tokens; at++) {
        struct call c = call_make(bed, at, at + 1, true);
        call_run(bed, &c, true);
    }
    bed->out.state = state_take(bed, OWN), bed->out.window = window_take(bed, OWN);
    if (m->save != 0) bed->out.saved = state_take(bed, SAVED);
    return NULL;
}

static void bed_close(struct bed *bed)
{
    free(bed->out.o), free(bed->out.state), free(bed->out.window), free(bed->out.saved);
    free(bed->pool.memory), free(bed->window.memory);
}

static void same(const struct bed *a, const struct bed *b, const char *what)
{
    const struct model *m = a->m;
    size_t elem = rig_elem(m->dtype), part = rig_part_bytes(&a->pool);
    ck_assert_msg(memcmp(a->out.o, b->out.o, (size_t)m->tokens * m->outputs * elem) == 0,
        "%s: %s: outputs differ", sw_shape, what);
    ck_assert_msg(memcmp(a->out.state, b->out.state, part) == 0, "%s: %s: states differ", sw_shape,
        what);
    ck_assert_msg(memcmp(a->out.window, b->out.window, 3u * m->channels * elem) == 0,
        "%s: %s: windows differ", sw_shape, what);
    ck_assert_msg(m->save == 0 || memcmp(a->out.saved, b->out.saved, part) == 0,
        "%s: %s: saves differ", sw_shape, what);
}

/* The host with every operation's row `name` or a later one; NULL: this processor lacks it. */
static sc_kernels *rows_of(const struct model *m, const char *name)
{
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    sc_kernels *kernels = NULL;
    o.decode_backend = o.extend_backend = name;
    o.dtype = m->dtype, o.state_dtype = m->state;
    sc_status status = sc_kernels_create(&o, &kernels);
    ck_assert_msg(status == SC_OK || status == SC_ERR_UNSUPPORTED || status == SC_ERR_NOT_FOUND,
        "%s: %s", name, sc_last_error()->text);
    return kernels;
}

START_TEST(sweep__bits)
{
    struct bed first[ROW_NAMES] = {{0}};
    bool ran[ROW_NAMES] = {false};
    sw_open("bits", _i);
    struct model m = model_make();
    for (size_t r = 0; r < ROW_NAMES; r++) {
        sc_kernels *kernels = rows_of(&m, row_names[r]);
        if (kernels == NULL) continue;
        pthread_t threads[BEDS];
        struct bed beds[BEDS];
        first[r] = (struct bed){.m = &m, .backend = sc_kernels_backend(kernels)};
        ran[r] = true;
        (void)bed_run(&first[r]);
        for (int i = 0; i < BEDS; i++) { /* side by side */
            beds[i] = (struct bed){.m = &m, .backend = first[r].backend,
                .seed = sw_base() * 977 + (uint64_t)(_i * BEDS + i) + 1};
            ck_assert_int_eq(pthread_create(&threads[i], NULL, bed_run, &beds[i]), 0);
        }
        for (int i = 0; i < BEDS; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < BEDS; i++) same(&first[r], &beds[i], row_names[r]), bed_close(&beds[i]);
        /* rows of vectors agree in every form; plain C does where nothing is in chunks */
        for (size_t q = 1; q < r; q++)
            if (ran[q]) same(&first[r], &first[q], row_names[q]);
        sc_kernels_destroy(kernels);
    }
    for (size_t r = 0; r < ROW_NAMES; r++)
        if (ran[r]) bed_close(&first[r]);
    model_free(&m);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_sweep_bits");
    TCase *tcase = tcase_create("bits");
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, sweep__bits, 0, sw_cases(80));
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}

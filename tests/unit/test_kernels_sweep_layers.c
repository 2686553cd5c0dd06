/* SPDX-License-Identifier: Apache-2.0 */
/* Random shapes against float64: Mamba-2 token by token, in chunks and by rings, whole layers and
 * the KDA stage. sweep_rig.h says how to run one case. */
#include <check.h>

#include "statecache/kernels_linear.h"
#include "statecache/kernels_replay.h"
#include "statecache/kernels_ssm.h"
#include "statecache/kernels_stage.h"
#include "support/check_main.h"
#include "sweep_rig.h"

static double limit_of(sc_dtype dtype)
{
    return dtype == SC_DTYPE_BF16 ? 3e-3 : 2e-5;
}

/* ---- Mamba-2 ---- */

struct ssm_call {
    sc_k_ssm_params p;
    struct f64_ssm m;
    struct sw_batch b;
    struct sw_tensor x, dt, bb, cc, z, y;
    struct sw_pool pool;
    float *weights;
    double *wide, *s;
};

static void ssm_shape(struct ssm_call *c)
{
    sc_k_ssm_params *p = &c->p;
    do {
        p->groups = 1 + sw_below(3), p->heads = p->groups * (1 + sw_below(4));
        p->head_dim = sw_dim(128), p->state_dim = sw_dim(256);
    } while ((uint64_t)p->heads * p->head_dim * p->state_dim * (c->b.tokens + 40) > 8000000u);
    c->weights = rig_normal(&sw_prng, 3 * p->heads, 0.7f);
    c->wide = rig_alloc(3 * p->heads * sizeof *c->wide);
    for (uint32_t i = 0; i < 3 * p->heads; i++) c->wide[i] = (double)c->weights[i];
    bool bias = sw_chance(0.7), skip = sw_chance(0.7);
    p->a_log = sc_host_devptr(c->weights);
    p->dt_bias = bias ? sc_host_devptr(c->weights + p->heads) : 0;
    p->d = skip ? sc_host_devptr(c->weights + 2 * p->heads) : 0;
    c->m = (struct f64_ssm){.heads = p->heads, .groups = p->groups, .head_dim = p->head_dim,
        .state_dim = p->state_dim, .a_log = c->wide, .dt_bias = bias ? c->wide + p->heads : NULL,
        .d = skip ? c->wide + 2 * p->heads : NULL};
    sw_note(" %u/%u P %u N %u", p->heads, p->groups, p->head_dim, p->state_dim);
}

static void ssm_tensors(struct ssm_call *c, sc_dtype dtype)
{
    sc_k_ssm_params *p = &c->p;
    size_t n = c->b.tokens + 1, inner = (size_t)p->heads * p->head_dim;
    size_t shared = (size_t)p->groups * p->state_dim;
    bool gated = sw_chance(0.6);
    struct sw_tensor *all[] = {&c->x, &c->dt, &c->bb, &c->cc, &c->z};
    const size_t cols[] = {inner, p->heads, shared, shared, inner};
    for (int i = 0; i < 5; i++) {
        *all[i] = sw_tensor(dtype, n, cols[i]);
        sw_fill(all[i], (size_t)c->b.first, (size_t)c->b.last, 1.0f);
    }
    c->y = sw_tensor(dtype, n, inner);
    p->x = sw_ptr(&c->x), p->dt = sw_ptr(&c->dt), p->b = sw_ptr(&c->bb), p->c = sw_ptr(&c->cc);
    p->z = gated ? sw_ptr(&c->z) : 0, p->y = sw_ptr(&c->y), p->dtype = dtype;
    p->x_stride = c->x.pitch, p->dt_stride = c->dt.pitch, p->b_stride = c->bb.pitch;
    p->c_stride = c->cc.pitch, p->z_stride = c->z.pitch, p->y_stride = c->y.pitch;
}

static void ssm_open(struct ssm_call *c, uint32_t most, uint32_t grid)
{
    sc_dtype dtype = sw_dtype(), state = sw_dtype();
    memset(c, 0, sizeof *c);
    sw_note(" %d states %d", (int)dtype, (int)state);
    c->b = sw_batch(most, grid, false);
    ssm_shape(c);
    ssm_tensors(c, dtype);
    size_t part = (size_t)c->p.heads * c->p.head_dim * c->p.state_dim;
    c->pool = sw_pool(state, part);
    sw_batch_fill(&c->b, &c->pool, 0.7f);
    c->s = rig_alloc(part * sizeof *c->s);
    c->p.token_count = c->b.tokens, c->p.row_count = c->b.rows;
    c->p.row_start = sc_host_devptr(c->b.start), c->p.position = sc_host_devptr(c->b.position);
    c->p.source = sc_host_devptr(c->b.source), c->p.dest = sc_host_devptr(c->b.dest);
    c->p.saves = sw_saves(&c->b), c->p.state = c->pool.p.slots;
}

static void ssm_close(struct ssm_call *c)
{
    struct sw_tensor *all[] = {&c->x, &c->dt, &c->bb, &c->cc, &c->z, &c->y};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) sw_free(all[i]);
    sw_pool_free(&c->pool);
    free(c->weights), free(c->wide), free(c->s);
}

static void ssm_token(struct ssm_call *c, size_t t, double *y, bool rounded)
{
    f64_ssm_step(&c->m, c->s, sw_wide(&c->x, t), sw_wide(&c->dt, t), sw_wide(&c->bb, t),
        sw_wide(&c->cc, t), c->p.z != 0 ? sw_wide(&c->z, t) : NULL, y, rounded);
}

static double ssm_limit(const struct ssm_call *c)
{
    if (c->pool.p.slots.dtype == SC_DTYPE_BF16) return 5e-3;
    return limit_of(c->p.dtype);
}

static void ssm_row(struct ssm_call *c, uint32_t r, bool chunk, struct sw_error *e)
{
    const struct sw_batch *b = &c->b;
    bool bf16 = c->pool.p.slots.dtype == SC_DTYPE_BF16;
    double *y = rig_alloc(c->y.cols * sizeof *y), limit = bf16 ? 5e-3 : 2e-5;
    sw_state(&c->pool, b->source[r], c->s);
    for (int32_t t = 0; t < sw_length(b, r); t++) {
        size_t at = (size_t)(b->start[r] + t);
        if (b->source[r] < 0) {
            rig_all_bytes(sw_row(&c->y, at), c->y.cols * rig_elem(c->p.dtype), 0);
            continue;
        }
        ssm_token(c, at, y, bf16 && !chunk);
        sw_add(e, sw_row(&c->y, at), c->p.dtype, y, c->y.cols);
        for (uint32_t i = 0; i < b->saves; i++)
            if (b->save_row[i] == (int32_t)r && b->save_pos[i] == b->position[r] + t + 1)
                sw_slot_is(&c->pool, b->save_slot[i], c->s, limit);
    }
    free(y);
    if (b->source[r] < 0 || b->dest[r] <= 0) return;
    if (sw_length(b, r) == 0)
        sw_slot_copied(&c->pool, b->dest[r], b->source[r]);
    else
        sw_slot_is(&c->pool, b->dest[r], c->s, limit);
}

static void ssm_check(struct ssm_call *c, bool chunk)
{
    struct sw_error e = {0};
    for (uint32_t r = 0; r < c->b.rows; r++) ssm_row(c, r, chunk, &e);
    sw_within(&e, "y", ssm_limit(c));
    sw_untouched(&c->pool);
    sw_gaps(&c->y, (size_t)c->b.first, (size_t)c->b.last);
}

START_TEST(sweep__ssm)
{
    struct ssm_call c;
    sw_open("ssm", _i);
    ssm_open(&c, sw_chance(0.3) ? 300 : 20, 1);
    RIG_OK(sc_k_ssm(NULL, &c.p, NULL));
    ssm_check(&c, false);
    ssm_close(&c);
}
END_TEST

START_TEST(sweep__ssm_chunk)
{
    struct ssm_call c;
    uint64_t bytes = 0;
    sw_open("scan", _i);
    uint32_t chunk = 16u << sw_below(5);
    sw_note(" C %u", chunk);
    ssm_open(&c, sw_chance(0.6) ? 300 : 90, chunk);
    sc_k_ssm_chunk_params p = {.tokens = c.p, .chunk = chunk};
    RIG_OK(sc_k_ssm_chunk_scratch(NULL, &p, &bytes));
    void *scratch = rig_alloc(bytes);
    p.scratch = sc_host_devptr(scratch), p.scratch_bytes = bytes;
    RIG_OK(sc_k_ssm_chunk(NULL, &p, NULL));
    ssm_check(&c, true);
    free(scratch), ssm_close(&c);
}
END_TEST

/* One row by a ring; flushed states are those of plain decode, to the bit. */
START_TEST(sweep__ssm_ring)
{
    struct ssm_call c;
    struct sw_error e = {0};
    uint32_t bytes = 0;
    int32_t source, slot = 1, planned, records, mode, one = 1, start[2] = {0, 1};
    sw_open("ring", _i);
    uint32_t most = 1 + sw_below(20);
    ssm_open(&c, 30, 0);
    sc_k_ssm_params step = c.p;
    RIG_OK(sc_k_replay_ssm_record_bytes(step.heads, step.groups, step.head_dim, step.state_dim,
        step.dtype, &bytes));
    uint8_t *memory = rig_alloc((size_t)bytes * most * 2);
    int32_t *control = rig_alloc(128);
    control[16] = 0;
    struct rig_pool plain = rig_pool(c.pool.p.slots.dtype, c.pool.p.part_elems, 2, 0, 0);
    source = 1 + (int32_t)sw_below(SW_SLOTS - 1);
    sw_slot_fill(&c.pool, source, 0.7f), sw_keep(&c.pool);
    memcpy(rig_slot(&plain, 1), rig_slot(&c.pool.p, source), rig_part_bytes(&plain));
    sw_state(&c.pool, source, c.s);
    double *y = rig_alloc(c.y.cols * sizeof *y);
    void *y_plain = rig_alloc(c.y.cols * 4);
    bool bf16 = c.pool.p.slots.dtype == SC_DTYPE_BF16;
    sw_note(" ring of %u", most);
    for (size_t t = (size_t)c.b.first; t < (size_t)c.b.last; t++) {
        planned = sw_chance(0.15) ? SC_REPLAY_FLUSH : SC_REPLAY_APPEND;
        const sc_replay_step_params plan = {.control = {.base = sc_host_devptr(control),
            .slot_stride = 64, .slot_count = 2}, .records_max = most, .row_count = 1,
            .slot = sc_host_devptr(&slot), .planned = sc_host_devptr(&planned),
            .records = sc_host_devptr(&records), .mode = sc_host_devptr(&mode)};
        RIG_OK(sc_replay_step(NULL, &plan, NULL));
        step = c.p;
        step.x = sc_host_devptr(sw_row(&c.x, t)), step.dt = sc_host_devptr(sw_row(&c.dt, t));
        step.b = sc_host_devptr(sw_row(&c.bb, t)), step.c = sc_host_devptr(sw_row(&c.cc, t));
        if (step.z != 0) step.z = sc_host_devptr(sw_row(&c.z, t));
        step.y = sc_host_devptr(sw_row(&c.y, t)), step.row_count = 1;
        step.row_start = step.position = 0, step.saves = (sc_k_saves){0}, step.token_count = 0;
        step.source = step.dest = sc_host_devptr(&source);
        const sc_k_replay_ssm_params p = {.step = step, .ring = {.slots = {
            .base = sc_host_devptr(memory), .slot_stride = (int64_t)bytes * most,
            .dtype = SC_DTYPE_U8, .slot_count = 2}, .records_max = most, .record_bytes = bytes,
            .slot = sc_host_devptr(&slot), .records = sc_host_devptr(&records),
            .mode = sc_host_devptr(&mode)}};
        RIG_OK(sc_k_replay_ssm(NULL, &p, NULL));
        step.state = plain.slots, step.source = step.dest = sc_host_devptr(&one);
        step.row_start = sc_host_devptr(start), step.token_count = 1;
        step.y = sc_host_devptr(y_plain);
        RIG_OK(sc_k_ssm(NULL, &step, NULL));
        ssm_token(&c, t, y, bf16);
        sw_add(&e, sw_row(&c.y, t), c.p.dtype, y, c.y.cols);
        if (mode != SC_REPLAY_FLUSH) continue;
        SW_ASSERT(memcmp(rig_slot(&c.pool.p, source), rig_slot(&plain, 1),
            rig_part_bytes(&plain)) == 0);
        SW_ASSERT(memcmp(sw_row(&c.y, t), y_plain, c.y.cols * rig_elem(c.p.dtype)) == 0);
    }
    sw_within(&e, "y", ssm_limit(&c));
    c.pool.written[source] = true;
    sw_untouched(&c.pool);
    free(memory), free(control), free(plain.memory), free(y), free(y_plain), ssm_close(&c);
}
END_TEST

/* ---- a whole layer ---- */

struct linear_call {
    sc_linear_layer layer;
    sc_linear_batch batch;
    struct f64_delta d;
    struct sw_batch b;
    struct sw_tensor x, a, beta, o, weight;
    struct sw_pool window, state;
    float *a_log, *dt_bias;
    uint32_t channels, each;
    void *scratch;
};

static void linear_open(struct linear_call *c, sc_linear_form form)
{
    static const uint32_t chunks[] = {16, 32, 64};
    sc_dtype dtype = sw_dtype();
    memset(c, 0, sizeof *c);
    uint32_t chunk = chunks[sw_below(3)], heads = 1 + sw_below(2), share = 1 + sw_below(2);
    uint32_t k = sw_dim(96), v = sw_dim(96);
    bool kda = sw_chance(0.5);
    c->b = sw_batch(form == SC_LINEAR_EXTEND ? 200 : 1, form == SC_LINEAR_EXTEND ? chunk : 0,
        form == SC_LINEAR_DECODE);
    c->d = (struct f64_delta){.heads = heads, .v_heads = heads * share, .k_dim = k, .v_dim = v,
        .kda = kda, .norm = true, .scale = 1.0 / sqrt((double)k)};
    c->channels = 2 * heads * k + heads * share * v, c->each = kda ? k : 1;
    sw_note(" %d %s %ux%u K %u V %u C %u", (int)dtype, kda ? "kda" : "gdn", heads, heads * share,
        k, v, chunk);
    size_t n = c->b.tokens + 1, from = (size_t)c->b.first, to = (size_t)c->b.last;
    c->x = sw_tensor(dtype, n, c->channels), c->a = sw_tensor(dtype, n, heads * share * c->each);
    c->beta = sw_tensor(dtype, n, heads * share), c->o = sw_tensor(dtype, n, heads * share * v);
    sw_fill(&c->x, from, to, 1.0f), sw_fill(&c->a, from, to, 1.0f);
    sw_fill(&c->beta, from, to, 1.0f);
    c->weight = sw_dense(SC_DTYPE_F32, c->channels, 4, 0.5f);
    c->a_log = rig_normal(&sw_prng, heads * share, 0.5f);
    c->dt_bias = rig_normal(&sw_prng, (size_t)heads * share * c->each, 1.0f);
    c->window = sw_pool(dtype, 3u * c->channels), sw_batch_fill(&c->b, &c->window, 0.7f);
    c->state = sw_pool(SC_DTYPE_F32, (size_t)heads * share * k * v);
    sw_batch_fill(&c->b, &c->state, 0.5f);
    c->layer = (sc_linear_layer){.shape = {.kind = kda ? SC_K_KIND_KDA : SC_K_KIND_GDN,
        .heads = heads, .v_heads = heads * share, .k_dim = k, .v_dim = v, .qk_l2norm = true},
        .conv_weight = sw_ptr(&c->weight), .conv_dtype = SC_DTYPE_F32,
        .conv_act = SC_K_ACT_SILU, .conv_width = 4, .gates = {.gate = kda
            ? SC_K_GATE_KDA_BOUNDED : SC_K_GATE_GDN, .a_log = sc_host_devptr(c->a_log),
            .dt_bias = sc_host_devptr(c->dt_bias), .dt_bias_dtype = SC_DTYPE_F32,
            .lower_bound = -5.0f}, .chunk = chunk};
    c->batch = (sc_linear_batch){.x = sw_ptr(&c->x), .a = sw_ptr(&c->a), .b = sw_ptr(&c->beta),
        .o = sw_ptr(&c->o), .x_stride = c->x.pitch, .a_stride = c->a.pitch,
        .b_stride = c->beta.pitch, .o_stride = c->o.pitch, .dtype = dtype,
        .token_count = c->b.tokens, .row_count = c->b.rows,
        .row_start = sc_host_devptr(c->b.start), .position = sc_host_devptr(c->b.position),
        .source = sc_host_devptr(c->b.source), .dest = sc_host_devptr(c->b.dest),
        .saves = sw_saves(&c->b), .window = {c->window.p.slots}, .window_count = 1,
        .state = c->state.p.slots};
}

/* Row r from float64: conv (rounded to the dtype, as it lies in scratch), gates, states. */
static void linear_row(struct linear_call *c, uint32_t r, struct sw_error *e)
{
    struct sw_batch *b = &c->b;
    uint32_t channels = c->channels, vh = c->d.v_heads, qk = c->d.heads * c->d.k_dim;
    int32_t n = sw_length(b, r);
    double *ext = rig_alloc(((size_t)n + 4) * channels * sizeof *ext), *y = rig_alloc(
        channels * sizeof *y), *g = rig_alloc((size_t)vh * c->each * sizeof *g);
    double *s = rig_alloc(c->state.p.part_elems * sizeof *s), beta[8];
    double *o = rig_alloc(c->o.cols * sizeof *o);
    sw_state(&c->window, b->source[r], ext), sw_state(&c->state, b->source[r], s);
    for (int32_t t = 0; t < n && b->source[r] >= 0; t++) {
        size_t at = (size_t)(b->start[r] + t);
        const double *taps[4];
        memcpy(ext + (3 + (size_t)t) * channels, sw_wide(&c->x, at), channels * sizeof *ext);
        for (uint32_t w = 0; w < 4; w++) taps[w] = ext + ((size_t)t + w) * channels;
        f64_conv(y, taps, c->weight.wide, NULL, channels, 4, 1);
        for (uint32_t i = 0; i < channels && c->batch.dtype == SC_DTYPE_BF16; i++)
            y[i] = f64_bf16(y[i]);
        for (uint32_t i = 0; i < vh * c->each; i++)
            g[i] = f64_gate((int)c->layer.gates.gate, sw_wide(&c->a, at)[i],
                (double)c->a_log[i / c->each], (double)c->dt_bias[i], -5.0);
        for (uint32_t h = 0; h < vh; h++) beta[h] = f64_sigmoid(sw_wide(&c->beta, at)[h]);
        f64_delta_step(&c->d, s, y, y + qk, y + 2 * qk, g, beta, o, false);
        sw_add(e, sw_row(&c->o, at), c->batch.dtype, o, c->o.cols);
        for (uint32_t i = 0; i < b->saves; i++)
            if (b->save_row[i] == (int32_t)r && b->save_pos[i] == b->position[r] + t + 1) {
                sw_slot_is(&c->state, b->save_slot[i], s, limit_of(c->batch.dtype));
                sw_slot_is(&c->window, b->save_slot[i], ext + ((size_t)t + 1) * channels, 0.0);
            }
    }
    if (b->source[r] >= 0 && b->dest[r] > 0) {
        sw_slot_is(&c->state, b->dest[r], s, limit_of(c->batch.dtype));
        sw_slot_is(&c->window, b->dest[r], ext + (size_t)n * channels, 0.0);
    }
    free(ext), free(y), free(g), free(s), free(o);
}

START_TEST(sweep__layers)
{
    struct linear_call c;
    struct sw_error e = {0};
    uint64_t bytes = 0;
    sc_linear_form form = _i % 2 ? SC_LINEAR_DECODE : SC_LINEAR_EXTEND;
    sw_open(form == SC_LINEAR_DECODE ? "layer, decode" : "layer, extend", _i);
    linear_open(&c, form);
    RIG_OK(sc_linear_scratch(NULL, &c.layer, &c.batch, form, &bytes));
    c.scratch = rig_alloc(bytes);
    c.batch.scratch = sc_host_devptr(c.scratch), c.batch.scratch_bytes = bytes;
    if (form == SC_LINEAR_DECODE)
        RIG_OK(sc_linear_decode(NULL, &c.layer, &c.batch, NULL));
    else
        RIG_OK(sc_linear_extend(NULL, &c.layer, &c.batch, NULL));
    for (uint32_t r = 0; r < c.b.rows; r++) linear_row(&c, r, &e);
    sw_within(&e, "o", limit_of(c.batch.dtype));
    sw_untouched(&c.state), sw_untouched(&c.window);
    sw_gaps(&c.o, (size_t)c.b.first, (size_t)c.b.last);
    struct sw_tensor *all[] = {&c.x, &c.a, &c.beta, &c.o, &c.weight};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) sw_free(all[i]);
    sw_pool_free(&c.state), sw_pool_free(&c.window);
    free(c.a_log), free(c.dt_bias), free(c.scratch);
}
END_TEST

/* ---- the KDA stage ---- */

struct stage_call {
    sc_kda_stage_options o;
    sc_kda_stage *stage;
    sc_kda_columns at;
    struct sw_batch b;
    struct sw_tensor x, y, z, conv, f_b, g_b, norm;
    struct sw_pool window, state;
    float *gates;
    uint32_t all, tokens; /* heads * dim; of each request */
    void *scratch;
    sc_kda_stage_params p;
};

/* On multiples of 16 bytes, as the stage asks. */
static struct sw_tensor stage_tensor(sc_dtype dtype, size_t rows, size_t cols, float scale)
{
    struct sw_tensor t = {.dtype = dtype, .rows = rows, .cols = cols,
        .stride = cols + 8 * sw_below(3)};
    t.pitch = (int64_t)t.stride;
    t.memory = rig_alloc(rows * t.stride * rig_elem(dtype));
    t.wide = rig_alloc(rows * cols * sizeof *t.wide);
    if (scale > 0.0f) sw_fill(&t, 0, rows, scale);
    return t;
}

/* A pool whose slots lie on multiples of 16 bytes. */
static struct sw_pool stage_pool(sc_dtype dtype, size_t elems)
{
    struct sw_pool x = {.mapped = 0};
    size_t dense = elems * rig_elem(dtype), gap = 16u * sw_below(4);
    x.p = rig_pool(dtype, elems, SW_SLOTS, dense + gap, 16);
    return x;
}

static void stage_options(struct stage_call *c)
{
    sc_dtype weights = sw_dtype();
    c->o = (sc_kda_stage_options)SC_KDA_STAGE_OPTIONS_INIT;
    c->o.heads = 1 + sw_below(3), c->o.dim = 8 * (1 + sw_below(16));
    c->o.rank = 8 * (1 + sw_below(8)), c->o.conv_width = 2 + sw_below(3);
    c->o.dtype = sw_dtype(), c->o.weight_dtype = weights, c->o.eps = 1e-5f;
    c->all = c->o.heads * c->o.dim;
    c->conv = sw_dense(weights, 3 * c->all, c->o.conv_width, 0.5f);
    c->f_b = sw_dense(weights, c->all, c->o.rank, 0.3f);
    c->g_b = sw_dense(weights, c->all, c->o.rank, 0.3f);
    c->norm = sw_dense(weights, 1, c->o.dim, 1.0f);
    c->gates = rig_normal(&sw_prng, c->o.heads + c->all, 0.5f);
    c->o.conv_weight = sw_ptr(&c->conv), c->o.f_b = sw_ptr(&c->f_b);
    c->o.g_b = sw_chance(0.3) ? 0 : sw_ptr(&c->g_b), c->o.norm_weight = sw_ptr(&c->norm);
    c->o.gates = (sc_k_gate_weights){.gate = sw_chance(0.5) ? SC_K_GATE_KDA_BOUNDED
                                                            : SC_K_GATE_KDA_SOFTPLUS,
        .a_log = sc_host_devptr(c->gates), .dt_bias = sc_host_devptr(c->gates + c->o.heads),
        .dt_bias_dtype = SC_DTYPE_F32, .lower_bound = -5.0f, .beta_doubled = sw_chance(0.3)};
    if (sw_chance(0.5)) c->o.fold_tokens = 1 + sw_below(8);
    RIG_OK(sc_kda_stage_create(NULL, &c->o, NULL, &c->stage));
    RIG_OK(sc_kda_stage_columns(c->stage, &c->at));
    sw_note(" %d weights %d heads %u dim %u rank %u W %u gate %d %s", (int)c->o.dtype,
        (int)weights, c->o.heads, c->o.dim, c->o.rank, c->o.conv_width, (int)c->o.gates.gate,
        c->o.g_b != 0 ? "low rank" : "ready");
}

static void stage_open(struct stage_call *c)
{
    memset(c, 0, sizeof *c);
    c->b = sw_batch(1, 0, true);
    c->b.saves = 0;
    c->tokens = sw_chance(0.5) ? 1 : 2 + sw_below(6);
    stage_options(c);
    size_t n = (size_t)c->b.rows * c->tokens;
    c->x = stage_tensor(c->o.dtype, n, c->at.count, 0.7f);
    c->y = stage_tensor(c->o.dtype, n, c->all, 0.0f);
    c->z = sw_dense(c->o.dtype, n, c->all, 1.0f);
    c->window = stage_pool(c->o.dtype, 3u * c->all * (c->o.conv_width - 1));
    c->state = stage_pool(sw_dtype(), (size_t)c->all * c->o.dim);
    sw_batch_fill(&c->b, &c->window, 0.7f), sw_batch_fill(&c->b, &c->state, 0.4f);
    c->p = (sc_kda_stage_params){.key = {.requests = c->b.rows, .tokens = c->tokens,
        .x_stride = c->x.pitch, .y_stride = c->y.pitch,
        .window_stride = c->window.p.slots.slot_stride,
        .state_stride = c->state.p.slots.slot_stride, .state_dtype = c->state.p.slots.dtype,
        .window_order = sw_chance(0.3) ? SC_K_ORDER_DIM_FIRST : SC_K_ORDER_WIDTH_FIRST},
        .x = sw_ptr(&c->x), .z = c->o.g_b == 0 ? sw_ptr(&c->z) : 0, .y = sw_ptr(&c->y),
        .source = sc_host_devptr(c->b.source),
        .dest = c->tokens == 1 ? sc_host_devptr(c->b.dest) : 0, .window = c->window.p.slots,
        .state = c->state.p.slots};
    sw_note(" tokens %u states %d order %d", c->tokens, (int)c->p.key.state_dtype,
        (int)c->p.key.window_order);
}

/* As x's dtype holds them, after the conv and before the norm: where single operations meet. */
static void stage_round(const struct stage_call *c, double *x, size_t count)
{
    for (size_t i = 0; i < count && c->o.dtype == SC_DTYPE_BF16; i++) x[i] = f64_bf16(x[i]);
}

/* q, k and v of the token at row `at` of x: the conv over `ext`, W-1 inputs before it. */
static void stage_conv(const struct stage_call *c, size_t at, double *ext, double *qkv)
{
    uint32_t history = c->o.conv_width - 1, channels = 3 * c->all;
    const double *taps[4];
    memcpy(ext + (size_t)history * channels, sw_wide(&c->x, at) + c->at.qkv,
        channels * sizeof *ext);
    for (uint32_t w = 0; w <= history; w++) taps[w] = ext + (size_t)w * channels;
    f64_conv(qkv, taps, c->conv.wide, NULL, channels, history + 1, 1);
    stage_round(c, qkv, channels);
    memmove(ext, ext + channels, (size_t)history * channels * sizeof *ext);
}

/* sum_r column[r] * weight[row][r] */
static double stage_low_rank(const struct stage_call *c, size_t at, uint32_t column,
    const struct sw_tensor *weight, uint32_t row)
{
    double sum = 0.0;
    for (uint32_t r = 0; r < c->o.rank; r++)
        sum += sw_wide(&c->x, at)[column + r] * sw_wide(weight, row)[r];
    return sum;
}

static void stage_token(const struct stage_call *c, size_t at, double *ext, double *s, double *y)
{
    uint32_t all = c->all, dim = c->o.dim;
    double *qkv = rig_alloc(3u * all * sizeof *qkv), *g = rig_alloc(2u * all * sizeof *g);
    double *z = g + all, beta[8];
    const struct f64_delta d = {.heads = c->o.heads, .v_heads = c->o.heads, .k_dim = dim,
        .v_dim = dim, .kda = true, .norm = true, .scale = 1.0 / sqrt((double)dim)};
    stage_conv(c, at, ext, qkv);
    for (uint32_t i = 0; i < all; i++) {
        g[i] = f64_gate((int)c->o.gates.gate, stage_low_rank(c, at, c->at.f_a, &c->f_b, i),
            (double)c->gates[i / dim], (double)c->gates[c->o.heads + i], -5.0);
        z[i] = c->o.g_b == 0 ? sw_wide(&c->z, at)[i]
                             : stage_low_rank(c, at, c->at.g_a, &c->g_b, i);
    }
    for (uint32_t h = 0; h < c->o.heads; h++)
        beta[h] = (c->o.gates.beta_doubled ? 2.0 : 1.0)
            * f64_sigmoid(sw_wide(&c->x, at)[c->at.beta + h]);
    f64_delta_step(&d, s, qkv, qkv + all, qkv + 2 * all, g, beta, y,
        c->p.key.state_dtype == SC_DTYPE_BF16);
    stage_round(c, y, all);
    for (uint32_t h = 0; h < c->o.heads; h++)
        f64_gated_rmsnorm(y + h * dim, y + h * dim, z + h * dim, c->norm.wide, dim, 1e-5, 2,
            false);
    free(qkv), free(g);
}

static void stage_row(struct stage_call *c, uint32_t r, struct sw_error *e)
{
    uint32_t history = c->o.conv_width - 1, channels = 3 * c->all;
    size_t part = (size_t)history * channels;
    double *ext = rig_alloc((part + channels) * sizeof *ext), *y = rig_alloc(c->all * sizeof *y);
    double *s = rig_alloc(c->state.p.part_elems * sizeof *s), *flat = rig_alloc(part * sizeof *s);
    bool dim_first = c->p.key.window_order == SC_K_ORDER_DIM_FIRST;
    sw_state(&c->window, c->b.source[r], flat), sw_state(&c->state, c->b.source[r], s);
    for (size_t i = 0; i < part; i++) /* [W-1][channels], however it lies in the slot */
        ext[i] = dim_first ? flat[i % channels * history + i / channels] : flat[i];
    for (uint32_t t = 0; t < c->tokens; t++) {
        size_t at = (size_t)r * c->tokens + t;
        if (c->b.source[r] < 0) {
            rig_all_bytes(sw_row(&c->y, at), c->all * rig_elem(c->o.dtype), 0);
            continue;
        }
        stage_token(c, at, ext, s, y);
        sw_add(e, sw_row(&c->y, at), c->o.dtype, y, c->all);
    }
    if (c->tokens == 1 && c->b.source[r] >= 0 && c->b.dest[r] > 0) {
        for (size_t i = 0; i < part; i++)
            flat[dim_first ? i % channels * history + i / channels : i] = ext[i];
        sw_slot_is(&c->window, c->b.dest[r], flat, 0.0);
        sw_slot_is(&c->state, c->b.dest[r], s, c->p.key.state_dtype == SC_DTYPE_BF16
            ? 3e-3 : limit_of(c->o.dtype));
    }
    free(ext), free(y), free(s), free(flat);
}

START_TEST(sweep__stage)
{
    struct stage_call c;
    struct sw_error e = {0};
    sw_open("stage", _i);
    stage_open(&c);
    uint64_t bytes = 0;
    RIG_OK(sc_kda_stage_prepare(c.stage, &c.p.key, &bytes));
    c.scratch = rig_alloc(bytes);
    c.p.scratch = sc_host_devptr(c.scratch), c.p.scratch_bytes = bytes;
    RIG_OK(sc_kda_stage_run(c.stage, &c.p, NULL));
    for (uint32_t r = 0; r < c.b.rows; r++) stage_row(&c, r, &e);
    sw_within(&e, "y", c.p.key.state_dtype == SC_DTYPE_BF16 ? 3e-3 : limit_of(c.o.dtype));
    sw_untouched(&c.state), sw_untouched(&c.window);
    sw_gaps(&c.y, 0, c.y.rows);
    struct sw_tensor *all[] = {&c.x, &c.y, &c.z, &c.conv, &c.f_b, &c.g_b, &c.norm};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) sw_free(all[i]);
    sw_pool_free(&c.state), sw_pool_free(&c.window), sc_kda_stage_destroy(c.stage);
    free(c.gates), free(c.scratch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_sweep_layers");
    const struct {
        const char *name;
        const TTest *test;
        int cases;
    } all[] = {{"ssm", sweep__ssm, 60}, {"scan", sweep__ssm_chunk, 80},
        {"ssm_ring", sweep__ssm_ring, 40}, {"layers", sweep__layers, 100},
        {"stage", sweep__stage, 80}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        TCase *tcase = tcase_create(all[i].name);
        tcase_set_timeout(tcase, 600);
        tcase_add_loop_test(tcase, all[i].test, 0, sw_cases(all[i].cases));
        suite_add_tcase(suite, tcase);
    }
    return check_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Random shapes of the delta rule against float64: recurrent, chunk, both decodes with their gates,
 * drafts in chains and trees with their commits, rings. sweep_rig.h says how to run one case. */
#include <check.h>

#include "oracle/fixture.h"
#include "statecache/kernels_draft.h"
#include "statecache/kernels_replay.h"
#include "support/check_main.h"
#include "sweep_rig.h"

/* ---- the reference itself ---- */

static const char *const files[] = {"delta_gdn", "delta_kda", "delta_kda_bounded",
    "delta_gdn_128", "delta_kda_128", "delta_gdn_odd", "delta_kda_odd"};
enum { FILES = sizeof files / sizeof files[0] };

static double *widened(struct fixture_array a)
{
    double *out = rig_alloc((a.count + 1) * sizeof *out);
    for (size_t i = 0; i < a.count; i++) out[i] = (double)a.f[i];
    fixture_free(&a);
    return out;
}

/* The C formulas give the numbers of reference.py, as far as the fixtures' fp32 tells. */
START_TEST(reference__agrees_with_the_fixtures)
{
    struct fixture file = fixture_open(SC_FIXTURE_DIR, files[_i]);
    struct fixture_array shape = fixture_get(&file, "shape"), scale = fixture_get(&file, "scale");
    struct fixture_array s0 = fixture_find(&file, "s0"), want = fixture_get(&file, "o");
    struct fixture_array states = fixture_get(&file, "states");
    struct f64_delta d = {.heads = (uint32_t)shape.i[0], .v_heads = (uint32_t)shape.i[1],
        .k_dim = (uint32_t)shape.i[2], .v_dim = (uint32_t)shape.i[3], .kda = shape.i[6] != 0,
        .norm = shape.i[7] != 0};
    d.scale = scale.f[0] != 0.0f ? (double)scale.f[0] : 1.0 / sqrt((double)d.k_dim);
    size_t tokens = (size_t)shape.i[4], part = (size_t)d.v_heads * d.v_dim * d.k_dim;
    double *q = widened(fixture_get(&file, "q")), *k = widened(fixture_get(&file, "k"));
    double *v = widened(fixture_get(&file, "v")), *g = widened(fixture_get(&file, "g"));
    double *beta = widened(fixture_get(&file, "beta")), *s = rig_alloc(part * sizeof *s);
    size_t qk = (size_t)d.heads * d.k_dim, vo = (size_t)d.v_heads * d.v_dim;
    size_t decays = (size_t)d.v_heads * (d.kda ? d.k_dim : 1);
    double *o = rig_alloc(vo * sizeof *o), worst = 0.0, size = 0.0;
    for (size_t i = 0; i < part; i++) s[i] = s0.count != 0 ? (double)s0.f[i] : 0.0;
    for (size_t t = 0; t < tokens; t++) {
        f64_delta_step(&d, s, q + t * qk, k + t * qk, v + t * vo, g + t * decays,
            beta + t * d.v_heads, o, false);
        for (size_t i = 0; i < vo; i++) {
            worst = fmax(worst, fabs(o[i] - (double)want.f[t * vo + i]));
            size = fmax(size, fabs(o[i]));
        }
    }
    ck_assert_double_lt(worst, 1e-6 * size);
    for (size_t i = 0, last = states.count - part; i < part; i++)
        ck_assert_double_lt(fabs(s[i] - (double)states.f[last + i]), 1e-5);
    fixture_free(&shape), fixture_free(&scale), fixture_free(&s0), fixture_free(&want);
    fixture_free(&states), fixture_close(&file);
    free(q), free(k), free(v), free(g), free(beta), free(s), free(o);
}
END_TEST

/* ---- recurrent and chunk ---- */

static sc_k_delta_shape delta_shape(uint32_t tokens, struct f64_delta *d)
{
    sc_k_delta_shape s = {.kind = sw_chance(0.5) ? SC_K_KIND_KDA : SC_K_KIND_GDN};
    do {
        s.heads = 1 + sw_below(3), s.v_heads = s.heads * (1 + sw_below(3));
        s.k_dim = sw_dim(256), s.v_dim = sw_dim(256);
    } while ((uint64_t)s.v_heads * s.k_dim * s.v_dim * (tokens + 40) > 8000000u);
    s.qk_l2norm = sw_chance(0.7);
    s.scale = sw_chance(0.7) ? 0.0f : 0.37f;
    *d = (struct f64_delta){.heads = s.heads, .v_heads = s.v_heads, .k_dim = s.k_dim,
        .v_dim = s.v_dim, .kda = s.kind == SC_K_KIND_KDA, .norm = s.qk_l2norm,
        .scale = s.scale != 0.0f ? (double)s.scale : 1.0 / sqrt((double)s.k_dim)};
    sw_note(" %s %ux%u K %u V %u norm %d", d->kda ? "kda" : "gdn", s.heads, s.v_heads, s.k_dim,
        s.v_dim, s.qk_l2norm);
    return s;
}

/* Tensors of a packed call; tokens of no row are NaN. */
struct delta_call {
    sc_k_delta_params p;
    struct f64_delta d;
    struct sw_tensor q, k, v, o, g, beta;
    struct sw_pool pool;
    struct sw_batch b;
    struct rig_pool initial;
    void *scratch;
    double *s, *twin; /* twin: like s, but rounded where the chunk form rounds a 16-bit state */
    uint32_t grid;    /* where that is: the chunk; 0: there is no twin */
    bool forgets;     /* some decay */
};

/* Dense tensors: the gates have no strides. */
static struct sw_tensor dense(size_t rows, size_t cols)
{
    struct sw_tensor t = sw_tensor(SC_DTYPE_F32, rows, cols);
    t.stride = cols, t.pitch = 0, t.offset = 0;
    return t;
}

/* Decays weak, strong, of the bounded gate, or none at all; beta up to 2. */
static bool gates_fill(struct sw_tensor *g, struct sw_tensor *beta, size_t from, size_t to)
{
    static const double low[] = {-0.05, -1.0, -5.0, -40.0, 0.0};
    uint32_t kind = sw_below(5);
    sw_uniform(g, from, to, low[kind], 0.0);
    sw_uniform(beta, from, to, 0.0, sw_chance(0.3) ? 2.0 : 1.0);
    sw_note(" decay %g", low[kind]);
    return low[kind] < 0.0;
}

static void delta_tensors(struct delta_call *c, sc_dtype dtype)
{
    const sc_k_delta_shape *s = &c->p.shape;
    size_t n = c->b.tokens + 1, from = (size_t)c->b.first, to = (size_t)c->b.last;
    float k_size = s->qk_l2norm ? 1.0f : 0.9f / sqrtf((float)s->k_dim);
    c->q = sw_tensor(dtype, n, (size_t)s->heads * s->k_dim);
    c->k = sw_tensor(dtype, n, (size_t)s->heads * s->k_dim);
    c->v = sw_tensor(dtype, n, (size_t)s->v_heads * s->v_dim);
    c->o = sw_tensor(dtype, n, (size_t)s->v_heads * s->v_dim);
    c->g = dense(n, s->v_heads * (c->d.kda ? (size_t)s->k_dim : 1));
    c->beta = dense(n, s->v_heads);
    sw_fill(&c->q, from, to, 1.0f), sw_fill(&c->k, from, to, k_size);
    sw_fill(&c->v, from, to, 1.0f);
    c->forgets = gates_fill(&c->g, &c->beta, from, to);
    c->p.q = sw_ptr(&c->q), c->p.k = sw_ptr(&c->k), c->p.v = sw_ptr(&c->v);
    c->p.o = sw_ptr(&c->o), c->p.g = sw_ptr(&c->g), c->p.beta = sw_ptr(&c->beta);
    c->p.q_stride = c->q.pitch, c->p.k_stride = c->k.pitch, c->p.v_stride = c->v.pitch;
    c->p.o_stride = c->o.pitch, c->p.dtype = dtype;
}

static void delta_open(struct delta_call *c, uint32_t most, uint32_t grid, bool decode)
{
    sc_dtype dtype = sw_dtype(), state = sw_dtype();
    memset(c, 0, sizeof *c);
    sw_note(" %s states %s", dtype == SC_DTYPE_F32 ? "f32" : "bf16",
        state == SC_DTYPE_F32 ? "f32" : "bf16");
    c->b = sw_batch(most, grid, decode);
    c->p.shape = delta_shape(c->b.tokens, &c->d);
    delta_tensors(c, dtype);
    size_t part = (size_t)c->d.v_heads * c->d.v_dim * c->d.k_dim;
    c->pool = sw_pool(state, part);
    sw_batch_fill(&c->b, &c->pool, 0.7f);
    c->s = rig_alloc(part * sizeof *c->s);
    c->p.token_count = c->b.tokens, c->p.row_count = c->b.rows;
    c->p.row_start = sc_host_devptr(c->b.start), c->p.position = sc_host_devptr(c->b.position);
    c->p.source = sc_host_devptr(c->b.source), c->p.dest = sc_host_devptr(c->b.dest);
    c->p.saves = sw_saves(&c->b), c->p.state = c->pool.p.slots;
}

/* Dense beginnings for one call in eight. */
static void delta_initial(struct delta_call *c)
{
    if (!sw_chance(0.12)) return;
    sc_dtype dtype = sw_dtype();
    c->initial = rig_pool(dtype, c->pool.p.part_elems, c->b.rows, 0, 0);
    float *s = rig_normal(&sw_prng, c->pool.p.part_elems * c->b.rows, 0.7f);
    rig_put(c->initial.memory, dtype, s, c->pool.p.part_elems * c->b.rows);
    free(s);
    for (uint32_t r = 0; r < c->b.rows; r++) /* whatever they were before, no slot is read */
        if (c->b.source[r] > 0) c->b.source[r] = 0;
    c->p.initial = c->initial.slots;
    sw_note(" initial %d", (int)dtype);
}

static void delta_begin(const struct delta_call *c, uint32_t r)
{
    if (c->initial.memory == NULL) {
        sw_state(&c->pool, c->b.source[r], c->s);
        return;
    }
    float *f = rig_alloc(c->pool.p.part_elems * sizeof *f);
    rig_read(f, rig_slot(&c->initial, (int32_t)r), c->initial.slots.dtype, c->pool.p.part_elems);
    for (size_t i = 0; i < c->pool.p.part_elems; i++)
        c->s[i] = c->pool.p.slots.dtype == SC_DTYPE_BF16 ? f64_bf16((double)f[i]) : (double)f[i];
    free(f);
}

static void delta_close(struct delta_call *c)
{
    struct sw_tensor *all[] = {&c->q, &c->k, &c->v, &c->o, &c->g, &c->beta};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) sw_free(all[i]);
    sw_pool_free(&c->pool);
    free(c->initial.memory), free(c->scratch), free(c->s), free(c->twin);
}

static void delta_token(const struct delta_call *c, double *s, size_t t, double *o, bool rounded)
{
    f64_delta_step(&c->d, s, sw_wide(&c->q, t), sw_wide(&c->k, t), sw_wide(&c->v, t),
        sw_wide(&c->g, t), sw_wide(&c->beta, t), o, rounded);
}

/* fp32 2e-5, bf16 tensors 3e-3, a bf16 pool 5e-3: the recurrent forms round such a state after each
 * token, and so does the reference then; where one of the two rounds up and the other down, the
 * difference stays for as many tokens as the state remembers.
 *
 * The chunk form rounds at every chunk's end, the reference does not. One rounding is an error of
 * 2^-8 / sqrt(12) of the power of two below a number, 1.5e-3 of the RMS of numbers whose logarithms
 * are spread evenly; n of them are 1.5e-3 sqrt(n) if nothing is forgotten: 16 make 6.1e-3 at most
 * (5.3e-3 were seen), the 19 of 300 tokens 6.7e-3. So the limit is wider there, and what the kernel
 * itself adds is told apart: a twin of the reference that is rounded at the same places must be met
 * within 3e-3 in any case. */
#define TWIN_LIMIT 3e-3

static double o_limit(const struct delta_call *c)
{
    if (c->pool.p.slots.dtype == SC_DTYPE_BF16) return c->forgets ? 5e-3 : 8e-3;
    return c->p.dtype == SC_DTYPE_BF16 ? 3e-3 : 2e-5;
}

static double state_limit(const struct delta_call *c)
{
    if (c->pool.p.slots.dtype == SC_DTYPE_BF16) return c->forgets ? 5e-3 : 8e-3;
    return 2e-5;
}

/* The twin after token t of row r; its output is added to `e`. */
static void twin_token(struct delta_call *c, uint32_t r, int32_t t, struct sw_error *e)
{
    const struct sw_batch *b = &c->b;
    size_t at = (size_t)(b->start[r] + t);
    double *o = rig_alloc(c->o.cols * sizeof *o);
    if (t == 0) memcpy(c->twin, c->s, c->pool.p.part_elems * sizeof *c->twin);
    delta_token(c, c->twin, at, o, false);
    sw_add(e, sw_row(&c->o, at), c->p.dtype, o, c->o.cols);
    if ((b->position[r] + t + 1) % (int32_t)c->grid == 0 || t + 1 == sw_length(b, r))
        for (size_t i = 0; i < c->pool.p.part_elems; i++) c->twin[i] = f64_bf16(c->twin[i]);
    for (uint32_t i = 0; i < b->saves; i++)
        if (b->save_row[i] == (int32_t)r && b->save_pos[i] == b->position[r] + t + 1)
            sw_slot_is(&c->pool, b->save_slot[i], c->twin, TWIN_LIMIT);
    free(o);
}

static void delta_row(struct delta_call *c, uint32_t r, bool chunk, struct sw_error *e,
    struct sw_error *twin)
{
    struct sw_batch *b = &c->b;
    bool rounded = !chunk && c->pool.p.slots.dtype == SC_DTYPE_BF16;
    double *o = rig_alloc(c->o.cols * sizeof *o);
    size_t row_bytes = c->o.cols * rig_elem(c->p.dtype);
    delta_begin(c, r);
    for (int32_t t = 0; t < sw_length(b, r); t++) {
        size_t at = (size_t)(b->start[r] + t);
        if (b->source[r] < 0) {
            rig_all_bytes(sw_row(&c->o, at), row_bytes, 0);
            continue;
        }
        if (c->grid != 0) twin_token(c, r, t, twin);
        delta_token(c, c->s, at, o, rounded);
        sw_add(e, sw_row(&c->o, at), c->p.dtype, o, c->o.cols);
        for (uint32_t i = 0; i < b->saves; i++)
            if (b->save_row[i] == (int32_t)r && b->save_pos[i] == b->position[r] + t + 1)
                sw_slot_is(&c->pool, b->save_slot[i], c->s, state_limit(c));
    }
    free(o);
    if (b->source[r] < 0 || b->dest[r] <= 0) return;
    if (sw_length(b, r) == 0 && c->initial.memory == NULL)
        sw_slot_copied(&c->pool, b->dest[r], b->source[r]);
    else
        sw_slot_is(&c->pool, b->dest[r], c->s, state_limit(c));
    if (c->grid != 0 && sw_length(b, r) != 0)
        sw_slot_is(&c->pool, b->dest[r], c->twin, TWIN_LIMIT);
}

static void delta_check(struct delta_call *c, bool chunk)
{
    struct sw_error e = {0}, twin = {0};
    for (uint32_t r = 0; r < c->b.rows; r++) delta_row(c, r, chunk, &e, &twin);
    sw_within(&e, "o", o_limit(c));
    sw_within(&twin, "o, rounded at the same places", TWIN_LIMIT);
    sw_untouched(&c->pool);
    sw_gaps(&c->o, (size_t)c->b.first, (size_t)c->b.last);
}

START_TEST(sweep__recurrent)
{
    struct delta_call c;
    sw_open("recurrent", _i);
    delta_open(&c, sw_chance(0.3) ? 300 : 40, 1, false);
    delta_initial(&c);
    RIG_OK(sc_k_delta_recurrent(NULL, &c.p, NULL));
    delta_check(&c, false);
    delta_close(&c);
}
END_TEST

START_TEST(sweep__chunk)
{
    static const uint32_t chunks[] = {16, 32, 64};
    struct delta_call c;
    sw_open("chunk", _i);
    uint32_t chunk = chunks[sw_below(3)];
    sw_note(" C %u", chunk);
    delta_open(&c, sw_chance(0.5) ? 300 : 90, chunk, false);
    delta_initial(&c);
    c.p.chunk = chunk;
    if (c.pool.p.slots.dtype == SC_DTYPE_BF16) {
        c.grid = chunk;
        c.twin = rig_alloc(c.pool.p.part_elems * sizeof *c.twin);
    }
    RIG_OK(sc_k_delta_chunk_scratch(NULL, &c.p, &c.p.scratch_bytes));
    c.scratch = rig_alloc(c.p.scratch_bytes);
    c.p.scratch = sc_host_devptr(c.scratch);
    RIG_OK(sc_k_delta_chunk(NULL, &c.p, NULL));
    delta_check(&c, true);
    delta_close(&c);
}
END_TEST

/* ---- decode ---- */

/* q, k, v in one row of `qkv`, gates raw or given. */
struct decode_call {
    struct delta_call c;
    struct sw_tensor qkv, a, raw_b, o2;
    float *a_log, *dt_bias;
    int32_t save[SW_ROWS];
    sc_k_decode_packed_params p;
};

/* The gates of `c` from raw ones, in float64. */
static void raw_gates(struct decode_call *x)
{
    struct delta_call *c = &x->c;
    sc_k_gate kind = !c->d.kda ? SC_K_GATE_GDN : sw_chance(0.5) ? SC_K_GATE_KDA_BOUNDED
                                                               : SC_K_GATE_KDA_SOFTPLUS;
    uint32_t heads = c->d.v_heads, each = c->d.kda ? c->d.k_dim : 1;
    bool doubled = sw_chance(0.3);
    x->a = sw_tensor(c->p.dtype, c->b.tokens, (size_t)heads * each);
    x->raw_b = sw_tensor(c->p.dtype, c->b.tokens, heads);
    sw_fill(&x->a, 0, c->b.tokens, 1.0f), sw_fill(&x->raw_b, 0, c->b.tokens, 1.0f);
    x->a_log = rig_normal(&sw_prng, heads, 0.5f);
    x->dt_bias = rig_normal(&sw_prng, (size_t)heads * each, 1.0f);
    for (size_t t = 0; t < c->b.tokens; t++)
        for (size_t i = 0; i < (size_t)heads * each; i++) {
            c->g.wide[t * c->g.cols + i] = f64_gate((int)kind, sw_wide(&x->a, t)[i],
                (double)x->a_log[i / each], (double)x->dt_bias[i], -4.5);
            c->beta.wide[t * heads + i / each] =
                (doubled ? 2.0 : 1.0) * f64_sigmoid(sw_wide(&x->raw_b, t)[i / each]);
        }
    x->p.weights = (sc_k_gate_weights){.gate = kind, .a_log = sc_host_devptr(x->a_log),
        .dt_bias = sc_host_devptr(x->dt_bias), .dt_bias_dtype = SC_DTYPE_F32,
        .lower_bound = -4.5f, .beta_doubled = doubled};
    x->p.a = sw_ptr(&x->a), x->p.b = sw_ptr(&x->raw_b);
    x->p.a_stride = x->a.pitch, x->p.b_stride = x->raw_b.pitch;
    sw_note(" raw gate %d", (int)kind);
}

static void decode_open(struct decode_call *x)
{
    struct delta_call *c = &x->c;
    memset(x, 0, sizeof *x);
    delta_open(c, 1, 0, true);
    delta_initial(c);
    size_t qk = c->q.cols, vo = c->v.cols;
    x->qkv = sw_tensor(c->p.dtype, c->b.tokens, 2 * qk + vo);
    for (size_t t = 0; t < c->b.tokens; t++) {
        size_t elem = rig_elem(c->p.dtype);
        uint8_t *row = sw_row(&x->qkv, t);
        memcpy(row, sw_row(&c->q, t), qk * elem);
        memcpy(row + qk * elem, sw_row(&c->k, t), qk * elem);
        memcpy(row + 2 * qk * elem, sw_row(&c->v, t), vo * elem);
    }
    for (uint32_t r = 0; r < c->b.rows; r++)
        x->save[r] = sw_chance(0.3) ? sw_slot_id(&c->b) : -1;
    x->p = (sc_k_decode_packed_params){.qkv = sw_ptr(&x->qkv), .o = c->p.o,
        .qkv_stride = x->qkv.pitch, .o_stride = c->p.o_stride, .dtype = c->p.dtype,
        .g = c->p.g, .beta = c->p.beta, .shape = c->p.shape, .row_count = c->b.rows,
        .source = c->p.source, .dest = c->p.dest, .save = sc_host_devptr(x->save),
        .state = c->p.state, .initial = c->p.initial};
    if (sw_chance(0.6)) {
        raw_gates(x);
        x->p.g = x->p.beta = 0;
    }
}

/* The same from separate tensors and from a copy of the pool: the same bits everywhere. */
static void decode_apart(struct decode_call *x)
{
    struct delta_call *c = &x->c;
    size_t part = rig_part_bytes(&c->pool.p);
    x->o2 = sw_tensor(c->p.dtype, c->b.tokens, c->o.cols);
    uint8_t *after = rig_alloc(part * SW_SLOTS);
    for (int32_t s = 0; s < SW_SLOTS; s++) {
        memcpy(after + (size_t)s * part, rig_slot(&c->pool.p, s), part);
        memcpy(rig_slot(&c->pool.p, s), sw_before(&c->pool, s), part);
    }
    const sc_k_decode_params p = {.q = c->p.q, .k = c->p.k, .v = c->p.v, .o = sw_ptr(&x->o2),
        .q_stride = c->p.q_stride, .k_stride = c->p.k_stride, .v_stride = c->p.v_stride,
        .o_stride = x->o2.pitch, .dtype = c->p.dtype, .g = x->p.g, .beta = x->p.beta,
        .a = x->p.a, .b = x->p.b, .a_stride = x->p.a_stride, .b_stride = x->p.b_stride,
        .weights = x->p.weights, .shape = c->p.shape, .row_count = c->b.rows,
        .source = c->p.source, .dest = c->p.dest, .save = x->p.save, .state = c->p.state,
        .initial = c->p.initial};
    RIG_OK(sc_k_decode(NULL, &p, NULL));
    for (int32_t s = 0; s < SW_SLOTS; s++)
        SW_ASSERT(memcmp(after + (size_t)s * part, rig_slot(&c->pool.p, s), part) == 0);
    for (size_t t = 0; t < c->b.tokens; t++)
        SW_ASSERT(memcmp(sw_row(&c->o, t), sw_row(&x->o2, t),
            c->o.cols * rig_elem(c->p.dtype)) == 0);
    free(after), sw_free(&x->o2);
}

START_TEST(sweep__decodes)
{
    struct decode_call x;
    struct delta_call *c = &x.c;
    sw_open("decode", _i);
    decode_open(&x);
    RIG_OK(sc_k_decode_packed(NULL, &x.p, NULL));
    for (uint32_t r = 0; r < c->b.rows; r++) { /* a second destination is a save at the end */
        if (x.save[r] <= 0 || c->b.source[r] < 0) continue;
        c->b.save_row[c->b.saves] = (int32_t)r;
        c->b.save_pos[c->b.saves] = c->b.position[r] + 1;
        c->b.save_slot[c->b.saves++] = x.save[r];
    }
    delta_check(c, false);
    decode_apart(&x);
    if (x.a.memory != NULL) sw_free(&x.a), sw_free(&x.raw_b);
    free(x.a_log), free(x.dt_bias), sw_free(&x.qkv), delta_close(c);
}
END_TEST

/* ---- drafts ---- */

enum { NODES = 24 };

struct draft_call {
    struct delta_call c;
    int32_t *parent, node[SW_ROWS];
    uint32_t longest;
    uint8_t *store;
    sc_k_node_store states;
};

/* The node that token t of a row continues; -1: the row's state. */
static int32_t before(const struct draft_call *x, uint32_t r, int32_t t)
{
    return x->parent != NULL ? x->parent[x->c.b.start[r] + t] : t - 1;
}

static void draft_open(struct draft_call *x)
{
    struct sw_batch *b = &x->c.b;
    memset(x, 0, sizeof *x);
    delta_open(&x->c, NODES, 0, false);
    b->saves = 0;
    bool tree = sw_chance(0.6);
    if (tree) {
        x->parent = rig_alloc((b->tokens + 1) * sizeof *x->parent);
        for (uint32_t t = 0; t < b->tokens; t++) x->parent[t] = -1;
    }
    for (uint32_t r = 0; r < b->rows; r++) {
        int32_t n = sw_length(b, r);
        x->longest = (uint32_t)n > x->longest ? (uint32_t)n : x->longest;
        for (int32_t t = 0; t < n && tree; t++)
            x->parent[b->start[r] + t] = sw_chance(0.5) ? t - 1
                : (int32_t)sw_below((uint32_t)t + 1) - 1;
        x->node[r] = n > 0 && sw_chance(0.85) ? (int32_t)sw_below((uint32_t)n) : -1;
    }
    if (x->longest == 0) x->longest = 1;
    if (sw_chance(0.4)) {
        uint64_t bytes = 0;
        RIG_OK(sc_k_node_store_bytes(b->rows, x->longest, x->c.pool.p.part_elems,
            x->c.p.state.dtype, &bytes));
        x->store = rig_alloc(bytes);
        x->states = (sc_k_node_store){sc_host_devptr(x->store), x->longest};
    }
    sw_note(" %s %s", tree ? "tree" : "chain", x->store ? "stored" : "replayed");
}

static void draft_verify(struct draft_call *x)
{
    struct delta_call *c = &x->c;
    sc_k_delta_verify_params p = {.tokens = c->p, .parent = sc_host_devptr(x->parent),
        .states = x->states, .tokens_max = x->longest};
    p.tokens.dest = p.tokens.position = 0, p.tokens.saves = (sc_k_saves){0};
    RIG_OK(sc_k_delta_verify_scratch(NULL, &p, &p.tokens.scratch_bytes));
    c->scratch = rig_alloc(p.tokens.scratch_bytes);
    p.tokens.scratch = sc_host_devptr(c->scratch);
    RIG_OK(sc_k_delta_verify(NULL, &p, NULL));
    sw_untouched(&c->pool);
}

/* Outputs of every node, from float64 states of all nodes. */
static void draft_outputs(struct draft_call *x, uint32_t r, struct sw_error *e)
{
    struct delta_call *c = &x->c;
    size_t part = c->pool.p.part_elems;
    int32_t n = sw_length(&c->b, r);
    double *states = rig_alloc((size_t)(n + 1) * part * sizeof *states);
    double *o = rig_alloc(c->o.cols * sizeof *o);
    delta_begin(c, r);
    for (int32_t t = 0; t < n; t++) {
        int32_t from = before(x, r, t);
        size_t at = (size_t)(c->b.start[r] + t);
        double *s = states + (size_t)t * part;
        memcpy(s, from < 0 ? c->s : states + (size_t)from * part, part * sizeof *s);
        if (c->b.source[r] < 0) {
            rig_all_bytes(sw_row(&c->o, at), c->o.cols * rig_elem(c->p.dtype), 0);
            continue;
        }
        delta_token(c, s, at, o, c->pool.p.slots.dtype == SC_DTYPE_BF16);
        sw_add(e, sw_row(&c->o, at), c->p.dtype, o, c->o.cols);
    }
    free(states), free(o);
}

/* What the commit left is what decode leaves, token by token along the path: to the bit. */
static void draft_path(struct draft_call *x, uint32_t r)
{
    struct delta_call *c = &x->c;
    struct sw_batch *b = &c->b;
    int32_t path[NODES], count = 0, slot = SW_SLOTS - 1, from = b->source[r];
    if (from < 0 || b->dest[r] <= 0) return;
    for (int32_t t = x->node[r]; t >= 0; t = before(x, r, t)) path[count++] = t;
    c->pool.written[b->dest[r]] = true;
    if (count == 0) {
        sw_slot_copied(&c->pool, b->dest[r], b->source[r]);
        return;
    }
    struct rig_pool plain = rig_pool(c->pool.p.slots.dtype, c->pool.p.part_elems, 2, 0, 0);
    if (from > 0) memcpy(rig_slot(&plain, 1), sw_before(&c->pool, from), rig_part_bytes(&plain));
    from = from > 0;
    slot = 1;
    while (count > 0) {
        size_t at = (size_t)(b->start[r] + path[--count]);
        const sc_k_decode_params p = {.q = sc_host_devptr(sw_row(&c->q, at)),
            .k = sc_host_devptr(sw_row(&c->k, at)), .v = sc_host_devptr(sw_row(&c->v, at)),
            .o = sc_host_devptr(c->s), .dtype = c->p.dtype,
            .g = sc_host_devptr(sw_row(&c->g, at)), .beta = sc_host_devptr(sw_row(&c->beta, at)),
            .shape = c->p.shape, .row_count = 1, .source = sc_host_devptr(&from),
            .dest = sc_host_devptr(&slot), .state = plain.slots};
        RIG_OK(sc_k_decode(NULL, &p, NULL));
        SW_ASSERT(memcmp(sw_row(&c->o, at), c->s, c->o.cols * rig_elem(c->p.dtype)) == 0);
        from = 1;
    }
    SW_ASSERT(memcmp(rig_slot(&plain, 1), rig_slot(&c->pool.p, b->dest[r]),
        rig_part_bytes(&plain)) == 0);
    free(plain.memory);
}

START_TEST(sweep__drafts)
{
    struct draft_call x;
    struct sw_error e = {0};
    sw_open("drafts", _i);
    draft_open(&x);
    draft_verify(&x);
    for (uint32_t r = 0; r < x.c.b.rows; r++) draft_outputs(&x, r, &e);
    sw_within(&e, "o", o_limit(&x.c));
    sw_gaps(&x.c.o, (size_t)x.c.b.first, (size_t)x.c.b.last);
    sc_k_delta_commit_params p = {.tokens = x.c.p, .parent = sc_host_devptr(x.parent),
        .node = sc_host_devptr(x.node), .states = x.states};
    p.tokens.q = p.tokens.o = 0, p.tokens.saves = (sc_k_saves){0};
    RIG_OK(sc_k_delta_commit(NULL, &p, NULL));
    for (uint32_t r = 0; r < x.c.b.rows; r++) draft_path(&x, r);
    sw_untouched(&x.c.pool);
    free(x.parent), free(x.store), delta_close(&x.c);
}
END_TEST

/* ---- rings ---- */

/* One row that decodes and flushes now and then, by a ring; plain decode beside it. */
struct ring_call {
    struct delta_call c;
    sc_k_replay_delta_params p;
    uint8_t *memory, *o_plain;
    int32_t *control;
    int32_t source, dest, slot, planned, records, mode;
    struct rig_pool plain;
};

static void ring_open(struct ring_call *x, uint32_t tokens)
{
    struct delta_call *c = &x->c;
    memset(x, 0, sizeof *x);
    delta_open(c, 1, 0, true);
    for (struct sw_tensor *t[] = {&c->q, &c->k, &c->v, &c->o, &c->g, &c->beta}, **at = t;
         at < t + 6; at++)
        sw_free(*at);
    c->b.tokens = tokens, c->b.first = 0, c->b.last = (int32_t)tokens;
    delta_tensors(c, c->p.dtype);
    uint32_t bytes = 0, most = 1 + sw_below(20);
    RIG_OK(sc_k_replay_delta_record_bytes(&c->p.shape, c->p.dtype, &bytes));
    x->memory = rig_alloc((size_t)bytes * most * 2), x->control = rig_alloc(128);
    x->control[16] = 0;
    x->slot = 1, x->source = x->dest = 1 + (int32_t)sw_below(SW_SLOTS - 1);
    x->p.ring = (sc_k_ring){.slots = {.base = sc_host_devptr(x->memory),
        .slot_stride = (int64_t)bytes * most, .dtype = SC_DTYPE_U8, .slot_count = 2},
        .records_max = most, .record_bytes = bytes, .slot = sc_host_devptr(&x->slot),
        .records = sc_host_devptr(&x->records), .mode = sc_host_devptr(&x->mode)};
    x->plain = rig_pool(c->pool.p.slots.dtype, c->pool.p.part_elems, 2, 0, 0);
    sw_slot_fill(&c->pool, x->source, 0.7f);
    memcpy(rig_slot(&x->plain, 1), rig_slot(&c->pool.p, x->source), rig_part_bytes(&x->plain));
    sw_keep(&c->pool);
    x->o_plain = rig_alloc(c->o.cols * 4);
    sw_note(" ring of %u, %u tokens", most, tokens);
}

static void ring_plan(struct ring_call *x, sc_replay_mode planned)
{
    x->planned = planned;
    const sc_replay_step_params step = {.control = {.base = sc_host_devptr(x->control),
        .slot_stride = 64, .slot_count = 2}, .records_max = x->p.ring.records_max, .row_count = 1,
        .slot = sc_host_devptr(&x->slot), .planned = sc_host_devptr(&x->planned),
        .records = sc_host_devptr(&x->records), .mode = sc_host_devptr(&x->mode)};
    RIG_OK(sc_replay_step(NULL, &step, NULL));
}

static void ring_token(struct ring_call *x, size_t t)
{
    struct delta_call *c = &x->c;
    struct sw_tensor qkv = sw_tensor(c->p.dtype, 1, 2 * c->q.cols + c->v.cols);
    size_t elem = rig_elem(c->p.dtype), qk = c->q.cols * elem;
    uint8_t *row = sw_row(&qkv, 0);
    int32_t one = 1;
    memcpy(row, sw_row(&c->q, t), qk), memcpy(row + qk, sw_row(&c->k, t), qk);
    memcpy(row + 2 * qk, sw_row(&c->v, t), c->v.cols * elem);
    x->p.step = (sc_k_decode_packed_params){.qkv = sw_ptr(&qkv),
        .o = sc_host_devptr(sw_row(&c->o, t)), .dtype = c->p.dtype,
        .g = sc_host_devptr(sw_row(&c->g, t)), .beta = sc_host_devptr(sw_row(&c->beta, t)),
        .shape = c->p.shape, .row_count = 1, .source = sc_host_devptr(&x->source),
        .dest = sc_host_devptr(&x->dest), .state = c->p.state};
    RIG_OK(sc_k_replay_delta(NULL, &x->p, NULL));
    sc_k_decode_packed_params plain = x->p.step;
    plain.state = x->plain.slots, plain.o = sc_host_devptr(x->o_plain);
    plain.source = plain.dest = sc_host_devptr(&one);
    RIG_OK(sc_k_decode_packed(NULL, &plain, NULL));
    sw_free(&qkv);
}

static void ring_same(struct ring_call *x)
{
    ck_assert_msg(memcmp(rig_slot(&x->c.pool.p, x->source), rig_slot(&x->plain, 1),
        rig_part_bytes(&x->plain)) == 0, "%s: the flushed state differs", sw_shape);
}

START_TEST(sweep__rings)
{
    struct ring_call x;
    struct delta_call *c = &x.c;
    struct sw_error e = {0};
    sw_open("rings", _i);
    ring_open(&x, 8 + sw_below(40));
    bool bf16 = c->pool.p.slots.dtype == SC_DTYPE_BF16;
    double *o = rig_alloc(c->o.cols * sizeof *o);
    sw_state(&c->pool, x.source, c->s);
    for (size_t t = 0; t < c->b.tokens; t++) {
        ring_plan(&x, sw_chance(0.15) ? SC_REPLAY_FLUSH : SC_REPLAY_APPEND);
        ring_token(&x, t);
        delta_token(c, c->s, t, o, bf16);
        sw_add(&e, sw_row(&c->o, t), c->p.dtype, o, c->o.cols);
        if (x.mode != SC_REPLAY_FLUSH) continue;
        ring_same(&x);
        SW_ASSERT(memcmp(sw_row(&c->o, t), x.o_plain, c->o.cols * rig_elem(c->p.dtype)) == 0);
    }
    ring_plan(&x, SC_REPLAY_FOLD);
    const sc_k_replay_delta_fold_params fold = {.shape = c->p.shape, .dtype = c->p.dtype,
        .row_count = 1, .source = sc_host_devptr(&x.source), .dest = sc_host_devptr(&x.dest),
        .state = c->p.state, .ring = x.p.ring};
    if (x.mode == SC_REPLAY_FOLD) RIG_OK(sc_k_replay_delta_fold(NULL, &fold, NULL));
    ring_same(&x);
    sw_within(&e, "o", o_limit(c));
    c->pool.written[x.dest] = true;
    sw_untouched(&c->pool);
    free(o), free(x.memory), free(x.o_plain), free(x.control), free(x.plain.memory);
    delta_close(c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_sweep");
    const struct {
        const char *name;
        const TTest *test;
        int cases;
    } all[] = {{"recurrent", sweep__recurrent, 60}, {"chunk", sweep__chunk, 100},
        {"decode", sweep__decodes, 120}, {"drafts", sweep__drafts, 60},
        {"rings", sweep__rings, 60}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        TCase *tcase = tcase_create(all[i].name);
        tcase_set_timeout(tcase, 600);
        tcase_add_loop_test(tcase, all[i].test, 0, sw_cases(all[i].cases));
        suite_add_tcase(suite, tcase);
    }
    TCase *reference = tcase_create("reference");
    tcase_add_loop_test(reference, reference__agrees_with_the_fixtures, 0, FILES);
    suite_add_tcase(suite, reference);
    return check_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Random shapes of what stands around the recurrences, against float64: conv in all its forms,
 * gates, norms, thin products, columns, movers. sweep_rig.h says how to run one case. */
#include <check.h>

#include "oracle/fixture.h"
#include "statecache/kernels_draft.h"
#include "statecache/kernels_move.h"
#include "statecache/kernels_project.h"
#include "support/check_main.h"
#include "sweep_rig.h"

static double limit_of(sc_dtype dtype)
{
    return dtype == SC_DTYPE_BF16 ? 3e-3 : 2e-5;
}

/* ---- the reference itself ---- */

/* The C formulas give the numbers of reference.py, as far as the fixtures' fp32 tells. */
START_TEST(reference__agrees_with_the_fixtures)
{
    static const char *const names[] = {"gdn", "kda", "kdb"};
    struct fixture file = fixture_open(SC_FIXTURE_DIR, "gates");
    struct fixture_array shape = fixture_get(&file, "shape");
    for (int kind = 1; kind <= 3; kind++) {
        struct fixture_array a[5];
        static const char *const fields[] = {"a", "a_log", "dt_bias", "g", "b"};
        for (int i = 0; i < 5; i++) {
            char name[16];
            (void)snprintf(name, sizeof name, "%s_%s", names[kind - 1], fields[i]);
            a[i] = fixture_get(&file, name);
        }
        size_t tokens = (size_t)shape.i[0], cols = a[0].count / tokens;
        size_t each = cols / (size_t)shape.i[1];
        for (size_t i = 0; i < a[0].count; i++) {
            double want = (double)a[3].f[i], got = f64_gate(kind, (double)a[0].f[i],
                (double)a[1].f[i % cols / each], (double)a[2].f[i % cols], -5.0);
            ck_assert_double_le(fabs(got - want), 1e-6 * fabs(want) + 1e-40);
        }
        for (int i = 0; i < 5; i++) fixture_free(&a[i]);
    }
    fixture_free(&shape), fixture_close(&file);
    file = fixture_open(SC_FIXTURE_DIR, "norms");
    shape = fixture_get(&file, "shape");
    struct fixture_array x = fixture_get(&file, "x"), l2 = fixture_get(&file, "l2");
    struct fixture_array z = fixture_get(&file, "z"), w = fixture_get(&file, "weight");
    struct fixture_array gated = fixture_get(&file, "silu_norm");
    uint32_t dim = (uint32_t)shape.i[2];
    double in[300], gate[300], weight[300], out[300];
    for (size_t row = 0; row < x.count / dim; row++) {
        for (size_t i = 0; i < dim; i++) {
            in[i] = (double)x.f[row * dim + i], gate[i] = (double)z.f[row * dim + i];
            weight[i] = (double)w.f[i];
        }
        f64_l2norm(out, in, dim, 1e-6);
        for (size_t i = 0; i < dim; i++)
            ck_assert_double_le(fabs(out[i] - (double)l2.f[row * dim + i]), 1e-7);
        f64_gated_rmsnorm(out, in, gate, weight, dim, 1e-5, 1, false);
        for (size_t i = 0; i < dim; i++)
            ck_assert_double_le(fabs(out[i] - (double)gated.f[row * dim + i]),
                1e-7 + 1e-6 * fabs(out[i]));
    }
    fixture_free(&shape), fixture_free(&x), fixture_free(&l2), fixture_free(&z), fixture_free(&w);
    fixture_free(&gated), fixture_close(&file);
}
END_TEST

/* ---- conv ---- */

struct conv_call {
    sc_k_conv_prefill_params p;
    struct sw_batch b;
    struct sw_tensor x, y, weight, bias;
    struct sw_pool pool;
};

static void conv_open(struct conv_call *c, uint32_t most, uint32_t grid, bool decode)
{
    sc_dtype dtype = sw_dtype(), window = sw_chance(0.7) ? dtype : sw_dtype();
    memset(c, 0, sizeof *c);
    c->b = sw_batch(most, grid, decode);
    uint32_t channels = 1 + sw_below(300), width = 2 + sw_below(3);
    sc_dtype weights = sw_dtype();
    sw_note(" %d windows %d channels %u W %u", (int)dtype, (int)window, channels, width);
    c->x = sw_tensor(dtype, c->b.tokens + 1, channels);
    c->y = sw_tensor(dtype, c->b.tokens + 1, channels);
    sw_fill(&c->x, (size_t)c->b.first, (size_t)c->b.last, 1.0f);
    c->weight = sw_dense(weights, channels, width, 0.6f);
    c->bias = sw_dense(weights, 1, channels, 0.6f);
    c->pool = sw_pool(window, (size_t)(width - 1) * channels);
    sw_batch_fill(&c->b, &c->pool, 1.0f);
    c->p = (sc_k_conv_prefill_params){.x = sw_ptr(&c->x), .y = sw_ptr(&c->y),
        .x_stride = c->x.pitch, .y_stride = c->y.pitch, .dtype = dtype,
        .weight = sw_ptr(&c->weight), .bias = sw_chance(0.5) ? sw_ptr(&c->bias) : 0,
        .weight_dtype = weights, .act = sw_chance(0.7) ? SC_K_ACT_SILU : SC_K_ACT_IDENTITY,
        .channels = channels, .width = width, .token_count = c->b.tokens, .row_count = c->b.rows,
        .row_start = sc_host_devptr(c->b.start), .position = sc_host_devptr(c->b.position),
        .source = sc_host_devptr(c->b.source), .dest = sc_host_devptr(c->b.dest),
        .saves = sw_saves(&c->b), .window = c->pool.p.slots,
        .order = sw_chance(0.3) ? SC_K_ORDER_DIM_FIRST : SC_K_ORDER_WIDTH_FIRST};
    sw_note(" order %d", (int)c->p.order);
}

static void conv_close(struct conv_call *c)
{
    sw_free(&c->x), sw_free(&c->y), sw_free(&c->weight), sw_free(&c->bias);
    sw_pool_free(&c->pool);
}

/* Element of a window's part in a slot. */
static size_t conv_at(const struct conv_call *c, uint32_t w, uint32_t ch)
{
    return c->p.order == SC_K_ORDER_DIM_FIRST ? (size_t)ch * (c->p.width - 1) + w
                                              : (size_t)w * c->p.channels + ch;
}

/* Inputs that the tokens of a row see, in the dtype of the window: [W-1 + length][channels]. */
static double *conv_inputs(const struct conv_call *c, uint32_t r)
{
    uint32_t history = c->p.width - 1, channels = c->p.channels;
    int32_t n = sw_length(&c->b, r);
    double *ext = rig_alloc((history + (size_t)n + 1) * channels * sizeof *ext);
    double *window = rig_alloc(c->pool.p.part_elems * sizeof *window);
    sw_state(&c->pool, c->b.source[r], window);
    for (uint32_t w = 0; w < history; w++)
        for (uint32_t ch = 0; ch < channels; ch++)
            ext[(size_t)w * channels + ch] = window[conv_at(c, w, ch)];
    for (int32_t t = 0; t < n; t++)
        for (uint32_t ch = 0; ch < channels; ch++) {
            double x = sw_wide(&c->x, (size_t)(c->b.start[r] + t))[ch];
            ext[(history + (size_t)t) * channels + ch] =
                c->pool.p.slots.dtype == SC_DTYPE_BF16 ? f64_bf16(x) : x;
        }
    free(window);
    return ext;
}

/* The slot holds the W-1 inputs at ext[index], to the bit. */
static void conv_window_is(struct conv_call *c, int32_t slot, const double *ext,
    const int32_t *index)
{
    double *want = rig_alloc(c->pool.p.part_elems * sizeof *want);
    for (uint32_t w = 0; w + 1 < c->p.width; w++)
        for (uint32_t ch = 0; ch < c->p.channels; ch++)
            want[conv_at(c, w, ch)] = ext[(size_t)index[w] * c->p.channels + ch];
    sw_slot_is(&c->pool, slot, want, 0.0);
    free(want);
}

/* Output of token t, whose W inputs are ext[index], oldest first. */
static void conv_output(struct conv_call *c, uint32_t r, int32_t t, const double *ext,
    const int32_t *index, struct sw_error *e)
{
    const double *taps[4];
    double *y = rig_alloc(c->p.channels * sizeof *y);
    size_t at = (size_t)(c->b.start[r] + t);
    for (uint32_t w = 0; w < c->p.width; w++)
        taps[w] = ext + (size_t)index[w] * c->p.channels;
    f64_conv(y, taps, c->weight.wide, c->p.bias != 0 ? c->bias.wide : NULL, c->p.channels,
        c->p.width, (int)c->p.act);
    if (c->b.source[r] < 0)
        rig_all_bytes(sw_row(&c->y, at), c->p.channels * rig_elem(c->p.dtype), 0);
    else
        sw_add(e, sw_row(&c->y, at), c->p.dtype, y, c->p.channels);
    free(y);
}

/* Token t continues parent[t]; NULL: t - 1. -1 is the window's newest input. */
static void conv_index(const struct conv_call *c, const int32_t *parent, int32_t t, int32_t *index)
{
    int32_t history = (int32_t)c->p.width - 1, past = 0;
    for (int32_t w = history; w >= 0; w--) {
        index[w] = t >= 0 ? history + t : history - 1 - past++;
        if (t >= 0) t = parent != NULL ? parent[t] : t - 1;
    }
}

static void conv_check(struct conv_call *c)
{
    struct sw_error e = {0};
    for (uint32_t r = 0; r < c->b.rows; r++) {
        double *ext = conv_inputs(c, r);
        int32_t n = sw_length(&c->b, r), index[4], position = c->b.position[r];
        for (int32_t t = 0; t < n; t++) {
            conv_index(c, NULL, t, index);
            conv_output(c, r, t, ext, index, &e);
            for (uint32_t i = 0; i < c->b.saves; i++)
                if (c->b.save_row[i] == (int32_t)r && c->b.save_pos[i] == position + t + 1
                    && c->b.source[r] >= 0)
                    conv_window_is(c, c->b.save_slot[i], ext, index + 1);
        }
        conv_index(c, NULL, n - 1, index);
        if (c->b.source[r] >= 0 && c->b.dest[r] > 0)
            conv_window_is(c, c->b.dest[r], ext, index + 1);
        free(ext);
    }
    sw_within(&e, "y", limit_of(c->p.dtype));
    sw_untouched(&c->pool);
    sw_gaps(&c->y, (size_t)c->b.first, (size_t)c->b.last);
}

START_TEST(sweep__conv_prefill)
{
    struct conv_call c;
    sw_open("conv", _i);
    conv_open(&c, sw_chance(0.5) ? 300 : 8, 1, false);
    RIG_OK(sc_k_conv_prefill(NULL, &c.p, NULL));
    conv_check(&c);
    conv_close(&c);
}
END_TEST

START_TEST(sweep__conv_update)
{
    struct conv_call c;
    int32_t save[SW_ROWS];
    sw_open("update", _i);
    conv_open(&c, 1, 0, true);
    for (uint32_t r = 0; r < c.b.rows; r++) {
        save[r] = sw_chance(0.3) ? sw_slot_id(&c.b) : -1;
        if (save[r] < 0 || c.b.source[r] < 0) continue;
        c.b.save_row[c.b.saves] = (int32_t)r, c.b.save_pos[c.b.saves] = c.b.position[r] + 1;
        c.b.save_slot[c.b.saves++] = save[r];
    }
    const sc_k_conv_update_params p = {.x = c.p.x, .y = c.p.y, .x_stride = c.p.x_stride,
        .y_stride = c.p.y_stride, .dtype = c.p.dtype, .weight = c.p.weight, .bias = c.p.bias,
        .weight_dtype = c.p.weight_dtype, .act = c.p.act, .channels = c.p.channels,
        .width = c.p.width, .row_count = c.b.rows, .source = c.p.source, .dest = c.p.dest,
        .save = sc_host_devptr(save), .window = c.p.window, .order = c.p.order};
    RIG_OK(sc_k_conv_update(NULL, &p, NULL));
    conv_check(&c);
    conv_close(&c);
}
END_TEST

START_TEST(sweep__conv_drafts)
{
    struct conv_call c;
    struct sw_error e = {0};
    int32_t *parent = NULL, node[SW_ROWS], index[4];
    uint64_t bytes = 0;
    sw_open("tree", _i);
    conv_open(&c, 20, 0, false);
    if (sw_chance(0.6)) parent = rig_alloc((c.b.tokens + 1) * sizeof *parent);
    for (uint32_t t = 0; parent != NULL && t < c.b.tokens; t++) parent[t] = -1;
    for (uint32_t r = 0; r < c.b.rows; r++) {
        int32_t n = sw_length(&c.b, r);
        for (int32_t t = 0; t < n && parent != NULL; t++)
            parent[c.b.start[r] + t] = sw_chance(0.5) ? t - 1
                : (int32_t)sw_below((uint32_t)t + 1) - 1;
        node[r] = n > 0 && sw_chance(0.85) ? (int32_t)sw_below((uint32_t)n) : -1;
    }
    RIG_OK(sc_k_node_store_bytes(c.b.rows, 20, c.pool.p.part_elems, c.p.window.dtype, &bytes));
    uint8_t *store = sw_chance(0.5) ? rig_alloc(bytes) : NULL;
    const sc_k_node_store windows = {sc_host_devptr(store), store != NULL ? 20 : 0};
    sc_k_conv_verify_params v = {.tokens = c.p, .parent = sc_host_devptr(parent),
        .windows = windows};
    v.tokens.dest = v.tokens.position = 0, v.tokens.saves = (sc_k_saves){0};
    RIG_OK(sc_k_conv_verify(NULL, &v, NULL));
    sw_untouched(&c.pool);
    sc_k_conv_commit_params m = {.tokens = c.p, .parent = v.parent, .node = sc_host_devptr(node),
        .windows = windows};
    m.tokens.y = m.tokens.weight = m.tokens.bias = 0, m.tokens.saves = (sc_k_saves){0};
    RIG_OK(sc_k_conv_commit(NULL, &m, NULL));
    for (uint32_t r = 0; r < c.b.rows; r++) {
        const int32_t *own = parent != NULL && c.b.start[r] >= 0 ? parent + c.b.start[r] : NULL;
        double *ext = conv_inputs(&c, r);
        for (int32_t t = 0; t < sw_length(&c.b, r); t++) {
            conv_index(&c, own, t, index);
            conv_output(&c, r, t, ext, index, &e);
        }
        conv_index(&c, own, node[r], index);
        if (c.b.source[r] >= 0 && c.b.dest[r] > 0)
            conv_window_is(&c, c.b.dest[r], ext, index + 1);
        free(ext);
    }
    sw_within(&e, "y", limit_of(c.p.dtype));
    sw_untouched(&c.pool);
    free(store), free(parent), conv_close(&c);
}
END_TEST

/* Rounds of drafts on one wide row; the history that counts is kept apart. */
START_TEST(sweep__conv_cursor)
{
    sw_open("cursor", _i);
    sc_dtype dtype = sw_dtype();
    uint32_t channels = 1 + sw_below(200), width = 2 + sw_below(3), most = 1 + sw_below(6);
    uint32_t part_rows = width + most - 2;
    struct sw_tensor weight = sw_dense(dtype, channels, width, 0.6f);
    struct sw_pool pool = sw_pool(dtype, (size_t)part_rows * channels);
    int32_t slot = 1 + (int32_t)sw_below(SW_SLOTS - 1), start[2] = {0, 0}, accepted = 1;
    double *history = rig_alloc((width + (size_t)most) * channels * sizeof *history);
    sw_note(" %d channels %u W %u drafts %u slot %d", (int)dtype, channels, width, most, slot);
    sw_slot_fill(&pool, slot, 1.0f), sw_keep(&pool);
    double *row = rig_alloc(pool.p.part_elems * sizeof *row);
    sw_state(&pool, slot, row);
    memcpy(history, row, (size_t)(width - 1) * channels * sizeof *history);
    for (int round = 0; round < 5; round++) {
        struct sw_error e = {0};
        uint32_t tokens = 1 + sw_below(most);
        struct sw_tensor x = sw_tensor(dtype, tokens, channels), y = sw_tensor(dtype, tokens,
            channels);
        sw_fill(&x, 0, tokens, 1.0f);
        start[1] = (int32_t)tokens;
        const sc_k_conv_update_spec_params p = {.x = sw_ptr(&x), .y = sw_ptr(&y),
            .x_stride = x.pitch, .y_stride = y.pitch, .dtype = dtype, .weight = sw_ptr(&weight),
            .weight_dtype = dtype, .act = SC_K_ACT_SILU, .channels = channels, .width = width,
            .drafts_max = most, .token_count = tokens, .row_count = 1,
            .row_start = sc_host_devptr(start), .slot = sc_host_devptr(&slot),
            .accepted = sc_host_devptr(&accepted), .window = pool.p.slots};
        RIG_OK(sc_k_conv_update_spec(NULL, &p, NULL));
        double *out = rig_alloc(channels * sizeof *out);
        for (uint32_t t = 0; t < tokens; t++) {
            const double *taps[4];
            memcpy(history + (width - 1 + (size_t)t) * channels, sw_wide(&x, t),
                channels * sizeof *history);
            for (uint32_t w = 0; w < width; w++) taps[w] = history + (size_t)(t + w) * channels;
            f64_conv(out, taps, weight.wide, NULL, channels, width, 1);
            sw_add(&e, sw_row(&y, t), dtype, out, channels);
        }
        sw_within(&e, "y", limit_of(dtype));
        accepted = 1 + (int32_t)sw_below(tokens);
        memmove(history, history + (size_t)accepted * channels,
            (size_t)(width - 1) * channels * sizeof *history);
        free(out), sw_free(&x), sw_free(&y);
    }
    pool.written[slot] = true;
    sw_untouched(&pool);
    free(history), free(row), sw_free(&weight), sw_pool_free(&pool);
}
END_TEST

/* ---- gates, norms, products, columns ---- */

START_TEST(sweep__gates)
{
    sw_open("gates", _i);
    sc_dtype dtype = sw_dtype();
    sc_k_gate gate = (sc_k_gate)(1 + sw_below(3));
    uint32_t tokens = 1 + sw_below(40), heads = 1 + sw_below(9), dim = sw_dim(256);
    uint32_t each = gate == SC_K_GATE_GDN ? 1 : dim;
    size_t cols = (size_t)heads * each;
    struct sw_tensor a = sw_tensor(dtype, tokens, cols), b = sw_tensor(dtype, tokens, heads);
    struct sw_error eg = {0}, eb = {0};
    float size = sw_chance(0.2) ? 20.0f : 2.0f;
    bool no_log = gate == SC_K_GATE_KDA_BOUNDED && sw_chance(0.3), doubled = sw_chance(0.3);
    sw_note(" %d gate %d tokens %u heads %u dim %u", (int)dtype, (int)gate, tokens, heads, dim);
    sw_fill(&a, 0, tokens, size), sw_fill(&b, 0, tokens, size);
    float *a_log = rig_normal(&sw_prng, heads, 0.7f), *dt = rig_normal(&sw_prng, cols, 1.0f);
    float *g = rig_alloc(tokens * cols * 4), *beta = rig_alloc((size_t)tokens * heads * 4);
    const sc_k_gates_params p = {.a = sw_ptr(&a), .b = sw_ptr(&b), .a_stride = a.pitch,
        .b_stride = b.pitch, .dtype = dtype, .weights = {.gate = gate,
            .a_log = no_log ? 0 : sc_host_devptr(a_log), .dt_bias = sc_host_devptr(dt),
            .dt_bias_dtype = SC_DTYPE_F32, .lower_bound = -5.0f, .beta_doubled = doubled},
        .token_count = tokens, .heads = heads, .dim = dim, .g = sc_host_devptr(g),
        .beta = sc_host_devptr(beta)};
    RIG_OK(sc_k_gates(NULL, &p, NULL));
    double *want = rig_alloc(cols * sizeof *want);
    for (uint32_t t = 0; t < tokens; t++) {
        for (size_t i = 0; i < cols; i++) {
            want[i] = f64_gate((int)gate, sw_wide(&a, t)[i],
                no_log ? 0.0 : (double)a_log[i / each], (double)dt[i], -5.0);
            SW_ASSERT(g[t * cols + i] <= 0.0f);
        }
        sw_add(&eg, g + t * cols, SC_DTYPE_F32, want, cols);
        for (size_t h = 0; h < heads; h++)
            want[h] = (doubled ? 2.0 : 1.0) * f64_sigmoid(sw_wide(&b, t)[h]);
        sw_add(&eb, beta + (size_t)t * heads, SC_DTYPE_F32, want, heads);
    }
    sw_within(&eg, "g", 2e-6), sw_within(&eb, "beta", 2e-6);
    free(want), free(a_log), free(dt), free(g), free(beta), sw_free(&a), sw_free(&b);
}
END_TEST

START_TEST(sweep__norms)
{
    sw_open("norms", _i);
    sc_dtype dtype = sw_dtype(), z_dtype = sw_chance(0.7) ? dtype : sw_dtype();
    uint32_t tokens = 1 + sw_below(30), heads = 1 + sw_below(5), dim = sw_dim(256);
    bool first = sw_chance(0.5), own = sw_chance(0.5);
    sc_k_act act = sw_chance(0.5) ? SC_K_ACT_SILU : SC_K_ACT_SIGMOID;
    size_t cols = (size_t)heads * dim;
    struct sw_tensor x = sw_tensor(dtype, tokens, cols), y = sw_tensor(dtype, tokens, cols);
    struct sw_tensor z = sw_tensor(z_dtype, tokens, cols), l2 = sw_tensor(dtype, tokens, cols);
    struct sw_tensor w = sw_dense(SC_DTYPE_BF16, own ? heads : 1, dim, 1.0f);
    struct sw_error e = {0}, e2 = {0};
    sw_note(" %d z %d tokens %u heads %u dim %u act %d gate first %d", (int)dtype, (int)z_dtype,
        tokens, heads, dim, (int)act, first);
    sw_fill(&x, 0, tokens, sw_chance(0.2) ? 1e-3f : 1.0f), sw_fill(&z, 0, tokens, 1.5f);
    const sc_k_gated_rmsnorm_params p = {.x = sw_ptr(&x), .z = sw_ptr(&z), .y = sw_ptr(&y),
        .x_stride = x.pitch, .z_stride = z.pitch, .y_stride = y.pitch, .dtype = dtype,
        .weight = sw_ptr(&w), .weight_dtype = SC_DTYPE_BF16, .weight_per_head = own,
        .gate_first = first, .act = act, .token_count = tokens, .heads = heads, .dim = dim,
        .eps = 1e-5f, .z_dtype = z_dtype};
    RIG_OK(sc_k_gated_rmsnorm(NULL, &p, NULL));
    const sc_k_l2norm_params n = {.x = sw_ptr(&x), .y = sw_ptr(&l2), .x_stride = x.pitch,
        .y_stride = l2.pitch, .dtype = dtype, .token_count = tokens, .heads = heads, .dim = dim};
    RIG_OK(sc_k_l2norm(NULL, &n, NULL));
    double want[256];
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < heads; h++) {
            size_t at = (size_t)h * dim, bytes = at * rig_elem(dtype);
            f64_gated_rmsnorm(want, sw_wide(&x, t) + at, sw_wide(&z, t) + at,
                sw_wide(&w, own ? h : 0), dim, 1e-5, (int)act, first);
            sw_add(&e, (uint8_t *)sw_row(&y, t) + bytes, dtype, want, dim);
            f64_l2norm(want, sw_wide(&x, t) + at, dim, 1e-6);
            sw_add(&e2, (uint8_t *)sw_row(&l2, t) + bytes, dtype, want, dim);
        }
    sw_within(&e, "rmsnorm", limit_of(dtype)), sw_within(&e2, "l2norm", limit_of(dtype));
    sw_gaps(&y, 0, tokens), sw_gaps(&l2, 0, tokens);
    sw_free(&x), sw_free(&y), sw_free(&z), sw_free(&l2), sw_free(&w);
}
END_TEST

START_TEST(sweep__products)
{
    sw_open("products", _i);
    sc_dtype dtype = sw_dtype(), weights = sw_dtype(), out = sw_dtype();
    uint32_t tokens = 1 + sw_below(20), in = 1 + sw_below(300), outs = 1 + sw_below(200);
    uint32_t rank = 1 + sw_below(130);
    struct sw_tensor x = sw_tensor(dtype, tokens, in), y = sw_tensor(out, tokens, outs);
    struct sw_tensor w = sw_dense(weights, outs, in, 0.1f), low = sw_tensor(out, tokens, outs);
    struct sw_tensor down = sw_dense(weights, rank, in, 0.1f);
    struct sw_tensor up = sw_dense(weights, outs, rank, 0.1f);
    struct sw_error e = {0}, e2 = {0};
    sw_note(" %d x %d > %d tokens %u in %u out %u rank %u", (int)dtype, (int)weights, (int)out,
        tokens, in, outs, rank);
    sw_fill(&x, 0, tokens, 1.0f);
    float *waist = rig_alloc((size_t)tokens * rank * 4);
    RIG_OK(sc_k_project(NULL, &(sc_k_project_params){.x = sw_ptr(&x), .weight = sw_ptr(&w),
        .y = sw_ptr(&y), .x_stride = x.pitch, .y_stride = y.pitch, .dtype = dtype,
        .weight_dtype = weights, .y_dtype = out, .in_dim = in, .out_dim = outs,
        .token_count = tokens}, NULL));
    RIG_OK(sc_k_low_rank(NULL, &(sc_k_low_rank_params){.x = sw_ptr(&x), .down = sw_ptr(&down),
        .up = sw_ptr(&up), .y = sw_ptr(&low), .x_stride = x.pitch, .y_stride = low.pitch,
        .dtype = dtype, .weight_dtype = weights, .y_dtype = out, .in_dim = in, .rank = rank,
        .out_dim = outs, .token_count = tokens, .scratch = sc_host_devptr(waist),
        .scratch_bytes = (uint64_t)tokens * rank * 4}, NULL));
    double *want = rig_alloc(outs * sizeof *want), mid[130];
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t o = 0; o < outs; o++) {
            want[o] = 0.0;
            for (uint32_t i = 0; i < in; i++) want[o] += sw_wide(&w, o)[i] * sw_wide(&x, t)[i];
        }
        sw_add(&e, sw_row(&y, t), out, want, outs);
        for (uint32_t r = 0; r < rank; r++) {
            mid[r] = 0.0;
            for (uint32_t i = 0; i < in; i++) mid[r] += sw_wide(&down, r)[i] * sw_wide(&x, t)[i];
        }
        for (uint32_t o = 0; o < outs; o++) {
            want[o] = 0.0;
            for (uint32_t r = 0; r < rank; r++) want[o] += sw_wide(&up, o)[r] * mid[r];
        }
        sw_add(&e2, sw_row(&low, t), out, want, outs);
    }
    sw_within(&e, "project", limit_of(out)), sw_within(&e2, "low rank", limit_of(out));
    sw_gaps(&y, 0, tokens), sw_gaps(&low, 0, tokens);
    free(want), free(waist), sw_free(&x), sw_free(&y), sw_free(&w), sw_free(&low);
    sw_free(&down), sw_free(&up);
}
END_TEST

START_TEST(sweep__columns)
{
    sw_open("split", _i);
    sc_dtype dtype = sw_dtype();
    uint32_t tokens = 1 + sw_below(40), qk = 1 + sw_below(200), v = 1 + sw_below(200);
    struct sw_tensor in = sw_tensor(dtype, tokens + 1, 2 * qk + v);
    struct sw_tensor out[3] = {sw_tensor(dtype, tokens + 1, qk), sw_tensor(dtype, tokens + 1, qk),
        sw_tensor(dtype, tokens + 1, v)};
    sw_fill(&in, 0, tokens, 1.0f);
    const sc_k_qkv_split_params p = {.qkv = sw_ptr(&in), .q = sw_ptr(&out[0]),
        .k = sw_ptr(&out[1]), .v = sw_ptr(&out[2]), .qkv_stride = in.pitch,
        .q_stride = out[0].pitch, .k_stride = out[1].pitch, .v_stride = out[2].pitch,
        .dtype = dtype, .qk_dim = qk, .v_dim = v, .token_count = tokens};
    RIG_OK(sc_k_qkv_split(NULL, &p, NULL));
    for (uint32_t t = 0, first; t < tokens; t++) {
        first = 0;
        for (int i = 0; i < 3; first += (uint32_t)out[i].cols, i++)
            SW_ASSERT(memcmp(sw_row(&out[i], t), (uint8_t *)sw_row(&in, t)
                + first * rig_elem(dtype), out[i].cols * rig_elem(dtype)) == 0);
    }
    for (int i = 0; i < 3; i++) sw_gaps(&out[i], 0, tokens), sw_free(&out[i]);
    sw_free(&in);
}
END_TEST

/* Slots to slots of another pool, fp32 and bf16, -1 skipped, 0 gives zeros: to the bit. */
START_TEST(sweep__movers)
{
    enum { MOVES = 12 };
    struct sw_pool from[2], to[2];
    sc_k_move_part parts[2];
    int32_t source[MOVES], dest[MOVES];
    sw_open("movers", _i);
    for (int i = 0; i < 2; i++) {
        uint32_t rows = 1 + sw_below(8), elems = 1 + sw_below(300);
        from[i] = sw_pool(sw_dtype(), (size_t)rows * elems);
        to[i] = sw_pool(sw_dtype(), (size_t)rows * elems);
        parts[i] = (sc_k_move_part){.from = from[i].p.slots, .to = to[i].p.slots, .rows = rows,
            .row_elems = elems};
        for (int32_t s = 1; s < SW_SLOTS; s += 2) sw_slot_fill(&from[i], s, 3.0f);
        sw_keep(&from[i]), sw_keep(&to[i]);
    }
    for (int32_t r = 0; r < MOVES; r++) {
        source[r] = sw_chance(0.15) ? -1 : sw_chance(0.15) ? 0
            : 1 + 2 * (int32_t)sw_below(SW_SLOTS / 2);
        dest[r] = sw_chance(0.15) ? -1 : 1 + r * 3;
    }
    const sc_k_move_params p = {.parts = parts, .part_count = 2, .row_count = MOVES,
        .source = sc_host_devptr(source), .dest = sc_host_devptr(dest)};
    RIG_OK(sc_k_move(NULL, &p, NULL));
    for (int i = 0; i < 2; i++) {
        size_t n = from[i].p.part_elems;
        double *want = rig_alloc(n * sizeof *want);
        for (int32_t r = 0; r < MOVES; r++) {
            if (source[r] < 0 || dest[r] < 0) continue;
            sw_state(&from[i], source[r], want);
            for (size_t k = 0; k < n && to[i].p.slots.dtype == SC_DTYPE_BF16; k++)
                want[k] = f64_bf16(want[k]);
            sw_slot_is(&to[i], dest[r], want, 0.0);
        }
        free(want), sw_untouched(&from[i]), sw_untouched(&to[i]);
        sw_pool_free(&from[i]), sw_pool_free(&to[i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_sweep_parts");
    const struct {
        const char *name;
        const TTest *test;
        int cases;
    } all[] = {{"conv", sweep__conv_prefill, 80}, {"update", sweep__conv_update, 60},
        {"conv_drafts", sweep__conv_drafts, 60}, {"cursor", sweep__conv_cursor, 40},
        {"gates", sweep__gates, 60}, {"norms", sweep__norms, 60},
        {"products", sweep__products, 60}, {"columns", sweep__columns, 30},
        {"movers", sweep__movers, 40}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        TCase *tcase = tcase_create(all[i].name);
        tcase_set_timeout(tcase, 600);
        tcase_add_loop_test(tcase, all[i].test, 0, sw_cases(all[i].cases));
        suite_add_tcase(suite, tcase);
    }
    TCase *reference = tcase_create("reference");
    tcase_add_test(reference, reference__agrees_with_the_fixtures);
    suite_add_tcase(suite, reference);
    return check_main(suite);
}

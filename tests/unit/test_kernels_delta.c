/* SPDX-License-Identifier: Apache-2.0 */
/* The delta rule against the float64 oracle: every fixture x form x dtypes. The fixtures cover GDN,
 * KDA with softplus and bounded gates, grouped v heads, start positions off the grid, ragged tails,
 * dims that are no multiple of a vector, beta up to 2, with and without l2norm, own scale. */
#include <check.h>
#include <stdlib.h>

#include "kernels_rig.h"
#include "support/check_main.h"
#include "oracle/fixture.h"

enum form { RECURRENT = 0, DECODE = 1, CHUNK_16 = 16, CHUNK_32 = 32, CHUNK_64 = 64 };
enum { SLOT_SOURCE = 1, SLOT_DEST = 2, SLOT_SAVE = 3, SLOTS = 8 };

static const char *const delta_files[] = {"delta_gdn", "delta_kda", "delta_kda_bounded",
    "delta_gdn_128", "delta_kda_128", "delta_gdn_odd", "delta_kda_odd"};
enum { DELTA_FILES = sizeof delta_files / sizeof delta_files[0] };

struct delta_case {
    struct fixture file;
    struct fixture_array shape, scale, q, k, v, s0, g, beta, o, save_pos, states;
    sc_k_delta_shape dims;
    uint32_t tokens;
    int32_t position;
};

static struct delta_case case_open(const char *name)
{
    struct delta_case c = {.file = fixture_open(SC_FIXTURE_DIR, name)};
    c.shape = fixture_get(&c.file, "shape");
    c.scale = fixture_get(&c.file, "scale");
    c.q = fixture_get(&c.file, "q");
    c.k = fixture_get(&c.file, "k");
    c.v = fixture_get(&c.file, "v");
    c.s0 = fixture_find(&c.file, "s0");
    c.g = fixture_get(&c.file, "g");
    c.beta = fixture_get(&c.file, "beta");
    c.o = fixture_get(&c.file, "o");
    c.save_pos = fixture_get(&c.file, "save_pos");
    c.states = fixture_get(&c.file, "states");
    c.dims = (sc_k_delta_shape){.kind = c.shape.i[6] ? SC_K_KIND_KDA : SC_K_KIND_GDN,
        .heads = (uint32_t)c.shape.i[0], .v_heads = (uint32_t)c.shape.i[1],
        .k_dim = (uint32_t)c.shape.i[2], .v_dim = (uint32_t)c.shape.i[3], .scale = c.scale.f[0],
        .qk_l2norm = c.shape.i[7] != 0};
    c.tokens = (uint32_t)c.shape.i[4];
    c.position = c.shape.i[5];
    return c;
}

static void case_close(struct delta_case *c)
{
    struct fixture_array *all[] = {&c->shape, &c->scale, &c->q, &c->k, &c->v, &c->s0, &c->g,
        &c->beta, &c->o, &c->save_pos, &c->states};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) fixture_free(all[i]);
    fixture_close(&c->file);
}

/* All tokens through the packed decode, one call each, in place. */
static void run_decode(const struct delta_case *c, sc_dtype dtype, const struct rig_pool *pool,
    int32_t source, void *o)
{
    size_t qk = (size_t)c->dims.heads * c->dims.k_dim, vo = (size_t)c->dims.v_heads * c->dims.v_dim;
    float *row = rig_alloc((2 * qk + vo) * 4);
    size_t g = c->g.count / c->tokens;
    for (uint32_t t = 0; t < c->tokens; t++) {
        memcpy(row, c->q.f + t * qk, qk * 4);
        memcpy(row + qk, c->k.f + t * qk, qk * 4);
        memcpy(row + 2 * qk, c->v.f + t * vo, vo * 4);
        void *qkv = rig_tensor(dtype, row, 2 * qk + vo);
        int32_t from = t == 0 ? source : SLOT_DEST, to = SLOT_DEST;
        int32_t save = t + 1 == c->tokens ? SLOT_SAVE : -1;
        sc_k_decode_packed_params p = {.qkv = sc_host_devptr(qkv),
            .o = sc_host_devptr((uint8_t *)o + t * vo * rig_elem(dtype)), .dtype = dtype,
            .g = sc_host_devptr(c->g.f + t * g),
            .beta = sc_host_devptr(c->beta.f + t * c->dims.v_heads), .shape = c->dims,
            .row_count = 1, .source = sc_host_devptr(&from), .dest = sc_host_devptr(&to),
            .save = sc_host_devptr(&save), .state = pool->slots};
        RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
        free(qkv);
    }
    free(row);
    rig_same_slots(pool, SLOT_SAVE, pool, SLOT_DEST);
}

/* The packed forms, saving at each listed position that the form can save at. */
static void run_packed(const struct delta_case *c, enum form form, sc_dtype dtype,
    const struct rig_pool *pool, int32_t source, void *o)
{
    void *q = rig_tensor(dtype, c->q.f, c->q.count), *k = rig_tensor(dtype, c->k.f, c->k.count);
    void *v = rig_tensor(dtype, c->v.f, c->v.count), *scratch = NULL;
    int32_t start[2] = {0, (int32_t)c->tokens}, dest = SLOT_DEST;
    int32_t row[SLOTS], slot[SLOTS];
    for (uint32_t i = 0; i < c->save_pos.count; i++) {
        bool fits = form == RECURRENT || c->save_pos.i[i] % (int32_t)form == 0;
        row[i] = fits ? 0 : -1; /* else padding */
        slot[i] = fits ? (int32_t)(SLOT_SAVE + i) : -1;
    }
    sc_k_delta_params p = {.q = sc_host_devptr(q), .k = sc_host_devptr(k),
        .v = sc_host_devptr(v), .o = sc_host_devptr(o), .dtype = dtype,
        .g = sc_host_devptr(c->g.f), .beta = sc_host_devptr(c->beta.f), .shape = c->dims,
        .token_count = c->tokens, .row_count = 1, .row_start = sc_host_devptr(start),
        .position = sc_host_devptr(&c->position), .source = sc_host_devptr(&source),
        .dest = sc_host_devptr(&dest),
        .saves = {sc_host_devptr(row), sc_host_devptr(c->save_pos.i), sc_host_devptr(slot),
            (uint32_t)c->save_pos.count},
        .state = pool->slots, .chunk = (uint32_t)form};
    if (form == RECURRENT) {
        RIG_OK(sc_k_delta_recurrent(NULL, &p, NULL));
    } else {
        RIG_OK(sc_k_delta_chunk_scratch(NULL, &p, &p.scratch_bytes));
        scratch = rig_alloc(p.scratch_bytes);
        p.scratch = sc_host_devptr(scratch);
        RIG_OK(sc_k_delta_chunk(NULL, &p, NULL));
    }
    free(q), free(k), free(v), free(scratch);
}

static void check_ratio(const char *what, const char *file, enum form form, const float *got,
    const float *want, size_t count, double limit)
{
    double ratio = fixture_rmse_ratio(got, want, count);
    if (getenv("SC_TEST_SHOW") != NULL)
        fprintf(stderr, "%-18s form %2d %-6s %.2e (limit %.0e)\n", file, (int)form, what, ratio,
            limit);
    ck_assert_msg(ratio < limit, "%s, form %d: %s: RMSE ratio %.3e, limit %.0e", file, (int)form,
        what, ratio, limit);
}

static void run_case(const char *name, enum form form, sc_dtype dtype, sc_dtype state,
    double limit)
{
    struct delta_case c = case_open(name);
    size_t elems = c.states.count / c.save_pos.count;
    struct rig_pool pool = rig_pool(state, elems, SLOTS, 0, 0);
    int32_t source = c.s0.count != 0 ? SLOT_SOURCE : 0;
    if (source > 0) rig_put(rig_slot(&pool, source), state, c.s0.f, elems);
    void *o = rig_tensor(dtype, NULL, c.o.count);
    if (form == DECODE)
        run_decode(&c, dtype, &pool, source, o);
    else
        run_packed(&c, form, dtype, &pool, source, o);

    float *got = rig_alloc((c.o.count > elems ? c.o.count : elems) * 4);
    rig_read(got, o, dtype, c.o.count);
    check_ratio("o", name, form, got, c.o.f, c.o.count, limit);
    size_t last = c.save_pos.count - 1;
    rig_read(got, rig_slot(&pool, SLOT_DEST), state, elems);
    check_ratio("state", name, form, got, c.states.f + last * elems, elems, limit);
    for (size_t i = 0; i <= last && form != DECODE; i++) {
        if (form != RECURRENT && c.save_pos.i[i] % (int32_t)form != 0) {
            rig_untouched(&pool, (int32_t)(SLOT_SAVE + i));
            continue;
        }
        rig_read(got, rig_slot(&pool, (int32_t)(SLOT_SAVE + i)), state, elems);
        check_ratio("save", name, form, got, c.states.f + i * elems, elems, limit);
    }
    rig_untouched(&pool, 0);
    rig_untouched(&pool, SLOTS - 1);
    free(got), free(o), free(pool.memory);
    case_close(&c);
}

static const enum form forms[] = {RECURRENT, DECODE, CHUNK_16, CHUNK_32, CHUNK_64};
enum { FORMS = sizeof forms / sizeof forms[0] };

START_TEST(delta__fp32_matches_float64)
{
    for (int f = 0; f < FORMS; f++)
        run_case(delta_files[_i], forms[f], SC_DTYPE_F32, SC_DTYPE_F32, 2e-5);
}
END_TEST

START_TEST(delta__bf16_tensors_match_float64)
{
    for (int f = 0; f < FORMS; f++)
        run_case(delta_files[_i], forms[f], SC_DTYPE_BF16, SC_DTYPE_F32, 3e-3);
}
END_TEST

START_TEST(delta__bf16_states_match_float64)
{
    for (int f = 0; f < FORMS; f++) { /* rounded after each token: more rounding, wider limit */
        bool chunk = forms[f] >= CHUNK_16;
        run_case(delta_files[_i], forms[f], SC_DTYPE_F32, SC_DTYPE_BF16, chunk ? 5e-3 : 1.5e-2);
        run_case(delta_files[_i], forms[f], SC_DTYPE_BF16, SC_DTYPE_BF16, chunk ? 5e-3 : 1.5e-2);
    }
}
END_TEST

/* A packed decode that computes its gates itself. */
static void run_raw_decode(const char *name, sc_k_gate gate, sc_dtype dtype, double limit)
{
    struct fixture file = fixture_open(SC_FIXTURE_DIR, name);
    struct fixture_array shape = fixture_get(&file, "shape"), qkv = fixture_get(&file, "qkv");
    struct fixture_array a = fixture_get(&file, "a"), b = fixture_get(&file, "b");
    struct fixture_array s0 = fixture_get(&file, "s0"), a_log = fixture_get(&file, "a_log");
    struct fixture_array dt_bias = fixture_get(&file, "dt_bias"), o = fixture_get(&file, "o");
    struct fixture_array states = fixture_get(&file, "states");
    uint32_t rows = (uint32_t)shape.i[4];
    size_t elems = states.count / rows;
    struct rig_pool pool = rig_pool(SC_DTYPE_F32, elems, 2 * rows + 1, 0, 0);
    int32_t source[8], dest[8];
    for (uint32_t r = 0; r < rows; r++) {
        source[r] = (int32_t)(2 * r + 1);
        dest[r] = (int32_t)(2 * r + 2);
        rig_put(rig_slot(&pool, source[r]), SC_DTYPE_F32, s0.f + r * elems, elems);
    }
    void *t[] = {rig_tensor(dtype, qkv.f, qkv.count), rig_tensor(dtype, a.f, a.count),
        rig_tensor(dtype, b.f, b.count), rig_tensor(dtype, NULL, o.count)};
    sc_k_decode_packed_params p = {.qkv = sc_host_devptr(t[0]), .o = sc_host_devptr(t[3]),
        .dtype = dtype, .a = sc_host_devptr(t[1]), .b = sc_host_devptr(t[2]),
        .weights = {.gate = gate, .a_log = sc_host_devptr(a_log.f),
            .dt_bias = sc_host_devptr(dt_bias.f), .dt_bias_dtype = SC_DTYPE_F32,
            .lower_bound = -5.0f},
        .shape = {.kind = gate == SC_K_GATE_GDN ? SC_K_KIND_GDN : SC_K_KIND_KDA,
            .heads = (uint32_t)shape.i[0], .v_heads = (uint32_t)shape.i[1],
            .k_dim = (uint32_t)shape.i[2], .v_dim = (uint32_t)shape.i[3], .qk_l2norm = true},
        .row_count = rows, .source = sc_host_devptr(source), .dest = sc_host_devptr(dest),
        .state = pool.slots};
    RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
    float *got = rig_alloc(o.count * 4);
    rig_read(got, t[3], dtype, o.count);
    check_ratio("o", name, DECODE, got, o.f, o.count, limit);
    for (uint32_t r = 0; r < rows; r++)
        check_ratio("state", name, DECODE, rig_slot(&pool, dest[r]), states.f + r * elems, elems,
            2e-5);
    struct fixture_array *all[] = {&shape, &qkv, &a, &b, &s0, &a_log, &dt_bias, &o, &states};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) fixture_free(all[i]);
    for (int i = 0; i < 4; i++) free(t[i]);
    free(got), free(pool.memory), fixture_close(&file);
}

START_TEST(decode__computes_its_gates)
{
    run_raw_decode("decode_gdn", SC_K_GATE_GDN, SC_DTYPE_F32, 2e-5);
    run_raw_decode("decode_kda", SC_K_GATE_KDA_SOFTPLUS, SC_DTYPE_F32, 2e-5);
    run_raw_decode("decode_kda_bounded", SC_K_GATE_KDA_BOUNDED, SC_DTYPE_F32, 2e-5);
    run_raw_decode("decode_gdn", SC_K_GATE_GDN, SC_DTYPE_BF16, 3e-3);
    run_raw_decode("decode_kda", SC_K_GATE_KDA_SOFTPLUS, SC_DTYPE_BF16, 3e-3);
    run_raw_decode("decode_kda_bounded", SC_K_GATE_KDA_BOUNDED, SC_DTYPE_BF16, 3e-3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_delta");
    TCase *oracle = tcase_create("oracle");
    tcase_set_timeout(oracle, 120);
    tcase_add_loop_test(oracle, delta__fp32_matches_float64, 0, DELTA_FILES);
    tcase_add_loop_test(oracle, delta__bf16_tensors_match_float64, 0, DELTA_FILES);
    tcase_add_loop_test(oracle, delta__bf16_states_match_float64, 0, DELTA_FILES);
    tcase_add_test(oracle, decode__computes_its_gates);
    suite_add_tcase(suite, oracle);
    return check_main(suite);
}

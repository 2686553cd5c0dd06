/* SPDX-License-Identifier: Apache-2.0 */
/* The causal conv: against the oracle, and bit for bit under cuts, packing, layouts and saves. */
#include <check.h>

#include "kernels_rig.h"
#include "support/check_main.h"
#include "oracle/fixture.h"

enum { SLOTS = 16 };

/* ---- oracle ---- */

static const char *const conv_files[] = {"conv_w2", "conv_w3", "conv_w4"};

static void run_fixture(const char *name, sc_dtype dtype, sc_dtype window, double limit)
{
    struct fixture file = fixture_open(SC_FIXTURE_DIR, name);
    struct fixture_array shape = fixture_get(&file, "shape"), x = fixture_get(&file, "x");
    struct fixture_array weight = fixture_get(&file, "weight");
    struct fixture_array bias = fixture_find(&file, "bias"), y = fixture_get(&file, "y");
    struct fixture_array w0 = fixture_get(&file, "window"), ws = fixture_get(&file, "windows");
    uint32_t channels = (uint32_t)shape.i[0], width = (uint32_t)shape.i[1];
    uint32_t tokens = (uint32_t)shape.i[2];
    size_t elems = (size_t)(width - 1) * channels;
    struct rig_pool pool = rig_pool(window, elems, SLOTS, 0, 0);
    rig_put(rig_slot(&pool, 1), window, w0.f, elems);
    void *tx = rig_tensor(dtype, x.f, x.count), *ty = rig_tensor(dtype, NULL, y.count);
    void *tw = rig_tensor(dtype, weight.f, weight.count);
    void *tb = bias.count > 0 ? rig_tensor(dtype, bias.f, bias.count) : NULL;
    int32_t start[2] = {0, (int32_t)tokens}, position = 5, source = 1, dest = 2;
    int32_t row[SLOTS] = {0}, pos[SLOTS], slot[SLOTS];
    for (uint32_t t = 0; t < tokens; t++) { /* a save after each token */
        pos[t] = position + (int32_t)t + 1;
        slot[t] = 3 + (int32_t)t;
    }
    sc_k_conv_prefill_params p = {.x = sc_host_devptr(tx), .y = sc_host_devptr(ty),
        .dtype = dtype, .weight = sc_host_devptr(tw), .bias = sc_host_devptr(tb),
        .weight_dtype = dtype, .act = shape.i[3] ? SC_K_ACT_SILU : SC_K_ACT_IDENTITY,
        .channels = channels, .width = width, .token_count = tokens, .row_count = 1,
        .row_start = sc_host_devptr(start), .position = sc_host_devptr(&position),
        .source = sc_host_devptr(&source), .dest = sc_host_devptr(&dest),
        .saves = {sc_host_devptr(row), sc_host_devptr(pos), sc_host_devptr(slot), tokens},
        .window = pool.slots};
    RIG_OK(sc_k_conv_prefill(NULL, &p, NULL));
    float *got = rig_alloc(y.count * 4);
    rig_read(got, ty, dtype, y.count);
    ck_assert_double_lt(fixture_rmse_ratio(got, y.f, y.count), limit);
    for (uint32_t t = 0; t < tokens; t++) { /* windows are raw inputs: exact */
        rig_read(got, rig_slot(&pool, slot[t]), window, elems);
        ck_assert_mem_eq(got, ws.f + t * elems, elems * 4);
    }
    rig_same_slots(&pool, 2, &pool, slot[tokens - 1]);
    rig_untouched(&pool, 0);
    struct fixture_array *all[] = {&shape, &x, &weight, &bias, &y, &w0, &ws};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) fixture_free(all[i]);
    free(tx), free(ty), free(tw), free(tb), free(got), free(pool.memory);
    fixture_close(&file);
}

START_TEST(conv__matches_float64_and_windows_exactly)
{
    run_fixture(conv_files[_i], SC_DTYPE_F32, SC_DTYPE_F32, 2e-5);
    run_fixture(conv_files[_i], SC_DTYPE_F32, SC_DTYPE_BF16, 2e-5); /* inputs are bf16 numbers */
    run_fixture(conv_files[_i], SC_DTYPE_BF16, SC_DTYPE_BF16, 3e-3);
    run_fixture(conv_files[_i], SC_DTYPE_BF16, SC_DTYPE_F32, 3e-3);
}
END_TEST

/* ---- bits ---- */

enum { TOKENS = 30, CHANNELS_MAX = 300 };

struct conv_case {
    uint32_t channels, width;
    sc_dtype dtype, window;
    size_t stride, offset;
    void *x, *weight, *bias;
    struct rig_pool pool;
    uint8_t *y;
};

static struct conv_case conv_open(int i, size_t stride, size_t offset)
{
    static const uint32_t channels[] = {7, 128, CHANNELS_MAX};
    struct conv_case c = {.channels = channels[i % 3], .width = 2 + (uint32_t)(i / 3 % 3),
        .dtype = i / 9 % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32,
        .window = i / 18 % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32};
    struct sc_prng prng;
    sc_prng_seed(&prng, 5);
    float *data = rig_normal(&prng, (TOKENS + 8) * CHANNELS_MAX, 1.0f);
    size_t n = c.channels, elems = (c.width - 1) * n;
    c.x = rig_tensor(c.dtype, data, TOKENS * n);
    c.weight = rig_tensor(c.dtype, data + TOKENS * n, n * c.width);
    c.bias = rig_tensor(c.dtype, data + TOKENS * n + n * c.width, n);
    c.pool = rig_pool(c.window, elems, SLOTS, stride ? stride + elems * 4 : 0, offset);
    rig_put(rig_slot(&c.pool, 1), c.window, data + 3, elems);
    c.y = rig_tensor(c.dtype, NULL, (TOKENS + 1) * n);
    free(data);
    return c;
}

static void conv_close(struct conv_case *c)
{
    free(c->x), free(c->weight), free(c->bias), free(c->pool.memory), free(c->y);
}

static size_t token_bytes(const struct conv_case *c)
{
    return c->channels * rig_elem(c->dtype);
}

/* Tokens [from, to) of the one sequence (it begins at position 11). */
static void conv_run(struct conv_case *c, uint32_t from, uint32_t to, int32_t source, int32_t dest,
    const struct rig_save *saves, uint32_t save_count)
{
    int32_t start[2] = {0, (int32_t)(to - from)}, position = 11 + (int32_t)from;
    int32_t row[4], pos[4], slot[4];
    for (uint32_t i = 0; i < save_count; i++) {
        row[i] = saves[i].row;
        pos[i] = saves[i].pos;
        slot[i] = saves[i].slot;
    }
    sc_k_conv_prefill_params p = {.x = sc_host_devptr((uint8_t *)c->x + from * token_bytes(c)),
        .y = sc_host_devptr(c->y + from * token_bytes(c)), .dtype = c->dtype,
        .weight = sc_host_devptr(c->weight), .bias = sc_host_devptr(c->bias),
        .weight_dtype = c->dtype, .act = SC_K_ACT_SILU, .channels = c->channels,
        .width = c->width, .token_count = to - from, .row_count = 1,
        .row_start = sc_host_devptr(start), .position = sc_host_devptr(&position),
        .source = sc_host_devptr(&source), .dest = sc_host_devptr(&dest),
        .saves = {sc_host_devptr(row), sc_host_devptr(pos), sc_host_devptr(slot), save_count},
        .window = c->pool.slots};
    RIG_OK(sc_k_conv_prefill(NULL, &p, NULL));
}

static void same_y(const struct conv_case *a, const struct conv_case *b, uint32_t tokens)
{
    ck_assert_mem_eq(a->y, b->y, tokens * token_bytes(a));
}

START_TEST(conv__cut_anywhere_equals_uncut)
{
    struct conv_case one = conv_open(_i, 0, 0), two = conv_open(_i, 0, 0);
    conv_run(&one, 0, TOKENS, 1, 2, NULL, 0);
    uint32_t at = 0; /* pieces of 1, 2, 3, ... tokens: shorter and longer than the window */
    for (uint32_t n = 1; at < TOKENS; at += n++) {
        uint32_t to = at + n < TOKENS ? at + n : TOKENS;
        conv_run(&two, at, to, at == 0 ? 1 : 2, 2, NULL, 0);
        n = to - at;
    }
    same_y(&one, &two, TOKENS);
    rig_same_slots(&one.pool, 2, &two.pool, 2);
    rig_all_bytes(one.y + TOKENS * token_bytes(&one), token_bytes(&one), 0xff);
    conv_close(&one), conv_close(&two);
}
END_TEST

START_TEST(conv__saves_reach_into_old_history)
{
    struct conv_case one = conv_open(_i, 0, 0), two = conv_open(_i, 0, 0);
    const struct rig_save saves[] = {{0, 11 + TOKENS, 6}, {0, 12, 3}, {-1, 0, -1}, {0, 13, 4}};
    conv_run(&one, 0, TOKENS, 1, 2, saves, 4);
    conv_run(&two, 0, 1, 1, 3, NULL, 0);
    conv_run(&two, 0, 2, 1, 4, NULL, 0);
    conv_run(&two, 0, TOKENS, 1, 2, NULL, 0);
    same_y(&one, &two, TOKENS);
    rig_same_slots(&one.pool, 3, &two.pool, 3);
    rig_same_slots(&one.pool, 4, &two.pool, 4);
    rig_same_slots(&one.pool, 6, &two.pool, 2);
    rig_same_slots(&one.pool, 2, &two.pool, 2);
    conv_close(&one), conv_close(&two);
}
END_TEST

START_TEST(conv__layouts_agree_and_gaps_stay)
{
    struct conv_case one = conv_open(_i, 0, 0), two = conv_open(_i, 512, 256);
    conv_run(&one, 0, TOKENS, 1, 2, NULL, 0);
    conv_run(&two, 0, TOKENS, 1, 2, NULL, 0);
    same_y(&one, &two, TOKENS);
    rig_same_slots(&one.pool, 2, &two.pool, 2);
    size_t dense = rig_part_bytes(&two.pool);
    for (int32_t s = 0; s + 1 < SLOTS; s++)
        rig_all_bytes((uint8_t *)rig_slot(&two.pool, s) + dense,
            (size_t)two.pool.slots.slot_stride - dense, 0xff);
    conv_close(&one), conv_close(&two);
}
END_TEST

START_TEST(conv__update_equals_prefill_of_one_token)
{
    struct conv_case one = conv_open(_i, 0, 0), two = conv_open(_i, 0, 0);
    conv_run(&one, 0, TOKENS, 1, 2, &(struct rig_save){0, 11 + 20, 5}, 1);
    for (uint32_t t = 0; t < TOKENS; t++) {
        int32_t source = t == 0 ? 1 : 2 + (int32_t)(t & 1), dest = 3 - (int32_t)(t & 1);
        int32_t save = t == 19 ? 5 : -1;
        sc_k_conv_update_params p = {
            .x = sc_host_devptr((uint8_t *)two.x + t * token_bytes(&two)),
            .y = sc_host_devptr(two.y + t * token_bytes(&two)), .dtype = two.dtype,
            .weight = sc_host_devptr(two.weight), .bias = sc_host_devptr(two.bias),
            .weight_dtype = two.dtype, .act = SC_K_ACT_SILU, .channels = two.channels,
            .width = two.width, .row_count = 1, .source = sc_host_devptr(&source),
            .dest = sc_host_devptr(&dest), .save = sc_host_devptr(&save),
            .window = two.pool.slots};
        RIG_OK(sc_k_conv_update(NULL, &p, NULL));
    }
    same_y(&one, &two, TOKENS);
    rig_same_slots(&one.pool, 2, &two.pool, 2);
    rig_same_slots(&one.pool, 5, &two.pool, 5);
    for (int32_t s = 6; s < SLOTS; s++) rig_untouched(&two.pool, s);
    conv_close(&one), conv_close(&two);
}
END_TEST

START_TEST(conv__packed_rows_are_independent)
{
    struct conv_case one = conv_open(_i, 0, 0), two = conv_open(_i, 0, 0);
    conv_run(&one, 0, 4, 0, 3, NULL, 0); /* from zero: slot 0 is poison and must not be read */
    conv_run(&one, 9, TOKENS, 1, 2, NULL, 0);
    /* 0..3 a row, 4 a padded row of tokens, nothing, 5..8 another padded one, 9.. a row, padding */
    int32_t start[] = {0, 4, 5, 5, 9, TOKENS, -1, -1};
    int32_t source[] = {0, -1, 1, -1, 1, -1, -1}, dest[] = {3, 9, 4, -1, 2, -1, -1};
    sc_k_conv_prefill_params p = {.x = sc_host_devptr(two.x), .y = sc_host_devptr(two.y),
        .dtype = two.dtype, .weight = sc_host_devptr(two.weight),
        .bias = sc_host_devptr(two.bias), .weight_dtype = two.dtype, .act = SC_K_ACT_SILU,
        .channels = two.channels, .width = two.width, .token_count = TOKENS, .row_count = 7,
        .row_start = sc_host_devptr(start), .source = sc_host_devptr(source),
        .dest = sc_host_devptr(dest), .window = two.pool.slots};
    RIG_OK(sc_k_conv_prefill(NULL, &p, NULL));
    size_t row = token_bytes(&two);
    ck_assert_mem_eq(two.y, one.y, 4 * row);
    rig_all_bytes(two.y + 4 * row, 5 * row, 0);
    ck_assert_mem_eq(two.y + 9 * row, one.y + 9 * row, (TOKENS - 9) * row);
    rig_same_slots(&two.pool, 3, &one.pool, 3);
    rig_same_slots(&two.pool, 2, &one.pool, 2);
    rig_same_slots(&two.pool, 1, &one.pool, 1);
    rig_same_slots(&two.pool, 4, &one.pool, 1); /* empty: source to dest as it is */
    rig_untouched(&two.pool, 0);
    for (int32_t s = 5; s < SLOTS; s++) rig_untouched(&two.pool, s);
    conv_close(&one), conv_close(&two);
}
END_TEST

START_TEST(conv__slots_beyond_2_32_elements)
{
    struct conv_case one = conv_open(_i, 0, 0), two = conv_open(_i, 0, 0);
    struct sc_backend_memory memory = {0};
    RIG_OK(sc_backend_alloc(sc_backend_host(), (uint64_t)20 << 30, &memory));
    struct rig_pool near = two.pool;
    two.pool.slots.base = memory.base;
    two.pool.slots.slot_stride = (int64_t)1 << 30;
    two.pool.slots.slot_count = 20;
    memcpy(rig_slot(&two.pool, 17), rig_slot(&near, 1), rig_part_bytes(&near));
    conv_run(&one, 0, TOKENS, 1, 2, NULL, 0);
    conv_run(&two, 0, TOKENS, 17, 19, NULL, 0);
    same_y(&one, &two, TOKENS);
    rig_same_slots(&one.pool, 2, &two.pool, 19);
    sc_backend_free(sc_backend_host(), &memory);
    conv_close(&one), conv_close(&two);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_conv");
    TCase *oracle = tcase_create("oracle"), *bits = tcase_create("bits");
    tcase_set_timeout(oracle, 60);
    tcase_set_timeout(bits, 60);
    tcase_add_loop_test(oracle, conv__matches_float64_and_windows_exactly, 0, 3);
    tcase_add_loop_test(bits, conv__cut_anywhere_equals_uncut, 0, 36);
    tcase_add_loop_test(bits, conv__saves_reach_into_old_history, 0, 36);
    tcase_add_loop_test(bits, conv__layouts_agree_and_gaps_stay, 0, 36);
    tcase_add_loop_test(bits, conv__update_equals_prefill_of_one_token, 0, 36);
    tcase_add_loop_test(bits, conv__packed_rows_are_independent, 0, 36);
    tcase_add_loop_test(bits, conv__slots_beyond_2_32_elements, 0, 3);
    suite_add_tcase(suite, oracle);
    suite_add_tcase(suite, bits);
    return check_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Generator, ideal, arithmetic, page ids, bars, sample of witnesses. */
#include "test_bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bars.h"
#include "base/prng.h"
#include "bench_common.h"
#include "dense.h"
#include "ideal.h"
#include "page_ids.h"
#include "witness.h"
#include "workload.h"

/* ------------------------------------------------------------------------------------ generator */

static void generate(struct workload *workload, uint64_t seed)
{
    struct generator_options options = GENERATOR_OPTIONS_INIT;
    options.seed = seed;
    workload_init(workload, 512);
    generator_fill(workload, &options);
    ck_assert_uint_eq(workload->request_count, options.requests);
}

START_TEST(generator__same_seed_same_workload)
{
    struct workload a, b, c;
    generate(&a, 5);
    generate(&b, 5);
    generate(&c, 6);
    ck_assert_uint_eq(a.segment_count, b.segment_count);
    ck_assert_mem_eq(a.segments, b.segments, a.segment_count * sizeof *a.segments);
    ck_assert_mem_eq(a.requests, b.requests, a.request_count * sizeof *a.requests);
    ck_assert(memcmp(a.requests, c.requests, a.request_count * sizeof *a.requests) != 0);
    workload_free(&a);
    workload_free(&b);
    workload_free(&c);
}
END_TEST

START_TEST(generator__follow_ups_come_after_and_sessions_share_prompts)
{
    struct workload w;
    uint32_t chats = 0, branches = 0, first = 0;
    generate(&w, 1);
    for (size_t i = 0; i < w.request_count; i++) {
        const struct bench_request *r = &w.requests[i];
        ck_assert_uint_gt(r->prompt_len, 0);
        ck_assert_uint_gt(r->output_len, 0);
        ck_assert_int_eq(r->pred, r->after);
        ck_assert_int_lt(r->pred, (int)i);
        first += r->pred < 0;
        chats += r->from == PROMPT_AFTER_OUTPUT;
        branches += r->from == PROMPT_AFTER_PROMPT;
    }
    ck_assert_uint_gt(first, 24);
    ck_assert_uint_gt(chats, 48);
    ck_assert_uint_gt(branches, 48);
    workload_materialize(&w, 0);
    size_t sharing = 0;
    for (size_t i = 1; i < w.request_count; i++) {
        if (w.requests[i].pred >= 0)
            continue;
        workload_materialize(&w, i);
        sharing += memcmp(w.requests[0].tokens, w.requests[i].tokens, 64 * sizeof(int32_t)) == 0;
    }
    ck_assert_uint_gt(sharing, 4);
    ck_assert_uint_lt(sharing, first - 4);
    workload_free(&w);
}
END_TEST

/* ---------------------------------------------------------------------------------------- ideal */

START_TEST(ideal__hand_made_case)
{
    struct ideal *end = ideal_create(1, IDEAL_END);
    struct ideal *both = ideal_create(1, IDEAL_END | IDEAL_BRANCH);
    const int32_t a[] = {1, 2, 3, 4, 9}, b[] = {1, 2, 3, 5, 5, 5}, c[] = {1, 2, 3, 7};
    ck_assert_uint_eq(ideal_serve(end, a, 4, 5), 0);
    ck_assert_uint_eq(ideal_serve(both, a, 4, 5), 0);
    ck_assert_uint_eq(ideal_serve(end, b, 6, 6), 0); /* shares 3, no state there */
    ck_assert_uint_eq(ideal_serve(both, b, 6, 6), 0);
    ck_assert_uint_eq(ideal_serve(end, c, 4, 4), 0);
    ck_assert_uint_eq(ideal_serve(both, c, 4, 4), 3); /* the branch point that b found */
    const int32_t d[] = {1, 2, 3, 4, 9, 8};
    ck_assert_uint_eq(ideal_serve(end, d, 6, 6), 5); /* a's end */
    ck_assert_uint_eq(ideal_serve(end, d, 6, 6), 5); /* itself, but one token is left */
    ideal_destroy(end);
    ideal_destroy(both);
}
END_TEST

enum { SEQUENCES = 120, LENGTH = 24 };

/* The same by comparing with every earlier sequence. */
struct naive {
    int32_t tokens[SEQUENCES][LENGTH];
    uint32_t total[SEQUENCES], saved[SEQUENCES][3], count;
};

static uint32_t shared_len(const struct naive *n, uint32_t a, const int32_t *tokens, uint32_t max)
{
    uint32_t at = 0;
    while (at < max && at < n->total[a] && n->tokens[a][at] == tokens[at])
        at++;
    return at;
}

static uint32_t naive_serve(struct naive *n, uint32_t unit, const int32_t *tokens,
    uint32_t prompt, uint32_t total)
{
    uint32_t usable = (prompt - 1) / unit * unit, whole = total / unit * unit, best = 0, lcp = 0;
    usable = usable < whole ? usable : whole;
    for (uint32_t i = 0; i < n->count; i++) {
        uint32_t shared = shared_len(n, i, tokens, usable) / unit * unit;
        lcp = shared > lcp ? shared : lcp;
        for (int j = 0; j < 3; j++)
            if (n->saved[i][j] <= shared && n->saved[i][j] > best)
                best = n->saved[i][j];
    }
    uint32_t at = n->count++;
    memcpy(n->tokens[at], tokens, total * sizeof *tokens);
    n->total[at] = whole;
    n->saved[at][0] = whole;
    n->saved[at][1] = lcp > best ? lcp : 0;
    n->saved[at][2] = prompt / unit * unit;
    return best;
}

START_TEST(ideal__equals_a_comparison_with_every_earlier_sequence)
{
    uint32_t unit = (uint32_t)_i;
    struct naive *naive = calloc(1, sizeof *naive);
    struct ideal *ideal = ideal_create(unit, IDEAL_END | IDEAL_BRANCH | IDEAL_PROMPT_END);
    struct sc_prng prng;
    sc_prng_seed(&prng, 77);
    uint64_t hits = 0;
    for (int i = 0; i < SEQUENCES; i++) {
        int32_t tokens[LENGTH];
        uint32_t total = 1 + (uint32_t)sc_prng_below(&prng, LENGTH);
        uint32_t prompt = 1 + (uint32_t)sc_prng_below(&prng, total);
        for (uint32_t j = 0; j < total; j++)
            tokens[j] = (int32_t)sc_prng_below(&prng, j < 12 ? 2 : 3);
        uint32_t wanted = naive_serve(naive, unit, tokens, prompt, total);
        ck_assert_uint_eq(ideal_serve(ideal, tokens, prompt, total), wanted);
        hits += wanted;
    }
    ck_assert_uint_gt(hits, 50);
    ideal_destroy(ideal);
    free(naive);
}
END_TEST

/* ----------------------------------------------------------------------------------- arithmetic */

/* One row to more than two tiles of them: each has the bits of a sum that fuses its products. */
START_TEST(dense__rows_do_not_depend_on_the_batch)
{
    enum { ROWS = 19, IN = 40, OUT = 75 };
    float x[ROWS * IN], w[IN * OUT], packed[IN * OUT], all[ROWS * OUT];
    size_t rows = 1 + (size_t)_i;
    struct sc_prng prng;
    sc_prng_seed(&prng, 3);
    for (size_t i = 0; i < ROWS * IN; i++)
        x[i] = (float)sc_prng_normal(&prng);
    for (size_t i = 0; i < IN * OUT; i++)
        w[i] = packed[i] = (float)sc_prng_normal(&prng);
    dense_pack(packed, IN, OUT);
    dense_apply(x, packed, all, rows, IN, OUT);
    for (size_t t = 0; t < rows; t++)
        for (size_t n = 0; n < OUT; n++) {
            float sum = 0;
            for (size_t k = 0; k < IN; k++)
                sum = fmaf(x[t * IN + k], w[k * OUT + n], sum);
            ck_assert_msg(sum == all[t * OUT + n], "row %zu, output %zu", t, n);
        }
}
END_TEST

/* Dims that fill vectors of each width, and some that do not; counts around a tile of rows. */
START_TEST(dense__attention_sums_in_one_order)
{
    enum { COUNT_MAX = 37, DIM_MAX = 136, KEY = 3 };
    static const size_t dims[] = {8, 16, 24, 64, 72, 136}, counts[] = {1, 2, 7, 8, 9, 16, 37};
    static float rows[COUNT_MAX][KEY + 2 * DIM_MAX];
    size_t dim = dims[_i % 6], count = counts[_i / 6];
    float q[DIM_MAX], score[COUNT_MAX], out[DIM_MAX], want[DIM_MAX] = {0}, weight[COUNT_MAX];
    const float *at[COUNT_MAX];
    struct sc_prng prng;
    sc_prng_seed(&prng, 5 + (uint64_t)_i);
    for (size_t d = 0; d < dim; d++)
        q[d] = (float)sc_prng_normal(&prng);
    for (size_t i = 0; i < count; i++) {
        at[i] = rows[count - 1 - i];
        for (size_t d = 0; d < KEY + 2 * dim; d++)
            rows[i][d] = (float)sc_prng_normal(&prng);
    }
    const struct dense_context context = {at, count, KEY, KEY + dim, dim};
    dense_attend(q, &context, score, out);

    float top = -INFINITY, sum = 0;
    for (size_t i = 0; i < count; i++) {
        float l[8] = {0};
        for (size_t d = 0; d < dim; d++) {
            volatile float product = q[d] * at[i][KEY + d]; /* rounded, not fused */
            l[d % 8] += product;
        }
        weight[i] = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
        weight[i] *= 1.0f / sqrtf((float)dim);
        top = weight[i] > top ? weight[i] : top;
    }
    for (size_t i = 0; i < count; i++) {
        weight[i] = expf(weight[i] - top);
        sum += weight[i];
        for (size_t d = 0; d < dim; d++) {
            volatile float product = weight[i] * at[i][KEY + dim + d];
            want[d] += product;
        }
    }
    for (size_t d = 0; d < dim; d++)
        ck_assert_msg(want[d] / sum == out[d], "dim %zu, count %zu: %zu", dim, count, d);
}
END_TEST

/* ------------------------------------------------------------------------------------- page ids */

START_TEST(page_ids__faults_are_counted)
{
    struct page_ids ids;
    page_ids_init(&ids, 3);
    int32_t a = page_ids_take(&ids), b = page_ids_take(&ids), c = page_ids_take(&ids);
    ck_assert(a >= 0 && b >= 0 && c >= 0 && a != b && b != c && a != c);
    ck_assert_int_eq(page_ids_take(&ids), -1);
    page_ids_hand_in(&ids, a);
    page_ids_give_back(&ids, b);
    ck_assert_uint_eq(ids.faults, 0);
    page_ids_drained(&ids, c); /* never handed in */
    page_ids_drained(&ids, a);
    page_ids_drained(&ids, a); /* twice */
    page_ids_drained(&ids, 3);
    page_ids_drained(&ids, -1);
    page_ids_give_back(&ids, b); /* twice */
    ck_assert_uint_eq(ids.faults, 5);
    ck_assert_uint_eq(ids.cached, 0);
    ck_assert_uint_eq(ids.ours, 1);
    ck_assert_uint_eq(ids.free_count, 2);
    ck_assert_uint_eq(ids.peak, 3);
    page_ids_deinit(&ids);
}
END_TEST

/* ------------------------------------------------------------------------------------ witnesses */

static struct served_model *small_model(void)
{
    struct served_options options = {.kind = SC_K_KIND_GDN, .state_dtype = SC_DTYPE_F32,
        .layers = 2, .attention_every = 2, .hidden = 8, .heads = 1, .v_heads = 1, .head_dim = 8,
        .attention_heads = 1, .attention_dim = 8, .mlp = 8, .vocab = 16, .chunk = 16, .seed = 1};
    struct served_model *model;
    ck_assert_int_eq(served_create(&options, &model), SC_OK);
    return model;
}

START_TEST(witness__sample_has_a_fifth_of_each_way)
{
    enum { WANTED = 20 };
    struct served_model *model = small_model();
    struct witness_set set;
    witness_set_init(&set, model, WANTED, 1);
    for (size_t i = 0; i < 400; i++) { /* nearly all resume at a decoded end */
        enum resumed_at at = i % 40 == 1 ? AT_BRANCH : i % 40 == 2 ? AT_PROMPT_END
            : i % 40 == 3 ? AT_NOTHING : AT_DECODED_END;
        struct witness *w = witness_admit(&set, i, at, 0, i == 200);
        if (w)
            witness_stop(&set, w, i % 7 != 0);
    }
    uint32_t count, by[AT_COUNT] = {0};
    struct witness **sample = witness_sample(&set, &count);
    bool forced = false;
    ck_assert_uint_eq(count, WANTED);
    for (uint32_t i = 0; i < count; i++) {
        by[sample[i]->at]++;
        forced |= sample[i]->request == 200;
        for (uint32_t j = 0; j < i; j++)
            ck_assert_uint_ne(sample[i]->request, sample[j]->request);
    }
    ck_assert(!forced || set.forced); /* 200 % 7 != 0: recorded whole */
    ck_assert(forced);
    ck_assert_uint_ge(by[AT_BRANCH], 4);
    ck_assert_uint_ge(by[AT_PROMPT_END], 4);
    ck_assert_uint_ge(by[AT_DECODED_END], 4);
    free(sample);
    witness_set_deinit(&set);
    served_destroy(model);
}
END_TEST

START_TEST(state__flip_changes_one_bit_of_the_state)
{
    struct served_model *model = small_model();
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    options.schema = model->schema;
    options.layout = _i ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    options.slot_count = 2;
    sc_pool *pool;
    sc_slot slots[2];
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    ck_assert_int_eq(sc_pool_alloc(pool, 2, SC_OWNER_WORKING, slots), SC_OK);
    size_t bytes = state_bytes(pool);
    ck_assert_uint_eq(bytes, (3 * 24 + 64) * sizeof(float));
    unsigned char *before = malloc(bytes), *after = malloc(bytes);
    struct sc_prng prng;
    sc_prng_seed(&prng, 1);
    for (int round = 0; round < 200; round++) {
        char text[160];
        int bits = 0;
        state_read(pool, (int32_t)slots[1].id, before);
        state_flip(pool, (int32_t)slots[1].id, &prng, text, sizeof text);
        state_read(pool, (int32_t)slots[1].id, after);
        for (size_t i = 0; i < bytes; i++)
            bits += __builtin_popcount(before[i] ^ after[i]);
        ck_assert_int_eq(bits, 1);
    }
    free(before);
    free(after);
    ck_assert_int_eq(sc_pool_free(pool, slots, 2), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    served_destroy(model);
}
END_TEST

/* ----------------------------------------------------------------------------------------- bars */

/* What is printed for the figures a (must <= 3), b (must >= 80 %), c (near 100) and one without a
 * bar; the caller frees it. */
static char *judged(double a, double b, double c, int *code_out)
{
    const struct bench_bar most = {BENCH_BAR_MOST, 3}, least = {BENCH_BAR_LEAST, 80},
                           near = {BENCH_BAR_NEAR, 100}, none = {BENCH_BAR_NONE, 0};
    struct bench_bars bars = {0};
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    bench_bars_judge(&bars, "W2 a / b", a, "", most);
    bench_bars_judge(&bars, "decode, batch 64", b, "%", least);
    bench_bars_judge(&bars, "only a figure", 7, "us", none);
    bench_bars_judge(&bars, "tokens", c, "M", near);
    *code_out = bench_bars_end(&bars, out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_ptr_null(bars.judged);
    return text;
}

START_TEST(bars__lines_are_of_one_form_and_a_missed_one_is_status_1)
{
    int code;
    char *text = judged(3, 80, 97, &code);
    ck_assert_str_eq(text, "bar W2 a / b: 3 (must <= 3)\n"
                           "bar decode, batch 64: 80 % (must >= 80 %)\n"
                           "bar tokens: 97 M (must be within 3 % of 100 M)\n"
                           "3 of 3 bars met\n");
    ck_assert_int_eq(code, BENCH_OK);
    free(text);
    text = judged(3.01, 80, 103.5, &code);
    ck_assert_ptr_nonnull(strstr(text, "bar W2 a / b: 3.01 (must <= 3)\n"));
    ck_assert_ptr_nonnull(strstr(text, "1 of 3 bars met\nmissed: W2 a / b\nmissed: tokens\n"));
    ck_assert_int_eq(code, BENCH_CHECK_FAILED);
    free(text);
    text = judged(2.99, 79.9, 100, &code);
    ck_assert_ptr_nonnull(strstr(text, "2 of 3 bars met\nmissed: decode, batch 64\n"));
    ck_assert_int_eq(code, BENCH_CHECK_FAILED);
    free(text);
}
END_TEST

/* It neither counts nor decides, and what is missed stays so. */
START_TEST(bars__without_a_bar_a_figure_tells_why)
{
    const struct bench_bar least = {BENCH_BAR_LEAST, 1};
    struct bench_bars bars = {0};
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    bench_bars_excuse(&bars, "ring, batch 1", 0.5, "x", "arithmetic takes 1.10");
    ck_assert_int_eq(bench_bars_end(&bars, out), BENCH_OK);
    bench_bars_excuse(&bars, "ring, batch 1", 0.5, "x", "arithmetic takes 1.10");
    bench_bars_judge(&bars, "ring, batch 4", 0.9, "x", least);
    ck_assert_int_eq(bench_bars_end(&bars, out), BENCH_CHECK_FAILED);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_str_eq(text, "bar ring, batch 1: 0.5 x (no bar: arithmetic takes 1.10)\n"
                           "there are no bars for what was measured\n"
                           "bar ring, batch 1: 0.5 x (no bar: arithmetic takes 1.10)\n"
                           "bar ring, batch 4: 0.9 x (must >= 1 x)\n"
                           "0 of 1 bars met\nmissed: ring, batch 4\n");
    free(text);
}
END_TEST

START_TEST(bars__what_was_not_measured_is_missed)
{
    int code;
    char *text = judged(NAN, 90, NAN, &code);
    ck_assert_ptr_nonnull(strstr(text, "bar W2 a / b: not measured (must <= 3)\n"));
    ck_assert_ptr_nonnull(strstr(text, "bar tokens: not measured (must be within 3 % of 100 M)\n"));
    ck_assert_ptr_nonnull(strstr(text, "1 of 3 bars met\n"));
    ck_assert_int_eq(code, BENCH_CHECK_FAILED);
    free(text);
}
END_TEST

void add_part_cases(Suite *suite)
{
    TCase *tcase = tcase_create("parts");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, generator__same_seed_same_workload);
    tcase_add_test(tcase, generator__follow_ups_come_after_and_sessions_share_prompts);
    tcase_add_test(tcase, ideal__hand_made_case);
    tcase_add_loop_test(tcase, ideal__equals_a_comparison_with_every_earlier_sequence, 1, 5);
    tcase_add_loop_test(tcase, dense__rows_do_not_depend_on_the_batch, 0, 19);
    tcase_add_loop_test(tcase, dense__attention_sums_in_one_order, 0, 6 * 7);
    tcase_add_test(tcase, page_ids__faults_are_counted);
    tcase_add_test(tcase, bars__lines_are_of_one_form_and_a_missed_one_is_status_1);
    tcase_add_test(tcase, bars__what_was_not_measured_is_missed);
    tcase_add_test(tcase, bars__without_a_bar_a_figure_tells_why);
    tcase_add_test(tcase, witness__sample_has_a_fifth_of_each_way);
    tcase_add_loop_test(tcase, state__flip_changes_one_bit_of_the_state, 0, 2);
    suite_add_tcase(suite, tcase);
}

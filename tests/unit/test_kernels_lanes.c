/* SPDX-License-Identifier: Apache-2.0 */
/* The functions and products on sixteen lanes (v16_math.h, delta/matmul_wide.h) give the bits of
 * what they say they are, with AVX2 and with AVX-512: ref_math.h's for the functions, one fused sum
 * in ascending order for each element of a product. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "kernels_lanes.h"
#include "ref_math.h"
#include "support/check_main.h"

enum { MANY = 4096, FORMS = 2 };

static const struct lanes *form(int which)
{
    if (which == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &lanes_avx2 : NULL;
    bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has ? &lanes_avx512 : NULL;
}

/* MANY numbers whose bits begin at `first`, `step` apart. */
static void functions_agree(const struct lanes *lanes, uint32_t first, uint32_t step)
{
    static float x[MANY], e[MANY], s[MANY];
    static uint16_t h[MANY];
    for (uint32_t i = 0; i < MANY; i++) x[i] = ref_bits_f32(first + i * step);
    lanes->exps(x, e, MANY);
    lanes->silus(x, s, MANY);
    lanes->narrow(x, h, MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        bool same = ref_f32_bits(e[i]) == ref_f32_bits(ref_exp(x[i]))
            && ref_f32_bits(s[i]) == ref_f32_bits(ref_silu(x[i])) && h[i] == ref_to_bf16(x[i]);
        if (!same) ck_abort_msg("exp, silu or bf16 of %a: %a, %a, %x", x[i], e[i], s[i], h[i]);
    }
}

/* Every 4093rd number there is: NaN, infinities and denormals among them. */
START_TEST(functions__have_the_bits_of_the_reference)
{
    const struct lanes *lanes = form(_i);
    if (lanes == NULL) return;
    for (uint64_t first = 0; first < UINT64_C(1) << 32; first += UINT64_C(4093) * MANY)
        functions_agree(lanes, (uint32_t)first, 4093);
}
END_TEST

/* Every number where exp is about to be 0, or infinite, and silu with them. */
START_TEST(functions__have_them_where_a_power_is_no_normal_number)
{
    static const float around[] = {-86.0f, -86.64f, -86.9f, -87.0f, 87.3f, 88.0f, 88.7228f};
    const struct lanes *lanes = form(_i);
    for (uint32_t i = 0; lanes != NULL && i < sizeof around / sizeof *around; i++)
        for (uint32_t n = 0; n < 16; n++)
            functions_agree(lanes, ref_f32_bits(around[i]) - 8 * MANY + n * MANY, 1);
}
END_TEST

/* ------------------------------------------------------------------------------------- products */

enum { ROWS_MAX = 64, COLUMNS = 48, TERMS_MAX = 37, ROW = 80 };

static void fill(struct sc_prng *prng, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)(sc_prng_unit(prng) - 0.5);
}

static float one_sum(const struct lanes_product *p, const float *c, uint32_t i, uint32_t j)
{
    float sum = p->start == LANES_ZERO ? 0.0f : c[i * p->c_row + j];
    if (p->start == LANES_DECAY) {
        volatile float decayed = sum * p->decay[i * p->decay_step];
        sum = decayed;
    }
    for (uint32_t t = 0; t < p->terms; t++) {
        float a = p->a[i * p->a_row + t * p->a_col];
        sum = fmaf(p->start == LANES_SUB ? -a : a, p->b[t * p->b_row + j], sum);
    }
    if (p->out != NULL) {
        volatile float scaled = sum * p->out[i];
        sum = scaled;
    }
    return p->narrow ? ref_from_bf16(ref_to_bf16(sum)) : sum;
}

/* Every number of rows up to where all tiles have come, each start, with and without what is done
 * on the way; nothing but rows x columns of c is written. */
START_TEST(products__are_one_fused_sum_an_element)
{
    static float a[ROWS_MAX * ROW], b[ROWS_MAX * ROW], c[ROWS_MAX * ROW], want[ROWS_MAX * ROW];
    static float decay[ROWS_MAX], out[ROWS_MAX];
    const struct lanes *lanes = form(_i);
    struct sc_prng prng;
    sc_prng_seed(&prng, 11);
    for (uint32_t round = 0; lanes != NULL && round < 19 * 24; round++) {
        bool turned = round / 19 % 2 != 0;
        struct lanes_product p = {.a = a, .b = b, .c = c, .a_row = turned ? 1 : ROW,
            .a_col = turned ? ROW : 1, .b_row = ROW, .c_row = ROW, .rows = 1 + round % 19,
            .columns = 16 + 16 * (round % 3), .terms = round % TERMS_MAX,
            .start = round / 38 % 4, .decay = decay, .decay_step = round % 2,
            .out = round / 152 == 1 ? out : NULL, .narrow = round / 152 == 2};
        if (p.start == LANES_SUB) p.out = NULL, p.narrow = false; /* it does nothing beside */
        fill(&prng, a, sizeof a / sizeof *a);
        fill(&prng, b, sizeof b / sizeof *b);
        fill(&prng, c, sizeof c / sizeof *c);
        fill(&prng, decay, ROWS_MAX);
        fill(&prng, out, ROWS_MAX);
        c[round % 16] = round % 5 == 0 ? NAN : c[round % 16];
        memcpy(want, c, sizeof c);
        for (uint32_t i = 0; i < p.rows; i++)
            for (uint32_t j = 0; j < p.columns; j++) want[i * ROW + j] = one_sum(&p, c, i, j);
        lanes->product(&p);
        ck_assert_msg(memcmp(want, c, sizeof c) == 0, "round %u", round);
    }
}
END_TEST

START_TEST(triangles__are_worked_on_in_ascending_order)
{
    static float a[ROWS_MAX * ROW], x[ROWS_MAX * ROW], y[ROWS_MAX * ROW], want[ROWS_MAX * ROW];
    const struct lanes *lanes = form(_i);
    struct sc_prng prng;
    sc_prng_seed(&prng, 12);
    for (uint32_t rows = 1; lanes != NULL && rows <= ROWS_MAX; rows++) {
        fill(&prng, a, sizeof a / sizeof *a);
        fill(&prng, x, sizeof x / sizeof *x);
        fill(&prng, y, sizeof y / sizeof *y);
        memcpy(want, x, sizeof x);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t t = 0; t < i; t++)
                for (uint32_t j = 0; j < COLUMNS; j++)
                    want[i * ROW + j] = fmaf(-a[i * ROW + t], want[t * ROW + j], want[i * ROW + j]);
        lanes->solve(a, x, ROW, rows, COLUMNS);
        ck_assert_msg(memcmp(want, x, sizeof x) == 0, "solve, %u rows", rows);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t t = 0; t <= i; t++)
                for (uint32_t j = 0; j < COLUMNS; j++)
                    want[i * ROW + j] = fmaf(a[i * ROW + t], y[t * ROW + j], want[i * ROW + j]);
        lanes->lower(a, y, x, ROW, rows, COLUMNS);
        ck_assert_msg(memcmp(want, x, sizeof x) == 0, "lower, %u rows", rows);
    }
}
END_TEST

int main(void)
{
    if (form(0) == NULL) {
        printf("skipped: this processor lacks AVX2\n");
        return 77;
    }
    Suite *suite = suite_create("kernels_lanes");
    TCase *functions = tcase_create("functions"), *products = tcase_create("products");
    tcase_set_timeout(functions, 120);
    tcase_set_timeout(products, 120);
    tcase_add_loop_test(functions, functions__have_the_bits_of_the_reference, 0, FORMS);
    tcase_add_loop_test(functions, functions__have_them_where_a_power_is_no_normal_number, 0,
        FORMS);
    tcase_add_loop_test(products, products__are_one_fused_sum_an_element, 0, FORMS);
    tcase_add_loop_test(products, triangles__are_worked_on_in_ascending_order, 0, FORMS);
    suite_add_tcase(suite, functions);
    suite_add_tcase(suite, products);
    return check_main(suite);
}

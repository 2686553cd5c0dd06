/* SPDX-License-Identifier: Apache-2.0 */
/* A step on a bf16 state keeps its rows in fp32 between its two passes or widens them again, as the
 * processor's maker has it (delta/stream_wide.h): both forms on whatever this one is, against the
 * plain one. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/prng.h"
#include "kernels_turns.h"
#include "support/check_main.h"

enum { ROWS_MAX = 128, ROUNDS = 24, SIZES = 6 };

static float any(struct sc_prng *prng)
{
    return (float)(sc_prng_unit(prng) - 0.5);
}

/* Does row v write something? */
static bool writes(int round, uint32_t v)
{
    return round % 4 != 0 || v % 9 != 5;
}

/* Some with zeros in k: rows that write nothing there cannot be fused. Some with a NaN in v, some
 * with rows that write nothing at all (whose state is zero, too). */
static void token(struct sc_prng *prng, struct tokens *x, int round)
{
    x->count = 1;
    x->beta[0] = 0.5f + any(prng);
    x->kq[0] = 0.0f;
    for (uint32_t i = 0; i < TURNS_K_DIM; i++) {
        x->k[i] = round % 3 == 1 && i % 40 == 7 ? 0.0f : any(prng);
        x->q[i] = any(prng);
        x->alpha[i] = 0.75f + 0.5f * any(prng);
        x->kq[0] += x->k[i] * x->q[i];
    }
    for (uint32_t v = 0; v < ROWS_MAX; v++)
        x->v[v] = round % 4 == 2 && v % 9 == 4 ? NAN : writes(round, v) ? any(prng) : 0.0f;
    if (round % 5 == 3) memset(x->v, 0, sizeof x->v);
}

/* Where a[0 .. n) and b differ first; n: nowhere. */
static uint32_t differ(const uint16_t *a, const uint16_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* Both forms, each from slot to slot and in place, and the plain one. */
static void compare(const uint16_t *from, uint32_t rows, struct tokens *x)
{
    enum { ALL = ROWS_MAX * TURNS_K_DIM };
    static uint16_t kept[ALL], want[ALL], got[ALL];
    static float block[ALL];
    static struct tokens plain;
    uint32_t n = rows * TURNS_K_DIM, at;
    for (uint32_t i = 0; i < n; i++) block[i] = ref_from_bf16(from[i]);
    memcpy(kept, from, n * sizeof *kept);
    plain = *x;
    plain_steps(block, rows, TURNS_K_DIM, &plain, SC_DTYPE_BF16);
    memset(want, 0xa5, sizeof want);
    for (uint32_t i = 0; i < n; i++) want[i] = ref_to_bf16(block[i]);
    for (int form = 0; form < 4; form++) {
        bool again = form % 2;
        memset(x->o, 0xff, sizeof x->o);
        memset(got, 0xa5, sizeof got);
        if (form > 1) memcpy(got, from, n * sizeof *got);
        turns_run((const uint8_t *)(form > 1 ? got : from), (uint8_t *)got, rows, again, x);
        ck_assert_msg(differ(from, kept, n) == n, "form %d: source", form);
        at = differ(got, want, ALL);
        ck_assert_msg(at == ALL, "form %d: element %u is %04x, not %04x", form, at, got[at % ALL],
            want[at % ALL]);
        ck_assert_msg(memcmp(x->o, plain.o, rows * sizeof *x->o) == 0, "form %d: outputs", form);
    }
}

START_TEST(turns__both_forms_give_the_bits_of_the_plain_one)
{
    static const uint32_t sizes[SIZES] = {128, 39, 4, 3, 9, 64};
    static struct tokens x;
    static uint16_t from[ROWS_MAX * TURNS_K_DIM];
    struct sc_prng prng;
    uint32_t rows = sizes[_i % SIZES], n = rows * TURNS_K_DIM;
    sc_prng_seed(&prng, 91 + (uint64_t)_i);
    token(&prng, &x, _i);
    tokens_ready(&x, TURNS_K_DIM, SC_DTYPE_BF16);
    for (uint32_t i = 0; i < n; i++) from[i] = ref_to_bf16(any(&prng));
    for (uint32_t i = 0; i < n && _i % 2; i++) /* denormals, and what decays to them */
        if (i % TURNS_K_DIM % 40 == 7) from[i] = (uint16_t)(sc_prng_next(&prng) & 0x80ff);
    for (uint32_t i = 0; i < n; i++)
        if (!writes(_i, i / TURNS_K_DIM)) from[i] = 0;
    if (_i % 7 == 6) from[300] = 0x7fff; /* a NaN in the state */
    compare(from, rows, &x);
}
END_TEST

/* Groups are in work three at a time while they may be fused: one that may not, wherever it is. */
START_TEST(turns__one_row_that_may_not_be_fused_at_each_place)
{
    static const uint32_t sizes[SIZES] = {128, 39, 20, 16, 12, 8};
    static struct tokens x;
    static uint16_t from[ROWS_MAX * TURNS_K_DIM];
    static float values[ROWS_MAX];
    struct sc_prng prng;
    uint32_t rows = sizes[_i], n = rows * TURNS_K_DIM;
    sc_prng_seed(&prng, 7 + (uint64_t)_i);
    token(&prng, &x, 5); /* a usual one */
    memcpy(values, x.v, sizeof values);
    tokens_ready(&x, TURNS_K_DIM, SC_DTYPE_BF16);
    for (uint32_t v = 0; v <= rows; v++) { /* row `rows`: there is none */
        for (uint32_t i = 0; i < n; i++) /* denormals: only the form that is not fused keeps them */
            from[i] = i / TURNS_K_DIM == v ? (uint16_t)(3 + i % 5) : ref_to_bf16(any(&prng));
        memcpy(x.v, values, sizeof values);
        if (v < rows) x.v[v] = 0.0f;
        compare(from, rows, &x);
    }
}
END_TEST

int main(void)
{
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vl")
        || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq")) {
        printf("skipped: this processor lacks AVX512_BF16\n");
        return 77;
    }
    Suite *suite = suite_create("kernels_turns");
    TCase *all = tcase_create("all");
    tcase_add_loop_test(all, turns__both_forms_give_the_bits_of_the_plain_one, 0, ROUNDS);
    tcase_add_loop_test(all, turns__one_row_that_may_not_be_fused_at_each_place, 0, SIZES);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

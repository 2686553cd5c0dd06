/* SPDX-License-Identifier: Apache-2.0 */
/* `struct lanes` of the instructions that the including file is compiled for. */
#include "delta/matmul_wide.h"
#include "kernels_lanes.h"

enum { MANY = 16 * V16_MANY };

/* Every third time one vector at a time. */
static void functions(const float *x, float *y, size_t n, bool silu)
{
    for (size_t at = 0; at < n; at += MANY) {
        v16 many[V16_MANY];
        for (uint32_t i = 0; i < V16_MANY; i++) many[i] = v16_load(x + at + 16 * i);
        for (uint32_t i = 0; at / MANY % 3 == 0 && i < V16_MANY; i++)
            many[i] = silu ? v16_silu(many[i]) : v16_exp(many[i]);
        if (at / MANY % 3 != 0 && silu) v16_silus(many, V16_MANY);
        if (at / MANY % 3 != 0 && !silu) v16_exps(many, V16_MANY);
        for (uint32_t i = 0; i < V16_MANY; i++) v16_store(y + at + 16 * i, many[i]);
    }
}

static void exps(const float *x, float *y, size_t n) { functions(x, y, n, false); }
static void silus(const float *x, float *y, size_t n) { functions(x, y, n, true); }

static void narrow(const float *x, uint16_t *y, size_t n)
{
    for (size_t at = 0; at < n; at += 16) v16_store_bf16(y + at, v16_load(x + at));
}

static void product(const struct lanes_product *p)
{
    const enum mm_start starts[] = {MM_ZERO, MM_ADD, MM_SUB, MM_ADD};
    const struct mm_fetch fetch[] = {{.from = (const uint8_t *)p->b, .row_bytes = 64, .rows = 5,
        .columns = 24, .elem_bytes = 4}, {.from = (const uint8_t *)p->c, .rows = 9,
        .columns = 99, .elem_bytes = 2, .write = true}};
    const struct mm m = {.a = p->a, .b = p->b, .c = p->c, .a_row = p->a_row, .a_col = p->a_col,
        .b_row = p->b_row, .c_row = p->c_row, .terms = p->terms, .start = starts[p->start]};
    const struct mm_beside beside = {.decay = p->start == LANES_DECAY ? p->decay : NULL,
        .out = p->out, .decay_step = p->decay_step, .narrow = p->narrow, .fetch_count = 2,
        .fetch = fetch};
    if (p->start == LANES_DECAY || p->out != NULL || p->narrow)
        mm_run_beside(&m, &beside, p->rows, p->columns);
    else
        mm_run(&m, p->rows, p->columns);
}

static void solve(const float *a, float *x, size_t row, uint32_t rows, uint32_t columns)
{
    mm_solve(a, row, x, row, rows, columns);
}

static void lower(const float *a, const float *y, float *x, size_t row, uint32_t rows,
    uint32_t columns)
{
    mm_lower(a, row, y, row, x, row, rows, columns);
}

#define LANES {exps, silus, narrow, product, solve, lower}

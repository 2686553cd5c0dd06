/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small matrices whose bits do not depend on how they are cut: every element is one
 * accumulator, to which the terms are added fused, in ascending order. Tiles only choose which
 * elements are worked on together.
 *
 *   c[i][j] (+|-)= sum_t a(i, t) b[t][j]        a(i, t) = a[i * a_row + t * a_col]
 *
 * j runs along vectors: the number of columns is a multiple of 16. */
#ifndef SC_MATMUL_WIDE_H
#define SC_MATMUL_WIDE_H

#include "v16.h"

#ifdef __AVX512F__
enum { MM_ROWS = 8, MM_COLS = 2, MM_TRIANGLE = 16 };
#else
enum { MM_ROWS = 4, MM_COLS = 1, MM_TRIANGLE = 4 };
#endif

enum mm_start { MM_ZERO, MM_ADD, MM_SUB };

struct mm {
    const float *a, *b;
    float *c;
    size_t a_row, a_col, b_row, c_row;
    uint32_t terms;
    enum mm_start start; /* from zero, or from what c holds */
};

SC_REF_INLINE void mm_tile(const struct mm *m, uint32_t i, uint32_t j, uint32_t rows,
    uint32_t cols, enum mm_start start)
{
    v16 acc[MM_ROWS][MM_COLS];
    float *c = m->c + i * m->c_row + j;
    const float *a = m->a + i * m->a_row, *b = m->b + j;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t l = 0; l < cols; l++)
            acc[r][l] = start == MM_ZERO ? v16_zero() : v16_load(c + r * m->c_row + 16 * l);
    for (uint32_t t = 0; t < m->terms; t++, a += m->a_col, b += m->b_row) {
        v16 line[MM_COLS];
        for (uint32_t l = 0; l < cols; l++) line[l] = v16_load(b + 16 * l);
        for (uint32_t r = 0; r < rows; r++) {
            v16 x = v16_set(a[r * m->a_row]);
            for (uint32_t l = 0; l < cols; l++)
                acc[r][l] = start == MM_SUB ? v16_fnma(x, line[l], acc[r][l])
                                            : v16_fma(x, line[l], acc[r][l]);
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t l = 0; l < cols; l++) v16_store(c + r * m->c_row + 16 * l, acc[r][l]);
}

SC_REF_INLINE void mm_columns(const struct mm *m, uint32_t rows, uint32_t j, uint32_t cols,
    enum mm_start start)
{
    uint32_t i = 0;
    for (; i + MM_ROWS <= rows; i += MM_ROWS) mm_tile(m, i, j, MM_ROWS, cols, start);
    for (; i < rows; i++) mm_tile(m, i, j, 1, cols, start);
}

SC_REF_INLINE void mm_started(const struct mm *m, uint32_t rows, uint32_t columns,
    enum mm_start start)
{
    uint32_t j = 0;
    for (; j + 16 * MM_COLS <= columns; j += 16 * MM_COLS) mm_columns(m, rows, j, MM_COLS, start);
    for (; j < columns; j += 16) mm_columns(m, rows, j, 1, start);
}

static __attribute__((noinline, unused)) void mm_run(const struct mm *m, uint32_t rows,
    uint32_t columns)
{
    if (m->start == MM_ZERO)
        mm_started(m, rows, columns, MM_ZERO);
    else if (m->start == MM_ADD)
        mm_started(m, rows, columns, MM_ADD);
    else
        mm_started(m, rows, columns, MM_SUB);
}

/* Rows i0.. of a triangle, up to MM_TRIANGLE of them: x_l (-|+)= sum_{j} a_lj y_j over earlier rows
 * j < l of the same tile (solve: y is x), or j <= l (product: y is another matrix). */
SC_REF_INLINE void mm_solve_rows(const float *a, size_t a_row, float *x, size_t x_row,
    uint32_t rows, uint32_t columns)
{
    for (uint32_t j = 0; j < columns; j += 16) {
        v16 y[MM_TRIANGLE];
        for (uint32_t l = 0; l < rows; l++) y[l] = v16_load(x + l * x_row + j);
        for (uint32_t l = 1; l < rows; l++)
            for (uint32_t t = 0; t < l; t++)
                y[l] = v16_fnma(v16_set(a[l * a_row + t]), y[t], y[l]);
        for (uint32_t l = 1; l < rows; l++) v16_store(x + l * x_row + j, y[l]);
    }
}

SC_REF_INLINE void mm_lower_rows(const float *a, size_t a_row, const float *y, size_t y_row,
    float *x, size_t x_row, uint32_t rows, uint32_t columns)
{
    for (uint32_t j = 0; j < columns; j += 16) {
        v16 in[MM_TRIANGLE];
        for (uint32_t l = 0; l < rows; l++) in[l] = v16_load(y + l * y_row + j);
        for (uint32_t l = 0; l < rows; l++) {
            v16 acc = v16_load(x + l * x_row + j);
            for (uint32_t t = 0; t <= l; t++)
                acc = v16_fma(v16_set(a[l * a_row + t]), in[t], acc);
            v16_store(x + l * x_row + j, acc);
        }
    }
}

/* x <- (I + a)^-1 x for strictly lower a. */
static __attribute__((noinline, unused)) void mm_solve(const float *a, size_t a_row, float *x,
    size_t x_row, uint32_t rows, uint32_t columns)
{
    for (uint32_t i = 0; i < rows; i += MM_TRIANGLE) {
        uint32_t m = rows - i < MM_TRIANGLE ? rows - i : MM_TRIANGLE;
        if (i > 0)
            mm_run(&(struct mm){.a = a + i * a_row, .a_row = a_row, .a_col = 1, .b = x,
                .b_row = x_row, .c = x + i * x_row, .c_row = x_row, .terms = i,
                .start = MM_SUB}, m, columns);
        if (m == MM_TRIANGLE)
            mm_solve_rows(a + i * a_row + i, a_row, x + i * x_row, x_row, MM_TRIANGLE, columns);
        else
            mm_solve_rows(a + i * a_row + i, a_row, x + i * x_row, x_row, m, columns);
    }
}

/* x += a y for lower a, diagonal included. */
static __attribute__((noinline, unused)) void mm_lower(const float *a, size_t a_row, const float *y,
    size_t y_row, float *x, size_t x_row, uint32_t rows, uint32_t columns)
{
    for (uint32_t i = 0; i < rows; i += MM_TRIANGLE) {
        uint32_t m = rows - i < MM_TRIANGLE ? rows - i : MM_TRIANGLE;
        const float *at = a + i * a_row + i;
        if (i > 0)
            mm_run(&(struct mm){.a = a + i * a_row, .a_row = a_row, .a_col = 1, .b = y,
                .b_row = y_row, .c = x + i * x_row, .c_row = x_row, .terms = i,
                .start = MM_ADD}, m, columns);
        if (m == MM_TRIANGLE)
            mm_lower_rows(at, a_row, y + i * y_row, y_row, x + i * x_row, x_row, MM_TRIANGLE,
                columns);
        else
            mm_lower_rows(at, a_row, y + i * y_row, y_row, x + i * x_row, x_row, m, columns);
    }
}

#endif

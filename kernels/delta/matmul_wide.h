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

#include "v16_math.h"

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

/* Rows of `columns` elements, `row_bytes` apart, that will be read, or written. Rows and columns
 * that c does not have are not fetched. */
struct mm_fetch {
    const uint8_t *from;
    int64_t row_bytes;
    uint32_t rows, columns, elem_bytes;
    bool write;
};

/* What a product does on the way, with the bits of a pass of its own: row i of c is decayed by
 * decay[i * decay_step] before it is added to; in the end it is multiplied by out[i], or rounded to
 * bf16. And what the caller works on next is fetched tile by tile, as if it lay like c. */
struct mm_beside {
    const float *decay, *out; /* NULL: not done */
    size_t decay_step;
    bool narrow;
    uint32_t fetch_count;
    const struct mm_fetch *fetch;
};

SC_REF_INLINE v16 mm_begin(const struct mm_beside *beside, const float *c, uint32_t i,
    enum mm_start start)
{
    if (start == MM_ZERO) return v16_zero();
    v16 sum = v16_load(c);
    if (beside == NULL || beside->decay == NULL) return sum;
    return v16_mul(sum, v16_set(beside->decay[i * beside->decay_step]));
}

SC_REF_INLINE void mm_end(const struct mm_beside *beside, float *c, uint32_t i, v16 sum)
{
    if (beside != NULL && beside->out != NULL) sum = v16_mul(sum, v16_set(beside->out[i]));
    if (beside != NULL && beside->narrow) sum = v16_to_bf16(sum);
    v16_store(c, sum);
}

/* What lies where rows i.. and columns j.. of c would. What is read goes to the second cache: the
 * nearest one is full of the product, which ends before it is read. */
SC_REF_INLINE void mm_fetch_tile(const struct mm_fetch *f, uint32_t i, uint32_t j, uint32_t rows,
    uint32_t cols)
{
    uint32_t end = j + 16 * cols < f->columns ? j + 16 * cols : f->columns;
    for (uint32_t r = i; r < i + rows && r < f->rows; r++)
        for (uint32_t at = j * f->elem_bytes; at < end * f->elem_bytes; at += 64) {
            const uint8_t *line = f->from + r * f->row_bytes + at;
            if (f->write)
                __builtin_prefetch(line, 1, 3);
            else
                __builtin_prefetch(line, 0, 2);
        }
}

/* `beside` NULL, at compile time: nothing else is done. */
SC_REF_INLINE void mm_tile(const struct mm *m, const struct mm_beside *beside, uint32_t i,
    uint32_t j, uint32_t rows, uint32_t cols, enum mm_start start)
{
    v16 acc[MM_ROWS][MM_COLS];
    float *c = m->c + i * m->c_row + j;
    const float *a = m->a + i * m->a_row, *b = m->b + j;
    for (uint32_t f = 0; beside != NULL && f < beside->fetch_count; f++)
        mm_fetch_tile(&beside->fetch[f], i, j, rows, cols);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t l = 0; l < cols; l++)
            acc[r][l] = mm_begin(beside, c + r * m->c_row + 16 * l, i + r, start);
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
        for (uint32_t l = 0; l < cols; l++)
            mm_end(beside, c + r * m->c_row + 16 * l, i + r, acc[r][l]);
}

SC_REF_INLINE void mm_columns(const struct mm *m, const struct mm_beside *beside, uint32_t rows,
    uint32_t j, uint32_t cols, enum mm_start start)
{
    uint32_t i = 0;
    for (; i + MM_ROWS <= rows; i += MM_ROWS) mm_tile(m, beside, i, j, MM_ROWS, cols, start);
    for (; i + MM_ROWS / 2 <= rows; i += MM_ROWS / 2)
        mm_tile(m, beside, i, j, MM_ROWS / 2, cols, start);
    for (; i + 2 <= rows; i += 2) mm_tile(m, beside, i, j, 2, cols, start);
    if (i < rows) mm_tile(m, beside, i, j, 1, cols, start);
}

SC_REF_INLINE void mm_started(const struct mm *m, const struct mm_beside *beside, uint32_t rows,
    uint32_t columns, enum mm_start start)
{
    uint32_t j = 0;
    for (; j + 16 * MM_COLS <= columns; j += 16 * MM_COLS)
        mm_columns(m, beside, rows, j, MM_COLS, start);
    for (; j < columns; j += 16) mm_columns(m, beside, rows, j, 1, start);
}

static __attribute__((noinline, unused)) void mm_run(const struct mm *m, uint32_t rows,
    uint32_t columns)
{
    if (m->start == MM_ZERO)
        mm_started(m, NULL, rows, columns, MM_ZERO);
    else if (m->start == MM_ADD)
        mm_started(m, NULL, rows, columns, MM_ADD);
    else
        mm_started(m, NULL, rows, columns, MM_SUB);
}

/* The start is ZERO or ADD. */
static __attribute__((noinline, unused)) void mm_run_beside(const struct mm *m,
    const struct mm_beside *beside, uint32_t rows, uint32_t columns)
{
    if (m->start == MM_ZERO)
        mm_started(m, beside, rows, columns, MM_ZERO);
    else
        mm_started(m, beside, rows, columns, MM_ADD);
}

/* MM_TRIANGLE rows of a triangle: x_l (-|+)= sum_{j} a_lj y_j over earlier rows j < l of the same
 * tile (solve: y is x), or j <= l (product: y is another matrix). Solving goes by j, whose products
 * do not wait for each other, as those of one l would. */
SC_REF_INLINE void mm_solve_rows(const float *a, size_t a_row, float *x, size_t x_row,
    uint32_t columns)
{
    for (uint32_t j = 0; j < columns; j += 16) {
        v16 y[MM_TRIANGLE];
        UNROLL for (uint32_t l = 0; l < MM_TRIANGLE; l++) y[l] = v16_load(x + l * x_row + j);
        UNROLL for (uint32_t t = 0; t < MM_TRIANGLE; t++)
            UNROLL for (uint32_t l = t + 1; l < MM_TRIANGLE; l++)
                y[l] = v16_fnma(v16_set(a[l * a_row + t]), y[t], y[l]);
        UNROLL for (uint32_t l = 1; l < MM_TRIANGLE; l++) v16_store(x + l * x_row + j, y[l]);
    }
}

SC_REF_INLINE void mm_lower_rows(const float *a, size_t a_row, const float *y, size_t y_row,
    float *x, size_t x_row, uint32_t columns)
{
    for (uint32_t j = 0; j < columns; j += 16) {
        v16 in[MM_TRIANGLE];
        UNROLL for (uint32_t l = 0; l < MM_TRIANGLE; l++) in[l] = v16_load(y + l * y_row + j);
        UNROLL for (uint32_t l = 0; l < MM_TRIANGLE; l++) {
            v16 acc = v16_load(x + l * x_row + j);
            UNROLL for (uint32_t t = 0; t <= l; t++)
                acc = v16_fma(v16_set(a[l * a_row + t]), in[t], acc);
            v16_store(x + l * x_row + j, acc);
        }
    }
}

/* x <- (I + a)^-1 x for strictly lower a. */
static __attribute__((noinline, unused)) void mm_solve(const float *a, size_t a_row, float *x,
    size_t x_row, uint32_t rows, uint32_t columns)
{
    struct mm m = {.a_row = a_row, .a_col = 1, .b_row = x_row, .c_row = x_row, .start = MM_SUB};
    for (uint32_t i = 0; i < rows; i += MM_TRIANGLE) {
        uint32_t n = rows - i < MM_TRIANGLE ? rows - i : MM_TRIANGLE;
        m.a = a + i * a_row;
        m.b = x;
        m.c = x + i * x_row;
        m.terms = i;
        if (i > 0) mm_run(&m, n, columns);
        if (n == MM_TRIANGLE) {
            mm_solve_rows(m.a + i, a_row, m.c, x_row, columns);
            continue;
        }
        m.b = m.c;
        for (m.terms = 1; m.terms < n; m.terms++) {
            m.a = a + (i + m.terms) * a_row + i;
            m.c = x + (i + m.terms) * x_row;
            mm_run(&m, 1, columns);
        }
    }
}

/* x += a y for lower a, diagonal included. */
static __attribute__((noinline, unused)) void mm_lower(const float *a, size_t a_row, const float *y,
    size_t y_row, float *x, size_t x_row, uint32_t rows, uint32_t columns)
{
    struct mm m = {.a_row = a_row, .a_col = 1, .b_row = y_row, .c_row = x_row, .start = MM_ADD};
    for (uint32_t i = 0; i < rows; i += MM_TRIANGLE) {
        uint32_t n = rows - i < MM_TRIANGLE ? rows - i : MM_TRIANGLE;
        m.a = a + i * a_row;
        m.b = y;
        m.c = x + i * x_row;
        m.terms = i;
        if (i > 0) mm_run(&m, n, columns);
        if (n == MM_TRIANGLE) {
            mm_lower_rows(m.a + i, a_row, y + i * y_row, y_row, m.c, x_row, columns);
            continue;
        }
        m.b = y + i * y_row;
        for (uint32_t l = 0; l < n; l++) {
            m.a = a + (i + l) * a_row + i;
            m.c = x + (i + l) * x_row;
            m.terms = l + 1;
            mm_run(&m, 1, columns);
        }
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the rows of kernels share on sixteen lanes, in each form it is compiled for, for tests. */
#ifndef SC_TESTS_KERNELS_LANES_H
#define SC_TESTS_KERNELS_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lanes_start { LANES_ZERO, LANES_ADD, LANES_SUB, LANES_DECAY };

/* As struct mm of delta/matmul_wide.h. */
struct lanes_product {
    const float *a, *b;
    float *c;
    size_t a_row, a_col, b_row, c_row;
    uint32_t rows, columns, terms;
    enum lanes_start start;
    const float *decay, *out;
    size_t decay_step;
    bool narrow;
};

/* Of `n` numbers, a multiple of 64; a third of them one vector at a time. */
struct lanes {
    void (*exps)(const float *x, float *y, size_t n);
    void (*silus)(const float *x, float *y, size_t n);
    void (*narrow)(const float *x, uint16_t *y, size_t n);
    void (*product)(const struct lanes_product *product);
    /* x <- (I + a)^-1 x, x += a y: rows of a, x and y lie `row` apart */
    void (*solve)(const float *a, float *x, size_t row, uint32_t rows, uint32_t columns);
    void (*lower)(const float *a, const float *y, float *x, size_t row, uint32_t rows,
        uint32_t columns);
};

extern const struct lanes lanes_avx2, lanes_avx512;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch of the chunk scan: SC_SCAN_SHARE states and what one group of heads needs, in 64-byte
 * aligned pieces. N (state_dim) and P (head_dim) are rounded up to 16. */
#ifndef SC_SSM_SCAN_H
#define SC_SSM_SCAN_H

#include "kernel_check.h"
#include "statecache/kernels_ssm.h"

enum { SC_SCAN_SHARE = 8 }; /* heads of a group that pass together */

struct sc_scan {
    float *state;         /* [SHARE][N][P]: transposed, so that vectors run along P */
    float *b, *c;         /* [C][N] of the group */
    float *bt;            /* [N][C] */
    float *cb;            /* [C][C] c_i . b_j */
    float *m;             /* [C][C] the same, aged: of one head */
    float *x;             /* [C][P] dt x */
    float *y;             /* [C][P] */
    float *since, *until; /* [C] */
};

/* Bytes needed; sets the pieces when `x` is given. */
static inline uint64_t sc_scan_scratch(const sc_k_ssm_chunk_params *p, struct sc_scan *x)
{
    struct sc_scan none;
    float *base = x != NULL ? sc_host_ptr(p->scratch) : NULL;
    uint64_t n = (p->tokens.state_dim + 15) / 16 * 16, v = (p->tokens.head_dim + 15) / 16 * 16;
    uint64_t c = p->chunk, used = 0;
    if (x == NULL) x = &none;
    const struct {
        float **piece;
        uint64_t elems; /* a multiple of 16 */
    } all[] = {{&x->state, SC_SCAN_SHARE * n * v}, {&x->b, c * n}, {&x->c, c * n},
        {&x->bt, n * c}, {&x->cb, c * c}, {&x->m, c * c}, {&x->x, c * v}, {&x->y, c * v},
        {&x->since, c}, {&x->until, c}};
    for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        *all[i].piece = base != NULL ? base + used : NULL;
        used += all[i].elems;
    }
    return used * sizeof(float);
}

#endif

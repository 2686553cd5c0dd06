/* SPDX-License-Identifier: Apache-2.0 */
/* Thin products on the host. An output is the ref_dot() of a row of weights and a token: 16 lanes
 * along `in`, one tree at the end, whatever is beside it. Tiles only choose which outputs are
 * worked on together, so that a loaded weight serves several tokens, a loaded token several
 * weights:
 *
 *                   TERMS of `in` at a time, widened to fp32
 *   weights n0..n0+3   | w0 |       acc[i][j] (16 lanes each) += w_i x_j
 *                      | w1 |
 *   tokens  t0..t0+3   | x0 | ...
 *
 * Bytes moved: weights once for each TOKENS tokens. Cost: 2 in out operations a token. */
#include "kernel_check.h"
#include "kernel_dispatch.h"
#include "ref_math.h"
#include "statecache/kernels_project.h"

/* Sixteen lanes; the compiler splits them where registers are shorter. */
typedef float lanes __attribute__((vector_size(64), aligned(4), may_alias));

#ifdef __AVX512F__
enum { WEIGHTS = 4, TOKENS = 4 };
#else
enum { WEIGHTS = 2, TOKENS = 2 };
#endif
enum { TERMS = 512 };

struct tile {
    float w[WEIGHTS][TERMS], x[TOKENS][TERMS];
    lanes acc[WEIGHTS][TOKENS];
};

/* `m` weights by `n` tokens, `terms` of them: whole lanes, then what is left. */
SC_REF_INLINE void tile_add(struct tile *restrict tile, uint32_t m, uint32_t n, uint32_t terms)
{
    lanes acc[WEIGHTS][TOKENS];
    uint32_t k = 0;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) acc[i][j] = tile->acc[i][j];
    for (; k + 16 <= terms; k += 16) {
        lanes x[TOKENS];
        for (uint32_t j = 0; j < n; j++) x[j] = *(const lanes *)(tile->x[j] + k);
        for (uint32_t i = 0; i < m; i++) {
            lanes w = *(const lanes *)(tile->w[i] + k);
            for (uint32_t j = 0; j < n; j++) acc[i][j] += w * x[j];
        }
    }
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            tile->acc[i][j] = acc[i][j];
            float *lane = (float *)&tile->acc[i][j];
            for (uint32_t l = 0; k + l < terms; l++)
                lane[l] += tile->w[i][k + l] * tile->x[j][k + l];
        }
}

static void tile_run(struct tile *tile, const sc_k_project_params *p, uint32_t n0, uint32_t m,
    uint32_t t0, uint32_t n)
{
    int64_t x_stride = sc_kernel_stride(p->x_stride, p->in_dim);
    memset(tile->acc, 0, sizeof tile->acc);
    for (uint32_t k = 0; k < p->in_dim; k += TERMS) {
        uint32_t terms = p->in_dim - k < TERMS ? p->in_dim - k : TERMS;
        for (uint32_t i = 0; i < m; i++)
            ref_load(tile->w[i], p->weight, p->weight_dtype, (int64_t)(n0 + i) * p->in_dim + k,
                terms);
        for (uint32_t j = 0; j < n; j++)
            ref_load(tile->x[j], p->x, p->dtype, (t0 + j) * x_stride + k, terms);
        if (m == WEIGHTS && n == TOKENS)
            tile_add(tile, WEIGHTS, TOKENS, terms);
        else if (m == WEIGHTS && n == 1)
            tile_add(tile, WEIGHTS, 1, terms);
        else
            tile_add(tile, m, n, terms);
    }
}

static void tile_store(struct tile *tile, const sc_k_project_params *p, uint32_t n0, uint32_t m,
    uint32_t t0, uint32_t n)
{
    int64_t y_stride = sc_kernel_stride(p->y_stride, p->out_dim);
    for (uint32_t j = 0; j < n; j++) {
        float y[WEIGHTS];
        for (uint32_t i = 0; i < m; i++)
            y[i] = ref_lane_sum((float *)&tile->acc[i][j], NULL, NULL, 0);
        ref_store(y, p->y, p->y_dtype, (t0 + j) * y_stride + n0, m);
    }
}

sc_status SC_HOST_FN(sc_k_project)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_project_params *p = params;
    struct tile tile;
    for (uint32_t n0 = 0; n0 < p->out_dim; n0 += WEIGHTS) {
        uint32_t m = p->out_dim - n0 < WEIGHTS ? p->out_dim - n0 : WEIGHTS;
        for (uint32_t t0 = 0; t0 < p->token_count; t0 += TOKENS) {
            uint32_t n = p->token_count - t0 < TOKENS ? p->token_count - t0 : TOKENS;
            tile_run(&tile, p, n0, m, t0, n);
            tile_store(&tile, p, n0, m, t0, n);
        }
    }
    return SC_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The selective state space on the host, token by token.
 *
 * Rows of S (one for each of P) never meet: a block of them stays in a buffer while the tokens of a
 * sequence pass, and each token's B and C serve the whole block:
 *
 *   S[p0 .. p0+n) --load--> block --token--> ... --token--> block --store--> dest, saves
 *
 * Bytes moved: each state once in and once out. Cost: 5 P N operations a token and head. */
#include "kernel_check.h"
#include "kernel_dispatch.h"
#include "ssm/ssm_rows.h"
#include "ssm/ssm_step.h"
#ifdef __AVX2__
#include "ssm/ssm_stream.h"
#endif

static void block_store(const float *block, const struct ssm_span *s, int32_t slot)
{
    if (slot > 0)
        ref_store(block, ref_slot(&s->p->state, slot), s->p->state.dtype, ssm_part_at(s),
            s->rows * s->p->state_dim);
}

static void block_saves(const float *block, const struct ssm_span *s, int64_t pos)
{
    const int32_t *row = sc_host_ptr(s->p->saves.row), *slot = sc_host_ptr(s->p->saves.slot);
    const int32_t *save_pos = sc_host_ptr(s->p->saves.pos);
    for (uint32_t i = 0; i < s->p->saves.count; i++)
        if (row[i] == (int32_t)s->row && save_pos[i] == pos) block_store(block, s, slot[i]);
}

static void span_run(const struct ssm_span *s)
{
    const sc_k_ssm_params *p = s->p;
    const int32_t *row_start = sc_host_ptr(p->row_start), *source = sc_host_ptr(p->source);
    const int32_t *position = sc_host_ptr(p->position), *dest = sc_host_ptr(p->dest);
    int64_t first = position != NULL ? position[s->row] : 0, start = row_start[s->row];
    int64_t count = sc_kernel_row_tokens(row_start, s->row);
    float block[SSM_BLOCK_ELEMS];
    struct ssm_token k;
    if (count == 0 && source[s->row] == dest[s->row] && p->initial.base == 0) return;
    struct ref_begin from = ref_begin(&p->state, &p->initial, source[s->row], s->row);
    ref_begin_load(block, &from, ssm_part_at(s), s->rows * p->state_dim);
    for (int64_t t = 0; t < count; t++) {
        ssm_token_load(&k, s, start + t);
        ssm_step(block, s->rows, p->state_dim, &k, p->d != 0, p->state.dtype);
        ssm_token_store(&k, s, start + t);
        if (p->saves.count > 0) block_saves(block, s, first + t + 1);
    }
    block_store(block, s, dest[s->row]);
}

#ifdef __AVX2__
static bool row_streams(const sc_k_ssm_params *p, uint32_t r)
{
    return sc_kernel_row_tokens(sc_host_ptr(p->row_start), r) == 1 && p->saves.count == 0
        && p->initial.base == 0 && ssm_streams(p->state_dim);
}

/* All heads, by the one token of row r. */
static void row_stream(const sc_k_ssm_params *p, uint32_t r)
{
    int64_t t = ((const int32_t *)sc_host_ptr(p->row_start))[r];
    float dt[SSM_HEADS], alpha[SSM_HEADS];
    struct ssm_span s = {.p = p, .row = r};
    struct ssm_token k;
    while (s.head < p->heads) {
        uint32_t n = ssm_head_count(p, s.head);
        ssm_token_group(&k, &s, t);
        ssm_gates(dt, alpha, p, t, s.head, n);
        for (uint32_t i = 0; i < n; i++, s.head++) {
            k.dt = dt[i], k.alpha = alpha[i];
            for (s.p0 = 0; s.p0 < p->head_dim; s.p0 += s.rows) {
                s.rows = ssm_span_rows(&s);
                ssm_token_rows(&k, &s, t);
                ssm_stream(&s, &k);
                ssm_token_store(&k, &s, t);
            }
        }
    }
}
#endif

static void row_run(const sc_k_ssm_params *p, uint32_t r)
{
    struct ssm_span s = {.p = p, .row = r};
#ifdef __AVX2__
    if (row_streams(p, r)) {
        row_stream(p, r);
        return;
    }
#endif
    for (; s.head < p->heads; s.head++)
        for (s.p0 = 0; s.p0 < p->head_dim; s.p0 += s.rows) {
            s.rows = ssm_span_rows(&s);
            span_run(&s);
        }
}

sc_status SC_HOST_FN(sc_k_ssm)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_ssm_params *p = params;
    const int32_t *row_start = sc_host_ptr(p->row_start), *source = sc_host_ptr(p->source);
    uint32_t dense = p->heads * p->head_dim;
    int64_t y_stride = sc_kernel_stride(p->y_stride, dense);
    for (uint32_t r = 0; r < p->row_count; r++) {
        uint32_t count = sc_kernel_row_tokens(row_start, r);
        for (uint32_t t = 0; source[r] < 0 && t < count; t++)
            ref_store_zero(p->y, p->dtype, ((int64_t)row_start[r] + t) * y_stride, dense);
        if (source[r] >= 0) row_run(p, r);
    }
    return SC_OK;
}

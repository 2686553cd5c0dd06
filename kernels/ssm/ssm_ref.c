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
#include "ref_math.h"

enum { BLOCK_ELEMS = 16384 };

/* One head's view of one token. */
struct token {
    float b[SC_K_DIM_MAX], c[SC_K_DIM_MAX];
    float x[SC_K_DIM_MAX], y[SC_K_DIM_MAX];
    float dt, alpha, skip;
};

struct span {
    const sc_k_ssm_params *p;
    uint32_t row, head, p0, rows; /* rows p0.. of a head of a row of the call */
};

static void token_load(struct token *k, const struct span *s, int64_t t)
{
    const sc_k_ssm_params *p = s->p;
    uint64_t xs = (uint64_t)p->heads * p->head_dim, bs = (uint64_t)p->groups * p->state_dim;
    int64_t group = (int64_t)(s->head / (p->heads / p->groups)) * p->state_dim;
    const float *bias = sc_host_ptr(p->dt_bias), *skip = sc_host_ptr(p->d);
    float raw = 0.0f, rate = ref_exp(((const float *)sc_host_ptr(p->a_log))[s->head]);
    ref_load(k->b, p->b, p->dtype, t * sc_kernel_stride(p->b_stride, bs) + group, p->state_dim);
    ref_load(k->c, p->c, p->dtype, t * sc_kernel_stride(p->c_stride, bs) + group, p->state_dim);
    ref_load(k->x, p->x, p->dtype, t * sc_kernel_stride(p->x_stride, xs)
        + (int64_t)s->head * p->head_dim + s->p0, s->rows);
    ref_load(&raw, p->dt, p->dtype, t * sc_kernel_stride(p->dt_stride, p->heads) + s->head, 1);
    k->dt = ref_softplus(raw + (bias != NULL ? bias[s->head] : 0.0f));
    k->alpha = ref_exp(-rate * k->dt);
    k->skip = skip != NULL ? skip[s->head] : 0.0f;
}

SC_REF_INLINE void step(float *block, const struct span *s, struct token *k)
{
    uint32_t n = s->p->state_dim;
    for (uint32_t v = 0; v < s->rows; v++) {
        float *restrict state = block + (size_t)v * n;
        float write = k->dt * k->x[v], alpha = k->alpha;
        for (uint32_t i = 0; i < n; i++) state[i] = state[i] * alpha + write * k->b[i];
        k->y[v] = ref_dot(state, k->c, n);
    }
    if (s->p->d != 0)
        for (uint32_t v = 0; v < s->rows; v++) k->y[v] += k->skip * k->x[v];
    ref_round(block, s->p->state.dtype, s->rows * n);
}

static void token_store(struct token *k, const struct span *s, int64_t t)
{
    const sc_k_ssm_params *p = s->p;
    uint64_t dense = (uint64_t)p->heads * p->head_dim;
    int64_t at = (int64_t)s->head * p->head_dim + s->p0;
    float z[SC_K_DIM_MAX];
    if (p->z != 0) {
        ref_load(z, p->z, p->dtype, t * sc_kernel_stride(p->z_stride, dense) + at, s->rows);
        for (uint32_t v = 0; v < s->rows; v++) k->y[v] = k->y[v] * ref_silu(z[v]);
    }
    ref_store(k->y, p->y, p->dtype, t * sc_kernel_stride(p->y_stride, dense) + at, s->rows);
}

static int64_t part_at(const struct span *s)
{
    return ((int64_t)s->head * s->p->head_dim + s->p0) * s->p->state_dim;
}

static void block_store(const float *block, const struct span *s, int32_t slot)
{
    if (slot > 0)
        ref_store(block, ref_slot(&s->p->state, slot), s->p->state.dtype, part_at(s),
            s->rows * s->p->state_dim);
}

static void block_saves(const float *block, const struct span *s, int64_t pos)
{
    const int32_t *row = sc_host_ptr(s->p->saves.row), *slot = sc_host_ptr(s->p->saves.slot);
    const int32_t *save_pos = sc_host_ptr(s->p->saves.pos);
    for (uint32_t i = 0; i < s->p->saves.count; i++)
        if (row[i] == (int32_t)s->row && save_pos[i] == pos) block_store(block, s, slot[i]);
}

static void span_run(const struct span *s)
{
    const sc_k_ssm_params *p = s->p;
    const int32_t *row_start = sc_host_ptr(p->row_start), *source = sc_host_ptr(p->source);
    const int32_t *position = sc_host_ptr(p->position), *dest = sc_host_ptr(p->dest);
    int64_t first = position != NULL ? position[s->row] : 0, start = row_start[s->row];
    int64_t count = sc_kernel_row_tokens(row_start, s->row);
    float block[BLOCK_ELEMS];
    struct token k;
    if (count == 0 && source[s->row] == dest[s->row]) return;
    if (source[s->row] == 0)
        memset(block, 0, (size_t)s->rows * p->state_dim * sizeof(float));
    else
        ref_load(block, ref_slot(&p->state, source[s->row]), p->state.dtype, part_at(s),
            s->rows * p->state_dim);
    for (int64_t t = 0; t < count; t++) {
        token_load(&k, s, start + t);
        step(block, s, &k);
        token_store(&k, s, start + t);
        if (p->saves.count > 0) block_saves(block, s, first + t + 1);
    }
    block_store(block, s, dest[s->row]);
}

sc_status SC_HOST_FN(sc_k_ssm)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_ssm_params *p = params;
    const int32_t *row_start = sc_host_ptr(p->row_start), *source = sc_host_ptr(p->source);
    uint32_t dense = p->heads * p->head_dim, most = BLOCK_ELEMS / p->state_dim;
    int64_t y_stride = sc_kernel_stride(p->y_stride, dense);
    for (uint32_t r = 0; r < p->row_count; r++) {
        uint32_t count = sc_kernel_row_tokens(row_start, r);
        for (uint32_t t = 0; source[r] < 0 && t < count; t++)
            ref_store_zero(p->y, p->dtype, ((int64_t)row_start[r] + t) * y_stride, dense);
        for (uint32_t h = 0; source[r] >= 0 && h < p->heads; h++)
            for (uint32_t p0 = 0; p0 < p->head_dim; p0 += most) {
                uint32_t rows = p->head_dim - p0 < most ? p->head_dim - p0 : most;
                span_run(&(struct span){.p = p, .row = r, .head = h, .p0 = p0, .rows = rows});
            }
    }
    return SC_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Draft tokens of the delta rule on the host: verify and commit.
 *
 * Verify. Tokens of a row and head are prepared once. Rows of S never meet, so blocks of ROWS rows
 * pass one after the other, each with room for what every node leaves; a node starts from a copy of
 * its parent's rows:
 *
 *   scratch   | prepared tokens: q k read alpha v .. | node 0: ROWS x K | node 1 | ... |
 *                                                       ^ copied from parent, then one step
 *
 * That is a small piece of scratch for each node, not a state. Each step is that of decode, on the
 * same fp32 numbers (16-bit states: rounded after each token), so a tree that is a chain, a chain
 * and plain decode give the same bits, and so does a commit, which steps along the path alone.
 *
 * Bytes moved: verify reads each state once; commit reads and writes it once. */
#include "delta/tokens.h"
#include "delta/verify.h"
#include "kernel_dispatch.h"

/* The pieces of scratch. */
struct nodes {
    float *q, *k, *read, *alpha, *v; /* ready; v of all rows of S */
    float *beta, *kq, *read_scale, *q_scale, *k_least;
    float *rows; /* [tokens_max][ROWS][K] */
    float *o;    /* [tokens_max][V] */
};

static struct nodes nodes_at(const sc_k_delta_verify_params *p)
{
    size_t n = p->tokens_max, k = p->tokens.shape.k_dim, v = p->tokens.shape.v_dim;
    float *at = sc_host_ptr(p->tokens.scratch);
    struct nodes x = {.q = at, .k = at + n * k, .read = at + 2 * n * k, .alpha = at + 3 * n * k};
    x.v = at + 4 * n * k;
    x.o = x.v + n * v;
    x.beta = x.o + n * v;
    x.kq = x.beta + n;
    x.read_scale = x.kq + n;
    x.q_scale = x.read_scale + n;
    x.k_least = x.q_scale + n;
    x.rows = x.k_least + n;
    return x;
}

/* Prepares token t of the row once for all blocks. */
static void prepare(struct nodes *n, const sc_k_delta_params *p, int64_t start, uint32_t t,
    uint32_t hv, struct tokens *x)
{
    size_t k = p->shape.k_dim, v = p->shape.v_dim;
    x->count = 0;
    token_load(x, p, start + t, hv, 0, (uint32_t)v);
    tokens_ready(x, p->shape.k_dim, p->state.dtype);
    memcpy(n->q + t * k, x->q, k * sizeof(float));
    memcpy(n->k + t * k, x->k, k * sizeof(float));
    memcpy(n->read + t * k, x->read, k * sizeof(float));
    memcpy(n->alpha + t * k, x->alpha, k * sizeof(float));
    memcpy(n->v + t * v, x->v, v * sizeof(float));
    n->beta[t] = x->beta[0];
    n->kq[t] = x->kq[0];
    n->read_scale[t] = x->read_scale[0];
    n->q_scale[t] = x->q_scale[0];
    n->k_least[t] = x->k_least[0];
}

static void recall(const struct nodes *n, const sc_k_delta_shape *s, uint32_t t, uint32_t v0,
    uint32_t rows, struct tokens *x)
{
    size_t k = s->k_dim;
    x->count = 1;
    memcpy(x->q, n->q + t * k, k * sizeof(float));
    memcpy(x->k, n->k + t * k, k * sizeof(float));
    memcpy(x->read, n->read + t * k, k * sizeof(float));
    memcpy(x->alpha, n->alpha + t * k, k * sizeof(float));
    memcpy(x->v, n->v + (size_t)t * s->v_dim + v0, rows * sizeof(float));
    x->beta[0] = n->beta[t];
    x->kq[0] = n->kq[t];
    x->read_scale[0] = n->read_scale[t];
    x->q_scale[0] = n->q_scale[t];
    x->k_least[0] = n->k_least[t];
}

static void store_node(const sc_k_delta_verify_params *p, const float *block, uint32_t r,
    uint32_t t, int64_t at, uint32_t n)
{
    const sc_k_delta_shape *s = &p->tokens.shape;
    int64_t part = (int64_t)s->v_heads * s->v_dim * s->k_dim;
    int64_t node = (int64_t)r * p->states.tokens_max + t;
    ref_store(block, p->states.base, p->tokens.state.dtype, node * part + at, n);
}

/* Rows v0.. of one head through all nodes of row r. */
static void verify_block(const sc_k_delta_verify_params *p, struct nodes *n, uint32_t r,
    uint32_t hv, uint32_t v0, struct tokens *x)
{
    const sc_k_delta_params *c = &p->tokens;
    const sc_k_delta_shape *s = &c->shape;
    const int32_t *row_start = sc_host_ptr(c->row_start), *parent = sc_host_ptr(p->parent);
    uint32_t rows = s->v_dim - v0 < SC_VERIFY_ROWS ? s->v_dim - v0 : SC_VERIFY_ROWS;
    uint32_t elems = rows * s->k_dim, count = sc_kernel_row_tokens(row_start, r);
    int64_t at = delta_at(s, hv, v0);
    float first[SC_VERIFY_ROWS * SC_K_DIM_MAX];
    struct ref_begin begin = delta_begin(c, r);
    ref_begin_load(first, &begin, at, elems);
    for (uint32_t t = 0; t < count; t++) {
        int32_t from = sc_draft_parent(parent, row_start[r], (int32_t)t);
        float *block = n->rows + (size_t)t * SC_VERIFY_ROWS * s->k_dim;
        memcpy(block, from < 0 ? first : n->rows + (size_t)from * SC_VERIFY_ROWS * s->k_dim,
            elems * sizeof(float));
        recall(n, s, t, v0, rows, x);
        delta_steps(block, rows, s->k_dim, x, c->state.dtype);
        memcpy(n->o + (size_t)t * s->v_dim + v0, x->o, rows * sizeof(float));
        if (p->states.base != 0) store_node(p, block, r, t, at, elems);
    }
}

sc_status SC_HOST_FN(sc_k_delta_verify)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_delta_verify_params *p = params;
    const sc_k_delta_params *c = &p->tokens;
    const sc_k_delta_shape *s = &c->shape;
    const int32_t *row_start = sc_host_ptr(c->row_start), *source = sc_host_ptr(c->source);
    uint32_t vo = s->v_heads * s->v_dim;
    int64_t stride = sc_kernel_stride(c->o_stride, vo);
    struct nodes n = nodes_at(p);
    struct tokens x;
    for (uint32_t r = 0; r < c->row_count; r++) {
        uint32_t count = sc_kernel_row_tokens(row_start, r);
        for (uint32_t t = 0; source[r] < 0 && t < count; t++)
            ref_store_zero(c->o, c->dtype, ((int64_t)row_start[r] + t) * stride, vo);
        for (uint32_t hv = 0; source[r] >= 0 && count > 0 && hv < s->v_heads; hv++) {
            for (uint32_t t = 0; t < count; t++) prepare(&n, c, row_start[r], t, hv, &x);
            for (uint32_t v0 = 0; v0 < s->v_dim; v0 += SC_VERIFY_ROWS)
                verify_block(p, &n, r, hv, v0, &x);
            for (uint32_t t = 0; t < count; t++)
                ref_store(n.o + (size_t)t * s->v_dim, c->o, c->dtype,
                    ((int64_t)row_start[r] + t) * stride + (int64_t)hv * s->v_dim, s->v_dim);
        }
    }
    return SC_OK;
}

/* ---- commit ---- */

/* Where the state after `pos` tokens goes besides dest; index of the next such save, or -1. */
static int64_t next_save(const sc_k_delta_params *p, uint32_t r, int64_t pos, int64_t after)
{
    const int32_t *row = sc_host_ptr(p->saves.row), *save_pos = sc_host_ptr(p->saves.pos);
    for (int64_t i = after + 1; i < (int64_t)p->saves.count; i++)
        if (row[i] == (int32_t)r && save_pos[i] == pos) return i;
    return -1;
}

static void commit_block(const sc_k_delta_commit_params *p, uint32_t r, uint32_t hv, uint32_t v0,
    const int32_t *path, uint32_t count)
{
    sc_k_delta_params c = p->tokens;
    const sc_k_delta_shape *s = &c.shape;
    const int32_t *slot = sc_host_ptr(c.saves.slot), *position = sc_host_ptr(c.position);
    int64_t start = ((const int32_t *)sc_host_ptr(c.row_start))[r], at = delta_at(s, hv, v0);
    int64_t first = position != NULL ? position[r] : 0;
    uint32_t rows = block_rows(s, v0), n = rows * s->k_dim;
    float block[BLOCK_ELEMS];
    struct tokens x;
    c.q = c.k; /* outputs are of no interest */
    c.q_stride = c.k_stride;
    struct ref_begin from = delta_begin(&c, r);
    ref_begin_load(block, &from, at, n);
    for (uint32_t i = 0; i < count;) {
        int64_t save = -1;
        for (x.count = 0; i < count && x.count < TOKENS_MAX && save < 0;) {
            token_load(&x, &c, start + path[i++], hv, v0, rows);
            save = next_save(&c, r, first + i, -1);
        }
        tokens_ready(&x, s->k_dim, c.state.dtype);
        delta_steps(block, rows, s->k_dim, &x, c.state.dtype);
        for (; save >= 0; save = next_save(&c, r, first + i, save))
            block_store(block, &c.state, slot[save], at, n);
    }
    block_store(block, &c.state, ((const int32_t *)sc_host_ptr(c.dest))[r], at, n);
}

/* What the verify left of node `node` of row r, as it is. */
static void copy_node(const sc_k_delta_commit_params *p, uint32_t r, int32_t node, int32_t slot)
{
    const sc_k_delta_params *c = &p->tokens;
    uint64_t bytes = (uint64_t)c->shape.v_heads * c->shape.v_dim * c->shape.k_dim
        * sc_kernel_elem_bytes(c->state.dtype);
    uint64_t at = ((uint64_t)r * p->states.tokens_max + (uint64_t)node) * bytes;
    memcpy(sc_host_ptr(ref_slot(&c->state, slot)), sc_host_ptr(p->states.base + at), bytes);
}

static void commit_copy(const sc_k_delta_commit_params *p, uint32_t r, const int32_t *path,
    uint32_t count)
{
    const sc_k_delta_params *c = &p->tokens;
    const int32_t *slot = sc_host_ptr(c->saves.slot), *position = sc_host_ptr(c->position);
    int32_t dest = ((const int32_t *)sc_host_ptr(c->dest))[r];
    int64_t first = position != NULL ? position[r] : 0;
    for (uint32_t i = 0; i < count; i++)
        for (int64_t save = next_save(c, r, first + i + 1, -1); save >= 0;
             save = next_save(c, r, first + i + 1, save))
            copy_node(p, r, path[i], slot[save]);
    if (dest > 0) copy_node(p, r, path[count - 1], dest);
}

sc_status SC_HOST_FN(sc_k_delta_commit)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_delta_commit_params *p = params;
    const sc_k_delta_params *c = &p->tokens;
    const int32_t *row_start = sc_host_ptr(c->row_start), *source = sc_host_ptr(c->source);
    const int32_t *node = sc_host_ptr(p->node);
    int32_t path[SC_K_DRAFT_MAX];
    for (uint32_t r = 0; r < c->row_count; r++) {
        if (source[r] < 0) continue;
        uint32_t count = sc_draft_path(sc_host_ptr(p->parent), row_start[r], node[r], path);
        if (count == 0)
            delta_move(c, r);
        else if (p->states.base != 0)
            commit_copy(p, r, path, count);
        else
            for (uint32_t hv = 0; hv < c->shape.v_heads; hv++)
                for (uint32_t v0 = 0; v0 < c->shape.v_dim; v0 += block_rows(&c->shape, v0))
                    commit_block(p, r, hv, v0, path, count);
    }
    return SC_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the gated delta rule: checks, then the kernel table. */
#include <math.h>

#include "base/error.h"
#include "delta/chunk_wide.h"
#include "delta/delta_check.h"
#include "delta/delta_cuda.h"
#include "delta/delta_scratch.h"
#include "gates/gates_check.h"
#include "kernel_calls.h"

static uint64_t part_elems(const sc_k_delta_shape *s)
{
    return (uint64_t)s->v_heads * s->v_dim * s->k_dim;
}

sc_status sc_delta_check_dims(const sc_k_delta_shape *s)
{
    SC_REQUIRE(s->kind == SC_K_KIND_GDN || s->kind == SC_K_KIND_KDA);
    SC_REQUIRE(s->heads > 0);
    SC_REQUIRE(s->v_heads > 0);
    SC_REQUIRE(s->v_heads <= 1u << 16);
    SC_REQUIRE(s->v_heads % s->heads == 0);
    SC_REQUIRE(s->k_dim > 0);
    SC_REQUIRE(s->k_dim <= SC_K_DIM_MAX);
    SC_REQUIRE(s->v_dim > 0);
    SC_REQUIRE(s->v_dim <= SC_K_DIM_MAX);
    SC_REQUIRE(isfinite(s->scale));
    return SC_OK;
}

sc_status sc_delta_check_shape(const sc_k_delta_shape *s, const sc_k_slots *state)
{
    SC_TRY(sc_delta_check_dims(s));
    return sc_kernel_check_slots("state", state, part_elems(s));
}

sc_status sc_delta_check_tokens(const sc_k_delta_params *p, bool outputs)
{
    const sc_k_delta_shape *s = &p->shape;
    uint64_t qk = (uint64_t)s->heads * s->k_dim, vo = (uint64_t)s->v_heads * s->v_dim;
    SC_REQUIRE(p->token_count <= INT32_MAX);
    SC_TRY(sc_kernel_check_stride("k", p->k_stride, qk));
    SC_TRY(sc_kernel_check_stride("v", p->v_stride, vo));
    if (outputs) SC_TRY(sc_kernel_check_stride("q", p->q_stride, qk));
    if (outputs) SC_TRY(sc_kernel_check_stride("o", p->o_stride, vo));
    if (p->token_count > 0) {
        SC_TRY(sc_kernel_check_tensor("k", p->k, p->dtype));
        SC_TRY(sc_kernel_check_tensor("v", p->v, p->dtype));
        SC_TRY(sc_kernel_check_tensor("g", p->g, SC_DTYPE_F32));
        SC_TRY(sc_kernel_check_tensor("beta", p->beta, SC_DTYPE_F32));
    }
    if (p->token_count > 0 && outputs) {
        SC_TRY(sc_kernel_check_tensor("q", p->q, p->dtype));
        SC_TRY(sc_kernel_check_tensor("o", p->o, p->dtype));
        if (p->o == p->q || p->o == p->k || p->o == p->v)
            return SC_FAIL(SC_ERR_INVALID, "o is one of q, k, v");
    }
    SC_TRY(sc_kernel_check_index("row_start", p->row_start));
    if (p->position != 0) SC_TRY(sc_kernel_check_index("position", p->position));
    SC_TRY(sc_kernel_check_index("source", p->source));
    SC_TRY(sc_kernel_check_initial(&p->initial, p->row_count, part_elems(s)));
    return sc_kernel_check_saves(&p->saves);
}

static sc_status check_packed(const sc_k_delta_params *p)
{
    SC_TRY(sc_delta_check_tokens(p, true));
    return sc_kernel_check_index("dest", p->dest);
}

static sc_status check_packed_rows(const sc_k_delta_params *p, uint32_t grid)
{
    return sc_kernel_check_rows(&(struct sc_kernel_rows){.row_count = p->row_count,
        .token_count = p->token_count, .row_start = sc_host_ptr(p->row_start),
        .position = sc_host_ptr(p->position), .source = sc_host_ptr(p->source),
        .dest = sc_host_ptr(p->dest), .save_row = sc_host_ptr(p->saves.row),
        .save_pos = sc_host_ptr(p->saves.pos), .save_slot = sc_host_ptr(p->saves.slot),
        .save_count = p->saves.count, .save_grid = grid, .slots = &p->state});
}

sc_status sc_k_delta_recurrent(sc_backend *backend, const sc_k_delta_params *params,
    sc_stream *stream)
{
    if (backend == NULL) backend = sc_backend_host();
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_check_dtype("q, k, v, o", params->dtype));
    SC_TRY(sc_delta_check_shape(&params->shape, &params->state));
    const struct sc_kernel_row *row = NULL;
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_DELTA_RECURRENT,
        sc_kernel_need(params->dtype, params->state.dtype)
        | sc_kernel_need_initial(&params->initial), &row));
    if (params->row_count == 0) return SC_OK;
    SC_TRY(check_packed(params));
    if (backend->host_memory) SC_TRY(check_packed_rows(params, 1));
    return row->launch(params, stream);
}

static sc_status check_chunk(const sc_k_delta_params *p)
{
    SC_REQUIRE(p->chunk == 16 || p->chunk == 32 || p->chunk == 64);
    SC_TRY(sc_kernel_check_dtype("q, k, v, o", p->dtype));
    SC_REQUIRE(p->shape.k_dim > 0);
    SC_REQUIRE(p->shape.k_dim <= SC_K_DIM_MAX);
    SC_REQUIRE(p->shape.v_dim > 0);
    SC_REQUIRE(p->shape.v_dim <= SC_K_DIM_MAX);
    return SC_OK;
}

static sc_status chunk_scratch(const sc_backend *backend, const sc_k_delta_params *params,
    uint64_t *bytes_out)
{
#ifdef SC_HAVE_CUDA
    bool device = backend != NULL && !backend->host_memory;
#else
    (void)backend; /* the host's answer is the only one */
#endif
    SC_REQUIRE(params != NULL);
    SC_REQUIRE(bytes_out != NULL);
    SC_TRY(check_chunk(params));
#ifdef SC_HAVE_CUDA
    if (device) {
        SC_REQUIRE(params->shape.v_heads > 0);
        *bytes_out = sc_cuda_delta_chunk_scratch(params);
        return SC_OK;
    }
#endif
    *bytes_out = sc_delta_chunk_scratch(params, NULL);
#ifdef SC_HAVE_WIDE_ROWS
    uint64_t wide_bytes = sc_delta_wide_scratch(params, NULL); /* whichever row serves */
    if (wide_bytes > *bytes_out) *bytes_out = wide_bytes;
#endif
    return SC_OK;
}

sc_status sc_k_delta_chunk_scratch(sc_backend *backend, const sc_k_delta_params *params,
    uint64_t *bytes_out)
{
    return chunk_scratch(backend, params, bytes_out);
}

sc_status sc_kernel_delta_chunk_check(const sc_backend *backend,
    const sc_k_delta_params *params, const struct sc_kernel_row **row_out)
{
    SC_TRY(check_chunk(params));
    SC_TRY(sc_delta_check_shape(&params->shape, &params->state));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_DELTA_CHUNK,
        sc_kernel_need(params->dtype, params->state.dtype)
        | sc_kernel_need_initial(&params->initial), row_out));
    if (params->row_count == 0) return SC_OK;
    SC_TRY(check_packed(params));
    uint64_t need_bytes = 0;
    SC_TRY(chunk_scratch(backend, params, &need_bytes));
    SC_TRY(sc_kernel_check_scratch(params->scratch, params->scratch_bytes, need_bytes));
    if (backend->host_memory) SC_TRY(check_packed_rows(params, params->chunk));
    return SC_OK;
}

sc_status sc_k_delta_chunk(sc_backend *backend, const sc_k_delta_params *params, sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_delta_chunk_check(backend != NULL ? backend : sc_backend_host(), params,
        &row));
    return params->row_count > 0 ? row->launch(params, stream) : SC_OK;
}

static sc_status check_decode_gates(const sc_k_decode_params *p)
{
    const sc_k_delta_shape *s = &p->shape;
    uint64_t n = s->kind == SC_K_KIND_GDN ? 1 : s->k_dim;
    if (p->g != 0) {
        SC_TRY(sc_kernel_check_tensor("g", p->g, SC_DTYPE_F32));
    } else {
        SC_TRY(sc_kernel_check_gate(&p->weights));
        if ((p->weights.gate == SC_K_GATE_GDN) != (s->kind == SC_K_KIND_GDN))
            return SC_FAIL(SC_ERR_INVALID, "the gate does not belong to the kind of the layer");
        SC_TRY(sc_kernel_check_tensor("a", p->a, p->dtype));
        SC_TRY(sc_kernel_check_stride("a", p->a_stride, s->v_heads * n));
    }
    if (p->beta != 0) return sc_kernel_check_tensor("beta", p->beta, SC_DTYPE_F32);
    SC_TRY(sc_kernel_check_tensor("b", p->b, p->dtype));
    return sc_kernel_check_stride("b", p->b_stride, s->v_heads);
}

/* All of both decodes but where q, k and v lie. */
static sc_status decode_check_common(const sc_backend *backend, sc_k_op op,
    const sc_k_decode_params *p, const struct sc_kernel_row **row_out)
{
    const sc_k_delta_shape *s = &p->shape;
    SC_TRY(sc_kernel_check_dtype("q, k, v and o", p->dtype));
    SC_TRY(sc_delta_check_shape(s, &p->state));
    SC_TRY(sc_kernel_check_initial(&p->initial, p->row_count, part_elems(s)));
    SC_TRY(sc_kernel_pick(backend, op, sc_kernel_need(p->dtype, p->state.dtype)
        | sc_kernel_need_initial(&p->initial),
        row_out));
    if (p->row_count == 0) return SC_OK;
    SC_REQUIRE(p->row_count <= INT32_MAX);
    SC_TRY(sc_kernel_check_tensor("o", p->o, p->dtype));
    SC_TRY(sc_kernel_check_stride("o", p->o_stride, (uint64_t)s->v_heads * s->v_dim));
    SC_TRY(check_decode_gates(p));
    SC_TRY(sc_kernel_check_index("source", p->source));
    SC_TRY(sc_kernel_check_index("dest", p->dest));
    if (p->save != 0) SC_TRY(sc_kernel_check_index("save", p->save));
    if (backend->host_memory)
        SC_TRY(sc_kernel_check_rows(&(struct sc_kernel_rows){.row_count = p->row_count,
            .token_count = p->row_count, .source = sc_host_ptr(p->source),
            .dest = sc_host_ptr(p->dest), .save = sc_host_ptr(p->save), .save_grid = 1,
            .slots = &p->state}));
    return SC_OK;
}

sc_status sc_delta_check_decode(const sc_backend *backend, sc_k_op op,
    const sc_k_decode_packed_params *p, const struct sc_kernel_row **row_out)
{
    const sc_k_delta_shape *s = &p->shape;
    SC_TRY(sc_kernel_check_dtype("qkv and o", p->dtype));
    const sc_k_decode_params apart = delta_unpack(p);
    SC_TRY(decode_check_common(backend, op, &apart, row_out));
    if (p->row_count == 0) return SC_OK;
    SC_TRY(sc_kernel_check_tensor("qkv", p->qkv, p->dtype));
    return sc_kernel_check_stride("qkv", p->qkv_stride,
        2ull * s->heads * s->k_dim + (uint64_t)s->v_heads * s->v_dim);
}

sc_status sc_kernel_decode_packed_check(const sc_backend *backend,
    const sc_k_decode_packed_params *p, const struct sc_kernel_row **row_out)
{
    return sc_delta_check_decode(backend, SC_K_OP_DECODE_PACKED, p, row_out);
}

sc_status sc_k_decode(sc_backend *backend, const sc_k_decode_params *params, sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    const sc_k_delta_shape *s = &params->shape;
    SC_TRY(decode_check_common(backend != NULL ? backend : sc_backend_host(), SC_K_OP_DECODE,
        params, &row));
    if (params->row_count == 0) return SC_OK;
    const struct {
        const char *name;
        sc_devptr ptr;
        int64_t stride;
        uint64_t dense;
    } in[] = {{"q", params->q, params->q_stride, (uint64_t)s->heads * s->k_dim},
        {"k", params->k, params->k_stride, (uint64_t)s->heads * s->k_dim},
        {"v", params->v, params->v_stride, (uint64_t)s->v_heads * s->v_dim}};
    for (uint32_t i = 0; i < 3; i++) {
        SC_TRY(sc_kernel_check_tensor(in[i].name, in[i].ptr, params->dtype));
        SC_TRY(sc_kernel_check_stride(in[i].name, in[i].stride, in[i].dense));
        if (params->o == in[i].ptr)
            return SC_FAIL(SC_ERR_INVALID, "o is one of q, k, v");
    }
    return row->launch(params, stream);
}

sc_status sc_k_qkv_split(sc_backend *backend, const sc_k_qkv_split_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    const sc_k_qkv_split_params *p = params;
    SC_TRY(sc_kernel_check_dtype("qkv", p->dtype));
    SC_REQUIRE(p->qk_dim > 0);
    SC_REQUIRE(p->qk_dim <= 1u << 28);
    SC_REQUIRE(p->v_dim > 0);
    SC_REQUIRE(p->v_dim <= 1u << 28);
    SC_REQUIRE(p->token_count <= INT32_MAX);
    const struct {
        const char *name;
        sc_devptr ptr;
        int64_t stride;
        uint64_t dense;
    } all[] = {{"qkv", p->qkv, p->qkv_stride, 2ull * p->qk_dim + p->v_dim},
        {"q", p->q, p->q_stride, p->qk_dim}, {"k", p->k, p->k_stride, p->qk_dim},
        {"v", p->v, p->v_stride, p->v_dim}};
    for (uint32_t i = 0; i < 4; i++) {
        SC_TRY(sc_kernel_check_stride(all[i].name, all[i].stride, all[i].dense));
        if (p->token_count > 0 && (i == 0 || all[i].ptr != 0))
            SC_TRY(sc_kernel_check_tensor(all[i].name, all[i].ptr, p->dtype));
        if (i > 0 && all[i].ptr == p->qkv && p->qkv != 0)
            return SC_FAIL(SC_ERR_INVALID, "%s is qkv", all[i].name);
    }
    SC_TRY(sc_kernel_pick(backend != NULL ? backend : sc_backend_host(), SC_K_OP_QKV_SPLIT,
        sc_kernel_need(p->dtype, (sc_dtype)0), &row));
    return p->token_count > 0 ? row->launch(params, stream) : SC_OK;
}

sc_status sc_k_decode_packed(sc_backend *backend, const sc_k_decode_packed_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(sc_kernel_decode_packed_check(backend != NULL ? backend : sc_backend_host(), params,
        &row));
    return params->row_count > 0 ? row->launch(params, stream) : SC_OK;
}

sc_status sc_kernel_decode_step_check(const sc_backend *backend,
    const sc_k_conv_update_params *conv, const sc_k_decode_packed_params *decode,
    const struct sc_kernel_row *rows_out[2])
{
    SC_TRY(sc_kernel_conv_update_check(backend, conv, &rows_out[0]));
    SC_TRY(sc_kernel_decode_packed_check(backend, decode, &rows_out[1]));
    const sc_k_delta_shape *s = &decode->shape;
    uint64_t qkv = 2ull * s->heads * s->k_dim + (uint64_t)s->v_heads * s->v_dim;
    if (conv->channels != qkv)
        return SC_FAIL(SC_ERR_INVALID, "the conv has %u channels, the layer's q, k and v %llu",
            conv->channels, (unsigned long long)qkv);
    if (conv->row_count != decode->row_count || conv->dtype != decode->dtype)
        return SC_FAIL(SC_ERR_INVALID, "row counts or dtypes of conv and decode differ");
    if (conv->source != decode->source || conv->dest != decode->dest || conv->save != decode->save)
        return SC_FAIL(SC_ERR_INVALID, "conv and decode have different index arrays");
    if (conv->y != decode->qkv
        || sc_kernel_stride(conv->y_stride, qkv) != sc_kernel_stride(decode->qkv_stride, qkv))
        return SC_FAIL(SC_ERR_INVALID, "qkv is not the conv's y");
    return SC_OK;
}

sc_status sc_k_decode_step(sc_backend *backend, const sc_k_conv_update_params *conv,
    const sc_k_decode_packed_params *decode, sc_stream *stream)
{
    const struct sc_kernel_row *rows[2] = {NULL, NULL};
    if (backend == NULL) backend = sc_backend_host();
    SC_REQUIRE(conv != NULL);
    SC_REQUIRE(decode != NULL);
    SC_TRY(sc_kernel_decode_step_check(backend, conv, decode, rows));
    if (conv->row_count == 0) return SC_OK;
#ifdef SC_HAVE_CUDA
    if (!backend->host_memory && sc_cuda_step_fits(conv, decode))
        return sc_cuda_step(conv, decode, stream);
#endif
    SC_TRY(rows[0]->launch(conv, stream));
    return rows[1]->launch(decode, stream);
}

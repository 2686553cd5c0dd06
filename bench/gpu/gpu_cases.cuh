/* SPDX-License-Identifier: Apache-2.0 */
/* What the cases of the GPU benchmark share: shapes, inputs of a decode, pools of states. */
#ifndef BENCH_GPU_CASES_CUH
#define BENCH_GPU_CASES_CUH

#include "gpu_probe.cuh"
#include "gpu_report.cuh"

namespace {

using namespace probe;

constexpr uint32_t H_GDN = 16, HV = 32, D = 128, LAYERS = 36, CONV = 8192, WIDTH = 4, CALLS = 64;

sc_stream *as_stream(cudaStream_t stream)
{
    return (sc_stream *)(void *)stream;
}

sc_k_delta_shape shape_of(sc_k_kind kind)
{
    sc_k_delta_shape s = {};
    s.kind = kind;
    s.heads = kind == SC_K_KIND_GDN ? H_GDN : HV;
    s.v_heads = HV;
    s.k_dim = s.v_dim = D;
    s.qk_l2norm = true;
    return s;
}

struct decode_inputs {
    sc_k_decode_packed_params p;
    double bytes; /* of a row without its state */
};

decode_inputs decode_setup(sc_k_kind kind, sc_dtype state, uint32_t batch)
{
    decode_inputs in = {};
    sc_k_decode_packed_params &p = in.p;
    p.shape = shape_of(kind);
    p.dtype = SC_DTYPE_BF16;
    uint64_t qkv = 2 * p.shape.heads * D + HV * D, g = kind == SC_K_KIND_GDN ? HV : HV * D;
    p.qkv = dev(noisy<__nv_bfloat16>(batch * qkv));
    p.o = dev(buffer<__nv_bfloat16>((uint64_t)batch * HV * D));
    p.a = dev(noisy<__nv_bfloat16>(batch * g));
    p.b = dev(noisy<__nv_bfloat16>(batch * HV));
    p.weights.gate = kind == SC_K_KIND_GDN ? SC_K_GATE_GDN : SC_K_GATE_KDA_SOFTPLUS;
    p.weights.a_log = dev(noisy<float>(HV, 0.5f));
    p.weights.dt_bias = dev(noisy<float>(g, 0.5f, -2.0f));
    p.weights.dt_bias_dtype = SC_DTYPE_F32;
    p.row_count = batch;
    p.state.dtype = state;
    p.state_settled = true;
    in.bytes = 2.0 * (qkv + g + HV + HV * D);
    return in;
}

/* The same rows with q, k and v apart, each dense. */
sc_k_decode_params apart_of(const sc_k_decode_packed_params &p)
{
    sc_k_decode_params a = {};
    const uint64_t qk = 2ull * p.shape.heads * D * p.row_count; /* bytes */
    a.q = p.qkv, a.k = p.qkv + qk, a.v = p.qkv + 2 * qk, a.o = p.o, a.dtype = p.dtype;
    a.a = p.a, a.b = p.b, a.weights = p.weights, a.shape = p.shape, a.row_count = p.row_count;
    a.source = p.source, a.dest = p.dest, a.state = p.state, a.state_settled = p.state_settled;
    return a;
}

void decode_free(const decode_inputs &in)
{
    const sc_devptr all[] = {in.p.qkv, in.p.o, in.p.a, in.p.b, in.p.weights.a_log,
        in.p.weights.dt_bias};
    for (sc_devptr ptr : all) CUDA_MUST(cudaFree((void *)ptr));
}

sc_pool *state_pool(const bench &b, sc_dtype state, sc_layout layout, uint32_t slots)
{
    sc_schema *schema = nullptr;
    sc_pool *pool = nullptr;
    SC_MUST(sc_schema_preset("qwen3-next-80b-a3b", state, &schema));
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    options.schema = schema, options.layout = layout, options.slot_count = slots;
    options.backend = b.backend;
    SC_MUST(sc_pool_create(&options, &pool));
    sc_schema_release(schema);
    return pool;
}

const char *layout_name(sc_layout layout)
{
    return layout == SC_LAYOUT_PAGE_MAJOR ? "page-major" : "contiguous";
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on one pool and another that differ in their layout alone: page-major must cost at
 * most 3 % more. Slots are random; calls go from layer to layer. */
#ifndef BENCH_GPU_LAYOUTS_CUH
#define BENCH_GPU_LAYOUTS_CUH

#include "gpu_movers.cuh"

namespace {

constexpr uint32_t TOKENS = 16384, SAVES = 16, SHORT_ROWS = 16, SHORT_TOKENS = 64;

/* What the operations read and write besides a pool's layers; one of each serves all. */
struct layered {
    sc_dtype state;
    sc_layer_view window[LAYERS], matrix[LAYERS];
    int32_t *slots, *row_start, *short_start, *zero, *save_row, *save_pos;
    __nv_bfloat16 *x, *y, *weight;
    float *g, *beta;
    movable m;
};

layered layered_open(sc_pool *pool, sc_dtype state)
{
    layered l = {};
    l.state = state;
    for (uint32_t layer = 0, found = 0; found < LAYERS; layer++) {
        if (sc_pool_layer_view(pool, layer, SC_PART_CONV, 0, &l.window[found]) != SC_OK) continue;
        SC_MUST(sc_pool_layer_view(pool, layer, SC_PART_RECURRENT, 0, &l.matrix[found]));
        found++;
    }
    std::vector<int32_t> order(SLOTS), pos(SAVES), row(SAVES, 0), starts(SHORT_ROWS + 1);
    const int32_t start[2] = {0, TOKENS}, zero = 0;
    shuffle(order.data(), SLOTS, 3);
    for (uint32_t i = 0; i < SAVES; i++) pos[i] = (int32_t)((i + 1) * (TOKENS / SAVES));
    for (uint32_t i = 0; i <= SHORT_ROWS; i++) starts[i] = (int32_t)(i * SHORT_TOKENS);
    l.slots = upload(order.data(), SLOTS), l.row_start = upload(start, 2);
    l.short_start = upload(starts.data(), SHORT_ROWS + 1);
    l.zero = upload(&zero, 1), l.save_row = upload(row.data(), SAVES);
    l.save_pos = upload(pos.data(), SAVES);
    l.x = noisy<__nv_bfloat16>((uint64_t)TOKENS * 3 * HV * D);
    l.y = buffer<__nv_bfloat16>((uint64_t)TOKENS * CONV);
    l.weight = noisy<__nv_bfloat16>(CONV * WIDTH);
    l.g = noisy<float>((uint64_t)TOKENS * HV * D, 0.01f, -0.05f);
    l.beta = noisy<float>((uint64_t)TOKENS * HV, 0.1f, 0.5f);
    l.m = movable_open(l.window, l.matrix);
    return l;
}

void layered_close(layered &l)
{
    void *const all[] = {l.slots, l.row_start, l.short_start, l.zero, l.save_row, l.save_pos, l.x,
        l.y, l.weight, l.g, l.beta};
    for (void *ptr : all) CUDA_MUST(cudaFree(ptr));
    movable_close(l.m);
}

template <sc_k_kind KIND> timing layered_decode_us(const bench &b, const layered &l)
{
    const uint32_t batch = 64;
    decode_inputs in = decode_setup(KIND, l.state, batch);
    timing us = graph_us(b.stream, CALLS, [&](uint32_t i) {
        sc_k_decode_packed_params p = in.p;
        p.state = slots_of(l.matrix[i % LAYERS]);
        p.source = p.dest = dev(l.slots + i % (SLOTS / batch) * batch);
        SC_MUST(sc_k_decode_packed(b.backend, &p, as_stream(b.stream)));
    });
    decode_free(in);
    return us;
}

template <sc_k_kind KIND> timing layered_apart_us(const bench &b, const layered &l)
{
    const uint32_t batch = 64;
    decode_inputs in = decode_setup(KIND, l.state, batch);
    timing us = graph_us(b.stream, CALLS, [&](uint32_t i) {
        sc_k_decode_params p = apart_of(in.p);
        p.state = slots_of(l.matrix[i % LAYERS]);
        p.source = p.dest = dev(l.slots + i % (SLOTS / batch) * batch);
        SC_MUST(sc_k_decode(b.backend, &p, as_stream(b.stream)));
    });
    decode_free(in);
    return us;
}

timing layered_update_us(const bench &b, const layered &l)
{
    const uint32_t batch = 256;
    return graph_us(b.stream, CALLS, [&](uint32_t i) {
        sc_k_conv_update_params p = {};
        p.dtype = p.weight_dtype = SC_DTYPE_BF16, p.weight = dev(l.weight);
        p.act = SC_K_ACT_SILU, p.channels = CONV, p.width = WIDTH, p.row_count = batch;
        p.window = slots_of(l.window[i % LAYERS]), p.window_settled = true;
        p.x = dev(l.x + (uint64_t)(i % 32) * batch * CONV);
        p.y = dev(l.y + (uint64_t)(i % 32) * batch * CONV);
        p.source = p.dest = dev(l.slots + i % (SLOTS / batch) * batch);
        SC_MUST(sc_k_conv_update(b.backend, &p, as_stream(b.stream)));
    });
}

/* A row of 16k tokens from zeros, saved every 1,024: both prefills. */
sc_k_saves layered_saves(const layered &l)
{
    return {dev(l.save_row), dev(l.save_pos), dev(l.slots + 1), SAVES};
}

timing layered_conv_us(const bench &b, const layered &l)
{
    return graph_us(b.stream, 8, [&](uint32_t i) {
        sc_k_conv_prefill_params p = {};
        p.x = dev(l.x), p.y = dev(l.y), p.dtype = p.weight_dtype = SC_DTYPE_BF16;
        p.weight = dev(l.weight), p.act = SC_K_ACT_SILU, p.channels = CONV, p.width = WIDTH;
        p.token_count = TOKENS, p.row_count = 1, p.row_start = dev(l.row_start);
        p.source = dev(l.zero), p.dest = dev(l.slots), p.saves = layered_saves(l);
        p.window = slots_of(l.window[i % LAYERS]);
        SC_MUST(sc_k_conv_prefill(b.backend, &p, as_stream(b.stream)));
    });
}

/* Columns [q | k | v] of a packed batch. */
sc_k_delta_params layered_tokens(const layered &l, sc_k_kind kind, uint32_t tokens)
{
    sc_k_delta_params p = {};
    p.shape = shape_of(kind), p.dtype = SC_DTYPE_BF16, p.token_count = tokens;
    uint32_t qk = p.shape.heads * D;
    p.q = dev(l.x), p.k = dev(l.x + qk), p.v = dev(l.x + 2 * qk), p.o = dev(l.y);
    p.q_stride = p.k_stride = p.v_stride = 2 * qk + HV * D;
    p.g = dev(l.g), p.beta = dev(l.beta);
    return p;
}

template <sc_k_kind KIND> timing layered_chunk_us(const bench &b, const layered &l)
{
    sc_k_delta_params p = layered_tokens(l, KIND, TOKENS);
    p.row_count = 1, p.chunk = 64, p.row_start = dev(l.row_start);
    p.source = dev(l.zero), p.dest = dev(l.slots), p.saves = layered_saves(l);
    p.state = slots_of(l.matrix[0]);
    SC_MUST(sc_k_delta_chunk_scratch(b.backend, &p, &p.scratch_bytes));
    uint8_t *scratch = buffer<uint8_t>(p.scratch_bytes);
    p.scratch = dev(scratch);
    timing us = graph_us(b.stream, 4, [&](uint32_t i) {
        sc_k_delta_params q = p;
        q.state = slots_of(l.matrix[i * 8]);
        SC_MUST(sc_k_delta_chunk(b.backend, &q, as_stream(b.stream)));
    });
    CUDA_MUST(cudaFree(scratch));
    return us;
}

/* Short rows from states of their own: half of the bytes are states. */
template <sc_k_kind KIND> timing layered_recurrent_us(const bench &b, const layered &l)
{
    sc_k_delta_params p = layered_tokens(l, KIND, SHORT_ROWS * SHORT_TOKENS);
    p.row_count = SHORT_ROWS, p.row_start = dev(l.short_start);
    return graph_us(b.stream, 16, [&](uint32_t i) {
        sc_k_delta_params q = p;
        q.state = slots_of(l.matrix[i * 2]);
        q.source = q.dest = dev(l.slots + i % (SLOTS / SHORT_ROWS) * SHORT_ROWS);
        SC_MUST(sc_k_delta_recurrent(b.backend, &q, as_stream(b.stream)));
    });
}

template <move_kind KIND> timing layered_move_us(const bench &b, const layered &l)
{
    return move_us(b, l.m, KIND, l.slots);
}

struct layered_op {
    const char *name;
    timing (*us)(const bench &b, const layered &l);
    bool once; /* the states' dtype is nothing to it */
};

const layered_op layered_ops[] = {
    {"GDN decode, B=64", layered_decode_us<SC_K_KIND_GDN>, false},
    {"KDA decode, B=64", layered_decode_us<SC_K_KIND_KDA>, false},
    {"GDN unpacked decode, B=64", layered_apart_us<SC_K_KIND_GDN>, false},
    {"KDA unpacked decode, B=64", layered_apart_us<SC_K_KIND_KDA>, false},
    {"conv update, B=256", layered_update_us, true},
    {"conv prefill, 16384 tokens, saves every 1024", layered_conv_us, true},
    {"GDN chunk prefill, 16384 tokens, saves every 1024", layered_chunk_us<SC_K_KIND_GDN>, false},
    {"KDA chunk prefill, 16384 tokens, saves every 1024", layered_chunk_us<SC_K_KIND_KDA>, false},
    {"GDN token by token, 16 rows of 64", layered_recurrent_us<SC_K_KIND_GDN>, false},
    {"KDA token by token, 16 rows of 64", layered_recurrent_us<SC_K_KIND_KDA>, false},
    {"gather, 8 slots of 36 layers", layered_move_us<GATHER>, false},
    {"scatter, 8 slots of 36 layers", layered_move_us<SCATTER>, false},
    {"gather, 16 slots, every second masked", layered_move_us<MASKED>, false},
    {"slot to slot, 8 slots of 36 layers", layered_move_us<SLOTS_TO_SLOTS>, false},
    {"to the other dtype, 8 slots of 36 layers", layered_move_us<CONVERT>, false},
    {"from the other dtype, 8 slots of 36 layers", layered_move_us<CONVERT_BACK>, false},
    {"to int8, 8 slots of 36 layers", layered_move_us<QUANTISE>, false},
    {"from int8, 8 slots of 36 layers", layered_move_us<QUANTISE_BACK>, false},
};
constexpr int LAYERED_OPS = sizeof layered_ops / sizeof layered_ops[0];

void layered_measure(const bench &b, sc_dtype state, sc_layout layout, timing *us_out)
{
    sc_pool *pool = state_pool(b, state, layout, SLOTS);
    layered l = layered_open(pool, state);
    for (int i = 0; i < LAYERED_OPS; i++)
        us_out[i] = layered_ops[i].once && state != SC_DTYPE_F32 ? timing{}
                                                                 : layered_ops[i].us(b, l);
    layered_close(l);
    SC_MUST(sc_pool_destroy(pool));
}

void layouts(bench &b)
{
    heading(b, "page-major, to contiguous");
    for (sc_dtype state : {SC_DTYPE_F32, SC_DTYPE_BF16}) {
        timing one[LAYERED_OPS], other[LAYERED_OPS];
        layered_measure(b, state, SC_LAYOUT_CONTIGUOUS, one);
        layered_measure(b, state, SC_LAYOUT_PAGE_MAJOR, other);
        for (int i = 0; i < LAYERED_OPS; i++) {
            if (one[i] == 0.0) continue;
            char name[80];
            snprintf(name, sizeof name, "%s%s",
                layered_ops[i].once ? "" : state == SC_DTYPE_F32 ? "fp32 " : "bf16 ",
                layered_ops[i].name);
            report(b, name, other[i], other[i] / one[i], "x contiguous", 1.03, true);
        }
    }
}

} // namespace

#endif

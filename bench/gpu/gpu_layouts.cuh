/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on one pool and another that differ in their layout alone: page-major must cost at
 * most 3 % more. Slots are random; calls go from layer to layer. */
#ifndef BENCH_GPU_LAYOUTS_CUH
#define BENCH_GPU_LAYOUTS_CUH

#include "gpu_cases.cuh"

namespace {

constexpr uint32_t SLOTS = 512, TOKENS = 16384, SAVES = 16;

/* A pool's layers, and tensors that serve every operation. */
struct layered {
    sc_layer_view window[LAYERS], matrix[LAYERS];
    int32_t *slots, *row_start, *zero, *save_row, *save_pos;
    __nv_bfloat16 *x, *y, *weight;
    float *g, *beta;
};

/* Of each operation. */
struct layered_us {
    double decode, update, conv, chunk;
};

layered layered_open(sc_pool *pool)
{
    layered l = {};
    for (uint32_t layer = 0, found = 0; found < LAYERS; layer++) {
        if (sc_pool_layer_view(pool, layer, SC_PART_CONV, 0, &l.window[found]) != SC_OK) continue;
        SC_MUST(sc_pool_layer_view(pool, layer, SC_PART_RECURRENT, 0, &l.matrix[found]));
        found++;
    }
    std::vector<int32_t> order(SLOTS), pos(SAVES), row(SAVES, 0);
    const int32_t start[2] = {0, TOKENS}, zero = 0;
    shuffle(order.data(), SLOTS, 3);
    for (uint32_t i = 0; i < SAVES; i++) pos[i] = (int32_t)((i + 1) * (TOKENS / SAVES));
    l.slots = upload(order.data(), SLOTS), l.row_start = upload(start, 2);
    l.zero = upload(&zero, 1), l.save_row = upload(row.data(), SAVES);
    l.save_pos = upload(pos.data(), SAVES);
    l.x = noisy<__nv_bfloat16>((uint64_t)TOKENS * CONV);
    l.y = buffer<__nv_bfloat16>((uint64_t)TOKENS * CONV);
    l.weight = noisy<__nv_bfloat16>(CONV * WIDTH);
    l.g = noisy<float>((uint64_t)TOKENS * HV, 0.01f, -0.05f);
    l.beta = noisy<float>((uint64_t)TOKENS * HV, 0.1f, 0.5f);
    return l;
}

void layered_close(const layered &l)
{
    void *const all[] = {l.slots, l.row_start, l.zero, l.save_row, l.save_pos, l.x, l.y, l.weight,
        l.g, l.beta};
    for (void *ptr : all) CUDA_MUST(cudaFree(ptr));
}

sc_k_slots slots_of(const sc_layer_view &view)
{
    sc_k_slots slots = {};
    slots.base = view.base, slots.slot_stride = view.slot_stride, slots.dtype = view.dtype;
    return slots;
}

double layered_decode_us(const bench &b, const layered &l, sc_dtype state)
{
    const uint32_t batch = 64;
    decode_inputs in = decode_setup(SC_K_KIND_GDN, state, batch);
    double us = graph_us(b.stream, CALLS, [&](uint32_t i) {
        sc_k_decode_packed_params p = in.p;
        p.state = slots_of(l.matrix[i % LAYERS]);
        p.source = p.dest = dev(l.slots + i % (SLOTS / batch) * batch);
        SC_MUST(sc_k_decode_packed(b.backend, &p, as_stream(b.stream)));
    });
    decode_free(in);
    return us;
}

double layered_update_us(const bench &b, const layered &l)
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

double layered_conv_us(const bench &b, const layered &l)
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

double layered_chunk_us(const bench &b, const layered &l)
{
    sc_k_delta_params p = {};
    p.shape = shape_of(SC_K_KIND_GDN), p.dtype = SC_DTYPE_BF16;
    p.q = dev(l.x), p.k = dev(l.x + H_GDN * D), p.v = dev(l.x + 2 * H_GDN * D), p.o = dev(l.y);
    p.q_stride = p.k_stride = p.v_stride = CONV;
    p.g = dev(l.g), p.beta = dev(l.beta), p.token_count = TOKENS, p.row_count = 1, p.chunk = 64;
    p.row_start = dev(l.row_start), p.source = dev(l.zero), p.dest = dev(l.slots);
    p.saves = layered_saves(l), p.state = slots_of(l.matrix[0]);
    SC_MUST(sc_k_delta_chunk_scratch(b.backend, &p, &p.scratch_bytes));
    uint8_t *scratch = buffer<uint8_t>(p.scratch_bytes);
    p.scratch = dev(scratch);
    double us = graph_us(b.stream, 4, [&](uint32_t i) {
        sc_k_delta_params q = p;
        q.state = slots_of(l.matrix[i * 8]);
        SC_MUST(sc_k_delta_chunk(b.backend, &q, as_stream(b.stream)));
    });
    CUDA_MUST(cudaFree(scratch));
    return us;
}

layered_us layered_measure(const bench &b, sc_dtype state, sc_layout layout)
{
    sc_pool *pool = state_pool(b, state, layout, SLOTS);
    layered l = layered_open(pool);
    layered_us us = {layered_decode_us(b, l, state), layered_update_us(b, l), layered_conv_us(b, l),
        layered_chunk_us(b, l)};
    layered_close(l);
    SC_MUST(sc_pool_destroy(pool));
    return us;
}

void layouts(bench &b)
{
    heading(b, "page-major, to contiguous (GDN)");
    for (sc_dtype state : {SC_DTYPE_F32, SC_DTYPE_BF16}) {
        const layered_us one = layered_measure(b, state, SC_LAYOUT_CONTIGUOUS);
        const layered_us other = layered_measure(b, state, SC_LAYOUT_PAGE_MAJOR);
        const struct {
            const char *name;
            double us, contiguous;
        } rows[] = {{"decode, B=64", other.decode, one.decode},
            {"conv update, B=256", other.update, one.update},
            {"conv prefill, 16384 tokens, saves every 1024", other.conv, one.conv},
            {"chunk prefill, 16384 tokens, saves every 1024", other.chunk, one.chunk}};
        for (const auto &row : rows) {
            char name[80];
            snprintf(name, sizeof name, "%s %s", state == SC_DTYPE_F32 ? "fp32" : "bf16", row.name);
            report(b, name, row.us, row.us / row.contiguous, "x contiguous", 1.03, true);
        }
    }
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* sc_k_move on all layers of a few slots, one call each: to and from dense arrays, as they are, in
 * another dtype, and as int8 with a scale for each row. */
#ifndef BENCH_GPU_MOVERS_CUH
#define BENCH_GPU_MOVERS_CUH

#include "gpu_cases.cuh"

namespace {

constexpr uint32_t SLOTS = 512, MOVED = 8;

enum move_kind {
    GATHER, SCATTER, MASKED, SLOTS_TO_SLOTS, CONVERT, CONVERT_BACK, QUANTISE, QUANTISE_BACK,
    MOVE_KINDS
};

sc_k_slots slots_of(const sc_layer_view &view)
{
    sc_k_slots slots = {};
    slots.base = view.base, slots.slot_stride = view.slot_stride, slots.dtype = view.dtype;
    return slots;
}

/* The parts of a pool as every kind of call has them, and room for the dense ends. */
struct movable {
    std::vector<sc_k_move_part> parts[MOVE_KINDS];
    uint8_t *dense;
    int32_t *masked; /* random slots, and -1 in every second place */
};

/* Entries of a dense array of `elems` elements each, behind what is `used`. */
sc_k_slots dense_of(const movable &m, uint64_t *used, sc_dtype dtype, uint64_t elems,
    uint32_t entries)
{
    uint64_t bytes = elems * (dtype == SC_DTYPE_F32 ? 4 : dtype == SC_DTYPE_BF16 ? 2 : 1);
    sc_k_slots slots = {};
    slots.base = dev(m.dense) + *used, slots.slot_stride = (int64_t)bytes, slots.dtype = dtype;
    *used += (entries * bytes + 255) / 256 * 256;
    return slots;
}

/* One part in one kind of call; windows are moved as they are. */
sc_k_move_part part_of(const movable &m, move_kind kind, const sc_layer_view &view, bool matrix,
    uint64_t *used)
{
    sc_k_move_part p = {};
    p.rows = matrix ? HV * D : WIDTH - 1, p.row_elems = matrix ? D : CONV;
    uint64_t elems = (uint64_t)p.rows * p.row_elems;
    sc_dtype there = view.dtype;
    bool back = kind == SCATTER || kind == CONVERT_BACK || kind == QUANTISE_BACK;
    if (matrix && (kind == CONVERT || kind == CONVERT_BACK))
        there = view.dtype == SC_DTYPE_F32 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    if (matrix && (kind == QUANTISE || kind == QUANTISE_BACK)) there = SC_DTYPE_U8;
    sc_k_slots pool = slots_of(view), other = pool;
    if (kind != SLOTS_TO_SLOTS)
        other = dense_of(m, used, there, elems, kind == MASKED ? 2 * MOVED : MOVED);
    p.from = back ? other : pool, p.to = back ? pool : other;
    if (there == SC_DTYPE_U8)
        (back ? p.from_scale : p.to_scale) = dense_of(m, used, SC_DTYPE_F32, p.rows, MOVED);
    return p;
}

movable movable_open(const sc_layer_view *window, const sc_layer_view *matrix)
{
    movable m = {};
    const uint64_t most = (uint64_t)LAYERS * 2 * MOVED * (HV * D * D * 4 + 4 * CONV * 2);
    m.dense = (uint8_t *)noisy<float>(most / 4, 0.1f);
    for (int kind = 0; kind < MOVE_KINDS; kind++) {
        uint64_t used = 0;
        for (uint32_t i = 0; i < LAYERS; i++) {
            m.parts[kind].push_back(part_of(m, (move_kind)kind, window[i], false, &used));
            m.parts[kind].push_back(part_of(m, (move_kind)kind, matrix[i], true, &used));
        }
        if (used > most) {
            fprintf(stderr, "statecache-bench gpu: %llu bytes of dense arrays\n",
                (unsigned long long)used);
            exit(1);
        }
    }
    std::vector<int32_t> order(SLOTS), masked(2 * SLOTS, -1);
    shuffle(order.data(), SLOTS, 9);
    for (uint32_t i = 0; i < SLOTS; i++) masked[2 * i] = order[i];
    m.masked = upload(masked.data(), 2 * SLOTS);
    return m;
}

void movable_close(const movable &m)
{
    CUDA_MUST(cudaFree(m.dense));
    CUDA_MUST(cudaFree(m.masked));
}

/* `slots`: SLOTS of them, in random order. */
timing move_us(const bench &b, const movable &m, move_kind kind, const int32_t *slots)
{
    return graph_us(b.stream, 8, [&](uint32_t i) {
        sc_k_move_params p = {};
        p.parts = m.parts[kind].data(), p.part_count = (uint32_t)m.parts[kind].size();
        p.row_count = kind == MASKED ? 2 * MOVED : MOVED;
        const sc_devptr at = dev(kind == MASKED ? m.masked + i * 2 * MOVED : slots + i * MOVED);
        bool back = kind == SCATTER || kind == CONVERT_BACK || kind == QUANTISE_BACK;
        if (!back) p.source = at;
        if (back) p.dest = at;
        if (kind == SLOTS_TO_SLOTS) p.dest = dev(slots + SLOTS / 2 + i * MOVED);
        SC_MUST(sc_k_move(b.backend, &p, as_stream(b.stream)));
    });
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The movers on the device: all parts of all rows in one launch, whatever happens to each.
 *
 *   grid.x   tiles of one row: run 0 | run 1 | ...     grid.y   rows
 *
 * A part becomes one work, or two (int8 copied as it is: elements and scales); works of one shape
 * at equal distances in memory are one run, so that a tile finds its work by arithmetic (as in
 * cuda/copy_sm90.cu). The table lies in the kernel's parameters: a call can be captured, and index
 * arrays are read on the device.
 *
 *   copy       4 KB a tile, 16 bytes a thread           convert   2,048 elements a tile, 8 a thread
 *   quantise   short rows of a part: a warp for each, 8 a tile; long ones: a block. Elements are
 *              read twice, the second time from the caches
 *
 * Divisions and roundings are IEEE's: the bits of the host. Bytes: each element in once and out
 * once, of the size that its dtype has there. */
#include "cuda/device_math.cuh"

#include "cuda/launch.cuh"
#include "kernel_dispatch.h"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, COPY_TILE = 4096, PER_THREAD = 8, SHORT_ROW = 1024 };
enum work_kind { COPY, CONVERT, QUANTISE };
constexpr uint32_t CONVERT_TILE = THREADS * PER_THREAD;
constexpr uint32_t RUNS_FEW = 8, RUNS_MOST = 250;

/* The same part of every slot: the nth work of a run is at base + nth * step. */
struct end {
    uint64_t base, step;
    int64_t stride;
};

struct run {
    end from, to, scale;  /* scale: of the end that is U8, in a conversion */
    uint64_t count;       /* bytes of a copy, else elements */
    uint32_t row_elems, kind, from_dtype, to_dtype;
    uint32_t tile, tiles; /* first of the run; of a work */
};

template <uint32_t RUNS> struct table {
    const int32_t *source, *dest;
    uint32_t run_count;
    run runs[RUNS];
};
static_assert(sizeof(table<RUNS_MOST>) <= 32000, "kernel parameters");

SC_DEV uint64_t end_at(const end &e, uint32_t nth, int64_t id)
{
    return e.base + nth * e.step + (uint64_t)(id * e.stride);
}

SC_DEV void copy_tile(uint64_t to, uint64_t from, uint32_t bytes)
{
    uint32_t t = threadIdx.x;
    if (((to | from | bytes) & 15) == 0) {
        if (t * 16 < bytes) ((uint4 *)to)[t] = from != 0 ? ((const uint4 *)from)[t] : uint4{};
    } else {
        for (uint32_t i = t; i < bytes; i += THREADS)
            ((uint8_t *)to)[i] = from != 0 ? ((const uint8_t *)from)[i] : 0;
    }
}

SC_DEV float element(uint64_t base, uint32_t dtype, uint64_t at)
{
    if (dtype == SC_DTYPE_F32) return ((const float *)base)[at];
    if (dtype == SC_DTYPE_BF16) return dev_widen(((const sc_bf16 *)base)[at]);
    return (float)((const int8_t *)base)[at];
}

/* Eight elements from `at` on, which is a multiple of eight; `from` 0: zeros. */
SC_DEV void eight(float (&x)[PER_THREAD], uint64_t from, uint32_t dtype, uint64_t at)
{
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) x[i] = 0.0f;
    if (from == 0) return;
    if (dtype == SC_DTYPE_F32) {
        dev_load_vec<PER_THREAD>(x, (const float *)from + at);
    } else if (dtype == SC_DTYPE_BF16) {
        dev_load_vec<PER_THREAD>(x, (const sc_bf16 *)from + at);
    } else {
        uint2 w = *(const uint2 *)((const int8_t *)from + at);
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++)
            x[i] = (float)(int8_t)((i < 4 ? w.x : w.y) >> 8 * (i % 4));
    }
}

SC_DEV void convert_eight(const run &r, uint64_t to, uint64_t from, const float *scale, uint64_t at)
{
    float x[PER_THREAD];
    eight(x, from, r.from_dtype, at);
    if (scale != nullptr && from != 0)
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) x[i] *= scale[(at + i) / r.row_elems];
    if (r.to_dtype == SC_DTYPE_F32) {
        float4 *out = (float4 *)((float *)to + at);
        out[0] = make_float4(x[0], x[1], x[2], x[3]);
        out[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else {
        *(uint4 *)((sc_bf16 *)to + at) = make_uint4(dev_pack(x[0], x[1]), dev_pack(x[2], x[3]),
            dev_pack(x[4], x[5]), dev_pack(x[6], x[7]));
    }
}

SC_DEV void convert_tile(const run &r, uint64_t to, uint64_t from, const float *scale,
    uint64_t first)
{
    uint64_t at = first + threadIdx.x * PER_THREAD;
    if (((to | from) & 15) == 0 && at + PER_THREAD <= r.count) {
        convert_eight(r, to, from, scale, at);
        return;
    }
    for (uint64_t i = at; i < at + PER_THREAD && i < r.count; i++) {
        float x = from != 0 ? element(from, r.from_dtype, i) : 0.0f;
        if (scale != nullptr && from != 0) x *= scale[i / r.row_elems];
        dev_store(to, (sc_dtype)r.to_dtype, (int64_t)i, x);
    }
}

/* The larger; NaN if there is one. */
SC_DEV float most_of(float a, float b)
{
    return a != a || b != b ? __int_as_float(0x7fffffff) : fmaxf(a, b);
}

SC_DEV float warp_most(float x)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        x = most_of(x, __shfl_xor_sync(0xffffffffu, x, mask));
    return x;
}

SC_DEV float scale_of(float most)
{
    if (!(most < INFINITY)) return __int_as_float(0x7fffffff);
    return most < 0x1p-118f ? 0.0f : __fdiv_rn(most, 127.0f);
}

/* One row of a part by `size` threads, of which this is number `lane`. */
SC_DEV float row_most(const run &r, uint64_t from, uint64_t first, uint32_t lane, uint32_t size)
{
    float most = 0.0f;
    for (uint32_t i = lane; i < r.row_elems; i += size)
        most = most_of(most, fabsf(element(from, r.from_dtype, first + i)));
    return most;
}

SC_DEV void row_store(const run &r, uint64_t to, uint64_t from, uint64_t first, float scale,
    uint32_t lane, uint32_t size)
{
    int8_t *out = (int8_t *)to + first;
    for (uint32_t i = lane; i < r.row_elems; i += size) {
        int q = 0;
        if (scale > 0.0f)
            q = __float2int_rn(__fdiv_rn(element(from, r.from_dtype, first + i), scale));
        out[i] = (int8_t)q;
    }
}

SC_DEV void quantise_tile(const run &r, uint64_t to, uint64_t from, float *scales, uint32_t tile)
{
    __shared__ float parts[WARPS];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    bool is_short = r.row_elems <= SHORT_ROW;
    uint64_t row = is_short ? (uint64_t)tile * WARPS + warp : tile, first = row * r.row_elems;
    if (first >= r.count) return; /* a warp of the last tile: no barrier follows */
    uint32_t at = is_short ? lane : threadIdx.x, size = is_short ? 32 : THREADS;
    float most = from != 0 ? warp_most(row_most(r, from, first, at, size)) : 0.0f;
    if (!is_short) {
        if (lane == 0) parts[warp] = most;
        __syncthreads();
        for (int i = 0; i < WARPS; i++) most = most_of(most, parts[i]);
    }
    float scale = scale_of(most);
    if (at == 0) scales[row] = scale;
    row_store(r, to, from, first, scale, at, size);
}

template <uint32_t RUNS> __global__ void __launch_bounds__(THREADS)
move(const __grid_constant__ table<RUNS> p)
{
    uint32_t n = 0;
    while (n + 1 < p.run_count && blockIdx.x >= p.runs[n + 1].tile) n++;
    const run &r = p.runs[n];
    uint32_t in_run = blockIdx.x - r.tile, nth = in_run / r.tiles, tile = in_run - nth * r.tiles;
    dev_wait_previous();
    dev_release_next();
    int32_t source = p.source != nullptr ? p.source[blockIdx.y] : (int32_t)blockIdx.y;
    int32_t dest = p.dest != nullptr ? p.dest[blockIdx.y] : (int32_t)blockIdx.y;
    if (source < 0 || dest < 0 || (dest == 0 && p.dest != nullptr)) return;
    bool zeros = source == 0 && p.source != nullptr;
    uint64_t to = end_at(r.to, nth, dest), from = zeros ? 0 : end_at(r.from, nth, source);
    if (to == from) return;
    if (r.kind == COPY) {
        uint64_t at = (uint64_t)tile * COPY_TILE, left = r.count - at;
        copy_tile(to + at, zeros ? 0 : from + at, left < COPY_TILE ? (uint32_t)left : COPY_TILE);
    } else if (r.kind == CONVERT) {
        const float *scale = r.from_dtype != SC_DTYPE_U8 ? nullptr
                                                         : (const float *)end_at(r.scale, nth,
                                                               source);
        convert_tile(r, to, from, scale, (uint64_t)tile * CONVERT_TILE);
    } else {
        quantise_tile(r, to, from, (float *)end_at(r.scale, nth, dest), tile);
    }
}

/* ------------------------------------------------------------------------------------ the table */

uint32_t elem_bytes(uint32_t dtype)
{
    return dtype == SC_DTYPE_F32 ? 4 : dtype == SC_DTYPE_BF16 ? 2 : 1;
}

end end_of(const sc_k_slots &slots)
{
    return {slots.base, 0, slots.slot_stride};
}

/* The work of a part, or the `second` of two; false: there is none. */
bool work_of(const sc_k_move_part &p, bool second, run *out)
{
    uint64_t elems = (uint64_t)p.rows * p.row_elems;
    run r = {};
    bool same = p.from.dtype == p.to.dtype, to_u8 = p.to.dtype == SC_DTYPE_U8;
    if (second && !(same && to_u8)) return false;
    r.from = end_of(second ? p.from_scale : p.from), r.to = end_of(second ? p.to_scale : p.to);
    r.row_elems = p.row_elems, r.from_dtype = p.from.dtype, r.to_dtype = p.to.dtype;
    if (same) {
        r.kind = COPY;
        r.count = second ? 4ull * p.rows : elems * elem_bytes(p.to.dtype);
        r.tiles = (uint32_t)((r.count + COPY_TILE - 1) / COPY_TILE);
    } else {
        r.kind = to_u8 ? QUANTISE : CONVERT;
        r.count = elems;
        if (to_u8 || p.from.dtype == SC_DTYPE_U8) r.scale = end_of(to_u8 ? p.to_scale
                                                                         : p.from_scale);
        r.tiles = !to_u8 ? (uint32_t)((elems + CONVERT_TILE - 1) / CONVERT_TILE)
            : p.row_elems <= SHORT_ROW ? (p.rows + WARPS - 1) / WARPS : p.rows;
    }
    *out = r;
    return true;
}

bool alike(const run &a, const run &b)
{
    return a.kind == b.kind && a.count == b.count && a.row_elems == b.row_elems
        && a.from_dtype == b.from_dtype && a.to_dtype == b.to_dtype
        && a.from.stride == b.from.stride && a.to.stride == b.to.stride
        && a.scale.stride == b.scale.stride;
}

/* Is `b` where the next work of `*r`, which has `members`, would be? Its second one says where. */
bool joins(run *r, const run &b, uint32_t members)
{
    end *ends[] = {&r->from, &r->to, &r->scale};
    const end *others[] = {&b.from, &b.to, &b.scale};
    if (!alike(*r, b)) return false;
    for (int i = 0; i < 3; i++) {
        uint64_t step = members == 1 ? others[i]->base - ends[i]->base : ends[i]->step;
        if (others[i]->base != ends[i]->base + members * step) return false;
    }
    for (int i = 0; members == 1 && i < 3; i++) ends[i]->step = others[i]->base - ends[i]->base;
    return true;
}

/* Adds the work to a run that it continues, or as a run of its own; false: no room. */
bool table_add(table<RUNS_MOST> *t, uint32_t *members, const run &work)
{
    for (uint32_t i = 0; i < t->run_count; i++)
        if (joins(&t->runs[i], work, members[i])) {
            members[i]++;
            return true;
        }
    if (t->run_count == RUNS_MOST) return false;
    members[t->run_count] = 1;
    t->runs[t->run_count++] = work;
    return true;
}

template <uint32_t RUNS>
sc_status launch(const table<RUNS_MOST> &all, uint32_t tiles, uint32_t rows, sc_stream *stream)
{
    table<RUNS> t;
    t.run_count = all.run_count;
    for (uint32_t i = 0; i < all.run_count; i++) t.runs[i] = all.runs[i];
    for (uint32_t r = 0; r < rows; r += 65535) {
        uint32_t count = rows - r < 65535 ? rows - r : 65535;
        t.source = all.source != nullptr ? all.source + r : nullptr;
        t.dest = all.dest != nullptr ? all.dest + r : nullptr;
        SC_TRY(sc_cuda_launch("move", move<RUNS>, dim3(tiles, count), THREADS, 0, stream, t));
        for (uint32_t i = 0; i < t.run_count; i++) { /* dense ends: entry r belongs to row r */
            if (t.source == nullptr) t.runs[i].from.base += 65535ull * t.runs[i].from.stride;
            if (t.dest == nullptr) t.runs[i].to.base += 65535ull * t.runs[i].to.stride;
            bool of_to = t.runs[i].to_dtype == SC_DTYPE_U8;
            if ((of_to ? t.dest : t.source) == nullptr)
                t.runs[i].scale.base += 65535ull * t.runs[i].scale.stride;
        }
    }
    return SC_OK;
}

/* One launch of what the table has, which is empty afterwards. */
sc_status flush(table<RUNS_MOST> *t, const uint32_t *members, uint32_t rows, sc_stream *stream)
{
    uint64_t tile = 0;
    for (uint32_t i = 0; i < t->run_count; i++) {
        t->runs[i].tile = (uint32_t)tile;
        tile += (uint64_t)members[i] * t->runs[i].tiles;
    }
    if (tile > INT32_MAX)
        return SC_FAIL(SC_ERR_OVERFLOW, "a row of %llu tiles", (unsigned long long)tile);
    SC_TRY(t->run_count <= RUNS_FEW ? launch<RUNS_FEW>(*t, (uint32_t)tile, rows, stream)
                                    : launch<RUNS_MOST>(*t, (uint32_t)tile, rows, stream));
    t->run_count = 0;
    return SC_OK;
}

} // namespace

sc_status sc_k_move_sm90(const void *params, sc_stream *stream)
{
    const sc_k_move_params *p = (const sc_k_move_params *)params;
    table<RUNS_MOST> t;
    uint32_t members[RUNS_MOST];
    t.source = (const int32_t *)p->source, t.dest = (const int32_t *)p->dest;
    t.run_count = 0;
    for (uint32_t i = 0; i < 2 * p->part_count; i++) {
        run work;
        if (!work_of(p->parts[i / 2], i % 2 != 0, &work)) continue;
        if (table_add(&t, members, work)) continue;
        SC_TRY(flush(&t, members, p->row_count, stream));
        (void)table_add(&t, members, work);
    }
    return t.run_count > 0 ? flush(&t, members, p->row_count, stream) : SC_OK;
}

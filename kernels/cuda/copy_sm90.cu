/* SPDX-License-Identifier: Apache-2.0 */
/* Device-to-device copies: all parts of all rows in one launch, and lists of spans.
 *
 *   grid.x   tiles of 4 KB of one row: run 0 | run 1 | ...     grid.y   rows
 *
 * Parts that follow each other in memory at both ends are one part: all of a page-major slot. Parts
 * of one size at equal distances are one run (all states of a contiguous pool, all windows), so
 * that a tile finds its part by arithmetic. The table lies in the kernel's parameters: a launch
 * needs no copy before it and can be captured. Every launch brings its parameters along, so there
 * is a small table for the usual call and a large one.
 *
 * Bytes: each once in, once out. 4 KB a block (256 threads x 16 bytes) is what measured best: 1 KB
 * meets the launch rate of blocks, 16 KB leaves tails. */
#include "cuda/device_math.cuh"

#include "cuda/launch.cuh"

namespace {

constexpr uint32_t TILE_BYTES = 4096, THREADS = 256, PARTS = 256;

/* Parts of `bytes` bytes, `tiles` tiles each, from tile `tile` of a row on: the nth at
 * base + nth * step + slot * stride. */
struct run {
    uint64_t bytes, dst, src, dst_step, src_step, dst_stride, src_stride;
    uint32_t tile, tiles;
};

template <uint32_t RUNS_, uint32_t ROWS_> struct table {
    static constexpr uint32_t RUNS = RUNS_, ROWS = ROWS_;
    const int32_t *dst_slots, *src_slots; /* on the device, or NULL: `slots` */
    uint32_t run_count;
    run runs[RUNS];
    int2 slots[ROWS];                     /* dst, src */
};
typedef table<8, 64> small_table;
typedef table<PARTS, 1920> large_table;
static_assert(sizeof(small_table) <= 1100 && sizeof(large_table) <= 32000, "kernel parameters");

/* Up to TILE_BYTES bytes by one block. Vectors as wide as the alignment of both ends allows. */
__device__ __forceinline__ void tile_copy(uint64_t dst, uint64_t src, uint32_t bytes)
{
    uint32_t t = threadIdx.x;
    if (((dst | src | bytes) & 15) == 0) {
        if (t * 16 < bytes) ((uint4 *)dst)[t] = ((const uint4 *)src)[t];
    } else if (((dst | src | bytes) & 3) == 0) {
        for (uint32_t i = t; i * 4 < bytes; i += THREADS)
            ((uint32_t *)dst)[i] = ((const uint32_t *)src)[i];
    } else {
        for (uint32_t i = t; i < bytes; i += THREADS)
            ((uint8_t *)dst)[i] = ((const uint8_t *)src)[i];
    }
}

template <class T> __global__ void __launch_bounds__(THREADS)
copy_rows(const __grid_constant__ T p)
{
    uint32_t row = blockIdx.y, r = 0;
    while (r + 1 < p.run_count && blockIdx.x >= p.runs[r + 1].tile) r++;
    const run &x = p.runs[r];
    uint32_t in_run = blockIdx.x - x.tile, nth = in_run / x.tiles;
    uint64_t at = (uint64_t)(in_run - nth * x.tiles) * TILE_BYTES, left = x.bytes - at;
    uint64_t to = x.dst + nth * x.dst_step + at, from = x.src + nth * x.src_step + at;
    dev_wait_previous();
    dev_release_next();
    int2 slot = p.dst_slots == nullptr ? p.slots[row]
                                       : make_int2(p.dst_slots[row], p.src_slots[row]);
    if (slot.x < 0 || slot.y < 0) return;
    tile_copy(to + (uint64_t)slot.x * x.dst_stride, from + (uint64_t)slot.y * x.src_stride,
        left < TILE_BYTES ? (uint32_t)left : TILE_BYTES);
}

template <uint32_t COUNT> struct span_table {
    sc_backend_span spans[COUNT];
    uint32_t tile[COUNT]; /* first tile of each */
    uint32_t count;
};
constexpr uint32_t SPANS_FEW = 32, SPANS = 1024;
static_assert(sizeof(span_table<SPANS>) <= 32000, "kernel parameters");

template <uint32_t COUNT> __global__ void __launch_bounds__(THREADS)
copy_spans(const __grid_constant__ span_table<COUNT> p)
{
    uint32_t low = 0, high = p.count;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (p.tile[middle] <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    uint64_t at = (uint64_t)(blockIdx.x - p.tile[low]) * TILE_BYTES;
    uint64_t left = p.spans[low].bytes - at;
    dev_wait_previous();
    dev_release_next();
    tile_copy(p.spans[low].dst + at, p.spans[low].src + at,
        left < TILE_BYTES ? (uint32_t)left : TILE_BYTES);
}

uint64_t tiles_of(uint64_t bytes)
{
    return (bytes + TILE_BYTES - 1) / TILE_BYTES;
}

/* Parts from `first` on, those that follow each other joined, until PARTS are full or there are no
 * more; empty ones are left out. Returns the first part that is not in. */
uint32_t parts_join(const sc_backend_rows *rows, uint32_t first, sc_backend_part *out,
    uint32_t *count_out)
{
    uint32_t i = first, count = 0;
    for (; i < rows->part_count; i++) {
        const sc_backend_part &x = rows->parts[i];
        sc_backend_part *last = count > 0 ? &out[count - 1] : nullptr;
        if (x.bytes == 0) continue;
        if (last != nullptr && x.dst == last->dst + last->bytes && x.src == last->src + last->bytes
            && x.dst_stride == last->dst_stride && x.src_stride == last->src_stride) {
            last->bytes += x.bytes;
            continue;
        }
        if (count == PARTS) break;
        out[count++] = x;
    }
    *count_out = count;
    return i;
}

bool alike(const sc_backend_part &x, const run &r)
{
    return x.bytes == r.bytes && x.dst_stride == r.dst_stride && x.src_stride == r.src_stride;
}

/* The runs of `count` parts, whatever order they come in: [state window state window]. Returns how
 * many; *tiles_out: tiles of a row. */
uint32_t runs_make(const sc_backend_part *parts, uint32_t count, run *runs, uint64_t *tiles_out)
{
    bool taken[PARTS] = {false};
    uint32_t used = 0;
    uint64_t tile = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (taken[i]) continue;
        const sc_backend_part &x = parts[i];
        run r = {x.bytes, x.dst, x.src, 0, 0, x.dst_stride, x.src_stride, (uint32_t)tile,
            (uint32_t)tiles_of(x.bytes)};
        uint32_t members = 1;
        for (uint32_t j = i + 1; j < count; j++) {
            if (taken[j] || !alike(parts[j], r)) continue;
            if (members == 1) r.dst_step = parts[j].dst - r.dst, r.src_step = parts[j].src - r.src;
            if (parts[j].dst != r.dst + members * r.dst_step
                || parts[j].src != r.src + members * r.src_step)
                continue;
            taken[j] = true;
            members++;
        }
        tile += (uint64_t)members * tiles_of(x.bytes);
        runs[used++] = r;
    }
    *tiles_out = tile;
    return used;
}

template <class T> sc_status launch_rows(const sc_backend_rows *rows, const run *runs,
    uint32_t run_count, uint32_t tiles, cudaStream_t stream)
{
    T t;
    uint32_t row_max = rows->slots_on_device ? 65535 : T::ROWS;
    t.run_count = run_count;
    for (uint32_t i = 0; i < run_count; i++) t.runs[i] = runs[i];
    for (uint32_t r = 0; r < rows->row_count; r += row_max) {
        uint32_t count = rows->row_count - r < row_max ? rows->row_count - r : row_max;
        t.dst_slots = rows->slots_on_device ? rows->dst_slots + r : nullptr;
        t.src_slots = rows->slots_on_device ? rows->src_slots + r : nullptr;
        for (uint32_t i = 0; i < count && !rows->slots_on_device; i++)
            t.slots[i] = make_int2(rows->dst_slots[r + i], rows->src_slots[r + i]);
        SC_TRY(sc_cuda_launch("copy_rows", copy_rows<T>, dim3(tiles, count), THREADS, 0,
            (sc_stream *)(void *)stream, t));
    }
    return SC_OK;
}

template <uint32_t COUNT>
sc_status launch_spans(const span_table<SPANS> &all, uint32_t tiles, cudaStream_t stream)
{
    span_table<COUNT> t;
    t.count = all.count;
    for (uint32_t i = 0; i < all.count; i++) t.spans[i] = all.spans[i], t.tile[i] = all.tile[i];
    return sc_cuda_launch("copy_spans", copy_spans<COUNT>, dim3(tiles), THREADS, 0,
        (sc_stream *)(void *)stream, t);
}

} // namespace

sc_status sc_cuda_copy_rows(const struct sc_backend_rows *rows, cudaStream_t stream)
{
    sc_backend_part parts[PARTS];
    run runs[PARTS];
    for (uint32_t first = 0; first < rows->part_count;) {
        uint64_t tiles = 0;
        uint32_t count = 0;
        first = parts_join(rows, first, parts, &count);
        uint32_t run_count = runs_make(parts, count, runs, &tiles);
        if (tiles > INT32_MAX)
            return SC_FAIL(SC_ERR_OVERFLOW, "a row of %llu tiles", (unsigned long long)tiles);
        if (tiles == 0) continue;
        bool few = run_count <= small_table::RUNS
            && (rows->slots_on_device || rows->row_count <= small_table::ROWS);
        SC_TRY(few ? launch_rows<small_table>(rows, runs, run_count, (uint32_t)tiles, stream)
                   : launch_rows<large_table>(rows, runs, run_count, (uint32_t)tiles, stream));
    }
    return SC_OK;
}

sc_status sc_cuda_copy_spans(const struct sc_backend_span *spans, uint32_t count,
    cudaStream_t stream)
{
    span_table<SPANS> t;
    for (uint32_t i = 0; i < count;) {
        uint64_t tile = 0;
        for (t.count = 0; i < count && t.count < SPANS; i++) {
            uint64_t tiles = tiles_of(spans[i].bytes);
            if (tiles == 0) continue;
            if (tile + tiles > INT32_MAX) {
                if (t.count > 0) break;
                return SC_FAIL(SC_ERR_OVERFLOW, "a span of %llu bytes",
                    (unsigned long long)spans[i].bytes);
            }
            t.spans[t.count] = spans[i];
            t.tile[t.count++] = (uint32_t)tile;
            tile += tiles;
        }
        if (t.count == 0) break;
        SC_TRY(t.count <= SPANS_FEW ? launch_spans<SPANS_FEW>(t, (uint32_t)tile, stream)
                                    : launch_spans<SPANS>(t, (uint32_t)tile, stream));
    }
    return SC_OK;
}

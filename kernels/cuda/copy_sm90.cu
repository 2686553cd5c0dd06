/* SPDX-License-Identifier: Apache-2.0 */
/* Device-to-device copies: all parts of all rows in one launch, and lists of spans.
 *
 *   grid.x   tiles of 4 KB of one row: part 0 | part 1 | ...     grid.y   rows
 *
 * A part is found from its tile by arithmetic: parts are handed over in runs of equal size, and
 * there are few (36 states, 36 windows: two runs). The table lives in the kernel's parameters, so
 * that a launch needs no copy before it and can be captured.
 *
 * Bytes: each once in, once out. 4 KB a block (256 threads x 16 bytes) is what measured best: 1 KB
 * meets the launch rate of blocks, 16 KB leaves tails. */
#include "cuda/cuda_backend.h"

#include <string.h>

#include "cuda/cuda_error.h"

namespace {

constexpr uint32_t TILE_BYTES = 4096, THREADS = 256, PARTS = 224, ROWS = 2048, RUNS = 16;
constexpr uint32_t SPANS = 1024;

struct part {
    uint64_t dst, src, dst_stride, src_stride;
};

/* Parts first .. of one size, `tiles` tiles each, from tile `tile` of a row on. */
struct run {
    uint64_t bytes;
    uint32_t tile, tiles, first;
};

struct table {
    run runs[RUNS];
    part parts[PARTS];
    const int32_t *dst_slots, *src_slots; /* on the device, or NULL: `slots` */
    uint32_t run_count;
    int2 slots[ROWS];                     /* dst, src */
};
static_assert(sizeof(table) <= 32000, "kernel parameters");

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

__global__ void __launch_bounds__(THREADS) copy_rows(const __grid_constant__ table p)
{
    int64_t dst, src;
    uint32_t row = blockIdx.y, tile = blockIdx.x, r = 0;
    if (p.dst_slots != nullptr) {
        dst = p.dst_slots[row];
        src = p.src_slots[row];
    } else {
        dst = p.slots[row].x;
        src = p.slots[row].y;
    }
    if (dst < 0 || src < 0) return;
    while (r + 1 < p.run_count && tile >= p.runs[r + 1].tile) r++;
    uint32_t in_run = tile - p.runs[r].tile, nth = in_run / p.runs[r].tiles;
    const part &x = p.parts[p.runs[r].first + nth];
    uint64_t at = (uint64_t)(in_run - nth * p.runs[r].tiles) * TILE_BYTES;
    uint64_t left = p.runs[r].bytes - at;
    tile_copy(x.dst + (uint64_t)dst * x.dst_stride + at, x.src + (uint64_t)src * x.src_stride + at,
        left < TILE_BYTES ? (uint32_t)left : TILE_BYTES);
}

struct span_table {
    sc_backend_span spans[SPANS];
    uint32_t tile[SPANS]; /* first tile of each */
    uint32_t count;
};
static_assert(sizeof(span_table) <= 32000, "kernel parameters");

__global__ void __launch_bounds__(THREADS) copy_spans(const __grid_constant__ span_table p)
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
    tile_copy(p.spans[low].dst + at, p.spans[low].src + at,
        left < TILE_BYTES ? (uint32_t)left : TILE_BYTES);
}

uint64_t tiles_of(uint64_t bytes)
{
    return (bytes + TILE_BYTES - 1) / TILE_BYTES;
}

/* Parts from `first` on, as many as fit one table; returns how many, and the tiles of a row. Parts
 * of one size are brought together, whatever order they come in: [rec conv rec conv]. */
uint32_t table_fill(table *t, const sc_backend_rows *rows, uint32_t first, uint64_t *tiles_out)
{
    uint32_t most = rows->part_count - first < PARTS ? rows->part_count - first : PARTS;
    uint32_t used = 0, done = 0;
    uint64_t tile = 0;
    bool taken[PARTS] = {false};
    t->run_count = 0;
    for (uint32_t i = 0; i < most && t->run_count < RUNS; i++) {
        uint64_t bytes = rows->parts[first + i].bytes;
        if (taken[i]) continue;
        run *x = &t->runs[t->run_count];
        *x = run{bytes, (uint32_t)tile, (uint32_t)tiles_of(bytes), used};
        for (uint32_t j = i; j < most; j++) {
            const sc_backend_part *from = &rows->parts[first + j];
            if (taken[j] || from->bytes != bytes) continue;
            taken[j] = true;
            if (bytes == 0) continue;
            t->parts[used++] = part{from->dst, from->src, from->dst_stride, from->src_stride};
            tile += x->tiles;
        }
        if (bytes > 0) t->run_count++;
    }
    while (done < most && taken[done]) done++;
    if (done < most) { /* more than RUNS sizes: only what comes before the first left out */
        sc_backend_rows fewer = *rows;
        fewer.part_count = first + done;
        return table_fill(t, &fewer, first, tiles_out);
    }
    *tiles_out = tile;
    return done;
}

} // namespace

sc_status sc_cuda_copy_rows(const struct sc_backend_rows *rows, cudaStream_t stream)
{
    table t;
    uint32_t row_max = rows->slots_on_device ? 65535 : ROWS;
    for (uint32_t first = 0, n; first < rows->part_count; first += n) {
        uint64_t tiles = 0;
        n = table_fill(&t, rows, first, &tiles);
        if (tiles > INT32_MAX)
            return SC_FAIL(SC_ERR_OVERFLOW, "a row of %llu tiles", (unsigned long long)tiles);
        if (tiles == 0) continue;
        for (uint32_t r = 0; r < rows->row_count; r += row_max) {
            uint32_t count = rows->row_count - r < row_max ? rows->row_count - r : row_max;
            t.dst_slots = rows->slots_on_device ? rows->dst_slots + r : nullptr;
            t.src_slots = rows->slots_on_device ? rows->src_slots + r : nullptr;
            for (uint32_t i = 0; i < count && !rows->slots_on_device; i++)
                t.slots[i] = make_int2(rows->dst_slots[r + i], rows->src_slots[r + i]);
            copy_rows<<<dim3((unsigned)tiles, count), THREADS, 0, stream>>>(t);
            SC_TRY(sc_cuda_check(cudaGetLastError(), "copy_rows"));
        }
    }
    return SC_OK;
}

sc_status sc_cuda_copy_spans(const struct sc_backend_span *spans, uint32_t count,
    cudaStream_t stream)
{
    span_table t;
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
        copy_spans<<<(unsigned)tile, THREADS, 0, stream>>>(t);
        SC_TRY(sc_cuda_check(cudaGetLastError(), "copy_spans"));
    }
    return SC_OK;
}

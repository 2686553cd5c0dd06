/* SPDX-License-Identifier: Apache-2.0 */
/* What the GPU benchmark measures against: plain kernels that move the same bytes and do no
 * arithmetic of a model, inputs, and timing by replaying a captured graph. */
#ifndef BENCH_GPU_PROBE_CUH
#define BENCH_GPU_PROBE_CUH

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <vector>

#include "statecache/statecache.h"

#define CUDA_MUST(call)                                                                            \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) {                                                               \
            fprintf(stderr, "statecache-bench gpu: %s: %s\n", #call, cudaGetErrorString(error_));  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define SC_MUST(call)                                                                              \
    do {                                                                                           \
        sc_status status_ = (call);                                                                \
        if (status_ != SC_OK) {                                                                    \
            fprintf(stderr, "statecache-bench gpu: %s: %s: %s\n", #call, sc_status_name(status_),  \
                sc_last_error()->text);                                                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

namespace probe {

__device__ inline uint32_t hash(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    return (uint32_t)(x >> 32);
}

/* Bell-shaped values, sums of four 16-bit numbers. */
template <typename T> __global__ void noise(T *out, uint64_t count, float scale, float shift,
    uint64_t seed)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t a = hash(i * 2 + seed), b = hash(i * 2 + 1 + seed);
        float sum = (float)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) / 65536.0f;
        out[i] = (T)(scale * 1.7320508f * (sum - 2.0f) + shift);
    }
}

/* In place on whole slots: every byte read, changed and written. PER vectors of 16 bytes a thread,
 * all loaded before the first is stored. */
template <int THREADS, int PER> __global__ void __launch_bounds__(THREADS)
rewrite(uint4 *base, uint64_t slot_vectors, const int32_t *slots)
{
    uint4 *at = base + (uint64_t)slots[blockIdx.y] * slot_vectors
        + (uint64_t)blockIdx.x * THREADS * PER + threadIdx.x;
    uint4 x[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) x[i] = at[i * THREADS];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        x[i].x ^= 0x80000000u, x[i].y ^= 0x80000000u;
        x[i].z ^= 0x80000000u, x[i].w ^= 0x80000000u;
        at[i * THREADS] = x[i];
    }
}

__global__ void read_all(const uint4 *base, uint64_t count, uint32_t *out)
{
    uint32_t sum = 0;
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x * 4 + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x * 4) {
        uint4 x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = i + j * blockDim.x < count ? base[i + j * blockDim.x] : uint4{0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < 4; j++) sum ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
    }
    if (sum == 0x12345678u) *out = sum;
}

template <typename T> T *buffer(uint64_t count)
{
    void *ptr = nullptr;
    CUDA_MUST(cudaMalloc(&ptr, count * sizeof(T)));
    return (T *)ptr;
}

template <typename T> T *noisy(uint64_t count, float scale = 1.0f, float shift = 0.0f)
{
    static uint64_t seed = 1;
    T *out = buffer<T>(count);
    noise<T><<<4096, 256>>>(out, count, scale, shift, seed++ << 40);
    CUDA_MUST(cudaGetLastError());
    return out;
}

inline int32_t *upload(const int32_t *host, uint64_t count)
{
    int32_t *out = buffer<int32_t>(count);
    CUDA_MUST(cudaMemcpy(out, host, count * 4, cudaMemcpyHostToDevice));
    return out;
}

inline sc_devptr dev(const void *ptr)
{
    return (sc_devptr)(uintptr_t)ptr;
}

/* 1 .. count in random order. */
inline void shuffle(int32_t *out, uint32_t count, uint32_t seed)
{
    uint64_t x = seed * 2654435761u + 12345;
    for (uint32_t i = 0; i < count; i++) out[i] = (int32_t)i + 1;
    for (uint32_t i = count; i > 1; i--) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(out[i - 1], out[(x >> 33) % i]);
    }
}

/* Times of a call in us: the median, which stands for it, the least, the 99th per cent, and how
 * often it was taken. */
struct timing {
    double us, least, p99;
    int count;
    operator double() const { return us; }
};

inline timing timing_of(std::vector<double> us)
{
    std::sort(us.begin(), us.end());
    return {us[us.size() / 2], us[0], us[(us.size() * 99 - 1) / 100], (int)us.size()};
}

/* The time of `once`, which is `calls` calls. After a pause, such as a large allocation,
 * clocks and links are slow for more than a tenth of a second: `once` is run for twice that before
 * the first is timed. */
template <typename F> timing median_us(cudaStream_t stream, uint32_t calls, F once, int repeats)
{
    cudaEvent_t from, to;
    std::vector<double> us;
    auto begin = std::chrono::steady_clock::now();
    CUDA_MUST(cudaEventCreate(&from));
    CUDA_MUST(cudaEventCreate(&to));
    do {
        once();
        CUDA_MUST(cudaStreamSynchronize(stream));
    } while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(200));
    for (int i = 0; i < repeats; i++) {
        float ms = 0.0f;
        CUDA_MUST(cudaEventRecord(from, stream));
        once();
        CUDA_MUST(cudaEventRecord(to, stream));
        CUDA_MUST(cudaEventSynchronize(to));
        CUDA_MUST(cudaEventElapsedTime(&ms, from, to));
        us.push_back(ms * 1e3 / calls);
    }
    CUDA_MUST(cudaEventDestroy(from));
    CUDA_MUST(cudaEventDestroy(to));
    return timing_of(us);
}

/* The time of one call: `calls` of them are captured in a graph, which is replayed. */
template <typename F> timing graph_us(cudaStream_t stream, uint32_t calls, F call, int replays = 9)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < calls; i++) call(i);
    CUDA_MUST(cudaStreamEndCapture(stream, &graph));
    CUDA_MUST(cudaGraphInstantiate(&exec, graph, 0));
    timing us = median_us(stream, calls, [&] { CUDA_MUST(cudaGraphLaunch(exec, stream)); },
        replays);
    CUDA_MUST(cudaGraphExecDestroy(exec));
    CUDA_MUST(cudaGraphDestroy(graph));
    return us;
}

/* How much faster `other` is than `once`, in per cent of its time (100: as fast), and the time of
 * `once`. They take turns, and each pair gives a ratio, of which this is the median: a link
 * or a clock that changes changes both. */
template <typename F, typename G>
double paired_percent(cudaStream_t stream, G other, F once, timing *us_out, int pairs = 15)
{
    cudaEvent_t at[3];
    std::vector<double> percent, us;
    for (cudaEvent_t &event : at) CUDA_MUST(cudaEventCreate(&event));
    auto begin = std::chrono::steady_clock::now();
    while ((int)us.size() < pairs) {
        float plain = 0.0f, ours = 0.0f;
        bool warm = std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(200);
        CUDA_MUST(cudaEventRecord(at[0], stream));
        other();
        CUDA_MUST(cudaEventRecord(at[1], stream));
        CUDA_MUST(cudaStreamSynchronize(stream));
        CUDA_MUST(cudaEventElapsedTime(&plain, at[0], at[1]));
        CUDA_MUST(cudaEventRecord(at[1], stream));
        once();
        CUDA_MUST(cudaEventRecord(at[2], stream));
        CUDA_MUST(cudaStreamSynchronize(stream));
        CUDA_MUST(cudaEventElapsedTime(&ours, at[1], at[2]));
        if (!warm) continue;
        percent.push_back(100.0 * plain / ours), us.push_back(ours * 1e3);
    }
    for (cudaEvent_t event : at) CUDA_MUST(cudaEventDestroy(event));
    std::sort(percent.begin(), percent.end());
    *us_out = timing_of(us);
    return percent[percent.size() / 2];
}

/* The same for calls made one after the other. */
template <typename F> timing eager_us(cudaStream_t stream, uint32_t calls, F call, int repeats = 9)
{
    return median_us(stream, calls, [&] {
        for (uint32_t j = 0; j < calls; j++) call(j);
    }, repeats);
}

} // namespace probe

#endif

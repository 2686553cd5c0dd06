/* SPDX-License-Identifier: Apache-2.0 */
#include "device_memory.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "bench_common.h"
#include "machine.h"

/* Blocks that were given back. A forward takes and gives the same few sizes again and again, and
 * asking the driver each time would take longer than the layer. */
struct kept {
    void *memory;
    size_t bytes;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *kept;               /* under lock */
static size_t kept_count, kept_cap;     /* under lock */

static void must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        bench_fail(error == cudaErrorMemoryAllocation ? BENCH_NO_MEMORY : BENCH_CHECK_FAILED,
            "%s: %s", what, cudaGetErrorString(error));
}

static pthread_once_t named = PTHREAD_ONCE_INIT;

static void name_device(void)
{
    struct cudaDeviceProp prop;
    int device = 0;
    must(cudaGetDevice(&device), "cudaGetDevice");
    must(cudaGetDeviceProperties(&prop, device), "cudaGetDeviceProperties");
    bench_machine_gpu(prop.name);
}

/* Powers of two, so that blocks fit again. */
static size_t device_size(size_t bytes)
{
    size_t size = 4096;
    while (size < bytes)
        size *= 2;
    return size;
}

void *device_take(size_t bytes)
{
    size_t size = device_size(bytes);
    void *memory = NULL;
    pthread_once(&named, name_device);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < kept_count && !memory; i++)
        if (kept[i].bytes == size) {
            memory = kept[i].memory;
            kept[i] = kept[--kept_count];
        }
    pthread_mutex_unlock(&lock);
    if (!memory)
        must(cudaMalloc(&memory, size), "cudaMalloc");
    return memory;
}

void device_give(void *memory, size_t bytes)
{
    pthread_mutex_lock(&lock);
    kept = bench_grow(kept, &kept_cap, kept_count + 1, sizeof *kept);
    kept[kept_count++] = (struct kept){memory, device_size(bytes)};
    pthread_mutex_unlock(&lock);
}

void *device_take_host(size_t bytes)
{
    void *memory = NULL;
    must(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    return memory;
}

void device_give_host(void *memory)
{
    must(cudaFreeHost(memory), "cudaFreeHost");
}

/* In CUDA's legacy stream, which waits for the backend's default stream and the other way round. */
void device_copy(void *to, const void *from, size_t bytes)
{
    must(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
}

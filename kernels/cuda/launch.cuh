/* SPDX-License-Identifier: Apache-2.0 */
/* Launching with or without the edge that lets a kernel's beginning overlap the end of the one
 * before it (programmatic dependent launch). Every kernel launched with it waits for the kernel
 * before to finish before it touches what that may have written. */
#ifndef SC_CUDA_LAUNCH_CUH
#define SC_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "cuda/cuda_error.h"
#include "cuda/cuda_backend.h"

template <typename... Args, typename... Given>
static sc_status sc_cuda_launch(const char *what, void (*kernel)(Args...), dim3 grid,
    unsigned threads, unsigned shared_bytes, sc_stream *stream, Given... given)
{
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = sc_cuda_stream(stream);
    config.attrs = &overlap;
    config.numAttrs = 1;
    SC_TRY(sc_cuda_enter());
    return sc_cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Args>(given)...), what);
}

#endif

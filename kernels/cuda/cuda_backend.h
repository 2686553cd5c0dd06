/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA launchers need of the backend: its stream, and one place where an error of the
 * runtime becomes a status.
 *
 * A failed launch, a bad access or a hardware error breaks the context for good. The first such
 * error sets a flag that is never cleared; from then on every call answers SC_ERR_DEVICE_LOST
 * without touching the device, and freeing does nothing. */
#ifndef SC_CUDA_BACKEND_H
#define SC_CUDA_BACKEND_H

#include <cuda_runtime_api.h>

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* SC_OK, or the status of an error that `what` met; remembers a lost device. */
sc_status sc_cuda_check(cudaError_t error, const char *what);
/* Before the first runtime call: SC_ERR_DEVICE_LOST after a loss, else makes the device current. */
sc_status sc_cuda_enter(void);
/* NULL is the backend's own default stream; any other sc_stream is a cudaStream_t. */
cudaStream_t sc_cuda_stream(sc_stream *stream);
/* Multiprocessors of the device; 0 before it has been opened. */
uint32_t sc_cuda_processors(void);

/* copy_sm90.cu: device to device, `count` spans in as few launches as parameters allow. */
sc_status sc_cuda_copy_spans(const struct sc_backend_span *spans, uint32_t count,
    cudaStream_t stream);
sc_status sc_cuda_copy_rows(const struct sc_backend_rows *rows, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif

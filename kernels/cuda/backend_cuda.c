/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend: one device for the life of the process, the one that is current when the
 * backend is first opened.
 *
 *   sc_stream *   is a cudaStream_t, so that a framework's streams can be passed as they are; NULL
 *                 is a stream of the backend's own. It is an ordinary blocking stream: it waits for
 *                 work in CUDA's legacy stream and the other way round, but can be captured.
 *   sides         three streams of the backend's own, which wait for no other but by events: copies
 *                 of states down and up, each on a copy engine, and saves.
 *   memory        cudaMalloc, cleared. Memory of a framework needs no call: an address is enough.
 *   host memory   pinned; copies from and to it run beside kernels.
 *
 * Copies between device and pinned memory go out in batches where the runtime allows that; to
 * pageable memory, and inside a capture, one by one. A batch is prepared before its first byte
 * moves, so the first ones are small: the next is prepared while they run. Not smaller than eight:
 * four windows of a contiguous pool are across before the next batch is ready. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cuda_backend.h"

enum { REASON_BYTES = 160, BATCH_MIN = 8, BATCH_MAX = 128, CC_MIN = 90 };

struct sc_event {
    char unused; /* never made: a struct sc_event * is a cudaEvent_t */
};

static pthread_once_t open_once = PTHREAD_ONCE_INIT;
static char open_reason[REASON_BYTES]; /* written once, under open_once; empty: open */
static char lost_reason[REASON_BYTES]; /* written by who wins lost_claim, before `lost` */
static atomic_int lost_claim, lost;    /* lost: release here, acquire in sc_cuda_enter */
static int device, processors;         /* under open_once */
static cudaStream_t default_stream;    /* under open_once */
static cudaStream_t side_streams[3];   /* by enum sc_side; under open_once */

/* Errors after which the context still works: calls that were refused, a capture that was broken,
 * and code that this driver cannot load. */
static bool harmless(cudaError_t error)
{
    if (error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread)
        return true;
    return error == cudaErrorMemoryAllocation || error == cudaErrorInvalidValue
        || error == cudaErrorNotReady || error == cudaErrorInvalidConfiguration
        || error == cudaErrorNotSupported || error == cudaErrorInvalidResourceHandle
        || error == cudaErrorInvalidDeviceFunction || error == cudaErrorNoKernelImageForDevice
        || error == cudaErrorUnsupportedPtxVersion || error == cudaErrorJitCompilerNotFound
        || error == cudaErrorJitCompilationDisabled;
}

sc_status sc_cuda_check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return SC_OK;
    (void)cudaGetLastError(); /* the runtime keeps harmless ones, too */
    if (error == cudaErrorMemoryAllocation)
        return SC_FAIL_SYS(SC_ERR_NO_MEMORY, (int)error, "%s: %s", what,
            cudaGetErrorString(error));
    if (harmless(error))
        return SC_FAIL_SYS(SC_ERR_INVALID, (int)error, "%s: %s", what, cudaGetErrorString(error));
    int unclaimed = 0;
    if (atomic_compare_exchange_strong(&lost_claim, &unclaimed, 1)) {
        (void)snprintf(lost_reason, sizeof lost_reason, "%s: %s", what, cudaGetErrorString(error));
        atomic_store_explicit(&lost, 1, memory_order_release);
    }
    return SC_FAIL_SYS(SC_ERR_DEVICE_LOST, (int)error, "the CUDA device is lost: %s: %s", what,
        cudaGetErrorString(error));
}

sc_status sc_cuda_enter(void)
{
    if (atomic_load_explicit(&lost, memory_order_acquire) != 0)
        return SC_FAIL(SC_ERR_DEVICE_LOST, "the CUDA device was lost: %s", lost_reason);
    int current = -1;
    if (cudaGetDevice(&current) == cudaSuccess && current == device) return SC_OK;
    return sc_cuda_check(cudaSetDevice(device), "cudaSetDevice");
}

cudaStream_t sc_cuda_stream(sc_stream *stream)
{
    return stream != NULL ? (cudaStream_t)(void *)stream : default_stream;
}

uint32_t sc_cuda_processors(void)
{
    return (uint32_t)processors;
}

static sc_status cuda_alloc(sc_backend *b, uint64_t bytes, struct sc_backend_memory *memory_out)
{
    (void)b;
    void *base = NULL;
    SC_TRY(sc_cuda_enter());
    if (bytes > (uint64_t)INT64_MAX)
        return SC_FAIL(SC_ERR_OVERFLOW, "%llu bytes", (unsigned long long)bytes);
    SC_TRY(sc_cuda_check(cudaMalloc(&base, bytes), "cudaMalloc"));
    sc_status status = sc_cuda_check(cudaMemsetAsync(base, 0, bytes, default_stream),
        "cudaMemsetAsync");
    if (status == SC_OK)
        status = sc_cuda_check(cudaStreamSynchronize(default_stream), "cudaStreamSynchronize");
    if (status != SC_OK) {
        (void)cudaFree(base);
        return status;
    }
    *memory_out = (struct sc_backend_memory){.base = (sc_devptr)(uintptr_t)base, .bytes = bytes,
        .map_base = (sc_devptr)(uintptr_t)base, .map_bytes = bytes};
    return SC_OK;
}

static void cuda_free(sc_backend *b, struct sc_backend_memory *memory)
{
    (void)b;
    if (sc_cuda_enter() != SC_OK) return; /* the memory went with the context */
    (void)sc_cuda_check(cudaFree((void *)(uintptr_t)memory->map_base), "cudaFree");
}

static sc_status cuda_alloc_host(sc_backend *b, uint64_t bytes,
    struct sc_backend_memory *memory_out)
{
    (void)b;
    void *base = NULL;
    SC_TRY(sc_cuda_enter());
    SC_TRY(sc_cuda_check(cudaHostAlloc(&base, bytes, cudaHostAllocDefault), "cudaHostAlloc"));
    memset(base, 0, bytes);
    *memory_out = (struct sc_backend_memory){.base = sc_host_devptr(base), .bytes = bytes,
        .map_base = sc_host_devptr(base), .map_bytes = bytes};
    return SC_OK;
}

static void cuda_free_host(sc_backend *b, struct sc_backend_memory *memory)
{
    (void)b;
    if (sc_cuda_enter() != SC_OK) return;
    (void)sc_cuda_check(cudaFreeHost(sc_host_ptr(memory->map_base)), "cudaFreeHost");
}

static sc_status cuda_stream_create(sc_backend *b, sc_stream **stream_out)
{
    (void)b;
    cudaStream_t stream = NULL;
    SC_TRY(sc_cuda_enter());
    SC_TRY(sc_cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
        "cudaStreamCreate"));
    *stream_out = (sc_stream *)(void *)stream;
    return SC_OK;
}

static void cuda_stream_destroy(sc_backend *b, sc_stream *stream)
{
    (void)b;
    if (sc_cuda_enter() != SC_OK) return;
    (void)sc_cuda_check(cudaStreamDestroy(sc_cuda_stream(stream)), "cudaStreamDestroy");
}

/* While a thread captures a graph in CUDA's default mode, none of the process may wait: the call
 * fails, and the capture with it. A thread of a tier waits for streams of our own, which nobody
 * captures. So it says that it knows what it does, and takes that back (`before`). */
static enum cudaStreamCaptureMode capture_mode(enum cudaStreamCaptureMode mode)
{
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

static sc_status cuda_stream_sync(sc_backend *b, sc_stream *stream)
{
    (void)b;
    SC_TRY(sc_cuda_enter());
    enum cudaStreamCaptureMode before = capture_mode(cudaStreamCaptureModeRelaxed);
    cudaError_t error = cudaStreamSynchronize(sc_cuda_stream(stream));
    (void)capture_mode(before);
    return sc_cuda_check(error, "cudaStreamSynchronize");
}

static bool pinned(sc_devptr ptr)
{
    struct cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, sc_host_ptr(ptr)) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeManaged;
}

/* May these spans be one batch? Its host ends must be pinned, and no capture may be running. */
static bool batch_ok(enum sc_copy_kind kind, const struct sc_backend_span *spans, uint32_t count,
    cudaStream_t stream)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (count < BATCH_MIN) return false;
    if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) return false;
    if (capture != cudaStreamCaptureStatusNone) return false;
    for (uint32_t i = 0; i < count; i++)
        if (!pinned(kind == SC_COPY_H2D ? spans[i].src : spans[i].dst)) return false;
    return true;
}

static cudaError_t copy_batch(const struct sc_backend_span *spans, uint32_t count,
    cudaStream_t stream)
{
    void *dsts[BATCH_MAX];
    const void *srcs[BATCH_MAX];
    size_t sizes[BATCH_MAX], first = 0;
    struct cudaMemcpyAttributes attributes = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (spans[i].bytes == 0) continue;
        dsts[used] = sc_host_ptr(spans[i].dst);
        srcs[used] = sc_host_ptr(spans[i].src);
        sizes[used++] = spans[i].bytes;
    }
    if (used == 0) return cudaSuccess;
    return cudaMemcpyBatchAsync(dsts, srcs, sizes, used, &attributes, &first, 1, stream);
}

static sc_status copy_spans(enum sc_copy_kind kind, const struct sc_backend_span *spans,
    uint32_t count, cudaStream_t into)
{
    enum cudaMemcpyKind kinds[] = {[SC_COPY_D2D] = cudaMemcpyDeviceToDevice,
        [SC_COPY_H2D] = cudaMemcpyHostToDevice, [SC_COPY_D2H] = cudaMemcpyDeviceToHost};
    uint32_t batch = BATCH_MIN;
    for (uint32_t i = 0; i < count;) {
        uint32_t n = count - i < batch ? count - i : batch;
        batch = batch < BATCH_MAX ? 2 * batch : BATCH_MAX;
        if (kind != SC_COPY_D2D && batch_ok(kind, spans + i, n, into)) {
            SC_TRY(sc_cuda_check(copy_batch(spans + i, n, into), "cudaMemcpyBatchAsync"));
            i += n;
            continue;
        }
        for (uint32_t end = i + n; i < end; i++)
            SC_TRY(sc_cuda_check(cudaMemcpyAsync(sc_host_ptr(spans[i].dst),
                sc_host_ptr(spans[i].src), spans[i].bytes, kinds[kind], into), "cudaMemcpyAsync"));
    }
    return SC_OK;
}

/* A copy of pageable memory waits, too. */
static sc_status cuda_copy(sc_backend *b, enum sc_copy_kind kind,
    const struct sc_backend_span *spans, uint32_t count, sc_stream *stream)
{
    (void)b;
    SC_TRY(sc_cuda_enter());
    cudaStream_t into = sc_cuda_stream(stream);
    if (kind == SC_COPY_D2D && count > 1) return sc_cuda_copy_spans(spans, count, into);
    enum cudaStreamCaptureMode before = capture_mode(cudaStreamCaptureModeRelaxed);
    sc_status status = copy_spans(kind, spans, count, into);
    (void)capture_mode(before);
    return status;
}

static sc_status cuda_copy_rows(sc_backend *b, const struct sc_backend_rows *rows,
    sc_stream *stream)
{
    (void)b;
    SC_TRY(sc_cuda_enter());
    return sc_cuda_copy_rows(rows, sc_cuda_stream(stream));
}

static sc_status cuda_fill(sc_backend *b, sc_devptr dst, uint8_t value, uint64_t bytes,
    sc_stream *stream)
{
    (void)b;
    SC_TRY(sc_cuda_enter());
    return sc_cuda_check(cudaMemsetAsync((void *)(uintptr_t)dst, value, bytes,
        sc_cuda_stream(stream)), "cudaMemsetAsync");
}

static cudaEvent_t raw_event(struct sc_event *event)
{
    return (cudaEvent_t)(void *)event;
}

static sc_status cuda_event_create(sc_backend *b, struct sc_event **event_out)
{
    (void)b;
    cudaEvent_t event = NULL;
    SC_TRY(sc_cuda_enter());
    SC_TRY(sc_cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
        "cudaEventCreate"));
    *event_out = (struct sc_event *)(void *)event;
    return SC_OK;
}

static void cuda_event_destroy(sc_backend *b, struct sc_event *event)
{
    (void)b;
    if (sc_cuda_enter() != SC_OK) return;
    (void)sc_cuda_check(cudaEventDestroy(raw_event(event)), "cudaEventDestroy");
}

static sc_status cuda_event_record(sc_backend *b, struct sc_event *event, sc_stream *stream)
{
    (void)b;
    SC_TRY(sc_cuda_enter());
    return sc_cuda_check(cudaEventRecord(raw_event(event), sc_cuda_stream(stream)),
        "cudaEventRecord");
}

static sc_status cuda_event_query(sc_backend *b, struct sc_event *event, bool *done_out)
{
    (void)b;
    SC_TRY(sc_cuda_enter());
    enum cudaStreamCaptureMode before = capture_mode(cudaStreamCaptureModeRelaxed);
    cudaError_t error = cudaEventQuery(raw_event(event));
    (void)capture_mode(before);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        *done_out = false;
        return SC_OK;
    }
    SC_TRY(sc_cuda_check(error, "cudaEventQuery"));
    *done_out = true;
    return SC_OK;
}

static sc_status cuda_event_wait(sc_backend *b, struct sc_event *event)
{
    (void)b;
    SC_TRY(sc_cuda_enter());
    enum cudaStreamCaptureMode before = capture_mode(cudaStreamCaptureModeRelaxed);
    cudaError_t error = cudaEventSynchronize(raw_event(event));
    (void)capture_mode(before);
    return sc_cuda_check(error, "cudaEventSynchronize");
}

static sc_status cuda_stream_wait(sc_backend *b, sc_stream *stream, struct sc_event *event)
{
    (void)b;
    SC_TRY(sc_cuda_enter());
    return sc_cuda_check(cudaStreamWaitEvent(sc_cuda_stream(stream), raw_event(event), 0),
        "cudaStreamWaitEvent");
}

static sc_status cuda_side_stream(sc_backend *b, enum sc_side side, sc_stream *after,
    sc_stream **stream_out)
{
    (void)b;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    SC_TRY(sc_cuda_enter());
    SC_TRY(sc_cuda_check(cudaStreamIsCapturing(sc_cuda_stream(after), &capture),
        "cudaStreamIsCapturing"));
    if (capture != cudaStreamCaptureStatusNone) /* else the side would be captured for everybody */
        return SC_FAIL(SC_ERR_UNSUPPORTED, "a copy beside a stream that is being captured");
    *stream_out = (sc_stream *)(void *)side_streams[side];
    return SC_OK;
}

const struct sc_backend_ops sc_backend_cuda_ops = {
    .alloc = cuda_alloc,
    .free = cuda_free,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_sync = cuda_stream_sync,
    .stream_wait = cuda_stream_wait,
    .side_stream = cuda_side_stream,
    .copy = cuda_copy,
    .copy_rows = cuda_copy_rows,
    .fill = cuda_fill,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_query = cuda_event_query,
    .event_wait = cuda_event_wait,
};

static struct sc_backend cuda_backend = {.ops = &sc_backend_cuda_ops, .name = "cuda"};

static void no_device(const char *what, cudaError_t error)
{
    (void)snprintf(open_reason, sizeof open_reason, "%s: %s", what, cudaGetErrorString(error));
    (void)cudaGetLastError();
}

static void open_device(void)
{
    int count = 0, major = 0, minor = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        no_device("no CUDA device", error != cudaSuccess ? error : cudaErrorNoDevice);
        return;
    }
    error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess && major * 10 + minor < CC_MIN) {
        (void)snprintf(open_reason, sizeof open_reason, "device %d has compute capability %d.%d, "
            "the kernels need 9.0", device, major, minor);
        return;
    }
    if (error == cudaSuccess) error = cudaSetDevice(device);
    if (error == cudaSuccess) error = cudaStreamCreate(&default_stream);
    for (int i = 0; i < 3 && error == cudaSuccess; i++)
        error = cudaStreamCreateWithFlags(&side_streams[i], cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        no_device("the CUDA device cannot be used", error);
        return;
    }
    cuda_backend.device = device;
    cuda_backend.compute_capability = (uint32_t)(major * 10 + minor);
    cuda_backend.runtime_version = CUDART_VERSION; /* what this was compiled for, linked with */
}

sc_status sc_backend_cuda_open(sc_backend **backend_out)
{
    (void)pthread_once(&open_once, open_device);
    if (open_reason[0] != '\0')
        return SC_FAIL(SC_ERR_UNSUPPORTED, "backend \"cuda\": %s", open_reason);
    SC_TRY(sc_cuda_enter());
    *backend_out = &cuda_backend;
    return SC_OK;
}

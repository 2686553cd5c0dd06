/* SPDX-License-Identifier: Apache-2.0 */
/* The list of backends, and argument checks in front of each backend's table. */
#include "kernels/backend.h"

#include <string.h>

#include "base/error.h"

static struct sc_backend host_backend = {
    .ops = &sc_backend_host_ops,
    .name = "host",
    .compute_capability = 0,
    .host_memory = true,
};

sc_backend *sc_backend_host(void)
{
    return &host_backend;
}

sc_status sc_backend_open(const char *name, sc_backend **backend_out)
{
    SC_REQUIRE(name != NULL);
    SC_REQUIRE(backend_out != NULL);
    if (strcmp(name, "host") == 0) {
        *backend_out = &host_backend;
        return SC_OK;
    }
    if (strcmp(name, "cuda") == 0)
#ifdef SC_HAVE_CUDA
        return sc_backend_cuda_open(backend_out);
#else
        return SC_FAIL(SC_ERR_UNSUPPORTED,
            "backend \"cuda\": this build has no CUDA kernels (configured without SC_WITH_CUDA)");
#endif
    return SC_FAIL(SC_ERR_NOT_FOUND, "no backend \"%.40s\"; known: host, cuda", name);
}

const char *sc_backend_name(const sc_backend *backend)
{
    return backend != NULL ? backend->name : NULL;
}

int32_t sc_backend_device(const sc_backend *backend)
{
    return backend != NULL ? backend->device : -1;
}

sc_status sc_backend_alloc(sc_backend *backend, uint64_t bytes,
    struct sc_backend_memory *memory_out)
{
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(bytes > 0);
    SC_REQUIRE(memory_out != NULL);
    return backend->ops->alloc(backend, bytes, memory_out);
}

void sc_backend_free(sc_backend *backend, struct sc_backend_memory *memory)
{
    if (backend == NULL || memory == NULL || memory->base == 0) return;
    backend->ops->free(backend, memory);
    *memory = (struct sc_backend_memory){0};
}

sc_status sc_backend_alloc_host(sc_backend *backend, uint64_t bytes,
    struct sc_backend_memory *memory_out)
{
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(bytes > 0);
    SC_REQUIRE(memory_out != NULL);
    return backend->ops->alloc_host(backend, bytes, memory_out);
}

void sc_backend_free_host(sc_backend *backend, struct sc_backend_memory *memory)
{
    if (backend == NULL || memory == NULL || memory->base == 0) return;
    backend->ops->free_host(backend, memory);
    *memory = (struct sc_backend_memory){0};
}

sc_status sc_backend_stream_create(sc_backend *backend, sc_stream **stream_out)
{
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(stream_out != NULL);
    return backend->ops->stream_create(backend, stream_out);
}

void sc_backend_stream_destroy(sc_backend *backend, sc_stream *stream)
{
    if (backend == NULL || stream == NULL) return;
    backend->ops->stream_destroy(backend, stream);
}

sc_status sc_backend_stream_sync(sc_backend *backend, sc_stream *stream)
{
    SC_REQUIRE(backend != NULL);
    return backend->ops->stream_sync(backend, stream);
}

sc_status sc_backend_stream_wait(sc_backend *backend, sc_stream *stream, struct sc_event *event)
{
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(event != NULL);
    return backend->ops->stream_wait(backend, stream, event);
}

sc_status sc_backend_stream_join(sc_backend *backend, sc_stream *stream, sc_stream *behind)
{
    struct sc_event *event = NULL;
    SC_REQUIRE(backend != NULL);
    if (stream == behind) return SC_OK;
    SC_TRY(sc_backend_event_create(backend, &event));
    sc_status status = sc_backend_event_record(backend, event, behind);
    if (status == SC_OK) status = sc_backend_stream_wait(backend, stream, event);
    sc_backend_event_destroy(backend, event); /* who waits for it still does */
    return status;
}

sc_status sc_backend_side_begin(sc_backend *backend, enum sc_side side, sc_stream *after,
    sc_stream **stream_out)
{
    sc_stream *stream = NULL;
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(side == SC_SIDE_SAVES || side == SC_SIDE_DOWN || side == SC_SIDE_UP);
    SC_REQUIRE(stream_out != NULL);
    SC_TRY(backend->ops->side_stream(backend, side, after, &stream));
    SC_TRY(sc_backend_stream_join(backend, stream, after));
    *stream_out = stream;
    return SC_OK;
}

sc_status sc_backend_side_join(sc_backend *backend, enum sc_side side, sc_stream *stream)
{
    sc_stream *behind = NULL;
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(side == SC_SIDE_SAVES || side == SC_SIDE_DOWN || side == SC_SIDE_UP);
    SC_TRY(backend->ops->side_stream(backend, side, stream, &behind));
    return sc_backend_stream_join(backend, stream, behind);
}

sc_status sc_backend_copy_async(sc_backend *backend, enum sc_copy_kind kind,
    const struct sc_backend_span *spans, uint32_t count, sc_stream *stream)
{
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(kind == SC_COPY_D2D || kind == SC_COPY_H2D || kind == SC_COPY_D2H);
    SC_REQUIRE(count == 0 || spans != NULL);
    for (uint32_t i = 0; i < count; i++) {
        if (spans[i].bytes == 0) continue;
        SC_REQUIRE(spans[i].dst != 0);
        SC_REQUIRE(spans[i].src != 0);
        if (spans[i].dst + spans[i].bytes < spans[i].dst
            || spans[i].src + spans[i].bytes < spans[i].src)
            return SC_FAIL(SC_ERR_OVERFLOW, "span %u: address + bytes wraps", i);
        if (spans[i].dst < spans[i].src + spans[i].bytes
            && spans[i].src < spans[i].dst + spans[i].bytes)
            return SC_FAIL(SC_ERR_INVALID, "span %u: source and destination overlap", i);
    }
    if (count == 0) return SC_OK;
    return backend->ops->copy(backend, kind, spans, count, stream);
}

sc_status sc_backend_copy(sc_backend *backend, enum sc_copy_kind kind, sc_devptr dst,
    sc_devptr src, uint64_t bytes)
{
    struct sc_backend_span span = {.dst = dst, .src = src, .bytes = bytes};
    SC_TRY(sc_backend_copy_async(backend, kind, &span, 1, NULL));
    return backend->ops->stream_sync(backend, NULL);
}

sc_status sc_backend_copy_rows(sc_backend *backend, const struct sc_backend_rows *rows,
    sc_stream *stream)
{
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(rows != NULL);
    if (rows->row_count == 0 || rows->part_count == 0) return SC_OK;
    SC_REQUIRE(rows->parts != NULL);
    SC_REQUIRE(rows->dst_slots != NULL);
    SC_REQUIRE(rows->src_slots != NULL);
    for (uint32_t i = 0; i < rows->part_count; i++) {
        SC_REQUIRE(rows->parts[i].dst != 0);
        SC_REQUIRE(rows->parts[i].src != 0);
    }
    return backend->ops->copy_rows(backend, rows, stream);
}

sc_status sc_backend_fill(sc_backend *backend, sc_devptr dst, uint8_t value, uint64_t bytes,
    sc_stream *stream)
{
    SC_REQUIRE(backend != NULL);
    if (bytes == 0) return SC_OK;
    SC_REQUIRE(dst != 0);
    if (dst + bytes < dst) return SC_FAIL(SC_ERR_OVERFLOW, "address + bytes wraps");
    return backend->ops->fill(backend, dst, value, bytes, stream);
}

sc_status sc_backend_event_create(sc_backend *backend, struct sc_event **event_out)
{
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(event_out != NULL);
    return backend->ops->event_create(backend, event_out);
}

void sc_backend_event_destroy(sc_backend *backend, struct sc_event *event)
{
    if (backend == NULL || event == NULL) return;
    backend->ops->event_destroy(backend, event);
}

sc_status sc_backend_event_record(sc_backend *backend, struct sc_event *event, sc_stream *stream)
{
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(event != NULL);
    return backend->ops->event_record(backend, event, stream);
}

sc_status sc_backend_event_query(sc_backend *backend, struct sc_event *event, bool *done_out)
{
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(event != NULL);
    SC_REQUIRE(done_out != NULL);
    return backend->ops->event_query(backend, event, done_out);
}

sc_status sc_backend_event_wait(sc_backend *backend, struct sc_event *event)
{
    SC_REQUIRE(backend != NULL);
    SC_REQUIRE(event != NULL);
    return backend->ops->event_wait(backend, event);
}

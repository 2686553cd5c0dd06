/* SPDX-License-Identifier: Apache-2.0 */
/* Where slots live and work runs: memory, streams, copies, events. The layers above call the
 * functions below, never the table; a test may build a backend of its own around another's table
 * (to make an allocation fail, or to delay an event).
 *
 * Streams: NULL is the backend's default stream. The host backend runs everything before the call
 * returns; its streams and events are placeholders that are always complete.
 *
 * Threads: any, as long as no two calls touch the same bytes. No function takes a lock. */
#ifndef SC_KERNELS_BACKEND_H
#define SC_KERNELS_BACKEND_H

#include "statecache/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sc_event;
struct sc_kernel_row;

/* Memory that a backend gave out; zero-initialised is "none". */
struct sc_backend_memory {
    sc_devptr base;
    uint64_t bytes;      /* as asked for */
    uint64_t huge_bytes; /* covered by huge-page advice that the kernel accepted */
    uint64_t map_base;   /* the backend's own: what is really mapped */
    uint64_t map_bytes;
};

struct sc_backend_span {
    sc_devptr dst;
    sc_devptr src;
    uint64_t bytes;
};

/* One part of many slots at both ends: slot s is at base + s * stride, 64-bit. */
struct sc_backend_part {
    sc_devptr dst;
    sc_devptr src;
    uint64_t dst_stride; /* bytes */
    uint64_t src_stride;
    uint64_t bytes;      /* of one slot */
};

/* Every part of row r goes from src slot r to dst slot r. A row with a negative slot at either end
 * is skipped. The index arrays lie on the host or, so that a captured graph can be replayed with
 * other slots, in memory of the backend. */
struct sc_backend_rows {
    const struct sc_backend_part *parts; /* host */
    uint32_t part_count;
    uint32_t row_count;
    const int32_t *dst_slots; /* [row_count] */
    const int32_t *src_slots;
    bool slots_on_device;     /* dst_slots and src_slots are addresses of the backend */
};

enum sc_copy_kind { SC_COPY_D2D = 0, SC_COPY_H2D = 1, SC_COPY_D2H = 2 };

/* Streams of a backend's own for copies that run beside the kernels of other streams: saves, and
 * states on their way down to the host and up from it. Within a side copies go in their order. */
enum sc_side { SC_SIDE_SAVES = 0, SC_SIDE_DOWN = 1, SC_SIDE_UP = 2 };

struct sc_backend_ops {
    sc_status (*alloc)(sc_backend *b, uint64_t bytes, struct sc_backend_memory *memory_out);
    void (*free)(sc_backend *b, struct sc_backend_memory *memory);
    /* Memory of the host that copies to and from the device are fast with. */
    sc_status (*alloc_host)(sc_backend *b, uint64_t bytes, struct sc_backend_memory *memory_out);
    void (*free_host)(sc_backend *b, struct sc_backend_memory *memory);
    sc_status (*stream_create)(sc_backend *b, sc_stream **stream_out);
    void (*stream_destroy)(sc_backend *b, sc_stream *stream);
    sc_status (*stream_sync)(sc_backend *b, sc_stream *stream);
    sc_status (*stream_wait)(sc_backend *b, sc_stream *stream, struct sc_event *event);
    sc_status (*side_stream)(sc_backend *b, enum sc_side side, sc_stream *after,
        sc_stream **stream_out);
    sc_status (*copy)(sc_backend *b, enum sc_copy_kind kind, const struct sc_backend_span *spans,
        uint32_t count, sc_stream *stream);
    sc_status (*copy_rows)(sc_backend *b, const struct sc_backend_rows *rows, sc_stream *stream);
    sc_status (*fill)(sc_backend *b, sc_devptr dst, uint8_t value, uint64_t bytes,
        sc_stream *stream);
    sc_status (*event_create)(sc_backend *b, struct sc_event **event_out);
    void (*event_destroy)(sc_backend *b, struct sc_event *event);
    sc_status (*event_record)(sc_backend *b, struct sc_event *event, sc_stream *stream);
    sc_status (*event_query)(sc_backend *b, struct sc_event *event, bool *done_out);
    sc_status (*event_wait)(sc_backend *b, struct sc_event *event);
};

struct sc_backend {
    const struct sc_backend_ops *ops;
    const char *name;            /* static */
    uint32_t compute_capability; /* 0: host; 90: sm_90 */
    uint32_t runtime_version;    /* 0: host; 13000: CUDA 13.0 */
    int32_t device;              /* as the runtime counts them; 0: host */
    bool host_memory;            /* a sc_devptr of this backend is a host address */
    /* NULL, or the row of each operation (NULL: none), chosen once: kernels_choice.h */
    const struct sc_kernel_row *const *rows;
};

/* Zeroed memory, 2 MiB aligned when that large, else at least page aligned; never touched yet, so a
 * sparse pool costs what is written. `*memory_out` is changed only on success.
 * SC_ERR_INVALID (null, 0 bytes), SC_ERR_OVERFLOW, SC_ERR_NO_MEMORY. */
sc_status sc_backend_alloc(sc_backend *backend, uint64_t bytes,
    struct sc_backend_memory *memory_out);
/* Clears `*memory`, so that freeing twice does nothing. */
void sc_backend_free(sc_backend *backend, struct sc_backend_memory *memory);

/* The same in host memory: page-locked where that makes copies faster, zeroed. */
sc_status sc_backend_alloc_host(sc_backend *backend, uint64_t bytes,
    struct sc_backend_memory *memory_out);
void sc_backend_free_host(sc_backend *backend, struct sc_backend_memory *memory);

sc_status sc_backend_stream_create(sc_backend *backend, sc_stream **stream_out);
void sc_backend_stream_destroy(sc_backend *backend, sc_stream *stream);
sc_status sc_backend_stream_sync(sc_backend *backend, sc_stream *stream);

/* What is put in `stream` from now on begins after the event's last record is complete. */
sc_status sc_backend_stream_wait(sc_backend *backend, sc_stream *stream, struct sc_event *event);

/* What is put in `stream` from now on begins behind what `behind` holds now: an event of the one
 * that the other waits for. Nothing to do where both are one stream. */
sc_status sc_backend_stream_join(sc_backend *backend, sc_stream *stream, sc_stream *behind);
/* The backend's stream for copies of this side, which is the backend's to keep; what is put there
 * from now on begins behind what `after` holds now. The default stream where there is no other.
 * SC_ERR_UNSUPPORTED: `after` is being captured in a graph. */
sc_status sc_backend_side_begin(sc_backend *backend, enum sc_side side, sc_stream *after,
    sc_stream **stream_out);
/* What is put in `stream` from now on begins behind what that side holds now. */
sc_status sc_backend_side_join(sc_backend *backend, enum sc_side side, sc_stream *stream);

/* Copies every span; returns once the work is in the stream. Spans of one call must not overlap.
 * H2D and D2H: the host end is an address that stays valid until the stream has passed the call. */
sc_status sc_backend_copy_async(sc_backend *backend, enum sc_copy_kind kind,
    const struct sc_backend_span *spans, uint32_t count, sc_stream *stream);
/* One span, complete on return. */
sc_status sc_backend_copy(sc_backend *backend, enum sc_copy_kind kind, sc_devptr dst,
    sc_devptr src, uint64_t bytes);
/* Within the backend's memory, all parts of all rows: one launch on a device (up to 224 parts and
 * 2,048 rows on the host's index arrays, else one for each such piece). Destinations must be
 * distinct, and no other row's source. Parts and index arrays of the host are read before the call
 * returns. */
sc_status sc_backend_copy_rows(sc_backend *backend, const struct sc_backend_rows *rows,
    sc_stream *stream);
sc_status sc_backend_fill(sc_backend *backend, sc_devptr dst, uint8_t value, uint64_t bytes,
    sc_stream *stream);

/* An event is complete when everything put in the stream before `record` is; a fresh one is. */
sc_status sc_backend_event_create(sc_backend *backend, struct sc_event **event_out);
void sc_backend_event_destroy(sc_backend *backend, struct sc_event *event);
sc_status sc_backend_event_record(sc_backend *backend, struct sc_event *event, sc_stream *stream);
sc_status sc_backend_event_query(sc_backend *backend, struct sc_event *event, bool *done_out);
sc_status sc_backend_event_wait(sc_backend *backend, struct sc_event *event);

/* backend_host.c */
extern const struct sc_backend_ops sc_backend_host_ops;
/* cuda/backend_cuda.c, in builds with CUDA. SC_ERR_UNSUPPORTED with a reason when no device can be
 * used. */
extern const struct sc_backend_ops sc_backend_cuda_ops;
sc_status sc_backend_cuda_open(sc_backend **backend_out);

/* Address of host memory; only for backends with `host_memory`. */
static inline void *sc_host_ptr(sc_devptr ptr)
{
    return (void *)(uintptr_t)ptr;
}

static inline sc_devptr sc_host_devptr(const void *ptr)
{
    return (sc_devptr)(uintptr_t)ptr;
}

#ifdef __cplusplus
}
#endif
#endif

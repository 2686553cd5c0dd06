/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend: anonymous maps with huge-page advice, memcpy, and streams and events that are
 * complete as soon as they exist.
 *
 *   map_base        base (2 MiB aligned)               base + bytes      map_base + map_bytes
 *   |----- unmapped ----|===========================================|-- rest of a page --|
 *
 * Maps are MAP_NORESERVE and untouched: a pool larger than memory may exist as long as few of its
 * slots are written, which the tests of 64-bit offsets use. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "kernels/backend.h"

enum { HUGE_PAGE_BYTES = 2 << 20 };

static sc_status host_alloc(sc_backend *b, uint64_t bytes, struct sc_backend_memory *memory_out)
{
    (void)b;
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t align = bytes >= HUGE_PAGE_BYTES ? (uint64_t)HUGE_PAGE_BYTES : page_bytes;
    if (bytes > (uint64_t)INT64_MAX - 2 * align)
        return SC_FAIL(SC_ERR_OVERFLOW, "%llu bytes", (unsigned long long)bytes);
    uint64_t map_bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    uint64_t want_bytes = align > page_bytes ? map_bytes + align : map_bytes;

    void *raw = mmap(NULL, want_bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return SC_FAIL_SYS(SC_ERR_NO_MEMORY, errno, "mmap of %llu bytes: %s",
            (unsigned long long)want_bytes, strerror(errno));
    uint64_t raw_base = sc_host_devptr(raw);
    uint64_t base = (raw_base + align - 1) / align * align;
    uint64_t tail_bytes = raw_base + want_bytes - (base + map_bytes);
    /* Giving the margins back cannot matter for correctness; a refusal only wastes address
     * space. */
    if (base > raw_base) (void)munmap(raw, base - raw_base);
    if (tail_bytes > 0) (void)munmap(sc_host_ptr(base + map_bytes), tail_bytes);

    uint64_t huge_bytes = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if (huge_bytes > 0 && madvise(sc_host_ptr(base), huge_bytes, MADV_HUGEPAGE) != 0)
        huge_bytes = 0; /* a kernel without transparent huge pages: ordinary ones serve */
    *memory_out = (struct sc_backend_memory){.base = base, .bytes = bytes,
        .huge_bytes = huge_bytes, .map_base = base, .map_bytes = map_bytes};
    return SC_OK;
}

static void host_free(sc_backend *b, struct sc_backend_memory *memory)
{
    (void)b;
    (void)munmap(sc_host_ptr(memory->map_base), memory->map_bytes);
}

static sc_status host_stream_create(sc_backend *b, sc_stream **stream_out)
{
    (void)b;
    *stream_out = NULL; /* the default stream is the only one */
    return SC_OK;
}

static void host_stream_destroy(sc_backend *b, sc_stream *stream)
{
    (void)b;
    (void)stream;
}

static sc_status host_stream_sync(sc_backend *b, sc_stream *stream)
{
    (void)b;
    (void)stream;
    return SC_OK;
}

static sc_status host_copy(sc_backend *b, enum sc_copy_kind kind,
    const struct sc_backend_span *spans, uint32_t count, sc_stream *stream)
{
    (void)b;
    (void)kind;
    (void)stream;
    for (uint32_t i = 0; i < count; i++) {
        if (spans[i].bytes == 0) continue;
        memcpy(sc_host_ptr(spans[i].dst), sc_host_ptr(spans[i].src), spans[i].bytes);
    }
    return SC_OK;
}

static sc_status host_stream_wait(sc_backend *b, sc_stream *stream, struct sc_event *event)
{
    (void)b;
    (void)stream;
    (void)event;
    return SC_OK;
}

static sc_status host_side_stream(sc_backend *b, enum sc_side side, sc_stream *after,
    sc_stream **stream_out)
{
    (void)b;
    (void)side;
    (void)after;
    *stream_out = NULL;
    return SC_OK;
}

static sc_status host_copy_rows(sc_backend *b, const struct sc_backend_rows *rows,
    sc_stream *stream)
{
    (void)b;
    (void)stream;
    for (uint32_t p = 0; p < rows->part_count; p++) {
        const struct sc_backend_part *part = &rows->parts[p];
        for (uint32_t r = 0; r < rows->row_count; r++) {
            int64_t dst = rows->dst_slots[r], src = rows->src_slots[r];
            if (dst < 0 || src < 0) continue;
            memmove(sc_host_ptr(part->dst + (uint64_t)dst * part->dst_stride),
                sc_host_ptr(part->src + (uint64_t)src * part->src_stride), part->bytes);
        }
    }
    return SC_OK;
}

static sc_status host_fill(sc_backend *b, sc_devptr dst, uint8_t value, uint64_t bytes,
    sc_stream *stream)
{
    (void)b;
    (void)stream;
    memset(sc_host_ptr(dst), value, bytes);
    return SC_OK;
}

struct sc_event {
    char unused;
};
static struct sc_event done_event; /* the one host event: always complete, never written */

static sc_status host_event_create(sc_backend *b, struct sc_event **event_out)
{
    (void)b;
    *event_out = &done_event;
    return SC_OK;
}

static void host_event_destroy(sc_backend *b, struct sc_event *event)
{
    (void)b;
    (void)event;
}

static sc_status host_event_record(sc_backend *b, struct sc_event *event, sc_stream *stream)
{
    (void)b;
    (void)event;
    (void)stream;
    return SC_OK;
}

static sc_status host_event_query(sc_backend *b, struct sc_event *event, bool *done_out)
{
    (void)b;
    (void)event;
    *done_out = true;
    return SC_OK;
}

static sc_status host_event_wait(sc_backend *b, struct sc_event *event)
{
    (void)b;
    (void)event;
    return SC_OK;
}

const struct sc_backend_ops sc_backend_host_ops = {
    .alloc = host_alloc,
    .free = host_free,
    .alloc_host = host_alloc,
    .free_host = host_free,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .stream_sync = host_stream_sync,
    .stream_wait = host_stream_wait,
    .side_stream = host_side_stream,
    .copy = host_copy,
    .copy_rows = host_copy_rows,
    .fill = host_fill,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .event_query = host_event_query,
    .event_wait = host_event_wait,
};

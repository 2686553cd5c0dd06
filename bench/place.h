/* SPDX-License-Identifier: Apache-2.0 */
/* Memory where the linear layers run: the host's own, or a device's in builds with CUDA. Everything
 * is in the order of the backend's default stream and done when the call returns. */
#ifndef BENCH_PLACE_H
#define BENCH_PLACE_H

#include "bench_common.h"

static inline sc_devptr dev(const void *pointer)
{
    return (sc_devptr)(uintptr_t)pointer;
}

bool place_is_host(const sc_backend *backend); /* NULL is the host */
/* Memory of the backend, 64-byte aligned, with anything in it; a program that gets none ends. */
sc_devptr place_take(sc_backend *backend, size_t bytes);
/* With the size it was taken with. */
void place_give(sc_backend *backend, sc_devptr memory, size_t bytes);
/* Either end on the host or in memory of the backend. */
void place_copy(sc_backend *backend, sc_devptr to, sc_devptr from, size_t bytes);

/* A block of the host and its double where the layers run; on the host both are one. */
struct twin {
    sc_backend *backend;
    void *host;
    size_t bytes;
    sc_devptr there;
};
void twin_open(struct twin *twin, sc_backend *backend, size_t count, size_t size); /* zeroed */
/* Makes it as large at least; what was in it is lost then. A zeroed struct is an empty twin. */
void twin_grow(struct twin *twin, sc_backend *backend, size_t count, size_t size);
void twin_close(struct twin *twin);
/* Where `pointer`, into the host's block, is there. */
sc_devptr twin_at(const struct twin *twin, const void *pointer);
/* Copies bytes of the block there, or back; nothing on the host. */
void twin_in(const struct twin *twin, const void *pointer, size_t bytes);
void twin_out(const struct twin *twin, void *pointer, size_t bytes);

#endif

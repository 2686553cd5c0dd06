/* SPDX-License-Identifier: Apache-2.0 */
#include "place.h"

#include <stdlib.h>
#include <string.h>

#ifdef SC_HAVE_CUDA
#include "gpu/device_memory.h"
#endif

bool place_is_host(const sc_backend *backend)
{
    return !backend || strcmp(sc_backend_name(backend), "host") == 0;
}

#ifndef SC_HAVE_CUDA
static _Noreturn void *no_device(void)
{
    bench_fail(BENCH_CHECK_FAILED, "memory of a device in a build without one");
}
#define device_take(bytes) no_device()
#define device_give(memory, bytes) no_device()
#define device_copy(to, from, bytes) no_device()
#endif

static void *address(sc_devptr memory)
{
    return (void *)(uintptr_t)memory;
}

sc_devptr place_take(sc_backend *backend, size_t bytes)
{
    if (!place_is_host(backend))
        return dev(device_take(bytes));
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory)
        bench_fail(BENCH_NO_MEMORY, "out of memory (%zu bytes)", bytes);
    return dev(memory);
}

void place_give(sc_backend *backend, sc_devptr memory, size_t bytes)
{
    (void)bytes;
    if (memory == 0)
        return;
    if (place_is_host(backend))
        free(address(memory));
    else
        device_give(address(memory), bytes);
}

void place_copy(sc_backend *backend, sc_devptr to, sc_devptr from, size_t bytes)
{
    if (place_is_host(backend))
        memcpy(address(to), address(from), bytes);
    else
        device_copy(address(to), address(from), bytes);
}

void twin_open(struct twin *twin, sc_backend *backend, size_t count, size_t size)
{
    *twin = (struct twin){.backend = backend, .bytes = count * size,
        .host = address(place_take(NULL, count > 0 ? count * size : 1))};
    memset(twin->host, 0, twin->bytes);
    twin->there = place_is_host(backend) ? dev(twin->host) : place_take(backend, twin->bytes);
}

void twin_grow(struct twin *twin, sc_backend *backend, size_t count, size_t size)
{
    if (count * size <= twin->bytes && twin->host)
        return;
    size_t most = twin->bytes + twin->bytes / 2;
    twin_close(twin);
    twin_open(twin, backend, most > count * size ? most : count * size, 1);
}

void twin_close(struct twin *twin)
{
    if (!place_is_host(twin->backend))
        place_give(twin->backend, twin->there, twin->bytes);
    free(twin->host);
    *twin = (struct twin){0};
}

sc_devptr twin_at(const struct twin *twin, const void *pointer)
{
    return twin->there + (dev(pointer) - dev(twin->host));
}

void twin_in(const struct twin *twin, const void *pointer, size_t bytes)
{
    if (!place_is_host(twin->backend) && bytes > 0)
        place_copy(twin->backend, twin_at(twin, pointer), dev(pointer), bytes);
}

void twin_out(const struct twin *twin, void *pointer, size_t bytes)
{
    if (!place_is_host(twin->backend) && bytes > 0)
        place_copy(twin->backend, dev(pointer), twin_at(twin, pointer), bytes);
}

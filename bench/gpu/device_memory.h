/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the CUDA device for place.c; errors end the program. */
#ifndef BENCH_DEVICE_MEMORY_H
#define BENCH_DEVICE_MEMORY_H

#include <stddef.h>

void *device_take(size_t bytes);
void device_give(void *memory, size_t bytes);
/* Pinned memory of the host. */
void *device_take_host(size_t bytes);
void device_give_host(void *memory);
/* Between host and device, either way; in order with the backend's default stream, and done. */
void device_copy(void *to, const void *from, size_t bytes);

#endif

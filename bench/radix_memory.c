/* SPDX-License-Identifier: Apache-2.0 */
#include "radix_memory.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "bench_common.h"

extern int mallctl(const char *name, void *old, size_t *old_bytes, void *new, size_t new_bytes)
    __attribute__((weak));

struct radix_memory radix_memory_get(void)
{
    struct radix_memory memory = {0, NAN};
    if (mallctl) {
        uint64_t epoch = 1;
        size_t bytes = sizeof epoch, allocated = 0;
        (void)mallctl("epoch", &epoch, &bytes, &epoch, sizeof epoch);
        bytes = sizeof allocated;
        if (mallctl("stats.allocated", &allocated, &bytes, NULL, 0) == 0)
            memory.allocated = (double)allocated;
    }
    /* Not /proc/self/statm: its count lags behind by some pages of each thread. */
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[128];
    unsigned long long kib;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "Rss: %llu kB", &kib) == 1)
            memory.resident = (double)kib * 1024;
    }
    if (file)
        fclose(file);
    return memory;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the process: what the allocator has given out, and what is resident. */
#ifndef BENCH_RADIX_MEMORY_H
#define BENCH_RADIX_MEMORY_H

struct radix_memory { double allocated, resident; };
/* allocated: jemalloc's count, size classes included; 0 without jemalloc. resident: NAN where the
 * system does not say. */
struct radix_memory radix_memory_get(void);

#endif

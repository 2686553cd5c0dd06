/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels_ops.c and kernels_ring.c share: the memory of a case. */
#ifndef BENCH_KERNELS_WORK_H
#define BENCH_KERNELS_WORK_H

#include "kernels_bench.h"
#include "statecache/kernels_ssm.h"

/* A ring of 15 records: a cycle of 16 tokens, the last of which flushes. */
enum { KBENCH_RECORDS = KBENCH_CYCLE - 1 };

/* Tensors and index arrays of one thread. */
struct lane {
    void *in, *out, *small[4], *state, *scratch;
    void *dt; /* Mamba-2 */
    int32_t *source, *dest, *row_start, *records, *mode;
    uint32_t first, slots; /* its part of the pool */
};

struct kbench_work {
    struct kbench_case c;
    uint32_t threads;
    uint32_t calls;      /* of a thread in a round; decodes: one for each batch of its slots */
    uint64_t part_bytes; /* of a slot */
    uint32_t record_bytes;
    void *pool, *rings;  /* a ring for each slot of the pool */
    struct lane *lanes;
};

/* Small numbers, page-aligned. */
void *kbench_values(uint64_t count, sc_dtype dtype, float scale);
/* Memory as a pool has it (sc_backend_alloc()): in huge pages where the system gives them. */
void *kbench_pages(uint64_t bytes);

static inline sc_devptr dev(const void *ptr)
{
    return (sc_devptr)(uintptr_t)ptr;
}

sc_k_delta_shape kbench_shape(const struct kbench_model *model);
/* One call of a decode: the parameters, and the call itself. */
sc_k_decode_packed_params kbench_decode_params(const struct kbench_work *w,
    const struct lane *lane, sc_k_slots slots);
sc_k_ssm_params kbench_ssm_params(const struct kbench_work *w, const struct lane *lane,
    sc_k_slots slots);
void kbench_decode(struct kbench_work *w, struct lane *lane, sc_k_slots slots);
/* Points source and dest at the slots of call `call`. */
sc_k_slots kbench_rows(const struct kbench_work *w, struct lane *lane, uint32_t call);

/* kernels_ring.c */
void kbench_rings_open(struct kbench_work *w);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* `statecache-bench kernels`: each operation of the host backend beside the limits of the machine,
 * measured in turns in one run.
 *
 *   round:  case, limit, case, limit, ...     time of a case and of a limit: medians of the rounds;
 *   ratio:  the median of time(limit) / time(case), pairs of one round
 *
 * Two limits. "memory": x *= c in place over the memory that the operation moves (a decode: the
 * same slots of the same pool in the same order), by as many threads. "sgemm": 2048^3 of OpenBLAS,
 * which the program finds at run time. Threads never share a row; each is timed by its own
 * processor clock, so that a busy machine disturbs less, and the slowest counts. */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include "bench_common.h"

enum kbench_op {
    KBENCH_DECODE, KBENCH_CHUNK, KBENCH_RECURRENT, KBENCH_CONV_PREFILL, KBENCH_CONV_UPDATE,
    KBENCH_GATES, KBENCH_RMSNORM, KBENCH_L2NORM, KBENCH_VERIFY, KBENCH_REPLAY,
    KBENCH_OPS
};

enum kbench_limit { KBENCH_MEMORY, KBENCH_SGEMM };

/* Heads of one linear layer, as a model has them. Mamba-2: heads are groups, K is N and V is P;
 * decode, chunk and recurrent are then the selective state space. */
struct kbench_model {
    const char *name;
    sc_k_kind kind;
    uint32_t heads, v_heads, k_dim, v_dim;
    bool ssm;
};
enum { KBENCH_DRAFTS = 8, KBENCH_CYCLE = 16 }; /* of a row of a verify; tokens of a ring's cycle */
/* Has the model this operation? */
bool kbench_has(const struct kbench_model *model, enum kbench_op op);

struct kbench_case {
    enum kbench_op op;
    const struct kbench_model *model;
    sc_dtype dtype;  /* of tensors */
    sc_dtype state;  /* of slots; 0: none */
    uint32_t batch;  /* rows of a call */
    uint32_t tokens; /* of a row */
    uint32_t passes; /* of a ring's cycle over the pool in a round; at least 1 */
};

/* The operation of the library that serves it. */
sc_k_op kbench_library_op(const struct kbench_case *c);

/* What a case works on; made once, used by every round. */
struct kbench_work;

/* `pool_bytes` of slots, shared among decodes, so that their states exceed any cache. */
struct kbench_work *kbench_open(const struct kbench_case *c, uint64_t pool_bytes,
    uint32_t threads);
void kbench_close(struct kbench_work *work);
/* One round of thread `thread`: the whole pool, or as many calls as take some milliseconds. */
void kbench_run(struct kbench_work *work, uint32_t thread);
/* x *= c over the same memory. */
void kbench_scale(struct kbench_work *work, uint32_t thread);
/* A cycle of rings, of which kbench_run() does both: all tokens but the last, and the last; then
 * as many plain decodes of the same slots, and the same slots only read. Each goes over the pool
 * `passes` times. */
void kbench_ring_append(struct kbench_work *work, uint32_t thread);
void kbench_ring_flush(struct kbench_work *work, uint32_t thread);
void kbench_ring_decode(struct kbench_work *work, uint32_t thread);
void kbench_ring_read(struct kbench_work *work, uint32_t thread);
const char *kbench_op_name(enum kbench_op op);
enum kbench_limit kbench_limit_of(enum kbench_op op);
/* Of one round of all threads: calls, bytes that have to move, floating-point operations. */
uint64_t kbench_calls(const struct kbench_work *work);
uint64_t kbench_bytes(const struct kbench_work *work);
uint64_t kbench_flops(const struct kbench_work *work);
/* Of a ring's cycle: what as many decodes would move. */
uint64_t kbench_decode_bytes(const struct kbench_work *work);
/* Bytes that one round of kbench_scale() moves. */
uint64_t kbench_scale_bytes(const struct kbench_work *work);

/* The limits, kernels_limits.c. */
void kbench_scale_memory(void *memory, uint64_t bytes, float c);
void kbench_read_memory(const void *memory, uint64_t bytes);
const char *kbench_scale_name(void);
/* Looks for OpenBLAS; the name of its core, or NULL; `text_out`, of `size` bytes, says it or why
 * not. What the environment says of a core is unset. Where the core that OpenBLAS then takes is
 * slower than another one for this processor, it is told to take that. */
const char *kbench_blas_open(uint32_t threads, char *text_out, size_t size);
enum { KBENCH_SGEMM_N = 2048 };
void kbench_blas_sgemm(void);

#endif

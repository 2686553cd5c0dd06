/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `kernels` share: options, figures of a case, and how they are printed. */
#ifndef BENCH_KERNELS_RUN_H
#define BENCH_KERNELS_RUN_H

#include "bars.h"
#include "kernels_bench.h"
#include "kernels_rival.h"

enum { KBENCH_ROUNDS_MAX = 101, KBENCH_ROUNDS = 5, KBENCH_DECODE_ROUNDS = 25 };
enum { KBENCH_THREADS_MAX = 64 };

struct kbench_options {
    uint32_t threads, rounds; /* rounds 0: KBENCH_ROUNDS, of a decode KBENCH_DECODE_ROUNDS */
    uint32_t pool_mib, tokens_max, rival_wait_s;
    uint64_t cache_bytes; /* of the last level; 0: not known */
    const char *op, *model, *rival;
    bool quick, no_sgemm, json, bars;
};

/* A cycle of a ring beside as many decodes of the same slots; times of one call in us. */
struct kbench_ring {
    double decode_us, append_us, flush_us; /* medians; append: a mean over 0 .. 14 records */
    double ratio, model_ratio;             /* of times and of bytes: decodes / cycle */
    double decode_bytes, ring_bytes;       /* that one call has to move */
    double read_us, read_ratio; /* a step's slots and records; the same / time of x *= c */
    double cached_decode_us, cached_append_us, cached_flush_us; /* the same from a cache */
};

struct kbench_result {
    const char *row;
    double call_us, least_us, gb_s, gflop_s, limit, ratio; /* of a limit; 0: none */
    double bytes; /* that one call has to move */
    struct kbench_ring ring; /* of KBENCH_REPLAY */
    struct kbench_rival_answer rival;
};

/* kernels_measure.c */
struct kbench_result kbench_measure(const struct kbench_case *c, const struct kbench_options *o,
    bool blas);

/* kernels_report.c */
void kbench_head(const struct kbench_options *o, const char *blas,
    const struct kbench_rival *rival);
void kbench_report(const struct kbench_case *c, const struct kbench_options *o,
    const struct kbench_result *r);
void kbench_judge(const struct kbench_case *c, const struct kbench_options *o,
    const struct kbench_result *r, struct bench_bars *bars);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Runs witnessed requests again, each alone and cold in memory of its own, in the stretches of its
 * recorded history, and compares bit for bit: every hidden state and logit, the state it ended
 * with, the snapshot it resumed from, the keys and values of all its tokens; and samples its text
 * again. Twice: with every prefill stretch uncut, the snapshot's position saved on the way; and
 * with the prefill that made the snapshot stopped there and the rest cut at random grid points.
 * Then once more in float64, one token at a time, within a tolerance.
 *
 * A rerun decodes token by token, whatever was in flight, and knows nothing of drafts, forks and
 * tenants.
 *
 * With rings bits of outputs depend on where states were flushed. That is no secret of whoever
 * served: it follows from the history, the records of a ring and the positions that are saved
 * (struct phase), and so a rerun works it out for itself and takes no list of flushes from the run
 * that it checks. A third rerun without rings says, within a tolerance, that they lead to the same
 * outputs. */
#ifndef BENCH_RERUN_CHECK_H
#define BENCH_RERUN_CHECK_H

#include "sampler.h"
#include "witness.h"

struct check_options {
    const struct served_model *model;
    sc_layout layout;
    uint32_t page, threads;
    uint64_t seed;
    struct sampler sampler;
};

struct check_result {
    uint32_t checked, by_at[AT_COUNT], by_flag[WITNESS_FLAG_COUNT];
    uint32_t with_decode_before, grid_snapshots;
    uint64_t output_values, state_bytes; /* compared */
    uint64_t output_bits, state_bits, snapshot_bits; /* that differ; uncut rerun */
    uint64_t cut_bits;                   /* that differ in the rerun with cuts */
    uint64_t text_checked, text_tokens;  /* tokens sampled again; that are others */
    uint64_t kv_rows;                    /* tokens whose keys and values differ */
    uint64_t bad_histories;              /* that cannot be run again */
    double worst_ring;                   /* RMS error of outputs against those without rings */
    double worst_output, worst_state;    /* RMS error / RMS value of one request, against float64 */
    double tolerance;
};

void check_run(const struct check_options *options, struct witness **sample, uint32_t count,
    struct check_result *result);
/* No bit differs, and errors are within tolerance. */
bool check_passed(const struct check_result *result);
uint64_t check_bits(const struct check_result *result);

#endif

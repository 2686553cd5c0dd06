/* SPDX-License-Identifier: Apache-2.0 */
/** ReplaySSM: decode steps that read a state and do not write it.
 *
 * Between two writes of a state (its *base*) the tokens that came since lie in a ring, a record of
 * each; what a step puts out is the base's answer and a sum over the records:
 *
 *   state after n tokens   R = S0 diag(a_1 .. a_n) + sum_j d_j (k_j a_(j+1) .. a_n)^T
 *
 *     APPEND  reads base and records, gives the output, writes one record; the state stays as it is
 *     FLUSH   steps the base through the records and the token, writes it; the ring is empty
 *     FOLD    the same without a token: before a prefill, or drafts, that need the state itself
 *
 * A ring is a part of the extras pool's slot that goes with a working slot: for recurrent part i of
 * a layer EXTRA 1 + 2i, u8 {ring_records, ring_record_bytes} (sc_schema_extras_create); word 0 of
 * the control words (layer 0, EXTRA 0) counts the records, the same in all layers. So the phase of
 * the flushes travels with the slot: base, ring and control word together are a state after
 * base + records tokens, and whoever goes on from copies of them gets the bits of not having
 * stopped. Allocation clears the control words; records at or beyond the count are never read.
 *
 * What is promised. Flushes replay the raw inputs (k, v, decay and beta are kept as they came), so
 * that a flushed state, and the output of its token, have the bits of plain decode
 * (sc_k_decode_packed(), or sc_k_ssm() with rows of one token); 16-bit states are rounded after
 * each token, as there. Outputs of appended tokens are right within rounding (fp32: relative
 * error of 1e-5; with 16-bit states they miss the roundings in between), and depend on where the
 * base lies: the same phases, the same bits. Every row of the host's table gives the same ones.
 *
 * Rows, slots, padding, errors and threads are those of kernels.h. A row whose mode is NONE is
 * padding. So far the host alone has rows; other backends answer SC_ERR_UNSUPPORTED. */
#ifndef STATECACHE_KERNELS_REPLAY_H
#define STATECACHE_KERNELS_REPLAY_H

#include "statecache/kernels.h"
#include "statecache/kernels_ssm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What becomes of a row. In a plan (sc_batch.at_flush) APPEND means "may append": the ring decides
 * whether it has room. */
typedef enum sc_replay_mode {
    SC_REPLAY_NONE = -1,
    SC_REPLAY_APPEND = 0,
    SC_REPLAY_FLUSH = 1,
    SC_REPLAY_FOLD = 2
} sc_replay_mode;

enum { SC_REPLAY_RECORDS_MAX = 64 }; /* records of a ring at most */

/** What a row with `records` of `records_max` records does, and `*after_out`, how many it has then.
 * Pure; the one rule of phases, for whoever keeps count beside the control words. A full ring
 * flushes; a fold of nothing is NONE. */
SC_API sc_replay_mode sc_replay_next(sc_replay_mode planned, uint32_t records,
    uint32_t records_max, uint32_t *after_out);

/** Once for each forward, before its layers: reads the count of each row's slot and what the plan
 * asks for, says what each row does in every layer, and moves the count on. */
typedef struct sc_replay_step_params {
    sc_k_slots control;    /* of the extras pool: layer 0, EXTRA 0; `dtype` is ignored */
    uint32_t records_max;
    uint32_t row_count;
    sc_devptr slot;        /* [row_count] int32: of the extras pool (at_extra); <= 0: no row */
    sc_devptr planned;     /* [row_count] int32: sc_replay_mode (at_flush) */
    sc_devptr records;     /* out [row_count] int32: records before the row */
    sc_devptr mode;        /* out [row_count] int32: sc_replay_mode */
} sc_replay_step_params;

/** SC_ERR_INVALID; SC_ERR_CORRUPT: a count that no ring has (the slot was never reset, or is not of
 * this pool). Nothing has changed then. */
SC_API sc_status sc_replay_step(sc_backend *backend, const sc_replay_step_params *params,
    sc_stream *stream);

/** The ring of one layer, and what its rows do (from sc_replay_step, for all layers). */
typedef struct sc_k_ring {
    sc_k_slots slots;      /* of the extras pool; `dtype` is ignored */
    uint32_t records_max;  /* 1 .. SC_REPLAY_RECORDS_MAX */
    uint32_t record_bytes; /* at least what the layer's records need; a multiple of 64 */
    sc_devptr slot;        /* [row_count] int32, > 0: of one row at most */
    sc_devptr records;     /* [row_count] int32 */
    sc_devptr mode;        /* [row_count] int32: sc_replay_mode */
} sc_k_ring;

/* ----------------------------------------------------------------------------- gated delta rule */

/** Bytes of a record of such a layer: for each v head d (fp32), v (`dtype`), decay and beta (fp32);
 * for each q/k head k (`dtype`) and its norm. SC_ERR_INVALID, SC_ERR_UNSUPPORTED (dtype). */
SC_API sc_status sc_k_replay_delta_record_bytes(const sc_k_delta_shape *shape, sc_dtype dtype,
    uint32_t *bytes_out);

/** sc_k_decode_packed() with a ring; without `initial`. `dest` of a row that flushes is > 0 (often
 * its source); that of one that appends is not written. `save` is written by flushes alone; rows
 * that append have none (<= 0). A row that folds is an error here. */
typedef struct sc_k_replay_delta_params {
    sc_k_decode_packed_params step;
    sc_k_ring ring;
} sc_k_replay_delta_params;

SC_API sc_status sc_k_replay_delta(sc_backend *backend, const sc_k_replay_delta_params *params,
    sc_stream *stream);

/** dest gets the state after the records, where the row's mode is FOLD; other rows are left
 * alone. */
typedef struct sc_k_replay_delta_fold_params {
    sc_k_delta_shape shape;
    sc_dtype dtype;        /* of the records' k and v */
    uint32_t row_count;
    sc_devptr source;      /* [row_count] int32: the base */
    sc_devptr dest;        /* [row_count] int32 */
    sc_k_slots state;
    sc_k_ring ring;
} sc_k_replay_delta_fold_params;

SC_API sc_status sc_k_replay_delta_fold(sc_backend *backend,
    const sc_k_replay_delta_fold_params *params, sc_stream *stream);

/* -------------------------------------------------------------------------------------- Mamba-2 */

/** Bytes of a record: x and B (`dtype`), dt and decay of each head (fp32). SC_ERR_INVALID,
 * SC_ERR_UNSUPPORTED (dtype). */
SC_API sc_status sc_k_replay_ssm_record_bytes(uint32_t heads, uint32_t groups, uint32_t head_dim,
    uint32_t state_dim, sc_dtype dtype, uint32_t *bytes_out);

/** sc_k_ssm() for one token in each row (row r is token r), with a ring. Of `step`, token_count,
 * row_start, position, saves and initial are not used (0). The rest as for the delta rule. */
typedef struct sc_k_replay_ssm_params {
    sc_k_ssm_params step;
    sc_k_ring ring;
} sc_k_replay_ssm_params;

SC_API sc_status sc_k_replay_ssm(sc_backend *backend, const sc_k_replay_ssm_params *params,
    sc_stream *stream);

/** dest gets the state after the records, where the row's mode is FOLD; other rows are left alone.
 * Of `step` the shape, dtype, row_count, source, dest and state are used. */
SC_API sc_status sc_k_replay_ssm_fold(sc_backend *backend, const sc_k_replay_ssm_params *params,
    sc_stream *stream);

#ifdef __cplusplus
}
#endif
#endif

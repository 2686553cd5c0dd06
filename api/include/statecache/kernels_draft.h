/* SPDX-License-Identifier: Apache-2.0 */
/** Draft tokens: verification in chains and trees without a state for each token, and the commit of
 * what was accepted.
 *
 *   verify   reads the state of each row and the draft tokens, gives their outputs, writes no slot
 *   commit   reads the same state and the same tokens (the caller keeps k, v, g, beta and the raw
 *            inputs of the conv), and replays the accepted path into dest: the bits of having
 *            decoded these tokens one by one, 16-bit states rounded after each
 *
 * A row's tokens are the nodes of a tree in topological order: parent[t] is the index, within the
 * row, of the token that t continues, smaller than t's own; -1 (any negative) continues the row's
 * state. Without `parent` (0) each token continues the one before it: a chain. A commit names the
 * last accepted node of each row; -1: nothing was accepted, and dest gets the bits of source.
 *
 * With `states` (and `windows`) a verify also stores what each node leaves, and a commit that is
 * given them copies instead of replaying: faster to commit, much more memory. Same bits.
 *
 * Rows, slots, padding, errors and threads are those of kernels.h. So far the host alone has rows
 * for these operations; other backends answer SC_ERR_UNSUPPORTED. */
#ifndef STATECACHE_KERNELS_DRAFT_H
#define STATECACHE_KERNELS_DRAFT_H

#include "statecache/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SC_K_DRAFT_MAX = 256 }; /* tokens of one row at most */

/** Memory for what every node leaves, all zero: none. Row r's node t lies at
 * base + (r * tokens_max + t) * part bytes, dense, in the dtype of the slots (windows: width
 * first, whatever the slots' order). */
typedef struct sc_k_node_store {
    sc_devptr base;
    uint32_t tokens_max; /* nodes of a row; at least the longest row's */
} sc_k_node_store;

/** Bytes of a store for `row_count` rows whose parts have `part_elems` elements; 0 when unused
 * (tokens_max 0). SC_ERR_INVALID, SC_ERR_UNSUPPORTED (dtype), SC_ERR_OVERFLOW. */
SC_API sc_status sc_k_node_store_bytes(uint32_t row_count, uint32_t tokens_max,
    uint64_t part_elems, sc_dtype dtype, uint64_t *bytes_out);

/* ----------------------------------------------------------------------------- gated delta rule */

/** Outputs of all draft tokens. Of `tokens`: dest, position, saves and chunk are not used (0);
 * scratch is that of sc_k_delta_verify_scratch(). */
typedef struct sc_k_delta_verify_params {
    sc_k_delta_params tokens;
    sc_devptr parent;       /* [token_count] int32, or 0: chains */
    sc_k_node_store states; /* or none */
    uint32_t tokens_max;    /* of a row, at most SC_K_DRAFT_MAX; sizes the scratch */
} sc_k_delta_verify_params;

SC_API sc_status sc_k_delta_verify(sc_backend *backend, const sc_k_delta_verify_params *params,
    sc_stream *stream);
/** Bytes of scratch that a verify needs: of one head, for tokens_max tokens. Pointers are
 * ignored. */
SC_API sc_status sc_k_delta_verify_scratch(sc_backend *backend,
    const sc_k_delta_verify_params *params, uint64_t *bytes_out);

/** Replays the path from the row's state to `node` into dest. Of `tokens`: q, o, chunk and scratch
 * are not used (0); position is that of the row's first draft, and saves name positions on the
 * accepted path. */
typedef struct sc_k_delta_commit_params {
    sc_k_delta_params tokens;
    sc_devptr parent;       /* as in the verify */
    sc_devptr node;         /* [row_count] int32 */
    sc_k_node_store states; /* as the verify left them: copied; or none: replayed */
} sc_k_delta_commit_params;

SC_API sc_status sc_k_delta_commit(sc_backend *backend, const sc_k_delta_commit_params *params,
    sc_stream *stream);

/* ----------------------------------------------------------------------------------------- conv */

/** Outputs of the conv for all draft tokens; each sees its own ancestors. Of `tokens`: dest,
 * position and saves are not used (0). */
typedef struct sc_k_conv_verify_params {
    sc_k_conv_prefill_params tokens;
    sc_devptr parent;        /* [token_count] int32, or 0: chains */
    sc_k_node_store windows; /* or none */
} sc_k_conv_verify_params;

SC_API sc_status sc_k_conv_verify(sc_backend *backend, const sc_k_conv_verify_params *params,
    sc_stream *stream);

/** The window after `node` goes to dest, those of saves on the way to theirs. Of `tokens`: y,
 * weight and bias are not used (0). */
typedef struct sc_k_conv_commit_params {
    sc_k_conv_prefill_params tokens;
    sc_devptr parent;        /* as in the verify */
    sc_devptr node;          /* [row_count] int32 */
    sc_k_node_store windows; /* as the verify left them: copied; or none: made from x */
} sc_k_conv_commit_params;

SC_API sc_status sc_k_conv_commit(sc_backend *backend, const sc_k_conv_commit_params *params,
    sc_stream *stream);

/** The conv on wide rows with a cursor, for engines that keep drafts in the window itself. A part
 * of a slot has width - 1 + drafts_max - 1 inputs: the window before the last call's first token,
 * then that call's tokens. `accepted[r]` of them (the first always was: 1 .. drafts_max) are
 * history now, which is how rejected drafts vanish without a copy:
 *
 *   before   | w0 w1 w2 | d1 d2 d3 |        W = 4, drafts_max = 4, accepted = 2: history w1 w2 d1
 *   after    | w2 d1 | x0 x1 x2 x3 |        what follows the new history's first, then all tokens
 *
 * Rows of fewer tokens than drafts_max leave the end as it was. In place; `slot` <= 0: no row,
 * zeros. */
typedef struct sc_k_conv_update_spec_params {
    sc_devptr x;         /* [token_count, x_stride] */
    sc_devptr y;         /* [token_count, y_stride] */
    int64_t x_stride;    /* elements; 0: channels */
    int64_t y_stride;
    sc_dtype dtype;
    sc_devptr weight;    /* [channels, width] */
    sc_devptr bias;      /* [channels] or 0 */
    sc_dtype weight_dtype;
    sc_k_act act;
    uint32_t channels;
    uint32_t width;
    uint32_t drafts_max; /* 1 .. SC_K_DRAFT_MAX */
    uint32_t token_count;
    uint32_t row_count;
    sc_devptr row_start; /* [row_count + 1] int32 */
    sc_devptr slot;      /* [row_count] int32 */
    sc_devptr accepted;  /* [row_count] int32 */
    sc_k_slots window;   /* [slot][width - 1 + drafts_max - 1][channels] */
    sc_k_order order;    /* of window */
} sc_k_conv_update_spec_params;

SC_API sc_status sc_k_conv_update_spec(sc_backend *backend,
    const sc_k_conv_update_spec_params *params, sc_stream *stream);

#ifdef __cplusplus
}
#endif
#endif

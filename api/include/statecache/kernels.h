/* SPDX-License-Identifier: Apache-2.0 */
/** Backends, and the operations of linear-attention layers that read and write states in slots.
 *
 * Every operation takes one plain struct: zero-initialise it, fill in what you use; a field that is
 * 0 means "default" where its comment says so. All tensors are `sc_devptr` of the backend (on the
 * host backend: addresses). Index arrays are int32 tensors of the backend, too. Offsets are 64-bit
 * from the first multiplication. "Stride" counts elements from one token to the next and 0 stands
 * for dense, so that q, k and v may point into one packed row.
 *
 * Rows and slots. A call serves `row_count` sequences ("rows"). For each row:
 *
 *   source[r]   -1 (any negative): no row. Its outputs are zeros, no state is read or written.
 *                0: from the zero state; slot 0 is never read.
 *               >0: the state in that slot, read in place.
 *               With `initial` (its base not 0) a row that is none of -1 begins with entry r of
 *               that dense array [row_count][part] instead, rounded to the dtype of the slots,
 *               whatever its source (pass 0).
 *   dest[r]     <= 0: the state after the row is not stored; > 0: stored there (may equal
 *               source[r]).
 *   row_start   [row_count + 1]: tokens row_start[r] .. row_start[r+1] - 1 of the packed batch. A
 *               row whose end is not above its start (padding with -1 or with the total) is empty:
 *               no output, and dest gets the bits of source (in place: no change).
 *   position[r] absolute position, in its own sequence, of the row's first token.
 *   saves       (row, pos, slot)[count]: the state after exactly `pos` tokens of that row's
 *               sequence goes to `slot` (> 0); position < pos <= position + length. An entry with
 *               a negative row is padding. A save at a row's end equals dest.
 *
 * In one call a slot is dest or save slot at most once, and is then no *other* row's source.
 * Tokens outside all rows are neither read nor written.
 *
 * What a call returns. The host backend checks everything, index arrays included, before it writes:
 * on error nothing has changed. Device backends check what the host can see; bad indices there are
 * undefined, as for any kernel. Launchers never allocate, never synchronise, never print. Errors of
 * every launcher: SC_ERR_INVALID (with text), SC_ERR_UNSUPPORTED (no row of the kernel table is
 * eligible; the text names what is missing). `backend` NULL is the host.
 *
 * Numerics. Gate and state arithmetic is fp32. On the host products are rounded before they are
 * added (no fused multiply-add), except by the wide rows of the chunk form; a device fuses them,
 * always in the same places. The order depends on the shape of one head only: the bits of one
 * sequence by one kernel row depend neither on the batch, its packing, neighbours, padding or
 * layout, nor on later tokens. The host has rows "avx512", "avx2" and "reference" (plain C) of
 * every operation, and "avx512_bf16" where states are narrowed. All give the same bits, but for
 * the chunk form: there the wide ones do, and the reference differs within rounding.
 * bf16 states are rounded (nearest even) after each token (decode, recurrent) or each chunk
 * (chunk), and the rounded value is what is carried on, so that resuming from a stored state gives
 * the bits of not having stopped.
 *
 * Threads: any, on disjoint outputs. */
#ifndef STATECACHE_KERNELS_H
#define STATECACHE_KERNELS_H

#include "statecache/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sc_backend sc_backend;
/** A backend's stream; NULL is its default stream. The host backend has no other. */
typedef struct sc_stream sc_stream;

/** The host backend; always there, never NULL, not to be closed. */
SC_API sc_backend *sc_backend_host(void);
/** A backend by name: "host" or "cuda". SC_ERR_NOT_FOUND: no such name; SC_ERR_UNSUPPORTED: known
 * but not in this build, the text says why. `*backend_out` is shared and lives as long as the
 * process. */
SC_API sc_status sc_backend_open(const char *name, sc_backend **backend_out);
/** Static name; NULL for NULL. */
SC_API const char *sc_backend_name(const sc_backend *backend);
/** The number of its device, as its runtime counts them; the host: 0; NULL: -1. "cuda" has one
 * device in a process: the one that was current when it was first opened. Its calls make that the
 * current one of their thread. */
SC_API int32_t sc_backend_device(const sc_backend *backend);

/** One part (layer) of every slot of a pool, as sc_pool_layer_view() gives it: slot s begins at
 * base + s * slot_stride. */
typedef struct sc_k_slots {
    sc_devptr base;
    int64_t slot_stride; /* bytes */
    sc_dtype dtype;      /* F32 or BF16 */
    /* ids below this are legal, null slot included; 0: not known, not checked */
    uint32_t slot_count;
} sc_k_slots;

/** The saves of a call; all zero: none. */
typedef struct sc_k_saves {
    sc_devptr row;  /* [count] int32 */
    sc_devptr pos;  /* [count] int32 */
    sc_devptr slot; /* [count] int32 */
    uint32_t count;
} sc_k_saves;

/** How the inputs of a conv window lie in a slot: [width - 1][channels], or [channels][width - 1].
 * The second is what some engines keep; it costs the host (no vector reads it whole). */
typedef enum sc_k_order { SC_K_ORDER_WIDTH_FIRST = 0, SC_K_ORDER_DIM_FIRST = 1 } sc_k_order;

typedef enum sc_k_act { SC_K_ACT_IDENTITY = 0, SC_K_ACT_SILU = 1, SC_K_ACT_SIGMOID = 2 } sc_k_act;

/* ------------------------------------------------------------------------ causal depthwise conv */

/** y[t,c] = act(bias[c] + sum_j weight[c,j] * x[t-(W-1)+j, c]), taps oldest first, fp32 products.
 *
 * Inputs are rounded to the window's dtype before use when that is narrower (so that a cut changes
 * no bit); the window holds the last W-1 such inputs. x and y must not overlap. */
typedef struct sc_k_conv_prefill_params {
    sc_devptr x;         /* [token_count, x_stride] of `dtype` */
    sc_devptr y;         /* [token_count, y_stride] of `dtype` */
    int64_t x_stride;    /* elements; 0: channels */
    int64_t y_stride;    /* elements; 0: channels */
    sc_dtype dtype;      /* F32 or BF16 */
    sc_devptr weight;    /* [channels, width] of `weight_dtype` */
    sc_devptr bias;      /* [channels] of `weight_dtype`, or 0 */
    sc_dtype weight_dtype;
    sc_k_act act;        /* IDENTITY or SILU */
    uint32_t channels;
    uint32_t width;      /* 2, 3 or 4 */
    uint32_t token_count;
    uint32_t row_count;
    sc_devptr row_start; /* [row_count + 1] int32 */
    sc_devptr position;  /* [row_count] int32; 0: all zero */
    sc_devptr source;    /* [row_count] int32 */
    sc_devptr dest;      /* [row_count] int32 */
    sc_k_saves saves;    /* at any position within the row */
    sc_k_slots window;   /* [slot][width - 1][channels] */
    sc_k_slots initial;  /* base not 0: dense beginnings, [row_count] parts like those of window */
    sc_k_order order;    /* of window and initial */
} sc_k_conv_prefill_params;

SC_API sc_status sc_k_conv_prefill(sc_backend *backend, const sc_k_conv_prefill_params *params,
    sc_stream *stream);

/** The same for one token in each row (decode): row r is token r. Same bits as prefill. */
typedef struct sc_k_conv_update_params {
    sc_devptr x;      /* [row_count, x_stride] */
    sc_devptr y;      /* [row_count, y_stride] */
    int64_t x_stride; /* elements; 0: channels */
    int64_t y_stride; /* elements; 0: channels */
    sc_dtype dtype;
    sc_devptr weight; /* [channels, width] */
    sc_devptr bias;   /* [channels] or 0 */
    sc_dtype weight_dtype;
    sc_k_act act;
    uint32_t channels;
    uint32_t width;
    uint32_t row_count;
    sc_devptr source; /* [row_count] int32 */
    sc_devptr dest;   /* [row_count] int32 */
    sc_devptr save;   /* [row_count] int32: second destination, <= 0: none; or 0 */
    sc_k_slots window;
    bool window_settled; /* a promise like state_settled below, for windows and weights */
    sc_k_slots initial;  /* as in sc_k_conv_prefill_params */
    sc_k_order order;
} sc_k_conv_update_params;

SC_API sc_status sc_k_conv_update(sc_backend *backend, const sc_k_conv_update_params *params,
    sc_stream *stream);

/* ---------------------------------------------------------------------------------------- gates */

typedef enum sc_k_gate {
    SC_K_GATE_GDN = 1,          /* g = -exp(A_log[h]) * softplus(a[t,h] + dt_bias[h]) */
    SC_K_GATE_KDA_SOFTPLUS = 2, /* the same for each k: a [t,h,k], dt_bias [h,k] */
    /* g = lower_bound * sigmoid(exp(A_log[h]) * (a + dt_bias)[t,h,k]) */
    SC_K_GATE_KDA_BOUNDED = 3
} sc_k_gate;

/** Weights of the gates of one layer. */
typedef struct sc_k_gate_weights {
    sc_k_gate gate;
    sc_devptr a_log;   /* [heads] fp32; 0: exp(A_log) = 1, only for KDA_BOUNDED */
    sc_devptr dt_bias; /* [heads] or [heads, dim] of dt_bias_dtype; 0: none */
    sc_dtype dt_bias_dtype;
    float lower_bound; /* KDA_BOUNDED: in [-5, 0) */
    bool beta_doubled; /* beta = 2 * sigmoid(b): negative eigenvalues */
} sc_k_gate_weights;

/** Log gates g <= 0 and write strengths beta = sigmoid(b), both fp32. softplus(x) = x above 20,
 * else log1p(exp(x)). Either output may be left out (0), with its input. */
typedef struct sc_k_gates_params {
    sc_devptr a;      /* [token_count, a_stride] of `dtype`; heads, or heads * dim for KDA */
    sc_devptr b;      /* [token_count, b_stride] of `dtype`; heads */
    int64_t a_stride; /* elements; 0: dense */
    int64_t b_stride; /* elements; 0: dense */
    sc_dtype dtype;
    sc_k_gate_weights weights;
    uint32_t token_count;
    uint32_t heads;   /* v heads */
    uint32_t dim;     /* K; ignored for GDN */
    sc_devptr g;      /* out [token_count, heads] or [token_count, heads, dim] fp32 */
    sc_devptr beta;   /* out [token_count, heads] fp32 */
} sc_k_gates_params;

SC_API sc_status sc_k_gates(sc_backend *backend, const sc_k_gates_params *params,
    sc_stream *stream);

/* ---------------------------------------------------------------------------------------- norms */

/** y = x / sqrt(sum x^2 + eps) over the last dimension. In place is allowed (y == x, equal strides
 * and dtypes). */
typedef struct sc_k_l2norm_params {
    sc_devptr x;      /* [token_count, x_stride]: heads * dim used */
    sc_devptr y;      /* [token_count, y_stride] */
    int64_t x_stride; /* elements; 0: heads * dim */
    int64_t y_stride;
    sc_dtype dtype;     /* of x */
    sc_dtype out_dtype; /* of y; 0: like x */
    uint32_t token_count;
    uint32_t heads;
    uint32_t dim;
    float eps;        /* 0: 1e-6 */
} sc_k_l2norm_params;

SC_API sc_status sc_k_l2norm(sc_backend *backend, const sc_k_l2norm_params *params,
    sc_stream *stream);

/** norm first (GDN, KDA): y = rms(x) * weight * act(z); gate first (Mamba-2): y = rms(x * act(z)) *
 * weight, with rms(x) = x / sqrt(mean x^2 + eps) over `dim`. In place is allowed (y == x). */
typedef struct sc_k_gated_rmsnorm_params {
    sc_devptr x;      /* [token_count, x_stride]: heads * dim used, of `dtype` */
    sc_devptr z;      /* [token_count, z_stride]: the gate, of `dtype` */
    sc_devptr y;      /* [token_count, y_stride] of `dtype` */
    int64_t x_stride; /* elements; 0: heads * dim */
    int64_t z_stride;
    int64_t y_stride;
    sc_dtype dtype;
    sc_devptr weight; /* [dim], or [heads, dim] with weight_per_head */
    sc_dtype weight_dtype;
    bool weight_per_head;
    bool gate_first;
    sc_k_act act;     /* SILU or SIGMOID */
    uint32_t token_count;
    uint32_t heads;   /* or groups */
    uint32_t dim;
    float eps;        /* > 0 */
    sc_dtype z_dtype; /* 0: like x */
} sc_k_gated_rmsnorm_params;

SC_API sc_status sc_k_gated_rmsnorm(sc_backend *backend, const sc_k_gated_rmsnorm_params *params,
    sc_stream *stream);

/* ----------------------------------------------------------------------------- gated delta rule */

typedef enum sc_k_kind {
    SC_K_KIND_GDN = 1, /* one decay for each v head: g [t, v_heads] */
    SC_K_KIND_KDA = 2  /* one for each of K: g [t, v_heads, k_dim] */
} sc_k_kind;

enum { SC_K_DIM_MAX = 256 };

/** Shape of one layer. v head h reads q/k head h / (v_heads / heads). */
typedef struct sc_k_delta_shape {
    sc_k_kind kind;
    uint32_t heads;   /* q/k heads; divides v_heads */
    uint32_t v_heads;
    uint32_t k_dim;   /* 1 .. 256 */
    uint32_t v_dim;   /* 1 .. 256 */
    float scale;      /* of q; 0: k_dim^-0.5 */
    bool qk_l2norm;   /* normalise q and k, eps 1e-6 inside the root, kept in fp32 */
} sc_k_delta_shape;

/** Per token: S <- S diag(exp g); u = beta (v - S k); S <- S + u k^T; o = scale * S q.
 * One struct for both forms of a packed batch. */
typedef struct sc_k_delta_params {
    sc_devptr q;       /* [token_count, q_stride]: heads * k_dim used */
    sc_devptr k;       /* [token_count, k_stride]: heads * k_dim used */
    sc_devptr v;       /* [token_count, v_stride]: v_heads * v_dim used */
    sc_devptr o;       /* out [token_count, o_stride]: v_heads * v_dim written */
    int64_t q_stride;  /* elements; 0: dense */
    int64_t k_stride;
    int64_t v_stride;
    int64_t o_stride;
    sc_dtype dtype;    /* of q, k, v, o: F32 or BF16 */
    sc_devptr g;       /* [token_count, v_heads (, k_dim)] fp32 log decay, <= 0, dense */
    sc_devptr beta;    /* [token_count, v_heads] fp32, dense */
    sc_k_delta_shape shape;
    uint32_t token_count;
    uint32_t row_count;
    sc_devptr row_start; /* [row_count + 1] int32 */
    sc_devptr position;  /* [row_count] int32; 0: all zero */
    sc_devptr source;    /* [row_count] int32 */
    sc_devptr dest;      /* [row_count] int32 */
    sc_k_saves saves;    /* recurrent: any position in the row; chunk: multiples of `chunk` */
    sc_k_slots state;    /* [slot][v_heads][v_dim][k_dim] */
    uint32_t chunk;      /* chunk form: 16, 32 or 64; recurrent: ignored */
    sc_devptr scratch;   /* chunk form: 64-byte aligned, of no other call that may run meanwhile */
    uint64_t scratch_bytes;
    sc_k_slots initial;  /* base not 0: dense beginnings, [row_count] parts like those of `state` */
} sc_k_delta_params;

/** Token by token; 16-bit states are rounded after each. Same bits as as many decode steps. */
SC_API sc_status sc_k_delta_recurrent(sc_backend *backend, const sc_k_delta_params *params,
    sc_stream *stream);

/** Chunk by chunk on the grid of absolute positions: a chunk ends where position % chunk == 0, the
 * first and the last may be shorter. The prefill form at every length. */
SC_API sc_status sc_k_delta_chunk(sc_backend *backend, const sc_k_delta_params *params,
    sc_stream *stream);
/** Bytes of scratch that a chunk call with these shapes needs; the pointers of `params` are
 * ignored. Grows with token_count and row_count at most (on the host with neither). */
SC_API sc_status sc_k_delta_chunk_scratch(sc_backend *backend, const sc_k_delta_params *params,
    uint64_t *bytes_out);

/** One token in each row, from the packed row [q | k | v] as the conv left it. Gates are either
 * given (g and beta) or computed from a, b and the weights, with the bits of sc_k_gates(). */
typedef struct sc_k_decode_packed_params {
    sc_devptr qkv;      /* [row_count, qkv_stride]: 2 * heads * k_dim + v_heads * v_dim used */
    sc_devptr o;        /* out [row_count, o_stride]: v_heads * v_dim written */
    int64_t qkv_stride; /* elements; 0: dense */
    int64_t o_stride;
    sc_dtype dtype;     /* of qkv, o, a, b */
    sc_devptr g;        /* [row_count, v_heads (, k_dim)] fp32, dense; or 0: from a */
    sc_devptr beta;     /* [row_count, v_heads] fp32, dense; or 0: from b */
    sc_devptr a;        /* [row_count, a_stride]; only without g */
    sc_devptr b;        /* [row_count, b_stride]; only without beta */
    int64_t a_stride;
    int64_t b_stride;
    sc_k_gate_weights weights; /* only without g or beta */
    sc_k_delta_shape shape;
    uint32_t row_count;
    sc_devptr source;   /* [row_count] int32 */
    sc_devptr dest;     /* [row_count] int32 */
    sc_devptr save;     /* [row_count] int32: second destination, <= 0 none; or 0 */
    sc_k_slots state;
    /* A promise that lets a device begin to read states while the kernel before this one in the
     * stream still runs: that kernel writes neither source slots of this part nor index arrays nor
     * weights. True in any model of more than one layer, whose kernels come in turns. A kernel of
     * your own that lets the next one in (programmatic dependent launch) does so behind its own
     * wait, as the library's do; else the promise is about the kernels before it, too. */
    bool state_settled;
    sc_k_slots initial; /* as in sc_k_delta_params */
} sc_k_decode_packed_params;

SC_API sc_status sc_k_decode_packed(sc_backend *backend, const sc_k_decode_packed_params *params,
    sc_stream *stream);

/** The same from q, k and v in places of their own. On the host the bits of the packed decode. */
typedef struct sc_k_decode_params {
    sc_devptr q;      /* [row_count, q_stride]: heads * k_dim used */
    sc_devptr k;      /* [row_count, k_stride]: heads * k_dim used */
    sc_devptr v;      /* [row_count, v_stride]: v_heads * v_dim used */
    sc_devptr o;      /* out [row_count, o_stride]: v_heads * v_dim written */
    int64_t q_stride; /* elements; 0: dense */
    int64_t k_stride;
    int64_t v_stride;
    int64_t o_stride;
    sc_dtype dtype;   /* of q, k, v, o, a, b */
    sc_devptr g;      /* these as in sc_k_decode_packed_params */
    sc_devptr beta;
    sc_devptr a;
    sc_devptr b;
    int64_t a_stride;
    int64_t b_stride;
    sc_k_gate_weights weights;
    sc_k_delta_shape shape;
    uint32_t row_count;
    sc_devptr source; /* [row_count] int32 */
    sc_devptr dest;   /* [row_count] int32 */
    sc_devptr save;   /* [row_count] int32: second destination, <= 0 none; or 0 */
    sc_k_slots state;
    sc_k_slots initial;
    bool state_settled; /* the same promise */
} sc_k_decode_params;

SC_API sc_status sc_k_decode(sc_backend *backend, const sc_k_decode_params *params,
    sc_stream *stream);

/** Copies the columns [q | k | v] of a packed batch, as the conv left it, to three tensors: for
 * kernels of others. The forms above need no such copy; they take strides. No output overlaps. */
typedef struct sc_k_qkv_split_params {
    sc_devptr qkv;      /* [token_count, qkv_stride]: 2 * qk_dim + v_dim used */
    sc_devptr q;        /* out [token_count, q_stride]: qk_dim written; 0: left out */
    sc_devptr k;        /* out [token_count, k_stride]: qk_dim written; 0: left out */
    sc_devptr v;        /* out [token_count, v_stride]: v_dim written; 0: left out */
    int64_t qkv_stride; /* elements; 0: dense */
    int64_t q_stride;
    int64_t k_stride;
    int64_t v_stride;
    sc_dtype dtype;     /* F32 or BF16 */
    uint32_t qk_dim;    /* of all heads: heads * k_dim */
    uint32_t v_dim;     /* of all heads: v_heads * v_dim */
    uint32_t token_count;
} sc_k_qkv_split_params;

SC_API sc_status sc_k_qkv_split(sc_backend *backend, const sc_k_qkv_split_params *params,
    sc_stream *stream);

/** sc_k_conv_update(), then sc_k_decode_packed() on what it made: a layer's decode step, for layers
 * with one window for q, k and v. decode->qkv is conv->y with its stride, conv->channels is
 * 2 * heads * k_dim + v_heads * v_dim, and both name the same dtype, rows and index arrays
 * (SC_ERR_INVALID otherwise; nothing has changed then). Same bits as the two calls; y's contents
 * are undefined afterwards, since a device serves a small batch in one launch that needs no y. */
SC_API sc_status sc_k_decode_step(sc_backend *backend, const sc_k_conv_update_params *conv,
    const sc_k_decode_packed_params *decode, sc_stream *stream);

/* ----------------------------------------------------------------------------- kernel selection */

typedef enum sc_k_op {
    SC_K_OP_CONV_PREFILL = 0,
    SC_K_OP_CONV_UPDATE = 1,
    SC_K_OP_GATES = 2,
    SC_K_OP_L2NORM = 3,
    SC_K_OP_GATED_RMSNORM = 4,
    SC_K_OP_DELTA_RECURRENT = 5,
    SC_K_OP_DELTA_CHUNK = 6,
    SC_K_OP_DECODE_PACKED = 7,
    SC_K_OP_DELTA_VERIFY = 8, /* kernels_draft.h */
    SC_K_OP_DELTA_COMMIT = 9,
    SC_K_OP_CONV_VERIFY = 10,
    SC_K_OP_CONV_COMMIT = 11,
    SC_K_OP_CONV_UPDATE_SPEC = 12,
    SC_K_OP_SSM = 13, /* kernels_ssm.h */
    SC_K_OP_DECODE = 14,
    SC_K_OP_QKV_SPLIT = 15,
    SC_K_OP_SSM_CHUNK = 16,
    SC_K_OP_PROJECT = 17, /* kernels_project.h */
    SC_K_OP_MOVE = 18,    /* kernels_move.h */
    SC_K_OP_REPLAY_DELTA = 19, /* kernels_replay.h */
    SC_K_OP_REPLAY_DELTA_FOLD = 20,
    SC_K_OP_REPLAY_SSM = 21,
    SC_K_OP_REPLAY_SSM_FOLD = 22,
    SC_K_OP_KDA_UPDATE = 23, /* kernels_stage.h */
    SC_K_OP_COUNT = 24
} sc_k_op;

/** Name of the kernel row that serves `op` on `backend` for tensors of `dtype` and states of
 * `state_dtype` (0: the operation has none): what a program logs at start. The first row of the
 * table that runs here and has the features; two environment variables, read once per process,
 * change that: SC_KERNELS=<row> passes over the host's rows before that one, for every operation
 * (SC_KERNELS=reference: plain C throughout); SC_KERNEL_<OP>=<row> (as in
 * SC_KERNEL_DELTA_CHUNK=reference) forces one operation's row. Neither is replaced in silence:
 * SC_ERR_UNSUPPORTED names the missing features, or the row that the processor cannot run.
 * `*row_out` is static. */
SC_API sc_status sc_k_choice(sc_backend *backend, sc_k_op op, sc_dtype dtype, sc_dtype state_dtype,
    const char **row_out);

#ifdef __cplusplus
}
#endif
#endif

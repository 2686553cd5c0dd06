/* SPDX-License-Identifier: Apache-2.0 */
/** The KDA stage: all of a Kimi-Delta-Attention layer between two dense products, as one call (and,
 * with their weights given, those two as well).
 *
 *   x [ q | k | v | beta | f_a | g_a ]      columns of one matrix, where in_proj left them
 *       conv, silu    |     |     '- g_b --> output gate   (or the gate given ready: full rank)
 *       l2norm        |     '------- f_b --> decay, bounded or softplus
 *       '------ delta update, one token or several --> gated RMSNorm --> y [heads * dim]
 *
 * Life: create packs what is small once (conv weights to [3, W, D] fp32, the norm in fp32); prepare
 * resolves how a key will run, from shapes and strides alone, before any memory exists; run does
 * it. A run whose key was not prepared, or with other strides, takes the chain of single operations
 * and is counted (sc_kda_stage_stats).
 *
 * The output gate is made in one of four ways, by the number of tokens of the call: inside the
 * update (fold), by a thin product before it (gate), by a GEMM (numerics FAST only), or given.
 * Under SC_NUMERICS_EXACT all of them, and the chain, give the same bits, so that neither batch nor
 * preparation changes one (contract 10).
 *
 * A key is `requests` x `tokens`: one token each is decode; several are draft tokens in a chain:
 * outputs, and no slot is written. What was accepted is committed by sc_linear_commit() from the
 * same columns.
 *
 * Alignment. x, its pitch and columns, y and the slots lie on multiples of 16 bytes; anything else
 * is refused (SC_ERR_INVALID) by prepare and run, never served slowly.
 *
 * Host only so far: other backends answer SC_ERR_UNSUPPORTED. */
#ifndef STATECACHE_KERNELS_STAGE_H
#define STATECACHE_KERNELS_STAGE_H

#include "statecache/kernels_project.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sc_kda_stage sc_kda_stage;

/** A caller's product, sc_k_project() in meaning. Used with SC_NUMERICS_FAST for more tokens than
 * the thin product is made for. Returns SC_OK or an error, which the run passes on. */
typedef sc_status (*sc_gemm_fn)(void *ctx, const sc_k_project_params *product, sc_stream *stream);
/** Sums `count` elements at `data` over tensor-parallel ranks, in place. */
typedef sc_status (*sc_reduce_fn)(void *ctx, sc_devptr data, sc_dtype dtype, uint64_t count,
    sc_stream *stream);

/** Weights stay the caller's and as they are until destroy; all are tensors of the backend. */
typedef struct sc_kda_stage_options {
    size_t struct_size;
    uint32_t heads;          /* of this rank */
    uint32_t dim;            /* K = V: a multiple of 8, 8 .. 256 */
    uint32_t rank;           /* of f (and g): a multiple of 8 */
    uint32_t conv_width;     /* 2, 3 or 4 */
    sc_dtype dtype;          /* of x, y and the windows */
    sc_dtype weight_dtype;   /* of all weights but the fp32 ones */
    sc_devptr conv_weight;   /* [3 * heads * dim, conv_width], q, k, v; checkpoints: [3D, 1, W] */
    sc_devptr f_b;           /* [heads * dim, rank] */
    sc_devptr g_b;           /* [heads * dim, rank]; 0: the output gate is given ready */
    sc_devptr norm_weight;   /* [dim] */
    sc_k_gate_weights gates; /* KDA_SOFTPLUS or KDA_BOUNDED */
    float scale;             /* of q; 0: dim^-0.5 */
    float eps;               /* of the norm; > 0 */
    uint32_t hidden;         /* 0: neither of the next two */
    sc_devptr in_proj;       /* [columns, hidden], columns in the order of the drawing; or 0 */
    sc_devptr o_proj;        /* [hidden, heads * dim]; or 0 */
    sc_numerics numerics;
    sc_gemm_fn gemm;         /* or NULL */
    void *gemm_ctx;
    sc_reduce_fn reduce;     /* after o_proj; NULL: the partial sum comes back */
    void *reduce_ctx;
    uint32_t fold_tokens;    /* up to so many tokens the gate is folded; 0: the default */
    uint32_t gate_tokens;    /* up to so many a thin product; 0: the default */
} sc_kda_stage_options;
#define SC_KDA_STAGE_OPTIONS_INIT                                                                  \
    {sizeof(sc_kda_stage_options), 0, 0, 0, 4, SC_DTYPE_BF16, SC_DTYPE_BF16, 0, 0, 0, 0,           \
        {SC_K_GATE_KDA_BOUNDED, 0, 0, SC_DTYPE_F32, -5.0f, false}, 0.0f, 0.0f, 0, 0, 0,            \
        SC_NUMERICS_EXACT, NULL, NULL, NULL, NULL, 0, 0}

/** SC_ERR_INVALID, SC_ERR_UNSUPPORTED, SC_ERR_NO_MEMORY. Cost: reads the conv weights once. */
SC_API sc_status sc_kda_stage_create(sc_backend *backend, const sc_kda_stage_options *options,
    const sc_allocator *allocator, sc_kda_stage **stage_out);
/** NULL is allowed. */
SC_API void sc_kda_stage_destroy(sc_kda_stage *stage);

/** Where the columns of x begin, in elements. The default, and how in_proj packs them: q, k, v
 * [heads * dim] each, beta [heads], f_a [rank], g_a [rank] (without g_b: none), each on the next
 * multiple of 16 bytes. SC_ERR_INVALID. */
typedef struct sc_kda_columns {
    uint32_t qkv, beta, f_a, g_a;
    uint32_t count; /* of a row */
} sc_kda_columns;
SC_API sc_status sc_kda_stage_columns(const sc_kda_stage *stage, sc_kda_columns *columns_out);

/** Shapes and strides of a run. */
typedef struct sc_kda_stage_key {
    uint32_t requests;
    uint32_t tokens;         /* of each request: 1 (decode), or drafts, at most SC_K_DRAFT_MAX */
    int64_t x_stride;        /* elements; 0: columns.count */
    int64_t y_stride;        /* 0: heads * dim (hidden, with o_proj) */
    sc_kda_columns columns;  /* all 0: the default packing */
    int64_t window_stride;   /* bytes, as in sc_k_slots */
    int64_t state_stride;
    sc_dtype state_dtype;
    sc_k_order window_order;
} sc_kda_stage_key;

/** Prepares a key, and tells the scratch that its runs need. A key prepared twice is one. Scratch
 * for a key that is not prepared, too: bytes are those of the chain, at least what any path needs.
 * SC_ERR_INVALID (also: misaligned), SC_ERR_LIMIT (64 keys), SC_ERR_UNSUPPORTED.
 * Threads: exclusive. Never allocates. */
SC_API sc_status sc_kda_stage_prepare(sc_kda_stage *stage, const sc_kda_stage_key *key,
    uint64_t *scratch_bytes_out);

typedef struct sc_kda_stage_params {
    sc_kda_stage_key key;
    sc_devptr x;             /* [requests * tokens, x_stride]; or the hidden rows, with in_proj */
    sc_devptr z;             /* without g_b: the gate, ready: [requests * tokens, heads * dim] */
    sc_devptr y;             /* out [requests * tokens, y_stride] */
    sc_devptr source;        /* [requests] int32, as in kernels.h */
    sc_devptr dest;          /* [requests] int32; of drafts: 0 */
    sc_devptr save;          /* [requests] int32: second destination, or 0; of drafts: 0 */
    sc_k_slots window;       /* q | k | v, strides as in the key */
    sc_k_slots state;        /* [slot][heads][dim][dim] */
    sc_devptr scratch;       /* 64-byte aligned, of no other call that may run meanwhile */
    uint64_t scratch_bytes;
} sc_kda_stage_params;

/** SC_ERR_INVALID (on which nothing has changed), SC_ERR_UNSUPPORTED, what gemm or reduce return
 * (after which outputs and destinations are undefined). Threads: any, with scratch of their own. */
SC_API sc_status sc_kda_stage_run(sc_kda_stage *stage, const sc_kda_stage_params *params,
    sc_stream *stream);

typedef enum sc_kda_gate_path {
    SC_KDA_GATE_FOLD = 1,  /* inside the update */
    SC_KDA_GATE_THIN = 2,  /* a thin product beside it */
    SC_KDA_GATE_GEMM = 3,  /* the caller's product */
    SC_KDA_GATE_READY = 4  /* given */
} sc_kda_gate_path;

typedef struct sc_kda_stage_stats {
    uint64_t runs;
    uint64_t fused;          /* of those: by the one-call row */
    uint64_t chained;        /* of those: by the chain, the key not prepared */
    uint64_t gate_path[5];   /* runs by sc_kda_gate_path */
    uint64_t gemm_calls;     /* products that the caller's function made */
    uint32_t prepared;       /* keys */
} sc_kda_stage_stats;
/** SC_ERR_INVALID. Threads: any; numbers of runs under way may be missing. */
SC_API sc_status sc_kda_stage_stats_get(const sc_kda_stage *stage, sc_kda_stage_stats *stats_out);

/** How many tokens the thin product is made for: above, FAST takes the caller's product. */
SC_API bool sc_k_project_supports(uint32_t token_count);

#ifdef __cplusplus
}
#endif
#endif

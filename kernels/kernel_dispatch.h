/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table: for each operation a list of rows, best first; the first row that fits the
 * backend and has the needed features serves the call. */
#ifndef SC_KERNEL_DISPATCH_H
#define SC_KERNEL_DISPATCH_H

#include "kernels/backend.h"
#include "statecache/kernels_draft.h"
#include "statecache/kernels_move.h"
#include "statecache/kernels_replay.h"
#include "statecache/kernels_ssm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum sc_kernel_feature {
    SC_KF_F32 = 1u << 0,       /* tensors */
    SC_KF_BF16 = 1u << 1,
    SC_KF_STATE_F32 = 1u << 2, /* slots */
    SC_KF_STATE_BF16 = 1u << 3,
    SC_KF_INITIAL = 1u << 4,   /* dense beginnings */
    SC_KF_I8 = 1u << 5,        /* movers: int8 with scales */
    SC_KF_DIM_FIRST = 1u << 6, /* the second order of windows */
    SC_KF_MIXED = 1u << 7,     /* a gate of another dtype than x */
    SC_KF_STRIDED = 1u << 8,   /* slots that are not end to end */
    SC_KF_SAVES = 1u << 9,
    SC_KF_TREE = 1u << 10,     /* takes parents */
    SC_KF_RING = 1u << 11      /* replay */
};

/* What a row of the host asks of the processor, as bits. */
enum sc_kernel_cpu {
    SC_CPU_AVX2 = 1u << 0,   /* with FMA */
    SC_CPU_AVX512 = 1u << 1, /* F, BW, DQ and VL */
    SC_CPU_AVX512_BF16 = 1u << 2
};

/* `params` is the operation's parameter struct, already checked. */
typedef sc_status (*sc_kernel_fn)(const void *params, sc_stream *stream);

struct sc_kernel_row {
    const char *name;
    uint32_t cc_min, cc_max; /* compute capability; 0 is the host */
    uint32_t features;
    sc_kernel_fn launch;
    uint32_t cpu;       /* bits of sc_kernel_cpu */
    uint32_t dim_max;   /* head sizes: of K, V, N, P; 0: the operation has no heads */
    uint32_t dim_step;  /* they are multiples of this; 0: any */
    uint32_t chunk_max; /* longest chunk; 0: the operation has none */
    uint32_t runtime_min, runtime_max; /* version of the device's runtime; the host's: 0 */
};

/* Features that tensors of `dtype` and slots of `state_dtype` (0: none) need; 0 for a dtype that no
 * kernel knows. */
uint32_t sc_kernel_need(sc_dtype dtype, sc_dtype state_dtype);

/* What dense beginnings need. */
static inline uint32_t sc_kernel_need_initial(const sc_k_slots *initial)
{
    return initial->base != 0 ? SC_KF_INITIAL : 0;
}

static inline uint32_t sc_kernel_need_order(sc_k_order order)
{
    return order == SC_K_ORDER_DIM_FIRST ? SC_KF_DIM_FIRST : 0;
}

/* First eligible row, or the one that SC_KERNEL_<OP> forces. SC_ERR_UNSUPPORTED with text. */
sc_status sc_kernel_pick(const sc_backend *backend, sc_k_op op, uint32_t need,
    const struct sc_kernel_row **row_out);

/* The table of an operation, and whether a row's processor is here: for tests that compare rows. */
const struct sc_kernel_row *sc_kernel_rows(sc_k_op op, uint32_t *count_out);
bool sc_kernel_row_runs(const struct sc_kernel_row *row);

/* Launchers of the host: one source, or two that agree, for each row. */
#define SC_HOST_LAUNCHERS(row)                                                                     \
    sc_status sc_k_conv_prefill_##row(const void *params, sc_stream *stream);                      \
    sc_status sc_k_conv_update_##row(const void *params, sc_stream *stream);                       \
    sc_status sc_k_gates_##row(const void *params, sc_stream *stream);                             \
    sc_status sc_k_l2norm_##row(const void *params, sc_stream *stream);                            \
    sc_status sc_k_gated_rmsnorm_##row(const void *params, sc_stream *stream);                     \
    sc_status sc_k_delta_recurrent_##row(const void *params, sc_stream *stream);                   \
    sc_status sc_k_delta_chunk_##row(const void *params, sc_stream *stream);                       \
    sc_status sc_k_decode_packed_##row(const void *params, sc_stream *stream);                     \
    sc_status sc_k_delta_verify_##row(const void *params, sc_stream *stream);                      \
    sc_status sc_k_delta_commit_##row(const void *params, sc_stream *stream);                      \
    sc_status sc_k_conv_verify_##row(const void *params, sc_stream *stream);                       \
    sc_status sc_k_conv_commit_##row(const void *params, sc_stream *stream);                       \
    sc_status sc_k_conv_update_spec_##row(const void *params, sc_stream *stream);                  \
    sc_status sc_k_ssm_##row(const void *params, sc_stream *stream);                               \
    sc_status sc_k_decode_##row(const void *params, sc_stream *stream);                            \
    sc_status sc_k_qkv_split_##row(const void *params, sc_stream *stream);                         \
    sc_status sc_k_ssm_chunk_##row(const void *params, sc_stream *stream);                         \
    sc_status sc_k_project_##row(const void *params, sc_stream *stream);                           \
    sc_status sc_k_move_##row(const void *params, sc_stream *stream);                              \
    sc_status sc_k_replay_delta_##row(const void *params, sc_stream *stream);                      \
    sc_status sc_k_replay_delta_fold_##row(const void *params, sc_stream *stream);                 \
    sc_status sc_k_replay_ssm_##row(const void *params, sc_stream *stream);                        \
    sc_status sc_k_replay_ssm_fold_##row(const void *params, sc_stream *stream);                   \
    sc_status sc_kda_update_##row(const void *params, sc_stream *stream);
SC_HOST_LAUNCHERS(ref)
#ifdef SC_HAVE_WIDE_ROWS
SC_HOST_LAUNCHERS(avx2)
SC_HOST_LAUNCHERS(avx512)
/* What narrows states to bf16, with an instruction for it. */
sc_status sc_k_delta_recurrent_avx512_bf16(const void *params, sc_stream *stream);
sc_status sc_k_decode_packed_avx512_bf16(const void *params, sc_stream *stream);
sc_status sc_k_decode_avx512_bf16(const void *params, sc_stream *stream);
sc_status sc_k_qkv_split_avx512_bf16(const void *params, sc_stream *stream); /* not in the table */
#endif

#if defined SC_HAVE_CUDA || defined __CUDACC__
sc_status sc_k_conv_prefill_sm90(const void *params, sc_stream *stream);
sc_status sc_k_conv_update_sm90(const void *params, sc_stream *stream);
sc_status sc_k_gates_sm90(const void *params, sc_stream *stream);
sc_status sc_k_l2norm_sm90(const void *params, sc_stream *stream);
sc_status sc_k_gated_rmsnorm_sm90(const void *params, sc_stream *stream);
sc_status sc_k_delta_recurrent_sm90(const void *params, sc_stream *stream);
sc_status sc_k_delta_chunk_sm90(const void *params, sc_stream *stream);
sc_status sc_k_decode_packed_sm90(const void *params, sc_stream *stream);
sc_status sc_k_decode_sm90(const void *params, sc_stream *stream);
sc_status sc_k_qkv_split_sm90(const void *params, sc_stream *stream);
sc_status sc_k_move_sm90(const void *params, sc_stream *stream);
#endif

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Records of a ring, and what their layers share.
 *
 *   delta   | d [HV][V] | decay [HV][K] or [HV] | beta [HV] | 1/|k| [H] | v [HV][V] | k [H][K] |
 *             fp32 ....................................................   dtype ..............
 *   ssm     | dt [heads] | decay [heads] | x [heads][P] | B [groups][N] |
 *             fp32 .....................   dtype ......................
 *
 * k, v, x and B are the raw inputs, decay and beta what the step itself computed in fp32: all that
 * a flush needs to take the steps once more, bit for bit. d (what the token wrote) and the norm of
 * k only serve outputs. */
#ifndef SC_REPLAY_RING_H
#define SC_REPLAY_RING_H

#include "kernel_check.h"
#include "statecache/kernels_replay.h"

enum { RING_ALIGN = 64 };

/* Byte offsets within a record. */
struct ring_delta {
    uint64_t d, decay, beta, inverse, v, k, bytes;
    uint32_t decays; /* of a head: 1 or K */
};

static inline struct ring_delta ring_delta_at(const sc_k_delta_shape *s, sc_dtype dtype)
{
    uint64_t hv = s->v_heads, elem = sc_kernel_elem_bytes(dtype);
    struct ring_delta at = {.decays = s->kind == SC_K_KIND_GDN ? 1 : s->k_dim};
    at.decay = hv * s->v_dim * 4;
    at.beta = at.decay + hv * at.decays * 4;
    at.inverse = at.beta + hv * 4;
    at.v = at.inverse + (uint64_t)s->heads * 4;
    at.k = at.v + hv * s->v_dim * elem;
    at.bytes = at.k + (uint64_t)s->heads * s->k_dim * elem;
    at.bytes = (at.bytes + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
    return at;
}

struct ring_ssm {
    uint64_t dt, decay, x, b, bytes;
};

static inline struct ring_ssm ring_ssm_at(const sc_k_ssm_params *p)
{
    uint64_t elem = sc_kernel_elem_bytes(p->dtype);
    struct ring_ssm at = {.decay = (uint64_t)p->heads * 4, .x = (uint64_t)p->heads * 8};
    at.b = at.x + (uint64_t)p->heads * p->head_dim * elem;
    at.bytes = at.b + (uint64_t)p->groups * p->state_dim * elem;
    at.bytes = (at.bytes + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
    return at;
}

/* What row r does: NONE for a padded row. */
static inline int32_t ring_mode(const sc_k_ring *ring, const int32_t *source, uint32_t r)
{
    return source[r] < 0 ? SC_REPLAY_NONE : ((const int32_t *)sc_host_ptr(ring->mode))[r];
}

static inline uint32_t ring_records(const sc_k_ring *ring, uint32_t r)
{
    return (uint32_t)((const int32_t *)sc_host_ptr(ring->records))[r];
}

/* Where record j of row r begins. */
static inline uint8_t *ring_record(const sc_k_ring *ring, uint32_t r, uint32_t j)
{
    int64_t slot = ((const int32_t *)sc_host_ptr(ring->slot))[r];
    return (uint8_t *)sc_host_ptr(ring->slots.base + (uint64_t)(slot * ring->slots.slot_stride))
        + (uint64_t)j * ring->record_bytes;
}

#endif

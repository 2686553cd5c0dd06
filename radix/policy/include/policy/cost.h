/* SPDX-License-Identifier: Apache-2.0 */
/* What things cost, in bytes and seconds, so that "keep or drop", "demote or drop" and "recompute
 * or restore" are one question.
 *
 * A token at position x of a prompt costs `token_s + 2 x token2_s` seconds to prefill, so the first
 * n tokens cost n token_s + n^2 token2_s: the linear layers, and the attention of a hybrid's few
 * full-attention layers. Everything is an argument; nothing is measured here. */
#ifndef SC_POLICY_COST_H
#define SC_POLICY_COST_H

#include "statecache/status.h"

enum { SC_COST_TIERS = 4 }; /* 0 device, 1 host, 2 disk, 3 remote */

struct sc_cost {
    double state_bytes;    /* of one snapshot */
    double kv_token_bytes; /* attention KV of one token; 0: KV has a budget of its own */
    double token_s;        /* > 0 */
    double token2_s;       /* >= 0 */
    double tier_bytes_per_s[SC_COST_TIERS]; /* reading back; 0: there is no such tier */
    double tier_latency_s[SC_COST_TIERS];
};

struct sc_cost_model {
    double flops_per_token;  /* of the linear layers and MLPs: 2 x active parameters */
    double flops_per_token2; /* of attention: QK^T and PV, causal */
    double state_bytes, kv_token_bytes;
};
struct sc_cost_hardware {
    double flops;      /* per second that prefill really reaches */
    double read_bytes_per_s[SC_COST_TIERS];
    double latency_s[SC_COST_TIERS];
};

/* An H200-class accelerator: 400 Tflop/s reached in prefill, PCIe 5 x16, one NVMe drive, 10 GB/s
 * of network. A rough default to be overridden. */
#define SC_COST_HARDWARE_DEFAULT                                                                   \
    {4e14, {3e12, 5e10, 6e9, 1e9}, {0, 20e-6, 100e-6, 1e-3}}

/* SC_ERR_INVALID: a number that is not finite, negative, or zero where something divides by it. */
sc_status sc_cost_make(const struct sc_cost_model *model, const struct sc_cost_hardware *hardware,
    struct sc_cost *cost_out);
sc_status sc_cost_check(const struct sc_cost *cost);

/* Seconds to prefill tokens [from, to) of a prompt. */
static inline double sc_cost_prefill_s(const struct sc_cost *cost, double from, double to)
{
    return (to - from) * (cost->token_s + (to + from) * cost->token2_s);
}

/* Seconds that a snapshot in a tier saves: prefill of [from, to) less reading back what it takes.
 * `from` > 0: another one would be read instead. Never negative. Tier 0: nothing is read. */
double sc_cost_saved_s(const struct sc_cost *cost, uint32_t tier, double from, double to);

/* Seconds to read a snapshot and `kv_tokens` of KV back from a tier; HUGE_VAL without one. */
double sc_cost_restore_s(const struct sc_cost *cost, uint32_t tier, double kv_tokens);

#endif

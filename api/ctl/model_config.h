/* SPDX-License-Identifier: Apache-2.0 */
/* What a Hugging Face config.json says of a model's recurrent layers. */
#ifndef SC_CTL_MODEL_CONFIG_H
#define SC_CTL_MODEL_CONFIG_H

#include <stddef.h>

#include "pool/model.h"

enum { CTL_LAYERS_MAX = 1024, CTL_FAULT_BYTES = 256 };

struct ctl_model {
    struct sc_model shape;     /* `linear` is the array below */
    char type[64];             /* model_type */
    bool linear[CTL_LAYERS_MAX];
    bool attention[CTL_LAYERS_MAX]; /* layers with KV; a layer may be both, or none */
    uint32_t linear_count, attention_count;
    /* Of one token in one attention layer: heads of K and V, or one latent row (kv_heads 0). */
    uint32_t kv_heads, kv_head_elements;
    bool kv_known;
};

/* Reads `count` bytes of a config.json. False: `fault` names the member that is missing or odd. */
bool ctl_model_read(const char *text, size_t count, struct ctl_model *model,
    char fault[CTL_FAULT_BYTES]);

#endif

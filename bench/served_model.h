/* SPDX-License-Identifier: Apache-2.0 */
/* The small hybrid model that the benchmark serves: what an engine's model code looks like on top
 * of statecache. Weights are seeded noise; shapes come from options.
 *
 *   tokens -> embedding -> [ norm, mixer, + ; norm, MLP, + ] x layers -> norm -> logits
 *
 *   linear mixer     q k v = x Wqkv -> conv (W = 4, silu) -> gated delta rule -> gated norm -> Wo
 *                    (Mamba-2: x B C, state space, the gate before its norm)
 *                    its conv window(s) and state matrix live in slots of an sc_pool and are
 *                    touched by the library's kernels alone, in place
 *   attention mixer  softmax over all earlier positions, keys and values in pages of a paged_kv
 *
 * Linear mixers run where the state pool is: on a device, what comes in and goes out of them is
 * copied, the rest stays on the host.
 *
 * Everything that is not the library's is in dense.h: batch-invariant. So a row's bits depend on
 * its tokens and its history alone, and rows may be spread over threads. */
#ifndef BENCH_SERVED_MODEL_H
#define BENCH_SERVED_MODEL_H

#include "place.h"
#include "statecache/statecache.h"

enum { CONV_WIDTH = 4, CONV_PARTS_MAX = 3, SERVED_THREADS_MAX = 16 };

struct served_options {
    sc_k_kind kind;
    bool mamba;             /* linear layers are Mamba-2; kind is GDN then */
    sc_dtype state_dtype;   /* F32 or BF16; conv windows have the same dtype */
    uint32_t layers;        /* every `attention_every`-th is attention */
    uint32_t attention_every;
    uint32_t hidden;        /* multiples of 8 */
    uint32_t heads, v_heads, head_dim;
    uint32_t attention_heads, attention_dim;
    uint32_t mlp;
    uint32_t vocab;
    uint32_t chunk;
    uint64_t seed;
    sc_backend *backend;    /* where linear layers run; NULL: the host */
    /* ReplaySSM: records of a ring, 0: no rings; and the multiple of tokens at which decoded states
     * are saved, so that rings are flushed there, 0: nowhere (docs/explanation/rings.md) */
    uint32_t ring, ring_save;
};

struct served_layer {
    bool is_attention;
    const float *norm, *mlp_norm, *mlp_gate, *mlp_up, *mlp_down, *out;
    /* linear */
    const float *qkv, *conv, *decay, *beta, *gate, *a_log, *dt_bias, *out_norm;
    const float *conv_bias, *skip; /* Mamba-2 */
    /* attention */
    const float *query, *key, *value;
};

struct served_model {
    struct served_options options;
    uint32_t key_dim, value_dim;   /* all heads: H K and HV V */
    uint32_t channels;             /* of the conv: 2 key_dim + value_dim */
    uint32_t decay_dim;            /* gates of a token: HV, or HV K */
    uint32_t attention_width;      /* all attention heads */
    uint32_t attention_layers;
    uint32_t conv_parts;           /* windows of a layer: 1, or q, k and v apart */
    uint32_t tape_width;           /* of all layers */
    sc_k_gate gate;
    sc_schema *schema;
    sc_schema *ring_schema;        /* of the pool of rings; NULL: no rings */
    struct served_layer *layers;
    const float *embedding, *norm, *head;
    struct twin weights; /* floats */
};

/* SC_ERR_INVALID with text for shapes that do not fit. */
sc_status served_create(const struct served_options *options, struct served_model **model_out);
void served_destroy(struct served_model *model);
/* Channels of conv window `part` and where they begin in the packed q k v. */
uint32_t served_conv_part(const struct served_model *model, uint32_t part, uint32_t *first_out);

/* ------------------------------------------------------------------------------ keys and values */

struct paged_kv {
    float *data; /* [attention layer][page][token in page][key | value] */
    uint32_t page_tokens, page_count, row_floats;
};
void paged_kv_init(struct paged_kv *kv, const struct served_model *model, uint32_t page_tokens,
    uint32_t page_count);
void paged_kv_deinit(struct paged_kv *kv);
void paged_kv_copy(const struct paged_kv *kv, uint32_t attention_layers, int32_t from, int32_t to);
float *paged_kv_row(const struct paged_kv *kv, uint32_t attention_layer, int32_t page,
    uint32_t offset);

/* -------------------------------------------------------------------------------------- forward */

/* What a verified row leaves behind once it is known how far it was right: the inputs of each
 * linear layer's recurrence, keys and values of each attention layer. Layer by layer. */
struct served_tape {
    float *data; /* [tape_width of the model][tokens] */
};
void served_tape_init(struct served_tape *tape, const struct served_model *model, uint32_t tokens);
void served_tape_deinit(struct served_tape *tape);

/* The ring of a row: its slot, records in it before the row, and what the row does with them. */
struct served_ring_row {
    int32_t slot, records, mode; /* enum sc_replay_mode */
};

/* One sequence in a forward: in chunk form, one token in recurrent form (`decode`), or, with a
 * tape, drafts to be verified in recurrent form. A verified row writes nothing but its tape:
 * served_fold does, for as many of its tokens as were right. */
struct served_row {
    const int32_t *tokens;     /* [to - from] */
    uint32_t from, to;         /* computed now */
    bool decode;
    int32_t source, dest;      /* slots */
    const int32_t *pages;      /* page ids of tokens [0, to) */
    struct served_ring_row ring; /* of served_ring_step, with rings */
    uint32_t save_first, save_count; /* in the forward's saves */
    struct served_tape *tape;
    float *hidden_out;         /* NULL, or [to - from][hidden]: last hidden states */
    float *logits_out;         /* NULL, or [logits_count][vocab], of the last tokens */
    uint32_t logits_count;
};

struct served_save { uint32_t position; int32_t slot; };

struct served_forward {
    const struct served_row *rows;
    uint32_t row_count;
    const struct served_save *saves;
    const sc_pool *pool;
    const sc_pool *rings;      /* NULL: decoded tokens go into the states at once */
    const struct paged_kv *kv;
    uint32_t threads;          /* rows are dealt out among them; no influence on any bit */
    struct served_space *spaces; /* of nobody else at the same time */
};

/* Memory of a forward's threads, kept from step to step as an engine keeps it. */
struct served_space *served_spaces_create(void);
void served_spaces_destroy(struct served_space *spaces, sc_backend *backend);

void served_run(const struct served_model *model, const struct served_forward *forward);
/* Tokens up to `to` of a verified row were right: writes keys and values into its pages, the state
 * to its destination, and those of its saves that lie there. */
void served_fold(const struct served_model *model, const struct served_forward *forward,
    const struct served_row *row, uint32_t to);

/* ------------------------------------------------------------------------- rings: served_ring.c */

/* A pool of rings for the model, `slots` of them. */
sc_pool *served_rings_create(const struct served_model *model, sc_layout layout, uint32_t slots);
/* Before a forward, once for all its rows: what `planned` (enum sc_replay_mode) comes to for each
 * row that has a slot. */
void served_ring_step(const struct served_model *model, const sc_pool *rings,
    struct served_ring_row *rows, const int32_t *planned, uint32_t count);
/* Steps the state in `slot` of the pool through the records of its ring, in place. */
void served_ring_fold(const struct served_model *model, const sc_pool *pool, const sc_pool *rings,
    int32_t slot, struct served_ring_row ring);

#endif

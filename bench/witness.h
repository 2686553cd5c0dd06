/* SPDX-License-Identifier: Apache-2.0 */
/* What one served request saw and produced, kept for the check: the state it resumed from, every
 * last hidden state it computed, the logits it decoded from, the state it ended with, its history.
 *
 * Which requests are kept is decided as they are admitted, by one reservoir for each way of
 * resuming (and for forks, readmissions, hits across tenants), so that memory is bounded and every
 * way is represented; the sample is drawn from these at the end. */
#ifndef BENCH_WITNESS_H
#define BENCH_WITNESS_H

#include "base/prng.h"
#include "served_model.h"

/* How a request resumed. */
enum resumed_at {
    AT_NOTHING, AT_PROMPT_END, AT_BRANCH, AT_DECODED_END, AT_POINT, AT_FORK, AT_COUNT
};
enum resumed_at resumed_at_of(sc_save_kind kind);
const char *resumed_at_name(enum resumed_at at);

/* What happened to it besides. The first three are known as it is admitted. */
enum witness_flag {
    WITNESS_FORKED = 1,      /* began as a fork */
    WITNESS_READMITTED = 2,  /* had been preempted before, and resumed */
    WITNESS_TENANT = 4,      /* resumed what only another tenant had computed */
    WITNESS_TAIL = 8,        /* resumed inside a page */
    WITNESS_PREEMPTED = 16,  /* ended by being preempted */
    WITNESS_DRAFTED = 32,    /* drafts were accepted */
    WITNESS_OVERLAPPED = 64, /* a row was planned before the one before it was seen */
    WITNESS_RECORDS = 128,   /* began on a state with records of a ring on top */
    WITNESS_FLAG_COUNT = 8
};
const char *witness_flag_name(int bit);

struct witness {
    size_t request;
    enum resumed_at at;
    unsigned flags;         /* enum witness_flag */
    unsigned admitted_as;   /* the same when it was admitted */
    uint32_t resume_len, prompt_len, len;
    uint32_t known;         /* tokens from here on are what the model sampled */
    bool running, dropped; /* a dropped one is freed when it stops running */
    int32_t *tokens;            /* [len] */
    float *hidden;              /* [cap][hidden], from resume_len on */
    uint32_t hidden_cap;
    float *logits;              /* [logit_count][vocab] */
    uint32_t *logit_at;         /* token after which each was computed */
    uint32_t logit_count, logit_cap;
    unsigned char *snapshot;    /* state at resume_len; NULL without a hit */
    unsigned char *state;       /* state at len */
    uint64_t *kv_hash;          /* [len] */
    sc_history *history;
    uint32_t history_count;
};

struct witness_stratum {
    struct witness **kept;
    uint32_t count;
    uint64_t seen;
};

/* A stratum for each way of resuming, and one for each of the first three flags. */
enum { WITNESS_STRATA = AT_COUNT + 3 };
struct witness_set {
    const struct served_model *model;
    uint32_t wanted;
    struct witness_stratum strata[WITNESS_STRATA];
    struct witness *forced;     /* checked in any case (sabotage) */
    struct sc_prng prng;
};

void witness_set_init(struct witness_set *set, const struct served_model *model, uint32_t wanted,
    uint64_t seed);
void witness_set_deinit(struct witness_set *set);

/* A request was admitted: its witness, or NULL if it is not to be kept. */
struct witness *witness_admit(struct witness_set *set, size_t request, enum resumed_at at,
    unsigned flags, bool force);
/* The request began anew or is over; `whole` if it was recorded to its end. */
void witness_stop(struct witness_set *set, struct witness *witness, bool whole);
/* Room for hidden states of tokens up to `len`: where that of token `from` goes. */
float *witness_hidden(const struct witness_set *set, struct witness *witness, uint32_t from,
    uint32_t len);
void witness_logits(const struct witness_set *set, struct witness *witness, uint32_t at,
    const float *logits);
/* Draws the sample. `*count_out` of them, owned by the set. Frees nothing. */
struct witness **witness_sample(struct witness_set *set, uint32_t *count_out);

/* Dense bytes of one state, all parts in schema order. */
uint64_t state_bytes(const sc_pool *pool);
void state_read(const sc_pool *pool, int32_t slot, unsigned char *out);
/* A state as it stands in the pools of a cache: with rings (`rings` not NULL) a base in `slot` and
 * `ring.records` records on top of it. */
struct state_place {
    const sc_pool *pool, *rings;
    int32_t slot;
    struct served_ring_row ring;
};
/* Of all that decides what follows: the dense state; with rings the records of every layer, zeros
 * beyond those that count, and how many. */
uint64_t full_bytes(const sc_pool *pool, const sc_pool *rings);
void full_read(const struct state_place *place, unsigned char *out);
/* Where the state at the lease's committed length lies. */
struct state_place lease_place(const sc_pool *pool, const sc_pool *rings,
    const sc_lease_info *info);
/* Flips one bit of a state in place; says which in `text`. */
void state_flip(const sc_pool *pool, int32_t slot, struct sc_prng *prng, char *text, size_t bytes);
/* 64-bit hash of all keys and values of a token. */
uint64_t kv_token_hash(const struct served_model *model, const struct paged_kv *kv,
    const int32_t *pages, uint32_t token);

#endif

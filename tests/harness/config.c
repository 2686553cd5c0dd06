/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and weights of a world by seed, and the operations that the weights give. */
#include <string.h>

#include "harness.h"

const char *const h_op_names[H_OP_COUNT] = {
#define H_OP_NAME(name, text, weight, open) [H_OP_##name] = text,
    H_OP_LIST(H_OP_NAME)
#undef H_OP_NAME
};
static const uint32_t op_weights[H_OP_COUNT] = {
#define H_OP_WEIGHT(name, text, weight, open) [H_OP_##name] = (weight),
    H_OP_LIST(H_OP_WEIGHT)
#undef H_OP_WEIGHT
};

static uint32_t pick(struct sc_prng *rng, const uint32_t *from, uint32_t count)
{
    return from[h_draw(rng, count)];
}
#define PICK(rng, ...)                                                                             \
    pick((rng), (const uint32_t[]){__VA_ARGS__},                                                   \
        (uint32_t)(sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)))

static void sizes_draw(struct sc_prng *rng, struct h_config *cfg)
{
    cfg->page = PICK(rng, 1, 4, 16);
    cfg->chunk0 = PICK(rng, 4, 8, 16);
    cfg->chunk1 = PICK(rng, 0, 4, 6, 8);
    cfg->slots = PICK(rng, 4, 5, 6, 8, 12, 16, 24, 40);
    cfg->extras = PICK(rng, 0, 2, 4, 16);
    cfg->kv_ids = cfg->page == 1 ? PICK(rng, 600, 1200, 4096) : PICK(rng, 96, 256, 1024);
    cfg->layout = PICK(rng, SC_LAYOUT_PAGE_MAJOR, SC_LAYOUT_CONTIGUOUS);
    cfg->without_kv = h_one_in(rng, 8);
    cfg->lease_max = PICK(rng, 2, 4, 8, 24);
    cfg->lease_token_max = PICK(rng, 64, 100, 200);
    cfg->row_max = PICK(rng, 1, 2, 4, 8);
    cfg->save_max = PICK(rng, 1, 2, 4, 12);
    cfg->decode_interval = h_one_in(rng, 2) ? 0 : cfg->page * PICK(rng, 1, 2, 3, 5);
    cfg->path_max = PICK(rng, 0, 0, 1, 2, 4);
    cfg->token_max = h_one_in(rng, 6) ? PICK(rng, 48, 128, 400) : 0;
    cfg->save_flags = h_one_in(rng, 6) ? h_draw(rng, 16) : (uint32_t)SC_SAVE_DEFAULT;
    cfg->keep_cuts = h_one_in(rng, 5);
    cfg->alphabet = PICK(rng, 1, 2, 2, 3, 5);
    cfg->wild_tokens = h_one_in(rng, 4);
    cfg->prompt_len_max = h_min(PICK(rng, 24, 60, 150), cfg->lease_token_max - 8);
    cfg->scheds = PICK(rng, 1, 2, 3, 5);
    cfg->leases = PICK(rng, 2, 4, 8);
    cfg->late = 1;
    cfg->marks = PICK(rng, 0, 1, 3);
    cfg->tails = h_one_in(rng, 2);
    cfg->external = h_one_in(rng, 3);
    cfg->copy = h_one_in(rng, 3);
    cfg->hints = h_one_in(rng, 2);
    cfg->depth = PICK(rng, 1, 1, 2, 3, 4);
    cfg->draft_max = h_one_in(rng, 2) ? 0 : PICK(rng, 1, 2, 5, H_DRAFTS_MAX);
}

const char *const h_policies[H_POLICIES] = {
    "lru", "gittins", "gdsf", "lru-sup", "marconi", "lru-path", "fixed"};

/* From a generator of its own, so that a world is the same without them. */
static void tiers_draw(struct sc_prng *rng, struct h_config *cfg)
{
    uint32_t kind = h_draw(rng, 3);
    cfg->tier_host = kind == 1 ? 0 : PICK(rng, 3, 8, 24);
    cfg->tier_disk = kind == 2 ? 0 : PICK(rng, 6, 30, 80);
    cfg->tier_write = PICK(rng, SC_TIER_WRITE_BACK, SC_TIER_WRITE_THROUGH, SC_TIER_WRITE_THROUGH,
        SC_TIER_WRITE_SELECTIVE);
    cfg->tier_disk_write =
        PICK(rng, SC_TIER_WRITE_BACK, SC_TIER_WRITE_THROUGH, SC_TIER_WRITE_SELECTIVE);
    cfg->tier_uses = PICK(rng, 1, 2, 3);
    cfg->tier_zstd = PICK(rng, 0, 0, 0, 1, 2, 3);
    cfg->tier_day = PICK(rng, 0, 0, 0, 20);
    cfg->tier_entries = h_one_in(rng, 32) ? 0 : PICK(rng, 5, 500, 500);
    cfg->tier_cost = PICK(rng, 0, 0, 0, 1, 20000, 2000000);
    cfg->tier_slack = h_draw(rng, 2);
    cfg->tier_mover = !h_one_in(rng, 8);
    cfg->tier_prompt = h_one_in(rng, 4);
    /* What went down is asked for again. */
    cfg->prompt_pool = PICK(rng, 2, 4, 8, H_PROMPTS_MAX);
    if (!h_one_in(rng, 4)) cfg->save_flags = SC_SAVE_DEFAULT;
    if (!h_one_in(rng, 4)) cfg->slots = h_min(cfg->slots, PICK(rng, 6, 8, 12));
    if (h_one_in(rng, 3)) cfg->keep_cuts = 1; /* the same tokens, computed in many ways */
    if (h_one_in(rng, 3)) cfg->marks = 3;
    if (h_one_in(rng, 2)) { /* many states on a path */
        cfg->page = PICK(rng, 1, 4);
        cfg->chunk0 = 4;
        cfg->chunk1 = 0;
        cfg->path_max = 0;
        if (cfg->decode_interval > 0) cfg->decode_interval = cfg->page * PICK(rng, 1, 2);
    }
}

static void more(struct sc_prng *rng, struct h_swarm *swarm, enum h_op_code op)
{
    uint32_t weight = swarm->weight[op] + op_weights[op] * PICK(rng, 4, 8, 16);
    swarm->sum += weight - swarm->weight[op];
    swarm->weight[op] = weight;
}

void h_config_tiers(uint64_t seed, struct h_config *cfg, struct h_swarm *swarm)
{
    struct sc_prng rng;
    sc_prng_seed(&rng, h_mix(seed, 0x71e5));
    tiers_draw(&rng, cfg);
    for (uint32_t op = H_OP_WORK; op < H_OP_COUNT; op++) {
        swarm->sum -= swarm->weight[op];
        swarm->weight[op] = op_weights[op] * PICK(&rng, 2, 4, 4, 8);
        if (op >= H_OP_TROUBLE) swarm->weight[op] = op_weights[op] * PICK(&rng, 0, 1, 2, 4);
        swarm->sum += swarm->weight[op];
    }
    more(&rng, swarm, H_OP_POLL);
    more(&rng, swarm, H_OP_EVICT);
    more(&rng, swarm, H_OP_ACQUIRE);
    more(&rng, swarm, H_OP_RELEASE);
}

/* The tree's own order, or the default, or one of the others. */
static uint32_t policy_of(uint64_t seed)
{
    static const uint32_t often[8] = {0, 1, 0, 1, 0, 1, 1, 0};
    return seed % 8 == 7 ? 2 + (uint32_t)(seed / 8 % (H_POLICIES - 2)) : often[seed % 8];
}

void h_config_draw(uint64_t seed, struct h_config *cfg, struct h_swarm *swarm)
{
    struct sc_prng rng;
    sc_prng_seed(&rng, h_mix(seed, 0xc0f1));
    sizes_draw(&rng, cfg);
    cfg->policy = policy_of(seed);
    cfg->tier_host = cfg->tier_disk = 0;
    cfg->prompt_pool = H_PROMPTS_MAX;
    swarm->sum = 0;
    for (uint32_t op = H_OP_WORK; op < H_OP_COUNT; op++) swarm->weight[op] = 0;
    for (uint32_t op = 0; op < H_OP_WORK; op++) {
        swarm->weight[op] = op_weights[op] * PICK(&rng, 0, 1, 2, 4, 4, 4, 8, 8);
        bool needed = op == H_OP_ACQUIRE || op == H_OP_PLAN || op == H_OP_COMMIT ||
            op == H_OP_COMPUTE || op == H_OP_NS_OPEN;
        if (swarm->weight[op] == 0 && needed) swarm->weight[op] = op_weights[op];
        swarm->sum += swarm->weight[op];
    }
    swarm->fault_in = PICK(&rng, 0, 12, 40, 40);
    if (h_mix(seed, 0x7134) % H_TIERS_IN == 0) h_config_tiers(seed, cfg, swarm);
}

uint32_t *h_config_knob(struct h_config *cfg, const char *name)
{
#define H_KNOB_FIND(knob)                                                                          \
    if (strcmp(name, #knob) == 0) return &cfg->knob;
    H_KNOB_LIST(H_KNOB_FIND)
#undef H_KNOB_FIND
    return NULL;
}

static bool tiers_good(const struct h_config *cfg)
{
    if (cfg->tier_host + cfg->tier_disk == 0) return true;
    return cfg->tier_host <= 4096 && cfg->tier_disk <= 4096 &&
           cfg->tier_write <= SC_TIER_WRITE_SELECTIVE &&
           cfg->tier_disk_write <= SC_TIER_WRITE_SELECTIVE && cfg->tier_day <= 4096 &&
           cfg->tier_zstd < 4;
}

bool h_config_good(const struct h_config *cfg)
{
    return cfg->page >= 1 && cfg->chunk0 >= 4 && (cfg->chunk1 == 0 || cfg->chunk1 >= 3) &&
        cfg->slots >= 1 && cfg->kv_ids >= 1 && cfg->kv_ids <= H_KV_IDS_MAX &&
        (cfg->layout == SC_LAYOUT_PAGE_MAJOR || cfg->layout == SC_LAYOUT_CONTIGUOUS) &&
        cfg->lease_token_max + 16 <= H_TOKENS_MAX && cfg->row_max >= 1 &&
        cfg->row_max <= H_ROWS_MAX && cfg->save_max >= 1 && cfg->save_max <= H_SAVES_MAX - 4 &&
        cfg->alphabet >= 1 && cfg->prompt_len_max >= 1 && cfg->lease_max >= 1 &&
        cfg->prompt_len_max <= cfg->lease_token_max && cfg->scheds >= 1 &&
        cfg->scheds <= H_SCHEDS_MAX && cfg->depth >= 1 && cfg->depth <= H_STEPS_MAX &&
        cfg->draft_max <= H_DRAFTS_MAX && cfg->marks < 200 && cfg->leases >= 1 &&
        cfg->leases <= H_LEASES_MAX && cfg->policy < H_POLICIES && cfg->prompt_pool >= 1 &&
        cfg->prompt_pool <= H_PROMPTS_MAX && tiers_good(cfg);
}

struct h_op h_op_draw(const struct h_swarm *swarm, struct sc_prng *rng, uint32_t sched)
{
    struct h_op op = {0, (uint8_t)sched, 0, (uint32_t)sc_prng_next(rng)};
    uint32_t at = h_draw(rng, swarm->sum);
    while (at >= swarm->weight[op.code]) at -= swarm->weight[op.code++];
    if (swarm->fault_in && h_one_in(rng, swarm->fault_in)) {
        op.fault = (uint16_t)(1 + h_draw(rng, h_one_in(rng, 3) ? 12 : 3));
    }
    return op;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What is saved, what goes: how the policy (radix/policy) is asked and told.
 *
 *   acquire   sc_policy_begin    learns from the prompt; its points are where the lease saves
 *   plan      sc_policy_ask      what a save may drive out, when no slot is free
 *             sc_policy_room     ... and the search for it
 *   commit    sc_policy_attached each snapshot that was published
 *   release   sc_policy_extend   the end of the answer stands for the conversation
 *             sc_policy_end
 *
 * The policy knows blocks of a prompt by the hash of everything before their end: tokens, marks and
 * the namespace. A block is the grid, so that its points are positions which prefill can save.
 *
 * With `lru` there is no policy object: the tree's own lists are that order.
 *
 * The policy's memory of a snapshot may be missing (memory was short): nobody finds it by value
 * then, but by the tree's order, when nothing else is left. */
#include <string.h>

#include "base/prng.h"
#include "tier.h"

/* ---- creation ---- */

static sc_status costs_make(sc_cache *cache, struct sc_cost *cost)
{
    const sc_cache_options *options = &cache->options;
    static const struct sc_cost_hardware hardware = SC_COST_HARDWARE_DEFAULT;
    sc_pool_info pool;
    SC_TRY(sc_pool_info_get(options->pool, &pool));
    cache->pool_slots = pool.slot_count;
    struct sc_cost_model model = {
        .flops_per_token = options->flops_per_token > 0 ? options->flops_per_token : hardware.flops,
        .flops_per_token2 = options->flops_per_token2,
        .state_bytes = (double)pool.slot_bytes,
        .kv_token_bytes = options->without_kv ? 0 : options->kv_token_bytes,
    };
    return sc_cost_make(&model, &hardware, cost);
}

static uint32_t on_grid(const sc_cache *cache, uint32_t tokens)
{
    uint64_t up = ((uint64_t)tokens + cache->grid - 1) / cache->grid * cache->grid;
    return up > UINT32_MAX ? cache->grid : (uint32_t)up;
}

/* Of what the policy would save, what the options allow. */
static uint32_t allowed(const sc_cache *cache, uint32_t placement)
{
    uint32_t inner = SC_PLACE_BRANCH | SC_PLACE_FORK | SC_PLACE_NEAR | SC_PLACE_INTERVAL |
        SC_PLACE_LOG;
    if (!(cache->options.save_flags & SC_SAVE_PROMPT_END)) placement &= ~(uint32_t)SC_PLACE_END;
    if (!(cache->options.save_flags & SC_SAVE_BRANCH)) placement &= ~inner;
    return placement | SC_PLACE_GIVEN;
}

sc_status sc_engine_policy_create(sc_cache *cache)
{
    const sc_cache_options *options = &cache->options;
    const char *name = options->policy ? options->policy : sc_policy_name(0);
    struct sc_policy_options policy = {
        .allocator = options->allocator,
        .radix = cache->radix,
        .block_tokens = cache->grid,
        .near_tokens = on_grid(cache, 1024),
        .interval_tokens = on_grid(cache, options->policy_interval ? options->policy_interval
                                                                   : 512),
        .ghost_max = options->policy_blocks,
        .marconi_alpha = options->policy_alpha,
        .keep_kv = options->without_kv || !(options->kv_token_bytes > 0),
    };
    SC_TRY(sc_policy_named(name, &policy));
    for (uint32_t i = 0; sc_policy_name(i); i++) {
        if (strcmp(name, sc_policy_name(i)) == 0) cache->policy_index = i;
    }
    cache->options.policy = sc_policy_name(cache->policy_index);
    SC_TRY(costs_make(cache, &policy.cost));
    if (policy.order == SC_POLICY_LRU) return SC_OK;
    /* Learning from few prompts needs few intervals. */
    if (options->policy_blocks > 0 && options->policy_blocks < 8000) {
        policy.sample_count = options->policy_blocks;
    }
    policy.placement = allowed(cache, policy.placement);
    return sc_policy_create(&policy, &cache->policy);
}

/* ---- time ---- */

bool sc_engine_time(sc_cache *cache, uint64_t now_ns)
{
    if (now_ns <= cache->now_ns) return false;
    cache->now_ns = now_ns;
    sc_engine_pins_serve(cache);
    sc_policy_time(cache->policy, now_ns);
    sc_engine_tier_time(cache);
    return true;
}

/* ---- hashes ---- */

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Two tokens a multiplication, in two lanes. */
static uint64_t hash_tokens(uint64_t hash, const int32_t *tokens, uint32_t count)
{
    static const uint64_t keys[4] = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu,
        0xd6e8feb86659fd93u};
    uint64_t a = hash ^ keys[0], b = hash ^ keys[1], words[4];
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        memcpy(words, tokens + i, sizeof words);
        a = fold(a ^ words[0], keys[2] ^ words[1]);
        b = fold(b ^ words[2], keys[3] ^ words[3]);
    }
    for (; i < count; i++) a = fold(a ^ (uint32_t)tokens[i], keys[2]);
    return fold(a ^ keys[3], b ^ keys[2]);
}

/* Hashes of blocks [from, to); `hash` is that of what comes before. Returns the last one. */
static uint64_t hash_blocks(const sc_cache *cache, const struct lease *lease, uint32_t from,
    uint32_t to, uint64_t hash, uint64_t *hashes)
{
    uint32_t block = cache->grid, mark = 0;
    while (mark < lease->mark_count && lease->marks[mark].at < from * block) mark++;
    for (uint32_t k = from; k < to; k++) {
        hash = hash_tokens(hash, lease->tokens + (size_t)k * block, block);
        for (; mark < lease->mark_count && lease->marks[mark].at < (k + 1) * block; mark++) {
            uint64_t id[2];
            memcpy(id, lease->marks[mark].id, sizeof id);
            hash = fold(hash ^ id[0] ^ lease->marks[mark].at, id[1] ^ hash);
        }
        hashes[k] = hash;
    }
    return hash;
}

sc_status sc_engine_hashes_reserve(sc_cache *cache, uint32_t tokens)
{
    uint32_t need = tokens / cache->grid + 1;
    if (!cache->policy || need <= cache->scratch_hashes_cap) return SC_OK;
    uint32_t cap = need + need / 2;
    uint64_t *hashes = sc_heap_realloc(&cache->heap, cache->scratch_hashes,
        cache->scratch_hashes_cap * sizeof *hashes, cap * sizeof *hashes);
    if (!hashes) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for hashes of %u tokens", tokens);
    cache->scratch_hashes = hashes;
    cache->scratch_hashes_cap = cap;
    return SC_OK;
}

/* ---- acquire ---- */

/* What the scheduler says of the end of a prompt. */
static enum sc_policy_hint hint_of(void *ctx, uint32_t len)
{
    const struct lease *lease = ctx;
    if (len != lease->prompt_end) return SC_POLICY_HINT_NONE;
    if (lease->hints.flags & SC_HINT_CONTINUES) return SC_POLICY_HINT_CONTINUES;
    return lease->hints.flags & SC_HINT_OVER ? SC_POLICY_HINT_OVER : SC_POLICY_HINT_NONE;
}

static int32_t clamp(int32_t value, int32_t least, int32_t most)
{
    return value < least ? least : value > most ? most : value;
}

static void path_init(sc_cache *cache, struct lease *lease, const struct sc_radix_match *match,
    uint32_t len_max, const sc_hints *hints)
{
    uint32_t blocks = lease->prompt_len / cache->grid, end = lease->prompt_end;
    uint64_t seed = sc_mix64((uint64_t)lease->space->id << 32 | lease->space->generation);
    lease->path_hash = hash_blocks(cache, lease, 0, blocks, seed, cache->scratch_hashes);
    lease->policy = (struct sc_policy_path){
        .now_ns = cache->now_ns,
        .hashes = cache->scratch_hashes,
        .block_count = blocks,
        .end_len = end > blocks * cache->grid ? end : 0,
        .class_id = lease->hints.class_id,
        .len_max = len_max,
        .kv_len = match->kv_len > match->state_len ? match->kv_len : match->state_len,
        .state_len = match->state_len,
        .state_node = match->state_node,
        .given = hints ? hints->breakpoints : NULL,
        .given_count = hints ? hints->breakpoint_count : 0,
        .hint = lease->hints.flags ? hint_of : NULL,
        .hint_ctx = lease,
        .ttl_ns = lease->hints.ttl_ns,
        .priority = clamp(lease->hints.priority, -16, 16),
        .points = lease->points,
        .point_cap = POINT_MAX - 1, /* one is for the end of the answer */
    };
}

/* Where the policy would save, inside the prompt. */
static void take_points(const sc_cache *cache, struct lease *lease, uint32_t from,
    uint32_t branch_len, const sc_hints *hints)
{
    bool end_named = false, branches = cache->options.save_flags & SC_SAVE_BRANCH;
    lease->inner_count = 0;
    for (uint32_t i = 0; i < lease->policy.point_count; i++) {
        uint32_t len = lease->points[i].len;
        bool given = false;
        end_named |= len == lease->prompt_end;
        if (branches && len == branch_len && len > from) lease->branch_len = len;
        if (len <= from || len >= lease->prompt_len || len == lease->prompt_end) continue;
        for (uint32_t k = 0; hints && k < hints->breakpoint_count; k++) {
            uint32_t at = hints->breakpoints[k];
            given |= len <= at && at - len < cache->grid;
        }
        lease->inner[lease->inner_count++] =
            (struct inner){len, given ? SC_KIND_POINT : SC_KIND_BRANCH};
        if (!given && lease->branch_len == 0) lease->branch_len = len;
    }
    if (!end_named) lease->prompt_end = 0;
}

sc_status sc_engine_policy_begin(sc_cache *cache, struct lease *lease,
    const struct sc_radix_match *match, uint32_t len_max, uint32_t held_len, const sc_hints *hints)
{
    lease->policy.ttl_ns = lease->hints.ttl_ns;
    if (!cache->policy) return SC_OK;
    uint32_t from = lease->external_len > lease->len ? lease->external_len : lease->len;
    path_init(cache, lease, match, len_max, hints);
    lease->policy.held_len = held_len;
    sc_status status = sc_policy_begin(cache->policy, &lease->policy);
    lease->policy.hashes = NULL;
    lease->policy.given = NULL;
    lease->policy.given_count = 0;
    lease->policy.point_cap = POINT_MAX;
    if (status == SC_ERR_LIMIT) { /* longer than it remembers: served without saving */
        lease->policy.point_count = 0;
        status = SC_OK;
    } else if (status == SC_OK) {
        lease->learned = true;
    }
    if (status == SC_OK) take_points(cache, lease, from, match->branch_len, hints);
    return status;
}

/* ---- plan ---- */

/* The point of the lease at this length, NO_POINT: none. */
enum { NO_POINT = UINT32_MAX };
static uint32_t point_at(const struct lease *lease, uint32_t len)
{
    for (uint32_t i = 0; lease->learned && i < lease->policy.point_count; i++) {
        if (lease->points[i].len == len) return i;
    }
    return NO_POINT;
}

double sc_engine_policy_bar(sc_cache *cache, struct lease *lease, uint32_t position, bool asked)
{
    struct sc_policy_ask ask;
    uint32_t point = point_at(lease, position);
    if (!cache->policy || asked || !lease->learned) return HUGE_VAL;
    if (point == NO_POINT) return sc_policy_bar(cache->policy, &lease->policy, position);
    if (!sc_policy_ask(cache->policy, &lease->policy, point, 0, &ask)) return 0;
    return ask.bar;
}

void sc_engine_policy_promise(struct lease *lease, uint32_t position, bool stored)
{
    uint32_t point = point_at(lease, position);
    if (point != NO_POINT) sc_policy_promise(&lease->policy, point, stored);
}

/* ---- commit ---- */

void sc_engine_policy_attach(sc_cache *cache, struct lease *lease, uint32_t position, sc_node node,
    uint32_t snapshot)
{
    if (!cache->policy) return;
    uint32_t point = point_at(lease, position);
    /* Memory may be short: then it is found by the tree's order alone. */
    if (point != NO_POINT) {
        (void)sc_policy_attached(cache->policy, &lease->policy, point, node, snapshot);
    } else {
        (void)sc_policy_attach(cache->policy, &lease->policy, node, snapshot);
    }
}

/* ---- release ---- */

void sc_engine_policy_extend(sc_cache *cache, struct lease *lease, uint32_t len)
{
    struct sc_policy_path *path = &lease->policy;
    uint32_t end = path->end_len ? path->end_len : path->block_count * cache->grid;
    uint32_t blocks = len / cache->grid;
    if (!cache->policy || !lease->learned || len <= end || len <= lease->prompt_len) return;
    if (blocks >= cache->scratch_hashes_cap) return;
    (void)hash_blocks(cache, lease, path->block_count, blocks, lease->path_hash,
        cache->scratch_hashes);
    /* No room, no memory: nothing is learned of the answer. */
    (void)sc_policy_extend(cache->policy, path, cache->scratch_hashes, blocks, len);
}

void sc_engine_policy_end(sc_cache *cache, struct lease *lease)
{
    if (!cache->policy || !lease->learned) return;
    if (lease->len > lease->prompt_len) lease->policy.output_len = lease->len - lease->prompt_len;
    sc_policy_end(cache->policy, &lease->policy);
    lease->learned = false;
}

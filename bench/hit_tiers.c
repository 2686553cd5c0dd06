/* SPDX-License-Identifier: Apache-2.0 */
/* Each tier is an index and a policy of its own, on the same code as the device's, with its own
 * budget. Its policy learns from every request, and its values are of the same currency: expected
 * seconds saved per byte, reading back taken off.
 *
 *   device --victim--> host --victim--> disk --victim--> dropped
 *          |   |         '--- worth less there than what would have to go: the next tier
 *          |   '--- reading back takes longer than computing again: no tier at all
 *          '--- what the device's policy does not admit goes down at once
 *
 * A record is the state and the KV of all tokens before it that the tier does not hold yet. A
 * request resumes where state and KV are there soonest: computing from the device's snapshot, or
 * reading a deeper one back. What was read stays in its tier; the device's policy is asked whether
 * a copy is worth its bytes there. Writing and reading do not wait for each other and cost nothing
 * but what is reported. */
#include "hit_tiers.h"

#include <stdlib.h>
#include <string.h>

enum { TIERS = HIT_TIERS };

struct tier {
    struct hit_tiers *tiers;
    uint32_t number;
    double cap;
    struct hit_index index;
    struct sc_policy *policy;
    struct hit_match match;     /* of the request in hand */
    struct sc_policy_path path;
};

struct hit_tiers {
    const struct hit_trace *trace;
    const struct hit_index *device;
    struct hit_result *result;
    struct sc_cost cost;
    struct tier tier[TIERS];    /* 0 is not used; cap 0: there is none */
    size_t request;
    uint32_t *parent;           /* block -> the block before it */
    uint64_t *hash;
    int32_t *tokens;            /* [longest]: a path in hand, one for each tier */
    uint64_t *hashes;
    struct sc_policy_point *points;
};

/* Fills in the path to a block; its length. */
static uint32_t path_of(const struct hit_tiers *t, uint32_t tier, uint32_t block, int32_t **tokens,
    uint64_t **hashes)
{
    uint32_t len = 0;
    for (uint32_t at = block; at != 0; at = t->parent[at])
        len++;
    *tokens = t->tokens + (size_t)tier * t->trace->longest;
    *hashes = t->hashes + (size_t)tier * t->trace->longest;
    for (uint32_t at = block, k = len; at != 0; at = t->parent[at]) {
        (*tokens)[--k] = (int32_t)at;
        (*hashes)[k] = t->hash[at];
    }
    return len;
}

/* Room for a record that is worth so much per byte. */
static bool tier_room(struct tier *tier, const struct sc_policy_record *record)
{
    double worth = sc_policy_record_worth(tier->policy, record), got = 0;
    double need = record->bytes - (tier->cap - hit_index_bytes(&tier->index));
    if (worth <= 0 || record->bytes > tier->cap)
        return false;
    if (need <= 0)
        return true;
    bench_must(sc_policy_room(tier->policy, need, worth, &tier->index.sink, &got),
        "sc_policy_room");
    return got >= need;
}

/* True if the snapshot at the end of the path is in the tier now. */
static bool tier_take(struct tier *tier, const int32_t *tokens, const uint64_t *hashes,
    uint32_t blocks)
{
    struct hit_tiers *t = tier->tiers;
    struct hit_match match;
    uint32_t snapshot = 0;
    hit_index_match(&tier->index, tokens, blocks, blocks, &match);
    bool there = match.resumed == blocks, room = there;
    if (!there) {
        struct sc_policy_record record = {hashes, blocks, blocks, match.state_node,
            tier->index.state_bytes + (blocks - match.held) * tier->index.block_bytes};
        room = tier_room(tier, &record);
        sc_node node = room ? hit_index_insert(&tier->index, tokens, blocks, &match, &snapshot)
                            : SC_NODE_NONE;
        if (node != SC_NODE_NONE) {
            bench_must(sc_policy_adopt(tier->policy, &record, node, snapshot), "sc_policy_adopt");
            t->result->tier_written[tier->number] += record.bytes;
        }
    }
    hit_index_unlock(&tier->index, &match);
    double held = hit_index_bytes(&tier->index);
    if (held > t->result->tier_peak[tier->number])
        t->result->tier_peak[tier->number] = held;
    return room;
}

/* To the first tier below `from` that wants it. */
static void offer(struct hit_tiers *t, uint32_t from, const int32_t *tokens, const uint64_t *hashes,
    uint32_t blocks)
{
    for (uint32_t i = from + 1; i < TIERS; i++) {
        if (t->tier[i].cap > 0 && tier_take(&t->tier[i], tokens, hashes, blocks))
            return;
    }
    t->result->tier_dropped++;
}

void hit_tiers_refused(struct hit_tiers *t, size_t request, uint32_t blocks)
{
    size_t first = t->trace->requests[request].first;
    offer(t, 0, t->trace->tokens + first, t->trace->hashes + first, blocks);
}

/* What leaves a tier goes down. */
static void demote(struct hit_tiers *t, uint32_t from, const struct hit_index *index, sc_node node)
{
    struct sc_radix_step step;
    int32_t *tokens;
    uint64_t *hashes;
    if (!sc_radix_step_get(index->radix, node, &step))
        return;
    uint32_t blocks = path_of(t, from, index->block_of[step.snapshot], &tokens, &hashes);
    offer(t, from, tokens, hashes, blocks);
}

void hit_tiers_leaving(void *ctx, sc_node node)
{
    struct hit_tiers *t = ctx;
    demote(t, 0, t->device, node);
}

static void tier_leaving(void *ctx, sc_node node)
{
    struct tier *tier = ctx;
    demote(tier->tiers, tier->number, &tier->index, node);
}

/* Seconds until the request can compute at its end: read, then prefill what is left. */
static double seconds(const struct hit_tiers *t, uint32_t tier, uint32_t resumed, double kv_blocks,
    double blocks)
{
    double read = tier == 0 ? 0 : sc_cost_restore_s(&t->cost, tier, kv_blocks);
    return read + sc_cost_prefill_s(&t->cost, resumed, blocks);
}

/* What a tier's policy learns from a request. */
static void tier_begin(struct tier *tier, size_t request)
{
    struct hit_tiers *t = tier->tiers;
    const struct hit_request *r = &t->trace->requests[request];
    const struct hit_match *match = &tier->match;
    tier->path = (struct sc_policy_path){.now_ns = r->time_ns,
        .hashes = t->trace->hashes + r->first, .block_count = r->blocks, .len_max = r->usable,
        .kv_len = match->held, .held_len = match->deepest, .state_len = match->resumed,
        .state_node = match->state_node, .output_len = r->output_len,
        .points = t->points + (size_t)tier->number * (t->trace->longest + 4),
        .point_cap = t->trace->longest + 4};
    bench_must(sc_policy_begin(tier->policy, &tier->path), "sc_policy_begin");
}

uint32_t hit_tiers_match(struct hit_tiers *t, size_t request, const struct hit_match *device,
    uint32_t *resumed_out)
{
    const struct hit_request *r = &t->trace->requests[request];
    const int32_t *tokens = t->trace->tokens + r->first;
    double blocks = (double)r->input_len / t->trace->block, read = 0;
    uint32_t best = 0, resumed = device->resumed;
    double least = seconds(t, 0, resumed, 0, blocks);
    for (uint32_t i = 1; i < TIERS; i++) {
        struct tier *tier = &t->tier[i];
        if (tier->cap <= 0)
            continue;
        hit_index_match(&tier->index, tokens, r->blocks, r->usable, &tier->match);
        uint32_t len = tier->match.resumed;
        double kv = len > device->held ? len - device->held : 0;
        double took = len > resumed ? seconds(t, i, len, kv, blocks) : least;
        if (took < least) {
            least = took;
            best = i;
            resumed = len;
            read = t->device->state_bytes + kv * t->device->block_bytes;
        }
        tier_begin(tier, request);
    }
    t->result->tier_hit_tokens[best] += (uint64_t)resumed * t->trace->block;
    t->result->tier_read[best] += read;
    t->result->seconds_saved += sc_cost_prefill_s(&t->cost, 0, blocks) - least;
    t->result->seconds_all += sc_cost_prefill_s(&t->cost, 0, blocks);
    *resumed_out = resumed;
    return best;
}

void hit_tiers_end(struct hit_tiers *t)
{
    for (uint32_t i = 1; i < TIERS; i++) {
        struct tier *tier = &t->tier[i];
        if (tier->cap <= 0)
            continue;
        sc_policy_end(tier->policy, &tier->path);
        hit_index_unlock(&tier->index, &tier->match);
    }
}

static void tier_open(struct hit_tiers *t, uint32_t number, double gib,
    const struct sc_policy_options *device)
{
    struct tier *tier = &t->tier[number];
    *tier = (struct tier){.tiers = t, .number = number, .cap = gib * 1073741824.0};
    hit_index_init(&tier->index, t->trace, t->device->state_bytes, t->device->block_bytes);
    struct sc_policy_options options = *device;
    options.radix = tier->index.radix;
    options.cost = t->cost;
    options.tier = number;
    options.leaving = tier_leaving;
    options.leaving_ctx = tier;
    bench_must(sc_policy_create(&options, &tier->policy), "sc_policy_create");
}

struct hit_tiers *hit_tiers_create(struct hit_job *job, const struct hit_index *device,
    const struct sc_policy_options *options)
{
    const struct hit_trace *trace = job->trace;
    if (job->spec.tier_gib[1] <= 0 && job->spec.tier_gib[2] <= 0)
        return NULL;
    struct hit_tiers *t = bench_alloc(1, sizeof *t);
    *t = (struct hit_tiers){.trace = trace, .device = device, .result = &job->result,
        .parent = bench_alloc((size_t)trace->node_count + 1, sizeof *t->parent),
        .hash = bench_alloc((size_t)trace->node_count + 1, sizeof *t->hash),
        .tokens = bench_alloc((size_t)TIERS * trace->longest, sizeof *t->tokens),
        .hashes = bench_alloc((size_t)TIERS * trace->longest, sizeof *t->hashes),
        .points = bench_alloc((size_t)TIERS * (trace->longest + 4), sizeof *t->points)};
    for (size_t i = 0; i < trace->count; i++) {
        const struct hit_request *r = &trace->requests[i];
        for (uint32_t k = 0; k < r->blocks; k++) {
            uint32_t block = (uint32_t)trace->tokens[r->first + k];
            t->parent[block] = k > 0 ? (uint32_t)trace->tokens[r->first + k - 1] : 0;
            t->hash[block] = trace->hashes[r->first + k];
        }
    }
    struct sc_cost_model model = {.flops_per_token = job->model->flops_per_token * trace->block,
        .flops_per_token2 = job->model->flops_per_token2 * trace->block * trace->block,
        .state_bytes = device->state_bytes, .kv_token_bytes = device->block_bytes};
    bench_must(sc_cost_make(&model, &job->spec.hardware, &t->cost), "sc_cost_make");
    for (uint32_t i = 1; i < TIERS; i++) {
        if (job->spec.tier_gib[i] > 0)
            tier_open(t, i, job->spec.tier_gib[i], options);
    }
    return t;
}

void hit_tiers_destroy(struct hit_tiers *t)
{
    if (!t)
        return;
    for (uint32_t i = 1; i < TIERS; i++) {
        if (t->tier[i].cap <= 0)
            continue;
        if (SC_ASSERT_LEVEL >= 2)
            bench_must(sc_policy_verify(t->tier[i].policy), "sc_policy_verify");
        sc_policy_destroy(t->tier[i].policy);
        hit_index_deinit(&t->tier[i].index);
    }
    free(t->parent);
    free(t->hash);
    free(t->tokens);
    free(t->hashes);
    free(t->points);
    free(t);
}

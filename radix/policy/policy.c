/* SPDX-License-Identifier: Apache-2.0 */
/* Policies: creation, the calls of a request, eviction.
 *
 *   ghosts (blocks seen, by hash)            the index (sc_radix)
 *     o--o--o--o--o--o--o                      --A-----B---C
 *           |        |  |                        |     |
 *         cand     cand cand  <--- by_node ------'     '-- snapshots
 *           |              |
 *           '--> order: heap of resident candidates by key;  timers: heap by time
 *
 * A candidate is a position that is learned about (GITTINS: a ghost stands for it), or that carries
 * a snapshot, or both. What is resident is the index's to say: `by_node` is only a guess, confirmed
 * by the snapshot id whenever it matters, so that snapshots may leave without notice.
 *
 * Invariants; sc_policy_verify cites them:
 *  (1) by_node[n] == c if and only if cands[c].node == n; then c is alive and, but for TREE and
 *      MARCONI (which scan), in `order`.
 *  (2) A live candidate is resident or has a ghost, and ghost and candidate name each other.
 *  (3) key <= value for every resident candidate whose snapshot is still there, once the timers
 *      that are due have been served (up to CHILD_WALK_MAX, policy_value.c). So an entry whose key
 *      is its value at the heap's top is the least valuable of all: what is found in O(log n) is
 *      what a scan finds.
 *  (4) Links superseded_by/supersedes and near_end/near_of come in pairs.
 *
 * Cost of a request: O(blocks) hash look-ups, O(nodes between snapshots) for each value, O(log n)
 * for each key that changes; a refit every `fit_every` requests. */
#include "policy_internal.h"

#include <stdio.h>

static const struct named {
    const char *name;
    enum sc_policy_order order;
    enum sc_policy_admission admission;
    uint32_t placement;
} names[] = {
    {"gittins", SC_POLICY_GITTINS, SC_ADMIT_DUEL, SC_PLACE_END | SC_PLACE_FORK | SC_PLACE_NEAR},
    {"lru", SC_POLICY_LRU, SC_ADMIT_GROUP, SC_PLACE_END | SC_PLACE_BRANCH},
    {"lru-path", SC_POLICY_LRU_PATH, SC_ADMIT_GROUP, SC_PLACE_END | SC_PLACE_BRANCH},
    {"lru-sup", SC_POLICY_LRU_SUP, SC_ADMIT_GROUP, SC_PLACE_END | SC_PLACE_BRANCH},
    {"fixed", SC_POLICY_TREE, SC_ADMIT_GROUP, SC_PLACE_END | SC_PLACE_INTERVAL},
    {"marconi", SC_POLICY_MARCONI, SC_ADMIT_GROUP, SC_PLACE_END | SC_PLACE_BRANCH},
    {"gdsf", SC_POLICY_GDSF, SC_ADMIT_GROUP, SC_PLACE_END | SC_PLACE_BRANCH},
};
enum { NAME_COUNT = sizeof names / sizeof *names };

const char *sc_policy_name(uint32_t index)
{
    return index < NAME_COUNT ? names[index].name : NULL;
}

sc_status sc_policy_named(const char *name, struct sc_policy_options *options)
{
    SC_REQUIRE(name != NULL && options != NULL);
    for (size_t i = 0; i < NAME_COUNT; i++) {
        if (strcmp(name, names[i].name) != 0) continue;
        options->order = names[i].order;
        options->admission = names[i].admission;
        options->placement = names[i].placement;
        return SC_OK;
    }
    return SC_FAIL(SC_ERR_NOT_FOUND, "there is no policy '%s'", name);
}

static sc_status options_check(const struct sc_policy_options *o)
{
    SC_TRY(sc_cost_check(&o->cost));
    SC_REQUIRE(o->radix != NULL);
    SC_REQUIRE((unsigned)o->order <= SC_POLICY_GITTINS);
    SC_REQUIRE((unsigned)o->admission <= SC_ADMIT_DUEL);
    SC_REQUIRE((o->placement & ~(uint32_t)SC_PLACE_ALL) == 0);
    SC_REQUIRE(o->block_tokens > 0);
    SC_REQUIRE(o->interval_tokens % o->block_tokens == 0);
    SC_REQUIRE(o->tier == 0 ||
        (o->tier < SC_COST_TIERS && o->cost.tier_bytes_per_s[o->tier] > 0));
    SC_REQUIRE(o->leaving == NULL || o->order != SC_POLICY_TREE);
    SC_REQUIRE(isfinite(o->marconi_alpha) && o->marconi_alpha >= 0);
    bool learns = o->order == SC_POLICY_GITTINS;
    if (!learns && (o->admission == SC_ADMIT_DUEL ||
            o->placement & (SC_PLACE_FORK | SC_PLACE_NEAR))) {
        return SC_FAIL(SC_ERR_INVALID, "duels, forks and points near the end need the statistics "
            "of the order 'gittins'");
    }
    if (learns && o->admission == SC_ADMIT_GROUP) {
        return SC_FAIL(SC_ERR_INVALID, "'gittins' admits point by point");
    }
    return SC_OK;
}

/* The system gives memory when it is first written, page by page, at some hundred ns a request. */
static void touch_memory(void *memory, size_t bytes)
{
    enum { SYSTEM_PAGE = 4096 };
    volatile char *byte = memory;
    for (size_t at = 0; at < bytes; at += SYSTEM_PAGE) byte[at] = byte[at];
}

/* What only the order 'gittins' needs. */
static bool learning_create(struct sc_policy *p)
{
    const struct sc_policy_options *options = &p->options;
    uint32_t ghosts = options->ghost_max ? options->ghost_max : GHOSTS_DEFAULT;
    uint32_t samples = options->sample_count ? options->sample_count : SAMPLES_DEFAULT;
    if (!pol_ghosts_create(p, ghosts) || !pol_cands_reserve(p, ghosts / GHOSTS_PER_CAND)) {
        return false;
    }
    p->model = sc_heap_calloc(&p->heap, 1, sizeof *p->model);
    if (!p->model) return false;
    pol_model_init(p->model);
    p->bytes += sizeof *p->model;
    if (!pol_samples_create(p, samples)) return false;
    touch_memory(p->model, sizeof *p->model);
    touch_memory(p->ghosts, ((size_t)ghosts + 1) * sizeof *p->ghosts);
    touch_memory(p->table, ((size_t)p->table_mask + 1) * sizeof *p->table);
    touch_memory(p->cands, p->cand_cap * sizeof *p->cands);
    return true;
}

sc_status sc_policy_create(const struct sc_policy_options *options, struct sc_policy **policy_out)
{
    SC_REQUIRE(options != NULL && policy_out != NULL);
    SC_TRY(options_check(options));
    struct sc_heap heap;
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_RADIX, options->allocator));
    struct sc_policy *p = sc_heap_calloc(&heap, 1, sizeof *p);
    if (!p) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a policy");
    p->heap = heap;
    p->options = *options;
    p->bytes = sizeof *p;
    if (options->order == SC_POLICY_GITTINS && !learning_create(p)) {
        sc_policy_destroy(p);
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for the statistics");
    }
    *policy_out = p;
    return SC_OK;
}

void sc_policy_destroy(struct sc_policy *p)
{
    if (!p) return;
    struct sc_heap *heap = &p->heap;
    if (p->model) {
        pol_samples_destroy(p);
        sc_heap_free(heap, p->model, sizeof *p->model);
    }
    pol_ghosts_destroy(p);
    sc_heap_free(heap, p->cands, p->cand_cap * sizeof *p->cands);
    sc_heap_free(heap, p->by_node, p->by_node_cap * sizeof *p->by_node);
    sc_heap_free(heap, p->path, p->path_cap * sizeof *p->path);
    sc_heap_free(heap, p->aside, p->aside_cap * sizeof *p->aside);
    sc_heap_free(heap, p->order.items, p->order.cap * sizeof *p->order.items);
    sc_heap_free(heap, p->order.places, p->order.place_cap * sizeof *p->order.places);
    sc_heap_free(heap, p->timers.items, p->timers.cap * sizeof *p->timers.items);
    sc_heap_free(heap, p->timers.places, p->timers.place_cap * sizeof *p->timers.places);
    struct sc_heap own = p->heap;
    sc_heap_free(&own, p, sizeof *p);
}

/* --- a request --- */

static sc_status path_check(const struct sc_policy *p, const struct sc_policy_path *path)
{
    SC_REQUIRE(path->hashes != NULL || path->block_count == 0 || !p->model);
    SC_REQUIRE(path->given != NULL || path->given_count == 0);
    SC_REQUIRE(path->block_count <= UINT32_MAX / p->options.block_tokens);
    SC_REQUIRE(path->state_len <= path->kv_len || p->options.cost.kv_token_bytes <= 0);
    SC_REQUIRE(path->priority >= -16 && path->priority <= 16);
    SC_REQUIRE(path->pin_until_ns == 0 || p->options.order != SC_POLICY_TREE);
    SC_REQUIRE(path->now_ns >= p->wall_ns);
    uint32_t blocks_end = path->block_count * p->options.block_tokens;
    SC_REQUIRE(path->end_len == 0 || (path->end_len >= blocks_end &&
        path->end_len - blocks_end < p->options.block_tokens));
    SC_REQUIRE(path->points != NULL && path->point_cap > 0 && path->point_cap <= UINT16_MAX);
    if (p->model && path->block_count > p->ghost_max / 2) {
        return SC_FAIL(SC_ERR_LIMIT, "a prompt of %u blocks, %u are remembered", path->block_count,
            p->ghost_max);
    }
    return SC_OK;
}

/* ---- time ---- */

enum { CLOCK_TICK_NS = 50000000, CLOCK_GAP_MAX_NS = 2000000000 };
enum { CLOCK_MEAN_OF = 256, CLOCK_MEAN_LEAST = 16 };

static void clock_set(struct sc_policy *p, uint64_t wall_ns, uint64_t tick_ns)
{
    uint64_t step = wall_ns - p->wall_ns + tick_ns;
    p->wall_ns = wall_ns;
    p->now_ns = step < UINT64_MAX - p->now_ns ? p->now_ns + step : UINT64_MAX;
    p->now_s = (double)p->now_ns * 1e-9;
}

/* Ages are told apart in seconds. Where requests come faster than twenty a second, or the caller
 * has no clock, each moves the policy's time on by what is missing: else all that a small pool
 * holds is of one age, and what is used every time counts no more than what never is. A pause
 * counts as CLOCK_GAP_MAX_NS at most: a burst behind one is as fast. */
static void clock_request(struct sc_policy *p, uint64_t wall_ns)
{
    uint64_t gap = wall_ns - p->wall_ns, seen = p->requests, tick = 0;
    if (gap > CLOCK_GAP_MAX_NS) gap = CLOCK_GAP_MAX_NS;
    if (seen > CLOCK_MEAN_OF) seen = CLOCK_MEAN_OF;
    if (seen > 0) {
        p->gap_ns = p->gap_ns - p->gap_ns / seen + gap / seen;
        if (seen >= CLOCK_MEAN_LEAST && p->gap_ns < CLOCK_TICK_NS) tick = CLOCK_TICK_NS - p->gap_ns;
    }
    clock_set(p, wall_ns, tick);
}

void sc_policy_time(struct sc_policy *p, uint64_t now_ns)
{
    if (p && now_ns > p->wall_ns) clock_set(p, now_ns, 0);
}

/* A look-up by hash waits for memory twice, and a prompt has two as a rule: where it leaves those
 * that begin alike, and where what is known of it ends. */
enum { FORKS_AHEAD = 3, ENDS_AHEAD = 2 };

static void path_prefetch(const struct sc_policy *p, const struct sc_policy_path *path,
    void (*prefetch)(const struct sc_policy *, uint64_t))
{
    uint32_t end = path->kv_len / p->options.block_tokens;
    for (uint32_t k = 0; k < FORKS_AHEAD && k < path->block_count; k++) {
        prefetch(p, path->hashes[k]);
    }
    for (uint32_t k = end; k < end + ENDS_AHEAD && k < path->block_count; k++) {
        prefetch(p, path->hashes[k]);
    }
}

sc_status sc_policy_begin(struct sc_policy *p, struct sc_policy_path *path)
{
    SC_REQUIRE(p != NULL && path != NULL);
    SC_TRY(path_check(p, path));
    if (p->model) path_prefetch(p, path, pol_table_prefetch);
    if (!pol_cands_reserve(p, path->point_cap) ||
        (p->model &&
            !pol_grow(p, (void **)&p->path, &p->path_cap, path->block_count, sizeof *p->path))) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to learn from a request");
    }
    clock_request(p, path->now_ns);
    p->requests++;
    path->point_count = path->turn_count = path->turn = 0;
    path->used = path->wanted = 0;
    path->base_len = path->state_len;
    path->near_rate = 0;
    path->linear = path->longer = false;
    if (!p->model) {
        pol_place_plain(p, path);
        uint32_t id = path->state_len > 0 ? pol_now(p, path->state_node) : 0;
        path->used = id;
        path->used_generation = id ? pol_cand(p, id)->generation : 0;
        for (uint32_t i = 0; i < path->point_count; i++) path->points[i].turn = (uint16_t)i;
        path->turn_count = path->point_count;
        return SC_OK;
    }
    pol_ghosts_expire(p, path->block_count);
    path_prefetch(p, path, pol_ghost_prefetch);
    pol_learn(p, path);
    if (path->linear && path->used != 0 && path->used == path->wanted) {
        uint32_t up = pol_up(p, path->state_node);
        path->base_len = up ? pol_cand(p, up)->len : 0;
    }
    pol_place_order(p, path);
    return SC_OK;
}

/* A candidate without a position that is learned about; as good as `like`, if that is not 0. Room
 * for one was made. */
static uint32_t cand_loose(struct sc_policy *p, uint32_t like)
{
    uint32_t id = pol_cand_new(p);
    struct cand *cand = pol_cand(p, id);
    cand->born_ns = p->now_ns;
    cand->kind = KIND_FIRST;
    if (like == 0) return id;
    const struct cand *model = pol_cand(p, like);
    cand->registered = model->registered;
    cand->kind = model->kind;
    cand->stratum = model->stratum;
    cand->level = model->level;
    memcpy(cand->features, model->features, sizeof cand->features);
    return id;
}

/* The candidate that a new snapshot belongs to. Room for one was made. */
static uint32_t cand_for(struct sc_policy *p, struct sc_policy_point *point)
{
    uint32_t id = pol_alive(p, point->cand, point->generation);
    if (id != 0 && pol_cand(p, id)->node != 0) {
        struct sc_radix_node_info info;
        const struct cand *cand = pol_cand(p, id);
        bool there = cand->len != point->len &&
            sc_radix_node_get(p->options.radix, cand->node, &info) == SC_OK &&
            info.snapshot == cand->snapshot;
        if (there) {
            id = cand_loose(p, id); /* another end in the same block */
            point->cand = id;
            point->generation = pol_cand(p, id)->generation;
            return id;
        }
        pol_detach(p, id);
        id = pol_alive(p, point->cand, point->generation);
    }
    if (id == 0) {
        id = cand_loose(p, 0);
        pol_cand(p, id)->kind = point->kind;
        pol_cand(p, id)->stratum = (uint8_t)(point->kind * STRATA_PER_KIND);
        point->cand = id;
        point->generation = pol_cand(p, id)->generation;
    }
    return id;
}

/* Room for one more resident candidate. */
static sc_status attach_check(struct sc_policy *p, sc_node node, uint32_t snapshot, uint32_t len)
{
    struct sc_radix_node_info info;
    SC_TRY(sc_radix_node_get(p->options.radix, node, &info));
    if (info.snapshot != snapshot || (len != 0 && info.end != len)) {
        return SC_FAIL(SC_ERR_MISMATCH, "node %u has no snapshot %u after %u tokens",
            node, snapshot, len);
    }
    if (!pol_cands_reserve(p, 1) || !pol_node_reserve(p, node)) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a candidate");
    }
    uint32_t id = pol_resident(p, node); /* of a snapshot that left without notice */
    if (id != 0) pol_detach(p, id);
    return SC_OK;
}

/* It is used now. */
static void stamp(const struct sc_policy *p, struct cand *cand)
{
    if (p->options.order >= SC_POLICY_GDSF) {
        cand->base = p->age; /* 0 but for GDSF */
    } else {
        cand->stamp = p->requests;
    }
}

static void attach(struct sc_policy *p, const struct sc_policy_path *path, uint32_t id,
    sc_node node, uint32_t snapshot, uint32_t len)
{
    struct cand *cand = pol_cand(p, id);
    p->by_node[node] = id;
    cand->node = node;
    cand->snapshot = snapshot;
    cand->len = len;
    cand->freq = 1;
    stamp(p, cand);
    cand->used_ns = p->wall_ns;
    cand->ttl_ns = path ? path->ttl_ns : 0;
    cand->priority = path ? (int8_t)path->priority : 0;
    cand->pin_until_ns = 0;
}

static void attached(struct sc_policy *p, uint32_t id)
{
    pol_touch(p, id);
    if (p->options.order >= SC_POLICY_GDSF) pol_below_changed(p, pol_cand(p, id)->node);
}

sc_status sc_policy_attached(struct sc_policy *p, struct sc_policy_path *path, uint32_t index,
    sc_node node, uint32_t snapshot)
{
    SC_REQUIRE(p != NULL && path != NULL && index < path->point_count && snapshot != 0);
    struct sc_policy_point *point = &path->points[index];
    SC_TRY(attach_check(p, node, snapshot, point->len));
    uint32_t id = cand_for(p, point);
    attach(p, path, id, node, snapshot, point->len);
    if (index + 1 == path->point_count) pol_cand(p, id)->pin_until_ns = path->pin_until_ns;
    point->stored = true;
    if (path->kv_len < point->len) path->kv_len = point->len;
    if (p->model && path->longer && index + 1 == path->point_count) {
        pol_learn_longer(p, path, id);
    }
    attached(p, id);
    return SC_OK;
}

sc_status sc_policy_attach(struct sc_policy *p, const struct sc_policy_path *path, sc_node node,
    uint32_t snapshot)
{
    SC_REQUIRE(p != NULL && snapshot != 0);
    struct sc_radix_node_info info;
    SC_TRY(attach_check(p, node, snapshot, 0));
    SC_TRY(sc_radix_node_get(p->options.radix, node, &info));
    const struct sc_policy_point *end = path ? pol_end_point(path) : NULL;
    uint32_t id = cand_loose(p, end ? pol_alive(p, end->cand, end->generation) : 0);
    attach(p, path, id, node, snapshot, info.end);
    attached(p, id);
    return SC_OK;
}

sc_status sc_policy_adopt(struct sc_policy *p, const struct sc_policy_record *record,
    sc_node node, uint32_t snapshot)
{
    SC_REQUIRE(p != NULL && record != NULL && snapshot != 0);
    SC_REQUIRE(record->hashes != NULL || record->block_count == 0);
    struct sc_radix_node_info info;
    SC_TRY(attach_check(p, node, snapshot, record->len));
    SC_TRY(sc_radix_node_get(p->options.radix, node, &info));
    uint32_t id = p->model ? pol_record_cand(p, record) : 0;
    if (id != 0 && pol_cand(p, id)->node != 0) {
        return SC_FAIL(SC_ERR_STATE, "the last block of %u tokens has a snapshot", record->len);
    }
    if (id == 0) id = cand_loose(p, 0);
    attach(p, NULL, id, node, snapshot, info.end);
    if (p->model) pol_learn_adopted(p, id);
    attached(p, id);
    return SC_OK;
}

sc_status sc_policy_extend(struct sc_policy *p, struct sc_policy_path *path,
    const uint64_t *hashes, uint32_t block_count, uint32_t len)
{
    SC_REQUIRE(p != NULL && path != NULL);
    SC_REQUIRE(hashes != NULL || block_count == 0 || !p->model);
    SC_REQUIRE(!path->longer && block_count >= path->block_count && len > pol_end(p, path));
    SC_REQUIRE(block_count <= len / p->options.block_tokens);
    uint32_t more = block_count - path->block_count;
    if (path->point_count >= path->point_cap || (p->model && more > p->ghost_max / 2)) {
        return SC_FAIL(SC_ERR_LIMIT, "no room for a longer request of %u blocks", block_count);
    }
    if (!pol_cands_reserve(p, 1)) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a candidate");
    const struct sc_policy_point *end = pol_end_point(path);
    struct sc_policy_point point = {.len = len, .kind = end ? end->kind : KIND_FIRST};
    path->prompt_end = end ? (uint32_t)(end - path->points) : UINT32_MAX;
    if (p->model) {
        pol_ghosts_expire(p, more);
        pol_learn_extend(p, path, hashes, block_count, &point);
    }
    path->points[path->point_count++] = point;
    path->block_count = block_count;
    path->end_len = len;
    path->longer = true;
    return SC_OK;
}

static void use_path(struct sc_policy *p, sc_node node)
{
    struct sc_radix_node_info info;
    for (; node != SC_NODE_NONE && sc_radix_node_get(p->options.radix, node, &info) == SC_OK;
         node = info.parent) {
        uint32_t id = pol_at(p, node, info.snapshot);
        if (id == 0) continue;
        stamp(p, pol_cand(p, id));
        pol_touch(p, id);
    }
}

static void use(struct sc_policy *p, struct sc_policy_path *path, bool extended)
{
    uint32_t id = pol_alive(p, path->used, path->used_generation);
    if (id == 0 || pol_cand(p, id)->node == 0) return;
    struct cand *cand = pol_cand(p, id);
    cand->used_ns = p->wall_ns;
    cand->freq++;
    stamp(p, cand);
    struct sc_radix_node_info info;
    if (p->options.order == SC_POLICY_LRU_SUP && extended &&
        sc_radix_node_get(p->options.radix, cand->node, &info) == SC_OK && info.child_count == 1) {
        cand->stamp = 0;
    }
    if (!p->model) pol_touch(p, id); /* gittins: use makes no value fall */
    if (p->options.order == SC_POLICY_LRU_PATH) use_path(p, cand->node);
}

/* A refit costs the same however much is new: less often once much is known. */
static uint64_t fit_every(uint64_t requests)
{
    uint64_t every = requests / FIT_GROWTH;
    if (every < FIT_DEFAULT) return FIT_DEFAULT;
    return every < FIT_EVERY_MAX ? every : FIT_EVERY_MAX;
}

static bool resident(const struct sc_policy *p, const struct sc_policy_point *point)
{
    uint32_t id = pol_alive(p, point->cand, point->generation);
    return id != 0 && pol_cand(p, id)->node != 0;
}

void sc_policy_end(struct sc_policy *p, struct sc_policy_path *path)
{
    if (!p || !path) return;
    bool stored = false, end_stored = false;
    for (uint32_t i = 0; i < path->point_count; i++) stored |= path->points[i].stored;
    if (path->point_count > 0) end_stored = resident(p, &path->points[path->point_count - 1]);
    if (path->longer && path->prompt_end < path->point_count) {
        end_stored |= resident(p, &path->points[path->prompt_end]);
    }
    if (p->model) pol_learn_end(p, path, end_stored);
    use(p, path, stored);
    if (p->model && p->requests >= p->model->next_fit) {
        pol_fit(p);
        uint64_t every = p->options.fit_every ? p->options.fit_every : fit_every(p->requests);
        uint64_t early = p->requests / 2 > 10 ? p->requests / 2 : 10;
        if (every < p->order.count / 16) every = p->order.count / 16; /* keys: O(1) a request */
        p->model->next_fit = p->requests + (every < early ? every : early);
    }
}

sc_status sc_policy_alpha_set(struct sc_policy *p, double alpha)
{
    SC_REQUIRE(p != NULL && isfinite(alpha) && alpha >= 0);
    p->options.marconi_alpha = alpha;
    return SC_OK;
}

void sc_policy_stats_get(const struct sc_policy *p, struct sc_policy_stats *stats_out)
{
    if (!p || !stats_out) return;
    *stats_out = (struct sc_policy_stats){.requests = p->requests,
        .refits = p->model ? p->model->fits : 0, .events = p->model ? p->model->events : 0,
        .ghosts = p->ghost_count, .candidates = p->cand_count, .resident = p->order.count,
        .refused = p->refused, .evicted = p->evicted, .bytes = p->bytes};
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Looking into the trees, and evicting what begins with a prefix: statecache/inspect.h.
 *
 * What begins with a prefix are whole subtrees, whose roots are called tops here:
 *
 *      (root)--[ system prompt ]--+--[ a b c ]--[ d ]      prefix "system prompt, a": tops are
 *                                 +--[ a x ]               [ a b c ] and [ a x ]
 *                                 '--[ q ]
 *
 * The match of the prefix ends at a node; the tops are that node itself, if it ends where the
 * prefix does, or those of its children that go on as the rest of the prefix, which is less than a
 * page, or a mark at the prefix's end. The same is done in the directory of the tiers (tier.h).
 *
 * Evicting removes nodes and joins none, so that tops which were found before stay what they are,
 * or go. Candidates are gathered in preorder and evicted from behind, so that children go first. */
#include <string.h>

#include "tier.h"
#include "statecache/inspect.h"

enum { BATCH = 256, BRANCHES_MAX = 256, LEFT_OUT_MAX = 65536, MARKS_LEAST = 16 };

/* ---- paths ---- */

/* The key of a node, in memory that grows. */
struct path {
    struct sc_heap heap;
    const struct sc_radix *radix;
    int32_t *tokens;
    sc_mark *marks;
    size_t token_cap;
    uint32_t mark_cap, mark_count;
};

static void path_free(struct path *path)
{
    sc_heap_free(&path->heap, path->tokens, path->token_cap * sizeof *path->tokens);
    sc_heap_free(&path->heap, path->marks, path->mark_cap * sizeof *path->marks);
}

static sc_status path_room(struct path *path, size_t tokens, uint32_t marks)
{
    if (tokens > path->token_cap) {
        int32_t *grown = sc_heap_realloc(&path->heap, path->tokens,
            path->token_cap * sizeof *grown, tokens * sizeof *grown);
        if (!grown) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %zu tokens", tokens);
        path->tokens = grown;
        path->token_cap = tokens;
    }
    if (marks > path->mark_cap) {
        sc_mark *grown = sc_heap_realloc(&path->heap, path->marks,
            path->mark_cap * sizeof *grown, marks * sizeof *grown);
        if (!grown) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u marks", marks);
        path->marks = grown;
        path->mark_cap = marks;
    }
    return SC_OK;
}

static sc_status path_of(struct path *path, sc_node node, uint32_t end)
{
    uint32_t count = MARKS_LEAST;
    sc_status status = SC_ERR_LIMIT;
    while (status == SC_ERR_LIMIT) {
        SC_TRY(path_room(path, end, count));
        status = sc_radix_path_get(path->radix, node, path->tokens, path->marks, path->mark_cap,
            &count);
    }
    path->mark_count = count;
    return status;
}

/* ---- walks ---- */

static bool first_visit(void *ctx, sc_node node, const struct sc_radix_node_info *info,
    const int32_t *tokens, const int32_t *kv_ids, uint32_t page_count)
{
    (void)info;
    (void)tokens;
    (void)kv_ids;
    (void)page_count;
    *(sc_node *)ctx = node;
    return false;
}

static sc_node first_of_space(const struct sc_radix *radix, uint32_t space)
{
    sc_node node = SC_NODE_NONE;
    sc_radix_walk(radix, space, first_visit, &node);
    return node;
}

/* The next one in preorder below `top`; `*depth` is that of the node. */
static sc_node next_below(const struct sc_radix *radix, sc_node top, sc_node node, uint32_t *depth)
{
    struct sc_radix_step step;
    sc_node next = sc_radix_child_get(radix, node);
    if (next != SC_NODE_NONE) {
        (*depth)++;
        return next;
    }
    while (node != top && (next = sc_radix_sibling_get(radix, node)) == SC_NODE_NONE) {
        if (!sc_radix_step_get(radix, node, &step)) return SC_NODE_NONE;
        node = step.parent;
        (*depth)--;
    }
    return node == top ? SC_NODE_NONE : next;
}

/* ---- tops ---- */

struct tops {
    sc_node *nodes;
    uint32_t count, cap;
};

static sc_status tops_add(struct path *path, struct tops *tops, sc_node node)
{
    if (tops->count == tops->cap) {
        uint32_t cap = tops->cap ? tops->cap * 2 : 16;
        sc_node *grown = sc_heap_realloc(&path->heap, tops->nodes, tops->cap * sizeof *grown,
            cap * sizeof *grown);
        if (!grown) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u branches", cap);
        tops->nodes = grown;
        tops->cap = cap;
    }
    tops->nodes[tops->count++] = node;
    return SC_OK;
}

static bool same_mark(const sc_mark *a, const sc_mark *b)
{
    return a->at == b->at && memcmp(a->id, b->id, sizeof a->id) == 0;
}

/* Whether the path begins with the prefix; its last mark may stand at the prefix's end. */
static bool begins(const struct path *path, uint32_t end, const sc_key *prefix)
{
    const uint32_t count = prefix->token_count;
    uint32_t inside = 0;
    if (end < count) return false;
    if (count > 0 && memcmp(path->tokens, prefix->tokens, count * sizeof *path->tokens) != 0) {
        return false;
    }
    while (inside < path->mark_count && path->marks[inside].at < count) inside++;
    if (prefix->mark_count < inside) return false;
    for (uint32_t i = 0; i < prefix->mark_count; i++) {
        if (i >= path->mark_count || !same_mark(&path->marks[i], &prefix->marks[i])) return false;
    }
    return prefix->mark_count == inside || prefix->marks[inside].at == count;
}

static sc_status consider(struct path *path, sc_node node, const sc_key *prefix, bool any,
    struct tops *tops)
{
    struct sc_radix_step step;
    if (!any) {
        if (!sc_radix_step_get(path->radix, node, &step)) return SC_OK;
        SC_TRY(path_of(path, node, step.end));
        if (!begins(path, step.end, prefix)) return SC_OK;
    }
    return tops_add(path, tops, node);
}

static sc_status find_tops(struct path *path, uint32_t space, const sc_key *prefix,
    struct tops *tops)
{
    struct sc_radix_match match = {.node = SC_NODE_NONE};
    struct sc_radix_step step = {.end = 0};
    const uint32_t count = prefix->token_count;
    bool at_end = prefix->mark_count > 0 && prefix->marks[prefix->mark_count - 1].at == count;
    const struct sc_radix_key key = {prefix->tokens, count, prefix->marks,
        prefix->mark_count - at_end};
    if (count > 0) SC_TRY(sc_radix_match(path->radix, space, &key, count, &match));
    if (match.node != SC_NODE_NONE) (void)sc_radix_step_get(path->radix, match.node, &step);
    if (match.node != SC_NODE_NONE && match.kv_len == count && step.end == count && !at_end) {
        return tops_add(path, tops, match.node);
    }
    if (match.node != SC_NODE_NONE && step.end > match.kv_len) {
        return consider(path, match.node, prefix, false, tops);
    }
    /* Nothing is left of the prefix: whatever goes on from here. */
    bool any = match.kv_len == count && !at_end;
    sc_node child = match.node == SC_NODE_NONE ? first_of_space(path->radix, space) :
        sc_radix_child_get(path->radix, match.node);
    for (; child != SC_NODE_NONE; child = sc_radix_sibling_get(path->radix, child)) {
        SC_TRY(consider(path, child, prefix, any, tops));
    }
    return SC_OK;
}

static struct path path_in(const sc_cache *cache, const struct sc_radix *radix)
{
    return (struct path){.heap = cache->heap, .radix = radix};
}

static void tops_free(struct path *path, struct tops *tops)
{
    sc_heap_free(&path->heap, tops->nodes, tops->cap * sizeof *tops->nodes);
}

static sc_status prefix_check(const sc_cache *cache, const sc_key *prefix)
{
    SC_REQUIRE(prefix);
    SC_REQUIRE(prefix->tokens || prefix->token_count == 0);
    SC_REQUIRE(prefix->token_count < INT32_MAX);
    SC_TRY(sc_engine_marks_check(prefix->marks, prefix->mark_count, 0, prefix->token_count + 1));
    if (prefix->token_count > cache->options.lease_token_max) {
        return SC_FAIL(SC_ERR_LIMIT, "%u tokens, lease_token_max is %u", prefix->token_count,
            cache->options.lease_token_max);
    }
    return SC_OK;
}

static sc_status stale_space(sc_namespace ns)
{
    return SC_FAIL(SC_ERR_STALE, "namespace %u/%u is not open", ns.id, ns.generation);
}

/* ---- evicting ---- */

/* What of the subtree can go: states that nobody holds, and leaves without one. */
static uint32_t gather(const struct sc_radix *radix, sc_node top, sc_node *nodes, uint64_t *held)
{
    uint32_t count = 0, depth = 0;
    *held = 0;
    for (sc_node node = top; node != SC_NODE_NONE; node = next_below(radix, top, node, &depth)) {
        struct sc_radix_node_info info;
        if (sc_radix_node_get(radix, node, &info) != SC_OK) break;
        bool state = info.snapshot != 0;
        *held += state && info.state_locks > 0;
        bool leaf = !state && info.child_count == 0 && info.kv_locks == 0;
        if (((state && info.state_locks == 0) || leaf) && count < BATCH) nodes[count++] = node;
    }
    return count;
}

static void evict_top(sc_cache *cache, sc_node top, struct evict_sink *sink, uint64_t *held_out)
{
    sc_node nodes[BATCH];
    struct sc_radix_step step;
    uint64_t held = 0;
    while (sc_radix_step_get(cache->radix, top, &step)) {
        uint32_t count = gather(cache->radix, top, nodes, &held);
        if (count == 0) break;
        while (count > 0) { /* one that went with another is SC_ERR_STALE */
            sc_node rest;
            (void)sc_radix_evict_node(cache->radix, nodes[--count], &sink->sink, &rest);
        }
        held = 0;
    }
    *held_out += held;
}

/* Copies of the record; those that must stay are counted. */
static uint64_t drop_copies(sc_cache *cache, struct tier_record *record)
{
    uint64_t dropped = 0;
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) {
        bool free = record->readers[t] == 0 && record->children == 0 &&
            (t != SC_TIER_DISK || record->disk_children == 0);
        if (!(record->copies & 1u << t) || !free) continue;
        cache->stats.tier_dropped[t]++;
        sc_tier_copy_drop(cache, record, t);
        dropped++;
    }
    if (dropped > 0) sc_tier_record_settle(cache, record);
    return dropped;
}

static void evict_copies(sc_cache *cache, sc_node top, sc_evicted *evicted)
{
    struct tier *tier = cache->tier;
    struct sc_radix_step step;
    uint32_t ids[BATCH];
    uint64_t dropped = 1, held = 0;
    while (dropped > 0 && sc_radix_step_get(tier->radix, top, &step)) {
        uint32_t count = 0, depth = 0;
        dropped = held = 0;
        for (sc_node node = top; node != SC_NODE_NONE;
             node = next_below(tier->radix, top, node, &depth)) {
            if (!sc_radix_step_get(tier->radix, node, &step)) break;
            const struct tier_record *record = sc_tier_record(tier, step.snapshot);
            if (!record || (record->copies | record->writing) == 0) continue;
            held++;
            if (record->children == 0 && count < BATCH) ids[count++] = record->id;
        }
        while (count > 0) {
            struct tier_record *record = sc_tier_record(tier, ids[--count]);
            if (record) dropped += drop_copies(cache, record);
        }
        evicted->copies += dropped;
    }
    evicted->held += sc_radix_step_get(tier->radix, top, &step) ? held : 0;
}

static sc_status evict_prefix(sc_cache *cache, const sc_key *prefix, sc_evicted *evicted)
{
    struct space *space = sc_engine_space(cache, prefix->ns);
    struct tier *tier = cache->tier;
    struct tops tops = {NULL, 0, 0}, below = {NULL, 0, 0};
    struct evict_sink sink;
    if (!space) return stale_space(prefix->ns);
    struct path path = path_in(cache, cache->radix);
    struct path deep = path_in(cache, tier ? tier->radix : NULL);
    sc_status status = find_tops(&path, space->radix_space, prefix, &tops);
    if (status == SC_OK && tier) {
        uint32_t deeper = tier->spaces[space->tier_space].radix_space;
        status = find_tops(&deep, deeper, prefix, &below);
    }
    *evicted = (sc_evicted){0, 0, 0};
    sc_engine_sink_init(cache, SC_EVICT_ASKED, &sink);
    for (uint32_t i = 0; status == SC_OK && i < tops.count; i++) {
        evict_top(cache, tops.nodes[i], &sink, &evicted->held);
    }
    for (uint32_t i = 0; status == SC_OK && i < below.count; i++) {
        evict_copies(cache, below.nodes[i], evicted);
    }
    evicted->states = sink.slots;
    tops_free(&path, &tops);
    tops_free(&deep, &below);
    path_free(&path);
    path_free(&deep);
    return status;
}

sc_status sc_cache_evict_prefix(sc_cache *cache, const sc_key *prefix, sc_evicted *evicted_out)
{
    sc_evicted evicted;
    SC_REQUIRE(cache);
    SC_REQUIRE(evicted_out);
    SC_TRY(prefix_check(cache, prefix));
    sc_rwlock_lock(&cache->lock);
    sc_status status = sc_engine_record_room(cache,
        32 + (uint64_t)prefix->token_count + 5 * (uint64_t)prefix->mark_count);
    if (status == SC_OK) status = evict_prefix(cache, prefix, &evicted);
    if (status == SC_OK) {
        sc_engine_record_evict_prefix(cache, prefix, &evicted);
        *evicted_out = evicted;
    }
    sc_rwlock_unlock(&cache->lock);
    return status;
}

/* ---- the tree ---- */

struct told {
    uint32_t depth_max, row_max, rows, left_out;
    bool (*visit)(void *ctx, const sc_tree_row *row);
    void *ctx;
    bool more;
};

/* SC_ERR_LIMIT: enough. */
static sc_status tell(struct path *path, sc_node node, uint32_t depth, struct told *told)
{
    struct sc_radix_node_info info;
    if (told->depth_max > 0 && depth >= told->depth_max) {
        told->more = true;
        return ++told->left_out < LEFT_OUT_MAX ? SC_OK : SC_ERR_LIMIT;
    }
    if (told->rows == told->row_max) {
        told->more = true;
        return SC_ERR_LIMIT;
    }
    SC_TRY(sc_radix_node_get(path->radix, node, &info));
    SC_TRY(path_of(path, node, info.end));
    uint32_t above = 0;
    while (above < path->mark_count && path->marks[above].at < info.start) above++;
    const sc_tree_row row = {.depth = depth, .start = info.start, .end = info.end,
        .child_count = info.child_count, .locks = info.kv_locks + info.state_locks,
        .has_state = info.snapshot != 0, .evicted = info.tombstone,
        .tokens = path->tokens + info.start, .marks = path->marks + above,
        .mark_count = path->mark_count - above};
    told->rows++;
    if (told->visit(told->ctx, &row)) return SC_OK;
    told->more = true;
    return SC_ERR_LIMIT;
}

static sc_status tell_top(struct path *path, sc_node top, struct told *told)
{
    uint32_t depth = 0;
    for (sc_node node = top; node != SC_NODE_NONE;
         node = next_below(path->radix, top, node, &depth)) {
        SC_TRY(tell(path, node, depth, told));
    }
    return SC_OK;
}

sc_status sc_cache_tree(const sc_cache *cache, const sc_key *prefix, uint32_t depth_max,
    uint32_t row_max, bool (*visit)(void *ctx, const sc_tree_row *row), void *ctx, bool *more_out)
{
    struct tops tops = {NULL, 0, 0};
    struct told told = {.depth_max = depth_max, .row_max = row_max, .visit = visit, .ctx = ctx};
    SC_REQUIRE(cache);
    SC_REQUIRE(visit);
    SC_REQUIRE(more_out);
    SC_TRY(prefix_check(cache, prefix));
    sc_rwlock_lock_shared(&cache->lock);
    const struct space *space = sc_engine_space(cache, prefix->ns);
    struct path path = path_in(cache, cache->radix);
    sc_status status = space ? find_tops(&path, space->radix_space, prefix, &tops) :
        stale_space(prefix->ns);
    for (uint32_t i = 0; status == SC_OK && i < tops.count; i++) {
        status = tell_top(&path, tops.nodes[i], &told);
    }
    sc_rwlock_unlock_shared(&cache->lock);
    tops_free(&path, &tops);
    path_free(&path);
    if (status == SC_ERR_LIMIT) status = SC_OK;
    if (status == SC_OK) *more_out = told.more;
    return status;
}

/* ---- explaining ---- */

/* How far a path and the key agree, and what stands there. */
static uint32_t compare(const struct path *path, uint32_t end, const sc_key *key,
    sc_explanation *out)
{
    const uint32_t most = end < key->token_count ? end : key->token_count;
    uint32_t at = 0, mark = 0;
    while (at < most && path->tokens[at] == key->tokens[at]) at++;
    while (mark < path->mark_count && mark < key->mark_count &&
        same_mark(&path->marks[mark], &key->marks[mark])) {
        mark++;
    }
    const sc_mark *here = mark < key->mark_count ? &key->marks[mark] : NULL;
    const sc_mark *there = mark < path->mark_count ? &path->marks[mark] : NULL;
    uint32_t mark_at = here ? here->at : UINT32_MAX;
    if (there && there->at < mark_at) mark_at = there->at;
    if (mark_at <= at && mark_at < most) {
        out->differs = SC_DIFFERS_MARK;
        out->mark_here = here && here->at == mark_at;
        out->mark_there = there && there->at == mark_at;
        if (out->mark_here) out->here = *here;
        if (out->mark_there) out->there = *there;
        return mark_at;
    }
    if (at == key->token_count) {
        out->differs = SC_DIFFERS_NOT;
    } else if (at == end) {
        out->differs = SC_DIFFERS_END;
    } else {
        out->differs = SC_DIFFERS_TOKEN;
        out->token_here = key->tokens[at];
        out->token_there = path->tokens[at];
    }
    return at;
}

static sc_status explain_branch(struct path *path, sc_node node, const sc_key *key,
    sc_explanation *best)
{
    sc_explanation this = {.match_len = 0};
    struct sc_radix_step step;
    if (!sc_radix_step_get(path->radix, node, &step)) return SC_OK;
    SC_TRY(path_of(path, node, step.end));
    this.match_len = compare(path, step.end, key, &this);
    /* Of branches that agree as far, one that is another beats one that merely ends. */
    if (this.match_len < best->match_len ||
        (this.match_len == best->match_len && best->differs > SC_DIFFERS_END)) {
        return SC_OK;
    }
    this.answer = best->answer;
    this.evicted_len = best->evicted_len;
    this.beyond_len = best->beyond_len;
    *best = this;
    return SC_OK;
}

static sc_status explain(const sc_cache *cache, const struct space *space, const sc_key *key,
    struct path *path, sc_explanation *out)
{
    const struct sc_radix_key whole = {key->tokens, key->token_count, key->marks, key->mark_count};
    const uint32_t len_max = key->len_max ? key->len_max : key->token_count - 1;
    struct sc_radix_match match;
    struct sc_radix_step step = {.end = 0};
    SC_TRY(sc_radix_match(cache->radix, space->radix_space, &whole, key->token_count, &match));
    out->beyond_len = match.state_len > len_max ? match.state_len : 0;
    out->evicted_len = match.evicted_len;
    out->match_len = match.kv_len;
    out->differs = match.kv_len == key->token_count ? SC_DIFFERS_NOT : SC_DIFFERS_END;
    if (out->differs == SC_DIFFERS_NOT) return SC_OK;
    if (match.node != SC_NODE_NONE) (void)sc_radix_step_get(cache->radix, match.node, &step);
    if (match.node != SC_NODE_NONE && step.end > match.kv_len) {
        return explain_branch(path, match.node, key, out);
    }
    sc_node child = match.node == SC_NODE_NONE ? first_of_space(cache->radix,
        space->radix_space) : sc_radix_child_get(cache->radix, match.node);
    for (uint32_t i = 0; child != SC_NODE_NONE && i < BRANCHES_MAX; i++) {
        SC_TRY(explain_branch(path, child, key, out));
        child = sc_radix_sibling_get(cache->radix, child);
    }
    return SC_OK;
}

sc_status sc_cache_explain(const sc_cache *cache, const sc_key *key,
    sc_explanation *explanation_out)
{
    sc_explanation out = {.match_len = 0};
    uint32_t len_max = 0;
    SC_REQUIRE(cache);
    SC_REQUIRE(key);
    SC_REQUIRE(explanation_out && explanation_out->struct_size == sizeof *explanation_out);
    SC_TRY(sc_cache_lookup(cache, key, 1, &out.answer));
    sc_rwlock_lock_shared(&cache->lock);
    struct path path = path_in(cache, cache->radix);
    sc_status status = sc_engine_key_check(cache, key, &len_max);
    if (status == SC_OK) {
        status = explain(cache, sc_engine_space(cache, key->ns), key, &path, &out);
    }
    sc_rwlock_unlock_shared(&cache->lock);
    path_free(&path);
    if (status != SC_OK) return status;
    out.struct_size = sizeof out;
    *explanation_out = out;
    return SC_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The naive index: pages, their order, and the comparison of the whole with the real tree. */
#include <string.h>

#include "radix_model.h"

struct prefix prefix_of(uint32_t space, const int32_t *tokens, uint32_t len)
{
    struct prefix prefix = {.space = space, .len = len, .hash = space};
    for (uint32_t i = 0; i < len; i++) {
        prefix.tokens[i] = tokens[i];
        prefix.hash = sc_mix64(prefix.hash + (uint32_t)tokens[i]);
    }
    return prefix;
}

bool prefix_within(const struct prefix *a, const struct prefix *b)
{
    return a->space == b->space && a->len <= b->len &&
        memcmp(a->tokens, b->tokens, a->len * sizeof *a->tokens) == 0;
}

struct page *page_find(struct rworld *w, uint32_t space, const int32_t *tokens, uint32_t len)
{
    struct prefix wanted = prefix_of(space, tokens, len);
    for (uint32_t i = 0; i < w->page_count; i++) {
        struct page *page = &w->pages[i];
        if (page->prefix.hash == wanted.hash && page->prefix.len == len &&
            prefix_within(&page->prefix, &wanted)) {
            return page;
        }
    }
    return NULL;
}

void page_remove(struct rworld *w, struct page *page)
{
    *page = w->pages[--w->page_count];
}

uint32_t page_children(const struct rworld *w, const struct page *page)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < w->page_count; i++) {
        const struct page *other = &w->pages[i];
        count += other->prefix.len == page->prefix.len + w->page &&
            prefix_within(&page->prefix, &other->prefix);
    }
    return count;
}

void path_use(struct rworld *w, const struct prefix *path)
{
    w->clock++;
    for (uint32_t i = 0; i < w->page_count; i++) {
        if (prefix_within(&w->pages[i].prefix, path)) w->pages[i].tick = w->clock;
    }
}

void path_lock(struct rworld *w, const struct prefix *path, uint32_t what, int by)
{
    if (what == 0) return;
    for (uint32_t i = 0; i < w->page_count; i++) {
        struct page *page = &w->pages[i];
        if (!prefix_within(&page->prefix, path)) continue;
        page->locks += (uint32_t)by; /* a locked snapshot holds its path as well */
        if (page->prefix.len == path->len && (what & SC_RADIX_LOCK_STATE)) {
            page->state_locks += (uint32_t)by;
        }
    }
}

struct page *state_oldest(struct rworld *w)
{
    struct page *oldest = NULL;
    for (uint32_t i = 0; i < w->page_count; i++) {
        struct page *page = &w->pages[i];
        if (page->snapshot == 0 || page->state_locks > 0) continue;
        if (!oldest || page->state_tick < oldest->state_tick) oldest = page;
    }
    return oldest;
}

void barren_remove_model(struct rworld *w, const struct prefix *from)
{
    for (uint32_t len = from->len; len > 0; len -= w->page) {
        struct page *page = page_find(w, from->space, from->tokens, len);
        if (page->snapshot || page->locks || page_children(w, page)) return;
        page_remove(w, page);
    }
}

struct sc_radix_match model_match(struct rworld *w, uint32_t space, const int32_t *tokens,
    uint32_t count, uint32_t len_max)
{
    struct sc_radix_match match = {0};
    uint32_t most = count < len_max ? count : len_max;
    for (uint32_t len = w->page; len <= most; len += w->page) {
        const struct page *page = page_find(w, space, tokens, len);
        if (!page) break;
        match.kv_len = len;
        if (page->snapshot) {
            match.state_len = len;
            match.snapshot = page->snapshot;
            match.evicted_len = 0;
        } else if (page->tombstone) {
            match.evicted_len = len;
        }
    }
    uint32_t branch = match.kv_len - match.kv_len % w->grid;
    match.branch_len = branch > match.state_len ? branch : 0;
    return match;
}

/* ------------------------------------------------------------------ what leaves */

static struct page *page_by_id(struct rworld *w, int32_t id)
{
    for (uint32_t i = 0; i < w->page_count; i++) {
        if (w->pages[i].id == id) return &w->pages[i];
    }
    return NULL;
}

/* `last` is a leaf that may go, and no other such leaf is older. */
static void check_oldest(struct rworld *w, const struct page *last)
{
    for (uint32_t i = 0; i < w->page_count; i++) {
        const struct page *other = &w->pages[i];
        if (other->tick >= last->tick || other->locks > 0) continue;
        RCHECK(w, page_children(w, other) > 0, "a leaf of %u tokens used at %u goes, one used at "
            "%u stays", last->prefix.len, (uint32_t)last->tick, (uint32_t)other->tick);
    }
}

static void sink_kv(void *ctx, const int32_t *ids, uint32_t count, enum sc_radix_cause cause)
{
    struct rworld *w = ctx;
    RCHECK(w, w->with_kv && count > 0, "%u KV ids", count);
    RCHECK(w, cause == w->cause, "cause %d, not %d", (int)cause, (int)w->cause);
    struct page *last = page_by_id(w, ids[count - 1]);
    RCHECK(w, last, "KV id %d goes, but is not there", ids[count - 1]);
    if (w->ordered) check_oldest(w, last);
    for (uint32_t i = count; i-- > 0;) {
        struct page *page = page_by_id(w, ids[i]);
        RCHECK(w, page && page->locks == 0 && page_children(w, page) == 0,
            "KV id %d goes, but is not there, is held or has pages below", ids[i]);
        RCHECK(w, page->snapshot == 0, "KV id %d goes before snapshot %u", ids[i], page->snapshot);
        page_remove(w, page);
    }
    w->last_gone_tokens = (uint64_t)count * w->page;
    w->gone_tokens += w->last_gone_tokens;
}

static void sink_snapshot(void *ctx, uint32_t snapshot, enum sc_radix_cause cause)
{
    struct rworld *w = ctx;
    struct page *page = NULL;
    for (uint32_t i = 0; i < w->page_count; i++) {
        if (w->pages[i].snapshot == snapshot) page = &w->pages[i];
    }
    RCHECK(w, page && page->state_locks == 0, "snapshot %u goes, but is not there or is held",
        snapshot);
    bool cascade = w->cause == SC_RADIX_CAUSE_ASKED && w->ordered;
    RCHECK(w, cause == (cascade ? SC_RADIX_CAUSE_CASCADE : w->cause), "cause %d", (int)cause);
    if (w->cause == SC_RADIX_CAUSE_ASKED && !w->ordered) {
        RCHECK(w, page == state_oldest(w), "snapshot %u goes, an older one stays", snapshot);
    }
    page->snapshot = 0;
    page->tombstone = true;
    w->gone_snapshots++;
    bool alone = (w->cause == SC_RADIX_CAUSE_ASKED && !w->ordered) ||
        w->cause == SC_RADIX_CAUSE_SUPERSEDED;
    if (alone && !w->with_kv) {
        struct prefix prefix = page->prefix;
        barren_remove_model(w, &prefix);
    }
}

struct sc_radix_sink model_sink(struct rworld *w)
{
    w->gone_tokens = w->last_gone_tokens = 0;
    w->gone_snapshots = 0;
    return (struct sc_radix_sink){w, w->with_kv ? sink_kv : NULL, sink_snapshot};
}

/* ------------------------------------------------------------------ the whole */

const struct node *node_by_id(const struct rworld *w, sc_node id)
{
    for (uint32_t i = 0; i < w->node_count; i++) {
        if (w->nodes[i].id == id) return &w->nodes[i];
    }
    return NULL;
}

static bool visit(void *ctx, sc_node id, const struct sc_radix_node_info *info,
    const int32_t *tokens, const int32_t *kv_ids, uint32_t page_count)
{
    struct rworld *w = ctx;
    const struct node *parent = node_by_id(w, info->parent);
    RCHECK(w, info->start == (parent ? parent->prefix.len : 0), "node %u starts at %u", id,
        info->start);
    if (page_count == 0) return true; /* a root */
    RCHECK(w, info->end == info->start + page_count * w->page && info->end <= KEY_MAX &&
            w->node_count < NODES_MAX, "node %u ends at %u", id, info->end);
    int32_t path[KEY_MAX];
    if (parent) memcpy(path, parent->prefix.tokens, info->start * sizeof *path);
    memcpy(path + info->start, tokens, (info->end - info->start) * sizeof *path);
    for (uint32_t p = 0; p < page_count; p++) {
        uint32_t len = info->start + (p + 1) * w->page;
        struct page *page = page_find(w, info->space, path, len);
        RCHECK(w, page && !page->seen, "node %u has a page at %u that should not be", id, len);
        page->seen = true;
        RCHECK(w, page->history == info->history, "history at %u", len);
        RCHECK(w, !w->with_kv || page->id == kv_ids[p], "KV id %d at %u, not %d", kv_ids[p], len,
            page->id);
        bool end = p + 1 == page_count;
        RCHECK(w, page->snapshot == (end ? info->snapshot : 0), "snapshot %u at %u, not %u",
            end ? info->snapshot : 0, len, page->snapshot);
        RCHECK(w, page->tombstone == (end && info->tombstone), "tombstone at %u", len);
        RCHECK(w, !end || page->state_locks == info->state_locks, "state locks at %u", len);
        RCHECK(w, !end || page_children(w, page) == info->child_count, "children at %u", len);
    }
    w->nodes[w->node_count++] = (struct node){id, prefix_of(info->space, path, info->end), *info};
    return true;
}

static void compare_order(struct rworld *w)
{
    static sc_node order[NODES_MAX];
    uint32_t count = sc_radix_state_order(w->radix, order, NODES_MAX), held = 0;
    uint64_t before = UINT64_MAX;
    for (uint32_t i = 0; i < w->page_count; i++) held += w->pages[i].snapshot != 0;
    RCHECK(w, count == held, "%u snapshots in order, %u are held", count, held);
    for (uint32_t i = 0; i < count; i++) {
        const struct node *node = node_by_id(w, order[i]);
        RCHECK(w, node, "node %u of the order is in no tree", order[i]);
        const struct page *page =
            page_find(w, node->prefix.space, node->prefix.tokens, node->prefix.len);
        RCHECK(w, page->state_tick < before, "place %u: used at %u, after one used at %u", i,
            (uint32_t)page->state_tick, (uint32_t)before);
        before = page->state_tick;
    }
}

void compare_all(struct rworld *w)
{
    RCHECK(w, sc_radix_verify(w->radix) == SC_OK, "%s", sc_last_error()->text);
    struct sc_radix_stats stats, want = {0};
    for (uint32_t i = 0; i < w->page_count; i++) {
        struct page *page = &w->pages[i];
        page->seen = false;
        want.token_count += w->page;
        want.snapshot_count += page->snapshot != 0;
        want.kv_locked_tokens += page->locks ? w->page : 0;
        want.state_locked_count += page->state_locks > 0;
    }
    w->node_count = 0;
    for (uint32_t i = 0; i < SPACES_MAX; i++) {
        if (w->spaces[i]) sc_radix_walk(w->radix, w->spaces[i], visit, w);
    }
    for (uint32_t i = 0; i < w->page_count; i++) {
        RCHECK(w, w->pages[i].seen, "a page of %u tokens is lost", w->pages[i].prefix.len);
    }
    for (uint32_t i = 0; i < RECEIPTS_MAX; i++) want.receipt_count += w->receipts[i].used;
    sc_radix_stats_get(w->radix, &stats);
    RCHECK(w, stats.token_count == want.token_count && stats.snapshot_count == want.snapshot_count,
        "%u tokens, %u snapshots", (uint32_t)stats.token_count, (uint32_t)stats.snapshot_count);
    RCHECK(w, stats.kv_locked_tokens == want.kv_locked_tokens &&
            stats.kv_evictable_tokens == want.token_count - want.kv_locked_tokens,
        "%u tokens held, not %u", (uint32_t)stats.kv_locked_tokens,
        (uint32_t)want.kv_locked_tokens);
    RCHECK(w, stats.state_locked_count == want.state_locked_count &&
            stats.state_evictable_count == want.snapshot_count - want.state_locked_count,
        "%u snapshots held, not %u", (uint32_t)stats.state_locked_count,
        (uint32_t)want.state_locked_count);
    RCHECK(w, stats.receipt_count == want.receipt_count, "%u receipts, not %u",
        (uint32_t)stats.receipt_count, (uint32_t)want.receipt_count);
    RCHECK(w, w->token_max == 0 || stats.token_count <= w->token_max, "token_max");
    compare_order(w);
}

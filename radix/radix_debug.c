/* SPDX-License-Identifier: Apache-2.0 */
/* Information, walks, the picture and the whole-structure check. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "radix_internal.h"

static uint32_t mark_count(const struct sc_radix *r, const struct rx_node *node)
{
    uint32_t count = 0;
    if (!(node->flags & RX_MARKED)) return 0;
    for (uint32_t cell = rx_cells(node); cell != 0 && r->cells[cell].tails == 0;
         cell = r->cells[cell].next) {
        count++;
    }
    return count;
}

static void info_fill(const struct sc_radix *r, uint32_t id, struct sc_radix_node_info *info)
{
    const struct rx_node *node = rx_node(r, id);
    const struct rx_use *use = rx_use(r, id);
    bool top = node->parent->flags & RX_ROOT;
    *info = (struct sc_radix_node_info){.parent = top ? SC_NODE_NONE : node->parent->id,
        .start = node->start, .end = rx_end(node), .snapshot = node->snapshot,
        .tombstone = node->flags & RX_TOMBSTONE, .child_count = use->child_count,
        .mark_count = mark_count(r, node),
        .first_child = rx_id(node->child[0]), .next_sibling = use->next_sibling,
        .kv_locks = use->pin - use->state_locks, .state_locks = use->state_locks,
        .history = use->history, .space = use->space};
}

sc_status sc_radix_node_get(const struct sc_radix *r, sc_node node,
    struct sc_radix_node_info *info_out)
{
    SC_REQUIRE(r != NULL && info_out != NULL);
    if (!rx_known(r, node)) return SC_FAIL(SC_ERR_STALE, "node %u does not exist", node);
    info_fill(r, node, info_out);
    return SC_OK;
}

bool sc_radix_step_get(const struct sc_radix *r, sc_node id, struct sc_radix_step *step_out)
{
    if (!r || !step_out || !rx_known(r, id)) return false;
    const struct rx_node *node = rx_node(r, id);
    bool top = node->parent->flags & RX_ROOT;
    *step_out = (struct sc_radix_step){.parent = top ? SC_NODE_NONE : node->parent->id,
        .start = node->start, .end = rx_end(node), .snapshot = node->snapshot,
        .child_count = rx_child_count(r, node)};
    return true;
}

sc_node sc_radix_child_get(const struct sc_radix *r, sc_node node)
{
    return r && rx_known(r, node) ? rx_id(rx_node(r, node)->child[0]) : SC_NODE_NONE;
}

sc_node sc_radix_sibling_get(const struct sc_radix *r, sc_node node)
{
    return r && rx_known(r, node) ? rx_use(r, node)->next_sibling : SC_NODE_NONE;
}

uint32_t sc_radix_snapshot_get(const struct sc_radix *r, sc_node node)
{
    return r && rx_known(r, node) ? rx_node(r, node)->snapshot : 0;
}

sc_status sc_radix_marks_get(const struct sc_radix *r, sc_node node, sc_mark *marks_out,
    uint32_t cap, uint32_t *count_out)
{
    SC_REQUIRE(r != NULL && count_out != NULL && (marks_out != NULL || cap == 0));
    if (!rx_known(r, node)) return SC_FAIL(SC_ERR_STALE, "node %u does not exist", node);
    uint32_t count = mark_count(r, rx_node(r, node));
    *count_out = count;
    if (count > cap) return SC_FAIL(SC_ERR_LIMIT, "%u marks do not fit %u", count, cap);
    uint32_t cell = rx_cells(rx_node(r, node));
    for (uint32_t i = 0; i < count; i++, cell = r->cells[cell].next) {
        marks_out[i] = r->cells[cell].mark;
    }
    return SC_OK;
}

sc_status sc_radix_path_get(const struct sc_radix *r, sc_node node, int32_t *tokens_out,
    sc_mark *marks_out, uint32_t mark_cap, uint32_t *mark_count_out)
{
    SC_REQUIRE(r != NULL && tokens_out != NULL && mark_count_out != NULL);
    SC_REQUIRE(marks_out != NULL || mark_cap == 0);
    if (!rx_known(r, node)) return SC_FAIL(SC_ERR_STALE, "node %u does not exist", node);
    uint32_t marks = 0;
    for (uint32_t id = node; id != SC_NODE_NONE; id = rx_parent(r, id)) {
        marks += mark_count(r, rx_node(r, id));
    }
    *mark_count_out = marks;
    if (marks > mark_cap) return SC_FAIL(SC_ERR_LIMIT, "%u marks do not fit %u", marks, mark_cap);
    for (uint32_t id = node; id != SC_NODE_NONE; id = rx_parent(r, id)) {
        const struct rx_node *at = rx_node(r, id);
        uint32_t count = mark_count(r, at), cell = count ? rx_cells(at) : 0;
        if (at->len > 0) {
            memcpy(tokens_out + at->start, at->tokens, at->len * sizeof *tokens_out);
        }
        marks -= count;
        for (uint32_t i = 0; i < count; i++, cell = r->cells[cell].next) {
            marks_out[marks + i] = r->cells[cell].mark;
        }
    }
    return SC_OK;
}

void sc_radix_stats_get(const struct sc_radix *r, struct sc_radix_stats *stats_out)
{
    if (!r || !stats_out) return;
    *stats_out = (struct sc_radix_stats){.node_count = r->node_count,
        .token_count = r->token_count, .snapshot_count = r->snapshot_count,
        .kv_evictable_tokens = r->token_count - r->pinned_tokens,
        .kv_locked_tokens = r->pinned_tokens,
        .state_evictable_count = r->snapshot_count - r->state_locked_count,
        .state_locked_count = r->state_locked_count, .receipt_count = r->receipt_count,
        .mark_count = r->mark_count, .tail_count = r->tail_count,
        .tail_tokens = r->tail_tokens, .bytes = r->bytes};
}

void sc_radix_walk(const struct sc_radix *r, uint32_t space, sc_radix_visit_fn fn, void *ctx)
{
    uint32_t root = r ? rx_root(r, space) : 0;
    if (root == 0 || !fn) return;
    for (uint32_t id = rx_id(rx_node(r, root)->child[0]); id != 0 && id != root;
         id = rx_preorder_next(r, root, id)) {
        const struct rx_node *node = rx_node(r, id);
        struct sc_radix_node_info info;
        info_fill(r, id, &info);
        if (!fn(ctx, id, &info, node->tokens, r->with_kv ? rx_ids(r, node) : NULL,
                rx_pages(r, node->len))) {
            return;
        }
    }
}

/* Sinks a node into a min-heap of nodes by tick of state use. */
static void state_sink(const struct sc_radix *r, sc_node *nodes, uint32_t count, uint32_t at)
{
    for (;;) {
        uint64_t child = (uint64_t)at * 2 + 1;
        if (child >= count) return;
        if (child + 1 < count && rx_use(r, nodes[child + 1])->tick[RX_STATE] <
                rx_use(r, nodes[child])->tick[RX_STATE]) {
            child++;
        }
        if (rx_use(r, nodes[at])->tick[RX_STATE] <= rx_use(r, nodes[child])->tick[RX_STATE]) return;
        sc_node moved = nodes[at];
        nodes[at] = nodes[child];
        nodes[child] = moved;
        at = (uint32_t)child;
    }
}

uint32_t sc_radix_state_order(const struct sc_radix *r, sc_node *nodes_out, uint32_t cap)
{
    if (!r || !nodes_out || cap == 0) return 0;
    uint32_t count = 0;
    for (uint32_t id = 1; id < r->block_count * RX_NODE_BLOCK; id++) {
        if (!rx_known(r, id) || rx_node(r, id)->snapshot == 0) continue;
        if (count < cap) {
            nodes_out[count++] = id;
            if (count < cap) continue;
            for (uint32_t i = count / 2; i-- > 0;) state_sink(r, nodes_out, count, i);
        } else if (rx_use(r, id)->tick[RX_STATE] > rx_use(r, nodes_out[0])->tick[RX_STATE]) {
            nodes_out[0] = id; /* the oldest of the `cap` most recent goes */
            state_sink(r, nodes_out, count, 0);
        }
    }
    if (count < cap) {
        for (uint32_t i = count / 2; i-- > 0;) state_sink(r, nodes_out, count, i);
    }
    for (uint32_t left = count; left > 1; left--) { /* the oldest to the end, again and again */
        sc_node oldest = nodes_out[0];
        nodes_out[0] = nodes_out[left - 1];
        nodes_out[left - 1] = oldest;
        state_sink(r, nodes_out, left - 1, 0);
    }
    return count;
}

/* --- the picture --- */

enum { DUMP_LEVELS = 24, DUMP_LINE = 480, DUMP_ITEMS = 6, DUMP_MARKS = 3 };

struct line { char text[DUMP_LINE]; size_t used; };

static void line_add(struct line *line, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line_add(struct line *line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line->text + line->used, sizeof line->text - line->used, fmt, args);
    va_end(args);
    if (n > 0) line->used += (size_t)n;
    if (line->used >= sizeof line->text) line->used = sizeof line->text - 1;
}

static void line_items(struct line *line, const char *name, const int32_t *items, uint32_t count)
{
    line_add(line, ", %s", name);
    for (uint32_t i = 0; i < count && i < DUMP_ITEMS; i++) line_add(line, " %" PRId32, items[i]);
    if (count > DUMP_ITEMS) line_add(line, " .. %" PRId32, items[count - 1]);
}

static void line_marks(struct line *line, const struct sc_radix *r, const struct rx_node *node)
{
    uint32_t count = mark_count(r, node);
    if (count == 0) return;
    line_add(line, ", marks");
    uint32_t cell = rx_cells(node);
    for (uint32_t i = 0; i < count && i < DUMP_MARKS; i++, cell = r->cells[cell].next) {
        const sc_mark *mark = &r->cells[cell].mark;
        line_add(line, " %u:", mark->at);
        for (unsigned b = 0; b < sizeof mark->id; b++) line_add(line, "%02x", mark->id[b]);
    }
    if (count > DUMP_MARKS) line_add(line, " and %u more", count - DUMP_MARKS);
}

static void line_node(const struct sc_radix *r, uint32_t id, struct line *line)
{
    const struct rx_node *node = rx_node(r, id);
    const struct rx_use *use = rx_use(r, id);
    line_add(line, "#%u [%u,%u)", id, node->start, rx_end(node));
    if (node->flags & RX_TAIL) line_add(line, " tail");
    if (node->snapshot != 0) line_add(line, " snapshot %u", node->snapshot);
    if (node->flags & RX_TOMBSTONE) line_add(line, " tombstone");
    if (use->pin > 0) line_add(line, " locks kv %u state %u", use->pin - use->state_locks,
        use->state_locks);
    line_add(line, ", history %" PRIx64, use->history);
    line_marks(line, r, node);
    line_items(line, "tokens", node->tokens, node->len);
    if (r->with_kv) line_items(line, "ids", rx_ids(r, node), rx_pages(r, node->len));
}

/* Only children of a fork are set in, so that a chain, however long, stays in one column. */
static void dump_nodes(const struct sc_radix *r, uint32_t root,
    void (*write)(void *ctx, const char *line), void *ctx)
{
    uint32_t level = 0;
    bool more[DUMP_LEVELS] = {false}; /* a sibling follows at this level */
    uint32_t id = root;
    for (;;) {
        const struct rx_node *node = rx_node(r, id);
        if (node->child[0]) {
            if (node->child[1]) level++;
            id = node->child[0]->id;
        } else {
            while (id != root && rx_use(r, id)->next_sibling == 0) {
                id = rx_parent(r, id);
                if (rx_node(r, id)->child[1]) level--;
            }
            if (id == root) return;
            id = rx_use(r, id)->next_sibling;
        }
        struct line line = {.used = 0};
        bool fork = rx_node(r, id)->parent->child[1] != NULL;
        uint32_t shown = level < DUMP_LEVELS ? level : DUMP_LEVELS;
        if (fork && level > 0 && level <= DUMP_LEVELS) {
            more[level - 1] = rx_use(r, id)->next_sibling != 0;
        }
        for (uint32_t i = 0; i < shown; i++) {
            bool here = fork && i + 1 == level;
            line_add(&line, "%s", here ? (more[i] ? "+- " : "`- ") : (more[i] ? "|  " : "   "));
        }
        line_node(r, id, &line);
        write(ctx, line.text);
    }
}

sc_status sc_radix_dump(const struct sc_radix *r, uint32_t space,
    void (*write)(void *ctx, const char *line), void *ctx)
{
    SC_REQUIRE(r != NULL && write != NULL);
    uint32_t root = rx_root(r, space);
    if (root == 0) return SC_FAIL(SC_ERR_NOT_FOUND, "space %u does not exist", space);
    struct line line = {.used = 0};
    line_add(&line, "space %u: page %u, %u branches at the root", space, r->page,
        rx_use(r, root)->child_count);
    write(ctx, line.text);
    dump_nodes(r, root, write, ctx);
    return SC_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The index alone against a naive one (radix_model.h): seeded random calls; after each the whole
 * tree, both orders, all counts and verify() are compared.
 *
 *   SC_SEEDS=n trees (default 240), SC_STEPS=n operations of each (default 1500)
 *   SC_SEED=n  this tree alone      SC_PLANT=x  a wrong model, which must be noticed:
 *              kv_id, order, lock, tombstone;  --canary runs all of them */
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "radix_model.h"
#include "support/test_scale.h"

enum rop {
    ROP_INSERT, ROP_MATCH, ROP_LOCK, ROP_UNLOCK, ROP_EVICT_KV, ROP_EVICT_STATE, ROP_DROP,
    ROP_EXCESS, ROP_SPANS, ROP_SPACE, ROP_BAD, ROP_TRIM, ROP_COUNT
};
static const char *const rop_names[ROP_COUNT] = {"insert", "match", "lock", "unlock", "evict_kv",
    "evict_state", "drop", "evict_excess", "spans", "space", "bad arguments", "trim"};
static uint64_t counts[ROP_COUNT][16]; /* by -status */
static uint64_t conflicts, replaced, hits, went_on, ops_total;
static struct rworld world;
static const char *plant;

static const char *const plants[] = {"kv_id", "order", "lock", "tombstone"};
enum { PLANT_COUNT = sizeof plants / sizeof *plants };

void rfail(const struct rworld *w, const char *file, int line, const char *cond, const char *fmt,
    ...)
{
    const char *base = strrchr(file, '/');
    va_list args;
    (void)fflush(stdout);
    (void)fprintf(stderr, "%s:%d: %s", base ? base + 1 : file, line, cond);
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fprintf(stderr, "\nSC_SEED=%llu SC_STEPS=%llu\n", (unsigned long long)w->seed,
        (unsigned long long)w->step + 1);
    _exit(1);
}

static void on_signal(int number)
{
    char text[120];
    int bytes = snprintf(text, sizeof text, "signal %d\nSC_SEED=%llu SC_STEPS=%llu\n", number,
        (unsigned long long)world.seed, (unsigned long long)world.step + 1);
    if (bytes > 0 && write(STDERR_FILENO, text, (size_t)bytes) < 0) _exit(2);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static uint32_t draw(struct rworld *w, uint32_t bound)
{
    return (uint32_t)sc_prng_below(&w->rng, bound);
}

static bool planted(struct rworld *w, const char *name)
{
    return plant && strcmp(plant, name) == 0 && w->step > 200 && draw(w, 20) == 0;
}

static void arm(struct rworld *w)
{
    if (w->flaky && draw(w, 4) == 0) fail_alloc_arm(&w->fa, 1 + draw(w, 4));
}

static uint32_t space_pick(struct rworld *w)
{
    uint32_t start = draw(w, SPACES_MAX);
    for (uint32_t i = 0; i < SPACES_MAX; i++) {
        if (w->spaces[(start + i) % SPACES_MAX]) return w->spaces[(start + i) % SPACES_MAX];
    }
    return 0;
}

/* A key that often begins like a page that is there. */
static uint32_t key_draw(struct rworld *w, uint32_t space, int32_t *tokens)
{
    uint32_t count = 0, most = w->key_pages * w->page;
    if (w->page_count > 0 && draw(w, 4) > 0) {
        const struct prefix *from = &w->pages[draw(w, w->page_count)].prefix;
        if (from->space == space || draw(w, 4) == 0) {
            count = from->len;
            memcpy(tokens, from->tokens, count * sizeof *tokens);
        }
    }
    uint32_t tail = draw(w, most - count + 1);
    if (draw(w, 3) == 0 && tail > 2 * w->page) tail = 2 * w->page;
    for (uint32_t i = 0; i < tail; i++) tokens[count++] = (int32_t)draw(w, w->alphabet) - 1;
    return count;
}

/* ------------------------------------------------------------------ insert */

struct insert_in {
    int32_t tokens[KEY_MAX], ids[KEY_MAX], canonical[KEY_MAX];
    struct sc_radix_run runs[3];
    struct sc_radix_save saves[4];
    sc_status save_status[4];
    struct sc_radix_insert insert;
};

static void insert_draw(struct rworld *w, uint32_t space, struct insert_in *in)
{
    uint32_t count = key_draw(w, space, in->tokens);
    count -= count % w->page;
    uint32_t pages = count / w->page, run_count = 1, save_count = 0;
    in->runs[0] = (struct sc_radix_run){0, draw(w, 6) == 0 ? 2 : 1};
    if (pages > 1 && draw(w, 4) == 0) {
        in->runs[run_count++] =
            (struct sc_radix_run){(1 + draw(w, pages - 1)) * w->page, 3 + draw(w, 2)};
        uint32_t start = in->runs[1].start + w->page;
        if (start < count && draw(w, 2) == 0) {
            in->runs[run_count++] = (struct sc_radix_run){start, 5};
        }
    }
    for (uint32_t p = 0; p < pages; p++) in->ids[p] = w->next_id++;
    for (uint32_t p = 1; p <= pages && save_count < 4; p++) {
        if (draw(w, pages) < (p == pages ? pages / 2 + 1 : 1)) {
            in->saves[save_count++] = (struct sc_radix_save){p * w->page, w->next_snapshot++};
        }
    }
    in->insert = (struct sc_radix_insert){.space = space, .tokens = in->tokens,
        .token_count = count, .kv_ids = w->with_kv ? in->ids : NULL, .runs = in->runs,
        .run_count = run_count, .saves = in->saves, .save_count = save_count};
}

static uint64_t history_at(const struct insert_in *in, uint32_t position)
{
    uint32_t run = in->insert.run_count - 1;
    while (in->runs[run].start > position) run--;
    return in->runs[run].history;
}

/* What the model expects: the prefix, whether a branch stands in the way, whether it may go. */
struct insert_plan { uint32_t prefix, victim_pages; bool victim, replaceable; };

static struct insert_plan insert_expect(struct rworld *w, const struct insert_in *in)
{
    struct insert_plan plan = {0};
    const struct sc_radix_insert *insert = &in->insert;
    struct page *page = NULL;
    while (plan.prefix < insert->token_count) {
        page = page_find(w, insert->space, in->tokens, plan.prefix + w->page);
        if (!page || page->history != history_at(in, plan.prefix)) break;
        plan.prefix += w->page;
        page = NULL;
    }
    if (!page) return plan;
    plan.victim = plan.replaceable = true;
    uint32_t saves = insert->save_count;
    bool brings = saves > 0 && in->saves[saves - 1].len > plan.prefix;
    for (uint32_t i = 0; i < w->page_count; i++) {
        const struct page *other = &w->pages[i];
        if (!prefix_within(&page->prefix, &other->prefix)) continue;
        plan.victim_pages++;
        if (other->locks || (other->snapshot && !brings)) plan.replaceable = false;
    }
    return plan;
}

static void insert_apply(struct rworld *w, struct insert_in *in, const struct insert_plan *plan,
    const struct sc_radix_inserted *out)
{
    const struct sc_radix_insert *insert = &in->insert;
    uint32_t end = out->len;
    if (plan->victim && end > plan->prefix) { /* without KV nobody was told */
        struct prefix top = prefix_of(insert->space, in->tokens, plan->prefix + w->page);
        for (uint32_t i = w->page_count; i-- > 0;) {
            if (!prefix_within(&top, &w->pages[i].prefix)) continue;
            RCHECK(w, !w->with_kv, "a replaced page was not handed out");
            page_remove(w, &w->pages[i]);
        }
        replaced++;
    }
    for (uint32_t len = plan->prefix + w->page; len <= end; len += w->page) {
        RCHECK(w, w->page_count < PAGES_MAX, "the model is full");
        w->pages[w->page_count++] = (struct page){
            .prefix = prefix_of(insert->space, in->tokens, len),
            .id = w->with_kv ? in->ids[len / w->page - 1] : -1,
            .history = history_at(in, len - w->page)};
    }
    if (end > plan->prefix) {
        struct prefix path = prefix_of(insert->space, in->tokens, end);
        path_use(w, &path);
    }
    for (uint32_t i = insert->save_count; i-- > 0;) { /* the real one attaches the deepest first */
        uint32_t len = in->saves[i].len;
        sc_status want = SC_ERR_MISMATCH;
        if (len <= end) {
            struct page *page = page_find(w, insert->space, in->tokens, len);
            want = page->snapshot ? SC_ERR_BUSY : SC_OK;
            if (want == SC_OK) {
                page->snapshot = in->saves[i].snapshot;
                page->tombstone = planted(w, "tombstone");
                page->state_tick = ++w->clock;
            }
        }
        RCHECK(w, in->save_status[i] == want, "save at %u: %s, not %s", len,
            sc_status_name(in->save_status[i]), sc_status_name(want));
    }
    for (uint32_t len = w->page; w->with_kv && len <= end; len += w->page) {
        const struct page *page = page_find(w, insert->space, in->tokens, len);
        RCHECK(w, in->canonical[len / w->page - 1] == page->id, "canonical id at %u", len);
    }
}

/* The deepest node that the key reaches the end of with the histories of the insert, or one above
 * it: what a lease would hold. */
static sc_node insert_from(struct rworld *w, const struct insert_in *in)
{
    struct sc_radix_match match;
    struct sc_radix_node_info info;
    struct sc_radix_step step;
    const struct sc_radix_key key = {.tokens = in->tokens, .token_count = in->insert.token_count};
    RCHECK(w, sc_radix_match(w->radix, in->insert.space, &key, key.token_count, &match) == SC_OK,
        "match");
    sc_node from = match.node;
    uint32_t up = draw(w, 3);
    for (sc_node id = from; id != SC_NODE_NONE; id = info.parent) {
        RCHECK(w, sc_radix_node_get(w->radix, id, &info) == SC_OK, "node");
        RCHECK(w, sc_radix_step_get(w->radix, id, &step) && step.parent == info.parent &&
            step.start == info.start && step.end == info.end && step.snapshot == info.snapshot &&
            step.child_count == info.child_count, "step");
        RCHECK(w, sc_radix_child_get(w->radix, id) == info.first_child &&
            sc_radix_sibling_get(w->radix, id) == info.next_sibling &&
            sc_radix_snapshot_get(w->radix, id) == info.snapshot, "beside");
        bool good = info.end <= match.kv_len;
        for (uint32_t at = info.start; good && at < info.end; at += w->page) {
            good = history_at(in, at) == info.history;
        }
        if (!good) {
            from = info.parent;
        } else if (up > 0 && id == from) {
            from = info.parent;
            up--;
        }
    }
    return from;
}

static sc_status op_insert(struct rworld *w)
{
    struct insert_in in;
    struct sc_radix_inserted out;
    uint32_t space = space_pick(w);
    if (space == 0) return SC_OK;
    insert_draw(w, space, &in);
    struct insert_plan plan = insert_expect(w, &in);
    if (draw(w, 2) == 0) in.insert.from = insert_from(w, &in);
    went_on += in.insert.from != SC_NODE_NONE;
    struct sc_radix_sink sink = model_sink(w);
    w->cause = SC_RADIX_CAUSE_HISTORY;
    w->ordered = false;
    uint64_t tokens = (uint64_t)w->page_count * w->page;
    arm(w);
    sc_status status =
        sc_radix_insert(w->radix, &in.insert, &sink, in.canonical, in.save_status, &out);
    bool failed = fail_alloc_disarm(&w->fa);
    if (status == SC_ERR_NO_MEMORY) {
        RCHECK(w, failed, "no allocation failed");
        return status;
    }
    uint32_t end = plan.victim && !plan.replaceable ? plan.prefix : in.insert.token_count;
    if (status == SC_ERR_LIMIT) {
        uint64_t freed = plan.victim && plan.replaceable ? plan.victim_pages * w->page : 0;
        RCHECK(w, w->token_max && tokens - freed + end - plan.prefix > w->token_max, "LIMIT");
        return status;
    }
    RCHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    /* A branch of very many nodes counts as in use. */
    if (out.len == plan.prefix && end > out.len && plan.victim_pages > 64) end = out.len;
    RCHECK(w, out.prefix_len == plan.prefix && out.len == end && out.conflict_len == end,
        "prefix %u, len %u, conflict %u; not %u, %u", out.prefix_len, out.len, out.conflict_len,
        plan.prefix, end);
    conflicts += end < in.insert.token_count;
    if (planted(w, "kv_id")) in.ids[0]++;
    insert_apply(w, &in, &plan, &out);
    struct sc_radix_node_info info;
    RCHECK(w, (out.node == SC_NODE_NONE) == (end == 0), "node %u", out.node);
    RCHECK(w, end == 0 || (sc_radix_node_get(w->radix, out.node, &info) == SC_OK &&
                              info.end == end), "the node does not end at %u", end);
    return status;
}

/* ------------------------------------------------------------------ match, locks */

static sc_status op_match(struct rworld *w)
{
    int32_t tokens[KEY_MAX];
    uint32_t space = space_pick(w);
    if (space == 0) return SC_OK;
    uint32_t count = key_draw(w, space, tokens);
    uint32_t len_max = draw(w, 3) == 0 ? draw(w, count + 2) : count;
    struct sc_radix_match match;
    uint64_t calls = fail_alloc_calls(&w->fa);
    const struct sc_radix_key key = {.tokens = tokens, .token_count = count};
    RCHECK(w, sc_radix_match(w->radix, space, &key, len_max, &match) == SC_OK, "%s",
        sc_last_error()->text);
    RCHECK(w, fail_alloc_calls(&w->fa) == calls, "a look-up allocates");
    struct sc_radix_match want = model_match(w, space, tokens, count, len_max);
    RCHECK(w, match.kv_len == want.kv_len && match.state_len == want.state_len &&
            match.snapshot == want.snapshot && match.branch_len == want.branch_len &&
            match.evicted_len == want.evicted_len,
        "%u of %u: kv %u state %u snapshot %u branch %u evicted %u; not %u %u %u %u %u", len_max,
        count, match.kv_len, match.state_len, match.snapshot, match.branch_len, match.evicted_len,
        want.kv_len, want.state_len, want.snapshot, want.branch_len, want.evicted_len);
    RCHECK(w, (match.node != SC_NODE_NONE) == (match.kv_len > 0), "node %u", match.node);
    RCHECK(w, (match.state_node != SC_NODE_NONE) == (match.state_len > 0), "state node");
    hits += match.state_len > 0;
    if (match.kv_len == 0) return SC_OK;
    const struct node *node = node_by_id(w, match.node);
    RCHECK(w, node && node->info.start < match.kv_len && node->prefix.len >= match.kv_len &&
            memcmp(node->prefix.tokens, tokens, match.kv_len * sizeof *tokens) == 0,
        "the match is in another node");
    struct sc_radix_match part;
    sc_node above = node->info.end <= match.kv_len ? match.node : node->info.parent;
    RCHECK(w, sc_radix_match_from(w->radix, space, above, &key, len_max, &part) == SC_OK &&
            memcmp(&part, &match, sizeof part) == 0, "going on from node %u differs", above);
    if (draw(w, 3) == 0) return SC_OK; /* a pure look-up */
    sc_radix_touch(w->radix, &match);
    path_use(w, &node->prefix);
    if (match.state_len > 0 && !planted(w, "order")) {
        page_find(w, space, tokens, match.state_len)->state_tick = ++w->clock;
    }
    return SC_OK;
}

static sc_status op_lock(struct rworld *w)
{
    struct receipt *receipt = &w->receipts[draw(w, RECEIPTS_MAX)];
    if (receipt->used || w->node_count == 0) return SC_OK;
    const struct node *node = &w->nodes[draw(w, w->node_count)];
    bool root = draw(w, 16) == 0;
    uint32_t what = 1 + draw(w, 3), taken = 0;
    sc_node held = 0;
    struct sc_radix_receipt handle;
    arm(w);
    sc_status status = sc_radix_lock(w->radix, root ? SC_NODE_NONE : node->id, what, &handle);
    bool failed = fail_alloc_disarm(&w->fa);
    RCHECK(w, status == SC_OK || (failed && status == SC_ERR_NO_MEMORY), "%s",
        sc_status_name(status));
    if (status != SC_OK) return status;
    uint32_t want = root ? 0 : what;
    if (!root && node->info.snapshot == 0) want &= ~(uint32_t)SC_RADIX_LOCK_STATE;
    RCHECK(w, sc_radix_receipt_get(w->radix, handle, &held, &taken) == SC_OK && taken == want &&
            held == (root ? SC_NODE_NONE : node->id), "%u taken, not %u", taken, want);
    *receipt = (struct receipt){true, handle, node->prefix, want};
    if (!planted(w, "lock")) path_lock(w, &node->prefix, want, 1);
    return SC_OK;
}

static sc_status op_unlock(struct rworld *w)
{
    struct receipt *receipt = &w->receipts[draw(w, RECEIPTS_MAX)];
    if (!receipt->used) return SC_OK;
    RCHECK(w, sc_radix_unlock(w->radix, receipt->handle) == SC_OK, "%s", sc_last_error()->text);
    RCHECK(w, sc_radix_unlock(w->radix, receipt->handle) == SC_ERR_STALE, "twice");
    path_lock(w, &receipt->prefix, receipt->what, -1);
    receipt->used = false;
    return SC_OK;
}

/* ------------------------------------------------------------------ eviction */

static bool leaf_can_go(struct rworld *w)
{
    for (uint32_t i = 0; i < w->page_count; i++) {
        if (w->pages[i].locks == 0 && page_children(w, &w->pages[i]) == 0) return true;
    }
    return false;
}

/* Without KV nobody is told which pages go: asks. */
static void learn_gone(struct rworld *w)
{
    for (uint32_t i = w->page_count; i-- > 0;) {
        struct page *page = &w->pages[i];
        struct sc_radix_match match;
        const struct prefix *prefix = &page->prefix;
        const struct sc_radix_key key = {.tokens = prefix->tokens, .token_count = prefix->len};
        RCHECK(w, sc_radix_match(w->radix, prefix->space, &key, prefix->len, &match) == SC_OK,
            "match");
        if (match.kv_len == prefix->len) continue;
        RCHECK(w, page->locks == 0 && page->snapshot == 0, "a page that was held went");
        w->gone_tokens += w->page;
        page_remove(w, page);
    }
}

static sc_status op_evict_kv(struct rworld *w)
{
    struct sc_radix_sink sink = model_sink(w);
    uint64_t want = draw(w, 3) == 0 ? draw(w, 80) : draw(w, 12), got = 0;
    uint32_t snapshots = 0;
    w->cause = SC_RADIX_CAUSE_ASKED;
    w->ordered = true;
    RCHECK(w, sc_radix_evict_kv(w->radix, want, &sink, &got, &snapshots) == SC_OK, "%s",
        sc_last_error()->text);
    w->ordered = false;
    if (!w->with_kv) learn_gone(w);
    RCHECK(w, got == w->gone_tokens && snapshots == w->gone_snapshots, "%u tokens, %u snapshots; "
        "told of %u, %u", (uint32_t)got, snapshots, (uint32_t)w->gone_tokens, w->gone_snapshots);
    RCHECK(w, got >= want || !leaf_can_go(w), "%u of %u tokens went", (uint32_t)got,
        (uint32_t)want);
    RCHECK(w, got - w->last_gone_tokens < want || got == 0 || !w->with_kv, "a leaf too many");
    return SC_OK;
}

static sc_status op_evict_state(struct rworld *w)
{
    struct sc_radix_sink sink = model_sink(w);
    uint32_t want = draw(w, 4), got = 0;
    w->cause = SC_RADIX_CAUSE_ASKED;
    RCHECK(w, sc_radix_evict_state(w->radix, want, &sink, &got) == SC_OK, "%s",
        sc_last_error()->text);
    RCHECK(w, got == w->gone_snapshots && (got == want || (got < want && !state_oldest(w))),
        "%u of %u snapshots, told of %u", got, want, w->gone_snapshots);
    return SC_OK;
}

static sc_status op_drop(struct rworld *w)
{
    if (w->node_count == 0) return SC_OK;
    const struct node *node = &w->nodes[draw(w, w->node_count)];
    struct sc_radix_sink sink = model_sink(w);
    w->cause = SC_RADIX_CAUSE_SUPERSEDED;
    sc_status status = sc_radix_snapshot_drop(w->radix, node->id, &sink);
    sc_status want = node->info.snapshot == 0 ? SC_ERR_NOT_FOUND
        : node->info.state_locks > 0          ? SC_ERR_BUSY
                                              : SC_OK;
    RCHECK(w, status == want && w->gone_snapshots == (want == SC_OK), "%s, not %s",
        sc_status_name(status), sc_status_name(want));
    return status;
}

static sc_status op_excess(struct rworld *w)
{
    if (w->node_count == 0) return SC_OK;
    const struct node node = w->nodes[draw(w, w->node_count)];
    uint32_t candidates[KEY_MAX], candidate_count = 0, held = 0, got = 0;
    for (uint32_t len = w->page; len <= node.prefix.len; len += w->page) {
        const struct page *page = page_find(w, node.prefix.space, node.prefix.tokens, len);
        if (page->snapshot == 0) continue;
        held++;
        if (len < node.prefix.len && page->state_locks == 0 && page_children(w, page) == 1) {
            candidates[candidate_count++] = len;
        }
    }
    uint32_t excess = w->cap && held > w->cap ? held - w->cap : 0;
    uint32_t want = excess < candidate_count ? excess : candidate_count;
    struct sc_radix_sink sink = model_sink(w);
    w->cause = SC_RADIX_CAUSE_PATH_CAP;
    RCHECK(w, sc_radix_evict_excess(w->radix, node.id, &sink, &got) == SC_OK, "%s",
        sc_last_error()->text);
    RCHECK(w, got == want && w->gone_snapshots == want, "%u went, not %u", got, want);
    for (uint32_t i = 0; i < candidate_count; i++) { /* the shallowest went */
        const struct page *page =
            page_find(w, node.prefix.space, node.prefix.tokens, candidates[i]);
        RCHECK(w, (page->snapshot == 0) == (i < want), "snapshot at %u", candidates[i]);
    }
    return SC_OK;
}

/* ------------------------------------------------------------------ the rest */

static sc_status op_spans(struct rworld *w)
{
    if (w->node_count == 0 || !w->with_kv) return SC_OK;
    const struct node *node = &w->nodes[draw(w, w->node_count)];
    struct sc_radix_span spans[KEY_MAX];
    uint32_t first = draw(w, node->prefix.len / w->page), count = 0, at = first;
    RCHECK(w, sc_radix_spans(w->radix, node->id, first, spans, KEY_MAX, &count) == SC_OK, "%s",
        sc_last_error()->text);
    for (uint32_t i = 0; i < count; i++) {
        RCHECK(w, spans[i].page_first == at, "span %u begins at %u", i, spans[i].page_first);
        for (uint32_t p = 0; p < spans[i].page_count; p++) {
            const struct page *page = page_find(w, node->prefix.space, node->prefix.tokens,
                ++at * w->page);
            RCHECK(w, page && page->id == spans[i].ids[p], "id of page %u", at - 1);
        }
    }
    RCHECK(w, at * w->page == node->prefix.len, "spans end at page %u", at);
    uint32_t need = 0;
    sc_status status = sc_radix_spans(w->radix, node->id, first, spans, count - 1, &need);
    RCHECK(w, status == SC_ERR_LIMIT && need == count, "needs %u of %u", need, count);
    return status;
}

static sc_status op_space(struct rworld *w)
{
    uint32_t index = draw(w, SPACES_MAX), space = w->spaces[index];
    if (space == 0) {
        arm(w);
        sc_status status = sc_radix_space_add(w->radix, &w->spaces[index]);
        bool failed = fail_alloc_disarm(&w->fa);
        RCHECK(w, status == SC_OK || (failed && status == SC_ERR_NO_MEMORY), "%s",
            sc_status_name(status));
        if (status != SC_OK) w->spaces[index] = 0;
        return status;
    }
    if (draw(w, 6) > 0) return SC_OK;
    bool busy = false;
    uint32_t snapshots = 0;
    for (uint32_t i = 0; i < w->page_count; i++) {
        if (w->pages[i].prefix.space != space) continue;
        busy = busy || w->pages[i].locks > 0;
        snapshots += w->pages[i].snapshot != 0;
    }
    struct sc_radix_sink sink = model_sink(w);
    w->cause = SC_RADIX_CAUSE_SPACE;
    sc_status status = sc_radix_space_remove(w->radix, space, &sink);
    RCHECK(w, status == (busy ? SC_ERR_BUSY : SC_OK), "%s", sc_status_name(status));
    if (busy) return status;
    RCHECK(w, w->gone_snapshots == snapshots, "%u snapshots of %u", w->gone_snapshots, snapshots);
    for (uint32_t i = w->page_count; i-- > 0;) {
        if (w->pages[i].prefix.space != space) continue;
        RCHECK(w, !w->with_kv, "a page was not handed out");
        page_remove(w, &w->pages[i]);
    }
    w->spaces[index] = 0;
    return SC_OK;
}

static sc_status op_bad(struct rworld *w)
{
    struct insert_in in;
    struct sc_radix_inserted out;
    struct sc_radix_match match;
    uint32_t space = space_pick(w), count = 0;
    struct sc_radix_sink sink = model_sink(w);
    struct sc_radix_receipt bad = {draw(w, 40), 1000000};
    RCHECK(w, sc_radix_unlock(w->radix, bad) == SC_ERR_STALE, "unlock");
    const struct sc_radix_key nothing = {.token_count = 0};
    RCHECK(w, sc_radix_match(w->radix, 77, &nothing, 0, &match) == SC_ERR_NOT_FOUND, "space");
    RCHECK(w, sc_radix_evict_excess(w->radix, 0xfffffff0u, &sink, &count) == SC_ERR_STALE, "node");
    if (space == 0) return SC_OK;
    insert_draw(w, space, &in);
    if (in.insert.token_count == 0) return SC_OK;
    sc_status want = SC_ERR_MISMATCH;
    struct sc_radix_save save = {in.insert.token_count + w->page, w->next_snapshot};
    switch (draw(w, 4)) {
    case 0: /* another token count than any page of the key has */
        in.insert.saves = &save;
        in.insert.save_count = 1;
        break;
    case 1:
        in.insert.space = 77;
        want = SC_ERR_NOT_FOUND;
        break;
    case 2:
        in.insert.run_count = 0;
        want = SC_ERR_INVALID;
        break;
    default:
        in.insert.kv_ids = w->with_kv ? NULL : in.ids;
        want = SC_ERR_INVALID;
        break;
    }
    sc_status status =
        sc_radix_insert(w->radix, &in.insert, &sink, in.canonical, in.save_status, &out);
    RCHECK(w, status == want, "%s, not %s", sc_status_name(status), sc_status_name(want));
    return status;
}

/* compare_all says afterwards that nothing has changed. */
static sc_status op_trim(struct rworld *w)
{
    arm(w);
    sc_status status = sc_radix_trim(w->radix, draw(w, 2) ? UINT64_MAX : draw(w, 100), NULL);
    (void)fail_alloc_disarm(&w->fa);
    RCHECK(w, status == SC_OK, "%s", sc_status_name(status));
    return status;
}

static void run_op(struct rworld *w)
{
    static sc_status (*const ops[ROP_COUNT])(struct rworld *) = {op_insert, op_match, op_lock,
        op_unlock, op_evict_kv, op_evict_state, op_drop, op_excess, op_spans, op_space, op_bad,
        op_trim};
    static const uint32_t weights[ROP_COUNT] = {35, 24, 9, 8, 5, 5, 3, 3, 3, 2, 1, 2};
    uint32_t at = draw(w, 100), op = 0;
    while (at >= weights[op]) at -= weights[op++];
    sc_status status = ops[op](w);
    counts[op][-status]++;
    ops_total++;
    compare_all(w);
}

static void world_begin(struct rworld *w, uint64_t seed)
{
    static struct page pages[PAGES_MAX];
    static struct node nodes[NODES_MAX];
    static const uint32_t page_sizes[] = {1, 2, 4};
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->pages = pages;
    w->nodes = nodes;
    w->next_snapshot = 1;
    sc_prng_seed(&w->rng, seed);
    fail_alloc_init(&w->fa);
    w->page = page_sizes[draw(w, 3)];
    w->grid = w->page * (1 + draw(w, 4));
    w->key_pages = 3 + draw(w, w->page == 4 ? 10 : 14);
    w->alphabet = 1 + draw(w, 3);
    w->cap = draw(w, 4);
    w->with_kv = draw(w, 4) > 0;
    w->flaky = draw(w, 3) == 0;
    w->token_max = draw(w, 3) == 0 ? w->page * (8 + draw(w, 60)) : w->page * 160;
    struct sc_radix_options options = {.allocator = &w->fa.allocator, .page_tokens = w->page,
        .grid_tokens = w->grid, .path_snapshots_max = w->cap, .with_kv = w->with_kv,
        .token_max = w->token_max};
    RCHECK(w, sc_radix_create(&options, &w->radix) == SC_OK, "%s", sc_last_error()->text);
    RCHECK(w, sc_radix_space_add(w->radix, &w->spaces[0]) == SC_OK, "%s", sc_last_error()->text);
}

static void run_world(uint64_t seed, uint64_t steps)
{
    struct rworld *w = &world;
    world_begin(w, seed);
    for (w->step = 0; w->step < steps; w->step++) run_op(w);
    for (uint32_t i = 0; i < RECEIPTS_MAX; i++) {
        if (!w->receipts[i].used) continue;
        RCHECK(w, sc_radix_unlock(w->radix, w->receipts[i].handle) == SC_OK, "at the end");
        path_lock(w, &w->receipts[i].prefix, w->receipts[i].what, -1);
        w->receipts[i].used = false;
    }
    struct sc_radix_sink sink = model_sink(w);
    uint64_t got = 0;
    uint32_t snapshots = 0;
    w->cause = SC_RADIX_CAUSE_ASKED;
    w->ordered = true;
    RCHECK(w, sc_radix_evict_kv(w->radix, UINT64_MAX, &sink, &got, &snapshots) == SC_OK, "all");
    if (!w->with_kv) learn_gone(w);
    RCHECK(w, w->page_count == 0, "%u pages are left", w->page_count);
    compare_all(w);
    sc_radix_destroy(w->radix);
    RCHECK(w, fail_alloc_live_blocks(&w->fa) == 0, "%u blocks leaked",
        (uint32_t)fail_alloc_live_blocks(&w->fa));
}

/* Each wrong model must be noticed. */
static int run_canary(const char *program)
{
    int found = 0;
    for (int i = 0; i < PLANT_COUNT; i++) {
        int status = 0;
        (void)fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            (void)setenv("SC_PLANT", plants[i], 1);
            (void)setenv("SC_SEEDS", "20", 1);
            (void)unsetenv("SC_SEED");
            if (!freopen("/dev/null", "w", stdout)) _exit(3);
            (void)execl(program, program, (char *)NULL);
            _exit(4);
        }
        if (child < 0 || waitpid(child, &status, 0) != child) return 1;
        bool good = WIFEXITED(status) && WEXITSTATUS(status) == 1;
        (void)printf("%s %s\n", good ? "ok  " : "FAIL", plants[i]);
        found += good;
    }
    return found == PLANT_COUNT ? 0 : 1;
}

static uint64_t from_env(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}

static int check_counts(void)
{
    int rc = 0;
    for (int op = 0; op < ROP_COUNT; op++) {
        (void)printf("%-14s", rop_names[op]);
        for (int i = 0; i < 16; i++) {
            if (counts[op][i]) {
                (void)printf(" %s %llu", sc_status_name((sc_status)-i),
                    (unsigned long long)counts[op][i]);
            }
        }
        (void)printf("\n");
    }
    (void)printf("%llu operations: %llu hits, %llu conflicts, %llu branches replaced, %llu inserts "
        "went on\n", (unsigned long long)ops_total, (unsigned long long)hits,
        (unsigned long long)conflicts, (unsigned long long)replaced, (unsigned long long)went_on);
    const uint64_t wanted[] = {hits, conflicts, replaced, went_on,
        counts[ROP_INSERT][-SC_ERR_NO_MEMORY], counts[ROP_INSERT][-SC_ERR_LIMIT],
        counts[ROP_LOCK][-SC_ERR_NO_MEMORY], counts[ROP_DROP][-SC_ERR_BUSY],
        counts[ROP_SPACE][-SC_ERR_BUSY], counts[ROP_BAD][-SC_ERR_MISMATCH]};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (wanted[i] == 0) {
            (void)fprintf(stderr, "outcome %zu was never seen\n", i);
            rc = 1;
        }
    }
    return rc;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--canary") == 0) return run_canary(argv[0]);
    uint64_t seed = from_env("SC_SEED", 0), steps = from_env("SC_STEPS", 1500);
    uint64_t seeds = from_env("SC_SEEDS", test_scaled(240, 20));
    plant = getenv("SC_PLANT");
    for (const int *n = (const int[]){SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM, 0}; *n; n++) {
        (void)signal(*n, on_signal);
    }
    (void)alarm(1500);
    if (seed) {
        run_world(seed, steps);
        return 0;
    }
    for (uint64_t i = 1; i <= seeds; i++) run_world(i, steps);
    return check_counts();
}

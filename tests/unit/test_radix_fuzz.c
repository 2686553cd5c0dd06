/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded random operations against a naive model.
 *
 * The model is a plain list: one entry for each page-aligned prefix that the tree should hold and
 * one for each tail, with its own copy of the key, its KV id, history and snapshot. It knows
 * nothing about nodes. A key of the model is a row of letters, each a token and the mark that
 * stands there, if any; so that one memcmp compares both, and the model knows no rule about marks
 * but that letters differ. */
#include <stdio.h>

#include "base/prng.h"
#include "support/test_scale.h"
#include "test_radix.h"

enum { M_ENTRIES = 60000, M_LEN = 64, M_KEYS = 24, M_RECEIPTS = 16, M_MARK = 256 };

struct entry {             /* the prefix key[0, len) of a space; a tail, if inside a page */
    int32_t key[M_LEN];    /* letters: token + M_MARK * mark, mark 0 is none */
    uint32_t space, len, snapshot;
    bool tombstone;
    int32_t kv;
    uint64_t history;
};

struct held { struct sc_radix_receipt receipt; int32_t key[M_LEN]; uint32_t space, len, what; };

struct model {
    struct entry *entries;
    uint32_t count, page;
    bool with_kv;
    struct held held[M_RECEIPTS];
    uint32_t held_count;
    uint64_t out_kv, out_snapshots; /* handed back by the tree */
};

/* Letters as the tree takes them. */
struct plain { int32_t tokens[M_LEN]; sc_mark marks[M_LEN]; struct sc_radix_key key; };

static const struct sc_radix_key *plain_of(const int32_t *key, uint32_t len, struct plain *out)
{
    *out = (struct plain){.key = {.tokens = out->tokens, .token_count = len, .marks = out->marks}};
    for (uint32_t i = 0; i < len; i++) {
        out->tokens[i] = key[i] % M_MARK;
        if (key[i] < M_MARK) continue;
        sc_mark *mark = &out->marks[out->key.mark_count++];
        mark->at = i;
        mark->id[15] = (uint8_t)(key[i] / M_MARK); /* ids differ in the last byte alone */
    }
    return &out->key;
}

/* Where the last page of a prefix begins, a partial one too. */
static uint32_t page_start(const struct model *m, uint32_t len)
{
    return (len - 1) / m->page * m->page;
}

static bool is_tail(const struct model *m, const struct entry *e) { return e->len % m->page != 0; }

static struct entry *model_find(struct model *m, uint32_t space, const int32_t *key, uint32_t len)
{
    for (uint32_t i = 0; i < m->count; i++) {
        struct entry *e = &m->entries[i];
        if (e->space == space && e->len == len && memcmp(e->key, key, len * 4) == 0) return e;
    }
    return NULL;
}

/* True when something at or below key[0, len) is locked; nothing is below a tail. */
static bool model_locked(const struct model *m, uint32_t space, const int32_t *key, uint32_t len)
{
    for (uint32_t i = 0; i < m->held_count; i++) {
        const struct held *h = &m->held[i];
        bool reaches = len % m->page != 0 ? h->len == len : h->len >= len;
        if (h->what != 0 && h->space == space && reaches &&
            memcmp(h->key, key, len * 4) == 0) {
            return true;
        }
    }
    return false;
}

/* True when its snapshot is; any lock of a tail holds it. */
static bool model_state_locked(const struct model *m, const struct entry *e)
{
    uint32_t what = is_tail(m, e) ? LOCK_BOTH : LOCK_STATE;
    for (uint32_t i = 0; i < m->held_count; i++) {
        const struct held *h = &m->held[i];
        if (h->what & what && h->space == e->space && h->len == e->len &&
            memcmp(h->key, e->key, e->len * 4) == 0) {
            return true;
        }
    }
    return false;
}

static bool below(const struct entry *e, uint32_t space, const int32_t *key, uint32_t len)
{
    return e->space == space && e->len >= len && memcmp(e->key, key, len * 4) == 0;
}

static uint64_t history_at(const struct sc_radix_insert *in, uint32_t position)
{
    uint32_t run = in->run_count - 1;
    while (in->runs[run].start > position) run--;
    return in->runs[run].history;
}

static void entry_add(struct model *m, const struct sc_radix_insert *in, const int32_t *key,
    uint32_t len)
{
    ck_assert_uint_lt(m->count, M_ENTRIES);
    uint32_t start = page_start(m, len);
    struct entry *e = &m->entries[m->count++];
    *e = (struct entry){.space = in->space, .len = len, .history = history_at(in, start),
        .kv = m->with_kv ? in->kv_ids[start / m->page] : 0};
    memcpy(e->key, key, len * 4);
}

/* Part of the branch at key[0, len); a tail is one alone. */
static bool of_branch(const struct model *m, const struct entry *e, uint32_t space,
    const int32_t *key, uint32_t len)
{
    return below(e, space, key, len) && (len % m->page == 0 || e->len == len);
}

/* Whether the branch at key[0, len) may be replaced by what `brings` a snapshot; then it goes.
 * Counts the snapshots that go with it. The model has no nodes to count: of a branch that may have
 * more than 64 it believes that it `stopped` the tree. */
static bool model_replace(struct model *m, uint32_t space, const int32_t *key, uint32_t len,
    bool brings, bool stopped, uint32_t *gone)
{
    uint32_t entries = 0;
    if (model_locked(m, space, key, len)) return false;
    for (uint32_t i = 0; i < m->count; i++) {
        const struct entry *e = &m->entries[i];
        if (!of_branch(m, e, space, key, len)) continue;
        if (!brings && e->snapshot != 0) return false;
        entries++;
    }
    if (entries > 64 && stopped) return false;
    for (uint32_t i = 0; i < m->count;) {
        if (of_branch(m, &m->entries[i], space, key, len)) {
            *gone += m->entries[i].snapshot != 0;
            m->entries[i] = m->entries[--m->count];
        } else {
            i++;
        }
    }
    return true;
}

/* What the tree should answer to an insert, and what it should hold afterwards. `got_len` is what
 * it says it holds of the key. */
static void model_insert(struct model *m, const struct sc_radix_insert *in, const int32_t *key,
    struct sc_radix_inserted *want, sc_status *save_status, int32_t *canonical, uint32_t got_len,
    uint32_t *gone)
{
    uint32_t whole = in->token_count - in->token_count % m->page;
    uint32_t at = 0;
    bool stop = false;
    while (at < in->token_count) { /* pages, and then the tail */
        uint32_t end = at < whole ? at + m->page : in->token_count;
        const struct entry *e = model_find(m, in->space, key, end);
        if (!e) break;
        if (e->history != history_at(in, at)) {
            bool brings = in->save_count > 0 && in->saves[in->save_count - 1].len > at;
            stop = !model_replace(m, in->space, key, end, brings, got_len == at, gone);
            break;
        }
        at = end;
    }
    want->prefix_len = at;
    want->len = stop ? at : in->token_count;
    want->conflict_len = want->len;
    while (at < want->len) {
        at = at < whole ? at + m->page : in->token_count;
        entry_add(m, in, key, at);
    }
    for (uint32_t i = 0; i < in->save_count; i++) {
        save_status[i] = SC_ERR_MISMATCH;
        if (in->saves[i].len > want->len) continue;
        struct entry *e = model_find(m, in->space, key, in->saves[i].len);
        save_status[i] = e->snapshot != 0 ? SC_ERR_BUSY : SC_OK;
        if (e->snapshot != 0) continue;
        e->snapshot = in->saves[i].snapshot;
        e->tombstone = false;
    }
    for (uint32_t end = 0; end < want->len;) {
        uint32_t page = end / m->page;
        end = end < whole ? end + m->page : in->token_count;
        canonical[page] = model_find(m, in->space, key, end)->kv;
    }
}

static struct sc_radix_match model_match(struct model *m, uint32_t space, const int32_t *key,
    uint32_t limit, uint32_t grid)
{
    struct sc_radix_match want = {.tail_kv = -1};
    for (uint32_t len = m->page; len <= limit; len += m->page) {
        const struct entry *e = model_find(m, space, key, len);
        if (!e) break;
        want.kv_len = len;
        if (e->tombstone) want.evicted_len = len;
    }
    for (uint32_t len = limit; len > 0 && want.state_len == 0; len--) {
        const struct entry *e = model_find(m, space, key, len);
        if (!e || e->snapshot == 0) continue;
        want.state_len = len;
        want.snapshot = e->snapshot;
        if (is_tail(m, e)) want.tail_kv = e->kv;
    }
    if (want.evicted_len < want.state_len) want.evicted_len = 0;
    uint32_t branch = want.kv_len - want.kv_len % grid;
    want.branch_len = branch > want.state_len ? branch : 0;
    return want;
}

static void model_check_match(struct model *m, const struct tr *t, uint32_t space,
    const int32_t *key, uint32_t count, uint32_t len_max, uint32_t grid)
{
    struct sc_radix_match want =
        model_match(m, space, key, count < len_max ? count : len_max, grid);
    struct plain plain;
    struct sc_radix_match got;
    ck_assert_int_eq(
        sc_radix_match(t->radix, space, plain_of(key, count, &plain), len_max, &got), SC_OK);
    ck_assert_uint_eq(got.kv_len, want.kv_len);
    ck_assert_uint_eq(got.state_len, want.state_len);
    ck_assert_uint_eq(got.snapshot, want.snapshot);
    ck_assert_int_eq(got.tail_kv, want.tail_kv);
    ck_assert_uint_eq(got.branch_len, want.branch_len);
    ck_assert_uint_eq(got.evicted_len, want.evicted_len);
    ck_assert_uint_eq(got.node != 0, want.kv_len != 0);
    ck_assert_uint_eq(got.state_node != 0, want.state_len != 0);
    if (got.state_node != 0) ck_assert_uint_eq(tr_info(t, got.state_node).end, want.state_len);
}

/* Takes out of the model what the tree has handed back. Only ids and snapshots are known, so this
 * also proves that each went once and was really there. */
static void model_sync(struct model *m, struct tr *t, bool whole)
{
    for (uint32_t k = 0; k < t->kv_count; k++) {
        uint32_t i = 0;
        while (i < m->count && m->entries[i].kv != t->kv[k]) i++;
        if (!whole) {
            ck_assert_uint_eq(i, m->count); /* the insert's model has removed it */
            continue;
        }
        ck_assert_uint_lt(i, m->count);
        struct entry *e = &m->entries[i];
        ck_assert(!model_locked(m, e->space, e->key, e->len));
        *e = m->entries[--m->count];
    }
    m->out_kv += t->kv_count;
    t->kv_count = 0;
    for (uint32_t g = 0; g < t->gone_count; g++) {
        for (uint32_t i = 0; i < m->count; i++) {
            struct entry *e = &m->entries[i];
            if (e->snapshot != t->gone[g].snapshot) continue;
            ck_assert_int_ne(t->gone[g].cause, SC_RADIX_CAUSE_CASCADE);
            ck_assert(!model_state_locked(m, e));
            ck_assert(!is_tail(m, e)); /* its KV id has told that it went */
            e->snapshot = 0;
            e->tombstone = true;
        }
    }
    m->out_snapshots += t->gone_count;
    t->gone_count = 0;
}

struct mix { uint32_t insert, use, lock, unlock, evict_kv, evict_state, drop, excess; };

struct fuzz {
    struct model m;
    struct sc_prng prng;
    uint32_t spaces[2], alphabet, mark_ids, grid, snapshot_next;
    uint32_t hits, tail_hits, misses, conflicts, tails, tail_conflicts, replaced,
        tails_replaced;
    uint64_t evicted, tails_evicted;
};

static uint32_t below_n(struct fuzz *f, uint32_t n) { return (uint32_t)sc_prng_below(&f->prng, n); }

/* Mostly a known key, perhaps cut and grown; else a fresh one over a small alphabet. */
static uint32_t random_key(struct fuzz *f, int32_t *key)
{
    uint32_t len = 0;
    memset(key, 0, M_LEN * 4);
    if (f->m.count > 0 && below_n(f, 10) < 7) {
        const struct entry *e = &f->m.entries[below_n(f, f->m.count)];
        for (uint32_t more = below_n(f, 12); more > 0 && !is_tail(&f->m, e); more--) {
            e = &f->m.entries[below_n(f, f->m.count)]; /* tails are few, and wanted */
        }
        len = e->len - below_n(f, e->len + 1) * (below_n(f, 3) == 0);
        memcpy(key, e->key, len * 4);
    }
    uint32_t most = M_LEN - len < 12 * f->m.page ? M_LEN - len : 12 * f->m.page;
    if (len > 0 && below_n(f, 4) == 0) most = 0; /* the very same again */
    for (uint32_t grow = below_n(f, most + 1); grow > 0; grow--) {
        key[len] = (int32_t)below_n(f, f->alphabet);
        if (below_n(f, 12) == 0) key[len] += M_MARK * (int32_t)below_n(f, f->mark_ids + 1);
        len++;
    }
    return len;
}

struct drawn {
    int32_t key[M_LEN], ids[M_LEN];
    struct plain plain;
    struct sc_radix_run runs[3];
    struct sc_radix_save saves[5];
    struct sc_radix_insert in;
};

static uint32_t draw_runs(struct fuzz *f, struct sc_radix_run *runs, uint32_t pages, bool tail)
{
    uint32_t count = 1;
    runs[0] = (struct sc_radix_run){0, below_n(f, 8) == 0};
    if (tail && below_n(f, 2) == 0) { /* the tail alone may differ */
        if (pages > 0) runs[count++].start = pages * f->m.page;
        runs[count - 1].history = below_n(f, 3) == 0;
        return count;
    }
    while (count < 3 && pages + tail > 0 && below_n(f, 3) == 0) {
        uint32_t start = below_n(f, pages + tail) * f->m.page;
        if (start <= runs[count - 1].start) break;
        runs[count++] = (struct sc_radix_run){start, below_n(f, 3) == 0};
    }
    return count;
}

static void draw_insert(struct fuzz *f, struct tr *t, struct drawn *d)
{
    struct model *m = &f->m;
    uint32_t len = random_key(f, d->key);
    bool tail = len % m->page != 0 && below_n(f, 3) > 0;
    if (!tail) len -= len % m->page;
    uint32_t pages = len / m->page;
    for (uint32_t i = 0; i < pages + tail; i++) d->ids[i] = t->kv_next++;
    uint32_t run_count = draw_runs(f, d->runs, pages, tail);
    uint32_t save_count = 0;
    for (uint32_t at = m->page; at <= len && save_count < 4; at += m->page) {
        if (below_n(f, at == len ? 2 : 10) != 0) continue;
        d->saves[save_count++] = (struct sc_radix_save){at, f->snapshot_next++};
    }
    if (tail) d->saves[save_count++] = (struct sc_radix_save){len, f->snapshot_next++};
    const struct sc_radix_key *key = plain_of(d->key, len, &d->plain);
    d->in = (struct sc_radix_insert){.space = f->spaces[below_n(f, 2)], .tokens = key->tokens,
        .token_count = len, .kv_ids = m->with_kv ? d->ids : NULL, .runs = d->runs,
        .run_count = run_count, .saves = d->saves, .save_count = save_count, .marks = key->marks,
        .mark_count = key->mark_count};
}

/* True if the whole key is held now. */
static bool insert_drawn(struct fuzz *f, struct tr *t, const struct drawn *d)
{
    struct model *m = &f->m;
    int32_t canonical[M_LEN];
    int32_t want_canonical[M_LEN];
    struct sc_radix_inserted want = {0};
    struct sc_radix_inserted got;
    sc_status each[5];
    sc_status want_each[5];
    ck_assert_int_eq(sc_radix_insert(t->radix, &d->in, &t->sink, canonical, each, &got), SC_OK);
    uint32_t gone = 0;
    model_insert(m, &d->in, d->key, &want, want_each, want_canonical, got.len, &gone);
    ck_assert_uint_eq(t->gone_count, gone);
    f->replaced += gone;
    ck_assert_uint_eq(got.len, want.len);
    ck_assert_uint_eq(got.prefix_len, want.prefix_len);
    ck_assert_uint_eq(got.conflict_len, want.conflict_len);
    uint32_t tail = d->in.token_count % m->page;
    if (got.len < d->in.token_count) f->conflicts++;
    if (tail > 0 && got.len == d->in.token_count) f->tails++;
    if (tail > 0 && gone > 0 && got.prefix_len + tail == d->in.token_count) f->tails_replaced++;
    if (tail > 0 && got.len + tail == d->in.token_count) f->tail_conflicts++;
    for (uint32_t i = 0; i < d->in.save_count; i++) ck_assert_int_eq(each[i], want_each[i]);
    uint32_t pages = (got.len + m->page - 1) / m->page;
    if (m->with_kv) ck_assert_mem_eq(canonical, want_canonical, pages * 4);
    if (got.len > 0) ck_assert_uint_eq(tr_info(t, got.node).end, got.len);
    model_sync(m, t, false);
    return got.len == d->in.token_count;
}

static void step_insert(struct fuzz *f, struct tr *t)
{
    struct drawn d;
    draw_insert(f, t, &d);
    bool held = insert_drawn(f, t, &d);
    uint32_t tail = d.in.token_count % f->m.page, whole = d.in.token_count - tail;
    if (tail == 0 || !held || below_n(f, 8) != 0) return;
    /* Once more, now with another history of the tail alone. */
    uint32_t last = d.in.run_count - 1;
    uint64_t history = d.runs[last].history;
    if (d.runs[last].start != whole) {
        if (last == 2) return;
        d.runs[++last].start = whole;
        d.in.run_count++;
    }
    d.runs[last].history = !history;
    d.saves[0] = (struct sc_radix_save){d.in.token_count, f->snapshot_next++};
    d.in.save_count = 1;
    for (uint32_t i = 0; i * f->m.page < d.in.token_count; i++) d.ids[i] = t->kv_next++;
    (void)insert_drawn(f, t, &d);
}

static void step_use(struct fuzz *f, struct tr *t)
{
    int32_t key[M_LEN];
    uint32_t len = random_key(f, key);
    uint32_t space = f->spaces[below_n(f, 2)];
    uint32_t len_max = below_n(f, 3) == 0 ? below_n(f, M_LEN) : UINT32_MAX;
    model_check_match(&f->m, t, space, key, len, len_max, f->grid);
    struct plain plain;
    struct sc_radix_match match;
    ck_assert_int_eq(
        sc_radix_match(t->radix, space, plain_of(key, len, &plain), len_max, &match), SC_OK);
    if (match.state_len > 0) {
        f->hits++;
    } else {
        f->misses++;
    }
    if (match.tail_kv >= 0) f->tail_hits++;
    if (below_n(f, 2) == 0) sc_radix_touch(t->radix, &match);
}

/* The node that ends where an entry does, or none: model and tree agree about ends alone. */
static sc_node node_of(const struct model *m, const struct tr *t, const struct entry *e)
{
    struct plain plain;
    struct sc_radix_match match;
    ck_assert_int_eq(sc_radix_match(t->radix, e->space, plain_of(e->key, e->len, &plain), e->len,
        &match), SC_OK);
    sc_node node = is_tail(m, e) ? match.state_node : match.node;
    return tr_info(t, node).end == e->len ? node : SC_NODE_NONE;
}

static void step_lock(struct fuzz *f, struct tr *t)
{
    struct model *m = &f->m;
    if (m->held_count == M_RECEIPTS || m->count == 0) return;
    const struct entry *e = &m->entries[below_n(f, m->count)];
    sc_node node = node_of(m, t, e);
    if (node == SC_NODE_NONE) return; /* a lock takes the whole node */
    struct held *h = &m->held[m->held_count++];
    *h = (struct held){.space = e->space, .len = e->len};
    memcpy(h->key, e->key, e->len * 4);
    uint32_t what = 1 + below_n(f, 3);
    sc_node got;
    ck_assert_int_eq(sc_radix_lock(t->radix, node, what, &h->receipt), SC_OK);
    ck_assert_int_eq(sc_radix_receipt_get(t->radix, h->receipt, &got, &h->what), SC_OK);
    ck_assert_uint_eq(got, node);
    ck_assert_uint_eq(h->what, e->snapshot != 0 ? what : what & LOCK_KV);
}

static void step_unlock(struct fuzz *f, struct tr *t)
{
    struct model *m = &f->m;
    if (m->held_count == 0) return;
    struct held *h = &m->held[below_n(f, m->held_count)];
    sc_node node;
    uint32_t what;
    ck_assert_int_eq(sc_radix_receipt_get(t->radix, h->receipt, &node, &what), SC_OK);
    ck_assert_uint_eq(what, h->what);
    if (what != 0) ck_assert_uint_eq(tr_info(t, node).end, h->len); /* splits have not moved it */
    ck_assert_int_eq(sc_radix_unlock(t->radix, h->receipt), SC_OK);
    ck_assert_int_eq(sc_radix_unlock(t->radix, h->receipt), SC_ERR_STALE);
    *h = m->held[--m->held_count];
}

/* Tokens and tails that the ids stand for which came back. */
static uint64_t tokens_gone(const struct model *m, const struct tr *t, uint32_t *tails_out)
{
    uint64_t tokens = 0;
    *tails_out = 0;
    for (uint32_t k = 0; k < t->kv_count; k++) {
        uint32_t i = 0;
        while (i < m->count && m->entries[i].kv != t->kv[k]) i++;
        ck_assert_uint_lt(i, m->count);
        tokens += m->entries[i].len - page_start(m, m->entries[i].len);
        *tails_out += is_tail(m, &m->entries[i]);
    }
    return tokens;
}

static void step_evict(struct fuzz *f, struct tr *t, bool kv)
{
    struct model *m = &f->m;
    struct sc_radix_stats before = tr_stats(t);
    uint32_t snapshots = 0;
    uint64_t tokens = 0;
    uint32_t tails = 0;
    uint32_t want = below_n(f, 30);
    if (kv) {
        ck_assert_int_eq(sc_radix_evict_kv(t->radix, want, &t->sink, &tokens, &snapshots), SC_OK);
        ck_assert(tokens >= want || tr_stats(t).kv_evictable_tokens == 0);
        ck_assert_uint_eq(tokens_gone(m, t, &tails), tokens);
    } else {
        want = below_n(f, 3);
        ck_assert_int_eq(sc_radix_evict_state(t->radix, want, &t->sink, &snapshots), SC_OK);
        ck_assert(snapshots == want || tr_stats(t).state_evictable_count == 0);
        tokens = tokens_gone(m, t, &tails);
        ck_assert_uint_eq(t->kv_count, tails);
    }
    ck_assert_uint_eq(t->gone_count, snapshots);
    struct sc_radix_stats after = tr_stats(t);
    ck_assert_uint_eq(before.token_count - after.token_count, tokens);
    ck_assert_uint_eq(before.snapshot_count - after.snapshot_count, snapshots);
    ck_assert_uint_eq(before.tail_count - after.tail_count, tails);
    f->evicted += tokens + snapshots;
    f->tails_evicted += tails;
    model_sync(m, t, true);
}

static void step_drop(struct fuzz *f, struct tr *t)
{
    struct model *m = &f->m;
    if (m->count == 0) return;
    const struct entry *e = &m->entries[below_n(f, m->count)];
    sc_node node = node_of(m, t, e);
    if (node == SC_NODE_NONE) return;
    sc_status want = e->snapshot == 0 ? SC_ERR_NOT_FOUND :
        model_state_locked(m, e) ? SC_ERR_BUSY : SC_OK;
    ck_assert_int_eq(sc_radix_snapshot_drop(t->radix, node, &t->sink), want);
    uint32_t tails;
    (void)tokens_gone(m, t, &tails);
    ck_assert_uint_eq(t->kv_count, tails);
    model_sync(m, t, true);
    uint32_t count;
    sc_status status = sc_radix_evict_excess(t->radix, node, &t->sink, &count);
    ck_assert_int_eq(status, tails > 0 ? SC_ERR_STALE : SC_OK);
    if (status == SC_OK) ck_assert_uint_eq(t->gone_count, count);
    model_sync(m, t, true);
}

static void step(struct fuzz *f, struct tr *t, const struct mix *mix)
{
    uint32_t dice = below_n(f, 100);
    if (dice < mix->insert) {
        step_insert(f, t);
    } else if (dice < mix->use) {
        step_use(f, t);
    } else if (dice < mix->lock) {
        step_lock(f, t);
    } else if (dice < mix->unlock) {
        step_unlock(f, t);
    } else if (dice < mix->evict_kv) {
        step_evict(f, t, true);
    } else if (dice < mix->evict_state) {
        step_evict(f, t, false);
    } else {
        step_drop(f, t);
    }
}

static void check_totals(struct fuzz *f, struct tr *t)
{
    struct model *m = &f->m;
    struct sc_radix_stats s = tr_stats(t);
    uint64_t tokens = 0;
    uint64_t marks = 0;
    uint64_t tails = 0;
    uint64_t snapshots = 0;
    uint64_t locked = 0;
    uint64_t locked_states = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        const struct entry *e = &m->entries[i];
        uint32_t start = page_start(m, e->len);
        tokens += e->len - start;
        for (uint32_t at = start; at < e->len; at++) marks += e->key[at] >= M_MARK;
        tails += is_tail(m, e);
        ck_assert(!is_tail(m, e) || e->snapshot != 0);
        snapshots += e->snapshot != 0;
        if (model_locked(m, e->space, e->key, e->len)) locked += e->len - start;
        locked_states += model_state_locked(m, e);
    }
    ck_assert_uint_eq(s.token_count, tokens);
    ck_assert_uint_eq(s.mark_count, marks);
    ck_assert_uint_eq(s.tail_count, tails);
    ck_assert_uint_eq(s.snapshot_count, snapshots);
    ck_assert_uint_eq(s.kv_locked_tokens, locked);
    ck_assert_uint_eq(s.kv_evictable_tokens, s.token_count - s.kv_locked_tokens);
    ck_assert_uint_eq(s.state_locked_count, locked_states);
    ck_assert_uint_eq(s.receipt_count, m->held_count);
}

/* With KV, because ids tell what went. */
static void run_model(uint64_t seed, uint32_t page, uint32_t steps)
{
    static struct fuzz fuzz;
    struct fuzz *f = &fuzz;
    memset(f, 0, sizeof *f);
    BEGIN(.page_tokens = page, .grid_tokens = page * 2, .path_snapshots_max = seed % 2 ? 3 : 0);
    f->m = (struct model){.page = page, .with_kv = true,
        .entries = calloc(M_ENTRIES, sizeof *f->m.entries)};
    ck_assert_ptr_nonnull(f->m.entries);
    sc_prng_seed(&f->prng, seed);
    f->spaces[0] = t->space;
    ck_assert_int_eq(sc_radix_space_add(t->radix, &f->spaces[1]), SC_OK);
    f->snapshot_next = 1;
    f->grid = page * 2;
    f->alphabet = 1 + below_n(f, 4);
    f->mark_ids = below_n(f, 4); /* 0: no marks */
    const struct mix mix = {.insert = 30, .use = 60, .lock = 68, .unlock = 76, .evict_kv = 86,
        .evict_state = 94};
    for (uint32_t i = 0; i < steps; i++) {
        step(f, t, &mix);
        VERIFY(t);
        if (i % 16 == 0) check_totals(f, t);
        while (f->m.count > 400) step_evict(f, t, true);
        if (tr_stats(t).kv_evictable_tokens == 0) step_unlock(f, t);
    }
    (void)fprintf(stderr, "%u hits (%u tails), %u misses, %u tails, conflicts %u (%u of tails)\n",
        f->hits, f->tail_hits, f->misses, f->tails, f->conflicts, f->tail_conflicts);
    ck_assert_uint_gt(f->hits, steps / 50);
    ck_assert_uint_gt(f->misses, steps / 50);
    ck_assert_uint_gt(f->evicted, steps / 10);
    ck_assert_uint_gt(f->conflicts, 0);
    ck_assert_uint_gt(page > 1 ? f->tails : 1, 0);
    ck_assert_uint_gt(page > 1 ? f->tail_hits : 1, 0);
    if (steps >= 4000) {
        ck_assert_uint_gt(page > 1 ? f->tail_conflicts + f->tails_replaced : 1, 0);
    }
    ck_assert_uint_gt(page > 1 ? f->tails_evicted : 1, 0);
    ck_assert_uint_gt(t->kv_causes[SC_RADIX_CAUSE_HISTORY], 0);
    ck_assert_uint_gt(f->replaced, 0);
    while (f->m.held_count > 0) step_unlock(f, t);
    check_totals(f, t);
    tr_evict_kv(t, UINT64_MAX, NULL);
    model_sync(&f->m, t, true);
    ck_assert_uint_eq(f->m.count, 0);
    free(f->m.entries);
    END;
}

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

START_TEST(model__random_operations_agree)
{
    const uint32_t pages[] = {1, 1, 2, 4, 3, 8, 5, 16};
    uint64_t seed = env_number("SC_SEED", 1000 + (uint64_t)_i);
    uint32_t steps = (uint32_t)env_number("SC_STEPS", test_scaled(4000, 2000));
    (void)fprintf(stderr, "SC_SEED=%llu SC_STEPS=%u page %u\n", (unsigned long long)seed, steps,
        pages[_i]);
    run_model(seed, pages[_i], steps);
}
END_TEST

Suite *radix_fuzz_suite(void)
{
    Suite *s = suite_create("radix fuzz");
    TCase *tc = tcase_create("model");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, model__random_operations_agree, 0, 8);
    suite_add_tcase(s, tc);
    return s;
}

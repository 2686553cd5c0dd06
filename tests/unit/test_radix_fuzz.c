/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded random operations against a naive model, the peers' fuzz (T11), deep and wide trees, and a
 * look at the cost of a hot match.
 *
 * The model is a plain list: one entry for each page-aligned prefix that the tree should hold, with
 * its own copy of the tokens, its KV id, history and snapshot. It knows nothing about nodes. */
#include <stdio.h>

#include "base/clock.h"
#include "base/prng.h"
#include "support/test_scale.h"
#include "test_radix.h"

enum { M_ENTRIES = 60000, M_LEN = 64, M_KEYS = 24, M_RECEIPTS = 16 };

struct entry {             /* the prefix key[0, len) of a space */
    int32_t key[M_LEN];
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
    uint32_t kv_balance;            /* ids in the tree */
};

static struct entry *model_find(struct model *m, uint32_t space, const int32_t *key, uint32_t len)
{
    for (uint32_t i = 0; i < m->count; i++) {
        struct entry *e = &m->entries[i];
        if (e->space == space && e->len == len && memcmp(e->key, key, len * 4) == 0) return e;
    }
    return NULL;
}

/* True when something at or below key[0, len) is locked, or for `exact` its snapshot is. */
static bool model_locked(const struct model *m, uint32_t space, const int32_t *key, uint32_t len)
{
    for (uint32_t i = 0; i < m->held_count; i++) {
        const struct held *h = &m->held[i];
        if (h->what != 0 && h->space == space && h->len >= len &&
            memcmp(h->key, key, len * 4) == 0) {
            return true;
        }
    }
    return false;
}

static bool model_state_locked(const struct model *m, const struct entry *e)
{
    for (uint32_t i = 0; i < m->held_count; i++) {
        const struct held *h = &m->held[i];
        if (h->what & LOCK_STATE && h->space == e->space && h->len == e->len &&
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

/* What the tree should answer to an insert, and what it should hold afterwards. */
static void model_insert(struct model *m, const struct sc_radix_insert *in,
    struct sc_radix_inserted *want, sc_status *save_status, int32_t *canonical)
{
    uint32_t run = 0;
    uint32_t at = 0;
    bool stop = false;
    for (; at < in->token_count; at += m->page) {
        while (run + 1 < in->run_count && in->runs[run + 1].start <= at) run++;
        struct entry *e = model_find(m, in->space, in->tokens, at + m->page);
        if (!e) break;
        if (e->history == in->runs[run].history) continue;
        stop = model_locked(m, in->space, in->tokens, at + m->page);
        for (uint32_t i = 0; i < m->count; i++) {
            if (below(&m->entries[i], in->space, in->tokens, at + m->page) &&
                m->entries[i].snapshot != 0) {
                stop = true;
            }
        }
        for (uint32_t i = 0; !stop && i < m->count;) { /* replaced */
            if (below(&m->entries[i], in->space, in->tokens, at + m->page)) {
                m->entries[i] = m->entries[--m->count];
            } else {
                i++;
            }
        }
        break;
    }
    want->prefix_len = at;
    want->len = stop ? at : in->token_count;
    want->conflict_len = want->len;
    run = 0;
    for (; at < want->len; at += m->page) {
        while (run + 1 < in->run_count && in->runs[run + 1].start <= at) run++;
        ck_assert_uint_lt(m->count, M_ENTRIES);
        struct entry *e = &m->entries[m->count++];
        *e = (struct entry){.space = in->space, .len = at + m->page,
            .history = in->runs[run].history, .kv = m->with_kv ? in->kv_ids[at / m->page] : 0};
        memcpy(e->key, in->tokens, e->len * 4);
    }
    for (uint32_t i = 0; i < in->save_count; i++) {
        save_status[i] = SC_ERR_MISMATCH;
        if (in->saves[i].len > want->len) continue;
        struct entry *e = model_find(m, in->space, in->tokens, in->saves[i].len);
        save_status[i] = e->snapshot != 0 ? SC_ERR_BUSY : SC_OK;
        if (e->snapshot != 0) continue;
        e->snapshot = in->saves[i].snapshot;
        e->tombstone = false;
    }
    for (uint32_t end = m->page; end <= want->len; end += m->page) {
        canonical[end / m->page - 1] = model_find(m, in->space, in->tokens, end)->kv;
    }
}

static void model_check_match(struct model *m, const struct tr *t, uint32_t space,
    const int32_t *key, uint32_t count, uint32_t len_max, uint32_t grid)
{
    struct sc_radix_match want = {0};
    for (uint32_t len = m->page; len <= count && len <= len_max; len += m->page) {
        const struct entry *e = model_find(m, space, key, len);
        if (!e) break;
        want.kv_len = len;
        if (e->snapshot != 0) {
            want.state_len = len;
            want.snapshot = e->snapshot;
            want.evicted_len = 0;
        } else if (e->tombstone) {
            want.evicted_len = len;
        }
    }
    uint32_t branch = want.kv_len - want.kv_len % grid;
    want.branch_len = branch > want.state_len ? branch : 0;
    struct sc_radix_match got;
    ck_assert_int_eq(sc_radix_match(t->radix, space, key, count, len_max, &got), SC_OK);
    ck_assert_uint_eq(got.kv_len, want.kv_len);
    ck_assert_uint_eq(got.state_len, want.state_len);
    ck_assert_uint_eq(got.snapshot, want.snapshot);
    ck_assert_uint_eq(got.branch_len, want.branch_len);
    ck_assert_uint_eq(got.evicted_len, want.evicted_len);
    ck_assert_uint_eq(got.node != 0, want.kv_len != 0);
    ck_assert_uint_eq(got.state_node != 0, want.state_len != 0);
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
    uint32_t spaces[2], alphabet, grid, snapshot_next, hits, misses, conflicts;
    uint64_t evicted;
};

static uint32_t below_n(struct fuzz *f, uint32_t n) { return (uint32_t)sc_prng_below(&f->prng, n); }

/* Mostly a known key, perhaps cut and grown; else a fresh one over a small alphabet. */
static uint32_t random_key(struct fuzz *f, int32_t *key)
{
    uint32_t len = 0;
    memset(key, 0, M_LEN * 4);
    if (f->m.count > 0 && below_n(f, 10) < 7) {
        const struct entry *e = &f->m.entries[below_n(f, f->m.count)];
        len = e->len - below_n(f, e->len / f->m.page + 1) * f->m.page * (below_n(f, 3) == 0);
        memcpy(key, e->key, len * 4);
    }
    uint32_t room = (M_LEN - len) / f->m.page;
    uint32_t grow = room == 0 ? 0 : below_n(f, room < 12 ? room + 1 : 12);
    for (uint32_t i = 0; i < grow * f->m.page; i++) {
        key[len++] = (int32_t)below_n(f, f->alphabet);
    }
    return len;
}

static void step_insert(struct fuzz *f, struct tr *t)
{
    struct model *m = &f->m;
    int32_t key[M_LEN];
    int32_t ids[M_LEN];
    int32_t canonical[M_LEN];
    int32_t want_canonical[M_LEN];
    uint32_t len = random_key(f, key);
    for (uint32_t i = 0; i < len / m->page; i++) ids[i] = t->kv_next++;
    struct sc_radix_run runs[3] = {{0, below_n(f, 8) == 0}};
    uint32_t run_count = 1;
    while (run_count < 3 && len > 0 && below_n(f, 3) == 0) {
        uint32_t start = below_n(f, len / m->page) * m->page;
        if (start <= runs[run_count - 1].start) break;
        runs[run_count++] = (struct sc_radix_run){start, below_n(f, 3) == 0};
    }
    struct sc_radix_save saves[4];
    uint32_t save_count = 0;
    for (uint32_t at = m->page; at <= len && save_count < 4; at += m->page) {
        if (below_n(f, at == len ? 2 : 10) != 0) continue;
        saves[save_count++] = (struct sc_radix_save){at, f->snapshot_next++};
    }
    struct sc_radix_insert in = {.space = f->spaces[below_n(f, 2)], .tokens = key,
        .token_count = len, .kv_ids = m->with_kv ? ids : NULL, .runs = runs,
        .run_count = run_count, .saves = saves, .save_count = save_count};
    struct sc_radix_inserted want = {0};
    struct sc_radix_inserted got;
    sc_status each[4];
    sc_status want_each[4];
    ck_assert_int_eq(sc_radix_insert(t->radix, &in, &t->sink, canonical, each, &got), SC_OK);
    /* Large branches count as in use; the model has no nodes to count, so keep them small. */
    model_insert(m, &in, &want, want_each, want_canonical);
    ck_assert_uint_eq(got.len, want.len);
    ck_assert_uint_eq(got.prefix_len, want.prefix_len);
    ck_assert_uint_eq(got.conflict_len, want.conflict_len);
    if (got.len < len) f->conflicts++;
    for (uint32_t i = 0; i < save_count; i++) ck_assert_int_eq(each[i], want_each[i]);
    if (m->with_kv) ck_assert_mem_eq(canonical, want_canonical, got.len / m->page * 4);
    if (got.len > 0) ck_assert_uint_eq(tr_info(t, got.node).end, got.len);
    ck_assert_uint_eq(t->gone_count, 0); /* a branch with snapshots is never replaced */
    model_sync(m, t, false);
}

static void step_use(struct fuzz *f, struct tr *t)
{
    int32_t key[M_LEN];
    uint32_t len = random_key(f, key);
    uint32_t space = f->spaces[below_n(f, 2)];
    uint32_t len_max = below_n(f, 3) == 0 ? below_n(f, M_LEN) : UINT32_MAX;
    model_check_match(&f->m, t, space, key, len, len_max, f->grid);
    struct sc_radix_match match;
    ck_assert_int_eq(sc_radix_match(t->radix, space, key, len, len_max, &match), SC_OK);
    if (match.state_len > 0) {
        f->hits++;
    } else {
        f->misses++;
    }
    if (below_n(f, 2) == 0) sc_radix_touch(t->radix, &match);
}

static void step_lock(struct fuzz *f, struct tr *t)
{
    struct model *m = &f->m;
    if (m->held_count == M_RECEIPTS || m->count == 0) return;
    const struct entry *e = &m->entries[below_n(f, m->count)];
    struct sc_radix_match match;
    ck_assert_int_eq(sc_radix_match(t->radix, e->space, e->key, e->len, e->len, &match), SC_OK);
    /* A lock takes the whole node: lock at node ends only, where model and tree agree. */
    if (tr_info(t, match.node).end != e->len) return;
    struct held *h = &m->held[m->held_count++];
    *h = (struct held){.space = e->space, .len = e->len};
    memcpy(h->key, e->key, e->len * 4);
    uint32_t what = 1 + below_n(f, 3);
    sc_node node;
    ck_assert_int_eq(sc_radix_lock(t->radix, match.node, what, &h->receipt), SC_OK);
    ck_assert_int_eq(sc_radix_receipt_get(t->radix, h->receipt, &node, &h->what), SC_OK);
    ck_assert_uint_eq(node, match.node);
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

static void step_evict(struct fuzz *f, struct tr *t, bool kv)
{
    struct model *m = &f->m;
    struct sc_radix_stats before = tr_stats(t);
    uint32_t snapshots = 0;
    uint64_t tokens = 0;
    uint32_t want = below_n(f, 30);
    if (kv) {
        ck_assert_int_eq(sc_radix_evict_kv(t->radix, want, &t->sink, &tokens, &snapshots), SC_OK);
        ck_assert(tokens >= want || tr_stats(t).kv_evictable_tokens == 0);
        ck_assert_uint_eq(t->kv_count, tokens / m->page);
    } else {
        want = below_n(f, 3);
        ck_assert_int_eq(sc_radix_evict_state(t->radix, want, &t->sink, &snapshots), SC_OK);
        ck_assert(snapshots == want || tr_stats(t).state_evictable_count == 0);
        ck_assert_uint_eq(t->kv_count, 0);
    }
    ck_assert_uint_eq(t->gone_count, snapshots);
    struct sc_radix_stats after = tr_stats(t);
    ck_assert_uint_eq(before.token_count - after.token_count, tokens);
    ck_assert_uint_eq(before.snapshot_count - after.snapshot_count, snapshots);
    f->evicted += tokens + snapshots;
    model_sync(m, t, true);
}

static void step_drop(struct fuzz *f, struct tr *t)
{
    struct model *m = &f->m;
    if (m->count == 0) return;
    const struct entry *e = &m->entries[below_n(f, m->count)];
    struct sc_radix_match match;
    ck_assert_int_eq(sc_radix_match(t->radix, e->space, e->key, e->len, e->len, &match), SC_OK);
    if (tr_info(t, match.node).end != e->len) return;
    sc_status want = e->snapshot == 0 ? SC_ERR_NOT_FOUND :
        model_state_locked(m, e) ? SC_ERR_BUSY : SC_OK;
    ck_assert_int_eq(sc_radix_snapshot_drop(t->radix, match.node, &t->sink), want);
    model_sync(m, t, true);
    uint32_t count;
    ck_assert_int_eq(sc_radix_evict_excess(t->radix, match.node, &t->sink, &count), SC_OK);
    ck_assert_uint_eq(t->gone_count, count);
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
    uint64_t snapshots = 0;
    uint64_t locked_pages = 0;
    uint64_t locked_states = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        const struct entry *e = &m->entries[i];
        snapshots += e->snapshot != 0;
        locked_pages += model_locked(m, e->space, e->key, e->len);
        locked_states += model_state_locked(m, e);
    }
    ck_assert_uint_eq(s.token_count, (uint64_t)m->count * m->page);
    ck_assert_uint_eq(s.snapshot_count, snapshots);
    ck_assert_uint_eq(s.kv_locked_tokens, locked_pages * m->page);
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
    f->alphabet = 2 + below_n(f, 3);
    const struct mix mix = {.insert = 30, .use = 60, .lock = 68, .unlock = 76, .evict_kv = 86,
        .evict_state = 94};
    for (uint32_t i = 0; i < steps; i++) {
        step(f, t, &mix);
        VERIFY(t);
        if (i % 16 == 0) check_totals(f, t);
        while (f->m.count > 400) step_evict(f, t, true);
        if (tr_stats(t).kv_evictable_tokens == 0) step_unlock(f, t);
    }
    ck_assert_uint_gt(f->hits, steps / 50);
    ck_assert_uint_gt(f->misses, steps / 50);
    ck_assert_uint_gt(f->evicted, steps / 10);
    ck_assert_uint_gt(f->conflicts, 0);
    ck_assert_uint_gt(t->kv_causes[SC_RADIX_CAUSE_HISTORY], 0);
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
    const uint32_t pages[] = {1, 1, 2, 4};
    uint64_t seed = env_number("SC_SEED", 1000 + (uint64_t)_i);
    uint32_t steps = (uint32_t)env_number("SC_STEPS", test_scaled(6000, 2000));
    (void)fprintf(stderr, "SC_SEED=%llu SC_STEPS=%u page %u\n", (unsigned long long)seed, steps,
        pages[_i]);
    run_model(seed, pages[_i], steps);
}
END_TEST

/* --- T11 --- */

enum { T11_SEQUENCES = 1500, T11_CAP = 150000, T11_STATES = 600 };

struct seq { uint32_t parent, first, len; int32_t token; }; /* parent's tokens, then own ones */

/* Tokens of sequence s into `out`; returns how many. */
static uint32_t seq_tokens(const struct seq *seqs, uint32_t s, int32_t *out)
{
    uint32_t end = seqs[s].first + seqs[s].len;
    for (uint32_t at = s;; at = seqs[at].parent) {
        for (uint32_t i = 0; i < seqs[at].len; i++) out[seqs[at].first + i] = seqs[at].token;
        if (at == 0) return end;
    }
}

START_TEST(t11__growth_and_fan_out)
{
    static struct seq seqs[T11_SEQUENCES];
    static uint32_t order[T11_SEQUENCES];
    static int32_t key[65536];
    struct sc_prng prng;
    sc_prng_seed(&prng, 42);
    BEGIN(.grid_tokens = 64);
    uint32_t n = 1;
    seqs[0] = (struct seq){0, 0, 16, 7};
    while (n < T11_SEQUENCES) {
        uint32_t parent = (uint32_t)sc_prng_below(&prng, n);
        uint32_t first = seqs[parent].first + seqs[parent].len;
        uint32_t children = sc_prng_below(&prng, 2) ? 1 : 2 + (uint32_t)sc_prng_below(&prng, 9);
        if (first + 256 > 65536) continue;
        for (uint32_t c = 0; c < children && n < T11_SEQUENCES; c++) {
            seqs[n++] = (struct seq){parent, first, 1 + (uint32_t)sc_prng_below(&prng, 256),
                (int32_t)sc_prng_below(&prng, 32000)};
        }
    }
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)sc_prng_below(&prng, i);
        uint32_t kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
    uint64_t inserted_ids = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t len = seq_tokens(seqs, order[i], key);
        uint64_t got;
        uint32_t count;
        struct sc_radix_stats s = tr_stats(t);
        if (s.token_count + len > T11_CAP) {
            ck_assert_int_eq(sc_radix_evict_kv(t->radix, 2 * len, &t->sink, &got, &count), SC_OK);
        }
        if (s.snapshot_count >= T11_STATES) {
            ck_assert_int_eq(sc_radix_evict_state(t->radix, 2, &t->sink, &count), SC_OK);
        }
        struct sc_radix_run run = {0, 0};
        struct sc_radix_save save = {len, i + 1};
        ck_assert_int_eq(tr_insert_runs(t, key, len, &run, 1, &save, 1), SC_OK);
        inserted_ids += len - t->in.prefix_len;
        ck_assert_uint_eq(tr_match(t, key, len).state_len, len);
        if (i % 100 == 0) {
            VERIFY(t);
            s = tr_stats(t);
            ck_assert_uint_eq(s.kv_evictable_tokens + s.kv_locked_tokens, s.token_count);
            ck_assert_uint_eq(s.token_count + t->kv_count, inserted_ids);
        }
    }
    ck_assert_uint_gt(t->kv_count, 0);
    END;
}
END_TEST

/* --- T13: shape --- */

START_TEST(t13__deep_chain)
{
    enum { N = 100000 };
    static int32_t key[N];
    BEGIN();
    tr_fill(key, N, 0);
    /* One node a token: each insert adds one to the chain. History changes at each token. */
    struct sc_radix_run *runs = malloc(N * sizeof *runs);
    ck_assert_ptr_nonnull(runs);
    for (uint32_t i = 0; i < N; i++) runs[i] = (struct sc_radix_run){i, i};
    ck_assert_int_eq(tr_insert_runs(t, key, N, runs, N, NULL, 0), SC_OK);
    free(runs);
    ck_assert_uint_eq(tr_stats(t).node_count, N);
    VERIFY(t);
    struct sc_radix_match m = tr_match(t, key, N);
    ck_assert_uint_eq(m.kv_len, N);
    struct sc_radix_receipt receipt = tr_lock(t, m.node, LOCK_KV);
    ck_assert_uint_eq(tr_stats(t).kv_locked_tokens, N);
    uint64_t start = sc_clock_now_ns();
    for (uint32_t i = 0; i < 100000; i++) { /* further locks do not walk the chain */
        struct sc_radix_receipt again;
        ck_assert_int_eq(sc_radix_lock(t->radix, m.node, LOCK_KV, &again), SC_OK);
        ck_assert_int_eq(sc_radix_unlock(t->radix, again), SC_OK);
    }
    ck_assert_uint_lt(sc_clock_now_ns() - start, UINT64_C(20000000000));
    tr_unlock(t, receipt);
    char *text = tr_dump(t);
    ck_assert_ptr_nonnull(text);
    free(text);
    ck_assert_uint_eq(tr_evict_kv(t, N / 2, NULL), N / 2);
    ck_assert_int_eq(sc_radix_space_remove(t->radix, t->space, &t->sink), SC_OK);
    ck_assert_uint_eq(tr_stats(t).node_count, 0);
    END;
}
END_TEST

START_TEST(t13__wide_fan_out)
{
    enum { N = 10000 };
    BEGIN();
    struct sc_radix_run run = {0, 0};
    for (int32_t i = 0; i < N; i++) {
        struct sc_radix_save save = {3, (uint32_t)i + 1};
        ck_assert_int_eq(tr_insert_runs(t, KEY(5, 6, i), &run, 1, &save, 1), SC_OK);
    }
    VERIFY(t);
    for (int32_t i = 0; i < N; i++) {
        ck_assert_uint_eq(tr_match(t, KEY(5, 6, i)).snapshot, (uint32_t)i + 1);
    }
    ck_assert_uint_eq(tr_match(t, KEY(5, 6, N)).kv_len, 2);
    ck_assert_uint_eq(tr_evict_kv(t, N / 2, NULL), N / 2);
    for (int32_t i = 0; i < N; i++) {
        ck_assert_uint_eq(tr_match(t, KEY(5, 6, i)).state_len, i < N / 2 ? 0 : 3);
    }
    ck_assert_uint_eq(tr_evict_kv(t, N, NULL), N / 2 + 2);
    END;
}
END_TEST

/* Not a benchmark: prints, and fails only when something is wrong by orders of magnitude. */
START_TEST(cost__hot_match_of_9k_tokens)
{
    enum { N = 9000, ROUNDS = 2000 };
    static int32_t key[N];
    BEGIN();
    tr_fill(key, N, 1);
    tr_insert(t, key, N, 1);
    uint64_t start = sc_clock_now_ns();
    uint64_t total = 0;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        struct sc_radix_match m;
        (void)sc_radix_match(t->radix, t->space, key, N, N, &m);
        total += m.state_len;
    }
    uint64_t each = (sc_clock_now_ns() - start) / ROUNDS;
    ck_assert_uint_eq(total, (uint64_t)N * ROUNDS);
    (void)fprintf(stderr, "hot match of %d tokens: %llu ns\n", N, (unsigned long long)each);
    ck_assert_uint_lt(each, 2000000);
    END;
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

Suite *radix_fuzz_suite(void)
{
    Suite *s = suite_create("radix fuzz");
    TCase *tc = tcase_create("model");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, model__random_operations_agree, 0, 4);
    suite_add_tcase(s, tc);
    tc = tcase_create("shape and cost");
    tcase_set_timeout(tc, 240);
    ADD(t11__growth_and_fan_out); ADD(t13__deep_chain); ADD(t13__wide_fan_out);
    ADD(cost__hot_match_of_9k_tokens);
    suite_add_tcase(s, tc);
    return s;
}

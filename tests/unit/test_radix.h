/* SPDX-License-Identifier: Apache-2.0 */
/* What the radix tests share: a tree with a recording sink, and short forms of the calls. Each
 * short form that mutates verifies the whole tree afterwards. */
#ifndef SC_TEST_RADIX_H
#define SC_TEST_RADIX_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "radix/radix.h"
#include "support/fail_alloc.h"

Suite *radix_scenario_suite(void);
Suite *radix_insert_suite(void);
Suite *radix_evict_suite(void);
Suite *radix_args_suite(void);
Suite *radix_marks_suite(void);
Suite *radix_tails_suite(void);
Suite *radix_fuzz_suite(void);
Suite *radix_shape_suite(void);
Suite *radix_storage_suite(void);

struct tr {
    struct sc_radix *radix;
    uint32_t space, page;
    bool with_kv;
    struct sc_radix_sink sink;
    int32_t kv_next;        /* next KV id that nobody has */
    int32_t *kv;            /* what came back */
    uint32_t kv_count, kv_cap;
    struct { uint32_t snapshot; enum sc_radix_cause cause; } gone[4096];
    uint32_t gone_count;
    uint32_t kv_causes[SC_RADIX_CAUSE_COUNT]; /* ids by cause */
    struct sc_radix_inserted in;              /* of the last insert */
    sc_status save_status[64];
    int32_t canonical[70000];
};

/* A key in place: KEY(1, 2, 3) is "tokens, count". */
#define KEY(...)                                                                                   \
    (const int32_t[]){__VA_ARGS__}, (uint32_t)(sizeof((const int32_t[]){__VA_ARGS__}) / 4)

#define VERIFY(t) ck_assert_msg(sc_radix_verify((t)->radix) == SC_OK, "%s", sc_last_error()->text)

static inline void tr_sink_kv(void *ctx, const int32_t *ids, uint32_t count,
    enum sc_radix_cause cause)
{
    struct tr *t = ctx;
    if (t->kv_count + count > t->kv_cap) {
        t->kv_cap = (t->kv_count + count) * 2;
        t->kv = realloc(t->kv, t->kv_cap * sizeof *t->kv);
        ck_assert_ptr_nonnull(t->kv);
    }
    memcpy(t->kv + t->kv_count, ids, count * sizeof *ids);
    t->kv_count += count;
    t->kv_causes[cause] += count;
}

static inline void tr_sink_snapshot(void *ctx, uint32_t snapshot, enum sc_radix_cause cause)
{
    struct tr *t = ctx;
    uint32_t at = t->gone_count++ % 4096;
    t->gone[at].snapshot = snapshot;
    t->gone[at].cause = cause;
}

static inline void tr_open(struct tr *t, struct sc_radix_options options)
{
    memset(t, 0, sizeof *t);
    if (options.page_tokens == 0) options.page_tokens = 1;
    if (options.grid_tokens == 0) options.grid_tokens = options.page_tokens;
    ck_assert_int_eq(sc_radix_create(&options, &t->radix), SC_OK);
    ck_assert_int_eq(sc_radix_space_add(t->radix, &t->space), SC_OK);
    t->page = options.page_tokens;
    t->with_kv = options.with_kv;
    t->kv_next = 1000;
    t->sink = (struct sc_radix_sink){t, tr_sink_kv, tr_sink_snapshot};
    VERIFY(t);
}

static inline void tr_close(struct tr *t)
{
    VERIFY(t);
    sc_radix_destroy(t->radix);
    free(t->kv);
}

/* Inserts with fresh KV ids, one for a partial page too; the answer is in t->in, t->save_status,
 * t->canonical. */
static inline sc_status tr_insert_key(struct tr *t, const struct sc_radix_key *key,
    const struct sc_radix_run *runs, uint32_t run_count, const struct sc_radix_save *saves,
    uint32_t save_count)
{
    uint32_t pages = key->token_count / t->page + (key->token_count % t->page != 0);
    int32_t *ids = malloc((pages + 1) * sizeof *ids);
    ck_assert_ptr_nonnull(ids);
    for (uint32_t i = 0; i < pages; i++) ids[i] = t->kv_next++;
    struct sc_radix_insert insert = {.space = t->space, .tokens = key->tokens,
        .token_count = key->token_count, .kv_ids = t->with_kv ? ids : NULL, .runs = runs,
        .run_count = run_count, .saves = saves, .save_count = save_count, .marks = key->marks,
        .mark_count = key->mark_count};
    sc_status status = sc_radix_insert(t->radix, &insert, &t->sink,
        pages <= 70000 ? t->canonical : NULL, t->save_status, &t->in);
    free(ids);
    return status;
}

static inline sc_status tr_insert_runs(struct tr *t, const int32_t *tokens, uint32_t count,
    const struct sc_radix_run *runs, uint32_t run_count, const struct sc_radix_save *saves,
    uint32_t save_count)
{
    struct sc_radix_key key = {.tokens = tokens, .token_count = count};
    return tr_insert_key(t, &key, runs, run_count, saves, save_count);
}

/* One run of history 0, a snapshot at the end unless 0. Returns prefix_len. */
static inline uint32_t tr_put(struct tr *t, struct sc_radix_key key, uint32_t snapshot)
{
    struct sc_radix_run run = {0, 0};
    struct sc_radix_save save = {key.token_count, snapshot};
    sc_status status = tr_insert_key(t, &key, &run, 1, &save, snapshot != 0);
    ck_assert_msg(status == SC_OK, "%s", sc_last_error()->text);
    VERIFY(t);
    return t->in.prefix_len;
}

static inline uint32_t tr_insert(struct tr *t, const int32_t *tokens, uint32_t count,
    uint32_t snapshot)
{
    return tr_put(t, (struct sc_radix_key){.tokens = tokens, .token_count = count}, snapshot);
}

static inline struct sc_radix_match tr_find_max(const struct tr *t, struct sc_radix_key key,
    uint32_t len_max)
{
    struct sc_radix_match match;
    ck_assert_int_eq(sc_radix_match(t->radix, t->space, &key, len_max, &match), SC_OK);
    return match;
}

static inline struct sc_radix_match tr_find(const struct tr *t, struct sc_radix_key key)
{
    return tr_find_max(t, key, key.token_count);
}

static inline struct sc_radix_match tr_match_max(const struct tr *t, const int32_t *tokens,
    uint32_t count, uint32_t len_max)
{
    return tr_find_max(t, (struct sc_radix_key){.tokens = tokens, .token_count = count}, len_max);
}

static inline struct sc_radix_match tr_match(const struct tr *t, const int32_t *tokens,
    uint32_t count)
{
    return tr_match_max(t, tokens, count, count);
}

/* A match that is then used. */
static inline struct sc_radix_match tr_use(struct tr *t, const int32_t *tokens, uint32_t count)
{
    struct sc_radix_match match = tr_match(t, tokens, count);
    sc_radix_touch(t->radix, &match);
    VERIFY(t);
    return match;
}

static inline uint32_t tr_evict_state(struct tr *t, uint32_t count)
{
    uint32_t got;
    ck_assert_int_eq(sc_radix_evict_state(t->radix, count, &t->sink, &got), SC_OK);
    VERIFY(t);
    return got;
}

static inline uint64_t tr_evict_kv(struct tr *t, uint64_t tokens, uint32_t *snapshots_out)
{
    uint64_t got;
    uint32_t snapshots;
    ck_assert_int_eq(sc_radix_evict_kv(t->radix, tokens, &t->sink, &got, &snapshots), SC_OK);
    VERIFY(t);
    if (snapshots_out) *snapshots_out = snapshots;
    return got;
}

static inline struct sc_radix_receipt tr_lock(struct tr *t, sc_node node, uint32_t what)
{
    struct sc_radix_receipt receipt;
    ck_assert_int_eq(sc_radix_lock(t->radix, node, what, &receipt), SC_OK);
    VERIFY(t);
    return receipt;
}

static inline void tr_unlock(struct tr *t, struct sc_radix_receipt receipt)
{
    ck_assert_int_eq(sc_radix_unlock(t->radix, receipt), SC_OK);
    VERIFY(t);
}

static inline struct sc_radix_node_info tr_info(const struct tr *t, sc_node node)
{
    struct sc_radix_node_info info;
    ck_assert_int_eq(sc_radix_node_get(t->radix, node, &info), SC_OK);
    return info;
}

static inline struct sc_radix_stats tr_stats(const struct tr *t)
{
    struct sc_radix_stats stats;
    sc_radix_stats_get(t->radix, &stats);
    return stats;
}

/* The picture as one string; the caller frees it. */
struct tr_text { char *text; size_t used, cap; };
static inline void tr_text_add(void *ctx, const char *line)
{
    struct tr_text *out = ctx;
    size_t n = strlen(line);
    if (out->used + n + 2 > out->cap) {
        out->cap = (out->used + n + 2) * 2;
        out->text = realloc(out->text, out->cap);
        ck_assert_ptr_nonnull(out->text);
    }
    memcpy(out->text + out->used, line, n);
    out->used += n;
    out->text[out->used++] = '\n';
    out->text[out->used] = '\0';
}
static inline char *tr_dump(const struct tr *t)
{
    struct tr_text out = {0};
    ck_assert_int_eq(sc_radix_dump(t->radix, t->space, tr_text_add, &out), SC_OK);
    return out.text;
}

/* The frame of a test: `t` is a fresh tree. */
#define OPEN(kv, ...)                                                                              \
    static struct tr tree;                                                                         \
    struct tr *t = &tree;                                                                          \
    tr_open(t, (struct sc_radix_options){.with_kv = (kv), __VA_ARGS__})
#define BEGIN(...) OPEN(true, __VA_ARGS__)
#define END tr_close(t)

static inline void tr_fill(int32_t *tokens, uint32_t count, int32_t first)
{
    for (uint32_t i = 0; i < count; i++) tokens[i] = first + (int32_t)i;
}

enum { LOCK_KV = SC_RADIX_LOCK_KV, LOCK_STATE = SC_RADIX_LOCK_STATE,
    LOCK_BOTH = SC_RADIX_LOCK_KV | SC_RADIX_LOCK_STATE };

#endif

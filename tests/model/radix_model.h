/* SPDX-License-Identifier: Apache-2.0 */
/* The naive index that radix/ is compared with: a list of pages, each with its whole prefix.
 *
 * It knows no nodes. What the real tree does to nodes is restated for pages: a page can go when
 * nothing hangs below it and nothing holds it; locks and snapshots stand at the end of a page;
 * every use of a path gives its pages one tick. Where the real tree must take a whole leaf, the
 * model takes what it was told and checks that it was the oldest that could go. */
#ifndef TESTS_MODEL_RADIX_MODEL_H
#define TESTS_MODEL_RADIX_MODEL_H

#include "base/prng.h"
#include "radix/radix.h"
#include "support/fail_alloc.h"

enum { KEY_MAX = 64, PAGES_MAX = 4096, RECEIPTS_MAX = 24, SPACES_MAX = 3, NODES_MAX = 4096 };

struct prefix {
    uint32_t space, len;
    uint64_t hash;
    int32_t tokens[KEY_MAX];
};

struct page {
    struct prefix prefix;
    int32_t id;
    uint64_t history, tick;
    uint32_t snapshot;      /* 0: none */
    bool tombstone;
    uint64_t state_tick;
    uint32_t locks, state_locks; /* receipts that hold this page; its snapshot */
    bool seen;
};

struct receipt {
    bool used;
    struct sc_radix_receipt handle;
    struct prefix prefix;
    uint32_t what;          /* really taken */
};

struct node {
    sc_node id;
    struct prefix prefix;   /* up to its end */
    struct sc_radix_node_info info;
};

struct rworld {
    uint64_t seed, step;
    struct sc_prng rng;
    struct fail_alloc fa;
    struct sc_radix *radix;
    uint32_t page, grid, cap, alphabet, key_pages;
    uint64_t token_max;
    bool with_kv, flaky;
    uint32_t spaces[SPACES_MAX];   /* 0: not open */
    struct page *pages;
    uint32_t page_count;
    struct receipt receipts[RECEIPTS_MAX];
    struct node *nodes;            /* of the last walk */
    uint32_t node_count;
    uint64_t clock;
    int32_t next_id;
    uint32_t next_snapshot;
    /* What the sink was told in this call. */
    enum sc_radix_cause cause;     /* that kv spans must carry */
    bool ordered;                  /* KV goes by age */
    uint64_t gone_tokens, last_gone_tokens;
    uint32_t gone_snapshots;
};

_Noreturn void rfail(const struct rworld *w, const char *file, int line, const char *cond,
    const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#define RCHECK(w, cond, ...)                                                                       \
    do {                                                                                           \
        if (!(cond)) rfail((w), __FILE__, __LINE__, #cond, ": " __VA_ARGS__);                      \
    } while (0)

struct prefix prefix_of(uint32_t space, const int32_t *tokens, uint32_t len);
/* `a` is `b` or a beginning of it. */
bool prefix_within(const struct prefix *a, const struct prefix *b);
struct page *page_find(struct rworld *w, uint32_t space, const int32_t *tokens, uint32_t len);
void page_remove(struct rworld *w, struct page *page);
uint32_t page_children(const struct rworld *w, const struct page *page);
/* Every page of the path gets a new tick. */
void path_use(struct rworld *w, const struct prefix *path);
void path_lock(struct rworld *w, const struct prefix *path, uint32_t what, int by);
/* Oldest evictable snapshot, NULL if none. */
struct page *state_oldest(struct rworld *w);
/* Without KV: pages from this one up from which nothing can be resumed go. */
void barren_remove_model(struct rworld *w, const struct prefix *from);
struct sc_radix_match model_match(struct rworld *w, uint32_t space, const int32_t *tokens,
    uint32_t count, uint32_t len_max);

/* Walks the real tree, refills w->nodes and compares everything. */
void compare_all(struct rworld *w);
const struct node *node_by_id(const struct rworld *w, sc_node id);
struct sc_radix_sink model_sink(struct rworld *w);

#endif

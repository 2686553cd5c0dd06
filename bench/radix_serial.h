/* SPDX-License-Identifier: Apache-2.0 */
/* One thread on one tree: match, insert, evict, lock, memory, each beside its limit. */
#ifndef BENCH_RADIX_SERIAL_H
#define BENCH_RADIX_SERIAL_H

#include "radix/radix.h"
#include "radix_load.h"
#include "radix_memory.h"
#include "radix_rows.h"

/* A tree with one space, and a place that ids go to when they leave. */
struct radix_tree {
    struct sc_radix *radix;
    uint32_t space;
    bool with_kv;
    struct sc_radix_sink sink;
    int32_t *freed;            /* a ring */
    size_t freed_at;
    const int32_t *ids;        /* for inserts */
    struct radix_memory before; /* of the process, when the tree began */
};
void radix_tree_open(struct radix_tree *tree, bool with_kv);
void radix_tree_close(struct radix_tree *tree);
void radix_tree_insert(struct radix_tree *tree, const int32_t *tokens, uint32_t count);
/* The same, where the path to the end of `from` is held. Returns the last node. */
sc_node radix_tree_insert_from(struct radix_tree *tree, sc_node from, const int32_t *tokens,
    uint32_t count);
/* Match, and the ids as spans. Returns the matched length. */
uint32_t radix_tree_match(const struct radix_tree *tree, const int32_t *tokens, uint32_t count,
    struct sc_radix_match *match_out);
/* Returns how many tokens went. */
uint64_t radix_tree_evict(struct radix_tree *tree, uint64_t tokens);
struct sc_radix_stats radix_tree_stats(const struct radix_tree *tree);
/* Gives memory back to the system. */
void radix_tree_trim(struct radix_tree *tree);

void radix_serial_run(struct radix_load *load, struct radix_rows *rows);

#endif

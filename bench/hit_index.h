/* SPDX-License-Identifier: Apache-2.0 */
/* The index as the hit benchmark uses it: a token is a block, a page a token, ids mean nothing. */
#ifndef BENCH_HIT_INDEX_H
#define BENCH_HIT_INDEX_H

#include "hit.h"

struct hit_index {
    struct sc_radix *radix;
    struct sc_radix_sink sink;
    uint32_t space, snapshot; /* last snapshot id */
    int32_t *ids;             /* [longest] */
    uint32_t *block_of;       /* snapshot -> its last block */
    size_t block_cap;
    uint64_t evicted;
    double state_bytes, block_bytes;
};

struct hit_match {
    uint32_t held;      /* blocks of KV */
    uint32_t resumed;   /* blocks, of a snapshot that may be used */
    uint32_t deepest;   /* blocks, of one that may not, 0: there is none */
    sc_node state_node;
    struct sc_radix_receipt receipt;
};

void hit_index_init(struct hit_index *index, const struct hit_trace *trace, double state_bytes,
    double block_bytes);
void hit_index_deinit(struct hit_index *index);
/* Looks up, cuts the path where it stops being held, and locks it. */
void hit_index_match(struct hit_index *index, const int32_t *tokens, uint32_t blocks,
    uint32_t usable, struct hit_match *match);
void hit_index_touch(struct hit_index *index, const struct hit_trace *trace, size_t request,
    uint32_t blocks);
void hit_index_unlock(struct hit_index *index, const struct hit_match *match);
/* Puts a path of `blocks` in, with a snapshot at their end, and locks them; its node,
 * or NONE where one stands already. */
sc_node hit_index_insert(struct hit_index *index, const int32_t *tokens, uint32_t blocks,
    struct hit_match *match, uint32_t *snapshot_out);
double hit_index_bytes(const struct hit_index *index);

#endif

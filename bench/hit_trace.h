/* SPDX-License-Identifier: Apache-2.0 */
/* A trace as paths of whole blocks. Every block with all before it is one number, 1, 2, ... in
 * order of first appearance: the token that stands for it in the index (a page of one token), and
 * what clairvoyant policies know it by. */
#ifndef BENCH_HIT_TRACE_H
#define BENCH_HIT_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hit_request {
    uint64_t time_ns;
    uint32_t input_len, output_len; /* tokens */
    uint32_t blocks;     /* whole ones */
    uint32_t usable;     /* blocks that may be resumed: one token at least is computed */
    uint32_t known;      /* leading blocks that some earlier request had */
    size_t first;        /* of its blocks in `tokens` and `hashes` */
};

struct hit_trace {
    char name[96];
    uint32_t block;      /* tokens */
    size_t count;
    struct hit_request *requests;
    int32_t *tokens;
    uint64_t *hashes;
    size_t total;        /* blocks of all requests */
    uint32_t node_count; /* different ones */
    uint32_t longest;
    uint64_t input_tokens;
};

/* 0, or -1 with a line in `error` (TRACE_ERROR_BYTES). `block` 0: found from the trace. */
int hit_trace_load(struct hit_trace *trace, const char *path, uint32_t block, uint32_t limit,
    char *error);
void hit_trace_free(struct hit_trace *trace);

#endif

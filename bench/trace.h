/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a trace of requests: one JSON object a line, plain or zstd. Forms:
 *
 *   blocks    {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}
 *             a hash id stands for one block of tokens and all before it; the last may be partial
 *             or missing. "io": 1 says that the ids cover input and output. "session" or
 *             "session_id" (number or text) keeps the rows of a session in order.
 *   chats     the same with "chat_id", "parent_chat_id" and timestamps in seconds (Qwen-Bailian)
 *   turns     {"session": id, "timestamp": ms, "turns": [{"delay": ms, "input_length": n,
 *             "output_length": n}, ...]}: lengths are those of the turn's own tokens; a turn's
 *             prompt is all before it and these. The same flat: rows with "session" and
 *             without "hash_ids".
 *
 * Block ids become tokens by a fixed function: equal ids give equal tokens, unequal ids differ in
 * the first token of the block. */
#ifndef BENCH_TRACE_H
#define BENCH_TRACE_H

#include "workload.h"

struct trace_options {
    const char *path;
    uint32_t block;      /* tokens of a block in the trace; 0: from the lengths and id counts */
    uint32_t scale;      /* tokens of a block as replayed; 0: as in the trace, but at most */
    uint32_t scale_max;  /* this; 0: no limit */
    uint32_t decode_max; /* decoded tokens of a request at most, where they are not hashed */
    uint32_t limit;      /* so many rows; 0: all. Families of requests (those that share their
                          * first block, or session) are taken whole, the earliest first, so that a
                          * short replay of a long trace still has something to reuse */
};

enum { TRACE_ERROR_BYTES = 256, TRACE_LENGTH_MAX = 1 << 24 };

/* Fills an initialised workload. 0, or -1 with a line in `error`. Free the workload in any case. */
int trace_load(struct workload *workload, const struct trace_options *options,
    char error[TRACE_ERROR_BYTES]);

#endif

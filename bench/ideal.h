/* SPDX-License-Identifier: Apache-2.0 */
/* The best hit rate that a workload allows: unlimited memory, one request after the other in order
 * of arrival, states saved exactly where the rules say. Knows nothing of the library.
 *
 * A prompt can resume at depth d if some earlier request had the same first d tokens and saved a
 * state there. Positions are multiples of `unit` (1, or the block of a trace). Kept as a set of
 * prefix hashes: one 128-bit chained hash for each prefix that was seen, with a mark where a state
 * is. */
#ifndef BENCH_IDEAL_H
#define BENCH_IDEAL_H

#include <stdbool.h>
#include <stdint.h>

enum { IDEAL_END = 1, IDEAL_BRANCH = 2, IDEAL_PROMPT_END = 4 };

struct ideal;
struct ideal *ideal_create(uint32_t unit, unsigned rules);
void ideal_destroy(struct ideal *ideal);
/* The next requests are those of `tenant` (0: nobody's), whose text is its own from token `at`. */
void ideal_mark(struct ideal *ideal, uint32_t at, uint32_t tenant);
/* Serves one request: `tokens` are its prompt and, up to `total`, what came after it. Returns the
 * tokens of the prompt that could be resumed; at least one is left to compute. */
uint32_t ideal_serve(struct ideal *ideal, const int32_t *tokens, uint32_t prompt_len,
    uint32_t total);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for `statecache-bench radix`, made by a seed.
 *
 * W1: chats of eight turns, taken in random order. 64 system prompts (a few are popular), 40 % with
 *     one of 200 documents of 4k to 20k tokens behind. A turn adds 32 to 511 tokens of a user and
 *     64 to 1,023 of an answer; nothing passes 32,768 tokens.
 * W2: one of 100 prefixes of 32,768 tokens, cut at a random point, and a tail of its own.
 *
 * Every key exists twice, at different addresses, and what it shares with the tree a third time, so
 * that memcmp of the copies finds its memory as hot or as cold as the tree finds its own. */
#ifndef BENCH_RADIX_LOAD_H
#define BENCH_RADIX_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct radix_request {
    uint32_t prompt, full; /* tokens of the prompt; with the answer */
    uint32_t source;       /* W1: its chat; W2: its prefix */
    uint32_t shared;       /* W2: tokens of the prefix */
};

/* Tokens of a key at most, and of a turn that is put behind one. */
enum { RADIX_KEY_MAX = 32768, RADIX_TURN = 256, RADIX_WINDOW = 128 };

struct radix_load {
    bool chats;            /* W1 */
    const char *name;
    uint64_t seed;
    uint32_t count;
    struct radix_request *requests;
    uint64_t token_total;  /* prompts and answers */
    /* Of each chat: its longest key; later keys begin with the earlier ones. Of each prefix: it. */
    size_t *offsets;
    uint32_t source_count;
    int32_t *flat;         /* by offsets: what memcmp compares the second copy with */
    int32_t *keys[2];      /* W1: by offsets; W2: of the requests of one window */
    size_t *starts;        /* W2: of each key of the window */
    uint32_t window;       /* first request of the window; count: none */
};

/* Ends the program when there is no memory. */
void radix_load_open(struct radix_load *load, bool chats, uint32_t count, uint64_t seed);
void radix_load_close(struct radix_load *load);
/* A copy (0 or 1) of the tokens of request i. Requests should be asked for in order: those of W2
 * are made as they come, a window at a time. */
const int32_t *radix_load_key(struct radix_load *load, uint32_t i, int copy);
/* Tokens that begin as request i does, as far as anything before it can. */
const int32_t *radix_load_flat(const struct radix_load *load, uint32_t i);
/* `count` tokens by a seed. */
void radix_load_tokens(int32_t *tokens, size_t count, uint64_t seed);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Where a message ends.
 *
 * A message of the protocol is one MessagePack object and has no length in front. The scanner walks
 * over the bytes as they come, each once, and says when an object is whole, or that it can never be
 * one that we take: too large, too deep, too many items, a byte that is no MessagePack. So nothing
 * is decoded, and no memory taken, for a message that announces more than the limits allow.
 *
 *   bytes   | 94 | 00 | 07 | a6 l o o k u p | 91 ... |  next message
 *             ^ array of 4: four items to come         ^ at, once whole
 *
 * Invariants
 * (1) depth is the number of containers that are open; left[0] counts the message itself.
 * (2) at <= bytes_max, and at is never behind a header that is not complete.
 *
 * No memory, no system calls. */
#ifndef SC_WIRE_FRAME_H
#define SC_WIRE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SC_FRAME_DEPTH_MAX = 16, SC_FRAME_ITEMS_MAX = 65536 };

struct sc_frame {
    uint64_t bytes_max;
    uint64_t at;               /* where the next header is; perhaps beyond what is there */
    uint32_t depth, items;
    uint32_t left[SC_FRAME_DEPTH_MAX + 1];
};

enum sc_frame_state {
    SC_FRAME_MORE = 0,  /* not whole yet */
    SC_FRAME_WHOLE = 1, /* `at` bytes are one message */
    SC_FRAME_LARGE = 2, /* it will not fit bytes_max */
    SC_FRAME_DEEP = 3,  /* too deep, or too many items */
    SC_FRAME_BAD = 4    /* no MessagePack */
};

void sc_frame_begin(struct sc_frame *frame, uint64_t bytes_max);
/* `bytes` begins with the message, of which `count` bytes have come. */
enum sc_frame_state sc_frame_scan(struct sc_frame *frame, const uint8_t *bytes, size_t count);
/* What is wrong, for people. */
const char *sc_frame_text(enum sc_frame_state state);

#endif

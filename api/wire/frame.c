/* SPDX-License-Identifier: Apache-2.0 */
/* The scanner of frame.h. */
#include "wire/frame.h"

void sc_frame_begin(struct sc_frame *frame, uint64_t bytes_max)
{
    *frame = (struct sc_frame){.bytes_max = bytes_max, .depth = 1, .left = {1}};
}

/* What a header says: its own bytes, bytes of payload behind it, items inside. */
struct head {
    uint32_t bytes;      /* 0: no such header */
    uint32_t size_bytes; /* the last of these are a length, big-endian */
    uint32_t size_unit;  /* bytes of payload for each of the length; 0: items */
    uint32_t payload, items;
    uint32_t items_each; /* of a map: two */
};

static struct head head_of(uint8_t byte)
{
    if (byte <= 0x7f || byte >= 0xe0) return (struct head){.bytes = 1};
    if (byte <= 0x8f) return (struct head){.bytes = 1, .items = 2u * (byte & 15u)};
    if (byte <= 0x9f) return (struct head){.bytes = 1, .items = byte & 15u};
    if (byte <= 0xbf) return (struct head){.bytes = 1, .payload = byte & 31u};
    switch (byte) {
    case 0xc0: case 0xc2: case 0xc3: return (struct head){.bytes = 1};
    case 0xc4: case 0xd9: return (struct head){.bytes = 2, .size_bytes = 1, .size_unit = 1};
    case 0xc5: case 0xda: return (struct head){.bytes = 3, .size_bytes = 2, .size_unit = 1};
    case 0xc6: case 0xdb: return (struct head){.bytes = 5, .size_bytes = 4, .size_unit = 1};
    case 0xcc: case 0xd0: return (struct head){.bytes = 1, .payload = 1};
    case 0xcd: case 0xd1: return (struct head){.bytes = 1, .payload = 2};
    case 0xca: case 0xce: case 0xd2: return (struct head){.bytes = 1, .payload = 4};
    case 0xcb: case 0xcf: case 0xd3: return (struct head){.bytes = 1, .payload = 8};
    case 0xdc: return (struct head){.bytes = 3, .size_bytes = 2, .items_each = 1};
    case 0xdd: return (struct head){.bytes = 5, .size_bytes = 4, .items_each = 1};
    case 0xde: return (struct head){.bytes = 3, .size_bytes = 2, .items_each = 2};
    case 0xdf: return (struct head){.bytes = 5, .size_bytes = 4, .items_each = 2};
    default: return (struct head){.bytes = 0}; /* 0xc1, and extensions, which we do not have */
    }
}

/* One header, which is there. */
static enum sc_frame_state step(struct sc_frame *frame, const uint8_t *bytes, struct head head)
{
    uint64_t length = 0;
    for (uint32_t i = head.bytes - head.size_bytes; i < head.bytes; i++) {
        length = length << 8 | bytes[frame->at + i];
    }
    uint64_t items = head.items + length * head.items_each;
    uint64_t next = frame->at + head.bytes + head.payload + length * head.size_unit;
    /* An item takes a byte or more. */
    if (next + items > frame->bytes_max) return SC_FRAME_LARGE;
    if (items > SC_FRAME_ITEMS_MAX - frame->items) return SC_FRAME_DEEP;
    frame->items += (uint32_t)items;
    frame->at = next;
    frame->left[frame->depth - 1]--;
    if (items > 0) {
        if (frame->depth > SC_FRAME_DEPTH_MAX) return SC_FRAME_DEEP;
        frame->left[frame->depth++] = (uint32_t)items;
    }
    while (frame->depth > 0 && frame->left[frame->depth - 1] == 0) frame->depth--;
    return SC_FRAME_MORE;
}

enum sc_frame_state sc_frame_scan(struct sc_frame *frame, const uint8_t *bytes, size_t count)
{
    while (frame->depth > 0) {
        if (frame->at >= count) return SC_FRAME_MORE;
        struct head head = head_of(bytes[frame->at]);
        if (head.bytes == 0) return SC_FRAME_BAD;
        if (frame->at + head.bytes > count) return SC_FRAME_MORE;
        enum sc_frame_state state = step(frame, bytes, head);
        if (state != SC_FRAME_MORE) return state;
    }
    return frame->at <= count ? SC_FRAME_WHOLE : SC_FRAME_MORE;
}

const char *sc_frame_text(enum sc_frame_state state)
{
    switch (state) {
    case SC_FRAME_MORE: return "the message is not complete";
    case SC_FRAME_WHOLE: return "a whole message";
    case SC_FRAME_LARGE: return "the message is larger than frame_bytes";
    case SC_FRAME_DEEP: return "the message is nested too deeply, or has too many items";
    case SC_FRAME_BAD: return "the bytes are no MessagePack of this protocol";
    }
    return "unknown";
}

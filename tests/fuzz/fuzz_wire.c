/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder of statecached's messages. An input is a byte that says how the rest arrives, and the
 * bytes as a peer might send them. Checked: scanning piece by piece gives what scanning at once
 * gives; what is whole is one object for msgpack-c, of exactly those bytes; reading messages, maps
 * and keys stays within them (the sanitizers look), and a key that was read packs to one that is
 * read the same. */
#include <string.h>

#include "fuzz/fuzz.h"
#include "wire/fault.h"
#include "wire/frame.h"
#include "wire/value.h"

enum { BYTES_MAX = 1 << 16, TOKENS = 256, MARKS = 16 };

static enum sc_frame_state scan_pieces(struct sc_frame *frame, const uint8_t *bytes, size_t count,
    size_t piece)
{
    enum sc_frame_state state = SC_FRAME_MORE;
    for (size_t have = piece; state == SC_FRAME_MORE; have += piece) {
        size_t now = have < count ? have : count;
        state = sc_frame_scan(frame, bytes, now);
        if (now == count) break;
    }
    return state;
}

static void check_key(const msgpack_object *object)
{
    static int32_t tokens[2][TOKENS];
    static sc_mark marks[2][MARKS];
    struct sc_wire_key key, again;
    uint32_t token_room, mark_room;
    sc_wire_key_room(object, &token_room, &mark_room);
    if (sc_wire_key_read(object, tokens[0], TOKENS, marks[0], MARKS, &key) != SC_OK) {
        FUZZ_CHECK(sc_fault_last()->text[0] != '\0');
        return;
    }
    FUZZ_CHECK(key.token_count == token_room && key.mark_count <= mark_room);
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    msgpack_unpacked unpacked;
    size_t at = 0;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    sc_pack_key(&packer, &key);
    msgpack_unpacked_init(&unpacked);
    FUZZ_CHECK(msgpack_unpack_next(&unpacked, buffer.data, buffer.size, &at) ==
        MSGPACK_UNPACK_SUCCESS);
    FUZZ_CHECK(sc_wire_key_read(&unpacked.data, tokens[1], TOKENS, marks[1], MARKS, &again) ==
        SC_OK);
    FUZZ_CHECK(again.token_count == key.token_count && again.mark_count == key.mark_count &&
        again.len_max == key.len_max && again.adapter_id == key.adapter_id &&
        again.adapter_generation == key.adapter_generation);
    FUZZ_CHECK(memcmp(tokens[0], tokens[1], key.token_count * sizeof tokens[0][0]) == 0);
    FUZZ_CHECK(key.mark_count == 0 ||
        memcmp(marks[0], marks[1], key.mark_count * sizeof marks[0][0]) == 0);
    msgpack_unpacked_destroy(&unpacked);
    msgpack_sbuffer_destroy(&buffer);
}

/* What a method does with its params. */
static void check_params(const msgpack_object *params)
{
    struct sc_map map;
    struct sc_bytes bytes;
    const msgpack_object_array *keys = NULL;
    uint64_t number = 7;
    bool flag = false;
    if (sc_map_begin(&map, params) != SC_OK) return;
    (void)sc_map_u64(&map, "write", true, UINT64_MAX, &number);
    (void)sc_map_bool(&map, "files", &flag);
    (void)sc_map_bin(&map, "data", false, &bytes);
    (void)sc_map_str(&map, "tenant", false, &bytes);
    const msgpack_object *key = sc_map_find(&map, "key");
    if (key) check_key(key);
    if (sc_map_array(&map, "keys", true, &keys) == SC_OK && keys) {
        for (uint32_t i = 0; i < keys->size; i++) check_key(&keys->ptr[i]);
    }
    (void)sc_map_done(&map);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sc_frame whole, pieces;
    if (size < 2) return 0;
    size_t piece = (size_t)data[0] % 32 + 1, count = size - 1;
    uint8_t *bytes = malloc(count); /* its end is the input's: reading beyond it is seen */
    FUZZ_CHECK(bytes);
    memcpy(bytes, data + 1, count);
    sc_frame_begin(&whole, data[0] & 0x80 ? 64 : BYTES_MAX);
    sc_frame_begin(&pieces, whole.bytes_max);
    enum sc_frame_state state = sc_frame_scan(&whole, bytes, count);
    FUZZ_CHECK(scan_pieces(&pieces, bytes, count, piece) == state);
    FUZZ_CHECK(state == SC_FRAME_LARGE || whole.at <= whole.bytes_max);
    FUZZ_CHECK(sc_frame_text(state)[0] != '\0');
    if (state == SC_FRAME_WHOLE) {
        msgpack_unpacked unpacked;
        struct sc_message message;
        size_t at = 0;
        bool id_known;
        FUZZ_CHECK(pieces.at == whole.at && whole.at <= count);
        msgpack_unpacked_init(&unpacked);
        FUZZ_CHECK(msgpack_unpack_next(&unpacked, (const char *)bytes, (size_t)whole.at, &at) ==
            MSGPACK_UNPACK_SUCCESS);
        FUZZ_CHECK(at == whole.at);
        if (sc_message_read(&unpacked.data, &message, &id_known) == SC_OK && message.params) {
            check_params(message.params);
        }
        msgpack_unpacked_destroy(&unpacked);
    }
    free(bytes);
    return 0;
}

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

/* What was said of a value that was refused: a line, with its status, that can be passed on. */
static void check_fault(sc_status status)
{
    const sc_error_info said = *sc_fault_last();
    FUZZ_CHECK(status != SC_OK && said.status == status && said.text[0] != '\0');
    for (const char *c = said.text; *c != '\0'; c++) {
        FUZZ_CHECK((unsigned char)*c >= ' ' && *c != 0x7f);
    }
    (void)SC_FAULT_SYS(SC_ERR_IO, 5, "%s, %s", said.text, sc_fault_last()->text);
    FUZZ_CHECK(sc_fault_last()->status == SC_ERR_IO && sc_fault_last()->system_code == 5);
    FUZZ_CHECK(sc_fault_take(&said) == status && strcmp(sc_fault_last()->text, said.text) == 0);
}

static void check_key(const msgpack_object *object)
{
    static int32_t tokens[2][TOKENS];
    static sc_mark marks[2][MARKS];
    struct sc_wire_key key, again;
    uint32_t token_room, mark_room;
    sc_wire_key_room(object, &token_room, &mark_room);
    sc_status status = sc_wire_key_read(object, tokens[0], TOKENS, marks[0], MARKS, &key);
    if (status != SC_OK) {
        check_fault(status);
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
        again.adapter_generation == key.adapter_generation && again.again == key.again);
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
    uint32_t states = 7;
    bool flag = false;
    sc_status status = sc_map_begin(&map, params);
    if (status != SC_OK) {
        check_fault(status);
        return;
    }
    status = sc_map_u64(&map, "write", true, UINT64_MAX, &number);
    if (status != SC_OK) check_fault(status);
    (void)sc_map_u32(&map, "states", false, 1000, &states);
    FUZZ_CHECK(states <= 1000);
    (void)sc_map_bool(&map, "files", &flag);
    (void)sc_map_bin(&map, "data", false, &bytes);
    (void)sc_map_str(&map, "tenant", false, &bytes);
    const msgpack_object *key = sc_map_find(&map, "key");
    if (key) check_key(key);
    if (sc_map_array(&map, "keys", true, &keys) == SC_OK && keys) {
        for (uint32_t i = 0; i < keys->size; i++) check_key(&keys->ptr[i]);
    }
    status = sc_map_done(&map);
    if (status != SC_OK) check_fault(status);
}

/* An answer of these values, as a client gets it: it is read back as it was. */
static void check_answer(const struct sc_message *asked)
{
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    msgpack_unpacked unpacked;
    struct sc_message message;
    struct sc_frame frame;
    struct sc_map map;
    uint64_t number = 0;
    bool flag = false, id_known = false;
    size_t at = 0;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    (void)msgpack_pack_array(&packer, 4);
    (void)msgpack_pack_uint8(&packer, SC_WIRE_RESPONSE);
    (void)msgpack_pack_uint64(&packer, asked->id);
    (void)msgpack_pack_nil(&packer);
    (void)msgpack_pack_map(&packer, 3);
    sc_pack_str(&packer, "text", sc_fault_last()->text);
    sc_pack_u64(&packer, "id", asked->id);
    sc_pack_bool(&packer, "params", asked->params != NULL);
    sc_frame_begin(&frame, BYTES_MAX);
    FUZZ_CHECK(sc_frame_scan(&frame, (const uint8_t *)buffer.data, buffer.size) == SC_FRAME_WHOLE);
    FUZZ_CHECK(frame.at == buffer.size);
    msgpack_unpacked_init(&unpacked);
    FUZZ_CHECK(msgpack_unpack_next(&unpacked, buffer.data, buffer.size, &at) ==
        MSGPACK_UNPACK_SUCCESS);
    FUZZ_CHECK(sc_message_read(&unpacked.data, &message, &id_known) == SC_OK && id_known);
    FUZZ_CHECK(message.kind == SC_WIRE_RESPONSE && message.id == asked->id && !message.error);
    FUZZ_CHECK(sc_map_begin(&map, message.result) == SC_OK && sc_map_find(&map, "text"));
    FUZZ_CHECK(sc_map_u64(&map, "id", true, UINT64_MAX, &number) == SC_OK && number == asked->id);
    FUZZ_CHECK(sc_map_bool(&map, "params", &flag) == SC_OK && flag == (asked->params != NULL));
    FUZZ_CHECK(sc_map_done(&map) == SC_OK);
    msgpack_unpacked_destroy(&unpacked);
    msgpack_sbuffer_destroy(&buffer);
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
        sc_status status = sc_message_read(&unpacked.data, &message, &id_known);
        if (status != SC_OK) check_fault(status);
        if (status == SC_OK && message.params) check_params(message.params);
        if (id_known) check_answer(&message);
        msgpack_unpacked_destroy(&unpacked);
    }
    free(bytes);
    return 0;
}

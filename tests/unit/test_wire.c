/* SPDX-License-Identifier: Apache-2.0 */
/* Frames and values of the service's protocol. */
#include <stdlib.h>
#include <string.h>

#include "support/check_main.h"
#include "wire/fault.h"
#include "wire/frame.h"
#include "wire/value.h"

static enum sc_frame_state scan(const char *bytes, size_t count, uint64_t bytes_max,
    uint64_t *at_out)
{
    struct sc_frame frame;
    sc_frame_begin(&frame, bytes_max);
    enum sc_frame_state state = sc_frame_scan(&frame, (const uint8_t *)bytes, count);
    if (at_out) *at_out = frame.at;
    return state;
}
#define SCAN(text, max) scan(text, sizeof(text) - 1, max, NULL)

START_TEST(frame__finds_the_end_byte_by_byte)
{
    /* Each form of MessagePack once; then a second message. */
    static const char bytes[] =
        "\xdc\x00\x10\x00\x7f\xe0\xff\xc0\xc2\xc3"
        "\xcc\x01\xcd\x01\x02\xce\x01\x02\x03\x04\xcf\x01\x02\x03"
        "\x04\x05\x06\x07\x08\xd0\x01\xd1\x01\x02\xd2\x01\x02\x03\x04"
        "\xdc\x00\x0b\xd3\x01\x02\x03\x04\x05\x06\x07\x08\xca\x01\x02\x03\x04\xcb\x01\x02\x03\x04"
        "\x05\x06\x07\x08\xa3xyz\xd9\x02xy\xda\x00\x01x\xdb\x00\x00\x00\x01x\xc4\x01\x00\xc5\x00"
        "\x00\xc6\x00\x00\x00\x02zz\x82\xa1x\x80\xa1y\x90"
        "\xdd\x00\x00\x00\x02\xde\x00\x01\x01\x02\xdf\x00\x00\x00\x01\x01\x02";
    const size_t whole = sizeof bytes - 1;
    struct sc_frame frame;
    msgpack_unpacked unpacked;
    size_t at = 0;
    sc_frame_begin(&frame, 4096);
    for (size_t i = 0; i < whole; i++) {
        ck_assert_int_eq(sc_frame_scan(&frame, (const uint8_t *)bytes, i), SC_FRAME_MORE);
    }
    ck_assert_int_eq(sc_frame_scan(&frame, (const uint8_t *)bytes, whole), SC_FRAME_WHOLE);
    ck_assert_uint_eq(frame.at, whole);
    msgpack_unpacked_init(&unpacked);
    ck_assert_int_eq(msgpack_unpack_next(&unpacked, bytes, whole, &at), MSGPACK_UNPACK_SUCCESS);
    ck_assert_uint_eq(at, whole);
    msgpack_unpacked_destroy(&unpacked);
}
END_TEST

START_TEST(frame__leaves_the_next_message)
{
    uint64_t at = 0;
    ck_assert_int_eq(scan("\x92\x01\x02\x93\x01", 5, 100, &at), SC_FRAME_WHOLE);
    ck_assert_uint_eq(at, 3);
}
END_TEST

START_TEST(frame__refuses_what_will_be_too_large_at_its_header)
{
    ck_assert_int_eq(SCAN("\xc6\xff\xff\xff\xff", 1 << 20), SC_FRAME_LARGE);
    ck_assert_int_eq(SCAN("\xdd\xff\xff\xff\xff", 1 << 20), SC_FRAME_LARGE);
    ck_assert_int_eq(SCAN("\xdf\xff\xff\xff\xff", UINT64_C(1) << 40), SC_FRAME_DEEP);
    ck_assert_int_eq(SCAN("\xdf\x7f\xff\xff\xff", 1 << 20), SC_FRAME_LARGE);
    ck_assert_int_eq(SCAN("\xc4\x04", 5), SC_FRAME_LARGE);
    ck_assert_int_eq(SCAN("\xc4\x04", 6), SC_FRAME_MORE);
    ck_assert_int_eq(SCAN("\xdd\x00\x01\x00\x00", 1 << 20), SC_FRAME_MORE);
    ck_assert_int_eq(SCAN("\xdd\x00\x01\x00\x01", 1 << 20), SC_FRAME_DEEP);
}
END_TEST

START_TEST(frame__refuses_depth_and_other_bytes)
{
    char deep[64];
    memset(deep, '\x91', sizeof deep);
    ck_assert_int_eq(scan(deep, SC_FRAME_DEPTH_MAX, 1000, NULL), SC_FRAME_MORE);
    ck_assert_int_eq(scan(deep, SC_FRAME_DEPTH_MAX + 1, 1000, NULL), SC_FRAME_DEEP);
    ck_assert_int_eq(SCAN("\xc1", 100), SC_FRAME_BAD);
    ck_assert_int_eq(SCAN("\xd4\x01\x02", 100), SC_FRAME_BAD); /* an extension */
    ck_assert_int_eq(SCAN("\xc7\x01\x02\x03", 100), SC_FRAME_BAD);
}
END_TEST

/* ---- messages and maps ---- */

static msgpack_unpacked unpacked;

static const msgpack_object *decode(const char *bytes, size_t count)
{
    size_t at = 0;
    msgpack_unpacked_init(&unpacked);
    ck_assert_int_eq(msgpack_unpack_next(&unpacked, bytes, count, &at), MSGPACK_UNPACK_SUCCESS);
    return &unpacked.data;
}
#define DECODE(text) decode(text, sizeof(text) - 1)

START_TEST(message__reads_each_kind)
{
    struct sc_message message;
    bool known;
    ck_assert_int_eq(sc_message_read(DECODE("\x94\x00\x07\xa4""echo\x91\x80"), &message, &known),
        SC_OK);
    ck_assert(known && message.id == 7 && message.method_bytes == 4 && message.params);
    msgpack_unpacked_destroy(&unpacked);
    ck_assert_int_eq(sc_message_read(DECODE("\x94\x01\x07\xc0\x05"), &message, &known), SC_OK);
    ck_assert(message.kind == SC_WIRE_RESPONSE && !message.error && message.result->via.u64 == 5);
    msgpack_unpacked_destroy(&unpacked);
    ck_assert_int_eq(sc_message_read(DECODE("\x93\x02\xa1x\x90"), &message, &known), SC_OK);
    ck_assert(message.kind == SC_WIRE_NOTIFICATION && !message.params);
    msgpack_unpacked_destroy(&unpacked);
}
END_TEST

START_TEST(message__refuses_what_is_none)
{
    static const struct { const char *bytes; size_t count; bool known; } bad[] = {
        {"\x05", 1, false}, {"\x90", 1, false}, {"\x93\x00\x01\xa1x", 5, false},
        {"\x94\x02\xa1x\x90\x90", 6, false}, {"\x94\x03\x01\xa1x\x90", 6, false},
        {"\x94\x00\xff\xa1x\x90", 6, false}, {"\x94\x00\x01\x05\x90", 5, true},
        {"\x94\x00\x01\xa1x\x80", 6, true}, {"\x94\x00\x01\xa1x\x92\x80\x80", 8, true}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sc_message message;
        bool known;
        ck_assert_int_eq(sc_message_read(decode(bad[i].bytes, bad[i].count), &message, &known),
            SC_ERR_INVALID);
        ck_assert_msg(known == bad[i].known, "case %zu", i);
        msgpack_unpacked_destroy(&unpacked);
    }
}
END_TEST

START_TEST(map__refuses_unknown_members_and_names_them)
{
    struct sc_map map;
    uint64_t value = 9;
    uint32_t small = 3;
    bool flag = true;
    ck_assert_int_eq(sc_map_begin(&map, DECODE("\x83\xa1""a\x01\xa1""b\xc0\xa1""c\xc3")), SC_OK);
    ck_assert_int_eq(sc_map_u64(&map, "a", true, 5, &value), SC_OK);
    ck_assert_uint_eq(value, 1);
    ck_assert_int_eq(sc_map_done(&map), SC_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(sc_fault_last()->text, "'b'"));
    ck_assert_int_eq(sc_map_u32(&map, "b", false, 5, &small), SC_OK); /* nil: as if absent */
    ck_assert_uint_eq(small, 3);
    ck_assert_int_eq(sc_map_u32(&map, "b", true, 5, &small), SC_ERR_INVALID);
    ck_assert_int_eq(sc_map_bool(&map, "a", &flag), SC_ERR_INVALID);
    ck_assert_int_eq(sc_map_u64(&map, "c", true, 5, &value), SC_ERR_INVALID);
    ck_assert_int_eq(sc_map_u64(&map, "a", true, 0, &value), SC_ERR_INVALID);
    ck_assert_int_eq(sc_map_done(&map), SC_OK);
    msgpack_unpacked_destroy(&unpacked);
    ck_assert_int_eq(sc_map_begin(&map, DECODE("\x82\xa1""a\x01\xa1""a\x02")), SC_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(sc_fault_last()->text, "twice"));
    msgpack_unpacked_destroy(&unpacked);
    ck_assert_int_eq(sc_map_begin(&map, DECODE("\x81\x01\x02")), SC_ERR_INVALID);
    msgpack_unpacked_destroy(&unpacked);
    ck_assert_int_eq(sc_map_begin(&map, DECODE("\x90")), SC_ERR_INVALID);
    msgpack_unpacked_destroy(&unpacked);
    ck_assert_int_eq(sc_map_begin(&map, NULL), SC_OK);
    ck_assert_int_eq(sc_map_done(&map), SC_OK);
}
END_TEST

START_TEST(key__is_read_as_it_was_packed)
{
    static const int32_t tokens[] = {1, -2, 2147483647};
    const sc_mark marks[] = {{0, "aaaaaaaaaaaaaaa"}, {2, "bbbbbbbbbbbbbbb"}};
    const struct sc_wire_key key = {.tokens = tokens, .token_count = 3, .marks = marks,
        .mark_count = 2, .len_max = 2, .adapter_id = UINT64_MAX, .adapter_generation = 3,
        .tenant = "me", .tenant_bytes = 2, .again = true};
    struct sc_wire_key got;
    int32_t tokens_out[3];
    sc_mark marks_out[2];
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    sc_pack_key(&packer, &key);
    const msgpack_object *object = decode(buffer.data, buffer.size);
    ck_assert_int_eq(sc_wire_key_read(object, tokens_out, 3, marks_out, 2, &got), SC_OK);
    ck_assert(memcmp(tokens, tokens_out, sizeof tokens) == 0 && got.token_count == 3);
    ck_assert(memcmp(marks, marks_out, sizeof marks) == 0 && got.mark_count == 2);
    ck_assert(got.len_max == 2 && got.adapter_id == UINT64_MAX && got.adapter_generation == 3);
    ck_assert(got.tenant_bytes == 2 && memcmp(got.tenant, "me", 2) == 0 && got.again);
    ck_assert_int_eq(sc_wire_key_read(object, tokens_out, 2, marks_out, 2, &got), SC_ERR_LIMIT);
    ck_assert_int_eq(sc_wire_key_read(object, tokens_out, 3, marks_out, 1, &got), SC_ERR_LIMIT);
    msgpack_unpacked_destroy(&unpacked);
    msgpack_sbuffer_destroy(&buffer);
}
END_TEST

START_TEST(key__refuses_bad_members)
{
    static const struct { const char *bytes; size_t count; } bad[] = {
        {"\x80", 1}, {"\x81\xa6tokens\xa4""abcd", 13}, {"\x81\xa6tokens\xc4\x03""abc", 13},
        {"\x81\xa6tokens\xc4\x00", 10}, {"\x82\xa6tokens\xc4\x04""abcd\xa7len_max\x02", 23},
        {"\x82\xa6tokens\xc4\x04""abcd\xa5marks\x91\x00", 22},
        {"\x82\xa6tokens\xc4\x04""abcd\xa5other\x00", 21},
        {"\x82\xa6tokens\xc4\x04""abcd\xa5""again\x01", 21},
        {"\x82\xa6tokens\xc4\x04""abcd\xa7""adapter\x91\x01", 24}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sc_wire_key key;
        int32_t tokens[4];
        sc_mark marks[2];
        ck_assert_msg(sc_wire_key_read(decode(bad[i].bytes, bad[i].count), tokens, 4, marks, 2,
            &key) == SC_ERR_INVALID, "case %zu", i);
        msgpack_unpacked_destroy(&unpacked);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wire");
    TCase *frames = tcase_create("frame"), *values = tcase_create("value");
    tcase_add_test(frames, frame__finds_the_end_byte_by_byte);
    tcase_add_test(frames, frame__leaves_the_next_message);
    tcase_add_test(frames, frame__refuses_what_will_be_too_large_at_its_header);
    tcase_add_test(frames, frame__refuses_depth_and_other_bytes);
    tcase_add_test(values, message__reads_each_kind);
    tcase_add_test(values, message__refuses_what_is_none);
    tcase_add_test(values, map__refuses_unknown_members_and_names_them);
    tcase_add_test(values, key__is_read_as_it_was_packed);
    tcase_add_test(values, key__refuses_bad_members);
    suite_add_tcase(suite, frames);
    suite_add_tcase(suite, values);
    return check_main(suite);
}

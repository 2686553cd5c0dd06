/* SPDX-License-Identifier: Apache-2.0 */
/* Messages, maps and keys of value.h. */
#include "wire/value.h"

#include <assert.h>
#include <string.h>

#include "wire/fault.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens travel as they lie in memory");

static bool is_uint(const msgpack_object *object, uint64_t max)
{
    return object->type == MSGPACK_OBJECT_POSITIVE_INTEGER && object->via.u64 <= max;
}

/* ---- messages ---- */

static sc_status read_params(const msgpack_object *object, struct sc_message *message)
{
    const msgpack_object_array *params = &object->via.array;
    if (object->type != MSGPACK_OBJECT_ARRAY || params->size > 1) {
        return SC_FAULT(SC_ERR_INVALID, "params: an array of one map is expected");
    }
    if (params->size == 1) message->params = &params->ptr[0];
    return SC_OK;
}

static sc_status read_method(const msgpack_object *object, struct sc_message *message)
{
    if (object->type != MSGPACK_OBJECT_STR) {
        return SC_FAULT(SC_ERR_INVALID, "method: a str is expected");
    }
    message->method = object->via.str.ptr;
    message->method_bytes = object->via.str.size;
    return SC_OK;
}

sc_status sc_message_read(const msgpack_object *object, struct sc_message *message_out,
    bool *id_known_out)
{
    const msgpack_object *items = object->via.array.ptr;
    uint32_t count = object->type == MSGPACK_OBJECT_ARRAY ? object->via.array.size : 0;
    *message_out = (struct sc_message){.kind = SC_WIRE_REQUEST};
    *id_known_out = false;
    if (count < 3 || !is_uint(&items[0], SC_WIRE_NOTIFICATION) ||
        count != (items[0].via.u64 == SC_WIRE_NOTIFICATION ? 3 : 4)) {
        return SC_FAULT(SC_ERR_INVALID, "no message: [0, id, method, [params]], "
            "[1, id, error, result] or [2, method, [params]] is expected");
    }
    message_out->kind = (enum sc_wire_kind)items[0].via.u64;
    if (message_out->kind == SC_WIRE_NOTIFICATION) {
        SC_PASS(read_method(&items[1], message_out));
        return read_params(&items[2], message_out);
    }
    if (!is_uint(&items[1], UINT64_MAX)) {
        return SC_FAULT(SC_ERR_INVALID, "id: an unsigned number is expected");
    }
    message_out->id = items[1].via.u64;
    *id_known_out = true;
    if (message_out->kind == SC_WIRE_REQUEST) {
        SC_PASS(read_method(&items[2], message_out));
        return read_params(&items[3], message_out);
    }
    if (items[2].type != MSGPACK_OBJECT_NIL) message_out->error = &items[2];
    message_out->result = &items[3];
    return SC_OK;
}

/* ---- maps ---- */

static bool same_str(const msgpack_object *object, const char *name, size_t bytes)
{
    return object->via.str.size == bytes && memcmp(object->via.str.ptr, name, bytes) == 0;
}

sc_status sc_map_begin(struct sc_map *map, const msgpack_object *object)
{
    *map = (struct sc_map){object, 0};
    if (!object) return SC_OK;
    if (object->type != MSGPACK_OBJECT_MAP) return SC_FAULT(SC_ERR_INVALID, "a map is expected");
    const msgpack_object_map *members = &object->via.map;
    if (members->size > SC_MAP_MEMBERS_MAX) {
        return SC_FAULT(SC_ERR_INVALID, "a map of %u members, %d are possible", members->size,
            SC_MAP_MEMBERS_MAX);
    }
    for (uint32_t i = 0; i < members->size; i++) {
        const msgpack_object *key = &members->ptr[i].key;
        if (key->type != MSGPACK_OBJECT_STR) {
            return SC_FAULT(SC_ERR_INVALID, "the name of a member is no str");
        }
        for (uint32_t j = 0; j < i; j++) {
            if (same_str(&members->ptr[j].key, key->via.str.ptr, key->via.str.size)) {
                return SC_FAULT(SC_ERR_INVALID, "member '%.*s' is there twice",
                    (int)(key->via.str.size & 63), key->via.str.ptr);
            }
        }
    }
    return SC_OK;
}

sc_status sc_map_done(const struct sc_map *map)
{
    if (!map->object) return SC_OK;
    for (uint32_t i = 0; i < map->object->via.map.size; i++) {
        const msgpack_object_str *key = &map->object->via.map.ptr[i].key.via.str;
        if (!(map->seen >> i & 1)) {
            return SC_FAULT(SC_ERR_INVALID, "member '%.*s' is not known here",
                (int)(key->size < 64 ? key->size : 64), key->ptr);
        }
    }
    return SC_OK;
}

const msgpack_object *sc_map_find(struct sc_map *map, const char *name)
{
    size_t bytes = strlen(name);
    for (uint32_t i = 0; map->object && i < map->object->via.map.size; i++) {
        const msgpack_object_kv *member = &map->object->via.map.ptr[i];
        if (!same_str(&member->key, name, bytes)) continue;
        map->seen |= UINT64_C(1) << i;
        return member->val.type == MSGPACK_OBJECT_NIL ? NULL : &member->val;
    }
    return NULL;
}

/* `*out` NULL: it is not there, and need not be. */
static sc_status find(struct sc_map *map, const char *name, bool must, const msgpack_object **out)
{
    *out = sc_map_find(map, name);
    if (!*out && must) return SC_FAULT(SC_ERR_INVALID, "member '%s' is missing", name);
    return SC_OK;
}

sc_status sc_map_u64(struct sc_map *map, const char *name, bool must, uint64_t max, uint64_t *out)
{
    const msgpack_object *value;
    SC_PASS(find(map, name, must, &value));
    if (!value) return SC_OK;
    if (!is_uint(value, max)) {
        return SC_FAULT(SC_ERR_INVALID, "%s: a number from 0 to %llu is expected", name,
            (unsigned long long)max);
    }
    *out = value->via.u64;
    return SC_OK;
}

sc_status sc_map_u32(struct sc_map *map, const char *name, bool must, uint32_t max, uint32_t *out)
{
    uint64_t value = *out;
    SC_PASS(sc_map_u64(map, name, must, max, &value));
    *out = (uint32_t)value;
    return SC_OK;
}

sc_status sc_map_bool(struct sc_map *map, const char *name, bool *out)
{
    const msgpack_object *value = sc_map_find(map, name);
    if (!value) return SC_OK;
    if (value->type != MSGPACK_OBJECT_BOOLEAN) {
        return SC_FAULT(SC_ERR_INVALID, "%s: true or false is expected", name);
    }
    *out = value->via.boolean;
    return SC_OK;
}

sc_status sc_map_bin(struct sc_map *map, const char *name, bool must, struct sc_bytes *out)
{
    const msgpack_object *value;
    SC_PASS(find(map, name, must, &value));
    if (!value) return SC_OK;
    if (value->type != MSGPACK_OBJECT_BIN) {
        return SC_FAULT(SC_ERR_INVALID, "%s: a bin is expected", name);
    }
    *out = (struct sc_bytes){value->via.bin.ptr, value->via.bin.size};
    return SC_OK;
}

sc_status sc_map_str(struct sc_map *map, const char *name, bool must, struct sc_bytes *out)
{
    const msgpack_object *value;
    SC_PASS(find(map, name, must, &value));
    if (!value) return SC_OK;
    if (value->type != MSGPACK_OBJECT_STR) {
        return SC_FAULT(SC_ERR_INVALID, "%s: a str is expected", name);
    }
    *out = (struct sc_bytes){value->via.str.ptr, value->via.str.size};
    return SC_OK;
}

sc_status sc_map_array(struct sc_map *map, const char *name, bool must,
    const msgpack_object_array **out)
{
    const msgpack_object *value;
    SC_PASS(find(map, name, must, &value));
    if (!value) return SC_OK;
    if (value->type != MSGPACK_OBJECT_ARRAY) {
        return SC_FAULT(SC_ERR_INVALID, "%s: an array is expected", name);
    }
    *out = &value->via.array;
    return SC_OK;
}

/* ---- packing ---- */

void sc_pack_name(msgpack_packer *packer, const char *name)
{
    (void)msgpack_pack_str_with_body(packer, name, strlen(name));
}

void sc_pack_str(msgpack_packer *packer, const char *name, const char *text)
{
    sc_pack_name(packer, name);
    sc_pack_name(packer, text);
}

void sc_pack_u64(msgpack_packer *packer, const char *name, uint64_t value)
{
    sc_pack_name(packer, name);
    (void)msgpack_pack_uint64(packer, value);
}

void sc_pack_bool(msgpack_packer *packer, const char *name, bool value)
{
    sc_pack_name(packer, name);
    (void)(value ? msgpack_pack_true(packer) : msgpack_pack_false(packer));
}

void sc_pack_bin(msgpack_packer *packer, const char *name, const void *data, size_t count)
{
    sc_pack_name(packer, name);
    (void)msgpack_pack_bin_with_body(packer, data, count);
}

/* ---- keys ---- */

void sc_pack_key(msgpack_packer *packer, const struct sc_wire_key *key)
{
    bool adapter = key->adapter_id != 0 || key->adapter_generation != 0;
    (void)msgpack_pack_map(packer, 1u + (key->mark_count > 0) + (key->len_max > 0) + adapter +
        (key->tenant != NULL) + key->again);
    sc_pack_bin(packer, "tokens", key->tokens, key->token_count * sizeof *key->tokens);
    if (key->mark_count > 0) {
        sc_pack_name(packer, "marks");
        (void)msgpack_pack_array(packer, key->mark_count);
        for (uint32_t i = 0; i < key->mark_count; i++) {
            (void)msgpack_pack_array(packer, 2);
            (void)msgpack_pack_uint32(packer, key->marks[i].at);
            (void)msgpack_pack_bin_with_body(packer, key->marks[i].id, sizeof key->marks[i].id);
        }
    }
    if (key->len_max > 0) sc_pack_u64(packer, "len_max", key->len_max);
    if (adapter) {
        sc_pack_name(packer, "adapter");
        (void)msgpack_pack_array(packer, 2);
        (void)msgpack_pack_uint64(packer, key->adapter_id);
        (void)msgpack_pack_uint64(packer, key->adapter_generation);
    }
    if (key->tenant) {
        sc_pack_name(packer, "tenant");
        (void)msgpack_pack_str_with_body(packer, key->tenant, key->tenant_bytes);
    }
    if (key->again) sc_pack_bool(packer, "again", true);
}

void sc_wire_key_room(const msgpack_object *object, uint32_t *tokens_out, uint32_t *marks_out)
{
    struct sc_map map = {object, 0};
    *tokens_out = *marks_out = 0;
    if (object->type != MSGPACK_OBJECT_MAP) return;
    for (uint32_t i = 0; i < object->via.map.size; i++) {
        if (object->via.map.ptr[i].key.type != MSGPACK_OBJECT_STR) return;
    }
    const msgpack_object *tokens = sc_map_find(&map, "tokens");
    const msgpack_object *marks = sc_map_find(&map, "marks");
    if (tokens && tokens->type == MSGPACK_OBJECT_BIN) *tokens_out = tokens->via.bin.size / 4;
    if (marks && marks->type == MSGPACK_OBJECT_ARRAY) *marks_out = marks->via.array.size;
}

static sc_status read_marks(const msgpack_object_array *array, sc_mark *marks, uint32_t mark_max,
    struct sc_wire_key *key)
{
    if (array->size > mark_max) {
        return SC_FAULT(SC_ERR_LIMIT, "%u marks, %u are possible", array->size, mark_max);
    }
    for (uint32_t i = 0; i < array->size; i++) {
        const msgpack_object_array *pair = &array->ptr[i].via.array;
        if (array->ptr[i].type != MSGPACK_OBJECT_ARRAY || pair->size != 2 ||
            !is_uint(&pair->ptr[0], UINT32_MAX) || pair->ptr[1].type != MSGPACK_OBJECT_BIN ||
            pair->ptr[1].via.bin.size != sizeof marks[i].id) {
            return SC_FAULT(SC_ERR_INVALID, "marks[%u]: [position, bin of 16] is expected", i);
        }
        marks[i].at = (uint32_t)pair->ptr[0].via.u64;
        memcpy(marks[i].id, pair->ptr[1].via.bin.ptr, sizeof marks[i].id);
        if (i > 0 && marks[i].at <= marks[i - 1].at) {
            return SC_FAULT(SC_ERR_INVALID, "marks[%u]: positions must ascend", i);
        }
        if (marks[i].at >= key->token_count) {
            return SC_FAULT(SC_ERR_INVALID, "marks[%u]: it lies behind the tokens", i);
        }
    }
    key->marks = marks;
    key->mark_count = array->size;
    return SC_OK;
}

static sc_status read_adapter(struct sc_map *map, struct sc_wire_key *key)
{
    const msgpack_object_array *adapter = NULL;
    SC_PASS(sc_map_array(map, "adapter", false, &adapter));
    if (!adapter) return SC_OK;
    if (adapter->size != 2 || !is_uint(&adapter->ptr[0], UINT64_MAX) ||
        !is_uint(&adapter->ptr[1], UINT64_MAX)) {
        return SC_FAULT(SC_ERR_INVALID, "adapter: [id, generation] is expected");
    }
    key->adapter_id = adapter->ptr[0].via.u64;
    key->adapter_generation = adapter->ptr[1].via.u64;
    return SC_OK;
}

sc_status sc_wire_key_read(const msgpack_object *object, int32_t *tokens, uint32_t token_max,
    sc_mark *marks, uint32_t mark_max, struct sc_wire_key *key_out)
{
    struct sc_map map;
    struct sc_bytes bytes = {NULL, 0}, tenant = {NULL, 0};
    const msgpack_object_array *array = NULL;
    *key_out = (struct sc_wire_key){.tokens = tokens};
    SC_PASS(sc_map_begin(&map, object));
    SC_PASS(sc_map_bin(&map, "tokens", true, &bytes));
    if (bytes.count == 0 || bytes.count % sizeof *tokens != 0) {
        return SC_FAULT(SC_ERR_INVALID, "tokens: %u bytes are no int32 numbers", bytes.count);
    }
    if (bytes.count / sizeof *tokens > token_max) {
        return SC_FAULT(SC_ERR_LIMIT, "%zu tokens, %u are possible", bytes.count / sizeof *tokens,
            token_max);
    }
    key_out->token_count = bytes.count / (uint32_t)sizeof *tokens;
    memcpy(tokens, bytes.data, bytes.count);
    SC_PASS(sc_map_array(&map, "marks", false, &array));
    if (array) SC_PASS(read_marks(array, marks, mark_max, key_out));
    SC_PASS(sc_map_u32(&map, "len_max", false, key_out->token_count, &key_out->len_max));
    SC_PASS(read_adapter(&map, key_out));
    SC_PASS(sc_map_str(&map, "tenant", false, &tenant));
    if (tenant.data) {
        key_out->tenant = tenant.data;
        key_out->tenant_bytes = tenant.count;
    }
    SC_PASS(sc_map_bool(&map, "again", &key_out->again));
    return sc_map_done(&map);
}

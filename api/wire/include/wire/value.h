/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and their values: what MessagePack-RPC says, and typed reading of maps.
 *
 *   request        [0, id, method, [params]]      params: one map
 *   response       [1, id, error, result]         error: nil or [code, name, text]
 *   notification   [2, method, [params]]
 *
 * Values point into the message's bytes and its zone. Every read names the member that is wrong:
 * errors are the record of fault.h. */
#ifndef SC_WIRE_VALUE_H
#define SC_WIRE_VALUE_H

#include <msgpack.h>

#include "statecache/mark.h"
#include "statecache/status.h"

enum { SC_WIRE_VERSION = 1 };

enum sc_wire_kind { SC_WIRE_REQUEST = 0, SC_WIRE_RESPONSE = 1, SC_WIRE_NOTIFICATION = 2 };

struct sc_message {
    enum sc_wire_kind kind;
    uint64_t id;                 /* request, response */
    const char *method;          /* not terminated; NULL in a response */
    uint32_t method_bytes;
    const msgpack_object *params; /* a map; NULL: there are none */
    const msgpack_object *error;  /* response; NULL: success */
    const msgpack_object *result;
};

/* Takes a whole message apart. SC_ERR_INVALID; then `*id_known_out` says whether `id` was read, so
 * that an answer can be given. */
sc_status sc_message_read(const msgpack_object *object, struct sc_message *message_out,
    bool *id_known_out);

/* A cursor over a map: each get notes the member as known. Members that nobody asked for are an
 * error in sc_map_done, since they are mistakes. */
struct sc_map {
    const msgpack_object *object; /* NULL: an empty map */
    uint64_t seen;                /* bit for each member */
};

enum { SC_MAP_MEMBERS_MAX = 64 };

/* SC_ERR_INVALID: no map, too many members, keys that are no str or appear twice. */
sc_status sc_map_begin(struct sc_map *map, const msgpack_object *object);
/* SC_ERR_INVALID, naming the first member that was not asked for. */
sc_status sc_map_done(const struct sc_map *map);
/* NULL: there is none, or it is nil. */
const msgpack_object *sc_map_find(struct sc_map *map, const char *name);
/* Reads a member; absent: `*out` keeps its value, unless `must`. SC_ERR_INVALID with its name. */
sc_status sc_map_u64(struct sc_map *map, const char *name, bool must, uint64_t max, uint64_t *out);
sc_status sc_map_u32(struct sc_map *map, const char *name, bool must, uint32_t max, uint32_t *out);
sc_status sc_map_bool(struct sc_map *map, const char *name, bool *out);
/* str or bin: points into the message. */
struct sc_bytes { const void *data; uint32_t count; };
sc_status sc_map_bin(struct sc_map *map, const char *name, bool must, struct sc_bytes *out);
sc_status sc_map_str(struct sc_map *map, const char *name, bool must, struct sc_bytes *out);
sc_status sc_map_array(struct sc_map *map, const char *name, bool must,
    const msgpack_object_array **out);

/* Packing. A failure of memory shows in the buffer at the end: sc_pack_failed. */
void sc_pack_name(msgpack_packer *packer, const char *name);
void sc_pack_str(msgpack_packer *packer, const char *name, const char *text);
void sc_pack_u64(msgpack_packer *packer, const char *name, uint64_t value);
void sc_pack_bool(msgpack_packer *packer, const char *name, bool value);
void sc_pack_bin(msgpack_packer *packer, const char *name, const void *data, size_t count);

/* A prompt as it travels: {"tokens": bin, "marks": [[at, bin 16] ...], "len_max": n,
 * "adapter": [id, generation], "tenant": str, "again": bool}. */
struct sc_wire_key {
    const int32_t *tokens;
    uint32_t token_count;
    const sc_mark *marks;
    uint32_t mark_count;
    uint32_t len_max;
    uint64_t adapter_id, adapter_generation;
    const char *tenant; /* NULL: that of the session */
    uint32_t tenant_bytes;
    bool again;         /* of a request that was preempted: SC_REQUEST_AGAIN */
};
void sc_pack_key(msgpack_packer *packer, const struct sc_wire_key *key);
/* `tokens` has room for token_max, `marks` for mark_max. Errors name what is wrong:
 * SC_ERR_INVALID, SC_ERR_LIMIT. */
sc_status sc_wire_key_read(const msgpack_object *object, int32_t *tokens, uint32_t token_max,
    sc_mark *marks, uint32_t mark_max, struct sc_wire_key *key_out);
/* How much room that needs; 0 where the object is no key. */
void sc_wire_key_room(const msgpack_object *object, uint32_t *tokens_out, uint32_t *marks_out);

#endif

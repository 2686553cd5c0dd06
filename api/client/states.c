/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups, states that are held, states that are written. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client_internal.h"

enum { CHUNK_BYTES = 1 << 20 };

/* ---- what is mapped for the caller; under the client's lock ---- */

static sc_status map_room(sc_client *client, uint32_t more)
{
    if (client->map_count + more <= client->map_cap) return SC_OK;
    uint32_t cap = client->map_cap * 2 + more;
    struct client_map *maps = realloc(client->maps, cap * sizeof *maps);
    if (!maps) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
    client->maps = maps;
    client->map_cap = cap;
    return SC_OK;
}

static void unmap(sc_client *client, uint64_t id)
{
    for (uint32_t i = 0; i < client->map_count; i++) {
        struct client_map map = client->maps[i];
        if (map.id != id) continue;
        if (map.copy) {
            free(map.data);
        } else if (map.data) {
            (void)munmap(map.data, map.bytes);
        }
        client->maps[i] = client->maps[--client->map_count];
        return;
    }
}

static const struct client_map *find_map(const sc_client *client, uint64_t id)
{
    for (uint32_t i = 0; i < client->map_count; i++) {
        if (client->maps[i].id == id) return &client->maps[i];
    }
    return NULL;
}

/* Maps a file of the answer; room for it is there. */
static sc_status map_file(struct client_call *call, uint64_t id, int protection, void **data_out)
{
    sc_client *client = call->client;
    uint64_t bytes = client->info.file_bytes;
    int fd = sc_call_file(call);
    struct stat file;
    if (fd < 0) return sc_call_wrong(call, "a file is missing");
    if (fstat(fd, &file) != 0 || file.st_size < 0 || (uint64_t)file.st_size < bytes) {
        (void)close(fd);
        return sc_call_wrong(call, "a file is too short");
    }
    void *data = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    int code = errno;
    (void)close(fd);
    if (data == MAP_FAILED) {
        return SC_FAULT_SYS(SC_ERR_NO_MEMORY, code, "cannot map a state: %s", strerror(code));
    }
    client->maps[client->map_count++] = (struct client_map){id, data, bytes, false};
    *data_out = data;
    return SC_OK;
}

static sc_status map_copy(sc_client *client, uint64_t id, void **data_out)
{
    void *data = calloc(1, client->info.file_bytes);
    if (!data) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for a state");
    client->maps[client->map_count++] =
        (struct client_map){id, data, client->info.file_bytes, true};
    *data_out = data;
    return SC_OK;
}

/* ---- keys ---- */

sc_status client_check_keys(const sc_client_key *keys, uint32_t count)
{
    if (!keys || count == 0) return SC_FAULT(SC_ERR_INVALID, "keys are needed");
    for (uint32_t i = 0; i < count; i++) {
        if (!keys[i].tokens || keys[i].token_count == 0 ||
            (keys[i].flags & ~(uint32_t)SC_REQUEST_AGAIN) != 0 ||
            (!keys[i].marks && keys[i].mark_count > 0)) {
            return SC_FAULT(SC_ERR_INVALID, "key %u: tokens are needed, and no other flag than "
                "SC_REQUEST_AGAIN", i);
        }
    }
    return SC_OK;
}

void client_pack_key(msgpack_packer *packer, const sc_client_key *key)
{
    const struct sc_wire_key wire = {.tokens = key->tokens, .token_count = key->token_count,
        .marks = key->marks, .mark_count = key->mark_count, .len_max = key->len_max,
        .adapter_id = key->adapter_id, .adapter_generation = key->adapter_generation,
        .tenant = key->tenant,
        .tenant_bytes = key->tenant ? (uint32_t)strlen(key->tenant) : 0,
        .again = key->flags & SC_REQUEST_AGAIN};
    sc_pack_key(packer, &wire);
}

static void pack_keys(msgpack_packer *packer, const sc_client_key *keys, uint32_t count)
{
    sc_pack_name(packer, "keys");
    (void)msgpack_pack_array(packer, count);
    for (uint32_t i = 0; i < count; i++) client_pack_key(packer, &keys[i]);
}

/* The result as an array of `count`. NULL: it is none. */
static const msgpack_object *items_of(const struct client_call *call, uint32_t count)
{
    const msgpack_object *result = call->result;
    bool good = result->type == MSGPACK_OBJECT_ARRAY && result->via.array.size == count;
    return good ? result->via.array.ptr : NULL;
}

/* ---- look-up ---- */

static bool read_answer(const msgpack_object *object, const sc_client_key *key,
    sc_answer *answer)
{
    const msgpack_object *items = object->via.array.ptr;
    uint32_t reason = 0;
    *answer = (sc_answer){.kv_len = 0};
    if (object->type != MSGPACK_OBJECT_ARRAY || object->via.array.size < 7 ||
        items[1].type != MSGPACK_OBJECT_ARRAY || items[1].via.array.size != SC_TIER_COUNT ||
        items[6].type != MSGPACK_OBJECT_ARRAY || items[6].via.array.size != SC_TIER_COUNT) {
        return false;
    }
    for (uint32_t i = 0; i < SC_TIER_COUNT; i++) {
        if (!client_u32(&items[1].via.array.ptr[i], &answer->state_len[i]) ||
            answer->state_len[i] > key->token_count ||
            !client_u64(&items[6].via.array.ptr[i], UINT64_MAX, &answer->restore_ns[i])) {
            return false;
        }
    }
    bool good = client_status(&items[0], &answer->status) &&
        client_u32(&items[2], &answer->kv_len) && client_u32(&items[3], &answer->branch_len) &&
        client_u32(&items[4], &answer->pending_len) && client_u32(&items[5], &reason);
    answer->reason = (sc_reason)reason;
    return good;
}

sc_status sc_client_lookup(sc_client *client, const sc_client_key *keys, uint32_t count,
    sc_answer *answers_out)
{
    struct client_call call;
    if (!client || !answers_out) return SC_FAULT(SC_ERR_INVALID, "client and answers are needed");
    SC_PASS(client_check_keys(keys, count));
    sc_call_begin(&call, client, "lookup");
    (void)msgpack_pack_map(&call.packer, 1);
    pack_keys(&call.packer, keys, count);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK) {
        const msgpack_object *items = items_of(&call, count);
        bool good = items != NULL;
        for (uint32_t i = 0; good && i < count; i++) {
            good = read_answer(&items[i], &keys[i], &answers_out[i]);
        }
        if (!good) status = sc_call_wrong(&call, "answers of a look-up");
    }
    sc_call_end(&call);
    return status;
}

/* ---- acquire, release ---- */

/* The service gives these back; nothing is mapped. Under the lock, which the call holds. */
static sc_status give_back(sc_client *client, const uint64_t *ids, uint32_t count)
{
    struct client_call call;
    sc_status status = SC_OK;
    sc_call_begin(&call, client, "release");
    (void)msgpack_pack_map(&call.packer, 1);
    sc_pack_name(&call.packer, "leases");
    (void)msgpack_pack_array(&call.packer, count);
    for (uint32_t i = 0; i < count; i++) (void)msgpack_pack_uint64(&call.packer, ids[i]);
    for (uint32_t i = 0; i < count; i++) unmap(client, ids[i]);
    status = sc_call_run(&call);
    const msgpack_object *items = status == SC_OK ? items_of(&call, count) : NULL;
    for (uint32_t i = 0; status == SC_OK && i < count; i++) {
        sc_status each;
        if (!items || !client_status(&items[i], &each)) {
            status = sc_call_wrong(&call, "statuses of a release");
        } else if (each != SC_OK) {
            status = SC_FAULT(each, "lease %llu is not held", (unsigned long long)ids[i]);
        }
    }
    sc_call_end(&call);
    return status;
}

/* [status, lease, len, reason, text]: a lease if and only if there is a state, and no failure. */
bool client_read_item(const msgpack_object *object, const sc_client_key *key,
    sc_client_state *state, sc_status *each, const msgpack_object_str **text_out)
{
    const msgpack_object *items = object->via.array.ptr;
    uint32_t reason = 0;
    *state = (sc_client_state){.lease = 0};
    if (object->type != MSGPACK_OBJECT_ARRAY || object->via.array.size < 5 ||
        items[4].type != MSGPACK_OBJECT_STR || !client_status(&items[0], each) ||
        !client_u64(&items[1], UINT64_MAX, &state->lease) || !client_u32(&items[2], &state->len) ||
        !client_u32(&items[3], &reason) || (state->lease != 0) != (state->len > 0) ||
        (*each != SC_OK && state->lease != 0) || state->len > key->token_count) {
        *state = (sc_client_state){.lease = 0};
        return false;
    }
    state->reason = (sc_reason)reason;
    *text_out = &items[4].via.str;
    return true;
}

static sc_status acquire(struct client_call *call, const sc_client_key *keys, uint32_t count,
    sc_client_state *states, sc_status *each)
{
    sc_client *client = call->client;
    SC_PASS(map_room(client, count));
    SC_PASS(sc_call_run(call));
    const msgpack_object *items = items_of(call, count);
    if (!items) return sc_call_wrong(call, "items of an acquire");
    for (uint32_t i = 0; i < count; i++) {
        const msgpack_object_str *text;
        void *data = NULL;
        if (!client_read_item(&items[i], &keys[i], &states[i], &each[i], &text)) {
            return sc_call_wrong(call, "an item of an acquire");
        }
        if (each[i] != SC_OK) {
            (void)SC_FAULT(each[i], "%.*s", (int)(text->size & 0xffff), text->ptr);
        }
        if (states[i].lease == 0) continue;
        if (find_map(client, states[i].lease)) { /* another's, who goes on reading it */
            states[i] = (sc_client_state){.lease = 0};
            return sc_call_wrong(call, "a lease that is held already");
        }
        SC_PASS(client->info.files ? map_file(call, states[i].lease, PROT_READ, &data) :
            map_copy(client, states[i].lease, &data));
        states[i].data = data;
        states[i].bytes = client->info.file_bytes;
    }
    return SC_OK;
}

/* The bytes of a state, piece by piece. */
static sc_status fetch(sc_client *client, const sc_client_state *state, uint8_t *data)
{
    for (uint64_t at = 0; at < state->bytes;) {
        struct client_call call;
        struct sc_map map;
        struct sc_bytes piece = {NULL, 0};
        sc_call_begin(&call, client, "read");
        (void)msgpack_pack_map(&call.packer, 3);
        sc_pack_u64(&call.packer, "lease", state->lease);
        sc_pack_u64(&call.packer, "offset", at);
        sc_pack_u64(&call.packer, "count", CHUNK_BYTES < client->info.frame_bytes / 2 ?
            CHUNK_BYTES : client->info.frame_bytes / 2);
        sc_status status = sc_call_run(&call);
        if (status == SC_OK && (sc_map_begin(&map, call.result) != SC_OK ||
            sc_map_bin(&map, "data", true, &piece) != SC_OK || piece.count == 0 ||
            piece.count > state->bytes - at)) {
            status = sc_call_wrong(&call, "bytes of a state");
        }
        if (status == SC_OK) memcpy(data + at, piece.data, piece.count);
        at += piece.count;
        sc_call_end(&call);
        if (status != SC_OK) return status;
    }
    return SC_OK;
}

sc_status sc_client_release(sc_client *client, sc_client_state *states, uint32_t count)
{
    sc_status status = SC_OK;
    if (!client || (!states && count > 0)) {
        return SC_FAULT(SC_ERR_INVALID, "client and states are needed");
    }
    for (uint32_t i = 0; i < count;) {
        uint64_t ids[64];
        uint32_t id_count = 0;
        for (; i < count && id_count < 64; i++) {
            if (states[i].lease != 0) ids[id_count++] = states[i].lease;
            states[i] = (sc_client_state){.lease = 0};
        }
        sc_status each = id_count > 0 ? give_back(client, ids, id_count) : SC_OK;
        if (status == SC_OK) status = each;
    }
    return status;
}

sc_status sc_client_acquire(sc_client *client, const sc_client_key *keys, uint32_t count,
    uint32_t deadline_ms, sc_client_state *states_out, sc_status *each_out)
{
    struct client_call call;
    if (!client || !states_out || !each_out) {
        return SC_FAULT(SC_ERR_INVALID, "client, states and statuses are needed");
    }
    SC_PASS(client_check_keys(keys, count));
    for (uint32_t i = 0; i < count; i++) {
        states_out[i] = (sc_client_state){.lease = 0};
        each_out[i] = SC_OK;
    }
    sc_call_begin(&call, client, "acquire");
    (void)msgpack_pack_map(&call.packer, 2);
    pack_keys(&call.packer, keys, count);
    sc_pack_u64(&call.packer, "deadline_ms", deadline_ms);
    sc_status status = acquire(&call, keys, count, states_out, each_out);
    sc_call_end(&call);
    for (uint32_t i = 0; status == SC_OK && !client->info.files && i < count; i++) {
        const sc_client_state *state = &states_out[i];
        if (state->lease != 0) status = fetch(client, state, (uint8_t *)(uintptr_t)state->data);
    }
    if (status != SC_OK) {
        sc_error_info kept = *sc_fault_last();
        (void)sc_client_release(client, states_out, count);
        return sc_fault_take(&kept);
    }
    return SC_OK;
}

sc_status sc_client_detach(sc_client *client, const sc_client_state *state,
    sc_client_bytes *bytes_out)
{
    sc_status status = SC_ERR_STALE;
    if (!client || !state || !bytes_out) {
        return SC_FAULT(SC_ERR_INVALID, "client, state and bytes are needed");
    }
    (void)pthread_mutex_lock(&client->lock);
    for (uint32_t i = 0; i < client->map_count; i++) {
        struct client_map *map = &client->maps[i];
        if (map->id != state->lease || !map->data || map->data != state->data) continue;
        *bytes_out = (sc_client_bytes){map->data, map->bytes, map->copy};
        map->data = NULL;
        status = SC_OK;
        break;
    }
    (void)pthread_mutex_unlock(&client->lock);
    if (status == SC_OK) return SC_OK;
    return SC_FAULT(SC_ERR_STALE, "%llu is no lease with bytes", (unsigned long long)state->lease);
}

void sc_client_bytes_free(sc_client_bytes *bytes)
{
    if (!bytes || !bytes->data) return;
    if (bytes->kind == 1) {
        free((void *)(uintptr_t)bytes->data);
    } else {
        (void)munmap((void *)(uintptr_t)bytes->data, bytes->bytes);
    }
    *bytes = (sc_client_bytes){NULL, 0, 0};
}

/* ---- writing ---- */

static sc_status begin(struct client_call *call, sc_client_write *write)
{
    sc_client *client = call->client;
    struct sc_map map;
    bool exists = false;
    uint64_t bytes = 0, id = 0;
    SC_PASS(map_room(client, 1));
    SC_PASS(sc_call_run(call));
    if (sc_map_begin(&map, call->result) != SC_OK ||
        sc_map_bool(&map, "exists", &exists) != SC_OK ||
        sc_map_u64(&map, "write", true, UINT64_MAX, &id) != SC_OK ||
        sc_map_u64(&map, "bytes", true, UINT64_MAX, &bytes) != SC_OK ||
        bytes != client->info.file_bytes || exists != (id == 0) || find_map(client, id)) {
        return sc_call_wrong(call, "the beginning of a write");
    }
    if (exists) return SC_OK;
    write->write = id;
    write->bytes = bytes;
    if (!client->info.files) return map_copy(client, id, &write->data);
    return map_file(call, id, PROT_READ | PROT_WRITE, &write->data);
}

static sc_status simple(sc_client *client, const char *method, uint64_t write, bool *stored_out)
{
    struct client_call call;
    struct sc_map map;
    sc_call_begin(&call, client, method);
    (void)msgpack_pack_map(&call.packer, 1);
    sc_pack_u64(&call.packer, "write", write);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK && stored_out && (sc_map_begin(&map, call.result) != SC_OK ||
        sc_map_bool(&map, "stored", stored_out) != SC_OK)) {
        status = sc_call_wrong(&call, "the end of a write");
    }
    sc_call_end(&call);
    return status;
}

sc_status sc_client_write_begin(sc_client *client, const sc_client_key *key,
    sc_client_write *write_out)
{
    struct client_call call;
    if (!client || !write_out) return SC_FAULT(SC_ERR_INVALID, "client and write are needed");
    SC_PASS(client_check_keys(key, 1));
    *write_out = (sc_client_write){.write = 0};
    sc_call_begin(&call, client, "write_begin");
    (void)msgpack_pack_map(&call.packer, 1);
    sc_pack_name(&call.packer, "key");
    client_pack_key(&call.packer, key);
    sc_status status = begin(&call, write_out);
    sc_call_end(&call);
    if (status == SC_OK || write_out->write == 0) return status;
    sc_error_info kept = *sc_fault_last();
    (void)sc_client_write_abort(client, write_out);
    return sc_fault_take(&kept);
}

/* What the caller filled goes over by bytes. */
static sc_status send_data(sc_client *client, const sc_client_write *write)
{
    uint64_t chunk = CHUNK_BYTES < client->info.frame_bytes / 2 ? CHUNK_BYTES :
        client->info.frame_bytes / 2;
    for (uint64_t at = 0; at < write->bytes; at += chunk) {
        struct client_call call;
        uint64_t count = write->bytes - at < chunk ? write->bytes - at : chunk;
        sc_call_begin(&call, client, "write_data");
        (void)msgpack_pack_map(&call.packer, 3);
        sc_pack_u64(&call.packer, "write", write->write);
        sc_pack_u64(&call.packer, "offset", at);
        sc_pack_bin(&call.packer, "data", (const uint8_t *)write->data + at, count);
        sc_status status = sc_call_run(&call);
        sc_call_end(&call);
        if (status != SC_OK) return status;
    }
    return SC_OK;
}

static bool is_open(sc_client *client, const sc_client_write *write, bool *copy_out)
{
    (void)pthread_mutex_lock(&client->lock);
    const struct client_map *map = find_map(client, write->write);
    bool open = map && map->data == write->data;
    *copy_out = open && map->copy;
    (void)pthread_mutex_unlock(&client->lock);
    return open;
}

static void forget(sc_client *client, uint64_t id)
{
    (void)pthread_mutex_lock(&client->lock);
    unmap(client, id);
    (void)pthread_mutex_unlock(&client->lock);
}

sc_status sc_client_write_commit(sc_client *client, sc_client_write *write, bool *stored_out)
{
    bool stored = false, copy = false;
    if (!client || !write) return SC_FAULT(SC_ERR_INVALID, "client and write are needed");
    if (!is_open(client, write, &copy)) {
        return SC_FAULT(SC_ERR_STALE, "%llu is no open write", (unsigned long long)write->write);
    }
    uint64_t id = write->write;
    sc_status status = copy ? send_data(client, write) : SC_OK;
    *write = (sc_client_write){.write = 0};
    forget(client, id); /* the service seals what nobody has mapped */
    if (status == SC_OK) status = simple(client, "write_commit", id, &stored);
    if (status == SC_OK && stored_out) *stored_out = stored;
    if (status == SC_OK || status == SC_ERR_CLOSED) return status;
    sc_error_info kept = *sc_fault_last();
    (void)simple(client, "write_abort", id, NULL); /* it may have ended by itself */
    return sc_fault_take(&kept);
}

sc_status sc_client_write_abort(sc_client *client, sc_client_write *write)
{
    if (!client || !write) return SC_FAULT(SC_ERR_INVALID, "client and write are needed");
    uint64_t id = write->write;
    *write = (sc_client_write){.write = 0};
    forget(client, id);
    return simple(client, "write_abort", id, NULL);
}

/* ---- parts ---- */

/* Part of a state of so many bytes. */
static bool read_part(const msgpack_object *object, uint64_t file_bytes, sc_client_part *part)
{
    static const uint64_t widths[] = {[SC_DTYPE_F32] = 4, [SC_DTYPE_BF16] = 2, [SC_DTYPE_F16] = 2,
        [SC_DTYPE_I32] = 4, [SC_DTYPE_U8] = 1};
    struct sc_map map;
    const msgpack_object_array *dims = NULL;
    uint32_t kind = 0, dtype = 0;
    memset(part, 0, sizeof *part);
    if (sc_map_begin(&map, object) != SC_OK ||
        sc_map_u32(&map, "layer", true, UINT32_MAX, &part->layer) != SC_OK ||
        sc_map_u32(&map, "kind", true, SC_PART_EXTRA, &kind) != SC_OK ||
        sc_map_u32(&map, "index", true, UINT32_MAX, &part->index) != SC_OK ||
        sc_map_u32(&map, "dtype", true, SC_DTYPE_U8, &dtype) != SC_OK || dtype == 0 ||
        sc_map_u64(&map, "offset", true, UINT64_MAX, &part->offset) != SC_OK ||
        sc_map_u64(&map, "bytes", true, UINT64_MAX, &part->bytes) != SC_OK ||
        sc_map_array(&map, "dims", true, &dims) != SC_OK || dims->size > SC_DIMS_MAX) {
        return false;
    }
    part->kind = (sc_part_kind)kind;
    part->dtype = (sc_dtype)dtype;
    part->dim_count = dims->size;
    uint64_t bytes = widths[dtype];
    for (uint32_t i = 0; i < dims->size; i++) {
        if (!client_u32(&dims->ptr[i], &part->dims[i]) ||
            __builtin_mul_overflow(bytes, (uint64_t)part->dims[i], &bytes)) {
            return false;
        }
    }
    return bytes == part->bytes && bytes <= file_bytes && part->offset <= file_bytes - bytes;
}

sc_status sc_client_parts(sc_client *client, sc_client_part *parts_out, uint32_t cap,
    uint32_t *count_out)
{
    struct client_call call;
    struct sc_map map;
    const msgpack_object_array *parts = NULL;
    if (!client || !count_out || (!parts_out && cap > 0)) {
        return SC_FAULT(SC_ERR_INVALID, "client, parts and their count are needed");
    }
    sc_call_begin(&call, client, "schema");
    (void)msgpack_pack_map(&call.packer, 0);
    sc_status status = sc_call_run(&call);
    if (status == SC_OK && (sc_map_begin(&map, call.result) != SC_OK ||
        sc_map_array(&map, "parts", true, &parts) != SC_OK)) {
        status = sc_call_wrong(&call, "a schema");
    }
    if (status == SC_OK) *count_out = parts->size;
    if (status == SC_OK && parts->size > cap) {
        status = SC_FAULT(SC_ERR_LIMIT, "%u parts, there is room for %u", parts->size, cap);
    }
    for (uint32_t i = 0; status == SC_OK && i < parts->size; i++) {
        if (!read_part(&parts->ptr[i], client->info.file_bytes, &parts_out[i])) {
            status = sc_call_wrong(&call, "a part");
        }
    }
    sc_call_end(&call);
    return status;
}

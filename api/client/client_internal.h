/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to statecached, and one call on it.
 *
 *   sc_call_begin  lock; [0, id, method, [ ... the caller packs one map ...
 *   sc_call_run    ]] -> send -> receive one response and the files that came with it
 *   sc_call_end    unlock; files that nobody took are closed
 *
 * One response is outstanding at a time, so files and bytes cannot be mixed up. After a failure of
 * the connection `broken` says why, and every later call fails with it. */
#ifndef SC_CLIENT_CLIENT_INTERNAL_H
#define SC_CLIENT_CLIENT_INTERNAL_H

#include <pthread.h>

#include "statecache/client.h"
#include "wire/fault.h"
#include "wire/frame.h"
#include "wire/value.h"

enum { SC_CLIENT_FDS_MAX = 256, SC_CLIENT_MAPS_MAX = 4096 };

/* What is mapped for the caller; or, with `data` NULL, what was, and is the caller's own now. */
struct client_map {
    uint64_t id;
    void *data;
    uint64_t bytes;
    bool copy;             /* memory of the heap: states that came by bytes */
};

struct sc_client {
    int fd;
    uint32_t timeout_ms;
    /* As they were given, for a new connection. */
    char *address, *token, *tenant;
    sc_fingerprint fingerprint;
    bool has_fingerprint;
    uint64_t next_id;
    sc_error_info broken;  /* status SC_OK: it is whole */
    sc_client_info info;
    pthread_mutex_t lock;
    uint8_t *in;
    size_t in_count, in_cap;
    int fds[SC_CLIENT_FDS_MAX];
    uint32_t fd_count, fd_taken;
    struct client_map *maps;
    uint32_t map_count, map_cap;
};

struct client_call {
    sc_client *client;
    msgpack_sbuffer out;
    msgpack_packer packer;
    msgpack_unpacked unpacked;
    const msgpack_object *result;
};

/* The caller packs one map, then runs it. Always end it. */
void sc_call_begin(struct client_call *call, sc_client *client, const char *method);
sc_status sc_call_run(struct client_call *call);
void sc_call_end(struct client_call *call);
/* The next file of the response; -1: there is none. It is the caller's. */
int sc_call_file(struct client_call *call);
/* The answer is not what the protocol says: the connection is broken. */
sc_status sc_call_wrong(struct client_call *call, const char *what);

/* Unsigned numbers of an answer; false: it is none. */
static inline bool client_u64(const msgpack_object *object, uint64_t max, uint64_t *out)
{
    if (object->type != MSGPACK_OBJECT_POSITIVE_INTEGER || object->via.u64 > max) return false;
    *out = object->via.u64;
    return true;
}
static inline bool client_u32(const msgpack_object *object, uint32_t *out)
{
    uint64_t value = 0;
    if (!client_u64(object, UINT32_MAX, &value)) return false;
    *out = (uint32_t)value;
    return true;
}
bool client_status(const msgpack_object *object, sc_status *out);

/* states.c */
sc_status client_check_keys(const sc_client_key *keys, uint32_t count);
void client_pack_key(msgpack_packer *packer, const sc_client_key *key);
/* One item of an acquire or a pin of this key. False: it is none. */
bool client_read_item(const msgpack_object *object, const sc_client_key *key,
    sc_client_state *state, sc_status *each, const msgpack_object_str **text_out);

/* transport.c */
sc_status sc_client_connect(const char *address, uint32_t timeout_ms, int *fd_out);
/* SC_ERR_CLOSED, SC_ERR_IO. */
sc_status sc_client_send(int fd, const void *bytes, size_t count, uint64_t deadline_ns);
/* At least one byte; files go behind those that wait. */
sc_status sc_client_receive(sc_client *client, uint64_t deadline_ns);

#endif

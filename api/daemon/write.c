/* SPDX-License-Identifier: Apache-2.0 */
/* States that clients write: a slot is taken first, so that what is written has a place.
 *
 *   write_begin    room? quota? slot taken, an empty file for it (size sealed) -> client
 *   (the client writes into the file, or sends write_data, and unmaps it)
 *   write_commit   a worker seals and checks the file -> mapped over the slot -> published
 *
 * The seal comes before the check: what was checked is what others will read. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server.h"

/* Whether this state is there already, in whatever tier. */
static sc_status exists(struct sd_server *server, const sc_key *key, bool *exists_out)
{
    sc_answer answer;
    sc_key whole = *key;
    whole.len_max = key->token_count;
    SC_PASS(sd_library(sc_cache_lookup(server->store.cache, &whole, 1, &answer)));
    SC_PASS(sd_library(answer.status));
    *exists_out = false;
    for (uint32_t i = 0; i < SC_TIER_COUNT; i++) {
        if (answer.state_len[i] == key->token_count) *exists_out = true;
    }
    return SC_OK;
}

/* Counts the bytes of what will be written. `*tenant_out` NULL: it is nobody's. */
static sc_status charge(struct sd_call *call, const struct sc_wire_key *key,
    struct sd_tenant **tenant_out)
{
    struct sd_server *server = call->server;
    const char *name;
    size_t bytes;
    *tenant_out = NULL;
    SC_PASS(sd_tenant_of(call, key, &name, &bytes));
    if (bytes == 0) return SC_OK;
    SC_PASS(sd_tenant_get(&server->tenants, name, bytes, tenant_out));
    return sd_tenant_takes(*tenant_out, server->store.stride);
}

static sc_status take_slot(struct sd_call *call, const sc_key *key, int fd,
    struct sd_tenant *tenant, struct sd_tenant *owner, struct sd_hold **hold_out)
{
    struct sd_server *server = call->server;
    sc_request request = {.key = *key, .flags = SC_REQUEST_EXTERNAL};
    sc_lease lease;
    sc_lease_info info;
    sc_status each = SC_OK;
    request.external_len = key->token_count;
    request.key.len_max = 1; /* what is written is no hit */
    SC_PASS(sd_library(sc_cache_acquire(server->store.cache, &request, 1, sd_now_ns(), &lease,
        &each)));
    SC_PASS(sd_library(each));
    sc_status status = sd_library(sc_lease_info_get(server->store.cache, lease, &info));
    if (status == SC_OK) status = sd_store_spare(&server->store);
    if (status == SC_OK && info.state != SC_LEASE_WAITING) {
        status = SC_FAULT(SC_ERR_STATE, "the cache has this state");
    }
    if (status != SC_OK) {
        (void)sc_lease_release(server->store.cache, lease, 0, SC_RELEASE_DISCARD);
        return status;
    }
    struct sd_hold *hold = sd_hold_add(call->conn, SD_HOLD_WRITE, lease, owner);
    hold->len = key->token_count;
    hold->slot = (uint32_t)info.working_slot;
    hold->fd = fd;
    hold->tenant = tenant;
    *hold_out = hold;
    return SC_OK;
}

/* `*hold_out` NULL: the state is there already. */
static sc_status begin(struct sd_call *call, struct sd_hold **hold_out)
{
    struct sd_server *server = call->server;
    const struct sc_wire_key *key = server->keys;
    struct sd_tenant *tenant = NULL, *owner = NULL;
    sc_key made;
    uint32_t common = 0;
    int fd = -1;
    bool there = false;
    *hold_out = NULL;
    SC_PASS(sd_key_make(call, key, &made, &common));
    if (call->conn->bound && common >= key->token_count) {
        return SC_FAULT(SC_ERR_DENIED, "states of a common prompt are not written by a client that "
            "speaks for one tenant alone");
    }
    SC_PASS(exists(server, &made, &there));
    if (there) return SC_OK;
    SC_PASS(sd_hold_room(call->conn, SD_HOLD_WRITE));
    sd_store_sweep(&server->store);
    SC_PASS(sd_store_stage(&server->store, &fd));
    sc_status status = charge(call, key, &tenant);
    if (status != SC_OK) {
        (void)close(fd);
        return status;
    }
    status = sd_lease_of(call, key, &owner);
    if (status == SC_OK) {
        status = take_slot(call, &made, fd, tenant, owner, hold_out);
        if (status != SC_OK && owner) owner->leases--;
    }
    if (status != SC_OK) {
        if (tenant) sd_tenant_gives_back(tenant, server->store.stride);
        (void)close(fd);
    }
    return status;
}

void sd_write_begin(struct sd_call *call)
{
    struct sd_server *server = call->server;
    struct sd_hold *hold = NULL;
    uint32_t count = 0;
    bool files = call->conn->local;
    if (sd_keys_read(call, false, 1, &count) != SC_OK ||
        sc_map_bool(&call->params, "files", &files) != SC_OK ||
        sc_map_done(&call->params) != SC_OK || begin(call, &hold) != SC_OK) {
        server->count.write_refused++;
        sd_reply_fault(call);
        return;
    }
    files = files && call->conn->local;
    server->count.writes += hold != NULL;
    server->count.write_exists += hold == NULL;
    sd_server_changed(server);
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 3);
    sc_pack_bool(packer, "exists", hold == NULL);
    sc_pack_u64(packer, "write", hold ? sd_hold_id(hold) : 0);
    sc_pack_u64(packer, "bytes", server->store.stride);
    sd_reply_end(call, hold ? &hold->fd : NULL, hold && files ? 1 : 0);
}

void sd_write_data(struct sd_call *call)
{
    uint64_t id = 0, offset = 0;
    struct sc_bytes data = {NULL, 0};
    struct sd_hold *hold = NULL;
    if (sc_map_u64(&call->params, "write", true, UINT64_MAX, &id) != SC_OK ||
        sc_map_u64(&call->params, "offset", true, call->server->store.stride, &offset) != SC_OK ||
        sc_map_bin(&call->params, "data", true, &data) != SC_OK ||
        sc_map_done(&call->params) != SC_OK ||
        sd_hold_find(call->conn, id, SD_HOLD_WRITE, &hold) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    if (data.count > call->server->store.stride - offset) {
        (void)SC_FAULT(SC_ERR_INVALID, "data: it goes beyond the end of the state");
        sd_reply_fault(call);
        return;
    }
    if (hold->sealed) {
        (void)SC_FAULT(SC_ERR_STATE, "the state is sealed: it is being committed");
        sd_reply_fault(call);
        return;
    }
    for (size_t at = 0; at < data.count;) {
        ssize_t got = pwrite(hold->fd, (const uint8_t *)data.data + at, data.count - at,
            (off_t)(offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            (void)SC_FAULT_SYS(SC_ERR_NO_MEMORY, errno, "no memory for a state: %s",
                strerror(errno));
            sd_reply_fault(call);
            return;
        }
        at += (size_t)got;
    }
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 0);
    sd_reply_end(call, NULL, 0);
}

/* ---- commit ---- */

struct check {
    struct sd_work work;
    struct sd_call *call;
    struct sd_hold *hold;
    int fd;
    uint64_t bytes;
    bool sealed, has_hash;
    uint8_t hash[16];
    sc_status status;
    sc_error_info fault;
};

static void compare(struct check *check)
{
    void *memory = mmap(NULL, check->bytes, PROT_READ, MAP_SHARED, check->fd, 0);
    if (memory == MAP_FAILED) {
        check->status = SC_FAULT_SYS(SC_ERR_NO_MEMORY, errno, "cannot map a state: %s",
            strerror(errno));
    } else {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(memory, check->bytes));
        if (memcmp(canonical.digest, check->hash, sizeof check->hash) != 0) {
            check->status = SC_FAULT(SC_ERR_CORRUPT, "the state's bytes are not those of its hash");
        }
        (void)munmap(memory, check->bytes);
    }
}

/* Sealing walks over all pages of the file: a millisecond for a large state. */
static void check_work(struct sd_work *work)
{
    struct check *check = (struct check *)work;
    check->status = sd_file_seal(check->fd);
    check->sealed = check->status == SC_OK;
    if (check->sealed && check->has_hash) compare(check);
    if (check->status != SC_OK) check->fault = *sc_fault_last();
}

/* The sealed file becomes the slot's memory, and the state a snapshot. */
static sc_status publish(struct sd_server *server, struct sd_hold *hold, bool *stored_out)
{
    SC_PASS(sd_store_adopt(&server->store, hold->slot, hold->fd, hold->tenant));
    hold->fd = -1;
    SC_PASS(sd_library(sc_lease_filled(server->store.cache, hold->lease, NULL, 0, NULL, 0)));
    sc_lease_info info;
    SC_PASS(sd_library(sc_lease_info_get(server->store.cache, hold->lease, &info)));
    /* Published: the lease reads what it wrote, and has another slot to write. */
    *stored_out = info.source_slot == (int32_t)hold->slot && info.working_slot != info.source_slot;
    return SC_OK;
}

static void commit_end(struct sd_call *call, struct sd_hold *hold)
{
    struct sd_server *server = call->server;
    bool stored = false;
    sc_status status = publish(server, hold, &stored);
    sd_hold_end(server, hold); /* before the answer, which may end the connection and its holds */
    if (status == SC_OK) {
        server->count.written += stored;
        msgpack_packer *packer = sd_reply_begin(call);
        (void)msgpack_pack_map(packer, 1);
        sc_pack_bool(packer, "stored", stored);
        sd_reply_end(call, NULL, 0);
    } else {
        sd_reply_fault(call);
    }
}

static void check_done(struct sd_work *work)
{
    struct check *check = (struct check *)work;
    struct sd_call *call = check->call;
    struct sd_hold *hold = check->hold;
    bool gone = hold->conn == NULL; /* its client: what it did not wait for is not stored */
    hold->busy--;
    hold->sealed = check->sealed;
    if (check->status == SC_OK && !gone) {
        commit_end(call, hold);
    } else if (!check->sealed && !gone) { /* it can be tried again */
        (void)sc_fault_take(&check->fault);
        sd_reply_fault(call);
    } else {
        sd_hold_end(work->server, hold);
        work->server->count.write_given_up += gone;
        if (check->status != SC_OK) (void)sc_fault_take(&check->fault);
        if (!gone) sd_reply_fault(call);
    }
    sd_call_end(call);
    free(check);
}

static sc_status check_start(struct sd_call *call, struct sd_hold *hold,
    const struct sc_bytes *hash)
{
    struct check *check = calloc(1, sizeof *check);
    struct sd_call *kept = check ? sd_call_keep(call) : NULL;
    if (!kept) {
        free(check);
        return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
    }
    check->work.work = check_work;
    check->work.done = check_done;
    check->call = kept;
    check->hold = hold;
    check->fd = hold->fd;
    check->bytes = call->server->store.stride;
    check->has_hash = hash->data != NULL;
    if (hash->data) memcpy(check->hash, hash->data, sizeof check->hash);
    if (!sd_work_start(call->server, &check->work)) {
        kept->conn->calls--;
        free(kept);
        free(check);
        return SC_FAULT(SC_ERR_NO_MEMORY, "no worker");
    }
    sd_hold_busy(hold);
    return SC_OK;
}

void sd_write_commit(struct sd_call *call)
{
    uint64_t id = 0;
    struct sc_bytes hash = {NULL, 0};
    struct sd_hold *hold = NULL;
    sc_status status = sc_map_u64(&call->params, "write", true, UINT64_MAX, &id);
    if (status == SC_OK) status = sc_map_bin(&call->params, "hash", false, &hash);
    if (status == SC_OK) status = sc_map_done(&call->params);
    if (status == SC_OK && hash.data && hash.count != 16) {
        status = SC_FAULT(SC_ERR_INVALID, "hash: 16 bytes (XXH3-128, canonical) are expected");
    }
    if (status == SC_OK) status = sd_hold_find(call->conn, id, SD_HOLD_WRITE, &hold);
    if (status == SC_OK) status = check_start(call, hold, &hash);
    if (status != SC_OK) sd_reply_fault(call);
}

void sd_write_abort(struct sd_call *call)
{
    uint64_t id = 0;
    struct sd_hold *hold = NULL;
    if (sc_map_u64(&call->params, "write", true, UINT64_MAX, &id) != SC_OK ||
        sc_map_done(&call->params) != SC_OK ||
        sd_hold_find(call->conn, id, SD_HOLD_WRITE, &hold) != SC_OK) {
        sd_reply_fault(call);
        return;
    }
    sd_hold_end(call->server, hold);
    msgpack_packer *packer = sd_reply_begin(call);
    (void)msgpack_pack_map(packer, 0);
    sd_reply_end(call, NULL, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a client process does: threads, each with a connection of its own and sometimes the one that
 * all threads of the process share; operations drawn by weight. A connection that ends because the
 * service was restarted is opened again, and what it held is forgotten. Any other failure than
 * "not now" is a finding. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <msgpack.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stress_service.h"

enum { HELD_MAX = 6, KEYS_MAX = 6, OPEN_TRIES = 4000 };

struct held {
    struct sv_key key;
    sc_client_state state; /* data NULL: a pin */
};

/* A connection that all threads of the process use at the same time, for look-ups. */
struct common {
    pthread_rwlock_t lock; /* shared: to use it; alone: to open or close it */
    sc_client *client;
};

struct actor {
    const struct sv_world *world;
    struct sv_shared *shared;
    struct common *common;
    sc_client *client;
    struct sc_prng rng;
    struct sv_shape shape;
    struct held held[HELD_MAX];
    uint32_t held_count;
    sc_client_write left;  /* a write that was begun and is left alone; write 0: none */
    uint32_t epoch;
    pthread_t thread;
};

static uint32_t below(struct actor *a, uint32_t bound)
{
    return (uint32_t)sc_prng_below(&a->rng, bound);
}

static void count(_Atomic uint64_t *counter, uint64_t by)
{
    (void)atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static bool stopping(const struct actor *a)
{
    return atomic_load(&a->shared->stop);
}

/* ---- connections ---- */

static void declare_common(struct actor *a)
{
    struct sv_key key;
    for (uint32_t i = 0; sv_common_key(i, &key); i++) {
        const sc_client_key wire = sv_key_client(&key, 0);
        sc_status status = sc_client_common(a->client, &wire, false);
        if (status != SC_OK && status != SC_ERR_CLOSED) {
            sv_finding("common: %s", sc_client_last_error()->text);
        }
    }
}

static void close_client(struct actor *a)
{
    sc_client_close(a->client);
    a->client = NULL;
    a->held_count = 0;
    a->left = (sc_client_write){.write = 0};
}

static sc_status open_once(struct actor *a)
{
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    bool tcp = a->shared->tcp[0] != '\0' && below(a, 5) == 0;
    options.address = tcp ? a->shared->tcp : a->shared->address;
    options.token = tcp ? a->shared->token : NULL;
    a->epoch = atomic_load(&a->shared->epoch);
    return sc_client_open(&options, &a->client);
}

/* False: it is time to stop. */
static bool open_client(struct actor *a)
{
    for (uint32_t i = 0; i < OPEN_TRIES; i++) {
        sc_status status = open_once(a);
        if (status == SC_OK && sv_shape_read(a->client, &a->shape)) {
            declare_common(a); /* the service forgets them when it ends */
            count(&a->shared->opened, 1);
            return true;
        }
        if (status == SC_OK) close_client(a);
        if (status == SC_ERR_DENIED || status == SC_ERR_INVALID || status == SC_ERR_MISMATCH) {
            sv_finding("open: %s", sc_client_last_error()->text);
        }
        if (stopping(a)) return false;
        (void)usleep(5000); /* it is being restarted, or has too many clients */
    }
    sv_finding("nobody can connect: %s", sc_client_last_error()->text);
    return false;
}

/* By the shared connection, which is opened if need be. */
static sc_status common_lookup(struct actor *a, const sc_client_key *keys, uint32_t n,
    sc_answer *answers)
{
    struct common *common = a->common;
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    sc_status status = SC_ERR_CLOSED;
    options.address = a->shared->address;
    (void)pthread_rwlock_rdlock(&common->lock);
    sc_client *used = common->client;
    if (used) status = sc_client_lookup(used, keys, n, answers);
    (void)pthread_rwlock_unlock(&common->lock);
    if (status != SC_ERR_CLOSED) return status;
    (void)pthread_rwlock_wrlock(&common->lock);
    if (common->client == used) {
        sc_client_close(used);
        common->client = NULL;
        (void)sc_client_open(&options, &common->client);
    }
    (void)pthread_rwlock_unlock(&common->lock);
    return SC_ERR_AGAIN;
}

/* What may be said at any time. False: the connection has ended. */
static bool allowed(struct actor *a, sc_status status, const char *what)
{
    if (status == SC_OK || status == SC_ERR_AGAIN || status == SC_ERR_NO_SLOT ||
        status == SC_ERR_LIMIT) {
        if (status != SC_OK) count(&a->shared->refused, 1);
        return true;
    }
    if (status == SC_ERR_CLOSED && atomic_load(&a->shared->epoch) != a->epoch) {
        count(&a->shared->dead, 1);
        close_client(a);
        return false;
    }
    sv_finding("%s: %s: %s", what, sc_status_name(status), sc_client_last_error()->text);
    return false;
}

/* ---- states ---- */

static void check(struct actor *a, const struct sv_key *key, const sc_client_state *state,
    const char *when)
{
    uint64_t wrong = sv_check(key, state->len, &a->shape, state->data);
    count(&a->shared->words, a->shape.words);
    if (wrong == UINT64_MAX) return;
    sv_finding("%s: word %llu of the state of %u tokens (family %u, branch %u, tenant %s, adapter "
        "%u) is wrong: %016llx", when, (unsigned long long)wrong, state->len, key->family,
        key->branch, sv_tenant_name(key->tenant) ? sv_tenant_name(key->tenant) : "-", key->adapter,
        (unsigned long long)((const uint64_t *)state->data)[wrong]);
}

static bool same_key(const struct sv_key *one, const struct sv_key *other)
{
    return one->tenant == other->tenant && one->adapter == other->adapter &&
        one->count == other->count &&
        memcmp(one->tokens, other->tokens, one->count * sizeof one->tokens[0]) == 0;
}

/* What this actor holds, all can find; but what a tier has brought into the lease's own slot. */
static uint32_t held_len(struct actor *a, const struct sv_key *key)
{
    uint32_t len = 0;
    if (a->world->disk || a->world->host || a->shared->outside) return 0;
    for (uint32_t i = 0; i < a->held_count; i++) {
        if (!same_key(&a->held[i].key, key)) continue;
        if (a->held[i].state.len > len) len = a->held[i].state.len;
    }
    return len;
}

static struct sv_key draw_key(struct actor *a)
{
    struct sv_key key;
    if (a->held_count > 0 && below(a, 6) == 0) return a->held[below(a, a->held_count)].key;
    sv_key_draw(&key, &a->rng);
    return key;
}

static void check_answer(struct actor *a, const struct sv_key *key, const sc_answer *answer,
    uint32_t need)
{
    if (answer->status == SC_ERR_AGAIN) return; /* namespaces */
    if (answer->status != SC_OK) sv_finding("lookup: status %d", (int)answer->status);
    for (uint32_t t = 0; t < SC_TIER_COUNT; t++) {
        if (answer->state_len[t] < key->count) continue;
        sv_finding("lookup: %u of %u tokens in tier %u", answer->state_len[t], key->count, t);
    }
    uint32_t len = answer->state_len[SC_TIER_DEVICE];
    if (len < need) sv_finding("lookup: %u tokens, and %u are held", len, need);
    if (need > 0) count(&a->shared->held_hits, 1);
    if (answer->state_len[SC_TIER_HOST] || answer->state_len[SC_TIER_DISK]) {
        count(&a->shared->lower, 1);
    }
}

static void op_lookup(struct actor *a)
{
    struct sv_key keys[KEYS_MAX];
    sc_client_key wire[KEYS_MAX];
    sc_answer answers[KEYS_MAX];
    uint32_t n = 1 + below(a, KEYS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = draw_key(a);
        wire[i] = sv_key_client(&keys[i], 0);
    }
    sc_status status = below(a, 3) ? sc_client_lookup(a->client, wire, n, answers) :
        common_lookup(a, wire, n, answers);
    if (!allowed(a, status, "lookup") || status != SC_OK) return;
    /* Another service, which the shared connection has met first, does not know what is held. */
    bool same = atomic_load(&a->shared->epoch) == a->epoch;
    for (uint32_t i = 0; i < n; i++) {
        check_answer(a, &keys[i], &answers[i], same ? held_len(a, &keys[i]) : 0);
    }
}

static void give_back(struct actor *a, uint32_t index)
{
    struct held *held = &a->held[index];
    if (held->state.data) check(a, &held->key, &held->state, "before its release");
    sc_status status = sc_client_release(a->client, &held->state, 1);
    *held = a->held[--a->held_count];
    (void)allowed(a, status, "release");
}

static void op_release(struct actor *a)
{
    if (a->held_count > 0) give_back(a, below(a, a->held_count));
}

static void keep(struct actor *a, const struct sv_key *key, const sc_client_state *state)
{
    a->held[a->held_count++] = (struct held){*key, *state};
}

static void take(struct actor *a, const struct sv_key *key, sc_client_state *state,
    sc_status each, uint32_t need)
{
    struct sv_shared *shared = a->shared;
    if (each != SC_OK) {
        if (each != SC_ERR_AGAIN && each != SC_ERR_NO_SLOT) {
            sv_finding("acquire: %s: %s", sc_status_name(each), sc_client_last_error()->text);
        }
        count(&shared->refused, 1);
        return;
    }
    if (state->len >= key->count || (state->len > 0) != (state->lease != 0)) {
        sv_finding("acquire: %u of %u tokens, lease %llu", state->len, key->count,
            (unsigned long long)state->lease);
    }
    if (state->len < need) sv_finding("acquire: %u tokens, and %u are held", state->len, need);
    count(state->len > 0 ? &shared->hits : &shared->misses, 1);
    if (state->len == 0) return;
    check(a, key, state, "a hit");
    keep(a, key, state);
}

static void op_acquire(struct actor *a)
{
    struct sv_key keys[KEYS_MAX];
    sc_client_key wire[KEYS_MAX];
    sc_client_state states[KEYS_MAX];
    sc_status each[KEYS_MAX];
    uint32_t need[KEYS_MAX], n = 1 + below(a, 3), deadline = below(a, 8) ? 0 : 1 + below(a, 5);
    while (a->client && a->held_count + n > HELD_MAX) give_back(a, below(a, a->held_count));
    if (!a->client) return;
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = draw_key(a);
        wire[i] = sv_key_client(&keys[i], 0);
        need[i] = held_len(a, &keys[i]);
    }
    sc_status status = sc_client_acquire(a->client, wire, n, deadline, states, each);
    if (!allowed(a, status, "acquire") || status != SC_OK) return;
    for (uint32_t i = 0; i < n; i++) take(a, &keys[i], &states[i], each[i], need[i]);
    while (a->client && a->held_count > 1 && below(a, 3) > 0) give_back(a, a->held_count - 1);
}

/* ---- writing ---- */

/* Room for a state; false: there is none, or it is there already. */
static bool begin(struct actor *a, struct sv_key *key, sc_client_write *write)
{
    *key = draw_key(a);
    const sc_client_key wire = sv_key_client(key, 0);
    sc_status status = sc_client_write_begin(a->client, &wire, write);
    if (!allowed(a, status, "write_begin") || status != SC_OK) return false;
    if (write->write == 0) count(&a->shared->exists, 1);
    return write->write != 0;
}

static void fill(struct actor *a, const struct sv_key *key, const sc_client_write *write)
{
    uint64_t words = write->bytes / 8, half = below(a, (uint32_t)words + 1);
    sv_fill(key, key->count, write->data, 0, half);
    if (below(a, 4) == 0) (void)usleep(below(a, 3000)); /* to be killed here */
    sv_fill(key, key->count, write->data, half, words);
    if (a->shared->canary && below(a, 20) == 0) *(uint64_t *)write->data ^= 1;
}

static void op_write(struct actor *a)
{
    struct sv_key key;
    sc_client_write write;
    bool stored = false;
    if (!begin(a, &key, &write)) return;
    fill(a, &key, &write);
    if (!allowed(a, sc_client_write_commit(a->client, &write, &stored), "write_commit")) return;
    if (stored) count(&a->shared->written, 1);
}

/* Written and read at once, by this very client. */
static void op_write_held(struct actor *a)
{
    struct sv_key key;
    sc_client_write write;
    sc_client_state state;
    sc_status each = SC_OK;
    if (a->held_count == HELD_MAX || !begin(a, &key, &write)) return;
    fill(a, &key, &write);
    if (!allowed(a, sc_client_write_commit(a->client, &write, NULL), "write_commit")) return;
    const sc_client_key wire = sv_key_client(&key, key.count);
    sc_status status = sc_client_acquire(a->client, &wire, 1, 0, &state, &each);
    if (!allowed(a, status, "acquire") || status != SC_OK || each != SC_OK) return;
    if (state.len == 0) return;
    check(a, &key, &state, "after its commit");
    if (!allowed(a, sc_client_release(a->client, &state, 1), "release")) return;
}

static void op_abort(struct actor *a)
{
    struct sv_key key;
    sc_client_write write;
    if (!begin(a, &key, &write)) return;
    sv_fill(&key, key.count, write.data, 0, below(a, (uint32_t)(write.bytes / 8) + 1));
    if (a->left.write == 0 && below(a, 2)) {
        a->left = write; /* until the connection ends */
        return;
    }
    (void)allowed(a, sc_client_write_abort(a->client, &write), "write_abort");
}

/* A second mapping of the staging memory stays: the service must not take the state. */
static void op_still_mapped(struct actor *a)
{
    struct sv_key key;
    sc_client_write write;
    sc_client_info info = {.struct_size = sizeof info};
    if (sc_client_info_get(a->client, &info) != SC_OK || !info.files) return;
    if (!begin(a, &key, &write)) return;
    sv_fill(&key, key.count, write.data, 0, write.bytes / 8);
    uint64_t bytes = write.bytes;
    uint64_t *again = mremap(write.data, 0, bytes, MREMAP_MAYMOVE);
    if (again == MAP_FAILED) {
        (void)sc_client_write_abort(a->client, &write);
        return;
    }
    sc_status status = sc_client_write_commit(a->client, &write, NULL);
    memset(again, 0xff, 64); /* what others read must not change by this */
    (void)munmap(again, bytes);
    if (status == SC_ERR_BUSY) return;
    if (status == SC_OK) sv_finding("a state was taken that its writer can still change");
    (void)allowed(a, status, "write_commit");
}

static sc_status commit_hashed(struct actor *a, uint64_t write, const uint8_t *hash)
{
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    void *result = NULL;
    size_t bytes = 0;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    (void)msgpack_pack_map(&packer, 2);
    (void)msgpack_pack_str_with_body(&packer, "write", 5);
    (void)msgpack_pack_uint64(&packer, write);
    (void)msgpack_pack_str_with_body(&packer, "hash", 4);
    (void)msgpack_pack_bin_with_body(&packer, hash, 16);
    sc_status status = sc_client_call(a->client, "write_commit", buffer.data, buffer.size, &result,
        &bytes);
    msgpack_sbuffer_destroy(&buffer);
    sc_client_free(result);
    return status;
}

/* A commit with the hash of its bytes, or of others. */
static void op_hash(struct actor *a)
{
    struct sv_key key;
    sc_client_write write;
    sc_client_info info = {.struct_size = sizeof info};
    XXH128_canonical_t hash;
    bool wrong = below(a, 2);
    if (sc_client_info_get(a->client, &info) != SC_OK || !info.files) return;
    if (!begin(a, &key, &write)) return;
    sv_fill(&key, key.count, write.data, 0, write.bytes / 8);
    XXH128_canonicalFromHash(&hash, XXH3_128bits(write.data, write.bytes));
    if (wrong) hash.digest[below(a, 16)] ^= 1;
    /* Unmapped in fact, and still the library's to unmap. */
    void *hole = mmap(write.data, write.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
        -1, 0);
    if (hole != write.data) sv_finding("mmap failed");
    sc_status status = commit_hashed(a, write.write, hash.digest);
    if (status == SC_OK && wrong) sv_finding("a state was taken whose hash is another");
    if (status == SC_ERR_CORRUPT && wrong) status = SC_OK;
    if (!allowed(a, status, "write_commit with a hash")) return;
    status = sc_client_write_abort(a->client, &write); /* it has ended: only the memory goes */
    if (status != SC_ERR_STALE) (void)allowed(a, status, "write_abort");
}

/* ---- the rest ---- */

static void op_pin(struct actor *a)
{
    struct sv_key key = draw_key(a);
    const sc_client_key wire = sv_key_client(&key, 0);
    sc_client_state state;
    bool kept = a->world->kept && below(a, 3) == 0;
    if (a->held_count == HELD_MAX) return;
    sc_status status = sc_client_pin(a->client, &wire, kept ? 1 : 0, kept, &state);
    if (!allowed(a, status, "pin") || status != SC_OK || state.lease == 0) return;
    if (kept) return; /* it ends by itself, soon: no promise that can be checked */
    keep(a, &key, &state);
}

static void op_evict(struct actor *a)
{
    uint32_t got = 0, wanted = 1 + below(a, 6);
    if (a->shared->outside) return;
    sc_status status = sc_client_evict(a->client, wanted, &got);
    (void)allowed(a, status, "evict");
}

static void op_quota(struct actor *a)
{
    const char *name = sv_tenant_name(1 + below(a, SV_TENANTS - 1));
    sc_client_quota quota;
    sc_status status = sc_client_quota_get(a->client, name, &quota);
    if (!allowed(a, status, "quota") || status != SC_OK) return;
    if (quota.bytes_max > 0 && quota.bytes > quota.bytes_max) {
        sv_finding("tenant %s has %llu bytes, its limit is %llu", name,
            (unsigned long long)quota.bytes, (unsigned long long)quota.bytes_max);
    }
}

/* Ends a write that is perhaps somebody else's. */
static void op_foreign(struct actor *a)
{
    sc_client_write write = {.write = (uint64_t)(1 + below(a, 200)) << 32 | below(a, 12)};
    if (write.write == a->left.write) return;
    for (uint32_t i = 0; i < a->held_count; i++) {
        if (a->held[i].state.lease == write.write) return;
    }
    sc_status status = sc_client_write_abort(a->client, &write);
    if (status == SC_OK) sv_finding("the write of another was given up");
    if (status != SC_ERR_STALE && status != SC_ERR_BUSY) (void)allowed(a, status, "write_abort");
}

static void op_drop(struct actor *a)
{
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    void *result = NULL;
    size_t bytes = 0;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    (void)msgpack_pack_map(&packer, 2);
    (void)msgpack_pack_str_with_body(&packer, "id", 2);
    (void)msgpack_pack_uint64(&packer, sv_adapter_id(below(a, SV_ADAPTERS)));
    (void)msgpack_pack_str_with_body(&packer, "generation", 10);
    (void)msgpack_pack_uint64(&packer, 1);
    sc_status status = sc_client_call(a->client, "namespace_drop", buffer.data, buffer.size,
        &result, &bytes);
    msgpack_sbuffer_destroy(&buffer);
    sc_client_free(result);
    if (status == SC_ERR_BUSY || status == SC_ERR_NOT_FOUND) return;
    (void)allowed(a, status, "namespace_drop");
}

static void run_op(struct actor *a, enum sv_op op)
{
    switch (op) {
    case SV_OP_LOOKUP: op_lookup(a); break;
    case SV_OP_ACQUIRE: op_acquire(a); break;
    case SV_OP_RELEASE: op_release(a); break;
    case SV_OP_WRITE: op_write(a); break;
    case SV_OP_WRITE_HELD: op_write_held(a); break;
    case SV_OP_ABORT: op_abort(a); break;
    case SV_OP_STILL_MAPPED: op_still_mapped(a); break;
    case SV_OP_HASH: op_hash(a); break;
    case SV_OP_PIN: op_pin(a); break;
    case SV_OP_EVICT: op_evict(a); break;
    case SV_OP_QUOTA: op_quota(a); break;
    case SV_OP_FOREIGN: op_foreign(a); break;
    case SV_OP_DROP: op_drop(a); break;
    case SV_OP_RECONNECT: close_client(a); break;
    default: (void)usleep(below(a, 2000)); break;
    }
    count(&a->shared->ops[op], 1);
}

static enum sv_op draw_op(struct actor *a)
{
    uint32_t sum = 0, at = 0;
    for (uint32_t i = 0; i < SV_OP_COUNT; i++) sum += a->world->weights[i];
    uint32_t drawn = below(a, sum);
    while (drawn >= a->world->weights[at]) drawn -= a->world->weights[at++];
    return (enum sv_op)at;
}

static void *play(void *ctx)
{
    struct actor *a = ctx;
    while (!stopping(a)) {
        if (!a->client && !open_client(a)) break;
        run_op(a, draw_op(a));
    }
    /* Some say good-bye, some just go. */
    while (a->client && a->held_count > 0 && below(a, 4) > 0) give_back(a, a->held_count - 1);
    if (a->client) close_client(a);
    free(a->shape.inside);
    return NULL;
}

int sv_process(const struct sv_world *world, struct sv_shared *shared, uint32_t number,
    uint64_t seed)
{
    static struct actor actors[SV_THREADS_MAX];
    static struct common common = {PTHREAD_RWLOCK_INITIALIZER, NULL};
    for (uint32_t i = 0; i < world->threads; i++) {
        actors[i] = (struct actor){.world = world, .shared = shared, .common = &common};
        sc_prng_seed(&actors[i].rng, sc_mix64(seed + 16 * number + i));
    }
    for (uint32_t i = 1; i < world->threads; i++) {
        if (pthread_create(&actors[i].thread, NULL, play, &actors[i]) != 0) return 2;
    }
    (void)play(&actors[0]);
    for (uint32_t i = 1; i < world->threads; i++) (void)pthread_join(actors[i].thread, NULL);
    sc_client_close(common.client);
    return 0;
}

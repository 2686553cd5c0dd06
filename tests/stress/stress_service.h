/* SPDX-License-Identifier: Apache-2.0 */
/* statecache-stress --daemon: processes that share states through a real statecached.
 *
 *   parent --- starts, restarts, kills -------> statecached (its folder, its disk tier)
 *     |                                            ^  Unix socket, TCP
 *     '-- forks, SIGKILL at any moment --> processes of threads (service_actor.c)
 *     |                                            |
 *     '-- audit between rounds <-- status, /proc --'  findings: one line, exit 1
 *
 * What a state must be follows from its key alone: each word is a hash of adapter, scope (whose
 * tokens these are, from where on), tokens and the word's place. So whoever gets a state can check
 * each bit of it, whoever wrote it, and a state of another key, of another tenant or of half a
 * write is seen. What is between parts is as it was written, or zero.
 *
 * One process may be an engine: an sc_cache with the service as its remote tier (service_engine.c).
 *
 * Beside that: a state that is held, or pinned, is found by all; a write that is still mapped, or
 * has another hash, is refused; nobody ends the write of another; no tenant passes its quota.
 * Between rounds, when all clients are gone, nothing is left: leases, writes, pins, jobs, files,
 * mappings, and after an eviction of all no byte of a tenant. */
#ifndef TESTS_STRESS_SERVICE_H
#define TESTS_STRESS_SERVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/prng.h"
#include "statecache/client.h"

enum { SV_TOKENS_MAX = 40, SV_PARTS_MAX = 16, SV_PROCESSES_MAX = 8, SV_THREADS_MAX = 3 };
enum { SV_TENANTS = 4, SV_ADAPTERS = 2, SV_FAMILIES = 4, SV_BRANCHES = 3 };

#define SV_OP_LIST(X)                                                                              \
    X(LOOKUP, "lookup") X(ACQUIRE, "acquire") X(RELEASE, "release") X(WRITE, "write")              \
    X(WRITE_HELD, "write_held") X(ABORT, "abort") X(STILL_MAPPED, "still_mapped")                  \
    X(HASH, "hash") X(PIN, "pin") X(EVICT, "evict") X(QUOTA, "quota") X(FOREIGN, "foreign")        \
    X(DROP, "drop") X(RECONNECT, "reconnect") X(PAUSE, "pause")
enum sv_op {
#define X(name, text) SV_OP_##name,
    SV_OP_LIST(X)
#undef X
    SV_OP_COUNT
};
extern const char *const sv_op_names[SV_OP_COUNT];

/* Sizes by seed; the service's configuration follows from it. */
struct sv_world {
    uint64_t seed;
    uint32_t slots, page_tokens, shape, processes, threads, rounds, round_ms;
    uint32_t client_leases, tenant_leases, pins, leases, quota_states;
    uint32_t weights[SV_OP_COUNT];
    bool disk, host, gittins, zstd, crash;
    bool engine;           /* the first process is an engine with the service as a tier */
    bool kept;             /* pins that outlive their client */
    uint32_t kill_ms;      /* about every so often a process is killed; 0: never */
    bool restart;          /* the service is restarted in the middle of rounds */
};

/* What the processes and their parent share. */
struct sv_shared {
    _Atomic bool stop;
    _Atomic uint32_t epoch; /* raised before the service is told to stop */
    _Atomic uint64_t ops[SV_OP_COUNT], refused;
    _Atomic uint64_t hits, misses, lower, words, written, exists, held_hits, opened, dead;
    _Atomic uint64_t engine_requests, engine_hits, engine_restored, engine_stored;
    char address[160], tcp[64], token[64];
    bool canary;            /* one bit of some states is written wrong: it must be found */
    bool outside;           /* the service is somebody else's */
};

struct sv_key {
    uint32_t tenant, adapter, family, branch, count;
    int32_t tokens[SV_TOKENS_MAX];
};

/* ---- service_model.c */
void sv_world_draw(struct sv_world *world, uint64_t seed);
void sv_key_draw(struct sv_key *key, struct sc_prng *rng);
/* `len_max` 0: the default, one token less than there are. */
sc_client_key sv_key_client(const struct sv_key *key, uint32_t len_max);
/* The prompts that are common to all; false: there are no more. */
bool sv_common_key(uint32_t index, struct sv_key *key);
const char *sv_tenant_name(uint32_t tenant);
uint64_t sv_adapter_id(uint32_t adapter);
void sv_fill(const struct sv_key *key, uint32_t len, void *data, uint64_t from, uint64_t to);
/* The word at `index` is sc_mix64(base + index). */
uint64_t sv_base(const struct sv_key *key, uint32_t len);
/* The words inside of parts; false: there are too many. */
struct sv_shape { uint64_t words; bool *inside; };
bool sv_shape_read(sc_client *client, struct sv_shape *shape);
/* The first word that is wrong; UINT64_MAX: none. */
uint64_t sv_check(const struct sv_key *key, uint32_t len, const struct sv_shape *shape,
    const void *data);

/* ---- service_actor.c: plays in this process until it is told to stop; its exit status */
int sv_process(const struct sv_world *world, struct sv_shared *shared, uint32_t number,
    uint64_t seed);

/* ---- service_engine.c: the same for a process that is an engine */
int sv_engine(const struct sv_world *world, struct sv_shared *shared, uint64_t seed);

/* ---- service_host.c */
struct sv_host {
    const char *program;
    char folder[80], log[120];
    pid_t pid;
    long log_at;              /* where the log of this run begins */
    uint32_t sockets;         /* of the service with one client; 0: not known yet */
    uint64_t resident;        /* after the first emptying */
};
bool sv_host_open(struct sv_host *host, const struct sv_world *world, struct sv_shared *shared);
/* Starts it in its folder; false: said on stderr. */
bool sv_host_start(struct sv_host *host, struct sv_shared *shared);
/* SIGTERM and a clean exit, or SIGKILL. */
bool sv_host_stop(struct sv_host *host, bool kill);
void sv_host_remove(struct sv_host *host);
/* No client of ours is there: nothing is held. With `empty` everything is evicted first. */
bool sv_audit(struct sv_host *host, struct sv_shared *shared, bool empty);

/* ---- service.c */
void sv_finding(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif

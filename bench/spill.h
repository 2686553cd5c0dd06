/* SPDX-License-Identifier: Apache-2.0 */
/* `statecache-bench spill`: the disk tier beside the file system that it lies on. */
#ifndef BENCH_SPILL_H
#define BENCH_SPILL_H

#include <stdbool.h>
#include <stdint.h>

#include "bench_common.h"
#include "radix_rows.h"
#include "statecache/kernels.h"
#include "tier/disk_store.h"

enum {
    SPILL_CHUNK_BYTES = 1 << 20,
    SPILL_DEPTH = 16,
    SPILL_TOKENS = 64,
    SPILL_THREADS_MAX = 64,
    SPILL_COMMIT_MAX = 64
};

struct spill_options {
    const char *folder;       /* all of it is ours */
    uint64_t state_bytes;     /* whole blocks */
    uint32_t states, pairs, threads;
    uint64_t records;         /* of the store that is opened again; 0: not */
    double seconds;           /* of each mixed load; 0: none */
    uint64_t seed;
};

/* ---- spill_raw.c: the file system itself ---- */

struct spill_raw;
/* A preallocated file of whole states; `depth` transfers of SPILL_CHUNK_BYTES at once. */
struct spill_raw *spill_raw_open(const char *path, uint64_t bytes, uint32_t depth);
bool spill_raw_direct(const struct spill_raw *raw);
bool spill_raw_uring(const struct spill_raw *raw);
/* One pass over the file, from or to `count` buffers of `bytes` each, in order; a write ends with
 * fdatasync. Returns seconds. */
double spill_raw_pass(struct spill_raw *raw, bool write, uint8_t *const *buffers, uint32_t count,
    uint64_t bytes);
void spill_raw_close(struct spill_raw *raw);

/* ---- spill_store.c: what all parts do with a store ---- */

/* The state of `number` has SPILL_TOKENS tokens of its own. */
struct spill_key { int32_t tokens[SPILL_TOKENS]; struct sc_store_key key; };
void spill_key_init(struct spill_key *key, uint64_t number);
struct sc_store_want spill_want(void);
struct sc_store *spill_open(const struct sc_store_options *options);
/* Writes a state; it is stored when spill_commit has taken it, which takes many. */
struct sc_store_put *spill_write(
    struct sc_store *store, uint64_t number, const uint8_t *bytes, uint64_t count, double value);
void spill_commit(struct sc_store *store, struct sc_store_put **puts, uint32_t count);
/* False: a miss. A read error ends the program. */
bool spill_get(struct sc_store *store, uint64_t number, uint8_t *bytes, uint64_t count);
/* Of whole blocks, aligned: free() it. */
uint8_t *spill_buffer(uint64_t bytes, uint64_t seed);
void spill_remove_folder(const char *path);
double spill_now(void);

/* ---- the parts ---- */

void spill_pairs_run(const struct spill_options *options, struct radix_rows *rows);
void spill_reopen_run(const struct spill_options *options, struct radix_rows *rows);
void spill_device_run(const struct spill_options *options, sc_backend *backend,
    struct radix_rows *rows);
/* What the child process does that spill_reopen_run starts: prints its figures. */
int spill_reopen_child(const char *folder, uint64_t records);

#endif

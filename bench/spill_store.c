/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, payloads and calls of the store that all parts of `spill` share. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/prng.h"
#include "spill.h"

enum { BLOCK_BYTES = 4096, VOCABULARY = 151936 };

static const sc_shard whole = {0, 1, 0, 1, 0, 0};

double spill_now(void)
{
    return (double)sc_clock_now_ns() / 1e9;
}

void spill_key_init(struct spill_key *key, uint64_t number)
{
    memset(key, 0, sizeof *key);
    for (uint32_t i = 0; i < SPILL_TOKENS; i++)
        key->tokens[i] = (int32_t)(sc_mix64(number * SPILL_TOKENS + i) % VOCABULARY);
    key->key.tokens = key->tokens;
    key->key.token_count = SPILL_TOKENS;
}

struct sc_store_want spill_want(void)
{
    return (struct sc_store_want){.numerics = 1, .shards = &whole, .shard_count = 1};
}

struct sc_store *spill_open(const struct sc_store_options *options)
{
    struct sc_store *store = NULL;
    bench_must(sc_store_open(options, &store), "opening a store");
    return store;
}

struct sc_store_put *spill_write(
    struct sc_store *store, uint64_t number, const uint8_t *bytes, uint64_t count, double value)
{
    struct spill_key key;
    struct sc_store_put *put = NULL;
    spill_key_init(&key, number);
    struct sc_store_record record = {.key = key.key, .numerics = 1, .value = value,
        .shard_count = 1, .shards = &whole};
    struct sc_store_payload payload = {bytes, count, 0, count, 1, 0};
    bench_must(sc_store_begin(store, &record, false, &put), "beginning to store");
    if (!put)
        bench_fail(BENCH_CHECK_FAILED, "a record was there before it was stored");
    bench_must(sc_store_shard(store, put, 0, &payload, 0), "storing a state");
    return put;
}

void spill_commit(struct sc_store *store, struct sc_store_put **puts, uint32_t count)
{
    sc_status each[SPILL_COMMIT_MAX];
    bench_must(sc_store_commit(store, puts, count, 0, each), "committing states");
    for (uint32_t i = 0; i < count; i++)
        bench_must(each[i], "committing states");
}

bool spill_get(struct sc_store *store, uint64_t number, uint8_t *bytes, uint64_t count)
{
    struct spill_key key;
    struct sc_store_reader *reader = NULL;
    struct sc_store_want want = spill_want();
    enum sc_store_reason reason = SC_STORE_FAILED;
    spill_key_init(&key, number);
    bench_must(sc_store_reader_open(store, &key.key, &want, &reason, &reader), "finding a state");
    if (!reader)
        return false;
    bench_must(sc_store_read(reader, 0, bytes, count), "restoring a state");
    sc_store_reader_close(reader);
    return true;
}

uint8_t *spill_buffer(uint64_t bytes, uint64_t seed)
{
    uint8_t *buffer = aligned_alloc(BLOCK_BYTES, bytes);
    if (!buffer)
        bench_fail(BENCH_NO_MEMORY, "no memory for a state of %llu bytes",
            (unsigned long long)bytes);
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = sc_mix64(seed * UINT64_C(0x9e3779b97f4a7c15) + i);
        memcpy(buffer + i, &word, 8);
    }
    return buffer;
}

void spill_remove_folder(const char *path)
{
    char name[5000];
    DIR *folder = opendir(path);
    if (!folder)
        return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (unlink(name) != 0)
            spill_remove_folder(name);
    }
    closedir(folder);
    rmdir(path);
}

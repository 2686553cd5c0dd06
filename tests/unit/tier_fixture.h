/* SPDX-License-Identifier: Apache-2.0 */
/* A store in a fresh folder, keys and payloads that tell who they are, failures on demand. */
#ifndef TESTS_UNIT_TIER_FIXTURE_H
#define TESTS_UNIT_TIER_FIXTURE_H

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/prng.h"
#include "support/fail_alloc.h"
#include "tier/disk_store.h"

/* ---- folders ---- */

/* `quick`: where syncs cost nothing, if there is such a place: for tests of thousands of them. */
static inline void tier_folder_make(char *path, size_t bytes, bool quick)
{
    const char *base = getenv("TMPDIR");
    if (quick && access("/dev/shm", W_OK) == 0) base = "/dev/shm";
    (void)snprintf(path, bytes, "%s/statecache-tier-XXXXXX", base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(path));
}

static inline void tier_folder_empty(const char *path)
{
    char name[600];
    DIR *folder = opendir(path);
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        (void)unlink(name);
    }
    (void)closedir(folder);
}

static inline void tier_folder_remove(const char *path)
{
    tier_folder_empty(path);
    (void)rmdir(path);
}

/* ---- failures ---- */

/* Call `at` (from 1) of those asked about gives `code`; `what` NULL: any. */
struct tier_fail {
    struct sc_tier_faults faults;
    const char *_Atomic what;
    _Atomic int code;
    _Atomic uint64_t calls, at;
    _Atomic bool always, hit;
};

static inline int tier_fail_(void *ctx, const char *what)
{
    struct tier_fail *fail = ctx;
    if (fail->what && strcmp(fail->what, what) != 0) return 0;
    uint64_t call = atomic_fetch_add(&fail->calls, 1) + 1;
    uint64_t at = atomic_load(&fail->at);
    if (at == 0 || (atomic_load(&fail->always) ? call < at : call != at)) return 0;
    atomic_store(&fail->hit, true);
    bool transfer = strstr(what, "read") || strstr(what, "write");
    return fail->code == SC_TIER_FAULT_SHORT && !transfer ? EIO : fail->code;
}

static inline void tier_fail_init(struct tier_fail *fail)
{
    memset(fail, 0, sizeof *fail);
    fail->faults = (struct sc_tier_faults){tier_fail_, fail};
}

static inline void tier_fail_arm(struct tier_fail *fail, const char *what, uint64_t at, int code)
{
    fail->what = what;
    fail->code = code;
    atomic_store(&fail->calls, 0);
    atomic_store(&fail->hit, false);
    atomic_store(&fail->always, false);
    atomic_store(&fail->at, at);
}

static inline bool tier_fail_disarm(struct tier_fail *fail)
{
    atomic_store(&fail->at, 0);
    return atomic_load(&fail->hit);
}

/* ---- stores ---- */

enum { TIER_FILE_BYTES = 1 << 20 };

static inline struct sc_store_options tier_options(const char *folder)
{
    return (struct sc_store_options){.folder = folder, .bytes_max = 8 << 20,
        .file_bytes = TIER_FILE_BYTES, .map_bytes = 4 << 20, .chunk_bytes = 16384};
}

static inline struct sc_store *tier_open(const struct sc_store_options *options)
{
    struct sc_store *store = NULL;
    sc_status status = sc_store_open(options, &store);
    ck_assert_msg(status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    return store;
}

static inline struct sc_store_stats tier_stats(struct sc_store *store)
{
    struct sc_store_stats stats;
    ck_assert_int_eq(sc_store_stats_get(store, &stats), SC_OK);
    return stats;
}

static inline void tier_say(void *ctx, const struct sc_store_fault *fault)
{
    (void)ctx;
    (void)fprintf(stderr, "verify: record %u: %s\n", fault->id, fault->text);
}

/* Everything is as it should be; returns the number of records. */
static inline uint64_t tier_verify(struct sc_store *store)
{
    struct sc_store_verify_result result;
    ck_assert_int_eq(sc_store_verify(store, true, tier_say, NULL, &result), SC_OK);
    ck_assert_uint_eq(result.fault_count, 0);
    return result.record_count;
}

/* ---- keys: token i of sequence s ---- */

enum { TIER_TOKENS_MAX = 4096 };

static inline int32_t tier_token(uint32_t sequence, uint32_t at)
{
    return (int32_t)(sc_mix64(((uint64_t)sequence << 32) + at) & 0x3ffff);
}

struct tier_key {
    struct sc_store_key key;
    int32_t tokens[TIER_TOKENS_MAX];
    sc_mark marks[4];
};

static inline void tier_key_init(struct tier_key *out, uint32_t sequence, uint32_t token_count)
{
    memset(out, 0, sizeof *out);
    memset(out->key.fingerprint.bytes, 0x11, 16);
    for (uint32_t i = 0; i < token_count; i++) out->tokens[i] = tier_token(sequence, i);
    out->key.tokens = out->tokens;
    out->key.token_count = token_count;
    out->key.marks = out->marks;
}

static inline void tier_key_mark(struct tier_key *key, uint32_t at, uint8_t id)
{
    sc_mark *mark = &key->marks[key->key.mark_count++];
    mark->at = at;
    memset(mark->id, id, sizeof mark->id);
}

static const sc_shard tier_whole = {0, 1, 0, 1, 0, 0};

static inline struct sc_store_record tier_record(const struct tier_key *key)
{
    return (struct sc_store_record){.key = key->key, .numerics = 7, .kind = 1,
        .shard_count = 1, .shards = &tier_whole};
}

static inline struct sc_store_want tier_want(void)
{
    return (struct sc_store_want){.numerics = 7, .shards = &tier_whole, .shard_count = 1};
}

/* ---- payloads ---- */

static inline void tier_fill(uint8_t *bytes, uint64_t count, uint64_t tag)
{
    for (uint64_t i = 0; i < count; i++) {
        if (i % 8 == 0) {
            uint64_t word = sc_mix64(tag * 1000003 + i);
            memcpy(bytes + i, &word, count - i < 8 ? count - i : 8);
        }
    }
}

static inline bool tier_holds(const uint8_t *bytes, uint64_t count, uint64_t tag)
{
    for (uint64_t i = 0; i < count; i += 8) {
        uint64_t word = sc_mix64(tag * 1000003 + i);
        if (memcmp(bytes + i, &word, count - i < 8 ? count - i : 8) != 0) return false;
    }
    return true;
}

/* One shard of `bytes` bytes that depend on `tag`, the last `kv_bytes` of them KV. */
static inline sc_status tier_put_record(struct sc_store *store,
    const struct sc_store_record *record, uint64_t bytes, uint64_t kv_bytes, uint64_t tag,
    uint64_t now_ns)
{
    struct sc_store_put *put = NULL;
    sc_status each = SC_OK;
    uint8_t *payload = malloc(bytes);
    ck_assert_ptr_nonnull(payload);
    tier_fill(payload, bytes, tag);
    sc_status status = sc_store_begin(store, record, kv_bytes > 0, &put);
    if (status == SC_OK && put) {
        struct sc_store_payload what = {payload, bytes - kv_bytes, kv_bytes, bytes - kv_bytes, 1,
            0};
        status = sc_store_shard(store, put, 0, &what, now_ns);
        if (status == SC_OK) {
            status = sc_store_commit(store, &put, 1, now_ns, &each);
            if (status == SC_OK) status = each;
        } else {
            struct sc_error_info error = *sc_last_error();
            sc_store_abort(store, put);
            (void)error;
        }
    }
    free(payload);
    return status;
}

static inline sc_status tier_put(struct sc_store *store, uint32_t sequence, uint32_t token_count,
    uint32_t parent_len, uint64_t bytes)
{
    struct tier_key *key = malloc(sizeof *key);
    tier_key_init(key, sequence, token_count);
    struct sc_store_record record = tier_record(key);
    record.parent_len = parent_len;
    sc_status status = tier_put_record(store, &record, bytes, 0,
        (uint64_t)sequence << 20 | token_count, 0);
    free(key);
    return status;
}

static inline enum sc_store_reason tier_find(struct sc_store *store, const struct tier_key *key,
    struct sc_store_info *info_out)
{
    enum sc_store_reason reason = SC_STORE_FAILED;
    struct sc_store_want want = tier_want();
    ck_assert_int_eq(sc_store_find(store, &key->key, &want, &reason, info_out), SC_OK);
    return reason;
}

/* Reads a whole record of tier_put. `*same_out`: it is what was stored. */
static inline sc_status tier_get(struct sc_store *store, uint32_t sequence, uint32_t token_count,
    uint64_t bytes, enum sc_store_reason *reason_out, bool *same_out)
{
    struct sc_store_reader *reader = NULL;
    struct sc_store_want want = tier_want();
    struct tier_key *key = malloc(sizeof *key);
    tier_key_init(key, sequence, token_count);
    *same_out = false;
    sc_status status = sc_store_reader_open(store, &key->key, &want, reason_out, &reader);
    if (status == SC_OK && reader) {
        struct sc_store_info info;
        uint8_t *payload = malloc(bytes);
        sc_store_reader_info(reader, &info);
        ck_assert_uint_eq(info.payload_bytes, bytes);
        ck_assert_uint_eq(info.token_count, token_count);
        memset(payload, 0xcc, bytes);
        status = sc_store_read(reader, 0, payload, bytes);
        *same_out = status == SC_OK &&
            tier_holds(payload, bytes, (uint64_t)sequence << 20 | token_count);
        free(payload);
    }
    sc_store_reader_close(reader);
    free(key);
    return status;
}

/* It is there and reads back. */
static inline void tier_expect(struct sc_store *store, uint32_t sequence, uint32_t token_count,
    uint64_t bytes)
{
    enum sc_store_reason reason = SC_STORE_FAILED;
    bool same = false;
    sc_status status = tier_get(store, sequence, token_count, bytes, &reason, &same);
    ck_assert_msg(status == SC_OK && same, "record %u of %u tokens: %s, %s", sequence,
        token_count, sc_status_name(status), sc_store_reason_text(reason));
}

static inline enum sc_store_reason tier_reason(struct sc_store *store, uint32_t sequence,
    uint32_t token_count)
{
    struct tier_key *key = malloc(sizeof *key);
    tier_key_init(key, sequence, token_count);
    enum sc_store_reason reason = tier_find(store, key, NULL);
    free(key);
    return reason;
}

static inline int tier_main(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif

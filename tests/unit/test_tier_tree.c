/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of records: parents before children after any history, edges of what was dropped, KV
 * that starts behind a parent; and damage: every byte flipped, every cut, found. */
#define XXH_INLINE_ALL 1
#include <lmdb.h>
#include <xxhash.h>

#include "tier_suite.h"

static sc_status put_kv(struct sc_store *store, uint32_t sequence, uint32_t token_count,
    uint32_t parent_len, uint64_t kv_bytes)
{
    struct tier_key key;
    tier_key_init(&key, sequence, token_count);
    struct sc_store_record record = tier_record(&key);
    record.parent_len = parent_len;
    record.kind = sequence;
    return tier_put_record(store, &record, 4000 + kv_bytes, kv_bytes,
        (uint64_t)sequence << 20 | token_count, 0);
}

static sc_status drop_key(struct sc_store *store, uint32_t sequence, uint32_t token_count)
{
    struct sc_store_info info;
    struct tier_key key;
    tier_key_init(&key, sequence, token_count);
    if (tier_find(store, &key, &info) != SC_STORE_HIT) return SC_ERR_NOT_FOUND;
    return sc_store_drop(store, info.id);
}

/* Walks all: each parent came before, tokens are those of the sequence. Returns records. */
static uint32_t check_order(struct sc_store *store, uint32_t *edges_out)
{
    struct sc_store_iter *iter = NULL;
    struct sc_store_edge edge;
    uint32_t lengths[4096] = {0}, records = 0, edges = 0;
    sc_status status;
    ck_assert_int_eq(sc_store_iter_open(store, &iter), SC_OK);
    while ((status = sc_store_iter_next(iter, &edge)) == SC_OK) {
        const struct sc_store_info *info = &edge.info;
        ck_assert_uint_lt(info->id, 4096);
        ck_assert_uint_eq(lengths[info->id], 0);
        if (info->parent == SC_STORE_NO_PARENT) {
            ck_assert_uint_eq(info->parent_len, 0);
        } else {
            ck_assert_uint_eq(lengths[info->parent], info->parent_len);
        }
        lengths[info->id] = info->token_count;
        for (uint32_t i = info->parent_len; i < info->token_count; i++) {
            ck_assert_int_eq(edge.tokens[i - info->parent_len], tier_token(info->kind, i));
        }
        records += info->has_record;
        edges += !info->has_record;
    }
    ck_assert_int_eq(status, SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_store_iter_next(iter, &edge), SC_ERR_NOT_FOUND);
    sc_store_iter_close(iter);
    *edges_out = edges;
    return records;
}

/* Report 119: all snapshots survive with their lengths: what was there before is there after. */
START_TEST(report_119__the_tree_comes_back_parents_first)
{
    struct sc_store_options options = tier_options(folder);
    options.bytes_max = 200 * 4096;
    struct sc_store *store = tier_open(&options);
    struct sc_prng prng;
    sc_prng_seed(&prng, (uint64_t)_i);
    bool there[20][9] = {{false}};
    for (uint32_t turn = 0; turn < 600; turn++) {
        uint32_t s = (uint32_t)sc_prng_below(&prng, 20), n = (uint32_t)sc_prng_below(&prng, 8) + 1;
        uint32_t parent = (uint32_t)sc_prng_below(&prng, n);
        if (sc_prng_below(&prng, 4) == 0) {
            if (drop_key(store, s, n * 8) == SC_OK) there[s][n] = false;
        } else if (put_kv(store, s, n * 8, parent * 8, 0) == SC_OK) {
            there[s][n] = true;
        }
    }
    uint32_t expected = 0, edges = 0, edges_after = 0;
    for (uint32_t s = 0; s < 20; s++) {
        for (uint32_t n = 1; n < 9; n++) {
            expected += there[s][n];
            ck_assert(there[s][n] == (tier_reason(store, s, n * 8) == SC_STORE_HIT));
        }
    }
    ck_assert_uint_eq(tier_stats(store).evicted_count, 0);
    ck_assert_uint_eq(check_order(store, &edges), expected);
    ck_assert_uint_eq(tier_verify(store), expected);
    sc_store_close(store);
    store = tier_open(&options);
    ck_assert_uint_eq(check_order(store, &edges_after), expected);
    ck_assert_uint_eq(edges_after, edges);
    for (uint32_t s = 0; s < 20; s++) {
        for (uint32_t n = 1; n < 9; n++) {
            if (there[s][n]) tier_expect(store, s, n * 8, 4000);
            else ck_assert_int_eq(tier_reason(store, s, n * 8), SC_STORE_ABSENT);
        }
    }
    ck_assert_int_eq(sc_store_evict(store, UINT64_MAX / 2, NULL), SC_OK);
    ck_assert_uint_eq(check_order(store, &edges), 0);
    ck_assert_uint_eq(edges, 0); /* no edge is left that leads nowhere */
    sc_store_close(store);
}
END_TEST

START_TEST(tree__a_record_with_kv_needs_those_before)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    ck_assert_int_eq(put_kv(store, 1, 32, 16, 500), SC_ERR_NOT_FOUND); /* no record of 16 */
    ck_assert_int_eq(put_kv(store, 1, 16, 0, 500), SC_OK);
    ck_assert_int_eq(put_kv(store, 1, 32, 16, 500), SC_OK);
    ck_assert_int_eq(put_kv(store, 1, 48, 32, 500), SC_OK);
    ck_assert_int_eq(tier_reason(store, 1, 48), SC_STORE_HIT);
    ck_assert_int_eq(drop_key(store, 1, 16), SC_OK);
    for (int restart = 0; restart < 2; restart++) {
        ck_assert_int_eq(tier_reason(store, 1, 16), SC_STORE_ABSENT);
        ck_assert_int_eq(tier_reason(store, 1, 32), SC_STORE_PARENT);
        ck_assert_int_eq(tier_reason(store, 1, 48), SC_STORE_PARENT);
        sc_store_close(store);
        store = tier_open(&options);
    }
    ck_assert_int_eq(put_kv(store, 1, 16, 0, 500), SC_OK); /* back again, and so are they */
    ck_assert_int_eq(tier_reason(store, 1, 48), SC_STORE_HIT);
    ck_assert_int_eq(drop_key(store, 1, 16), SC_OK);
    struct sc_store_gc gc;
    ck_assert_int_eq(sc_store_gc(store, &gc), SC_OK);
    ck_assert_uint_eq(gc.dropped_count, 2);
    ck_assert_uint_eq(tier_stats(store).record_count + tier_stats(store).edge_count, 0);
    sc_store_close(store);
}
END_TEST

START_TEST(tree__a_parent_is_not_evicted_before_its_children)
{
    struct sc_store_options options = tier_options(folder);
    options.bytes_max = 6 * 8192;
    struct sc_store *store = tier_open(&options);
    for (uint32_t n = 1; n <= 6; n++) {
        ck_assert_int_eq(put_kv(store, 1, n * 16, (n - 1) * 16, 500), SC_OK);
    }
    for (uint32_t i = 0; i < 9; i++) ck_assert_int_eq(put_kv(store, 50 + i, 16, 0, 500), SC_OK);
    bool gone = false;
    for (uint32_t n = 1; n <= 6; n++) { /* what is left is a prefix */
        enum sc_store_reason reason = tier_reason(store, 1, n * 16);
        ck_assert_int_ne(reason, SC_STORE_PARENT);
        if (gone) ck_assert_int_eq(reason, SC_STORE_ABSENT);
        gone = reason == SC_STORE_ABSENT;
    }
    ck_assert_uint_eq(tier_stats(store).edge_count, 0);
    (void)tier_verify(store);
    sc_store_close(store);
}
END_TEST

START_TEST(tree__the_key_of_a_record_comes_back_with_its_marks)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    struct tier_key key, parent;
    tier_key_init(&key, 1, 64);
    tier_key_mark(&key, 0, 1);
    tier_key_mark(&key, 31, 2);
    tier_key_mark(&key, 32, 3);
    tier_key_mark(&key, 63, 4);
    parent = key;
    parent.key.tokens = parent.tokens;
    parent.key.marks = parent.marks;
    parent.key.token_count = 32;
    parent.key.mark_count = 2;
    struct sc_store_record record = tier_record(&parent);
    ck_assert_int_eq(tier_put_record(store, &record, 100, 0, 1, 0), SC_OK);
    record = tier_record(&key);
    record.parent_len = 32;
    ck_assert_int_eq(tier_put_record(store, &record, 100, 0, 1, 0), SC_OK);
    struct sc_store_info info;
    ck_assert_int_eq(tier_find(store, &key, &info), SC_STORE_HIT);
    ck_assert_uint_eq(info.parent_len, 32);
    ck_assert_uint_eq(info.mark_count, 2);
    struct sc_store_reader *reader = NULL;
    struct sc_store_key back;
    int32_t tokens[64];
    sc_mark marks[4];
    ck_assert_int_eq(sc_store_reader_open_id(store, info.id, &reader), SC_OK);
    ck_assert_int_eq(sc_store_reader_key(reader, tokens, 63, marks, 4, &back), SC_ERR_LIMIT);
    ck_assert_int_eq(sc_store_reader_key(reader, tokens, 64, marks, 3, &back), SC_ERR_LIMIT);
    ck_assert_int_eq(sc_store_reader_key(reader, tokens, 64, marks, 4, &back), SC_OK);
    ck_assert_uint_eq(back.mark_count, 4);
    ck_assert_mem_eq(tokens, key.tokens, sizeof tokens);
    ck_assert_mem_eq(marks, key.marks, sizeof marks);
    sc_store_reader_close(reader);
    key.marks[1].id[0] ^= 1; /* in the parent's part */
    ck_assert_int_eq(tier_find(store, &key, NULL), SC_STORE_MARK);
    sc_store_close(store);
}
END_TEST

/* ---- damage ---- */

static uint8_t *file_read(const char *name, size_t *bytes_out)
{
    char path[400];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    uint8_t *bytes = malloc(4 << 20);
    *bytes_out = fread(bytes, 1, 4 << 20, file);
    ck_assert_int_eq(fclose(file), 0);
    return bytes;
}

static void file_write(const char *name, const uint8_t *bytes, size_t count)
{
    char path[400];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    ck_assert_int_eq(fclose(file), 0);
}

enum { PAYLOAD = 700 };

static void two_records(const struct sc_store_options *options)
{
    struct sc_store *store = tier_open(options);
    ck_assert_int_eq(tier_put(store, 1, 24, 0, PAYLOAD), SC_OK);
    ck_assert_int_eq(tier_put(store, 2, 24, 0, PAYLOAD), SC_OK);
    sc_store_close(store);
}

/* Report 117: each field of a node, each byte: never offered as something else. */
START_TEST(report_117__every_byte_of_a_node_is_checked)
{
    struct sc_store_options options = tier_options(folder);
    size_t bytes = 0, at = 0;
    two_records(&options);
    uint8_t *data = file_read("data.mdb", &bytes);
    for (size_t i = 0; i + 8 < bytes; i++) { /* the last copy of the node of record 1 */
        uint32_t length;
        memcpy(&length, data + i + 4, 4);
        if (memcmp(data + i, "SCN1", 4) == 0 && length > 136 && length < 1000 &&
            memcmp(data + i + length - 8 - 4, &(int32_t){tier_token(1, 23)}, 4) == 0) {
            at = i;
        }
    }
    ck_assert_uint_gt(at, 0);
    uint32_t length;
    memcpy(&length, data + at + 4, 4);
    for (uint32_t i = 0; i < length; i++) {
        struct sc_store *store = NULL;
        data[at + i] ^= (uint8_t)(1 << (i % 8));
        file_write("data.mdb", data, bytes);
        data[at + i] ^= (uint8_t)(1 << (i % 8));
        store = tier_open(&options);
        ck_assert_uint_eq(tier_stats(store).reclaimed_count, 1);
        ck_assert_int_eq(tier_reason(store, 1, 24), SC_STORE_ABSENT);
        tier_expect(store, 2, 24, PAYLOAD);
        ck_assert_uint_eq(tier_verify(store), 1);
        sc_store_close(store);
    }
    free(data);
}
END_TEST

/* Report 118 at this tier: each byte of a payload, and of the zeros behind it. */
/* Writes a value of a table as no store would. */
static void plant_node(uint32_t id, const uint8_t *bytes, size_t count)
{
    MDB_env *env = NULL;
    MDB_txn *txn = NULL;
    MDB_dbi nodes;
    MDB_val key = {sizeof id, &id}, value = {count, (void *)(uintptr_t)bytes};
    ck_assert_int_eq(mdb_env_create(&env), 0);
    ck_assert_int_eq(mdb_env_set_maxdbs(env, 4), 0);
    ck_assert_int_eq(mdb_env_open(env, folder, MDB_NOLOCK, 0600), 0);
    ck_assert_int_eq(mdb_txn_begin(env, NULL, 0, &txn), 0);
    ck_assert_int_eq(mdb_dbi_open(txn, "nodes", MDB_INTEGERKEY, &nodes), 0);
    ck_assert_int_eq(mdb_put(txn, nodes, &key, &value, 0), 0);
    ck_assert_int_eq(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
}

static uint8_t *take_node(uint32_t id, size_t *count_out)
{
    MDB_env *env = NULL;
    MDB_txn *txn = NULL;
    MDB_dbi nodes;
    MDB_val key = {sizeof id, &id}, value;
    ck_assert_int_eq(mdb_env_create(&env), 0);
    ck_assert_int_eq(mdb_env_set_maxdbs(env, 4), 0);
    ck_assert_int_eq(mdb_env_open(env, folder, MDB_NOLOCK | MDB_RDONLY, 0600), 0);
    ck_assert_int_eq(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), 0);
    ck_assert_int_eq(mdb_dbi_open(txn, "nodes", MDB_INTEGERKEY, &nodes), 0);
    ck_assert_int_eq(mdb_get(txn, nodes, &key, &value), 0);
    uint8_t *bytes = malloc(value.mv_size);
    memcpy(bytes, value.mv_data, value.mv_size);
    *count_out = value.mv_size;
    mdb_txn_abort(txn);
    mdb_env_close(env);
    return bytes;
}

/* Cut, or with bytes behind its end: it is dropped, and the other stays. */
START_TEST(node__every_length_but_its_own_is_refused)
{
    struct sc_store_options options = tier_options(folder);
    size_t bytes = 0;
    two_records(&options);
    uint8_t *node = take_node(0, &bytes), *longer = calloc(1, bytes + 16);
    memcpy(longer, node, bytes);
    for (size_t count = 0; count < bytes + 16; count++) {
        if (count == bytes) continue;
        plant_node(0, longer, count);
        struct sc_store *store = tier_open(&options);
        ck_assert_uint_eq(tier_stats(store).reclaimed_count, 1);
        ck_assert_int_eq(tier_reason(store, 1, 24), SC_STORE_ABSENT);
        tier_expect(store, 2, 24, PAYLOAD);
        sc_store_close(store);
    }
    plant_node(0, node, bytes); /* its keys went with the first that was damaged */
    struct sc_store *store = tier_open(&options);
    ck_assert_uint_eq(tier_stats(store).reclaimed_count, 0);
    sc_store_close(store);
    free(node);
    free(longer);
}
END_TEST

/* Whole, and its check is right, but flags and sizes are none of format 1: a later version must not
 * be half understood. Offsets are those of docs/reference/tier-format.md. */
START_TEST(node__what_format_1_does_not_define_is_damage)
{
    enum { HEAD = 136, SHARD = 80 };
    static const struct { uint32_t at, value; } changes[] = {
        {20, 1 | 4},               /* flags of the node */
        {HEAD + 4, 0},             /* tp_size */
        {HEAD + 12, 0},            /* pp_size */
        {HEAD + 28, 4},            /* flags of the shard */
        {HEAD + SHARD + 12, 1},    /* behind the extent's count */
    };
    struct sc_store_options options = tier_options(folder);
    size_t bytes = 0;
    two_records(&options);
    uint8_t *node = take_node(0, &bytes), *changed = malloc(bytes);
    for (uint32_t i = 0; i <= sizeof changes / sizeof changes[0]; i++) {
        bool as_it_was = i == sizeof changes / sizeof changes[0];
        memcpy(changed, node, bytes);
        if (!as_it_was) memcpy(changed + changes[i].at, &changes[i].value, sizeof(uint32_t));
        uint64_t check = XXH3_64bits(changed, bytes - sizeof check);
        memcpy(changed + bytes - sizeof check, &check, sizeof check);
        plant_node(0, changed, bytes);
        struct sc_store *store = tier_open(&options);
        ck_assert_uint_eq(tier_stats(store).reclaimed_count, as_it_was ? 0 : 1);
        tier_expect(store, 2, 24, PAYLOAD);
        sc_store_close(store);
    }
    free(node);
    free(changed);
}
END_TEST

START_TEST(payload__every_byte_is_checked)
{
    struct sc_store_options options = tier_options(folder);
    size_t bytes = 0;
    two_records(&options);
    uint8_t *data = file_read("extent-00000.dat", &bytes);
    ck_assert(tier_holds(data, PAYLOAD, 1 << 20 | 24));
    for (uint32_t i = 0; i < 4096; i += i < PAYLOAD + 8 ? 1 : 61) {
        enum sc_store_reason reason;
        bool same = false;
        data[i] ^= (uint8_t)(1 << (i % 8));
        file_write("extent-00000.dat", data, 8192);
        data[i] ^= (uint8_t)(1 << (i % 8));
        struct sc_store *store = tier_open(&options);
        ck_assert_int_eq(tier_get(store, 1, 24, PAYLOAD, &reason, &same), SC_ERR_CORRUPT);
        ck_assert_int_eq(tier_reason(store, 1, 24), SC_STORE_DAMAGED); /* a miss from now on */
        tier_expect(store, 2, 24, PAYLOAD);
        sc_store_close(store);
    }
    file_write("extent-00000.dat", data, 8192);
    struct sc_store *store = tier_open(&options);
    tier_expect(store, 1, 24, PAYLOAD);
    sc_store_close(store);
    free(data);
}
END_TEST

/* A damaged record is dropped by gc, or makes room first; storing it again brings it back. */
START_TEST(payload__what_is_damaged_can_be_stored_again)
{
    struct sc_store_options options = tier_options(folder);
    enum sc_store_reason reason;
    size_t bytes = 0;
    bool same = false;
    two_records(&options);
    uint8_t *data = file_read("extent-00000.dat", &bytes);
    data[5] ^= 1;
    file_write("extent-00000.dat", data, bytes);
    free(data);
    struct sc_store *store = tier_open(&options);
    ck_assert_int_eq(tier_get(store, 1, 24, PAYLOAD, &reason, &same), SC_ERR_CORRUPT);
    ck_assert_int_eq(tier_put(store, 1, 24, 0, PAYLOAD), SC_OK);
    tier_expect(store, 1, 24, PAYLOAD);
    ck_assert_uint_eq(tier_stats(store).used_bytes, 8192);
    ck_assert_uint_eq(tier_verify(store), 2);
    sc_store_close(store);
}
END_TEST

START_TEST(open__files_cut_anywhere_are_noticed)
{
    struct sc_store_options options = tier_options(folder);
    size_t bytes = 0, extent_bytes = 0;
    two_records(&options);
    uint8_t *data = file_read("data.mdb", &bytes);
    uint8_t *extent = file_read("extent-00000.dat", &extent_bytes);
    for (size_t cut = 0; cut < bytes; cut += 61) {
        struct sc_store *store = NULL;
        file_write("data.mdb", data, cut);
        sc_status status = sc_store_open(&options, &store);
        /* LMDB's own word for what it finds, or ours; never a store with other contents */
        ck_assert_msg(status == SC_ERR_CORRUPT || status == SC_ERR_IO, "cut at %zu: %s", cut,
            sc_status_name(status));
    }
    file_write("data.mdb", data, bytes);
    for (size_t cut = 0; cut < 8192; cut += cut < PAYLOAD + 8 ? 1 : 61) {
        enum sc_store_reason reason;
        bool same = false;
        file_write("extent-00000.dat", extent, cut);
        struct sc_store *store = tier_open(&options);
        sc_status status = tier_get(store, 1, 24, PAYLOAD, &reason, &same);
        ck_assert(cut < PAYLOAD ? status == SC_ERR_CORRUPT : status == SC_OK && same);
        status = tier_get(store, 2, 24, PAYLOAD, &reason, &same);
        ck_assert(cut < 4096 + PAYLOAD ? status == SC_ERR_CORRUPT : status == SC_OK && same);
        sc_store_close(store);
    }
    free(data);
    free(extent);
}
END_TEST

/* Report 116: a store says what format it has, and which one this is. */
START_TEST(report_116__another_version_is_refused_with_both_numbers)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = NULL;
    size_t bytes = 0;
    two_records(&options);
    uint8_t *data = file_read("data.mdb", &bytes);
    for (size_t i = 0; i + 8 < bytes; i++) {
        if (memcmp(data + i, "SCST\1\0\0\0", 8) == 0) data[i + 4] = 9;
    }
    file_write("data.mdb", data, bytes);
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "has format 9, this version reads 1"));
    for (size_t i = 0; i + 8 < bytes; i++) {
        if (memcmp(data + i, "SCST\t\0\0\0", 8) == 0) data[i + 4] = 1;
        if (memcmp(data + i, "SCST\1\0\0\0", 8) == 0) data[i + 17] ^= 1; /* bytes of a file */
    }
    file_write("data.mdb", data, bytes);
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_CORRUPT);
    free(data);
    /* records of another number format, shape or width: another fingerprint */
    struct tier_key key;
    tier_folder_remove(folder);
    two_records(&options);
    store = tier_open(&options);
    tier_key_init(&key, 1, 24);
    key.key.fingerprint.bytes[0] ^= 0x80;
    ck_assert_int_eq(tier_find(store, &key, NULL), SC_STORE_FINGERPRINT);
    sc_store_close(store);
}
END_TEST

TIER_MAIN("tier/tree", 120,
    {report_119__the_tree_comes_back_parents_first, 4},
    {tree__a_record_with_kv_needs_those_before, 0},
    {tree__a_parent_is_not_evicted_before_its_children, 0},
    {tree__the_key_of_a_record_comes_back_with_its_marks, 0},
    {report_117__every_byte_of_a_node_is_checked, 0},
    {node__every_length_but_its_own_is_refused, 0},
    {node__what_format_1_does_not_define_is_damage, 0},
    {payload__every_byte_is_checked, 0},
    {payload__what_is_damaged_can_be_stored_again, 0},
    {open__files_cut_anywhere_are_noticed, 0},
    {report_116__another_version_is_refused_with_both_numbers, 0})

/* SPDX-License-Identifier: Apache-2.0 */
/* The store that this version of the format wrote, kept in tests/golden: every later version reads
 * it. `test_tier_golden --write FOLDER` makes it anew, for a new version of the format only. */
#include "tier_fixture.h"

enum { GOLDEN_RECORDS = 5 };

static const sc_shard halves[2] = {{0, 2, 0, 1, 0, 0}, {1, 2, 0, 1, 0, 0}};
static const struct sc_stretch history[2] = {{32, SC_FORM_PREFILL}, {40, SC_FORM_DECODE}};

/* Record n: tokens, marks, parent, shards, KV. Record 1 was dropped: an edge below record 2. */
static struct sc_store_record golden_record(uint32_t n, struct tier_key *key, uint64_t *kv_out)
{
    static const uint32_t sequences[GOLDEN_RECORDS] = {1, 2, 2, 1, 3};
    static const uint32_t lengths[GOLDEN_RECORDS] = {32, 16, 48, 40, 8};
    static const uint32_t parents[GOLDEN_RECORDS] = {0, 0, 16, 32, 0};
    tier_key_init(key, sequences[n], lengths[n]);
    if (sequences[n] == 2) tier_key_mark(key, 0, 0x22);
    if (n == 2) tier_key_mark(key, 30, 0x33);
    if (n == 4) {
        key->key.adapter_id = 9;
        key->key.adapter_generation = 2;
    }
    struct sc_store_record record = tier_record(key);
    record.parent_len = parents[n];
    record.kind = n;
    record.value = 1.5 * n;
    if (n == 3) {
        record.history = history;
        record.history_count = 2;
    }
    if (n == 4) {
        record.shards = halves;
        record.shard_count = 2;
    }
    *kv_out = n == 0 || n == 3 ? 1000 : 0;
    return record;
}

static uint64_t golden_bytes(uint32_t n)
{
    return 5000 + 777 * (uint64_t)n;
}

static void write_golden(struct sc_store *store)
{
    for (uint32_t n = 0; n < GOLDEN_RECORDS; n++) {
        struct tier_key key;
        uint64_t kv = 0;
        struct sc_store_record record = golden_record(n, &key, &kv);
        struct sc_store_put *put = NULL;
        sc_status each;
        uint8_t bytes[10000];
        ck_assert_int_eq(sc_store_begin(store, &record, kv > 0, &put), SC_OK);
        for (uint32_t shard = 0; shard < record.shard_count; shard++) {
            struct sc_store_payload payload = {bytes, golden_bytes(n) - kv, kv,
                golden_bytes(n) - kv, 1, 0};
            tier_fill(bytes, golden_bytes(n), n * 10 + shard);
            ck_assert_int_eq(sc_store_shard(store, put, shard, &payload, 1000), SC_OK);
        }
        ck_assert_int_eq(sc_store_commit(store, &put, 1, 1000 + n, &each), SC_OK);
        ck_assert_int_eq(each, SC_OK);
    }
    struct tier_key key;
    struct sc_store_info info;
    tier_key_init(&key, 2, 16);
    tier_key_mark(&key, 0, 0x22);
    ck_assert_int_eq(tier_find(store, &key, &info), SC_STORE_HIT);
    ck_assert_int_eq(sc_store_drop(store, info.id), SC_OK);
}

static struct sc_store_options golden_options(const char *folder)
{
    struct sc_store_options options = tier_options(folder);
    options.file_bytes = 65536;
    options.map_bytes = 1 << 20;
    return options;
}

static void copy_golden(const char *folder)
{
    char command[700];
    (void)snprintf(command, sizeof command, "cp '%s'/tier-1/store/* '%s'/", SC_GOLDEN, folder);
    ck_assert_int_eq(system(command), 0);
}

static void check_record(struct sc_store *store, uint32_t n)
{
    struct tier_key key;
    uint64_t kv = 0;
    struct sc_store_record record = golden_record(n, &key, &kv);
    struct sc_store_want want = {7, record.shards, record.shard_count, false};
    struct sc_store_reader *reader = NULL;
    enum sc_store_reason reason;
    struct sc_store_info info;
    ck_assert_int_eq(sc_store_reader_open(store, &record.key, &want, &reason, &reader), SC_OK);
    if (n == 1) { /* dropped */
        ck_assert_int_eq(reason, SC_STORE_ABSENT);
        return;
    }
    ck_assert_int_eq(reason, SC_STORE_HIT);
    sc_store_reader_info(reader, &info);
    ck_assert_uint_eq(info.stored_ns, 1000 + n);
    ck_assert_uint_eq(info.kind, n);
    ck_assert_uint_eq(info.parent_len, record.parent_len);
    ck_assert_double_eq(info.value, record.value);
    for (uint32_t shard = 0; shard < record.shard_count; shard++) {
        struct sc_store_shard_info head;
        uint8_t bytes[10000];
        ck_assert_int_eq(sc_store_reader_shard(reader, shard, &head), SC_OK);
        ck_assert_uint_eq(head.kv_bytes, kv);
        ck_assert_int_eq(sc_store_read(reader, shard, bytes, sizeof bytes), SC_OK);
        ck_assert(tier_holds(bytes, golden_bytes(n), n * 10 + shard));
    }
    struct sc_stretch stretches[2];
    uint32_t count = 0;
    ck_assert_int_eq(sc_store_reader_history(reader, stretches, 2, &count), SC_OK);
    ck_assert_uint_eq(count, record.history_count);
    if (count) ck_assert_mem_eq(stretches, history, sizeof history);
    sc_store_reader_close(reader);
}

START_TEST(golden__version_1_is_read)
{
    char folder[200];
    tier_folder_make(folder, sizeof folder, true);
    copy_golden(folder);
    struct sc_store_options options = golden_options(folder);
    struct sc_store *store = tier_open(&options);
    ck_assert_uint_eq(tier_verify(store), GOLDEN_RECORDS - 1);
    ck_assert_uint_eq(tier_stats(store).edge_count, 1);
    ck_assert_uint_eq(tier_stats(store).file_bytes, 65536);
    for (uint32_t n = 0; n < GOLDEN_RECORDS; n++) check_record(store, n);
    ck_assert_int_eq(tier_put(store, 99, 20, 0, 3000), SC_OK); /* and written to */
    tier_expect(store, 99, 20, 3000);
    sc_store_close(store);
    tier_folder_remove(folder);
}
END_TEST

/* The first payload lies where the document says. */
START_TEST(golden__the_bytes_are_those_of_the_document)
{
    char path[600];
    (void)snprintf(path, sizeof path, "%s/tier-1/store/extent-00000.dat", SC_GOLDEN);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    uint8_t *bytes = malloc(65536);
    ck_assert_uint_eq(fread(bytes, 1, 65536, file), 65536);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert(tier_holds(bytes, golden_bytes(0), 0)); /* the first payload, then zeros */
    for (uint32_t i = (uint32_t)golden_bytes(0); i < 8192; i++) ck_assert_uint_eq(bytes[i], 0);
    free(bytes);
}
END_TEST

static const char *write_folder;

START_TEST(golden__write)
{
    struct sc_store_options options = golden_options(write_folder);
    options.uring = options.direct = SC_STORE_OFF;
    struct sc_store *store = tier_open(&options);
    write_golden(store);
    sc_store_close(store);
}
END_TEST

static Suite *golden_suite(void)
{
    Suite *suite = suite_create("tier/golden");
    TCase *tcase = tcase_create("golden");
    if (write_folder) {
        tcase_add_test(tcase, golden__write);
    } else {
        tcase_add_test(tcase, golden__version_1_is_read);
        tcase_add_test(tcase, golden__the_bytes_are_those_of_the_document);
    }
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0) write_folder = argv[2];
    return tier_main(golden_suite());
}

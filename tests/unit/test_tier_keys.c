/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of the disk store: what is another model, adapter, mark, shard or length is a miss that says
 * so, and hashes are the same for ever but never trusted. */
#include "tier_suite.h"

START_TEST(find__says_why_not)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    struct tier_key key;
    tier_key_init(&key, 1, 100);
    key.key.adapter_id = 5;
    key.key.adapter_generation = 2;
    tier_key_mark(&key, 0, 0x44);
    struct sc_store_record record = tier_record(&key);
    ck_assert_int_eq(tier_find(store, &key, NULL), SC_STORE_ABSENT);
    ck_assert_int_eq(tier_put_record(store, &record, 5000, 0, 1, 0), SC_OK);
    for (int restart = 0; restart < 2; restart++) {
        struct sc_store_info info;
        ck_assert_int_eq(tier_find(store, &key, &info), SC_STORE_HIT);
        ck_assert_uint_eq(info.token_count, 100);
        ck_assert_uint_eq(info.payload_bytes, 5000);
        struct tier_key other = key;
        other.key.tokens = other.tokens;
        other.key.marks = other.marks;
        other.key.fingerprint.bytes[3] ^= 1;
        ck_assert_int_eq(tier_find(store, &other, NULL), SC_STORE_FINGERPRINT);
        other.key.fingerprint = key.key.fingerprint;
        other.key.adapter_id++;
        ck_assert_int_eq(tier_find(store, &other, NULL), SC_STORE_ADAPTER);
        other.key.adapter_id = 5;
        other.key.adapter_generation = 1;
        ck_assert_int_eq(tier_find(store, &other, NULL), SC_STORE_ADAPTER);
        other.key.adapter_generation = 2;
        ck_assert_int_eq(tier_find(store, &other, NULL), SC_STORE_HIT);
        other.marks[0].id[15] ^= 1;
        ck_assert_int_eq(tier_find(store, &other, NULL), SC_STORE_MARK);
        other.key.mark_count = 0;
        ck_assert_int_eq(tier_find(store, &other, NULL), SC_STORE_MARK);
        other = key;
        other.key.tokens = other.tokens;
        other.key.marks = other.marks;
        other.tokens[99]++;
        ck_assert_int_eq(tier_find(store, &other, NULL), SC_STORE_ABSENT);
        other.key.token_count = 99;
        ck_assert_int_eq(tier_find(store, &other, NULL), SC_STORE_ABSENT);
        sc_store_close(store);
        store = tier_open(&options);
    }
    sc_store_close(store);
}
END_TEST

START_TEST(find__asks_for_numerics_shards_and_exactness)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    const sc_shard halves[2] = {{0, 2, 0, 1, 0, 0}, {1, 2, 0, 1, 0, 0}};
    enum sc_store_reason reason;
    struct sc_store_put *put = NULL;
    struct tier_key key;
    uint8_t bytes[2][6000];
    sc_status each;
    tier_key_init(&key, 1, 50);
    struct sc_store_record record = tier_record(&key);
    record.shards = halves;
    record.shard_count = 2;
    ck_assert_int_eq(sc_store_begin(store, &record, false, &put), SC_OK);
    for (uint32_t i = 0; i < 2; i++) {
        struct sc_store_payload payload = {bytes[i], 6000, 0, 6000, 2, i ? SC_STORE_LOSSY : 0};
        tier_fill(bytes[i], 6000, i);
        ck_assert_int_eq(tier_find(store, &key, NULL), SC_STORE_WRITING);
        ck_assert_int_eq(sc_store_shard(store, put, i, &payload, 0), SC_OK);
        ck_assert_int_eq(sc_store_shard(store, put, i, &payload, 0), SC_ERR_STATE);
    }
    ck_assert_int_eq(sc_store_commit(store, &put, 1, 0, &each), SC_OK);
    ck_assert_int_eq(each, SC_OK);
    struct sc_store_want want = {.numerics = 7, .shards = halves, .shard_count = 2};
    ck_assert_int_eq(sc_store_find(store, &key.key, &want, &reason, NULL), SC_OK);
    ck_assert_int_eq(reason, SC_STORE_CODEC);
    want.lossy = true;
    ck_assert_int_eq(sc_store_find(store, &key.key, &want, &reason, NULL), SC_OK);
    ck_assert_int_eq(reason, SC_STORE_HIT);
    want.numerics = 8;
    ck_assert_int_eq(sc_store_find(store, &key.key, &want, &reason, NULL), SC_OK);
    ck_assert_int_eq(reason, SC_STORE_NUMERICS);
    want.numerics = 7;
    want.shard_count = 1;
    ck_assert_int_eq(sc_store_find(store, &key.key, &want, &reason, NULL), SC_OK);
    ck_assert_int_eq(reason, SC_STORE_SHARD);
    const sc_shard others[2] = {{0, 2, 0, 1, 0, 0}, {1, 2, 0, 1, 0, 4}};
    want.shards = others;
    want.shard_count = 2;
    ck_assert_int_eq(sc_store_find(store, &key.key, &want, &reason, NULL), SC_OK);
    ck_assert_int_eq(reason, SC_STORE_SHARD);
    /* in the order of the want */
    const sc_shard swapped[2] = {halves[1], halves[0]};
    struct sc_store_reader *reader = NULL;
    want.shards = swapped;
    ck_assert_int_eq(sc_store_reader_open(store, &key.key, &want, &reason, &reader), SC_OK);
    ck_assert_ptr_nonnull(reader);
    uint8_t back[6000];
    ck_assert_int_eq(sc_store_read(reader, 0, back, sizeof back), SC_OK);
    ck_assert_mem_eq(back, bytes[1], 6000);
    ck_assert_int_eq(sc_store_read(reader, 1, back, sizeof back), SC_OK);
    ck_assert_mem_eq(back, bytes[0], 6000);
    ck_assert_int_eq(sc_store_read(reader, 1, back, 5999), SC_ERR_LIMIT);
    ck_assert_int_eq(sc_store_read(reader, 2, back, 6000), SC_ERR_INVALID);
    sc_store_reader_close(reader);
    sc_store_close(store);
}
END_TEST

/* Report 131: a key's hash is the same in every process and version. */
START_TEST(report_131__a_keys_hash_never_changes)
{
    struct sc_store_hash hash;
    struct tier_key key;
    tier_key_init(&key, 1, 3);
    key.tokens[0] = 1;
    key.tokens[1] = -2;
    key.tokens[2] = 300000;
    key.key.adapter_id = 9;
    key.key.adapter_generation = 4;
    tier_key_mark(&key, 1, 0xab);
    ck_assert_int_eq(sc_store_key_hash(&key.key, &hash), SC_OK);
    ck_assert_uint_eq(hash.low, UINT64_C(0x933067519661a487));
    ck_assert_uint_eq(hash.high, UINT64_C(0x77e9bf2c1734e450));
    ck_assert_int_eq(sc_store_key_hash(NULL, &hash), SC_ERR_INVALID);
    ck_assert_int_eq(sc_store_key_hash(&key.key, NULL), SC_ERR_INVALID);
}
END_TEST

/* Reports 129 and 130: equal hashes are not equal keys. */
START_TEST(report_130__hashes_that_collide_lead_to_no_wrong_record)
{
    struct sc_store_options options = tier_options(folder);
    options.hash_bits = 2;
    struct sc_store *store = tier_open(&options);
    for (uint32_t i = 0; i < 40; i++) {
        ck_assert_int_eq(tier_put(store, i / 2, 30 + i % 2, 0, 100 + i), SC_OK);
    }
    for (uint32_t i = 0; i < 40; i++) tier_expect(store, i / 2, 30 + i % 2, 100 + i);
    for (uint32_t i = 40; i < 140; i++) {
        ck_assert_int_eq(tier_reason(store, i, 30), SC_STORE_ABSENT);
    }
    sc_store_close(store);
    store = tier_open(&options);
    for (uint32_t i = 0; i < 40; i++) tier_expect(store, i / 2, 30 + i % 2, 100 + i);
    ck_assert_uint_eq(tier_verify(store), 40);
    sc_store_close(store);
    options.hash_bits = 0;
    ck_assert_int_eq(sc_store_open(&options, &store), SC_ERR_UNSUPPORTED);
}
END_TEST

/* ... nor when the last edge is equal, and what differs stands in a record before it. */
START_TEST(report_130__a_collision_is_followed_to_the_root)
{
    struct sc_store_options options = tier_options(folder);
    options.hash_bits = 1;
    struct sc_store *store = tier_open(&options);
    struct tier_key key;
    for (uint32_t n = 32; n <= 64; n += 32) {
        tier_key_init(&key, 1, n);
        struct sc_store_record record = tier_record(&key);
        record.parent_len = n - 32;
        ck_assert_int_eq(tier_put_record(store, &record, 100, 0, 1, 0), SC_OK);
    }
    ck_assert_int_eq(tier_find(store, &key, NULL), SC_STORE_HIT);
    for (int32_t other = 1; other <= 16; other++) { /* half of them have the same hash */
        tier_key_init(&key, 1, 64);
        key.tokens[0] += other;
        ck_assert_int_eq(tier_find(store, &key, NULL), SC_STORE_ABSENT);
    }
    sc_store_close(store);
}
END_TEST

START_TEST(report_129__equal_ends_are_not_equal_records)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    struct tier_key a, b;
    tier_key_init(&a, 1, 200);
    tier_key_init(&b, 1, 200);
    b.tokens[0]++;
    struct sc_store_record record = tier_record(&a);
    ck_assert_int_eq(tier_put_record(store, &record, 1000, 0, 1, 0), SC_OK);
    ck_assert_int_eq(tier_find(store, &b, NULL), SC_STORE_ABSENT);
    record = tier_record(&b);
    ck_assert_int_eq(tier_put_record(store, &record, 1000, 0, 2, 0), SC_OK);
    struct sc_store_info of_a, of_b;
    ck_assert_int_eq(tier_find(store, &a, &of_a), SC_STORE_HIT);
    ck_assert_int_eq(tier_find(store, &b, &of_b), SC_STORE_HIT);
    ck_assert_uint_ne(of_a.id, of_b.id);
    sc_store_close(store);
}
END_TEST

/* Report 127: one key function for all tiers: adapters are in it. */
START_TEST(report_127__another_adapter_is_a_miss)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    struct tier_key a, b;
    tier_key_init(&a, 1, 64);
    tier_key_init(&b, 1, 64);
    a.key.adapter_id = 1;
    b.key.adapter_id = 2;
    struct sc_store_record record = tier_record(&a);
    ck_assert_int_eq(tier_put_record(store, &record, 1000, 0, 1, 0), SC_OK);
    ck_assert_int_eq(tier_find(store, &b, NULL), SC_STORE_ADAPTER);
    record = tier_record(&b);
    ck_assert_int_eq(tier_put_record(store, &record, 1000, 0, 2, 0), SC_OK);
    uint64_t count = 0;
    ck_assert_int_eq(sc_store_drop_adapter(store, 1, 0, &count), SC_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(tier_find(store, &a, NULL), SC_STORE_ADAPTER);
    ck_assert_int_eq(tier_find(store, &b, NULL), SC_STORE_HIT);
    sc_store_close(store);
}
END_TEST

/* Report 128, on disk: the name stayed, the weights are others; and the old ones can go at once. */
START_TEST(report_128__an_adapter_loaded_again_is_another_on_disk)
{
    struct sc_store_options options = tier_options(folder);
    struct sc_store *store = tier_open(&options);
    struct tier_key key;
    tier_key_init(&key, 1, 64);
    key.key.adapter_id = 9;
    for (uint64_t generation = 1; generation <= 3; generation++) {
        key.key.adapter_generation = generation;
        struct sc_store_record record = tier_record(&key);
        ck_assert_int_eq(tier_find(store, &key, NULL),
            generation == 1 ? SC_STORE_ABSENT : SC_STORE_ADAPTER);
        ck_assert_int_eq(tier_put_record(store, &record, 1000, 0, generation, 0), SC_OK);
        ck_assert_int_eq(tier_find(store, &key, NULL), SC_STORE_HIT);
        sc_store_close(store); /* also over a restart */
        store = tier_open(&options);
    }
    uint64_t count = 0;
    ck_assert_int_eq(sc_store_drop_adapter(store, 9, 2, &count), SC_OK);
    ck_assert_uint_eq(count, 1);
    for (uint64_t generation = 1; generation <= 3; generation++) {
        key.key.adapter_generation = generation;
        ck_assert_int_eq(tier_find(store, &key, NULL),
            generation == 2 ? SC_STORE_ADAPTER : SC_STORE_HIT);
    }
    ck_assert_uint_eq(tier_verify(store), 2);
    sc_store_close(store);
}
END_TEST

TIER_MAIN("tier/keys", 120,
    {find__says_why_not, 0},
    {find__asks_for_numerics_shards_and_exactness, 0},
    {report_131__a_keys_hash_never_changes, 0},
    {report_130__hashes_that_collide_lead_to_no_wrong_record, 0},
    {report_130__a_collision_is_followed_to_the_root, 0},
    {report_129__equal_ends_are_not_equal_records, 0},
    {report_127__another_adapter_is_a_miss, 0},
    {report_128__an_adapter_loaded_again_is_another_on_disk, 0})

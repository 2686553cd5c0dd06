/* SPDX-License-Identifier: Apache-2.0 */
/* A remote tier: a store that two caches share. What one stores the other finds, learns and
 * resumes, bit for bit; a store that fails or forgets costs a hit, and nothing else. */
#include "statecache/experimental.h"
#include "test_engine_tape.h"
#include "test_engine_tiers_case.h"

enum { STATES_MAX = 64, BYTES_MAX = 1 << 16 };

/* The shared store: a list. */
struct shared_state {
    sc_remote_key key;
    int32_t tokens[256];
    sc_mark marks[16];
    uint8_t bytes[BYTES_MAX];
};

static struct {
    pthread_mutex_t lock;
    struct shared_state states[STATES_MAX];
    uint32_t count, found, loaded;
    sc_status fails; /* not SC_OK: every call */
} store = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_prefix(const struct shared_state *state, const sc_remote_key *key)
{
    const sc_remote_key *own = &state->key;
    uint32_t marks = 0;
    if (own->adapter_id != key->adapter_id || own->token_count > key->token_count) return false;
    if (own->adapter_generation != key->adapter_generation) return false;
    if (memcmp(state->tokens, key->tokens, own->token_count * sizeof(int32_t)) != 0) return false;
    while (marks < key->mark_count && key->marks[marks].at < own->token_count) marks++;
    if (marks != own->mark_count) return false;
    for (uint32_t i = 0; i < marks; i++) {
        if (state->marks[i].at != key->marks[i].at) return false;
        if (memcmp(state->marks[i].id, key->marks[i].id, 16) != 0) return false;
    }
    return true;
}

static struct shared_state *longest(const sc_remote_key *key, uint32_t len_max)
{
    struct shared_state *best = NULL;
    for (uint32_t i = 0; i < store.count; i++) {
        struct shared_state *state = &store.states[i];
        if (state->key.token_count > len_max || !is_prefix(state, key)) continue;
        if (!best || best->key.token_count < state->key.token_count) best = state;
    }
    return best;
}

static sc_status shared_find(void *ctx, const sc_remote_key *keys, uint32_t count,
    uint32_t *len_out)
{
    ck_assert_ptr_eq(ctx, &store);
    (void)pthread_mutex_lock(&store.lock);
    for (uint32_t i = 0; i < count; i++) {
        const struct shared_state *state = longest(&keys[i], keys[i].len_max);
        len_out[i] = state ? state->key.token_count : 0;
        store.found += state != NULL;
    }
    sc_status status = store.fails;
    (void)pthread_mutex_unlock(&store.lock);
    return status;
}

static uint64_t state_bytes;

static sc_status shared_store(void *ctx, const sc_remote_key *key, const void *bytes)
{
    (void)ctx;
    (void)pthread_mutex_lock(&store.lock);
    sc_status status = store.fails;
    const struct shared_state *there = longest(key, key->token_count);
    bool has = there && there->key.token_count == key->token_count;
    if (status == SC_OK && !has) {
        if (store.count == STATES_MAX || key->token_count > 256 || key->mark_count > 16) abort();
        struct shared_state *state = &store.states[store.count++];
        state->key = *key;
        memcpy(state->tokens, key->tokens, key->token_count * sizeof(int32_t));
        memcpy(state->marks, key->marks, key->mark_count * sizeof(sc_mark));
        memcpy(state->bytes, bytes, state_bytes);
    }
    (void)pthread_mutex_unlock(&store.lock);
    return status;
}

static sc_status shared_load(void *ctx, const sc_remote_key *key, void *bytes_out)
{
    (void)ctx;
    (void)pthread_mutex_lock(&store.lock);
    sc_status status = store.fails;
    const struct shared_state *state = longest(key, key->token_count);
    if (status == SC_OK && (!state || state->key.token_count != key->token_count)) {
        status = SC_ERR_NOT_FOUND;
    }
    if (status == SC_OK) memcpy(bytes_out, state->bytes, state_bytes);
    store.loaded += status == SC_OK;
    (void)pthread_mutex_unlock(&store.lock);
    return status;
}

static void store_fails(sc_status status)
{
    (void)pthread_mutex_lock(&store.lock);
    store.fails = status;
    (void)pthread_mutex_unlock(&store.lock);
}

static sc_remote remote;
static struct tiered other;

/* A cache over the store; `tiered` is t or other. */
static void prepare(struct tiered *tiered, uint32_t write)
{
    sc_pool_info info;
    sc_layer_view view;
    sc_part part;
    tiered->rig = NULL;
    tiered_prepare(tiered, &options, 0, 0, write);
    rig_ok(sc_pool_info_get(tiered->rig->pool, &info));
    state_bytes = info.state_bytes;
    ck_assert_uint_le(state_bytes, BYTES_MAX);
    remote = (sc_remote)SC_REMOTE_INIT;
    remote.ctx = &store;
    remote.state_bytes = state_bytes;
    remote.tp_size = info.shard.tp_size;
    remote.layer_first = UINT32_MAX;
    for (uint32_t i = 0; i < info.part_count; i++) {
        rig_ok(sc_pool_part_view(tiered->rig->pool, i, &view, &part));
        if (part.layer < remote.layer_first) remote.layer_first = part.layer;
        if (part.layer > remote.layer_last) remote.layer_last = part.layer;
    }
    rig_ok(sc_schema_fingerprint(tiered->rig->schema, &remote.fingerprint));
    remote.find = shared_find;
    remote.store = shared_store;
    remote.load = shared_load;
    tiered->options.remote = (sc_tier_config){.bytes = 1 << 30, .write = write};
    tiered->options.remote_calls = &remote;
}

static void open_both(void)
{
    store.count = 0;
    case_of(16);
    options.cache.without_kv = true;
    prepare(&t, SC_TIER_WRITE_THROUGH);
    tiered_start(&t, &options);
    prepare(&other, SC_TIER_WRITE_BACK);
    tiered_start(&other, &options);
}

static sc_find find_of(struct tiered *tiered, const int32_t *tokens, uint32_t count)
{
    return (sc_find){.key = rig_key(tiered->rig, tokens, count)};
}

/* What the cache finds of a prompt in the store. */
static uint32_t found(struct tiered *tiered, const int32_t *tokens, uint32_t count, bool learn)
{
    sc_find find = find_of(tiered, tokens, count);
    rig_ok(sc_cache_find(tiered->rig->cache, &find, 1));
    ck_assert_int_eq(find.status, SC_OK);
    if (learn) rig_ok(sc_cache_learn(tiered->rig->cache, &find, 1, tiered->rig->now_ns));
    ck_assert_int_eq(find.status, SC_OK);
    rig_verify(tiered->rig);
    return find.len;
}

/* The rig computes no states without KV: a state is a stamp of its tokens. */
static uint64_t stamp(const int32_t *tokens, uint32_t count)
{
    uint64_t hash = 1;
    for (uint32_t i = 0; i < count; i++) hash = rig_hash(hash, (uint32_t)tokens[i]);
    return hash;
}

/* Goes on with a request that is READY, to `count`; what it had resumed. */
static uint32_t go_on(struct tiered *tiered, struct req *req, const int32_t *tokens, uint32_t count)
{
    struct rig *rig = tiered->rig;
    sc_lease_info info = rig_info(rig, req->lease);
    ck_assert_int_eq(info.state, SC_LEASE_READY);
    uint32_t from = info.resume_len;
    if (from > 0) ck_assert(rig_state_is(rig, info.source_slot, stamp(tokens, from)));
    for (uint32_t at = from; at < count;) { /* cut at N, where a state is saved */
        sc_row row = {.lease = req->lease, .from = at, .to = at < N && count > N ? N : count};
        sc_batch batch;
        sc_status each;
        rig_ok(sc_step_plan(rig->cache, ++rig->step, &row, 1, 0, &batch, &each));
        ck_assert_int_eq(each, SC_OK);
        rig_state_write(rig, rig_word(&batch, batch.at_dest, 0), stamp(tokens, row.to));
        sc_result result = {.lease = req->lease, .len = row.to};
        rig_ok(sc_step_commit(rig->cache, rig->step, &result, 1, &each));
        at = row.to;
    }
    req_close(rig, req, 0, count % rig->page == 0 ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD);
    (void)tiered_settle(tiered);
    return from;
}

static uint32_t serve(struct tiered *tiered, const int32_t *tokens, uint32_t count)
{
    struct req req;
    rig_ok(req_try(tiered->rig, &req, tokens, count));
    (void)tiered_settle(tiered);
    return go_on(tiered, &req, tokens, count);
}

START_TEST(remote__what_one_cache_stores_another_resumes)
{
    open_both();
    (void)serve(&t, prompt(0), N);
    ck_assert_uint_gt(store.count, 0);
    ck_assert_uint_gt(rig_stats(t.rig).tier_stored[SC_TIER_REMOTE], 0);
    uint32_t len = found(&other, prompt(0), N + 1, false);
    ck_assert_uint_eq(len, N);
    ck_assert_uint_eq(rig_lookup(other.rig, prompt(0), N + 1).state_len[SC_TIER_REMOTE], 0);
    (void)found(&other, prompt(0), N + 1, true);
    ck_assert_uint_eq(rig_lookup(other.rig, prompt(0), N + 1).state_len[SC_TIER_REMOTE], len);
    (void)found(&other, prompt(0), N + 1, true); /* twice is once */
    ck_assert_uint_eq(serve(&other, prompt(0), N + 1), len);
    ck_assert_uint_eq(rig_stats(other.rig).resumed_by_tier[SC_TIER_REMOTE], 1);
    ck_assert_uint_eq(store.loaded, 1);
    ck_assert_uint_eq(found(&other, prompt(1), N + 1, true), 0);
    tiered_deinit(&other);
    tiered_deinit(&t);
}
END_TEST

/* What a cache has stored itself it knows. */
START_TEST(remote__what_is_evicted_comes_back)
{
    open_both();
    for (uint32_t i = 0; i < 6; i++) (void)serve(&t, prompt(i), N);
    tiered_clear_device(&t);
    for (uint32_t i = 0; i < 6; i++) {
        ck_assert_uint_eq(serve(&t, prompt(i), N + 1), N);
    }
    ck_assert_uint_eq(rig_stats(t.rig).tier_lost, 0);
    tiered_deinit(&other);
    tiered_deinit(&t);
}
END_TEST

/* A state that was decoded is another than one that was prefilled. */
START_TEST(remote__a_history_is_part_of_the_key)
{
    open_both();
    (void)serve(&t, prompt(0), N);
    sc_find find = find_of(&other, prompt(0), N + 1);
    const sc_history decoded[2] = {{N / 4, SC_FORM_KIND_PREFILL}, {N + 1, SC_FORM_KIND_DECODE}};
    const sc_history cut[2] = {{N / 4, SC_FORM_KIND_PREFILL}, {N + 1, SC_FORM_KIND_PREFILL}};
    rig_ok(sc_cache_find(other.rig->cache, &find, 1));
    uint32_t len = find.len;
    ck_assert_uint_gt(len, N / 4);
    find.history = decoded;
    find.history_count = 2;
    rig_ok(sc_cache_find(other.rig->cache, &find, 1));
    ck_assert_uint_le(find.len, N / 4);
    find.history = cut;
    rig_ok(sc_cache_find(other.rig->cache, &find, 1));
    ck_assert_uint_le(find.len, N / 4);
    tiered_deinit(&other);
    tiered_deinit(&t);
}
END_TEST

START_TEST(remote__a_store_that_is_gone_is_a_miss)
{
    open_both();
    (void)serve(&t, prompt(0), N);
    (void)found(&other, prompt(0), N + 1, true);
    store_fails(SC_ERR_CLOSED);
    sc_find find = find_of(&other, prompt(0), N + 1);
    rig_ok(sc_cache_find(other.rig->cache, &find, 1));
    ck_assert(find.status == SC_ERR_CLOSED && find.len == 0);
    struct req req;
    rig_ok(req_try(other.rig, &req, prompt(0), N + 1));
    ck_assert_int_eq(rig_info(other.rig, req.lease).state, SC_LEASE_WAITING);
    ck_assert_uint_eq(tiered_settle(&other), 1);
    ck_assert_int_eq(rig_info(other.rig, req.lease).state, SC_LEASE_READY);
    ck_assert_int_eq(rig_info(other.rig, req.lease).reason, SC_REASON_TIER_FAILED);
    ck_assert_uint_eq(go_on(&other, &req, prompt(0), N + 1), 0);
    /* It is still remembered, and there again when the store is. */
    store_fails(SC_OK);
    ck_assert_uint_eq(serve(&other, prompt(0), N + 1), N);
    /* What is stored meanwhile is lost if its slot is wanted, and nothing is held for it. */
    store_fails(SC_ERR_CLOSED);
    for (uint32_t i = 1; i < 20; i++) (void)serve(&other, prompt(i), N);
    ck_assert_uint_gt(rig_stats(other.rig).tier_lost, 0);
    store_fails(SC_OK);
    tiered_deinit(&other);
    tiered_deinit(&t);
}
END_TEST

START_TEST(remote__what_the_store_has_dropped_is_forgotten)
{
    open_both();
    (void)serve(&t, prompt(0), N);
    (void)found(&other, prompt(0), N + 1, true);
    store.count = 0;
    ck_assert_uint_eq(serve(&other, prompt(0), N + 1), 0);
    (void)tiered_settle(&other);
    tiered_clear_device(&other);
    ck_assert_uint_eq(rig_stats(other.rig).transfers_failed, 1);
    tiered_deinit(&other);
    tiered_deinit(&t);
}
END_TEST

/* So many states are remembered, and no more; with memory failing at each place. */
START_TEST(remote__what_is_remembered_is_bounded)
{
    open_both();
    for (uint32_t i = 0; i < 12; i++) (void)serve(&t, prompt(i), N);
    tiered_stop(&other);
    other.options.entry_max = 4;
    tiered_start(&other, &options);
    for (uint32_t i = 0; i < 12; i++) {
        for (uint64_t n = 1;; n++) {
            sc_find find = find_of(&other, prompt(i), N + 1);
            fail_alloc_arm(&other.rig->fa, n);
            sc_status status = sc_cache_find(other.rig->cache, &find, 1);
            if (status == SC_OK && find.status == SC_OK) {
                status = sc_cache_learn(other.rig->cache, &find, 1, other.rig->now_ns);
            }
            bool failed = fail_alloc_disarm(&other.rig->fa);
            sc_status all = status != SC_OK ? status : find.status;
            ck_assert_int_eq(all, failed ? SC_ERR_NO_MEMORY : SC_OK);
            rig_verify(other.rig);
            if (!failed) break;
        }
    }
    ck_assert_uint_le(rig_stats(other.rig).tier_records, 4);
    ck_assert_uint_eq(serve(&other, prompt(11), N + 1), N);
    tiered_deinit(&other);
    tiered_deinit(&t);
}
END_TEST

/* Contract 18: learning is a call like others. */
START_TEST(remote__a_recorded_sequence_replays)
{
    struct tape tape = {0};
    sc_replay *replay = NULL;
    open_both();
    for (uint32_t i = 0; i < 3; i++) (void)serve(&t, prompt(i), N);
    tiered_stop(&other);
    options.cache.record = tape_record;
    options.cache.record_ctx = &tape;
    tiered_start(&other, &options);
    for (uint32_t i = 0; i < 3; i++) {
        (void)found(&other, prompt(i), N + 1, true);
        (void)serve(&other, prompt(i), N + 1);
    }
    ck_assert_uint_eq(rig_stats(other.rig).resumed_by_tier[SC_TIER_REMOTE], 3);
    tiered_deinit(&other);
    options.cache.record = NULL;
    prepare(&other, SC_TIER_WRITE_BACK);
    tiered_create(&other, &options);
    rig_ok(sc_replay_create(other.rig->cache, &replay));
    tape_feed(replay, &tape);
    ck_assert_uint_eq(rig_stats(other.rig).resumed_by_tier[SC_TIER_REMOTE], 3);
    sc_replay_destroy(replay);
    free(tape.bytes);
    tiered_deinit(&other);
    tiered_deinit(&t);
}
END_TEST

static void expect_create(const sc_tiers_options *given, sc_status status)
{
    sc_tiers *tiers = NULL;
    ck_assert_int_eq(sc_tiers_create(given, &tiers), status);
    ck_assert_ptr_null(tiers);
}

START_TEST(sc_tiers_create__refuses_bad_remote_tiers)
{
    open_both();
    sc_remote broken = remote;
    sc_tiers_options good = SC_TIERS_OPTIONS_INIT, bad;
    good.remote.bytes = 1 << 20;
    good.remote_calls = &remote;
    bad = good, bad.remote_calls = NULL;
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.remote.bytes = 0;
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.remote.zstd_level = 1;
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.remote.codec = 2, bad.remote.lossy = true;
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.host.bytes = 1 << 20;
    expect_create(&bad, SC_ERR_INVALID);
    bad = good, bad.remote_calls = &broken;
    broken.load = NULL;
    expect_create(&bad, SC_ERR_INVALID);
    broken = remote, broken.struct_size = 8;
    expect_create(&bad, SC_ERR_INVALID);
    tiered_deinit(&other);
    tiered_deinit(&t);
}
END_TEST

/* States of others: of another model, of another rank, of another size; and KV. */
START_TEST(sc_cache_create__refuses_remote_tiers_of_others)
{
    open_both();
    tiered_stop(&other);
    sc_cache_options cache_options;
    sc_cache *cache = NULL;
    rig_cache_options(other.rig, &options, &cache_options);
    for (int i = 0; i < 6; i++) {
        sc_remote wrong = remote;
        sc_tiers_options tiers = other.options;
        sc_kv_mover mover = other.mover;
        if (i == 0) wrong.fingerprint.bytes[3] ^= 1;
        if (i == 1) wrong.state_bytes += 4;
        if (i == 2) wrong.tp_rank = 1;
        if (i == 3) wrong.tp_size = 2;
        if (i == 4) wrong.layer_last++;
        cache_options.without_kv = i < 5;
        cache_options.kv_mover = i < 5 ? NULL : &mover;
        tiers.remote_calls = &wrong;
        rig_ok(sc_tiers_create(&tiers, &cache_options.tiers));
        ck_assert_int_eq(sc_cache_create(&cache_options, &cache),
            i < 5 ? SC_ERR_MISMATCH : SC_ERR_UNSUPPORTED);
        rig_ok(sc_tiers_destroy(cache_options.tiers));
    }
    tiered_start(&other, &options);
    tiered_deinit(&other);
    tiered_deinit(&t);
}
END_TEST

START_TEST(sc_cache_find__refuses_null_and_bad_keys)
{
    open_both();
    sc_cache *cache = t.rig->cache;
    sc_find good = find_of(&t, prompt(0), N + 1), bad = good;
    const sc_history down[2] = {{9, SC_FORM_KIND_PREFILL}, {5, SC_FORM_KIND_DECODE}};
    ck_assert_int_eq(sc_cache_find(NULL, &bad, 1), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_find(cache, NULL, 1), SC_ERR_INVALID);
    rig_ok(sc_cache_find(cache, NULL, 0));
    bad.key.token_count = 0;
    rig_ok(sc_cache_find(cache, &bad, 1));
    ck_assert_int_eq(bad.status, SC_ERR_INVALID);
    bad = good, bad.key.ns.generation++;
    rig_ok(sc_cache_find(cache, &bad, 1));
    ck_assert_int_eq(bad.status, SC_ERR_STALE);
    bad = good, bad.history = down, bad.history_count = 2;
    rig_ok(sc_cache_find(cache, &bad, 1));
    ck_assert_int_eq(bad.status, SC_ERR_INVALID);
    bad.history_count = 1; /* it does not reach the end */
    rig_ok(sc_cache_find(cache, &bad, 1));
    ck_assert_int_eq(bad.status, SC_ERR_INVALID);
    tiered_deinit(&other);
    tiered_deinit(&t);
}
END_TEST

START_TEST(sc_cache_learn__refuses_null_and_bad_lengths)
{
    open_both();
    sc_cache *cache = t.rig->cache;
    sc_find bad = find_of(&t, prompt(0), N + 1);
    ck_assert_int_eq(sc_cache_learn(NULL, &bad, 1, 0), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_learn(cache, NULL, 1, 0), SC_ERR_INVALID);
    bad.len = N + 2;
    ck_assert_int_eq(sc_cache_learn(cache, &bad, 1, 0), SC_ERR_INVALID);
    bad.len = N, bad.key.ns.id += 100;
    ck_assert_int_eq(sc_cache_learn(cache, &bad, 1, 0), SC_ERR_STALE);
    bad.len = 0; /* nothing is said */
    rig_ok(sc_cache_learn(cache, &bad, 1, 0));
    ck_assert_uint_eq(rig_stats(t.rig).tier_records, 0);
    tiered_deinit(&other);
    tiered_deinit(&t);
    case_open(16, 4, 0, SC_TIER_WRITE_BACK); /* without a remote tier */
    bad = find_of(&t, prompt(0), N + 1);
    bad.len = N;
    ck_assert_int_eq(sc_cache_learn(t.rig->cache, &bad, 1, 0), SC_ERR_UNSUPPORTED);
    rig_ok(sc_cache_find(t.rig->cache, &bad, 1));
    ck_assert(bad.len == 0 && bad.status == SC_OK);
    tiered_deinit(&t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_remote");
    TCase *tc = tcase_create("remote");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, remote__what_one_cache_stores_another_resumes);
    tcase_add_test(tc, remote__what_is_evicted_comes_back);
    tcase_add_test(tc, remote__a_history_is_part_of_the_key);
    tcase_add_test(tc, remote__a_store_that_is_gone_is_a_miss);
    tcase_add_test(tc, remote__what_the_store_has_dropped_is_forgotten);
    tcase_add_test(tc, remote__what_is_remembered_is_bounded);
    tcase_add_test(tc, remote__a_recorded_sequence_replays);
    tcase_add_test(tc, sc_tiers_create__refuses_bad_remote_tiers);
    tcase_add_test(tc, sc_cache_create__refuses_remote_tiers_of_others);
    tcase_add_test(tc, sc_cache_find__refuses_null_and_bad_keys);
    tcase_add_test(tc, sc_cache_learn__refuses_null_and_bad_lengths);
    suite_add_tcase(suite, tc);
    return rig_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Records of mutating calls, and their replay on a second cache, which must decide the same
 * (contract 18). The calls are those of the random scheduler (test_engine_sim.h); SC_TEST_SCALE
 * makes the sequences longer (percent): 10,000 gives a million calls. */
#include "support/test_scale.h"
#include "test_engine_sim.h"
#include "test_engine_tape.h"

static struct rig_options options_of(int i, struct tape *tape)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = i & 1 ? 16 : 1;
    options.slots = 14;
    options.extras = i & 2 ? SIM_REQS : 0;
    options.cache.depth_max = 1 + (uint32_t)i % 3;
    options.cache.draft_max = i & 2 ? 4 : 0;
    options.cache.tails = i & 1;
    options.cache.token_max = i & 2 ? 600 : 0;
    options.cache.record = tape ? tape_record : NULL;
    options.cache.record_ctx = tape;
    return options;
}

/* A cache for the player: other memory, other layout, and no forward is ever run. */
static void second_init(struct rig *rig, const struct rig_options *options, sc_replay **replay_out)
{
    struct rig_options other = *options;
    sc_cache_options cache_options;
    other.layout = SC_LAYOUT_CONTIGUOUS;
    other.cache.record = NULL;
    rig_init_pools(rig, &other);
    rig_cache_options(rig, &other, &cache_options);
    rig_ok(sc_cache_create(&cache_options, &rig->cache));
    rig_ok(sc_replay_create(rig->cache, replay_out));
}

static void second_deinit(struct rig *rig, sc_replay *replay)
{
    sc_replay_destroy(replay);
    rig_verify(rig);
    rig_ok(sc_cache_destroy(rig->cache));
    ck_assert_uint_eq(fail_alloc_live_blocks(&rig->fa), 0);
    rig_ok(sc_pool_destroy(rig->pool));
    rig_ok(sc_pool_destroy(rig->extras));
    sc_schema_release(rig->schema);
    sc_schema_release(rig->extra_schema);
    free(rig->kv);
    free(rig->kv_where);
    free(rig->kv_free);
}

START_TEST(contract_18__a_second_cache_fed_the_same_calls_decides_the_same)
{
    struct tape tape = {0};
    struct rig_options options = options_of(_i, &tape);
    struct sim sim;
    struct rig second;
    sc_replay *replay = NULL;
    sim_init(&sim, &options, 900 + (uint64_t)_i);
    sim.marks = sim.forks = true;
    sim.rig.request_flags = _i & 1 ? SC_REQUEST_COPY : 0;
    second_init(&second, &options, &replay);
    uint64_t calls = test_scaled(10000, 1000), played = 0;
    for (uint64_t i = 0; tape.records < calls; i++) {
        sim_act(&sim);
        tape_feed(replay, &tape);
        if (i % 256 == 0) rig_verify(&second);
    }
    sc_cache_stats stats = rig_stats(&sim.rig), same = rig_stats(&second);
    ck_assert_mem_eq(&stats, &same, sizeof same);
    ck_assert_uint_gt(stats.forked, 0);
    while (sim.out > 0) sim_end(&sim);
    for (uint32_t i = 0; i < SIM_REQS; i++) {
        if (sim.reqs[i].lease.id) req_close(&sim.rig, &sim.reqs[i], 0, SC_RELEASE_KEEP);
    }
    tape_feed(replay, &tape);
    rig_ok(sc_replay_count(replay, &played));
    ck_assert_uint_eq(played, tape.records);
    second_deinit(&second, replay);
    sim_deinit(&sim);
    free(tape.bytes);
}
END_TEST

/* A cache that records to `tape` and one that will be fed; 64 tokens for them. */
static sc_replay *pair_init(struct tape *tape, struct rig *first, struct rig *second,
    int32_t *tokens)
{
    struct rig_options options = options_of(0, tape);
    sc_replay *replay = NULL;
    rig_fill(tokens, 64, 1);
    rig_init(first, &options);
    second_init(second, &options, &replay);
    return replay;
}

/* One more call on the second cache: the next decision that depends on it is found. */
START_TEST(replay__the_first_difference_is_named)
{
    struct tape tape = {0};
    struct rig first, second;
    int32_t tokens[64];
    struct req req;
    sc_replay *replay = pair_init(&tape, &first, &second, tokens);
    (void)rig_serve(&first, tokens, 40, 40, SC_RELEASE_KEEP);
    tape_feed(replay, &tape);
    sc_room got;
    rig_ok(sc_cache_evict(second.cache, 0, 1, &got));
    rig_ok(req_try(&first, &req, tokens, 60));
    ck_assert_int_eq(sc_replay_feed(replay, tape.bytes, tape.count), SC_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "length of request 0 is 0, was 40"));
    ck_assert_int_eq(sc_replay_feed(replay, tape.bytes, tape.count), SC_ERR_STATE);
    sc_lease lease = req.lease; /* the same handle there */
    rig_ok(sc_lease_release(second.cache, lease, 0, SC_RELEASE_DISCARD));
    req_close(&first, &req, 0, SC_RELEASE_DISCARD);
    second_deinit(&second, replay);
    rig_deinit(&first);
    free(tape.bytes);
}
END_TEST

/* A lease that has ended there already: what the second cache said of it is in the message. */
START_TEST(replay__a_call_that_fails_now_says_why)
{
    struct tape tape = {0};
    struct rig first, second;
    int32_t tokens[64];
    struct req req;
    sc_replay *replay = pair_init(&tape, &first, &second, tokens);
    rig_ok(req_try(&first, &req, tokens, 60));
    tape_feed(replay, &tape);
    rig_ok(sc_lease_release(second.cache, req.lease, 0, SC_RELEASE_DISCARD));
    sc_status ended = sc_lease_release(second.cache, req.lease, 0, SC_RELEASE_DISCARD);
    ck_assert_int_ne(ended, SC_OK);
    sc_error_info why = *sc_last_error();
    req_close(&first, &req, 0, SC_RELEASE_DISCARD);
    ck_assert_int_eq(sc_replay_feed(replay, tape.bytes, tape.count), SC_ERR_MISMATCH);
    const char *text = sc_last_error()->text;
    ck_assert_msg(strstr(text, "was fine: ") && strstr(text, why.text), "%s", text);
    second_deinit(&second, replay);
    rig_deinit(&first);
    free(tape.bytes);
}
END_TEST

START_TEST(replay__other_options_are_refused)
{
    struct tape tape = {0};
    struct rig_options options = options_of(0, &tape), other = options;
    struct rig first, second;
    sc_replay *replay = NULL;
    rig_init(&first, &options);
    other.slots++;
    second_init(&second, &other, &replay);
    ck_assert_int_eq(sc_replay_feed(replay, tape.bytes, tape.count), SC_ERR_MISMATCH);
    second_deinit(&second, replay);
    rig_deinit(&first);
    free(tape.bytes);
}
END_TEST

/* Ends whatever a spoilt record has begun: step numbers may have been changed, too. */
static void end_all(struct rig *second)
{
    static const uint32_t masks[] = {0, 1, 0x80000000u, UINT32_MAX};
    for (sc_step step = 0; step < 16; step++) {
        for (uint32_t m = 0; m < 4; m++) {
            (void)sc_step_abort(second->cache, step ^ masks[m], true);
            (void)sc_step_abort(second->cache, step ^ (sc_step)masks[m] << 32, true);
        }
    }
    for (uint32_t id = 1; id < 8; id++) {
        for (uint32_t generation = 1; generation < 8; generation++) {
            sc_lease lease = {id, generation};
            (void)sc_lease_release(second->cache, lease, 0, SC_RELEASE_DISCARD);
        }
    }
    ck_assert_uint_eq(rig_stats(second).leases_alive, 0);
}

/* Records with each word changed in turn, and cut short at each: an error or not, never harm. */
START_TEST(replay__bad_records_are_refused)
{
    struct tape tape = {0};
    struct rig_options options = options_of(1, &tape);
    struct rig first;
    int32_t tokens[64];
    struct req req, child;
    rig_fill(tokens, 64, 1);
    rig_init(&first, &options);
    rig_ok(req_try(&first, &req, tokens, 40));
    req_run(&first, &req, 16);
    rig_ok(req_fork(&first, &req, 1, &child));
    req_close(&first, &child, 0, SC_RELEASE_KEEP);
    req_close(&first, &req, 0, SC_RELEASE_KEEP);
    rig_deinit(&first); /* evicts and drains */
    uint32_t refused = 0, words = (uint32_t)(tape.count / sizeof(uint32_t));
    uint32_t *changed = malloc(tape.count);
    ck_assert_ptr_nonnull(changed);
    for (uint32_t w = 0; w < words; w++) {
        struct rig second;
        sc_replay *replay = NULL;
        second_init(&second, &options, &replay);
        memcpy(changed, tape.bytes, tape.count);
        changed[w] ^= w % 3 == 0 ? 0x80000000u : w % 3 == 1 ? 1 : UINT32_MAX;
        size_t count = w % 2 ? tape.count : (w + 1) * sizeof(uint32_t);
        refused += sc_replay_feed(replay, changed, count) != SC_OK;
        rig_verify(&second);
        end_all(&second);
        second_deinit(&second, replay);
    }
    ck_assert_uint_gt(refused, words / 2);
    free(changed);
    free(tape.bytes);
}
END_TEST

START_TEST(sc_replay__bad_args)
{
    struct rig_options options = options_of(0, NULL);
    struct rig rig;
    sc_replay *replay = NULL;
    uint64_t count = 0;
    uint32_t word = 1;
    second_init(&rig, &options, &replay);
    ck_assert_int_eq(sc_replay_create(NULL, &replay), SC_ERR_INVALID);
    ck_assert_int_eq(sc_replay_create(rig.cache, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_replay_feed(NULL, &word, 4), SC_ERR_INVALID);
    ck_assert_int_eq(sc_replay_feed(replay, NULL, 4), SC_ERR_INVALID);
    ck_assert_int_eq(sc_replay_count(NULL, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_replay_count(replay, NULL), SC_ERR_INVALID);
    rig_ok(sc_replay_feed(replay, NULL, 0));
    ck_assert_int_eq(sc_replay_feed(replay, &word, 4), SC_ERR_CORRUPT);
    sc_replay_destroy(NULL);
    rig_ok(sc_namespace_open(rig.cache, NULL, 0, 0, &rig.ns));
    sc_replay *late = NULL;
    ck_assert_int_eq(sc_replay_create(rig.cache, &late), SC_ERR_BUSY);
    ck_assert_ptr_null(late);
    second_deinit(&rig, replay);
}
END_TEST

static Suite *replay_suite(void)
{
    Suite *suite = suite_create("engine_replay");
    TCase *tc = tcase_create("replay");
    tcase_set_timeout(tc, 3600);
    tcase_add_loop_test(tc, contract_18__a_second_cache_fed_the_same_calls_decides_the_same, 0, 6);
    tcase_add_test(tc, replay__the_first_difference_is_named);
    tcase_add_test(tc, replay__a_call_that_fails_now_says_why);
    tcase_add_test(tc, replay__other_options_are_refused);
    tcase_add_test(tc, replay__bad_records_are_refused);
    tcase_add_test(tc, sc_replay__bad_args);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(replay_suite());
}

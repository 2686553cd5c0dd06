/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of an engine: points that come up one by one, prompts that end inside a block and become
 * longer, snapshots at positions that nobody foresaw, victims that leave their KV. */
#include "test_policy.h"

enum { BLOCK = 8 };

static struct rig rig;
static struct rig_request request;
static const uint64_t second_ns = 1000000000;

static void start(const char *policy, uint32_t block, bool keep_kv)
{
    rig_open(&rig, policy, 1e6, NULL);
    sc_policy_destroy(rig.policy);
    rig.options.block_tokens = rig.options.near_tokens = rig.options.interval_tokens = block;
    rig.options.keep_kv = keep_kv;
    RIG_OK(sc_policy_create(&rig.options, &rig.policy));
}

/* Tokens first, first + 1, ...; hashes are of whole blocks. */
static void prompt(int32_t first, uint32_t count, uint32_t block)
{
    int32_t tokens[RIG_PROMPT_MAX] = {0};
    for (uint32_t i = 0; i < count; i++) tokens[i] = first + (int32_t)i;
    rig_prompt(&request, tokens, count);
    for (uint32_t k = 0; k < count / block; k++) {
        request.hashes[k] = request.hashes[(k + 1) * block - 1];
    }
}

static void begin(uint32_t block)
{
    rig_match(&rig, &request, SC_RADIX_LOCK_KV);
    request.path.block_count = request.count / block;
    request.path.end_len = request.count;
    RIG_OK(sc_policy_begin(rig.policy, &request.path));
}

static sc_node save(uint32_t len)
{
    int32_t ids[RIG_PROMPT_MAX] = {0};
    struct sc_radix_run run = {0, 0};
    struct sc_radix_save at = {len, ++rig.snapshot};
    struct sc_radix_inserted inserted;
    sc_status status = SC_OK;
    struct sc_radix_insert in = {.space = rig.space, .tokens = request.tokens, .token_count = len,
        .kv_ids = ids, .runs = &run, .run_count = 1, .saves = &at, .save_count = 1};
    RIG_OK(sc_radix_insert(rig.radix, &in, &rig.sink, NULL, &status, &inserted));
    ck_assert_int_eq(status, SC_OK);
    rig_relock(&rig, &request, inserted.node);
    return inserted.node;
}

static void end(void)
{
    sc_policy_end(rig.policy, &request.path);
    RIG_OK(sc_policy_verify(rig.policy));
    rig_unlock(&rig, &request);
}

/* A prompt of `count` tokens, saved at its end; then `more` are decoded and their end is saved. */
static sc_node talk(int32_t first, uint32_t count, uint32_t more)
{
    prompt(first, count, BLOCK);
    begin(BLOCK);
    uint32_t last = request.path.point_count - 1;
    sc_node node = save(count);
    RIG_OK(sc_policy_attached(rig.policy, &request.path, last, node, rig.snapshot));
    if (more > 0) {
        struct sc_policy_path path = request.path;
        prompt(first, count + more, BLOCK);
        request.path = path;
        RIG_OK(sc_policy_extend(rig.policy, &request.path, request.hashes, (count + more) / BLOCK,
            count + more));
        node = save(count + more);
        RIG_OK(sc_policy_attached(rig.policy, &request.path, request.path.point_count - 1, node,
            rig.snapshot));
    }
    end();
    return node;
}

static bool has_snapshot(sc_node node)
{
    struct sc_radix_node_info info;
    return sc_radix_node_get(rig.radix, node, &info) == SC_OK && info.snapshot != 0;
}

START_TEST(ask__each_point_as_it_comes)
{
    start("gittins", BLOCK, false);
    prompt(100, 43, BLOCK);
    begin(BLOCK);
    /* near the end, and the end, which lies inside a block */
    ck_assert_uint_eq(request.path.point_count, 2);
    ck_assert_uint_eq(request.points[0].len, 32);
    ck_assert_uint_eq(request.points[1].len, 43);
    struct sc_policy_ask ask;
    ck_assert(sc_policy_ask(rig.policy, &request.path, 1, 0, &ask));
    ck_assert_uint_eq(ask.first, 1);
    ck_assert_uint_eq(ask.count, 1);
    ck_assert_double_eq(ask.bytes, 8 + 43);
    ck_assert_double_eq(ask.bar, HUGE_VAL); /* nothing is known yet */
    ck_assert(!sc_policy_ask(rig.policy, &request.path, 2, 0, &ask));
    ck_assert(!sc_policy_ask(NULL, &request.path, 0, 0, &ask));
    sc_node node = save(43);
    RIG_OK(sc_policy_attached(rig.policy, &request.path, 1, node, rig.snapshot));
    ck_assert(!sc_policy_ask(rig.policy, &request.path, 1, 0, &ask)); /* it is there */
    end();
    rig_close(&rig);
}
END_TEST

/* What has been promised bytes counts for those behind it as if it were there. */
START_TEST(promise__the_next_point_is_worth_what_it_adds)
{
    struct sc_policy_ask free, promised;
    start("gittins", 1, false);
    for (int32_t i = 0; i < 200; i++) { /* something to learn from */
        rig.now_ns += second_ns;
        rig_serve_run(&rig, 1000 * (i % 7), 20);
    }
    prompt(500000, 40, 1);
    rig.now_ns += second_ns;
    begin(1);
    uint32_t last = request.path.point_count - 1;
    ck_assert_uint_eq(last, 1);
    ck_assert(sc_policy_ask(rig.policy, &request.path, last, 0, &free));
    sc_policy_promise(&request.path, 0, true);
    ck_assert(sc_policy_ask(rig.policy, &request.path, last, 0, &promised));
    ck_assert_double_lt(promised.bar, free.bar / 10);
    sc_policy_promise(&request.path, 0, false);
    ck_assert(sc_policy_ask(rig.policy, &request.path, last, 0, &promised));
    ck_assert_double_eq(promised.bar, free.bar);
    end();
    rig_close(&rig);
}
END_TEST

/* A conversation goes on from what was decoded: that end is wanted again, the prompt's is not, and
 * when room is needed the prompt's goes. Also where the decoded tokens fill no block. */
START_TEST(extend__the_end_of_the_answer_stands_for_the_conversation)
{
    static const uint32_t more[] = {20, 3};
    sc_node ends[4], prompts = SC_NODE_NONE;
    double got = 0;
    start("gittins", BLOCK, true);
    for (int32_t i = 0; i < 400; i++) { /* they learn: 30 s later each is continued */
        rig.now_ns += 10 * second_ns;
        (void)talk(10000 * (i + 1), 20, more[_i]);
        if (i >= 3) (void)talk(10000 * (i - 2), 20 + more[_i] + 10, 0);
        RIG_OK(sc_policy_room(rig.policy, 8, HUGE_VAL, &rig.sink, &got));
        RIG_OK(sc_policy_room(rig.policy, 8, HUGE_VAL, &rig.sink, &got));
    }
    RIG_OK(sc_policy_room(rig.policy, 1e9, HUGE_VAL, &rig.sink, &got));
    for (int32_t i = 0; i < 4; i++) {
        rig.now_ns += 5 * second_ns;
        ends[i] = talk(90000000 + 1000 * i, 20, more[_i]);
    }
    RIG_OK(sc_policy_room(rig.policy, 4 * 8, HUGE_VAL, &rig.sink, &got));
    for (int32_t i = 0; i < 4; i++) {
        struct sc_radix_node_info info;
        ck_assert(has_snapshot(ends[i]));
        RIG_OK(sc_radix_node_get(rig.radix, ends[i], &info));
        prompts = info.parent;
        ck_assert(!has_snapshot(prompts));
    }
    rig_close(&rig);
}
END_TEST

/* Two prompts that differ only inside their last block have one position to learn from, and a
 * snapshot each. */
START_TEST(attached__two_ends_in_one_block)
{
    double value = 0;
    start("gittins", BLOCK, false);
    sc_node first = talk(100, 18, 0), second = talk(100, 21, 0);
    ck_assert_uint_ne(first, second);
    struct sc_policy_stats stats;
    sc_policy_stats_get(rig.policy, &stats);
    ck_assert_uint_eq(stats.resident, 2);
    double got = 0;
    ck_assert_uint_ne(sc_policy_victim(rig.policy, &value), SC_NODE_NONE);
    RIG_OK(sc_policy_room(rig.policy, 1e9, HUGE_VAL, &rig.sink, &got));
    ck_assert_uint_eq(rig.gone, 2);
    rig_close(&rig);
}
END_TEST

START_TEST(keep_kv__only_the_state_goes)
{
    double got = 0;
    start(_i ? "gittins" : "lru", BLOCK, true);
    sc_node node = talk(100, 20, 0);
    RIG_OK(sc_policy_room(rig.policy, 1, HUGE_VAL, &rig.sink, &got));
    struct sc_radix_node_info info;
    RIG_OK(sc_radix_node_get(rig.radix, node, &info));
    ck_assert_uint_eq(info.snapshot, 0);
    ck_assert(info.tombstone);
    ck_assert_double_eq(got, 8);
    rig_close(&rig);
}
END_TEST

START_TEST(attach__a_snapshot_that_is_no_point)
{
    start("gittins", BLOCK, false);
    prompt(100, 20, BLOCK);
    begin(BLOCK);
    sc_node node = save(11);
    ck_assert_int_eq(sc_policy_attach(NULL, &request.path, node, rig.snapshot), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_attach(rig.policy, &request.path, node, 0), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_attach(rig.policy, &request.path, node, 99), SC_ERR_MISMATCH);
    RIG_OK(sc_policy_attach(rig.policy, _i ? &request.path : NULL, node, rig.snapshot));
    end();
    ck_assert_uint_eq(sc_policy_victim(rig.policy, NULL), node);
    rig_close(&rig);
}
END_TEST

START_TEST(extend__refuses_what_is_not_longer)
{
    start("gittins", BLOCK, false);
    prompt(100, 20, BLOCK);
    begin(BLOCK);
    struct sc_policy_path *path = &request.path;
    ck_assert_int_eq(sc_policy_extend(NULL, path, request.hashes, 3, 24), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_extend(rig.policy, NULL, request.hashes, 3, 24), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_extend(rig.policy, path, NULL, 3, 24), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_extend(rig.policy, path, request.hashes, 2, 20), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_extend(rig.policy, path, request.hashes, 1, 24), SC_ERR_INVALID);
    ck_assert_int_eq(sc_policy_extend(rig.policy, path, request.hashes, 4, 24), SC_ERR_INVALID);
    uint32_t cap = path->point_cap;
    path->point_cap = path->point_count;
    ck_assert_int_eq(sc_policy_extend(rig.policy, path, request.hashes, 2, 22), SC_ERR_LIMIT);
    path->point_cap = cap;
    RIG_OK(sc_policy_extend(rig.policy, path, request.hashes, 2, 22));
    ck_assert_int_eq(sc_policy_extend(rig.policy, path, request.hashes, 2, 23), SC_ERR_INVALID);
    end();
    /* an end that is not within a block of the blocks' end */
    prompt(200, 20, BLOCK);
    rig_match(&rig, &request, SC_RADIX_LOCK_KV);
    path->block_count = 2;
    static const uint32_t wrong[] = {15, 24};
    for (int i = 0; i < 2; i++) {
        path->end_len = wrong[i];
        ck_assert_int_eq(sc_policy_begin(rig.policy, path), SC_ERR_INVALID);
    }
    rig_unlock(&rig, &request);
    rig_close(&rig);
}
END_TEST

/* Requests of one class come back, those of the other never; nothing else tells them apart. */
START_TEST(class__is_learned_about)
{
    start("gittins", 1, true);
    sc_node node[2];
    double got = 0;
    for (int32_t i = 0; i < 600; i++) {
        rig.now_ns += second_ns;
        for (int back = 0; back < 2; back++) {
            int32_t first = 1000 * (2 * (i - back * 5) + (back ? 1 : i % 2)) + 1;
            if (first < 0) continue;
            prompt(first, back ? 20 : 16, 1);
            rig_match(&rig, &request, SC_RADIX_LOCK_KV);
            request.path.class_id = back ? 1 : (uint32_t)i % 2;
            RIG_OK(sc_policy_begin(rig.policy, &request.path));
            rig_place(&rig, &request);
            rig_unlock(&rig, &request);
        }
        RIG_OK(sc_policy_room(rig.policy, 8, HUGE_VAL, &rig.sink, &got));
    }
    RIG_OK(sc_policy_room(rig.policy, 1e9, HUGE_VAL, &rig.sink, &got));
    for (uint32_t i = 0; i < 2; i++) {
        prompt(90000000 + 1000 * (int32_t)i, 16, 1);
        rig_match(&rig, &request, SC_RADIX_LOCK_KV);
        request.path.class_id = i;
        RIG_OK(sc_policy_begin(rig.policy, &request.path));
        node[i] = save(16);
        RIG_OK(sc_policy_attached(rig.policy, &request.path, request.path.point_count - 1, node[i],
            rig.snapshot));
        end();
    }
    ck_assert_uint_eq(sc_policy_victim(rig.policy, NULL), node[0]);
    rig_close(&rig);
}
END_TEST

/* Time goes on also without requests: a pin ends. */
START_TEST(time__without_a_request)
{
    start("gittins", 1, false);
    prompt(100, 10, 1);
    rig_match(&rig, &request, SC_RADIX_LOCK_KV);
    request.path.pin_until_ns = 5 * second_ns;
    RIG_OK(sc_policy_begin(rig.policy, &request.path));
    sc_node node = save(10);
    RIG_OK(sc_policy_attached(rig.policy, &request.path, request.path.point_count - 1, node,
        rig.snapshot));
    end();
    ck_assert_uint_eq(sc_policy_victim(rig.policy, NULL), SC_NODE_NONE);
    sc_policy_time(rig.policy, 5 * second_ns);
    ck_assert_uint_eq(sc_policy_victim(rig.policy, NULL), node);
    sc_policy_time(rig.policy, second_ns); /* never backwards */
    ck_assert_uint_eq(sc_policy_victim(rig.policy, NULL), node);
    sc_policy_time(NULL, 1);
    rig_close(&rig);
}
END_TEST

Suite *policy_longer_suite(void)
{
    Suite *suite = suite_create("policy longer");
    TCase *tc = tcase_create("longer");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, ask__each_point_as_it_comes);
    tcase_add_test(tc, promise__the_next_point_is_worth_what_it_adds);
    tcase_add_loop_test(tc, extend__the_end_of_the_answer_stands_for_the_conversation, 0, 2);
    tcase_add_test(tc, attached__two_ends_in_one_block);
    tcase_add_loop_test(tc, keep_kv__only_the_state_goes, 0, 2);
    tcase_add_loop_test(tc, attach__a_snapshot_that_is_no_point, 0, 2);
    tcase_add_test(tc, extend__refuses_what_is_not_longer);
    tcase_add_test(tc, class__is_learned_about);
    tcase_add_test(tc, time__without_a_request);
    suite_add_tcase(suite, tc);
    return suite;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* sc_cache_evict_prefix, sc_cache_tree, sc_cache_explain: against a naive model, in all tiers, with
 * failing memory, recorded and replayed. Stamps are checked (test_engine_rig.h). */
#include "statecache/inspect.h"
#include "support/test_scale.h"
#include "test_engine_tape.h"
#include "test_engine_tiers_case.h"

static struct rig rig;
static int32_t tokens[256];

static void start(uint32_t page, bool tails)
{
    struct rig_options start_options = RIG_OPTIONS_INIT;
    start_options.page = page;
    start_options.slots = 64;
    start_options.cache.tails = tails;
    start_options.cache.policy = "lru";
    rig_fill(tokens, 256, 1);
    rig_init(&rig, &start_options);
}

static sc_evicted evict(struct rig *of, const int32_t *prefix, uint32_t count)
{
    sc_key key = rig_key(of, prefix, count);
    sc_evicted evicted = {99, 99, 99};
    rig_ok(sc_cache_evict_prefix(of->cache, &key, &evicted));
    rig_verify(of);
    return evicted;
}

static uint32_t state_len(const int32_t *prompt_tokens, uint32_t count)
{
    return rig_lookup(&rig, prompt_tokens, count).state_len[SC_TIER_DEVICE];
}

/* ---- a naive model: every state is a list of tokens ---- */

enum { PROMPTS = 12, LEN_MAX = 40, STATES_MAX = PROMPTS * LEN_MAX };
struct model_state { const int32_t *tokens; uint32_t len; };
struct model {
    int32_t prompts[PROMPTS][LEN_MAX];
    uint32_t lens[PROMPTS], prompt_count;
    struct model_state states[STATES_MAX];
    uint32_t state_count;
};

static bool same_tokens(const int32_t *a, const int32_t *b, uint32_t count)
{
    return memcmp(a, b, count * sizeof *a) == 0;
}

/* Every state that look-ups of the prompts find, each once. */
static void model_look(struct model *model)
{
    model->state_count = 0;
    for (uint32_t p = 0; p < model->prompt_count; p++) {
        for (uint32_t len = 1; len <= model->lens[p]; len++) {
            sc_key key = rig_key(&rig, model->prompts[p], model->lens[p]);
            sc_answer answer;
            bool known = false;
            key.len_max = len;
            rig_ok(sc_cache_lookup(rig.cache, &key, 1, &answer));
            if (answer.state_len[SC_TIER_DEVICE] != len) continue;
            for (uint32_t s = 0; s < model->state_count && !known; s++) {
                known = model->states[s].len == len &&
                    same_tokens(model->states[s].tokens, model->prompts[p], len);
            }
            if (!known) {
                model->states[model->state_count++] =
                    (struct model_state){model->prompts[p], len};
            }
        }
    }
}

struct seen { uint32_t states, rows, depth; };
static bool count_row(void *ctx, const sc_tree_row *row)
{
    struct seen *seen = ctx;
    seen->states += row->has_state;
    seen->rows++;
    if (row->depth > seen->depth) seen->depth = row->depth;
    ck_assert_uint_lt(row->start, row->end);
    ck_assert(!row->has_state || !row->evicted);
    for (uint32_t i = 0; i < row->mark_count; i++) ck_assert_uint_ge(row->marks[i].at, row->start);
    return true;
}

static uint32_t below(struct sc_prng *prng, uint32_t bound)
{
    return (uint32_t)sc_prng_below(prng, bound);
}

static void random_prompt(struct model *model, uint32_t p, struct sc_prng *prng)
{
    /* Few tokens, so that prompts share beginnings; now and then a mark. */
    uint32_t len = 1 + below(prng, LEN_MAX), from = 0;
    if (p > 0) {
        uint32_t other = below(prng, p);
        from = below(prng, model->lens[other] + 1);
        if (from > len) from = len;
        memcpy(model->prompts[p], model->prompts[other], from * sizeof(int32_t));
    }
    for (uint32_t i = from; i < len; i++) {
        model->prompts[p][i] = 1 + (int32_t)below(prng, 2);
        if (below(prng, 8) == 0) {
            model->prompts[p][i] |= (1 + (int32_t)below(prng, 2)) << RIG_MARK_SHIFT;
        }
    }
    model->lens[p] = len;
}

static void model_round(struct model *model, struct sc_prng *prng)
{
    struct model before;
    struct seen seen = {0, 0, 0};
    bool more = true;
    uint32_t gone = 0, with = below(prng, model->prompt_count);
    uint32_t count = below(prng, model->lens[with] + 1);
    const int32_t *prefix = model->prompts[with];
    model_look(model);
    before = *model;
    sc_key key = rig_key(&rig, prefix, count);
    rig_ok(sc_cache_tree(rig.cache, &key, 0, UINT32_MAX, count_row, &seen, &more));
    ck_assert(!more);
    sc_evicted evicted = evict(&rig, prefix, count);
    model_look(model);
    for (uint32_t s = 0; s < before.state_count; s++) {
        const struct model_state *state = &before.states[s];
        bool hit = state->len >= count && same_tokens(state->tokens, prefix, count), still = false;
        for (uint32_t a = 0; a < model->state_count && !still; a++) {
            still = model->states[a].len == state->len &&
                same_tokens(model->states[a].tokens, state->tokens, state->len);
        }
        ck_assert_msg(still == !hit, "a state of %u tokens, a prefix of %u: %s", state->len, count,
            hit ? "it is still there" : "it has gone");
        gone += hit;
    }
    ck_assert_uint_eq(evicted.states, gone);
    ck_assert_uint_eq(evicted.held, 0);
    ck_assert_uint_eq(seen.states, gone);
    seen = (struct seen){0, 0, 0};
    key = rig_key(&rig, prefix, count);
    rig_ok(sc_cache_tree(rig.cache, &key, 0, UINT32_MAX, count_row, &seen, &more));
    ck_assert_uint_eq(seen.states, 0);
}

START_TEST(evict_prefix__takes_what_a_naive_model_says)
{
    static struct model model;
    struct sc_prng prng;
    uint64_t rounds = test_scaled(30, 3);
    for (uint64_t seed = 0; seed < rounds; seed++) {
        sc_prng_seed(&prng, 77 * seed + (uint64_t)_i);
        start(_i == 0 ? 1 : 4, _i == 2);
        model.prompt_count = PROMPTS;
        for (uint32_t p = 0; p < PROMPTS; p++) random_prompt(&model, p, &prng);
        for (uint32_t round = 0; round < 6; round++) {
            for (uint32_t p = 0; p < PROMPTS; p++) {
                if (below(&prng, 2) == 0) continue;
                (void)rig_serve(&rig, model.prompts[p], model.lens[p], 64, SC_RELEASE_KEEP);
            }
            model_round(&model, &prng);
        }
        rig_deinit(&rig);
    }
}
END_TEST

START_TEST(evict_prefix__what_is_leased_stays_and_is_told)
{
    struct req req;
    start(1, false);
    (void)rig_serve(&rig, tokens, 40, 40, SC_RELEASE_KEEP);
    int32_t other[64];
    rig_fill(other, 64, 1);
    rig_fill(other + 30, 34, 500);
    (void)rig_serve(&rig, other, 50, 50, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &req, tokens, 60), 40);
    sc_evicted evicted = evict(&rig, tokens, 20);
    ck_assert_uint_eq(evicted.held, 1);
    ck_assert_uint_ge(evicted.states, 1);
    ck_assert_uint_lt(state_len(other, 60), 20);
    ck_assert_uint_eq(state_len(tokens, 60), 40);
    req_run(&rig, &req, 60);
    req_close(&rig, &req, 0, SC_RELEASE_KEEP);
    /* All of the namespace. */
    evicted = evict(&rig, NULL, 0);
    ck_assert(evicted.states >= 2 && evicted.held == 0);
    ck_assert_uint_eq(rig_room(&rig).pages_cached, 0);
    evicted = evict(&rig, NULL, 0);
    ck_assert(evicted.states == 0 && evicted.copies == 0 && evicted.held == 0);
    rig_deinit(&rig);
}
END_TEST

/* A mark behind the prefix: one tenant of several below a common prompt. */
START_TEST(evict_prefix__a_mark_at_its_end_names_a_tenant)
{
    int32_t prompt_of[3][40];
    start(_i == 0 ? 1 : 16, false);
    for (uint32_t i = 0; i < 3; i++) {
        rig_fill(prompt_of[i], 40, 1);
        prompt_of[i][16] |= (int32_t)(i + 1) << RIG_MARK_SHIFT;
        (void)rig_serve(&rig, prompt_of[i], 32, 32, SC_RELEASE_KEEP);
    }
    sc_mark mark = {16, {2}};
    sc_key key = {.ns = rig.ns, .tokens = tokens, .token_count = 16, .marks = &mark,
        .mark_count = 1};
    sc_evicted evicted;
    rig_ok(sc_cache_evict_prefix(rig.cache, &key, &evicted));
    rig_verify(&rig);
    ck_assert(evicted.states >= 1 && evicted.held == 0);
    ck_assert_uint_eq(state_len(prompt_of[0], 40), 32);
    ck_assert_uint_lt(state_len(prompt_of[1], 40), 32);
    ck_assert_uint_eq(state_len(prompt_of[2], 40), 32);
    mark.id[0] = 9; /* nobody */
    rig_ok(sc_cache_evict_prefix(rig.cache, &key, &evicted));
    ck_assert_uint_eq(evicted.states, 0);
    rig_deinit(&rig);
}
END_TEST

START_TEST(evict_prefix__takes_the_copies_of_lower_tiers)
{
    case_open(1, _i == 0 ? 8 : 0, _i == 0 ? 0 : 8, SC_TIER_WRITE_THROUGH);
    for (uint32_t i = 0; i < 3; i++) (void)tiered_serve(&t, prompt(i), N);
    tiered_clear_device(&t);
    uint32_t tier = _i == 0 ? SC_TIER_HOST : SC_TIER_DISK;
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(1), N + 1).state_len[tier], N);
    sc_evicted evicted = evict(t.rig, prompt(1), 10);
    ck_assert_uint_eq(evicted.states, 0);
    ck_assert_uint_ge(evicted.copies, 1);
    ck_assert_uint_eq(evicted.held, 0);
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(1), N + 1).state_len[tier], 0);
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), N + 1).state_len[tier], N);
    /* On the device and below. */
    (void)tiered_serve(&t, prompt(1), N);
    evicted = evict(t.rig, NULL, 0);
    ck_assert(evicted.states >= 1 && evicted.copies >= 2);
    (void)tiered_settle(&t);
    if (_i == 1) case_restart();
    for (uint32_t i = 0; i < 3; i++) {
        sc_answer answer = rig_lookup(t.rig, prompt(i), N + 1);
        ck_assert(answer.state_len[SC_TIER_DEVICE] == 0 && answer.state_len[tier] == 0);
    }
    tiered_deinit(&t);
}
END_TEST

START_TEST(evict_prefix__is_recorded_and_replayed)
{
    struct tape tape = {0};
    struct rig_options these = RIG_OPTIONS_INIT;
    struct rig second;
    sc_replay *replay = NULL;
    sc_cache_options cache_options;
    static struct model model;
    struct sc_prng prng;
    sc_prng_seed(&prng, 5);
    these.page = 4;
    these.slots = 24;
    these.cache.tails = true;
    these.cache.record = tape_record;
    these.cache.record_ctx = &tape;
    rig_init(&rig, &these);
    these.cache.record = NULL;
    rig_init_pools(&second, &these);
    rig_cache_options(&second, &these, &cache_options);
    rig_ok(sc_cache_create(&cache_options, &second.cache));
    rig_ok(sc_replay_create(second.cache, &replay));
    for (uint32_t i = 0; i < 200; i++) {
        random_prompt(&model, i % PROMPTS, &prng);
        (void)rig_serve(&rig, model.prompts[i % PROMPTS], model.lens[i % PROMPTS], 64,
            SC_RELEASE_KEEP);
        if (i % 3 == 0) {
            (void)evict(&rig, model.prompts[i % PROMPTS],
                below(&prng, model.lens[i % PROMPTS]));
        }
        tape_feed(replay, &tape);
    }
    sc_cache_stats stats = rig_stats(&rig), same = rig_stats(&second);
    ck_assert_mem_eq(&stats, &same, sizeof same);
    ck_assert_uint_gt(stats.evicted[SC_EVICT_ASKED], 20);
    sc_replay_destroy(replay);
    rig_verify(&second);
    rig_ok(sc_cache_destroy(second.cache));
    rig_ok(sc_pool_destroy(second.pool));
    sc_schema_release(second.schema);
    free(second.kv);
    free(second.kv_where);
    free(second.kv_free);
    rig_deinit(&rig);
    free(tape.bytes);
}
END_TEST

/* ---- tree ---- */

static bool stop_at_once(void *ctx, const sc_tree_row *row)
{
    (void)row;
    ++*(uint32_t *)ctx;
    return false;
}

START_TEST(tree__is_bounded_in_rows_and_depth)
{
    int32_t other[64];
    struct seen seen = {0, 0, 0};
    uint32_t calls = 0;
    bool more = false;
    start(1, false);
    (void)rig_serve(&rig, tokens, 20, 20, SC_RELEASE_KEEP);
    (void)rig_serve(&rig, tokens, 40, 40, SC_RELEASE_KEEP);
    rig_fill(other, 64, 1);
    rig_fill(other + 20, 44, 300);
    (void)rig_serve(&rig, other, 40, 40, SC_RELEASE_KEEP);
    sc_key all = {.ns = rig.ns}, under = rig_key(&rig, tokens, 20);
    rig_ok(sc_cache_tree(rig.cache, &all, 0, 100, count_row, &seen, &more));
    ck_assert(!more && seen.states == 3 && seen.depth >= 1);
    uint32_t rows = seen.rows;
    seen = (struct seen){0, 0, 0};
    rig_ok(sc_cache_tree(rig.cache, &all, 1, 100, count_row, &seen, &more));
    ck_assert(more && seen.depth == 0 && seen.rows == 1);
    seen = (struct seen){0, 0, 0};
    rig_ok(sc_cache_tree(rig.cache, &all, 0, rows - 1, count_row, &seen, &more));
    ck_assert(more && seen.rows == rows - 1);
    rig_ok(sc_cache_tree(rig.cache, &all, 0, 100, stop_at_once, &calls, &more));
    ck_assert(more && calls == 1);
    seen = (struct seen){0, 0, 0};
    rig_ok(sc_cache_tree(rig.cache, &under, 0, 100, count_row, &seen, &more));
    ck_assert(!more && seen.states == 3);
    under = rig_key(&rig, tokens, 21);
    seen = (struct seen){0, 0, 0};
    rig_ok(sc_cache_tree(rig.cache, &under, 0, 100, count_row, &seen, &more));
    ck_assert_uint_eq(seen.states, 1);
    rig_deinit(&rig);
}
END_TEST

/* ---- explain ---- */

static sc_explanation explained(const int32_t *of, uint32_t count, uint32_t len_max)
{
    sc_explanation out = {.struct_size = sizeof out};
    sc_key key = rig_key(&rig, of, count);
    key.len_max = len_max;
    rig_ok(sc_cache_explain(rig.cache, &key, &out));
    return out;
}

START_TEST(explain__says_what_stands_against_a_prompt)
{
    int32_t other[64];
    start(_i == 0 ? 1 : 16, false);
    rig_fill(other, 64, 1);
    (void)rig_serve(&rig, tokens, 48, 48, SC_RELEASE_KEEP);
    sc_explanation out = explained(tokens, 64, 0);
    ck_assert(out.match_len == 48 && out.differs == SC_DIFFERS_END);
    ck_assert_uint_eq(out.answer.state_len[SC_TIER_DEVICE], 48);
    out = explained(tokens, 40, 20);
    ck_assert_int_eq(out.answer.reason, SC_REASON_NO_STATE);
    out = explained(tokens, 48, 20);
    ck_assert(out.differs == SC_DIFFERS_NOT && out.beyond_len == 48);
    ck_assert_int_eq(out.answer.reason, SC_REASON_BEYOND);
    other[21] = 7777;
    out = explained(other, 60, 0);
    ck_assert(out.match_len == 21 && out.differs == SC_DIFFERS_TOKEN);
    ck_assert(out.token_here == 7777 && out.token_there == 22);
    rig_fill(other, 64, 1);
    other[18] |= 3 << RIG_MARK_SHIFT;
    out = explained(other, 60, 0);
    ck_assert(out.match_len == 18 && out.differs == SC_DIFFERS_MARK);
    ck_assert(out.mark_here && !out.mark_there && out.here.at == 18 && out.here.id[0] == 3);
    other[0] = 9;
    out = explained(other, 60, 0);
    ck_assert(out.match_len == 0 && out.differs == SC_DIFFERS_TOKEN && out.token_there == 1);
    sc_room got;
    rig_ok(sc_cache_evict(rig.cache, 0, 100, &got));
    out = explained(tokens, 60, 0);
    ck_assert(out.answer.reason == SC_REASON_EVICTED && out.evicted_len == 48);
    rig_deinit(&rig);
}
END_TEST

START_TEST(explain__an_empty_cache)
{
    start(16, false);
    sc_explanation out = explained(tokens, 60, 0);
    ck_assert(out.match_len == 0 && out.differs == SC_DIFFERS_END);
    ck_assert_int_eq(out.answer.reason, SC_REASON_NO_PREFIX);
    rig_deinit(&rig);
}
END_TEST

/* ---- bad input, and no memory ---- */

#define invalid(call) ck_assert_int_eq((call), SC_ERR_INVALID)

START_TEST(inspect__refuses_null_stale_and_bad_marks)
{
    sc_evicted evicted;
    sc_explanation out = {.struct_size = sizeof out};
    struct seen seen;
    bool more;
    start(1, false);
    const sc_mark marks[2] = {{9, {1}}, {9, {2}}}, late = {5, {1}};
    sc_key key = rig_key(&rig, tokens, 4), stale = key, bad = key, long_key = key;
    stale.ns.generation++;
    bad.marks = marks;
    bad.mark_count = 2;
    long_key.token_count = (1u << 20) + 1;
    const sc_key none = {.ns = rig.ns, .token_count = 1}, missing = {.ns = rig.ns, .tokens = tokens,
        .token_count = 4, .mark_count = 1}, beyond = {.ns = rig.ns, .tokens = tokens,
        .token_count = 4, .marks = &late, .mark_count = 1};
    invalid(sc_cache_evict_prefix(NULL, &key, &evicted));
    invalid(sc_cache_evict_prefix(rig.cache, NULL, &evicted));
    invalid(sc_cache_evict_prefix(rig.cache, &key, NULL));
    invalid(sc_cache_evict_prefix(rig.cache, &bad, &evicted));
    invalid(sc_cache_evict_prefix(rig.cache, &none, &evicted));
    invalid(sc_cache_evict_prefix(rig.cache, &missing, &evicted));
    invalid(sc_cache_evict_prefix(rig.cache, &beyond, &evicted));
    ck_assert_int_eq(sc_cache_evict_prefix(rig.cache, &stale, &evicted), SC_ERR_STALE);
    ck_assert_int_eq(sc_cache_evict_prefix(rig.cache, &long_key, &evicted), SC_ERR_LIMIT);
    invalid(sc_cache_tree(NULL, &key, 0, 1, count_row, &seen, &more));
    invalid(sc_cache_tree(rig.cache, NULL, 0, 1, count_row, &seen, &more));
    invalid(sc_cache_tree(rig.cache, &key, 0, 1, NULL, &seen, &more));
    invalid(sc_cache_tree(rig.cache, &key, 0, 1, count_row, &seen, NULL));
    invalid(sc_cache_tree(rig.cache, &bad, 0, 1, count_row, &seen, &more));
    ck_assert_int_eq(sc_cache_tree(rig.cache, &stale, 0, 1, count_row, &seen, &more),
        SC_ERR_STALE);
    invalid(sc_cache_explain(NULL, &key, &out));
    invalid(sc_cache_explain(rig.cache, NULL, &out));
    invalid(sc_cache_explain(rig.cache, &key, NULL));
    invalid(sc_cache_explain(rig.cache, &none, &out));
    invalid(sc_cache_explain(rig.cache, &beyond, &out));
    ck_assert_int_eq(sc_cache_explain(rig.cache, &stale, &out), SC_ERR_STALE);
    out.struct_size = 3;
    invalid(sc_cache_explain(rig.cache, &key, &out));
    rig_deinit(&rig);
}
END_TEST

START_TEST(inspect__without_memory_nothing_changes)
{
    int32_t other[64];
    start(16, true);
    rig_fill(other, 64, 1);
    other[20] = 999;
    (void)rig_serve(&rig, tokens, 41, 41, SC_RELEASE_KEEP);
    (void)rig_serve(&rig, other, 50, 50, SC_RELEASE_KEEP);
    for (uint64_t n = 1, failed = 1; failed; n++) {
        struct seen seen = {0, 0, 0};
        sc_explanation out = {.struct_size = sizeof out};
        sc_evicted evicted;
        bool more;
        sc_key key = rig_key(&rig, tokens, 18), whole = rig_key(&rig, tokens, 60);
        fail_alloc_arm(&rig.fa, n);
        sc_status told = sc_cache_tree(rig.cache, &key, 0, 100, count_row, &seen, &more);
        bool tree_failed = fail_alloc_disarm(&rig.fa);
        fail_alloc_arm(&rig.fa, n);
        sc_status why = sc_cache_explain(rig.cache, &whole, &out);
        bool explain_failed = fail_alloc_disarm(&rig.fa);
        ck_assert_int_eq(told, tree_failed ? SC_ERR_NO_MEMORY : SC_OK);
        ck_assert_int_eq(why, explain_failed ? SC_ERR_NO_MEMORY : SC_OK);
        sc_room before = rig_room(&rig);
        fail_alloc_arm(&rig.fa, n);
        sc_status status = sc_cache_evict_prefix(rig.cache, &key, &evicted);
        bool evict_failed = fail_alloc_disarm(&rig.fa);
        ck_assert_int_eq(status, evict_failed ? SC_ERR_NO_MEMORY : SC_OK);
        rig_verify(&rig);
        if (evict_failed) ck_assert_uint_eq(rig_room(&rig).slots_free, before.slots_free);
        failed = tree_failed || explain_failed || evict_failed;
    }
    rig_deinit(&rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("inspect");
    TCase *tcase = tcase_create("inspect");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, evict_prefix__takes_what_a_naive_model_says, 0, 3);
    tcase_add_test(tcase, evict_prefix__what_is_leased_stays_and_is_told);
    tcase_add_loop_test(tcase, evict_prefix__a_mark_at_its_end_names_a_tenant, 0, 2);
    tcase_add_loop_test(tcase, evict_prefix__takes_the_copies_of_lower_tiers, 0, 2);
    tcase_add_test(tcase, evict_prefix__is_recorded_and_replayed);
    tcase_add_test(tcase, tree__is_bounded_in_rows_and_depth);
    tcase_add_loop_test(tcase, explain__says_what_stands_against_a_prompt, 0, 2);
    tcase_add_test(tcase, explain__an_empty_cache);
    tcase_add_test(tcase, inspect__refuses_null_stale_and_bad_marks);
    tcase_add_test(tcase, inspect__without_memory_nothing_changes);
    suite_add_tcase(suite, tcase);
    return rig_main(suite);
}

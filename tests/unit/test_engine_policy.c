/* SPDX-License-Identifier: Apache-2.0 */
/* The cache with its policies: what is leased or pinned stays, whatever the policy; hints change
 * what goes; the default learns; equal calls give equal decisions. */
#include "statecache/experimental.h"
#include "support/test_scale.h"
#include "test_engine_rig.h"

static struct rig rig;
static struct req a, b;
static int32_t tokens[4096];

static const char *const names[] = {
    "gittins", "lru", "lru-path", "lru-sup", "fixed", "marconi", "gdsf"};
enum { NAMES = sizeof names / sizeof *names };

static struct rig_options options_of(const char *policy, uint32_t slots)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.slots = slots;
    options.cache.policy = policy;
    options.cache.policy_blocks = 4096;
    options.cache.policy_interval = 32;
    options.cache.policy_alpha = 0.3;
    return options;
}

static void start(const char *policy, uint32_t slots)
{
    struct rig_options options = options_of(policy, slots);
    rig_fill(tokens, 4096, 1);
    rig_init(&rig, &options);
}

static uint32_t state_at(const int32_t *from, uint32_t len)
{
    sc_key key = rig_key(&rig, from, len);
    sc_answer answer;
    key.len_max = len;
    rig_ok(sc_cache_lookup(rig.cache, &key, 1, &answer));
    return answer.state_len[SC_TIER_DEVICE];
}

/* One request with hints, kept. Returns what it resumed. */
static uint32_t serve(const int32_t *from, uint32_t count, const sc_hints *hints)
{
    sc_request request = {.key = rig_key(&rig, from, count), .hints = hints};
    rig_ok(req_ask(&rig, &b, &request));
    uint32_t resumed = rig_info(&rig, b.lease).resume_len;
    req_run(&rig, &b, count);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    return resumed;
}

/* ---- what is leased or pinned stays ---- */

enum { HELD = 3, PINS = 4, PROMPT_MAX = 160 };

struct kept {
    int32_t tokens[PROMPT_MAX];
    uint32_t count;
    uint64_t until_ns; /* 0: none */
    struct req req;
    bool held;
};

static void prompt_make(struct sc_prng *prng, int32_t *out, uint32_t *count_out)
{
    uint32_t family = (uint32_t)sc_prng_below(prng, 6), count = 0;
    uint32_t shared = 16 * (1 + (uint32_t)sc_prng_below(prng, 4));
    for (; count < shared; count++) out[count] = (int32_t)(1000 * family + count);
    uint32_t more = 1 + (uint32_t)sc_prng_below(prng, 60);
    int32_t first = (int32_t)sc_prng_below(prng, 200) * 100;
    for (uint32_t i = 0; i < more; i++) out[count++] = 100000 + first + (int32_t)i;
    *count_out = count;
}

static void check_kept(const struct kept *kept, uint32_t step)
{
    if (kept->held) {
        const char *fault = rig_lease_fault(&rig, &kept->req);
        ck_assert_msg(!fault, "step %u: a lease: %s", step, fault ? fault : "");
    }
    if (kept->until_ns > rig.now_ns) {
        ck_assert_msg(state_at(kept->tokens, kept->count) == kept->count,
            "step %u: what is pinned until %llu is gone", step,
            (unsigned long long)kept->until_ns);
    }
}

/* A request whose end is pinned for a while. */
static void pin_one(struct sc_prng *prng, struct kept *pin)
{
    prompt_make(prng, pin->tokens, &pin->count);
    pin->until_ns = rig.now_ns + 1 + sc_prng_below(prng, 40);
    sc_hints hints = {.pin_until_ns = pin->until_ns};
    sc_request request = {.key = rig_key(&rig, pin->tokens, pin->count), .hints = &hints};
    request.key.len_max = pin->count; /* so that an end that is there already is resumed */
    if (req_ask(&rig, &b, &request) != SC_OK) {
        pin->until_ns = 0;
        return;
    }
    bool there = rig_info(&rig, b.lease).resume_len == pin->count;
    req_run(&rig, &b, 200);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    if (there || state_at(pin->tokens, pin->count) != pin->count) pin->until_ns = 0;
}

static void hold_one(struct sc_prng *prng, struct kept *kept)
{
    if (kept->held) {
        kept->held = false;
        req_close(&rig, &kept->req, 0,
            sc_prng_below(prng, 2) ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD);
        return;
    }
    prompt_make(prng, kept->tokens, &kept->count);
    kept->held = req_try(&rig, &kept->req, kept->tokens, kept->count) == SC_OK;
}

START_TEST(leased_and_pinned__nothing_of_them_goes)
{
    static struct kept leases[HELD], pins[PINS];
    memset(leases, 0, sizeof leases);
    memset(pins, 0, sizeof pins);
    start(names[_i % NAMES], 20);
    struct sc_prng prng;
    sc_prng_seed(&prng, 70 + (uint64_t)_i);
    uint64_t steps = test_scaled(1500, 300);
    for (uint32_t step = 0; step < steps; step++) {
        int32_t prompt[PROMPT_MAX];
        uint32_t count = 0;
        rig.now_ns += sc_prng_below(&prng, 3);
        prompt_make(&prng, prompt, &count);
        sc_room got;
        uint32_t at = (uint32_t)sc_prng_below(&prng, 12);
        if (at < HELD) {
            hold_one(&prng, &leases[at]);
        } else if (at < HELD + PINS && pins[at - HELD].until_ns <= rig.now_ns) {
            pin_one(&prng, &pins[at - HELD]);
        } else if (at == 11) { /* as much as may go without pins */
            rig_ok(sc_cache_evict(rig.cache, 0, rig_room(&rig).slots_evictable, &got));
        } else if (req_try(&rig, &a, prompt, count) == SC_OK) {
            req_run(&rig, &a, 48);
            req_close(&rig, &a, 0, SC_RELEASE_KEEP);
        }
        for (uint32_t i = 0; i < HELD; i++) check_kept(&leases[i], step);
        for (uint32_t i = 0; i < PINS; i++) check_kept(&pins[i], step);
        if (step % 50 == 0) rig_verify(&rig);
    }
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_gt(stats.evicted[SC_EVICT_FOR_SLOT], steps / 8);
    ck_assert_uint_gt(stats.resumed, steps / 20);
    for (uint32_t i = 0; i < HELD; i++) {
        if (leases[i].held) req_close(&rig, &leases[i].req, 0, SC_RELEASE_DISCARD);
    }
    rig_deinit(&rig);
}
END_TEST

/* ---- pins ---- */

START_TEST(pin__holds_until_time_comes_to_it)
{
    start(names[_i], 6);
    sc_hints hints = {.pin_until_ns = 100};
    (void)serve(tokens, 32, &hints);
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 1);
    ck_assert_uint_ge(rig_room(&rig).slots_held, 1);
    for (uint32_t i = 1; i < 20; i++) (void)serve(tokens + 100 * i, 32, NULL);
    ck_assert_uint_eq(state_at(tokens, 32), 32);
    rig.now_ns = 99;
    (void)serve(tokens + 2000, 32, NULL);
    rig.now_ns = 50; /* backwards: nothing happens */
    (void)serve(tokens + 2100, 32, NULL);
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 1);
    rig.now_ns = 100;
    for (uint32_t i = 1; i < 30; i++) (void)serve(tokens + 100 * i, 32, NULL);
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 0);
    ck_assert_uint_eq(rig_room(&rig).slots_held, 0);
    if (strcmp(names[_i], "gittins") && strcmp(names[_i], "marconi")) {
        ck_assert_uint_eq(state_at(tokens, 32), 0); /* by value it may be as good as the others */
    }
    rig_deinit(&rig);
}
END_TEST

/* Of a conversation the pin holds the newest end. */
START_TEST(pin__moves_from_the_prompt_to_the_answer)
{
    start("gittins", 12);
    sc_hints hints = {.pin_until_ns = 1000};
    sc_request request = {.key = rig_key(&rig, tokens, 32), .hints = &hints};
    rig_ok(req_ask(&rig, &a, &request));
    req_run(&rig, &a, 32);
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 1);
    req_decode(&rig, &a, tokens + 32, 20);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 1);
    for (uint32_t i = 1; i < 39; i++) (void)serve(tokens + 100 * i, 32, NULL);
    sc_room got;
    rig_ok(sc_cache_evict(rig.cache, 0, rig_room(&rig).slots_evictable, &got));
    ck_assert_uint_eq(state_at(tokens, 52), 52);
    ck_assert_uint_eq(rig_stats(&rig).snapshots_alive, 1);
    rig_deinit(&rig);
}
END_TEST

/* A lease that ends without a state, a namespace that is closed, a request that is refused: none
 * leaves a pin behind. */
START_TEST(pin__goes_with_what_it_is_for)
{
    start("gittins", 2);
    sc_hints hints = {.pin_until_ns = 1000};
    sc_request request = {.key = rig_key(&rig, tokens, 32), .hints = &hints};
    rig_ok(req_ask(&rig, &a, &request));
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 1);
    rig_ok(req_try(&rig, &b, tokens + 100, 32));
    struct req c;
    request.key = rig_key(&rig, tokens + 200, 32);
    ck_assert_int_eq(req_ask(&rig, &c, &request), SC_ERR_NO_SLOT);
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 1);
    rig_verify(&rig);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 0);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    (void)serve(tokens, 32, &hints);
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 1);
    rig_ok(sc_namespace_close(rig.cache, rig.ns));
    ck_assert_uint_eq(rig_stats(&rig).pins_alive, 0);
    rig_verify(&rig);
    rig_deinit(&rig);
}
END_TEST

/* ---- what the policies look at ---- */

/* Of equal snapshots, that of the higher priority stays, and that whose time is over goes. */
START_TEST(hints__priority_and_time_to_live)
{
    start("gittins", 40);
    sc_hints low = {.priority = -8}, high = {.priority = 8}, brief = {.ttl_ns = 10};
    (void)serve(tokens, 32, &low);
    (void)serve(tokens + 100, 32, &high);
    (void)serve(tokens + 200, 32, &brief);
    rig.now_ns = 100;
    (void)serve(tokens + 300, 32, NULL);
    sc_room got;
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_uint_eq(state_at(tokens + 200, 32), 0);
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_uint_eq(state_at(tokens, 32), 0);
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_uint_eq(state_at(tokens + 300, 32), 0);
    ck_assert_uint_eq(state_at(tokens + 100, 32), 32);
    rig_deinit(&rig);
}
END_TEST

static const uint64_t second_ns = 1000000000;

/* Conversations go on 8 s after each answer, among prompts that never do; a slot for each would be
 * far too many. Returns how many tokens were resumed in the second half. */
static sc_cache_stats talk_stats;

static uint64_t talk_among_others(const char *policy, bool hints)
{
    static int32_t prompt[512];
    uint64_t resumed = 0;
    start(policy, 14);
    for (uint32_t i = 0; i < 900; i++) {
        const sc_hints over = {.flags = SC_HINT_OVER}, more = {.flags = SC_HINT_CONTINUES};
        rig.now_ns += second_ns / 2;
        uint32_t turn = (i / 16) % 3, talk = 100 * (i / 48) + i % 16;
        bool goes_on = i % 2 == 0;
        /* without hints the length of a prompt tells */
        uint32_t base = hints || goes_on ? 96 : 20;
        uint32_t count = goes_on ? base + 40 * turn : base;
        rig_fill(prompt, 512, goes_on ? 1000 * (int32_t)(1 + talk) : 5000000 + 1000 * (int32_t)i);
        sc_request request = {.key = rig_key(&rig, prompt, count)};
        if (hints) request.hints = goes_on ? &more : &over;
        rig_ok(req_ask(&rig, &a, &request));
        if (i >= 450) resumed += rig_info(&rig, a.lease).resume_len;
        req_run(&rig, &a, 512);
        req_decode(&rig, &a, prompt + count, 10);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    }
    talk_stats = rig_stats(&rig);
    rig_deinit(&rig);
    return resumed;
}

START_TEST(gittins__learns_what_comes_back)
{
    uint64_t lru = talk_among_others("lru", false), own = talk_among_others("gittins", false);
    ck_assert_msg(own > lru + lru / 2 + 1000, "%llu tokens, lru %llu", (unsigned long long)own,
        (unsigned long long)lru);
}
END_TEST

/* The same prompts, which only the hints tell apart. */
START_TEST(gittins__learns_what_hints_are_worth)
{
    uint64_t lru = talk_among_others("lru", true), own = talk_among_others("gittins", true);
    ck_assert_msg(own > lru + lru / 2 + 1000, "%llu tokens, lru %llu", (unsigned long long)own,
        (unsigned long long)lru);
}
END_TEST

/* What every second request resumes is kept, also where the clock stands still or hardly moves. */
START_TEST(gittins__keeps_what_is_used_without_a_clock)
{
    static const uint64_t steps_ns[] = {0, 1, 1000000};
    static int32_t prompt[300];
    start("gittins", _i < 3 ? 32 : 8);
    for (uint32_t i = 0; i < 300; i++) {
        rig.now_ns += steps_ns[_i % 3];
        rig_fill(prompt, 300, 1000000 + 1000 * (int32_t)i);
        memcpy(prompt, tokens, 128 * sizeof *tokens);
        uint32_t resumed = serve(prompt, 145 + i % 65, NULL);
        ck_assert_msg(i < (_i < 3 ? 2 : 20) || resumed >= 128, "request %u resumed at %u", i,
            resumed);
        rig_fill(prompt, 300, -1000000 - 1000 * (int32_t)i);
        (void)serve(prompt, 129 + i % 65, NULL);
    }
    rig_deinit(&rig);
}
END_TEST

/* A save that would drive out what is worth more is left out. */
START_TEST(gittins__refuses_a_save_that_is_worth_less)
{
    (void)talk_among_others("lru", true);
    ck_assert_uint_eq(talk_stats.saves_skipped[SC_SKIP_POLICY], 0);
    ck_assert_uint_eq(talk_stats.policy_refits, 0);
    (void)talk_among_others("gittins", true);
    ck_assert_uint_gt(talk_stats.saves_skipped[SC_SKIP_POLICY], 20);
    ck_assert_uint_gt(talk_stats.policy_refits, 5);
    ck_assert_uint_gt(talk_stats.policy_bytes, 1000);
}
END_TEST

/* Where KV shares memory with states a snapshot takes its pages along; else they stay. */
START_TEST(kv__goes_with_its_state_only_where_they_share_memory)
{
    struct rig_options options = options_of("gittins", 40);
    options.cache.kv_token_bytes = _i ? 64 : 0;
    rig_fill(tokens, 4096, 1);
    rig_init(&rig, &options);
    (void)serve(tokens, 64, NULL);
    (void)serve(tokens + 100, 64, NULL);
    sc_room got;
    rig_ok(sc_cache_evict(rig.cache, 0, rig_room(&rig).slots_evictable, &got));
    ck_assert_uint_eq(got.pages_drainable, _i ? 128 : 0);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 65).kv_len, _i ? 0 : 64);
    if (!_i) { /* but they go before those of a state that is there */
        ck_assert_int_eq(rig_lookup(&rig, tokens, 65).reason, SC_REASON_EVICTED);
        (void)serve(tokens + 200, 64, NULL);
        rig_ok(sc_cache_evict(rig.cache, 128, 0, &got));
        ck_assert_uint_eq(got.pages_drainable, 128);
        ck_assert_uint_eq(state_at(tokens + 200, 64), 64);
    }
    rig_deinit(&rig);
}
END_TEST

/* Several points of one prompt: shortly before its end, and where an earlier one went on otherwise,
 * also when nothing of it is held any more. */
START_TEST(gittins__saves_where_prompts_part)
{
    start("gittins", 40);
    sc_room got;
    (void)serve(tokens, 200, NULL);
    rig_ok(sc_cache_evict(rig.cache, UINT32_MAX, UINT32_MAX, &got));
    ck_assert_uint_eq(rig_room(&rig).pages_cached, 0);
    int32_t other[200];
    for (int k = 0; k < 2; k++) {
        memcpy(other, tokens, sizeof other);
        rig_fill(other + 96, 104, 9000 * (k + 1));
        (void)serve(other, 200, NULL);
    }
    ck_assert_uint_eq(state_at(tokens, 200), 96);
    rig_deinit(&rig);
}
END_TEST

/* ---- equal calls, equal decisions ---- */

static uint8_t *tape;
static size_t tape_bytes, tape_cap;

static void record(void *ctx, const void *bytes, size_t count)
{
    (void)ctx;
    if (tape_bytes + count > tape_cap) {
        tape_cap = (tape_bytes + count) * 2;
        tape = realloc(tape, tape_cap);
        ck_assert_ptr_nonnull(tape);
    }
    memcpy(tape + tape_bytes, bytes, count);
    tape_bytes += count;
}

START_TEST(contract_18__a_second_cache_decides_the_same)
{
    struct rig_options options = options_of(names[_i], 14);
    struct sc_prng prng;
    sc_prng_seed(&prng, 5 + (uint64_t)_i);
    options.cache.record = record;
    rig_init(&rig, &options);
    for (uint32_t i = 0; i < 600; i++) {
        int32_t prompt[PROMPT_MAX];
        uint32_t count = 0;
        rig.now_ns += sc_prng_below(&prng, 3 * second_ns);
        prompt_make(&prng, prompt, &count);
        sc_hints hints = {.flags = (uint32_t)sc_prng_below(&prng, 3),
            .priority = (int32_t)sc_prng_below(&prng, 3), .class_id = (uint32_t)i % 4,
            .pin_until_ns = sc_prng_below(&prng, 9) ? 0 : rig.now_ns + 20 * second_ns};
        (void)serve(prompt, count, &hints);
    }
    struct rig other;
    sc_replay *player = NULL;
    sc_cache_options cache_options;
    options.cache.record = NULL;
    rig_init_pools(&other, &options);
    rig_cache_options(&other, &options, &cache_options);
    rig_ok(sc_cache_create(&cache_options, &other.cache));
    rig_ok(sc_replay_create(other.cache, &player));
    sc_status status = sc_replay_feed(player, tape, tape_bytes);
    ck_assert_msg(status == SC_OK, "%s", sc_last_error()->text);
    sc_cache_stats first = rig_stats(&rig), second = rig_stats(&other);
    ck_assert_mem_eq(&first, &second, sizeof first);
    if (_i == 0) ck_assert_uint_gt(first.policy_refits, 5);
    /* of another policy, or another cost, it is another sequence */
    sc_replay_destroy(player);
    rig_ok(sc_cache_destroy(other.cache));
    cache_options.flops_per_token2 = 1;
    rig_ok(sc_cache_create(&cache_options, &other.cache));
    rig_ok(sc_replay_create(other.cache, &player));
    ck_assert_int_eq(sc_replay_feed(player, tape, tape_bytes), SC_ERR_MISMATCH);
    sc_replay_destroy(player);
    rig_deinit(&other);
    rig_deinit(&rig);
    free(tape);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_policy");
    TCase *tc = tcase_create("policy");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, leased_and_pinned__nothing_of_them_goes, 0, 2 * NAMES);
    tcase_add_loop_test(tc, pin__holds_until_time_comes_to_it, 0, NAMES);
    tcase_add_test(tc, pin__moves_from_the_prompt_to_the_answer);
    tcase_add_test(tc, pin__goes_with_what_it_is_for);
    tcase_add_test(tc, hints__priority_and_time_to_live);
    tcase_add_test(tc, gittins__learns_what_comes_back);
    tcase_add_test(tc, gittins__learns_what_hints_are_worth);
    tcase_add_loop_test(tc, gittins__keeps_what_is_used_without_a_clock, 0, 6);
    tcase_add_test(tc, gittins__refuses_a_save_that_is_worth_less);
    tcase_add_loop_test(tc, kv__goes_with_its_state_only_where_they_share_memory, 0, 2);
    tcase_add_test(tc, gittins__saves_where_prompts_part);
    tcase_add_loop_test(tc, contract_18__a_second_cache_decides_the_same, 0, NAMES);
    suite_add_tcase(suite, tc);
    return rig_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The contracts of the design (its section 4), each with a test named after it, as far as the
 * engine keeps them. Those of other layers are tested there:
 *
 *    8  64-bit offsets, strides      pool and kernels: test_pool, test_kernels
 *    9  bits of the chunk form       kernels; here: what counts as a cut
 *   12  gate arithmetic in fp32      kernels: test_kernels
 *   13  movers walk one schema       snapshot: test_snapshot
 *   14  sources of transfers         with the lower tiers, which are not there yet
 *   15  stored records               with the lower tiers, which are not there yet
 *   17  look-ups from any thread     test_engine_threads; cost of tree calls: test_radix
 *   18  same calls, same decisions   test_engine_random
 */
#include "test_engine_rig.h"

static struct rig rig;
static struct req a, b;
static int32_t tokens[512];

static struct rig_options options_of(uint32_t page)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    rig_fill(tokens, 512, 1);
    return options;
}

static void start(uint32_t page)
{
    struct rig_options options = options_of(page);
    rig_init(&rig, &options);
}

static uint32_t state_len(uint32_t count)
{
    return rig_lookup(&rig, tokens, count).state_len[SC_TIER_DEVICE];
}

struct text { char bytes[8192]; size_t length; };

static void add_line(void *ctx, const char *line)
{
    struct text *text = ctx;
    size_t length = strlen(line);
    ck_assert_uint_lt(text->length + length, sizeof text->bytes);
    memcpy(text->bytes + text->length, line, length + 1);
    text->length += length;
}

START_TEST(contract_1__snapshots_have_an_exact_length)
{
    start(1);
    (void)rig_serve(&rig, tokens, 41, 50, SC_RELEASE_DISCARD);
    sc_answer answer = rig_lookup(&rig, tokens, 40); /* one short: no use of the state at 41 */
    ck_assert_uint_eq(answer.kv_len, 39);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 0);
    answer = rig_lookup(&rig, tokens, 42);
    ck_assert_uint_eq(answer.kv_len, 41);
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 41);
    sc_key key = rig_key(&rig, tokens, 41);
    key.len_max = 41; /* a caller that needs no logits of the prompt */
    rig_ok(sc_cache_lookup(rig.cache, &key, 1, &answer));
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 41);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_1__commit_refuses_any_other_length)
{
    start(16);
    rig_ok(req_try(&rig, &a, tokens, 48));
    struct rig_step step = {.rows = {{&a, 48, NULL, 0}}, .count = 1};
    rig_plan(&rig, &step);
    rig_forward(&rig, &step);
    sc_result wrong = step.results[0];
    for (uint32_t len = 0; len < 60; len++) {
        wrong.len = len;
        if (len == 48) continue;
        ck_assert_int_eq(sc_step_commit(rig.cache, step.number, &wrong, 1, NULL), SC_ERR_MISMATCH);
    }
    ck_assert_uint_eq(rig_stats(&rig).snapshots_alive, 0);
    rig_verify(&rig);
    rig_commit(&rig, &step);
    ck_assert_uint_eq(state_len(60), 48);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_2__lookup_changes_nothing)
{
    struct text before = {{0}, 0}, after = {{0}, 0};
    sc_room got;
    start(1);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);        /* the older one */
    (void)rig_serve(&rig, tokens + 100, 40, 50, SC_RELEASE_KEEP);
    sc_cache_stats stats_before = rig_stats(&rig);
    rig_ok(sc_cache_dump(rig.cache, rig.ns, add_line, &before));
    fail_alloc_arm(&rig.fa, 1);
    for (uint32_t i = 0; i < 100; i++) ck_assert_uint_eq(state_len(20 + i), 20 + i > 40 ? 40 : 0);
    ck_assert_uint_eq(fail_alloc_calls(&rig.fa), 0); /* it allocates nothing */
    (void)fail_alloc_disarm(&rig.fa);
    rig_ok(sc_cache_dump(rig.cache, rig.ns, add_line, &after));
    sc_cache_stats stats_after = rig_stats(&rig);
    ck_assert_str_eq(before.bytes, after.bytes);
    ck_assert_mem_eq(&stats_before, &stats_after, sizeof stats_before);
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_uint_eq(state_len(50), 0); /* looked at a hundred times, still the oldest */
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 100, 50).state_len[SC_TIER_DEVICE], 40);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_2__a_refused_acquire_changes_no_order)
{
    sc_room got;
    struct rig_options options = options_of(1);
    options.extras = 1;
    rig_init(&rig, &options);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    (void)rig_serve(&rig, tokens + 100, 40, 50, SC_RELEASE_KEEP);
    rig_ok(req_try(&rig, &a, tokens + 300, 10)); /* has the only slot of extras */
    ck_assert_int_eq(req_try(&rig, &b, tokens, 50), SC_ERR_NO_SLOT);
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_uint_eq(state_len(50), 0);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* Whatever is asked of the cache meanwhile, what a step names stays. */
START_TEST(contract_3__what_a_step_names_stays_held)
{
    sc_room got;
    struct rig_options options = options_of(1);
    options.slots = 6;
    rig_init(&rig, &options);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 150), 40);
    uint32_t points[] = {64, 96};
    struct rig_step step = {.rows = {{&a, 112, points, 2}}, .count = 1};
    rig_plan(&rig, &step);
    rig_ok(sc_cache_evict(rig.cache, UINT32_MAX, UINT32_MAX, &got));
    ck_assert_uint_eq(got.slots_free, 0);
    rig_ok(sc_lease_release(rig.cache, a.lease, 0, SC_RELEASE_DISCARD)); /* not even so */
    rig_ok(sc_cache_evict(rig.cache, UINT32_MAX, UINT32_MAX, &got));
    ck_assert_uint_eq(got.slots_free, 0);
    struct req all[6];
    uint32_t taken = 0; /* every other slot, to be sure */
    while (taken < 6 && req_try(&rig, &all[taken], tokens + 200, 5) == SC_OK) taken++;
    ck_assert_uint_eq(taken, 2); /* of 6: source, working, two saves */
    for (uint32_t i = 0; i < taken; i++) {
        int32_t slot = rig_info(&rig, all[i].lease).working_slot;
        ck_assert_int_ne(slot, rig_word(&step.batch, step.batch.at_source, 0));
        ck_assert_int_ne(slot, rig_word(&step.batch, step.batch.at_dest, 0));
        rig_state_write(&rig, slot, 1);
    }
    rig_forward(&rig, &step); /* reads the right state still */
    rig_commit(&rig, &step);
    ck_assert_uint_eq(state_len(112), 96);
    req_forget(&rig, &a);
    for (uint32_t i = 0; i < taken; i++) req_close(&rig, &all[i], 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_3__a_snapshot_is_never_written_again)
{
    start(1);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    rig_ok(req_try(&rig, &a, tokens, 100));
    int32_t slot = rig_info(&rig, a.lease).source_slot;
    uint64_t before = *rig_words(&rig, 0, slot);
    rig_ok(req_try(&rig, &b, tokens, 90)); /* two read it at once */
    ck_assert_int_eq(rig_info(&rig, b.lease).source_slot, slot);
    struct rig_step step = {.rows = {{&a, 100, NULL, 0}, {&b, 90, NULL, 0}}, .count = 2};
    rig_run(&rig, &step);
    req_decode(&rig, &a, tokens + 100, 20);
    ck_assert_uint_eq(*rig_words(&rig, 0, slot), before);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_4__alloc_all_or_nothing)
{
    struct rig_options options = options_of(1);
    options.slots = 2;
    rig_init(&rig, &options);
    rig_ok(req_try(&rig, &a, tokens, 20));
    rig_ok(req_try(&rig, &b, tokens + 100, 20));
    struct fail_alloc_mark mark = fail_alloc_mark(&rig.fa);
    struct req c;
    ck_assert_int_eq(req_try(&rig, &c, tokens, 20), SC_ERR_NO_SLOT);
    ck_assert(fail_alloc_same(&rig.fa, mark)); /* nothing is held */
    ck_assert_uint_eq(rig_stats(&rig).refused, 1);
    ck_assert_uint_eq(rig_stats(&rig).leases_alive, 2);
    rig_verify(&rig);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_ok(req_try(&rig, &c, tokens, 20)); /* "not now", not "never" */
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &c, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_4__a_save_without_room_is_skipped_and_counted)
{
    struct rig_options options = options_of(1);
    options.slots = 2;
    rig_init(&rig, &options);
    rig_ok(req_try(&rig, &a, tokens, 50));
    uint32_t points[] = {16, 32};
    struct rig_step step = {.rows = {{&a, 50, points, 2}}, .count = 1};
    rig_run(&rig, &step); /* one save fits, the other and the prompt's end do not */
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.saves_planned, 3);
    ck_assert_uint_eq(stats.saves_published, 1);
    ck_assert_uint_eq(stats.saves_skipped[SC_SKIP_NO_SLOT], 2);
    ck_assert_uint_eq(state_len(60), 16);
    req_decode(&rig, &a, tokens + 50, 5); /* the request goes on */
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(state_len(60), 55);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_4__a_slot_is_found_by_evicting_what_nobody_pins)
{
    struct rig_options options = options_of(1);
    options.slots = 3;
    rig_init(&rig, &options);
    for (uint32_t i = 0; i < 4; i++)
        (void)rig_serve(&rig, tokens + 50 * i, 20, 50, SC_RELEASE_KEEP);
    ck_assert_uint_gt(rig_stats(&rig).evicted[SC_EVICT_FOR_SLOT], 0);
    ck_assert_uint_eq(rig_lookup(&rig, tokens + 150, 40).state_len[SC_TIER_DEVICE], 20);
    ck_assert_uint_eq(state_len(40), 0);
    rig_deinit(&rig);
}
END_TEST

/* Receipts are the tree's (test_radix); the engine gives back what it took, once. */
START_TEST(contract_5__releasing_twice_is_an_error_that_changes_nothing)
{
    start(1);
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    rig_ok(req_try(&rig, &a, tokens, 60));
    rig_ok(req_try(&rig, &b, tokens, 60));
    sc_lease handle = a.lease;
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    sc_cache_stats before = rig_stats(&rig);
    ck_assert_int_eq(sc_lease_release(rig.cache, handle, 0, SC_RELEASE_KEEP), SC_ERR_STALE);
    sc_cache_stats after = rig_stats(&rig);
    ck_assert_mem_eq(&before, &after, sizeof before);
    ck_assert_uint_eq(rig_room(&rig).slots_evictable, 0); /* the other still pins the snapshot */
    rig_verify(&rig);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_room(&rig).slots_evictable, 1);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_6__stale_handles_are_refused)
{
    start(1);
    sc_lease handles[20];
    for (uint32_t i = 0; i < 20; i++) {
        rig_ok(req_try(&rig, &a, tokens, 20));
        handles[i] = a.lease;
        for (uint32_t j = 0; j < i; j++) {
            sc_lease_info info;
            ck_assert_int_eq(sc_lease_info_get(rig.cache, handles[j], &info), SC_ERR_STALE);
            sc_lease forged = {a.lease.id, handles[j].generation};
            ck_assert_int_eq(sc_lease_info_get(rig.cache, forged, &info), SC_ERR_STALE);
        }
        req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    }
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_6__a_row_without_a_snapshot_reads_slot_0)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 20));
    ck_assert_int_eq(rig_info(&rig, a.lease).source_slot, 0);
    int32_t working = rig_info(&rig, a.lease).working_slot;
    rig_state_write(&rig, working, 99); /* what a slot held before has no say */
    req_run(&rig, &a, 50);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_7__refused_rows_are_minus_one)
{
    start(1);
    rig_ok(req_try(&rig, &a, tokens, 20));
    rig_ok(req_try(&rig, &b, tokens, 20));
    sc_row rows[4] = {{a.lease, 1, 20, NULL, 0, 0, NULL}, {b.lease, 0, 21, NULL, 0, 0, NULL},
        {b.lease, 0, 20, NULL, 0, 0, NULL}, {b.lease, 0, 20, NULL, 0, 0, NULL}};
    sc_status each[4];
    sc_batch batch;
    rig_ok(sc_step_plan(rig.cache, ++rig.step, rows, 4, 0, &batch, each));
    const sc_status want[4] = {SC_ERR_MISMATCH, SC_ERR_INVALID, SC_OK, SC_ERR_INVALID};
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(each[i], want[i]);
        ck_assert_int_eq(rig_word(&batch, batch.at_source, i), i == 2 ? 0 : -1);
        ck_assert(rig_word(&batch, batch.at_dest, i) == -1 || i == 2);
        int32_t count = rig_word(&batch, batch.at_query_start_loc, i + 1) -
            rig_word(&batch, batch.at_query_start_loc, i);
        ck_assert_int_eq(count, i == 2 ? 20 : 0);
    }
    ck_assert_int_eq(rig_info(&rig, a.lease).state, SC_LEASE_READY);
    rig_ok(sc_step_abort(rig.cache, rig.step, false));
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* Cuts on the grid of all groups leave no trace, others are in the history. */
START_TEST(contract_9__cuts_on_the_grid_are_no_history)
{
    struct rig_options options = options_of(1);
    options.second_group = _i == 1; /* chunks of 16 and 32: the grid is 32 */
    options.cache.keep_cuts = true;
    rig_init(&rig, &options);
    static const uint32_t cuts[] = {16, 32, 64, 70, 80, 96, 100};
    rig_ok(req_try(&rig, &a, tokens, 100));
    for (uint32_t i = 0; i < 7; i++) ck_assert_uint_eq(req_step(&rig, &a, cuts[i]), cuts[i]);
    static const uint32_t ends[2][4] = {{70, 100, 0, 0}, {16, 70, 80, 100}};
    static const uint32_t counts[2] = {2, 4};
    sc_history history[8];
    uint32_t count = 0;
    rig_ok(sc_lease_history(rig.cache, a.lease, history, 8, &count));
    /* 80 and 96 are on the grid of 16, and only there 80 is. */
    ck_assert_uint_eq(count, counts[_i]);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(history[i].end, ends[_i][i]);
        ck_assert_int_eq(history[i].form, SC_FORM_KIND_PREFILL);
    }
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* The rig compares every state and page with a cold run by the recorded history; here a chain of
 * resumptions of each kind ends in the state of that cold run. More in test_engine_random. */
START_TEST(contract_10__resuming_equals_a_cold_run)
{
    start(_i ? 16 : 1);
    (void)rig_serve(&rig, tokens, 64, 30, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 100), 64); /* prompt end */
    req_run(&rig, &a, 17);
    req_decode(&rig, &a, tokens + 100, 12);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(req_open(&rig, &a, tokens, 300), 112); /* decoded end */
    req_run(&rig, &a, 50);
    int32_t other[300];
    memcpy(other, tokens, sizeof other);
    rig_fill(other + 200, 100, 7000);
    ck_assert_uint_eq(req_open(&rig, &b, other, 300), 112);
    ck_assert_uint_eq(rig_info(&rig, b.lease).branch_len, 192);
    req_run(&rig, &b, 50);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_fill(other + 200, 100, 8000);
    ck_assert_uint_eq(req_open(&rig, &b, other, 300), 192); /* branch point */
    req_run(&rig, &b, 300);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    req_close(&rig, &b, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_11__short_prompts_and_chunks_of_one_token)
{
    start(1);
    for (uint32_t n = 1; n <= 5; n++) { /* the conv width of the rig is 4 */
        rig_ok(req_try(&rig, &a, tokens + 10 * n, n));
        for (uint32_t i = 1; i <= n; i++) ck_assert_uint_eq(req_step(&rig, &a, i), i);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
        ck_assert_uint_eq(req_open(&rig, &a, tokens + 10 * n, n + 1), n);
        req_run(&rig, &a, 1);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    }
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_16__namespaces_never_mix)
{
    start(1);
    sc_namespace first = rig.ns;
    (void)rig_serve(&rig, tokens, 40, 50, SC_RELEASE_KEEP);
    for (uint64_t i = 0; i < 3; i++) { /* another adapter; another generation of it; both swapped */
        rig_ok(sc_namespace_open(rig.cache, NULL, i == 0 ? 0 : i, i == 1 ? 0 : 3 - i, &rig.ns));
        sc_answer answer = rig_lookup(&rig, tokens, 50);
        ck_assert_uint_eq(answer.kv_len, 0);
        ck_assert_uint_eq(req_open(&rig, &a, tokens, 45), 0);
        req_run(&rig, &a, 50);
        req_close(&rig, &a, 0, SC_RELEASE_KEEP);
        ck_assert_uint_eq(rig_lookup(&rig, tokens, 50).kv_len, 45);
    }
    rig.ns = first;
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 50).kv_len, 40);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_16__other_weights_are_refused)
{
    start(1);
    sc_fingerprint fingerprint;
    sc_namespace ns = {0, 0};
    rig_ok(sc_schema_fingerprint(rig.schema, &fingerprint));
    rig_ok(sc_namespace_open(rig.cache, &fingerprint, 0, 0, &ns));
    ck_assert_mem_eq(&ns, &rig.ns, sizeof ns);
    fingerprint.bytes[15] ^= 1;
    ck_assert_int_eq(sc_namespace_open(rig.cache, &fingerprint, 0, 0, &ns), SC_ERR_MISMATCH);
    rig_deinit(&rig);
}
END_TEST

/* Equal tokens, other marks: what is shared ends with the page before. Both are served, and each
 * finds its own. */
START_TEST(contract_16__marks_never_mix)
{
    static const uint32_t at[] = {0, 1, 20, 47};
    int32_t marked[64];
    start(_i ? 16 : 1);
    (void)rig_serve(&rig, tokens, 48, 48, SC_RELEASE_KEEP);
    for (uint32_t i = 0; i < 4; i++) {
        for (int32_t id = 1; id < 3; id++) {
            memcpy(marked, tokens, sizeof marked);
            marked[at[i]] |= id << RIG_MARK_SHIFT;
            sc_answer answer = rig_lookup(&rig, marked, 64);
            ck_assert_uint_eq(answer.kv_len, at[i] - at[i] % rig.page);
            ck_assert_uint_le(rig_serve(&rig, marked, 48, 48, SC_RELEASE_KEEP), at[i]);
            ck_assert_uint_eq(rig_lookup(&rig, marked, 64).state_len[SC_TIER_DEVICE], 48);
        }
    }
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 64).state_len[SC_TIER_DEVICE], 48);
    memcpy(marked, tokens, sizeof marked);
    marked[48] |= 1 << RIG_MARK_SHIFT; /* an image in the next message */
    ck_assert_uint_eq(req_open(&rig, &a, marked, 48), 32);
    req_run(&rig, &a, 48);
    req_append(&rig, &a, marked + 48, 16);
    req_run(&rig, &a, 64);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    ck_assert_uint_eq(rig_lookup(&rig, marked, 64).kv_len, _i ? 48 : 63);
    ck_assert_uint_eq(rig_lookup(&rig, tokens, 64).kv_len, 48);
    rig_deinit(&rig);
}
END_TEST

START_TEST(contract_19__every_miss_has_a_reason)
{
    sc_room got;
    start(16);
    ck_assert_int_eq(rig_lookup(&rig, tokens, 16).reason, SC_REASON_TOO_SHORT);
    ck_assert_int_eq(rig_lookup(&rig, tokens, 17).reason, SC_REASON_NO_PREFIX);
    (void)rig_serve(&rig, tokens, 100, 100, SC_RELEASE_KEEP); /* a state at 96 */
    ck_assert_int_eq(rig_lookup(&rig, tokens, 97).reason, SC_REASON_NONE);
    ck_assert_int_eq(rig_lookup(&rig, tokens, 200).reason, SC_REASON_NO_PREFIX);
    ck_assert_int_eq(rig_lookup(&rig, tokens, 90).reason, SC_REASON_NO_STATE);
    rig_ok(sc_cache_evict(rig.cache, 0, 1, &got));
    ck_assert_int_eq(rig_lookup(&rig, tokens, 97).reason, SC_REASON_EVICTED);
    for (uint32_t i = 0; i < SC_REASON_COUNT; i++) {
        ck_assert_str_ne(sc_reason_text((sc_reason)i), sc_reason_text((sc_reason)99));
    }
    rig_ok(req_try(&rig, &a, tokens, 97));
    ck_assert_int_eq(rig_info(&rig, a.lease).reason, SC_REASON_EVICTED);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_ok(req_try(&rig, &a, tokens, 3));
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    sc_cache_stats stats = rig_stats(&rig);
    ck_assert_uint_eq(stats.reason_count[SC_REASON_EVICTED], 1);
    ck_assert_uint_eq(stats.reason_count[SC_REASON_TOO_SHORT], 1);
    ck_assert_uint_eq(stats.reason_count[SC_REASON_NO_PREFIX], 1);
    rig_deinit(&rig);
}
END_TEST

static Suite *contracts_suite(void)
{
    Suite *suite = suite_create("engine_contracts");
    TCase *tc = tcase_create("contracts");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, contract_1__snapshots_have_an_exact_length);
    tcase_add_test(tc, contract_1__commit_refuses_any_other_length);
    tcase_add_test(tc, contract_2__lookup_changes_nothing);
    tcase_add_test(tc, contract_2__a_refused_acquire_changes_no_order);
    tcase_add_test(tc, contract_3__what_a_step_names_stays_held);
    tcase_add_test(tc, contract_3__a_snapshot_is_never_written_again);
    tcase_add_test(tc, contract_4__alloc_all_or_nothing);
    tcase_add_test(tc, contract_4__a_save_without_room_is_skipped_and_counted);
    tcase_add_test(tc, contract_4__a_slot_is_found_by_evicting_what_nobody_pins);
    tcase_add_test(tc, contract_5__releasing_twice_is_an_error_that_changes_nothing);
    tcase_add_test(tc, contract_6__stale_handles_are_refused);
    tcase_add_test(tc, contract_6__a_row_without_a_snapshot_reads_slot_0);
    tcase_add_test(tc, contract_7__refused_rows_are_minus_one);
    tcase_add_loop_test(tc, contract_9__cuts_on_the_grid_are_no_history, 0, 2);
    tcase_add_loop_test(tc, contract_10__resuming_equals_a_cold_run, 0, 2);
    tcase_add_test(tc, contract_11__short_prompts_and_chunks_of_one_token);
    tcase_add_test(tc, contract_16__namespaces_never_mix);
    tcase_add_test(tc, contract_16__other_weights_are_refused);
    tcase_add_loop_test(tc, contract_16__marks_never_mix, 0, 2);
    tcase_add_test(tc, contract_19__every_miss_has_a_reason);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(contracts_suite());
}

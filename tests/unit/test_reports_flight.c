/* SPDX-License-Identifier: Apache-2.0 */
/* Field reports that need steps in flight or drafts: which state a save holds when the scheduler is
 * ahead of the device. docs/field-reports.md is the table; report_N is entry N there. */
#include "test_engine_rig.h"

static struct rig rig;
static struct req a, b;
static int32_t tokens[512];

static void start(uint32_t page, uint32_t depth, uint32_t save_flags, uint32_t interval)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    options.page = page;
    options.slots = 8;
    options.cache.depth_max = depth;
    options.cache.draft_max = 2;
    options.cache.save_flags = save_flags;
    options.cache.decode_interval = interval;
    rig_fill(tokens, 512, 1);
    rig_init(&rig, &options);
    rig.depth = depth;
}

static uint32_t state_len(const struct req *req, uint32_t count)
{
    rig_sample(&rig, &a, count);
    return rig_lookup(&rig, req->tokens, count).state_len[SC_TIER_DEVICE];
}

/* Everybody else takes what slots are free: none of them is one that the step names. */
static void nobody_else_has(const struct rig_step *step)
{
    struct req others[8];
    const sc_batch *batch = &step->batch;
    uint32_t taken = rig_room(&rig).slots_free;
    ck_assert_uint_lt(taken, 8);
    for (uint32_t i = 0; i < taken; i++) {
        rig_ok(req_try(&rig, &others[i], tokens + 300, 20));
    }
    for (uint32_t i = 0; i < taken; i++) {
        int32_t slot = rig_info(&rig, others[i].lease).working_slot;
        ck_assert_int_ne(slot, rig_word(batch, batch->at_source, 0));
        ck_assert_int_ne(slot, rig_word(batch, batch->at_dest, 0));
        for (uint32_t s = 0; s < batch->save_count; s++) {
            ck_assert_int_ne(slot, rig_word(batch, batch->at_save_slot, s));
        }
        rig_state_write(&rig, slot, 99);
    }
    for (uint32_t i = 0; i < taken; i++) req_close(&rig, &others[i], 0, SC_RELEASE_DISCARD);
}

/* Two drafts a row, of which none, one or both are right: lengths go by 1, 2 and 3 over 16 and 32.
 * Each row has its slots before it runs, and reads the state of what was accepted. */
START_TEST(report_12__drafts_across_a_page_end)
{
    start(16, 2, SC_SAVE_DEFAULT, 0);
    rig_ok(req_try(&rig, &a, tokens, 14));
    (void)req_step(&rig, &a, 14);
    struct rig_step steps[2];
    for (uint32_t n = 0; rig_info(&rig, a.lease).len < 34; n++) {
        struct rig_step *step = &steps[n % 2];
        *step = (struct rig_step){.rows = {{&a, 0, NULL, 0}}, .count = 1};
        sc_lease_info info = rig_info(&rig, a.lease);
        if (n == 0) rig_sample(&rig, &a, 15), req_tell(&rig, &a, 15);
        step->rows[0].to = info.issued_len_max + 3;
        step->drafts[0] = 2;
        step->accept[0] = _i < 3 ? (uint32_t)_i : (n * 7 + (uint32_t)_i) % 3;
        rig_plan(&rig, step);
        ck_assert_int_gt(rig_word(&step->batch, step->batch.at_dest, 0), 0);
        nobody_else_has(step);
        rig_forward(&rig, step);
        if (n > 0) rig_commit(&rig, &steps[(n + 1) % 2]);
        if (n > 0) rig_verify(&rig);
        if (rig_info(&rig, a.lease).len >= 34 || n > 40) {
            rig_commit(&rig, step);
            break;
        }
    }
    rig_check_lease(&rig, &a);
    ck_assert_uint_eq(state_len(&a, 40), 32); /* saved among the drafts */
    ck_assert_uint_eq(req_open(&rig, &b, a.tokens, 40), 32);
    req_run(&rig, &b, 40);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &a, 0, SC_RELEASE_KEEP);
    rig_deinit(&rig);
}
END_TEST

/* The device is behind: chunk i has not run when its state is asked for and chunk i + 1 is given to
 * it. The state that is saved is that of chunk i all the same, and nobody is offered it before. */
START_TEST(report_48__a_save_is_that_of_its_own_chunk)
{
    static const uint32_t inside = 32, end = 48;
    start(1, 2, 0, 0);
    rig_ok(req_try(&rig, &a, tokens, 96));
    struct rig_step first = {.rows = {{&a, 48, _i ? &end : &inside, 1}}, .count = 1};
    struct rig_step second = {.rows = {{&a, 96, NULL, 0}}, .count = 1};
    rig_plan(&rig, &first);
    ck_assert_uint_eq(state_len(&a, 96), 0);
    rig_plan(&rig, &second);
    nobody_else_has(&first);
    nobody_else_has(&second);
    ck_assert_uint_eq(state_len(&a, 96), 0);
    rig_forward(&rig, &first);
    rig_forward(&rig, &second);
    ck_assert_uint_eq(state_len(&a, 96), 0); /* has run, and is not known to have */
    rig_commit(&rig, &first);
    ck_assert_uint_eq(req_open(&rig, &b, tokens, 96), _i ? 48 : 32);
    rig_commit(&rig, &second);
    rig_check_lease(&rig, &b);
    req_run(&rig, &b, 96);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

/* Saves every 128 tokens, each step planned before the one before has ended. */
START_TEST(report_49__the_label_of_a_save_is_its_own_row)
{
    uint32_t depth = (uint32_t)_i;
    struct rig_step steps[SC_DEPTH_MAX];
    start(16, depth, SC_SAVE_DECODE, 128);
    rig_ok(req_try(&rig, &a, tokens, 120));
    (void)req_step(&rig, &a, 120);
    rig_sample(&rig, &a, 121);
    req_tell(&rig, &a, 121);
    for (uint32_t to = 121; to <= 140; to++) {
        if (to - 121 >= depth) rig_commit(&rig, &steps[to % depth]);
        struct rig_step *step = &steps[to % depth];
        *step = (struct rig_step){.rows = {{&a, to, NULL, 0}}, .count = 1};
        rig_plan(&rig, step);
        const sc_batch *batch = &step->batch;
        bool saves = batch->save_count > 0 || rig_word(batch, batch->at_freeze, 0) == 1;
        ck_assert(saves == (to == 128));
        rig_forward(&rig, step);
    }
    for (uint32_t to = 141 - depth; to <= 140; to++) rig_commit(&rig, &steps[to % depth]);
    rig_check_lease(&rig, &a);
    ck_assert_uint_eq(state_len(&a, 141), 128);
    ck_assert_uint_eq(req_open(&rig, &b, a.tokens, 141), 128); /* its state is that of 128 */
    req_close(&rig, &b, 0, SC_RELEASE_DISCARD);
    req_close(&rig, &a, 0, SC_RELEASE_DISCARD);
    rig_deinit(&rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reports_flight");
    TCase *tc = tcase_create("reports");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, report_12__drafts_across_a_page_end, 0, 6);
    tcase_add_loop_test(tc, report_48__a_save_is_that_of_its_own_chunk, 0, 2);
    tcase_add_loop_test(tc, report_49__the_label_of_a_save_is_its_own_row, 2, SC_DEPTH_MAX + 1);
    suite_add_tcase(suite, tc);
    return rig_main(suite);
}

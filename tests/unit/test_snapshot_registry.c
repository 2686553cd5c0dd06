/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots by id: ids, exact counts, histories, growth that fails. */
#include <check.h>
#include <stdlib.h>

#include "base/prng.h"
#include "snapshot/registry.h"
#include "support/fail_alloc.h"
#include "support/test_scale.h"

static struct fail_alloc fa;
static struct sc_registry *registry;

static void setup(void)
{
    fail_alloc_init(&fa);
    ck_assert_int_eq(sc_registry_create(&fa.allocator, &registry), SC_OK);
}

static void teardown(void)
{
    ck_assert_int_eq(sc_registry_verify(registry), SC_OK);
    sc_registry_destroy(registry);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}

static const struct sc_stretch three[3] = {{64, SC_FORM_PREFILL}, {70, SC_FORM_DECODE},
    {128, SC_FORM_PREFILL}};

static struct sc_snapshot_info info_of(uint32_t slot, const struct sc_stretch *history,
    uint32_t count)
{
    return (struct sc_snapshot_info){.slot = {slot, 1}, .token_count = history[count - 1].end,
        .space = 7, .kind = SC_SNAPSHOT_BRANCH, .hits = 0, .history = history,
        .history_count = count};
}

static uint32_t add(uint32_t slot)
{
    struct sc_snapshot_info info = info_of(slot, three, 3);
    uint32_t id = 0;
    ck_assert_int_eq(sc_registry_add(registry, &info, &id), SC_OK);
    ck_assert_uint_ne(id, 0);
    return id;
}

START_TEST(add__keeps_every_field)
{
    struct sc_snapshot_info info = info_of(9, three, 3), got;
    uint32_t id = 0;
    info.hits = 5;
    ck_assert_int_eq(sc_registry_add(registry, &info, &id), SC_OK);
    ck_assert_int_eq(sc_registry_get(registry, id, &got), SC_OK);
    ck_assert_uint_eq(got.slot.id, 9);
    ck_assert_uint_eq(got.slot.generation, 1);
    ck_assert_uint_eq(got.token_count, 128);
    ck_assert_uint_eq(got.space, 7);
    ck_assert_int_eq((int)got.kind, SC_SNAPSHOT_BRANCH);
    ck_assert_uint_eq(got.hits, 5);
    ck_assert_uint_eq(got.history_count, 3);
    ck_assert_mem_eq(got.history, three, sizeof three);
}
END_TEST

START_TEST(add__copies_the_history)
{
    struct sc_stretch mine[2] = {{16, SC_FORM_PREFILL}, {17, SC_FORM_DECODE}};
    struct sc_snapshot_info info = info_of(1, mine, 2), got;
    uint32_t id = 0;
    ck_assert_int_eq(sc_registry_add(registry, &info, &id), SC_OK);
    memset(mine, 0xff, sizeof mine);
    ck_assert_int_eq(sc_registry_get(registry, id, &got), SC_OK);
    ck_assert_ptr_ne(got.history, mine);
    const struct sc_stretch *kept = got.history;
    for (uint32_t i = 0; i < 1000; i++) {
        (void)add(2 + i);
    }
    ck_assert_int_eq(sc_registry_get(registry, id, &got), SC_OK);
    ck_assert_ptr_eq(got.history, kept); /* growth of the table moves no history */
    ck_assert_uint_eq(kept[0].end, 16);
    ck_assert_uint_eq(kept[1].end, 17);
    ck_assert_uint_eq(kept[1].form, SC_FORM_DECODE);
}
END_TEST

START_TEST(add__refuses_bad_arguments_and_adds_nothing)
{
    struct sc_snapshot_info good = info_of(1, three, 3), bad;
    uint32_t id = 77;
    uint64_t blocks = fail_alloc_live_blocks(&fa);
    ck_assert_int_eq(sc_registry_add(NULL, &good, &id), SC_ERR_INVALID);
    ck_assert_int_eq(sc_registry_add(registry, NULL, &id), SC_ERR_INVALID);
    ck_assert_int_eq(sc_registry_add(registry, &good, NULL), SC_ERR_INVALID);
    bad = good;
    bad.slot = SC_SLOT_NULL;
    ck_assert_int_eq(sc_registry_add(registry, &bad, &id), SC_ERR_INVALID);
    bad = good;
    bad.token_count = 0;
    ck_assert_int_eq(sc_registry_add(registry, &bad, &id), SC_ERR_INVALID);
    for (uint32_t off = 0; off < 2; off++) {
        bad = good;
        bad.token_count = off ? 127 : 129; /* contract 1: exact, neither more nor less */
        ck_assert_int_eq(sc_registry_add(registry, &bad, &id), SC_ERR_MISMATCH);
    }
    bad = good;
    bad.history_count = 0;
    ck_assert_int_eq(sc_registry_add(registry, &bad, &id), SC_ERR_MISMATCH);
    bad = good;
    bad.history = NULL;
    ck_assert_int_eq(sc_registry_add(registry, &bad, &id), SC_ERR_INVALID);
    for (int kind = -1; kind <= 6; kind += 7) {
        bad = good;
        bad.kind = (enum sc_snapshot_kind)kind;
        ck_assert_int_eq(sc_registry_add(registry, &bad, &id), SC_ERR_INVALID);
    }
    bad.kind = (enum sc_snapshot_kind)0;
    ck_assert_int_eq(sc_registry_add(registry, &bad, &id), SC_ERR_INVALID);
    ck_assert_uint_eq(id, 77);
    ck_assert_uint_eq(sc_registry_count(registry), 0);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), blocks);
}
END_TEST

START_TEST(add__refuses_a_history_that_does_not_rise)
{
    const struct sc_stretch same[2] = {{64, SC_FORM_PREFILL}, {64, SC_FORM_DECODE}};
    const struct sc_stretch falls[2] = {{64, SC_FORM_PREFILL}, {63, SC_FORM_DECODE}};
    const struct sc_stretch zero[2] = {{0, SC_FORM_PREFILL}, {64, SC_FORM_DECODE}};
    const struct sc_stretch form[1] = {{64, 2}};
    struct sc_snapshot_info info;
    uint32_t id = 0;
    info = info_of(1, same, 2);
    ck_assert_int_eq(sc_registry_add(registry, &info, &id), SC_ERR_INVALID);
    info = info_of(1, falls, 2);
    ck_assert_int_eq(sc_registry_add(registry, &info, &id), SC_ERR_INVALID);
    info = info_of(1, zero, 2);
    ck_assert_int_eq(sc_registry_add(registry, &info, &id), SC_ERR_INVALID);
    info = info_of(1, form, 1);
    ck_assert_int_eq(sc_registry_add(registry, &info, &id), SC_ERR_INVALID);
    ck_assert_uint_eq(sc_registry_count(registry), 0);
}
END_TEST

START_TEST(get__refuses_unknown_ids)
{
    struct sc_snapshot_info got;
    uint32_t id = add(1);
    memset(&got, 0x5a, sizeof got);
    ck_assert_int_eq(sc_registry_get(NULL, id, &got), SC_ERR_INVALID);
    ck_assert_int_eq(sc_registry_get(registry, id, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_registry_get(registry, 0, &got), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_registry_get(registry, id + 1, &got), SC_ERR_NOT_FOUND);
    ck_assert_uint_eq(got.token_count, 0x5a5a5a5a);
    ck_assert_int_eq(sc_registry_count_hit(NULL, id), SC_ERR_INVALID);
    ck_assert_int_eq(sc_registry_count_hit(registry, 0), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_registry_seek(NULL, 1), SC_ERR_INVALID);
    ck_assert_int_eq(sc_registry_seek(registry, 0), SC_ERR_INVALID);
    ck_assert_int_eq(sc_registry_verify(NULL), SC_ERR_INVALID);
}
END_TEST

START_TEST(create__refuses_bad_arguments)
{
    const sc_allocator half = {NULL, fa.allocator.alloc, NULL};
    struct sc_registry *other = NULL;
    ck_assert_int_eq(sc_registry_create(NULL, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_registry_create(&half, &other), SC_ERR_INVALID);
    ck_assert_ptr_null(other);
    sc_registry_destroy(NULL);
    ck_assert_uint_eq(sc_registry_count(NULL), 0);
    sc_registry_each(NULL, NULL, NULL);
}
END_TEST

START_TEST(remove__gives_the_slot_back_once)
{
    sc_slot slot = {99, 99};
    uint32_t a = add(5), b = add(6);
    ck_assert_int_eq(sc_registry_remove(registry, a, &slot), SC_OK);
    ck_assert_uint_eq(slot.id, 5);
    slot = (sc_slot){99, 99};
    ck_assert_int_eq(sc_registry_remove(registry, a, &slot), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_registry_remove(NULL, b, &slot), SC_ERR_INVALID);
    ck_assert_uint_eq(slot.id, 99);
    ck_assert_uint_eq(sc_registry_count(registry), 1);
    ck_assert_int_eq(sc_registry_remove(registry, b, NULL), SC_OK);
    ck_assert_uint_eq(sc_registry_count(registry), 0);
    ck_assert_uint_ne(add(5), a); /* also once the table was empty */
}
END_TEST

START_TEST(hits__are_counted_for_each_snapshot_alone)
{
    struct sc_snapshot_info got;
    uint32_t a = add(1), b = add(2);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(sc_registry_count_hit(registry, a), SC_OK);
    }
    ck_assert_int_eq(sc_registry_get(registry, a, &got), SC_OK);
    ck_assert_uint_eq(got.hits, 3);
    ck_assert_int_eq(sc_registry_get(registry, b, &got), SC_OK);
    ck_assert_uint_eq(got.hits, 0);
}
END_TEST

START_TEST(ids__are_not_reused_soon)
{
    uint32_t last = add(1);
    for (uint32_t i = 0; i < 10000; i++) {
        ck_assert_int_eq(sc_registry_remove(registry, last, NULL), SC_OK);
        uint32_t id = add(1);
        ck_assert_uint_gt(id, last);
        last = id;
    }
}
END_TEST

START_TEST(ids__wrap_past_zero_and_those_in_use)
{
    uint32_t one = add(1), two = add(2);
    ck_assert_uint_eq(one, 1);
    ck_assert_uint_eq(two, 2);
    ck_assert_int_eq(sc_registry_seek(registry, UINT32_MAX), SC_OK);
    ck_assert_uint_eq(add(3), UINT32_MAX);
    ck_assert_uint_eq(add(4), 3);
    ck_assert_int_eq(sc_registry_remove(registry, one, NULL), SC_OK);
    ck_assert_uint_eq(add(5), 4);
    ck_assert_int_eq(sc_registry_seek(registry, UINT32_MAX), SC_OK);
    ck_assert_uint_eq(add(6), 1); /* the last id is still in use, the first is free again */
}
END_TEST

START_TEST(growth__each_allocation_failing_once)
{
    struct fail_alloc_mark start = fail_alloc_mark(&fa);
    struct sc_snapshot_info got;
    uint64_t refused = 0;
    /* Far enough for the table to grow several times: each growth is refused once, and so is each
     * entry; the next try succeeds with the id that the failed one did not use up. */
    for (uint32_t i = 0; i < 3000; i++) {
        struct sc_snapshot_info info = info_of(i + 1, three, 3);
        uint32_t id = 0;
        for (uint64_t n = 1;; n++) {
            struct fail_alloc_mark before = fail_alloc_mark(&fa);
            fail_alloc_arm(&fa, n);
            sc_status status = sc_registry_add(registry, &info, &id);
            if (!fail_alloc_disarm(&fa)) {
                ck_assert_int_eq(status, SC_OK);
                break;
            }
            refused++;
            ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
            ck_assert_uint_eq(id, 0);
            ck_assert(fail_alloc_same(&fa, before));
            ck_assert_uint_eq(sc_registry_count(registry), i);
            if (n > 1) ck_assert_int_eq(sc_registry_verify(registry), SC_OK);
        }
        ck_assert_uint_eq(id, i + 1);
    }
    ck_assert_uint_gt(refused, 3000 + 5); /* entries, the table, its buckets, and growths */
    for (uint32_t i = 0; i < 3000; i++) {
        ck_assert_int_eq(sc_registry_get(registry, i + 1, &got), SC_OK);
        ck_assert_uint_eq(got.slot.id, i + 1);
        ck_assert_int_eq(sc_registry_remove(registry, i + 1, NULL), SC_OK);
    }
    ck_assert(fail_alloc_same(&fa, start));
}
END_TEST

START_TEST(create__each_allocation_failing_once)
{
    struct sc_registry *other = NULL;
    for (uint64_t n = 1;; n++) {
        struct fail_alloc_mark before = fail_alloc_mark(&fa);
        fail_alloc_arm(&fa, n);
        sc_status status = sc_registry_create(&fa.allocator, &other);
        if (!fail_alloc_disarm(&fa)) {
            ck_assert_int_eq(status, SC_OK);
            ck_assert_uint_gt(n, 1);
            break;
        }
        ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
        ck_assert_ptr_null(other);
        ck_assert(fail_alloc_same(&fa, before));
    }
    sc_registry_destroy(other);
}
END_TEST

struct sum { uint32_t count; uint64_t slots; };

static void sum_up(void *ctx, uint32_t snapshot, const struct sc_snapshot_info *info)
{
    struct sum *sum = ctx;
    ck_assert_uint_ne(snapshot, 0);
    sum->count++;
    sum->slots += info->slot.id;
}

START_TEST(each__visits_every_snapshot_once)
{
    struct sum sum = {0, 0};
    sc_registry_each(registry, sum_up, &sum);
    ck_assert_uint_eq(sum.count, 0);
    for (uint32_t i = 1; i <= 100; i++) {
        (void)add(i);
    }
    sc_registry_each(registry, sum_up, &sum);
    ck_assert_uint_eq(sum.count, 100);
    ck_assert_uint_eq(sum.slots, 5050);
}
END_TEST

/* One slot of the naive model: 0 means free. */
enum { MODEL_SLOTS = 512 };
static struct { uint32_t id; uint32_t tokens; uint64_t hits; } model[MODEL_SLOTS];

START_TEST(random__agrees_with_a_naive_model)
{
    struct sc_prng prng;
    uint32_t count = 0;
    sc_prng_seed(&prng, 20261129);
    for (uint64_t step = 0; step < test_scaled(200000, 20000); step++) {
        uint32_t at = (uint32_t)sc_prng_below(&prng, MODEL_SLOTS);
        struct sc_snapshot_info got;
        if (model[at].id == 0) {
            struct sc_stretch history[8];
            uint32_t stretches = 1 + (uint32_t)sc_prng_below(&prng, 8), end = 0;
            for (uint32_t i = 0; i < stretches; i++) {
                end += 1 + (uint32_t)sc_prng_below(&prng, 100);
                history[i] = (struct sc_stretch){end, (uint32_t)sc_prng_below(&prng, 2)};
            }
            struct sc_snapshot_info info = info_of(at + 1, history, stretches);
            ck_assert_int_eq(sc_registry_add(registry, &info, &model[at].id), SC_OK);
            model[at].tokens = end;
            model[at].hits = 0;
            count++;
        } else if (sc_prng_below(&prng, 3) == 0) {
            sc_slot slot;
            ck_assert_int_eq(sc_registry_remove(registry, model[at].id, &slot), SC_OK);
            ck_assert_uint_eq(slot.id, at + 1);
            ck_assert_int_eq(sc_registry_get(registry, model[at].id, &got), SC_ERR_NOT_FOUND);
            model[at].id = 0;
            count--;
        } else {
            ck_assert_int_eq(sc_registry_count_hit(registry, model[at].id), SC_OK);
            model[at].hits++;
            ck_assert_int_eq(sc_registry_get(registry, model[at].id, &got), SC_OK);
            ck_assert_uint_eq(got.slot.id, at + 1);
            ck_assert_uint_eq(got.token_count, model[at].tokens);
            ck_assert_uint_eq(got.history[got.history_count - 1].end, model[at].tokens);
            ck_assert_uint_eq(got.hits, model[at].hits);
        }
        ck_assert_uint_eq(sc_registry_count(registry), count);
        if (step % 4096 == 0) ck_assert_int_eq(sc_registry_verify(registry), SC_OK);
    }
}
END_TEST

static Suite *registry_suite(void)
{
    Suite *suite = suite_create("snapshot/registry");
    TCase *tcase = tcase_create("registry");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, add__keeps_every_field);
    tcase_add_test(tcase, add__copies_the_history);
    tcase_add_test(tcase, add__refuses_bad_arguments_and_adds_nothing);
    tcase_add_test(tcase, add__refuses_a_history_that_does_not_rise);
    tcase_add_test(tcase, get__refuses_unknown_ids);
    tcase_add_test(tcase, create__refuses_bad_arguments);
    tcase_add_test(tcase, remove__gives_the_slot_back_once);
    tcase_add_test(tcase, hits__are_counted_for_each_snapshot_alone);
    tcase_add_test(tcase, ids__are_not_reused_soon);
    tcase_add_test(tcase, ids__wrap_past_zero_and_those_in_use);
    tcase_add_test(tcase, growth__each_allocation_failing_once);
    tcase_add_test(tcase, create__each_allocation_failing_once);
    tcase_add_test(tcase, each__visits_every_snapshot_once);
    tcase_add_test(tcase, random__agrees_with_a_naive_model);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(registry_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

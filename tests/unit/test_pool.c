/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of a pool: allocation, handles, owners, audit. Memory and layouts: test_pool_memory.c. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/prng.h"
#include "base/sc_assert.h"
#include "pool_impl.h"
#include "test_pool_util.h"

static bool same_slot(sc_slot a, sc_slot b)
{
    return a.id == b.id && a.generation == b.generation;
}

/* ---- allocation ---- */

START_TEST(alloc__hands_out_every_slot_once)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, 50);
    sc_slot slots[50];
    bool seen[51] = {false};
    for (int i = 0; i < 50; i += 10) {
        ck_assert_int_eq(sc_pool_alloc(pool, 10, SC_OWNER_WORKING, &slots[i]), SC_OK);
    }
    for (int i = 0; i < 50; i++) {
        ck_assert_uint_ge(slots[i].id, 1);
        ck_assert_uint_le(slots[i].id, 50);
        ck_assert(!seen[slots[i].id]);
        seen[slots[i].id] = true;
        ck_assert_uint_eq(slots[i].generation % 2, 1);
        ck_assert_int_eq(sc_pool_check(pool, slots[i], NULL), SC_OK);
    }
    audit_ok(pool);
    ck_assert_int_eq(sc_pool_free(pool, slots, 50), SC_OK);
    audit_ok(pool);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

START_TEST(alloc__is_all_or_nothing)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_CONTIGUOUS, 8);
    sc_slot slots[9], untouched[9];
    memset(untouched, 0x77, sizeof untouched);
    memcpy(slots, untouched, sizeof slots);
    ck_assert_int_eq(sc_pool_alloc(pool, 9, SC_OWNER_WORKING, slots), SC_ERR_NO_SLOT);
    ck_assert_mem_eq(slots, untouched, sizeof slots);
    ck_assert_uint_eq(info_of(pool).free_count, 8);
    ck_assert_int_eq(sc_pool_alloc(pool, UINT32_MAX, SC_OWNER_WORKING, slots), SC_ERR_NO_SLOT);
    ck_assert_int_eq(sc_pool_alloc(pool, 5, SC_OWNER_WORKING, slots), SC_OK);
    ck_assert_int_eq(sc_pool_alloc(pool, 4, SC_OWNER_SNAPSHOT, &slots[5]), SC_ERR_NO_SLOT);
    ck_assert_uint_eq(info_of(pool).free_count, 3);
    audit_ok(pool);
    ck_assert_int_eq(sc_pool_alloc(pool, 3, SC_OWNER_SNAPSHOT, &slots[5]), SC_OK);
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_SNAPSHOT, &slots[8]), SC_ERR_NO_SLOT);
    ck_assert_int_eq(sc_pool_free(pool, slots, 8), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

START_TEST(alloc__bad_arguments)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_CONTIGUOUS, 8);
    sc_slot slot = {77, 77};
    ck_assert_ptr_null(sc_pool_allocator(pool)); /* the default */
    ck_assert_int_eq(sc_pool_alloc(NULL, 1, SC_OWNER_WORKING, &slot), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_alloc(pool, 0, SC_OWNER_WORKING, &slot), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_FREE, &slot), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_COUNT, &slot), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_alloc(pool, 1, (sc_owner)-1, &slot), SC_ERR_INVALID);
    ck_assert_uint_eq(slot.id, 77);
    ck_assert_uint_eq(info_of(pool).free_count, 8);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

START_TEST(alloc_and_free__never_allocate_memory)
{
    struct fail_alloc fa;
    sc_schema *schema = tiny_schema();
    sc_pool_options options = tiny_options(schema, SC_LAYOUT_PAGE_MAJOR, 64);
    sc_pool *pool = NULL;
    sc_slot slots[64];
    fail_alloc_init(&fa);
    options.allocator = &fa.allocator;
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    ck_assert_ptr_eq(sc_pool_allocator(pool)->ctx, &fa);
    fail_alloc_arm(&fa, 1);
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(sc_pool_alloc(pool, 64, SC_OWNER_WORKING, slots), SC_OK);
        ck_assert_int_eq(sc_pool_set_owner(pool, slots[3], SC_OWNER_SNAPSHOT), SC_OK);
        ck_assert_int_eq(sc_pool_free(pool, slots, 64), SC_OK);
        audit_ok(pool);
    }
    ck_assert(!fail_alloc_disarm(&fa));
    ck_assert_uint_eq(fail_alloc_calls(&fa), 0);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
    sc_schema_release(schema);
}
END_TEST

START_TEST(alloc__gives_slots_back_when_the_backend_fails)
{
    struct faulty_backend faulty;
    sc_schema *state = tiny_schema(), *schema = NULL;
    sc_extras_options extras = SC_EXTRAS_OPTIONS_INIT;
    sc_pool *pool = NULL;
    sc_slot slots[4];
    faulty_init(&faulty);
    extras.control_words = 3;
    ck_assert_int_eq(sc_schema_extras_create(state, NULL, &extras, &schema), SC_OK);
    sc_pool_options options = tiny_options(schema, SC_LAYOUT_PAGE_MAJOR, 4);
    options.backend = &faulty.backend;
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    for (uint32_t n = 1; n <= 4; n++) {
        faulty.fail_fill_at = n;
        ck_assert_int_eq(sc_pool_alloc(pool, 4, SC_OWNER_WORKING, slots), SC_ERR_DEVICE_LOST);
        ck_assert_uint_eq(info_of(pool).free_count, 4);
        audit_ok(pool);
    }
    faulty.fail_fill_at = 0;
    ck_assert_int_eq(sc_pool_alloc(pool, 4, SC_OWNER_WORKING, slots), SC_OK);
    ck_assert_int_eq(sc_pool_free(pool, slots, 4), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    ck_assert_int_eq(faulty.live, 0);
    sc_schema_release(schema);
    sc_schema_release(state);
}
END_TEST

/* ---- handles ---- */

START_TEST(free__refuses_stale_null_and_double_handles_and_frees_nothing)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, 8);
    sc_slot s[4], old, bad[4];
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &old), SC_OK);
    ck_assert_int_eq(sc_pool_free(pool, &old, 1), SC_OK);
    ck_assert_int_eq(sc_pool_free(pool, &old, 1), SC_ERR_STALE); /* freed already */
    ck_assert_int_eq(sc_pool_alloc(pool, 4, SC_OWNER_WORKING, s), SC_OK);
    ck_assert_uint_eq(s[0].id, old.id); /* reused, */
    ck_assert(!same_slot(s[0], old));   /* but the old handle does not name it */
    const sc_slot spoil[] = {old, SC_SLOT_NULL, {0, 1}, {9, 1}, {UINT32_MAX, 1}, {s[3].id, 0},
        {s[3].id, s[3].generation + 1}, {s[3].id, s[3].generation + 2}, {7, 0}, {7, 1}, s[0], s[2]};
    for (size_t i = 0; i < sizeof spoil / sizeof spoil[0]; i++) {
        memcpy(bad, s, sizeof bad);
        bad[3] = spoil[i];
        ck_assert_int_eq(sc_pool_free(pool, bad, 4), SC_ERR_STALE);
        ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "entry 3"));
        for (int j = 0; j < 4; j++) ck_assert_int_eq(sc_pool_check(pool, s[j], NULL), SC_OK);
        audit_ok(pool);
    }
    ck_assert_int_eq(sc_pool_free(NULL, s, 4), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_free(pool, NULL, 4), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_free(pool, s, 0), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_free(pool, s, 4), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

START_TEST(check__knows_live_handles_alone)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, 3);
    sc_slot slot;
    sc_owner owner = SC_OWNER_FREE;
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_IN_FLIGHT, &slot), SC_OK);
    ck_assert_int_eq(sc_pool_check(pool, slot, &owner), SC_OK);
    ck_assert_int_eq(owner, SC_OWNER_IN_FLIGHT);
    owner = SC_OWNER_DRAINING;
    ck_assert_int_eq(sc_pool_check(pool, SC_SLOT_NULL, &owner), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_check(pool, (sc_slot){2, 0}, &owner), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_check(pool, (sc_slot){4, 1}, &owner), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_check(pool, (sc_slot){UINT32_MAX, 1}, &owner), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_check(NULL, slot, &owner), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_free(pool, &slot, 1), SC_OK);
    ck_assert_int_eq(sc_pool_check(pool, slot, &owner), SC_ERR_STALE);
    ck_assert_int_eq(owner, SC_OWNER_DRAINING);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

START_TEST(slot__of_unknown_or_free_ids_is_stale)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, 3);
    sc_slot slot, named, next;
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &slot), SC_OK);
    ck_assert_int_eq(sc_pool_slot(pool, slot.id, &named), SC_OK);
    ck_assert(named.id == slot.id && named.generation == slot.generation);
    ck_assert_int_eq(sc_pool_slot(pool, 0, &named), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_slot(pool, 4, &named), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_slot(pool, UINT32_MAX, &named), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_slot(NULL, slot.id, &named), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_slot(pool, slot.id, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_free(pool, &slot, 1), SC_OK);
    ck_assert_int_eq(sc_pool_slot(pool, slot.id, &named), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &next), SC_OK);
    ck_assert_int_eq(next.id, slot.id);
    ck_assert_int_eq(sc_pool_slot(pool, slot.id, &named), SC_OK);
    ck_assert_uint_ne(named.generation, slot.generation);
    ck_assert_int_eq(sc_pool_free(pool, &next, 1), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

START_TEST(generation__wraps)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, 1);
    sc_slot slot, next;
    pool->slots[1].generation = UINT32_MAX - 1;
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &slot), SC_OK);
    ck_assert_uint_eq(slot.generation, UINT32_MAX);
    audit_ok(pool);
    ck_assert_int_eq(sc_pool_free(pool, &slot, 1), SC_OK); /* generation is 0 now */
    ck_assert_int_eq(sc_pool_check(pool, (sc_slot){1, 0}, NULL), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_free(pool, &(sc_slot){1, 0}, 1), SC_ERR_STALE);
    audit_ok(pool);
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &next), SC_OK);
    ck_assert_uint_eq(next.generation, 1);
    ck_assert_int_eq(sc_pool_check(pool, slot, NULL), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_free(pool, &next, 1), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

START_TEST(owner__tags_are_counted)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, 10);
    sc_slot s[6], got[6];
    ck_assert_int_eq(sc_pool_alloc(pool, 3, SC_OWNER_WORKING, s), SC_OK);
    ck_assert_int_eq(sc_pool_alloc(pool, 3, SC_OWNER_IN_FLIGHT, &s[3]), SC_OK);
    ck_assert_int_eq(sc_pool_set_owner(pool, s[4], SC_OWNER_SNAPSHOT), SC_OK);
    ck_assert_int_eq(sc_pool_set_owner(pool, s[0], SC_OWNER_DRAINING), SC_OK);
    ck_assert_int_eq(sc_pool_set_owner(pool, s[1], SC_OWNER_WORKING), SC_OK); /* as it was */
    sc_pool_info info = info_of(pool);
    ck_assert_uint_eq(info.owner_count[SC_OWNER_FREE], 4);
    ck_assert_uint_eq(info.owner_count[SC_OWNER_WORKING], 2);
    ck_assert_uint_eq(info.owner_count[SC_OWNER_SNAPSHOT], 1);
    ck_assert_uint_eq(info.owner_count[SC_OWNER_IN_FLIGHT], 2);
    ck_assert_uint_eq(info.owner_count[SC_OWNER_DRAINING], 1);
    ck_assert_uint_eq(sc_pool_slots_of_owner(pool, SC_OWNER_IN_FLIGHT, got, 1), 2);
    ck_assert(same_slot(got[0], s[3]));
    ck_assert_uint_eq(sc_pool_slots_of_owner(pool, SC_OWNER_SNAPSHOT, got, 6), 1);
    ck_assert(same_slot(got[0], s[4]));
    audit_ok(pool);
    ck_assert_int_eq(sc_pool_free(pool, s, 6), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

START_TEST(owner__refuses_bad_arguments_and_stale_handles)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, 10);
    sc_slot slot;
    sc_owner owner;
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &slot), SC_OK);
    ck_assert_int_eq(sc_pool_set_owner(pool, slot, SC_OWNER_FREE), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_set_owner(pool, slot, SC_OWNER_COUNT), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_set_owner(pool, slot, (sc_owner)-1), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_set_owner(NULL, slot, SC_OWNER_SNAPSHOT), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_set_owner(pool, SC_SLOT_NULL, SC_OWNER_SNAPSHOT), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_check(pool, slot, &owner), SC_OK);
    ck_assert_int_eq(owner, SC_OWNER_WORKING);
    ck_assert_int_eq(sc_pool_free(pool, &slot, 1), SC_OK);
    ck_assert_int_eq(sc_pool_set_owner(pool, slot, SC_OWNER_WORKING), SC_ERR_STALE);
    audit_ok(pool);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

START_TEST(ids__are_checked_in_bulk)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, 4);
    sc_slot s[3], got = {77, 77};
    ck_assert_int_eq(sc_pool_alloc(pool, 3, SC_OWNER_WORKING, s), SC_OK);
    int32_t ids[4] = {(int32_t)s[2].id, -1, 0, (int32_t)s[0].id};
    ck_assert_uint_eq(sc_pool_id_end(pool), 5);
    ck_assert_int_eq(sc_pool_check_ids(pool, ids, 4, SC_POOL_READ), SC_OK);
    ck_assert_int_eq(sc_pool_check_ids(pool, NULL, 0, SC_POOL_READ), SC_OK);
    ck_assert_int_eq(sc_pool_check_ids(pool, ids, 4, SC_POOL_WRITE), SC_ERR_INVALID);
    const int32_t bad[] = {-2, INT32_MIN, 4, 5, INT32_MAX};
    for (int i = 0; i < 5; i++) {
        ids[3] = bad[i];
        ck_assert_int_eq(sc_pool_check_ids(pool, ids, 4, SC_POOL_READ),
            bad[i] < 0 ? SC_ERR_INVALID : SC_ERR_STALE);
        ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "entry 3"));
    }
    /* What is kept may be read, not written; the text is about the entry that is wrong. */
    ids[2] = -1;
    ids[3] = (int32_t)s[0].id;
    for (int kept = 0; kept < 2; kept++) {
        ck_assert_int_eq(sc_pool_set_owner(pool, s[0], kept ? SC_OWNER_DRAINING :
            SC_OWNER_SNAPSHOT), SC_OK);
        ck_assert_int_eq(sc_pool_check_ids(pool, ids, 4, SC_POOL_READ), SC_OK);
        ck_assert_int_eq(sc_pool_check_ids(pool, ids, 4, SC_POOL_WRITE), SC_ERR_BUSY);
        ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "entry 3"));
    }
    const int32_t then[2] = {(int32_t)s[0].id, 9};
    ck_assert_int_eq(sc_pool_check_ids(pool, then, 2, SC_POOL_READ), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_check_ids(NULL, ids, 4, SC_POOL_READ), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_check_ids(pool, NULL, 4, SC_POOL_READ), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_slot_of(pool, 0, &got), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_slot_of(pool, 4, &got), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_slot_of(pool, UINT32_MAX, &got), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_slot_of(NULL, 1, &got), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_slot_of(pool, 1, NULL), SC_ERR_INVALID);
    ck_assert_uint_eq(got.id, 77);
    ck_assert_int_eq(sc_pool_slot_of(pool, s[1].id, &got), SC_OK);
    ck_assert(same_slot(got, s[1]));
    ck_assert_int_eq(sc_pool_free(pool, s, 3), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

/* ---- destroy ---- */

START_TEST(destroy__is_refused_while_in_use)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, 4);
    sc_slot slot;
    ck_assert_int_eq(sc_pool_destroy(NULL), SC_OK);
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_SNAPSHOT, &slot), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_ERR_BUSY);
    ck_assert_int_eq(sc_pool_check(pool, slot, NULL), SC_OK);
    ck_assert_int_eq(sc_pool_hold(pool), SC_OK);
    ck_assert_int_eq(sc_pool_hold(pool), SC_ERR_BUSY);
    ck_assert_int_eq(sc_pool_hold(NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_give(pool, &slot, 1), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_ERR_BUSY);
    audit_ok(pool);
    sc_pool_unhold(pool);
    ck_assert_int_eq(sc_pool_hold(pool), SC_OK); /* the next cache may have it */
    sc_pool_unhold(pool);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

/* What a cache holds is its own: the public calls change nothing. */
START_TEST(hold__leaves_slots_to_the_holder)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, 4);
    sc_slot slots[4], slot = SC_SLOT_NULL;
    sc_owner owner = SC_OWNER_FREE;
    ck_assert_int_eq(sc_pool_hold(pool), SC_OK);
    ck_assert(sc_pool_take(pool, 3, SC_OWNER_WORKING, slots));
    ck_assert_int_eq(sc_pool_prepare(pool, slots, 3), SC_OK);
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &slot), SC_ERR_BUSY);
    ck_assert_uint_eq(slot.id, 0);
    ck_assert_int_eq(sc_pool_free(pool, slots, 1), SC_ERR_BUSY);
    ck_assert_int_eq(sc_pool_set_owner(pool, slots[0], SC_OWNER_SNAPSHOT), SC_ERR_BUSY);
    ck_assert_int_eq(sc_pool_check(pool, slots[0], &owner), SC_OK);
    ck_assert_int_eq(owner, SC_OWNER_WORKING);
    audit_ok(pool);
    ck_assert_int_eq(sc_pool_retag(pool, slots[0], SC_OWNER_SNAPSHOT), SC_OK);
    ck_assert_int_eq(sc_pool_check(pool, slots[0], &owner), SC_OK);
    ck_assert_int_eq(owner, SC_OWNER_SNAPSHOT);
    /* All or nothing, and no text: what the thread was told last stands. */
    ck_assert_int_eq(sc_pool_check(pool, slot, NULL), SC_ERR_STALE);
    ck_assert(!sc_pool_take(pool, 2, SC_OWNER_WORKING, slots));
    ck_assert_int_eq(sc_last_error()->status, SC_ERR_STALE);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "slot 0"));
    ck_assert(sc_pool_take(pool, 1, SC_OWNER_WORKING, &slots[3]));
    ck_assert_int_eq(sc_pool_give(pool, slots, 4), SC_OK);
    ck_assert_int_eq(sc_pool_give(pool, slots, 4), SC_ERR_STALE);
    sc_pool_unhold(pool);
    ck_assert_int_eq(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &slot), SC_OK);
    ck_assert_int_eq(sc_pool_free(pool, &slot, 1), SC_OK);
    ck_assert_int_eq(sc_pool_prepare(NULL, &slot, 1), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_prepare(pool, NULL, 1), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

/* ---- audit ---- */

START_TEST(audit__refuses_null)
{
    ck_assert_int_eq(sc_pool_audit(NULL, false), SC_ERR_INVALID);
    ck_assert_int_eq(sc_pool_audit(NULL, true), SC_ERR_INVALID);
}
END_TEST

#define AUDIT_SEES(plant, mend)                                                                    \
    do {                                                                                           \
        plant;                                                                                     \
        ck_assert_int_eq(sc_pool_audit(pool, true), SC_ERR_CORRUPT);                               \
        mend;                                                                                      \
        audit_ok(pool);                                                                            \
    } while (0)

START_TEST(audit__sees_every_planted_fault)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_CONTIGUOUS, 10);
    sc_slot s[6];
    ck_assert_int_eq(sc_pool_alloc(pool, 6, SC_OWNER_WORKING, s), SC_OK);
    ck_assert_int_eq(sc_pool_free(pool, s, 3), SC_OK); /* list: 3, 2, 1 */
    audit_ok(pool);
    AUDIT_SEES(pool->owner_count[SC_OWNER_WORKING]--, pool->owner_count[SC_OWNER_WORKING]++);
    AUDIT_SEES(pool->slots[4].owner = SC_OWNER_SNAPSHOT, pool->slots[4].owner = SC_OWNER_WORKING);
    AUDIT_SEES(pool->slots[4].owner = SC_OWNER_FREE, pool->slots[4].owner = SC_OWNER_WORKING);
    AUDIT_SEES(pool->slots[4].owner = 99, pool->slots[4].owner = SC_OWNER_WORKING);
    AUDIT_SEES(pool->slots[4].generation++, pool->slots[4].generation--);
    AUDIT_SEES(pool->slots[3].next = 1, pool->slots[3].next = 2); /* a slot is lost */
    AUDIT_SEES(pool->slots[1].next = 3, pool->slots[1].next = 0); /* a slot is in it twice */
    AUDIT_SEES(pool->slots[2].next = 4, pool->slots[2].next = 1); /* an allocated one */
    AUDIT_SEES(pool->slots[2].next = 9, pool->slots[2].next = 1); /* a fresh one */
    AUDIT_SEES(pool->free_head = 2, pool->free_head = 3);
    AUDIT_SEES(pool->free_list_count--, pool->free_list_count++);
    AUDIT_SEES(pool->fresh--, pool->fresh++);
    AUDIT_SEES(pool->fresh = 12, pool->fresh = 7);
    AUDIT_SEES(pool->slots[0].generation = 1, pool->slots[0].generation = 0);
    AUDIT_SEES(pool->slots[0].owner = SC_OWNER_WORKING, pool->slots[0].owner = SC_OWNER_FREE);
    for (uint32_t p = 0; p < TINY_PARTS; p++) { /* the last byte of each part of the null slot */
        sc_layer_view view;
        ck_assert_int_eq(sc_pool_part_view(pool, p, &view, NULL), SC_OK);
        unsigned char *last = (unsigned char *)sc_host_ptr(view.base) + view.bytes - 1;
        AUDIT_SEES(*last = 1, *last = 0);
        *last = 1;
        ck_assert_int_eq(sc_pool_audit(pool, false), SC_OK); /* not asked for */
        *last = 0;
    }
    ck_assert_int_eq(sc_pool_free(pool, &s[3], 3), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

/* ---- against a naive model, and from many threads ---- */

START_TEST(model__random_calls_agree)
{
    enum { SLOTS = 40, STEPS = 20000 };
    sc_pool *pool = tiny_pool(SC_LAYOUT_PAGE_MAJOR, SLOTS);
    sc_slot live[SLOTS], dead[SLOTS];
    sc_owner owner[SLOTS];
    uint32_t n = 0, refused = 0, dead_count = 0;
    struct sc_prng prng;
    sc_prng_seed(&prng, 11);
    for (int step = 0; step < STEPS; step++) {
        uint32_t op = (uint32_t)sc_prng_below(&prng, 4), k = 1 + (uint32_t)sc_prng_below(&prng, 12);
        if (op == 0) {
            sc_owner as = (sc_owner)(1 + sc_prng_below(&prng, 4));
            sc_slot got[12];
            sc_status status = sc_pool_alloc(pool, k, as, got);
            ck_assert_int_eq(status, n + k <= SLOTS ? SC_OK : SC_ERR_NO_SLOT);
            refused += status != SC_OK;
            for (uint32_t i = 0; status == SC_OK && i < k; i++) {
                for (uint32_t j = 0; j < n; j++) ck_assert_uint_ne(live[j].id, got[i].id);
                owner[n] = as;
                live[n++] = got[i];
            }
        } else if (op == 1 && n > 0) {
            if (k > n) k = n;
            ck_assert_int_eq(sc_pool_free(pool, &live[n - k], k), SC_OK);
            n -= k;
            dead[dead_count++ % SLOTS] = live[n];
        } else if (op == 2 && n > 0) {
            uint32_t at = (uint32_t)sc_prng_below(&prng, n);
            owner[at] = (sc_owner)(1 + sc_prng_below(&prng, 4));
            ck_assert_int_eq(sc_pool_set_owner(pool, live[at], owner[at]), SC_OK);
            sc_slot swap = live[at]; /* so that frees are not in order of allocation */
            sc_owner swap_owner = owner[at];
            live[at] = live[n - 1], owner[at] = owner[n - 1];
            live[n - 1] = swap, owner[n - 1] = swap_owner;
        } else if (dead_count > 0) {
            sc_slot old = dead[sc_prng_below(&prng, dead_count < SLOTS ? dead_count : SLOTS)];
            ck_assert_int_eq(sc_pool_free(pool, &old, 1), SC_ERR_STALE);
            refused++;
        }
        if (step % 16 != 0) continue;
        uint32_t count[SC_OWNER_COUNT] = {SLOTS - n};
        for (uint32_t i = 0; i < n; i++) {
            sc_owner is;
            ck_assert_int_eq(sc_pool_check(pool, live[i], &is), SC_OK);
            ck_assert_int_eq(is, owner[i]);
            count[is]++;
        }
        sc_pool_info info = info_of(pool);
        ck_assert_mem_eq(info.owner_count, count, sizeof count);
        audit_ok(pool);
    }
    ck_assert_uint_gt(refused, STEPS / 10);
    if (n > 0) ck_assert_int_eq(sc_pool_free(pool, live, n), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

static void *hammer(void *arg)
{
    sc_pool *pool = arg;
    uint32_t trouble = 0;
    for (int i = 0; i < 2000; i++) {
        sc_slot s[5];
        if (sc_pool_alloc(pool, 5, SC_OWNER_WORKING, s) != SC_OK) continue;
        for (int j = 0; j < 5; j++) trouble += sc_pool_check(pool, s[j], NULL) != SC_OK;
        trouble += sc_pool_set_owner(pool, s[1], SC_OWNER_SNAPSHOT) != SC_OK;
        trouble += sc_pool_audit(pool, false) != SC_OK;
        sc_pool_info info;
        trouble += sc_pool_info_get(pool, &info) != SC_OK;
        trouble += info.owner_count[SC_OWNER_SNAPSHOT] < 1;
        trouble += sc_pool_free(pool, s, 5) != SC_OK;
        trouble += sc_pool_free(pool, s, 5) != SC_ERR_STALE;
    }
    return trouble ? arg : NULL;
}

START_TEST(threads__share_a_pool)
{
    sc_pool *pool = tiny_pool(SC_LAYOUT_CONTIGUOUS, 17); /* three fit, the fourth is refused */
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer, pool), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *trouble = NULL;
        ck_assert_int_eq(pthread_join(threads[i], &trouble), 0);
        ck_assert_ptr_null(trouble);
    }
    audit_ok(pool);
    ck_assert_uint_eq(info_of(pool).free_count, 17);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
}
END_TEST

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 120);
    suite_add_tcase(suite, tc);
    return tc;
}

static Suite *pool_suite(void)
{
    Suite *suite = suite_create("pool");
    TCase *tc = add_case(suite, "slots");
    tcase_add_test(tc, alloc__hands_out_every_slot_once);
    tcase_add_test(tc, alloc__is_all_or_nothing);
    tcase_add_test(tc, alloc__bad_arguments);
    tcase_add_test(tc, alloc_and_free__never_allocate_memory);
    tcase_add_test(tc, alloc__gives_slots_back_when_the_backend_fails);
    tcase_add_test(tc, free__refuses_stale_null_and_double_handles_and_frees_nothing);
    tcase_add_test(tc, check__knows_live_handles_alone);
    tcase_add_test(tc, slot__of_unknown_or_free_ids_is_stale);
    tcase_add_test(tc, generation__wraps);
    tcase_add_test(tc, owner__tags_are_counted);
    tcase_add_test(tc, owner__refuses_bad_arguments_and_stale_handles);
    tcase_add_test(tc, ids__are_checked_in_bulk);
    tcase_add_test(tc, destroy__is_refused_while_in_use);
    tcase_add_test(tc, hold__leaves_slots_to_the_holder);
    tc = add_case(suite, "audit");
    tcase_add_test(tc, audit__refuses_null);
    tcase_add_test(tc, audit__sees_every_planted_fault);
    tcase_add_test(tc, model__random_calls_agree);
    tcase_add_test(tc, threads__share_a_pool);
    add_pool_memory_tests(suite);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(pool_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of statecached that tell others what is saved, without sockets: bytes of events, hashes
 * of states, the mirror, kept batches. Allocations of these parts are wrapped (-Wl,--wrap), so that
 * each can fail. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "events_mirror.h"
#include "events_replay.h"
#include "events_wire.h"
#include "wire/fault.h"

/* ---- memory that fails ---- */

static uint64_t allocations, fail_at; /* 0: none */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

static bool fails(void)
{
    return ++allocations == fail_at;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails() ? NULL : __real_realloc(memory, bytes);
}

static void arm(uint64_t n)
{
    allocations = 0;
    fail_at = n;
}

#define ok(call) ck_assert_msg((call) == SC_OK, "%s: %s", #call, sc_fault_last()->text)

/* ---- bytes ---- */

/* Published: a recorded batch of vLLM 0.26, encoded again; a recurrent state that is stored and
 * removed, and all that is cleared, as maps and as arrays. */
static const char recorded_hex[] =
    "93cb41daa8dbe0359fe7918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfdab89b"
    "aa7b5857c0b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc0010ce0002505ccd0368ccc6"
    "cd2368cd0176cd0117cd1a42cd013bcd15f01ece0002505dccc6ce0002505cce00012d23ccc6ce00025073aa626c6f"
    "636b5f73697a6510a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b"
    "65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74"
    "696f6e00";
static const char maps_hex[] =
    "93cb41da305498100000938aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf84b146"
    "b151d55111b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73"
    "697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a967726f75705f69647801b2"
    "6b765f63616368655f737065635f6b696e64a56d616d626184a474797065ac426c6f636b52656d6f766564ac626c6f"
    "636b5f68617368657391cf84b146b151d55111a66d656469756da3475055a967726f75705f6964780181a474797065"
    "b0416c6c426c6f636b73436c656172656400";
static const char arrays_hex[] =
    "93cb41da305498100000939cab426c6f636b53746f72656491cf84b146b151d55111c0940102030404c0a3475055c0"
    "c001a56d616d6261c094ac426c6f636b52656d6f76656491cf84b146b151d55111a34750550191b0416c6c426c6f63"
    "6b73436c656172656400";

static void same_bytes(const msgpack_sbuffer *payload, const char *hex)
{
    char text[1024] = "";
    ck_assert_uint_lt(2 * payload->size, sizeof text);
    for (size_t i = 0; i < payload->size; i++) {
        (void)snprintf(text + 2 * i, 3, "%02x", (uint8_t)payload->data[i]);
    }
    ck_assert_str_eq(text, hex);
}

static uint64_t hash_of(const int32_t *tokens, uint32_t count, uint32_t block,
    const sc_mark *marks, uint32_t mark_count, uint64_t adapter)
{
    struct sd_mirror mirror;
    const struct sd_state *state = NULL;
    const sc_event event = {.number = 1, .kind = SC_EVENT_STORED, .copy = 1, .tokens = tokens,
        .len = count, .marks = marks, .mark_count = mark_count, .adapter_id = adapter};
    sd_mirror_init(&mirror, block);
    ok(sd_mirror_store(&mirror, &event, &state));
    uint64_t hash = state->hash;
    sd_mirror_clear(&mirror);
    return hash;
}

static void three_events(struct sd_wire_batch *batch, msgpack_sbuffer *payload, sc_status *status)
{
    static const int32_t tokens[] = {1, 2, 3, 4};
    const struct sd_wire_stored stored = {.hash = hash_of(tokens, 4, 4, NULL, 0, 0),
        .tokens = tokens, .token_count = 4, .medium = "GPU", .adapter = ""};
    sd_wire_stored(batch, &stored);
    sd_wire_removed(batch, stored.hash, "GPU");
    sd_wire_cleared(batch);
    *status = sd_wire_end(batch, 1757500000.25, payload);
}

START_TEST(wire__bytes_are_the_published_ones)
{
    for (int arrays = 0; arrays < 2; arrays++) {
        struct sd_wire_batch batch;
        msgpack_sbuffer payload;
        sc_status status = SC_OK;
        const struct sd_wire_form form = {.arrays = arrays, .group = 1, .kind = "mamba"};
        sd_wire_begin(&batch, &form);
        for (int again = 0; again < 2; again++) {
            three_events(&batch, &payload, &status);
            ok(status);
            same_bytes(&payload, arrays ? arrays_hex : maps_hex);
            msgpack_sbuffer_destroy(&payload);
        }
        sd_wire_free(&batch);
    }
}
END_TEST

START_TEST(wire__bytes_are_those_of_a_recording)
{
    static const int32_t tokens[] = {151644, 872, 198, 9064, 374, 279, 6722, 315, 5616, 30, 151645,
        198, 151644, 77091, 198, 151667};
    const struct sd_wire_stored stored = {.hash = UINT64_C(15760518052499183552),
        .has_extra = true, .tokens = tokens, .token_count = 16, .medium = "GPU", .adapter = ""};
    const struct sd_wire_form form = {.kind = "full_attention"};
    struct sd_wire_batch batch;
    msgpack_sbuffer payload;
    sd_wire_begin(&batch, &form);
    sd_wire_stored(&batch, &stored);
    ok(sd_wire_end(&batch, 1789095808.8378847, &payload));
    same_bytes(&payload, recorded_hex);
    msgpack_sbuffer_destroy(&payload);
    sd_wire_free(&batch);
}
END_TEST

START_TEST(wire__a_batch_without_memory_is_none)
{
    uint64_t failed = 0;
    for (uint64_t n = 1;; n++) {
        struct sd_wire_batch batch;
        msgpack_sbuffer payload;
        sc_status status = SC_OK;
        const struct sd_wire_form form = {.group = 1, .kind = "mamba"};
        int32_t tokens[3000];
        for (uint32_t i = 0; i < 3000; i++) tokens[i] = 100000;
        const struct sd_wire_stored stored = {.tokens = tokens, .token_count = 3000,
            .medium = "GPU", .adapter = "7/1"};
        sd_wire_begin(&batch, &form);
        arm(n);
        sd_wire_stored(&batch, &stored);
        sd_wire_stored(&batch, &stored);
        status = sd_wire_end(&batch, 1, &payload);
        bool done = allocations < n;
        arm(0);
        if (status == SC_OK) msgpack_sbuffer_destroy(&payload);
        ck_assert_int_eq(status, done ? SC_OK : SC_ERR_NO_MEMORY);
        failed += !done;
        three_events(&batch, &payload, &status); /* and the next one is whole */
        ok(status);
        same_bytes(&payload, maps_hex);
        msgpack_sbuffer_destroy(&payload);
        sd_wire_free(&batch);
        if (done) break;
    }
    ck_assert_uint_gt(failed, 2);
}
END_TEST

/* ---- hashes ---- */

START_TEST(hash__is_that_of_vllm)
{
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};
    ck_assert_uint_eq(hash_of(tokens, 4, 4, NULL, 0, 0), UINT64_C(0x84b146b151d55111));
    ck_assert_uint_eq(hash_of(tokens, 8, 4, NULL, 0, 0), UINT64_C(0xd43b57df56b58fb1));
}
END_TEST

/* However the path came to be, and wherever it was cut. */
START_TEST(hash__depends_on_the_prefix_alone)
{
    int32_t tokens[100];
    const sc_mark marks[] = {{3, {1}}, {37, {2}}, {38, {3}}};
    for (int32_t i = 0; i < 100; i++) tokens[i] = 300 * i - 5;
    uint64_t whole = hash_of(tokens, 100, 16, marks, 3, 7);
    for (uint32_t cut = 1; cut < 100; cut++) {
        struct sd_mirror mirror;
        const struct sd_state *state = NULL;
        uint32_t first = 0;
        while (first < 3 && marks[first].at < cut) first++;
        sc_event event = {.number = 1, .kind = SC_EVENT_STORED, .copy = 1, .tokens = tokens,
            .len = cut, .marks = marks, .mark_count = first, .adapter_id = 7};
        sd_mirror_init(&mirror, 16);
        ok(sd_mirror_store(&mirror, &event, &state));
        event = (sc_event){.number = 2, .kind = SC_EVENT_STORED, .copy = 2, .base = 1,
            .base_len = cut, .tokens = tokens + cut, .len = 100, .marks = marks + first,
            .mark_count = 3 - first, .adapter_id = 7};
        ok(sd_mirror_store(&mirror, &event, &state));
        ck_assert_uint_eq(state->hash, whole);
        sd_mirror_clear(&mirror);
    }
}
END_TEST

START_TEST(report_133__namespaces_are_in_the_hash)
{
    static const int32_t tokens[40];
    const sc_mark one = {0, {1}}, other = {0, {2}}, later = {39, {1}};
    const uint64_t hashes[] = {hash_of(tokens, 40, 16, NULL, 0, 0),
        hash_of(tokens, 40, 16, &one, 1, 0), hash_of(tokens, 40, 16, &other, 1, 0),
        hash_of(tokens, 40, 16, &later, 1, 0), hash_of(tokens, 40, 16, NULL, 0, 1),
        hash_of(tokens, 40, 16, NULL, 0, 2), hash_of(tokens, 39, 16, NULL, 0, 0),
        hash_of(tokens, 32, 16, NULL, 0, 0), hash_of(tokens, 16, 16, NULL, 0, 0)};
    for (uint32_t i = 0; i < sizeof hashes / sizeof *hashes; i++) {
        for (uint32_t j = 0; j < i; j++) ck_assert_uint_ne(hashes[i], hashes[j]);
    }
}
END_TEST

/* ---- mirror ---- */

/* A tree of three, each also in host memory; then they go, the middle one first. */
static sc_status play(struct sd_mirror *mirror, uint64_t *hashes)
{
    static const int32_t tokens[60];
    static const sc_mark mark = {25, {9}};
    const struct sd_state *state = NULL;
    for (uint32_t i = 0; i < 3; i++) {
        sc_event event = {.number = 1, .kind = SC_EVENT_STORED, .copy = i + 1, .base = i,
            .base_len = 20 * i, .len = 20 * (i + 1), .tokens = tokens + 20 * i,
            .marks = i == 1 ? &mark : NULL, .mark_count = i == 1};
        SC_PASS(sd_mirror_store(mirror, &event, &state));
        hashes[i] = state->hash;
        event = (sc_event){.number = 2, .kind = SC_EVENT_STORED, .tier = SC_TIER_HOST,
            .copy = 11 + i, .base = i + 1, .base_len = 20 * (i + 1), .len = 20 * (i + 1)};
        SC_PASS(sd_mirror_store(mirror, &event, &state));
    }
    return SC_OK;
}

static void take(struct sd_mirror *mirror, uint64_t copy, uint32_t tier, uint64_t expected)
{
    const sc_event event = {.number = 3, .kind = SC_EVENT_REMOVED, .tier = tier, .copy = copy};
    uint64_t hash = 0;
    ok(sd_mirror_remove(mirror, &event, &hash));
    ck_assert_uint_eq(hash, expected);
}

START_TEST(mirror__states_stay_as_long_as_others_continue_them)
{
    struct sd_mirror mirror;
    uint64_t hashes[3];
    const int32_t *tokens = NULL;
    const sc_mark *marks = NULL;
    uint32_t mark_count = 0;
    sd_mirror_init(&mirror, 16);
    ok(play(&mirror, hashes));
    ck_assert_uint_eq(mirror.state_count, 3);
    ck_assert_uint_eq(mirror.copy_count, 6);
    take(&mirror, 2, SC_TIER_DEVICE, hashes[1]);
    take(&mirror, 12, SC_TIER_HOST, hashes[1]);
    ck_assert_uint_eq(mirror.state_count, 3);
    ck_assert_ptr_eq(sd_state_base(mirror.last), mirror.first);
    ok(sd_state_path(&mirror, mirror.last, 20, &tokens, &marks, &mark_count));
    ck_assert_uint_eq(mark_count, 1);
    ck_assert_uint_eq(marks[0].at, 25);
    take(&mirror, 13, SC_TIER_HOST, hashes[2]);
    take(&mirror, 3, SC_TIER_DEVICE, hashes[2]);
    ck_assert_uint_eq(mirror.state_count, 1);
    take(&mirror, 1, SC_TIER_DEVICE, hashes[0]);
    take(&mirror, 11, SC_TIER_HOST, hashes[0]);
    ck_assert_ptr_null(mirror.first);
    ck_assert_ptr_null(mirror.last);
    sd_mirror_clear(&mirror);
}
END_TEST

START_TEST(mirror__what_fits_nothing_is_refused)
{
    struct sd_mirror mirror;
    uint64_t hashes[3], hash = 0;
    static const int32_t tokens[60];
    const struct sd_state *state = NULL;
    const sc_event bad[] = {
        {.copy = 1, .len = 20, .tokens = tokens},                             /* there already */
        {.copy = 50, .base = 49, .base_len = 20, .len = 40, .tokens = tokens}, /* no such base */
        {.copy = 50, .base = 1, .base_len = 21, .len = 40, .tokens = tokens},  /* not its length */
        {.copy = 50, .base = 1, .base_len = 20, .len = 19, .tokens = tokens},
        {.copy = 50, .len = 0}};
    sd_mirror_init(&mirror, 16);
    ok(play(&mirror, hashes));
    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(sd_mirror_store(&mirror, &bad[i], &state), SC_ERR_CORRUPT);
    }
    ck_assert_int_eq(sd_mirror_remove(&mirror, &(sc_event){.copy = 50}, &hash), SC_ERR_CORRUPT);
    ck_assert_uint_eq(mirror.copy_count, 6);
    sd_mirror_clear(&mirror);
}
END_TEST

START_TEST(mirror__each_allocation_may_fail)
{
    uint64_t hashes[3], failed = 0;
    for (uint64_t n = 1;; n++) {
        struct sd_mirror mirror;
        sd_mirror_init(&mirror, 16);
        arm(n);
        sc_status status = play(&mirror, hashes);
        bool done = allocations < n;
        arm(0);
        ck_assert_int_eq(status, done ? SC_OK : SC_ERR_NO_MEMORY);
        failed += !done;
        sd_mirror_clear(&mirror);
        ok(play(&mirror, hashes));
        ck_assert_uint_eq(mirror.state_count, 3);
        sd_mirror_clear(&mirror);
        if (done) break;
    }
    ck_assert_uint_gt(failed, 15);
}
END_TEST

/* ---- kept batches ---- */

static void keep(struct sd_replays *replays, uint64_t number, size_t bytes)
{
    struct sd_kept *kept = sd_kept_make(number, calloc(1, bytes), bytes);
    ck_assert_ptr_nonnull(kept);
    sd_replays_keep(replays, kept);
    sd_kept_release(kept);
}

START_TEST(kept__no_more_than_so_many_and_so_large)
{
    struct sd_replays replays;
    uint64_t oldest = 0, newest = 0;
    ok(sd_replays_init(&replays, 4, 1000));
    ck_assert(!sd_replays_span(&replays, &oldest, &newest));
    for (uint64_t i = 0; i < 10; i++) keep(&replays, i, 10);
    ck_assert(sd_replays_span(&replays, &oldest, &newest));
    ck_assert(oldest == 6 && newest == 9);
    keep(&replays, 10, 975);
    ck_assert(sd_replays_span(&replays, &oldest, &newest));
    ck_assert(oldest == 8 && newest == 10);
    keep(&replays, 11, 5000); /* the newest stays, whatever its size */
    ck_assert(sd_replays_span(&replays, &oldest, &newest));
    ck_assert(oldest == 11 && newest == 11);
    keep(&replays, 12, 10);
    ck_assert(sd_replays_span(&replays, &oldest, &newest));
    ck_assert(oldest == 12 && newest == 12);
    sd_replays_free(&replays);
    arm(1);
    ck_assert_int_eq(sd_replays_init(&replays, 4, 1000), SC_ERR_NO_MEMORY);
    arm(1);
    ck_assert_ptr_null(sd_kept_make(1, NULL, 0));
    arm(0);
}
END_TEST

static Suite *events_suite(void)
{
    Suite *suite = suite_create("events");
    TCase *tc = tcase_create("events");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, wire__bytes_are_the_published_ones);
    tcase_add_test(tc, wire__bytes_are_those_of_a_recording);
    tcase_add_test(tc, wire__a_batch_without_memory_is_none);
    tcase_add_test(tc, hash__is_that_of_vllm);
    tcase_add_test(tc, hash__depends_on_the_prefix_alone);
    tcase_add_test(tc, report_133__namespaces_are_in_the_hash);
    tcase_add_test(tc, mirror__states_stay_as_long_as_others_continue_them);
    tcase_add_test(tc, mirror__what_fits_nothing_is_refused);
    tcase_add_test(tc, mirror__each_allocation_may_fail);
    tcase_add_test(tc, kept__no_more_than_so_many_and_so_large);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(events_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Field reports about records on disk: of which a part is gone, or that not all ranks have.
 * docs/field-reports.md is the table; report_N is entry N there. */
#include "test_engine_tiers.h"

enum { N = 64 };

static struct tiered t;
static struct rig_options options;

static void prepare(void)
{
    options = (struct rig_options)RIG_OPTIONS_INIT;
    options.page = 16;
    options.slots = 8;
    options.kv_ids = 4096;
    options.cache.save_flags = SC_SAVE_END;
    t.rig = NULL;
}

static const int32_t *prompt(uint32_t i)
{
    static int32_t tokens[8 * N];
    rig_fill(tokens, 8 * N, 10000 * (int32_t)(i + 1));
    return tokens;
}

/* ---- a record on disk has a state and KV: both or nothing ---- */

/* Where these eight bytes lie in the extent file. */
static off_t find_word(int fd, uint64_t word)
{
    enum { WORDS = 512, WORD_BYTES = 8 };
    uint64_t words[WORDS];
    for (off_t at = 0; pread(fd, words, sizeof words, at) == sizeof words;
         at += WORDS * WORD_BYTES) {
        for (int i = 0; i < WORDS; i++) {
            if (words[i] == word) return at + i * WORD_BYTES;
        }
    }
    return -1;
}

enum harm { HARM_STATE, HARM_KV, HARM_CUT };

/* The record of tokens [from, to) loses a bit of its state or of its KV, or the file ends there. */
static void harm_record(struct tiered *of, const int32_t *tokens, uint32_t from, uint32_t to,
    enum harm how)
{
    char path[600];
    uint64_t kv[8 * N];
    const sc_history history = {to, SC_FORM_KIND_PREFILL};
    uint64_t state = rig_cold(of->rig, tokens, &history, 1, kv);
    (void)snprintf(path, sizeof path, "%s/extent-00000.dat", of->folder);
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    off_t at = find_word(fd, how == HARM_STATE ? rig_hash(state, 0) : kv[from]);
    ck_assert_int_ge(at, 0);
    if (how == HARM_CUT) {
        ck_assert_int_eq(ftruncate(fd, at / 4096 * 4096), 0);
    } else {
        uint8_t byte = 0;
        ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
        byte ^= 16;
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    }
    (void)close(fd);
}

START_TEST(report_07__a_record_without_one_of_its_parts_is_no_hit)
{
    struct req req;
    prepare();
    tiered_init(&t, &options, 0, 64, SC_TIER_WRITE_THROUGH);
    for (uint32_t turn = 1; turn <= 2; turn++) (void)tiered_serve(&t, prompt(0), turn * N);
    tiered_clear_device(&t);
    tiered_stop(&t);
    harm_record(&t, prompt(0), N, 2 * N, (enum harm)_i);
    tiered_start(&t, &options);
    uint32_t resumed = tiered_open(&t, &req, prompt(0), 2 * N + 1);
    if (resumed == 0) { /* noticed when it was read, not at opening */
        ck_assert_int_eq(rig_info(t.rig, req.lease).reason, SC_REASON_TIER_FAILED);
        ck_assert_uint_eq(rig_info(t.rig, req.lease).kv_page_count, 0);
    } else {
        ck_assert_uint_eq(resumed, N);
    }
    req_close(t.rig, &req, 0, SC_RELEASE_DISCARD);
    tiered_clear_device(&t);
    ck_assert_uint_eq(rig_lookup(t.rig, prompt(0), 2 * N + 1).state_len[SC_TIER_DISK], N);
    ck_assert_uint_eq(tiered_serve(&t, prompt(0), 2 * N + 1), N); /* the last complete one */
    tiered_deinit(&t);
}
END_TEST

/* ---- ranks ---- */

static struct tiered ranks[2];

static void ranks_tiers(void)
{
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r].options.folder = ranks[r].folder;
        ranks[r].options.allocator = &ranks[r].rig->fa.allocator;
        rig_ok(sc_tiers_create_hooked(&ranks[r].options, &ranks[r].hooks, &ranks[r].tiers));
    }
}

static void ranks_caches(void)
{
    for (uint32_t r = 0; r < 2; r++) {
        struct rig_options with = options;
        sc_cache_options cache;
        with.cache.tiers = ranks[r].tiers;
        with.cache.kv_mover = &ranks[r].mover;
        rig_cache_options(ranks[r].rig, &with, &cache);
        rig_ok(sc_cache_create(&cache, &ranks[r].rig->cache));
        rig_ok(sc_namespace_open(ranks[r].rig->cache, NULL, 0, 0, &ranks[r].rig->ns));
    }
}

static bool same_name(const sc_stored *a, const sc_stored *b)
{
    return a->name[0] == b->name[0] && a->name[1] == b->name[1];
}

/* What both have, and how much that is. */
static uint32_t ranks_agree(void)
{
    sc_stored have[2][16], common[16];
    uint32_t counts[2], count = 0;
    for (uint32_t r = 0; r < 2; r++) {
        rig_ok(sc_tiers_stored(ranks[r].tiers, have[r], 16, &counts[r]));
    }
    for (uint32_t i = 0; i < counts[0]; i++) {
        for (uint32_t j = 0; j < counts[1]; j++) {
            if (same_name(&have[0][i], &have[1][j])) common[count++] = have[0][i];
        }
    }
    for (uint32_t r = 0; r < 2; r++) rig_ok(sc_tiers_agree(ranks[r].tiers, common, count));
    return count;
}

/* All transfers end, and each is applied on both as it ended on the worse of them. */
static void ranks_settle(void)
{
    while (rig_stats(ranks[0].rig).transfers_alive > 0) {
        sc_done done[2][16];
        uint32_t alive = (uint32_t)rig_stats(ranks[0].rig).transfers_alive;
        ck_assert_uint_eq(rig_stats(ranks[1].rig).transfers_alive, alive);
        ck_assert_uint_le(alive, 16);
        for (uint32_t r = 0; r < 2; r++) {
            for (uint32_t got = 0; got < alive;) {
                uint32_t count = tiered_poll(&ranks[r], done[r] + got, 16 - got);
                got += count;
                if (count == 0) tiered_pause();
            }
        }
        for (uint32_t i = 0; i < alive; i++) {
            uint32_t j = 0;
            while (j < alive && done[1][j].ticket != done[0][i].ticket) j++;
            ck_assert_uint_lt(j, alive);
            if (done[1][j].status != SC_OK) done[0][i].status = done[1][j].status;
        }
        for (uint32_t r = 0; r < 2; r++) {
            rig_ok(sc_cache_apply(ranks[r].rig->cache, done[0], alive, 0));
            rig_verify(ranks[r].rig);
        }
    }
}

/* The same request on both: everything about it is the same. Returns what it resumed. */
static uint32_t ranks_serve(const int32_t *tokens, uint32_t count, sc_reason *reason_out)
{
    struct req req[2];
    sc_lease_info info[2];
    for (uint32_t r = 0; r < 2; r++) rig_ok(req_try(ranks[r].rig, &req[r], tokens, count));
    for (uint32_t part = 0; part < 2; part++) {
        for (uint32_t r = 0; r < 2; r++) info[r] = rig_info(ranks[r].rig, req[r].lease);
        ck_assert_uint_eq(req[0].lease.id, req[1].lease.id);
        ck_assert_int_eq(info[0].state, info[1].state);
        ck_assert_uint_eq(info[0].resume_len, info[1].resume_len);
        ck_assert_uint_eq(info[0].restore_len, info[1].restore_len);
        ck_assert_uint_eq(info[0].restore_ticket, info[1].restore_ticket);
        ck_assert_int_eq(info[0].working_slot, info[1].working_slot);
        ck_assert_int_eq(info[0].source_slot, info[1].source_slot);
        ck_assert_int_eq(info[0].reason, info[1].reason);
        if (part == 0) ranks_settle();
    }
    *reason_out = info[0].reason;
    for (uint32_t r = 0; r < 2; r++) {
        req_start(ranks[r].rig, &req[r]);
        rig_check_lease(ranks[r].rig, &req[r]);
        req_run(ranks[r].rig, &req[r], 64);
        req_close(ranks[r].rig, &req[r], 0, SC_RELEASE_KEEP);
    }
    ranks_settle();
    return info[0].resume_len;
}

static void ranks_clear(void)
{
    sc_room got;
    for (uint32_t r = 0; r < 2; r++) {
        rig_ok(sc_cache_evict(ranks[r].rig->cache, UINT32_MAX, UINT32_MAX, &got));
        rig_drain(ranks[r].rig);
    }
}

/* The rank's disk has no record of `len` tokens any more. */
static void forget_record(struct tiered *rank, uint32_t len)
{
    struct sc_store_options store = tier_options(rank->folder);
    struct sc_store_iter *iter = NULL;
    struct sc_store_edge edge;
    struct sc_store *disk = tier_open(&store);
    ck_assert_int_eq(sc_store_iter_open(disk, &iter), SC_OK);
    while (sc_store_iter_next(iter, &edge) == SC_OK) {
        if (edge.info.token_count != len) continue;
        ck_assert_int_eq(sc_store_drop(disk, edge.info.id), SC_OK);
    }
    sc_store_iter_close(iter);
    sc_store_close(disk);
}

/* Of three turns on disk rank 0 has {1, 3}, rank 1 {1, 2}: both resume 1, and go on alike. `_i` 0:
 * the others are gone after a restart; 1: they cannot be read. */
START_TEST(report_104__ranks_resume_what_all_of_them_have)
{
    sc_reason reason = SC_REASON_NONE;
    prepare();
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r].rig = NULL;
        tiered_prepare(&ranks[r], &options, 0, 64, SC_TIER_WRITE_THROUGH);
    }
    ranks_tiers();
    ck_assert_uint_eq(ranks_agree(), 0);
    ranks_caches();
    for (uint32_t turn = 1; turn <= 3; turn++) {
        ck_assert_uint_eq(ranks_serve(prompt(0), turn * N, &reason), (turn - 1) * N);
    }
    for (uint32_t r = 0; r < 2; r++) tiered_stop(&ranks[r]);
    for (uint32_t r = 0; r < 2; r++) {
        if (_i) harm_record(&ranks[r], prompt(0), (r + 1) * N, (r + 2) * N, HARM_KV);
        else forget_record(&ranks[r], (r + 2) * N);
    }
    ranks_tiers();
    ck_assert_uint_eq(ranks_agree(), _i ? 3 : 1);
    ranks_caches();
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_uint_eq(rig_stats(ranks[r].rig).tier_loaded, _i ? 3 : 1);
        ck_assert_uint_eq(rig_lookup(ranks[r].rig, prompt(0), 3 * N + 1).state_len[SC_TIER_DISK],
            _i ? 3 * N : N);
    }
    uint32_t resumed = 0, asked = 0;
    for (; resumed == 0; asked++) { /* what fails on one is forgotten on both */
        ck_assert_uint_lt(asked, 4);
        struct req req[2];
        for (uint32_t r = 0; r < 2; r++) {
            rig_ok(req_try(ranks[r].rig, &req[r], prompt(0), 3 * N + 1));
        }
        ranks_settle();
        for (uint32_t r = 0; r < 2; r++) {
            uint32_t len = rig_info(ranks[r].rig, req[r].lease).resume_len;
            if (r > 0) ck_assert_uint_eq(len, resumed);
            resumed = len;
            req_start(ranks[r].rig, &req[r]);
            rig_check_lease(ranks[r].rig, &req[r]);
            req_close(ranks[r].rig, &req[r], 0, SC_RELEASE_DISCARD);
        }
    }
    ck_assert_uint_eq(resumed, N);
    for (uint32_t i = 0; i < 30; i++) { /* they go on alike */
        if (i % 7 == 0) ranks_clear();
        (void)ranks_serve(prompt(i % 5), N + 17 * (i % 9), &reason);
    }
    for (uint32_t r = 0; r < 2; r++) {
        tiered_stop(&ranks[r]);
        tiered_free(&ranks[r]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reports_disk");
    TCase *tc = tcase_create("disk");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, report_07__a_record_without_one_of_its_parts_is_no_hit, 0, 3);
    tcase_add_loop_test(tc, report_104__ranks_resume_what_all_of_them_have, 0, 2);
    suite_add_tcase(suite, tc);
    return rig_main(suite);
}

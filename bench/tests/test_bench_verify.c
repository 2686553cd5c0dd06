/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts in the served model, forks and tenants in the workload. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "ideal.h"
#include "served_model.h"
#include "test_bench.h"
#include "witness.h"
#include "workload.h"

/* A model with states and pages of its own: slot 1 is the base, 2 is written, 3 is saved. */
struct bed {
    struct served_model *model;
    sc_pool *pool;
    sc_slot slots[3];
    struct paged_kv kv;
    int32_t pages[2][8];
    int32_t tokens[32];
    size_t bytes;
    struct served_space *spaces;
};

static void bed_open(struct bed *bed, int variant)
{
    struct served_options options = {.kind = variant & 1 ? SC_K_KIND_KDA : SC_K_KIND_GDN,
        .state_dtype = variant & 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32, .layers = 4,
        .attention_every = 2, .hidden = 16, .heads = 1, .v_heads = 2, .head_dim = 8,
        .attention_heads = 1, .attention_dim = 8, .mlp = 8, .vocab = 32, .chunk = 16, .seed = 5};
    sc_pool_options pool = SC_POOL_OPTIONS_INIT;
    ck_assert_int_eq(served_create(&options, &bed->model), SC_OK);
    pool.schema = bed->model->schema;
    pool.layout = variant & 1 ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    pool.slot_count = 3;
    ck_assert_int_eq(sc_pool_create(&pool, &bed->pool), SC_OK);
    ck_assert_int_eq(sc_pool_alloc(bed->pool, 3, SC_OWNER_WORKING, bed->slots), SC_OK);
    paged_kv_init(&bed->kv, bed->model, 4, 16);
    for (int32_t i = 0; i < 8; i++) {
        bed->pages[0][i] = i;
        bed->pages[1][i] = 15 - i;
    }
    for (int32_t i = 0; i < 32; i++)
        bed->tokens[i] = (7 * i + 3) % 32;
    bed->bytes = state_bytes(bed->pool);
    bed->spaces = served_spaces_create();
}

static void bed_close(struct bed *bed)
{
    ck_assert_int_eq(sc_pool_free(bed->pool, bed->slots, 3), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(bed->pool), SC_OK);
    paged_kv_deinit(&bed->kv);
    served_spaces_destroy(bed->spaces, NULL);
    served_destroy(bed->model);
}

static void bed_run(struct bed *bed, const struct served_row *row,
    const struct served_save *saves)
{
    struct served_forward forward = {.rows = row, .row_count = 1, .saves = saves,
        .pool = bed->pool, .kv = &bed->kv, .threads = 1, .spaces = bed->spaces};
    served_run(bed->model, &forward);
}

enum { BASE = 13, DRAFTS = 5, WIDTH = 16 };

/* Tokens [0, BASE) prefilled into slot 1; then `count` decoded one by one into slot 2. */
static void decode_plainly(struct bed *bed, uint32_t count, float *hidden, unsigned char *state)
{
    int32_t base = (int32_t)bed->slots[0].id, dest = (int32_t)bed->slots[1].id;
    struct served_row row = {.tokens = bed->tokens, .to = BASE, .dest = base,
        .pages = bed->pages[0]};
    bed_run(bed, &row, NULL);
    for (uint32_t i = 0; i < count; i++) {
        row = (struct served_row){.tokens = bed->tokens + BASE + i, .from = BASE + i,
            .to = BASE + i + 1, .decode = true, .source = i ? dest : base, .dest = dest,
            .pages = bed->pages[0], .hidden_out = hidden + (size_t)i * WIDTH};
        bed_run(bed, &row, NULL);
    }
    state_read(bed->pool, dest, state);
}

/* The same by one verified row, of which `count` tokens are right; the state after the first of
 * them is saved. */
static void verify_and_fold(struct bed *bed, uint32_t count, float *hidden, unsigned char *state)
{
    int32_t base = (int32_t)bed->slots[0].id, dest = (int32_t)bed->slots[1].id;
    struct served_save saves[2] = {{BASE + 1, (int32_t)bed->slots[2].id}, {BASE + count + 1, -1}};
    struct served_tape tape;
    struct served_row row = {.tokens = bed->tokens, .to = BASE, .dest = base,
        .pages = bed->pages[1]};
    bed_run(bed, &row, NULL);
    unsigned char *before = malloc(bed->bytes), *after = malloc(bed->bytes);
    state_read(bed->pool, dest, before);
    served_tape_init(&tape, bed->model, DRAFTS);
    row = (struct served_row){.tokens = bed->tokens + BASE, .from = BASE, .to = BASE + DRAFTS,
        .source = base, .dest = dest, .pages = bed->pages[1], .save_count = 2, .tape = &tape,
        .hidden_out = hidden};
    bed_run(bed, &row, saves);
    state_read(bed->pool, dest, after);
    ck_assert_mem_eq(before, after, bed->bytes); /* nothing but the tape was written */
    struct served_forward forward = {.rows = &row, .row_count = 1, .saves = saves,
        .pool = bed->pool, .kv = &bed->kv, .threads = 1};
    served_fold(bed->model, &forward, &row, BASE + count);
    state_read(bed->pool, dest, state);
    served_tape_deinit(&tape);
    free(before);
    free(after);
}

START_TEST(verify__fold_leaves_what_decoding_leaves)
{
    struct bed bed;
    bed_open(&bed, _i);
    float plain[DRAFTS * WIDTH], verified[DRAFTS * WIDTH];
    unsigned char *first = malloc(bed.bytes), *state = malloc(bed.bytes),
                  *folded = malloc(bed.bytes), *saved = malloc(bed.bytes);
    decode_plainly(&bed, 1, plain, first);
    for (uint32_t count = 1; count <= DRAFTS; count++) {
        decode_plainly(&bed, count, plain, state);
        verify_and_fold(&bed, count, verified, folded);
        ck_assert_mem_eq(plain, verified, count * WIDTH * sizeof *plain);
        ck_assert_mem_eq(state, folded, bed.bytes);
        state_read(bed.pool, (int32_t)bed.slots[2].id, saved);
        ck_assert_mem_eq(first, saved, bed.bytes);
        for (uint32_t i = 0; i < BASE + count; i++)
            ck_assert(kv_token_hash(bed.model, &bed.kv, bed.pages[0], i) ==
                kv_token_hash(bed.model, &bed.kv, bed.pages[1], i));
    }
    free(first);
    free(state);
    free(folded);
    free(saved);
    bed_close(&bed);
}
END_TEST

START_TEST(witness__sample_has_some_of_each_flag)
{
    enum { WANTED = 30 };
    struct bed bed;
    struct witness_set set;
    uint32_t count, by[WITNESS_FLAG_COUNT] = {0};
    bed_open(&bed, 0);
    witness_set_init(&set, bed.model, WANTED, 1);
    for (size_t i = 0; i < 2000; i++) { /* one in a hundred is a fork, was readmitted, ... */
        unsigned flags = i % 100 < 4 ? 1u << i % 100 : 0;
        struct witness *w = witness_admit(&set, i, flags == WITNESS_FORKED ? AT_FORK
            : AT_DECODED_END, flags, false);
        if (!w)
            continue;
        w->flags |= i % 3 ? WITNESS_DRAFTED : WITNESS_PREEMPTED;
        witness_stop(&set, w, true);
    }
    struct witness **sample = witness_sample(&set, &count);
    ck_assert_uint_eq(count, WANTED);
    for (uint32_t i = 0; i < count; i++)
        for (int bit = 0; bit < WITNESS_FLAG_COUNT; bit++)
            by[bit] += sample[i]->flags >> bit & 1;
    for (int bit = 0; bit < 3; bit++) /* have reservoirs of their own */
        ck_assert_uint_ge(by[bit], WANTED / 10);
    ck_assert_uint_ge(by[4], WANTED / 10); /* preempted */
    ck_assert_uint_ge(by[5], WANTED / 10); /* drafted */
    free(sample);
    witness_set_deinit(&set);
    bed_close(&bed);
}
END_TEST

START_TEST(workload__tenants_say_the_same_behind_a_mark)
{
    struct workload workload;
    struct generator_options options = GENERATOR_OPTIONS_INIT;
    sc_mark mark;
    uint32_t twins = 0;
    options.requests = 60;
    options.tenants = 3;
    workload_init(&workload, 512);
    generator_fill(&workload, &options);
    for (size_t i = 0; i < workload.request_count; i++) {
        const struct bench_request *a = &workload.requests[i];
        ck_assert_uint_ge(a->tenant, 1);
        ck_assert_uint_le(a->tenant, 3);
        ck_assert_uint_lt(a->mark_at, a->prompt_len);
        ck_assert_uint_eq(workload_mark(a, &mark), 1);
        ck_assert_uint_eq(mark.at, a->mark_at);
        if (a->pred >= 0) {
            ck_assert_uint_eq(a->tenant, workload.requests[a->pred].tenant);
            continue;
        }
        workload_materialize(&workload, i);
        for (size_t j = 0; j < i; j++) {
            const struct bench_request *b = &workload.requests[j];
            twins += b->pred < 0 && b->tenant != a->tenant && b->prompt_len == a->prompt_len &&
                !memcmp(a->tokens, b->tokens, a->prompt_len * sizeof *a->tokens);
        }
    }
    ck_assert_uint_gt(twins, 6);
    workload_free(&workload);
}
END_TEST

START_TEST(ideal__tenants_share_what_is_before_the_mark)
{
    enum { LEN = 12, MARK = 5 };
    int32_t tokens[LEN];
    for (int32_t i = 0; i < LEN; i++)
        tokens[i] = i;
    struct ideal *ideal = ideal_create(1, IDEAL_END | IDEAL_BRANCH);
    ideal_mark(ideal, MARK, 1);
    ck_assert_uint_eq(ideal_serve(ideal, tokens, LEN, LEN), 0);
    ideal_mark(ideal, MARK, 2);
    ck_assert_uint_eq(ideal_serve(ideal, tokens, LEN, LEN), 0); /* finds the branch point */
    ideal_mark(ideal, MARK, 3);
    ck_assert_uint_eq(ideal_serve(ideal, tokens, LEN, LEN), MARK);
    ideal_mark(ideal, MARK, 1);
    ck_assert_uint_eq(ideal_serve(ideal, tokens, LEN, LEN), MARK); /* a token is left, no state */
    ideal_destroy(ideal);
}
END_TEST

START_TEST(workload__forks_continue_their_parent)
{
    struct workload workload;
    struct generator_options options = GENERATOR_OPTIONS_INIT;
    options.requests = 40;
    workload_init(&workload, 512);
    generator_fill(&workload, &options);
    workload_add_forks(&workload, 0.5, 3, 1);
    size_t forks = workload.request_count - 40;
    ck_assert_uint_gt(forks, 30);
    ck_assert_uint_eq(forks % 3, 0);
    for (size_t i = 40; i < workload.request_count; i++) {
        struct bench_request *fork = &workload.requests[i];
        struct bench_request *parent = &workload.requests[fork->fork_of];
        ck_assert_uint_eq(fork->prompt_len, parent->prompt_len + fork->pred_output);
        ck_assert_uint_eq(fork->prompt_len + fork->output_len,
            parent->prompt_len + parent->output_len);
        ck_assert_uint_gt(fork->output_len, 0);
        if (parent->pred >= 0)
            continue;
        workload_materialize(&workload, (size_t)fork->fork_of);
        while (parent->known < parent->prompt_len + parent->output_len)
            parent->tokens[parent->known++] = 7;
        workload_materialize(&workload, i);
        ck_assert_mem_eq(fork->tokens, parent->tokens, fork->prompt_len * sizeof *fork->tokens);
        ck_assert_uint_eq(fork->known, fork->prompt_len);
    }
    workload_free(&workload);
}
END_TEST

void add_verify_cases(Suite *suite)
{
    TCase *tcase = tcase_create("verify");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, verify__fold_leaves_what_decoding_leaves, 0, 4);
    tcase_add_test(tcase, witness__sample_has_some_of_each_flag);
    tcase_add_test(tcase, workload__tenants_say_the_same_behind_a_mark);
    tcase_add_test(tcase, ideal__tenants_share_what_is_before_the_mark);
    tcase_add_test(tcase, workload__forks_continue_their_parent);
    suite_add_tcase(suite, tcase);
}

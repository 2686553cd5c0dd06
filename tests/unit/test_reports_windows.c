/* SPDX-License-Identifier: Apache-2.0 */
/* Field reports of conv windows (class D): prompts and chunks shorter than the window, and slots
 * that are wider than it. report_N is entry N of docs/field-reports.md. */
#include <check.h>
#include <math.h>

#include "kernels_rig.h"
#include "statecache/kernels_draft.h"
#include "support/check_main.h"

enum { WIDTH = 4, KEPT = WIDTH - 1, CHANNELS = 5, TOKENS = 12 };

static float weight[CHANNELS * WIDTH], x[TOKENS * CHANNELS], y[TOKENS * CHANNELS];

static void setup(void)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 36);
    for (size_t n = 0; n < CHANNELS * WIDTH; n++) weight[n] = (float)sc_prng_unit(&prng) - 0.5f;
    for (size_t n = 0; n < TOKENS * CHANNELS; n++) x[n] = (float)sc_prng_unit(&prng) - 0.5f;
    memset(y, 0xff, sizeof y);
}

/* Tokens from .. to of x in one call, from one slot to another. */
static void prefill(const struct rig_pool *pool, uint32_t from, uint32_t to, int32_t source,
    int32_t dest)
{
    int32_t start[2] = {0, (int32_t)(to - from)};
    sc_k_conv_prefill_params p = {.x = sc_host_devptr(x + from * CHANNELS),
        .y = sc_host_devptr(y + from * CHANNELS), .dtype = SC_DTYPE_F32,
        .weight = sc_host_devptr(weight), .weight_dtype = SC_DTYPE_F32, .act = SC_K_ACT_SILU,
        .channels = CHANNELS, .width = WIDTH, .token_count = to - from, .row_count = 1,
        .row_start = sc_host_devptr(start), .source = sc_host_devptr(&source),
        .dest = sc_host_devptr(&dest), .window = pool->slots};
    RIG_OK(sc_k_conv_prefill(NULL, &p, NULL));
}

static void update(const struct rig_pool *pool, uint32_t token, int32_t slot)
{
    sc_k_conv_update_params p = {.x = sc_host_devptr(x + token * CHANNELS),
        .y = sc_host_devptr(y + token * CHANNELS), .dtype = SC_DTYPE_F32,
        .weight = sc_host_devptr(weight), .weight_dtype = SC_DTYPE_F32, .act = SC_K_ACT_SILU,
        .channels = CHANNELS, .width = WIDTH, .row_count = 1, .source = sc_host_devptr(&slot),
        .dest = sc_host_devptr(&slot), .window = pool->slots};
    RIG_OK(sc_k_conv_update(NULL, &p, NULL));
}

/* Input `back` tokens before the end of `seen` tokens; zeros before the first. */
static float input(uint32_t seen, uint32_t back, size_t channel)
{
    return back > seen ? 0.0f : x[(seen - back) * CHANNELS + channel];
}

static void check_window(const float *window, uint32_t seen)
{
    for (uint32_t w = 0; w < KEPT; w++)
        for (size_t c = 0; c < CHANNELS; c++)
            ck_assert_msg(window[w * CHANNELS + c] == input(seen, KEPT - w, c),
                "after %u tokens, input %u of channel %zu is %g", seen, w, c,
                (double)window[w * CHANNELS + c]);
}

static void check_output(uint32_t token)
{
    for (size_t c = 0; c < CHANNELS; c++) {
        double sum = 0;
        for (uint32_t w = 0; w < WIDTH; w++)
            sum += (double)weight[c * WIDTH + w] * (double)input(token + 1, WIDTH - w, c);
        ck_assert_double_le(fabs((double)y[token * CHANNELS + c] - sum / (1 + exp(-sum))), 1e-6);
    }
}

START_TEST(report_36__a_short_prompt_leaves_a_whole_window)
{
    for (uint32_t prompt = 0; prompt <= 5; prompt++) {
        struct rig_pool pool = rig_pool(SC_DTYPE_F32, KEPT * CHANNELS, 3, 0, 0);
        prefill(&pool, 0, prompt, 0, 1);
        check_window(rig_slot(&pool, 1), prompt);
        for (uint32_t t = prompt; t < prompt + 5; t++) {
            update(&pool, t, 1);
            check_window(rig_slot(&pool, 1), t + 1);
        }
        for (uint32_t t = 0; t < prompt + 5; t++) check_output(t);
        free(pool.memory);
    }
}
END_TEST

/* All 64 ways to cut a prompt of seven tokens. */
START_TEST(report_38__every_cut_of_a_prompt_gives_the_same)
{
    enum { PROMPT = 7 };
    float whole[PROMPT * CHANNELS];
    for (uint32_t cuts = 0; cuts < 1u << (PROMPT - 1); cuts++) {
        struct rig_pool pool = rig_pool(SC_DTYPE_F32, KEPT * CHANNELS, 3, 0, 0);
        memset(y, 0xff, sizeof y);
        for (uint32_t from = 0, to = 1; to <= PROMPT; to++) {
            if (to < PROMPT && !(cuts >> (to - 1) & 1)) continue;
            prefill(&pool, from, to, from ? 1 : 0, 1);
            from = to;
        }
        if (cuts == 0) memcpy(whole, y, sizeof whole);
        ck_assert_mem_eq(y, whole, sizeof whole);
        check_window(rig_slot(&pool, 1), PROMPT);
        free(pool.memory);
    }
    for (uint32_t t = 0; t < PROMPT; t++) check_output(t);
}
END_TEST

/* Inputs are their token's number, so that a column in the wrong place shows. */
START_TEST(report_39__columns_of_a_short_chunk_keep_their_place)
{
    for (size_t n = 0; n < TOKENS * CHANNELS; n++)
        x[n] = (float)(n / CHANNELS + 1 + 100 * (n % CHANNELS));
    for (uint32_t past = 0; past <= 5; past++)
        for (uint32_t tokens = 0; tokens <= 5; tokens++) {
            struct rig_pool pool = rig_pool(SC_DTYPE_F32, KEPT * CHANNELS, 3, 0, 0);
            prefill(&pool, 0, past, 0, 1);
            prefill(&pool, past, past + tokens, 1, 2);
            check_window(rig_slot(&pool, 2), past + tokens);
            check_window(rig_slot(&pool, 1), past);
            free(pool.memory);
        }
}
END_TEST

/* Verifies four drafts after slot 1 and commits two of them. */
static void drafts(const struct rig_pool *pool, uint32_t from)
{
    int32_t start[2] = {0, 4}, slot = 1, node = 1;
    sc_k_conv_verify_params v = {.tokens = {.x = sc_host_devptr(x + from * CHANNELS),
        .y = sc_host_devptr(y + from * CHANNELS), .dtype = SC_DTYPE_F32,
        .weight = sc_host_devptr(weight), .weight_dtype = SC_DTYPE_F32, .act = SC_K_ACT_SILU,
        .channels = CHANNELS, .width = WIDTH, .token_count = 4, .row_count = 1,
        .row_start = sc_host_devptr(start), .source = sc_host_devptr(&slot),
        .window = pool->slots}};
    RIG_OK(sc_k_conv_verify(NULL, &v, NULL));
    sc_k_conv_commit_params c = {.tokens = v.tokens, .node = sc_host_devptr(&node)};
    c.tokens.y = c.tokens.weight = 0, c.tokens.dest = sc_host_devptr(&slot);
    RIG_OK(sc_k_conv_commit(NULL, &c, NULL));
}

/* What lies beyond the window in its slot is another's. */
START_TEST(report_40__slots_wider_than_the_window)
{
    float narrow[TOKENS * CHANNELS];
    for (size_t wider = 0; wider <= 5; wider++) {
        size_t bytes = KEPT * CHANNELS * 4, stride = bytes + wider * CHANNELS * 4;
        struct rig_pool pool = rig_pool(SC_DTYPE_F32, KEPT * CHANNELS, 3, stride, 0);
        memset(y, 0xff, sizeof y);
        prefill(&pool, 0, 4, 0, 1);
        check_window(rig_slot(&pool, 1), 4);
        update(&pool, 4, 1);
        check_window(rig_slot(&pool, 1), 5);
        drafts(&pool, 5);
        check_window(rig_slot(&pool, 1), 7);
        update(&pool, 7, 1);
        check_window(rig_slot(&pool, 1), 8);
        if (wider == 0) memcpy(narrow, y, sizeof narrow);
        ck_assert_mem_eq(y, narrow, sizeof narrow);
        rig_all_bytes((uint8_t *)rig_slot(&pool, 1) + bytes, stride - bytes, 0xff);
        rig_untouched(&pool, 2);
        free(pool.memory);
    }
    for (uint32_t t = 0; t <= 7; t++) check_output(t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reports_windows");
    TCase *tc = tcase_create("reports");
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, report_36__a_short_prompt_leaves_a_whole_window);
    tcase_add_test(tc, report_38__every_cut_of_a_prompt_gives_the_same);
    tcase_add_test(tc, report_39__columns_of_a_short_chunk_keep_their_place);
    tcase_add_test(tc, report_40__slots_wider_than_the_window);
    suite_add_tcase(suite, tc);
    return check_main(suite);
}

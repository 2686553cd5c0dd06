/* SPDX-License-Identifier: Apache-2.0 */
/* Rows resolved once: wishes, what falls to the next row and why, what the environment forces, and
 * that calls take what was resolved. */
#include <check.h>
#include <stdio.h>

#include "kernel_dispatch.h"
#include "kernels_rig.h"
#include "statecache/kernels_choice.h"
#include "support/check_main.h"
#include "support/fail_alloc.h"

static sc_kernels *create(const sc_kernels_options *options)
{
    sc_kernels *kernels = NULL;
    RIG_OK(sc_kernels_create(options, &kernels));
    ck_assert_ptr_nonnull(kernels);
    return kernels;
}

static sc_kernels_row row_of(const sc_kernels *kernels, sc_k_op op, bool tree)
{
    sc_kernels_row row;
    for (uint32_t i = 0; sc_kernels_choice(kernels, i, &row) == SC_OK; i++)
        if (row.op == op && row.tree == tree) return row;
    ck_abort_msg("op %d has no entry", (int)op);
}

START_TEST(choice__every_operation_has_a_row_and_a_reason)
{
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    sc_kernels_row row;
    uint32_t count = 0, trees = 0;
    o.strided = o.saves = o.trees = o.ring = true, o.dim = 256, o.chunk = 64;
    sc_kernels *k = create(&o);
    for (; sc_kernels_choice(k, count, &row) == SC_OK; count++) {
        ck_assert_ptr_nonnull(row.row);
        ck_assert_uint_gt(strlen(row.reason), 10);
        ck_assert_uint_gt(strlen(row.name), 2);
        trees += row.tree;
    }
    ck_assert_uint_eq(count, SC_K_OP_COUNT + trees);
    ck_assert_uint_ge(trees, 4);
    ck_assert_ptr_nonnull(strstr(row_of(k, SC_K_OP_DELTA_VERIFY, true).reason, "first that fits"));
    sc_kernels_destroy(k);
}
END_TEST

START_TEST(choice__wishes_are_apart)
{
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    const char *best = NULL, *decode = NULL;
    RIG_OK(sc_k_choice(NULL, SC_K_OP_DELTA_CHUNK, SC_DTYPE_BF16, SC_DTYPE_F32, &best));
    RIG_OK(sc_k_choice(NULL, SC_K_OP_DECODE_PACKED, SC_DTYPE_BF16, SC_DTYPE_F32, &decode));
    o.decode_backend = "reference";
    sc_kernels *k = create(&o);
    ck_assert_str_eq(row_of(k, SC_K_OP_DECODE_PACKED, false).row, "reference");
    ck_assert_str_eq(row_of(k, SC_K_OP_DECODE, false).row, "reference");
    ck_assert_str_eq(row_of(k, SC_K_OP_DELTA_CHUNK, false).row, best);
    ck_assert_str_eq(row_of(k, SC_K_OP_DELTA_VERIFY, false).row, "reference"); /* decode's first */
    ck_assert_str_eq(row_of(k, SC_K_OP_DELTA_VERIFY, true).row, "reference");
    ck_assert_ptr_nonnull(strstr(row_of(k, SC_K_OP_DECODE, false).reason, "was asked for"));
    sc_kernels_destroy(k);
    o.decode_backend = NULL, o.extend_backend = "reference";
    k = create(&o);
    ck_assert_str_eq(row_of(k, SC_K_OP_DELTA_CHUNK, false).row, "reference");
    ck_assert_str_eq(row_of(k, SC_K_OP_DECODE_PACKED, false).row, decode);
    sc_kernels_destroy(k);
}
END_TEST

/* A name that some operations have no row of: those take the first row after it. */
START_TEST(choice__an_operation_that_lacks_the_wish_takes_the_next)
{
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    sc_kernels *k = NULL;
    const char *best = NULL;
    o.decode_backend = o.extend_backend = "avx512_bf16";
    sc_status status = sc_kernels_create(&o, &k);
    if (status != SC_OK) { /* not this processor's, or another build's */
        ck_assert(status == SC_ERR_UNSUPPORTED || status == SC_ERR_NOT_FOUND);
        return;
    }
    RIG_OK(sc_k_choice(NULL, SC_K_OP_CONV_UPDATE, SC_DTYPE_BF16, SC_DTYPE_BF16, &best));
    ck_assert_str_eq(row_of(k, SC_K_OP_DECODE, false).row, "avx512_bf16");
    ck_assert_str_eq(row_of(k, SC_K_OP_CONV_UPDATE, false).row, best);
    ck_assert_str_eq(row_of(k, SC_K_OP_DELTA_CHUNK, false).row, best);
    sc_kernels_destroy(k);
}
END_TEST

/* Calls through the resolved backend take the resolved row: the reference chunk form and the wide
 * one differ in their bits, so one can see which served. */
START_TEST(choice__calls_take_what_was_resolved)
{
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    const char *row = NULL;
    o.dtype = SC_DTYPE_F32, o.extend_backend = "reference";
    sc_kernels *k = create(&o);
    sc_backend *backend = sc_kernels_backend(k);
    ck_assert_str_eq(sc_backend_name(backend), "host");
    RIG_OK(sc_k_choice(backend, SC_K_OP_DELTA_CHUNK, SC_DTYPE_F32, SC_DTYPE_F32, &row));
    ck_assert_str_eq(row, "reference");
    RIG_OK(sc_k_choice(backend, SC_K_OP_GATES, SC_DTYPE_F32, (sc_dtype)0, &row));
    ck_assert_str_eq(row, "reference");
    float a[4] = {1, 2, 3, 4}, g[4];
    sc_k_gates_params p = {.a = sc_host_devptr(a), .dtype = SC_DTYPE_F32,
        .weights = {.gate = SC_K_GATE_KDA_BOUNDED, .lower_bound = -5.0f}, .token_count = 1,
        .heads = 1, .dim = 4, .g = sc_host_devptr(g)};
    RIG_OK(sc_k_gates(backend, &p, NULL));
    ck_assert(g[3] < g[0]);
    sc_kernels_destroy(k);
    ck_assert_ptr_null(sc_kernels_backend(NULL));
    sc_kernels_destroy(NULL);
}
END_TEST

/* Here through a backend whose resolved rows cannot do what the call asks. */
START_TEST(choice__a_call_beyond_the_choice_is_refused)
{
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    const struct sc_kernel_row none = {.name = "poor", .features = SC_KF_F32};
    const struct sc_kernel_row *rows[2 * SC_K_OP_COUNT] = {NULL};
    const char *row = NULL;
    sc_kernels *k = create(&o);
    struct sc_backend poor = *sc_kernels_backend(k);
    for (uint32_t i = 0; i < 2 * SC_K_OP_COUNT; i++) rows[i] = &none;
    rows[SC_K_OP_MOVE] = NULL;
    poor.rows = rows;
    ck_assert_int_eq(sc_k_choice(&poor, SC_K_OP_GATES, SC_DTYPE_BF16, (sc_dtype)0, &row),
        SC_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "poor"));
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "bf16"));
    ck_assert_int_eq(sc_k_choice(&poor, SC_K_OP_MOVE, SC_DTYPE_F32, (sc_dtype)0, &row),
        SC_ERR_UNSUPPORTED);
    sc_kernels_destroy(k);
}
END_TEST

static char logged[1024];

static void receive(void *ctx, enum sc_log_level level, const sc_log_record *record)
{
    (void)ctx, (void)level;
    if (strcmp(record->event, "kernels.chosen") != 0) return;
    for (uint32_t i = 0; i < record->field_count; i++) {
        size_t used = strlen(logged);
        (void)snprintf(logged + used, sizeof logged - used, "%s=%s\n", record->fields[i].key,
            record->fields[i].value);
    }
}

/* What a row declares decides: head sizes, chunks, features. Nothing else is taken. */
START_TEST(choice__head_sizes_and_chunks_are_declared)
{
    static const sc_k_op with_heads[] = {SC_K_OP_DELTA_RECURRENT, SC_K_OP_DELTA_CHUNK,
        SC_K_OP_DECODE_PACKED, SC_K_OP_DECODE, SC_K_OP_DELTA_VERIFY, SC_K_OP_DELTA_COMMIT,
        SC_K_OP_SSM, SC_K_OP_SSM_CHUNK, SC_K_OP_REPLAY_DELTA, SC_K_OP_REPLAY_SSM,
        SC_K_OP_KDA_UPDATE};
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    for (size_t i = 0; i < sizeof with_heads / sizeof with_heads[0]; i++) {
        uint32_t count = 0;
        const struct sc_kernel_row *rows = sc_kernel_rows(with_heads[i], &count);
        bool chunks = with_heads[i] == SC_K_OP_DELTA_CHUNK || with_heads[i] == SC_K_OP_SSM_CHUNK;
        for (uint32_t r = 0; r < count; r++) {
            ck_assert_uint_eq(rows[r].dim_max, SC_K_DIM_MAX);
            ck_assert_uint_eq(rows[r].chunk_max > 0, chunks);
            ck_assert_uint_eq(rows[r].runtime_min > 0, rows[r].cc_min > 0);
        }
    }
    o.dim = 20, o.chunk = 128;
    sc_kernels *k = create(&o);
    ck_assert_ptr_null(row_of(k, SC_K_OP_KDA_UPDATE, false).row);
    ck_assert_ptr_nonnull(strstr(row_of(k, SC_K_OP_KDA_UPDATE, false).reason, "multiples of 8"));
    ck_assert_ptr_null(row_of(k, SC_K_OP_DELTA_CHUNK, false).row);
    ck_assert_ptr_nonnull(strstr(row_of(k, SC_K_OP_DELTA_CHUNK, false).reason, "shorter chunks"));
    ck_assert_ptr_nonnull(row_of(k, SC_K_OP_SSM_CHUNK, false).row);
    ck_assert_ptr_nonnull(row_of(k, SC_K_OP_DECODE, false).row);
    sc_kernels_destroy(k);
}
END_TEST

START_TEST(choice__is_logged_once)
{
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    sc_log_set(receive, NULL, SC_LOG_INFO);
    o.decode_backend = "reference";
    sc_kernels *k = create(&o);
    ck_assert_ptr_nonnull(strstr(logged, "backend=host"));
    ck_assert_ptr_nonnull(strstr(logged, "decode_packed=reference: reference was asked for"));
    ck_assert_ptr_nonnull(strstr(logged, "verify_tree="));
    ck_assert_ptr_nonnull(strstr(logged, "extend="));
    sc_log_set(NULL, NULL, SC_LOG_INFO);
    sc_kernels_destroy(k);
}
END_TEST

/* Read once per process, hence in a fork of its own. */
START_TEST(choice__the_environment_outranks_a_wish)
{
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    ck_assert_int_eq(setenv("SC_KERNEL_DELTA_CHUNK", "reference", 1), 0);
    ck_assert_int_eq(setenv("SC_KERNEL_GATES", "sm90", 1), 0);
    sc_kernels *k = create(&o);
    ck_assert_str_eq(row_of(k, SC_K_OP_DELTA_CHUNK, false).row, "reference");
    ck_assert_ptr_nonnull(strstr(row_of(k, SC_K_OP_DELTA_CHUNK, false).reason, "is forced"));
    ck_assert_ptr_null(row_of(k, SC_K_OP_GATES, false).row);
    ck_assert_ptr_nonnull(strstr(row_of(k, SC_K_OP_GATES, false).reason, "is forced and cannot"));
    sc_kernels_destroy(k);
}
END_TEST

START_TEST(choice__refuses_unknown_and_absent_names)
{
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    sc_kernels *k = NULL;
    sc_kernels_row row;
    struct fail_alloc fail;
    ck_assert_int_eq(sc_kernels_create(NULL, &k), SC_ERR_INVALID);
    ck_assert_int_eq(sc_kernels_create(&o, NULL), SC_ERR_INVALID);
    o.decode_backend = "altivec";
    ck_assert_int_eq(sc_kernels_create(&o, &k), SC_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "decode_backend"));
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "altivec"));
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "reference"));
    o.decode_backend = NULL, o.extend_backend = "sm90"; /* not a row of the host */
    ck_assert_int_eq(sc_kernels_create(&o, &k), SC_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "sm90"));
    o.extend_backend = NULL, o.struct_size = 4;
    ck_assert_int_eq(sc_kernels_create(&o, &k), SC_ERR_INVALID);
    o.struct_size = sizeof o, o.dtype = SC_DTYPE_U8;
    ck_assert_int_eq(sc_kernels_create(&o, &k), SC_ERR_INVALID);
    o.dtype = SC_DTYPE_F32, o.dim = SC_K_DIM_MAX + 1;
    ck_assert_int_eq(sc_kernels_create(&o, &k), SC_ERR_INVALID);
    o.dim = 0;
    fail_alloc_init(&fail);
    fail_alloc_arm(&fail, 1);
    o.allocator = &fail.allocator;
    ck_assert_int_eq(sc_kernels_create(&o, &k), SC_ERR_NO_MEMORY);
    ck_assert(fail_alloc_disarm(&fail));
    ck_assert_ptr_null(k);
    RIG_OK(sc_kernels_create(&o, &k));
    ck_assert_int_eq(sc_kernels_choice(NULL, 0, &row), SC_ERR_INVALID);
    ck_assert_int_eq(sc_kernels_choice(k, 0, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_kernels_choice(k, UINT32_MAX, &row), SC_ERR_NOT_FOUND);
    sc_kernels_destroy(k);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fail), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_choice");
    TCase *all = tcase_create("choice");
    tcase_add_test(all, choice__every_operation_has_a_row_and_a_reason);
    tcase_add_test(all, choice__wishes_are_apart);
    tcase_add_test(all, choice__head_sizes_and_chunks_are_declared);
    tcase_add_test(all, choice__an_operation_that_lacks_the_wish_takes_the_next);
    tcase_add_test(all, choice__calls_take_what_was_resolved);
    tcase_add_test(all, choice__a_call_beyond_the_choice_is_refused);
    tcase_add_test(all, choice__is_logged_once);
    tcase_add_test(all, choice__the_environment_outranks_a_wish);
    tcase_add_test(all, choice__refuses_unknown_and_absent_names);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

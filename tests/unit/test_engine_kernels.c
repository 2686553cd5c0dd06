/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of a cache: resolved at its creation from its pool and two wishes. */
#include "statecache/kernels_choice.h"
#include "test_engine_rig.h"

static const char *row_of(const sc_kernels *kernels, sc_k_op op)
{
    sc_kernels_row row;
    for (uint32_t i = 0; sc_kernels_choice(kernels, i, &row) == SC_OK; i++)
        if (row.op == op) return row.row;
    return NULL;
}

START_TEST(kernels__are_resolved_from_the_wishes)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    struct rig rig;
    sc_kernels *kernels = NULL;
    options.cache.decode_backend = "reference";
    rig_init(&rig, &options);
    rig_ok(sc_cache_kernels(rig.cache, &kernels));
    ck_assert_str_eq(row_of(kernels, SC_K_OP_DECODE_PACKED), "reference");
    ck_assert_str_eq(row_of(kernels, SC_K_OP_DELTA_VERIFY), "reference");
    ck_assert_ptr_nonnull(row_of(kernels, SC_K_OP_DELTA_CHUNK));
    ck_assert_str_eq(sc_backend_name(sc_kernels_backend(kernels)), "host");
    rig_deinit(&rig);
}
END_TEST

START_TEST(sc_cache_kernels__refuses_bad_names_and_arguments)
{
    struct rig_options options = RIG_OPTIONS_INIT;
    struct rig rig;
    sc_cache_options bad;
    sc_cache *cache = NULL;
    sc_kernels *kernels = NULL;
    rig_init_pools(&rig, &options);
    rig_cache_options(&rig, &options, &bad);
    struct fail_alloc_mark mark = fail_alloc_mark(&rig.fa);
    bad.extend_backend = "altivec";
    ck_assert_int_eq(sc_cache_create(&bad, &cache), SC_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "extend_backend \"altivec\""));
    bad.extend_backend = "sm90";
    ck_assert_int_eq(sc_cache_create(&bad, &cache), SC_ERR_UNSUPPORTED);
    ck_assert_ptr_null(cache);
    ck_assert(fail_alloc_same(&rig.fa, mark));
    bad.extend_backend = NULL;
    rig_ok(sc_cache_create(&bad, &rig.cache));
    ck_assert_int_eq(sc_cache_kernels(NULL, &kernels), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cache_kernels(rig.cache, NULL), SC_ERR_INVALID);
    rig_deinit(&rig);
}
END_TEST

static Suite *kernels_suite(void)
{
    Suite *suite = suite_create("kernels of a cache");
    TCase *tc = tcase_create("kernels");
    tcase_add_test(tc, kernels__are_resolved_from_the_wishes);
    tcase_add_test(tc, sc_cache_kernels__refuses_bad_names_and_arguments);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return rig_main(kernels_suite());
}

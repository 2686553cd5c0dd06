/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that reads a wild address breaks the context. From then on every call says so, and
 * everything can still be closed. A program of its own, since nothing works after it. */
#include <check.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/backend.h"
#include "statecache/snapshot.h"

static sc_backend *gpu;

START_TEST(lost__once_and_for_all)
{
    struct sc_backend_memory memory = {0}, later = {0};
    struct sc_event *event = NULL;
    sc_stream *stream = NULL;
    sc_schema *schema = NULL;
    sc_pool *pool = NULL;
    sc_slot slots[2];
    bool done = false;
    ck_assert_int_eq(sc_backend_alloc(gpu, 1 << 20, &memory), SC_OK);
    ck_assert_int_eq(sc_backend_stream_create(gpu, &stream), SC_OK);
    ck_assert_int_eq(sc_backend_event_create(gpu, &event), SC_OK);
    ck_assert_int_eq(sc_schema_preset("qwen3.5-0.8b", SC_DTYPE_BF16, &schema), SC_OK);
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    options.schema = schema;
    options.slot_count = 2;
    options.backend = gpu;
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    ck_assert_int_eq(sc_pool_alloc(pool, 2, SC_OWNER_WORKING, slots), SC_OK);

    sc_k_l2norm_params p = {.x = (sc_devptr)1 << 44, .y = memory.base, .dtype = SC_DTYPE_F32,
        .token_count = 4, .heads = 4, .dim = 128};
    sc_status status = sc_k_l2norm(gpu, &p, stream);
    if (status == SC_OK) status = sc_backend_stream_sync(gpu, stream);
    ck_assert_int_eq(status, SC_ERR_DEVICE_LOST);
    ck_assert_int_eq(sc_backend_alloc(gpu, 64, &later), SC_ERR_DEVICE_LOST);
    ck_assert_int_eq(sc_backend_fill(gpu, memory.base, 0, 64, NULL), SC_ERR_DEVICE_LOST);
    ck_assert_int_eq(sc_backend_event_query(gpu, event, &done), SC_ERR_DEVICE_LOST);
    ck_assert_int_eq(sc_k_l2norm(gpu, &p, NULL), SC_ERR_DEVICE_LOST);
    ck_assert_int_eq(sc_state_copy(pool, (int32_t[]){1}, pool, (int32_t[]){2}, 1),
        SC_ERR_DEVICE_LOST);
    ck_assert_int_eq(sc_state_copy_beside(pool, (int32_t[]){1}, pool, (int32_t[]){2}, 1, stream),
        SC_ERR_DEVICE_LOST);
    ck_assert_int_eq(sc_state_copy_join(pool, stream), SC_ERR_DEVICE_LOST);
    ck_assert_int_eq(sc_backend_open("cuda", &gpu), SC_ERR_DEVICE_LOST);

    sc_backend_event_destroy(gpu, event);
    sc_backend_stream_destroy(gpu, stream);
    sc_backend_free(gpu, &memory);
    ck_assert_int_eq(sc_pool_free(pool, slots, 2), SC_OK);
    ck_assert_int_eq(sc_pool_destroy(pool), SC_OK);
    sc_schema_release(schema);
}
END_TEST

int main(void)
{
    if (sc_backend_open("cuda", &gpu) != SC_OK) {
        fprintf(stderr, "skipped: %s\n", sc_last_error()->text);
        return 77;
    }
    Suite *suite = suite_create("gpu_lost");
    TCase *all = tcase_create("all");
    tcase_set_timeout(all, 60);
    tcase_add_test(all, lost__once_and_for_all);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

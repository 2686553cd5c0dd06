/* SPDX-License-Identifier: Apache-2.0 */
/* Backends: look-up by name, memory, copies, streams, events of the host backend. */
#include <check.h>

#include "kernels_rig.h"
#include "support/check_main.h"

START_TEST(backend__host_by_getter_and_by_name)
{
    sc_backend *backend = NULL;
    RIG_OK(sc_backend_open("host", &backend));
    ck_assert_ptr_eq(backend, sc_backend_host());
    ck_assert_str_eq(sc_backend_name(backend), "host");
    ck_assert_int_eq(sc_backend_device(backend), 0);
    ck_assert_uint_eq(backend->compute_capability, 0);
    ck_assert(backend->host_memory);
}
END_TEST

START_TEST(backend_open__refuses_null_and_unknown_names)
{
    sc_backend *backend = NULL;
    ck_assert_int_eq(sc_backend_open(NULL, &backend), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_open("host", NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_open("", &backend), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_backend_open("host ", &backend), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_backend_open("cuda", &backend), SC_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "CUDA"));
    ck_assert_ptr_null(backend);
    ck_assert_ptr_null(sc_backend_name(NULL));
    ck_assert_int_eq(sc_backend_device(NULL), -1);
}
END_TEST

START_TEST(alloc__gives_zeroed_aligned_memory)
{
    static const uint64_t sizes[] = {1, 4096, 5000, (2u << 20) - 1, 2u << 20, (2u << 20) + 1,
        9u << 20};
    sc_backend *host = sc_backend_host();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct sc_backend_memory memory = {0};
        RIG_OK(sc_backend_alloc(host, sizes[i], &memory));
        ck_assert_uint_eq(memory.bytes, sizes[i]);
        ck_assert_uint_eq(memory.base % (sizes[i] >= 2u << 20 ? 2u << 20 : 4096u), 0);
        ck_assert_uint_le(memory.huge_bytes, sizes[i]);
        rig_all_bytes(sc_host_ptr(memory.base), sizes[i], 0);
        RIG_OK(sc_backend_fill(host, memory.base, 0xa5, sizes[i], NULL));
        rig_all_bytes(sc_host_ptr(memory.base), sizes[i], 0xa5);
        sc_backend_free(host, &memory);
        ck_assert_uint_eq(memory.base, 0);
        sc_backend_free(host, &memory); /* nothing left to free */
    }
}
END_TEST

START_TEST(alloc__more_than_memory_is_sparse)
{
    struct sc_backend_memory memory = {0};
    RIG_OK(sc_backend_alloc(sc_backend_host(), (uint64_t)64 << 30, &memory));
    uint8_t *at = sc_host_ptr(memory.base);
    at[0] = 1, at[((uint64_t)64 << 30) - 1] = 2;
    ck_assert_uint_eq(at[(uint64_t)33 << 30], 0);
    sc_backend_free(sc_backend_host(), &memory);
}
END_TEST

START_TEST(alloc__refuses_null_zero_and_too_much)
{
    sc_backend *host = sc_backend_host();
    struct sc_backend_memory memory = {.base = 77};
    ck_assert_int_eq(sc_backend_alloc(NULL, 1, &memory), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_alloc(host, 0, &memory), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_alloc(host, 1, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_alloc(host, UINT64_MAX, &memory), SC_ERR_OVERFLOW);
    ck_assert_int_eq(sc_backend_alloc(host, (uint64_t)1 << 60, &memory), SC_ERR_NO_MEMORY);
    ck_assert_int_ne(sc_last_error()->system_code, 0);
    ck_assert_uint_eq(memory.base, 77);
    sc_backend_free(NULL, &memory);
    sc_backend_free(host, NULL);
}
END_TEST

START_TEST(copy__moves_every_span)
{
    uint8_t a[300], b[300];
    for (int i = 0; i < 300; i++) a[i] = (uint8_t)i;
    memset(b, 0xff, sizeof b);
    const struct sc_backend_span spans[] = {{sc_host_devptr(b), sc_host_devptr(a + 7), 1},
        {sc_host_devptr(b + 100), sc_host_devptr(a + 100), 100}, {0, 0, 0}};
    RIG_OK(sc_backend_copy_async(sc_backend_host(), SC_COPY_D2D, spans, 3, NULL));
    RIG_OK(sc_backend_stream_sync(sc_backend_host(), NULL));
    ck_assert_uint_eq(b[0], 7);
    rig_all_bytes(b + 1, 99, 0xff);
    ck_assert_mem_eq(b + 100, a + 100, 100);
    rig_all_bytes(b + 200, 100, 0xff);
    RIG_OK(sc_backend_copy(sc_backend_host(), SC_COPY_H2D, sc_host_devptr(b), sc_host_devptr(a),
        300));
    ck_assert_mem_eq(a, b, 300);
    RIG_OK(sc_backend_copy_async(sc_backend_host(), SC_COPY_D2H, NULL, 0, NULL));
}
END_TEST

START_TEST(copy__refuses_bad_spans)
{
    uint8_t a[64] = {0};
    sc_backend *host = sc_backend_host();
    sc_devptr at = sc_host_devptr(a);
    ck_assert_int_eq(sc_backend_copy(NULL, SC_COPY_D2D, at, at + 32, 8), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_copy(host, (enum sc_copy_kind)9, at, at + 32, 8), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_copy(host, SC_COPY_D2D, 0, at, 8), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_copy(host, SC_COPY_D2D, at, 0, 8), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_copy(host, SC_COPY_D2D, at, at + 7, 8), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_copy(host, SC_COPY_D2D, at, at, 8), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_copy(host, SC_COPY_D2D, at, UINT64_MAX - 2, 8), SC_ERR_OVERFLOW);
    ck_assert_int_eq(sc_backend_copy_async(host, SC_COPY_D2D, NULL, 1, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_fill(host, 0, 0, 1, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_fill(NULL, at, 0, 1, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_fill(host, UINT64_MAX - 2, 0, 8, NULL), SC_ERR_OVERFLOW);
    RIG_OK(sc_backend_fill(host, 0, 0, 0, NULL));
}
END_TEST

START_TEST(stream_and_event__of_the_host_are_complete_at_once)
{
    sc_backend *host = sc_backend_host();
    sc_stream *stream = NULL;
    struct sc_event *event = NULL;
    bool done = false;
    RIG_OK(sc_backend_stream_create(host, &stream));
    RIG_OK(sc_backend_event_create(host, &event));
    RIG_OK(sc_backend_event_query(host, event, &done));
    ck_assert(done);
    RIG_OK(sc_backend_event_record(host, event, stream));
    RIG_OK(sc_backend_event_wait(host, event));
    RIG_OK(sc_backend_stream_sync(host, stream));
    sc_backend_event_destroy(host, event);
    sc_backend_stream_destroy(host, stream);
}
END_TEST

START_TEST(stream_and_event__refuse_null)
{
    sc_backend *host = sc_backend_host();
    sc_stream *stream = NULL;
    struct sc_event *event = NULL;
    bool done;
    ck_assert_int_eq(sc_backend_stream_create(NULL, &stream), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_stream_create(host, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_stream_sync(NULL, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_event_create(NULL, &event), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_event_create(host, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_event_record(host, NULL, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_event_query(host, NULL, &done), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_event_wait(host, NULL), SC_ERR_INVALID);
    RIG_OK(sc_backend_event_create(host, &event));
    ck_assert_int_eq(sc_backend_event_query(host, event, NULL), SC_ERR_INVALID);
    sc_backend_event_destroy(host, NULL);
    sc_backend_event_destroy(NULL, event);
    sc_backend_stream_destroy(NULL, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_backend");
    TCase *all = tcase_create("backend");
    tcase_set_timeout(all, 60);
    tcase_add_test(all, backend__host_by_getter_and_by_name);
    tcase_add_test(all, backend_open__refuses_null_and_unknown_names);
    tcase_add_test(all, alloc__gives_zeroed_aligned_memory);
    tcase_add_test(all, alloc__more_than_memory_is_sparse);
    tcase_add_test(all, alloc__refuses_null_zero_and_too_much);
    tcase_add_test(all, copy__moves_every_span);
    tcase_add_test(all, copy__refuses_bad_spans);
    tcase_add_test(all, stream_and_event__of_the_host_are_complete_at_once);
    tcase_add_test(all, stream_and_event__refuse_null);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

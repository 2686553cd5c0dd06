/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend against the host's: memory, streams, events, copies, pools on the device, and
 * calls captured in a graph. */
#include <check.h>
#include <pthread.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/prng.h"
#include "kernels/backend.h"
#include "statecache/snapshot.h"

static sc_backend *gpu;

#define OK(expr)                                                                                   \
    do {                                                                                           \
        sc_status ok_status_ = (expr);                                                             \
        ck_assert_msg(ok_status_ == SC_OK, "%s: %s: %s", #expr, sc_status_name(ok_status_),        \
            sc_last_error()->text);                                                                \
    } while (0)

static uint8_t *noise(size_t bytes, uint64_t seed)
{
    struct sc_prng prng;
    uint8_t *out = malloc(bytes);
    ck_assert_ptr_nonnull(out);
    sc_prng_seed(&prng, seed);
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)sc_prng_next(&prng);
    return out;
}

static void upload(sc_devptr to, const void *from, size_t bytes)
{
    OK(sc_backend_copy(gpu, SC_COPY_H2D, to, sc_host_devptr(from), bytes));
}

static void same(sc_devptr device, const uint8_t *host, size_t bytes)
{
    uint8_t *got = malloc(bytes);
    size_t at = 0;
    ck_assert_ptr_nonnull(got);
    OK(sc_backend_copy(gpu, SC_COPY_D2H, sc_host_devptr(got), device, bytes));
    while (at < bytes && got[at] == host[at]) at++;
    ck_assert_msg(at == bytes, "byte %zu of %zu differs", at, bytes);
    free(got);
}

START_TEST(memory__is_zero_and_keeps_what_is_copied)
{
    enum { BYTES = 5000001 };
    struct sc_backend_memory memory = {0}, pinned = {0};
    uint8_t *bytes = noise(BYTES, 1), *zeros = calloc(1, BYTES);
    OK(sc_backend_alloc(gpu, BYTES, &memory));
    same(memory.base, zeros, BYTES);
    upload(memory.base, bytes, BYTES);
    same(memory.base, bytes, BYTES);
    OK(sc_backend_fill(gpu, memory.base + 1, 0, BYTES - 1, NULL));
    OK(sc_backend_alloc_host(gpu, BYTES, &pinned));
    OK(sc_backend_copy(gpu, SC_COPY_D2H, pinned.base, memory.base, BYTES));
    ck_assert_int_eq(((uint8_t *)sc_host_ptr(pinned.base))[0], bytes[0]);
    ck_assert_mem_eq((uint8_t *)sc_host_ptr(pinned.base) + 1, zeros, BYTES - 1);
    sc_backend_free_host(gpu, &pinned);
    sc_backend_free(gpu, &memory);
    ck_assert_uint_eq(memory.base, 0);
    ck_assert_int_eq(sc_backend_alloc(gpu, (uint64_t)1 << 50, &memory), SC_ERR_NO_MEMORY);
    ck_assert_uint_eq(memory.base, 0);
    OK(sc_backend_alloc(gpu, 16, &memory)); /* a refused allocation is no lost device */
    sc_backend_free(gpu, &memory);
    free(bytes), free(zeros);
}
END_TEST

/* One stream's work waits for an event of another's. */
START_TEST(events__order_streams)
{
    enum { BYTES = 64 << 20 };
    struct sc_backend_memory a = {0}, b = {0};
    sc_stream *one = NULL, *two = NULL;
    struct sc_event *event = NULL;
    bool done = false;
    OK(sc_backend_alloc(gpu, BYTES, &a));
    OK(sc_backend_alloc(gpu, BYTES, &b));
    OK(sc_backend_stream_create(gpu, &one));
    OK(sc_backend_stream_create(gpu, &two));
    OK(sc_backend_event_create(gpu, &event));
    OK(sc_backend_event_query(gpu, event, &done));
    ck_assert(done);
    struct sc_backend_span span = {b.base, a.base, BYTES};
    for (int i = 0; i < 20; i++) OK(sc_backend_fill(gpu, a.base, 0x11, BYTES, one));
    OK(sc_backend_fill(gpu, a.base, 0x77, BYTES, one));
    OK(sc_backend_event_record(gpu, event, one));
    OK(sc_backend_stream_wait(gpu, two, event));
    OK(sc_backend_copy_async(gpu, SC_COPY_D2D, &span, 1, two));
    OK(sc_backend_stream_sync(gpu, two));
    OK(sc_backend_event_query(gpu, event, &done));
    ck_assert(done);
    OK(sc_backend_event_wait(gpu, event));
    uint8_t *want = malloc(BYTES);
    memset(want, 0x77, BYTES);
    same(b.base, want, BYTES);
    free(want);
    sc_backend_event_destroy(gpu, event);
    sc_backend_stream_destroy(gpu, one);
    sc_backend_stream_destroy(gpu, two);
    sc_backend_free(gpu, &a);
    sc_backend_free(gpu, &b);
}
END_TEST

enum { SLOTS = 12, PARTS = 5, ROWS = 8 };

/* Parts of all kinds of sizes, some unaligned, at both ends of one memory. */
static void parts_in(struct sc_backend_part *parts, sc_devptr base, uint64_t *bytes_out)
{
    static const uint64_t sizes[PARTS] = {65536, 100, 65536, 4097, 16};
    uint64_t at = 0;
    for (uint32_t end = 0; end < 2; end++)
        for (uint32_t p = 0; p < PARTS; p++) {
            uint64_t stride = sizes[p] + (p == 1 ? 3 : 16) * (end + 1);
            at = (at + 255) / 256 * 256 + (p == 3 ? 1 : 0);
            if (end == 0) {
                parts[p] = (struct sc_backend_part){.src = base + at, .src_stride = stride,
                    .bytes = sizes[p]};
            } else {
                parts[p].dst = base + at;
                parts[p].dst_stride = stride;
            }
            at += stride * SLOTS;
        }
    *bytes_out = at;
}

START_TEST(copy_rows__equals_the_hosts)
{
    struct sc_backend_part parts[PARTS], host_parts[PARTS];
    struct sc_backend_memory memory = {0}, index = {0};
    const int32_t dst[ROWS] = {3, -1, 1, 11, 5, 0, 7, -1}, src[ROWS] = {3, 2, -1, 4, 4, 9, 10, -1};
    uint64_t bytes = 0;
    parts_in(parts, 4096, &bytes);
    uint8_t *host = noise(bytes, 2);
    OK(sc_backend_alloc(gpu, bytes, &memory));
    OK(sc_backend_alloc(gpu, 2 * sizeof dst, &index));
    upload(memory.base, host, bytes);
    upload(index.base, dst, sizeof dst);
    upload(index.base + sizeof dst, src, sizeof src);
    parts_in(parts, memory.base, &bytes);
    parts_in(host_parts, sc_host_devptr(host), &bytes);
    struct sc_backend_rows rows = {.parts = parts, .part_count = PARTS, .row_count = ROWS,
        .dst_slots = dst, .src_slots = src};
    if (_i == 1) {
        rows.slots_on_device = true;
        rows.dst_slots = sc_host_ptr(index.base);
        rows.src_slots = sc_host_ptr(index.base + sizeof dst);
    }
    OK(sc_backend_copy_rows(gpu, &rows, NULL));
    OK(sc_backend_stream_sync(gpu, NULL));
    rows = (struct sc_backend_rows){.parts = host_parts, .part_count = PARTS, .row_count = ROWS,
        .dst_slots = dst, .src_slots = src};
    OK(sc_backend_copy_rows(sc_backend_host(), &rows, NULL));
    same(memory.base, host, bytes);
    free(host);
    sc_backend_free(gpu, &index);
    sc_backend_free(gpu, &memory);
}
END_TEST

/* More spans than one table holds, of sizes 0 .. , and to pinned memory in one batch. */
START_TEST(spans__all_arrive)
{
    enum { COUNT = 3000, STEP = 512 };
    struct sc_backend_memory memory = {0}, pinned = {0};
    uint64_t bytes = 2ull * COUNT * STEP;
    uint8_t *host = noise(bytes, 3);
    struct sc_backend_span *spans = calloc(COUNT, sizeof *spans);
    OK(sc_backend_alloc(gpu, bytes, &memory));
    OK(sc_backend_alloc_host(gpu, bytes, &pinned));
    upload(memory.base, host, bytes);
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t from = (i * 7 % COUNT) * STEP + i % 3, size = i * 13 % (STEP - 2);
        uint64_t to = (COUNT + i) * STEP + i % 2;
        spans[i] = (struct sc_backend_span){memory.base + to, memory.base + from, size};
        memcpy(host + to, host + from, size);
    }
    OK(sc_backend_copy_async(gpu, SC_COPY_D2D, spans, COUNT, NULL));
    same(memory.base, host, bytes);
    for (uint64_t i = 0; i < COUNT; i++)
        spans[i] = (struct sc_backend_span){pinned.base + i * STEP, memory.base + i * STEP, STEP};
    OK(sc_backend_copy_async(gpu, SC_COPY_D2H, spans, COUNT, NULL));
    OK(sc_backend_stream_sync(gpu, NULL));
    ck_assert_mem_eq(sc_host_ptr(pinned.base), host, (size_t)COUNT * STEP);
    free(host), free(spans);
    sc_backend_free_host(gpu, &pinned);
    sc_backend_free(gpu, &memory);
}
END_TEST

/* ---- pools on the device ---- */

static sc_pool *pool_of(sc_backend *backend, sc_layout layout, uint32_t slots, sc_slot *taken)
{
    sc_schema *schema = NULL;
    sc_pool *pool = NULL;
    OK(sc_schema_preset("qwen3.5-0.8b", SC_DTYPE_BF16, &schema));
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    options.schema = schema;
    options.layout = layout;
    options.slot_count = slots;
    options.backend = backend;
    OK(sc_pool_create(&options, &pool));
    sc_schema_release(schema);
    OK(sc_pool_alloc(pool, slots, SC_OWNER_WORKING, taken));
    return pool;
}

static void fill_slot(sc_pool *host, uint32_t id, uint64_t seed)
{
    sc_pool_info info;
    OK(sc_pool_info_get(host, &info));
    for (uint32_t p = 0; p < info.part_count; p++) {
        sc_layer_view view;
        OK(sc_pool_part_view(host, p, &view, NULL));
        uint8_t *bytes = noise(view.bytes, seed * 1000 + p);
        memcpy((uint8_t *)sc_host_ptr(view.base) + (size_t)view.slot_stride * id, bytes,
            view.bytes);
        free(bytes);
    }
}

static void same_slots(sc_pool *host, uint32_t a, uint32_t b)
{
    sc_pool_info info;
    OK(sc_pool_info_get(host, &info));
    for (uint32_t p = 0; p < info.part_count; p++) {
        sc_layer_view view;
        OK(sc_pool_part_view(host, p, &view, NULL));
        const uint8_t *base = sc_host_ptr(view.base);
        ck_assert(memcmp(base + (size_t)view.slot_stride * a, base + (size_t)view.slot_stride * b,
            view.bytes) == 0);
    }
}

/* Host -> device -> device (other layout, scattered) -> host: the same bytes. */
START_TEST(states__travel_unchanged)
{
    enum { N = 6 };
    sc_layout first = _i & 1 ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    sc_layout second = _i & 2 ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    sc_slot a[N], b[N], c[N];
    sc_pool *host = pool_of(NULL, SC_LAYOUT_PAGE_MAJOR, N, a);
    sc_pool *one = pool_of(gpu, first, N, b), *two = pool_of(gpu, second, N, c);
    for (uint32_t i = 1; i <= 2; i++) fill_slot(host, i, i);
    OK(sc_state_copy(host, (int32_t[]){1, 2}, one, (int32_t[]){4, 3}, 2));
    OK(sc_state_copy(one, (int32_t[]){4, -1, 3, 0}, one, (int32_t[]){1, 2, 5, 6}, 4));
    OK(sc_state_copy(one, (int32_t[]){1, 5, 6}, two, (int32_t[]){2, 6, 1}, 3));
    OK(sc_state_copy(two, (int32_t[]){2, 6, 1}, host, (int32_t[]){3, 4, 5}, 3));
    same_slots(host, 1, 3);
    same_slots(host, 2, 4);
    same_slots(host, 0, 5);
    OK(sc_pool_audit(one, true));
    OK(sc_pool_audit(two, true));
    OK(sc_pool_free(host, a, N));
    OK(sc_pool_free(one, b, N));
    OK(sc_pool_free(two, c, N));
    OK(sc_pool_destroy(host));
    OK(sc_pool_destroy(one));
    OK(sc_pool_destroy(two));
}
END_TEST

static void count_release(void *ctx)
{
    ++*(int *)ctx;
}

/* A pool over memory that somebody else has allocated on the device: its states, and its bytes. */
START_TEST(foreign__memory_of_a_framework_is_served)
{
    enum { N = 3 };
    sc_schema *schema = NULL;
    sc_pool *pool = NULL;
    sc_pool_info info;
    void *memory = NULL;
    int released = 0;
    sc_slot a[N], b[N];
    sc_pool *host = pool_of(NULL, SC_LAYOUT_PAGE_MAJOR, N, a);
    OK(sc_schema_preset("qwen3.5-0.8b", SC_DTYPE_BF16, &schema));
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    sc_foreign_memory foreign = {.release = count_release, .ctx = &released};
    options.schema = schema;
    options.layout = _i ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    options.slot_count = N;
    options.backend = gpu;
    OK(sc_pool_memory_bytes(&options, &foreign.bytes));
    ck_assert_int_eq(cudaMalloc(&memory, foreign.bytes + 256), cudaSuccess);
    ck_assert_int_eq(cudaMemset(memory, 0x6b, foreign.bytes + 256), cudaSuccess);
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
    foreign.base = (sc_devptr)(uintptr_t)memory;
    options.foreign = &foreign;
    OK(sc_pool_create(&options, &pool));
    OK(sc_pool_info_get(pool, &info));
    ck_assert_uint_eq(info.base, foreign.base);
    OK(sc_pool_audit(pool, true)); /* the null slot was cleared */
    OK(sc_pool_alloc(pool, N, SC_OWNER_WORKING, b));
    fill_slot(host, 1, 11);
    OK(sc_state_copy(host, (int32_t[]){1}, pool, (int32_t[]){2}, 1));
    OK(sc_state_copy(pool, (int32_t[]){2}, pool, (int32_t[]){3}, 1));
    OK(sc_state_copy(pool, (int32_t[]){3}, host, (int32_t[]){2}, 1));
    same_slots(host, 1, 2);
    uint8_t behind[256];
    memset(behind, 0x6b, sizeof behind);
    same(foreign.base + foreign.bytes, behind, sizeof behind);
    OK(sc_pool_free(pool, b, N));
    OK(sc_pool_destroy(pool));
    ck_assert_int_eq(released, 1);
    ck_assert_int_eq(cudaFree(memory), cudaSuccess);
    OK(sc_pool_free(host, a, N));
    OK(sc_pool_destroy(host));
    sc_schema_release(schema);
}
END_TEST

START_TEST(gather_and_scatter__through_a_dense_array)
{
    enum { N = 5 };
    sc_slot a[N], b[N];
    sc_layout layout = _i ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    sc_pool *host = pool_of(NULL, SC_LAYOUT_PAGE_MAJOR, N, a), *pool = pool_of(gpu, layout, N, b);
    const sc_part_ref parts[] = {{0, SC_PART_RECURRENT, 0}, {2, SC_PART_CONV, 0},
        {2, SC_PART_RECURRENT, 0}};
    struct sc_backend_memory dense = {0};
    uint64_t bytes = 0;
    fill_slot(host, 1, 5);
    fill_slot(host, 2, 6);
    OK(sc_state_copy(host, (int32_t[]){1, 2}, pool, (int32_t[]){1, 2}, 2));
    OK(sc_state_dense_bytes(pool, parts, 3, 3, &bytes, NULL));
    OK(sc_backend_alloc(gpu, bytes, &dense));
    OK(sc_state_gather(pool, parts, 3, (int32_t[]){2, -1, 1}, 3, dense.base, bytes));
    OK(sc_state_copy(host, (int32_t[]){1, 1}, pool, (int32_t[]){3, 4}, 2));
    OK(sc_state_scatter(pool, parts, 3, (int32_t[]){4, -1, 3}, 3, dense.base, bytes));
    OK(sc_state_copy(pool, (int32_t[]){3, 4}, host, (int32_t[]){3, 4}, 2));
    same_slots(host, 1, 3);
    sc_layer_view named, other;
    OK(sc_pool_layer_view(host, 2, SC_PART_RECURRENT, 0, &named));
    OK(sc_pool_layer_view(host, 1, SC_PART_RECURRENT, 0, &other));
    const uint8_t *at = sc_host_ptr(named.base), *kept = sc_host_ptr(other.base);
    ck_assert(memcmp(at + 4 * named.slot_stride, at + 2 * named.slot_stride, named.bytes) == 0);
    ck_assert(memcmp(kept + 4 * other.slot_stride, kept + other.slot_stride, other.bytes) == 0);
    sc_backend_free(gpu, &dense);
    OK(sc_pool_free(host, a, N));
    OK(sc_pool_free(pool, b, N));
    OK(sc_pool_destroy(host));
    OK(sc_pool_destroy(pool));
}
END_TEST

/* Kernels, a copy and a fill captured once and replayed: what running them again gives. */
START_TEST(graphs__replay_copies_and_kernels)
{
    enum { N = 8, HEADS = 4, D = 128, ELEMS = HEADS * D * D, QKV = 3 * HEADS * D };
    struct sc_backend_memory m = {0};
    const int32_t slots[] = {1, 2, 3, 4};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    sc_stream *stream = NULL;
    uint64_t state = (uint64_t)N * ELEMS * 4, qkv = 4 * QKV * 4ull;
    OK(sc_backend_alloc(gpu, 4 * state, &m));
    OK(sc_backend_stream_create(gpu, &stream));
    uint8_t *bytes = noise(4 * state, 9);
    float *values = (float *)(void *)bytes;
    for (uint64_t i = 0; i < state; i++) values[i] = (float)(bytes[4 * i] - 128) / 512.0f;
    upload(m.base, bytes, 4 * state);
    sc_devptr index = m.base + 3 * state;
    upload(index, slots, sizeof slots);
    sc_k_decode_packed_params p = {.qkv = m.base + 2 * state, .o = m.base + 2 * state + qkv,
        .dtype = SC_DTYPE_F32, .g = m.base + 2 * state + 2 * qkv,
        .beta = m.base + 2 * state + 2 * qkv + 4096,
        .shape = {SC_K_KIND_GDN, HEADS, HEADS, D, D, 0.0f, true}, .row_count = 4,
        .source = index, .dest = index,
        .state = {m.base, ELEMS * 4, SC_DTYPE_F32, N}};
    float minus = -0.1f;
    for (uint32_t i = 0; i < 4 * HEADS; i++)
        upload(m.base + 2 * state + 2 * qkv + 4ull * i, &minus, 4);
    struct sc_backend_part part = {m.base, m.base, ELEMS * 4, ELEMS * 4, ELEMS * 4};
    const int32_t dst = 5, src = 1;
    struct sc_backend_rows rows = {.parts = &part, .part_count = 1, .row_count = 1,
        .dst_slots = &dst, .src_slots = &src};
    uint8_t *before = malloc(state), *want = malloc(state);
    OK(sc_backend_copy(gpu, SC_COPY_D2H, sc_host_devptr(before), m.base, state));
    for (int i = 0; i < 3; i++) {
        OK(sc_k_decode_packed(gpu, &p, stream));
        OK(sc_backend_copy_rows(gpu, &rows, stream));
    }
    OK(sc_backend_stream_sync(gpu, stream));
    OK(sc_backend_copy(gpu, SC_COPY_D2H, sc_host_devptr(want), m.base, state));
    ck_assert(memcmp(before, want, state) != 0);
    upload(m.base, before, state);
    ck_assert_int_eq(cudaStreamBeginCapture((cudaStream_t)(void *)stream,
        cudaStreamCaptureModeThreadLocal), cudaSuccess);
    OK(sc_k_decode_packed(gpu, &p, stream));
    OK(sc_backend_copy_rows(gpu, &rows, stream));
    ck_assert_int_eq(cudaStreamEndCapture((cudaStream_t)(void *)stream, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    same(m.base, before, state); /* capturing ran nothing */
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(cudaGraphLaunch(exec, (cudaStream_t)(void *)stream), cudaSuccess);
    OK(sc_backend_stream_sync(gpu, stream));
    same(m.base, want, state);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    free(before), free(want), free(bytes);
    sc_backend_stream_destroy(gpu, stream);
    sc_backend_free(gpu, &m);
}
END_TEST

/* ---- sides ---- */

static void sleep_20_ms(void *unused)
{
    const struct timespec pause = {0, 20000000};
    (void)unused;
    nanosleep(&pause, NULL);
}

/* What comes next in the stream comes late. (To hold a stream up until the test says so could hold
 * up others: streams share the device's queues.) */
static void hold(sc_stream *stream)
{
    ck_assert_int_eq(cudaLaunchHostFunc((cudaStream_t)(void *)stream, sleep_20_ms, NULL),
        cudaSuccess);
}

/* All parts of a slot set to `value`, the last of some values. */
static void write_slot(sc_pool *pool, uint32_t slot, uint8_t value, sc_stream *stream)
{
    sc_pool_info info;
    OK(sc_pool_info_get(pool, &info));
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < info.part_count; i++) {
            sc_layer_view view;
            sc_part part;
            OK(sc_pool_part_view(pool, i, &view, &part));
            OK(sc_backend_fill(gpu, view.base + (uint64_t)view.slot_stride * slot,
                round < 2 ? (uint8_t)round : value, view.bytes, stream));
        }
    }
}

static void slot_is(const sc_pool *host, uint32_t slot, uint8_t value)
{
    sc_pool_info info;
    OK(sc_pool_info_get(host, &info));
    for (uint32_t i = 0; i < info.part_count; i++) {
        sc_layer_view view;
        sc_part part;
        OK(sc_pool_part_view(host, i, &view, &part));
        const uint8_t *bytes = (const uint8_t *)sc_host_ptr(view.base)
            + (uint64_t)view.slot_stride * slot;
        uint64_t at = 0;
        while (at < view.bytes && bytes[at] == value) at++;
        ck_assert_msg(at == view.bytes, "slot %u, part %u, byte %llu differs", slot, i,
            (unsigned long long)at);
    }
}

/* What goes down is what the default stream was about to write, and what comes up stays. _i:
 * layout. */
START_TEST(sides__come_behind_the_default_stream)
{
    enum { N = 4 };
    sc_slot a[N], b[N];
    sc_layout layout = _i % 2 ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    sc_pool *host = pool_of(NULL, SC_LAYOUT_PAGE_MAJOR, N, a), *pool = pool_of(gpu, layout, N, b);
    sc_stream *step = NULL;
    OK(sc_backend_stream_create(gpu, &step));
    fill_slot(host, 1, 5);
    fill_slot(host, 3, 6);
    for (int round = 0; round < 3; round++) {
        hold(step);
        OK(sc_backend_stream_join(gpu, NULL, step));
        write_slot(pool, 2, (uint8_t)(0x41 + round), NULL);
        OK(sc_state_copy(pool, (int32_t[]){2}, host, (int32_t[]){2}, 1));
        slot_is(host, 2, (uint8_t)(0x41 + round));
        hold(step);
        OK(sc_backend_stream_join(gpu, NULL, step));
        write_slot(pool, 3, 0xff, NULL);
        OK(sc_state_copy(host, (int32_t[]){1}, pool, (int32_t[]){3}, 1));
        OK(sc_state_copy(pool, (int32_t[]){3}, host, (int32_t[]){3}, 1));
        same_slots(host, 1, 3);
    }
    sc_backend_stream_destroy(gpu, step);
    OK(sc_pool_free(host, a, N));
    OK(sc_pool_free(pool, b, N));
    OK(sc_pool_destroy(host));
    OK(sc_pool_destroy(pool));
}
END_TEST

/* Saves beside a stream take what it wrote before them and not what it writes behind the join. */
START_TEST(sides__saves_lie_between_two_events)
{
    enum { N = 6 };
    sc_slot a[N], b[N];
    sc_layout layout = _i % 2 ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    sc_pool *host = pool_of(NULL, SC_LAYOUT_PAGE_MAJOR, N, a), *pool = pool_of(gpu, layout, N, b);
    sc_stream *step = NULL;
    cudaGraph_t graph;
    OK(sc_backend_stream_create(gpu, &step));
    for (int round = 0; round < 3; round++) {
        uint8_t value = (uint8_t)(0x51 + 2 * round);
        hold(step);
        write_slot(pool, 1, value, step);
        OK(sc_state_copy_beside(pool, (int32_t[]){1, 1}, pool, (int32_t[]){2, 3}, 2, step));
        OK(sc_state_copy_beside(pool, (int32_t[]){1}, pool, (int32_t[]){4 + round % 2}, 1, step));
        OK(sc_state_copy_join(pool, step));
        write_slot(pool, 1, (uint8_t)(value + 1), step);
    }
    OK(sc_backend_stream_sync(gpu, step));
    OK(sc_state_copy(pool, (int32_t[]){1, 2, 3, 4, 5}, host, (int32_t[]){1, 2, 3, 4, 5}, 5));
    slot_is(host, 1, 0x56), slot_is(host, 2, 0x55), slot_is(host, 3, 0x55);
    slot_is(host, 4, 0x55), slot_is(host, 5, 0x53);
    ck_assert_int_eq(cudaStreamBeginCapture((cudaStream_t)(void *)step,
        cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ck_assert_int_eq(sc_state_copy_beside(pool, (int32_t[]){1}, pool, (int32_t[]){2}, 1, step),
        SC_ERR_UNSUPPORTED);
    ck_assert_int_eq(sc_state_copy_join(pool, step), SC_ERR_UNSUPPORTED);
    ck_assert_int_eq(cudaStreamEndCapture((cudaStream_t)(void *)step, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
    OK(sc_state_copy_beside(pool, (int32_t[]){5}, pool, (int32_t[]){2}, 1, step));
    OK(sc_state_copy_join(pool, NULL)); /* the default stream's copies come behind it */
    OK(sc_state_copy(pool, (int32_t[]){2}, host, (int32_t[]){6}, 1));
    slot_is(host, 6, 0x53);
    sc_backend_stream_destroy(gpu, step);
    OK(sc_pool_free(host, a, N));
    OK(sc_pool_free(pool, b, N));
    OK(sc_pool_destroy(host));
    OK(sc_pool_destroy(pool));
}
END_TEST

struct tier_thread {
    sc_pool *pool, *host;
    sc_status down, up;
};

static void *copy_both_ways(void *ctx)
{
    struct tier_thread *t = ctx;
    t->down = sc_state_copy(t->pool, (int32_t[]){1}, t->host, (int32_t[]){2}, 1);
    t->up = sc_state_copy(t->host, (int32_t[]){2}, t->pool, (int32_t[]){2}, 1);
    return NULL;
}

/* A tier's thread goes on while a framework captures a graph, in the mode that forbids other
 * threads to wait, and the graph is whole. */
START_TEST(sides__copy_while_another_thread_captures)
{
    enum { N = 2 };
    sc_slot a[N], b[N];
    sc_layout layout = _i % 2 ? SC_LAYOUT_CONTIGUOUS : SC_LAYOUT_PAGE_MAJOR;
    struct tier_thread t = {.host = pool_of(NULL, SC_LAYOUT_PAGE_MAJOR, N, a),
        .pool = pool_of(gpu, layout, N, b)};
    sc_stream *step = NULL;
    cudaGraph_t graph;
    pthread_t thread;
    OK(sc_backend_stream_create(gpu, &step));
    write_slot(t.pool, 1, 0x35, NULL);
    ck_assert_int_eq(cudaStreamBeginCapture((cudaStream_t)(void *)step,
        cudaStreamCaptureModeGlobal), cudaSuccess);
    ck_assert_int_eq(pthread_create(&thread, NULL, copy_both_ways, &t), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(cudaStreamEndCapture((cudaStream_t)(void *)step, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
    ck_assert_int_eq(t.down, SC_OK);
    ck_assert_int_eq(t.up, SC_OK);
    slot_is(t.host, 2, 0x35);
    sc_backend_stream_destroy(gpu, step);
    OK(sc_pool_free(t.host, a, N));
    OK(sc_pool_free(t.pool, b, N));
    OK(sc_pool_destroy(t.host));
    OK(sc_pool_destroy(t.pool));
}
END_TEST

int main(void)
{
    if (sc_backend_open("cuda", &gpu) != SC_OK) {
        fprintf(stderr, "skipped: %s\n", sc_last_error()->text);
        return 77;
    }
    Suite *suite = suite_create("gpu_backend");
    TCase *all = tcase_create("all");
    tcase_set_timeout(all, 120);
    tcase_add_test(all, memory__is_zero_and_keeps_what_is_copied);
    tcase_add_test(all, events__order_streams);
    tcase_add_loop_test(all, copy_rows__equals_the_hosts, 0, 2);
    tcase_add_test(all, spans__all_arrive);
    tcase_add_loop_test(all, states__travel_unchanged, 0, 4);
    tcase_add_loop_test(all, foreign__memory_of_a_framework_is_served, 0, 2);
    tcase_add_loop_test(all, gather_and_scatter__through_a_dense_array, 0, 2);
    tcase_add_test(all, graphs__replay_copies_and_kernels);
    tcase_add_loop_test(all, sides__come_behind_the_default_stream, 0, 2);
    tcase_add_loop_test(all, sides__saves_lie_between_two_events, 0, 2);
    tcase_add_loop_test(all, sides__copy_while_another_thread_captures, 0, 2);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

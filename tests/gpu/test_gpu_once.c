/* SPDX-License-Identifier: Apache-2.0 */
/* Every kernel of the device, each form of it once, at B <= 4 and T <= 200: called, and captured in
 * a graph that is launched, with the same inputs, which must give the same bits. What is right is
 * tested elsewhere, against float64; these small calls are what compute-sanitizer's tools can look
 * at in seconds (`run.sh sanitize`).
 *
 * All tensors are slices of one block of seeded noise on the device. `out` is where a call writes:
 * it is the same before both runs and compared after them. */
#include <check.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/prng.h"
#include "kernels/backend.h"
#include "statecache/kernels_move.h"

enum { ROWS = 4, TOKENS = 200, SLOTS = 12, CHANNELS = 512, WIDTH = 4, DIM = 128 };
#define FLOATS ((uint64_t)8 << 20)
#define OUT_BYTES ((uint64_t)208 << 20)

static sc_backend *gpu;
static sc_stream *stream;
static struct sc_backend_memory in, out, scratch, ints;
static unsigned char *first, *second, *start;

#define OK(expr)                                                                                   \
    do {                                                                                           \
        sc_status ok_status_ = (expr);                                                             \
        ck_assert_msg(ok_status_ == SC_OK, "%s: %s: %s", #expr, sc_status_name(ok_status_),        \
            sc_last_error()->text);                                                                \
    } while (0)

/* Rows of 70, 0, 65 and 65 tokens; the second begins inside a chunk. Slots are apart. */
static const int32_t indices[] = {
    0, 70, 70, 135, 200, /* row_start */
    0, 64, 128, 0,       /* position */
    1, 2, 0, 3,          /* source */
    5, 6, 7, 8,          /* dest */
    9, -1, 10, 0,        /* save of a decode */
    0, 2, 64, 192, 10, 11 /* saves: rows, positions, slots */
};
enum { ROW_START = 0, POSITION = 5, SOURCE = 9, DEST = 13, SAVE = 17, SAVES = 21 };

static sc_devptr index_at(uint32_t at)
{
    return ints.base + 4ull * at;
}

static sc_k_saves saves(void)
{
    return (sc_k_saves){index_at(SAVES), index_at(SAVES + 2), index_at(SAVES + 4), 2};
}

/* Noise from float `at` on; as bf16 it is noise, too: both halves of a float were made so. */
static sc_devptr noise(uint64_t at)
{
    return in.base + 4 * at;
}

static void fill(struct sc_backend_memory *memory, uint64_t seed, float scale)
{
    struct sc_prng prng;
    uint64_t count = memory->bytes / 4;
    uint32_t *words = malloc(memory->bytes);
    ck_assert_ptr_nonnull(words);
    sc_prng_seed(&prng, seed);
    for (uint64_t i = 0; i < count; i++) {
        float x = scale * (2.0f * (float)sc_prng_unit(&prng) - 1.0f);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        words[i] = (bits & 0xffff0000u) | bits >> 16; /* two bf16 of one size */
    }
    OK(sc_backend_copy(gpu, SC_COPY_H2D, memory->base, sc_host_devptr(words), memory->bytes));
    free(words);
}

static void read_out(unsigned char *to, uint64_t bytes)
{
    OK(sc_backend_stream_sync(gpu, stream));
    OK(sc_backend_copy(gpu, SC_COPY_D2H, sc_host_devptr(to), out.base, bytes));
}

/* The call as a graph, launched once. */
static void replay(sc_status (*call)(const void *params), const void *params)
{
    cudaStream_t raw = (cudaStream_t)(void *)stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ck_assert_int_eq(cudaStreamBeginCapture(raw, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    OK(call(params));
    ck_assert_int_eq(cudaStreamEndCapture(raw, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    ck_assert_int_eq(cudaGraphLaunch(exec, raw), cudaSuccess);
    OK(sc_backend_stream_sync(gpu, stream));
    ck_assert_int_eq(cudaGraphExecDestroy(exec), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
}

/* Runs `call` as it is and as a graph, both times from the same `bytes` bytes of `out`; it must
 * write something. */
static void twice(sc_status (*call)(const void *params), const void *params, uint64_t bytes)
{
    ck_assert_uint_le(bytes, out.bytes);
    for (int i = 0; i < 2; i++) {
        OK(sc_backend_copy(gpu, SC_COPY_H2D, out.base, sc_host_devptr(start), bytes));
        if (i == 0)
            OK(call(params));
        else
            replay(call, params);
        read_out(i == 0 ? first : second, bytes);
    }
    ck_assert_msg(memcmp(first, second, bytes) == 0, "two runs differ");
    ck_assert_msg(memcmp(first, start, bytes) != 0, "nothing was written");
}

/* Only called, for racecheck, to which each launch costs seconds. */
static void once(sc_status (*call)(const void *params), const void *params, uint64_t bytes)
{
    ck_assert_uint_le(bytes, out.bytes);
    OK(sc_backend_copy(gpu, SC_COPY_H2D, out.base, sc_host_devptr(start), bytes));
    OK(call(params));
    read_out(first, bytes);
    ck_assert_msg(memcmp(first, start, bytes) != 0, "nothing was written");
}

#define CALL(name)                                                                                 \
    static sc_status name(const void *params)                                                      \
    {                                                                                              \
        return sc_k_##name(gpu, params, stream);                                                   \
    }
CALL(conv_prefill)
CALL(conv_update)
CALL(gates)
CALL(l2norm)
CALL(gated_rmsnorm)
CALL(delta_recurrent)
CALL(delta_chunk)
CALL(decode_packed)
CALL(decode)
CALL(qkv_split)
CALL(move)

static const sc_dtype dtypes[2] = {SC_DTYPE_F32, SC_DTYPE_BF16};

static uint64_t elem(sc_dtype dtype)
{
    return dtype == SC_DTYPE_F32 ? 4 : 2;
}

/* Slots behind `skip` bytes of `out`. */
static sc_k_slots slots(sc_dtype dtype, uint64_t elems, uint64_t skip)
{
    return (sc_k_slots){out.base + skip, (int64_t)(elems * elem(dtype)), dtype, SLOTS};
}

START_TEST(conv__once)
{
    sc_dtype dtype = dtypes[_i % 2], window = dtypes[_i / 2];
    uint64_t y = (uint64_t)TOKENS * CHANNELS * elem(dtype), part = (WIDTH - 1) * CHANNELS;
    sc_k_conv_prefill_params p = {.x = noise(0), .y = out.base, .dtype = dtype,
        .weight = noise(1 << 20), .weight_dtype = dtype, .act = SC_K_ACT_SILU,
        .channels = CHANNELS, .width = WIDTH, .token_count = TOKENS, .row_count = ROWS,
        .row_start = index_at(ROW_START), .position = index_at(POSITION),
        .source = index_at(SOURCE), .dest = index_at(DEST), .saves = saves(),
        .window = slots(window, part, y)};
    uint64_t bytes = y + SLOTS * part * elem(window);
    twice(conv_prefill, &p, bytes);
    sc_k_conv_update_params u = {.x = noise(0), .y = out.base, .dtype = dtype,
        .weight = p.weight, .weight_dtype = dtype, .act = SC_K_ACT_SILU, .channels = CHANNELS,
        .width = WIDTH, .row_count = ROWS, .source = p.source, .dest = p.dest,
        .save = index_at(SAVE), .window = p.window, .window_settled = true};
    twice(conv_update, &u, bytes);
    p.initial = u.initial = (sc_k_slots){noise(1 << 19), 4ll * (int64_t)part, SC_DTYPE_F32, ROWS};
    twice(conv_prefill, &p, bytes);
    twice(conv_update, &u, bytes);
}
END_TEST

static sc_k_gate_weights weights(sc_k_gate gate)
{
    return (sc_k_gate_weights){.gate = gate, .a_log = noise(1 << 20), .dt_bias = noise(1 << 19),
        .dt_bias_dtype = SC_DTYPE_F32, .lower_bound = -5.0f};
}

START_TEST(gates_and_norms__once)
{
    enum { HEADS = 4 };
    sc_dtype dtype = dtypes[_i];
    for (int gate = SC_K_GATE_GDN; gate <= SC_K_GATE_KDA_BOUNDED; gate++) {
        sc_k_gates_params p = {.a = noise(0), .b = noise(1 << 18), .dtype = dtype,
            .weights = weights((sc_k_gate)gate), .token_count = TOKENS, .heads = HEADS,
            .dim = DIM, .g = out.base, .beta = out.base + 4ull * TOKENS * HEADS * DIM};
        twice(gates, &p, 4ull * TOKENS * HEADS * (DIM + 1));
    }
    sc_k_l2norm_params l = {.x = noise(0), .y = out.base, .dtype = dtype, .token_count = TOKENS,
        .heads = HEADS, .dim = DIM};
    twice(l2norm, &l, TOKENS * HEADS * DIM * elem(dtype));
    for (int first_gate = 0; first_gate < 2; first_gate++) {
        sc_k_gated_rmsnorm_params r = {.x = noise(0), .z = noise(1 << 18), .y = out.base,
            .dtype = dtype, .weight = noise(1 << 20), .weight_dtype = dtype,
            .gate_first = first_gate, .act = first_gate ? SC_K_ACT_SILU : SC_K_ACT_SIGMOID,
            .token_count = TOKENS, .heads = HEADS, .dim = DIM, .eps = 1e-6f};
        twice(gated_rmsnorm, &r, TOKENS * HEADS * DIM * elem(dtype));
    }
}
END_TEST

static sc_k_delta_shape shape(sc_k_kind kind, uint32_t v_heads)
{
    return (sc_k_delta_shape){.kind = kind, .heads = kind == SC_K_KIND_GDN ? v_heads / 2 : v_heads,
        .v_heads = v_heads, .k_dim = DIM, .v_dim = DIM, .qk_l2norm = true};
}

/* Log decays <= 0 and strengths, made by the kernel for them into `scratch`'s second half. */
static void decays(sc_k_delta_params *p)
{
    const sc_k_delta_shape *s = &p->shape;
    uint64_t n = s->kind == SC_K_KIND_GDN ? 1 : DIM, half = scratch.base + scratch.bytes / 2;
    sc_k_gates_params g = {.a = noise(1 << 18), .b = noise(1 << 19), .dtype = SC_DTYPE_F32,
        .weights = weights(s->kind == SC_K_KIND_GDN ? SC_K_GATE_GDN : SC_K_GATE_KDA_BOUNDED),
        .token_count = TOKENS, .heads = s->v_heads, .dim = DIM, .g = half,
        .beta = half + 4ull * TOKENS * s->v_heads * n};
    OK(sc_k_gates(gpu, &g, stream));
    p->g = g.g, p->beta = g.beta;
}

/* _i: kind, dtype of the tensors, dtype of the states. */
START_TEST(delta__once)
{
    enum { V_HEADS = 2 };
    sc_dtype dtype = dtypes[_i / 2 % 2], state = dtypes[_i / 4];
    sc_k_delta_params p = {.q = noise(0), .k = noise(1 << 17), .v = noise(3 << 16), .o = out.base,
        .dtype = dtype, .shape = shape(_i % 2 ? SC_K_KIND_KDA : SC_K_KIND_GDN, V_HEADS),
        .token_count = TOKENS, .row_count = ROWS, .row_start = index_at(ROW_START),
        .position = index_at(POSITION), .source = index_at(SOURCE), .dest = index_at(DEST),
        .saves = saves()};
    uint64_t o = (uint64_t)TOKENS * V_HEADS * DIM * elem(dtype), part = V_HEADS * DIM * DIM;
    p.state = slots(state, part, o);
    uint64_t bytes = o + SLOTS * part * elem(state);
    decays(&p);
    twice(delta_recurrent, &p, bytes);
    sc_k_slots dense = {noise(1 << 20), 4ll * (int64_t)part, SC_DTYPE_F32, ROWS};
    p.initial = dense;
    twice(delta_recurrent, &p, bytes);
    for (p.chunk = 16; p.chunk <= 64; p.chunk *= 2) {
        OK(sc_k_delta_chunk_scratch(gpu, &p, &p.scratch_bytes));
        ck_assert_uint_le(p.scratch_bytes, scratch.bytes / 2);
        p.scratch = scratch.base;
        p.initial = dense;
        twice(delta_chunk, &p, bytes);
        p.initial.base = 0;
        twice(delta_chunk, &p, bytes);
    }
}
END_TEST

/* The least that reaches every line of a kernel of the delta rule: rows of 70, 0 and 60 tokens, one
 * of which begins inside a chunk, saves, two blocks of columns, one of them not full, and a dense
 * beginning in one of two. `i`: kind, dtype of the states, then of the tensors. */
static void delta_small(int i, uint32_t k_dim, sc_dtype dtype, uint32_t chunk)
{
    enum { V_HEADS = 2, V_DIM = 40, HERE = 130 };
    static const int32_t small[] = {0, 70, 70, HERE, /* row_start */
        0, 64, 9, 1, 2, 3, 5, 6, 7,                  /* position, source, dest */
        0, 2, 64, 64, 10, 11};                       /* saves: rows, positions, slots */
    sc_dtype state = dtypes[i / 2 % 2];
    sc_k_delta_params p = {.q = noise(0), .k = noise(1 << 17), .v = noise(3 << 16), .o = out.base,
        .dtype = dtype, .shape = shape(i % 2 ? SC_K_KIND_KDA : SC_K_KIND_GDN, V_HEADS),
        .token_count = HERE, .row_count = 3, .row_start = ints.base, .position = ints.base + 16,
        .source = ints.base + 28, .dest = ints.base + 40, .chunk = chunk};
    p.saves = (sc_k_saves){ints.base + 52, ints.base + 60, ints.base + 68, 2};
    p.shape.k_dim = k_dim, p.shape.v_dim = V_DIM;
    uint64_t part = (uint64_t)V_HEADS * V_DIM * k_dim;
    uint64_t o = (uint64_t)HERE * V_HEADS * V_DIM * elem(dtype);
    p.state = slots(state, part, (o + 255) / 256 * 256);
    OK(sc_backend_copy(gpu, SC_COPY_H2D, ints.base, sc_host_devptr(small), sizeof small));
    decays(&p);
    if (i % 2 == i / 2 % 2)
        p.initial = (sc_k_slots){noise(1 << 20), 4ll * (int64_t)part, SC_DTYPE_F32, 3};
    if (chunk) OK(sc_k_delta_chunk_scratch(gpu, &p, &p.scratch_bytes));
    ck_assert_uint_le(p.scratch_bytes, scratch.bytes / 2);
    p.scratch = scratch.base;
    once(chunk ? delta_chunk : delta_recurrent, &p,
        (o + 255) / 256 * 256 + SLOTS * part * elem(state));
    OK(sc_backend_copy(gpu, SC_COPY_H2D, ints.base, sc_host_devptr(indices), sizeof indices));
}

START_TEST(delta_walk__once)
{
    delta_small(_i, _i / 8 ? 160 : DIM, dtypes[_i / 4 % 2], 0);
}
END_TEST

/* On the tensor cores. */
START_TEST(delta_mma__once)
{
    delta_small(_i, DIM, SC_DTYPE_BF16, 64);
}
END_TEST

START_TEST(delta_scan__once)
{
    sc_dtype dtype = dtypes[_i / 4];
    delta_small(_i, DIM, dtype, dtype == SC_DTYPE_F32 && _i % 4 == 3 ? 64 : 16u << _i % 2);
}
END_TEST

START_TEST(delta_wide__once)
{
    delta_small(_i, 160, dtypes[_i / 4], 32);
}
END_TEST

/* Heads by which the launcher tells small batches from large ones; 64 is not its width of heads. */
static const struct { uint32_t v_heads, dim; } decodes[] = {{4, 128}, {16, 128}, {32, 128},
    {64, 128}, {256, 128}, {2, 64}};
enum { DECODES = sizeof decodes / sizeof decodes[0] };

static sc_k_decode_packed_params decode_params(int i, uint64_t *bytes_out)
{
    uint32_t v_heads = decodes[i / 8].v_heads, dim = decodes[i / 8].dim;
    sc_dtype dtype = dtypes[i / 2 % 2], state = dtypes[i / 4 % 2];
    sc_k_kind kind = i % 2 ? SC_K_KIND_KDA : SC_K_KIND_GDN;
    sc_k_decode_packed_params p = {.qkv = noise(0), .o = out.base, .dtype = dtype,
        .a = noise(1 << 20), .b = noise(1 << 19), .shape = shape(kind, v_heads),
        .weights = weights(kind == SC_K_KIND_GDN ? SC_K_GATE_GDN : SC_K_GATE_KDA_SOFTPLUS),
        .row_count = ROWS, .source = index_at(SOURCE), .dest = index_at(DEST),
        .save = index_at(SAVE), .state_settled = true};
    uint64_t o = (uint64_t)ROWS * v_heads * dim * elem(dtype);
    uint64_t part = (uint64_t)v_heads * dim * dim;
    p.shape.k_dim = p.shape.v_dim = dim;
    p.state = slots(state, part, (o + 255) / 256 * 256);
    *bytes_out = (o + 255) / 256 * 256 + SLOTS * part * elem(state);
    return p;
}

START_TEST(decode__once)
{
    uint64_t bytes = 0;
    sc_k_decode_packed_params p = decode_params(_i, &bytes);
    twice(decode_packed, &p, bytes);
    p.initial = (sc_k_slots){noise(0), p.state.slot_stride, p.state.dtype, ROWS};
    if ((uint64_t)p.state.slot_stride * ROWS > FLOATS * 4) return; /* more than there is noise */
    twice(decode_packed, &p, bytes);
}
END_TEST

/* q, k and v apart; and how they get apart. */
START_TEST(apart__once)
{
    uint64_t bytes = 0;
    sc_k_decode_packed_params d = decode_params(_i, &bytes);
    const sc_k_delta_shape *s = &d.shape;
    uint64_t qk = (uint64_t)s->heads * s->k_dim, vo = (uint64_t)s->v_heads * s->v_dim;
    sc_k_decode_params p = {.q = d.qkv, .k = d.qkv + ROWS * qk * elem(d.dtype),
        .v = d.qkv + 2 * ROWS * qk * elem(d.dtype), .o = d.o, .dtype = d.dtype, .a = d.a, .b = d.b,
        .weights = d.weights, .shape = d.shape, .row_count = d.row_count, .source = d.source,
        .dest = d.dest, .save = d.save, .state = d.state};
    twice(decode, &p, bytes);
    p.state_settled = true;
    twice(decode, &p, bytes);
    sc_k_qkv_split_params split = {.qkv = d.qkv, .q = out.base,
        .k = out.base + ROWS * qk * elem(d.dtype), .v = out.base + 2 * ROWS * qk * elem(d.dtype),
        .dtype = d.dtype, .qk_dim = (uint32_t)qk, .v_dim = (uint32_t)vo, .token_count = ROWS};
    twice(qkv_split, &split, ROWS * (2 * qk + vo) * elem(d.dtype));
    split.v_dim -= 3, split.qkv_stride = (int64_t)(2 * qk + vo); /* nothing on 16 bytes */
    twice(qkv_split, &split, ROWS * (2 * qk + vo) * elem(d.dtype));
}
END_TEST

struct both {
    sc_k_conv_update_params conv;
    sc_k_decode_packed_params decode;
};

static sc_status step(const void *params)
{
    const struct both *both = params;
    return sc_k_decode_step(gpu, &both->conv, &both->decode, stream);
}

/* Conv and decode; in one kernel where it has one. The window lies behind the states. */
START_TEST(step__once)
{
    uint64_t bytes = 0;
    struct both b = {.decode = decode_params(_i, &bytes)};
    const sc_k_delta_shape *s = &b.decode.shape;
    uint32_t channels = (2 * s->heads + s->v_heads) * s->k_dim;
    uint64_t part = (uint64_t)(WIDTH - 1) * channels;
    b.decode.save = 0;
    b.decode.qkv = scratch.base;
    b.conv = (sc_k_conv_update_params){.x = noise(0), .y = scratch.base, .dtype = b.decode.dtype,
        .weight = noise(1 << 20), .weight_dtype = b.decode.dtype, .act = SC_K_ACT_SILU,
        .channels = channels, .width = WIDTH, .row_count = ROWS, .source = b.decode.source,
        .dest = b.decode.dest, .window = slots(b.decode.dtype, part, bytes),
        .window_settled = true};
    twice(step, &b, bytes + SLOTS * part * elem(b.decode.dtype));
}
END_TEST

/* _i: both dtypes of three; short rows (heads) and long ones (windows), all in one call. */
START_TEST(move__once)
{
    static const sc_dtype kinds[3] = {SC_DTYPE_F32, SC_DTYPE_BF16, SC_DTYPE_U8};
    static const uint64_t sizes[3] = {4, 2, 1};
    enum { PARTS = 6 };
    sc_k_move_part parts[PARTS];
    uint64_t at = 0, read = 0;
    for (uint32_t i = 0; i < PARTS; i++) {
        uint32_t rows = i % 2 ? 3 : 20, elems = i % 2 ? 1500 : 128;
        uint64_t part = (uint64_t)rows * elems;
        uint32_t from = (uint32_t)_i % 3, to = (uint32_t)_i / 3;
        parts[i] = (sc_k_move_part){.rows = rows, .row_elems = elems,
            .from = {in.base + read, (int64_t)(part * sizes[from]), kinds[from], SLOTS},
            .to = {out.base + at, (int64_t)(part * sizes[to]), kinds[to], SLOTS}};
        read += SLOTS * part * sizes[from], at += SLOTS * part * sizes[to];
        if (kinds[from] == SC_DTYPE_U8)
            parts[i].from_scale = (sc_k_slots){in.base + read, 4 * rows, SC_DTYPE_F32, SLOTS};
        if (kinds[to] == SC_DTYPE_U8)
            parts[i].to_scale = (sc_k_slots){out.base + at, 4 * rows, SC_DTYPE_F32, SLOTS};
        read += SLOTS * 4ull * rows, at += SLOTS * 4ull * rows;
    }
    sc_k_move_params p = {.parts = parts, .part_count = PARTS, .row_count = ROWS,
        .source = index_at(SOURCE), .dest = index_at(DEST)};
    twice(move, &p, at);
    p.source = 0; /* scatter */
    twice(move, &p, at);
    p.source = index_at(SOURCE), p.dest = 0; /* gather */
    twice(move, &p, at);
}
END_TEST

struct copying {
    struct sc_backend_rows rows;
    struct sc_backend_span *spans;
    uint32_t span_count;
};

static sc_status copy(const void *params)
{
    const struct copying *c = params;
    SC_TRY(sc_backend_copy_rows(gpu, &c->rows, stream));
    return sc_backend_copy_async(gpu, SC_COPY_D2D, c->spans, c->span_count, stream);
}

/* The small table and the large one: few parts, or many of sizes that make no run. */
START_TEST(copies__once)
{
    enum { PARTS = 90 };
    struct sc_backend_part parts[PARTS];
    struct sc_backend_span spans[PARTS];
    uint32_t count = _i ? PARTS : 4;
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes = _i ? 4096 + 48 * i : 8192;
        parts[i] = (struct sc_backend_part){.dst = out.base + at, .src = in.base + at,
            .dst_stride = bytes, .src_stride = bytes, .bytes = bytes};
        at += bytes * SLOTS + (_i ? 0 : 256);
    }
    for (uint32_t i = 0; i < count; i++)
        spans[i] = (struct sc_backend_span){out.base + at + 5000ull * i,
            in.base + 8192ull * i + (uint32_t)_i, 4000 + i};
    struct copying c = {.rows = {.parts = parts, .part_count = count, .row_count = ROWS,
        .dst_slots = &indices[DEST], .src_slots = &indices[SOURCE]}, .spans = spans,
        .span_count = count};
    twice(copy, &c, at + 5000ull * count);
    c.rows.dst_slots = (const int32_t *)(uintptr_t)index_at(DEST);
    c.rows.src_slots = (const int32_t *)(uintptr_t)index_at(SOURCE);
    c.rows.slots_on_device = true;
    twice(copy, &c, at + 5000ull * count);
}
END_TEST

static void open_memory(void)
{
    OK(sc_backend_stream_create(gpu, &stream));
    OK(sc_backend_alloc(gpu, FLOATS * 4, &in));
    OK(sc_backend_alloc(gpu, OUT_BYTES, &out));
    OK(sc_backend_alloc(gpu, (uint64_t)64 << 20, &scratch));
    OK(sc_backend_alloc(gpu, sizeof indices, &ints));
    fill(&in, 1, 1.0f);
    fill(&out, 2, 0.2f);
    OK(sc_backend_copy(gpu, SC_COPY_H2D, ints.base, sc_host_devptr(indices), sizeof indices));
    first = malloc(OUT_BYTES), second = malloc(OUT_BYTES), start = malloc(OUT_BYTES);
    ck_assert(first != NULL && second != NULL && start != NULL);
    read_out(start, OUT_BYTES);
}

static void close_memory(void)
{
    struct sc_backend_memory *all[] = {&in, &out, &scratch, &ints};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) sc_backend_free(gpu, all[i]);
    sc_backend_stream_destroy(gpu, stream);
    free(first), free(second), free(start);
}

int main(void)
{
    if (sc_backend_open("cuda", &gpu) != SC_OK) {
        fprintf(stderr, "skipped: %s\n", sc_last_error()->text);
        return 77;
    }
    Suite *suite = suite_create("gpu_once");
    const struct { const char *name; const TTest *test; int count; } cases[] = {
        {"conv", conv__once, 4}, {"small", gates_and_norms__once, 2}, {"delta", delta__once, 8},
        {"delta_walk", delta_walk__once, 16}, {"delta_mma", delta_mma__once, 4},
        {"delta_scan", delta_scan__once, 8}, {"delta_wide", delta_wide__once, 8},
        {"decode", decode__once, 8 * DECODES}, {"apart", apart__once, 8 * DECODES},
        {"step", step__once, 8 * 4},
        {"move", move__once, 9}, {"copies", copies__once, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) { /* CK_RUN_CASE: one of them */
        TCase *tcase = tcase_create(cases[i].name);
        tcase_set_timeout(tcase, 600);
        tcase_add_unchecked_fixture(tcase, open_memory, close_memory);
        tcase_add_loop_test(tcase, cases[i].test, 0, cases[i].count);
        suite_add_tcase(suite, tcase);
    }
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The operations as `kernels` runs them. Thread t of n serves rows of its own: its share of the
 * slots of a decode, a sequence of its own in a prefill; it has tensors of its own, too. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/prng.h"
#include "kernels_work.h"
#include "statecache/kernels_draft.h"
#include "statecache/kernels_ssm.h"

enum { CONV_WIDTH = 4, CHUNK = 64, SSM_CHUNK = 128, SMALL_BYTES = 96 << 20 };

static uint64_t elem(sc_dtype dtype)
{
    return dtype == SC_DTYPE_BF16 ? 2 : dtype == SC_DTYPE_F32 ? 4 : 0;
}

static uint64_t channels(const struct kbench_model *m)
{
    return 2ull * m->heads * m->k_dim + (uint64_t)m->v_heads * m->v_dim;
}

static uint64_t gate_count(const struct kbench_model *m)
{
    return (uint64_t)m->v_heads * (m->kind == SC_K_KIND_KDA ? m->k_dim : 1);
}

static uint64_t outputs(const struct kbench_model *m)
{
    return (uint64_t)m->v_heads * m->v_dim;
}

static bool by_rows(const struct kbench_case *c)
{
    return c->op == KBENCH_DECODE || c->op == KBENCH_CONV_UPDATE || c->op == KBENCH_VERIFY
        || c->op == KBENCH_REPLAY;
}

bool kbench_has(const struct kbench_model *model, enum kbench_op op)
{
    return !model->ssm || (op != KBENCH_GATES && op != KBENCH_L2NORM && op != KBENCH_VERIFY);
}

sc_k_op kbench_library_op(const struct kbench_case *c)
{
    static const sc_k_op ops[KBENCH_OPS] = {SC_K_OP_DECODE_PACKED, SC_K_OP_DELTA_CHUNK,
        SC_K_OP_DELTA_RECURRENT, SC_K_OP_CONV_PREFILL, SC_K_OP_CONV_UPDATE, SC_K_OP_GATES,
        SC_K_OP_GATED_RMSNORM, SC_K_OP_L2NORM, SC_K_OP_DELTA_VERIFY,
        SC_K_OP_REPLAY_DELTA};
    if (c->model->ssm && c->op == KBENCH_CHUNK)
        return SC_K_OP_SSM_CHUNK;
    if (c->model->ssm && c->op == KBENCH_REPLAY)
        return SC_K_OP_REPLAY_SSM;
    if (c->model->ssm && (c->op == KBENCH_DECODE || c->op == KBENCH_RECURRENT))
        return SC_K_OP_SSM;
    return ops[c->op];
}

static uint64_t rows(const struct kbench_case *c)
{
    return (uint64_t)c->batch * c->tokens;
}

/* Small normal numbers in either dtype, `scale` large; 64-byte aligned. */
void *kbench_values(uint64_t count, sc_dtype dtype, float scale)
{
    uint64_t bytes = (count * elem(dtype) + 4095) / 4096 * 4096;
    void *memory = aligned_alloc(4096, bytes);
    if (!memory)
        bench_fail(BENCH_NO_MEMORY, "out of memory (%llu bytes)", (unsigned long long)bytes);
    memset(memory, 0, bytes);
    struct sc_prng prng;
    sc_prng_seed(&prng, count);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t u = sc_prng_next(&prng);
        float sum = (float)(u & 0xffff) + (float)(u >> 16 & 0xffff) + (float)(u >> 32 & 0xffff);
        float x = scale * 2.0f * (sum / 65536.0f - 1.5f);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (dtype == SC_DTYPE_F32)
            ((float *)memory)[i] = x;
        else
            ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
    }
    return memory;
}

static float *gates(uint64_t count, float from, float to)
{
    float *g = kbench_values(count, SC_DTYPE_F32, 1.0f);
    for (uint64_t i = 0; i < count; i++)
        g[i] = from + (to - from) * (float)(i * 2654435761u % 1024) / 1024.0f;
    return g;
}

static void lane_open(struct kbench_work *w, struct lane *lane)
{
    const struct kbench_model *m = w->c.model;
    uint64_t n = rows(&w->c), wide = channels(m), heads = m->v_heads;
    lane->in = kbench_values(n * wide, w->c.dtype, 1.0f);
    lane->out = kbench_values(n * wide, w->c.dtype, 1.0f);
    lane->small[0] = gates(n * gate_count(m), -0.2f, -0.01f);
    lane->small[1] = gates(n * heads, 0.1f, 0.9f);
    lane->small[2] = kbench_values(wide * CONV_WIDTH, w->c.dtype, 0.5f);
    lane->small[3] = kbench_values(gate_count(m) + wide, SC_DTYPE_F32, 0.1f);
    lane->source = bench_alloc(w->c.batch, sizeof(int32_t));
    lane->dest = bench_alloc(w->c.batch, sizeof(int32_t));
    lane->records = bench_alloc(w->c.batch, sizeof(int32_t));
    lane->mode = bench_alloc(w->c.batch, sizeof(int32_t));
    lane->row_start = bench_alloc(w->c.batch + 1, sizeof(int32_t));
    for (uint32_t r = 0; r <= w->c.batch; r++) lane->row_start[r] = (int32_t)(r * w->c.tokens);
    if (m->ssm)
        lane->dt = kbench_values(n * heads, w->c.dtype, 1.0f);
    if (!by_rows(&w->c) && w->part_bytes)
        lane->state = kbench_values(2 * w->part_bytes / elem(w->c.state), w->c.state, 0.1f);
    lane->dest[0] = 1;
}

void *kbench_pages(uint64_t bytes)
{
    enum { HUGE_BYTES = 2 << 20 };
    uint64_t whole = (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    void *memory = aligned_alloc(HUGE_BYTES, whole);
    if (!memory)
        bench_fail(BENCH_NO_MEMORY, "out of memory (%llu bytes)", (unsigned long long)bytes);
    (void)madvise(memory, whole, MADV_HUGEPAGE);
    return memory;
}

static void pool_open(struct kbench_work *w, uint64_t pool_bytes)
{
    uint64_t count = pool_bytes / w->part_bytes / w->c.batch * w->c.batch;
    uint64_t least = (uint64_t)w->threads * w->c.batch;
    if (count < least)
        count = least;
    uint64_t block = w->part_bytes * 4, total = (count + 1) * w->part_bytes;
    w->pool = kbench_pages(total);
    void *pattern = kbench_values(block / elem(w->c.state), w->c.state, 0.1f);
    for (uint64_t at = 0; at < total; at += block)
        memcpy((uint8_t *)w->pool + at, pattern, total - at < block ? total - at : block);
    free(pattern);
    w->calls = (uint32_t)(count / w->c.batch / w->threads);
    for (uint32_t t = 0; t < w->threads; t++) {
        w->lanes[t].first = 1 + t * w->calls * w->c.batch;
        w->lanes[t].slots = w->calls * w->c.batch;
    }
}

sc_k_delta_shape kbench_shape(const struct kbench_model *m)
{
    return (sc_k_delta_shape){.kind = m->kind, .heads = m->heads, .v_heads = m->v_heads,
        .k_dim = m->k_dim, .v_dim = m->v_dim, .qk_l2norm = true};
}

struct kbench_work *kbench_open(const struct kbench_case *c, uint64_t pool_bytes,
    uint32_t threads)
{
    struct kbench_work *w = bench_alloc(1, sizeof *w);
    w->c = *c;
    w->threads = threads;
    w->lanes = bench_alloc(threads, sizeof *w->lanes);
    if (c->op == KBENCH_CONV_PREFILL || c->op == KBENCH_CONV_UPDATE)
        w->part_bytes = (CONV_WIDTH - 1) * channels(c->model) * elem(c->state);
    else if (c->state)
        w->part_bytes = outputs(c->model) * c->model->k_dim * elem(c->state);
    for (uint32_t t = 0; t < threads; t++) lane_open(w, &w->lanes[t]);
    w->calls = 1;
    if (by_rows(c))
        pool_open(w, c->op == KBENCH_CONV_UPDATE ? pool_bytes / 8 : pool_bytes);
    else if (kbench_limit_of(c->op) == KBENCH_MEMORY)
        w->calls = (uint32_t)((pool_bytes < SMALL_BYTES ? pool_bytes : SMALL_BYTES)
            / (kbench_bytes(w) / threads)) + 1;
    if (c->op == KBENCH_REPLAY)
        kbench_rings_open(w);
    return w;
}

void kbench_close(struct kbench_work *w)
{
    for (uint32_t t = 0; t < w->threads; t++) {
        struct lane *lane = &w->lanes[t];
        free(lane->in), free(lane->out), free(lane->state), free(lane->scratch);
        free(lane->source), free(lane->dest), free(lane->row_start), free(lane->dt);
        free(lane->records), free(lane->mode);
        for (int i = 0; i < 4; i++) free(lane->small[i]);
    }
    free(w->pool), free(w->rings), free(w->lanes), free(w);
}

/* x, B and C are columns of one row, as the conv leaves them. */
sc_k_ssm_params kbench_ssm_params(const struct kbench_work *w, const struct lane *lane,
    sc_k_slots slots)
{
    const struct kbench_model *m = w->c.model;
    uint64_t e = elem(w->c.dtype), vo = outputs(m), n = (uint64_t)m->heads * m->k_dim;
    int64_t wide = (int64_t)channels(m);
    const uint8_t *in = lane->in;
    return (sc_k_ssm_params){.x = dev(in), .dt = dev(lane->dt),
        .b = dev(in + vo * e), .c = dev(in + (vo + n) * e),
        .y = dev(lane->out), .x_stride = wide, .b_stride = wide, .c_stride = wide,
        .dtype = w->c.dtype, .a_log = dev(lane->small[3]),
        .d = dev(lane->small[3]), .heads = m->v_heads, .groups = m->heads,
        .head_dim = m->v_dim, .state_dim = m->k_dim, .token_count = (uint32_t)rows(&w->c),
        .row_count = w->c.batch, .row_start = dev(lane->row_start),
        .source = dev(lane->source), .dest = dev(lane->dest), .state = slots};
}

/* Token by token, or chunk by chunk. */
static void run_ssm(struct kbench_work *w, struct lane *lane, sc_k_slots slots)
{
    uint64_t bytes = 0;
    sc_k_ssm_chunk_params p = {.tokens = kbench_ssm_params(w, lane, slots), .chunk = SSM_CHUNK};
    if (w->c.op != KBENCH_CHUNK) {
        bench_must(sc_k_ssm(NULL, &p.tokens, NULL), "sc_k_ssm");
        return;
    }
    bench_must(sc_k_ssm_chunk_scratch(NULL, &p, &bytes), "sc_k_ssm_chunk_scratch");
    if (!lane->scratch)
        lane->scratch = kbench_values((bytes + 4095) / 4, SC_DTYPE_F32, 0.0f);
    p.scratch = dev(lane->scratch);
    p.scratch_bytes = bytes;
    bench_must(sc_k_ssm_chunk(NULL, &p, NULL), "sc_k_ssm_chunk");
}

/* Chains of drafts from states in slots, none stored. */
static void run_verify(struct kbench_work *w, struct lane *lane, sc_k_slots slots)
{
    const struct kbench_model *m = w->c.model;
    uint64_t qk = (uint64_t)m->heads * m->k_dim, e = elem(w->c.dtype), bytes = 0;
    const uint8_t *in = lane->in;
    sc_k_delta_verify_params p = {.tokens = {.q = dev(in), .k = dev(in + qk * e),
        .v = dev(in + 2 * qk * e), .o = dev(lane->out), .q_stride = (int64_t)channels(m),
        .k_stride = (int64_t)channels(m), .v_stride = (int64_t)channels(m), .dtype = w->c.dtype,
        .g = dev(lane->small[0]), .beta = dev(lane->small[1]), .shape = kbench_shape(m),
        .token_count = (uint32_t)rows(&w->c), .row_count = w->c.batch,
        .row_start = dev(lane->row_start), .source = dev(lane->source), .state = slots},
        .tokens_max = w->c.tokens};
    bench_must(sc_k_delta_verify_scratch(NULL, &p, &bytes), "sc_k_delta_verify_scratch");
    if (!lane->scratch)
        lane->scratch = kbench_values((bytes + 4095) / 4, SC_DTYPE_F32, 0.0f);
    p.tokens.scratch = dev(lane->scratch);
    p.tokens.scratch_bytes = bytes;
    bench_must(sc_k_delta_verify(NULL, &p, NULL), "sc_k_delta_verify");
}

sc_k_slots kbench_rows(const struct kbench_work *w, struct lane *lane, uint32_t call)
{
    uint32_t first = lane->first + call * w->c.batch;
    for (uint32_t r = 0; r < w->c.batch; r++)
        lane->source[r] = lane->dest[r] = (int32_t)(first + r);
    return (sc_k_slots){dev(w->pool), (int64_t)w->part_bytes, w->c.state, 0};
}

sc_k_decode_packed_params kbench_decode_params(const struct kbench_work *w,
    const struct lane *lane, sc_k_slots slots)
{
    return (sc_k_decode_packed_params){.qkv = dev(lane->in), .o = dev(lane->out),
        .dtype = w->c.dtype, .g = dev(lane->small[0]), .beta = dev(lane->small[1]),
        .shape = kbench_shape(w->c.model), .row_count = w->c.batch,
        .source = dev(lane->source), .dest = dev(lane->dest), .state = slots};
}

void kbench_decode(struct kbench_work *w, struct lane *lane, sc_k_slots slots)
{
    if (w->c.model->ssm) {
        run_ssm(w, lane, slots);
        return;
    }
    sc_k_decode_packed_params p = kbench_decode_params(w, lane, slots);
    bench_must(sc_k_decode_packed(NULL, &p, NULL), "sc_k_decode_packed");
}

static void run_by_rows(struct kbench_work *w, struct lane *lane, uint32_t call)
{
    sc_k_slots slots = kbench_rows(w, lane, call);
    if (w->c.op == KBENCH_VERIFY) {
        run_verify(w, lane, slots);
        return;
    }
    if (w->c.op == KBENCH_DECODE) {
        kbench_decode(w, lane, slots);
        return;
    }
    sc_k_conv_update_params p = {.x = dev(lane->in), .y = dev(lane->out), .dtype = w->c.dtype,
        .weight = dev(lane->small[2]), .weight_dtype = w->c.dtype, .act = SC_K_ACT_SILU,
        .channels = (uint32_t)channels(w->c.model), .width = CONV_WIDTH, .row_count = w->c.batch,
        .source = dev(lane->source), .dest = dev(lane->dest), .window = slots};
    bench_must(sc_k_conv_update(NULL, &p, NULL), "sc_k_conv_update");
}

static void run_delta(struct kbench_work *w, struct lane *lane)
{
    const struct kbench_model *m = w->c.model;
    uint64_t qk = (uint64_t)m->heads * m->k_dim, bytes = 0, e = elem(w->c.dtype);
    const uint8_t *in = lane->in;
    sc_k_slots slots = {dev(lane->state), (int64_t)w->part_bytes, w->c.state, 2};
    if (m->ssm) {
        run_ssm(w, lane, slots);
        return;
    }
    sc_k_delta_params p = {.q = dev(in), .k = dev(in + qk * e), .v = dev(in + 2 * qk * e),
        .o = dev(lane->out), .q_stride = (int64_t)channels(m), .k_stride = (int64_t)channels(m),
        .v_stride = (int64_t)channels(m), .dtype = w->c.dtype, .g = dev(lane->small[0]),
        .beta = dev(lane->small[1]), .shape = kbench_shape(m), .token_count = w->c.tokens,
        .row_count = 1, .row_start = dev(lane->row_start), .source = dev(lane->source),
        .dest = dev(lane->dest),
        .state = slots, .chunk = CHUNK};
    if (w->c.op == KBENCH_RECURRENT) {
        bench_must(sc_k_delta_recurrent(NULL, &p, NULL), "sc_k_delta_recurrent");
        return;
    }
    bench_must(sc_k_delta_chunk_scratch(NULL, &p, &bytes), "sc_k_delta_chunk_scratch");
    if (!lane->scratch)
        lane->scratch = kbench_values((bytes + 4095) / 4, SC_DTYPE_F32, 0.0f);
    p.scratch = dev(lane->scratch);
    p.scratch_bytes = bytes;
    bench_must(sc_k_delta_chunk(NULL, &p, NULL), "sc_k_delta_chunk");
}

static void run_conv(struct kbench_work *w, struct lane *lane)
{
    sc_k_conv_prefill_params p = {.x = dev(lane->in), .y = dev(lane->out), .dtype = w->c.dtype,
        .weight = dev(lane->small[2]), .weight_dtype = w->c.dtype, .act = SC_K_ACT_SILU,
        .channels = (uint32_t)channels(w->c.model), .width = CONV_WIDTH,
        .token_count = w->c.tokens, .row_count = 1, .row_start = dev(lane->row_start),
        .source = dev(lane->source), .dest = dev(lane->dest),
        .window = {dev(lane->state), (int64_t)w->part_bytes, w->c.state, 2}};
    bench_must(sc_k_conv_prefill(NULL, &p, NULL), "sc_k_conv_prefill");
}

static void run_small(struct kbench_work *w, struct lane *lane)
{
    const struct kbench_model *m = w->c.model;
    if (w->c.op == KBENCH_GATES) {
        sc_k_gates_params p = {.a = dev(lane->in), .b = dev(lane->in), .dtype = w->c.dtype,
            .weights = {.gate = m->kind == SC_K_KIND_KDA ? SC_K_GATE_KDA_SOFTPLUS
                                                         : SC_K_GATE_GDN,
                .a_log = dev(lane->small[3]), .dt_bias = dev(lane->small[3]),
                .dt_bias_dtype = SC_DTYPE_F32},
            .token_count = w->c.tokens, .heads = m->v_heads, .dim = m->k_dim,
            .g = dev(lane->small[0]), .beta = dev(lane->small[1])};
        bench_must(sc_k_gates(NULL, &p, NULL), "sc_k_gates");
    } else if (w->c.op == KBENCH_RMSNORM) {
        sc_k_gated_rmsnorm_params p = {.x = dev(lane->in), .z = dev(lane->in),
            .y = dev(lane->out), .dtype = w->c.dtype, .weight = dev(lane->small[2]),
            .weight_dtype = w->c.dtype, .act = SC_K_ACT_SILU, .token_count = w->c.tokens,
            .heads = m->v_heads, .dim = m->v_dim, .eps = 1e-6f};
        bench_must(sc_k_gated_rmsnorm(NULL, &p, NULL), "sc_k_gated_rmsnorm");
    } else {
        sc_k_l2norm_params p = {.x = dev(lane->in), .y = dev(lane->out), .dtype = w->c.dtype,
            .token_count = w->c.tokens, .heads = m->heads, .dim = m->k_dim};
        bench_must(sc_k_l2norm(NULL, &p, NULL), "sc_k_l2norm");
    }
}

void kbench_run(struct kbench_work *w, uint32_t thread)
{
    struct lane *lane = &w->lanes[thread];
    if (w->c.op == KBENCH_REPLAY) {
        kbench_ring_append(w, thread);
        kbench_ring_flush(w, thread);
        return;
    }
    for (uint32_t call = 0; call < w->calls; call++)
        if (by_rows(&w->c))
            run_by_rows(w, lane, call);
        else if (w->c.op == KBENCH_CHUNK || w->c.op == KBENCH_RECURRENT)
            run_delta(w, lane);
        else if (w->c.op == KBENCH_CONV_PREFILL)
            run_conv(w, lane);
        else
            run_small(w, lane);
}

void kbench_scale(struct kbench_work *w, uint32_t thread)
{
    struct lane *lane = &w->lanes[thread];
    float one = 1.0f;
    if (by_rows(&w->c)) {
        uint32_t passes = w->c.op == KBENCH_REPLAY ? KBENCH_CYCLE * w->c.passes : 1;
        for (uint32_t pass = 0; pass < passes; pass++)
            for (uint32_t s = lane->first; s < lane->first + lane->slots; s++)
                kbench_scale_memory((uint8_t *)w->pool + s * w->part_bytes, w->part_bytes, one);
        return;
    }
    /* as many bytes as the operation moves, half of them read and half written, in its memory */
    uint64_t each = kbench_scale_bytes(w) / w->threads / w->calls / 2;
    uint64_t have = rows(&w->c) * channels(w->c.model) * elem(w->c.dtype);
    for (uint32_t call = 0; call < w->calls; call++) {
        kbench_scale_memory(lane->in, each < have ? each : have, one);
        if (each > have)
            kbench_scale_memory(lane->out, each - have, one);
    }
}

const char *kbench_op_name(enum kbench_op op)
{
    static const char *const names[KBENCH_OPS] = {"decode", "chunk", "recurrent", "conv prefill",
        "conv update", "gates", "gated rmsnorm", "l2norm", "verify", "replay"};
    return names[op];
}

enum kbench_limit kbench_limit_of(enum kbench_op op)
{
    return op == KBENCH_CHUNK || op == KBENCH_RECURRENT ? KBENCH_SGEMM : KBENCH_MEMORY;
}

uint64_t kbench_calls(const struct kbench_work *w)
{
    return (uint64_t)w->calls * w->threads
        * (w->c.op == KBENCH_REPLAY ? KBENCH_CYCLE * w->c.passes : 1);
}

/* Tensors of the tokens of one call. */
static uint64_t token_bytes(const struct kbench_work *w)
{
    const struct kbench_model *m = w->c.model;
    return rows(&w->c) * ((channels(m) + outputs(m)) * elem(w->c.dtype)
        + (gate_count(m) + m->v_heads) * 4);
}

uint64_t kbench_bytes(const struct kbench_work *w)
{
    const struct kbench_model *m = w->c.model;
    uint64_t n = rows(&w->c), e = elem(w->c.dtype), each = 0;
    uint64_t delta = token_bytes(w);
    switch (w->c.op) {
    case KBENCH_DECODE: each = delta + 2 * w->part_bytes * w->c.batch; break;
    case KBENCH_VERIFY: each = delta + w->part_bytes * w->c.batch; break;
    case KBENCH_REPLAY: /* the state once, and written at the end of a cycle; records */
        each = delta + w->c.batch * (w->part_bytes + w->part_bytes / KBENCH_CYCLE
            + w->record_bytes * (uint64_t)KBENCH_RECORDS / 2
            + w->record_bytes * (uint64_t)KBENCH_RECORDS / KBENCH_CYCLE);
        break;
    case KBENCH_CHUNK:
    case KBENCH_RECURRENT: each = delta + w->part_bytes; break; /* from the zero state */
    case KBENCH_CONV_PREFILL: each = 2 * n * channels(m) * e + w->part_bytes; break;
    case KBENCH_CONV_UPDATE:
        each = 2 * n * channels(m) * e + 2 * w->part_bytes * w->c.batch;
        break;
    case KBENCH_GATES: each = n * (gate_count(m) + m->v_heads) * (e + 4); break;
    case KBENCH_RMSNORM: each = 3 * n * outputs(m) * e; break;
    default: each = 2 * n * m->heads * m->k_dim * e; break;
    }
    return each * kbench_calls(w);
}

uint64_t kbench_decode_bytes(const struct kbench_work *w)
{
    return token_bytes(w) * kbench_calls(w) + 2 * w->part_bytes * w->c.batch * kbench_calls(w);
}

uint64_t kbench_scale_bytes(const struct kbench_work *w)
{
    if (by_rows(&w->c))
        return 2 * w->part_bytes * w->c.batch * kbench_calls(w);
    return kbench_bytes(w);
}

uint64_t kbench_flops(const struct kbench_work *w)
{
    const struct kbench_model *m = w->c.model;
    uint64_t k = m->k_dim, v = m->v_dim, n = rows(&w->c) * kbench_calls(w);
    switch (w->c.op) {
    case KBENCH_REPLAY: /* the base read for one vector or two, then each token stepped once more */
        return n * m->v_heads * ((m->ssm ? 2u : 4u) * k * v * KBENCH_RECORDS / KBENCH_CYCLE
            + (m->ssm ? 5u : 7u) * k * v);
    case KBENCH_DECODE:
    case KBENCH_VERIFY:
    case KBENCH_RECURRENT: return n * m->v_heads * (m->ssm ? 5 : 7) * k * v;
    case KBENCH_CHUNK:
        if (m->ssm)
            return n * (m->v_heads * (4 * k * v + 2 * SSM_CHUNK * v)
                + m->heads * 2 * SSM_CHUNK * k);
        return n * m->v_heads * (6 * k * v + 128 * (3 * k + 2 * v));
    case KBENCH_CONV_PREFILL:
    case KBENCH_CONV_UPDATE: return n * channels(m) * 2 * CONV_WIDTH;
    default: return 0;
    }
}

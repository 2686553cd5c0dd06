/* SPDX-License-Identifier: Apache-2.0 */
/* `statecache-bench gpu`: the library's kernels on one device beside what that device can do.
 *
 * Shapes are those of Qwen3-Next (GDN: 16 q/k and 32 v heads of 128) and of Kimi-Linear (KDA: 32
 * heads of 128), 36 layers. "Limit" is the rate of one device copy of 2 GiB, bytes read and written
 * counted. Calls are captured in a CUDA graph over randomly permuted slots of a pool much larger
 * than L2, so that each reads cold states; medians of 9 replays behind 0.2 s of them. A graph holds
 * CALLS calls where they are short beside its own start, which is no part of them. */
#include "gpu_cases.cuh"
#include "gpu_chunk.cuh"
#include "gpu_layouts.cuh"

#include <atomic>
#include <cstring>
#include <thread>

namespace {

bool wanted(const bench &b, const char *section)
{
    return b.only == nullptr || strstr(b.only, section) != nullptr;
}

/* ------------------------------------------------------------------------------------- limits */

/* Not in a graph: there a large device copy runs at half its rate. */
timing copy_us(const bench &b, void *dst, const void *src, uint64_t bytes, cudaMemcpyKind kind)
{
    return eager_us(b.stream, 4, [&](uint32_t) {
        CUDA_MUST(cudaMemcpyAsync(dst, src, bytes, kind, b.stream));
    });
}

void limits(bench &b)
{
    const uint64_t bytes = 2ull << 30, host_bytes = 256ull << 20;
    uint8_t *from = (uint8_t *)noisy<float>(bytes / 4), *to = buffer<uint8_t>(bytes);
    void *host = nullptr;
    CUDA_MUST(cudaHostAlloc(&host, host_bytes, cudaHostAllocDefault));
    memset(host, 1, host_bytes);
    timing copy = copy_us(b, to, from, bytes, cudaMemcpyDeviceToDevice);
    b.limit = 2.0 * bytes / copy;
    timing read = graph_us(b.stream, 4, [&](uint32_t) {
        read_all<<<132 * 16, 512, 0, b.stream>>>((const uint4 *)from, bytes / 16, (uint32_t *)to);
    });
    timing up = copy_us(b, to, host, host_bytes, cudaMemcpyHostToDevice);
    timing down = copy_us(b, host, to, host_bytes, cudaMemcpyDeviceToHost);
    heading(b, "limits");
    report(b, "device copy, 2 GiB, read + write (the limit)", copy, b.limit / 1e3, "GB/s", 0.0,
        false);
    report(b, "read only, 2 GiB", read, bytes / read / 1e3, "GB/s", 0.0, false);
    report(b, "pinned host to device, 256 MB", up, host_bytes / up / 1e3, "GB/s", 0.0, false);
    report(b, "device to pinned host, 256 MB", down, host_bytes / down / 1e3, "GB/s", 0.0, false);
    CUDA_MUST(cudaFreeHost(host));
    CUDA_MUST(cudaFree(from));
    CUDA_MUST(cudaFree(to));
}

/* ------------------------------------------------------------------------------------- decode */

timing rewrite_us(const bench &b, void *pool, uint64_t slot_bytes, const int32_t *slots,
    uint32_t slot_count, uint32_t batch)
{
    timing best = {1e30, 1e30, 1e30, 0};
    uint64_t vectors = slot_bytes / 16;
    uint32_t batches = slot_count / batch;
    best = std::min(best, graph_us(b.stream, CALLS, [&](uint32_t i) {
        rewrite<128, 1><<<dim3(vectors / 128, batch), 128, 0, b.stream>>>((uint4 *)pool, vectors,
            slots + (uint64_t)(i % batches) * batch);
    }));
    best = std::min(best, graph_us(b.stream, CALLS, [&](uint32_t i) {
        rewrite<256, 1><<<dim3(vectors / 256, batch), 256, 0, b.stream>>>((uint4 *)pool, vectors,
            slots + (uint64_t)(i % batches) * batch);
    }));
    return std::min(best, graph_us(b.stream, CALLS, [&](uint32_t i) {
        rewrite<256, 4><<<dim3(vectors / 1024, batch), 256, 0, b.stream>>>((uint4 *)pool, vectors,
            slots + (uint64_t)(i % batches) * batch);
    }));
}

void decode_one(bench &b, sc_k_kind kind, sc_dtype state, uint32_t batch, void *pool,
    uint32_t pool_slots, double bar)
{
    uint64_t slot_bytes = (uint64_t)HV * D * D * (state == SC_DTYPE_F32 ? 4 : 2);
    std::vector<int32_t> order(pool_slots);
    shuffle(order.data(), pool_slots, batch);
    int32_t *slots = upload(order.data(), pool_slots);
    decode_inputs in = decode_setup(kind, state, batch);
    in.p.state.base = dev(pool);
    in.p.state.slot_stride = (int64_t)slot_bytes;
    timing us = graph_us(b.stream, CALLS, [&](uint32_t i) {
        sc_k_decode_packed_params p = in.p;
        p.source = p.dest = dev(slots + (uint64_t)(i % (pool_slots / batch)) * batch);
        SC_MUST(sc_k_decode_packed(b.backend, &p, as_stream(b.stream)));
    });
    timing apart_us = graph_us(b.stream, CALLS, [&](uint32_t i) {
        sc_k_decode_params p = apart_of(in.p);
        p.source = p.dest = dev(slots + (uint64_t)(i % (pool_slots / batch)) * batch);
        SC_MUST(sc_k_decode(b.backend, &p, as_stream(b.stream)));
    });
    timing plain = rewrite_us(b, pool, slot_bytes, slots, pool_slots, batch);
    double bytes = batch * (2.0 * slot_bytes + in.bytes);
    char name[64];
    snprintf(name, sizeof name, "%s %s B=%u", kind == SC_K_KIND_GDN ? "GDN" : "KDA",
        state == SC_DTYPE_F32 ? "fp32" : "bf16", batch);
    line(b, name, us, bytes, batch >= 64 ? bar : 0.0);
    snprintf(name, sizeof name, "%s %s B=%u to a plain rewrite",
        kind == SC_K_KIND_GDN ? "GDN" : "KDA", state == SC_DTYPE_F32 ? "fp32" : "bf16", batch);
    report(b, name, plain, us / plain, "x plain", batch < 64 ? 1.08 : 0.0, true);
    snprintf(name, sizeof name, "%s %s B=%u, q, k and v apart",
        kind == SC_K_KIND_GDN ? "GDN" : "KDA", state == SC_DTYPE_F32 ? "fp32" : "bf16", batch);
    if (batch >= 64)
        line(b, name, apart_us, bytes, bar);
    else
        report(b, name, apart_us, apart_us / plain, "x plain", 1.08, true);
    decode_free(in);
    CUDA_MUST(cudaFree(slots));
}

void decode(bench &b)
{
    static const struct {
        sc_k_kind kind;
        sc_dtype state;
        double bars[3];
    } kinds[] = {{SC_K_KIND_GDN, SC_DTYPE_F32, {95, 94, 92}},
        {SC_K_KIND_KDA, SC_DTYPE_F32, {94, 93, 91}}, {SC_K_KIND_GDN, SC_DTYPE_BF16, {92, 90, 87}},
        {SC_K_KIND_KDA, SC_DTYPE_BF16, {90, 88, 85}}};
    const uint64_t bytes = 4ull << 30;
    void *pool = noisy<float>(bytes / 4, 0.1f);
    heading(b, "packed decode on random slots, graph");
    for (const auto &x : kinds) {
        uint64_t slot = (uint64_t)HV * D * D * (x.state == SC_DTYPE_F32 ? 4 : 2);
        if (x.state == SC_DTYPE_F32)
            noise<float><<<4096, 256>>>((float *)pool, bytes / 4, 0.1f, 0.0f, 7);
        else
            noise<__nv_bfloat16><<<4096, 256>>>((__nv_bfloat16 *)pool, bytes / 2, 0.1f, 0.0f, 7);
        uint32_t slots = (uint32_t)(bytes / slot) - 1;
        const uint32_t batches[] = {256, 128, 64, 16, 4, 1};
        for (int i = 0; i < 6; i++)
            decode_one(b, x.kind, x.state, batches[i], pool, slots, i < 3 ? x.bars[i] : 0.0);
    }
    CUDA_MUST(cudaFree(pool));
}

/* --------------------------------------------------------------------------------------- conv */

void conv(bench &b)
{
    heading(b, "causal conv, 8192 channels, width 4, bf16");
    auto *weight = noisy<__nv_bfloat16>(CONV * WIDTH);
    const uint64_t tokens = 65536;
    auto *x = noisy<__nv_bfloat16>(tokens * CONV), *y = buffer<__nv_bfloat16>(tokens * CONV);
    auto *window = noisy<__nv_bfloat16>(4096ull * 3 * CONV);
    const int32_t zero = 0, one = 1;
    int32_t *source = upload(&zero, 1), *dest = upload(&one, 1);
    for (uint32_t t : {1024u, 4096u, 16384u, 65536u}) {
        int32_t start[2] = {0, (int32_t)t}, *row_start = upload(start, 2);
        sc_k_conv_prefill_params p = {};
        p.dtype = p.weight_dtype = p.window.dtype = SC_DTYPE_BF16;
        p.weight = dev(weight), p.act = SC_K_ACT_SILU, p.channels = CONV, p.width = WIDTH;
        p.token_count = t, p.row_count = 1, p.row_start = dev(row_start);
        p.source = dev(source), p.dest = dev(dest);
        p.window.base = dev(window), p.window.slot_stride = 3 * CONV * 2;
        timing us = graph_us(b.stream, 8, [&](uint32_t i) {
            sc_k_conv_prefill_params q = p;
            uint64_t at = (uint64_t)(i % (tokens / t)) * t * CONV;
            q.x = dev(x + at), q.y = dev(y + at);
            SC_MUST(sc_k_conv_prefill(b.backend, &q, as_stream(b.stream)));
        });
        char name[64];
        snprintf(name, sizeof name, "prefill, %u tokens", t);
        line(b, name, us, 4.0 * t * CONV, t == 16384 ? 85 : 0);
        CUDA_MUST(cudaFree(row_start));
    }
    std::vector<int32_t> order(4095);
    shuffle(order.data(), 4095, 3);
    int32_t *slots = upload(order.data(), 4095);
    for (uint32_t batch : {256u, 64u, 16u, 1u}) {
        sc_k_conv_update_params p = {};
        p.dtype = p.weight_dtype = p.window.dtype = SC_DTYPE_BF16;
        p.weight = dev(weight), p.act = SC_K_ACT_SILU, p.channels = CONV, p.width = WIDTH;
        p.row_count = batch, p.window.base = dev(window), p.window.slot_stride = 3 * CONV * 2;
        p.window_settled = true;
        uint32_t calls = std::min(48u, 4095 / batch);
        timing us = graph_us(b.stream, calls, [&](uint32_t i) {
            sc_k_conv_update_params q = p;
            q.x = dev(x + (uint64_t)i * batch * CONV), q.y = dev(y + (uint64_t)i * batch * CONV);
            q.source = q.dest = dev(slots + i * batch);
            SC_MUST(sc_k_conv_update(b.backend, &q, as_stream(b.stream)));
        });
        char name[64];
        snprintf(name, sizeof name, "update, B=%u", batch);
        line(b, name, us, 2.0 * batch * CONV * (2 + 2 * 3), batch == 256 ? 80 : 0);
    }
    for (void *ptr : {(void *)weight, (void *)x, (void *)y, (void *)window, (void *)source,
             (void *)dest, (void *)slots})
        CUDA_MUST(cudaFree(ptr));
}

/* ---------------------------------------------------------------------------------- snapshots */

void snapshot_case(bench &b, sc_dtype state, sc_layout layout)
{
    const uint32_t slots = 160, counts[] = {1, 8, 64};
    const double bars[] = {1.15, 1.05, 1.03}, contiguous_bf16[] = {1.20, 1.07, 1.05};
    bool own = state == SC_DTYPE_BF16 && layout == SC_LAYOUT_CONTIGUOUS;
    sc_pool *pool = state_pool(b, state, layout, slots);
    std::vector<sc_slot> taken(slots);
    std::vector<int32_t> order(slots);
    sc_pool_info info;
    SC_MUST(sc_pool_alloc(pool, slots, SC_OWNER_WORKING, taken.data()));
    SC_MUST(sc_pool_info_get(pool, &info));
    shuffle(order.data(), slots, 5);
    for (int c = 0; c < 3; c++) {
        uint32_t n = counts[c], calls = n == 64 ? 4 : 16;
        timing us = graph_us(b.stream, calls, [&](uint32_t i) {
            const int32_t *from = order.data() + i * n % (slots / 2 - n + 1);
            SC_MUST(sc_state_copy_async(pool, from, pool, order.data() + slots / 2 + (from
                - order.data()), n, as_stream(b.stream)));
        });
        char name[64];
        snprintf(name, sizeof name, "%s %s, %u slots of %u layers",
            state == SC_DTYPE_F32 ? "fp32" : "bf16", layout_name(layout), n, LAYERS);
        line_ratio(b, name, us, 2.0 * n * info.state_bytes, own ? contiguous_bf16[c] : bars[c]);
    }
    SC_MUST(sc_pool_free(pool, taken.data(), slots));
    SC_MUST(sc_pool_destroy(pool));
}

/* A few states on the device and a page-major pool of pinned host memory for them. */
struct envelopes {
    static constexpr uint32_t COUNT = 4;
    sc_pool *pool, *host;
    sc_slot taken[COUNT], kept[COUNT];
    void *memory;
    sc_pool_info info;
};

envelopes envelopes_open(const bench &b, sc_dtype state, sc_layout layout)
{
    envelopes e = {};
    const sc_schema *schema = nullptr;
    e.pool = state_pool(b, state, layout, envelopes::COUNT);
    SC_MUST(sc_pool_alloc(e.pool, envelopes::COUNT, SC_OWNER_WORKING, e.taken));
    SC_MUST(sc_pool_schema(e.pool, &schema));
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    sc_foreign_memory foreign = {};
    options.schema = schema, options.slot_count = envelopes::COUNT;
    SC_MUST(sc_pool_memory_bytes(&options, &foreign.bytes));
    CUDA_MUST(cudaHostAlloc(&e.memory, foreign.bytes, cudaHostAllocDefault));
    foreign.base = dev(e.memory);
    options.foreign = &foreign;
    SC_MUST(sc_pool_create(&options, &e.host));
    SC_MUST(sc_pool_alloc(e.host, envelopes::COUNT, SC_OWNER_WORKING, e.kept));
    SC_MUST(sc_pool_info_get(e.pool, &e.info));
    return e;
}

/* All of them, to the host or back. */
void envelopes_copy(const envelopes &e, bool back, cudaStream_t stream)
{
    const int32_t ids[envelopes::COUNT] = {1, 2, 3, 4};
    SC_MUST(sc_state_copy_async(back ? e.host : e.pool, ids, back ? e.pool : e.host, ids,
        envelopes::COUNT, as_stream(stream)));
}

void envelopes_close(envelopes &e)
{
    SC_MUST(sc_pool_free(e.host, e.kept, envelopes::COUNT));
    SC_MUST(sc_pool_free(e.pool, e.taken, envelopes::COUNT));
    SC_MUST(sc_pool_destroy(e.host));
    SC_MUST(sc_pool_destroy(e.pool));
    CUDA_MUST(cudaFreeHost(e.memory));
}

/* Beside one plain copy of as many bytes between the same pinned memory and the device, with which
 * they take turns: links differ from machine to machine, and some waver. */
void envelope_case(bench &b, sc_dtype state, sc_layout layout)
{
    envelopes e = envelopes_open(b, state, layout);
    const uint64_t bytes = envelopes::COUNT * e.info.state_bytes;
    uint8_t *plain = buffer<uint8_t>(bytes);
    for (bool back : {false, true}) {
        timing us = {};
        double percent = paired_percent(b.stream, [&] {
            CUDA_MUST(cudaMemcpyAsync(back ? plain : e.memory, back ? e.memory : plain, bytes,
                back ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, b.stream));
        }, [&] { envelopes_copy(e, back, b.stream); }, &us);
        char name[64];
        snprintf(name, sizeof name, "%s %s, %u envelopes %s",
            state == SC_DTYPE_F32 ? "fp32" : "bf16", layout_name(layout), envelopes::COUNT,
            back ? "from host" : "to host");
        report(b, name, us, percent, "% of pinned", 98.0, false);
    }
    CUDA_MUST(cudaFree(plain));
    envelopes_close(e);
}

void snapshots(bench &b)
{
    heading(b, "slot copy, all layers, one launch");
    for (sc_dtype state : {SC_DTYPE_F32, SC_DTYPE_BF16})
        for (sc_layout layout : {SC_LAYOUT_CONTIGUOUS, SC_LAYOUT_PAGE_MAJOR})
            snapshot_case(b, state, layout);
    heading(b, "envelopes, device and pinned host");
    for (sc_dtype state : {SC_DTYPE_F32, SC_DTYPE_BF16})
        for (sc_layout layout : {SC_LAYOUT_CONTIGUOUS, SC_LAYOUT_PAGE_MAJOR})
            envelope_case(b, state, layout);
}

/* --------------------------------------------------------------------------------------- step */

/* One decode step: conv and decode of 36 layers, in a graph, on random slots. */
timing step_us(const bench &b, sc_pool *pool, sc_k_kind kind, sc_dtype state, uint32_t batch,
    uint32_t slots, double *bytes_out)
{
    std::vector<int32_t> order(slots);
    shuffle(order.data(), slots, batch);
    int32_t *ids = upload(order.data(), slots);
    uint32_t steps = batch <= 16 ? 24 : 8, batches = slots / batch;
    decode_inputs in = decode_setup(kind, state, batch);
    auto *x = noisy<__nv_bfloat16>((uint64_t)batch * CONV);
    auto *weight = noisy<__nv_bfloat16>(CONV * WIDTH);
    timing us = graph_us(b.stream, steps, [&](uint32_t i) {
        for (uint32_t layer = 0, found = 0; found < LAYERS; layer++) {
            sc_layer_view window, matrix;
            if (sc_pool_layer_view(pool, layer, SC_PART_CONV, 0, &window) != SC_OK) continue;
            SC_MUST(sc_pool_layer_view(pool, layer, SC_PART_RECURRENT, 0, &matrix));
            found++;
            sc_k_conv_update_params c = {};
            c.x = dev(x), c.y = in.p.qkv, c.weight = dev(weight), c.act = SC_K_ACT_SILU;
            c.dtype = c.weight_dtype = SC_DTYPE_BF16, c.channels = CONV, c.width = WIDTH;
            c.row_count = batch, c.source = c.dest = dev(ids + (uint64_t)(i % batches) * batch);
            c.window.base = window.base, c.window.slot_stride = window.slot_stride;
            c.window.dtype = window.dtype, c.window_settled = true;
            sc_k_decode_packed_params p = in.p;
            p.source = p.dest = c.source;
            p.state.base = matrix.base, p.state.slot_stride = matrix.slot_stride;
            SC_MUST(sc_k_decode_step(b.backend, &c, &p, as_stream(b.stream)));
        }
    }, 7);
    uint64_t slot_bytes = (uint64_t)HV * D * D * (state == SC_DTYPE_F32 ? 4 : 2);
    *bytes_out = LAYERS * (double)batch * (2.0 * slot_bytes + in.bytes + 2.0 * CONV * (2 + 6));
    decode_free(in);
    for (void *ptr : {(void *)ids, (void *)x, (void *)weight}) CUDA_MUST(cudaFree(ptr));
    return us;
}

void step(bench &b)
{
    heading(b, "decode step, conv + decode of 36 layers, one graph (GDN)");
    const uint32_t batches[] = {256, 64, 16, 1}, slots = 512;
    const double bars[2][4] = {{1.08, 1.12, 1.28, 2.7}, {1.15, 1.24, 1.4, 4.2}};
    timing contiguous[2][4];
    for (sc_layout layout : {SC_LAYOUT_CONTIGUOUS, SC_LAYOUT_PAGE_MAJOR})
        for (sc_dtype state : {SC_DTYPE_F32, SC_DTYPE_BF16}) {
            sc_pool *pool = state_pool(b, state, layout, slots);
            for (int i = 0; i < 4; i++) {
                double bytes = 0.0;
                timing us = step_us(b, pool, SC_K_KIND_GDN, state, batches[i], slots, &bytes);
                char name[64];
                snprintf(name, sizeof name, "%s %s B=%u", state == SC_DTYPE_F32 ? "fp32" : "bf16",
                    layout_name(layout), batches[i]);
                line_ratio(b, name, us, bytes, bars[state != SC_DTYPE_F32][i]);
                timing &one = contiguous[state != SC_DTYPE_F32][i];
                if (layout == SC_LAYOUT_CONTIGUOUS) {
                    one = us;
                    continue;
                }
                snprintf(name, sizeof name, "%s B=%u, page-major to contiguous",
                    state == SC_DTYPE_F32 ? "fp32" : "bf16", batches[i]);
                report(b, name, us, us / one, "x contiguous", 1.03, true);
            }
            SC_MUST(sc_pool_destroy(pool));
        }
}

/* The same step while another stream copies envelopes all the time. */
void beside(bench &b)
{
    heading(b, "decode step of 36 layers (GDN fp32, B=64) beside envelopes");
    const uint32_t slots = 512, batch = 64;
    sc_pool *pool = state_pool(b, SC_DTYPE_F32, SC_LAYOUT_CONTIGUOUS, slots);
    double bytes = 0.0;
    timing alone = step_us(b, pool, SC_K_KIND_GDN, SC_DTYPE_F32, batch, slots, &bytes);
    envelopes e = envelopes_open(b, SC_DTYPE_F32, SC_LAYOUT_CONTIGUOUS);
    for (bool back : {false, true}) {
        std::atomic<bool> stop(false);
        std::thread copying([&] {
            cudaStream_t side;
            CUDA_MUST(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
            while (!stop) {
                envelopes_copy(e, back, side);
                CUDA_MUST(cudaStreamSynchronize(side));
            }
            CUDA_MUST(cudaStreamDestroy(side));
        });
        timing us = step_us(b, pool, SC_K_KIND_GDN, SC_DTYPE_F32, batch, slots, &bytes);
        stop = true;
        copying.join();
        report(b, back ? "envelopes from host" : "envelopes to host", us,
            100.0 * (us / alone - 1.0), "% slower", 2.0, true);
    }
    envelopes_close(e);
    SC_MUST(sc_pool_destroy(pool));
}

/* ------------------------------------------------------------------------------------- prefill */

void prefill_case(bench &b, sc_k_kind kind, uint32_t rows, uint32_t length, uint32_t save_every)
{
    sc_k_delta_params p = {};
    p.shape = shape_of(kind);
    p.dtype = SC_DTYPE_BF16;
    uint64_t tokens = (uint64_t)rows * length, qk = p.shape.heads * D, vo = HV * D;
    uint64_t g = kind == SC_K_KIND_GDN ? HV : HV * D;
    std::vector<int32_t> start(rows + 1), source(rows, 0), dest(rows), save[3];
    for (uint32_t r = 0; r <= rows; r++) start[r] = (int32_t)(r * length);
    for (uint32_t r = 0; r < rows; r++) dest[r] = (int32_t)r + 1;
    for (uint32_t r = 0; r < rows && save_every > 0; r++)
        for (uint32_t at = save_every; at <= length; at += save_every) {
            save[0].push_back((int32_t)r);
            save[1].push_back((int32_t)at);
            save[2].push_back((int32_t)(rows + save[2].size() + 1));
        }
    p.q = dev(noisy<__nv_bfloat16>(tokens * qk)), p.k = dev(noisy<__nv_bfloat16>(tokens * qk));
    p.v = dev(noisy<__nv_bfloat16>(tokens * vo)), p.o = dev(buffer<__nv_bfloat16>(tokens * vo));
    p.g = dev(noisy<float>(tokens * g, 0.01f, -0.05f));
    p.beta = dev(noisy<float>(tokens * HV, 0.1f, 0.5f));
    p.token_count = (uint32_t)tokens, p.row_count = rows, p.chunk = 64;
    p.row_start = dev(upload(start.data(), rows + 1));
    p.source = dev(upload(source.data(), rows)), p.dest = dev(upload(dest.data(), rows));
    p.saves.count = (uint32_t)save[0].size();
    if (p.saves.count > 0) {
        p.saves.row = dev(upload(save[0].data(), p.saves.count));
        p.saves.pos = dev(upload(save[1].data(), p.saves.count));
        p.saves.slot = dev(upload(save[2].data(), p.saves.count));
    }
    uint64_t slot = vo * D * 4;
    p.state.base = dev(buffer<uint8_t>((rows + p.saves.count + 1) * slot));
    p.state.slot_stride = (int64_t)slot, p.state.dtype = SC_DTYPE_F32;
    SC_MUST(sc_k_delta_chunk_scratch(b.backend, &p, &p.scratch_bytes));
    p.scratch = dev(buffer<uint8_t>(p.scratch_bytes));
    timing us = graph_us(b.stream, 1, [&](uint32_t) {
        SC_MUST(sc_k_delta_chunk(b.backend, &p, as_stream(b.stream)));
    }, 5);
    char name[64];
    snprintf(name, sizeof name, "%s %u x %u tokens%s", kind == SC_K_KIND_GDN ? "GDN" : "KDA", rows,
        length, save_every > 0 ? ", saves every 1024" : "");
    report(b, name, us, 180224.0 * tokens * HV / us / 1e6, "TFLOP/s of the chunk form", 0.0,
        false);
    const sc_devptr all[] = {p.q, p.k, p.v, p.o, p.g, p.beta, p.row_start, p.source, p.dest,
        p.saves.row, p.saves.pos, p.saves.slot, p.state.base, p.scratch};
    for (sc_devptr ptr : all) CUDA_MUST(cudaFree((void *)ptr));
}

void prefill(bench &b)
{
    heading(b, "chunk prefill, fp32 states, C = 64");
    for (sc_k_kind kind : {SC_K_KIND_GDN, SC_K_KIND_KDA})
        for (uint32_t save : {0u, 1024u}) {
            prefill_case(b, kind, 1, 4096, save);
            prefill_case(b, kind, 1, 16384, save);
            prefill_case(b, kind, 1, 65536, save);
            prefill_case(b, kind, 16, 4096, save);
        }
}

const char *const help =
    "usage: statecache-bench gpu [--bars] [--json] [--only NAMES]\n"
    "       statecache-bench gpu --chunk FOLDER\n\n"
    "Measures the CUDA kernels on the current device beside its limits, as one table.\n\n"
    "  --bars         " BENCH_BARS_HELP "\n"
    "  --json         objects, a line each, instead of text\n"
    "  --only NAMES   of decode, conv, snapshots, step, layouts, beside, prefill: those that\n"
    "                 NAMES mentions\n"
    "  --chunk FOLDER the chunk form on the tensors in FOLDER (gpu_chunk.cuh says which), no "
    "table\n";

} // namespace

extern "C" int gpu_main(int argc, char **argv)
{
    bench b = {};
    const char *chunk = nullptr;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--bars")) {
            b.bars = true;
        } else if (!strcmp(argv[i], "--json")) {
            b.json = true;
        } else if (!strcmp(argv[i], "--only") && i + 1 < argc) {
            b.only = argv[++i];
        } else if (!strcmp(argv[i], "--chunk") && i + 1 < argc) {
            chunk = argv[++i];
        } else if (!strcmp(argv[i], "--help")) {
            fputs(help, stdout);
            return 0;
        } else {
            fprintf(stderr, "statecache-bench gpu: what is '%s'?\n%s", argv[i], help);
            return 2;
        }
    }
    sc_status status = sc_backend_open("cuda", &b.backend);
    if (status != SC_OK) {
        fprintf(stderr, "statecache-bench gpu: %s\n", sc_last_error()->text);
        return status == SC_ERR_UNSUPPORTED ? 77 : 1;
    }
    cudaDeviceProp prop;
    CUDA_MUST(cudaGetDeviceProperties(&prop, 0));
    bench_machine_gpu(prop.name);
    CUDA_MUST(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
    if (chunk != nullptr) return chunk_files(b, chunk);
    if (!b.json)
        printf("%s, %d multiprocessors, L2 %d MB\n", prop.name, prop.multiProcessorCount,
            prop.l2CacheSize >> 20);
    limits(b);
    if (wanted(b, "decode")) decode(b);
    if (wanted(b, "conv")) conv(b);
    if (wanted(b, "snapshots")) snapshots(b);
    if (wanted(b, "step")) step(b);
    if (wanted(b, "layouts")) layouts(b);
    if (wanted(b, "beside")) beside(b);
    if (wanted(b, "prefill")) prefill(b);
    CUDA_MUST(cudaDeviceSynchronize());
    return b.bars ? judge(b) : 0;
}

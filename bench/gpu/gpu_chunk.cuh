/* SPDX-License-Identifier: Apache-2.0 */
/* `statecache-bench gpu --chunk FOLDER`: the chunk form on somebody's tensors, so that its errors
 * stand beside those of other kernels on the same ones (rivals.py). One row from a state of zeros.
 *
 *   shape      text: kind (1 GDN, 2 KDA), tokens, q/k heads, v heads, dim of K and V, chunk
 *   q, k, v    bf16 [tokens][heads][dim];  g, beta: fp32 as in kernels.h
 *   o, state   written: bf16 [tokens][v heads][dim], fp32 [v heads][v][k] */
#ifndef BENCH_GPU_CHUNK_CUH
#define BENCH_GPU_CHUNK_CUH

#include "gpu_cases.cuh"

namespace {

struct chunk_folder {
    std::string path;
    bool failed;
};

/* What a file holds, on the device; its length must be this. */
sc_devptr chunk_read(chunk_folder &f, const char *name, uint64_t bytes)
{
    std::vector<uint8_t> host(bytes + 1);
    FILE *file = fopen((f.path + "/" + name).c_str(), "rb");
    uint64_t got = file != nullptr ? fread(host.data(), 1, bytes + 1, file) : 0;
    if (file != nullptr) (void)fclose(file);
    if (got != bytes) {
        fprintf(stderr, "statecache-bench gpu: %s/%s: not %llu bytes\n", f.path.c_str(), name,
            (unsigned long long)bytes);
        f.failed = true;
    }
    uint8_t *to = buffer<uint8_t>(bytes);
    CUDA_MUST(cudaMemcpy(to, host.data(), bytes, cudaMemcpyHostToDevice));
    return dev(to);
}

void chunk_write(chunk_folder &f, const char *name, sc_devptr from, uint64_t bytes)
{
    std::vector<uint8_t> host(bytes);
    CUDA_MUST(cudaMemcpy(host.data(), (const void *)from, bytes, cudaMemcpyDeviceToHost));
    FILE *file = fopen((f.path + "/" + name).c_str(), "wb");
    bool good = file != nullptr && fwrite(host.data(), 1, bytes, file) == bytes;
    if (file != nullptr && fclose(file) != 0) good = false;
    if (good) return;
    fprintf(stderr, "statecache-bench gpu: cannot write %s/%s\n", f.path.c_str(), name);
    f.failed = true;
}

/* The exit status. */
int chunk_files(const bench &b, const char *folder)
{
    chunk_folder f = {folder, false};
    unsigned kind = 0, tokens = 0, heads = 0, v_heads = 0, dim = 0, chunk = 0;
    FILE *shape = fopen((f.path + "/shape").c_str(), "r");
    int read = shape == nullptr ? 0 : fscanf(shape, "%u %u %u %u %u %u", &kind, &tokens, &heads,
        &v_heads, &dim, &chunk);
    if (shape != nullptr) (void)fclose(shape);
    if (read != 6 || (kind != SC_K_KIND_GDN && kind != SC_K_KIND_KDA) || tokens == 0
        || tokens > 1u << 20 || heads == 0 || v_heads == 0 || v_heads > 1024 || heads > v_heads
        || dim == 0 || dim > SC_K_DIM_MAX) {
        fprintf(stderr, "statecache-bench gpu: %s/shape: not six numbers of a shape\n", folder);
        return 1;
    }
    const uint64_t t = tokens, qk = t * heads * dim, vo = t * v_heads * dim;
    const uint64_t part = (uint64_t)v_heads * dim * dim * 4;
    const int32_t start[2] = {0, (int32_t)tokens}, zero = 0, one = 1;
    sc_k_delta_params p = {};
    p.shape = shape_of((sc_k_kind)kind), p.dtype = SC_DTYPE_BF16;
    p.shape.heads = heads, p.shape.v_heads = v_heads, p.shape.k_dim = p.shape.v_dim = dim;
    p.token_count = tokens, p.row_count = 1, p.chunk = chunk;
    p.q = chunk_read(f, "q", 2 * qk), p.k = chunk_read(f, "k", 2 * qk);
    p.v = chunk_read(f, "v", 2 * vo), p.o = dev(buffer<__nv_bfloat16>(vo));
    p.g = chunk_read(f, "g", 4 * t * v_heads * (kind == SC_K_KIND_KDA ? dim : 1));
    p.beta = chunk_read(f, "beta", 4 * t * v_heads);
    if (f.failed) return 1;
    p.row_start = dev(upload(start, 2)), p.source = dev(upload(&zero, 1));
    p.dest = dev(upload(&one, 1));
    p.state.base = dev(buffer<uint8_t>(2 * part)), p.state.dtype = SC_DTYPE_F32;
    p.state.slot_stride = (int64_t)part;
    SC_MUST(sc_k_delta_chunk_scratch(b.backend, &p, &p.scratch_bytes));
    p.scratch = dev(buffer<uint8_t>(p.scratch_bytes));
    SC_MUST(sc_k_delta_chunk(b.backend, &p, as_stream(b.stream)));
    CUDA_MUST(cudaStreamSynchronize(b.stream));
    chunk_write(f, "o", p.o, 2 * vo);
    chunk_write(f, "state", p.state.base + part, part);
    return f.failed ? 1 : 0;
}

} // namespace

#endif

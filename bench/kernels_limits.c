/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine can do: memory read and written in place, and a matrix product. */
#include <dlfcn.h>
#include <stdlib.h>

#include "kernels_bench.h"

#if defined __x86_64__ && defined __GNUC__
#include <immintrin.h>
#define WIDE(isa) __attribute__((target(isa)))

WIDE("avx512f") static void scale_avx512(float *x, uint64_t count, float c)
{
    __m512 by = _mm512_set1_ps(c);
    for (uint64_t i = 0; i + 64 <= count; i += 64)
        for (uint64_t j = 0; j < 64; j += 16)
            _mm512_storeu_ps(x + i + j, _mm512_mul_ps(_mm512_loadu_ps(x + i + j), by));
}

WIDE("avx2") static void scale_avx2(float *x, uint64_t count, float c)
{
    __m256 by = _mm256_set1_ps(c);
    for (uint64_t i = 0; i + 64 <= count; i += 64)
        for (uint64_t j = 0; j < 64; j += 8)
            _mm256_storeu_ps(x + i + j, _mm256_mul_ps(_mm256_loadu_ps(x + i + j), by));
}

static int isa(void)
{
    return __builtin_cpu_supports("avx512f") ? 2 : __builtin_cpu_supports("avx2") ? 1 : 0;
}
#else
static int isa(void)
{
    return 0;
}
#endif

static void scale_plain(float *x, uint64_t count, float c)
{
    for (uint64_t i = 0; i < count; i++) x[i] *= c;
}

const char *kbench_scale_name(void)
{
    static const char *const names[] = {"plain", "AVX2", "AVX-512"};
    return names[isa()];
}

void kbench_scale_memory(void *memory, uint64_t bytes, float c)
{
    uint64_t count = bytes / sizeof(float);
#if defined __x86_64__ && defined __GNUC__
    if (isa() == 2) {
        scale_avx512(memory, count, c);
        return;
    }
    if (isa() == 1) {
        scale_avx2(memory, count, c);
        return;
    }
#endif
    scale_plain(memory, count, c);
}

typedef void sgemm_fn(int order, int a_trans, int b_trans, int m, int n, int k, float alpha,
    const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

static struct {
    sgemm_fn *sgemm;
    float *a, *b, *c;
} blas;

static void *symbol(void *library, const char *name, const char **why_out)
{
    void *found = dlsym(library, name);
    if (!found)
        *why_out = "the OpenBLAS that was found lacks a function";
    return found;
}

/* A limit that the environment lowers is none, nor is one of a library that is older than the
 * processor and takes it for something slow (0.3.21 does): name the best core it can run. */
static void choose_core(void)
{
    static const char *const cores[] = {NULL, "Haswell", "SkylakeX"};
    const char *core = cores[isa()];
    if (core)
        setenv("OPENBLAS_CORETYPE", core, 1);
    else
        unsetenv("OPENBLAS_CORETYPE");
}

const char *kbench_blas_open(uint32_t threads, const char **why_out)
{
    if (blas.sgemm)
        bench_fail(BENCH_USAGE, "OpenBLAS is open already");
    choose_core();
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    *why_out = "no libopenblas.so.0";
    if (!library)
        return NULL;
    union { void *object; sgemm_fn *function; } sgemm = {symbol(library, "cblas_sgemm", why_out)};
    union { void *object; char *(*function)(void); } core = {
        symbol(library, "openblas_get_corename", why_out)};
    union { void *object; void (*function)(int); } set = {
        symbol(library, "openblas_set_num_threads", why_out)};
    if (!sgemm.object || !core.object || !set.object)
        return NULL;
    set.function((int)threads);
    size_t count = (size_t)KBENCH_SGEMM_N * KBENCH_SGEMM_N;
    blas.a = bench_alloc(count, sizeof(float));
    blas.b = bench_alloc(count, sizeof(float));
    blas.c = bench_alloc(count, sizeof(float));
    for (size_t i = 0; i < count; i++)
        blas.a[i] = blas.b[i] = (float)(i % 7) - 3.0f;
    blas.sgemm = sgemm.function;
    return core.function();
}

void kbench_blas_sgemm(void)
{
    enum { ROW_MAJOR = 101, PLAIN = 111, N = KBENCH_SGEMM_N };
    blas.sgemm(ROW_MAJOR, PLAIN, PLAIN, N, N, N, 1.0f, blas.a, N, blas.b, N, 0.0f, blas.c, N);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine can do: memory read and written in place, and a matrix product. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "kernels_bench.h"

/* Floats ahead that reads alone fetch, as kernels do (wide_fetch_read()): a processor fetches by
 * itself up to the end of a page, and with that alone reads took longer than x *= c. */
enum { READ_NEAR = 4096 / sizeof(float), READ_FAR = 16384 / sizeof(float) };

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

WIDE("avx512f") static void read_avx512(const float *x, uint64_t count)
{
    __m512i seen[4];
    for (uint64_t j = 0; j < 4; j++) seen[j] = _mm512_setzero_si512();
    for (uint64_t i = 0; i + 64 <= count; i += 64) {
        for (uint64_t j = 0; j < 4; j++) {
            __builtin_prefetch(x + i + 16 * j + READ_FAR, 0, 2);
            __builtin_prefetch(x + i + 16 * j + READ_NEAR, 0, 3);
            seen[j] = _mm512_or_si512(seen[j], _mm512_loadu_si512(x + i + 16 * j));
        }
    }
    for (uint64_t j = 1; j < 4; j++) seen[0] = _mm512_or_si512(seen[0], seen[j]);
    volatile int kept = _mm512_reduce_or_epi32(seen[0]);
    (void)kept;
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

void kbench_read_memory(const void *memory, uint64_t bytes)
{
    const uint32_t *x = memory;
    uint64_t count = bytes / sizeof *x;
#if defined __x86_64__ && defined __GNUC__
    if (isa() == 2) {
        read_avx512(memory, count);
        return;
    }
#endif
    uint32_t seen = 0;
    for (uint64_t i = 0; i + 16 <= count; i += 16) {
        __builtin_prefetch(x + i + READ_FAR, 0, 2);
        __builtin_prefetch(x + i + READ_NEAR, 0, 3);
        for (uint64_t j = 0; j < 16; j++) seen |= x[i + j];
    }
    volatile uint32_t kept = seen;
    (void)kept;
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
    const char *core;
} blas;

/* With this core, or the one it takes by itself. False: it is not there, or lacks a function. */
static bool load(const char *core, uint32_t threads)
{
    if (core)
        setenv("OPENBLAS_CORETYPE", core, 1);
    else
        unsetenv("OPENBLAS_CORETYPE");
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    union { void *object; sgemm_fn *function; } sgemm = {dlsym(library, "cblas_sgemm")};
    union { void *object; char *(*function)(void); } name = {
        dlsym(library, "openblas_get_corename")};
    union { void *object; void (*function)(int); } set = {
        dlsym(library, "openblas_set_num_threads")};
    if (!sgemm.object || !name.object || !set.object)
        return false;
    set.function((int)threads);
    size_t count = (size_t)KBENCH_SGEMM_N * KBENCH_SGEMM_N;
    blas.a = bench_alloc(count, sizeof(float));
    blas.b = bench_alloc(count, sizeof(float));
    blas.c = bench_alloc(count, sizeof(float));
    for (size_t i = 0; i < count; i++)
        blas.a[i] = blas.b[i] = (float)(i % 7) - 3.0f;
    blas.sgemm = sgemm.function;
    blas.core = name.function();
    unsetenv("OPENBLAS_CORETYPE"); /* whatever else is started shall not see it */
    return true;
}

struct trial {
    char core[32];
    uint64_t ns; /* 0: nothing was found */
};

/* In a process of its own, since a loaded OpenBLAS keeps its core: the best of three products by
 * one thread, after one that nobody counts. */
static struct trial try_core(const char *core)
{
    struct trial trial = {"", 0};
    int ends[2];
    if (pipe(ends) != 0)
        return trial;
    pid_t child = fork();
    if (child == 0) {
        if (load(core, 1)) {
            snprintf(trial.core, sizeof trial.core, "%s", blas.core);
            for (int i = 0; i < 4; i++) {
                uint64_t start = sc_clock_thread_ns();
                kbench_blas_sgemm();
                uint64_t ns = sc_clock_thread_ns() - start;
                if (i == 1 || (i > 1 && ns < trial.ns))
                    trial.ns = ns;
            }
        }
        _exit(write(ends[1], &trial, sizeof trial) != sizeof trial);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &trial, sizeof trial) != sizeof trial)
        trial.ns = 0;
    close(ends[0]);
    if (child > 0)
        waitpid(child, NULL, 0);
    return trial;
}

/* A limit that the environment lowers is none, nor is one of a library that is older than the
 * processor and takes it for something slow (0.3.21 does). */
const char *kbench_blas_open(uint32_t threads, char *text_out, size_t size)
{
    static const char *const cores[] = {NULL, "Haswell", "SkylakeX"};
    if (blas.sgemm)
        bench_fail(BENCH_USAGE, "OpenBLAS is open already");
    struct trial own = try_core(NULL), wide = {"", 0};
    if (own.ns != 0 && cores[isa()] && strcmp(own.core, cores[isa()]) != 0)
        wide = try_core(cores[isa()]);
    bool better = wide.ns != 0 && (double)wide.ns < 0.97 * (double)own.ns;
    if (own.ns == 0 || !load(better ? wide.core : NULL, threads)) {
        snprintf(text_out, size, "no libopenblas.so.0 with cblas_sgemm");
        return NULL;
    }
    if (wide.ns != 0)
        snprintf(text_out, size, "%s (%s %s, %.2f times as fast)", blas.core,
            better ? "by itself it takes" : "rather than", better ? own.core : wide.core,
            better ? (double)own.ns / (double)wide.ns : (double)wide.ns / (double)own.ns);
    else
        snprintf(text_out, size, "%s", blas.core);
    return blas.core;
}

void kbench_blas_sgemm(void)
{
    enum { ROW_MAJOR = 101, PLAIN = 111, N = KBENCH_SGEMM_N };
    blas.sgemm(ROW_MAJOR, PLAIN, PLAIN, N, N, N, 1.0f, blas.a, N, blas.b, N, 0.0f, blas.c, N);
}

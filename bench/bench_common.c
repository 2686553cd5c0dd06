/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_common.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sc_assert.h"

/* What the files of api/base that are compiled into the program call when an assertion fails. */
void sc_assert_fail(const char *expr, const char *file, int line, const char *function)
{
    fprintf(stderr, "statecache-bench: assertion failed: %s, %s:%d, %s\n", expr, file, line,
        function);
    abort();
}

void bench_fail(enum bench_exit code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("statecache-bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit((int)code);
}

void bench_must(sc_status status, const char *what)
{
    if (status == SC_OK)
        return;
    const sc_error_info *info = sc_last_error();
    bench_fail(status == SC_ERR_NO_MEMORY ? BENCH_NO_MEMORY : BENCH_CHECK_FAILED, "%s: %s (%s)",
        what, sc_status_name(status),
        info->status == status ? info->text : sc_status_text(status));
}

uint64_t bench_cpu_ns(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage))
        return 0;
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000u +
        (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u;
}

void *bench_alloc(size_t count, size_t bytes)
{
    void *memory = calloc(count ? count : 1, bytes);
    if (!memory)
        bench_fail(BENCH_NO_MEMORY, "out of memory (%zu times %zu bytes)", count, bytes);
    return memory;
}

void *bench_grow(void *array, size_t *cap, size_t need, size_t bytes)
{
    if (need <= *cap)
        return array;
    size_t grown = *cap + *cap / 2 + 16;
    if (grown < need)
        grown = need;
    void *memory = reallocarray(array, grown, bytes);
    if (!memory)
        bench_fail(BENCH_NO_MEMORY, "out of memory (%zu times %zu bytes)", grown, bytes);
    *cap = grown;
    return memory;
}

void bench_progress_start(struct bench_progress *progress, const char *label)
{
    progress->label = label;
    progress->on = isatty(STDERR_FILENO) == 1;
    progress->next_ns = 0;
}

void bench_progress_show(struct bench_progress *progress, uint64_t done, uint64_t total)
{
    enum { WIDTH = 40 };
    if (!progress->on || total == 0)
        return;
    uint64_t now = sc_clock_now_ns();
    if (now < progress->next_ns && done < total)
        return;
    progress->next_ns = now + 100000000;
    char bar[WIDTH + 1];
    for (unsigned i = 0; i < WIDTH; i++)
        bar[i] = i * total < done * WIDTH ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r%-11s [%s] %llu/%llu", progress->label, bar, (unsigned long long)done,
        (unsigned long long)total);
    fflush(stderr);
}

void bench_progress_end(struct bench_progress *progress)
{
    if (progress->on)
        fputs("\r\033[K", stderr);
}

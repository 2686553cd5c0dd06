/* SPDX-License-Identifier: Apache-2.0 */
/* `replay --compare-kernels N`: the same replay with the fast rows of the kernels and with the
 * reference ones, in turns, N times each:
 *
 *   reference, fast, reference, fast, ...     each in a process of its own, since rows are
 *                                             resolved once in a process
 *
 * Both do the same: the same requests, model, dense arithmetic (dense.c), threads and decisions, as
 * the scheduler's time is virtual. What is timed is the serving of the requests, from the first
 * admission to the last token, in memory that was touched before. The first run of each kind is
 * checked bit for bit after it was timed (--check). Both times must reach the bar: on a busy
 * machine longer runs wait for others more often, and elapsed time alone flatters. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bars.h"
#include "machine.h"
#include "replay.h"

enum { KINDS = 2, RUNS_MAX = 101 };
static const char *const names[KINDS] = {"reference", "fast"};

/* What a run tells its parent. */
struct outcome {
    uint64_t wall_ns, cpu_ns, computed, decoded, checked, bits;
    bool passed;
};

static void run_child(struct replay_run *run, int kind, bool check, int to)
{
    if (kind == 0)
        setenv("SC_KERNELS", "reference", 1);
    else
        unsetenv("SC_KERNELS");
    run->o.check = check ? run->o.check : 0;
    replay_serve(run);
    struct outcome outcome = {.wall_ns = run->cached.wall_ns, .cpu_ns = run->cached.process_ns,
        .computed = run->cached.computed_tokens, .decoded = run->cached.output_tokens,
        .checked = run->has_check ? run->check.checked : 0,
        .bits = run->has_check ? check_bits(&run->check) : 0, .passed = replay_passed(run)};
    if (write(to, &outcome, sizeof outcome) != sizeof outcome)
        _exit(BENCH_CHECK_FAILED);
    _exit(BENCH_OK);
}

static struct outcome run_one(struct replay_run *run, int kind, bool check)
{
    struct outcome outcome;
    int ends[2], status = 0;
    if (pipe(ends))
        bench_fail(BENCH_CHECK_FAILED, "pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    if (child < 0)
        bench_fail(BENCH_NO_MEMORY, "fork: %s", strerror(errno));
    if (child == 0)
        run_child(run, kind, check, ends[1]);
    close(ends[1]);
    bool whole = read(ends[0], &outcome, sizeof outcome) == sizeof outcome;
    close(ends[0]);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    if (!whole || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        bench_fail(BENCH_CHECK_FAILED, "the run with %s kernels failed", names[kind]);
    return outcome;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static void report(const struct replay_run *run, const double wall[KINDS], const double cpu[KINDS],
    const struct outcome *first)
{
    uint32_t runs = run->o.compare;
    if (run->o.json) {
        printf("{\"v\":1,\"bench\":\"replay_kernels\",\"n\":%u,\"unit\":\"s\","
               "\"wall_reference\":%.4f,\"wall_fast\":%.4f,\"cpu_reference\":%.4f,"
               "\"cpu_fast\":%.4f,\"computed_tokens\":%llu,\"differing_bits\":%llu",
            runs, wall[0], wall[1], cpu[0], cpu[1], (unsigned long long)first[1].computed,
            (unsigned long long)(first[0].bits + first[1].bits));
        bench_machine_write(stdout);
        puts("}");
        return;
    }
    for (int kind = 0; kind < KINDS; kind++)
        printf("%-9s  medians of %u: %.3f s elapsed, %.3f s of processors; %llu tokens computed, "
               "%llu decoded; %llu differing bits in %llu requests\n",
            names[kind], runs, wall[kind], cpu[kind], (unsigned long long)first[kind].computed,
            (unsigned long long)first[kind].decoded, (unsigned long long)first[kind].bits,
            (unsigned long long)first[kind].checked);
    printf("fast is    %.2f times faster, in processor time %.2f times\n", wall[0] / wall[1],
        cpu[0] / cpu[1]);
}

int replay_compare(struct replay_run *run)
{
    const struct bench_bar nothing = {BENCH_BAR_MOST, 0}, four = {BENCH_BAR_LEAST, 4};
    double wall[KINDS][RUNS_MAX], cpu[KINDS][RUNS_MAX], wall_s[KINDS], cpu_s[KINDS];
    struct outcome first[KINDS];
    struct bench_bars bars = {0};
    bool passed = true;
    for (uint32_t i = 0; i < run->o.compare; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            struct outcome outcome = run_one(run, kind, i == 0);
            if (i == 0)
                first[kind] = outcome;
            wall[kind][i] = (double)outcome.wall_ns * 1e-9;
            cpu[kind][i] = (double)outcome.cpu_ns * 1e-9;
            passed &= outcome.passed;
        }
    for (int kind = 0; kind < KINDS; kind++) {
        wall_s[kind] = median(wall[kind], run->o.compare);
        cpu_s[kind] = median(cpu[kind], run->o.compare);
    }
    report(run, wall_s, cpu_s, first);
    if (first[0].computed != first[1].computed || first[0].decoded != first[1].decoded)
        bench_fail(BENCH_CHECK_FAILED, "the two did not do the same work");
    if (!run->o.bars)
        return passed ? BENCH_OK : BENCH_CHECK_FAILED;
    bench_bars_judge(&bars, "replay, reference over fast kernels, elapsed", wall_s[0] / wall_s[1],
        "x", four);
    bench_bars_judge(&bars, "replay, reference over fast kernels, processor time",
        cpu_s[0] / cpu_s[1], "x", four);
    bench_bars_judge(&bars, "differing bits with reference kernels", (double)first[0].bits, "",
        nothing);
    bench_bars_judge(&bars, "differing bits with fast kernels", (double)first[1].bits, "", nothing);
    int code = bench_bars_end(&bars, run->o.json ? stderr : stdout);
    return passed ? code : BENCH_CHECK_FAILED;
}

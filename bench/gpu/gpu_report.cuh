/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU benchmark's table: each figure once, as text or as JSON, with its bar if it has one. */
#ifndef BENCH_GPU_REPORT_CUH
#define BENCH_GPU_REPORT_CUH

#include <cstdio>
#include <string>
#include <vector>

extern "C" {
#include "bars.h"
#include "machine.h"
}
#include "gpu_probe.cuh"
#include "statecache/statecache.h"

namespace {

/* One figure of the table, as --json gives it. */
struct figure {
    std::string section, name;
    probe::timing time;
    double value;
    const char *unit;
    struct bench_bar bar;
};

struct bench {
    sc_backend *backend;
    cudaStream_t stream;
    double limit; /* bytes a us */
    const char *only;
    bool bars, json;
    std::string section;
    std::vector<figure> figures;
};

void json_string(const std::string &text)
{
    putchar('"');
    for (char c : text) {
        if (c == '"' || c == '\\')
            putchar('\\');
        putchar(c);
    }
    putchar('"');
}

/* One object, on a line: p50 is the figure in its unit, us the time that it comes from. */
void print_json(const figure &f)
{
    printf("{\"v\":1,\"bench\":\"gpu\",\"params\":{\"section\":");
    json_string(f.section);
    printf("},\"metric\":");
    json_string(f.name);
    printf(",\"unit\":");
    json_string(f.unit);
    printf(",\"n\":%d,\"p50\":%.5g,\"us\":%.3f,\"us_min\":%.3f,\"us_p99\":%.3f",
        f.time.count, f.value, f.time.us, f.time.least, f.time.p99);
    if (f.bar.kind != BENCH_BAR_NONE)
        printf(",\"bar\":%.5g,\"bar_is\":\"%s\",\"met\":%s", f.bar.limit,
            f.bar.kind == BENCH_BAR_MOST ? "at most" : "at least",
            bench_bar_met(f.bar, f.value) ? "true" : "false");
    bench_machine_write(stdout);
    printf("}\n");
}

void heading(bench &b, const char *text)
{
    b.section = text;
    if (!b.json) printf("%s\n", text);
}

/* A figure; its bar, if not 0, is to be reached, or not to be passed (`at_most`). */
void report(bench &b, const char *name, const probe::timing &time, double value, const char *unit,
    double bar, bool at_most)
{
    bench_bar_kind kind = bar <= 0.0 ? BENCH_BAR_NONE : at_most ? BENCH_BAR_MOST : BENCH_BAR_LEAST;
    b.figures.push_back({b.section, name, time, value, unit, {kind, bar}});
    if (b.json)
        print_json(b.figures.back());
    else
        printf("  %-46s %11.2f us %9.3f %s\n", name, time.us, value, unit);
    fflush(stdout);
}

void line(bench &b, const char *what, const probe::timing &us, double bytes, double bar_percent)
{
    report(b, what, us, 100.0 * bytes / b.limit / us, "% of limit", bar_percent, false);
}

void line_ratio(bench &b, const char *what, const probe::timing &us, double bytes,
    double bar_ratio)
{
    report(b, what, us, us / (bytes / b.limit), "x limit", bar_ratio, true);
}

/* What --bars prints; the exit status. */
int judge(const bench &b)
{
    bench_bars bars = {};
    for (const figure &f : b.figures) {
        char name[160];
        snprintf(name, sizeof name, "%s: %s", f.section.c_str(), f.name.c_str());
        bench_bars_judge(&bars, name, f.value, f.unit, f.bar);
    }
    if (!b.json)
        printf("\n");
    return bench_bars_end(&bars, b.json ? stderr : stdout);
}

} // namespace

#endif

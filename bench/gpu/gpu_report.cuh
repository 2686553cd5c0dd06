/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU benchmark's table: each figure once, as text or as JSON, with its bar if it has one. */
#ifndef BENCH_GPU_REPORT_CUH
#define BENCH_GPU_REPORT_CUH

#include <cstdio>
#include <string>
#include <vector>

#include "statecache/statecache.h"

namespace {

/* One figure of the table, as --json gives it. */
struct figure {
    std::string section, name;
    double us, value;
    const char *unit;
    double bar; /* 0: none */
    bool holds;
};

struct bench {
    sc_backend *backend;
    cudaStream_t stream;
    double limit; /* bytes a us */
    double pinned_h2d, pinned_d2h;
    const char *only;
    bool bars, json;
    int missed;
    std::string section;
    std::vector<figure> figures;
};

void heading(bench &b, const char *text)
{
    b.section = text;
    if (!b.json) printf("%s\n", text);
}

/* A figure and, with a bar (not 0), whether it holds: `at_most` it, or at least it. */
void report(bench &b, const char *name, double us, double value, const char *unit, double bar,
    bool at_most)
{
    bool holds = bar <= 0.0 || (at_most ? value <= bar : value >= bar);
    b.figures.push_back({b.section, name, us, value, unit, bar, holds});
    if (b.bars) b.missed += !holds;
    if (b.json) return;
    printf("  %-46s %11.2f us %9.3f %s", name, us, value, unit);
    if (b.bars && bar > 0.0) printf("  bar %.5g %s", bar, holds ? "holds" : "MISSED");
    printf("\n");
}

void line(bench &b, const char *what, double us, double bytes, double bar_percent)
{
    report(b, what, us, 100.0 * bytes / b.limit / us, "% of limit", bar_percent, false);
}

void line_ratio(bench &b, const char *what, double us, double bytes, double bar_ratio)
{
    report(b, what, us, us / (bytes / b.limit), "x limit", bar_ratio, true);
}

void json_string(const std::string &text)
{
    putchar('"');
    for (char c : text) {
        if (c == '"' || c == '\\') putchar('\\');
        putchar(c);
    }
    putchar('"');
}

void print_json(const bench &b, const char *device)
{
    printf("{\"device\": ");
    json_string(device);
    printf(",\n \"missed\": %d,\n \"figures\": [", b.missed);
    for (size_t i = 0; i < b.figures.size(); i++) {
        const figure &f = b.figures[i];
        printf("%s\n  {\"section\": ", i > 0 ? "," : "");
        json_string(f.section);
        printf(", \"name\": ");
        json_string(f.name);
        printf(", \"us\": %.3f, \"value\": %.5g, \"unit\": ", f.us, f.value);
        json_string(f.unit);
        if (b.bars && f.bar > 0.0)
            printf(", \"bar\": %.5g, \"holds\": %s", f.bar, f.holds ? "true" : "false");
        printf("}");
    }
    printf("\n ]}\n");
}

} // namespace

#endif

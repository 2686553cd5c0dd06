/* SPDX-License-Identifier: Apache-2.0 */
#include "bars.h"

#include <math.h>
#include <stdlib.h>

#include "bench_common.h"

bool bench_bar_met(struct bench_bar bar, double value)
{
    switch (bar.kind) {
    case BENCH_BAR_MOST:
        return value <= bar.limit;
    case BENCH_BAR_LEAST:
        return value >= bar.limit;
    case BENCH_BAR_NEAR:
        return fabs(value - bar.limit) <= 0.03 * bar.limit;
    case BENCH_BAR_NONE:
        break;
    }
    return true;
}

static struct bench_judged *keep(
    struct bench_bars *bars, const char *name, double value, const char *unit, struct bench_bar bar)
{
    bars->judged = bench_grow(bars->judged, &bars->cap, bars->count + 1, sizeof *bars->judged);
    struct bench_judged *judged = &bars->judged[bars->count++];
    *judged = (struct bench_judged){.value = value, .unit = unit, .bar = bar};
    snprintf(judged->name, sizeof judged->name, "%s", name);
    return judged;
}

void bench_bars_judge(
    struct bench_bars *bars, const char *name, double value, const char *unit, struct bench_bar bar)
{
    if (bar.kind != BENCH_BAR_NONE)
        (void)keep(bars, name, value, unit, bar);
}

void bench_bars_excuse(struct bench_bars *bars, const char *name, double value, const char *unit,
    const char *why)
{
    static const struct bench_bar none = {BENCH_BAR_NONE, 0};
    struct bench_judged *judged = keep(bars, name, value, unit, none);
    snprintf(judged->why, sizeof judged->why, "%s", why);
}

static void print(const struct bench_judged *judged, FILE *out)
{
    static const char *const signs[] = {"", "<=", ">=", "be within 3 % of"};
    const char *space = *judged->unit ? " " : "";
    fprintf(out, "bar %s: ", judged->name);
    if (isnan(judged->value))
        fprintf(out, "not measured");
    else
        fprintf(out, "%.4g%s%s", judged->value, space, judged->unit);
    if (judged->bar.kind == BENCH_BAR_NONE) {
        fprintf(out, " (no bar: %s)\n", judged->why);
        return;
    }
    fprintf(out, " (must %s %g%s%s)\n", signs[judged->bar.kind], judged->bar.limit, space,
        judged->unit);
}

int bench_bars_end(struct bench_bars *bars, FILE *out)
{
    size_t met = 0, count = 0;
    for (size_t i = 0; i < bars->count; i++) {
        const struct bench_judged *judged = &bars->judged[i];
        print(judged, out);
        if (judged->bar.kind == BENCH_BAR_NONE)
            continue;
        count++;
        met += bench_bar_met(judged->bar, judged->value);
    }
    if (count == 0)
        fprintf(out, "there are no bars for what was measured\n");
    else
        fprintf(out, "%zu of %zu bars met\n", met, count);
    for (size_t i = 0; i < bars->count; i++) {
        if (!bench_bar_met(bars->judged[i].bar, bars->judged[i].value))
            fprintf(out, "missed: %s\n", bars->judged[i].name);
    }
    free(bars->judged);
    *bars = (struct bench_bars){NULL, 0, 0};
    return met == count ? BENCH_OK : BENCH_CHECK_FAILED;
}

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

void bench_bars_judge(
    struct bench_bars *bars, const char *name, double value, const char *unit, struct bench_bar bar)
{
    if (bar.kind == BENCH_BAR_NONE)
        return;
    bars->judged = bench_grow(bars->judged, &bars->cap, bars->count + 1, sizeof *bars->judged);
    struct bench_judged *judged = &bars->judged[bars->count++];
    *judged = (struct bench_judged){.value = value, .unit = unit, .bar = bar};
    snprintf(judged->name, sizeof judged->name, "%s", name);
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
    fprintf(out, " (must %s %g%s%s)\n", signs[judged->bar.kind], judged->bar.limit, space,
        judged->unit);
}

int bench_bars_end(struct bench_bars *bars, FILE *out)
{
    size_t met = 0, count = bars->count;
    for (size_t i = 0; i < count; i++) {
        print(&bars->judged[i], out);
        met += bench_bar_met(bars->judged[i].bar, bars->judged[i].value);
    }
    if (count == 0)
        fprintf(out, "there are no bars for what was measured\n");
    else
        fprintf(out, "%zu of %zu bars met\n", met, count);
    for (size_t i = 0; i < count; i++) {
        if (!bench_bar_met(bars->judged[i].bar, bars->judged[i].value))
            fprintf(out, "missed: %s\n", bars->judged[i].name);
    }
    free(bars->judged);
    *bars = (struct bench_bars){NULL, 0, 0};
    return met == count ? BENCH_OK : BENCH_CHECK_FAILED;
}

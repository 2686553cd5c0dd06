/* SPDX-License-Identifier: Apache-2.0 */
#include "radix_rows.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench_common.h"
#include "machine.h"

void radix_sample(struct radix_samples *samples, double value)
{
    samples->values = bench_grow(samples->values, &samples->cap, samples->count + 1,
        sizeof *samples->values);
    samples->values[samples->count++] = value;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double radix_quantile(struct radix_samples *samples, double q)
{
    if (samples->count == 0)
        return 0;
    qsort(samples->values, samples->count, sizeof *samples->values, ascending);
    return samples->values[(size_t)(q * (double)(samples->count - 1) + 0.5)];
}

void radix_samples_free(struct radix_samples *samples)
{
    free(samples->values);
    *samples = (struct radix_samples){NULL, 0, 0};
}

static void row_text(const struct radix_row *row, bool head)
{
    static const char *const signs[] = {"", "<=", ">=", "~"};
    if (head)
        printf("%-7s%-66s%-8s%8s%12s%12s  bar\n", "", "what", "unit", "n", "p50", "p99");
    printf("%-7s%-66s%-8s%8llu", row->workload, row->name, row->unit, (unsigned long long)row->n);
    if (row->n > 0)
        printf("%12.4g", row->p50);
    else
        printf("%12s", "-");
    if (row->n > 1)
        printf("%12.4g", row->p99);
    else
        printf("%12s", "");
    if (row->bar.kind != BENCH_BAR_NONE)
        printf("  %s %g %s", signs[row->bar.kind], row->bar.limit, row->met ? "met" : "MISSED");
    putchar('\n');
}

static void row_json(const struct radix_rows *rows, const struct radix_row *row)
{
    static const char *const kinds[] = {"", "at most", "at least", "within 3 %"};
    json_t *object = json_pack("{s:i s:s s:{s:s} s:I s:s s:s s:I s:f s:f}", "v", 1, "bench",
        rows->bench ? rows->bench : "radix", "params", "workload", row->workload, "seed",
        (json_int_t)rows->seed, "metric", row->name, "unit", row->unit, "n", (json_int_t)row->n,
        "p50", row->p50, "p99", row->p99);
    if (object && row->bar.kind != BENCH_BAR_NONE) {
        json_object_set_new(object, "bar", json_real(row->bar.limit));
        json_object_set_new(object, "bar_is", json_string(kinds[row->bar.kind]));
        json_object_set_new(object, "met", json_boolean(row->met));
    }
    if (object)
        bench_machine_add(object);
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    if (!text)
        bench_fail(BENCH_NO_MEMORY, "out of memory for a line of JSON");
    puts(text);
    free(text);
    json_decref(object);
}

static void row_add(struct radix_rows *rows, struct radix_row row)
{
    row.met = bench_bar_met(row.bar, row.p50);
    rows->rows = bench_grow(rows->rows, &rows->cap, rows->count + 1, sizeof row);
    rows->rows[rows->count++] = row;
    if (row.n == 0) /* only its bar counts */
        return;
    if (rows->json)
        row_json(rows, &row);
    else
        row_text(&row, !rows->headed);
    rows->headed = true;
    fflush(stdout);
}

void radix_row_samples(struct radix_rows *rows, const char *workload, const char *name,
    const char *unit, struct radix_samples *samples, struct bench_bar bar)
{
    size_t n = samples->count;
    if (n == 1 && isnan(samples->values[0]))
        n = 0;
    if (n == 0 && bar.kind == BENCH_BAR_NONE)
        return;
    struct radix_row row = {.n = n, .p50 = n ? radix_quantile(samples, 0.5) : NAN,
        .p99 = n ? radix_quantile(samples, 0.99) : NAN, .bar = bar};
    snprintf(row.workload, sizeof row.workload, "%s", workload);
    snprintf(row.name, sizeof row.name, "%s", name);
    snprintf(row.unit, sizeof row.unit, "%s", unit);
    row_add(rows, row);
}

void radix_row_value(struct radix_rows *rows, const char *workload, const char *name,
    const char *unit, double value, struct bench_bar bar)
{
    struct radix_samples one = {&value, 1, 1};
    radix_row_samples(rows, workload, name, unit, &one, bar);
}

static void rows_end(const struct radix_rows *rows)
{
    size_t bars = 0, missed = 0;
    for (size_t i = 0; i < rows->count; i++) {
        bars += rows->rows[i].bar.kind != BENCH_BAR_NONE;
        missed += !rows->rows[i].met;
    }
    printf("\n%zu of %zu bars met\n", bars - missed, bars);
    for (size_t i = 0; i < rows->count; i++) {
        if (!rows->rows[i].met)
            row_text(&rows->rows[i], false);
    }
}

int radix_rows_close(struct radix_rows *rows, bool bars)
{
    struct bench_bars judged = {0};
    for (size_t i = 0; bars && i < rows->count; i++) {
        const struct radix_row *row = &rows->rows[i];
        char name[sizeof row->workload + sizeof row->name];
        snprintf(name, sizeof name, "%s%s%s", row->workload, *row->workload ? " " : "", row->name);
        bench_bars_judge(&judged, name, row->p50, row->unit, row->bar);
    }
    if (!rows->json && !bars)
        rows_end(rows);
    else if (!rows->json)
        putchar('\n');
    int code = bars ? bench_bars_end(&judged, rows->json ? stderr : stdout) : BENCH_OK;
    free(rows->rows);
    *rows = (struct radix_rows){0};
    return code;
}

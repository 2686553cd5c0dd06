/* SPDX-License-Identifier: Apache-2.0 */
/* What `kernels` prints: a head, a line for each case, or objects; and what must be reached. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels_run.h"
#include "machine.h"

static const char *dtype_name(sc_dtype dtype)
{
    return dtype == SC_DTYPE_F32 ? "fp32" : dtype == SC_DTYPE_BF16 ? "bf16" : "-";
}

/* What the processor calls itself, without characters that JSON would escape. */
static void processor(char *out, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(out, size, "unknown processor");
    while (file && fgets(line, sizeof line, file)) {
        char *name = strstr(line, ": ");
        if (strncmp(line, "model name", 10) != 0 || !name)
            continue;
        name[strcspn(name, "\n\"\\")] = '\0';
        snprintf(out, size, "%s", name + 2);
        break;
    }
    if (file)
        fclose(file);
}

void kbench_head(const struct kbench_options *o, const char *blas, const struct kbench_rival *rival)
{
    char name[128];
    char rounds[64];
    double load[1] = {NAN};
    if (o->rounds > 0)
        snprintf(rounds, sizeof rounds, "%u rounds", o->rounds);
    else
        snprintf(rounds, sizeof rounds, "%d rounds, of decode %d", KBENCH_ROUNDS,
            KBENCH_DECODE_ROUNDS);
    processor(name, sizeof name);
    if (getloadavg(load, 1) != 1)
        load[0] = -1;
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    if (o->json) {
        printf("{\"v\":1,\"bench\":\"kernels\",\"params\":{\"threads\":%u,\"pool_mib\":%u},"
               "\"metric\":\"machine\",\"processor\":\"%s\",\"processors\":%ld,\"load\":%.2f,"
               "\"cache_mib\":%llu,\"scale\":\"%s\",\"openblas\":\"%s\","
               "\"rival\":\"%s\",\"rival_is_there\":%s", o->threads, o->pool_mib, name, count,
            load[0], (unsigned long long)(o->cache_bytes >> 20), kbench_scale_name(), blas,
            rival->text, rival->fd >= 0 ? "true" : "false");
        bench_machine_write(stdout);
        puts("}");
        return;
    }
    printf("%s, %ld processors, load %.1f, last-level cache %llu MiB, states of %u MiB\n"
           "%u thread%s, %s; x *= c by %s; OpenBLAS core %s\nrival: %s%s\n\n", name, count,
        load[0], (unsigned long long)(o->cache_bytes >> 20), o->pool_mib, o->threads,
        o->threads > 1 ? "s" : "", rounds, kbench_scale_name(), blas,
        rival->fd >= 0 ? "" : "none: ", rival->text);
    printf("%-13s %-11s %-5s %-5s %5s %6s  %-11s %11s %8s %9s  %-6s %7s %8s  %11s %7s\n",
        "operation", "model", "dtype", "state", "batch", "tokens", "row", "us", "GB/s", "GFLOP/s",
        "limit", "rate", "reached", "rival us", "times");
}

/* ---- what must be reached ---- */

/* NAN: not measured, since the limit was not, or since states did not leave the cache. */
static double judged(const struct kbench_case *c, const struct kbench_options *o,
    const struct kbench_result *r)
{
    bool memory = kbench_limit_of(c->op) == KBENCH_MEMORY;
    if (!(r->limit > 0) || (memory && (uint64_t)o->pool_mib << 20 <= o->cache_bytes))
        return NAN;
    return c->op == KBENCH_REPLAY ? r->ring.ratio : 100 * r->ratio;
}

/* What a cycle takes at least, as measured, over the time of as many decodes: a step can be no
 * faster than to read its states and records, nor than its arithmetic from a cache. From 1 on the
 * ring cannot be faster than decode, whatever bytes say. */
static double ring_least(const struct kbench_ring *ring)
{
    double append = fmax(ring->cached_append_us, ring->read_us);
    double flush = fmax(ring->cached_flush_us, ring->read_us);
    return ((KBENCH_CYCLE - 1) * append + flush) / (KBENCH_CYCLE * ring->decode_us);
}

/* Has a ring no bar although it moves fewer bytes? Only what was measured tells. */
static bool ring_excused(const struct kbench_case *c, const struct kbench_options *o,
    const struct kbench_result *r)
{
    return c->op == KBENCH_REPLAY && r->ring.model_ratio > 1 && !isnan(judged(c, o, r))
        && ring_least(&r->ring) >= 1;
}

static void ring_reason(const struct kbench_ring *ring, char *out, size_t size)
{
    snprintf(out, size, "of decode's time reading alone takes %.2f, append's arithmetic %.2f, "
        "flush's %.2f: a cycle at least %.2f", ring->read_us / ring->decode_us,
        ring->cached_append_us / ring->decode_us, ring->cached_flush_us / ring->decode_us,
        ring_least(ring));
}

/* Of the limit, in percent, once states exceed the last-level cache; of decodes, as a ratio, where
 * a ring moves fewer bytes than they do and its parts leave room to be faster. */
static struct bench_bar bar_of(const struct kbench_case *c, const struct kbench_options *o,
    const struct kbench_result *r)
{
    static const struct bench_bar none = {BENCH_BAR_NONE, 0}, decode = {BENCH_BAR_LEAST, 80},
        chunk = {BENCH_BAR_LEAST, 40}, ring = {BENCH_BAR_LEAST, 1};
    switch (c->op) {
    case KBENCH_DECODE:
        return decode;
    case KBENCH_CHUNK:
        return chunk;
    case KBENCH_REPLAY:
        return r->ring.model_ratio > 1 && !ring_excused(c, o, r) ? ring : none;
    default:
        return none;
    }
}

void kbench_judge(const struct kbench_case *c, const struct kbench_options *o,
    const struct kbench_result *r, struct bench_bars *bars)
{
    bool ring = c->op == KBENCH_REPLAY;
    char name[128];
    snprintf(name, sizeof name, "%s %s %s/%s, batch %u, %u tokens, %s", c->model->name,
        kbench_op_name(c->op), dtype_name(c->dtype), dtype_name(c->state), c->batch, c->tokens,
        ring ? "faster than decode"
             : kbench_limit_of(c->op) == KBENCH_SGEMM ? "of sgemm" : "of x *= c in place");
    if (ring_excused(c, o, r)) {
        char why[160];
        ring_reason(&r->ring, why, sizeof why);
        bench_bars_excuse(bars, name, judged(c, o, r), "x", why);
        return;
    }
    bench_bars_judge(bars, name, judged(c, o, r), ring ? "x" : "%", bar_of(c, o, r));
}

/* ---- lines ---- */

static void json_rival(const struct kbench_rival_answer *rival)
{
    if (!rival->measured) {
        printf(",\"rival\":{\"skip\":\"%s\"}", rival->by);
        return;
    }
    printf(",\"rival\":{\"by\":\"%s\",\"us\":%.3f,\"n\":%u,\"error\":", rival->by, rival->us,
        rival->count);
    if (isnan(rival->error))
        printf("null}");
    else
        printf("%.3g}", rival->error);
}

static void json_ring(const struct kbench_ring *ring)
{
    printf(",\"ring_least\":%.4f", ring_least(ring));
    printf(",\"ring\":{\"decode_us\":%.3f,\"append_us\":%.3f,\"flush_us\":%.3f,\"ratio\":%.4f,"
           "\"model_ratio\":%.4f,\"decode_bytes\":%.0f,\"ring_bytes\":%.0f,\"read_us\":%.3f,"
           "\"read_ratio\":%.4f,"
           "\"cached\":{\"decode_us\":%.3f,\"append_us\":%.3f,\"flush_us\":%.3f}}",
        ring->decode_us, ring->append_us, ring->flush_us, ring->ratio, ring->model_ratio,
        ring->decode_bytes, ring->ring_bytes, ring->read_us, ring->read_ratio,
        ring->cached_decode_us, ring->cached_append_us, ring->cached_flush_us);
}

static void report_json(const struct kbench_case *c, const struct kbench_options *o,
    const struct kbench_result *r, const char *limit)
{
    struct bench_bar bar = bar_of(c, o, r);
    char why[160];
    printf("{\"v\":1,\"bench\":\"kernels\",\"params\":{\"op\":\"%s\",\"model\":\"%s\","
           "\"dtype\":\"%s\",\"state\":\"%s\",\"batch\":%u,\"tokens\":%u,\"threads\":%u},"
           "\"row\":\"%s\",\"metric\":\"time\",\"unit\":\"us\",\"n\":%u,\"p50\":%.3f,\"min\":%.3f,"
           "\"bytes\":%.0f,\"gb_s\":%.3f,\"gflop_s\":%.3f,\"limit\":\"%s\"",
        kbench_op_name(c->op), c->model->name, dtype_name(c->dtype), dtype_name(c->state),
        c->batch, c->tokens, o->threads, r->row, o->rounds, r->call_us, r->least_us, r->bytes,
        r->gb_s, r->gflop_s, limit);
    if (bar.kind != BENCH_BAR_NONE)
        printf(",\"%s\":%.0f", c->op == KBENCH_REPLAY ? "bar_ratio" : "bar_percent", bar.limit);
    if (ring_excused(c, o, r)) {
        ring_reason(&r->ring, why, sizeof why);
        printf(",\"no_bar\":\"%s\"", why);
    }
    if (r->limit > 0)
        printf(",\"limit_rate\":%.3f,\"limit_percent\":%.2f", r->limit, 100 * r->ratio);
    else
        printf(",\"limit_rate\":null,\"limit_percent\":null");
    if (c->op == KBENCH_REPLAY)
        json_ring(&r->ring);
    json_rival(&r->rival);
    bench_machine_write(stdout);
    puts("}");
}

static void text_ring(const struct kbench_ring *ring)
{
    printf(
        "  decode moves %.2f MB a call, the ring %.2f: %.2f times as fast by bytes, %.2f by time "
           "(decode %.1f us; append %.1f, flush %.1f)\n"
           "  from a cache: decode %.1f us, append %.1f, flush %.1f; "
           "to read slots and records takes %.0f %% of the time of x *= c\n",
        ring->decode_bytes / 1e6, ring->ring_bytes / 1e6, ring->model_ratio, ring->ratio,
        ring->decode_us, ring->append_us, ring->flush_us, ring->cached_decode_us,
        ring->cached_append_us, ring->cached_flush_us, 100 * ring->read_ratio);
}

void kbench_report(const struct kbench_case *c, const struct kbench_options *o,
    const struct kbench_result *r)
{
    const char *limit = kbench_limit_of(c->op) == KBENCH_SGEMM ? "sgemm" : "memory";
    if (o->json) {
        report_json(c, o, r, limit);
        fflush(stdout);
        return;
    }
    printf("%-13s %-11s %-5s %-5s %5u %6u  %-11s %11.1f %8.2f %9.2f  ", kbench_op_name(c->op),
        c->model->name, dtype_name(c->dtype), dtype_name(c->state), c->batch, c->tokens, r->row,
        r->call_us, r->gb_s, r->gflop_s);
    if (r->limit > 0)
        printf("%-6s %7.2f %6.1f %%", limit, r->limit, 100 * r->ratio);
    else
        printf("%-6s not measured    ", limit);
    if (r->rival.measured)
        printf("  %11.1f %6.1fx\n", r->rival.us, r->rival.us / r->call_us);
    else
        printf("  %11s %7s\n", "-", "-");
    if (c->op == KBENCH_REPLAY)
        text_ring(&r->ring);
    fflush(stdout);
}

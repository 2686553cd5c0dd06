/* SPDX-License-Identifier: Apache-2.0 */
/* What came out: table, details, CSV, JSON lines, plot. Jobs are in order: all policies of the
 * first budget, of the second, ... */
#include "hit_report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

double hit_rate(const struct hit_result *result)
{
    if (result->bound > 0)
        return 100 * result->bound;
    return result->input_tokens ? 100.0 * (double)result->hit_tokens / (double)result->input_tokens
                                : 0;
}

static double tenth_rate(const struct hit_result *r)
{
    return r->tenth_tokens ? 100.0 * (double)r->tenth_hit / (double)r->tenth_tokens : 0;
}

static double saved_rate(const struct hit_result *r)
{
    return r->flops_all > 0 ? 100 * r->flops_saved / r->flops_all : 0;
}

static double per_request(const struct hit_job *job, uint64_t total)
{
    return job->trace->count ? (double)total / (double)job->trace->count : 0;
}

static void table(FILE *out, const char *title, const struct hit_job *jobs, size_t policies,
    size_t budgets, double (*value)(const struct hit_result *))
{
    int width = 10;
    for (size_t p = 0; p < policies; p++)
        if ((int)strlen(jobs[p].spec.name) + 2 > width)
            width = (int)strlen(jobs[p].spec.name) + 2;
    fprintf(out, "\n%s\n%8s", title, "GiB");
    for (size_t p = 0; p < policies; p++)
        fprintf(out, "%*s", width, jobs[p].spec.name);
    for (size_t b = 0; b < budgets; b++) {
        fprintf(out, "\n%8g", jobs[b * policies].spec.budget_gib);
        for (size_t p = 0; p < policies; p++)
            fprintf(out, "%*.2f", width, value(&jobs[b * policies + p].result));
    }
    fputc('\n', out);
}

void hit_report_table(FILE *out, const struct hit_job *jobs, size_t policies, size_t budgets)
{
    const struct hit_trace *trace = jobs->trace;
    const struct hit_model *model = jobs->model;
    double working = (double)trace->node_count * trace->block * model->kv_token_bytes / 1073741824;
    fprintf(out, "%s: %zu requests, %.1f M input tokens in blocks of %u\n", trace->name,
        trace->count, (double)trace->input_tokens * 1e-6, trace->block);
    fprintf(out, "%s: a state is %.1f MiB, KV of a token %.0f bytes; all KV once: %.1f GiB\n",
        model->name, model->state_bytes / 1048576, model->kv_token_bytes, working);
    table(out, "token hit rate, %", jobs, policies, budgets, hit_rate);
    table(out, "share of prefill flops saved, %", jobs, policies, budgets, saved_rate);
    table(out, "token hit rate of the first tenth of the trace, %", jobs, policies, budgets,
        tenth_rate);
}

static const char *const tier_names[HIT_TIERS] = {"device", "host", "disk"};

static bool tiered(const struct hit_job *job)
{
    return job->spec.tier_gib[1] > 0 || job->spec.tier_gib[2] > 0;
}

static double tier_rate(const struct hit_result *r, int tier)
{
    return r->input_tokens ? 100.0 * (double)r->tier_hit_tokens[tier] / (double)r->input_tokens : 0;
}

static void report_tiers(FILE *out, const struct hit_job *jobs, size_t count)
{
    if (!tiered(jobs))
        return;
    const struct hit_spec *spec = &jobs->spec;
    fprintf(out, "\ntiers: device + host %g GiB + disk %g GiB; reading back %g and %g GB/s, "
        "prefill %g Tflop/s\n", spec->tier_gib[1], spec->tier_gib[2],
        spec->hardware.read_bytes_per_s[1] * 1e-9, spec->hardware.read_bytes_per_s[2] * 1e-9,
        spec->hardware.flops * 1e-12);
    fprintf(out, "%-22s%8s%9s%9s%9s%11s%11s%11s%11s%9s%12s%12s\n", "policy", "GiB", "device %",
        "host %", "disk %", "host in GB", "host out", "disk in GB", "disk out", "dropped",
        "prefill s", "saved s");
    for (size_t i = 0; i < count; i++) {
        const struct hit_result *r = &jobs[i].result;
        fprintf(out, "%-22s%8g%9.2f%9.2f%9.2f%11.1f%11.1f%11.1f%11.1f%9llu%12.1f%12.1f\n",
            jobs[i].spec.name, jobs[i].spec.budget_gib, tier_rate(r, 0), tier_rate(r, 1),
            tier_rate(r, 2), r->tier_written[1] * 1e-9, r->tier_read[1] * 1e-9,
            r->tier_written[2] * 1e-9, r->tier_read[2] * 1e-9, (unsigned long long)r->tier_dropped,
            r->seconds_all, r->seconds_saved);
    }
}

void hit_report_details(FILE *out, const struct hit_job *jobs, size_t count)
{
    fprintf(out, "\n%-22s%8s%10s%10s%9s%10s%10s%10s%10s%9s%8s\n", "policy", "GiB", "snapshots",
        "evicted", "refused", "policy ns", "of refit", "match ns", "insert ns", "index MB",
        "seconds");
    for (size_t i = 0; i < count; i++) {
        const struct hit_job *job = &jobs[i];
        const struct hit_result *r = &job->result;
        fprintf(out, "%-22s%8g%10llu%10llu%9llu%10.0f%10.0f%10.0f%10.0f%9.1f%8.2f", job->spec.name,
            job->spec.budget_gib, (unsigned long long)r->snapshots, (unsigned long long)r->evicted,
            (unsigned long long)r->refused, per_request(job, r->policy_ns),
            per_request(job, r->refit_ns), per_request(job, r->match_ns),
            per_request(job, r->insert_ns), (double)(r->index_bytes + r->policy_bytes) * 1e-6,
            r->seconds);
        if (job->spec.tune)
            fprintf(out, "  alpha %g", r->alpha);
        fputc('\n', out);
    }
    report_tiers(out, jobs, count);
}

static FILE *file_open(const char *path)
{
    if (!strcmp(path, "-"))
        return stdout;
    FILE *file = fopen(path, "w");
    if (!file)
        fprintf(stderr, "statecache-bench: %s: %s\n", path, strerror(errno));
    return file;
}

static bool file_close(FILE *file, const char *path)
{
    bool good = !ferror(file);
    if (file != stdout && fclose(file) != 0)
        good = false;
    if (!good)
        fprintf(stderr, "statecache-bench: %s: cannot be written\n", path);
    return good;
}

bool hit_report_csv(const char *path, const struct hit_job *jobs, size_t count)
{
    FILE *file = file_open(path);
    if (!file)
        return false;
    fputs("trace,model,state_bytes,kv_token_bytes,policy,budget_gib,hit_percent,flops_percent,"
          "first_tenth_percent,snapshots,evicted,refused,policy_ns,refit_ns,match_ns,insert_ns,"
          "peak_bytes,index_bytes,policy_bytes,host_gib,disk_gib,device_hit_percent,"
          "host_hit_percent,disk_hit_percent,host_written_bytes,host_read_bytes,"
          "disk_written_bytes,disk_read_bytes,dropped,prefill_s,saved_s\n", file);
    for (size_t i = 0; i < count; i++) {
        const struct hit_job *job = &jobs[i];
        const struct hit_result *r = &job->result;
        fprintf(file, "\"%s\",\"%s\",%.0f,%.0f,\"%s\",%g,%.4f,%.4f,%.4f,%llu,%llu,%llu,%.1f,%.1f,"
            "%.1f,%.1f,%.0f,%llu,%llu",
            job->trace->name, job->model->name, job->model->state_bytes, job->model->kv_token_bytes,
            job->spec.name, job->spec.budget_gib, hit_rate(r), saved_rate(r), tenth_rate(r),
            (unsigned long long)r->snapshots, (unsigned long long)r->evicted,
            (unsigned long long)r->refused, per_request(job, r->policy_ns),
            per_request(job, r->refit_ns), per_request(job, r->match_ns),
            per_request(job, r->insert_ns), r->peak_bytes, (unsigned long long)r->index_bytes,
            (unsigned long long)r->policy_bytes);
        fprintf(file, ",%g,%g,%.4f,%.4f,%.4f,%.0f,%.0f,%.0f,%.0f,%llu,%.3f,%.3f\n",
            job->spec.tier_gib[1], job->spec.tier_gib[2], tier_rate(r, 0), tier_rate(r, 1),
            tier_rate(r, 2), r->tier_written[1], r->tier_read[1], r->tier_written[2],
            r->tier_read[2], (unsigned long long)r->tier_dropped, r->seconds_all,
            r->seconds_saved);
    }
    return file_close(file, path);
}

static void json_text(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        if ((unsigned char)*text >= 0x20)
            fputc(*text, file);
    }
    fputc('"', file);
}

static void json_tiers(FILE *file, const struct hit_job *job)
{
    const struct hit_result *r = &job->result;
    fputs(",\"tiers\":[", file);
    for (int i = 0; i < HIT_TIERS; i++) {
        fprintf(file, "%s{\"name\":\"%s\",\"gib\":%g,\"hit_percent\":%.4f,\"read_bytes\":%.0f,"
            "\"written_bytes\":%.0f,\"peak_bytes\":%.0f}", i ? "," : "", tier_names[i],
            i ? job->spec.tier_gib[i] : job->spec.budget_gib, tier_rate(r, i), r->tier_read[i],
            r->tier_written[i], i ? r->tier_peak[i] : r->peak_bytes);
    }
    fprintf(file, "],\"dropped\":%llu,\"prefill_s\":%.3f,\"saved_s\":%.3f",
        (unsigned long long)r->tier_dropped, r->seconds_all, r->seconds_saved);
}

bool hit_report_json(const char *path, const struct hit_job *jobs, size_t count)
{
    FILE *file = file_open(path);
    if (!file)
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct hit_job *job = &jobs[i];
        const struct hit_result *r = &job->result;
        fputs("{\"v\":1,\"bench\":\"hit\",\"trace\":", file);
        json_text(file, job->trace->name);
        fputs(",\"model\":", file);
        json_text(file, job->model->name);
        fputs(",\"policy\":", file);
        json_text(file, job->spec.name);
        fprintf(file, ",\"state_bytes\":%.0f,\"kv_token_bytes\":%.0f,\"budget_gib\":%g,"
            "\"hit_percent\":%.4f,\"flops_percent\":%.4f,\"first_tenth_percent\":%.4f,"
            "\"snapshots\":%llu,\"evicted\":%llu,\"refused\":%llu,\"requests\":%zu,"
            "\"policy_ns\":%.1f,\"refit_ns\":%.1f,\"match_ns\":%.1f,\"insert_ns\":%.1f,"
            "\"peak_bytes\":%.0f",
            job->model->state_bytes, job->model->kv_token_bytes, job->spec.budget_gib, hit_rate(r),
            saved_rate(r), tenth_rate(r), (unsigned long long)r->snapshots,
            (unsigned long long)r->evicted, (unsigned long long)r->refused, job->trace->count,
            per_request(job, r->policy_ns), per_request(job, r->refit_ns),
            per_request(job, r->match_ns), per_request(job, r->insert_ns), r->peak_bytes);
        if (tiered(job))
            json_tiers(file, job);
        bench_machine_write(file);
        fputs("}\n", file);
    }
    return file_close(file, path);
}

static void plot_script(FILE *pipe, const char *prefix, const struct hit_job *jobs, size_t policies,
    size_t budgets)
{
    fputs("$data << EOD\n", pipe);
    for (size_t b = 0; b < budgets; b++) {
        fprintf(pipe, "%g", jobs[b * policies].spec.budget_gib);
        for (size_t p = 0; p < policies; p++)
            fprintf(pipe, " %.4f", hit_rate(&jobs[b * policies + p].result));
        fputc('\n', pipe);
    }
    fputs("EOD\nset logscale x 2\nset grid\nset key left top\nset xlabel 'budget, GiB'\n"
          "set ylabel 'token hit rate, %'\n", pipe);
    fprintf(pipe, "set title '%s' noenhanced\n", jobs->trace->name);
    for (int form = 0; form < 2; form++) {
        fprintf(pipe, "set terminal %s\nset output '%s.%s'\nplot ",
            form ? "svg size 800,500 dynamic" : "pngcairo size 800,500", prefix,
            form ? "svg" : "png");
        for (size_t p = 0; p < policies; p++)
            fprintf(pipe, "%s$data using 1:%zu with linespoints lw 2 title '%s' noenhanced",
                p ? ", " : "", p + 2, jobs[p].spec.name);
        fputs("\nset output\n", pipe);
    }
}

bool hit_report_plot(const char *prefix, const struct hit_job *jobs, size_t policies,
    size_t budgets)
{
    if (strchr(prefix, '\'') || strchr(jobs->trace->name, '\'')) {
        fprintf(stderr, "statecache-bench: no quotes in names of plots\n");
        return false;
    }
    FILE *pipe = popen("gnuplot", "w");
    if (!pipe)
        return false;
    plot_script(pipe, prefix, jobs, policies, budgets);
    if (pclose(pipe) != 0) {
        fprintf(stderr, "statecache-bench: gnuplot failed; is it installed?\n");
        return false;
    }
    return true;
}

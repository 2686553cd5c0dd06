/* SPDX-License-Identifier: Apache-2.0 */
/* The outcome of a replay, for people and as one JSON object. */
#include <inttypes.h>
#include <jansson.h>

#include "bars.h"
#include "machine.h"
#include "replay.h"

static double share(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static const char *kind_name(const struct replay_options *o)
{
    if (o->model.mamba)
        return "Mamba-2";
    return o->model.kind == SC_K_KIND_GDN ? "GDN" : "KDA";
}

static const char *layout_name(const struct replay_options *o)
{
    return o->layout == SC_LAYOUT_PAGE_MAJOR ? "page-major" : "contiguous";
}

static const char *state_name(const struct replay_options *o)
{
    return o->model.state_dtype == SC_DTYPE_F32 ? "fp32" : "bf16";
}

/* ----------------------------------------------------------------------------------------- text */

static void print_setup(const struct replay_run *run, FILE *out)
{
    const struct replay_options *o = &run->o;
    fprintf(out, "replay      %s, %" PRIu64 " requests", run->workload.name,
        run->cached.requests);
    if (run->workload.block)
        fprintf(out, ", blocks of %u replayed as %u", run->workload.block_traced,
            run->workload.block);
    if (o->no_compute)
        fprintf(out, "\nmodel       none (--no-compute)\n");
    else
        fprintf(out, "\nmodel       %u layers of %s, each %u. full attention; states %s, %s, "
            "on %s\n",
            o->model.layers, kind_name(o), o->model.attention_every, state_name(o),
            layout_name(o), o->backend);
    fprintf(out, "cache       page %u, chunk %u, %u slots of %" PRIu64 " bytes, %u KV pages, %s\n",
        o->page, o->model.chunk, o->slots, run->cached.pool.slot_bytes, o->kv_pages, o->policy);
}

/* What the options asked for beyond one step after the other; a line for each, and none else. */
static void print_features(const struct replay_run *run, FILE *out)
{
    const struct replay_options *o = &run->o;
    const struct pass_result *r = &run->cached;
    if (o->in_flight > 1)
        fprintf(out, "in flight   %u steps at most; %" PRIu64 " of %" PRIu64 " launched while "
            "another was out, %" PRIu64 " of %" PRIu64 " rows behind a row of their own request\n",
            o->in_flight, r->steps_overlapped, r->steps, r->rows_overlapped, r->rows);
    if (o->late_stop)
        fprintf(out, "late stop   %" PRIu64 " rows behind the end of their text, discarded\n",
            r->rows_late);
    if (o->drafts > 0)
        fprintf(out, "drafts      %" PRIu64 " in %" PRIu64 " rows%s, %" PRIu64 " accepted (%.1f "
            "%%); %" PRIu64 " rows began at a place not yet known\n            %" PRIu64 " of %"
            PRIu64 " texts are those of plain decoding\n", r->drafts, r->draft_rows,
            o->draft_tree ? ", trees" : "", r->drafts_accepted,
            share(r->drafts_accepted, r->drafts), r->rows_uncertain, r->guessed_right, r->guessed);
    if (r->readmitted > 0)
        fprintf(out, "preempted   %" PRIu64 " by the coin, %" PRIu64 " for room; %" PRIu64
            " readmitted, %" PRIu64 " resumed, %" PRIu64 " with all that they had\n",
            r->preempted_by_coin, r->preempted, r->readmitted, r->readmitted_hits,
            r->readmitted_whole);
    if (o->fork > 0)
        fprintf(out, "forks       %" PRIu64 " of %" PRIu64 " requests into %" PRIu64 " more, %"
            PRIu64 " tokens not computed again; %" PRIu64 " refused, served alone\n", r->forks,
            r->requests - r->forked - r->forks_refused, r->forked, r->forked_tokens,
            r->forks_refused);
    if (o->tenants > 0)
        fprintf(out, "tenants     %u; %" PRIu64 " hits of what only another had computed, %" PRIu64
            " of them beyond the common prompt%s\n", o->tenants, r->tenant_hits + r->tenant_leaks,
            r->tenant_leaks, r->tenant_leaks ? ": LEAKED" : "");
    if (o->model.ring > 0)
        fprintf(out, "rings       of %u records, %.1f MiB; %" PRIu64 " tokens appended, %" PRIu64
            " flushed, %" PRIu64 " folds; %" PRIu64 " requests began on records\n", o->model.ring,
            (double)r->ring_bytes / 1048576, r->ring_appends, r->ring_flushes, r->ring_folds,
            r->ring_resumed);
    if (o->tails)
        fprintf(out, "tails       %" PRIu64 " partial pages handed in, %" PRIu64 " resumed inside "
            "a page\n", r->tails_handed, r->tails_resumed);
}

static void print_hits(const struct replay_run *run, FILE *out)
{
    const struct pass_result *r = &run->cached;
    double ideal = run->ideal_end_branch;
    double all = (double)workload_prompt_tokens(&run->workload);
    double rate = share(r->hit_tokens, r->prompt_tokens);
    fprintf(out, "prompts     %" PRIu64 " tokens, and %" PRIu64 " decoded; %" PRIu64
        " requests preempted for room\n", r->prompt_tokens, r->output_tokens, r->preempted);
    fprintf(out, "hit         %" PRIu64 " tokens, %.2f %%", r->hit_tokens, rate);
    fprintf(out, "; ideal: ends %.2f %%, ends and branch points %.2f %%",
        100 * run->ideal_end / all, 100 * ideal / all);
    if (ideal > 0)
        fprintf(out, " (%.1f %% of it)", rate / (100 * ideal / all) * 100);
    fputs("\nresumed     ", out);
    for (int at = AT_COUNT - 1; at >= 0; at--)
        if (r->resumed_at[at])
            fprintf(out, "%" PRIu64 " at %s%s", r->resumed_at[at],
                resumed_at_name((enum resumed_at)at), at ? ", " : "");
    fputs("\nnot more    ", out);
    const char *comma = "";
    for (int reason = 0; reason < SC_REASON_COUNT; reason++)
        if (r->stats.reason_count[reason]) {
            fprintf(out, "%s%" PRIu64 " %s", comma, r->stats.reason_count[reason],
                sc_reason_text((sc_reason)reason));
            comma = "; ";
        }
    fputc('\n', out);
}

static void print_compute(const struct replay_run *run, FILE *out)
{
    const struct pass_result *r = &run->cached, *cold = &run->cold;
    fprintf(out, "states      %" PRIu64 " tokens computed with the cache", r->computed_tokens);
    if (run->has_cold)
        fprintf(out, ", %" PRIu64 " cold: %.1f times fewer", cold->computed_tokens,
            (double)cold->computed_tokens / (double)r->computed_tokens);
    if (!run->o.no_compute) {
        fprintf(out, "\ncompute     %.2f s with the cache", seconds(r->compute_ns));
        if (run->has_cold)
            fprintf(out, ", %.2f s cold: %.1f times less", seconds(cold->compute_ns),
                (double)cold->compute_ns / (double)r->compute_ns);
        fprintf(out, "\nprocessor   %.2f s with the cache", seconds(r->cpu_ns));
        if (run->has_cold)
            fprintf(out, ", %.2f s cold: %.1f times less", seconds(cold->cpu_ns),
                (double)cold->cpu_ns / (double)r->cpu_ns);
        fprintf(out, "; %u threads, %.1f rows a step", run->o.threads,
            (double)r->rows / (double)r->steps);
    }
    fprintf(out, "\nlibrary     %.3f s in calls of the cache, %.1f us a step\n",
        seconds(r->library_ns), (double)r->library_ns * 1e-3 / (double)r->steps);
}

static void print_memory(const struct replay_run *run, FILE *out)
{
    const struct pass_result *r = &run->cached;
    fprintf(out, "slots       %u of %u at most, %.1f of %.1f MiB; %" PRIu64 " states left\n",
        r->slots_peak, r->slots, (double)r->slots_peak * (double)r->pool.slot_bytes / 1048576,
        (double)r->pool.memory_bytes / 1048576, r->stats.snapshots_alive);
    uint64_t skipped = 0, evicted = 0, heap = 0;
    for (int i = 0; i < SC_SKIP_COUNT; i++)
        skipped += r->stats.saves_skipped[i];
    for (int i = 0; i < SC_EVICT_COUNT; i++)
        evicted += r->stats.evicted[i];
    for (int i = 0; i < SC_SUBSYSTEM_COUNT; i++)
        heap += r->heap[i].live_bytes;
    fprintf(out, "saves       %" PRIu64 " published, %" PRIu64 " skipped; %" PRIu64
        " evicted (%" PRIu64 " for room, %" PRIu64 " superseded)\n", r->stats.saves_published,
        skipped, evicted, r->stats.evicted[SC_EVICT_FOR_SLOT],
        r->stats.evicted[SC_EVICT_SUPERSEDED]);
    fprintf(out, "index       %" PRIu64 " tokens in %" PRIu64 " nodes, heap %.1f MiB\n",
        r->stats.tokens_cached, r->stats.nodes, (double)heap / 1048576);
    fprintf(out, "KV pages    %" PRIu64 " of %" PRIu64 " at most; handed in %" PRIu64
        " = drained %" PRIu64 " + held %" PRIu64 "%s\n", r->kv_peak, r->kv_pages,
        r->stats.pages_in, r->stats.pages_out, r->kv_left,
        r->id_faults ? ": DOES NOT ADD UP" : "");
}

/* Where hits came from, and what went down. */
static void print_tiers(const struct replay_run *run, FILE *out)
{
    static const char *const names[] = {"device", "host", "disk"};
    const sc_cache_stats *s = &run->cached.stats;
    const sc_tiers_stats *t = &run->cached.tiers;
    if (!run->o.host_slots && !run->o.disk)
        return;
    fprintf(out, "tiers       %" PRIu64 " states known at the start; resumed from", s->tier_loaded);
    uint64_t below = s->resumed_by_tier[SC_TIER_HOST] + s->resumed_by_tier[SC_TIER_DISK];
    for (int tier = 0; tier <= SC_TIER_DISK; tier++)
        fprintf(out, "%s %s %" PRIu64, tier ? "," : "", names[tier],
            tier ? s->resumed_by_tier[tier] : s->resumed - below);
    fprintf(out, " (%" PRIu64 " and %" PRIu64 " tokens below the device)\n",
        s->tokens_hit_by_tier[SC_TIER_HOST], s->tokens_hit_by_tier[SC_TIER_DISK]);
    for (int tier = SC_TIER_HOST; tier <= SC_TIER_DISK; tier++)
        fprintf(out, "            %s: %" PRIu64 " written, %" PRIu64 " dropped for room, %" PRIu64
            " refused; %.1f MiB; %" PRIu64 " read\n", names[tier], s->tier_stored[tier],
            s->tier_dropped[tier], s->tier_refused[tier], (double)s->tier_bytes[tier] / 1048576,
            t->restored[tier]);
    fprintf(out, "            %" PRIu64 " leases waited; %" PRIu64 " states went without a copy; %"
        PRIu64 " transfers failed\n", run->cached.tier_waits, s->tier_lost, s->transfers_failed);
}

static void print_check(const struct replay_run *run, FILE *out)
{
    const struct check_result *c = &run->check;
    if (run->cached.sabotaged[0])
        fprintf(out, "sabotage    %s\n", run->cached.sabotaged);
    fprintf(out, "check       %u requests (a fifth or more from each way of resuming there was):",
        c->checked);
    const char *comma = " ";
    for (int at = AT_COUNT - 1; at >= 0; at--)
        if (c->by_at[at]) {
            fprintf(out, "%s%u at %s", comma, c->by_at[at], resumed_at_name((enum resumed_at)at));
            comma = ", ";
        }
    comma = "\n            of them: ";
    for (int bit = 0; bit < WITNESS_FLAG_COUNT; bit++)
        if (c->by_flag[bit]) {
            fprintf(out, "%s%u %s", comma, c->by_flag[bit], witness_flag_name(bit));
            comma = ", ";
        }
    fprintf(out, "\n            %" PRIu64 " differing bits in %" PRIu64 " outputs and %.1f MiB of "
        "states (outputs %" PRIu64 ", end states %" PRIu64 ", snapshots %" PRIu64
        ", with cuts %" PRIu64 "), %" PRIu64 " tokens with differing KV\n", check_bits(c),
        c->output_values, (double)c->state_bytes / 1048576, c->output_bits, c->state_bits,
        c->snapshot_bits, c->cut_bits, c->kv_rows);
    fprintf(out, "            %" PRIu64 " of %" PRIu64 " sampled tokens differ\n", c->text_tokens,
        c->text_checked);
    fprintf(out, "            %u grid snapshots against one uncut prefill, %u resumed past decoded "
        "tokens, %" PRIu64 " unsound histories\n", c->grid_snapshots, c->with_decode_before,
        c->bad_histories);
    fprintf(out, "            against float64: outputs %.1e, states %.1e (at most %.0e)\n",
        c->worst_output, c->worst_state, c->tolerance);
    if (run->o.model.ring > 0)
        fprintf(out, "            against no rings: outputs %.1e\n", c->worst_ring);
}

void replay_report_text(const struct replay_run *run, FILE *out)
{
    print_setup(run, out);
    print_hits(run, out);
    print_features(run, out);
    print_compute(run, out);
    print_memory(run, out);
    print_tiers(run, out);
    if (run->has_check)
        print_check(run, out);
    if (run->cached.lookup_differs)
        fprintf(out, "look-up     %" PRIu64 " times not what acquire did\n",
            run->cached.lookup_differs);
    fprintf(out, "result      %s\n", replay_passed(run) ? "passed" : "FAILED");
}

/* ----------------------------------------------------------------------------------------- JSON */

static void put_count(json_t *object, const char *name, uint64_t value)
{
    json_object_set_new(object, name, json_integer((json_int_t)value));
}

static void put_real(json_t *object, const char *name, double value)
{
    json_t *number = json_real(value); /* NULL for what JSON cannot say */
    json_object_set_new(object, name, number ? number : json_null());
}

static json_t *json_by_at(const uint64_t *counts)
{
    json_t *object = json_object();
    for (int at = 0; at < AT_COUNT; at++)
        put_count(object, resumed_at_name((enum resumed_at)at), counts[at]);
    return object;
}

static json_t *json_params(const struct replay_run *run)
{
    const struct replay_options *o = &run->o;
    json_t *object = json_object();
    json_object_set_new(object, "workload", json_string(run->workload.name));
    put_count(object, "seed", o->seed);
    put_count(object, "block", run->workload.block);
    put_count(object, "page", o->page);
    put_count(object, "chunk", o->model.chunk);
    put_count(object, "slots", o->slots);
    put_count(object, "kv_pages", o->kv_pages);
    json_object_set_new(object, "kind", json_string(kind_name(o)));
    json_object_set_new(object, "layout", json_string(layout_name(o)));
    json_object_set_new(object, "state", json_string(state_name(o)));
    json_object_set_new(object, "backend", json_string(o->backend));
    json_object_set_new(object, "policy", json_string(o->policy));
    json_object_set_new(object, "no_compute", json_boolean(o->no_compute));
    put_count(object, "threads", o->threads);
    put_count(object, "ring", o->model.ring);
    put_count(object, "in_flight", o->in_flight);
    put_count(object, "drafts", o->drafts);
    json_object_set_new(object, "draft_tree", json_boolean(o->draft_tree));
    json_object_set_new(object, "late_stop", json_boolean(o->late_stop));
    put_real(object, "preempt", o->preempt);
    put_real(object, "fork", o->fork);
    put_count(object, "tenants", o->tenants);
    json_object_set_new(object, "tails", json_boolean(o->tails));
    return object;
}

static void put_features(json_t *object, const struct pass_result *r)
{
    const struct { const char *name; uint64_t value; } counts[] = {
        {"steps_overlapped", r->steps_overlapped}, {"rows_overlapped", r->rows_overlapped},
        {"rows_late", r->rows_late}, {"rows_uncertain", r->rows_uncertain},
        {"draft_rows", r->draft_rows}, {"drafts", r->drafts},
        {"drafts_accepted", r->drafts_accepted}, {"guessed", r->guessed},
        {"guessed_right", r->guessed_right}, {"preempted", r->preempted},
        {"preempted_by_coin", r->preempted_by_coin}, {"readmitted", r->readmitted},
        {"readmitted_hits", r->readmitted_hits}, {"readmitted_whole", r->readmitted_whole},
        {"forks", r->forks}, {"forked", r->forked}, {"forks_refused", r->forks_refused},
        {"forked_tokens", r->forked_tokens}, {"tenant_hits", r->tenant_hits},
        {"tenant_leaks", r->tenant_leaks}, {"tails_handed", r->tails_handed},
        {"tails_resumed", r->tails_resumed}, {"ring_appends", r->ring_appends},
        {"ring_flushes", r->ring_flushes}, {"ring_folds", r->ring_folds},
        {"ring_resumed", r->ring_resumed}, {"ring_bytes", r->ring_bytes}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        put_count(object, counts[i].name, counts[i].value);
}

static json_t *json_pass(const struct pass_result *r)
{
    json_t *object = json_object(), *reasons = json_object();
    const struct { const char *name; uint64_t value; } counts[] = {{"requests", r->requests},
        {"prompt_tokens", r->prompt_tokens}, {"output_tokens", r->output_tokens},
        {"hit_tokens", r->hit_tokens}, {"computed_tokens", r->computed_tokens},
        {"steps", r->steps}, {"rows", r->rows},
        {"slot_bytes", r->pool.slot_bytes}, {"slots_peak", r->slots_peak},
        {"kv_pages_peak", r->kv_peak}, {"kv_id_faults", r->id_faults},
        {"lookup_differs", r->lookup_differs}, {"saves_published", r->stats.saves_published},
        {"snapshots_left", r->stats.snapshots_alive}, {"tokens_cached", r->stats.tokens_cached},
        {"nodes", r->stats.nodes}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        put_count(object, counts[i].name, counts[i].value);
    put_features(object, r);
    put_real(object, "hit_percent", share(r->hit_tokens, r->prompt_tokens));
    put_real(object, "compute_s", seconds(r->compute_ns));
    put_real(object, "cpu_s", seconds(r->cpu_ns));
    put_real(object, "library_s", seconds(r->library_ns));
    put_real(object, "wall_s", seconds(r->wall_ns));
    for (int reason = 0; reason < SC_REASON_COUNT; reason++)
        put_count(reasons, sc_reason_text((sc_reason)reason), r->stats.reason_count[reason]);
    json_object_set_new(object, "reasons", reasons);
    json_object_set_new(object, "resumed_at", json_by_at(r->resumed_at));
    uint64_t evicted = 0, skipped = 0;
    for (int i = 0; i < SC_EVICT_COUNT; i++)
        evicted += r->stats.evicted[i];
    for (int i = 0; i < SC_SKIP_COUNT; i++)
        skipped += r->stats.saves_skipped[i];
    put_count(object, "evicted", evicted);
    put_count(object, "saves_skipped", skipped);
    return object;
}

static json_t *json_tiers(const struct replay_run *run)
{
    static const char *const names[] = {"device", "host", "disk"};
    const sc_cache_stats *s = &run->cached.stats;
    json_t *object = json_object();
    put_count(object, "loaded", s->tier_loaded);
    put_count(object, "waits", run->cached.tier_waits);
    put_count(object, "lost", s->tier_lost);
    put_count(object, "failed", s->transfers_failed);
    put_count(object, "restored", s->restored);
    uint64_t below = s->resumed_by_tier[SC_TIER_HOST] + s->resumed_by_tier[SC_TIER_DISK];
    for (int tier = 0; tier <= SC_TIER_DISK; tier++) {
        json_t *one = json_object();
        put_count(one, "resumed", tier ? s->resumed_by_tier[tier] : s->resumed - below);
        put_count(one, "tokens", s->tokens_hit_by_tier[tier]);
        put_count(one, "stored", s->tier_stored[tier]);
        put_count(one, "dropped", s->tier_dropped[tier]);
        put_count(one, "refused", s->tier_refused[tier]);
        put_count(one, "bytes", s->tier_bytes[tier]);
        put_count(one, "read", run->cached.tiers.restored[tier]);
        json_object_set_new(object, names[tier], one);
    }
    return object;
}

static json_t *json_check(const struct replay_run *run)
{
    const struct check_result *c = &run->check;
    json_t *object = json_object();
    uint64_t by_at[AT_COUNT];
    for (int at = 0; at < AT_COUNT; at++)
        by_at[at] = c->by_at[at];
    put_count(object, "checked", c->checked);
    json_object_set_new(object, "resumed_at", json_by_at(by_at));
    json_t *flags = json_object();
    for (int bit = 0; bit < WITNESS_FLAG_COUNT; bit++)
        put_count(flags, witness_flag_name(bit), c->by_flag[bit]);
    json_object_set_new(object, "of_them", flags);
    put_count(object, "differing_bits", check_bits(c));
    put_count(object, "output_bits", c->output_bits);
    put_count(object, "state_bits", c->state_bits);
    put_count(object, "snapshot_bits", c->snapshot_bits);
    put_count(object, "cut_bits", c->cut_bits);
    put_count(object, "kv_tokens", c->kv_rows);
    put_count(object, "text_checked", c->text_checked);
    put_count(object, "text_tokens", c->text_tokens);
    put_count(object, "unsound_histories", c->bad_histories);
    put_count(object, "grid_snapshots", c->grid_snapshots);
    put_real(object, "worst_ring", c->worst_ring);
    put_real(object, "worst_output", c->worst_output);
    put_real(object, "worst_state", c->worst_state);
    put_real(object, "tolerance", c->tolerance);
    if (run->cached.sabotaged[0])
        json_object_set_new(object, "sabotaged", json_string(run->cached.sabotaged));
    return object;
}

void replay_report_json(const struct replay_run *run, FILE *out)
{
    double all = (double)workload_prompt_tokens(&run->workload);
    json_t *object = json_object();
    put_count(object, "v", 1);
    json_object_set_new(object, "bench", json_string("replay"));
    json_object_set_new(object, "params", json_params(run));
    put_real(object, "ideal_end_percent", 100 * run->ideal_end / all);
    put_real(object, "ideal_end_branch_percent", 100 * run->ideal_end_branch / all);
    json_object_set_new(object, "cached", json_pass(&run->cached));
    if (run->o.host_slots || run->o.disk)
        json_object_set_new(object, "tiers", json_tiers(run));
    if (run->has_cold)
        json_object_set_new(object, "cold", json_pass(&run->cold));
    if (run->has_check)
        json_object_set_new(object, "check", json_check(run));
    json_object_set_new(object, "passed", json_boolean(replay_passed(run)));
    bench_machine_add(object);
    if (json_dumpf(object, out, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9)))
        bench_fail(BENCH_NO_MEMORY, "cannot write JSON");
    fputc('\n', out);
    json_decref(object);
}

int replay_report_bars(const struct replay_run *run, FILE *out)
{
    const struct bench_bar nothing = {BENCH_BAR_MOST, 0};
    const struct pass_result *r = &run->cached;
    struct bench_bars bars = {0};
    bench_bars_judge(&bars, "wrong accounts of KV ids", (double)r->id_faults, "", nothing);
    bench_bars_judge(&bars, "look-ups unlike acquires", (double)r->lookup_differs, "", nothing);
    bench_bars_judge(&bars, "hits of another tenant", (double)r->tenant_leaks, "", nothing);
    if (run->has_check) {
        const struct check_result *c = &run->check;
        const struct bench_bar close = {BENCH_BAR_MOST, c->tolerance};
        bench_bars_judge(&bars, "differing bits", (double)check_bits(c), "", nothing);
        bench_bars_judge(&bars, "tokens with differing KV", (double)c->kv_rows, "", nothing);
        bench_bars_judge(&bars, "sampled tokens that differ", (double)c->text_tokens, "", nothing);
        bench_bars_judge(
            &bars, "histories that cannot be run again", (double)c->bad_histories, "", nothing);
        if (run->o.model.ring > 0)
            bench_bars_judge(
                &bars, "error of outputs against no rings", c->worst_ring, "", close);
        bench_bars_judge(&bars, "error of outputs against float64", c->worst_output, "", close);
        bench_bars_judge(&bars, "error of states against float64", c->worst_state, "", close);
    }
    return bench_bars_end(&bars, out);
}

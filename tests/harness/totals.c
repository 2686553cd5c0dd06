/* SPDX-License-Identifier: Apache-2.0 */
/* What was called, with which result, how long it took. */
#include <string.h>

#include "harness.h"

const char *const h_call_names[H_CALL_COUNT] = {
#define H_CALL_NAME(name, text, wanted) [H_CALL_##name] = text,
    H_CALL_LIST(H_CALL_NAME)
#undef H_CALL_NAME
};
const uint32_t h_call_wanted[H_CALL_COUNT] = {
#define H_CALL_WANTED(name, text, wanted) [H_CALL_##name] = (wanted),
    H_CALL_LIST(H_CALL_WANTED)
#undef H_CALL_WANTED
};
const char *const h_fault_names[H_FAULT_COUNT] = {"failed allocation", "late step",
    "reordered steps", "step reported twice", "lost step", "step not launched", "lost device",
    "failed call to the system"};

uint32_t h_bucket(uint64_t ns)
{
    uint32_t power = 0;
    if (ns < 8) return (uint32_t)ns;
    while ((ns >> (power + 4)) != 0) power++; /* ns >> power is 8 .. 15 */
    uint32_t bucket = (power + 1) * 8 + (uint32_t)((ns >> power) - 8);
    return bucket < H_BUCKETS ? bucket : H_BUCKETS - 1;
}

uint64_t h_bucket_ns(uint32_t bucket)
{
    if (bucket < 8) return bucket;
    return (UINT64_C(8) + bucket % 8) << (bucket / 8 - 1);
}

uint64_t h_quantile(const uint64_t *buckets, double q)
{
    uint64_t count = 0, seen = 0;
    for (uint32_t i = 0; i < H_BUCKETS; i++) count += buckets[i];
    for (uint32_t i = 0; i < H_BUCKETS; i++) {
        seen += buckets[i];
        if (count > 0 && (double)seen >= q * (double)count) return h_bucket_ns(i);
    }
    return 0;
}

/* Calls that change the cache: their answers are decisions. */
static bool decides(enum h_call call)
{
    switch (call) {
    case H_CALL_NS_OPEN:
    case H_CALL_NS_CLOSE:
    case H_CALL_ACQUIRE_EACH:
    case H_CALL_ADOPT:
    case H_CALL_APPEND:
    case H_CALL_APPEND_MARKED:
    case H_CALL_PLAN:
    case H_CALL_PLAN_EACH:
    case H_CALL_COMMIT:
    case H_CALL_COMMIT_SAVED:
    case H_CALL_ABORT:
    case H_CALL_RELEASE:
    case H_CALL_RELEASE_TAIL:
    case H_CALL_FILLED:
    case H_CALL_FORK:
    case H_CALL_EVICT:
    case H_CALL_DRAIN:
    case H_CALL_APPLY:
        return true;
    default:
        return false;
    }
}

/* Documented, too, but what the harness does hardly ever gives it. */
static uint32_t rare(enum h_call call)
{
    if (call == H_CALL_CREATE) return B(SC_ERR_IO) | B(SC_ERR_LIMIT) | B(SC_ERR_CORRUPT);
    if (call == H_CALL_TIERS_CREATE) return B(SC_ERR_CORRUPT);
    return call == H_CALL_APPLY ? B(SC_ERR_NO_MEMORY) : 0;
}

sc_status h_item(struct h_sched *s, enum h_call call, sc_status status)
{
    struct h_world *w = s->world;
    H_CHECK(w, status <= 0 && status > -H_STATUS_MAX, "%s: status %d", h_call_names[call],
        (int)status);
    s->totals->cell[call][-status]++;
    if (decides(call) && s->op.code != H_OP_STALE && s->op.code != H_OP_BAD &&
        s->op.code != H_OP_POLL) {
        s->totals->decisions++;
        h_decided(w, (uint64_t)call << 8 | (uint64_t)-status);
    }
    bool lost = status == SC_ERR_DEVICE_LOST && w->device_lost;
    H_CHECK(w, lost || ((h_call_wanted[call] | rare(call)) & (1u << -status)),
        "%s gives %s, which it does not document: %s", h_call_names[call], sc_status_name(status),
        sc_last_error()->text);
    return status;
}

sc_status h_seen(struct h_sched *s, enum h_call call, uint64_t begin, sc_status status)
{
    if (s->world->timed) s->totals->latency[call][h_bucket(s->world->clock() - begin)]++;
    s->totals->calls++;
    return h_item(s, call, status);
}

void h_totals_add(struct h_totals *sum, const struct h_totals *more)
{
    /* All members are counters of 64 bits. */
    uint64_t *to = (uint64_t *)(void *)sum;
    const uint64_t *from = (const uint64_t *)(const void *)more;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++) to[i] += from[i];
}

uint32_t h_print_coverage(FILE *out, const struct h_totals *t)
{
    uint32_t missing = 0;
    for (uint32_t call = 0; call < H_CALL_COUNT; call++) {
        (void)fprintf(out, "%-20s", h_call_names[call]);
        for (int status = 0; status < H_STATUS_MAX; status++) {
            bool wanted = h_call_wanted[call] & (1u << status);
            uint64_t count = t->cell[call][status];
            if (!wanted && count == 0) continue;
            (void)fprintf(out, " %s %llu%s", sc_status_name((sc_status)-status) + 3,
                (unsigned long long)count, count == 0 ? " (MISSING)" : "");
            missing += count == 0;
        }
        (void)fprintf(out, "\n");
    }
    return missing;
}

static void print_u64(FILE *out, const char *name, const uint64_t *values, uint32_t count)
{
    (void)fprintf(out, "%s", name);
    for (uint32_t i = 0; i < count; i++) {
        (void)fprintf(out, " %llu", (unsigned long long)values[i]);
    }
    (void)fprintf(out, "\n");
}

static void print_tiers(FILE *out, const struct h_tier_totals *t)
{
    (void)fprintf(out,
        "tiers in %llu worlds: %llu leases waited (%llu for a restore of others), "
        "%llu restored (%llu in their own slot), %llu failed, %llu late\n",
        (unsigned long long)t->worlds, (unsigned long long)t->waited, (unsigned long long)t->joined,
        (unsigned long long)t->restored, (unsigned long long)t->in_working,
        (unsigned long long)t->shorter, (unsigned long long)t->late);
    (void)fprintf(out,
        "%llu completions applied, %llu as failed; %llu late moves of KV; opened "
        "again %llu times with %llu records; %llu bytes damaged; %llu records verified in %llu "
        "stores; %llu states lost\n",
        (unsigned long long)t->applied, (unsigned long long)t->applied_failed,
        (unsigned long long)t->moves, (unsigned long long)t->reopened,
        (unsigned long long)t->loaded, (unsigned long long)t->damaged,
        (unsigned long long)t->records, (unsigned long long)t->verified,
        (unsigned long long)t->lost);
    print_u64(out, "stored by tier:", t->stored, 4);
    print_u64(out, "resumed by tier:", t->resumed, 4);
    print_u64(out, "dropped by tier:", t->dropped, 4);
    print_u64(out, "refused by tier:", t->refused, 4);
}

void h_print_totals(FILE *out, const struct h_totals *t)
{
    (void)fprintf(out, "%llu operations, %llu calls in %llu worlds: %llu hits, %llu steps, %llu "
        "rows, %llu cut, %llu saves, %llu freezes\n", (unsigned long long)t->ops,
        (unsigned long long)t->calls, (unsigned long long)t->worlds, (unsigned long long)t->hits,
        (unsigned long long)t->steps, (unsigned long long)t->rows, (unsigned long long)t->cuts,
        (unsigned long long)t->saves, (unsigned long long)t->freezes);
    (void)fprintf(out, "%llu slots read, %llu cold runs, %llu copies, %llu verifies; KV ids: %llu "
        "in, %llu out, %llu adopted\n", (unsigned long long)t->slots_checked,
        (unsigned long long)t->cold_checks, (unsigned long long)t->copies,
        (unsigned long long)t->verifies, (unsigned long long)t->kv_in,
        (unsigned long long)t->kv_out, (unsigned long long)t->adopted);
    (void)fprintf(out, "faults:");
    for (uint32_t i = 0; i < H_FAULT_COUNT; i++) {
        (void)fprintf(out, "%s %llu %s", i ? "," : "", (unsigned long long)t->faults[i],
            h_fault_names[i]);
    }
    (void)fprintf(out, "\n");
    print_u64(out, "saves skipped (no slot, exists, history, limit, aborted):", t->skipped,
        SC_SKIP_COUNT);
    print_u64(out,
        "evictions (for a slot, asked, with KV, superseded, path cap, history, closed):",
        t->evicted, SC_EVICT_COUNT);
    print_u64(out, "reasons:", t->reasons, SC_REASON_COUNT);
    print_u64(out, "published by kind:", t->published, 6);
    print_u64(out, "resumed by kind:", t->resumed, 6);
    if (t->tier.worlds > 0) print_tiers(out, &t->tier);
}

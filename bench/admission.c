/* SPDX-License-Identifier: Apache-2.0 */
/* How a request comes: from the queue, with a look-up and a lease; or as the fork of another, which
 * is at the point where they part. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "pass.h"

/* ------------------------------------------------------------------------------------ witnesses */

static void sabotage(struct pass *p, const sc_lease_info *info)
{
    if (!p->o->sabotage || p->result->sabotaged[0] || info->resume_slot == 0 ||
        p->result->admitted <= p->sabotage_from)
        return;
    device_idle(&p->device); /* others may be reading the same state */
    state_flip(p->pool, (int32_t)info->resume_slot, &p->sabotage, p->result->sabotaged,
        sizeof p->result->sabotaged);
}

static void start_witness(struct pass *p, struct running *r, const sc_lease_info *info,
    enum resumed_at at, unsigned flags)
{
    bool before = p->result->sabotaged[0] != 0;
    sabotage(p, info);
    if (!p->o->witnesses)
        return;
    bool force = !before && p->result->sabotaged[0];
    flags |= info->records > 0 ? WITNESS_RECORDS : 0u;
    struct witness *w = r->witness = witness_admit(p->o->witnesses, r->request, at, flags, force);
    if (!w)
        return;
    w->resume_len = info->resume_len;
    w->prompt_len = r->prompt_len;
    w->known = r->sequence.known;
    if (info->resume_len > 0) {
        const struct state_place place = lease_place(p->pool, p->rings, info);
        w->snapshot = bench_alloc(full_bytes(p->pool, p->rings), 1);
        full_read(&place, w->snapshot);
    }
}

/* -------------------------------------------------------------------------------------- tenants */

/* Has a request of this tenant, begun before, the same first `len` tokens? */
static bool tenant_had(const struct pass *p, const struct running *r, uint32_t len)
{
    const struct bench_request *mine = request_of(p, r);
    for (size_t i = 0; i < p->ordered_count; i++) {
        const struct bench_request *other = &p->workload->requests[p->result->order[i]];
        bool whole = other->tokens && other->known >= len;
        if (other->tenant == mine->tenant && other != mine && whole &&
            !memcmp(other->tokens, mine->tokens, len * sizeof *mine->tokens))
            return true;
    }
    return false;
}

/* Counts hits of what only another tenant has computed. Beyond the common prompt there may be none;
 * what the library says about who saved the state has to agree. Texts of an earlier run, whose
 * states lie on disk, are not known here: hits of those are not judged. */
static void judge_tenant(struct pass *p, const struct running *r, const sc_lease_info *info,
    unsigned *flags)
{
    const struct bench_request *request = request_of(p, r);
    if (request->tenant == 0 || info->resume_len == 0)
        return;
    if (info->resume_hints.class_id == 0 && p->earlier) /* nobody of this run saved it */
        return;
    bool beyond = info->resume_len > request->mark_at;
    bool saved_by_other = info->resume_hints.class_id != request->tenant;
    bool foreign = !p->ordered[r->request] && !tenant_had(p, r, info->resume_len);
    p->result->tenant_leaks += beyond && (foreign || saved_by_other);
    if (!foreign || beyond)
        return;
    p->result->tenant_hits++;
    *flags |= WITNESS_TENANT;
}

/* ------------------------------------------------------------------------------------- starting */

static void start_sequence(struct pass *p, struct running *r, uint32_t known)
{
    const struct bench_request *request = request_of(p, r);
    uint32_t cap = r->total + p->slack + 1;
    uint32_t given = request->known > known ? request->known : known;
    r->sequence = (struct sequence){.request = r->request, .prompt_len = r->prompt_len,
        .known = given, .stop = r->total, .guess = request->guess,
        .guess_len = request->guess ? r->total : 0, .len = r->len};
    r->sequence.text = bench_alloc(cap, sizeof *r->sequence.text);
    memcpy(r->sequence.text, request->tokens, given * sizeof *r->sequence.text);
}

/* Its place in the batch, on the lease that it has. */
static struct running *start(struct pass *p, size_t index, sc_lease lease, sc_lease_info *info)
{
    const struct bench_request *request = &p->workload->requests[index];
    struct running *r = p->running[p->running_count++] = bench_alloc(1, sizeof *r);
    bench_must(sc_lease_info_get(p->cache, lease, info), "sc_lease_info_get");
    *r = (struct running){.request = index, .lease = lease, .prompt_len = info->prompt_len,
        .total = request->prompt_len + request->output_len, .fork_at = UINT32_MAX,
        .len = info->len, .token_count = info->token_count, .issued_len = info->len,
        .issued_max = info->len, .resume_len = info->resume_len, .tail_page = info->tail_kv};
    r->pages = bench_alloc(pages_for(p, r->total + p->slack + 1) + 1, sizeof *r->pages);
    bench_must(sc_lease_kv_ids(p->cache, lease, 0, r->pages, pages_for(p, r->len) + 1,
        &r->page_count), "sc_lease_kv_ids");
    if (p->o->model)
        r->logits = bench_alloc(p->o->model->options.vocab, sizeof *r->logits);
    p->result->tails_resumed += info->resume_len % p->o->page != 0;
    p->result->ring_resumed += info->records > 0;
    p->result->admitted++;
    return r;
}

static void order(struct pass *p, size_t index)
{
    if (!p->ordered[index])
        p->result->order[p->ordered_count++] = (uint32_t)index;
    p->ordered[index] = true;
}

/* Where the request will be forked, if its forks have not come yet. */
static uint32_t fork_point(const struct pass *p, size_t index)
{
    int32_t fork = p->first_fork[index];
    return fork < 0 || p->forked[index] ? UINT32_MAX : p->workload->requests[fork].prompt_len;
}

static void start_resumed(struct pass *p, size_t index, sc_lease lease, uint32_t prompt_len)
{
    sc_lease_info info;
    struct running *r = start(p, index, lease, &info);
    enum resumed_at at = info.resume_len ? resumed_at_of(info.resume_kind) : AT_NOTHING;
    unsigned flags = 0;
    r->fork_at = fork_point(p, index);
    start_sequence(p, r, prompt_len);
    judge_tenant(p, r, &info, &flags);
    order(p, index);
    if (p->kept_len[index] > 0) {
        p->result->readmitted++;
        p->result->readmitted_hits += info.resume_len > 0;
        p->result->readmitted_whole += info.resume_len + 1 >= prompt_len;
        flags |= info.resume_len > 0 ? WITNESS_READMITTED : 0u;
    } else if (request_of(p, r)->fork_of < 0) { /* what is compared with the ideal */
        p->result->prompt_tokens += prompt_len;
        p->result->hit_tokens += info.resume_len;
        p->result->resumed_at[at]++;
    }
    if (info.resume_len % p->o->page != 0)
        flags |= WITNESS_TAIL;
    start_witness(p, r, &info, at, flags);
}

static uint32_t deepest(const sc_answer *answer)
{
    uint32_t len = 0;
    for (int tier = 0; tier < SC_TIER_COUNT; tier++)
        len = answer->state_len[tier] > len ? answer->state_len[tier] : len;
    return len;
}

/* Until the lease is ready. Returns what it should have resumed, by the look-up before it. */
static uint32_t wait_for_tiers(struct pass *p, sc_lease lease, const sc_answer *answer)
{
    sc_lease_info info;
    bench_must(sc_lease_info_get(p->cache, lease, &info), "sc_lease_info_get");
    if (info.state != SC_LEASE_WAITING)
        return answer->state_len[SC_TIER_DEVICE];
    p->result->tier_waits++;
    pass_tiers_settle(p);
    bench_must(sc_lease_info_get(p->cache, lease, &info), "sc_lease_info_get");
    if (info.state != SC_LEASE_READY)
        bench_fail(BENCH_CHECK_FAILED, "a lease still waits for a tier");
    bool failed = info.reason == SC_REASON_TIER_FAILED;
    return failed ? answer->state_len[SC_TIER_DEVICE] : deepest(answer);
}

/* One request; false if there is no slot for it now. */
static bool admit(struct pass *p, size_t index)
{
    workload_materialize(p->workload, index);
    const struct bench_request *request = &p->workload->requests[index];
    uint32_t tokens = p->kept_len[index] ? p->kept_len[index] : request->prompt_len;
    sc_mark mark;
    uint32_t marks = workload_mark(request, &mark);
    sc_hints hints = {.class_id = request->tenant};
    sc_request wanted = {.key = {.ns = p->ns, .tokens = request->tokens, .token_count = tokens,
        .marks = &mark, .mark_count = marks}, .depth = p->o->in_flight, .hints = &hints};
    if (marks > 0 && mark.at > 0) { /* others will leave at the end of the common prompt */
        hints.breakpoints = &mark.at;
        hints.breakpoint_count = p->o->save_flags != 0;
    }
    sc_answer answer = {0};
    sc_lease lease;
    sc_status each;
    uint64_t begin = sc_clock_now_ns();
    bench_must(sc_cache_lookup(p->cache, &wanted.key, 1, &answer), "sc_cache_lookup");
    if (deepest(&answer) > answer.state_len[SC_TIER_DEVICE]) { /* its KV wants pages */
        (void)pass_make_room(p, pages_for(p, deepest(&answer)));
        bench_must(sc_cache_lookup(p->cache, &wanted.key, 1, &answer), "sc_cache_lookup");
    }
    bench_must(sc_cache_acquire(p->cache, &wanted, 1, p->now_ns, &lease, &each),
        "sc_cache_acquire");
    p->result->library_ns += sc_clock_now_ns() - begin;
    if (each == SC_ERR_NO_SLOT || each == SC_ERR_LIMIT) { /* LIMIT: leases that drain */
        p->result->waits++;
        return false;
    }
    bench_must(each, "sc_cache_acquire, this request");
    uint32_t expected = wait_for_tiers(p, lease, &answer);
    start_resumed(p, index, lease, tokens);
    const struct running *r = p->running[p->running_count - 1];
    p->result->lookup_differs += expected != r->resume_len;
    return true;
}

void pass_admit_all(struct pass *p)
{
    uint64_t ready = 0;
    if (p->running_count == 0)
        p->crowded = false;
    if (p->arrivals.count > 0)
        (void)arrivals_first(&p->arrivals, &ready);
    if (p->running_count == 0 && p->flight_count == 0 && p->arrivals.count > 0 &&
        ready > p->now_ns)
        p->now_ns = ready;
    while (!p->crowded && p->arrivals.count > 0 && p->running_count < p->o->running_max) {
        size_t request = arrivals_first(&p->arrivals, &ready);
        if (ready > p->now_ns)
            return;
        if (!admit(p, request)) {
            if (p->running_count == 0 && p->flight_count == 0)
                bench_fail(BENCH_USAGE, "%u slots are too few to serve one request", p->o->slots);
            return;
        }
        arrivals_pop(&p->arrivals);
    }
}

/* ---------------------------------------------------------------------------------------- forks */

/* The partial page of the parent becomes that of the snapshot; parent and forks go on in copies.
 * -1: there is none, or the parent stands on a snapshot already. */
static int32_t fork_tail(const struct pass *p, const struct running *r)
{
    sc_lease_info info;
    bench_must(sc_lease_info_get(p->cache, r->lease, &info), "sc_lease_info_get");
    if (r->len % p->o->page == 0 || info.source_slot != info.working_slot)
        return -1;
    return r->pages[r->len / p->o->page];
}

static void start_fork(struct pass *p, size_t index, sc_lease lease, const struct running *parent)
{
    sc_lease_info info;
    workload_materialize(p->workload, index);
    struct bench_request *request = &p->workload->requests[index];
    struct running *r = start(p, index, lease, &info);
    if (request->known == request->prompt_len) /* the first token of its own */
        request->tokens[request->known++] =
            sampler_next(&p->sampler, index, request->prompt_len, parent->logits);
    start_sequence(p, r, request->prompt_len);
    order(p, index);
    bench_must(sc_lease_append(p->cache, lease, request->tokens + r->len, 1), "sc_lease_append");
    r->token_count++;
    p->result->forked++;
    p->result->forked_tokens += info.resume_len;
    start_witness(p, r, &info, AT_FORK, WITNESS_FORKED);
    if (r->witness)
        r->witness->known = request->prompt_len; /* that token is checked, too */
}

/* The parent goes on in a copy of its partial page, which is the snapshot's now. */
static void leave_tail(struct pass *p, struct running *r, int32_t tail)
{
    sc_lease_info info;
    bench_must(sc_lease_info_get(p->cache, r->lease, &info), "sc_lease_info_get");
    uint32_t page = r->len / p->o->page;
    page_ids_hand_in(&p->ids, tail);
    for (uint32_t i = page + 1; i < r->page_count; i++)
        page_ids_give_back(&p->ids, r->pages[i]);
    r->page_count = page;
    r->tail_page = info.tail_kv;
    p->result->tails_handed++;
}

void pass_fork(struct pass *p, struct running *r)
{
    enum { FORKS_MAX = 64 };
    sc_lease leases[FORKS_MAX];
    uint32_t count = 0;
    int32_t first = p->first_fork[r->request];
    for (int32_t i = first; i >= 0; i = p->next_fork[i])
        count++;
    p->forked[r->request] = true;
    r->fork_at = UINT32_MAX;
    sc_status status = SC_ERR_NO_SLOT;
    if (p->o->fork && p->running_count + count <= p->row_max && count <= FORKS_MAX) {
        int32_t tail = fork_tail(p, r);
        status = sc_lease_fork(p->cache, r->lease, tail, count, leases);
        if (status == SC_OK && tail >= 0)
            leave_tail(p, r, tail);
    }
    if (status != SC_OK && status != SC_ERR_NO_SLOT && status != SC_ERR_LIMIT &&
        status != SC_ERR_BUSY)
        bench_must(status, "sc_lease_fork");
    p->result->forks += status == SC_OK;
    for (int32_t i = first, k = 0; i >= 0; i = p->next_fork[i], k++) {
        if (status == SC_OK) {
            start_fork(p, (size_t)i, leases[k], r);
            continue;
        }
        p->result->forks_refused += p->o->fork;
        arrivals_push(&p->arrivals, p->now_ns, (size_t)i);
    }
}

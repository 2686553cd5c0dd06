/* SPDX-License-Identifier: Apache-2.0 */
/* How a request goes: its text is complete, or it is preempted and comes back.
 *
 *   finish    no row out: release with keep; else (its end was seen late) the lease drains, and
 *             the request stays until the last row behind its end has come back
 *   preempt   release with keep at its length; queued again with all tokens that it has */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "pass.h"

/* Page `index` of the request, also where that is still a tail's. */
static int32_t page_at(const struct pass *p, const struct running *r, uint32_t index)
{
    return r->tail_page >= 0 && index == r->len / p->o->page ? r->tail_page : r->pages[index];
}

/* Records what the request has come to. Rows that are still out overwrite the state at its end: it
 * is what the device saw then. */
static void record_witness(struct pass *p, struct running *r)
{
    struct witness *w = r->witness;
    sc_lease_info info;
    uint32_t count = 0;
    r->witness = NULL;
    if (r->len == r->resume_len) { /* nothing was computed */
        witness_stop(p->o->witnesses, w, false);
        return;
    }
    bench_must(sc_lease_info_get(p->cache, r->lease, &info), "sc_lease_info_get");
    w->len = r->len;
    w->tokens = bench_alloc(r->len, sizeof *w->tokens);
    memcpy(w->tokens, request_of(p, r)->tokens, r->len * sizeof *w->tokens);
    const struct state_place place = lease_place(p->pool, p->rings, &info);
    w->state = r->flights > 0 ? r->end_state : bench_alloc(full_bytes(p->pool, p->rings), 1);
    if (r->flights > 0)
        r->end_state = NULL;
    else
        full_read(&place, w->state);
    int32_t *pages = bench_alloc(pages_for(p, r->len), sizeof *pages);
    for (uint32_t i = 0; i < pages_for(p, r->len); i++)
        pages[i] = page_at(p, r, i);
    w->kv_hash = bench_alloc(r->len, sizeof *w->kv_hash);
    for (uint32_t i = 0; i < r->len; i++)
        w->kv_hash[i] = kv_token_hash(p->o->model, &p->kv, pages, i);
    free(pages);
    (void)sc_lease_history(p->cache, r->lease, NULL, 0, &count);
    w->history = bench_alloc(count, sizeof *w->history);
    bench_must(sc_lease_history(p->cache, r->lease, w->history, count, &w->history_count),
        "sc_lease_history");
    witness_stop(p->o->witnesses, w, true);
}

/* Ends the lease; the index keeps what was computed, if anything is kept. */
static void release(struct pass *p, struct running *r)
{
    bool keep = p->o->save_flags != 0;
    uint32_t page = r->len / p->o->page;
    int32_t tail = -1;
    if (keep && p->o->tails && r->flights == 0 && r->len % p->o->page != 0 &&
        r->tail_page < 0 && page < r->page_count)
        tail = r->pages[page];
    uint64_t begin = sc_clock_now_ns();
    bench_must(sc_lease_release_tail(p->cache, r->lease, 0,
        keep ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD, tail), "sc_lease_release_tail");
    p->result->library_ns += sc_clock_now_ns() - begin;
    if (tail < 0)
        return;
    page_ids_hand_in(&p->ids, tail);
    p->result->tails_handed++;
    r->pages[page] = -1;
}

static void leave_batch(struct pass *p, const struct running *r)
{
    uint32_t at = 0;
    while (p->running[at] != r)
        at++;
    memmove(&p->running[at], &p->running[at + 1],
        (p->running_count - at - 1) * sizeof *p->running);
    p->running_count--;
}

void pass_drained(struct pass *p, struct running *r)
{
    for (uint32_t i = r->len / p->o->page; i < r->page_count; i++)
        if (r->pages[i] >= 0)
            page_ids_give_back(&p->ids, r->pages[i]);
    pass_drain(p);
    free(r->pages);
    free(r->logits);
    free(r->end_state);
    free(r->sequence.text);
    free(r);
}

static void count_guess(struct pass *p, const struct bench_request *request)
{
    uint32_t total = request->prompt_len + request->output_len;
    if (!request->guess || request->output_given)
        return;
    p->result->guessed++;
    p->result->guessed_right += !memcmp(request->guess, request->tokens, total * sizeof(int32_t));
}

void pass_finish(struct pass *p, struct running *r)
{
    size_t request = r->request;
    if (r->witness)
        record_witness(p, r);
    count_guess(p, &p->workload->requests[request]);
    p->result->requests++;
    p->crowded = false;
    p->result->output_tokens += p->workload->requests[request].output_len;
    release(p, r);
    leave_batch(p, r);
    r->released = true;
    if (r->flights == 0)
        pass_drained(p, r);
    arrivals_finished(&p->arrivals, p->now_ns, request);
    if (p->o->finished)
        p->o->finished(p->o->ctx, request);
    if (p->o->drop_tokens)
        workload_drop_tokens(p->workload, request);
}

void pass_preempt(struct pass *p, struct running *r, bool by_coin)
{
    size_t request = r->request;
    p->kept_len[request] = r->token_count;
    if (r->witness) {
        r->witness->flags |= WITNESS_PREEMPTED;
        record_witness(p, r);
    }
    release(p, r);
    leave_batch(p, r);
    pass_drained(p, r);
    p->result->preempted += !by_coin;
    p->result->preempted_by_coin += by_coin;
    p->crowded |= !by_coin;
    arrivals_push(&p->arrivals, p->now_ns, request);
}

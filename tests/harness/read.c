/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that change nothing: look-ups and what can be read of a lease, from any thread; and calls
 * that must be refused: stale handles (of the dead, whose slots others have now) and bad input. */
#include <string.h>

#include "harness.h"

void h_op_lookup_choose(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct sc_prng *rng = &s->rng;
    s->key_count = 1 + (h_one_in(rng, 3) ? h_draw(rng, H_BATCH_MAX) : 0);
    memset(s->key, 0, sizeof s->key);
    for (uint32_t i = 0; i < s->key_count; i++) {
        struct h_text *prompt = &s->keys[i];
        const struct h_ns *ns = &w->ns[h_one_in(rng, 3) ? h_draw(rng, H_NS_MAX) : 0];
        h_prompt_draw(s, prompt);
        s->key[i] = (sc_key){.ns = ns->handle, .tokens = prompt->tokens,
            .token_count = prompt->count, .marks = s->marks[i]};
        s->key[i].mark_count = h_marks(prompt, 0, prompt->count, s->marks[i]);
        if (h_one_in(rng, 6)) s->key[i].len_max = 1 + h_draw(rng, prompt->count);
        if (h_one_in(rng, 40)) s->key[i].len_max = prompt->count + 1;
        if (h_one_in(rng, 40)) {
            s->key[i].marks = NULL;
            s->key[i].mark_count = 1;
        }
        if (!ns->open && ns->handle.id == 0) s->key[i].ns.id = 77;
    }
}

static void check_answer(struct h_sched *s, const sc_key *key, const sc_answer *answer)
{
    struct h_world *w = s->world;
    uint32_t bound = key->len_max ? key->len_max : key->token_count - 1;
    uint32_t page = w->cfg.page, whole = bound - bound % page;
    uint32_t state = answer->state_len[SC_TIER_DEVICE], best = w->cfg.tails ? bound : whole;
    uint32_t kv_most = w->cfg.without_kv ? bound : whole;
    H_CHECK(w, state <= bound && answer->kv_len <= kv_most && /* forks leave tails, too */
            (w->cfg.without_kv || answer->kv_len % page == 0) &&
            answer->kv_len >= state - state % page,
        "state_len %u, kv_len %u of %u", state, answer->kv_len, bound);
    H_CHECK(w, answer->branch_len == 0 ||
            (answer->branch_len > state && answer->branch_len % w->grid == 0 &&
                answer->branch_len <= whole),
        "branch_len %u, state_len %u of %u", answer->branch_len, state, bound);
    sc_reason reason = answer->reason;
    H_CHECK(w, (reason == SC_REASON_PENDING) == (answer->pending_len > 0) &&
            (answer->pending_len == 0 ||
                (answer->pending_len > state && answer->pending_len <= bound)),
        "pending %u, state_len %u of %u, reason %d", answer->pending_len, state, bound,
        (int)reason);
    if (reason == SC_REASON_PENDING) return;
    H_CHECK(w, (reason == SC_REASON_TOO_SHORT) == (best == 0), "reason %d", (int)reason);
    H_CHECK(w, best == 0 || (reason == SC_REASON_NONE) == (state >= best), "reason %d, %u of %u",
        (int)reason, state, best);
    H_CHECK(w, reason < SC_REASON_COUNT, "reason %d", (int)reason);
}

void h_op_lookup(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_answer answers[H_BATCH_MAX];
    uint64_t allocations = fail_alloc_calls(&w->fa);
    sc_status status =
        H_CALL(s, LOOKUP, sc_cache_lookup(w->cache, s->key, s->key_count, answers));
    H_CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    H_CHECK(w, w->threaded || fail_alloc_calls(&w->fa) == allocations, "a look-up allocates");
    for (uint32_t i = 0; i < s->key_count; i++) {
        sc_status each = h_item(s, H_CALL_LOOKUP_EACH, answers[i].status);
        const sc_key *key = &s->key[i];
        if (each == SC_OK) {
            check_answer(s, key, &answers[i]);
        } else if ((key->marks || key->mark_count == 0) && key->len_max <= key->token_count) {
            H_CHECK(w, each == SC_ERR_STALE, "%s", sc_status_name(each));
        }
    }
}

void h_op_read(struct h_sched *s)
{
    struct h_world *w = s->world;
    int index = h_lease_pick(s);
    if (index < 0) return;
    struct h_lease *lease = &s->leases[index];
    if (lease->ticket)
        return; /* what others apply changes it */
    h_lease_check(s, lease, true);
    if (lease->lost || lease->overrun) return;
    sc_history history[H_TOKENS_MAX];
    sc_kv_span spans[H_TOKENS_MAX];
    int32_t ids[H_TOKENS_MAX];
    uint32_t need = 0, count = 0;
    H_OK(w, H_CALL(s, HISTORY,
        sc_lease_history(w->cache, lease->handle, history, H_TOKENS_MAX, &need)));
    if (need > 0) {
        sc_status status = H_CALL(s, HISTORY,
            sc_lease_history(w->cache, lease->handle, history, need - 1, &count));
        H_CHECK(w, status == SC_ERR_LIMIT && count == need, "needs %u, says %u", need, count);
    }
    if (lease->id_count == 0) return;
    uint32_t first = h_draw(&s->rng, lease->id_count), left = lease->id_count - first;
    H_OK(w, H_CALL(s, KV_IDS, sc_lease_kv_ids(w->cache, lease->handle, first, ids, left, &count)));
    H_CHECK(w, count == left && memcmp(ids, &lease->ids[first], left * sizeof *ids) == 0,
        "ids from page %u", first);
    sc_status status =
        H_CALL(s, KV_IDS, sc_lease_kv_ids(w->cache, lease->handle, first, ids, left - 1, &count));
    H_CHECK(w, status == SC_ERR_LIMIT && count == left, "ids: %s", sc_status_name(status));
    H_OK(w, H_CALL(s, KV_SPANS, sc_lease_kv_spans(w->cache, lease->handle, first, spans,
                                    H_TOKENS_MAX, &need)));
    H_CHECK(w, need > 0 && spans[0].page_first == first, "spans from page %u", first);
    status = H_CALL(s, KV_SPANS,
        sc_lease_kv_spans(w->cache, lease->handle, first, spans, need - 1, &count));
    H_CHECK(w, status == SC_ERR_LIMIT && count == need, "spans: %s", sc_status_name(status));
}

#define STALE(s, call, expr)                                                                       \
    H_CHECK((s)->world, H_CALL(s, call, expr) == SC_ERR_STALE, "of a handle that is gone")

/* Calls with the handle of a lease that has ended. */
void h_op_stale(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_cache *cache = w->cache;
    sc_lease_info info;
    sc_history history;
    sc_kv_span span;
    int32_t id = 0;
    uint32_t count = 0;
    if (s->grave_count == 0) return;
    sc_lease child;
    sc_lease dead = s->graves[h_draw(&s->rng, h_min(s->grave_count, H_GRAVES_MAX))];
    sc_cache_stats stats = h_stats(s);
    sc_room room = h_room(s);
    STALE(s, INFO, sc_lease_info_get(cache, dead, &info));
    STALE(s, HISTORY, sc_lease_history(cache, dead, &history, 1, &count));
    STALE(s, KV_SPANS, sc_lease_kv_spans(cache, dead, 0, &span, 1, &count));
    STALE(s, KV_IDS, sc_lease_kv_ids(cache, dead, 0, &id, 1, &count));
    STALE(s, ADOPT, sc_lease_adopt(cache, dead, &count));
    STALE(s, APPEND, sc_lease_append(cache, dead, &id, 1));
    STALE(s, APPEND_MARKED, sc_lease_append_marked(cache, dead, &id, 1, NULL, 0));
    STALE(s, RELEASE_TAIL, sc_lease_release_tail(cache, dead, 0, SC_RELEASE_KEEP, -1));
    STALE(s, FILLED, sc_lease_filled(cache, dead, NULL, 0, NULL, 0));
    STALE(s, FORK, sc_lease_fork(cache, dead, -1, 1, &child));
    STALE(s, RELEASE, sc_lease_release(cache, dead, 0, SC_RELEASE_KEEP));
    h_same(s, &stats, &room, "a call with a handle that is gone");
}

#define INVALID(s, call, expr)                                                                     \
    H_CHECK((s)->world, H_CALL(s, call, expr) == SC_ERR_INVALID, "with a bad argument")

static void bad_leases(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_cache *cache = w->cache;
    int index = h_lease_pick(s);
    sc_lease lease = index < 0 ? (sc_lease){1, 1} : s->leases[index].handle;
    sc_lease_info info;
    sc_history history;
    sc_kv_span span;
    int32_t id = 0;
    INVALID(s, INFO, sc_lease_info_get(NULL, lease, &info));
    INVALID(s, INFO, sc_lease_info_get(cache, lease, NULL));
    INVALID(s, HISTORY, sc_lease_history(cache, lease, &history, 1, NULL));
    INVALID(s, KV_SPANS, sc_lease_kv_spans(cache, lease, 0, &span, 1, NULL));
    INVALID(s, KV_IDS, sc_lease_kv_ids(cache, lease, 0, &id, 1, NULL));
    INVALID(s, ADOPT, sc_lease_adopt(cache, lease, NULL));
    INVALID(s, APPEND, sc_lease_append(NULL, lease, &id, 1));
    if (index >= 0) INVALID(s, APPEND, sc_lease_append(cache, lease, NULL, 1));
    INVALID(s, RELEASE_TAIL, sc_lease_release_tail(cache, lease, 0, SC_RELEASE_KEEP, -2));
    INVALID(s, FILLED, sc_lease_filled(cache, lease, NULL, 1, NULL, 0));
    INVALID(s, FILLED, sc_lease_filled(cache, lease, NULL, 0, NULL, 1));
    INVALID(s, FORK, sc_lease_fork(cache, lease, -1, 0, &lease));
    INVALID(s, FORK, sc_lease_fork(cache, lease, -2, 1, &lease));
    INVALID(s, FORK, sc_lease_fork(cache, lease, -1, 1, NULL));
    INVALID(s, RELEASE, sc_lease_release(NULL, lease, 0, SC_RELEASE_KEEP));
}

static void bad_steps(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_cache *cache = w->cache;
    sc_row rows[H_ROWS_MAX + 1];
    sc_batch batch;
    sc_status each[H_ROWS_MAX + 1];
    uint32_t count = 0;
    bool busy = h_steps_active(w) >= w->cfg.depth;
    memset(rows, 0, sizeof rows);
    INVALID(s, PLAN, sc_step_plan(NULL, w->next_step, rows, 1, 1, &batch, each));
    INVALID(s, PLAN, sc_step_plan(cache, w->next_step, rows, 1, 1, NULL, each));
    if (!busy) {
        INVALID(s, PLAN, sc_step_plan(cache, w->next_step, rows, 0, 1, &batch, each));
        INVALID(s, PLAN, sc_step_plan(cache, 0, rows, 1, 1, &batch, each));
        sc_status status = H_CALL(s, PLAN,
            sc_step_plan(cache, w->next_step, rows, w->cfg.row_max + 1, 1, &batch, each));
        H_CHECK(w, status == SC_ERR_LIMIT, "rows: %s", sc_status_name(status));
    }
    INVALID(s, COMMIT, sc_step_commit(NULL, 1, NULL, 0, each));
    INVALID(s, COMMIT, sc_step_commit(cache, 1, NULL, 1, each));
    INVALID(s, COMMIT_SAVED, sc_step_commit_saved(cache, 1, NULL, 0, each, NULL, 1, &count));
    INVALID(s, ABORT, sc_step_abort(NULL, 1, true));
}

void h_op_bad(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_cache *cache = w->cache;
    sc_cache_stats stats = h_stats(s);
    sc_room room = h_room(s), got;
    sc_request request = {.key = {.tokens = NULL}};
    sc_lease lease;
    sc_status each;
    sc_answer answer;
    sc_done done = {1, SC_OK};
    int32_t id;
    uint32_t count;
    bad_leases(s);
    bad_steps(s);
    INVALID(s, NS_OPEN, sc_namespace_open(cache, NULL, 1, 1, NULL));
    INVALID(s, NS_CLOSE, sc_namespace_close(NULL, w->ns[0].handle));
    INVALID(s, LOOKUP, sc_cache_lookup(NULL, &request.key, 1, &answer));
    INVALID(s, LOOKUP, sc_cache_lookup(cache, &request.key, 1, NULL));
    INVALID(s, ACQUIRE, sc_cache_acquire(cache, NULL, 1, 0, &lease, &each));
    INVALID(s, ACQUIRE, sc_cache_acquire(cache, &request, 1, 0, NULL, &each));
    INVALID(s, ACQUIRE, sc_cache_acquire(cache, &request, 1, 0, &lease, NULL));
    INVALID(s, POLL, sc_cache_poll(cache, &done, 1, NULL));
    INVALID(s, APPLY, sc_cache_apply(cache, NULL, 1, 1));
    INVALID(s, ROOM, sc_cache_room(cache, NULL));
    INVALID(s, EVICT, sc_cache_evict(NULL, 1, 1, &got));
    INVALID(s, DRAIN, sc_cache_drain(cache, &id, 1, NULL));
    INVALID(s, DRAIN, sc_cache_drain(cache, NULL, 1, &count));
    INVALID(s, TRIM, sc_cache_trim(NULL, 1, NULL));
    INVALID(s, STATS, sc_cache_stats_get(cache, NULL));
    INVALID(s, VERIFY, sc_cache_verify(NULL));
    INVALID(s, DUMP, sc_cache_dump(cache, w->ns[0].handle, NULL, NULL));
    h_same(s, &stats, &room, "a call with bad arguments");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: acquire, append, adopt, release and what can be read of them. A lease's committed state
 * is checked in three ways that must agree: the stamp that its forwards made, the stamp of a cold
 * run by the history that the cache reports, and the KV stamps of the ids that it reads. */
#include <string.h>

#include "cache_model.h"

int lease_pick(struct world *w, struct sc_prng *rng)
{
    uint32_t start = draw(rng, LEASES_MAX);
    for (uint32_t i = 0; i < LEASES_MAX; i++) {
        uint32_t at = (start + i) % LEASES_MAX;
        if (w->leases[at].used) return (int)at;
    }
    return -1;
}

static uint32_t leases_alive(const struct world *w)
{
    uint32_t alive = 0;
    for (uint32_t i = 0; i < LEASES_MAX; i++) alive += w->leases[i].used;
    return alive;
}

sc_status lease_history(struct world *w, sc_lease lease, sc_history *out, uint32_t cap,
    uint32_t *count)
{
    sc_status status =
        seen(w, CALL_HISTORY, sc_lease_history(w->cache, lease, out, cap, count));
    if (status == SC_OK && *count >= 2 && planted(w, PLANT_HISTORY, 6)) {
        out[*count - 2] = out[*count - 1];
        out[*count - 2].form = SC_FORM_KIND_PREFILL;
        --*count;
    }
    return status;
}

void lease_set_ids(struct world *w, struct m_lease *lease, const int32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < lease->id_count; i++) w->kv_readers[lease->ids[i]]--;
    for (uint32_t i = 0; i < count; i++) {
        CHECK(w, ids[i] >= 0 && ids[i] < KV_IDS_MAX && w->kv_inside[ids[i]],
            "a lease reads KV id %d for page %u, which the cache does not have", ids[i], i);
        w->kv_readers[ids[i]]++;
        lease->ids[i] = ids[i];
    }
    lease->id_count = count;
}

void lease_gone(struct world *w, struct m_lease *lease)
{
    lease_set_ids(w, lease, NULL, 0);
    lease->used = false;
    w->released++;
}

/* Reads the ids as spans and as a copy. */
static uint32_t read_ids(struct world *w, struct m_lease *lease, int32_t *ids)
{
    uint32_t count = 0, span_count = 0, at = 0;
    sc_kv_span spans[TOKENS_MAX];
    CHECK(w, seen(w, CALL_KV_IDS,
                 sc_lease_kv_ids(w->cache, lease->handle, 0, ids, TOKENS_MAX, &count)) == SC_OK,
        "%s", sc_last_error()->text);
    CHECK(w, seen(w, CALL_KV_SPANS, sc_lease_kv_spans(w->cache, lease->handle, 0, spans,
                                        TOKENS_MAX, &span_count)) == SC_OK,
        "%s", sc_last_error()->text);
    for (uint32_t i = 0; i < span_count; i++) {
        CHECK(w, spans[i].page_first == at && spans[i].page_count > 0, "span %u begins at page %u,"
            " not %u", i, spans[i].page_first, at);
        for (uint32_t j = 0; j < spans[i].page_count; j++, at++) {
            CHECK(w, at < count && spans[i].ids[j] == ids[at], "page %u: span and copy differ", at);
        }
    }
    CHECK(w, at == count, "%u pages in spans, %u in the copy", at, count);
    return count;
}

/* The history explains the state and every page. */
static void check_cold(struct world *w, struct m_lease *lease)
{
    sc_history history[TOKENS_MAX];
    uint32_t count = 0;
    struct run cold;
    CHECK(w, lease_history(w, lease->handle, history, TOKENS_MAX, &count) == SC_OK, "%s",
        sc_last_error()->text);
    CHECK(w, count > 0 || lease->run.len == 0, "no history of %u tokens", lease->run.len);
    CHECK(w, count == 0 || history[count - 1].end == lease->run.len, "the history ends at %u of %u",
        history[count - 1].end, lease->run.len);
    run_cold(w, &cold, lease->tokens, history, count);
    CHECK(w, cold.state == lease->run.state, "the state after %u tokens is not the one of a cold "
        "run by its history (%u stretches)", lease->run.len, count);
    if (w->cfg.without_kv) return;
    for (uint32_t page = 0; page < lease->run.len / w->cfg.page; page++) {
        CHECK(w, w->kv_stamp[lease->ids[page]] == cold.page[page], "page %u of %u tokens has KV of "
            "another history or of other tokens", page, lease->run.len);
    }
}

void lease_check(struct world *w, struct m_lease *lease, bool deep)
{
    sc_lease_info info;
    CHECK(w, seen(w, CALL_INFO, sc_lease_info_get(w->cache, lease->handle, &info)) == SC_OK, "%s",
        sc_last_error()->text);
    CHECK(w, info.state == lease->state, "state %d, not %d", (int)info.state, (int)lease->state);
    CHECK(w, info.resume_len == lease->resume_len && info.prompt_len == lease->prompt_len &&
            info.len == lease->run.len && info.token_count == lease->token_count,
        "resume %u, prompt %u, len %u, tokens %u; the model: %u, %u, %u, %u", info.resume_len,
        info.prompt_len, info.len, info.token_count, lease->resume_len, lease->prompt_len,
        lease->run.len, lease->token_count);
    uint32_t pages = w->cfg.without_kv ? 0 : lease->run.len / w->cfg.page;
    CHECK(w, info.kv_page_count == pages && lease->id_count == pages, "%u pages, not %u",
        info.kv_page_count, pages);
    CHECK(w, info.extra_slot == lease->extra_slot, "extras slot %d, was %d", info.extra_slot,
        lease->extra_slot);
    CHECK(w, info.working_slot > 0, "working slot %d", info.working_slot);
    if (info.state == SC_LEASE_READY) {
        CHECK(w, info.source_slot >= 0 && (info.source_slot > 0) == (lease->run.len > 0),
            "source slot %d of %u tokens", info.source_slot, lease->run.len);
        CHECK(w, slot_read(w, info.source_slot, "lease") == lease->run.state,
            "slot %d does not hold the state after %u tokens", info.source_slot, lease->run.len);
    }
    if (!deep || lease->state == SC_LEASE_LOST) return;
    int32_t ids[TOKENS_MAX];
    uint32_t count = read_ids(w, lease, ids);
    CHECK(w, count == lease->id_count, "%u KV ids, not %u", count, lease->id_count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(w, ids[i] == lease->ids[i], "the KV id of page %u was %d and is %d", i,
            lease->ids[i], ids[i]);
        CHECK(w, w->kv_inside[ids[i]], "KV id %d was drained", ids[i]);
    }
    check_cold(w, lease);
}

/* No two living leases, and no save in flight, share a slot that is written. */
static void check_new_slot(struct world *w, const struct m_lease *lease, int32_t working)
{
    for (uint32_t i = 0; i < LEASES_MAX; i++) {
        const struct m_lease *other = &w->leases[i];
        sc_lease_info info;
        if (other == lease || !other->used) continue;
        CHECK(w, sc_lease_info_get(w->cache, other->handle, &info) == SC_OK, "info");
        CHECK(w, info.working_slot != working && info.source_slot != working,
            "slot %d belongs to two leases", working);
        CHECK(w, lease->extra_slot < 0 || info.extra_slot != lease->extra_slot,
            "extras slot %d belongs to two leases", lease->extra_slot);
    }
    for (uint32_t i = 0; w->flight.active && i < w->flight.save_count; i++) {
        CHECK(w, w->flight.saves[i].slot != working, "slot %d is in flight", working);
    }
    for (uint32_t i = 0; w->flight.active && i < w->flight.row_count; i++) {
        const struct m_row *row = &w->flight.rows[i];
        CHECK(w, !row->granted || (row->source != working && row->dest != working),
            "slot %d is named by the step in flight", working);
    }
}

/* Takes the new lease into the model; a hit must be known, to the bit. */
/* The end of the prompt is to be saved, unless a state was there: then no slot is asked for. */
static void check_prompt_end(struct world *w, const struct m_lease *lease, bool limited)
{
    uint32_t end = lease->prompt_len;
    if (end % w->cfg.page != 0) end -= end % w->cfg.grid;
    if (end <= lease->resume_len || !(w->cfg.save_flags & SC_SAVE_PROMPT_END)) end = 0;
    bool there = !limited && end == lease->prompt_len &&
        record_known(w, lease->ns, lease->tokens, end);
    CHECK(w, lease->prompt_end_len == end || (there && lease->prompt_end_len == 0),
        "prompt's end to be saved at %u, not %u", lease->prompt_end_len, end);
}

static void lease_begin(struct world *w, sc_lease handle, uint32_t ns, const struct prompt *prompt,
    bool limited)
{
    struct m_lease *lease = w->leases;
    while (lease->used) lease++;
    memset(lease, 0, sizeof *lease);
    sc_lease_info info;
    CHECK(w, seen(w, CALL_INFO, sc_lease_info_get(w->cache, handle, &info)) == SC_OK, "%s",
        sc_last_error()->text);
    CHECK(w, info.state == SC_LEASE_READY && info.resume_len <= prompt->count &&
            info.resume_len % w->cfg.page == 0, "state %d, resumed at %u of %u", (int)info.state,
        info.resume_len, prompt->count);
    lease->handle = handle;
    lease->used = true;
    lease->state = SC_LEASE_READY;
    lease->ns = ns;
    memcpy(lease->tokens, prompt->tokens, prompt->count * sizeof *prompt->tokens);
    lease->token_count = lease->prompt_len = prompt->count;
    lease->resume_len = info.resume_len;
    lease->branch_len = info.branch_len;
    lease->prompt_end_len = info.prompt_end_len;
    check_prompt_end(w, lease, limited);
    lease->extra_slot = info.extra_slot;
    CHECK(w, (info.extra_slot > 0) == (w->extras != NULL), "extras slot %d", info.extra_slot);
    CHECK(w, (info.resume_slot != 0) == (info.resume_len > 0), "resume slot %u", info.resume_slot);
    CHECK(w, (uint32_t)info.source_slot == info.resume_slot, "source %d", info.source_slot);
    CHECK(w, (info.resume_kind != SC_KIND_NONE) == (info.resume_len > 0), "resume kind %d",
        (int)info.resume_kind);
    if (info.resume_len > 0) {
        sc_history history[TOKENS_MAX];
        uint32_t count = 0;
        CHECK(w, lease_history(w, handle, history, TOKENS_MAX, &count) == SC_OK, "%s",
            sc_last_error()->text);
        CHECK(w, count > 0 && history[count - 1].end == info.resume_len, "history of a hit");
        run_cold(w, &lease->run, lease->tokens, history, count);
        CHECK(w, record_has_stamp(w, ns, lease->tokens, info.resume_len, lease->run.state),
            "a hit at %u tokens with a history that was never saved", info.resume_len);
        record_use(w, ns, lease->tokens, info.resume_len);
        w->op_hit = true;
    }
    int32_t ids[TOKENS_MAX];
    uint32_t count = read_ids(w, lease, ids);
    lease_set_ids(w, lease, ids, count);
    lease_check(w, lease, true);
    check_new_slot(w, lease, info.working_slot);
    w->acquired++;
    decided(w, mix(info.resume_len, (uint32_t)info.working_slot));
    decided(w, (uint32_t)info.source_slot);
}

/* Requests that must be refused, and how. */
static sc_status spoil_request(struct world *w, sc_request *request, struct prompt *prompt)
{
    switch (draw(&w->rng, 6)) {
    case 0:
        request->key.ns.generation += 2;
        return SC_ERR_STALE;
    case 1:
        request->key.tokens = NULL;
        return SC_ERR_INVALID;
    case 2:
        request->depth = SC_DEPTH_MAX + 1;
        return SC_ERR_UNSUPPORTED;
    case 3:
        request->key.len_max = request->key.token_count + 1;
        return SC_ERR_INVALID;
    case 4:
        request->key.token_count = 0;
        return SC_ERR_INVALID;
    default:
        for (uint32_t i = prompt->count; i < TOKENS_MAX; i++) prompt->tokens[i] = 0;
        request->key.token_count = w->cfg.lease_token_max + 1;
        return SC_ERR_LIMIT;
    }
}

static void acquire_badly(struct world *w)
{
    sc_request request = {.key = {.tokens = NULL}};
    sc_lease lease;
    sc_status each;
    CHECK(w, seen(w, CALL_ACQUIRE, sc_cache_acquire(NULL, &request, 1, 0, &lease, &each)) ==
            SC_ERR_INVALID, "cache");
    CHECK(w, seen(w, CALL_ACQUIRE, sc_cache_acquire(w->cache, NULL, 1, 0, &lease, &each)) ==
            SC_ERR_INVALID, "requests");
    CHECK(w, seen(w, CALL_ACQUIRE, sc_cache_acquire(w->cache, &request, 1, 0, NULL, &each)) ==
            SC_ERR_INVALID, "leases");
    CHECK(w, seen(w, CALL_ACQUIRE, sc_cache_acquire(w->cache, &request, 1, 0, &lease, NULL)) ==
            SC_ERR_INVALID, "each");
}

/* Was this status right? `room` is from before the call. */
static void check_refusal(struct world *w, sc_status status, sc_status wanted, bool failed,
    const sc_room *room, uint32_t index)
{
    bool full = leases_alive(w) == w->cfg.lease_max;
    bool no_extra = w->extras && leases_alive(w) >= w->cfg.extra_count;
    if (wanted != SC_OK) {
        CHECK(w, status == wanted || (status == SC_ERR_LIMIT && full), "item %u: %s, not %s", index,
            sc_status_name(status), sc_status_name(wanted));
        return;
    }
    CHECK(w, status != SC_OK || (!full && !no_extra), "a lease too many");
    switch (status) {
    case SC_OK:
        break;
    case SC_ERR_LIMIT:
        CHECK(w, full, "only %u of %u leases are alive", leases_alive(w), w->cfg.lease_max);
        break;
    case SC_ERR_NO_MEMORY:
        CHECK(w, failed, "no allocation failed");
        break;
    case SC_ERR_NO_SLOT:
        /* The last evictable one may be the hit itself, which is pinned first. */
        CHECK(w, no_extra || index > 0 || (room->slots_free == 0 && room->slots_evictable <= 1),
            "no slot: %u free, %u evictable", room->slots_free, room->slots_evictable);
        break;
    default:
        CHECK(w, false, "item %u: %s: %s", index, sc_status_name(status), sc_last_error()->text);
    }
}

/* What the look-up just before promised. */
static void check_promise(struct world *w, sc_lease handle, const sc_answer *answer)
{
    sc_lease_info info;
    CHECK(w, sc_lease_info_get(w->cache, handle, &info) == SC_OK, "info");
    CHECK(w, info.resume_len == answer->state_len[SC_TIER_DEVICE], "look-up promised %u, acquire "
        "resumed %u", answer->state_len[SC_TIER_DEVICE], info.resume_len);
    CHECK(w, info.reason == answer->reason, "reason %d, look-up said %d", (int)info.reason,
        (int)answer->reason);
    uint32_t branch = w->cfg.save_flags & SC_SAVE_BRANCH ? answer->branch_len : 0;
    CHECK(w, info.branch_len == branch, "branch %u, look-up said %u", info.branch_len, branch);
}

void op_acquire(struct world *w)
{
    struct sc_prng *rng = &w->rng;
    uint32_t alive = leases_alive(w);
    bool full = alive == w->cfg.lease_max || alive + 1 >= w->cfg.slot_count ||
        (w->extras && alive == w->cfg.extra_count);
    if (full && !one_in(rng, 6)) { /* being refused is soon seen */
        op_release(w);
        return;
    }
    if (one_in(rng, 60)) acquire_badly(w);
    uint32_t count = one_in(rng, 3) ? 1 + draw(rng, BATCH_MAX) : 1;
    sc_request requests[BATCH_MAX];
    struct prompt prompts[BATCH_MAX];
    sc_lease leases[BATCH_MAX];
    sc_status wanted[BATCH_MAX], each[BATCH_MAX];
    uint32_t ns[BATCH_MAX];
    memset(requests, 0, sizeof requests);
    for (uint32_t i = 0; i < count; i++) {
        int open = ns_pick_open(w, rng);
        if (open < 0) return;
        ns[i] = (uint32_t)open;
        prompt_draw(w, rng, &prompts[i]);
        requests[i].key = (sc_key){.ns = w->ns[open].handle, .tokens = prompts[i].tokens,
            .token_count = prompts[i].count};
        if (one_in(rng, 6)) requests[i].key.len_max = 1 + draw(rng, prompts[i].count);
        wanted[i] = one_in(rng, 24) ? spoil_request(w, &requests[i], &prompts[i]) : SC_OK;
    }
    sc_answer answer = {0};
    if (!w->twin && wanted[0] == SC_OK) {
        answer = model_lookup(w, ns[0], prompts[0].tokens, prompts[0].count,
            requests[0].key.len_max);
    }
    sc_cache_stats stats = world_stats(w);
    sc_room room = world_room(w);
    world_arm(w);
    sc_status status = seen(w, CALL_ACQUIRE,
        sc_cache_acquire(w->cache, requests, count, ++w->now_ns, leases, each));
    bool failed = world_disarm(w);
    CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    bool any = false;
    for (uint32_t i = 0; i < count; i++) {
        seen(w, CALL_ACQUIRE_EACH, each[i]);
        decided(w, (uint64_t)-each[i]);
        model_trace(w, "acquire ns %u prompt %u max %u: %s", ns[i], requests[i].key.token_count,
            requests[i].key.len_max, sc_status_name(each[i]));
        check_refusal(w, each[i], wanted[i], failed, &room, i);
        if (each[i] != SC_OK) continue;
        any = true;
        lease_begin(w, leases[i], ns[i], &prompts[i], requests[i].key.len_max != 0);
        prompt_keep(w, prompts[i].tokens, prompts[i].count);
        if (i == 0 && !w->twin) check_promise(w, leases[0], &answer);
    }
    if (!any) world_same(w, &stats, &room, "a refused acquire");
}

int lease_find(const struct world *w, sc_lease handle)
{
    for (int i = 0; i < LEASES_MAX; i++) {
        const struct m_lease *lease = &w->leases[i];
        if (lease->used && lease->handle.id == handle.id &&
            lease->handle.generation == handle.generation) {
            return i;
        }
    }
    return -1;
}

void op_append(struct world *w)
{
    struct sc_prng *rng = &w->rng;
    int index = lease_pick(w, rng);
    if (index < 0) return;
    struct m_lease *lease = &w->leases[index];
    if (lease->state == SC_LEASE_LOST && !one_in(rng, 4)) {
        op_release(w);
        return;
    }
    sc_lease handle = lease->handle;
    int32_t tokens[TOKENS_MAX];
    uint32_t count = one_in(rng, 3) ? 1 + draw(rng, 2 * w->cfg.page + 6) : 1;
    if (one_in(rng, 40)) count = w->cfg.lease_token_max - lease->token_count + 1;
    for (uint32_t i = 0; i < count; i++) tokens[i] = token_draw(w, rng);
    sc_status wanted = SC_OK;
    if (lease->state == SC_LEASE_LOST || lease->state == SC_LEASE_DRAINING) {
        wanted = SC_ERR_STATE;
    } else if (lease->token_count + count > w->cfg.lease_token_max) {
        wanted = SC_ERR_LIMIT;
    }
    const int32_t *from = tokens;
    if (one_in(rng, 40)) {
        handle.generation++;
        wanted = SC_ERR_STALE;
    } else if (wanted == SC_OK && one_in(rng, 40)) {
        from = NULL;
        wanted = SC_ERR_INVALID;
    }
    world_arm(w);
    sc_status status = seen(w, CALL_APPEND, sc_lease_append(w->cache, handle, from, count));
    bool failed = world_disarm(w);
    decided(w, (uint64_t)-status);
    model_trace(w, "append %d: %u tokens: %s", index, count, sc_status_name(status));
    CHECK(w, status == wanted || (failed && wanted == SC_OK && status == SC_ERR_NO_MEMORY),
        "%s, not %s", sc_status_name(status), sc_status_name(wanted));
    if (status == SC_OK) {
        memcpy(&lease->tokens[lease->token_count], tokens, count * sizeof *tokens);
        lease->token_count += count;
        prompt_keep(w, lease->tokens, lease->token_count);
    }
    lease_check(w, lease, false);
}

void lease_learn_end(struct world *w, struct m_lease *lease, const sc_cache_stats *before,
    bool refused)
{
    if (lease->how != SC_RELEASE_KEEP || lease->state == SC_LEASE_LOST) return;
    uint32_t len = lease->release_len ? lease->release_len : lease->run.len;
    path_add(w, lease->ns, lease->tokens, len);
    totals.kept++;
    if (len != lease->run.len || len % w->cfg.page != 0 || len == 0 ||
        !(w->cfg.save_flags & SC_SAVE_END)) {
        return;
    }
    bool there = record_attempt(w, lease->ns, lease->tokens, len, lease->run.state);
    if (there || refused) return;
    sc_cache_stats now = world_stats(w);
    uint64_t excuses = 0;
    for (uint32_t i = 0; i < SC_SKIP_COUNT; i++) {
        excuses += now.saves_skipped[i] - before->saves_skipped[i];
    }
    for (uint32_t i = 0; i < SC_EVICT_COUNT; i++) excuses += now.evicted[i] - before->evicted[i];
    CHECK(w, excuses > 0, "the end at %u was to be kept, is not there, and nothing says why", len);
}

void op_release(struct world *w)
{
    struct sc_prng *rng = &w->rng;
    int index = lease_pick(w, rng);
    if (index < 0) return;
    for (int i = 0; i < LEASES_MAX; i++) { /* a lost one is good for nothing else */
        if (w->leases[i].used && w->leases[i].state == SC_LEASE_LOST) index = i;
    }
    struct m_lease *lease = &w->leases[index];
    /* Prompts should get somewhere first. */
    if (lease->state == SC_LEASE_READY && lease->run.len < lease->token_count && !one_in(rng, 4)) {
        op_step(w);
        return;
    }
    sc_lease handle = lease->handle;
    enum sc_release how = one_in(rng, 4) ? SC_RELEASE_DISCARD : SC_RELEASE_KEEP;
    uint32_t len = one_in(rng, 4) ? draw(rng, lease->run.len + 1) : 0;
    sc_status wanted = lease->state == SC_LEASE_DRAINING ? SC_ERR_STATE : SC_OK;
    if (one_in(rng, 30)) {
        handle.generation++;
        wanted = SC_ERR_STALE;
    } else if (wanted == SC_OK && lease->state == SC_LEASE_READY && one_in(rng, 30)) {
        len = lease->run.len + 1;
        wanted = SC_ERR_INVALID;
    }
    record_ask(w, lease->ns, lease->tokens, lease->run.len);
    sc_cache_stats before = world_stats(w);
    sc_room room = world_room(w);
    world_arm(w);
    sc_status status = seen(w, CALL_RELEASE, sc_lease_release(w->cache, handle, len, how));
    bool failed = world_disarm(w);
    decided(w, (uint64_t)-status);
    model_trace(w, "release %d at %u of %u (len %u) how %d state %d: %s", index, lease->run.len,
        lease->token_count, len, (int)how, (int)lease->state, sc_status_name(status));
    CHECK(w, status == wanted, "%s, not %s", sc_status_name(status), sc_status_name(wanted));
    if (status != SC_OK) {
        world_same(w, &before, &room, "a refused release");
        return;
    }
    lease->how = how;
    lease->release_len = len;
    if (lease->state == SC_LEASE_RUNNING) {
        lease->state = SC_LEASE_DRAINING;
        lease_check(w, lease, false);
        return;
    }
    sc_lease_info info;
    CHECK(w, seen(w, CALL_INFO, sc_lease_info_get(w->cache, handle, &info)) == SC_ERR_STALE,
        "a released lease answers");
    lease_learn_end(w, lease, &before, failed);
    lease_gone(w, lease);
}

void op_adopt(struct world *w)
{
    int index = lease_pick(w, &w->rng);
    if (index < 0) return;
    struct m_lease *lease = &w->leases[index];
    sc_lease handle = lease->handle;
    uint32_t count = 0;
    if (one_in(&w->rng, 30)) {
        CHECK(w, seen(w, CALL_ADOPT, sc_lease_adopt(w->cache, handle, NULL)) == SC_ERR_INVALID, "");
        handle.generation++;
    }
    sc_status status = seen(w, CALL_ADOPT, sc_lease_adopt(w->cache, handle, &count));
    decided(w, mix((uint64_t)-status, count));
    model_trace(w, "adopt %d: %u pages: %s", index, count, sc_status_name(status));
    if (handle.generation != lease->handle.generation) {
        CHECK(w, status == SC_ERR_STALE, "%s", sc_status_name(status));
        return;
    }
    bool busy = lease->state == SC_LEASE_RUNNING || lease->state == SC_LEASE_DRAINING;
    CHECK(w, !busy || status == SC_ERR_STATE, "%s in flight", sc_status_name(status));
    CHECK(w, status == SC_OK || status == SC_ERR_STATE || lease->state == SC_LEASE_LOST, "%s",
        sc_status_name(status));
    CHECK(w, status == SC_OK || lease->state != SC_LEASE_READY || w->flight.active,
        "%s of a lease that is READY", sc_status_name(status));
    if (status != SC_OK || lease->state == SC_LEASE_LOST) return;
    int32_t ids[TOKENS_MAX];
    uint32_t changed = 0, pages = read_ids(w, lease, ids);
    CHECK(w, pages == lease->id_count, "%u pages, not %u", pages, lease->id_count);
    for (uint32_t i = 0; i < pages; i++) changed += ids[i] != lease->ids[i];
    CHECK(w, changed == count, "%u ids changed, %u were adopted", changed, count);
    lease_set_ids(w, lease, ids, pages);
    lease_check(w, lease, true); /* the canonical pages have the same bits */
}

static void read_badly(struct world *w, struct m_lease *lease)
{
    sc_lease bad = lease->handle;
    sc_lease_info info;
    sc_history history[2];
    sc_kv_span span;
    uint32_t count = 0;
    int32_t id;
    bad.generation++;
    CHECK(w, seen(w, CALL_INFO, sc_lease_info_get(w->cache, bad, &info)) == SC_ERR_STALE, "");
    CHECK(w, seen(w, CALL_INFO, sc_lease_info_get(w->cache, bad, NULL)) == SC_ERR_INVALID, "");
    CHECK(w, lease_history(w, bad, history, 2, &count) == SC_ERR_STALE, "");
    CHECK(w, lease_history(w, lease->handle, history, 2, NULL) == SC_ERR_INVALID, "");
    CHECK(w, seen(w, CALL_KV_SPANS, sc_lease_kv_spans(w->cache, bad, 0, &span, 1, &count)) ==
            SC_ERR_STALE, "");
    CHECK(w, seen(w, CALL_KV_SPANS, sc_lease_kv_spans(w->cache, lease->handle, 0, &span, 1,
                                        NULL)) == SC_ERR_INVALID, "");
    CHECK(w, seen(w, CALL_KV_IDS, sc_lease_kv_ids(w->cache, bad, 0, &id, 1, &count)) ==
            SC_ERR_STALE, "");
    CHECK(w, seen(w, CALL_KV_IDS, sc_lease_kv_ids(w->cache, lease->handle, 0, &id, 1, NULL)) ==
            SC_ERR_INVALID, "");
}

void op_read(struct world *w)
{
    struct sc_prng *rng = &w->rng_read;
    int index = lease_pick(w, rng);
    if (index < 0) return;
    struct m_lease *lease = &w->leases[index];
    lease_check(w, lease, true);
    if (one_in(rng, 20)) read_badly(w, lease);
    if (lease->state == SC_LEASE_LOST) return;
    sc_history history[TOKENS_MAX];
    sc_kv_span spans[TOKENS_MAX];
    int32_t ids[TOKENS_MAX];
    uint32_t need = 0, count = 0;
    CHECK(w, lease_history(w, lease->handle, history, TOKENS_MAX, &need) == SC_OK, "");
    if (need > 0) {
        CHECK(w, seen(w, CALL_HISTORY, sc_lease_history(w->cache, lease->handle, history, need - 1,
                                           &count)) == SC_ERR_LIMIT, "");
        CHECK(w, w->plant == PLANT_HISTORY || count == need, "needs %u, says %u", need, count);
    }
    if (lease->id_count == 0) return;
    uint32_t first = draw(rng, lease->id_count), left = lease->id_count - first;
    CHECK(w, seen(w, CALL_KV_IDS, sc_lease_kv_ids(w->cache, lease->handle, first, ids, left,
                                      &count)) == SC_OK && count == left, "%u of %u", count, left);
    CHECK(w, memcmp(ids, &lease->ids[first], left * sizeof *ids) == 0, "ids from page %u", first);
    CHECK(w, seen(w, CALL_KV_IDS, sc_lease_kv_ids(w->cache, lease->handle, first, ids, left - 1,
                                      &count)) == SC_ERR_LIMIT && count == left, "%u", count);
    CHECK(w, seen(w, CALL_KV_SPANS, sc_lease_kv_spans(w->cache, lease->handle, first, spans,
                                        TOKENS_MAX, &need)) == SC_OK && need > 0, "");
    CHECK(w, spans[0].page_first == first && spans[0].ids[0] == lease->ids[first], "span at %u",
        first);
    CHECK(w, seen(w, CALL_KV_SPANS, sc_lease_kv_spans(w->cache, lease->handle, first, spans,
                                        need - 1, &count)) == SC_ERR_LIMIT && count == need, "");
}

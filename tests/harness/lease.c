/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: acquire, append, adopt, release. What a hit resumes must be, word for word, the state of
 * a cold run with the history that the cache reports; its KV ids must name pages of that run. */
#include <string.h>

#include "harness.h"

int32_t h_token_draw(struct h_sched *s)
{
    static const int32_t wild[5] = {INT32_MIN, -1, 0, INT32_MAX, 65536};
    uint32_t token = h_draw(&s->rng, s->world->cfg.alphabet);
    return s->world->cfg.wild_tokens ? wild[token % 5] : (int32_t)token;
}

void h_prompt_keep(struct h_sched *s, const struct h_text *text, uint32_t count)
{
    struct h_world *w = s->world;
    uint32_t at = w->prompt_count < w->cfg.prompt_pool ? w->prompt_count++
                                                       : h_draw(&s->rng, w->cfg.prompt_pool);
    w->prompts[at] = *text;
    w->prompts[at].count = count;
}

/* Often an earlier one (a next turn, a preempted request that comes back), or a part of one. */
void h_prompt_draw(struct h_sched *s, struct h_text *prompt)
{
    struct h_world *w = s->world;
    struct sc_prng *rng = &s->rng;
    uint32_t max = w->cfg.prompt_len_max;
    prompt->count = 0;
    if (w->prompt_count > 0 && !h_one_in(rng, 6)) {
        const struct h_text *from = &w->prompts[h_draw(rng, w->prompt_count)];
        uint32_t share = h_one_in(rng, 2) ? from->count : h_draw(rng, from->count + 1);
        prompt->count = h_min(share, max);
        memcpy(prompt->tokens, from->tokens, prompt->count * sizeof *prompt->tokens);
        memcpy(prompt->mark, from->mark, prompt->count);
    }
    uint32_t tail = h_one_in(rng, 4) ? 0 : h_draw(rng, h_one_in(rng, 3) ? 3 * w->grid : 8);
    if (prompt->count + tail == 0) tail = 1;
    tail = h_min(tail, max - prompt->count);
    for (uint32_t i = 0; i < tail; i++) {
        prompt->mark[prompt->count] = 0;
        prompt->tokens[prompt->count++] = h_token_draw(s);
    }
    if (w->cfg.marks == 0 || !h_one_in(rng, 3)) return;
    /* A tenant's salt, an image: the same tokens, other marks. */
    uint32_t at = h_one_in(rng, 3) ? 0 : h_draw(rng, prompt->count);
    prompt->mark[at] = (uint8_t)h_draw(rng, 1 + w->cfg.marks);
}

int h_ns_pick(struct h_sched *s)
{
    uint32_t start = h_one_in(&s->rng, 3) ? h_draw(&s->rng, H_NS_MAX) : 0;
    for (uint32_t i = 0; i < H_NS_MAX; i++) {
        if (s->world->ns[(start + i) % H_NS_MAX].open) return (int)((start + i) % H_NS_MAX);
    }
    return -1;
}

int h_lease_pick(struct h_sched *s)
{
    uint32_t start = h_draw(&s->rng, H_LEASES_MAX);
    for (uint32_t i = 0; i < H_LEASES_MAX; i++) {
        uint32_t at = (start + i) % H_LEASES_MAX;
        if (s->leases[at].used) return (int)at;
    }
    return -1;
}

sc_lease_state h_lease_state(const struct h_lease *lease)
{
    if (lease->draining) return SC_LEASE_DRAINING;
    if (lease->lost) return SC_LEASE_LOST;
    if (h_waits(lease)) return SC_LEASE_WAITING;
    return lease->flights > 0 ? SC_LEASE_RUNNING : SC_LEASE_READY;
}

void h_lease_gone(struct h_sched *s, struct h_lease *lease)
{
    struct h_world *w = s->world;
    lease->used = false;
    if (lease->open >= 0) h_kv_give(w, lease->open);
    if (lease->spare >= 0) h_kv_give(w, lease->spare);
    s->graves[s->grave_count++ % H_GRAVES_MAX] = lease->handle;
    w->ns[lease->ns].lease_count--;
    w->leases_alive--;
    w->released++;
}

/* The history that the cache reports explains the state and every page. */
static void check_cold(struct h_sched *s, struct h_lease *lease)
{
    struct h_world *w = s->world;
    sc_history history[H_TOKENS_MAX];
    uint32_t count = 0;
    struct h_run cold;
    H_OK(w, H_CALL(s, HISTORY,
        sc_lease_history(w->cache, lease->handle, history, H_TOKENS_MAX, &count)));
    H_CHECK(w, count > 0 ? history[count - 1].end == lease->run.len : lease->run.len == 0,
        "the history has %u stretches and does not end at %u", count, lease->run.len);
    h_run_cold(s, &cold, lease->root, &lease->text, history, count);
    H_CHECK(w, cold.state == lease->run.state, "the state after %u tokens is not that of a cold "
        "run by its history (%u stretches)", lease->run.len, count);
    for (uint32_t page = 0; page < lease->id_count; page++) {
        H_CHECK(w, w->kv_stamp[lease->ids[page]] == cold.page[page], "page %u of %u tokens has KV "
            "of another history or of other tokens", page, lease->run.len);
    }
}

static void check_ids(struct h_sched *s, struct h_lease *lease)
{
    struct h_world *w = s->world;
    int32_t ids[H_TOKENS_MAX];
    sc_kv_span spans[H_TOKENS_MAX];
    uint32_t count = 0, spans_count = 0, at = 0;
    H_OK(w, H_CALL(s, KV_IDS,
        sc_lease_kv_ids(w->cache, lease->handle, 0, ids, H_TOKENS_MAX, &count)));
    H_CHECK(w, count == lease->id_count && memcmp(ids, lease->ids, count * sizeof *ids) == 0,
        "the %u KV ids of a lease are not its %u", count, lease->id_count);
    H_OK(w, H_CALL(s, KV_SPANS,
        sc_lease_kv_spans(w->cache, lease->handle, 0, spans, H_TOKENS_MAX, &spans_count)));
    for (uint32_t i = 0; i < spans_count; i++) {
        for (uint32_t j = 0; j < spans[i].page_count; j++, at++) {
            H_CHECK(w, at < count && spans[i].ids[j] == ids[at] && spans[i].page_first + j == at,
                "page %u: span and copy differ", at);
        }
    }
    H_CHECK(w, at == count, "%u pages in spans, %u in the copy", at, count);
    for (uint32_t i = 0; i < count; i++) {
        H_CHECK(w, ids[i] >= 0 && (uint32_t)ids[i] < w->cfg.kv_ids &&
                w->kv_where[ids[i]] == H_KV_INSIDE,
            "a lease reads KV id %d for page %u, which the cache does not have", ids[i], i);
    }
}

void h_lease_check(struct h_sched *s, struct h_lease *lease, bool deep)
{
    struct h_world *w = s->world;
    sc_lease_info info;
    H_OK(w, H_CALL(s, INFO, sc_lease_info_get(w->cache, lease->handle, &info)));
    H_CHECK(w, info.state == h_lease_state(lease) && info.resume_len == lease->resume_len &&
            info.prompt_len == lease->prompt_len && info.len == lease->run.len &&
            info.token_count == lease->token_count && info.extra_slot == lease->extra_slot,
        "state %d resume %u prompt %u len %u tokens %u; the scheduler: %d, %u, %u, %u, %u",
        (int)info.state, info.resume_len, info.prompt_len, info.len, info.token_count,
        (int)h_lease_state(lease), lease->resume_len, lease->prompt_len, lease->run.len,
        lease->token_count);
    uint32_t pages = w->cfg.without_kv ? 0 : lease->run.len / w->cfg.page;
    h_hints_check(s, lease, &info);
    H_CHECK(w, info.steps_out == lease->flights && (lease->lost || lease->overrun ||
            (info.issued_len == lease->issued_len && info.issued_len_max == lease->issued_max)),
        "%u steps out, issued %u to %u; the scheduler: %u, %u, %u", info.steps_out,
        info.issued_len, info.issued_len_max, lease->flights, lease->issued_len,
        lease->issued_max);
    H_CHECK(w, info.kv_page_count == pages && lease->id_count == pages, "%u pages, not %u",
        info.kv_page_count, pages);
    H_CHECK(w, info.working_slot > 0, "working slot %d", info.working_slot);
    if (info.state == SC_LEASE_READY) {
        H_CHECK(w, (info.source_slot > 0) == (lease->run.len > 0), "source slot %d of %u tokens",
            info.source_slot, lease->run.len);
        H_CHECK(w, h_slot_read(s, info.source_slot, lease->root, "lease") == lease->run.state,
            "slot %d does not hold the state after %u tokens", info.source_slot, lease->run.len);
    }
    if (info.state == SC_LEASE_READY && lease->open >= 0 && lease->tail_kv < 0) {
        H_CHECK(w, w->kv_stamp[lease->open] == lease->run.page[pages], "KV id %d does not hold the "
            "tokens before %u", lease->open, lease->run.len);
    }
    if (!deep || lease->lost || lease->overrun) return;
    check_ids(s, lease);
    check_cold(s, lease);
}

/* ------------------------------------------------------------------ acquire */

void h_lease_stand(struct h_sched *s, struct h_lease *lease, const sc_lease_info *info)
{
    struct h_world *w = s->world;
    sc_history history[H_TOKENS_MAX];
    uint32_t count = 0;
    H_OK(w, H_CALL(s, KV_IDS,
                sc_lease_kv_ids(
                    w->cache, lease->handle, 0, lease->ids, H_TOKENS_MAX, &lease->id_count)));
    lease->issued_len = lease->issued_max = info->resume_len;
    if (info->resume_len > 0) {
        H_OK(w, H_CALL(s, HISTORY,
                    sc_lease_history(w->cache, lease->handle, history, H_TOKENS_MAX, &count)));
        h_run_cold(s, &lease->run, lease->root, &lease->text, history, count);
        s->totals->hits++;
    }
    h_begin_page(s, lease, info);
}

/* A lower tier has more: until then the lease stands on what the device has. */
static void begin_waiting(
    struct h_sched *s, struct h_lease *lease, const sc_request *request, const sc_lease_info *info)
{
    struct h_world *w = s->world;
    const sc_key *key = &request->key;
    uint32_t bound = key->len_max ? key->len_max : key->token_count - 1;
    H_CHECK(w,
        w->tier.tiers && info->restore_len > info->resume_len && info->restore_len <= bound &&
            info->reason == SC_REASON_RESTORING,
        "%u tokens are restored of %u, the device has %u; reason %d", info->restore_len, bound,
        info->resume_len, (int)info->reason);
    if (!w->cfg.without_kv && info->restore_len % w->cfg.page != 0) lease->spare = h_kv_take(w);
    for (uint32_t n = 0; n < H_SCHEDS_MAX * H_LEASES_MAX; n++) {
        const struct h_lease *other = &w->scheds[n / H_LEASES_MAX].leases[n % H_LEASES_MAX];
        if (other == lease || !other->used || other->ticket != lease->ticket) continue;
        s->totals->tier.joined++;
        break;
    }
    w->tier.outcome[lease->ticket % H_TICKETS] = H_TICKET_ALIVE;
    s->totals->tier.waited++;
    h_decided(w, lease->ticket << 32 | lease->restore_len);
}

static void lease_begin(struct h_sched *s, sc_lease handle, uint32_t ns, const sc_request *request,
    const struct h_text *prompt)
{
    struct h_world *w = s->world;
    struct h_lease *lease = h_lease_place(s);
    memset(lease, 0, sizeof *lease);
    sc_lease_info info;
    H_OK(w, H_CALL(s, INFO, sc_lease_info_get(w->cache, handle, &info)));
    bool waits = request->external_len > info.resume_len, restores = info.restore_ticket != 0;
    H_CHECK(w,
        info.state == (waits || restores ? SC_LEASE_WAITING : SC_LEASE_READY) &&
            info.resume_len <= prompt->count && (!waits || info.resume_len == 0) &&
            info.len == info.resume_len && !(waits && restores),
        "state %d, resumed at %u of %u", (int)info.state, info.resume_len, prompt->count);
    *lease = (struct h_lease){.used = true, .handle = handle, .ns = ns,
        .depth = request->depth ? request->depth : 1, .waiting = waits, .flags = request->flags,
        .external_len = request->external_len,
        .root = w->ns[ns].root, .token_count = prompt->count, .prompt_len = prompt->count,
        .resume_len = info.resume_len, .issued_len = info.resume_len,
        .issued_max = info.resume_len, .open = -1, .tail_kv = -1, .extra_slot = info.extra_slot,
        .ticket = info.restore_ticket, .restore_len = info.restore_len, .spare = -1,
        .deadline_ns = request->deadline_ns};
    lease->text = *prompt;
    lease->run.state = lease->root;
    H_CHECK(w, (info.extra_slot > 0) == (w->extras != NULL), "extras slot %d", info.extra_slot);
    if (w->extras) {
        H_CHECK(w, h_extra_read(w, info.extra_slot) == 0, "extras slot %d still has what another "
            "request wrote", info.extra_slot);
    }
    H_CHECK(w, (uint32_t)info.source_slot == info.resume_slot &&
            (info.resume_slot != 0) == (info.resume_len > 0) &&
            (info.resume_kind != SC_KIND_NONE) == (info.resume_len > 0),
        "resume slot %u kind %d source %d at %u", info.resume_slot, (int)info.resume_kind,
        info.source_slot, info.resume_len);
    if (request->hints) lease->hints = *request->hints;
    if (restores) begin_waiting(s, lease, request, &info);
    h_lease_stand(s, lease, &info);
    h_decided(w, (uint64_t)info.resume_len << 32 | (uint32_t)info.working_slot);
    h_decided(w, (uint64_t)info.reason << 32 | (uint32_t)info.source_slot);
    w->acquired++;
    w->leases_alive++;
    w->ns[ns].lease_count++;
    h_lease_check(s, lease, true); /* the slot holds that state, the ids name those pages */
}

/* A request that must be refused, and how. */
static sc_status spoil_request(struct h_sched *s, sc_request *request, struct h_text *prompt)
{
    struct h_world *w = s->world;
    static const sc_mark behind = {.at = UINT32_MAX};
    switch (h_draw(&s->rng, 7)) {
    case 0:
        if (w->ns_grave_count > 0) {
            request->key.ns =
                w->ns_graves[h_draw(&s->rng, h_min(w->ns_grave_count, H_GRAVES_MAX))];
        } else {
            request->key.ns.generation += 2;
        }
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
    case 5:
        request->key.marks = h_one_in(&s->rng, 2) ? NULL : &behind; /* of no key */
        request->key.mark_count = 1;
        return SC_ERR_INVALID;
    default:
        for (uint32_t i = prompt->count; i < H_TOKENS_MAX; i++) prompt->tokens[i] = 0;
        request->key.token_count = w->cfg.lease_token_max + 1;
        return SC_ERR_LIMIT;
    }
}

/* Was this status right? `room` and `alive` are from before the item. */
static void check_refusal(struct h_sched *s, sc_status status, sc_status wanted, bool failed,
    const sc_room *room, uint32_t index)
{
    struct h_world *w = s->world;
    bool full = w->leases_alive == w->cfg.lease_max;
    bool no_extra = w->extras && w->leases_alive >= w->cfg.extras;
    bool lost = w->device_lost && status == SC_ERR_DEVICE_LOST;
    if (wanted != SC_OK) {
        H_CHECK(w, status == wanted || (status == SC_ERR_LIMIT && full), "item %u: %s, not %s",
            index, sc_status_name(status), sc_status_name(wanted));
        return;
    }
    switch (status) {
    case SC_OK:
        H_CHECK(w, !full && !no_extra, "a lease too many");
        break;
    case SC_ERR_LIMIT:
        /* one before it in the call may have been taken, and taken back */
        H_CHECK(w, full || w->device_lost, "only %u leases are alive", (uint32_t)w->leases_alive);
        break;
    case SC_ERR_NO_MEMORY:
        H_CHECK(w, failed, "no allocation failed");
        break;
    case SC_ERR_NO_SLOT:
        /* The last evictable one may be the hit itself, which is pinned first. */
        H_CHECK(w, no_extra || index > 0 || (room->slots_free == 0 && room->slots_evictable <= 1),
            "no slot: %u free, %u evictable", room->slots_free, room->slots_evictable);
        break;
    default:
        H_CHECK(w, lost, "item %u: %s: %s", index, sc_status_name(status), sc_last_error()->text);
    }
}

static uint32_t requests_draw(struct h_sched *s, sc_request *requests, struct h_text *prompts,
    sc_status *wanted, uint32_t *ns)
{
    struct h_world *w = s->world;
    struct sc_prng *rng = &s->rng;
    uint32_t count = h_one_in(rng, 3) ? 1 + h_draw(rng, H_BATCH_MAX) : 1, mine = 0;
    for (uint32_t i = 0; i < H_LEASES_MAX; i++) mine += s->leases[i].used;
    count = h_min(count, w->cfg.leases > mine ? w->cfg.leases - mine : 0);
    memset(requests, 0, H_BATCH_MAX * sizeof *requests);
    for (uint32_t i = 0; i < count; i++) {
        int open = h_ns_pick(s);
        if (open < 0) return 0;
        ns[i] = (uint32_t)open;
        h_prompt_draw(s, &prompts[i]);
        requests[i].key = (sc_key){.ns = w->ns[open].handle, .tokens = prompts[i].tokens,
            .token_count = prompts[i].count, .marks = s->marks[i]};
        requests[i].key.mark_count = h_marks(&prompts[i], 0, prompts[i].count, s->marks[i]);
        if (h_one_in(rng, 6)) requests[i].key.len_max = 1 + h_draw(rng, prompts[i].count);
        requests[i].depth = h_draw(rng, w->cfg.depth + 1);
        if (w->cfg.copy && h_one_in(rng, 2)) requests[i].flags |= SC_REQUEST_COPY;
        if (w->tier.tiers && h_one_in(rng, 4)) {
            requests[i].deadline_ns = w->now_ns + 1 + h_draw(rng, 60);
        }
        if (w->cfg.external && h_one_in(rng, 6)) {
            requests[i].flags |= SC_REQUEST_EXTERNAL;
            requests[i].external_len = 1 + h_draw(rng, prompts[i].count);
        }
        if (w->cfg.hints && h_one_in(rng, 2)) {
            h_hints_draw(s, &s->hints[i], prompts[i].count, s->points[i]);
            requests[i].hints = &s->hints[i];
        }
        wanted[i] = h_one_in(rng, 20) ? spoil_request(s, &requests[i], &prompts[i]) : SC_OK;
    }
    return count;
}

void h_op_acquire(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_request requests[H_BATCH_MAX];
    struct h_text prompts[H_BATCH_MAX];
    sc_lease leases[H_BATCH_MAX];
    sc_status wanted[H_BATCH_MAX], each[H_BATCH_MAX];
    uint32_t ns[H_BATCH_MAX];
    if (h_ns_pick(s) < 0) {
        h_op_ns_open(s);
        return;
    }
    uint32_t count = requests_draw(s, requests, prompts, wanted, ns);
    if (!w->cfg.without_kv && !h_kv_room(s, w->tier.tiers ? 2 * H_BATCH_MAX : H_BATCH_MAX)) {
        h_op_release(s);
        return;
    }
    bool full = w->leases_alive >= w->cfg.lease_max || w->leases_alive + 1 >= w->cfg.slots ||
        (w->extras && w->leases_alive >= w->cfg.extras);
    if (full && !w->hold && !h_one_in(&s->rng, 8)) count = 0; /* being refused is soon seen */
    if (count == 0) {
        h_op_release(s);
        return;
    }
    /* Time has gone on, which ends pins: now, so that the call below has no part in it. */
    H_OK(w, H_CALL(s, ACQUIRE, sc_cache_acquire(w->cache, NULL, 0, w->now_ns, NULL, NULL)));
    sc_cache_stats stats = h_stats(s);
    sc_room room = h_room(s);
    h_arm(s);
    sc_status status = H_CALL(s, ACQUIRE,
        sc_cache_acquire(w->cache, requests, count, w->now_ns, leases, each));
    bool failed = h_disarm(s);
    H_CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    bool any = false;
    for (uint32_t i = 0; i < count; i++) {
        h_item(s, H_CALL_ACQUIRE_EACH, each[i]);
        h_trace(s, "acquire ns %u prompt %u max %u: %s", ns[i], requests[i].key.token_count,
            requests[i].key.len_max, sc_status_name(each[i]));
        check_refusal(s, each[i], wanted[i], failed, &room, i);
        if (each[i] != SC_OK) continue;
        any = true;
        lease_begin(s, leases[i], ns[i], &requests[i], &prompts[i]);
        h_prompt_keep(s, &prompts[i], prompts[i].count);
    }
    if (!any) {
        sc_cache_stats now = h_stats(s);
        stats.refused = now.refused;
        /* Room that was made for one that was refused in the end stays made. */
        bool evicted = memcmp(now.evicted, stats.evicted, sizeof now.evicted) != 0;
        /* ... and a restore for which no slot could be prepared is one that has failed. */
        evicted |= w->device_lost && w->tier.tiers;
        if (!evicted && now.pages_evicted == stats.pages_evicted) {
            h_same(s, &stats, &room, "a refused acquire");
        }
    }
}

/* ------------------------------------------------------------------ append, adopt, release */

static sc_status append(struct h_sched *s, const struct h_lease *lease, const struct h_text *text,
    uint32_t count)
{
    struct h_world *w = s->world;
    sc_mark marks[H_MARKS_MAX], behind = {.at = lease->token_count + count};
    const int32_t *tokens = text->tokens + lease->token_count;
    uint32_t mark_count = h_marks(text, lease->token_count, lease->token_count + count, marks);
    if (mark_count == 0 && h_one_in(&s->rng, 4)) {
        return H_CALL(s, APPEND, sc_lease_append(w->cache, lease->handle, tokens, count));
    }
    if (h_one_in(&s->rng, 20)) {
        sc_status status = H_CALL(s, APPEND_MARKED,
            sc_lease_append_marked(w->cache, lease->handle, tokens, count, &behind, 1));
        H_CHECK(w, status < 0, "a mark at %u, behind what is appended", behind.at);
    }
    return H_CALL(s, APPEND_MARKED,
        sc_lease_append_marked(w->cache, lease->handle, tokens, count, marks, mark_count));
}

void h_op_append(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct sc_prng *rng = &s->rng;
    int index = h_lease_pick(s);
    if (index < 0) return;
    struct h_lease *lease = &s->leases[index];
    struct h_text text = lease->text;
    uint32_t count = h_one_in(rng, 3) ? 1 + h_draw(rng, 2 * w->cfg.page + 6) : 1;
    if (h_one_in(rng, 40)) count = w->cfg.lease_token_max - lease->token_count + 1;
    for (uint32_t i = 0; i < count; i++) { /* what was sampled comes first */
        uint32_t at = lease->token_count + i;
        if (at < lease->text.count) continue;
        text.tokens[at] = h_token_draw(s);
        bool mark = w->cfg.marks > 0 && h_one_in(rng, 12);
        text.mark[at] = mark ? (uint8_t)h_draw(rng, 1 + w->cfg.marks) : 0;
    }
    sc_status wanted = SC_OK;
    if (lease->lost || lease->draining) {
        wanted = SC_ERR_STATE;
    } else if (lease->token_count + count > w->cfg.lease_token_max) {
        wanted = SC_ERR_LIMIT;
    }
    h_arm(s);
    sc_status status = append(s, lease, &text, count);
    bool failed = h_disarm(s);
    h_trace(s, "append %d: %u tokens: %s", index, count, sc_status_name(status));
    H_CHECK(w, status == wanted || (failed && wanted == SC_OK && status == SC_ERR_NO_MEMORY),
        "%s, not %s", sc_status_name(status), sc_status_name(wanted));
    if (status == SC_OK) {
        lease->token_count += count;
        if (text.count < lease->token_count) text.count = lease->token_count;
        lease->text = text;
        h_prompt_keep(s, &lease->text, lease->token_count);
    }
    h_lease_check(s, lease, false);
}

void h_op_adopt(struct h_sched *s)
{
    struct h_world *w = s->world;
    int index = h_lease_pick(s);
    if (index < 0) return;
    struct h_lease *lease = &s->leases[index];
    uint32_t count = 0, changed = 0, pages = 0;
    sc_status status = H_CALL(s, ADOPT, sc_lease_adopt(w->cache, lease->handle, &count));
    h_trace(s, "adopt %d: %u pages: %s", index, count, sc_status_name(status));
    bool ready = h_lease_state(lease) == SC_LEASE_READY;
    H_CHECK(w, status == (ready ? SC_OK : SC_ERR_STATE), "%s of a lease of state %d",
        sc_status_name(status), (int)h_lease_state(lease));
    if (status != SC_OK) return;
    int32_t ids[H_TOKENS_MAX];
    H_OK(w, H_CALL(s, KV_IDS,
        sc_lease_kv_ids(w->cache, lease->handle, 0, ids, H_TOKENS_MAX, &pages)));
    H_CHECK(w, pages == lease->id_count, "%u pages, not %u", pages, lease->id_count);
    for (uint32_t i = 0; i < pages; i++) changed += ids[i] != lease->ids[i];
    H_CHECK(w, changed == count, "%u ids changed, %u were adopted", changed, count);
    memcpy(lease->ids, ids, pages * sizeof *ids);
    h_lease_check(s, lease, true); /* the canonical pages have the same bits */
}

/* The newest row in flight of a lease, if the device has done it; NULL: none, or not yet. */
static struct h_row *newest_row(struct h_sched *s, uint32_t index)
{
    const struct h_step end = {.id = UINT64_MAX};
    uint32_t row = 0;
    struct h_step *step = h_step_before(s, &end, index, &row);
    return step && step->rows[row].computed ? &step->rows[row] : NULL;
}

/* The partial page that goes along with a release: where the lease ends, or its last row in flight;
 * -1: none. */
static int32_t release_tail(struct h_sched *s, int index, uint32_t len)
{
    const struct h_lease *lease = &s->leases[index];
    if (s->world->cfg.without_kv || lease->lost || lease->overrun || h_one_in(&s->rng, 4)) {
        return -1;
    }
    if (len > 0 && len != lease->run.len) return -1;
    if (lease->flights == 0) return lease->tail_kv < 0 ? lease->open : -1;
    const struct h_row *row = newest_row(s, (uint32_t)index);
    return row ? row->open : -1;
}

static void hand_in_tail(struct h_sched *s, int index, int32_t id)
{
    struct h_lease *lease = &s->leases[index];
    h_kv_hand_in(s->world, id);
    if (lease->open == id) lease->open = -1;
    for (uint32_t n = 0; n < H_STEPS_MAX * H_ROWS_MAX; n++) { /* no row in flight has it now */
        struct h_step *step = &s->world->steps[n / H_ROWS_MAX];
        struct h_row *row = &step->rows[n % H_ROWS_MAX];
        if (!step->active || step->owner != s->index || n % H_ROWS_MAX >= step->row_count) continue;
        if (!row->granted || row->lease != (uint32_t)index) continue;
        if (row->open == id) row->open = -1;
        for (uint32_t p = 0; p < row->id_count; p++) {
            if (row->ids[p] == id) row->ids[p] = row->ids[--row->id_count];
        }
    }
}

static void release(struct h_sched *s, int index)
{
    struct h_world *w = s->world;
    struct sc_prng *rng = &s->rng;
    struct h_lease *lease = &s->leases[index];
    enum sc_release how = h_one_in(rng, 4) ? SC_RELEASE_DISCARD : SC_RELEASE_KEEP;
    uint32_t len = h_one_in(rng, 4) ? h_draw(rng, lease->run.len + 1) : 0;
    sc_status wanted = lease->draining ? SC_ERR_STATE : SC_OK;
    if (wanted == SC_OK && h_one_in(rng, 30)) {
        len = lease->run.len + 1;
        wanted = SC_ERR_INVALID;
    }
    sc_cache_stats before = h_stats(s);
    sc_room room = h_room(s);
    int32_t tail = wanted == SC_OK ? release_tail(s, index, len) : -1;
    h_arm(s);
    sc_status status = tail >= 0 || h_one_in(rng, 3)
        ? H_CALL(s, RELEASE_TAIL, sc_lease_release_tail(w->cache, lease->handle, len, how, tail))
        : H_CALL(s, RELEASE, sc_lease_release(w->cache, lease->handle, len, how));
    bool failed = h_disarm(s);
    h_trace(s, "release %d at %u of %u (len %u) how %d tail %d state %d: %s", index,
        lease->run.len, lease->token_count, len, (int)how, tail, (int)h_lease_state(lease),
        sc_status_name(status));
    H_CHECK(w, status == wanted || (failed && tail >= 0 && status == SC_ERR_NO_MEMORY),
        "%s, not %s", sc_status_name(status), sc_status_name(wanted));
    if (status != SC_OK) {
        h_same(s, &before, &room, "a refused release");
        return;
    }
    if (tail >= 0) hand_in_tail(s, index, tail);
    if (lease->flights > 0) {
        lease->draining = true;
        h_lease_check(s, lease, false);
        return;
    }
    h_lease_gone(s, lease);
}

void h_op_release(struct h_sched *s)
{
    int index = h_lease_pick(s);
    if (index < 0 || s->world->hold) return;
    for (int i = 0; i < H_LEASES_MAX; i++) { /* a lost one is good for nothing else */
        if (s->leases[i].used && s->leases[i].lost && !s->leases[i].draining) index = i;
    }
    const struct h_lease *lease = &s->leases[index];
    if (lease->ticket && !h_one_in(&s->rng, 8)) { /* what it waits for goes on */
        h_op_work(s);
        h_tiers_poll(s);
        h_op_apply(s);
        return;
    }
    /* Prompts should get somewhere first. */
    if (!lease->lost && !lease->draining && !h_waits(lease) &&
        lease->run.len < lease->token_count && !h_one_in(&s->rng, 4)) {
        h_op_plan(s);
        return;
    }
    release(s, index);
}

void h_preempt(struct h_sched *s)
{
    int index = h_lease_pick(s);
    if (index >= 0 && !s->world->hold) release(s, index);
}

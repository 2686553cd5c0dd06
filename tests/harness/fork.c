/* SPDX-License-Identifier: Apache-2.0 */
/* Leases that begin with a state of somebody else's: forks, and states that the scheduler brings
 * (EXTERNAL). Hints, which must come back as they went in. */
#include <string.h>

#include "harness.h"

struct h_lease *h_lease_place(struct h_sched *s)
{
    for (uint32_t i = 0; i < s->world->cfg.leases; i++) {
        if (!s->leases[i].used) return &s->leases[i];
    }
    return NULL;
}

void h_begin_page(struct h_sched *s, struct h_lease *lease, const sc_lease_info *info)
{
    struct h_world *w = s->world;
    bool inside = !w->cfg.without_kv && lease->run.len % w->cfg.page != 0;
    H_CHECK(w, (info->tail_kv >= 0) == inside, "tail's KV id %d at %u", info->tail_kv,
        lease->run.len);
    if (!inside) return;
    H_CHECK(w, (uint32_t)info->tail_kv < w->cfg.kv_ids &&
            w->kv_where[info->tail_kv] == H_KV_INSIDE &&
            w->kv_stamp[info->tail_kv] == lease->run.page[lease->run.len / w->cfg.page],
        "KV id %d does not hold the tail of %u tokens", info->tail_kv, lease->run.len);
    lease->tail_kv = info->tail_kv;
    lease->open = h_kv_take(w);
}

/* ------------------------------------------------------------------ hints */

/* Few pins, and none beyond the life of most worlds. */
static uint64_t pin_of(const sc_hints *hints)
{
    uint64_t mix = h_mix(hints->class_id, (uint32_t)hints->priority);
    return mix % 4 == 0 ? mix / 4 % 500 : 0;
}

/* Hints that can be told from mixed-up ones: two of them are made from the others. */
void h_hints_draw(struct h_sched *s, sc_hints *hints_out, uint32_t token_count, uint32_t *points)
{
    struct sc_prng *rng = &s->rng;
    sc_hints hints = {.breakpoints = points, .class_id = h_draw(rng, 1000),
        .priority = (int32_t)h_draw(rng, 7) - 3, .flags = h_draw(rng, 3)};
    hints.pin_until_ns = pin_of(&hints);
    hints.ttl_ns = h_mix(hints.class_id, hints.flags) % 300;
    for (uint32_t at = 1; at <= token_count && hints.breakpoint_count < 4; at++) {
        if (h_one_in(rng, 16)) points[hints.breakpoint_count++] = at;
    }
    *hints_out = hints;
}

static bool same_hints(const sc_hints *a, const sc_hints *b)
{
    return a->class_id == b->class_id && a->priority == b->priority && a->flags == b->flags &&
        a->pin_until_ns == b->pin_until_ns && a->ttl_ns == b->ttl_ns;
}

void h_hints_check(struct h_sched *s, const struct h_lease *lease, const sc_lease_info *info)
{
    const sc_hints none = {.flags = 0}, *hit = &info->resume_hints;
    H_CHECK(s->world, same_hints(&info->hints, &lease->hints) && !info->hints.breakpoints,
        "hints of class %u, those of the request of %u", info->hints.class_id,
        lease->hints.class_id);
    bool whole = hit->pin_until_ns == pin_of(hit) &&
        hit->ttl_ns == h_mix(hit->class_id, hit->flags) % 300;
    H_CHECK(s->world, whole || same_hints(hit, &none), "hints of a hit: class %u, priority %d, "
        "which nobody gave", hit->class_id, (int)hit->priority);
}

/* ------------------------------------------------------------------ forks */

static void child_begin(struct h_sched *s, const struct h_lease *parent, sc_lease handle)
{
    struct h_world *w = s->world;
    struct h_lease *child = h_lease_place(s);
    sc_lease_info info;
    H_OK(w, H_CALL(s, INFO, sc_lease_info_get(w->cache, handle, &info)));
    *child = *parent;
    child->handle = handle;
    child->resume_len = child->issued_len = child->issued_max = parent->run.len;
    child->open = child->tail_kv = child->spare = -1;
    child->tag = 0;
    child->text.count = parent->token_count; /* it samples for itself */
    child->extra_slot = info.extra_slot;
    if (w->extras) {
        H_CHECK(w, h_extra_read(w, info.extra_slot) == 0, "extras slot %d of a child",
            info.extra_slot);
    }
    H_OK(w, H_CALL(s, KV_IDS, sc_lease_kv_ids(w->cache, handle, 0, child->ids, H_TOKENS_MAX,
                                  &child->id_count)));
    h_begin_page(s, child, &info);
    h_decided(w, (uint64_t)info.working_slot << 32 | (uint32_t)info.source_slot);
    w->acquired++;
    w->leases_alive++;
    w->ns[child->ns].lease_count++;
    h_lease_check(s, child, true);
}

/* The parent's partial page is the snapshot's now, or was not needed: it goes on in a copy. */
static void parent_goes_on(struct h_sched *s, struct h_lease *lease, int32_t tail)
{
    struct h_world *w = s->world;
    sc_lease_info info;
    if (tail < 0) return;
    h_kv_hand_in(w, tail);
    lease->open = -1;
    H_OK(w, H_CALL(s, INFO, sc_lease_info_get(w->cache, lease->handle, &info)));
    h_begin_page(s, lease, &info);
}

static void check_fork(struct h_sched *s, const struct h_lease *lease, sc_status status,
    bool failed, uint32_t count)
{
    struct h_world *w = s->world;
    bool ready = h_lease_state(lease) == SC_LEASE_READY;
    bool full = w->leases_alive + count > w->cfg.lease_max;
    H_CHECK(w, status == SC_OK ? ready && !full
            : status == SC_ERR_STATE     ? !ready
            : status == SC_ERR_LIMIT     ? full
            : status == SC_ERR_NO_MEMORY ? failed
                                         : status == SC_ERR_NO_SLOT || status == SC_ERR_BUSY,
        "a fork of a lease of state %d: %s: %s", (int)h_lease_state(lease), sc_status_name(status),
        sc_last_error()->text);
}

void h_op_fork(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_lease children[2];
    int index = h_lease_pick(s);
    uint32_t free = 0, count = 1 + h_draw(&s->rng, 2);
    for (uint32_t i = 0; i < w->cfg.leases; i++) free += !s->leases[i].used;
    if (index < 0 || w->hold || free < count) return;
    struct h_lease *lease = &s->leases[index];
    if (!w->cfg.without_kv && !h_kv_room(s, count + 1)) return;
    sc_lease_info info;
    H_OK(w, H_CALL(s, INFO, sc_lease_info_get(w->cache, lease->handle, &info)));
    bool stands = info.source_slot != info.working_slot; /* on a snapshot, or at 0 */
    bool inside = !w->cfg.without_kv && lease->run.len % w->cfg.page != 0;
    /* Where it stands on a snapshot the id is not needed, and taken all the same. */
    int32_t tail = inside && (!stands || h_one_in(&s->rng, 2)) ? lease->open : -1;
    if (h_lease_state(lease) != SC_LEASE_READY && !h_one_in(&s->rng, 4)) return;
    sc_cache_stats stats = h_stats(s);
    h_arm(s);
    sc_status status =
        H_CALL(s, FORK, sc_lease_fork(w->cache, lease->handle, tail, count, children));
    if (status == SC_ERR_INVALID && tail < 0 && inside && lease->tail_kv < 0) {
        /* A source that was to be a snapshot and is not: nothing that can be read tells. */
        tail = lease->open;
        status = H_CALL(s, FORK, sc_lease_fork(w->cache, lease->handle, tail, count, children));
    }
    bool failed = h_disarm(s);
    h_trace(s, "fork %d into %u at %u, tail %d: %s", index, count, lease->run.len, tail,
        sc_status_name(status));
    check_fork(s, lease, status, failed, count);
    if (status == SC_OK) {
        parent_goes_on(s, lease, tail);
        h_lease_check(s, lease, true);
        for (uint32_t i = 0; i < count; i++) child_begin(s, lease, children[i]);
        return;
    }
    sc_cache_stats now = h_stats(s);
    H_CHECK(w, now.acquired == stats.acquired && now.saves_published == stats.saves_published &&
            now.pages_in == stats.pages_in, "a refused fork changed something");
    h_lease_check(s, lease, h_lease_state(lease) == SC_LEASE_READY);
}

/* ------------------------------------------------------------------ states that are brought */

static uint32_t history_draw(struct h_sched *s, uint32_t len, sc_history *out)
{
    uint32_t count = 0, at = 0;
    if (h_one_in(&s->rng, 2)) return 0; /* one prefill */
    while (at < len) {
        bool decode = count > 0 && out[count - 1].form == SC_FORM_KIND_PREFILL &&
            h_one_in(&s->rng, 2);
        at += 1 + h_draw(&s->rng, len - at);
        out[count++] = (sc_history){at, decode ? SC_FORM_KIND_DECODE : SC_FORM_KIND_PREFILL};
    }
    return count;
}

/* What a prefill node would send: the state into the slot, the KV into pages. */
static uint32_t bring(struct h_sched *s, struct h_lease *lease, const struct h_run *run,
    int32_t *ids)
{
    struct h_world *w = s->world;
    sc_lease_info info;
    uint32_t count = 0, page = w->cfg.page;
    H_OK(w, H_CALL(s, INFO, sc_lease_info_get(w->cache, lease->handle, &info)));
    h_slot_write(w, info.working_slot, run->state);
    for (uint32_t p = 0; p * page < run->len && !w->cfg.without_kv; p++) {
        int32_t id = h_kv_take(w);
        w->kv_stamp[id] = run->page[p];
        if ((p + 1) * page > run->len) {
            lease->open = id;
        } else {
            ids[count++] = id;
        }
    }
    return count;
}

static void bring_back(struct h_sched *s, struct h_lease *lease, const int32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) h_kv_give(s->world, ids[i]);
    if (lease->open >= 0) h_kv_give(s->world, lease->open);
    lease->open = -1;
}

void h_op_fill(struct h_sched *s)
{
    struct h_world *w = s->world;
    int index = h_lease_pick(s);
    for (int i = 0; i < H_LEASES_MAX; i++) {
        if (s->leases[i].used && s->leases[i].waiting) index = i;
    }
    if (index < 0) return;
    struct h_lease *lease = &s->leases[index];
    if (!lease->waiting) {
        sc_status status =
            H_CALL(s, FILLED, sc_lease_filled(w->cache, lease->handle, NULL, 0, NULL, 0));
        H_CHECK(w, status == SC_ERR_STATE, "nothing is waited for: %s", sc_status_name(status));
        return;
    }
    sc_history history[H_TOKENS_MAX], cold = {lease->external_len, SC_FORM_KIND_PREFILL};
    int32_t ids[H_TOKENS_MAX];
    struct h_run run;
    if (!w->cfg.without_kv && !h_kv_room(s, lease->external_len / w->cfg.page + 1)) return;
    uint32_t stretches = history_draw(s, lease->external_len, history);
    h_run_cold(s, &run, lease->root, &lease->text, stretches ? history : &cold,
        stretches ? stretches : 1);
    uint32_t count = bring(s, lease, &run, ids);
    bool wrong = h_one_in(&s->rng, 12);
    if (wrong) history[0] = (sc_history){lease->external_len + 1, SC_FORM_KIND_PREFILL};
    h_arm(s);
    sc_status status = H_CALL(s, FILLED, sc_lease_filled(w->cache, lease->handle, ids, count,
        wrong || stretches ? history : NULL, wrong ? 1 : stretches));
    bool failed = h_disarm(s);
    h_trace(s, "fill %d with %u tokens: %s", index, run.len, sc_status_name(status));
    H_CHECK(w, status == (wrong ? SC_ERR_MISMATCH : SC_OK) ||
            (failed && status == SC_ERR_NO_MEMORY), "%s: %s", sc_status_name(status),
        sc_last_error()->text);
    if (status != SC_OK) {
        bring_back(s, lease, ids, count);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        h_kv_hand_in(w, ids[i]);
        lease->ids[lease->id_count++] = ids[i];
    }
    lease->run = run;
    lease->waiting = false;
    h_issue(s, (uint32_t)index);
    h_lease_check(s, lease, true);
}

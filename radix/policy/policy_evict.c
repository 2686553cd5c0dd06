/* SPDX-License-Identifier: Apache-2.0 */
/* Who goes: the search for a victim, duels, eviction. Numbers in brackets are invariants of
 * policy.c. */
#include "policy_internal.h"

static bool snapshot_there(const struct sc_policy *p, const struct cand *cand,
    struct sc_radix_node_info *info)
{
    return sc_radix_node_get(p->options.radix, cand->node, info) == SC_OK &&
        info->snapshot == cand->snapshot;
}

static bool spared(const struct sc_radix_node_info *info)
{
    return info->state_locks > 0 || info->kv_locks > 0;
}

static void timers_serve(struct sc_policy *p)
{
    if (p->model && p->now_ns > p->model->keys_until_ns)
        pol_touch_all(p, false);
    while (p->timers.count > 0) {
        if (p->timers.items[0].key > p->now_ns) return;
        pol_touch_time(p, p->timers.items[0].id);
    }
}

/* At what value things go these days: rises at once, falls slowly. A hint, from calls alone. */
static void going_note(struct sc_policy *p, double value)
{
    if (value == HUGE_VAL) return; /* pinned */
    p->going = value > p->going ? value : p->going + (value - p->going) / 64;
}

/* Takes the lowest entries off the heap until one may go; puts the others back. The first `base`
 * entries of `aside` are the caller's. */
static uint32_t victim_find(struct sc_policy *p, uint32_t base, double *value_out)
{
    uint32_t aside = base, found = 0, second = 0;
    double second_value = 0;
    struct sc_radix_node_info info;
    timers_serve(p);
    while (p->order.count > 0 && found == 0) {
        uint32_t id = p->order.items[0].id;
        struct cand *cand = pol_cand(p, id);
        if (pol_now(p, cand->node) != id) {
            pol_detach(p, id);
            continue;
        }
        uint64_t until_ns;
        double value = pol_value_until(p, id, &until_ns);
        if (value > cand->key) {
            pol_touch_top(p, id, value, until_ns);
            continue;
        }
        bool there = snapshot_there(p, cand, &info);
        if (there && !spared(&info)) {
            found = id;
            going_note(p, value);
            *value_out = value;
            break;
        }
        if (second == 0 && info.state_locks == 0) {
            second = id;
            second_value = value;
        }
        p->aside[aside++] = id;
        pol_heap_take(&p->order, id);
    }
    while (aside > base) {
        uint32_t id = p->aside[--aside];
        pol_key_set(p, id, pol_cand(p, id)->key);
    }
    if (found == 0 && second != 0 && !p->options.spare_paths) {
        found = second;
        *value_out = second_value;
    }
    return found != 0 && *value_out == HUGE_VAL ? 0 : found; /* pinned */
}

struct span { double low, high; };

static void span_add(struct span *span, double x)
{
    if (x < span->low) span->low = x;
    if (x > span->high) span->high = x;
}

static double normal(const struct span *span, double x)
{
    return span->high > span->low ? (x - span->low) / (span->high - span->low) : x - span->low;
}

/* Marconi's two terms. */
static void marconi_terms(const struct sc_policy *p, uint32_t id, double *recent, double *efficient)
{
    const struct sc_cost *cost = &p->options.cost;
    const struct cand *cand = pol_cand(p, id);
    uint32_t up = pol_up(p, cand->node);
    *recent = 1.0 / ((double)(p->requests - cand->stamp) + 1);
    *efficient = sc_cost_prefill_s(cost, up ? pol_cand(p, up)->len : 0, cand->len) /
        (cost->state_bytes + cost->kv_token_bytes * cand->len);
}

static uint32_t victim_marconi(struct sc_policy *p, double *value_out)
{
    struct span recents = {HUGE_VAL, -HUGE_VAL}, efficients = {HUGE_VAL, -HUGE_VAL};
    struct sc_radix_node_info info;
    double recent = 0, efficient = 0;
    uint32_t best = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < p->order.count; i++) {
            uint32_t id = p->order.items[i].id;
            struct cand *cand = pol_cand(p, id);
            if (!snapshot_there(p, cand, &info) || spared(&info)) continue;
            if (cand->pin_until_ns > p->wall_ns) continue;
            marconi_terms(p, id, &recent, &efficient);
            if (pass == 0) {
                span_add(&recents, recent);
                span_add(&efficients, efficient);
                continue;
            }
            if (info.child_count > 1) continue;
            double value = normal(&recents, recent) +
                p->options.marconi_alpha * normal(&efficients, efficient);
            if (best == 0 || value < *value_out || (value == *value_out && id < best)) {
                best = id;
                *value_out = value;
            }
        }
    }
    return best;
}

static uint32_t victim_any(struct sc_policy *p, double *value_out)
{
    if (p->options.order == SC_POLICY_TREE) return 0;
    return p->options.order == SC_POLICY_MARCONI ? victim_marconi(p, value_out)
                                                 : victim_find(p, 0, value_out);
}

sc_node sc_policy_victim(struct sc_policy *p, double *value_out)
{
    double value = 0;
    uint32_t id = p ? victim_any(p, &value) : 0;
    if (id == 0) return SC_NODE_NONE;
    if (value_out) *value_out = value;
    return pol_cand(p, id)->node;
}

sc_node sc_policy_victim_naive(struct sc_policy *p, double *value_out)
{
    struct sc_radix_node_info info;
    uint32_t best = 0;
    double least = 0;
    for (uint32_t id = 1; p && id <= p->cand_used; id++) {
        const struct cand *cand = pol_cand(p, id);
        if (!cand->live || cand->node == 0 || !snapshot_there(p, cand, &info)) continue;
        if (spared(&info)) continue;
        double value = pol_value(p, id);
        if (value < HUGE_VAL && (best == 0 || value < least)) {
            best = id;
            least = value;
        }
    }
    if (best == 0) return SC_NODE_NONE;
    if (value_out) *value_out = least;
    return pol_cand(p, best)->node;
}

/* Drops the snapshot of a candidate and what hangs on it alone. */
static sc_status cand_evict(struct sc_policy *p, uint32_t id, double value,
    const struct sc_radix_sink *sink)
{
    sc_node node = pol_cand(p, id)->node, rest = SC_NODE_NONE;
    if (p->options.leaving) p->options.leaving(p->options.leaving_ctx, node);
    if (p->options.order == SC_POLICY_GITTINS) {
        uint32_t old = pol_cand(p, id)->supersedes;
        if (old != 0 && pol_cand(p, old)->kind == KIND_SUPERSEDED && pol_up(p, node) == old) {
            pol_class_copy(p, old, id); /* it stands for the conversation again */
        }
    }
    struct sc_radix *radix = (struct sc_radix *)p->options.radix;
    if (p->options.keep_kv) {
        SC_TRY(sc_radix_snapshot_drop(radix, node, sink));
        rest = node;
    } else {
        SC_TRY(sc_radix_evict_node(radix, node, sink, &rest));
    }
    if (p->options.order == SC_POLICY_GDSF && value > p->age) p->age = value;
    pol_detach(p, id);
    p->evicted++;
    if (p->options.order >= SC_POLICY_GDSF) pol_tail_changed(p, rest);
    return SC_OK;
}

static double bytes_held(const struct sc_policy *p)
{
    struct sc_radix_stats stats;
    sc_radix_stats_get(p->options.radix, &stats);
    return (double)stats.snapshot_count * p->options.cost.state_bytes +
        (double)stats.token_count * p->options.cost.kv_token_bytes;
}

/* Takes victims off the order until `bytes` would be free: `aside[0 .. *taken_out)`. False if one
 * of them is worth more than what wants to come in: then nothing may go. */
static bool duel_won(struct sc_policy *p, double bytes, double bar, uint32_t *taken_out)
{
    uint32_t taken = 0;
    double freed = 0, value = 0;
    bool won = true;
    while (won && freed < bytes) {
        uint32_t id = victim_find(p, taken, &value);
        won = id != 0 && value <= bar;
        if (!won) break;
        freed += pol_bytes(p, pol_cand(p, id));
        pol_heap_take(&p->order, id);
        p->aside[taken++] = id;
    }
    *taken_out = taken;
    return won;
}

/* The duel and its consequences. */
static sc_status duel(struct sc_policy *p, double bytes, double bar,
    const struct sc_radix_sink *sink, double *freed_out, bool *won_out)
{
    double before = bytes_held(p);
    uint32_t taken = 0, gone = 0;
    sc_status status = SC_OK;
    *won_out = duel_won(p, bytes, bar, &taken);
    while (*won_out && status == SC_OK && gone < taken && *freed_out < bytes) {
        status = cand_evict(p, p->aside[gone], 0, sink);
        if (status == SC_OK) gone++;
        *freed_out = before - bytes_held(p);
    }
    for (; gone < taken; gone++) pol_key_set(p, p->aside[gone], pol_cand(p, p->aside[gone])->key);
    return status;
}

/* The tree's own order: a leaf with its KV, or a snapshot alone. */
static sc_status evict_tree(struct sc_policy *p, const struct sc_radix_sink *sink, bool *any_out)
{
    struct sc_radix *radix = (struct sc_radix *)p->options.radix;
    uint64_t tokens = 0;
    uint32_t count = 0;
    if (p->options.keep_kv) {
        SC_TRY(sc_radix_evict_state(radix, 1, sink, &count));
    } else {
        SC_TRY(sc_radix_evict_kv(radix, 1, sink, &tokens, &count));
    }
    *any_out = tokens > 0 || count > 0;
    p->evicted += *any_out;
    return SC_OK;
}

sc_status sc_policy_room(struct sc_policy *p, double bytes, double bar,
    const struct sc_radix_sink *sink, double *bytes_out)
{
    SC_REQUIRE(p != NULL && bytes_out != NULL && !isnan(bar) && !isnan(bytes));
    SC_REQUIRE(sink != NULL && sink->snapshot != NULL);
    double before = bytes_held(p), freed = 0;
    sc_status status = SC_OK;
    bool won = true;
    if (bar < HUGE_VAL && p->options.order == SC_POLICY_GITTINS) {
        status = duel(p, bytes, bar, sink, &freed, &won);
        bar = HUGE_VAL; /* what the duel found is what is still needed */
    }
    while (status == SC_OK && won && freed < bytes) {
        if (p->options.order == SC_POLICY_TREE) {
            bool any = false;
            status = evict_tree(p, sink, &any);
            if (!any) break;
        } else {
            double value = 0;
            uint32_t id = victim_any(p, &value);
            if (id == 0 || value > bar) break;
            status = cand_evict(p, id, value, sink);
        }
        freed = before - bytes_held(p);
    }
    if (status != SC_OK) return status;
    if (freed < bytes) p->refused++;
    *bytes_out = freed;
    return SC_OK;
}

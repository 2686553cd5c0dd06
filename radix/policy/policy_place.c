/* SPDX-License-Identifier: Apache-2.0 */
/* Where to save: the points of a request that need no statistics, and in which turn they ask. */
#include "policy_internal.h"

struct sc_policy_point *pol_end_point(const struct sc_policy_path *path)
{
    for (uint32_t i = path->point_count; i-- > 0;) {
        struct sc_policy_point *point = &path->points[i];
        if (point->kind == KIND_FIRST || point->kind == KIND_TURN) return point;
    }
    return NULL;
}

/* Keeps the array sorted; a position that is there already keeps its kind. False: no room. */
bool pol_point_add(struct sc_policy_path *path, uint32_t len, uint8_t kind)
{
    if (len == path->held_len) return true;
    uint32_t at = path->point_count;
    while (at > 0 && path->points[at - 1].len >= len) at--;
    if (at < path->point_count && path->points[at].len == len) return true;
    if (path->point_count == path->point_cap) return false;
    memmove(&path->points[at + 1], &path->points[at],
        (path->point_count - at) * sizeof path->points[0]);
    path->points[at] = (struct sc_policy_point){.len = len, .kind = kind};
    path->point_count++;
    return true;
}

static void place_interval(const struct sc_policy *p, struct sc_policy_path *path, uint32_t end)
{
    uint64_t step = p->options.interval_tokens, first = path->state_len / step + 1;
    uint64_t last = end / step, room = path->point_cap - path->point_count;
    if (last >= first && last - first >= room) first = last + 1 - room; /* the deepest ones */
    for (; first <= last; first++) pol_point_add(path, (uint32_t)(first * step), KIND_BRANCH);
}

static void place_log(const struct sc_policy *p, struct sc_policy_path *path, uint32_t end)
{
    uint32_t block = p->options.block_tokens;
    for (uint64_t back = block; back < end && end - back > path->state_len; back *= 2) {
        if (!pol_point_add(path, (uint32_t)(end - back), KIND_BRANCH)) return;
    }
}

void pol_place_plain(const struct sc_policy *p, struct sc_policy_path *path)
{
    uint32_t block = p->options.block_tokens, placement = p->options.placement;
    uint32_t end = pol_end(p, path);
    if (placement & SC_PLACE_BRANCH) {
        uint32_t held = path->kv_len < path->len_max ? path->kv_len : path->len_max;
        held -= held % block;
        if (held > path->state_len) pol_point_add(path, held, KIND_BRANCH);
    }
    bool known = !p->model || path->block_count > 0; /* what has no block is not learned about */
    if (placement & SC_PLACE_END && end > path->state_len && known) {
        pol_point_add(path, end, KIND_FIRST);
    }
    if (placement & SC_PLACE_GIVEN) {
        for (uint32_t i = 0; i < path->given_count; i++) {
            uint32_t len = path->given[i] - path->given[i] % block;
            if (len <= path->state_len || len > end) continue;
            if (p->model && len / block == end / block && len != end) continue; /* as good */
            pol_point_add(path, len, KIND_BRANCH);
        }
    }
    if (placement & SC_PLACE_INTERVAL && p->options.interval_tokens > 0) {
        place_interval(p, path, end);
    }
    if (placement & SC_PLACE_LOG) place_log(p, path, end - end % block);
}

static uint32_t more_kv(const struct sc_policy_path *path, uint32_t len)
{
    return len > path->kv_len ? len - path->kv_len : 0;
}

/* End and near-end compete: whoever is worth more per byte asks first, and the other one then asks
 * for what it adds. */
void pol_place_order(struct sc_policy *p, struct sc_policy_path *path)
{
    const struct sc_cost *cost = &p->options.cost;
    uint32_t near = UINT32_MAX, end = UINT32_MAX, before_end = path->state_len;
    path->turn_count = 0;
    for (uint32_t i = 0; i < path->point_count; i++) {
        uint8_t kind = path->points[i].kind;
        if (kind == KIND_NEAR) {
            near = i;
            continue;
        }
        if (kind == KIND_FIRST || kind == KIND_TURN) {
            end = i;
        } else {
            before_end = path->points[i].len;
        }
        path->points[path->turn_count++].turn = (uint16_t)i;
    }
    if (near == UINT32_MAX || end == UINT32_MAX) return;
    if (p->model->events < SC_POLICY_COLD_EVENTS) return;
    const struct sc_policy_point *a = &path->points[near], *b = &path->points[end];
    double rate_end = pol_rate(p, pol_cand(p, b->cand));
    double rate_near = pol_rate(p, pol_cand(p, a->cand)) + rate_end;
    double value_end = rate_end * sc_cost_prefill_s(cost, before_end, b->len) /
        (cost->state_bytes + more_kv(path, b->len) * cost->kv_token_bytes);
    double value_near = rate_near * sc_cost_prefill_s(cost, before_end, a->len) /
        (cost->state_bytes + more_kv(path, a->len) * cost->kv_token_bytes);
    path->points[path->turn_count++].turn = (uint16_t)near;
    if (value_near * SC_POLICY_NEAR_FACTOR > value_end) {
        path->near_rate = rate_near;
        path->points[path->turn_count - 1].turn = (uint16_t)end;
        path->points[path->turn_count - 2].turn = (uint16_t)near;
    }
}

/* What a point is worth per byte if it comes in now. */
static double point_value(struct sc_policy *p, const struct sc_policy_path *path,
    const struct sc_policy_point *point)
{
    const struct sc_cost *cost = &p->options.cost;
    uint32_t id = pol_alive(p, point->cand, point->generation);
    if (id == 0) return 0;
    uint32_t below = path->state_len; /* deepest snapshot of the path before the point */
    bool end_stored = false;
    for (uint32_t i = 0; i < path->point_count; i++) {
        const struct sc_policy_point *other = &path->points[i];
        if (other->stored && other->len < point->len) below = other->len;
        if (other->stored && (other->kind == KIND_FIRST || other->kind == KIND_TURN)) {
            end_stored = true;
        }
    }
    double rate = pol_rate(p, pol_cand(p, id));
    if (point->kind == KIND_NEAR && end_stored) {
        return SC_POLICY_NEAR_FACTOR * rate * sc_cost_prefill_s(cost, below, point->len) /
            cost->state_bytes;
    }
    if (point->kind == KIND_NEAR && path->near_rate > 0) rate = path->near_rate;
    uint32_t from = below, tokens = more_kv(path, point->len);
    if (below <= path->state_len && path->base_len < path->state_len) {
        from = path->base_len; /* it takes the place of the snapshot that was used */
        if (point->len - from > tokens) tokens = point->len - from;
    }
    double value = rate * sc_cost_prefill_s(cost, from, point->len) /
        (cost->state_bytes + tokens * cost->kv_token_bytes);
    return point->kind == KIND_NEAR ? SC_POLICY_NEAR_FACTOR * value : value;
}

static bool ask_point(struct sc_policy *p, struct sc_policy_path *path, uint32_t i,
    double free_bytes, struct sc_policy_ask *ask)
{
    struct sc_policy_point *point = &path->points[i];
    uint32_t id = pol_alive(p, point->cand, point->generation);
    if (p->model && id == 0) return false;
    /* there already */
    if (id != 0 && pol_cand(p, id)->node != 0 && pol_cand(p, id)->len == point->len) return false;
    uint32_t tokens = more_kv(path, point->len);
    *ask = (struct sc_policy_ask){.first = i, .count = 1, .bar = HUGE_VAL,
        .kv_tokens = tokens,
        .bytes = p->options.cost.state_bytes + tokens * p->options.cost.kv_token_bytes};
    bool cold = p->model && p->model->events < SC_POLICY_COLD_EVENTS;
    if (p->options.admission == SC_ADMIT_DUEL && p->model && ask->bytes > free_bytes &&
        (!cold || point->kind == KIND_NEAR)) {
        ask->bar = point_value(p, path, point);
    }
    return true;
}

bool sc_policy_ask(struct sc_policy *p, struct sc_policy_path *path, uint32_t point,
    double free_bytes, struct sc_policy_ask *ask_out)
{
    if (!p || !path || !ask_out || point >= path->point_count) return false;
    return ask_point(p, path, point, free_bytes, ask_out);
}

double sc_policy_bar(struct sc_policy *p, const struct sc_policy_path *path, uint32_t len)
{
    const struct sc_policy_point *end = p && path ? pol_end_point(path) : NULL;
    if (!p || !p->model || p->options.admission != SC_ADMIT_DUEL) return HUGE_VAL;
    if (p->model->events < SC_POLICY_COLD_EVENTS) return HUGE_VAL;
    uint32_t id = end ? pol_alive(p, end->cand, end->generation) : 0;
    if (id == 0 || len <= path->base_len) return 0;
    const struct sc_cost *cost = &p->options.cost;
    return pol_rate(p, pol_cand(p, id)) * sc_cost_prefill_s(cost, path->base_len, len) /
        (cost->state_bytes + more_kv(path, len) * cost->kv_token_bytes);
}

void sc_policy_promise(struct sc_policy_path *path, uint32_t point, bool stored)
{
    if (path && point < path->point_count) path->points[point].stored = stored;
}

static bool next_each(struct sc_policy *p, struct sc_policy_path *path, double free_bytes,
    struct sc_policy_ask *ask)
{
    while (path->turn < path->turn_count) {
        uint32_t i = path->points[path->turn++].turn;
        if (ask_point(p, path, i, free_bytes, ask)) return true;
    }
    return false;
}

bool sc_policy_next(struct sc_policy *p, struct sc_policy_path *path, double free_bytes,
    struct sc_policy_ask *ask_out)
{
    if (!p || !path || !ask_out || path->point_count == 0) return false;
    if (p->options.admission != SC_ADMIT_GROUP) return next_each(p, path, free_bytes, ask_out);
    if (path->turn > 0) return false;
    path->turn = 1;
    uint32_t tokens = more_kv(path, path->points[path->point_count - 1].len);
    *ask_out = (struct sc_policy_ask){.count = path->point_count, .bar = HUGE_VAL,
        .kv_tokens = tokens, .bytes = path->point_count * p->options.cost.state_bytes +
            tokens * p->options.cost.kv_token_bytes};
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a resident snapshot is worth, and which values change when the tree does.
 *
 *   root ---- u ------- p ---- v        u: next snapshot above v        gain:  prefill of (u, v]
 *              `--- w   `--- x          v a leaf: dropping it frees S and the KV from p to v
 *                                       u not a leaf: dropping it frees S alone
 *
 * A superseded snapshot (resumed once and extended linearly by v) does not count as "next above"
 * for v: else both are worth little, and both are lost.
 *
 * Keys in the heap must not exceed values (policy.c (3)). Values fall when
 *   a snapshot appears above           pol_below_changed
 *   a branch beside the tail goes, or the snapshot that ended it    pol_tail_changed
 *   the last branch below goes         pol_tail_changed
 *   age passes into the next bucket                                 see below
 *   a pin or a life ends                                            timers
 *   the class or the model changes     pol_touch by whoever changes it
 * Where they rise the heap is told when the entry comes to its top.
 *
 * Ages pass all the time, so a key looks ahead: it is the least of the values up to
 * `keys_until_ns`, a time that lies behind the next refit, as far as can be foretold; a refit works
 * out all keys anew, and so does that time if it comes first. Only what is worth so little that it
 * could go before (`going`) has the value of its present age for a key, and a timer for the end of
 * that age. */
#include "policy_internal.h"

struct above { uint32_t id, len; sc_node node; };

/* Which ages a value is of: the present bucket, or all up to `keys_until_ns`. */
enum ages { AGES_NOW, AGES_AHEAD };

/* How far keys look ahead, in times between refits, and at least. */
enum { KEYS_AHEAD = 2, KEYS_AHEAD_LEAST_NS = 1000000000 };
enum { ITEMS_PREFETCHED = 8 };

static bool step_get(const struct sc_policy *p, sc_node node, struct sc_radix_step *step)
{
    return node != SC_NODE_NONE && sc_radix_step_get(p->options.radix, node, step);
}

uint32_t pol_resident(const struct sc_policy *p, sc_node node)
{
    return node < p->by_node_cap ? p->by_node[node] : 0;
}

uint32_t pol_at(const struct sc_policy *p, sc_node node, uint32_t snapshot)
{
    uint32_t id = snapshot != 0 ? pol_resident(p, node) : 0;
    return id != 0 && pol_cand(p, id)->snapshot == snapshot ? id : 0;
}

uint32_t pol_now(const struct sc_policy *p, sc_node node)
{
    return pol_at(p, node, sc_radix_snapshot_get(p->options.radix, node));
}

/* The next node strictly above that carries a snapshot. */
static struct above snapshot_above(const struct sc_policy *p, sc_node node)
{
    struct sc_radix_step step;
    if (!step_get(p, node, &step)) return (struct above){0};
    for (sc_node at = step.parent; step_get(p, at, &step); at = step.parent) {
        if (step.snapshot == 0) continue;
        return (struct above){pol_at(p, at, step.snapshot), step.end, at};
    }
    return (struct above){0};
}

uint32_t pol_up(const struct sc_policy *p, sc_node node)
{
    return snapshot_above(p, node).id;
}

/* What a reuse of `id` saves and what goes with it, in one walk up: to the snapshot that resumes
 * what `id` would have (gittins: superseded ones that it stands for are passed), and, from a leaf,
 * over the KV that nobody else needs. */
static void gain_bytes(struct sc_policy *p, uint32_t id)
{
    if (p->options.order < SC_POLICY_GDSF) return;
    bool pass = p->options.order == SC_POLICY_GITTINS;
    const struct sc_cost *cost = &p->options.cost;
    struct cand *cand = pol_cand(p, id);
    struct sc_radix_step step;
    uint32_t up_len = 0, tail = 0;
    bool there = step_get(p, cand->node, &step) && step.snapshot == cand->snapshot;
    if (there) {
        bool leaf = step.child_count == 0 && cost->kv_token_bytes > 0, exclusive = leaf;
        uint32_t start = step.start, stands = id; /* superseded ones that supersede others, too */
        for (sc_node at = step.parent; step_get(p, at, &step); at = step.parent) {
            if (step.snapshot != 0) {
                uint32_t above = pol_at(p, at, step.snapshot);
                if (!pass || above == 0 || pol_cand(p, above)->kind != KIND_SUPERSEDED ||
                    pol_cand(p, above)->superseded_by != stands) {
                    up_len = step.end;
                    break;
                }
                stands = above;
            }
            exclusive = exclusive && step.child_count == 1;
            if (exclusive) start = step.start;
        }
        tail = leaf ? cand->len - start : 0;
    }
    cand->tail = tail;
    /* What has left is worth nothing: soon it comes to the heap's top and is forgotten. */
    cand->per_byte =
        there ? sc_cost_saved_s(cost, p->options.tier, up_len, cand->len) / pol_bytes(p, cand) : 0;
}

/* How often it is wanted, per second; GDSF: how often it was. As pol_rate. */
static double rate_of(struct sc_policy *p, const struct cand *cand, enum ages ages,
    uint64_t *until_ns)
{
    if (p->options.order != SC_POLICY_GITTINS) return cand->freq;
    const struct cand *end = cand->kind == KIND_NEAR && cand->near_of != 0
        ? pol_cand(p, cand->near_of) : NULL;
    if (end && end->node != 0) end = NULL; /* else it serves the end's requests, too */
    if (ages == AGES_NOW) {
        double rate = pol_rate_bucket(p, cand, until_ns);
        return end ? rate + pol_rate_bucket(p, end, until_ns) : rate;
    }
    uint64_t last_ns = p->model->keys_until_ns;
    if (last_ns < p->now_ns)
        last_ns = p->now_ns;
    double rate = pol_rate_least(p, cand, last_ns);
    return end ? rate + pol_rate_least(p, end, last_ns) : rate;
}

/* The policy's time at which the caller's may be `wall_ns`: not after it, since it runs faster. */
static uint64_t later(const struct sc_policy *p, uint64_t wall_ns)
{
    uint64_t wait_ns = wall_ns - p->wall_ns;
    return wait_ns < UINT64_MAX - p->now_ns ? p->now_ns + wait_ns : UINT64_MAX;
}

/* The value, given what a reuse saves per byte, or a lower bound of it and of those to come. */
static double value_of(struct sc_policy *p, const struct cand *cand, enum ages ages,
    uint64_t *until_ns)
{
    if (cand->pin_until_ns > p->wall_ns) {
        *until_ns = later(p, cand->pin_until_ns);
        return HUGE_VAL;
    }
    if (cand->ttl_ns != 0) {
        bool ends = cand->ttl_ns < UINT64_MAX - cand->used_ns;
        uint64_t end_ns = ends ? cand->used_ns + cand->ttl_ns + 1 : UINT64_MAX;
        if (p->wall_ns >= end_ns) return 0;
        end_ns = later(p, end_ns);
        if (end_ns < *until_ns) *until_ns = end_ns;
    }
    double value = p->options.order >= SC_POLICY_GDSF
                       ? cand->base + rate_of(p, cand, ages, until_ns) * cand->per_byte
                       : (double)cand->stamp;
    return cand->priority != 0 ? ldexp(value, cand->priority) : value;
}

double pol_value_until(struct sc_policy *p, uint32_t id, uint64_t *until_ns)
{
    gain_bytes(p, id);
    *until_ns = UINT64_MAX;
    return value_of(p, pol_cand(p, id), AGES_NOW, until_ns);
}

double pol_value(struct sc_policy *p, uint32_t id)
{
    uint64_t until_ns;
    return pol_value_until(p, id, &until_ns);
}

static uint64_t key_bits(double key)
{
    uint64_t bits;
    static_assert(sizeof bits == sizeof key, "a double has 64 bits");
    SC_ASSERT_DEBUG(key >= 0);
    memcpy(&bits, &key, sizeof bits);
    return bits;
}

void pol_key_set(struct sc_policy *p, uint32_t id, double key)
{
    pol_cand(p, id)->key = key;
    pol_heap_put(&p->order, id, key_bits(key));
}

/* The key, good until `until_ns`. */
static void key_change(struct sc_policy *p, uint32_t id, double key, uint64_t until_ns)
{
    pol_key_set(p, id, key);
    /* One that rings too early costs another look; moving it each time costs more. */
    uint32_t place = p->timers.places[id];
    uint64_t set_ns = place ? p->timers.items[place - 1].key : UINT64_MAX;
    if (until_ns < set_ns || (place && set_ns <= p->now_ns)) {
        if (until_ns < UINT64_MAX) {
            pol_heap_put(&p->timers, id, until_ns);
        } else {
            pol_heap_take(&p->timers, id);
        }
    }
}

/* Time or statistics have changed, the tree has not (or only to its advantage). */
void pol_touch_time(struct sc_policy *p, uint32_t id)
{
    struct cand *cand = pol_cand(p, id);
    uint64_t until_ns = UINT64_MAX;
    double key = value_of(p, cand, AGES_AHEAD, &until_ns);
    if (key <= p->going && p->model) {
        until_ns = UINT64_MAX;
        key = value_of(p, cand, AGES_NOW, &until_ns);
    }
    key_change(p, id, key, until_ns);
}

void pol_touch_top(struct sc_policy *p, uint32_t id, double value, uint64_t until_ns)
{
    struct cand *cand = pol_cand(p, id);
    if (value > p->going && p->model) {
        uint64_t ahead_ns = UINT64_MAX;
        double ahead = value_of(p, cand, AGES_AHEAD, &ahead_ns);
        if (ahead > p->going && ahead > cand->key) {
            value = ahead;
            until_ns = ahead_ns;
        }
    }
    key_change(p, id, value, until_ns);
}

/* The time up to which keys are lower bounds: past the next refit, as far as can be foretold. */
static void keys_extend(struct sc_policy *p)
{
    struct model *model = p->model;
    uint64_t since_ns = p->now_ns - model->fit_ns;
    uint64_t ahead_ns = since_ns > model->fit_gap_ns ? since_ns : model->fit_gap_ns;
    model->keys_until_ns = p->now_ns + KEYS_AHEAD * ahead_ns + KEYS_AHEAD_LEAST_NS;
}

void pol_touch_all(struct sc_policy *p, bool refitted)
{
    struct order_heap *order = &p->order, *timers = &p->timers;
    keys_extend(p);
    for (uint32_t i = 0; i < timers->count; i++) timers->places[timers->items[i].id] = 0;
    timers->count = 0;
    for (uint32_t i = 0; i < order->count; i++) {
        uint32_t id = order->items[i].id;
        uint64_t until_ns = UINT64_MAX;
        struct cand *cand = pol_cand(p, id);
        uint32_t later = i + ITEMS_PREFETCHED < order->count ? i + ITEMS_PREFETCHED : i;
        __builtin_prefetch(pol_cand(p, order->items[later].id), 1);
        if (refitted && cand->registered) {
            cand->level = pol_level(p->model, cand->stratum, cand->features);
        }
        cand->key = value_of(p, cand, AGES_AHEAD, &until_ns);
        order->items[i].key = key_bits(cand->key);
        if (until_ns < UINT64_MAX) {
            timers->items[timers->count++] = (struct heap_item){until_ns, id};
        }
    }
    pol_heap_build(order);
    pol_heap_build(timers);
}

void pol_touch(struct sc_policy *p, uint32_t id)
{
    struct cand *cand = pol_cand(p, id);
    if (cand->node != 0 && p->options.order != SC_POLICY_TREE) {
        gain_bytes(p, id);
        pol_touch_time(p, id);
    }
    if (cand->near_end != 0 && p->order.places[cand->near_end] != 0) {
        pol_touch_time(p, cand->near_end); /* worth less while its end is here */
    }
}

/* In a row of superseded ones, those beside it are neighbours now. */
static void links_close(struct sc_policy *p, struct cand *cand)
{
    uint32_t above = cand->supersedes, below = cand->superseded_by;
    if (above == 0 || below == 0 || pol_cand(p, above)->kind != KIND_SUPERSEDED) return;
    pol_cand(p, above)->superseded_by = below;
    pol_cand(p, below)->supersedes = above;
    cand->supersedes = cand->superseded_by = 0;
}

void pol_detach(struct sc_policy *p, uint32_t id)
{
    struct cand *cand = pol_cand(p, id);
    SC_ASSERT(cand->node != 0);
    links_close(p, cand);
    pol_heap_take(&p->order, id);
    pol_heap_take(&p->timers, id);
    p->by_node[cand->node] = 0;
    cand->node = 0;
    cand->snapshot = 0;
    if (cand->ghost == 0) pol_cand_free(p, id);
}

/* A snapshot has come to stand on `node`: those below it are worth less. */
void pol_below_changed(struct sc_policy *p, sc_node node)
{
    struct sc_radix_step step;
    if (!step_get(p, node, &step)) return;
    uint32_t visited = 0;
    const struct sc_radix *radix = p->options.radix;
    sc_node at = sc_radix_child_get(radix, node);
    uint32_t floor = step.end;
    while (at != SC_NODE_NONE && visited++ < CHILD_WALK_MAX && step_get(p, at, &step)) {
        uint32_t id = pol_at(p, at, step.snapshot);
        if (id != 0) pol_touch(p, id);
        bool stop = step.snapshot != 0 && (id == 0 || pol_cand(p, id)->kind != KIND_SUPERSEDED);
        sc_node next = stop ? SC_NODE_NONE : sc_radix_child_get(radix, at);
        while (next == SC_NODE_NONE) { /* go on beside, or beside an ancestor */
            next = sc_radix_sibling_get(radix, at);
            if (next != SC_NODE_NONE || step.start <= floor) break;
            at = step.parent;
            if (!step_get(p, at, &step)) return;
        }
        at = next;
    }
}

/* What goes with a leaf has grown, or `node` has become one. */
void pol_tail_changed(struct sc_policy *p, sc_node node)
{
    struct sc_radix_step step;
    for (sc_node at = node; step_get(p, at, &step) && step.child_count <= 1;
         at = sc_radix_child_get(p->options.radix, at)) {
        uint32_t id = pol_at(p, at, step.snapshot);
        if (id == 0) continue;
        pol_touch(p, id);
        if (at != node && pol_cand(p, id)->kind != KIND_SUPERSEDED) return;
    }
}

void pol_class_copy(struct sc_policy *p, uint32_t to, uint32_t from)
{
    struct cand *a = pol_cand(p, to);
    const struct cand *b = pol_cand(p, from);
    if (!a->registered || !b->registered) return;
    uint32_t below = a->kind == KIND_SUPERSEDED ? a->superseded_by : 0;
    a->kind = b->kind;
    a->stratum = b->stratum;
    a->level = b->level;
    a->born_ns = b->born_ns;
    memcpy(a->features, b->features, sizeof a->features);
    pol_touch(p, to);
    if (below != 0 && below != from) pol_touch(p, below); /* it counts as above that one again */
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Intervals of demand: a ring of the newest `cap`, and what they have in common.
 *
 *      ring     [ s s s s s s s s s ]  oldest overwritten
 *                 |   |   '--.
 *      profiles   A   B      A         stratum and features; counted, found by a table
 *
 * A fit multiplies the factors of a profile once, however many intervals have it. The table is open
 * addressing with linear probing; removal shifts back. There are never more profiles than
 * intervals, so that nothing here needs memory after creation. */
#include "base/prng.h"
#include "policy_internal.h"

static size_t open_words(uint32_t cap)
{
    return ((size_t)cap + 63) / 64;
}

bool pol_samples_create(struct sc_policy *p, uint32_t cap)
{
    struct model *model = p->model;
    uint64_t slots = 64, count = (uint64_t)cap + 1;
    while (slots < 2 * count) slots *= 2;
    model->cap = cap;
    model->table_mask = (uint32_t)(slots - 1);
    model->ring = sc_heap_calloc(&p->heap, cap, sizeof *model->ring);
    model->starts_s = sc_heap_calloc(&p->heap, cap, sizeof *model->starts_s);
    model->open = sc_heap_calloc(&p->heap, open_words(cap), sizeof *model->open);
    model->profiles = sc_heap_calloc(&p->heap, count, sizeof *model->profiles);
    model->sums = sc_heap_calloc(&p->heap, count, sizeof *model->sums);
    model->table = sc_heap_calloc(&p->heap, slots, sizeof *model->table);
    p->bytes += cap * (sizeof *model->ring + sizeof *model->starts_s) +
                open_words(cap) * sizeof *model->open + slots * sizeof *model->table +
                count * (sizeof *model->profiles + sizeof *model->sums);
    return model->ring && model->starts_s && model->open && model->profiles && model->sums &&
        model->table;
}

void pol_samples_destroy(struct sc_policy *p)
{
    struct model *model = p->model;
    size_t count = (size_t)model->cap + 1;
    sc_heap_free(&p->heap, model->ring, model->cap * sizeof *model->ring);
    sc_heap_free(&p->heap, model->starts_s, model->cap * sizeof *model->starts_s);
    sc_heap_free(&p->heap, model->open, open_words(model->cap) * sizeof *model->open);
    sc_heap_free(&p->heap, model->profiles, count * sizeof *model->profiles);
    sc_heap_free(&p->heap, model->sums, count * sizeof *model->sums);
    sc_heap_free(&p->heap, model->table,
        ((size_t)model->table_mask + 1) * sizeof *model->table);
}

/* --- profiles --- */

static uint64_t key_of(uint8_t stratum, const uint8_t *features)
{
    static_assert(LEVELS_PER_FEATURE == 16, "four bits each");
    uint64_t key = (uint64_t)stratum + 1;
    for (int j = 0; j < FEATURES; j++) key = key << 4 | features[j];
    return key;
}

static uint32_t home(const struct model *model, uint64_t key)
{
    return (uint32_t)sc_mix64(key) & model->table_mask;
}

static uint32_t profile_take(struct model *model, uint8_t stratum, const uint8_t *features)
{
    uint64_t key = key_of(stratum, features);
    uint32_t at = home(model, key);
    for (; model->table[at] != 0; at = (at + 1) & model->table_mask) {
        struct profile *profile = &model->profiles[model->table[at]];
        if (profile->key != key) continue;
        profile->samples++;
        model->stratum_samples[stratum]++;
        return model->table[at];
    }
    uint32_t id = model->profile_free;
    if (id != 0) {
        model->profile_free = model->profiles[id].next_free;
    } else {
        id = ++model->profile_used;
        SC_ASSERT(id <= model->cap);
    }
    struct profile *profile = &model->profiles[id];
    *profile = (struct profile){.key = key, .samples = 1, .stratum = stratum};
    for (int j = 0; j < FEATURES; j++) {
        profile->at[j] = (uint16_t)pol_multiplier_at(stratum, j, features[j]);
    }
    model->table[at] = id;
    model->stratum_samples[stratum]++;
    return id;
}

static void table_remove(struct model *model, uint32_t id)
{
    uint32_t mask = model->table_mask, at = home(model, model->profiles[id].key);
    while (model->table[at] != id) at = (at + 1) & mask;
    for (uint32_t next = (at + 1) & mask; model->table[next] != 0; next = (next + 1) & mask) {
        uint32_t own = home(model, model->profiles[model->table[next]].key);
        if (((next - own) & mask) < ((next - at) & mask)) continue;
        model->table[at] = model->table[next];
        at = next;
    }
    model->table[at] = 0;
}

static void profile_give(struct model *model, uint32_t id)
{
    if (id == 0) return;
    model->stratum_samples[model->profiles[id].stratum]--;
    if (--model->profiles[id].samples > 0) return;
    table_remove(model, id);
    model->profiles[id].next_free = model->profile_free;
    model->profile_free = id;
}

/* --- samples --- */

static void open_set(struct model *model, uint64_t at, bool open)
{
    uint64_t bit = (uint64_t)1 << at % 64;
    model->open[at / 64] = open ? model->open[at / 64] | bit : model->open[at / 64] & ~bit;
}

/* One that was wanted counts, or (`sign` -1) counts no longer. */
static void event_count(struct model *model, const struct sample *sample, float sign)
{
    const struct profile *profile = &model->profiles[sample->profile];
    model->events_at[sample->cell] += sign;
    for (int j = 0; j < FEATURES; j++) model->observed[profile->at[j]] += sign;
}

void pol_sample_open(struct sc_policy *p, struct cand *cand)
{
    struct model *model = p->model;
    struct sample *sample = &model->ring[model->count % model->cap];
    if (sample->event) event_count(model, sample, -1);
    profile_give(model, sample->profile);
    open_set(model, model->count % model->cap, true);
    model->starts_s[model->count % model->cap] = p->now_s;
    *sample = (struct sample){.cell = (uint16_t)(cand->stratum * AGES),
        .profile = profile_take(model, cand->stratum, cand->features)};
    cand->open = ++model->count;
}

/* The interval that runs has become another one of its class. */
void pol_sample_refine(struct sc_policy *p, const struct cand *cand)
{
    struct model *model = p->model;
    if (cand->open == 0 || model->count - (cand->open - 1) > model->cap) return;
    struct sample *sample = &model->ring[(cand->open - 1) % model->cap];
    profile_give(model, sample->profile);
    sample->profile = profile_take(model, cand->stratum, cand->features);
}

void pol_sample_close(struct sc_policy *p, struct cand *cand, bool event)
{
    struct model *model = p->model;
    if (cand->open == 0) return;
    uint64_t number = cand->open - 1;
    cand->open = 0;
    model->events += event;
    if (model->count - number > model->cap) return; /* overwritten */
    struct sample *sample = &model->ring[number % model->cap];
    double age_s = p->now_s - model->starts_s[number % model->cap];
    uint8_t bucket = pol_age_bucket(age_s);
    sample->cell = (uint16_t)(sample->cell / AGES * AGES + bucket);
    sample->rest_s = (float)(age_s - pol_age_edge[bucket]);
    open_set(model, number % model->cap, false);
    sample->event = event;
    if (event) event_count(model, sample, 1);
}

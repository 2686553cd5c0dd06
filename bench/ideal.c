/* SPDX-License-Identifier: Apache-2.0 */
#include "ideal.h"

#include <stdlib.h>

#include "base/prng.h"
#include "bench_common.h"

struct prefix {
    uint64_t a, b;
    bool used, saved;
};

struct ideal {
    uint32_t unit;
    unsigned rules;
    struct prefix *set;
    size_t cap, count;
    uint32_t mark_at, tenant;
    uint64_t *path; /* [2 * units]: the hashes of the request being served */
    size_t path_cap;
};

struct ideal *ideal_create(uint32_t unit, unsigned rules)
{
    struct ideal *ideal = bench_alloc(1, sizeof *ideal);
    ideal->unit = unit;
    ideal->rules = rules;
    ideal->cap = 4096;
    ideal->set = bench_alloc(ideal->cap, sizeof *ideal->set);
    return ideal;
}

void ideal_destroy(struct ideal *ideal)
{
    if (!ideal)
        return;
    free(ideal->set);
    free(ideal->path);
    free(ideal);
}

/* The entry of a prefix, or the empty one where it belongs. */
static struct prefix *find(const struct ideal *ideal, uint64_t a, uint64_t b)
{
    size_t at = a & (ideal->cap - 1);
    while (ideal->set[at].used && (ideal->set[at].a != a || ideal->set[at].b != b))
        at = (at + 1) & (ideal->cap - 1);
    return &ideal->set[at];
}

static void grow(struct ideal *ideal)
{
    struct prefix *old = ideal->set;
    size_t cap = ideal->cap;
    ideal->cap = 2 * cap;
    ideal->set = bench_alloc(ideal->cap, sizeof *ideal->set);
    for (size_t i = 0; i < cap; i++)
        if (old[i].used)
            *find(ideal, old[i].a, old[i].b) = old[i];
    free(old);
}

static struct prefix *add(struct ideal *ideal, const uint64_t *hash)
{
    if (2 * (ideal->count + 1) > ideal->cap)
        grow(ideal);
    struct prefix *entry = find(ideal, hash[0], hash[1]);
    if (!entry->used) {
        *entry = (struct prefix){hash[0], hash[1], true, false};
        ideal->count++;
    }
    return entry;
}

static void hash_path(struct ideal *ideal, const int32_t *tokens, size_t units)
{
    ideal->path = bench_grow(ideal->path, &ideal->path_cap, 2 * units, sizeof *ideal->path);
    uint64_t a = 1, b = 2;
    for (size_t i = 0, at = 0; i < units; i++) {
        for (uint32_t j = 0; j < ideal->unit; j++, at++) {
            uint64_t token = (uint32_t)tokens[at];
            if (at == ideal->mark_at) /* from here on nothing is like another tenant's */
                token |= (uint64_t)ideal->tenant << 32;
            a = sc_mix64(a ^ token);
            b = sc_mix64(b + 0x9e3779b97f4a7c15u * (token + 1));
        }
        ideal->path[2 * i] = a;
        ideal->path[2 * i + 1] = b;
    }
}

static void save(struct ideal *ideal, size_t depth)
{
    if (depth > 0)
        add(ideal, ideal->path + 2 * (depth - 1))->saved = true;
}

void ideal_mark(struct ideal *ideal, uint32_t at, uint32_t tenant)
{
    ideal->mark_at = at;
    ideal->tenant = tenant;
}

uint32_t ideal_serve(struct ideal *ideal, const int32_t *tokens, uint32_t prompt_len,
    uint32_t total)
{
    size_t units = total / ideal->unit, usable = (prompt_len - 1) / ideal->unit;
    usable = usable < units ? usable : units;
    hash_path(ideal, tokens, units);
    size_t shared = 0, resumed = 0;
    while (shared < usable) {
        const struct prefix *entry = find(ideal, ideal->path[2 * shared],
            ideal->path[2 * shared + 1]);
        if (!entry->used)
            break;
        shared++;
        if (entry->saved)
            resumed = shared;
    }
    for (size_t i = shared; i < units; i++)
        add(ideal, ideal->path + 2 * i);
    if (ideal->rules & IDEAL_BRANCH && shared > resumed)
        save(ideal, shared);
    if (ideal->rules & IDEAL_PROMPT_END)
        save(ideal, prompt_len / ideal->unit);
    if (ideal->rules & IDEAL_END)
        save(ideal, units);
    return (uint32_t)(resumed * ideal->unit);
}

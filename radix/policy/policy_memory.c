/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates (a slab that doubles), ghosts (as many as there may be), a table from hash to ghost.
 *
 * A ghost is a block of a prompt and all before it, known by hash alone: it outlives what was
 * stored there. At `ghost_max` the clock hand forgets those that no request has passed since the
 * hand's last turn. A forgotten ghost takes its candidate along unless a snapshot is resident
 * there; blocks behind it can no longer be reached and go when the hand comes to them.
 *
 * New ghosts of a prompt lie side by side. One that lies behind the block before it is found from
 * there (`follows`); only the others are in the table, so that most of a prompt is read like an
 * array. Where the one before is forgotten, the next one goes to the table.
 *
 * The table is open addressing with linear probing; removal shifts back, so there are no marks. */
#include "policy_internal.h"

bool pol_grow(struct sc_policy *p, void **array, uint32_t *cap, uint64_t need, size_t item_bytes)
{
    if (need <= *cap) return true;
    uint64_t grown = *cap ? 2 * (uint64_t)*cap : 64;
    while (grown < need) grown *= 2;
    if (grown > UINT32_MAX / 2) return false;
    void *memory = sc_heap_realloc(&p->heap, *array, *cap * item_bytes, grown * item_bytes);
    if (!memory) return false;
    memset((char *)memory + *cap * item_bytes, 0, (grown - *cap) * item_bytes);
    p->bytes += (grown - *cap) * item_bytes;
    *array = memory;
    *cap = (uint32_t)grown;
    return true;
}

/* --- candidates --- */

bool pol_cands_reserve(struct sc_policy *p, uint64_t more)
{
    uint64_t need = (uint64_t)p->cand_used + more + 1;
    return pol_grow(p, (void **)&p->order.items, &p->order.cap, need, sizeof *p->order.items) &&
        pol_grow(p, (void **)&p->timers.items, &p->timers.cap, need, sizeof *p->timers.items) &&
        pol_grow(p, (void **)&p->order.places, &p->order.place_cap, need, sizeof(uint32_t)) &&
        pol_grow(p, (void **)&p->timers.places, &p->timers.place_cap, need, sizeof(uint32_t)) &&
        pol_grow(p, (void **)&p->aside, &p->aside_cap, need, sizeof(uint32_t)) &&
        pol_grow(p, (void **)&p->cands, &p->cand_cap, need, sizeof *p->cands);
}

bool pol_node_reserve(struct sc_policy *p, uint32_t node)
{
    return pol_grow(p, (void **)&p->by_node, &p->by_node_cap, (uint64_t)node + 1, sizeof(uint32_t));
}

uint32_t pol_cand_new(struct sc_policy *p)
{
    uint32_t id = p->cand_free;
    if (id != 0) {
        p->cand_free = p->cands[id].ghost;
    } else {
        id = ++p->cand_used;
        SC_ASSERT(id < p->cand_cap);
    }
    uint32_t generation = p->cands[id].generation + 1;
    p->cands[id] = (struct cand){.live = true, .generation = generation};
    p->cand_count++;
    return id;
}

/* Cuts the two-way links with other candidates. */
static void links_cut(struct sc_policy *p, struct cand *cand)
{
    if (cand->superseded_by) p->cands[cand->superseded_by].supersedes = 0;
    if (cand->supersedes) p->cands[cand->supersedes].superseded_by = 0;
    if (cand->near_end) p->cands[cand->near_end].near_of = 0;
    if (cand->near_of) p->cands[cand->near_of].near_end = 0;
    cand->superseded_by = cand->supersedes = cand->near_end = cand->near_of = 0;
}

void pol_cand_free(struct sc_policy *p, uint32_t id)
{
    struct cand *cand = &p->cands[id];
    SC_ASSERT(cand->live && cand->node == 0 && p->order.places[id] == 0);
    if (cand->open) pol_sample_close(p, cand, false);
    links_cut(p, cand);
    if (cand->ghost) p->ghosts[cand->ghost].cand = 0;
    uint32_t generation = cand->generation;
    *cand = (struct cand){.ghost = p->cand_free, .generation = generation};
    p->cand_free = id;
    p->cand_count--;
}

/* --- ghosts --- */

/* A line of ghosts is read in less time than the next takes to come: that many are under way. */
enum { GHOSTS_PER_LINE = 64 / sizeof(struct ghost), LINES_AHEAD = 8 };

static void table_put(struct sc_policy *p, uint32_t id)
{
    uint32_t at = (uint32_t)p->ghosts[id].hash & p->table_mask;
    while (p->table[at] != 0) at = (at + 1) & p->table_mask;
    p->table[at] = id;
}

static void table_take(struct sc_policy *p, uint32_t id)
{
    uint32_t mask = p->table_mask;
    uint32_t at = (uint32_t)p->ghosts[id].hash & mask;
    while (p->table[at] != id) at = (at + 1) & mask;
    for (uint32_t next = (at + 1) & mask; p->table[next] != 0; next = (next + 1) & mask) {
        uint32_t home = (uint32_t)p->ghosts[p->table[next]].hash & mask;
        /* May `next` stand at `at`? Only if its home is not between them. */
        if (((next - home) & mask) < ((next - at) & mask)) continue;
        p->table[at] = p->table[next];
        at = next;
    }
    p->table[at] = 0;
}

static void ghost_forget(struct sc_policy *p, uint32_t id)
{
    struct ghost *ghost = &p->ghosts[id];
    if (ghost->cand != 0) {
        struct cand *cand = &p->cands[ghost->cand];
        if (cand->node != 0) {
            cand->ghost = 0; /* resident: goes with its snapshot */
            ghost->cand = 0;
        } else {
            pol_cand_free(p, ghost->cand);
        }
    }
    if (!ghost->follows) table_take(p, id);
    if (id < p->ghost_used && p->ghosts[id + 1].follows) {
        p->ghosts[id + 1].follows = false;
        table_put(p, id + 1);
    }
    p->ghosts_forgotten = true;
    *ghost = (struct ghost){.next_free = 0};
    if (p->ghost_free != 0) {
        p->ghosts[p->ghost_free_last].next_free = id;
    } else {
        p->ghost_free = id;
    }
    p->ghost_free_last = id;
    p->ghost_count--;
}

/* Makes room for so many. The hand passes once over what was touched since its last turn. */
void pol_ghosts_expire(struct sc_policy *p, uint64_t room)
{
    uint64_t turns = 0;
    while (p->ghost_count > 0 && p->ghost_count + room > p->ghost_max &&
        turns++ < 3 * (uint64_t)p->ghost_used) {
        p->ghost_hand = p->ghost_hand >= p->ghost_used ? 1 : p->ghost_hand + 1;
        struct ghost *ghost = &p->ghosts[p->ghost_hand];
        if (!ghost->live) continue;
        if (ghost->recent) {
            ghost->recent = false;
            continue;
        }
        ghost_forget(p, p->ghost_hand);
    }
}

/* All the room there will ever be: growing would cost more than looking up. */
bool pol_ghosts_create(struct sc_policy *p, uint32_t max)
{
    uint64_t slots = 128;
    while (slots < 2 * (uint64_t)max) slots *= 2;
    p->ghosts = sc_heap_calloc(&p->heap, (size_t)max + 1, sizeof *p->ghosts);
    p->table = sc_heap_calloc(&p->heap, slots, sizeof *p->table);
    p->table_mask = (uint32_t)(slots - 1);
    p->ghost_max = max;
    p->bytes += ((size_t)max + 1) * sizeof *p->ghosts + slots * sizeof *p->table;
    return p->ghosts && p->table;
}

void pol_ghosts_destroy(struct sc_policy *p)
{
    sc_heap_free(&p->heap, p->ghosts, ((size_t)p->ghost_max + 1) * sizeof *p->ghosts);
    sc_heap_free(&p->heap, p->table, ((size_t)p->table_mask + 1) * sizeof *p->table);
}

uint32_t pol_ghost_find(const struct sc_policy *p, uint64_t hash)
{
    uint32_t at = (uint32_t)hash & p->table_mask;
    for (; p->table[at] != 0; at = (at + 1) & p->table_mask) {
        const struct ghost *ghost = &p->ghosts[p->table[at]];
        for (int line = 1; line <= LINES_AHEAD; line++) { /* those behind it follow, as a rule */
            __builtin_prefetch(ghost + line * GHOSTS_PER_LINE);
        }
        if (ghost->hash == hash) return p->table[at];
    }
    return 0;
}

/* Starts the reads of a look-up to come: of the table, and, later, of what stands there. */
void pol_table_prefetch(const struct sc_policy *p, uint64_t hash)
{
    __builtin_prefetch(&p->table[(uint32_t)hash & p->table_mask]);
}

void pol_ghost_prefetch(const struct sc_policy *p, uint64_t hash)
{
    __builtin_prefetch(&p->ghosts[p->table[(uint32_t)hash & p->table_mask]]);
}

uint32_t pol_ghost_next(const struct sc_policy *p, uint32_t ghost, uint64_t hash)
{
    uint32_t next = ghost + 1;
    __builtin_prefetch(&p->ghosts[next + LINES_AHEAD * GHOSTS_PER_LINE]);
    bool there = next <= p->ghost_used && p->ghosts[next].follows && p->ghosts[next].hash == hash;
    return there ? next : pol_ghost_find(p, hash);
}

uint32_t pol_ghost_last(const struct sc_policy *p, const uint64_t *hashes, uint32_t count)
{
    uint32_t ghost = 0;
    for (uint32_t k = 0; k < count; k++) {
        ghost = ghost != 0 ? pol_ghost_next(p, ghost, hashes[k]) : pol_ghost_find(p, hashes[k]);
    }
    return ghost;
}

uint32_t pol_ghost_add(struct sc_policy *p, uint64_t hash, uint32_t parent)
{
    uint32_t id = p->ghost_free;
    if (id != 0) {
        p->ghost_free = p->ghosts[id].next_free;
    } else {
        id = ++p->ghost_used;
        SC_ASSERT(id <= p->ghost_max);
    }
    bool follows = parent != 0 && id == parent + 1;
    p->ghosts[id] = (struct ghost){.hash = hash, .live = true, .follows = follows};
    if (parent && p->ghosts[parent].children < GHOST_CHILDREN_MAX) p->ghosts[parent].children++;
    if (!follows) table_put(p, id);
    p->ghost_count++;
    return id;
}

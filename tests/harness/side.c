/* SPDX-License-Identifier: Apache-2.0 */
/* A second pool of the other layout, which the cache does not know: whole states are copied there
 * and back out again, as a move between layouts would; and slots are taken and freed, with handles
 * that must stay stale however often their slot is used again. */
#include <string.h>

#include "harness.h"

static int32_t side_any(struct h_sched *s)
{
    const struct h_world *w = s->world;
    return w->side_count ? (int32_t)w->side_slots[h_draw(&s->rng, w->side_count)].id : -1;
}

/* The state of a lease that is READY, part by part. */
void h_op_copy(struct h_sched *s)
{
    struct h_world *w = s->world;
    int index = h_lease_pick(s);
    if (index < 0 || w->side_count == 0) return;
    const struct h_lease *lease = &s->leases[index];
    if (h_lease_state(lease) != SC_LEASE_READY) return;
    sc_lease_info info;
    H_OK(w, H_CALL(s, INFO, sc_lease_info_get(w->cache, lease->handle, &info)));
    int32_t from[2] = {info.source_slot, -1}, to[2] = {side_any(s), -1};
    if (h_one_in(&s->rng, 12)) { /* a slot that nobody has taken */
        for (uint32_t id = 1; id < H_SIDE_SLOTS; id++) {
            bool taken = false;
            for (uint32_t i = 0; i < w->side_count; i++) taken |= w->side_slots[i].id == id;
            if (!taken) to[0] = (int32_t)id;
        }
    }
    bool allocated = false;
    for (uint32_t i = 0; i < w->side_count; i++) {
        allocated |= (int32_t)w->side_slots[i].id == to[0];
    }
    sc_status status = H_CALL(s, COPY, sc_state_copy(w->pool, from, w->side, to, 2));
    h_trace(s, "copy lease %d slot %d to %d: %s", index, from[0], to[0], sc_status_name(status));
    H_CHECK(w, status == (allocated ? SC_OK : SC_ERR_STALE), "%s: %s", sc_status_name(status),
        sc_last_error()->text);
    if (status != SC_OK || from[0] == 0) return;
    H_CHECK(w, h_side_read(s, (uint32_t)to[0], "copy") == lease->run.state,
        "the copy of slot %d is not the state after %u tokens", from[0], lease->run.len);
    s->totals->copies++;
    to[0] = 0;
    H_CHECK(w, H_CALL(s, COPY, sc_state_copy(w->pool, from, w->side, to, 1)) == SC_ERR_INVALID,
        "a copy into the null slot");
}

static void side_free(struct h_sched *s)
{
    struct h_world *w = s->world;
    uint32_t at = h_draw(&s->rng, w->side_count);
    sc_slot slot = w->side_slots[at];
    H_OK(w, H_CALL(s, SLOT_FREE, sc_pool_free(w->side, &slot, 1)));
    w->side_slots[at] = w->side_slots[--w->side_count];
    w->side_graves[w->side_grave_count++ % H_GRAVES_MAX] = slot;
}

static void side_stale(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_slot dead = w->side_graves[h_draw(&s->rng, h_min(w->side_grave_count, H_GRAVES_MAX))];
    H_CHECK(w, H_CALL(s, SLOT_CHECK, sc_pool_check(w->side, dead, NULL)) == SC_ERR_STALE,
        "slot %u of generation %u is gone", dead.id, dead.generation);
    H_CHECK(w, H_CALL(s, SLOT_FREE, sc_pool_free(w->side, &dead, 1)) == SC_ERR_STALE,
        "slot %u of generation %u is freed twice", dead.id, dead.generation);
}

void h_op_pool(struct h_sched *s)
{
    struct h_world *w = s->world;
    sc_slot slots[H_SIDE_SLOTS];
    uint32_t want = 1 + h_draw(&s->rng, 2), room = H_SIDE_SLOTS - 1 - w->side_count;
    if (w->side_grave_count > 0) side_stale(s);
    if (w->side_count > 0 && h_one_in(&s->rng, 2)) side_free(s);
    room = H_SIDE_SLOTS - 1 - w->side_count;
    sc_status status = H_CALL(s, SLOT_ALLOC,
        sc_pool_alloc(w->side, want, SC_OWNER_WORKING, slots));
    H_CHECK(w, status == (want <= room ? SC_OK : SC_ERR_NO_SLOT), "%u slots of %u: %s", want, room,
        sc_status_name(status));
    for (uint32_t i = 0; status == SC_OK && i < want; i++) {
        H_OK(w, H_CALL(s, SLOT_CHECK, sc_pool_check(w->side, slots[i], NULL)));
        w->side_slots[w->side_count++] = slots[i];
    }
    H_CHECK(w, H_CALL(s, SLOT_ALLOC, sc_pool_alloc(w->side, 0, SC_OWNER_WORKING, slots)) ==
            SC_ERR_INVALID, "no slots");
    H_CHECK(w, H_CALL(s, SLOT_FREE, sc_pool_free(w->side, slots, 0)) == SC_ERR_INVALID, "none");
    H_CHECK(w, H_CALL(s, SLOT_CHECK, sc_pool_check(NULL, slots[0], NULL)) == SC_ERR_INVALID,
        "no pool");
    H_OK(w, sc_pool_audit(w->side, false));
}

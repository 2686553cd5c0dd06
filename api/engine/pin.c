/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots that are kept until a time (`pin_until_ns` of the hints), whatever wants their slot.
 *
 *     pins[]   until | receipt: state lock | lease that made it        in no order; live or free
 *
 * A pin is a state lock on the newest end that its lease has saved: of the prompt, then of the
 * answer. So nothing takes it: no search for a slot, no eviction of pages, no other history. Its
 * receipt is taken at acquire, when it may be refused for want of memory, and holds nothing yet.
 *
 * Pins are soft and bounded: the one that ends soonest gives way when a lease needs a slot, or
 * memory is asked for, and nothing else is left; and when more than half of the slots are pinned.
 *
 * A pin ends when time has come to it (time is what acquire and plan say), and with its namespace.
 * `pin_next_ns` is not above the end of any of them, so that most calls look at one number; when it
 * is reached all are looked at. A pin that holds nothing goes with its lease. */
#include "cache_internal.h"

sc_status sc_engine_pin_take(sc_cache *cache, struct lease *lease)
{
    uint64_t until_ns = lease->hints.pin_until_ns;
    if (until_ns <= cache->now_ns) return SC_OK;
    if (cache->pin_count == cache->pin_cap) {
        uint32_t cap = cache->pin_cap ? cache->pin_cap * 2 : 16;
        struct pin *pins = sc_heap_realloc(&cache->heap, cache->pins,
            cache->pin_cap * sizeof *pins, cap * sizeof *pins);
        if (!pins) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u pins", cap);
        cache->pins = pins;
        cache->pin_cap = cap;
    }
    struct pin *pin = &cache->pins[cache->pin_count];
    SC_TRY(sc_radix_lock(cache->radix, SC_NODE_NONE, SC_RADIX_LOCK_STATE, &pin->receipt));
    cache->pin_count++;
    pin->until_ns = until_ns;
    pin->lease = lease;
    pin->space = lease->space;
    pin->holds = false;
    if (cache->pin_next_ns == 0 || until_ns < cache->pin_next_ns) cache->pin_next_ns = until_ns;
    return SC_OK;
}

/* The last one takes the place of one that ends. */
static void pin_end(sc_cache *cache, uint32_t index)
{
    sc_status status = sc_radix_unlock(cache->radix, cache->pins[index].receipt);
    SC_ASSERT(status == SC_OK); /* (10) */
    cache->pins[index] = cache->pins[--cache->pin_count];
}

void sc_engine_pins_serve(sc_cache *cache)
{
    if (cache->pin_count == 0 || cache->now_ns < cache->pin_next_ns) return;
    cache->pin_next_ns = 0;
    for (uint32_t i = 0; i < cache->pin_count;) {
        uint64_t until_ns = cache->pins[i].until_ns;
        if (until_ns <= cache->now_ns) {
            pin_end(cache, i);
            continue;
        }
        if (cache->pin_next_ns == 0 || until_ns < cache->pin_next_ns) {
            cache->pin_next_ns = until_ns;
        }
        i++;
    }
}

/* Whether nothing but the pin holds the snapshot. */
static bool alone(const sc_cache *cache, const struct pin *pin)
{
    struct sc_radix_node_info info;
    sc_node node = SC_NODE_NONE;
    uint32_t what = 0;
    sc_status status = sc_radix_receipt_get(cache->radix, pin->receipt, &node, &what);
    SC_ASSERT(status == SC_OK); /* (10) */
    return pin->holds && sc_radix_node_get(cache->radix, node, &info) == SC_OK &&
        info.state_locks == 1;
}

bool sc_engine_pin_break(sc_cache *cache)
{
    uint32_t soonest = UINT32_MAX;
    for (uint32_t i = 0; i < cache->pin_count; i++) {
        const struct pin *pin = &cache->pins[i];
        if (soonest != UINT32_MAX && cache->pins[soonest].until_ns <= pin->until_ns) continue;
        if (alone(cache, pin)) soonest = i;
    }
    if (soonest == UINT32_MAX) return false;
    pin_end(cache, soonest);
    return true;
}

static uint32_t held(const sc_cache *cache)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < cache->pin_count; i++) count += cache->pins[i].holds;
    return count;
}

void sc_engine_pin_move(sc_cache *cache, const struct lease *lease, sc_node node)
{
    if (lease->hints.pin_until_ns <= cache->now_ns) return; /* most leases have none */
    for (uint32_t i = 0; i < cache->pin_count; i++) {
        struct pin *pin = &cache->pins[i];
        if (pin->lease != lease) continue;
        sc_engine_relock(cache, &pin->receipt, node, SC_RADIX_LOCK_STATE);
        bool first = !pin->holds;
        pin->holds = true;
        if (first && held(cache) > cache->pool_slots / 2) (void)sc_engine_pin_break(cache);
        return;
    }
}

void sc_engine_pin_leave(sc_cache *cache, const struct lease *lease)
{
    if (lease->hints.pin_until_ns == 0) return;
    for (uint32_t i = 0; i < cache->pin_count; i++) {
        if (cache->pins[i].lease != lease) continue;
        cache->pins[i].lease = NULL;
        if (!cache->pins[i].holds) pin_end(cache, i);
        return;
    }
}

void sc_engine_pins_drop(sc_cache *cache, const struct space *space)
{
    for (uint32_t i = 0; i < cache->pin_count;) {
        if (cache->pins[i].space == space) {
            pin_end(cache, i);
        } else {
            i++;
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Two heaps of candidates, four ways wide (four items are a cache line): `order` by key (what goes
 * first) and `timers` by the time at which a key is to be looked at again. Ties go by candidate
 * number, so that equal calls give equal decisions. */
#include "policy_internal.h"

static void put_at(struct order_heap *heap, uint32_t at, struct heap_item item)
{
    heap->items[at] = item;
    heap->places[item.id] = at + 1;
}

/* One comparison of 96 bits. */
static bool before(struct heap_item a, struct heap_item b)
{
    __extension__ typedef unsigned __int128 wide;
    return ((wide)a.key << 64 | a.id) < ((wide)b.key << 64 | b.id);
}

/* Which of two children comes first cannot be foretold: a mask, since compilers make a branch of
 * `?:`. */
static uint64_t first_of(const struct heap_item *items, uint64_t a, uint64_t b)
{
    return a ^ ((a ^ b) & -(uint64_t)before(items[b], items[a]));
}

static void sift_down(struct order_heap *heap, uint32_t at, struct heap_item item)
{
    const struct heap_item *items = heap->items;
    static_assert(HEAP_WAYS == 4, "written out");
    for (;;) {
        uint64_t child = HEAP_WAYS * (uint64_t)at + 1;
        if (child + 3 < heap->count) {
            child = first_of(items, first_of(items, child, child + 1),
                first_of(items, child + 2, child + 3));
        } else {
            if (child >= heap->count) break;
            for (uint64_t i = child + 1; i < heap->count; i++) child = first_of(items, child, i);
        }
        if (!before(items[child], item)) break;
        put_at(heap, at, items[child]);
        at = (uint32_t)child;
    }
    put_at(heap, at, item);
}

static void sift(struct order_heap *heap, uint32_t at, struct heap_item item)
{
    uint32_t from = at;
    while (at > 0 && before(item, heap->items[(at - 1) / HEAP_WAYS])) {
        put_at(heap, at, heap->items[(at - 1) / HEAP_WAYS]);
        at = (at - 1) / HEAP_WAYS;
    }
    if (at == from) {
        sift_down(heap, at, item);
    } else {
        put_at(heap, at, item);
    }
}

/* Where most keys change at once, O(n) instead of O(n log n). */
void pol_heap_build(struct order_heap *heap)
{
    uint32_t parents = heap->count > 1 ? (heap->count - 2) / HEAP_WAYS + 1 : 0;
    for (uint32_t at = parents; at < heap->count; at++) heap->places[heap->items[at].id] = at + 1;
    for (uint32_t at = parents; at-- > 0;) sift_down(heap, at, heap->items[at]);
}

void pol_heap_put(struct order_heap *heap, uint32_t id, uint64_t key)
{
    uint32_t place = heap->places[id];
    if (place != 0 && heap->items[place - 1].key == key) return;
    if (place == 0) {
        SC_ASSERT(heap->count < heap->cap);
        place = ++heap->count;
    }
    sift(heap, place - 1, (struct heap_item){key, id});
}

void pol_heap_take(struct order_heap *heap, uint32_t id)
{
    uint32_t at = heap->places[id];
    if (at == 0) return;
    heap->places[id] = 0;
    struct heap_item last = heap->items[--heap->count];
    if (last.id != id) sift(heap, at - 1, last);
}

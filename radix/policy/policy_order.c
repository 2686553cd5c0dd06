/* SPDX-License-Identifier: Apache-2.0 */
/* Two binary heaps of candidates: `order` by key (what goes first) and `timers` by the time at
 * which a key is to be looked at again. Ties go by candidate number, so that equal calls give equal
 * decisions. */
#include "policy_internal.h"

static void put_at(struct order_heap *heap, uint32_t at, struct heap_item item)
{
    heap->items[at] = item;
    heap->places[item.id] = at + 1;
}

/* Without a branch: which of two children comes first cannot be foretold. */
static bool before(struct heap_item a, struct heap_item b)
{
    return (a.key < b.key) | ((a.key == b.key) & (a.id < b.id));
}

static void sift_down(struct order_heap *heap, uint32_t at, struct heap_item item)
{
    for (;;) {
        uint64_t child = 2 * (uint64_t)at + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count) child += before(heap->items[child + 1], heap->items[child]);
        if (!before(heap->items[child], item)) break;
        put_at(heap, at, heap->items[child]);
        at = (uint32_t)child;
    }
    put_at(heap, at, item);
}

static void sift(struct order_heap *heap, uint32_t at, struct heap_item item)
{
    while (at > 0 && before(item, heap->items[(at - 1) / 2])) {
        put_at(heap, at, heap->items[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    sift_down(heap, at, item);
}

/* Where most keys change at once, O(n) instead of O(n log n). */
void pol_heap_build(struct order_heap *heap)
{
    for (uint32_t at = heap->count / 2; at < heap->count; at++) {
        heap->places[heap->items[at].id] = at + 1;
    }
    for (uint32_t at = heap->count / 2; at-- > 0;) sift_down(heap, at, heap->items[at]);
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

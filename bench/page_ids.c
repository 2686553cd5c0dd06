/* SPDX-License-Identifier: Apache-2.0 */
#include "page_ids.h"

#include <stdlib.h>

#include "bench_common.h"

enum { FREE, OURS, CACHE };

void page_ids_init(struct page_ids *ids, uint32_t count)
{
    *ids = (struct page_ids){.count = count, .free_count = count};
    ids->where = bench_alloc(count, 1);
    ids->free_ids = bench_alloc(count, sizeof *ids->free_ids);
    for (uint32_t i = 0; i < count; i++)
        ids->free_ids[i] = (int32_t)(count - 1 - i);
}

void page_ids_deinit(struct page_ids *ids)
{
    free(ids->where);
    free(ids->free_ids);
}

/* True if `id` is where it should be; else a fault. */
static bool is_at(struct page_ids *ids, int32_t id, uint8_t where)
{
    bool right = id >= 0 && (uint32_t)id < ids->count && ids->where[id] == where;
    ids->faults += !right;
    return right;
}

static void put_free(struct page_ids *ids, int32_t id)
{
    ids->where[id] = FREE;
    ids->free_ids[ids->free_count++] = id;
}

int32_t page_ids_take(struct page_ids *ids)
{
    if (ids->free_count == 0)
        return -1;
    int32_t id = ids->free_ids[--ids->free_count];
    ids->where[id] = OURS;
    ids->ours++;
    if (ids->count - ids->free_count > ids->peak)
        ids->peak = ids->count - ids->free_count;
    return id;
}

void page_ids_give_back(struct page_ids *ids, int32_t id)
{
    if (!is_at(ids, id, OURS))
        return;
    ids->ours--;
    put_free(ids, id);
}

void page_ids_hand_in(struct page_ids *ids, int32_t id)
{
    if (!is_at(ids, id, OURS))
        return;
    ids->where[id] = CACHE;
    ids->ours--;
    ids->cached++;
}

void page_ids_drained(struct page_ids *ids, int32_t id)
{
    if (!is_at(ids, id, CACHE))
        return;
    ids->cached--;
    put_free(ids, id);
}

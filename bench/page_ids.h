/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's own page allocator, which knows where each KV id is:
 *
 *   FREE --take--> OURS --hand_in (committed)--> CACHE --drained--> FREE
 *                   '-----give_back----------------------------------^
 *
 * An id that the cache returns without holding it, or twice, is a fault that is counted, never
 * repaired. At the end of a run CACHE must be what the cache says it holds. */
#ifndef BENCH_PAGE_IDS_H
#define BENCH_PAGE_IDS_H

#include <stdint.h>

struct page_ids {
    uint8_t *where;
    int32_t *free_ids;
    uint32_t count, free_count, ours, cached, peak;
    uint64_t faults;
};

void page_ids_init(struct page_ids *ids, uint32_t count);
void page_ids_deinit(struct page_ids *ids);
int32_t page_ids_take(struct page_ids *ids); /* -1: none is free */
void page_ids_give_back(struct page_ids *ids, int32_t id);
void page_ids_hand_in(struct page_ids *ids, int32_t id);
void page_ids_drained(struct page_ids *ids, int32_t id);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The one way to use uthash here: tables allocate from an sc_heap and running out of memory is an
 * answer instead of exit(-1).
 *
 * Set `SC_MAP_HEAP` (a `struct sc_heap *` expression visible at each HASH_ADD/HASH_DEL/HASH_CLEAR)
 * before including; after each add test `sc_map_oom`:
 *
 *   bool sc_map_oom = false;                 // read by the wrapper's hook, in scope at HASH_ADD
 *   HASH_ADD(hh, table, id, sizeof item->id, item);
 *   if (sc_map_oom) return SC_FAIL(SC_ERR_NO_MEMORY, "...");   // the item is not in the table
 */
#ifndef SC_BASE_MAP_H
#define SC_BASE_MAP_H

#include "base/heap.h"

#ifndef SC_MAP_HEAP
#error "define SC_MAP_HEAP before including base/map.h"
#endif

#define HASH_NONFATAL_OOM 1
#define uthash_malloc(bytes) sc_heap_alloc((SC_MAP_HEAP), (bytes), 16)
#define uthash_free(ptr, bytes) sc_heap_free((SC_MAP_HEAP), (ptr), (bytes))
#define uthash_nonfatal_oom(item)                                                                  \
    do {                                                                                           \
        (void)(item);                                                                              \
        sc_map_oom = true;                                                                         \
    } while (0)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wconversion"
#include <uthash.h>
#pragma GCC diagnostic pop

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces: which weights and which adapter a tree belongs to.
 *
 * The key is bytes, tagged and length-prefixed, so that no two different lists of fields have equal
 * bytes (contract 16):
 *
 *   'F' 16 fingerprint   'A' 8 adapter id   'G' 8 adapter generation
 *
 * uthash compares keys in full: equal hashes alone never match. A handle is id and generation; the
 * id indexes an array, so that a look-up costs one read. */
#include <string.h>

#include "tier.h"

static uint32_t key_field(uint8_t *key, uint32_t at, uint8_t tag, const void *bytes, uint8_t count)
{
    SC_ASSERT(at + 2u + count <= SPACE_KEY_BYTES);
    key[at] = tag;
    key[at + 1] = count;
    memcpy(key + at + 2, bytes, count);
    return at + 2u + count;
}

static uint32_t key_make(uint8_t *key, const sc_fingerprint *fingerprint, uint64_t adapter_id,
    uint64_t adapter_generation)
{
    uint8_t id[8], generation[8]; /* little-endian on every machine */
    for (uint32_t i = 0; i < 8; i++) {
        id[i] = (uint8_t)(adapter_id >> (8 * i));
        generation[i] = (uint8_t)(adapter_generation >> (8 * i));
    }
    uint32_t at = key_field(key, 0, 'F', fingerprint->bytes, sizeof fingerprint->bytes);
    at = key_field(key, at, 'A', id, sizeof id);
    return key_field(key, at, 'G', generation, sizeof generation);
}

struct space *sc_engine_space(const sc_cache *cache, sc_namespace ns)
{
    if (ns.id == 0 || ns.id > cache->space_count) return NULL;
    struct space *space = cache->spaces[ns.id - 1];
    return space && space->generation == ns.generation ? space : NULL;
}

/* Index of a free entry of the array, which may have grown for it. */
static sc_status entry_find(sc_cache *cache, uint32_t *index_out)
{
    for (uint32_t i = 0; i < cache->space_count; i++) {
        if (!cache->spaces[i]) {
            *index_out = i;
            return SC_OK;
        }
    }
    if (cache->space_count == cache->space_cap) {
        size_t old_bytes = cache->space_cap * sizeof(struct space *);
        uint32_t cap = cache->space_cap ? cache->space_cap * 2 : 8;
        struct space **spaces = sc_heap_realloc(&cache->heap, cache->spaces, old_bytes,
            cap * sizeof(struct space *));
        if (!spaces) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u namespaces", cap);
        cache->spaces = spaces;
        cache->space_cap = cap;
    }
    *index_out = cache->space_count;
    return SC_OK;
}

static sc_status space_create(sc_cache *cache, const uint8_t *key, uint32_t key_bytes,
    struct space **space_out)
{
    uint32_t index = 0;
    SC_TRY(entry_find(cache, &index));
    struct space *space = sc_heap_calloc(&cache->heap, 1, sizeof *space);
    if (!space) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a namespace");
    sc_status status = sc_radix_space_add(cache->radix, &space->radix_space);
    if (status != SC_OK) goto out_space;
    memcpy(space->key, key, key_bytes);
    space->key_bytes = key_bytes;
    bool sc_map_oom = false;
    HASH_ADD(hh, cache->space_by_key, key, key_bytes, space);
    if (sc_map_oom) {
        status = SC_FAIL(SC_ERR_NO_MEMORY, "no memory for the table of namespaces");
        goto out_radix;
    }
    space->id = index + 1;
    space->generation = ++cache->generation;
    cache->spaces[index] = space;
    if (index == cache->space_count) cache->space_count++;
    *space_out = space;
    return SC_OK;
out_radix:;
    struct evict_sink sink;
    sc_engine_sink_init(cache, SC_EVICT_CLOSED, &sink);
    sc_status removed = sc_radix_space_remove(cache->radix, space->radix_space, &sink.sink);
    SC_ASSERT(removed == SC_OK); /* it is empty */
out_space:
    sc_heap_free(&cache->heap, space, sizeof *space);
    return status;
}

sc_status sc_namespace_open(sc_cache *cache, const sc_fingerprint *fingerprint, uint64_t adapter_id,
    uint64_t adapter_generation, sc_namespace *namespace_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(namespace_out);
    if (fingerprint && memcmp(fingerprint, &cache->fingerprint, sizeof *fingerprint) != 0) {
        return SC_FAIL(SC_ERR_MISMATCH, "the fingerprint is not that of the pool's schema");
    }
    uint8_t key[SPACE_KEY_BYTES] = {0};
    uint32_t key_bytes = key_make(key, &cache->fingerprint, adapter_id, adapter_generation);
    sc_rwlock_lock(&cache->lock);
    struct space *space = NULL;
    HASH_FIND(hh, cache->space_by_key, key, key_bytes, space);
    sc_status status = SC_OK;
    uint32_t tier_space = 0;
    if (!space) {
        status = sc_engine_tier_space_open(cache, adapter_id, adapter_generation, &tier_space);
        if (status == SC_OK) status = space_create(cache, key, key_bytes, &space);
        if (status == SC_OK) {
            space->tier_space = tier_space;
            space->adapter_id = adapter_id;
            space->adapter_generation = adapter_generation;
        }
    }
    if (status == SC_OK) {
        *namespace_out = (sc_namespace){space->id, space->generation};
        sc_engine_record_ns_open(cache, adapter_id, adapter_generation, *namespace_out);
    }
    sc_rwlock_unlock(&cache->lock);
    return status;
}

static sc_status space_close(sc_cache *cache, sc_namespace ns)
{
    struct space *space = sc_engine_space(cache, ns);
    if (!space) return SC_FAIL(SC_ERR_STALE, "namespace %u/%u is not open", ns.id, ns.generation);
    if (space->lease_count > 0) {
        return SC_FAIL(SC_ERR_BUSY, "namespace %u has %u leases", ns.id, space->lease_count);
    }
    SC_TRY(sc_engine_tier_space_check(cache, space));
    struct evict_sink sink;
    sc_engine_sink_init(cache, SC_EVICT_CLOSED, &sink);
    sc_engine_pins_drop(cache, space);
    SC_TRY(sc_radix_space_remove(cache->radix, space->radix_space, &sink.sink));
    sc_engine_tier_space_close(cache, space);
    HASH_DEL(cache->space_by_key, space);
    cache->spaces[space->id - 1] = NULL;
    sc_heap_free(&cache->heap, space, sizeof *space);
    return SC_OK;
}

sc_status sc_namespace_close(sc_cache *cache, sc_namespace ns)
{
    SC_REQUIRE(cache);
    sc_rwlock_lock(&cache->lock);
    sc_status status = space_close(cache, ns);
    if (status == SC_OK) sc_engine_record_ns_close(cache, ns);
    sc_rwlock_unlock(&cache->lock);
    return status;
}

void sc_engine_spaces_free(sc_cache *cache)
{
    HASH_CLEAR(hh, cache->space_by_key);
    for (uint32_t i = 0; i < cache->space_count; i++) {
        sc_heap_free(&cache->heap, cache->spaces[i], sizeof *cache->spaces[i]);
    }
    sc_heap_free(&cache->heap, cache->spaces, cache->space_cap * sizeof(struct space *));
}

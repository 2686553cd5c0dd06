/* SPDX-License-Identifier: Apache-2.0 */
/* What a restart finds on disk, and which of it a cache begins with.
 *
 * Ranks that hold shards of the same states decide the same only if they begin the same, and their
 * disks need not have the same: one wrote a record before it was killed, another one did not. So
 * each lists what it has, by names that do not depend on the rank; what all have is agreed on; and
 * a cache begins with that, in an order that depends on the names alone.
 *
 *   sc_tiers_stored --> (the ranks intersect) --> sc_tiers_agree --> sc_cache_create --> load
 *
 * Without an agreement all records are given, in the order of the store, which is the quick one. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/prng.h"
#include "tiers_internal.h"

/* ---- names ---- */

/* All that decisions about a record depend on. Its shard and what that takes on disk are not in
 * it: they are the rank's own. */
static sc_stored name_of(const struct sc_store_edge *edge)
{
    uint64_t value = 0;
    memcpy(&value, &edge->info.value, sizeof value);
    const uint64_t words[] = {edge->info.token_count, edge->info.parent_len, edge->info.numerics,
        edge->info.kind, value, edge->info.history_count};
    sc_stored out = {{edge->hash.low, edge->hash.high}};
    for (uint32_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        out.name[0] = sc_mix64(out.name[0] ^ words[i]);
        out.name[1] = sc_mix64(out.name[1] + words[i]);
    }
    for (uint32_t i = 0; i < edge->info.history_count; i++) {
        uint64_t word = (uint64_t)edge->history[i].form << 32 | edge->history[i].end;
        out.name[0] = sc_mix64(out.name[0] ^ word);
        out.name[1] = sc_mix64(out.name[1] + word);
    }
    return out;
}

static int compare_names(const void *a, const void *b)
{
    const sc_stored *x = a, *y = b;
    if (x->name[1] != y->name[1]) return x->name[1] < y->name[1] ? -1 : 1;
    return x->name[0] == y->name[0] ? 0 : x->name[0] < y->name[0] ? -1 : 1;
}

sc_status sc_tiers_stored(sc_tiers *base, sc_stored *stored_out, uint32_t cap, uint32_t *count_out)
{
    SC_REQUIRE(base != NULL && count_out != NULL);
    SC_REQUIRE(stored_out != NULL || cap == 0);
    struct tiers *tiers = (struct tiers *)(void *)base;
    struct sc_store_iter *iter = NULL;
    struct sc_store_edge edge;
    *count_out = 0;
    if (!tiers->disk) return SC_OK;
    SC_TRY(sc_store_iter_open(tiers->disk, &iter));
    sc_status status = SC_OK;
    while ((status = sc_store_iter_next(iter, &edge)) == SC_OK) {
        if (!edge.info.has_record) continue;
        if (*count_out < cap) stored_out[*count_out] = name_of(&edge);
        (*count_out)++;
    }
    sc_store_iter_close(iter);
    if (status != SC_ERR_NOT_FOUND) return status;
    if (*count_out > cap) {
        return SC_FAIL(SC_ERR_LIMIT, "%u records, room for %u", *count_out, cap);
    }
    if (*count_out > 0) qsort(stored_out, *count_out, sizeof *stored_out, compare_names);
    return SC_OK;
}

sc_status sc_tiers_agree(sc_tiers *base, const sc_stored *common, uint32_t count)
{
    SC_REQUIRE(base != NULL);
    SC_REQUIRE(common != NULL || count == 0);
    for (uint32_t i = 1; i < count; i++) {
        if (compare_names(&common[i - 1], &common[i]) >= 0) {
            return SC_FAIL(SC_ERR_INVALID, "names %u and %u are not in order", i - 1, i);
        }
    }
    struct tiers *tiers = (struct tiers *)(void *)base;
    sc_stored *agreed = NULL;
    if (count > 0) {
        agreed = sc_heap_dup(&tiers->heap, common, count * sizeof *common);
        if (!agreed) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u names", count);
    }
    sc_mutex_lock(&tiers->lock);
    bool bound = tiers->bound;
    if (!bound) {
        sc_stored *old = tiers->agreed;
        uint32_t old_count = tiers->agreed_count;
        tiers->agreed = agreed;
        tiers->agreed_count = count;
        tiers->agreement = true;
        agreed = old;
        count = old_count;
    }
    sc_mutex_unlock(&tiers->lock);
    sc_heap_free(&tiers->heap, agreed, count * sizeof *agreed);
    return bound ? SC_FAIL(SC_ERR_BUSY, "a cache uses the tiers") : SC_OK;
}

static bool is_agreed(const struct tiers *tiers, const sc_stored *name)
{
    return tiers->agreed_count > 0 && bsearch(name, tiers->agreed, tiers->agreed_count,
        sizeof *name, compare_names) != NULL;
}

/* ---- load ---- */

static void loaded_fill(const struct sc_store_edge *edge, struct sc_tier_loaded *out)
{
    const struct sc_store_info *info = &edge->info;
    *out = (struct sc_tier_loaded){.disk_id = info->id, .disk_tick = info->tick,
        .parent_disk_id = info->parent,
        .has_record = info->has_record, .adapter_id = edge->adapter_id,
        .adapter_generation = edge->adapter_generation, .parent_len = info->parent_len,
        .token_count = info->token_count, .tokens = edge->tokens, .marks = edge->marks,
        .mark_count = edge->mark_count, .history = edge->history,
        .history_count = info->history_count, .kind = info->kind, .value = info->value,
        .bytes = info->disk_bytes};
}

typedef sc_status load_fn(void *ctx, const struct sc_tier_loaded *loaded);

static bool is_of_this_model(const struct tiers *tiers, const struct sc_store_edge *edge)
{
    return memcmp(&edge->fingerprint, &tiers->fingerprint, sizeof edge->fingerprint) == 0;
}

static sc_status load_all(struct tiers *tiers, struct sc_store_iter *iter, load_fn *fn, void *ctx)
{
    struct sc_store_edge edge;
    sc_status status = SC_OK;
    while ((status = sc_store_iter_next(iter, &edge)) == SC_OK) {
        struct sc_tier_loaded loaded;
        if (!is_of_this_model(tiers, &edge)) continue;
        loaded_fill(&edge, &loaded);
        loaded.has_record &= edge.info.numerics == tiers->numerics;
        SC_TRY(fn(ctx, &loaded));
    }
    return status == SC_ERR_NOT_FOUND ? SC_OK : status;
}

/* An edge of the store, for the order in which it is given. */
struct found { sc_stored name; uint32_t id, token_count; bool record, agreed; };
struct found_list { struct found *items; uint32_t count, cap; };

/* Parents have fewer tokens. */
static int compare_found(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    if (x->token_count != y->token_count) return x->token_count < y->token_count ? -1 : 1;
    return compare_names(&x->name, &y->name);
}

static sc_status find_all(struct tiers *tiers, struct sc_store_iter *iter, struct found_list *list)
{
    struct sc_store_edge edge;
    sc_status status = SC_OK;
    while ((status = sc_store_iter_next(iter, &edge)) == SC_OK) {
        if (!is_of_this_model(tiers, &edge)) continue;
        if (list->count == list->cap) {
            uint32_t cap = list->cap ? list->cap * 2 : 256;
            struct found *items = sc_heap_realloc(&tiers->heap, list->items,
                list->cap * sizeof *items, cap * sizeof *items);
            if (!items) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to load a store");
            list->items = items;
            list->cap = cap;
        }
        struct found *found = &list->items[list->count++];
        *found = (struct found){name_of(&edge), edge.info.id, edge.info.token_count,
            edge.info.has_record && edge.info.numerics == tiers->numerics, false};
        found->agreed = found->record && is_agreed(tiers, &found->name);
    }
    return status == SC_ERR_NOT_FOUND ? SC_OK : status;
}

/* What was agreed on, by name; what was not goes: no rank will ask for it. */
static sc_status load_agreed(struct tiers *tiers, struct sc_store_iter *iter, load_fn *fn,
    void *ctx)
{
    struct found_list list = {NULL, 0, 0};
    sc_status status = find_all(tiers, iter, &list);
    if (list.count > 0) qsort(list.items, list.count, sizeof *list.items, compare_found);
    for (uint32_t i = 0; i < list.count && status == SC_OK; i++) {
        struct sc_store_edge edge;
        struct sc_tier_loaded loaded;
        status = sc_store_iter_at(iter, list.items[i].id, &edge);
        if (status == SC_ERR_NOT_FOUND || status == SC_ERR_CORRUPT) {
            status = SC_OK;
            continue;
        }
        if (status != SC_OK) break;
        loaded_fill(&edge, &loaded);
        loaded.has_record = list.items[i].agreed;
        status = fn(ctx, &loaded);
    }
    for (uint32_t i = 0; i < list.count && status == SC_OK; i++) {
        if (!list.items[i].record || list.items[i].agreed) continue;
        (void)sc_store_drop(tiers->disk, list.items[i].id);
    }
    sc_heap_free(&tiers->heap, list.items, list.cap * sizeof *list.items);
    return status;
}

sc_status sc_tiers_load(sc_tiers *base,
    sc_status (*fn)(void *ctx, const struct sc_tier_loaded *loaded), void *ctx, uint64_t *day_out,
    uint64_t *day_bytes_out)
{
    struct tiers *tiers = (struct tiers *)(void *)base;
    struct sc_store_iter *iter = NULL;
    struct sc_store_stats stats;
    *day_out = *day_bytes_out = 0;
    if (!tiers->disk) return SC_OK;
    SC_TRY(sc_store_stats_get(tiers->disk, &stats));
    *day_out = stats.day;
    *day_bytes_out = stats.day_bytes;
    SC_TRY(sc_store_iter_open(tiers->disk, &iter));
    sc_status status = tiers->agreement ? load_agreed(tiers, iter, fn, ctx)
                                        : load_all(tiers, iter, fn, ctx);
    sc_store_iter_close(iter);
    if (status == SC_OK) tiers->agreement = false; /* of this one cache */
    return status;
}

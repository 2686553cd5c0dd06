/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of tier.h by number. O(records + transfers + waiters). */
#include <inttypes.h>

#include "tier.h"

#define CHECK(number, cond)                                                                        \
    do {                                                                                           \
        if (!(cond)) return SC_FAIL(SC_ERR_CORRUPT, "invariant (%d): %s", (number), #cond);        \
    } while (0)

static sc_status check_record(const sc_cache *cache, const struct tier_record *record)
{
    const struct tier *tier = cache->tier;
    struct sc_radix_node_info node;
    CHECK(20, sc_radix_node_get(tier->radix, record->node, &node) == SC_OK);
    CHECK(20, node.end == record->token_count && node.snapshot == record->id);
    CHECK(20, node.space == tier->spaces[record->space].radix_space);
    if (record->snapshot) {
        struct sc_snapshot_info info;
        CHECK(20, sc_tier_record_of_snapshot(tier, record->snapshot) == record);
        CHECK(20, sc_registry_get(cache->registry, record->snapshot, &info) == SC_OK);
        CHECK(20, info.token_count == record->token_count);
        CHECK(20, sc_radix_node_get(cache->radix, record->device_node, &node) == SC_OK);
        CHECK(20, node.snapshot == record->snapshot);
    }
    const struct tier_record *parent = sc_tier_record(tier, record->parent);
    CHECK(21, !record->parent || (parent && parent->token_count == record->parent_len));
    CHECK(21, record->parent || record->parent_len == 0);
    CHECK(21, record->children >= record->disk_children);
    CHECK(22, (record->copies & record->writing) == 0);
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) {
        uint32_t others = record->copies & ~(1u << t);
        bool copy = record->copies & 1u << t;
        bool may_go = copy && record->readers[t] == 0 && (record->children == 0 || others != 0);
        if (t == SC_TIER_DISK && record->disk_children > 0) may_go = false;
        CHECK(26, may_go == (record->place[t] != TIER_NOT_RANKED));
        CHECK(26, !may_go || tier->order[t][record->place[t]] == record->id);
        CHECK(23, record->readers[t] == 0 || copy);
        CHECK(22, ((record->copies | record->writing) & 1u << t) || record->bytes[t] == 0);
    }
    return SC_OK;
}

/* Sums over records, against what each of them says. */
static sc_status check_sums(const sc_cache *cache)
{
    const struct tier *tier = cache->tier;
    uint64_t copies[TIER_END] = {0};
    uint64_t used[TIER_END] = {0}, ranked[TIER_END] = {0}, ranks[TIER_END] = {0};
    uint64_t count = 0, children = 0, with_parent = 0, disk_children = 0, on_disk = 0;
    for (uint32_t id = 1; id <= tier->record_end; id++) {
        const struct tier_record *record = sc_tier_record(tier, id);
        if (!record) continue;
        SC_TRY(check_record(cache, record));
        count++;
        children += record->children;
        with_parent += record->parent != 0;
        disk_children += record->disk_children;
        on_disk += record->parent && (record->copies | record->writing) & 1u << SC_TIER_DISK;
        for (uint32_t t = TIER_FIRST; t < TIER_END; t++) {
            used[t] += record->bytes[t];
            copies[t] += ((record->copies | record->writing) & 1u << t) != 0;
            ranked[t] += record->place[t] != TIER_NOT_RANKED;
        }
    }
    for (uint32_t t = TIER_FIRST; t < TIER_END; t++) {
        ranks[t] = tier->order_count[t];
        CHECK(22, used[t] == tier->used[t] && used[t] <= tier->bytes_max[t]);
        CHECK(22, copies[t] == tier->count[t] && copies[t] <= tier->count_max[t]);
        CHECK(26, ranked[t] == ranks[t]);
    }
    CHECK(20, count == tier->record_count);
    CHECK(21, children == with_parent);
    CHECK(21, disk_children == on_disk);
    return SC_OK;
}

static sc_status check_transfer(const sc_cache *cache, const struct transfer *transfer,
    struct tier_totals *totals)
{
    sc_node node = SC_NODE_NONE;
    uint32_t what = 0;
    const struct tier_record *record = sc_tier_record(cache->tier, transfer->record);
    CHECK(23, record != NULL);
    if (transfer->job.op != SC_TIER_SPILL) {
        CHECK(24, sc_radix_receipt_get(cache->radix, transfer->receipt, &node, &what) == SC_OK);
        totals->receipts++;
    }
    if (transfer->job.op == SC_TIER_STORE) {
        CHECK(24, what == (SC_RADIX_LOCK_STATE | SC_RADIX_LOCK_KV));
        CHECK(24, node == record->device_node);
        return SC_OK;
    }
    if (transfer->job.op == SC_TIER_SPILL) return SC_OK;
    CHECK(25, (transfer->slot.id != 0) != (transfer->lease != NULL));
    if (transfer->slot.id) {
        sc_owner owner = SC_OWNER_FREE;
        CHECK(25, sc_pool_check(cache->options.pool, transfer->slot, &owner) == SC_OK);
        CHECK(25, owner == SC_OWNER_IN_FLIGHT);
        totals->slots++;
    }
    totals->held += transfer->page_count - transfer->first_page;
    for (const struct lease *lease = transfer->waiters; lease; lease = lease->restore_next) {
        CHECK(25, lease->restore == transfer && lease->waiting && lease->flights == 0);
    }
    return SC_OK;
}

sc_status sc_engine_tier_verify(const sc_cache *cache, struct tier_totals *totals_out)
{
    const struct tier *tier = cache->tier;
    uint64_t count = 0;
    *totals_out = (struct tier_totals){0, 0, 0};
    if (!tier) return SC_OK;
    SC_TRY(sc_radix_verify(tier->radix));
    SC_TRY(check_sums(cache));
    for (const struct transfer *transfer = tier->transfers; transfer;
         transfer = transfer->hh.next) {
        SC_TRY(check_transfer(cache, transfer, totals_out));
        count++;
    }
    CHECK(23, count == tier->transfer_count);
    return SC_OK;
}

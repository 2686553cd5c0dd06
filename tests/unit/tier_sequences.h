/* SPDX-License-Identifier: Apache-2.0 */
/* Records that say who they are, for tests that find a store as a crash left it: `kind` is the
 * number of the sequence, `numerics` its version, and both with the length give the payload. */
#ifndef TESTS_UNIT_TIER_SEQUENCES_H
#define TESTS_UNIT_TIER_SEQUENCES_H

#include "tier_fixture.h"

enum { TIER_SEQUENCE_BYTES_MAX = 60000 };

struct tier_sequence {
    uint32_t sequence, version, token_count, parent_len;
    double value;
    bool kv; /* a third of the payload is KV */
};

static inline uint64_t tier_sequence_tag(const struct tier_sequence *what)
{
    return ((uint64_t)what->sequence << 8 | what->version) << 12 | what->token_count;
}

static inline uint64_t tier_sequence_bytes(const struct tier_sequence *what)
{
    return 1 + sc_mix64(tier_sequence_tag(what)) % TIER_SEQUENCE_BYTES_MAX;
}

/* Begins a record and gives it its only shard. `*put_out` NULL: it is there already. */
static inline sc_status tier_sequence_begin(struct sc_store *store,
    const struct tier_sequence *what, struct sc_store_put **put_out)
{
    struct tier_key *key = malloc(sizeof *key);
    uint64_t bytes = tier_sequence_bytes(what), kv = what->kv ? bytes / 3 : 0;
    uint8_t *payload = malloc(bytes);
    tier_key_init(key, what->sequence, what->token_count);
    tier_fill(payload, bytes, tier_sequence_tag(what));
    struct sc_store_record record = tier_record(key);
    record.parent_len = what->parent_len;
    record.kind = what->sequence;
    record.numerics = what->version;
    record.value = what->value;
    *put_out = NULL;
    sc_status status = sc_store_begin(store, &record, what->kv, put_out);
    if (status == SC_OK && *put_out) {
        struct sc_store_payload sent = {payload, bytes - kv, kv, bytes - kv, 1, 0};
        status = sc_store_shard(store, *put_out, 0, &sent, 0);
        if (status != SC_OK) {
            sc_store_abort(store, *put_out);
            *put_out = NULL;
        }
    }
    free(payload);
    free(key);
    return status;
}

static inline sc_status tier_sequence_put(struct sc_store *store,
    const struct tier_sequence *what)
{
    struct sc_store_put *put = NULL;
    sc_status each = SC_OK, status = tier_sequence_begin(store, what, &put);
    if (status == SC_OK && put) status = sc_store_commit(store, &put, 1, 0, &each);
    return status == SC_OK ? each : status;
}

static inline bool tier_sequence_is_there(struct sc_store *store,
    const struct tier_sequence *what, struct sc_store_info *info_out)
{
    enum sc_store_reason reason = SC_STORE_FAILED;
    struct sc_store_want want = tier_want();
    struct tier_key *key = malloc(sizeof *key);
    tier_key_init(key, what->sequence, what->token_count);
    want.numerics = what->version;
    sc_status status = sc_store_find(store, &key->key, &want, &reason, info_out);
    free(key);
    return status == SC_OK && reason == SC_STORE_HIT;
}

static inline const char *tier_sequence_check_(struct sc_store *store,
    const struct sc_store_edge *edge, uint8_t *bytes)
{
    struct sc_store_reader *reader = NULL;
    struct tier_sequence what = {.sequence = edge->info.kind, .version = edge->info.numerics,
        .token_count = edge->info.token_count};
    for (uint32_t i = edge->info.parent_len; i < edge->info.token_count; i++) {
        if (edge->tokens[i - edge->info.parent_len] != tier_token(what.sequence, i)) {
            return "a record has tokens of another";
        }
    }
    if (edge->info.payload_bytes != tier_sequence_bytes(&what)) return "a record has a wrong size";
    if (sc_store_reader_open_id(store, edge->info.id, &reader) != SC_OK) {
        return "a record that is listed cannot be opened";
    }
    const char *fault = NULL;
    if (sc_store_read(reader, 0, bytes, TIER_SEQUENCE_BYTES_MAX) != SC_OK) {
        fault = "a record that is offered cannot be read";
    } else if (!tier_holds(bytes, edge->info.payload_bytes, tier_sequence_tag(&what))) {
        fault = "a record gives other bytes than were stored";
    }
    sc_store_reader_close(reader);
    return fault;
}

/* Whatever is visible is whole, and the metadata is clean: NULL, or what is not so. */
static inline const char *tier_sequences_check(struct sc_store *store, uint64_t *records_out)
{
    struct sc_store_verify_result result;
    struct sc_store_iter *iter = NULL;
    struct sc_store_edge edge;
    const char *fault = NULL;
    sc_status status = sc_store_verify(store, true, tier_say, NULL, &result);
    if (status != SC_OK || result.fault_count > 0) return "verify finds faults";
    if (tier_stats(store).reclaimed_count > 0) return "open had to drop records";
    if (sc_store_iter_open(store, &iter) != SC_OK) return "the tree cannot be listed";
    uint8_t *bytes = malloc(TIER_SEQUENCE_BYTES_MAX);
    uint64_t count = 0, disk_bytes = 0;
    while (!fault && (status = sc_store_iter_next(iter, &edge)) == SC_OK) {
        if (!edge.info.has_record) continue;
        fault = tier_sequence_check_(store, &edge, bytes);
        disk_bytes += edge.info.disk_bytes;
        count++;
    }
    if (!fault && status != SC_ERR_NOT_FOUND) fault = "the tree cannot be read";
    if (!fault && count != result.record_count) fault = "verify and the tree differ";
    if (!fault && disk_bytes != tier_stats(store).used_bytes) fault = "an extent is lost or shared";
    sc_store_iter_close(iter);
    free(bytes);
    *records_out = count;
    return fault;
}

#endif

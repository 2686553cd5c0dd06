/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: what is a legal one, and its permanent hash.
 *
 * The hash is XXH3-128 of a canonical text, each part of fixed or stated length, so that no two
 * keys share a text; it depends on nothing of this process (docs/reference/tier-format.md, "key").
 * It only leads to candidates: what is found is compared token by token. */
#define XXH_INLINE_ALL 1
#include <xxhash.h>

#include <string.h>

#include "store_internal.h"

struct key_text {
    char tag[8];
    uint8_t fingerprint[16];
    uint64_t adapter_id, adapter_generation, token_count, mark_count;
};
static_assert(sizeof(struct key_text) == 56, "text of a key");

struct tokens_text {
    char tag[8];
    uint64_t token_count;
};

sc_status store_key_check(const struct sc_store_key *key)
{
    SC_REQUIRE(key != NULL);
    SC_REQUIRE(key->tokens != NULL && key->token_count > 0);
    SC_REQUIRE(key->token_count <= SC_STORE_TOKENS_MAX);
    SC_REQUIRE(key->marks != NULL || key->mark_count == 0);
    for (uint32_t i = 0; i < key->mark_count; i++) {
        uint32_t at = key->marks[i].at;
        if (at >= key->token_count || (i > 0 && at <= key->marks[i - 1].at)) {
            return SC_FAIL(SC_ERR_INVALID, "mark %u at %u of a key of %u tokens", i, at,
                key->token_count);
        }
    }
    return SC_OK;
}

uint32_t store_marks_below(const struct sc_store_key *key, uint32_t at)
{
    uint32_t count = key->mark_count;
    while (count > 0 && key->marks[count - 1].at >= at) count--;
    return count;
}

static struct sc_store_hash digest(const struct sc_store *store, const XXH3_state_t *state)
{
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    struct sc_store_hash out = {hash.low64, hash.high64};
    if (store && store->options.hash_bits != 0) {
        out.low &= (UINT64_C(1) << store->options.hash_bits) - 1;
        out.high = 0;
    }
    return out;
}

struct sc_store_hash store_hash(const struct sc_store *store, const struct sc_store_key *key,
    uint32_t token_count)
{
    XXH3_state_t state;
    uint32_t mark_count = store_marks_below(key, token_count);
    struct key_text text = {.tag = {'s', 'c', '-', 'k', 'e', 'y', '-', '1'},
        .adapter_id = key->adapter_id, .adapter_generation = key->adapter_generation,
        .token_count = token_count, .mark_count = mark_count};
    memcpy(text.fingerprint, key->fingerprint.bytes, sizeof text.fingerprint);
    (void)XXH3_128bits_reset(&state);
    (void)XXH3_128bits_update(&state, &text, sizeof text);
    (void)XXH3_128bits_update(&state, key->tokens, token_count * sizeof *key->tokens);
    for (uint32_t i = 0; i < mark_count; i++) {
        (void)XXH3_128bits_update(&state, &key->marks[i], sizeof key->marks[i]);
    }
    return digest(store, &state);
}

struct sc_store_hash store_tokens_hash(const struct sc_store *store, const int32_t *tokens,
    uint32_t count)
{
    XXH3_state_t state;
    struct tokens_text text = {{'s', 'c', '-', 't', 'o', 'k', '-', '1'}, count};
    (void)XXH3_128bits_reset(&state);
    (void)XXH3_128bits_update(&state, &text, sizeof text);
    (void)XXH3_128bits_update(&state, tokens, count * sizeof *tokens);
    return digest(store, &state);
}

sc_status sc_store_key_hash(const struct sc_store_key *key, struct sc_store_hash *hash_out)
{
    SC_REQUIRE(hash_out != NULL);
    SC_TRY(store_key_check(key));
    *hash_out = store_hash(NULL, key, key->token_count);
    return SC_OK;
}

uint64_t store_check64(const void *bytes, size_t count)
{
    return XXH3_64bits(bytes, count);
}

sc_shard store_shard_resolved(const sc_shard *shard)
{
    sc_shard out = *shard;
    if (out.tp_size == 0) out.tp_size = 1;
    if (out.pp_size == 0) out.pp_size = 1;
    return out;
}

bool store_shard_equal(const sc_shard *shard, const struct node_shard *stored)
{
    sc_shard want = store_shard_resolved(shard);
    return want.tp_rank == stored->tp_rank && want.tp_size == stored->tp_size &&
        want.pp_rank == stored->pp_rank && want.pp_size == stored->pp_size &&
        want.layer_first == stored->layer_first && want.layer_count == stored->layer_count;
}

sc_status store_shards_check(const sc_shard *shards, uint32_t count)
{
    SC_REQUIRE(shards != NULL && count > 0 && count <= SC_STORE_SHARDS_MAX);
    for (uint32_t i = 1; i < count; i++) {
        sc_shard one = store_shard_resolved(&shards[i]);
        for (uint32_t other = 0; other < i; other++) {
            sc_shard two = store_shard_resolved(&shards[other]);
            if (memcmp(&one, &two, sizeof one) == 0) {
                return SC_FAIL(SC_ERR_INVALID, "shards %u and %u are the same", other, i);
            }
        }
    }
    return SC_OK;
}

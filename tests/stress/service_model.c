/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds, keys and what their states must be: stress_service.h.
 *
 * Keys are few, so that processes meet: some families of tokens, each with branches behind a common
 * trunk, of few lengths. Two families begin with a prompt that is common to all tenants:
 *
 *   tokens  | common prompt | trunk ... | branch ...
 *           0               c           BRANCH_AT
 *
 * Whose a state is ("scope"): the tenant's own behind c, nobody's up to c; a key that is shorter
 * than c is the tenant's own from its first token on; a key without a tenant is nobody's. */
#include <stdlib.h>
#include <string.h>

#include "stress_service.h"

enum { BRANCH_AT = 20, LEN_STEP = 4 };
static const uint32_t common_len[SV_FAMILIES] = {8, 16, 0, 0};
static const char *const tenant_names[SV_TENANTS] = {NULL, "stress-a", "stress-b", "stress-c"};

const char *const sv_op_names[SV_OP_COUNT] = {
#define X(name, text) text,
    SV_OP_LIST(X)
#undef X
};

static uint32_t below(struct sc_prng *rng, uint32_t bound)
{
    return (uint32_t)sc_prng_below(rng, bound);
}

void sv_world_draw(struct sv_world *world, uint64_t seed)
{
    struct sc_prng rng;
    sc_prng_seed(&rng, seed);
    *world = (struct sv_world){.seed = seed, .slots = 12 + below(&rng, 69),
        .page_tokens = below(&rng, 2) ? 4 : 1, .shape = below(&rng, 2),
        .processes = 2 + below(&rng, SV_PROCESSES_MAX - 1), .threads = 1 + below(&rng, 3),
        .rounds = 2 + below(&rng, 3), .round_ms = 150 + below(&rng, 350),
        .client_leases = 4 + below(&rng, 20), .pins = 1 + below(&rng, 8),
        .leases = 40 + below(&rng, 200), .quota_states = 2 + below(&rng, 20)};
    world->tenant_leases = below(&rng, 2) ? 0 : 4 + below(&rng, 24);
    world->disk = below(&rng, 3) > 0;
    world->host = below(&rng, 2);
    world->zstd = below(&rng, 3) == 0;
    world->gittins = below(&rng, 2);
    world->kill_ms = below(&rng, 4) ? 5 + below(&rng, 60) : 0;
    world->restart = below(&rng, 2);
    world->crash = below(&rng, 3) == 0;
    world->kept = below(&rng, 4) == 0;
    world->engine = below(&rng, 2);
    static const uint32_t usual[SV_OP_COUNT] = {[SV_OP_LOOKUP] = 12, [SV_OP_ACQUIRE] = 30,
        [SV_OP_RELEASE] = 20, [SV_OP_WRITE] = 24, [SV_OP_WRITE_HELD] = 3, [SV_OP_ABORT] = 3,
        [SV_OP_STILL_MAPPED] = 2, [SV_OP_HASH] = 3, [SV_OP_PIN] = 3, [SV_OP_EVICT] = 1,
        [SV_OP_QUOTA] = 2, [SV_OP_FOREIGN] = 2, [SV_OP_DROP] = 1, [SV_OP_RECONNECT] = 1,
        [SV_OP_PAUSE] = 1};
    for (uint32_t i = 0; i < SV_OP_COUNT; i++) {
        world->weights[i] = usual[i] * (1 + below(&rng, 4));
        if (i > SV_OP_WRITE && below(&rng, 6) == 0) world->weights[i] = 0;
    }
}

const char *sv_tenant_name(uint32_t tenant)
{
    return tenant_names[tenant];
}

uint64_t sv_adapter_id(uint32_t adapter)
{
    return UINT64_C(0x7374726573730000) + adapter; /* apart from those of others */
}

static void make_tokens(struct sv_key *key)
{
    for (uint32_t i = 0; i < key->count; i++) {
        uint64_t branch = i < BRANCH_AT ? 0 : key->branch + 1;
        key->tokens[i] = (int32_t)(sc_mix64(key->family * 8191u + branch * 131071u + i) >> 40);
    }
}

void sv_key_draw(struct sv_key *key, struct sc_prng *rng)
{
    /* The first ones are asked for more often. */
    uint32_t a = below(rng, SV_FAMILIES), b = below(rng, SV_FAMILIES);
    key->family = a < b ? a : b;
    key->branch = below(rng, SV_BRANCHES);
    key->tenant = below(rng, SV_TENANTS);
    key->adapter = below(rng, 8) == 0;
    key->count = LEN_STEP * (1 + below(rng, SV_TOKENS_MAX / LEN_STEP));
    if (key->count < SV_TOKENS_MAX && below(rng, 8) == 0) key->count++;
    make_tokens(key);
}

bool sv_common_key(uint32_t index, struct sv_key *key)
{
    if (index >= SV_FAMILIES || common_len[index] == 0) return false;
    *key = (struct sv_key){.family = index, .count = common_len[index]};
    make_tokens(key);
    return true;
}

sc_client_key sv_key_client(const struct sv_key *key, uint32_t len_max)
{
    return (sc_client_key){.tokens = key->tokens, .token_count = key->count, .len_max = len_max,
        .adapter_id = sv_adapter_id(key->adapter), .adapter_generation = 1,
        .tenant = tenant_names[key->tenant]};
}

uint64_t sv_base(const struct sv_key *key, uint32_t len)
{
    uint32_t common = common_len[key->family];
    uint32_t mark = key->count >= common ? common : 0; /* where the tenant's mark stands */
    uint64_t hash = sc_mix64(sv_adapter_id(key->adapter));
    if (key->tenant != 0 && len > mark) hash = sc_mix64(hash ^ (key->tenant + 16 * mark));
    for (uint32_t i = 0; i < len; i++) hash = sc_mix64(hash + (uint32_t)key->tokens[i]);
    return hash;
}

void sv_fill(const struct sv_key *key, uint32_t len, void *data, uint64_t from, uint64_t to)
{
    uint64_t base = sv_base(key, len), *words = data;
    for (uint64_t i = from; i < to; i++) words[i] = sc_mix64(base + i);
}

bool sv_shape_read(sc_client *client, struct sv_shape *shape)
{
    sc_client_info info = {.struct_size = sizeof info};
    sc_client_part parts[SV_PARTS_MAX];
    uint32_t count = 0;
    if (sc_client_info_get(client, &info) != SC_OK) return false;
    if (sc_client_parts(client, parts, SV_PARTS_MAX, &count) != SC_OK) return false;
    bool *inside = calloc(info.file_bytes / 8, sizeof *inside);
    if (!inside) return false;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t end = parts[i].offset + parts[i].bytes;
        for (uint64_t w = (parts[i].offset + 7) / 8; w < end / 8; w++) inside[w] = true;
    }
    free(shape->inside);
    shape->inside = inside;
    shape->words = info.file_bytes / 8;
    return true;
}

uint64_t sv_check(const struct sv_key *key, uint32_t len, const struct sv_shape *shape,
    const void *data)
{
    uint64_t base = sv_base(key, len);
    const uint64_t *words = data;
    for (uint64_t i = 0; i < shape->words; i++) {
        if (words[i] == sc_mix64(base + i)) continue;
        if (shape->inside[i] || words[i] != 0) return i;
    }
    return UINT64_MAX;
}

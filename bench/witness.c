/* SPDX-License-Identifier: Apache-2.0 */
#include "witness.h"

#include <stdlib.h>
#include <string.h>

#include "bench_common.h"

enum resumed_at resumed_at_of(sc_save_kind kind)
{
    switch (kind) {
    case SC_KIND_PROMPT_END:
        return AT_PROMPT_END;
    case SC_KIND_BRANCH:
        return AT_BRANCH;
    case SC_KIND_DECODE:
    case SC_KIND_END:
        return AT_DECODED_END;
    case SC_KIND_POINT:
        return AT_POINT;
    case SC_KIND_NONE:
        break;
    }
    return AT_NOTHING;
}

const char *resumed_at_name(enum resumed_at at)
{
    static const char *const names[AT_COUNT] = {"nothing", "prompt end", "branch point",
        "decoded end", "given point", "fork"};
    return names[at];
}

const char *witness_flag_name(int bit)
{
    static const char *const names[WITNESS_FLAG_COUNT] = {"forked", "readmitted",
        "across tenants", "inside a page", "preempted", "drafted", "overlapped", "on records"};
    return names[bit];
}

/* Which reservoir: the rarest of what applies. */
static struct witness_stratum *stratum_of(struct witness_set *set, enum resumed_at at,
    unsigned flags)
{
    for (int bit = 0; bit < WITNESS_STRATA - AT_COUNT; bit++)
        if (flags & 1u << bit)
            return &set->strata[AT_COUNT + bit];
    return &set->strata[at];
}

void witness_set_init(struct witness_set *set, const struct served_model *model, uint32_t wanted,
    uint64_t seed)
{
    memset(set, 0, sizeof *set);
    set->model = model;
    set->wanted = wanted;
    sc_prng_seed(&set->prng, sc_mix64(seed + 0xc4ec));
    for (int at = 0; at < WITNESS_STRATA; at++)
        set->strata[at].kept = bench_alloc(wanted, sizeof *set->strata[at].kept);
}

static void witness_free(struct witness *witness)
{
    if (!witness)
        return;
    void *owned[] = {witness->tokens, witness->hidden, witness->logits, witness->logit_at,
        witness->snapshot, witness->state, witness->kv_hash, witness->history};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    free(witness);
}

void witness_set_deinit(struct witness_set *set)
{
    for (int at = 0; at < WITNESS_STRATA; at++) {
        for (uint32_t i = 0; i < set->strata[at].count; i++)
            witness_free(set->strata[at].kept[i]);
        free(set->strata[at].kept);
    }
    witness_free(set->forced);
    memset(set, 0, sizeof *set);
}

static void let_go(struct witness *witness)
{
    witness->dropped = true;
    if (!witness->running)
        witness_free(witness);
}

static struct witness *witness_new(size_t request, enum resumed_at at, unsigned flags)
{
    struct witness *witness = bench_alloc(1, sizeof *witness);
    witness->request = request;
    witness->at = at;
    witness->admitted_as = witness->flags = flags;
    witness->running = true;
    return witness;
}

struct witness *witness_admit(struct witness_set *set, size_t request, enum resumed_at at,
    unsigned flags, bool force)
{
    if (force)
        return set->forced = witness_new(request, at, flags);
    struct witness_stratum *stratum = stratum_of(set, at, flags);
    uint64_t place = stratum->seen++;
    if (stratum->count < set->wanted) {
        place = stratum->count++;
    } else {
        place = sc_prng_below(&set->prng, place + 1);
        if (place >= set->wanted)
            return NULL;
        let_go(stratum->kept[place]);
    }
    return stratum->kept[place] = witness_new(request, at, flags);
}

void witness_stop(struct witness_set *set, struct witness *witness, bool whole)
{
    witness->running = false;
    if (witness->dropped) {
        witness_free(witness);
        return;
    }
    if (whole)
        return;
    if (set->forced == witness) {
        set->forced = NULL;
        witness_free(witness);
        return;
    }
    struct witness_stratum *stratum = stratum_of(set, witness->at, witness->admitted_as);
    for (uint32_t i = 0; i < stratum->count; i++)
        if (stratum->kept[i] == witness)
            stratum->kept[i] = stratum->kept[--stratum->count];
    witness_free(witness);
}

float *witness_hidden(const struct witness_set *set, struct witness *witness, uint32_t from,
    uint32_t len)
{
    size_t width = set->model->options.hidden;
    if (len - witness->resume_len > witness->hidden_cap) {
        size_t cap = witness->hidden_cap;
        witness->hidden = bench_grow(witness->hidden, &cap, len - witness->resume_len,
            width * sizeof *witness->hidden);
        witness->hidden_cap = (uint32_t)cap;
    }
    return witness->hidden + (from - witness->resume_len) * width;
}

void witness_logits(const struct witness_set *set, struct witness *witness, uint32_t at,
    const float *logits)
{
    size_t vocab = set->model->options.vocab, cap = witness->logit_cap, at_cap = cap;
    witness->logits = bench_grow(witness->logits, &cap, witness->logit_count + 1,
        vocab * sizeof *logits);
    witness->logit_at = bench_grow(witness->logit_at, &at_cap, witness->logit_count + 1,
        sizeof *witness->logit_at);
    witness->logit_cap = (uint32_t)cap;
    memcpy(witness->logits + witness->logit_count * vocab, logits, vocab * sizeof *logits);
    witness->logit_at[witness->logit_count++] = at;
}

/* --------------------------------------------------------------------------------------- sample */

struct pot {
    struct witness **items;
    uint32_t count;
};

/* Moves up to `count` random witnesses of one stratum (or all resumed, or all) to the sample. */
static void draw(struct witness_set *set, struct pot *pot, struct pot *sample, uint32_t count,
    bool (*fits)(const struct witness *, int), int argument)
{
    for (; count > 0; count--) {
        uint32_t fitting = 0;
        for (uint32_t i = 0; i < pot->count; i++)
            fitting += fits(pot->items[i], argument);
        if (fitting == 0)
            return;
        uint32_t chosen = (uint32_t)sc_prng_below(&set->prng, fitting), i = 0;
        while (!fits(pot->items[i], argument) || chosen-- > 0)
            i++;
        sample->items[sample->count++] = pot->items[i];
        pot->items[i] = pot->items[--pot->count];
    }
}

static bool is_at(const struct witness *witness, int at)
{
    return (int)witness->at == at;
}

static bool has_flag(const struct witness *witness, int flag)
{
    return (witness->flags & (unsigned)flag) != 0;
}

static bool is_resumed(const struct witness *witness, int any)
{
    return any || witness->at != AT_NOTHING;
}

struct witness **witness_sample(struct witness_set *set, uint32_t *count_out)
{
    struct pot pot = {0}, sample = {0};
    pot.items = bench_alloc((size_t)set->wanted * WITNESS_STRATA, sizeof *pot.items);
    sample.items = bench_alloc((size_t)set->wanted + 1, sizeof *sample.items);
    for (int at = 0; at < WITNESS_STRATA; at++)
        for (uint32_t i = 0; i < set->strata[at].count; i++)
            pot.items[pot.count++] = set->strata[at].kept[i];
    if (set->forced)
        sample.items[sample.count++] = set->forced;
    uint32_t wanted = set->wanted, fifth = (wanted + 4) / 5;
    for (int at = AT_PROMPT_END; at <= AT_DECODED_END; at++)
        if (sample.count + fifth <= wanted)
            draw(set, &pot, &sample, fifth, is_at, at);
    uint32_t tenth = (wanted + 9) / 10;
    for (int bit = 0; bit < WITNESS_FLAG_COUNT; bit++)
        if (sample.count + tenth <= wanted)
            draw(set, &pot, &sample, tenth, has_flag, 1 << bit);
    uint32_t half = (wanted + 1) / 2;
    if (sample.count < half)
        draw(set, &pot, &sample, half - sample.count, is_resumed, 0);
    if (sample.count < wanted)
        draw(set, &pot, &sample, wanted - sample.count, is_resumed, 1);
    free(pot.items);
    *count_out = sample.count;
    return sample.items;
}

/* --------------------------------------------------------------------------------------- states */

static uint32_t part_count(const sc_pool *pool)
{
    sc_pool_info info;
    bench_must(sc_pool_info_get(pool, &info), "sc_pool_info_get");
    return info.part_count;
}

static sc_devptr part_of(const sc_pool *pool, uint32_t index, int32_t slot, uint64_t *bytes,
    sc_part *part)
{
    sc_layer_view view;
    bench_must(sc_pool_part_view(pool, index, &view, part), "sc_pool_part_view");
    *bytes = view.bytes;
    return view.base + (sc_devptr)((int64_t)slot * view.slot_stride);
}

static sc_backend *backend_of(const sc_pool *pool)
{
    sc_backend *backend;
    bench_must(sc_pool_backend(pool, &backend), "sc_pool_backend");
    return backend;
}

uint64_t state_bytes(const sc_pool *pool)
{
    uint64_t sum = 0, bytes;
    sc_part part;
    for (uint32_t i = 0; i < part_count(pool); i++) {
        part_of(pool, i, 0, &bytes, &part);
        sum += bytes;
    }
    return sum;
}

void state_read(const sc_pool *pool, int32_t slot, unsigned char *out)
{
    uint64_t bytes;
    sc_part part;
    for (uint32_t i = 0; i < part_count(pool); i++) {
        sc_devptr from = part_of(pool, i, slot, &bytes, &part);
        place_copy(backend_of(pool), dev(out), from, bytes);
        out += bytes;
    }
}

/* Bytes of ring `index` of a pool of rings, a record's in `record`; 0: it is none. */
static uint64_t ring_of(const sc_pool *rings, uint32_t index, int32_t slot, sc_devptr *at,
    uint64_t *record)
{
    uint64_t bytes;
    sc_part part;
    *at = part_of(rings, index, slot, &bytes, &part);
    *record = part.dim_count == 2 ? part.dims[1] : 0;
    return *record > 0 ? bytes : 0;
}

uint64_t full_bytes(const sc_pool *pool, const sc_pool *rings)
{
    uint64_t sum = state_bytes(pool), record;
    sc_devptr at;
    for (uint32_t i = 0; rings && i < part_count(rings); i++)
        sum += ring_of(rings, i, 0, &at, &record);
    return rings ? sum + sizeof(int32_t) : sum;
}

void full_read(const struct state_place *place, unsigned char *out)
{
    uint64_t record;
    sc_devptr at;
    state_read(place->pool, place->slot, out);
    if (!place->rings)
        return;
    out += state_bytes(place->pool);
    int32_t records = place->ring.records;
    for (uint32_t i = 0; i < part_count(place->rings); i++) {
        uint64_t bytes = ring_of(place->rings, i, records > 0 ? place->ring.slot : 0, &at, &record);
        memset(out, 0, bytes);
        if (records > 0)
            place_copy(backend_of(place->rings), dev(out), at, (uint64_t)records * record);
        out += bytes;
    }
    memcpy(out, &records, sizeof records);
}

struct state_place lease_place(const sc_pool *pool, const sc_pool *rings,
    const sc_lease_info *info)
{
    return (struct state_place){pool, rings, info->source_slot,
        {.slot = info->records_slot, .records = (int32_t)info->records}};
}

void state_flip(const sc_pool *pool, int32_t slot, struct sc_prng *prng, char *text, size_t bytes)
{
    uint64_t at = sc_prng_below(prng, state_bytes(pool) * 8), part_bytes;
    sc_part part;
    for (uint32_t i = 0; i < part_count(pool); i++) {
        sc_devptr data = part_of(pool, i, slot, &part_bytes, &part);
        if (at < part_bytes * 8) {
            unsigned char byte;
            place_copy(backend_of(pool), dev(&byte), data + at / 8, 1);
            byte ^= (unsigned char)(1u << at % 8);
            place_copy(backend_of(pool), data + at / 8, dev(&byte), 1);
            snprintf(text, bytes, "bit %llu of the %s of layer %u in slot %d",
                (unsigned long long)at,
                part.kind == SC_PART_CONV ? "conv window" : "recurrent matrix", part.layer, slot);
            return;
        }
        at -= part_bytes * 8;
    }
}

uint64_t kv_token_hash(const struct served_model *model, const struct paged_kv *kv,
    const int32_t *pages, uint32_t token)
{
    uint64_t hash = 0;
    for (uint32_t layer = 0; layer < model->attention_layers; layer++) {
        const float *row = paged_kv_row(kv, layer, pages[token / kv->page_tokens],
            token % kv->page_tokens);
        for (uint32_t i = 0; i < kv->row_floats; i++) {
            uint32_t bits;
            memcpy(&bits, &row[i], sizeof bits);
            hash = sc_mix64(hash ^ bits);
        }
    }
    return hash;
}

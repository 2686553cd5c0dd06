/* SPDX-License-Identifier: Apache-2.0 */
/* A store that other processes share, as a tier: jobs become calls of an sc_remote.
 *
 * How a state was computed is not seen in its tokens, and a state of another history has other bits
 * (contract 9). So the history goes into the key, as marks: "from this token on content also
 * depends on the id" is what a stretch of a history says.
 *
 *   tokens    0 .......... 40 ....... 52 ...          history: prefill 40, decode 52, prefill ...
 *   marks                  |          |
 *                          decode     prefill         ids: a hash of form, numerics, and of the
 *                                                     mark that the key itself has there
 *
 * One prefill from token 0 on has no mark with the first revision of the numerics: these are the
 * keys of clients that write states themselves. A prefix of the tokens has a prefix of the marks,
 * so the store finds the longest state with this history. */
#define XXH_INLINE_ALL 1
#include <xxhash.h>

#include <string.h>

#include "base/error.h"
#include "tiers_internal.h"

enum { ALIGN = 4096, NUMERICS_USUAL = 1 };

/* A key and the memory of its marks. */
struct made {
    sc_remote_key key;
    sc_mark *marks;
    size_t bytes;
};

static void mark_make(const struct tiers *tiers, uint32_t at, uint32_t form, const sc_mark *own,
    sc_mark *mark_out)
{
    struct { char label[24]; uint32_t form, numerics, met; uint8_t id[16]; } text;
    XXH128_canonical_t canonical;
    static_assert(sizeof text == 52, "docs/reference/protocol.md says so");
    memset(&text, 0, sizeof text);
    memcpy(text.label, "statecache history", 18);
    text.form = form;
    text.numerics = tiers->numerics;
    text.met = own != NULL;
    if (own) memcpy(text.id, own->id, sizeof text.id);
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(&text, sizeof text));
    static_assert(sizeof canonical.digest == sizeof mark_out->id, "128 bits");
    mark_out->at = at;
    memcpy(mark_out->id, canonical.digest, sizeof mark_out->id);
}

/* The key's own marks and those of its history, in their order. */
static uint32_t marks_make(const struct tiers *tiers, const struct sc_tier_find *from,
    sc_mark *marks)
{
    uint32_t count = 0, own = 0, begin = 0;
    for (uint32_t i = 0; i < from->history_count && begin < from->token_count; i++) {
        const struct sc_stretch *stretch = &from->history[i];
        while (own < from->mark_count && from->marks[own].at < begin) {
            marks[count++] = from->marks[own++];
        }
        bool meets = own < from->mark_count && from->marks[own].at == begin;
        if (i > 0 || stretch->form != SC_FORM_PREFILL || tiers->numerics != NUMERICS_USUAL) {
            mark_make(tiers, begin, stretch->form, meets ? &from->marks[own] : NULL,
                &marks[count++]);
            own += meets;
        }
        begin = stretch->end;
    }
    while (own < from->mark_count && from->marks[own].at < from->token_count) {
        marks[count++] = from->marks[own++];
    }
    return count;
}

static sc_status key_make(struct tiers *tiers, const struct sc_tier_find *from,
    struct made *made_out)
{
    size_t bytes = ((size_t)from->mark_count + from->history_count + 1) * sizeof(sc_mark);
    sc_mark *marks = sc_heap_alloc(&tiers->heap, bytes, 16);
    if (!marks) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %zu bytes of marks", bytes);
    uint32_t count = marks_make(tiers, from, marks);
    *made_out = (struct made){{from->adapter_id, from->adapter_generation, from->tokens, marks,
        from->token_count, count, from->len_max}, marks, bytes};
    return SC_OK;
}

static void key_free(struct tiers *tiers, struct made *made)
{
    sc_heap_free(&tiers->heap, made->marks, made->bytes);
}

static struct sc_tier_find key_of_job(const struct sc_tier_job *job, uint32_t token_count)
{
    return (struct sc_tier_find){job->adapter_id, job->adapter_generation, job->tokens, job->marks,
        token_count, job->mark_count, token_count, job->history, job->history_count};
}

/* ---- whose states ---- */

sc_status sc_tiers_remote_check(const struct tiers *tiers, uint64_t state_bytes)
{
    const sc_remote *remote = &tiers->remote;
    sc_pool_info info;
    sc_layer_view view;
    sc_part part;
    SC_TRY(sc_pool_info_get(tiers->pool, &info));
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t i = 0; i < info.part_count; i++) {
        SC_TRY(sc_pool_part_view(tiers->pool, i, &view, &part));
        if (part.layer < first) first = part.layer;
        if (part.layer > last) last = part.layer;
    }
    bool same = memcmp(&remote->fingerprint, &tiers->fingerprint, sizeof remote->fingerprint) == 0;
    if (same && remote->state_bytes == state_bytes && remote->tp_rank == info.shard.tp_rank &&
        remote->tp_size == info.shard.tp_size && remote->layer_first == first &&
        remote->layer_last == last) {
        return SC_OK;
    }
    return SC_FAIL(SC_ERR_MISMATCH, "the remote tier has states of %s: rank %u of %u, layers %u to "
        "%u, %llu bytes; the pool: rank %u of %u, layers %u to %u, %llu bytes",
        same ? "this model" : "another model", remote->tp_rank, remote->tp_size,
        remote->layer_first, remote->layer_last, (unsigned long long)remote->state_bytes,
        info.shard.tp_rank, info.shard.tp_size, first, last, (unsigned long long)state_bytes);
}

/* ---- jobs ---- */

sc_status sc_tiers_remote_store(struct tiers *tiers, struct sc_tier_job *job)
{
    const struct sc_codec *codec = NULL;
    const struct sc_tier_find from = key_of_job(job, job->token_count);
    struct made made;
    uint64_t bytes = 0, capacity = tiers->remote.state_bytes;
    SC_TRY(sc_codec_by_id(SC_CODEC_RAW, &codec));
    SC_TRY(key_make(tiers, &from, &made));
    void *state = sc_heap_alloc(&tiers->heap, (size_t)capacity, ALIGN);
    sc_status status = state ? SC_OK : SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a state");
    if (status == SC_OK) {
        status = sc_codec_encode(codec, tiers->pool, job->slot, state, capacity, &bytes);
    }
    if (status == SC_OK) status = tiers->remote.store(tiers->remote.ctx, &made.key, state);
    job->bytes = bytes;
    sc_heap_free(&tiers->heap, state, (size_t)capacity);
    key_free(tiers, &made);
    return status;
}

sc_status sc_tiers_remote_load(struct tiers *tiers, struct sc_tier_job *job,
    const struct sc_tier_source *source)
{
    const struct sc_tier_find from = key_of_job(job, source->token_count);
    struct made made;
    uint64_t bytes = tiers->remote.state_bytes;
    SC_TRY(key_make(tiers, &from, &made));
    job->owned = sc_heap_alloc(&tiers->heap, (size_t)bytes, ALIGN);
    job->owned_bytes = bytes;
    sc_status status = job->owned ? SC_OK : SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a state");
    if (status == SC_OK) status = tiers->remote.load(tiers->remote.ctx, &made.key, job->owned);
    key_free(tiers, &made);
    SC_TRY(status);
    job->payload = job->owned;
    job->state_bytes = job->plain_bytes = bytes;
    job->kv_bytes = 0;
    job->codec = SC_CODEC_RAW;
    job->flags = 0;
    return SC_OK;
}

sc_status sc_tiers_remote_find(sc_tiers *base, const struct sc_tier_find *finds, uint32_t count,
    uint32_t *len_out)
{
    struct tiers *tiers = (struct tiers *)(void *)base;
    uint32_t made_count = 0;
    memset(len_out, 0, count * sizeof *len_out);
    if (!tiers->remote.find || count == 0) return SC_OK;
    struct made *made = sc_heap_calloc(&tiers->heap, count, sizeof *made);
    sc_remote_key *keys = sc_heap_calloc(&tiers->heap, count, sizeof *keys);
    sc_status status = made && keys ? SC_OK : SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u keys",
        count);
    while (status == SC_OK && made_count < count) {
        status = key_make(tiers, &finds[made_count], &made[made_count]);
        if (status != SC_OK) break;
        keys[made_count] = made[made_count].key;
        made_count++;
    }
    if (status == SC_OK) status = tiers->remote.find(tiers->remote.ctx, keys, count, len_out);
    for (uint32_t i = 0; i < made_count; i++) key_free(tiers, &made[i]);
    for (uint32_t i = 0; i < count; i++) {
        if (status != SC_OK || len_out[i] > finds[i].len_max) len_out[i] = 0;
    }
    sc_heap_free(&tiers->heap, made, count * sizeof *made);
    sc_heap_free(&tiers->heap, keys, count * sizeof *keys);
    return status;
}

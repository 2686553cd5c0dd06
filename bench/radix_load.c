/* SPDX-License-Identifier: Apache-2.0 */
#include "radix_load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "bench_common.h"

enum { VOCABULARY = 151936, SYSTEMS = 64, DOCUMENTS = 200, PREFIXES = 100, TURNS = 8 };

void radix_load_tokens(int32_t *tokens, size_t count, uint64_t seed)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, seed);
    for (size_t i = 0; i + 1 < count; i += 2) { /* two a draw; the bias is 2^-15 of a token */
        uint64_t draw = sc_prng_next(&prng);
        tokens[i] = (int32_t)((draw >> 32) * VOCABULARY >> 32);
        tokens[i + 1] = (int32_t)((draw & UINT32_MAX) * VOCABULARY >> 32);
    }
    if (count % 2)
        tokens[count - 1] = (int32_t)sc_prng_below(&prng, VOCABULARY);
}

static double between(struct sc_prng *prng, double low, double high)
{
    return low + (high - low) * sc_prng_unit(prng);
}

static uint32_t log_between(struct sc_prng *prng, double low, double high)
{
    return (uint32_t)exp(between(prng, log(low), log(high)));
}

static uint64_t seed_of(const struct radix_load *load, uint64_t kind, uint64_t index)
{
    return sc_mix64(sc_mix64(load->seed ^ kind << 56) + index);
}

/* ---- W1 ---- */

struct chat { uint32_t system, system_len, document, document_len, len; };

static void chats_make(struct sc_prng *prng, struct chat *chats, uint32_t count)
{
    uint32_t systems[SYSTEMS], documents[DOCUMENTS];
    for (int i = 0; i < SYSTEMS; i++)
        systems[i] = log_between(prng, 512, 4096);
    for (int i = 0; i < DOCUMENTS; i++)
        documents[i] = log_between(prng, 4096, 20000);
    for (uint32_t i = 0; i < count; i++) {
        double pareto = 1 / (1 - sc_prng_unit(prng)) - 1;
        uint32_t s = pareto < SYSTEMS - 1 ? (uint32_t)pareto : SYSTEMS - 1;
        chats[i] = (struct chat){.system = s, .system_len = systems[s], .len = systems[s]};
        if (sc_prng_unit(prng) >= 0.4)
            continue;
        chats[i].document = (uint32_t)sc_prng_below(prng, DOCUMENTS);
        chats[i].document_len = documents[chats[i].document];
        chats[i].len += chats[i].document_len;
    }
}

static void shuffle(struct sc_prng *prng, uint32_t *items, uint32_t count)
{
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = (uint32_t)sc_prng_below(prng, i);
        uint32_t item = items[i - 1];
        items[i - 1] = items[j];
        items[j] = item;
    }
}

static void turns_make(struct radix_load *load, struct sc_prng *prng, struct chat *chats)
{
    uint32_t *order = bench_alloc(load->count, sizeof *order);
    for (uint32_t i = 0; i < load->count; i++)
        order[i] = i / TURNS;
    shuffle(prng, order, load->count);
    for (uint32_t i = 0; i < load->count; i++) {
        struct chat *chat = &chats[order[i]];
        uint32_t prompt = chat->len + 32 + (uint32_t)sc_prng_below(prng, 480);
        uint32_t full = prompt + 64 + (uint32_t)sc_prng_below(prng, 960);
        if (full > RADIX_KEY_MAX)
            prompt = full = RADIX_KEY_MAX;
        load->requests[i] = (struct radix_request){prompt, full, order[i], 0};
        load->token_total += full;
        chat->len = full;
    }
    free(order);
}

static void chats_fill(struct radix_load *load, const struct chat *chats)
{
    for (uint32_t c = 0; c < load->source_count; c++) {
        int32_t *tokens = load->flat + load->offsets[c];
        uint32_t at = chats[c].system_len;
        radix_load_tokens(tokens, at, seed_of(load, 1, chats[c].system));
        if (chats[c].document_len > 0)
            radix_load_tokens(tokens + at, chats[c].document_len,
                seed_of(load, 2, chats[c].document));
        at += chats[c].document_len;
        radix_load_tokens(tokens + at, chats[c].len - at, seed_of(load, 3, c));
    }
}

static void open_chats(struct radix_load *load, struct sc_prng *prng)
{
    load->source_count = load->count / TURNS;
    load->count = load->source_count * TURNS;
    struct chat *chats = bench_alloc(load->source_count, sizeof *chats);
    chats_make(prng, chats, load->source_count);
    turns_make(load, prng, chats);
    load->offsets = bench_alloc(load->source_count + 1u, sizeof *load->offsets);
    for (uint32_t c = 0; c < load->source_count; c++)
        load->offsets[c + 1] = load->offsets[c] + chats[c].len;
    size_t total = load->offsets[load->source_count];
    load->flat = bench_alloc(total, sizeof *load->flat);
    chats_fill(load, chats);
    for (int copy = 0; copy < 2; copy++) {
        load->keys[copy] = bench_alloc(total, sizeof *load->flat);
        memcpy(load->keys[copy], load->flat, total * sizeof *load->flat);
    }
    free(chats);
}

/* ---- W2 ---- */

static void open_cuts(struct radix_load *load, struct sc_prng *prng)
{
    load->source_count = PREFIXES;
    load->offsets = bench_alloc(PREFIXES + 1u, sizeof *load->offsets);
    load->flat = bench_alloc((size_t)PREFIXES * RADIX_KEY_MAX, sizeof *load->flat);
    for (uint32_t p = 0; p < PREFIXES; p++) {
        load->offsets[p + 1] = load->offsets[p] + RADIX_KEY_MAX;
        radix_load_tokens(load->flat + load->offsets[p], RADIX_KEY_MAX, seed_of(load, 4, p));
    }
    for (uint32_t i = 0; i < load->count; i++) {
        uint32_t full = log_between(prng, 1024, RADIX_KEY_MAX);
        uint32_t shared = (uint32_t)(full * between(prng, 0.2, 0.95));
        uint32_t answer = full / 4 < 256 ? full / 4 : 256;
        uint32_t prefix = (uint32_t)sc_prng_below(prng, PREFIXES);
        load->requests[i] = (struct radix_request){full - answer, full, prefix, shared};
        load->token_total += full;
    }
    for (int copy = 0; copy < 2; copy++)
        load->keys[copy] = bench_alloc((size_t)RADIX_WINDOW * RADIX_KEY_MAX, sizeof *load->flat);
    load->starts = bench_alloc(RADIX_WINDOW, sizeof *load->starts);
    load->window = load->count;
}

static void window_make(struct radix_load *load, uint32_t first)
{
    size_t at = 0;
    load->window = first;
    for (uint32_t i = first; i < load->count && i < first + RADIX_WINDOW; i++) {
        const struct radix_request *request = &load->requests[i];
        load->starts[i - first] = at;
        for (int copy = 0; copy < 2; copy++) {
            int32_t *key = load->keys[copy] + at;
            memcpy(key, radix_load_flat(load, i), request->shared * sizeof *key);
            radix_load_tokens(key + request->shared, request->full - request->shared,
                seed_of(load, 5, i));
        }
        at += request->full;
    }
}

/* ---- both ---- */

void radix_load_open(struct radix_load *load, bool chats, uint32_t count, uint64_t seed)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, seed);
    *load = (struct radix_load){.chats = chats, .name = chats ? "W1" : "W2", .seed = seed,
        .count = count};
    load->requests = bench_alloc(count, sizeof *load->requests);
    if (chats)
        open_chats(load, &prng);
    else
        open_cuts(load, &prng);
}

void radix_load_close(struct radix_load *load)
{
    free(load->requests);
    free(load->offsets);
    free(load->flat);
    free(load->keys[0]);
    free(load->keys[1]);
    free(load->starts);
}

const int32_t *radix_load_key(struct radix_load *load, uint32_t i, int copy)
{
    if (load->chats)
        return load->keys[copy] + load->offsets[load->requests[i].source];
    uint32_t first = i - i % RADIX_WINDOW;
    if (load->window != first)
        window_make(load, first);
    return load->keys[copy] + load->starts[i - first];
}

const int32_t *radix_load_flat(const struct radix_load *load, uint32_t i)
{
    return load->flat + load->offsets[load->requests[i].source];
}

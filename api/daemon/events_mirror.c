/* SPDX-License-Identifier: Apache-2.0 */
/* States by copy, and their hashes: events_mirror.h. */
#include "events_mirror.h"

#include <msgpack.h>
#include <openssl/evp.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "wire/fault.h"

/* Where the chain begins: what vLLM takes when no seed is set. */
static const uint8_t chain_begin[SD_HASH_BYTES] = {0x9b, 0xd9, 0x6a, 0x48, 0x5a, 0xd8, 0x4e, 0xfd,
    0xaf, 0xb7, 0x2e, 0xe4, 0x8a, 0x1d, 0x7a, 0x69, 0xbc, 0xea, 0xd0, 0xf8, 0xf0, 0x43, 0x31, 0x73,
    0x94, 0x1b, 0x27, 0x6b, 0x95, 0x81, 0xee, 0xf0};

struct named { uint64_t copy; struct sd_state *state; };

static int order(const void *a, const void *b)
{
    uint64_t x = ((const struct named *)a)->copy, y = ((const struct named *)b)->copy;
    return x < y ? -1 : x > y;
}

void sd_mirror_init(struct sd_mirror *mirror, uint32_t block)
{
    *mirror = (struct sd_mirror){.block = block};
}

/* ---- the list ---- */

static void list_add(struct sd_mirror *mirror, struct sd_state *state)
{
    state->before = mirror->last;
    if (mirror->last) {
        mirror->last->next = state;
    } else {
        mirror->first = state;
    }
    mirror->last = state;
    mirror->state_count++;
}

static void state_free(struct sd_state *state)
{
    if (!state) return;
    free(state->tokens);
    free(state->marks);
    free(state);
}

/* Frees what has neither copies nor children, and those above likewise (1). */
static void settle(struct sd_mirror *mirror, struct sd_state *state)
{
    while (state && state->copies == 0 && state->children == 0) {
        struct sd_state *parent = state->parent;
        *(state->before ? &state->before->next : &mirror->first) = state->next;
        *(state->next ? &state->next->before : &mirror->last) = state->before;
        mirror->state_count--;
        state_free(state);
        if (parent) parent->children--;
        state = parent;
    }
}

void sd_mirror_clear(struct sd_mirror *mirror)
{
    while (mirror->by_copy) {
        struct named *named = *(struct named **)mirror->by_copy;
        (void)tdelete(named, &mirror->by_copy, order);
        free(named);
    }
    for (struct sd_state *state = mirror->first, *next; state; state = next) {
        next = state->next;
        state_free(state);
    }
    free(mirror->tokens);
    free(mirror->marks);
    sd_mirror_init(mirror, mirror->block);
}

static struct named *find(struct sd_mirror *mirror, uint64_t copy)
{
    const struct named key = {copy, NULL};
    void *found = tfind(&key, &mirror->by_copy, order);
    return found ? *(struct named **)found : NULL;
}

const struct sd_state *sd_state_base(const struct sd_state *state)
{
    const struct sd_state *base = state->parent;
    while (base && base->copies == 0) base = base->parent;
    return base;
}

/* ---- keys ---- */

static sc_status reserve(void **array, size_t *cap, size_t need, size_t item_bytes)
{
    if (need <= *cap) return SC_OK;
    size_t to = need + need / 2 + 64;
    void *grown = realloc(*array, to * item_bytes);
    if (!grown) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for the key of a state");
    *array = grown;
    *cap = to;
    return SC_OK;
}

sc_status sd_state_path(struct sd_mirror *mirror, const struct sd_state *state, uint32_t from,
    const int32_t **tokens_out, const sc_mark **marks_out, uint32_t *mark_count_out)
{
    uint32_t marks = 0, at = 0;
    void *tokens = mirror->tokens, *mark_array = mirror->marks;
    sc_status status = reserve(&tokens, &mirror->token_cap, state->len - from + 1,
        sizeof *mirror->tokens);
    mirror->tokens = tokens;
    SC_PASS(status);
    for (const struct sd_state *up = state; up && up->len > from; up = up->parent) {
        marks += up->mark_count;
    }
    status = reserve(&mark_array, &mirror->mark_cap, marks + 1, sizeof *mirror->marks);
    mirror->marks = mark_array;
    SC_PASS(status);
    at = marks;
    for (const struct sd_state *up = state; up && up->len > from; up = up->parent) {
        uint32_t first = up->from > from ? up->from : from;
        memcpy(mirror->tokens + (first - from), up->tokens + (first - up->from),
            (up->len - first) * sizeof *up->tokens);
        for (uint32_t i = up->mark_count; i-- > 0;) {
            if (up->marks[i].at >= from) mirror->marks[--at] = up->marks[i];
        }
    }
    *tokens_out = mirror->tokens;
    *marks_out = mirror->marks + at;
    *mark_count_out = marks - at;
    return SC_OK;
}

/* ---- hashes ---- */

void sd_adapter_name(uint64_t id, uint64_t generation, char text[SD_ADAPTER_BYTES])
{
    text[0] = '\0';
    if (id == 0 && generation == 0) return;
    (void)snprintf(text, SD_ADAPTER_BYTES, "%llu/%llu", (unsigned long long)id,
        (unsigned long long)generation);
}

void sd_mark_text(const sc_mark *mark, char text[SD_MARK_TEXT_BYTES])
{
    for (size_t i = 0; i < sizeof mark->id; i++) {
        (void)snprintf(text + 2 * i, 3, "%02x", mark->id[i]);
    }
}

/* CBOR (RFC 8949), straight into the digest: heads of definite length, numbers, bytes, text. */
static void cbor_head(EVP_MD_CTX *digest, uint8_t major, uint64_t value)
{
    uint8_t bytes[9] = {0};
    size_t count = value < 24 ? 0 : value < 256 ? 1 : value < 65536 ? 2 : value >> 32 == 0 ? 4 : 8;
    uint8_t detail = (uint8_t)(count == 0 ? value : count == 1 ? 24 : count == 2 ? 25 :
        count == 4 ? 26 : 27);
    bytes[0] = (uint8_t)(major << 5 | detail);
    for (size_t i = 0; i < count; i++) bytes[1 + i] = (uint8_t)(value >> (8 * (count - 1 - i)));
    (void)EVP_DigestUpdate(digest, bytes, count + 1);
}

static void cbor_number(EVP_MD_CTX *digest, int64_t value)
{
    cbor_head(digest, value < 0, (uint64_t)(value < 0 ? -1 - value : value));
}

static void cbor_text(EVP_MD_CTX *digest, const char *text)
{
    cbor_head(digest, 3, strlen(text));
    (void)EVP_DigestUpdate(digest, text, strlen(text));
}

/* One block: tokens [at, at + count), and what is said beside them. */
static void hash_block(EVP_MD_CTX *digest, uint8_t chain[SD_HASH_BYTES], const int32_t *tokens,
    uint32_t at, uint32_t count, const sc_mark *marks, uint32_t mark_count, const char *adapter)
{
    unsigned bytes = 0;
    char text[SD_MARK_TEXT_BYTES];
    uint32_t extras = mark_count + (adapter[0] != '\0');
    if (EVP_DigestInit_ex(digest, EVP_sha256(), NULL) != 1) abort(); /* the library is broken */
    cbor_head(digest, 4, 3);
    cbor_head(digest, 2, SD_HASH_BYTES);
    (void)EVP_DigestUpdate(digest, chain, SD_HASH_BYTES);
    cbor_head(digest, 4, count);
    for (uint32_t i = 0; i < count; i++) cbor_number(digest, tokens[i]);
    if (extras == 0) {
        cbor_head(digest, 7, 22); /* null */
    } else {
        cbor_head(digest, 4, extras);
    }
    if (adapter[0] != '\0') {
        cbor_head(digest, 4, 3);
        cbor_text(digest, "lora");
        cbor_text(digest, adapter);
        cbor_text(digest, "");
    }
    for (uint32_t i = 0; i < mark_count; i++) {
        cbor_head(digest, 4, 3);
        cbor_text(digest, "mm");
        sd_mark_text(&marks[i], text);
        cbor_text(digest, text);
        cbor_number(digest, marks[i].at - at);
    }
    if (EVP_DigestFinal_ex(digest, chain, &bytes) != 1 || bytes != SD_HASH_BYTES) abort();
}

/* Goes on from the chain of the state above. */
static sc_status hash_state(struct sd_mirror *mirror, struct sd_state *state)
{
    const struct sd_state *parent = state->parent;
    const int32_t *tokens = NULL;
    const sc_mark *marks = NULL;
    uint32_t mark_count = 0, block = mirror->block, i = 0;
    uint32_t from = parent ? parent->len - parent->len % block : 0;
    uint8_t end[SD_HASH_BYTES];
    char adapter[SD_ADAPTER_BYTES];
    EVP_MD_CTX *digest = EVP_MD_CTX_new();
    if (!digest) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for a hash");
    sc_status status = sd_state_path(mirror, state, from, &tokens, &marks, &mark_count);
    memcpy(state->chain, parent ? parent->chain : chain_begin, SD_HASH_BYTES);
    memcpy(end, state->chain, SD_HASH_BYTES);
    sd_adapter_name(state->adapter_id, state->adapter_generation, adapter);
    for (uint32_t at = from; status == SC_OK && at < state->len; at += block) {
        uint32_t count = state->len - at < block ? state->len - at : block, of = 0;
        while (i + of < mark_count && marks[i + of].at < at + count) of++;
        hash_block(digest, end, tokens + (at - from), at, count, marks + i, of, adapter);
        if (count == block) memcpy(state->chain, end, SD_HASH_BYTES);
        i += of;
    }
    state->hash = 0;
    for (int b = SD_HASH_BYTES - 8; b < SD_HASH_BYTES; b++) state->hash = state->hash << 8 | end[b];
    EVP_MD_CTX_free(digest);
    return status;
}

/* ---- changes ---- */

static void *copy_of(const void *items, size_t bytes, bool *good)
{
    void *copy = malloc(bytes + 1);
    if (!copy) *good = false;
    if (copy && bytes > 0) memcpy(copy, items, bytes);
    return copy;
}

static sc_status state_make(struct sd_mirror *mirror, const sc_event *event,
    struct sd_state *parent, struct sd_state **state_out)
{
    struct sd_state *state = calloc(1, sizeof *state);
    bool good = state != NULL;
    if (good) {
        state->tokens = copy_of(event->tokens,
            (event->len - event->base_len) * sizeof *event->tokens, &good);
        state->marks = copy_of(event->marks, event->mark_count * sizeof *event->marks, &good);
    }
    if (!good) {
        state_free(state);
        return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for a state");
    }
    state->parent = parent;
    state->from = event->base_len;
    state->len = event->len;
    state->mark_count = event->mark_count;
    state->adapter_id = event->adapter_id;
    state->adapter_generation = event->adapter_generation;
    sc_status status = hash_state(mirror, state);
    if (status != SC_OK) {
        state_free(state);
        return status;
    }
    if (parent) parent->children++;
    list_add(mirror, state);
    *state_out = state;
    return SC_OK;
}

sc_status sd_mirror_store(struct sd_mirror *mirror, const sc_event *event,
    const struct sd_state **state_out)
{
    struct named *base = event->base ? find(mirror, event->base) : NULL;
    struct sd_state *state = base ? base->state : NULL;
    uint32_t base_len = state ? state->len : 0;
    if ((event->base && !base) || base_len != event->base_len || event->len < base_len ||
        event->len == 0 || find(mirror, event->copy)) {
        return SC_FAULT(SC_ERR_CORRUPT, "change %llu fits nothing that is there",
            (unsigned long long)event->number);
    }
    struct named *named = malloc(sizeof *named);
    if (!named) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for a copy");
    sc_status status = SC_OK;
    if (event->len > base_len) status = state_make(mirror, event, state, &state);
    *named = (struct named){event->copy, state};
    if (status == SC_OK && !tsearch(named, &mirror->by_copy, order)) {
        status = SC_FAULT(SC_ERR_NO_MEMORY, "no memory for a copy");
        settle(mirror, state);
    }
    if (status != SC_OK) {
        free(named);
        return status;
    }
    state->copies |= 1u << event->tier; /* (2) */
    mirror->copy_count++;
    *state_out = state;
    return SC_OK;
}

sc_status sd_mirror_remove(struct sd_mirror *mirror, const sc_event *event, uint64_t *hash_out)
{
    struct named *named = find(mirror, event->copy);
    if (!named) {
        return SC_FAULT(SC_ERR_CORRUPT, "change %llu removes what is not there",
            (unsigned long long)event->number);
    }
    struct sd_state *state = named->state;
    *hash_out = state->hash;
    state->copies &= ~(1u << event->tier);
    mirror->copy_count--;
    (void)tdelete(named, &mirror->by_copy, order);
    free(named);
    settle(mirror, state);
    return SC_OK;
}

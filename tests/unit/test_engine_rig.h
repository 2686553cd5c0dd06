/* SPDX-License-Identifier: Apache-2.0 */
/* A fake engine for tests of the cache: its kernels compute stamps instead of states.
 *
 * A state is a 64-bit stamp that every part of a slot repeats; the KV of a token is a stamp too.
 * They depend on exactly what real ones depend on (design contracts 9 and 10): the tokens so far,
 * the form of each, and where the chunk form was cut off its grid:
 *
 *   prefill   a chunk [c, e), e the next chunk end or the row's:  acc = S(c)
 *             for each token t: acc = hash(acc, token, 'P'), KV(t) = acc;   S(e) = hash(acc, 'E')
 *   decode    S = hash(S, token, 'D'), KV(t) = S
 *
 * So a row that reads a wrong slot, a wrong length or a mixture of two histories shows at once:
 * before each forward the source slot must hold what a cold run by the lease's history gives, and
 * after each commit so must every KV page that the lease reads.
 *
 * The forward is ahead of the cache: the rig knows at once how long each row really is (drafts that
 * are accepted, tokens that are sampled), the cache learns it when the step is committed. So a
 * request has what was computed (`raw`, `computed`) beside what the cache was told (`known`).
 *
 * Marks: bits of a token from RIG_MARK_SHIFT on are the id of a mark there. Stamps depend on the
 * whole; the cache gets token and mark apart.
 *
 * KV ids belong to the rig; it knows of each whether the cache has it, so that an id which comes
 * back twice, or never, shows as well. */
#ifndef TESTS_UNIT_TEST_ENGINE_RIG_H
#define TESTS_UNIT_TEST_ENGINE_RIG_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "statecache/cache.h"
#include "support/fail_alloc.h"

enum { RIG_ROWS = 16, RIG_PARTS = 8, RIG_CHUNK = 16, RIG_KV_DEFAULT = 1 << 15 };
enum { RIG_MARK_SHIFT = 24 };

struct rig_options {
    uint32_t page, slots, extras, kv_ids;
    sc_layout layout;
    sc_cache_options cache; /* pool, extras, page and allocator are filled in */
    bool second_group;      /* a second group of layers, chunk 32: then that is the chunk grid */
    sc_backend *backend;    /* of both pools; NULL: host */
};
#define RIG_OPTIONS_INIT                                                                           \
    {1, 16, 0, RIG_KV_DEFAULT, SC_LAYOUT_PAGE_MAJOR, SC_CACHE_OPTIONS_INIT, false, NULL}

struct rig {
    struct fail_alloc fa;
    sc_schema *schema, *extra_schema;
    sc_pool *pool, *extras;
    sc_cache *cache;
    sc_namespace ns;
    uint32_t page, chunk, grid;
    sc_step step;
    sc_layer_view parts[RIG_PARTS];
    uint32_t part_count;
    uint64_t *kv;      /* [kv_ids][page] stamps */
    uint8_t *kv_where; /* 0: free, 1: with a forward, 2: the cache has it */
    int32_t *kv_free;
    uint32_t kv_ids, kv_free_count;
    struct sc_prng prng; /* of the tokens that are sampled */
    uint32_t depth, request_flags; /* of the requests */
    bool patient;        /* a call that finds no memory is made again */
    uint64_t starved;    /* so many were */
    bool tails;          /* partial pages are handed in */
    uint64_t now_ns;     /* what acquire and plan are told */
    uint64_t patience_ns; /* requests have a deadline so long after their acquire; 0: none */
    int32_t *split;      /* tokens without their marks: of the newest key */
    sc_mark *marks;
    uint32_t split_cap;
};

/* One request, as the scheduler sees it. */
struct req {
    sc_lease lease;
    int32_t *tokens;
    uint32_t count, cap;
    uint32_t known; /* of these, the lease has so many; the others were sampled */
    int32_t open;   /* id of the page being filled, -1: none */
    sc_history *raw; /* how what was computed came to be */
    uint32_t raw_count, raw_cap, computed;
    uint32_t flights;
    bool lost;
};

static inline uint64_t rig_hash(uint64_t a, uint64_t b)
{
    return sc_mix64(sc_mix64(a + 0x9e37u) ^ b);
}

/* A call that finds no memory (rig.fa is armed) has changed nothing: with memory it goes well. */
#define rig_again(rig, status, call)                                                               \
    do {                                                                                           \
        (status) = (call);                                                                         \
        if ((status) == SC_ERR_NO_MEMORY && (rig)->patient) {                                      \
            (rig)->starved++;                                                                      \
            rig_verify(rig);                                                                       \
            (status) = (call);                                                                     \
        }                                                                                          \
    } while (0)

#define rig_ok(call) ck_assert_msg((call) == SC_OK, "%s: %s", #call, sc_last_error()->text)

/* ---- creation ---- */

static inline sc_part rig_part(uint32_t layer, uint32_t group, sc_part_kind kind)
{
    sc_part part = {.layer = layer, .group = group, .kind = kind, .dtype = SC_DTYPE_F32};
    part.dim_count = kind == SC_PART_CONV ? 2 : 3;
    part.dims[0] = kind == SC_PART_CONV ? 3 : 2;
    part.dims[1] = 4;
    if (kind != SC_PART_CONV) part.dims[2] = 4;
    return part;
}

static inline sc_schema *rig_schema(bool second_group)
{
    sc_group groups[2] = {{"gdn", RIG_CHUNK}, {"mamba2", 2 * RIG_CHUNK}};
    sc_part parts[4] = {
        rig_part(0, 0, SC_PART_CONV), rig_part(0, 0, SC_PART_RECURRENT),
        rig_part(1, second_group, SC_PART_CONV), rig_part(1, second_group, SC_PART_RECURRENT),
    };
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    options.model = "rig";
    options.revision = "1";
    options.groups = groups;
    options.group_count = second_group ? 2 : 1;
    options.parts = parts;
    options.part_count = 4;
    options.layer_count = 2;
    sc_schema *schema = NULL;
    rig_ok(sc_schema_create(&options, &schema));
    return schema;
}

static inline sc_schema *rig_extra_schema(void)
{
    sc_group group = {"ring", RIG_CHUNK};
    sc_part part = {.kind = SC_PART_EXTRA, .dtype = SC_DTYPE_I32, .dim_count = 1, .dims = {8}};
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    options.model = "rig";
    options.revision = "1";
    options.groups = &group;
    options.group_count = 1;
    options.parts = &part;
    options.part_count = 1;
    options.layer_count = 1;
    sc_schema *schema = NULL;
    rig_ok(sc_schema_create(&options, &schema));
    return schema;
}

static inline sc_pool *rig_pool(const sc_schema *schema, uint32_t slots, sc_layout layout,
    sc_backend *backend)
{
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    options.backend = backend;
    options.schema = schema;
    options.slot_count = slots;
    options.layout = layout;
    sc_pool *pool = NULL;
    rig_ok(sc_pool_create(&options, &pool));
    return pool;
}

static inline void rig_cache_options(struct rig *rig, const struct rig_options *options,
    sc_cache_options *out)
{
    *out = options->cache;
    /* Its order can be told in advance, unlike that of a policy which learns. */
    if (!out->policy) out->policy = "lru";
    out->pool = rig->pool;
    out->extras = rig->extras;
    out->page_tokens = options->page;
    out->allocator = &rig->fa.allocator;
}

/* Everything but the cache. */
static inline void rig_init_pools(struct rig *rig, const struct rig_options *options)
{
    memset(rig, 0, sizeof *rig);
    fail_alloc_init(&rig->fa);
    rig->page = options->page;
    rig->chunk = options->second_group ? 2 * RIG_CHUNK : RIG_CHUNK;
    rig->schema = rig_schema(options->second_group);
    rig->pool = rig_pool(rig->schema, options->slots, options->layout, options->backend);
    if (options->extras > 0) {
        rig->extra_schema = rig_extra_schema();
        rig->extras = rig_pool(rig->extra_schema, options->extras, SC_LAYOUT_PAGE_MAJOR,
            options->backend);
    }
    rig_ok(sc_schema_grid(rig->schema, rig->page, &rig->grid));
    sc_pool_info info;
    rig_ok(sc_pool_info_get(rig->pool, &info));
    ck_assert_uint_le(info.part_count, RIG_PARTS);
    rig->part_count = info.part_count;
    for (uint32_t i = 0; i < info.part_count; i++) {
        sc_part part;
        rig_ok(sc_pool_part_view(rig->pool, i, &rig->parts[i], &part));
    }
    rig->kv_ids = rig->kv_free_count = options->kv_ids;
    rig->kv = calloc((size_t)rig->kv_ids * rig->page, sizeof *rig->kv);
    rig->kv_where = calloc(rig->kv_ids, 1);
    rig->kv_free = calloc(rig->kv_ids, sizeof *rig->kv_free);
    ck_assert(rig->kv && rig->kv_where && rig->kv_free);
    for (uint32_t i = 0; i < rig->kv_ids; i++) rig->kv_free[i] = (int32_t)(rig->kv_ids - 1 - i);
}

static inline void rig_init(struct rig *rig, const struct rig_options *options)
{
    sc_cache_options cache_options;
    rig_init_pools(rig, options);
    rig_cache_options(rig, options, &cache_options);
    rig_ok(sc_cache_create(&cache_options, &rig->cache));
    rig_ok(sc_namespace_open(rig->cache, NULL, 0, 0, &rig->ns));
    rig->tails = options->cache.tails;
}

static inline void rig_verify(struct rig *rig)
{
    (void)fail_alloc_disarm(&rig->fa); /* the tree's walk needs memory */
    sc_status status = sc_cache_verify(rig->cache);
    ck_assert_msg(status == SC_OK, "verify: %s", sc_last_error()->text);
}

/* ---- KV ids ---- */

static inline void rig_drain(struct rig *rig)
{
    int32_t ids[64];
    uint32_t count = 0;
    do {
        rig_ok(sc_cache_drain(rig->cache, ids, 64, &count));
        for (uint32_t i = 0; i < count; i++) {
            ck_assert_int_ge(ids[i], 0);
            ck_assert_int_lt(ids[i], (int32_t)rig->kv_ids);
            ck_assert_msg(
                rig->kv_where[ids[i]] == 2, "id %d drained, the cache had it not", ids[i]);
            rig->kv_where[ids[i]] = 0;
            rig->kv_free[rig->kv_free_count++] = ids[i];
        }
    } while (count > 0);
}

static inline int32_t rig_kv_take(struct rig *rig)
{
    if (rig->kv_free_count == 0) {
        sc_room got;
        rig_drain(rig);
        if (rig->kv_free_count == 0) rig_ok(sc_cache_evict(rig->cache, 16, 0, &got));
        rig_drain(rig);
    }
    ck_assert_msg(rig->kv_free_count > 0, "the rig has no KV id left");
    int32_t id = rig->kv_free[--rig->kv_free_count];
    rig->kv_where[id] = 1;
    memset(rig->kv + (size_t)id * rig->page, 0xee, rig->page * sizeof *rig->kv);
    return id;
}

static inline uint32_t rig_kv_inside(const struct rig *rig)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < rig->kv_ids; i++) count += rig->kv_where[i] == 2;
    return count;
}

/* Evicts and drains all, at a time when no pin holds: then every id must have come back once. */
static inline void rig_deinit(struct rig *rig)
{
    sc_room got;
    rig_verify(rig);
    rig_ok(sc_cache_acquire(rig->cache, NULL, 0, UINT64_MAX, NULL, NULL));
    rig_ok(sc_cache_evict(rig->cache, UINT32_MAX, UINT32_MAX, &got));
    rig_drain(rig);
    rig_verify(rig);
    ck_assert_uint_eq(rig_kv_inside(rig), 0);
    sc_room room;
    rig_ok(sc_cache_room(rig->cache, &room));
    ck_assert_uint_eq(room.pages_cached, 0);
    rig_ok(sc_cache_destroy(rig->cache));
    ck_assert_uint_eq(fail_alloc_live_blocks(&rig->fa), 0);
    rig_ok(sc_pool_destroy(rig->pool));
    rig_ok(sc_pool_destroy(rig->extras));
    sc_schema_release(rig->schema);
    sc_schema_release(rig->extra_schema);
    free(rig->kv);
    free(rig->split);
    free(rig->marks);
    free(rig->kv_where);
    free(rig->kv_free);
}

/* ---- stamps ---- */

static inline uint64_t *rig_words(const struct rig *rig, uint32_t part, int32_t slot)
{
    const sc_layer_view *view = &rig->parts[part];
    return (uint64_t *)(uintptr_t)(view->base + (uint64_t)((int64_t)slot * view->slot_stride));
}

static inline void rig_state_write(const struct rig *rig, int32_t slot, uint64_t stamp)
{
    ck_assert_int_gt(slot, 0);
    for (uint32_t p = 0; p < rig->part_count; p++) {
        uint64_t *words = rig_words(rig, p, slot);
        uint64_t value = stamp ? rig_hash(stamp, p) : 0;
        for (uint64_t i = 0; i < rig->parts[p].bytes / sizeof *words; i++) words[i] = value;
    }
}

/* Whether every part of the slot holds this state; the null slot holds state 0. */
static inline bool rig_state_is(const struct rig *rig, int32_t slot, uint64_t stamp)
{
    for (uint32_t p = 0; p < rig->part_count; p++) {
        const uint64_t *words = rig_words(rig, p, slot);
        uint64_t value = stamp ? rig_hash(stamp, p) : 0;
        for (uint64_t i = 0; i < rig->parts[p].bytes / sizeof *words; i++) {
            if (words[i] != value) return false;
        }
    }
    return true;
}

/* Computes tokens [from, to) from state `state`; KV stamps of these tokens into kv_out[0 ..) and
 * the state at each of `count` chunk ends `at` into at_out. */
static inline uint64_t rig_prefill(const struct rig *rig, const int32_t *tokens, uint32_t from,
    uint32_t to, uint64_t state, uint64_t *kv_out, const uint32_t *at, uint64_t *at_out,
    uint32_t count)
{
    uint64_t acc = state;
    for (uint32_t t = from; t < to; t++) {
        acc = rig_hash(acc, (uint64_t)(uint32_t)tokens[t] << 8 | 'P');
        kv_out[t - from] = acc;
        if ((t + 1) % rig->chunk == 0 || t + 1 == to) acc = rig_hash(acc, 'E');
        for (uint32_t i = 0; i < count; i++) {
            if (at[i] == t + 1) at_out[i] = acc;
        }
    }
    return acc;
}

static inline uint64_t rig_decode(const int32_t *tokens, uint32_t from, uint32_t to, uint64_t state,
    uint64_t *kv_out)
{
    for (uint32_t t = from; t < to; t++) {
        state = rig_hash(state, (uint64_t)(uint32_t)tokens[t] << 8 | 'D');
        kv_out[t - from] = state;
    }
    return state;
}

/* A cold run by a history: KV stamps of all its tokens (kv_out has room), and the state. */
static inline uint64_t rig_cold(const struct rig *rig, const int32_t *tokens,
    const sc_history *history, uint32_t count, uint64_t *kv_out)
{
    uint64_t state = 0;
    uint32_t begin = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t end = history[i].end;
        state = history[i].form == SC_FORM_KIND_DECODE
            ? rig_decode(tokens, begin, end, state, kv_out + begin)
            : rig_prefill(rig, tokens, begin, end, state, kv_out + begin, NULL, NULL, 0);
        begin = end;
    }
    return state;
}

static inline sc_lease_info rig_info(struct rig *rig, sc_lease lease)
{
    sc_lease_info info;
    rig_ok(sc_lease_info_get(rig->cache, lease, &info));
    return info;
}

/* The state of the lease's committed tokens must be that of its history, in the slot the next step
 * reads, and so must all KV that it reads. Returns NULL, or what is wrong. */
static inline const char *rig_lease_fault(struct rig *rig, const struct req *req)
{
    sc_lease_info info = rig_info(rig, req->lease);
    const char *fault = NULL;
    uint32_t count = 0, pages = 0;
    (void)sc_lease_history(rig->cache, req->lease, NULL, 0, &count);
    sc_history *history = calloc(count + 1u, sizeof *history);
    uint64_t *kv = calloc(info.len + 1u, sizeof *kv);
    int32_t *ids = calloc(info.kv_page_count + 1u, sizeof *ids);
    ck_assert(history && kv && ids);
    rig_ok(sc_lease_history(rig->cache, req->lease, history, count, &count));
    if ((count ? history[count - 1].end : 0) != info.len) fault = "the history ends elsewhere";
    uint64_t state = rig_cold(rig, req->tokens, history, count, kv);
    bool ready = info.state == SC_LEASE_READY;
    if (ready && !rig_state_is(rig, info.source_slot, state)) {
        fault = "not the state of its history";
    }
    if (ready && (info.issued_len != info.len || info.issued_len_max != info.len)) {
        fault = "something is issued that is not in flight";
    }
    rig_ok(sc_lease_kv_ids(rig->cache, req->lease, 0, ids, info.kv_page_count, &pages));
    if (pages != info.kv_page_count) fault = "pages are missing";
    for (uint32_t p = 0; p < pages; p++) {
        if (rig->kv_where[ids[p]] != 2) fault = "a KV id that the cache has let go";
        if (memcmp(rig->kv + (size_t)ids[p] * rig->page, kv + (size_t)p * rig->page,
                rig->page * sizeof *kv) != 0) {
            fault = "KV of another history";
        }
    }
    if (info.tail_kv >= 0) {
        uint32_t from = info.len - info.len % rig->page;
        if (from != pages * rig->page || rig->kv_where[info.tail_kv] != 2) fault = "a lost tail";
        if (memcmp(rig->kv + (size_t)info.tail_kv * rig->page, kv + from,
                (info.len - from) * sizeof *kv) != 0) {
            fault = "a tail of another history";
        }
    }
    free(history);
    free(kv);
    free(ids);
    return fault;
}

static inline void rig_check_lease(struct rig *rig, const struct req *req)
{
    const char *fault = rig_lease_fault(rig, req);
    ck_assert_msg(!fault, "lease %u: %s", req->lease.id, fault);
}

/* ---- requests ---- */

static inline void req_tokens(struct req *req, const int32_t *tokens, uint32_t count)
{
    if (req->count + count > req->cap) {
        req->cap = (req->count + count) * 2;
        req->tokens = realloc(req->tokens, req->cap * sizeof *req->tokens);
        ck_assert_ptr_nonnull(req->tokens);
    }
    memcpy(req->tokens + req->count, tokens, count * sizeof *tokens);
    req->count += count;
}

static inline void req_computed(struct req *req, uint32_t end, sc_form_kind form)
{
    if (req->raw_count == req->raw_cap) {
        req->raw_cap = req->raw_cap * 2 + 16;
        req->raw = realloc(req->raw, req->raw_cap * sizeof *req->raw);
        ck_assert_ptr_nonnull(req->raw);
    }
    req->raw[req->raw_count++] = (sc_history){end, form};
    req->computed = end;
}

/* The page that is being filled goes on in a copy: its own id is somebody else's now. */
static inline int32_t rig_kv_copy(struct rig *rig, int32_t id)
{
    int32_t copy = rig_kv_take(rig);
    memcpy(rig->kv + (size_t)copy * rig->page, rig->kv + (size_t)id * rig->page,
        rig->page * sizeof *rig->kv);
    return copy;
}

/* The request goes on from where its lease is. */
static inline void req_start(struct rig *rig, struct req *req)
{
    uint32_t count = 0;
    sc_lease_info info = rig_info(rig, req->lease);
    if (info.tail_kv >= 0) req->open = rig_kv_copy(rig, info.tail_kv);
    (void)sc_lease_history(rig->cache, req->lease, NULL, 0, &count);
    free(req->raw);
    req->raw = calloc(count + 1u, sizeof *req->raw);
    ck_assert_ptr_nonnull(req->raw);
    rig_ok(sc_lease_history(rig->cache, req->lease, req->raw, count, &req->raw_count));
    req->raw_cap = count + 1;
    req->computed = count ? req->raw[count - 1].end : 0;
}

/* Tokens and marks apart, into the rig's arrays; returns how many marks. */
static inline uint32_t rig_split(struct rig *rig, const int32_t *tokens, uint32_t count,
    uint32_t from)
{
    uint32_t marks = 0;
    if (count > rig->split_cap) {
        rig->split_cap = count * 2;
        rig->split = realloc(rig->split, rig->split_cap * sizeof *rig->split);
        rig->marks = realloc(rig->marks, rig->split_cap * sizeof *rig->marks);
        ck_assert(rig->split && rig->marks);
    }
    for (uint32_t i = 0; i < count; i++) {
        int32_t id = tokens[i] >> RIG_MARK_SHIFT;
        rig->split[i] = tokens[i] & ((1 << RIG_MARK_SHIFT) - 1);
        if (id == 0) continue;
        rig->marks[marks] = (sc_mark){from + i, {0}};
        memcpy(rig->marks[marks++].id, &id, sizeof id);
    }
    return marks;
}

/* Of these tokens; valid until the next key of this rig if they have marks. */
static inline sc_key rig_key(struct rig *rig, const int32_t *tokens, uint32_t count)
{
    sc_key key = {.ns = rig->ns, .tokens = tokens, .token_count = count};
    key.mark_count = rig_split(rig, tokens, count, 0);
    if (key.mark_count == 0) return key;
    key.tokens = rig->split;
    key.marks = rig->marks;
    return key;
}

static inline sc_status req_ask(struct rig *rig, struct req *req, const sc_request *request)
{
    sc_status each = SC_ERR_INVALID;
    memset(req, 0, sizeof *req);
    req->open = -1;
    rig_ok(sc_cache_acquire(rig->cache, request, 1, rig->now_ns, &req->lease, &each));
    if (each == SC_ERR_NO_MEMORY && rig->patient) {
        rig->starved++;
        rig_verify(rig);
        rig_ok(sc_cache_acquire(rig->cache, request, 1, rig->now_ns, &req->lease, &each));
    }
    if (each != SC_OK) return each;
    req_tokens(req, request->key.tokens, request->key.token_count);
    for (uint32_t i = 0; i < request->key.mark_count; i++) {
        int32_t id = 0;
        memcpy(&id, request->key.marks[i].id, sizeof id);
        req->tokens[request->key.marks[i].at] |= (int32_t)((uint32_t)id << RIG_MARK_SHIFT);
    }
    req->known = request->key.token_count;
    req_start(rig, req);
    return SC_OK;
}

static inline sc_status req_try(struct rig *rig, struct req *req, const int32_t *tokens,
    uint32_t count)
{
    sc_request request = {.key = rig_key(rig, tokens, count),
        .depth = rig->depth, .flags = rig->request_flags};
    if (rig->patience_ns > 0) request.deadline_ns = rig->now_ns + rig->patience_ns;
    return req_ask(rig, req, &request);
}

/* Acquires and checks that the hit is what its history says; returns what was resumed. */
static inline uint32_t req_open(struct rig *rig, struct req *req, const int32_t *tokens,
    uint32_t count)
{
    rig_ok(req_try(rig, req, tokens, count));
    rig_check_lease(rig, req);
    return rig_info(rig, req->lease).resume_len;
}

static inline void req_append(
    struct rig *rig, struct req *req, const int32_t *tokens, uint32_t count)
{
    uint32_t marks = rig_split(rig, tokens, count, req->count);
    sc_status status;
    rig_again(rig, status, sc_lease_append_marked(rig->cache, req->lease, rig->split, count,
        rig->marks, marks));
    rig_ok(status);
    req_tokens(req, tokens, count);
    req->known = req->count;
}

/* Tells the lease of sampled tokens, up to `count` in all. */
static inline void req_tell(struct rig *rig, struct req *req, uint32_t count)
{
    sc_status status;
    if (count <= req->known) return;
    rig_again(rig, status, sc_lease_append(rig->cache, req->lease, req->tokens + req->known,
        count - req->known));
    rig_ok(status);
    req->known = count;
}

/* What the scheduler does beside releasing. */
static inline void req_forget(struct rig *rig, struct req *req)
{
    if (req->open >= 0) {
        rig->kv_where[req->open] = 0;
        rig->kv_free[rig->kv_free_count++] = req->open;
    }
    free(req->tokens);
    free(req->raw);
    memset(req, 0, sizeof *req);
    req->open = -1;
}

/* Releases; with tails, the partial page goes along. */
static inline void req_release(struct rig *rig, struct req *req, uint32_t len, enum sc_release how)
{
    sc_lease_info info = rig_info(rig, req->lease);
    uint32_t end = len ? len : info.len;
    bool partial = rig->tails && req->open >= 0 && (info.steps_out > 0 || end % rig->page != 0);
    int32_t tail = partial && end == info.len ? req->open : -1;
    sc_status status;
    rig_again(rig, status, sc_lease_release_tail(rig->cache, req->lease, len, how, tail));
    rig_ok(status);
    if (tail < 0) return;
    rig->kv_where[tail] = 2;
    req->open = req->flights > 0 ? rig_kv_copy(rig, tail) : -1;
}

static inline void req_close(struct rig *rig, struct req *req, uint32_t len, enum sc_release how)
{
    req_release(rig, req, len, how);
    req_forget(rig, req);
}

/* ---- steps ---- */

struct rig_row { struct req *req; uint32_t to; const uint32_t *points; uint32_t point_count; };

struct rig_step {
    struct rig_row rows[RIG_ROWS];
    uint32_t count;
    sc_step number;
    sc_batch batch;
    sc_status each[RIG_ROWS];
    sc_result results[RIG_ROWS];
    uint32_t result_count;
    int32_t *ids[RIG_ROWS];
    uint32_t drafts[RIG_ROWS], accept[RIG_ROWS]; /* accept: of the drafts, so many are right */
    const int32_t *parents[RIG_ROWS];
};

static inline int32_t rig_word(const sc_batch *batch, uint32_t at, uint32_t index)
{
    return batch->block[at + index];
}

/* Contract 7: no slot is written twice, none that is written is another row's source, none is 0. */
static inline void rig_check_batch(const struct rig_step *step)
{
    const sc_batch *batch = &step->batch;
    int32_t written[RIG_ROWS + 256];
    uint32_t count = 0;
    for (uint32_t i = 0; i < batch->row_count; i++) {
        int32_t dest = rig_word(batch, batch->at_dest, i);
        if (dest >= 0) written[count++] = dest;
    }
    uint32_t dests = count;
    for (uint32_t i = 0; i < batch->save_count; i++) {
        written[count++] = rig_word(batch, batch->at_save_slot, i);
    }
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_gt(written[i], 0);
        for (uint32_t j = 0; j < i; j++) ck_assert_int_ne(written[i], written[j]);
        for (uint32_t r = 0; r < batch->row_count; r++) {
            int32_t source = rig_word(batch, batch->at_source, r);
            bool own = i < dests && rig_word(batch, batch->at_dest, r) == written[i];
            if (!own) ck_assert_int_ne(source, written[i]);
        }
    }
    ck_assert_int_eq(rig_word(batch, batch->at_query_start_loc, 0), 0);
    ck_assert_int_eq(rig_word(batch, batch->at_query_start_loc, batch->row_max),
        (int32_t)batch->token_count);
}

static inline void rig_plan(struct rig *rig, struct rig_step *step)
{
    sc_row rows[RIG_ROWS];
    for (uint32_t i = 0; i < step->count; i++) {
        const struct rig_row *row = &step->rows[i];
        rows[i] = (sc_row){.lease = row->req->lease,
            .from = rig_info(rig, row->req->lease).issued_len, .to = row->to,
            .points = row->points, .point_count = row->point_count,
            .draft_count = step->drafts[i], .parents = step->parents[i]};
    }
    step->number = ++rig->step;
    rig_ok(sc_step_plan(rig->cache, step->number, rows, step->count, rig->now_ns, &step->batch,
        step->each));
    for (uint32_t i = 0; i < step->count; i++) {
        ck_assert_msg(step->each[i] == SC_OK, "row %u: %s", i, sc_last_error()->text);
    }
    rig_check_batch(step);
    for (uint32_t i = 0; i < step->count; i++) step->rows[i].req->flights++;
}

/* KV of tokens [from, end) into the pages of the request; completed ids into the result. */
static inline void rig_store_kv(struct rig *rig, struct rig_step *step, uint32_t i, uint32_t from,
    uint32_t end, const uint64_t *kv)
{
    struct req *req = step->rows[i].req;
    sc_result *result = &step->results[step->result_count++];
    step->ids[i] = calloc((end - from) / rig->page + 2u, sizeof(int32_t));
    ck_assert_ptr_nonnull(step->ids[i]);
    *result = (sc_result){req->lease, end, step->ids[i], 0};
    for (uint32_t t = from; t < end; t++) {
        if (req->open < 0) req->open = rig_kv_take(rig);
        rig->kv[(size_t)req->open * rig->page + t % rig->page] = kv[t - from];
        if ((t + 1) % rig->page != 0) continue;
        step->ids[i][result->kv_count++] = req->open;
        req->open = -1;
    }
    if (rig_word(&step->batch, step->batch.at_freeze, i) != 2 || !rig->tails) return;
    ck_assert_uint_ne(end % rig->page, 0);
    step->ids[i][result->kv_count++] = req->open;
    req->open = rig_kv_copy(rig, req->open);
}

/* Tokens of the row that nobody gave it were sampled, or are drafts that turn out to be right. */
static inline void rig_sample(struct rig *rig, struct req *req, uint32_t count)
{
    while (req->count < count) {
        int32_t token = (int32_t)sc_prng_below(&rig->prng, 2);
        req_tokens(req, &token, 1);
    }
}

/* The state at each save that the row really reaches. */
static inline void rig_saves(struct rig *rig, const struct rig_step *step, uint32_t i,
    uint32_t from, uint32_t end, bool decode, uint64_t start, uint64_t *kv)
{
    const sc_batch *batch = &step->batch;
    const struct req *req = step->rows[i].req;
    uint32_t before = from;
    for (uint32_t s = 0; s < batch->save_count; s++) {
        if (rig_word(batch, batch->at_save_row, s) != (int32_t)i) continue;
        uint32_t at = (uint32_t)rig_word(batch, batch->at_save_position, s);
        uint64_t state = 0;
        ck_assert_uint_eq(at % (decode ? rig->page : rig->grid), 0);
        if (!decode) ck_assert_uint_gt(at, before);
        if (!decode) ck_assert_uint_le(at, end);
        if (at <= from || at > end) continue;
        if (decode) {
            state = rig_decode(req->tokens, from, at, start, kv);
        } else {
            (void)rig_prefill(rig, req->tokens, from, end, start, kv, &at, &state, 1);
        }
        rig_state_write(rig, rig_word(batch, batch->at_save_slot, s), state);
        before = at;
    }
}

static inline void rig_forward_row(struct rig *rig, struct rig_step *step, uint32_t i)
{
    const sc_batch *batch = &step->batch;
    struct req *req = step->rows[i].req;
    uint32_t from = req->computed; /* that is, where it really starts */
    uint32_t packed = (uint32_t)(rig_word(batch, batch->at_query_start_loc, i + 1) -
        rig_word(batch, batch->at_query_start_loc, i));
    uint32_t certain = packed - step->drafts[i], end = from + certain + step->accept[i];
    bool decode = rig_word(batch, batch->at_decode, i) == 1;
    bool sure = rig_word(batch, batch->at_accepted, i) == -1;
    ck_assert_int_eq(rig_word(batch, batch->at_draft_count, i), (int32_t)step->drafts[i]);
    ck_assert_uint_ge(from, (uint32_t)rig_word(batch, batch->at_position, i));
    ck_assert_uint_le(end, (uint32_t)rig_word(batch, batch->at_end, i));
    if (sure) ck_assert_int_eq((int32_t)from, rig_word(batch, batch->at_position, i));
    if (sure && step->drafts[i] == 0) {
        ck_assert_int_eq((int32_t)end, rig_word(batch, batch->at_end, i));
    }
    if (step->drafts[i] > 0 || !sure) ck_assert(decode);
    rig_sample(rig, req, end);
    uint64_t *kv = calloc(end + 1u, sizeof *kv);
    ck_assert_ptr_nonnull(kv);
    uint64_t start = rig_cold(rig, req->tokens, req->raw, req->raw_count, kv);
    ck_assert_msg(rig_state_is(rig, rig_word(batch, batch->at_source, i), start),
        "row %u reads slot %d: not the state after %u tokens", i,
        rig_word(batch, batch->at_source, i), from);
    rig_saves(rig, step, i, from, end, decode, start, kv);
    uint64_t state = decode
        ? rig_decode(req->tokens, from, end, start, kv)
        : rig_prefill(rig, req->tokens, from, end, start, kv, NULL, NULL, 0);
    rig_state_write(rig, rig_word(batch, batch->at_dest, i), state);
    req_computed(req, end, decode ? SC_FORM_KIND_DECODE : SC_FORM_KIND_PREFILL);
    rig_store_kv(rig, step, i, from, end, kv);
    free(kv);
}

/* Kernels that work in place: what is read is copied to where it is written. */
static inline void rig_copies(struct rig *rig, const sc_batch *batch)
{
    for (uint32_t i = 0; i < batch->row_count; i++) {
        int32_t to = rig_word(batch, batch->at_copy_to, i);
        if (to < 0) continue;
        ck_assert_int_eq(to, rig_word(batch, batch->at_dest, i));
        ck_assert_int_eq(to, rig_word(batch, batch->at_source, i));
        for (uint32_t p = 0; p < rig->part_count; p++) {
            memcpy(rig_words(rig, p, to), rig_words(rig, p,
                rig_word(batch, batch->at_copy_from, i)), rig->parts[p].bytes);
        }
    }
}

static inline void rig_forward(struct rig *rig, struct rig_step *step)
{
    step->result_count = 0;
    rig_copies(rig, &step->batch);
    for (uint32_t i = 0; i < step->count; i++) {
        if (step->each[i] == SC_OK) rig_forward_row(rig, step, i);
    }
}

/* After a commit that took the ids. */
static inline void rig_committed(struct rig *rig, struct rig_step *step)
{
    for (uint32_t i = 0; i < step->count; i++) step->rows[i].req->flights--;
    for (uint32_t i = 0; i < step->result_count; i++) {
        for (uint32_t k = 0; k < step->results[i].kv_count; k++) {
            int32_t id = step->results[i].kv_ids[k];
            ck_assert_uint_eq(rig->kv_where[id], 1);
            rig->kv_where[id] = 2;
        }
    }
    for (uint32_t i = 0; i < step->count; i++) free(step->ids[i]);
    memset(step->ids, 0, sizeof step->ids);
}

/* After an abort: ids that the forward took are the engine's still. */
static inline void rig_aborted(struct rig *rig, struct rig_step *step)
{
    for (uint32_t i = 0; i < step->count; i++) step->rows[i].req->flights--;
    for (uint32_t i = 0; i < step->result_count; i++) {
        for (uint32_t k = 0; k < step->results[i].kv_count; k++) {
            int32_t id = step->results[i].kv_ids[k];
            rig->kv_where[id] = 0;
            rig->kv_free[rig->kv_free_count++] = id;
        }
    }
    for (uint32_t i = 0; i < step->count; i++) free(step->ids[i]);
    memset(step->ids, 0, sizeof step->ids);
}

static inline void rig_commit(struct rig *rig, struct rig_step *step)
{
    sc_status each[RIG_ROWS];
    for (uint32_t i = 0; i < step->result_count; i++) {
        const sc_result *result = &step->results[i];
        sc_lease_state state = rig_info(rig, result->lease).state;
        if (state == SC_LEASE_RUNNING) {
            req_tell(rig, step->rows[i].req, result->len);
        }
    }
    sc_status status;
    rig_again(rig, status, sc_step_commit(rig->cache, step->number, step->results,
        step->result_count, each));
    rig_ok(status);
    for (uint32_t i = 0; i < step->result_count; i++) ck_assert_int_eq(each[i], SC_OK);
    rig_committed(rig, step);
}

/* Plan, forward, commit, and a look at what came out. */
static inline void rig_run(struct rig *rig, struct rig_step *step)
{
    rig_plan(rig, step);
    rig_forward(rig, step);
    rig_commit(rig, step);
    for (uint32_t i = 0; i < step->count; i++) rig_check_lease(rig, step->rows[i].req);
}

/* One row to `to`; returns the end that was granted. */
static inline uint32_t req_step(struct rig *rig, struct req *req, uint32_t to)
{
    struct rig_step step = {.rows = {{req, to, NULL, 0}}, .count = 1};
    rig_run(rig, &step);
    return rig_info(rig, req->lease).len;
}

/* Steps of at most `chunk` tokens until all is computed. */
static inline void req_run(struct rig *rig, struct req *req, uint32_t chunk)
{
    for (uint32_t len = rig_info(rig, req->lease).len; len < req->count;) {
        uint32_t to = req->count - len > chunk ? len + chunk : req->count;
        len = req_step(rig, req, to);
    }
}

/* Appends tokens and computes them one by one. */
static inline void req_decode(
    struct rig *rig, struct req *req, const int32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        req_append(rig, req, &tokens[i], 1);
        (void)req_step(rig, req, req->count);
    }
}

/* A whole request: prefill in rows of `chunk`, release. Returns what it resumed. */
static inline uint32_t rig_serve(struct rig *rig, const int32_t *tokens, uint32_t count,
    uint32_t chunk, enum sc_release how)
{
    struct req req;
    uint32_t resumed = req_open(rig, &req, tokens, count);
    req_run(rig, &req, chunk);
    req_close(rig, &req, 0, how);
    return resumed;
}

static inline sc_answer rig_lookup(struct rig *rig, const int32_t *tokens, uint32_t count)
{
    sc_key key = rig_key(rig, tokens, count);
    sc_answer answer;
    rig_ok(sc_cache_lookup(rig->cache, &key, 1, &answer));
    ck_assert_int_eq(answer.status, SC_OK);
    return answer;
}

static inline sc_cache_stats rig_stats(struct rig *rig)
{
    sc_cache_stats stats = {.struct_size = sizeof stats};
    rig_ok(sc_cache_stats_get(rig->cache, &stats));
    return stats;
}

static inline sc_room rig_room(struct rig *rig)
{
    sc_room room;
    rig_ok(sc_cache_room(rig->cache, &room));
    return room;
}

/* The engine brings the state after `len` tokens, of which it decoded the last `decoded`. */
static inline void req_fill(struct rig *rig, struct req *req, uint32_t len, uint32_t decoded)
{
    uint64_t *kv = calloc(len + 1u, sizeof *kv);
    int32_t *ids = calloc(len + 1u, sizeof *ids);
    uint32_t count = 0, pages = 0;
    sc_history history[2];
    ck_assert(kv && ids);
    if (len > decoded) history[count++] = (sc_history){len - decoded, SC_FORM_KIND_PREFILL};
    if (decoded > 0) history[count++] = (sc_history){len, SC_FORM_KIND_DECODE};
    uint64_t state = rig_cold(rig, req->tokens, history, count, kv);
    rig_state_write(rig, rig_info(rig, req->lease).working_slot, state);
    for (uint32_t t = 0; t < len; t++) {
        if (req->open < 0) req->open = rig_kv_take(rig);
        rig->kv[(size_t)req->open * rig->page + t % rig->page] = kv[t];
        if ((t + 1) % rig->page != 0) continue;
        ids[pages++] = req->open;
        req->open = -1;
    }
    sc_status status;
    rig_again(rig, status, sc_lease_filled(rig->cache, req->lease, ids, pages, history, count));
    rig_ok(status);
    for (uint32_t i = 0; i < pages; i++) rig->kv_where[ids[i]] = 2;
    free(kv);
    free(ids);
    req_start(rig, req);
    rig_check_lease(rig, req);
}

/* Children of a request. On success parent and children go on in pages of their own. */
static inline sc_status req_fork(struct rig *rig, struct req *req, uint32_t count,
    struct req *children)
{
    sc_lease leases[16];
    sc_lease_info info = rig_info(rig, req->lease);
    /* also where it stands on a snapshot and the id is not needed */
    int32_t tail = info.len % rig->page != 0 ? req->open : -1;
    ck_assert_uint_le(count, 16);
    sc_status status;
    rig_again(rig, status, sc_lease_fork(rig->cache, req->lease, tail, count, leases));
    if (status != SC_OK) return status;
    if (tail >= 0) {
        rig->kv_where[tail] = 2;
        ck_assert_int_ge(rig_info(rig, req->lease).tail_kv, 0);
        req->open = rig_kv_copy(rig, rig_info(rig, req->lease).tail_kv);
    }
    for (uint32_t i = 0; i < count; i++) {
        memset(&children[i], 0, sizeof children[i]);
        children[i].open = -1;
        children[i].lease = leases[i];
        req_tokens(&children[i], req->tokens, req->known);
        children[i].known = req->known;
        req_start(rig, &children[i]);
        rig_check_lease(rig, &children[i]);
    }
    rig_check_lease(rig, req);
    return SC_OK;
}

/* n different tokens that start with `first`. */
static inline void rig_fill(int32_t *tokens, uint32_t n, int32_t first)
{
    for (uint32_t i = 0; i < n; i++) tokens[i] = first + (int32_t)i;
}

/* Runs one suite; for main(). */
static inline int rig_main(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

#endif

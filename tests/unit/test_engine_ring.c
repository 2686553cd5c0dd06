/* SPDX-License-Identifier: Apache-2.0 */
/* The cache with rings: a small engine that follows the block of each step with the real kernels
 * (one layer of GDN; the conv part carries a stamp, the number of tokens), beside an oracle that
 * takes the same tokens one by one from the zero state. Whatever is resumed, forked, cut, drafted,
 * aborted or evicted in between: a state that a step leaves, base plus records folded, has the
 * oracle's bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "kernels/backend.h"
#include "statecache/statecache.h"
#include "support/check_main.h"
#include "support/test_scale.h"

enum { K = 16, V = 8, STATE = K * V, QKV = 2 * K + V, LEN_MAX = 96, LEASES = 4, GRID = 4 };
enum { RECORDS = 3, INTERVAL = 10, DRAFTS = 2, POOL_SLOTS = 14, EXTRA_SLOTS = 6 };

#define OK(call) ck_assert_msg((call) == SC_OK, "%s: %s", #call, sc_last_error()->text)

static const sc_k_delta_shape shape = {.kind = SC_K_KIND_GDN, .heads = 1, .v_heads = 1,
    .k_dim = K, .v_dim = V, .qk_l2norm = true};

static sc_schema *schema, *extra_schema;
static sc_pool *pool, *extras;
static sc_cache *cache;
static sc_tiers *tiers; /* below the cache; NULL: none */
static sc_namespace space;
static sc_k_slots state_slots, stamp_slots, control_slots;
static sc_k_ring ring;
static sc_step step_number;
static uint32_t request_depth;
static bool ask_point; /* the next rows are to be saved at their ends */
static uint64_t kept_with_records, resumed_with_records, appended, folds;

static sc_k_slots slots_of(const sc_pool *of, sc_part_kind kind, uint32_t index)
{
    sc_layer_view view;
    sc_pool_info info;
    OK(sc_pool_layer_view(of, 0, kind, index, &view));
    OK(sc_pool_info_get(of, &info));
    return (sc_k_slots){.base = view.base, .slot_stride = view.slot_stride, .dtype = view.dtype,
        .slot_count = info.slot_count + 1};
}

static void *at(const sc_k_slots *slots, int32_t slot)
{
    return sc_host_ptr(slots->base + (uint64_t)((int64_t)slot * slots->slot_stride));
}

static void open_schemas(uint32_t records)
{
    const sc_group group = {"gdn", GRID};
    const sc_part parts[] = {{.kind = SC_PART_CONV, .dtype = SC_DTYPE_F32, .dim_count = 2,
        .dims = {1, 4}}, {.kind = SC_PART_RECURRENT, .dtype = SC_DTYPE_F32, .dim_count = 3,
        .dims = {1, V, K}}};
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    options.model = "ring", options.revision = "1";
    options.groups = &group, options.group_count = 1;
    options.parts = parts, options.part_count = 2, options.layer_count = 1;
    OK(sc_schema_create(&options, &schema));
    sc_extras_options extra = SC_EXTRAS_OPTIONS_INIT;
    extra.control_words = 1, extra.ring_records = records;
    if (records > 0)
        OK(sc_k_replay_delta_record_bytes(&shape, SC_DTYPE_F32, &extra.ring_record_bytes));
    OK(sc_schema_extras_create(schema, NULL, &extra, &extra_schema));
    ring = (sc_k_ring){.records_max = records, .record_bytes = extra.ring_record_bytes};
}

static void open_all(uint32_t records, uint32_t depth, uint32_t extra_slots)
{
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    sc_cache_options made = SC_CACHE_OPTIONS_INIT;
    open_schemas(records);
    options.schema = schema, options.slot_count = POOL_SLOTS;
    OK(sc_pool_create(&options, &pool));
    options.schema = extra_schema, options.slot_count = extra_slots;
    OK(sc_pool_create(&options, &extras));
    state_slots = slots_of(pool, SC_PART_RECURRENT, 0);
    stamp_slots = slots_of(pool, SC_PART_CONV, 0);
    control_slots = slots_of(extras, SC_PART_EXTRA, 0);
    if (records > 0) ring.slots = slots_of(extras, SC_PART_EXTRA, 1);
    made.pool = pool, made.extras = extras, made.without_kv = true, made.policy = "lru";
    made.row_max = LEASES, made.decode_interval = INTERVAL, made.depth_max = depth;
    made.draft_max = DRAFTS, made.tiers = tiers;
    OK(sc_cache_create(&made, &cache));
    OK(sc_namespace_open(cache, NULL, 0, 0, &space));
    step_number = 0, request_depth = depth;
    kept_with_records = resumed_with_records = appended = folds = 0;
}

static void close_all(void)
{
    OK(sc_cache_destroy(cache));
    OK(sc_pool_destroy(pool));
    OK(sc_pool_destroy(extras));
    sc_schema_release(schema), sc_schema_release(extra_schema);
}

/* ---- the model ---- */

/* What the layer is given for token `t` of value `token`. */
struct input { float qkv[QKV], g, beta; };

static void make_input(int32_t token, uint32_t t, struct input *x)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, (uint64_t)token * 1000 + t + 1);
    for (uint32_t i = 0; i < QKV; i++) x->qkv[i] = (float)sc_prng_unit(&prng) - 0.5f;
    x->g = -0.3f * (float)sc_prng_unit(&prng);
    x->beta = (float)sc_prng_unit(&prng);
}

/* Tokens [from, to) from a state to a state, plain; o of the last. */
static void plain(const sc_k_slots *state, const int32_t *tokens, uint32_t from, uint32_t to,
    int32_t source, int32_t dest, float *o)
{
    for (uint32_t t = from; t < to; t++) {
        struct input x;
        make_input(tokens[t], t, &x);
        sc_k_decode_packed_params p = {.qkv = sc_host_devptr(x.qkv), .o = sc_host_devptr(o),
            .dtype = SC_DTYPE_F32, .g = sc_host_devptr(&x.g), .beta = sc_host_devptr(&x.beta),
            .shape = shape, .row_count = 1, .source = sc_host_devptr(&source),
            .dest = sc_host_devptr(&dest), .state = *state};
        OK(sc_k_decode_packed(NULL, &p, NULL));
        source = dest;
    }
}

static float oracle_memory[2][STATE];
static sc_k_slots oracle_slots(void)
{
    return (sc_k_slots){.base = sc_host_devptr(oracle_memory), .slot_stride = sizeof(float[STATE]),
        .dtype = SC_DTYPE_F32, .slot_count = 2};
}

/* The state after `len` tokens, and the output of the last. */
static const float *oracle(const int32_t *tokens, uint32_t len, float *o)
{
    const sc_k_slots slots = oracle_slots();
    memset(oracle_memory, 0, sizeof oracle_memory);
    plain(&slots, tokens, 0, len, 0, 1, o);
    return oracle_memory[1];
}

static void same_state(int32_t slot, const int32_t *tokens, uint32_t len, const char *what)
{
    float o[V];
    ck_assert_msg(memcmp(at(&state_slots, slot), oracle(tokens, len, o), sizeof(float[STATE])) == 0,
        "%s: slot %d is not the state after %u tokens", what, slot, len);
}

/* ---- the engine ---- */

struct user {
    sc_lease lease;
    bool alive;
    int32_t tokens[LEN_MAX];
    uint32_t count, prompt;
    float out[LEN_MAX][V]; /* of decoded tokens, as they came */
    uint32_t from;         /* the first that this lease decoded itself */
    bool drafted;          /* had rows with drafts: of these the history does not tell */
};

static struct user users[LEASES];

static int32_t word(const sc_batch *b, uint32_t section, uint32_t row)
{
    return b->block[section + row];
}

static void copies(const sc_batch *b, uint32_t i)
{
    int32_t to = word(b, b->at_copy_to, i), from = word(b, b->at_copy_from, i);
    int32_t extra = word(b, b->at_extra, i), records = word(b, b->at_extra_from, i);
    if (to >= 0) OK(sc_state_copy(pool, &from, pool, &to, 1));
    if (records < 0) return;
    OK(sc_state_copy(extras, &records, extras, &extra, 1));
    resumed_with_records++;
}

/* Source and destination of row i, its ring, and what the plan asks. */
struct row { int32_t source, dest, slot, planned, records, mode; };

static void ring_rows(struct row *row)
{
    sc_replay_step_params p = {.control = control_slots, .records_max = RECORDS, .row_count = 1,
        .slot = sc_host_devptr(&row->slot), .planned = sc_host_devptr(&row->planned),
        .records = sc_host_devptr(&row->records), .mode = sc_host_devptr(&row->mode)};
    OK(sc_replay_step(NULL, &p, NULL));
    ring.slot = p.slot, ring.records = p.records, ring.mode = p.mode;
    if (row->mode != SC_REPLAY_FOLD) return;
    ck_assert_int_eq(row->source, row->dest);
    folds++;
    OK(sc_k_replay_delta_fold(NULL, &(sc_k_replay_delta_fold_params){.shape = shape,
        .dtype = SC_DTYPE_F32, .row_count = 1, .source = sc_host_devptr(&row->source),
        .dest = sc_host_devptr(&row->dest), .state = state_slots, .ring = ring}, NULL));
}

static void decode_row(struct user *u, struct row *row, uint32_t t)
{
    struct input x;
    float want[V];
    make_input(u->tokens[t], t, &x);
    sc_k_replay_delta_params p = {.step = {.qkv = sc_host_devptr(x.qkv),
        .o = sc_host_devptr(u->out[t]), .dtype = SC_DTYPE_F32, .g = sc_host_devptr(&x.g),
        .beta = sc_host_devptr(&x.beta), .shape = shape, .row_count = 1,
        .source = sc_host_devptr(&row->source), .dest = sc_host_devptr(&row->dest),
        .state = state_slots}, .ring = ring};
    OK(sc_k_replay_delta(NULL, &p, NULL));
    (void)oracle(u->tokens, t + 1, want);
    for (uint32_t i = 0; i < V; i++) ck_assert_float_eq_tol(u->out[t][i], want[i], 1e-5f);
    if (row->mode == SC_REPLAY_APPEND) {
        same_state(row->source, u->tokens, t - (uint32_t)row->records, "base of an append");
        appended++;
    } else {
        same_state(row->dest, u->tokens, t + 1, "flush");
    }
}

/* Row i of the batch: tokens from its position to `len`. */
static void forward_row(const sc_batch *b, uint32_t i, struct user *u, uint32_t len)
{
    uint32_t from = (uint32_t)word(b, b->at_position, i);
    struct row row = {.source = word(b, b->at_source, i), .dest = word(b, b->at_dest, i),
        .slot = word(b, b->at_extra, i), .planned = word(b, b->at_flush, i)};
    int32_t *stamp = at(&stamp_slots, row.dest);
    copies(b, i);
    ring_rows(&row);
    ck_assert_int_eq(*(int32_t *)at(&stamp_slots, row.source), (int32_t)from);
    if (row.planned == SC_REPLAY_FOLD) {
        float o[V];
        if (row.source > 0) same_state(row.source, u->tokens, from, "before a prefill");
        int32_t source = row.source;
        for (uint32_t t = from; t < len; t++, source = row.dest) {
            plain(&state_slots, u->tokens, t, t + 1, source, row.dest, o);
            for (uint32_t s = 0; s < b->save_count; s++) {
                if (word(b, b->at_save_row, s) != (int32_t)i) continue;
                if (word(b, b->at_save_position, s) != (int32_t)t + 1) continue;
                int32_t slot = word(b, b->at_save_slot, s);
                *stamp = (int32_t)t + 1;
                OK(sc_state_copy(pool, &row.dest, pool, &slot, 1));
            }
        }
        same_state(row.dest, u->tokens, len, "after a prefill");
    } else {
        decode_row(u, &row, from);
    }
    *stamp = (int32_t)len;
}

static void check_info(const struct user *u)
{
    sc_lease_info info;
    OK(sc_lease_info_get(cache, u->lease, &info));
    int32_t count = *(int32_t *)at(&control_slots, info.extra_slot);
    if (info.steps_out > 0 || info.state != SC_LEASE_READY) return;
    if (info.source_slot == info.working_slot) ck_assert_int_eq(count, (int32_t)info.records);
    ck_assert_int_eq(info.records_slot > 0, info.records > 0);
    if (info.records > 0) { /* its own, or that of the snapshot on which it stands */
        ck_assert_int_eq(info.records_slot == info.extra_slot,
            info.source_slot == info.working_slot);
        ck_assert_int_eq(*(int32_t *)at(&control_slots, info.records_slot), (int32_t)info.records);
    }
    ck_assert_uint_le(info.records, RECORDS);
    if (info.source_slot > 0)
        same_state(info.source_slot, u->tokens, info.len - info.records, "at rest");
}

/* One more step of `u`: to `to`, of which the last `drafts` may be dropped; `accepted` are kept. */
static void plan_one(struct user *u, uint32_t to, uint32_t drafts, sc_batch *b)
{
    sc_lease_info info;
    sc_status each;
    OK(sc_lease_info_get(cache, u->lease, &info));
    const sc_row row = {.lease = u->lease, .from = info.issued_len, .to = to,
        .draft_count = drafts, .points = &to, .point_count = ask_point};
    OK(sc_step_plan(cache, ++step_number, &row, 1, 0, b, &each));
    ck_assert_msg(each == SC_OK, "%s", sc_last_error()->text);
}

static void commit_one(struct user *u, sc_step step, uint32_t len)
{
    const sc_result result = {.lease = u->lease, .len = len};
    OK(sc_step_commit(cache, step, &result, 1, NULL));
}

static void append(struct user *u, int32_t token)
{
    u->tokens[u->count++] = token;
    OK(sc_lease_append(cache, u->lease, &token, 1));
}

/* Prefill up to the lease's tokens, or one decoded token. */
static void run_to(struct user *u, uint32_t to)
{
    sc_batch b;
    sc_lease_info info;
    OK(sc_lease_info_get(cache, u->lease, &info));
    for (uint32_t len = info.len; len < to;) {
        plan_one(u, to, 0, &b);
        len = (uint32_t)word(&b, b.at_end, 0);
        forward_row(&b, 0, u, len);
        commit_one(u, step_number, len);
        check_info(u);
    }
}

static void decode(struct user *u, int32_t token)
{
    append(u, token);
    run_to(u, u->count);
}

static bool acquire(struct user *u, const int32_t *tokens, uint32_t count)
{
    sc_status each;
    sc_request request = {.key = {.ns = space, .tokens = tokens, .token_count = count},
        .depth = request_depth};
    OK(sc_cache_acquire(cache, &request, 1, 0, &u->lease, &each));
    if (each == SC_ERR_NO_SLOT) return false;
    ck_assert_msg(each == SC_OK, "%s", sc_last_error()->text);
    memcpy(u->tokens, tokens, count * sizeof *tokens);
    u->count = u->prompt = u->from = count;
    u->alive = true;
    u->drafted = false;
    return true;
}

/* ---- a history run again ---- */

/* A ring of its own, as a slot 1 of a pool of one. */
static struct {
    int32_t control[2], source, dest, slot, planned, records, mode;
    uint8_t *records_of; /* [2][RECORDS][record_bytes] */
    sc_k_ring ring;
} again;

static void again_open(void)
{
    size_t bytes = (size_t)RECORDS * ring.record_bytes;
    memset(&again, 0, sizeof again);
    again.records_of = calloc(2, bytes);
    again.ring = (sc_k_ring){.slots = {.base = sc_host_devptr(again.records_of),
        .slot_stride = (int64_t)bytes, .slot_count = 2}, .records_max = RECORDS,
        .record_bytes = ring.record_bytes, .slot = sc_host_devptr(&again.slot),
        .records = sc_host_devptr(&again.records), .mode = sc_host_devptr(&again.mode)};
    again.slot = 1;
    memset(oracle_memory, 0, sizeof oracle_memory);
}

static void again_step(int32_t planned)
{
    again.planned = planned;
    OK(sc_replay_step(NULL, &(sc_replay_step_params){.control = {
        .base = sc_host_devptr(again.control), .slot_stride = sizeof(int32_t), .slot_count = 2},
        .records_max = RECORDS, .row_count = 1, .slot = sc_host_devptr(&again.slot),
        .planned = sc_host_devptr(&again.planned), .records = sc_host_devptr(&again.records),
        .mode = sc_host_devptr(&again.mode)}, NULL));
}

static void again_decode(const int32_t *tokens, uint32_t t, bool flush, float *o)
{
    struct input x;
    make_input(tokens[t], t, &x);
    again_step(flush ? SC_REPLAY_FLUSH : SC_REPLAY_APPEND);
    again.dest = 1;
    sc_k_replay_delta_params p = {.step = {.qkv = sc_host_devptr(x.qkv), .o = sc_host_devptr(o),
        .dtype = SC_DTYPE_F32, .g = sc_host_devptr(&x.g), .beta = sc_host_devptr(&x.beta),
        .shape = shape, .row_count = 1, .source = sc_host_devptr(&again.source),
        .dest = sc_host_devptr(&again.dest), .state = oracle_slots()}, .ring = again.ring};
    OK(sc_k_replay_delta(NULL, &p, NULL));
    again.source = 1;
}

static void again_prefill(const int32_t *tokens, uint32_t from, uint32_t to)
{
    const sc_k_slots slots = oracle_slots();
    float o[V];
    again_step(SC_REPLAY_FOLD);
    if (again.mode == SC_REPLAY_FOLD)
        OK(sc_k_replay_delta_fold(NULL, &(sc_k_replay_delta_fold_params){.shape = shape,
            .dtype = SC_DTYPE_F32, .row_count = 1, .source = sc_host_devptr(&again.source),
            .dest = sc_host_devptr(&again.source), .state = slots, .ring = again.ring}, NULL));
    plain(&slots, tokens, from, to, again.source, 1, o);
    again.source = 1;
}

/* Its history says where states were flushed: decoded again by it alone, each token has the output
 * that it had, whatever was resumed, forked or evicted meanwhile. */
static void same_outputs_by_history(const struct user *u)
{
    sc_history history[LEN_MAX];
    uint32_t count = 0, t = 0;
    if (u->drafted) return;
    OK(sc_lease_history(cache, u->lease, history, LEN_MAX, &count));
    again_open();
    for (uint32_t i = 0; i < count; t = history[i++].end) {
        if (history[i].form == SC_FORM_KIND_PREFILL) {
            again_prefill(u->tokens, t, history[i].end);
            continue;
        }
        for (uint32_t k = t; k < history[i].end; k++) {
            float o[V];
            bool place = k % INTERVAL == 0 || (k + 1) % INTERVAL == 0;
            again_decode(u->tokens, k, k == t || place, o);
            if (k < u->from) continue;
            ck_assert_msg(memcmp(o, u->out[k], sizeof o) == 0, "token %u of %u is another", k,
                u->count);
        }
    }
    free(again.records_of);
}

static void release(struct user *u, enum sc_release how)
{
    sc_lease_info info;
    OK(sc_lease_info_get(cache, u->lease, &info));
    kept_with_records += how == SC_RELEASE_KEEP && info.records > 0;
    same_outputs_by_history(u);
    OK(sc_lease_release(cache, u->lease, 0, how));
    u->alive = false;
    OK(sc_cache_verify(cache));
}

/* ---- tests ---- */

static const int32_t prompt[] = {5, 6, 7, 8, 9};

/* Keeps the end of an answer as base and records; whoever asks again goes on as if nothing had
 * been: in outputs, states and phases. */
START_TEST(ring__a_kept_end_goes_on_bit_for_bit)
{
    static struct user a, b;
    open_all(RECORDS, 2, EXTRA_SLOTS);
    uint32_t stop = 5 + (uint32_t)_i, end = 30;
    ck_assert(acquire(&a, prompt, 5));
    run_to(&a, 5);
    for (uint32_t t = 5; t < end; t++) decode(&a, (int32_t)(t * 7 % 11));
    release(&a, SC_RELEASE_DISCARD);
    OK(sc_cache_evict(cache, 0, POOL_SLOTS, &(sc_room){0}));
    ck_assert(acquire(&b, prompt, 5));
    run_to(&b, 5);
    for (uint32_t t = 5; t < stop; t++) decode(&b, a.tokens[t]);
    release(&b, SC_RELEASE_KEEP);
    int32_t more[LEN_MAX];
    memcpy(more, a.tokens, (stop + 1) * sizeof *more);
    ck_assert(acquire(&b, more, stop + 1));
    sc_lease_info info;
    OK(sc_lease_info_get(cache, b.lease, &info));
    ck_assert_uint_eq(info.len, stop);
    /* the token beyond what was kept is decoded: whether it counts as prompt makes no difference
     * to a lease that has one token to prefill, so it is forked into one that decodes */
    OK(sc_lease_release(cache, b.lease, 0, SC_RELEASE_DISCARD));
    sc_request request = {.key = {.ns = space, .tokens = more, .token_count = stop,
        .len_max = stop}, .depth = 1};
    sc_status each;
    OK(sc_cache_acquire(cache, &request, 1, 0, &b.lease, &each));
    OK(each);
    memcpy(b.tokens, more, stop * sizeof *more), b.count = stop;
    OK(sc_lease_info_get(cache, b.lease, &info));
    ck_assert_uint_eq(info.len, stop);
    for (uint32_t t = stop; t < end; t++) {
        decode(&b, a.tokens[t]);
        ck_assert_mem_eq(b.out[t], a.out[t], sizeof b.out[t]);
    }
    release(&b, SC_RELEASE_DISCARD);
    close_all();
}
END_TEST

/* A save that is planned forces the flush, whether there is a slot for it or not. */
START_TEST(ring__a_planned_save_forces_the_flush)
{
    static struct user a;
    sc_batch b;
    open_all(RECORDS, 1, EXTRA_SLOTS);
    ck_assert(acquire(&a, prompt, 5));
    run_to(&a, 5);
    for (uint32_t t = 5; t < 25; t++) {
        append(&a, (int32_t)t);
        plan_one(&a, a.count, 0, &b);
        int32_t planned = word(&b, b.at_flush, 0);
        bool save = a.count % INTERVAL == 0, after_save = t % INTERVAL == 0 || t == 5;
        ck_assert_int_eq(planned, save || after_save ? SC_REPLAY_FLUSH : SC_REPLAY_APPEND);
        ck_assert_int_eq(word(&b, b.at_freeze, 0), save);
        forward_row(&b, 0, &a, a.count);
        commit_one(&a, step_number, a.count);
        check_info(&a);
    }
    ck_assert_uint_gt(appended, 0);
    release(&a, SC_RELEASE_DISCARD);
    close_all();
}
END_TEST

/* A flush that no decode interval asks for begins a stretch of the history: at a point that is
 * asked for, behind it, and behind drafts. Without one, stretches of decode are one. */
START_TEST(ring__history_tells_where_flushes_were)
{
    static struct user a;
    const sc_history want[] = {{5, SC_FORM_KIND_PREFILL}, {12, SC_FORM_KIND_DECODE},
        {13, SC_FORM_KIND_DECODE}, {23, SC_FORM_KIND_DECODE}, {26, SC_FORM_KIND_DECODE}};
    sc_history history[8];
    uint32_t count = 0;
    sc_batch b;
    open_all(RECORDS, 1, EXTRA_SLOTS);
    ck_assert(acquire(&a, prompt, 5));
    run_to(&a, 5);
    while (a.count < 22) {
        ask_point = a.count == 12;
        decode(&a, (int32_t)a.count);
        ask_point = false;
    }
    OK(sc_lease_history(cache, a.lease, history, 8, &count));
    ck_assert_uint_eq(count, 4);
    append(&a, 1);
    plan_one(&a, a.count + DRAFTS, DRAFTS, &b); /* none is right */
    forward_row(&b, 0, &a, a.count);
    commit_one(&a, step_number, a.count);
    for (int t = 0; t < 3; t++) decode(&a, t);
    OK(sc_lease_history(cache, a.lease, history, 8, &count));
    ck_assert_uint_eq(count, 5);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(history[i].end, want[i].end);
        ck_assert_int_eq(history[i].form, want[i].form);
    }
    OK(sc_cache_verify(cache));
    a.drafted = true;
    release(&a, SC_RELEASE_DISCARD);
    close_all();
}
END_TEST

/* Slots of the extras go round: each new lease finds a count of 0, whatever its slot held. */
START_TEST(ring__a_slot_used_again_begins_empty)
{
    static struct user a;
    open_all(RECORDS, 1, 1);
    for (int round = 0; round < 6; round++) {
        int32_t tokens[] = {20 + round, 1, 2};
        ck_assert(acquire(&a, tokens, 3));
        sc_lease_info info;
        OK(sc_lease_info_get(cache, a.lease, &info));
        ck_assert_int_eq(*(int32_t *)at(&control_slots, info.extra_slot), 0);
        run_to(&a, 3);
        for (int t = 0; t < 3 + round % 2; t++) decode(&a, t);
        OK(sc_lease_info_get(cache, a.lease, &info));
        ck_assert_uint_gt(info.records, 0);
        release(&a, round % 2 ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD); /* the only slot */
    }
    close_all();
}
END_TEST

/* A fork in the middle of a cycle: base and records become a snapshot that all go on from. */
START_TEST(ring__forks_share_base_and_records)
{
    static struct user a, b;
    sc_lease child;
    open_all(RECORDS, 1, EXTRA_SLOTS);
    ck_assert(acquire(&a, prompt, 5));
    run_to(&a, 5);
    for (int t = 0; t < 3; t++) decode(&a, t);
    OK(sc_lease_fork(cache, a.lease, -1, 1, &child));
    OK(sc_cache_verify(cache));
    b = a;
    b.lease = child;
    for (int t = 0; t < 12; t++) decode(&a, 3 + t), decode(&b, 3 + t);
    for (uint32_t t = 8; t < 20; t++) ck_assert_mem_eq(a.out[t], b.out[t], sizeof a.out[t]);
    ck_assert_uint_eq(resumed_with_records, 2);
    release(&a, SC_RELEASE_KEEP), release(&b, SC_RELEASE_KEEP);
    close_all();
}
END_TEST

/* Until every transfer has ended. */
static void settle(void)
{
    sc_cache_stats stats = {.struct_size = sizeof stats};
    do {
        sc_done done[8];
        uint32_t count = 0;
        OK(sc_cache_poll(cache, done, 8, &count));
        for (uint32_t i = 0; i < count; i++) OK(done[i].status);
        OK(sc_cache_apply(cache, done, count, 0));
        OK(sc_cache_stats_get(cache, &stats));
    } while (stats.transfers_alive > 0);
}

/* A tier takes states, not a base with records: such an end is there as long as the device has it,
 * and below remains the newest flushed state before it. Nothing wrong ever comes back. */
START_TEST(ring__ends_with_records_stay_above_the_tiers)
{
    static struct user a, b;
    sc_tiers_options options = SC_TIERS_OPTIONS_INIT;
    options.host = (sc_tier_config){.bytes = 1u << 20, .write = SC_TIER_WRITE_THROUGH};
    OK(sc_tiers_create(&options, &tiers));
    open_all(RECORDS, 2, EXTRA_SLOTS);
    uint32_t end = 16 + (uint32_t)_i, below = end;
    ck_assert(acquire(&a, prompt, 5));
    run_to(&a, 5);
    for (uint32_t t = 5; t < end; t++) decode(&a, (int32_t)(t * 7 % 11));
    sc_lease_info info;
    OK(sc_lease_info_get(cache, a.lease, &info));
    if (info.records > 0) below = INTERVAL; /* what was saved on the way */
    release(&a, SC_RELEASE_KEEP);
    settle();
    const sc_key key = {.ns = space, .tokens = a.tokens, .token_count = end, .len_max = end};
    sc_answer answer;
    OK(sc_cache_lookup(cache, &key, 1, &answer));
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], end);
    OK(sc_cache_evict(cache, 0, POOL_SLOTS, &(sc_room){0}));
    settle();
    OK(sc_cache_lookup(cache, &key, 1, &answer));
    ck_assert_uint_eq(answer.state_len[SC_TIER_DEVICE], 0);
    ck_assert_uint_eq(answer.state_len[SC_TIER_HOST], below);
    ck_assert(acquire(&b, a.tokens, end));
    settle();
    OK(sc_lease_info_get(cache, b.lease, &info));
    ck_assert_uint_eq(info.len, below < end ? below : info.len);
    if (info.source_slot > 0) same_state(info.source_slot, b.tokens, info.len, "restored");
    run_to(&b, end); /* checks each state against the oracle */
    release(&b, SC_RELEASE_DISCARD);
    close_all();
    OK(sc_tiers_destroy(tiers));
    tiers = NULL;
}
END_TEST

START_TEST(ring__without_rings_no_row_has_one)
{
    sc_batch b;
    static struct user a;
    open_all(0, 1, EXTRA_SLOTS);
    ck_assert(acquire(&a, prompt, 5));
    plan_one(&a, 5, 0, &b);
    ck_assert_int_eq(word(&b, b.at_flush, 0), SC_REPLAY_NONE);
    ck_assert_int_eq(word(&b, b.at_extra_from, 0), -1);
    OK(sc_step_abort(cache, step_number, false));
    OK(sc_lease_release(cache, a.lease, 0, SC_RELEASE_DISCARD));
    close_all();
}
END_TEST

START_TEST(ring__refuses_rings_without_control_words)
{
    sc_extras_options extra = SC_EXTRAS_OPTIONS_INIT;
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    sc_cache_options made = SC_CACHE_OPTIONS_INIT;
    sc_schema *bare = NULL;
    sc_pool *bare_pool = NULL;
    sc_cache *none = NULL;
    open_all(RECORDS, 1, EXTRA_SLOTS);
    for (int i = 0; i < 2; i++) {
        extra.control_words = i > 0;
        extra.ring_records = i > 0 ? SC_REPLAY_RECORDS_MAX + 1 : 2, extra.ring_record_bytes = 64;
        OK(sc_schema_extras_create(schema, NULL, &extra, &bare));
        options.schema = bare, options.slot_count = 2;
        OK(sc_pool_create(&options, &bare_pool));
        sc_pool *states = NULL;
        options.schema = schema;
        OK(sc_pool_create(&options, &states));
        made.pool = states, made.extras = bare_pool;
        ck_assert_int_eq(sc_cache_create(&made, &none), SC_ERR_INVALID);
        OK(sc_pool_destroy(bare_pool)), OK(sc_pool_destroy(states));
        sc_schema_release(bare);
    }
    close_all();
}
END_TEST

/* ---- anything, in any order ---- */

static void random_prompt(struct sc_prng *prng, int32_t *tokens, uint32_t *count)
{
    const struct user *old = &users[sc_prng_below(prng, LEASES)];
    *count = 1 + (uint32_t)sc_prng_below(prng, 14);
    for (uint32_t t = 0; t < *count; t++) tokens[t] = (int32_t)sc_prng_below(prng, 2);
    if (old->count == 0 || old->count > LEN_MAX / 2 || sc_prng_below(prng, 3) == 0) return;
    memcpy(tokens, old->tokens, old->count * sizeof *tokens); /* the next turn */
    *count = old->count + (uint32_t)sc_prng_below(prng, 3);
    for (uint32_t t = old->count; t < *count; t++) tokens[t] = (int32_t)sc_prng_below(prng, 2);
}

static void random_drafts(struct sc_prng *prng, struct user *u)
{
    sc_batch b;
    uint32_t accepted = (uint32_t)sc_prng_below(prng, DRAFTS + 1);
    u->drafted = true;
    append(u, (int32_t)sc_prng_below(prng, 2));
    plan_one(u, u->count + DRAFTS, DRAFTS, &b);
    for (uint32_t d = 0; d < accepted; d++) append(u, (int32_t)sc_prng_below(prng, 2));
    forward_row(&b, 0, u, u->count);
    commit_one(u, step_number, u->count);
}

/* Two steps in flight, in the order of a pipeline. */
static void random_two(struct sc_prng *prng, struct user *u)
{
    sc_batch b;
    append(u, (int32_t)sc_prng_below(prng, 2));
    plan_one(u, u->count, 0, &b);
    forward_row(&b, 0, u, u->count);
    append(u, (int32_t)sc_prng_below(prng, 2));
    plan_one(u, u->count, 0, &b);
    forward_row(&b, 0, u, u->count);
    commit_one(u, step_number - 1, u->count - 1);
    commit_one(u, step_number, u->count);
}

static void random_point(struct sc_prng *prng, struct user *u)
{
    ask_point = true;
    decode(u, (int32_t)sc_prng_below(prng, 2));
    ask_point = false;
}

static void random_abort(struct sc_prng *prng, struct user *u)
{
    sc_batch b;
    append(u, (int32_t)sc_prng_below(prng, 2));
    plan_one(u, u->count, 0, &b);
    OK(sc_step_abort(cache, step_number, false));
    check_info(u);
    run_to(u, u->count);
}

static void random_fork(struct user *u)
{
    for (uint32_t i = 0; i < LEASES; i++) {
        if (users[i].alive) continue;
        sc_lease child;
        sc_status status = sc_lease_fork(cache, u->lease, -1, 1, &child);
        if (status != SC_OK) {
            ck_assert(status == SC_ERR_NO_SLOT || status == SC_ERR_BUSY);
            return;
        }
        users[i] = *u;
        users[i].lease = child;
        return;
    }
}

static void random_act(struct sc_prng *prng, struct user *u)
{
    int32_t tokens[LEN_MAX];
    uint32_t count = 0, what = (uint32_t)sc_prng_below(prng, 20);
    if (!u->alive) {
        random_prompt(prng, tokens, &count);
        if (acquire(u, tokens, count)) run_to(u, count);
    } else if (u->count > LEN_MAX - 12 || what == 0) {
        release(u, sc_prng_below(prng, 4) ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD);
    } else if (what == 1) {
        random_fork(u);
    } else if (what == 2) {
        random_drafts(prng, u);
    } else if (what == 3) {
        for (int t = 0; t < 5; t++) append(u, (int32_t)sc_prng_below(prng, 2));
        run_to(u, u->count); /* a message of the user */
    } else if (what == 4) {
        random_abort(prng, u);
    } else if (what == 5) {
        random_point(prng, u);
    } else if (what < 9) {
        random_two(prng, u);
    } else {
        decode(u, (int32_t)sc_prng_below(prng, 2));
    }
    if (u->alive) check_info(u);
}

START_TEST(ring__random_lives_keep_every_state)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 77 + (uint64_t)_i);
    open_all(RECORDS, 2, _i % 2 ? EXTRA_SLOTS : LEASES + 1);
    memset(users, 0, sizeof users);
    for (uint32_t n = 0; n < test_scaled(1500, 1200); n++) {
        random_act(&prng, &users[sc_prng_below(&prng, LEASES)]);
        if (n % 10 == 0) OK(sc_cache_verify(cache));
    }
    ck_assert_uint_gt(kept_with_records, 0);
    ck_assert_uint_gt(resumed_with_records, 0);
    ck_assert_uint_gt(appended, 0);
    ck_assert_uint_gt(folds, 0);
    for (uint32_t i = 0; i < LEASES; i++)
        if (users[i].alive) release(&users[i], SC_RELEASE_DISCARD);
    close_all();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_ring");
    TCase *all = tcase_create("ring");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, ring__a_kept_end_goes_on_bit_for_bit, 0, 12);
    tcase_add_test(all, ring__a_planned_save_forces_the_flush);
    tcase_add_test(all, ring__history_tells_where_flushes_were);
    tcase_add_test(all, ring__a_slot_used_again_begins_empty);
    tcase_add_test(all, ring__forks_share_base_and_records);
    tcase_add_loop_test(all, ring__ends_with_records_stay_above_the_tiers, 0, RECORDS + 2);
    tcase_add_test(all, ring__without_rings_no_row_has_one);
    tcase_add_test(all, ring__refuses_rings_without_control_words);
    tcase_add_loop_test(all, ring__random_lives_keep_every_state, 0, 6);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

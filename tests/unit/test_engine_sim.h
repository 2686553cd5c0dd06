/* SPDX-License-Identifier: Apache-2.0 */
/* A seeded scheduler over the rig: acquires, plans, commits, aborts, appends, adopts, releases,
 * evicts at random. Prompts share prefixes, branch, and continue earlier conversations, so that
 * hits, conflicts of history and duplicates all happen; the rig checks every state and KV page. */
#ifndef TESTS_UNIT_TEST_ENGINE_SIM_H
#define TESTS_UNIT_TEST_ENGINE_SIM_H

#include "test_engine_rig.h"

enum { SIM_REQS = 6, SIM_TALKS = 8, SIM_TOKENS_MAX = 400 };

struct sim_talk { int32_t tokens[SIM_TOKENS_MAX]; uint32_t count; };

struct sim {
    struct rig rig;
    struct sc_prng prng;
    struct req reqs[SIM_REQS]; /* lease.id 0: none */
    bool dying[SIM_REQS];
    struct rig_step steps[SC_DEPTH_MAX]; /* oldest first */
    uint32_t out;              /* of these, in flight */
    bool launched;             /* the newest; older ones always are */
    uint32_t depth, draft_max;
    bool marks, forks; /* are drawn */
    bool starve;       /* allocations fail now and then */
    void (*tiers)(struct sim *sim, void *ctx); /* NULL, or: completions come */
    void *tiers_ctx;
    bool waiting[SIM_REQS]; /* for a lower tier */
    struct sim_talk talks[SIM_TALKS]; /* earlier conversations */
    uint64_t calls, digest;           /* digest: of everything that the cache decided */
    uint64_t refused, aborted, adopted, resumed, early, lost, overlapped, tails, forked, external;
};

static inline uint32_t sim_below(struct sim *sim, uint32_t bound)
{
    return (uint32_t)sc_prng_below(&sim->prng, bound);
}

static inline void sim_note(struct sim *sim, uint64_t value)
{
    sim->digest = rig_hash(sim->digest, value);
}

static inline void sim_init(struct sim *sim, const struct rig_options *options, uint64_t seed)
{
    memset(sim, 0, sizeof *sim);
    sc_prng_seed(&sim->prng, seed);
    rig_init(&sim->rig, options);
    sim->depth = options->cache.depth_max;
    sim->rig.depth = sim->depth;
    sim->draft_max = options->cache.draft_max;
}

/* A prefix of an earlier conversation and some new tokens; few different ones, so that prompts
 * meet. */
static inline uint32_t sim_prompt(struct sim *sim, int32_t *tokens)
{
    const struct sim_talk *talk = &sim->talks[sim_below(sim, SIM_TALKS)];
    uint32_t count = talk->count;
    if (sim_below(sim, 3) == 0 && count > 0) count = 1 + sim_below(sim, count);
    memcpy(tokens, talk->tokens, count * sizeof *tokens);
    uint32_t more = 1 + sim_below(sim, 60);
    int32_t first = 1000 * (int32_t)sim_below(sim, 3);
    for (uint32_t i = 0; i < more && count < SIM_TOKENS_MAX; i++, count++) {
        tokens[count] = first + (int32_t)i;
    }
    if (sim->marks && sim_below(sim, 3) == 0) { /* a salt, an image */
        uint32_t at = sim_below(sim, 3) ? sim_below(sim, count) : 0;
        tokens[at] |= (int32_t)(1 + sim_below(sim, 2)) << RIG_MARK_SHIFT;
    }
    return count;
}

static inline void sim_acquire(struct sim *sim, uint32_t i)
{
    int32_t tokens[SIM_TOKENS_MAX];
    uint32_t count = sim_prompt(sim, tokens);
    sc_answer answer = rig_lookup(&sim->rig, tokens, count);
    sc_status status = req_try(&sim->rig, &sim->reqs[i], tokens, count);
    sim->calls += 2;
    sim_note(sim, (uint64_t)(uint32_t)status);
    if (status != SC_OK) {
        ck_assert_int_eq(status, SC_ERR_NO_SLOT);
        sim->refused++;
        return;
    }
    sc_lease_info info = rig_info(&sim->rig, sim->reqs[i].lease);
    /* Transfers may hold all slots but that of the hit, which is given up then. */
    bool cold = sim->tiers && info.resume_len == 0 &&
        (info.reason == SC_REASON_EVICTED || info.reason >= SC_REASON_RESTORING);
    if (!cold) ck_assert_uint_eq(info.resume_len, answer.state_len[SC_TIER_DEVICE]);
    if (!cold && info.reason < SC_REASON_RESTORING) ck_assert_int_eq(info.reason, answer.reason);
    sim->waiting[i] = info.state == SC_LEASE_WAITING;
    sim->resumed += info.resume_len > 0;
    sim->tails += info.tail_kv >= 0;
    sim_note(sim, info.resume_len);
    sim_note(sim, (uint64_t)info.source_slot << 32 | (uint32_t)info.working_slot);
    rig_check_lease(&sim->rig, &sim->reqs[i]);
}

/* Adds a row of the request to the step. */
static inline void sim_row(struct sim *sim, struct rig_step *step, struct req *req)
{
    static const uint32_t no_points[1];
    sc_lease_info info = rig_info(&sim->rig, req->lease);
    uint32_t base = info.issued_len_max, to = base + 1, drafts = 0;
    if (info.state == SC_LEASE_LOST || info.steps_out == sim->depth) return;
    if (info.state == SC_LEASE_WAITING) return;
    if (base + 32 >= SIM_TOKENS_MAX) return;
    if (base == req->known && info.steps_out == 0) {
        int32_t token = (int32_t)sim_below(sim, 2);
        if (req->count > req->known) {
            req_tell(&sim->rig, req, req->known + 1);
        } else {
            req_append(&sim->rig, req, &token, 1);
        }
    }
    bool decode = base >= info.prompt_len && base + 1 >= req->known;
    if (!decode) {
        uint32_t most = req->known - base;
        to = sim_below(sim, 2) ? req->known : base + 1 + sim_below(sim, most);
    } else if (sim->draft_max > 0 && sim_below(sim, 2)) {
        drafts = sim_below(sim, sim->draft_max + 1);
    }
    uint32_t i = step->count++;
    step->drafts[i] = drafts;
    step->accept[i] = drafts ? sim_below(sim, drafts + 1) : 0;
    step->rows[i] = (struct rig_row){req, to + drafts, no_points, 0};
    sim->overlapped += info.steps_out > 0;
}

static inline void sim_plan(struct sim *sim)
{
    struct rig_step *step = &sim->steps[sim->out];
    memset(step, 0, sizeof *step);
    for (uint32_t i = 0; i < SIM_REQS; i++) {
        struct req *req = &sim->reqs[i];
        if (req->lease.id == 0 || sim->dying[i] || sim_below(sim, 4) == 0) continue;
        sim_row(sim, step, req);
    }
    if (step->count == 0) return;
    rig_plan(&sim->rig, step);
    sim->launched = sim_below(sim, 12) != 0;
    if (sim->launched) rig_forward(&sim->rig, step);
    sim->out++;
    sim->calls++;
    for (uint32_t w = 0; w < step->batch.block_words; w++) {
        sim_note(sim, (uint32_t)step->batch.block[w]);
    }
}

/* Keeps what a finished request said, for others to continue. */
static inline void sim_remember(struct sim *sim, const struct req *req)
{
    struct sim_talk *talk = &sim->talks[sim_below(sim, SIM_TALKS)];
    talk->count = req->count < SIM_TOKENS_MAX - 80 ? req->count : SIM_TOKENS_MAX - 80;
    memcpy(talk->tokens, req->tokens, talk->count * sizeof *talk->tokens);
}

/* Whether an earlier step in flight has a lease of step `index` that is not lost. */
static inline bool sim_behind(struct sim *sim, uint32_t index)
{
    for (uint32_t r = 0; r < sim->steps[index].count; r++) {
        const struct req *req = sim->steps[index].rows[r].req;
        for (uint32_t s = 0; s < index; s++) {
            for (uint32_t o = 0; o < sim->steps[s].count; o++) {
                if (sim->steps[s].rows[o].req != req) continue;
                if (!req->lost) return true;
            }
        }
    }
    return false;
}

/* The step has ended: requests that wait for it go, the others must be right. */
static inline void sim_ended(struct sim *sim, uint32_t index)
{
    for (uint32_t r = 0; r < sim->steps[index].count; r++) {
        struct req *req = sim->steps[index].rows[r].req;
        if (req->flights > 0) continue;
        if (sim->dying[req - sim->reqs]) {
            sim->dying[req - sim->reqs] = false;
            req_forget(&sim->rig, req);
        } else if (req->lost) {
            ck_assert_int_eq(rig_info(&sim->rig, req->lease).state, SC_LEASE_LOST);
            req_close(&sim->rig, req, 0, SC_RELEASE_KEEP);
        } else {
            rig_check_lease(&sim->rig, req);
        }
    }
    for (uint32_t s = index; s + 1 < sim->out; s++) sim->steps[s] = sim->steps[s + 1];
    sim->out--;
}

static inline void sim_abort(struct sim *sim, uint32_t index, bool launched)
{
    struct rig_step *step = &sim->steps[index];
    rig_ok(sc_step_abort(sim->rig.cache, step->number, launched));
    rig_aborted(&sim->rig, step);
    sim->aborted++;
    if (!launched) {
        sim->rig.step--; /* as if never planned */
    } else {
        sim->lost++;
        for (uint32_t r = 0; r < step->count; r++) step->rows[r].req->lost = true;
    }
}

static inline void sim_end(struct sim *sim)
{
    uint32_t index = sim->launched ? sim_below(sim, sim->out) : sim->out - 1;
    struct rig_step *step = &sim->steps[index];
    sim->calls++;
    if (index + 1 < sim->out && sim_below(sim, 8) == 0) {
        ck_assert_int_eq(sc_step_abort(sim->rig.cache, step->number, false), SC_ERR_STATE);
    }
    if (!sim->launched || sim_below(sim, 12) == 0) {
        sim_abort(sim, index, sim->launched);
    } else if (sim_behind(sim, index)) {
        sc_status each[RIG_ROWS];
        sc_status status = sc_step_commit(sim->rig.cache, step->number, step->results,
            step->result_count, each);
        bool early = false;
        for (uint32_t i = 0; i < step->result_count; i++) early |= each[i] == SC_ERR_STATE;
        ck_assert(early && status != SC_OK);
        sim->early++;
        return;
    } else {
        rig_commit(&sim->rig, step);
    }
    sim->launched = true;
    sim_ended(sim, index);
}

static inline void sim_release(struct sim *sim, uint32_t i)
{
    struct req *req = &sim->reqs[i];
    uint32_t len = rig_info(&sim->rig, req->lease).len;
    if (!req->lost && sim_below(sim, 2)) req_tell(&sim->rig, req, req->count);
    if (sim_below(sim, 3) != 0) len = 0;
    if (len > 0) len = sim_below(sim, len + 1);
    enum sc_release how = sim_below(sim, 4) ? SC_RELEASE_KEEP : SC_RELEASE_DISCARD;
    req_release(&sim->rig, req, len, how);
    sim->calls++;
    sim_remember(sim, req);
    if (req->flights > 0) {
        ck_assert_int_eq(rig_info(&sim->rig, req->lease).state, SC_LEASE_DRAINING);
        sim->dying[i] = true;
    } else {
        req_forget(&sim->rig, req);
        sim->waiting[i] = false;
    }
}

static inline void sim_fork(struct sim *sim, uint32_t i)
{
    struct req *req = &sim->reqs[i], *child = NULL;
    if (req->lease.id == 0 || req->flights > 0 || req->lost || sim->waiting[i]) return;
    for (uint32_t k = 0; k < SIM_REQS; k++) {
        if (sim->reqs[k].lease.id == 0) child = &sim->reqs[k];
    }
    if (!child) return;
    sc_room before = rig_room(&sim->rig);
    sc_status status = req_fork(&sim->rig, req, 1, child);
    sim_note(sim, (uint64_t)(uint32_t)status);
    sim->calls++;
    sim->forked += status == SC_OK;
    if (status == SC_OK) return;
    ck_assert(status == SC_ERR_NO_SLOT || status == SC_ERR_BUSY);
    sc_room after = rig_room(&sim->rig);
    ck_assert_uint_eq(before.slots_held, after.slots_held);
    rig_check_lease(&sim->rig, req);
}

static inline void sim_external(struct sim *sim, uint32_t i)
{
    struct req *req = &sim->reqs[i];
    int32_t tokens[SIM_TOKENS_MAX];
    if (req->lease.id != 0) return;
    uint32_t count = sim_prompt(sim, tokens), len = 1 + sim_below(sim, count);
    sc_request request = {.key = rig_key(&sim->rig, tokens, count), .depth = sim->depth,
        .flags = SC_REQUEST_EXTERNAL | sim->rig.request_flags, .external_len = len};
    sc_status status = req_ask(&sim->rig, req, &request);
    sim->calls++;
    sim_note(sim, (uint64_t)(uint32_t)status);
    if (status != SC_OK) return;
    sc_lease_info info = rig_info(&sim->rig, req->lease);
    ck_assert_int_eq(info.state, info.resume_len < len ? SC_LEASE_WAITING : SC_LEASE_READY);
    if (info.state == SC_LEASE_READY) return;
    if (sim_below(sim, 4) == 0) {
        req_close(&sim->rig, req, 0, SC_RELEASE_KEEP);
        return;
    }
    req_fill(&sim->rig, req, len, sim_below(sim, 2) ? sim_below(sim, len) : 0);
    sim->external++;
}

static inline void sim_other(struct sim *sim)
{
    sc_room got;
    uint32_t count = 0, i = sim_below(sim, SIM_REQS);
    sim->calls++;
    switch (sim_below(sim, sim->forks ? 6 : 4)) {
    case 4:
        sim_fork(sim, i);
        break;
    case 5:
        sim_external(sim, i);
        break;
    case 0:
        rig_ok(sc_cache_evict(sim->rig.cache, sim_below(sim, 20), sim_below(sim, 3), &got));
        sim_note(sim, got.pages_drainable << 32 | got.slots_free);
        break;
    case 1:
        rig_drain(&sim->rig);
        break;
    case 2:
        if (sim->reqs[i].lease.id == 0 || sim->reqs[i].flights > 0 || sim->waiting[i]) break;
        rig_ok(sc_lease_adopt(sim->rig.cache, sim->reqs[i].lease, &count));
        sim->adopted += count;
        rig_check_lease(&sim->rig, &sim->reqs[i]);
        break;
    default:
        sim_note(sim, rig_room(&sim->rig).slots_free);
        break;
    }
}

static inline void sim_act(struct sim *sim)
{
    uint32_t i = sim_below(sim, SIM_REQS), what = sim_below(sim, 10);
    struct req *req = &sim->reqs[i];
    if (sim->tiers && sim_below(sim, 2)) {
        sim->tiers(sim, sim->tiers_ctx);
        sim->calls++;
    }
    if (sim->starve && sim_below(sim, 2)) fail_alloc_arm(&sim->rig.fa, 1 + sim_below(sim, 6));
    if (what < 5) {
        bool full = sim->out == sim->depth || (sim->out > 0 && !sim->launched);
        if (full || (sim->out > 0 && sim_below(sim, 3) == 0)) {
            sim_end(sim);
        } else {
            sim_plan(sim);
        }
    } else if (what < 8) {
        if (req->lease.id == 0) {
            sim_acquire(sim, i);
        } else if (!sim->dying[i] && sim_below(sim, 4) == 0) {
            sim_release(sim, i);
        }
    } else {
        sim_other(sim);
    }
}

static inline void sim_deinit(struct sim *sim)
{
    while (sim->out > 0) sim_end(sim);
    for (uint32_t i = 0; i < SIM_REQS; i++) {
        if (sim->reqs[i].lease.id != 0) req_close(&sim->rig, &sim->reqs[i], 0, SC_RELEASE_KEEP);
    }
    rig_deinit(&sim->rig);
}

#endif

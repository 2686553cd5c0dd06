/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: commit and abort, late, out of order, twice, wrongly. */
#include <string.h>

#include "harness.h"

struct commit_in {
    sc_result results[H_ROWS_MAX + 1];
    uint32_t row[H_ROWS_MAX + 1];
    int32_t ids[H_ROWS_MAX][H_TOKENS_MAX]; /* of each row */
    uint32_t count;
};

/* The KV ids of a result: pages that the row completed, and that of a tail. Of a row that will be
 * discarded any of its own pages will do. `ids_out` [H_TOKENS_MAX]. */
static uint32_t result_ids(struct h_sched *s, const struct h_row *row, int32_t *ids_out)
{
    const struct h_lease *lease = &s->leases[row->lease];
    bool rubbish = lease->lost || lease->overrun;
    uint32_t count = rubbish ? 0 : row->done_count;
    memcpy(ids_out, row->done, count * sizeof *ids_out);
    for (uint32_t p = 0; p < row->id_count && rubbish; p++) {
        if (s->world->kv_where[row->ids[p]] == H_KV_ENGINE) ids_out[count++] = row->ids[p];
    }
    if (!rubbish && row->tail >= 0 && !h_one_in(&s->rng, 6)) ids_out[count++] = row->tail;
    return count;
}

static void commit_draw(struct h_sched *s, const struct h_step *step, struct commit_in *in)
{
    in->count = 0;
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct h_row *row = &step->rows[i];
        if (!row->granted) continue;
        uint32_t pages = result_ids(s, row, in->ids[i]);
        in->row[in->count] = i;
        in->results[in->count++] = (sc_result){.lease = s->leases[row->lease].handle,
            .len = row->len, .kv_ids = pages ? in->ids[i] : NULL, .kv_count = pages};
    }
    for (uint32_t i = in->count; i > 1; i--) { /* in any order */
        uint32_t j = h_draw(&s->rng, i), row = in->row[i - 1];
        sc_result result = in->results[i - 1];
        in->results[i - 1] = in->results[j];
        in->row[i - 1] = in->row[j];
        in->results[j] = result;
        in->row[j] = row;
    }
}

/* One way of committing wrongly; the status that it must give. */
static sc_status spoil_commit(struct h_sched *s, const struct h_step *step, struct commit_in *in,
    sc_step *id)
{
    sc_result *first = &in->results[0];
    const struct h_row *row = in->count ? &step->rows[in->row[0]] : NULL;
    switch (in->count == 0 ? 0 : h_draw(&s->rng, 6)) {
    case 1:
        in->count--;
        return SC_ERR_INVALID;
    case 2: /* one more, one less than can be */
        first->len = h_one_in(&s->rng, 2) ? row->end + 1 : row->from;
        return SC_ERR_MISMATCH;
    case 3:
        first->kv_count = row->end / s->world->cfg.page - row->from / s->world->cfg.page + 3;
        first->kv_ids = in->ids[in->row[0]];
        return SC_ERR_MISMATCH;
    case 4:
        if (s->grave_count == 0) break;
        first->lease = s->graves[h_draw(&s->rng, h_min(s->grave_count, H_GRAVES_MAX))];
        return SC_ERR_STALE;
    case 5:
        if (in->count > 1 && h_one_in(&s->rng, 2)) in->count--; /* in the place of another */
        in->results[in->count++] = *first;
        return SC_ERR_INVALID;
    default:
        break;
    }
    *id += 1;
    return SC_ERR_NOT_FOUND;
}

/* Every other step asks what became of its saves; then the counters must say the same. */
static sc_status commit_call(struct h_sched *s, sc_step id, const struct commit_in *in,
    sc_status *each)
{
    struct h_world *w = s->world;
    sc_saved saved[64];
    uint32_t count = 0, made = 0, skipped[SC_SKIP_COUNT] = {0};
    if (id % 2 == 0) {
        return H_CALL(s, COMMIT, sc_step_commit(w->cache, id, in->results, in->count, each));
    }
    sc_cache_stats before = h_stats(s);
    sc_status status = H_CALL(s, COMMIT_SAVED, sc_step_commit_saved(w->cache, id, in->results,
                                                   in->count, each, saved, 64, &count));
    if (status != SC_OK || count > 64) return status;
    sc_cache_stats after = h_stats(s);
    for (uint32_t i = 0; i < count; i++) {
        H_CHECK(w, saved[i].skip < SC_SKIP_COUNT, "skip %u", saved[i].skip);
        made += saved[i].slot > 0;
        if (saved[i].slot < 0) skipped[saved[i].skip]++;
    }
    uint64_t ends = after.released - before.released; /* of leases that waited for this step */
    uint64_t published = after.saves_published - before.saves_published;
    H_CHECK(w, published >= made && published <= made + ends, "%u saves are reported, %u were made",
        made, (uint32_t)published);
    for (uint32_t i = 0; i < SC_SKIP_COUNT; i++) {
        uint64_t counted = after.saves_skipped[i] - before.saves_skipped[i];
        bool planned = i == SC_SKIP_NO_SLOT || i == SC_SKIP_LIMIT || i == SC_SKIP_POLICY;
        if (planned) continue; /* some when it was planned */
        H_CHECK(w, counted >= skipped[i] && counted <= skipped[i] + ends,
            "%u saves are skipped for cause %u, %u are counted", skipped[i], i, (uint32_t)counted);
    }
    return status;
}

static void commit_badly(struct h_sched *s, const struct h_step *step, struct commit_in *in)
{
    struct h_world *w = s->world;
    sc_cache_stats stats = h_stats(s);
    sc_room room = h_room(s);
    sc_status each[H_ROWS_MAX + 1];
    sc_step id = step->id;
    sc_status wanted = spoil_commit(s, step, in, &id);
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        if (w->steps[k].active && w->steps[k].id == id && id != step->id) return;
    }
    sc_status status = commit_call(s, id, in, h_one_in(&s->rng, 2) ? NULL : each);
    H_CHECK(w, status == wanted, "%s, not %s: %s", sc_status_name(status), sc_status_name(wanted),
        sc_last_error()->text);
    h_same(s, &stats, &room, "a refused commit");
}

static void step_gone(struct h_world *w, struct h_step *step)
{
    step->active = false;
    w->step_graves[w->step_grave_count++ % H_GRAVES_MAX] = step->id;
}

/* One row of a step that was committed. */
static void row_done(struct h_sched *s, struct h_row *row, const sc_result *result)
{
    struct h_world *w = s->world;
    struct h_lease *lease = &s->leases[row->lease];
    bool rubbish = lease->lost || lease->overrun;
    bool discard = lease->lost || lease->overrun ||
        (lease->draining && row->len > lease->token_count);
    for (uint32_t p = 0; p < result->kv_count; p++) h_kv_hand_in(w, result->kv_ids[p]);
    for (uint32_t p = 0; p < row->done_count && !discard; p++) {
        lease->ids[lease->id_count++] = row->done[p];
    }
    if (!rubbish && lease->open != row->open) {
        /* The page before is complete, or a tail's, or nobody wanted it for one. */
        if (lease->open >= 0 && w->kv_where[lease->open] == H_KV_ENGINE) h_kv_give(w, lease->open);
        lease->open = row->open;
    }
    for (uint32_t p = 0; p < row->id_count; p++) {
        int32_t id = row->ids[p];
        if (w->kv_where[id] == H_KV_ENGINE && id != lease->open) h_kv_give(w, id);
    }
    lease->overrun = lease->overrun || discard;
    if (!discard) lease->run = row->next;
}

/* After a step has ended: leases without another go, if they were released. */
static void leases_settle(struct h_sched *s, const struct h_step *step)
{
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct h_row *row = &step->rows[i];
        if (!row->granted) continue;
        struct h_lease *lease = &s->leases[row->lease];
        h_issue(s, row->lease);
        if (lease->draining && lease->flights == 0) {
            h_lease_gone(s, lease);
        } else {
            h_lease_check(s, lease, h_one_in(&s->rng, 4));
        }
    }
}

/* What the row processed must be the lease's tokens before it is committed. */
static bool append_known(struct h_sched *s, const struct h_step *step)
{
    struct h_world *w = s->world;
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct h_row *row = &step->rows[i];
        struct h_lease *lease = &s->leases[row->lease];
        if (!row->granted || lease->lost || lease->draining) continue;
        if (row->len <= lease->token_count) continue;
        if (h_one_in(&s->rng, 40)) return false; /* forgotten */
        h_arm(s);
        sc_status status = H_CALL(s, APPEND, sc_lease_append(w->cache, lease->handle,
                                                 &lease->text.tokens[lease->token_count],
                                                 row->len - lease->token_count));
        if (h_disarm(s) && status == SC_ERR_NO_MEMORY) return false;
        H_CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
        lease->token_count = row->len;
        h_prompt_keep(s, &lease->text, lease->token_count);
    }
    return true;
}

/* Is an older step of one of its leases still out? Then its results come too early. */
static bool too_early(const struct h_sched *s, const struct h_step *step)
{
    uint32_t unused;
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct h_row *row = &step->rows[i];
        if (!row->granted || s->leases[row->lease].lost) continue;
        if (h_step_before(s, step, row->lease, &unused)) return true;
    }
    return false;
}

static bool commit(struct h_sched *s, struct h_step *step)
{
    struct h_world *w = s->world;
    struct commit_in in;
    bool early = too_early(s, step), appended = early || append_known(s, step);
    if (!early && appended && h_one_in(&s->rng, 16)) {
        commit_draw(s, step, &in);
        commit_badly(s, step, &in);
    }
    commit_draw(s, step, &in);
    sc_status each[H_ROWS_MAX + 1];
    sc_cache_stats before = h_stats(s);
    sc_room room = h_room(s);
    h_arm(s);
    sc_status status = commit_call(s, step->id, &in, h_one_in(&s->rng, 4) ? NULL : each);
    bool failed = h_disarm(s);
    h_trace(s, "commit %u: %s", (uint32_t)step->id, sc_status_name(status));
    if (early || !appended || (status == SC_ERR_NO_MEMORY && failed)) {
        H_CHECK(w, early ? status == SC_ERR_STATE || status == SC_ERR_MISMATCH
                         : failed || status == SC_ERR_MISMATCH,
            "a commit that comes too early: %s", sc_status_name(status));
        h_same(s, &before, &room, "a commit that is refused");
        return false; /* still in flight: tried again later */
    }
    H_CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    if (h_step_oldest(s) != step) s->totals->faults[H_FAULT_REORDERED]++;
    step_gone(w, step);
    for (uint32_t i = 0; i < in.count; i++) {
        row_done(s, &step->rows[in.row[i]], &in.results[i]);
    }
    leases_settle(s, step);
    return true;
}

/* One of this scheduler's steps; late ones are left alone unless they are all there is. */
static struct h_step *pick(struct h_sched *s)
{
    struct h_world *w = s->world;
    uint32_t start = h_draw(&s->rng, H_STEPS_MAX);
    if (h_one_in(&s->rng, 2)) {
        struct h_step *step = h_step_oldest(s);
        return step && !step->lost ? step : NULL;
    }
    for (uint32_t i = 0; i < H_STEPS_MAX; i++) {
        struct h_step *step = &w->steps[(start + i) % H_STEPS_MAX];
        if (step->active && step->owner == s->index && !step->lost) return step;
    }
    return NULL;
}

/* A report that comes a second time must change nothing. */
static void commit_twice(struct h_sched *s, sc_step id, const struct commit_in *in)
{
    struct h_world *w = s->world;
    sc_cache_stats stats = h_stats(s);
    sc_room room = h_room(s);
    sc_status status = commit_call(s, id, in, NULL);
    H_CHECK(w, status == SC_ERR_NOT_FOUND, "a step that has ended, committed again: %s",
        sc_status_name(status));
    h_same(s, &stats, &room, "a commit of a step that has ended");
    s->totals->faults[H_FAULT_TWICE]++;
}

void h_op_commit(struct h_sched *s)
{
    struct h_world *w = s->world;
    if (w->device_lost) return;
    if (w->step_grave_count > 0 && h_one_in(&s->rng, 40)) {
        struct commit_in none = {.count = 0};
        commit_twice(s, w->step_graves[h_draw(&s->rng,
                            h_min(w->step_grave_count, H_GRAVES_MAX))], &none);
    }
    struct h_step *step = pick(s);
    if (!step) {
        if (h_step_oldest(s)) {
            h_op_abort(s);
        } else if (h_steps_active(w) == 0) {
            h_op_plan(s);
        }
        return;
    }
    if (w->now_ns < step->done_at && !h_one_in(&s->rng, 4)) return; /* not finished yet */
    if (w->now_ns < step->done_at) w->now_ns = step->done_at;       /* wait for it */
    if (!h_compute_up_to(s, step)) return;
    if (w->now_ns > step->planned_at + 30) s->totals->faults[H_FAULT_LATE]++;
    if (w->cfg.late && h_one_in(&s->rng, 60)) {
        step->lost = true; /* its report never comes */
        return;
    }
    struct commit_in in;
    commit_draw(s, step, &in);
    sc_step id = step->id;
    if (commit(s, step) && h_one_in(&s->rng, 30)) commit_twice(s, id, &in);
}

/* ------------------------------------------------------------------ abort */

/* Only the newest step can be as if it had never been planned. */
static bool take_back_refused(struct h_sched *s, const struct h_step *step)
{
    struct h_world *w = s->world;
    if (step->id == w->newest_step) return false;
    sc_cache_stats stats = h_stats(s);
    sc_room room = h_room(s);
    sc_status status = H_CALL(s, ABORT, sc_step_abort(w->cache, step->id, false));
    H_CHECK(w, status == SC_ERR_STATE, "step %u is taken back, not the newest: %s",
        (uint32_t)step->id, sc_status_name(status));
    h_same(s, &stats, &room, "a refused abort");
    return true;
}

void h_give_up(struct h_sched *s, struct h_step *step, bool launched)
{
    struct h_world *w = s->world;
    if (!launched && take_back_refused(s, step)) return;
    if (launched) h_scribble(s, step);
    h_arm(s);
    sc_status status = H_CALL(s, ABORT, sc_step_abort(w->cache, step->id, launched));
    (void)h_disarm(s);
    h_trace(s, "abort %u launched %d: %s", (uint32_t)step->id, launched, sc_status_name(status));
    H_CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    s->totals->faults[launched ? H_FAULT_LOST : H_FAULT_CANCELLED]++;
    step_gone(w, step);
    if (!launched) {
        w->newest_step = step->id_before;
        w->plan_count--;
    }
    if (!launched && step->id + 1 == w->next_step && h_one_in(&s->rng, 2)) {
        w->next_step = step->id; /* as if never planned: the number may come again */
        uint32_t at = --w->step_grave_count % H_GRAVES_MAX;
        w->step_graves[at] = w->step_graves[(at + H_GRAVES_MAX - 1) % H_GRAVES_MAX];
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct h_row *row = &step->rows[i];
        if (!row->granted) continue;
        for (uint32_t p = 0; p < row->id_count; p++) { /* a tail may have been handed in */
            if (w->kv_where[row->ids[p]] == H_KV_ENGINE) h_kv_give(w, row->ids[p]);
        }
        if (launched) s->leases[row->lease].lost = true;
    }
    leases_settle(s, step);
    status = H_CALL(s, ABORT, sc_step_abort(w->cache, step->id, launched));
    H_CHECK(w, status == SC_ERR_NOT_FOUND, "abort of an aborted step: %s", sc_status_name(status));
}

void h_op_abort(struct h_sched *s)
{
    struct h_step *step = h_step_oldest(s);
    if (!step) return;
    if (h_one_in(&s->rng, 3)) { /* the newest, as a scheduler that changes its mind */
        for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
            struct h_step *other = &s->world->steps[k];
            if (other->active && other->owner == s->index && other->id > step->id) step = other;
        }
    }
    h_give_up(s, step, step->computed || step->lost || h_one_in(&s->rng, 2));
}

void h_step_end(struct h_sched *s, struct h_step *step)
{
    struct h_world *w = s->world;
    s->op.fault = 0;
    if (step->lost || w->device_lost || !h_compute_up_to(s, step)) {
        h_give_up(s, step, true);
        return;
    }
    for (int tries = 0; step->active; tries++) {
        H_CHECK(w, tries < 100, "the step does not end");
        (void)commit(s, step);
    }
}

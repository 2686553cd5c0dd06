/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: plan, the fake device, commit and abort. The plan's block is read as kernels read it. The
 * device works as late as the operations say; what it reads must still be what the plan meant. */
#include <string.h>

#include "harness.h"

struct plan_in {
    sc_row rows[H_ROWS_MAX + 1];
    uint32_t points[H_ROWS_MAX + 1][H_TOKENS_MAX];
    uint32_t lease[H_ROWS_MAX + 1];
    sc_status wanted[H_ROWS_MAX + 1];
    uint32_t count;
};

/* ------------------------------------------------------------------ plan */

static void draw_points(struct h_sched *s, struct plan_in *in, uint32_t i)
{
    const struct h_world *w = s->world;
    sc_row *row = &in->rows[i];
    for (uint32_t at = row->from + 1; at <= row->to; at++) {
        bool fits = at % w->grid == 0 || (at == row->to && at % w->cfg.page == 0);
        if (fits && h_one_in(&s->rng, 3)) in->points[i][row->point_count++] = at;
    }
    row->points = in->points[i];
}

/* Makes the row one that must be refused. */
static sc_status spoil_row(struct h_sched *s, struct plan_in *in, uint32_t i)
{
    sc_row *row = &in->rows[i];
    const struct h_lease *lease = &s->leases[in->lease[i]];
    row->point_count = 0;
    switch (h_draw(&s->rng, 5)) {
    case 0:
        if (s->grave_count == 0) break;
        row->lease = s->graves[h_draw(&s->rng, h_min(s->grave_count, H_GRAVES_MAX))];
        return SC_ERR_STALE;
    case 1:
        if (row->from + 1 >= row->to) break;
        row->from++;
        return SC_ERR_MISMATCH;
    case 2:
        row->to = lease->token_count + 1;
        return SC_ERR_INVALID;
    case 3:
        in->points[i][0] = row->from; /* not beyond `from` */
        row->points = in->points[i];
        row->point_count = 1;
        return SC_ERR_INVALID;
    default:
        break;
    }
    row->to = row->from;
    return SC_ERR_INVALID;
}

static uint32_t draw_end(struct h_sched *s, const struct h_lease *lease)
{
    uint32_t from = lease->run.len, left = lease->token_count - from;
    switch (h_draw(&s->rng, 5)) {
    case 0:
        return from + 1;
    case 1:
        return from + 1 + h_draw(&s->rng, left);
    case 2:
        return h_min((from / s->world->grid + 1) * s->world->grid, lease->token_count);
    default:
        return lease->token_count;
    }
}

static void plan_draw(struct h_sched *s, struct plan_in *in)
{
    struct sc_prng *rng = &s->rng;
    uint32_t start = h_draw(rng, H_LEASES_MAX);
    memset(in->rows, 0, sizeof in->rows);
    in->count = 0;
    for (uint32_t k = 0; k < H_LEASES_MAX && in->count < s->world->cfg.row_max; k++) {
        uint32_t at = (start + k) % H_LEASES_MAX, i = in->count;
        struct h_lease *lease = &s->leases[at];
        if (!lease->used || lease->state == SC_LEASE_RUNNING ||
            lease->state == SC_LEASE_DRAINING || h_one_in(rng, 5)) {
            continue;
        }
        if (lease->state == SC_LEASE_READY && lease->run.len == lease->token_count) continue;
        if (lease->state == SC_LEASE_LOST && !h_one_in(rng, 3)) continue;
        sc_row *row = &in->rows[in->count++];
        in->lease[i] = at;
        in->wanted[i] = lease->state == SC_LEASE_LOST ? SC_ERR_LOST : SC_OK;
        row->lease = lease->handle;
        row->from = lease->run.len;
        row->to = lease->state == SC_LEASE_LOST ? lease->token_count + 1 : draw_end(s, lease);
        if (in->wanted[i] != SC_OK) continue;
        if (h_one_in(rng, 3)) draw_points(s, in, i);
        if (h_one_in(rng, 24)) in->wanted[i] = spoil_row(s, in, i);
        if (in->wanted[i] == SC_OK && in->count < s->world->cfg.row_max && h_one_in(rng, 24)) {
            in->lease[in->count] = at; /* named twice: the second row is refused */
            in->wanted[in->count] = SC_ERR_INVALID;
            in->rows[in->count++] = *row;
        }
    }
}

static int32_t word(const sc_batch *batch, uint32_t at, uint32_t index)
{
    return batch->block[at + index];
}

static void read_row(struct h_sched *s, struct h_step *step, const struct plan_in *in,
    const sc_batch *batch, uint32_t i, uint32_t *tokens)
{
    struct h_world *w = s->world;
    struct h_row *row = &step->rows[i];
    uint32_t start = (uint32_t)word(batch, batch->at_query_start_loc, i);
    uint32_t stop = (uint32_t)word(batch, batch->at_query_start_loc, i + 1);
    H_CHECK(w, start == *tokens && stop >= start, "query_start_loc %u..%u, %u before", start,
        stop, *tokens);
    *tokens = stop;
    row->source = word(batch, batch->at_source, i);
    row->dest = word(batch, batch->at_dest, i);
    row->extra = word(batch, batch->at_extra, i);
    if (!row->granted) {
        H_CHECK(w, row->source == -1 && row->dest == -1 && row->extra == -1 && stop == start &&
                word(batch, batch->at_decode, i) == -1,
            "row %u is no row, but has slots or tokens", i);
        return;
    }
    struct h_lease *lease = &s->leases[row->lease];
    row->end = (uint32_t)word(batch, batch->at_end, i);
    row->decode = word(batch, batch->at_decode, i) == 1;
    row->freeze = word(batch, batch->at_freeze, i) == 1;
    H_CHECK(w, (uint32_t)word(batch, batch->at_position, i) == row->from &&
            stop - start == row->end - row->from && row->end > row->from &&
            row->end <= in->rows[i].to,
        "row %u of %u..%u: ends at %u, %u tokens", i, row->from, in->rows[i].to, row->end,
        stop - start);
    bool decode = in->rows[i].to - row->from == 1 && row->from >= lease->prompt_len;
    H_CHECK(w, row->decode == decode, "row %u..%u of a prompt of %u: decode %d", row->from,
        row->end, lease->prompt_len, row->decode);
    H_CHECK(w, row->dest > 0 && (row->source > 0) == (row->from > 0), "source %d dest %d at %u",
        row->source, row->dest, row->from);
    H_CHECK(w, row->extra == lease->extra_slot, "extras slot %d, not %d", row->extra,
        lease->extra_slot);
    lease->state = SC_LEASE_RUNNING;
    step->granted_count++;
    s->totals->rows++;
    s->totals->cuts += row->end < in->rows[i].to;
    s->totals->freezes += row->freeze;
}

static void read_saves(struct h_sched *s, struct h_step *step, const sc_batch *batch)
{
    struct h_world *w = s->world;
    for (uint32_t i = 0; i < w->cfg.save_max; i++) {
        int32_t row = word(batch, batch->at_save_row, i);
        int32_t position = word(batch, batch->at_save_position, i);
        int32_t slot = word(batch, batch->at_save_slot, i);
        if (i >= batch->save_count) {
            H_CHECK(w, row == -1 && position == -1 && slot == -1, "save %u is not padded", i);
            continue;
        }
        H_CHECK(w, row >= 0 && (uint32_t)row < step->row_count && step->rows[row].granted,
            "save of row %d", row);
        const struct h_row *of = &step->rows[row];
        H_CHECK(w, !of->decode && position > (int32_t)of->from && position <= (int32_t)of->end &&
                position % (int32_t)w->grid == 0,
            "save at %d of row %u..%u", position, of->from, of->end);
        step->saves[step->save_count++] = (struct h_save){(uint32_t)row, (uint32_t)position, slot};
        s->totals->saves++;
    }
}

/* Contract 7: no slot is written twice by the steps in flight, nor read where another writes. */
static void check_written(struct h_world *w)
{
    uint8_t writers[256] = {0};
    H_CHECK(w, w->cfg.slots < 256, "%u slots", w->cfg.slots);
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        const struct h_step *step = &w->steps[k];
        if (!step->active) continue;
        for (uint32_t i = 0; i < step->save_count; i++) {
            int32_t slot = step->saves[i].slot;
            H_CHECK(w, slot > 0 && (uint32_t)slot <= w->cfg.slots && writers[slot]++ == 0,
                "slot %d is written twice", slot);
        }
        for (uint32_t i = 0; i < step->row_count; i++) {
            const struct h_row *row = &step->rows[i];
            if (!row->granted) continue;
            H_CHECK(w, row->dest > 0 && (uint32_t)row->dest <= w->cfg.slots &&
                    writers[row->dest]++ == 0, "slot %d is written twice", row->dest);
        }
    }
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        const struct h_step *step = &w->steps[k];
        for (uint32_t i = 0; step->active && i < step->row_count; i++) {
            const struct h_row *row = &step->rows[i];
            if (!row->granted || row->source == row->dest || row->source == 0) continue;
            H_CHECK(w, writers[row->source] == 0, "slot %d is read by row %u and written",
                row->source, i);
        }
    }
}

static struct h_step *free_step(struct h_world *w)
{
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        if (!w->steps[k].active) return &w->steps[k];
    }
    return NULL;
}

static uint32_t steps_active(const struct h_world *w)
{
    uint32_t count = 0;
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) count += w->steps[k].active;
    return count;
}

/* This scheduler's oldest step; NULL: none. */
static struct h_step *oldest(const struct h_sched *s)
{
    struct h_step *best = NULL;
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        struct h_step *step = &s->world->steps[k];
        if (step->active && step->owner == s->index && (!best || step->id < best->id)) best = step;
    }
    return best;
}

/* KV pages for what the granted rows complete. */
static void take_pages(struct h_sched *s, struct h_step *step)
{
    struct h_world *w = s->world;
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct h_row *row = &step->rows[i];
        row->id_count = 0;
        if (!row->granted || w->cfg.without_kv) continue;
        row->id_count = row->end / w->cfg.page - row->from / w->cfg.page;
        for (uint32_t p = 0; p < row->id_count; p++) row->ids[p] = h_kv_take(w);
    }
}

static uint64_t draw_latency(struct h_sched *s)
{
    switch (h_draw(&s->rng, 8)) {
    case 0:
        return 60 + h_draw(&s->rng, 200);
    case 1:
        return 10 + h_draw(&s->rng, 40);
    default:
        return h_draw(&s->rng, 6);
    }
}

static void read_plan(struct h_sched *s, struct h_step *step, const struct plan_in *in,
    const sc_batch *batch, const sc_status *each)
{
    struct h_world *w = s->world;
    uint32_t tokens = 0;
    step->active = true;
    step->computed = step->lost = false;
    step->id = w->next_step++;
    step->owner = s->index;
    step->row_count = in->count;
    step->granted_count = step->save_count = 0;
    step->planned_at = w->now_ns;
    step->done_at = w->now_ns + (w->cfg.late ? draw_latency(s) : 0);
    H_CHECK(w, batch->row_max == w->cfg.row_max && batch->save_max == w->cfg.save_max &&
            batch->row_count == in->count, "%u rows of %u", batch->row_count, batch->row_max);
    for (uint32_t i = 0; i < in->count; i++) {
        h_item(s, H_CALL_PLAN_EACH, each[i]);
        H_CHECK(w, each[i] == in->wanted[i], "row %u %u..%u: %s, not %s", i, in->rows[i].from,
            in->rows[i].to, sc_status_name(each[i]), sc_status_name(in->wanted[i]));
        struct h_row *row = &step->rows[i];
        row->granted = each[i] == SC_OK;
        row->lease = in->lease[i];
        row->from = in->rows[i].from;
        row->end = row->from;
        row->freeze = row->decode = false;
        read_row(s, step, in, batch, i, &tokens);
        h_trace(s, "plan %u: lease %u %u..%u end %u %s freeze %d source %d dest %d: %s",
            (uint32_t)step->id, in->lease[i], row->from, in->rows[i].to, row->end,
            row->decode ? "decode" : "prefill", row->freeze, row->source, row->dest,
            sc_status_name(each[i]));
    }
    for (uint32_t i = in->count; i < batch->row_max; i++) {
        H_CHECK(w, word(batch, batch->at_source, i) == -1 && word(batch, batch->at_dest, i) == -1 &&
                word(batch, batch->at_query_start_loc, i + 1) == (int32_t)tokens,
            "row %u is not padded", i);
    }
    H_CHECK(w, tokens == batch->token_count &&
            word(batch, batch->at_token_count, 0) == (int32_t)tokens &&
            word(batch, batch->at_row_count, 0) == (int32_t)batch->row_count &&
            word(batch, batch->at_save_count, 0) == (int32_t)batch->save_count,
        "%u tokens in rows, %u in the batch", tokens, batch->token_count);
    read_saves(s, step, batch);
    check_written(w);
    take_pages(s, step);
}

void h_op_plan(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct plan_in in;
    sc_batch batch;
    sc_status each[H_ROWS_MAX + 1];
    struct h_step *step = free_step(w);
    bool busy = steps_active(w) > 0;
    if (busy && !h_one_in(&s->rng, 8)) {
        if (oldest(s)) h_op_commit(s);
        return;
    }
    plan_draw(s, &in);
    if (in.count == 0) { /* nothing to compute: tokens come in */
        h_op_append(s);
        return;
    }
    uint32_t pages = 0;
    for (uint32_t i = 0; i < in.count; i++) {
        pages += (in.rows[i].to - in.rows[i].from) / w->cfg.page + 1;
    }
    if (!busy && !w->cfg.without_kv && !h_kv_room(s, pages)) {
        h_preempt(s); /* too many requests for the KV that there is */
        return;
    }
    w->next_step += h_draw(&s->rng, 3);
    h_arm(s);
    sc_status status = H_CALL(s, PLAN,
        sc_step_plan(w->cache, w->next_step, in.rows, in.count, w->now_ns, &batch, each));
    (void)h_disarm(s);
    if (busy) {
        H_CHECK(w, status == SC_ERR_BUSY, "%s with a step in flight", sc_status_name(status));
        return;
    }
    H_CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    read_plan(s, step, &in, &batch, each);
    s->totals->steps++;
}

/* ------------------------------------------------------------------ the device */

static void compute_row(struct h_sched *s, struct h_step *step, uint32_t index)
{
    struct h_world *w = s->world;
    struct h_row *row = &step->rows[index];
    struct h_lease *lease = &s->leases[row->lease];
    const struct h_run *base = &lease->run;
    uint64_t source = h_slot_read(s, row->source, lease->root, "source of a row");
    H_CHECK(w, source == base->state && base->len == row->from, "row %u of step %u reads slot %d, "
        "which is not its state after %u tokens", index, (uint32_t)step->id, row->source,
        row->from);
    for (uint32_t p = 0; p < lease->id_count; p++) { /* attention reads all of it */
        H_CHECK(w, w->kv_stamp[lease->ids[p]] == base->page[p], "row %u of step %u reads KV id %d "
            "for page %u, which has something else", index, (uint32_t)step->id, lease->ids[p], p);
    }
    row->next = *base;
    for (uint32_t i = 0; i < step->save_count; i++) { /* ascending by row and position */
        if (step->saves[i].row != index) continue;
        struct h_run at = row->next.len <= step->saves[i].position ? row->next : *base;
        h_run_prefill(w, &at, lease->tokens, step->saves[i].position);
        h_slot_write(w, step->saves[i].slot, at.state);
    }
    if (row->decode) {
        h_run_decode(w, &row->next, lease->tokens, row->end);
    } else {
        h_run_prefill(w, &row->next, lease->tokens, row->end);
    }
    bool canary = w->canary_from && w->op_count >= w->canary_from;
    h_slot_write(w, row->dest, row->next.state ^ (canary ? 64 : 0));
    for (uint32_t p = 0; p < row->id_count; p++) {
        w->kv_stamp[row->ids[p]] = row->next.page[row->from / w->cfg.page + p];
    }
    if (w->extras) {
        uint32_t tag = h_extra_read(w, row->extra);
        H_CHECK(w, tag == lease->tag, "extras slot %d was written by somebody else", row->extra);
        lease->tag = (uint32_t)h_mix(step->id, row->lease) | 1;
        h_extra_write(w, row->extra, lease->tag);
    }
}

/* The oldest step of this scheduler that has not been computed; none: H_STEPS_MAX. */
static uint32_t next_to_compute(const struct h_sched *s)
{
    uint32_t best = H_STEPS_MAX;
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        const struct h_step *step = &s->world->steps[k];
        if (!step->active || step->computed || step->owner != s->index) continue;
        if (best == H_STEPS_MAX || step->id < s->world->steps[best].id) best = k;
    }
    return best;
}

void h_op_compute_choose(struct h_sched *s)
{
    s->step_of_compute = next_to_compute(s);
}

void h_op_compute(struct h_sched *s)
{
    if (s->step_of_compute == H_STEPS_MAX || s->world->device_lost) return;
    struct h_step *step = &s->world->steps[s->step_of_compute];
    for (uint32_t i = 0; i < step->row_count; i++) {
        if (step->rows[i].granted) compute_row(s, step, i);
    }
    step->computed = true;
    h_trace(s, "compute %u", (uint32_t)step->id);
}

/* A step that was launched and failed has written anything anywhere it was allowed to. */
static void scribble(struct h_sched *s, struct h_step *step)
{
    for (uint32_t i = 0; i < step->row_count; i++) {
        if (step->rows[i].granted && h_one_in(&s->rng, 2)) {
            h_slot_write(s->world, step->rows[i].dest, 1);
        }
    }
    for (uint32_t i = 0; i < step->save_count; i++) {
        if (h_one_in(&s->rng, 2)) h_slot_write(s->world, step->saves[i].slot, 2);
    }
}

/* ------------------------------------------------------------------ commit */

struct commit_in {
    sc_result results[H_ROWS_MAX + 1];
    uint32_t row[H_ROWS_MAX + 1];
    uint32_t count;
};

static void commit_draw(struct h_sched *s, const struct h_step *step, struct commit_in *in)
{
    in->count = 0;
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct h_row *row = &step->rows[i];
        if (!row->granted) continue;
        in->row[in->count] = i;
        in->results[in->count++] = (sc_result){.lease = s->leases[row->lease].handle,
            .len = row->end, .kv_ids = row->id_count ? row->ids : NULL,
            .kv_count = row->id_count};
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
static sc_status spoil_commit(struct h_sched *s, struct commit_in *in, sc_step *id)
{
    sc_result *first = &in->results[0];
    uint32_t what = in->count == 0 ? 0 : h_draw(&s->rng, 6);
    switch (what) {
    case 1:
        in->count--;
        return SC_ERR_INVALID;
    case 2:
        first->len += h_one_in(&s->rng, 2) ? 1u : UINT32_MAX; /* one more, one less */
        return SC_ERR_MISMATCH;
    case 3:
        first->kv_count++;
        if (!first->kv_ids) first->kv_ids = (const int32_t[]){0};
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

static void commit_badly(struct h_sched *s, const struct h_step *step, struct commit_in *in)
{
    struct h_world *w = s->world;
    sc_cache_stats stats = h_stats(s);
    sc_room room = h_room(s);
    sc_status each[H_ROWS_MAX + 1];
    sc_step id = step->id;
    sc_status wanted = spoil_commit(s, in, &id);
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        if (w->steps[k].active && w->steps[k].id == id && id != step->id) return;
    }
    sc_status status = H_CALL(s, COMMIT, sc_step_commit(w->cache, id, in->results, in->count,
                                             h_one_in(&s->rng, 2) ? NULL : each));
    H_CHECK(w, status == wanted, "%s, not %s: %s", sc_status_name(status), sc_status_name(wanted),
        sc_last_error()->text);
    h_same(s, &stats, &room, "a refused commit");
}

static void step_gone(struct h_world *w, struct h_step *step)
{
    step->active = false;
    w->step_graves[w->step_grave_count++ % H_GRAVES_MAX] = step->id;
}

static void commit_done(struct h_sched *s, struct h_step *step)
{
    struct h_world *w = s->world;
    step_gone(w, step);
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct h_row *row = &step->rows[i];
        struct h_lease *lease = &s->leases[row->lease];
        if (!row->granted) continue;
        for (uint32_t p = 0; p < row->id_count; p++) {
            lease->ids[lease->id_count++] = row->ids[p];
            w->kv_where[row->ids[p]] = H_KV_INSIDE;
        }
        w->kv_in += row->id_count;
        lease->run = row->next;
        if (lease->state == SC_LEASE_DRAINING) {
            h_lease_gone(s, lease);
        } else {
            lease->state = SC_LEASE_READY;
            h_lease_check(s, lease, h_one_in(&s->rng, 4));
        }
    }
}

static bool commit(struct h_sched *s, struct h_step *step)
{
    struct h_world *w = s->world;
    struct commit_in in;
    commit_draw(s, step, &in);
    if (h_one_in(&s->rng, 16)) {
        commit_badly(s, step, &in);
        commit_draw(s, step, &in);
    }
    sc_status each[H_ROWS_MAX + 1];
    sc_cache_stats before = h_stats(s);
    sc_room room = h_room(s);
    h_arm(s);
    sc_status status = H_CALL(s, COMMIT, sc_step_commit(w->cache, step->id, in.results, in.count,
                                             h_one_in(&s->rng, 4) ? NULL : each));
    bool failed = h_disarm(s);
    h_trace(s, "commit %u: %s", (uint32_t)step->id, sc_status_name(status));
    if (status == SC_ERR_NO_MEMORY && failed) {
        h_same(s, &before, &room, "a commit without memory");
        return false; /* still in flight: tried again later */
    }
    H_CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    commit_done(s, step);
    return true;
}

/* One of this scheduler's steps that the device has finished. */
static struct h_step *pick_done(struct h_sched *s)
{
    struct h_world *w = s->world;
    uint32_t start = h_draw(&s->rng, H_STEPS_MAX);
    for (uint32_t i = 0; i < H_STEPS_MAX; i++) {
        struct h_step *step = &w->steps[(start + i) % H_STEPS_MAX];
        if (!step->active || step->owner != s->index || step->lost) continue;
        return step;
    }
    return NULL;
}

/* A report that comes a second time must change nothing. */
static void commit_twice(struct h_sched *s, sc_step id, const struct commit_in *in)
{
    struct h_world *w = s->world;
    sc_cache_stats stats = h_stats(s);
    sc_room room = h_room(s);
    sc_status status =
        H_CALL(s, COMMIT, sc_step_commit(w->cache, id, in->results, in->count, NULL));
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
    struct h_step *step = pick_done(s);
    if (!step) {
        if (oldest(s)) {
            h_op_abort(s);
        } else if (steps_active(w) == 0) {
            h_op_plan(s);
        }
        return;
    }
    if (w->now_ns < step->done_at && !h_one_in(&s->rng, 4)) return; /* not finished yet */
    if (w->now_ns < step->done_at) w->now_ns = step->done_at;       /* wait for it */
    if (!step->computed) {
        s->step_of_compute = (uint32_t)(step - w->steps);
        if (s->step_of_compute != next_to_compute(s)) return;
        h_op_compute(s);
    }
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

static void give_up(struct h_sched *s, struct h_step *step, bool launched)
{
    struct h_world *w = s->world;
    if (launched) scribble(s, step);
    h_arm(s);
    sc_status status = H_CALL(s, ABORT, sc_step_abort(w->cache, step->id, launched));
    (void)h_disarm(s);
    h_trace(s, "abort %u launched %d: %s", (uint32_t)step->id, launched, sc_status_name(status));
    H_CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    s->totals->faults[launched ? H_FAULT_LOST : H_FAULT_CANCELLED]++;
    step_gone(w, step);
    if (!launched && step->id + 1 == w->next_step && h_one_in(&s->rng, 2)) {
        w->next_step = step->id; /* as if never planned: the number may come again */
        uint32_t at = --w->step_grave_count % H_GRAVES_MAX;
        w->step_graves[at] = w->step_graves[(at + H_GRAVES_MAX - 1) % H_GRAVES_MAX];
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct h_row *row = &step->rows[i];
        struct h_lease *lease = &s->leases[row->lease];
        if (!row->granted) continue;
        for (uint32_t p = 0; p < row->id_count; p++) h_kv_give(w, row->ids[p]);
        bool draining = lease->state == SC_LEASE_DRAINING;
        lease->state = launched ? SC_LEASE_LOST : SC_LEASE_READY;
        if (draining) {
            h_lease_gone(s, lease);
        } else {
            h_lease_check(s, lease, false);
        }
    }
    status = H_CALL(s, ABORT, sc_step_abort(w->cache, step->id, launched));
    H_CHECK(w, status == SC_ERR_NOT_FOUND, "abort of an aborted step: %s", sc_status_name(status));
}

void h_op_abort(struct h_sched *s)
{
    struct h_step *step = oldest(s);
    if (step) give_up(s, step, step->computed || step->lost || h_one_in(&s->rng, 2));
}

void h_step_end(struct h_sched *s, struct h_step *step)
{
    struct h_world *w = s->world;
    if (step->lost || w->device_lost) {
        give_up(s, step, true);
        return;
    }
    if (!step->computed) {
        s->step_of_compute = (uint32_t)(step - w->steps);
        h_op_compute(s);
    }
    s->op.fault = 0;
    H_CHECK(w, commit(s, step), "the step does not end");
}

/* The device is lost: what was launched has ended somehow, all states are gone. The scheduler gives
 * up steps and leases, drops what is cached and goes on when the device is back. */
void h_op_lose(struct h_sched *s)
{
    struct h_world *w = s->world;
    if (!w->device_lose || !h_one_in(&s->rng, 40)) return;
    w->device_lost = true;
    w->device_lose(w->device_ctx, true);
    s->totals->faults[H_FAULT_DEVICE]++;
    h_trace(s, "the device is lost");
    if (h_one_in(&s->rng, 2)) h_op_acquire(s); /* who does not know it yet */
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        struct h_step *step = &w->steps[k];
        if (step->active) give_up(&w->scheds[step->owner], step, true);
    }
    w->device_lose(w->device_ctx, false);
    w->device_lost = false;
    h_world_empty(w);
}

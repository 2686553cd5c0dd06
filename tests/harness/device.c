/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device: what a step's kernels do, in the order of the steps, as late as the operations
 * say. Everything that a row reads must still be what the plan meant. */
#include <string.h>

#include "harness.h"

struct h_step *h_step_free(struct h_world *w)
{
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        if (!w->steps[k].active) return &w->steps[k];
    }
    return NULL;
}

uint32_t h_steps_active(const struct h_world *w)
{
    uint32_t count = 0;
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) count += w->steps[k].active;
    return count;
}

struct h_step *h_step_oldest(const struct h_sched *s)
{
    struct h_step *best = NULL;
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        struct h_step *step = &s->world->steps[k];
        if (step->active && step->owner == s->index && (!best || step->id < best->id)) best = step;
    }
    return best;
}

struct h_step *h_step_before(const struct h_sched *s, const struct h_step *step, uint32_t lease,
    uint32_t *row_out)
{
    struct h_step *best = NULL;
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        struct h_step *other = &s->world->steps[k];
        if (!other->active || other->owner != s->index || other->id >= step->id) continue;
        if (best && other->id < best->id) continue;
        for (uint32_t i = 0; i < other->row_count; i++) {
            if (!other->rows[i].granted || other->rows[i].lease != lease) continue;
            best = other;
            *row_out = i;
        }
    }
    return best;
}

void h_issue(struct h_sched *s, uint32_t index)
{
    struct h_lease *lease = &s->leases[index];
    lease->issued_len = lease->issued_max = lease->run.len;
    lease->flights = 0;
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        const struct h_step *step = &s->world->steps[k];
        if (!step->active || step->owner != s->index) continue;
        for (uint32_t i = 0; i < step->row_count; i++) {
            const struct h_row *row = &step->rows[i];
            if (!row->granted || row->lease != index) continue;
            lease->flights++;
            lease->issued_len += row->certain;
            lease->issued_max += row->end - row->from_max;
        }
    }
}

/* ------------------------------------------------------------------ one row */

/* Tokens that nobody has appended yet: sampled, or accepted drafts. */
static void sample(struct h_sched *s, struct h_lease *lease, uint32_t len)
{
    struct h_text *text = &lease->text;
    if (text->count < lease->token_count) text->count = lease->token_count;
    for (; text->count < len; text->count++) {
        text->tokens[text->count] = h_token_draw(s);
        text->mark[text->count] = 0;
    }
}

static void write_saves(struct h_sched *s, const struct h_step *step, uint32_t index,
    const struct h_run *base)
{
    const struct h_row *row = &step->rows[index];
    const struct h_lease *lease = &s->leases[row->lease];
    struct h_run at = *base;
    for (uint32_t i = 0; i < step->save_count; i++) {
        const struct h_save *save = &step->saves[i];
        if (save->row != index) continue;
        if (save->position <= base->len || save->position > row->len) continue; /* not reached */
        if (row->decode) {
            if (save->position < at.len) at = *base;
            h_run_decode(s->world, &at, &lease->text, save->position);
        } else {
            at = *base;
            h_run_prefill(s->world, &at, &lease->text, save->position);
        }
        h_slot_write(s->world, save->slot, at.state);
    }
}

static void write_extra(struct h_sched *s, const struct h_step *step, const struct h_row *row)
{
    struct h_lease *lease = &s->leases[row->lease];
    uint32_t tag = h_extra_read(s->world, row->extra);
    H_CHECK(s->world, tag == lease->tag, "extras slot %d was written by somebody else",
        row->extra);
    lease->tag = (uint32_t)h_mix(step->id, row->lease) | 1;
    h_extra_write(s->world, row->extra, lease->tag);
}

static void check_kv(struct h_sched *s, const struct h_step *step, const struct h_row *row,
    const struct h_run *base)
{
    const struct h_lease *lease = &s->leases[row->lease];
    for (uint32_t p = 0; p < lease->id_count; p++) { /* attention reads all of it */
        H_CHECK(s->world, s->world->kv_stamp[lease->ids[p]] == base->page[p], "step %u reads KV id "
            "%d for page %u, which has something else", (uint32_t)step->id, lease->ids[p], p);
    }
}

/* A tail that was resumed is still what it was; the lease goes on in a copy. */
static void copy_tail(struct h_sched *s, struct h_lease *lease, const struct h_run *base)
{
    struct h_world *w = s->world;
    if (lease->tail_kv < 0) return;
    H_CHECK(w, w->kv_where[lease->tail_kv] == H_KV_INSIDE &&
            w->kv_stamp[lease->tail_kv] == base->page[base->len / w->cfg.page],
        "KV id %d of a tail of %u tokens has something else", lease->tail_kv, base->len);
    w->kv_stamp[lease->open] = w->kv_stamp[lease->tail_kv];
    lease->tail_kv = -1;
}

/* Fills pages, the open one first; `open`: -1 where the row starts at a page's start. */
static void write_kv(struct h_sched *s, struct h_row *row, const struct h_run *base, int32_t open)
{
    struct h_world *w = s->world;
    uint32_t page = w->cfg.page, used = 0;
    H_CHECK(w, (open >= 0) == (base->len % page != 0), "page %d at %u", open, base->len);
    if (open >= 0) copy_tail(s, &s->leases[row->lease], base);
    H_CHECK(w, open < 0 || w->kv_stamp[open] == base->page[base->len / page], "KV id %d does not "
        "hold the tokens before %u", open, base->len);
    for (uint32_t p = base->len / page; p * page < row->len; p++) {
        if (open < 0) open = row->ids[used++];
        w->kv_stamp[open] = row->next.page[p];
        if ((p + 1) * page > row->len) break;
        row->done[row->done_count++] = open;
        open = -1;
    }
    if (row->freeze == 2) {
        row->tail = open;
        open = row->ids[used++];
        w->kv_stamp[open] = w->kv_stamp[row->tail];
    }
    row->open = open;
}

/* What a failed kernel, or one that works on rubbish, may have done. */
static void scribble_row(struct h_sched *s, struct h_step *step, uint32_t index)
{
    struct h_row *row = &step->rows[index];
    if (h_one_in(&s->rng, 2)) h_slot_write(s->world, row->dest, 1);
    for (uint32_t i = 0; i < step->save_count; i++) {
        if (step->saves[i].row != index || h_one_in(&s->rng, 2)) continue;
        h_slot_write(s->world, step->saves[i].slot, 2);
    }
}

void h_scribble(struct h_sched *s, struct h_step *step)
{
    for (uint32_t i = 0; i < step->row_count; i++) {
        if (step->rows[i].granted) scribble_row(s, step, i);
    }
}

static void compute_row(struct h_sched *s, struct h_step *step, uint32_t index)
{
    struct h_world *w = s->world;
    struct h_row *row = &step->rows[index];
    struct h_lease *lease = &s->leases[row->lease];
    const struct h_row *before = row->before;
    const struct h_run *base = before ? &before->next : &lease->run;
    row->len = row->end;
    row->computed = true;
    if (lease->lost || lease->overrun) {
        scribble_row(s, step, index);
        return;
    }
    H_CHECK(w, base->len >= row->from && base->len <= row->from_max, "row %u starts at %u, not in "
        "%u..%u", index, base->len, row->from, row->from_max);
    if (row->copy_to >= 0) {
        uint64_t copied = h_slot_read(s, row->copy_from, lease->root, "copy before a row");
        h_slot_write(w, row->copy_to, copied);
    }
    uint64_t source = h_slot_read(s, row->source, lease->root, "source of a row");
    H_CHECK(w, source == base->state, "row %u of step %u reads slot %d, which is not its state "
        "after %u tokens", index, (uint32_t)step->id, row->source, base->len);
    check_kv(s, step, row, base);
    row->len = base->len + row->certain + (row->depth ? h_draw(&s->rng, row->depth + 1) : 0);
    sample(s, lease, row->len);
    row->next = *base;
    write_saves(s, step, index, base);
    if (row->decode) {
        h_run_decode(w, &row->next, &lease->text, row->len);
    } else {
        h_run_prefill(w, &row->next, &lease->text, row->len);
    }
    bool canary = w->canary_from && w->op_count >= w->canary_from;
    h_slot_write(w, row->dest, row->next.state ^ (canary ? 64 : 0));
    if (!w->cfg.without_kv) write_kv(s, row, base, before ? before->open : lease->open);
    if (w->extras) write_extra(s, step, row);
}

/* ------------------------------------------------------------------ one step */

/* The oldest step of this scheduler that has not been computed; none: H_STEPS_MAX. */
uint32_t h_next_to_compute(const struct h_sched *s)
{
    uint32_t best = H_STEPS_MAX;
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        const struct h_step *step = &s->world->steps[k];
        /* Of another scheduler's step its thread may write `computed` just now. */
        if (!step->active || step->owner != s->index || step->computed) continue;
        if (best == H_STEPS_MAX || step->id < s->world->steps[best].id) best = k;
    }
    return best;
}

/* Under the lock: the steps of others come and go while this one is computed. */
void h_op_compute_choose(struct h_sched *s)
{
    s->step_of_compute = h_next_to_compute(s);
    if (s->step_of_compute == H_STEPS_MAX) return;
    struct h_step *step = &s->world->steps[s->step_of_compute];
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct h_row *row = &step->rows[i];
        uint32_t index = 0;
        if (!row->granted) continue;
        const struct h_step *before = h_step_before(s, step, row->lease, &index);
        row->before = before ? &before->rows[index] : NULL;
    }
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

bool h_compute_up_to(struct h_sched *s, const struct h_step *step)
{
    while (!step->computed) {
        h_op_compute_choose(s);
        if (s->step_of_compute == H_STEPS_MAX || s->world->device_lost) return false;
        h_op_compute(s);
    }
    return true;
}

/* The device is lost: what was launched has ended somehow, all states are gone. The scheduler gives
 * up steps and leases, drops what is cached and goes on when the device is back. */
void h_op_lose(struct h_sched *s)
{
    struct h_world *w = s->world;
    if (!w->device_lose || !h_one_in(&s->rng, 40)) return;
    w->device_lost = true;
    w->tier.troubled = true; /* restores whose slots are not prepared fail */
    w->device_lose(w->device_ctx, true);
    s->totals->faults[H_FAULT_DEVICE]++;
    h_trace(s, "the device is lost");
    if (h_one_in(&s->rng, 2)) h_op_acquire(s); /* who does not know it yet */
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        struct h_step *step = &w->steps[k];
        if (step->active) h_give_up(&w->scheds[step->owner], step, true);
    }
    w->device_lose(w->device_ctx, false);
    w->device_lost = false;
    h_world_empty(w);
}

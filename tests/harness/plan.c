/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: plan. The block is read as kernels read it, and must say what the rows asked for. */
#include <string.h>

#include "harness.h"

struct plan_in {
    sc_row rows[H_ROWS_MAX + 1];
    uint32_t points[H_ROWS_MAX + 1][H_TOKENS_MAX];
    int32_t parents[H_ROWS_MAX + 1][H_DRAFTS_MAX];
    uint32_t lease[H_ROWS_MAX + 1];
    sc_status wanted[H_ROWS_MAX + 1];
    uint32_t count;
};

/* ------------------------------------------------------------------ plan */

static void draw_points(struct h_sched *s, struct plan_in *in, uint32_t i)
{
    const struct h_world *w = s->world;
    const struct h_lease *lease = &s->leases[in->lease[i]];
    sc_row *row = &in->rows[i];
    bool pages = row->draft_count > 0 || lease->issued_len != lease->issued_max;
    for (uint32_t at = row->from + 1; at <= row->to; at++) {
        uint32_t unit = pages || at == row->to ? w->cfg.page : w->grid;
        bool fits = at % unit == 0 || (w->cfg.tails && !pages && at == row->to);
        if (fits && h_one_in(&s->rng, 3)) in->points[i][row->point_count++] = at;
    }
    row->points = in->points[i];
}

/* Makes the row one that must be refused. */
static sc_status spoil_row(struct h_sched *s, struct plan_in *in, uint32_t i)
{
    sc_row *row = &in->rows[i];
    const struct h_lease *lease = &s->leases[in->lease[i]];
    row->point_count = row->draft_count = 0;
    switch (h_draw(&s->rng, 6)) {
    case 0:
        if (s->grave_count == 0) break;
        row->lease = s->graves[h_draw(&s->rng, h_min(s->grave_count, H_GRAVES_MAX))];
        return SC_ERR_STALE;
    case 1:
        if (row->from + 1 >= row->to) break;
        row->from++;
        return SC_ERR_MISMATCH;
    case 2: /* two tokens more than can be known */
        row->to = (lease->token_count > lease->issued_max ? lease->token_count
                                                          : lease->issued_max) + 2;
        return SC_ERR_INVALID;
    case 4:
        row->draft_count = s->world->cfg.draft_max + 1;
        row->parents = NULL;
        row->to = lease->issued_max + 1 + row->draft_count;
        return SC_ERR_LIMIT;
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

/* Of tokens that are there. */
static uint32_t draw_end(struct h_sched *s, const struct h_lease *lease)
{
    uint32_t from = lease->issued_max, left = lease->token_count - from;
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

/* A row of this lease: of what is known, one token ahead of what is known, drafts on top. */
static bool draw_row(struct h_sched *s, const struct h_lease *lease, sc_row *row, int32_t *parents)
{
    struct sc_prng *rng = &s->rng;
    const struct h_config *cfg = &s->world->cfg;
    bool ahead = lease->token_count <= lease->issued_max;
    row->lease = lease->handle;
    row->from = lease->issued_len;
    if (ahead && lease->flights == 0) return false; /* nothing to compute */
    row->to = ahead ? lease->issued_max + 1 : draw_end(s, lease);
    bool uncertain = lease->issued_len != lease->issued_max;
    if (cfg->draft_max > 0 && lease->issued_len >= lease->prompt_len && h_one_in(rng, 2)) {
        row->draft_count = 1 + h_draw(rng, cfg->draft_max);
        row->to += row->draft_count;
        if (h_one_in(rng, 3)) { /* a tree */
            uint32_t depth[H_DRAFTS_MAX], deepest = 0;
            for (uint32_t d = 0; d < row->draft_count; d++) {
                parents[d] = (int32_t)h_draw(rng, d + 1) - 1;
                depth[d] = parents[d] < 0 ? 1 : depth[parents[d]] + 1;
                if (depth[d] > deepest) deepest = depth[d];
            }
            row->parents = parents;
            row->to -= row->draft_count - deepest;
        }
    }
    if (row->draft_count > 0) uncertain = true;
    if (uncertain && row->to - lease->issued_max > 40) return false;
    return row->to <= cfg->lease_token_max;
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
        bool out = lease->flights >= lease->depth || lease->draining || h_waits(lease);
        if (!lease->used || h_one_in(rng, 5)) continue;
        if ((out || lease->lost) && !h_one_in(rng, 12)) continue;
        sc_row *row = &in->rows[i];
        if (out || lease->lost) {
            *row = (sc_row){.lease = lease->handle, .from = lease->issued_len,
                .to = lease->issued_max + 1};
            bool lost = lease->lost && !lease->draining && !h_waits(lease);
            in->wanted[i] = lost ? SC_ERR_LOST : SC_ERR_STATE;
        } else if (draw_row(s, lease, row, in->parents[i])) {
            in->wanted[i] = SC_OK;
        } else {
            memset(row, 0, sizeof *row);
            continue;
        }
        in->lease[i] = at;
        in->count++;
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

static uint32_t deepest(const sc_row *row)
{
    uint32_t depth[H_DRAFTS_MAX] = {0}, most = 0;
    for (uint32_t d = 0; d < row->draft_count; d++) {
        int32_t parent = row->parents ? row->parents[d] : (int32_t)d - 1;
        depth[d] = parent < 0 ? 1 : depth[parent] + 1;
        if (depth[d] > most) most = depth[d];
    }
    return most;
}

/* Where the row starts, if nobody knows yet; and what its drafts follow. */
static void read_drafts(struct h_sched *s, const struct h_step *step, const sc_row *asked,
    const sc_batch *batch, uint32_t i)
{
    struct h_world *w = s->world;
    const struct h_row *row = &step->rows[i];
    int32_t accepted = word(batch, batch->at_accepted, i);
    if (row->from == row->from_max) {
        H_CHECK(w, accepted == -1, "row %u starts at %u, but at row %d's end", i, row->from,
            accepted);
    } else {
        uint32_t back = (uint32_t)word(batch, batch->at_accepted_back, i), index = 0;
        const struct h_step *before = h_step_before(s, step, row->lease, &index);
        H_CHECK(w, before && accepted == (int32_t)index && before->plan_no + back == step->plan_no,
            "row %u starts where row %d of %u plans ago ends", i, accepted, back);
    }
    H_CHECK(w, word(batch, batch->at_draft_count, i) == (int32_t)row->draft_count &&
            batch->draft_max == w->cfg.draft_max, "drafts of row %u", i);
    for (uint32_t d = 0; d < w->cfg.draft_max; d++) {
        int32_t parent = asked->parents && d < row->draft_count ? asked->parents[d]
                                                                : (int32_t)d - 1;
        int32_t wanted = d < row->draft_count ? (int32_t)row->certain + parent : -1;
        H_CHECK(w, word(batch, batch->at_parent + i * w->cfg.draft_max, d) == wanted,
            "draft %u of row %u follows %d, not %d", d, i,
            word(batch, batch->at_parent + i * w->cfg.draft_max, d), wanted);
    }
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
    row->copy_from = word(batch, batch->at_copy_from, i);
    row->copy_to = word(batch, batch->at_copy_to, i);
    if (!row->granted) {
        H_CHECK(w, row->source == -1 && row->dest == -1 && row->extra == -1 && stop == start &&
                word(batch, batch->at_decode, i) == -1,
            "row %u is no row, but has slots or tokens", i);
        return;
    }
    struct h_lease *lease = &s->leases[row->lease];
    const sc_row *asked = &in->rows[i];
    row->end = (uint32_t)word(batch, batch->at_end, i);
    row->decode = word(batch, batch->at_decode, i) == 1;
    row->freeze = word(batch, batch->at_freeze, i);
    bool inside = !w->cfg.without_kv && row->end % w->cfg.page != 0;
    H_CHECK(w, row->freeze == 0 || row->freeze == (inside ? 2 : 1), "freeze %d at %u", row->freeze,
        row->end);
    row->draft_count = asked->draft_count;
    row->from_max = lease->issued_max;
    row->depth = deepest(asked);
    row->certain = row->end - row->from_max - row->depth;
    bool uncertain = row->draft_count > 0 || row->from != row->from_max;
    bool decode = uncertain || (asked->to - row->from == 1 && row->from >= lease->prompt_len);
    H_CHECK(w, (uint32_t)word(batch, batch->at_position, i) == row->from &&
            row->end > row->from_max + row->depth && row->end <= asked->to &&
            stop - start == row->certain + row->draft_count && (!decode || row->end == asked->to),
        "row %u of %u..%u: ends at %u, %u tokens", i, row->from, asked->to, row->end,
        stop - start);
    H_CHECK(w, row->decode == decode, "row %u..%u of a prompt of %u: decode %d", row->from,
        row->end, lease->prompt_len, row->decode);
    H_CHECK(w, row->dest > 0 && (row->source > 0 || row->from == 0), "source %d dest %d at %u",
        row->source, row->dest, row->from);
    bool copy = lease->flags & SC_REQUEST_COPY;
    H_CHECK(w, copy ? row->source == row->dest && (row->copy_to == -1 || row->copy_to == row->dest)
                    : row->copy_to == -1, "source %d dest %d, copy %d to %d", row->source,
        row->dest, row->copy_from, row->copy_to);
    H_CHECK(w, (row->copy_from == -1) == (row->copy_to == -1) && row->copy_from != row->dest,
        "copy %d to %d", row->copy_from, row->copy_to);
    H_CHECK(w, row->extra == lease->extra_slot, "extras slot %d, not %d", row->extra,
        lease->extra_slot);
    read_drafts(s, step, asked, batch, i);
    step->granted_count++;
    s->totals->rows++;
    s->totals->cuts += row->end < asked->to;
    s->totals->freezes += row->freeze != 0;
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
        bool uncertain = of->draft_count > 0 || of->from != of->from_max;
        H_CHECK(w, of->decode == uncertain && position > (int32_t)of->from &&
                position <= (int32_t)of->end &&
                position % (int32_t)(uncertain ? w->cfg.page : w->grid) == 0,
            "save at %d of row %u..%u", position, of->from, of->end);
        step->saves[step->save_count++] = (struct h_save){(uint32_t)row, (uint32_t)position, slot};
        s->totals->saves++;
    }
}

/* Contract 7: a slot is written for one lease, and nobody else reads it. Saves are written once. */
static void check_written(struct h_world *w)
{
    enum { SAVE = 255 };
    uint8_t writer[256] = {0}; /* 1 + scheduler and lease */
    H_CHECK(w, w->cfg.slots < 256, "%u slots", w->cfg.slots);
    for (uint32_t k = 0; k < H_STEPS_MAX; k++) {
        const struct h_step *step = &w->steps[k];
        for (uint32_t i = 0; step->active && i < step->save_count; i++) {
            int32_t slot = step->saves[i].slot;
            H_CHECK(w, slot > 0 && (uint32_t)slot <= w->cfg.slots && writer[slot] == 0,
                "slot %d is written twice", slot);
            writer[slot] = SAVE;
        }
    }
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t n = 0; n < H_STEPS_MAX * H_ROWS_MAX; n++) {
            const struct h_step *step = &w->steps[n / H_ROWS_MAX];
            const struct h_row *row = &step->rows[n % H_ROWS_MAX];
            if (!step->active || n % H_ROWS_MAX >= step->row_count || !row->granted) continue;
            uint8_t me = (uint8_t)(1 + step->owner * H_LEASES_MAX + row->lease);
            int32_t read = row->copy_to >= 0 ? row->copy_from : row->source;
            int32_t slot = pass == 0 ? row->dest : read;
            H_CHECK(w, slot >= 0 && (uint32_t)slot <= w->cfg.slots && (slot > 0 || pass == 1),
                "slot %d", slot);
            H_CHECK(w, writer[slot] == 0 || writer[slot] == me, "slot %d of row %u of step %u is "
                "written by somebody else", slot, n % H_ROWS_MAX, (uint32_t)step->id);
            if (pass == 0) writer[slot] = me;
        }
    }
}

/* KV pages that the granted rows may touch at most, and one for what goes on behind a tail. */
static void take_pages(struct h_sched *s, struct h_step *step)
{
    struct h_world *w = s->world;
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct h_row *row = &step->rows[i];
        row->id_count = 0;
        if (!row->granted || w->cfg.without_kv) continue;
        row->id_count = row->end / w->cfg.page - row->from / w->cfg.page + 1 + (row->freeze == 2);
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
    step->id_before = w->newest_step;
    w->newest_step = step->id;
    step->plan_no = ++w->plan_count;
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
        row->freeze = 0;
        row->decode = row->computed = false;
        row->done_count = 0;
        row->open = row->tail = -1;
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
    for (uint32_t i = 0; i < batch->block_words; i++) h_decided(w, (uint32_t)batch->block[i]);
    for (uint32_t i = 0; i < in->count; i++) {
        if (step->rows[i].granted) h_issue(s, step->rows[i].lease);
    }
    check_written(w);
    take_pages(s, step);
}

void h_op_plan(struct h_sched *s)
{
    struct h_world *w = s->world;
    struct plan_in in;
    sc_batch batch;
    sc_status each[H_ROWS_MAX + 1];
    struct h_step *step = h_step_free(w);
    bool busy = h_steps_active(w) >= w->cfg.depth;
    if (busy && !h_one_in(&s->rng, 8)) {
        if (h_step_oldest(s)) h_op_commit(s);
        return;
    }
    plan_draw(s, &in);
    if (in.count == 0) { /* nothing to compute: tokens come in */
        h_op_append(s);
        return;
    }
    uint32_t pages = 0;
    for (uint32_t i = 0; i < in.count; i++) {
        pages += in.rows[i].to / w->cfg.page - in.rows[i].from / w->cfg.page + 2;
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
        H_CHECK(w, status == SC_ERR_BUSY, "%s with %u steps in flight", sc_status_name(status),
            w->cfg.depth);
        return;
    }
    if (w->device_lost && status == SC_ERR_DEVICE_LOST) return; /* as if never planned */
    H_CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    read_plan(s, step, &in, &batch, each);
    s->totals->steps++;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: plan, the fake forward, commit and abort. The plan's block is read as a kernel would read
 * it and checked against what the rows asked for; the forward runs just before the commit, after
 * whatever other calls came between, so that a slot that was given away too early shows. */
#include <string.h>

#include "cache_model.h"

struct plan_in {
    sc_row rows[ROWS_MAX + 1];
    uint32_t points[ROWS_MAX + 1][TOKENS_MAX];
    uint32_t lease[ROWS_MAX + 1];
    sc_status wanted[ROWS_MAX + 1];
    uint32_t count;
};

static void draw_points(struct world *w, struct plan_in *in, uint32_t i)
{
    sc_row *row = &in->rows[i];
    for (uint32_t at = row->from + 1; at <= row->to; at++) {
        bool fits = at % w->cfg.grid == 0 || (at == row->to && at % w->cfg.page == 0);
        if (fits && one_in(&w->rng, 3)) in->points[i][row->point_count++] = at;
    }
    row->points = in->points[i];
}

/* Makes the row one that must be refused. */
static sc_status spoil_row(struct world *w, struct plan_in *in, uint32_t i)
{
    sc_row *row = &in->rows[i];
    const struct m_lease *lease = &w->leases[in->lease[i]];
    switch (draw(&w->rng, 6)) {
    case 0:
        row->lease.generation++;
        return SC_ERR_STALE;
    case 1:
        if (row->from + 1 >= row->to) break;
        row->from++;
        row->point_count = 0;
        return SC_ERR_MISMATCH;
    case 2:
        row->to = lease->token_count + 1;
        row->point_count = 0;
        return SC_ERR_INVALID;
    case 3:
        in->points[i][0] = row->from; /* not beyond `from` */
        row->point_count = 1;
        return SC_ERR_INVALID;
    case 4:
        if (row->to - row->from < 3 || (row->from + 1) % w->cfg.grid == 0) break;
        in->points[i][0] = row->from + 1; /* not on the grid */
        row->point_count = 1;
        return SC_ERR_INVALID;
    default:
        break;
    }
    row->to = row->from;
    row->point_count = 0;
    return SC_ERR_INVALID;
}

static uint32_t draw_end(struct world *w, const struct m_lease *lease)
{
    uint32_t from = lease->run.len, left = lease->token_count - from;
    switch (draw(&w->rng, 5)) {
    case 0:
        return from + 1;
    case 1:
        return from + 1 + draw(&w->rng, left);
    case 2: {
        uint32_t grid = (from / w->cfg.grid + 1) * w->cfg.grid;
        return min_u32(grid, lease->token_count);
    }
    default:
        return lease->token_count;
    }
}

static void plan_draw(struct world *w, struct plan_in *in)
{
    struct sc_prng *rng = &w->rng;
    uint32_t start = draw(rng, LEASES_MAX);
    memset(in->rows, 0, sizeof in->rows);
    in->count = 0;
    for (uint32_t k = 0; k < LEASES_MAX && in->count < w->cfg.row_max; k++) {
        uint32_t at = (start + k) % LEASES_MAX, i = in->count;
        struct m_lease *lease = &w->leases[at];
        bool idle = lease->state == SC_LEASE_READY && lease->run.len == lease->token_count;
        if (!lease->used || idle || one_in(rng, 5)) continue;
        if (lease->state == SC_LEASE_LOST && !one_in(rng, 3)) continue;
        sc_row *row = &in->rows[in->count++];
        in->lease[i] = at;
        in->wanted[i] = lease->state == SC_LEASE_LOST ? SC_ERR_LOST : SC_OK;
        row->lease = lease->handle;
        row->from = lease->run.len;
        row->to = lease->run.len < lease->token_count ? draw_end(w, lease) : lease->token_count + 1;
        if (in->wanted[i] == SC_OK && one_in(rng, 3)) draw_points(w, in, i);
        if (in->wanted[i] == SC_OK && one_in(rng, 24)) in->wanted[i] = spoil_row(w, in, i);
        if (in->wanted[i] == SC_OK && in->count < w->cfg.row_max && one_in(rng, 24)) {
            in->lease[in->count] = at; /* named twice: the second row is refused */
            in->wanted[in->count] = SC_ERR_INVALID;
            in->rows[in->count++] = *row;
        }
    }
}

static void plan_badly(struct world *w, const struct plan_in *in)
{
    sc_batch batch;
    sc_status each[ROWS_MAX + 1];
    sc_cache *cache = w->cache;
    sc_step next = w->next_step;
    if (w->flight.active) {
        if (in->count == 0) return;
        CHECK(w, seen(w, CALL_PLAN, sc_step_plan(cache, next, in->rows, in->count, 1, &batch,
                                        each)) == SC_ERR_BUSY, "in flight");
        return;
    }
    CHECK(w, seen(w, CALL_PLAN, sc_step_plan(NULL, next, in->rows, in->count, 1, &batch, each)) ==
            SC_ERR_INVALID, "cache");
    CHECK(w, seen(w, CALL_PLAN, sc_step_plan(cache, next, in->rows, 0, 1, &batch, each)) ==
            SC_ERR_INVALID, "no rows");
    if (in->count == 0) return;
    CHECK(w, seen(w, CALL_PLAN, sc_step_plan(cache, next, in->rows, in->count, 1, NULL, each)) ==
            SC_ERR_INVALID, "batch");
    CHECK(w, seen(w, CALL_PLAN, sc_step_plan(cache, w->last_step, in->rows, in->count, 1,
                                    &batch, each)) == SC_ERR_INVALID, "a step again");
    if (w->cfg.row_max < ROWS_MAX) {
        CHECK(w, seen(w, CALL_PLAN, sc_step_plan(cache, next, in->rows, w->cfg.row_max + 1, 1,
                                        &batch, each)) == SC_ERR_LIMIT, "rows");
    }
}

static int32_t word(const sc_batch *batch, uint32_t at, uint32_t index)
{
    return batch->block[at + index];
}

/* Where a row may end that was asked to end at `to`. */
static void check_end(struct world *w, const sc_row *row, const struct m_lease *lease, uint32_t end,
    bool decode)
{
    uint32_t cut = row->to - row->to % w->cfg.grid;
    bool wants_decode = row->to - row->from == 1 && row->from >= lease->prompt_len;
    CHECK(w, decode == wants_decode, "row %u..%u of a prompt of %u: decode %d", row->from, row->to,
        lease->prompt_len, decode);
    /* Without a grid point in the row a chunk's end serves: no save there, but no cut. */
    if (cut <= row->from) cut = row->to - row->to % w->cfg.chunk_grid;
    if (end == row->to) {
        bool point = row->point_count > 0 && row->points[row->point_count - 1] == row->to;
        CHECK(w, decode || w->cfg.keep_cuts || row->to >= lease->prompt_len || cut <= row->from ||
                cut == row->to || point,
            "row %u..%u of a prompt of %u should be cut to %u", row->from, row->to,
            lease->prompt_len, cut);
        return;
    }
    CHECK(w, end == cut && cut > row->from && !decode && !w->cfg.keep_cuts &&
            row->to < lease->token_count,
        "row %u..%u of %u ends at %u", row->from, row->to, lease->token_count, end);
    totals.cuts++;
}

static void read_row(struct world *w, const struct plan_in *in, const sc_batch *batch, uint32_t i,
    uint32_t *tokens)
{
    struct m_row *row = &w->flight.rows[i];
    bool asked = i < in->count;
    uint32_t start = (uint32_t)word(batch, batch->at_query_start_loc, i);
    uint32_t stop = (uint32_t)word(batch, batch->at_query_start_loc, i + 1);
    CHECK(w, start == *tokens && stop >= start, "query_start_loc %u..%u, %u before", start, stop,
        *tokens);
    *tokens = stop;
    row->source = word(batch, batch->at_source, i);
    row->dest = word(batch, batch->at_dest, i);
    row->extra = word(batch, batch->at_extra, i);
    if (!asked || !row->granted) {
        CHECK(w, row->source == -1 && row->dest == -1 && row->extra == -1 && stop == start &&
                word(batch, batch->at_decode, i) == -1,
            "row %u is no row, but has slots or tokens", i);
        return;
    }
    const sc_row *asked_row = &in->rows[i];
    struct m_lease *lease = &w->leases[row->lease];
    row->end = (uint32_t)word(batch, batch->at_end, i);
    row->decode = word(batch, batch->at_decode, i) == 1;
    row->freeze = word(batch, batch->at_freeze, i) == 1;
    CHECK(w, (uint32_t)word(batch, batch->at_position, i) == row->from, "position");
    CHECK(w, stop - start == row->end - row->from, "%u tokens for %u..%u", stop - start, row->from,
        row->end);
    check_end(w, asked_row, lease, row->end, row->decode);
    CHECK(w, row->dest > 0 && (uint32_t)row->dest <= w->cfg.slot_count, "dest %d", row->dest);
    CHECK(w, row->source >= 0 && (row->source > 0) == (row->from > 0), "source %d at %u",
        row->source, row->from);
    CHECK(w, row->extra == lease->extra_slot, "extras slot %d, not %d", row->extra,
        lease->extra_slot);
    lease->state = SC_LEASE_RUNNING;
    w->flight.granted_count++;
    totals.rows++;
}

static void read_saves(struct world *w, const sc_batch *batch)
{
    struct m_step *step = &w->flight;
    CHECK(w, batch->save_count <= w->cfg.save_max, "%u saves", batch->save_count);
    for (uint32_t i = 0; i < w->cfg.save_max; i++) {
        int32_t row = word(batch, batch->at_save_row, i);
        int32_t position = word(batch, batch->at_save_position, i);
        int32_t slot = word(batch, batch->at_save_slot, i);
        if (i >= batch->save_count) {
            CHECK(w, row == -1 && position == -1 && slot == -1, "save %u is not padded", i);
            continue;
        }
        CHECK(w, row >= 0 && (uint32_t)row < step->row_count && step->rows[row].granted, "save of "
            "row %d", row);
        const struct m_row *of = &step->rows[row];
        CHECK(w, !of->decode && position > (int32_t)of->from && position <= (int32_t)of->end &&
                position % (int32_t)w->cfg.grid == 0,
            "save at %d of row %u..%u", position, of->from, of->end);
        CHECK(w, slot > 0 && (uint32_t)slot <= w->cfg.slot_count, "save slot %d", slot);
        step->saves[step->save_count++] =
            (struct m_save){.row = (uint32_t)row, .position = (uint32_t)position, .slot = slot};
        totals.saves++;
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct m_row *row = &step->rows[i];
        if (!row->granted || !row->freeze) continue;
        CHECK(w, row->end % w->cfg.page == 0, "freeze at %u", row->end);
        step->saves[step->save_count++] = (struct m_save){
            .row = i, .position = row->end, .slot = row->dest, .freeze = true};
        totals.freezes++;
    }
}

/* Contract 7: a slot is written by one row, and then no other row reads it. */
static void check_written(struct world *w)
{
    const struct m_step *step = &w->flight;
    int32_t written[SAVES_MAX + 2 * ROWS_MAX];
    uint32_t owner[SAVES_MAX + 2 * ROWS_MAX], count = 0;
    for (uint32_t i = 0; i < step->row_count; i++) {
        if (!step->rows[i].granted) continue;
        written[count] = step->rows[i].dest;
        owner[count++] = i;
    }
    for (uint32_t i = 0; i < step->save_count; i++) {
        if (step->saves[i].freeze) continue;
        written[count] = step->saves[i].slot;
        owner[count++] = step->saves[i].row;
    }
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < i; j++) {
            CHECK(w, written[i] != written[j], "slot %d is written twice", written[i]);
        }
        bool is_dest = i < step->granted_count;
        for (uint32_t j = 0; j < step->row_count; j++) {
            bool own = is_dest && owner[i] == j;
            CHECK(w, !step->rows[j].granted || own || step->rows[j].source != written[i],
                "slot %d is written by row %u and read by row %u", written[i], owner[i], j);
        }
    }
}

static uint64_t skipped_sum(const sc_cache_stats *stats)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SC_SKIP_COUNT; i++) sum += stats->saves_skipped[i];
    return sum;
}

/* Positions that a row must save: points, the prompt's end, the branch point, decode. */
static uint32_t wanted_saves(const struct world *w, const sc_row *asked, const struct m_row *row,
    uint32_t *wanted)
{
    const struct config *cfg = &w->cfg;
    const struct m_lease *lease = &w->leases[row->lease];
    uint32_t count = 0, end = lease->prompt_end_len;
    for (uint32_t p = 0; p < asked->point_count; p++) wanted[count++] = asked->points[p];
    if (end > 0) wanted[count++] = end < row->end ? end - end % cfg->grid : end;
    wanted[count++] = lease->branch_len;
    uint32_t interval = cfg->decode_interval ? cfg->decode_interval : cfg->page > 1 ? cfg->page : 0;
    if (row->decode && interval && row->end % interval == 0 &&
        (cfg->save_flags & SC_SAVE_DECODE)) {
        wanted[count++] = row->end;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        bool again = false;
        for (uint32_t j = 0; j < kept; j++) again = again || wanted[j] == wanted[i];
        if (!again && wanted[i] > row->from && wanted[i] <= row->end) wanted[kept++] = wanted[i];
    }
    return kept;
}

/* Every save that is wanted is planned, or its skip is counted, for a reason. */
static void check_wanted(struct world *w, const struct plan_in *in, const sc_cache_stats *before,
    const sc_batch *batch)
{
    struct m_step *step = &w->flight;
    sc_cache_stats now = world_stats(w);
    sc_room room = world_room(w);
    uint64_t missing = 0, skipped = skipped_sum(&now) - skipped_sum(before), total = 0;
    uint32_t wanted[TOKENS_MAX + 4];
    for (uint32_t i = 0; i < in->count; i++) {
        if (!step->rows[i].granted) continue;
        uint32_t count = wanted_saves(w, &in->rows[i], &step->rows[i], wanted);
        total += count;
        for (uint32_t p = 0; p < count; p++) {
            bool planned = false;
            for (uint32_t s = 0; s < step->save_count; s++) {
                planned =
                    planned || (step->saves[s].row == i && step->saves[s].position == wanted[p]);
            }
            missing += !planned;
        }
    }
    CHECK(w, missing == skipped && total == missing + step->save_count,
        "%u saves are wanted, %u planned, %u skipped", (uint32_t)total, step->save_count,
        (uint32_t)skipped);
    CHECK(w, now.saves_skipped[SC_SKIP_NO_SLOT] == before->saves_skipped[SC_SKIP_NO_SLOT] ||
            (room.slots_free == 0 && room.slots_evictable == 0),
        "no slot for a save, but %u are free and %u evictable", room.slots_free,
        room.slots_evictable);
    CHECK(w, now.saves_skipped[SC_SKIP_LIMIT] == before->saves_skipped[SC_SKIP_LIMIT] ||
            batch->save_count == w->cfg.save_max, "%u saves of %u", batch->save_count,
        w->cfg.save_max);
    for (uint32_t s = 0; w->cfg.save_flags == 0 && s < step->save_count; s++) {
        const sc_row *row = &in->rows[step->saves[s].row];
        bool asked = false;
        for (uint32_t p = 0; p < row->point_count; p++) {
            asked = asked || row->points[p] == step->saves[s].position;
        }
        CHECK(w, asked, "a save at %u that nobody asked for", step->saves[s].position);
    }
}

static void read_plan(struct world *w, const struct plan_in *in, const sc_batch *batch,
    const sc_status *each)
{
    struct m_step *step = &w->flight;
    memset(step, 0, sizeof *step);
    step->active = true;
    step->id = w->next_step++;
    step->row_count = in->count;
    CHECK(w, batch->row_max == w->cfg.row_max && batch->save_max == w->cfg.save_max &&
            batch->row_count == in->count, "%u rows of %u", batch->row_count, batch->row_max);
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < in->count; i++) {
        seen(w, CALL_PLAN_EACH, each[i]);
        decided(w, (uint64_t)-each[i]);
        CHECK(w, each[i] == in->wanted[i], "row %u %u..%u: %s, not %s", i, in->rows[i].from,
            in->rows[i].to, sc_status_name(each[i]), sc_status_name(in->wanted[i]));
        step->rows[i].granted = each[i] == SC_OK;
        step->rows[i].lease = in->lease[i];
        step->rows[i].from = in->rows[i].from;
    }
    for (uint32_t i = 0; i < batch->row_max; i++) {
        if (i < in->count) {
            read_row(w, in, batch, i, &tokens);
            model_trace(w, "plan %u: lease %u %u..%u end %u %s freeze %d source %d dest %d: %s",
                (uint32_t)step->id, in->lease[i], in->rows[i].from, in->rows[i].to,
                step->rows[i].end, step->rows[i].decode ? "decode" : "prefill",
                step->rows[i].freeze, step->rows[i].source, step->rows[i].dest,
                sc_status_name(each[i]));
        } else {
            CHECK(w, word(batch, batch->at_source, i) == -1 && word(batch, batch->at_dest, i) == -1,
                "row %u is not padded", i);
            CHECK(w, word(batch, batch->at_query_start_loc, i + 1) == (int32_t)tokens, "padding");
        }
    }
    CHECK(w, tokens == batch->token_count &&
            word(batch, batch->at_token_count, 0) == (int32_t)tokens &&
            word(batch, batch->at_row_count, 0) == (int32_t)batch->row_count &&
            word(batch, batch->at_save_count, 0) == (int32_t)batch->save_count,
        "%u tokens in rows, %u in the batch", tokens, batch->token_count);
    read_saves(w, batch);
    check_written(w);
    for (uint32_t i = 0; i < batch->block_words; i++) decided(w, (uint32_t)batch->block[i]);
}

static void plan(struct world *w)
{
    struct plan_in in;
    plan_draw(w, &in);
    if (one_in(&w->rng, 60)) plan_badly(w, &in);
    if (in.count == 0) {
        op_append(w); /* nothing to compute: tokens come in */
        return;
    }
    sc_batch batch;
    sc_status each[ROWS_MAX + 1];
    sc_cache_stats before = world_stats(w);
    w->next_step += draw(&w->rng, 3);
    world_arm(w);
    sc_status status = seen(w, CALL_PLAN, sc_step_plan(w->cache, w->next_step, in.rows, in.count,
                                              ++w->now_ns, &batch, each));
    (void)world_disarm(w);
    CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    read_plan(w, &in, &batch, each);
    check_wanted(w, &in, &before, &batch);
    for (uint32_t i = 0; i < w->flight.save_count; i++) {
        model_trace(w, "  save row %u at %u slot %d%s", w->flight.saves[i].row,
            w->flight.saves[i].position, w->flight.saves[i].slot,
            w->flight.saves[i].freeze ? " (freeze)" : "");
    }
    totals.steps++;
}

static void compute_row(struct world *w, uint32_t index)
{
    struct m_step *step = &w->flight;
    struct m_row *row = &step->rows[index];
    struct m_lease *lease = &w->leases[row->lease];
    uint64_t source = slot_read(w, row->source, "source of a row");
    CHECK(w, source == lease->run.state, "row %u reads slot %d, which is not its state after %u "
        "tokens", index, row->source, row->from);
    row->next = lease->run;
    for (uint32_t i = 0; i < step->save_count; i++) {
        struct m_save *save = &step->saves[i];
        if (save->row != index || save->freeze) continue;
        struct run at = lease->run;
        run_prefill(w, &at, lease->tokens, save->position);
        save->stamp = at.state;
        slot_write(w, save->slot, at.state);
    }
    if (row->decode) {
        run_decode(w, &row->next, lease->tokens, row->end);
    } else {
        run_prefill(w, &row->next, lease->tokens, row->end);
    }
    for (uint32_t i = 0; i < step->save_count; i++) {
        if (step->saves[i].row == index && step->saves[i].freeze) {
            step->saves[i].stamp = row->next.state;
        }
    }
    slot_write(w, row->dest, row->next.state ^ (planted(w, PLANT_FLIP_DEST, 20) ? 64 : 0));
    if (row->source > 0 && row->source != row->dest && planted(w, PLANT_WRITE_SOURCE, 3)) {
        slot_write(w, row->source, source ^ 1);
    }
    if (w->extras) {
        CHECK(w, lease->tag == 0 || extra_read(w, row->extra) == lease->tag,
            "extras slot %d was written by somebody else", row->extra);
        lease->tag = ++w->next_tag;
        extra_write(w, row->extra, lease->tag);
    }
}

static void compute(struct world *w)
{
    struct m_step *step = &w->flight;
    for (uint32_t i = 0; i < step->row_count; i++) {
        if (step->rows[i].granted) compute_row(w, i);
    }
    step->computed = true;
    if (planted(w, PLANT_WRITE_NULL, 20)) {
        *(char *)(uintptr_t)w->view[0].base = 1;
    }
    for (uint32_t i = 0; i + 1 < step->save_count; i++) {
        struct m_save *a = &step->saves[i], *b = &step->saves[i + 1];
        if (!a->freeze && !b->freeze && a->stamp != b->stamp && planted(w, PLANT_SWAP_SAVES, 1)) {
            slot_write(w, a->slot, b->stamp);
            slot_write(w, b->slot, a->stamp);
        }
    }
}

struct commit_in {
    sc_result results[ROWS_MAX + 1];
    uint32_t row[ROWS_MAX + 1];
    int32_t ids[ROWS_MAX][TOKENS_MAX + 1];
    uint32_t count, id_count;
};

static void commit_draw(struct world *w, struct commit_in *in)
{
    struct m_step *step = &w->flight;
    in->count = in->id_count = 0;
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct m_row *row = &step->rows[i];
        if (!row->granted) continue;
        uint32_t pages = w->cfg.without_kv ? 0 : row->end / w->cfg.page - row->from / w->cfg.page;
        CHECK(w, in->id_count + pages <= w->kv_free_count, "the engine has no KV pages left");
        for (uint32_t p = 0; p < pages; p++) {
            int32_t id = w->kv_free[w->kv_free_count - 1 - in->id_count++];
            in->ids[i][p] = id;
            /* The forward wrote it. */
            w->kv_stamp[id] = row->next.page[row->from / w->cfg.page + p];
        }
        in->ids[i][pages] = 0;
        in->row[in->count] = i;
        in->results[in->count++] = (sc_result){.lease = w->leases[row->lease].handle,
            .len = row->end, .kv_ids = pages ? in->ids[i] : NULL, .kv_count = pages};
    }
    for (uint32_t i = in->count; i > 1; i--) { /* in any order */
        uint32_t j = draw(&w->rng, i);
        sc_result result = in->results[i - 1];
        uint32_t row = in->row[i - 1];
        in->results[i - 1] = in->results[j];
        in->row[i - 1] = in->row[j];
        in->results[j] = result;
        in->row[j] = row;
    }
}

/* One way of committing wrongly; the status that it must give. */
static sc_status spoil_commit(struct world *w, struct commit_in *in, sc_step *id)
{
    sc_result *first = &in->results[0];
    switch (draw(&w->rng, 8)) {
    case 0:
        *id += 1;
        return SC_ERR_NOT_FOUND;
    case 1:
        if (in->count == 0) break;
        in->count--;
        return SC_ERR_INVALID;
    case 2:
        if (in->count == 0) break;
        first->len += one_in(&w->rng, 2) ? 1u : UINT32_MAX; /* one more, one less */
        return SC_ERR_MISMATCH;
    case 3:
        if (in->count == 0) break;
        first->kv_ids = in->ids[in->row[0]];
        first->kv_count++;
        return SC_ERR_MISMATCH;
    case 4:
        if (in->count == 0) break;
        first->lease.generation++;
        return SC_ERR_STALE;
    case 5:
        if (in->count == 0) break;
        if (in->count > 1 && one_in(&w->rng, 2)) in->count--; /* in the place of another */
        in->results[in->count++] = *first;
        return SC_ERR_INVALID;
    case 6:
        if (in->count == 0 || first->kv_count == 0) break;
        first->kv_ids = NULL;
        return SC_ERR_INVALID;
    default:
        for (uint32_t i = 0; in->count > 0 && i < LEASES_MAX; i++) {
            const struct m_lease *lease = &w->leases[i];
            if (lease->used && lease->state == SC_LEASE_READY) {
                first->lease = lease->handle; /* alive, but not in the step */
                return SC_ERR_STALE;
            }
        }
        break;
    }
    *id -= 1;
    return SC_ERR_NOT_FOUND;
}

static void commit_badly(struct world *w, struct commit_in *in)
{
    sc_cache_stats stats = world_stats(w);
    sc_room room = world_room(w);
    sc_status each[ROWS_MAX + 1];
    sc_step id = w->flight.id;
    CHECK(w, seen(w, CALL_COMMIT, sc_step_commit(NULL, id, in->results, in->count, each)) ==
            SC_ERR_INVALID, "cache");
    if (in->count > 0) {
        CHECK(w, seen(w, CALL_COMMIT, sc_step_commit(w->cache, id, NULL, in->count, each)) ==
                SC_ERR_INVALID, "results");
    }
    sc_status wanted = spoil_commit(w, in, &id);
    sc_status status = seen(w, CALL_COMMIT, sc_step_commit(w->cache, id, in->results, in->count,
                                                one_in(&w->rng, 2) ? NULL : each));
    CHECK(w, status == wanted, "%s, not %s: %s", sc_status_name(status), sc_status_name(wanted),
        sc_last_error()->text);
    world_same(w, &stats, &room, "a refused commit");
}

static void kv_handed_in(struct world *w, struct commit_in *in)
{
    w->kv_free_count -= in->id_count;
    w->kv_in += in->id_count;
    for (uint32_t i = 0; i < in->count; i++) {
        for (uint32_t p = 0; p < in->results[i].kv_count; p++) {
            w->kv_inside[in->ids[in->row[i]][p]] = true;
        }
    }
}

/* Saves of the step, and ends of leases that it releases: there, skipped or evicted. */
static void learn_commit(struct world *w, const sc_cache_stats *before, bool failed)
{
    struct m_step *step = &w->flight;
    uint64_t missing = 0, attempts = step->save_count, skipped, evicted = 0;
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct m_row *row = &step->rows[i];
        if (!row->granted) continue;
        struct m_lease *lease = &w->leases[row->lease];
        path_add(w, lease->ns, lease->tokens, row->end);
        for (uint32_t s = 0; s < step->save_count; s++) {
            if (step->saves[s].row != i) continue;
            missing += !record_attempt(w, lease->ns, lease->tokens, step->saves[s].position,
                step->saves[s].stamp);
        }
    }
    sc_cache_stats now = world_stats(w);
    skipped = skipped_sum(&now) - skipped_sum(before);
    for (uint32_t i = 0; i < SC_EVICT_COUNT; i++) evicted += now.evicted[i] - before->evicted[i];
    CHECK(w, failed || w->cfg.token_max ||
            now.saves_skipped[SC_SKIP_LIMIT] == before->saves_skipped[SC_SKIP_LIMIT],
        "saves are skipped for a limit, and none is in reach");
    CHECK(w, now.saves_skipped[SC_SKIP_NO_SLOT] == before->saves_skipped[SC_SKIP_NO_SLOT],
        "a commit finds no slot");
    CHECK(w, missing <= skipped + evicted, "%u saves are not there, %u skipped, %u evicted",
        (uint32_t)missing, (uint32_t)skipped, (uint32_t)evicted);
    /* Nothing else went: what is gone from the path of a decode save was superseded. */
    bool superseded = evicted > 0 &&
        evicted == now.evicted[SC_EVICT_SUPERSEDED] - before->evicted[SC_EVICT_SUPERSEDED];
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct m_row *row = &step->rows[i];
        if (!row->granted) continue;
        struct m_lease *lease = &w->leases[row->lease];
        if (superseded && row->decode && row->freeze) {
            records_refresh(w, lease->ns, lease->tokens, row->end, true);
        }
        if (lease->state != SC_LEASE_DRAINING) continue;
        attempts++;
        lease_learn_end(w, lease, before, failed);
        lease_gone(w, lease);
    }
    CHECK(w, now.saves_published - before->saves_published <= attempts, "%u published of %u",
        (uint32_t)(now.saves_published - before->saves_published), (uint32_t)attempts);
}

static void commit_done(struct world *w, struct commit_in *in, const sc_cache_stats *before,
    bool failed)
{
    struct m_step *step = &w->flight;
    step->active = false;
    w->last_step = step->id;
    kv_handed_in(w, in);
    for (uint32_t i = 0; i < in->count; i++) {
        struct m_row *row = &step->rows[in->row[i]];
        struct m_lease *lease = &w->leases[row->lease];
        int32_t ids[TOKENS_MAX];
        memcpy(ids, lease->ids, lease->id_count * sizeof *ids);
        memcpy(&ids[lease->id_count], in->ids[in->row[i]], in->results[i].kv_count * sizeof *ids);
        lease_set_ids(w, lease, ids, lease->id_count + in->results[i].kv_count);
        lease->run = row->next;
        if (lease->state == SC_LEASE_RUNNING) lease->state = SC_LEASE_READY;
    }
    learn_commit(w, before, failed);
    if (step->save_count > 0 && planted(w, PLANT_LATE_WRITE, 4)) {
        slot_write(w, step->saves[0].slot, 77);
    }
    for (uint32_t i = 0; i < in->count; i++) {
        struct m_lease *lease = &w->leases[step->rows[in->row[i]].lease];
        if (lease->used) lease_check(w, lease, one_in(&w->rng_read, 4));
    }
}

static void plant_kv(struct world *w, struct commit_in *in)
{
    for (uint32_t i = 0; i < in->count; i++) {
        int32_t *ids = in->ids[in->row[i]];
        const struct m_lease *lease = &w->leases[w->flight.rows[in->row[i]].lease];
        if (in->results[i].kv_count >= 2 && planted(w, PLANT_SWAP_KV, 4)) {
            int32_t id = ids[0];
            ids[0] = ids[1];
            ids[1] = id;
        }
        if (in->results[i].kv_count > 0 && lease->id_count > 0 && planted(w, PLANT_TWICE_KV, 8)) {
            w->kv_free[w->kv_free_count - in->id_count] = ids[0]; /* it stays the engine's */
            ids[0] = lease->ids[0];
        }
    }
}

static void commit(struct world *w)
{
    struct commit_in in;
    if (!w->flight.computed) compute(w);
    commit_draw(w, &in);
    if (one_in(&w->rng, 16)) {
        commit_badly(w, &in);
        commit_draw(w, &in);
    }
    plant_kv(w, &in);
    for (uint32_t i = 0; i < w->flight.row_count; i++) {
        const struct m_row *row = &w->flight.rows[i];
        const struct m_lease *lease = &w->leases[row->lease];
        if (!row->granted) continue;
        record_ask(w, lease->ns, lease->tokens, row->end); /* it may be released and kept there */
        if (!row->decode || !row->freeze) continue;
        records_refresh(w, lease->ns, lease->tokens, row->end, false);
    }
    for (uint32_t s = 0; s < w->flight.save_count; s++) {
        const struct m_save *save = &w->flight.saves[s];
        const struct m_lease *lease = &w->leases[w->flight.rows[save->row].lease];
        record_ask(w, lease->ns, lease->tokens, save->position);
    }
    sc_status each[ROWS_MAX + 1];
    sc_cache_stats before = world_stats(w);
    sc_room room = world_room(w);
    world_arm(w);
    sc_status status = seen(w, CALL_COMMIT, sc_step_commit(w->cache, w->flight.id, in.results,
                                                in.count, one_in(&w->rng, 4) ? NULL : each));
    bool failed = world_disarm(w);
    decided(w, (uint64_t)-status);
    model_trace(w, "commit %u: %s", (uint32_t)w->flight.id, sc_status_name(status));
    if (status == SC_ERR_NO_MEMORY && failed) {
        world_same(w, &before, &room, "a commit without memory");
        return; /* still in flight: tried again later */
    }
    CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    commit_done(w, &in, &before, failed);
}

/* A step that was launched and failed has written anything anywhere it was allowed to. */
static void scribble(struct world *w)
{
    struct m_step *step = &w->flight;
    for (uint32_t i = 0; i < step->row_count; i++) {
        if (step->rows[i].granted && one_in(&w->rng, 2)) slot_write(w, step->rows[i].dest, 1);
    }
    for (uint32_t i = 0; i < step->save_count; i++) {
        if (one_in(&w->rng, 2)) slot_write(w, step->saves[i].slot, 2);
    }
}

static void abort_step(struct world *w)
{
    struct m_step *step = &w->flight;
    if (one_in(&w->rng, 8)) {
        CHECK(w, seen(w, CALL_ABORT, sc_step_abort(NULL, step->id, true)) == SC_ERR_INVALID, "");
        CHECK(w, seen(w, CALL_ABORT, sc_step_abort(w->cache, step->id + 1, true)) ==
                SC_ERR_NOT_FOUND, "");
    }
    bool launched = step->computed || one_in(&w->rng, 2);
    if (launched) scribble(w);
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct m_lease *lease = &w->leases[step->rows[i].lease];
        if (!step->rows[i].granted) continue;
        record_ask(w, lease->ns, lease->tokens, lease->run.len);
    }
    sc_cache_stats before = world_stats(w);
    world_arm(w);
    sc_status status = seen(w, CALL_ABORT, sc_step_abort(w->cache, step->id, launched));
    bool failed = world_disarm(w);
    decided(w, (uint64_t)-status);
    model_trace(w, "abort %u launched %d: %s", (uint32_t)step->id, launched,
        sc_status_name(status));
    CHECK(w, status == SC_OK, "%s: %s", sc_status_name(status), sc_last_error()->text);
    step->active = false;
    if (launched) {
        w->last_step = step->id;
    } else if (one_in(&w->rng, 2)) {
        w->next_step = step->id; /* as if never planned: the number may come again */
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        if (!step->rows[i].granted) continue;
        struct m_lease *lease = &w->leases[step->rows[i].lease];
        bool draining = lease->state == SC_LEASE_DRAINING;
        lease->state = launched ? SC_LEASE_LOST : SC_LEASE_READY;
        if (draining) {
            lease_learn_end(w, lease, &before, failed);
            lease_gone(w, lease);
        } else {
            lease_check(w, lease, false);
        }
    }
    CHECK(w, seen(w, CALL_ABORT, sc_step_abort(w->cache, step->id, launched)) == SC_ERR_NOT_FOUND,
        "an aborted step");
}

void step_end(struct world *w)
{
    for (int tries = 0; w->flight.active; tries++) {
        CHECK(w, tries < 100, "the step does not end");
        commit(w);
    }
}

void op_step(struct world *w)
{
    if (!w->flight.active) {
        plan(w);
        return;
    }
    uint32_t what = draw(&w->rng, 24);
    if (what == 0) {
        struct plan_in in;
        plan_draw(w, &in);
        plan_badly(w, &in);
    } else if (what <= 3) {
        abort_step(w);
    } else {
        commit(w);
    }
}

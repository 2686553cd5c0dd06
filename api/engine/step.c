/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: plan. (What comes of a step is in commit.c.)
 *
 * One row of a plan, tokens [from, to) of a lease:
 *
 *      from                                   end          to
 *   ---|-----------o-------------o-------------*............|      o  saves: a slot each, written
 *                  |             |             |                      by the chunk kernel
 *            grid positions (branch point,     freeze: the row's   *  the working slot becomes the
 *            prompt's end, points)             last state             snapshot when committed
 *
 * `end` is `to`, or, where the row ends inside what the lease still has to prefill, the last grid
 * point in it: then no cut enters the history.
 *
 * A plan cannot fail half-way: everything that may be wrong with the call is checked first; after
 * that rows fail one by one, each before it changes anything. It needs no memory: rows, saves and
 * the block are as large as row_max and save_max.
 *
 * Numbers in brackets are invariants of cache_internal.h. */
#include "cache_internal.h"

/* ---- memory ---- */

/* Slots that one plan takes at most. */
static size_t fill_max(const sc_cache_options *options)
{
    return (size_t)options->row_max + options->save_max;
}

sc_status sc_engine_step_init(sc_cache *cache)
{
    const sc_cache_options *options = &cache->options;
    sc_batch batch;
    sc_engine_batch_layout(cache, &batch);
    for (uint32_t i = 0; i < options->depth_max; i++) {
        struct step *step = &cache->steps[i];
        step->block_words = batch.block_words;
        step->rows = sc_heap_calloc(&cache->heap, options->row_max, sizeof *step->rows);
        step->saves = sc_heap_calloc(&cache->heap, options->save_max + 1u, sizeof *step->saves);
        step->skips = sc_heap_calloc(&cache->heap, fill_max(options), sizeof *step->skips);
        step->fills = sc_heap_calloc(&cache->heap, fill_max(options), sizeof *step->fills);
        step->block = sc_heap_calloc(&cache->heap, step->block_words, sizeof *step->block);
        if (!step->rows || !step->saves || !step->skips || !step->fills || !step->block) {
            return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for steps of %u rows and %u saves",
                options->row_max, options->save_max);
        }
    }
    if (options->draft_max == 0) return SC_OK;
    cache->scratch_depth =
        sc_heap_calloc(&cache->heap, options->draft_max, sizeof *cache->scratch_depth);
    if (cache->scratch_depth) return SC_OK;
    return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u drafts", options->draft_max);
}

void sc_engine_step_free(sc_cache *cache)
{
    const sc_cache_options *options = &cache->options;
    for (uint32_t i = 0; i < options->depth_max; i++) {
        struct step *step = &cache->steps[i];
        sc_heap_free(&cache->heap, step->rows, options->row_max * sizeof *step->rows);
        sc_heap_free(&cache->heap, step->saves, (options->save_max + 1u) * sizeof *step->saves);
        sc_heap_free(&cache->heap, step->skips, fill_max(options) * sizeof *step->skips);
        sc_heap_free(&cache->heap, step->fills, fill_max(options) * sizeof *step->fills);
        sc_heap_free(&cache->heap, step->block, step->block_words * sizeof *step->block);
    }
    sc_heap_free(&cache->heap, cache->scratch_depth,
        options->draft_max * sizeof *cache->scratch_depth);
}

/* ---- what is issued ---- */

const struct step_row *sc_engine_row_before(const sc_cache *cache, const struct lease *lease,
    sc_step number, const struct step **step_out)
{
    const struct step *found = NULL;
    uint32_t row = 0;
    for (uint32_t i = 0; i < cache->options.depth_max; i++) {
        const struct step *step = &cache->steps[i];
        if (lease->row[i] == NO_ROW || step->number >= number) continue;
        if (found && step->number < found->number) continue;
        found = step;
        row = lease->row[i];
    }
    if (step_out) *step_out = found;
    return found ? &found->rows[row] : NULL;
}

void sc_engine_issue(const sc_cache *cache, struct lease *lease)
{
    lease->issued_len = lease->issued_max = lease->len;
    for (uint32_t i = 0; i < cache->options.depth_max; i++) {
        if (lease->row[i] == NO_ROW) continue;
        const struct step_row *row = &cache->steps[i].rows[lease->row[i]];
        lease->issued_len += row->certain;
        lease->issued_max += row->end - row->from_max;
    }
    sc_engine_ring_issue(cache, lease);
}

/* ---- plan ---- */

/* Whether the row's bounds, and so its saves, are those of a row with drafts. */
static bool asks_uncertain(const struct lease *lease, const sc_row *row)
{
    return row->draft_count > 0 || lease->issued_len != lease->issued_max;
}

static sc_status check_points(const sc_cache *cache, const struct lease *lease, const sc_row *row)
{
    SC_REQUIRE(row->points || row->point_count == 0);
    uint32_t before = row->from;
    bool pages = asks_uncertain(lease, row);
    for (uint32_t i = 0; i < row->point_count; i++) {
        uint32_t point = row->points[i];
        if (point <= before || point > row->to) {
            return SC_FAIL(SC_ERR_INVALID, "point %u: not ascending within (%u, %u]", point,
                row->from, row->to);
        }
        bool tail = cache->options.tails && point == row->to && !pages;
        if (!tail && point % (pages || point == row->to ? cache->page : cache->grid) != 0) {
            return SC_FAIL(SC_ERR_INVALID, "point %u: neither on the grid of %u nor the row's end "
                "on a page of %u", point, cache->grid, cache->page);
        }
        before = point;
    }
    return SC_OK;
}

static sc_status check_lease(const struct lease *lease, const sc_row *row, uint32_t step_index)
{
    if (!lease) {
        return SC_FAIL(SC_ERR_STALE, "lease %u/%u is not alive (released already?)", row->lease.id,
            row->lease.generation);
    }
    if (lease->row[step_index] != NO_ROW) {
        return SC_FAIL(SC_ERR_INVALID, "lease %u is named twice", lease->id);
    }
    if (lease->draining || lease->waiting) {
        return SC_FAIL(SC_ERR_STATE, "lease %u is not ready", lease->id);
    }
    if (lease->lost) return SC_FAIL(SC_ERR_LOST, "lease %u is lost", lease->id);
    if (lease->flights >= lease->depth) {
        return SC_FAIL(SC_ERR_STATE, "lease %u is not ready: %u steps out", lease->id,
            lease->flights);
    }
    if (row->from != lease->issued_len) {
        return SC_FAIL(SC_ERR_MISMATCH, "lease %u: row starts at %u, must start at %u", lease->id,
            row->from, lease->issued_len);
    }
    return SC_OK;
}

/* Tokens on the deepest branch of the row's drafts; their depths go to scratch. */
static sc_status draft_depth(const sc_cache *cache, const struct lease *lease, const sc_row *row,
    uint32_t *depth_out)
{
    if (row->draft_count > cache->options.draft_max) {
        return SC_FAIL(SC_ERR_LIMIT, "%u drafts, draft_max is %u", row->draft_count,
            cache->options.draft_max);
    }
    *depth_out = row->draft_count;
    if (row->draft_count > 0 && row->from < lease->prompt_len) {
        return SC_FAIL(SC_ERR_INVALID, "lease %u: drafts from %u, within a prompt of %u",
            lease->id, row->from, lease->prompt_len);
    }
    if (!row->parents || row->draft_count == 0) return SC_OK;
    *depth_out = 0;
    for (uint32_t d = 0; d < row->draft_count; d++) {
        int32_t parent = row->parents[d];
        if (parent < -1 || parent >= (int32_t)d) {
            return SC_FAIL(SC_ERR_INVALID, "draft %u follows %d", d, parent);
        }
        uint32_t depth = parent < 0 ? 1 : cache->scratch_depth[parent] + 1;
        cache->scratch_depth[d] = depth;
        if (depth > *depth_out) *depth_out = depth;
    }
    return SC_OK;
}

/* A row may process one token that nobody has appended yet: the one that the row before it, which
 * is in flight, samples. */
static sc_status check_range(const sc_cache *cache, const struct lease *lease, const sc_row *row,
    uint32_t depth, uint64_t tokens)
{
    if (row->to <= row->from) {
        return SC_FAIL(SC_ERR_INVALID, "lease %u: row from %u to %u has no tokens", lease->id,
            row->from, row->to);
    }
    if (row->to <= lease->issued_max || row->to - lease->issued_max <= depth) {
        return SC_FAIL(SC_ERR_INVALID, "lease %u: row to %u has no certain token from %u on",
            lease->id, row->to, lease->issued_max);
    }
    uint32_t known = lease->token_count;
    if (lease->flights > 0 && known <= lease->issued_max) known = lease->issued_max + 1;
    if (row->to - depth > known) {
        return SC_FAIL(SC_ERR_INVALID, "lease %u: row ends at %u of %u tokens", lease->id, row->to,
            lease->token_count);
    }
    if (row->to > cache->options.lease_token_max) {
        return SC_FAIL(SC_ERR_LIMIT, "lease %u: row to %u, lease_token_max is %u", lease->id,
            row->to, cache->options.lease_token_max);
    }
    SC_TRY(check_points(cache, lease, row));
    if (tokens + (row->to - lease->issued_max - depth) + row->draft_count > INT32_MAX) {
        return SC_FAIL(SC_ERR_OVERFLOW, "the step has more than 2^31 - 1 tokens");
    }
    return SC_OK;
}

/* Where the row really ends. */
static uint32_t granted_end(const sc_cache *cache, const struct lease *lease, const sc_row *row,
    bool decode)
{
    if (decode || cache->options.keep_cuts) return row->to;
    if (row->to == lease->prompt_len || row->to == lease->token_count) return row->to;
    if (row->point_count > 0 && row->points[row->point_count - 1] == row->to) return row->to;
    uint32_t cut = row->to - row->to % cache->grid;
    if (cut <= row->from) cut = row->to - row->to % cache->chunk_grid;
    return cut > row->from ? cut : row->to;
}

/* The next position after `at` that the row should save, what for, and whether the scheduler asked
 * for it with the row; 0 if there is none. */
static uint32_t next_wanted(const sc_cache *cache, const struct step_row *row, const sc_row *asked,
    uint32_t at, sc_save_kind *kind_out, bool *asked_out)
{
    *asked_out = false;
    const struct lease *lease = row->lease;
    uint32_t found = 0, decode = 0, interval = cache->decode_interval;
    if (row->decode && (cache->options.save_flags & SC_SAVE_DECODE) && interval > 0) {
        decode = (at / interval + 1) * interval;
    }
    /* A row that runs past the prompt's end (tokens were appended) can save only on the grid
     * there. */
    uint32_t prompt_end = lease->prompt_end;
    if (prompt_end < row->end) prompt_end -= prompt_end % cache->grid;
    const struct { uint32_t position; sc_save_kind kind; } wanted[] = {
        {prompt_end, SC_KIND_PROMPT_END}, /* the first of equals gives the kind */
        {lease->branch_len, SC_KIND_BRANCH},
        {decode, SC_KIND_DECODE},
    };
    for (uint32_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        uint32_t position = wanted[i].position;
        if (position > at && position <= row->end && (found == 0 || position < found)) {
            found = position;
            *kind_out = wanted[i].kind;
        }
    }
    for (uint32_t i = 0; i < lease->inner_count; i++) {
        uint32_t position = lease->inner[i].position;
        if (position <= at) continue;
        if (position <= row->end && (found == 0 || position < found)) {
            found = position;
            *kind_out = lease->inner[i].kind;
        }
        break; /* ascending */
    }
    for (uint32_t i = 0; i < asked->point_count; i++) {
        uint32_t position = asked->points[i];
        if (position <= at) continue;
        if (position <= row->end && (found == 0 || position <= found)) {
            if (found != position) *kind_out = SC_KIND_POINT;
            found = position;
            *asked_out = true;
        }
        break; /* ascending */
    }
    return found;
}

/* The caller is told when the step is committed. */
static void plan_skip(sc_cache *cache, struct step *step, const struct step_skip *skip)
{
    cache->stats.saves_skipped[skip->cause]++;
    if (step->skip_count < fill_max(&cache->options)) step->skips[step->skip_count++] = *skip;
}

/* Finds slots for what the row saves; what finds none is skipped. */
static void plan_saves(sc_cache *cache, struct step *step, uint32_t index, const sc_row *asked)
{
    struct step_row *row = &step->rows[index];
    sc_save_kind kind = SC_KIND_NONE;
    uint32_t at = row->from;
    bool freezes = !sc_engine_row_uncertain(row), named = false;
    row->save_first = step->save_count;
    while ((at = next_wanted(cache, row, asked, at, &kind, &named)) != 0) {
        sc_slot slot = SC_SLOT_NULL;
        bool freeze = freezes && at == row->end;
        cache->stats.saves_planned++;
        row->wants_end = row->wants_end || at == row->end;
        if (!freeze && step->save_count == cache->options.save_max) {
            plan_skip(cache, step, &(struct step_skip){index, at, SC_SKIP_LIMIT, kind});
            continue;
        }
        double bar = sc_engine_policy_bar(cache, row->lease, at, named);
        sc_status status = sc_engine_slot_take(cache, SC_OWNER_IN_FLIGHT, bar, &slot);
        if (status != SC_OK) {
            uint32_t cause = status == SC_ERR_LIMIT ? SC_SKIP_POLICY : SC_SKIP_NO_SLOT;
            plan_skip(cache, step, &(struct step_skip){index, at, cause, kind});
            continue;
        }
        sc_engine_policy_promise(row->lease, at, true);
        if (freeze) {
            row->freeze = slot;
            row->freeze_kind = kind;
        } else {
            step->saves[step->save_count++] = (struct step_save){index, at, kind, slot};
        }
    }
    row->save_count = step->save_count - row->save_first;
}

/* Parents of the row's drafts: indices of tokens of the row. */
static void plan_parents(sc_cache *cache, struct step *step, uint32_t index, const sc_row *asked)
{
    const struct step_row *row = &step->rows[index];
    sc_batch batch;
    sc_engine_batch_layout(cache, &batch);
    int32_t *out = step->block + batch.at_parent + (size_t)index * batch.draft_max;
    for (uint32_t d = 0; d < batch.draft_max; d++) {
        bool draft = d < row->draft_count;
        int32_t parent = draft && asked->parents ? asked->parents[d] : (int32_t)d - 1;
        out[d] = draft ? (int32_t)row->certain + parent : -1;
    }
}

/* The row is granted: the lease's next row starts where it ends. */
static void issue_row(sc_cache *cache, struct step *step, uint32_t index)
{
    struct step_row *row = &step->rows[index];
    struct lease *lease = row->lease;
    const struct step *before = NULL;
    row->source = lease->next_source;
    row->dest = lease->next_dest;
    row->accepted_row = NO_ROW;
    if (row->from != row->from_max) {
        (void)sc_engine_row_before(cache, lease, step->number, &before);
        SC_ASSERT(before); /* (9) */
        row->accepted_row = lease->row[before - cache->steps];
        row->accepted_back = (uint32_t)(step->plan - before->plan);
    }
    lease->next_source = row->dest;
    if (row->freeze_kind != SC_KIND_NONE) lease->next_dest = row->freeze;
    lease->row[step - cache->steps] = index;
    lease->flights++;
    sc_engine_issue(cache, lease);
}

static sc_status plan_row(sc_cache *cache, struct step *step, uint32_t index, const sc_row *asked,
    uint64_t *tokens)
{
    struct step_row *row = &step->rows[index];
    struct lease *lease = sc_engine_lease(cache, asked->lease);
    uint32_t depth = 0;
    *row = (struct step_row){.accepted_row = NO_ROW};
    SC_TRY(check_lease(lease, asked, (uint32_t)(step - cache->steps)));
    SC_TRY(draft_depth(cache, lease, asked, &depth));
    SC_TRY(check_range(cache, lease, asked, depth, *tokens));
    bool uncertain = asks_uncertain(lease, asked);
    row->lease = lease;
    row->from = lease->issued_len;
    row->from_max = lease->issued_max;
    row->draft_count = asked->draft_count;
    row->decode = uncertain || (asked->to - asked->from == 1 && asked->from >= lease->prompt_len);
    row->end = granted_end(cache, lease, asked, row->decode);
    row->certain = row->end - row->from_max - depth;
    plan_saves(cache, step, index, asked);
    plan_parents(cache, step, index, asked);
    sc_engine_ring_plan(cache, row);
    issue_row(cache, step, index);
    *tokens += row->certain + row->draft_count;
    step->granted_count++;
    cache->stats.rows++;
    cache->stats.rows_cut += row->end != asked->to;
    bool inside = row->end < lease->prompt_len || row->end < lease->token_count;
    cache->stats.rows_off_grid += !row->decode && inside && row->end % cache->chunk_grid != 0;
    return SC_OK;
}

static struct step *free_step(sc_cache *cache)
{
    for (uint32_t i = 0; i < cache->options.depth_max; i++) {
        if (!cache->steps[i].in_flight) return &cache->steps[i];
    }
    return NULL;
}

/* The slots that the plan has taken. */
static void plan_fills(const struct step *step, struct fills *fills)
{
    *fills = (struct fills){.slots = step->fills};
    for (uint32_t i = 0; i < step->save_count; i++) {
        fills->slots[fills->slot_count++] = step->saves[i].slot;
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct step_row *row = &step->rows[i];
        if (!row->lease || row->freeze_kind == SC_KIND_NONE) continue;
        fills->slots[fills->slot_count++] = row->freeze;
    }
}

static sc_status step_plan(sc_cache *cache, sc_step number, const sc_row *rows, uint32_t count,
    uint64_t now_ns, sc_batch *batch_out, sc_status *each_out, struct fills *fills_out)
{
    struct step *step = free_step(cache);
    if (!step) return SC_FAIL(SC_ERR_BUSY, "steps in flight: %u, which is depth_max: commit "
        "or abort one", cache->options.depth_max);
    if (number <= cache->step_newest) {
        return SC_FAIL(SC_ERR_INVALID, "step %llu must be above %llu, the last planned",
            (unsigned long long)number, (unsigned long long)cache->step_newest);
    }
    if (count > cache->options.row_max) {
        return SC_FAIL(SC_ERR_LIMIT, "%u rows, row_max is %u", count, cache->options.row_max);
    }
    (void)sc_engine_time(cache, now_ns); /* a call that is refused is not recorded */
    step->number_before = cache->step_newest;
    step->number = cache->step_newest = number;
    step->plan = ++cache->plan_count;
    step->in_flight = true;
    step->row_count = count;
    step->granted_count = step->save_count = step->skip_count = 0;
    sc_engine_batch_clear_parents(cache, step);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < count; i++) {
        each_out[i] = plan_row(cache, step, i, &rows[i], &tokens);
    }
    cache->stats.steps++;
    plan_fills(step, fills_out);
    sc_engine_batch_write(cache, step, batch_out);
    SC_ASSERT(batch_out->token_count == tokens);
    return SC_OK;
}

sc_status sc_step_plan(sc_cache *cache, sc_step step, const sc_row *rows, uint32_t count,
    uint64_t now_ns, sc_batch *batch_out, sc_status *each_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(rows && each_out && count > 0);
    SC_REQUIRE(batch_out);
    sc_rwlock_lock(&cache->lock);
    uint64_t words = sc_engine_record_plan_words(cache, rows, count);
    struct fills fills = {.slot_count = 0};
    sc_status status = sc_engine_record_room(cache, words);
    if (status == SC_OK) {
        status = step_plan(cache, step, rows, count, now_ns, batch_out, each_out, &fills);
    }
    if (status == SC_OK) {
        sc_engine_record_plan(cache, step, rows, count, now_ns, batch_out, each_out);
    }
    sc_rwlock_unlock(&cache->lock);
    if (status != SC_OK) return status;
    status = sc_engine_fill(cache, &fills);
    if (status == SC_OK) return SC_OK;
    /* Where another thread has planned a step meanwhile, it cannot be as if this one never was. */
    if (sc_step_abort(cache, step, false) != SC_OK) (void)sc_step_abort(cache, step, true);
    return status;
}

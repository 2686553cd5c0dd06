/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: plan, commit, abort.
 *
 * One row of a plan, tokens [from, to) of a lease that is READY:
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
 * the block are as large as row_max and save_max. A commit checks and reserves first, then cannot
 * fail.
 *
 * Numbers in brackets are invariants of cache_internal.h. */
#include <string.h>

#include "cache_internal.h"

/* ---- the block ---- */

/* Sections of the block in order; see sc_batch. */
struct layout { uint32_t words; };

static uint32_t section(struct layout *layout, uint32_t words)
{
    uint32_t at = layout->words;
    layout->words += words;
    return at;
}

static struct layout batch_layout(const sc_cache *cache, sc_batch *batch)
{
    uint32_t rows = cache->options.row_max, saves = cache->options.save_max;
    struct layout layout = {0};
    *batch = (sc_batch){.row_max = rows, .save_max = saves};
    batch->at_query_start_loc = section(&layout, rows + 1);
    batch->at_position = section(&layout, rows);
    batch->at_end = section(&layout, rows);
    batch->at_source = section(&layout, rows);
    batch->at_dest = section(&layout, rows);
    batch->at_extra = section(&layout, rows);
    batch->at_decode = section(&layout, rows);
    batch->at_freeze = section(&layout, rows);
    batch->at_save_row = section(&layout, saves);
    batch->at_save_position = section(&layout, saves);
    batch->at_save_slot = section(&layout, saves);
    batch->at_row_count = section(&layout, 1);
    batch->at_save_count = section(&layout, 1);
    batch->at_token_count = section(&layout, 1);
    batch->block_words = layout.words;
    return layout;
}

sc_status sc_engine_step_init(sc_cache *cache)
{
    struct step *step = &cache->step;
    sc_batch batch;
    step->block_words = batch_layout(cache, &batch).words;
    step->rows = sc_heap_calloc(&cache->heap, cache->options.row_max, sizeof *step->rows);
    step->saves = sc_heap_calloc(&cache->heap, cache->options.save_max + 1u, sizeof *step->saves);
    step->block = sc_heap_calloc(&cache->heap, step->block_words, sizeof *step->block);
    if (!step->rows || !step->saves || !step->block) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for steps of %u rows and %u saves",
            cache->options.row_max, cache->options.save_max);
    }
    return SC_OK;
}

void sc_engine_step_free(sc_cache *cache)
{
    struct step *step = &cache->step;
    sc_heap_free(&cache->heap, step->rows, cache->options.row_max * sizeof *step->rows);
    sc_heap_free(&cache->heap, step->saves, (cache->options.save_max + 1u) * sizeof *step->saves);
    sc_heap_free(&cache->heap, step->block, step->block_words * sizeof *step->block);
}

static void fill(int32_t *words, uint32_t count, int32_t value)
{
    for (uint32_t i = 0; i < count; i++) words[i] = value;
}

/* Writes the block of the step that was just planned. */
static void write_block(sc_cache *cache, uint64_t tokens, sc_batch *batch)
{
    struct step *step = &cache->step;
    int32_t *block = step->block;
    batch_layout(cache, batch);
    fill(block, step->block_words, -1);
    fill(block + batch->at_position, batch->row_max, 0);
    fill(block + batch->at_end, batch->row_max, 0);
    fill(block + batch->at_freeze, batch->row_max, 0);
    int32_t at = 0;
    for (uint32_t i = 0; i < batch->row_max; i++) {
        const struct step_row *row = &step->rows[i];
        block[batch->at_query_start_loc + i] = at;
        if (i >= step->row_count || !row->lease) continue;
        at += (int32_t)(row->end - row->from);
        block[batch->at_position + i] = (int32_t)row->from;
        block[batch->at_end + i] = (int32_t)row->end;
        block[batch->at_source + i] = (int32_t)row->lease->source.id;
        block[batch->at_dest + i] = (int32_t)row->lease->working.id;
        if (cache->options.extras) block[batch->at_extra + i] = (int32_t)row->lease->extra.id;
        block[batch->at_decode + i] = row->decode;
        block[batch->at_freeze + i] = row->freeze_kind != SC_KIND_NONE;
    }
    block[batch->at_query_start_loc + batch->row_max] = at;
    for (uint32_t i = 0; i < step->save_count; i++) {
        const struct step_save *save = &step->saves[i];
        block[batch->at_save_row + i] = (int32_t)save->row;
        block[batch->at_save_position + i] = (int32_t)save->position;
        block[batch->at_save_slot + i] = (int32_t)save->slot.id;
    }
    SC_ASSERT(tokens == (uint64_t)at);
    batch->block = block;
    batch->row_count = step->row_count;
    batch->save_count = step->save_count;
    batch->token_count = (uint32_t)at;
    block[batch->at_row_count] = (int32_t)step->row_count;
    block[batch->at_save_count] = (int32_t)step->save_count;
    block[batch->at_token_count] = at;
}

/* ---- plan ---- */

static sc_status check_points(const sc_cache *cache, const sc_row *row)
{
    SC_REQUIRE(row->points || row->point_count == 0);
    uint32_t before = row->from;
    for (uint32_t i = 0; i < row->point_count; i++) {
        uint32_t point = row->points[i];
        if (point <= before || point > row->to) {
            return SC_FAIL(SC_ERR_INVALID, "point %u: not ascending within (%u, %u]", point,
                row->from, row->to);
        }
        if (point % (point == row->to ? cache->page : cache->grid) != 0) {
            return SC_FAIL(SC_ERR_INVALID, "point %u: neither on the grid of %u nor the row's end "
                "on a page of %u", point, cache->grid, cache->page);
        }
        before = point;
    }
    return SC_OK;
}

static sc_status check_row(const sc_cache *cache, const sc_row *row, uint64_t tokens,
    struct lease **lease_out)
{
    struct lease *lease = sc_engine_lease(cache, row->lease);
    if (!lease) {
        return SC_FAIL(SC_ERR_STALE, "lease %u/%u is not alive", row->lease.id,
            row->lease.generation);
    }
    if (lease->state == SC_LEASE_LOST) return SC_FAIL(SC_ERR_LOST, "lease %u is lost", lease->id);
    if (lease->state == SC_LEASE_RUNNING && lease->planned == cache->step.number) {
        return SC_FAIL(SC_ERR_INVALID, "lease %u is named twice", lease->id);
    }
    if (lease->state != SC_LEASE_READY) {
        return SC_FAIL(SC_ERR_STATE, "lease %u is not ready", lease->id);
    }
    if (row->from != lease->len) {
        return SC_FAIL(SC_ERR_MISMATCH, "lease %u: row from %u, committed are %u", lease->id,
            row->from, lease->len);
    }
    SC_REQUIRE(row->to > row->from);
    if (row->to > lease->token_count) {
        return SC_FAIL(SC_ERR_INVALID, "lease %u: row to %u of %u tokens", lease->id, row->to,
            lease->token_count);
    }
    SC_TRY(check_points(cache, row));
    if (tokens + (row->to - row->from) > INT32_MAX) {
        return SC_FAIL(SC_ERR_OVERFLOW, "the step has more than 2^31 - 1 tokens");
    }
    *lease_out = lease;
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

/* The next position after `at` that the row should save, and what for; 0 if there is none. */
static uint32_t next_wanted(const sc_cache *cache, const struct step_row *row, const sc_row *asked,
    uint32_t at, sc_save_kind *kind_out)
{
    const struct lease *lease = row->lease;
    uint32_t found = 0;
    uint32_t decode = 0;
    if (row->decode && (cache->options.save_flags & SC_SAVE_DECODE) && cache->decode_interval > 0 &&
        row->end % cache->decode_interval == 0) {
        decode = row->end;
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
    for (uint32_t i = 0; i < asked->point_count; i++) {
        uint32_t position = asked->points[i];
        if (position <= at) continue;
        if (position <= row->end && (found == 0 || position < found)) {
            found = position;
            *kind_out = SC_KIND_POINT;
        }
        break; /* ascending */
    }
    return found;
}

/* Finds slots for what the row saves; what finds none is skipped. */
static void plan_saves(sc_cache *cache, uint32_t index, const sc_row *asked)
{
    struct step *step = &cache->step;
    struct step_row *row = &step->rows[index];
    sc_save_kind kind = SC_KIND_NONE;
    uint32_t at = row->from;
    row->save_first = step->save_count;
    while ((at = next_wanted(cache, row, asked, at, &kind)) != 0) {
        sc_slot slot = SC_SLOT_NULL;
        bool freeze = at == row->end;
        cache->stats.saves_planned++;
        if (!freeze && step->save_count == cache->options.save_max) {
            cache->stats.saves_skipped[SC_SKIP_LIMIT]++;
        } else if (sc_engine_slot_take(cache, SC_OWNER_IN_FLIGHT, &slot) != SC_OK) {
            cache->stats.saves_skipped[SC_SKIP_NO_SLOT]++;
        } else if (freeze) {
            row->freeze = slot;
            row->freeze_kind = kind;
        } else {
            step->saves[step->save_count++] = (struct step_save){index, at, kind, slot};
        }
    }
    row->save_count = step->save_count - row->save_first;
}

static sc_status plan_row(sc_cache *cache, uint32_t index, const sc_row *asked, uint64_t *tokens)
{
    struct step_row *row = &cache->step.rows[index];
    struct lease *lease = NULL;
    *row = (struct step_row){0};
    SC_TRY(check_row(cache, asked, *tokens, &lease));
    row->lease = lease;
    row->from = asked->from;
    row->decode = asked->to - asked->from == 1 && asked->from >= lease->prompt_len;
    row->end = granted_end(cache, lease, asked, row->decode);
    plan_saves(cache, index, asked);
    lease->state = SC_LEASE_RUNNING;
    lease->planned = cache->step.number;
    lease->row = index;
    *tokens += row->end - row->from;
    cache->step.granted_count++;
    cache->stats.rows++;
    cache->stats.rows_cut += row->end != asked->to;
    return SC_OK;
}

static sc_status step_plan(sc_cache *cache, sc_step number, const sc_row *rows, uint32_t count,
    sc_batch *batch_out, sc_status *each_out)
{
    struct step *step = &cache->step;
    if (step->in_flight) {
        return SC_FAIL(SC_ERR_BUSY, "step %llu is in flight", (unsigned long long)step->number);
    }
    if (number <= step->number) {
        return SC_FAIL(SC_ERR_INVALID, "step %llu does not follow %llu", (unsigned long long)number,
            (unsigned long long)step->number);
    }
    if (count > cache->options.row_max) {
        return SC_FAIL(SC_ERR_LIMIT, "%u rows, row_max is %u", count, cache->options.row_max);
    }
    step->number_before = step->number;
    step->number = number;
    step->in_flight = true;
    step->row_count = count;
    step->granted_count = step->save_count = 0;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < count; i++) each_out[i] = plan_row(cache, i, &rows[i], &tokens);
    cache->stats.steps++;
    write_block(cache, tokens, batch_out);
    return SC_OK;
}

sc_status sc_step_plan(sc_cache *cache, sc_step step, const sc_row *rows, uint32_t count,
    uint64_t now_ns, sc_batch *batch_out, sc_status *each_out)
{
    (void)now_ns; /* nothing is decided by time yet */
    SC_REQUIRE(cache);
    SC_REQUIRE(rows && each_out && count > 0);
    SC_REQUIRE(batch_out);
    sc_rwlock_lock(&cache->lock);
    sc_status status = step_plan(cache, step, rows, count, batch_out, each_out);
    sc_rwlock_unlock(&cache->lock);
    return status;
}

/* ---- commit ---- */

static sc_status check_result(sc_cache *cache, const sc_result *result)
{
    struct step *step = &cache->step;
    struct lease *lease = sc_engine_lease(cache, result->lease);
    bool member = lease && lease->planned == step->number &&
        (lease->state == SC_LEASE_RUNNING || lease->state == SC_LEASE_DRAINING);
    if (!member) {
        return SC_FAIL(SC_ERR_STALE, "lease %u/%u is not in the step", result->lease.id,
            result->lease.generation);
    }
    struct step_row *row = &step->rows[lease->row];
    if (row->result) return SC_FAIL(SC_ERR_INVALID, "lease %u is named twice", lease->id);
    if (result->len != row->end) {
        return SC_FAIL(SC_ERR_MISMATCH, "lease %u: length %u, granted was %u", lease->id,
            result->len, row->end);
    }
    uint32_t pages = row->end / cache->page - row->from / cache->page;
    if (cache->options.without_kv) pages = 0;
    if (result->kv_count != pages) {
        return SC_FAIL(SC_ERR_MISMATCH, "lease %u: %u KV ids for %u pages", lease->id,
            result->kv_count, pages);
    }
    SC_REQUIRE(result->kv_ids || pages == 0);
    for (uint32_t i = 0; i < pages; i++) SC_REQUIRE(result->kv_ids[i] >= 0);
    row->result = result;
    return SC_OK;
}

/* Finds the result of each row and makes room for all that they bring. */
static sc_status check_results(sc_cache *cache, const sc_result *results, uint32_t count,
    sc_status *each_out)
{
    struct step *step = &cache->step;
    sc_status status = SC_OK;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < step->row_count; i++) step->rows[i].result = NULL;
    for (uint32_t i = 0; i < count; i++) {
        sc_status each = check_result(cache, &results[i]);
        if (each != SC_OK) status = each;
        if (each_out) each_out[i] = each;
        pages += results[i].kv_count;
    }
    SC_TRY(status);
    if (count != step->granted_count) {
        return SC_FAIL(SC_ERR_INVALID, "%u results for %u rows", count, step->granted_count);
    }
    SC_TRY(sc_engine_drain_reserve(cache, pages));
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct step_row *row = &step->rows[i];
        if (row->lease) SC_TRY(sc_engine_lease_reserve(cache, row->lease, row->result->kv_count));
    }
    return SC_OK;
}

/* The working slot has become a snapshot: the next step reads it and writes the fresh slot. */
static void freeze(sc_cache *cache, struct step_row *row, const struct published *published)
{
    struct lease *lease = row->lease;
    lease->source = lease->working;
    sc_engine_relock(cache, &lease->pin, published->node, SC_RADIX_LOCK_STATE);
    lease->pinned = true;
    lease->working = row->freeze;
    sc_status status = sc_pool_set_owner(cache->options.pool, lease->working, SC_OWNER_WORKING);
    SC_ASSERT(status == SC_OK); /* (1) */
    if (row->freeze_kind == SC_KIND_DECODE) {
        sc_engine_decode_drop(cache, lease, published->node);
        lease->decode_snapshot = published->snapshot;
        lease->decode_len = row->end;
    }
}

static void publish_row(sc_cache *cache, struct step_row *row)
{
    struct step *step = &cache->step;
    struct lease *lease = row->lease;
    struct step_save *saves = cache->scratch_publish;
    uint32_t count = row->save_count;
    bool frozen = row->freeze_kind != SC_KIND_NONE;
    bool prompt_done = row->from < lease->prompt_len && row->end >= lease->prompt_len;
    if (count == 0 && !frozen && !prompt_done) return;
    memcpy(saves, step->saves + row->save_first, count * sizeof *saves);
    if (frozen) {
        saves[count++] = (struct step_save){lease->row, row->end, row->freeze_kind, lease->working};
    }
    struct published published;
    sc_engine_publish(cache, lease, sc_engine_page_floor(cache, row->end), saves, count, frozen,
        &published);
    if (frozen && published.status == SC_OK) {
        freeze(cache, row, &published);
    } else if (frozen) {
        sc_engine_slot_free(cache->options.pool, row->freeze);
    }
}

/* What the row did is the lease's now. */
static void commit_row(sc_cache *cache, struct step_row *row)
{
    struct lease *lease = row->lease;
    uint32_t pages = row->result->kv_count;
    for (uint32_t i = 0; i < pages; i++) {
        lease->kv[lease->kv_count + i] = row->result->kv_ids[i];
        lease->kv_owner[lease->kv_count + i] = KV_HELD;
    }
    lease->kv_count += pages;
    cache->kv_inside += pages;
    cache->kv_held += pages;
    cache->stats.pages_in += pages;
    sc_engine_history_push(cache, lease->history, &lease->history_count, row->end,
        row->decode ? SC_FORM_DECODE : SC_FORM_PREFILL);
    lease->len = row->end;
    if (lease->pinned) sc_engine_relock(cache, &lease->pin, SC_NODE_NONE, SC_RADIX_LOCK_STATE);
    lease->pinned = false;
    lease->resume_slot = 0;
    lease->source = lease->working;
    publish_row(cache, row);
    if (lease->branch_len <= lease->len) lease->branch_len = 0;
}

/* The step is over: leases that were released meanwhile go. */
static void step_end(sc_cache *cache, sc_lease_state state)
{
    struct step *step = &cache->step;
    step->in_flight = false;
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct lease *lease = step->rows[i].lease;
        if (!lease) continue;
        bool ending = lease->state == SC_LEASE_DRAINING;
        lease->state = state;
        if (ending) sc_engine_lease_end(cache, lease, lease->end_how, lease->end_len);
        step->rows[i].lease = NULL;
    }
    step->row_count = step->granted_count = step->save_count = 0;
}

static sc_status step_find(const sc_cache *cache, sc_step number)
{
    if (cache->step.in_flight && cache->step.number == number) return SC_OK;
    return SC_FAIL(SC_ERR_NOT_FOUND, "step %llu is not in flight", (unsigned long long)number);
}

static sc_status step_commit(sc_cache *cache, sc_step number, const sc_result *results,
    uint32_t count, sc_status *each_out)
{
    SC_TRY(step_find(cache, number));
    SC_TRY(check_results(cache, results, count, each_out));
    for (uint32_t i = 0; i < cache->step.row_count; i++) {
        if (cache->step.rows[i].lease) commit_row(cache, &cache->step.rows[i]);
    }
    step_end(cache, SC_LEASE_READY);
    return SC_OK;
}

sc_status sc_step_commit(sc_cache *cache, sc_step step, const sc_result *results, uint32_t count,
    sc_status *each_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(results || count == 0);
    sc_rwlock_lock(&cache->lock);
    sc_status status = step_commit(cache, step, results, count, each_out);
    sc_rwlock_unlock(&cache->lock);
    return status;
}

/* ---- abort ---- */

static sc_status step_abort(sc_cache *cache, sc_step number, bool launched)
{
    SC_TRY(step_find(cache, number));
    struct step *step = &cache->step;
    for (uint32_t i = 0; i < step->save_count; i++) {
        sc_engine_slot_free(cache->options.pool, step->saves[i].slot);
    }
    cache->stats.saves_skipped[SC_SKIP_ABORTED] += step->save_count;
    for (uint32_t i = 0; i < step->row_count; i++) {
        if (!step->rows[i].lease || step->rows[i].freeze_kind == SC_KIND_NONE) continue;
        sc_engine_slot_free(cache->options.pool, step->rows[i].freeze);
        cache->stats.saves_skipped[SC_SKIP_ABORTED]++;
    }
    cache->stats.steps_aborted++;
    step_end(cache, launched ? SC_LEASE_LOST : SC_LEASE_READY);
    if (!launched) step->number = step->number_before;
    return SC_OK;
}

sc_status sc_step_abort(sc_cache *cache, sc_step step, bool launched)
{
    SC_REQUIRE(cache);
    sc_rwlock_lock(&cache->lock);
    sc_status status = step_abort(cache, step, launched);
    sc_rwlock_unlock(&cache->lock);
    return status;
}

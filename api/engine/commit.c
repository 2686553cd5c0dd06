/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: commit and abort. What a plan is, and what rows name, is in step.c.
 *
 * A commit checks everything and reserves all memory first, and then cannot fail. Rows of one lease
 * are committed in the order of their steps; those of different leases in any order. A row whose
 * lease was lost, or released before the row's tokens were known, is discarded: its KV ids are
 * drained, its saves given back.
 *
 *     check_result --> keep_row:     ids, history, length; source moves on; saves are published;
 *                |                   the frozen slot becomes a snapshot, or a retired source
 *                '---> discard_row:  ids to the drain list; F is held while others name it
 *     step_end:        leases whose last step this was get what was held back; released ones go
 *
 * Numbers in brackets are invariants of cache_internal.h. */
#include <string.h>

#include "tier.h"

/* ---- checks ---- */

/* Whether the row freezes inside a page. */
static bool ends_in_tail(const sc_cache *cache, const struct step_row *row)
{
    return row->freeze_kind != SC_KIND_NONE && row->end % cache->page != 0;
}

/* Of a row that will be discarded no more is asked than that it could be true. */
static sc_status check_discarded(const sc_cache *cache, const struct step_row *row,
    const sc_result *result)
{
    uint32_t pages = row->end / cache->page - row->from / cache->page + 1;
    if (ends_in_tail(cache, row)) pages++;
    if (result->len <= row->from || result->len > row->end) {
        return SC_FAIL(SC_ERR_MISMATCH, "lease %u: length %u is not in (%u, %u]", result->lease.id,
            result->len, row->from, row->end);
    }
    if (cache->options.without_kv) pages = 0;
    if (result->kv_count > pages) {
        return SC_FAIL(SC_ERR_MISMATCH, "lease %u: %u KV ids for %u pages at most",
            result->lease.id, result->kv_count, pages);
    }
    return SC_OK;
}

static sc_status check_kept(const sc_cache *cache, const struct lease *lease,
    const struct step_row *row, const sc_result *result)
{
    uint32_t least = lease->len + row->certain, most = lease->len + (row->end - row->from_max);
    if (result->len < least || result->len > most) {
        if (least == most) {
            return SC_FAIL(SC_ERR_MISMATCH, "lease %u: length %u, granted was %u", lease->id,
                result->len, least);
        }
        return SC_FAIL(SC_ERR_MISMATCH, "lease %u: length %u, granted was %u to %u", lease->id,
            result->len, least, most);
    }
    if (result->len > lease->token_count) {
        return SC_FAIL(SC_ERR_MISMATCH, "lease %u: length %u, but %u tokens were appended",
            lease->id, result->len, lease->token_count);
    }
    uint32_t pages = result->len / cache->page - lease->len / cache->page;
    if (cache->options.without_kv) pages = 0;
    if (result->kv_count == pages) return SC_OK;
    bool tail = ends_in_tail(cache, row) && !cache->options.without_kv;
    if (tail && result->kv_count == pages + 1) return SC_OK;
    if (tail) {
        return SC_FAIL(SC_ERR_MISMATCH, "lease %u: %u KV ids for %u pages and a partial one",
            lease->id, result->kv_count, pages);
    }
    return SC_FAIL(SC_ERR_MISMATCH, "lease %u: %u KV ids for %u pages", lease->id,
        result->kv_count, pages);
}

static sc_status check_result(sc_cache *cache, struct step *step, const sc_result *result)
{
    struct lease *lease = sc_engine_lease(cache, result->lease);
    uint32_t index = lease ? lease->row[step - cache->steps] : NO_ROW;
    if (index == NO_ROW) {
        return SC_FAIL(SC_ERR_STALE, "lease %u/%u is not in the step", result->lease.id,
            result->lease.generation);
    }
    struct step_row *row = &step->rows[index];
    if (row->result) return SC_FAIL(SC_ERR_INVALID, "lease %u is named twice", lease->id);
    row->discard = lease->lost || lease->overrun ||
        (lease->draining && result->len > lease->token_count);
    if (!lease->lost && sc_engine_row_before(cache, lease, step->number, NULL)) {
        return SC_FAIL(SC_ERR_STATE, "lease %u: an earlier step is in flight", lease->id);
    }
    SC_TRY(row->discard ? check_discarded(cache, row, result)
                        : check_kept(cache, lease, row, result));
    SC_REQUIRE(result->kv_ids || result->kv_count == 0);
    for (uint32_t i = 0; i < result->kv_count; i++) SC_REQUIRE(result->kv_ids[i] >= 0);
    row->result = result;
    return SC_OK;
}

/* Finds the result of each row and makes room for all that they bring. */
static sc_status check_results(sc_cache *cache, struct step *step, const sc_result *results,
    uint32_t count, sc_status *each_out)
{
    sc_status status = SC_OK;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < step->row_count; i++) step->rows[i].result = NULL;
    for (uint32_t i = 0; i < count; i++) {
        sc_status each = check_result(cache, step, &results[i]);
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
        if (!row->lease || row->discard) continue;
        SC_TRY(sc_engine_lease_reserve(cache, row->lease, row->result->kv_count));
    }
    return SC_OK;
}

/* ---- a row that is kept ---- */

/* The frozen slot has become a snapshot: what comes next reads it and writes F. */
static void freeze(sc_cache *cache, struct step_row *row, const struct published *published)
{
    struct lease *lease = row->lease;
    sc_engine_relock(cache, &lease->pin, published->node, SC_RADIX_LOCK_STATE);
    lease->pinned = true;
    lease->working = row->freeze;
    sc_status status = sc_pool_retag(cache->options.pool, lease->working,
        sc_engine_lease_owner(lease));
    SC_ASSERT(status == SC_OK); /* (1) */
}

/* Its save was refused. A row behind it that is out reads the slot and writes F. */
static void freeze_refused(sc_cache *cache, struct step_row *row)
{
    struct lease *lease = row->lease;
    if (lease->flights == 0) {
        sc_engine_slot_free(cache->options.pool, row->freeze);
        lease->next_source = lease->next_dest = lease->working;
        return;
    }
    lease->retired = true;
    lease->working = row->freeze;
    sc_status status = sc_pool_retag(cache->options.pool, lease->working,
        sc_engine_lease_owner(lease));
    SC_ASSERT(status == SC_OK); /* (1) */
}

/* Of the row's saves those that it really reached, and of the decode positions among them only the
 * last; the others are given back. */
static uint32_t reached_saves(sc_cache *cache, const struct step *step, const struct step_row *row,
    uint32_t from, uint32_t len, struct step_save *out)
{
    const struct step_save *saves = step->saves + row->save_first;
    uint32_t count = 0, newest = 0;
    for (uint32_t i = 0; i < row->save_count; i++) {
        bool decode = saves[i].kind == SC_KIND_DECODE && saves[i].position <= len;
        if (decode) newest = saves[i].position;
    }
    for (uint32_t i = 0; i < row->save_count; i++) {
        bool reached = saves[i].position > from && saves[i].position <= len;
        if (reached && (saves[i].kind != SC_KIND_DECODE || saves[i].position == newest)) {
            out[count++] = saves[i];
        } else {
            sc_engine_skip(cache, row->lease, &saves[i],
                reached ? SC_SKIP_SUPERSEDED : SC_SKIP_REJECTED);
            sc_engine_slot_free(cache->options.pool, saves[i].slot);
        }
    }
    return count;
}

static void publish_row(sc_cache *cache, const struct step *step, struct step_row *row,
    uint32_t from, int32_t tail_kv)
{
    struct lease *lease = row->lease;
    struct step_save *saves = cache->scratch_publish;
    uint32_t len = lease->len, count = reached_saves(cache, step, row, from, len, saves);
    bool frozen = row->freeze_kind != SC_KIND_NONE;
    bool prompt_done = from < lease->prompt_len && len >= lease->prompt_len;
    struct step_save end = {(uint32_t)(row - step->rows), len, row->freeze_kind, row->dest};
    if (frozen && !sc_engine_end_savable(cache, len, tail_kv)) {
        sc_engine_skip(cache, lease, &end, SC_SKIP_NO_TAIL);
        freeze_refused(cache, row);
        frozen = false;
    }
    if (frozen) saves[count++] = end;
    if (count == 0 && !prompt_done) return;
    struct offer offer = {len, saves, count, frozen, tail_kv, false};
    struct published published;
    sc_engine_publish(cache, lease, &offer, &published);
    bool decode = count > 0 && saves[count - 1].kind == SC_KIND_DECODE;
    if (decode && published.status == SC_OK) {
        sc_engine_decode_drop(cache, lease, published.node);
        lease->decode_snapshot = published.snapshot;
        lease->decode_len = saves[count - 1].position;
    }
    if (frozen && published.status == SC_OK) freeze(cache, row, &published);
    if (frozen && published.status != SC_OK) freeze_refused(cache, row);
}

/* Nothing reads the source of the row any more. */
static void source_drop(sc_cache *cache, struct lease *lease)
{
    if (lease->pinned) sc_engine_relock(cache, &lease->pin, SC_NODE_NONE, SC_RADIX_LOCK_STATE);
    if (lease->retired) sc_engine_slot_free(cache->options.pool, lease->source);
    lease->pinned = lease->retired = false;
    lease->resume_slot = 0;
    lease->tail_kv = -1;
}

/* What the row did is the lease's now. */
static void keep_row(sc_cache *cache, const struct step *step, struct step_row *row)
{
    struct lease *lease = row->lease;
    const sc_result *result = row->result;
    uint32_t from = lease->len, pages = result->len / cache->page - from / cache->page;
    if (cache->options.without_kv) pages = 0;
    int32_t tail_kv = result->kv_count > pages ? result->kv_ids[pages] : -1;
    for (uint32_t i = 0; i < pages; i++) {
        lease->kv[lease->kv_count + i] = result->kv_ids[i];
        lease->kv_owner[lease->kv_count + i] = KV_HELD;
    }
    lease->kv_count += pages;
    cache->kv_inside += result->kv_count;
    cache->kv_held += result->kv_count;
    cache->stats.pages_in += result->kv_count;
    cache->stats.drafts += row->draft_count;
    cache->stats.drafts_accepted += result->len - from - row->certain;
    sc_engine_history_push(cache, lease->history, &lease->history_count, result->len,
        row->decode ? SC_FORM_DECODE : SC_FORM_PREFILL, sc_engine_ring_anew(cache, lease, row));
    lease->len = result->len;
    SC_ASSERT(lease->working.id == row->dest.id); /* (3) */
    source_drop(cache, lease);
    lease->source = row->dest;
    sc_engine_ring_keep_row(lease, row);
    publish_row(cache, step, row, from, tail_kv);
    sc_engine_pending_pass(cache, lease, lease->len);
    if (lease->branch_len <= lease->len) lease->branch_len = 0;
}

/* ---- a row that is not ---- */

/* Gives back what only the row itself named. `hold`: rows behind it may write F. */
static void drop_saves(sc_cache *cache, const struct step *step, struct step_row *row, bool hold)
{
    struct lease *lease = row->lease;
    for (uint32_t i = 0; i < row->save_count; i++) {
        const struct step_save *save = &step->saves[row->save_first + i];
        sc_engine_slot_free(cache->options.pool, save->slot);
        sc_engine_skip(cache, lease, save, SC_SKIP_ABORTED);
    }
    if (row->freeze_kind == SC_KIND_NONE) return;
    struct step_save end = {(uint32_t)(row - step->rows), row->end, row->freeze_kind, row->dest};
    sc_engine_skip(cache, lease, &end, SC_SKIP_ABORTED);
    if (!hold) {
        sc_engine_slot_free(cache->options.pool, row->freeze);
    } else {
        lease->held[lease->held_count++] = row->freeze;
    }
}

static void discard_row(sc_cache *cache, const struct step *step, struct step_row *row)
{
    const sc_result *result = row->result;
    row->lease->overrun = true;
    drop_saves(cache, step, row, row->lease->flights > 0);
    sc_engine_drain_push_new(cache, result->kv_ids, result->kv_count);
    cache->stats.rows_discarded++;
}

/* ---- the end of a step ---- */

/* The row has ended: it is no longer its lease's. */
static void row_leave(sc_cache *cache, const struct step *step, const struct step_row *row)
{
    row->lease->row[step - cache->steps] = NO_ROW;
    row->lease->flights--;
}

/* Leases whose last step this was: what was held for it is given back, released ones go. */
static void step_end(sc_cache *cache, struct step *step)
{
    step->in_flight = false;
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct lease *lease = step->rows[i].lease;
        step->rows[i].lease = NULL;
        if (!lease) continue;
        if (!lease->lost) sc_engine_issue(cache, lease);
        if (lease->flights > 0) continue;
        for (uint32_t k = 0; k < lease->held_count; k++) {
            sc_engine_slot_free(cache->options.pool, lease->held[k]);
        }
        lease->held_count = 0;
        if (lease->draining) sc_engine_lease_end(cache, lease, lease->end_how, lease->end_len);
    }
    step->row_count = step->granted_count = step->save_count = 0;
}

static sc_status step_find(sc_cache *cache, sc_step number, struct step **step_out)
{
    for (uint32_t i = 0; i < cache->options.depth_max; i++) {
        if (!cache->steps[i].in_flight || cache->steps[i].number != number) continue;
        *step_out = &cache->steps[i];
        return SC_OK;
    }
    return SC_FAIL(SC_ERR_NOT_FOUND, "step %llu is not in flight", (unsigned long long)number);
}

/* Saves of the row that found no room when it was planned. */
static void report_skips(sc_cache *cache, const struct step *step, uint32_t row)
{
    struct report *report = cache->report;
    for (uint32_t i = 0; report && i < step->skip_count; i++) {
        const struct step_skip *skip = &step->skips[i];
        const struct lease *lease = step->rows[row].lease;
        if (skip->row != row || report->count++ >= report->cap) continue;
        report->out[report->count - 1] = (sc_saved){{lease->id, lease->generation}, row,
            skip->position, skip->kind, -1, skip->cause, 0};
    }
}

static sc_status step_commit(sc_cache *cache, sc_step number, const sc_result *results,
    uint32_t count, sc_status *each_out)
{
    struct step *step = NULL;
    SC_TRY(step_find(cache, number, &step));
    SC_TRY(check_results(cache, step, results, count, each_out));
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct step_row *row = &step->rows[i];
        if (!row->lease) continue;
        report_skips(cache, step, i);
        row_leave(cache, step, row);
        if (row->discard) {
            discard_row(cache, step, row);
        } else {
            keep_row(cache, step, row);
        }
    }
    cache->report = NULL; /* of the step's own saves alone */
    step_end(cache, step);
    return SC_OK;
}

static sc_status commit_and_report(sc_cache *cache, sc_step step, const sc_result *results,
    uint32_t count, sc_status *each_out, struct report *report)
{
    SC_REQUIRE(results || count == 0);
    sc_rwlock_lock(&cache->lock);
    uint64_t words = sc_engine_record_commit_words(cache, results, count);
    cache->report = report;
    sc_status status = sc_engine_record_room(cache, words);
    if (status == SC_OK) status = step_commit(cache, step, results, count, each_out);
    if (status == SC_OK) {
        sc_engine_tier_tend(cache);
        sc_engine_record_commit(cache, step, results, count);
    }
    cache->report = NULL;
    sc_rwlock_unlock(&cache->lock);
    return status;
}

sc_status sc_step_commit(sc_cache *cache, sc_step step, const sc_result *results, uint32_t count,
    sc_status *each_out)
{
    SC_REQUIRE(cache);
    return commit_and_report(cache, step, results, count, each_out, NULL);
}

sc_status sc_step_commit_saved(sc_cache *cache, sc_step step, const sc_result *results,
    uint32_t count, sc_status *each_out, sc_saved *saved_out, uint32_t cap,
    uint32_t *saved_count_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(saved_out || cap == 0);
    SC_REQUIRE(saved_count_out);
    struct report report = {saved_out, cap, 0};
    sc_status status = commit_and_report(cache, step, results, count, each_out, &report);
    if (status == SC_OK) *saved_count_out = report.count;
    return status;
}

/* ---- abort ---- */

/* As if the row had never been planned: it is the newest of its lease. */
static void take_back(sc_cache *cache, const struct step *step, struct step_row *row)
{
    row->lease->next_source = row->source;
    row->lease->next_dest = row->dest;
    drop_saves(cache, step, row, false);
}

static void lose_row(sc_cache *cache, const struct step *step, struct step_row *row)
{
    row->lease->lost = row->lease->overrun = true;
    sc_engine_pending_pass(cache, row->lease, UINT32_MAX);
    drop_saves(cache, step, row, row->lease->flights > 0);
}

static sc_status step_abort(sc_cache *cache, sc_step number, bool launched)
{
    struct step *step = NULL;
    SC_TRY(step_find(cache, number, &step));
    if (!launched && number != cache->step_newest) {
        return SC_FAIL(SC_ERR_STATE, "step %llu was planned after step %llu",
            (unsigned long long)cache->step_newest, (unsigned long long)number);
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct step_row *row = &step->rows[i];
        if (!row->lease) continue;
        row_leave(cache, step, row);
        if (launched) {
            lose_row(cache, step, row);
        } else {
            take_back(cache, step, row);
        }
    }
    cache->stats.steps_aborted++;
    if (!launched) {
        cache->step_newest = step->number_before;
        cache->plan_count--;
    }
    step_end(cache, step);
    return SC_OK;
}

sc_status sc_step_abort(sc_cache *cache, sc_step step, bool launched)
{
    SC_REQUIRE(cache);
    sc_rwlock_lock(&cache->lock);
    sc_status status = step_abort(cache, step, launched);
    if (status == SC_OK) sc_engine_record_abort(cache, step, launched);
    sc_rwlock_unlock(&cache->lock);
    return status;
}

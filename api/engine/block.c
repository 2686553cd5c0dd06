/* SPDX-License-Identifier: Apache-2.0 */
/* The block of a step: one array of int32 in sections, the same for every step of a cache; see
 * sc_batch for what is in them.
 *
 *   query_start_loc | position | end | source | ... | save_row | ... | counts | parents
 *   [row_max + 1]     [row_max]                       [save_max]              [row_max * draft_max]
 *
 * Parents of drafts are written while the rows are planned, everything else at the end. */
#include "cache_internal.h"

static uint32_t section(sc_batch *batch, uint32_t words)
{
    uint32_t at = batch->block_words;
    batch->block_words += words;
    return at;
}

void sc_engine_batch_layout(const sc_cache *cache, sc_batch *batch)
{
    uint32_t rows = cache->options.row_max, saves = cache->options.save_max;
    *batch = (sc_batch){
        .row_max = rows, .save_max = saves, .draft_max = cache->options.draft_max};
    batch->at_query_start_loc = section(batch, rows + 1);
    batch->at_position = section(batch, rows);
    batch->at_end = section(batch, rows);
    batch->at_source = section(batch, rows);
    batch->at_dest = section(batch, rows);
    batch->at_extra = section(batch, rows);
    batch->at_decode = section(batch, rows);
    batch->at_freeze = section(batch, rows);
    batch->at_save_row = section(batch, saves);
    batch->at_save_position = section(batch, saves);
    batch->at_save_slot = section(batch, saves);
    batch->at_row_count = section(batch, 1);
    batch->at_save_count = section(batch, 1);
    batch->at_token_count = section(batch, 1);
    batch->at_accepted = section(batch, rows);
    batch->at_accepted_back = section(batch, rows);
    batch->at_draft_count = section(batch, rows);
    batch->at_copy_from = section(batch, rows);
    batch->at_copy_to = section(batch, rows);
    batch->at_flush = section(batch, rows);
    batch->at_extra_from = section(batch, rows);
    batch->at_parent = section(batch, rows * batch->draft_max);
}

static void fill(int32_t *words, uint32_t count, int32_t value)
{
    for (uint32_t i = 0; i < count; i++) words[i] = value;
}

static void write_row(const sc_cache *cache, const sc_batch *batch, int32_t *block, uint32_t i,
    const struct step_row *row)
{
    const struct lease *lease = row->lease;
    bool copy = row->ring_copy ||
        ((lease->flags & SC_REQUEST_COPY) && row->source.id != row->dest.id);
    bool tail = !cache->options.without_kv && row->end % cache->page != 0;
    block[batch->at_position + i] = (int32_t)row->from;
    block[batch->at_end + i] = (int32_t)row->end;
    block[batch->at_source + i] = (int32_t)(copy ? row->dest.id : row->source.id);
    block[batch->at_dest + i] = (int32_t)row->dest.id;
    if (cache->options.extras) block[batch->at_extra + i] = (int32_t)lease->extra.id;
    block[batch->at_decode + i] = row->decode;
    if (row->freeze_kind != SC_KIND_NONE) block[batch->at_freeze + i] = tail ? 2 : 1;
    block[batch->at_draft_count + i] = (int32_t)row->draft_count;
    block[batch->at_flush + i] = row->flush;
    if (row->ring_from.id != 0) block[batch->at_extra_from + i] = (int32_t)row->ring_from.id;
    if (row->accepted_row != NO_ROW) {
        block[batch->at_accepted + i] = (int32_t)row->accepted_row;
        block[batch->at_accepted_back + i] = (int32_t)row->accepted_back;
    }
    if (copy) {
        block[batch->at_copy_from + i] = (int32_t)row->source.id;
        block[batch->at_copy_to + i] = (int32_t)row->dest.id;
    }
}

static void write_saves(const struct step *step, const sc_batch *batch, int32_t *block)
{
    for (uint32_t i = 0; i < step->save_count; i++) {
        const struct step_save *save = &step->saves[i];
        block[batch->at_save_row + i] = (int32_t)save->row;
        block[batch->at_save_position + i] = (int32_t)save->position;
        block[batch->at_save_slot + i] = (int32_t)save->slot.id;
    }
}

/* Rows that are refused, or that nobody asked for, have no drafts. */
void sc_engine_batch_clear_parents(const sc_cache *cache, struct step *step)
{
    sc_batch batch;
    sc_engine_batch_layout(cache, &batch);
    fill(step->block + batch.at_parent, batch.row_max * batch.draft_max, -1);
}

void sc_engine_batch_write(sc_cache *cache, struct step *step, sc_batch *batch)
{
    int32_t *block = step->block;
    sc_engine_batch_layout(cache, batch);
    fill(block, batch->at_parent, -1);
    fill(block + batch->at_position, batch->row_max, 0);
    fill(block + batch->at_end, batch->row_max, 0);
    fill(block + batch->at_freeze, batch->row_max, 0);
    fill(block + batch->at_accepted_back, batch->row_max, 0);
    int32_t at = 0;
    for (uint32_t i = 0; i < batch->row_max; i++) {
        const struct step_row *row = &step->rows[i];
        block[batch->at_query_start_loc + i] = at;
        if (i >= step->row_count || !row->lease) continue;
        at += (int32_t)(row->certain + row->draft_count);
        write_row(cache, batch, block, i, row);
    }
    block[batch->at_query_start_loc + batch->row_max] = at;
    write_saves(step, batch, block);
    batch->block = block;
    batch->row_count = step->row_count;
    batch->save_count = step->save_count;
    batch->token_count = (uint32_t)at;
    block[batch->at_row_count] = (int32_t)step->row_count;
    block[batch->at_save_count] = (int32_t)step->save_count;
    block[batch->at_token_count] = at;
}

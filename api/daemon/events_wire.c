/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of events: events_wire.h. */
#include "events_wire.h"

#include <string.h>

#include "events_mirror.h"
#include "wire/fault.h"

void sd_wire_begin(struct sd_wire_batch *batch, const struct sd_wire_form *form)
{
    *batch = (struct sd_wire_batch){.form = *form};
    msgpack_sbuffer_init(&batch->events);
}

void sd_wire_free(struct sd_wire_batch *batch)
{
    msgpack_sbuffer_destroy(&batch->events);
}

/* ---- members: maps name them, arrays have them in their order ---- */

struct writer {
    msgpack_packer packer;
    bool arrays;
};

/* msgpack-c's buffer says no when there is no memory; then the event is cut short, and sd_wire_end
 * finds that by the mark that this leaves. */
static int append(void *ctx, const char *bytes, size_t count)
{
    struct sd_wire_batch *batch = ctx;
    if (batch->count == UINT32_MAX) return -1;
    int status = msgpack_sbuffer_write(&batch->events, bytes, count);
    if (status != 0) batch->count = UINT32_MAX;
    return status;
}

static void text(struct writer *writer, const char *value)
{
    size_t count = strlen(value);
    (void)msgpack_pack_str(&writer->packer, count);
    (void)msgpack_pack_str_body(&writer->packer, value, count);
}

static void name(struct writer *writer, const char *value)
{
    if (!writer->arrays) text(writer, value);
}

static void begin(struct writer *writer, struct sd_wire_batch *batch, const char *type,
    uint32_t members)
{
    writer->arrays = batch->form.arrays;
    msgpack_packer_init(&writer->packer, batch, append);
    if (writer->arrays) {
        (void)msgpack_pack_array(&writer->packer, members);
    } else {
        (void)msgpack_pack_map(&writer->packer, members);
    }
    name(writer, "type");
    text(writer, type);
}

static void end(struct sd_wire_batch *batch)
{
    if (batch->count < UINT32_MAX) batch->count++;
}

static void hashes(struct writer *writer, uint64_t hash)
{
    name(writer, "block_hashes");
    (void)msgpack_pack_array(&writer->packer, 1);
    (void)msgpack_pack_uint64(&writer->packer, hash);
}

/* One entry for the one block: nil, or its marks. */
static void extra_keys(struct writer *writer, const struct sd_wire_stored *stored)
{
    char id[SD_MARK_TEXT_BYTES];
    name(writer, "extra_keys");
    (void)msgpack_pack_array(&writer->packer, 1);
    if (stored->mark_count == 0) {
        (void)msgpack_pack_nil(&writer->packer);
        return;
    }
    (void)msgpack_pack_array(&writer->packer, stored->mark_count);
    for (uint32_t i = 0; i < stored->mark_count; i++) {
        (void)msgpack_pack_array(&writer->packer, 2);
        sd_mark_text(&stored->marks[i], id);
        text(writer, id);
        (void)msgpack_pack_uint32(&writer->packer, stored->marks[i].at - stored->from);
    }
}

void sd_wire_stored(struct sd_wire_batch *batch, const struct sd_wire_stored *stored)
{
    struct writer writer;
    bool extra = stored->mark_count > 0 || stored->has_extra;
    bool arrays = batch->form.arrays;
    begin(&writer, batch, "BlockStored", arrays ? 12 : 10 + extra);
    hashes(&writer, stored->hash);
    name(&writer, "parent_block_hash");
    if (stored->has_parent) {
        (void)msgpack_pack_uint64(&writer.packer, stored->parent);
    } else {
        (void)msgpack_pack_nil(&writer.packer);
    }
    name(&writer, "token_ids");
    (void)msgpack_pack_array(&writer.packer, stored->token_count);
    for (uint32_t i = 0; i < stored->token_count; i++) {
        (void)msgpack_pack_int32(&writer.packer, stored->tokens[i]);
    }
    name(&writer, "block_size");
    (void)msgpack_pack_uint32(&writer.packer, stored->token_count);
    name(&writer, "lora_id");
    (void)msgpack_pack_nil(&writer.packer);
    name(&writer, "medium");
    text(&writer, stored->medium);
    name(&writer, "lora_name");
    if (stored->adapter[0] != '\0') {
        text(&writer, stored->adapter);
    } else {
        (void)msgpack_pack_nil(&writer.packer);
    }
    if (extra) {
        extra_keys(&writer, stored);
    } else if (arrays) {
        (void)msgpack_pack_nil(&writer.packer);
    }
    name(&writer, "group_idx");
    (void)msgpack_pack_uint32(&writer.packer, batch->form.group);
    name(&writer, "kv_cache_spec_kind");
    text(&writer, batch->form.kind);
    if (arrays) (void)msgpack_pack_nil(&writer.packer); /* kv_cache_spec_sliding_window */
    end(batch);
}

void sd_wire_removed(struct sd_wire_batch *batch, uint64_t hash, const char *medium)
{
    struct writer writer;
    begin(&writer, batch, "BlockRemoved", 4);
    hashes(&writer, hash);
    name(&writer, "medium");
    text(&writer, medium);
    name(&writer, "group_idx");
    (void)msgpack_pack_uint32(&writer.packer, batch->form.group);
    end(batch);
}

void sd_wire_cleared(struct sd_wire_batch *batch)
{
    struct writer writer;
    begin(&writer, batch, "AllBlocksCleared", 1);
    end(batch);
}

sc_status sd_wire_end(struct sd_wire_batch *batch, double time, msgpack_sbuffer *payload)
{
    msgpack_packer packer;
    bool good = batch->count < UINT32_MAX;
    msgpack_sbuffer_init(payload);
    msgpack_packer_init(&packer, payload, msgpack_sbuffer_write);
    good = good && msgpack_pack_array(&packer, 3) == 0 && msgpack_pack_double(&packer, time) == 0;
    good = good && msgpack_pack_array(&packer, batch->count) == 0;
    if (good && batch->events.size > 0) {
        good = msgpack_sbuffer_write(payload, batch->events.data, batch->events.size) == 0;
    }
    good = good && msgpack_pack_uint32(&packer, batch->form.rank) == 0;
    batch->events.size = 0;
    batch->count = 0;
    if (good) return SC_OK;
    msgpack_sbuffer_destroy(payload);
    return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for a batch of events");
}

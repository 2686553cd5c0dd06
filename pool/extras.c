/* SPDX-License-Identifier: Apache-2.0 */
/* The schema of an extras pool: what only a running request needs beside its state.
 *
 *   layer 0, EXTRA 0       int32 [control_words]                 cursors, accepted counts
 *   layer l, EXTRA 1 + 2i  u8 [ring_records][ring_record_bytes]  ring of recurrent part i of l
 *   layer l, EXTRA 2 + 2i  dtype [draft_tokens][channels]        wide rows of conv window i of l
 *
 * Shapes are local to the shard. All parts are EXTRA, so that allocation of a slot clears them. */
#include <string.h>

#include "base/error.h"
#include "base/heap.h"
#include "base/options.h"
#include "pool/schema_internal.h"
#include "schema_impl.h"

static sc_status check_options(const sc_schema *schema, const sc_extras_options *options)
{
    SC_REQUIRE(schema != NULL);
    SC_REQUIRE((options->ring_records == 0) == (options->ring_record_bytes == 0));
    SC_REQUIRE(options->control_words > 0 || options->ring_records > 0 ||
        options->draft_tokens > 0);
    return SC_OK;
}

/* The extra part that goes with part `p` of the state, if any. */
static sc_status extra_of(const sc_schema *schema, const sc_shard *shard, uint32_t p,
    const sc_extras_options *options, sc_part *out, bool *has_out)
{
    const sc_part *whole = sc_schema_part_ref(schema, p);
    sc_part_local local;
    SC_TRY(sc_schema_part_local(schema, shard, p, has_out, &local));
    if (!*has_out) return SC_OK;
    *out = (sc_part){.layer = whole->layer, .group = whole->group, .kind = SC_PART_EXTRA,
        .dim_count = 2};
    if (whole->index > (UINT32_MAX - 2) / 2) {
        return SC_FAIL(SC_ERR_OVERFLOW, "part %u: index %u", p, whole->index);
    }
    if (whole->kind == SC_PART_RECURRENT && options->ring_records > 0) {
        out->index = 1 + 2 * whole->index;
        out->dtype = SC_DTYPE_U8;
        out->dims[0] = options->ring_records;
        out->dims[1] = options->ring_record_bytes;
    } else if (whole->kind == SC_PART_CONV && options->draft_tokens > 0) {
        out->index = 2 + 2 * whole->index;
        out->dtype = whole->dtype;
        out->dims[0] = options->draft_tokens;
        out->dims[1] = local.dims[1];
    } else {
        *has_out = false;
    }
    return SC_OK;
}

sc_status sc_schema_extras_create(const sc_schema *schema, const sc_shard *shard,
    const sc_extras_options *given, sc_schema **schema_out)
{
    struct sc_heap heap;
    sc_shard resolved;
    sc_extras_options known = SC_EXTRAS_OPTIONS_INIT;
    const sc_extras_options *options = &known;
    uint32_t count = 0;
    SC_REQUIRE(schema_out != NULL);
    SC_TRY(sc_options_resolve(given, offsetof(sc_extras_options, allocator), &known,
        sizeof known));
    SC_TRY(check_options(schema, options));
    SC_TRY(sc_schema_shard_resolve(schema, shard, &resolved));
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_POOL, options->allocator));
    const size_t cap = (size_t)schema->part_count + 1;
    sc_part *parts = sc_heap_calloc(&heap, cap, sizeof *parts);
    if (!parts) return SC_FAIL(SC_ERR_NO_MEMORY, "extras of %u parts", schema->part_count);
    sc_status status = SC_OK;
    if (options->control_words > 0) {
        parts[count++] = (sc_part){.kind = SC_PART_EXTRA, .dtype = SC_DTYPE_I32, .dim_count = 1,
            .dims = {options->control_words}};
    }
    for (uint32_t p = 0; p < schema->part_count && status == SC_OK; p++) {
        bool has = false;
        status = extra_of(schema, &resolved, p, options, &parts[count], &has);
        if (status == SC_OK && has) count++;
    }
    if (status == SC_OK && count == 0) {
        status = SC_FAIL(SC_ERR_INVALID, "the shard holds no part that these extras go with");
    }
    if (status == SC_OK) {
        const sc_schema_options made = {sizeof made, schema->model, schema->revision, "extras 1",
            schema->groups, schema->group_count, parts, count, schema->layer_count,
            options->allocator};
        status = sc_schema_create(&made, schema_out);
    }
    sc_heap_free(&heap, parts, cap * sizeof *parts);
    return status;
}

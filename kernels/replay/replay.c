/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of steps with a ring: checks, then the kernel table; and the phases of the flushes. */
#include "base/error.h"
#include "delta/delta_check.h"
#include "kernel_dispatch.h"
#include "replay/ring.h"
#include "ssm/ssm_check.h"

/* ---- phases ---- */

sc_replay_mode sc_replay_next(sc_replay_mode planned, uint32_t records, uint32_t records_max,
    uint32_t *after_out)
{
    *after_out = planned == SC_REPLAY_NONE ? records : 0;
    if (planned == SC_REPLAY_FOLD && records == 0) return SC_REPLAY_NONE;
    if (planned != SC_REPLAY_APPEND) return planned;
    if (records >= records_max) return SC_REPLAY_FLUSH;
    *after_out = records + 1;
    return SC_REPLAY_APPEND;
}

static int32_t *control_of(const sc_replay_step_params *p, int32_t slot)
{
    return sc_host_ptr(p->control.base + (uint64_t)((int64_t)slot * p->control.slot_stride));
}

static sc_status check_control(const char *name, const sc_k_slots *slots, uint64_t bytes)
{
    if (slots->base == 0) return SC_FAIL(SC_ERR_INVALID, "%s is 0", name);
    if (slots->base % 4 != 0 || slots->slot_stride % 4 != 0)
        return SC_FAIL(SC_ERR_INVALID, "%s is not aligned to 4 bytes", name);
    if (slots->slot_stride <= 0 || (uint64_t)slots->slot_stride < bytes)
        return SC_FAIL(SC_ERR_INVALID, "%s: slot stride %lld, but a slot's part has %llu bytes",
            name, (long long)slots->slot_stride, (unsigned long long)bytes);
    return SC_OK;
}

static bool slot_known(const sc_k_slots *slots, int32_t slot)
{
    if (slots->slot_count != 0 && (uint32_t)slot >= slots->slot_count) return false;
    return slot <= INT64_MAX / slots->slot_stride - 1;
}

static sc_status check_step_row(const sc_replay_step_params *p, uint32_t r)
{
    const int32_t *slot = sc_host_ptr(p->slot), *planned = sc_host_ptr(p->planned);
    if (slot[r] <= 0 || planned[r] == SC_REPLAY_NONE) return SC_OK;
    if (planned[r] < SC_REPLAY_NONE || planned[r] > SC_REPLAY_FOLD)
        return SC_FAIL(SC_ERR_INVALID, "planned[%u] is %d", r, planned[r]);
    if (!slot_known(&p->control, slot[r]))
        return SC_FAIL(SC_ERR_INVALID, "slot[%u] is slot %d of %u", r, slot[r],
            p->control.slot_count);
    for (uint32_t i = 0; i < r; i++)
        if (slot[i] == slot[r] && planned[i] != SC_REPLAY_NONE)
            return SC_FAIL(SC_ERR_INVALID, "ring slot %d is of rows %u and %u", slot[r], i, r);
    int32_t records = *control_of(p, slot[r]);
    if (records < 0 || (uint32_t)records > p->records_max)
        return SC_FAIL(SC_ERR_CORRUPT, "slot %d counts %d records of %u", slot[r], records,
            p->records_max);
    return SC_OK;
}

sc_status sc_replay_step(sc_backend *backend, const sc_replay_step_params *params,
    sc_stream *stream)
{
    (void)stream;
    SC_REQUIRE(params != NULL);
    const sc_replay_step_params *p = params;
    SC_REQUIRE(p->records_max > 0 && p->records_max <= SC_REPLAY_RECORDS_MAX);
    if (backend != NULL && !backend->host_memory)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "rings on %s: only the host has them", backend->name);
    if (p->row_count == 0) return SC_OK;
    SC_TRY(check_control("control", &p->control, sizeof(int32_t)));
    SC_TRY(sc_kernel_check_index("slot", p->slot));
    SC_TRY(sc_kernel_check_index("planned", p->planned));
    SC_TRY(sc_kernel_check_index("records", p->records));
    SC_TRY(sc_kernel_check_index("mode", p->mode));
    for (uint32_t r = 0; r < p->row_count; r++) SC_TRY(check_step_row(p, r));
    const int32_t *slot = sc_host_ptr(p->slot), *planned = sc_host_ptr(p->planned);
    int32_t *records = sc_host_ptr(p->records), *mode = sc_host_ptr(p->mode);
    for (uint32_t r = 0; r < p->row_count; r++) {
        records[r] = 0;
        mode[r] = SC_REPLAY_NONE;
        if (slot[r] <= 0 || planned[r] == SC_REPLAY_NONE) continue;
        int32_t *count = control_of(p, slot[r]);
        uint32_t after = 0;
        records[r] = *count;
        mode[r] = sc_replay_next((sc_replay_mode)planned[r], (uint32_t)*count, p->records_max,
            &after);
        *count = (int32_t)after;
    }
    return SC_OK;
}

/* ---- checks ---- */

static sc_status check_ring(const sc_k_ring *ring, uint64_t record_bytes)
{
    SC_REQUIRE(ring->records_max > 0 && ring->records_max <= SC_REPLAY_RECORDS_MAX);
    SC_REQUIRE(ring->record_bytes % RING_ALIGN == 0);
    if (ring->record_bytes < record_bytes)
        return SC_FAIL(SC_ERR_INVALID, "records of %u bytes, this layer's have %llu",
            ring->record_bytes, (unsigned long long)record_bytes);
    SC_TRY(check_control("ring", &ring->slots, (uint64_t)ring->records_max * ring->record_bytes));
    SC_TRY(sc_kernel_check_index("ring.slot", ring->slot));
    SC_TRY(sc_kernel_check_index("ring.records", ring->records));
    return sc_kernel_check_index("ring.mode", ring->mode);
}

/* Rows as the host sees them; `save` may be NULL. `fold`: rows that do not fold are left alone. */
struct ring_rows {
    const sc_k_ring *ring;
    const int32_t *source, *dest, *save;
    uint32_t row_count;
    bool fold;
};

static sc_status check_row(const struct ring_rows *rows, uint32_t r)
{
    const sc_k_ring *ring = rows->ring;
    const int32_t *slot = sc_host_ptr(ring->slot);
    int32_t mode = ring_mode(ring, rows->source, r);
    int32_t records = ((const int32_t *)sc_host_ptr(ring->records))[r];
    if (mode < SC_REPLAY_NONE || mode > SC_REPLAY_FOLD)
        return SC_FAIL(SC_ERR_INVALID, "mode[%u] is %d", r, mode);
    if (mode == SC_REPLAY_NONE || (rows->fold && mode != SC_REPLAY_FOLD)) return SC_OK;
    if (mode == SC_REPLAY_FOLD && !rows->fold)
        return SC_FAIL(SC_ERR_INVALID, "row %u folds: that is a call of its own", r);
    if (slot[r] <= 0 || !slot_known(&ring->slots, slot[r]))
        return SC_FAIL(SC_ERR_INVALID, "ring.slot[%u] is slot %d of %u", r, slot[r],
            ring->slots.slot_count);
    for (uint32_t i = 0; i < r; i++)
        if (slot[i] == slot[r] && ring_mode(ring, rows->source, i) != SC_REPLAY_NONE)
            return SC_FAIL(SC_ERR_INVALID, "ring slot %d is of rows %u and %u", slot[r], i, r);
    int64_t most = (int64_t)ring->records_max - (mode == SC_REPLAY_APPEND);
    if (records < 0 || records > most)
        return SC_FAIL(SC_ERR_INVALID, "records[%u] is %d, the ring has room for %u", r, records,
            ring->records_max);
    if (mode != SC_REPLAY_APPEND && rows->dest[r] <= 0)
        return SC_FAIL(SC_ERR_INVALID, "row %u flushes to slot %d", r, rows->dest[r]);
    if (mode == SC_REPLAY_APPEND && rows->save != NULL && rows->save[r] > 0)
        return SC_FAIL(SC_ERR_INVALID, "row %u saves a state that it does not have", r);
    return SC_OK;
}

static sc_status check_rows(const struct ring_rows *rows)
{
    for (uint32_t r = 0; r < rows->row_count; r++) SC_TRY(check_row(rows, r));
    return SC_OK;
}

/* ---- the delta rule ---- */

sc_status sc_k_replay_delta_record_bytes(const sc_k_delta_shape *shape, sc_dtype dtype,
    uint32_t *bytes_out)
{
    SC_REQUIRE(shape != NULL);
    SC_REQUIRE(bytes_out != NULL);
    SC_TRY(sc_kernel_check_dtype("records", dtype));
    SC_TRY(sc_delta_check_dims(shape));
    *bytes_out = (uint32_t)ring_delta_at(shape, dtype).bytes; /* below 2^28 */
    return SC_OK;
}

sc_status sc_k_replay_delta(sc_backend *backend, const sc_k_replay_delta_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    if (backend == NULL) backend = sc_backend_host();
    SC_REQUIRE(params != NULL);
    const sc_k_decode_packed_params *p = &params->step;
    SC_REQUIRE(p->initial.base == 0);
    SC_TRY(sc_delta_check_decode(backend, SC_K_OP_REPLAY_DELTA, p, &row));
    if (p->row_count == 0) return SC_OK;
    SC_TRY(check_ring(&params->ring, ring_delta_at(&p->shape, p->dtype).bytes));
    if (backend->host_memory)
        SC_TRY(check_rows(&(struct ring_rows){&params->ring, sc_host_ptr(p->source),
            sc_host_ptr(p->dest), sc_host_ptr(p->save), p->row_count, false}));
    return row->launch(params, stream);
}

sc_status sc_k_replay_delta_fold(sc_backend *backend, const sc_k_replay_delta_fold_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    if (backend == NULL) backend = sc_backend_host();
    SC_REQUIRE(params != NULL);
    const sc_k_replay_delta_fold_params *p = params;
    SC_TRY(sc_kernel_check_dtype("records", p->dtype));
    SC_TRY(sc_delta_check_shape(&p->shape, &p->state));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_REPLAY_DELTA_FOLD,
        sc_kernel_need(p->dtype, p->state.dtype), &row));
    if (p->row_count == 0) return SC_OK;
    SC_TRY(sc_kernel_check_index("source", p->source));
    SC_TRY(sc_kernel_check_index("dest", p->dest));
    SC_TRY(check_ring(&p->ring, ring_delta_at(&p->shape, p->dtype).bytes));
    if (backend->host_memory) {
        SC_TRY(sc_kernel_check_rows(&(struct sc_kernel_rows){.row_count = p->row_count,
            .token_count = p->row_count, .source = sc_host_ptr(p->source),
            .dest = sc_host_ptr(p->dest), .save_grid = 1, .slots = &p->state}));
        SC_TRY(check_rows(&(struct ring_rows){&p->ring, sc_host_ptr(p->source),
            sc_host_ptr(p->dest), NULL, p->row_count, true}));
    }
    return row->launch(params, stream);
}

/* ---- Mamba-2 ---- */

sc_status sc_k_replay_ssm_record_bytes(uint32_t heads, uint32_t groups, uint32_t head_dim,
    uint32_t state_dim, sc_dtype dtype, uint32_t *bytes_out)
{
    const sc_k_ssm_params p = {.heads = heads, .groups = groups, .head_dim = head_dim,
        .state_dim = state_dim, .dtype = dtype};
    SC_REQUIRE(bytes_out != NULL);
    SC_TRY(sc_ssm_check_shape(&p));
    *bytes_out = (uint32_t)ring_ssm_at(&p).bytes; /* below 2^28 */
    return SC_OK;
}

static sc_status ssm_check(const sc_backend *backend, const sc_k_replay_ssm_params *c, bool fold,
    const struct sc_kernel_row **row_out)
{
    const sc_k_ssm_params *p = &c->step;
    SC_REQUIRE(p->initial.base == 0);
    SC_TRY(sc_ssm_check_shape(p));
    SC_TRY(sc_kernel_check_slots("state", &p->state,
        (uint64_t)p->heads * p->head_dim * p->state_dim));
    SC_TRY(sc_kernel_pick(backend, fold ? SC_K_OP_REPLAY_SSM_FOLD : SC_K_OP_REPLAY_SSM,
        sc_kernel_need(p->dtype, p->state.dtype), row_out));
    if (p->row_count == 0) return SC_OK;
    SC_REQUIRE(p->row_count <= INT32_MAX);
    if (!fold) SC_TRY(sc_ssm_check_tensors(p, p->row_count));
    SC_TRY(sc_kernel_check_index("source", p->source));
    SC_TRY(sc_kernel_check_index("dest", p->dest));
    SC_TRY(check_ring(&c->ring, ring_ssm_at(p).bytes));
    if (!backend->host_memory) return SC_OK;
    SC_TRY(sc_kernel_check_rows(&(struct sc_kernel_rows){.row_count = p->row_count,
        .token_count = p->row_count, .source = sc_host_ptr(p->source),
        .dest = sc_host_ptr(p->dest), .save_grid = 1, .slots = &p->state}));
    return check_rows(&(struct ring_rows){&c->ring, sc_host_ptr(p->source), sc_host_ptr(p->dest),
        NULL, p->row_count, fold});
}

static sc_status ssm_run(sc_backend *backend, const sc_k_replay_ssm_params *params, bool fold,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(params != NULL);
    SC_TRY(ssm_check(backend != NULL ? backend : sc_backend_host(), params, fold, &row));
    return params->step.row_count > 0 ? row->launch(params, stream) : SC_OK;
}

sc_status sc_k_replay_ssm(sc_backend *backend, const sc_k_replay_ssm_params *params,
    sc_stream *stream)
{
    return ssm_run(backend, params, false, stream);
}

sc_status sc_k_replay_ssm_fold(sc_backend *backend, const sc_k_replay_ssm_params *params,
    sc_stream *stream)
{
    return ssm_run(backend, params, true, stream);
}

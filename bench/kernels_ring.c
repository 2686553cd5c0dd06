/* SPDX-License-Identifier: Apache-2.0 */
/* Steps with a ring as `kernels` runs them, in parts, so that a
 * cycle's time can be told apart. */
#include <string.h>

#include "kernels_work.h"
#include "statecache/kernels_replay.h"

void kbench_rings_open(struct kbench_work *w)
{
    const struct kbench_model *m = w->c.model;
    const sc_k_delta_shape shape = kbench_shape(m);
    if (m->ssm)
        bench_must(sc_k_replay_ssm_record_bytes(m->v_heads, m->heads, m->v_dim, m->k_dim,
            w->c.dtype, &w->record_bytes), "sc_k_replay_ssm_record_bytes");
    else
        bench_must(sc_k_replay_delta_record_bytes(&shape, w->c.dtype, &w->record_bytes),
            "sc_k_replay_delta_record_bytes");
    uint64_t slots = 1 + (uint64_t)w->threads * w->calls * w->c.batch;
    w->rings = kbench_pages(slots * KBENCH_RECORDS * w->record_bytes);
    memset(w->rings, 0, slots * KBENCH_RECORDS * w->record_bytes);
}

/* The step that lane->records and lane->mode say, each row with the ring of its slot. */
static void run_ring(struct kbench_work *w, struct lane *lane, uint32_t call)
{
    sc_k_slots slots = kbench_rows(w, lane, call);
    const sc_k_ring ring = {.slots = {dev(w->rings), (int64_t)KBENCH_RECORDS * w->record_bytes,
        SC_DTYPE_U8, 0}, .records_max = KBENCH_RECORDS, .record_bytes = w->record_bytes,
        .slot = dev(lane->source), .records = dev(lane->records), .mode = dev(lane->mode)};
    if (w->c.model->ssm) {
        sc_k_replay_ssm_params p = {kbench_ssm_params(w, lane, slots), ring};
        p.step.token_count = 0;
        p.step.row_start = 0;
        bench_must(sc_k_replay_ssm(NULL, &p, NULL), "sc_k_replay_ssm");
        return;
    }
    sc_k_replay_delta_params p = {kbench_decode_params(w, lane, slots), ring};
    bench_must(sc_k_replay_delta(NULL, &p, NULL), "sc_k_replay_delta");
}

/* Step `step` of a cycle, of the whole pool. */
static void ring_step(struct kbench_work *w, struct lane *lane, int32_t step)
{
    for (uint32_t r = 0; r < w->c.batch; r++) {
        lane->records[r] = step;
        lane->mode[r] = step < KBENCH_RECORDS ? SC_REPLAY_APPEND : SC_REPLAY_FLUSH;
    }
    for (uint32_t call = 0; call < w->calls; call++) run_ring(w, lane, call);
}

void kbench_ring_append(struct kbench_work *w, uint32_t thread)
{
    for (uint32_t pass = 0; pass < w->c.passes; pass++)
        for (int32_t step = 0; step < KBENCH_RECORDS; step++) ring_step(w, &w->lanes[thread], step);
}

/* The records are those of the last cycle. */
void kbench_ring_flush(struct kbench_work *w, uint32_t thread)
{
    for (uint32_t pass = 0; pass < w->c.passes; pass++)
        ring_step(w, &w->lanes[thread], KBENCH_RECORDS);
}

void kbench_ring_decode(struct kbench_work *w, uint32_t thread)
{
    struct lane *lane = &w->lanes[thread];
    for (uint32_t pass = 0; pass < KBENCH_CYCLE * w->c.passes; pass++)
        for (uint32_t call = 0; call < w->calls; call++)
            kbench_decode(w, lane, kbench_rows(w, lane, call));
}

/* What the steps of a cycle read, and nothing else: slots, and the records that a step finds. */
void kbench_ring_read(struct kbench_work *w, uint32_t thread)
{
    const struct lane *lane = &w->lanes[thread];
    const uint8_t *pool = w->pool, *rings = w->rings;
    for (uint32_t pass = 0; pass < KBENCH_CYCLE * w->c.passes; pass++)
        for (uint64_t slot = lane->first; slot < lane->first + lane->slots; slot++) {
            kbench_read_memory(pool + slot * w->part_bytes, w->part_bytes);
            kbench_read_memory(rings + slot * KBENCH_RECORDS * w->record_bytes,
                pass % KBENCH_CYCLE * w->record_bytes);
        }
}

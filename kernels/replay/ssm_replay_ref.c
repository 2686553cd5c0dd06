/* SPDX-License-Identifier: Apache-2.0 */
/* The selective state space with a ring, on the host.
 *
 * APPEND, one head: with A the product of all decays, A_j of those after record j, and the token
 * among the records,
 *
 *   y = A (S0 C) + sum_j A_j dt_j (B_j . C) x_j  (+ D x, gated)
 *
 * FLUSH and FOLD take the steps of ssm_step.h once more, from the raw inputs.
 *
 * Bytes moved: APPEND the state once in, the records in, one record out; FLUSH the state in and
 * out, the records in. */
#include "kernel_dispatch.h"
#include "replay/replay_rows.h"
#include "replay/ring.h"
#include "ssm/ssm_step.h"
#ifdef __AVX2__
#include "replay/ssm_replay_wide.h"
#endif

struct job {
    struct ssm_span span;
    const sc_k_ring *ring;
    struct ring_ssm at;
    uint32_t records;
    int32_t source;
};

SC_REF_INLINE float record_f32(const uint8_t *record, uint64_t offset, uint32_t i)
{
    return ((const float *)(const void *)(record + offset))[i];
}

SC_REF_INLINE uint32_t group_of(const struct job *j)
{
    return j->span.head / (j->span.p->heads / j->span.p->groups);
}

/* Record i as a token of the span; no c, no output. */
static void record_token(struct ssm_token *k, const struct job *j, uint32_t i)
{
    const sc_k_ssm_params *p = j->span.p;
    const uint8_t *record = ring_record(j->ring, j->span.row, i);
    k->dt = record_f32(record, j->at.dt, j->span.head);
    k->alpha = record_f32(record, j->at.decay, j->span.head);
    ref_load(k->x, sc_host_devptr(record + j->at.x), p->dtype,
        (int64_t)j->span.head * p->head_dim + j->span.p0, j->span.rows);
    ref_load(k->b, sc_host_devptr(record + j->at.b), p->dtype,
        (int64_t)group_of(j) * p->state_dim, p->state_dim);
}

/* What the token leaves in the ring. */
static void record_write(const struct job *j, const struct ssm_token *k)
{
    const sc_k_ssm_params *p = j->span.p;
    uint64_t elem = sc_kernel_elem_bytes(p->dtype), r = j->span.row, n = p->state_dim;
    uint64_t wide = (uint64_t)p->heads * p->head_dim, group = (uint64_t)p->groups * n;
    uint64_t x_at = (uint64_t)j->span.head * p->head_dim + j->span.p0, g = group_of(j);
    uint8_t *record = ring_record(j->ring, j->span.row, j->records);
    const uint8_t *x = (const uint8_t *)sc_host_ptr(p->x)
        + (r * (uint64_t)sc_kernel_stride(p->x_stride, wide) + x_at) * elem;
    const uint8_t *b = (const uint8_t *)sc_host_ptr(p->b)
        + (r * (uint64_t)sc_kernel_stride(p->b_stride, group) + g * n) * elem;
    memcpy(record + j->at.x + x_at * elem, x, j->span.rows * elem);
    if (j->span.p0 > 0) return;
    memcpy(record + j->at.dt + (uint64_t)j->span.head * 4, &k->dt, 4);
    memcpy(record + j->at.decay + (uint64_t)j->span.head * 4, &k->alpha, 4);
    if (j->span.head % (p->heads / p->groups) == 0)
        memcpy(record + j->at.b + g * n * elem, b, n * elem);
}

/* y = A (S0 C) for the rows of the span. */
static void read_base(float *restrict y, const struct job *j, const float *c, float decay)
{
    const sc_k_ssm_params *p = j->span.p;
    uint32_t n = p->state_dim;
    float line[SC_K_DIM_MAX];
    if (j->source == 0) {
        memset(y, 0, j->span.rows * sizeof(float));
        return;
    }
    sc_devptr base = ref_slot(&p->state, j->source);
    int64_t at = ssm_part_at(&j->span);
#ifdef __AVX2__
    if (ssm_streams(n)) {
        base_read(y, wide_at(&p->state, j->source, at), j->span.rows, n, p->state.dtype, c, decay);
        return;
    }
#endif
    for (uint32_t v = 0; v < j->span.rows; v++) {
        const float *s = (const float *)sc_host_ptr(base) + at + (int64_t)v * n;
        if (p->state.dtype != SC_DTYPE_F32) {
            ref_load(line, base, p->state.dtype, at + (int64_t)v * n, n);
            s = line;
        }
        y[v] = decay * ref_dot(s, c, n);
    }
}

static void append_span(const struct job *j)
{
    const sc_k_ssm_params *p = j->span.p;
    float part[SC_REPLAY_RECORDS_MAX];
    struct ssm_token k, past;
    ssm_token_load(&k, &j->span, j->span.row);
    float decay = k.alpha;
    for (uint32_t i = j->records; i-- > 0;) {
        record_token(&past, j, i);
        part[i] = decay * past.dt * ref_dot(past.b, k.c, p->state_dim);
        decay = decay * past.alpha;
    }
    read_base(k.y, j, k.c, decay);
    for (uint32_t i = 0; i < j->records; i++) {
        const uint8_t *record = ring_record(j->ring, j->span.row, i);
        ref_load(past.x, sc_host_devptr(record + j->at.x), p->dtype,
            (int64_t)j->span.head * p->head_dim + j->span.p0, j->span.rows);
        for (uint32_t v = 0; v < j->span.rows; v++) k.y[v] = k.y[v] + part[i] * past.x[v];
    }
    float own = k.dt * ref_dot(k.b, k.c, p->state_dim);
    for (uint32_t v = 0; v < j->span.rows; v++) {
        k.y[v] = k.y[v] + own * k.x[v];
        if (p->d != 0) k.y[v] += k.skip * k.x[v];
    }
    record_write(j, &k);
    ssm_token_store(&k, &j->span, j->span.row);
}

#ifdef __AVX2__
/* flush_span() for a state_dim that has registers. */
static void flush_streamed(const struct job *j, int32_t dest, bool token)
{
    const sc_k_ssm_params *p = j->span.p;
    struct ssm_ends e = {.from = wide_at(&p->state, j->source, ssm_part_at(&j->span)),
        .to = wide_at(&p->state, dest, ssm_part_at(&j->span))};
    struct ssm_past past;
    struct ssm_token k;
    for (past.count = 0; past.count < j->records; past.count++) {
        record_token(&k, j, past.count);
        past.alpha[past.count] = k.alpha, past.dt[past.count] = k.dt;
        memcpy(past.x + (size_t)past.count * j->span.rows, k.x, j->span.rows * sizeof(float));
        memcpy(past.b + (size_t)past.count * p->state_dim, k.b, p->state_dim * sizeof(float));
    }
    if (token) ssm_token_load(&k, &j->span, j->span.row);
    past_flush(&e, &past, j->span.rows, p->state_dim, p->state.dtype, token ? &k : NULL);
    if (!token) return;
    for (uint32_t v = 0; p->d != 0 && v < j->span.rows; v++) k.y[v] += k.skip * k.x[v];
    ssm_token_store(&k, &j->span, j->span.row);
}
#endif

/* `token`: the row's own comes after the records. */
static void flush_span(const struct job *j, int32_t dest, bool token)
{
    const sc_k_ssm_params *p = j->span.p;
#ifdef __AVX2__
    if (ssm_streams(p->state_dim)) {
        flush_streamed(j, dest, token);
        return;
    }
#endif
    float block[SSM_BLOCK_ELEMS];
    struct ssm_token k = {.skip = 0.0f};
    uint32_t n = j->span.rows * p->state_dim;
    if (j->source == 0)
        memset(block, 0, n * sizeof(float));
    else
        ref_load(block, ref_slot(&p->state, j->source), p->state.dtype, ssm_part_at(&j->span), n);
    for (uint32_t i = 0; i < j->records; i++) {
        record_token(&k, j, i);
        ssm_step(block, j->span.rows, p->state_dim, &k, false, p->state.dtype);
    }
    if (token) {
        ssm_token_load(&k, &j->span, j->span.row);
        ssm_step(block, j->span.rows, p->state_dim, &k, p->d != 0, p->state.dtype);
        ssm_token_store(&k, &j->span, j->span.row);
    }
    if (dest > 0)
        ref_store(block, ref_slot(&p->state, dest), p->state.dtype, ssm_part_at(&j->span), n);
}

static void run_row(const sc_k_replay_ssm_params *c, uint32_t r, int32_t mode)
{
    const sc_k_ssm_params *p = &c->step;
    int32_t dest = ((const int32_t *)sc_host_ptr(p->dest))[r];
    struct job j = {.span = {.p = p, .row = r}, .ring = &c->ring, .at = ring_ssm_at(p),
        .records = ring_records(&c->ring, r),
        .source = ((const int32_t *)sc_host_ptr(p->source))[r]};
    uint32_t most = SSM_BLOCK_ELEMS / p->state_dim;
    for (j.span.head = 0; j.span.head < p->heads; j.span.head++)
        for (j.span.p0 = 0; j.span.p0 < p->head_dim; j.span.p0 += most) {
            j.span.rows = p->head_dim - j.span.p0 < most ? p->head_dim - j.span.p0 : most;
            if (mode == SC_REPLAY_APPEND)
                append_span(&j);
            else
                flush_span(&j, dest, mode == SC_REPLAY_FLUSH);
        }
}

sc_status SC_HOST_FN(sc_k_replay_ssm)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_replay_ssm_params *c = params;
    const int32_t *source = sc_host_ptr(c->step.source);
    uint32_t dense = c->step.heads * c->step.head_dim;
    for (uint32_t r = 0; r < c->step.row_count; r++) {
        int32_t mode = ring_mode(&c->ring, source, r);
        if (mode == SC_REPLAY_NONE)
            ref_store_zero(c->step.y, c->step.dtype,
                (int64_t)r * sc_kernel_stride(c->step.y_stride, dense), dense);
        else
            run_row(c, r, mode);
    }
    return SC_OK;
}

sc_status SC_HOST_FN(sc_k_replay_ssm_fold)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_replay_ssm_params *c = params;
    const int32_t *source = sc_host_ptr(c->step.source);
    for (uint32_t r = 0; r < c->step.row_count; r++)
        if (ring_mode(&c->ring, source, r) == SC_REPLAY_FOLD) run_row(c, r, SC_REPLAY_FOLD);
    return SC_OK;
}

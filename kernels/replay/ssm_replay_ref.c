/* SPDX-License-Identifier: Apache-2.0 */
/* The selective state space with a ring, on the host.
 *
 * APPEND, one head: with A the product of all decays, A_j of those after record j, and the token
 * among the records (B . C once for the heads that share it),
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

/* B of record i, of the span's group. */
static void record_group(float *restrict out, const struct job *j, uint32_t i)
{
    const sc_k_ssm_params *p = j->span.p;
    ref_load(out, sc_host_devptr(ring_record(j->ring, j->span.row, i) + j->at.b), p->dtype,
        (int64_t)ssm_group_at(&j->span), p->state_dim);
}

/* Its x, of the span's rows from v on. */
SC_REF_INLINE void record_x(float *restrict out, const struct job *j, uint32_t i, uint32_t v,
    uint32_t n)
{
    const sc_k_ssm_params *p = j->span.p;
    ref_load(out, sc_host_devptr(ring_record(j->ring, j->span.row, i) + j->at.x), p->dtype,
        (int64_t)ssm_rows_at(&j->span) + v, n);
}

/* The same where it lies, or in `room`. */
SC_REF_INLINE const float *record_x_at(float *restrict room, const struct job *j, uint32_t i,
    uint32_t v, uint32_t n)
{
    const uint8_t *x = ring_record(j->ring, j->span.row, i) + j->at.x;
    if (j->span.p->dtype == SC_DTYPE_F32)
        return (const float *)(const void *)x + ssm_rows_at(&j->span) + v;
    record_x(room, j, i, v, n);
    return room;
}

/* What the token leaves in the ring. */
static void record_write(const struct job *j, const struct ssm_token *k)
{
    const sc_k_ssm_params *p = j->span.p;
    uint64_t elem = sc_kernel_elem_bytes(p->dtype), r = j->span.row, n = p->state_dim;
    uint64_t wide = (uint64_t)p->heads * p->head_dim, group = (uint64_t)p->groups * n;
    uint64_t x_at = ssm_rows_at(&j->span), b_at = ssm_group_at(&j->span);
    uint8_t *record = ring_record(j->ring, j->span.row, j->records);
    const uint8_t *x = (const uint8_t *)sc_host_ptr(p->x)
        + (r * (uint64_t)sc_kernel_stride(p->x_stride, wide) + x_at) * elem;
    const uint8_t *b = (const uint8_t *)sc_host_ptr(p->b)
        + (r * (uint64_t)sc_kernel_stride(p->b_stride, group) + b_at) * elem;
    memcpy(record + j->at.x + x_at * elem, x, j->span.rows * elem);
    if (j->span.p0 > 0) return;
    memcpy(record + j->at.dt + (uint64_t)j->span.head * 4, &k->dt, 4);
    memcpy(record + j->at.decay + (uint64_t)j->span.head * 4, &k->alpha, 4);
    if (j->span.head % (p->heads / p->groups) == 0)
        memcpy(record + j->at.b + b_at * elem, b, n * elem);
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
        size_t elem = sc_kernel_elem_bytes(p->dtype);
        struct ssm_base e = {.from = wide_at(&p->state, j->source, at), .rows = j->span.rows,
            .records = j->records, .next_pitch = j->ring->record_bytes,
            .next = ring_record(j->ring, j->span.row, 0) + j->at.x
                + (ssm_rows_at(&j->span) + j->span.rows) * elem,
            .next_bytes = j->span.rows * elem};
        base_read(y, e, n, p->state.dtype, c, decay);
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

/* Heads that share B and C, and what the token has of them. */
struct head_group {
    uint32_t count;
    float dt[SSM_HEADS], alpha[SSM_HEADS];
    float decay[SSM_HEADS]; /* APPEND: of the base */
    float own;              /* APPEND: B . C */
    float part[SC_REPLAY_RECORDS_MAX][SSM_HEADS]; /* APPEND: of x of a record */
};

/* dt and decay of record i, of the heads from the span's on. */
static const float *record_gates(const struct job *j, uint32_t i, uint64_t offset)
{
    const uint8_t *record = ring_record(j->ring, j->span.row, i);
    return (const float *)(const void *)(record + offset) + j->span.head;
}

/* `k`: B and C of the token. */
static void append_parts(struct head_group *h, const struct job *j, const struct ssm_token *k)
{
    uint32_t n = j->span.p->state_dim;
    float b[SC_K_DIM_MAX];
    memcpy(h->decay, h->alpha, h->count * sizeof(float));
    h->own = ref_dot(k->b, k->c, n);
    for (uint32_t i = j->records; i-- > 0;) {
        const float *dt = record_gates(j, i, j->at.dt), *alpha = record_gates(j, i, j->at.decay);
        record_group(b, j, i);
        float dot = ref_dot(b, k->c, n);
        for (uint32_t l = 0; l < h->count; l++) {
            h->part[i][l] = h->decay[l] * dt[l] * dot;
            h->decay[l] = h->decay[l] * alpha[l];
        }
    }
}

/* y += sum_i part_i x_i: 32 rows from v on, in registers from the first record to the last. */
static void append_records32(float *restrict y, const struct job *j, const struct head_group *h,
    uint32_t at, uint32_t v)
{
    float room[32];
    ref_v8 sum[4];
    memcpy(sum, y + v, sizeof sum);
    for (uint32_t i = 0; i < j->records; i++) {
        const float *x = record_x_at(room, j, i, v, 32);
        for (uint32_t l = 0; l < 4; l++)
            sum[l] = sum[l] + h->part[i][at] * *(const ref_v8 *)(x + 8 * l);
    }
    memcpy(y + v, sum, sizeof sum);
}

static void append_records(float *restrict y, const struct job *j, const struct head_group *h,
    uint32_t at)
{
    float room[32];
    uint32_t v = 0, rest = j->span.rows % 32;
    for (; v + 32 <= j->span.rows; v += 32) append_records32(y, j, h, at, v);
    for (uint32_t i = 0; rest > 0 && i < j->records; i++) {
        const float *x = record_x_at(room, j, i, v, rest);
        for (uint32_t l = 0; l < rest; l++) y[v + l] = y[v + l] + h->part[i][at] * x[l];
    }
}

/* `at`: the span's head among `h`. */
static void append_span(const struct job *j, const struct head_group *h, uint32_t at,
    struct ssm_token *k)
{
    float own = k->dt * h->own;
    read_base(k->y, j, k->c, h->decay[at]);
    append_records(k->y, j, h, at);
    for (uint32_t v = 0; v < j->span.rows; v++) {
        k->y[v] = k->y[v] + own * k->x[v];
        if (j->span.p->d != 0) k->y[v] += k->skip * k->x[v];
    }
    record_write(j, k);
}

#ifdef __AVX2__
/* flush_span() for a state_dim that has registers. */
static void flush_streamed(const struct job *j, int32_t dest, struct ssm_past *past,
    struct ssm_token *token)
{
    const sc_k_ssm_params *p = j->span.p;
    struct ssm_ends e = {.from = wide_at(&p->state, j->source, ssm_part_at(&j->span)),
        .to = wide_at(&p->state, dest, ssm_part_at(&j->span))};
    for (uint32_t i = 0; i < past->count; i++) {
        past->alpha[i] = record_gates(j, i, j->at.decay)[0];
        past->dt[i] = record_gates(j, i, j->at.dt)[0];
        record_x(past->x + (size_t)i * j->span.rows, j, i, 0, j->span.rows);
    }
    past_flush(&e, past, j->span.rows, p->state_dim, p->state.dtype, token);
    for (uint32_t v = 0; token != NULL && p->d != 0 && v < j->span.rows; v++)
        token->y[v] += token->skip * token->x[v];
}

/* B of the records. */
static void flush_group(struct ssm_past *past, const struct job *j)
{
    uint32_t n = j->span.p->state_dim;
    for (past->count = 0; past->count < j->records; past->count++) {
        float *b = past->b + (size_t)past->count * n;
        record_group(b, j, past->count);
        past->b_least[past->count] = ref_least_size(b, n);
    }
}
#endif

/* `token`: the row's own, which comes after the records, or NULL. Not inlined: its block would lie
 * beside that of whoever needs none. */
static __attribute__((noinline)) void flush_span(const struct job *j, int32_t dest,
    struct ssm_token *token)
{
    const sc_k_ssm_params *p = j->span.p;
    float block[SSM_BLOCK_ELEMS];
    struct ssm_token k = {.skip = 0.0f};
    uint32_t n = j->span.rows * p->state_dim;
    if (j->source == 0)
        memset(block, 0, n * sizeof(float));
    else
        ref_load(block, ref_slot(&p->state, j->source), p->state.dtype, ssm_part_at(&j->span), n);
    for (uint32_t i = 0; i < j->records; i++) {
        k.dt = record_gates(j, i, j->at.dt)[0], k.alpha = record_gates(j, i, j->at.decay)[0];
        record_group(k.b, j, i);
        record_x(k.x, j, i, 0, j->span.rows);
        ssm_step(block, j->span.rows, p->state_dim, &k, false, p->state.dtype);
    }
    if (token != NULL)
        ssm_step(block, j->span.rows, p->state_dim, token, p->d != 0, p->state.dtype);
    if (dest > 0)
        ref_store(block, ref_slot(&p->state, dest), p->state.dtype, ssm_part_at(&j->span), n);
}

/* A row of the call on its way through its heads. */
struct work {
    struct job j;
    int32_t mode, dest;
    struct head_group h;
    struct ssm_token k;    /* the row's own */
    struct ssm_past *past; /* NULL: no flush_streamed() */
};

static void run_flush(struct work *w)
{
    struct ssm_token *token = w->mode == SC_REPLAY_FLUSH ? &w->k : NULL;
#ifdef __AVX2__
    if (w->past != NULL) {
        flush_streamed(&w->j, w->dest, w->past, token);
        return;
    }
#endif
    flush_span(&w->j, w->dest, token);
}

/* Head `at` of w->h. */
static void run_head(struct work *w, uint32_t at)
{
    struct ssm_span *s = &w->j.span;
    for (s->p0 = 0; s->p0 < s->p->head_dim; s->p0 += s->rows) {
        s->rows = ssm_span_rows(s);
        if (w->mode != SC_REPLAY_FOLD) {
            w->k.dt = w->h.dt[at], w->k.alpha = w->h.alpha[at];
            ssm_token_rows(&w->k, s, s->row);
        }
        if (w->mode == SC_REPLAY_APPEND)
            append_span(&w->j, &w->h, at, &w->k);
        else
            run_flush(w);
        if (w->mode != SC_REPLAY_FOLD) ssm_token_store(&w->k, s, s->row);
    }
}

static void run_row(const sc_k_replay_ssm_params *c, uint32_t r, int32_t mode,
    struct ssm_past *past)
{
    const sc_k_ssm_params *p = &c->step;
    struct work w;
    struct ssm_span *s = &w.j.span;
    w.j = (struct job){.span = {.p = p, .row = r}, .ring = &c->ring, .at = ring_ssm_at(p),
        .records = ring_records(&c->ring, r),
        .source = ((const int32_t *)sc_host_ptr(p->source))[r]};
    w.past = past, w.mode = mode, w.dest = ((const int32_t *)sc_host_ptr(p->dest))[r];
    while (s->head < p->heads) {
        w.h.count = ssm_head_count(p, s->head);
        if (mode != SC_REPLAY_FOLD) {
            ssm_token_group(&w.k, s, r);
            ssm_gates(w.h.dt, w.h.alpha, p, r, s->head, w.h.count);
        }
        if (mode == SC_REPLAY_APPEND) append_parts(&w.h, &w.j, &w.k);
#ifdef __AVX2__
        if (past != NULL) flush_group(past, &w.j);
#endif
        for (uint32_t i = 0; i < w.h.count; i++, s->head++) run_head(&w, i);
    }
}

#ifdef __AVX2__
/* Not inlined: an append does without so large a frame. */
static __attribute__((noinline)) void run_streamed(const sc_k_replay_ssm_params *c, uint32_t r,
    int32_t mode)
{
    struct ssm_past past;
    run_row(c, r, mode, &past);
}
#endif

static void run_mode(const sc_k_replay_ssm_params *c, uint32_t r, int32_t mode)
{
#ifdef __AVX2__
    if (mode != SC_REPLAY_APPEND && ssm_streams(c->step.state_dim)) {
        run_streamed(c, r, mode);
        return;
    }
#endif
    run_row(c, r, mode, NULL);
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
            run_mode(c, r, mode);
    }
    return SC_OK;
}

sc_status SC_HOST_FN(sc_k_replay_ssm_fold)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_replay_ssm_params *c = params;
    const int32_t *source = sc_host_ptr(c->step.source);
    for (uint32_t r = 0; r < c->step.row_count; r++)
        if (ring_mode(&c->ring, source, r) == SC_REPLAY_FOLD) run_mode(c, r, SC_REPLAY_FOLD);
    return SC_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "rerun_check.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "bench_common.h"
#include "dense.h"
#include "ref64.h"

/* Tolerances on RMS error / RMS value over one request, against float64. A bf16 state loses 2^-9
 * with every chunk or token. */
static const double TOLERANCE_F32 = 1e-5, TOLERANCE_BF16 = 3e-2;

struct checking {
    const struct check_options *o;
    struct witness **sample;
    uint32_t count, longest;
    atomic_uint next; /* relaxed: it only deals out work; results are joined through `lock` */
    pthread_mutex_t lock;
    struct check_result *result;
    struct bench_progress progress;
};

/* Where rings are flushed. A decoded token is flushed if it is the first of a stretch of the
 * history, or after one whose end is to be saved; if its own end is; and when the ring is full.
 * Before a prefill the records are folded into the state. (So sc_lease_history says; worked out
 * here, and not asked of whoever served, so that a flush which they lose is seen.) */
struct phase {
    bool open;       /* the token before is of the same stretch, and its end is not saved */
    int32_t records; /* in the ring now */
};

/* One thread's memory for reruns. */
struct bed {
    const struct check_options *o;
    sc_pool *pool;
    sc_slot slots[2]; /* the working slot, and one for a save */
    sc_pool *rings;   /* NULL: the model has none */
    sc_slot ring;
    bool with_rings;  /* in this rerun */
    struct phase phase;
    struct paged_kv kv;
    struct served_space *spaces;
    int32_t *pages;
    float *hidden, *logits; /* of all tokens; of one */
    unsigned char *state, *snapshot;
    bool has_snapshot; /* the rerun passed resume_len */
    uint64_t bytes;
    struct sc_prng prng;
};

static void bed_open(struct bed *bed, const struct check_options *o, uint32_t longest)
{
    memset(bed, 0, sizeof *bed);
    bed->o = o;
    sc_pool_options pool = SC_POOL_OPTIONS_INIT;
    pool.schema = o->model->schema;
    pool.layout = o->layout;
    pool.slot_count = 2;
    pool.backend = o->model->options.backend;
    bench_must(sc_pool_create(&pool, &bed->pool), "sc_pool_create");
    bench_must(sc_pool_alloc(bed->pool, 2, SC_OWNER_WORKING, bed->slots), "sc_pool_alloc");
    if (o->model->options.ring > 0) {
        bed->rings = served_rings_create(o->model, o->layout, 1);
        bench_must(sc_pool_alloc(bed->rings, 1, SC_OWNER_WORKING, &bed->ring), "sc_pool_alloc");
    }
    uint32_t pages = (longest + o->page - 1) / o->page;
    paged_kv_init(&bed->kv, o->model, o->page, pages);
    bed->spaces = served_spaces_create();
    bed->pages = bench_alloc(pages, sizeof *bed->pages);
    for (uint32_t i = 0; i < pages; i++)
        bed->pages[i] = (int32_t)(pages - 1 - i); /* not where they were */
    bed->bytes = full_bytes(bed->pool, bed->rings);
    bed->state = bench_alloc(bed->bytes, 1);
    bed->snapshot = bench_alloc(bed->bytes, 1);
    bed->hidden = bench_alloc((size_t)longest * o->model->options.hidden, sizeof *bed->hidden);
    bed->logits = bench_alloc(o->model->options.vocab, sizeof *bed->logits);
}

static void bed_close(struct bed *bed)
{
    bench_must(sc_pool_free(bed->pool, bed->slots, 2), "sc_pool_free");
    bench_must(sc_pool_destroy(bed->pool), "sc_pool_destroy");
    if (bed->rings) {
        bench_must(sc_pool_free(bed->rings, &bed->ring, 1), "sc_pool_free");
        bench_must(sc_pool_destroy(bed->rings), "sc_pool_destroy");
    }
    paged_kv_deinit(&bed->kv);
    served_spaces_destroy(bed->spaces, bed->o->model->options.backend);
    void *owned[] = {bed->pages, bed->state, bed->snapshot, bed->hidden, bed->logits};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

/* --------------------------------------------------------------------------------------- reruns */

static struct served_ring_row ring_row(struct bed *bed, uint32_t to, bool decode)
{
    uint32_t save = bed->o->model->options.ring_save;
    bool saved = save > 0 && to % save == 0;
    struct served_ring_row ring = {.slot = (int32_t)bed->ring.id};
    int32_t planned = !decode ? SC_REPLAY_FOLD
        : bed->phase.open && !saved ? SC_REPLAY_APPEND : SC_REPLAY_FLUSH;
    served_ring_step(bed->o->model, bed->rings, &ring, &planned, 1);
    bed->phase.open = decode && !saved;
    bed->phase.records = ring.mode == SC_REPLAY_APPEND ? ring.records + 1 : 0;
    return ring;
}

/* A ring without records. */
static void reset_ring(struct bed *bed)
{
    bed->phase = (struct phase){.open = false};
    if (!bed->with_rings)
        return;
    bench_must(sc_pool_free(bed->rings, &bed->ring, 1), "sc_pool_free");
    bench_must(sc_pool_alloc(bed->rings, 1, SC_OWNER_WORKING, &bed->ring), "sc_pool_alloc");
}

static void read_state(const struct bed *bed, int slot, int32_t records, unsigned char *out)
{
    const struct state_place place = {bed->pool, bed->rings, (int32_t)bed->slots[slot].id,
        {.slot = (int32_t)bed->ring.id, .records = records}};
    full_read(&place, out);
}

/* Tokens [from, to) in one row; a save at `save_at` if that lies strictly inside. */
static void rerun_row(struct bed *bed, const struct witness *w, uint32_t from, uint32_t to,
    bool decode)
{
    struct served_save save = {w->resume_len, (int32_t)bed->slots[1].id};
    bool saves = !decode && from < w->resume_len && w->resume_len < to;
    struct served_row row = {.tokens = w->tokens + from, .from = from, .to = to, .decode = decode,
        .source = from == 0 ? 0 : (int32_t)bed->slots[0].id, .dest = (int32_t)bed->slots[0].id,
        .pages = bed->pages, .save_count = saves,
        .hidden_out = bed->hidden + (size_t)from * bed->o->model->options.hidden};
    if (bed->with_rings)
        row.ring = ring_row(bed, to, decode);
    struct served_forward forward = {.rows = &row, .row_count = 1, .saves = &save,
        .pool = bed->pool, .rings = bed->with_rings ? bed->rings : NULL, .kv = &bed->kv,
        .threads = 1, .spaces = bed->spaces};
    served_run(bed->o->model, &forward);
    if (!saves && to != w->resume_len)
        return;
    read_state(bed, saves, saves ? 0 : bed->phase.records, bed->snapshot);
    bed->has_snapshot = true;
}

static void rerun_stretch(struct bed *bed, const struct witness *w, uint32_t from,
    const sc_history *stretch, bool cut)
{
    uint32_t chunk = bed->o->model->options.chunk;
    bed->phase.open = false;
    if (stretch->form == SC_FORM_KIND_DECODE) {
        for (; from < stretch->end; from++)
            rerun_row(bed, w, from, from + 1, true);
        return;
    }
    while (from < stretch->end) {
        uint32_t to = stretch->end;
        if (cut) {
            uint32_t next = (from / chunk + 1 + (uint32_t)sc_prng_below(&bed->prng, 6)) * chunk;
            to = next < to ? next : to;
            if (from < w->resume_len && w->resume_len < stretch->end)
                to = w->resume_len; /* one uncut prefill up to the snapshot, then cuts */
        }
        rerun_row(bed, w, from, to, false);
        from = to;
    }
}

/* Can the history be run again? It must end where the request ended, and a prefill stretch may be
 * left only on the grid. */
static bool history_is_sound(const struct bed *bed, const struct witness *w)
{
    uint32_t from = 0;
    for (uint32_t i = 0; i < w->history_count; i++) {
        const sc_history *stretch = &w->history[i];
        bool inside = from < w->resume_len && w->resume_len < stretch->end;
        if (stretch->end <= from || (inside && stretch->form == SC_FORM_KIND_PREFILL &&
            w->resume_len % bed->o->model->options.chunk != 0))
            return false;
        from = stretch->end;
    }
    return from == w->len;
}

static void rerun(struct bed *bed, const struct witness *w, bool cut)
{
    bed->has_snapshot = false;
    reset_ring(bed);
    for (uint32_t i = 0, from = 0; i < w->history_count; from = w->history[i++].end)
        rerun_stretch(bed, w, from, &w->history[i], cut);
    read_state(bed, 0, bed->phase.records, bed->state);
}

/* ------------------------------------------------------------------------------------ comparing */

static uint64_t bits_that_differ(const void *left, const void *right, size_t bytes)
{
    const unsigned char *a = left, *b = right;
    uint64_t bits = 0;
    for (size_t i = 0; i < bytes; i++)
        bits += (uint64_t)__builtin_popcount(a[i] ^ b[i]);
    return bits;
}

static uint64_t output_bits(const struct bed *bed, const struct witness *w)
{
    const struct served_options *o = &bed->o->model->options;
    size_t row = o->hidden * sizeof *bed->hidden;
    uint64_t bits = bits_that_differ(bed->hidden + (size_t)w->resume_len * o->hidden, w->hidden,
        (w->len - w->resume_len) * row);
    for (uint32_t i = 0; i < w->logit_count; i++) {
        const float *hidden = bed->hidden + (size_t)(w->logit_at[i] - 1) * o->hidden;
        dense_apply(hidden, bed->o->model->head, bed->logits, 1, o->hidden, o->vocab);
        bits += bits_that_differ(bed->logits, w->logits + (size_t)i * o->vocab,
            o->vocab * sizeof *bed->logits);
    }
    return bits;
}

static uint64_t snapshot_bits(const struct bed *bed, const struct witness *w)
{
    if (!w->snapshot)
        return 0;
    if (!bed->has_snapshot)
        return bed->bytes * 8; /* never passed: all of it is unproved */
    return bits_that_differ(bed->snapshot, w->snapshot, bed->bytes);
}

/* Tokens of the text that the rerun would not have sampled. */
static uint64_t text_tokens(const struct bed *bed, const struct witness *w, uint64_t *checked)
{
    const struct served_options *o = &bed->o->model->options;
    uint64_t tokens = 0;
    for (uint32_t at = w->known; at < w->len; at++) {
        const float *hidden = bed->hidden + (size_t)(at - 1) * o->hidden;
        dense_apply(hidden, bed->o->model->head, bed->logits, 1, o->hidden, o->vocab);
        tokens += sampler_next(&bed->o->sampler, w->request, at, bed->logits) != w->tokens[at];
        (*checked)++;
    }
    return tokens;
}

static uint64_t kv_rows(const struct bed *bed, const struct witness *w)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < w->len; i++)
        rows += kv_token_hash(bed->o->model, &bed->kv, bed->pages, i) != w->kv_hash[i];
    return rows;
}

static void rerun_both(struct bed *bed, const struct witness *w, struct check_result *r)
{
    bed->with_rings = bed->rings != NULL;
    rerun(bed, w, false);
    r->output_bits += output_bits(bed, w);
    r->state_bits += bits_that_differ(bed->state, w->state, bed->bytes);
    r->snapshot_bits += snapshot_bits(bed, w);
    r->kv_rows += kv_rows(bed, w);
    r->text_tokens += text_tokens(bed, w, &r->text_checked);
    rerun(bed, w, true);
    r->cut_bits += output_bits(bed, w) + snapshot_bits(bed, w) +
        bits_that_differ(bed->state, w->state, bed->bytes);
    r->output_values += (uint64_t)(w->len - w->resume_len) * bed->o->model->options.hidden +
        (uint64_t)w->logit_count * bed->o->model->options.vocab;
    r->state_bytes += bed->bytes * (w->snapshot ? 2 : 1);
}

/* ------------------------------------------------------------------------- within a tolerance */

struct error_sum {
    double error, value;
};

static void sum_up(struct error_sum *sum, double is, double should)
{
    sum->error += (is - should) * (is - should);
    sum->value += should * should;
}

static double ratio(struct error_sum sum)
{
    return sum.value > 0 ? sqrt(sum.error / sum.value) : 0;
}

/* The state that the request ended with, the records of a ring folded into it: in bed->state. */
static void whole_state(struct bed *bed, const struct witness *w)
{
    int32_t records = 0;
    memcpy(bed->state, w->state, bed->bytes);
    if (!bed->rings)
        return;
    memcpy(&records, w->state + bed->bytes - sizeof records, sizeof records);
    if (records != bed->phase.records || records == 0)
        return; /* bits differ, and were counted */
    served_ring_fold(bed->o->model, bed->pool, bed->rings, (int32_t)bed->slots[0].id,
        (struct served_ring_row){.slot = (int32_t)bed->ring.id, .records = records});
    read_state(bed, 0, 0, bed->state);
}

/* `bed->state` against the reference's. */
static double state_error(const struct bed *bed, const struct ref64 *ref)
{
    struct error_sum sum = {0, 0};
    sc_pool_info info;
    bench_must(sc_pool_info_get(bed->pool, &info), "sc_pool_info_get");
    const unsigned char *at = bed->state;
    for (uint32_t i = 0; i < info.part_count; i++) {
        sc_layer_view view;
        sc_part part;
        bench_must(sc_pool_part_view(bed->pool, i, &view, &part), "sc_pool_part_view");
        const double *should = ref64_state(ref, part.layer);
        uint32_t size = sc_dtype_bytes(part.dtype);
        for (uint64_t j = 0; part.kind == SC_PART_RECURRENT && j < view.bytes / size; j++) {
            uint32_t raw = 0;
            float is;
            memcpy((unsigned char *)&raw + (4 - size), at + j * size, size); /* bf16: upper half */
            memcpy(&is, &raw, sizeof is);
            sum_up(&sum, (double)is, should[j]);
        }
        at += view.bytes;
    }
    return ratio(sum);
}

static void against_float64(struct bed *bed, const struct witness *w, struct check_result *r)
{
    size_t width = bed->o->model->options.hidden;
    struct ref64 *ref = ref64_create(bed->o->model, w->len);
    double *hidden = bench_alloc(width, sizeof *hidden);
    struct error_sum sum = {0, 0};
    for (uint32_t t = 0; t < w->len; t++) {
        ref64_step(ref, w->tokens[t], hidden);
        for (size_t i = 0; t >= w->resume_len && i < width; i++)
            sum_up(&sum, (double)w->hidden[(t - w->resume_len) * width + i], hidden[i]);
    }
    whole_state(bed, w);
    double output = ratio(sum), state = state_error(bed, ref);
    /* Written so that a NaN is the worst of all. */
    r->worst_output = output <= r->worst_output ? r->worst_output : output;
    r->worst_state = state <= r->worst_state ? r->worst_state : state;
    free(hidden);
    ref64_destroy(ref);
}

/* Outputs against a rerun that has no rings. */
static void against_no_rings(struct bed *bed, const struct witness *w, struct check_result *r)
{
    size_t width = bed->o->model->options.hidden, count = (w->len - w->resume_len) * width;
    struct error_sum sum = {0, 0};
    if (!bed->rings)
        return;
    bed->with_rings = false;
    rerun(bed, w, false);
    for (size_t i = 0; i < count; i++)
        sum_up(&sum, (double)w->hidden[i], (double)bed->hidden[w->resume_len * width + i]);
    double error = ratio(sum);
    r->worst_ring = error <= r->worst_ring ? r->worst_ring : error;
}

/* -------------------------------------------------------------------------------------- threads */

static void add_up(struct check_result *sum, const struct check_result *r)
{
    sum->checked += r->checked;
    for (int at = 0; at < AT_COUNT; at++)
        sum->by_at[at] += r->by_at[at];
    for (int bit = 0; bit < WITNESS_FLAG_COUNT; bit++)
        sum->by_flag[bit] += r->by_flag[bit];
    sum->text_checked += r->text_checked;
    sum->text_tokens += r->text_tokens;
    sum->with_decode_before += r->with_decode_before;
    sum->grid_snapshots += r->grid_snapshots;
    sum->output_values += r->output_values;
    sum->state_bytes += r->state_bytes;
    sum->output_bits += r->output_bits;
    sum->state_bits += r->state_bits;
    sum->snapshot_bits += r->snapshot_bits;
    sum->cut_bits += r->cut_bits;
    sum->kv_rows += r->kv_rows;
    sum->bad_histories += r->bad_histories;
    sum->worst_ring = r->worst_ring <= sum->worst_ring ? sum->worst_ring : r->worst_ring;
    sum->worst_output = r->worst_output <= sum->worst_output ? sum->worst_output
                                                             : r->worst_output;
    sum->worst_state = r->worst_state <= sum->worst_state ? sum->worst_state : r->worst_state;
}

/* Is resume_len inside or at the end of a prefill stretch, on the grid: a snapshot that a prefill
 * made? */
static bool is_grid_snapshot(const struct bed *bed, const struct witness *w)
{
    if (w->resume_len == 0 || w->resume_len % bed->o->model->options.chunk != 0)
        return false;
    for (uint32_t i = 0; i < w->history_count; i++)
        if (w->resume_len <= w->history[i].end)
            return w->history[i].form == SC_FORM_KIND_PREFILL;
    return false;
}

static void check_one(struct bed *bed, const struct witness *w, struct check_result *r)
{
    r->checked++;
    r->by_at[w->at]++;
    for (int bit = 0; bit < WITNESS_FLAG_COUNT; bit++)
        r->by_flag[bit] += w->flags >> bit & 1;
    if (!history_is_sound(bed, w)) {
        r->bad_histories++;
        return;
    }
    for (uint32_t i = 0, from = 0; i < w->history_count && from < w->resume_len; i++) {
        if (w->history[i].form == SC_FORM_KIND_DECODE) {
            r->with_decode_before++;
            break;
        }
        from = w->history[i].end;
    }
    r->grid_snapshots += is_grid_snapshot(bed, w);
    sc_prng_seed(&bed->prng, sc_mix64(bed->o->seed + w->request));
    rerun_both(bed, w, r);
    against_float64(bed, w, r);
    against_no_rings(bed, w, r);
}

static void *check_thread(void *argument)
{
    struct checking *checking = argument;
    struct bed bed;
    bed_open(&bed, checking->o, checking->longest);
    for (;;) {
        uint32_t i = atomic_fetch_add_explicit(&checking->next, 1, memory_order_relaxed);
        if (i >= checking->count)
            break;
        struct check_result one = {0};
        check_one(&bed, checking->sample[i], &one);
        pthread_mutex_lock(&checking->lock);
        add_up(checking->result, &one);
        bench_progress_show(&checking->progress, checking->result->checked, checking->count);
        pthread_mutex_unlock(&checking->lock);
    }
    bed_close(&bed);
    return NULL;
}

void check_run(const struct check_options *options, struct witness **sample, uint32_t count,
    struct check_result *result)
{
    enum { THREADS_MAX = 16 };
    pthread_t threads[THREADS_MAX];
    struct checking checking = {.o = options, .sample = sample, .count = count,
        .result = result, .lock = PTHREAD_MUTEX_INITIALIZER};
    memset(result, 0, sizeof *result);
    result->tolerance = options->model->options.state_dtype == SC_DTYPE_F32 ? TOLERANCE_F32
                                                                            : TOLERANCE_BF16;
    for (uint32_t i = 0; i < count; i++)
        checking.longest = sample[i]->len > checking.longest ? sample[i]->len : checking.longest;
    if (count == 0)
        return;
    bench_progress_start(&checking.progress, "check");
    uint32_t used = options->threads < THREADS_MAX ? options->threads : THREADS_MAX;
    for (uint32_t i = 1; i < used; i++)
        if (pthread_create(&threads[i], NULL, check_thread, &checking))
            bench_fail(BENCH_NO_MEMORY, "cannot start a thread");
    check_thread(&checking);
    for (uint32_t i = 1; i < used; i++)
        pthread_join(threads[i], NULL);
    bench_progress_end(&checking.progress);
}

uint64_t check_bits(const struct check_result *r)
{
    return r->output_bits + r->state_bits + r->snapshot_bits + r->cut_bits;
}

bool check_passed(const struct check_result *r)
{
    return check_bits(r) == 0 && r->kv_rows == 0 && r->text_tokens == 0 &&
        r->bad_histories == 0 && r->worst_ring <= r->tolerance &&
        r->worst_output <= r->tolerance && r->worst_state <= r->tolerance;
}

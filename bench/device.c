/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/prng.h"
#include "bench_common.h"
#include "witness.h"

/* Tokens that are computed as one row of the model: all of a prefill row, the token of a decode
 * row, one path through drafts. */
struct path {
    int32_t *tokens;
    uint32_t *node;     /* [count] 0: the certain token, d + 1: draft d; decode form only */
    uint32_t count;
    float *hidden, *logits;
    struct served_tape tape;
    uint32_t served;    /* its row of the model */
};

/* A row while it is run. */
struct work {
    struct device_row *row;
    uint32_t index, end;
    bool decode;
    const int32_t *parents; /* [draft_count] as in the block: 0 is the certain token */
    int32_t *drafts;        /* [draft_count] tokens */
    uint32_t draft_count, path_count;
    struct path *paths;
    uint32_t save_first, save_count;
    int32_t source, dest;
    struct served_ring_row ring;
};

struct run {
    struct device *device;
    struct device_step *step;
    struct work *work;
    struct served_row *served;
    uint32_t served_count;
    struct served_save *saves;
    struct served_forward forward;
};

static const struct served_model *model_of(const struct run *run)
{
    return run->device->o.sampler.model;
}

/* --------------------------------------------------------------------------------------- drafts */

static int32_t guess_at(const struct run *run, const struct sequence *s, uint32_t position)
{
    if (position < s->known)
        return s->text[position];
    if (!model_of(run)) /* the text is noise that anybody can know */
        return sampler_next(&run->device->o.sampler, s->request, position, NULL);
    return s->guess && position < s->guess_len ? s->guess[position] : 0;
}

/* Right as long as the coin says so; of drafts of one token at most one is right. */
static void propose(const struct run *run, struct work *w)
{
    const struct sequence *s = w->row->sequence;
    const struct sampler *sampler = &run->device->o.sampler;
    bool *right = bench_alloc(w->draft_count, sizeof *right);
    uint32_t *depth = bench_alloc(w->draft_count + 1, sizeof *depth);
    w->drafts = bench_alloc(w->draft_count, sizeof *w->drafts);
    for (uint32_t d = 0; d < w->draft_count; d++) {
        uint32_t parent = (uint32_t)w->parents[d];
        depth[d + 1] = depth[parent] + 1;
        uint32_t position = w->row->from + depth[d + 1];
        int32_t guess = guess_at(run, s, position);
        uint64_t coin = sc_mix64(sc_mix64(sampler->seed + 0xd4af7 + s->request) ^
            ((uint64_t)position << 32 | d));
        bool taken = false;
        for (uint32_t e = 0; e < d; e++)
            taken |= right[e] && w->parents[e] == w->parents[d];
        right[d] = (parent == 0 || right[parent - 1]) && !taken &&
            (double)(coin >> 11) * 0x1p-53 < run->device->o.draft_accept;
        w->drafts[d] = right[d] ? guess
            : (int32_t)(((uint32_t)guess + 1 + d) % sampler->vocab);
    }
    free(right);
    free(depth);
}

static bool is_leaf(const struct work *w, uint32_t node)
{
    for (uint32_t d = node; d < w->draft_count; d++)
        if ((uint32_t)w->parents[d] == node)
            return false;
    return true;
}

static void decode_path(const struct work *w, uint32_t leaf, struct path *path)
{
    for (uint32_t node = leaf; node > 0; node = (uint32_t)w->parents[node - 1])
        path->count++;
    path->count++;
    path->tokens = bench_alloc(path->count, sizeof *path->tokens);
    path->node = bench_alloc(path->count, sizeof *path->node);
    uint32_t at = path->count;
    for (uint32_t node = leaf; at-- > 0; node = node ? (uint32_t)w->parents[node - 1] : 0) {
        path->node[at] = node;
        path->tokens[at] = node ? w->drafts[node - 1] : w->row->sequence->text[w->row->from];
    }
}

/* ------------------------------------------------------------------------------------ beginning */

/* What the plan says about row `index`, and where it really begins. */
static struct work read_plan(const struct run *run, uint32_t index)
{
    const sc_batch *b = &run->step->batch;
    const struct device *device = run->device;
    const int32_t *block = b->block;
    struct device_row *row = &run->step->rows[index];
    struct work w = {.row = row, .index = index, .decode = block[b->at_decode + index] == 1,
        .end = (uint32_t)block[b->at_end + index], .source = block[b->at_source + index],
        .dest = block[b->at_dest + index],
        .draft_count = (uint32_t)block[b->at_draft_count + index],
        .parents = block + b->at_parent + (size_t)index * b->draft_max};
    const int32_t *first = block + b->at_query_start_loc + index;
    if (w.decode && first[1] - first[0] != 1 + (int32_t)w.draft_count)
        bench_fail(BENCH_CHECK_FAILED, "a decode row of %d tokens with %u drafts",
            first[1] - first[0], w.draft_count);
    row->from = (uint32_t)block[b->at_position + index];
    if (block[b->at_accepted + index] >= 0) {
        uint64_t plan = device->run - (uint64_t)block[b->at_accepted_back + index];
        row->from = device->ends[plan % device->o.depth * device->o.row_max +
            (uint32_t)block[b->at_accepted + index]];
    }
    if (row->from != row->sequence->len)
        bench_fail(BENCH_CHECK_FAILED, "a row of the plan begins at %u, its request is at %u",
            row->from, row->sequence->len);
    return w;
}

static void take_saves(struct run *run, struct work *w, uint32_t *count)
{
    const sc_batch *b = &run->step->batch;
    w->save_first = *count;
    for (uint32_t i = 0; i < b->save_count; i++)
        if (b->block[b->at_save_row + i] == (int32_t)w->index)
            run->saves[(*count)++] =
                (struct served_save){(uint32_t)b->block[b->at_save_position + i],
                    b->block[b->at_save_slot + i]};
    w->save_count = *count - w->save_first;
}

/* The row's paths: leaves of the tree in order; one for a row without drafts. */
static void make_paths(const struct run *run, struct work *w)
{
    const struct sequence *s = w->row->sequence;
    w->paths = bench_alloc(w->draft_count + 1, sizeof *w->paths);
    if (!w->decode) {
        struct path *path = &w->paths[w->path_count++];
        path->count = w->end - w->row->from;
        path->tokens = bench_alloc(path->count, sizeof *path->tokens);
        memcpy(path->tokens, s->text + w->row->from, path->count * sizeof *path->tokens);
        return;
    }
    propose(run, w);
    for (uint32_t node = 0; node <= w->draft_count; node++)
        if (is_leaf(w, node))
            decode_path(w, node, &w->paths[w->path_count++]);
}

/* Describes a path to the model. Rows that do not know their end, or save more than that, are
 * verified and folded; a plain decode row is computed in place. */
static void serve_path(struct run *run, struct work *w, struct path *path)
{
    const struct served_model *model = model_of(run);
    const struct sequence *s = w->row->sequence;
    bool samples = w->row->from + path->count >= s->prompt_len;
    bool several = w->save_count > 1 && !model->options.mamba; /* which has no fold */
    bool verify = w->decode && (w->draft_count > 0 || several);
    uint32_t logits_count = samples ? w->decode ? path->count : 1 : 0;
    size_t hidden = model->options.hidden, vocab = model->options.vocab;
    if (w->row->wants_hidden)
        path->hidden = bench_alloc(path->count * hidden, sizeof *path->hidden);
    if (logits_count > 0)
        path->logits = bench_alloc(logits_count * vocab, sizeof *path->logits);
    if (verify)
        served_tape_init(&path->tape, model, path->count);
    path->served = run->served_count++;
    run->served[path->served] = (struct served_row){.tokens = path->tokens, .from = w->row->from,
        .to = w->row->from + path->count, .decode = w->decode && !verify, .source = w->source,
        .dest = w->dest, .pages = w->row->pages, .save_first = w->save_first,
        .save_count = w->save_count, .tape = verify ? &path->tape : NULL,
        .ring = w->ring, .hidden_out = path->hidden, .logits_out = path->logits,
        .logits_count = logits_count};
}

/* ---------------------------------------------------------------------------------- the outcome */

static struct path *path_with(struct work *w, uint32_t node, uint32_t *at_out)
{
    for (uint32_t i = 0; i < w->path_count; i++)
        for (uint32_t at = 0; at < w->paths[i].count; at++)
            if (w->paths[i].node[at] == node) {
                *at_out = at;
                return &w->paths[i];
            }
    bench_fail(BENCH_CHECK_FAILED, "a draft that is on no path");
}

/* Samples what follows token `at` of the path, and writes it into the text. */
static int32_t sample_after(const struct run *run, const struct work *w, const struct path *path,
    uint32_t at)
{
    struct sequence *s = w->row->sequence;
    uint32_t position = w->row->from + at + 1;
    const float *logits = NULL;
    if (model_of(run))
        logits = path->logits + (w->decode ? at : 0) * (size_t)run->device->o.sampler.vocab;
    if (position >= s->known)
        s->text[position] = sampler_next(&run->device->o.sampler, s->request, position, logits);
    return s->text[position];
}

/* Follows the drafts as long as they are what is sampled. Returns the path whose first tokens were
 * right; row->len says how many. */
static struct path *accept_drafts(const struct run *run, struct work *w)
{
    uint32_t node = 0, at = 0;
    struct path *path = path_with(w, node, &at);
    for (;;) {
        int32_t next = sample_after(run, w, path, at);
        uint32_t follows = 0;
        for (uint32_t d = 0; d < w->draft_count && follows == 0; d++)
            if ((uint32_t)w->parents[d] == node && w->drafts[d] == next)
                follows = d + 1;
        if (follows == 0 || w->row->from + at + 1 >= w->row->sequence->stop)
            break;
        node = follows;
        path = path_with(w, node, &at);
    }
    w->row->accepted = at;
    w->row->len = w->row->from + at + 1;
    return path;
}

/* A decode row takes one save on its way; what else is to be saved is the same state. */
static void copy_saves(const struct run *run, const struct work *w)
{
    for (uint32_t i = 1; i < w->save_count; i++) {
        const int32_t slot = run->saves[w->save_first + i].slot;
        sc_pool *pool = run->device->o.pool;
        bench_must(sc_state_copy(pool, &w->dest, pool, &slot, 1), "sc_state_copy");
    }
}

static void take_outputs(const struct run *run, struct work *w, struct path *path)
{
    struct device_row *row = w->row;
    row->hidden = path->hidden;
    row->logits = path->logits;
    path->hidden = path->logits = NULL;
    row->logits_count = 0;
    if (row->logits)
        row->logits_count = w->decode ? row->len - row->from : 1;
    if (run->served[path->served].tape)
        served_fold(model_of(run), &run->forward, &run->served[path->served], row->len);
    else if (w->decode)
        copy_saves(run, w);
    if (!row->wants_state)
        return;
    struct state_place place = {run->device->o.pool, run->device->o.rings, w->dest, w->ring};
    place.ring.records = w->ring.mode == SC_REPLAY_APPEND ? w->ring.records + 1 : 0;
    row->state = bench_alloc(full_bytes(place.pool, place.rings), 1);
    full_read(&place, row->state);
}

static void finish_row(struct run *run, struct work *w)
{
    struct sequence *s = w->row->sequence;
    struct path *path = &w->paths[0];
    struct device *device = run->device;
    w->row->len = w->end;
    w->row->accepted = 0;
    if (w->decode)
        path = accept_drafts(run, w);
    else if (w->end >= s->prompt_len)
        (void)sample_after(run, w, path, path->count - 1);
    s->len = w->row->len;
    device->ends[device->run % device->o.depth * device->o.row_max + w->index] = w->row->len;
    if (model_of(run))
        take_outputs(run, w, path);
}

static void work_free(struct work *w)
{
    for (uint32_t i = 0; i < w->path_count; i++) {
        void *owned[] = {w->paths[i].tokens, w->paths[i].node, w->paths[i].hidden,
            w->paths[i].logits};
        for (size_t j = 0; j < sizeof owned / sizeof *owned; j++)
            free(owned[j]);
        served_tape_deinit(&w->paths[i].tape);
    }
    free(w->paths);
    free(w->drafts);
}

/* ------------------------------------------------------------------------------------- one step */

static void copy_page(const struct run *run, struct page_copy copy)
{
    if (copy.from >= 0 && model_of(run))
        paged_kv_copy(run->device->o.kv, model_of(run)->attention_layers, copy.from, copy.to);
}

/* What rings need before the rows: copies that the plan names, where a row goes on from a snapshot
 * with records. */
static void copy_rings(const struct run *run, const struct work *w)
{
    const struct device_options *o = &run->device->o;
    const sc_batch *b = &run->step->batch;
    int32_t from = b->block[b->at_copy_from + w->index], to = b->block[b->at_copy_to + w->index];
    int32_t records = b->block[b->at_extra_from + w->index];
    if (to >= 0)
        bench_must(sc_state_copy(o->pool, &from, o->pool, &to, 1), "sc_state_copy");
    if (records >= 0)
        bench_must(sc_state_copy(o->rings, &records, o->rings, &w->ring.slot, 1),
            "sc_state_copy, of a ring");
}

/* A flush that the row could do without: its base stays where it is, and nobody is to get the
 * state. To lose one is the fault that --lose-flush plants. */
static bool loses(struct run *run, const struct work *w, int32_t planned)
{
    const sc_batch *b = &run->step->batch;
    bool could = planned == SC_REPLAY_FLUSH && w->row->wants_hidden && w->source == w->dest &&
        b->block[b->at_freeze + w->index] == 0;
    if (!could || run->device->flushes_left == 0 || --run->device->flushes_left > 0)
        return false;
    return run->step->lost_flush = true;
}

static void step_rings(struct run *run)
{
    const sc_batch *b = &run->step->batch;
    struct served_ring_row *rows = bench_alloc(b->row_count, sizeof *rows);
    int32_t *planned = bench_alloc(b->row_count, sizeof *planned);
    for (uint32_t i = 0; i < b->row_count; i++) {
        struct work *w = &run->work[i];
        w->ring.slot = rows[i].slot = b->block[b->at_extra + i];
        planned[i] = b->block[b->at_flush + i];
        copy_rings(run, w);
        if (loses(run, w, planned[i]))
            planned[i] = SC_REPLAY_APPEND;
    }
    served_ring_step(model_of(run), run->device->o.rings, rows, planned, b->row_count);
    for (uint32_t i = 0; i < b->row_count; i++) {
        run->work[i].ring = rows[i];
        run->step->appends += rows[i].mode == SC_REPLAY_APPEND;
        run->step->flushes += rows[i].mode == SC_REPLAY_FLUSH;
        run->step->folds += rows[i].mode == SC_REPLAY_FOLD;
    }
    free(planned);
    free(rows);
}

static void compute(struct run *run)
{
    const struct device_options *o = &run->device->o;
    run->forward = (struct served_forward){.rows = run->served, .row_count = run->served_count,
        .saves = run->saves, .pool = o->pool, .rings = o->rings, .kv = o->kv, .threads = o->threads,
        .spaces = run->device->spaces};
    uint64_t begin = sc_clock_now_ns(), cpu_begin = bench_cpu_ns();
    served_run(model_of(run), &run->forward);
    run->step->compute_ns = sc_clock_now_ns() - begin;
    run->step->cpu_ns = bench_cpu_ns() - cpu_begin;
}

static void run_step(struct device *device, struct device_step *step)
{
    struct run run = {.device = device, .step = step};
    const sc_batch *b = &step->batch;
    uint32_t saves = 0, paths = 0;
    run.work = bench_alloc(b->row_count, sizeof *run.work);
    run.saves = bench_alloc(b->save_count, sizeof *run.saves);
    step->compute_ns = step->cpu_ns = 0;
    step->appends = step->flushes = step->folds = 0;
    step->lost_flush = false;
    for (uint32_t i = 0; i < b->row_count; i++) {
        copy_page(&run, step->rows[i].first);
        run.work[i] = read_plan(&run, i);
        take_saves(&run, &run.work[i], &saves);
        make_paths(&run, &run.work[i]);
        paths += run.work[i].path_count;
    }
    if (device->o.rings)
        step_rings(&run);
    run.served = bench_alloc(paths, sizeof *run.served);
    for (uint32_t i = 0; model_of(&run) && i < b->row_count; i++)
        for (uint32_t k = 0; k < run.work[i].path_count; k++)
            serve_path(&run, &run.work[i], &run.work[i].paths[k]);
    if (model_of(&run))
        compute(&run);
    for (uint32_t i = 0; i < b->row_count; i++) {
        finish_row(&run, &run.work[i]);
        copy_page(&run, step->rows[i].last);
        work_free(&run.work[i]);
    }
    device->run++;
    free(run.work);
    free(run.served);
    free(run.saves);
}

void device_step_clear(struct device_step *step)
{
    for (uint32_t i = 0; i < step->batch.row_count; i++) {
        struct device_row *row = &step->rows[i];
        free(row->pages);
        free(row->hidden);
        free(row->logits);
        free(row->state);
        *row = (struct device_row){0};
    }
}

/* ------------------------------------------------------------------------------------ the queue */

static void *device_thread(void *argument)
{
    struct device *device = argument;
    pthread_mutex_lock(&device->lock);
    for (;;) {
        while (!device->quit && device->run == device->launched)
            pthread_cond_wait(&device->changed, &device->lock);
        if (device->run == device->launched)
            break;
        struct device_step *step = device->queue[device->run % device->o.depth];
        pthread_mutex_unlock(&device->lock);
        run_step(device, step);
        pthread_mutex_lock(&device->lock);
        step->done = true;
        pthread_cond_broadcast(&device->changed);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

void device_open(struct device *device, const struct device_options *options)
{
    *device = (struct device){.o = *options, .flushes_left = options->lose_flush,
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    device->ends = bench_alloc((size_t)options->depth * options->row_max, sizeof *device->ends);
    device->spaces = served_spaces_create();
    if (options->depth > 1 && pthread_create(&device->thread, NULL, device_thread, device))
        bench_fail(BENCH_NO_MEMORY, "cannot start a thread");
}

void device_close(struct device *device)
{
    if (device->o.depth > 1) {
        pthread_mutex_lock(&device->lock);
        device->quit = true;
        pthread_cond_broadcast(&device->changed);
        pthread_mutex_unlock(&device->lock);
        pthread_join(device->thread, NULL);
    }
    pthread_mutex_destroy(&device->lock);
    pthread_cond_destroy(&device->changed);
    served_spaces_destroy(device->spaces,
        device->o.sampler.model ? device->o.sampler.model->options.backend : NULL);
    free(device->ends);
}

void device_launch(struct device *device, struct device_step *step)
{
    pthread_mutex_lock(&device->lock);
    step->done = false;
    device->queue[device->launched++ % device->o.depth] = step;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
}

void device_wait(struct device *device, struct device_step *step)
{
    if (device->o.depth == 1 && !step->done) { /* nobody to wait for */
        run_step(device, step);
        step->done = true;
    }
    pthread_mutex_lock(&device->lock);
    while (!step->done)
        pthread_cond_wait(&device->changed, &device->lock);
    pthread_mutex_unlock(&device->lock);
}

void device_idle(struct device *device)
{
    pthread_mutex_lock(&device->lock);
    struct device_step *last = NULL;
    if (device->launched > 0)
        last = device->queue[(device->launched - 1) % device->o.depth];
    pthread_mutex_unlock(&device->lock);
    if (last)
        device_wait(device, last);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The device, as a processor can be one: it runs the steps that the scheduler launched, one after
 * the other in the order of their launch, on a thread of its own if several may be in flight.
 *
 *   scheduler   plan 1, launch   plan 2, launch   wait 1, commit 1   plan 3, launch   wait 2 ...
 *   device                [ --- step 1 --- ][ ------ step 2 ------ ][ ------ step 3 ------ ]
 *
 * So step 2 is planned before anybody has seen what step 1 sampled. What a step needs of the one
 * before it never leaves the device: the token that it begins with and, behind drafts, where it
 * begins. Both are in the request's `sequence`; where rows really ended is kept for each step, and
 * read as the plan says (`accepted`, `accepted_back` of sc_batch).
 *
 * A row of decode form is one certain token and drafts. The drafter proposes when the row begins:
 * from a guess of the text (what plain decoding gave) as long as a seeded coin says so, wrong
 * tokens from there on. The model computes all of them; the text is what it samples, and a draft
 * counts only if it is the token sampled. Then states and pages are written for what was right.
 * A tree of drafts is verified as its paths from root to leaf, each a row of its own. */
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include <pthread.h>

#include "sampler.h"
#include "served_model.h"

/* What the device keeps of a request from row to row. */
struct sequence {
    size_t request;
    int32_t *text;          /* the device writes tokens as it samples them */
    uint32_t prompt_len;    /* nothing is sampled before */
    uint32_t known;         /* text[0 .. known) was given: what is sampled there is not used */
    uint32_t stop;          /* no draft is accepted from here on: the text ends */
    const int32_t *guess;   /* likely text [guess_len] for the drafter; NULL: none */
    uint32_t guess_len;
    uint32_t len;           /* true length after all rows that were run */
};

struct page_copy { int32_t from, to; }; /* `from` -1: none */

struct device_row {
    struct sequence *sequence;
    int32_t *pages;                 /* of all tokens up to the row's end; owned by the step */
    struct page_copy first, last;   /* before and after the row */
    bool wants_hidden, wants_state;
    /* written by the device */
    uint32_t from, len;             /* where it really began and ended */
    uint32_t accepted;              /* drafts */
    float *hidden;                  /* [len - from][hidden] */
    float *logits;                  /* [logits_count][vocab], of the last tokens */
    uint32_t logits_count;
    unsigned char *state;           /* after token len - 1 */
};

struct device_step {
    sc_batch batch;                 /* of the plan; its block is read */
    struct device_row *rows;        /* [row_max] */
    uint64_t compute_ns, cpu_ns;    /* of the model: elapsed, and of all threads */
    uint32_t appends, flushes, folds; /* rows that did so with their rings */
    bool lost_flush;
    bool done;                      /* guarded by the device's lock */
};

struct device_options {
    struct sampler sampler;
    sc_pool *pool, *rings;          /* rings: NULL, if the model has none */
    const struct paged_kv *kv;
    uint32_t threads;               /* for the model */
    uint32_t depth, row_max;
    double draft_accept;            /* how often the coin lets the drafter guess right */
    uint32_t lose_flush;            /* a fault: of the flushes of recorded requests that could as
                                     * well be appends, this many-th is one; 0: none */
};

struct device {
    struct device_options o;
    struct served_space *spaces;
    uint32_t flushes_left;          /* until one is lost; 0: none */
    uint64_t launched, run;         /* steps; `launched` guarded by the lock */
    uint32_t *ends;                 /* [depth][row_max] where rows of the last steps ended */
    struct device_step *queue[SC_DEPTH_MAX]; /* guarded by the lock */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool quit;                      /* guarded by the lock */
};

void device_open(struct device *device, const struct device_options *options);
/* No step may be in flight. */
void device_close(struct device *device);
/* The step's rows are the device's until it is done. At most `depth` at a time. */
void device_launch(struct device *device, struct device_step *step);
/* Returns when this step, and so all before it, is done. */
void device_wait(struct device *device, struct device_step *step);
/* Returns when nothing runs. */
void device_idle(struct device *device);
/* Frees what the device has allocated for a step that is done. */
void device_step_clear(struct device_step *step);

#endif

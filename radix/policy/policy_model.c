/* SPDX-License-Identifier: Apache-2.0 */
/* How soon will a position be wanted? A proportional-hazards model, learned from intervals of
 * demand, and the index that follows from it.
 *
 *   hazard(age | stratum s, features x) = h_s(age bucket) x product over j of m(s, j, x_j)
 *
 * An interval starts when a position is saved or wanted and ends when it is wanted again (an event)
 * or is still running (censored). The newest `cap` intervals are kept. A refit is a few sweeps:
 *
 *   exposure  X_s[b] = sum over intervals of (time spent in bucket b) x product of m
 *   pooled    h[b]   = (events[b] + 1) / (X[b] + 1 / prior[b])         prior: 0.3 / age, like LRU
 *   stratum   h_s[b] = (events_s[b] + w) / (X_s[b] + w / (h[b] scale_s))
 *   features  m     <- m^0.65 (observed / expected, shrunk)^0.35
 *
 * The multipliers are damped and normalised by stratum: undamped they diverge (they run to their
 * limits, and old entries never leave).
 *
 * Index. For a position of age a the best deal over all horizons:
 *
 *   G(a) = max over H of  P(wanted within H) / E[time held until wanted or H]
 *
 * that is the steepest chord from a on the curve (time held, probability), so the first segment of
 * its concave hull. Going from old ages to young ones, a bucket is put in front as a segment and
 * merged with the next one while that is steeper (pool adjacent violators): O(buckets).
 * Computed when a (stratum, level) is first asked for after a refit.
 *
 * Intervals with the same stratum and features have one weight: they share a profile
 * (policy_samples.c). Cost of a refit: (cap + profiles x features) x sweeps, twice. Memory: the
 * ring, the profiles, 6,720 multipliers, the tables. */
#include "policy_internal.h"

static const double SHRINK = 10.0, STRATUM_PRIOR = 2.0, DAMP = 0.35;
enum { SWEEPS = 3, SWEEPS_LATER = 1, FITS_EARLY = 50 };

/* 0 1 2 3 4 and then 2^(k/2) cut to whole seconds; the last bucket is as wide as its start. */
const double pol_age_edge[AGES + 1] = {0, 1, 2, 3, 4, 5, 8, 11, 16, 22, 32, 45, 64, 90, 128, 181,
    256, 362, 512, 724, 1024, 1448, 2048, 2896, 4096, 5792, 8192, 11585, 16384, 23170, 32768, 46340,
    65536, 92681, 131072, 185363, HUGE_VAL};

static double width(int bucket)
{
    return bucket + 1 < AGES ? pol_age_edge[bucket + 1] - pol_age_edge[bucket]
                             : pol_age_edge[bucket];
}

static double prior(int bucket)
{
    return 0.3 / (pol_age_edge[bucket] + 0.5 * width(bucket) + 5.0);
}

/* Edge k is 2^(k/2) from k = 4 on, so that the highest bit says which two buckets it can be. */
uint8_t pol_age_bucket(double age_s)
{
    if (age_s < 4) return age_s > 0 ? (uint8_t)age_s : 0;
    if (age_s >= pol_age_edge[AGES - 1]) return AGES - 1;
    uint32_t k = 2 * (31 - (uint32_t)__builtin_clz((uint32_t)age_s));
    return (uint8_t)(age_s >= pol_age_edge[k + 1] ? k + 1 : k);
}

/* Positions inside a prompt have two features less. */
static uint32_t feature_count(int stratum)
{
    int kind = stratum / STRATA_PER_KIND % KIND_COUNT;
    return kind == KIND_BRANCH || kind == KIND_SUPERSEDED ? FEATURES - 2 : FEATURES;
}

int8_t pol_level(const struct model *model, uint8_t stratum, const uint8_t *features)
{
    double m = 1;
    for (int j = 0; j < FEATURES; j++)
        m *= model->multiplier[pol_multiplier_at(stratum, j, features[j])];
    double level = LEVELS_PER_OCTAVE * log2(m);
    if (level >= LEVEL_MAX) return LEVEL_MAX;
    if (level <= -LEVEL_MAX) return -LEVEL_MAX;
    return (int8_t)(level < 0 ? level - 0.5 : level + 0.5);
}

void pol_model_init(struct model *model)
{
    for (int i = 0; i < MULTIPLIERS; i++) model->multiplier[i] = 1;
    for (int s = 0; s < STRATA; s++) {
        for (int b = 0; b < AGES; b++) model->hazard[s * AGES + b] = (float)prior(b);
    }
    model->next_fit = 20;
}

/* --- index --- */

static void index_fill(struct model *model, uint8_t stratum, int8_t level)
{
    struct segment { double wanted, held, survive; } stack[AGES];
    int top = 0;
    double factor = exp2(level / (double)LEVELS_PER_OCTAVE);
    float *index = model->index[stratum][level + LEVEL_MAX];
    for (int b = AGES - 1; b >= 0; b--) {
        double q = expf((float)(-model->hazard[stratum * AGES + b] * factor * width(b)));
        struct segment now = {1 - q, width(b) * (1 + q) * 0.5, q};
        while (top > 0 && stack[top - 1].wanted * now.held >= now.wanted * stack[top - 1].held) {
            const struct segment *next = &stack[--top];
            now.wanted += now.survive * next->wanted;
            now.held += now.survive * next->held;
            now.survive *= next->survive;
        }
        stack[top++] = now;
        index[b] = (float)(now.wanted / now.held);
    }
    model->index_fresh[stratum][level + LEVEL_MAX] = 1;
}

double pol_index(struct model *model, uint8_t stratum, int8_t level, uint8_t bucket)
{
    if (!model->fitted[stratum]) return prior(bucket);
    if (!model->index_fresh[stratum][level + LEVEL_MAX]) index_fill(model, stratum, level);
    return model->index[stratum][level + LEVEL_MAX][bucket];
}

/* Ages are cut to whole seconds, so that timers and buckets agree. */
double pol_rate(struct sc_policy *p, const struct cand *cand, uint32_t ahead,
    uint64_t *until_ns_out)
{
    const uint64_t second_ns = 1000000000;
    uint32_t bucket = pol_age_bucket((double)((p->now_ns - cand->born_ns) / second_ns));
    uint32_t end = bucket + ahead < AGES ? bucket + ahead : AGES;
    if (ahead > 1 && end < YOUNG_AGES) end = YOUNG_AGES; /* the first buckets are soon passed */
    if (until_ns_out && end < AGES) {
        uint64_t until_ns = cand->born_ns + (uint64_t)pol_age_edge[end] * second_ns;
        if (until_ns < *until_ns_out) *until_ns_out = until_ns;
    }
    double least = pol_index(p->model, cand->stratum, cand->level, (uint8_t)bucket);
    while (++bucket < end) {
        double rate = pol_index(p->model, cand->stratum, cand->level, (uint8_t)bucket);
        if (rate < least) least = rate;
    }
    return least;
}

/* --- refit --- */

static void fit_start(struct model *model, struct fit *fit)
{
    fit->rows = model->count < model->cap ? (uint32_t)model->count : model->cap;
    memset(fit->present, 0, sizeof fit->present);
    memset(fit->events, 0, sizeof fit->events);
    memset(fit->observed, 0, sizeof fit->observed);
}

/* Ages of the intervals that run, and events. From the oldest to the newest: ages fall, so that the
 * bucket is the one before or one of the next. */
static void fit_ages(struct sc_policy *p, struct fit *fit)
{
    struct model *model = p->model;
    uint32_t at = model->count < model->cap ? 0 : (uint32_t)(model->count % model->cap);
    uint8_t bucket = AGES - 1;
    for (uint32_t i = 0; i < fit->rows; i++) {
        struct sample *sample = &model->ring[at];
        if (++at == model->cap) at = 0;
        double age_s = p->now_s - sample->start_s;
        while (bucket > 0 && age_s < pol_age_edge[bucket]) bucket--;
        /* without branches: which of them run, and which were wanted, cannot be foretold */
        float event = sample->event, rest_s = (float)(age_s - pol_age_edge[bucket]);
        uint16_t cell = (uint16_t)(model->profiles[sample->profile].stratum * AGES + bucket);
        cell = sample->open ? cell : sample->cell;
        fit->events[cell] += event;
        model->sums[sample->profile].events += event;
        sample->cell = cell;
        sample->rest_s = sample->open ? rest_s : sample->rest_s;
    }
}

/* Which strata there are, and how often each value was wanted. */
static void fit_observed(struct model *model, struct fit *fit)
{
    for (uint32_t i = 1; i <= model->profile_used; i++) {
        const struct profile *profile = &model->profiles[i];
        float events = model->sums[i].events;
        model->sums[i].events = 0;
        if (profile->samples == 0) continue;
        fit->present[profile->stratum] = true;
        for (int j = 0; events > 0 && j < FEATURES; j++) fit->observed[profile->at[j]] += events;
    }
}

static void fit_exposure(struct model *model, struct fit *fit)
{
    memset(fit->exposure, 0, sizeof fit->exposure);
    memset(fit->passed, 0, sizeof fit->passed);
    const float *m = model->multiplier;
    for (uint32_t i = 1; i <= model->profile_used; i++) {
        const uint16_t *at = model->profiles[i].at;
        static_assert(FEATURES == 7, "written out");
        model->sums[i].weight =
            m[at[0]] * m[at[1]] * m[at[2]] * m[at[3]] * m[at[4]] * m[at[5]] * m[at[6]];
        model->sums[i].hits = 0;
    }
    for (uint32_t i = 0; i < fit->rows; i++) {
        const struct sample *sample = &model->ring[i];
        float weight = model->sums[sample->profile].weight;
        fit->exposure[sample->cell] += weight * sample->rest_s;
        fit->passed[sample->cell] += weight; /* all buckets before it */
    }
    for (int s = 0; s < STRATA; s++) {
        if (!fit->present[s]) continue;
        double sum = 0;
        for (int b = AGES - 1; b >= 0; b--) {
            fit->exposure[s * AGES + b] += (float)(sum * width(b));
            sum += fit->passed[s * AGES + b];
        }
    }
}

static void fit_hazard(struct model *model, struct fit *fit)
{
    for (int b = 0; b < AGES; b++) {
        double events = 1, exposure = 1 / prior(b);
        for (int s = 0; s < STRATA; s++) {
            if (!fit->present[s]) continue;
            events += fit->events[s * AGES + b];
            exposure += fit->exposure[s * AGES + b];
        }
        fit->pooled[b] = (float)(events / exposure);
    }
    for (int s = 0; s < STRATA; s++) {
        if (!fit->present[s]) continue;
        double observed = STRATUM_PRIOR, expected = STRATUM_PRIOR, sum = 0;
        for (int b = 0; b < AGES; b++) {
            observed += fit->events[s * AGES + b];
            expected += fit->pooled[b] * fit->exposure[s * AGES + b];
        }
        for (int b = 0; b < AGES; b++) {
            double weight = 0.2 * STRATUM_PRIOR;
            model->hazard[s * AGES + b] = (float)((fit->events[s * AGES + b] + weight) /
                (fit->exposure[s * AGES + b] + weight / (fit->pooled[b] * observed / expected)));
            fit->cumulated[s * AGES + b] = (float)sum;
            sum += model->hazard[s * AGES + b] * width(b);
        }
    }
}

/* Where all are of one class there is nothing to tell apart, and nothing to disturb. */
static bool one_class(const struct fit *fit, int stratum)
{
    uint32_t first = pol_multiplier_at((uint8_t)stratum, FEATURE_CLASS, 0), classes = 0;
    for (uint32_t x = first; x < first + LEVELS_PER_FEATURE; x++) classes += fit->expected[x] > 0;
    return classes <= 1;
}

static void fit_multipliers(struct model *model, struct fit *fit)
{
    memset(fit->expected, 0, sizeof fit->expected);
    float *e = fit->expected;
    for (uint32_t i = 0; i < fit->rows; i++) {
        const struct sample *sample = &model->ring[i];
        model->sums[sample->profile].hits +=
            fit->cumulated[sample->cell] + model->hazard[sample->cell] * sample->rest_s;
    }
    for (uint32_t i = 1; i <= model->profile_used; i++) {
        const uint16_t *at = model->profiles[i].at;
        float hits = model->sums[i].weight * model->sums[i].hits;
        for (int j = 0; hits > 0 && j < FEATURES; j++) e[at[j]] += hits;
    }
    for (int s = 0; s < STRATA; s++) {
        if (!fit->present[s]) continue;
        double observed = 1, expected = 1;
        uint32_t first = pol_multiplier_at((uint8_t)s, 0, 0);
        for (uint32_t x = first; x < first + LEVELS_PER_FEATURE; x++) {
            observed += fit->observed[x];
            expected += fit->expected[x];
        }
        uint32_t end = first + feature_count(s) * LEVELS_PER_FEATURE;
        uint32_t class_at = pol_multiplier_at((uint8_t)s, FEATURE_CLASS, 0);
        if (!one_class(fit, s)) class_at = end;
        for (uint32_t x = first; x < end; x++) {
            if (fit->expected[x] <= 0) continue;
            if (x >= class_at && x < class_at + LEVELS_PER_FEATURE) continue;
            double m = model->multiplier[x];
            double fresh = (fit->observed[x] + SHRINK) /
                (fit->expected[x] * observed / expected / m + SHRINK);
            m *= expf((float)DAMP * logf((float)(fresh / m)));
            model->multiplier[x] = (float)fmax(0.03, fmin(32, m));
        }
    }
}

void pol_fit(struct sc_policy *p)
{
    struct model *model = p->model;
    struct fit *fit = &model->fit;
    fit_start(model, fit);
    fit_ages(p, fit);
    fit_observed(model, fit);
    int sweeps = model->fits < FITS_EARLY ? SWEEPS : SWEEPS_LATER;
    for (int sweep = 0; sweep < sweeps; sweep++) {
        fit_exposure(model, fit);
        fit_hazard(model, fit);
        fit_multipliers(model, fit);
    }
    memset(model->index_fresh, 0, sizeof model->index_fresh);
    memcpy(model->fitted, fit->present, sizeof model->fitted);
    model->fits++;
    for (uint32_t i = 0; i < p->order.count; i++) {
        struct cand *cand = pol_cand(p, p->order.items[i].id);
        if (cand->registered) cand->level = pol_level(model, cand->stratum, cand->features);
    }
    pol_touch_all(p);
}

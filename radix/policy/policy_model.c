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

enum { SECOND_NS = 1000000000 };

static double width(int bucket)
{
    return bucket + 1 < AGES ? pol_age_edge[bucket + 1] - pol_age_edge[bucket]
                             : pol_age_edge[bucket];
}

static double prior(int bucket)
{
    return 0.3 / (pol_age_edge[bucket] + 0.5 * width(bucket) + 5.0);
}

/* Edges are whole. Edge k is 2^(k/2) from k = 4 on, so that the highest bit says which two buckets
 * it can be. */
static uint32_t bucket_of(uint64_t age_s)
{
    if (age_s < 4) return (uint32_t)age_s;
    if (age_s >= (uint64_t)pol_age_edge[AGES - 1]) return AGES - 1;
    uint32_t k = 2 * (31 - (uint32_t)__builtin_clz((uint32_t)age_s));
    return k + ((double)(int32_t)age_s >= pol_age_edge[k + 1]);
}

uint8_t pol_age_bucket(double age_s)
{
    if (age_s >= pol_age_edge[AGES - 1])
        return AGES - 1;
    return (uint8_t)bucket_of(age_s > 0 ? (uint64_t)age_s : 0);
}

/* Positions inside a prompt have two features less. */
static uint32_t feature_count(int stratum)
{
    int kind = stratum / STRATA_PER_KIND % KIND_COUNT;
    return kind == KIND_BRANCH || kind == KIND_SUPERSEDED ? FEATURES - 2 : FEATURES;
}

/* LEVELS_PER_OCTAVE x log2(m), rounded, read off the number: its exponent says the octave. m is
 * far from the ends of what a double can be. */
static int8_t level_of(double m)
{
    uint64_t bits;
    static_assert(sizeof bits == sizeof m && LEVELS_PER_OCTAVE == 4, "IEEE 754, four steps");
    memcpy(&bits, &m, sizeof bits);
    int octave = (int)(bits >> 52) - 1023;
    bits = (bits & ((1ull << 52) - 1)) | 1023ull << 52;
    memcpy(&m, &bits, sizeof bits); /* 1 .. 2; limits: 2^(1/8), 2^(3/8), 2^(5/8), 2^(7/8) */
    int step = (m >= 1.0905077326652577) + (m >= 1.2968395546510096) + (m >= 1.5422108254079407) +
        (m >= 1.8340080864093424);
    int level = LEVELS_PER_OCTAVE * octave + step;
    if (level > LEVEL_MAX) return LEVEL_MAX;
    return (int8_t)(level < -LEVEL_MAX ? -LEVEL_MAX : level);
}

int8_t pol_level(const struct model *model, uint8_t stratum, const uint8_t *features)
{
    enum { STEP = LEVELS_PER_FEATURE };
    const float *of = &model->multiplier[pol_multiplier_at(stratum, 0, 0)];
    static_assert(FEATURES == 7, "written out");
    double m = of[features[0]];
    m *= of[STEP + features[1]];
    m *= of[2 * STEP + features[2]];
    m *= of[3 * STEP + features[3]];
    m *= of[4 * STEP + features[4]];
    m *= of[5 * STEP + features[5]];
    m *= of[6 * STEP + features[6]];
    return level_of(m);
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
    struct rates *rates = &model->index[stratum][level + LEVEL_MAX];
    for (int b = AGES - 1; b >= 0; b--) {
        double width_s = width(b);
        double q = expf((float)(-model->hazard[stratum * AGES + b] * factor * width_s));
        struct segment now = {1 - q, width_s * (1 + q) * 0.5, q};
        while (top > 0 && stack[top - 1].wanted * now.held >= now.wanted * stack[top - 1].held) {
            const struct segment *next = &stack[--top];
            now.wanted += now.survive * next->wanted;
            now.held += now.survive * next->held;
            now.survive *= next->survive;
        }
        stack[top++] = now;
        rates->at[b] = (float)(now.wanted / now.held);
    }
    rates->valleys = 0;
    for (int b = 1; b + 1 < AGES; b++) {
        bool valley = rates->at[b] <= rates->at[b - 1] && rates->at[b] <= rates->at[b + 1];
        rates->valleys |= (uint64_t)valley << b;
    }
    model->index_fresh[stratum][level + LEVEL_MAX] = 1;
}

/* NULL: the stratum has not been fitted. */
static const struct rates *rates_get(struct model *model, const struct cand *cand)
{
    if (!model->fitted[cand->stratum]) return NULL;
    if (!model->index_fresh[cand->stratum][cand->level + LEVEL_MAX]) {
        index_fill(model, cand->stratum, cand->level);
    }
    return &model->index[cand->stratum][cand->level + LEVEL_MAX];
}

/* Ages are cut to whole seconds, so that timers and buckets agree. */
static uint32_t bucket_at(const struct cand *cand, uint64_t time_ns)
{
    return bucket_of((time_ns - cand->born_ns) / SECOND_NS);
}

double pol_rate(struct sc_policy *p, const struct cand *cand)
{
    const struct rates *rates = rates_get(p->model, cand);
    uint32_t bucket = bucket_at(cand, p->now_ns);
    return rates ? rates->at[bucket] : prior((int)bucket);
}

double pol_rate_bucket(struct sc_policy *p, const struct cand *cand, uint64_t *until_ns)
{
    const struct rates *rates = rates_get(p->model, cand);
    uint32_t bucket = bucket_at(cand, p->now_ns);
    if (bucket + 1 < AGES) {
        uint64_t end_ns = cand->born_ns + (uint64_t)pol_age_edge[bucket + 1] * SECOND_NS;
        if (end_ns < *until_ns)
            *until_ns = end_ns;
    }
    return rates ? rates->at[bucket] : prior((int)bucket);
}

double pol_rate_least(struct sc_policy *p, const struct cand *cand, uint64_t last_ns)
{
    const struct rates *rates = rates_get(p->model, cand);
    uint32_t first = bucket_at(cand, p->now_ns), last = bucket_at(cand, last_ns);
    if (!rates)
        return prior((int)last); /* priors fall with age */
    float least = rates->at[first] < rates->at[last] ? rates->at[first] : rates->at[last];
    /* Between two ages it is least at one of them or in a valley. */
    uint64_t between = rates->valleys & (((uint64_t)1 << last) - 1) & ~(((uint64_t)2 << first) - 1);
    for (; between != 0; between &= between - 1) {
        float valley = rates->at[__builtin_ctzll(between)];
        least = valley < least ? valley : least;
    }
    return least;
}

/* --- refit --- */

static void fit_start(struct model *model, struct fit *fit)
{
    fit->rows = model->count < model->cap ? (uint32_t)model->count : model->cap;
    fit->count = 0;
    for (int s = 0; s < STRATA; s++) {
        if (model->stratum_samples[s] > 0) fit->strata[fit->count++] = (uint8_t)s;
    }
}

/* Ages of the intervals that run, among [from, to) of the ring. From the oldest to the newest: ages
 * fall, so that the bucket is the one before (`bucket`) or one of the next; the last one. */
static uint8_t ages_part(
    struct model *model, double now_s, uint32_t from, uint32_t to, uint8_t bucket)
{
    for (uint32_t word = from / 64; word * 64 < to; word++) {
        uint64_t runs = model->open[word];
        if (word == from / 64)
            runs &= UINT64_MAX << from % 64;
        if (to - word * 64 < 64)
            runs &= ((uint64_t)1 << (to - word * 64)) - 1;
        for (; runs != 0; runs &= runs - 1) {
            uint32_t at = word * 64 + (uint32_t)__builtin_ctzll(runs);
            struct sample *sample = &model->ring[at];
            double age_s = now_s - model->starts_s[at];
            while (bucket > 0 && age_s < pol_age_edge[bucket])
                bucket--;
            sample->rest_s = (float)(age_s - pol_age_edge[bucket]);
            sample->cell = (uint16_t)(model->profiles[sample->profile].stratum * AGES + bucket);
        }
    }
    return bucket;
}

static void fit_ages(struct sc_policy *p, struct fit *fit)
{
    struct model *model = p->model;
    uint32_t oldest = model->count < model->cap ? 0 : (uint32_t)(model->count % model->cap);
    uint8_t bucket = ages_part(model, p->now_s, oldest, fit->rows, AGES - 1);
    ages_part(model, p->now_s, 0, oldest, bucket);
}

static void fit_exposure(struct model *model, struct fit *fit)
{
    for (uint32_t k = 0; k < fit->count; k++) {
        memset(&fit->passed[fit->strata[k] * AGES], 0, AGES * sizeof fit->passed[0]);
    }
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
        struct passed *passed = &fit->passed[sample->cell];
        passed->exposure += weight * sample->rest_s;
        passed->count += weight; /* all buckets before it */
    }
    for (uint32_t k = 0; k < fit->count; k++) {
        int s = fit->strata[k];
        double sum = 0;
        for (int b = AGES - 1; b >= 0; b--) {
            fit->passed[s * AGES + b].exposure += (float)(sum * width(b));
            sum += fit->passed[s * AGES + b].count;
        }
    }
}

static void fit_hazard(struct model *model, struct fit *fit)
{
    for (int b = 0; b < AGES; b++) {
        double events = 1, exposure = 1 / prior(b);
        for (uint32_t k = 0; k < fit->count; k++) {
            events += model->events_at[fit->strata[k] * AGES + b];
            exposure += fit->passed[fit->strata[k] * AGES + b].exposure;
        }
        fit->pooled[b] = (float)(events / exposure);
    }
    for (uint32_t k = 0; k < fit->count; k++) {
        int s = fit->strata[k];
        double observed = STRATUM_PRIOR, expected = STRATUM_PRIOR, sum = 0;
        for (int b = 0; b < AGES; b++) {
            observed += model->events_at[s * AGES + b];
            expected += fit->pooled[b] * fit->passed[s * AGES + b].exposure;
        }
        for (int b = 0; b < AGES; b++) {
            double weight = 0.2 * STRATUM_PRIOR, seen = fit->passed[s * AGES + b].exposure;
            float hazard = (float)((model->events_at[s * AGES + b] + weight) /
                (seen + weight / (fit->pooled[b] * observed / expected)));
            model->hazard[s * AGES + b] = hazard;
            fit->sums[s * AGES + b] = (struct hazard_sum){(float)sum, hazard};
            sum += hazard * width(b);
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
    for (uint32_t k = 0; k < fit->count; k++) {
        memset(&fit->expected[pol_multiplier_at(fit->strata[k], 0, 0)], 0,
            FEATURES * LEVELS_PER_FEATURE * sizeof fit->expected[0]);
    }
    float *e = fit->expected;
    for (uint32_t i = 0; i < fit->rows; i++) {
        const struct sample *sample = &model->ring[i];
        struct hazard_sum sum = fit->sums[sample->cell];
        model->sums[sample->profile].hits += sum.before + sum.hazard * sample->rest_s;
    }
    for (uint32_t i = 1; i <= model->profile_used; i++) {
        const uint16_t *at = model->profiles[i].at;
        float hits = model->sums[i].weight * model->sums[i].hits;
        if (!(hits > 0)) continue;
        static_assert(FEATURES == 7, "written out");
        e[at[0]] += hits;
        e[at[1]] += hits;
        e[at[2]] += hits;
        e[at[3]] += hits;
        e[at[4]] += hits;
        e[at[5]] += hits;
        e[at[6]] += hits;
    }
    for (uint32_t k = 0; k < fit->count; k++) {
        int s = fit->strata[k];
        double observed = 1, expected = 1;
        uint32_t first = pol_multiplier_at((uint8_t)s, 0, 0);
        for (uint32_t x = first; x < first + LEVELS_PER_FEATURE; x++) {
            observed += model->observed[x];
            expected += fit->expected[x];
        }
        uint32_t end = first + feature_count(s) * LEVELS_PER_FEATURE;
        uint32_t class_at = pol_multiplier_at((uint8_t)s, FEATURE_CLASS, 0);
        if (!one_class(fit, s)) class_at = end;
        for (uint32_t x = first; x < end; x++) {
            if (fit->expected[x] <= 0) continue;
            if (x >= class_at && x < class_at + LEVELS_PER_FEATURE) continue;
            double m = model->multiplier[x];
            double fresh = (model->observed[x] + SHRINK) /
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
    int sweeps = model->fits < FITS_EARLY ? SWEEPS : SWEEPS_LATER;
    for (int sweep = 0; sweep < sweeps; sweep++) {
        fit_exposure(model, fit);
        fit_hazard(model, fit);
        fit_multipliers(model, fit);
    }
    memset(model->index_fresh, 0, sizeof model->index_fresh);
    for (int s = 0; s < STRATA; s++) model->fitted[s] = model->stratum_samples[s] > 0;
    model->fits++;
    model->fit_gap_ns = p->now_ns - model->fit_ns;
    model->fit_ns = p->now_ns;
    pol_touch_all(p, true);
}

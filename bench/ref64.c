/* SPDX-License-Identifier: Apache-2.0 */
#include "ref64.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_common.h"
#include "dense.h"

struct ref_layer {
    double *window; /* [W - 1][channels], oldest first */
    double *state;  /* [HV][V][K] */
    double *keys, *values; /* [token][width] */
};

struct ref64 {
    const struct served_model *model;
    uint32_t token_max, count;
    struct ref_layer *layers;
    double *x, *h, *a, *b, *c, *d, *score;
};

struct ref64 *ref64_create(const struct served_model *model, uint32_t token_max)
{
    const struct served_options *o = &model->options;
    struct ref64 *ref = bench_alloc(1, sizeof *ref);
    ref->model = model;
    ref->token_max = token_max;
    ref->layers = bench_alloc(o->layers, sizeof *ref->layers);
    for (uint32_t i = 0; i < o->layers; i++) {
        struct ref_layer *layer = &ref->layers[i];
        size_t rows = (size_t)token_max * model->attention_width;
        if (model->layers[i].is_attention) {
            layer->keys = bench_alloc(rows, sizeof(double));
            layer->values = bench_alloc(rows, sizeof(double));
        } else {
            layer->window = bench_alloc((CONV_WIDTH - 1) * (size_t)model->channels,
                sizeof(double));
            layer->state = bench_alloc((size_t)model->value_dim * o->head_dim, sizeof(double));
        }
    }
    size_t wide = (size_t)model->channels + o->mlp + model->decay_dim + model->attention_width +
        o->hidden;
    double **arrays[] = {&ref->x, &ref->h, &ref->a, &ref->b, &ref->c, &ref->d};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i] = bench_alloc(wide, sizeof(double));
    ref->score = bench_alloc(token_max, sizeof(double));
    return ref;
}

void ref64_destroy(struct ref64 *ref)
{
    if (!ref)
        return;
    for (uint32_t i = 0; i < ref->model->options.layers; i++) {
        free(ref->layers[i].window);
        free(ref->layers[i].state);
        free(ref->layers[i].keys);
        free(ref->layers[i].values);
    }
    double *arrays[] = {ref->x, ref->h, ref->a, ref->b, ref->c, ref->d, ref->score};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    free(ref->layers);
    free(ref);
}

const double *ref64_state(const struct ref64 *ref, uint32_t layer)
{
    return ref->layers[layer].state;
}

static void times(const double *x, const float *w, double *y, size_t in, size_t out)
{
    memset(y, 0, out * sizeof *y);
    for (size_t n = 0, columns; n < out; n += columns) {
        columns = out - n < DENSE_PANEL ? out - n : DENSE_PANEL;
        for (size_t k = 0; k < in; k++)
            for (size_t j = 0; j < columns; j++)
                y[n + j] += x[k] * (double)w[n * in + k * columns + j];
    }
}

static void rms(const double *x, const float *weight, double *y, size_t dim, double eps)
{
    double sum = 0;
    for (size_t i = 0; i < dim; i++)
        sum += x[i] * x[i];
    double factor = 1.0 / sqrt(sum / (double)dim + eps);
    for (size_t i = 0; i < dim; i++)
        y[i] = x[i] * factor * (double)weight[i];
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

/* Nearest bf16 of a value, by way of float. */
static double to_bf16(double value)
{
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    bits += 0x7fff + (bits >> 16 & 1);
    bits &= 0xffff0000u;
    memcpy(&narrow, &bits, sizeof narrow);
    return (double)narrow;
}

/* a (raw q k v) to b (silu of the conv), moving the window on. */
static void conv(struct ref64 *ref, struct ref_layer *state, const float *weight,
    const float *bias)
{
    size_t channels = ref->model->channels;
    bool narrow = ref->model->options.state_dtype == SC_DTYPE_BF16;
    for (size_t c = 0; c < channels; c++) {
        double in = narrow ? to_bf16(ref->a[c]) : ref->a[c], sum = 0;
        for (size_t j = 0; j < CONV_WIDTH - 1; j++) {
            sum += state->window[j * channels + c] * (double)weight[c * CONV_WIDTH + j];
            if (j > 0)
                state->window[(j - 1) * channels + c] = state->window[j * channels + c];
        }
        state->window[(CONV_WIDTH - 2) * channels + c] = in;
        sum += in * (double)weight[c * CONV_WIDTH + CONV_WIDTH - 1];
        if (bias)
            sum += (double)bias[c];
        ref->b[c] = sum * sigmoid(sum);
    }
}

static void normalise(double *x, size_t dim)
{
    double sum = 1e-6;
    for (size_t i = 0; i < dim; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < dim; i++)
        x[i] /= sqrt(sum);
}

/* log decay of head h at key index k, from the projection in ref->c. */
static double log_decay(const struct ref64 *ref, const struct served_layer *layer, size_t h,
    size_t k)
{
    double rate = exp((double)layer->a_log[h]);
    if (ref->model->gate == SC_K_GATE_GDN)
        return -rate * softplus(ref->c[h] + (double)layer->dt_bias[h]);
    size_t at = h * ref->model->options.head_dim + k;
    return -5.0 * sigmoid(rate * (ref->c[at] + (double)layer->dt_bias[at]));
}

/* One head: S <- S diag(exp g); u = beta (v - S k); S <- S + u k'; o = S q / sqrt(K). */
static void delta_head(struct ref64 *ref, double *state, const struct served_layer *layer,
    size_t h, double beta, double *out)
{
    const struct served_options *o = &ref->model->options;
    size_t dim = o->head_dim, shared = h / (o->v_heads / o->heads);
    const double *q = ref->b + shared * dim, *k = ref->b + ref->model->key_dim + shared * dim;
    const double *v = ref->b + 2 * (size_t)ref->model->key_dim + h * dim;
    for (size_t j = 0; j < dim; j++) {
        double decay = exp(log_decay(ref, layer, h, j));
        for (size_t i = 0; i < dim; i++)
            state[i * dim + j] *= decay;
    }
    for (size_t i = 0; i < dim; i++) {
        double seen = 0, sum = 0;
        for (size_t j = 0; j < dim; j++)
            seen += state[i * dim + j] * k[j];
        double update = beta * (v[i] - seen);
        for (size_t j = 0; j < dim; j++) {
            state[i * dim + j] += update * k[j];
            sum += state[i * dim + j] * q[j];
        }
        out[i] = sum / sqrt((double)dim);
    }
}

/* One head of Mamba-2: S <- S exp(-rate dt) + dt x B'; y = S C + D x; b is [x | B | C]. */
static void mamba_head(struct ref64 *ref, double *state, const struct served_layer *layer,
    size_t h, double *out)
{
    const struct served_options *o = &ref->model->options;
    size_t dim = o->head_dim, shared = h / (o->v_heads / o->heads);
    const double *x = ref->b + h * dim, *b = ref->b + ref->model->value_dim + shared * dim;
    const double *c = b + ref->model->key_dim;
    double dt = softplus(ref->c[h] + (double)layer->dt_bias[h]);
    double decay = exp(-exp((double)layer->a_log[h]) * dt);
    for (size_t i = 0; i < dim; i++) {
        double sum = (double)layer->skip[h] * x[i];
        for (size_t j = 0; j < dim; j++) {
            state[i * dim + j] = state[i * dim + j] * decay + dt * x[i] * b[j];
            sum += state[i * dim + j] * c[j];
        }
        out[i] = sum;
    }
}

static void mamba(struct ref64 *ref, uint32_t index, const struct served_layer *layer)
{
    const struct served_model *m = ref->model;
    const struct served_options *o = &m->options;
    size_t dim = o->head_dim;
    times(ref->h, layer->qkv, ref->a, o->hidden, m->channels);
    conv(ref, &ref->layers[index], layer->conv, layer->conv_bias);
    times(ref->h, layer->decay, ref->c, o->hidden, m->decay_dim);
    times(ref->h, layer->gate, ref->d, o->hidden, m->value_dim);
    for (size_t h = 0; h < o->v_heads; h++) {
        double *out = ref->a + h * dim, *z = ref->d + h * dim;
        mamba_head(ref, ref->layers[index].state + h * dim * dim, layer, h, out);
        for (size_t i = 0; i < dim; i++)
            out[i] *= z[i] * sigmoid(z[i]);
        rms(out, layer->out_norm, out, dim, 1e-6);
    }
    times(ref->a, layer->out, ref->d, m->value_dim, o->hidden);
}

static void linear(struct ref64 *ref, uint32_t index, const struct served_layer *layer)
{
    const struct served_model *m = ref->model;
    const struct served_options *o = &m->options;
    size_t dim = o->head_dim;
    double beta[256];
    times(ref->h, layer->qkv, ref->a, o->hidden, m->channels);
    conv(ref, &ref->layers[index], layer->conv, NULL);
    for (size_t h = 0; h < 2 * (size_t)o->heads; h++)
        normalise(ref->b + h * dim, dim);
    times(ref->h, layer->decay, ref->c, o->hidden, m->decay_dim);
    times(ref->h, layer->beta, beta, o->hidden, o->v_heads);
    times(ref->h, layer->gate, ref->d, o->hidden, m->value_dim);
    for (size_t h = 0; h < o->v_heads; h++)
        delta_head(ref, ref->layers[index].state + h * dim * dim, layer, h, sigmoid(beta[h]),
            ref->a + h * dim);
    for (size_t h = 0; h < o->v_heads; h++) {
        double *out = ref->a + h * dim, *z = ref->d + h * dim;
        rms(out, layer->out_norm, out, dim, 1e-6);
        for (size_t i = 0; i < dim; i++)
            out[i] *= o->kind == SC_K_KIND_GDN ? z[i] * sigmoid(z[i]) : sigmoid(z[i]);
    }
    times(ref->a, layer->out, ref->d, m->value_dim, o->hidden);
}

static void attention(struct ref64 *ref, uint32_t index, const struct served_layer *layer)
{
    const struct served_model *m = ref->model;
    size_t width = m->attention_width, dim = m->options.attention_dim, count = ref->count + 1;
    const struct ref_layer *kv = &ref->layers[index];
    times(ref->h, layer->query, ref->a, m->options.hidden, width);
    times(ref->h, layer->key, kv->keys + ref->count * width, m->options.hidden, width);
    times(ref->h, layer->value, kv->values + ref->count * width, m->options.hidden, width);
    for (size_t head = 0; head < width; head += dim) {
        double top = -INFINITY, sum = 0;
        for (size_t i = 0; i < count; i++) {
            double dot = 0;
            for (size_t d = 0; d < dim; d++)
                dot += ref->a[head + d] * kv->keys[i * width + head + d];
            ref->score[i] = dot / sqrt((double)dim);
            top = fmax(top, ref->score[i]);
        }
        memset(ref->b + head, 0, dim * sizeof *ref->b);
        for (size_t i = 0; i < count; i++) {
            double weight = exp(ref->score[i] - top);
            sum += weight;
            for (size_t d = 0; d < dim; d++)
                ref->b[head + d] += weight * kv->values[i * width + head + d];
        }
        for (size_t d = 0; d < dim; d++)
            ref->b[head + d] /= sum;
    }
    times(ref->b, layer->out, ref->d, width, m->options.hidden);
}

void ref64_step(struct ref64 *ref, int32_t token, double *hidden_out)
{
    const struct served_model *m = ref->model;
    const struct served_options *o = &m->options;
    size_t hidden = o->hidden;
    const float *row = m->embedding + (uint32_t)token % o->vocab * hidden;
    for (size_t i = 0; i < hidden; i++)
        ref->x[i] = (double)row[i];
    for (uint32_t i = 0; i < o->layers; i++) {
        const struct served_layer *layer = &m->layers[i];
        rms(ref->x, layer->norm, ref->h, hidden, 1e-6);
        if (layer->is_attention)
            attention(ref, i, layer);
        else if (o->mamba)
            mamba(ref, i, layer);
        else
            linear(ref, i, layer);
        for (size_t j = 0; j < hidden; j++)
            ref->x[j] += ref->d[j];
        rms(ref->x, layer->mlp_norm, ref->h, hidden, 1e-6);
        times(ref->h, layer->mlp_gate, ref->a, hidden, o->mlp);
        times(ref->h, layer->mlp_up, ref->b, hidden, o->mlp);
        for (size_t j = 0; j < o->mlp; j++)
            ref->a[j] *= sigmoid(ref->a[j]) * ref->b[j];
        times(ref->a, layer->mlp_down, ref->d, o->mlp, hidden);
        for (size_t j = 0; j < hidden; j++)
            ref->x[j] += ref->d[j];
    }
    rms(ref->x, m->norm, hidden_out, hidden, 1e-6);
    ref->count++;
}

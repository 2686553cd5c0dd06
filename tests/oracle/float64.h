/* SPDX-License-Identifier: Apache-2.0 */
/* The formulas of reference.py in C and float64, token by token, for shapes that no fixture has.
 * test_kernels_sweep compares them with the fixtures first. Dense arrays of one token:
 * q, k [heads][k_dim]; v, o [v_heads][v_dim]; g [v_heads] or [v_heads][k_dim]; beta [v_heads];
 * S [v_heads][v_dim][k_dim]. */
#ifndef SC_TESTS_ORACLE_FLOAT64_H
#define SC_TESTS_ORACLE_FLOAT64_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline double f64_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static inline double f64_softplus(double x)
{
    return x > 20.0 ? x : log1p(exp(x));
}

/* act: 0 identity, 1 silu, 2 sigmoid */
static inline double f64_act(double x, int act)
{
    return act == 0 ? x : act == 1 ? x * f64_sigmoid(x) : f64_sigmoid(x);
}

/* To the nearest bf16 number, ties to even. */
static inline double f64_bf16(double x)
{
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, 4);
    u = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
    memcpy(&f, &u, 4);
    return (double)f;
}

/* y of `channels` at one token; ext[j] is row j of its window and, last, its own input. */
static inline void f64_conv(double *y, const double *const *ext, const double *weight,
    const double *bias, uint32_t channels, uint32_t width, int act)
{
    for (uint32_t c = 0; c < channels; c++) {
        double sum = bias != NULL ? bias[c] : 0.0;
        for (uint32_t j = 0; j < width; j++) sum += weight[c * width + j] * ext[j][c];
        y[c] = f64_act(sum, act);
    }
}

/* gate: 1 GDN, 2 KDA with softplus, 3 KDA bounded */
static inline double f64_gate(int gate, double a, double a_log, double dt_bias, double bound)
{
    if (gate == 3) return bound * f64_sigmoid(exp(a_log) * (a + dt_bias));
    return -exp(a_log) * f64_softplus(a + dt_bias);
}

static inline void f64_l2norm(double *y, const double *x, uint32_t dim, double eps)
{
    double sum = eps;
    for (uint32_t i = 0; i < dim; i++) sum += x[i] * x[i];
    for (uint32_t i = 0; i < dim; i++) y[i] = x[i] / sqrt(sum);
}

static inline void f64_gated_rmsnorm(double *y, const double *x, const double *z,
    const double *weight, uint32_t dim, double eps, int act, bool gate_first)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < dim; i++) {
        y[i] = gate_first ? x[i] * f64_act(z[i], act) : x[i];
        sum += y[i] * y[i];
    }
    double rms = sqrt(sum / dim + eps);
    for (uint32_t i = 0; i < dim; i++)
        y[i] = y[i] / rms * weight[i] * (gate_first ? 1.0 : f64_act(z[i], act));
}

struct f64_delta {
    uint32_t heads, v_heads, k_dim, v_dim;
    bool kda, norm;
    double scale;
};

/* One token: decay, read, write, output. `rounded`: the state is kept in bf16. */
static inline void f64_delta_step(const struct f64_delta *d, double *s, const double *q,
    const double *k, const double *v, const double *g, const double *beta, double *o, bool rounded)
{
    uint32_t dim = d->k_dim;
    double qn[256], kn[256];
    for (uint32_t hv = 0; hv < d->v_heads; hv++) {
        uint32_t h = hv / (d->v_heads / d->heads);
        memcpy(qn, q + (size_t)h * dim, dim * sizeof *qn);
        memcpy(kn, k + (size_t)h * dim, dim * sizeof *kn);
        if (d->norm) f64_l2norm(qn, qn, dim, 1e-6), f64_l2norm(kn, kn, dim, 1e-6);
        for (uint32_t r = 0; r < d->v_dim; r++) {
            double *row = s + ((size_t)hv * d->v_dim + r) * dim, read = 0.0, out = 0.0;
            for (uint32_t i = 0; i < dim; i++) {
                row[i] *= exp(d->kda ? g[(size_t)hv * dim + i] : g[hv]);
                read += row[i] * kn[i];
            }
            double u = beta[hv] * (v[(size_t)hv * d->v_dim + r] - read);
            for (uint32_t i = 0; i < dim; i++) {
                row[i] += u * kn[i];
                out += row[i] * qn[i];
                if (rounded) row[i] = f64_bf16(row[i]);
            }
            if (o != NULL) o[(size_t)hv * d->v_dim + r] = out * d->scale;
        }
    }
}

struct f64_ssm {
    uint32_t heads, groups, head_dim, state_dim;
    const double *a_log, *dt_bias, *d; /* the last two may be NULL */
};

/* One token of Mamba-2; z may be NULL. S [heads][head_dim][state_dim]. */
static inline void f64_ssm_step(const struct f64_ssm *m, double *s, const double *x,
    const double *dt, const double *b, const double *c, const double *z, double *y, bool rounded)
{
    for (uint32_t h = 0; h < m->heads; h++) {
        size_t group = (size_t)(h / (m->heads / m->groups)) * m->state_dim;
        double step = f64_softplus(dt[h] + (m->dt_bias != NULL ? m->dt_bias[h] : 0.0));
        double decay = exp(-exp(m->a_log[h]) * step);
        for (uint32_t p = 0; p < m->head_dim; p++) {
            size_t at = (size_t)h * m->head_dim + p;
            double *row = s + at * m->state_dim, out = 0.0;
            for (uint32_t n = 0; n < m->state_dim; n++) {
                row[n] = row[n] * decay + step * x[at] * b[group + n];
                out += row[n] * c[group + n];
                if (rounded) row[n] = f64_bf16(row[n]);
            }
            if (m->d != NULL) out += m->d[h] * x[at];
            if (y != NULL) y[at] = z != NULL ? out * f64_act(z[at], 1) : out;
        }
    }
}

#endif

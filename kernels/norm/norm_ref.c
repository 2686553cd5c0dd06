/* SPDX-License-Identifier: Apache-2.0 */
/* l2norm and gated RMSNorm on the host. Dimensions may be long (Mamba-2 norms over a whole group),
 * so both walk a vector in tiles; the sum of squares keeps 16 lanes across tiles, the order of one
 * ref_dot over the whole vector. */
#include "kernel_check.h"
#include "kernel_dispatch.h"
#include "ref_math.h"
#ifdef __AVX2__
#include "v16_math.h"
#endif

enum { TILE = 256 };
_Static_assert(TILE % 16 == 0, "lanes continue from tile to tile");

SC_REF_INLINE sc_dtype z_dtype(const sc_k_gated_rmsnorm_params *p)
{
    return (uint32_t)p->z_dtype != 0 ? p->z_dtype : p->dtype;
}

/* x[0..n) * act(z[0..n)) when gated, else x. */
SC_REF_INLINE void load_gated(float *restrict x, const sc_k_gated_rmsnorm_params *p, int64_t x_at,
    int64_t z_at, uint32_t n)
{
    ref_load(x, p->x, p->dtype, x_at, n);
    if (!p->gate_first) return;
    float z[TILE];
    ref_load(z, p->z, z_dtype(p), z_at, n);
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] * (p->act == SC_K_ACT_SILU ? ref_silu(z[i]) : ref_sigmoid(z[i]));
}

SC_REF_INLINE void lane_squares(float *lane, const float *x, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t l = 0; l < 16; l++) lane[l] += x[i + l] * x[i + l];
    for (uint32_t l = 0; i + l < n; l++) lane[l] += x[i + l] * x[i + l];
}

#ifdef __AVX2__
/* ---- dims of whole lanes: no buffer in between ---- */

/* Of `count` vectors, each. */
SC_REF_INLINE void gates(v16 *z, uint32_t count, sc_k_act act)
{
    if (act == SC_K_ACT_SILU) {
        v16_silus(z, count);
        return;
    }
    UNROLL for (uint32_t i = 0; i < count; i++) z[i] = v16_sigmoid(z[i]);
}

/* x <- x act(z), z from element `at` on. */
SC_REF_INLINE void multiply_gated(v16 *x, uint32_t count, const sc_k_gated_rmsnorm_params *p,
    sc_k_act act, int64_t at)
{
    v16 z[V16_MANY];
    UNROLL for (uint32_t i = 0; i < count; i++)
        z[i] = v16_take(sc_host_ptr(p->z), z_dtype(p), at + 16 * i);
    gates(z, count, act);
    UNROLL for (uint32_t i = 0; i < count; i++) x[i] = v16_mul(x[i], z[i]);
}

/* A head's elements in memory. */
struct head {
    int64_t x_at, z_at, y_at, w_at;
};

/* `count` vectors of x from d on, gated if the gate comes first. */
SC_REF_INLINE void take_gated(v16 *x, uint32_t count, const sc_k_gated_rmsnorm_params *p,
    sc_dtype dtype, const struct head *head, uint32_t d)
{
    UNROLL for (uint32_t i = 0; i < count; i++)
        x[i] = v16_take(sc_host_ptr(p->x), dtype, head->x_at + d + 16 * i);
    if (p->gate_first) multiply_gated(x, count, p, p->act, head->z_at + d);
}

SC_REF_INLINE v16 add_squares(v16 squares, uint32_t count, const sc_k_gated_rmsnorm_params *p,
    sc_dtype dtype, const struct head *head, uint32_t d)
{
    v16 x[V16_MANY];
    take_gated(x, count, p, dtype, head, d);
    UNROLL for (uint32_t i = 0; i < count; i++) squares = v16_add(squares, v16_mul(x[i], x[i]));
    return squares;
}

SC_REF_INLINE void scale(v16 rms, uint32_t count, const sc_k_gated_rmsnorm_params *p,
    sc_dtype dtype, sc_k_act act, const struct head *head, uint32_t d)
{
    v16 x[V16_MANY];
    take_gated(x, count, p, dtype, head, d);
    UNROLL for (uint32_t i = 0; i < count; i++)
        x[i] = v16_mul(v16_mul(x[i], rms), v16_take(sc_host_ptr(p->weight), p->weight_dtype,
            head->w_at + d + 16 * i));
    if (!p->gate_first) multiply_gated(x, count, p, act, head->z_at + d);
    UNROLL for (uint32_t i = 0; i < count; i++)
        v16_put(sc_host_ptr(p->y), dtype, head->y_at + d + 16 * i, x[i]);
}

/* `dim`, `dtype` and `act` are known at compile time, or what `p` says. */
SC_REF_INLINE void rmsnorm_wide(const sc_k_gated_rmsnorm_params *p, uint32_t dim, sc_dtype dtype,
    sc_k_act act, const struct head *head)
{
    v16 squares = v16_zero();
    uint32_t d = 0;
    for (; d + 16 * V16_MANY <= dim; d += 16 * V16_MANY)
        squares = add_squares(squares, V16_MANY, p, dtype, head, d);
    for (; d < dim; d += 16) squares = add_squares(squares, 1, p, dtype, head, d);
    v16 rms = v16_set(1.0f / sqrtf(v16_sum(squares) / (float)dim + p->eps));
    for (d = 0; d + 16 * V16_MANY <= dim; d += 16 * V16_MANY)
        scale(rms, V16_MANY, p, dtype, act, head, d);
    for (; d < dim; d += 16) scale(rms, 1, p, dtype, act, head, d);
}

/* False: there is no such form. */
SC_REF_INLINE bool rmsnorm_fast(const sc_k_gated_rmsnorm_params *p, const struct head *head)
{
    bool plain = !p->gate_first && z_dtype(p) == p->dtype && p->dim == 128;
    bool silu = p->act == SC_K_ACT_SILU;
    if (p->dim % 16 != 0) return false;
    if (plain && silu && p->dtype == SC_DTYPE_F32)
        rmsnorm_wide(p, 128, SC_DTYPE_F32, SC_K_ACT_SILU, head);
    else if (plain && silu)
        rmsnorm_wide(p, 128, SC_DTYPE_BF16, SC_K_ACT_SILU, head);
    else
        rmsnorm_wide(p, p->dim, p->dtype, p->act, head);
    return true;
}
#endif

static void rmsnorm_head(const sc_k_gated_rmsnorm_params *p, int64_t x_at,
    int64_t z_at, int64_t y_at, int64_t w_at)
{
#ifdef __AVX2__
    const struct head head = {x_at, z_at, y_at, w_at};
    if (rmsnorm_fast(p, &head)) return;
#endif
    float lane[16] = {0}, x[TILE], z[TILE], w[TILE];
    for (uint32_t d = 0; d < p->dim; d += TILE) {
        uint32_t n = p->dim - d < TILE ? p->dim - d : TILE;
        load_gated(x, p, x_at + d, z_at + d, n);
        lane_squares(lane, x, n);
    }
    float rms = 1.0f / sqrtf(ref_lane_sum(lane, NULL, NULL, 0) / (float)p->dim + p->eps);
    for (uint32_t d = 0; d < p->dim; d += TILE) {
        uint32_t n = p->dim - d < TILE ? p->dim - d : TILE;
        load_gated(x, p, x_at + d, z_at + d, n);
        ref_load(w, p->weight, p->weight_dtype, w_at + d, n);
        for (uint32_t i = 0; i < n; i++) x[i] = x[i] * rms * w[i];
        if (!p->gate_first) {
            ref_load(z, p->z, z_dtype(p), z_at + d, n);
            if (p->act == SC_K_ACT_SILU)
                for (uint32_t i = 0; i < n; i++) x[i] = x[i] * ref_silu(z[i]);
            else
                for (uint32_t i = 0; i < n; i++) x[i] = x[i] * ref_sigmoid(z[i]);
        }
        ref_store(x, p->y, p->dtype, y_at + d, n);
    }
}

sc_status SC_HOST_FN(sc_k_gated_rmsnorm)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_gated_rmsnorm_params *p = params;
    uint64_t dense = (uint64_t)p->heads * p->dim;
    int64_t xs = sc_kernel_stride(p->x_stride, dense), zs = sc_kernel_stride(p->z_stride, dense);
    int64_t ys = sc_kernel_stride(p->y_stride, dense);
    for (int64_t t = 0; t < p->token_count; t++)
        for (uint32_t h = 0; h < p->heads; h++) {
            int64_t at = (int64_t)h * p->dim;
            rmsnorm_head(p, t * xs + at, t * zs + at, t * ys + at, p->weight_per_head ? at : 0);
        }
    return SC_OK;
}

#ifdef __AVX2__
SC_REF_INLINE void l2norm_wide(const sc_k_l2norm_params *p, uint32_t dim, int64_t x_at,
    int64_t y_at)
{
    const void *in = sc_host_ptr(p->x);
    v16 squares = v16_zero();
    for (uint32_t d = 0; d < dim; d += 16) {
        v16 x = v16_take(in, p->dtype, x_at + d);
        squares = v16_add(squares, v16_mul(x, x));
    }
    v16 root = v16_set(sqrtf(v16_sum(squares) + p->eps));
    for (uint32_t d = 0; d < dim; d += 16)
        v16_put(sc_host_ptr(p->y), p->out_dtype, y_at + d,
            v16_div(v16_take(in, p->dtype, x_at + d), root));
}
#endif

static void l2norm_head(const sc_k_l2norm_params *p, int64_t x_at, int64_t y_at)
{
#ifdef __AVX2__
    if (p->dim % 16 == 0) {
        l2norm_wide(p, p->dim, x_at, y_at);
        return;
    }
#endif
    float lane[16] = {0}, x[TILE];
    for (uint32_t d = 0; d < p->dim; d += TILE) {
        uint32_t n = p->dim - d < TILE ? p->dim - d : TILE;
        ref_load(x, p->x, p->dtype, x_at + d, n);
        lane_squares(lane, x, n);
    }
    float root = sqrtf(ref_lane_sum(lane, NULL, NULL, 0) + p->eps);
    for (uint32_t d = 0; d < p->dim; d += TILE) {
        uint32_t n = p->dim - d < TILE ? p->dim - d : TILE;
        ref_load(x, p->x, p->dtype, x_at + d, n);
        for (uint32_t i = 0; i < n; i++) x[i] = x[i] / root;
        ref_store(x, p->y, p->out_dtype, y_at + d, n);
    }
}

sc_status SC_HOST_FN(sc_k_l2norm)(const void *params, sc_stream *stream)
{
    (void)stream;
    const sc_k_l2norm_params *p = params;
    uint64_t dense = (uint64_t)p->heads * p->dim;
    int64_t xs = sc_kernel_stride(p->x_stride, dense), ys = sc_kernel_stride(p->y_stride, dense);
    for (int64_t t = 0; t < p->token_count; t++)
        for (uint32_t h = 0; h < p->heads; h++)
            l2norm_head(p, t * xs + (int64_t)h * p->dim, t * ys + (int64_t)h * p->dim);
    return SC_OK;
}

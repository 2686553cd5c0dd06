/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the kernel tests of the host on the device. Included before everything else when one of
 * tests/unit/test_kernels_*.c is compiled for the GPU: each call of an operation becomes one that
 * copies every tensor it names to the device, runs there, and copies every tensor back, bytes that
 * the kernel must not touch included. So the same cases, the same float64 fixtures and the same
 * demands on bits hold for both.
 *
 * What the host alone can check (index arrays) is left out there: SC_TEST_GPU.
 *
 * Tensors that share host memory (in place, packed q k v) share device memory, too. Without a
 * device the program ends with 77, which ctest counts as skipped. */
#ifndef SC_TESTS_GPU_SHIM_H
#define SC_TESTS_GPU_SHIM_H
#define SC_TEST_GPU 1

#ifdef SC_GPU_MAIN /* the name that main() takes in test_gpu_kernels, which holds them all */
int SC_GPU_MAIN(void);
#define main SC_GPU_MAIN
#endif

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "kernels/backend.h"
#include "statecache/kernels_move.h"

enum { GPU_RANGES = 40, GPU_ALIGN = 256 };
#define GPU_ARENA_BYTES ((uint64_t)1 << 30)

struct gpu_range {
    sc_devptr host, device;
    uint64_t bytes;
};

static struct {
    sc_backend *backend;
    struct sc_backend_memory arena;
    uint64_t used;
    struct gpu_range ranges[GPU_RANGES];
    uint32_t count;
    sc_devptr named[4]; /* arrays of slots that the call names, and their lengths */
    uint64_t named_count[4];
    sc_status status; /* first failure of the call being made */
} gpu;

/* Where the fixtures are: SC_FIXTURES, so that a packed folder can be moved, or the source tree. */
static inline const char *gpu_fixtures(void)
{
    const char *set = getenv("SC_FIXTURES");
    return set != NULL ? set : SC_FIXTURE_TREE;
}
#define SC_FIXTURE_DIR gpu_fixtures()

__attribute__((constructor)) static void gpu_open(void)
{
    sc_status status = sc_backend_open("cuda", &gpu.backend);
    if (status == SC_ERR_UNSUPPORTED) {
        fprintf(stderr, "skipped: %s\n", sc_last_error()->text);
        _exit(77);
    }
    if (status == SC_OK) status = sc_backend_alloc(gpu.backend, GPU_ARENA_BYTES, &gpu.arena);
    if (status == SC_OK) return;
    fprintf(stderr, "cannot use the device: %s\n", sc_last_error()->text);
    _exit(1);
}

static void gpu_note(sc_status status)
{
    if (gpu.status == SC_OK) gpu.status = status;
}

static void gpu_begin(void)
{
    gpu.used = 0;
    gpu.count = 0;
    gpu.status = SC_OK;
}

/* The device address of `bytes` bytes at `host`; 0 for 0. The byte's place within 256 is kept, so
 * that alignment is what the test made it. */
static sc_devptr gpu_map(sc_devptr host, uint64_t bytes)
{
    if (host == 0 || bytes == 0) return host;
    for (uint32_t i = 0; i < gpu.count; i++) {
        struct gpu_range *x = &gpu.ranges[i];
        if (host >= x->host && host + bytes <= x->host + x->bytes)
            return x->device + (host - x->host);
    }
    uint64_t at = (gpu.used + GPU_ALIGN - 1) / GPU_ALIGN * GPU_ALIGN + host % GPU_ALIGN;
    if (gpu.count == GPU_RANGES || at + bytes > gpu.arena.bytes) {
        gpu_note(SC_FAIL(SC_ERR_NO_MEMORY, "the test's tensors do not fit the device arena"));
        return host;
    }
    gpu.used = at + bytes;
    gpu.ranges[gpu.count++] = (struct gpu_range){host, gpu.arena.base + at, bytes};
    gpu_note(sc_backend_copy(gpu.backend, SC_COPY_H2D, gpu.arena.base + at, host, bytes));
    return gpu.arena.base + at;
}

/* A tensor of `rows` rows, `width` elements used in each. */
static sc_devptr gpu_tensor(sc_devptr host, sc_dtype dtype, uint64_t rows, int64_t stride,
    uint64_t width)
{
    uint64_t step = stride != 0 ? (uint64_t)stride : width, elem = dtype == SC_DTYPE_BF16 ? 2 : 4;
    return rows == 0 ? host : gpu_map(host, ((rows - 1) * step + width) * elem);
}

static sc_devptr gpu_ints(sc_devptr host, uint64_t count)
{
    return gpu_map(host, count * sizeof(int32_t));
}

static bool gpu_names(int32_t slot)
{
    for (uint32_t n = 0; n < 4; n++)
        for (uint64_t i = 0; gpu.named[n] != 0 && i < gpu.named_count[n]; i++)
            if (((const int32_t *)sc_host_ptr(gpu.named[n]))[i] == slot) return true;
    return false;
}

/* Host arrays, before they are mapped. */
static void gpu_name(sc_devptr source, sc_devptr dest, sc_devptr save, uint64_t rows,
    const sc_k_saves *saves)
{
    gpu.named[0] = source, gpu.named[1] = dest, gpu.named[2] = save;
    gpu.named_count[0] = gpu.named_count[1] = gpu.named_count[2] = rows;
    gpu.named[3] = saves != NULL ? saves->slot : 0;
    gpu.named_count[3] = saves != NULL ? saves->count : 0;
}

/* A pool too large to copy: memory as large on the device, and only slot by slot what is in it. */
static void gpu_far_slots(sc_k_slots *slots, uint64_t part)
{
    static struct sc_backend_memory far;
    uint64_t bytes = (uint64_t)slots->slot_stride * (slots->slot_count - 1) + part;
    if (far.bytes < bytes) {
        sc_backend_free(gpu.backend, &far);
        gpu_note(sc_backend_alloc(gpu.backend, bytes, &far));
    }
    for (uint32_t i = 0; i < slots->slot_count && gpu.status == SC_OK; i++) {
        uint64_t at = (uint64_t)slots->slot_stride * i;
        if (!gpu_names((int32_t)i)) continue;
        if (gpu.count == GPU_RANGES) {
            gpu_note(SC_FAIL(SC_ERR_NO_MEMORY, "too many slots far apart"));
            return;
        }
        gpu.ranges[gpu.count++] = (struct gpu_range){slots->base + at, far.base + at, part};
        gpu_note(sc_backend_copy(gpu.backend, SC_COPY_H2D, far.base + at, slots->base + at,
            part));
    }
    slots->base = far.base;
}

static void gpu_slots(sc_k_slots *slots, uint64_t elems)
{
    uint64_t part = elems * (slots->dtype == SC_DTYPE_BF16 ? 2 : 4);
    uint64_t bytes = (uint64_t)slots->slot_stride * (slots->slot_count - 1) + part;
    if (bytes > GPU_ARENA_BYTES / 2)
        gpu_far_slots(slots, part);
    else
        slots->base = gpu_map(slots->base, bytes);
}

static void gpu_saves(sc_k_saves *saves)
{
    saves->row = gpu_ints(saves->row, saves->count);
    saves->pos = gpu_ints(saves->pos, saves->count);
    saves->slot = gpu_ints(saves->slot, saves->count);
}

/* `count` slots or entries of a part of `bytes` bytes. */
static void gpu_entries(sc_k_slots *slots, uint64_t count, uint64_t bytes)
{
    if (count > 0 && slots->base != 0)
        slots->base = gpu_map(slots->base, (uint64_t)slots->slot_stride * (count - 1) + bytes);
}

/* Dense beginnings of `rows` parts of `elems` elements. */
static void gpu_beginnings(sc_k_slots *initial, uint64_t rows, uint64_t elems)
{
    gpu_entries(initial, rows, elems * (initial->dtype == SC_DTYPE_BF16 ? 2 : 4));
}

static void gpu_gate_weights(sc_k_gate_weights *w, uint64_t heads, uint64_t dim)
{
    w->a_log = gpu_tensor(w->a_log, SC_DTYPE_F32, 1, 0, heads);
    w->dt_bias = gpu_tensor(w->dt_bias, w->dt_bias_dtype, 1, 0,
        heads * (w->gate == SC_K_GATE_GDN ? 1 : dim));
}

static sc_status gpu_end(sc_status status)
{
    gpu_note(status);
    if (gpu.status == SC_OK) gpu_note(sc_backend_stream_sync(gpu.backend, NULL));
    for (uint32_t i = 0; i < gpu.count && gpu.status == SC_OK; i++)
        gpu_note(sc_backend_copy(gpu.backend, SC_COPY_D2H, gpu.ranges[i].host,
            gpu.ranges[i].device, gpu.ranges[i].bytes));
    return gpu.status;
}

/* Parts lie on the host, everything they name on the device. */
static inline sc_status gpu_move(const sc_k_move_params *params)
{
    enum { PARTS_MAX = 8 };
    if (params == NULL || params->part_count > PARTS_MAX || params->parts == NULL)
        return sc_k_move(gpu.backend, params, NULL);
    sc_k_move_part parts[PARTS_MAX];
    sc_k_move_params p = *params;
    gpu_begin();
    for (uint32_t i = 0; i < p.part_count; i++) {
        sc_k_move_part *x = &parts[i];
        *x = p.parts[i];
        sc_k_slots *ends[] = {&x->from, &x->to}, *scales[] = {&x->from_scale, &x->to_scale};
        for (uint32_t e = 0; e < 2; e++) {
            uint64_t bytes = ends[e]->dtype == SC_DTYPE_U8 ? 1
                : ends[e]->dtype == SC_DTYPE_BF16 ? 2 : 4;
            gpu_entries(ends[e], ends[e]->slot_count, (uint64_t)x->rows * x->row_elems * bytes);
            gpu_entries(scales[e], scales[e]->slot_count, 4ull * x->rows);
        }
    }
    p.parts = parts;
    p.source = gpu_ints(p.source, p.row_count);
    p.dest = gpu_ints(p.dest, p.row_count);
    if (gpu.status != SC_OK) return gpu.status;
    return gpu_end(sc_k_move(gpu.backend, &p, NULL));
}

static inline sc_status gpu_conv_prefill(const sc_k_conv_prefill_params *params)
{
    sc_k_conv_prefill_params p = *params;
    gpu_begin();
    gpu_name(p.source, p.dest, 0, p.row_count, &p.saves);
    p.x = gpu_tensor(p.x, p.dtype, p.token_count, p.x_stride, p.channels);
    p.y = gpu_tensor(p.y, p.dtype, p.token_count, p.y_stride, p.channels);
    p.weight = gpu_tensor(p.weight, p.weight_dtype, p.channels, 0, p.width);
    p.bias = gpu_tensor(p.bias, p.weight_dtype, 1, 0, p.channels);
    p.row_start = gpu_ints(p.row_start, p.row_count + 1ull);
    p.position = gpu_ints(p.position, p.row_count);
    p.source = gpu_ints(p.source, p.row_count);
    p.dest = gpu_ints(p.dest, p.row_count);
    gpu_saves(&p.saves);
    gpu_beginnings(&p.initial, p.row_count, (uint64_t)(p.width - 1) * p.channels);
    gpu_slots(&p.window, (uint64_t)(p.width - 1) * p.channels);
    if (gpu.status != SC_OK) return gpu.status;
    return gpu_end(sc_k_conv_prefill(gpu.backend, &p, NULL));
}

static void gpu_update_params(sc_k_conv_update_params *p)
{
    gpu_name(p->source, p->dest, p->save, p->row_count, NULL);
    p->x = gpu_tensor(p->x, p->dtype, p->row_count, p->x_stride, p->channels);
    p->y = gpu_tensor(p->y, p->dtype, p->row_count, p->y_stride, p->channels);
    p->weight = gpu_tensor(p->weight, p->weight_dtype, p->channels, 0, p->width);
    p->bias = gpu_tensor(p->bias, p->weight_dtype, 1, 0, p->channels);
    p->source = gpu_ints(p->source, p->row_count);
    p->dest = gpu_ints(p->dest, p->row_count);
    p->save = gpu_ints(p->save, p->row_count);
    gpu_beginnings(&p->initial, p->row_count, (uint64_t)(p->width - 1) * p->channels);
    gpu_slots(&p->window, (uint64_t)(p->width - 1) * p->channels);
}

static inline sc_status gpu_conv_update(const sc_k_conv_update_params *params)
{
    sc_k_conv_update_params p = *params;
    gpu_begin();
    gpu_update_params(&p);
    if (gpu.status != SC_OK) return gpu.status;
    return gpu_end(sc_k_conv_update(gpu.backend, &p, NULL));
}

static inline sc_status gpu_gates(const sc_k_gates_params *params)
{
    sc_k_gates_params p = *params;
    uint64_t n = p.weights.gate == SC_K_GATE_GDN ? 1 : p.dim;
    gpu_begin();
    p.a = p.g != 0 ? gpu_tensor(p.a, p.dtype, p.token_count, p.a_stride, p.heads * n) : 0;
    p.b = p.beta != 0 ? gpu_tensor(p.b, p.dtype, p.token_count, p.b_stride, p.heads) : 0;
    gpu_gate_weights(&p.weights, p.heads, p.dim);
    p.g = gpu_tensor(p.g, SC_DTYPE_F32, p.token_count, 0, p.heads * n);
    p.beta = gpu_tensor(p.beta, SC_DTYPE_F32, p.token_count, 0, p.heads);
    if (gpu.status != SC_OK) return gpu.status;
    return gpu_end(sc_k_gates(gpu.backend, &p, NULL));
}

static inline sc_status gpu_l2norm(const sc_k_l2norm_params *params)
{
    sc_k_l2norm_params p = *params;
    uint64_t width = (uint64_t)p.heads * p.dim;
    gpu_begin();
    p.x = gpu_tensor(p.x, p.dtype, p.token_count, p.x_stride, width);
    p.y = gpu_tensor(p.y, p.out_dtype != 0 ? p.out_dtype : p.dtype, p.token_count, p.y_stride,
        width);
    if (gpu.status != SC_OK) return gpu.status;
    return gpu_end(sc_k_l2norm(gpu.backend, &p, NULL));
}

static inline sc_status gpu_gated_rmsnorm(const sc_k_gated_rmsnorm_params *params)
{
    sc_k_gated_rmsnorm_params p = *params;
    uint64_t width = (uint64_t)p.heads * p.dim;
    gpu_begin();
    p.x = gpu_tensor(p.x, p.dtype, p.token_count, p.x_stride, width);
    p.z = gpu_tensor(p.z, p.dtype, p.token_count, p.z_stride, width);
    p.y = gpu_tensor(p.y, p.dtype, p.token_count, p.y_stride, width);
    p.weight = gpu_tensor(p.weight, p.weight_dtype, 1, 0, p.weight_per_head ? width : p.dim);
    if (gpu.status != SC_OK) return gpu.status;
    return gpu_end(sc_k_gated_rmsnorm(gpu.backend, &p, NULL));
}

static void gpu_delta(sc_k_delta_params *p)
{
    const sc_k_delta_shape *s = &p->shape;
    uint64_t qk = (uint64_t)s->heads * s->k_dim, vo = (uint64_t)s->v_heads * s->v_dim;
    uint64_t t = p->token_count, g = s->v_heads * (s->kind == SC_K_KIND_KDA ? s->k_dim : 1ull);
    gpu_name(p->source, p->dest, 0, p->row_count, &p->saves);
    p->q = gpu_tensor(p->q, p->dtype, t, p->q_stride, qk);
    p->k = gpu_tensor(p->k, p->dtype, t, p->k_stride, qk);
    p->v = gpu_tensor(p->v, p->dtype, t, p->v_stride, vo);
    p->o = gpu_tensor(p->o, p->dtype, t, p->o_stride, vo);
    p->g = gpu_tensor(p->g, SC_DTYPE_F32, t, 0, g);
    p->beta = gpu_tensor(p->beta, SC_DTYPE_F32, t, 0, s->v_heads);
    p->row_start = gpu_ints(p->row_start, p->row_count + 1ull);
    p->position = gpu_ints(p->position, p->row_count);
    p->source = gpu_ints(p->source, p->row_count);
    p->dest = gpu_ints(p->dest, p->row_count);
    gpu_saves(&p->saves);
    gpu_beginnings(&p->initial, p->row_count, vo * s->k_dim);
    gpu_slots(&p->state, vo * s->k_dim);
}

static inline sc_status gpu_delta_recurrent(const sc_k_delta_params *params)
{
    sc_k_delta_params p = *params;
    gpu_begin();
    gpu_delta(&p);
    if (gpu.status != SC_OK) return gpu.status;
    return gpu_end(sc_k_delta_recurrent(gpu.backend, &p, NULL));
}

/* The scratch is the arena's end: what the host gave is for the host. */
static inline sc_status gpu_delta_chunk(const sc_k_delta_params *params)
{
    sc_k_delta_params p = *params;
    gpu_begin();
    gpu_delta(&p);
    gpu_note(sc_k_delta_chunk_scratch(gpu.backend, &p, &p.scratch_bytes));
    p.scratch = gpu.arena.base + (gpu.used + GPU_ALIGN - 1) / GPU_ALIGN * GPU_ALIGN;
    if (p.scratch + p.scratch_bytes > gpu.arena.base + gpu.arena.bytes)
        gpu_note(SC_FAIL(SC_ERR_NO_MEMORY, "scratch does not fit the device arena"));
    if (gpu.status != SC_OK) return gpu.status;
    gpu_note(sc_backend_fill(gpu.backend, p.scratch, 0xff, p.scratch_bytes, NULL));
    return gpu_end(sc_k_delta_chunk(gpu.backend, &p, NULL));
}

/* All of a decode but q, k and v. */
static void gpu_decode_rest(sc_k_decode_params *p)
{
    const sc_k_delta_shape *s = &p->shape;
    uint64_t vo = (uint64_t)s->v_heads * s->v_dim;
    uint64_t r = p->row_count, g = s->v_heads * (s->kind == SC_K_KIND_KDA ? s->k_dim : 1ull);
    gpu_name(p->source, p->dest, p->save, r, NULL);
    p->o = gpu_tensor(p->o, p->dtype, r, p->o_stride, vo);
    if (p->g == 0) {
        p->a = gpu_tensor(p->a, p->dtype, r, p->a_stride, g);
        gpu_gate_weights(&p->weights, s->v_heads, s->k_dim);
    }
    if (p->beta == 0) p->b = gpu_tensor(p->b, p->dtype, r, p->b_stride, s->v_heads);
    p->g = gpu_tensor(p->g, SC_DTYPE_F32, r, 0, g);
    p->beta = gpu_tensor(p->beta, SC_DTYPE_F32, r, 0, s->v_heads);
    p->source = gpu_ints(p->source, r);
    p->dest = gpu_ints(p->dest, r);
    p->save = gpu_ints(p->save, r);
    gpu_beginnings(&p->initial, r, vo * s->k_dim);
    gpu_slots(&p->state, vo * s->k_dim);
}

static void gpu_decode_params(sc_k_decode_packed_params *p)
{
    const sc_k_delta_shape *s = &p->shape;
    uint64_t qk = (uint64_t)s->heads * s->k_dim, vo = (uint64_t)s->v_heads * s->v_dim;
    p->qkv = gpu_tensor(p->qkv, p->dtype, p->row_count, p->qkv_stride, 2 * qk + vo);
    sc_k_decode_params rest = {.o = p->o, .o_stride = p->o_stride, .dtype = p->dtype, .g = p->g,
        .beta = p->beta, .a = p->a, .b = p->b, .a_stride = p->a_stride, .b_stride = p->b_stride,
        .weights = p->weights, .shape = p->shape, .row_count = p->row_count, .source = p->source,
        .dest = p->dest, .save = p->save, .state = p->state, .initial = p->initial};
    gpu_decode_rest(&rest);
    p->o = rest.o, p->g = rest.g, p->beta = rest.beta, p->a = rest.a, p->b = rest.b;
    p->weights = rest.weights, p->source = rest.source, p->dest = rest.dest, p->save = rest.save;
    p->state = rest.state, p->initial = rest.initial;
}

static inline sc_status gpu_decode(const sc_k_decode_params *params)
{
    sc_k_decode_params p = *params;
    const sc_k_delta_shape *s = &p.shape;
    uint64_t qk = (uint64_t)s->heads * s->k_dim, vo = (uint64_t)s->v_heads * s->v_dim;
    gpu_begin();
    p.q = gpu_tensor(p.q, p.dtype, p.row_count, p.q_stride, qk);
    p.k = gpu_tensor(p.k, p.dtype, p.row_count, p.k_stride, qk);
    p.v = gpu_tensor(p.v, p.dtype, p.row_count, p.v_stride, vo);
    gpu_decode_rest(&p);
    if (gpu.status != SC_OK) return gpu.status;
    return gpu_end(sc_k_decode(gpu.backend, &p, NULL));
}

static inline sc_status gpu_qkv_split(const sc_k_qkv_split_params *params)
{
    sc_k_qkv_split_params p = *params;
    uint64_t t = p.token_count;
    gpu_begin();
    p.qkv = gpu_tensor(p.qkv, p.dtype, t, p.qkv_stride, 2ull * p.qk_dim + p.v_dim);
    p.q = gpu_tensor(p.q, p.dtype, t, p.q_stride, p.qk_dim);
    p.k = gpu_tensor(p.k, p.dtype, t, p.k_stride, p.qk_dim);
    p.v = gpu_tensor(p.v, p.dtype, t, p.v_stride, p.v_dim);
    if (gpu.status != SC_OK) return gpu.status;
    return gpu_end(sc_k_qkv_split(gpu.backend, &p, NULL));
}

static inline sc_status gpu_decode_packed(const sc_k_decode_packed_params *params)
{
    sc_k_decode_packed_params p = *params;
    gpu_begin();
    gpu_decode_params(&p);
    if (gpu.status != SC_OK) return gpu.status;
    return gpu_end(sc_k_decode_packed(gpu.backend, &p, NULL));
}

static inline sc_status gpu_decode_step(const sc_k_conv_update_params *conv,
    const sc_k_decode_packed_params *decode)
{
    if (conv == NULL || decode == NULL || conv->row_count != decode->row_count)
        return sc_k_decode_step(gpu.backend, conv, decode, NULL);
    sc_k_conv_update_params c = *conv;
    sc_k_decode_packed_params p = *decode;
    gpu_begin();
    gpu_update_params(&c);
    gpu_decode_params(&p);
    if (gpu.status != SC_OK) return gpu.status;
    return gpu_end(sc_k_decode_step(gpu.backend, &c, &p, NULL));
}

/* From here on the tests' calls are these. */
#define sc_k_conv_prefill(backend, params, stream) gpu_conv_prefill(params)
#define sc_k_conv_update(backend, params, stream) gpu_conv_update(params)
#define sc_k_gates(backend, params, stream) gpu_gates(params)
#define sc_k_l2norm(backend, params, stream) gpu_l2norm(params)
#define sc_k_gated_rmsnorm(backend, params, stream) gpu_gated_rmsnorm(params)
#define sc_k_delta_recurrent(backend, params, stream) gpu_delta_recurrent(params)
#define sc_k_delta_chunk(backend, params, stream) gpu_delta_chunk(params)
#define sc_k_decode_packed(backend, params, stream) gpu_decode_packed(params)
#define sc_k_decode(backend, params, stream) gpu_decode(params)
#define sc_k_qkv_split(backend, params, stream) gpu_qkv_split(params)
#define sc_k_decode_step(backend, conv, decode, stream) gpu_decode_step(conv, decode)
#define sc_k_move(backend, params, stream) gpu_move(params)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the random sweeps of the kernels share. One number makes a case: SC_SEED plus the number of
 * the loop, which a failure names as ...:test:NUMBER. So
 *
 *     SC_SEED=17 CK_RUN_CASE=chunk test_kernels_sweep      runs case 17 of the sweep "chunk"
 *
 * SC_TEST_SCALE scales the number of cases; SC_TEST_SHOW=1 prints shapes and errors. All memory is
 * NaN before it is used: slots, gaps between them, outputs, inputs of padded tokens. */
#ifndef SC_TESTS_SWEEP_RIG_H
#define SC_TESTS_SWEEP_RIG_H

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#include "kernels_rig.h"
#include "oracle/float64.h"
#include "support/test_scale.h"

enum { SW_ROWS = 7, SW_SAVES = 8, SW_SLOTS = 40 };

static struct sc_prng sw_prng;
static char sw_shape[320];

static inline uint64_t sw_base(void)
{
    const char *text = getenv("SC_SEED");
    return text != NULL ? strtoull(text, NULL, 10) : 0;
}

/* Cases of one sweep. */
static inline int sw_cases(int usual)
{
    return getenv("SC_SEED") != NULL ? 1 : (int)test_scaled((uint64_t)usual, 4);
}

static inline void sw_open(const char *op, int i)
{
    uint64_t seed = sw_base() + (uint64_t)i;
    sc_prng_seed(&sw_prng, seed * 1000003u + (uint64_t)op[0] * 131 + (uint64_t)op[1]);
    (void)snprintf(sw_shape, sizeof sw_shape, "%s, SC_SEED=%llu:", op, (unsigned long long)seed);
}

static inline void __attribute__((format(printf, 1, 2))) sw_note(const char *format, ...)
{
    va_list args;
    size_t used = strlen(sw_shape);
    va_start(args, format);
    (void)vsnprintf(sw_shape + used, sizeof sw_shape - used, format, args);
    va_end(args);
}

#define SW_ASSERT(what) ck_assert_msg(what, "%s: %s", sw_shape, #what)

static inline uint32_t sw_below(uint32_t n)
{
    return (uint32_t)sc_prng_below(&sw_prng, n);
}

static inline bool sw_chance(double p)
{
    return sc_prng_unit(&sw_prng) < p;
}

static inline sc_dtype sw_dtype(void)
{
    return sw_chance(0.5) ? SC_DTYPE_BF16 : SC_DTYPE_F32;
}

/* 1 .. most, small ones and multiples of a vector's width more often. */
static inline uint32_t sw_dim(uint32_t most)
{
    static const uint32_t usual[] = {1, 2, 8, 16, 32, 64, 128, 256, 80, 48};
    uint32_t n = sw_chance(0.5) ? usual[sw_below(10)] : 1 + sw_below(most);
    return n > most ? 1 + n % most : n;
}

/* ---- tensors ---- */

/* One in two forms: as the kernel gets it, and in float64. `lead` elements before each row's first
 * are NaN, as are the gaps of a stride. */
struct sw_tensor {
    sc_dtype dtype;
    size_t rows, cols, stride;
    uint8_t *memory;
    double *wide; /* [rows][cols] */
    int64_t pitch; /* for the params: 0 when dense */
    size_t offset;
};

static inline struct sw_tensor sw_tensor(sc_dtype dtype, size_t rows, size_t cols)
{
    struct sw_tensor t = {.dtype = dtype, .rows = rows, .cols = cols, .stride = cols};
    if (sw_chance(0.4)) t.stride += sw_below(40);
    if (sw_chance(0.3)) t.offset = sw_below(9);
    t.pitch = t.stride == cols ? 0 : (int64_t)t.stride;
    t.memory = rig_alloc((rows * t.stride + t.offset + 8) * rig_elem(dtype));
    t.wide = rig_alloc((rows * cols + 1) * sizeof(double));
    return t;
}

static inline void *sw_row(const struct sw_tensor *t, size_t row)
{
    return t->memory + (t->offset + row * t->stride) * rig_elem(t->dtype);
}

static inline sc_devptr sw_ptr(const struct sw_tensor *t)
{
    return sc_host_devptr(sw_row(t, 0));
}

static inline void sw_set(struct sw_tensor *t, size_t row, const float *values)
{
    float back[1];
    rig_put(sw_row(t, row), t->dtype, values, t->cols);
    for (size_t i = 0; i < t->cols; i++) {
        rig_read(back, (uint8_t *)sw_row(t, row) + i * rig_elem(t->dtype), t->dtype, 1);
        t->wide[row * t->cols + i] = (double)back[0];
    }
}

/* Noise of this size in rows [from, to). */
static inline void sw_fill(struct sw_tensor *t, size_t from, size_t to, float scale)
{
    for (size_t row = from; row < to; row++) {
        float *x = rig_normal(&sw_prng, t->cols, scale);
        sw_set(t, row, x);
        free(x);
    }
}

/* Between two numbers instead. */
static inline void sw_uniform(struct sw_tensor *t, size_t from, size_t to, double low, double high)
{
    float *x = rig_alloc(t->cols * sizeof *x);
    for (size_t row = from; row < to; row++) {
        for (size_t i = 0; i < t->cols; i++)
            x[i] = (float)(low + (high - low) * sc_prng_unit(&sw_prng));
        sw_set(t, row, x);
    }
    free(x);
}

static inline const double *sw_wide(const struct sw_tensor *t, size_t row)
{
    return t->wide + row * t->cols;
}

/* Without gaps, of noise: weights. */
static inline struct sw_tensor sw_dense(sc_dtype dtype, size_t rows, size_t cols, float scale)
{
    struct sw_tensor t = sw_tensor(dtype, rows, cols);
    t.stride = cols, t.pitch = 0, t.offset = 0;
    sw_fill(&t, 0, rows, scale);
    return t;
}

/* All that is not a column of rows [from, to) is as it was: NaN. */
static inline void sw_gaps(const struct sw_tensor *t, size_t from, size_t to)
{
    size_t elem = rig_elem(t->dtype);
    rig_all_bytes(t->memory, t->offset * elem, 0xff);
    for (size_t row = 0; row < t->rows; row++) {
        uint8_t *at = sw_row(t, row);
        if (row < from || row >= to) rig_all_bytes(at, t->cols * elem, 0xff);
        rig_all_bytes(at + t->cols * elem, (t->stride - t->cols) * elem, 0xff);
    }
}

static inline void sw_free(struct sw_tensor *t)
{
    free(t->memory), free(t->wide);
}

/* ---- errors ---- */

struct sw_error {
    double error, size;
    size_t count;
};

static inline void sw_add(struct sw_error *e, const void *got, sc_dtype dtype, const double *want,
    size_t count)
{
    float *x = rig_alloc(count * sizeof *x);
    rig_read(x, got, dtype, count);
    for (size_t i = 0; i < count; i++) {
        double d = (double)x[i] - want[i];
        e->error += d * d, e->size += want[i] * want[i];
    }
    e->count += count;
    free(x);
}

/* RMSE(error) / RMS(reference). A handful of bf16 numbers may lose 2^-8 by their rounding alone. */
static inline void sw_within(const struct sw_error *e, const char *what, double limit)
{
    if (limit >= 3e-3 && e->count < 64) limit = fmax(limit, 1.1 / 256.0);
    if (e->count == 0 || (e->size == 0.0 && e->error == 0.0)) return;
    double ratio = sqrt(e->error / e->size);
    if (getenv("SC_TEST_SHOW") != NULL)
        (void)fprintf(stderr, "%s %s %.2e (limit %.0e)\n", sw_shape, what, ratio, limit);
    ck_assert_msg(ratio < limit, "%s: %s: RMSE ratio %.3e, limit %.0e", sw_shape, what, ratio,
        limit);
}

/* ---- pools ---- */

/* A poisoned pool, with what its slots were before a call; dense, strided, or spread over more than
 * 2^31 elements of memory that is mapped but not there. */
struct sw_pool {
    struct rig_pool p;
    uint8_t *before;
    size_t mapped; /* bytes, of a sparse one */
    bool written[SW_SLOTS];
};

static inline struct sw_pool sw_pool(sc_dtype dtype, size_t part_elems)
{
    struct sw_pool x = {.mapped = 0};
    size_t elem = rig_elem(dtype), dense = part_elems * elem;
    if (sw_chance(0.12)) {
        size_t stride = ((((size_t)1 << 31) + 4096) * elem / (SW_SLOTS / 4) + 63) / 64 * 64;
        x.mapped = stride * SW_SLOTS;
        uint8_t *memory = mmap(NULL, x.mapped, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        ck_assert(memory != MAP_FAILED);
        for (size_t s = 0; s < SW_SLOTS; s++) memset(memory + s * stride, 0xff, dense);
        x.p = (struct rig_pool){.memory = memory, .bytes = x.mapped, .part_elems = part_elems,
            .slots = {.base = sc_host_devptr(memory), .slot_stride = (int64_t)stride,
                .dtype = dtype, .slot_count = SW_SLOTS}};
        sw_note(" sparse");
    } else {
        size_t gap = sw_chance(0.5) ? sw_below(50) * elem : 0;
        x.p = rig_pool(dtype, part_elems, SW_SLOTS, dense + gap, sw_below(5) * elem);
        if (sw_chance(0.2)) x.p.slots.slot_count = 0; /* not known */
        sw_note(" gap %zu", gap);
    }
    return x;
}

/* Numbers for slot `slot`, as float64 too if asked. */
static inline void sw_slot_fill(struct sw_pool *x, int32_t slot, float scale)
{
    float *s = rig_normal(&sw_prng, x->p.part_elems, scale);
    rig_put(rig_slot(&x->p, slot), x->p.slots.dtype, s, x->p.part_elems);
    free(s);
}

static inline void sw_keep(struct sw_pool *x)
{
    size_t part = rig_part_bytes(&x->p);
    if (x->before == NULL) x->before = rig_alloc(part * SW_SLOTS);
    for (int32_t s = 0; s < SW_SLOTS; s++)
        memcpy(x->before + (size_t)s * part, rig_slot(&x->p, s), part);
    memset(x->written, 0, sizeof x->written);
}

static inline const uint8_t *sw_before(const struct sw_pool *x, int32_t slot)
{
    return x->before + (size_t)slot * rig_part_bytes(&x->p);
}

/* What a row begins with, in float64. */
static inline void sw_state(const struct sw_pool *x, int32_t source, double *out)
{
    float *f = rig_alloc(x->p.part_elems * sizeof *f);
    memset(f, 0, x->p.part_elems * sizeof *f);
    if (source > 0)
        rig_read(f, sw_before(x, source), x->p.slots.dtype, x->p.part_elems);
    for (size_t i = 0; i < x->p.part_elems; i++) out[i] = (double)f[i];
    free(f);
}

/* Slots that were not written are as they were, and gaps are still NaN. */
static inline void sw_untouched(const struct sw_pool *x)
{
    size_t part = rig_part_bytes(&x->p), stride = (size_t)x->p.slots.slot_stride;
    for (int32_t s = 0; s < SW_SLOTS; s++) {
        if (!x->written[s])
            ck_assert_msg(memcmp(rig_slot(&x->p, s), sw_before(x, s), part) == 0,
                "%s: slot %d was written", sw_shape, s);
        if (x->mapped == 0)
            rig_all_bytes((uint8_t *)rig_slot(&x->p, s) + part, stride - part, 0xff);
    }
}

static inline void sw_pool_free(struct sw_pool *x)
{
    free(x->before);
    if (x->mapped != 0)
        (void)munmap(x->p.memory, x->mapped);
    else
        free(x->p.memory);
}

/* ---- batches ---- */

/* Rows of a packed call. Tokens before the first row and after the last belong to nobody. */
struct sw_batch {
    uint32_t rows, tokens;
    int32_t first, last; /* tokens of rows */
    int32_t start[SW_ROWS + 1], position[SW_ROWS], source[SW_ROWS], dest[SW_ROWS];
    int32_t save_row[SW_SAVES], save_pos[SW_SAVES], save_slot[SW_SAVES];
    uint32_t saves;
    int32_t next_slot;
    int32_t ids[SW_SLOTS];
};

static inline int32_t sw_slot_id(struct sw_batch *b)
{
    return b->ids[b->next_slot++];
}

static inline int32_t sw_length(const struct sw_batch *b, uint32_t row)
{
    int32_t n = b->start[row + 1] - b->start[row];
    return n > 0 && b->start[row] >= 0 ? n : 0;
}

/* Lengths 0 .. most; short ones more often. `decode`: 1 each. */
static inline int32_t sw_row_length(uint32_t most, bool decode)
{
    if (decode) return 1;
    if (sw_chance(0.15)) return 0;
    if (sw_chance(0.4)) return 1 + (int32_t)sw_below(most < 9 ? most : 9);
    return 1 + (int32_t)sw_below(most);
}

static inline void sw_batch_rows(struct sw_batch *b, uint32_t most, bool decode)
{
    int32_t at = decode ? 0 : (int32_t)sw_below(4);
    b->first = at;
    uint32_t left = 330;
    for (uint32_t r = 0; r < b->rows; r++) {
        b->start[r] = at;
        uint32_t cap = most < left ? most : left;
        int32_t n = cap == 0 ? 0 : sw_row_length(cap, decode);
        at += n, left -= (uint32_t)n;
        b->position[r] = sw_chance(0.4) ? 0 : (int32_t)sw_below(1000);
        b->source[r] = sw_chance(0.12) ? -1 : sw_chance(0.15) ? 0 : sw_slot_id(b);
        b->dest[r] = sw_chance(0.12) ? (int32_t)sw_below(2) - 1 : sw_slot_id(b);
        if (b->source[r] > 0 && sw_chance(0.5)) b->dest[r] = b->source[r]; /* in place */
    }
    b->start[b->rows] = at;
    b->last = at;
    b->tokens = (uint32_t)at + (decode ? 0 : sw_below(4));
}

/* `grid`: 0 no saves, 1 anywhere, else at multiples. */
static inline void sw_batch_saves(struct sw_batch *b, uint32_t grid)
{
    for (uint32_t r = 0; r < b->rows && grid != 0; r++)
        for (int32_t t = 1; t <= sw_length(b, r); t++) {
            int32_t pos = b->position[r] + t;
            if (b->saves == SW_SAVES || pos % (int32_t)grid != 0) continue;
            if (b->source[r] < 0 || !sw_chance(grid == 1 ? 0.03 : 0.3)) continue;
            b->save_row[b->saves] = (int32_t)r, b->save_pos[b->saves] = pos;
            b->save_slot[b->saves++] = sw_slot_id(b);
        }
    if (b->saves < SW_SAVES) { /* padding */
        b->save_row[b->saves] = -1, b->save_pos[b->saves] = -1, b->save_slot[b->saves++] = -1;
    }
}

static inline struct sw_batch sw_batch(uint32_t most, uint32_t grid, bool decode)
{
    struct sw_batch b = {.rows = 1 + sw_below(SW_ROWS)};
    for (int32_t i = 0; i < SW_SLOTS; i++) b.ids[i] = i;
    for (uint32_t i = SW_SLOTS - 1; i > 1; i--) { /* 0 stays the null slot, at the end */
        uint32_t j = 1 + sw_below(i);
        int32_t id = b.ids[i];
        b.ids[i] = b.ids[j], b.ids[j] = id;
    }
    b.next_slot = 1;
    sw_batch_rows(&b, most, decode);
    sw_batch_saves(&b, grid);
    if (!decode && b.rows < SW_ROWS && sw_chance(0.3)) { /* a padded graph: rows that are none */
        int32_t end = sw_chance(0.5) ? -1 : b.last;
        for (uint32_t r = b.rows; r < SW_ROWS; r++)
            b.start[r + 1] = end, b.source[r] = b.dest[r] = b.position[r] = -1;
        b.rows = SW_ROWS;
    }
    sw_note(" rows %u tokens %u [", b.rows, b.tokens);
    for (uint32_t r = 0; r < b.rows; r++)
        sw_note("%d:%d>%d ", sw_length(&b, r), b.source[r], b.dest[r]);
    sw_note("] saves %u", b.saves);
    return b;
}

static inline sc_k_saves sw_saves(const struct sw_batch *b)
{
    return (sc_k_saves){sc_host_devptr((void *)b->save_row), sc_host_devptr((void *)b->save_pos),
        sc_host_devptr((void *)b->save_slot), b->saves};
}

/* Numbers in the slots that the rows begin with. */
static inline void sw_batch_fill(const struct sw_batch *b, struct sw_pool *x, float scale)
{
    for (uint32_t r = 0; r < b->rows; r++)
        if (b->source[r] > 0) sw_slot_fill(x, b->source[r], scale);
    sw_keep(x);
}

/* Slot `slot` holds `want` now, within `limit`; 0: to the bit. */
static inline void sw_slot_is(struct sw_pool *x, int32_t slot, const double *want, double limit)
{
    struct sw_error e = {0};
    x->written[slot] = true;
    sw_add(&e, rig_slot(&x->p, slot), x->p.slots.dtype, want, x->p.part_elems);
    if (limit == 0.0)
        ck_assert_msg(e.error == 0.0, "%s: slot %d differs", sw_shape, slot);
    else
        sw_within(&e, "state", limit);
}

/* After an empty row: the source's bits (the null slot's: zeros). */
static inline void sw_slot_copied(struct sw_pool *x, int32_t slot, int32_t source)
{
    x->written[slot] = true;
    if (source == 0)
        rig_all_bytes(rig_slot(&x->p, slot), rig_part_bytes(&x->p), 0);
    else
        ck_assert_msg(memcmp(rig_slot(&x->p, slot), sw_before(x, source), rig_part_bytes(&x->p))
            == 0, "%s: slot %d is not slot %d", sw_shape, slot, source);
}

#endif

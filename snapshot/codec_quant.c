/* SPDX-License-Identifier: Apache-2.0 */
/* Smaller recurrent matrices for lower tiers: bf16, and int8 with a scale for each head and row.
 *
 * The state comes to the host as it is (one copy, codec_raw_move) and is converted there, part by
 * part; back the same way: so a device needs no kernel of its own, and nothing is in the slot
 * before all of the payload was found good. Conv windows and extras stay as they are: they are
 * small, and exact inputs of the convolution.
 *
 * int8, one row of K elements: scale = max |x| / 127; q = x / scale, rounded to nearest, ties to
 * even; back: q * scale. So |x' - x| <= scale / 2, and a row of zeros is exact. Rows whose largest
 * element is below 2^-118 become zeros: their scale would not be a normal number. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/heap.h"
#include "base/sc_assert.h"
#include "codec_internal.h"
#include "kernels/backend.h"
#include "pool/pool_internal.h"

enum { CHUNK = 256, INT8_MAX_Q = 127 };

/* ---- elements as floats ---- */

static float bits_to_float(uint32_t bits)
{
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static uint32_t float_to_bits(float x)
{
    uint32_t out;
    memcpy(&out, &x, sizeof out);
    return out;
}

static float from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31, rest = h & 1023;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000u | rest << 13);
    if (exponent > 0) return bits_to_float(sign | (exponent + 112) << 23 | rest << 13);
    float small = (float)rest * 0x1p-24f;
    return sign ? -small : small;
}

/* Nearest even; infinite past the largest f16. */
static uint16_t to_f16(float x)
{
    uint16_t sign = (uint16_t)(float_to_bits(x) >> 16 & 0x8000u);
    float size = fabsf(x);
    if (size >= 65520.0f) return (uint16_t)(sign | 0x7c00u);
    if (size < 0x1p-14f) return (uint16_t)(sign | (uint16_t)rintf(size * 0x1p24f));
    uint32_t bits = float_to_bits(size);
    bits += 0xfffu + (bits >> 13 & 1);
    return (uint16_t)(sign | (uint16_t)((bits >> 13) - (112u << 10)));
}

static uint16_t to_bf16(float x)
{
    uint32_t bits = float_to_bits(x);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static void load(sc_dtype dtype, const uint8_t *from, uint32_t count, float *out)
{
    uint16_t halves[CHUNK];
    if (dtype == SC_DTYPE_F32) {
        memcpy(out, from, count * sizeof *out);
        return;
    }
    memcpy(halves, from, count * sizeof *halves);
    for (uint32_t i = 0; i < count; i++) {
        out[i] = dtype == SC_DTYPE_BF16 ? bits_to_float((uint32_t)halves[i] << 16) :
            from_f16(halves[i]);
    }
}

static void store(sc_dtype dtype, const float *from, uint32_t count, uint8_t *out)
{
    uint16_t halves[CHUNK];
    if (dtype == SC_DTYPE_F32) {
        memcpy(out, from, count * sizeof *from);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        halves[i] = dtype == SC_DTYPE_BF16 ? to_bf16(from[i]) : to_f16(from[i]);
    }
    memcpy(out, halves, count * sizeof *halves);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- bf16 ---- */

static sc_status bf16_pack(const uint8_t *from, uint64_t count, uint8_t *out)
{
    float x[CHUNK];
    for (uint64_t at = 0; at < count; at += CHUNK) {
        uint32_t n = (uint32_t)smaller(CHUNK, count - at), good = 0;
        load(SC_DTYPE_F32, from + at * 4, n, x);
        for (uint32_t i = 0; i < n; i++) good += fabsf(x[i]) < 0x1.ffp127f; /* no NaN either */
        if (good != n) {
            return SC_FAIL(SC_ERR_UNSUPPORTED, "a state with values that bf16 cannot hold");
        }
        store(SC_DTYPE_BF16, x, n, out + at * 2);
    }
    return SC_OK;
}

static sc_status bf16_unpack(const uint8_t *from, uint64_t count, uint8_t *out)
{
    float x[CHUNK];
    for (uint64_t at = 0; at < count; at += CHUNK) {
        uint32_t n = (uint32_t)smaller(CHUNK, count - at), good = 0;
        load(SC_DTYPE_BF16, from + at * 2, n, x);
        for (uint32_t i = 0; i < n; i++) good += isfinite(x[i]) != 0;
        if (good != n) return SC_FAIL(SC_ERR_CORRUPT, "a bf16 payload with values not finite");
        store(SC_DTYPE_F32, x, n, out + at * 4);
    }
    return SC_OK;
}

/* ---- int8 ---- */

static sc_status int8_pack_row(sc_dtype dtype, const uint8_t *from, uint32_t count,
    uint8_t *scale_out, uint8_t *out)
{
    uint32_t width = sc_dtype_bytes(dtype);
    float x[CHUNK], most = 0;
    int8_t q[CHUNK];
    for (uint32_t at = 0; at < count; at += CHUNK) {
        uint32_t n = (uint32_t)smaller(CHUNK, count - at), good = 0;
        load(dtype, from + (uint64_t)at * width, n, x);
        for (uint32_t i = 0; i < n; i++) {
            good += isfinite(x[i]) != 0;
            most = fmaxf(most, fabsf(x[i]));
        }
        if (good != n) return SC_FAIL(SC_ERR_UNSUPPORTED, "a state with values not finite");
    }
    float scale = most < 0x1p-118f ? 0 : most / INT8_MAX_Q;
    memcpy(scale_out, &scale, sizeof scale);
    for (uint32_t at = 0; at < count; at += CHUNK) {
        uint32_t n = (uint32_t)smaller(CHUNK, count - at);
        load(dtype, from + (uint64_t)at * width, n, x);
        for (uint32_t i = 0; i < n; i++) {
            float value = scale > 0 ? rintf(x[i] / scale) : 0;
            q[i] = (int8_t)fmaxf(-INT8_MAX_Q, fminf(INT8_MAX_Q, value));
        }
        memcpy(out + at, q, n);
    }
    return SC_OK;
}

static sc_status int8_unpack_row(sc_dtype dtype, const uint8_t *scale_from, const uint8_t *from,
    uint32_t count, uint8_t *out)
{
    uint32_t width = sc_dtype_bytes(dtype);
    float x[CHUNK], scale;
    int8_t q[CHUNK];
    memcpy(&scale, scale_from, sizeof scale);
    /* So that 127 of them are finite. */
    if (!(scale >= 0 && scale <= 0x1.fffffep127f / INT8_MAX_Q)) {
        return SC_FAIL(SC_ERR_CORRUPT, "an int8 payload with a bad scale");
    }
    for (uint32_t at = 0; at < count; at += CHUNK) {
        uint32_t n = (uint32_t)smaller(CHUNK, count - at);
        memcpy(q, from + at, n);
        for (uint32_t i = 0; i < n; i++) {
            if (q[i] < -INT8_MAX_Q) {
                return SC_FAIL(SC_ERR_CORRUPT, "an int8 payload with a byte that none has");
            }
            x[i] = (float)q[i] * scale;
        }
        store(dtype, x, n, out + (uint64_t)at * width);
    }
    return SC_OK;
}

/* ---- parts ---- */

struct part_shape { sc_dtype dtype; uint64_t bytes, count, rows; uint32_t columns; bool matrix; };

static struct part_shape shape_of(const sc_pool *pool, uint32_t index)
{
    sc_layer_view view;
    sc_part part;
    sc_status status = sc_pool_part_view(pool, index, &view, &part);
    SC_ASSERT(status == SC_OK);
    struct part_shape shape = {.dtype = view.dtype, .bytes = view.bytes};
    shape.matrix = part.kind == SC_PART_RECURRENT && view.dim_count == 3 &&
        (view.dtype == SC_DTYPE_F32 || view.dtype == SC_DTYPE_BF16 || view.dtype == SC_DTYPE_F16);
    if (!shape.matrix) return shape;
    shape.columns = view.dims[2];
    shape.rows = (uint64_t)view.dims[0] * view.dims[1];
    shape.count = shape.rows * shape.columns;
    return shape;
}

static uint64_t packed_bytes(const struct part_shape *shape, uint32_t codec)
{
    if (!shape->matrix) return shape->bytes;
    if (codec == SC_CODEC_INT8) return shape->rows * sizeof(float) + shape->count;
    return shape->dtype == SC_DTYPE_F32 ? shape->count * 2 : shape->bytes;
}

static sc_status total_bytes(const sc_pool *pool, uint32_t codec, uint64_t *bytes_out)
{
    sc_pool_info info;
    uint64_t bytes = 0;
    SC_TRY(sc_pool_info_get(pool, &info));
    for (uint32_t i = 0; i < info.part_count; i++) {
        struct part_shape shape = shape_of(pool, i);
        bytes += packed_bytes(&shape, codec);
    }
    *bytes_out = bytes;
    return SC_OK;
}

static sc_status convert_part(const struct part_shape *shape, uint32_t codec, bool encode,
    uint8_t *plain, uint8_t *packed)
{
    uint64_t bytes = packed_bytes(shape, codec);
    if (!shape->matrix || (codec == SC_CODEC_BF16 && shape->dtype != SC_DTYPE_F32)) {
        memcpy(encode ? packed : plain, encode ? plain : packed, (size_t)bytes);
        return SC_OK;
    }
    if (codec == SC_CODEC_BF16) {
        return encode ? bf16_pack(plain, shape->count, packed) :
            bf16_unpack(packed, shape->count, plain);
    }
    uint64_t width = (uint64_t)shape->columns * sc_dtype_bytes(shape->dtype);
    uint8_t *bodies = packed + shape->rows * sizeof(float);
    for (uint64_t row = 0; row < shape->rows; row++) {
        uint8_t *scale = packed + row * sizeof(float), *body = bodies + row * shape->columns;
        SC_TRY(encode ?
            int8_pack_row(shape->dtype, plain + row * width, shape->columns, scale, body) :
            int8_unpack_row(shape->dtype, scale, body, shape->columns, plain + row * width));
    }
    return SC_OK;
}

static sc_status convert(const sc_pool *pool, uint32_t codec, bool encode, uint8_t *plain,
    uint8_t *packed)
{
    sc_pool_info info;
    SC_TRY(sc_pool_info_get(pool, &info));
    for (uint32_t i = 0; i < info.part_count; i++) {
        struct part_shape shape = shape_of(pool, i);
        SC_TRY(convert_part(&shape, codec, encode, plain, packed));
        plain += shape.bytes;
        packed += packed_bytes(&shape, codec);
    }
    return SC_OK;
}

/* Room for the state as it is. */
static sc_status plain_take(const sc_pool *pool, struct sc_heap *heap, uint8_t **plain_out,
    uint64_t *bytes_out)
{
    SC_TRY(codec_raw_bytes(pool, bytes_out));
    SC_TRY(sc_heap_init(heap, SC_SUBSYSTEM_SNAPSHOT, sc_pool_allocator(pool)));
    *plain_out = sc_heap_alloc(heap, (size_t)*bytes_out, 64);
    if (*plain_out) return SC_OK;
    return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to convert a state of %llu bytes",
        (unsigned long long)*bytes_out);
}

static sc_status quant_encode(const sc_pool *pool, uint32_t slot, uint32_t codec, void *payload,
    uint64_t *bytes_out)
{
    struct sc_heap heap;
    uint8_t *plain = NULL;
    uint64_t plain_bytes = 0, bytes = 0;
    SC_TRY(total_bytes(pool, codec, &bytes));
    SC_TRY(plain_take(pool, &heap, &plain, &plain_bytes));
    sc_status status = codec_raw_move(pool, slot, sc_host_devptr(plain), true);
    if (status == SC_OK) status = convert(pool, codec, true, plain, payload);
    sc_heap_free(&heap, plain, (size_t)plain_bytes);
    if (status == SC_OK) *bytes_out = bytes;
    return status;
}

static sc_status quant_decode(const sc_pool *pool, uint32_t slot, uint32_t codec,
    const void *payload, uint64_t bytes)
{
    struct sc_heap heap;
    uint8_t *plain = NULL;
    uint64_t plain_bytes = 0, expected = 0;
    SC_TRY(total_bytes(pool, codec, &expected));
    if (bytes != expected) {
        return SC_FAIL(SC_ERR_CORRUPT, "payload of %llu bytes, one of this pool has %llu",
            (unsigned long long)bytes, (unsigned long long)expected);
    }
    SC_TRY(plain_take(pool, &heap, &plain, &plain_bytes));
    /* Only read from: `encode` is false. */
    sc_status status = convert(pool, codec, false, plain, (uint8_t *)(uintptr_t)payload);
    if (status == SC_OK) status = codec_raw_move(pool, slot, sc_host_devptr(plain), false);
    sc_heap_free(&heap, plain, (size_t)plain_bytes);
    return status;
}

/* ---- rows of the table ---- */

sc_status codec_bf16_bytes(const sc_pool *pool, uint64_t *bytes_out)
{
    return total_bytes(pool, SC_CODEC_BF16, bytes_out);
}

sc_status codec_bf16_encode(const sc_pool *pool, uint32_t slot, void *payload, uint64_t capacity,
    uint64_t *bytes_out)
{
    (void)capacity; /* checked by sc_codec_encode */
    return quant_encode(pool, slot, SC_CODEC_BF16, payload, bytes_out);
}

sc_status codec_bf16_decode(sc_pool *pool, uint32_t slot, const void *payload, uint64_t bytes)
{
    return quant_decode(pool, slot, SC_CODEC_BF16, payload, bytes);
}

sc_status codec_int8_bytes(const sc_pool *pool, uint64_t *bytes_out)
{
    return total_bytes(pool, SC_CODEC_INT8, bytes_out);
}

sc_status codec_int8_encode(const sc_pool *pool, uint32_t slot, void *payload, uint64_t capacity,
    uint64_t *bytes_out)
{
    (void)capacity;
    return quant_encode(pool, slot, SC_CODEC_INT8, payload, bytes_out);
}

sc_status codec_int8_decode(sc_pool *pool, uint32_t slot, const void *payload, uint64_t bytes)
{
    return quant_decode(pool, slot, SC_CODEC_INT8, payload, bytes);
}

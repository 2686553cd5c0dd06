/* SPDX-License-Identifier: Apache-2.0 */
/* Where each part of each slot lies.
 *
 *   page-major, S = slot stride               contiguous, A_p = part p rounded up to 256
 *
 *   base                                      base
 *   | part 0 | part 1 |..| (gap) |  slot 0    | part 0: slot 0 | slot 1 | .. | slot n |   A_0 apart
 *   | part 0 | part 1 |..| (gap) |  slot 1    | part 1: slot 0 | slot 1 | .. | slot n |   A_1 apart
 *   :                                         :
 *   | part 0 | part 1 |..|          slot n
 *
 * With B_p = A_0 + .. + A_(p-1), part p of slot s is at
 *
 *   base + B_p + s * S                        base + (n + 1) * B_p + s * A_p
 *
 * (1) Every part of every slot starts at a multiple of 256 in own memory. Over foreign memory it
 *     starts at a multiple of `alignment`, the largest power of two up to 256 that divides every
 *     base and stride; below 16 the memory is refused.
 * (2) No two (part, slot) pairs share a byte, and none leaves its memory.
 * (3) All sums are 64-bit and checked: the whole is below 2^63, so offsets below need no checks. */
#include <stddef.h>

#include "base/error.h"
#include "base/options.h"
#include "base/sc_assert.h"
#include "pool/schema_internal.h"
#include "pool_impl.h"

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + SC_PART_ALIGN - 1) & ~(uint64_t)(SC_PART_ALIGN - 1);
}

/* Largest power of two that divides both, at most 256; 0 is divided by all. */
static uint32_t common_alignment(uint64_t a, uint64_t b)
{
    uint64_t low = a | b | SC_PART_ALIGN;
    return (uint32_t)(low & (~low + 1));
}

sc_status sc_pool_options_resolve(const sc_pool_options *given, sc_pool_options *options)
{
    *options = (sc_pool_options)SC_POOL_OPTIONS_INIT;
    return sc_options_resolve(given, offsetof(sc_pool_options, backend), options, sizeof *options);
}

static sc_status check_options(const sc_pool_options *options)
{
    SC_REQUIRE(options->schema != NULL);
    SC_REQUIRE(options->layout == SC_LAYOUT_PAGE_MAJOR || options->layout == SC_LAYOUT_CONTIGUOUS);
    if (options->slot_count < 1 || options->slot_count > INT32_MAX - 1) {
        return SC_FAIL(SC_ERR_INVALID, "slot_count %u: must lie between 1 and %d",
            options->slot_count, INT32_MAX - 1);
    }
    return SC_OK;
}

/* Shape of a foreign range against what is needed; (1), (2). */
static sc_status fit_foreign(const sc_pool_options *options, struct sc_pool_layout *layout)
{
    const sc_foreign_memory *foreign = options->foreign;
    uint64_t stride = foreign->slot_stride, end;
    SC_REQUIRE(foreign->base != 0);
    SC_REQUIRE(options->layout == SC_LAYOUT_PAGE_MAJOR || stride == 0);
    if (stride != 0) {
        if (stride < layout->slot_bytes) {
            return SC_FAIL(SC_ERR_MISMATCH, "a slot stride of %llu is below one slot of %llu bytes",
                (unsigned long long)stride, (unsigned long long)layout->slot_bytes);
        }
        if (__builtin_mul_overflow(stride, (uint64_t)options->slot_count, &end) ||
            end > (uint64_t)INT64_MAX - layout->slot_bytes) {
            return SC_FAIL(SC_ERR_OVERFLOW, "%u slots of stride %llu", options->slot_count,
                (unsigned long long)stride);
        }
        layout->slot_stride = stride;
        layout->memory_bytes = end + layout->slot_bytes; /* the last slot needs no gap behind it */
    }
    if (foreign->bytes < layout->memory_bytes) {
        return SC_FAIL(SC_ERR_MISMATCH, "foreign memory of %llu bytes, %llu are needed: slot_count "
            "+ 1 slots, slot 0 is the null slot",
            (unsigned long long)foreign->bytes, (unsigned long long)layout->memory_bytes);
    }
    if (foreign->base > UINT64_MAX - foreign->bytes) {
        return SC_FAIL(SC_ERR_OVERFLOW, "foreign memory wraps the address space");
    }
    layout->alignment = common_alignment(foreign->base, stride);
    if (layout->alignment < SC_FOREIGN_ALIGN_MIN) {
        return SC_FAIL(SC_ERR_MISMATCH, "foreign memory aligned to %u bytes, %d are needed",
            layout->alignment, SC_FOREIGN_ALIGN_MIN);
    }
    return SC_OK;
}

sc_status sc_pool_layout_measure(const sc_pool_options *options, bool foreign,
    struct sc_pool_layout *layout_out)
{
    struct sc_pool_layout layout = {.alignment = SC_PART_ALIGN};
    sc_part_local local;
    uint32_t part_count;
    bool held;
    SC_TRY(check_options(options));
    SC_TRY(sc_schema_shard_resolve(options->schema, &options->shard, &layout.shard));
    SC_TRY(sc_schema_part_count(options->schema, &part_count));
    for (uint32_t p = 0; p < part_count; p++) {
        SC_TRY(sc_schema_part_local(options->schema, &layout.shard, p, &held, &local));
        if (!held) continue;
        layout.part_count++;
        layout.state_bytes += local.bytes; /* at most 2^16 parts below 2^40 */
        layout.slot_bytes += round_up(local.bytes);
    }
    if (layout.part_count == 0) {
        return SC_FAIL(SC_ERR_INVALID, "no part is in layers %u + %u", layout.shard.layer_first,
            layout.shard.layer_count);
    }
    if (__builtin_mul_overflow(layout.slot_bytes, (uint64_t)options->slot_count + 1,
            &layout.memory_bytes) ||
        layout.memory_bytes > INT64_MAX) {
        return SC_FAIL(SC_ERR_OVERFLOW, "%u slots of %llu bytes", options->slot_count,
            (unsigned long long)layout.slot_bytes);
    }
    if (options->layout == SC_LAYOUT_PAGE_MAJOR) layout.slot_stride = layout.slot_bytes;
    if (foreign && options->foreign && !options->foreign->parts) {
        SC_TRY(fit_foreign(options, &layout));
    }
    *layout_out = layout;
    return SC_OK;
}

void sc_pool_layout_place(const sc_pool_options *options, const struct sc_pool_layout *layout,
    sc_devptr base, struct sc_pool_part *parts)
{
    uint32_t part_count = 0, at = 0;
    uint64_t before = 0; /* sum A_q over the parts placed so far */
    sc_status status = sc_schema_part_count(options->schema, &part_count);
    SC_ASSERT(status == SC_OK);
    for (uint32_t p = 0; p < part_count; p++) {
        struct sc_pool_part part = {.kind = sc_schema_part_ref(options->schema, p)->kind};
        bool held = false;
        status = sc_schema_part_local(options->schema, &layout->shard, p, &held, &part.local);
        SC_ASSERT(status == SC_OK); /* measured with the same arguments */
        if (!held) continue;
        uint64_t padded = round_up(part.local.bytes);
        if (options->layout == SC_LAYOUT_PAGE_MAJOR) {
            part.base = base + before;
            part.slot_stride = layout->slot_stride;
        } else {
            part.base = base + before * ((uint64_t)options->slot_count + 1);
            part.slot_stride = padded;
        }
        before += padded;
        SC_ASSERT(at < layout->part_count);
        parts[at++] = part;
    }
    SC_ASSERT(at == layout->part_count);
    SC_ASSERT(before == layout->slot_bytes);
}

/* ---- foreign memory, part by part ---- */

static uint64_t part_span(const sc_foreign_part *part, uint64_t bytes, uint32_t slot_count)
{
    return part->slot_stride * slot_count + bytes; /* checked in fit_part */
}

static sc_status fit_part(const sc_foreign_part *foreign, const struct sc_pool_part *part,
    uint32_t i, uint32_t slot_count)
{
    uint64_t last;
    if (foreign->base == 0) return SC_FAIL(SC_ERR_INVALID, "part %u: no base", i);
    if (foreign->slot_stride < part->local.bytes) {
        return SC_FAIL(SC_ERR_MISMATCH, "part %u: a slot stride of %llu is below its %llu bytes", i,
            (unsigned long long)foreign->slot_stride, (unsigned long long)part->local.bytes);
    }
    if (__builtin_mul_overflow(foreign->slot_stride, (uint64_t)slot_count, &last) ||
        last > (uint64_t)INT64_MAX - part->local.bytes) {
        return SC_FAIL(SC_ERR_OVERFLOW, "part %u: %u slots of stride %llu", i, slot_count,
            (unsigned long long)foreign->slot_stride);
    }
    if (foreign->bytes < last + part->local.bytes) {
        return SC_FAIL(SC_ERR_MISMATCH, "part %u: memory of %llu bytes, %llu are needed", i,
            (unsigned long long)foreign->bytes, (unsigned long long)(last + part->local.bytes));
    }
    if (foreign->base > UINT64_MAX - foreign->bytes) {
        return SC_FAIL(SC_ERR_OVERFLOW, "part %u: memory wraps the address space", i);
    }
    if (common_alignment(foreign->base, foreign->slot_stride) < SC_FOREIGN_ALIGN_MIN) {
        return SC_FAIL(SC_ERR_MISMATCH, "part %u: aligned to %u bytes, %d are needed", i,
            common_alignment(foreign->base, foreign->slot_stride), SC_FOREIGN_ALIGN_MIN);
    }
    return SC_OK;
}

/* True when some slot of `a` shares a byte with some slot of `b`: their ranges meet, and unless
 * both lie interleaved with one stride, that is taken for sharing. */
static bool parts_overlap(const sc_foreign_part *a, uint64_t a_bytes, const sc_foreign_part *b,
    uint64_t b_bytes, uint32_t slot_count)
{
    if (a->base > b->base) return parts_overlap(b, b_bytes, a, a_bytes, slot_count);
    if (b->base - a->base >= part_span(a, a_bytes, slot_count)) return false;
    if (a->slot_stride != b->slot_stride) return true;
    uint64_t shift = (b->base - a->base) % a->slot_stride; /* b's start within a's period */
    return shift < a_bytes || b_bytes > a->slot_stride - shift;
}

sc_status sc_pool_layout_place_foreign_parts(const sc_pool_options *options,
    struct sc_pool_layout *layout, struct sc_pool_part *parts)
{
    const sc_foreign_memory *foreign = options->foreign;
    const uint32_t n = layout->part_count;
    uint64_t total = 0;
    SC_REQUIRE(foreign->base == 0 && foreign->bytes == 0 && foreign->slot_stride == 0);
    SC_REQUIRE(options->layout == SC_LAYOUT_CONTIGUOUS);
    if (foreign->part_count != n) {
        return SC_FAIL(SC_ERR_MISMATCH, "%u foreign parts, the shard holds %u", foreign->part_count,
            n);
    }
    if (n > SC_FOREIGN_PARTS_MAX) {
        return SC_FAIL(SC_ERR_LIMIT, "%u foreign parts, at most %d", n, SC_FOREIGN_PARTS_MAX);
    }
    sc_pool_layout_place(options, layout, 0, parts); /* local shapes; bases are replaced below */
    for (uint32_t i = 0; i < n; i++) {
        SC_TRY(fit_part(&foreign->parts[i], &parts[i], i, options->slot_count));
        for (uint32_t j = 0; j < i; j++) {
            if (parts_overlap(&foreign->parts[i], parts[i].local.bytes, &foreign->parts[j],
                    parts[j].local.bytes, options->slot_count)) {
                return SC_FAIL(SC_ERR_MISMATCH, "foreign parts %u and %u overlap", j, i);
            }
        }
        uint32_t alignment =
            common_alignment(foreign->parts[i].base, foreign->parts[i].slot_stride);
        if (alignment < layout->alignment) layout->alignment = alignment;
        if (__builtin_add_overflow(total, foreign->parts[i].bytes, &total)) {
            return SC_FAIL(SC_ERR_OVERFLOW, "foreign parts add up past 2^64 bytes");
        }
        parts[i].base = foreign->parts[i].base;
        parts[i].slot_stride = foreign->parts[i].slot_stride;
    }
    layout->memory_bytes = total;
    return SC_OK;
}

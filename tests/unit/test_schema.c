/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas: validation, presets against the published table, fingerprints, grids, shards, extras. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pool/schema_internal.h"
#include "statecache/schema.h"
#include "support/fail_alloc.h"

/* A small hybrid: layers 0 and 2 linear with one packed window; layer 2 has a second one. */
struct small {
    sc_group groups[2];
    sc_part parts[5];
    sc_schema_options options;
};

static void small_init(struct small *s)
{
    memset(s, 0, sizeof *s);
    s->groups[0] = (sc_group){"gdn", 64};
    s->groups[1] = (sc_group){"kda", 16};
    for (uint32_t i = 0; i < 2; i++) {
        sc_part *conv = &s->parts[2 * i], *state = &s->parts[2 * i + 1];
        *conv = (sc_part){.layer = 2 * i, .group = i, .kind = SC_PART_CONV, .dtype = SC_DTYPE_BF16,
            .dim_count = 2, .dims = {3, 64}, .block_count = 3,
            .blocks = {{16, 8, SC_SPLIT_GROUPS}, {16, 8, SC_SPLIT_GROUPS}, {32, 8, SC_SPLIT_EVEN}}};
        *state = (sc_part){.layer = 2 * i, .group = i, .kind = SC_PART_RECURRENT,
            .dtype = SC_DTYPE_F32, .dim_count = 3, .dims = {4, 8, 8}};
    }
    s->parts[4] = (sc_part){.layer = 2, .group = 1, .kind = SC_PART_CONV, .dtype = SC_DTYPE_F32,
        .dim_count = 2, .dims = {3, 10}, .index = 1,
        .block_count = 1, .blocks = {{10, 1, SC_SPLIT_NONE}}};
    s->options = (sc_schema_options)SC_SCHEMA_OPTIONS_INIT;
    s->options.model = "small";
    s->options.revision = "r1";
    s->options.groups = s->groups;
    s->options.group_count = 2;
    s->options.parts = s->parts;
    s->options.part_count = 5;
    s->options.layer_count = 4;
}

static sc_schema *small_create(void)
{
    struct small s;
    sc_schema *schema = NULL;
    small_init(&s);
    ck_assert_int_eq(sc_schema_create(&s.options, &schema), SC_OK);
    return schema;
}

static sc_fingerprint print_of(const sc_schema_options *options)
{
    sc_schema *schema = NULL;
    sc_fingerprint print;
    ck_assert_int_eq(sc_schema_create(options, &schema), SC_OK);
    ck_assert_int_eq(sc_schema_fingerprint(schema, &print), SC_OK);
    sc_schema_release(schema);
    return print;
}

/* ---- creation ---- */

START_TEST(dtype__bytes_and_zero_for_unknown_ones)
{
    ck_assert_uint_eq(sc_dtype_bytes(SC_DTYPE_F32), 4);
    ck_assert_uint_eq(sc_dtype_bytes(SC_DTYPE_BF16), 2);
    ck_assert_uint_eq(sc_dtype_bytes(SC_DTYPE_F16), 2);
    ck_assert_uint_eq(sc_dtype_bytes(SC_DTYPE_I32), 4);
    ck_assert_uint_eq(sc_dtype_bytes(SC_DTYPE_U8), 1);
    ck_assert_uint_eq(sc_dtype_bytes((sc_dtype)0), 0);
    ck_assert_uint_eq(sc_dtype_bytes((sc_dtype)99), 0);
}
END_TEST

START_TEST(create__copies_what_it_was_given)
{
    struct small s;
    sc_schema *schema = NULL;
    sc_part part;
    sc_group group;
    uint32_t count = 0, found = 99;
    small_init(&s);
    memcpy(s.groups[1].name + 4, "junk", 4); /* after the terminator */
    s.parts[1].dims[3] = 77; /* past dim_count: ignored */
    ck_assert_int_eq(sc_schema_create(&s.options, &schema), SC_OK);
    memset(s.parts, 0xee, sizeof s.parts);
    memset(s.groups, 0xee, sizeof s.groups);
    ck_assert_int_eq(sc_schema_part_count(schema, &count), SC_OK);
    ck_assert_uint_eq(count, 5);
    ck_assert_int_eq(sc_schema_part(schema, 1, &part), SC_OK);
    ck_assert_int_eq(part.kind, SC_PART_RECURRENT);
    ck_assert_uint_eq(part.dims[2], 8);
    ck_assert_uint_eq(part.dims[3], 0);
    ck_assert_int_eq(sc_schema_group_count(schema, &count), SC_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert_int_eq(sc_schema_group(schema, 1, &group), SC_OK);
    ck_assert_str_eq(group.name, "kda");
    ck_assert_int_eq(group.name[5], 0);
    ck_assert_uint_eq(group.chunk, 16);
    ck_assert(sc_schema_find(schema, 2, SC_PART_CONV, 1, &found));
    ck_assert_uint_eq(found, 4);
    ck_assert(sc_schema_find(schema, 2, SC_PART_RECURRENT, 0, &found));
    ck_assert_uint_eq(found, 3);
    ck_assert(!sc_schema_find(schema, 1, SC_PART_RECURRENT, 0, &found));
    ck_assert(!sc_schema_find(schema, 2, SC_PART_CONV, 2, &found));
    sc_schema_release(schema);
}
END_TEST

START_TEST(create__a_window_without_blocks_is_one_even_block)
{
    struct small s;
    sc_schema *schema = NULL;
    sc_part part;
    small_init(&s);
    s.parts[0].block_count = 0;
    ck_assert_int_eq(sc_schema_create(&s.options, &schema), SC_OK);
    ck_assert_int_eq(sc_schema_part(schema, 0, &part), SC_OK);
    ck_assert_uint_eq(part.block_count, 1);
    ck_assert_uint_eq(part.blocks[0].channels, 64);
    ck_assert_uint_eq(part.blocks[0].unit, 1);
    ck_assert_int_eq(part.blocks[0].split, SC_SPLIT_EVEN);
    ck_assert_uint_eq(part.blocks[1].channels, 0);
    sc_schema_release(schema);
}
END_TEST

/* Applies one spoiling change to a good schema and expects this answer. */
#define REFUSES(expected, change)                                                                  \
    do {                                                                                           \
        struct small s;                                                                            \
        sc_schema *schema = (sc_schema *)&s;                                                       \
        small_init(&s);                                                                            \
        s.options.allocator = &fa.allocator;                                                       \
        change;                                                                                    \
        ck_assert_int_eq(sc_schema_create(&s.options, &schema), (expected));                       \
        ck_assert_int_eq(sc_last_error()->status, (expected));                                     \
        ck_assert_ptr_eq(schema, &s); /* no output on error */                                     \
        ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);                                         \
    } while (0)

START_TEST(create__refuses_bad_options)
{
    struct fail_alloc fa;
    static char long_text[5000];
    memset(long_text, 'x', sizeof long_text - 1);
    fail_alloc_init(&fa);
    sc_schema *out = NULL;
    struct small good;
    small_init(&good);
    ck_assert_int_eq(sc_schema_create(NULL, &out), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_create(&good.options, NULL), SC_ERR_INVALID);
    REFUSES(SC_ERR_INVALID, s.options.struct_size = 0);
    REFUSES(SC_ERR_INVALID, s.options.struct_size += 8);
    REFUSES(SC_ERR_INVALID, s.options.model = NULL);
    REFUSES(SC_ERR_INVALID, s.options.model = "");
    REFUSES(SC_ERR_INVALID, s.options.model = long_text);
    REFUSES(SC_ERR_INVALID, s.options.revision = NULL);
    REFUSES(SC_ERR_INVALID, s.options.revision = "");
    REFUSES(SC_ERR_INVALID, s.options.conventions = long_text);
    REFUSES(SC_ERR_INVALID, s.options.groups = NULL);
    REFUSES(SC_ERR_INVALID, s.options.group_count = 0);
    REFUSES(SC_ERR_INVALID, s.options.parts = NULL);
    REFUSES(SC_ERR_INVALID, s.options.part_count = 0);
    REFUSES(SC_ERR_INVALID, s.options.layer_count = 0);
    REFUSES(SC_ERR_LIMIT, s.options.part_count = 65537);
    REFUSES(SC_ERR_LIMIT, s.options.group_count = 257);
    REFUSES(SC_ERR_LIMIT, s.options.layer_count = (1u << 20) + 1);
    REFUSES(SC_ERR_INVALID, s.groups[0].name[0] = '\0');
    REFUSES(SC_ERR_INVALID, memset(s.groups[0].name, 'x', sizeof s.groups[0].name));
    REFUSES(SC_ERR_INVALID, s.groups[0].chunk = 0);
    REFUSES(SC_ERR_INVALID, s.groups[0].chunk = 65537);
    sc_allocator half = fa.allocator;
    half.free = NULL;
    REFUSES(SC_ERR_INVALID, s.options.allocator = &half);
}
END_TEST

START_TEST(create__refuses_bad_parts)
{
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    REFUSES(SC_ERR_INVALID, s.parts[0].kind = (sc_part_kind)0);
    REFUSES(SC_ERR_INVALID, s.parts[0].kind = (sc_part_kind)4);
    REFUSES(SC_ERR_INVALID, s.parts[0].dtype = (sc_dtype)0);
    REFUSES(SC_ERR_INVALID, s.parts[0].dtype = (sc_dtype)6);
    REFUSES(SC_ERR_INVALID, s.parts[0].layer = 4);
    REFUSES(SC_ERR_INVALID, s.parts[0].group = 2);
    REFUSES(SC_ERR_INVALID, s.parts[0].dim_count = 3);
    REFUSES(SC_ERR_INVALID, s.parts[1].dim_count = 2);
    REFUSES(SC_ERR_INVALID, s.parts[1].dim_count = 5);
    REFUSES(SC_ERR_INVALID, s.parts[1].dims[0] = 0);
    REFUSES(SC_ERR_INVALID, s.parts[1].dims[2] = 0);
    REFUSES(SC_ERR_INVALID, (s.parts[1].kind = SC_PART_EXTRA, s.parts[1].dim_count = 0));
    REFUSES(SC_ERR_INVALID, (s.parts[1].kind = SC_PART_EXTRA, s.parts[1].dim_count = 5));
    REFUSES(SC_ERR_INVALID, s.parts[0].block_count = 5);
    REFUSES(SC_ERR_INVALID, s.parts[0].block_count = 2);        /* 32 of 64 channels */
    REFUSES(SC_ERR_INVALID, s.parts[0].blocks[2].channels = 40);/* 72 of 64 */
    REFUSES(SC_ERR_INVALID, s.parts[0].blocks[0].channels = 0);
    REFUSES(SC_ERR_INVALID, s.parts[0].blocks[0].unit = 0);
    REFUSES(SC_ERR_INVALID, s.parts[0].blocks[0].unit = 5);
    REFUSES(SC_ERR_INVALID, s.parts[0].blocks[0].split = (sc_split)3);
    REFUSES(SC_ERR_INVALID, s.parts[1].block_count = 1); /* only windows have blocks */
    REFUSES(SC_ERR_INVALID, s.parts[4].index = 0);       /* a second conv part 0 of layer 2 */
    REFUSES(SC_ERR_INVALID, s.parts[3] = s.parts[1]);
}
END_TEST

START_TEST(create__refuses_a_window_not_shorter_than_the_chunk)
{
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    REFUSES(SC_ERR_INVALID, s.groups[1].chunk = 3);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "not shorter than the chunk"));
    REFUSES(SC_ERR_INVALID, s.parts[0].dims[0] = 64);
    REFUSES(SC_ERR_INVALID, s.parts[0].dims[0] = 65);
    struct small s;
    sc_schema *schema = NULL;
    small_init(&s);
    s.parts[0].dims[0] = 63;
    s.groups[1].chunk = 4;
    ck_assert_int_eq(sc_schema_create(&s.options, &schema), SC_OK);
    sc_schema_release(schema);
}
END_TEST

START_TEST(create__refuses_parts_of_a_tebibyte)
{
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    REFUSES(SC_ERR_OVERFLOW, (s.parts[1].dims[0] = 1u << 30, s.parts[1].dims[1] = 1u << 8,
        s.parts[1].dims[2] = 1));
    REFUSES(SC_ERR_OVERFLOW, memset(s.parts[1].dims, 0xff, sizeof s.parts[1].dims));
    struct small s;
    sc_schema *schema = NULL;
    uint64_t bytes = 0;
    small_init(&s);
    s.parts[1].dims[0] = (1u << 28) - 1;
    s.parts[1].dims[1] = 1u << 10;
    s.parts[1].dims[2] = 1;
    ck_assert_int_eq(sc_schema_create(&s.options, &schema), SC_OK);
    ck_assert_int_eq(sc_schema_state_bytes(schema, NULL, &bytes), SC_OK);
    ck_assert_uint_eq(bytes, ((UINT64_C(1) << 28) - 1) * 4096 + 3 * 64 * 2 * 2 + 1024 + 120);
    sc_schema_release(schema);
}
END_TEST

START_TEST(create__each_allocation_fails_once)
{
    struct fail_alloc fa;
    struct small s;
    sc_schema *schema = NULL, *other = NULL, *extras = NULL;
    sc_extras_options options = SC_EXTRAS_OPTIONS_INIT;
    uint64_t fails = 0;
    fail_alloc_init(&fa);
    small_init(&s);
    s.options.allocator = &fa.allocator;
    options.allocator = &fa.allocator;
    options.control_words = 4;
    options.draft_tokens = 2;
    for (int call = 0; call < 3; call++) {
        for (uint64_t n = 1;; n++) {
            struct fail_alloc_mark before = fail_alloc_mark(&fa);
            sc_status status;
            fail_alloc_arm(&fa, n);
            if (call == 0) status = sc_schema_create(&s.options, &schema);
            if (call == 1) status = sc_schema_with_revision(schema, "r2", &fa.allocator, &other);
            if (call == 2) status = sc_schema_extras_create(schema, NULL, &options, &extras);
            if (!fail_alloc_disarm(&fa)) {
                ck_assert_int_eq(status, SC_OK);
                break;
            }
            fails++;
            ck_assert_int_eq(status, SC_ERR_NO_MEMORY);
            ck_assert(fail_alloc_same(&fa, before));
        }
    }
    ck_assert_uint_eq(fails, 1 + 1 + 2);
    sc_schema_release(schema);
    sc_schema_release(other);
    sc_schema_release(extras);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
}
END_TEST

START_TEST(retain__counts_and_ignores_null)
{
    struct fail_alloc fa;
    struct small s;
    sc_schema *schema = NULL;
    fail_alloc_init(&fa);
    small_init(&s);
    s.options.allocator = &fa.allocator;
    ck_assert_int_eq(sc_schema_create(&s.options, &schema), SC_OK);
    sc_schema_retain(schema);
    sc_schema_release(schema);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 1);
    sc_schema_release(schema);
    ck_assert_uint_eq(fail_alloc_live_blocks(&fa), 0);
    sc_schema_retain(NULL);
    sc_schema_release(NULL);
}
END_TEST

START_TEST(read__bad_arguments)
{
    sc_schema *schema = small_create();
    sc_fingerprint print;
    sc_part part;
    sc_group group;
    uint32_t n = 77;
    uint64_t bytes = 77;
    ck_assert_int_eq(sc_schema_fingerprint(NULL, &print), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_fingerprint(schema, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_part_count(NULL, &n), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_part_count(schema, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_part(NULL, 0, &part), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_part(schema, 5, &part), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_part(schema, 0, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_group_count(NULL, &n), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_group_count(schema, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_group(NULL, 0, &group), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_group(schema, 2, &group), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_group(schema, 0, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_grid(NULL, 1, &n), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_grid(schema, 0, &n), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_grid(schema, 1, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_state_bytes(NULL, NULL, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_state_bytes(schema, NULL, NULL), SC_ERR_INVALID);
    ck_assert_uint_eq(n, 77);
    ck_assert_uint_eq(bytes, 77);
    sc_schema_release(schema);
}
END_TEST

/* ---- fingerprint ---- */

START_TEST(fingerprint__is_fixed_for_all_time)
{
    /* Records on disk carry it: when this fails, the text that is hashed has changed. */
    struct small s;
    char hex[33];
    small_init(&s);
    sc_fingerprint print = print_of(&s.options);
    for (int i = 0; i < 16; i++) (void)snprintf(hex + 2 * i, 3, "%02x", print.bytes[i]);
    ck_assert_str_eq(hex, "5a4b0442b7ff023123f5cb8d2ba7c56f");
}
END_TEST

#define DIFFERS(change)                                                                            \
    do {                                                                                           \
        struct small s;                                                                            \
        small_init(&s);                                                                            \
        change;                                                                                    \
        sc_fingerprint other = print_of(&s.options);                                               \
        ck_assert_mem_ne(&other, &base, sizeof base);                                              \
    } while (0)

START_TEST(fingerprint__covers_everything_that_tells_states_apart)
{
    struct small good;
    small_init(&good);
    sc_fingerprint base = print_of(&good.options), again = print_of(&good.options);
    ck_assert_mem_eq(&base, &again, sizeof base);
    DIFFERS(s.options.model = "smaller");
    DIFFERS(s.options.revision = "r2");
    DIFFERS((s.options.model = "smallr", s.options.revision = "1")); /* the same letters */
    DIFFERS(s.options.conventions = "x");
    DIFFERS(s.options.layer_count = 5);
    DIFFERS(s.groups[0].chunk = 32);
    DIFFERS(s.groups[0].name[0] = 'h');
    DIFFERS(s.parts[1].dtype = SC_DTYPE_BF16);
    DIFFERS(s.parts[1].dims[0] = 8);
    DIFFERS((s.parts[1].dims[1] = 4, s.parts[1].dims[2] = 16)); /* the same bytes */
    DIFFERS(s.parts[0].layer = 1);
    DIFFERS(s.parts[1].index = 1);
    DIFFERS(s.parts[0].blocks[2].split = SC_SPLIT_NONE);
    DIFFERS(s.parts[0].blocks[2].unit = 4);
    DIFFERS(s.options.part_count = 4);
    /* NULL and empty conventions are the same, and a window's default block is spelled out. */
    good.options.conventions = "";
    again = print_of(&good.options);
    ck_assert_mem_eq(&base, &again, sizeof base);
}
END_TEST

START_TEST(revision__changes_the_fingerprint_alone)
{
    sc_schema *schema = small_create(), *other = NULL, *same = NULL;
    sc_fingerprint a, b, c;
    uint64_t bytes_a, bytes_b;
    ck_assert_int_eq(sc_schema_with_revision(schema, "r2", NULL, &other), SC_OK);
    ck_assert_int_eq(sc_schema_with_revision(other, "r1", NULL, &same), SC_OK);
    ck_assert_int_eq(sc_schema_fingerprint(schema, &a), SC_OK);
    ck_assert_int_eq(sc_schema_fingerprint(other, &b), SC_OK);
    ck_assert_int_eq(sc_schema_fingerprint(same, &c), SC_OK);
    ck_assert_mem_ne(&a, &b, sizeof a);
    ck_assert_mem_eq(&a, &c, sizeof a);
    ck_assert_int_eq(sc_schema_state_bytes(schema, NULL, &bytes_a), SC_OK);
    ck_assert_int_eq(sc_schema_state_bytes(other, NULL, &bytes_b), SC_OK);
    ck_assert_uint_eq(bytes_a, bytes_b);
    sc_schema_release(schema);
    sc_schema_release(other);
    sc_schema_release(same);
}
END_TEST

START_TEST(revision__bad_arguments)
{
    sc_schema *schema = small_create(), *other = NULL;
    struct fail_alloc fa;
    fail_alloc_init(&fa);
    sc_allocator half = fa.allocator;
    half.free = NULL;
    ck_assert_int_eq(sc_schema_with_revision(NULL, "r", NULL, &other), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_with_revision(schema, NULL, NULL, &other), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_with_revision(schema, "", NULL, &other), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_with_revision(schema, "r", &half, &other), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_with_revision(schema, "r", NULL, NULL), SC_ERR_INVALID);
    ck_assert_ptr_null(other);
    sc_schema_release(schema);
}
END_TEST

/* ---- grid ---- */

START_TEST(grid__is_the_lcm_of_chunks_and_page)
{
    struct small s;
    sc_schema *schema = NULL;
    uint32_t grid = 0;
    small_init(&s);
    s.groups[1].chunk = 48;
    ck_assert_int_eq(sc_schema_create(&s.options, &schema), SC_OK);
    ck_assert_int_eq(sc_schema_grid(schema, 1, &grid), SC_OK);
    ck_assert_uint_eq(grid, 192);
    ck_assert_int_eq(sc_schema_grid(schema, 16, &grid), SC_OK);
    ck_assert_uint_eq(grid, 192);
    ck_assert_int_eq(sc_schema_grid(schema, 10, &grid), SC_OK);
    ck_assert_uint_eq(grid, 960);
    ck_assert_int_eq(sc_schema_grid(schema, 11184810, &grid), SC_OK);
    ck_assert_uint_eq(grid, 11184810u * 32u); /* 6 is shared */
    grid = 7;
    ck_assert_int_eq(sc_schema_grid(schema, UINT32_MAX, &grid), SC_ERR_OVERFLOW);
    ck_assert_int_eq(sc_schema_grid(schema, 2147483647, &grid), SC_ERR_OVERFLOW);
    ck_assert_int_eq(sc_schema_grid(schema, 1u << 31, &grid), SC_ERR_OVERFLOW);
    ck_assert_int_eq(sc_schema_grid(schema, (1u << 30) + 192, &grid), SC_ERR_OVERFLOW);
    ck_assert_uint_eq(grid, 7);
    sc_schema_release(schema);
}
END_TEST

/* ---- shards ---- */

START_TEST(shard__cuts_heads_and_blocks)
{
    sc_schema *schema = small_create();
    sc_part_local parts[5];
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < 4; rank++) {
        sc_shard shard = {.tp_rank = rank, .tp_size = 4};
        ck_assert_int_eq(sc_schema_shard_parts(schema, &shard, parts, 5, &count), SC_OK);
        ck_assert_uint_eq(count, 5);
        /* q and k have two heads of 8: ranks 0, 1 hold the first, 2, 3 the second; v has four. */
        ck_assert_uint_eq(parts[0].block_channels[0], 8);
        ck_assert_uint_eq(parts[0].block_first[0], rank / 2 * 8);
        ck_assert_uint_eq(parts[0].block_first[1], rank / 2 * 8);
        ck_assert_uint_eq(parts[0].block_channels[2], 8);
        ck_assert_uint_eq(parts[0].block_first[2], rank * 8);
        ck_assert_uint_eq(parts[0].dims[0], 3);
        ck_assert_uint_eq(parts[0].dims[1], 24);
        ck_assert_uint_eq(parts[0].bytes, 3 * 24 * 2);
        ck_assert_uint_eq(parts[1].head_first, rank);
        ck_assert_uint_eq(parts[1].dims[0], 1);
        ck_assert_uint_eq(parts[1].bytes, 8 * 8 * 4);
        ck_assert_uint_eq(parts[4].dims[1], 10); /* SPLIT_NONE */
        ck_assert_uint_eq(parts[4].part, 4);
    }
    sc_shard two = {.tp_rank = 1, .tp_size = 2};
    uint64_t bytes = 0;
    ck_assert_int_eq(sc_schema_shard_parts(schema, &two, parts, 5, &count), SC_OK);
    ck_assert_uint_eq(parts[0].block_channels[0], 8);
    ck_assert_uint_eq(parts[0].block_first[0], 8);
    ck_assert_uint_eq(parts[1].head_first, 2);
    ck_assert_int_eq(sc_schema_state_bytes(schema, &two, &bytes), SC_OK);
    ck_assert_uint_eq(bytes, 2 * (3 * 32 * 2 + 512) + 120);
    sc_schema_release(schema);
}
END_TEST

START_TEST(shard__ranks_together_hold_every_head_and_channel_once)
{
    sc_schema *schema = NULL;
    ck_assert_int_eq(sc_schema_preset("qwen3.5-397b-a17b", SC_DTYPE_BF16, &schema), SC_OK);
    for (uint32_t size = 1; size <= 16; size *= 2) {
        uint32_t heads = 0, channels[3] = {0}, count = 0;
        static sc_part_local parts[90];
        for (uint32_t rank = 0; rank < size; rank++) {
            sc_shard shard = {.tp_rank = rank, .tp_size = size};
            ck_assert_int_eq(sc_schema_shard_parts(schema, &shard, parts, 90, &count), SC_OK);
            ck_assert_uint_eq(count, 90);
            ck_assert_uint_eq(parts[89].head_first, heads);
            for (int b = 0; b < 3; b++) {
                ck_assert_uint_eq(parts[88].block_first[b], channels[b]);
                channels[b] += parts[88].block_channels[b];
            }
            heads += parts[89].dims[0];
        }
        ck_assert_uint_eq(heads, 64);
        ck_assert_uint_eq(channels[0], 16 * 128);
        ck_assert_uint_eq(channels[1], 16 * 128);
        ck_assert_uint_eq(channels[2], 64 * 128);
    }
    sc_schema_release(schema);
}
END_TEST

START_TEST(shard__picks_layers)
{
    sc_schema *schema = small_create();
    sc_part_local parts[5];
    uint32_t count = 77;
    sc_shard last = {.pp_rank = 1, .pp_size = 2, .layer_first = 2, .layer_count = 2};
    sc_shard none = {.layer_first = 1, .layer_count = 1};
    ck_assert_int_eq(sc_schema_shard_parts(schema, &last, NULL, 0, &count), SC_OK);
    ck_assert_uint_eq(count, 3);
    ck_assert_int_eq(sc_schema_shard_parts(schema, &last, parts, 3, &count), SC_OK);
    ck_assert_uint_eq(parts[0].part, 2);
    ck_assert_uint_eq(parts[2].part, 4);
    ck_assert_int_eq(sc_schema_shard_parts(schema, &none, parts, 5, &count), SC_OK);
    ck_assert_uint_eq(count, 0);
    sc_schema_release(schema);
}
END_TEST

START_TEST(shard__bad_arguments)
{
    sc_schema *schema = small_create();
    sc_part_local parts[5];
    uint32_t count = 77;
    uint64_t bytes = 77;
    static const sc_shard bad[] = {
        {.tp_rank = 1, .tp_size = 1}, {.tp_rank = 1}, {.pp_rank = 2, .pp_size = 2},
        {.tp_size = 3},                                      /* 4 heads */
        {.tp_size = 8},                                      /* 4 heads */
        {.layer_first = 1},                                  /* with all layers */
        {.layer_first = 4, .layer_count = 1}, {.layer_first = 3, .layer_count = 2},
        {.layer_first = 1, .layer_count = UINT32_MAX},       /* would wrap */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(sc_schema_shard_parts(schema, &bad[i], parts, 5, &count), SC_ERR_INVALID);
        ck_assert_int_eq(sc_schema_state_bytes(schema, &bad[i], &bytes), SC_ERR_INVALID);
    }
    ck_assert_int_eq(sc_schema_shard_parts(NULL, NULL, parts, 5, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_shard_parts(schema, NULL, NULL, 5, &count), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_shard_parts(schema, NULL, parts, 5, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_shard_parts(schema, NULL, parts, 4, &count), SC_ERR_LIMIT);
    ck_assert_uint_eq(count, 77);
    ck_assert_uint_eq(bytes, 77);
    sc_schema_release(schema);
}
END_TEST

START_TEST(shard__groups_that_ranks_cannot_share_are_refused)
{
    struct small s;
    sc_schema *schema = NULL;
    uint32_t count = 0;
    small_init(&s);
    /* 3 key heads among 4 ranks */
    s.parts[0].dims[1] = 24 + 24 + 32;
    s.parts[0].blocks[0].channels = s.parts[0].blocks[1].channels = 24;
    ck_assert_int_eq(sc_schema_create(&s.options, &schema), SC_OK);
    sc_shard shard = {.tp_size = 4};
    ck_assert_int_eq(sc_schema_shard_parts(schema, &shard, NULL, 0, &count), SC_ERR_INVALID);
    sc_schema_release(schema);
}
END_TEST

/* ---- presets ---- */

/* The published table: MiB per layer fp32 / bf16, conv KiB per layer, snapshot MiB fp32 / bf16. */
static const struct row {
    const char *name;
    uint32_t layers, heads, rows, cols, channels;
    double layer_f32, layer_bf16, conv_kib, all_f32, all_bf16;
} table[] = {
    {"qwen3-next-80b-a3b", 36, 32, 128, 128, 8192, 2.0, 1.0, 48.0, 73.7, 37.7},
    {"qwen3.5-397b-a17b", 45, 64, 128, 128, 12288, 4.0, 2.0, 72.0, 183.2, 93.2},
    {"qwen3.5-122b-a10b", 36, 64, 128, 128, 12288, 4.0, 2.0, 72.0, 146.5, 74.5},
    {"qwen3.5-35b-a3b", 30, 32, 128, 128, 8192, 2.0, 1.0, 48.0, 61.4, 31.4},
    {"qwen3.5-27b", 48, 48, 128, 128, 10240, 3.0, 1.5, 60.0, 146.8, 74.8},
    {"qwen3.5-9b", 24, 32, 128, 128, 8192, 2.0, 1.0, 48.0, 49.1, 25.1},
    {"qwen3.5-4b", 24, 32, 128, 128, 8192, 2.0, 1.0, 48.0, 49.1, 25.1},
    {"qwen3.5-2b", 18, 16, 128, 128, 6144, 1.0, 0.5, 36.0, 18.6, 9.6},
    {"qwen3.5-0.8b", 18, 16, 128, 128, 6144, 1.0, 0.5, 36.0, 18.6, 9.6},
    {"kimi-linear-48b-a3b", 20, 32, 128, 128, 12288, 2.0, 1.0, 72.0, 41.4, 21.4},
    {"kimi-k3", 69, 96, 128, 128, 36864, 6.0, 3.0, 216.0, 428.6, 221.6},
    {"glm-5.3-flash", 34, 64, 128, 128, 24576, 4.0, 2.0, 144.0, 140.8, 72.8},
    {"ling-3.0-flash", 35, 32, 128, 128, 12288, 2.0, 1.0, 72.0, 72.5, 37.5},
    {"nemotron-3-super-120b-a12b", 40, 128, 64, 128, 10240, 4.0, 2.0, 60.0, 162.3, 82.3},
    {"nemotron-3-nano-30b-a3b", 23, 64, 64, 128, 6144, 2.0, 1.0, 36.0, 46.8, 23.8},
    {"nemotron-h-8b", 24, 128, 64, 128, 10240, 4.0, 2.0, 60.0, 97.4, 49.4},
    {"nemotron-h-56b", 54, 256, 64, 256, 20480, 16.0, 8.0, 120.0, 870.3, 438.3},
    {"nemotron-nano-9b-v2", 27, 128, 80, 128, 12288, 5.0, 2.5, 72.0, 136.9, 69.4},
    {"falcon-h1-34b", 72, 32, 128, 256, 5120, 4.0, 2.0, 30.0, 290.1, 146.1},
    {"falcon-h1-7b", 44, 24, 128, 256, 3584, 3.0, 1.5, 21.0, 132.9, 66.9},
    {"granite-4.0-h-small", 36, 128, 64, 128, 8448, 4.0, 2.0, 49.5, 145.7, 73.7},
    {"granite-4.0-h-tiny", 36, 48, 64, 128, 3328, 1.5, 0.75, 19.5, 54.7, 27.7},
    {"jamba-v0.1", 28, 8192, 1, 16, 8192, 0.5, 0.25, 48.0, 15.3, 8.3},
    {"jamba-1.5-mini", 28, 8192, 1, 16, 8192, 0.5, 0.25, 48.0, 15.3, 8.3},
    {"jamba-1.5-large", 63, 16384, 1, 16, 16384, 1.0, 0.5, 96.0, 68.9, 37.4},
};
enum { ROWS = sizeof table / sizeof table[0] };

static void check_preset(const struct row *row, sc_dtype dtype, double layer_mib, double all_mib)
{
    sc_schema *schema = NULL;
    uint32_t count = 0, last_layer = 0;
    uint64_t bytes = 0, exact = 0;
    ck_assert_msg(sc_schema_preset(row->name, dtype, &schema) == SC_OK, "%s", row->name);
    ck_assert_int_eq(sc_schema_part_count(schema, &count), SC_OK);
    ck_assert_uint_eq(count, 2 * row->layers);
    for (uint32_t p = 0; p < count; p += 2) {
        sc_part conv, state;
        ck_assert_int_eq(sc_schema_part(schema, p, &conv), SC_OK);
        ck_assert_int_eq(sc_schema_part(schema, p + 1, &state), SC_OK);
        ck_assert_int_eq(conv.kind, SC_PART_CONV);
        ck_assert_int_eq(conv.dtype, SC_DTYPE_BF16);
        ck_assert_uint_eq(conv.dims[0], 3);
        ck_assert_uint_eq(conv.dims[1], row->channels);
        ck_assert_double_eq_tol(3.0 * conv.dims[1] * 2 / 1024, row->conv_kib, 1e-9);
        ck_assert_int_eq(state.kind, SC_PART_RECURRENT);
        ck_assert_int_eq(state.dtype, dtype);
        ck_assert_uint_eq(state.dims[0], row->heads);
        ck_assert_uint_eq(state.dims[1], row->rows);
        ck_assert_uint_eq(state.dims[2], row->cols);
        double mib = (double)state.dims[0] * state.dims[1] * state.dims[2] *
            sc_dtype_bytes(dtype) / 1048576;
        ck_assert_double_eq_tol(mib, layer_mib, 1e-9);
        ck_assert_uint_eq(conv.layer, state.layer);
        ck_assert(p == 0 || conv.layer > last_layer);
        last_layer = conv.layer;
    }
    exact = (uint64_t)row->layers * ((uint64_t)row->heads * row->rows * row->cols *
        sc_dtype_bytes(dtype) + 3 * row->channels * 2);
    ck_assert_int_eq(sc_schema_state_bytes(schema, NULL, &bytes), SC_OK);
    ck_assert_uint_eq(bytes, exact);
    /* One decimal, as printed. */
    ck_assert_msg(fabs((double)bytes / 1048576 - all_mib) <= 0.05 + 1e-9, "%s: %f MiB, table %f",
        row->name, (double)bytes / 1048576, all_mib);
    sc_schema_release(schema);
}

START_TEST(preset__bytes_are_those_of_the_table)
{
    for (int i = 0; i < ROWS; i++) {
        check_preset(&table[i], SC_DTYPE_F32, table[i].layer_f32, table[i].all_f32);
        check_preset(&table[i], SC_DTYPE_BF16, table[i].layer_bf16, table[i].all_bf16);
    }
}
END_TEST

START_TEST(preset__names_are_listed_all_differ_and_end_in_null)
{
    sc_fingerprint prints[2 * ROWS];
    uint32_t n = 0;
    for (uint32_t i = 0; sc_schema_preset_name(i); i++) {
        ck_assert_uint_lt(i, ROWS);
        ck_assert_str_eq(sc_schema_preset_name(i), table[i].name);
        for (int d = 0; d < 2; d++) {
            sc_schema *schema = NULL;
            ck_assert_int_eq(sc_schema_preset(table[i].name, d ? SC_DTYPE_BF16 : SC_DTYPE_F32,
                &schema), SC_OK);
            ck_assert_int_eq(sc_schema_fingerprint(schema, &prints[n]), SC_OK);
            for (uint32_t j = 0; j < n; j++) {
                ck_assert_mem_ne(&prints[j], &prints[n], sizeof prints[n]);
            }
            n++;
            sc_schema_release(schema);
        }
    }
    ck_assert_uint_eq(n, 2 * ROWS);
    ck_assert_ptr_null(sc_schema_preset_name(ROWS));
    ck_assert_ptr_null(sc_schema_preset_name(UINT32_MAX));
}
END_TEST

START_TEST(preset__placement_of_layers_where_public)
{
    sc_schema *schema = NULL;
    uint32_t part;
    ck_assert_int_eq(sc_schema_preset("kimi-linear-48b-a3b", SC_DTYPE_F32, &schema), SC_OK);
    for (uint32_t layer = 0; layer < 27; layer++) { /* full attention at 4, 8 .. 24 and 27 from 1 */
        bool full = (layer + 1) % 4 == 0 || layer == 26;
        ck_assert_int_eq(sc_schema_find(schema, layer, SC_PART_RECURRENT, 0, &part), !full);
    }
    ck_assert_uint_eq(sc_schema_layer_count(schema), 27);
    sc_schema_release(schema);
    ck_assert_int_eq(sc_schema_preset("qwen3.5-27b", SC_DTYPE_F32, &schema), SC_OK);
    ck_assert_uint_eq(sc_schema_layer_count(schema), 64);
    ck_assert(!sc_schema_find(schema, 63, SC_PART_CONV, 0, &part));
    ck_assert(sc_schema_find(schema, 62, SC_PART_CONV, 0, &part));
    sc_schema_release(schema);
}
END_TEST

START_TEST(preset__serves_the_usual_tensor_parallel_sizes)
{
    for (int i = 0; i < ROWS; i++) {
        sc_schema *schema = NULL;
        uint64_t whole = 0;
        ck_assert_int_eq(sc_schema_preset(table[i].name, SC_DTYPE_F32, &schema), SC_OK);
        ck_assert_int_eq(sc_schema_state_bytes(schema, NULL, &whole), SC_OK);
        for (uint32_t size = 2; size <= 8; size *= 2) {
            uint64_t sum = 0;
            for (uint32_t rank = 0; rank < size; rank++) {
                sc_shard shard = {.tp_rank = rank, .tp_size = size};
                uint64_t bytes = 0;
                ck_assert_msg(sc_schema_state_bytes(schema, &shard, &bytes) == SC_OK, "%s: %s",
                    table[i].name, sc_last_error()->text);
                sum += bytes;
            }
            ck_assert_uint_ge(sum, whole); /* replicated groups are held more than once */
            ck_assert_uint_le(sum, whole + whole / 20);
        }
        sc_schema_release(schema);
    }
}
END_TEST

START_TEST(preset__bad_arguments)
{
    sc_schema *schema = NULL;
    ck_assert_int_eq(sc_schema_preset(NULL, SC_DTYPE_F32, &schema), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_preset("qwen3.5-27b", SC_DTYPE_F32, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_preset("qwen3.5-27b", SC_DTYPE_F16, &schema), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_preset("qwen3.5-27b", (sc_dtype)0, &schema), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_preset("", SC_DTYPE_F32, &schema), SC_ERR_NOT_FOUND);
    ck_assert_int_eq(sc_schema_preset("qwen", SC_DTYPE_F32, &schema), SC_ERR_NOT_FOUND);
    ck_assert_ptr_null(schema);
}
END_TEST

/* ---- extras ---- */

START_TEST(extras__follow_the_parts_of_the_shard)
{
    sc_schema *schema = small_create(), *extras = NULL;
    sc_extras_options options = SC_EXTRAS_OPTIONS_INIT;
    sc_shard shard = {.tp_rank = 1, .tp_size = 2, .layer_first = 2, .layer_count = 2};
    uint32_t count = 0, at = 0;
    sc_part part;
    options.control_words = 8;
    options.ring_records = 16;
    options.ring_record_bytes = 96;
    options.draft_tokens = 4;
    ck_assert_int_eq(sc_schema_extras_create(schema, &shard, &options, &extras), SC_OK);
    ck_assert_int_eq(sc_schema_part_count(extras, &count), SC_OK);
    ck_assert_uint_eq(count, 4);
    ck_assert(sc_schema_find(extras, 0, SC_PART_EXTRA, 0, &at));
    ck_assert_int_eq(sc_schema_part(extras, at, &part), SC_OK);
    ck_assert_int_eq(part.dtype, SC_DTYPE_I32);
    ck_assert_uint_eq(part.dims[0], 8);
    ck_assert(sc_schema_find(extras, 2, SC_PART_EXTRA, 1, &at)); /* ring of recurrent 0 */
    ck_assert_int_eq(sc_schema_part(extras, at, &part), SC_OK);
    ck_assert_int_eq(part.dtype, SC_DTYPE_U8);
    ck_assert_uint_eq(part.dims[0] * part.dims[1], 16 * 96);
    ck_assert(sc_schema_find(extras, 2, SC_PART_EXTRA, 2, &at)); /* wide rows of window 0 */
    ck_assert_int_eq(sc_schema_part(extras, at, &part), SC_OK);
    ck_assert_int_eq(part.dtype, SC_DTYPE_BF16);
    ck_assert_uint_eq(part.dims[0], 4);
    ck_assert_uint_eq(part.dims[1], 32); /* one of two ranks */
    ck_assert(sc_schema_find(extras, 2, SC_PART_EXTRA, 4, &at)); /* and of window 1 */
    ck_assert(!sc_schema_find(extras, 0, SC_PART_EXTRA, 1, &at));
    sc_schema_release(extras);
    options.ring_records = options.ring_record_bytes = options.draft_tokens = 0;
    ck_assert_int_eq(sc_schema_extras_create(schema, NULL, &options, &extras), SC_OK);
    ck_assert_int_eq(sc_schema_part_count(extras, &count), SC_OK);
    ck_assert_uint_eq(count, 1);
    sc_schema_release(extras);
    sc_schema_release(schema);
}
END_TEST

/* What an older caller does not have keeps its default; it is not read. */
START_TEST(options__of_an_older_version)
{
    struct small s;
    sc_schema *schema = NULL, *extras = NULL;
    sc_extras_options with = SC_EXTRAS_OPTIONS_INIT;
    small_init(&s);
    s.options.allocator = (const sc_allocator *)(uintptr_t)8;
    s.options.struct_size = offsetof(sc_schema_options, allocator);
    ck_assert_int_eq(sc_schema_create(&s.options, &schema), SC_OK);
    s.options.struct_size = offsetof(sc_schema_options, allocator) - 1;
    ck_assert_int_eq(sc_schema_create(&s.options, &extras), SC_ERR_INVALID);
    with.control_words = 1;
    with.allocator = (const sc_allocator *)(uintptr_t)8;
    with.struct_size = offsetof(sc_extras_options, allocator);
    ck_assert_int_eq(sc_schema_extras_create(schema, NULL, &with, &extras), SC_OK);
    sc_schema_release(extras);
    extras = NULL;
    with.struct_size = sizeof with + 8;
    ck_assert_int_eq(sc_schema_extras_create(schema, NULL, &with, &extras), SC_ERR_INVALID);
    ck_assert_ptr_null(extras);
    sc_schema_release(schema);
}
END_TEST

START_TEST(extras__bad_arguments)
{
    sc_schema *schema = small_create(), *extras = NULL;
    sc_extras_options good = SC_EXTRAS_OPTIONS_INIT, bad;
    sc_shard shard = {.tp_size = 3}, no_parts = {.layer_first = 1, .layer_count = 1};
    good.control_words = 1;
    ck_assert_int_eq(sc_schema_extras_create(NULL, NULL, &good, &extras), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_extras_create(schema, NULL, NULL, &extras), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_extras_create(schema, NULL, &good, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_schema_extras_create(schema, &shard, &good, &extras), SC_ERR_INVALID);
    bad = good;
    bad.struct_size = 4;
    ck_assert_int_eq(sc_schema_extras_create(schema, NULL, &bad, &extras), SC_ERR_INVALID);
    bad = good;
    bad.ring_records = 16; /* without a size */
    ck_assert_int_eq(sc_schema_extras_create(schema, NULL, &bad, &extras), SC_ERR_INVALID);
    bad = good;
    bad.control_words = 0; /* nothing at all */
    ck_assert_int_eq(sc_schema_extras_create(schema, NULL, &bad, &extras), SC_ERR_INVALID);
    bad.draft_tokens = 2; /* nothing that they go with */
    ck_assert_int_eq(sc_schema_extras_create(schema, &no_parts, &bad, &extras), SC_ERR_INVALID);
    bad = good;
    bad.ring_records = bad.ring_record_bytes = 1u << 21;
    ck_assert_int_eq(sc_schema_extras_create(schema, NULL, &bad, &extras), SC_ERR_OVERFLOW);
    ck_assert_ptr_null(extras);
    sc_schema_release(schema);
}
END_TEST

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return tc;
}

static Suite *schema_suite(void)
{
    Suite *suite = suite_create("schema");
    TCase *tc = add_case(suite, "create");
    tcase_add_test(tc, dtype__bytes_and_zero_for_unknown_ones);
    tcase_add_test(tc, create__copies_what_it_was_given);
    tcase_add_test(tc, create__a_window_without_blocks_is_one_even_block);
    tcase_add_test(tc, create__refuses_bad_options);
    tcase_add_test(tc, create__refuses_bad_parts);
    tcase_add_test(tc, create__refuses_a_window_not_shorter_than_the_chunk);
    tcase_add_test(tc, create__refuses_parts_of_a_tebibyte);
    tcase_add_test(tc, create__each_allocation_fails_once);
    tcase_add_test(tc, retain__counts_and_ignores_null);
    tcase_add_test(tc, read__bad_arguments);
    tc = add_case(suite, "fingerprint and grid");
    tcase_add_test(tc, fingerprint__is_fixed_for_all_time);
    tcase_add_test(tc, fingerprint__covers_everything_that_tells_states_apart);
    tcase_add_test(tc, revision__changes_the_fingerprint_alone);
    tcase_add_test(tc, revision__bad_arguments);
    tcase_add_test(tc, grid__is_the_lcm_of_chunks_and_page);
    tc = add_case(suite, "shard");
    tcase_add_test(tc, shard__cuts_heads_and_blocks);
    tcase_add_test(tc, shard__ranks_together_hold_every_head_and_channel_once);
    tcase_add_test(tc, shard__picks_layers);
    tcase_add_test(tc, shard__bad_arguments);
    tcase_add_test(tc, shard__groups_that_ranks_cannot_share_are_refused);
    tc = add_case(suite, "preset");
    tcase_add_test(tc, preset__bytes_are_those_of_the_table);
    tcase_add_test(tc, preset__names_are_listed_all_differ_and_end_in_null);
    tcase_add_test(tc, preset__placement_of_layers_where_public);
    tcase_add_test(tc, preset__serves_the_usual_tensor_parallel_sizes);
    tcase_add_test(tc, preset__bad_arguments);
    tc = add_case(suite, "extras");
    tcase_add_test(tc, extras__follow_the_parts_of_the_shard);
    tcase_add_test(tc, extras__bad_arguments);
    tcase_add_test(tc, options__of_an_older_version);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(schema_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Field reports that belong to pools, schemas and copies: what a slot holds when it is handed out,
 * handles, layouts. docs/field-reports.md is the table; report_N is entry N there. */
#include "snapshot_fixture.h"

#include <stdio.h>
#include <unistd.h>

static const sc_layout layouts[2] = {SC_LAYOUT_PAGE_MAJOR, SC_LAYOUT_CONTIGUOUS};

#define ok(call) ck_assert_msg((call) == SC_OK, "%s: %s", #call, sc_last_error()->text)

static void *memory_of(uint64_t bytes, int byte)
{
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    ck_assert_ptr_nonnull(memory);
    memset(memory, byte, bytes);
    return memory;
}

static uint64_t pool_bytes(enum fixture_model model, sc_layout layout, uint32_t slots)
{
    sc_schema *schema = fix_schema_of(model, "r1");
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    uint64_t bytes = 0;
    options.schema = schema;
    options.layout = layout;
    options.slot_count = slots;
    ok(sc_pool_memory_bytes(&options, &bytes));
    sc_schema_release(schema);
    return bytes;
}

/* A pool over memory that holds `byte` everywhere. */
static sc_pool *pool_over(enum fixture_model model, sc_layout layout, uint32_t slots, int byte,
    void **memory_out)
{
    struct sc_foreign_memory foreign = {.bytes = pool_bytes(model, layout, slots)};
    *memory_out = memory_of(foreign.bytes, byte);
    foreign.base = sc_host_devptr(*memory_out);
    return fix_pool_with(model, layout, slots, NULL, NULL, &foreign);
}

START_TEST(report_18__a_state_goes_to_any_slot)
{
    sc_pool *pool = fix_pool(_i / 2 ? FIX_KDA : FIX_GDN, layouts[_i % 2], 8);
    sc_slot slots[8];
    fix_take(pool, 8, 100, slots);
    for (uint32_t i = 0; i < 8; i++) {
        for (uint32_t j = 0; j < 8; j++) {
            int32_t from = (int32_t)slots[i].id, to = (int32_t)slots[j].id;
            if (i != j) fix_fill(pool, slots[j].id, 9);
            ok(sc_state_copy(pool, &from, pool, &to, 1));
            ck_assert(fix_holds(pool, slots[j].id, 100 + slots[i].id));
            if (i != j) fix_fill(pool, slots[j].id, 100 + slots[j].id);
        }
    }
    fix_end(pool, slots, 8);
}
END_TEST

/* What is read without a state is the null slot; what a running request has beside its state is
 * zero when the slot is handed out. */
START_TEST(report_19__a_slot_given_out_again_shows_nothing)
{
    sc_pool *pool = fix_pool(FIX_EXTRAS, layouts[_i], 2);
    sc_pool *states = fix_pool(FIX_GDN, layouts[_i], 2);
    sc_slot slots[2], again;
    fix_take(pool, 2, 50, slots);
    ok(sc_pool_free(pool, &slots[0], 1));
    ok(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &again));
    ck_assert_uint_eq(again.id, slots[0].id);
    ck_assert(fix_holds(pool, again.id, 0)); /* ring, cursors, counts */
    ck_assert(fix_holds(pool, slots[1].id, 50 + slots[1].id));
    slots[0] = again;
    fix_end(pool, slots, 2);
    fix_take(states, 2, 50, slots);
    ck_assert(fix_holds(states, 0, 0));
    fix_end(states, slots, 2);
}
END_TEST

/* A page of fp32 states becomes a ring of bytes, 3 of whose 16 rows are written. */
START_TEST(report_20__memory_that_changes_its_type)
{
    enum { ROW = 64, RECORDS = 16 };
    void *memory;
    sc_slot slot;
    sc_pool *pool = pool_over(FIX_GDN, SC_LAYOUT_PAGE_MAJOR, 8, 0, &memory);
    ok(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &slot));
    for (uint64_t i = 0; i < fix_info(pool).memory_bytes / 4; i++) {
        if (i >= fix_info(pool).slot_bytes / 4) ((uint32_t *)memory)[i] = 0x7fc00000u;
    }
    fix_end(pool, &slot, 1);

    sc_group group = {"ring", 16};
    sc_part part = {.kind = SC_PART_EXTRA, .dtype = SC_DTYPE_U8, .dim_count = 2,
        .dims = {RECORDS, ROW}};
    sc_schema_options schema_options = SC_SCHEMA_OPTIONS_INIT;
    schema_options.model = "ring";
    schema_options.revision = "1";
    schema_options.groups = &group;
    schema_options.group_count = schema_options.part_count = schema_options.layer_count = 1;
    schema_options.parts = &part;
    sc_schema *schema = NULL;
    ok(sc_schema_create(&schema_options, &schema));
    sc_foreign_memory foreign = {.base = sc_host_devptr(memory), .bytes = 4 * RECORDS * ROW};
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    options.schema = schema;
    options.slot_count = 3;
    options.foreign = &foreign;
    ok(sc_pool_create(&options, &pool));
    sc_slot ring[3];
    ok(sc_pool_alloc(pool, 3, SC_OWNER_WORKING, ring));
    for (int i = 0; i < 3; i++) {
        uint8_t *bytes = fix_bytes(pool, 0, ring[i].id);
        memset(bytes, 0x40, (size_t)3 * ROW);
        for (uint32_t at = 3 * ROW; at < RECORDS * ROW; at++) ck_assert_uint_eq(bytes[at], 0);
    }
    fix_end(pool, ring, 3);
    sc_schema_release(schema);
    free(memory);
}
END_TEST

START_TEST(report_25__a_handle_is_a_value)
{
    sc_pool *pool = fix_pool(FIX_TINY, SC_LAYOUT_PAGE_MAJOR, 2);
    sc_slot a, b, c, kept;
    sc_owner owner;
    ok(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &a));
    kept = a;
    ok(sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &b));
    ok(sc_pool_free(pool, &b, 1));
    ok(sc_pool_alloc(pool, 1, SC_OWNER_SNAPSHOT, &c));
    ck_assert_mem_eq(&a, &kept, sizeof a);
    ok(sc_pool_check(pool, a, &owner));
    ck_assert_int_eq(owner, SC_OWNER_WORKING);
    ck_assert_uint_eq(c.id, b.id); /* the same slot, another handle */
    ck_assert_int_eq(sc_pool_check(pool, b, NULL), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_free(pool, &b, 1), SC_ERR_STALE);
    ck_assert_int_eq(sc_pool_set_owner(pool, b, SC_OWNER_DRAINING), SC_ERR_STALE);
    ok(sc_pool_check(pool, c, &owner));
    ck_assert_int_eq(owner, SC_OWNER_SNAPSHOT);
    fix_end(pool, (sc_slot[]){a, c}, 2);
}
END_TEST

START_TEST(report_28__pools_on_memory_full_of_nan)
{
    for (int l = 0; l < 2; l++) {
        for (int m = 0; m < 2; m++) {
            void *memory;
            sc_slot slots[5];
            sc_pool *pool = pool_over(m ? FIX_EXTRAS : FIX_GDN, layouts[l], 5, 0xff, &memory);
            ck_assert(fix_holds(pool, 0, 0)); /* what a dummy row reads */
            ok(sc_pool_audit(pool, true));
            ok(sc_pool_alloc(pool, 5, SC_OWNER_WORKING, slots));
            for (int i = 0; m && i < 5; i++) ck_assert(fix_holds(pool, slots[i].id, 0));
            fix_end(pool, slots, 5);
            free(memory);
        }
    }
}
END_TEST

START_TEST(report_65__three_slots_or_none)
{
    sc_pool *pool = fix_pool(FIX_TINY, SC_LAYOUT_CONTIGUOUS, 16);
    sc_slot slots[16], want[3] = {{7, 7}, {7, 7}, {7, 7}};
    fix_take(pool, 14, 0, slots);
    ck_assert_int_eq(sc_pool_alloc(pool, 3, SC_OWNER_WORKING, want), SC_ERR_NO_SLOT);
    for (int i = 0; i < 3; i++) ck_assert_uint_eq(want[i].id, 7);
    ck_assert_uint_eq(fix_info(pool).free_count, 2);
    ck_assert_uint_eq(fix_info(pool).owner_count[SC_OWNER_WORKING], 14);
    ok(sc_pool_alloc(pool, 2, SC_OWNER_WORKING, slots + 14));
    fix_end(pool, slots, 16);
}
END_TEST

/* ---- layouts ---- */

enum { LAYERS = 3, CHANNELS = 10, STEPS = 3, QKV = 2 * 2 * 7 + 2 * 5 };

/* Three tokens through the conv and the delta rule of each layer, in place in `slot`. */
static void run_layers(const sc_pool *pool, int32_t slot)
{
    static const uint32_t layers[LAYERS] = {0, 1, 3};
    float x[CHANNELS], y[CHANNELS], qkv[QKV], o[10], weight[CHANNELS * 4];
    const float g[2] = {-0.3f, -0.1f}, beta[2] = {0.7f, 0.4f};
    for (int i = 0; i < CHANNELS * 4; i++) weight[i] = 0.1f * (float)(i % 7) - 0.3f;
    for (int step = 0; step < STEPS; step++) {
        int32_t source = step ? slot : 0;
        for (int layer = 0; layer < LAYERS; layer++) {
            sc_layer_view window, state;
            ok(sc_pool_layer_view(pool, layers[layer], SC_PART_CONV, 0, &window));
            ok(sc_pool_layer_view(pool, layers[layer], SC_PART_RECURRENT, 0, &state));
            for (int i = 0; i < CHANNELS; i++) x[i] = 0.25f * (float)((i + step * 3 + layer) % 9);
            for (int i = 0; i < QKV; i++) qkv[i] = 0.5f - 0.1f * (float)((i * 5 + step) % 11);
            sc_k_conv_update_params conv = {.x = sc_host_devptr(x), .y = sc_host_devptr(y),
                .dtype = SC_DTYPE_F32, .weight = sc_host_devptr(weight),
                .weight_dtype = SC_DTYPE_F32, .act = SC_K_ACT_SILU, .channels = CHANNELS,
                .width = 4, .row_count = 1, .source = sc_host_devptr(&source),
                .dest = sc_host_devptr(&slot),
                .window = {window.base, window.slot_stride, window.dtype, 4}};
            ok(sc_k_conv_update(NULL, &conv, NULL));
            sc_k_decode_packed_params decode = {.qkv = sc_host_devptr(qkv),
                .o = sc_host_devptr(o), .dtype = SC_DTYPE_F32, .g = sc_host_devptr(g),
                .beta = sc_host_devptr(beta), .row_count = 1,
                .shape = {.kind = SC_K_KIND_GDN, .heads = 2, .v_heads = 2, .k_dim = 7, .v_dim = 5},
                .source = sc_host_devptr(&source), .dest = sc_host_devptr(&slot),
                .state = {state.base, state.slot_stride, state.dtype, 4}};
            ok(sc_k_decode_packed(NULL, &decode, NULL));
        }
    }
}

/* All parts of a slot, dense. */
static uint8_t *gathered(const sc_pool *pool, int32_t slot, uint64_t *bytes_out)
{
    sc_part_ref refs[16];
    uint32_t count = fix_refs(pool, refs);
    ok(sc_state_dense_bytes(pool, refs, count, 1, bytes_out, NULL));
    uint8_t *dense = memory_of(*bytes_out, 0);
    ok(sc_state_gather(pool, refs, count, &slot, 1, sc_host_devptr(dense), *bytes_out));
    return dense;
}

/* Slots of an engine's own tensors: [slot][layer][conv | state], each with gaps. */
static sc_pool *envelope_pool(void *memory, uint64_t gap, sc_foreign_part *parts)
{
    sc_pool *dense = fix_pool(FIX_GDN, SC_LAYOUT_CONTIGUOUS, 3);
    uint32_t count = fix_info(dense).part_count;
    uint64_t at = 0;
    for (uint32_t p = 0; p < count; p++) {
        parts[p].base = sc_host_devptr((uint8_t *)memory + at);
        at += (fix_view(dense, p).bytes + gap + 15) / 16 * 16;
    }
    for (uint32_t p = 0; p < count; p++) {
        parts[p].slot_stride = at;
        parts[p].bytes = 3 * at + (fix_view(dense, p).bytes + 15) / 16 * 16;
    }
    fix_end(dense, NULL, 0);
    sc_foreign_memory foreign = {.parts = parts, .part_count = count};
    return fix_pool_with(FIX_GDN, SC_LAYOUT_CONTIGUOUS, 3, NULL, NULL, &foreign);
}

START_TEST(report_74__every_layout_is_updated_in_place)
{
    sc_foreign_part parts[16];
    void *memory = memory_of(1 << 16, 0xff);
    sc_pool *pools[3] = {fix_pool(FIX_GDN, SC_LAYOUT_CONTIGUOUS, 3),
        fix_pool(FIX_GDN, SC_LAYOUT_PAGE_MAJOR, 3), envelope_pool(memory, 48, parts)};
    uint64_t bytes = 0;
    uint8_t *want = NULL;
    for (int i = 0; i < 3; i++) {
        sc_slot slots[3];
        ok(sc_pool_alloc(pools[i], 3, SC_OWNER_WORKING, slots));
        run_layers(pools[i], (int32_t)slots[1].id);
        uint8_t *got = gathered(pools[i], (int32_t)slots[1].id, &bytes);
        if (!want) want = got;
        ck_assert_mem_eq(got, want, bytes);
        if (got != want) free(got);
        fix_end(pools[i], slots, 3);
    }
    uint8_t zeros[16] = {0};
    ck_assert_mem_ne(want, zeros, sizeof zeros); /* the conv window of layer 0 was written */
    free(want), free(memory);
}
END_TEST

START_TEST(report_74__strides_that_no_kernel_takes_are_refused)
{
    sc_foreign_part parts[16];
    void *memory = memory_of(1 << 16, 0);
    sc_pool *pool = envelope_pool(memory, 48, parts);
    uint32_t count = fix_info(pool).part_count;
    sc_schema *schema = fix_schema_of(FIX_GDN, "r1");
    sc_foreign_memory foreign = {.parts = parts, .part_count = count};
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    sc_pool *refused = NULL;
    options.schema = schema;
    options.layout = SC_LAYOUT_CONTIGUOUS;
    options.slot_count = 3;
    options.foreign = &foreign;
    fix_end(pool, NULL, 0);
    for (uint32_t p = 0; p < count; p++) parts[p].slot_stride += 4;
    ck_assert_int_eq(sc_pool_create(&options, &refused), SC_ERR_MISMATCH);
    ck_assert_ptr_null(refused);
    for (uint32_t p = 0; p < count; p++) parts[p].slot_stride = 16; /* below a slot */
    ck_assert_int_eq(sc_pool_create(&options, &refused), SC_ERR_MISMATCH);
    ck_assert_ptr_null(refused);
    sc_schema_release(schema);
    free(memory);
}
END_TEST

static sc_schema *matrix_schema(uint32_t inner)
{
    sc_group group = {"gdn", 64};
    sc_part part = fix_matrix(0, 0, SC_DTYPE_F32, 2, 128, inner);
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    options.model = "inner";
    options.revision = "1";
    options.groups = &group;
    options.group_count = options.part_count = options.layer_count = 1;
    options.parts = &part;
    sc_schema *schema = NULL;
    ok(sc_schema_create(&options, &schema));
    return schema;
}

/* A part is dense within its slot: only the distance from slot to slot can be given. A tensor whose
 * rows are padded from 128 to 136 is another state, which does not go with the first. */
START_TEST(report_75__a_part_is_dense_within_its_slot)
{
    sc_pool *pools[2];
    sc_slot slots[2];
    for (int i = 0; i < 2; i++) {
        sc_schema *schema = matrix_schema(i ? 136 : 128);
        sc_pool_options options = SC_POOL_OPTIONS_INIT;
        options.schema = schema;
        options.slot_count = 1;
        ok(sc_pool_create(&options, &pools[i]));
        sc_schema_release(schema);
        ok(sc_pool_alloc(pools[i], 1, SC_OWNER_WORKING, &slots[i]));
        sc_layer_view view = fix_view(pools[i], 0);
        ck_assert_uint_eq(view.bytes, 2u * 128 * (i ? 136 : 128) * 4);
        ck_assert_uint_eq(view.dims[2], i ? 136 : 128);
    }
    int32_t from = (int32_t)slots[0].id, to = (int32_t)slots[1].id;
    ck_assert_int_eq(sc_state_copy(pools[0], &from, pools[1], &to, 1), SC_ERR_MISMATCH);
    for (int i = 0; i < 2; i++) fix_end(pools[i], &slots[i], 1);

    /* Room for 128 tokens of 128, offered as a pool of 136, is too little. */
    sc_schema *schema = matrix_schema(136);
    void *memory = memory_of(2u * 2 * 128 * 128 * 4, 0);
    sc_foreign_part part = {sc_host_devptr(memory), 2u * 2 * 128 * 128 * 4, 2u * 128 * 128 * 4};
    sc_foreign_memory foreign = {.parts = &part, .part_count = 1};
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    options.schema = schema;
    options.layout = SC_LAYOUT_CONTIGUOUS;
    options.slot_count = 1;
    options.foreign = &foreign;
    ck_assert_int_eq(sc_pool_create(&options, &pools[0]), SC_ERR_MISMATCH);
    sc_schema_release(schema);
    free(memory);
}
END_TEST

/* ---- keys ---- */

/* Also in the process that is started: no assertion of Check's. */
static bool fingerprint_text(char text[33])
{
    sc_schema *schema = NULL;
    sc_fingerprint fingerprint;
    if (sc_schema_preset("qwen3-next-80b-a3b", SC_DTYPE_F32, &schema) != SC_OK) return false;
    sc_status status = sc_schema_fingerprint(schema, &fingerprint);
    for (int i = 0; i < 16; i++) (void)snprintf(text + 2 * i, 3, "%02x", fingerprint.bytes[i]);
    sc_schema_release(schema);
    return status == SC_OK;
}

/* What a stored state is told apart by: a program that is started twice prints the same. */
START_TEST(report_131__two_processes_have_the_same_keys)
{
    char path[512], command[600], text[33], other[33];
    ssize_t count = readlink("/proc/self/exe", path, sizeof path - 1);
    ck_assert_int_gt(count, 0);
    path[count] = '\0';
    (void)snprintf(command, sizeof command, "'%s' fingerprint", path);
    ck_assert(fingerprint_text(text));
    for (int run = 0; run < 2; run++) {
        FILE *pipe = popen(command, "r");
        ck_assert_ptr_nonnull(pipe);
        ck_assert_ptr_nonnull(fgets(other, sizeof other, pipe));
        ck_assert_int_eq(pclose(pipe), 0);
        ck_assert_str_eq(other, text);
    }
}
END_TEST

#define ADD(name) tcase_add_test(tc, name)

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "fingerprint") == 0) {
        char text[33];
        return fingerprint_text(text) && printf("%s", text) == 32 ? 0 : 1;
    }
    Suite *suite = suite_create("reports_slots");
    TCase *tc = tcase_create("reports");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, report_18__a_state_goes_to_any_slot, 0, 4);
    tcase_add_loop_test(tc, report_19__a_slot_given_out_again_shows_nothing, 0, 2);
    ADD(report_20__memory_that_changes_its_type); ADD(report_25__a_handle_is_a_value);
    ADD(report_28__pools_on_memory_full_of_nan); ADD(report_65__three_slots_or_none);
    ADD(report_74__every_layout_is_updated_in_place);
    ADD(report_74__strides_that_no_kernel_takes_are_refused);
    ADD(report_75__a_part_is_dense_within_its_slot);
    ADD(report_131__two_processes_have_the_same_keys);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

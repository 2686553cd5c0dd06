/* SPDX-License-Identifier: Apache-2.0 */
/* Bits of the delta rule (contracts 7 to 11): whatever is done to one sequence, cutting it on
 * the grid, packing it with others, padding, another layout, a save, gives the bits of not having
 * done so. Each test runs for GDN and KDA, fp32 and bf16 states, and the forms that apply. */
#include <check.h>
#include <math.h>

#include "kernels_rig.h"
#include "support/check_main.h"
#include "support/test_scale.h"

enum { SLOTS = 12, DIMS = 5 };

static const struct { uint32_t heads, v_heads, k_dim, v_dim; } dims[DIMS] = {
    {2, 4, 32, 16}, {1, 1, 64, 64}, {1, 2, 19, 37}, {2, 2, 16, 5}, {1, 1, 128, 40}};

struct variant {
    sc_k_kind kind;
    sc_dtype dtype, state;
};
static const struct variant variants[] = {
    {SC_K_KIND_GDN, SC_DTYPE_F32, SC_DTYPE_F32}, {SC_K_KIND_KDA, SC_DTYPE_F32, SC_DTYPE_F32},
    {SC_K_KIND_GDN, SC_DTYPE_BF16, SC_DTYPE_BF16}, {SC_K_KIND_KDA, SC_DTYPE_BF16, SC_DTYPE_BF16},
    {SC_K_KIND_GDN, SC_DTYPE_BF16, SC_DTYPE_F32}, {SC_K_KIND_KDA, SC_DTYPE_F32, SC_DTYPE_BF16}};
enum { VARIANTS = sizeof variants / sizeof variants[0], CASES = VARIANTS * DIMS };

static const uint32_t forms[] = {0, 16, 32, 64}; /* chunk; 0: recurrent */

static struct rig_delta delta_case(int i, uint32_t chunk)
{
    const struct variant *x = &variants[i % VARIANTS];
    struct rig_delta d = {.shape = {.kind = x->kind, .heads = dims[i / VARIANTS].heads,
        .v_heads = dims[i / VARIANTS].v_heads, .k_dim = dims[i / VARIANTS].k_dim,
        .v_dim = dims[i / VARIANTS].v_dim, .qk_l2norm = true}, .dtype = x->dtype, .chunk = chunk};
    rig_seq_init(&d, 0, 150, 23, 7 + (uint64_t)i);
    rig_seq_init(&d, 1, 70, 64, 1007 + (uint64_t)i);
    rig_seq_init(&d, 2, 3, 0, 2007 + (uint64_t)i);
    return d;
}

/* A pool whose slot 1 holds a state; everything else is poison. */
static struct rig_pool pool_case(const struct rig_delta *d, int i, size_t stride, size_t offset)
{
    sc_dtype state = variants[i % VARIANTS].state;
    struct rig_pool pool = rig_pool(state, rig_state_elems(d), SLOTS, stride, offset);
    struct sc_prng prng;
    sc_prng_seed(&prng, 99);
    float *s = rig_normal(&prng, pool.part_elems, 1.0f);
    rig_put(rig_slot(&pool, 1), state, s, pool.part_elems);
    free(s);
    return pool;
}

static uint8_t *copy_outputs(const struct rig_delta *d, uint32_t seq)
{
    size_t bytes = d->seq[seq].tokens * rig_vo(d) * rig_elem(d->dtype);
    uint8_t *out = rig_alloc(bytes);
    memcpy(out, d->seq[seq].o, bytes);
    memset(d->seq[seq].o, 0xff, bytes);
    return out;
}

static void same_outputs(const struct rig_delta *d, uint32_t seq, const uint8_t *want,
    uint32_t tokens)
{
    ck_assert_mem_eq(d->seq[seq].o, want, tokens * rig_vo(d) * rig_elem(d->dtype));
}

/* Sequence 0 alone and uncut, from slot 1 to slot 2, into a fresh pool. */
static uint8_t *whole(struct rig_delta *d, int i, struct rig_pool *pool_out)
{
    *pool_out = pool_case(d, i, 0, 0);
    rig_run(d, pool_out, &(struct rig_piece){0, 0, d->seq[0].tokens, 1, 2}, 1, NULL, 0);
    return copy_outputs(d, 0);
}

START_TEST(delta__cut_at_grid_points_equals_uncut)
{
    for (int f = 0; f < 4; f++) {
        struct rig_delta d = delta_case(_i, forms[f]);
        struct rig_pool one, two = pool_case(&d, _i, 0, 0);
        uint8_t *want = whole(&d, _i, &one);
        /* absolute 64 and 128 are on every grid; 23 is where the sequence begins */
        rig_run(&d, &two, &(struct rig_piece){0, 0, 41, 1, 3}, 1, NULL, 0);
        rig_run(&d, &two, &(struct rig_piece){0, 41, 105, 3, 3}, 1, NULL, 0);
        rig_run(&d, &two, &(struct rig_piece){0, 105, 150, 3, 2}, 1, NULL, 0);
        same_outputs(&d, 0, want, 150);
        rig_same_slots(&two, 2, &one, 2);
        rig_same_slots(&two, 1, &one, 1); /* a source is only read */
        free(want), free(one.memory), free(two.memory), rig_delta_free(&d);
    }
}
END_TEST

START_TEST(delta__every_grid_point_is_a_cut_without_trace)
{
    for (int f = 1; f < 4; f++) {
        struct rig_delta d = delta_case(_i, forms[f]);
        struct rig_pool one, two = pool_case(&d, _i, 0, 0);
        uint8_t *want = whole(&d, _i, &one);
        int32_t source = 1;
        for (uint32_t at = 0, to; at < 150; at = to) {
            to = at + forms[f] - (at + 23) % forms[f];
            if (to > 150) to = 150;
            rig_run(&d, &two, &(struct rig_piece){0, at, to, source, 2}, 1, NULL, 0);
            source = 2;
        }
        same_outputs(&d, 0, want, 150);
        rig_same_slots(&two, 2, &one, 2);
        free(want), free(one.memory), free(two.memory), rig_delta_free(&d);
    }
}
END_TEST

START_TEST(delta__packing_and_padding_change_no_bit)
{
    for (int f = 0; f < 4; f++) {
        struct rig_delta d = delta_case(_i, forms[f]);
        struct rig_pool one, two = pool_case(&d, _i, 0, 0);
        uint8_t *want0 = whole(&d, _i, &one);
        rig_run(&d, &one, &(struct rig_piece){1, 0, 70, 0, 3}, 1, NULL, 0);
        rig_run(&d, &one, &(struct rig_piece){2, 0, 3, 1, 4}, 1, NULL, 0);
        uint8_t *want1 = copy_outputs(&d, 1), *want2 = copy_outputs(&d, 2);
        const struct rig_piece pieces[] = {{-1, 0, 2, -1, 9}, {2, 0, 3, 1, 4}, {-1, 0, 0, -1, 8},
            {1, 0, 70, 0, 3}, {0, 7, 7, 1, -1}, {0, 0, 150, 1, 2}, {-1, 0, 5, -1, 0}};
        rig_run(&d, &two, pieces, 7, NULL, 0);
        same_outputs(&d, 0, want0, 150);
        same_outputs(&d, 1, want1, 70);
        same_outputs(&d, 2, want2, 3);
        for (int32_t s = 1; s <= 4; s++) rig_same_slots(&two, s, &one, s);
        const int32_t untouched[] = {0, 5, 6, 7, 8, 9, 10, 11};
        for (int s = 0; s < 8; s++) rig_untouched(&two, untouched[s]);
        free(want0), free(want1), free(want2);
        free(one.memory), free(two.memory), rig_delta_free(&d);
    }
}
END_TEST

START_TEST(delta__layouts_agree)
{
    for (int f = 0; f < 4; f++) {
        struct rig_delta d = delta_case(_i, forms[f]);
        struct rig_pool one, two;
        uint8_t *want = whole(&d, _i, &one);
        /* page-major: other layers lie between two slots of this one */
        size_t dense = rig_part_bytes(&one);
        two = pool_case(&d, _i, 3 * dense + 256, 512);
        rig_run(&d, &two, &(struct rig_piece){0, 0, 150, 1, 2}, 1, NULL, 0);
        same_outputs(&d, 0, want, 150);
        rig_same_slots(&two, 2, &one, 2);
        for (int32_t s = 0; s < SLOTS; s++) {
            const uint8_t *gap = (uint8_t *)rig_slot(&two, s) + dense;
            if (s + 1 < SLOTS) rig_all_bytes(gap, 2 * dense + 256, 0xff);
            if (s != 1 && s != 2) rig_untouched(&two, s);
        }
        free(want), free(one.memory), free(two.memory), rig_delta_free(&d);
    }
}
END_TEST

START_TEST(delta__a_save_is_the_state_of_a_run_that_stopped_there)
{
    for (int f = 0; f < 4; f++) {
        struct rig_delta d = delta_case(_i, forms[f]);
        struct rig_pool one, two = pool_case(&d, _i, 0, 0);
        uint8_t *want = whole(&d, _i, &one);
        /* unsorted, padded, all in one call, and one at the end of a row */
        const struct rig_piece pieces[] = {{1, 0, 70, 0, 9}, {0, 0, 150, 1, 2}, {1, 0, 0, 0, -1}};
        const struct rig_save saves[] = {{1, 128, 5}, {-1, -1, -1}, {1, 64, 3}, {0, 128, 7},
            {-1, 64, 3}};
        rig_run(&d, &two, pieces, 3, saves, 5);
        same_outputs(&d, 0, want, 150); /* saving changes nothing else */
        rig_same_slots(&two, 2, &one, 2);
        rig_run(&d, &one, &(struct rig_piece){0, 0, 41, 1, 3}, 1, NULL, 0);
        rig_run(&d, &one, &(struct rig_piece){0, 0, 105, 1, 5}, 1, NULL, 0);
        rig_run(&d, &one, &(struct rig_piece){1, 0, 64, 0, 7}, 1, NULL, 0);
        rig_same_slots(&two, 3, &one, 3);
        rig_same_slots(&two, 5, &one, 5);
        rig_same_slots(&two, 7, &one, 7);
        /* resuming from a save gives the bits of not having stopped */
        rig_run(&d, &two, &(struct rig_piece){0, 105, 150, 5, 6}, 1, NULL, 0);
        same_outputs(&d, 0, want, 150);
        rig_same_slots(&two, 6, &one, 2);
        free(want), free(one.memory), free(two.memory), rig_delta_free(&d);
    }
}
END_TEST

START_TEST(delta__a_save_at_the_end_of_a_row_equals_dest)
{
    for (int f = 0; f < 4; f++) {
        struct rig_delta d = delta_case(_i, forms[f]);
        struct rig_pool pool = pool_case(&d, _i, 0, 0);
        const struct rig_save save = {0, 128, 5};
        rig_run(&d, &pool, &(struct rig_piece){0, 0, 105, 1, 2}, 1, &save, 1);
        rig_same_slots(&pool, 5, &pool, 2);
        free(pool.memory), rig_delta_free(&d);
    }
}
END_TEST

START_TEST(recurrent__saves_at_any_position)
{
    struct rig_delta d = delta_case(_i, 0);
    struct rig_pool one = pool_case(&d, _i, 0, 0), two = pool_case(&d, _i, 0, 0);
    const struct rig_save saves[] = {{0, 24, 3}, {0, 77, 4}};
    rig_run(&d, &one, &(struct rig_piece){0, 0, 150, 1, 2}, 1, saves, 2);
    rig_run(&d, &two, &(struct rig_piece){0, 0, 1, 1, 3}, 1, NULL, 0);
    rig_run(&d, &two, &(struct rig_piece){0, 1, 54, 3, 4}, 1, NULL, 0);
    rig_same_slots(&one, 3, &two, 3);
    rig_same_slots(&one, 4, &two, 4);
    free(one.memory), free(two.memory), rig_delta_free(&d);
}
END_TEST

START_TEST(delta__in_place_equals_out_of_place)
{
    for (int f = 0; f < 4; f++) {
        struct rig_delta d = delta_case(_i, forms[f]);
        struct rig_pool one, two = pool_case(&d, _i, 0, 0);
        uint8_t *want = whole(&d, _i, &one);
        rig_run(&d, &two, &(struct rig_piece){0, 0, 150, 1, 1}, 1, NULL, 0);
        same_outputs(&d, 0, want, 150);
        rig_same_slots(&two, 1, &one, 2);
        rig_untouched(&two, 2);
        free(want), free(one.memory), free(two.memory), rig_delta_free(&d);
    }
}
END_TEST

START_TEST(delta__later_tokens_change_no_earlier_output)
{
    for (int f = 0; f < 4; f++) {
        struct rig_delta d = delta_case(_i, forms[f]);
        struct rig_pool one, two = pool_case(&d, _i, 0, 0);
        uint8_t *want = whole(&d, _i, &one);
        for (uint32_t to = 1; to < 150; to += 23) {
            rig_run(&d, &two, &(struct rig_piece){0, 0, to, 1, 0}, 1, NULL, 0);
            same_outputs(&d, 0, want, to);
        }
        rig_untouched(&two, 2);
        /* not even one that is not a number */
        d.seq[0].k[100 * rig_qk(&d)] = NAN;
        d.seq[0].v[120 * rig_vo(&d)] = INFINITY;
        rig_run(&d, &two, &(struct rig_piece){0, 0, 150, 1, 0}, 1, NULL, 0);
        same_outputs(&d, 0, want, 100);
        free(want), free(one.memory), free(two.memory), rig_delta_free(&d);
    }
}
END_TEST

START_TEST(delta__empty_rows_move_the_state_as_it_is)
{
    for (int f = 0; f < 4; f++) {
        struct rig_delta d = delta_case(_i, forms[f]);
        struct rig_pool pool = pool_case(&d, _i, 0, 0), was = pool_case(&d, _i, 0, 0);
        const struct rig_piece pieces[] = {{0, 9, 9, 1, 2}, {1, 0, 0, 0, 3}, {2, 1, 1, 1, -1}};
        rig_run(&d, &pool, pieces, 3, NULL, 0);
        rig_same_slots(&pool, 1, &was, 1);
        rig_same_slots(&pool, 2, &was, 1);
        rig_all_bytes(rig_slot(&pool, 3), rig_part_bytes(&pool), 0);
        rig_run(&d, &pool, &(struct rig_piece){0, 9, 9, 1, 1}, 1, NULL, 0);
        rig_same_slots(&pool, 1, &was, 1);
        for (int32_t s = 4; s < SLOTS; s++) rig_untouched(&pool, s);
        free(pool.memory), free(was.memory), rig_delta_free(&d);
    }
}
END_TEST

/* One token of sequence 0 through the packed decode; row 0 is padding. */
static void decode_token(struct rig_delta *d, const struct rig_pool *pool, uint32_t t,
    int32_t source, int32_t dest, int32_t save)
{
    size_t qk = rig_qk(d), vo = rig_vo(d), n = 2 * qk + vo, e = rig_elem(d->dtype);
    float *rows = rig_alloc(2 * n * 4), *g = rig_alloc(2 * rig_g(d) * 4);
    float *beta = rig_alloc(2u * d->shape.v_heads * 4);
    memcpy(rows + n, d->seq[0].q + t * qk, qk * 4);
    memcpy(rows + n + qk, d->seq[0].k + t * qk, qk * 4);
    memcpy(rows + n + 2 * qk, d->seq[0].v + t * vo, vo * 4);
    memcpy(g + rig_g(d), d->seq[0].g + t * rig_g(d), rig_g(d) * 4);
    memcpy(beta + d->shape.v_heads, d->seq[0].beta + t * d->shape.v_heads,
        d->shape.v_heads * 4u);
    void *qkv = rig_tensor(d->dtype, rows, 2 * n);
    uint8_t *o = rig_tensor(d->dtype, NULL, 2 * vo);
    int32_t sources[2] = {-1, source}, dests[2] = {7, dest}, saves[2] = {8, save};
    sc_k_decode_packed_params p = {.qkv = sc_host_devptr(qkv), .o = sc_host_devptr(o),
        .dtype = d->dtype, .g = sc_host_devptr(g), .beta = sc_host_devptr(beta),
        .shape = d->shape, .row_count = 2, .source = sc_host_devptr(sources),
        .dest = sc_host_devptr(dests), .save = sc_host_devptr(saves), .state = pool->slots};
    RIG_OK(sc_k_decode_packed(NULL, &p, NULL));
    rig_all_bytes(o, vo * e, 0);
    memcpy(rig_o(d, 0, t), o + vo * e, vo * e);
    free(rows), free(g), free(beta), free(qkv), free(o);
}

START_TEST(decode__step_by_step_equals_recurrent)
{
    struct rig_delta d = delta_case(_i, 0);
    struct rig_pool one, two = pool_case(&d, _i, 0, 0);
    uint8_t *want = whole(&d, _i, &one);
    const struct rig_save at_40 = {0, 23 + 40, 4};
    rig_run(&d, &one, &(struct rig_piece){0, 0, 150, 1, 2}, 1, &at_40, 1);
    for (uint32_t t = 0; t < 150; t++)
        decode_token(&d, &two, t, t == 0 ? 1 : 2 + (int32_t)(t & 1), 3 - (int32_t)(t & 1),
            t == 39 ? 4 : -1); /* two working slots in turn: 1 -> 3 -> 2 -> 3 ... */
    same_outputs(&d, 0, want, 150);
    rig_same_slots(&two, 2, &one, 2);
    rig_same_slots(&two, 4, &one, 4);
    rig_same_slots(&two, 1, &one, 1);
    for (int32_t s = 5; s < SLOTS; s++) rig_untouched(&two, s);
    free(want), free(one.memory), free(two.memory), rig_delta_free(&d);
}
END_TEST

START_TEST(delta__strides_of_tensors_change_no_bit)
{
    struct rig_delta d = delta_case(_i, 32);
    struct rig_pool one, two = pool_case(&d, _i, 0, 0);
    uint8_t *want = whole(&d, _i, &one);
    /* q, k and v as columns of one packed matrix, as the conv leaves them; o with a margin */
    struct rig_batch b;
    const struct rig_piece piece = {0, 0, 150, 1, 2};
    rig_pack(&b, &d, &piece, 1);
    rig_params(&b, &d, &two, 1, NULL, 0);
    size_t qk = rig_qk(&d), vo = rig_vo(&d), n = 2 * qk + vo + 3, e = rig_elem(d.dtype);
    float *rows = rig_alloc(150 * n * 4);
    for (size_t t = 0; t < 150; t++) {
        memcpy(rows + t * n, b.q + t * qk, qk * 4);
        memcpy(rows + t * n + qk, b.k + t * qk, qk * 4);
        memcpy(rows + t * n + 2 * qk, b.v + t * vo, vo * 4);
    }
    uint8_t *packed = rig_tensor(d.dtype, rows, 150 * n), *o = rig_tensor(d.dtype, NULL, 150 * n);
    b.p.q = sc_host_devptr(packed), b.p.k = b.p.q + qk * e, b.p.v = b.p.q + 2 * qk * e;
    b.p.o = sc_host_devptr(o);
    b.p.q_stride = b.p.k_stride = b.p.v_stride = b.p.o_stride = (int64_t)n;
    RIG_OK(sc_k_delta_chunk(NULL, &b.p, NULL));
    for (size_t t = 0; t < 150; t++) {
        ck_assert_mem_eq(o + t * n * e, want + t * vo * e, vo * e);
        rig_all_bytes(o + t * n * e + vo * e, (n - vo) * e, 0xff);
    }
    rig_same_slots(&two, 2, &one, 2);
    free(rows), free(packed), free(o), rig_batch_free(&b);
    free(want), free(one.memory), free(two.memory), rig_delta_free(&d);
}
END_TEST

/* A pool of slots 1 GiB apart, as many as `near` has and more: elements beyond the 2^32nd, of fp32,
 * too. Untouched pages of the map cost nothing. Slot FAR holds what slot 1 of `near` does. */
enum { FAR = 17, FAR_SLOTS = 20 };

static struct rig_pool far_pool(const struct rig_pool *near, struct sc_backend_memory *memory)
{
    struct rig_pool far = *near;
    RIG_OK(sc_backend_alloc(sc_backend_host(), (uint64_t)FAR_SLOTS << 30, memory));
    far.slots.base = memory->base;
    far.slots.slot_stride = (int64_t)1 << 30;
    far.slots.slot_count = FAR_SLOTS;
    memcpy(rig_slot(&far, FAR), rig_slot(near, 1), rig_part_bytes(near));
    return far;
}

START_TEST(delta__slots_beyond_2_32_elements)
{
    for (int f = 0; f < 2; f++) {
        struct rig_delta d = delta_case(_i, f == 0 ? 0 : 64);
        struct rig_pool one, two = pool_case(&d, _i, 0, 0);
        uint8_t *want = whole(&d, _i, &one);
        struct sc_backend_memory memory = {0};
        struct rig_pool far = far_pool(&two, &memory);
        rig_run(&d, &far, &(struct rig_piece){0, 0, 150, FAR, FAR + 1}, 1, NULL, 0);
        same_outputs(&d, 0, want, 150);
        rig_same_slots(&far, FAR + 1, &one, 2);
        sc_backend_free(sc_backend_host(), &memory);
        free(want), free(one.memory), free(two.memory), rig_delta_free(&d);
    }
}
END_TEST

/* Heads of 128 and V a multiple of 64: what a device has a kernel of its own for. */
START_TEST(decode__slots_beyond_2_32_elements)
{
    const struct variant *x = &variants[_i];
    struct rig_delta d = {.shape = {.kind = x->kind, .heads = 1, .v_heads = 2, .k_dim = 128,
        .v_dim = 64, .qk_l2norm = true}, .dtype = x->dtype};
    rig_seq_init(&d, 0, 2, 0, 7);
    struct rig_pool near = pool_case(&d, _i, 0, 0);
    struct sc_backend_memory memory = {0};
    struct rig_pool far = far_pool(&near, &memory);
    decode_token(&d, &near, 0, 1, 2, 3);
    decode_token(&d, &near, 1, 2, 2, -1);
    uint8_t *want = copy_outputs(&d, 0);
    decode_token(&d, &far, 0, FAR, FAR + 1, FAR + 2);
    decode_token(&d, &far, 1, FAR + 1, FAR + 1, -1);
    same_outputs(&d, 0, want, 2);
    rig_same_slots(&far, FAR, &near, 1);
    rig_same_slots(&far, FAR + 1, &near, 2);
    rig_same_slots(&far, FAR + 2, &near, 3);
    sc_backend_free(sc_backend_host(), &memory);
    free(want), free(near.memory), rig_delta_free(&d);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_delta_bits");
    TCase *bits = tcase_create("bits");
    tcase_set_timeout(bits, 120);
    /* scaled runs leave out the later dims, never a variant */
    int cases = (int)test_scaled(CASES, 3 * VARIANTS);
    cases = cases < CASES ? cases / VARIANTS * VARIANTS : CASES;
    tcase_add_loop_test(bits, delta__cut_at_grid_points_equals_uncut, 0, cases);
    tcase_add_loop_test(bits, delta__every_grid_point_is_a_cut_without_trace, 0, cases);
    tcase_add_loop_test(bits, delta__packing_and_padding_change_no_bit, 0, cases);
    tcase_add_loop_test(bits, delta__layouts_agree, 0, cases);
    tcase_add_loop_test(bits, delta__a_save_is_the_state_of_a_run_that_stopped_there, 0, cases);
    tcase_add_loop_test(bits, delta__a_save_at_the_end_of_a_row_equals_dest, 0, cases);
    tcase_add_loop_test(bits, recurrent__saves_at_any_position, 0, cases);
    tcase_add_loop_test(bits, delta__in_place_equals_out_of_place, 0, cases);
    tcase_add_loop_test(bits, delta__later_tokens_change_no_earlier_output, 0, cases);
    tcase_add_loop_test(bits, delta__empty_rows_move_the_state_as_it_is, 0, cases);
    tcase_add_loop_test(bits, decode__step_by_step_equals_recurrent, 0, cases);
    tcase_add_loop_test(bits, delta__strides_of_tensors_change_no_bit, 0, cases);
    tcase_add_loop_test(bits, delta__slots_beyond_2_32_elements, 0, VARIANTS);
    tcase_add_loop_test(bits, decode__slots_beyond_2_32_elements, 0, VARIANTS);
    suite_add_tcase(suite, bits);
    return check_main(suite);
}

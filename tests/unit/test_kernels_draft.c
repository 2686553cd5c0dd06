/* SPDX-License-Identifier: Apache-2.0 */
/* Draft tokens: every node of a tree gives the outputs of a plain run over its ancestors, a commit
 * leaves the state of that run, bit for bit, replayed or from stored nodes; a tree that is a chain
 * equals a chain equals decode; the conv likewise, and its form with a cursor over many rounds. */
#include <check.h>

#include "kernels_rig.h"
#include "support/check_main.h"
#include "statecache/kernels_draft.h"

enum { SLOTS = 8, CASES = 12, NODES = 11 };
enum { SOURCE = 1, DEST = 2, SAVE = 3, PLAIN = 4, PLAIN_SAVE = 5 };

static const struct { uint32_t heads, v_heads, k_dim, v_dim; } dims[] = {
    {1, 2, 128, 20}, {2, 2, 16, 5}, {1, 3, 64, 9}, {1, 1, 19, 37}};

/* Sequence 0 holds the draft tokens, sequence 1 a path through them. */
struct draft {
    struct rig_delta d;
    struct rig_pool pool;
    int32_t parent[NODES + 3]; /* after a padded row of 3 tokens */
    bool tree;
};

static struct draft draft_case(int i)
{
    struct draft x = {.d = {.shape = {.kind = i % 2 ? SC_K_KIND_KDA : SC_K_KIND_GDN,
        .heads = dims[i % 4].heads, .v_heads = dims[i % 4].v_heads, .k_dim = dims[i % 4].k_dim,
        .v_dim = dims[i % 4].v_dim, .qk_l2norm = true},
        .dtype = i % 3 == 1 ? SC_DTYPE_BF16 : SC_DTYPE_F32}, .tree = true};
    struct sc_prng prng;
    sc_prng_seed(&prng, 77 + (uint64_t)i);
    rig_seq_init(&x.d, 0, NODES, 40, 1 + (uint64_t)i);
    rig_seq_init(&x.d, 1, NODES, 40, 1 + (uint64_t)i);
    rig_seq_init(&x.d, 2, 1, 0, 1);
    x.pool = rig_pool(i % 3 == 0 ? SC_DTYPE_BF16 : SC_DTYPE_F32, rig_state_elems(&x.d), SLOTS,
        0, 0);
    float *s = rig_normal(&prng, x.pool.part_elems, 1.0f);
    rig_put(rig_slot(&x.pool, SOURCE), x.pool.slots.dtype, s, x.pool.part_elems);
    free(s);
    for (int32_t t = 0; t < NODES; t++)
        x.parent[3 + t] = t == 0 ? -1 : (int32_t)sc_prng_below(&prng, (uint64_t)t + 1) - 1;
    return x;
}

static void draft_free(struct draft *x)
{
    free(x->pool.memory);
    rig_delta_free(&x->d);
}

/* The path to `node`; its tokens become those of sequence 1. */
static uint32_t take_path(struct draft *x, int32_t node, int32_t path[NODES])
{
    uint32_t count = 0;
    const struct rig_delta *d = &x->d;
    const struct rig_seq *from = &d->seq[0], *to = &d->seq[1];
    size_t qk = rig_qk(d), vo = rig_vo(d), g = rig_g(d), h = d->shape.v_heads;
    for (int32_t t = node; t >= 0; t = x->tree ? x->parent[3 + t] : t - 1) count++;
    uint32_t i = count;
    for (int32_t t = node; t >= 0; t = x->tree ? x->parent[3 + t] : t - 1) {
        path[--i] = t;
        memcpy(to->q + i * qk, from->q + (size_t)t * qk, qk * 4);
        memcpy(to->k + i * qk, from->k + (size_t)t * qk, qk * 4);
        memcpy(to->v + i * vo, from->v + (size_t)t * vo, vo * 4);
        memcpy(to->g + i * g, from->g + (size_t)t * g, g * 4);
        memcpy(to->beta + i * h, from->beta + (size_t)t * h, h * 4);
    }
    return count;
}

/* A call of a padded row, then the drafts. */
static void pack(struct draft *x, struct rig_batch *b, int32_t source)
{
    const struct rig_piece pieces[] = {{-1, 0, 3, -1, -1}, {0, 0, NODES, source, -1}};
    rig_pack(b, &x->d, pieces, 2);
    rig_params(b, &x->d, &x->pool, 2, NULL, 0);
}

static sc_k_delta_verify_params verify_params(struct draft *x, struct rig_batch *b, void *store)
{
    sc_k_delta_verify_params p = {.tokens = b->p, .parent = x->tree ? sc_host_devptr(x->parent)
                                                                   : 0,
        .tokens_max = NODES};
    if (store != NULL) p.states = (sc_k_node_store){sc_host_devptr(store), NODES};
    p.tokens.dest = p.tokens.position = 0;
    RIG_OK(sc_k_delta_verify_scratch(NULL, &p, &p.tokens.scratch_bytes));
    free(b->tensors[4]);
    b->tensors[4] = rig_alloc(p.tokens.scratch_bytes);
    p.tokens.scratch = sc_host_devptr(b->tensors[4]);
    return p;
}

static void *new_store(const struct draft *x)
{
    uint64_t bytes = 0;
    RIG_OK(sc_k_node_store_bytes(2, NODES, x->pool.part_elems, x->pool.slots.dtype, &bytes));
    ck_assert_uint_eq(bytes, 2u * NODES * rig_part_bytes(&x->pool));
    return rig_alloc(bytes);
}

/* Verifies; outputs go to sequence 0. */
static void verify(struct draft *x, void *store, int32_t source)
{
    struct rig_batch b;
    pack(x, &b, source);
    sc_k_delta_verify_params p = verify_params(x, &b, store);
    size_t row = rig_vo(&x->d) * rig_elem(x->d.dtype);
    RIG_OK(sc_k_delta_verify(NULL, &p, NULL));
    rig_all_bytes(b.tensors[3], 3 * row, 0);
    memcpy(x->d.seq[0].o, (uint8_t *)b.tensors[3] + 3 * row, NODES * row);
    for (int32_t s = 2; s < PLAIN; s++) rig_untouched(&x->pool, s);
    rig_batch_free(&b);
}

static void commit(struct draft *x, void *store, int32_t source, int32_t node, int32_t dest,
    int32_t save_pos)
{
    struct rig_batch b;
    int32_t nodes[2] = {-1, node}, dests[2] = {-1, dest};
    pack(x, &b, source);
    sc_k_delta_commit_params p = {.tokens = b.p, .parent = x->tree ? sc_host_devptr(x->parent)
                                                                  : 0,
        .node = sc_host_devptr(nodes)};
    if (store != NULL) p.states = (sc_k_node_store){sc_host_devptr(store), NODES};
    b.save_row[0] = 1, b.save_pos[0] = save_pos, b.save_slot[0] = SAVE;
    p.tokens.saves.count = save_pos > 0;
    p.tokens.dest = sc_host_devptr(dests);
    p.tokens.q = p.tokens.o = 0;
    RIG_OK(sc_k_delta_commit(NULL, &p, NULL));
    rig_batch_free(&b);
}

static void check_nodes(struct draft *x, void *store)
{
    size_t row = rig_vo(&x->d) * rig_elem(x->d.dtype);
    for (int32_t node = 0; node < NODES; node++) {
        int32_t path[NODES], source = node % 4 == 3 ? 0 : SOURCE;
        verify(x, store, source);
        uint32_t count = take_path(x, node, path);
        const struct rig_save save = {0, 40 + (int32_t)(count + 1) / 2, PLAIN_SAVE};
        rig_run(&x->d, &x->pool, &(struct rig_piece){1, 0, count, source, PLAIN}, 1, &save, 1);
        for (uint32_t i = 0; i < count; i++)
            ck_assert_mem_eq(rig_o(&x->d, 0, (uint32_t)path[i]), rig_o(&x->d, 1, i), row);
        commit(x, store, source, node, DEST, save.pos);
        rig_same_slots(&x->pool, DEST, &x->pool, PLAIN);
        rig_same_slots(&x->pool, SAVE, &x->pool, PLAIN_SAVE);
        memset(rig_slot(&x->pool, DEST), 0xff, rig_part_bytes(&x->pool));
        memset(rig_slot(&x->pool, SAVE), 0xff, rig_part_bytes(&x->pool));
    }
}

START_TEST(draft__a_node_equals_a_run_over_its_ancestors)
{
    struct draft x = draft_case(_i);
    check_nodes(&x, NULL);
    draft_free(&x);
}
END_TEST

START_TEST(draft__stored_nodes_give_the_same_bits)
{
    struct draft x = draft_case(_i);
    void *store = new_store(&x);
    check_nodes(&x, store);
    free(store), draft_free(&x);
}
END_TEST

START_TEST(draft__a_chain_needs_no_parents)
{
    struct draft x = draft_case(_i);
    size_t bytes = NODES * rig_vo(&x.d) * rig_elem(x.d.dtype);
    for (int32_t t = 0; t < NODES; t++) x.parent[3 + t] = t - 1;
    verify(&x, NULL, SOURCE);
    uint8_t *tree = rig_alloc(bytes);
    memcpy(tree, x.d.seq[0].o, bytes);
    x.tree = false;
    check_nodes(&x, NULL);
    verify(&x, NULL, SOURCE);
    ck_assert_mem_eq(tree, x.d.seq[0].o, bytes);
    free(tree), draft_free(&x);
}
END_TEST

START_TEST(draft__nothing_accepted_moves_the_state_as_it_is)
{
    struct draft x = draft_case(_i);
    commit(&x, NULL, SOURCE, -1, DEST, 0);
    rig_same_slots(&x.pool, DEST, &x.pool, SOURCE);
    commit(&x, NULL, SOURCE, -1, SOURCE, 0);
    rig_same_slots(&x.pool, DEST, &x.pool, SOURCE);
    commit(&x, NULL, 0, -1, DEST, 0);
    rig_all_bytes(rig_slot(&x.pool, DEST), rig_part_bytes(&x.pool), 0);
    draft_free(&x);
}
END_TEST

/* The state goes on from a commit as if the drafts had been decoded: in place, over and over. */
START_TEST(draft__commits_follow_each_other_in_place)
{
    struct draft x = draft_case(_i);
    int32_t path[NODES], plain = SOURCE;
    for (int round = 0; round < 6; round++) {
        int32_t node = (5 * round + 3) % NODES;
        uint32_t count = take_path(&x, node, path);
        rig_run(&x.d, &x.pool, &(struct rig_piece){1, 0, count, plain, PLAIN}, 1, NULL, 0);
        plain = PLAIN;
        commit(&x, NULL, round == 0 ? SOURCE : DEST, node, DEST, 0);
        rig_same_slots(&x.pool, DEST, &x.pool, PLAIN);
    }
    draft_free(&x);
}
END_TEST

/* ---- conv ---- */

enum { C = 70, W_MAX = 4 };

struct conv_case {
    sc_dtype dtype, window;
    uint32_t width;
    void *x, *y, *plain_x, *plain_y, *weight, *bias;
    struct rig_pool pool;
    int32_t parent[NODES], start[2], source[1], dest[1], node[1], position[1];
    sc_k_conv_prefill_params p;
};

static void conv_open(struct conv_case *c, int i, uint32_t part_rows)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, 500 + (uint64_t)i);
    c->dtype = i % 2 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
    c->window = i % 3 ? c->dtype : SC_DTYPE_BF16;
    c->width = 2 + (uint32_t)i % 3;
    float *x = rig_normal(&prng, NODES * C, 1.0f), *w = rig_normal(&prng, C * 4, 1.0f);
    c->x = rig_tensor(c->dtype, x, NODES * C);
    c->plain_x = rig_tensor(c->dtype, NULL, NODES * C);
    c->y = rig_tensor(c->dtype, NULL, NODES * C);
    c->plain_y = rig_tensor(c->dtype, NULL, NODES * C);
    c->weight = rig_tensor(c->dtype, w, (size_t)C * c->width);
    c->bias = rig_tensor(c->dtype, w, C);
    c->pool = rig_pool(c->window, (part_rows + c->width - 1) * C, SLOTS, 0, 0);
    float *s = rig_normal(&prng, c->pool.part_elems, 1.0f);
    rig_put(rig_slot(&c->pool, SOURCE), c->window, s, c->pool.part_elems);
    for (int32_t t = 0; t < NODES; t++)
        c->parent[t] = t == 0 ? -1 : (int32_t)sc_prng_below(&prng, (uint64_t)t + 1) - 1;
    c->start[0] = 0, c->start[1] = NODES;
    c->source[0] = SOURCE, c->dest[0] = DEST, c->position[0] = 40;
    c->p = (sc_k_conv_prefill_params){.x = sc_host_devptr(c->x), .y = sc_host_devptr(c->y),
        .dtype = c->dtype, .weight = sc_host_devptr(c->weight),
        .bias = i % 2 ? sc_host_devptr(c->bias) : 0, .weight_dtype = c->dtype,
        .act = i % 4 ? SC_K_ACT_SILU : SC_K_ACT_IDENTITY, .channels = C, .width = c->width,
        .token_count = NODES, .row_count = 1, .row_start = sc_host_devptr(c->start),
        .source = sc_host_devptr(c->source), .window = c->pool.slots};
    free(x), free(w), free(s);
}

static void conv_close(struct conv_case *c)
{
    free(c->x), free(c->y), free(c->plain_x), free(c->plain_y), free(c->weight), free(c->bias);
    free(c->pool.memory);
}

/* A plain prefill over the path to `node`, from `source`; the window goes to PLAIN. */
static uint32_t conv_plain(struct conv_case *c, int32_t node, int32_t source, int32_t save_pos,
    int32_t path[NODES])
{
    uint32_t count = 0;
    size_t row = C * rig_elem(c->dtype);
    int32_t dest = PLAIN, zero = 0, slot = PLAIN_SAVE;
    for (int32_t t = node; t >= 0; t = c->parent[t]) count++;
    uint32_t i = count;
    for (int32_t t = node; t >= 0; t = c->parent[t]) {
        path[--i] = t;
        memcpy((uint8_t *)c->plain_x + i * row, (uint8_t *)c->x + (size_t)t * row, row);
    }
    int32_t start[2] = {0, (int32_t)count};
    sc_k_conv_prefill_params p = c->p;
    p.x = sc_host_devptr(c->plain_x), p.y = sc_host_devptr(c->plain_y);
    p.token_count = count, p.row_start = sc_host_devptr(start);
    p.source = sc_host_devptr(&source), p.dest = sc_host_devptr(&dest);
    if (save_pos > 0)
        p.saves = (sc_k_saves){sc_host_devptr(&zero), sc_host_devptr(&save_pos),
            sc_host_devptr(&slot), 1};
    RIG_OK(sc_k_conv_prefill(NULL, &p, NULL));
    return count;
}

START_TEST(draft__the_conv_sees_ancestors_only)
{
    struct conv_case c;
    conv_open(&c, _i, 0);
    size_t row = C * rig_elem(c.dtype);
    int32_t path[NODES], zero = 0, slot = SAVE;
    uint64_t bytes = 0;
    RIG_OK(sc_k_node_store_bytes(1, NODES, (c.width - 1u) * C, c.window, &bytes));
    void *store = rig_alloc(bytes);
    for (int32_t node = 0; node < NODES; node++) {
        sc_k_node_store stored = {sc_host_devptr(store), NODES}, none = {0};
        sc_k_conv_verify_params v = {.tokens = c.p, .parent = sc_host_devptr(c.parent),
            .windows = node % 2 ? stored : none};
        RIG_OK(sc_k_conv_verify(NULL, &v, NULL));
        rig_untouched(&c.pool, DEST);
        uint32_t count = conv_plain(&c, node, SOURCE, 1, path);
        for (uint32_t i = 0; i < count; i++)
            ck_assert_mem_eq((uint8_t *)c.y + (size_t)path[i] * row,
                (uint8_t *)c.plain_y + i * row, row);
        c.node[0] = node;
        sc_k_conv_commit_params m = {.tokens = c.p, .parent = v.parent,
            .node = sc_host_devptr(c.node), .windows = v.windows};
        int32_t save_pos = 41;
        m.tokens.dest = sc_host_devptr(c.dest), m.tokens.weight = m.tokens.y = 0;
        m.tokens.position = sc_host_devptr(c.position);
        m.tokens.saves = (sc_k_saves){sc_host_devptr(&zero), sc_host_devptr(&save_pos),
            sc_host_devptr(&slot), 1};
        RIG_OK(sc_k_conv_commit(NULL, &m, NULL));
        rig_same_slots(&c.pool, DEST, &c.pool, PLAIN);
        rig_same_slots(&c.pool, SAVE, &c.pool, PLAIN_SAVE);
        memset(rig_slot(&c.pool, DEST), 0xff, rig_part_bytes(&c.pool));
    }
    free(store), conv_close(&c);
}
END_TEST

/* Twelve rounds of drafts of which some are accepted: the wide row against a plain window. */
START_TEST(draft__a_cursor_forgets_rejected_inputs)
{
    enum { DRAFTS = 4 };
    struct conv_case c;
    conv_open(&c, _i, DRAFTS - 1);
    struct sc_prng prng;
    sc_prng_seed(&prng, 900 + (uint64_t)_i);
    size_t row = C * rig_elem(c.dtype), window = (c.width - 1) * C * rig_elem(c.window);
    int32_t slot = SOURCE, accepted = 1, tokens = 0, path[NODES], plain = 6;
    for (int32_t t = 0; t < NODES; t++) c.parent[t] = t - 1;
    memcpy(rig_slot(&c.pool, plain), rig_slot(&c.pool, SOURCE), window);
    for (int round = 0; round < 12; round++) {
        int32_t start[2] = {0, 1 + (int32_t)sc_prng_below(&prng, DRAFTS)};
        float *x = rig_normal(&prng, DRAFTS * C, 1.0f);
        rig_put(c.x, c.dtype, x, DRAFTS * C);
        free(x);
        tokens = start[1];
        sc_k_conv_update_spec_params u = {.x = c.p.x, .y = c.p.y, .dtype = c.dtype,
            .weight = c.p.weight, .bias = c.p.bias, .weight_dtype = c.dtype, .act = c.p.act,
            .channels = C, .width = c.width, .drafts_max = DRAFTS,
            .token_count = (uint32_t)tokens, .row_count = 1, .row_start = sc_host_devptr(start),
            .slot = sc_host_devptr(&slot), .accepted = sc_host_devptr(&accepted),
            .window = c.pool.slots};
        RIG_OK(sc_k_conv_update_spec(NULL, &u, NULL));
        (void)conv_plain(&c, tokens - 1, plain, 0, path); /* all drafts, to PLAIN */
        ck_assert_mem_eq(c.y, c.plain_y, (size_t)tokens * row);
        accepted = 1 + (int32_t)sc_prng_below(&prng, (uint64_t)tokens);
        (void)conv_plain(&c, accepted - 1, plain, 0, path);
        memcpy(rig_slot(&c.pool, plain), rig_slot(&c.pool, PLAIN), window);
    }
    conv_close(&c);
}
END_TEST

START_TEST(draft__a_wide_row_of_no_slot_gives_zeros)
{
    struct conv_case c;
    conv_open(&c, 1, 3);
    int32_t slot = -1, accepted = 0;
    c.start[1] = 3;
    sc_k_conv_update_spec_params u = {.x = c.p.x, .y = c.p.y, .dtype = c.dtype,
        .weight = c.p.weight, .weight_dtype = c.dtype, .act = c.p.act, .channels = C,
        .width = c.width, .drafts_max = 4, .token_count = 3, .row_count = 1,
        .row_start = sc_host_devptr(c.start), .slot = sc_host_devptr(&slot),
        .accepted = sc_host_devptr(&accepted), .window = c.pool.slots};
    RIG_OK(sc_k_conv_update_spec(NULL, &u, NULL));
    rig_all_bytes(c.y, 3 * C * rig_elem(c.dtype), 0);
    conv_close(&c);
}
END_TEST

/* ---- bad input ---- */

#define INVALID(call, field, value) RIG_REFUSED(SC_ERR_INVALID, call, field, value)

START_TEST(draft__bad_arguments_of_the_delta_rule)
{
    struct draft x = draft_case(1);
    struct rig_batch b;
    int32_t node[2] = {-1, 4}, dest[2] = {-1, DEST};
    pack(&x, &b, SOURCE);
    sc_k_delta_verify_params v = verify_params(&x, &b, NULL);
    uint64_t bytes = 0;
    INVALID(sc_k_delta_verify(NULL, &v, NULL), v.tokens_max, 0);
    INVALID(sc_k_delta_verify(NULL, &v, NULL), v.tokens_max, NODES - 1); /* a longer row */
    INVALID(sc_k_delta_verify(NULL, &v, NULL), v.tokens_max, SC_K_DRAFT_MAX + 1);
    INVALID(sc_k_delta_verify(NULL, &v, NULL), v.tokens.dest, sc_host_devptr(dest));
    INVALID(sc_k_delta_verify(NULL, &v, NULL), v.tokens.saves.count, 1);
    INVALID(sc_k_delta_verify(NULL, &v, NULL), v.tokens.o, 0);
    INVALID(sc_k_delta_verify(NULL, &v, NULL), v.tokens.o, v.tokens.q);
    INVALID(sc_k_delta_verify(NULL, &v, NULL), v.tokens.scratch, 0);
    INVALID(sc_k_delta_verify(NULL, &v, NULL), v.tokens.scratch_bytes, 63);
    INVALID(sc_k_delta_verify(NULL, &v, NULL), v.parent, 3);
    INVALID(sc_k_delta_verify(NULL, &v, NULL), x.parent[3 + 5], 5); /* its own parent */
    INVALID(sc_k_delta_verify(NULL, &v, NULL), b.source[1], SLOTS);
    INVALID(sc_k_delta_verify(NULL, &v, NULL), v.states.tokens_max, NODES); /* without memory */
    INVALID(sc_k_delta_verify(NULL, NULL, NULL), bytes, 0);
    RIG_REFUSED(SC_ERR_UNSUPPORTED, sc_k_delta_verify(NULL, &v, NULL), v.tokens.dtype, SC_DTYPE_U8);
    RIG_OK(sc_k_delta_verify(NULL, &v, NULL));
    sc_k_delta_commit_params m = {.tokens = b.p, .parent = v.parent,
        .node = sc_host_devptr(node)};
    m.tokens.dest = sc_host_devptr(dest);
    m.tokens.saves.count = 1;
    b.save_row[0] = 1, b.save_pos[0] = 41, b.save_slot[0] = SAVE;
    INVALID(sc_k_delta_commit(NULL, &m, NULL), m.node, 0);
    INVALID(sc_k_delta_commit(NULL, &m, NULL), node[1], NODES);
    INVALID(sc_k_delta_commit(NULL, &m, NULL), node[1], -2);
    INVALID(sc_k_delta_commit(NULL, &m, NULL), m.tokens.dest, 0);
    INVALID(sc_k_delta_commit(NULL, &m, NULL), dest[1], SLOTS);
    INVALID(sc_k_delta_commit(NULL, &m, NULL), b.save_slot[0], DEST); /* two destinations */
    INVALID(sc_k_delta_commit(NULL, &m, NULL), b.save_pos[0], 40 + NODES); /* beyond the path */
    INVALID(sc_k_delta_commit(NULL, &m, NULL), node[1], -1); /* a save on an empty path */
    INVALID(sc_k_delta_commit(NULL, NULL, NULL), bytes, 0);
    rig_untouched(&x.pool, DEST);
    rig_untouched(&x.pool, SAVE);
    RIG_OK(sc_k_delta_commit(NULL, &m, NULL));
    INVALID(sc_k_node_store_bytes(1, SC_K_DRAFT_MAX + 1, 1, SC_DTYPE_F32, &bytes), bytes, 0);
    INVALID(sc_k_node_store_bytes(1, 1, 1, SC_DTYPE_F32, NULL), bytes, 0);
    RIG_REFUSED(SC_ERR_OVERFLOW, sc_k_node_store_bytes(UINT32_MAX, 256, UINT64_MAX / 4,
        SC_DTYPE_F32, &bytes), bytes, 0);
    INVALID(sc_k_delta_verify_scratch(NULL, NULL, &bytes), bytes, 0);
    INVALID(sc_k_delta_verify_scratch(NULL, &v, NULL), bytes, 0);
    rig_batch_free(&b), draft_free(&x);
}
END_TEST

START_TEST(draft__bad_arguments_of_the_conv)
{
    struct conv_case c;
    int32_t slot = SOURCE, accepted = 2, bad = 0;
    conv_open(&c, 1, 3);
    c.node[0] = 2;
    sc_k_conv_verify_params v = {.tokens = c.p, .parent = sc_host_devptr(c.parent)};
    INVALID(sc_k_conv_verify(NULL, &v, NULL), v.tokens.width, 5);
    INVALID(sc_k_conv_verify(NULL, &v, NULL), v.tokens.dest, sc_host_devptr(c.dest));
    INVALID(sc_k_conv_verify(NULL, &v, NULL), v.tokens.y, v.tokens.x);
    INVALID(sc_k_conv_verify(NULL, &v, NULL), v.windows.tokens_max, NODES);
    INVALID(sc_k_conv_verify(NULL, &v, NULL), c.parent[1], 1);
    INVALID(sc_k_conv_verify(NULL, &v, NULL), c.source[0], SLOTS);
    INVALID(sc_k_conv_verify(NULL, NULL, NULL), bad, 0);
    sc_k_conv_commit_params m = {.tokens = c.p, .parent = v.parent,
        .node = sc_host_devptr(c.node)};
    m.tokens.dest = sc_host_devptr(c.dest);
    INVALID(sc_k_conv_commit(NULL, &m, NULL), m.tokens.x, 0);
    INVALID(sc_k_conv_commit(NULL, &m, NULL), m.node, 0);
    INVALID(sc_k_conv_commit(NULL, &m, NULL), c.node[0], NODES);
    INVALID(sc_k_conv_commit(NULL, &m, NULL), c.dest[0], SLOTS);
    INVALID(sc_k_conv_commit(NULL, NULL, NULL), bad, 0);
    rig_untouched(&c.pool, DEST);
    c.start[1] = 4;
    sc_k_conv_update_spec_params u = {.x = c.p.x, .y = c.p.y, .dtype = c.dtype,
        .weight = c.p.weight, .weight_dtype = c.dtype, .act = c.p.act, .channels = C,
        .width = c.width, .drafts_max = 4, .token_count = 4, .row_count = 1,
        .row_start = sc_host_devptr(c.start), .slot = sc_host_devptr(&slot),
        .accepted = sc_host_devptr(&accepted), .window = c.pool.slots};
    INVALID(sc_k_conv_update_spec(NULL, &u, NULL), accepted, 0);
    INVALID(sc_k_conv_update_spec(NULL, &u, NULL), accepted, 5);
    INVALID(sc_k_conv_update_spec(NULL, &u, NULL), slot, SLOTS);
    INVALID(sc_k_conv_update_spec(NULL, &u, NULL), u.drafts_max, 3); /* a longer row */
    INVALID(sc_k_conv_update_spec(NULL, &u, NULL), u.drafts_max, 5); /* a narrow slot */
    INVALID(sc_k_conv_update_spec(NULL, &u, NULL), u.accepted, 0);
    INVALID(sc_k_conv_update_spec(NULL, NULL, NULL), bad, 0);
    RIG_OK(sc_k_conv_update_spec(NULL, &u, NULL));
    conv_close(&c);
}
END_TEST

/* ---- field reports ---- */

START_TEST(report_76__rejected_drafts_leave_no_trace)
{
    struct draft x = draft_case(_i);
    int32_t path[NODES];
    x.tree = false;
    verify(&x, NULL, SOURCE); /* all eleven seen; three accepted */
    uint32_t count = take_path(&x, 2, path);
    rig_run(&x.d, &x.pool, &(struct rig_piece){1, 0, count, SOURCE, PLAIN}, 1, NULL, 0);
    commit(&x, NULL, SOURCE, 2, SOURCE, 0);
    rig_same_slots(&x.pool, SOURCE, &x.pool, PLAIN);
    draft_free(&x);
}
END_TEST

START_TEST(report_77__nothing_accepted_is_no_index)
{
    struct draft x = draft_case(_i);
    void *store = new_store(&x);
    verify(&x, store, SOURCE);
    commit(&x, store, SOURCE, -1, DEST, 0); /* not the last node, not the one before the first */
    rig_same_slots(&x.pool, DEST, &x.pool, SOURCE);
    free(store), draft_free(&x);
}
END_TEST

START_TEST(report_79__a_tree_is_committed_by_node)
{
    struct draft x = draft_case(_i);
    int32_t path[NODES];
    for (int32_t t = 0; t < NODES; t++) x.parent[3 + t] = t < 2 ? t - 1 : t / 2 - 1;
    uint32_t count = take_path(&x, 9, path); /* by its length it would be another node */
    ck_assert_int_ne(path[count - 1], (int32_t)count - 1);
    rig_run(&x.d, &x.pool, &(struct rig_piece){1, 0, count, SOURCE, PLAIN}, 1, NULL, 0);
    commit(&x, NULL, SOURCE, 9, DEST, 0);
    rig_same_slots(&x.pool, DEST, &x.pool, PLAIN);
    draft_free(&x);
}
END_TEST

/* Stored nodes belong to rows of the call; slots come in any order, with a row of none between. */
START_TEST(report_80__nodes_are_stored_by_row_whatever_the_slots)
{
    enum { ROWS = 4 };
    static const int32_t orders[2][ROWS] = {{7, 2, -1, 5}, {-1, 5, 7, 2}};
    struct draft x = draft_case(_i);
    uint64_t bytes = 0;
    x.tree = false;
    for (int32_t s = 2; s < SLOTS; s++) { /* the same numbers from another place on: all differ */
        uint8_t *from = rig_slot(&x.pool, SOURCE), *to = rig_slot(&x.pool, s);
        size_t size = rig_part_bytes(&x.pool), shift = (size_t)s * rig_elem(x.pool.slots.dtype);
        memcpy(to, from + shift, size - shift), memcpy(to + size - shift, from, shift);
    }
    RIG_OK(sc_k_node_store_bytes(ROWS, NODES, x.pool.part_elems, x.pool.slots.dtype, &bytes));
    for (int order = 0; order < 2; order++) {
        void *store = rig_alloc(bytes);
        struct rig_piece pieces[ROWS];
        int32_t nodes[ROWS], dests[ROWS];
        struct rig_batch b;
        for (int32_t r = 0; r < ROWS; r++) {
            int32_t slot = orders[order][r];
            pieces[r] = (struct rig_piece){slot < 0 ? -1 : 0, 0, NODES, slot, -1};
            nodes[r] = slot < 0 ? -1 : slot % NODES, dests[r] = slot < 0 ? -1 : slot - 1;
        }
        rig_pack(&b, &x.d, pieces, ROWS);
        rig_params(&b, &x.d, &x.pool, ROWS, NULL, 0);
        sc_k_delta_verify_params v = verify_params(&x, &b, store);
        RIG_OK(sc_k_delta_verify(NULL, &v, NULL));
        sc_k_delta_commit_params c = {.tokens = b.p, .node = sc_host_devptr(nodes),
            .states = v.states};
        c.tokens.dest = sc_host_devptr(dests), c.tokens.q = c.tokens.o = 0;
        RIG_OK(sc_k_delta_commit(NULL, &c, NULL));
        for (int32_t r = 0; r < ROWS; r++) {
            if (pieces[r].source < 0) continue;
            rig_run(&x.d, &x.pool, &(struct rig_piece){0, 0, (uint32_t)nodes[r] + 1,
                pieces[r].source, 3}, 1, NULL, 0);
            rig_same_slots(&x.pool, dests[r], &x.pool, 3);
        }
        free(store), rig_batch_free(&b);
    }
    draft_free(&x);
}
END_TEST

/* Between verify and commit the slot is what was committed before; a save within the drafts is one
 * of the commit. */
START_TEST(report_82__a_save_waits_for_the_commit)
{
    struct draft x = draft_case(_i);
    uint8_t *before = rig_alloc(x.pool.bytes);
    void *store = _i % 2 ? new_store(&x) : NULL;
    x.tree = false;
    memcpy(before, x.pool.memory, x.pool.bytes);
    verify(&x, store, SOURCE);
    ck_assert_msg(memcmp(x.pool.memory, before, x.pool.bytes) == 0, "a verify wrote a slot");
    commit(&x, store, SOURCE, 3, DEST, 42);
    rig_run(&x.d, &x.pool, &(struct rig_piece){0, 0, 2, SOURCE, PLAIN_SAVE}, 1, NULL, 0);
    rig_run(&x.d, &x.pool, &(struct rig_piece){0, 2, 4, PLAIN_SAVE, PLAIN}, 1, NULL, 0);
    rig_same_slots(&x.pool, SAVE, &x.pool, PLAIN_SAVE);
    rig_same_slots(&x.pool, DEST, &x.pool, PLAIN);
    free(before), free(store), draft_free(&x);
}
END_TEST

START_TEST(report_81__more_drafts_than_possible_are_refused)
{
    struct draft x = draft_case(_i);
    struct rig_batch b;
    pack(&x, &b, SOURCE);
    sc_k_delta_verify_params p = verify_params(&x, &b, NULL);
    p.tokens_max = NODES - 1;
    ck_assert_int_eq(sc_k_delta_verify(NULL, &p, NULL), SC_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "11 draft tokens, at most 10"));
    rig_all_bytes((uint8_t *)b.tensors[3], 16, 0xff);
    rig_batch_free(&b), draft_free(&x);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_draft");
    TCase *all = tcase_create("draft");
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, draft__a_node_equals_a_run_over_its_ancestors, 0, CASES);
    tcase_add_loop_test(all, draft__stored_nodes_give_the_same_bits, 0, CASES);
    tcase_add_loop_test(all, draft__a_chain_needs_no_parents, 0, CASES);
    tcase_add_loop_test(all, draft__nothing_accepted_moves_the_state_as_it_is, 0, CASES);
    tcase_add_loop_test(all, draft__commits_follow_each_other_in_place, 0, CASES);
    tcase_add_loop_test(all, draft__the_conv_sees_ancestors_only, 0, CASES);
    tcase_add_loop_test(all, draft__a_cursor_forgets_rejected_inputs, 0, CASES);
    tcase_add_test(all, draft__a_wide_row_of_no_slot_gives_zeros);
    tcase_add_test(all, draft__bad_arguments_of_the_delta_rule);
    tcase_add_test(all, draft__bad_arguments_of_the_conv);
    tcase_add_loop_test(all, report_76__rejected_drafts_leave_no_trace, 0, CASES);
    tcase_add_loop_test(all, report_77__nothing_accepted_is_no_index, 0, CASES);
    tcase_add_loop_test(all, report_79__a_tree_is_committed_by_node, 0, CASES);
    tcase_add_loop_test(all, report_80__nodes_are_stored_by_row_whatever_the_slots, 0, CASES);
    tcase_add_loop_test(all, report_82__a_save_waits_for_the_commit, 0, CASES);
    tcase_add_loop_test(all, report_81__more_drafts_than_possible_are_refused, 0, CASES);
    suite_add_tcase(suite, all);
    return check_main(suite);
}

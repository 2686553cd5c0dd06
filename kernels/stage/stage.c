/* SPDX-License-Identifier: Apache-2.0 */
/* The KDA stage: packed weights, prepared keys, and which path a run takes. */
#include "stage/stage.h"

#include <math.h>

#include "base/error.h"
#include "gates/gates_check.h"
#include "kernel_calls.h"
#include "ref_math.h"

enum {
    /* statecache-bench layers: on the host folding and a product before are within noise of each
     * other at every batch; folded, z needs no memory. */
    FOLD_DEFAULT = 8,
    GATE_DEFAULT = 64,
    SUPPORTS_MAX = 64
};

bool sc_k_project_supports(uint32_t token_count)
{
    return token_count <= SUPPORTS_MAX;
}

/* ---- create ---- */

static sc_status check_weights(const sc_kda_stage_options *o)
{
    SC_TRY(sc_kernel_check_dtype("weights", o->weight_dtype));
    SC_TRY(sc_kernel_check_tensor("conv_weight", o->conv_weight, o->weight_dtype));
    SC_TRY(sc_kernel_check_tensor("f_b", o->f_b, o->weight_dtype));
    if (o->g_b != 0) SC_TRY(sc_kernel_check_tensor("g_b", o->g_b, o->weight_dtype));
    SC_TRY(sc_kernel_check_tensor("norm_weight", o->norm_weight, o->weight_dtype));
    SC_TRY(sc_kernel_check_gate(&o->gates));
    if (o->gates.gate == SC_K_GATE_GDN)
        return SC_FAIL(SC_ERR_INVALID, "the gate of a KDA stage is one of KDA");
    if ((o->in_proj != 0 || o->o_proj != 0) && o->hidden == 0)
        return SC_FAIL(SC_ERR_INVALID, "in_proj or o_proj without hidden");
    if (o->in_proj != 0) SC_TRY(sc_kernel_check_tensor("in_proj", o->in_proj, o->weight_dtype));
    if (o->o_proj != 0) SC_TRY(sc_kernel_check_tensor("o_proj", o->o_proj, o->weight_dtype));
    if (o->reduce != NULL && o->o_proj == 0)
        return SC_FAIL(SC_ERR_INVALID, "there is nothing to reduce without o_proj");
    return SC_OK;
}

static sc_status check_options(const sc_kda_stage_options *o)
{
    SC_REQUIRE(o->struct_size == sizeof *o);
    SC_REQUIRE(o->heads > 0);
    SC_REQUIRE(o->heads <= 1u << 12);
    SC_REQUIRE(o->dim >= 8);
    SC_REQUIRE(o->dim <= SC_K_DIM_MAX);
    SC_REQUIRE(o->dim % 8 == 0);
    SC_REQUIRE(o->rank >= 8);
    SC_REQUIRE(o->rank <= 512);
    SC_REQUIRE(o->rank % 8 == 0);
    SC_REQUIRE(o->conv_width >= 2);
    SC_REQUIRE(o->conv_width <= 4);
    SC_REQUIRE(isfinite(o->scale));
    SC_REQUIRE(o->hidden <= 1u << 20);
    SC_REQUIRE(o->numerics == SC_NUMERICS_EXACT || o->numerics == SC_NUMERICS_FAST);
    if (!(o->eps > 0.0f && isfinite(o->eps)))
        return SC_FAIL(SC_ERR_INVALID, "eps %g is not positive", (double)o->eps);
    SC_TRY(sc_kernel_check_dtype("x", o->dtype));
    return check_weights(o);
}

/* The next multiple of 16 bytes. */
static uint32_t column_end(uint32_t elems, sc_dtype dtype)
{
    uint32_t each = SC_STAGE_ALIGN / sc_kernel_elem_bytes(dtype);
    return (elems + each - 1) / each * each;
}

static sc_kda_columns default_columns(const sc_kda_stage_options *o)
{
    sc_kda_columns c = {.qkv = 0};
    c.beta = column_end(3 * o->heads * o->dim, o->dtype);
    c.f_a = c.beta + column_end(o->heads, o->dtype);
    c.g_a = c.f_a + column_end(o->rank, o->dtype);
    c.count = c.g_a + (o->g_b != 0 ? column_end(o->rank, o->dtype) : 0);
    return c;
}

/* conv [3D, 1, W] to [3][W][D], norm, both as fp32. */
static void pack(sc_kda_stage *s)
{
    const sc_kda_stage_options *o = &s->options;
    uint32_t all = o->heads * o->dim, width = o->conv_width;
    float taps[4];
    for (uint32_t part = 0; part < 3; part++)
        for (uint32_t d = 0; d < all; d++) {
            ref_load(taps, o->conv_weight, o->weight_dtype,
                ((int64_t)part * all + d) * width, width);
            for (uint32_t j = 0; j < width; j++)
                s->packed[((size_t)part * width + j) * all + d] = taps[j];
        }
    ref_load(s->packed + 3 * (size_t)width * all, o->norm_weight, o->weight_dtype, 0, o->dim);
}

sc_status sc_kda_stage_create(sc_backend *backend, const sc_kda_stage_options *options,
    const sc_allocator *allocator, sc_kda_stage **stage_out)
{
    const struct sc_kernel_row *row = NULL;
    if (backend == NULL) backend = sc_backend_host();
    SC_REQUIRE(options != NULL);
    SC_REQUIRE(stage_out != NULL);
    SC_TRY(check_options(options));
    SC_TRY(sc_kernel_pick(backend, SC_K_OP_KDA_UPDATE,
        sc_kernel_need(options->dtype, SC_DTYPE_F32), &row));
    struct sc_heap heap;
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_KERNELS, allocator));
    sc_kda_stage *s = sc_heap_calloc(&heap, 1, sizeof *s);
    if (s == NULL) return SC_FAIL(SC_ERR_NO_MEMORY, "a KDA stage");
    s->options = *options;
    s->backend = backend;
    s->heap = heap;
    s->packed_bytes = (3ull * options->conv_width * options->heads + 1) * options->dim
        * sizeof(float);
    s->packed = sc_heap_alloc(&heap, s->packed_bytes, 64);
    if (s->packed == NULL) {
        sc_heap_free(&heap, s, sizeof *s);
        return SC_FAIL(SC_ERR_NO_MEMORY, "packed weights");
    }
    if (s->options.fold_tokens == 0) s->options.fold_tokens = FOLD_DEFAULT;
    if (s->options.gate_tokens == 0) s->options.gate_tokens = GATE_DEFAULT;
    s->columns = default_columns(options);
    pack(s);
    *stage_out = s;
    return SC_OK;
}

void sc_kda_stage_destroy(sc_kda_stage *stage)
{
    if (stage == NULL) return;
    struct sc_heap heap = stage->heap;
    sc_heap_free(&heap, stage->packed, stage->packed_bytes);
    sc_heap_free(&heap, stage, sizeof *stage);
}

sc_status sc_kda_stage_columns(const sc_kda_stage *stage, sc_kda_columns *columns_out)
{
    SC_REQUIRE(stage != NULL);
    SC_REQUIRE(columns_out != NULL);
    *columns_out = stage->columns;
    return SC_OK;
}

/* ---- keys ---- */

static sc_status check_aligned(const char *name, uint64_t bytes)
{
    if (bytes % SC_STAGE_ALIGN == 0) return SC_OK;
    return SC_FAIL(SC_ERR_INVALID, "%s is not a multiple of %d bytes", name, SC_STAGE_ALIGN);
}

static sc_status check_columns(const sc_kda_stage_options *o, const sc_kda_columns *c)
{
    const struct {
        const char *name;
        uint32_t first, width;
    } all[] = {{"column qkv", c->qkv, 3 * o->heads * o->dim}, {"column beta", c->beta, o->heads},
        {"column f_a", c->f_a, o->rank}, {"column g_a", c->g_a, o->g_b != 0 ? o->rank : 0}};
    uint64_t elem_bytes = sc_kernel_elem_bytes(o->dtype);
    for (uint32_t i = 0; i < 4; i++) {
        SC_TRY(check_aligned(all[i].name, all[i].first * elem_bytes));
        if ((uint64_t)all[i].first + all[i].width > c->count)
            return SC_FAIL(SC_ERR_INVALID, "%s: %u .. %u of %u", all[i].name, all[i].first,
                all[i].first + all[i].width, c->count);
        for (uint32_t j = 0; j < i; j++)
            if (all[i].first < all[j].first + all[j].width
                && all[j].first < all[i].first + all[i].width)
                return SC_FAIL(SC_ERR_INVALID, "%s and %s overlap", all[i].name, all[j].name);
    }
    return check_aligned("the pitch of x", c->count * elem_bytes);
}

/* Fills in defaults and checks everything that needs no memory. */
static sc_status key_open(const sc_kda_stage *s, sc_kda_stage_key *key)
{
    const sc_kda_stage_options *o = &s->options;
    const sc_kda_columns none = {0};
    uint64_t elem_bytes = sc_kernel_elem_bytes(o->dtype), out = o->heads * o->dim;
    if (memcmp(&key->columns, &none, sizeof none) == 0) key->columns = s->columns;
    SC_REQUIRE(key->requests > 0);
    SC_REQUIRE(key->requests <= 1u << 20);
    SC_REQUIRE(key->tokens > 0);
    SC_REQUIRE(key->tokens <= SC_K_DRAFT_MAX);
    SC_REQUIRE(key->window_order <= SC_K_ORDER_DIM_FIRST);
    SC_TRY(check_columns(o, &key->columns));
    uint64_t wide = o->in_proj != 0 ? o->hidden : key->columns.count;
    if (o->o_proj != 0) out = o->hidden;
    SC_TRY(sc_kernel_check_stride("x", key->x_stride, wide));
    SC_TRY(sc_kernel_check_stride("y", key->y_stride, out));
    key->x_stride = sc_kernel_stride(key->x_stride, wide);
    key->y_stride = sc_kernel_stride(key->y_stride, out);
    SC_TRY(check_aligned("the pitch of x", (uint64_t)key->x_stride * elem_bytes));
    SC_TRY(check_aligned("the pitch of y", (uint64_t)key->y_stride * elem_bytes));
    SC_REQUIRE(key->window_stride > 0);
    SC_REQUIRE(key->state_stride > 0);
    SC_TRY(check_aligned("window_stride", (uint64_t)key->window_stride));
    SC_TRY(check_aligned("state_stride", (uint64_t)key->state_stride));
    return sc_kernel_check_dtype("state", key->state_dtype);
}

static sc_kda_gate_path gate_path(const sc_kda_stage *s, const sc_kda_stage_key *key)
{
    const sc_kda_stage_options *o = &s->options;
    uint64_t tokens = (uint64_t)key->requests * key->tokens;
    if (o->g_b == 0) return SC_KDA_GATE_READY;
    if (tokens <= o->fold_tokens) return SC_KDA_GATE_FOLD;
    if (tokens <= o->gate_tokens || o->numerics != SC_NUMERICS_FAST || o->gemm == NULL)
        return SC_KDA_GATE_THIN;
    return SC_KDA_GATE_GEMM;
}

static uint64_t piece(uint64_t *used, uint64_t bytes)
{
    uint64_t at = *used;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

/* Scratch of a run before the update's own. */
struct pieces {
    uint64_t x, y, z, row_start, rest;
};

static struct pieces pieces_of(const sc_kda_stage *s, const sc_kda_stage_key *key)
{
    const sc_kda_stage_options *o = &s->options;
    uint64_t rows = (uint64_t)key->requests * key->tokens, used = 0;
    uint64_t elem_bytes = sc_kernel_elem_bytes(o->dtype), all = (uint64_t)o->heads * o->dim;
    struct pieces p;
    p.x = piece(&used, o->in_proj != 0 ? rows * key->columns.count * elem_bytes : 0);
    p.y = piece(&used, o->o_proj != 0 ? rows * all * elem_bytes : 0);
    p.z = piece(&used, o->g_b != 0 ? rows * all * sizeof(float) : 0);
    p.row_start = piece(&used, (key->requests + 1ull) * sizeof(int32_t));
    p.rest = used;
    return p;
}

uint64_t sc_kda_update_scratch(const sc_kda_stage_options *o, uint32_t tokens)
{
    return (2ull * SC_STAGE_GROUP * tokens * o->dim + (uint64_t)o->dim * o->dim) * sizeof(float);
}

static sc_status key_scratch(const sc_kda_stage *s, const sc_kda_stage_key *key,
    uint64_t *bytes_out)
{
    uint64_t chain = 0, update = sc_kda_update_scratch(&s->options, key->tokens);
    SC_TRY(sc_kda_chain_scratch(s, key, &chain));
    *bytes_out = pieces_of(s, key).rest + (chain > update ? chain : update);
    return SC_OK;
}

static bool same_key(const sc_kda_stage_key *a, const sc_kda_stage_key *b)
{
    return a->requests == b->requests && a->tokens == b->tokens && a->x_stride == b->x_stride
        && a->y_stride == b->y_stride && memcmp(&a->columns, &b->columns, sizeof a->columns) == 0
        && a->window_stride == b->window_stride && a->state_stride == b->state_stride
        && a->state_dtype == b->state_dtype && a->window_order == b->window_order;
}

static const struct sc_kda_prepared *find_key(const sc_kda_stage *s, const sc_kda_stage_key *key)
{
    for (uint32_t i = 0; i < s->key_count; i++)
        if (same_key(&s->keys[i].key, key)) return &s->keys[i];
    return NULL;
}

sc_status sc_kda_stage_prepare(sc_kda_stage *stage, const sc_kda_stage_key *key,
    uint64_t *scratch_bytes_out)
{
    const struct sc_kernel_row *row = NULL;
    SC_REQUIRE(stage != NULL);
    SC_REQUIRE(key != NULL);
    SC_REQUIRE(scratch_bytes_out != NULL);
    struct sc_kda_prepared p = {.key = *key};
    SC_TRY(key_open(stage, &p.key));
    SC_TRY(sc_kernel_pick(stage->backend, SC_K_OP_KDA_UPDATE,
        sc_kernel_need(stage->options.dtype, key->state_dtype), &row));
    SC_TRY(key_scratch(stage, &p.key, &p.scratch_bytes));
    p.path = gate_path(stage, &p.key);
    if (find_key(stage, &p.key) == NULL) {
        if (stage->key_count == SC_STAGE_KEYS)
            return SC_FAIL(SC_ERR_LIMIT, "%d keys are prepared already", SC_STAGE_KEYS);
        stage->keys[stage->key_count++] = p;
    }
    *scratch_bytes_out = p.scratch_bytes;
    return SC_OK;
}

/* ---- run ---- */

static void count(uint64_t *counter)
{
    (void)__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

sc_status sc_kda_product(sc_kda_stage *s, const sc_k_project_params *product, sc_stream *stream)
{
    const sc_kda_stage_options *o = &s->options;
    bool fast = o->numerics == SC_NUMERICS_FAST && o->gemm != NULL;
    if (!fast || sc_k_project_supports(product->token_count))
        return sc_k_project(s->backend, product, stream);
    count(&s->gemm_calls);
    return o->gemm(o->gemm_ctx, product, stream);
}

/* The index arrays of slots, as the contract of kernels.h has them. */
static sc_status check_rows(const sc_kda_stage *s, const sc_kda_stage_params *p)
{
    const sc_k_slots *slots[] = {&p->window, &p->state};
    for (uint32_t i = 0; s->backend->host_memory && i < 2; i++)
        SC_TRY(sc_kernel_check_rows(&(struct sc_kernel_rows){.row_count = p->key.requests,
            .token_count = p->key.requests, .source = sc_host_ptr(p->source),
            .dest = sc_host_ptr(p->dest), .save = sc_host_ptr(p->save), .save_grid = 1,
            .slots = slots[i]}));
    return SC_OK;
}

static sc_status check_slots(const sc_kda_stage *s, const sc_kda_stage_params *p,
    const sc_kda_stage_key *key)
{
    const sc_kda_stage_options *o = &s->options;
    uint64_t all = (uint64_t)o->heads * o->dim;
    SC_TRY(sc_kernel_check_slots("window", &p->window, 3 * all * (o->conv_width - 1)));
    SC_TRY(sc_kernel_check_slots("state", &p->state, all * o->dim));
    SC_TRY(check_aligned("window.base", p->window.base));
    SC_TRY(check_aligned("state.base", p->state.base));
    if (p->window.slot_stride != key->window_stride || p->state.slot_stride != key->state_stride
        || p->state.dtype != key->state_dtype)
        return SC_FAIL(SC_ERR_INVALID, "slots are not those of the key");
    return SC_OK;
}

static sc_status check_run(const sc_kda_stage *s, const sc_kda_stage_params *p,
    const sc_kda_stage_key *key)
{
    const sc_kda_stage_options *o = &s->options;
    bool drafts = key->tokens > 1;
    SC_TRY(sc_kernel_check_tensor("x", p->x, o->dtype));
    SC_TRY(sc_kernel_check_tensor("y", p->y, o->dtype));
    SC_TRY(check_aligned("x", p->x));
    SC_TRY(check_aligned("y", p->y));
    if (p->x == p->y) return SC_FAIL(SC_ERR_INVALID, "y is x");
    if (o->g_b == 0) SC_TRY(sc_kernel_check_tensor("z", p->z, o->dtype));
    if (o->g_b != 0 && p->z != 0)
        return SC_FAIL(SC_ERR_INVALID, "z is given, but the stage makes the gate");
    if (o->g_b == 0) SC_TRY(check_aligned("z", p->z));
    SC_TRY(sc_kernel_check_index("source", p->source));
    if (drafts && (p->dest != 0 || p->save != 0))
        return SC_FAIL(SC_ERR_INVALID, "drafts write no slot: dest and save must be 0");
    if (!drafts) SC_TRY(sc_kernel_check_index("dest", p->dest));
    if (p->save != 0) SC_TRY(sc_kernel_check_index("save", p->save));
    SC_TRY(check_slots(s, p, key));
    return check_rows(s, p);
}

/* The gate before the update, where it is not folded. */
static sc_status make_gate(sc_kda_stage *s, struct sc_kda_update_params *u, sc_kda_gate_path path,
    sc_devptr z, sc_stream *stream)
{
    const sc_kda_stage_options *o = &s->options;
    if (path != SC_KDA_GATE_THIN && path != SC_KDA_GATE_GEMM) return SC_OK;
    sc_k_project_params p = {.x = u->x + u->columns.g_a * (uint64_t)sc_kernel_elem_bytes(o->dtype),
        .weight = o->g_b, .y = z, .x_stride = u->x_stride, .dtype = o->dtype,
        .weight_dtype = o->weight_dtype, .y_dtype = SC_DTYPE_F32, .in_dim = o->rank,
        .out_dim = o->heads * o->dim, .token_count = u->requests * u->tokens};
    u->z = z;
    u->z_stride = p.out_dim;
    u->z_dtype = SC_DTYPE_F32;
    if (path == SC_KDA_GATE_THIN) return sc_k_project(s->backend, &p, stream);
    count(&s->gemm_calls);
    return o->gemm(o->gemm_ctx, &p, stream);
}

static sc_status project_in(sc_kda_stage *s, struct sc_kda_update_params *u,
    const sc_kda_stage_params *p, sc_devptr x, sc_stream *stream)
{
    const sc_kda_stage_options *o = &s->options;
    if (o->in_proj == 0) return SC_OK;
    sc_k_project_params in = {.x = p->x, .weight = o->in_proj, .y = x, .x_stride = u->x_stride,
        .dtype = o->dtype, .weight_dtype = o->weight_dtype, .y_dtype = o->dtype,
        .in_dim = o->hidden, .out_dim = u->columns.count,
        .token_count = u->requests * u->tokens};
    u->x = x;
    u->x_stride = u->columns.count;
    return sc_kda_product(s, &in, stream);
}

static sc_status project_out(sc_kda_stage *s, const struct sc_kda_update_params *u,
    const sc_kda_stage_params *p, int64_t y_stride, sc_stream *stream)
{
    const sc_kda_stage_options *o = &s->options;
    uint32_t tokens = u->requests * u->tokens;
    if (o->o_proj == 0) return SC_OK;
    sc_k_project_params out = {.x = u->y, .weight = o->o_proj, .y = p->y, .y_stride = y_stride,
        .dtype = o->dtype, .weight_dtype = o->weight_dtype, .y_dtype = o->dtype,
        .in_dim = o->heads * o->dim, .out_dim = o->hidden, .token_count = tokens};
    SC_TRY(sc_kda_product(s, &out, stream));
    if (o->reduce == NULL) return SC_OK;
    if (y_stride == o->hidden)
        return o->reduce(o->reduce_ctx, p->y, o->dtype, (uint64_t)tokens * o->hidden, stream);
    for (uint32_t t = 0; t < tokens; t++)
        SC_TRY(o->reduce(o->reduce_ctx, p->y + (uint64_t)t * (uint64_t)y_stride
            * sc_kernel_elem_bytes(o->dtype), o->dtype, o->hidden, stream));
    return SC_OK;
}

/* What the update gets; pieces of scratch stand where a product makes x, y or z. */
static struct sc_kda_update_params update_of(const sc_kda_stage *s, const sc_kda_stage_params *p,
    const sc_kda_stage_key *key, const struct pieces *at)
{
    const sc_kda_stage_options *o = &s->options;
    int64_t all = (int64_t)o->heads * o->dim;
    return (struct sc_kda_update_params){.options = o, .conv = s->packed,
        .norm = s->packed + 3 * (size_t)o->conv_width * (size_t)all, .columns = key->columns,
        .x = p->x, .y = o->o_proj != 0 ? p->scratch + at->y : p->y, .x_stride = key->x_stride,
        .y_stride = o->o_proj != 0 ? all : key->y_stride,
        .z = o->g_b == 0 ? p->z : 0, .z_stride = all, .z_dtype = o->dtype,
        .requests = key->requests, .tokens = key->tokens, .source = p->source, .dest = p->dest,
        .save = p->save, .window = p->window, .state = p->state,
        .window_order = key->window_order, .row_start = p->scratch + at->row_start,
        .scratch = p->scratch + at->rest, .scratch_bytes = p->scratch_bytes - at->rest};
}

sc_status sc_kda_stage_run(sc_kda_stage *stage, const sc_kda_stage_params *params,
    sc_stream *stream)
{
    const struct sc_kernel_row *row = NULL;
    uint64_t need_bytes = 0;
    SC_REQUIRE(stage != NULL);
    SC_REQUIRE(params != NULL);
    sc_kda_stage_key key = params->key;
    SC_TRY(key_open(stage, &key));
    SC_TRY(check_run(stage, params, &key));
    const struct sc_kda_prepared *prepared = find_key(stage, &key);
    if (prepared != NULL)
        need_bytes = prepared->scratch_bytes;
    else
        SC_TRY(key_scratch(stage, &key, &need_bytes));
    SC_TRY(sc_kernel_check_scratch(params->scratch, params->scratch_bytes, need_bytes));
    SC_TRY(sc_kernel_pick(stage->backend, SC_K_OP_KDA_UPDATE,
        sc_kernel_need(stage->options.dtype, key.state_dtype)
        | sc_kernel_need_order(key.window_order), &row));
    struct pieces at = pieces_of(stage, &key);
    struct sc_kda_update_params u = update_of(stage, params, &key, &at);
    sc_kda_gate_path path = prepared != NULL ? prepared->path : gate_path(stage, &key);
    SC_TRY(project_in(stage, &u, params, params->scratch + at.x, stream));
    if (prepared == NULL && path == SC_KDA_GATE_FOLD) path = SC_KDA_GATE_THIN;
    SC_TRY(make_gate(stage, &u, path, params->scratch + at.z, stream));
    SC_TRY(prepared != NULL ? row->launch(&u, stream) : sc_kda_chain(stage, &u, stream));
    SC_TRY(project_out(stage, &u, params, key.y_stride, stream));
    count(&stage->counts[path]);
    count(prepared != NULL ? &stage->fused : &stage->chained);
    return SC_OK;
}

sc_status sc_kda_stage_stats_get(const sc_kda_stage *stage, sc_kda_stage_stats *stats_out)
{
    SC_REQUIRE(stage != NULL);
    SC_REQUIRE(stats_out != NULL);
    sc_kda_stage_stats stats = {.prepared = stage->key_count};
    stats.fused = __atomic_load_n(&stage->fused, __ATOMIC_RELAXED);
    stats.chained = __atomic_load_n(&stage->chained, __ATOMIC_RELAXED);
    stats.gemm_calls = __atomic_load_n(&stage->gemm_calls, __ATOMIC_RELAXED);
    for (int i = 0; i < 5; i++)
        stats.gate_path[i] = __atomic_load_n(&stage->counts[i], __ATOMIC_RELAXED);
    stats.runs = stats.fused + stats.chained;
    *stats_out = stats;
    return SC_OK;
}

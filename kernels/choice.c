/* SPDX-License-Identifier: Apache-2.0 */
/* Rows resolved once. Each operation belongs to one of the two wishes, or to either:
 *
 *   op        wish       need (features beside dtypes)
 *   ...       DECODE     strided
 *   ...       EXTEND     strided, saves, chunk
 *   verify    EITHER     strided; once more with the feature "tree" */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/options.h"
#include "kernel_resolve.h"
#include "statecache/kernels_choice.h"

enum wish { EXTEND, DECODE, EITHER };
enum { REASON_BYTES = 160, NAMES_BYTES = 64 };

static const struct op_kind {
    enum wish wish;
    bool states, saves, trees, ring;
} kinds[SC_K_OP_COUNT] = {
    [SC_K_OP_CONV_PREFILL] = {EXTEND, true, true, false, false},
    [SC_K_OP_CONV_UPDATE] = {DECODE, true, false, false, false},
    [SC_K_OP_DELTA_RECURRENT] = {EXTEND, true, true, false, false},
    [SC_K_OP_DELTA_CHUNK] = {EXTEND, true, true, false, false},
    [SC_K_OP_DECODE_PACKED] = {DECODE, true, false, false, false},
    [SC_K_OP_DELTA_VERIFY] = {EITHER, true, false, true, false},
    [SC_K_OP_DELTA_COMMIT] = {EITHER, true, true, true, false},
    [SC_K_OP_CONV_VERIFY] = {EITHER, true, false, true, false},
    [SC_K_OP_CONV_COMMIT] = {EITHER, true, true, true, false},
    [SC_K_OP_CONV_UPDATE_SPEC] = {EITHER, true, false, false, false},
    [SC_K_OP_SSM] = {DECODE, true, true, false, false},
    [SC_K_OP_DECODE] = {DECODE, true, false, false, false},
    [SC_K_OP_SSM_CHUNK] = {EXTEND, true, true, false, false},
    [SC_K_OP_KDA_UPDATE] = {DECODE, true, false, false, false},
    [SC_K_OP_REPLAY_DELTA] = {DECODE, true, false, false, true},
    [SC_K_OP_REPLAY_DELTA_FOLD] = {DECODE, true, true, false, true},
    [SC_K_OP_REPLAY_SSM] = {DECODE, true, false, false, true},
    [SC_K_OP_REPLAY_SSM_FOLD] = {DECODE, true, true, false, true},
};

struct sc_kernels {
    struct sc_backend backend; /* a copy whose rows are `rows` */
    sc_backend *origin;
    struct sc_heap heap;
    const struct sc_kernel_row *rows[2 * SC_K_OP_COUNT]; /* the second half: with parents */
    char reasons[2 * SC_K_OP_COUNT][REASON_BYTES];
    uint32_t entries[2 * SC_K_OP_COUNT], entry_count;    /* places in `rows` */
};

/* Features that an operation needs for these options. */
static uint32_t need_of(const sc_kernels_options *o, sc_k_op op, bool tree)
{
    const struct op_kind *kind = &kinds[op];
    uint32_t need = sc_kernel_need(o->dtype, kind->states ? o->state_dtype : (sc_dtype)0);
    if (kind->states && o->strided) need |= SC_KF_STRIDED;
    if (kind->saves && o->saves) need |= SC_KF_SAVES;
    if (kind->ring && o->ring) need |= SC_KF_RING;
    return tree ? need | SC_KF_TREE : need;
}

/* The first row called `name` in the whole table, or NULL; `names` gets the names there are. */
static const struct sc_kernel_row *find_name(const char *name, char *names, size_t bytes)
{
    const struct sc_kernel_row *found = NULL;
    const char *seen[16];
    uint32_t seen_count = 0;
    names[0] = '\0';
    for (uint32_t op = 0; op < SC_K_OP_COUNT; op++) {
        uint32_t count = 0, s = 0;
        const struct sc_kernel_row *rows = sc_kernel_rows((sc_k_op)op, &count);
        for (uint32_t i = 0; i < count; i++) {
            if (found == NULL && strcmp(rows[i].name, name) == 0) found = &rows[i];
            for (s = 0; s < seen_count && strcmp(seen[s], rows[i].name) != 0; s++) continue;
            if (s < seen_count || seen_count == sizeof seen / sizeof seen[0]) continue;
            seen[seen_count++] = rows[i].name;
            size_t used = strlen(names);
            (void)snprintf(names + used, bytes - used, "%s%s", used > 0 ? ", " : "",
                rows[i].name);
        }
    }
    return found;
}

/* Is the name that of a row, of this backend, and does it run here? */
static sc_status check_name(const sc_backend *backend, const char *option, const char *name)
{
    char names[NAMES_BYTES];
    if (name == NULL) return SC_OK;
    const struct sc_kernel_row *found = find_name(name, names, sizeof names);
    if (found == NULL && strcmp(name, "sm90") == 0)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "%s \"%s\": this build has no CUDA", option, name);
    if (found == NULL)
        return SC_FAIL(SC_ERR_NOT_FOUND, "%s \"%s\" is no row; there are %s", option, name, names);
    if (backend->compute_capability < found->cc_min
        || backend->compute_capability > found->cc_max)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "%s \"%s\" is not a row of backend \"%s\"", option,
            name, backend->name);
    if (!sc_kernel_row_runs(found))
        return SC_FAIL(SC_ERR_UNSUPPORTED, "%s \"%s\": this processor lacks what it needs",
            option, name);
    return SC_OK;
}

/* Entry `at` for one wish. Returns whether the asked row itself serves. */
static bool resolve(sc_kernels *k, const sc_kernels_options *o, uint32_t at, const char *asked)
{
    sc_k_op op = (sc_k_op)(at % SC_K_OP_COUNT);
    struct sc_kernel_wish wish = {.need = need_of(o, op, at >= SC_K_OP_COUNT), .dim = o->dim,
        .chunk = op == SC_K_OP_DELTA_CHUNK || op == SC_K_OP_SSM_CHUNK ? o->chunk : 0,
        .asked = asked};
    k->rows[at] = sc_kernel_resolve(k->origin, op, &wish, k->reasons[at], REASON_BYTES);
    return k->rows[at] != NULL && (asked == NULL || strcmp(k->rows[at]->name, asked) == 0);
}

static void resolve_all(sc_kernels *k, const sc_kernels_options *o)
{
    for (uint32_t at = 0; at < 2 * SC_K_OP_COUNT; at++) {
        const struct op_kind *kind = &kinds[at % SC_K_OP_COUNT];
        if (at >= SC_K_OP_COUNT && !kind->trees) continue;
        k->entries[k->entry_count++] = at;
        if (kind->wish == DECODE || kind->wish == EXTEND) {
            (void)resolve(k, o, at, kind->wish == DECODE ? o->decode_backend : o->extend_backend);
            continue;
        }
        if (!resolve(k, o, at, o->decode_backend)) (void)resolve(k, o, at, o->extend_backend);
    }
}

static void tell(const sc_kernels *k)
{
    static const struct {
        const char *key;
        uint32_t at;
    } all[] = {{"decode", SC_K_OP_DECODE}, {"decode_packed", SC_K_OP_DECODE_PACKED},
        {"extend", SC_K_OP_DELTA_CHUNK}, {"verify_chain", SC_K_OP_DELTA_VERIFY},
        {"verify_tree", SC_K_OP_DELTA_VERIFY + SC_K_OP_COUNT}, {"conv", SC_K_OP_CONV_PREFILL},
        {"ssm", SC_K_OP_SSM_CHUNK}, {"move", SC_K_OP_MOVE}};
    if (!sc_log_enabled(SC_LOG_INFO)) return;
    struct sc_log_builder log = SC_LOG_BUILDER_INIT;
    sc_log_add(&log, "backend", "%s", k->backend.name);
    for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++)
        sc_log_add(&log, all[i].key, "%s: %s",
            k->rows[all[i].at] != NULL ? k->rows[all[i].at]->name : "none",
            k->reasons[all[i].at]);
    sc_log_send(&log, SC_LOG_INFO, "kernels.chosen");
}

sc_status sc_kernels_create(const sc_kernels_options *options, sc_kernels **kernels_out)
{
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    struct sc_heap heap;
    SC_REQUIRE(options != NULL);
    SC_REQUIRE(kernels_out != NULL);
    SC_TRY(sc_options_resolve(options, offsetof(sc_kernels_options, decode_backend), &o,
        sizeof o));
    SC_REQUIRE(sc_kernel_need(o.dtype, o.state_dtype) != 0);
    SC_REQUIRE(o.dim <= SC_K_DIM_MAX);
    sc_backend *backend = o.backend != NULL ? o.backend : sc_backend_host();
    SC_TRY(check_name(backend, "decode_backend", o.decode_backend));
    SC_TRY(check_name(backend, "extend_backend", o.extend_backend));
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_KERNELS, o.allocator));
    sc_kernels *k = sc_heap_calloc(&heap, 1, sizeof *k);
    if (k == NULL) return SC_FAIL(SC_ERR_NO_MEMORY, "a choice of kernels");
    k->origin = backend;
    k->heap = heap;
    k->backend = *backend;
    k->backend.rows = k->rows;
    resolve_all(k, &o);
    tell(k);
    *kernels_out = k;
    return SC_OK;
}

void sc_kernels_destroy(sc_kernels *kernels)
{
    if (kernels == NULL) return;
    struct sc_heap heap = kernels->heap;
    sc_heap_free(&heap, kernels, sizeof *kernels);
}

sc_backend *sc_kernels_backend(sc_kernels *kernels)
{
    return kernels != NULL ? &kernels->backend : NULL;
}

sc_status sc_kernels_choice(const sc_kernels *kernels, uint32_t index, sc_kernels_row *row_out)
{
    SC_REQUIRE(kernels != NULL);
    SC_REQUIRE(row_out != NULL);
    if (index >= kernels->entry_count)
        return SC_FAIL(SC_ERR_NOT_FOUND, "entry %u of %u", index, kernels->entry_count);
    uint32_t at = kernels->entries[index];
    *row_out = (sc_kernels_row){.op = (sc_k_op)(at % SC_K_OP_COUNT), .tree = at >= SC_K_OP_COUNT,
        .name = sc_kernel_op_name((sc_k_op)(at % SC_K_OP_COUNT)),
        .row = kernels->rows[at] != NULL ? kernels->rows[at]->name : NULL,
        .reason = kernels->reasons[at]};
    return SC_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a kernel row. Overrides come from the environment and are read once, so that a choice
 * cannot change between two steps of one process. */
#include "kernel_resolve.h"
#include "replay/replay_rows.h"
#include "ssm/ssm_rows.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define REF_STATE (SC_KF_F32 | SC_KF_BF16 | SC_KF_STATE_F32 | SC_KF_STATE_BF16)
#define REF_PLAIN (SC_KF_F32 | SC_KF_BF16)

/* One row: compute capabilities, features, launcher, what the processor needs; then head sizes and
 * chunks, and the runtime of a device. */
#define ROW(NAME, CC_MIN, CC_MAX, FEATURES, LAUNCH, CPU, ...)                                      \
    {.name = NAME, .cc_min = (CC_MIN), .cc_max = (CC_MAX), .features = (FEATURES),                 \
        .launch = LAUNCH, .cpu = (CPU), __VA_ARGS__},
#define NO_HEADS .dim_max = 0
#define HEADS .dim_max = SC_K_DIM_MAX
#define HEADS_OF_8 .dim_max = SC_K_DIM_MAX, .dim_step = 8
#define CHUNKS(MOST) .dim_max = SC_K_DIM_MAX, .chunk_max = (MOST)
#ifdef SC_HAVE_CUDA
#define SM90(features, launch, ...)                                                                \
    ROW("sm90", 90, UINT32_MAX, (features) | SC_KF_STRIDED | SC_KF_SAVES | SC_KF_TREE, launch, 0,  \
        .runtime_min = 12000, .runtime_max = UINT32_MAX, __VA_ARGS__)
#else
#define SM90(features, launch, ...)
#endif
#ifdef SC_HAVE_WIDE_ROWS
#define WIDE(features, launch, ...)                                                                \
    ROW("avx512", 0, 0, features, launch##_avx512, SC_CPU_AVX512, __VA_ARGS__)                     \
    ROW("avx2", 0, 0, features, launch##_avx2, SC_CPU_AVX2, __VA_ARGS__)
#define BF16(features, launch, ...)                                                                \
    ROW("avx512_bf16", 0, 0, features, launch##_avx512_bf16, SC_CPU_AVX512 | SC_CPU_AVX512_BF16,   \
        __VA_ARGS__)
#else
#define WIDE(features, launch, ...)
#define BF16(features, launch, ...)
#endif
/* The host's rows take everything that an operation has. */
#define HOST_ALL                                                                                   \
    (SC_KF_INITIAL | SC_KF_DIM_FIRST | SC_KF_MIXED | SC_KF_STRIDED | SC_KF_SAVES | SC_KF_TREE      \
        | SC_KF_RING)
#define HOST(features, launch, ...)                                                                \
    WIDE((features) | HOST_ALL, launch, __VA_ARGS__)                                               \
    ROW("reference", 0, 0, (features) | HOST_ALL, launch##_ref, 0, __VA_ARGS__)
#define BF16_HOST(features, launch, ...)                                                           \
    BF16((features) | HOST_ALL, launch, __VA_ARGS__) HOST(features, launch, __VA_ARGS__)
/* First match wins; compute capability 0 is the host. */
#define ROWS(features, launch, ...)                                                                \
    {SM90(features, launch##_sm90, __VA_ARGS__) HOST(features, launch, __VA_ARGS__)}
/* With a row for processors that narrow to bf16 in one instruction. */
#define BF16_ROWS(features, launch, ...)                                                           \
    {SM90(features, launch##_sm90, __VA_ARGS__) BF16_HOST(features, launch, __VA_ARGS__)}
/* No device row so far. */
#define HOST_ROWS(features, launch, ...) {HOST(features, launch, __VA_ARGS__)}
/* ... but one for bf16. */
#define BF16_HOST_ROWS(features, launch, ...) {BF16_HOST(features, launch, __VA_ARGS__)}

static const struct sc_kernel_row conv_prefill_rows[] =
    ROWS(REF_STATE | SC_KF_INITIAL, sc_k_conv_prefill, NO_HEADS);
static const struct sc_kernel_row conv_update_rows[] =
    ROWS(REF_STATE | SC_KF_INITIAL, sc_k_conv_update, NO_HEADS);
static const struct sc_kernel_row gates_rows[] =
    ROWS(REF_PLAIN, sc_k_gates, NO_HEADS);
static const struct sc_kernel_row l2norm_rows[] =
    ROWS(REF_PLAIN, sc_k_l2norm, NO_HEADS);
static const struct sc_kernel_row gated_rmsnorm_rows[] =
    ROWS(REF_PLAIN, sc_k_gated_rmsnorm, NO_HEADS);
static const struct sc_kernel_row delta_recurrent_rows[] =
    BF16_ROWS(REF_STATE | SC_KF_INITIAL, sc_k_delta_recurrent, HEADS);
static const struct sc_kernel_row delta_chunk_rows[] =
    ROWS(REF_STATE | SC_KF_INITIAL, sc_k_delta_chunk, CHUNKS(64));
static const struct sc_kernel_row decode_packed_rows[] =
    BF16_ROWS(REF_STATE | SC_KF_INITIAL, sc_k_decode_packed, HEADS);
static const struct sc_kernel_row delta_verify_rows[] =
    HOST_ROWS(REF_STATE, sc_k_delta_verify, HEADS);
static const struct sc_kernel_row delta_commit_rows[] =
    HOST_ROWS(REF_STATE, sc_k_delta_commit, HEADS);
static const struct sc_kernel_row conv_verify_rows[] =
    HOST_ROWS(REF_STATE, sc_k_conv_verify, NO_HEADS);
static const struct sc_kernel_row conv_commit_rows[] =
    HOST_ROWS(REF_STATE, sc_k_conv_commit, NO_HEADS);
static const struct sc_kernel_row conv_update_spec_rows[] =
    HOST_ROWS(REF_STATE, sc_k_conv_update_spec, NO_HEADS);
static const struct sc_kernel_row ssm_rows[] =
    BF16_HOST_ROWS(REF_STATE, sc_k_ssm, HEADS);
static const struct sc_kernel_row decode_rows[] =
    BF16_ROWS(REF_STATE | SC_KF_INITIAL, sc_k_decode, HEADS);
static const struct sc_kernel_row qkv_split_rows[] =
    ROWS(REF_PLAIN, sc_k_qkv_split, NO_HEADS);
static const struct sc_kernel_row ssm_chunk_rows[] =
    HOST_ROWS(REF_STATE, sc_k_ssm_chunk, CHUNKS(256));
static const struct sc_kernel_row project_rows[] =
    HOST_ROWS(REF_PLAIN, sc_k_project, NO_HEADS);
static const struct sc_kernel_row kda_update_rows[] =
    HOST_ROWS(REF_STATE, sc_kda_update, HEADS_OF_8);
static const struct sc_kernel_row move_rows[] =
    ROWS(REF_PLAIN | SC_KF_I8, sc_k_move, NO_HEADS);
static const struct sc_kernel_row replay_delta_rows[] =
    BF16_HOST_ROWS(REF_STATE, sc_k_replay_delta, HEADS);
static const struct sc_kernel_row replay_delta_fold_rows[] =
    BF16_HOST_ROWS(REF_STATE, sc_k_replay_delta_fold, HEADS);
static const struct sc_kernel_row replay_ssm_rows[] =
    BF16_HOST_ROWS(REF_STATE, sc_k_replay_ssm, HEADS);
static const struct sc_kernel_row replay_ssm_fold_rows[] =
    BF16_HOST_ROWS(REF_STATE, sc_k_replay_ssm_fold, HEADS);

struct op_table {
    const char *name;
    const char *env;
    const struct sc_kernel_row *rows;
    uint32_t count;
};
#define OP(NAME, rows) {#NAME, "SC_KERNEL_" #NAME, rows, sizeof(rows) / sizeof((rows)[0])}
static const struct op_table op_tables[SC_K_OP_COUNT] = {
    [SC_K_OP_CONV_PREFILL] = OP(CONV_PREFILL, conv_prefill_rows),
    [SC_K_OP_CONV_UPDATE] = OP(CONV_UPDATE, conv_update_rows),
    [SC_K_OP_GATES] = OP(GATES, gates_rows),
    [SC_K_OP_L2NORM] = OP(L2NORM, l2norm_rows),
    [SC_K_OP_GATED_RMSNORM] = OP(GATED_RMSNORM, gated_rmsnorm_rows),
    [SC_K_OP_DELTA_RECURRENT] = OP(DELTA_RECURRENT, delta_recurrent_rows),
    [SC_K_OP_DELTA_CHUNK] = OP(DELTA_CHUNK, delta_chunk_rows),
    [SC_K_OP_DECODE_PACKED] = OP(DECODE_PACKED, decode_packed_rows),
    [SC_K_OP_DELTA_VERIFY] = OP(DELTA_VERIFY, delta_verify_rows),
    [SC_K_OP_DELTA_COMMIT] = OP(DELTA_COMMIT, delta_commit_rows),
    [SC_K_OP_CONV_VERIFY] = OP(CONV_VERIFY, conv_verify_rows),
    [SC_K_OP_CONV_COMMIT] = OP(CONV_COMMIT, conv_commit_rows),
    [SC_K_OP_CONV_UPDATE_SPEC] = OP(CONV_UPDATE_SPEC, conv_update_spec_rows),
    [SC_K_OP_SSM] = OP(SSM, ssm_rows),
    [SC_K_OP_DECODE] = OP(DECODE, decode_rows),
    [SC_K_OP_QKV_SPLIT] = OP(QKV_SPLIT, qkv_split_rows),
    [SC_K_OP_SSM_CHUNK] = OP(SSM_CHUNK, ssm_chunk_rows),
    [SC_K_OP_PROJECT] = OP(PROJECT, project_rows),
    [SC_K_OP_MOVE] = OP(MOVE, move_rows),
    [SC_K_OP_REPLAY_DELTA] = OP(REPLAY_DELTA, replay_delta_rows),
    [SC_K_OP_REPLAY_DELTA_FOLD] = OP(REPLAY_DELTA_FOLD, replay_delta_fold_rows),
    [SC_K_OP_REPLAY_SSM] = OP(REPLAY_SSM, replay_ssm_rows),
    [SC_K_OP_REPLAY_SSM_FOLD] = OP(REPLAY_SSM_FOLD, replay_ssm_fold_rows),
    [SC_K_OP_KDA_UPDATE] = OP(KDA_UPDATE, kda_update_rows),
};

static pthread_once_t forced_once = PTHREAD_ONCE_INIT;
/* Written once under forced_once; empty: free choice. */
static char forced_rows[SC_K_OP_COUNT][32];
static char first_row[32]; /* of the host: SC_KERNELS, rows before it are passed over */
static uint32_t cpu_features;

static void copy_env(char *out, size_t bytes, const char *name)
{
    const char *value = getenv(name);
    if (value != NULL) (void)snprintf(out, bytes, "%s", value);
}

static void read_forced(void)
{
    for (uint32_t op = 0; op < SC_K_OP_COUNT; op++)
        copy_env(forced_rows[op], sizeof forced_rows[op], op_tables[op].env);
    copy_env(first_row, sizeof first_row, "SC_KERNELS");
#ifdef SC_HAVE_WIDE_ROWS
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        cpu_features |= SC_CPU_AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        cpu_features |= SC_CPU_AVX512;
    if (__builtin_cpu_supports("avx512bf16")) cpu_features |= SC_CPU_AVX512_BF16;
#endif
}

const struct sc_kernel_row *sc_kernel_rows(sc_k_op op, uint32_t *count_out)
{
    *count_out = op_tables[op].count;
    return op_tables[op].rows;
}

bool sc_kernel_row_runs(const struct sc_kernel_row *row)
{
    (void)pthread_once(&forced_once, read_forced);
    return (row->cpu & ~cpu_features) == 0;
}

uint32_t sc_kernel_need(sc_dtype dtype, sc_dtype state_dtype)
{
    uint32_t need = 0;
    if (dtype == SC_DTYPE_F32) need = SC_KF_F32;
    if (dtype == SC_DTYPE_BF16) need = SC_KF_BF16;
    if (need == 0) return 0;
    if ((uint32_t)state_dtype == 0) return need;
    if (state_dtype == SC_DTYPE_F32) return need | SC_KF_STATE_F32;
    if (state_dtype == SC_DTYPE_BF16) return need | SC_KF_STATE_BF16;
    return 0;
}

static const char *feature_names(uint32_t features, char *text, size_t text_bytes)
{
    static const char *const names[] = {"f32", "bf16", "state-f32", "state-bf16", "initial",
        "int8", "dim-first", "mixed-dtypes", "strided", "saves", "tree", "ring"};
    text[0] = '\0';
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if ((features >> i & 1) != 0) {
            size_t used = strlen(text);
            (void)snprintf(text + used, text_bytes - used, "%s%s", used > 0 ? "+" : "", names[i]);
        }
    return text;
}

static bool table_has(const struct op_table *table, const char *name)
{
    for (uint32_t i = 0; i < table->count; i++)
        if (strcmp(table->rows[i].name, name) == 0) return true;
    return false;
}

/* A row that other operations have and this one lacks: its rows are those after it. */
static bool table_lacks(const struct op_table *table, const char *name)
{
    if (name[0] == '\0' || table_has(table, name)) return false;
    for (uint32_t op = 0; op < SC_K_OP_COUNT; op++)
        if (table_has(&op_tables[op], name)) return true;
    return false;
}

/* Is the row one of this backend, and does the environment leave it in the choice? */
static bool row_allowed(const sc_backend *backend, const struct sc_kernel_row *row,
    const char *forced, bool *passed)
{
    if (backend->compute_capability < row->cc_min) return false;
    if (backend->compute_capability > row->cc_max) return false;
    if (backend->runtime_version < row->runtime_min) return false;
    if (row->cc_min > 0 && backend->runtime_version > row->runtime_max) return false;
    if (row->cc_min > 0) {
        if (strcmp(backend->name, "cuda") != 0) return false;
        return forced[0] == '\0' || strcmp(forced, row->name) == 0;
    }
    if (forced[0] != '\0') return strcmp(forced, row->name) == 0;
    if (first_row[0] != '\0' && strcmp(first_row, row->name) == 0) *passed = true;
    return first_row[0] == '\0' || *passed;
}

/* Nothing is left to decide: the row of this operation, if it can. */
static sc_status pick_resolved(const sc_backend *backend, sc_k_op op, uint32_t need,
    const struct sc_kernel_row **row_out)
{
    /* the second half of `rows` is for calls with parents */
    const struct sc_kernel_row *row =
        backend->rows[(need & SC_KF_TREE) != 0 ? op + SC_K_OP_COUNT : op];
    char text[64];
    if (row == NULL)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "%s on %s: no row was chosen", op_tables[op].name,
            backend->name);
    if ((need & ~row->features) != 0)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "%s on %s: the chosen row \"%s\" lacks %s",
            op_tables[op].name, backend->name, row->name,
            feature_names(need & ~row->features, text, sizeof text));
    *row_out = row;
    return SC_OK;
}

sc_status sc_kernel_pick(const sc_backend *backend, sc_k_op op, uint32_t need,
    const struct sc_kernel_row **row_out)
{
    const struct op_table *table = &op_tables[op];
    (void)pthread_once(&forced_once, read_forced);
    const char *forced = forced_rows[op], *absent = NULL;
    const char *asked = forced[0] != '\0' ? forced : backend->host_memory ? first_row : "";
    uint32_t missing = need;
    bool passed = table_lacks(table, first_row);
    if (backend->rows != NULL) return pick_resolved(backend, op, need, row_out);
    for (uint32_t i = 0; i < table->count; i++) {
        const struct sc_kernel_row *row = &table->rows[i];
        if (!row_allowed(backend, row, forced, &passed)) continue;
        if (!sc_kernel_row_runs(row)) {
            if (asked[0] != '\0' && strcmp(asked, row->name) == 0) absent = row->name;
            if (absent != NULL) break; /* what was asked for is not replaced in silence */
            continue;
        }
        if ((need & ~row->features) != 0) {
            missing = need & ~row->features;
            continue;
        }
        *row_out = row;
        return SC_OK;
    }
    char text[64];
    if (absent != NULL)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "%s on %s: this processor lacks what row \"%s\" needs",
            table->name, backend->name, absent);
    return SC_FAIL(SC_ERR_UNSUPPORTED, "%s on %s: no row%s%s%s has %s", table->name, backend->name,
        asked[0] != '\0' ? " \"" : "", asked, asked[0] != '\0' ? "\"" : "",
        feature_names(missing, text, sizeof text));
}

/* ---- resolved beforehand ---- */

static void reason_add(char *reason, size_t bytes, const char *row, const char *what)
{
    size_t used = strlen(reason);
    (void)snprintf(reason + used, bytes - used, "%s%s %s", used > 0 ? "; " : "", row, what);
}

/* What keeps a row of this backend from serving the wish; NULL: nothing. */
static const char *row_lacks(const struct sc_kernel_row *row, const struct sc_kernel_wish *wish,
    char *text, size_t bytes)
{
    char names[64];
    if (!sc_kernel_row_runs(row)) return "needs another processor";
    if ((wish->need & ~row->features) != 0) {
        (void)snprintf(text, bytes, "lacks %s",
            feature_names(wish->need & ~row->features, names, sizeof names));
        return text;
    }
    if (row->dim_max != 0 && wish->dim > row->dim_max) return "has smaller heads";
    if (row->dim_step != 0 && wish->dim % row->dim_step != 0) {
        (void)snprintf(text, bytes, "has heads of multiples of %u", row->dim_step);
        return text;
    }
    if (row->chunk_max != 0 && wish->chunk > row->chunk_max) return "has shorter chunks";
    return NULL;
}

const struct sc_kernel_row *sc_kernel_resolve(const sc_backend *backend, sc_k_op op,
    const struct sc_kernel_wish *wish, char *reason, size_t reason_bytes)
{
    const struct op_table *table = &op_tables[op];
    (void)pthread_once(&forced_once, read_forced);
    const char *forced = forced_rows[op];
    bool passed = table_lacks(table, first_row);
    bool reached = wish->asked == NULL || forced[0] != '\0' || table_lacks(table, wish->asked);
    char text[96];
    reason[0] = '\0';
    for (uint32_t i = 0; i < table->count; i++) {
        const struct sc_kernel_row *row = &table->rows[i];
        reached = reached || strcmp(row->name, wish->asked) == 0;
        if (!row_allowed(backend, row, forced, &passed) || !reached) continue;
        const char *lacks = row_lacks(row, wish, text, sizeof text);
        if (lacks == NULL) {
            reason_add(reason, reason_bytes, row->name, forced[0] != '\0' ? "is forced"
                : wish->asked != NULL && strcmp(row->name, wish->asked) == 0 ? "was asked for"
                : "is the first that fits");
            return row;
        }
        reason_add(reason, reason_bytes, row->name, lacks);
    }
    reason_add(reason, reason_bytes, forced[0] != '\0' ? forced : backend->name,
        forced[0] != '\0' ? "is forced and cannot" : "has no row that fits");
    return NULL;
}

const char *sc_kernel_op_name(sc_k_op op)
{
    return op_tables[op].name;
}

sc_status sc_k_choice(sc_backend *backend, sc_k_op op, sc_dtype dtype, sc_dtype state_dtype,
    const char **row_out)
{
    SC_REQUIRE((uint32_t)op < SC_K_OP_COUNT);
    SC_REQUIRE(row_out != NULL);
    uint32_t need = sc_kernel_need(dtype, state_dtype);
    if (need == 0)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "%s: no kernel has dtype %d with states of dtype %d",
            op_tables[op].name, (int)dtype, (int)state_dtype);
    const struct sc_kernel_row *row = NULL;
    SC_TRY(sc_kernel_pick(backend != NULL ? backend : sc_backend_host(), op, need, &row));
    *row_out = row->name;
    return SC_OK;
}

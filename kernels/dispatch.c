/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a kernel row. Overrides come from the environment and are read once, so that a choice
 * cannot change between two steps of one process. */
#include "kernel_dispatch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define REF_STATE (SC_KF_F32 | SC_KF_BF16 | SC_KF_STATE_F32 | SC_KF_STATE_BF16)
#define REF_PLAIN (SC_KF_F32 | SC_KF_BF16)

#ifdef SC_HAVE_CUDA
#define SM90(features, launch) {"sm90", 90, UINT32_MAX, features, launch},
#else
#define SM90(features, launch)
#endif

/* First match wins; compute capability 0 is the host. */
static const struct sc_kernel_row conv_prefill_rows[] = {
    SM90(REF_STATE, sc_k_conv_prefill_sm90)
    {"reference", 0, 0, REF_STATE, sc_k_conv_prefill_ref},
};
static const struct sc_kernel_row conv_update_rows[] = {
    SM90(REF_STATE, sc_k_conv_update_sm90)
    {"reference", 0, 0, REF_STATE, sc_k_conv_update_ref},
};
static const struct sc_kernel_row gates_rows[] = {
    SM90(REF_PLAIN, sc_k_gates_sm90)
    {"reference", 0, 0, REF_PLAIN, sc_k_gates_ref},
};
static const struct sc_kernel_row l2norm_rows[] = {
    SM90(REF_PLAIN, sc_k_l2norm_sm90)
    {"reference", 0, 0, REF_PLAIN, sc_k_l2norm_ref},
};
static const struct sc_kernel_row gated_rmsnorm_rows[] = {
    SM90(REF_PLAIN, sc_k_gated_rmsnorm_sm90)
    {"reference", 0, 0, REF_PLAIN, sc_k_gated_rmsnorm_ref},
};
static const struct sc_kernel_row delta_recurrent_rows[] = {
    SM90(REF_STATE, sc_k_delta_recurrent_sm90)
    {"reference", 0, 0, REF_STATE, sc_k_delta_recurrent_ref},
};
static const struct sc_kernel_row delta_chunk_rows[] = {
    SM90(REF_STATE, sc_k_delta_chunk_sm90)
    {"reference", 0, 0, REF_STATE, sc_k_delta_chunk_ref},
};
static const struct sc_kernel_row delta_decode_rows[] = {
    SM90(REF_STATE, sc_k_delta_decode_sm90)
    {"reference", 0, 0, REF_STATE, sc_k_delta_decode_ref},
};

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
    [SC_K_OP_DELTA_DECODE] = OP(DELTA_DECODE, delta_decode_rows),
};

static pthread_once_t forced_once = PTHREAD_ONCE_INIT;
static char forced_rows[SC_K_OP_COUNT][32]; /* written once under forced_once; empty: free choice */

static void read_forced(void)
{
    for (uint32_t op = 0; op < SC_K_OP_COUNT; op++) {
        const char *value = getenv(op_tables[op].env);
        if (value != NULL)
            (void)snprintf(forced_rows[op], sizeof(forced_rows[op]), "%s", value);
    }
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
    static const char *const names[] = {"f32", "bf16", "state-f32", "state-bf16"};
    text[0] = '\0';
    for (uint32_t i = 0; i < 4; i++)
        if ((features >> i & 1) != 0) {
            size_t used = strlen(text);
            (void)snprintf(text + used, text_bytes - used, "%s%s", used > 0 ? "+" : "", names[i]);
        }
    return text;
}

sc_status sc_kernel_pick(const sc_backend *backend, sc_k_op op, uint32_t need,
    const struct sc_kernel_row **row_out)
{
    const struct op_table *table = &op_tables[op];
    (void)pthread_once(&forced_once, read_forced);
    const char *forced = forced_rows[op];
    uint32_t missing = need;
    for (uint32_t i = 0; i < table->count; i++) {
        const struct sc_kernel_row *row = &table->rows[i];
        if (forced[0] != '\0' && strcmp(forced, row->name) != 0) continue;
        if (backend->compute_capability < row->cc_min) continue;
        if (backend->compute_capability > row->cc_max) continue;
        if (row->cc_min > 0 && strcmp(backend->name, "cuda") != 0) continue;
        if ((need & ~row->features) != 0) {
            missing = need & ~row->features;
            continue;
        }
        *row_out = row;
        return SC_OK;
    }
    char text[64];
    return SC_FAIL(SC_ERR_UNSUPPORTED, "%s on %s: no row%s%s%s has %s", table->name, backend->name,
        forced[0] != '\0' ? " \"" : "", forced, forced[0] != '\0' ? "\"" : "",
        feature_names(missing, text, sizeof text));
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

/* SPDX-License-Identifier: Apache-2.0 */
/* All of a launcher but the launch: checks the arguments and picks the row. What is made of several
 * operations checks each of them before the first one writes. */
#ifndef SC_KERNEL_CALLS_H
#define SC_KERNEL_CALLS_H

#include "kernel_dispatch.h"

sc_status sc_kernel_conv_prefill_check(const sc_backend *backend,
    const sc_k_conv_prefill_params *params, const struct sc_kernel_row **row_out);
sc_status sc_kernel_conv_update_check(const sc_backend *backend,
    const sc_k_conv_update_params *params, const struct sc_kernel_row **row_out);
sc_status sc_kernel_conv_verify_check(const sc_backend *backend,
    const sc_k_conv_verify_params *params, const struct sc_kernel_row **row_out);
sc_status sc_kernel_conv_commit_check(const sc_backend *backend,
    const sc_k_conv_commit_params *params, const struct sc_kernel_row **row_out);
sc_status sc_kernel_gates_check(const sc_backend *backend, const sc_k_gates_params *params,
    const struct sc_kernel_row **row_out);
sc_status sc_kernel_gated_rmsnorm_check(const sc_backend *backend,
    const sc_k_gated_rmsnorm_params *params, const struct sc_kernel_row **row_out);
sc_status sc_kernel_delta_chunk_check(const sc_backend *backend, const sc_k_delta_params *params,
    const struct sc_kernel_row **row_out);
sc_status sc_kernel_decode_packed_check(const sc_backend *backend,
    const sc_k_decode_packed_params *params, const struct sc_kernel_row **row_out);
sc_status sc_kernel_delta_verify_check(const sc_backend *backend,
    const sc_k_delta_verify_params *params, const struct sc_kernel_row **row_out);
sc_status sc_kernel_delta_commit_check(const sc_backend *backend,
    const sc_k_delta_commit_params *params, const struct sc_kernel_row **row_out);
sc_status sc_kernel_ssm_check(const sc_backend *backend, const sc_k_ssm_params *params,
    const struct sc_kernel_row **row_out);
sc_status sc_kernel_ssm_chunk_check(const sc_backend *backend,
    const sc_k_ssm_chunk_params *params, const struct sc_kernel_row **row_out);
/* Rows of conv and decode. */
sc_status sc_kernel_decode_step_check(const sc_backend *backend,
    const sc_k_conv_update_params *conv, const sc_k_decode_packed_params *decode,
    const struct sc_kernel_row *rows_out[2]);

#endif

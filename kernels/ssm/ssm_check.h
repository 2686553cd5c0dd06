/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the selective state space that its other forms share. */
#ifndef SC_SSM_CHECK_H
#define SC_SSM_CHECK_H

#include "statecache/kernels_ssm.h"

/* Dims and dtype; no pointer, no state. */
sc_status sc_ssm_check_shape(const sc_k_ssm_params *params);
/* Tensors and weights of a call with so many tokens; no index array. */
sc_status sc_ssm_check_tensors(const sc_k_ssm_params *params, uint32_t token_count);

#endif

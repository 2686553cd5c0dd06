/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the launchers of the delta rule share. */
#ifndef SC_DELTA_CHECK_H
#define SC_DELTA_CHECK_H

#include "kernel_check.h"

sc_status sc_delta_check_shape(const sc_k_delta_shape *shape, const sc_k_slots *state);
/* Tensors and index arrays of a packed batch, dest not among them. `outputs`: with q and o. */
sc_status sc_delta_check_tokens(const sc_k_delta_params *params, bool outputs);

#endif

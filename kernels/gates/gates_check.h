/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SC_GATES_CHECK_H
#define SC_GATES_CHECK_H

#include "kernel_check.h"

/* Weights that are needed to compute g. */
sc_status sc_kernel_check_gate(const sc_k_gate_weights *weights);

#endif

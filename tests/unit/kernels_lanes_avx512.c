/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled as the rows avx512 are. */
#include "kernels_lanes_wide.h"

const struct lanes lanes_avx512 = LANES;

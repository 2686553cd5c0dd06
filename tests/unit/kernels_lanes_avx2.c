/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled as the rows avx2 are. */
#include "kernels_lanes_wide.h"

const struct lanes lanes_avx2 = LANES;

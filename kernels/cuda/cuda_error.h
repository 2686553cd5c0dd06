/* SPDX-License-Identifier: Apache-2.0 */
/* Errors as in C, for files that are compiled as C++. */
#ifndef SC_CUDA_ERROR_H
#define SC_CUDA_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif
#include "base/error.h"
#ifdef __cplusplus
}
#endif

#endif

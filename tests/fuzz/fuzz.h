/* SPDX-License-Identifier: Apache-2.0 */
/* What fuzz targets share. A target defines LLVMFuzzerTestOneInput; libFuzzer drives it in
 * `./dev fuzz`, replay_main.c over the kept inputs everywhere else. */
#ifndef SC_TESTS_FUZZ_H
#define SC_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif

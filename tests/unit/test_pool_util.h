/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of test_pool. */
#ifndef TEST_POOL_UTIL_H
#define TEST_POOL_UTIL_H

#include <check.h>

#include "kernels/backend.h"
#include "pool/pool_internal.h"
#include "support/fail_alloc.h"

/* Three linear layers (0, 1, 3 of 4) with odd sizes: conv {3, 10} bf16 = 60 bytes in layer 0, two
 * windows in layer 1, states of 4 heads {4, 5, 6} fp32 = 480 bytes. 7 parts. */
enum { TINY_PARTS = 7 };
sc_schema *tiny_schema(void);

/* A host pool of `slots` slots. */
sc_pool *tiny_pool(sc_layout layout, uint32_t slots);
sc_pool_options tiny_options(const sc_schema *schema, sc_layout layout, uint32_t slots);
sc_pool_info info_of(const sc_pool *pool);
void audit_ok(const sc_pool *pool);

/* The host backend with faults: the n-th alloc or fill from now on fails (0: none). */
struct faulty_backend {
    struct sc_backend backend;
    struct sc_backend_ops ops;
    uint32_t fail_alloc_at, fail_fill_at;
    int live;
};
void faulty_init(struct faulty_backend *faulty);

void add_pool_memory_tests(Suite *suite);

#endif

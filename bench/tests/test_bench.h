/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_BENCH_H
#define TEST_BENCH_H

#include <check.h>

void add_trace_cases(Suite *suite);
void add_part_cases(Suite *suite);
void add_verify_cases(Suite *suite);

#endif

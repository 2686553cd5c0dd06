/* SPDX-License-Identifier: Apache-2.0 */
/* How long the long tests run. SC_TEST_SCALE is a percentage of the usual number of steps:
 * sanitizer runs set it below 100 (./dev asan, ./dev tsan), a soak sets it above. */
#ifndef SC_TESTS_TEST_SCALE_H
#define SC_TESTS_TEST_SCALE_H

#include <stdint.h>
#include <stdlib.h>

/* `steps` at 100 %; never below `steps_min`, so that a scaled test still meets what it asserts. */
static inline uint64_t test_scaled(uint64_t steps, uint64_t steps_min)
{
    const char *text = getenv("SC_TEST_SCALE");
    char *end = NULL;
    unsigned long percent = text ? strtoul(text, &end, 10) : 100;
    if (text && (end == text || *end || percent == 0 || percent > 100000)) {
        percent = 100;
    }
    uint64_t scaled = steps / 100 * percent + steps % 100 * percent / 100;
    return scaled < steps_min ? steps_min : scaled;
}

#endif

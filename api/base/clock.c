/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <time.h>

#include "base/sc_assert.h"

static uint64_t read_ns(clockid_t clock)
{
    struct timespec now;
    int rc = clock_gettime(clock, &now);
    SC_ASSERT(rc == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t sc_clock_now_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

uint64_t sc_clock_thread_ns(void)
{
    return read_ns(CLOCK_THREAD_CPUTIME_ID);
}

int64_t sc_clock_utc_s(void)
{
    return (int64_t)(read_ns(CLOCK_REALTIME) / 1000000000u);
}

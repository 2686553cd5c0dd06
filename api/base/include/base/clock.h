/* SPDX-License-Identifier: Apache-2.0 */
/* Time, monotonic where not said otherwise. Only programs and benchmarks read it; the library's
 * decisions take time as an argument (contract 18). */
#ifndef SC_BASE_CLOCK_H
#define SC_BASE_CLOCK_H

#include <stdint.h>

uint64_t sc_clock_now_ns(void);
/* Processor time of the calling thread: other work on the machine does not count. */
uint64_t sc_clock_thread_ns(void);

/* Seconds since 1970 in UTC: for what people read, not for decisions. */
int64_t sc_clock_utc_s(void);

#endif

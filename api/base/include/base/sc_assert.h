/* SPDX-License-Identifier: Apache-2.0 */
/* Assertion levels: SC_ASSERT always, SC_ASSERT_DEBUG at SC_ASSERT_LEVEL >= 2, whole-structure
 * walks (`sc_<module>_verify`) at level 3 and in tests. A failing assertion aborts: it reports a
 * fault of this library, never bad input and never bytes read from outside. */
#ifndef SC_BASE_SC_ASSERT_H
#define SC_BASE_SC_ASSERT_H

#include <assert.h> /* static_assert */

#ifndef SC_ASSERT_LEVEL
#define SC_ASSERT_LEVEL 1
#endif

_Noreturn void sc_assert_fail(const char *expr, const char *file, int line, const char *function);

#define SC_ASSERT(cond) ((cond) ? (void)0 : sc_assert_fail(#cond, __FILE__, __LINE__, __func__))
#if SC_ASSERT_LEVEL >= 2
#define SC_ASSERT_DEBUG(cond) SC_ASSERT(cond)
#else
#define SC_ASSERT_DEBUG(cond) ((void)sizeof(cond))
#endif

#endif

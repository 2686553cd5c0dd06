/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a caller that may be older than the library.
 *
 * A public options struct begins with struct_size, its size as the caller was compiled; a later
 * version appends members. What an older caller does not have keeps its default:
 *
 *   given      | struct_size | a | b |              what the caller knew
 *   options    | struct_size | a | b | c | d |      c and d: from the _INIT of this version
 *
 * Larger sizes are refused: a newer caller may rely on what this library does not know. */
#ifndef SC_BASE_OPTIONS_H
#define SC_BASE_OPTIONS_H

#include <string.h>

#include "base/error.h"

/* `options` of `bytes` bytes holds the defaults; receives the first struct_size bytes of `given`.
 * `least` is where the members end that no caller can do without. SC_ERR_INVALID. */
static inline sc_status sc_options_resolve(const void *given, size_t least, void *options,
    size_t bytes)
{
    size_t size;
    SC_REQUIRE(given != NULL);
    memcpy(&size, given, sizeof size);
    if (size < least || size > bytes) {
        return SC_FAIL(SC_ERR_INVALID, "struct_size %zu, this version takes %zu to %zu", size,
            least, bytes);
    }
    memcpy(options, given, size);
    memcpy(options, &bytes, sizeof bytes);
    return SC_OK;
}

#endif

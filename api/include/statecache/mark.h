/* SPDX-License-Identifier: Apache-2.0 */
/** Marks: what a key says beside its tokens.
 *
 * From token `at` on, content also depends on `id`. A tenant's salt is a mark at 0, or after a
 * prompt common to all; an image is a mark at its first token. The marks of a key ascend strictly
 * by position. Keys with equal tokens and different marks share what lies before the page of the
 * first mark that differs, and nothing beyond. */
#ifndef STATECACHE_MARK_H
#define STATECACHE_MARK_H

#include <stdint.h>

/** Frozen: passed in arrays. */
typedef struct sc_mark {
    uint32_t at;
    uint8_t id[16];
} sc_mark;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Emits log records to the installed receiver. Not for hot paths: those count. */
#ifndef SC_BASE_LOG_H
#define SC_BASE_LOG_H

#include "statecache/status.h"

bool sc_log_enabled(enum sc_log_level level);

/* SC_LOG(level, "event.name", "key", "%u", value, ..., NULL): pairs are key, format string, one
 * argument. At most 12 fields; values are cut at 80 bytes. */
void sc_log_emit(enum sc_log_level level, const char *event, const sc_log_field *fields,
    uint32_t field_count);

#endif

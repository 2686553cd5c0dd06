/* SPDX-License-Identifier: Apache-2.0 */
/* Emits log records to the installed receiver. Not for hot paths: those count.
 *
 *   if (sc_log_enabled(SC_LOG_INFO)) {
 *       struct sc_log_builder log = SC_LOG_BUILDER_INIT;
 *       sc_log_add(&log, "slots", "%u", slot_count);
 *       sc_log_send(&log, SC_LOG_INFO, "pool.created");
 *   }
 *
 * Send only without locks held that the receiver could need. */
#ifndef SC_BASE_LOG_H
#define SC_BASE_LOG_H

#include "statecache/status.h"

enum { SC_LOG_FIELDS_MAX = 12, SC_LOG_VALUE_BYTES = 80 };

/* Fields past the twelfth are dropped, values are cut at 79 characters. */
struct sc_log_builder {
    uint32_t count;
    const char *keys[SC_LOG_FIELDS_MAX];
    char values[SC_LOG_FIELDS_MAX][SC_LOG_VALUE_BYTES];
};
#define SC_LOG_BUILDER_INIT {.count = 0}

/* True when a receiver is installed that wants records of this level. */
bool sc_log_enabled(enum sc_log_level level);

/* `key` must be static. */
void sc_log_add(struct sc_log_builder *builder, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* `event` must be static. */
void sc_log_send(const struct sc_log_builder *builder, enum sc_log_level level, const char *event);

/* The plain form. */
void sc_log_emit(enum sc_log_level level, const char *event, const sc_log_field *fields,
    uint32_t field_count);

#endif

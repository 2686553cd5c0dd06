/* SPDX-License-Identifier: Apache-2.0 */
/* The log hook: one process-wide receiver, silence by default. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/sc_assert.h"

static struct {
    sc_log_fn fn;
    void *ctx;
    enum sc_log_level level_min;
} receiver;

void sc_log_set(sc_log_fn fn, void *ctx, enum sc_log_level level_min)
{
    receiver.fn = fn;
    receiver.ctx = ctx;
    receiver.level_min = level_min;
}

bool sc_log_enabled(enum sc_log_level level)
{
    return receiver.fn != NULL && level >= receiver.level_min;
}

void sc_log_add(struct sc_log_builder *builder, const char *key, const char *fmt, ...)
{
    if (builder->count >= SC_LOG_FIELDS_MAX) return;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(builder->values[builder->count], SC_LOG_VALUE_BYTES, fmt, args);
    va_end(args);
    builder->keys[builder->count++] = key;
}

void sc_log_send(const struct sc_log_builder *builder, enum sc_log_level level, const char *event)
{
    sc_log_field fields[SC_LOG_FIELDS_MAX];
    SC_ASSERT(builder->count <= SC_LOG_FIELDS_MAX);
    for (uint32_t i = 0; i < builder->count; i++) {
        fields[i].key = builder->keys[i];
        fields[i].value = builder->values[i];
    }
    sc_log_emit(level, event, fields, builder->count);
}

void sc_log_emit(enum sc_log_level level, const char *event, const sc_log_field *fields,
    uint32_t field_count)
{
    if (!sc_log_enabled(level)) return;
    const sc_log_record record = {event, fields, field_count};
    receiver.fn(receiver.ctx, level, &record);
}

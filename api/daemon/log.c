/* SPDX-License-Identifier: Apache-2.0 */
/* The log: a line for each event on stderr, which a service manager keeps. */
#include <stdarg.h>
#include <stdio.h>

#include "server.h"

static enum sc_log_level level_min = SC_LOG_INFO;
static const char *const words[] = {"debug", "info", "warn", "error"};

/* What the library says. */
static void library(void *ctx, enum sc_log_level level, const sc_log_record *record)
{
    (void)ctx;
    char text[1024] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < record->field_count && at < sizeof text; i++) {
        int got = snprintf(text + at, sizeof text - at, " %s=%s", record->fields[i].key,
            record->fields[i].value);
        at += got > 0 ? (size_t)got : 0;
    }
    if (level >= level_min) (void)fprintf(stderr, "%s %s%s\n", words[level], record->event, text);
}

void sd_log_level(enum sc_log_level level)
{
    level_min = level;
    sc_log_set(library, NULL, level);
}

void sd_log(enum sc_log_level level, const char *event, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    if (level < level_min) return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    for (char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?'; /* a peer chose some of it */
    }
    (void)fprintf(stderr, "%s %s %s\n", words[level], event, text);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Status names and texts, the thread-local error record, the version. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/sc_assert.h"

#define TEXT_OF(x) TEXT_OF_(x)
#define TEXT_OF_(x) #x

static _Thread_local sc_error_info last_error = {SC_OK, 0, "", ""};

const char *sc_status_name(sc_status status)
{
    switch (status) {
#define STATUS_NAME(name, value, text)                                                             \
    case name: return #name;
        SC_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    }
    return "SC_ERR_UNKNOWN";
}

const char *sc_status_text(sc_status status)
{
    switch (status) {
#define STATUS_TEXT(name, value, text)                                                             \
    case name: return text;
        SC_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

const char *sc_version(void)
{
    return TEXT_OF(SC_VERSION_MAJOR) "." TEXT_OF(SC_VERSION_MINOR) "." TEXT_OF(SC_VERSION_PATCH);
}

const sc_error_info *sc_last_error(void)
{
    return &last_error;
}

sc_status sc_error_set(const char *function, sc_status status, int system_code, const char *fmt,
    ...)
{
    SC_ASSERT(status != SC_OK);
    /* Formatted aside: an argument may point into the record that is about to be overwritten. */
    char text[sizeof last_error.text] = "";
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    for (char *c = text; *c != '\0'; c++) {
        if (*c == '\n' || *c == '\r') *c = ' ';
    }
    last_error.status = status;
    last_error.system_code = system_code;
    last_error.function = function;
    memcpy(last_error.text, text, sizeof text);
    return status;
}

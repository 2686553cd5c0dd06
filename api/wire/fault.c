/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's record of fault.h. */
#include "wire/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local sc_error_info last = {SC_OK, 0, "", ""};

sc_status sc_fault_set(const char *function, sc_status status, int system_code, const char *fmt,
    ...)
{
    /* Formatted aside: an argument may point into the record. */
    sc_error_info info = {status, system_code, function, ""};
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(info.text, sizeof info.text, fmt, args);
    va_end(args);
    for (char *c = info.text; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = ' '; /* one line, whatever a peer sent */
    }
    last = info;
    return status;
}

sc_status sc_fault_take(const sc_error_info *info)
{
    last = *info;
    return last.status;
}

const sc_error_info *sc_fault_last(void)
{
    return &last;
}

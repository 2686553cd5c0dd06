/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a trace file as written, checked, in order of time. Only trace.c needs it. */
#ifndef BENCH_TRACE_ROWS_H
#define BENCH_TRACE_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trace_row {
    size_t line;
    uint64_t time_ns, delay_ns;
    uint32_t input_len, output_len;
    bool io, has_session, has_parent;
    uint64_t session, parent;
    uint64_t *ids;
    uint32_t id_count;
};

struct trace_rows {
    struct trace_row *rows;
    size_t count, cap;
    bool turns; /* lengths are of each turn alone; there are no ids */
};

/* 0, or -1 with a line in `error` (TRACE_ERROR_BYTES). Free in both cases. */
int trace_rows_read(struct trace_rows *rows, const char *path, char *error);
void trace_rows_free(struct trace_rows *rows);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the installed headers and library from C: the version of both, and one failing call. */
#include <statecache/statecache.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", SC_VERSION_MAJOR, SC_VERSION_MINOR,
        SC_VERSION_PATCH);
    if (strcmp(sc_version(), expected) != 0) {
        fprintf(stderr, "headers say %s, the library says %s\n", expected, sc_version());
        return 1;
    }
    if (sc_heap_stats_get(SC_SUBSYSTEM_POOL, NULL) != SC_ERR_INVALID ||
        sc_last_error()->status != SC_ERR_INVALID) {
        fprintf(stderr, "a bad call was not refused\n");
        return 1;
    }
    return 0;
}

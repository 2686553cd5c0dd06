/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands of statecachectl share. */
#ifndef SC_CTL_CTL_H
#define SC_CTL_CTL_H

#include <stdio.h>

#include "tier/disk_store.h"

enum {
    CTL_OK = 0,
    CTL_FAULTS = 1, /* the command worked, and what it found is not good */
    CTL_USAGE = 2,
    CTL_OPEN = 3,   /* there is no such store, it is in use, or cannot be read */
    CTL_FAILED = 4
};

struct ctl_options {
    const char *command, *folder, *file;
    bool json, quick, tokens, has_id;
    uint32_t id;
    uint64_t bytes_max;
};

/* Says what failed last, on stderr; returns `code`. */
int ctl_fail(const char *what, int code);
void ctl_hex(FILE *out, const uint8_t *bytes, uint32_t count);
const char *ctl_codec_name(uint32_t codec);

int ctl_ls(const struct ctl_options *options, struct sc_store *store);
int ctl_dump(const struct ctl_options *options, struct sc_store *store);
int ctl_verify(const struct ctl_options *options, struct sc_store *store);
int ctl_gc(const struct ctl_options *options, struct sc_store *store);
int ctl_export(const struct ctl_options *options, struct sc_store *store);
int ctl_import(const struct ctl_options *options, struct sc_store *store);

#endif

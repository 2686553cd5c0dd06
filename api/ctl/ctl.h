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
    CTL_OPEN = 3,   /* no such store, it is in use, or cannot be read; nobody serves there */
    CTL_FAILED = 4
};

struct ctl_options {
    const char *command, *folder, *file;
    bool json, quick, tokens, has_id;
    uint32_t id;
    uint64_t bytes_max;
};

/* Says what is wrong with the command line, on stderr; `word` may be NULL. CTL_USAGE. */
int ctl_usage(const char *text, const char *word);
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

/* ---- inspect.c, of a service: all words of the program; the exit status */
int ctl_tree(int argc, char **argv);
int ctl_explain(int argc, char **argv);
int ctl_evict(int argc, char **argv);
int ctl_pin(int argc, char **argv);
int ctl_unpin(int argc, char **argv);
int ctl_pins(int argc, char **argv);
int ctl_quota(int argc, char **argv);

/* "events tail ...": all words of the program; the exit status. */
int ctl_events(int argc, char **argv);

/* "schema ...": all words of the program; the exit status. */
int ctl_schema(int argc, char **argv);

/* ---- service.c: commands that talk to a service; built where the service is */

struct sc_client;

/* How the service is reached: --socket PATH, --connect HOST:PORT, --token-file FILE. */
struct ctl_service {
    const char *socket, *connect, *token_file; /* NULL: not given; borrowed */
    bool json;                                 /* --json */
};
/* Takes the option at argv[*at], if it is one of these, and its value, and moves `*at` to the last
 * word that it took. False: it is another word. `*code_out`: CTL_OK, or CTL_USAGE (it was said). */
bool ctl_service_option(struct ctl_service *service, int argc, char **argv, int *at,
    int *code_out);
/* Connects. CTL_OK; else why not was said, and `*client_out` is NULL. */
int ctl_service_open(const struct ctl_service *service, struct sc_client **client_out);
/* Says what the client failed with last, on stderr; CTL_FAILED, or CTL_OPEN where the service
 * cannot be reached. */
int ctl_service_fail(const char *what);

/* "status ...": all words of the program; the exit status. */
int ctl_status(int argc, char **argv);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of statecached: lines of `name = value`, and sections of tenants.
 *
 * docs/reference/statecached.md lists every name; config.c has them as one table. A name that is
 * not known, given twice, or whose value is out of range is an error with its line. */
#ifndef SC_DAEMON_CONFIG_H
#define SC_DAEMON_CONFIG_H

#include <stdio.h>

#include "statecache/schema.h"

enum {
    SD_PATH_BYTES = 256, SD_NAME_BYTES = 64, SD_TOKEN_BYTES = 64,
    SD_GROUPS_MAX = 8, SD_PARTS_MAX = 512, SD_UIDS_MAX = 32, SD_TENANTS_MAX = 256,
    SD_NAMES_MAX = 64, SD_OVERRIDES_MAX = 64
};

struct sd_tenant_config {
    char name[SD_NAME_BYTES];
    uint64_t bytes;                  /* of states; 0: as tenant_bytes */
    char token_file[SD_PATH_BYTES];  /* "": it has no token of its own */
    char token[SD_TOKEN_BYTES + 1];  /* what the file says */
    uint32_t line;
};

struct sd_config {
    /* where it listens */
    char socket[SD_PATH_BYTES];
    char listen[SD_PATH_BYTES];
    char token_file[SD_PATH_BYTES];
    char token[SD_TOKEN_BYTES + 1];
    char metrics_listen[SD_PATH_BYTES];
    uint64_t metrics_tenants;
    uint32_t uids[SD_UIDS_MAX];
    uint32_t uid_count;
    /* what it keeps */
    char model[SD_NAME_BYTES];
    char revision[SD_PATH_BYTES];
    char dtype[SD_NAME_BYTES];
    sc_group groups[SD_GROUPS_MAX];
    uint32_t group_count;
    sc_part parts[SD_PARTS_MAX];
    uint32_t part_count;
    uint64_t tp_rank, tp_size, layer_first, layer_count;
    uint64_t slots, page_tokens, tokens;
    char policy[SD_NAME_BYTES];
    uint64_t host_bytes;
    char disk_folder[SD_PATH_BYTES];
    uint64_t disk_bytes, disk_day_bytes, disk_file_bytes;
    char disk_write[SD_NAME_BYTES];
    uint64_t disk_zstd_level;
    uint64_t numerics;
    /* limits; those that a reload can change are marked in config.c */
    uint64_t connections, frame_bytes, queue, output_bytes, key_tokens;
    uint64_t leases, client_leases, client_writes, pins, namespaces, tenant_bytes;
    uint64_t tenant_leases;
    uint64_t hello_ms, frame_ms, common_prompts, common_tokens;
    /* what it tells others; "": nothing */
    char events_publish[SD_PATH_BYTES];
    char events_replay[SD_PATH_BYTES];
    char events_topic[SD_PATH_BYTES];
    char events_media[SD_PATH_BYTES];
    char events_form[SD_NAME_BYTES], events_replay_form[SD_NAME_BYTES];
    uint64_t events_block, events_group, events_rank;
    uint64_t events_buffer, events_buffer_bytes, events_queue, events_bytes;
    char log[SD_NAME_BYTES];
    struct sd_tenant_config tenants[SD_TENANTS_MAX];
    uint32_t tenant_count;

    char file[SD_PATH_BYTES];          /* "": there is none */
    uint32_t lines[SD_NAMES_MAX];      /* by place in the table: where it was set; 0: default */
    const char *overrides[SD_OVERRIDES_MAX]; /* name=value of the command line; borrowed */
    uint32_t override_count;
};

/* The defaults. */
void sd_config_init(struct sd_config *config);
/* Reads a file into it. False: an error was written to `errors`, each with its line. */
bool sd_config_read(struct sd_config *config, const char *file, FILE *errors);
/* What the command line says stands above the file: sets the overrides of `from`. */
bool sd_config_overrides(struct sd_config *config, const struct sd_config *from, FILE *errors);
/* What must fit together, and the token files. Call last. */
bool sd_config_finish(struct sd_config *config, FILE *errors);
/* The first name whose value differs and that a reload cannot change; NULL: there is none. */
const char *sd_config_fixed_change(const struct sd_config *now, const struct sd_config *next);
/* Writes it as a file. */
void sd_config_print(const struct sd_config *config, FILE *out);
/* The schema that it describes. The reference is the caller's. */
sc_status sd_config_schema(const struct sd_config *config, sc_schema **schema_out);
/* NULL: there is no such tenant. */
const struct sd_tenant_config *sd_config_tenant(const struct sd_config *config, const char *name,
    size_t name_bytes);

#endif

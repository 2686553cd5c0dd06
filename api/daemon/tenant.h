/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants: their marks, what they may take, and the prompts that are common to all.
 *
 * A tenant's keys carry a mark: from there on nothing is shared with another tenant. It stands at
 * token 0, or behind the longest common prompt with which the key begins (tokens and marks):
 *
 *   tokens   | common prompt | the tenant's own ...
 *            0               ^ mark
 *
 * The mark's id is a hash (SHA-256, cut) of the tenant's name and of the mark that the key itself
 * has at that place, so that no key can be given the mark of another tenant.
 *
 * Threads: the loop's. */
#ifndef SC_DAEMON_TENANT_H
#define SC_DAEMON_TENANT_H

#include "config.h"
#include "statecache/mark.h"

/* A tenant that holds something, or has a section in the configuration. */
struct sd_tenant {
    char name[SD_NAME_BYTES];
    uint64_t bytes;       /* of states in slots, and of those being written */
    uint64_t bytes_max;   /* 0: no limit */
    uint64_t refused;
    uint32_t leases;      /* open ones, writes and pins too */
    bool kept;            /* it has a limit of its own */
    bool labelled;        /* its name is one of `labels` */
    uint64_t *all_bytes;  /* of the table */
    struct sd_tenant *next;
};

struct sd_common {
    int32_t *tokens;
    uint32_t token_count;
    sc_mark *marks;
    uint32_t mark_count;
};

enum { SD_TENANT_BUCKETS = 1024, SD_TENANTS_ALIVE_MAX = 65536 };

struct sd_tenants {
    struct sd_tenant *buckets[SD_TENANT_BUCKETS];
    uint32_t count;
    uint64_t bytes;       /* of all of them */
    /* The first tenants that there were: those that metrics tell of by name. Once a name is among
     * them it stays, so that the service never has told of more names than these */
    char (*labels)[SD_NAME_BYTES];
    uint32_t label_count, label_max;
    uint64_t bytes_max;   /* of who has no limit of its own */
    uint32_t lease_max;   /* of each; 0: no limit */
    struct sd_common *common;
    uint32_t common_count, common_max;
    uint64_t common_tokens, common_tokens_max;
};

/* Limits of a new configuration: what is held already stays. */
void sd_tenants_configure(struct sd_tenants *tenants, const struct sd_config *config);
void sd_tenants_free(struct sd_tenants *tenants);
/* NULL: it holds nothing, and has no limit of its own. */
struct sd_tenant *sd_tenant_find(const struct sd_tenants *tenants, const char *name,
    size_t name_bytes);
/* Finds or makes it. SC_ERR_INVALID (name), SC_ERR_AGAIN (too many), SC_ERR_NO_MEMORY. */
sc_status sd_tenant_get(struct sd_tenants *tenants, const char *name, size_t name_bytes,
    struct sd_tenant **tenant_out);
/* Counts bytes. SC_ERR_LIMIT: that would pass its limit. */
sc_status sd_tenant_takes(struct sd_tenant *tenant, uint64_t bytes);
void sd_tenant_gives_back(struct sd_tenant *tenant, uint64_t bytes);
/* Counts a lease of the tenant by that name (no bytes: of nobody, `*tenant_out` NULL).
 * SC_ERR_AGAIN: it has as many as it may. */
sc_status sd_tenant_lease(struct sd_tenants *tenants, const char *name, size_t name_bytes,
    struct sd_tenant **tenant_out);
/* Frees those that hold nothing. */
void sd_tenants_sweep(struct sd_tenants *tenants);
/* 0: no limit of its own any more. */
sc_status sd_tenant_set_limit(struct sd_tenants *tenants, const char *name, size_t name_bytes,
    uint64_t bytes);

/* Where the mark of a tenant stands in this key: the length of the longest common prompt. */
uint32_t sd_common_len(const struct sd_tenants *tenants, const int32_t *tokens,
    uint32_t token_count, const sc_mark *marks, uint32_t mark_count);
/* Writes the key's marks with the tenant's among them; room for one more than there are. */
uint32_t sd_tenant_mark(const char *name, size_t name_bytes, uint32_t at, const sc_mark *marks,
    uint32_t mark_count, sc_mark *marks_out);
/* SC_ERR_AGAIN (limits), SC_ERR_NO_MEMORY; one that is there already is SC_OK. */
sc_status sd_common_add(struct sd_tenants *tenants, const int32_t *tokens, uint32_t token_count,
    const sc_mark *marks, uint32_t mark_count);
/* SC_ERR_NOT_FOUND. */
sc_status sd_common_drop(struct sd_tenants *tenants, const int32_t *tokens, uint32_t token_count,
    const sc_mark *marks, uint32_t mark_count);

#endif

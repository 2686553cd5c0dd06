/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants and common prompts: tenant.h. */
#include "tenant.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "wire/fault.h"

/* ---- the table ---- */

/* FNV-1a: names of tenants are few, and a chain of them is short. */
static uint32_t bucket_of(const char *name, size_t name_bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < name_bytes; i++) {
        hash = (hash ^ (uint8_t)name[i]) * UINT64_C(0x100000001b3);
    }
    return (uint32_t)(hash >> 32) % SD_TENANT_BUCKETS;
}

struct sd_tenant *sd_tenant_find(const struct sd_tenants *tenants, const char *name,
    size_t name_bytes)
{
    struct sd_tenant *tenant = tenants->buckets[bucket_of(name, name_bytes)];
    while (tenant && (strlen(tenant->name) != name_bytes ||
        memcmp(tenant->name, name, name_bytes) != 0)) {
        tenant = tenant->next;
    }
    return tenant;
}

/* Whether the name is one of the labels; if there is room for it, it is. */
static bool label(struct sd_tenants *tenants, const char *name)
{
    for (uint32_t i = 0; i < tenants->label_count; i++) {
        if (strcmp(tenants->labels[i], name) == 0) return true;
    }
    if (tenants->label_count == tenants->label_max) return false;
    memcpy(tenants->labels[tenants->label_count++], name, strlen(name) + 1);
    return true;
}

sc_status sd_tenant_get(struct sd_tenants *tenants, const char *name, size_t name_bytes,
    struct sd_tenant **tenant_out)
{
    struct sd_tenant *tenant = sd_tenant_find(tenants, name, name_bytes);
    if (!tenant) {
        if (name_bytes == 0 || name_bytes >= SD_NAME_BYTES || memchr(name, 0, name_bytes)) {
            return SC_FAULT(SC_ERR_INVALID, "tenant: a name has 1 to %d bytes, none of them 0",
                SD_NAME_BYTES - 1);
        }
        if (tenants->count == SD_TENANTS_ALIVE_MAX) sd_tenants_sweep(tenants);
        if (tenants->count == SD_TENANTS_ALIVE_MAX) {
            return SC_FAULT(SC_ERR_AGAIN, "%d tenants hold something", SD_TENANTS_ALIVE_MAX);
        }
        tenant = calloc(1, sizeof *tenant);
        if (!tenant) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
        memcpy(tenant->name, name, name_bytes);
        tenant->bytes_max = tenants->bytes_max;
        tenant->all_bytes = &tenants->bytes;
        tenant->labelled = label(tenants, tenant->name);
        uint32_t bucket = bucket_of(name, name_bytes);
        tenant->next = tenants->buckets[bucket];
        tenants->buckets[bucket] = tenant;
        tenants->count++;
    }
    *tenant_out = tenant;
    return SC_OK;
}

sc_status sd_tenant_takes(struct sd_tenant *tenant, uint64_t bytes)
{
    if (tenant->bytes_max > 0 && (tenant->bytes > tenant->bytes_max ||
        bytes > tenant->bytes_max - tenant->bytes)) {
        tenant->refused++;
        return SC_FAULT(SC_ERR_LIMIT, "tenant '%s' has %llu bytes of its %llu, %llu more are "
            "wanted", tenant->name, (unsigned long long)tenant->bytes,
            (unsigned long long)tenant->bytes_max, (unsigned long long)bytes);
    }
    tenant->bytes += bytes;
    *tenant->all_bytes += bytes;
    return SC_OK;
}

void sd_tenant_gives_back(struct sd_tenant *tenant, uint64_t bytes)
{
    uint64_t less = bytes < tenant->bytes ? bytes : tenant->bytes;
    tenant->bytes -= less;
    *tenant->all_bytes -= less;
}

sc_status sd_tenant_lease(struct sd_tenants *tenants, const char *name, size_t name_bytes,
    struct sd_tenant **tenant_out)
{
    *tenant_out = NULL;
    if (name_bytes == 0) return SC_OK;
    SC_PASS(sd_tenant_get(tenants, name, name_bytes, tenant_out));
    if (tenants->lease_max > 0 && (*tenant_out)->leases >= tenants->lease_max) {
        return SC_FAULT(SC_ERR_AGAIN, "tenant '%s' has %u leases, the limit of a tenant "
            "(tenant_leases)", (*tenant_out)->name, (*tenant_out)->leases);
    }
    (*tenant_out)->leases++;
    return SC_OK;
}

static void drop_where(struct sd_tenants *tenants, bool all)
{
    for (uint32_t i = 0; i < SD_TENANT_BUCKETS; i++) {
        struct sd_tenant **link = &tenants->buckets[i];
        while (*link) {
            struct sd_tenant *tenant = *link;
            if (!all && (tenant->bytes > 0 || tenant->leases > 0 || tenant->kept)) {
                link = &tenant->next;
                continue;
            }
            *link = tenant->next;
            free(tenant);
            tenants->count--;
        }
    }
}

void sd_tenants_sweep(struct sd_tenants *tenants)
{
    drop_where(tenants, false);
}

sc_status sd_tenant_set_limit(struct sd_tenants *tenants, const char *name, size_t name_bytes,
    uint64_t bytes)
{
    struct sd_tenant *tenant = NULL;
    SC_PASS(sd_tenant_get(tenants, name, name_bytes, &tenant));
    tenant->kept = bytes > 0;
    tenant->bytes_max = bytes > 0 ? bytes : tenants->bytes_max;
    return SC_OK;
}

void sd_tenants_configure(struct sd_tenants *tenants, const struct sd_config *config)
{
    if (!tenants->labels && config->metrics_tenants > 0) { /* without memory there are none */
        tenants->labels = calloc((size_t)config->metrics_tenants, sizeof *tenants->labels);
        tenants->label_max = tenants->labels ? (uint32_t)config->metrics_tenants : 0;
    }
    tenants->bytes_max = config->tenant_bytes;
    tenants->lease_max = (uint32_t)config->tenant_leases;
    tenants->common_max = (uint32_t)config->common_prompts;
    tenants->common_tokens_max = config->common_tokens;
    for (uint32_t i = 0; i < SD_TENANT_BUCKETS; i++) {
        for (struct sd_tenant *tenant = tenants->buckets[i]; tenant; tenant = tenant->next) {
            tenant->kept = false;
            tenant->bytes_max = tenants->bytes_max;
        }
    }
    for (uint32_t i = 0; i < config->tenant_count; i++) {
        const struct sd_tenant_config *section = &config->tenants[i];
        if (section->bytes == 0) continue;
        /* Without memory it keeps the limit of all. */
        (void)sd_tenant_set_limit(tenants, section->name, strlen(section->name), section->bytes);
    }
}

static void common_free(struct sd_common *common)
{
    free(common->tokens);
    free(common->marks);
}

void sd_tenants_free(struct sd_tenants *tenants)
{
    drop_where(tenants, true);
    for (uint32_t i = 0; i < tenants->common_count; i++) common_free(&tenants->common[i]);
    free(tenants->common);
    free(tenants->labels);
    *tenants = (struct sd_tenants){.count = 0};
}

/* ---- common prompts ---- */

/* Whether the first marks of a key are those of the common prompt, and no other lies inside it. */
static bool same_marks(const struct sd_common *common, const sc_mark *marks, uint32_t mark_count)
{
    uint32_t inside = 0;
    while (inside < mark_count && marks[inside].at < common->token_count) inside++;
    if (inside != common->mark_count) return false;
    for (uint32_t i = 0; i < inside; i++) {
        if (marks[i].at != common->marks[i].at ||
            memcmp(marks[i].id, common->marks[i].id, sizeof marks[i].id) != 0) {
            return false;
        }
    }
    return true;
}

uint32_t sd_common_len(const struct sd_tenants *tenants, const int32_t *tokens,
    uint32_t token_count, const sc_mark *marks, uint32_t mark_count)
{
    uint32_t len = 0;
    for (uint32_t i = 0; i < tenants->common_count; i++) {
        const struct sd_common *common = &tenants->common[i];
        if (common->token_count <= len || common->token_count > token_count) continue;
        if (memcmp(common->tokens, tokens, common->token_count * sizeof *tokens) != 0) continue;
        if (same_marks(common, marks, mark_count)) len = common->token_count;
    }
    return len;
}

uint32_t sd_tenant_mark(const char *name, size_t name_bytes, uint32_t at, const sc_mark *marks,
    uint32_t mark_count, sc_mark *marks_out)
{
    static const char label[] = "statecache tenant";
    uint8_t text[sizeof label + SD_NAME_BYTES + 2 + sizeof marks->id], digest[32];
    size_t count = 0;
    uint32_t before = 0;
    while (before < mark_count && marks[before].at < at) before++;
    bool meets = before < mark_count && marks[before].at == at;
    memcpy(text, label, sizeof label);
    count = sizeof label;
    text[count++] = (uint8_t)name_bytes;
    memcpy(text + count, name, name_bytes);
    count += name_bytes;
    text[count++] = meets;
    if (meets) {
        memcpy(text + count, marks[before].id, sizeof marks->id);
        count += sizeof marks->id;
    }
    /* SHA-256 of a few bytes fails only where the library itself is broken. */
    if (EVP_Digest(text, count, digest, NULL, EVP_sha256(), NULL) != 1) abort();
    if (before > 0) memcpy(marks_out, marks, before * sizeof *marks);
    marks_out[before].at = at;
    memcpy(marks_out[before].id, digest, sizeof marks_out->id);
    uint32_t rest = before + meets;
    if (rest < mark_count) {
        memcpy(marks_out + before + 1, marks + rest, (mark_count - rest) * sizeof *marks);
    }
    return mark_count + !meets;
}

static struct sd_common *common_find(struct sd_tenants *tenants, const int32_t *tokens,
    uint32_t token_count, const sc_mark *marks, uint32_t mark_count)
{
    for (uint32_t i = 0; i < tenants->common_count; i++) {
        struct sd_common *common = &tenants->common[i];
        if (common->token_count == token_count &&
            memcmp(common->tokens, tokens, token_count * sizeof *tokens) == 0 &&
            same_marks(common, marks, mark_count)) {
            return common;
        }
    }
    return NULL;
}

sc_status sd_common_add(struct sd_tenants *tenants, const int32_t *tokens, uint32_t token_count,
    const sc_mark *marks, uint32_t mark_count)
{
    if (common_find(tenants, tokens, token_count, marks, mark_count)) return SC_OK;
    if (tenants->common_count >= tenants->common_max ||
        tenants->common_tokens + token_count > tenants->common_tokens_max) {
        return SC_FAULT(SC_ERR_AGAIN, "%u common prompts of %llu tokens are there, the limit",
            tenants->common_count, (unsigned long long)tenants->common_tokens);
    }
    struct sd_common common = {.tokens = malloc(token_count * sizeof *tokens),
        .marks = malloc((mark_count + 1) * sizeof *marks), .token_count = token_count,
        .mark_count = mark_count};
    struct sd_common *grown = realloc(tenants->common,
        (tenants->common_count + 1) * sizeof *tenants->common);
    if (grown) tenants->common = grown;
    if (!common.tokens || !common.marks || !grown) {
        common_free(&common);
        return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
    }
    memcpy(common.tokens, tokens, token_count * sizeof *tokens);
    if (mark_count > 0) memcpy(common.marks, marks, mark_count * sizeof *marks);
    tenants->common[tenants->common_count++] = common;
    tenants->common_tokens += token_count;
    return SC_OK;
}

sc_status sd_common_drop(struct sd_tenants *tenants, const int32_t *tokens, uint32_t token_count,
    const sc_mark *marks, uint32_t mark_count)
{
    struct sd_common *common = common_find(tenants, tokens, token_count, marks, mark_count);
    if (!common) return SC_FAULT(SC_ERR_NOT_FOUND, "it is no common prompt");
    tenants->common_tokens -= common->token_count;
    common_free(common);
    *common = tenants->common[--tenants->common_count];
    return SC_OK;
}

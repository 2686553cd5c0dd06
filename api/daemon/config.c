/* SPDX-License-Identifier: Apache-2.0 */
/* Reads, checks and prints the configuration of config.h. */
#include "config.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "config_parts.h"

enum kind { TEXT, PATH, NUMBER, SIZE, UIDS, GROUP, PART };

struct name {
    const char *name;
    enum kind kind;
    bool live;              /* a reload can change it */
    size_t offset;
    uint64_t min, max;      /* numbers */
    const char *words;      /* TEXT: what is possible, each between blanks; NULL: anything */
};

#define AT(member) offsetof(struct sd_config, member)
#define GIB (UINT64_C(1) << 30)
static const struct name names[] = {
    {"socket", PATH, false, AT(socket), 0, 107, NULL},
    {"listen", PATH, false, AT(listen), 0, 0, NULL},
    {"token_file", PATH, true, AT(token_file), 0, 0, NULL},
    {"metrics_listen", PATH, false, AT(metrics_listen), 0, 0, NULL},
    {"metrics_tenants", NUMBER, false, AT(metrics_tenants), 0, 256, NULL},
    {"allow_uid", UIDS, true, AT(uids), 0, 0, NULL},
    {"model", TEXT, false, AT(model), 0, 0, NULL},
    {"revision", PATH, false, AT(revision), 0, 0, NULL},
    {"dtype", TEXT, false, AT(dtype), 0, 0, " f32 bf16 "},
    {"group", GROUP, false, AT(groups), 0, 0, NULL},
    {"part", PART, false, AT(parts), 0, 0, NULL},
    {"tp_rank", NUMBER, false, AT(tp_rank), 0, 65535, NULL},
    {"tp_size", NUMBER, false, AT(tp_size), 1, 65536, NULL},
    {"layer_first", NUMBER, false, AT(layer_first), 0, 1 << 20, NULL},
    {"layer_count", NUMBER, false, AT(layer_count), 0, 1 << 20, NULL},
    {"slots", NUMBER, false, AT(slots), 4, 1 << 20, NULL},
    {"page_tokens", NUMBER, false, AT(page_tokens), 1, 65536, NULL},
    {"tokens", NUMBER, false, AT(tokens), 0, UINT64_C(1) << 40, NULL},
    {"policy", TEXT, false, AT(policy), 0, 0, " gittins lru lru-path lru-sup fixed marconi gdsf "},
    {"host_bytes", SIZE, false, AT(host_bytes), 0, UINT64_C(1) << 50, NULL},
    {"disk_folder", PATH, false, AT(disk_folder), 0, 0, NULL},
    {"disk_bytes", SIZE, false, AT(disk_bytes), 0, UINT64_C(1) << 50, NULL},
    {"disk_day_bytes", SIZE, false, AT(disk_day_bytes), 0, UINT64_C(1) << 60, NULL},
    {"disk_file_bytes", SIZE, false, AT(disk_file_bytes), 0, UINT64_C(1) << 40, NULL},
    {"disk_write", TEXT, false, AT(disk_write), 0, 0, " back through selective "},
    {"disk_zstd_level", NUMBER, false, AT(disk_zstd_level), 0, 19, NULL},
    {"numerics", NUMBER, false, AT(numerics), 0, UINT32_MAX, NULL},
    {"connections", NUMBER, true, AT(connections), 1, 1 << 16, NULL},
    {"frame_bytes", SIZE, true, AT(frame_bytes), 4096, GIB, NULL},
    {"queue", NUMBER, true, AT(queue), 1, 4096, NULL},
    {"output_bytes", SIZE, true, AT(output_bytes), 4096, GIB, NULL},
    {"key_tokens", NUMBER, false, AT(key_tokens), 1, 1 << 24, NULL},
    {"leases", NUMBER, false, AT(leases), 1, 1 << 20, NULL},
    {"client_leases", NUMBER, true, AT(client_leases), 1, 1 << 20, NULL},
    {"client_writes", NUMBER, true, AT(client_writes), 0, 1 << 16, NULL},
    {"pins", NUMBER, true, AT(pins), 0, 1 << 20, NULL},
    {"namespaces", NUMBER, false, AT(namespaces), 1, 1 << 16, NULL},
    {"tenant_bytes", SIZE, true, AT(tenant_bytes), 0, UINT64_C(1) << 50, NULL},
    {"tenant_leases", NUMBER, true, AT(tenant_leases), 0, 1 << 20, NULL},
    {"hello_ms", NUMBER, true, AT(hello_ms), 10, 3600000, NULL},
    {"frame_ms", NUMBER, true, AT(frame_ms), 10, 3600000, NULL},
    {"common_prompts", NUMBER, true, AT(common_prompts), 0, 4096, NULL},
    {"common_tokens", NUMBER, true, AT(common_tokens), 0, 1 << 28, NULL},
    {"events_publish", PATH, false, AT(events_publish), 0, 0, NULL},
    {"events_replay", PATH, false, AT(events_replay), 0, 0, NULL},
    {"events_topic", PATH, false, AT(events_topic), 0, 0, NULL},
    {"events_form", TEXT, false, AT(events_form), 0, 0, " map array "},
    {"events_replay_form", TEXT, false, AT(events_replay_form), 0, 0, " topic plain "},
    {"events_media", PATH, false, AT(events_media), 0, 0, NULL},
    {"events_block", NUMBER, false, AT(events_block), 1, 65536, NULL},
    {"events_group", NUMBER, false, AT(events_group), 0, 65535, NULL},
    {"events_rank", NUMBER, false, AT(events_rank), 0, 65535, NULL},
    {"events_buffer", NUMBER, false, AT(events_buffer), 1, 1 << 20, NULL},
    {"events_buffer_bytes", SIZE, false, AT(events_buffer_bytes), 1 << 16, GIB << 6, NULL},
    {"events_queue", NUMBER, false, AT(events_queue), 1, 1 << 20, NULL},
    {"events_bytes", SIZE, false, AT(events_bytes), 4096, GIB << 4, NULL},
    {"log", TEXT, true, AT(log), 0, 0, " debug info warn error "},
};
enum { NAME_COUNT = sizeof names / sizeof names[0] };
static_assert((int)NAME_COUNT <= (int)SD_NAMES_MAX, "sd_config.lines has a place for each");

/* Where a value stands, for errors. */
struct place {
    const char *file;
    uint32_t line;      /* 0: the command line */
    FILE *errors;
};

static bool bad(const struct place *place, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static bool bad(const struct place *place, const char *fmt, ...)
{
    va_list args;
    if (place->line > 0) {
        (void)fprintf(place->errors, "%s:%u: ", place->file, place->line);
    } else {
        (void)fprintf(place->errors, "%s: ", place->file);
    }
    va_start(args, fmt);
    (void)vfprintf(place->errors, fmt, args);
    va_end(args);
    (void)fputc('\n', place->errors);
    return false;
}

void sd_config_init(struct sd_config *config)
{
    *config = (struct sd_config){.socket = "statecached.sock", .revision = "preset",
        .dtype = "f32", .tp_size = 1, .metrics_tenants = 64, .slots = 64,
        .page_tokens = 1, .policy = "gittins",
        .disk_write = "through", .numerics = 1, .connections = 1024, .frame_bytes = 16 << 20,
        .queue = 64, .output_bytes = 64 << 20, .key_tokens = 1 << 20, .leases = 1024,
        .client_leases = 64, .client_writes = 4, .pins = 64, .namespaces = 256, .hello_ms = 5000,
        .frame_ms = 30000, .common_prompts = 64, .common_tokens = 1 << 20,
        .events_form = "map", .events_replay_form = "topic", .events_media = "GPU CPU STORAGE",
        .events_block = 16, .events_group = 1, .events_buffer = 10000,
        .events_buffer_bytes = 64 << 20, .events_queue = 1000, .events_bytes = 16 << 20,
        .log = "info"};
}

/* ---- values ---- */

/* Digits, and for sizes a unit of KiB, MiB, GiB or TiB. */
static bool number(const char *text, bool size, uint64_t *out)
{
    static const struct { const char *name; unsigned shift; } units[] = {
        {"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    char *end = NULL;
    errno = 0;
    if (!isdigit((unsigned char)text[0])) return false;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0) return false;
    while (*end == ' ') end++;
    for (size_t i = 0; i < (size ? sizeof units / sizeof units[0] : 1); i++) {
        if (strcmp(end, units[i].name) != 0) continue;
        if (value > UINT64_MAX >> units[i].shift) return false;
        *out = (uint64_t)value << units[i].shift;
        return true;
    }
    return false;
}

static bool set_text(struct sd_config *config, const struct name *name, const char *value,
    const struct place *place)
{
    size_t room = name->kind == PATH ? SD_PATH_BYTES : SD_NAME_BYTES;
    char padded[SD_NAME_BYTES + 3];
    if (name->max > 0 && name->max < room) room = (size_t)name->max + 1;
    if (strlen(value) >= room) {
        return bad(place, "%s: at most %zu characters", name->name, room - 1);
    }
    if (name->words) {
        (void)snprintf(padded, sizeof padded, " %.63s ", value);
        if (!strstr(name->words, padded) || strchr(value, ' ')) {
            return bad(place, "%s: '%s' is none of%s", name->name, value, name->words);
        }
    }
    memcpy((char *)config + name->offset, value, strlen(value) + 1);
    return true;
}

static bool set_number(struct sd_config *config, const struct name *name, const char *value,
    const struct place *place)
{
    uint64_t result = 0;
    if (!number(value, name->kind == SIZE, &result) || result < name->min ||
        result > name->max) {
        return bad(place, "%s: '%s' is no %s from %llu to %llu", name->name, value,
            name->kind == SIZE ? "size (bytes, KiB, MiB, GiB, TiB)" : "number",
            (unsigned long long)name->min, (unsigned long long)name->max);
    }
    memcpy((char *)config + name->offset, &result, sizeof result);
    return true;
}

static bool set_uid(struct sd_config *config, const char *value, const struct place *place)
{
    uint64_t uid = 0;
    if (!number(value, false, &uid) || uid >= UINT32_MAX) {
        return bad(place, "allow_uid: '%s' is no user id", value);
    }
    if (config->uid_count == SD_UIDS_MAX) {
        return bad(place, "allow_uid: at most %d of them", SD_UIDS_MAX);
    }
    config->uids[config->uid_count++] = (uint32_t)uid;
    return true;
}

static bool set(struct sd_config *config, const char *key, const char *value,
    const struct place *place)
{
    char text[160] = "";
    for (uint32_t i = 0; i < NAME_COUNT; i++) {
        const struct name *name = &names[i];
        if (strcmp(name->name, key) != 0) continue;
        bool many = name->kind == UIDS || name->kind == GROUP || name->kind == PART;
        if (place->line > 0 && config->lines[i] > 0 && !many) {
            return bad(place, "%s: it is in line %u already", key, config->lines[i]);
        }
        config->lines[i] = place->line;
        switch (name->kind) {
        case TEXT: case PATH: return set_text(config, name, value, place);
        case NUMBER: case SIZE: return set_number(config, name, value, place);
        case UIDS: return set_uid(config, value, place);
        case GROUP:
            return sd_config_group(config, value, text, sizeof text) ||
                bad(place, "group: %s", text);
        case PART:
            return sd_config_part(config, value, text, sizeof text) || bad(place, "part: %s", text);
        }
    }
    return bad(place, "there is no '%s' (statecached --print-config lists all names)", key);
}

/* ---- lines ---- */

static char *trim(char *text)
{
    while (isspace((unsigned char)*text)) text++;
    size_t count = strlen(text);
    while (count > 0 && isspace((unsigned char)text[count - 1])) text[--count] = '\0';
    return text;
}

/* [tenant NAME] */
static bool section(struct sd_config *config, char *line, const struct place *place)
{
    size_t count = strlen(line);
    if (line[count - 1] != ']') return bad(place, "a section ends in ]");
    line[count - 1] = '\0';
    char *word = trim(line + 1);
    if (strncmp(word, "tenant ", 7) != 0) {
        return bad(place, "there is no section '%s': [tenant NAME] is what there is", word);
    }
    char *name = trim(word + 7);
    if (name[0] == '\0' || strlen(name) >= SD_NAME_BYTES) {
        return bad(place, "a tenant's name has 1 to %d characters", SD_NAME_BYTES - 1);
    }
    if (sd_config_tenant(config, name, strlen(name))) {
        return bad(place, "tenant '%s' is there already", name);
    }
    if (config->tenant_count == SD_TENANTS_MAX) {
        return bad(place, "at most %d tenants", SD_TENANTS_MAX);
    }
    struct sd_tenant_config *tenant = &config->tenants[config->tenant_count++];
    *tenant = (struct sd_tenant_config){.line = place->line};
    memcpy(tenant->name, name, strlen(name) + 1);
    return true;
}

static bool set_in_tenant(struct sd_tenant_config *tenant, const char *key, const char *value,
    const struct place *place)
{
    if (strcmp(key, "bytes") == 0) {
        return number(value, true, &tenant->bytes) || bad(place, "bytes: '%s' is no size", value);
    }
    if (strcmp(key, "token_file") == 0) {
        if (strlen(value) >= SD_PATH_BYTES) return bad(place, "token_file: the path is too long");
        memcpy(tenant->token_file, value, strlen(value) + 1);
        return true;
    }
    return bad(place, "a tenant has no '%s': bytes and token_file are what there is", key);
}

static bool read_line(struct sd_config *config, char *text, bool *in_tenant,
    const struct place *place)
{
    char *line = trim(text);
    if (*line == '\0' || *line == '#') return true;
    if (*line == '[') {
        *in_tenant = section(config, line, place);
        return *in_tenant;
    }
    char *equals = strchr(line, '=');
    if (!equals) return bad(place, "name = value is expected");
    *equals = '\0';
    const char *key = trim(line), *value = trim(equals + 1);
    if (!*in_tenant) return set(config, key, value, place);
    return set_in_tenant(&config->tenants[config->tenant_count - 1], key, value, place);
}

bool sd_config_read(struct sd_config *config, const char *file, FILE *errors)
{
    struct place place = {file, 0, errors};
    char line[1024];
    bool good = true, in_tenant = false;
    if (strlen(file) >= sizeof config->file) return bad(&place, "the path is too long");
    memcpy(config->file, file, strlen(file) + 1);
    FILE *in = fopen(file, "re");
    if (!in) return bad(&place, "%s", strerror(errno));
    while (fgets(line, sizeof line, in)) {
        place.line++;
        if (!strchr(line, '\n') && !feof(in)) {
            good = bad(&place, "the line is longer than %zu characters", sizeof line - 2);
            break;
        }
        if (!read_line(config, line, &in_tenant, &place)) good = false;
    }
    if (ferror(in)) good = bad(&place, "%s", strerror(errno));
    (void)fclose(in);
    return good;
}

static bool override(struct sd_config *config, const char *text, FILE *errors)
{
    const struct place place = {"--set", 0, errors};
    char copy[SD_PATH_BYTES + SD_NAME_BYTES];
    if (strlen(text) >= sizeof copy) return bad(&place, "the text is too long");
    memcpy(copy, text, strlen(text) + 1);
    char *equals = strchr(copy, '=');
    if (!equals) return bad(&place, "'%s': name=value is expected", text);
    *equals = '\0';
    return set(config, trim(copy), trim(equals + 1), &place);
}

bool sd_config_overrides(struct sd_config *config, const struct sd_config *from, FILE *errors)
{
    bool good = true;
    memmove(config->overrides, from->overrides, sizeof config->overrides);
    config->override_count = from->override_count;
    for (uint32_t i = 0; i < config->override_count; i++) {
        if (!override(config, config->overrides[i], errors)) good = false;
    }
    return good;
}

/* ---- what fits together ---- */

static uint32_t line_of(const struct sd_config *config, const char *key)
{
    for (uint32_t i = 0; i < NAME_COUNT; i++) {
        if (strcmp(names[i].name, key) == 0) return config->lines[i];
    }
    return 0;
}

static bool read_token(const char *file, char *token, const struct place *place)
{
    char line[SD_TOKEN_BYTES + 3] = "";
    FILE *in = fopen(file, "re");
    if (!in) return bad(place, "token_file: %s: %s", file, strerror(errno));
    char *got = fgets(line, sizeof line, in);
    (void)fclose(in);
    const char *text = got ? trim(line) : "";
    size_t count = strlen(text);
    if (count < 16 || count > SD_TOKEN_BYTES) {
        return bad(place, "token_file: %s: a line of 16 to %d characters is expected", file,
            SD_TOKEN_BYTES);
    }
    memcpy(token, text, count + 1);
    return true;
}

static bool finish_tokens(struct sd_config *config, struct place *place)
{
    bool good = true;
    place->line = line_of(config, "token_file");
    if (config->token_file[0]) good = read_token(config->token_file, config->token, place);
    for (uint32_t i = 0; i < config->tenant_count; i++) {
        struct sd_tenant_config *tenant = &config->tenants[i];
        place->line = tenant->line;
        if (!tenant->token_file[0]) continue;
        if (!read_token(tenant->token_file, tenant->token, place)) {
            good = false;
            continue;
        }
        bool twice = strcmp(tenant->token, config->token) == 0;
        for (uint32_t j = 0; j < i; j++) {
            twice = twice || strcmp(tenant->token, config->tenants[j].token) == 0;
        }
        if (twice) good = bad(place, "tenant '%s' has the token of another", tenant->name);
    }
    return good;
}

static bool finish_events(const struct sd_config *config, struct place *place)
{
    const char *at = config->events_media;
    uint32_t words = 0;
    while (*(at += strspn(at, " ")) != '\0') {
        size_t count = strcspn(at, " ");
        words += count < SD_NAME_BYTES;
        at += count;
    }
    place->line = line_of(config, "events_media");
    if (words != 3) {
        return bad(place, "events_media: three names are expected, of slots, host memory and disk");
    }
    place->line = line_of(config, "events_replay");
    if (config->events_replay[0] && !config->events_publish[0]) {
        return bad(place, "events_replay: there is nothing to replay without events_publish");
    }
    return true;
}

bool sd_config_finish(struct sd_config *config, FILE *errors)
{
    struct place place = {config->file[0] ? config->file : "statecached", 0, errors};
    sc_schema *schema = NULL;
    bool good = finish_tokens(config, &place);
    bool any_token = config->token[0] != '\0';
    for (uint32_t i = 0; i < config->tenant_count; i++) {
        any_token = any_token || config->tenants[i].token[0];
    }
    place.line = line_of(config, "listen");
    if (config->listen[0] && !any_token) {
        good = bad(&place, "listen: TCP needs a token_file");
    }
    if (!config->listen[0] && !config->socket[0]) {
        good = bad(&place, "neither socket nor listen is given");
    }
    place.line = line_of(config, config->disk_folder[0] ? "disk_folder" : "disk_bytes");
    if ((config->disk_bytes > 0) != (config->disk_folder[0] != '\0')) {
        good = bad(&place, "disk_folder and disk_bytes go together");
    }
    good = finish_events(config, &place) && good;
    place.line = line_of(config, "tp_rank");
    if (config->tp_rank >= config->tp_size) good = bad(&place, "tp_rank is not below tp_size");
    place.line = line_of(config, "model");
    if (!config->model[0]) {
        good = bad(&place, "model: the name of a model is needed");
    } else if (sd_config_schema(config, &schema) != SC_OK) {
        good = bad(&place, "model: %s", sc_last_error()->text);
    }
    sc_schema_release(schema);
    return good;
}

/* ---- reload and print ---- */

static size_t bytes_of(const struct name *name)
{
    switch (name->kind) {
    case TEXT: return SD_NAME_BYTES;
    case PATH: return SD_PATH_BYTES;
    case NUMBER: case SIZE: return sizeof(uint64_t);
    case UIDS: return sizeof(uint32_t) * SD_UIDS_MAX;
    case GROUP: return sizeof(sc_group) * SD_GROUPS_MAX;
    case PART: return sizeof(sc_part) * SD_PARTS_MAX;
    }
    return 0;
}

const char *sd_config_fixed_change(const struct sd_config *now, const struct sd_config *next)
{
    for (uint32_t i = 0; i < NAME_COUNT; i++) {
        const char *a = (const char *)now + names[i].offset;
        const char *b = (const char *)next + names[i].offset;
        bool text = names[i].kind == TEXT || names[i].kind == PATH;
        if (names[i].live) continue;
        if (text ? strcmp(a, b) != 0 : memcmp(a, b, bytes_of(&names[i])) != 0) return names[i].name;
    }
    return NULL;
}

void sd_config_print(const struct sd_config *config, FILE *out)
{
    for (uint32_t i = 0; i < NAME_COUNT; i++) {
        const char *at = (const char *)config + names[i].offset;
        uint64_t value = 0;
        switch (names[i].kind) {
        case TEXT: case PATH:
            (void)fprintf(out, "%s%s = %s\n", *at ? "" : "# ", names[i].name, at);
            break;
        case NUMBER: case SIZE:
            memcpy(&value, at, sizeof value);
            (void)fprintf(out, "%s = %llu\n", names[i].name, (unsigned long long)value);
            break;
        case UIDS:
            for (uint32_t j = 0; j < config->uid_count; j++) {
                (void)fprintf(out, "allow_uid = %u\n", config->uids[j]);
            }
            if (config->uid_count == 0) (void)fputs("# allow_uid = \n", out);
            break;
        case GROUP: sd_config_print_groups(config, out); break;
        case PART: sd_config_print_parts(config, out); break;
        }
    }
    for (uint32_t i = 0; i < config->tenant_count; i++) {
        const struct sd_tenant_config *tenant = &config->tenants[i];
        (void)fprintf(out, "\n[tenant %s]\nbytes = %llu\n%stoken_file = %s\n", tenant->name,
            (unsigned long long)tenant->bytes, tenant->token_file[0] ? "" : "# ",
            tenant->token_file);
    }
}

const struct sd_tenant_config *sd_config_tenant(const struct sd_config *config, const char *name,
    size_t name_bytes)
{
    for (uint32_t i = 0; i < config->tenant_count; i++) {
        const char *other = config->tenants[i].name;
        if (strlen(other) == name_bytes && memcmp(other, name, name_bytes) == 0) {
            return &config->tenants[i];
        }
    }
    return NULL;
}

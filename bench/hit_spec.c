/* SPDX-License-Identifier: Apache-2.0 */
/* Names of policies on the command line: NAME[:ALPHA][+OPTION:VALUE...]. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hit.h"

static int number(const char *text, double low, double high, double *value)
{
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    return errno == 0 && end != text && *end == 0 && *value >= low && *value <= high ? 0 : -1;
}

static int option(struct hit_spec *spec, const char *name, const char *text)
{
    double value;
    if (!text || number(text, 0, 1e9, &value) != 0)
        return -1;
    if (!strcmp(name, "hint") && value <= 1) {
        spec->hint = value;
    } else if (!strcmp(name, "seed")) {
        spec->hint_seed = (uint64_t)value;
    } else if (!strcmp(name, "interval") && value >= 1) {
        spec->interval = (uint32_t)value;
    } else if (!strcmp(name, "fit") && value >= 1) {
        spec->fit_every = (uint32_t)value;
    } else if (!strcmp(name, "samples") && value >= 64) {
        spec->sample_count = (uint32_t)value;
    } else {
        return -1;
    }
    return 0;
}

static int base_name(struct hit_spec *spec, const char *name, const char *value)
{
    static const struct { const char *name; enum hit_bound bound; } bounds[] = {
        {"belady", HIT_BELADY}, {"ub", HIT_UB}, {"ub-kv", HIT_UB_KV}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        if (!strcmp(name, bounds[i].name))
            spec->bound = bounds[i].bound;
    }
    snprintf(spec->policy, sizeof spec->policy, "%s", name);
    if (spec->bound != HIT_POLICY)
        return value ? -1 : 0;
    if (!strcmp(name, "kv-lru")) {
        snprintf(spec->policy, sizeof spec->policy, "fixed");
        spec->kv_only = true;
        return value ? -1 : 0;
    }
    if (!strcmp(name, "marconi")) {
        spec->tune = value == NULL;
        return value ? number(value, 0, 1e6, &spec->alpha) : 0;
    }
    struct sc_policy_options options = {0};
    return value || sc_policy_named(name, &options) != SC_OK ? -1 : 0;
}

int hit_spec_parse(struct hit_spec *spec, const char *text, char *error, size_t error_bytes)
{
    *spec = (struct hit_spec){.interval = 1, .hint_seed = 1};
    snprintf(spec->name, sizeof spec->name, "%s", text);
    char copy[48], *rest = copy;
    bool good = strlen(text) < sizeof copy;
    snprintf(copy, sizeof copy, "%s", text);
    for (bool first = true; good && rest; first = false) {
        char *part = strsep(&rest, "+"), *value = strchr(part, ':');
        if (value)
            *value++ = 0;
        good = first ? base_name(spec, part, value) == 0 : option(spec, part, value) == 0;
    }
    if (good && spec->hint > 0 && strcmp(spec->policy, "gittins") != 0)
        good = false;
    if (good)
        return 0;
    int at = snprintf(error, error_bytes,
        "there is no policy '%s'; there are kv-lru belady ub ub-kv",
        text);
    for (uint32_t i = 0; sc_policy_name(i) && at > 0 && (size_t)at < error_bytes; i++)
        at += snprintf(error + at, error_bytes - (size_t)at, " %s", sc_policy_name(i));
    return -1;
}

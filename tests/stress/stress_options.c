/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "stress.h"

static void usage(FILE *out)
{
    (void)fputs(
        "usage: statecache-stress [OPTION...]\n\n"
        "Threads play schedulers on one cache after another, with small pools, and check that no\n"
        "state, no KV page and no count is ever wrong. Exit 0: nothing found; 1: a finding.\n\n"
        "  --seconds N     how long (default 10; with --worlds: no limit)\n"
        "  --worlds N      how many caches (default: until time is up)\n"
        "  --ops N         operations on each cache at most (default 200000; --virtual: 20000)\n"
        "  --threads N     schedulers, 1 to 16 (default 4)\n"
        "  --seed N        (default 1) with one thread, or --virtual, it gives the same run again\n"
        "  --virtual       one thread plays all schedulers, in an order that the seed gives\n"
        "  --tiers         every cache has a host or a disk tier below (default: one in four)\n"
        "  --world N       the world of this number alone, as a finding names it\n"
        "  --script FILE   runs a list of operations instead, as a finding left it\n"
        "  --out FILE      where a finding is kept (default stress-finding.script)\n"
        "  --shrink N      runs that making it short may take (default 2000; 0: keep it long)\n"
        "  --trace         prints every operation    --quiet   no live line\n"
        "  --daemon        processes share states through a statecached of their own, are killed,\n"
        "                  and it is restarted; --seconds, --worlds (services), --seed, --world\n"
        "                  --threads (processes; default: by seed) go with it\n"
        "  --socket PATH   with --daemon: one that is running; it is not restarted\n"
        "  --statecached PROGRAM   with --daemon: which one to start\n"
        "  --canary        writes a wrong bit into a state: must end with a finding\n",
        out);
}

static bool number(const char *text, uint64_t max, uint64_t *value_out)
{
    char *end = NULL;
    if (!text || *text < '0' || *text > '9') return false;
    unsigned long long value = strtoull(text, &end, 10);
    *value_out = value;
    return !*end && value <= max;
}

static bool parse_number(const char *name, const char *text, struct stress_options *o)
{
    uint64_t value = 0;
    if (!number(text, UINT64_MAX, &value)) return false;
    if (strcmp(name, "--seconds") == 0) {
        o->seconds = value;
    } else if (strcmp(name, "--worlds") == 0) {
        o->worlds = value;
    } else if (strcmp(name, "--ops") == 0) {
        o->world_ops = value;
    } else if (strcmp(name, "--seed") == 0) {
        o->seed = value;
    } else if (strcmp(name, "--world") == 0) {
        o->only_world = value;
    } else if (strcmp(name, "--shrink") == 0 && value <= UINT32_MAX) {
        o->shrink = (uint32_t)value;
    } else if (strcmp(name, "--threads") == 0 && value >= 1 && value <= H_SCHEDS_MAX) {
        o->threads = (uint32_t)value;
        o->threads_given = true;
    } else {
        return false;
    }
    return true;
}

static bool parse_word(const char *name, struct stress_options *o)
{
    bool *flag = strcmp(name, "--virtual") == 0 ? &o->single
        : strcmp(name, "--tiers") == 0          ? &o->tiers
        : strcmp(name, "--daemon") == 0         ? &o->daemon
        : strcmp(name, "--canary") == 0         ? &o->canary
        : strcmp(name, "--trace") == 0          ? &o->trace
        : strcmp(name, "--quiet") == 0          ? &o->quiet
                                                : NULL;
    if (flag) *flag = true;
    return flag != NULL;
}

int stress_options_parse(int argc, char **argv, struct stress_options *o)
{
    *o = (struct stress_options){.threads = 4, .seed = 1, .shrink = 2000,
        .out = "stress-finding.script"};
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--help") == 0) {
            usage(stdout);
            return 0;
        }
        if (parse_word(argv[i], o)) continue;
        if (next && strcmp(argv[i], "--script") == 0) {
            o->script = next;
        } else if (next && strcmp(argv[i], "--socket") == 0) {
            o->socket = next;
        } else if (next && strcmp(argv[i], "--statecached") == 0) {
            o->statecached = next;
        } else if (next && strcmp(argv[i], "--out") == 0) {
            o->out = next;
        } else if (!parse_number(argv[i], next, o)) {
            (void)fprintf(stderr, "statecache-stress: %s %s: not an option, or not its value\n",
                argv[i], next ? next : "");
            usage(stderr);
            return 2;
        }
        i++;
    }
    if (!o->daemon && (o->socket || o->statecached)) {
        (void)fprintf(stderr, "statecache-stress: --socket and --statecached go with --daemon\n");
        return 2;
    }
    if (o->daemon && o->threads_given && o->threads > 8) {
        (void)fprintf(stderr, "statecache-stress: --daemon plays with at most 8 processes\n");
        return 2;
    }
    if (o->threads == 1) o->single = true;
    if (o->seconds == 0 && o->worlds == 0) o->seconds = 10;
    if (o->only_world) o->worlds = 1;
    if (o->world_ops == 0) o->world_ops = o->single ? 20000 : 200000;
    return -1;
}

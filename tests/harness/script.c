/* SPDX-License-Identifier: Apache-2.0 */
/* A script is a list of operations as text: what a finding is kept as.
 *
 *   statecache-script 1
 *   # step.c:210: ...            what it found
 *   world 17                     seed that sizes and weights were drawn from; for information
 *   set page 4                   a size; those that are not set keep the seed's
 *   op plan 1 0 3735928559       name, scheduler, allocation that fails (0: none), seed */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

bool h_script_write(const char *path, const struct h_log *log, const char *finding)
{
    FILE *file = fopen(path, "w");
    if (!file) return false;
    (void)fprintf(file, "statecache-script 1\n# %s\nworld %" PRIu64 "\n", finding, log->world);
#define H_KNOB_WRITE(name) (void)fprintf(file, "set " #name " %" PRIu32 "\n", log->cfg.name);
    H_KNOB_LIST(H_KNOB_WRITE)
#undef H_KNOB_WRITE
    for (uint64_t i = 0; i < log->count && i < log->cap; i++) {
        const struct h_op *op = &log->ops[i];
        (void)fprintf(file, "op %s %u %u %" PRIu32 "\n", h_op_names[op->code], op->sched,
            op->fault, op->seed);
    }
    bool good = !ferror(file);
    return fclose(file) == 0 && good;
}

static bool parse_op(const char *name, uint32_t sched, uint32_t fault, uint32_t seed,
    struct h_op *op)
{
    for (uint32_t code = 0; code < H_OP_COUNT; code++) {
        if (strcmp(name, h_op_names[code]) != 0) continue;
        *op = (struct h_op){(uint8_t)code, (uint8_t)sched, (uint16_t)fault, seed};
        return sched < H_SCHEDS_MAX && fault <= UINT16_MAX;
    }
    return false;
}

/* One line; false: it is none of a script. */
static bool parse_line(const char *line, struct h_log *log)
{
    char name[32];
    uint32_t a, b, c;
    if (line[0] == '#' || line[0] == '\n') return true;
    if (sscanf(line, "world %" SCNu64, &log->world) == 1) {
        struct h_swarm swarm;
        h_config_draw(log->world, &log->cfg, &swarm);
        /* Only where they are set. */
        log->cfg.tier_host = log->cfg.tier_disk = 0;
        log->cfg.prompt_pool = H_PROMPTS_MAX;
        return true;
    }
    if (sscanf(line, "set %31s %" SCNu32, name, &a) == 2) {
        uint32_t *knob = h_config_knob(&log->cfg, name);
        if (knob) *knob = a;
        return knob != NULL;
    }
    if (sscanf(line, "op %31s %" SCNu32 " %" SCNu32 " %" SCNu32, name, &a, &b, &c) == 4) {
        return log->count < log->cap && parse_op(name, a, b, c, &log->ops[log->count++]);
    }
    return false;
}

struct h_log *h_script_read(const char *path)
{
    char line[256];
    FILE *file = fopen(path, "r");
    if (!file) {
        (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return NULL;
    }
    struct h_log *log = h_log_create(1u << 20);
    uint32_t number = 1;
    bool good = fgets(line, sizeof line, file) && strcmp(line, "statecache-script 1\n") == 0;
    while (good && fgets(line, sizeof line, file)) {
        number++;
        good = parse_line(line, log);
    }
    (void)fclose(file);
    if (good && h_config_good(&log->cfg)) return log;
    (void)fprintf(stderr, "%s:%u: not a line of a script, or sizes that do not go together\n", path,
        number);
    h_log_destroy(log);
    return NULL;
}

void h_script_run(struct h_world *w, const struct h_log *script)
{
    w->cfg = script->cfg;
    h_world_create(w);
    for (uint64_t i = 0; i < script->count && i < script->cap; i++) h_op_run(w, script->ops[i]);
    h_world_destroy(w);
}

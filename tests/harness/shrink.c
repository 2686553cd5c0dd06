/* SPDX-License-Identifier: Apache-2.0 */
/* A failing list of operations made short: delta debugging (Zeller's ddmin, complements only).
 * Every try runs in a child, so that an assertion or a wild access of the library is a result like
 * any other. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

struct h_log *h_log_create(uint64_t cap)
{
    size_t bytes = sizeof(struct h_log) + cap * sizeof(struct h_op);
    struct h_log *log = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
        0);
    if (log == MAP_FAILED) {
        (void)fprintf(stderr, "no memory for a log of %llu operations\n", (unsigned long long)cap);
        exit(2);
    }
    log->cap = cap;
    return log;
}

void h_log_destroy(struct h_log *log)
{
    if (log) (void)munmap(log, sizeof *log + log->cap * sizeof(struct h_op));
}

static void child_run(void (*run)(void *ctx, const struct h_log *script), void *ctx,
    const struct h_log *script, const int *ends)
{
    (void)dup2(ends[1], STDERR_FILENO);
    (void)close(ends[0]);
    if (!freopen("/dev/null", "w", stdout)) _exit(3);
    (void)alarm(60); /* a loop is a finding, too */
    run(ctx, script);
    _exit(0);
}

bool h_try(void (*run)(void *ctx, const struct h_log *script), void *ctx,
    const struct h_log *script, char *said, size_t said_bytes)
{
    int ends[2], status = 0;
    (void)fflush(NULL);
    if (pipe(ends) != 0) return false;
    pid_t child = fork();
    if (child == 0) child_run(run, ctx, script, ends);
    (void)close(ends[1]);
    size_t bytes = 0;
    ssize_t got = 0;
    while (child > 0 && bytes + 1 < said_bytes &&
        (got = read(ends[0], said + bytes, said_bytes - 1 - bytes)) > 0) {
        bytes += (size_t)got;
    }
    said[bytes] = 0;
    (void)close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) != child) return false;
    h_tiers_sweep((long)child);
    char *end = strchr(said, '\n');
    if (end) *end = 0;
    if (WIFSIGNALED(status) && bytes == 0) {
        (void)snprintf(said, said_bytes, "signal %d", WTERMSIG(status));
    }
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Up to the second colon: file and line. */
static bool same_place(const char *a, const char *b)
{
    const char *end = strchr(a, ':');
    end = end ? strchr(end + 1, ':') : NULL;
    size_t bytes = end ? (size_t)(end - a) : strlen(a);
    return strncmp(a, b, bytes) == 0;
}

uint32_t h_shrink(void (*run)(void *ctx, const struct h_log *script), void *ctx,
    struct h_log *script, const char *said, uint32_t tries)
{
    struct h_log *part = h_log_create(script->cap);
    uint64_t pieces = 2;
    uint32_t used = 0;
    char now[512];
    while (script->count > 1 && pieces <= script->count && used < tries) {
        uint64_t size = (script->count + pieces - 1) / pieces;
        bool less = false;
        for (uint64_t at = 0; at < script->count && used < tries;) {
            uint64_t end = at + size < script->count ? at + size : script->count;
            part->world = script->world;
            part->cfg = script->cfg;
            memcpy(part->ops, script->ops, at * sizeof *part->ops);
            memcpy(part->ops + at, script->ops + end, (script->count - end) * sizeof *part->ops);
            part->count = script->count - (end - at);
            used++;
            if (h_try(run, ctx, part, now, sizeof now) && same_place(said, now)) {
                memcpy(script->ops, part->ops, part->count * sizeof *part->ops);
                script->count = part->count;
                less = true; /* what followed has moved to `at` */
            } else {
                at = end;
            }
        }
        if (size == 1 && !less) break;
        if (size > 1) pieces = pieces * 2 < script->count ? pieces * 2 : script->count;
    }
    h_log_destroy(part);
    return used;
}

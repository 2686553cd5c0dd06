/* SPDX-License-Identifier: Apache-2.0 */
/* statecache-stress: plays schedulers on caches until time is up, or until something is wrong; then
 * keeps the operations that led there, runs them again in one thread and makes the list short.
 *
 *    parent                            child
 *    waits <-------- exit, signal ---- threads on a cache; the log is shared memory
 *    log -> runs it in children, fewer and fewer operations -> FILE */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sc_assert.h"
#include "stress.h"

/* The library shows its public symbols only: the two files of api/base that are compiled in need
 * one of their own. */
void sc_assert_fail(const char *expr, const char *file, int line, const char *function)
{
    (void)fprintf(stderr, "%s:%d: %s: assertion failed: %s\n", file, line, function, expr);
    abort();
}

/* Reads all that the child says on its standard error; the first line is the finding. */
static int supervise(const struct stress_options *o, struct h_log *log, char *said, size_t bytes)
{
    int ends[2], status = 0;
    (void)fflush(NULL);
    if (pipe(ends) != 0) return 2;
    pid_t child = fork();
    if (child < 0) return 2;
    if (child == 0) {
        (void)close(ends[0]);
        (void)dup2(ends[1], STDERR_FILENO);
        stress_rounds(o, log);
        (void)fflush(stdout);
        _exit(0);
    }
    (void)close(ends[1]);
    size_t at = 0;
    ssize_t got;
    while (at + 1 < bytes && (got = read(ends[0], said + at, bytes - 1 - at)) > 0) {
        at += (size_t)got;
    }
    said[at] = 0;
    (void)close(ends[0]);
    if (waitpid(child, &status, 0) != child) return 2;
    h_tiers_sweep((long)child);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    if (at == 0) (void)snprintf(said, bytes, "signal %d", WTERMSIG(status));
    return 1;
}

static void print_ops(const struct h_log *log)
{
    for (uint64_t i = 0; i < log->count; i++) {
        const struct h_op *op = &log->ops[i];
        (void)fprintf(stderr, "  op %s %u %u %u\n", h_op_names[op->code], op->sched, op->fault,
            op->seed);
    }
}

static void keep(const struct stress_options *o, struct h_log *log, const char *said)
{
    char again[4096];
    if (log->count > log->cap) {
        (void)fprintf(stderr, "the log was too short: %llu operations\n",
            (unsigned long long)log->count);
        return;
    }
    (void)fprintf(stderr, "world %llu, %llu operations\n", (unsigned long long)log->world,
        (unsigned long long)log->count);
    bool fails = h_try(stress_script, (void *)(uintptr_t)o, log, again, sizeof again);
    if (!fails) {
        (void)fprintf(stderr, "one thread does not find it: it takes a race (--threads again, or a "
            "build with a thread sanitizer); the operations are kept as they are\n");
    } else if (o->shrink > 0) {
        uint32_t tries = h_shrink(stress_script, (void *)(uintptr_t)o, log, again, o->shrink);
        (void)fprintf(stderr, "shrunk to %llu operations in %u runs: %s\n",
            (unsigned long long)log->count, tries, again);
        said = again;
        if (log->count <= 40) print_ops(log);
    }
    if (!h_script_write(o->out, log, said)) {
        (void)fprintf(stderr, "could not write %s\n", o->out);
        return;
    }
    (void)fprintf(stderr, "run it again: statecache-stress --script %s --trace\n", o->out);
}

static int run_script(const struct stress_options *o)
{
    struct h_log *script = h_script_read(o->script);
    char said[4096];
    if (!script) return 2;
    if (o->trace) { /* in this process, so that it is seen */
        stress_script((void *)(uintptr_t)o, script);
        return 0;
    }
    bool fails = h_try(stress_script, (void *)(uintptr_t)o, script, said, sizeof said);
    if (fails) (void)fprintf(stderr, "%s\n", said);
    (void)printf("%llu operations: %s\n", (unsigned long long)script->count,
        fails ? "a finding" : "nothing found");
    h_log_destroy(script);
    return fails;
}

int main(int argc, char **argv)
{
    struct stress_options options;
    char said[4096];
    int rc = stress_options_parse(argc, argv, &options);
    if (rc >= 0) return rc;
    if (options.daemon) {
#ifdef STRESS_SERVICE
        return stress_service(&options);
#else
        (void)fprintf(stderr, "statecache-stress was built without the service\n");
        return 2;
#endif
    }
    if (options.script) return run_script(&options);
    struct h_log *log = h_log_create(options.world_ops + options.world_ops / 4 + 4096);
    rc = supervise(&options, log, said, sizeof said);
    if (rc != 0) {
        (void)fprintf(stderr, "%s\n", said);
        if (rc == 1) keep(&options, log, said);
    }
    h_log_destroy(log);
    return rc;
}

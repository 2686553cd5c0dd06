/* SPDX-License-Identifier: Apache-2.0 */
/* The parent of statecache-stress --daemon: worlds, rounds, kills, restarts, audits, the report. */
#include "stress_service.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "stress.h"

enum { STEP_US = 1000, END_MS = 60000 };

static struct sv_shared *shared;
static struct sv_host host;
static pid_t processes[SV_PROCESSES_MAX];
static uint64_t world_seed;
static pid_t parent;
static struct { uint64_t worlds, rounds, kills, restarts, crashes, audits; } played;

void sv_finding(const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)fprintf(stderr, "world %llu: %s\n", (unsigned long long)world_seed, text);
    if (parent != getpid()) _exit(1);
    exit(1);
}

static void end_all(void)
{
    for (uint32_t i = 0; i < SV_PROCESSES_MAX; i++) {
        if (processes[i] <= 0) continue;
        (void)kill(processes[i], SIGKILL);
        (void)waitpid(processes[i], NULL, 0);
        processes[i] = 0;
    }
    (void)sv_host_stop(&host, true);
    sv_host_remove(&host);
}

static void at_exit(void)
{
    if (parent == getpid()) end_all();
}

/* ---- processes ---- */

static void start_process(const struct sv_world *world, uint32_t index, uint64_t seed)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) sv_finding("no process");
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(world->engine && index == 0 ? sv_engine(world, shared, seed) :
            sv_process(world, shared, index, seed));
    }
    processes[index] = pid;
}

/* It may have been killed by us, or have come to its end. */
static void check_end(uint32_t index, int status, bool killed)
{
    bool good = killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    good = good || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
    processes[index] = 0;
    if (good) return;
    if (WIFEXITED(status)) exit(1); /* it has said why */
    sv_finding("a client process ended with signal %d", WTERMSIG(status));
}

static void kill_process(uint32_t index)
{
    int status = 0;
    (void)kill(processes[index], SIGKILL);
    (void)waitpid(processes[index], &status, 0);
    check_end(index, status, true);
    played.kills++;
}

static void look_at_processes(void)
{
    for (uint32_t i = 0; i < SV_PROCESSES_MAX; i++) {
        int status = 0;
        if (processes[i] <= 0 || waitpid(processes[i], &status, WNOHANG) != processes[i]) continue;
        check_end(i, status, false);
        sv_finding("a client process ended by itself");
    }
}

static void wait_for_end(uint32_t index)
{
    int status = 0;
    for (uint32_t i = 0; i < END_MS; i++) {
        if (waitpid(processes[index], &status, WNOHANG) == processes[index]) {
            check_end(index, status, false);
            return;
        }
        (void)usleep(STEP_US);
    }
    sv_finding("a client process hangs");
}

/* ---- rounds ---- */

static void restart(const struct sv_world *world)
{
    (void)atomic_fetch_add(&shared->epoch, 1); /* from now on connections may end */
    if (!sv_host_stop(&host, world->crash)) sv_finding("the service did not end well");
    if (!sv_host_start(&host, shared)) sv_finding("the service did not start again");
    host.sockets = 0;
    host.resident = 0;
    played.restarts += !world->crash;
    played.crashes += world->crash;
}

static void play_round(const struct sv_world *world, struct sc_prng *rng)
{
    uint64_t start = sc_clock_now_ns(), ends = start + world->round_ms * UINT64_C(1000000);
    uint64_t killed_ns = start;
    bool restarts = world->restart && !shared->outside;
    atomic_store(&shared->stop, false);
    for (uint32_t i = 0; i < world->processes; i++) start_process(world, i, sc_prng_next(rng));
    for (uint64_t now = start; now < ends; now = sc_clock_now_ns()) {
        (void)usleep(STEP_US);
        look_at_processes();
        if (world->kill_ms && now > killed_ns + world->kill_ms * UINT64_C(1000000)) {
            uint32_t index = (uint32_t)sc_prng_below(rng, world->processes);
            kill_process(index);
            start_process(world, index, sc_prng_next(rng));
            killed_ns = now;
        }
        if (restarts && now > start + (ends - start) / 2) {
            restart(world);
            restarts = false;
        }
    }
    /* Some are killed as they are, the others are told. */
    uint32_t dead = (uint32_t)sc_prng_below(rng, world->processes + 1);
    uint32_t left = world->processes - dead;
    for (uint32_t i = left; i < world->processes; i++) kill_process(i);
    atomic_store(&shared->stop, true);
    for (uint32_t i = 0; i < left; i++) wait_for_end(i);
    played.rounds++;
}

static void play_world(const struct stress_options *o, uint64_t seed)
{
    struct sv_world world;
    struct sc_prng rng;
    world_seed = seed;
    sv_world_draw(&world, seed);
    if (o->threads_given) world.processes = o->threads;
    world.engine = world.engine && !shared->outside; /* it must know the model */
    sc_prng_seed(&rng, sc_mix64(seed));
    if (!shared->outside) {
        host.sockets = 0;
        host.resident = 0;
        if (!sv_host_open(&host, &world, shared) || !sv_host_start(&host, shared)) {
            sv_finding("the service did not start");
        }
    }
    for (uint32_t i = 0; i < world.rounds; i++) {
        play_round(&world, &rng);
        if (!sv_audit(&host, shared, i % 2 == 1 || i + 1 == world.rounds)) {
            sv_finding("the audit after round %u", i);
        }
        played.audits++;
    }
    if (!shared->outside) {
        if (!sv_host_stop(&host, false)) sv_finding("the service did not end well");
        sv_host_remove(&host);
    }
    played.worlds++;
}

/* ---- report ---- */

static void report(double seconds)
{
    uint64_t ops = 0;
    for (uint32_t i = 0; i < SV_OP_COUNT; i++) {
        uint64_t count = atomic_load(&shared->ops[i]);
        ops += count;
        (void)printf("%s%s %llu", i ? ", " : "", sv_op_names[i], (unsigned long long)count);
    }
    (void)printf("\n%llu hits, %llu misses, %llu states written, %llu there already, %llu refused "
        "for now, %llu look-ups of what is held, %llu of what a tier has, %.1f GiB compared\n",
        (unsigned long long)shared->hits, (unsigned long long)shared->misses,
        (unsigned long long)shared->written, (unsigned long long)shared->exists,
        (unsigned long long)shared->refused, (unsigned long long)shared->held_hits,
        (unsigned long long)shared->lower, (double)shared->words * 8 / 1073741824.0);
    (void)printf("engines: %llu requests, %llu hits, %llu restored from the service, %llu stored\n",
        (unsigned long long)shared->engine_requests, (unsigned long long)shared->engine_hits,
        (unsigned long long)shared->engine_restored, (unsigned long long)shared->engine_stored);
    (void)printf("%llu services, %llu rounds: %llu processes killed, %llu connections (%llu ended "
        "by a restart), %llu restarts, %llu crashes, %llu audits; %.1f s, %.0f operations/s; "
        "nothing found\n", (unsigned long long)played.worlds, (unsigned long long)played.rounds,
        (unsigned long long)played.kills, (unsigned long long)shared->opened,
        (unsigned long long)shared->dead, (unsigned long long)played.restarts,
        (unsigned long long)played.crashes, (unsigned long long)played.audits, seconds,
        (double)ops / seconds);
}

/* Beside this program, where it is installed; in its build; else where the shell would look. */
static const char *find_program(void)
{
    static const char *const places[] = {"statecached", "../../api/daemon/statecached"};
    static char path[512];
    ssize_t count = readlink("/proc/self/exe", path, sizeof path - 64);
    char *name = NULL;
    if (count > 0) path[count] = '\0';
    if (count > 0) name = strrchr(path, '/');
    for (size_t i = 0; name && i < sizeof places / sizeof places[0]; i++) {
        (void)snprintf(name + 1, 64, "%s", places[i]);
        if (access(path, X_OK) == 0) return path;
    }
    return "statecached";
}

int stress_service(const struct stress_options *o)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    parent = getpid();
    (void)atexit(at_exit);
    host.program = o->statecached ? o->statecached : find_program();
    shared->outside = o->socket != NULL;
    shared->canary = o->canary;
    if (o->socket) (void)snprintf(shared->address, sizeof shared->address, "unix:%s", o->socket);
    uint64_t start = sc_clock_now_ns();
    uint64_t ends = o->seconds ? start + o->seconds * UINT64_C(1000000000) : UINT64_MAX;
    for (uint64_t world = 0; o->worlds == 0 || world < o->worlds; world++) {
        if (sc_clock_now_ns() >= ends) break;
        play_world(o, o->only_world ? o->only_world : (sc_mix64(o->seed + world) >> 20) + 1);
        if (o->quiet || !isatty(STDOUT_FILENO)) continue;
        (void)printf("\r%6.1f s  %llu services  %llu kills  %llu hits",
            (double)(sc_clock_now_ns() - start) / 1e9, (unsigned long long)played.worlds,
            (unsigned long long)played.kills, (unsigned long long)shared->hits);
        (void)fflush(stdout);
    }
    if (!o->quiet && isatty(STDOUT_FILENO)) (void)printf("\n");
    report((double)(sc_clock_now_ns() - start) / 1e9);
    if (shared->hits == 0 || shared->written == 0) {
        (void)fprintf(stderr, "nothing was played\n");
        return 1;
    }
    return 0;
}

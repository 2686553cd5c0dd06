/* SPDX-License-Identifier: Apache-2.0 */
/* statecache-stress: what its files share. stress.c supervises a child that plays rounds
 * (stress_rounds.c), so that a crash is a finding like any other. */
#ifndef TESTS_STRESS_STRESS_H
#define TESTS_STRESS_STRESS_H

#include "harness/harness.h"

struct stress_options {
    uint64_t seconds, worlds; /* whichever ends first; 0: no limit by this */
    uint64_t world_ops;       /* operations of one world */
    uint32_t threads;
    uint64_t seed;
    uint64_t only_world;      /* seed of the one world to play; 0: all */
    uint32_t shrink;          /* runs that shrinking may take; 0: do not */
    bool single;              /* one thread plays all schedulers, in an order that the seed gives */
    bool tiers;               /* every cache has tiers */
    bool canary, trace, quiet;
    bool daemon;              /* processes play on a statecached instead */
    bool threads_given;
    const char *socket;       /* of one that runs; NULL: one is started */
    const char *statecached;  /* the program; NULL: of this build */
    const char *script;       /* to run */
    const char *out;          /* to write a finding to */
};

/* -1: go on; else the exit code. */
int stress_options_parse(int argc, char **argv, struct stress_options *options);

/* Plays worlds until time is up; ends the process with 1 on a finding. Prints the report. */
void stress_rounds(const struct stress_options *options, struct h_log *log);
/* Clients of statecached, until time is up; the exit code (service.c). */
int stress_service(const struct stress_options *options);
/* One list of operations, in this thread. */
void stress_script(void *options, const struct h_log *script);

#endif

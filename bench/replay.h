/* SPDX-License-Identifier: Apache-2.0 */
/* `statecache-bench replay`: options (replay_options.c), the run (replay.c), its report
 * (replay_report.c). */
#ifndef BENCH_REPLAY_H
#define BENCH_REPLAY_H

#include "rerun_check.h"
#include "scheduler.h"
#include "served_model.h"
#include "workload.h"

enum { SAVE_PROMPT = 1, SAVE_BRANCH = 2, SAVE_DECODE = 4, SAVE_END = 8, SAVE_ALL = 15 };

struct replay_options {
    /* workload */
    const char *trace;
    uint64_t seed;
    uint32_t requests;      /* 0: all of a trace, or the generator's default */
    struct generator_options generator;
    uint32_t block, scale, decode_max;
    /* cache */
    uint32_t slots, kv_pages, page, decode_interval, path_snapshots;
    sc_layout layout;
    unsigned save;
    bool page_given, keep_cuts, tails;
    /* model */
    struct served_options model;
    /* scheduler */
    uint32_t running, budget, threads;
    double temperature, speed;
    uint32_t in_flight, drafts, forks, tenants;
    double draft_accept, preempt, fork;
    bool draft_tree, late_stop;
    /* what to do */
    bool no_compute, no_cold, json, bars, sabotage;
    const char *policy, *backend;
    uint32_t host_slots, host_write, disk_write;
    const char *disk;
    uint64_t disk_bytes;
    uint64_t sabotage_seed;
    uint32_t check, verify_every, lose_flush;
    uint32_t compare;       /* runs of each kind of kernels; 0: no comparison */
};

struct replay_run {
    struct replay_options o;
    struct workload workload;
    struct pass_result cached, cold, guess;
    bool has_cold, has_check;
    struct check_result check;
    double ideal_end, ideal_end_branch; /* tokens */
};

/* Runs what the options say. */
void replay_serve(struct replay_run *run);
/* The same, again and again, with fast and with reference kernels (replay_compare.c); the exit
 * status. */
int replay_compare(struct replay_run *run);

/* Parses and checks; ends the program with BENCH_USAGE if something is wrong. */
void replay_options_parse(struct replay_options *options, int argc, char **argv);
void replay_report_text(const struct replay_run *run, FILE *out);
void replay_report_json(const struct replay_run *run, FILE *out);
/* What --bars prints: that no bit differs and no account is wrong. Returns the exit status. */
int replay_report_bars(const struct replay_run *run, FILE *out);
/* Did everything that was checked hold? */
bool replay_passed(const struct replay_run *run);

#endif

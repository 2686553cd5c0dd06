/* SPDX-License-Identifier: Apache-2.0 */
/* What the policy tests share: an index of one-token pages, a policy on it, and a request as a
 * scheduler would serve it. */
#ifndef SC_TEST_POLICY_H
#define SC_TEST_POLICY_H

#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "base/prng.h"
#include "policy/policy.h"
#include "support/fail_alloc.h"

enum { RIG_PROMPT_MAX = 64, RIG_POINTS = 80 };

Suite *policy_args_suite(void);
Suite *policy_random_suite(void);
Suite *policy_longer_suite(void);
Suite *policy_tiers_suite(void);

struct rig {
    struct sc_radix *radix;
    struct sc_policy *policy;
    struct sc_policy_options options;
    struct sc_radix_sink sink;
    uint32_t space, snapshot;
    double cap;
    uint64_t now_ns;
    uint64_t gone; /* snapshots that left */
};

struct rig_request {
    int32_t tokens[RIG_PROMPT_MAX];
    uint64_t hashes[RIG_PROMPT_MAX];
    uint32_t count;
    struct sc_policy_path path;
    struct sc_policy_point points[RIG_POINTS];
    struct sc_radix_receipt receipt;
    uint32_t resumed, held;
    sc_node state_node;
};

void rig_open(struct rig *rig, const char *policy, double cap, const sc_allocator *allocator);
void rig_close(struct rig *rig);
double rig_bytes(const struct rig *rig);
void rig_prompt(struct rig_request *request, const int32_t *tokens, uint32_t count);
/* A prompt that often shares its beginning with, or goes on from, an earlier one. */
void rig_prompt_make(struct sc_prng *prng, struct rig_request *request,
    const struct rig_request *last);
/* The first `count` tokens, with a snapshot at their end unless it is 0; NONE: there is one. */
sc_node rig_insert(struct rig *rig, const struct rig_request *request, uint32_t count,
    uint32_t snapshot);
/* Match and lock. */
void rig_match(struct rig *rig, struct rig_request *request, uint32_t what);
/* begin, all points, end; unlocks. Returns the tokens that were resumed. */
uint32_t rig_serve(struct rig *rig, struct rig_request *request);
/* The same of a prompt of `count` tokens that start with `first` and count up. */
uint32_t rig_serve_run(struct rig *rig, int32_t first, uint32_t count);
void rig_place(struct rig *rig, struct rig_request *request);
/* What was inserted belongs to the request, too. */
void rig_relock(struct rig *rig, struct rig_request *request, sc_node node);
void rig_unlock(struct rig *rig, struct rig_request *request);

#define RIG_OK(expr) ck_assert_msg((expr) == SC_OK, "%s: %s", #expr, sc_last_error()->text)

#endif

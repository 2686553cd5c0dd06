/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model, and what it says about tiers. */
#include "policy_internal.h"

static bool number(double x) { return isfinite(x) && x >= 0; }

sc_status sc_cost_check(const struct sc_cost *cost)
{
    SC_REQUIRE(cost != NULL);
    SC_REQUIRE(number(cost->state_bytes) && number(cost->kv_token_bytes));
    SC_REQUIRE(cost->state_bytes + cost->kv_token_bytes > 0);
    SC_REQUIRE(number(cost->token_s) && cost->token_s > 0 && number(cost->token2_s));
    for (int i = 0; i < SC_COST_TIERS; i++) {
        SC_REQUIRE(number(cost->tier_bytes_per_s[i]) && number(cost->tier_latency_s[i]));
    }
    return SC_OK;
}

sc_status sc_cost_make(const struct sc_cost_model *model, const struct sc_cost_hardware *hardware,
    struct sc_cost *cost_out)
{
    SC_REQUIRE(model != NULL && hardware != NULL && cost_out != NULL);
    SC_REQUIRE(number(hardware->flops) && hardware->flops > 0);
    SC_REQUIRE(number(model->flops_per_token) && number(model->flops_per_token2));
    struct sc_cost cost = {.state_bytes = model->state_bytes,
        .kv_token_bytes = model->kv_token_bytes,
        .token_s = model->flops_per_token / hardware->flops,
        .token2_s = model->flops_per_token2 / hardware->flops};
    memcpy(cost.tier_bytes_per_s, hardware->read_bytes_per_s, sizeof cost.tier_bytes_per_s);
    memcpy(cost.tier_latency_s, hardware->latency_s, sizeof cost.tier_latency_s);
    SC_TRY(sc_cost_check(&cost));
    *cost_out = cost;
    return SC_OK;
}

double sc_cost_saved_s(const struct sc_cost *cost, uint32_t tier, double from, double to)
{
    double saved_s = sc_cost_prefill_s(cost, from, to);
    if (tier == 0) return saved_s;
    if (tier >= SC_COST_TIERS || cost->tier_bytes_per_s[tier] <= 0) return 0;
    saved_s -= from > 0 ? (to - from) * cost->kv_token_bytes / cost->tier_bytes_per_s[tier]
                        : sc_cost_restore_s(cost, tier, to);
    return saved_s > 0 ? saved_s : 0;
}

double sc_cost_restore_s(const struct sc_cost *cost, uint32_t tier, double kv_tokens)
{
    if (!cost || tier >= SC_COST_TIERS || cost->tier_bytes_per_s[tier] <= 0) return HUGE_VAL;
    return cost->tier_latency_s[tier] +
        (cost->state_bytes + kv_tokens * cost->kv_token_bytes) / cost->tier_bytes_per_s[tier];
}

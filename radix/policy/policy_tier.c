/* SPDX-License-Identifier: Apache-2.0 */
/* What the policy of a tier says about a snapshot that comes from above. The index of such a policy
 * is the tier's; its currency is the device's, with the time to read back taken off what a reuse
 * saves:
 *
 *   worth(tier) = rate of reuse x (prefill saved - read back) / bytes
 *
 * So nothing is worth a place where reading back takes longer than computing again. Whoever owns
 * the tiers asks one after the other, with this worth as the bar of sc_policy_room. */
#include "policy_internal.h"

double sc_policy_worth(struct sc_policy *p, sc_node node)
{
    uint32_t id = p ? pol_now(p, node) : 0;
    return id != 0 ? pol_value(p, id) : 0;
}

/* --- what comes from a tier above --- */

uint32_t pol_record_cand(const struct sc_policy *p, const struct sc_policy_record *record)
{
    uint32_t ghost = pol_ghost_last(p, record->hashes, record->block_count);
    return ghost ? p->ghosts[ghost].cand : 0;
}

bool pol_superseded_by_next(const struct sc_policy *p, uint32_t id)
{
    const struct cand *cand = pol_cand(p, id);
    return cand->is_end && cand->registered && cand->ghost != 0 &&
        p->ghosts[cand->ghost].children == 1;
}

double sc_policy_record_worth(struct sc_policy *p, const struct sc_policy_record *record)
{
    struct sc_radix_node_info info;
    if (!p || !record || !(record->bytes > 0)) return 0;
    if (record->hashes == NULL && record->block_count > 0) return 0;
    sc_node above = record->above;
    uint32_t up = above != SC_NODE_NONE ? pol_now(p, above) : 0;
    if (p->model && up != 0 && pol_superseded_by_next(p, up)) {
        up = pol_up(p, above); /* it takes the place of that one */
        above = up ? pol_cand(p, up)->node : SC_NODE_NONE;
    }
    bool there = above != SC_NODE_NONE &&
        sc_radix_node_get(p->options.radix, above, &info) == SC_OK;
    double saved_s = sc_cost_saved_s(&p->options.cost, p->options.tier, there ? info.end : 0,
        record->len);
    if (!(saved_s > 0)) return 0;
    if (!p->model || p->model->events < SC_POLICY_COLD_EVENTS) return HUGE_VAL;
    uint32_t id = pol_record_cand(p, record);
    return id ? pol_rate(p, pol_cand(p, id)) * saved_s / record->bytes : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The recount of every invariant of policy.c. */
#include "policy_internal.h"

static sc_status links_verify(const struct sc_policy *p, uint32_t id)
{
    const struct cand *c = pol_cand(p, id);
    if ((c->superseded_by && pol_cand(p, c->superseded_by)->supersedes != id) ||
        (c->supersedes && pol_cand(p, c->supersedes)->superseded_by != id) ||
        (c->near_end && pol_cand(p, c->near_end)->near_of != id) ||
        (c->near_of && pol_cand(p, c->near_of)->near_end != id)) {
        return SC_FAIL(SC_ERR_CORRUPT, "(4) a link of candidate %u is not returned", id);
    }
    return SC_OK;
}

static sc_status cand_verify(const struct sc_policy *p, uint32_t id)
{
    const struct cand *c = pol_cand(p, id);
    if (c->node == 0 && c->ghost == 0) {
        return SC_FAIL(SC_ERR_CORRUPT, "(2) candidate %u stands for nothing", id);
    }
    if (c->ghost && (!p->ghosts[c->ghost].live || p->ghosts[c->ghost].cand != id)) {
        return SC_FAIL(SC_ERR_CORRUPT, "(2) ghost %u does not name candidate %u", c->ghost, id);
    }
    if (c->node && (c->node >= p->by_node_cap || p->by_node[c->node] != id)) {
        return SC_FAIL(SC_ERR_CORRUPT, "(1) node %u does not name candidate %u", c->node, id);
    }
    bool in = c->node != 0 && p->options.order != SC_POLICY_TREE;
    uint32_t place = p->order.places[id], timer = p->timers.places[id];
    if (in != (place != 0) || (place && p->order.items[place - 1].id != id)) {
        return SC_FAIL(SC_ERR_CORRUPT, "(1) candidate %u and its place %u", id, place);
    }
    if (timer && (c->node == 0 || p->timers.items[timer - 1].id != id)) {
        return SC_FAIL(SC_ERR_CORRUPT, "(1) candidate %u and its timer", id);
    }
    return links_verify(p, id);
}

sc_status sc_policy_verify(const struct sc_policy *p)
{
    SC_REQUIRE(p != NULL);
    uint64_t live = 0, resident = 0, ghosts = 0;
    for (uint32_t id = 1; id <= p->cand_used; id++) {
        if (!pol_cand(p, id)->live) continue;
        live++;
        resident += p->order.places[id] != 0;
        SC_TRY(cand_verify(p, id));
    }
    if (live != p->cand_count || resident != p->order.count) {
        return SC_FAIL(SC_ERR_CORRUPT, "(1) counts of candidates");
    }
    for (uint32_t i = 1; i < p->order.count; i++) {
        const struct cand *c = pol_cand(p, p->order.items[i].id);
        if (c->key < pol_cand(p, p->order.items[(i - 1) / HEAP_WAYS].id)->key) {
            return SC_FAIL(SC_ERR_CORRUPT, "(3) the heap's order at %u", i);
        }
    }
    for (uint32_t i = 1; i <= p->ghost_used; i++) {
        if (!p->ghosts[i].live) continue;
        ghosts++;
        const struct ghost *ghost = &p->ghosts[i];
        bool found = ghost->follows ? p->ghosts[i - 1].live : pol_ghost_find(p, ghost->hash) == i;
        if (!found) return SC_FAIL(SC_ERR_CORRUPT, "(2) ghost %u is not found by its hash", i);
    }
    if (ghosts != p->ghost_count) return SC_FAIL(SC_ERR_CORRUPT, "(2) count of ghosts");
    return SC_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a request says about positions, before it is served (SC_POLICY_GITTINS).
 *
 *   blocks   |--|--|--|--|--|--|--|--|--|--|
 *   seen      s  s  s  s  s  s  .  .  .  .        g = 6: the prompt parts from all before it
 *   learned         c        w                    w: deepest position that is learned about, <= g
 *   resumed         u                             u: the snapshot that was really used
 *
 * w was wanted: its interval of demand ends with an event, whether a snapshot was there or not, and
 * a new one starts. So does u's, if it is another. Then the request's own positions start theirs:
 * the fork at g, the end, the one near the end.
 *
 * w is superseded if it was the end of an earlier prompt and nothing else ever came after it: the
 * conversation went on. Where something did, it is a branch. */
#include "policy_internal.h"

enum { CLASS_OTHER = LEVELS_PER_FEATURE - 1 };

struct seen {
    uint32_t blocks;      /* of the prompt */
    uint32_t common;      /* g */
    bool continues;       /* the prompt goes on from the end of an earlier one */
    bool diverges;
    uint8_t class_id;
    double gap_s;         /* since w was last wanted; < 0: unknown */
    uint32_t siblings, turn;
};

static uint8_t bits(uint64_t x)
{
    return x == 0 ? 0 : (uint8_t)(64 - __builtin_clzll(x));
}

static uint8_t at_most(uint8_t x, uint8_t most) { return x < most ? x : most; }

static uint8_t class_of(const struct sc_policy_path *path)
{
    return path->class_id < CLASS_OTHER ? (uint8_t)path->class_id : CLASS_OTHER;
}

static uint8_t gap_feature(double gap_s)
{
    return gap_s < 0 ? 0 : (uint8_t)(1 + at_most(bits((uint64_t)(gap_s + 1)), 11));
}

static uint8_t stratum_of(uint8_t kind, const uint8_t *features, enum sc_policy_hint hint)
{
    static const uint8_t by_new_blocks[5] = {0, 1, 2, 2, 3};
    uint8_t sub = 0;
    if (kind == KIND_FIRST || kind == KIND_TURN) sub = by_new_blocks[at_most(features[0], 4)];
    if (kind == KIND_BRANCH || kind == KIND_SUPERSEDED) sub = at_most(features[1], 3);
    return (uint8_t)(((uint32_t)hint * KIND_COUNT + kind) * STRATA_PER_KIND + sub);
}

static void features_inside(const struct sc_policy *p, const struct cand *cand, double gap_s,
    uint8_t class_id, uint8_t *features)
{
    uint32_t children = cand->ghost ? p->ghosts[cand->ghost].children : 0;
    features[0] = gap_feature(gap_s);
    features[1] = at_most(bits(cand->uses), 6);
    features[2] = at_most(bits(cand->len / p->options.block_tokens), LEVELS_PER_FEATURE - 1);
    features[3] = at_most(bits(children), 12);
    features[4] = class_id;
    features[5] = features[6] = 0;
}

/* The position starts a new interval of demand. */
static void start(struct sc_policy *p, const struct sc_policy_path *path, uint32_t id, uint8_t kind,
    const uint8_t *features)
{
    struct cand *cand = pol_cand(p, id);
    bool was_superseded = cand->registered && cand->kind == KIND_SUPERSEDED;
    enum sc_policy_hint hint = SC_POLICY_HINT_NONE;
    if (path->hint && kind != KIND_NEAR) hint = path->hint(path->hint_ctx, cand->len);
    if ((unsigned)hint >= HINTS) hint = SC_POLICY_HINT_NONE;
    cand->registered = true;
    cand->kind = kind;
    memcpy(cand->features, features, sizeof cand->features);
    cand->born_ns = p->now_ns;
    cand->stratum = stratum_of(kind, features, hint);
    cand->level = pol_level(p->model, cand->stratum, features);
    pol_sample_open(p, cand);
    if (cand->node != 0 || cand->near_end != 0) pol_touch(p, id);
    if (was_superseded && kind != KIND_SUPERSEDED && cand->superseded_by != 0) {
        pol_touch(p, cand->superseded_by); /* this one counts as above it again */
    }
}

/* The interval ends because the position was wanted; seconds since it started, < 0 if none ran. */
static double want(struct sc_policy *p, struct cand *cand)
{
    double gap_s = cand->open ? (double)(p->now_ns - cand->born_ns) * 1e-9 : -1;
    pol_sample_close(p, cand, true);
    cand->uses++;
    cand->used_ns = p->wall_ns;
    return gap_s;
}

static void learn_wanted(struct sc_policy *p, struct sc_policy_path *path, struct seen *seen)
{
    uint32_t k = seen->common;
    while (k > 0 && p->ghosts[p->path[k - 1]].cand == 0) k--;
    uint32_t w = k > 0 ? p->ghosts[p->path[k - 1]].cand : 0;
    uint32_t u = path->state_len > 0 ? pol_now(p, path->state_node) : 0;
    uint8_t features[FEATURES];
    seen->gap_s = -1;
    if (w != 0) {
        struct cand *cand = pol_cand(p, w);
        bool last = k == seen->common && p->ghosts[p->path[k - 1]].children == 0;
        seen->continues = cand->is_end && last;
        path->linear = seen->continues && seen->common < seen->blocks;
        if (seen->continues) seen->turn = at_most((uint8_t)(cand->turn + 1), 6);
        seen->gap_s = want(p, cand);
        features_inside(p, cand, seen->gap_s, seen->class_id, features);
        uint8_t kind = path->linear ? KIND_SUPERSEDED
            : cand->kind == KIND_NEAR ? KIND_NEAR : KIND_BRANCH;
        start(p, path, w, kind, features);
        path->wanted = w;
        path->wanted_generation = cand->generation;
    }
    if (u == 0) return;
    struct cand *cand = pol_cand(p, u);
    path->used = u;
    path->used_generation = cand->generation;
    if (u == w) return;
    double gap_s = want(p, cand);
    features_inside(p, cand, gap_s, seen->class_id, features);
    start(p, path, u, cand->registered ? cand->kind : KIND_BRANCH, features);
}

/* Remembers the blocks of the path. Room has been made. */
static void learn_path(struct sc_policy *p, struct sc_policy_path *path, struct seen *seen)
{
    uint32_t known = 0;
    for (; known < seen->blocks; known++) {
        uint64_t hash = path->hashes[known];
        uint32_t ghost = known > 0 ? pol_ghost_next(p, p->path[known - 1], hash)
                                   : pol_ghost_find(p, hash);
        if (ghost == 0) break;
        p->path[known] = ghost;
        if (!p->ghosts[ghost].recent) p->ghosts[ghost].recent = true; /* a line less to write */
    }
    uint32_t usable = path->len_max / p->options.block_tokens;
    seen->common = known < usable ? known : usable;
    learn_wanted(p, path, seen);
    uint32_t g = seen->common;
    seen->diverges = g > 0 && g < seen->blocks && p->ghosts[p->path[g - 1]].children > 0;
    for (uint32_t k = known; p->ghosts_forgotten && k < seen->blocks; k++) {
        __builtin_prefetch(&p->table[(uint32_t)path->hashes[k] & p->table_mask]);
    }
    for (uint32_t k = known; k < seen->blocks; k++) {
        /* Where beginnings are forgotten, what followed may still be known. */
        uint32_t parent = k > 0 ? p->path[k - 1] : 0, ghost = 0;
        if (p->ghosts_forgotten) {
            ghost = parent ? pol_ghost_next(p, parent, path->hashes[k])
                           : pol_ghost_find(p, path->hashes[k]);
        }
        p->path[k] = ghost ? ghost : pol_ghost_add(p, path->hashes[k], parent);
        p->ghosts[p->path[k]].recent = true;
    }
    if (g > 0) seen->siblings = at_most(bits(p->ghosts[p->path[g - 1]].children), 12);
}

static void points_find(const struct sc_policy *p, struct sc_policy_path *path,
    const struct seen *seen)
{
    uint32_t block = p->options.block_tokens, placement = p->options.placement;
    uint32_t end = pol_end(p, path), fork = seen->common * block;
    uint32_t held = path->held_len;
    path->held_len = 0; /* what is held is learned about, too */
    if (placement & SC_PLACE_FORK && seen->diverges && fork > path->state_len) {
        pol_point_add(path, fork, KIND_BRANCH);
    }
    if (placement & SC_PLACE_END && end > path->state_len && seen->blocks > 0) {
        pol_point_add(path, end, seen->continues ? KIND_TURN : KIND_FIRST);
    }
    uint32_t back = p->options.near_tokens / block;
    if (back == 0) back = 1;
    if (placement & SC_PLACE_NEAR && seen->blocks > back) {
        uint32_t near = (seen->blocks - back) * block;
        if (near > path->state_len && near > fork) pol_point_add(path, near, KIND_NEAR);
    }
    path->held_len = held;
    pol_place_plain(p, path);
}

static void point_register(struct sc_policy *p, struct sc_policy_path *path,
    struct sc_policy_point *point, const struct seen *seen)
{
    uint32_t ghost = p->path[point->len / p->options.block_tokens - 1];
    uint32_t id = p->ghosts[ghost].cand;
    if (id == 0) {
        id = pol_cand_new(p);
        p->ghosts[ghost].cand = id;
        pol_cand(p, id)->ghost = ghost;
    }
    struct cand *cand = pol_cand(p, id);
    if (cand->node == 0) cand->len = point->len; /* else another end of the block is resident */
    point->cand = id;
    point->generation = cand->generation;
    if (point->kind == KIND_BRANCH && id == path->wanted && cand->open) return;
    pol_sample_close(p, cand, false); /* registered again: censored here */
    uint32_t n = seen->blocks, g = seen->common;
    uint8_t features[FEATURES] = {at_most(bits(n - g), 15),
        (uint8_t)(g == 0 ? 0 : 1 + 4 * (uint64_t)g / n), 0, at_most(bits(n), 15), seen->class_id,
        (uint8_t)seen->turn};
    if (point->kind == KIND_FIRST || point->kind == KIND_TURN) {
        cand->is_end = true;
        cand->turn = (uint8_t)seen->turn;
        if (point->kind == KIND_TURN) {
            features[2] = gap_feature(seen->gap_s);
        } else {
            features[5] = (uint8_t)seen->siblings;
        }
    } else if (point->kind == KIND_BRANCH) {
        features_inside(p, cand, -1, seen->class_id, features);
    } else if (cand->registered) {
        return;
    }
    start(p, path, id, point->kind, features);
}

void pol_learn(struct sc_policy *p, struct sc_policy_path *path)
{
    struct seen seen = {.blocks = path->block_count,
        .class_id = class_of(path)};
    learn_path(p, path, &seen);
    points_find(p, path, &seen);
    uint32_t near = 0, end = 0;
    for (uint32_t i = 0; i < path->point_count; i++) {
        struct sc_policy_point *point = &path->points[i];
        point_register(p, path, point, &seen);
        if (point->kind == KIND_NEAR) near = point->cand;
        if (point->kind == KIND_FIRST || point->kind == KIND_TURN) end = point->cand;
    }
    if (near == 0 || end == 0) return;
    struct cand *a = pol_cand(p, near), *b = pol_cand(p, end);
    if (a->near_of) pol_cand(p, a->near_of)->near_end = 0;
    if (b->near_end) pol_cand(p, b->near_end)->near_of = 0;
    a->near_of = end;
    b->near_end = near;
    if (a->node != 0) pol_touch(p, near);
}

/* How much was decoded says something about what comes next. */
static void learn_output(struct sc_policy *p, struct sc_policy_path *path)
{
    for (uint32_t i = 0; path->output_len > 0 && i < path->point_count; i++) {
        const struct sc_policy_point *point = &path->points[i];
        uint32_t id = pol_alive(p, point->cand, point->generation);
        if (id == 0 || (point->kind != KIND_FIRST && point->kind != KIND_TURN)) continue;
        struct cand *cand = pol_cand(p, id);
        if (cand->kind != point->kind || cand->open == 0) continue; /* wanted meanwhile */
        cand->features[6] = at_most(bits(path->output_len), LEVELS_PER_FEATURE - 1);
        pol_sample_refine(p, cand);
        int8_t level = pol_level(p->model, cand->stratum, cand->features);
        if (level == cand->level) continue;
        cand->level = level;
        pol_touch(p, id);
    }
}

/* Whether something hangs below a node on one side only. */
static bool one_child(const struct sc_policy *p, sc_node node)
{
    struct sc_radix_node_info info;
    return sc_radix_node_get(p->options.radix, node, &info) == SC_OK && info.child_count == 1;
}

/* Ghosts of what was decoded; the last one, 0: the prompt's own are forgotten. */
static uint32_t extend_path(struct sc_policy *p, const struct sc_policy_path *path,
    const uint64_t *hashes, uint32_t block_count, uint32_t ghost)
{
    if (path->block_count > 0 && ghost == 0) return 0;
    for (uint32_t k = path->block_count; k < block_count; k++) {
        uint32_t next = ghost != 0 ? pol_ghost_next(p, ghost, hashes[k])
                                   : pol_ghost_find(p, hashes[k]);
        if (next == 0) next = pol_ghost_add(p, hashes[k], ghost);
        p->ghosts[next].recent = true;
        ghost = next;
    }
    return ghost;
}

/* What was learned about the end of the prompt, and the interval that runs, are the new end's: the
 * conversation goes on from there. */
static void end_moves(struct sc_policy *p, uint32_t from, uint32_t to)
{
    struct cand *a = pol_cand(p, from), *b = pol_cand(p, to);
    pol_sample_close(p, b, false);
    b->registered = a->registered;
    b->is_end = true;
    b->kind = a->kind;
    b->stratum = a->stratum;
    b->level = a->level;
    b->turn = a->turn;
    b->born_ns = a->born_ns;
    b->open = a->open;
    a->open = 0;
    memcpy(b->features, a->features, sizeof b->features);
}

void pol_learn_extend(struct sc_policy *p, struct sc_policy_path *path, const uint64_t *hashes,
    uint32_t block_count, struct sc_policy_point *point)
{
    const struct sc_policy_point *end = pol_end_point(path);
    uint32_t e = end ? pol_alive(p, end->cand, end->generation) : 0;
    uint32_t parent = e != 0 && path->block_count > 0 ? pol_cand(p, e)->ghost : 0;
    uint32_t ghost = extend_path(p, path, hashes, block_count, parent);
    if (ghost == 0) return;
    uint32_t x = p->ghosts[ghost].cand;
    if (x == 0 || (x == e && pol_cand(p, e)->node != 0)) {
        if (x != 0) pol_cand(p, x)->ghost = 0; /* resident: goes with its snapshot */
        x = pol_cand_new(p);
        p->ghosts[ghost].cand = x;
        pol_cand(p, x)->ghost = ghost;
    }
    struct cand *cand = pol_cand(p, x);
    if (cand->node == 0) cand->len = point->len;
    point->cand = x;
    point->generation = cand->generation;
    if (e != 0 && e != x) {
        end_moves(p, e, x);
    } else if (e == 0) {
        struct sc_policy_path own = *path; /* hints are for begin alone */
        own.hint = NULL;
        uint8_t features[FEATURES] = {at_most(bits(block_count), 15), 0, 0,
            at_most(bits(block_count), 15),
            class_of(path)};
        cand->is_end = true;
        pol_sample_close(p, cand, false);
        start(p, &own, x, KIND_FIRST, features);
    }
    if (cand->node != 0) pol_touch(p, x);
}

/* From now on `id` stands for `e`, and no other does. */
static void link_superseded(struct sc_policy *p, uint32_t e, uint32_t id)
{
    uint32_t old = pol_cand(p, e)->superseded_by, other = pol_cand(p, id)->supersedes;
    if (old) pol_cand(p, old)->supersedes = 0;
    if (other) pol_cand(p, other)->superseded_by = 0;
    pol_cand(p, e)->superseded_by = id;
    pol_cand(p, id)->supersedes = e;
    if (old != 0 && old != id) pol_touch(p, old); /* `e` counts as above it again */
}

/* `e` is superseded by `id`, below it. */
static void supersede(struct sc_policy *p, uint32_t e, uint32_t id, uint8_t class_id)
{
    struct sc_policy_path own = {.hint = NULL}; /* hints are for begin alone */
    struct cand *cand = pol_cand(p, e);
    uint8_t features[FEATURES];
    features_inside(p, cand, -1, class_id, features);
    pol_sample_close(p, cand, false);
    link_superseded(p, e, id);
    start(p, &own, e, KIND_SUPERSEDED, features);
}

/* The end of the prompt has been superseded, if it is still here. */
void pol_learn_longer(struct sc_policy *p, struct sc_policy_path *path, uint32_t id)
{
    if (path->prompt_end >= path->point_count) return;
    const struct sc_policy_point *end = &path->points[path->prompt_end];
    uint32_t e = pol_alive(p, end->cand, end->generation);
    if (e == 0 || e == id || pol_cand(p, e)->node == 0 || !one_child(p, pol_cand(p, e)->node)) {
        return;
    }
    supersede(p, e, id, class_of(path));
}

void pol_learn_adopted(struct sc_policy *p, uint32_t id)
{
    uint32_t up = pol_up(p, pol_cand(p, id)->node);
    if (up == 0 || !pol_superseded_by_next(p, up) || !one_child(p, pol_cand(p, up)->node)) return;
    supersede(p, up, id, pol_cand(p, up)->features[FEATURE_CLASS]);
}

void pol_learn_end(struct sc_policy *p, struct sc_policy_path *path, bool extended)
{
    learn_output(p, path);
    uint32_t u = pol_alive(p, path->used, path->used_generation);
    uint32_t e = 0;
    if (path->point_count > 0) {
        const struct sc_policy_point *last = &path->points[path->point_count - 1];
        e = pol_alive(p, last->cand, last->generation);
    }
    if (path->longer && path->prompt_end < path->point_count) { /* what comes first after u */
        const struct sc_policy_point *end = &path->points[path->prompt_end];
        uint32_t prompt = pol_alive(p, end->cand, end->generation);
        if (prompt != 0 && pol_cand(p, prompt)->node != 0) e = prompt;
    }
    if (u == 0 || u != path->wanted || e == 0 || e == u || pol_cand(p, u)->node == 0) return;
    const struct cand *used = pol_cand(p, u), *end = pol_cand(p, e);
    if (used->kind != KIND_SUPERSEDED || !end->is_end) return;
    if (!extended) {
        pol_class_copy(p, u, e); /* what would have superseded it was refused */
    } else if (one_child(p, used->node)) {
        link_superseded(p, u, e);
        pol_touch(p, e);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What look-ups may answer.
 *
 * Snapshots: one record for each (namespace, exact tokens) at which a save was ever attempted. A
 * hit must name a record that is not known to be dead, and a record that an answer passes over is
 * dead from then on: that takes an eviction, and evictions are counted (world_after_op). The census
 * asks for every record and every path by its exact length: as many must answer as the cache says
 * that it has.
 *
 * KV: every path that was ever committed; a look-up cannot match more pages than one of them
 * shares. The census cuts paths back to what is there.
 *
 * All of it plain arrays that are scanned. A hash of the tokens only skips comparisons early. */
#include <stdlib.h>
#include <string.h>

#include "cache_model.h"

static uint64_t hash_tokens(const int32_t *tokens, uint32_t len)
{
    uint64_t hash = 1;
    for (uint32_t i = 0; i < len; i++) hash = mix(hash, (uint32_t)tokens[i]);
    return hash;
}

static void *grow(void *array, uint32_t count, uint32_t *cap, size_t item_bytes)
{
    if (count < *cap) return array;
    *cap = *cap ? *cap * 2 : 64;
    void *grown = realloc(array, *cap * item_bytes);
    if (!grown) abort();
    return grown;
}

static int32_t *dup_tokens(const int32_t *tokens, uint32_t len)
{
    int32_t *copy = malloc(len * sizeof *copy);
    if (!copy) abort();
    memcpy(copy, tokens, len * sizeof *copy);
    return copy;
}

static struct record *record_find(struct world *w, uint32_t ns, const int32_t *tokens,
    uint32_t len)
{
    uint64_t hash = hash_tokens(tokens, len);
    for (uint32_t i = 0; i < w->record_count; i++) {
        struct record *record = &w->records[i];
        if (record->hash == hash && record->ns == ns && record->len == len &&
            memcmp(record->tokens, tokens, len * sizeof *tokens) == 0) {
            return record;
        }
    }
    return NULL;
}

static sc_status raw_lookup(struct world *w, const sc_key *keys, uint32_t count,
    sc_answer *answers)
{
    sc_status status = seen(w, CALL_LOOKUP, sc_cache_lookup(w->cache, keys, count, answers));
    if (status != SC_OK || answers[0].status != SC_OK) return status;
    if (planted(w, PLANT_LONG_HIT, 40)) answers[0].state_len[SC_TIER_DEVICE] += w->cfg.page;
    if (answers[0].state_len[SC_TIER_DEVICE] > 0 && planted(w, PLANT_LOST_HIT, 10)) {
        answers[0].state_len[SC_TIER_DEVICE] = 0;
        answers[0].reason = SC_REASON_NO_STATE;
        answers[0].branch_len = answers[0].kv_len / w->cfg.grid * w->cfg.grid;
    }
    if (planted(w, PLANT_IMPURE, 4)) {
        sc_request request = {.key = keys[0]};
        sc_lease lease;
        sc_status each;
        if (sc_cache_acquire(w->cache, &request, 1, 0, &lease, &each) == SC_OK && each == SC_OK) {
            (void)sc_lease_release(w->cache, lease, 0, SC_RELEASE_DISCARD);
        }
    }
    return status;
}

/* After a commit or a release: is the snapshot that was attempted there? One that is not was
 * skipped or evicted at once: the caller accounts for that. */
static void record_settle(struct world *w, struct record *record)
{
    if (w->twin) return;
    sc_key key = {.ns = w->ns[record->ns].handle, .tokens = record->tokens,
        .token_count = record->len, .len_max = record->len};
    sc_answer answer;
    CHECK(w, raw_lookup(w, &key, 1, &answer) == SC_OK && answer.status == SC_OK, "settle");
    record->dead = answer.state_len[SC_TIER_DEVICE] != record->len;
}

bool record_attempt(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len,
    uint64_t stamp)
{
    struct record *record = record_find(w, ns, tokens, len);
    if (!record) {
        w->records = grow(w->records, w->record_count, &w->record_cap, sizeof *w->records);
        record = &w->records[w->record_count++];
        *record = (struct record){.ns = ns, .len = len, .hash = hash_tokens(tokens, len),
            .tokens = dup_tokens(tokens, len), .dead = true};
    }
    if (record->dead && !w->twin) {
        record->stamp_count = 0;
        record->used = false;
        record->last_use = w->step;
    }
    record->last_use_most = w->step;
    bool known = false;
    for (uint32_t i = 0; i < min_u32(record->stamp_count, STAMPS_MAX); i++) {
        known = known || record->stamp[i] == stamp;
    }
    if (!known) {
        /* Past STAMPS_MAX any stamp is taken: see record_has_stamp. */
        if (record->stamp_count < STAMPS_MAX) record->stamp[record->stamp_count] = stamp;
        record->stamp_count++;
        record->used = false; /* it may take the place of one of another history */
    }
    record_settle(w, record);
    return w->twin || !record->dead;
}

bool record_has_stamp(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len,
    uint64_t stamp)
{
    struct record *record = record_find(w, ns, tokens, len);
    if (!record || (record->dead && !w->twin)) return false;
    if (record->stamp_count > STAMPS_MAX) return true;
    for (uint32_t i = 0; i < record->stamp_count; i++) {
        if (record->stamp[i] == stamp) return true;
    }
    return false;
}

void record_use(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len)
{
    struct record *record = record_find(w, ns, tokens, len);
    record->used = true;
    record->last_use = record->last_use_most = w->step;
}

/* Was such a state ever saved? */
bool record_known(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len)
{
    return record_find(w, ns, tokens, len) != NULL;
}

/* One that is not there any more was evicted. */
static void record_learn(struct world *w, struct record *record)
{
    if (record->dead || w->twin) return;
    record_settle(w, record);
    w->known_dead += record->dead;
}

void record_ask(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len)
{
    struct record *record = record_find(w, ns, tokens, len);
    if (record) record_learn(w, record);
}

void records_before_evict(struct world *w)
{
    if (w->twin) return;
    for (uint32_t i = 0; i < w->record_count; i++) {
        record_learn(w, &w->records[i]);
        w->records[i].was_dead = w->records[i].dead;
        w->records[i].pinned = false;
    }
    for (uint32_t i = 0; i < LEASES_MAX; i++) { /* a source that is not the lease's own is pinned */
        const struct m_lease *lease = &w->leases[i];
        sc_lease_info info;
        if (!lease->used) continue;
        CHECK(w, sc_lease_info_get(w->cache, lease->handle, &info) == SC_OK, "info");
        if (info.source_slot == 0 || info.source_slot == info.working_slot) continue;
        record_find(w, lease->ns, lease->tokens, lease->run.len)->pinned = true;
    }
}

void records_after_evict(struct world *w)
{
    uint64_t newest_gone = 0, oldest_left = UINT64_MAX;
    if (w->twin) return;
    for (uint32_t i = 0; i < w->record_count; i++) {
        struct record *record = &w->records[i];
        record_learn(w, record);
        if (record->was_dead) continue;
        CHECK(w, !record->dead || !record->pinned, "a pinned snapshot at %u was evicted",
            record->len);
        if (record->dead && record->last_use > newest_gone) newest_gone = record->last_use;
        if (!record->dead && !record->pinned && record->last_use_most < oldest_left) {
            oldest_left = record->last_use_most;
        }
    }
    if (strcmp(w->cfg.policy, "lru") != 0) return; /* others have an order of their own */
    CHECK(w, newest_gone <= oldest_left, "a snapshot used at %u went, one used at %u stays",
        (uint32_t)newest_gone, (uint32_t)oldest_left);
}

void records_refresh(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len,
    bool unused)
{
    for (uint32_t at = w->cfg.page; at <= len && !w->twin; at += w->cfg.page) {
        struct record *record = record_find(w, ns, tokens, at);
        if (!record || record->dead) continue;
        record_learn(w, record);
        CHECK(w, !record->dead || !unused || !record->used,
            "a decode snapshot at %u was superseded, but had been used", at);
    }
}

static uint32_t common(const int32_t *a, uint32_t a_len, const int32_t *b, uint32_t b_len)
{
    uint32_t n = 0, max = min_u32(a_len, b_len);
    while (n < max && a[n] == b[n]) n++;
    return n;
}

void path_add(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t len)
{
    len -= len % w->cfg.page;
    if (len == 0) return;
    for (uint32_t i = 0; i < w->path_count; i++) {
        struct path *path = &w->paths[i];
        if (path->ns != ns) continue;
        uint32_t same = common(path->tokens, path->len, tokens, len);
        if (same == len) return; /* holds it already */
        if (same == path->len) {
            free(path->tokens);
            path->tokens = dup_tokens(tokens, len);
            path->len = len;
            return;
        }
    }
    w->paths = grow(w->paths, w->path_count, &w->path_cap, sizeof *w->paths);
    w->paths[w->path_count++] = (struct path){ns, len, dup_tokens(tokens, len)};
}

/* `ns` NS_MAX: all. */
void records_forget(struct world *w, uint32_t ns)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->record_count; i++) {
        if (ns == NS_MAX || w->records[i].ns == ns) {
            free(w->records[i].tokens);
        } else {
            w->records[kept++] = w->records[i];
        }
    }
    w->record_count = kept;
    kept = 0;
    for (uint32_t i = 0; i < w->path_count; i++) {
        if (ns == NS_MAX || w->paths[i].ns == ns) {
            free(w->paths[i].tokens);
        } else {
            w->paths[kept++] = w->paths[i];
        }
    }
    w->path_count = kept;
}

void records_free(struct world *w)
{
    records_forget(w, NS_MAX);
    free(w->records);
    free(w->paths);
    w->records = NULL;
    w->paths = NULL;
}

/* Records that the answer passed over are dead; the one that it names must be there. */
static bool learn_states(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t bound,
    uint32_t state_len)
{
    uint64_t hash[TOKENS_MAX + 1];
    bool named = state_len == 0, beyond = false;
    hash[0] = 1;
    for (uint32_t i = 0; i < bound; i++) hash[i + 1] = mix(hash[i], (uint32_t)tokens[i]);
    for (uint32_t i = 0; i < w->record_count; i++) {
        struct record *record = &w->records[i];
        if (record->ns != ns || record->len > bound || record->len < state_len ||
            record->hash != hash[record->len] ||
            memcmp(record->tokens, tokens, record->len * sizeof *tokens) != 0) {
            continue;
        }
        if (record->len == state_len) {
            CHECK(w, !record->dead, "a hit at %u tokens, which were evicted", state_len);
            named = true;
        } else {
            beyond = true;
            if (!record->dead) {
                record->dead = true;
                w->known_dead++;
                model_trace(w, "  gone: ns %u len %u", ns, record->len);
            }
        }
    }
    CHECK(w, named, "a hit at %u tokens, where nothing was ever saved", state_len);
    return beyond;
}

static void check_answer(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t bound,
    const sc_answer *answer)
{
    uint32_t page = w->cfg.page, state = answer->state_len[SC_TIER_DEVICE], kv = answer->kv_len;
    uint32_t whole = bound - bound % page;
    CHECK(w, state <= whole && state % page == 0, "state_len %u of %u", state, bound);
    CHECK(w, kv <= whole && kv % page == 0 && kv >= state, "kv_len %u, state_len %u of %u", kv,
        state, bound);
    for (int tier = SC_TIER_HOST; tier < SC_TIER_COUNT; tier++) {
        CHECK(w, answer->state_len[tier] == 0, "tier %d", tier);
    }
    uint32_t known = 0;
    for (uint32_t i = 0; i < w->path_count; i++) {
        if (w->paths[i].ns != ns) continue;
        uint32_t same = common(w->paths[i].tokens, w->paths[i].len, tokens, bound);
        if (same > known) known = same;
    }
    CHECK(w, kv <= known - known % page || w->cfg.without_kv,
        "kv_len %u, but only %u tokens were ever there", kv, known);
    uint32_t branch = kv - kv % w->cfg.grid;
    if (w->cfg.without_kv) { /* the tree knows more tokens than it has KV for: none */
        branch = answer->branch_len ? answer->branch_len : branch;
        CHECK(w, kv == state && branch <= known && branch % w->cfg.grid == 0,
            "kv_len %u, state_len %u, branch_len %u, known %u", kv, state, branch, known);
    }
    CHECK(w, answer->branch_len == (branch > state ? branch : 0), "branch_len %u, kv_len %u, "
        "state_len %u", answer->branch_len, kv, state);
    bool beyond = learn_states(w, ns, tokens, bound, state);
    sc_reason reason = answer->reason;
    CHECK(w, (reason == SC_REASON_TOO_SHORT) == (whole == 0), "reason %d", (int)reason);
    CHECK(w, whole == 0 || (reason == SC_REASON_NONE) == (state == whole), "reason %d, %u of %u",
        (int)reason, state, whole);
    CHECK(w, reason != SC_REASON_EVICTED || beyond, "evicted, but nothing was saved beyond %u",
        state);
    CHECK(w, reason != SC_REASON_NO_STATE || kv > state || w->cfg.without_kv,
        "kv_len %u, state_len %u", kv, state);
    CHECK(w, reason != SC_REASON_NO_PREFIX || kv == state, "kv_len %u, state_len %u", kv, state);
    CHECK(w, (reason == SC_REASON_PENDING) == (answer->pending_len > 0), "reason %d",
        (int)reason);
    CHECK(w, reason < SC_REASON_COUNT, "reason %d", (int)reason);
    if (state > 0) w->op_hit = true;
}

sc_answer model_lookup(struct world *w, uint32_t ns, const int32_t *tokens, uint32_t count,
    uint32_t len_max)
{
    sc_key key = {.ns = w->ns[ns].handle, .tokens = tokens, .token_count = count,
        .len_max = len_max};
    sc_answer answer;
    CHECK(w, raw_lookup(w, &key, 1, &answer) == SC_OK && answer.status == SC_OK, "%s: %s",
        sc_status_name(answer.status), sc_last_error()->text);
    check_answer(w, ns, tokens, len_max ? len_max : count - 1, &answer);
    return answer;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Distinct pages that the look-ups of all paths find; cuts the paths back to them. */
static uint64_t census_pages(struct world *w)
{
    uint64_t *pages = NULL, distinct = 0;
    uint32_t count = 0, cap = 0, kept = 0;
    for (uint32_t i = 0; i < w->path_count; i++) {
        struct path path = w->paths[i];
        sc_answer answer = model_lookup(w, path.ns, path.tokens, path.len, path.len);
        path.len = answer.kv_len;
        uint64_t hash = mix(1000, path.ns);
        for (uint32_t at = 0; at < path.len; at++) {
            hash = mix(hash, (uint32_t)path.tokens[at]);
            if ((at + 1) % w->cfg.page != 0) continue;
            pages = grow(pages, count, &cap, sizeof *pages);
            pages[count++] = hash;
        }
        if (path.len == 0) {
            free(path.tokens);
            w->paths[i].len = 0;
            w->paths[i].tokens = NULL;
        } else {
            w->paths[i] = path;
        }
    }
    for (uint32_t i = 0; i < w->path_count; i++) {
        if (w->paths[i].tokens) w->paths[kept++] = w->paths[i];
    }
    w->path_count = kept;
    if (count) qsort(pages, count, sizeof *pages, compare_u64);
    for (uint32_t i = 0; i < count; i++) distinct += i == 0 || pages[i] != pages[i - 1];
    free(pages);
    return distinct;
}

void model_census(struct world *w)
{
    if (w->twin) return;
    uint64_t found = 0;
    for (uint32_t i = 0; i < w->record_count; i++) {
        struct record record = w->records[i];
        if (!w->ns[record.ns].open) continue;
        sc_answer answer =
            model_lookup(w, record.ns, record.tokens, record.len, record.len);
        found += answer.state_len[SC_TIER_DEVICE] == record.len;
    }
    sc_cache_stats stats = world_stats(w);
    CHECK(w, found == stats.snapshots_alive, "%u snapshots answer, %u are said to be alive",
        (uint32_t)found, (uint32_t)stats.snapshots_alive);
    if (!w->cfg.without_kv) {
        uint64_t pages = census_pages(w);
        sc_room room = world_room(w);
        CHECK(w, pages == room.pages_cached, "%u pages answer, %u are said to be cached",
            (uint32_t)pages, (uint32_t)room.pages_cached);
    }
    totals.censuses++;
}

/* Keys that must be refused, and only they. */
static sc_status spoil_key(struct world *w, sc_key *key)
{
    switch (draw(&w->rng_read, 5)) {
    case 0:
        key->ns.generation += 2;
        return SC_ERR_STALE;
    case 1:
        key->ns.id = 12345;
        return SC_ERR_STALE;
    case 2:
        key->tokens = NULL;
        return SC_ERR_INVALID;
    case 3:
        key->len_max = key->token_count + 1;
        return SC_ERR_INVALID;
    default:
        key->mark_count = 1;
        return SC_ERR_INVALID;
    }
}

static void lookup_badly(struct world *w)
{
    sc_answer answer;
    sc_key key = {.tokens = NULL};
    CHECK(w, seen(w, CALL_LOOKUP, sc_cache_lookup(NULL, &key, 1, &answer)) == SC_ERR_INVALID, "");
    CHECK(w, seen(w, CALL_LOOKUP, sc_cache_lookup(w->cache, NULL, 1, &answer)) == SC_ERR_INVALID,
        "keys");
    CHECK(w, seen(w, CALL_LOOKUP, sc_cache_lookup(w->cache, &key, 1, NULL)) == SC_ERR_INVALID,
        "answers");
}

void op_lookup(struct world *w)
{
    if (w->twin) return;
    struct sc_prng *rng = &w->rng_read;
    if (one_in(rng, 50)) lookup_badly(w);
    sc_key keys[BATCH_MAX];
    struct prompt prompts[BATCH_MAX];
    uint32_t ns[BATCH_MAX], count = 1 + draw(rng, BATCH_MAX);
    sc_status wanted[BATCH_MAX];
    sc_answer answers[BATCH_MAX];
    for (uint32_t i = 0; i < count; i++) {
        int open = ns_pick_open(w, rng);
        if (open < 0) return;
        ns[i] = (uint32_t)open;
        prompt_draw(w, rng, &prompts[i]);
        keys[i] = (sc_key){.ns = w->ns[open].handle, .tokens = prompts[i].tokens,
            .token_count = prompts[i].count};
        if (one_in(rng, 3)) keys[i].len_max = 1 + draw(rng, prompts[i].count);
        wanted[i] = one_in(rng, 16) ? spoil_key(w, &keys[i]) : SC_OK;
    }
    sc_cache_stats stats = world_stats(w);
    sc_room room = world_room(w);
    uint64_t calls = fail_alloc_calls(&w->fa);
    CHECK(w, raw_lookup(w, keys, count, answers) == SC_OK, "%s", sc_last_error()->text);
    CHECK(w, fail_alloc_calls(&w->fa) == calls, "a look-up allocates");
    world_same(w, &stats, &room, "a look-up");
    for (uint32_t i = 0; i < count; i++) {
        CHECK(w, seen(w, CALL_LOOKUP_EACH, answers[i].status) == wanted[i], "item %u: %s, not %s",
            i, sc_status_name(answers[i].status), sc_status_name(wanted[i]));
        if (wanted[i] != SC_OK) continue;
        uint32_t bound = keys[i].len_max ? keys[i].len_max : keys[i].token_count - 1;
        check_answer(w, ns[i], prompts[i].tokens, bound, &answers[i]);
    }
}

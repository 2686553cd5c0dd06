/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the prefix index. Each input is a program: a byte picks an operation, the next ones its
 * arguments. Tokens come from an alphabet of four, so that paths meet and split all the time.
 *
 * After each operation the tree verifies itself. Beside that, every KV id and snapshot id that the
 * tree took is followed:
 *
 *   FRESH --insert keeps it--> HELD --sink--> GONE
 *
 * An id that leaves must be HELD, and when the last space is gone none may be HELD any more:
 * nothing is lost, nothing is handed out twice. */
#include "fuzz/fuzz.h"
#include "radix/radix.h"

#include <stddef.h>
#include <string.h>

enum { KEY_MAX = 24, ID_MAX = 1 << 16, RECEIPT_MAX = 64, INPUT_MAX = 4096 };
enum id_state { FRESH = 0, HELD = 1, GONE = 2 };

struct world {
    const uint8_t *data;
    size_t size, at;
    struct sc_radix *radix;
    struct sc_radix_sink sink;
    uint32_t page, space;
    uint32_t kv_next, snapshot_next;
    struct sc_radix_receipt receipts[RECEIPT_MAX];
    bool live[RECEIPT_MAX];
    uint32_t receipt_count;
    uint8_t kv[ID_MAX], snapshot[ID_MAX]; /* left all FRESH by finish() */
};

static uint32_t take(struct world *w, uint32_t below)
{
    uint8_t byte = w->at < w->size ? w->data[w->at] : 0;
    w->at++;
    return byte % below;
}

static uint32_t take_key(struct world *w, int32_t *tokens)
{
    uint32_t count = take(w, KEY_MAX + 1);
    for (uint32_t i = 0; i < count; i += 4) {
        uint32_t byte = take(w, 256);
        for (uint32_t j = i; j < i + 4 && j < count; j++) {
            tokens[j] = (int32_t)(byte >> (2 * (j - i)) & 3);
        }
    }
    return count;
}

static void on_kv(void *ctx, const int32_t *ids, uint32_t count, enum sc_radix_cause cause)
{
    struct world *w = ctx;
    (void)cause;
    for (uint32_t i = 0; i < count; i++) {
        FUZZ_CHECK(ids[i] >= 0 && ids[i] < ID_MAX && w->kv[ids[i]] == HELD);
        w->kv[ids[i]] = GONE;
    }
}

static void on_snapshot(void *ctx, uint32_t snapshot, enum sc_radix_cause cause)
{
    struct world *w = ctx;
    (void)cause;
    FUZZ_CHECK(snapshot > 0 && snapshot < ID_MAX && w->snapshot[snapshot] == HELD);
    w->snapshot[snapshot] = GONE;
}

static void op_insert(struct world *w)
{
    int32_t tokens[KEY_MAX], ids[KEY_MAX], canonical[KEY_MAX];
    struct sc_radix_save saves[3];
    sc_status each[3];
    uint32_t count = take_key(w, tokens) / w->page * w->page, pages = count / w->page;
    struct sc_radix_run runs[2] = {{0, 1 + take(w, 2)}, {w->page * take(w, 8), 3 + take(w, 2)}};
    bool two = runs[1].start > 0 && runs[1].start < count;
    uint32_t save_count = 0;
    if (w->kv_next > ID_MAX - KEY_MAX || w->snapshot_next > ID_MAX - 4) {
        return;
    }
    for (uint32_t i = 0, len = 0; i < 3; i++) {
        len += w->page * take(w, 8);
        if (len > 0 && len <= count && (save_count == 0 || saves[save_count - 1].len < len)) {
            saves[save_count++] = (struct sc_radix_save){len, ++w->snapshot_next};
        }
    }
    for (uint32_t i = 0; i < pages; i++) {
        ids[i] = (int32_t)w->kv_next++;
    }
    struct sc_radix_insert insert = {w->space, tokens, count, ids, runs, two ? 2u : 1u, saves,
        save_count, NULL, 0, SC_NODE_NONE};
    struct sc_radix_inserted done;
    sc_status status = sc_radix_insert(w->radix, &insert, &w->sink, canonical, each, &done);
    if (status != SC_OK) {
        return;
    }
    FUZZ_CHECK(done.len <= count && done.prefix_len <= done.len && done.len % w->page == 0);
    for (uint32_t i = 0; i < done.len / w->page; i++) {
        FUZZ_CHECK(canonical[i] == ids[i] || w->kv[canonical[i]] == HELD);
        w->kv[canonical[i]] = HELD;
    }
    for (uint32_t i = 0; i < save_count; i++) {
        FUZZ_CHECK(each[i] != SC_OK || saves[i].len <= done.len);
        w->snapshot[saves[i].snapshot] = each[i] == SC_OK ? HELD : FRESH;
    }
}

static void op_match(struct world *w, bool touch, bool lock)
{
    int32_t tokens[KEY_MAX];
    struct sc_radix_match match;
    uint32_t count = take_key(w, tokens), len_max = take(w, KEY_MAX + 1);
    const struct sc_radix_key key = {.tokens = tokens, .token_count = count};
    FUZZ_CHECK(sc_radix_match(w->radix, w->space, &key, len_max, &match) == SC_OK);
    FUZZ_CHECK(match.kv_len <= count && match.kv_len <= len_max && match.kv_len % w->page == 0);
    FUZZ_CHECK(match.state_len <= match.kv_len && match.branch_len <= match.kv_len);
    FUZZ_CHECK((match.state_len == 0) == (match.snapshot == 0));
    FUZZ_CHECK(match.snapshot == 0 || w->snapshot[match.snapshot] == HELD);
    if (touch) {
        sc_radix_touch(w->radix, &match);
    }
    if (lock && w->receipt_count < RECEIPT_MAX) {
        uint32_t what = 1 + take(w, 3);
        sc_node node = what == SC_RADIX_LOCK_STATE ? match.state_node : match.node;
        struct sc_radix_receipt *receipt = &w->receipts[w->receipt_count];
        if (sc_radix_lock(w->radix, node, what, receipt) == SC_OK) {
            w->live[w->receipt_count++] = true;
        }
    }
}

static void op_unlock(struct world *w)
{
    if (w->receipt_count == 0) {
        struct sc_radix_receipt never = {take(w, 4), take(w, 256) + 7};
        FUZZ_CHECK(sc_radix_unlock(w->radix, never) == SC_ERR_STALE);
        return;
    }
    uint32_t index = take(w, w->receipt_count);
    sc_status want = w->live[index] ? SC_OK : SC_ERR_STALE;
    FUZZ_CHECK(sc_radix_unlock(w->radix, w->receipts[index]) == want);
    w->live[index] = false;
}

static void op_evict(struct world *w, bool state)
{
    uint64_t tokens = 0;
    uint32_t snapshots = 0;
    if (state) {
        (void)sc_radix_evict_state(w->radix, 1 + take(w, 4), &w->sink, &snapshots);
    } else {
        (void)sc_radix_evict_kv(w->radix, 1 + take(w, 32), &w->sink, &tokens, &snapshots);
    }
}

static void op_drop(struct world *w, bool excess)
{
    int32_t tokens[KEY_MAX];
    struct sc_radix_match match;
    uint32_t count = take_key(w, tokens), gone = 0;
    const struct sc_radix_key key = {.tokens = tokens, .token_count = count};
    FUZZ_CHECK(sc_radix_match(w->radix, w->space, &key, count, &match) == SC_OK);
    if (match.node == SC_NODE_NONE) {
        return;
    }
    if (excess) {
        (void)sc_radix_evict_excess(w->radix, match.node, &w->sink, &gone);
    } else if (match.state_node != SC_NODE_NONE) {
        (void)sc_radix_snapshot_drop(w->radix, match.state_node, &w->sink);
    }
}

static void finish(struct world *w)
{
    for (uint32_t i = 0; i < w->receipt_count; i++) {
        if (w->live[i]) {
            FUZZ_CHECK(sc_radix_unlock(w->radix, w->receipts[i]) == SC_OK);
        }
    }
    FUZZ_CHECK(sc_radix_space_remove(w->radix, w->space, &w->sink) == SC_OK);
    FUZZ_CHECK(sc_radix_verify(w->radix) == SC_OK);
    for (uint32_t id = 0; id < w->kv_next; id++) {
        FUZZ_CHECK(w->kv[id] != HELD);
        w->kv[id] = FRESH;
    }
    for (uint32_t id = 0; id <= w->snapshot_next; id++) {
        FUZZ_CHECK(w->snapshot[id] != HELD);
        w->snapshot[id] = FRESH;
    }
}

static void step(struct world *w)
{
    switch (take(w, 10)) {
    case 0:
    case 1:
    case 2: op_insert(w); break;
    case 3: op_match(w, true, false); break;
    case 4: op_match(w, false, true); break;
    case 5: op_unlock(w); break;
    case 6: op_evict(w, false); break;
    case 7: op_evict(w, true); break;
    case 8: op_drop(w, false); break;
    default:
        op_drop(w, true);
        FUZZ_CHECK(sc_radix_trim(w->radix, UINT64_MAX, NULL) == SC_OK);
        break;
    }
    FUZZ_CHECK(sc_radix_verify(w->radix) == SC_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world world;
    struct world *w = &world;
    if (size > INPUT_MAX) {
        return 0;
    }
    memset(w, 0, offsetof(struct world, kv));
    w->data = data;
    w->size = size;
    w->sink = (struct sc_radix_sink){w, on_kv, on_snapshot};
    w->page = 1 + take(w, 4);
    struct sc_radix_options options = {.page_tokens = w->page,
        .grid_tokens = w->page * (1 + take(w, 4)),
        .path_snapshots_max = take(w, 4),
        .with_kv = true,
        .token_max = take(w, 2) ? 64 : 0};
    FUZZ_CHECK(sc_radix_create(&options, &w->radix) == SC_OK);
    FUZZ_CHECK(sc_radix_space_add(w->radix, &w->space) == SC_OK);
    while (w->at < w->size) {
        step(w);
    }
    finish(w);
    sc_radix_destroy(w->radix);
    return 0;
}

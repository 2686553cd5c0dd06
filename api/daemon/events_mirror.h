/* SPDX-License-Identifier: Apache-2.0 */
/* What the consumers of events have been told: states by key, and in which tiers each is.
 *
 * The cache names copies by numbers and brings the tokens behind a base (statecache/events.h);
 * consumers know states by hashes of their whole prefix. The mirror has both, so that a removal can
 * name its hash and a picture can be drawn at any time, without the cache:
 *
 *   copy --tsearch--> state --parent--> state ...       tokens [from, len) each
 *                       '- copies: a bit for each tier; 0: gone, but others continue it
 *
 * Hash of the first n tokens, in blocks of `block`; the last may be shorter:
 *
 *   h(0) = NONE,  h(i) = SHA-256(CBOR([h(i - 1), [tokens of block i], extra]))
 *
 * `extra` is nil, or [["lora", "ID/GENERATION", ""] if there is an adapter, ["mm", hex of the
 * mark's id, position in the block] for each mark]. On the wire: the last 8 bytes, big-endian. This
 * is what vLLM calls sha256_cbor, so that a router which computes it for its own requests finds
 * them. Facts: docs/reference/events.md.
 *
 * Invariants
 * (1) A state with copies, or children, is in the list; parents before their children.
 * (2) Each copy is a bit of its state's `copies`; two copies of a state are in two tiers. A second
 *     state of the same key may be there for a while (another history): then their hashes are
 *     equal.
 *
 * Threads: the events' own. */
#ifndef SC_DAEMON_EVENTS_MIRROR_H
#define SC_DAEMON_EVENTS_MIRROR_H

#include "statecache/events.h"

enum { SD_HASH_BYTES = 32 };

struct sd_state {
    struct sd_state *parent;
    struct sd_state *next, *before; /* of all */
    uint32_t from, len, mark_count, children;
    uint32_t copies;
    uint64_t hash;                  /* as on the wire */
    uint64_t adapter_id, adapter_generation;
    uint8_t chain[SD_HASH_BYTES];   /* of the whole blocks */
    int32_t *tokens;                /* [len - from] */
    sc_mark *marks;                 /* those in between */
};

struct sd_mirror {
    uint32_t block;
    void *by_copy;                  /* tsearch */
    struct sd_state *first, *last;
    uint64_t state_count, copy_count;
    int32_t *tokens;                /* scratch */
    size_t token_cap;
    sc_mark *marks;
    size_t mark_cap;
};

void sd_mirror_init(struct sd_mirror *mirror, uint32_t block);
void sd_mirror_clear(struct sd_mirror *mirror);
/* SC_EVENT_STORED. SC_ERR_NO_MEMORY; SC_ERR_CORRUPT: it names a base that is not there. Then the
 * mirror is worth nothing, and must be cleared. */
sc_status sd_mirror_store(struct sd_mirror *mirror, const sc_event *event,
    const struct sd_state **state_out);
/* SC_EVENT_REMOVED: the copy has gone; `hash_out` is what it was told as. SC_ERR_CORRUPT. */
sc_status sd_mirror_remove(struct sd_mirror *mirror, const sc_event *event, uint64_t *hash_out);
/* The nearest state above that is there; NULL: none. */
const struct sd_state *sd_state_base(const struct sd_state *state);
/* Tokens and marks from `from` on, valid until the next call. SC_ERR_NO_MEMORY. */
sc_status sd_state_path(struct sd_mirror *mirror, const struct sd_state *state, uint32_t from,
    const int32_t **tokens_out, const sc_mark **marks_out, uint32_t *mark_count_out);
/* The adapter's name in hashes and events; `text` "" where there is none. */
enum { SD_ADAPTER_BYTES = 48 };
void sd_adapter_name(uint64_t id, uint64_t generation, char text[SD_ADAPTER_BYTES]);
/* Hex of a mark's id. */
enum { SD_MARK_TEXT_BYTES = 33 };
void sd_mark_text(const sc_mark *mark, char text[SD_MARK_TEXT_BYTES]);

#endif

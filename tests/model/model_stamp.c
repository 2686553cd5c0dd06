/* SPDX-License-Identifier: Apache-2.0 */
/* Stamps: what the fake forward writes in place of states and KV.
 *
 *   prefill [from, to)   pieces end at absolute multiples of the schema's chunk grid:
 *        from=5, to=14, chunk 4:    5..8 | 8..12 | 12..14
 *                                   each piece starts the chain anew from the state before it
 *   decode [from, to)    one piece a token, of another form
 *
 * A prompt cut at multiples of the chunk has the same pieces, hence the same stamps; a cut
 * elsewhere makes two pieces out of one and changes every later stamp, as it changes bits in real
 * arithmetic. The KV of a token hangs on the state at the start of its piece and on the piece's
 * tokens up to itself: never on later ones.
 *
 * In a slot every part carries the stamp twice, each time mixed with the part's number, so that a
 * part that a mover forgot or a copy of half a slot shows. */
#include <string.h>

#include "cache_model.h"

enum { TAG_CHUNK = 11, TAG_DECODE = 12, TAG_TOKEN = 13, TAG_KV = 14 };

static void run_token(const struct world *w, struct run *run, uint64_t *state, int32_t token)
{
    *state = mix(*state, mix(TAG_TOKEN, (uint32_t)token));
    uint32_t page = run->len / w->cfg.page;
    if (run->len % w->cfg.page == 0) run->page[page] = 0;
    run->page[page] = mix(run->page[page], mix(*state, TAG_KV));
    run->len++;
}

void run_prefill(const struct world *w, struct run *run, const int32_t *tokens, uint32_t to)
{
    uint32_t chunk = w->cfg.chunk_grid;
    while (run->len < to) {
        uint32_t end = min_u32((run->len / chunk + 1) * chunk, to);
        uint64_t state = mix(run->state, TAG_CHUNK);
        while (run->len < end) run_token(w, run, &state, tokens[run->len]);
        run->state = state;
    }
}

void run_decode(const struct world *w, struct run *run, const int32_t *tokens, uint32_t to)
{
    while (run->len < to) {
        uint64_t state = mix(run->state, TAG_DECODE);
        run_token(w, run, &state, tokens[run->len]);
        run->state = state;
    }
}

void run_cold(struct world *w, struct run *run, const int32_t *tokens, const sc_history *history,
    uint32_t count)
{
    run->state = 0;
    run->len = 0;
    for (uint32_t i = 0; i < count; i++) {
        CHECK(w, history[i].end > run->len, "stretch %u of a history ends at %u, after %u", i,
            history[i].end, run->len);
        CHECK(w, i == 0 || history[i].form != SC_FORM_KIND_DECODE ||
                history[i - 1].form != SC_FORM_KIND_DECODE,
            "stretches %u and %u of a history are both decode", i - 1, i);
        if (history[i].form == SC_FORM_KIND_DECODE) {
            run_decode(w, run, tokens, history[i].end);
        } else {
            CHECK(w, history[i].form == SC_FORM_KIND_PREFILL, "form %d", (int)history[i].form);
            run_prefill(w, run, tokens, history[i].end);
        }
    }
    totals.cold_checks++;
}

static char *part_at(const struct world *w, uint32_t part, int32_t slot)
{
    const sc_layer_view *view = &w->view[part];
    return (char *)(uintptr_t)(view->base + (uint64_t)((int64_t)slot * view->slot_stride));
}

void slot_write(struct world *w, int32_t slot, uint64_t stamp)
{
    for (uint32_t part = 0; part < w->view_count; part++) {
        uint64_t value[2] = {mix(stamp, part), mix(stamp, part + 100)};
        char *at = part_at(w, part, slot);
        memcpy(at, &stamp, sizeof stamp); /* in plain: what a reader compares */
        memcpy(at + sizeof stamp, &value[0], sizeof value[0]);
        memcpy(at + w->view[part].bytes - sizeof value[1], &value[1], sizeof value[1]);
    }
}

uint64_t slot_read(struct world *w, int32_t slot, const char *what)
{
    uint64_t stamp = 0;
    for (uint32_t part = 0; part < w->view_count; part++) {
        const char *at = part_at(w, part, slot);
        if (slot == 0) {
            for (uint64_t i = 0; i < w->view[part].bytes; i++) {
                CHECK(w, at[i] == 0, "%s: the null slot is not zero (part %u)", what, part);
            }
            continue;
        }
        uint64_t here, value[2];
        memcpy(&here, at, sizeof here);
        memcpy(&value[0], at + sizeof here, sizeof value[0]);
        memcpy(&value[1], at + w->view[part].bytes - sizeof value[1], sizeof value[1]);
        if (part == 0) stamp = here;
        CHECK(w, here == stamp && value[0] == mix(stamp, part) &&
                value[1] == mix(stamp, part + 100),
            "%s: part %u of slot %d does not belong to part 0", what, part, slot);
    }
    totals.stamps_checked++;
    return stamp;
}

void extra_write(struct world *w, int32_t slot, uint32_t tag)
{
    memcpy((char *)(uintptr_t)(w->extra_view.base +
               (uint64_t)((int64_t)slot * w->extra_view.slot_stride)), &tag, sizeof tag);
}

uint32_t extra_read(struct world *w, int32_t slot)
{
    uint32_t tag;
    memcpy(&tag, (char *)(uintptr_t)(w->extra_view.base +
                     (uint64_t)((int64_t)slot * w->extra_view.slot_stride)), sizeof tag);
    return tag;
}

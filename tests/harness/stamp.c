/* SPDX-License-Identifier: Apache-2.0 */
/* Stamps: what the fake device writes in place of states and KV.
 *
 *   prefill [from, to)   pieces end at absolute multiples of the schema's chunk grid, as the chunk
 *                        form stores and loads the carried state there
 *   decode [from, to)    one piece a token, of another form
 *
 * So a prompt cut at multiples of the chunk has one stamp, and a cut elsewhere another one, as it
 * has other bits in real arithmetic. The KV of a token hangs on the state at the start of its
 * piece and on the piece's tokens up to itself, never on later ones. A page's stamp is a chain over
 * its tokens' KV.
 *
 * In a slot every 8 bytes of every part carry the stamp, each in its own way: a part that a mover
 * forgot, half a copy or a shifted one shows. */
#include <string.h>

#include "harness.h"

enum { TAG_ROOT = 10, TAG_CHUNK = 11, TAG_DECODE = 12, TAG_TOKEN = 13, TAG_KV = 14 };

uint64_t h_root(uint64_t adapter_id, uint64_t adapter_generation)
{
    return h_mix(h_mix(TAG_ROOT, adapter_id), adapter_generation);
}

static void run_token(const struct h_world *w, struct h_run *run, uint64_t *state,
    const struct h_text *text)
{
    uint64_t kind = TAG_TOKEN + 16u * text->mark[run->len];
    *state = h_mix(*state, (kind << 32) | (uint32_t)text->tokens[run->len]);
    uint32_t page = run->len / w->cfg.page;
    if (run->len % w->cfg.page == 0) run->page[page] = TAG_KV;
    run->page[page] = h_mix(run->page[page], *state);
    run->len++;
}

void h_run_prefill(const struct h_world *w, struct h_run *run, const struct h_text *text,
    uint32_t to)
{
    while (run->len < to) {
        uint32_t end = h_min((run->len / w->chunk_grid + 1) * w->chunk_grid, to);
        uint64_t state = h_mix(run->state, TAG_CHUNK);
        while (run->len < end) run_token(w, run, &state, text);
        run->state = state;
    }
}

void h_run_decode(const struct h_world *w, struct h_run *run, const struct h_text *text,
    uint32_t to)
{
    while (run->len < to) {
        uint64_t state = h_mix(run->state, TAG_DECODE);
        run_token(w, run, &state, text);
        run->state = state;
    }
}

void h_run_cold(struct h_sched *s, struct h_run *run, uint64_t root, const struct h_text *text,
    const sc_history *history, uint32_t count)
{
    struct h_world *w = s->world;
    run->state = root;
    run->len = 0;
    for (uint32_t i = 0; i < count; i++) {
        H_CHECK(w, history[i].end > run->len && history[i].end <= H_TOKENS_MAX,
            "stretch %u of a history ends at %u, after %u", i, history[i].end, run->len);
        if (history[i].form == SC_FORM_KIND_DECODE) {
            H_CHECK(w, i == 0 || history[i - 1].form != SC_FORM_KIND_DECODE,
                "two stretches of decode follow each other");
            h_run_decode(w, run, text, history[i].end);
        } else {
            H_CHECK(w, history[i].form == SC_FORM_KIND_PREFILL, "form %d", (int)history[i].form);
            h_run_prefill(w, run, text, history[i].end);
        }
    }
    s->totals->cold_checks++;
}

uint32_t h_marks(const struct h_text *text, uint32_t from, uint32_t to, sc_mark *marks_out)
{
    uint32_t count = 0;
    for (uint32_t at = from; at < to; at++) {
        if (text->mark[at] == 0) continue;
        marks_out[count] = (sc_mark){.at = at};
        /* Two ids differ in their last byte alone, as a careless comparison would not see. */
        marks_out[count++].id[15] = text->mark[at];
    }
    return count;
}

static char *part_at(const sc_layer_view *view, uint32_t slot)
{
    return (char *)(uintptr_t)(view->base + (uint64_t)((int64_t)slot * view->slot_stride));
}

/* Word 0 of each part holds the stamp itself. */
static uint64_t word_of(uint64_t stamp, uint32_t part, uint64_t word)
{
    return stamp ^ (word ? (part * UINT64_C(64) + word) * UINT64_C(0x9e3779b97f4a7c15) : 0);
}

void h_slot_write(struct h_world *w, int32_t slot, uint64_t stamp)
{
    H_CHECK(w, slot > 0 && (uint32_t)slot <= w->cfg.slots, "a kernel writes slot %d", slot);
    for (uint32_t part = 0; part < w->view_count; part++) {
        char *at = part_at(&w->view[part], (uint32_t)slot);
        for (uint64_t i = 0; i < w->view[part].bytes / 8; i++) {
            uint64_t word = word_of(stamp, part, i);
            memcpy(at + 8 * i, &word, sizeof word);
        }
    }
}

static uint64_t slot_read(struct h_sched *s, const sc_layer_view *views, uint32_t slot,
    const char *what)
{
    uint64_t stamp = 0, word;
    for (uint32_t part = 0; part < s->world->view_count; part++) {
        const char *at = part_at(&views[part], slot);
        if (part == 0) memcpy(&stamp, at, sizeof stamp);
        for (uint64_t i = 0; i < views[part].bytes / 8; i++) {
            memcpy(&word, at + 8 * i, sizeof word);
            H_CHECK(s->world, word == word_of(stamp, part, i),
                "%s: slot %u: part %u does not belong to the state in part 0", what, slot, part);
        }
    }
    s->totals->slots_checked++;
    return stamp;
}

uint64_t h_slot_read(struct h_sched *s, int32_t slot, uint64_t root, const char *what)
{
    struct h_world *w = s->world;
    H_CHECK(w, slot >= 0 && (uint32_t)slot <= w->cfg.slots, "%s: slot %d", what, slot);
    if (slot > 0) return slot_read(s, w->view, (uint32_t)slot, what);
    uint64_t word = 0;
    for (uint32_t part = 0; part < w->view_count; part++) {
        for (uint64_t i = 0; i < w->view[part].bytes / 8 && word == 0; i++) {
            memcpy(&word, part_at(&w->view[part], 0) + 8 * i, sizeof word);
        }
        H_CHECK(w, word == 0, "%s: the null slot is not zero (part %u)", what, part);
    }
    return root;
}

uint64_t h_side_read(struct h_sched *s, uint32_t slot, const char *what)
{
    return slot_read(s, s->world->side_view, slot, what);
}

static char *extra_at(struct h_world *w, int32_t slot)
{
    H_CHECK(w, slot > 0 && (uint32_t)slot <= w->cfg.extras, "extras slot %d", slot);
    return part_at(&w->extra_view, (uint32_t)slot);
}

void h_extra_write(struct h_world *w, int32_t slot, uint32_t tag)
{
    char *at = extra_at(w, slot);
    for (uint64_t i = 0; i < w->extra_view.bytes / 4; i++) memcpy(at + 4 * i, &tag, sizeof tag);
}

uint32_t h_extra_read(struct h_world *w, int32_t slot)
{
    const char *at = extra_at(w, slot);
    uint32_t tag, word;
    memcpy(&tag, at, sizeof tag);
    for (uint64_t i = 1; i < w->extra_view.bytes / 4; i++) {
        memcpy(&word, at + 4 * i, sizeof word);
        H_CHECK(w, word == tag, "extras slot %d: word %u is not of the same request", slot,
            (uint32_t)i);
    }
    return tag;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Storage of tokens and KV ids.
 *
 *   chunk 7   | unit 0 | unit 1 | unit 2 | unit 3 | ...          up to 64 units of about 256 tokens
 *   tokens    |=A=====B|B=======|B==C====|  free  |
 *   refs          2         1       2*        0                  * C's holder and the cursor
 *   ids       |=A=====B|B=======|B==C====|        |              one id a page, at the same place
 *
 * A run is contiguous in one chunk, so that a node compares with one memcmp and hands out its ids
 * as one span. Runs are packed one behind the other by a cursor that fills a unit and flows on into
 * the free units that follow it. Holders count per unit: a split of a run adds one holder to the
 * unit it cuts and copies nothing; a unit whose last holder went is free again at once, whatever
 * became of the run's other units. That keeps memory proportional to live tokens (big chunks with
 * one count are pinned by few survivors; an allocation per run wastes a tenth in size classes).
 *
 * Rules, checked by sc_radix_verify under (5):
 *   refs[u] = nodes that touch unit u, + 1 while the cursor stands inside u (never at its start)
 *   bit u of free_units is set if and only if refs[u] == 0
 *   a chunk is on the `partial` list if and only if free_units != 0
 *   at most one chunk is wholly free; further ones go back to the heap
 *
 * A tail takes a whole page, so that an id lies at its page and runs start at pages; the rest of
 * that page is never read.
 *
 * Freed units are used before memory is asked for. Where no free run is long enough, a run is cut
 * into pieces, and each piece becomes a node of its own. */
#include "radix_internal.h"

static uint64_t units_all(const struct rx_chunk *chunk)
{
    return chunk->unit_count == 64 ? UINT64_MAX : (UINT64_C(1) << chunk->unit_count) - 1;
}

static size_t chunk_bytes(const struct sc_radix *r, uint32_t unit_count)
{
    const struct rx_store *s = &r->store;
    size_t tokens = (size_t)unit_count * s->unit_tokens;
    size_t ids = r->with_kv ? (size_t)unit_count * s->unit_pages : 0;
    return (tokens + ids) * sizeof(int32_t) + (size_t)unit_count * sizeof(uint16_t);
}

void rx_store_init(struct sc_radix *r)
{
    struct rx_store *s = &r->store;
    s->unit_pages = r->page >= RX_UNIT_TOKENS ? 1 : RX_UNIT_TOKENS / r->page;
    s->unit_tokens = s->unit_pages * r->page;
    s->unit_max = RX_CHUNK_TOKENS / s->unit_tokens;
    if (s->unit_max > RX_CHUNK_UNITS) s->unit_max = RX_CHUNK_UNITS;
    if (s->unit_max == 0) s->unit_max = 1;
}

void rx_store_deinit(struct sc_radix *r)
{
    struct rx_store *s = &r->store;
    for (uint32_t c = 1; c < s->chunk_count; c++) {
        if (s->chunks[c].unit_count == 0) continue;
        rx_free(r, s->chunks[c].tokens, chunk_bytes(r, s->chunks[c].unit_count));
    }
    rx_free(r, s->chunks, s->chunk_cap * sizeof *s->chunks);
    rx_free(r, s->pieces, s->piece_cap * sizeof *s->pieces);
}

static void partial_link(struct rx_store *s, uint32_t index)
{
    struct rx_chunk *chunk = &s->chunks[index];
    chunk->prev = 0;
    chunk->next = s->partial;
    if (s->partial != 0) s->chunks[s->partial].prev = index;
    s->partial = index;
}

static void partial_unlink(struct rx_store *s, uint32_t index)
{
    const struct rx_chunk *chunk = &s->chunks[index];
    if (chunk->prev != 0) {
        s->chunks[chunk->prev].next = chunk->next;
    } else {
        s->partial = chunk->next;
    }
    if (chunk->next != 0) s->chunks[chunk->next].prev = chunk->prev;
}

/* A wholly free chunk, linked; 0 without memory. Chunks grow with the tree up to the full size. */
static uint32_t chunk_new(struct sc_radix *r)
{
    struct rx_store *s = &r->store;
    if (s->unused == 0) {
        uint32_t used = s->chunk_count == 0 ? 1 : s->chunk_count;
        if (!rx_grow(r, (void **)&s->chunks, &s->chunk_cap, (uint64_t)used + 1,
                sizeof *s->chunks)) {
            return 0;
        }
        s->chunk_count = used; /* index 0 is none */
    }
    uint64_t want = s->unit_total < RX_CHUNK_UNITS_FIRST ? RX_CHUNK_UNITS_FIRST : s->unit_total;
    uint32_t unit_count = want < s->unit_max ? (uint32_t)want : s->unit_max;
    int32_t *memory = rx_alloc(r, chunk_bytes(r, unit_count), 64);
    if (!memory) return 0;

    uint32_t index = s->unused != 0 ? s->unused : s->chunk_count++;
    struct rx_chunk *chunk = &s->chunks[index];
    if (s->unused != 0) s->unused = chunk->next;
    size_t tokens = (size_t)unit_count * s->unit_tokens;
    size_t ids = r->with_kv ? (size_t)unit_count * s->unit_pages : 0;
    *chunk = (struct rx_chunk){.tokens = memory, .ids = ids != 0 ? memory + tokens : NULL,
        .refs = (uint16_t *)(void *)(memory + tokens + ids), .unit_count = unit_count};
    memset(chunk->refs, 0, unit_count * sizeof *chunk->refs);
    chunk->free_units = units_all(chunk);
    s->unit_total += unit_count;
    s->empty_count++;
    partial_link(s, index);
    return index;
}

static void unit_take(struct rx_store *s, uint32_t index, uint32_t unit)
{
    struct rx_chunk *chunk = &s->chunks[index];
    SC_ASSERT_DEBUG(chunk->free_units >> unit & 1);
    if (chunk->free_units == units_all(chunk)) s->empty_count--;
    chunk->free_units &= ~(UINT64_C(1) << unit);
    if (chunk->free_units == 0) partial_unlink(s, index);
}

static void unit_drop(struct sc_radix *r, uint32_t index, uint32_t unit)
{
    struct rx_store *s = &r->store;
    struct rx_chunk *chunk = &s->chunks[index];
    SC_ASSERT(chunk->refs[unit] > 0);
    if (--chunk->refs[unit] > 0) return;
    if (chunk->free_units == 0) partial_link(s, index);
    chunk->free_units |= UINT64_C(1) << unit;
    if (chunk->free_units != units_all(chunk)) return;
    if (s->empty_count == 0) {
        s->empty_count = 1;
        return;
    }
    partial_unlink(s, index);
    s->unit_total -= chunk->unit_count;
    rx_free(r, chunk->tokens, chunk_bytes(r, chunk->unit_count));
    *chunk = (struct rx_chunk){.next = s->unused};
    s->unused = index;
}

/* Length of the run of set bits that starts at `unit`. */
static uint32_t run_at(uint64_t bits, uint32_t unit)
{
    if (unit >= 64) return 0;
    uint64_t rest = ~(bits >> unit);
    uint32_t run = rest == 0 ? 64 : (uint32_t)__builtin_ctzll(rest);
    return run;
}

/* The first run of at least `need` free units of the chunk, else its longest one. */
static uint32_t run_find(const struct rx_chunk *chunk, uint32_t need, uint32_t *unit_out)
{
    uint32_t best = 0;
    uint32_t unit = 0;
    while (unit < chunk->unit_count && chunk->free_units >> unit != 0) {
        unit += (uint32_t)__builtin_ctzll(chunk->free_units >> unit);
        uint32_t run = run_at(chunk->free_units, unit);
        if (run > best) {
            best = run;
            *unit_out = unit;
            if (best >= need) break;
        }
        unit += run;
    }
    return best;
}

/* Puts the cursor at the start of a free run for n tokens; false without memory. */
static bool cursor_open(struct sc_radix *r, uint32_t n)
{
    struct rx_store *s = &r->store;
    uint32_t need = n / s->unit_tokens + (n % s->unit_tokens != 0);
    if (need > s->unit_max) need = s->unit_max;
    uint32_t best = 0;
    uint32_t best_unit = 0;
    uint32_t index = s->partial;
    for (uint32_t seen = 0; index != 0 && seen < RX_CHUNK_SEARCH_MAX; seen++) {
        uint32_t unit = 0;
        uint32_t run = run_find(&s->chunks[index], need, &unit);
        if (run > best) {
            best = run;
            best_unit = unit;
            s->cursor_chunk = index;
            if (best >= need) break;
        }
        index = s->chunks[index].next;
    }
    if (best == 0) {
        s->cursor_chunk = chunk_new(r);
        if (s->cursor_chunk == 0) return false;
    }
    unit_take(s, s->cursor_chunk, best_unit);
    s->chunks[s->cursor_chunk].refs[best_unit] = 1;
    s->cursor_pos = best_unit * s->unit_tokens;
    return true;
}

static void cursor_close(struct sc_radix *r)
{
    struct rx_store *s = &r->store;
    uint32_t index = s->cursor_chunk;
    s->cursor_chunk = 0;
    unit_drop(r, index, s->cursor_pos / s->unit_tokens);
}

/* Tokens that follow the cursor without a gap, n at most. */
static uint32_t cursor_room(const struct rx_store *s, uint32_t n)
{
    const struct rx_chunk *chunk = &s->chunks[s->cursor_chunk];
    uint32_t unit = s->cursor_pos / s->unit_tokens;
    uint64_t room = s->unit_tokens - s->cursor_pos % s->unit_tokens;
    if (room < n && unit + 1 < chunk->unit_count) {
        room += (uint64_t)run_at(chunk->free_units, unit + 1) * s->unit_tokens;
    }
    return room < n ? (uint32_t)room : n;
}

/* Hands n tokens at the cursor to a piece and moves the cursor behind them. */
static void cursor_take(struct rx_store *s, uint32_t n)
{
    uint32_t index = s->cursor_chunk;
    struct rx_chunk *chunk = &s->chunks[index];
    uint32_t first = s->cursor_pos / s->unit_tokens;
    uint32_t last = (s->cursor_pos + n - 1) / s->unit_tokens;
    s->pieces[s->piece_count++] = (struct rx_piece){index, s->cursor_pos, n};
    for (uint32_t unit = first; unit <= last; unit++) {
        if (unit > first) unit_take(s, index, unit);
        chunk->refs[unit]++;
    }
    chunk->refs[first]--; /* the cursor's own */
    s->cursor_pos += n;
    if (s->cursor_pos % s->unit_tokens == 0) {
        s->cursor_chunk = 0;
    } else {
        chunk->refs[last]++;
    }
}

bool rx_store_alloc(struct sc_radix *r, uint32_t n)
{
    struct rx_store *s = &r->store;
    s->piece_count = 0;
    while (n > 0) {
        if (!rx_grow(r, (void **)&s->pieces, &s->piece_cap, (uint64_t)s->piece_count + 1,
                sizeof *s->pieces) ||
            (s->cursor_chunk == 0 && !cursor_open(r, n))) {
            rx_store_abandon(r);
            return false;
        }
        uint32_t room = cursor_room(s, n);
        /* A whole unit is never this short, so a cursor just opened is not closed again. */
        if (room < n && room < RX_PIECE_TOKENS_MIN) {
            cursor_close(r);
            continue;
        }
        cursor_take(s, room);
        n -= room;
    }
    return true;
}

void rx_store_abandon(struct sc_radix *r)
{
    struct rx_store *s = &r->store;
    while (s->piece_count > 0) {
        struct rx_piece piece = s->pieces[--s->piece_count];
        rx_store_release(r, piece.chunk, piece.pos, piece.len);
    }
}

void rx_store_cut(struct sc_radix *r, uint32_t chunk, uint32_t pos)
{
    struct rx_store *s = &r->store;
    if (pos % s->unit_tokens != 0) s->chunks[chunk].refs[pos / s->unit_tokens]++;
}

void rx_store_release(struct sc_radix *r, uint32_t chunk, uint32_t pos, uint32_t len)
{
    const struct rx_store *s = &r->store;
    uint32_t last = (pos + len - 1) / s->unit_tokens;
    for (uint32_t unit = pos / s->unit_tokens; unit <= last; unit++) {
        unit_drop(r, chunk, unit);
    }
}

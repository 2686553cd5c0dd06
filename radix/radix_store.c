/* SPDX-License-Identifier: Apache-2.0 */
/* Storage of tokens and KV ids.
 *
 *   chunk 7   | unit 0 | unit 1 | unit 2 | unit 3 | ...          up to 64 units of about 256 tokens
 *   tokens    |=A=====B|B=======|B==C====|  free  |
 *   refs          2         1       2*        0                  * C's holder and the cursor
 *   ids       |=A=====B|B=======|B==C====|        |              one id a page, at the same place
 *
 * A run is contiguous in one chunk, so that a node compares with one pass and hands out its ids
 * as one span. Runs are packed one behind the other by a cursor that fills a unit and flows on into
 * the free units that follow it. Holders count per unit: a split of a run adds one holder to the
 * unit it cuts and copies nothing; a unit whose last holder went is free again at once, whatever
 * became of the run's other units. That keeps memory proportional to live tokens (big chunks with
 * one count are pinned by few survivors; an allocation per run wastes a tenth in size classes).
 *
 * Tokens and ids of a chunk are two allocations of a power of two (for pages that are one) and
 * start at a page of memory, so that the allocator adds nothing to them.
 *
 * Rules, checked by sc_radix_verify under (5):
 *   refs[u] = nodes that touch unit u, + 1 while the cursor stands inside u (never at its start)
 *   bit u of free_units is set if and only if refs[u] == 0
 *   a chunk is on the `partial` list if and only if free_units != 0
 *   wholly free chunks are counted; they are used before memory is asked for. One in eight chunks
 *   may be free; others go back to the heap at once, all in sc_radix_trim
 *
 * A run may begin up to 15 tokens behind the one before: where token 0 of a key begins a line of
 * memory, every token lies at the same place of a line in the key and in the tree, and the
 * comparison loads whole lines of both.
 *
 * A tail takes a whole page, so that an id lies at its page and runs start at pages; the rest of
 * that page is never read.
 *
 * Freed units are used before memory is asked for. Where no free run is long enough, a run is cut
 * into pieces, and each piece becomes a node of its own; but as long as little is free, a new chunk
 * takes the whole run, and what is left behind waits for shorter ones. */
#include "radix_internal.h"

static uint64_t units_all(const struct rx_chunk *chunk)
{
    return chunk->unit_count == 64 ? UINT64_MAX : (UINT64_C(1) << chunk->unit_count) - 1;
}

static size_t tokens_bytes(const struct sc_radix *r, uint32_t unit_count)
{
    return (size_t)unit_count * r->store.unit_tokens * sizeof(int32_t);
}

static size_t ids_bytes(const struct sc_radix *r, uint32_t unit_count)
{
    return (size_t)unit_count * r->store.unit_pages * sizeof(int32_t);
}

static void chunk_memory_free(struct sc_radix *r, const struct rx_chunk *chunk)
{
    rx_free(r, chunk->tokens, tokens_bytes(r, chunk->unit_count));
    rx_free(r, chunk->ids, ids_bytes(r, chunk->unit_count)); /* NULL without KV */
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
        if (s->chunks[c].unit_count != 0) chunk_memory_free(r, &s->chunks[c]);
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

/* Memory for a chunk that has its count of units; false: it has none. */
static bool chunk_memory_get(struct sc_radix *r, struct rx_chunk *chunk)
{
    enum { ALIGN = 4096 }; /* else jemalloc moves large blocks about, over one more page */
    size_t bytes = tokens_bytes(r, chunk->unit_count);
    chunk->tokens = rx_alloc(r, bytes, bytes < ALIGN ? 64 : ALIGN);
    if (!chunk->tokens || !r->with_kv) return chunk->tokens != NULL;
    bytes = ids_bytes(r, chunk->unit_count);
    chunk->ids = rx_alloc(r, bytes, bytes < ALIGN ? 64 : ALIGN);
    if (chunk->ids) return true;
    rx_free(r, chunk->tokens, tokens_bytes(r, chunk->unit_count));
    return false;
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
    struct rx_chunk made = {.unit_count = RX_CHUNK_UNITS_FIRST};
    while (made.unit_count < s->unit_total && made.unit_count < s->unit_max) made.unit_count *= 2;
    if (made.unit_count > s->unit_max) made.unit_count = s->unit_max;
    if (!chunk_memory_get(r, &made)) return 0;

    uint32_t index = s->unused != 0 ? s->unused : s->chunk_count++;
    struct rx_chunk *chunk = &s->chunks[index];
    if (s->unused != 0) s->unused = chunk->next;
    *chunk = made;
    chunk->free_units = units_all(chunk);
    s->unit_total += chunk->unit_count;
    s->unit_free += chunk->unit_count;
    s->empty_count++;
    partial_link(s, index);
    return index;
}

/* Of a wholly free chunk that is in no list and not counted. */
static void chunk_free(struct sc_radix *r, uint32_t index)
{
    struct rx_store *s = &r->store;
    struct rx_chunk *chunk = &s->chunks[index];
    s->unit_total -= chunk->unit_count;
    s->unit_free -= chunk->unit_count;
    chunk_memory_free(r, chunk);
    *chunk = (struct rx_chunk){.next = s->unused};
    s->unused = index;
}

static void unit_take(struct rx_store *s, uint32_t index, uint32_t unit)
{
    struct rx_chunk *chunk = &s->chunks[index];
    SC_ASSERT_DEBUG(chunk->free_units >> unit & 1);
    if (chunk->free_units == units_all(chunk)) s->empty_count--;
    chunk->free_units &= ~(UINT64_C(1) << unit);
    s->unit_free--;
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
    s->unit_free++;
    if (chunk->free_units != units_all(chunk)) return;
    partial_unlink(s, index);
    if (s->empty_count > s->unit_total / s->unit_max / RX_EMPTY_SHARE) {
        chunk_free(r, index);
        return;
    }
    s->empty_count++;
    partial_link(s, index); /* at the front, where long runs are looked for */
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

/* Looks for the first free run of at least `need` units, else for a long one; 0: nothing is
 * free. */
static uint32_t run_search(const struct rx_store *s, uint32_t need, uint32_t *index_out,
    uint32_t *unit_out)
{
    uint32_t best = 0;
    uint32_t index = s->partial;
    for (uint32_t seen = 0; index != 0 && seen < RX_CHUNK_SEARCH_MAX; seen++) {
        uint32_t unit = 0;
        uint32_t run = run_find(&s->chunks[index], need, &unit);
        if (run > best) {
            best = run;
            *index_out = index;
            *unit_out = unit;
            if (best >= need) break;
        }
        index = s->chunks[index].next;
    }
    return best;
}

/* Puts the cursor at a unit that is free. */
static void cursor_put(struct rx_store *s, uint32_t index, uint32_t unit)
{
    unit_take(s, index, unit);
    s->chunks[index].refs[unit] = 1;
    s->cursor_chunk = index;
    s->cursor_pos = unit * s->unit_tokens;
}

/* Puts the cursor at the start of a free run for n tokens; false without memory. */
static bool cursor_open(struct sc_radix *r, uint32_t n)
{
    struct rx_store *s = &r->store;
    uint32_t need = n / s->unit_tokens + (n % s->unit_tokens != 0);
    if (need > s->unit_max) need = s->unit_max;
    uint32_t index = 0;
    uint32_t unit = 0;
    uint32_t found = run_search(s, need, &index, &unit);
    if (found < need && (found == 0 || s->unit_free <= s->unit_total / RX_FREE_SHARE)) {
        index = chunk_new(r);
        unit = 0;
        if (index == 0) return false;
    }
    cursor_put(s, index, unit);
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
    chunk->live += n;
    s->live += n;
    s->cursor_pos += n;
    if (s->cursor_pos % s->unit_tokens == 0) {
        s->cursor_chunk = 0;
    } else {
        chunk->refs[last]++;
    }
}

/* The rest of the cursor's run is too short for n tokens, and it is better to leave it. */
static bool cursor_short(const struct rx_store *s, uint32_t room, uint32_t n)
{
    /* A whole unit is never this short, so a cursor just opened is not closed again. */
    if (room < RX_PIECE_TOKENS_MIN) return room < n;
    bool begun = s->cursor_pos % s->unit_tokens >= RX_LINE_TOKENS;
    return room < n && begun && s->unit_free <= s->unit_total / RX_FREE_SHARE;
}

/* Tokens to leave out, so that token `start` of a key lies in a line of memory where it lies in the
 * key's, if that begins with a line. */
static uint32_t line_skip(const struct sc_radix *r, uint32_t start, uint32_t pos)
{
    return RX_LINE_TOKENS % r->page == 0 ? (start - pos) % RX_LINE_TOKENS : 0;
}

/* Leaves tokens out; the run that begins at the cursor is longer than that. */
static void cursor_skip(struct sc_radix *r, uint32_t skip)
{
    struct rx_store *s = &r->store;
    uint32_t unit = s->cursor_pos / s->unit_tokens;
    s->cursor_pos += skip;
    if (s->cursor_pos / s->unit_tokens == unit) return;
    unit_take(s, s->cursor_chunk, unit + 1);
    s->chunks[s->cursor_chunk].refs[unit + 1] = 1;
    unit_drop(r, s->cursor_chunk, unit);
}

bool rx_store_alloc(struct sc_radix *r, uint32_t n, uint32_t start)
{
    struct rx_store *s = &r->store;
    s->piece_count = 0;
    while (n > 0) {
        if (!rx_grow(r, (void **)&s->pieces, &s->piece_cap, (uint64_t)s->piece_count + 1,
                sizeof *s->pieces) ||
            (s->cursor_chunk == 0 && !cursor_open(r, n + line_skip(r, start, 0)))) {
            rx_store_abandon(r);
            return false;
        }
        uint32_t skip = line_skip(r, start, s->cursor_pos);
        uint32_t room = cursor_room(s, n + skip);
        if (room <= skip || cursor_short(s, room - skip, n)) {
            cursor_close(r);
            continue;
        }
        cursor_skip(r, skip);
        cursor_take(s, room - skip);
        start += room - skip;
        n -= room - skip;
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
    struct rx_store *s = &r->store;
    uint32_t last = (pos + len - 1) / s->unit_tokens;
    uint32_t whole = rx_pages(r, len) * r->page;
    s->chunks[chunk].live -= whole;
    s->live -= whole;
    for (uint32_t unit = pos / s->unit_tokens; unit <= last; unit++) {
        unit_drop(r, chunk, unit);
    }
}

/* --- nodes of a chunk --- */

void rx_store_link(struct sc_radix *r, uint32_t id, uint32_t older)
{
    struct rx_chunk *chunk = &r->store.chunks[rx_node(r, id)->chunk];
    struct rx_use *use = rx_use(r, id);
    uint32_t next = older != 0 ? older : chunk->node;
    if (next == 0) {
        use->chunk_prev = use->chunk_next = id;
    } else {
        use->chunk_next = next;
        use->chunk_prev = rx_use(r, next)->chunk_prev;
        rx_use(r, use->chunk_prev)->chunk_next = id;
        rx_use(r, next)->chunk_prev = id;
    }
    if (older == 0) chunk->node = id;
}

void rx_store_unlink(struct sc_radix *r, uint32_t id)
{
    struct rx_chunk *chunk = &r->store.chunks[rx_node(r, id)->chunk];
    const struct rx_use *use = rx_use(r, id);
    if (chunk->node == id) chunk->node = use->chunk_next != id ? use->chunk_next : 0;
    rx_use(r, use->chunk_prev)->chunk_next = use->chunk_next;
    rx_use(r, use->chunk_next)->chunk_prev = use->chunk_prev;
}

/* --- compaction ---
 *
 *   before   |A  |   B|    |C   |       four chunks, each with a survivor or two
 *   after    |A B C  |                  one; three go back to the heap
 *
 * Runs move one by one, each a copy and a change of its node, so it may stop anywhere. It ends when
 * what is held beyond the live tokens is small. Sparse chunks are left first, since they give most
 * for a token moved. */

/* Chunks that are being filled; a few, so that a long run does not end one that is half empty. */
enum { TARGETS = 4 };
struct targets { uint32_t chunks[TARGETS]; uint32_t next; };

static bool target_is(const struct targets *t, uint32_t index)
{
    for (uint32_t i = 0; i < TARGETS; i++) {
        if (t->chunks[i] == index) return true;
    }
    return false;
}

/* Puts the cursor where the run of a node fits: behind what moved before, if possible, else in one
 * of the chunks that this compaction has begun to fill, else in a new one. */
static bool target_find(struct sc_radix *r, struct targets *t, uint32_t n, uint32_t start)
{
    struct rx_store *s = &r->store;
    if (s->cursor_chunk != 0) {
        uint32_t skip = line_skip(r, start, s->cursor_pos);
        if (cursor_room(s, n + skip) == n + skip) {
            cursor_skip(r, skip);
            return true;
        }
        cursor_close(r);
    }
    uint32_t skip = line_skip(r, start, 0);
    uint32_t need = (n + skip + s->unit_tokens - 1) / s->unit_tokens;
    for (uint32_t i = 0; i < TARGETS; i++) {
        uint32_t unit = 0;
        if (t->chunks[i] == 0 || run_find(&s->chunks[t->chunks[i]], need, &unit) < need) continue;
        cursor_put(s, t->chunks[i], unit);
        cursor_skip(r, skip);
        return true;
    }
    uint32_t fresh = chunk_new(r);
    if (fresh == 0) return false;
    t->chunks[t->next++ % TARGETS] = fresh;
    s->target = fresh;
    cursor_put(s, fresh, 0);
    if (need <= s->chunks[fresh].unit_count) cursor_skip(r, skip); /* else it fills the chunk */
    return true;
}

/* Moves one run; false without memory. */
static bool node_move(struct sc_radix *r, struct targets *t, uint32_t id)
{
    struct rx_store *s = &r->store;
    struct rx_node *node = rx_node(r, id);
    uint32_t pages = rx_pages(r, node->len);
    uint32_t room = pages * r->page;
    if (!target_find(r, t, room, node->start)) return false;
    s->piece_count = 0;
    uint32_t to = s->cursor_chunk;
    uint32_t pos = s->cursor_pos;
    cursor_take(s, room);
    s->piece_count = 0;
    const struct rx_chunk *target = &s->chunks[to];
    memcpy(target->tokens + pos, node->tokens, node->len * sizeof(int32_t));
    if (r->with_kv) {
        memcpy(target->ids + rx_page_of(r, pos), rx_ids(r, node), pages * sizeof(int32_t));
    }
    rx_store_unlink(r, id);
    rx_store_release(r, node->chunk, rx_pos(r, node), node->len);
    node->tokens = target->tokens + pos;
    node->chunk = to;
    rx_store_link(r, id, 0);
    return true;
}

/* Nothing in the chunk is pinned: pinned runs stay where callers have spans into them. */
static bool chunk_movable(const struct sc_radix *r, const struct rx_chunk *chunk)
{
    uint32_t id = chunk->node;
    do {
        if (rx_use(r, id)->pin > 0) return false;
        id = rx_use(r, id)->chunk_next;
    } while (id != chunk->node);
    return true;
}

/* Moves the runs of a chunk away, oldest first, so that runs that follow each other still do. */
static bool chunk_leave(struct sc_radix *r, struct targets *t, uint32_t index, uint64_t *moved)
{
    while (r->store.chunks[index].node != 0) {
        uint32_t id = rx_use(r, r->store.chunks[index].node)->chunk_prev;
        if (!node_move(r, t, id)) return false;
        *moved += rx_node(r, id)->len;
    }
    return true;
}

uint64_t rx_store_compact(struct sc_radix *r, uint64_t token_max)
{
    struct rx_store *s = &r->store;
    uint64_t moved = 0;
    /* The chunk that the last compaction left half full, if it is still there (or another one under
     * its number, which does as well): steps of a few tokens must not begin a new one each. */
    struct targets t = {{s->target < s->chunk_count && s->chunks[s->target].unit_count > 0
            ? s->target : 0}, 1};
    uint32_t chunk_count = s->chunk_count;
    if (!rx_grow(r, (void **)&s->pieces, &s->piece_cap, 1, sizeof *s->pieces)) return 0;
    if (s->cursor_chunk != 0 && !target_is(&t, s->cursor_chunk)) cursor_close(r);
    for (uint32_t eighths = 1; eighths < 8; eighths++) { /* the sparsest first */
        for (uint32_t i = 1; i < chunk_count; i++) {
            uint64_t units = (uint64_t)s->empty_count * s->unit_max;
            uint64_t held = (s->unit_total > units ? s->unit_total - units : 0) * s->unit_tokens;
            uint64_t spare = s->live / RX_FREE_SHARE + s->unit_max * s->unit_tokens;
            if (held <= s->live + spare) return moved;
            const struct rx_chunk *chunk = &s->chunks[i];
            if (chunk->node == 0 || target_is(&t, i)) continue;
            if (chunk->live > (uint64_t)chunk->unit_count * s->unit_tokens * eighths / 8) continue;
            if (!chunk_movable(r, chunk)) continue;
            if (!chunk_leave(r, &t, i, &moved) || moved >= token_max) return moved;
        }
    }
    return moved;
}

void rx_store_shrink(struct sc_radix *r)
{
    struct rx_store *s = &r->store;
    for (uint32_t i = 1; i < s->chunk_count && s->empty_count > 0; i++) {
        const struct rx_chunk *chunk = &s->chunks[i];
        if (chunk->unit_count == 0 || chunk->free_units != units_all(chunk)) continue;
        partial_unlink(s, i);
        s->empty_count--;
        chunk_free(r, i);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in a stream of the backend's own: joined at both ends by events, and by nothing else.
 *
 * The backend here only notes what is put in its streams. A stream is carried out when somebody
 * waits for it or, if it is an eager one, as soon as the events that it waits for allow: so a side
 * runs as early as a device might run it, or as late, and a join that is missing gives wrong
 * bytes. */
#include "base/error.h"
#include "snapshot/codec.h"
#include "snapshot_fixture.h"
#include "support/check_main.h"

enum { DEFAULT, SAVES, DOWN, UP, CALLER, LANES };
enum { OPS = 160, EVENTS = 64, SPANS = 40, ROWS = 4 };

struct sc_event {
    int lane;
    uint32_t at; /* complete when so many of its lane's operations are */
};

enum op_kind { COPY, COPY_ROWS, FILL, WAIT };
struct op {
    enum op_kind kind;
    struct sc_backend_span spans[SPANS]; /* FILL: bytes at dst of the first */
    uint32_t count;
    struct sc_backend_part parts[SPANS];
    int32_t to[ROWS], from[ROWS];
    uint32_t part_count;
    uint8_t value;
    struct sc_event event;
};
struct lane {
    struct op ops[OPS];
    uint32_t count, done, syncs;
    bool eager;
};

static struct {
    struct sc_backend backend;
    struct sc_backend_ops ops;
    struct lane lanes[LANES];
    struct sc_event events[EVENTS];
    uint32_t events_made, events_gone;
    uint32_t event_fail; /* the event of that number; 0: none */
    uint32_t record_fail; /* the record of that number from now on */
    bool captured;
} dev;

static sc_stream *stream_of(int lane)
{
    return lane == DEFAULT ? NULL : (sc_stream *)(void *)&dev.lanes[lane];
}

static int lane_of(const sc_stream *stream)
{
    int lane = 0;
    while (lane < LANES && stream_of(lane) != stream) lane++;
    ck_assert_int_lt(lane, LANES);
    return lane;
}

/* Waits lead from lane to lane, always to what was put there before: it ends. */
static void run(int which, uint32_t end)
{
    struct lane *lane = &dev.lanes[which];
    while (lane->done < end) {
        const struct op *op = &lane->ops[lane->done];
        if (op->kind == WAIT) run(op->event.lane, op->event.at);
        if (op->kind == COPY) {
            ck_assert_int_eq(sc_backend_host_ops.copy(NULL, SC_COPY_D2D, op->spans, op->count,
                NULL), SC_OK);
        }
        if (op->kind == FILL) {
            memset(sc_host_ptr(op->spans[0].dst), op->value, (size_t)op->spans[0].bytes);
        }
        if (op->kind == COPY_ROWS) {
            const struct sc_backend_rows rows = {.parts = op->parts, .part_count = op->part_count,
                .row_count = op->count, .dst_slots = op->to, .src_slots = op->from};
            ck_assert_int_eq(sc_backend_host_ops.copy_rows(NULL, &rows, NULL), SC_OK);
        }
        lane->done++;
    }
}

static void put(const sc_stream *stream, const struct op *op)
{
    int which = lane_of(stream);
    struct lane *lane = &dev.lanes[which];
    ck_assert_uint_lt(lane->count, OPS);
    lane->ops[lane->count++] = *op;
    if (lane->eager) run(which, lane->count);
}

static sc_status dev_copy(sc_backend *b, enum sc_copy_kind kind,
    const struct sc_backend_span *spans, uint32_t count, sc_stream *stream)
{
    struct op op = {.kind = COPY, .count = count};
    (void)b;
    (void)kind;
    ck_assert_uint_le(count, SPANS);
    memcpy(op.spans, spans, count * sizeof *spans);
    put(stream, &op);
    return SC_OK;
}

static sc_status dev_copy_rows(sc_backend *b, const struct sc_backend_rows *rows,
    sc_stream *stream)
{
    struct op op = {.kind = COPY_ROWS, .count = rows->row_count, .part_count = rows->part_count};
    (void)b;
    ck_assert_uint_le(rows->part_count, SPANS);
    ck_assert_uint_le(rows->row_count, ROWS);
    memcpy(op.parts, rows->parts, rows->part_count * sizeof *rows->parts);
    memcpy(op.to, rows->dst_slots, rows->row_count * sizeof(int32_t));
    memcpy(op.from, rows->src_slots, rows->row_count * sizeof(int32_t));
    put(stream, &op);
    return SC_OK;
}

static sc_status dev_fill(sc_backend *b, sc_devptr dst, uint8_t value, uint64_t bytes,
    sc_stream *stream)
{
    const struct op op = {.kind = FILL, .spans = {{dst, 0, bytes}}, .value = value};
    (void)b;
    put(stream, &op);
    return SC_OK;
}

static sc_status dev_sync(sc_backend *b, sc_stream *stream)
{
    int lane = lane_of(stream);
    (void)b;
    dev.lanes[lane].syncs++;
    run(lane, dev.lanes[lane].count);
    return SC_OK;
}

static sc_status dev_side(sc_backend *b, enum sc_side side, sc_stream *after,
    sc_stream **stream_out)
{
    (void)b;
    (void)after;
    if (dev.captured) return SC_FAIL(SC_ERR_UNSUPPORTED, "captured");
    *stream_out = stream_of(SAVES + (int)side);
    return SC_OK;
}

static sc_status dev_event_create(sc_backend *b, struct sc_event **event_out)
{
    (void)b;
    ck_assert_uint_lt(dev.events_made, EVENTS);
    if (dev.events_made + 1 == dev.event_fail) {
        dev.event_fail = 0;
        return SC_FAIL(SC_ERR_NO_MEMORY, "no event");
    }
    *event_out = &dev.events[dev.events_made++];
    return SC_OK;
}

static void dev_event_destroy(sc_backend *b, struct sc_event *event)
{
    (void)b;
    event->lane = LANES; /* nobody may look at it any more */
    dev.events_gone++;
}

static sc_status dev_event_record(sc_backend *b, struct sc_event *event, sc_stream *stream)
{
    (void)b;
    if (dev.record_fail > 0 && --dev.record_fail == 0) return SC_FAIL(SC_ERR_DEVICE_LOST, "lost");
    event->lane = lane_of(stream);
    event->at = dev.lanes[event->lane].count;
    return SC_OK;
}

static sc_status dev_stream_wait(sc_backend *b, sc_stream *stream, struct sc_event *event)
{
    const struct op op = {.kind = WAIT, .event = *event};
    (void)b;
    put(stream, &op);
    return SC_OK;
}

static sc_status dev_event_wait(sc_backend *b, struct sc_event *event)
{
    (void)b;
    run(event->lane, event->at);
    return SC_OK;
}

static void open_device(void)
{
    memset(&dev, 0, sizeof dev);
    dev.ops = sc_backend_host_ops;
    dev.ops.copy = dev_copy;
    dev.ops.copy_rows = dev_copy_rows;
    dev.ops.fill = dev_fill;
    dev.ops.stream_sync = dev_sync;
    dev.ops.side_stream = dev_side;
    dev.ops.stream_wait = dev_stream_wait;
    dev.ops.event_create = dev_event_create;
    dev.ops.event_destroy = dev_event_destroy;
    dev.ops.event_record = dev_event_record;
    dev.ops.event_wait = dev_event_wait;
    dev.backend = (struct sc_backend){.ops = &dev.ops, .name = "late", .compute_capability = 90};
}

/* Everything so far is done; the sides are early from now on, or the other streams. */
static void begin(bool sides_early)
{
    for (int i = 0; i < LANES; i++) {
        run(i, dev.lanes[i].count);
        dev.lanes[i].eager = (i == SAVES || i == DOWN || i == UP) == sides_early;
        dev.lanes[i].syncs = 0;
    }
    dev.events_made = dev.events_gone = 0;
}

static void finish(void)
{
    for (int i = 0; i < LANES; i++) run(i, dev.lanes[i].count);
    ck_assert_uint_eq(dev.events_made, dev.events_gone);
}

static uint32_t waiting(int lane)
{
    return dev.lanes[lane].count - dev.lanes[lane].done;
}

/* A kernel of the stream that writes all of a slot. */
static void write_slot(const sc_pool *pool, uint32_t slot, uint8_t value, int lane)
{
    for (uint32_t part = 0; part < fix_info(pool).part_count; part++) {
        ck_assert_int_eq(dev_fill(&dev.backend, sc_host_devptr(fix_bytes(pool, part, slot)), value,
            fix_view(pool, part).bytes, stream_of(lane)), SC_OK);
    }
}

static bool all(const uint8_t *bytes, uint64_t count, uint8_t value)
{
    for (uint64_t i = 0; i < count; i++) {
        if (bytes[i] != value) return false;
    }
    return true;
}

static bool slot_is(const sc_pool *pool, uint32_t slot, uint8_t value)
{
    for (uint32_t part = 0; part < fix_info(pool).part_count; part++) {
        if (!all(fix_bytes(pool, part, slot), fix_view(pool, part).bytes, value)) return false;
    }
    return true;
}

static const sc_layout layouts[2] = {SC_LAYOUT_PAGE_MAJOR, SC_LAYOUT_CONTIGUOUS};

struct world {
    sc_pool *pool, *host;
    sc_slot slots[4], kept[4];
    sc_pool_info info;
};

/* _i: layout, and who is early. */
static void open_world(struct world *w, int i)
{
    open_device();
    w->pool = fix_pool_with(FIX_KDA, layouts[i % 2], 4, &dev.backend, NULL, NULL);
    w->host = fix_pool(FIX_KDA, layouts[0], 4);
    w->info = fix_info(w->pool);
    fix_take(w->pool, 4, 10, w->slots);
    fix_take(w->host, 4, 50, w->kept);
    begin(i / 2 == 0);
}

static void close_world(struct world *w)
{
    finish();
    fix_end(w->pool, w->slots, 4);
    fix_end(w->host, w->kept, 4);
}

/* What a tier sends down is what the default stream was about to write; nobody waits for the
 * caller's streams, nor for a whole stream. */
START_TEST(down__begins_behind_the_default_stream_and_waits_for_itself)
{
    struct world w;
    const struct sc_codec *raw = NULL;
    open_world(&w, _i);
    uint8_t *payload = calloc(1, w.info.state_bytes);
    uint64_t bytes = 0;
    ck_assert_int_eq(sc_codec_by_id(SC_CODEC_RAW, &raw), SC_OK);
    dev.lanes[CALLER].eager = false;
    write_slot(w.pool, w.slots[1].id, 0x77, CALLER);
    write_slot(w.pool, w.slots[0].id, 0x5a, DEFAULT);
    ck_assert_int_eq(sc_codec_encode(raw, w.pool, w.slots[0], payload, w.info.state_bytes, &bytes),
        SC_OK);
    ck_assert(all(payload, bytes, 0x5a));
    write_slot(w.pool, w.slots[0].id, 0x11, CALLER); /* its step goes on */
    memset(payload, 0, bytes);
    write_slot(w.pool, w.slots[2].id, 0x6b, DEFAULT);
    ck_assert_int_eq(sc_state_copy(w.pool, (const int32_t[]){3}, w.host, (const int32_t[]){2}, 1),
        SC_OK);
    ck_assert(slot_is(w.host, 2, 0x6b));
    ck_assert_uint_eq(waiting(CALLER), 2 * w.info.part_count);
    ck_assert_uint_eq(dev.lanes[DOWN].count, 4); /* an event and a copy, twice */
    ck_assert_uint_eq(dev.lanes[UP].count + dev.lanes[SAVES].count, 0);
    for (int i = 0; i < LANES; i++) ck_assert_uint_eq(dev.lanes[i].syncs, 0);
    free(payload);
    close_world(&w);
}
END_TEST

/* A restored state is there on return, and no older work of the default stream comes after it. */
START_TEST(up__comes_behind_the_default_stream_and_is_there_on_return)
{
    struct world w;
    const struct sc_codec *raw = NULL;
    open_world(&w, _i);
    uint8_t *payload = malloc(w.info.state_bytes);
    memset(payload, 0x3c, w.info.state_bytes);
    ck_assert_int_eq(sc_codec_by_id(SC_CODEC_RAW, &raw), SC_OK);
    dev.lanes[CALLER].eager = false;
    write_slot(w.pool, w.slots[1].id, 0x77, CALLER);
    write_slot(w.pool, w.slots[0].id, 0xff, DEFAULT); /* as a new slot is poisoned */
    ck_assert_int_eq(sc_codec_decode(raw, w.pool, w.slots[0], payload, w.info.state_bytes), SC_OK);
    ck_assert(slot_is(w.pool, w.slots[0].id, 0x3c));
    write_slot(w.pool, w.slots[2].id, 0xff, DEFAULT);
    ck_assert_int_eq(sc_state_copy(w.host, (const int32_t[]){1}, w.pool, (const int32_t[]){3}, 1),
        SC_OK);
    ck_assert(fix_holds(w.pool, 3, 51));
    ck_assert_uint_eq(waiting(CALLER), w.info.part_count);
    ck_assert_uint_eq(dev.lanes[DOWN].count + dev.lanes[SAVES].count, 0);
    finish();
    ck_assert(slot_is(w.pool, w.slots[0].id, 0x3c));
    ck_assert(fix_holds(w.pool, 3, 51));
    free(payload);
    close_world(&w);
}
END_TEST

/* A save takes what its stream wrote before, and not what it writes behind the join. */
START_TEST(beside__saves_what_was_there_between_two_joins)
{
    struct world w;
    open_world(&w, _i);
    sc_stream *stream = stream_of(CALLER);
    write_slot(w.pool, 1, 0x21, CALLER);
    ck_assert_int_eq(sc_state_copy_beside(w.pool, (const int32_t[]){1}, w.pool,
        (const int32_t[]){2}, 1, stream), SC_OK);
    write_slot(w.pool, 3, 0x22, CALLER); /* the stream goes on without it */
    if (_i / 2 == 1) {
        ck_assert_uint_eq(waiting(CALLER), 0);
        ck_assert_uint_gt(waiting(SAVES), 0);
    }
    ck_assert_int_eq(sc_state_copy_beside(w.pool, (const int32_t[]){3}, w.host,
        (const int32_t[]){4}, 1, stream), SC_OK);
    ck_assert_int_eq(sc_state_copy_join(w.pool, stream), SC_OK);
    write_slot(w.pool, 1, 0x23, CALLER);
    write_slot(w.pool, 3, 0x24, CALLER);
    ck_assert_uint_eq(dev.lanes[DOWN].count + dev.lanes[UP].count, 0);
    for (int i = 0; i < LANES; i++) ck_assert_uint_eq(dev.lanes[i].syncs, 0);
    ck_assert_int_eq(dev_sync(&dev.backend, stream), SC_OK); /* which is behind the join */
    ck_assert(slot_is(w.pool, 2, 0x21));
    ck_assert(slot_is(w.host, 4, 0x22));
    ck_assert(slot_is(w.pool, 1, 0x23));
    close_world(&w);
}
END_TEST

/* A tier's copy either way. */
static void refuses_codecs(struct world *w)
{
    const struct sc_codec *raw = NULL;
    uint8_t *payload = calloc(1, w->info.state_bytes);
    uint64_t bytes = 7;
    ck_assert_int_eq(sc_codec_by_id(SC_CODEC_RAW, &raw), SC_OK);
    dev.event_fail = dev.events_made + 1;
    ck_assert_int_eq(sc_codec_encode(raw, w->pool, w->slots[0], payload, w->info.state_bytes,
        &bytes), SC_ERR_NO_MEMORY);
    ck_assert_uint_eq(bytes, 7);
    ck_assert(all(payload, w->info.state_bytes, 0));
    dev.record_fail = 1;
    ck_assert_int_eq(sc_codec_decode(raw, w->pool, w->slots[0], payload, w->info.state_bytes),
        SC_ERR_DEVICE_LOST);
    free(payload);
}

/* Whatever fails before the first byte leaves everything as it is. */
START_TEST(beside__refuses_what_it_cannot_join)
{
    static const int32_t one[1] = {1}, two[1] = {2}, none[1] = {0};
    struct world w;
    open_world(&w, _i);
    sc_stream *stream = stream_of(CALLER);
    struct fix_image before = fix_image(w.pool), host_before = fix_image(w.host);
    ck_assert_int_eq(sc_state_copy_beside(NULL, one, w.pool, two, 1, stream), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_beside(w.pool, one, NULL, two, 1, stream), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_beside(w.pool, NULL, w.pool, two, 1, stream), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_beside(w.pool, one, w.pool, none, 1, stream), SC_ERR_INVALID);
    ck_assert_int_eq(sc_state_copy_join(NULL, stream), SC_ERR_INVALID);
    dev.event_fail = 1;
    ck_assert_int_eq(sc_state_copy_beside(w.pool, one, w.pool, two, 1, stream), SC_ERR_NO_MEMORY);
    dev.event_fail = 1;
    ck_assert_int_eq(sc_state_copy_join(w.pool, stream), SC_ERR_NO_MEMORY);
    dev.event_fail = 1;
    ck_assert_int_eq(sc_state_copy(w.pool, one, w.host, two, 1), SC_ERR_NO_MEMORY);
    dev.captured = true;
    ck_assert_int_eq(sc_state_copy_beside(w.pool, one, w.pool, two, 1, stream),
        SC_ERR_UNSUPPORTED);
    ck_assert_int_eq(sc_state_copy_join(w.pool, stream), SC_ERR_UNSUPPORTED);
    dev.captured = false;
    dev.record_fail = 1;
    ck_assert_int_eq(sc_state_copy_beside(w.pool, one, w.pool, two, 1, stream),
        SC_ERR_DEVICE_LOST);
    refuses_codecs(&w);
    for (int i = 0; i < LANES; i++) ck_assert_uint_eq(dev.lanes[i].count - dev.lanes[i].done, 0);
    ck_assert(fix_same(before) && fix_same(host_before));
    free(before.bytes);
    free(host_before.bytes);
    close_world(&w);
}
END_TEST

/* Without an event to wait for, the side itself is waited for. */
START_TEST(down__waits_without_an_event_too)
{
    struct world w;
    open_world(&w, _i);
    write_slot(w.pool, 1, 0x42, DEFAULT);
    dev.event_fail = 2;
    ck_assert_int_eq(sc_state_copy(w.pool, (const int32_t[]){1}, w.host, (const int32_t[]){3}, 1),
        SC_OK);
    ck_assert_uint_eq(dev.event_fail, 0);
    ck_assert(slot_is(w.host, 3, 0x42));
    ck_assert_uint_eq(dev.lanes[DOWN].syncs, 1);
    write_slot(w.pool, 1, 0x43, DEFAULT);
    dev.record_fail = 2; /* there is one, but it cannot be put there */
    ck_assert_int_eq(sc_state_copy(w.pool, (const int32_t[]){1}, w.host, (const int32_t[]){3}, 1),
        SC_OK);
    ck_assert_uint_eq(dev.record_fail, 0);
    ck_assert(slot_is(w.host, 3, 0x43));
    ck_assert_uint_eq(dev.lanes[DOWN].syncs, 2);
    ck_assert_uint_eq(dev.lanes[DEFAULT].syncs, 0);
    close_world(&w);
}
END_TEST

/* The host has one stream: everything has happened on return. */
START_TEST(host__has_no_sides)
{
    sc_pool *pool = fix_pool(FIX_GDN, layouts[_i], 3);
    sc_slot slots[3];
    sc_stream *stream = NULL;
    fix_take(pool, 3, 10, slots);
    ck_assert_int_eq(sc_state_copy_beside(pool, (const int32_t[]){1}, pool, (const int32_t[]){3},
        1, NULL), SC_OK);
    ck_assert(fix_holds(pool, 3, 11));
    ck_assert_int_eq(sc_state_copy_join(pool, NULL), SC_OK);
    sc_backend *host = sc_backend_host();
    ck_assert_int_eq(sc_backend_side_begin(host, SC_SIDE_UP, NULL, &stream), SC_OK);
    ck_assert_ptr_null(stream);
    ck_assert_int_eq(sc_backend_side_begin(NULL, SC_SIDE_UP, NULL, &stream), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_side_begin(host, (enum sc_side)3, NULL, &stream),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_side_begin(host, SC_SIDE_UP, NULL, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_side_join(NULL, SC_SIDE_UP, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_side_join(host, (enum sc_side)-1, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_backend_stream_join(NULL, NULL, NULL), SC_ERR_INVALID);
    fix_end(pool, slots, 3);
}
END_TEST

static Suite *side_suite(void)
{
    Suite *suite = suite_create("snapshot/side");
    TCase *tcase = tcase_create("side");
    tcase_add_loop_test(tcase, down__begins_behind_the_default_stream_and_waits_for_itself, 0, 4);
    tcase_add_loop_test(tcase, up__comes_behind_the_default_stream_and_is_there_on_return, 0, 4);
    tcase_add_loop_test(tcase, beside__saves_what_was_there_between_two_joins, 0, 4);
    tcase_add_loop_test(tcase, beside__refuses_what_it_cannot_join, 0, 4);
    tcase_add_loop_test(tcase, down__waits_without_an_event_too, 0, 4);
    tcase_add_loop_test(tcase, host__has_no_sides, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(side_suite());
}

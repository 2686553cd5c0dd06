/* SPDX-License-Identifier: Apache-2.0 */
/* "events tail": what a publisher of events says, a line an event (docs/reference/events.md). Any
 * publisher of that format, so nothing of what comes is trusted. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <msgpack.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "ctl.h"

enum { MESSAGE_BYTES_MAX = 1 << 30, TURN_MS = 200, REPLAY_MS = 5000, FRAMES = 4 };

struct tail {
    const char *publish, *replay, *topic;
    uint64_t from, count, seconds; /* count 0: without end; seconds 0: likewise */
    bool has_from, json;
    void *context, *subscriber, *asker;
    bool began;                    /* `last` is known */
    bool live;                     /* it came from the subscription, not from a replay */
    uint64_t last, told;
};

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

static bool is_over(const struct tail *tail)
{
    return stopped || (tail->count > 0 && tail->told >= tail->count) || ferror(stdout);
}

/* ---- events ---- */

/* What a line says of an event, of either form. */
struct told {
    const msgpack_object *type, *hashes, *parent, *tokens, *medium, *adapter, *group, *kind;
};

static bool is_text(const msgpack_object *object, const char *text)
{
    return object && object->type == MSGPACK_OBJECT_STR && object->via.str.size == strlen(text) &&
        memcmp(object->via.str.ptr, text, strlen(text)) == 0;
}

static const msgpack_object *member(const msgpack_object *event, const char *name, uint32_t place)
{
    if (event->type == MSGPACK_OBJECT_ARRAY) {
        return place < event->via.array.size ? &event->via.array.ptr[place] : NULL;
    }
    for (uint32_t i = 0; event->type == MSGPACK_OBJECT_MAP && i < event->via.map.size; i++) {
        if (is_text(&event->via.map.ptr[i].key, name)) return &event->via.map.ptr[i].val;
    }
    return NULL;
}

static struct told read_event(const msgpack_object *event)
{
    struct told told = {.type = member(event, "type", 0)};
    bool removed = is_text(told.type, "BlockRemoved");
    told.hashes = member(event, "block_hashes", 1);
    told.medium = member(event, "medium", removed ? 2 : 6);
    told.group = member(event, "group_idx", removed ? 3 : 9);
    if (removed) return told;
    told.parent = member(event, "parent_block_hash", 2);
    told.tokens = member(event, "token_ids", 3);
    told.adapter = member(event, "lora_name", 7);
    told.kind = member(event, "kv_cache_spec_kind", 10);
    return told;
}

/* Hashes are numbers here; vLLM's own may be bytes. */
static json_t *hash_text(const msgpack_object *hash)
{
    char text[2 * 64 + 1] = "";
    if (hash->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        (void)snprintf(text, sizeof text, "%016" PRIx64, hash->via.u64);
    } else if (hash->type == MSGPACK_OBJECT_NEGATIVE_INTEGER) {
        (void)snprintf(text, sizeof text, "%016" PRIx64, (uint64_t)hash->via.i64);
    } else if (hash->type == MSGPACK_OBJECT_BIN && hash->via.bin.size <= 64) {
        for (uint32_t i = 0; i < hash->via.bin.size; i++) {
            (void)snprintf(text + 2 * i, 3, "%02x", (uint8_t)hash->via.bin.ptr[i]);
        }
    } else {
        return json_null();
    }
    return json_string(text);
}

static json_t *plain(const msgpack_object *object)
{
    if (!object) return json_null();
    if (object->type == MSGPACK_OBJECT_POSITIVE_INTEGER && object->via.u64 <= INT64_MAX) {
        return json_integer((json_int_t)object->via.u64);
    }
    json_t *text = object->type == MSGPACK_OBJECT_STR ?
        json_stringn(object->via.str.ptr, object->via.str.size) : NULL;
    return text ? text : json_null(); /* NULL: no UTF-8 */
}

static json_t *event_json(const msgpack_object *event)
{
    const struct told told = read_event(event);
    json_t *out = json_object(), *hashes = json_array();
    (void)json_object_set_new(out, "type", plain(told.type));
    bool some = told.hashes && told.hashes->type == MSGPACK_OBJECT_ARRAY;
    for (uint32_t i = 0; some && i < told.hashes->via.array.size; i++) {
        (void)json_array_append_new(hashes, hash_text(&told.hashes->via.array.ptr[i]));
    }
    (void)json_object_set_new(out, "hashes", hashes);
    (void)json_object_set_new(out, "medium", plain(told.medium));
    (void)json_object_set_new(out, "group", plain(told.group));
    if (!told.tokens || told.tokens->type != MSGPACK_OBJECT_ARRAY) return out;
    (void)json_object_set_new(out, "tokens", json_integer(told.tokens->via.array.size));
    (void)json_object_set_new(out, "parent", told.parent ? hash_text(told.parent) : json_null());
    (void)json_object_set_new(out, "adapter", plain(told.adapter));
    (void)json_object_set_new(out, "kind", plain(told.kind));
    return out;
}

/* Text of a peer, fit for a terminal. */
static void put(const json_t *object, const char *name, const char *before)
{
    const char *text = json_string_value(json_object_get(object, name));
    if (!text || *text == '\0') return;
    (void)fputs(before, stdout);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        (void)putchar(c < ' ' || c >= 0x7f ? '?' : c);
    }
}

static void line(const struct tail *tail, uint64_t number, double time, json_t *event)
{
    size_t i;
    json_t *hash;
    if (tail->json) {
        char *text = NULL;
        (void)json_object_set_new(event, "number", json_integer((json_int_t)number));
        (void)json_object_set_new(event, "time", json_real(time));
        text = json_dumps(event, JSON_COMPACT);
        if (text) (void)puts(text);
        free(text);
        return;
    }
    (void)printf("%8" PRIu64 " %.3f", number, time);
    put(event, "type", "  ");
    put(event, "medium", "  ");
    json_array_foreach(json_object_get(event, "hashes"), i, hash) {
        (void)printf(" %s", json_is_string(hash) ? json_string_value(hash) : "?");
    }
    if (json_object_get(event, "tokens")) {
        (void)printf("  %" JSON_INTEGER_FORMAT " tokens",
            json_integer_value(json_object_get(event, "tokens")));
    }
    put(event, "parent", " behind ");
    put(event, "adapter", "  adapter ");
    (void)putchar('\n');
}

/* ---- batches ---- */

static uint64_t big_endian(const void *bytes)
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++) number = number << 8 | ((const uint8_t *)bytes)[i];
    return number;
}

/* How many bytes of a value's head say a size (0: none), and whether it is of items. */
static uint32_t size_bytes(uint8_t head, bool *items_out, uint32_t *each_out)
{
    static const uint8_t bytes[] = {1, 2, 4}; /* bin, ext, str, array, map */
    *items_out = head >= 0xdc && head <= 0xdf;
    *each_out = head >= 0xde ? 2 : 1;
    if (head >= 0xc4 && head <= 0xc6) return bytes[head - 0xc4];
    if (head >= 0xc7 && head <= 0xc9) return bytes[head - 0xc7];
    if (head >= 0xd9 && head <= 0xdb) return bytes[head - 0xd9];
    return *items_out ? (head & 1 ? 4 : 2) : 0;
}

/* Bytes behind the head of a value without a size: numbers, short texts, small extensions. */
static uint64_t fixed_bytes(uint8_t head)
{
    static const uint8_t bytes[] = {[0x0a] = 4, [0x0b] = 8, [0x0c] = 1, [0x0d] = 2, [0x0e] = 4,
        [0x0f] = 8, [0x10] = 1, [0x11] = 2, [0x12] = 4, [0x13] = 8, [0x14] = 2, [0x15] = 3,
        [0x16] = 5, [0x17] = 9, [0x18] = 17};
    if (head >= 0xa0 && head < 0xc0) return head & 0x1f;
    return head >= 0xca && head <= 0xd8 ? bytes[head - 0xc0] : 0;
}

/* Whether there are as many bytes as the sizes say: the decoder takes memory by these alone. */
static bool sizes_fit(const uint8_t *at, size_t left)
{
    for (uint64_t pending = 1; pending > 0; pending--) {
        bool items = false;
        uint32_t each = 1;
        uint64_t size = 0;
        if (left == 0) return false;
        uint8_t head = *at++;
        left--;
        uint32_t count = size_bytes(head, &items, &each);
        if (count > left) return false;
        for (uint32_t i = 0; i < count; i++) size = size << 8 | *at++;
        left -= count;
        if (count == 0 && head >= 0x80 && head < 0xa0) { /* short maps and arrays */
            items = true;
            size = head & 0x0f;
            each = head < 0x90 ? 2 : 1;
        } else if (count == 0) {
            size = fixed_bytes(head);
        } else if (head >= 0xc7 && head <= 0xc9) {
            size++; /* an extension's type */
        }
        if (size * each > left || (items && pending + size * each > left + 1)) return false;
        if (items) {
            pending += size * each;
        } else {
            at += size;
            left -= size;
        }
    }
    return true;
}

static void batch(struct tail *tail, uint64_t number, const void *bytes, size_t count)
{
    msgpack_unpacked unpacked;
    size_t at = 0;
    msgpack_unpacked_init(&unpacked);
    bool good = sizes_fit(bytes, count) &&
        msgpack_unpack_next(&unpacked, bytes, count, &at) == MSGPACK_UNPACK_SUCCESS;
    const msgpack_object *all = &unpacked.data;
    good = good && all->type == MSGPACK_OBJECT_ARRAY && all->via.array.size >= 2 &&
        all->via.array.ptr[1].type == MSGPACK_OBJECT_ARRAY;
    if (good) {
        const msgpack_object *time = &all->via.array.ptr[0], *events = &all->via.array.ptr[1];
        double seconds = time->type == MSGPACK_OBJECT_FLOAT64 ? time->via.f64 : 0;
        for (uint32_t i = 0; i < events->via.array.size && !is_over(tail); i++) {
            json_t *event = event_json(&events->via.array.ptr[i]);
            line(tail, number, seconds, event);
            json_decref(event);
            tail->told++;
        }
    } else {
        (void)fprintf(stderr, "statecachectl: batch %" PRIu64 " is no batch of events\n", number);
    }
    msgpack_unpacked_destroy(&unpacked);
    (void)fflush(stdout);
    tail->last = number;
    tail->began = true;
}

/* One message of up to FRAMES frames; how many there were, 0: none came, or too many. */
static uint32_t receive(void *socket, zmq_msg_t frames[FRAMES])
{
    uint32_t count = 0;
    int more = 1;
    while (more) {
        zmq_msg_t spare, *to = count < FRAMES ? &frames[count] : &spare;
        (void)zmq_msg_init(to);
        if (zmq_msg_recv(to, socket, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(to);
            break;
        }
        more = zmq_msg_more(to);
        if (to == &spare) (void)zmq_msg_close(&spare);
        count++;
    }
    for (uint32_t i = 0; count > FRAMES && i < FRAMES; i++) (void)zmq_msg_close(&frames[i]);
    return count > FRAMES ? 0 : count;
}

static void close_frames(zmq_msg_t *frames, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) (void)zmq_msg_close(&frames[i]);
}

static bool wait_for(void *socket, long ms)
{
    zmq_pollitem_t item = {socket, 0, ZMQ_POLLIN, 0};
    return zmq_poll(&item, 1, ms) > 0;
}

/* What was missed, from this number on. False: nobody answers. */
static bool replay(struct tail *tail, uint64_t number)
{
    uint8_t bytes[8];
    zmq_msg_t frames[FRAMES];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> (56 - 8 * i));
    if (zmq_send(tail->asker, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(tail->asker, bytes, sizeof bytes, ZMQ_DONTWAIT) < 0) {
        return false;
    }
    while (!is_over(tail)) {
        if (!wait_for(tail->asker, REPLAY_MS)) return false;
        uint32_t count = receive(tail->asker, frames);
        bool good = count >= 3 && zmq_msg_size(&frames[count - 2]) == sizeof bytes;
        uint64_t at = good ? big_endian(zmq_msg_data(&frames[count - 2])) : 0;
        if (good && at < UINT64_MAX && (!tail->began || at > tail->last)) {
            batch(tail, at, zmq_msg_data(&frames[count - 1]), zmq_msg_size(&frames[count - 1]));
            tail->live = false;
        }
        close_frames(frames, count);
        if (good && at == UINT64_MAX) break;
    }
    return true;
}

static void follow_one(struct tail *tail)
{
    zmq_msg_t frames[FRAMES];
    uint32_t count = receive(tail->subscriber, frames);
    if (count == 3 && zmq_msg_size(&frames[1]) == 8) {
        uint64_t number = big_endian(zmq_msg_data(&frames[1]));
        if (tail->began && tail->live && number <= tail->last) {
            (void)fprintf(stderr, "statecachectl: the publisher began anew\n");
            tail->began = false;
            if (tail->asker) (void)replay(tail, 0);
        }
        bool hole = tail->began && number > tail->last + 1;
        if (hole && (!tail->asker || !replay(tail, tail->last + 1))) {
            (void)fprintf(stderr, "statecachectl: %" PRIu64 " batches were missed\n",
                number - tail->last - 1);
        }
        if (!tail->began || number > tail->last) {
            batch(tail, number, zmq_msg_data(&frames[2]), zmq_msg_size(&frames[2]));
            tail->live = true;
        }
    }
    close_frames(frames, count);
}

/* ---- words ---- */

static int set_up(struct tail *tail)
{
    const int64_t bytes_max = MESSAGE_BYTES_MAX;
    const int none = 0;
    tail->context = zmq_ctx_new();
    tail->subscriber = tail->context ? zmq_socket(tail->context, ZMQ_SUB) : NULL;
    if (tail->subscriber && tail->replay) tail->asker = zmq_socket(tail->context, ZMQ_DEALER);
    void *const sockets[] = {tail->subscriber, tail->asker};
    const char *const addresses[] = {tail->publish, tail->replay};
    for (size_t i = 0; i < 2; i++) {
        if (i == 1 && !tail->replay) continue;
        if (!sockets[i] ||
            zmq_setsockopt(sockets[i], ZMQ_LINGER, &none, sizeof none) != 0 ||
            zmq_setsockopt(sockets[i], ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max) != 0 ||
            zmq_connect(sockets[i], addresses[i]) != 0) {
            (void)fprintf(stderr, "statecachectl: %s: %s\n", addresses[i], zmq_strerror(errno));
            return CTL_OPEN;
        }
    }
    if (zmq_setsockopt(tail->subscriber, ZMQ_SUBSCRIBE, tail->topic, strlen(tail->topic)) == 0) {
        return CTL_OK;
    }
    (void)fprintf(stderr, "statecachectl: %s\n", zmq_strerror(errno));
    return CTL_FAILED;
}

static bool number_of(const char *text, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    if (!text || text[0] < '0' || text[0] > '9') return false;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static int parse(int argc, char **argv, struct tail *tail)
{
    if (argc < 3 || strcmp(argv[2], "tail") != 0) {
        return ctl_usage("events tail ADDRESS is what there is", NULL);
    }
    for (int i = 3; i < argc; i++) {
        const struct { const char *name; const char **text; uint64_t *number; } words[] = {
            {"--replay", &tail->replay, NULL}, {"--topic", &tail->topic, NULL},
            {"--from", NULL, &tail->from}, {"--count", NULL, &tail->count},
            {"--seconds", NULL, &tail->seconds}};
        size_t w = 0;
        if (strcmp(argv[i], "--json") == 0) {
            tail->json = true;
            continue;
        }
        if (argv[i][0] != '-' && !tail->publish) {
            tail->publish = argv[i];
            continue;
        }
        while (w < sizeof words / sizeof words[0] && strcmp(words[w].name, argv[i]) != 0) w++;
        if (w == sizeof words / sizeof words[0]) return ctl_usage("unknown word:", argv[i]);
        if (i + 1 == argc) return ctl_usage("a value is missing behind", argv[i]);
        const char *value = argv[++i];
        if (words[w].text) *words[w].text = value;
        if (words[w].number && !number_of(value, words[w].number)) {
            return ctl_usage("no number:", value);
        }
        if (words[w].number == &tail->from) tail->has_from = true;
    }
    if (!tail->publish) return ctl_usage("events tail: the publisher's address is missing", NULL);
    if (tail->has_from && !tail->replay) return ctl_usage("--from needs --replay", NULL);
    return CTL_OK;
}

static void follow(struct tail *tail)
{
    if (tail->replay && !replay(tail, tail->from)) {
        (void)fprintf(stderr, "statecachectl: %s: no answer\n", tail->replay);
    }
    uint64_t turns = tail->seconds > UINT64_MAX / 1000 ? 0 : tail->seconds * 1000 / TURN_MS;
    for (uint64_t idle = 0; !is_over(tail) && (tail->seconds == 0 || idle < turns);) {
        if (wait_for(tail->subscriber, TURN_MS)) {
            follow_one(tail);
            idle = 0;
        } else {
            idle++;
        }
    }
}

int ctl_events(int argc, char **argv)
{
    struct tail tail = {.topic = ""};
    int code = parse(argc, argv, &tail);
    if (code != CTL_OK) return code;
    (void)signal(SIGINT, on_signal);
    (void)signal(SIGTERM, on_signal);
    code = set_up(&tail);
    if (code == CTL_OK) follow(&tail);
    if (tail.asker) (void)zmq_close(tail.asker);
    if (tail.subscriber) (void)zmq_close(tail.subscriber);
    if (tail.context) (void)zmq_ctx_term(tail.context);
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a service answers, as statecache_client reads it: a router must outlive a service that says
 * nonsense. An input is a byte, and the bytes that the service says:
 *
 *   bits 0-4   which call, CALLS of them
 *   bit 5      PIECES: one message for each request; else all at once
 *   bit 6      WITH_FILE: a file comes with each
 *   bit 7      IN_MEMORY: hello said that states come as bytes, not as files
 *
 * Threads play the service, one for each connection. What comes before the input is answered as it
 * should be: nothing for the call that opens; hello for most; hello and the schema, which is asked
 * for three times, for a remote tier, whose calls have a connection each.
 *
 * Checked: the call ends, with a status that it may have; what it gives out can be read and given
 * back; nothing is left (the sanitizers look, and the open files are counted). */
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client_internal.h"
#include "fuzz/fuzz.h"

enum call {
    OPEN, LOOKUP, ACQUIRE, WRITE, PARTS, PIN, QUOTA_GET, STATUS, CALL, EVICT, EVICT_PREFIX, TREE,
    EXPLAIN, PINS, COMMON, QUOTA_SET, DETACH, RECONNECT, REMOTE_OPEN, REMOTE_FIND, REMOTE_STORE,
    REMOTE_LOAD, ABORT, SHORT_FILE, CALLS
};
enum { FILE_BYTES = 4096, INPUT_MAX = 1 << 14, CALL_BITS = 0x1f, PIECES = 0x20, WITH_FILE = 0x40,
    IN_MEMORY = 0x80, GOOD_MAX = 4 };

static struct {
    int listener;
    const uint8_t *bytes;
    size_t count;
    uint8_t what;
    enum call call;
    msgpack_sbuffer good[GOOD_MAX]; /* answers to the first requests of a connection */
    /* connections of this input, of which the threads have ended */
    _Atomic uint32_t begun, ended;
} stub;
static char address[128];

static void send_all(int fd, const void *bytes, size_t count, bool with_file)
{
    struct iovec piece = {(void *)(uintptr_t)bytes, count};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    int file = with_file ? memfd_create("fuzz", MFD_CLOEXEC) : -1;
    off_t length = stub.call == SHORT_FILE ? 0 : FILE_BYTES;
    if (file >= 0 && ftruncate(file, length) == 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof file);
        memcpy(CMSG_DATA(header), &file, sizeof file);
    }
    (void)sendmsg(fd, &message, MSG_NOSIGNAL);
    if (file >= 0) (void)close(file);
}

/* How many requests of this connection are answered well. */
static uint32_t good_count(uint32_t connection)
{
    switch (stub.call) {
    case OPEN: return 0;
    case RECONNECT: return connection == 0 ? 1 : 0;
    case REMOTE_FIND: case REMOTE_STORE: case REMOTE_LOAD: return GOOD_MAX;
    default: return 1;
    }
}

/* The next message of the input, or what is left of it. */
static size_t piece_at(size_t at)
{
    struct sc_frame frame;
    sc_frame_begin(&frame, INPUT_MAX);
    bool whole = (stub.what & PIECES) != 0 &&
        sc_frame_scan(&frame, stub.bytes + at, stub.count - at) == SC_FRAME_WHOLE;
    return whole ? (size_t)frame.at : stub.count - at;
}

struct connection { int fd; uint32_t number; };

static void *serve(void *ctx)
{
    struct connection *connection = ctx;
    char asked[INPUT_MAX];
    int fd = connection->fd;
    uint32_t good = good_count(connection->number), requests = 0;
    size_t at = 0;
    while (at < stub.count && recv(fd, asked, sizeof asked, 0) > 0) {
        if (requests < good) {
            send_all(fd, stub.good[requests].data, stub.good[requests].size, false);
            requests++;
            continue;
        }
        size_t piece = piece_at(at);
        send_all(fd, stub.bytes + at, piece, (stub.what & WITH_FILE) != 0);
        at += piece;
    }
    (void)shutdown(fd, SHUT_WR);
    while (recv(fd, asked, sizeof asked, 0) > 0) continue;
    (void)close(fd);
    free(connection);
    stub.ended++;
    return NULL;
}

static void *accept_all(void *ctx)
{
    pthread_t thread;
    (void)ctx;
    for (;;) {
        int fd = accept(stub.listener, NULL, NULL);
        if (fd < 0) continue;
        struct connection *connection = malloc(sizeof *connection);
        FUZZ_CHECK(connection != NULL);
        *connection = (struct connection){fd, stub.begun++};
        FUZZ_CHECK(pthread_create(&thread, NULL, serve, connection) == 0);
        (void)pthread_detach(thread);
    }
    return NULL;
}

/* All connections of this input have ended. They are accepted in their order, so this one, which is
 * ended by the other side once it is accepted, is behind them. */
static void await_all(const struct sockaddr_un *name)
{
    char nothing;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(connect(fd, (const struct sockaddr *)name, sizeof *name) == 0);
    FUZZ_CHECK(shutdown(fd, SHUT_WR) == 0);
    while (recv(fd, &nothing, 1, 0) > 0) continue;
    (void)close(fd);
    while (stub.ended != stub.begun) (void)sched_yield();
    stub.begun = stub.ended = 0;
}

static msgpack_packer begin_good(uint32_t number)
{
    msgpack_packer packer;
    msgpack_sbuffer_clear(&stub.good[number]);
    msgpack_packer_init(&packer, &stub.good[number], msgpack_sbuffer_write);
    (void)msgpack_pack_array(&packer, 4);
    (void)msgpack_pack_uint8(&packer, SC_WIRE_RESPONSE);
    (void)msgpack_pack_uint64(&packer, number + 1);
    (void)msgpack_pack_nil(&packer);
    return packer;
}

static void make_hello(bool files)
{
    uint8_t fingerprint[16] = {1};
    msgpack_packer packer = begin_good(0);
    (void)msgpack_pack_map(&packer, 7);
    sc_pack_bin(&packer, "fingerprint", fingerprint, sizeof fingerprint);
    sc_pack_bool(&packer, "files", files);
    sc_pack_u64(&packer, "state_bytes", FILE_BYTES);
    sc_pack_u64(&packer, "file_bytes", FILE_BYTES);
    sc_pack_u64(&packer, "page_tokens", 1);
    sc_pack_u64(&packer, "grid", 16);
    sc_pack_name(&packer, "limits");
    (void)msgpack_pack_map(&packer, 5);
    sc_pack_u64(&packer, "frame_bytes", 1 << 20);
    sc_pack_u64(&packer, "key_tokens", 1000);
    sc_pack_u64(&packer, "keys", 16);
    sc_pack_u64(&packer, "leases", 16);
    sc_pack_u64(&packer, "writes", 16);
}

/* Two parts, the second of which lies first. */
static void make_schema(uint32_t number)
{
    msgpack_packer packer = begin_good(number);
    (void)msgpack_pack_map(&packer, 3);
    sc_pack_u64(&packer, "tp_rank", 0);
    sc_pack_u64(&packer, "tp_size", 1);
    sc_pack_name(&packer, "parts");
    (void)msgpack_pack_array(&packer, 2);
    for (uint32_t i = 0; i < 2; i++) {
        (void)msgpack_pack_map(&packer, 7);
        sc_pack_u64(&packer, "layer", i);
        sc_pack_u64(&packer, "kind", SC_PART_RECURRENT);
        sc_pack_u64(&packer, "index", 0);
        sc_pack_u64(&packer, "dtype", SC_DTYPE_F32);
        sc_pack_u64(&packer, "offset", (1 - i) * (FILE_BYTES / 2));
        sc_pack_u64(&packer, "bytes", FILE_BYTES / 2);
        sc_pack_name(&packer, "dims");
        (void)msgpack_pack_array(&packer, 2);
        (void)msgpack_pack_uint32(&packer, 16);
        (void)msgpack_pack_uint32(&packer, FILE_BYTES / 2 / 16 / 4);
    }
}

static struct sockaddr_un start(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    pthread_t thread;
    (void)snprintf(name.sun_path, sizeof name.sun_path, "/tmp/sc-fuzz-%d", (int)getpid());
    (void)snprintf(address, sizeof address, "unix:%s", name.sun_path);
    (void)unlink(name.sun_path);
    for (uint32_t i = 0; i < GOOD_MAX; i++) msgpack_sbuffer_init(&stub.good[i]);
    for (uint32_t i = 1; i < GOOD_MAX; i++) make_schema(i);
    stub.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(bind(stub.listener, (struct sockaddr *)&name, sizeof name) == 0);
    FUZZ_CHECK(listen(stub.listener, 16) == 0);
    FUZZ_CHECK(pthread_create(&thread, NULL, accept_all, NULL) == 0);
    (void)pthread_detach(thread);
    return name;
}

static uint64_t sum(const void *data, uint64_t bytes)
{
    uint64_t total = 0;
    for (uint64_t i = 0; data && i < bytes; i++) total += ((const uint8_t *)data)[i];
    return total;
}

static const int32_t tokens[] = {1, 2, 3};
static const sc_client_key keys[2] = {{.tokens = tokens, .token_count = 3},
    {.tokens = tokens, .token_count = 2}};

static void acquire(sc_client *client, bool detach)
{
    sc_client_state states[2];
    sc_client_bytes kept = {NULL, 0, 0};
    sc_status each[2];
    if (sc_client_acquire(client, keys, 2, 0, states, each) != SC_OK) return;
    for (uint32_t i = 0; i < 2; i++) {
        FUZZ_CHECK((states[i].lease != 0) == (states[i].data != NULL));
        FUZZ_CHECK(states[i].len <= keys[i].token_count && (each[i] == SC_OK || !states[i].data));
        (void)sum(states[i].data, states[i].bytes);
    }
    FUZZ_CHECK(states[0].lease == 0 || states[0].lease != states[1].lease);
    bool detached = detach && states[0].lease != 0 &&
        sc_client_detach(client, &states[0], &kept) == SC_OK;
    (void)sc_client_release(client, states, 2);
    if (detached) (void)sum(kept.data, kept.bytes);
    sc_client_bytes_free(&kept);
}

static void write_state(sc_client *client, bool commit)
{
    sc_client_write write;
    if (sc_client_write_begin(client, keys, &write) != SC_OK || !write.write) return;
    memset(write.data, 1, write.bytes);
    (void)(commit ? sc_client_write_commit(client, &write, NULL) :
        sc_client_write_abort(client, &write));
}

static bool visit(void *ctx, const sc_client_row *row)
{
    uint64_t *total = ctx;
    *total += sum(row->tokens, row->token_count * sizeof *row->tokens) +
        sum(row->marks, row->mark_count * sizeof *row->marks);
    return row->depth != 77; /* the caller has enough */
}

/* What operators ask. */
static void inspect(sc_client *client)
{
    sc_client_explanation why = {.struct_size = sizeof why};
    sc_client_pinned pins[2];
    sc_evicted evicted;
    uint64_t total = 0;
    uint32_t count = 0;
    bool more;
    switch (stub.call) {
    case EVICT: (void)sc_client_evict(client, 1, &count); break;
    case EVICT_PREFIX: (void)sc_client_evict_prefix(client, keys, &evicted); break;
    case TREE: (void)sc_client_tree(client, keys, 0, 8, visit, &total, &more); break;
    case EXPLAIN:
        if (sc_client_explain(client, keys, &why) == SC_OK) {
            FUZZ_CHECK(strlen(why.tenant_there) < sizeof why.tenant_there);
        }
        break;
    default:
        if (sc_client_pins(client, pins, 2, &count) == SC_OK) {
            FUZZ_CHECK(count <= 2);
            for (uint32_t i = 0; i < count; i++) {
                FUZZ_CHECK(strlen(pins[i].tenant) < sizeof pins[i].tenant);
            }
        }
        break;
    }
}

static void play(sc_client *client)
{
    sc_answer answers[2];
    sc_client_part parts[4];
    sc_client_state state;
    sc_client_quota quota;
    void *result = NULL;
    char *json = NULL;
    size_t bytes = 0;
    uint32_t count = 0;
    switch (stub.call) {
    case OPEN: break;
    case LOOKUP: (void)sc_client_lookup(client, keys, 2, answers); break;
    case ACQUIRE: case DETACH: case SHORT_FILE: acquire(client, stub.call == DETACH); break;
    case WRITE: case ABORT: write_state(client, stub.call == WRITE); break;
    case PARTS:
        if (sc_client_parts(client, parts, 4, &count) != SC_OK) break;
        FUZZ_CHECK(count <= 4);
        for (uint32_t i = 0; i < count; i++) {
            FUZZ_CHECK(parts[i].offset + parts[i].bytes <= FILE_BYTES);
        }
        break;
    case PIN: (void)sc_client_pin(client, keys, 1, true, &state); break;
    case QUOTA_GET: (void)sc_client_quota_get(client, "t", &quota); break;
    case QUOTA_SET: (void)sc_client_quota_set(client, "t", 5); break;
    case COMMON: (void)sc_client_common(client, keys, false); break;
    case RECONNECT: (void)sc_client_reconnect(client, &count); break;
    case STATUS:
        if (sc_client_status(client, &json) == SC_OK) FUZZ_CHECK(strlen(json) < INPUT_MAX);
        sc_client_free(json);
        break;
    case CALL:
        if (sc_client_call(client, "echo", NULL, 0, &result, &bytes) == SC_OK) {
            (void)sum(result, bytes);
        }
        sc_client_free(result);
        break;
    default: inspect(client); break;
    }
    FUZZ_CHECK(sc_client_last_error() != NULL);
}

/* The service as a tier of a cache. */
static void play_remote(const sc_client_options *options)
{
    static uint8_t state[FILE_BYTES];
    const sc_remote_key asked[2] = {{.tokens = tokens, .token_count = 3, .len_max = 2},
        {.tokens = tokens, .token_count = 2, .len_max = 2}};
    uint32_t lens[2] = {0, 0};
    sc_remote remote;
    if (sc_client_remote_open(options, &remote) != SC_OK) return;
    if (stub.call == REMOTE_FIND && remote.find(remote.ctx, asked, 2, lens) == SC_OK) {
        FUZZ_CHECK(lens[0] <= 2 && lens[1] <= 2);
    }
    if (stub.call == REMOTE_STORE) (void)remote.store(remote.ctx, asked, state);
    if (stub.call == REMOTE_LOAD) (void)remote.load(remote.ctx, asked, state);
    sc_client_remote_close(&remote);
}

/* Sockets that are open, and files without a name; the fuzzer has others of its own. */
static int count_files(void)
{
    int count = 0;
    for (int fd = 0; fd < 64; fd++) {
        struct stat info;
        if (fstat(fd, &info) != 0) continue;
        count += S_ISSOCK(info.st_mode) || (S_ISREG(info.st_mode) && info.st_nlink == 0);
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sockaddr_un name;
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    sc_client *client = NULL;
    if (size < 2 || size > INPUT_MAX) return 0;
    if (address[0] == '\0') name = start();
    int files = count_files();
    stub.what = data[0];
    stub.call = (enum call)((data[0] & CALL_BITS) % CALLS);
    stub.bytes = data + 1;
    stub.count = size - 1;
    make_hello((data[0] & IN_MEMORY) == 0);
    options.address = address;
    options.timeout_ms = 10000;
    if (stub.call >= REMOTE_OPEN && stub.call <= REMOTE_LOAD) {
        play_remote(&options);
    } else {
        sc_status status = sc_client_open(&options, &client);
        FUZZ_CHECK((status == SC_OK) == (client != NULL));
        if (client) play(client);
        sc_client_close(client);
    }
    await_all(&name);
    FUZZ_CHECK(count_files() == files);
    return 0;
}

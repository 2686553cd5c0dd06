/* SPDX-License-Identifier: Apache-2.0 */
/* What a service answers, as statecache_client reads it: a router must outlive a service that says
 * nonsense. An input is a byte that picks a call and what comes beside the bytes, and the bytes of
 * the answer. A thread plays the service:
 *
 *   call 0          hello <- the input
 *   others          hello <- a good one;  the call <- the input, perhaps with a file
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

enum { FILE_BYTES = 4096, INPUT_MAX = 1 << 14, CALLS = 9, WITH_FILE = 0x40, IN_MEMORY = 0x80 };

static struct {
    int listener;
    const uint8_t *bytes;
    size_t count;
    uint8_t what;
    msgpack_sbuffer hello;
    _Atomic uint64_t served; /* connections that have ended */
} stub;
static uint64_t opened;
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
    if (file >= 0 && ftruncate(file, FILE_BYTES) == 0) {
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

/* Two requests at most are read and answered; then nothing more is said. */
static void *serve(void *ctx)
{
    char asked[INPUT_MAX];
    (void)ctx;
    for (;;) {
        int fd = accept(stub.listener, NULL, NULL);
        if (fd < 0) continue;
        bool second = stub.what % CALLS != 0;
        if (recv(fd, asked, sizeof asked, 0) > 0) {
            if (second) {
                send_all(fd, stub.hello.data, stub.hello.size, false);
                if (recv(fd, asked, sizeof asked, 0) <= 0) second = false;
            }
            if (second || stub.what % CALLS == 0) {
                send_all(fd, stub.bytes, stub.count, (stub.what & WITH_FILE) != 0);
            }
        }
        (void)shutdown(fd, SHUT_WR);
        while (recv(fd, asked, sizeof asked, 0) > 0) continue;
        (void)close(fd);
        stub.served++;
    }
    return NULL;
}

static void make_hello(bool files)
{
    msgpack_packer packer;
    uint8_t fingerprint[16] = {1};
    msgpack_sbuffer_clear(&stub.hello);
    msgpack_packer_init(&packer, &stub.hello, msgpack_sbuffer_write);
    (void)msgpack_pack_array(&packer, 4);
    (void)msgpack_pack_uint8(&packer, SC_WIRE_RESPONSE);
    (void)msgpack_pack_uint64(&packer, 1);
    (void)msgpack_pack_nil(&packer);
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

static void start(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    pthread_t thread;
    (void)snprintf(name.sun_path, sizeof name.sun_path, "/tmp/sc-fuzz-%d", (int)getpid());
    (void)snprintf(address, sizeof address, "unix:%s", name.sun_path);
    (void)unlink(name.sun_path);
    msgpack_sbuffer_init(&stub.hello);
    stub.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(bind(stub.listener, (struct sockaddr *)&name, sizeof name) == 0);
    FUZZ_CHECK(listen(stub.listener, 16) == 0);
    FUZZ_CHECK(pthread_create(&thread, NULL, serve, NULL) == 0);
    (void)pthread_detach(thread);
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

static void acquire(sc_client *client)
{
    sc_client_state states[2];
    sc_status each[2];
    if (sc_client_acquire(client, keys, 2, 0, states, each) == SC_OK) {
        for (uint32_t i = 0; i < 2; i++) (void)sum(states[i].data, states[i].bytes);
        (void)sc_client_release(client, states, 2);
    }
}

static void play(sc_client *client, uint8_t what)
{
    sc_answer answers[2];
    sc_client_part parts[4];
    sc_client_write write;
    sc_client_state state;
    sc_client_quota quota;
    void *result = NULL;
    char *json = NULL;
    size_t bytes = 0;
    uint32_t count = 0;
    switch (what % CALLS) {
    case 1: (void)sc_client_lookup(client, keys, 2, answers); break;
    case 2: acquire(client); break;
    case 3:
        if (sc_client_write_begin(client, keys, &write) == SC_OK && write.write) {
            memset(write.data, 1, write.bytes);
            (void)sc_client_write_commit(client, &write, NULL);
        }
        break;
    case 4:
        if (sc_client_parts(client, parts, 4, &count) == SC_OK) FUZZ_CHECK(count <= 4);
        break;
    case 5: (void)sc_client_pin(client, keys, 1, true, &state); break;
    case 6: (void)sc_client_quota_get(client, "t", &quota); break;
    case 7:
        if (sc_client_status(client, &json) == SC_OK) FUZZ_CHECK(strlen(json) < INPUT_MAX);
        sc_client_free(json);
        break;
    default:
        if (sc_client_call(client, "echo", NULL, 0, &result, &bytes) == SC_OK) {
            (void)sum(result, bytes);
        }
        sc_client_free(result);
        break;
    }
    FUZZ_CHECK(sc_client_last_error() != NULL);
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
    static bool started;
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    sc_client *client = NULL;
    if (size < 2 || size > INPUT_MAX) return 0;
    if (!started) start();
    started = true;
    int files = count_files();
    stub.what = data[0];
    stub.bytes = data + 1;
    stub.count = size - 1;
    make_hello((data[0] & IN_MEMORY) == 0);
    options.address = address;
    options.timeout_ms = 10000;
    sc_status status = sc_client_open(&options, &client);
    FUZZ_CHECK((status == SC_OK) == (client != NULL));
    if (client) play(client, data[0]);
    sc_client_close(client);
    for (opened++; stub.served != opened;) (void)sched_yield(); /* it is done with the input */
    FUZZ_CHECK(count_files() == files);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A statecached for the benchmark, and connections to it: service.h. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/prng.h"
#include "service.h"
#include "wire/frame.h"
#include "wire/value.h"

static const char config[] =
    "model = bench\ngroup = gdn 64\npart = 0 conv bf16 3x64 gdn\n"
    "part = 0 recurrent f32 2x16x16 gdn\nslots = 128\npolicy = lru\nconnections = 4096\n"
    "log = error\n";

/* ---- the process ---- */

static void find_program(char *out, size_t bytes)
{
    ssize_t count = readlink("/proc/self/exe", out, bytes - 1);
    if (count < 0)
        bench_fail(BENCH_USAGE, "where is this program? --program says where statecached is");
    out[count] = '\0';
    *strrchr(out, '/') = '\0';
    static const char *const places[] = {"/../api/daemon/statecached", "/statecached"};
    char *end = strrchr(out, '\0');
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (snprintf(end, bytes - (size_t)(end - out), "%s", places[i]) > 0 &&
            access(out, X_OK) == 0)
            return;
    }
    bench_fail(BENCH_USAGE, "there is no statecached beside this program: --program says where");
}

void service_start(struct service *service)
{
    char program[PATH_MAX], file[SERVICE_PATH + 16], socket_word[SERVICE_PATH + 32];
    if (service->program)
        (void)snprintf(program, sizeof program, "%s", service->program);
    else
        find_program(program, sizeof program);
    (void)snprintf(service->folder, sizeof service->folder, "/tmp/sc-bench-XXXXXX");
    if (!mkdtemp(service->folder))
        bench_fail(BENCH_USAGE, "cannot make %s: %s", service->folder, strerror(errno));
    (void)snprintf(service->socket, sizeof service->socket, "%s/socket", service->folder);
    (void)snprintf(file, sizeof file, "%s/conf", service->folder);
    (void)snprintf(socket_word, sizeof socket_word, "socket=%s", service->socket);
    FILE *out = fopen(file, "we");
    if (!out || fputs(config, out) < 0 || fclose(out) != 0)
        bench_fail(BENCH_USAGE, "cannot write %s", file);
    service->process = fork();
    if (service->process < 0)
        bench_fail(BENCH_NO_MEMORY, "no process");
    if (service->process == 0) {
        (void)execl(program, program, "--config", file, "--set", socket_word, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; access(service->socket, F_OK) != 0; i++) {
        int status;
        if (i > 3000 || waitpid(service->process, &status, WNOHANG) == service->process)
            bench_fail(BENCH_USAGE, "%s did not start", program);
        (void)poll(NULL, 0, 10);
    }
}

void service_stop(struct service *service)
{
    char file[SERVICE_PATH + 16];
    int status = 0;
    (void)kill(service->process, SIGTERM);
    if (waitpid(service->process, &status, 0) != service->process || status != 0)
        bench_fail(BENCH_CHECK_FAILED, "statecached ended with %d", status);
    (void)snprintf(file, sizeof file, "%s/conf", service->folder);
    (void)unlink(file);
    (void)rmdir(service->folder);
}

uint64_t service_resident(const struct service *service)
{
    char path[64];
    unsigned long long all = 0, resident = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/statm", (int)service->process);
    FILE *in = fopen(path, "re");
    if (!in || fscanf(in, "%llu %llu", &all, &resident) != 2)
        bench_fail(BENCH_CHECK_FAILED, "cannot read %s", path);
    (void)fclose(in);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- connections ---- */

int service_socket(const struct service *service)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, service->socket, strlen(service->socket) + 1);
    while (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (errno == EINTR || errno == EAGAIN || errno == ECONNREFUSED) {
            (void)poll(NULL, 0, 1);
            continue;
        }
        bench_fail(BENCH_CHECK_FAILED, "cannot connect: %s", strerror(errno));
    }
    if (fd < 0)
        bench_fail(BENCH_CHECK_FAILED, "no socket: %s", strerror(errno));
    return fd;
}

void service_send(int fd, const void *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        ssize_t got = send(fd, (const char *)bytes + at, count - at, MSG_NOSIGNAL);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return;
        at += (size_t)got;
    }
}

/* One whole answer in `in`. */
static void receive(struct service_conn *conn)
{
    struct sc_frame frame;
    enum sc_frame_state state = SC_FRAME_MORE;
    sc_frame_begin(&frame, conn->in_cap);
    conn->in_count = 0;
    while (state == SC_FRAME_MORE) {
        ssize_t got = recv(conn->fd, conn->in + conn->in_count, conn->in_cap - conn->in_count, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            bench_fail(BENCH_CHECK_FAILED, "statecached has closed a connection");
        conn->in_count += (size_t)got;
        state = sc_frame_scan(&frame, conn->in, conn->in_count);
    }
    if (state != SC_FRAME_WHOLE)
        bench_fail(BENCH_CHECK_FAILED, "an answer: %s", sc_frame_text(state));
}

void service_exchange(struct service_conn *conn, const msgpack_sbuffer *request)
{
    service_send(conn->fd, request->data, request->size);
    receive(conn);
    /* [1, id, nil, ...]: the third item is behind an id of one byte or of nine. */
    size_t at = conn->in[2] == 0xcf ? 11 : 3;
    if (conn->in[0] != 0x94 || conn->in[at] != 0xc0)
        bench_fail(BENCH_CHECK_FAILED, "an answer is an error: %.*s", 80, (char *)conn->in + at);
}

static void begin(msgpack_packer *packer, msgpack_sbuffer *buffer, const char *method)
{
    msgpack_sbuffer_init(buffer);
    msgpack_packer_init(packer, buffer, msgpack_sbuffer_write);
    (void)msgpack_pack_array(packer, 4);
    (void)msgpack_pack_uint8(packer, SC_WIRE_REQUEST);
    (void)msgpack_pack_uint8(packer, 1);
    sc_pack_name(packer, method);
    (void)msgpack_pack_array(packer, 1);
    (void)msgpack_pack_map(packer, 1);
}

struct service_conn service_connect(const struct service *service)
{
    struct service_conn conn = {.fd = service_socket(service), .in_cap = 4 << 20};
    msgpack_sbuffer hello;
    msgpack_packer packer;
    conn.in = malloc(conn.in_cap);
    if (!conn.in)
        bench_fail(BENCH_NO_MEMORY, "no memory");
    begin(&packer, &hello, "hello");
    sc_pack_u64(&packer, "version", SC_WIRE_VERSION);
    service_exchange(&conn, &hello);
    msgpack_sbuffer_destroy(&hello);
    return conn;
}

void service_close(struct service_conn *conn)
{
    (void)close(conn->fd);
    free(conn->in);
}

/* ---- what is asked ---- */

/* A state of zeros at the end of this prompt: by bytes, so that no file comes. */
static void store(struct service_conn *conn, const struct sc_wire_key *key)
{
    msgpack_sbuffer request;
    msgpack_packer packer;
    msgpack_unpacked unpacked;
    struct sc_message message;
    struct sc_map map;
    size_t at = 0;
    uint64_t write = 0;
    bool known;
    begin(&packer, &request, "write_begin");
    sc_pack_name(&packer, "key");
    sc_pack_key(&packer, key);
    service_exchange(conn, &request);
    msgpack_sbuffer_destroy(&request);
    msgpack_unpacked_init(&unpacked);
    if (msgpack_unpack_next(&unpacked, (char *)conn->in, conn->in_count, &at) !=
            MSGPACK_UNPACK_SUCCESS ||
        sc_message_read(&unpacked.data, &message, &known) != SC_OK ||
        sc_map_begin(&map, message.result) != SC_OK ||
        sc_map_u64(&map, "write", true, UINT64_MAX, &write) != SC_OK || write == 0)
        bench_fail(BENCH_CHECK_FAILED, "a state could not be written");
    msgpack_unpacked_destroy(&unpacked);
    begin(&packer, &request, "write_commit");
    sc_pack_u64(&packer, "write", write);
    service_exchange(conn, &request);
    msgpack_sbuffer_destroy(&request);
}

void service_fill(struct service *service)
{
    struct service_conn conn = service_connect(service);
    struct sc_prng prng;
    msgpack_packer packer;
    size_t count = service->token_count;
    sc_prng_seed(&prng, service->seed);
    service->prompts = bench_alloc(SERVICE_PROMPTS * count, sizeof *service->prompts);
    for (size_t i = 0; i < SERVICE_PROMPTS; i++) {
        int32_t *tokens = service->prompts + i * count;
        for (size_t at = 0; at < count; at++) /* half of it is a system prompt */
            tokens[at] = i > 0 && at < count / 2 ? service->prompts[at] :
                (int32_t)sc_prng_below(&prng, 150000);
        const struct sc_wire_key key = {.tokens = tokens,
            .token_count = (uint32_t)count,
            .len_max = (uint32_t)count};
        store(&conn, &key);
        begin(&packer, &service->lookups[i], "lookup");
        sc_pack_name(&packer, "keys");
        (void)msgpack_pack_array(&packer, 1);
        sc_pack_key(&packer, &key);
    }
    /* An echo of as many bytes as a look-up has. */
    begin(&packer, &service->echo, "echo");
    sc_pack_bin(&packer, "data", service->prompts,
        service->lookups[0].size - service->echo.size - 5 - 3);
    service_exchange(&conn, &service->lookups[1]);
    service_close(&conn);
}

void service_free(struct service *service)
{
    for (size_t i = 0; i < SERVICE_PROMPTS; i++)
        msgpack_sbuffer_destroy(&service->lookups[i]);
    msgpack_sbuffer_destroy(&service->echo);
    free(service->prompts);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of a client: connect, send, receive with files, all with a time limit. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "client_internal.h"

enum { HOST_BYTES = 256, READ_BYTES = 64 << 10 };

/* Waits until `fd` is ready. */
static sc_status wait_for(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = sc_clock_now_ns();
        uint64_t left_ms = now < deadline_ns ? (deadline_ns - now + 999999) / 1000000 : 0;
        struct pollfd poll_fd = {.fd = fd, .events = events};
        int got = poll(&poll_fd, 1, left_ms > 1000000000 ? 1000000000 : (int)left_ms);
        if (got > 0) return SC_OK;
        if (got == 0 && left_ms == 0) {
            return SC_FAULT(SC_ERR_CLOSED, "the service did not answer in time");
        }
        if (got < 0 && errno != EINTR) return SC_FAULT_SYS(SC_ERR_IO, errno, "poll failed");
    }
}

static sc_status connect_fd(int fd, const struct sockaddr *address, socklen_t bytes,
    const char *text, uint64_t deadline_ns)
{
    int code = 0;
    socklen_t code_bytes = sizeof code;
    while (connect(fd, address, bytes) != 0) {
        if (errno == EINTR) continue;
        if (errno == EISCONN) return SC_OK;
        if (errno == EAGAIN) { /* a Unix socket whose queue is full */
            if (sc_clock_now_ns() >= deadline_ns) {
                return SC_FAULT(SC_ERR_AGAIN, "%s: too many clients are connecting", text);
            }
            (void)poll(NULL, 0, 1);
            continue;
        }
        if (errno == EINPROGRESS) {
            SC_PASS(wait_for(fd, POLLOUT, deadline_ns));
            (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &code_bytes);
            if (code == 0) return SC_OK;
            errno = code;
        }
        code = errno;
        bool nobody = code == ENOENT || code == ECONNREFUSED;
        sc_status status = nobody ? SC_ERR_NOT_FOUND : SC_ERR_IO;
        if (code == EACCES || code == EPERM) status = SC_ERR_DENIED;
        return SC_FAULT_SYS(status, code, "%s: %s%s", text, strerror(code),
            nobody ? ": no statecached listens there" : "");
    }
    return SC_OK;
}

static sc_status connect_unix(const char *path, uint64_t deadline_ns, int *fd_out)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        return SC_FAULT(SC_ERR_INVALID, "address: the path is too long");
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return SC_FAULT_SYS(SC_ERR_IO, errno, "socket: %s", strerror(errno));
    sc_status status = connect_fd(fd, (struct sockaddr *)&address, sizeof address, path,
        deadline_ns);
    if (status != SC_OK) {
        (void)close(fd);
    } else {
        *fd_out = fd;
    }
    return status;
}

static sc_status connect_tcp(const char *text, uint64_t deadline_ns, int *fd_out)
{
    char host[HOST_BYTES];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
        .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int on = 1;
    if (strlen(text) >= sizeof host) return SC_FAULT(SC_ERR_INVALID, "address: it is too long");
    memcpy(host, text, strlen(text) + 1);
    char *colon = strrchr(host, ':'), *name = host;
    if (colon) *colon = '\0';
    size_t count = strlen(host);
    if (count > 1 && host[0] == '[' && host[count - 1] == ']') {
        host[count - 1] = '\0';
        name = host + 1;
    }
    if (!colon || getaddrinfo(name, colon + 1, &hints, &found) != 0) {
        return SC_FAULT(SC_ERR_INVALID, "address: tcp:HOST:PORT in numbers is expected");
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sc_status status = fd < 0 ? SC_FAULT_SYS(SC_ERR_IO, errno, "socket: %s", strerror(errno)) :
        connect_fd(fd, found->ai_addr, found->ai_addrlen, text, deadline_ns);
    freeaddrinfo(found);
    if (status != SC_OK) {
        if (fd >= 0) (void)close(fd);
        return status;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *fd_out = fd;
    return SC_OK;
}

sc_status sc_client_connect(const char *address, uint32_t timeout_ms, int *fd_out)
{
    uint64_t deadline_ns = sc_clock_now_ns() + timeout_ms * UINT64_C(1000000);
    if (strncmp(address, "unix:", 5) == 0) return connect_unix(address + 5, deadline_ns, fd_out);
    if (strncmp(address, "tcp:", 4) == 0) return connect_tcp(address + 4, deadline_ns, fd_out);
    if (strchr(address, '/') && !strstr(address, "://")) {
        return connect_unix(address, deadline_ns, fd_out);
    }
    return SC_FAULT(SC_ERR_INVALID, "address: unix:PATH or tcp:HOST:PORT is expected, not %.60s",
        address);
}

sc_status sc_client_send(int fd, const void *bytes, size_t count, uint64_t deadline_ns)
{
    for (size_t at = 0; at < count;) {
        ssize_t got = send(fd, (const char *)bytes + at, count - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (got > 0) {
            at += (size_t)got;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            SC_PASS(wait_for(fd, POLLOUT, deadline_ns));
        } else if (errno != EINTR) {
            return SC_FAULT_SYS(SC_ERR_CLOSED, errno, "cannot send: %s", strerror(errno));
        }
    }
    return SC_OK;
}

static sc_status take_files(sc_client *client, struct msghdr *message)
{
    bool lost = (message->msg_flags & MSG_CTRUNC) != 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
        header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (client->fd_count == SC_CLIENT_FDS_MAX) {
                (void)close(fd);
                lost = true;
            } else {
                client->fds[client->fd_count++] = fd;
            }
        }
    }
    if (!lost) return SC_OK;
    return SC_FAULT(SC_ERR_NO_MEMORY, "this process has no file descriptor for a state");
}

sc_status sc_client_receive(sc_client *client, uint64_t deadline_ns)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int) * SC_CLIENT_FDS_MAX)];
    } control;
    if (client->in_cap - client->in_count < READ_BYTES) {
        size_t cap = client->in_cap * 2 + READ_BYTES;
        uint8_t *in = realloc(client->in, cap);
        if (!in) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory for an answer");
        client->in = in;
        client->in_cap = cap;
    }
    for (;;) {
        struct iovec piece = {client->in + client->in_count, client->in_cap - client->in_count};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
            .msg_controllen = sizeof control};
        ssize_t got = recvmsg(client->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (got > 0) {
            client->in_count += (size_t)got;
            return take_files(client, &message);
        }
        if (got == 0) return SC_FAULT(SC_ERR_CLOSED, "the service has closed the connection");
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            SC_PASS(wait_for(client->fd, POLLIN, deadline_ns));
        } else if (errno != EINTR) {
            return SC_FAULT_SYS(SC_ERR_CLOSED, errno, "cannot receive: %s", strerror(errno));
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: bytes in, frames out of them; answers and files out.
 *
 *   readable --> recv --> in: | frame | frame | part of a fr |
 *                              '-> dispatch, at most FRAMES_MAX, then the next connection's turn
 *   answer ----> send at once, what the socket does not take waits in `out`
 *
 * A client that does not read its answers gets no more of its requests read: while `out` holds more
 * than output_bytes, or `calls` are as many as `queue`, nothing is received from it. So the memory
 * of a connection is bounded by frame_bytes, output_bytes and one answer. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server.h"

enum { IN_BYTES = 4096, READ_BYTES = 256 << 10, FRAMES_MAX = 16, ACCEPTS_MAX = 2, FDS_MAX = 200,
    LINGER_MAX = 64 };

static void set_events(struct sd_conn *conn);
static bool finish_now(struct sd_conn *conn);

/* ---- the end of a connection ---- */

static void out_free(struct sd_out *out)
{
    for (uint32_t i = 0; i < out->fd_count; i++) (void)close(out->fds[i]);
    free(out->fds);
    free(out->bytes);
    free(out);
}

static void drop_out(struct sd_conn *conn)
{
    while (conn->out) {
        struct sd_out *out = conn->out;
        conn->out = out->next;
        out_free(out);
    }
    conn->out_end = &conn->out;
    conn->out_bytes = 0;
}

void sd_conn_release(struct sd_conn *conn)
{
    if (!conn->closed || conn->calls > 0) return;
    free(conn->in);
    free(conn);
}

static void on_closed(uv_handle_t *handle)
{
    struct sd_conn *conn = handle->data;
    (void)close(conn->fd);
    conn->closed = true;
    sd_conn_release(conn);
}

static void unready(struct sd_conn *conn)
{
    struct sd_server *server = conn->server;
    struct sd_conn **link = &server->ready;
    if (!conn->ready) return;
    while (*link != conn) link = &(*link)->ready_next;
    *link = conn->ready_next;
    if (server->ready_end == &conn->ready_next) server->ready_end = link;
    conn->ready = false;
}

void sd_conn_close(struct sd_conn *conn, const char *why)
{
    struct sd_server *server = conn->server;
    if (conn->closing) return;
    conn->closing = true;
    sd_log(SC_LOG_DEBUG, "client.gone", "client=%llu leases=%u writes=%u why=%s",
        (unsigned long long)conn->number, conn->lease_count, conn->write_count, why);
    while (conn->holds) sd_hold_end(server, conn->holds);
    unready(conn);
    drop_out(conn);
    *conn->link = conn->next;
    if (conn->next) conn->next->link = conn->link;
    server->conn_count--;
    (void)uv_poll_stop(&conn->poll);
    uv_close((uv_handle_t *)&conn->poll, on_closed);
}

void sd_conn_finish(struct sd_conn *conn)
{
    if (conn->closing) return;
    conn->finishing = true;
    conn->began_ms = uv_now(&conn->server->loop);
    if (conn->out || finish_now(conn)) set_events(conn);
}

/* ---- out ---- */

static ssize_t send_some(struct sd_conn *conn, const struct sd_out *out)
{
    struct iovec piece = {out->bytes + out->at, out->count - out->at};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int) * FDS_MAX)];
    } control;
    if (out->fd_count > 0 && out->at == 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * out->fd_count);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * out->fd_count);
        memcpy(CMSG_DATA(header), out->fds, sizeof(int) * out->fd_count);
    }
    return sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* All is sent. Over TCP, closing while bytes of the peer are unread would take the answer back: the
 * peer closes first, or its time is up. */
static bool finish_now(struct sd_conn *conn)
{
    const struct sd_server *server = conn->server;
    if (conn->local || server->conn_count > server->config->connections + LINGER_MAX) {
        sd_conn_close(conn, "finished");
        return false;
    }
    if (!conn->lingering) (void)shutdown(conn->fd, SHUT_WR);
    conn->lingering = true;
    return true;
}

/* False: the connection is closed. */
static bool flush(struct sd_conn *conn)
{
    while (conn->out) {
        struct sd_out *out = conn->out;
        ssize_t got = send_some(conn, out);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        if (got < 0) {
            sd_conn_close(conn, strerror(errno));
            return false;
        }
        out->at += (size_t)got;
        conn->out_bytes -= (size_t)got;
        conn->server->count.bytes_out += (uint64_t)got;
        if (out->at < out->count) continue;
        conn->out = out->next;
        if (!conn->out) conn->out_end = &conn->out;
        out_free(out);
    }
    if (!conn->finishing) return true;
    return finish_now(conn);
}

/* Duplicates the files: theirs may be closed before these bytes leave. */
static bool take_fds(struct sd_out *out, const int *fds, uint32_t fd_count)
{
    if (fd_count == 0) return true;
    out->fds = malloc(sizeof *out->fds * fd_count);
    if (!out->fds) return false;
    for (uint32_t i = 0; i < fd_count; i++) {
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (fd < 0) return false;
        out->fds[out->fd_count++] = fd;
    }
    return true;
}

void sd_conn_send(struct sd_conn *conn, char *bytes, size_t count, const int *fds,
    uint32_t fd_count)
{
    struct sd_out *out = conn->closing ? NULL : calloc(1, sizeof *out);
    if (!out) {
        free(bytes);
        if (!conn->closing) sd_conn_close(conn, "no memory");
        return;
    }
    out->bytes = bytes;
    out->count = count;
    if (!take_fds(out, fds, fd_count)) {
        out_free(out);
        sd_conn_close(conn, "no file descriptor for it");
        return;
    }
    *conn->out_end = out;
    conn->out_end = &out->next;
    conn->out_bytes += count;
    if (conn->out == out && !flush(conn)) return;
    set_events(conn);
}

/* ---- in ---- */

static bool may_read(const struct sd_conn *conn)
{
    const struct sd_config *config = conn->server->config;
    return !conn->finishing && !conn->ready && conn->out_bytes <= config->output_bytes &&
        conn->calls < config->queue;
}

static void on_event(uv_poll_t *poll, int status, int events);

static void set_events(struct sd_conn *conn)
{
    int events = conn->out ? UV_WRITABLE : 0;
    if (may_read(conn) || conn->lingering) events |= UV_READABLE;
    if (conn->closing || events == conn->events) return;
    conn->events = events;
    /* With no events the end of the peer would go unnoticed. */
    (void)uv_poll_start(&conn->poll, events ? events : UV_DISCONNECT, on_event);
}

static void make_ready(struct sd_conn *conn)
{
    struct sd_server *server = conn->server;
    if (conn->ready || conn->closing) return;
    conn->ready = true;
    conn->ready_next = NULL;
    *server->ready_end = conn;
    server->ready_end = &conn->ready_next;
    sd_server_ready(server);
}


static void refuse_frame(struct sd_conn *conn, enum sc_frame_state state)
{
    conn->server->count.closed_bad++;
    (void)SC_FAULT(state == SC_FRAME_LARGE ? SC_ERR_LIMIT : SC_ERR_INVALID, "%s",
        sc_frame_text(state));
    sd_log(SC_LOG_WARN, "client.bad_frame", "client=%llu text=%s",
        (unsigned long long)conn->number, sc_frame_text(state));
    sd_refuse(conn, 0);
}

/* Answers whole frames, a few at most. A frame stays where it is while it is answered; what comes
 * behind it is moved once, at the end. */
static void work_off(struct sd_conn *conn)
{
    size_t at = 0;
    for (uint32_t i = 0; !conn->closing && !conn->finishing; i++) {
        bool full = conn->calls >= conn->server->config->queue ||
            conn->out_bytes > conn->server->config->output_bytes;
        if (at == conn->in_count || full) break;
        if (i == FRAMES_MAX) {
            make_ready(conn);
            break;
        }
        enum sc_frame_state state = sc_frame_scan(&conn->frame, conn->in + at,
            conn->in_count - at);
        if (state == SC_FRAME_MORE) break;
        if (state != SC_FRAME_WHOLE) {
            refuse_frame(conn, state);
            return;
        }
        size_t count = (size_t)conn->frame.at;
        sc_frame_begin(&conn->frame, conn->server->config->frame_bytes);
        sd_dispatch(conn, conn->in + at, count);
        at += count;
        conn->began_ms = uv_now(&conn->server->loop);
    }
    if (conn->closing) return;
    if (at > 0) {
        conn->in_count -= at;
        memmove(conn->in, conn->in + at, conn->in_count);
    }
    set_events(conn);
}

void sd_conn_resume(struct sd_conn *conn)
{
    if (conn->closing) return;
    if (conn->in_count > 0) make_ready(conn);
    set_events(conn);
}

void sd_conns_ready(struct sd_server *server)
{
    struct sd_conn *conn = server->ready;
    server->ready = NULL;
    server->ready_end = &server->ready;
    for (struct sd_conn *each = conn; each; each = each->ready_next) each->ready = false;
    while (conn) {
        struct sd_conn *next = conn->ready_next;
        work_off(conn);
        conn = next;
    }
}

static bool grow(struct sd_conn *conn)
{
    uint64_t max = conn->server->config->frame_bytes + IN_BYTES;
    size_t cap = conn->in_cap == 0 ? IN_BYTES : conn->in_cap * 4;
    if (cap > max) cap = (size_t)max;
    uint8_t *in = realloc(conn->in, cap);
    if (!in) return false;
    conn->in = in;
    conn->in_cap = cap;
    return true;
}

/* A refused client's bytes are thrown away until it has read why. */
static bool linger(struct sd_conn *conn)
{
    char nothing[4096];
    ssize_t got = recv(conn->fd, nothing, sizeof nothing, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        sd_conn_close(conn, "finished");
        return false;
    }
    return true;
}

static void on_readable(struct sd_conn *conn)
{
    size_t total = 0, room = 0;
    ssize_t got = 0;
    do {
        if (conn->in_count == conn->in_cap && !grow(conn)) {
            sd_conn_close(conn, "no memory");
            return;
        }
        room = conn->in_cap - conn->in_count;
        got = recv(conn->fd, conn->in + conn->in_count, room, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) break;
        if (got <= 0) {
            sd_conn_close(conn, got == 0 ? "it has closed" : strerror(errno));
            return;
        }
        if (conn->in_count == 0) conn->began_ms = uv_now(&conn->server->loop);
        conn->in_count += (size_t)got;
        total += (size_t)got;
    } while ((size_t)got == room && total < READ_BYTES &&
        conn->in_count < conn->server->config->frame_bytes);
    conn->server->count.bytes_in += total;
    work_off(conn);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct sd_conn *conn = poll->data;
    if (status < 0) {
        sd_conn_close(conn, uv_strerror(status));
        return;
    }
    if (events & UV_DISCONNECT && !(events & UV_READABLE)) {
        sd_conn_close(conn, "it has closed");
        return;
    }
    if (events & UV_WRITABLE) {
        bool was_full = !may_read(conn);
        if (!flush(conn)) return;
        if (was_full && may_read(conn)) sd_conn_resume(conn);
        set_events(conn);
    }
    if (events & UV_READABLE && conn->lingering) {
        (void)linger(conn);
    } else if (events & UV_READABLE && !conn->closing) {
        on_readable(conn);
    }
}

/* ---- accepting ---- */

static struct sd_conn *conn_make(struct sd_server *server, int fd, bool local)
{
    struct sd_conn *conn = calloc(1, sizeof *conn);
    if (!conn) return NULL;
    *conn = (struct sd_conn){.server = server, .fd = fd, .local = local,
        .number = ++server->conn_number, .began_ms = uv_now(&server->loop), .uid = UINT32_MAX};
    conn->opened_ms = conn->began_ms;
    conn->out_end = &conn->out;
    conn->poll.data = conn;
    sc_frame_begin(&conn->frame, server->config->frame_bytes);
    if (uv_poll_init(&server->loop, &conn->poll, fd) != 0) {
        free(conn);
        return NULL;
    }
    conn->next = server->conns;
    conn->link = &server->conns;
    if (server->conns) server->conns->link = &conn->next;
    server->conns = conn;
    server->conn_count++;
    server->count.connections++;
    return conn;
}

static bool uid_allowed(const struct sd_server *server, uint32_t uid)
{
    const struct sd_config *config = server->config;
    if (uid == server->own_uid || uid == 0) return true;
    for (uint32_t i = 0; i < config->uid_count; i++) {
        if (config->uids[i] == uid) return true;
    }
    return false;
}

static void welcome(struct sd_conn *conn)
{
    struct sd_server *server = conn->server;
    struct ucred peer = {.uid = UINT32_MAX};
    socklen_t bytes = sizeof peer;
    int on = 1;
    set_events(conn);
    if (conn->local) {
        if (getsockopt(conn->fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
            peer.uid = UINT32_MAX;
        }
        conn->uid = peer.uid;
        if (!uid_allowed(server, peer.uid)) {
            server->count.refused++;
            sd_log(SC_LOG_WARN, "client.foreign", "uid=%u", peer.uid);
            (void)SC_FAULT(SC_ERR_DENIED, "user %u may not use this service (allow_uid)", peer.uid);
            sd_refuse(conn, 0);
            return;
        }
    } else {
        (void)setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    if (server->conn_count > server->config->connections) {
        server->count.refused++;
        (void)SC_FAULT(SC_ERR_AGAIN, "%u clients are connected, the limit (connections)",
            server->conn_count - 1);
        sd_refuse(conn, 0);
    }
}

void sd_conn_accept(struct sd_listener *listener)
{
    struct sd_server *server = listener->server;
    /* A few, then those who are connected have their turn. */
    for (uint32_t i = 0; i < ACCEPTS_MAX; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && server->spare_fd >= 0) {
            /* The loop would come back at once, for ever: one is taken in and thrown out. */
            (void)close(server->spare_fd);
            fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (fd >= 0) (void)close(fd);
            server->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
            server->count.refused++;
            sd_log(SC_LOG_WARN, "accept.no_file", "clients=%u", server->conn_count);
            return;
        }
        if (fd < 0) {
            bool none = errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED ||
                errno == EINTR;
            if (!none) sd_log(SC_LOG_WARN, "accept.failed", "text=%s", strerror(errno));
            return;
        }
        struct sd_conn *conn = conn_make(server, fd, listener->local);
        if (!conn) {
            server->count.refused++;
            (void)close(fd);
            continue;
        }
        welcome(conn);
    }
}

/* ---- time ---- */

void sd_conns_time(struct sd_server *server, uint64_t now_ms)
{
    struct sd_conn *next = NULL;
    for (struct sd_conn *conn = server->conns; conn; conn = next) {
        next = conn->next;
        bool hello_late = !conn->greeted && now_ms - conn->began_ms > server->config->hello_ms;
        bool frame_late = conn->in_count > 0 && may_read(conn) &&
            now_ms - conn->began_ms > server->config->frame_ms;
        bool stuck = conn->finishing && now_ms - conn->began_ms > server->config->hello_ms;
        if (conn->in_count == 0 && conn->in_cap > IN_BYTES && now_ms - conn->began_ms > 1000) {
            free(conn->in); /* an idle client is small */
            conn->in = NULL;
            conn->in_cap = 0;
        }
        if (!hello_late && !frame_late && !stuck) continue;
        server->count.closed_late++;
        sd_log(SC_LOG_WARN, "client.late", "client=%llu", (unsigned long long)conn->number);
        sd_conn_close(conn, frame_late ? "a message without an end" : "it said no hello");
    }
}

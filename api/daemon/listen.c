/* SPDX-License-Identifier: Apache-2.0 */
/* Unix socket and loopback TCP. */
#include "listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static bool failed(const char *where, const char *text)
{
    sd_log(SC_LOG_ERROR, "listen.failed", "where=%s text=%s", where, text);
    return false;
}

static void on_client(uv_poll_t *poll, int status, int events)
{
    (void)events;
    if (status == 0) sd_conn_accept(poll->data);
}

static bool start(struct sd_server *server, struct sd_listener *listener, int fd, bool local)
{
    if (uv_poll_init(&server->loop, &listener->poll, fd) != 0) {
        (void)close(fd);
        return false;
    }
    listener->fd = fd;
    listener->local = local;
    listener->server = server;
    listener->poll.data = listener;
    return uv_poll_start(&listener->poll, UV_READABLE, on_client) == 0;
}

/* Why a path cannot be had; NULL: nothing is there, or nothing any more that a service left behind
 * when it died. */
static const char *taken(const struct sockaddr_un *address)
{
    struct stat info;
    if (lstat(address->sun_path, &info) != 0) return errno == ENOENT ? NULL : strerror(errno);
    if (!S_ISSOCK(info.st_mode)) return "it is no socket: --set socket=PATH takes another";
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return strerror(errno);
    bool heard = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0;
    int code = errno;
    (void)close(fd);
    if (heard) return "somebody listens there already: --set socket=PATH takes another";
    if (code != ECONNREFUSED) return strerror(code);
    return unlink(address->sun_path) == 0 ? NULL : strerror(errno);
}

void sd_listen_mode(const struct sd_server *server)
{
    mode_t mode = server->config->uid_count > 0 ? 0666 : 0600;
    if (server->unix_path_made) (void)chmod(server->config->socket, mode);
}

static bool open_unix(struct sd_server *server)
{
    const char *path = server->config->socket;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return failed(path, "the path is too long");
    memcpy(address.sun_path, path, strlen(path) + 1);
    const char *why = taken(&address);
    if (why) return failed(path, why);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return failed(path, strerror(errno));
    /* Others may connect only where some are allowed; who they are is asked of each. */
    mode_t mask = umask(0177);
    bool bound = bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    int code = errno;
    (void)umask(mask);
    if (!bound) {
        (void)close(fd);
        return failed(path, strerror(code));
    }
    server->unix_path_made = true;
    sd_listen_mode(server);
    if (listen(fd, BACKLOG) != 0) {
        code = errno;
        (void)close(fd);
        return failed(path, strerror(code));
    }
    return start(server, &server->unix_listener, fd, true) || failed(path, "no memory");
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)address;
        return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

/* HOST:PORT or [HOST]:PORT, numbers alone. NULL: it is not that. */
static struct addrinfo *resolve(const char *text)
{
    char host[SD_PATH_BYTES];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
        .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    struct addrinfo *found = NULL;
    memcpy(host, text, strlen(text) + 1);
    char *colon = strrchr(host, ':'), *name = host;
    if (!colon) return NULL;
    *colon = '\0';
    size_t count = strlen(host);
    if (count > 1 && host[0] == '[' && host[count - 1] == ']') {
        host[count - 1] = '\0';
        name = host + 1;
    }
    return getaddrinfo(name, colon + 1, &hints, &found) == 0 ? found : NULL;
}

static void name_of(int fd, char *name, size_t name_bytes)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    char host[INET6_ADDRSTRLEN] = "", port[8] = "";
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) return;
    (void)getnameinfo((struct sockaddr *)&address, bytes, host, sizeof host, port, sizeof port,
        NI_NUMERICHOST | NI_NUMERICSERV);
    (void)snprintf(name, name_bytes, address.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
        port);
}

int sd_listen_at(const char *text, bool loopback, char *name, size_t name_bytes)
{
    struct addrinfo *address = resolve(text);
    int on = 1;
    if (!address) {
        (void)failed(text, "HOST:PORT in numbers is expected");
        return -1;
    }
    if (loopback && !is_loopback(address->ai_addr)) {
        freeaddrinfo(address);
        (void)failed(text, "only loopback addresses: the connection is not encrypted");
        return -1;
    }
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool good = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0;
    int code = errno;
    freeaddrinfo(address);
    if (!good) {
        if (fd >= 0) (void)close(fd);
        (void)failed(text, strerror(code));
        return -1;
    }
    name_of(fd, name, name_bytes);
    return fd;
}

static bool open_tcp(struct sd_server *server)
{
    const char *text = server->config->listen;
    int fd = sd_listen_at(text, true, server->tcp_name, sizeof server->tcp_name);
    if (fd < 0) return false;
    return start(server, &server->tcp_listener, fd, false) || failed(text, "no memory");
}

bool sd_listen_open(struct sd_server *server)
{
    bool good = !server->config->socket[0] || open_unix(server);
    return good && (!server->config->listen[0] || open_tcp(server));
}

static void on_closed(uv_handle_t *handle)
{
    const struct sd_listener *listener = handle->data;
    (void)close(listener->fd);
}

static void close_one(struct sd_listener *listener)
{
    if (listener->fd < 0 || uv_is_closing((uv_handle_t *)&listener->poll)) return;
    (void)uv_poll_stop(&listener->poll);
    uv_close((uv_handle_t *)&listener->poll, on_closed);
}

void sd_listen_close(struct sd_server *server)
{
    close_one(&server->unix_listener);
    close_one(&server->tcp_listener);
    if (server->unix_path_made) (void)unlink(server->config->socket);
    server->unix_path_made = false;
}

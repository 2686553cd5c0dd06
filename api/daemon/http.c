/* SPDX-License-Identifier: Apache-2.0 */
/* /metrics, /healthz and /v1/status over HTTP, by libmicrohttpd.
 *
 *   scraper --> HTTP thread --ask--> loop: takes a picture --told--> HTTP thread: text --> scraper
 *
 * HTTP has a thread of its own (libmicrohttpd's), so that the loop neither parses what strangers
 * send nor waits for who reads slowly. For an answer the thread asks the loop for a picture and
 * waits, at most LOOP_MS; a loop that does not answer is itself what /healthz has to tell. The
 * picture is the loop's from `asked` to `answered`, the HTTP thread's otherwise; there is one HTTP
 * thread, so one question at a time. Questions are REST_MS apart, so that no flood of scrapes takes
 * more of the loop than a picture in so much time.
 *
 * A connection is for one request, which has hello_ms from its beginning to the end of the answer:
 * then sd_http_time shuts it down, silent or not. The list under `lock` has each connection from
 * its beginning to before its file is closed. */
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "listen.h"
#include "server.h"

enum { CONNECTIONS = 256, CONNECTION_BYTES = 8192, LOOP_MS = 1000, REST_MS = 2, SHUT_MAX = 32,
    SPARE_FILES = 8 };

struct conn {
    struct conn *next, **link;
    int fd;
    bool shut;
    uint64_t began_ms;
};

struct sd_http {
    struct sd_server *server;
    struct MHD_Daemon *daemon;
    uv_async_t ask;
    char name[SD_NAME_BYTES];
    uv_mutex_t lock;
    uv_cond_t told;
    uint64_t asked, answered;
    bool ended;             /* the loop will not answer any more */
    struct conn *conns;
    struct sd_picture picture;
    /* the HTTP thread's */
    uint64_t asked_ns;
    uint64_t ok, bad, unready;
};

uint32_t sd_http_files(const struct sd_config *config)
{
    return config->metrics_listen[0] ? CONNECTIONS + SPARE_FILES : 0;
}

const char *sd_http_name(const struct sd_server *server)
{
    return server->http ? server->http->name : "";
}

/* ---- asking the loop ---- */

static void on_ask(uv_async_t *ask)
{
    struct sd_http *http = ask->data;
    uv_mutex_lock(&http->lock);
    if (http->answered != http->asked) {
        sd_picture_take(http->server, &http->picture);
        http->answered = http->asked;
        uv_cond_signal(&http->told);
    }
    uv_mutex_unlock(&http->lock);
}

/* A picture that is younger than the question. False: the loop did not answer in time. */
static bool ask(struct sd_http *http)
{
    const uint64_t rest_ns = REST_MS * UINT64_C(1000000);
    uint64_t since_ns = uv_hrtime() - http->asked_ns;
    if (since_ns < rest_ns) uv_sleep(REST_MS);
    http->asked_ns = uv_hrtime();
    uint64_t end_ns = http->asked_ns + LOOP_MS * UINT64_C(1000000), now_ns;
    uv_mutex_lock(&http->lock);
    http->asked++;
    if (!http->ended) (void)uv_async_send(&http->ask);
    while (http->answered != http->asked && !http->ended && (now_ns = uv_hrtime()) < end_ns) {
        (void)uv_cond_timedwait(&http->told, &http->lock, end_ns - now_ns);
    }
    bool got = http->answered == http->asked;
    uv_mutex_unlock(&http->lock);
    if (!got) return false;
    sd_picture_tiers(&http->picture, http->server->store.tiers);
    http->picture.http_ok = http->ok;
    http->picture.http_bad = http->bad;
    http->picture.http_unready = http->unready;
    return true;
}

/* ---- answers ---- */

static enum MHD_Result answer(struct sd_http *http, struct MHD_Connection *connection,
    unsigned code, const char *type, struct MHD_Response *response)
{
    if (!response) return MHD_NO; /* no memory: the connection is closed */
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    if (code < 400) {
        http->ok++;
    } else if (code < 500) {
        http->bad++;
    } else {
        http->unready++;
    }
    enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static const char plain_text[] = "text/plain; charset=utf-8";

static enum MHD_Result answer_static(struct sd_http *http, struct MHD_Connection *connection,
    unsigned code, const char *text)
{
    /* It is only read. */
    return answer(http, connection, code, plain_text, MHD_create_response_from_buffer(strlen(text),
        (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT));
}

/* Takes `text` over; NULL: no memory. */
static enum MHD_Result answer_text(struct sd_http *http, struct MHD_Connection *connection,
    unsigned code, const char *type, char *text, size_t count)
{
    struct MHD_Response *response = text ? MHD_create_response_from_buffer(count, text,
        MHD_RESPMEM_MUST_FREE) : NULL;
    if (!response) free(text);
    return answer(http, connection, code, type, response);
}

static const char late_text[] = "the service does not answer\n";

static enum MHD_Result metrics(struct sd_http *http, struct MHD_Connection *connection)
{
    char *text = NULL;
    size_t count = 0;
    FILE *out = ask(http) ? open_memstream(&text, &count) : NULL;
    if (!out) return answer_static(http, connection, MHD_HTTP_SERVICE_UNAVAILABLE, late_text);
    sd_prometheus_write(out, &http->picture);
    bool bad = ferror(out) != 0;
    if (fclose(out) != 0 || bad) {
        free(text);
        text = NULL;
    }
    return answer_text(http, connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
        text, count);
}

static enum MHD_Result status(struct sd_http *http, struct MHD_Connection *connection)
{
    if (!ask(http)) {
        return answer_static(http, connection, MHD_HTTP_SERVICE_UNAVAILABLE, late_text);
    }
    char *text = sd_status_text(&http->picture);
    return answer_text(http, connection, MHD_HTTP_OK, "application/json", text,
        text ? strlen(text) : 0);
}

static enum MHD_Result health(struct sd_http *http, struct MHD_Connection *connection)
{
    char text[512] = "";
    size_t at = 0;
    const char *problem;
    if (!ask(http)) {
        return answer_static(http, connection, MHD_HTTP_SERVICE_UNAVAILABLE, late_text);
    }
    for (uint32_t i = 0; (problem = sd_picture_problem(&http->picture, i)); i++) {
        int got = snprintf(text + at, sizeof text - at, "%s\n", problem);
        at += got > 0 && at + (size_t)got < sizeof text ? (size_t)got : 0;
    }
    if (at == 0) return answer_static(http, connection, MHD_HTTP_OK, "ok\n");
    return answer(http, connection, MHD_HTTP_SERVICE_UNAVAILABLE, plain_text,
        MHD_create_response_from_buffer(at, text, MHD_RESPMEM_MUST_COPY));
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *connection, const char *url,
    const char *method, const char *version, const char *upload, size_t *upload_bytes, void **state)
{
    static char begun;
    struct sd_http *http = ctx;
    (void)version;
    (void)upload;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        return answer_static(http, connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET or HEAD\n");
    }
    if (!*state) { /* the headers alone; a body is thrown away */
        *state = &begun;
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        *upload_bytes = 0;
        return MHD_YES;
    }
    if (strcmp(url, "/metrics") == 0) return metrics(http, connection);
    if (strcmp(url, "/healthz") == 0) return health(http, connection);
    if (strcmp(url, "/v1/status") == 0) return status(http, connection);
    return answer_static(http, connection, MHD_HTTP_NOT_FOUND,
        "there are /metrics, /healthz and /v1/status\n");
}

/* ---- connections ---- */

static void on_connection(void *ctx, struct MHD_Connection *connection, void **state,
    enum MHD_ConnectionNotificationCode code)
{
    struct sd_http *http = ctx;
    struct conn *conn = *state;
    uv_mutex_lock(&http->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection,
            MHD_CONNECTION_INFO_CONNECTION_FD);
        conn = info ? calloc(1, sizeof *conn) : NULL;
        if (conn) { /* without memory its time is not limited */
            *conn = (struct conn){.next = http->conns, .link = &http->conns,
                .fd = info->connect_fd, .began_ms = uv_hrtime() / 1000000};
            if (http->conns) http->conns->link = &conn->next;
            http->conns = conn;
        }
        *state = conn;
    } else if (conn) {
        *conn->link = conn->next;
        if (conn->next) conn->next->link = conn->link;
        free(conn);
        *state = NULL;
    }
    uv_mutex_unlock(&http->lock);
}

void sd_http_time(struct sd_server *server)
{
    struct sd_http *http = server->http;
    if (!http) return;
    uint64_t now_ms = uv_hrtime() / 1000000;
    uint32_t count = 0;
    uv_mutex_lock(&http->lock);
    for (struct conn *conn = http->conns; conn && count < SHUT_MAX; conn = conn->next) {
        if (conn->shut || now_ms < conn->began_ms + server->config->hello_ms) continue;
        (void)shutdown(conn->fd, SHUT_RDWR); /* the HTTP thread closes it */
        conn->shut = true;
        count++;
    }
    uv_mutex_unlock(&http->lock);
}

/* ---- open and close ---- */

static void on_closed(uv_handle_t *handle)
{
    struct sd_http *http = handle->data;
    uv_cond_destroy(&http->told);
    uv_mutex_destroy(&http->lock);
    free(http);
}

static bool start(struct sd_http *http, int fd)
{
    http->daemon = MHD_start_daemon(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL,
        on_request, http, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, http,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    return http->daemon != NULL;
}

bool sd_http_open(struct sd_server *server)
{
    if (!server->config->metrics_listen[0]) return true;
    struct sd_http *http = calloc(1, sizeof *http);
    if (!http || uv_mutex_init(&http->lock) != 0) {
        free(http);
        sd_log(SC_LOG_ERROR, "service.failed", "text=no memory");
        return false;
    }
    if (uv_cond_init(&http->told) != 0) {
        uv_mutex_destroy(&http->lock);
        free(http);
        sd_log(SC_LOG_ERROR, "service.failed", "text=no memory");
        return false;
    }
    http->server = server;
    http->ask.data = http;
    if (uv_async_init(&server->loop, &http->ask, on_ask) != 0) {
        on_closed((uv_handle_t *)&http->ask);
        sd_log(SC_LOG_ERROR, "service.failed", "text=no file for HTTP");
        return false;
    }
    server->http = http;
    int fd = sd_listen_at(server->config->metrics_listen, false, http->name, sizeof http->name);
    if (fd >= 0 && start(http, fd)) return true;
    if (fd >= 0) {
        sd_log(SC_LOG_ERROR, "listen.failed", "where=%s text=no thread or memory for HTTP",
            http->name);
        (void)close(fd);
    }
    return false; /* sd_http_close does the rest */
}

void sd_http_close(struct sd_server *server)
{
    struct sd_http *http = server->http;
    if (!http) return;
    uv_mutex_lock(&http->lock);
    http->ended = true;
    uv_cond_broadcast(&http->told);
    uv_mutex_unlock(&http->lock);
    if (http->daemon) MHD_stop_daemon(http->daemon);
    server->http = NULL;
    uv_close((uv_handle_t *)&http->ask, on_closed);
}

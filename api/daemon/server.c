/* SPDX-License-Identifier: Apache-2.0 */
/* The loop: listeners, signals, time, and the way down.
 *
 *   SIGTERM, SIGINT --> no new clients, no new leases; calls under way are answered (at most
 *                       STOP_MS) --> clients go --> transfers to tiers end --> the cache is closed
 *   SIGHUP          --> the file is read again; what can change, changes; if anything in it is
 *                       wrong, nothing does */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "listen.h"
#include "server.h"

enum { TICK_MS = 1, SECOND_MS = 250, STOP_MS = 5000, DONE_MAX = 64, FILES_SPARE = 64 };

uint64_t sd_clock_began_ns;

/* ---- work elsewhere ---- */

static void work_run(uv_work_t *request)
{
    struct sd_work *work = request->data;
    work->work(work);
}

static void work_done(uv_work_t *request, int status)
{
    (void)status; /* nothing is ever cancelled */
    struct sd_work *work = request->data;
    work->server->works--;
    work->done(work);
}

bool sd_work_start(struct sd_server *server, struct sd_work *work)
{
    work->server = server;
    work->request.data = work;
    if (uv_queue_work(&server->loop, &work->request, work_run, work_done) != 0) return false;
    server->works++;
    return true;
}

struct let_go {
    struct sd_work work;
    int fd;
    uint64_t bytes;
};

static void let_go_work(struct sd_work *work)
{
    const struct let_go *job = (const struct let_go *)work;
    sd_file_drop(job->fd, job->bytes);
}

static void let_go_done(struct sd_work *work)
{
    free(work);
}

static void let_go(void *ctx, int fd, uint64_t bytes)
{
    struct let_go *job = calloc(1, sizeof *job);
    if (job) {
        job->work.work = let_go_work;
        job->work.done = let_go_done;
        job->fd = fd;
        job->bytes = bytes;
        if (sd_work_start(ctx, &job->work)) return;
        free(job);
    }
    sd_file_drop(fd, bytes);
}

/* ---- transfers ---- */

static uint64_t transfers(const struct sd_server *server)
{
    sc_cache_stats stats = {.struct_size = sizeof stats};
    if (!server->store.tiers) return 0;
    return sc_cache_stats_get(server->store.cache, &stats) == SC_OK ? stats.transfers_alive : 0;
}

/* What tiers have done takes effect; who waited goes on. */
static void tend(struct sd_server *server)
{
    sc_done done[DONE_MAX];
    uint32_t count = 0;
    if (server->store.tiers) {
        sc_status status = sc_cache_poll(server->store.cache, done, DONE_MAX, &count);
        if (status == SC_OK) {
            status = sc_cache_apply(server->store.cache, done, count, sd_now_ns());
        }
        if (count > 0) sd_events_changed(server->events);
        if (status != SC_OK) {
            sd_log(SC_LOG_ERROR, "tiers.apply", "text=%s", sc_last_error()->text);
        }
    }
    sd_waiting_tick(server);
}

static void on_tick(uv_timer_t *timer)
{
    struct sd_server *server = timer->data;
    tend(server);
    if (server->waiting || transfers(server) > 0) return;
    server->ticking = false;
    (void)uv_timer_stop(timer);
}

void sd_server_changed(struct sd_server *server)
{
    server->store.dirty = true;
    sd_events_changed(server->events);
    if (server->ticking || (!server->store.tiers && !server->waiting)) return;
    server->ticking = true;
    (void)uv_timer_start(&server->tick, on_tick, TICK_MS, TICK_MS);
}

/* ---- the way down ---- */

static void close_handle(uv_handle_t *handle)
{
    if (handle->type != UV_UNKNOWN_HANDLE && !uv_is_closing(handle)) uv_close(handle, NULL);
}

static void close_all(struct sd_server *server)
{
    sd_listen_close(server);
    sd_http_close(server);
    while (server->conns) sd_conn_close(server->conns, "the service ends");
    while (server->kept) sd_hold_end(server, server->kept);
    close_handle((uv_handle_t *)&server->signal_stop);
    close_handle((uv_handle_t *)&server->signal_stop2);
    close_handle((uv_handle_t *)&server->signal_reload);
    close_handle((uv_handle_t *)&server->second);
    close_handle((uv_handle_t *)&server->tick);
    close_handle((uv_handle_t *)&server->idle);
}

static void begin_stop(struct sd_server *server, int number)
{
    if (server->stopping) {
        server->stop_ms = 0; /* told twice: at once */
        return;
    }
    sd_log(SC_LOG_INFO, "service.stopping", "signal=%d clients=%u leases=%u", number,
        server->conn_count, server->hold_count);
    sd_notify_manager("STOPPING=1");
    server->stopping = true;
    server->stop_ms = uv_now(&server->loop) + STOP_MS;
    sd_listen_close(server);
}

/* Clients without a call under way go; the others when it has been answered, or time is up. */
static void go_on_stopping(struct sd_server *server)
{
    bool late = uv_now(&server->loop) >= server->stop_ms;
    struct sd_conn *next = NULL;
    for (struct sd_conn *conn = server->conns; conn; conn = next) {
        next = conn->next;
        if (late || (conn->calls == 0 && !conn->out)) sd_conn_close(conn, "the service stops");
    }
    if (!server->conns && server->works == 0 && !server->waiting) close_all(server);
}

static void on_second(uv_timer_t *timer)
{
    struct sd_server *server = timer->data;
    sd_conns_time(server, uv_now(&server->loop));
    sd_http_time(server);
    sd_pins_time(server, sd_now_ns());
    if (server->store.dirty) sd_store_sweep(&server->store);
    if (server->stopping) go_on_stopping(server);
}

static void on_stop(uv_signal_t *handle, int number)
{
    begin_stop(handle->data, number);
    go_on_stopping(handle->data);
}

/* ---- reload ---- */

static enum sc_log_level level_of(const struct sd_config *config)
{
    static const char *const words[] = {"debug", "info", "warn", "error"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(config->log, words[i]) == 0) return (enum sc_log_level)i;
    }
    return SC_LOG_INFO;
}

static void on_reload(uv_signal_t *handle, int number)
{
    (void)number;
    struct sd_server *server = handle->data;
    struct sd_config *config = server->config;
    struct sd_config *next = malloc(sizeof *next);
    if (!next) return;
    sd_notify_manager("RELOADING=1");
    sd_config_init(next);
    bool good = config->file[0] && sd_config_read(next, config->file, stderr) &&
        sd_config_overrides(next, config, stderr) && sd_config_finish(next, stderr);
    const char *fixed = good ? sd_config_fixed_change(config, next) : NULL;
    if (!config->file[0]) {
        sd_log(SC_LOG_WARN, "config.no_file", "text=there is no file to read again");
    } else if (!good || fixed) {
        sd_log(SC_LOG_ERROR, "config.kept", "file=%s text=%s%s", config->file,
            fixed ? "this needs a restart: " : "there are errors", fixed ? fixed : "");
    } else {
        *config = *next;
        sd_tenants_configure(&server->tenants, config);
        sd_listen_mode(server);
        sd_log_level(level_of(config));
        sd_log(SC_LOG_INFO, "config.reloaded", "file=%s", config->file);
    }
    free(next);
    sd_notify_manager("READY=1");
}

/* ---- up ---- */

/* A file for each state, each connection, and what goes with answers. */
static void raise_files(const struct sd_config *config)
{
    struct rlimit limit;
    uint64_t wanted = config->slots * 2 + config->connections + sd_http_files(config) +
        FILES_SPARE;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = wanted < limit.rlim_max ? (rlim_t)wanted : limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < wanted) {
        sd_log(SC_LOG_WARN, "files.few", "limit=%llu wanted=%llu",
            (unsigned long long)limit.rlim_cur, (unsigned long long)wanted);
    }
}

static void on_idle(uv_idle_t *idle);

static void on_prepare_idle(struct sd_server *server)
{
    if (server->ready) {
        (void)uv_idle_start(&server->idle, on_idle);
    } else {
        (void)uv_idle_stop(&server->idle);
    }
}

static void on_idle(uv_idle_t *idle)
{
    struct sd_server *server = idle->data;
    sd_conns_ready(server);
    on_prepare_idle(server);
}

void sd_server_ready(struct sd_server *server)
{
    (void)uv_idle_start(&server->idle, on_idle);
}

static bool open_handles(struct sd_server *server)
{
    uv_loop_t *loop = &server->loop;
    bool good = uv_timer_init(loop, &server->second) == 0 &&
        uv_timer_init(loop, &server->tick) == 0 && uv_idle_init(loop, &server->idle) == 0 &&
        uv_signal_init(loop, &server->signal_stop) == 0 &&
        uv_signal_init(loop, &server->signal_stop2) == 0 &&
        uv_signal_init(loop, &server->signal_reload) == 0;
    server->second.data = server->tick.data = server->idle.data = server;
    server->signal_stop.data = server->signal_stop2.data = server->signal_reload.data = server;
    return good && uv_timer_start(&server->second, on_second, SECOND_MS, SECOND_MS) == 0 &&
        uv_signal_start(&server->signal_stop, on_stop, SIGTERM) == 0 &&
        uv_signal_start(&server->signal_stop2, on_stop, SIGINT) == 0 &&
        uv_signal_start(&server->signal_reload, on_reload, SIGHUP) == 0;
}

static void free_all(struct sd_server *server)
{
    if (server->spare_fd >= 0) (void)close(server->spare_fd);
    sd_tenants_free(&server->tenants);
    free(server->holds);
    free(server->free_holds);
    free(server->tokens);
    free(server->marks);
    free(server->keys);
    msgpack_sbuffer_destroy(&server->answer);
}

static void begin_clock(void)
{
    uv_timeval64_t now;
    if (uv_gettimeofday(&now) != 0 || now.tv_sec < 0) return; /* then it is the machine's uptime */
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_usec * 1000;
    uint64_t up = uv_hrtime();
    sd_clock_began_ns = ns > up ? ns - up : 0;
}

static bool open_events(struct sd_server *server)
{
    sc_status status = sd_events_open(server->config, server->store.cache, &server->events);
    if (status == SC_OK) return true;
    sd_log(SC_LOG_ERROR, "events.failed", "text=%s", sc_fault_last()->text);
    return false;
}

bool sd_server_open(struct sd_server *server, struct sd_config *config)
{
    const char *what = "";
    begin_clock();
    *server = (struct sd_server){.config = config, .own_uid = (uint32_t)geteuid(),
        .began_ns = sd_now_ns(), .spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC)};
    server->unix_listener.fd = server->tcp_listener.fd = -1;
    server->ready_end = &server->ready;
    msgpack_sbuffer_init(&server->answer);
    sd_log_level(level_of(config));
    (void)signal(SIGPIPE, SIG_IGN);
    raise_files(config);
    if (sd_store_open(config, &server->store, &what) != SC_OK) {
        sd_log(SC_LOG_ERROR, "store.failed", "what=%s text=%s", what, sc_fault_last()->text);
        free_all(server);
        return false;
    }
    sd_tenants_configure(&server->tenants, config);
    if (!sd_holds_init(server) || uv_loop_init(&server->loop) != 0) {
        sd_log(SC_LOG_ERROR, "service.failed", "text=no memory");
        (void)sd_store_close(&server->store);
        free_all(server);
        return false;
    }
    server->store.let_go = let_go;
    server->store.let_go_ctx = server;
    bool good = open_handles(server) && open_events(server) && sd_listen_open(server);
    if (good && sd_http_open(server)) return true;
    sd_events_close(server->events);
    server->events = NULL;
    close_all(server);
    (void)uv_run(&server->loop, UV_RUN_DEFAULT);
    server->store.let_go = NULL;
    (void)uv_loop_close(&server->loop);
    (void)sd_store_close(&server->store);
    free_all(server);
    return false;
}

int sd_server_run(struct sd_server *server)
{
    const struct sd_store *store = &server->store;
    char text[128];
    sd_log(SC_LOG_INFO, "service.ready", "model=%s slots=%u state_bytes=%llu metrics=%s socket=%s "
        "tcp=%s", server->config->model, store->slot_count,
        (unsigned long long)store->state_bytes, sd_http_name(server), server->config->socket,
        server->tcp_name);
    (void)snprintf(text, sizeof text, "READY=1\nSTATUS=%u slots, %s", store->slot_count,
        server->config->model);
    sd_notify_manager(text);
    (void)uv_run(&server->loop, UV_RUN_DEFAULT);
    server->store.let_go = NULL; /* there is no loop any more */
    (void)uv_loop_close(&server->loop);
    while (transfers(server) > 0) { /* stores that are under way */
        tend(server);
        uv_sleep(TICK_MS);
    }
    sd_events_close(server->events);
    bool good = sd_store_close(&server->store) == SC_OK;
    if (!good) sd_log(SC_LOG_ERROR, "store.close", "text=%s", sc_fault_last()->text);
    sd_log(SC_LOG_INFO, "service.stopped", "requests=%llu",
        (unsigned long long)server->count.requests);
    free_all(server);
    return good ? 0 : 1;
}

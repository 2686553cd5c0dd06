/* SPDX-License-Identifier: Apache-2.0 */
/* The service: one loop, its connections, what they hold, and the calls under way.
 *
 *   socket --> sd_conn --frames--> sd_call --> a method --> reply, at once or later
 *                |                                |
 *                '--- holds: leases, writes, pins '--- worker threads: hashing, copying
 *
 * A hold is what a client has of the cache: a lease on a state that it reads, the slot of a state
 * that it writes, a pin. It belongs to its connection, in a list; when the connection ends, all of
 * them end. A hold that a worker is busy with is orphaned then, and ends when the worker is done.
 *
 *               acquire, pin                    write_begin
 *                    |                               |
 *        RESTORING (a tier brings it)             STAGED (client writes the file)
 *                    |  tick: no longer waiting      |  write_commit: sealed
 *        COPYING (worker makes a file)            CHECKING (worker hashes)
 *                    |                               |
 *                  HELD --release--> gone         published, gone
 *
 * Invariants
 * (1) A hold is in the table by its id, and in the list of its connection, or in no list (orphaned,
 *     or a pin that is kept).
 * (2) A hold that is not free has one lease of the cache.
 * (3) busy > 0 while a worker, or the tick, will come back to it: its lease is not released before.
 * (4) An answer may end its connection, and all that it holds: nothing is done to a hold that is
 *     not busy after its answer.
 * (5) A connection is freed when it is closed, its handle too, and no call of it is under way.
 *
 * Threads: all of it is the loop's; workers see their own struct sd_work only. */
#ifndef SC_DAEMON_SERVER_H
#define SC_DAEMON_SERVER_H

#include <uv.h>

#include "events_publish.h"
#include "metrics.h"
#include "store.h"
#include "tenant.h"
#include "wire/fault.h"
#include "wire/frame.h"
#include "wire/value.h"

struct sd_server;
struct sd_conn;

enum { SD_KEYS_MAX = 128 };    /* of one request */

enum sd_hold_kind { SD_HOLD_FREE = 0, SD_HOLD_STATE, SD_HOLD_PIN, SD_HOLD_WRITE };

struct sd_hold {
    enum sd_hold_kind kind;
    uint32_t index, generation;
    struct sd_conn *conn;      /* NULL: orphaned, or a pin that is kept */
    struct sd_hold *next, **link; /* in conn->holds, or server->kept */
    sc_lease lease;
    uint32_t busy;
    uint64_t until_ns;         /* of a pin; 0: none */
    uint32_t len;              /* tokens of the state */
    struct sd_tenant *owner;   /* whose lease it counts as; NULL: nobody's */
    /* WRITE */
    int fd;                    /* staging file, -1: the store's by now */
    uint32_t slot;
    struct sd_tenant *tenant;
    bool sealed;
};

/* Bytes to send, and files that go with the first of them. */
struct sd_out {
    struct sd_out *next;
    char *bytes;
    size_t count, at;
    int *fds;
    uint32_t fd_count;
};

struct sd_conn {
    struct sd_server *server;
    uv_poll_t poll;
    int fd;
    bool local;                /* Unix socket: files can be passed */
    bool greeted;              /* hello was accepted */
    bool closing, closed;      /* no more is read; the handle is gone */
    bool finishing;            /* closes when everything has been sent */
    bool lingering;            /* it has been; the peer is to close */
    bool ready;                /* in server->ready: whole frames wait */
    int events;                /* what the loop waits for */
    uint32_t uid;              /* local */
    char tenant[SD_NAME_BYTES]; /* "": none */
    bool bound;                /* it may not speak for other tenants */
    uint64_t number;
    uint64_t opened_ms;
    uint64_t began_ms;         /* of the connection, then of the frame that is incomplete */
    uint8_t *in;
    size_t in_count, in_cap;
    struct sc_frame frame;
    struct sd_out *out, **out_end;
    size_t out_bytes;
    uint32_t calls;            /* under way */
    struct sd_hold *holds;
    uint32_t lease_count, write_count;
    struct sd_conn *next, **link;   /* of server->conns */
    struct sd_conn *ready_next;
};

/* One request. It lives on the stack of the dispatcher; sd_call_keep gives one that lasts. */
struct sd_call {
    struct sd_server *server;
    struct sd_conn *conn;
    uint64_t id;
    uint64_t began_ns;
    uint32_t method;           /* its place among sd_method_name */
    bool silent;               /* a notification: nobody waits for an answer */
    bool kept;
    struct sc_map params;
    msgpack_sbuffer *buffer;   /* of the answer */
    msgpack_packer packer;
};

struct sd_listener {
    uv_poll_t poll;
    int fd;                    /* -1: none */
    bool local;
    struct sd_server *server;
};

struct sd_item;                /* read.c: a key of an acquire that waits for a tier */
struct sd_http;                /* http.c */

struct sd_server {
    uv_loop_t loop;
    struct sd_config *config;
    struct sd_store store;
    struct sd_events *events;  /* NULL: nobody is told */
    struct sd_tenants tenants;
    struct sd_listener unix_listener, tcp_listener;
    int spare_fd;              /* given up to refuse a client when there are no more */
    uv_signal_t signal_stop, signal_stop2, signal_reload;
    uv_timer_t second, tick;
    uv_idle_t idle;            /* runs while connections are ready */
    struct sd_conn *conns;
    struct sd_conn *ready, **ready_end;
    uint32_t conn_count;
    uint64_t conn_number;
    struct sd_hold *holds;     /* [hold_max] */
    uint32_t hold_max, hold_count, hold_end, pin_count, write_count, lease_count;
    uint32_t *free_holds;
    uint32_t free_count;
    struct sd_hold *kept;      /* pins that nobody's connection owns */
    struct sd_item *waiting;
    uint32_t works;            /* at workers */
    uint32_t own_uid;
    bool stopping, ticking;
    bool unix_path_made;
    char tcp_name[SD_NAME_BYTES]; /* where TCP is listened on, with the port that was given */
    uint64_t stop_ms;
    uint64_t began_ns;
    struct sd_counters count;
    struct sd_metrics metrics;
    struct sd_http *http;      /* NULL: none */
    /* Scratch of the request in hand. */
    int32_t *tokens;
    size_t token_cap;
    sc_mark *marks, *marks_made; /* as they came; with the tenants' among them, behind those */
    size_t mark_cap;
    struct sc_wire_key *keys;
    size_t key_cap;
    msgpack_sbuffer answer;
};

/* ---- server.c */
/* Opens everything. False: it was logged, and nothing is left. */
bool sd_server_open(struct sd_server *server, struct sd_config *config);
/* Runs until it is told to stop; then everything is closed. The exit status. */
int sd_server_run(struct sd_server *server);
/* Nanoseconds since 1970 when the service began, and from then on as they pass: a clock that is set
 * meanwhile does not matter, and days go on over restarts. */
extern uint64_t sd_clock_began_ns;
static inline uint64_t sd_now_ns(void)
{
    return sd_clock_began_ns + uv_hrtime();
}
/* Something in the cache was changed: transfers may be under way, states may have gone. */
void sd_server_changed(struct sd_server *server);
/* A worker's job. `work` runs elsewhere, `done` on the loop. */
struct sd_work {
    uv_work_t request;
    struct sd_server *server;
    void (*work)(struct sd_work *work);
    void (*done)(struct sd_work *work);
};
/* Connections are in `ready`. */
void sd_server_ready(struct sd_server *server);
bool sd_work_start(struct sd_server *server, struct sd_work *work);

/* ---- conn.c */
void sd_conn_accept(struct sd_listener *listener);
/* Sends bytes, which are the connection's from then on, with files, which are duplicated. */
void sd_conn_send(struct sd_conn *conn, char *bytes, size_t count, const int *fds,
    uint32_t fd_count);
/* No more is read; what it holds ends at once. */
void sd_conn_close(struct sd_conn *conn, const char *why);
/* Closes it when the answer that says why has been sent. */
void sd_conn_finish(struct sd_conn *conn);
/* Goes on with what has been read already. */
void sd_conn_resume(struct sd_conn *conn);
void sd_conns_ready(struct sd_server *server);
/* Those that are late with a hello or a frame are closed. */
void sd_conns_time(struct sd_server *server, uint64_t now_ms);
void sd_conn_release(struct sd_conn *conn); /* (5) */

/* ---- call.c */
/* Names of methods by their places; the last, "unknown", stands for all others. NULL: no more. */
const char *sd_method_name(uint32_t place);
/* Answers one whole message. */
void sd_dispatch(struct sd_conn *conn, const uint8_t *bytes, size_t count);
/* An answer is packed between these two. */
msgpack_packer *sd_reply_begin(struct sd_call *call);
void sd_reply_end(struct sd_call *call, const int *fds, uint32_t fd_count);
/* The error is the thread's fault. */
void sd_reply_fault(struct sd_call *call);
/* An answer for a connection that says nothing in return. */
void sd_refuse(struct sd_conn *conn, uint64_t id);
/* A call that is answered later; NULL: no memory. Ends with sd_call_end, which frees it. */
struct sd_call *sd_call_keep(const struct sd_call *call);
void sd_call_end(struct sd_call *call);
/* Reads `params.keys` (or `key`) into the server's scratch. */
sc_status sd_keys_read(struct sd_call *call, bool many, uint32_t key_max, uint32_t *count_out);
/* The key for the cache: namespace, tenant's mark. Once for each key that was read. `*common_out`:
 * so many of its tokens are not the tenant's alone. */
sc_status sd_key_make(struct sd_call *call, const struct sc_wire_key *key, sc_key *key_out,
    uint32_t *common_out);
/* Whose the key is: of the request, or of the session. `*bytes_out` 0: nobody's. */
sc_status sd_tenant_of(const struct sd_call *call, const struct sc_wire_key *key,
    const char **name_out, size_t *bytes_out);
/* The tenant of the key has one lease more: to be given to a hold, or taken back. */
sc_status sd_lease_of(struct sd_call *call, const struct sc_wire_key *key,
    struct sd_tenant **owner_out);
/* Room of the scratch. */
sc_status sd_scratch(struct sd_server *server, size_t tokens, size_t marks, size_t keys);

/* ---- hold.c */
bool sd_holds_init(struct sd_server *server);
/* SC_ERR_AGAIN: as many as the limits allow. The lease is the hold's. */
sc_status sd_hold_room(struct sd_conn *conn, enum sd_hold_kind kind);
struct sd_hold *sd_hold_add(struct sd_conn *conn, enum sd_hold_kind kind, sc_lease lease,
    struct sd_tenant *owner);
uint64_t sd_hold_id(const struct sd_hold *hold);
/* Of this connection. SC_ERR_STALE. */
sc_status sd_hold_find(struct sd_conn *conn, uint64_t id, enum sd_hold_kind kind,
    struct sd_hold **hold_out);
/* Ends it, or, while it is busy, leaves that to sd_hold_idle. */
void sd_hold_end(struct sd_server *server, struct sd_hold *hold);
void sd_hold_busy(struct sd_hold *hold);
void sd_hold_idle(struct sd_server *server, struct sd_hold *hold);
/* It is nobody's from now on: a pin that outlives its connection. */
void sd_hold_keep(struct sd_server *server, struct sd_hold *hold);
void sd_pins_time(struct sd_server *server, uint64_t now_ns);

/* ---- methods */
typedef void (*sd_method_fn)(struct sd_call *call);
void sd_hello(struct sd_call *call);        /* session.c */
void sd_schema(struct sd_call *call);
void sd_echo(struct sd_call *call);
void sd_lookup(struct sd_call *call);       /* read.c */
void sd_acquire(struct sd_call *call);
void sd_release(struct sd_call *call);
void sd_read(struct sd_call *call);
void sd_pin(struct sd_call *call);
void sd_waiting_tick(struct sd_server *server);
void sd_write_begin(struct sd_call *call);  /* write.c */
void sd_write_data(struct sd_call *call);
void sd_write_commit(struct sd_call *call);
void sd_write_abort(struct sd_call *call);
void sd_evict(struct sd_call *call);        /* inspect.c */
void sd_tree(struct sd_call *call);
void sd_explain(struct sd_call *call);
void sd_pins(struct sd_call *call);
void sd_quota(struct sd_call *call);        /* manage.c */
void sd_common(struct sd_call *call);
void sd_namespace_drop(struct sd_call *call);
void sd_status(struct sd_call *call);       /* status.c */
void sd_verify(struct sd_call *call);

/* ---- log.c, notify.c */
void sd_log_level(enum sc_log_level level);
void sd_log(enum sc_log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Tells the service manager, if there is one ($NOTIFY_SOCKET). */
void sd_notify_manager(const char *text);

#endif

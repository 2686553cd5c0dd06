/* SPDX-License-Identifier: Apache-2.0 */
/* What clients hold: a table of leases, writes and pins. server.h has the drawing. */
#include <stdlib.h>
#include <sys/random.h>

#include "server.h"

bool sd_holds_init(struct sd_server *server)
{
    /* Ids begin elsewhere in each run, so that one of an earlier run is stale in this one. */
    uint32_t first = 0;
    if (getrandom(&first, sizeof first, GRND_NONBLOCK) != sizeof first) {
        first = (uint32_t)sd_now_ns();
    }
    server->hold_max = (uint32_t)server->config->leases;
    server->holds = calloc(server->hold_max, sizeof *server->holds);
    server->free_holds = calloc(server->hold_max, sizeof *server->free_holds);
    for (uint32_t i = 0; server->holds && i < server->hold_max; i++) {
        server->holds[i].generation = first >> 1;
    }
    return server->holds && server->free_holds;
}

sc_status sd_hold_room(struct sd_conn *conn, enum sd_hold_kind kind)
{
    const struct sd_server *server = conn->server;
    const struct sd_config *config = server->config;
    if (server->stopping) return SC_FAULT(SC_ERR_AGAIN, "the service is being stopped");
    if (server->hold_count >= server->hold_max) {
        return SC_FAULT(SC_ERR_AGAIN, "%u leases are open, the limit of all (leases)",
            server->hold_max);
    }
    if (kind == SD_HOLD_WRITE && conn->write_count >= config->client_writes) {
        return SC_FAULT(SC_ERR_AGAIN, "%u writes are open, the limit of a client (client_writes)",
            conn->write_count);
    }
    if (kind == SD_HOLD_PIN && server->pin_count >= config->pins) {
        return SC_FAULT(SC_ERR_AGAIN, "%u pins are there, the limit of all (pins)",
            server->pin_count);
    }
    if (conn->lease_count >= config->client_leases) {
        return SC_FAULT(SC_ERR_AGAIN, "%u leases are open, the limit of a client (client_leases)",
            conn->lease_count);
    }
    return SC_OK;
}

static void list_add(struct sd_hold **list, struct sd_hold *hold)
{
    hold->next = *list;
    hold->link = list;
    if (*list) (*list)->link = &hold->next;
    *list = hold;
}

static void list_take(struct sd_hold *hold)
{
    if (!hold->link) return;
    *hold->link = hold->next;
    if (hold->next) hold->next->link = hold->link;
    hold->next = NULL;
    hold->link = NULL;
}

struct sd_hold *sd_hold_add(struct sd_conn *conn, enum sd_hold_kind kind, sc_lease lease,
    struct sd_tenant *owner)
{
    struct sd_server *server = conn->server;
    uint32_t index = server->free_count > 0 ? server->free_holds[--server->free_count] :
        server->hold_end++;
    struct sd_hold *hold = &server->holds[index];
    uint32_t generation = hold->generation + 1;
    *hold = (struct sd_hold){.kind = kind, .index = index, .generation = generation, .conn = conn,
        .lease = lease, .owner = owner, .fd = -1};
    list_add(&conn->holds, hold);
    server->hold_count++;
    server->write_count += kind == SD_HOLD_WRITE;
    server->pin_count += kind == SD_HOLD_PIN;
    conn->write_count += kind == SD_HOLD_WRITE;
    conn->lease_count++;
    return hold;
}

uint64_t sd_hold_id(const struct sd_hold *hold)
{
    return (uint64_t)hold->generation << 32 | hold->index;
}

sc_status sd_hold_find(struct sd_conn *conn, uint64_t id, enum sd_hold_kind kind,
    struct sd_hold **hold_out)
{
    struct sd_server *server = conn->server;
    uint32_t index = (uint32_t)id;
    struct sd_hold *hold = index < server->hold_end ? &server->holds[index] : NULL;
    bool live = hold && hold->kind != SD_HOLD_FREE && hold->generation == id >> 32;
    /* Who may speak for all may end a pin that outlived its connection. */
    bool kept = live && !hold->conn && hold->link && !conn->bound;
    if (!live || (hold->conn != conn && !kept) || (kind != SD_HOLD_FREE && hold->kind != kind)) {
        return SC_FAULT(SC_ERR_STALE, "%llu is no open %s of this client",
            (unsigned long long)id, kind == SD_HOLD_WRITE ? "write" : "lease");
    }
    if (hold->busy > 0) return SC_FAULT(SC_ERR_BUSY, "a call on it is under way");
    *hold_out = hold;
    return SC_OK;
}

/* Out of its connection: its limits are free, whatever is still to be done. */
static void leave(struct sd_hold *hold)
{
    list_take(hold);
    if (!hold->conn) return;
    hold->conn->lease_count--;
    hold->conn->write_count -= hold->kind == SD_HOLD_WRITE;
    hold->conn = NULL;
}

static void end(struct sd_server *server, struct sd_hold *hold)
{
    sc_status status = sc_lease_release(server->store.cache, hold->lease, 0, SC_RELEASE_DISCARD);
    if (status != SC_OK) {
        sd_log(SC_LOG_ERROR, "lease.lost", "text=%s", sc_last_error()->text);
    }
    if (hold->kind == SD_HOLD_WRITE) {
        server->write_count--;
        if (hold->fd >= 0) {
            sd_store_let_go(&server->store, hold->fd);
            if (hold->tenant) sd_tenant_gives_back(hold->tenant, server->store.stride);
        }
    }
    if (hold->owner) hold->owner->leases--;
    server->pin_count -= hold->kind == SD_HOLD_PIN;
    hold->kind = SD_HOLD_FREE;
    server->free_holds[server->free_count++] = hold->index;
    server->hold_count--;
    sd_server_changed(server);
}

void sd_hold_end(struct sd_server *server, struct sd_hold *hold)
{
    leave(hold);
    if (hold->busy == 0) end(server, hold);
}

void sd_hold_busy(struct sd_hold *hold)
{
    hold->busy++;
}

void sd_hold_idle(struct sd_server *server, struct sd_hold *hold)
{
    hold->busy--;
    /* A pin that is kept has no connection, and a list. */
    if (hold->busy == 0 && !hold->conn && !hold->link) end(server, hold);
}

void sd_hold_keep(struct sd_server *server, struct sd_hold *hold)
{
    leave(hold);
    list_add(&server->kept, hold);
}

void sd_pins_time(struct sd_server *server, uint64_t now_ns)
{
    for (uint32_t i = 0; i < server->hold_end && server->pin_count > 0; i++) {
        struct sd_hold *hold = &server->holds[i];
        bool over = hold->kind == SD_HOLD_PIN && hold->until_ns > 0 && hold->until_ns <= now_ns;
        if (over && hold->busy == 0) sd_hold_end(server, hold);
    }
}

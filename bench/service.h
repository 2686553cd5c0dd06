/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `statecache-bench service` share: a statecached of their own, raw connections
 * to it, and requests as bytes. */
#ifndef BENCH_SERVICE_H
#define BENCH_SERVICE_H

#include <msgpack.h>
#include <sys/types.h>

#include "bench_common.h"
#include "radix_rows.h"

enum { SERVICE_PATH = 256, SERVICE_CLIENTS_MAX = 256, SERVICE_PROMPTS = 64 };

struct service {
    const char *program;         /* NULL: beside this one */
    char folder[SERVICE_PATH], socket[SERVICE_PATH + 16];
    pid_t process;
    uint32_t token_count, round_count, client_max, idle_count;
    double seconds;
    uint64_t seed;
    int32_t *prompts;            /* [SERVICE_PROMPTS][token_count] */
    msgpack_sbuffer lookups[SERVICE_PROMPTS], echo;
};

/* A connection that has said hello. */
struct service_conn {
    int fd;
    uint8_t *in;
    size_t in_count, in_cap;
};

void service_start(struct service *service);
/* It must end well. */
void service_stop(struct service *service);
/* Prompts, requests, and a state at the end of each prompt. */
void service_fill(struct service *service);
void service_free(struct service *service);
uint64_t service_resident(const struct service *service);

struct service_conn service_connect(const struct service *service);
void service_close(struct service_conn *conn);
/* Sends a request and waits for the whole answer, which must be no error. */
void service_exchange(struct service_conn *conn, const msgpack_sbuffer *request);
/* Sends bytes, whatever comes of it. */
void service_send(int fd, const void *bytes, size_t count);
int service_socket(const struct service *service);

#endif

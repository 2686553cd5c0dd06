/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets that clients connect to. */
#ifndef SC_DAEMON_LISTEN_H
#define SC_DAEMON_LISTEN_H

#include "server.h"

/* False: it was logged, and nothing listens. */
bool sd_listen_open(struct sd_server *server);
/* Who may connect has changed. */
void sd_listen_mode(const struct sd_server *server);
/* A socket that listens at HOST:PORT (numbers; port 0: any), and where that is. -1: it was
 * logged. */
int sd_listen_at(const char *text, bool loopback, char *name, size_t name_bytes);
/* Takes the socket's file away, too. */
void sd_listen_close(struct sd_server *server);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* READY=1 and the like for a service manager: a datagram to $NOTIFY_SOCKET. These few lines are all
 * that is needed of libsystemd, so it is not linked. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "server.h"

void sd_notify_manager(const char *text)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof address.sun_path) {
        return;
    }
    size_t count = strlen(path);
    memcpy(address.sun_path, path, count);
    if (path[0] == '@') address.sun_path[0] = '\0'; /* an abstract name */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + count);
    if (sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&address, bytes) < 0) {
        sd_log(SC_LOG_WARN, "notify.failed", "socket=%s", path);
    }
    (void)close(fd);
}

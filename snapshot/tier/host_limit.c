/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory the host has left for us, cgroups included.
 *
 *   /proc/self/cgroup   "4:memory:/a/b"  (v1)       "0::/a/b"  (v2)
 *   limits of           .../a/b, .../a, ...          each one counts: the least is left
 *
 * In a container the path may be one of the host's that is not mounted here: then the mount's root
 * is the container's own cgroup, and it is read in any case. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "tier/host_store.h"

enum { TEXT_BYTES = 8192, PATH_BYTES = 1024 };

/* The file's beginning, terminated; false when it cannot be read. */
static bool read_text(const char *root, const char *path, char *text, size_t bytes)
{
    char name[PATH_BYTES * 2];
    int length = snprintf(name, sizeof name, "%s%s", root, path);
    if (length < 0 || (size_t)length >= sizeof name) return false;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t count = 0;
    for (;;) {
        ssize_t got = read(fd, text + count, bytes - 1 - count);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        count += (size_t)got;
    }
    (void)close(fd);
    text[count] = '\0';
    return true;
}

static bool read_number(const char *root, const char *folder, const char *name, uint64_t *out)
{
    char path[PATH_BYTES + 64], text[64], *end = NULL;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!read_text(root, path, text, sizeof text)) return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10); /* "max" is no number: no limit */
    if (end == text || errno != 0) return false;
    *out = value;
    return true;
}

static void apply(const char *root, const char *folder, const char *limit_name,
    const char *usage_name, uint64_t *left)
{
    uint64_t limit = 0, usage = 0;
    if (!read_number(root, folder, limit_name, &limit)) return;
    if (!read_number(root, folder, usage_name, &usage)) usage = 0;
    uint64_t here = limit > usage ? limit - usage : 0;
    if (here < *left) *left = here;
}

static void apply_folder(const char *root, const char *folder, bool v2, uint64_t *left)
{
    if (v2) {
        apply(root, folder, "memory.max", "memory.current", left);
        apply(root, folder, "memory.high", "memory.current", left);
    } else {
        apply(root, folder, "memory.limit_in_bytes", "memory.usage_in_bytes", left);
    }
}

/* The cgroup's folder and all above it up to the mount. */
static void apply_chain(const char *root, const char *mount, const char *path, bool v2,
    uint64_t *left)
{
    char folder[PATH_BYTES];
    size_t mount_length = strlen(mount);
    int length = snprintf(folder, sizeof folder, "%s%s", mount, path);
    if (length < 0 || (size_t)length >= sizeof folder) return;
    for (;;) {
        apply_folder(root, folder, v2, left);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < mount_length) return;
        *slash = '\0';
    }
}

static bool has_memory(const char *controllers, size_t bytes)
{
    const char *end = controllers + bytes;
    for (const char *at = controllers; at < end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t length = (size_t)((comma ? comma : end) - at);
        if (length == 6 && memcmp(at, "memory", 6) == 0) return true;
        at += length + 1;
    }
    return false;
}

static void apply_cgroups(const char *root, uint64_t *left)
{
    char text[TEXT_BYTES];
    if (!read_text(root, "/proc/self/cgroup", text, sizeof text)) return;
    for (char *line = text; line && *line;) {
        char *next = strchr(line, '\n');
        if (next) *next++ = '\0';
        char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
        if (second) {
            size_t controllers = (size_t)(second - first - 1);
            const char *path = strcmp(second + 1, "/") == 0 ? "" : second + 1;
            if (controllers == 0) {
                apply_chain(root, "/sys/fs/cgroup", path, true, left);
                apply_chain(root, "/sys/fs/cgroup/unified", path, true, left);
            } else if (has_memory(first + 1, controllers)) {
                apply_chain(root, "/sys/fs/cgroup/memory", path, false, left);
            }
        }
        line = next;
    }
}

sc_status sc_host_limit(const char *system_root, uint64_t reserve, uint32_t share_count,
    uint64_t *bytes_out)
{
    char text[TEXT_BYTES];
    SC_REQUIRE(share_count > 0 && bytes_out != NULL);
    const char *root = system_root ? system_root : "";
    if (!read_text(root, "/proc/meminfo", text, sizeof text)) {
        return SC_FAIL_SYS(SC_ERR_IO, errno, "cannot read /proc/meminfo");
    }
    const char *at = strstr(text, "MemAvailable:");
    char *end = NULL;
    uint64_t kib = at ? strtoull(at + 13, &end, 10) : 0;
    if (!at || end == at + 13) return SC_FAIL(SC_ERR_IO, "/proc/meminfo has no MemAvailable");
    uint64_t left = kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
    apply_cgroups(root, &left);
    left = left > reserve ? left - reserve : 0;
    *bytes_out = left / share_count;
    return SC_OK;
}

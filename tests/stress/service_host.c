/* SPDX-License-Identifier: Apache-2.0 */
/* A statecached of our own: its folder and configuration, start and stop, and the audit of what it
 * holds when nobody is there. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stress_service.h"
#include "wire/fault.h"
#include "wire/value.h"

enum { WAIT_TRIES = 12000, WAIT_US = 5000, RESIDENT_SLACK = 12 << 20 };

/* ---- configuration ---- */

static void write_text(const struct sv_host *host, const char *name, const char *text)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", host->folder, name);
    FILE *out = fopen(path, "w");
    if (!out || fputs(text, out) < 0 || fclose(out) != 0) sv_finding("cannot write %s", path);
}

static void write_config(const struct sv_host *host, const struct sv_world *w)
{
    static const char *const parts[] = {"part = 0 recurrent f32 2x16x16 gdn\n",
        "part = 0 recurrent f32 4x32x32 gdn\npart = 1 conv bf16 3x96 gdn\n"
        "part = 1 recurrent bf16 2x32x32 gdn\n"};
    char text[2048], disk[256] = "";
    if (w->disk) {
        (void)snprintf(disk, sizeof disk, "disk_folder = %s/store\ndisk_bytes = 8MiB\n"
            "disk_file_bytes = 4MiB\ndisk_zstd_level = %d\n", host->folder, w->zstd);
    }
    (void)snprintf(text, sizeof text,
        "socket = %s/socket\nlisten = 127.0.0.1:0\ntoken_file = %s/token\nmodel = stress\n"
        "group = gdn 16\npart = 0 conv bf16 3x64 gdn\n%sslots = %u\npolicy = %s\n"
        "page_tokens = %u\nclient_leases = %u\ntenant_leases = %u\npins = %u\nleases = %u\n"
        "%s%s[tenant stress-a]\nbytes = %u\n", host->folder, host->folder, parts[w->shape],
        w->slots, w->gittins ? "gittins" : "lru", w->page_tokens, w->client_leases,
        w->tenant_leases, w->pins, w->leases, disk, w->host ? "host_bytes = 1MiB\n" : "",
        w->quota_states * 4096);
    write_text(host, "conf", text);
    write_text(host, "token", "the token of the stress test\n");
}

bool sv_host_open(struct sv_host *host, const struct sv_world *world, struct sv_shared *shared)
{
    const char *base = getenv("TMPDIR");
    if (!base || strlen(base) > 40) base = "/tmp";
    (void)snprintf(host->folder, sizeof host->folder, "%s/sc-stress-XXXXXX", base);
    if (!mkdtemp(host->folder)) {
        (void)fprintf(stderr, "cannot make a folder in %s\n", base);
        return false;
    }
    (void)snprintf(host->log, sizeof host->log, "%s/log", host->folder);
    (void)snprintf(shared->address, sizeof shared->address, "unix:%s/socket", host->folder);
    (void)snprintf(shared->token, sizeof shared->token, "the token of the stress test");
    write_config(host, world);
    return true;
}

static void remove_all(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    char name[512];
    while (folder && (entry = readdir(folder))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (unlink(name) != 0) remove_all(name);
    }
    if (folder) (void)closedir(folder);
    (void)rmdir(path);
}

void sv_host_remove(struct sv_host *host)
{
    if (host->folder[0]) remove_all(host->folder);
    host->folder[0] = '\0';
}

/* ---- start and stop ---- */

/* What this run has logged; NULL: nothing yet. */
static char *read_log(const struct sv_host *host)
{
    static char text[1 << 16];
    FILE *in = fopen(host->log, "r");
    if (!in) return NULL;
    (void)fseek(in, host->log_at, SEEK_SET);
    size_t count = fread(text, 1, sizeof text - 1, in);
    (void)fclose(in);
    text[count] = '\0';
    return text;
}

static bool is_ready(const struct sv_host *host, struct sv_shared *shared)
{
    char *text = read_log(host), *ready = text ? strstr(text, "service.ready") : NULL;
    char *tcp = ready ? strstr(ready, " tcp=") : NULL;
    if (!tcp || !strchr(tcp, '\n')) return false;
    (void)snprintf(shared->tcp, sizeof shared->tcp, "tcp:%.*s", (int)strcspn(tcp + 5, " \n"),
        tcp + 5);
    return true;
}

bool sv_host_start(struct sv_host *host, struct sv_shared *shared)
{
    struct stat info;
    char config[120];
    (void)snprintf(config, sizeof config, "%s/conf", host->folder);
    host->log_at = stat(host->log, &info) == 0 ? (long)info.st_size : 0;
    (void)fflush(NULL);
    host->pid = fork();
    if (host->pid < 0) return false;
    if (host->pid == 0) {
        int out = open(host->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(out, STDERR_FILENO);
        (void)execlp(host->program, host->program, "--config", config, (char *)NULL);
        _exit(127);
    }
    for (uint32_t i = 0; i < WAIT_TRIES; i++) {
        int status = 0;
        if (is_ready(host, shared)) return true;
        if (waitpid(host->pid, &status, WNOHANG) == host->pid) {
            host->pid = 0;
            (void)fprintf(stderr, "%s did not start (status %x):\n%s", host->program,
                (unsigned)status, read_log(host) ? read_log(host) : "");
            return false;
        }
        (void)usleep(WAIT_US);
    }
    (void)fprintf(stderr, "%s does not get ready\n", host->program);
    return false;
}

bool sv_host_stop(struct sv_host *host, bool killed)
{
    int status = 0;
    if (host->pid <= 0) return true;
    pid_t pid = host->pid;
    (void)kill(pid, killed ? SIGKILL : SIGTERM);
    for (uint32_t i = 0; i < WAIT_TRIES; i++) {
        if (waitpid(pid, &status, WNOHANG) != pid) {
            (void)usleep(WAIT_US);
            continue;
        }
        host->pid = 0;
        if (killed) return true;
        const char *text = read_log(host);
        const char *error = text ? strstr(text, "\nerror ") : NULL;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !error) return true;
        (void)fprintf(stderr, "the service ended with status %x; its log:\n%s\n", (unsigned)status,
            text ? text : "");
        return false;
    }
    (void)fprintf(stderr, "the service does not end\n");
    return false;
}

/* ---- audit ---- */

struct account {
    uint64_t clients, leases, writes, pins, workers, transfers;
    uint64_t slots, free, held, draining, files, bytes_each, tenants_bytes;
};

static sc_status number(const msgpack_object *root, const char *section, const char *name,
    uint64_t *out)
{
    struct sc_map map, inner;
    SC_PASS(sc_map_begin(&map, root));
    SC_PASS(sc_map_begin(&inner, sc_map_find(&map, section)));
    return sc_map_u64(&inner, name, true, UINT64_MAX, out);
}

static sc_status read_account(const msgpack_object *root, struct account *out)
{
    struct sc_map map;
    const msgpack_object_array *tenants = NULL;
    SC_PASS(number(root, "service", "clients", &out->clients));
    SC_PASS(number(root, "service", "leases_open", &out->leases));
    SC_PASS(number(root, "service", "writes_open", &out->writes));
    SC_PASS(number(root, "service", "pins_open", &out->pins));
    SC_PASS(number(root, "service", "workers_busy", &out->workers));
    SC_PASS(number(root, "cache", "transfers_alive", &out->transfers));
    SC_PASS(number(root, "slots", "count", &out->slots));
    SC_PASS(number(root, "slots", "free", &out->free));
    SC_PASS(number(root, "slots", "held", &out->held));
    SC_PASS(number(root, "slots", "draining", &out->draining));
    SC_PASS(number(root, "slots", "files", &out->files));
    SC_PASS(number(root, "slots", "bytes_each", &out->bytes_each));
    SC_PASS(sc_map_begin(&map, root));
    SC_PASS(sc_map_array(&map, "tenants", true, &tenants));
    out->tenants_bytes = 0;
    for (uint32_t i = 0; i < tenants->size; i++) {
        uint64_t bytes = 0, most = 0;
        SC_PASS(sc_map_begin(&map, &tenants->ptr[i]));
        SC_PASS(sc_map_u64(&map, "bytes", true, UINT64_MAX, &bytes));
        SC_PASS(sc_map_u64(&map, "bytes_max", true, UINT64_MAX, &most));
        if (most > 0 && bytes > most) return SC_FAULT(SC_ERR_LIMIT, "a tenant passes its limit");
        out->tenants_bytes += bytes;
    }
    return SC_OK;
}

static bool ask(sc_client *client, struct account *out)
{
    msgpack_unpacked unpacked;
    void *result = NULL;
    size_t bytes = 0, at = 0;
    if (sc_client_call(client, "status", NULL, 0, &result, &bytes) != SC_OK) {
        (void)fprintf(stderr, "audit: status: %s\n", sc_client_last_error()->text);
        return false;
    }
    msgpack_unpacked_init(&unpacked);
    bool good = msgpack_unpack_next(&unpacked, result, bytes, &at) == MSGPACK_UNPACK_SUCCESS &&
        read_account(&unpacked.data, out) == SC_OK;
    if (!good) (void)fprintf(stderr, "audit: the status: %s\n", sc_fault_last()->text);
    msgpack_unpacked_destroy(&unpacked);
    sc_client_free(result);
    return good;
}

/* Everything that clients had has ended; with `empty`, what they left goes. */
static bool wait_quiet(sc_client *client, bool outside, bool empty, struct account *out)
{
    for (uint32_t i = 0; i < WAIT_TRIES / 3; i++) {
        uint32_t got = 0;
        if (empty && sc_client_evict(client, 1000000, &got) != SC_OK) return false;
        if (!ask(client, out)) return false;
        bool idle = out->workers + out->transfers == 0;
        if (outside && idle) return true;
        idle = idle && out->leases + out->writes + out->pins == 0 && out->clients == 1;
        if (idle && out->held + out->draining == 0 && (!empty || out->free == out->slots)) {
            return true;
        }
        (void)usleep(WAIT_US);
    }
    (void)fprintf(stderr, "audit: when all clients had gone: clients %llu, leases %llu, writes "
        "%llu, pins %llu, jobs %llu, transfers %llu, slots held %llu, draining %llu, free %llu of "
        "%llu\n", (unsigned long long)out->clients, (unsigned long long)out->leases,
        (unsigned long long)out->writes, (unsigned long long)out->pins,
        (unsigned long long)out->workers, (unsigned long long)out->transfers,
        (unsigned long long)out->held, (unsigned long long)out->draining,
        (unsigned long long)out->free, (unsigned long long)out->slots);
    return false;
}

/* Files of states that the process has open, and sockets. */
static void count_files(pid_t pid, uint64_t *states_out, uint32_t *sockets_out)
{
    char path[400], target[256];
    struct dirent *entry;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    *states_out = *sockets_out = 0;
    while (folder && (entry = readdir(folder))) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, entry->d_name);
        ssize_t count = readlink(path, target, sizeof target - 1);
        if (count <= 0) continue;
        target[count] = '\0';
        *states_out += strncmp(target, "/memfd:statecache", 17) == 0;
        *sockets_out += strncmp(target, "socket:", 7) == 0;
    }
    if (folder) (void)closedir(folder);
}

static uint64_t count_maps(pid_t pid, uint64_t *resident_out)
{
    char path[64], line[512];
    unsigned long long size = 0, resident = 0;
    uint64_t maps = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *in = fopen(path, "r");
    while (in && fgets(line, sizeof line, in)) maps += strstr(line, "/memfd:statecache") != NULL;
    if (in) (void)fclose(in);
    (void)snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    in = fopen(path, "r");
    if (in && fscanf(in, "%llu %llu", &size, &resident) != 2) resident = 0;
    if (in) (void)fclose(in);
    *resident_out = resident * (uint64_t)sysconf(_SC_PAGESIZE);
    return maps;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEMORY_IS_FLAT 0
#else
#define MEMORY_IS_FLAT 1
#endif

/* What the kernel says it has: a file for each state and no other. A slot may have the mapping of a
 * file that is gone, until the next one (docs/adr/0005), but never two. */
static bool audit_process(struct sv_host *host, const struct account *account, bool empty)
{
    uint64_t states = 0, resident = 0;
    uint32_t sockets = 0;
    count_files(host->pid, &states, &sockets);
    uint64_t maps = count_maps(host->pid, &resident);
    if (host->sockets == 0) host->sockets = sockets;
    bool mapped = maps >= account->files && maps <= account->slots;
    if (states != account->files || !mapped || sockets != host->sockets) {
        (void)fprintf(stderr, "audit: %llu states have files; %llu files are open, %llu mapped; "
            "%u sockets, and %u before\n", (unsigned long long)account->files,
            (unsigned long long)states, (unsigned long long)maps, sockets, host->sockets);
        return false;
    }
    if (!empty) return true;
    if (host->resident == 0) host->resident = resident;
    if (!MEMORY_IS_FLAT || resident <= host->resident + host->resident / 4 + RESIDENT_SLACK) {
        return true;
    }
    (void)fprintf(stderr, "audit: an empty service has %llu KiB of memory, and %llu before\n",
        (unsigned long long)resident / 1024, (unsigned long long)host->resident / 1024);
    return false;
}

static bool audit(struct sv_host *host, sc_client *client, bool outside, bool empty)
{
    struct account account;
    void *result = NULL;
    size_t bytes = 0;
    memset(&account, 0, sizeof account);
    if (!wait_quiet(client, outside, empty, &account)) return false;
    if (sc_client_call(client, "verify", NULL, 0, &result, &bytes) != SC_OK) {
        (void)fprintf(stderr, "audit: verify: %s\n", sc_client_last_error()->text);
        return false;
    }
    sc_client_free(result);
    if (outside) return true;
    uint64_t most = account.files * account.bytes_each;
    if (account.tenants_bytes > most || (empty && account.files + account.tenants_bytes > 0)) {
        (void)fprintf(stderr, "audit: tenants have %llu bytes, %llu states of %llu are there\n",
            (unsigned long long)account.tenants_bytes, (unsigned long long)account.files,
            (unsigned long long)account.bytes_each);
        return false;
    }
    return audit_process(host, &account, empty);
}

bool sv_audit(struct sv_host *host, struct sv_shared *shared, bool empty)
{
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    sc_client *client = NULL;
    sc_status status = SC_ERR_AGAIN;
    options.address = shared->address;
    for (uint32_t i = 0; i < 400 && status == SC_ERR_AGAIN; i++) { /* the killed are noticed soon */
        status = sc_client_open(&options, &client);
        if (status == SC_ERR_AGAIN) (void)usleep(WAIT_US);
    }
    if (status != SC_OK) {
        (void)fprintf(stderr, "audit: %s\n", sc_client_last_error()->text);
        return false;
    }
    bool good = audit(host, client, shared->outside, empty && !shared->outside);
    sc_client_close(client);
    return good;
}

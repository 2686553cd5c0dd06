/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder and the builder of images of tier_power.h. The replaced functions make their system
 * calls themselves. */
#include "tier_power.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, SECTOR = 512, NAME_MAX_BYTES = 64, FILES_MAX = 256, RINGS_MAX = 64 };
enum kind { WRITE, SIZE, SYNC, CREATE, RENAME, UNLINK, SYNC_FOLDER };

struct event {
    enum kind kind;
    int file;
    bool dsync, ring;
    uint64_t start, end;    /* `end` 0: not yet */
    uint64_t offset, bytes; /* SIZE: `bytes` */
    uint8_t *data;
    char name[NAME_MAX_BYTES]; /* CREATE, RENAME */
};

struct file {
    char name[NAME_MAX_BYTES]; /* now */
    dev_t dev;
    ino_t ino;
    bool there;
};

struct ring {
    struct io_uring *ring;
    unsigned seen;              /* completions looked at */
    uint32_t event[256];        /* by user data: write + 1 */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool on;
static char folder_on[300];
static dev_t folder_dev;
static ino_t folder_ino;
static const char *hidden;
static uint64_t now;
static struct event *events;
static uint32_t event_count, event_cap;
static struct file files[FILES_MAX];
static int file_count;
static struct ring rings[RINGS_MAX];
static uint64_t calls, fail_at;
static int fail_code;
static bool has_failed;

/* ---- recording ---- */

static uint32_t begin(struct event event)
{
    if (event_count == event_cap) {
        event_cap = event_cap ? event_cap * 2 : 1024;
        events = realloc(events, event_cap * sizeof *events);
        if (!events) abort();
    }
    event.start = ++now;
    event.end = 0;
    events[event_count] = event;
    return event_count++;
}

static void finish(uint32_t at, bool done)
{
    pthread_mutex_lock(&lock);
    if (done) events[at].end = ++now;
    pthread_mutex_unlock(&lock);
}

static int file_of(int fd)
{
    struct stat stat_now;
    if (!on || fstat(fd, &stat_now) != 0) return -1;
    for (int i = 0; i < file_count; i++) {
        if (files[i].there && files[i].dev == stat_now.st_dev && files[i].ino == stat_now.st_ino) {
            return i;
        }
    }
    return -1;
}

static bool is_folder(int fd)
{
    struct stat stat_now;
    return on && fstat(fd, &stat_now) == 0 && stat_now.st_dev == folder_dev &&
        stat_now.st_ino == folder_ino;
}

/* The caller holds `lock`. What a call that is one of ours is to give instead: 0, an errno, or
 * POWER_SHORT, which only `writes` know. */
static int fault_of(bool ours, bool writes)
{
    if (!ours || !on || ++calls != fail_at) return 0;
    has_failed = true;
    return fail_code == POWER_SHORT && !writes ? EIO : fail_code;
}

static int fault_of_fd(int fd, bool writes)
{
    pthread_mutex_lock(&lock);
    int code = fault_of(file_of(fd) >= 0 || is_folder(fd), writes);
    pthread_mutex_unlock(&lock);
    return code;
}

static const char *name_below(const char *path)
{
    size_t count = strlen(folder_on);
    if (!on || strncmp(path, folder_on, count) != 0 || path[count] != '/') return NULL;
    const char *name = path + count + 1;
    /* who has the store, and LMDB's readers: no part of what must last */
    return strncmp(name, "lock", 4) == 0 || strlen(name) >= NAME_MAX_BYTES ? NULL : name;
}

/* The caller holds `lock`. Returns an index or -1. */
static int begin_write(int fd, const void *bytes, uint64_t count, uint64_t offset)
{
    int file = count > 0 ? file_of(fd) : -1;
    if (file < 0) return -1;
    uint8_t *data = malloc(count);
    if (!data) abort();
    memcpy(data, bytes, count);
    bool dsync = (fcntl(fd, F_GETFL) & O_DSYNC) != 0;
    return (int)begin((struct event){.kind = WRITE, .file = file, .dsync = dsync,
        .offset = offset, .bytes = count, .data = data});
}

static int record(enum kind kind, int file, uint64_t bytes)
{
    if (file < 0) return -1;
    return (int)begin((struct event){.kind = kind, .file = file, .bytes = bytes});
}

/* ---- what is replaced: reads and writes ---- */

static int refuse(int code)
{
    errno = code;
    return -1;
}

ssize_t pread(int fd, void *bytes, size_t count, off_t offset)
{
    int fault = fault_of_fd(fd, false);
    if (fault) return refuse(fault);
    return syscall(SYS_pread64, fd, bytes, count, offset);
}

ssize_t pread64(int fd, void *bytes, size_t count, off_t offset)
{
    return pread(fd, bytes, count, offset);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    int fault = fault_of_fd(fd, true);
    if (fault == POWER_SHORT) count = (count + 1) / 2;
    if (fault && fault != POWER_SHORT) return refuse(fault);
    pthread_mutex_lock(&lock);
    int at = begin_write(fd, bytes, count, (uint64_t)offset);
    pthread_mutex_unlock(&lock);
    ssize_t rc = syscall(SYS_pwrite64, fd, bytes, count, offset);
    int code = errno;
    if (at >= 0) finish((uint32_t)at, rc == (ssize_t)count);
    errno = code;
    return rc;
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t offset)
{
    return pwrite(fd, bytes, count, offset);
}

ssize_t writev(int fd, const struct iovec *pieces, int count)
{
    int at[1024];
    uint64_t all = 0;
    int fault = fault_of_fd(fd, true);
    if (fault == POWER_SHORT) count = (count + 1) / 2; /* LMDB gives two pieces or more */
    if (fault && fault != POWER_SHORT) return refuse(fault);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
        at[i] = begin_write(fd, pieces[i].iov_base, pieces[i].iov_len, (uint64_t)offset + all);
        all += pieces[i].iov_len;
    }
    pthread_mutex_unlock(&lock);
    ssize_t rc = syscall(SYS_writev, fd, pieces, count);
    int code = errno;
    for (int i = 0; i < count; i++) {
        if (at[i] >= 0) finish((uint32_t)at[i], rc == (ssize_t)all);
    }
    errno = code;
    return rc;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    int fault = fault_of_fd(fd, false);
    if (fault) return refuse(fault);
    pthread_mutex_lock(&lock);
    int at = record(SIZE, file_of(fd), (uint64_t)(offset + bytes));
    pthread_mutex_unlock(&lock);
    int rc = (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    int code = errno;
    if (at >= 0) finish((uint32_t)at, rc == 0);
    errno = code;
    return rc;
}

int ftruncate(int fd, off_t bytes)
{
    int fault = fault_of_fd(fd, false);
    if (fault) return refuse(fault);
    pthread_mutex_lock(&lock);
    int at = record(SIZE, file_of(fd), (uint64_t)bytes);
    pthread_mutex_unlock(&lock);
    int rc = (int)syscall(SYS_ftruncate, fd, bytes);
    int code = errno;
    if (at >= 0) finish((uint32_t)at, rc == 0);
    errno = code;
    return rc;
}

/* ---- syncs ---- */

static void reap(struct ring *ring);

static int sync_by(long call, int fd)
{
    int fault = fault_of_fd(fd, false);
    if (fault) return refuse(fault);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RINGS_MAX; i++) {
        if (rings[i].ring) reap(&rings[i]);
    }
    int at = -1, file = file_of(fd);
    if (file >= 0) {
        bool skip = hidden && strncmp(files[file].name, hidden, strlen(hidden)) == 0;
        if (!skip) at = record(SYNC, file, 0);
    } else if (is_folder(fd)) {
        at = record(SYNC_FOLDER, 0, 0);
    }
    pthread_mutex_unlock(&lock);
    int rc = (int)syscall(call, fd);
    int code = errno;
    if (at >= 0) finish((uint32_t)at, rc == 0);
    errno = code;
    return rc;
}

int fdatasync(int fd)
{
    return sync_by(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    return sync_by(SYS_fsync, fd);
}

/* ---- names ---- */

static void created(int fd, const char *name, uint32_t at)
{
    struct stat stat_now;
    if (fstat(fd, &stat_now) != 0 || file_count == FILES_MAX) abort();
    struct file *file = &files[file_count];
    (void)snprintf(file->name, sizeof file->name, "%s", name);
    file->dev = stat_now.st_dev;
    file->ino = stat_now.st_ino;
    file->there = true;
    (void)snprintf(events[at].name, sizeof events[at].name, "%s", name);
    events[at].file = file_count++;
    events[at].end = ++now;
}

static int open_by(const char *path, int flags, mode_t mode)
{
    pthread_mutex_lock(&lock);
    int fault = fault_of(name_below(path) != NULL, false);
    if (fault) {
        pthread_mutex_unlock(&lock);
        return refuse(fault);
    }
    const char *name = flags & O_CREAT ? name_below(path) : NULL;
    bool is_new = name && access(path, F_OK) != 0;
    uint32_t at = is_new ? begin((struct event){.kind = CREATE, .file = -1}) : 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    int code = errno;
    if (is_new && fd >= 0) created(fd, name, at);
    pthread_mutex_unlock(&lock);
    errno = code;
    return fd;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_by(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_by(path, flags, mode);
}

static int file_named(const char *name)
{
    for (int i = 0; name && i < file_count; i++) {
        if (files[i].there && strcmp(files[i].name, name) == 0) return i;
    }
    return -1;
}

/* Only to names that nothing has. */
int rename(const char *from, const char *to)
{
    pthread_mutex_lock(&lock);
    int file = file_named(name_below(from)), fault = fault_of(file >= 0, false);
    if (fault) {
        pthread_mutex_unlock(&lock);
        return refuse(fault);
    }
    int at = record(RENAME, file, 0);
    int rc = (int)syscall(SYS_rename, from, to);
    int code = errno;
    if (at >= 0 && rc == 0) {
        if (!name_below(to) || file_named(name_below(to)) >= 0) abort();
        (void)snprintf(files[file].name, sizeof files[file].name, "%s", name_below(to));
        (void)snprintf(events[at].name, sizeof events[at].name, "%s", files[file].name);
        events[at].end = ++now;
    }
    pthread_mutex_unlock(&lock);
    errno = code;
    return rc;
}

int unlink(const char *path)
{
    pthread_mutex_lock(&lock);
    int file = file_named(name_below(path)), fault = fault_of(file >= 0, false);
    if (fault) {
        pthread_mutex_unlock(&lock);
        return refuse(fault);
    }
    int at = record(UNLINK, file, 0);
    int rc = (int)syscall(SYS_unlink, path);
    int code = errno;
    if (at >= 0 && rc == 0) {
        files[file].there = false;
        events[at].end = ++now;
    }
    pthread_mutex_unlock(&lock);
    errno = code;
    return rc;
}

/* ---- liburing ---- */

/* The caller holds `lock`. Completions stay readable after the program has taken them: a queue has
 * room for twice what may be under way. */
static void reap(struct ring *ring)
{
    unsigned tail = __atomic_load_n(ring->ring->cq.ktail, __ATOMIC_ACQUIRE);
    for (; ring->seen != tail; ring->seen++) {
        const struct io_uring_cqe *cqe = &ring->ring->cq.cqes[ring->seen &
            ring->ring->cq.ring_mask];
        uint32_t *event = &ring->event[cqe->user_data % 256];
        if (*event && cqe->res == (int)events[*event - 1].bytes) events[*event - 1].end = ++now;
        *event = 0;
    }
}

static struct ring *ring_of(struct io_uring *given)
{
    struct ring *idle = NULL;
    for (int i = 0; i < RINGS_MAX; i++) {
        if (rings[i].ring == given) return &rings[i];
        if (!rings[i].ring) idle = &rings[i];
    }
    if (!idle) abort();
    memset(idle, 0, sizeof *idle);
    idle->ring = given;
    idle->seen = *given->cq.khead;
    return idle;
}

static void before_submit(struct io_uring *given)
{
    pthread_mutex_lock(&lock);
    struct ring *ring = on ? ring_of(given) : NULL;
    if (ring) reap(ring);
    for (unsigned i = given->sq.sqe_head; ring && i != given->sq.sqe_tail; i++) {
        const struct io_uring_sqe *sqe = &given->sq.sqes[i & given->sq.ring_mask];
        int at = -1;
        if (sqe->opcode == IORING_OP_WRITE) {
            at = begin_write(sqe->fd, (const void *)(uintptr_t)sqe->addr, sqe->len, sqe->off);
            if (at >= 0) events[at].ring = true;
        }
        ring->event[sqe->user_data % 256] = (uint32_t)(at + 1);
    }
    pthread_mutex_unlock(&lock);
}

static void after_submit(struct io_uring *given)
{
    pthread_mutex_lock(&lock);
    if (on) reap(ring_of(given));
    pthread_mutex_unlock(&lock);
}

static void *next_symbol(const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    if (!symbol) abort();
    return symbol;
}

int io_uring_submit(struct io_uring *ring)
{
    int (*next)(struct io_uring *);
    *(void **)&next = next_symbol("io_uring_submit");
    before_submit(ring);
    int rc = next(ring);
    after_submit(ring);
    return rc;
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned count)
{
    int (*next)(struct io_uring *, unsigned);
    *(void **)&next = next_symbol("io_uring_submit_and_wait");
    before_submit(ring);
    int rc = next(ring, count);
    after_submit(ring);
    return rc;
}

void io_uring_queue_exit(struct io_uring *ring)
{
    void (*next)(struct io_uring *);
    *(void **)&next = next_symbol("io_uring_queue_exit");
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RINGS_MAX; i++) {
        if (rings[i].ring == ring) rings[i].ring = NULL;
    }
    pthread_mutex_unlock(&lock);
    next(ring);
}

/* ---- start, stop ---- */

void power_start(const char *folder)
{
    struct stat stat_now;
    if (stat(folder, &stat_now) != 0) abort();
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < event_count; i++) free(events[i].data);
    event_count = 0;
    file_count = 0;
    now = 0;
    memset(rings, 0, sizeof rings);
    (void)snprintf(folder_on, sizeof folder_on, "%s", folder);
    folder_dev = stat_now.st_dev;
    folder_ino = stat_now.st_ino;
    on = true;
    pthread_mutex_unlock(&lock);
}

void power_stop(void)
{
    pthread_mutex_lock(&lock);
    on = false;
    pthread_mutex_unlock(&lock);
}

uint64_t power_now(void)
{
    pthread_mutex_lock(&lock);
    uint64_t at = ++now;
    pthread_mutex_unlock(&lock);
    return at;
}

void power_hide_syncs(const char *prefix)
{
    hidden = prefix;
}

bool power_fail(uint64_t at, int code)
{
    pthread_mutex_lock(&lock);
    bool before = has_failed;
    calls = 0;
    fail_at = at;
    fail_code = code;
    has_failed = false;
    pthread_mutex_unlock(&lock);
    return before;
}

struct power_count power_counted(void)
{
    struct power_count count = {0, 0, 0, 0, 0};
    for (uint32_t i = 0; i < event_count; i++) {
        count.writes += events[i].kind == WRITE;
        count.ring_writes += events[i].kind == WRITE && events[i].ring;
        count.dsync_writes += events[i].kind == WRITE && events[i].dsync;
        count.syncs += events[i].kind == SYNC;
        count.folder_syncs += events[i].kind == SYNC_FOLDER;
    }
    return count;
}

/* ---- images ---- */

struct image {
    uint64_t cut;
    struct sc_prng *prng;
    uint32_t keep;              /* of 16 pages of unsynced writes: whole, torn, or not there */
    uint64_t synced[FILES_MAX]; /* what ended before is durable: by file */
    uint64_t named;             /* the same for names */
};

static void find_syncs(struct image *image)
{
    for (uint32_t i = 0; i < event_count; i++) {
        const struct event *sync = &events[i];
        if (sync->kind != SYNC && sync->kind != SYNC_FOLDER) continue;
        if (sync->end == 0 || sync->end > image->cut) continue;
        uint64_t *until = sync->kind == SYNC ? &image->synced[sync->file] : &image->named;
        if (sync->start > *until) *until = sync->start;
    }
}

/* Is it certain to be on disk? */
static bool is_durable(const struct image *image, const struct event *event)
{
    bool name = event->kind == CREATE || event->kind == RENAME || event->kind == UNLINK;
    if (event->end == 0 || event->end > image->cut) return false;
    if (event->kind == WRITE && event->dsync) return true;
    return event->end < (name ? image->named : image->synced[event->file]);
}

struct content { uint8_t *bytes; uint64_t size, cap; };

static void resize(struct content *content, uint64_t size)
{
    if (size > content->cap) {
        content->bytes = realloc(content->bytes, size);
        if (!content->bytes) abort();
        memset(content->bytes + content->cap, 0, size - content->cap);
        content->cap = size;
    }
    if (size > content->size) content->size = size;
}

/* The bytes of a write from `at` to `end` of the file. */
static void put(struct content *content, const struct event *event, uint64_t at, uint64_t end)
{
    if (at < event->offset) at = event->offset;
    if (end > event->offset + event->bytes) end = event->offset + event->bytes;
    if (at >= end) return;
    resize(content, end);
    memcpy(content->bytes + at, event->data + (at - event->offset), end - at);
}

static void put_page(const struct image *image, struct content *content,
    const struct event *event, uint64_t at)
{
    bool kept = sc_prng_below(image->prng, 16) < image->keep;
    bool torn = image->keep > 0 && image->keep < 16 && sc_prng_below(image->prng, 3) == 0;
    if (!torn) {
        if (kept) put(content, event, at, at + PAGE);
        return;
    }
    uint64_t sectors = sc_prng_next(image->prng);
    for (uint64_t i = 0; i < PAGE / SECTOR; i++) {
        if (sectors >> i & 1) put(content, event, at + i * SECTOR, at + (i + 1) * SECTOR);
    }
}

static void apply(const struct image *image, struct content *content, const struct event *event)
{
    bool durable = is_durable(image, event);
    if (event->kind == SIZE) {
        if (durable || sc_prng_below(image->prng, 16) < image->keep) resize(content, event->bytes);
        return;
    }
    if (event->kind != WRITE) return;
    if (durable) {
        put(content, event, 0, UINT64_MAX);
        return;
    }
    uint64_t end = event->offset + event->bytes;
    for (uint64_t at = event->offset / PAGE * PAGE; at < end; at += PAGE) {
        put_page(image, content, event, at);
    }
}

/* The file's name; NULL: none. A change of it that is not durable may be there or not. */
static const char *name_of(const struct image *image, int file)
{
    const char *name = NULL;
    for (uint32_t i = 0; i < event_count; i++) {
        const struct event *event = &events[i];
        if (event->file != file || event->start >= image->cut || event->end == 0) continue;
        if (event->kind != CREATE && event->kind != RENAME && event->kind != UNLINK) continue;
        if (is_durable(image, event) || sc_prng_below(image->prng, 16) < image->keep) {
            name = event->kind == UNLINK ? NULL : event->name;
        }
    }
    return name;
}

static void write_file(const char *folder, const char *name, const struct content *content)
{
    char path[400];
    (void)snprintf(path, sizeof path, "%.300s/%.64s", folder, name);
    FILE *out = fopen(path, "wb");
    if (!out) abort();
    if (content->size > 0 && fwrite(content->bytes, 1, content->size, out) != content->size) {
        abort();
    }
    if (fclose(out) != 0) abort();
}

void power_image(uint64_t cut, struct sc_prng *prng, const char *folder)
{
    static const uint32_t keeps[6] = {0, 16, 2, 8, 8, 14};
    struct image image = {.cut = cut, .prng = prng, .keep = keeps[sc_prng_below(prng, 6)]};
    find_syncs(&image);
    for (int file = 0; file < file_count; file++) {
        struct content content = {NULL, 0, 0};
        const char *name = name_of(&image, file);
        if (!name) continue;
        for (uint32_t i = 0; i < event_count; i++) {
            if (events[i].file == file && events[i].start < cut) {
                apply(&image, &content, &events[i]);
            }
        }
        write_file(folder, name, &content);
        free(content.bytes);
    }
}

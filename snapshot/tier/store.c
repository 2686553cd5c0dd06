/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a store. Opening reads every node once: it makes the entries and the map of
 * blocks, and drops what cannot be used, so that the rest can (store_internal.h, 6). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "store_internal.h"

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)
enum { PATH_BYTES_MAX = 4096, DROP_BATCH = 64 };

sc_status store_enter(const struct sc_store *store)
{
    SC_REQUIRE(store != NULL);
    if (store->pid == getpid()) return SC_OK;
    return SC_FAIL(SC_ERR_STATE, "the store was opened by process %ld, before fork()",
        (long)store->pid);
}

/* ---- options ---- */

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return bytes > UINT64_MAX - to ? bytes / to * to : (bytes + to - 1) / to * to;
}

static sc_status resolve(const struct sc_store_options *given, struct sc_store_options *options)
{
    SC_REQUIRE(given != NULL && given->folder != NULL && given->folder[0] != '\0');
    SC_REQUIRE(strlen(given->folder) <= PATH_BYTES_MAX);
    SC_REQUIRE(given->chunk_bytes % TIER_BLOCK == 0 && given->chunk_bytes <= 64 * MIB);
    SC_REQUIRE(given->hash_bits < 64);
    SC_REQUIRE((uint32_t)given->uring <= SC_STORE_OFF && (uint32_t)given->direct <= SC_STORE_OFF);
    SC_REQUIRE(given->file_bytes % TIER_BLOCK == 0 && given->file_bytes / TIER_BLOCK < NONE);
    *options = *given;
    if (options->bytes_max == 0) options->bytes_max = UINT64_MAX;
    if (options->file_bytes == 0) {
        options->file_bytes = options->bytes_max < GIB ? round_up(options->bytes_max, TIER_BLOCK) :
            GIB;
    }
    if (options->map_bytes == 0) {
        options->map_bytes = options->bytes_max / 8;
        if (options->map_bytes > 64 * GIB) options->map_bytes = 64 * GIB;
        if (options->map_bytes < 64 * MIB) options->map_bytes = 64 * MIB;
    }
    options->map_bytes = round_up(options->map_bytes, 65536);
    return SC_OK;
}

/* ---- the folder and its lock ---- */

/* Extent files without metadata are one, too: a damaged one. */
static bool has_store(const struct sc_store *store)
{
    char path[PATH_BYTES_MAX + 40];
    (void)snprintf(path, sizeof path, "%s/data.mdb", store->folder);
    if (access(path, F_OK) == 0) return true;
    store_file_path(store, 0, path, sizeof path);
    return access(path, F_OK) == 0;
}

/* A store that was copied may lack its lock, which is empty: it is made. */
static sc_status lock_folder(struct sc_store *store)
{
    char path[PATH_BYTES_MAX + 40];
    (void)snprintf(path, sizeof path, "%s/lock", store->folder);
    if (store->options.must_exist) {
        if (!has_store(store)) {
            return SC_FAIL(SC_ERR_NOT_FOUND, "there is no store in %.120s", store->folder);
        }
    } else {
        if (mkdir(store->folder, 0700) != 0 && errno != EEXIST) {
            return SC_FAIL_SYS(SC_ERR_IO, errno, "making %.100s: %s", store->folder,
                strerror(errno));
        }
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        return SC_FAIL_SYS(SC_ERR_IO, errno, "opening %.100s: %s", path, strerror(errno));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int code = errno;
        (void)close(fd);
        return SC_FAIL_SYS(code == EWOULDBLOCK ? SC_ERR_BUSY : SC_ERR_IO, code,
            "%.100s is in use by another process, or opened twice by this one", store->folder);
    }
    store->lock_fd = fd;
    return SC_OK;
}

/* ---- the walk over all nodes ---- */

struct scan {
    uint32_t *bad; /* ids to remove */
    uint32_t bad_count, bad_cap;
};

static sc_status scan_bad(struct sc_store *store, struct scan *scan, uint32_t id)
{
    if (scan->bad_count == scan->bad_cap) {
        uint32_t cap = scan->bad_cap ? scan->bad_cap * 2 : DROP_BATCH;
        uint32_t *bad = sc_heap_realloc(&store->heap, scan->bad, scan->bad_cap * sizeof *bad,
            cap * sizeof *bad);
        if (!bad) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory to list damaged records");
        scan->bad = bad;
        scan->bad_cap = cap;
    }
    scan->bad[scan->bad_count++] = id;
    return SC_OK;
}

static sc_status grow_to(struct sc_store *store, uint32_t id)
{
    if (id >= store->entry_count) {
        if (id >= NONE - 1) return SC_FAIL(SC_ERR_CORRUPT, "node %u", id);
        SC_TRY(entry_reserve(store, id + 1 - store->entry_count));
        while (store->entry_count <= id) {
            struct entry *entry = &store->entries[store->entry_count++];
            memset(entry, 0, sizeof *entry);
            entry->parent = entry->order_at = NONE;
        }
    }
    return SC_OK;
}

static sc_status scan_node(struct sc_store *store, struct scan *scan, const MDB_val *key,
    const MDB_val *value)
{
    struct node_view view;
    uint32_t id = NONE;
    if (key->mv_size != sizeof id) return SC_FAIL(SC_ERR_CORRUPT, "an id of a wrong size");
    memcpy(&id, key->mv_data, sizeof id);
    if (id >= 1u << 30) return scan_bad(store, scan, id); /* never given out: damage */
    SC_TRY(grow_to(store, id));
    sc_status status = node_parse(value->mv_data, value->mv_size, &view);
    if (status == SC_OK) status = space_mark(store, &view);
    if (status != SC_OK) return scan_bad(store, scan, id);
    struct entry *entry = &store->entries[id];
    entry->state = view.head.flags & NODE_RECORD ? ENTRY_LIVE : ENTRY_EDGE;
    entry->value = view.head.value;
    entry->tick = view.head.tick;
    entry->parent = view.head.parent;
    for (uint32_t i = 0; i < view.head.extent_count; i++) {
        entry->blocks += node_extent_at(&view, i).count;
    }
    store->used_blocks += entry->blocks;
    if (view.head.tick > store->tick) store->tick = view.head.tick;
    return SC_OK;
}

static sc_status scan_all(struct sc_store *store, struct scan *scan)
{
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    MDB_val key, value;
    SC_TRY(db_begin_read(store, &txn));
    int rc = DB(store, "mdb_cursor_open", mdb_cursor_open(txn, store->nodes, &cursor));
    sc_status status = SC_OK;
    while (rc == 0 && status == SC_OK) {
        rc = DB(store, "mdb_cursor_get", mdb_cursor_get(cursor, &key, &value, MDB_NEXT));
        if (rc == 0) status = scan_node(store, scan, &key, &value);
    }
    if (status == SC_OK && rc != MDB_NOTFOUND) status = db_fail(store, rc, "reading all nodes");
    if (cursor) mdb_cursor_close(cursor);
    db_end_read(store, txn);
    return status;
}

/* A node whose parent is gone is of no use; neither are those beyond it, in turn: passes until
 * nothing changes, each in order of ids. Chains against that order are as rare as damage. */
static sc_status drop_orphans(struct sc_store *store, struct scan *scan)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t id = 0; id < store->entry_count; id++) {
            struct entry *entry = &store->entries[id];
            if (entry->state == ENTRY_FREE || entry->parent == NONE) continue;
            if (entry->parent < store->entry_count &&
                store->entries[entry->parent].state != ENTRY_FREE) {
                continue;
            }
            SC_TRY(scan_bad(store, scan, id));
            entry->state = ENTRY_FREE;
            entry->parent = NONE;
            changed = true;
        }
    }
    return SC_OK;
}

static void link_up(struct sc_store *store)
{
    for (uint32_t id = 0; id < store->entry_count; id++) {
        const struct entry *entry = &store->entries[id];
        if (entry->state != ENTRY_FREE && entry->parent != NONE) {
            store->entries[entry->parent].child_count++;
        }
    }
    for (uint32_t id = 0; id < store->entry_count; id++) order_update(store, id);
}

/* Removes what the walk refused: must not fail, for a node that stayed could claim blocks that were
 * given to another meanwhile. */
static sc_status remove_bad(struct sc_store *store, const struct scan *scan)
{
    for (uint32_t at = 0; at < scan->bad_count; at += DROP_BATCH) {
        MDB_txn *txn = NULL;
        uint32_t end = at + DROP_BATCH < scan->bad_count ? at + DROP_BATCH : scan->bad_count;
        SC_TRY(db_begin_write(store, &txn));
        sc_status status = SC_OK;
        for (uint32_t i = at; i < end && status == SC_OK; i++) {
            struct node_view view;
            bool readable = db_node(store, txn, scan->bad[i], &view) == SC_OK;
            status = db_remove_node(store, txn, scan->bad[i], readable ? &view : NULL);
        }
        if (status != SC_OK) {
            mdb_txn_abort(txn);
            return status;
        }
        SC_TRY(db_commit(store, txn));
    }
    return SC_OK;
}

/* Blocks of orphans were marked: what is left over is marked anew. */
static sc_status remark(struct sc_store *store)
{
    MDB_txn *txn = NULL;
    for (uint32_t i = 0; i < store->file_count; i++) {
        struct space_file *file = &store->files[i];
        memset(file->used, 0, ((size_t)store->file_blocks + 63) / 64 * sizeof(uint64_t));
        file->free_count = store->file_blocks;
    }
    store->used_blocks = 0;
    SC_TRY(db_begin_read(store, &txn));
    sc_status status = SC_OK;
    for (uint32_t id = 0; id < store->entry_count && status == SC_OK; id++) {
        struct node_view view;
        if (store->entries[id].state != ENTRY_LIVE) continue;
        status = db_node(store, txn, id, &view);
        if (status == SC_OK) status = space_mark(store, &view);
        if (status == SC_OK) store->used_blocks += store->entries[id].blocks;
    }
    db_end_read(store, txn);
    return status;
}

static sc_status load(struct sc_store *store)
{
    struct scan scan = {NULL, 0, 0};
    db_read_ahead(store);
    sc_status status = scan_all(store, &scan);
    uint32_t bad_count = scan.bad_count;
    if (status == SC_OK) status = drop_orphans(store, &scan);
    if (status == SC_OK && scan.bad_count > bad_count) status = remark(store);
    if (status == SC_OK) {
        store->stats.reclaimed_count = scan.bad_count;
        status = remove_bad(store, &scan);
    }
    if (status == SC_OK) link_up(store);
    if (scan.bad) sc_heap_free(&store->heap, scan.bad, scan.bad_cap * sizeof *scan.bad);
    return status;
}

/* ---- open, close ---- */

static void log_open(const struct sc_store *store)
{
    if (!sc_log_enabled(SC_LOG_INFO)) return;
    struct sc_log_builder log = SC_LOG_BUILDER_INIT;
    sc_log_add(&log, "folder", "%s", store->folder);
    sc_log_add(&log, "entries", "%u", store->entry_count);
    sc_log_add(&log, "files", "%u", store->file_count);
    sc_log_add(&log, "used_bytes", "%llu", (unsigned long long)store->used_blocks * TIER_BLOCK);
    sc_log_add(&log, "dropped", "%llu", (unsigned long long)store->stats.reclaimed_count);
    sc_log_add(&log, "uring", "%d", store->io.uring);
    sc_log_add(&log, "direct", "%d", store->io.direct);
    sc_log_send(&log, SC_LOG_INFO, "tier.disk_opened");
}

static sc_status create(const struct sc_store_options *options, struct sc_store **store_out)
{
    struct sc_heap heap;
    SC_TRY(sc_heap_init(&heap, SC_SUBSYSTEM_SNAPSHOT, options->allocator));
    size_t folder_bytes = strlen(options->folder) + 1;
    struct sc_store *store = sc_heap_calloc(&heap, 1, sizeof *store);
    char *folder = sc_heap_dup(&heap, options->folder, folder_bytes);
    if (!store || !folder) {
        sc_heap_free(&heap, store, sizeof *store);
        sc_heap_free(&heap, folder, folder_bytes);
        return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for a store");
    }
    store->heap = heap;
    store->options = *options;
    store->commits_end = &store->commits;
    store->options.folder = store->folder = folder;
    store->folder_bytes = folder_bytes;
    store->pid = getpid();
    store->lock_fd = -1;
    store->file_blocks = (uint32_t)(options->file_bytes / TIER_BLOCK);
    *store_out = store;
    return SC_OK;
}

static void destroy(struct sc_store *store)
{
    struct sc_heap heap = store->heap;
    space_close(store);
    if (store->entry_cap > 0) {
        sc_heap_free(&heap, store->entries, store->entry_cap * sizeof *store->entries);
        sc_heap_free(&heap, store->order, store->entry_cap * sizeof *store->order);
    }
    if (store->lock_fd >= 0) (void)close(store->lock_fd);
    sc_heap_free(&heap, store->folder, store->folder_bytes);
    sc_heap_free(&heap, store, sizeof *store);
}

static sc_status open_parts(struct sc_store *store)
{
    SC_TRY(lock_folder(store));
    SC_TRY(tier_io_init(&store->io, &store->options, store->folder, &store->heap));
    sc_status status = db_open(store);
    if (status == SC_OK) {
        status = load(store);
        if (status != SC_OK) db_close(store);
    }
    if (status != SC_OK) tier_io_deinit(&store->io);
    return status;
}

static sc_status init_locks(struct sc_store *store)
{
    SC_TRY(sc_mutex_init(&store->write_lock, SC_RANK_TIER_WRITE));
    sc_status status = sc_mutex_init(&store->lock, SC_RANK_TIER);
    if (status == SC_OK) {
        status = sc_rwlock_init(&store->read_lock, SC_RANK_TIER_READ);
        if (status == SC_OK) return SC_OK;
        sc_mutex_deinit(&store->lock);
    }
    sc_mutex_deinit(&store->write_lock);
    return status;
}

static void deinit_locks(struct sc_store *store)
{
    sc_rwlock_deinit(&store->read_lock);
    sc_mutex_deinit(&store->lock);
    sc_mutex_deinit(&store->write_lock);
}

sc_status sc_store_open(const struct sc_store_options *given, struct sc_store **store_out)
{
    struct sc_store_options options;
    struct sc_store *store = NULL;
    SC_REQUIRE(store_out != NULL);
    SC_TRY(resolve(given, &options));
    SC_TRY(create(&options, &store));
    sc_status status = init_locks(store);
    if (status == SC_OK) {
        status = open_parts(store);
        if (status != SC_OK) deinit_locks(store);
    }
    if (status != SC_OK) {
        destroy(store);
        return status;
    }
    log_open(store);
    *store_out = store;
    return SC_OK;
}

void sc_store_close(struct sc_store *store)
{
    if (!store) return;
    bool forked = store->pid != getpid();
    if (!forked) {
        SC_ASSERT(store->puts == NULL);
        for (uint32_t id = 0; id < store->entry_count; id++) {
            SC_ASSERT(store->entries[id].pins == 0);
        }
        db_close(store); /* a child must leave LMDB's environment alone */
        deinit_locks(store); /* and locks that a thread of the parent may have held */
    }
    tier_io_deinit(&store->io);
    destroy(store);
}

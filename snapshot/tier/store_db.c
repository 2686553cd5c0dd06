/* SPDX-License-Identifier: Apache-2.0 */
/* All calls of LMDB but those of cursors.
 *
 * The folder's own lock file keeps other processes, and a second open in this one, away (LMDB would
 * lose its locks then). So lock.mdb, LMDB's table of readers, can be made anew at each open: no
 * reader of a killed process is ever in the way. The map is sized at open and never again, so that
 * no transaction can be open while it moves. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store_internal.h"
#include "tier/host_store.h"

#define FORMAT_MAGIC UINT32_C(0x54534353) /* "SCST" */
enum { READERS_MAX = 1022, MAP_FULL_PERCENT = 80 };

struct format_record {
    uint32_t magic, version, block_bytes, page_bytes;
    uint64_t file_bytes;
    uint32_t hash_bits, reserved;
    uint64_t check;
};
static_assert(sizeof(struct format_record) == 40, "the format record");

struct wear_head {
    uint64_t written_bytes, day, day_bytes, tick;
    uint32_t file_count, reserved;
};
static_assert(sizeof(struct wear_head) == 40, "the wear record");

sc_status db_fail(struct sc_store *store, int rc, const char *what)
{
    const char *text = mdb_strerror(rc);
    switch (rc) {
    case MDB_MAP_FULL:
        return SC_FAIL_SYS(SC_ERR_LIMIT, rc, "%s: the metadata map is full", what);
    case MDB_READERS_FULL:
        return SC_FAIL_SYS(SC_ERR_BUSY, rc, "%s: too many threads read metadata", what);
    case ENOMEM:
        return SC_FAIL_SYS(SC_ERR_NO_MEMORY, rc, "%s: no memory", what);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return SC_FAIL_SYS(SC_ERR_LIMIT, rc, "%s: %s", what, text);
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INVALID:
        return SC_FAIL_SYS(SC_ERR_CORRUPT, rc, "%s: %s", what, text);
    case MDB_VERSION_MISMATCH:
        return SC_FAIL_SYS(SC_ERR_UNSUPPORTED, rc, "%s: %s", what, text);
    case MDB_PANIC:
        store->broken = true;
        return SC_FAIL_SYS(SC_ERR_IO, rc, "%s: metadata could not be written, and it is not known "
            "how much was: open the store again", what);
    default:
        return SC_FAIL_SYS(SC_ERR_IO, rc, "%s: %s", what, text);
    }
}

/* ---- transactions ---- */

sc_status db_begin_read(struct sc_store *store, MDB_txn **txn_out)
{
    if (store->broken) return db_fail(store, MDB_PANIC, "reading metadata");
    sc_rwlock_lock_shared(&store->read_lock);
    int rc = DB(store, "mdb_txn_begin read", mdb_txn_begin(store->env, NULL, MDB_RDONLY, txn_out));
    if (rc == 0) return SC_OK;
    sc_rwlock_unlock_shared(&store->read_lock);
    return db_fail(store, rc, "beginning to read metadata");
}

void db_end_read(struct sc_store *store, MDB_txn *txn)
{
    mdb_txn_abort(txn);
    sc_rwlock_unlock_shared(&store->read_lock);
}

sc_status db_begin_write(struct sc_store *store, MDB_txn **txn_out)
{
    if (store->broken) return db_fail(store, MDB_PANIC, "writing metadata");
    int rc = DB(store, "mdb_txn_begin write", mdb_txn_begin(store->env, NULL, 0, txn_out));
    return rc ? db_fail(store, rc, "beginning to write metadata") : SC_OK;
}

/* Pages that a commit replaces stay taken while an older transaction reads; one that is held up by
 * other work of the machine can fill a small map beside busy writers. */
void db_drain(struct sc_store *store)
{
    sc_rwlock_lock(&store->read_lock);
    sc_rwlock_unlock(&store->read_lock);
}

sc_status db_commit(struct sc_store *store, MDB_txn *txn)
{
    int fault = sc_tier_fault(store->options.faults, "mdb_txn_commit");
    if (fault) {
        mdb_txn_abort(txn);
        return db_fail(store, fault, "committing metadata");
    }
    int rc = mdb_txn_commit(txn);
    if (rc == 0) return SC_OK;
    sc_status status = db_fail(store, rc, "committing metadata");
    /* Did it fail where LMDB cannot tell what is on disk now? Then it refuses all that follows. */
    MDB_txn *probe = NULL;
    rc = mdb_txn_begin(store->env, NULL, 0, &probe);
    if (rc == 0) mdb_txn_abort(probe);
    return rc == MDB_PANIC ? db_fail(store, rc, "committing metadata") : status;
}

/* ---- nodes ---- */

sc_status db_node(struct sc_store *store, MDB_txn *txn, uint32_t id, struct node_view *view_out)
{
    MDB_val key = {sizeof id, &id}, value;
    int rc = DB(store, "mdb_get", mdb_get(txn, store->nodes, &key, &value));
    if (rc == MDB_NOTFOUND) return SC_ERR_NOT_FOUND;
    if (rc) return db_fail(store, rc, "reading a node");
    return node_parse(value.mv_data, value.mv_size, view_out);
}

sc_status db_put_node(struct sc_store *store, MDB_txn *txn, uint32_t id, const void *bytes,
    size_t count)
{
    MDB_val key = {sizeof id, &id};
    MDB_val value = {count, (void *)(uintptr_t)bytes}; /* only read from */
    int rc = DB(store, "mdb_put", mdb_put(txn, store->nodes, &key, &value, 0));
    return rc ? db_fail(store, rc, "storing a node") : SC_OK;
}

static sc_status add_id(struct sc_store *store, MDB_txn *txn, MDB_dbi dbi,
    struct sc_store_hash hash, uint32_t id)
{
    MDB_val key = {sizeof hash, &hash}, value = {sizeof id, &id};
    int rc = DB(store, "mdb_put", mdb_put(txn, dbi, &key, &value, 0));
    return rc ? db_fail(store, rc, "storing a key") : SC_OK;
}

sc_status db_add_keys(struct sc_store *store, MDB_txn *txn, uint32_t id, struct sc_store_hash hash,
    struct sc_store_hash tokens_hash)
{
    SC_TRY(add_id(store, txn, store->keys, hash, id));
    return add_id(store, txn, store->tokens, tokens_hash, id);
}

static sc_status remove_id(struct sc_store *store, MDB_txn *txn, MDB_dbi dbi, uint64_t low,
    uint64_t high, uint32_t id)
{
    struct sc_store_hash hash = {low, high};
    MDB_val key = {sizeof hash, &hash}, value = {sizeof id, &id};
    int rc = DB(store, "mdb_del", mdb_del(txn, dbi, &key, &value));
    return rc && rc != MDB_NOTFOUND ? db_fail(store, rc, "removing a key") : SC_OK;
}

sc_status db_remove_node(struct sc_store *store, MDB_txn *txn, uint32_t id,
    const struct node_view *view)
{
    /* The view is the map's: read it before the first change. Without one (a damaged node) its keys
     * stay: they lead to an id that is gone or is another's, which is noticed. */
    if (view) {
        struct node_head head = view->head;
        SC_TRY(remove_id(store, txn, store->keys, head.hash_low, head.hash_high, id));
        SC_TRY(remove_id(store, txn, store->tokens, head.tokens_low, head.tokens_high, id));
    }
    MDB_val key = {sizeof id, &id};
    int rc = DB(store, "mdb_del", mdb_del(txn, store->nodes, &key, NULL));
    return rc && rc != MDB_NOTFOUND ? db_fail(store, rc, "removing a node") : SC_OK;
}

/* ---- meta ---- */

sc_status db_put_wear(struct sc_store *store, MDB_txn *txn)
{
    char name[] = "wear";
    size_t bytes = sizeof(struct wear_head) + store->file_count * sizeof(uint64_t) + 8;
    uint8_t *record = sc_heap_alloc(&store->heap, bytes, 16);
    if (!record) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for the record of wear");
    sc_mutex_lock(&store->lock);
    struct wear_head head = {store->written_bytes, store->day, store->day_bytes, store->tick,
        store->file_count, 0};
    memcpy(record, &head, sizeof head);
    for (uint32_t i = 0; i < head.file_count; i++) {
        memcpy(record + sizeof head + i * 8, &store->files[i].written_bytes, 8);
    }
    sc_mutex_unlock(&store->lock);
    uint64_t check = store_check64(record, bytes - 8);
    memcpy(record + bytes - 8, &check, sizeof check);
    MDB_val key = {sizeof name - 1, name}, value = {bytes, record};
    int rc = DB(store, "mdb_put", mdb_put(txn, store->meta, &key, &value, 0));
    sc_heap_free(&store->heap, record, bytes);
    return rc ? db_fail(store, rc, "storing the record of wear") : SC_OK;
}

/* Wear is advice: a damaged record of it counts from zero again. */
static void read_wear(struct sc_store *store, MDB_txn *txn)
{
    char name[] = "wear";
    MDB_val key = {sizeof name - 1, name}, value;
    struct wear_head head;
    uint64_t check;
    if (mdb_get(txn, store->meta, &key, &value) != 0) return;
    if (value.mv_size < sizeof head + sizeof check) return;
    const uint8_t *bytes = value.mv_data;
    memcpy(&head, bytes, sizeof head);
    memcpy(&check, bytes + value.mv_size - sizeof check, sizeof check);
    if (value.mv_size != sizeof head + head.file_count * UINT64_C(8) + sizeof check) return;
    if (check != store_check64(bytes, value.mv_size - sizeof check)) return;
    store->written_bytes = head.written_bytes;
    store->day = head.day;
    store->day_bytes = head.day_bytes;
    store->tick = head.tick;
    for (uint32_t i = 0; i < head.file_count && i < store->file_count; i++) {
        memcpy(&store->files[i].written_bytes, bytes + sizeof head + i * 8, 8);
    }
}

static sc_status write_format(struct sc_store *store, MDB_txn *txn)
{
    char name[] = "format";
    struct format_record record = {FORMAT_MAGIC, SC_STORE_FORMAT, TIER_BLOCK,
        (uint32_t)sysconf(_SC_PAGESIZE), (uint64_t)store->file_blocks * TIER_BLOCK,
        store->options.hash_bits, 0, 0};
    record.check = store_check64(&record, sizeof record - sizeof record.check);
    MDB_val key = {sizeof name - 1, name}, value = {sizeof record, &record};
    int rc = DB(store, "mdb_put", mdb_put(txn, store->meta, &key, &value, 0));
    return rc ? db_fail(store, rc, "storing the format") : SC_OK;
}

static sc_status check_format(struct sc_store *store, const MDB_val *value)
{
    struct format_record record;
    if (value->mv_size < 8) return SC_FAIL(SC_ERR_CORRUPT, "%.100s: no format", store->folder);
    memset(&record, 0, sizeof record);
    memcpy(&record, value->mv_data, value->mv_size < sizeof record ? value->mv_size :
        sizeof record);
    if (record.magic != FORMAT_MAGIC) {
        return SC_FAIL(SC_ERR_CORRUPT, "%.100s is not a store of statecache", store->folder);
    }
    if (record.version != SC_STORE_FORMAT) {
        return SC_FAIL(SC_ERR_UNSUPPORTED, "%.100s has format %u, this version reads %u",
            store->folder, record.version, SC_STORE_FORMAT);
    }
    if (value->mv_size != sizeof record ||
        record.check != store_check64(&record, sizeof record - sizeof record.check) ||
        record.file_bytes == 0 || record.file_bytes % TIER_BLOCK != 0 ||
        record.file_bytes / TIER_BLOCK >= NONE || record.block_bytes != TIER_BLOCK) {
        return SC_FAIL(SC_ERR_CORRUPT, "%.100s: the record of its format is damaged",
            store->folder);
    }
    if (record.hash_bits != store->options.hash_bits) {
        return SC_FAIL(SC_ERR_UNSUPPORTED, "%.100s has keys hashed to %u bits", store->folder,
            record.hash_bits);
    }
    store->file_blocks = (uint32_t)(record.file_bytes / TIER_BLOCK);
    return SC_OK;
}

/* ---- open ---- */

/* A file that ends before its last page would end the process (SIGBUS) when that is read. */
static sc_status check_length(struct sc_store *store, const char *path)
{
    MDB_envinfo info;
    MDB_stat stat_main;
    struct stat stat_now;
    int rc = DB(store, "mdb_env_info", mdb_env_info(store->env, &info));
    if (rc == 0) rc = DB(store, "mdb_env_stat", mdb_env_stat(store->env, &stat_main));
    if (rc) return db_fail(store, rc, "reading about the metadata");
    if (stat(path, &stat_now) != 0) return tier_io_fail(errno, "size of the metadata");
    uint64_t need = (info.me_last_pgno + 1) * (uint64_t)stat_main.ms_psize;
    if (info.me_last_txnid > 0 && (uint64_t)stat_now.st_size < need) {
        return SC_FAIL(SC_ERR_CORRUPT, "%.100s is cut: %llu bytes of %llu", path,
            (unsigned long long)stat_now.st_size, (unsigned long long)need);
    }
    return SC_OK;
}

/* Extent files are made after the metadata. */
static bool has_extents(const struct sc_store *store)
{
    char path[4200];
    store_file_path(store, 0, path, sizeof path);
    return access(path, F_OK) == 0;
}

static sc_status open_tables(struct sc_store *store, MDB_txn *txn)
{
    static const struct { const char *name; unsigned flags; } tables[4] = {
        {"nodes", MDB_INTEGERKEY},
        {"keys", MDB_DUPSORT | MDB_DUPFIXED | MDB_INTEGERDUP},
        {"tokens", MDB_DUPSORT | MDB_DUPFIXED | MDB_INTEGERDUP},
        {"meta", 0},
    };
    MDB_dbi *handles[4] = {&store->nodes, &store->keys, &store->tokens, &store->meta};
    for (uint32_t i = 0; i < 4; i++) {
        int rc = DB(store, "mdb_dbi_open",
            mdb_dbi_open(txn, tables[i].name, tables[i].flags | MDB_CREATE, handles[i]));
        if (rc) return db_fail(store, rc, "opening a table");
    }
    return SC_OK;
}

static sc_status read_format(struct sc_store *store, MDB_txn *txn)
{
    char name[] = "format";
    MDB_val key = {sizeof name - 1, name}, value;
    int rc = DB(store, "mdb_get", mdb_get(txn, store->meta, &key, &value));
    if (rc == MDB_NOTFOUND) {
        return SC_FAIL(SC_ERR_CORRUPT, "%.100s is not a store of statecache, or lost its format",
            store->folder);
    }
    if (rc) return db_fail(store, rc, "reading the format");
    return check_format(store, &value);
}

static sc_status env_open(struct sc_store *store, const char *path, unsigned flags)
{
    int rc = DB(store, "mdb_env_create", mdb_env_create(&store->env));
    if (rc) {
        store->env = NULL;
        return db_fail(store, rc, "opening metadata");
    }
    rc = DB(store, "mdb_env_set_maxdbs", mdb_env_set_maxdbs(store->env, 4));
    if (rc == 0) rc = mdb_env_set_maxreaders(store->env, READERS_MAX);
    if (rc == 0) rc = mdb_env_set_mapsize(store->env, (size_t)store->options.map_bytes);
    if (rc == 0) {
        rc = DB(store, "mdb_env_open",
            mdb_env_open(store->env, path, flags | MDB_NOTLS | MDB_NORDAHEAD, 0600));
    }
    return rc ? db_fail(store, rc, "opening metadata") : SC_OK;
}

static sc_status with_tables(struct sc_store *store,
    sc_status (*then)(struct sc_store *store, MDB_txn *txn))
{
    MDB_txn *txn = NULL;
    SC_TRY(db_begin_write(store, &txn));
    sc_status status = open_tables(store, txn);
    if (status == SC_OK) status = then(store, txn);
    if (status == SC_OK) return db_commit(store, txn);
    mdb_txn_abort(txn);
    return status;
}

/* LMDB makes its first pages without a sync, so that a cut may leave any of them: they are made
 * under another name, which is changed when they are on disk. */
static sc_status make_metadata(struct sc_store *store, const char *path)
{
    char made[4200];
    (void)snprintf(made, sizeof made, "%s/new.mdb", store->folder);
    (void)unlink(made);
    sc_status status = env_open(store, made, MDB_NOSUBDIR | MDB_NOLOCK);
    if (status == SC_OK) status = with_tables(store, write_format);
    db_close(store);
    if (status == SC_OK) {
        int code = sc_tier_fault(store->options.faults, "rename");
        if (code == 0 && rename(made, path) != 0) code = errno;
        if (code) status = tier_io_fail(code, "naming the metadata");
    }
    if (status != SC_OK) (void)unlink(made);
    return status;
}

static sc_status find_metadata(struct sc_store *store, const char *path)
{
    char parent[4200];
    bool there = access(path, F_OK) == 0, extents = has_extents(store);
    if (!there && extents) {
        return SC_FAIL(SC_ERR_CORRUPT, "%.100s: extent files, but no metadata: remove them to "
            "start anew", store->folder);
    }
    if (!there) SC_TRY(make_metadata(store, path));
    if (extents) return SC_OK;
    /* Who made it may have ended before its name was on disk. */
    (void)snprintf(parent, sizeof parent, "%s/..", store->folder);
    SC_TRY(tier_io_sync_folder(&store->io, store->folder));
    return tier_io_sync_folder(&store->io, parent);
}

sc_status db_open(struct sc_store *store)
{
    char path[4200];
    MDB_txn *txn = NULL;
    (void)snprintf(path, sizeof path, "%s/lock.mdb", store->folder);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/data.mdb", store->folder);
    SC_TRY(find_metadata(store, path));
    sc_status status = env_open(store, store->folder, 0);
    if (status == SC_OK) status = check_length(store, path);
    if (status == SC_OK) status = with_tables(store, read_format);
    if (status == SC_OK) status = space_open_files(store);
    if (status == SC_OK) status = db_begin_read(store, &txn);
    if (status == SC_OK) {
        read_wear(store, txn);
        db_end_read(store, txn);
        return SC_OK;
    }
    space_close(store);
    db_close(store);
    return status;
}

void db_read_ahead(struct sc_store *store)
{
    enum { STEP_BYTES = 128 << 10 }; /* more at once than its window the kernel ignores */
    struct stat stat_now;
    uint64_t free_bytes = 0;
    int fd = -1;
    if (mdb_env_get_fd(store->env, &fd) != 0 || fstat(fd, &stat_now) != 0) return;
    if (sc_host_limit(NULL, 0, 1, &free_bytes) != SC_OK) return;
    if ((uint64_t)stat_now.st_size > free_bytes / 2) return;
    for (off_t at = 0; at < stat_now.st_size; at += STEP_BYTES) {
        (void)posix_fadvise(fd, at, STEP_BYTES, POSIX_FADV_WILLNEED);
    }
}

void db_close(struct sc_store *store)
{
    if (store->env) mdb_env_close(store->env);
    store->env = NULL;
}

sc_status db_usage(struct sc_store *store, MDB_txn *txn, uint64_t *used_out, uint64_t *map_out)
{
    const MDB_dbi tables[4] = {store->nodes, store->keys, store->tokens, store->meta};
    MDB_envinfo info;
    uint64_t pages = 16; /* roots, the free list and what a commit copies */
    int rc = DB(store, "mdb_env_info", mdb_env_info(store->env, &info));
    for (uint32_t i = 0; i < 4 && rc == 0; i++) {
        MDB_stat stat_table;
        rc = DB(store, "mdb_stat", mdb_stat(txn, tables[i], &stat_table));
        if (rc == 0) {
            pages += stat_table.ms_branch_pages + stat_table.ms_leaf_pages +
                stat_table.ms_overflow_pages;
        }
    }
    if (rc) return db_fail(store, rc, "reading about the metadata");
    *used_out = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    *map_out = info.me_mapsize;
    return SC_OK;
}

sc_status store_evict_map(struct sc_store *store, double value_max)
{
    for (uint32_t i = 0; i < ROOM_TRIES; i++) {
        MDB_txn *txn = NULL;
        uint64_t used = 0, map = 0, freed = 0;
        SC_TRY(db_begin_read(store, &txn));
        sc_status status = db_usage(store, txn, &used, &map);
        db_end_read(store, txn);
        SC_TRY(status);
        if (used <= map / 100 * MAP_FULL_PERCENT) return SC_OK;
        SC_TRY(store_evict_some(store, 1, value_max, &freed));
        if (freed == 0) return SC_OK;
    }
    return SC_OK;
}

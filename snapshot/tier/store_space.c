/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of the extent files: one bit each, set while a node or a put has the block.
 *
 *   file 0   1111 1111 0000 0001 1000 ...        cursor: where the next search begins
 *   file 1   0000 ...
 *
 * A payload gets one run of blocks if there is one, else the runs of at least a 64th of it, so that
 * it has at most SC_STORE_EXTENTS_MAX extents. A search reads the map of each file with enough free
 * blocks once: 32 KiB for 1 GiB. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store_internal.h"

void store_file_path(const struct sc_store *store, uint32_t file, char *out, size_t bytes)
{
    (void)snprintf(out, bytes, "%s/extent-%05u.dat", store->folder, file);
}

static size_t map_bytes(const struct sc_store *store)
{
    return ((size_t)store->file_blocks + 63) / 64 * sizeof(uint64_t);
}

/* ---- files ---- */

static sc_status file_reserve(struct sc_store *store)
{
    if (store->file_count < store->file_cap) return SC_OK;
    uint32_t cap = store->file_cap ? store->file_cap * 2 : 16;
    struct space_file *files = sc_heap_calloc(&store->heap, cap, sizeof *files);
    if (!files) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for %u extent files", cap);
    sc_mutex_lock(&store->lock);
    if (store->file_cap > 0) {
        memcpy(files, store->files, store->file_count * sizeof *files);
        sc_heap_free(&store->heap, store->files, store->file_cap * sizeof *files);
    }
    store->files = files;
    store->file_cap = cap;
    sc_mutex_unlock(&store->lock);
    return SC_OK;
}

static sc_status file_add(struct sc_store *store, bool create)
{
    char path[4200];
    int fd = -1;
    SC_TRY(file_reserve(store));
    uint64_t *used = sc_heap_calloc(&store->heap, map_bytes(store) / 8, sizeof *used);
    if (!used) return SC_FAIL(SC_ERR_NO_MEMORY, "no memory for the map of an extent file");
    store_file_path(store, store->file_count, path, sizeof path);
    sc_status status = tier_io_open_file(&store->io, path, create,
        (uint64_t)store->file_blocks * TIER_BLOCK, &fd);
    if (status == SC_OK && create) status = tier_io_sync_folder(&store->io, store->folder);
    if (status != SC_OK) {
        if (fd >= 0) (void)close(fd);
        sc_heap_free(&store->heap, used, map_bytes(store));
        return status;
    }
    sc_mutex_lock(&store->lock);
    struct space_file *file = &store->files[store->file_count++];
    memset(file, 0, sizeof *file);
    file->used = used;
    file->fd = fd;
    file->free_count = store->file_blocks;
    sc_mutex_unlock(&store->lock);
    return SC_OK;
}

sc_status space_grow(struct sc_store *store)
{
    if (store->file_count >= FILES_MAX) {
        return SC_FAIL(SC_ERR_LIMIT, "the store has %u extent files, no more", store->file_count);
    }
    return file_add(store, true);
}

sc_status space_open_files(struct sc_store *store)
{
    char path[4200];
    for (;;) {
        store_file_path(store, store->file_count, path, sizeof path);
        if (store->file_count >= FILES_MAX || access(path, F_OK) != 0) return SC_OK;
        /* A crash may have left it short of its size. A file that was cut reads as damage, not as
         * zeros that nobody wrote: those fail their check, too. */
        sc_status status = file_add(store, true);
        if (status == SC_ERR_LIMIT) status = file_add(store, false); /* full disk: as it is */
        if (status != SC_OK) return status;
    }
}

void space_close(struct sc_store *store)
{
    for (uint32_t i = 0; i < store->file_count; i++) {
        (void)close(store->files[i].fd);
        sc_heap_free(&store->heap, store->files[i].used, map_bytes(store));
    }
    if (store->files) {
        sc_heap_free(&store->heap, store->files, store->file_cap * sizeof *store->files);
    }
    store->files = NULL;
    store->file_count = store->file_cap = 0;
}

uint32_t space_shrink(struct sc_store *store)
{
    char path[4200];
    uint32_t count = 0;
    for (;;) {
        struct space_file file = {0};
        sc_mutex_lock(&store->lock);
        bool empty = store->file_count > 0 &&
            store->files[store->file_count - 1].free_count == store->file_blocks;
        if (empty) file = store->files[--store->file_count];
        sc_mutex_unlock(&store->lock);
        if (!empty) break;
        store_file_path(store, store->file_count, path, sizeof path);
        (void)close(file.fd);
        (void)unlink(path);
        sc_heap_free(&store->heap, file.used, map_bytes(store));
        count++;
    }
    return count;
}

/* ---- blocks ---- */

static bool bit(const uint64_t *map, uint32_t at)
{
    return map[at / 64] >> (at % 64) & 1;
}

static void set_bits(struct space_file *file, uint32_t block, uint32_t count, bool value)
{
    for (uint32_t i = block; i < block + count; i++) {
        SC_ASSERT_DEBUG(bit(file->used, i) != value);
        if (i % 64 == 0 && block + count - i >= 64) {
            file->used[i / 64] = value ? UINT64_MAX : 0;
            i += 63;
        } else if (value) {
            file->used[i / 64] |= UINT64_C(1) << (i % 64);
        } else {
            file->used[i / 64] &= ~(UINT64_C(1) << (i % 64));
        }
    }
    if (value) {
        file->free_count -= count;
    } else {
        file->free_count += count;
    }
}

/* First block at or after `at` whose bit is `value`, `end` if none. */
static uint32_t seek(const uint64_t *map, uint32_t at, uint32_t end, bool value)
{
    while (at < end) {
        uint64_t word = (value ? map[at / 64] : ~map[at / 64]) >> (at % 64);
        if (word != 0) {
            at += (uint32_t)__builtin_ctzll(word);
            return at < end ? at : end;
        }
        at = (at / 64 + 1) * 64;
    }
    return end;
}

/* The first free run of at least `least` blocks in [at, end), cut to `most`. */
static bool find_run(const struct space_file *file, uint32_t at, uint32_t end, uint32_t least,
    uint32_t most, uint32_t *block_out, uint32_t *count_out)
{
    for (;;) {
        at = seek(file->used, at, end, false);
        if (at >= end) return false;
        uint32_t stop = seek(file->used, at, end, true);
        if (stop - at >= least) {
            *block_out = at;
            *count_out = stop - at < most ? stop - at : most;
            return true;
        }
        at = stop;
    }
}

static void take(struct sc_store *store, uint32_t file, uint32_t block, uint32_t count,
    struct node_extent *extent_out)
{
    set_bits(&store->files[file], block, count, true);
    store->files[file].cursor = block + count;
    *extent_out = (struct node_extent){file, block, count, 0};
}

static bool take_one_run(struct sc_store *store, uint32_t blocks, struct node_extent *extent_out)
{
    for (uint32_t i = 0; i < store->file_count; i++) {
        uint32_t at = (store->space_cursor % store->file_count + i) % store->file_count;
        struct space_file *file = &store->files[at];
        uint32_t block, count, cursor = file->cursor;
        if (file->free_count < blocks) continue;
        if (find_run(file, cursor, store->file_blocks, blocks, blocks, &block, &count) ||
            find_run(file, 0, store->file_blocks, blocks, blocks, &block, &count)) {
            take(store, at, block, count, extent_out);
            store->space_cursor = at;
            return true;
        }
    }
    return false;
}

bool space_take(struct sc_store *store, uint32_t blocks, struct node_extent *extents,
    uint32_t *count_out)
{
    uint32_t least = blocks / SC_STORE_EXTENTS_MAX + 1, count = 0, left = blocks;
    if (take_one_run(store, blocks, extents)) {
        *count_out = 1;
        store->pending_blocks += blocks;
        return true;
    }
    for (uint32_t i = 0; i < store->file_count && left > 0; i++) {
        uint32_t at = 0, block, run;
        while (left > 0 && count < SC_STORE_EXTENTS_MAX) {
            if (!find_run(&store->files[i], at, store->file_blocks, left < least ? left : least,
                    left, &block, &run)) {
                break;
            }
            take(store, i, block, run, &extents[count++]);
            left -= run;
            at = block + run;
        }
    }
    store->pending_blocks += blocks - left;
    if (left == 0) {
        *count_out = count;
        return true;
    }
    for (uint32_t i = 0; i < count; i++) store->pending_blocks -= extents[i].count;
    space_give(store, extents, count);
    return false;
}

void space_give(struct sc_store *store, const struct node_extent *extents, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        SC_ASSERT(extents[i].file < store->file_count);
        set_bits(&store->files[extents[i].file], extents[i].block, extents[i].count, false);
    }
}

sc_status space_mark(struct sc_store *store, const struct node_view *view)
{
    for (uint32_t i = 0; i < view->head.extent_count; i++) {
        struct node_extent extent = node_extent_at(view, i);
        bool good = extent.file < store->file_count && extent.block < store->file_blocks &&
            extent.count <= store->file_blocks - extent.block &&
            seek(store->files[extent.file].used, extent.block, extent.block + extent.count, true) ==
                extent.block + extent.count;
        if (good) {
            set_bits(&store->files[extent.file], extent.block, extent.count, true);
            continue;
        }
        while (i-- > 0) {
            extent = node_extent_at(view, i);
            set_bits(&store->files[extent.file], extent.block, extent.count, false);
        }
        return SC_FAIL(SC_ERR_CORRUPT, "blocks that do not exist or belong to another record");
    }
    return SC_OK;
}

/* ---- lists ---- */

bool extent_list_add(struct sc_store *store, struct extent_list *list, const struct node_view *view)
{
    uint32_t need = list->count + view->head.extent_count;
    if (need > list->cap) {
        uint32_t cap = need < 32 ? 64 : need * 2;
        struct node_extent *items = sc_heap_realloc(&store->heap, list->items,
            list->cap * sizeof *items, cap * sizeof *items);
        if (!items) return false;
        list->items = items;
        list->cap = cap;
    }
    for (uint32_t i = 0; i < view->head.extent_count; i++) {
        list->items[list->count++] = node_extent_at(view, i);
    }
    return true;
}

void extent_list_free(struct sc_store *store, struct extent_list *list)
{
    if (list->items) {
        sc_heap_free(&store->heap, list->items, list->cap * sizeof *list->items);
    }
    *list = (struct extent_list){NULL, 0, 0};
}

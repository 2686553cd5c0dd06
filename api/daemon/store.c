/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the cache, and keeps the files of its states: store.h. */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "events_publish.h"
#include "tenant.h"
#include "wire/fault.h"

sc_status sd_library(sc_status status)
{
    return status == SC_OK ? SC_OK : sc_fault_take(sc_last_error());
}

/* ---- opening ---- */

static void *reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static sc_status open_pool(const struct sd_config *config, struct sd_store *store)
{
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    sc_foreign_memory memory = {.base = 0};
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), bytes = 0;
    options.schema = store->schema;
    options.shard = (sc_shard){.tp_rank = (uint32_t)config->tp_rank,
        .tp_size = (uint32_t)config->tp_size, .layer_first = (uint32_t)config->layer_first,
        .layer_count = (uint32_t)config->layer_count};
    options.layout = SC_LAYOUT_PAGE_MAJOR;
    options.slot_count = 1;
    SC_PASS(sd_library(sc_schema_state_bytes(store->schema, &options.shard, &store->state_bytes)));
    if (store->state_bytes == 0) return SC_FAULT(SC_ERR_INVALID, "the shard holds no part");
    SC_PASS(sd_library(sc_pool_memory_bytes(&options, &bytes)));
    /* The null slot and one more: half of it is a slot, rounded up to whole pages of memory. */
    store->stride = (bytes / 2 + page - 1) / page * page;
    options.slot_count = store->slot_count = (uint32_t)config->slots;
    if (store->stride > SIZE_MAX / 2 / (config->slots + 1)) {
        return SC_FAULT(SC_ERR_OVERFLOW, "%llu slots of %llu bytes are too many",
            (unsigned long long)config->slots, (unsigned long long)store->stride);
    }
    store->memory_bytes = (size_t)(store->stride * (config->slots + 1));
    store->base = reserve(store->memory_bytes);
    if (!store->base) return SC_FAULT_SYS(SC_ERR_NO_MEMORY, errno, "%s", strerror(errno));
    memory.base = (sc_devptr)(uintptr_t)store->base;
    memory.bytes = store->memory_bytes;
    memory.slot_stride = store->stride;
    options.foreign = &memory;
    return sd_library(sc_pool_create(&options, &store->pool));
}

static sc_status open_tiers(const struct sd_config *config, struct sd_store *store)
{
    sc_tiers_options options = SC_TIERS_OPTIONS_INIT;
    if (config->host_bytes == 0 && config->disk_bytes == 0) return SC_OK;
    options.host.bytes = config->host_bytes;
    options.disk.bytes = config->disk_bytes;
    options.disk.day_bytes = config->disk_day_bytes;
    options.disk.zstd_level = (uint32_t)config->disk_zstd_level;
    uint32_t write = SC_TIER_WRITE_BACK;
    if (strcmp(config->disk_write, "through") == 0) write = SC_TIER_WRITE_THROUGH;
    if (strcmp(config->disk_write, "selective") == 0) write = SC_TIER_WRITE_SELECTIVE;
    options.disk.write = write;
    options.folder = config->disk_bytes > 0 ? config->disk_folder : NULL;
    options.file_bytes = config->disk_file_bytes;
    options.numerics = (uint32_t)config->numerics;
    return sd_library(sc_tiers_create(&options, &store->tiers));
}

static sc_status open_cache(const struct sd_config *config, struct sd_store *store)
{
    sc_cache_options options = SC_CACHE_OPTIONS_INIT;
    options.pool = store->pool;
    options.page_tokens = store->page_tokens = (uint32_t)config->page_tokens;
    options.without_kv = true;
    options.row_max = options.save_max = 1;
    options.lease_max = (uint32_t)config->leases;
    options.lease_token_max = (uint32_t)config->key_tokens;
    options.token_max = config->tokens;
    options.save_flags = SC_SAVE_PROMPT_END;
    options.policy = config->policy;
    options.tiers = store->tiers;
    options.event_bytes = sd_events_queue_bytes(config);
    SC_PASS(sd_library(sc_schema_grid(store->schema, options.page_tokens, &store->grid)));
    return sd_library(sc_cache_create(&options, &store->cache));
}

static sc_status open_parts(struct sd_store *store)
{
    sc_pool_info info;
    sc_layer_view view;
    sc_part part;
    SC_PASS(sd_library(sc_pool_info_get(store->pool, &info)));
    store->part_count = info.part_count;
    store->parts = calloc(info.part_count, sizeof *store->parts);
    if (!store->parts) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
    for (uint32_t i = 0; i < info.part_count; i++) {
        SC_PASS(sd_library(sc_pool_part_view(store->pool, i, &view, &part)));
        store->parts[i] = (struct sd_range){view.base - (sc_devptr)(uintptr_t)store->base,
            view.bytes};
    }
    return SC_OK;
}

static sc_status open_images(const struct sd_config *config, struct sd_store *store)
{
    store->images = calloc((size_t)store->slot_count + 1, sizeof *store->images);
    store->spaces = calloc((size_t)config->namespaces, sizeof *store->spaces);
    store->space_max = (uint32_t)config->namespaces;
    if (!store->images || !store->spaces) return SC_FAULT(SC_ERR_NO_MEMORY, "no memory");
    for (uint32_t i = 0; i <= store->slot_count; i++) store->images[i].fd = -1;
    return SC_OK;
}

sc_status sd_store_open(const struct sd_config *config, struct sd_store *store_out,
    const char **what_out)
{
    struct sd_store *store = store_out;
    *store = (struct sd_store){.base = NULL};
    *what_out = "model";
    sc_status status = sd_library(sd_config_schema(config, &store->schema));
    if (status == SC_OK) {
        status = sd_library(sc_schema_fingerprint(store->schema, &store->fingerprint));
    }
    if (status == SC_OK) {
        *what_out = "slots";
        status = open_pool(config, store);
    }
    if (status == SC_OK) status = open_parts(store);
    if (status == SC_OK) status = open_images(config, store);
    if (status == SC_OK) {
        *what_out = "tiers";
        status = open_tiers(config, store);
    }
    if (status == SC_OK) {
        *what_out = "cache";
        status = open_cache(config, store);
    }
    if (status != SC_OK) (void)sd_store_close(store);
    return status;
}

sc_status sd_store_close(struct sd_store *store)
{
    sc_error_info kept = *sc_fault_last();
    if (store->cache) SC_PASS(sd_library(sc_cache_destroy(store->cache)));
    store->cache = NULL;
    (void)sc_tiers_destroy(store->tiers);
    (void)sc_pool_destroy(store->pool);
    sc_schema_release(store->schema);
    for (uint32_t i = 0; store->images && i <= store->slot_count; i++) {
        if (store->images[i].fd >= 0) (void)close(store->images[i].fd);
    }
    free(store->images);
    free(store->parts);
    free(store->spaces);
    if (store->base) (void)munmap(store->base, store->memory_bytes);
    *store = (struct sd_store){.base = NULL};
    (void)sc_fault_take(&kept); /* why it is being closed */
    return SC_OK;
}

/* ---- namespaces ---- */

static struct sd_namespace *find_space(struct sd_store *store, uint64_t id, uint64_t generation)
{
    for (uint32_t i = 0; i < store->space_count; i++) {
        struct sd_namespace *space = &store->spaces[i];
        if (space->adapter_id == id && space->adapter_generation == generation) return space;
    }
    return NULL;
}

sc_status sd_store_space(struct sd_store *store, uint64_t adapter_id, uint64_t generation,
    sc_namespace *ns_out)
{
    struct sd_namespace *space = find_space(store, adapter_id, generation);
    if (!space) {
        if (store->space_count == store->space_max) {
            return SC_FAULT(SC_ERR_AGAIN, "there are %u namespaces, the limit", store->space_max);
        }
        space = &store->spaces[store->space_count];
        space->adapter_id = adapter_id;
        space->adapter_generation = generation;
        SC_PASS(sd_library(sc_namespace_open(store->cache, NULL, adapter_id, generation,
            &space->ns)));
        store->space_count++;
    }
    *ns_out = space->ns;
    return SC_OK;
}

sc_status sd_store_space_drop(struct sd_store *store, uint64_t adapter_id, uint64_t generation)
{
    struct sd_namespace *space = find_space(store, adapter_id, generation);
    if (!space) return SC_FAULT(SC_ERR_NOT_FOUND, "there is no such namespace");
    SC_PASS(sd_library(sc_namespace_close(store->cache, space->ns)));
    *space = store->spaces[--store->space_count];
    store->dirty = true;
    return SC_OK;
}

sc_status sd_store_spare(struct sd_store *store)
{
    sc_pool_info info;
    sc_room got;
    SC_PASS(sd_library(sc_pool_info_get(store->pool, &info)));
    if (info.free_count > 0) return SC_OK;
    SC_PASS(sd_library(sc_cache_evict(store->cache, 0, 1, &got)));
    if (got.slots_free > 0) return SC_OK;
    return SC_FAULT(SC_ERR_NO_SLOT, "every slot is in use: try again after a release");
}

/* ---- images ---- */

static bool is_current(const struct sd_store *store, const struct sd_image *image)
{
    return image->fd >= 0 && sc_pool_check(store->pool, image->slot, NULL) == SC_OK;
}

int sd_store_file(const struct sd_store *store, uint32_t slot)
{
    const struct sd_image *image = &store->images[slot];
    return is_current(store, image) ? image->fd : -1;
}

sc_status sd_store_stage(const struct sd_store *store, int *fd_out)
{
    int fd = memfd_create("statecache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)store->stride) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        int code = errno;
        if (fd >= 0) (void)close(fd);
        return SC_FAULT_SYS(code == EMFILE || code == ENFILE ? SC_ERR_AGAIN : SC_ERR_NO_MEMORY,
            code, "no file for a state: %s", strerror(code));
    }
    *fd_out = fd;
    return SC_OK;
}

sc_status sd_file_seal(int fd)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    if (fcntl(fd, F_ADD_SEALS, seals) == 0) return SC_OK;
    if (errno == EBUSY) {
        return SC_FAULT(SC_ERR_BUSY, "the staging file is still mapped for writing: unmap it");
    }
    return SC_FAULT_SYS(SC_ERR_IO, errno, "cannot seal the file: %s", strerror(errno));
}

static sc_status write_all(int fd, const uint8_t *memory, const struct sd_range *range)
{
    for (uint64_t done = 0; done < range->bytes;) {
        uint64_t at = range->at + done;
        ssize_t got = pwrite(fd, memory + at, range->bytes - done, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            return SC_FAULT_SYS(SC_ERR_NO_MEMORY, errno, "no memory for a state: %s",
                strerror(errno));
        }
        done += (uint64_t)got;
    }
    return SC_OK;
}

sc_status sd_image_copy(const struct sd_store *store, uint32_t slot, int *fd_out)
{
    int fd = -1;
    SC_PASS(sd_store_stage(store, &fd));
    sc_status status = SC_OK;
    for (uint32_t i = 0; status == SC_OK && i < store->part_count; i++) {
        status = write_all(fd, sd_store_memory(store, slot), &store->parts[i]);
    }
    if (status == SC_OK) status = sd_file_seal(fd);
    if (status != SC_OK) {
        (void)close(fd);
        return status;
    }
    *fd_out = fd;
    return SC_OK;
}

void sd_file_drop(int fd, uint64_t bytes)
{
    /* A client may keep the file of a write open; sealed ones refuse it. */
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
    (void)close(fd);
}

void sd_store_let_go(const struct sd_store *store, int fd)
{
    if (store->let_go) {
        store->let_go(store->let_go_ctx, fd, store->stride);
    } else {
        sd_file_drop(fd, store->stride);
    }
}

static void forget(struct sd_store *store, struct sd_image *image)
{
    if (image->fd < 0) return;
    if (image->tenant) sd_tenant_gives_back(image->tenant, store->stride);
    sd_store_let_go(store, image->fd);
    *image = (struct sd_image){.fd = -1, .making = image->making};
    store->image_count--;
}

sc_status sd_store_adopt(struct sd_store *store, uint32_t slot, int fd, struct sd_tenant *tenant)
{
    sc_slot handle;
    SC_PASS(sd_library(sc_pool_slot(store->pool, slot, &handle)));
    uint8_t *memory = sd_store_memory(store, slot);
    void *got = mmap(memory, store->stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0);
    if (got == MAP_FAILED) {
        return SC_FAULT_SYS(SC_ERR_NO_MEMORY, errno, "cannot map a state: %s", strerror(errno));
    }
    struct sd_image *image = &store->images[slot];
    forget(store, image);
    *image = (struct sd_image){fd, handle, tenant, image->making};
    store->image_count++;
    return SC_OK;
}

void sd_store_sweep(struct sd_store *store)
{
    store->dirty = false;
    for (uint32_t id = 1; id <= store->slot_count && store->image_count > 0; id++) {
        struct sd_image *image = &store->images[id];
        sc_slot now;
        if (image->fd < 0 || is_current(store, image)) continue;
        if (sc_pool_slot(store->pool, id, &now) != SC_OK) { /* (3): else it is another's */
            (void)mmap(sd_store_memory(store, id), store->stride, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        }
        forget(store, image); /* now the file is the last to go, and not the mapping */
    }
}

sc_status sd_store_verify(const struct sd_store *store)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    uint32_t count = 0;
    for (uint32_t id = 0; id <= store->slot_count; id++) {
        const struct sd_image *image = &store->images[id];
        if (image->fd < 0) continue;
        count++;
        if (image->slot.id != id || fcntl(image->fd, F_GET_SEALS) != seals) {
            return SC_FAULT(SC_ERR_CORRUPT, "slot %u has the file of another, or one that is open "
                "to changes", id);
        }
    }
    if (count == store->image_count) return SC_OK;
    return SC_FAULT(SC_ERR_CORRUPT, "%u files, %u are counted", count, store->image_count);
}

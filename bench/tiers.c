/* SPDX-License-Identifier: Apache-2.0 */
/* Lower tiers of a pass: host memory and disk, and the mover of its KV. The KV is in host memory,
 * so a move ends at once; the thread that makes it is one of the tiers'. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pass.h"

enum { DONE_MAX = 256 };

static bool alloc_pages(void *ctx, uint32_t count, int32_t *ids)
{
    struct pass *p = ctx;
    if (p->ids.free_count < count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        ids[i] = page_ids_take(&p->ids);
        page_ids_hand_in(&p->ids, ids[i]);
    }
    return true;
}

static void move_page(const struct pass *p, int32_t id, uint8_t *bytes, bool write)
{
    const struct served_model *model = p->o->model;
    size_t layer_bytes = (size_t)p->kv.page_tokens * p->kv.row_floats * sizeof(float);
    if (!model) { /* nothing is computed: something that is written and read */
        memset(bytes, 0, p->mover.page_bytes);
        return;
    }
    for (uint32_t layer = 0; layer < model->attention_layers; layer++, bytes += layer_bytes) {
        float *row = paged_kv_row(&p->kv, layer, id, 0);
        if (write)
            memcpy(row, bytes, layer_bytes);
        else
            memcpy(bytes, row, layer_bytes);
    }
}

static sc_status read_pages(void *ctx, uint64_t ticket, const int32_t *ids, uint32_t count,
    void *bytes)
{
    const struct pass *p = ctx;
    for (uint32_t i = 0; i < count; i++)
        move_page(p, ids[i], (uint8_t *)bytes + i * p->mover.page_bytes, false);
    return sc_kv_moved(p->cache, ticket, SC_OK);
}

static sc_status write_pages(void *ctx, uint64_t ticket, const int32_t *ids, uint32_t count,
    const void *bytes)
{
    const struct pass *p = ctx;
    uint8_t *from = (uint8_t *)(uintptr_t)bytes;
    for (uint32_t i = 0; p->o->model && i < count; i++)
        move_page(p, ids[i], from + i * p->mover.page_bytes, true);
    return sc_kv_moved(p->cache, ticket, SC_OK);
}

static uint64_t page_bytes(const struct pass *p)
{
    if (!p->o->model)
        return 64;
    struct paged_kv kv;
    paged_kv_init(&kv, p->o->model, p->o->page, 1);
    uint64_t bytes = (uint64_t)p->o->model->attention_layers * p->o->page * kv.row_floats *
        sizeof(float);
    paged_kv_deinit(&kv);
    return bytes;
}

void pass_tiers_open(struct pass *p, sc_cache_options *options)
{
    sc_tiers_options tiers = SC_TIERS_OPTIONS_INIT;
    if (!p->o->host_slots && !p->o->disk)
        return;
    p->mover = (sc_kv_mover){p, page_bytes(p), alloc_pages, read_pages, write_pages};
    sc_pool_info pool;
    bench_must(sc_pool_info_get(p->pool, &pool), "sc_pool_info_get");
    if (p->o->host_slots) { /* so many, whatever KV they have */
        uint64_t pages = pages_for(p, workload_longest(p->workload)) + 1;
        tiers.host.bytes = p->o->host_slots * (pool.state_bytes + 8192 +
            pages * p->mover.page_bytes);
        tiers.host.write = p->o->host_write;
        tiers.entry_max = p->o->host_slots;
    }
    if (p->o->disk) {
        tiers.disk.bytes = p->o->disk_bytes;
        tiers.disk.write = p->o->disk_write;
        tiers.folder = p->o->disk;
        tiers.file_bytes = 64 << 20;
    }
    sc_status status = sc_tiers_create(&tiers, &p->tiers);
    if (status != SC_OK)
        bench_fail(BENCH_USAGE, "no tiers: %s", sc_last_error()->text);
    options->tiers = p->tiers;
    options->kv_mover = &p->mover;
}

static int by_ticket(const void *a, const void *b)
{
    uint64_t x = ((const sc_done *)a)->ticket, y = ((const sc_done *)b)->ticket;
    return x < y ? -1 : x > y;
}

static uint64_t under_way(const struct pass *p)
{
    sc_cache_stats stats = {.struct_size = sizeof stats};
    bench_must(sc_cache_stats_get(p->cache, &stats), "sc_cache_stats_get");
    return stats.transfers_alive;
}

/* What is applied may begin others: those are waited for, too. */
void pass_tiers_settle(struct pass *p)
{
    const struct timespec pause = {0, 10000};
    sc_done done[DONE_MAX];
    while (p->tiers && under_way(p) > 0) {
        uint32_t wanted = (uint32_t)under_way(p), count = 0, more = 0;
        if (wanted > DONE_MAX)
            bench_fail(BENCH_CHECK_FAILED, "%u transfers at once", wanted);
        while (count < wanted) {
            bench_must(sc_cache_poll(p->cache, done + count, DONE_MAX - count, &more),
                "sc_cache_poll");
            count += more;
            if (more == 0)
                (void)nanosleep(&pause, NULL);
        }
        qsort(done, count, sizeof *done, by_ticket);
        bench_must(sc_cache_apply(p->cache, done, count, p->now_ns), "sc_cache_apply");
        pass_drain(p);
    }
}

void pass_tiers_close(struct pass *p)
{
    if (!p->tiers)
        return;
    p->result->tiers.struct_size = sizeof p->result->tiers;
    bench_must(sc_tiers_stats_get(p->tiers, &p->result->tiers), "sc_tiers_stats_get");
    bench_must(sc_tiers_destroy(p->tiers), "sc_tiers_destroy");
    p->tiers = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The tutorial's program: two requests that share a prompt; the second resumes where the first
 * one's state was saved. first_hit.md beside this file explains it. */
#include <statecache/statecache.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != SC_OK) {                                                                     \
            fprintf(stderr, "%s: %s\n", #call, sc_last_error()->text);                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static int32_t next_page = 100;

enum { PAGE = 16 }; /* tokens of one KV page, as in your attention backend */

/* Your engine's forward: it reads the state in slot `source` (0: zeros), computes the tokens,
 * writes the state to slot `dest`. This stand-in only adds up token numbers. */
static float forward(const sc_layer_view *view, int32_t source, int32_t dest,
    const int32_t *tokens, uint32_t count)
{
    float *from = (float *)(uintptr_t)(view->base + (uint64_t)(source * view->slot_stride));
    float *to = (float *)(uintptr_t)(view->base + (uint64_t)(dest * view->slot_stride));
    float sum = from[0];
    for (uint32_t i = 0; i < count; i++) {
        sum += (float)tokens[i];
    }
    return to[0] = sum;
}

/* [serve] */
static void serve(sc_cache *cache, sc_namespace ns, const sc_layer_view *view, sc_step step,
    const int32_t *tokens, uint32_t count)
{
    sc_request request = {.key = {.ns = ns, .tokens = tokens, .token_count = count}};
    sc_lease lease;
    sc_lease_info info;
    sc_status acquired, planned; /* the answer for each item of a batch, here of one */
    OK(sc_cache_acquire(cache, &request, 1, 0, &lease, &acquired));
    OK(acquired); /* SC_ERR_NO_SLOT would be no error: try again after a release */
    OK(sc_lease_info_get(cache, lease, &info));
    printf("%u tokens, resumed at %u (no more: %s)\n", count, info.resume_len,
        sc_reason_text(info.reason));

    sc_row row = {.lease = lease, .from = info.resume_len, .to = count};
    sc_batch batch;
    OK(sc_step_plan(cache, step, &row, 1, 0, &batch, &planned));
    OK(planned);
    const int32_t *block = batch.block; /* row r of the batch is at word r of each array */
    uint32_t end = (uint32_t)block[batch.at_end], at = row.from;
    int32_t source = block[batch.at_source];
    for (uint32_t i = 0; i < batch.save_count; i++) { /* states on the way: write every one */
        uint32_t position = (uint32_t)block[batch.at_save_position + i];
        forward(view, source, block[batch.at_save_slot + i], tokens + at, position - at);
        source = block[batch.at_save_slot + i];
        at = position;
    }
    float sum = forward(view, source, block[batch.at_dest], tokens + at, end - at);
    printf("  computed %u tokens, their sum is %.0f\n", end - row.from, sum);

    uint32_t kv_count = end / PAGE - row.from / PAGE; /* KV pages that this forward filled */
    int32_t *kv_ids = malloc((kv_count + 1) * sizeof *kv_ids);
    for (uint32_t i = 0; kv_ids && i < kv_count; i++) {
        kv_ids[i] = next_page++; /* your ids of them */
    }
    sc_result result = {.lease = lease, .len = end, .kv_ids = kv_ids, .kv_count = kv_count};
    OK(sc_step_commit(cache, step, &result, 1, NULL));
    free(kv_ids);
    OK(sc_lease_release(cache, lease, 0, SC_RELEASE_KEEP)); /* keep the end for a next turn */
}
/* [serve] */

int main(void)
{
    /* [open] */
    sc_group group = {.name = "gdn", .chunk = 16};
    sc_part part = {.layer = 0, .group = 0, .kind = SC_PART_RECURRENT, .dtype = SC_DTYPE_F32,
        .dim_count = 3, .dims = {2, 16, 16}};
    sc_schema_options schema_options = SC_SCHEMA_OPTIONS_INIT;
    schema_options.model = "toy";
    schema_options.revision = "1";
    schema_options.groups = &group;
    schema_options.group_count = 1;
    schema_options.parts = &part;
    schema_options.part_count = 1;
    schema_options.layer_count = 1;
    sc_schema *schema;
    OK(sc_schema_create(&schema_options, &schema));

    sc_pool_options pool_options = SC_POOL_OPTIONS_INIT;
    pool_options.schema = schema;
    pool_options.slot_count = 8;
    sc_pool *pool;
    OK(sc_pool_create(&pool_options, &pool));

    sc_cache_options cache_options = SC_CACHE_OPTIONS_INIT;
    cache_options.pool = pool;
    cache_options.page_tokens = PAGE;
    sc_cache *cache;
    OK(sc_cache_create(&cache_options, &cache));
    sc_namespace ns;
    OK(sc_namespace_open(cache, NULL, 0, 0, &ns));
    sc_layer_view view;
    OK(sc_pool_layer_view(pool, 0, SC_PART_RECURRENT, 0, &view));
    /* [open] */

    int32_t tokens[72];
    float cold = 0;
    for (int32_t i = 0; i < 72; i++) {
        tokens[i] = 7 * i;
        cold += (float)tokens[i];
    }
    serve(cache, ns, &view, 1, tokens, 50); /* a first prompt */
    serve(cache, ns, &view, 2, tokens, 72); /* its next turn: resumes at 48 */
    printf("the sum of all 72, without a cache: %.0f\n", cold);
    serve(cache, ns, &view, 3, tokens, 48); /* the tokens up to there: see below */

    /* [drain] */
    sc_room gone;
    OK(sc_cache_evict(cache, 4, 0, &gone)); /* your page pool is short: 4 pages at least */
    int32_t ids[8];
    uint32_t count;
    OK(sc_cache_drain(cache, ids, 8, &count));
    printf("%u KV pages are free again\n", count);
    /* [drain] */

    OK(sc_cache_destroy(cache));
    OK(sc_pool_destroy(pool));
    sc_schema_release(schema);
    return 0;
}

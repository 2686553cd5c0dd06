/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the kernel table for a cache's pool, resolved once at its creation. The cache runs no
 * kernel itself: its engine takes the backend from here. */
#include "base/error.h"
#include "cache_internal.h"
#include "statecache/snapshot.h"

/* What the parts of the pool ask of kernels. False: kernels do not know a dtype of them. */
static sc_status parts_of(const sc_cache *cache, const sc_pool_info *info, sc_kernels_options *o,
    bool *known_out)
{
    *known_out = true;
    for (uint32_t i = 0; i < info->part_count; i++) {
        sc_layer_view view;
        sc_part part;
        SC_TRY(sc_pool_part_view(cache->options.pool, i, &view, &part));
        bool dtype = part.dtype == SC_DTYPE_F32 || part.dtype == SC_DTYPE_BF16;
        if (part.kind != SC_PART_CONV && part.kind != SC_PART_RECURRENT) continue;
        *known_out = *known_out && dtype;
        if (part.kind == SC_PART_CONV) o->dtype = part.dtype;
        if (part.kind != SC_PART_RECURRENT) continue;
        o->state_dtype = part.dtype;
        for (uint32_t d = 1; d < part.dim_count && d < 3; d++)
            o->dim = part.dims[d] > o->dim ? part.dims[d] : o->dim;
    }
    *known_out = *known_out && o->dim <= SC_K_DIM_MAX;
    return SC_OK;
}

sc_status sc_engine_kernels_create(struct sc_cache *cache)
{
    sc_kernels_options o = SC_KERNELS_OPTIONS_INIT;
    sc_pool_info info;
    bool known = false;
    const sc_cache_options *options = &cache->options;
    SC_TRY(sc_pool_info_get(options->pool, &info));
    SC_TRY(sc_pool_backend(options->pool, &o.backend));
    SC_TRY(sc_pool_needs_gather(options->pool, &o.strided));
    SC_TRY(parts_of(cache, &info, &o, &known));
    if (!known) { /* the kernels of others serve this pool */
        if (options->decode_backend == NULL && options->extend_backend == NULL) return SC_OK;
        return SC_FAIL(SC_ERR_UNSUPPORTED,
            "decode_backend or extend_backend for states that no kernel knows");
    }
    o.decode_backend = options->decode_backend;
    o.extend_backend = options->extend_backend;
    o.saves = true;
    o.trees = options->draft_max > 0;
    o.ring = cache->ring_records > 0;
    /* a longer grid is that of Mamba-2 layers, or of several kinds: of no one operation */
    o.chunk = cache->chunk_grid <= 64 ? cache->chunk_grid : 0;
    o.allocator = options->allocator;
    return sc_kernels_create(&o, &cache->kernels);
}

sc_status sc_cache_kernels(const sc_cache *cache, sc_kernels **kernels_out)
{
    SC_REQUIRE(cache);
    SC_REQUIRE(kernels_out);
    if (!cache->kernels)
        return SC_FAIL(SC_ERR_UNSUPPORTED, "no kernel knows the states of this cache");
    *kernels_out = cache->kernels;
    return SC_OK;
}

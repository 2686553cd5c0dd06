/* SPDX-License-Identifier: Apache-2.0 */
#include "test_pool_util.h"

#include <string.h>

#include "base/error.h"

sc_schema *tiny_schema(void)
{
    static const sc_group group = {"gdn", 16};
    static const sc_part parts[TINY_PARTS] = {
        {.layer = 0, .kind = SC_PART_CONV, .dtype = SC_DTYPE_BF16, .dim_count = 2, .dims = {3, 10}},
        {.layer = 0, .kind = SC_PART_RECURRENT, .dtype = SC_DTYPE_F32, .dim_count = 3,
            .dims = {4, 5, 6}},
        {.layer = 1, .kind = SC_PART_CONV, .dtype = SC_DTYPE_BF16, .dim_count = 2,
            .dims = {3, 128}},
        {.layer = 1, .kind = SC_PART_CONV, .dtype = SC_DTYPE_BF16, .dim_count = 2, .dims = {3, 12},
            .index = 1},
        {.layer = 1, .kind = SC_PART_RECURRENT, .dtype = SC_DTYPE_F32, .dim_count = 3,
            .dims = {4, 5, 6}},
        {.layer = 3, .kind = SC_PART_CONV, .dtype = SC_DTYPE_BF16, .dim_count = 2, .dims = {3, 10}},
        {.layer = 3, .kind = SC_PART_RECURRENT, .dtype = SC_DTYPE_BF16, .dim_count = 3,
            .dims = {4, 5, 6}},
    };
    sc_schema_options options = SC_SCHEMA_OPTIONS_INIT;
    sc_schema *schema = NULL;
    options.model = "tiny";
    options.revision = "1";
    options.groups = &group;
    options.group_count = 1;
    options.parts = parts;
    options.part_count = TINY_PARTS;
    options.layer_count = 4;
    ck_assert_int_eq(sc_schema_create(&options, &schema), SC_OK);
    return schema;
}

sc_pool_options tiny_options(const sc_schema *schema, sc_layout layout, uint32_t slots)
{
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    options.schema = schema;
    options.layout = layout;
    options.slot_count = slots;
    return options;
}

sc_pool *tiny_pool(sc_layout layout, uint32_t slots)
{
    sc_schema *schema = tiny_schema();
    sc_pool_options options = tiny_options(schema, layout, slots);
    sc_pool *pool = NULL;
    ck_assert_int_eq(sc_pool_create(&options, &pool), SC_OK);
    sc_schema_release(schema); /* the pool has its own reference */
    return pool;
}

sc_pool_info info_of(const sc_pool *pool)
{
    sc_pool_info info;
    ck_assert_int_eq(sc_pool_info_get(pool, &info), SC_OK);
    return info;
}

void audit_ok(const sc_pool *pool)
{
    sc_status status = sc_pool_audit(pool, true);
    ck_assert_msg(status == SC_OK, "%s", sc_last_error()->text);
}

static struct faulty_backend *faulty_of(sc_backend *b)
{
    return (struct faulty_backend *)b; /* the first member */
}

static sc_status faulty_alloc(sc_backend *b, uint64_t bytes, struct sc_backend_memory *memory_out)
{
    struct faulty_backend *faulty = faulty_of(b);
    if (faulty->fail_alloc_at != 0 && --faulty->fail_alloc_at == 0) {
        return SC_FAIL(SC_ERR_NO_MEMORY, "planted");
    }
    sc_status status = sc_backend_host_ops.alloc(b, bytes, memory_out);
    if (status == SC_OK) faulty->live++;
    return status;
}

static void faulty_free(sc_backend *b, struct sc_backend_memory *memory)
{
    sc_backend_host_ops.free(b, memory);
    faulty_of(b)->live--;
}

static sc_status faulty_fill(sc_backend *b, sc_devptr dst, uint8_t value, uint64_t bytes,
    sc_stream *stream)
{
    struct faulty_backend *faulty = faulty_of(b);
    if (faulty->fail_fill_at != 0 && --faulty->fail_fill_at == 0) {
        return SC_FAIL(SC_ERR_DEVICE_LOST, "planted");
    }
    return sc_backend_host_ops.fill(b, dst, value, bytes, stream);
}

void faulty_init(struct faulty_backend *faulty)
{
    memset(faulty, 0, sizeof *faulty);
    faulty->ops = sc_backend_host_ops;
    faulty->ops.alloc = faulty_alloc;
    faulty->ops.free = faulty_free;
    faulty->ops.fill = faulty_fill;
    faulty->backend.ops = &faulty->ops;
    faulty->backend.name = "faulty";
    faulty->backend.host_memory = true;
}

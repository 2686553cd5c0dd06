/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the installed headers and library from C++: a schema, and one slot of a pool. */
#include <statecache/statecache.h>

#include <cstdint>
#include <cstdio>

int main()
{
    sc_schema *schema = nullptr;
    const char *name = sc_schema_preset_name(0);
    if (name == nullptr || sc_schema_preset(name, SC_DTYPE_F32, &schema) != SC_OK) {
        std::fprintf(stderr, "no preset: %s\n", sc_last_error()->text);
        return 1;
    }
    std::uint64_t bytes = 0;
    sc_status status = sc_schema_state_bytes(schema, nullptr, &bytes);
    std::printf("statecache %s: a state of %s has %llu bytes (%s)\n", sc_version(), name,
        static_cast<unsigned long long>(bytes), sc_status_name(status));
    sc_pool_options options = SC_POOL_OPTIONS_INIT;
    options.schema = schema;
    options.slot_count = 1;
    sc_pool *pool = nullptr;
    sc_slot slot = SC_SLOT_NULL;
    if (status == SC_OK) status = sc_pool_create(&options, &pool);
    if (status == SC_OK) status = sc_pool_alloc(pool, 1, SC_OWNER_WORKING, &slot);
    bool taken = status == SC_OK && slot.id != 0;
    if (taken) status = sc_pool_free(pool, &slot, 1);
    if (status == SC_OK) status = sc_pool_destroy(pool);
    sc_schema_release(schema);
    return status == SC_OK && taken && bytes > 0 ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* store verify, store gc. */
#include "ctl.h"

#define U(x) ((unsigned long long)(x))

/* Texts of faults are the library's own: no quotes in them. */
static void say(void *ctx, const struct sc_store_fault *fault)
{
    const struct ctl_options *options = ctx;
    if (options->json) (void)printf("{\"type\":\"fault\",");
    if (fault->id == SC_STORE_NO_PARENT) {
        (void)printf(options->json ? "\"id\":null," : "store: ");
    } else {
        (void)printf(options->json ? "\"id\":%u," : "record %u: ", fault->id);
    }
    (void)printf(options->json ? "\"text\":\"%s\"}\n" : "%s\n", fault->text);
}

int ctl_verify(const struct ctl_options *options, struct sc_store *store)
{
    struct sc_store_verify_result result;
    struct sc_store_stats stats;
    if (sc_store_stats_get(store, &stats) != SC_OK) return ctl_fail("verify", CTL_FAILED);
    /* `say` only reads the options. */
    if (sc_store_verify(store, !options->quick, say, (void *)(uintptr_t)options, &result) !=
        SC_OK) {
        return ctl_fail("verify", CTL_FAILED);
    }
    (void)printf(options->json ?
        "{\"type\":\"totals\",\"record_count\":%llu,\"edge_count\":%llu,\"payload_bytes\":%llu,"
        "\"fault_count\":%llu,\"dropped_at_open\":%llu}\n" :
        "%llu records, %llu edges, %llu bytes of payload read; %llu faults; "
        "%llu damaged records were dropped when the store was opened\n", U(result.record_count),
        U(result.edge_count), U(result.payload_bytes), U(result.fault_count),
        U(stats.reclaimed_count));
    return result.fault_count + stats.reclaimed_count > 0 ? CTL_FAULTS : CTL_OK;
}

int ctl_gc(const struct ctl_options *options, struct sc_store *store)
{
    struct sc_store_verify_result result;
    struct sc_store_gc gc;
    /* A verify first: it finds what gc drops. */
    if (sc_store_verify(store, true, NULL, NULL, &result) != SC_OK ||
        sc_store_gc(store, &gc) != SC_OK) {
        return ctl_fail("gc", CTL_FAILED);
    }
    (void)printf(options->json ?
        "{\"type\":\"gc\",\"dropped_count\":%llu,\"edge_count\":%llu,\"freed_bytes\":%llu,"
        "\"file_count\":%llu}\n" :
        "%llu records and %llu edges dropped, %llu bytes free again, %llu files given back\n",
        U(gc.dropped_count), U(gc.edge_count), U(gc.freed_bytes), U(gc.file_count));
    return CTL_OK;
}

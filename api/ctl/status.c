/* SPDX-License-Identifier: Apache-2.0 */
/* status: what a service says of itself. The figures are those of /v1/status
 * (docs/reference/metrics.md), as they come with --json, else as a page for people. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "ctl.h"
#include "statecache/client.h"

/* A number at a path of members, "slots.free"; 0: it is not there. */
static uint64_t number_at(const json_t *tree, const char *path)
{
    char name[40];
    while (tree && *path) {
        size_t count = strcspn(path, ".");
        if (count >= sizeof name) return 0;
        memcpy(name, path, count);
        name[count] = '\0';
        tree = json_object_get(tree, name);
        path += count + (path[count] == '.');
    }
    return (uint64_t)json_integer_value(tree);
}

static const char *text_at(const json_t *tree, const char *name)
{
    const char *text = json_string_value(json_object_get(tree, name));
    return text ? text : "";
}

/* What a service says may have been chosen by others: no control characters. */
static void print_text(const char *text)
{
    for (; *text != '\0'; text++) (void)putchar((unsigned char)*text < ' ' ? '?' : *text);
}

static void print_bytes(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit < sizeof units / sizeof units[0] - 1) {
        value /= 1024;
        unit++;
    }
    (void)printf(unit > 0 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

static void print_share(const char *what, uint64_t part, uint64_t whole)
{
    (void)printf("%s %" PRIu64 " of %" PRIu64, what, part, whole);
    if (whole > 0) (void)printf(" (%.1f %%)", 100 * (double)part / (double)whole);
}

static void print_head(const json_t *tree)
{
    uint64_t up = number_at(tree, "uptime_s");
    const json_t *problem;
    size_t i;
    print_text(text_at(tree, "model"));
    (void)printf(", rank %" PRIu64 " of %" PRIu64 ", statecached ", number_at(tree,
        "shard.tp_rank"), number_at(tree, "shard.tp_size"));
    print_text(text_at(tree, "server"));
    (void)printf(", up %" PRIu64 " d %02" PRIu64 ":%02" PRIu64 ":%02" PRIu64 "\n", up / 86400,
        up / 3600 % 24, up / 60 % 60, up % 60);
    json_array_foreach(json_object_get(tree, "problems"), i, problem) {
        (void)printf("problem     ");
        print_text(json_string_value(problem));
        (void)printf("\n");
    }
}

static void print_counts(const json_t *object, const char *what)
{
    const char *name;
    json_t *value;
    bool begun = false;
    json_object_foreach((json_t *)(uintptr_t)object, name, value) {
        if (json_integer_value(value) == 0) continue;
        if (!begun) (void)printf("%s", what);
        begun = true;
        (void)printf("  %s %" JSON_INTEGER_FORMAT, name, json_integer_value(value));
    }
    if (begun) (void)printf("\n");
}

static void print_state(const json_t *tree)
{
    (void)printf("slots       %" PRIu64 " of ", number_at(tree, "slots.count"));
    print_bytes(number_at(tree, "slots.bytes_each"));
    (void)printf(": %" PRIu64 " free, %" PRIu64 " evictable, %" PRIu64 " leased, %" PRIu64
        " working, %" PRIu64 " in flight, %" PRIu64 " draining\n", number_at(tree, "slots.free"),
        number_at(tree, "slots.evictable"), number_at(tree, "slots.leased"),
        number_at(tree, "slots.working"), number_at(tree, "slots.in_flight"),
        number_at(tree, "slots.draining"));
    (void)printf("index       %" PRIu64 " states, %" PRIu64 " tokens, %" PRIu64 " nodes\n",
        number_at(tree, "cache.snapshots_alive"), number_at(tree, "cache.tokens_cached"),
        number_at(tree, "cache.nodes"));
    print_share("hits        states", number_at(tree, "hits.states_hit"),
        number_at(tree, "hits.states_asked"));
    print_share(", tokens", number_at(tree, "hits.tokens_hit"),
        number_at(tree, "hits.tokens_asked"));
    (void)printf("\n");
    print_counts(json_object_get(json_object_get(tree, "hits"), "missed"), "missed    ");
    print_counts(json_object_get(json_object_get(tree, "hits"), "failed"), "failed    ");
    print_counts(json_object_get(tree, "evictions"), "evictions ");
    (void)printf("writes      %" PRIu64 " stored, %" PRIu64 " were there, %" PRIu64 " refused\n",
        number_at(tree, "service.written"), number_at(tree, "service.write_exists"),
        number_at(tree, "service.write_refused"));
}

static void print_tiers(const json_t *tree)
{
    const json_t *tier;
    size_t i;
    json_array_foreach(json_object_get(tree, "tiers"), i, tier) {
        (void)printf("tier        %-7s", text_at(tier, "tier"));
        print_bytes(number_at(tier, "bytes"));
        (void)printf(" of ");
        print_bytes(number_at(tier, "bytes_max"));
        (void)printf(", %" PRIu64 " hits", number_at(tier, "hits"));
        if (strcmp(text_at(tier, "tier"), "device") != 0) {
            (void)printf(", restore %" PRIu64 " us, store %" PRIu64 " us on average, %" PRIu64
                " dropped, %" PRIu64 " refused, %" PRIu64 " I/O errors",
                number_at(tier, "restore_mean_us"), number_at(tier, "store_mean_us"),
                number_at(tier, "dropped"), number_at(tier, "refused"),
                number_at(tier, "io_errors"));
        }
        (void)printf("\n");
    }
    if (!json_object_get(tree, "wear")) return;
    (void)printf("wear        ");
    print_bytes(number_at(tree, "wear.today_bytes"));
    (void)printf(" written to disk today");
    if (number_at(tree, "wear.day_bytes_max") > 0) {
        (void)printf(" of ");
        print_bytes(number_at(tree, "wear.day_bytes_max"));
    }
    (void)printf(", ");
    print_bytes(number_at(tree, "wear.written_bytes"));
    (void)printf(" ever\n");
}

static void print_requests(const json_t *tree)
{
    const char *name;
    json_t *method, *requests = json_object_get(tree, "requests");
    if (json_object_size(requests) > 0) {
        (void)printf("\n%-14s %12s %10s %12s %12s\n", "method", "requests", "mean us", "half below",
            "99 % below");
    }
    json_object_foreach(requests, name, method) {
        (void)printf("%-14s %12" PRIu64 " %10" PRIu64 " %12" PRIu64 " %12" PRIu64, name,
            number_at(method, "count"), number_at(method, "mean_us"),
            number_at(method, "p50_us_max"), number_at(method, "p99_us_max"));
        print_counts(json_object_get(method, "errors"), "  ");
        if (json_object_size(json_object_get(method, "errors")) == 0) (void)printf("\n");
    }
}

static void print_clients(const json_t *tree)
{
    const json_t *each;
    size_t i;
    (void)printf("\nclients     %" PRIu64 " connected, %" PRIu64 " ever, %" PRIu64
        " refused; %" PRIu64 " leases, pins and writes open\n", number_at(tree, "service.clients"),
        number_at(tree, "service.connections"), number_at(tree, "service.refused"),
        number_at(tree, "service.leases_open"));
    json_array_foreach(json_object_get(tree, "connections"), i, each) {
        (void)printf("  client %" PRIu64 " %s", number_at(each, "client"),
            json_is_true(json_object_get(each, "local")) ? "socket" : "tcp");
        if (json_object_get(each, "uid")) (void)printf(" uid %" PRIu64, number_at(each, "uid"));
        if (text_at(each, "tenant")[0]) (void)printf(" tenant ");
        print_text(text_at(each, "tenant"));
        (void)printf(", %" PRIu64 " s, %" PRIu64 " leases, %" PRIu64 " writes, %" PRIu64
            " calls under way\n", number_at(each, "age_s"), number_at(each, "leases"),
            number_at(each, "writes"), number_at(each, "calls"));
    }
    if (number_at(tree, "connections_more") > 0) {
        (void)printf("  and %" PRIu64 " more\n", number_at(tree, "connections_more"));
    }
    json_array_foreach(json_object_get(tree, "tenants"), i, each) {
        (void)printf("  tenant ");
        print_text(text_at(each, "tenant"));
        (void)printf(": ");
        print_bytes(number_at(each, "bytes"));
        if (number_at(each, "bytes_max") > 0) {
            (void)printf(" of ");
            print_bytes(number_at(each, "bytes_max"));
        }
        (void)printf(", %" PRIu64 " leases, %" PRIu64 " writes refused\n",
            number_at(each, "leases"), number_at(each, "refused"));
    }
    if (number_at(tree, "tenants_more") > 0) {
        (void)printf("  and %" PRIu64 " more\n", number_at(tree, "tenants_more"));
    }
}

static int print_page(const char *text)
{
    json_t *tree = json_loads(text, 0, NULL);
    if (!tree) {
        (void)fprintf(stderr, "statecachectl: the service's answer is no JSON\n");
        return CTL_FAILED;
    }
    print_head(tree);
    print_state(tree);
    print_tiers(tree);
    print_requests(tree);
    print_clients(tree);
    int code = json_array_size(json_object_get(tree, "problems")) > 0 ? CTL_FAULTS : CTL_OK;
    json_decref(tree);
    return code;
}

int ctl_status(int argc, char **argv)
{
    struct ctl_service service = {.json = false};
    struct sc_client *client = NULL;
    char *text = NULL;
    int code = CTL_OK;
    for (int i = 2; i < argc; i++) {
        if (!ctl_service_option(&service, argc, argv, &i, &code)) {
            return ctl_usage("unknown word", argv[i]);
        }
        if (code != CTL_OK) return code;
    }
    code = ctl_service_open(&service, &client);
    if (code != CTL_OK) return code;
    if (sc_client_status(client, &text) != SC_OK) {
        code = ctl_service_fail("status");
    } else if (service.json) {
        (void)printf("%s\n", text);
    } else {
        code = print_page(text);
    }
    sc_client_free(text);
    sc_client_close(client);
    return code;
}

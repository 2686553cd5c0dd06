/* SPDX-License-Identifier: Apache-2.0 */
/* A statecached as the remote tier of caches in two processes: what one stores the other resumes,
 * bit for bit; a service that is gone is a miss with a reason, and one that comes back is used. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sc_assert.h"
#include "statecache/client.h"
#include "statecache/statecache.h"
#include "support/check_main.h"

enum { LEN = 32, PROMPTS = 6 };

static char folder[64], address[96];
static pid_t service;

/* The libraries show their public symbols only; the clock needs one of its own. */
void sc_assert_fail(const char *expr, const char *file, int line, const char *function)
{
    (void)fprintf(stderr, "%s:%d: %s: assertion failed: %s\n", file, line, function, expr);
    abort();
}

/* ---- the service ---- */

static void path_of(const char *name, char *path, size_t bytes)
{
    (void)snprintf(path, bytes, "%s/%s", folder, name);
}

static void start_service(void)
{
    char config[160], log[160], line[1024];
    bool ready = false;
    path_of("conf", config, sizeof config);
    path_of("log", log, sizeof log);
    (void)unlink(log);
    service = fork();
    ck_assert_int_ge(service, 0);
    if (service == 0) {
        int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        (void)dup2(out, STDERR_FILENO);
        (void)execl(SC_STATECACHED, "statecached", "--config", config, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 2000 && !ready; i++) {
        FILE *in = fopen(log, "r");
        while (in && fgets(line, sizeof line, in)) ready |= strstr(line, "service.ready") != NULL;
        if (in) (void)fclose(in);
        if (!ready) (void)usleep(10000);
    }
    ck_assert_msg(ready, "the service did not start");
}

static void stop_service(void)
{
    int status = 0;
    ck_assert_int_eq(kill(service, SIGTERM), 0);
    ck_assert_int_eq(waitpid(service, &status, 0), service);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void write_config(const char *more)
{
    char path[160];
    path_of("conf", path, sizeof path);
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    /* The state's parts leave a gap between them in the service's file. */
    (void)fprintf(out, "socket = %s/socket\nmodel = tiny\ngroup = gdn 16\n"
        "part = 0 conv bf16 3x24 gdn\npart = 1 recurrent f32 2x16x16 gdn\nslots = 16\n"
        "disk_folder = %s/store\ndisk_bytes = 8MiB\ndisk_file_bytes = 4MiB\n%s", folder, folder,
        more);
    ck_assert_int_eq(fclose(out), 0);
}

static void setup(void)
{
    const char *base = getenv("TMPDIR");
    if (!base || strlen(base) > 40) base = "/tmp";
    (void)snprintf(folder, sizeof folder, "%s/sc-XXXXXX", base);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(address, sizeof address, "unix:%s/socket", folder);
    write_config("");
    start_service();
}

static void teardown(void)
{
    char command[128];
    stop_service();
    (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

/* ---- an engine ---- */

struct engine {
    sc_schema *schema;
    sc_pool *pool;
    sc_remote remote;
    sc_tiers *tiers;
    sc_cache *cache;
    sc_namespace ns;
    sc_step step;
};

#define ok(call) ck_assert_msg((call) == SC_OK, "%s: %s", #call, sc_last_error()->text)

static sc_client_options options_of(const char *tenant)
{
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    options.address = address;
    options.tenant = tenant;
    options.timeout_ms = 20000;
    return options;
}

static void open_pool(struct engine *e, sc_layout layout)
{
    const sc_group group = {"gdn", 16};
    const sc_part parts[2] = {
        {.layer = 0, .kind = SC_PART_CONV, .dtype = SC_DTYPE_BF16, .dim_count = 2, .dims = {3, 24}},
        {.layer = 1, .kind = SC_PART_RECURRENT, .dtype = SC_DTYPE_F32, .dim_count = 3,
            .dims = {2, 16, 16}}};
    sc_schema_options schema = SC_SCHEMA_OPTIONS_INIT;
    sc_pool_options pool = SC_POOL_OPTIONS_INIT;
    schema.model = "tiny";
    schema.revision = "preset";
    schema.groups = &group;
    schema.group_count = 1;
    schema.parts = parts;
    schema.part_count = schema.layer_count = 2;
    ok(sc_schema_create(&schema, &e->schema));
    pool.schema = e->schema;
    pool.slot_count = 6;
    pool.layout = layout;
    ok(sc_pool_create(&pool, &e->pool));
}

static void engine_open(struct engine *e, const char *tenant, sc_layout layout, uint32_t write)
{
    sc_client_options where = options_of(tenant);
    sc_tiers_options tiers = SC_TIERS_OPTIONS_INIT;
    sc_cache_options cache = SC_CACHE_OPTIONS_INIT;
    memset(e, 0, sizeof *e);
    open_pool(e, layout);
    ck_assert_msg(sc_client_remote_open(&where, &e->remote) == SC_OK, "%s",
        sc_client_last_error()->text);
    tiers.remote.bytes = 1 << 30;
    tiers.remote.write = write;
    tiers.remote_calls = &e->remote;
    ok(sc_tiers_create(&tiers, &e->tiers));
    cache.pool = e->pool;
    cache.page_tokens = 16;
    cache.without_kv = true;
    cache.tiers = e->tiers;
    ok(sc_cache_create(&cache, &e->cache));
    ok(sc_namespace_open(e->cache, NULL, 5, 1, &e->ns));
}

static void engine_close(struct engine *e)
{
    ok(sc_cache_verify(e->cache));
    ok(sc_cache_destroy(e->cache));
    ok(sc_tiers_destroy(e->tiers));
    sc_client_remote_close(&e->remote);
    ok(sc_pool_destroy(e->pool));
    sc_schema_release(e->schema);
}

static void settle(struct engine *e)
{
    sc_cache_stats stats = {.struct_size = sizeof stats};
    do {
        sc_done done[8];
        uint32_t count = 0;
        ok(sc_cache_poll(e->cache, done, 8, &count));
        ok(sc_cache_apply(e->cache, done, count, 0));
        if (count == 0) (void)usleep(500);
        ok(sc_cache_stats_get(e->cache, &stats));
    } while (stats.transfers_alive > 0);
}

static void tokens_of(uint32_t prompt, int32_t tokens[LEN + 1])
{
    for (int32_t i = 0; i <= LEN; i++) tokens[i] = (int32_t)prompt * 1000 + i;
}

/* Every byte of a state follows from its prompt. */
static void visit(const struct engine *e, int32_t slot, uint32_t prompt, bool write)
{
    for (uint32_t i = 0; i < 2; i++) {
        sc_layer_view view;
        sc_part part;
        ok(sc_pool_part_view(e->pool, i, &view, &part));
        uint8_t *bytes = (uint8_t *)(uintptr_t)view.base + slot * view.slot_stride;
        for (uint64_t b = 0; b < view.bytes; b++) {
            uint8_t value = (uint8_t)(prompt * 37 + i * 11 + b * 7 + b / 256);
            if (write) bytes[b] = value;
            if (!write) ck_assert_uint_eq(bytes[b], value);
        }
    }
}

/* One request: what it resumed, and why not more. */
static uint32_t serve(struct engine *e, uint32_t prompt, uint32_t count, sc_reason *reason_out)
{
    int32_t tokens[LEN + 1];
    tokens_of(prompt, tokens);
    sc_request request = {.key = {.ns = e->ns, .tokens = tokens, .token_count = count}};
    sc_lease lease;
    sc_lease_info info;
    sc_status each;
    sc_batch batch;
    ok(sc_cache_acquire(e->cache, &request, 1, 0, &lease, &each));
    ok(each);
    settle(e);
    ok(sc_lease_info_get(e->cache, lease, &info));
    ck_assert_int_eq(info.state, SC_LEASE_READY);
    if (reason_out) *reason_out = info.reason;
    if (info.resume_len > 0) visit(e, info.source_slot, prompt, false);
    if (count == LEN && info.resume_len < LEN) {
        sc_row row = {.lease = lease, .from = info.resume_len, .to = LEN};
        ok(sc_step_plan(e->cache, ++e->step, &row, 1, 0, &batch, &each));
        ok(each);
        visit(e, batch.block[batch.at_dest], prompt, true);
        sc_result result = {.lease = lease, .len = LEN};
        ok(sc_step_commit(e->cache, e->step, &result, 1, &each));
        ok(sc_lease_release(e->cache, lease, 0, SC_RELEASE_KEEP));
    } else {
        ok(sc_lease_release(e->cache, lease, 0, SC_RELEASE_DISCARD));
    }
    settle(e);
    return info.resume_len;
}

/* Asks the service for a prompt, and remembers what it has. */
static uint32_t learn(struct engine *e, uint32_t prompt, sc_status expected)
{
    int32_t tokens[LEN + 1];
    tokens_of(prompt, tokens);
    sc_find find = {.key = {.ns = e->ns, .tokens = tokens, .token_count = LEN + 1}};
    ok(sc_cache_find(e->cache, &find, 1));
    ck_assert_int_eq(find.status, expected);
    ok(sc_cache_learn(e->cache, &find, 1, 0));
    return find.len;
}

/* Another process computes all prompts, and stores them. */
static void store_elsewhere(const char *tenant)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        struct engine e;
        sc_cache_stats stats = {.struct_size = sizeof stats};
        engine_open(&e, tenant, SC_LAYOUT_CONTIGUOUS, SC_TIER_WRITE_THROUGH);
        for (uint32_t i = 0; i < PROMPTS; i++) (void)serve(&e, i, LEN, NULL);
        ok(sc_cache_stats_get(e.cache, &stats));
        ck_assert_uint_eq(stats.tier_stored[SC_TIER_REMOTE], PROMPTS);
        engine_close(&e);
        exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
}

START_TEST(remote__two_processes_share_states_bit_for_bit)
{
    struct engine e;
    store_elsewhere(NULL);
    engine_open(&e, NULL, SC_LAYOUT_PAGE_MAJOR, SC_TIER_WRITE_BACK);
    ck_assert_uint_eq(serve(&e, 0, LEN + 1, NULL), 0); /* it knows of nothing */
    for (uint32_t i = 0; i < PROMPTS; i++) {
        ck_assert_uint_eq(learn(&e, i, SC_OK), LEN);
        ck_assert_uint_eq(serve(&e, i, LEN + 1, NULL), LEN);
    }
    ck_assert_uint_eq(learn(&e, PROMPTS, SC_OK), 0);
    engine_close(&e);
}
END_TEST

START_TEST(remote__tenants_are_apart)
{
    struct engine e;
    store_elsewhere("a");
    engine_open(&e, "b", SC_LAYOUT_CONTIGUOUS, SC_TIER_WRITE_BACK);
    ck_assert_uint_eq(learn(&e, 0, SC_OK), 0);
    engine_close(&e);
    engine_open(&e, "a", SC_LAYOUT_CONTIGUOUS, SC_TIER_WRITE_BACK);
    ck_assert_uint_eq(learn(&e, 0, SC_OK), LEN);
    ck_assert_uint_eq(serve(&e, 0, LEN + 1, NULL), LEN);
    engine_close(&e);
}
END_TEST

/* What was stored is in the service's disk tier, and is found when it is there again. */
START_TEST(remote__a_service_that_is_gone_is_a_miss_and_comes_back)
{
    struct engine e;
    sc_reason reason = SC_REASON_NONE;
    store_elsewhere(NULL);
    engine_open(&e, NULL, SC_LAYOUT_CONTIGUOUS, SC_TIER_WRITE_THROUGH);
    ck_assert_uint_eq(learn(&e, 0, SC_OK), LEN);
    ck_assert_uint_eq(learn(&e, 1, SC_OK), LEN);
    stop_service();
    ck_assert_uint_eq(serve(&e, 0, LEN + 1, &reason), 0);
    ck_assert_int_eq(reason, SC_REASON_TIER_FAILED);
    ck_assert_uint_eq(learn(&e, 2, SC_ERR_CLOSED), 0);
    (void)serve(&e, 10, LEN, NULL); /* its store fails; it is on the device all the same */
    ck_assert_uint_eq(serve(&e, 10, LEN + 1, NULL), LEN);
    ok(sc_cache_verify(e.cache));
    start_service();
    (void)usleep(1100000); /* so long it is not tried again */
    ck_assert_uint_eq(serve(&e, 1, LEN + 1, &reason), LEN);
    ck_assert_uint_eq(learn(&e, 2, SC_OK), LEN);
    ck_assert_uint_eq(serve(&e, 2, LEN + 1, NULL), LEN);
    engine_close(&e);
}
END_TEST

/* One that hangs costs its time-out once, and not each of those who ask. */
START_TEST(remote__a_service_that_hangs_is_not_waited_for_twice)
{
    sc_client_options options = options_of(NULL);
    int32_t tokens[LEN + 1];
    uint32_t len = 7;
    sc_remote remote;
    tokens_of(0, tokens);
    const sc_remote_key key = {.tokens = tokens, .token_count = LEN + 1, .len_max = LEN};
    options.timeout_ms = 1500;
    ck_assert_int_eq(sc_client_remote_open(&options, &remote), SC_OK);
    ck_assert_int_eq(kill(service, SIGSTOP), 0);
    ck_assert_int_eq(remote.find(remote.ctx, &key, 1, &len), SC_ERR_CLOSED);
    uint64_t start_ns = sc_clock_now_ns();
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_int_eq(remote.find(remote.ctx, &key, 1, &len), SC_ERR_CLOSED);
    }
    uint64_t took_ns = sc_clock_now_ns() - start_ns;
    ck_assert_int_eq(kill(service, SIGCONT), 0);
    ck_assert_uint_lt(took_ns, UINT64_C(900000000));
    (void)usleep(1100000);
    ck_assert_int_eq(remote.find(remote.ctx, &key, 1, &len), SC_OK);
    ck_assert_uint_eq(len, 0);
    sc_client_remote_close(&remote);
}
END_TEST

START_TEST(sc_client_remote__refuses_null_and_others)
{
    sc_remote remote = SC_REMOTE_INIT;
    sc_client_options options = options_of(NULL);
    const sc_fingerprint other = {{9}};
    ck_assert_int_eq(sc_client_remote_open(NULL, &remote), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_remote_open(&options, NULL), SC_ERR_INVALID);
    options.struct_size = 3;
    ck_assert_int_eq(sc_client_remote_open(&options, &remote), SC_ERR_INVALID);
    options = options_of(NULL);
    options.address = "unix:/nowhere/at/all";
    ck_assert_int_eq(sc_client_remote_open(&options, &remote), SC_ERR_NOT_FOUND);
    options = options_of(NULL);
    options.fingerprint = &other;
    ck_assert_int_eq(sc_client_remote_open(&options, &remote), SC_ERR_MISMATCH);
    ck_assert_ptr_null(remote.ctx);
    sc_client_remote_close(NULL); /* refuse nothing: both are allowed */
    sc_client_remote_close(&remote);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("remote");
    TCase *tcase = tcase_create("remote");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, remote__two_processes_share_states_bit_for_bit);
    tcase_add_test(tcase, remote__tenants_are_apart);
    tcase_add_test(tcase, remote__a_service_that_is_gone_is_a_miss_and_comes_back);
    tcase_add_test(tcase, remote__a_service_that_hangs_is_not_waited_for_twice);
    tcase_add_test(tcase, sc_client_remote__refuses_null_and_others);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* sc_client_*: with a statecached that this program starts (SC_STATECACHED, given at build). */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "statecache/client.h"
#include "support/check_main.h"

static char folder[64], address[96], tcp_address[96];
static pid_t service;

static void write_file(const char *name, const char *text)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_ge(fputs(text, out), 0);
    ck_assert_int_eq(fclose(out), 0);
}

/* Waits for the line that says where it listens. */
static void wait_ready(const char *log)
{
    char line[1024];
    for (int i = 0; i < 2000; i++) {
        FILE *in = fopen(log, "r");
        while (in && fgets(line, sizeof line, in)) {
            char *tcp = strstr(line, " tcp=");
            if (!strstr(line, "service.ready") || !tcp || !strchr(line, '\n')) continue;
            (void)snprintf(tcp_address, sizeof tcp_address, "tcp:%.*s",
                (int)strcspn(tcp + 5, "\n"), tcp + 5);
            (void)fclose(in);
            return;
        }
        if (in) (void)fclose(in);
        (void)usleep(10000);
    }
    ck_abort_msg("the service did not start");
}

static void start_service(void)
{
    char path[128], log[128];
    (void)snprintf(path, sizeof path, "%s/conf", folder);
    (void)snprintf(log, sizeof log, "%s/log", folder);
    (void)unlink(log); /* of an earlier run: it says that it is ready */
    service = fork();
    ck_assert_int_ge(service, 0);
    if (service == 0) {
        int out = open(log, O_WRONLY | O_CREAT, 0600);
        (void)dup2(out, 2);
        (void)execl(SC_STATECACHED, "statecached", "--config", path, (char *)NULL);
        _exit(127);
    }
    wait_ready(log);
}

static void stop_service(void)
{
    int status = 0;
    ck_assert_int_eq(kill(service, SIGTERM), 0);
    ck_assert_int_eq(waitpid(service, &status, 0), service);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    (void)snprintf(tcp_address, sizeof tcp_address, "none");
}

/* `more`: lines of the configuration. */
static void configure(const char *more)
{
    char config[512];
    (void)snprintf(config, sizeof config,
        "socket = %s/socket\nlisten = 127.0.0.1:0\ntoken_file = %s/token\nmodel = tiny\n"
        "group = gdn 16\npart = 0 conv bf16 3x64 gdn\npart = 0 recurrent f32 2x16x16 gdn\n"
        "slots = 16\npolicy = lru\nclient_writes = 2\n%s", folder, folder, more);
    write_file("conf", config);
}

static void setup(void)
{
    const char *base = getenv("TMPDIR");
    if (!base || strlen(base) > 40) base = "/tmp";
    (void)snprintf(folder, sizeof folder, "%s/sc-XXXXXX", base);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(address, sizeof address, "unix:%s/socket", folder);
    configure("");
    write_file("token", "correct horse battery\n");
    start_service();
}

static void teardown(void)
{
    char path[128];
    stop_service();
    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder,
            (const char *[]){"conf", "token", "log"}[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

static sc_client *open_client(bool tcp)
{
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    sc_client *client = NULL;
    options.address = tcp ? tcp_address : address;
    options.token = tcp ? "correct horse battery" : NULL;
    ck_assert_msg(sc_client_open(&options, &client) == SC_OK, "%s", sc_client_last_error()->text);
    return client;
}

static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};

static void write_state(sc_client *client, uint32_t count, uint8_t fill)
{
    const sc_client_key key = {.tokens = tokens, .token_count = count};
    sc_client_write write;
    bool stored = false;
    ck_assert_int_eq(sc_client_write_begin(client, &key, &write), SC_OK);
    ck_assert_uint_eq(write.bytes, 4096);
    memset(write.data, fill, write.bytes);
    ck_assert_msg(sc_client_write_commit(client, &write, &stored) == SC_OK, "%s",
        sc_client_last_error()->text);
    ck_assert(stored && write.write == 0 && write.data == NULL);
}

/* What one has written the other maps, bit for bit, and again after the writer has gone. */
static void share(bool writer_tcp, bool reader_tcp)
{
    sc_client *writer = open_client(writer_tcp), *reader = open_client(reader_tcp);
    const sc_client_key keys[2] = {{.tokens = tokens, .token_count = 8},
        {.tokens = tokens + 1, .token_count = 7}};
    sc_client_state states[2];
    sc_status each[2];
    sc_answer answers[2];
    write_state(writer, 5, 0x5a);
    sc_client_close(writer);
    ck_assert_int_eq(sc_client_lookup(reader, keys, 2, answers), SC_OK);
    ck_assert(answers[0].state_len[SC_TIER_DEVICE] == 5 && answers[0].status == SC_OK);
    ck_assert(answers[1].state_len[SC_TIER_DEVICE] == 0);
    ck_assert_int_eq(answers[1].reason, SC_REASON_NO_PREFIX);
    ck_assert_int_eq(sc_client_acquire(reader, keys, 2, 0, states, each), SC_OK);
    ck_assert(each[0] == SC_OK && states[0].len == 5 && states[0].bytes == 4096);
    ck_assert(each[1] == SC_OK && states[1].len == 0 && !states[1].data && states[1].lease == 0);
    for (uint64_t i = 0; i < states[0].bytes; i++) {
        ck_assert_uint_eq(((const uint8_t *)states[0].data)[i], 0x5a);
    }
    ck_assert_int_eq(sc_client_release(reader, states, 2), SC_OK);
    ck_assert(states[0].lease == 0 && !states[0].data);
    sc_client_close(reader);
}

START_TEST(share__by_files)
{
    share(false, false);
}
END_TEST

START_TEST(share__by_bytes)
{
    share(true, true);
}
END_TEST

START_TEST(share__written_by_bytes_and_read_by_file)
{
    share(true, false);
}
END_TEST

START_TEST(info__says_what_hello_and_schema_said)
{
    sc_client *client = open_client(false);
    sc_client_info info = {.struct_size = sizeof info};
    sc_client_part parts[2];
    uint32_t count = 0;
    ck_assert_int_eq(sc_client_info_get(client, &info), SC_OK);
    ck_assert(info.files && info.file_bytes == 4096 && info.state_bytes == 2432);
    ck_assert_str_eq(info.model, "tiny");
    ck_assert_int_eq(sc_client_parts(client, NULL, 0, &count), SC_ERR_LIMIT);
    ck_assert_uint_eq(count, 2);
    ck_assert_int_eq(sc_client_parts(client, parts, 2, &count), SC_OK);
    ck_assert(parts[1].kind == SC_PART_RECURRENT && parts[1].dims[2] == 16);
    ck_assert_uint_eq(parts[1].offset, 512);
    sc_client_close(client);
}
END_TEST

START_TEST(errors__of_the_service_arrive_with_their_text)
{
    sc_client *client = open_client(false);
    const sc_client_key key = {.tokens = tokens, .token_count = 8, .tenant = ""};
    sc_client_key many = key;
    sc_client_write writes[3];
    many.token_count = 1;
    for (int i = 0; i < 2; i++) {
        many.token_count = (uint32_t)i + 1;
        ck_assert_int_eq(sc_client_write_begin(client, &many, &writes[i]), SC_OK);
    }
    many.token_count = 3;
    ck_assert_int_eq(sc_client_write_begin(client, &many, &writes[2]), SC_ERR_AGAIN);
    ck_assert_ptr_nonnull(strstr(sc_client_last_error()->text, "client_writes"));
    ck_assert_int_eq(sc_client_write_abort(client, &writes[0]), SC_OK);
    ck_assert_int_eq(sc_client_write_abort(client, &writes[0]), SC_ERR_STALE);
    ck_assert_int_eq(sc_client_write_commit(client, &writes[1], NULL), SC_OK);
    /* It is there: nothing to write. */
    many.token_count = 2;
    ck_assert_int_eq(sc_client_write_begin(client, &many, &writes[1]), SC_OK);
    ck_assert(writes[1].write == 0 && !writes[1].data);
    sc_client_close(client);
}
END_TEST

START_TEST(pin__keeps_a_state_from_eviction)
{
    sc_client *client = open_client(false);
    const sc_client_key key = {.tokens = tokens, .token_count = 8};
    sc_client_state state;
    uint32_t got = 7;
    write_state(client, 5, 1);
    ck_assert_int_eq(sc_client_pin(client, &key, 0, false, &state), SC_OK);
    ck_assert(state.lease != 0 && state.len == 5 && !state.data);
    ck_assert_int_eq(sc_client_evict(client, 10, &got), SC_OK);
    ck_assert_uint_eq(got, 0);
    ck_assert_int_eq(sc_client_release(client, &state, 1), SC_OK);
    ck_assert_int_eq(sc_client_evict(client, 10, &got), SC_OK);
    ck_assert_uint_ge(got, 1);
    ck_assert_int_eq(sc_client_pin(client, &key, 0, false, &state), SC_OK);
    ck_assert(state.lease == 0 && state.len == 0);
    ck_assert_int_eq(sc_client_pin(client, &key, 0, true, &state), SC_ERR_INVALID);
    sc_client_close(client);
}
END_TEST

START_TEST(quota__is_read_and_set)
{
    sc_client *client = open_client(false);
    const sc_client_key key = {.tokens = tokens, .token_count = 8, .tenant = "a"};
    sc_client_quota quota;
    sc_client_write write;
    ck_assert_int_eq(sc_client_quota_set(client, "a", 4096), SC_OK);
    ck_assert_int_eq(sc_client_write_begin(client, &key, &write), SC_OK);
    ck_assert_int_eq(sc_client_write_commit(client, &write, NULL), SC_OK);
    ck_assert_int_eq(sc_client_quota_get(client, "a", &quota), SC_OK);
    ck_assert(quota.bytes == 4096 && quota.bytes_max == 4096 && quota.refused == 0);
    const sc_client_key more = {.tokens = tokens, .token_count = 7, .tenant = "a"};
    ck_assert_int_eq(sc_client_write_begin(client, &more, &write), SC_ERR_LIMIT);
    ck_assert_int_eq(sc_client_common(client, &more, false), SC_OK);
    ck_assert_int_eq(sc_client_common(client, &more, true), SC_OK);
    ck_assert_int_eq(sc_client_common(client, &more, true), SC_ERR_NOT_FOUND);
    sc_client_close(client);
}
END_TEST

START_TEST(call__any_method_by_name)
{
    sc_client *client = open_client(false);
    void *result = NULL;
    size_t bytes = 0;
    ck_assert_int_eq(sc_client_call(client, "status", NULL, 0, &result, &bytes), SC_OK);
    ck_assert(bytes > 100 && *(uint8_t *)result == 0xde); /* a map of more than fifteen */
    sc_client_free(result);
    ck_assert_int_eq(sc_client_call(client, "nothing", NULL, 0, &result, &bytes),
        SC_ERR_NOT_FOUND);
    sc_client_close(client);
}
END_TEST

START_TEST(status__is_json_of_the_service)
{
    sc_client *client = open_client(false);
    char *text = NULL;
    write_state(client, 5, 0x5a);
    ck_assert_int_eq(sc_client_status(client, &text), SC_OK);
    ck_assert(strncmp(text, "{\"server\":\"", 11) == 0 && text[strlen(text) - 1] == '}');
    ck_assert_ptr_nonnull(strstr(text, "\"model\":\"tiny\""));
    ck_assert_ptr_nonnull(strstr(text, "\"written\":1,"));
    sc_client_free(text);
    sc_client_close(client);
}
END_TEST

START_TEST(status__counts_what_is_back_apart)
{
    sc_client *client = open_client(false);
    const sc_client_key keys[2] = {{.tokens = tokens, .token_count = 8},
        {.tokens = tokens, .token_count = 5, .flags = SC_REQUEST_AGAIN}};
    sc_client_state states[2];
    sc_status each[2];
    char *text = NULL;
    ck_assert_int_eq(sc_client_acquire(client, keys, 2, 0, states, each), SC_OK);
    ck_assert(each[0] == SC_OK && each[1] == SC_OK);
    ck_assert_int_eq(sc_client_status(client, &text), SC_OK);
    ck_assert_msg(strstr(text, "\"tokens_asked\":8,") && strstr(text, "\"tokens_again\":5,"), "%s",
        text);
    sc_client_free(text);
    ck_assert_int_eq(sc_client_release(client, states, 2), SC_OK);
    sc_client_close(client);
}
END_TEST

START_TEST(status__refuses_null)
{
    sc_client *client = open_client(false);
    char *text = NULL;
    ck_assert_int_eq(sc_client_status(NULL, &text), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_status(client, NULL), SC_ERR_INVALID);
    sc_client_close(client);
}
END_TEST

START_TEST(closed__a_service_that_ended_is_said_for_ever)
{
    sc_client *client = open_client(false);
    const sc_client_key key = {.tokens = tokens, .token_count = 8};
    sc_answer answer;
    teardown();
    ck_assert_int_eq(sc_client_lookup(client, &key, 1, &answer), SC_ERR_CLOSED);
    ck_assert_int_eq(sc_client_lookup(client, &key, 1, &answer), SC_ERR_CLOSED);
    sc_client_close(client);
    setup();
}
END_TEST

static void fill(const sc_client_write *write, uint8_t byte)
{
    memset(write->data, byte, write->bytes);
}

static sc_status acquire_one(sc_client *client, sc_client_state *state)
{
    const sc_client_key key = {.tokens = tokens, .token_count = 8};
    sc_status each = SC_OK, status = sc_client_acquire(client, &key, 1, 0, state, &each);
    return status == SC_OK ? each : status;
}

START_TEST(reconnect__tells_what_was_lost_and_goes_on)
{
    sc_client *client = open_client(_i == 1);
    const sc_client_key key = {.tokens = tokens, .token_count = 6};
    sc_client_state held, again, pinned;
    sc_client_write write;
    uint32_t lost = 77;
    write_state(client, 5, 1);
    ck_assert_int_eq(acquire_one(client, &held), SC_OK);
    ck_assert(held.lease != 0);
    ck_assert_int_eq(sc_client_pin(client, &key, 0, false, &pinned), SC_OK);
    ck_assert_int_eq(sc_client_write_begin(client, &key, &write), SC_OK);
    stop_service();
    ck_assert_int_eq(acquire_one(client, &again), SC_ERR_CLOSED);
    ck_assert_int_ne(sc_client_reconnect(client, &lost), SC_OK); /* nobody listens */
    ck_assert_uint_eq(lost, 77);
    ck_assert_int_eq(acquire_one(client, &again), SC_ERR_CLOSED);
    start_service();
    if (_i == 1) { /* another port: TCP clients of this test start anew */
        sc_client_close(client);
        return;
    }
    ck_assert_msg(sc_client_reconnect(client, &lost) == SC_OK, "%s", sc_client_last_error()->text);
    ck_assert_uint_eq(lost, 2); /* one state, one write */
    /* What was mapped can still be read, and written in vain. */
    ck_assert_uint_eq(((const uint8_t *)held.data)[7], 1);
    fill(&write, 3);
    ck_assert_int_eq(sc_client_write_commit(client, &write, NULL), SC_ERR_STALE);
    /* It was in memory alone: a miss, and then another with new ids. */
    ck_assert_int_eq(acquire_one(client, &again), SC_OK);
    ck_assert_uint_eq(again.lease, 0);
    write_state(client, 5, 2);
    ck_assert_int_eq(acquire_one(client, &again), SC_OK);
    ck_assert(again.lease != 0 && again.lease != held.lease);
    ck_assert_int_eq(sc_client_release(client, &held, 1), SC_ERR_STALE);
    ck_assert_int_eq(sc_client_release(client, &pinned, 1), SC_ERR_STALE);
    ck_assert_uint_eq(((const uint8_t *)again.data)[7], 2);
    ck_assert_int_eq(sc_client_release(client, &again, 1), SC_OK);
    /* A connection that is whole is given up for another. */
    ck_assert_int_eq(acquire_one(client, &held), SC_OK);
    ck_assert_int_eq(sc_client_reconnect(client, &lost), SC_OK);
    ck_assert_uint_eq(lost, 1);
    ck_assert_int_eq(sc_client_release(client, &held, 1), SC_ERR_STALE);
    ck_assert_int_eq(sc_client_reconnect(client, NULL), SC_OK);
    sc_client_close(client);
}
END_TEST

START_TEST(reconnect__refuses_another_model)
{
    sc_client *client = open_client(false);
    sc_client_state state;
    stop_service();
    configure("revision = other\n");
    start_service();
    ck_assert_int_eq(sc_client_reconnect(client, NULL), SC_ERR_MISMATCH);
    ck_assert_int_eq(acquire_one(client, &state), SC_ERR_CLOSED);
    ck_assert_int_eq(sc_client_reconnect(NULL, NULL), SC_ERR_INVALID);
    sc_client_close(client);
}
END_TEST

START_TEST(detach__bytes_outlive_lease_client_and_service)
{
    sc_client *client = open_client(_i == 1);
    sc_client_state state;
    sc_client_bytes bytes, twice;
    write_state(client, 5, 0x6b);
    ck_assert_int_eq(acquire_one(client, &state), SC_OK);
    ck_assert_int_eq(sc_client_detach(client, &state, &bytes), SC_OK);
    ck_assert(bytes.data == state.data && bytes.bytes == 4096);
    ck_assert_int_eq(sc_client_detach(client, &state, &twice), SC_ERR_STALE);
    ck_assert_int_eq(sc_client_release(client, &state, 1), SC_OK);
    ck_assert_int_eq(sc_client_detach(client, &state, &twice), SC_ERR_STALE);
    sc_client_close(client);
    stop_service();
    for (uint64_t i = 0; i < bytes.bytes; i++) {
        ck_assert_uint_eq(((const uint8_t *)bytes.data)[i], 0x6b);
    }
    sc_client_bytes_free(&bytes);
    ck_assert(!bytes.data && bytes.bytes == 0);
    sc_client_bytes_free(&bytes);
    sc_client_bytes_free(NULL);
    start_service();
}
END_TEST

START_TEST(detach__refuses_null_and_stale)
{
    sc_client *client = open_client(false);
    sc_client_state state = {.lease = 7};
    sc_client_bytes bytes;
    ck_assert_int_eq(sc_client_detach(NULL, &state, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_detach(client, NULL, &bytes), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_detach(client, &state, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_detach(client, &state, &bytes), SC_ERR_STALE);
    sc_client_bytes_free(NULL);
    ck_assert_int_eq(sc_client_reconnect(NULL, NULL), SC_ERR_INVALID);
    ck_assert_ptr_nonnull(strchr(sc_client_version(), '.'));
    sc_client_close(client);
}
END_TEST

static bool count_rows(void *ctx, const sc_client_row *row)
{
    uint32_t *rows = ctx;
    ck_assert(row->start < row->end && row->token_count > 0 && row->tokens[0] > 0);
    return ++*rows < 3;
}

START_TEST(inspect__tree_explain_evict_and_pins)
{
    sc_client *client = open_client(false);
    const sc_client_key key = {.tokens = tokens, .token_count = 8}, all = {.tokens = NULL},
        tenant = {.tenant = "nobody"};
    sc_client_explanation why = {.struct_size = sizeof why};
    sc_client_pinned pins[4];
    sc_client_state pinned;
    sc_evicted evicted;
    uint32_t rows = 0, count = 0;
    bool more = true;
    ck_assert_int_eq(sc_client_tree(client, &all, 0, 10, count_rows, &rows, &more), SC_OK);
    ck_assert(rows == 0 && !more);
    for (uint32_t i = 2; i < 6; i++) write_state(client, i, (uint8_t)i);
    ck_assert_int_eq(sc_client_tree(client, &all, 0, 10, count_rows, &rows, &more), SC_OK);
    ck_assert(rows == 3 && more); /* visit has stopped it */
    ck_assert_int_eq(sc_client_explain(client, &key, &why), SC_OK);
    ck_assert(why.why.match_len == 5 && why.why.differs == SC_DIFFERS_END);
    ck_assert(why.why.answer.state_len[SC_TIER_DEVICE] == 5 && why.tenant_there[0] == '\0');
    ck_assert_int_eq(sc_client_pin(client, &key, 9, true, &pinned), SC_OK);
    ck_assert_int_eq(sc_client_pins(client, pins, 0, &count), SC_ERR_LIMIT);
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(sc_client_pins(client, pins, 4, &count), SC_OK);
    ck_assert(count == 1 && pins[0].lease == pinned.lease && pins[0].kept && pins[0].len == 5);
    ck_assert_int_eq(sc_client_evict_prefix(client, &tenant, &evicted), SC_OK);
    ck_assert(evicted.states == 0 && evicted.held == 0);
    ck_assert_int_eq(sc_client_evict_prefix(client, &all, &evicted), SC_OK);
    ck_assert(evicted.states == 3 && evicted.held == 1);
    ck_assert_int_eq(sc_client_release(client, &pinned, 1), SC_OK);
    sc_client_close(client);
}
END_TEST

START_TEST(inspect__refuses_null_and_bad_keys)
{
    sc_client *client = open_client(false);
    const sc_client_key key = {.tokens = tokens, .token_count = 8},
        none = {.token_count = 3}, flags = {.flags = 1}, empty = {.tokens = tokens};
    sc_client_explanation why = {.struct_size = 3};
    sc_client_pinned pin;
    sc_evicted evicted;
    uint32_t rows = 0;
    bool more;
    ck_assert_int_eq(sc_client_evict_prefix(NULL, &key, &evicted), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_evict_prefix(client, NULL, &evicted), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_evict_prefix(client, &none, &evicted), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_evict_prefix(client, &flags, &evicted), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_evict_prefix(client, &key, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_tree(client, &key, 0, 1, NULL, &rows, &more), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_tree(client, &key, 0, 1, count_rows, &rows, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_tree(NULL, &key, 0, 1, count_rows, &rows, &more), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_tree(client, &none, 0, 1, count_rows, &rows, &more),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_tree(client, &key, 0, 9999, count_rows, &rows, &more),
        SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_explain(client, &key, &why), SC_ERR_INVALID);
    why.struct_size = sizeof why;
    ck_assert_int_eq(sc_client_explain(client, &empty, &why), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_explain(NULL, &key, &why), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_explain(client, &key, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_pins(client, NULL, 1, &rows), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_pins(client, &pin, 1, NULL), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_pins(NULL, &pin, 1, &rows), SC_ERR_INVALID);
    sc_client_close(client);
}
END_TEST

START_TEST(open__refuses_bad_options)
{
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    sc_client *client = NULL;
    const sc_fingerprint other = {{1}};
    ck_assert_int_eq(sc_client_open(NULL, &client), SC_ERR_INVALID);
    ck_assert_int_eq(sc_client_open(&options, &client), SC_ERR_INVALID);
    options.address = address;
    ck_assert_int_eq(sc_client_open(&options, NULL), SC_ERR_INVALID);
    options.struct_size = 3;
    ck_assert_int_eq(sc_client_open(&options, &client), SC_ERR_INVALID);
    options.struct_size = sizeof options;
    options.address = "http://x";
    ck_assert_int_eq(sc_client_open(&options, &client), SC_ERR_INVALID);
    options.address = "nothing";
    ck_assert_int_eq(sc_client_open(&options, &client), SC_ERR_INVALID);
    options.address = "tcp:localhost:x";
    ck_assert_int_eq(sc_client_open(&options, &client), SC_ERR_INVALID);
    options.address = "unix:/nowhere/at/all";
    ck_assert_int_eq(sc_client_open(&options, &client), SC_ERR_NOT_FOUND);
    options.address = tcp_address;
    ck_assert_int_eq(sc_client_open(&options, &client), SC_ERR_DENIED);
    options.token = "the wrong token, all of it";
    ck_assert_int_eq(sc_client_open(&options, &client), SC_ERR_DENIED);
    options.token = NULL;
    options.address = address;
    options.fingerprint = &other;
    ck_assert_int_eq(sc_client_open(&options, &client), SC_ERR_MISMATCH);
    options.fingerprint = NULL;
    options.tenant = "a name that is much longer than the sixty-three bytes that a name may have";
    ck_assert_int_eq(sc_client_open(&options, &client), SC_ERR_INVALID);
    ck_assert_ptr_null(client);
    sc_client_close(NULL);
    sc_client_free(NULL);
}
END_TEST

#define invalid(call) ck_assert_int_eq((call), SC_ERR_INVALID)

START_TEST(calls__refuse_null_and_empty)
{
    sc_client *client = open_client(false);
    const sc_client_key key = {.tokens = tokens, .token_count = 8}, empty = {.tokens = tokens},
        flags = {.tokens = tokens, .token_count = 1, .flags = 3},
        marks = {.tokens = tokens, .token_count = 1, .mark_count = 1};
    sc_client_info info = {.struct_size = 1000000};
    sc_client_write write = {.write = 7};
    sc_client_state state = {.lease = 7};
    sc_client_part part;
    sc_answer answer;
    sc_status each;
    uint32_t count;
    void *result;
    size_t bytes;
    invalid(sc_client_info_get(client, &info));
    invalid(sc_client_info_get(NULL, &info));
    invalid(sc_client_info_get(client, NULL));
    invalid(sc_client_parts(client, NULL, 1, &count));
    invalid(sc_client_parts(client, &part, 1, NULL));
    invalid(sc_client_lookup(NULL, &key, 1, &answer));
    invalid(sc_client_lookup(client, NULL, 1, &answer));
    invalid(sc_client_lookup(client, &key, 0, &answer));
    invalid(sc_client_lookup(client, &empty, 1, &answer));
    invalid(sc_client_lookup(client, &flags, 1, &answer));
    invalid(sc_client_lookup(client, &marks, 1, &answer));
    invalid(sc_client_acquire(client, &key, 1, 0, NULL, &each));
    invalid(sc_client_acquire(client, &key, 1, 0, &state, NULL));
    invalid(sc_client_acquire(client, &empty, 1, 0, &state, &each));
    invalid(sc_client_release(NULL, &state, 1));
    invalid(sc_client_release(client, NULL, 1));
    state.lease = 7;
    ck_assert_int_eq(sc_client_release(client, &state, 1), SC_ERR_STALE);
    invalid(sc_client_write_begin(client, &key, NULL));
    invalid(sc_client_write_begin(client, NULL, &write));
    write.write = 7;
    ck_assert_int_eq(sc_client_write_commit(client, &write, NULL), SC_ERR_STALE);
    invalid(sc_client_write_commit(client, NULL, NULL));
    invalid(sc_client_write_abort(NULL, &write));
    sc_client_quota quota;
    invalid(sc_client_pin(client, NULL, 1, false, &state));
    invalid(sc_client_pin(client, &key, 1, false, NULL));
    invalid(sc_client_evict(NULL, 1, &count));
    invalid(sc_client_common(client, &empty, false));
    invalid(sc_client_common(NULL, &key, false));
    invalid(sc_client_quota_get(client, "a", NULL));
    invalid(sc_client_quota_get(client, NULL, &quota)); /* it has no tenant */
    invalid(sc_client_quota_set(NULL, "a", 1));
    invalid(sc_client_quota_set(client, "a", UINT64_MAX));
    invalid(sc_client_call(client, NULL, NULL, 0, &result, &bytes));
    invalid(sc_client_call(client, "echo", "\xc1", 1, &result, &bytes));
    invalid(sc_client_call(client, "echo", NULL, 1, &result, &bytes));
    ck_assert_int_eq(sc_client_call(client, "acquire", NULL, 0, &result, &bytes),
        SC_ERR_UNSUPPORTED);
    ck_assert_int_eq(sc_client_lookup(client, &key, 1, &answer), SC_OK); /* it still works */
    sc_client_close(client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client");
    TCase *tcase = tcase_create("client");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, share__by_files);
    tcase_add_test(tcase, share__by_bytes);
    tcase_add_test(tcase, share__written_by_bytes_and_read_by_file);
    tcase_add_test(tcase, info__says_what_hello_and_schema_said);
    tcase_add_test(tcase, errors__of_the_service_arrive_with_their_text);
    tcase_add_test(tcase, pin__keeps_a_state_from_eviction);
    tcase_add_test(tcase, quota__is_read_and_set);
    tcase_add_test(tcase, call__any_method_by_name);
    tcase_add_test(tcase, status__is_json_of_the_service);
    tcase_add_test(tcase, status__counts_what_is_back_apart);
    tcase_add_test(tcase, status__refuses_null);
    tcase_add_test(tcase, closed__a_service_that_ended_is_said_for_ever);
    tcase_add_loop_test(tcase, reconnect__tells_what_was_lost_and_goes_on, 0, 2);
    tcase_add_test(tcase, reconnect__refuses_another_model);
    tcase_add_loop_test(tcase, detach__bytes_outlive_lease_client_and_service, 0, 2);
    tcase_add_test(tcase, detach__refuses_null_and_stale);
    tcase_add_test(tcase, inspect__tree_explain_evict_and_pins);
    tcase_add_test(tcase, inspect__refuses_null_and_bad_keys);
    tcase_add_test(tcase, open__refuses_bad_options);
    tcase_add_test(tcase, calls__refuse_null_and_empty);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "test_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "trace.h"

static char path[64];
static char error[TRACE_ERROR_BYTES];
static struct workload workload;

static void setup(void)
{
    snprintf(path, sizeof path, "/tmp/sc-bench-trace-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    error[0] = 0;
    workload_init(&workload, 512);
}

static void teardown(void)
{
    workload_free(&workload);
    unlink(path);
}

static void write_bytes(const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    ck_assert_int_eq(fclose(file), 0);
}

static int load(const char *text, struct trace_options options)
{
    if (text)
        write_bytes(text, strlen(text));
    options.path = path;
    return trace_load(&workload, &options, error);
}

#define LOAD(text, ...) load(text, (struct trace_options){__VA_ARGS__})

static int32_t token(size_t request, uint32_t at)
{
    workload_materialize(&workload, request);
    return workload.requests[request].tokens[at];
}

static const char TWO_ROWS[] =
    "{\"timestamp\":7,\"input_length\":130,\"output_length\":90,\"hash_ids\":[5,9,4]}\n"
    "{\"timestamp\":3,\"input_length\":140,\"output_length\":10,\"hash_ids\":[5,8,4]}\n";

START_TEST(load__sorts_by_time_and_finds_the_block)
{
    ck_assert_int_eq(LOAD(TWO_ROWS, .decode_max = 8), 0);
    ck_assert_uint_eq(workload.request_count, 2);
    ck_assert_uint_eq(workload.block_traced, 64);
    ck_assert_uint_eq(workload.block, 64);
    ck_assert_uint_eq(workload.requests[0].arrive_ns, 3000000);
    ck_assert_uint_eq(workload.requests[0].prompt_len, 140);
    ck_assert_uint_eq(workload.requests[1].prompt_len, 130);
    ck_assert_uint_eq(workload.requests[1].output_len, 8);
    ck_assert(!workload.has_given_output);
}
END_TEST

START_TEST(load__equal_ids_give_equal_tokens_and_unequal_ones_differ_at_once)
{
    ck_assert_int_eq(LOAD(TWO_ROWS, .block = 64, .scale = 16), 0);
    ck_assert_uint_eq(workload.requests[0].prompt_len, 2 * 16 + 3); /* 140 = 2 * 64 + 12 */
    ck_assert_uint_eq(workload.requests[1].prompt_len, 2 * 16 + 1); /* 2 * 64 + 2 */
    for (uint32_t i = 0; i < 16; i++)
        ck_assert_int_eq(token(0, i), token(1, i)); /* id 5 */
    ck_assert_int_ne(token(0, 16), token(1, 16));   /* ids 8 and 9 */
    ck_assert_int_eq(token(0, 32), token(1, 32));   /* id 4, partial */
}
END_TEST

START_TEST(load__unhashed_rest_matches_nothing)
{
    /* Ids of full blocks only, and one of a full block left out. */
    ck_assert_int_eq(LOAD(
        "{\"timestamp\":0,\"input_length\":100,\"output_length\":1,\"hash_ids\":[1]}\n"
        "{\"timestamp\":1,\"input_length\":100,\"output_length\":1,\"hash_ids\":[1]}\n"
        "{\"timestamp\":2,\"input_length\":128,\"output_length\":1,\"hash_ids\":[1]}\n",
        .block = 64), 0);
    ck_assert_int_eq(token(0, 63), token(1, 63));
    ck_assert_int_ne(token(0, 64), token(1, 64));
    ck_assert_int_ne(token(2, 64), token(1, 64));
    ck_assert_uint_eq(workload.requests[0].end_point, 0); /* its last page is its end */
    ck_assert_uint_eq(workload.requests[2].end_point, 64);
}
END_TEST

START_TEST(load__io_covers_input_and_output)
{
    ck_assert_int_eq(LOAD("{\"timestamp\":0,\"io\":1,\"input_length\":100,\"output_length\":60,"
                          "\"hash_ids\":[1,2]}\n"
                          "{\"timestamp\":1,\"io\":1,\"input_length\":130,\"output_length\":20,"
                          "\"hash_ids\":[1,2]}\n", .block = 64), 0);
    ck_assert(workload.has_given_output);
    ck_assert_uint_eq(workload.requests[0].output_len, 28); /* up to the last full block */
    ck_assert(workload.requests[0].output_given);
    ck_assert_int_eq(token(0, 127), token(1, 127));
    ck_assert_uint_eq(workload.requests[0].known, 128);
    ck_assert_uint_eq(workload.requests[1].output_len, 0);
    ck_assert_uint_eq(workload.requests[1].end_point, 128);
}
END_TEST

START_TEST(load__sessions_and_chats_keep_their_order)
{
    ck_assert_int_eq(LOAD(
        "{\"chat_id\":7,\"parent_chat_id\":-1,\"timestamp\":1.5,\"input_length\":20,"
        "\"output_length\":2,\"type\":\"text\",\"turn\":1,\"hash_ids\":[1,2]}\n"
        "{\"chat_id\":9,\"parent_chat_id\":7,\"timestamp\":2.5,\"input_length\":40,"
        "\"output_length\":2,\"type\":\"text\",\"turn\":2,\"hash_ids\":[1,3,4]}\n"), 0);
    ck_assert_uint_eq(workload.block_traced, 16);
    ck_assert_uint_eq(workload.requests[0].arrive_ns, 1500000000);
    ck_assert_int_eq(workload.requests[0].after, -1);
    ck_assert_int_eq(workload.requests[1].after, 0);
}
END_TEST

START_TEST(load__turns_grow_by_what_came_before)
{
    ck_assert_int_eq(LOAD("{\"session\":\"a\",\"timestamp\":5,\"turns\":[{\"input_length\":10,"
                          "\"output_length\":4},{\"delay\":20,\"input_length\":3,"
                          "\"output_length\":99}]}\n"
                          "{\"session_id\":\"b\",\"timestamp\":0,\"input_length\":6,"
                          "\"output_length\":1}\n", .decode_max = 8), 0);
    ck_assert_uint_eq(workload.request_count, 3);
    ck_assert_uint_eq(workload.requests[0].prompt_len, 6);
    ck_assert_int_eq(workload.requests[2].pred, 1);
    ck_assert_uint_eq(workload.requests[2].prompt_len, 10 + 4 + 3);
    ck_assert_uint_eq(workload.requests[2].output_len, 8);
    ck_assert_uint_eq(workload.requests[2].think_ns, 20000000);
    ck_assert_uint_eq(workload.block, 0);
}
END_TEST

START_TEST(load__limit_takes_whole_families)
{
    char text[2048] = "";
    for (int i = 0; i < 12; i++) { /* families 0, 1, 2, 0, 1, 2, ... */
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at,
            "{\"timestamp\":%d,\"input_length\":64,\"output_length\":0,"
            "\"hash_ids\":[%d,%d]}\n", i, i % 3, 100 + i);
    }
    ck_assert_int_eq(LOAD(text, .block = 32, .limit = 6), 0);
    ck_assert_uint_eq(workload.request_count, 6);
    const uint64_t times[] = {0, 1, 3, 4, 6, 9}; /* all of family 0, two of family 1 */
    for (size_t i = 0; i < 6; i++)
        ck_assert_uint_eq(workload.requests[i].arrive_ns, times[i] * 1000000);
}
END_TEST

static const struct {
    const char *text, *says;
} BAD[] = {
    {"", "has no requests"},
    {"\n \n", "has no requests"},
    {"{\"timestamp\":", ":1: JSON"},
    {"{}\n", "input_length"},
    {"[1]\n", "not a JSON object"},
    {"{\"input_length\":-1,\"output_length\":0,\"hash_ids\":[]}\n", "is not in 0.."},
    {"{\"input_length\":1e3,\"output_length\":0,\"hash_ids\":[]}\n", "not an integer"},
    {"{\"input_length\":99999999,\"output_length\":0,\"hash_ids\":[]}\n", "is not in 0.."},
    {"{\"input_length\":1,\"output_length\":0,\"hash_ids\":[1.5]}\n", "hash id 0"},
    {"{\"input_length\":1,\"output_length\":0,\"hash_ids\":7}\n", "not an array"},
    {"{\"input_length\":1,\"output_length\":0}\n", "neither \"hash_ids\" nor a session"},
    {"{\"input_length\":1,\"input_length\":2,\"output_length\":0,\"hash_ids\":[]}\n", "JSON"},
    {"{\"timestamp\":-4,\"input_length\":1,\"output_length\":0,\"hash_ids\":[]}\n", "not a time"},
    {"{\"timestamp\":\"x\",\"input_length\":1,\"output_length\":0,\"hash_ids\":[]}\n",
        "not a time"},
    {"{\"session\":[],\"input_length\":1,\"output_length\":0,\"hash_ids\":[]}\n",
        "neither a number nor a text"},
    {"{\"session\":1,\"turns\":4}\n", "not an array"},
    {"{\"session\":1,\"turns\":[4]}\n", "turn 0 is not an object"},
    {"{\"turns\":[]}\n", "without \"session\""},
    {"{\"session\":1,\"turns\":[{\"input_length\":0,\"output_length\":1}]}\n", "has no input"},
    {"{\"session\":1,\"input_length\":1,\"output_length\":1}\n"
     "{\"session\":1,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}\n", ":2: rows with"},
    {"{\"input_length\":16,\"output_length\":1,\"hash_ids\":[1]}\n"
     "{\"input_length\":16,\"output_length\":1,\"hash_ids\":[1,2,3]}\n", "fit no size"},
};

START_TEST(load__refuses_bad_rows_and_says_where)
{
    ck_assert_int_eq(LOAD(BAD[_i].text, .decode_max = 8), -1);
    ck_assert_msg(strstr(error, BAD[_i].says) && strstr(error, path), "%s", error);
}
END_TEST

START_TEST(load__refuses_too_many_ids_for_a_given_block)
{
    ck_assert_int_eq(LOAD(TWO_ROWS, .block = 128), -1);
    ck_assert_msg(strstr(error, "hash_ids for"), "%s", error);
}
END_TEST

START_TEST(load__refuses_a_scale_above_the_block)
{
    ck_assert_int_eq(LOAD(TWO_ROWS, .block = 64, .scale = 128), -1);
    ck_assert_msg(strstr(error, "longer than its blocks"), "%s", error);
}
END_TEST

START_TEST(load__reads_zstd_and_refuses_any_cut)
{
    char packed[1024];
    size_t count = ZSTD_compress(packed, sizeof packed, TWO_ROWS, strlen(TWO_ROWS), 3);
    ck_assert(!ZSTD_isError(count));
    for (size_t cut = 4; cut < count; cut++) {
        write_bytes(packed, cut);
        ck_assert_int_eq(LOAD(NULL, .decode_max = 8), -1);
        ck_assert_msg(strstr(error, "zstd"), "%s", error);
        workload_free(&workload);
        workload_init(&workload, 512);
    }
    packed[9] = (char)(packed[9] ^ 0x40);
    write_bytes(packed, count);
    ck_assert_int_eq(LOAD(NULL, .decode_max = 8), -1);
    packed[9] = (char)(packed[9] ^ 0x40);
    workload_free(&workload);
    workload_init(&workload, 512);
    write_bytes(packed, count);
    ck_assert_int_eq(LOAD(NULL, .decode_max = 8), 0);
    ck_assert_uint_eq(workload.request_count, 2);
}
END_TEST

START_TEST(load__missing_file)
{
    unlink(path);
    ck_assert_int_eq(LOAD(NULL, .decode_max = 8), -1);
    ck_assert_msg(strstr(error, "No such file"), "%s", error);
}
END_TEST

void add_trace_cases(Suite *suite)
{
    TCase *tcase = tcase_create("trace");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, load__sorts_by_time_and_finds_the_block);
    tcase_add_test(tcase, load__equal_ids_give_equal_tokens_and_unequal_ones_differ_at_once);
    tcase_add_test(tcase, load__unhashed_rest_matches_nothing);
    tcase_add_test(tcase, load__io_covers_input_and_output);
    tcase_add_test(tcase, load__sessions_and_chats_keep_their_order);
    tcase_add_test(tcase, load__turns_grow_by_what_came_before);
    tcase_add_test(tcase, load__limit_takes_whole_families);
    tcase_add_loop_test(tcase, load__refuses_bad_rows_and_says_where, 0,
        (int)(sizeof BAD / sizeof *BAD));
    tcase_add_test(tcase, load__refuses_too_many_ids_for_a_given_block);
    tcase_add_test(tcase, load__refuses_a_scale_above_the_block);
    tcase_add_test(tcase, load__reads_zstd_and_refuses_any_cut);
    tcase_add_test(tcase, load__missing_file);
    suite_add_tcase(suite, tcase);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* `statecache-bench service`: round trips to a statecached, beside a socketpair whose other end is
 * a thread of this program. One sample of each in turns. */
#include <argp.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench_main.h"
#include "service.h"

enum key { KEY_PROGRAM = 256, KEY_TOKENS, KEY_ROUNDS, KEY_CLIENTS, KEY_IDLE, KEY_SECONDS, KEY_SEED,
    KEY_JSON, KEY_BARS };
enum { WARM = 200 };

static const struct argp_option option_list[] = {
    {"program", KEY_PROGRAM, "FILE", 0, "the statecached to measure (the one built beside)", 0},
    {"tokens", KEY_TOKENS, "N", 0, "of a look-up (4096)", 0},
    {"rounds", KEY_ROUNDS, "N", 0, "of one sample each (5000)", 0},
    {"clients", KEY_CLIENTS, "N", 0, "at once at most (64)", 0},
    {"seconds", KEY_SECONDS, "S", 0, "for each number of clients (1)", 0},
    {"idle", KEY_IDLE, "N", 0, "clients that do nothing (500)", 0},
    {"seed", KEY_SEED, "N", 0, "of the prompts (8)", 0},
    {"json", KEY_JSON, NULL, 0, "print JSON lines instead of text", 0},
    {"bars", KEY_BARS, NULL, 0, BENCH_BARS_HELP, 0},
    {0}};

struct arguments {
    struct service service;
    bool json, bars;
};

static uint64_t number(struct argp_state *state, const char *name, const char *text, uint64_t low,
    uint64_t high)
{
    char *end;
    errno = 0;
    unsigned long long result = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || result < low || result > high)
        argp_error(state, "--%s: '%s' is not between %llu and %llu", name, text,
            (unsigned long long)low, (unsigned long long)high);
    return result;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    struct service *s = &a->service;
    switch (key) {
    case KEY_PROGRAM: s->program = arg; break;
    case KEY_TOKENS: s->token_count = (uint32_t)number(state, "tokens", arg, 4, 1 << 18); break;
    case KEY_ROUNDS: s->round_count = (uint32_t)number(state, "rounds", arg, 10, 10000000); break;
    case KEY_CLIENTS:
        s->client_max = (uint32_t)number(state, "clients", arg, 1, SERVICE_CLIENTS_MAX);
        break;
    case KEY_SECONDS: s->seconds = (double)number(state, "seconds", arg, 1, 3600); break;
    case KEY_IDLE: s->idle_count = (uint32_t)number(state, "idle", arg, 1, 2000); break;
    case KEY_SEED: s->seed = number(state, "seed", arg, 0, UINT32_MAX); break;
    case KEY_JSON: a->json = true; break;
    case KEY_BARS: a->bars = true; break;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is no option", arg); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- round trips ---- */

struct bare { int fd; size_t count; };

static void read_all(int fd, uint8_t *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        ssize_t got = recv(fd, bytes + at, count - at, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return;
        at += (size_t)got;
    }
}

/* The other end of the socketpair: sends back what has come, until it is closed. */
static void *bare_thread(void *arg)
{
    const struct bare *bare = arg;
    uint8_t *bytes = bench_alloc(bare->count, 1);
    while (recv(bare->fd, bytes, 1, MSG_PEEK) == 1) {
        read_all(bare->fd, bytes, bare->count);
        service_send(bare->fd, bytes, bare->count);
    }
    free(bytes);
    return NULL;
}

static double us_since(uint64_t begin_ns)
{
    return (double)(sc_clock_now_ns() - begin_ns) / 1000;
}

static void trips_run(struct service *service, struct radix_rows *rows)
{
    struct radix_samples bare = {0}, echo = {0}, lookup = {0};
    struct service_conn conn = service_connect(service);
    int pair[2];
    pthread_t thread;
    uint8_t *bytes = bench_alloc(service->echo.size, 1);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        bench_fail(BENCH_CHECK_FAILED, "no socketpair");
    struct bare other = {pair[1], service->echo.size};
    if (pthread_create(&thread, NULL, bare_thread, &other) != 0)
        bench_fail(BENCH_NO_MEMORY, "no thread");
    for (uint32_t i = 0; i < service->round_count + WARM; i++) {
        uint64_t begin = sc_clock_now_ns();
        service_send(pair[0], service->echo.data, service->echo.size);
        read_all(pair[0], bytes, service->echo.size);
        double took = us_since(begin);
        if (i >= WARM)
            radix_sample(&bare, took);
        begin = sc_clock_now_ns();
        service_exchange(&conn, &service->echo);
        took = us_since(begin);
        if (i >= WARM)
            radix_sample(&echo, took);
        begin = sc_clock_now_ns();
        service_exchange(&conn, &service->lookups[i % SERVICE_PROMPTS]);
        took = us_since(begin);
        if (i >= WARM)
            radix_sample(&lookup, took);
    }
    (void)shutdown(pair[0], SHUT_RDWR);
    (void)pthread_join(thread, NULL);
    (void)close(pair[0]);
    (void)close(pair[1]);
    const struct bench_bar none = {BENCH_BAR_NONE, 0}, half = {BENCH_BAR_MOST, 1.5},
        twice = {BENCH_BAR_MOST, 2};
    radix_row_samples(rows, "trip", "socketpair, the frame of a look-up", "us", &bare, none);
    radix_row_samples(rows, "trip", "echo of that frame", "us", &echo, none);
    radix_row_samples(rows, "trip", "look-up", "us", &lookup, none);
    radix_row_value(rows, "trip", "echo / socketpair, p50", "x",
        radix_quantile(&echo, 0.5) / radix_quantile(&bare, 0.5), half);
    radix_row_value(rows, "trip", "look-up / echo, p50", "x",
        radix_quantile(&lookup, 0.5) / radix_quantile(&echo, 0.5), half);
    radix_row_value(rows, "trip", "look-up / echo, p99", "x",
        radix_quantile(&lookup, 0.99) / radix_quantile(&echo, 0.99), twice);
    radix_samples_free(&bare);
    radix_samples_free(&echo);
    radix_samples_free(&lookup);
    service_close(&conn);
    free(bytes);
}

/* ---- many clients ---- */

struct crowd {
    struct service *service;
    uint64_t end_ns, done;
    uint32_t index;
};

static void *crowd_thread(void *arg)
{
    struct crowd *crowd = arg;
    struct service_conn conn = service_connect(crowd->service);
    while (sc_clock_now_ns() < crowd->end_ns) {
        uint64_t which = (crowd->index * 7u + crowd->done) % SERVICE_PROMPTS;
        service_exchange(&conn, &crowd->service->lookups[which]);
        crowd->done++;
    }
    service_close(&conn);
    return NULL;
}

static void crowd_run(struct service *service, struct radix_rows *rows)
{
    for (uint32_t count = 1; count <= service->client_max; count *= 2) {
        struct crowd crowds[SERVICE_CLIENTS_MAX];
        pthread_t threads[SERVICE_CLIENTS_MAX];
        char name[64];
        uint64_t done = 0, begin = sc_clock_now_ns();
        for (uint32_t i = 0; i < count; i++) {
            crowds[i] = (struct crowd){service, begin + (uint64_t)(service->seconds * 1e9), 0, i};
            if (pthread_create(&threads[i], NULL, crowd_thread, &crowds[i]) != 0)
                bench_fail(BENCH_NO_MEMORY, "no thread");
        }
        for (uint32_t i = 0; i < count; i++) {
            (void)pthread_join(threads[i], NULL);
            done += crowds[i].done;
        }
        (void)snprintf(name, sizeof name, "look-ups with %u client%s", count,
            count > 1 ? "s" : "");
        radix_row_value(rows, "crowd", name, "1/s",
            (double)done * 1e9 / (double)(sc_clock_now_ns() - begin),
            (struct bench_bar){BENCH_BAR_NONE, 0});
    }
}

static void idle_run(struct service *service, struct radix_rows *rows)
{
    struct service_conn *conns = bench_alloc(service->idle_count, sizeof *conns);
    uint64_t before = service_resident(service);
    for (uint32_t i = 0; i < service->idle_count; i++) {
        conns[i] = service_connect(service);
        service_exchange(&conns[i], &service->lookups[0]);
        free(conns[i].in);
        conns[i].in = NULL;
    }
    (void)usleep(2000000); /* they are idle: buffers are given back */
    uint64_t after = service_resident(service);
    radix_row_value(rows, "idle", "resident memory of a client", "B",
        after > before ? (double)(after - before) / service->idle_count : 0,
        (struct bench_bar){BENCH_BAR_NONE, 0});
    for (uint32_t i = 0; i < service->idle_count; i++)
        service_close(&conns[i]);
    free(conns);
}

/* ---- a client beside others that misbehave ---- */

struct hostile { const struct service *service; _Atomic bool stop; };

/* Connections by the hundred: some say nothing, some nonsense, some never finish. */
static void *hostile_thread(void *arg)
{
    struct hostile *hostile = arg;
    enum { BATCH = 100 };
    while (!hostile->stop) {
        int fds[BATCH];
        for (int i = 0; i < BATCH; i++) {
            fds[i] = service_socket(hostile->service);
            if (i % 3 == 1)
                service_send(fds[i], "GET / HTTP/1.1\r\n\r\n", 18);
            if (i % 3 == 2)
                service_send(fds[i], "\x94\x00\x01\xa4" "echo\x91\x81\xa4" "data\xc6\x00\x80", 17);
        }
        for (int i = 0; i < BATCH; i++)
            (void)close(fds[i]);
    }
    return NULL;
}

static void sample_lookups(struct service *service, struct service_conn *conn, uint32_t rounds,
    struct radix_samples *samples)
{
    for (uint32_t i = 0; i < rounds; i++) {
        uint64_t begin = sc_clock_now_ns();
        service_exchange(conn, &service->lookups[i % SERVICE_PROMPTS]);
        radix_sample(samples, us_since(begin));
    }
}

/* Alone and beside them in turns. */
static void hostile_run(struct service *service, struct radix_rows *rows)
{
    enum { TURNS = 10 };
    struct radix_samples alone = {0}, beside = {0};
    struct service_conn conn = service_connect(service);
    for (int turn = 0; turn < TURNS; turn++) {
        struct hostile hostile = {.service = service};
        pthread_t thread;
        sample_lookups(service, &conn, service->round_count / TURNS, &alone);
        if (pthread_create(&thread, NULL, hostile_thread, &hostile) != 0)
            bench_fail(BENCH_NO_MEMORY, "no thread");
        sample_lookups(service, &conn, service->round_count / TURNS, &beside);
        hostile.stop = true;
        (void)pthread_join(thread, NULL);
    }
    radix_row_samples(rows, "hostile", "look-up alone", "us", &alone,
        (struct bench_bar){BENCH_BAR_NONE, 0});
    radix_row_samples(rows, "hostile", "look-up beside hostile clients", "us", &beside,
        (struct bench_bar){BENCH_BAR_NONE, 0});
    radix_row_value(rows, "hostile", "beside / alone, p50", "x",
        radix_quantile(&beside, 0.5) / radix_quantile(&alone, 0.5),
        (struct bench_bar){BENCH_BAR_MOST, 2});
    radix_samples_free(&alone);
    radix_samples_free(&beside);
    service_close(&conn);
}

int service_main(int argc, char **argv)
{
    struct arguments a = {.service = {.token_count = 4096, .round_count = 5000, .client_max = 64,
        .idle_count = 500, .seconds = 1, .seed = 8}};
    static const struct argp argp = {option_list, parse, NULL,
        "Measures statecached: look-ups over its Unix socket beside an echo and a socketpair, many "
        "clients, idle ones, hostile ones.", NULL, NULL, NULL};
    struct rlimit files;
    argp_err_exit_status = BENCH_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    struct radix_rows rows = {.bench = "service", .json = a.json, .seed = a.service.seed};
    service_start(&a.service);
    service_fill(&a.service);
    trips_run(&a.service, &rows);
    crowd_run(&a.service, &rows);
    idle_run(&a.service, &rows);
    hostile_run(&a.service, &rows);
    service_stop(&a.service);
    service_free(&a.service);
    return radix_rows_close(&rows, a.bars);
}

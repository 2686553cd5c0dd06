/* SPDX-License-Identifier: Apache-2.0 */
/* A store of many small records is opened by a process of its own, with cold caches: how long until
 * the first hit, and what memory that takes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/prng.h"
#include "spill.h"

enum { PAYLOAD_BYTES = 4096, LEVELS = 16, GROUP = 4096, LEVEL_TOKENS = SPILL_TOKENS };

static struct sc_store_options options_of(const char *folder, uint64_t records)
{
    uint64_t map = records * 2048;
    return (struct sc_store_options){.folder = folder,
        .bytes_max = (records + 1024) * PAYLOAD_BYTES * 2,
        .map_bytes = map < (64 << 20) ? 64 << 20 : map};
}

/* Tokens of chain `chain`: its records end after each LEVEL_TOKENS of them. */
static void chain_tokens(int32_t *tokens, uint64_t chain)
{
    for (uint32_t i = 0; i < LEVELS * LEVEL_TOKENS; i++)
        tokens[i] = (int32_t)(sc_mix64((chain << 16) + i) & 0x1ffff);
}

static void fill_payload(uint8_t *payload, uint64_t chain, uint32_t level)
{
    for (uint32_t i = 0; i < PAYLOAD_BYTES; i += 8) {
        uint64_t word = sc_mix64((chain * LEVELS + level) * PAYLOAD_BYTES + i);
        memcpy(payload + i, &word, 8);
    }
}

/* One level of a group of chains: one commit. */
static void store_level(struct sc_store *store, uint64_t first, uint32_t chains, uint32_t level,
    int32_t *tokens, uint8_t *payload)
{
    static const sc_shard whole = {0, 1, 0, 1, 0, 0};
    struct sc_store_put *puts[GROUP];
    sc_status each[GROUP];
    for (uint32_t i = 0; i < chains; i++) {
        struct sc_store_payload what = {payload, PAYLOAD_BYTES, 0, PAYLOAD_BYTES, 1, 0};
        struct sc_store_record record = {.numerics = 1, .value = 1, .shard_count = 1,
            .shards = &whole, .parent_len = level * LEVEL_TOKENS,
            .key = {.tokens = tokens + (size_t)i * LEVELS * LEVEL_TOKENS,
                .token_count = (level + 1) * LEVEL_TOKENS}};
        fill_payload(payload, first + i, level);
        bench_must(sc_store_begin(store, &record, false, &puts[i]), "beginning to store");
        bench_must(sc_store_shard(store, puts[i], 0, &what, 0), "storing a record");
    }
    bench_must(sc_store_commit(store, puts, chains, 0, each), "committing records");
    for (uint32_t i = 0; i < chains; i++)
        bench_must(each[i], "committing records");
}

static void make_store(const char *folder, uint64_t records)
{
    struct sc_store_options options = options_of(folder, records);
    struct bench_progress progress;
    options.direct = SC_STORE_OFF; /* small writes: the cache gathers them */
    struct sc_store *store = spill_open(&options);
    uint64_t chains = (records + LEVELS - 1) / LEVELS;
    int32_t *tokens = bench_alloc((size_t)GROUP * LEVELS * LEVEL_TOKENS, sizeof *tokens);
    uint8_t *payload = spill_buffer(PAYLOAD_BYTES, 0);
    bench_progress_start(&progress, "storing records");
    for (uint64_t first = 0; first < chains; first += GROUP) {
        uint32_t count = chains - first < GROUP ? (uint32_t)(chains - first) : GROUP;
        for (uint32_t i = 0; i < count; i++)
            chain_tokens(tokens + (size_t)i * LEVELS * LEVEL_TOKENS, first + i);
        for (uint32_t level = 0; level < LEVELS; level++)
            store_level(store, first, count, level, tokens, payload);
        bench_progress_show(&progress, first, chains);
    }
    bench_progress_end(&progress);
    sc_store_close(store);
    free(payload);
    free(tokens);
}

/* ---- caches ---- */

/* Percent of a file that is in the page cache; 0 when that cannot be known. */
static double cached_percent(const char *path)
{
    struct stat now;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &now) != 0 || now.st_size == 0)
        return 0;
    size_t pages = ((size_t)now.st_size + 4095) / 4096, there = 0;
    void *map = mmap(NULL, (size_t)now.st_size, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *resident = bench_alloc(pages, 1);
    if (map != MAP_FAILED && mincore(map, (size_t)now.st_size, resident) == 0) {
        for (size_t i = 0; i < pages; i++)
            there += resident[i] & 1;
    }
    if (map != MAP_FAILED)
        munmap(map, (size_t)now.st_size);
    free(resident);
    close(fd);
    return 100.0 * (double)there / (double)pages;
}

static void drop_caches(const char *folder)
{
    char path[5300];
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        fdatasync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    if (list)
        closedir(list);
}

/* ---- the other process ---- */

static uint64_t anonymous_bytes(void)
{
    char line[200];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "RssAnon: %llu", &kib) == 1)
            break;
    }
    if (file)
        fclose(file);
    return kib * 1024;
}

int spill_reopen_child(const char *folder, uint64_t records)
{
    struct sc_store_options options = options_of(folder, records);
    struct sc_store_want want = spill_want();
    struct sc_store_reader *reader = NULL;
    enum sc_store_reason reason = SC_STORE_FAILED;
    int32_t tokens[LEVELS * LEVEL_TOKENS];
    uint64_t chain = (records / LEVELS) / 2;
    uint8_t *expected = spill_buffer(PAYLOAD_BYTES, 0), *bytes = spill_buffer(PAYLOAD_BYTES, 1);
    fill_payload(expected, chain, LEVELS - 1);
    chain_tokens(tokens, chain);
    uint64_t before = anonymous_bytes();
    double start = spill_now();
    struct sc_store *store = spill_open(&options);
    double opened = spill_now();
    struct sc_store_key key = {.tokens = tokens, .token_count = LEVELS * LEVEL_TOKENS};
    bench_must(sc_store_reader_open(store, &key, &want, &reason, &reader), "finding a record");
    if (!reader)
        bench_fail(BENCH_CHECK_FAILED, "no hit: %s", sc_store_reason_text(reason));
    bench_must(sc_store_read(reader, 0, bytes, PAYLOAD_BYTES), "reading a record");
    double end = spill_now();
    uint64_t after = anonymous_bytes();
    if (memcmp(bytes, expected, PAYLOAD_BYTES) != 0)
        bench_fail(BENCH_CHECK_FAILED, "a record came back with other bits");
    sc_store_reader_close(reader);
    sc_store_close(store);
    printf("%.9f %.9f %llu\n", opened - start, end - start,
        (unsigned long long)(after > before ? after - before : 0));
    free(expected);
    free(bytes);
    return BENCH_OK;
}

struct first_hit { double opened, hit; unsigned long long bytes; };

static struct first_hit run_child(const char *folder, uint64_t records)
{
    struct first_hit found = {0, 0, 0};
    char text[32];
    int ends[2], code = 0;
    snprintf(text, sizeof text, "%llu", (unsigned long long)records);
    if (pipe(ends) != 0)
        bench_fail(BENCH_NO_MEMORY, "no pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "statecache-bench", "spill", "--records", text, "--first-hit",
            folder, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *out = fdopen(ends[0], "r");
    bool good = out && fscanf(out, "%lf %lf %llu", &found.opened, &found.hit, &found.bytes) == 3;
    if (out)
        fclose(out);
    if (child < 0 || waitpid(child, &code, 0) != child || !WIFEXITED(code) || WEXITSTATUS(code) ||
        !good)
        bench_fail(BENCH_CHECK_FAILED, "the process that opens the store again failed");
    return found;
}

void spill_reopen_run(const struct spill_options *options, struct radix_rows *rows)
{
    const struct bench_bar none = {BENCH_BAR_NONE, 0}, most = {BENCH_BAR_MOST, 5};
    struct radix_samples opened = {NULL, 0, 0}, hit = {NULL, 0, 0}, memory = {NULL, 0, 0};
    struct radix_samples cached = {NULL, 0, 0};
    char folder[5000], data[5100];
    snprintf(folder, sizeof folder, "%s/records", options->folder);
    snprintf(data, sizeof data, "%s/data.mdb", folder);
    double start = spill_now();
    make_store(folder, options->records);
    double made = spill_now() - start;
    struct stat now = {0};
    (void)stat(data, &now);
    for (uint32_t i = 0; i < 3; i++) {
        drop_caches(folder);
        radix_sample(&cached, cached_percent(data));
        struct first_hit found = run_child(folder, options->records);
        radix_sample(&opened, found.opened);
        radix_sample(&hit, found.hit);
        radix_sample(&memory, (double)found.bytes / (double)options->records);
    }
    radix_row_value(rows, "reopen", "records of 64 tokens and 4 KiB", "count",
        (double)options->records, none);
    radix_row_value(rows, "reopen", "storing them, 4096 a commit", "us each",
        made * 1e6 / (double)options->records, none);
    radix_row_value(rows, "reopen", "metadata on disk, a record", "bytes",
        (double)now.st_size / (double)options->records, none);
    radix_row_samples(rows, "reopen", "metadata in the page cache before", "percent", &cached,
        none);
    radix_row_samples(rows, "reopen", "open", "s", &opened, none);
    radix_row_samples(rows, "reopen", "open until the first hit is read", "s", &hit, most);
    radix_row_samples(rows, "reopen", "memory of the process for it, a record", "bytes", &memory,
        none);
    radix_samples_free(&opened);
    radix_samples_free(&hit);
    radix_samples_free(&memory);
    radix_samples_free(&cached);
    spill_remove_folder(folder);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "bench_common.h"

#define TEXT(number) #number
#define CHECKED(level) ", assertions " TEXT(level) /* those of the dev preset, 3, cost time */

#ifdef __OPTIMIZE__
static const char build[] = "optimised gcc " __VERSION__ CHECKED(SC_ASSERT_LEVEL);
#else
static const char build[] = "debug gcc " __VERSION__ CHECKED(SC_ASSERT_LEVEL);
#endif

static char gpu[128];

void bench_machine_gpu(const char *name)
{
    snprintf(gpu, sizeof gpu, "%s", name);
}

/* "model name" of the first processor, or "?". */
static void processor_name(char *out, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(out, size, "?");
    while (file && fgets(line, sizeof line, file)) {
        const char *at = strncmp(line, "model name", 10) ? NULL : strchr(line, ':');
        if (!at)
            continue;
        at += 1 + strspn(at + 1, " ");
        snprintf(out, size, "%.*s", (int)strcspn(at, "\n"), at);
        break;
    }
    if (file)
        fclose(file);
}

static json_t *host_text(void)
{
    char name[200];
    cpu_set_t set;
    CPU_ZERO(&set);
    int threads = sched_getaffinity(0, sizeof set, &set) ? 0 : CPU_COUNT(&set);
    processor_name(name, sizeof name);
    return json_sprintf("%s, %d threads", name, threads);
}

static json_t *now_text(void)
{
    char text[32];
    time_t now = (time_t)sc_clock_utc_s();
    struct tm utc;
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    return json_string(text);
}

void bench_machine_add(json_t *object)
{
    const char *git = getenv("SC_BENCH_GIT");
    bool known = git && *git;
    int bad = json_object_set_new(object, "git", known ? json_string(git) : json_null());
    bad |= json_object_set_new(object, "dirty",
        known ? json_boolean(getenv("SC_BENCH_DIRTY") != NULL) : json_null());
    bad |= json_object_set_new(object, "build", json_string(build));
    bad |= json_object_set_new(object, "host", host_text());
    bad |= json_object_set_new(object, "gpu", *gpu ? json_string(gpu) : json_null());
    bad |= json_object_set_new(object, "utc", now_text());
    if (bad)
        bench_fail(BENCH_NO_MEMORY, "no memory for a line of JSON");
}

void bench_machine_write(FILE *out)
{
    json_t *object = json_object();
    bench_machine_add(object);
    char *text = json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (!text)
        bench_fail(BENCH_NO_MEMORY, "no memory for a line of JSON");
    fprintf(out, ",%.*s", (int)strlen(text) - 2, text + 1);
    free(text);
    json_decref(object);
}

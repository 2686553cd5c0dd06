/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over kept inputs: replay FOLDER_OR_FILE... [-random N SEED]. With -random it
 * also makes N inputs of its own, the same ones each time, so that compilers without libFuzzer get
 * a little of its reach. Fails when there was nothing to run. */
#include "base/prng.h"
#include "fuzz/fuzz.h"
#include "support/test_scale.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

enum { BYTES_MAX = 1 << 20, RANDOM_BYTES = 512 };
static uint8_t buffer[BYTES_MAX];

static uint32_t run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    size_t size = fread(buffer, 1, sizeof buffer, file);
    fclose(file);
    LLVMFuzzerTestOneInput(buffer, size);
    return 1;
}

static uint32_t run_path(const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
        return run_file(path);
    }
    DIR *folder = opendir(path);
    if (!folder) {
        perror(path);
        exit(1);
    }
    uint32_t count = 0;
    char name[4096];
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (entry->d_name[0] != '.') {
            snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
            count += run_file(name);
        }
    }
    closedir(folder);
    return count;
}

static uint32_t run_random(uint64_t count, uint64_t seed)
{
    struct sc_prng prng;
    sc_prng_seed(&prng, seed);
    for (uint64_t i = 0; i < count; i++) {
        size_t size = (size_t)sc_prng_below(&prng, RANDOM_BYTES) + 1;
        for (size_t at = 0; at < size; at++) {
            buffer[at] = (uint8_t)sc_prng_below(&prng, 256);
        }
        LLVMFuzzerTestOneInput(buffer, size);
    }
    return (uint32_t)count;
}

int main(int argc, char **argv)
{
    uint32_t count = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-random") == 0 && i + 2 < argc) {
            count += run_random(test_scaled(strtoull(argv[i + 1], NULL, 10), 10),
                strtoull(argv[i + 2], NULL, 10));
            i += 2;
        } else {
            count += run_path(argv[i]);
        }
    }
    printf("%u inputs\n", count);
    return count > 0 ? 0 : 1;
}

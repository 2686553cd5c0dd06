/* SPDX-License-Identifier: Apache-2.0 */
/* The host's kernel tests on the device, in one program so that a pack holds the kernels once:
 * test_gpu_kernels NAME runs tests/unit/test_kernels_NAME.c through gpu_shim.h, which renames its
 * main(). Exit status: the test's; 2 for a name that is not there. */
#include <stdio.h>
#include <string.h>

#define TESTS(X) X(delta) X(delta_bits) X(conv) X(small) X(step) X(decode) X(move)

#define DECLARE(name) int test_gpu_main_##name(void);
TESTS(DECLARE)

#define ROW(name) {#name, test_gpu_main_##name},
static const struct {
    const char *name;
    int (*run)(void);
} tests[] = {TESTS(ROW)};

int main(int argc, char **argv)
{
    size_t count = sizeof tests / sizeof *tests;
    for (size_t i = 0; argc == 2 && i < count; i++) {
        if (strcmp(argv[1], tests[i].name) == 0) return tests[i].run();
    }
    fprintf(stderr, "usage: test_gpu_kernels NAME, which is one of:");
    for (size_t i = 0; i < count; i++) fprintf(stderr, " %s", tests[i].name);
    fputc('\n', stderr);
    return 2;
}

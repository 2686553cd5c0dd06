/* SPDX-License-Identifier: Apache-2.0 */
/* statecached: words, configuration, exit status. */
#include <stdlib.h>
#include <string.h>

#include "server.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_WORDS = 2, EXIT_CONFIG = 3 };

static const char help[] =
    "usage: statecached [options]\n"
    "\n"
    "Keeps states of hybrid models for the processes of this machine, who reach it by a Unix\n"
    "socket or loopback TCP (docs/reference/protocol.md).\n"
    "\n"
    "  --config FILE       names and values, a line each (docs/reference/statecached.md)\n"
    "  --set NAME=VALUE    one of them; stands above the file; may be given several times\n"
    "  --check             check the configuration and end\n"
    "  --print-config      print it, with all defaults, and end\n"
    "  --help, --version\n"
    "\n"
    "signals: SIGTERM, SIGINT stop it when stores have ended; SIGHUP reads the file again\n"
    "exit status: 0 stopped as told; 1 it could not start, or failed; 2 wrong usage;\n"
    "3 an error in the configuration\n";

static int usage(const char *text, const char *word)
{
    (void)fprintf(stderr, "statecached: %s%s%s\nTry statecached --help.\n", text, word ? " " : "",
        word ? word : "");
    return EXIT_WORDS;
}

struct words {
    const char *file;
    bool check, print;
};

static int parse(int argc, char **argv, struct words *words, struct sd_config *config)
{
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        bool takes = strcmp(word, "--config") == 0 || strcmp(word, "--set") == 0;
        if (takes && i + 1 == argc) return usage("a value is missing behind", word);
        if (strcmp(word, "--config") == 0) {
            words->file = argv[++i];
        } else if (strcmp(word, "--set") == 0) {
            if (config->override_count == SD_OVERRIDES_MAX) return usage("too many --set", NULL);
            config->overrides[config->override_count++] = argv[++i];
        } else if (strcmp(word, "--check") == 0) {
            words->check = true;
        } else if (strcmp(word, "--print-config") == 0) {
            words->print = true;
        } else {
            return usage("there is no option", word);
        }
    }
    return EXIT_DONE;
}

static int run(struct sd_config *config)
{
    static struct sd_server server;
    if (!sd_server_open(&server, config)) return EXIT_FAILED;
    return sd_server_run(&server) == 0 ? EXIT_DONE : EXIT_FAILED;
}

int main(int argc, char **argv)
{
    static struct sd_config config;
    struct words words = {.file = NULL};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return fputs(help, stdout) < 0 ? EXIT_FAILED : EXIT_DONE;
        }
        if (strcmp(argv[i], "--version") == 0) {
            return printf("statecached %s, protocol %d\n", sc_version(), SC_WIRE_VERSION) < 0 ?
                EXIT_FAILED : EXIT_DONE;
        }
    }
    sd_config_init(&config);
    int code = parse(argc, argv, &words, &config);
    if (code != EXIT_DONE) return code;
    bool good = !words.file || sd_config_read(&config, words.file, stderr);
    if (!sd_config_overrides(&config, &config, stderr)) good = false;
    if (good) good = sd_config_finish(&config, stderr);
    if (!good) return EXIT_CONFIG;
    if (words.print) sd_config_print(&config, stdout);
    if (words.check || words.print) return EXIT_DONE;
    return run(&config);
}

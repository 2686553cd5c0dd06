/* SPDX-License-Identifier: Apache-2.0 */
/* statecachectl: what an operator does by hand, to a store of records and to a service. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"
#include "snapshot/codec.h"

enum { FILE_BYTES = 64 << 20 };

static const char help[] =
    "usage: statecachectl store COMMAND DIR [options]\n"
    "       statecachectl schema FILE [options]\n"
#if SC_CTL_SERVICE
    "       statecachectl (status|tree|explain|evict|pin|unpin|pins|quota) [options]\n"
    "       statecachectl events tail ADDRESS [options]\n"
#endif
    "\n"
    "schema: what the states of a model are, from its config.json (schema --help).\n"
    "\n"
#if SC_CTL_SERVICE
    "of a service that runs (statecached):\n"
    "\n"
    "  status             what it holds, what was found, who is connected; 1: it has a problem\n"
    "\n"
    "  tree               the tokens that it knows, and where it has states (--depth N,\n"
    "                     --rows N); of a PROMPT or tenant what begins with it\n"
    "  explain PROMPT     what would be resumed, why no more, and what would make it hit\n"
    "  evict WHAT         a PROMPT with all that begins with it, a tenant (--tenant alone),\n"
    "                     --all, or the N least valuable states (--states N)\n"
    "  pin PROMPT --seconds N   keeps its longest state; prints the number of the pin\n"
    "  unpin NUMBER, pins       ends one; lists all\n"
    "  quota [TENANT [--bytes N]]  what tenants have and may have; sets it until a reload\n"
    "\n"
    "  PROMPT: --tokens 1,2,3 or --tokens-from FILE (numbers, commas, blanks; or JSON), and\n"
    "  with it --tenant NAME, --mark AT:ID (32 hexadecimal digits), --adapter ID[:GENERATION],\n"
    "  --len-max N\n"
    "\n"
    "  --socket PATH      its Unix socket; default statecached.sock\n"
    "  --connect H:PORT   instead: its TCP port, in numbers\n"
    "  --token-file FILE  its first line is said as the token; needed over TCP\n"
    "\n"
    "  events tail ADDRESS   what is published there (events_publish), a line an event, until it\n"
    "                     is interrupted; --replay ADDRESS: first what was before, and what was\n"
    "                     missed (--from N: from that batch on), --topic T, --count N: events,\n"
    "                     --seconds N: ends when nothing came for so long\n"
    "\n"
#endif
    "store works on a folder of the disk tier while no service has it open:\n"
    "\n"
    "  ls DIR             a line for each record, and how full the store is\n"
    "  verify DIR         metadata against itself, every payload against its checksum\n"
    "                     (--quick: metadata alone)\n"
    "  gc DIR             drop what is damaged or can never be used, give empty files back\n"
    "  dump DIR ID        all about one record (--tokens: its whole key)\n"
    "  export DIR FILE    all records, or one (--id ID) with those before it, into one file\n"
    "  import DIR FILE    the records of such a file; DIR is made if it is not there\n"
    "                     (--bytes-max N: its budget; older ones make room)\n"
    "\n"
    "  --json             for programs: one JSON object a line\n"
    "  --help, --version\n"
    "\n"
    "FILE may be - : standard output, standard input.\n"
    "exit status: 0 done; 1 done, and something is damaged or was not imported; 2 wrong usage;\n"
    "3 the store cannot be opened, or the service not reached; 4 failed\n";

int ctl_fail(const char *what, int code)
{
    const struct sc_error_info *error = sc_last_error();
    (void)fprintf(stderr, "statecachectl: %s: %s (%s)\n", what, error->text,
        sc_status_name(error->status));
    return code;
}

void ctl_hex(FILE *out, const uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) (void)fprintf(out, "%02x", bytes[i]);
}

const char *ctl_codec_name(uint32_t codec)
{
    const struct sc_codec *row = NULL;
    return sc_codec_by_id(codec, &row) == SC_OK ? row->name : "unknown";
}

int ctl_usage(const char *text, const char *word)
{
    (void)fprintf(stderr, "statecachectl: %s%s%s\nTry statecachectl --help.\n", text,
        word ? " " : "", word ? word : "");
    return CTL_USAGE;
}

static bool number(const char *text, uint64_t max, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    if (!text || text[0] < '0' || text[0] > '9') return false;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || value > max) return false;
    *out = value;
    return true;
}

struct command {
    const char *name;
    int (*run)(const struct ctl_options *options, struct sc_store *store);
    bool wants_file, wants_id, makes;
    const char *options; /* words that it takes, each between blanks */
};
static const struct command commands[] = {
    {"ls", ctl_ls, false, false, false, " --json "},
    {"verify", ctl_verify, false, false, false, " --json --quick "},
    {"gc", ctl_gc, false, false, false, " --json "},
    {"dump", ctl_dump, false, true, false, " --json --tokens "},
    {"export", ctl_export, true, false, false, " --json --id "},
    {"import", ctl_import, true, false, true, " --json --bytes-max "},
};

static bool takes(const struct command *command, const char *word)
{
    char padded[40];
    (void)snprintf(padded, sizeof padded, " %.30s ", word);
    return strstr(command->options, padded) != NULL;
}

static int parse(const struct command *command, int argc, char **argv, struct ctl_options *out)
{
    uint64_t value = 0;
    int place = 0;
    for (int i = 3; i < argc; i++) {
        const char *word = argv[i];
        if (word[0] == '-' && word[1] != '\0') {
            if (!takes(command, word)) return ctl_usage("unknown option", word);
            if (strcmp(word, "--json") == 0) out->json = true;
            if (strcmp(word, "--quick") == 0) out->quick = true;
            if (strcmp(word, "--tokens") == 0) out->tokens = true;
            if (strcmp(word, "--id") == 0) {
                if (!number(argv[++i], UINT32_MAX - 1, &value)) {
                    return ctl_usage("--id needs an id", NULL);
                }
                out->id = (uint32_t)value;
                out->has_id = true;
            }
            if (strcmp(word, "--bytes-max") == 0 &&
                (!number(argv[++i], UINT64_MAX / 2, &out->bytes_max) || out->bytes_max < 4096)) {
                return ctl_usage("--bytes-max needs a number of bytes, 4096 or more", NULL);
            }
        } else if (place == 0) {
            out->folder = word;
            place++;
        } else if (place == 1 && command->wants_file) {
            out->file = word;
            place++;
        } else if (place == 1 && command->wants_id) {
            if (!number(word, UINT32_MAX - 1, &value)) return ctl_usage("not an id:", word);
            out->id = (uint32_t)value;
            place++;
        } else {
            return ctl_usage("too many words:", word);
        }
    }
    if (place < (command->wants_file || command->wants_id ? 2 : 1)) {
        return ctl_usage("too few words for store", command->name);
    }
    return CTL_OK;
}

/* Whether all that was printed has left. */
static int written_out(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return CTL_OK;
    (void)fprintf(stderr, "statecachectl: cannot write: %s\n", strerror(errno));
    return CTL_FAILED;
}

static int run(const struct command *command, const struct ctl_options *options)
{
    struct sc_store_options open = {.folder = options->folder, .must_exist = !command->makes,
        .bytes_max = options->bytes_max};
    /* Of a store that import makes: what is brought by hand is rarely large. */
    if (command->makes && (options->bytes_max == 0 || options->bytes_max > FILE_BYTES)) {
        open.file_bytes = FILE_BYTES;
    }
    struct sc_store *store = NULL;
    if (sc_store_open(&open, &store) != SC_OK) return ctl_fail(options->folder, CTL_OPEN);
    int code = command->run(options, store);
    sc_store_close(store);
    int written = written_out();
    return written == CTL_OK ? code : written;
}

/* Commands that talk to a service: each reads its own words. */
static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} service_commands[] = {
#if SC_CTL_SERVICE
    {"status", ctl_status},
    {"tree", ctl_tree},
    {"explain", ctl_explain},
    {"evict", ctl_evict},
    {"pin", ctl_pin},
    {"unpin", ctl_unpin},
    {"pins", ctl_pins},
    {"quota", ctl_quota},
    {"events", ctl_events},
#endif
    {NULL, NULL},
};

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "schema") == 0) return ctl_schema(argc, argv);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return fputs(help, stdout) < 0 ? CTL_FAILED : CTL_OK;
        }
        if (strcmp(argv[i], "--version") == 0) {
            return printf("statecachectl %s, store format %d\n", sc_version(),
                SC_STORE_FORMAT) < 0 ? CTL_FAILED : CTL_OK;
        }
    }
    for (size_t i = 0; argc > 1 && service_commands[i].name; i++) {
        if (strcmp(service_commands[i].name, argv[1]) != 0) continue;
        int code = service_commands[i].run(argc, argv);
        int written = written_out();
        return written == CTL_OK ? code : written;
    }
    if (argc < 3 || strcmp(argv[1], "store") != 0) {
        bool store = argc == 2 && strcmp(argv[1], "store") == 0;
        return ctl_usage(argc < 2 ? "what shall be done?" :
            store ? "what shall be done to the store?" : "there is no command",
            argc < 2 || store ? NULL : argv[1]);
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct ctl_options options = {.command = commands[i].name};
        if (strcmp(commands[i].name, argv[2]) != 0) continue;
        int code = parse(&commands[i], argc, argv, &options);
        return code == CTL_OK ? run(&commands[i], &options) : code;
    }
    return ctl_usage("there is no command store", argv[2]);
}

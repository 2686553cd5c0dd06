/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bars.h"
#include "replay.h"

enum key {
    KEY_TRACE = 256, KEY_SYSTEM_LEN, KEY_MESSAGE_LEN, KEY_OUTPUT_LEN, KEY_SEED, KEY_REQUESTS,
    KEY_BLOCK, KEY_SCALE, KEY_DECODE_MAX, KEY_SLOTS, KEY_KV_PAGES, KEY_PAGE,
    KEY_DECODE_INTERVAL, KEY_PATH_SNAPSHOTS,
    KEY_POLICY, KEY_BACKEND, KEY_LAYOUT, KEY_SAVE, KEY_KEEP_CUTS, KEY_KIND,
    KEY_STATE, KEY_CHUNK, KEY_LAYERS, KEY_ATTENTION_EVERY, KEY_HIDDEN, KEY_HEADS, KEY_V_HEADS,
    KEY_HEAD_DIM, KEY_ATTENTION_HEADS, KEY_ATTENTION_DIM, KEY_MLP, KEY_VOCAB, KEY_RUNNING,
    KEY_BUDGET, KEY_THREADS, KEY_TEMPERATURE, KEY_SPEED, KEY_NO_COMPUTE, KEY_NO_COLD,
    KEY_CHECK, KEY_SABOTAGE, KEY_VERIFY_EVERY, KEY_JSON, KEY_TAILS, KEY_TENANTS, KEY_IN_FLIGHT,
    KEY_DRAFT, KEY_DRAFT_TREE, KEY_DRAFT_ACCEPT, KEY_LATE_STOP, KEY_PREEMPT, KEY_FORK, KEY_FORKS,
    KEY_HOST_SLOTS, KEY_DISK, KEY_DISK_BYTES, KEY_HOST_WRITE, KEY_DISK_WRITE, KEY_BARS, KEY_COMPARE,
    KEY_RING, KEY_LOSE_FLUSH
};

static const struct argp_option option_list[] = {
    {NULL, 0, NULL, 0, "Workload", 1},
    {"trace", KEY_TRACE, "FILE", 0, "requests from FILE, JSON lines, plain or zstd (default: the "
        "built-in generator)", 0},
    {"seed", KEY_SEED, "N", 0, "of generator, weights, sampling and choice of checks (1)", 0},
    {"requests", KEY_REQUESTS, "N", 0, "so many (generator: 240; a trace: all). Of a trace, "
        "whole families that share a first block or session, the earliest first", 0},
    {"system-len", KEY_SYSTEM_LEN, "N", 0, "generator: mean tokens of a system prompt (640)", 0},
    {"message-len", KEY_MESSAGE_LEN, "N", 0, "generator: mean tokens of a message (48)", 0},
    {"output-len", KEY_OUTPUT_LEN, "N", 0, "generator: mean tokens of an answer (20)", 0},
    {"block", KEY_BLOCK, "N", 0, "tokens of a block in the trace (default: found from lengths and "
        "hash_ids)", 0},
    {"scale", KEY_SCALE, "N", 0, "replay a trace with blocks of N tokens, a multiple of the chunk "
        "(default: one chunk, or as in the trace with --no-compute)", 0},
    {"decode-max", KEY_DECODE_MAX, "N", 0, "decode at most N tokens of a trace's request where "
        "the trace does not say which (8; 0 with --no-compute)", 0},
    {"tenants", KEY_TENANTS, "N", 0, "N tenants. Generator: each session comes once from each, "
        "with the same words; the system prompt is common to all. A trace: families that share "
        "their first block alone are dealt out (0: no tenants)", 0},
    {"fork", KEY_FORK, "P", 0, "a share P of the requests is forked somewhere in its answer, into "
        "that many more answers as --forks says (0)", 0},
    {"forks", KEY_FORKS, "N", 0, "of each forked request (2)", 0},
    {NULL, 0, NULL, 0, "Cache", 2},
    {"slots", KEY_SLOTS, "N", 0, "states in the pool (192; with --no-compute as many as can ever "
        "be needed)", 0},
    {"kv-pages", KEY_KV_PAGES, "N", 0, "pages of attention KV (default: 65536 tokens or four of "
        "the longest requests; with --no-compute as many as can ever be needed)", 0},
    {"page", KEY_PAGE, "N", 0, "tokens of a page (16). Of a trace of blocks: the block, or what "
        "divides it", 0},
    {"chunk", KEY_CHUNK, "16|32|64", 0, "tokens of a chunk of prefill (16)", 0},
    {"layout", KEY_LAYOUT, "contiguous|page-major", 0, "of the pool (page-major)", 0},
    {"state", KEY_STATE, "fp32|bf16", 0, "dtype of states and conv windows (fp32)", 0},
    {"save", KEY_SAVE, "LIST", 0, "what the cache saves, of prompt,branch,decode,end (all). In a "
        "trace whose ids do not cover outputs, end is the prompt's end", 0},
    {"decode-interval", KEY_DECODE_INTERVAL, "N", 0, "tokens between states saved while "
        "decoding, multiple of the page (the page, or none with pages of 1)", 0},
    {"policy", KEY_POLICY, "NAME", 0, "which state goes when a slot is wanted, and whether a new "
        "one gets in: gittins, lru, lru-path, lru-sup, marconi, gdsf (gittins; with --no-compute "
        "lru, of which it is known beforehand what it saves)", 0},
    {"path-snapshots", KEY_PATH_SNAPSHOTS, "N", 0, "states on one path at most (no limit)", 0},
    {"keep-cuts", KEY_KEEP_CUTS, NULL, 0, "never cut a prefill row back to the grid", 0},
    {"tails", KEY_TAILS, NULL, 0, "keep ends of prompts and answers inside a page, too", 0},
    {"host-slots", KEY_HOST_SLOTS, "N", 0, "states, with their KV, in host memory below the pool "
        "(0: no such tier)", 0},
    {"disk", KEY_DISK, "DIR", 0, "a disk tier in DIR, which is made if it is not there; what an "
        "earlier run left is used (no such tier)", 0},
    {"disk-bytes", KEY_DISK_BYTES, "N", 0, "of the disk tier (1073741824)", 0},
    {"host-write", KEY_HOST_WRITE, "back|through|selective", 0, "when states go to host memory: "
        "before eviction, at once, at the second use (back)", 0},
    {"disk-write", KEY_DISK_WRITE, "back|through|selective", 0, "the same of the disk (through)",
        0},
    {NULL, 0, NULL, 0, "Model", 3},
    {"kind", KEY_KIND, "gdn|kda|mamba2", 0, "of linear layers; mamba2 has --heads groups, and "
        "no drafts (gdn)", 0},
    {"layers", KEY_LAYERS, "N", 0, "(4)", 0},
    {"attention-every", KEY_ATTENTION_EVERY, "N", 0, "each N-th layer is full attention (4)", 0},
    {"hidden", KEY_HIDDEN, "N", 0, "multiple of 8 (64)", 0},
    {"heads", KEY_HEADS, "N", 0, "q and k heads of a linear layer (2)", 0},
    {"v-heads", KEY_V_HEADS, "N", 0, "v heads, multiple of heads (4; kda: 2)", 0},
    {"head-dim", KEY_HEAD_DIM, "N", 0, "of linear layers, at most 256 (32)", 0},
    {"attention-heads", KEY_ATTENTION_HEADS, "N", 0, "(2)", 0},
    {"attention-dim", KEY_ATTENTION_DIM, "N", 0, "multiple of 8 (32)", 0},
    {"backend", KEY_BACKEND, "host|cuda", 0, "where the state pool lies and linear layers run; "
        "without such a device nothing is done, and the exit status is 77 (host)", 0},
    {"mlp", KEY_MLP, "N", 0, "inner width (128)", 0},
    {"vocab", KEY_VOCAB, "N", 0, "(512)", 0},
    {"ring", KEY_RING, "N", 0, "ReplaySSM: decoded tokens become records beside a state, which is "
        "written once for N of them, at most 64 (0: with every token). Not with --draft", 0},
    {NULL, 0, NULL, 0, "Scheduler", 4},
    {"running", KEY_RUNNING, "N", 0, "requests in a batch at most (8; 1 with --no-compute)", 0},
    {"budget", KEY_BUDGET, "N", 0, "tokens of a step (256; no limit with --no-compute)", 0},
    {"threads", KEY_THREADS, "N", 0, "for the model; no influence on results (all processors, at "
        "most 8)", 0},
    {"temperature", KEY_TEMPERATURE, "X", 0, "of sampling, 0 is greedy (1)", 0},
    {"speed", KEY_SPEED, "X", 0, "arrivals X times as fast as the trace says (default: so that "
        "batches form; generator: 1)", 0},
    {"in-flight", KEY_IN_FLIGHT, "N", 0, "steps in flight, 1 to 3: the next is planned before the "
        "results of the last are seen (1)", 0},
    {"draft", KEY_DRAFT, "N", 0, "draft tokens of a decode row, at most 16 (0). What plain "
        "decoding gives is found first, for the drafter", 0},
    {"draft-tree", KEY_DRAFT_TREE, NULL, 0, "drafts are a tree, of a seeded shape", 0},
    {"draft-accept", KEY_DRAFT_ACCEPT, "X", 0, "how often a seeded coin lets the drafter be right "
        "(0.7)", 0},
    {"late-stop", KEY_LATE_STOP, NULL, 0, "where an answer ends is not known beforehand: rows "
        "behind the end are in flight when it is seen", 0},
    {"preempt", KEY_PREEMPT, "P", 0, "after a share P of its steps a request is preempted; it "
        "keeps what it has and comes back (0)", 0},
    {NULL, 0, NULL, 0, "What to do", 5},
    {"no-compute", KEY_NO_COMPUTE, NULL, 0, "replay through index and pool alone, one request at "
        "a time in order of arrival", 0},
    {"no-cold", KEY_NO_COLD, NULL, 0, "do not measure the run without a cache", 0},
    {"check", KEY_CHECK, "N", 0, "run N of the requests again, alone and cold, and compare every "
        "output and state bit for bit, and with a float64 run", 0},
    {"sabotage", KEY_SABOTAGE, "SEED", 0, "flip one bit of a state before it is used; implies "
        "--check 1 and --no-cold; the check must then fail", 0},
    {"lose-flush", KEY_LOSE_FLUSH, "N", 0, "with --ring: the N-th flush is an append; implies "
        "--check of all requests and --no-cold; the check must then fail", 0},
    {"verify-every", KEY_VERIFY_EVERY, "N", 0, "walk all of the cache every N steps (at the end "
        "only)", 0},
    {"json", KEY_JSON, NULL, 0, "print one JSON object, on one line, instead of text", 0},
    {"compare-kernels", KEY_COMPARE, "N", 0, "run N times with the fast kernels and N times with "
        "the reference ones, in turns, and print the medians; implies --no-cold. Other defaults: "
        "60 requests, 8 times as fast, 16 running, one thread, 64 slots; heads 16 and 32 of 128, "
        "bf16 states, chunk and page 64", 0},
    {"bars", KEY_BARS, NULL, 0, BENCH_BARS_HELP ". Here: what was served must be right", 0},
    {0}};

/* Whole numbers: where they go and what is allowed. */
struct number {
    enum key key;
    size_t at;
    uint32_t min, max;
};
#define NUMBER(key, member, min, max) {key, offsetof(struct replay_options, member), min, max}
static const struct number numbers[] = {
    NUMBER(KEY_SYSTEM_LEN, generator.system_len, 1, 1000000),
    NUMBER(KEY_MESSAGE_LEN, generator.message_len, 1, 1000000),
    NUMBER(KEY_OUTPUT_LEN, generator.output_len, 1, 1000000),
    NUMBER(KEY_REQUESTS, requests, 1, 10000000), NUMBER(KEY_BLOCK, block, 1, 65536),
    NUMBER(KEY_SCALE, scale, 1, 65536), NUMBER(KEY_DECODE_MAX, decode_max, 0, 1000000),
    NUMBER(KEY_SLOTS, slots, 2, 100000000), NUMBER(KEY_KV_PAGES, kv_pages, 2, 1000000000),
    NUMBER(KEY_PAGE, page, 1, 65536), NUMBER(KEY_CHUNK, model.chunk, 16, 64),
    NUMBER(KEY_DECODE_INTERVAL, decode_interval, 1, 1000000),
    NUMBER(KEY_PATH_SNAPSHOTS, path_snapshots, 1, 1000000),
    NUMBER(KEY_LAYERS, model.layers, 1, 256),
    NUMBER(KEY_ATTENTION_EVERY, model.attention_every, 1, 256),
    NUMBER(KEY_HIDDEN, model.hidden, 8, 8192), NUMBER(KEY_HEADS, model.heads, 1, 256),
    NUMBER(KEY_V_HEADS, model.v_heads, 1, 256), NUMBER(KEY_HEAD_DIM, model.head_dim, 8, 256),
    NUMBER(KEY_ATTENTION_HEADS, model.attention_heads, 1, 256),
    NUMBER(KEY_ATTENTION_DIM, model.attention_dim, 8, 512), NUMBER(KEY_MLP, model.mlp, 8, 65536),
    NUMBER(KEY_VOCAB, model.vocab, 2, 1000000), NUMBER(KEY_RUNNING, running, 1, 4096),
    NUMBER(KEY_BUDGET, budget, 1, 1000000), NUMBER(KEY_THREADS, threads, 1, 16),
    NUMBER(KEY_TENANTS, tenants, 2, 1000), NUMBER(KEY_FORKS, forks, 1, 16),
    NUMBER(KEY_IN_FLIGHT, in_flight, 1, IN_FLIGHT_MAX), NUMBER(KEY_DRAFT, drafts, 1, DRAFTS_MAX),
    NUMBER(KEY_HOST_SLOTS, host_slots, 1, 100000000),
    NUMBER(KEY_RING, model.ring, 1, SC_REPLAY_RECORDS_MAX),
    NUMBER(KEY_LOSE_FLUSH, lose_flush, 1, 1000000),
    NUMBER(KEY_COMPARE, compare, 1, 101), NUMBER(KEY_CHECK, check, 1, 1000000),
    NUMBER(KEY_VERIFY_EVERY, verify_every, 1, 1000000000)};

/* What the user calls the option. */
static const char *option_name(int key)
{
    const struct argp_option *option = option_list;
    while (option->key != key)
        option++;
    return option->name;
}

static uint64_t parse_whole(struct argp_state *state, int key, const char *text, uint64_t min,
    uint64_t max)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || errno || value < min || value > max)
        argp_error(state, "--%s: '%s' is not a whole number from %llu to %llu", option_name(key),
            text, (unsigned long long)min, (unsigned long long)max);
    return value;
}

static double parse_real(struct argp_state *state, int key, const char *text, double max)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0 && value <= max))
        argp_error(state, "--%s: '%s' is not a number from 0 to %g", option_name(key), text, max);
    return value;
}

/* One of two words; returns 0 or 1. */
static int parse_word(struct argp_state *state, int key, const char *text, const char *zero,
    const char *one)
{
    if (strcmp(text, zero) && strcmp(text, one))
        argp_error(state, "--%s: '%s' is neither %s nor %s", option_name(key), text, zero, one);
    return strcmp(text, one) == 0;
}

static unsigned parse_save(struct argp_state *state, const char *text)
{
    static const char *const names[] = {"prompt", "branch", "decode", "end"};
    unsigned save = 0;
    while (*text) {
        size_t length = strcspn(text, ","), i = 0;
        while (i < 4 && (strlen(names[i]) != length || strncmp(names[i], text, length)))
            i++;
        if (i == 4)
            argp_error(state, "--save: '%.*s' is none of prompt, branch, decode, end", (int)length,
                text);
        save |= 1u << i;
        text += length + (text[length] == ',');
    }
    if (save == 0)
        argp_error(state, "--save: nothing to save");
    return save;
}

/* A tier's SC_TIER_WRITE_. */
static uint32_t parse_write(struct argp_state *state, int key, const char *text)
{
    static const char *const names[] = {"back", "through", "selective"};
    for (uint32_t i = 0; i < 3; i++)
        if (!strcmp(text, names[i]))
            return SC_TIER_WRITE_BACK + i;
    argp_error(state, "--%s: '%s' is none of back, through, selective", option_name(key), text);
    return 0;
}

static bool parse_number(struct argp_state *state, struct replay_options *o, int key,
    const char *text)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if ((int)numbers[i].key != key)
            continue;
        uint32_t value = (uint32_t)parse_whole(state, key, text, numbers[i].min,
            numbers[i].max);
        memcpy((char *)o + numbers[i].at, &value, sizeof value);
        return true;
    }
    return false;
}

static error_t parse_word_option(struct argp_state *state, struct replay_options *o, int key,
    char *text)
{
    switch (key) {
    case KEY_LAYOUT:
        o->layout = parse_word(state, key, text, "contiguous", "page-major")
            ? SC_LAYOUT_PAGE_MAJOR
            : SC_LAYOUT_CONTIGUOUS;
        return 0;
    case KEY_KIND:
        o->model.mamba = strcmp(text, "mamba2") == 0;
        o->model.kind = !o->model.mamba && parse_word(state, key, text, "gdn", "kda")
            ? SC_K_KIND_KDA
            : SC_K_KIND_GDN;
        return 0;
    case KEY_STATE:
        o->model.state_dtype = parse_word(state, key, text, "fp32", "bf16") ? SC_DTYPE_BF16
                                                                            : SC_DTYPE_F32;
        return 0;
    case KEY_SAVE:
        o->save = parse_save(state, text);
        return 0;
    case KEY_TEMPERATURE:
        o->temperature = parse_real(state, key, text, 100);
        return 0;
    case KEY_SPEED:
        o->speed = parse_real(state, key, text, 1e9);
        return 0;
    case KEY_DRAFT_ACCEPT:
        o->draft_accept = parse_real(state, key, text, 1);
        return 0;
    case KEY_PREEMPT:
        o->preempt = parse_real(state, key, text, 0.5);
        return 0;
    case KEY_FORK:
        o->fork = parse_real(state, key, text, 1);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct replay_options *o = state->input;
    switch (key) {
    case KEY_TRACE:
        o->trace = text;
        return 0;
    case KEY_POLICY:
        o->policy = text;
        return 0;
    case KEY_DISK:
        o->disk = text;
        return 0;
    case KEY_DISK_BYTES:
        o->disk_bytes = parse_whole(state, key, text, 65536, (uint64_t)1 << 50);
        return 0;
    case KEY_HOST_WRITE:
        o->host_write = parse_write(state, key, text);
        return 0;
    case KEY_DISK_WRITE:
        o->disk_write = parse_write(state, key, text);
        return 0;
    case KEY_BACKEND:
        o->backend = text;
        return 0;
    case KEY_SEED:
        o->seed = parse_whole(state, key, text, 0, UINT64_MAX);
        return 0;
    case KEY_SABOTAGE:
        o->sabotage = true;
        o->sabotage_seed = parse_whole(state, key, text, 0, UINT64_MAX);
        return 0;
    case KEY_KEEP_CUTS:
        return (int)!(o->keep_cuts = true);
    case KEY_NO_COMPUTE:
        return (int)!(o->no_compute = true);
    case KEY_NO_COLD:
        return (int)!(o->no_cold = true);
    case KEY_JSON:
        return (int)!(o->json = true);
    case KEY_BARS:
        return (int)!(o->bars = true);
    case KEY_TAILS:
        return (int)!(o->tails = true);
    case KEY_DRAFT_TREE:
        return (int)!(o->draft_tree = true);
    case KEY_LATE_STOP:
        return (int)!(o->late_stop = true);
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is not an option", text);
        return EINVAL;
    default:
        if (parse_number(state, o, key, text))
            return 0;
        return parse_word_option(state, o, key, text);
    }
}

static void refuse(const char *text)
{
    bench_fail(BENCH_USAGE, "%s (see replay --help)", text);
}

static void check_together(const struct replay_options *o)
{
    const struct served_options *m = &o->model;
    if (m->chunk != 16 && m->chunk != 32 && m->chunk != 64)
        refuse("--chunk must be 16, 32 or 64");
    if (o->compare && (o->no_compute || o->sabotage || o->disk || o->model.backend))
        refuse("--compare-kernels: not with --no-compute, --sabotage, --disk or --backend");
    if (!o->disk && (o->disk_bytes || o->disk_write))
        refuse("--disk-bytes and --disk-write need --disk");
    if (!o->host_slots && o->host_write)
        refuse("--host-write needs --host-slots");
    if (o->no_compute && (o->check || o->sabotage))
        refuse("--check and --sabotage need the model: not with --no-compute");
    if (o->no_compute && o->model.backend)
        refuse("--backend is of the model: not with --no-compute");
    if (o->drafts && o->model.backend)
        refuse("--draft needs the kernels of draft tokens, which a device does not have yet");
    if (m->mamba && (o->drafts || o->model.backend))
        refuse("--kind mamba2 has no kernels for --draft, nor for a device");
    if (m->ring && o->no_compute)
        refuse("--ring is of the model: not with --no-compute");
    if (m->ring && o->drafts)
        refuse("--ring: not with --draft, whose rows need the state itself: where rings are "
            "flushed would depend on what was drafted, and a rerun knows nothing of drafts");
    if (m->ring && m->backend)
        refuse("--ring needs the kernels of rings, which a device does not have yet");
    if (o->lose_flush && !m->ring)
        refuse("--lose-flush needs --ring");
    if (!o->trace && (o->block || o->scale))
        refuse("--block and --scale are for a trace");
    if (o->scale % m->chunk != 0)
        refuse("--scale must be a multiple of the chunk");
    if (m->hidden % 8 || m->attention_dim % 8 || m->head_dim % 8)
        refuse("--hidden, --head-dim and --attention-dim must be multiples of 8");
    if (o->drafts == 0 && (o->draft_tree || o->draft_accept >= 0))
        refuse("--draft-tree and --draft-accept need --draft");
    if (o->forks && o->fork <= 0)
        refuse("--forks needs --fork");
    if (m->v_heads % m->heads)
        refuse("--v-heads must be a multiple of --heads");
    if (m->attention_every > m->layers)
        refuse("--attention-every must not exceed --layers: the model needs an attention layer");
    if (m->attention_every == 1)
        refuse("--attention-every must be 2 or more: the model needs a linear layer");
}

static void open_backend(struct replay_options *o)
{
    if (!o->backend)
        o->backend = "host";
    if (!strcmp(o->backend, "host"))
        return;
    sc_status status = sc_backend_open(o->backend, &o->model.backend);
    if (status != SC_OK)
        bench_fail(status == SC_ERR_UNSUPPORTED ? BENCH_SKIPPED : BENCH_USAGE, "--backend: %s",
            sc_last_error()->text);
}

static void set_defaults(struct replay_options *o)
{
    if (o->model.v_heads == 0)
        o->model.v_heads = o->model.kind == SC_K_KIND_GDN ? 2 * o->model.heads : o->model.heads;
    o->page_given = o->page != 0;
    if (o->page == 0)
        o->page = 16;
    if (o->requests == 0 && !o->trace)
        o->requests = 240;
    if (o->decode_max == UINT32_MAX)
        o->decode_max = o->no_compute ? 0 : 8;
    if (!o->policy)
        o->policy = o->no_compute ? "lru" : "gittins";
    if (o->running == 0)
        o->running = o->no_compute ? 1 : 8;
    if (o->budget == 0 && !o->no_compute)
        o->budget = 256;
    if (o->threads == 0) {
        long processors = sysconf(_SC_NPROCESSORS_ONLN);
        o->threads = processors < 1 ? 1 : processors > 8 ? 8 : (uint32_t)processors;
    }
    o->no_cold |= o->sabotage || o->compare > 0 || o->lose_flush > 0;
    if (o->sabotage && o->check == 0)
        o->check = 1;
    o->model.seed = o->seed;
}

/* Those that mean something only with another option: after it is known whether both were given. */
static void set_dependent_defaults(struct replay_options *o)
{
    if (o->draft_accept < 0)
        o->draft_accept = 0.7;
    if (o->forks == 0)
        o->forks = 2;
    if (o->disk_bytes == 0)
        o->disk_bytes = (uint64_t)1 << 30;
    if (o->host_write == 0)
        o->host_write = SC_TIER_WRITE_BACK;
    if (o->disk_write == 0)
        o->disk_write = SC_TIER_WRITE_THROUGH;
}

/* The head sizes of Qwen3-Next, so that the states count, and batches as a busy server has them. */
static void set_compare_defaults(struct replay_options *o)
{
    o->requests = 60;
    o->running = 16;
    o->speed = 8;
    o->threads = 1;
    o->slots = 64;
    o->page = 64;
    o->model.heads = 16;
    o->model.v_heads = 32;
    o->model.head_dim = 128;
    o->model.chunk = 64;
    o->model.state_dtype = SC_DTYPE_BF16;
}

void replay_options_parse(struct replay_options *o, int argc, char **argv)
{
    static const struct argp argp = {.options = option_list, .parser = parse,
        .doc = "Serves a workload of requests with a small hybrid model on top of statecache, and "
               "without it, and shows what the cache was good for.\v"
               "Exit status: 0 all well; 1 a check or an account failed, or a call of the "
               "library; 2 bad usage or an unreadable trace; 3 out of memory; 77 no such device."};
    *o = (struct replay_options){.seed = 1, .decode_max = UINT32_MAX,
        .generator = GENERATOR_OPTIONS_INIT, .layout = SC_LAYOUT_PAGE_MAJOR,
        .save = SAVE_ALL, .temperature = 1, .in_flight = 1, .draft_accept = -1};
    o->model = (struct served_options){.kind = SC_K_KIND_GDN, .state_dtype = SC_DTYPE_F32,
        .layers = 4, .attention_every = 4, .hidden = 64, .heads = 2, .head_dim = 32,
        .attention_heads = 2, .attention_dim = 32, .mlp = 128, .vocab = 512, .chunk = 16};
    argp_err_exit_status = BENCH_USAGE;
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "--compare-kernels", strlen("--compare-kernels")))
            set_compare_defaults(o);
    argp_parse(&argp, argc, argv, 0, NULL, o);
    set_defaults(o);
    open_backend(o);
    check_together(o);
    set_dependent_defaults(o);
}

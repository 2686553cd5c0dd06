/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_main.h"
#include "kernels_run.h"

enum key { KEY_THREADS = 256, KEY_ROUNDS, KEY_POOL, KEY_OP, KEY_MODEL, KEY_QUICK, KEY_TOKENS,
    KEY_NO_SGEMM, KEY_RIVAL, KEY_RIVAL_WAIT, KEY_JSON, KEY_BARS };
enum { POOL_MIB = 640, CACHE_MAX = 1 << 30, WAIT_S = 300 };

static const struct argp_option option_list[] = {
    {"op", KEY_OP, "NAME", 0, "only operations whose name contains NAME", 0},
    {"model", KEY_MODEL, "NAME", 0, "only models whose name contains NAME", 0},
    {"threads", KEY_THREADS, "N", 0, "of operations and of both limits (1)", 0},
    {"rounds", KEY_ROUNDS, "N", 0, "of which medians are taken (decode 25, others 5)", 0},
    {"pool-mib", KEY_POOL, "N", 0,
        "states of a decode (640, or twice the last-level cache if that is more)", 0},
    {"tokens-max", KEY_TOKENS, "N", 0, "cut prefills to N tokens (4096)", 0},
    {"quick", KEY_QUICK, NULL, 0, "one batch and one length of each operation", 0},
    {"no-sgemm", KEY_NO_SGEMM, NULL, 0, "without OpenBLAS: that limit is not measured", 0},
    {"rival", KEY_RIVAL, "COMMAND", 0,
        "a program that runs the same with others' code, in turns: bench/kernels_torch.py", 0},
    {"rival-wait", KEY_RIVAL_WAIT, "N", 0, "seconds that it has for an answer (300)", 0},
    {"json", KEY_JSON, NULL, 0, "objects, a line each", 0},
    {"bars", KEY_BARS, NULL, 0, BENCH_BARS_HELP
        ". What memory bounds is not measured unless the pool exceeds the last-level cache", 0},
    {0},
};

static const struct kbench_model models[] = {
    {"qwen3-next", SC_K_KIND_GDN, 16, 32, 128, 128, false},
    {"kimi-linear", SC_K_KIND_KDA, 32, 32, 128, 128, false},
    {"nemotron-h", SC_K_KIND_GDN, 8, 128, 128, 64, true}, /* groups, heads, N, P */
};
enum { MODELS = sizeof models / sizeof *models };

static const uint32_t batches[] = {1, 4, 16, 64}, lengths[] = {64, 256, 1024, 4096};

static uint32_t number(struct argp_state *state, const char *text, uint32_t max)
{
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value < 1 || value > max)
        argp_error(state, "'%s' is not a number from 1 to %u", text, max);
    return (uint32_t)value;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct kbench_options *o = state->input;
    switch (key) {
    case KEY_THREADS: o->threads = number(state, text, KBENCH_THREADS_MAX); return 0;
    case KEY_ROUNDS: o->rounds = number(state, text, KBENCH_ROUNDS_MAX); return 0;
    case KEY_POOL: o->pool_mib = number(state, text, 1 << 20); return 0;
    case KEY_TOKENS: o->tokens_max = number(state, text, 4096); return 0;
    case KEY_OP: o->op = text; return 0;
    case KEY_MODEL: o->model = text; return 0;
    case KEY_QUICK: o->quick = true; return 0;
    case KEY_NO_SGEMM: o->no_sgemm = true; return 0;
    case KEY_RIVAL: o->rival = text; return 0;
    case KEY_RIVAL_WAIT: o->rival_wait_s = number(state, text, 86400); return 0;
    case KEY_JSON: o->json = true; return 0;
    case KEY_BARS: o->bars = true; return 0;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is not an option", text); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Of the last level, as far as the system tells; a level that many machines' worth of processors
 * share, as virtual machines claim, counts as CACHE_MAX. */
static uint64_t cache_bytes(void)
{
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes <= 0)
        bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes <= 0 ? 0 : bytes > CACHE_MAX ? CACHE_MAX : (uint64_t)bytes;
}

/* A round of a decode is short, and what a shared machine does to one is of the size of what is
 * judged: hence more of them. */
static void run_case(struct kbench_case *c, const struct kbench_options *o, bool blas,
    struct kbench_rival *rival, struct bench_bars *bars)
{
    struct kbench_options own = *o;
    if (own.rounds == 0)
        own.rounds = c->op == KBENCH_DECODE ? KBENCH_DECODE_ROUNDS : KBENCH_ROUNDS;
    struct kbench_result r = kbench_measure(c, &own, blas);
    r.rival = kbench_rival_ask(rival, c, (uint64_t)o->pool_mib << 20, o->threads,
        o->rounds > 0 ? o->rounds : KBENCH_ROUNDS);
    kbench_report(c, &own, &r);
    kbench_judge(c, &own, &r, bars);
}

static void run_op(enum kbench_op op, const struct kbench_model *model,
    const struct kbench_options *o, bool blas, struct kbench_rival *rival, struct bench_bars *bars)
{
    bool rows = op == KBENCH_DECODE || op == KBENCH_CONV_UPDATE || op == KBENCH_VERIFY
        || op == KBENCH_REPLAY;
    bool delta = op == KBENCH_CHUNK || op == KBENCH_DECODE || op == KBENCH_VERIFY
        || op == KBENCH_REPLAY;
    bool state = delta || op == KBENCH_RECURRENT || op == KBENCH_CONV_PREFILL || rows;
    const uint32_t *list = rows ? batches : lengths;
    for (uint32_t s = 0; s < 2; s++) /* fp32, then bf16 */
        for (uint32_t i = 0; i < 4; i++) {
            if (o->quick ? i != 2 : !rows && op != KBENCH_CHUNK && i != 2)
                continue;
            struct kbench_case c = {.op = op, .model = model, .dtype = SC_DTYPE_F32, .passes = 1,
                .batch = rows ? list[i] : 1, .tokens = op == KBENCH_VERIFY ? KBENCH_DRAFTS
                    : rows ? 1 : list[i]};
            if (c.tokens > o->tokens_max)
                c.tokens = o->tokens_max;
            if (s == 1 && !delta)
                c.dtype = SC_DTYPE_BF16;
            if (state)
                c.state = s == 1 ? SC_DTYPE_BF16 : SC_DTYPE_F32;
            run_case(&c, o, blas, rival, bars);
        }
}

static bool chosen(const struct kbench_options *o, enum kbench_op op,
    const struct kbench_model *model)
{
    return (!o->op || strstr(kbench_op_name(op), o->op)) && (!o->model
        || strstr(model->name, o->model)) && kbench_has(model, op);
}

int kernels_main(int argc, char **argv)
{
    static const struct argp argp = {.options = option_list, .parser = parse,
        .doc = "Measures the host's kernels beside limits that are measured in the same run: "
               "x *= c in place over the same memory, and sgemm of OpenBLAS.\v"
               "us: one call. GB/s, GFLOP/s: what has to be moved and computed (chunk: 6KV + "
               "128(3K+2V) a token and v head) over that time; then the limit's rate, and how "
               "much of it is reached: the median over rounds, each with its own measure of the "
               "limit. Of a ring: a cycle of 16 tokens beside 16 decodes of the same slots. The "
               "rival gets the rows of all threads in one call, which it computes with as many. "
               "SC_KERNELS=reference or avx2 measures those kernel rows."};
    struct kbench_options o = {.threads = 1, .tokens_max = 4096,
        .rival_wait_s = WAIT_S, .cache_bytes = cache_bytes()};
    o.pool_mib = (uint32_t)(2 * o.cache_bytes >> 20);
    if (o.pool_mib < POOL_MIB)
        o.pool_mib = POOL_MIB;
    argp_err_exit_status = BENCH_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    char blas[160] = "not asked for";
    bool has_blas = !o.no_sgemm && kbench_blas_open(o.threads, blas, sizeof blas);
    struct kbench_rival rival;
    kbench_rival_open(&rival, o.rival, o.rival_wait_s);
    struct bench_bars bars = {0};
    bool any = false;
    for (int op = 0; op < KBENCH_OPS; op++)
        for (int m = 0; m < MODELS; m++) {
            if (!chosen(&o, (enum kbench_op)op, &models[m]))
                continue;
            if (!any)
                kbench_head(&o, blas, &rival);
            any = true;
            run_op((enum kbench_op)op, &models[m], &o, has_blas, &rival, &bars);
        }
    kbench_rival_close(&rival);
    if (!any)
        bench_fail(BENCH_USAGE, "no operation or no model has that name");
    if (o.bars && !o.json)
        putchar('\n');
    int code = o.bars ? bench_bars_end(&bars, o.json ? stderr : stdout) : BENCH_OK;
    free(bars.judged);
    return code;
}

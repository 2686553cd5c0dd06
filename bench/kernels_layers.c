/* SPDX-License-Identifier: Apache-2.0 */
/* `statecache-bench layers`: what stands around the recurrence, on one thread.
 *
 *   stage     the KDA stage with its gate folded, made before, and by the chain, at each batch: the
 *             source of its default sets. Rounds run the three in turns; medians, and the median of
 *             the ratios within a round
 *   project   thin products of 1 to 64 tokens: time, and GB/s of weights
 *   scan      the chunk scan of Mamba-2 beside the token-by-token form
 *   move      conversions, in GB/s of both ends */
#include <argp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bars.h"
#include "base/clock.h"
#include "base/prng.h"
#include "bench_common.h"
#include "bench_main.h"
#include "machine.h"

enum { ROUNDS_MAX = 51, BATCHES = 7 };

struct options {
    uint32_t rounds;
    bool quick, json, bars;
};

/* A figure as JSON, as every benchmark gives them; `params` is the inside of an object. */
static void json_line(const struct options *o, const char *metric, const char *unit, double value,
    const char *format, ...) __attribute__((format(printf, 5, 6)));
static void json_line(const struct options *o, const char *metric, const char *unit, double value,
    const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("{\"v\":1,\"bench\":\"layers\",\"params\":{", stdout);
    vprintf(format, args);
    printf("},\"metric\":\"%s\",\"unit\":\"%s\",\"n\":%u,\"p50\":%.5g", metric, unit, o->rounds,
        value);
    bench_machine_write(stdout);
    puts("}");
    va_end(args);
}

static const uint32_t batches[BATCHES] = {1, 2, 4, 8, 16, 32, 64};

static sc_devptr dev(const void *ptr)
{
    return (sc_devptr)(uintptr_t)ptr;
}

/* Small numbers, 64-byte aligned. */
static void *values(size_t count, sc_dtype dtype, float scale)
{
    size_t bytes = (count * (dtype == SC_DTYPE_BF16 ? 2 : 4) + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    struct sc_prng prng;
    if (!memory)
        bench_fail(BENCH_NO_MEMORY, "out of memory (%zu bytes)", bytes);
    sc_prng_seed(&prng, count);
    for (size_t i = 0; i < count; i++) {
        float x = scale * (float)(sc_prng_unit(&prng) - 0.5);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (dtype == SC_DTYPE_BF16)
            ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
        else
            ((float *)memory)[i] = x;
    }
    return memory;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *list, uint32_t count)
{
    qsort(list, count, sizeof *list, by_value);
    return count % 2 ? list[count / 2] : (list[count / 2 - 1] + list[count / 2]) / 2;
}

/* ---- the stage ---- */

/* Kimi-Linear's and GLM's head sizes, 16 heads of a rank. */
enum { HEADS = 16, DIM = 128, RANK = 128, ALL = HEADS * DIM };

struct stage {
    sc_kda_stage *way[3]; /* folded, before, chain */
    sc_kda_stage_params p;
    void *tensors[9];
    int32_t slots[64];
};

static void stage_open(struct stage *s, sc_dtype state)
{
    static const uint32_t fold[3] = {1u << 20, 0, 1u << 20};
    const sc_dtype bf16 = SC_DTYPE_BF16;
    float *gates = values(HEADS + ALL, SC_DTYPE_F32, 1.0f);
    void *all[] = {values(3 * ALL * 4, bf16, 1.0f), values((size_t)ALL * RANK, bf16, 0.2f),
        values((size_t)ALL * RANK, bf16, 0.2f), values(DIM, bf16, 1.0f), gates};
    memcpy(s->tensors, all, sizeof all);
    sc_kda_stage_options o = SC_KDA_STAGE_OPTIONS_INIT;
    o.heads = HEADS, o.dim = DIM, o.rank = RANK, o.conv_width = 4, o.dtype = bf16;
    o.weight_dtype = bf16, o.eps = 1e-5f;
    o.conv_weight = dev(all[0]), o.f_b = dev(all[1]), o.g_b = dev(all[2]);
    o.norm_weight = dev(all[3]);
    o.gates = (sc_k_gate_weights){.gate = SC_K_GATE_KDA_BOUNDED, .a_log = dev(gates),
        .dt_bias = dev(gates + HEADS), .dt_bias_dtype = SC_DTYPE_F32, .lower_bound = -5.0f};
    sc_kda_columns c;
    for (int i = 0; i < 3; i++) {
        o.fold_tokens = fold[i];
        if (i == 1) o.fold_tokens = 1, o.gate_tokens = 1u << 20;
        bench_must(sc_kda_stage_create(NULL, &o, NULL, &s->way[i]), "sc_kda_stage_create");
    }
    bench_must(sc_kda_stage_columns(s->way[0], &c), "sc_kda_stage_columns");
    size_t part = (size_t)ALL * DIM, elem = state == bf16 ? 2 : 4;
    s->tensors[5] = values((size_t)64 * c.count, bf16, 1.0f);
    s->tensors[6] = values((size_t)64 * ALL, bf16, 1.0f);
    s->tensors[7] = values((size_t)65 * 9 * ALL, bf16, 1.0f);
    s->tensors[8] = values(65 * part, state, 0.2f);
    for (int r = 0; r < 64; r++) s->slots[r] = r + 1;
    s->p = (sc_kda_stage_params){.key = {.tokens = 1, .window_stride = 9 * ALL * 2,
        .state_stride = (int64_t)(part * elem), .state_dtype = state}, .x = dev(s->tensors[5]),
        .y = dev(s->tensors[6]), .source = dev(s->slots), .dest = dev(s->slots),
        .window = {dev(s->tensors[7]), 9 * ALL * 2, bf16, 65},
        .state = {dev(s->tensors[8]), (int64_t)(part * elem), state, 65}};
}

static void stage_close(struct stage *s)
{
    for (int i = 0; i < 3; i++) sc_kda_stage_destroy(s->way[i]);
    for (size_t i = 0; i < sizeof s->tensors / sizeof s->tensors[0]; i++) free(s->tensors[i]);
}

/* Microseconds of a run; `way` 2 was not prepared. */
static double stage_time(struct stage *s, int way, uint32_t repeats)
{
    uint64_t start = sc_clock_thread_ns();
    for (uint32_t i = 0; i < repeats; i++)
        bench_must(sc_kda_stage_run(s->way[way], &s->p, NULL), "sc_kda_stage_run");
    return (double)(sc_clock_thread_ns() - start) / 1e3 / repeats;
}

static void measure_stage(const struct options *o, sc_dtype state)
{
    struct stage s;
    stage_open(&s, state);
    for (int b = 0; b < BATCHES; b++) {
        double time[3][ROUNDS_MAX], ratio[2][ROUNDS_MAX];
        uint64_t bytes = 0;
        uint32_t batch = batches[b], repeats = 1 + 32 / batch;
        if (o->quick && batch > 2)
            continue;
        s.p.key.requests = batch;
        for (int way = 0; way < 2; way++) /* a way that folds only one row, too */
            bench_must(sc_kda_stage_prepare(s.way[way], &s.p.key, &bytes), "prepare");
        void *scratch = values(bytes / 4 + 64, SC_DTYPE_F32, 0.0f);
        s.p.scratch = dev(scratch), s.p.scratch_bytes = bytes;
        for (uint32_t r = 0; r < o->rounds + 1; r++) /* the first one warms up */
            for (int way = 0; way < 3; way++) {
                uint32_t at = r > 0 ? r - 1 : 0;
                time[way][at] = stage_time(&s, way, repeats);
                if (way > 0)
                    ratio[way - 1][at] = time[way][at] / time[0][at];
            }
        if (o->json) {
            static const char *const ways[] = {"fold", "before", "chain"};
            for (int way = 0; way < 3; way++)
                json_line(o, "time", "us", median(time[way], o->rounds),
                    "\"part\":\"kda-stage\","
                    "\"state\":\"%s\",\"batch\":%u,\"way\":\"%s\"",
                    state == SC_DTYPE_BF16 ? "bf16" : "fp32", batch, ways[way]);
            free(scratch);
            continue;
        }
        printf("kda-stage  %s %5u  fold %9.1f us  before %9.1f us (%.3fx)  chain %9.1f us "
               "(%.3fx)\n", state == SC_DTYPE_BF16 ? "bf16" : "fp32", batch,
            median(time[0], o->rounds), median(time[1], o->rounds), median(ratio[0], o->rounds),
            median(time[2], o->rounds), median(ratio[1], o->rounds));
        free(scratch);
    }
    stage_close(&s);
}

/* ---- products, scan, movers ---- */

static double timed(sc_status (*call)(void *ctx), void *ctx, const struct options *o,
    const char *name)
{
    double time[ROUNDS_MAX];
    for (uint32_t r = 0; r < o->rounds + 1; r++) {
        uint64_t start = sc_clock_thread_ns();
        bench_must(call(ctx), name);
        time[r > 0 ? r - 1 : 0] = (double)(sc_clock_thread_ns() - start) / 1e3;
    }
    return median(time, o->rounds);
}

static sc_status call_project(void *p)
{
    return sc_k_project(NULL, p, NULL);
}

static void measure_project(const struct options *o)
{
    enum { IN = 2304, OUT = 4096 };
    void *x = values((size_t)64 * IN, SC_DTYPE_BF16, 1.0f);
    void *w = values((size_t)OUT * IN, SC_DTYPE_BF16, 0.1f);
    void *y = values((size_t)64 * OUT, SC_DTYPE_BF16, 0.0f);
    for (int b = 0; b < BATCHES; b++) {
        sc_k_project_params p = {.x = dev(x), .weight = dev(w), .y = dev(y),
            .dtype = SC_DTYPE_BF16, .weight_dtype = SC_DTYPE_BF16, .y_dtype = SC_DTYPE_BF16,
            .in_dim = IN, .out_dim = OUT, .token_count = batches[b]};
        if (o->quick && batches[b] > 2)
            continue;
        double us = timed(call_project, &p, o, "sc_k_project");
        if (o->json) {
            json_line(o, "time", "us", us, "\"part\":\"project\",\"tokens\":%u", batches[b]);
            continue;
        }
        printf("project    bf16 %5u  %9.1f us  %6.2f GB/s of weights  %7.2f GFLOP/s\n", batches[b],
            us, 2e-3 * IN * OUT / us, 2e-3 * IN * OUT * batches[b] / us);
    }
    free(x), free(w), free(y);
}

static sc_status call_scan(void *p)
{
    return sc_k_ssm_chunk(NULL, p, NULL);
}

static sc_status call_walk(void *p)
{
    return sc_k_ssm(NULL, &((sc_k_ssm_chunk_params *)p)->tokens, NULL);
}

/* Nemotron-H's head sizes, two groups of eight heads. */
static void measure_scan(const struct options *o)
{
    enum { SSM_HEADS = 16, P = 64, N = 128, GROUPS = 2, TOKENS = 1024 };
    uint32_t tokens = o->quick ? 64 : TOKENS;
    float *x = values((size_t)TOKENS * SSM_HEADS * P, SC_DTYPE_F32, 1.0f);
    float *bc = values((size_t)TOKENS * 2 * GROUPS * N, SC_DTYPE_F32, 1.0f);
    float *dt = values((size_t)TOKENS * SSM_HEADS, SC_DTYPE_F32, 1.0f);
    float *y = values((size_t)TOKENS * SSM_HEADS * P, SC_DTYPE_F32, 0.0f);
    float *a = values(SSM_HEADS, SC_DTYPE_F32, 1.0f);
    float *state = values((size_t)2 * SSM_HEADS * P * N, SC_DTYPE_F32, 0.0f);
    int32_t start[2] = {0, (int32_t)tokens}, source = 0, dest = 1;
    uint64_t bytes = 0;
    sc_k_ssm_chunk_params p = {.tokens = {.x = dev(x), .dt = dev(dt), .b = dev(bc),
        .c = dev(bc + GROUPS * N), .y = dev(y), .b_stride = 2 * GROUPS * N,
        .c_stride = 2 * GROUPS * N, .dtype = SC_DTYPE_F32, .a_log = dev(a), .heads = SSM_HEADS,
        .groups = GROUPS, .head_dim = P, .state_dim = N, .token_count = tokens, .row_count = 1,
        .row_start = dev(start), .source = dev(&source), .dest = dev(&dest),
        .state = {dev(state), SSM_HEADS * P * N * 4, SC_DTYPE_F32, 2}}, .chunk = 128};
    bench_must(sc_k_ssm_chunk_scratch(NULL, &p, &bytes), "sc_k_ssm_chunk_scratch");
    void *scratch = values(bytes / 4, SC_DTYPE_F32, 0.0f);
    p.scratch = dev(scratch), p.scratch_bytes = bytes;
    double scan = timed(call_scan, &p, o, "sc_k_ssm_chunk");
    double walk = timed(call_walk, &p, o, "sc_k_ssm");
    double flops = (double)tokens * (SSM_HEADS * (4.0 * N * P + 2.0 * 64 * P) + GROUPS * 128.0 * N);
    if (o->json) {
        json_line(o, "time", "us", scan, "\"part\":\"ssm scan\",\"tokens\":%u", tokens);
        json_line(o, "time", "us", walk, "\"part\":\"ssm token by token\",\"tokens\":%u", tokens);
    } else {
        printf("ssm scan   fp32 %5u  %9.1f us  %7.2f GFLOP/s; token by token %9.1f us (%.2fx)\n",
            tokens, scan, flops / scan / 1e3, walk, walk / scan);
    }
    free(x), free(bc), free(dt), free(y), free(a), free(state), free(scratch);
}

static sc_status call_move(void *p)
{
    return sc_k_move(NULL, p, NULL);
}

static void measure_move(const struct options *o)
{
    enum { ROWS = 4096, WIDTH = 128, COUNT = 16 };
    static const sc_dtype types[] = {SC_DTYPE_F32, SC_DTYPE_BF16, SC_DTYPE_U8};
    static const char *const names[] = {"fp32", "bf16", "int8"};
    static const size_t elem[] = {4, 2, 1};
    size_t part = (size_t)ROWS * WIDTH;
    void *from = values(part * COUNT, SC_DTYPE_F32, 1.0f);
    void *to = values(part * COUNT, SC_DTYPE_F32, 1.0f);
    float *scale = values((size_t)2 * ROWS * COUNT, SC_DTYPE_F32, 1.0f);
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++) {
            sc_k_slots none = {0}, scales[2] = {{dev(scale), ROWS * 4, SC_DTYPE_F32, COUNT},
                {dev(scale + (size_t)ROWS * COUNT), ROWS * 4, SC_DTYPE_F32, COUNT}};
            sc_k_move_part one = {.from = {dev(from), (int64_t)(part * elem[a]), types[a], COUNT},
                .to = {dev(to), (int64_t)(part * elem[b]), types[b], COUNT},
                .from_scale = a == 2 ? scales[0] : none, .to_scale = b == 2 ? scales[1] : none,
                .rows = ROWS, .row_elems = WIDTH};
            sc_k_move_params p = {.parts = &one, .part_count = 1,
                .row_count = o->quick ? 1 : COUNT};
            double us = timed(call_move, &p, o, "sc_k_move");
            if (o->json) {
                json_line(o, "time", "us", us,
                    "\"part\":\"move\",\"from\":\"%s\","
                    "\"to\":\"%s\"",
                    names[a], names[b]);
                continue;
            }
            printf("move       %s -> %s  %9.1f us  %6.2f GB/s\n", names[a], names[b], us,
                1e-3 * (double)(part * p.row_count * (elem[a] + elem[b])) / us);
        }
    free(from), free(to), free(scale);
}

/* ---- the command ---- */

enum { KEY_ROUNDS = 256, KEY_QUICK, KEY_JSON, KEY_BARS };

static const struct argp_option option_list[] = {
    {"rounds", KEY_ROUNDS, "N", 0, "of which medians are taken (9)", 0},
    {"quick", KEY_QUICK, NULL, 0, "small shapes", 0},
    {"json", KEY_JSON, NULL, 0, "print JSON lines instead of text", 0},
    {"bars", KEY_BARS, NULL, 0, "say that there are none here, as other benchmarks print theirs",
        0},
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case KEY_QUICK:
        o->quick = true;
        return 0;
    case KEY_JSON:
        o->json = true;
        return 0;
    case KEY_BARS:
        o->bars = true;
        return 0;
    default:
        break;
    }
    if (key == ARGP_KEY_ARG)
        argp_error(state, "'%s' is not an option", text);
    if (key != KEY_ROUNDS)
        return ARGP_ERR_UNKNOWN;
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value < 1 || value > ROUNDS_MAX)
        argp_error(state, "'%s' is not a number from 1 to %d", text, ROUNDS_MAX);
    o->rounds = (uint32_t)value;
    return 0;
}

int layers_main(int argc, char **argv)
{
    static const struct argp argp = {.options = option_list, .parser = parse,
        .doc = "Measures the KDA stage (its gate folded, made before it, and by the chain), thin "
               "products, the chunk scan and movers on one thread."};
    struct options o = {.rounds = 9};
    argp_err_exit_status = BENCH_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    measure_stage(&o, SC_DTYPE_F32);
    measure_stage(&o, SC_DTYPE_BF16);
    measure_project(&o);
    measure_scan(&o);
    measure_move(&o);
    struct bench_bars none = {0};
    return o.bars ? bench_bars_end(&none, o.json ? stderr : stdout) : BENCH_OK;
}

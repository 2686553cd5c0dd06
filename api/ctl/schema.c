/* SPDX-License-Identifier: Apache-2.0 */
/* schema: what the states of a model are, from its config.json. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"
#include "model_config.h"

#define U(x) ((unsigned long long)(x))
enum { FILE_MAX = 16 << 20, TP_MAX = 1024 };
static const uint64_t GIB = UINT64_C(1) << 30;

static const char help[] =
    "usage: statecachectl schema FILE [options]\n"
    "\n"
    "What the recurrent states of a model are, from the config.json of its checkpoint\n"
    "(FILE - : standard input): layers, parts, bytes, and how many states fit.\n"
    "\n"
    "  --gib N            how many states fit in N GiB\n"
    "  --dtype D          of the recurrent states: f32, bf16, f16. Default: what the file says\n"
    "                     (mamba_ssm_dtype), else f32\n"
    "  --conv-dtype D     of conv windows. Default: dtype of the file, else bf16\n"
    "  --kv-dtype D       of the attention layers' KV: f32, bf16, f16, fp8. Default: as conv\n"
    "  --tp N             bytes of one of N tensor-parallel ranks\n"
    "  --parts            a line for each part\n"
    "  --json             for programs: one JSON object\n"
    "\n"
    "exit status: 0 done; 2 wrong usage; 3 the file cannot be read; 4 it is not understood\n";

struct words {
    const char *file;
    double gib;
    uint32_t tp;
    sc_dtype dtype, conv_dtype, kv_dtype;
    bool json, parts;
};

/* What is printed. */
struct report {
    struct ctl_model model;
    sc_part_local local[2 * CTL_LAYERS_MAX];
    sc_part global[2 * CTL_LAYERS_MAX];
    uint32_t part_count;
    uint64_t state_bytes, conv_bytes, recurrent_bytes; /* one sequence; one layer's parts */
    uint64_t kv_token_bytes;
    sc_dtype kv_dtype;
};

static const struct { const char *name; sc_dtype dtype; } dtypes[] = {
    {"f32", SC_DTYPE_F32}, {"bf16", SC_DTYPE_BF16}, {"f16", SC_DTYPE_F16}, {"fp8", SC_DTYPE_U8}};

static const char *dtype_name(sc_dtype dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    }
    return "?";
}

static bool read_dtype(const char *word, bool narrow, sc_dtype *out)
{
    for (size_t i = 0; word && i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, word) != 0 || (dtypes[i].dtype == SC_DTYPE_U8 && !narrow)) {
            continue;
        }
        *out = dtypes[i].dtype;
        return true;
    }
    return false;
}

static bool read_number(const char *word, double max, double *out)
{
    char *end = NULL;
    errno = 0;
    double value = word ? strtod(word, &end) : 0;
    if (!word || end == word || *end != '\0' || errno != 0 || !(value > 0 && value <= max)) {
        return false;
    }
    *out = value;
    return true;
}

/* NULL: all are understood; else what is wrong. */
static const char *read_words(int argc, char **argv, struct words *words)
{
    double number;
    for (int i = 2; i < argc; i++) {
        const char *word = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (word[0] != '-' || word[1] == '\0') {
            if (words->file) return "one file is wanted";
            words->file = word;
        } else if (strcmp(word, "--json") == 0) {
            words->json = true;
        } else if (strcmp(word, "--parts") == 0) {
            words->parts = true;
        } else if (strcmp(word, "--gib") == 0) {
            if (!read_number(value, 1e9, &words->gib)) return "--gib needs a number above 0";
            i++;
        } else if (strcmp(word, "--tp") == 0) {
            if (!read_number(value, TP_MAX, &number) || number != (double)(uint32_t)number) {
                return "--tp needs a whole number from 1 to 1024";
            }
            words->tp = (uint32_t)number;
            i++;
        } else if (strcmp(word, "--dtype") == 0) {
            if (!read_dtype(value, false, &words->dtype)) return "--dtype: f32, bf16 or f16";
            i++;
        } else if (strcmp(word, "--conv-dtype") == 0) {
            if (!read_dtype(value, false, &words->conv_dtype)) {
                return "--conv-dtype: f32, bf16 or f16";
            }
            i++;
        } else if (strcmp(word, "--kv-dtype") == 0) {
            if (!read_dtype(value, true, &words->kv_dtype)) {
                return "--kv-dtype: f32, bf16, f16 or fp8";
            }
            i++;
        } else {
            return "an option is not known";
        }
    }
    return words->file ? NULL : "which config.json?";
}

/* The whole file; NULL: it was said why not. */
static char *read_file(const char *name, size_t *count_out)
{
    FILE *file = strcmp(name, "-") == 0 ? stdin : fopen(name, "rb");
    char *text = file ? malloc(FILE_MAX + 1) : NULL;
    size_t count = text ? fread(text, 1, FILE_MAX + 1, file) : 0;
    if (!text || ferror(file) || count > FILE_MAX) {
        (void)fprintf(stderr, "statecachectl: %s: %s\n", name, file && count > FILE_MAX ?
            "it is no config.json: too large" : strerror(errno));
        free(text);
        text = NULL;
    }
    if (file && file != stdin) (void)fclose(file);
    *count_out = count;
    return text;
}

/* ---- figures ---- */

/* KV heads are divided among ranks, or kept by several; a latent row is on all of them. */
static uint64_t kv_bytes(const struct ctl_model *model, uint32_t tp, sc_dtype dtype)
{
    uint64_t heads = model->kv_heads == 0 ? 1 : (model->kv_heads + tp - 1) / tp;
    return heads * model->kv_head_elements * sc_dtype_bytes(dtype) * model->attention_count;
}

static sc_status measure(struct report *report, const struct words *words)
{
    struct ctl_model *model = &report->model;
    const sc_shard shard = {.tp_size = words->tp};
    sc_schema *schema = NULL;
    if (words->dtype) model->shape.dtype = words->dtype;
    if (words->conv_dtype) model->shape.conv_dtype = words->conv_dtype;
    report->kv_dtype = words->kv_dtype ? words->kv_dtype : model->shape.conv_dtype;
    report->kv_token_bytes = kv_bytes(model, words->tp, report->kv_dtype);
    model->shape.name = model->type;
    model->shape.revision = "config";
    sc_status status = sc_model_schema(&model->shape, report->global, &schema);
    if (status != SC_OK) return status;
    status = sc_schema_shard_parts(schema, &shard, report->local, 2 * CTL_LAYERS_MAX,
        &report->part_count);
    if (status == SC_OK) status = sc_schema_state_bytes(schema, &shard, &report->state_bytes);
    for (uint32_t i = 0; status == SC_OK && i < report->part_count; i++) {
        const sc_part_local *part = &report->local[i];
        (void)sc_schema_part(schema, part->part, &report->global[i]);
        if (report->global[i].kind == SC_PART_CONV) report->conv_bytes = part->bytes;
        else report->recurrent_bytes = part->bytes;
    }
    sc_schema_release(schema);
    return status;
}

static uint64_t fits(const struct report *report, double gib)
{
    return (uint64_t)(gib * (double)GIB / (double)report->state_bytes);
}

/* ---- output ---- */

static void print_size(uint64_t bytes)
{
    double kib = (double)bytes / 1024;
    if (kib < 1024) (void)printf("%.1f KiB", kib);
    else if (kib < 1024 * 1024) (void)printf("%.3f MiB", kib / 1024);
    else (void)printf("%.3f GiB", kib / 1024 / 1024);
}

/* "0-2 4-6 8", or an array. */
static void print_layers(const struct report *report, const bool *which, bool json)
{
    const uint32_t count = report->model.shape.layer_count;
    const char *blank = "";
    for (uint32_t i = 0; i < count; i++) {
        if (!which[i]) continue;
        uint32_t first = i;
        while (!json && i + 1 < count && which[i + 1]) i++;
        (void)printf("%s%u", blank, first);
        if (i > first) (void)printf("-%u", i);
        blank = json ? "," : " ";
    }
}

static void print_part(const struct report *report, uint32_t index, bool json)
{
    const sc_part *part = &report->global[index];
    const sc_part_local *local = &report->local[index];
    const char *kind = part->kind == SC_PART_CONV ? "conv" : "recurrent";
    if (json) {
        (void)printf("%s{\"layer\":%u,\"kind\":\"%s\",\"index\":%u,\"dtype\":\"%s\",\"dims\":[",
            index ? "," : "", part->layer, kind, part->index, dtype_name(part->dtype));
    } else {
        (void)printf("%-9s  %-4s  ", kind, dtype_name(part->dtype));
    }
    for (uint32_t d = 0; d < local->dim_count; d++) {
        (void)printf("%s%u", d == 0 ? "" : json ? "," : " x ", local->dims[d]);
    }
    (void)printf(json ? "],\"bytes\":%llu}" : "  %llu bytes, ", U(local->bytes));
    if (json) return;
    print_size(local->bytes);
    (void)printf("\n");
}

static void print_json(const struct report *report, const struct words *words)
{
    const struct ctl_model *m = &report->model;
    (void)printf("{\"type\":\"schema\",\"model_type\":\"%s\",\"family\":\"%s\",\"chunk\":%u,"
        "\"tp_size\":%u,\"layer_count\":%u,\"recurrent_count\":%u,\"attention_count\":%u,"
        "\"recurrent_layers\":[", m->type, sc_family_name(m->shape.family), m->shape.chunk,
        words->tp, m->shape.layer_count, m->linear_count, m->attention_count);
    print_layers(report, m->linear, true);
    (void)printf("],\"attention_layers\":[");
    print_layers(report, m->attention, true);
    (void)printf("],\"dtype\":\"%s\",\"conv_dtype\":\"%s\",\"kv_dtype\":\"%s\",\"conv_bytes\":%llu,"
        "\"recurrent_bytes\":%llu,\"layer_bytes\":%llu,\"state_bytes\":%llu,",
        dtype_name(m->shape.dtype), dtype_name(m->shape.conv_dtype),
        dtype_name(report->kv_dtype), U(report->conv_bytes), U(report->recurrent_bytes),
        U(report->conv_bytes + report->recurrent_bytes), U(report->state_bytes));
    if (m->kv_known) (void)printf("\"kv_token_bytes\":%llu,", U(report->kv_token_bytes));
    else (void)printf("\"kv_token_bytes\":null,");
    if (words->gib > 0) {
        (void)printf("\"gib\":%.17g,\"fit_count\":%llu,", words->gib,
            U(fits(report, words->gib)));
    }
    (void)printf("\"parts\":[");
    for (uint32_t i = 0; i < report->part_count; i++) print_part(report, i, true);
    (void)printf("]}\n");
}

static void print_text(const struct report *report, const struct words *words)
{
    const struct ctl_model *m = &report->model;
    (void)printf("%s: %u of %u layers are recurrent (%s, chunks of %u)", m->type, m->linear_count,
        m->shape.layer_count, sc_family_name(m->shape.family), m->shape.chunk);
    if (words->tp > 1) (void)printf(", for one of %u ranks", words->tp);
    (void)printf("\nlayers         ");
    print_layers(report, m->linear, false);
    (void)printf("\neach of them   ");
    for (uint32_t i = 0; i < 2 && i < report->part_count; i++) {
        if (i > 0) (void)printf("               ");
        print_part(report, i, false);
    }
    (void)printf("one layer      %llu bytes, ",
        U(report->conv_bytes + report->recurrent_bytes));
    print_size(report->conv_bytes + report->recurrent_bytes);
    (void)printf("\none sequence   %llu bytes, ", U(report->state_bytes));
    print_size(report->state_bytes);
    if (words->gib > 0) {
        char where[32];
        (void)snprintf(where, sizeof where, "in %g GiB", words->gib);
        (void)printf("\n%-14s %llu states fit", where, U(fits(report, words->gib)));
    }
    if (!m->kv_known) {
        (void)printf("\nKV             not known for this family\n");
    } else if (m->attention_count > 0) {
        (void)printf("\nKV             %llu bytes a token (%s) in %u layers; %llu tokens are as "
            "large as a state\n", U(report->kv_token_bytes), dtype_name(report->kv_dtype),
            m->attention_count, U((report->state_bytes + report->kv_token_bytes - 1) /
            report->kv_token_bytes));
    } else {
        (void)printf("\nKV             none\n");
    }
    for (uint32_t i = 0; words->parts && i < report->part_count; i++) {
        (void)printf("layer %3u      ", report->global[i].layer);
        print_part(report, i, false);
    }
}

int ctl_schema(int argc, char **argv)
{
    struct words words = {.tp = 1};
    static struct report report; /* once in the program; large */
    char fault[CTL_FAULT_BYTES] = "";
    size_t count = 0;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return fputs(help, stdout) < 0 ? CTL_FAILED : CTL_OK;
        }
    }
    const char *bad = read_words(argc, argv, &words);
    if (bad) {
        (void)fprintf(stderr, "statecachectl: %s\nTry statecachectl schema --help.\n", bad);
        return CTL_USAGE;
    }
    char *text = read_file(words.file, &count);
    if (!text) return CTL_OPEN;
    bool good = ctl_model_read(text, count, &report.model, fault);
    free(text);
    if (!good) {
        (void)fprintf(stderr, "statecachectl: %s: %s\n", words.file, fault);
        return CTL_FAILED;
    }
    if (measure(&report, &words) != SC_OK) return ctl_fail(words.file, CTL_FAILED);
    if (words.json) print_json(&report, &words);
    else print_text(&report, &words);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        (void)fprintf(stderr, "statecachectl: cannot write: %s\n", strerror(errno));
        return CTL_FAILED;
    }
    return CTL_OK;
}

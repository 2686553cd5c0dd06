/* SPDX-License-Identifier: Apache-2.0 */
/* Words of commands that are about a prompt: prompt.h. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "prompt.h"

enum { TOKENS_BYTES_MAX = 256 << 20 };

void ctl_json_text(const char *text)
{
    (void)putchar('"');
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\') (void)printf("\\%c", byte);
        else if (byte < ' ') (void)printf("\\u%04x", byte);
        else (void)putchar(byte);
    }
    (void)putchar('"');
}

static bool number(const char *text, uint64_t max, const char **end_out, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    if (!text || !isdigit((unsigned char)text[0])) return false;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || value > max || (!end_out && *end != '\0')) return false;
    if (end_out) *end_out = end;
    *out = value;
    return true;
}

bool ctl_size(const char *text, uint64_t *out)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    const char *end = NULL;
    if (!number(text, UINT64_MAX - 1, &end, out)) return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i]) != 0) continue;
        if (*out > UINT64_MAX >> (10 * i)) return false;
        *out <<= 10 * i;
        return true;
    }
    return false;
}

/* Numbers with commas, blanks or brackets between them: "1,2,3", a JSON array, one a line. */
static int take_tokens(struct ctl_prompt *prompt, const char *text)
{
    uint32_t count = 0, cap = 0;
    const char *at = text;
    while (*at) {
        uint64_t value = 0;
        if (strchr(", \t\r\n[]", *at)) {
            at++;
            continue;
        }
        if (!number(at, INT32_MAX, &at, &value) || (*at && !strchr(", \t\r\n[]", *at))) {
            return ctl_usage("tokens: numbers from 0 to 2^31 - 1 with commas are wanted, at:", at);
        }
        if (count == cap) {
            cap = cap ? cap * 2 : 256;
            int32_t *grown = realloc(prompt->tokens, cap * sizeof *grown);
            if (!grown) return ctl_usage("no memory for so many tokens", NULL);
            prompt->tokens = grown;
        }
        prompt->tokens[count++] = (int32_t)value;
    }
    if (count == 0) return ctl_usage("tokens: there are none", NULL);
    prompt->has_tokens = true;
    prompt->key.tokens = prompt->tokens;
    prompt->key.token_count = count;
    return CTL_OK;
}

static int take_file(struct ctl_prompt *prompt, const char *name)
{
    FILE *file = strcmp(name, "-") == 0 ? stdin : fopen(name, "re");
    char *text = NULL;
    size_t count = 0, cap = 0;
    while (file && !feof(file) && !ferror(file) && count < TOKENS_BYTES_MAX) {
        if (cap - count < 2) {
            cap = cap ? cap * 2 : 65536;
            char *grown = realloc(text, cap);
            if (!grown) break;
            text = grown;
        }
        count += fread(text + count, 1, cap - count - 1, file);
    }
    int code = CTL_OPEN;
    if (!file || !text || ferror(file) || !feof(file)) {
        (void)fprintf(stderr, "statecachectl: %s: %s\n", name, strerror(errno));
    } else {
        text[count] = '\0';
        code = strlen(text) == count ? take_tokens(prompt, text) :
            ctl_usage("no file of tokens:", name);
    }
    if (file && file != stdin) (void)fclose(file);
    free(text);
    return code;
}

/* AT:HEX, 32 digits. */
static int take_mark(struct ctl_prompt *prompt, const char *text)
{
    sc_mark *mark = &prompt->marks[prompt->key.mark_count];
    const char *at = NULL;
    uint64_t position = 0;
    if (prompt->key.mark_count == CTL_MARKS_MAX) return ctl_usage("too many marks", NULL);
    if (!number(text, UINT32_MAX, &at, &position) || *at++ != ':' || strlen(at) != 32) {
        return ctl_usage("--mark: AT:ID with 32 hexadecimal digits is wanted, not", text);
    }
    mark->at = (uint32_t)position;
    for (uint32_t i = 0; i < 16; i++) {
        char pair[3] = {at[2 * i], at[2 * i + 1], 0};
        if (!isxdigit((unsigned char)pair[0]) || !isxdigit((unsigned char)pair[1])) {
            return ctl_usage("--mark: AT:ID with 32 hexadecimal digits is wanted, not", text);
        }
        mark->id[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    prompt->key.marks = prompt->marks;
    prompt->key.mark_count++;
    return CTL_OK;
}

/* ID or ID:GENERATION. */
static int take_adapter(struct ctl_prompt *prompt, const char *text)
{
    const char *at = NULL;
    bool good = number(text, UINT64_MAX, &at, &prompt->key.adapter_id) &&
        (*at == '\0' || (*at == ':' &&
        number(at + 1, UINT64_MAX, NULL, &prompt->key.adapter_generation)));
    return good ? CTL_OK : ctl_usage("--adapter: ID or ID:GENERATION is wanted, not", text);
}

static bool takes(const char *options, const char *word)
{
    char padded[40];
    (void)snprintf(padded, sizeof padded, " %.30s ", word);
    return strstr(options, padded) != NULL;
}

/* An option with a value. */
static int take_value(struct ctl_prompt *prompt, const char *word, const char *value)
{
    uint64_t len_max = 0;
    const struct { const char *word; uint64_t max; uint64_t *place; } numbers[] = {
        {"--seconds", UINT32_MAX, &prompt->seconds}, {"--depth", UINT32_MAX, &prompt->depth},
        {"--rows", 4096, &prompt->rows}, {"--states", UINT32_MAX, &prompt->states},
        {"--len-max", UINT32_MAX, &len_max}};
    if (strcmp(word, "--tokens") == 0) return take_tokens(prompt, value);
    if (strcmp(word, "--tokens-from") == 0) return take_file(prompt, value);
    if (strcmp(word, "--mark") == 0) return take_mark(prompt, value);
    if (strcmp(word, "--adapter") == 0) return take_adapter(prompt, value);
    if (strcmp(word, "--tenant") == 0) {
        prompt->key.tenant = value;
        return CTL_OK;
    }
    if (strcmp(word, "--bytes") == 0) {
        prompt->has_bytes = ctl_size(value, &prompt->bytes);
        return prompt->has_bytes ? CTL_OK :
            ctl_usage("--bytes: a number, or one with KiB, MiB, GiB, TiB, not", value);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (strcmp(word, numbers[i].word) != 0) continue;
        if (!number(value, numbers[i].max, NULL, numbers[i].place)) {
            return ctl_usage("a number is wanted behind", word);
        }
        if (numbers[i].place == &prompt->states) prompt->has_states = true;
        if (numbers[i].place == &len_max) prompt->key.len_max = (uint32_t)len_max;
        return CTL_OK;
    }
    return ctl_usage("unknown option", word);
}

int ctl_prompt_read(struct ctl_prompt *prompt, const char *options, int argc, char **argv)
{
    int code = CTL_OK;
    *prompt = (struct ctl_prompt){.rows = 100};
    for (int i = 2; i < argc; i++) {
        const char *word = argv[i];
        if (ctl_service_option(&prompt->service, argc, argv, &i, &code)) {
            if (code != CTL_OK) return code;
        } else if (word[0] != '-' && takes(options, "WORD") && !prompt->word) {
            prompt->word = word;
        } else if (!takes(options, word)) {
            return ctl_usage(word[0] == '-' ? "unknown option" : "too many words:", word);
        } else if (strcmp(word, "--all") == 0) {
            prompt->all = true;
        } else if (strcmp(word, "--keep") == 0) {
            prompt->keep = true;
        } else if (i + 1 >= argc) {
            return ctl_usage("a value is missing behind", word);
        } else {
            code = take_value(prompt, word, argv[++i]);
            if (code != CTL_OK) return code;
        }
    }
    if (!prompt->has_tokens && (prompt->key.mark_count > 0 || prompt->key.adapter_id > 0 ||
        prompt->key.len_max > 0)) {
        return ctl_usage("marks, adapters and lengths are of a prompt: --tokens is wanted", NULL);
    }
    return CTL_OK;
}

void ctl_prompt_free(struct ctl_prompt *prompt)
{
    free(prompt->tokens);
}

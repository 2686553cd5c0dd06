/* SPDX-License-Identifier: Apache-2.0 */
/* The words of commands that are about a prompt, a tenant or everything. */
#ifndef SC_CTL_PROMPT_H
#define SC_CTL_PROMPT_H

#include "ctl.h"
#include "statecache/client.h"

enum { CTL_MARKS_MAX = 64 };

struct ctl_prompt {
    struct ctl_service service;
    sc_client_key key;         /* points into what follows */
    int32_t *tokens;
    sc_mark marks[CTL_MARKS_MAX];
    const char *word;          /* the one word that is no option; NULL: none */
    bool has_tokens, all, keep;
    uint64_t seconds, depth, rows, bytes, states;
    bool has_bytes, has_states;
};

/* Reads the words from argv[2] on; `options` are those that the command takes, each between
 * blanks. CTL_OK, or what is wrong was said. ctl_prompt_free in either case. */
int ctl_prompt_read(struct ctl_prompt *prompt, const char *options, int argc, char **argv);
void ctl_prompt_free(struct ctl_prompt *prompt);

/* A text of others: quotes, and no control characters. */
void ctl_json_text(const char *text);
/* A number of bytes, perhaps with KiB, MiB, GiB, TiB. */
bool ctl_size(const char *text, uint64_t *out);

#endif

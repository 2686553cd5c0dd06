/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels_rival.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

extern char **environ;

/* Ends it; from now on `why` is the reason. */
static void give_up(struct kbench_rival *r, const char *why)
{
    snprintf(r->text, sizeof r->text, "%s", why);
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
    if (r->pid > 0) {
        kill(r->pid, SIGKILL);
        waitpid(r->pid, NULL, 0);
    }
    r->pid = 0;
}

static bool start(struct kbench_rival *r, const char *command)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    char script[4096];
    int length = snprintf(script, sizeof script, "exec %s", command);
    char *argv[] = {"sh", "-c", script, NULL};
    posix_spawn_file_actions_t actions;
    bool ok = length < (int)sizeof script && posix_spawn_file_actions_init(&actions) == 0;
    if (ok) {
        ok = posix_spawn_file_actions_adddup2(&actions, ends[1], 0) == 0
            && posix_spawn_file_actions_adddup2(&actions, ends[1], 1) == 0
            && posix_spawn(&r->pid, "/bin/sh", &actions, NULL, argv, environ) == 0;
        posix_spawn_file_actions_destroy(&actions);
    }
    close(ends[1]);
    if (ok)
        r->fd = ends[0];
    else
        close(ends[0]), r->pid = 0;
    return ok;
}

/* Bytes are there, or the other end is closed; false: not within the time. */
static bool wait_for(const struct kbench_rival *r, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = sc_clock_now_ns();
        if (now >= deadline_ns)
            return false;
        struct pollfd fd = {.fd = r->fd, .events = POLLIN};
        int ready = poll(&fd, 1, (int)((deadline_ns - now) / 1000000 + 1));
        if (ready > 0)
            return true;
        if (ready < 0 && errno != EINTR)
            return false;
    }
}

/* One line as JSON; NULL after giving up. */
static json_t *hear(struct kbench_rival *r)
{
    uint64_t deadline_ns = sc_clock_now_ns() + r->wait_s * 1000000000ull;
    char *end;
    while (!(end = memchr(r->line, '\n', r->used))) {
        if (r->used == sizeof r->line) {
            give_up(r, "it says too much in a line");
            return NULL;
        }
        if (!wait_for(r, deadline_ns)) {
            char why[64];
            snprintf(why, sizeof why, "no answer within %u s", r->wait_s);
            give_up(r, why);
            return NULL;
        }
        ssize_t got = recv(r->fd, r->line + r->used, sizeof r->line - r->used, 0);
        if (got <= 0) {
            give_up(r, "it has ended");
            return NULL;
        }
        r->used += (size_t)got;
    }
    size_t length = (size_t)(end - r->line);
    json_t *object = json_loadb(r->line, length, 0, NULL);
    r->used -= length + 1;
    memmove(r->line, end + 1, r->used);
    if (!json_is_object(object)) {
        json_decref(object);
        give_up(r, "what it says is no JSON object");
        return NULL;
    }
    return object;
}

/* False: there is no such text. */
static bool text_of(const json_t *object, const char *name, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(object, name));
    if (!text)
        return false;
    snprintf(out, size, "%s", text);
    for (char *c = out; *c; c++) /* it is printed inside quotes, in JSON, too */
        if ((unsigned char)*c < ' ' || *c == '"' || *c == '\\')
            *c = '\'';
    return true;
}

void kbench_rival_open(struct kbench_rival *r, const char *command, uint32_t wait_s)
{
    *r = (struct kbench_rival){.fd = -1, .wait_s = wait_s};
    if (!command) {
        give_up(r, "not asked for (--rival)");
        return;
    }
    if (!start(r, command)) {
        give_up(r, "it could not be started");
        return;
    }
    json_t *hello = hear(r);
    if (!hello)
        return;
    char why[sizeof r->text];
    if (text_of(hello, "skip", why, sizeof why))
        give_up(r, why);
    else if (!text_of(hello, "rival", r->text, sizeof r->text))
        give_up(r, "it does not say what it is");
    json_decref(hello);
}

static bool ask(struct kbench_rival *r, const struct kbench_case *c, uint64_t pool_bytes,
    uint32_t threads, uint32_t rounds)
{
    const struct kbench_model *m = c->model;
    char line[512];
    int length = snprintf(line, sizeof line,
        "{\"op\":\"%s\",\"kind\":\"%s\",\"dtype\":\"%s\",\"state\":\"%s\",\"batch\":%u,"
        "\"tokens\":%u,\"heads\":%u,\"v_heads\":%u,\"k_dim\":%u,\"v_dim\":%u,\"threads\":%u,"
        "\"rounds\":%u,\"pool_bytes\":%llu}\n", kbench_op_name(c->op),
        m->ssm ? "ssm" : m->kind == SC_K_KIND_KDA ? "kda" : "gdn",
        c->dtype == SC_DTYPE_BF16 ? "bf16" : "fp32", c->state == SC_DTYPE_BF16 ? "bf16" : "fp32",
        c->batch, c->tokens, m->heads, m->v_heads, m->k_dim, m->v_dim, threads, rounds,
        (unsigned long long)pool_bytes);
    for (int sent = 0; sent < length;) {
        ssize_t n = send(r->fd, line + sent, (size_t)(length - sent), MSG_NOSIGNAL);
        if (n <= 0) {
            give_up(r, "it has ended");
            return false;
        }
        sent += (int)n;
    }
    return true;
}

struct kbench_rival_answer kbench_rival_ask(struct kbench_rival *r, const struct kbench_case *c,
    uint64_t pool_bytes, uint32_t threads, uint32_t rounds)
{
    struct kbench_rival_answer answer = {.error = NAN};
    json_t *heard = NULL;
    if (r->fd >= 0 && ask(r, c, pool_bytes, threads, rounds))
        heard = hear(r);
    if (!heard) {
        snprintf(answer.by, sizeof answer.by, "%.*s", (int)sizeof answer.by - 1, r->text);
        return answer;
    }
    answer.us = json_number_value(json_object_get(heard, "us"));
    answer.count = (uint32_t)json_integer_value(json_object_get(heard, "n"));
    json_t *error = json_object_get(heard, "error");
    if (json_is_number(error))
        answer.error = json_number_value(error);
    if (text_of(heard, "by", answer.by, sizeof answer.by) && answer.us > 0)
        answer.measured = true;
    else if (!text_of(heard, "skip", answer.by, sizeof answer.by))
        snprintf(answer.by, sizeof answer.by, "it gives neither a time nor a reason");
    json_decref(heard);
    return answer;
}

/* Nothing to say any more: it may end by itself, but is not waited for. */
void kbench_rival_close(struct kbench_rival *r)
{
    give_up(r, "closed");
}

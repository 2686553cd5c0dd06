/* SPDX-License-Identifier: Apache-2.0 */
/* tree, explain, evict, pin, unpin, pins, quota: what an operator asks a service, and tells it. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "prompt.h"

#define PROMPT " --tokens --tokens-from --mark --adapter --tenant "
#define U(x) ((unsigned long long)(x))

/* Reads words and connects. */
static int begin(struct ctl_prompt *prompt, const char *options, bool needs_tokens, int argc,
    char **argv, sc_client **client_out)
{
    *client_out = NULL;
    int code = ctl_prompt_read(prompt, options, argc, argv);
    if (code == CTL_OK && needs_tokens && !prompt->has_tokens) {
        code = ctl_usage("which prompt? --tokens or --tokens-from is wanted", NULL);
    }
    return code == CTL_OK ? ctl_service_open(&prompt->service, client_out) : code;
}

static int end(struct ctl_prompt *prompt, sc_client *client, int code)
{
    sc_client_close(client);
    ctl_prompt_free(prompt);
    return code;
}

/* ---- tree ---- */

static void print_marks(const sc_mark *marks, uint32_t count, bool json)
{
    for (uint32_t i = 0; i < count; i++) {
        if (json) (void)printf("%s{\"at\":%u,\"id\":\"", i ? "," : "", marks[i].at);
        else (void)printf("  mark %u:", marks[i].at);
        ctl_hex(stdout, marks[i].id, json ? 16 : 4);
        if (json) (void)printf("\"}");
    }
}

static bool print_row(void *ctx, const sc_client_row *row)
{
    const struct ctl_prompt *prompt = ctx;
    uint32_t len = row->end - row->start;
    if (prompt->service.json) {
        (void)printf("{\"type\":\"stretch\",\"depth\":%u,\"start\":%u,\"end\":%u,\"children\":%u,"
            "\"locked\":%s,\"state\":%s,\"evicted\":%s,\"tokens\":[", row->depth, row->start,
            row->end, row->child_count, row->locks ? "true" : "false",
            row->has_state ? "true" : "false", row->evicted ? "true" : "false");
        for (uint32_t i = 0; i < row->token_count; i++) {
            (void)printf("%s%d", i ? "," : "", row->tokens[i]);
        }
        (void)printf("],\"marks\":[");
        print_marks(row->marks, row->mark_count, true);
        (void)printf("]}\n");
        return true;
    }
    (void)printf("%*s%u-%u%s%s ", (int)(row->depth < 40 ? 2 * row->depth : 80), "", row->start,
        row->end, row->has_state ? "  state" : row->evicted ? "  evicted" : "",
        row->locks ? "  in use" : "");
    for (uint32_t i = 0; i < row->token_count; i++) (void)printf(" %d", row->tokens[i]);
    if (row->token_count < len) (void)printf(" ... (%u)", len);
    print_marks(row->marks, row->mark_count, false);
    (void)printf("\n");
    return true;
}

int ctl_tree(int argc, char **argv)
{
    struct ctl_prompt prompt;
    sc_client *client;
    bool more = false;
    int code = begin(&prompt, PROMPT " --depth --rows ", false, argc, argv, &client);
    if (code != CTL_OK) return end(&prompt, client, code);
    if (sc_client_tree(client, &prompt.key, (uint32_t)prompt.depth, (uint32_t)prompt.rows,
        print_row, &prompt, &more) != SC_OK) {
        code = ctl_service_fail("tree");
    } else if (prompt.service.json) {
        (void)printf("{\"type\":\"end\",\"more\":%s}\n", more ? "true" : "false");
    } else if (more) {
        (void)printf("there is more: --rows, --depth, or a longer prompt\n");
    }
    return end(&prompt, client, code);
}

/* ---- explain ---- */

static const char *reason_text(sc_reason reason)
{
    switch (reason) {
#define REASON_CASE(name, value, text)                                                             \
    case name:                                                                                     \
        return text;
        SC_REASON_LIST(REASON_CASE)
#undef REASON_CASE
    case SC_REASON_COUNT: break;
    }
    return "a reason that this program does not know";
}

static uint32_t best_of(const sc_answer *answer)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < SC_TIER_COUNT; i++) {
        if (answer->state_len[i] > best) best = answer->state_len[i];
    }
    return best;
}

static const char *const tiers[SC_TIER_COUNT] = {"device", "host", "disk", "remote"};
static const char *const differences[] = {"nothing", "end", "token", "mark"};

static void explain_json(const sc_client_explanation *all)
{
    const sc_explanation *why = &all->why;
    (void)printf("{\"type\":\"explanation\",\"reason\":%d,\"text\":\"%s\",\"state_len\":{",
        (int)why->answer.reason, reason_text(why->answer.reason));
    for (uint32_t i = 0; i < SC_TIER_COUNT; i++) {
        (void)printf("%s\"%s\":%u", i ? "," : "", tiers[i], why->answer.state_len[i]);
    }
    (void)printf("},\"branch_len\":%u,\"pending_len\":%u,\"match_len\":%u,\"differs\":\"%s\",",
        why->answer.branch_len, why->answer.pending_len, why->match_len,
        differences[why->differs]);
    if (why->differs == SC_DIFFERS_TOKEN) {
        (void)printf("\"token_here\":%d,\"token_there\":%d,", why->token_here, why->token_there);
    }
    if (why->differs == SC_DIFFERS_MARK) {
        if (why->mark_here) {
            (void)printf("\"mark_here\":\"");
            ctl_hex(stdout, why->here.id, 16);
            (void)printf("\",");
        }
        if (why->mark_there) {
            (void)printf("\"mark_there\":\"");
            ctl_hex(stdout, why->there.id, 16);
            (void)printf("\",\"tenant_there\":");
            ctl_json_text(all->tenant_there);
            (void)printf(",");
        }
    }
    (void)printf("\"beyond_len\":%u,\"evicted_len\":%u,\"common_len\":%u}\n", why->beyond_len,
        why->evicted_len, all->common_len);
}

static void print_difference(const sc_client_explanation *all)
{
    const sc_explanation *why = &all->why;
    const uint32_t at = why->match_len;
    switch (why->differs) {
    case SC_DIFFERS_NOT:
        (void)printf("known        all of its tokens\n");
        break;
    case SC_DIFFERS_END:
        (void)printf("known        %u tokens; nothing that begins with them is longer\n", at);
        break;
    case SC_DIFFERS_TOKEN:
        (void)printf("known        %u tokens; then this prompt has %d, what is stored has %d\n", at,
            why->token_here, why->token_there);
        break;
    case SC_DIFFERS_MARK:
        (void)printf("known        %u tokens; then %s and what is stored %s", at,
            why->mark_here ? "this prompt has a mark" : "this prompt has no mark",
            why->mark_there ? "has another" : "has none");
        if (all->tenant_there[0]) (void)printf(", that of tenant %s", all->tenant_there);
        (void)printf("\n");
        break;
    }
}

/* What would make it hit. */
static void print_advice(const sc_client_explanation *all, uint32_t token_count)
{
    const sc_explanation *why = &all->why;
    (void)printf("to hit more  ");
    switch (why->answer.reason) {
    case SC_REASON_NONE:
        (void)printf("nothing is missing\n");
        return;
    case SC_REASON_EVICTED:
        (void)printf("keep the state of %u tokens, which was evicted: a pin, more slots, a tier "
            "below\n", why->evicted_len);
        return;
    case SC_REASON_NO_STATE:
        (void)printf("write a state at %u tokens or before: they are known, without a state\n",
            why->match_len < token_count ? why->match_len : token_count);
        return;
    case SC_REASON_BEYOND:
        (void)printf("ask with more: a state of %u tokens is there, and a prompt needs one token "
            "behind its state\n", why->beyond_len);
        return;
    case SC_REASON_TOO_SHORT:
        (void)printf("prompts of at least a page and a token\n");
        return;
    default:
        break;
    }
    if (why->differs == SC_DIFFERS_MARK) {
        (void)printf("ask as the tenant who wrote it, or declare what comes before as common to "
            "all (the method common) before it is written\n");
    } else if (why->differs == SC_DIFFERS_TOKEN) {
        (void)printf("write a state of %u tokens or less of this prompt; in prompts, what varies "
            "belongs behind what is common\n", why->match_len);
    } else {
        (void)printf("write a state of more of its tokens\n");
    }
}

int ctl_explain(int argc, char **argv)
{
    struct ctl_prompt prompt;
    sc_client *client;
    sc_client_explanation all = {.struct_size = sizeof all};
    int code = begin(&prompt, PROMPT " --len-max ", true, argc, argv, &client);
    if (code != CTL_OK) return end(&prompt, client, code);
    if (sc_client_explain(client, &prompt.key, &all) != SC_OK) {
        return end(&prompt, client, ctl_service_fail("explain"));
    }
    if (prompt.service.json) {
        explain_json(&all);
        return end(&prompt, client, CTL_OK);
    }
    (void)printf("resumes      %u of %u tokens", best_of(&all.why.answer),
        prompt.key.token_count);
    for (uint32_t i = 0; i < SC_TIER_COUNT; i++) {
        if (all.why.answer.state_len[i] == 0) continue;
        (void)printf(", %s %u", tiers[i], all.why.answer.state_len[i]);
    }
    (void)printf("\nwhy no more  %s\n", reason_text(all.why.answer.reason));
    print_difference(&all);
    if (prompt.key.tenant) {
        (void)printf("tenant       the mark of %s stands at token %u\n", prompt.key.tenant,
            all.common_len);
    }
    print_advice(&all, prompt.key.token_count);
    return end(&prompt, client, CTL_OK);
}

/* ---- evict ---- */

int ctl_evict(int argc, char **argv)
{
    struct ctl_prompt prompt;
    sc_client *client = NULL;
    sc_evicted evicted = {0, 0, 0};
    uint32_t got = 0;
    int code = ctl_prompt_read(&prompt, PROMPT " --all --states ", argc, argv);
    bool tenant = prompt.key.tenant && !prompt.has_tokens;
    if (code == CTL_OK &&
        prompt.has_tokens + tenant + prompt.all + prompt.has_states != 1) {
        code = ctl_usage("one of --tokens, --tenant, --all and --states is wanted", NULL);
    }
    if (code == CTL_OK) code = ctl_service_open(&prompt.service, &client);
    if (code != CTL_OK) return end(&prompt, client, code);
    sc_status status = prompt.has_states ?
        sc_client_evict(client, (uint32_t)prompt.states, &got) :
        sc_client_evict_prefix(client, &prompt.key, &evicted);
    if (prompt.has_states) evicted.states = got;
    if (status != SC_OK) return end(&prompt, client, ctl_service_fail("evict"));
    (void)printf(prompt.service.json ?
        "{\"type\":\"evicted\",\"states\":%llu,\"copies\":%llu,\"held\":%llu}\n" :
        "%llu states evicted, %llu copies of lower tiers dropped; %llu are in use and stay\n",
        U(evicted.states), U(evicted.copies), U(evicted.held));
    return end(&prompt, client, CTL_OK);
}

/* ---- pins ---- */

int ctl_pin(int argc, char **argv)
{
    struct ctl_prompt prompt;
    sc_client *client;
    sc_client_state state;
    int code = begin(&prompt, PROMPT " --len-max --seconds ", true, argc, argv, &client);
    if (code == CTL_OK && prompt.seconds == 0) {
        code = ctl_usage("for how long? --seconds is wanted", NULL);
    }
    if (code != CTL_OK) return end(&prompt, client, code);
    if (sc_client_pin(client, &prompt.key, (uint32_t)prompt.seconds, true, &state) != SC_OK) {
        return end(&prompt, client, ctl_service_fail("pin"));
    }
    if (prompt.service.json) {
        (void)printf("{\"type\":\"pin\",\"lease\":%llu,\"len\":%u,\"seconds\":%llu}\n",
            U(state.lease), state.len, U(prompt.seconds));
    } else if (state.lease == 0) {
        (void)printf("nothing to pin: %s\n", reason_text(state.reason));
    } else {
        (void)printf("%llu: %u tokens for %llu s\n", U(state.lease), state.len,
            U(prompt.seconds));
    }
    return end(&prompt, client, state.lease ? CTL_OK : CTL_FAULTS);
}

int ctl_unpin(int argc, char **argv)
{
    struct ctl_prompt prompt;
    sc_client *client;
    sc_client_state state = {.lease = 0};
    char *last = NULL;
    int code = begin(&prompt, " WORD ", false, argc, argv, &client);
    if (code == CTL_OK) {
        state.lease = prompt.word ? strtoull(prompt.word, &last, 10) : 0;
        if (state.lease == 0 || *last != '\0') {
            code = ctl_usage("which pin? Its number is wanted (pins)", NULL);
        }
    }
    if (code != CTL_OK) return end(&prompt, client, code);
    if (sc_client_release(client, &state, 1) != SC_OK) code = ctl_service_fail("unpin");
    else if (prompt.service.json) (void)printf("{\"type\":\"unpinned\"}\n");
    return end(&prompt, client, code);
}

static void print_pin(const sc_client_pinned *pin, bool json)
{
    if (json) {
        (void)printf("{\"type\":\"pin\",\"lease\":%llu,\"len\":%u,\"kept\":%s,"
            "\"seconds_left\":%llu,\"tenant\":", U(pin->lease), pin->len,
            pin->kept ? "true" : "false", U(pin->seconds_left));
        ctl_json_text(pin->tenant);
        (void)printf("}\n");
        return;
    }
    (void)printf("%llu: %u tokens", U(pin->lease), pin->len);
    if (pin->seconds_left > 0) (void)printf(", %llu s left", U(pin->seconds_left));
    if (!pin->kept) (void)printf(", until its client goes");
    if (pin->tenant[0]) (void)printf(", tenant %s", pin->tenant);
    (void)printf("\n");
}

int ctl_pins(int argc, char **argv)
{
    struct ctl_prompt prompt;
    sc_client *client;
    sc_client_pinned *pins = NULL;
    uint32_t count = 0, cap = 0;
    int code = begin(&prompt, " ", false, argc, argv, &client);
    if (code != CTL_OK) return end(&prompt, client, code);
    sc_status status = sc_client_pins(client, NULL, 0, &count);
    while (status == SC_ERR_LIMIT && count > cap) { /* there may be more by then */
        free(pins);
        cap = count + 16;
        pins = malloc(cap * sizeof *pins);
        status = pins ? sc_client_pins(client, pins, cap, &count) : SC_ERR_NO_MEMORY;
    }
    if (status != SC_OK) code = ctl_service_fail("pins");
    for (uint32_t i = 0; status == SC_OK && i < count && pins; i++) {
        print_pin(&pins[i], prompt.service.json);
    }
    free(pins);
    return end(&prompt, client, code);
}

/* ---- quota ---- */

static void print_quota(const char *tenant, const sc_client_quota *quota, bool json)
{
    if (json) {
        (void)printf("{\"type\":\"quota\",\"tenant\":");
        ctl_json_text(tenant);
        (void)printf(",\"bytes\":%llu,\"bytes_max\":%llu,\"refused\":%llu}\n", U(quota->bytes),
            U(quota->bytes_max), U(quota->refused));
        return;
    }
    (void)printf("%s: %llu bytes", tenant, U(quota->bytes));
    if (quota->bytes_max > 0) (void)printf(" of %llu", U(quota->bytes_max));
    else (void)printf(", no limit");
    (void)printf(", %llu writes refused\n", U(quota->refused));
}

/* Of every tenant that holds something or has a limit. */
static int list_quotas(sc_client *client, bool json)
{
    char *text = NULL;
    if (sc_client_status(client, &text) != SC_OK) return ctl_service_fail("quota");
    json_t *tree = json_loads(text, 0, NULL), *tenant;
    size_t i;
    sc_client_free(text);
    json_array_foreach(json_object_get(tree, "tenants"), i, tenant) {
        const char *name = json_string_value(json_object_get(tenant, "tenant"));
        sc_client_quota quota = {
            .bytes = (uint64_t)json_integer_value(json_object_get(tenant, "bytes")),
            .bytes_max = (uint64_t)json_integer_value(json_object_get(tenant, "bytes_max")),
            .refused = (uint64_t)json_integer_value(json_object_get(tenant, "refused"))};
        print_quota(name ? name : "", &quota, json);
    }
    json_decref(tree);
    return CTL_OK;
}

int ctl_quota(int argc, char **argv)
{
    struct ctl_prompt prompt;
    sc_client *client;
    sc_client_quota quota;
    int code = begin(&prompt, " WORD --bytes ", false, argc, argv, &client);
    if (code == CTL_OK && prompt.has_bytes && !prompt.word) {
        code = ctl_usage("--bytes: whose? A tenant is wanted", NULL);
    }
    if (code != CTL_OK) return end(&prompt, client, code);
    if (!prompt.word) return end(&prompt, client, list_quotas(client, prompt.service.json));
    if ((prompt.has_bytes && sc_client_quota_set(client, prompt.word, prompt.bytes) != SC_OK) ||
        sc_client_quota_get(client, prompt.word, &quota) != SC_OK) {
        return end(&prompt, client, ctl_service_fail("quota"));
    }
    print_quota(prompt.word, &quota, prompt.service.json);
    return end(&prompt, client, CTL_OK);
}

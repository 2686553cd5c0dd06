/* SPDX-License-Identifier: Apache-2.0 */
/* What commands that talk to a service have in common: how they reach it, and what they say when
 * they do not. */
#include <errno.h>
#include <string.h>

#include "ctl.h"
#include "statecache/client.h"

enum { TOKEN_BYTES = 64, ADDRESS_BYTES = 300 };

bool ctl_service_option(struct ctl_service *service, int argc, char **argv, int *at, int *code_out)
{
    static const char *const names[] = {"--socket", "--connect", "--token-file"};
    const char **places[] = {&service->socket, &service->connect, &service->token_file};
    *code_out = CTL_OK;
    if (strcmp(argv[*at], "--json") == 0) {
        service->json = true;
        return true;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(argv[*at], names[i]) != 0) continue;
        if (*at + 1 >= argc || argv[*at + 1][0] == '\0') {
            *code_out = ctl_usage("a value is missing behind", names[i]);
        } else {
            *places[i] = argv[++*at];
        }
        return true;
    }
    return false;
}

/* The first line of a file, without blanks at its end. */
static int read_token(const char *file, char *token)
{
    char line[TOKEN_BYTES + 3] = "";
    FILE *in = fopen(file, "re");
    if (!in) {
        (void)fprintf(stderr, "statecachectl: %s: %s\n", file, strerror(errno));
        return CTL_OPEN;
    }
    bool got = fgets(line, sizeof line, in) != NULL;
    (void)fclose(in);
    size_t count = strcspn(line, "\r\n");
    while (count > 0 && line[count - 1] == ' ') count--;
    if (!got || count == 0 || count > TOKEN_BYTES) {
        (void)fprintf(stderr, "statecachectl: %s: its first line is no token\n", file);
        return CTL_OPEN;
    }
    memcpy(token, line, count);
    token[count] = '\0';
    return CTL_OK;
}

int ctl_service_fail(const char *what)
{
    const struct sc_error_info *error = sc_client_last_error();
    (void)fprintf(stderr, "statecachectl: %s: %s (%s)\n", what, error->text,
        sc_status_name(error->status));
    return error->status == SC_ERR_CLOSED ? CTL_OPEN : CTL_FAILED;
}

int ctl_service_open(const struct ctl_service *service, struct sc_client **client_out)
{
    const char *where = service->socket ? service->socket : "statecached.sock";
    char address[ADDRESS_BYTES], token[TOKEN_BYTES + 1] = "";
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    *client_out = NULL;
    if (service->socket && service->connect) {
        return ctl_usage("--socket and --connect exclude each other", NULL);
    }
    if (service->connect) where = service->connect;
    int count = snprintf(address, sizeof address, "%s:%s", service->connect ? "tcp" : "unix",
        where);
    if (count < 0 || (size_t)count >= sizeof address) return ctl_usage("too long:", where);
    if (service->token_file) {
        int code = read_token(service->token_file, token);
        if (code != CTL_OK) return code;
        options.token = token;
    }
    options.address = address;
    if (sc_client_open(&options, client_out) == SC_OK) return CTL_OK;
    *client_out = NULL;
    (void)ctl_service_fail("the service cannot be reached");
    return CTL_OPEN;
}

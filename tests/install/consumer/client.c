/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the installed client library, and nothing else of ours: a service that is not there. */
#include <statecache/client.h>

#include <stdio.h>

int main(void)
{
    sc_client_options options = SC_CLIENT_OPTIONS_INIT;
    sc_client *client = NULL;
    options.address = "unix:/nowhere/at/all";
    if (sc_client_open(&options, &client) != SC_ERR_NOT_FOUND || client) {
        fprintf(stderr, "not what was expected: %s\n", sc_client_last_error()->text);
        return 1;
    }
    return 0;
}

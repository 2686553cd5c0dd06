/* SPDX-License-Identifier: Apache-2.0 */
/* Models that no preset has: lines `group = NAME CHUNK` and `part = ...` of a configuration. */
#ifndef SC_DAEMON_CONFIG_PARTS_H
#define SC_DAEMON_CONFIG_PARTS_H

#include "config.h"

/* `group = gdn 64`. False: what is wrong is in `text`. */
bool sd_config_group(struct sd_config *config, const char *value, char *text, size_t text_bytes);
/* `part = LAYER KIND DTYPE DIMS [GROUP]`: 0 recurrent f32 32x128x128. */
bool sd_config_part(struct sd_config *config, const char *value, char *text, size_t text_bytes);
void sd_config_print_groups(const struct sd_config *config, FILE *out);
void sd_config_print_parts(const struct sd_config *config, FILE *out);

#endif

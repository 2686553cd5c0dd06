/* SPDX-License-Identifier: Apache-2.0 */
/* Power cuts without cutting power: what a program does to the files of one folder is recorded, and
 * from the record a disk as it may look after a cut at any point is built in another folder.
 *
 *   time   1       2       3       4       5       6       7
 *          |-- write a --|         |-- sync --|
 *                  |---- write b ------|              cut at 7: a is there, b may be
 *                                     cut at 4: each page of a and of b may be
 *
 * The functions of libc that write, size, sync, name and remove files, and those of liburing that
 * submit, are replaced in a program that is linked with tier_power.c; they do what they do and
 * write down when each began and ended, also those that LMDB calls.
 *
 * (1) A write is durable when a sync of its file began after its end and ended before the cut, or
 *     when its descriptor has O_DSYNC and it ended before the cut (only its own bytes then).
 * (2) Of any other write that began before the cut, each page of 4 KiB may be there, or not, or
 *     those of its sectors of 512 bytes that chance chooses.
 * (3) So is a new size of a file, and a name that was made or removed, which only a sync of the
 *     folder makes durable. Mapped memory is not watched: nothing durable is written through it.
 *
 * Threads: what is recorded may come from any; start, stop and image are for one, with no other
 * thread at work in the folder. */
#ifndef TESTS_UNIT_TIER_POWER_H
#define TESTS_UNIT_TIER_POWER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/prng.h"

/* From now on what happens below `folder` (absolute, empty) is recorded, in place of what was. */
void power_start(const char *folder);
void power_stop(void);
/* The time, which counts beginnings and ends; what ended before the call is below it. */
uint64_t power_now(void);
/* Syncs of files whose names begin so are done, but not written down: what is left is the record of
 * a program that lacks them. NULL: none. */
void power_hide_syncs(const char *prefix);

/* Call `at` (from 1) of those on files and names below the folder does not happen and gives `code`;
 * POWER_SHORT: a write moves half, any other call gives EIO. 0: none. Calls of liburing are passed
 * over. True: the one that was set before has failed. */
enum { POWER_SHORT = 1 << 20 };
bool power_fail(uint64_t at, int code);

struct power_count { uint64_t writes, ring_writes, dsync_writes, syncs, folder_syncs; };
struct power_count power_counted(void);

/* Fills `folder`, which is there and empty, with a disk as a cut at `cut` may leave it. */
void power_image(uint64_t cut, struct sc_prng *prng, const char *folder);

#endif

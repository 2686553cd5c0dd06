/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of statecache-bench: argv[0] is the subcommand's name; returns the exit
 * status. */
#ifndef BENCH_MAIN_H
#define BENCH_MAIN_H

int replay_main(int argc, char **argv);
#ifdef SC_HAVE_CUDA
int gpu_main(int argc, char **argv);
#endif
#ifdef SC_HAVE_SERVICE
int service_main(int argc, char **argv);
#endif
int hit_main(int argc, char **argv);
int radix_main(int argc, char **argv);
int kernels_main(int argc, char **argv);
int layers_main(int argc, char **argv);
int spill_main(int argc, char **argv);

#endif

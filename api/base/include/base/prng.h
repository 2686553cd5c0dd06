/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded pseudo-random numbers (splitmix64 and xoshiro256**; Blackman and Vigna). The only source
 * of randomness in this repository outside of tests that ask the kernel for entropy. */
#ifndef SC_BASE_PRNG_H
#define SC_BASE_PRNG_H

#include <stdint.h>

struct sc_prng { uint64_t s[4]; };

void sc_prng_seed(struct sc_prng *prng, uint64_t seed);
uint64_t sc_prng_next(struct sc_prng *prng);
/* Uniform in [0, bound), without bias; bound > 0. */
uint64_t sc_prng_below(struct sc_prng *prng, uint64_t bound);
/* Uniform in [0, 1) with 53 bits. */
double sc_prng_unit(struct sc_prng *prng);
/* Standard normal. */
double sc_prng_normal(struct sc_prng *prng);

/* One splitmix64 step as a pure mixing function: for deriving seeds. */
uint64_t sc_mix64(uint64_t x);

#endif

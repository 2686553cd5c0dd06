/* SPDX-License-Identifier: Apache-2.0 */
/* splitmix64 (seeding, mixing) and xoshiro256** (numbers); both by Blackman and Vigna, public
 * domain algorithms. Bits are part of the contract: recorded seeds must replay. */
#include "base/prng.h"

#include <math.h>

#include "base/sc_assert.h"

static uint64_t rotl(uint64_t x, unsigned k)
{
    return (x << k) | (x >> (64 - k));
}

uint64_t sc_mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void sc_prng_seed(struct sc_prng *prng, uint64_t seed)
{
    for (unsigned i = 0; i < 4; i++) {
        prng->s[i] = sc_mix64(seed);
        seed += 0x9e3779b97f4a7c15u; /* the walk of splitmix64: distinct outputs, so not all 0 */
    }
}

uint64_t sc_prng_next(struct sc_prng *prng)
{
    uint64_t *s = prng->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t sc_prng_below(struct sc_prng *prng, uint64_t bound)
{
    SC_ASSERT(bound > 0);
    /* Values below 2^64 mod bound would make the first residues likelier: draw again. */
    uint64_t reject = (0 - bound) % bound;
    uint64_t x;
    do {
        x = sc_prng_next(prng);
    } while (x < reject);
    return x % bound;
}

double sc_prng_unit(struct sc_prng *prng)
{
    return (double)(sc_prng_next(prng) >> 11) * 0x1p-53;
}

double sc_prng_normal(struct sc_prng *prng)
{
    /* Box-Muller; one of the pair is dropped so that the generator has no hidden state. */
    double u = 1.0 - sc_prng_unit(prng); /* (0, 1] */
    double v = sc_prng_unit(prng);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

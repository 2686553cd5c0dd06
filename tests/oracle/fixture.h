/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the fixtures that generate.py writes: 8 bytes "SCFIX1\n\0", then for each array name[16],
 * type, dim count, four dims (u32), data padded to 4 bytes; little endian. */
#ifndef SC_TESTS_ORACLE_FIXTURE_H
#define SC_TESTS_ORACLE_FIXTURE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIXTURE_F32 = 1, FIXTURE_BF16 = 2, FIXTURE_I32 = 4 };

struct fixture {
    uint8_t *bytes;
    size_t size;
};

struct fixture_array {
    float *f;   /* F32 and BF16, widened; owned by the caller */
    int32_t *i; /* I32 */
    uint32_t dims[4];
    size_t count; /* 0: not in the file */
};

static inline void fixture_die(const char *name, const char *why)
{
    fprintf(stderr, "fixture %s: %s\n", name, why);
    abort();
}

static inline struct fixture fixture_open(const char *folder, const char *name)
{
    char path[512];
    struct fixture x = {NULL, 0};
    snprintf(path, sizeof path, "%s/%s.scfix", folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) fixture_die(path, "cannot open");
    if (fseek(file, 0, SEEK_END) != 0) fixture_die(path, "cannot seek");
    x.size = (size_t)ftell(file);
    rewind(file);
    x.bytes = malloc(x.size);
    if (x.bytes == NULL || fread(x.bytes, 1, x.size, file) != x.size) fixture_die(path, "short");
    fclose(file);
    if (x.size < 8 || memcmp(x.bytes, "SCFIX1\n", 8) != 0) fixture_die(path, "not a fixture");
    return x;
}

static inline void fixture_close(struct fixture *x)
{
    free(x->bytes);
    *x = (struct fixture){NULL, 0};
}

/* The array `name`; count 0 if there is none. */
static inline struct fixture_array fixture_find(const struct fixture *x, const char *name)
{
    struct fixture_array out = {NULL, NULL, {0}, 0};
    for (size_t at = 8; at + 40 <= x->size;) {
        uint32_t head[6];
        memcpy(head, x->bytes + at + 16, sizeof head);
        size_t count = (size_t)head[2] * head[3] * head[4] * head[5];
        size_t bytes = count * (head[0] == FIXTURE_BF16 ? 2 : 4);
        const uint8_t *data = x->bytes + at + 40;
        if (at + 40 + bytes > x->size) fixture_die(name, "cut short");
        if (strncmp((const char *)x->bytes + at, name, 16) != 0) {
            at += 40 + (bytes + 3) / 4 * 4;
            continue;
        }
        memcpy(out.dims, head + 2, sizeof out.dims);
        out.count = count;
        out.f = malloc(count * 4);
        if (out.f == NULL) fixture_die(name, "no memory");
        if (head[0] == FIXTURE_I32) {
            out.i = (int32_t *)(void *)out.f;
            out.f = NULL;
            memcpy(out.i, data, bytes);
        } else if (head[0] == FIXTURE_F32) {
            memcpy(out.f, data, bytes);
        } else {
            for (size_t n = 0; n < count; n++) {
                uint32_t u = (uint32_t)data[2 * n] << 16 | (uint32_t)data[2 * n + 1] << 24;
                memcpy(out.f + n, &u, 4);
            }
        }
        return out;
    }
    return out;
}

static inline struct fixture_array fixture_get(const struct fixture *x, const char *name)
{
    struct fixture_array out = fixture_find(x, name);
    if (out.count == 0) fixture_die(name, "no such array");
    return out;
}

static inline void fixture_free(struct fixture_array *a)
{
    free(a->f);
    free(a->i);
    *a = (struct fixture_array){NULL, NULL, {0}, 0};
}

/* RMSE(got - want) / RMS(want); NaN if anything is not finite. */
static inline double fixture_rmse_ratio(const float *got, const float *want, size_t count)
{
    double error = 0.0, size = 0.0;
    for (size_t n = 0; n < count; n++) {
        double d = (double)got[n] - (double)want[n];
        error += d * d;
        size += (double)want[n] * (double)want[n];
    }
    return sqrt(error / size);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Between codec.c and codec_quant.c. */
#ifndef SC_SNAPSHOT_CODEC_INTERNAL_H
#define SC_SNAPSHOT_CODEC_INTERNAL_H

#include "snapshot/codec.h"

/* The state as it is, dense: what the quantising codecs start from and end in. */
sc_status codec_raw_bytes(const sc_pool *pool, uint64_t *bytes_out);
sc_status codec_raw_move(const sc_pool *pool, uint32_t slot, sc_devptr payload, bool encode);

sc_status codec_bf16_bytes(const sc_pool *pool, uint64_t *bytes_out);
sc_status codec_bf16_encode(const sc_pool *pool, uint32_t slot, void *payload, uint64_t capacity,
    uint64_t *bytes_out);
sc_status codec_bf16_decode(sc_pool *pool, uint32_t slot, const void *payload, uint64_t bytes);
sc_status codec_int8_bytes(const sc_pool *pool, uint64_t *bytes_out);
sc_status codec_int8_encode(const sc_pool *pool, uint32_t slot, void *payload, uint64_t capacity,
    uint64_t *bytes_out);
sc_status codec_int8_decode(sc_pool *pool, uint32_t slot, const void *payload, uint64_t bytes);

#endif

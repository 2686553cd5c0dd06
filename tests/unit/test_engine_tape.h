/* SPDX-License-Identifier: Apache-2.0 */
/* Records of mutating calls, kept until a player is fed with them. */
#ifndef TESTS_UNIT_TEST_ENGINE_TAPE_H
#define TESTS_UNIT_TEST_ENGINE_TAPE_H

#include "statecache/experimental.h"
#include "test_engine_rig.h"

struct tape {
    uint8_t *bytes;
    size_t count, cap;
    uint64_t records;
};

static inline void tape_record(void *ctx, const void *bytes, size_t count)
{
    struct tape *tape = ctx;
    if (tape->count + count > tape->cap) {
        tape->cap = (tape->count + count) * 2;
        tape->bytes = realloc(tape->bytes, tape->cap);
        ck_assert_ptr_nonnull(tape->bytes);
    }
    memcpy(tape->bytes + tape->count, bytes, count);
    tape->count += count;
    tape->records++;
}

static inline void tape_feed(sc_replay *replay, struct tape *tape)
{
    sc_status status = sc_replay_feed(replay, tape->bytes, tape->count);
    ck_assert_msg(status == SC_OK, "%s", sc_last_error()->text);
    tape->count = 0;
}

#endif

# SPDX-License-Identifier: Apache-2.0
"""Two requests that share a prompt; the second one resumes where the first one's state was saved.

Run it: python first_hit.py
"""
# [open]
import numpy as np

import statecache as sc

schema = sc.Schema(
    model="toy", revision="1", layer_count=1, groups=[sc.Group("gdn", chunk=16)],
    parts=[sc.Part(layer=0, kind="recurrent", dtype="f32", dims=(2, 16, 16))])
pool = sc.Pool(schema, slot_count=8)       # room for eight states
cache = sc.Cache(pool, page_tokens=16)     # your attention backend keeps KV in pages of 16 tokens
ns = cache.namespace()                     # of these weights, without an adapter
state = pool.view(layer=0)                 # numpy, in place: [slot, 2, 16, 16]
# [open]


# [serve]
def serve(tokens, page_ids):
    lease = cache.acquire_one(ns, tokens)
    info = lease.info
    why = sc.reason_text(info.reason)
    print(f"{len(tokens)} tokens, resumed at {info.resume_len} (no more: {why})")

    step = cache.plan(lease, info.resume_len, len(tokens))
    sc.raise_for_status(step.status)
    source, dest, start, end = step.source[0], step.dest[0], step.position[0], step.end[0]
    for upto, slot in zip(step.save_position, step.save_slot):  # every state on the way, too
        state[slot] = state[source] + tokens[start:upto].sum()
    state[dest] = state[source] + tokens[start:end].sum()       # your model's forward
    print(f"  computed {end - start} tokens, the state is {state[dest, 0, 0, 0]:.0f}")
    assert (state[dest] == tokens.sum()).all()  # as if nothing had been resumed

    step.commit(page_ids)  # ids of the KV pages that this forward filled
    lease.release()        # its end is kept for a next turn
# [serve]


prompt = np.arange(50, dtype=np.int32)
serve(prompt, [100, 101, 102])
serve(np.concatenate([prompt, [7] * 22]).astype(np.int32), [103])
cache.close()
del state  # an array over the pool's memory keeps it
pool.close()

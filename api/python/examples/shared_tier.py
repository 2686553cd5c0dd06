# SPDX-License-Identifier: Apache-2.0
"""A cache in process whose lower tier is the service: what one engine computes, all others resume.

Run it beside `./dev serve`, as often as you like: python shared_tier.py [ADDRESS [MODEL]]
"""
import pathlib
import sys
import time

# [open]
import numpy as np

import statecache as sc

ROOT = pathlib.Path(__file__).resolve().parents[3]
address = sys.argv[1] if len(sys.argv) > 1 else f"unix:{ROOT}/build/statecached.sock"
schema = sc.Schema.preset(sys.argv[2] if len(sys.argv) > 2 else "qwen3-next-80b-a3b")
pool = sc.Pool(schema, slot_count=4)  # this engine's own states
remote = sc.Remote(address)           # those of all engines of this machine
tiers = sc.Tiers(remote=sc.TierConfig(1 << 40, write="through"), service=remote)
cache = sc.Cache(pool, page_tokens=64, without_kv=True, tiers=tiers)
# [open]
ns = cache.namespace()
state = pool.view(next(part.layer for part in schema.parts if part.kind == "recurrent"))


# [serve]
def settle():
    """What a scheduler does once a step, here until nothing is on its way."""
    while cache.stats()["transfers_alive"]:
        cache.apply(cache.poll())
        time.sleep(0.001)


def serve(tokens):
    cache.learn(cache.find(ns, tokens))  # what others have stored of this prompt
    lease = cache.acquire_one(ns, tokens)
    settle()  # its state comes from the service
    start = lease.info.resume_len
    print(f"{len(tokens)} tokens, resumed at {start}")

    step = cache.plan(lease, start, len(tokens))
    sc.raise_for_status(step.status)
    source, dest = step.source[0], step.dest[0]
    for upto, slot in zip(step.save_position, step.save_slot):  # every state on the way, too
        state[slot] = state[source] + tokens[start:upto].sum(dtype=np.float32)
    state[dest] = state[source] + tokens[start:].sum(dtype=np.float32)  # your model's forward
    print(f"  computed {len(tokens) - start} tokens, the state is {np.max(state[dest]):.0f}")
    assert np.max(state[dest]) == tokens.sum()  # as if nothing had been resumed
    step.commit()
    lease.release()
    settle()  # and goes there
# [serve]


prompt = np.arange(1000, 1130, dtype=np.int32)
longer = np.concatenate([prompt, [7] * 24]).astype(np.int32)
if cache.find(ns, longer).len[0] == 0:  # the first engine of this machine
    serve(prompt)
serve(longer)
cache.close()
tiers.close()
remote.close()

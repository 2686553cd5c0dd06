# SPDX-License-Identifier: Apache-2.0
"""A prompt that resumes from a state which another process may have written.

Run it beside `./dev serve`, as often as you like: python service.py [ADDRESS]
"""
import pathlib
import sys

# [connect]
import numpy as np

import statecache as sc

ROOT = pathlib.Path(__file__).resolve().parents[3]
address = sys.argv[1] if len(sys.argv) > 1 else f"unix:{ROOT}/build/statecached.sock"
client = sc.Client(address)
layer = next(part.layer for part in client.parts if part.kind == "recurrent")
# [connect]


# [serve]
def serve(tokens):
    with client.acquire_one(tokens) as found:  # the longest prefix that has a state
        start = found.len
        state = found.view(layer).copy() if start else 0  # your model reads it in place
    print(f"{len(tokens)} tokens, resumed at {start}")

    state = state + tokens[start:].sum(dtype=np.float32)  # your model's forward
    with client.write(tokens) as write:  # memory of the service; whoever comes first fills it
        if not write.exists:  # an engine fills every part of every layer; a sum has one place
            write.view(layer)[...] = state
    print(f"  computed {len(tokens) - start} tokens, the state is {np.max(state):.0f}")
# [serve]


prompt = np.arange(96, dtype=np.int32)
longer = np.concatenate([prompt, [7] * 24]).astype(np.int32)
with client.acquire_one(longer) as before:
    print(f"the service has {before.len} of these {len(longer)} tokens")
if before.len < len(prompt):  # the first process that is asked for it
    serve(prompt)
serve(longer)
client.close()

# SPDX-License-Identifier: Apache-2.0
"""A scheduler's loop in forty lines: requests that share prompts, served with a cache of states.

The model is a stand-in whose state is the sum of the tokens so far, so that the answer shows that
a resumed request equals one that never stopped. Run it: python scheduler.py
"""
import numpy as np

import statecache as sc

PAGE, ROWS = 16, 8  # tokens of a KV page; requests in a batch


def forward(state, step, tokens):
    """Your model: reads the state in `source`, writes the one behind the row to `dest`."""
    for row, (source, dest) in enumerate(zip(step.source, step.dest)):
        if dest < 0:
            continue  # a row that was refused
        begin = step.position[row]
        for save in np.flatnonzero(step.save_row == row):  # a state on the way
            upto = tokens[row][begin:step.save_position[save]]
            state[step.save_slot[save]] = state[source] + upto.sum()
        state[dest] = state[source] + tokens[row][begin:step.end[row]].sum()


# [loop]
def serve(cache, ns, prompts, answer_len, pages):
    """Serves prompts in batches; yields (prompt number, tokens resumed, state at the end)."""
    state = cache.pool.view(layer=0)  # [slot, ...], in place
    waiting, running = list(range(len(prompts))), {}
    while waiting or running:
        # Admit: one call for all that fit. No slot is no error, but an answer: later.
        batch = waiting[:ROWS - len(running)]
        if batch:
            leases, status = cache.acquire(ns, sc.Ragged.pack([prompts[n] for n in batch]))
            resumed = cache.infos(leases[status == 0])["resume_len"]
            admitted = [n for n, code in zip(batch, status) if code == 0]
            waiting = [n for n in waiting if n not in admitted]
            for n, lease, start in zip(admitted, leases[status == 0], resumed):
                running[n] = {"lease": lease, "resumed": start, "text": prompts[n]}

        # Plan: a row for each request, from where it stands to the end of its text.
        rows = list(running.values())
        info = cache.infos([r["lease"] for r in rows])
        step = cache.plan([r["lease"] for r in rows], info["issued_len"], info["token_count"])
        sc.raise_for_status(step.status)
        forward(state, step, [r["text"] for r in rows])

        # Commit: the forward has ended; pages that it filled get ids of yours.
        counts = step.page_counts()
        ids = np.array([pages.pop() for _ in range(counts.sum())], np.int32)
        step.commit(sc.Ragged(ids, np.concatenate([[0], np.cumsum(counts)])))

        # Go on: a next token (here: 7), or the end, which is kept for a next turn.
        for n, r, end in zip(list(running), rows, step.end):
            if end == len(prompts[n]) + answer_len:
                yield n, int(r["resumed"]), float(state[step.dest[rows.index(r)]].flat[0])
                cache.release(r["lease"], keep=True)
                del running[n]
            elif end == len(r["text"]):
                r["text"] = np.append(r["text"], np.int32(7))
                cache.append(r["lease"], r["text"][-1:])
        pages.extend(cache.drain().tolist())  # ids that the cache has let go
# [loop]


def main():
    """Two rounds: the second one's prompts are the first one's, gone on."""
    schema = sc.Schema("toy", "1", [sc.Group("gdn", 16)],
                       [sc.Part(layer=0, kind="recurrent", dtype="f32", dims=(2, 16, 16))], 1)
    with sc.Pool(schema, slot_count=32) as pool, sc.Cache(pool, page_tokens=PAGE) as cache:
        ns = cache.namespace()
        pages = list(range(1000))
        system = np.arange(64, dtype=np.int32)  # a prompt that all share
        users = [np.full(30 + n, n, np.int32) for n in range(4)]
        prompts = [np.concatenate([system, user]) for user in users]
        for turn in (1, 2):
            for n, resumed, value in serve(cache, ns, prompts, 20, pages):
                cold = prompts[n].sum() + 20 * 7
                print(f"turn {turn}, request {n}: {len(prompts[n])} tokens, resumed at {resumed}, "
                      f"state {value:.0f}, cold {cold}")
                assert value == cold
                prompts[n] = np.concatenate([prompts[n], np.full(20, 7, np.int32), users[n]])
        cache.verify()
        print(f"hit {cache.stats()['tokens_hit']} of {cache.stats()['tokens_asked']} tokens")


if __name__ == "__main__":
    main()

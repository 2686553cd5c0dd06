# SPDX-License-Identifier: Apache-2.0
"""What the tests of the package share. They run against the wheel that was built from this tree
(`run` puts it on the path), and so against the real library."""
import numpy as np
import pytest

import statecache as sc

PAGE = 16
SLOTS = 8


def make_schema(parts=None, revision="1"):
    """One layer with a state of 2 x 16 x 16 floats, unless parts are given."""
    parts = parts or [sc.Part(layer=0, kind="recurrent", dtype="f32", dims=(2, 16, 16))]
    return sc.Schema("toy", revision, [sc.Group("gdn", 16)], parts,
                     max(part.layer for part in parts) + 1)


@pytest.fixture
def schema():
    return make_schema()


@pytest.fixture
def pool(schema):
    """A pool whose slots must all be free again at the end, and its null slot zero."""
    with sc.Pool(schema, SLOTS) as made:
        yield made
        made.audit()
        info = made.info
        assert info.free_count == info.slot_count, info


@pytest.fixture
def cache(pool):
    """A cache that must account for everything at the end: no lease is left, the tree, the pool
    and the KV ids agree."""
    with sc.Cache(pool, PAGE, row_max=8, save_max=8, lease_max=6) as made:
        yield made
        made.verify()
        assert made.stats()["leases_alive"] == 0
    pool.audit()


@pytest.fixture
def ns(cache):
    return cache.namespace()


class Engine:
    """A model whose state is the sum of the tokens so far, and KV pages with ids from 100 on."""

    def __init__(self, cache):
        self.cache = cache
        self.next_id = 100

    @property
    def state(self):
        return self.cache.pool.view(0)

    def forward(self, step, texts):
        state = self.state
        for row in np.flatnonzero(step.status == 0):
            begin, text = step.position[row], texts[row]
            for save in np.flatnonzero(step.save_row == row):
                upto = text[begin:step.save_position[save]].sum()
                state[step.save_slot[save]] = state[step.source[row]] + upto
            state[step.dest[row]] = state[step.source[row]] + text[begin:step.end[row]].sum()
        return state[step.dest].reshape(len(step.dest), -1)[:, 0]

    def ids(self, counts):
        ids = np.arange(self.next_id, self.next_id + counts.sum(), dtype=np.int32)
        self.next_id += ids.size
        return sc.Ragged(ids, np.concatenate([[0], np.cumsum(counts)]))

    def serve(self, ns, texts, keep=True):
        """Serves a batch whole; returns tokens resumed and the state at the end of each."""
        leases, status = self.cache.acquire(ns, sc.Ragged.pack(texts))
        sc.raise_for_status(status)
        resumed = self.cache.infos(leases)["resume_len"]
        step = self.cache.plan(leases, resumed, [len(text) for text in texts])
        sc.raise_for_status(step.status)
        values = self.forward(step, texts)
        step.commit(self.ids(step.page_counts()))
        sc.raise_for_status(self.cache.release(leases, keep))
        return resumed, values


@pytest.fixture
def engine(cache):
    return Engine(cache)


def pytest_terminal_summary(terminalreporter):
    """The closing line that tests/support/count_results.py adds up."""
    count = {name: len(terminalreporter.stats.get(name, [])) for name in
             ("passed", "failed", "error", "skipped")}
    terminalreporter.write_line(f"{count['passed']} passed, {count['failed'] + count['error']} "
                                f"failed, {count['skipped']} skipped")

# SPDX-License-Identifier: Apache-2.0
"""The life of a request from Python: hits, batches, forks, drafts, memory given back."""
import sys
import time

import numpy as np
import pytest

import statecache as sc
from conftest import PAGE, Engine, make_schema


def text(first, count):
    return np.arange(first, first + count, dtype=np.int32)


def test_hit__second_request_resumes_and_has_the_state_of_a_cold_run(engine, ns):
    assert engine.serve(ns, [text(0, 48)])[0] == [0]
    longer = np.concatenate([text(0, 48), text(500, 24)])
    resumed, values = engine.serve(ns, [longer])
    assert resumed == [48] and values == [longer.sum()]


def test_lookup__tells_what_acquire_will_find_and_changes_nothing(cache, engine, ns):
    engine.serve(ns, [text(0, 48)])
    before = cache.stats()
    answers = cache.lookup(ns, [text(0, 80), text(0, 48), text(900, 60), text(0, 3)])
    assert answers["state_len"][:, 0].tolist() == [48, 0, 0, 0]
    assert answers["kv_len"].tolist() == [48, 32, 0, 0]
    assert answers["status"].tolist() == [0, 0, 0, 0]
    reasons = [sc.Reason(reason) for reason in answers["reason"]]
    assert reasons == [sc.Reason.NO_PREFIX, sc.Reason.BEYOND, sc.Reason.NO_PREFIX,
                       sc.Reason.TOO_SHORT], reasons
    assert "never seen" in sc.reason_text(answers["reason"][0])
    assert cache.stats() == before


@pytest.mark.parametrize("form", ["ragged", "list", "matrix", "numbers"])
def test_batches__each_form_of_a_batch_means_the_same(cache, engine, ns, form):
    engine.serve(ns, [text(0, 32), text(100, 32)])
    prompts = [text(0, 40), text(100, 40)]
    given = {"ragged": sc.Ragged(np.concatenate(prompts), [0, 40, 80]), "list": prompts,
             "matrix": np.stack(prompts), "numbers": [prompt.tolist() for prompt in prompts]}[form]
    assert cache.lookup(ns, given)["state_len"][:, 0].tolist() == [32, 32]
    # one prompt, as a batch of one
    assert cache.lookup(ns, prompts[0])["state_len"][0, 0] == 32
    assert cache.lookup(ns, prompts[0].tolist())["state_len"][0, 0] == 32


def test_batches__empty_is_a_batch_too(cache, ns):
    assert cache.lookup(ns, sc.Ragged(np.empty(0, np.int32), [0])).size == 0
    leases, status = cache.acquire(ns, [])
    assert leases.size == status.size == 0
    assert cache.append(leases, []).size == 0 and cache.release(leases).size == 0


def test_batches__values_outside_the_offsets_are_not_read(cache, engine, ns):
    engine.serve(ns, [text(0, 32)])
    padded = np.concatenate([text(900, 5), text(0, 40), text(900, 5)])
    assert cache.lookup(ns, sc.Ragged(padded, [5, 45]))["state_len"][0, 0] == 32


def test_decode__one_token_at_a_time_saves_page_ends(cache, engine, ns):
    lease = cache.acquire_one(ns, text(0, 40))
    tokens = text(0, 40)
    for _ in range(10):
        info = lease.info
        step = cache.plan(lease, info.issued_len, info.token_count)
        sc.raise_for_status(step.status)
        engine.forward(step, [tokens])
        saved = step.commit(engine.ids(step.page_counts()))
        assert set(saved["skip"]) <= {0}
        lease.append([7])
        tokens = np.append(tokens, np.int32(7))
    info = lease.info
    assert (info.len, info.token_count, info.state) == (49, 50, sc.LeaseState.READY)
    assert lease.kv_ids().tolist() == [100, 101, 102] and lease.kv_ids(2).tolist() == [102]
    assert lease.history["end"].tolist()[-1] == 49 and lease.history["form"].tolist()[-1] == 1
    lease.release()
    assert cache.lookup(ns, np.append(tokens[:49], 1).astype(np.int32))["state_len"][0, 0] == 48


def test_append__one_token_for_each_lease_from_a_flat_array(cache, engine, ns):
    leases, _ = cache.acquire(ns, [text(0, 20), text(50, 21)])
    assert cache.append(leases, np.array([5, 6], np.int32)).tolist() == [0, 0]
    assert cache.append(leases, sc.Ragged(text(0, 3), [0, 0, 3])).tolist() == [0, 0]
    assert cache.infos(leases)["token_count"].tolist() == [21, 25]
    cache.release(leases, keep=False)


def test_points__a_position_that_is_asked_for_is_saved(cache, engine, ns):
    lease = cache.acquire_one(ns, text(0, 60))
    step = cache.plan(lease, 0, 60, points=[np.array([32], np.uint32)])
    assert step.save_position.tolist() == [32, 48] and step.save_row.tolist() == [0, 0]
    engine.forward(step, [text(0, 60)])
    saved = step.commit(engine.ids(step.page_counts()))
    assert saved["position"].tolist() == [32, 48] and (saved["slot"] > 0).all()
    lease.release(keep=False)
    assert cache.lookup(ns, text(0, 40))["state_len"][0, 0] == 32


def test_marks__tenants_do_not_share(cache, ns):
    engine = Engine(cache)
    salt = [sc.make_marks([(0, bytes([n]) * 16)]) for n in (1, 2)]
    lease = cache.acquire(ns, text(0, 48), marks=[salt[0]])[0]
    step = cache.plan(lease, 0, 48)
    engine.forward(step, [text(0, 48)])
    step.commit(engine.ids(step.page_counts()))
    cache.release(lease)
    found = [cache.lookup(ns, text(0, 60), marks=[marks])["state_len"][0, 0] for marks in salt]
    assert found == [48, 0]
    assert cache.lookup(ns, text(0, 60))["state_len"][0, 0] == 0


def test_namespaces__adapters_do_not_share_and_closing_drops(cache, engine, ns):
    other = cache.namespace(adapter_id=7)
    assert other != ns and cache.namespace(cache.pool.schema.fingerprint) == ns
    engine.serve(ns, [text(0, 48)])
    assert cache.lookup(other, text(0, 60))["state_len"][0, 0] == 0
    assert "48" in cache.dump(ns) or cache.dump(ns)
    cache.close_namespace(ns)
    assert sorted(cache.drain().tolist()) == [100, 101, 102]
    assert cache.lookup(ns, text(0, 60))["status"][0] == sc.Status.STALE


def test_hints__go_with_the_states_that_a_lease_saves(cache, engine, ns):
    hints = [sc.Hints(breakpoints=[16, 32], pin_until_ns=99, priority=-3, class_id=4,
                      flags=sc.CONTINUES), None]
    leases, status = cache.acquire(ns, [text(0, 48), text(100, 48)], hints=hints, now_ns=5)
    assert status.tolist() == [0, 0]
    infos = cache.infos(leases)
    assert infos["hints"]["priority"].tolist() == [-3, 0]
    assert infos["hints"]["pin_until_ns"].tolist() == [99, 0]
    step = cache.plan(leases, 0, 48)
    assert step.save_position[step.save_row == 0].tolist() == [16, 32]
    assert step.save_position[step.save_row == 1].size == 0
    step.abort()
    cache.release(leases, keep=False)


def test_fork__children_go_on_from_the_parent(cache, engine, ns):
    lease = cache.acquire_one(ns, text(0, 32))
    step = cache.plan(lease, 0, 32)
    engine.forward(step, [text(0, 32)])
    step.commit(engine.ids(step.page_counts()))
    children = lease.fork(2)
    assert [child.info.len for child in children] == [32, 32]
    for child in [lease, *children]:
        child.append([1])
    step = cache.plan([lease, *children], 32, 33)
    values = engine.forward(step, [np.append(text(0, 32), 1)] * 3)
    assert len(set(step.dest)) == 3 and len(set(step.source)) == 1
    assert values.tolist() == [text(0, 32).sum() + 1] * 3
    step.commit()
    assert cache.release([lease, *children]).tolist() == [0, 0, 0]


def test_steps__several_in_flight_and_drafts(pool):
    with sc.Cache(pool, PAGE, depth_max=2, draft_max=3) as cache:
        engine, ns = Engine(cache), cache.namespace()
        lease = cache.acquire_one(ns, text(0, 20), depth=2)
        first = cache.plan(lease, 0, 20)
        second = cache.plan(lease, 20, 21)  # a token that the first is about to sample
        assert (first.number, second.number) == (1, 2) and lease.info.steps_out == 2
        first.commit(engine.ids(first.page_counts()))
        lease.append([3])
        second.commit()
        lease.append([4])
        step = cache.plan(lease, 21, 24, drafts=2, parents=[np.array([-1, 0], np.int32)])
        assert step.draft_count.tolist() == [2]
        assert step.parents.tolist() == [[0, 1, -1]]  # counted in the row
        lease.append([5])  # one of two was accepted
        step.commit(len=[23])
        assert lease.info.len == 23
        lease.release(keep=False)
        cache.verify()


def test_step__abort_before_launch_is_as_if_never_planned(cache, engine, ns):
    lease = cache.acquire_one(ns, text(0, 32))
    before = lease.info
    cache.plan(lease, 0, 32).abort()
    assert lease.info == before
    cache.plan(lease, 0, 32).abort(launched=True)
    assert lease.info.state == sc.LeaseState.LOST
    lease.release()


def test_step__block_has_one_layout_and_goes_into_a_given_array(cache, ns):
    lease = cache.acquire_one(ns, text(0, 32))
    step = cache.plan(lease, 0, 32)
    buffer = np.full(step.layout.words + 5, 77, np.int32)
    step.abort()
    again = cache.plan(lease, 0, 32, out=buffer)
    assert again.layout is step.layout and np.shares_memory(again.block, buffer)
    assert (again.block == step.block).all() and (buffer[-5:] == 77).all()
    source = buffer[again.layout["source"]]
    assert source.size == 8 and source.tolist() == [0] + [-1] * 7
    assert "query_start_loc" in again.layout.names
    again.abort()
    lease.release(keep=False)


def test_step__no_pages_of_one_row_in_every_form(cache, engine, ns):
    lease = cache.acquire_one(ns, text(0, 32))
    ids = [[], (), [[]], np.empty(0, np.int32), None]
    for at, none in enumerate(ids):
        step = cache.plan(lease, at, at + 1)
        engine.forward(step, [text(0, 32)])
        step.commit(none)
    assert lease.info.len == len(ids)
    leases = cache.acquire(ns, [text(100, 32), text(200, 32)])[0]
    step = cache.plan(leases, 0, 8)
    with pytest.raises(sc.Invalid, match="0 items, 2 wanted"):
        step.commit([])
    step.abort()
    lease.release(keep=False)
    cache.release(leases, keep=False)


def test_step__parents_without_drafts_are_none(cache, ns):
    lease = cache.acquire_one(ns, text(0, 32))
    step = cache.plan(lease, 0, 32)
    assert step.parents.shape == (1, 0) and step.parents.dtype == np.int32
    step.abort()
    lease.release(keep=False)


def test_step__refused_rows_say_so_and_the_others_go_on(cache, engine, ns):
    leases, _ = cache.acquire(ns, [text(0, 32), text(100, 32)])
    step = cache.plan(leases, [0, 5], 32)
    assert step.status.tolist() == [0, sc.Status.MISMATCH] and step.dest.tolist()[1] == -1
    assert step.page_counts().tolist() == [2, 0]
    engine.forward(step, [text(0, 32), text(100, 32)])
    with pytest.raises(sc.Invalid, match="refused"):
        step.commit([[1], [2]])
    with pytest.raises(sc.Mismatch) as caught:
        step.commit([[1], []])
    assert caught.value.each.tolist() == [sc.Status.MISMATCH, 0]
    step.commit([[1, 2], []])
    cache.release(leases)


def test_room__full_pool_is_an_answer_and_a_release_helps(cache, engine, ns):
    leases, status = cache.acquire(ns, [text(100 * n, 20) for n in range(6)])
    assert status.tolist() == [0] * 6
    more, status = cache.acquire(ns, [text(700, 20)])
    assert status.tolist() == [sc.Status.LIMIT]  # lease_max
    with pytest.raises(sc.LimitReached):
        cache.acquire_one(ns, text(700, 20))
    cache.release(leases, keep=False)
    cache.acquire_one(ns, text(700, 20)).release(keep=False)


def test_room__no_slot_is_an_answer(pool):
    with sc.Cache(pool, PAGE) as cache:
        ns = cache.namespace()
        leases, status = cache.acquire(ns, [text(100 * n, 20) for n in range(9)])
        assert status.tolist() == [0] * 8 + [sc.Status.NO_SLOT]
        with pytest.raises(sc.NoSlot):
            cache.acquire_one(ns, text(0, 20))
        with pytest.raises(sc.NoSlot):
            sc.raise_for_status(status)
        assert cache.room()["slots_held"] == 8
        assert cache.release(leases).tolist() == [0] * 8 + [sc.Status.STALE]


def test_evict__ids_come_back(cache, engine, ns):
    engine.serve(ns, [text(0, 48), text(100, 48)])
    assert cache.evict(pages=6)["pages_drainable"] == 6
    assert sorted(cache.drain().tolist()) == list(range(100, 106))
    assert cache.drain().size == 0 and cache.room()["pages_cached"] == 0
    assert cache.trim(1000) >= 0


def test_external__the_engine_brings_a_state(cache, engine, ns):
    lease = cache.acquire_one(ns, text(0, 40), flags=sc.EXTERNAL, external_len=32)
    assert lease.info.state == sc.LeaseState.WAITING
    engine.state[lease.info.working_slot] = text(0, 32).sum()
    lease.filled([1, 2])
    step = cache.plan(lease, 32, 40)
    assert engine.forward(step, [text(0, 40)]).tolist() == [text(0, 40).sum()]
    step.commit()
    lease.release()


def test_tails__an_end_inside_a_page_is_kept(pool):
    with sc.Cache(pool, PAGE, tails=True) as cache:
        engine, ns = Engine(cache), cache.namespace()
        lease = cache.acquire_one(ns, text(0, 40))
        step = cache.plan(lease, 0, 40)
        engine.forward(step, [text(0, 40)])
        step.commit(engine.ids(step.page_counts()))
        lease.release(tail_kv=55)
        lease = cache.acquire_one(ns, text(0, 50))
        assert (lease.info.resume_len, lease.info.tail_kv) == (40, 55)
        lease.release(keep=False)
        cache.verify()


def test_without_kv__no_ids_are_exchanged(pool):
    with sc.Cache(pool, without_kv=True) as cache:
        engine, ns = Engine(cache), cache.namespace()
        assert engine.serve(ns, [text(0, 32)])[0] == [0]
        resumed, values = engine.serve(ns, [text(0, 50)])
        assert resumed == [32] and values == [text(0, 50).sum()]
        assert cache.drain().size == 0
        cache.verify()


def settle(cache):
    """Applies transfers between tiers until none is left."""
    for _ in range(1000):
        cache.apply(cache.poll())
        if cache.stats()["transfers_alive"] == 0:
            return
        time.sleep(0.01)
    raise AssertionError("transfers did not end in ten seconds")


def test_tiers__an_evicted_state_comes_back_from_host_memory(pool):
    config = sc.TierConfig(1 << 24, write="through")
    with sc.Tiers(host=config) as tiers, sc.Cache(pool, without_kv=True, tiers=tiers) as cache:
        engine, ns = Engine(cache), cache.namespace()
        engine.serve(ns, [text(0, 32)])
        settle(cache)
        cache.evict(slots=8)
        assert cache.lookup(ns, text(0, 50))["state_len"][0].tolist()[:2] == [0, 32]
        lease = cache.acquire_one(ns, text(0, 50))
        assert lease.info.state == sc.LeaseState.WAITING
        settle(cache)
        assert lease.info.resume_len == 32
        step = cache.plan(lease, 32, 50)
        assert engine.forward(step, [text(0, 50)]).tolist() == [text(0, 50).sum()]
        step.commit()
        lease.release()
        with pytest.raises(sc.Busy):
            tiers.close()
        settle(cache)
        cache.verify()
        assert tiers.stats()["restored"][1] == 1
        assert sum(tiers.stats()["restored_time"][1]) == 1


class Pages(sc.KvMover):
    """KV pages of eight bytes in an array; the ids below 50 are for what comes back."""

    page_bytes = 8

    def __init__(self):
        self.bytes = np.zeros((200, self.page_bytes), np.uint8)
        self.free = list(range(50))
        self.fail = False

    def alloc(self, count):
        if len(self.free) < count:
            return None
        return [self.free.pop() for _ in range(count)]

    def read(self, ids, out):
        if self.fail:
            raise OSError("the link is down")
        out[:] = self.bytes[ids]

    def write(self, ids, data):
        assert not data.flags.writeable
        self.bytes[ids] = data


def test_kv_mover__kv_comes_back_with_its_state(pool):
    pages = Pages()
    config = sc.TierConfig(1 << 24, write="through")
    with sc.Tiers(host=config) as tiers, sc.Cache(
            pool, PAGE, tiers=tiers, kv_mover=pages) as cache:
        ns = cache.namespace()
        engine = Engine(cache)
        lease = cache.acquire_one(ns, text(0, 32))
        step = cache.plan(lease, 0, 32)
        engine.forward(step, [text(0, 32)])
        pages.bytes[[100, 101]] = [[1], [2]]
        step.commit(engine.ids(step.page_counts()))
        lease.release()
        settle(cache)
        cache.evict(slots=8, pages=8)
        assert sorted(cache.drain().tolist()) == [100, 101]
        pages.bytes[:] = 0
        lease = cache.acquire_one(ns, text(0, 50))
        settle(cache)
        assert lease.info.resume_len == 32
        assert pages.bytes[lease.kv_ids()].tolist() == [[1] * 8, [2] * 8]
        lease.release(keep=False)
        cache.verify()


def test_kv_mover__one_that_raises_is_a_miss(pool, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: told.append(problem.exc_value))
    pages = Pages()
    pages.fail = True
    config = sc.TierConfig(1 << 24, write="through")
    with sc.Tiers(host=config) as tiers, sc.Cache(
            pool, PAGE, tiers=tiers, kv_mover=pages) as cache:
        ns = cache.namespace()
        Engine(cache).serve(ns, [text(0, 32)])
        settle(cache)
        assert cache.stats()["transfers_failed"] >= 1
        cache.evict(slots=8, pages=8)
        assert cache.lookup(ns, text(0, 50))["state_len"][0].tolist() == [0, 0, 0, 0]
        cache.verify()
    assert [str(problem) for problem in told] == ["the link is down"]


def test_schema__parts_groups_and_sizes_are_told():
    parts = [sc.Part(0, "conv", "bf16", (3, 96), blocks=(sc.Block(32, 16), sc.Block(64, 16))),
             sc.Part(0, "recurrent", "f32", (4, 16, 8)), sc.Part(2, "recurrent", "bf16", (4, 8, 8))]
    schema = make_schema(parts)
    assert schema.parts == parts and schema.groups == [sc.Group("gdn", 16)]
    assert schema.state_bytes() == 3 * 96 * 2 + 4 * 16 * 8 * 4 + 4 * 8 * 8 * 2
    assert schema.state_bytes(sc.Shard(tp_rank=1, tp_size=2)) == schema.state_bytes() // 2
    assert schema.grid(24) == 48 and len(schema.fingerprint) == 16
    other = schema.with_revision("2")
    assert other.fingerprint != schema.fingerprint and other.parts == parts
    extras = schema.extras(control_words=4)
    assert [(part.kind, part.dims) for part in extras.parts] == [("extra", (4,))]
    with sc.Pool(schema, 3, shard=sc.Shard(tp_rank=1, tp_size=2)) as pool:
        assert pool.view(0).shape == (4, 2, 16, 8) and pool.parts() == parts


def test_schema__presets_are_there():
    names = sc.Schema.presets()
    assert "qwen3-next-80b-a3b" in names
    schema = sc.Schema.preset("qwen3-next-80b-a3b", "bf16", revision="main")
    assert schema.fingerprint != sc.Schema.preset("qwen3-next-80b-a3b", "bf16").fingerprint
    assert len(schema.parts) == 72

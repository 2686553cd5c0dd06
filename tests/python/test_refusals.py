# SPDX-License-Identifier: Apache-2.0
"""Bad arguments of each call: a clear exception, and nothing has changed.

`test_every_call__has_a_refusal` holds the list below against the package: a public method or
function without an entry fails.
"""
import gc
import inspect
import warnings
import weakref

import numpy as np
import pytest

import statecache as sc
from conftest import PAGE, make_schema

TOKENS = np.arange(40, dtype=np.int32)
PART = sc.Part(0, "recurrent", "f32", (2, 16, 16))


def i32(*values):
    return np.array(values, np.int32)


def stale_lease():
    return np.zeros(1, sc.LEASE)[0]


def schema_of(**changes):
    arguments = dict(model="toy", revision="1", groups=[sc.Group("gdn", 16)], parts=[PART],
                     layer_count=1)
    return lambda w: sc.Schema(**{**arguments, **changes})


def lookup(tokens, **arguments):
    return lambda w: w.cache.lookup(arguments.pop("ns", w.ns), tokens, **arguments)


def learned(w):
    """As if a service had a state; there is none below this cache."""
    found = w.cache.find(w.ns, TOKENS)
    found.len[0] = 16
    return found


def acquire(tokens, **arguments):
    return lambda w: w.cache.acquire(w.ns, tokens, **arguments)


def plan(start, end, **arguments):
    return lambda w: w.cache.plan(w.lease, start, end, **arguments)


# (what is called, what it raises, call)
REFUSALS = [
    ("Schema", sc.Invalid, schema_of(model=None)),
    ("Schema", sc.Invalid, schema_of(model="a\0b")),
    ("Schema", sc.Invalid, schema_of(revision="")),
    ("Schema", sc.Invalid, schema_of(groups=[])),
    ("Schema", sc.Invalid, schema_of(groups=[sc.Group("g" * 64, 16)])),
    ("Schema", sc.Invalid, schema_of(groups=[sc.Group("g", -1)])),
    ("Schema", sc.Invalid, schema_of(parts=[])),
    ("Schema", sc.Invalid, schema_of(layer_count=0)),
    ("Schema", sc.Invalid, schema_of(layer_count=1.5)),
    ("Schema", sc.Invalid, schema_of(parts=[sc.Part(0, "matrix", "f32", (1, 1, 1))])),
    ("Schema", sc.Invalid, schema_of(parts=[sc.Part(0, "recurrent", "f8", (1, 1, 1))])),
    ("Schema", sc.Invalid, schema_of(parts=[sc.Part(0, "recurrent", "f32", (1,) * 9)])),
    ("Schema", sc.Invalid, schema_of(parts=[PART, PART])),
    ("Schema", sc.SizeOverflow, schema_of(
        parts=[sc.Part(0, "recurrent", "f32", (1 << 20, 1 << 10, 1 << 10))])),
    ("Schema.preset", sc.NotFound, lambda w: sc.Schema.preset("no such model")),
    ("Schema.preset", sc.Invalid, lambda w: sc.Schema.preset("qwen3-next-80b-a3b", "u9")),
    ("Schema.preset", sc.Invalid, lambda w: sc.Schema.preset(7)),
    ("Schema.with_revision", sc.Invalid, lambda w: w.schema.with_revision(None)),
    ("Schema.extras", sc.Invalid, lambda w: w.schema.extras()),
    ("Schema.extras", sc.Invalid, lambda w: w.schema.extras(control_words=-1)),
    ("Schema.grid", sc.Invalid, lambda w: w.schema.grid(0)),
    ("Schema.grid", sc.SizeOverflow, lambda w: w.schema.grid((1 << 32) - 1)),
    ("Schema.state_bytes", sc.Invalid, lambda w: w.schema.state_bytes(sc.Shard(5, 2))),
    ("Pool", sc.Invalid, lambda w: sc.Pool(w.schema, 0)),
    ("Pool", sc.Invalid, lambda w: sc.Pool(w.schema, -1)),
    ("Pool", sc.Invalid, lambda w: sc.Pool(None, 4)),
    ("Pool", sc.Invalid, lambda w: sc.Pool(w.schema, 4, "diagonal")),
    ("Pool", sc.Invalid, lambda w: sc.Pool(w.schema, 4, shard=sc.Shard(0, 3))),
    ("Pool", sc.NotFound, lambda w: sc.Pool(w.schema, 4, backend="abacus")),
    ("Pool.memory_bytes", sc.Invalid, lambda w: sc.Pool.memory_bytes(w.schema, 0)),
    ("Pool.view", sc.NotFound, lambda w: w.pool.view(3)),
    ("Pool.view", sc.Invalid, lambda w: w.pool.view(0, "matrix")),
    ("Pool.view", sc.Invalid, lambda w: w.pool.view("first")),
    ("Pool.tensor", sc.NotFound, lambda w: w.pool.tensor(0, "conv")),
    ("Pool.alloc", sc.Busy, lambda w: w.pool.alloc(1)),
    ("Pool.alloc", sc.Invalid, lambda w: w.other.alloc(0)),
    ("Pool.alloc", sc.Invalid, lambda w: w.other.alloc(1, "free")),
    ("Pool.free", sc.Stale, lambda w: w.other.free(np.zeros(1, sc.SLOT))),
    ("Pool.free", sc.Invalid, lambda w: w.other.free([1, 2])),
    ("Pool.set_owner", sc.Stale, lambda w: w.other.set_owner(np.zeros(1, sc.SLOT)[0], "working")),
    ("Pool.set_owner", sc.Invalid, lambda w: w.other.set_owner(7, "working")),
    ("Pool.owner", sc.Stale, lambda w: w.other.owner(np.zeros(1, sc.SLOT)[0])),
    ("Pool.owner", sc.Invalid, lambda w: w.other.owner(None)),
    ("Pool.copy", sc.Invalid, lambda w: w.other.copy([1], None, [2])),
    ("Pool.copy", sc.Invalid, lambda w: w.other.copy([1], w.other, [2, 3])),
    ("Pool.copy", sc.Invalid, lambda w: w.other.copy([0], w.other, [0])),
    ("Pool.copy", sc.Stale, lambda w: w.other.copy([1], w.other, [2])),
    ("Pool.copy", sc.Invalid, lambda w: w.other.copy(np.array([1]), w.other, [2])),
    ("Pool.copy", sc.Invalid, lambda w: w.other.copy([1], w.other, [2], stream="one")),
    ("Pool.copy", sc.Invalid, lambda w: w.other.copy([1], w.other, [2], beside=True)),
    ("Pool.copy", sc.Stale, lambda w: w.other.copy([1], w.other, [2], stream=0)),
    ("Pool.copy", sc.Stale, lambda w: w.other.copy([1], w.other, [2], stream=0, beside=True)),
    ("Pool.join", sc.Invalid, lambda w: w.other.join(None)),
    ("Pool.join", sc.Invalid, lambda w: w.other.join(-1)),
    ("Pool.close", sc.Busy, lambda w: w.pool.close()),
    ("Cache", sc.Busy, lambda w: sc.Cache(w.pool)),
    ("Cache", sc.Invalid, lambda w: sc.Cache(None)),
    ("Cache", sc.Invalid, lambda w: sc.Cache(w.other, extras=7)),
    ("Cache", sc.Invalid, lambda w: sc.Cache(w.other, tiers=7)),
    ("Cache", sc.Invalid, lambda w: sc.Cache(w.other, kv_mover=7)),
    ("Cache", sc.Invalid, lambda w: sc.Cache(w.other, kv_mover=sc.KvMover())),
    ("Cache", sc.Invalid, lambda w: sc.Cache(w.other, 0)),
    ("Cache", sc.Invalid, lambda w: sc.Cache(w.other, row_maximum=4)),
    ("Cache", sc.Invalid, lambda w: sc.Cache(w.other, row_max=-4)),
    ("Cache", sc.Invalid, lambda w: sc.Cache(w.other, flops_per_token="many")),
    ("Cache", sc.NotFound, lambda w: sc.Cache(w.other, policy="best")),
    ("Cache", sc.Invalid, lambda w: sc.Cache(w.other, policy=3)),
    ("Cache", sc.NotFound, lambda w: sc.Cache(w.other, decode_backend="abacus")),
    ("Cache.close", sc.Busy, lambda w: w.cache.close()),
    ("Cache.namespace", sc.Mismatch, lambda w: w.cache.namespace(bytes(16))),
    ("Cache.namespace", sc.Invalid, lambda w: w.cache.namespace(b"short")),
    ("Cache.namespace", sc.Invalid, lambda w: w.cache.namespace(adapter_id=1 << 64)),
    ("Cache.close_namespace", sc.Busy, lambda w: w.cache.close_namespace(w.ns)),
    ("Cache.close_namespace", sc.Stale,
     lambda w: w.cache.close_namespace(sc.Namespace(9, 9))),
    ("Cache.close_namespace", sc.Invalid, lambda w: w.cache.close_namespace((1, 1))),
    ("Cache.lookup", sc.Invalid, lookup(TOKENS.astype(np.int64))),
    ("Cache.lookup", sc.Invalid, lookup(TOKENS.astype(np.float32))),
    ("Cache.lookup", sc.Invalid, lookup(TOKENS[::2])),
    ("Cache.lookup", sc.Invalid, lookup(TOKENS.reshape(2, 4, 5))),
    ("Cache.lookup", sc.Invalid, lookup("tokens")),
    ("Cache.lookup", sc.Invalid, lookup(None)),
    ("Cache.lookup", sc.Invalid, lookup([1.5, 2])),
    ("Cache.lookup", sc.Invalid, lookup([1 << 31])),
    ("Cache.lookup", sc.Invalid, lookup([[1, 2], None])),
    ("Cache.lookup", sc.Invalid, lookup(TOKENS, ns=None)),
    ("Cache.lookup", sc.Invalid, lookup(TOKENS, ns=sc.Namespace(-1, 0))),
    ("Cache.lookup", sc.Invalid, lookup(sc.Ragged(TOKENS, [0, 50]))),
    ("Cache.lookup", sc.Invalid, lookup(sc.Ragged(TOKENS, [-1, 5]))),
    ("Cache.lookup", sc.Invalid, lookup(sc.Ragged(TOKENS, [0, 9, 5]))),
    ("Cache.lookup", sc.Invalid, lookup(sc.Ragged(TOKENS, []))),
    ("Cache.lookup", sc.Invalid, lookup(sc.Ragged(TOKENS, np.zeros(2)))),
    ("Cache.lookup", sc.Invalid, lookup(TOKENS, len_max=-1)),
    ("Cache.lookup", sc.Invalid, lookup(TOKENS, len_max=[1, 2])),
    ("Cache.lookup", sc.Invalid, lookup(TOKENS, marks=[i32(1)])),
    ("Cache.acquire", sc.Invalid, acquire(TOKENS.astype(np.uint32))),
    ("Cache.acquire", sc.Invalid, acquire(TOKENS, depth="deep")),
    ("Cache.acquire", sc.Invalid, acquire(TOKENS, now_ns=-1)),
    ("Cache.acquire", sc.Invalid, acquire(TOKENS, hints=[])),
    ("Cache.acquire", sc.Invalid, acquire(TOKENS, hints=["pin"])),
    ("Cache.acquire", sc.Invalid, acquire(TOKENS, hints=sc.Hints(priority=1 << 40))),
    ("Cache.acquire", sc.Invalid, acquire(TOKENS, hints=sc.Hints(breakpoints=[-1]))),
    ("Cache.acquire_one", sc.Invalid, lambda w: w.cache.acquire_one(w.ns, [TOKENS, TOKENS])),
    ("Cache.acquire_one", sc.Invalid, lambda w: w.cache.acquire_one(w.ns, TOKENS, flags=1 << 9)),
    ("Cache.acquire_one", sc.Invalid, lambda w: w.cache.acquire_one(w.ns, [])),
    ("Cache.acquire_one", sc.Stale,
     lambda w: w.cache.acquire_one(sc.Namespace(9, 9), TOKENS)),
    ("Cache.lease", sc.Invalid, lambda w: w.cache.lease(7)),
    ("Cache.infos", sc.Stale, lambda w: w.cache.infos(stale_lease())),
    ("Cache.infos", sc.Invalid, lambda w: w.cache.infos(7)),
    ("Cache.append", sc.Invalid, lambda w: w.cache.append(w.lease, [[1], [2]])),
    ("Cache.append", sc.Invalid, lambda w: w.cache.append(w.lease, np.zeros(1))),
    ("Cache.append", sc.Stale,
     lambda w: sc.raise_for_status(w.cache.append(stale_lease(), [[1]]))),
    ("Cache.release", sc.Invalid, lambda w: w.cache.release(None)),
    ("Cache.release", sc.Stale, lambda w: sc.raise_for_status(w.cache.release(stale_lease()))),
    ("Cache.plan", sc.Invalid, lambda w: w.cache.plan([], 0, 1)),
    ("Cache.plan", sc.Invalid, lambda w: w.cache.plan(i32(1), 0, 1)),
    ("Cache.plan", sc.Invalid, plan([0, 1], 40)),
    ("Cache.plan", sc.Invalid, plan(0, -1)),
    ("Cache.plan", sc.Invalid, plan(0.5, 40)),
    ("Cache.plan", sc.Invalid, plan(0, 40, points=[[1], [2]])),
    ("Cache.plan", sc.Invalid, plan(0, 40, points=[i32(16)])),
    ("Cache.plan", sc.Invalid, plan(0, 40, drafts=2, parents=[[0]])),
    ("Cache.plan", sc.Invalid, plan(0, 40, number=0)),
    ("Cache.plan", sc.Invalid, plan(0, 40, out=np.zeros(4, np.int32))),
    ("Cache.plan", sc.Invalid, plan(0, 40, out=np.zeros(1 << 16))),
    ("Cache.plan", sc.Invalid, plan(0, 40, out=np.broadcast_to(i32(0), 1 << 16))),
    ("Cache.plan", sc.LimitReached, lambda w: w.cache.plan([w.lease] * 9, 0, 40)),
    ("Cache.evict", sc.Invalid, lambda w: w.cache.evict(pages=-1)),
    ("Cache.trim", sc.Invalid, lambda w: w.cache.trim(None)),
    ("Cache.poll", sc.Invalid, lambda w: w.cache.poll(-1)),
    ("Cache.apply", sc.NotFound, lambda w: w.cache.apply(np.ones(1, sc.DONE))),
    ("Cache.apply", sc.Invalid, lambda w: w.cache.apply([1])),
    ("Cache.dump", sc.Stale, lambda w: w.cache.dump(sc.Namespace(9, 9))),
    ("Cache.dump", sc.Invalid, lambda w: w.cache.dump(None)),
    ("Lease", sc.Invalid, lambda w: sc.Lease(w.cache, (1, 1))),
    ("Lease.append", sc.Invalid, lambda w: w.lease.append(TOKENS.astype(np.int16))),
    ("Lease.append", sc.Invalid, lambda w: w.lease.append([1], marks=i32(1))),
    ("Lease.append", sc.Invalid,
     lambda w: w.lease.append([1], marks=sc.make_marks([(2, bytes(16))]))),
    ("Lease.append", sc.Stale, lambda w: sc.Lease(w.cache, stale_lease()).append([1])),
    ("Lease.kv_ids", sc.Invalid, lambda w: w.lease.kv_ids(-1)),
    ("Lease.kv_ids", sc.Stale, lambda w: sc.Lease(w.cache, stale_lease()).kv_ids()),
    ("Lease.adopt", sc.Stale, lambda w: sc.Lease(w.cache, stale_lease()).adopt()),
    ("Lease.filled", sc.WrongState, lambda w: w.lease.filled([1, 2])),
    ("Lease.filled", sc.Invalid, lambda w: w.lease.filled(np.zeros(2))),
    ("Lease.fork", sc.Invalid, lambda w: w.lease.fork(0)),
    ("Lease.fork", sc.Invalid, lambda w: w.lease.fork(1, tail_kv=5)),
    ("Lease.fork", sc.LimitReached, lambda w: w.lease.fork(6)),
    ("Lease.release", sc.Invalid, lambda w: w.lease.release(len=99)),
    ("Lease.release", sc.Invalid, lambda w: w.lease.release(tail_kv=1 << 31)),
    ("Lease.release", sc.Stale, lambda w: sc.Lease(w.cache, stale_lease()).release()),
    ("BlockLayout", sc.Invalid, lambda w: w.layout["at_source"]),
    ("Step.commit", sc.NotFound, lambda w: w.ended.commit()),
    ("Step.commit", sc.Invalid, lambda w: w.ended.commit(len=[1, 2])),
    ("Step.commit", sc.Invalid, lambda w: w.ended.commit([i32(1), i32(2)])),
    ("Step.commit", sc.Invalid, lambda w: w.ended.commit(np.zeros((1, 2)))),
    ("Step.commit", sc.Invalid, lambda w: w.ended.commit(len=-1)),
    ("Step.abort", sc.NotFound, lambda w: w.ended.abort()),
    ("Tiers", sc.Invalid, lambda w: sc.Tiers()),
    ("Tiers", sc.Invalid, lambda w: sc.Tiers(host=1 << 20)),
    ("Tiers", sc.Invalid, lambda w: sc.Tiers(host=sc.TierConfig(1 << 20, write="later"))),
    ("Tiers", sc.Invalid, lambda w: sc.Tiers(disk=sc.TierConfig(1 << 20))),
    ("Tiers", sc.Invalid, lambda w: sc.Tiers(host=sc.TierConfig(1 << 20, codec="int8"))),
    ("Tiers", sc.Invalid, lambda w: sc.Tiers(remote=sc.TierConfig(1 << 20))),
    ("Tiers", sc.Invalid, lambda w: sc.Tiers(service="unix:/nowhere")),
    ("Cache.find", sc.Invalid, lambda w: w.cache.find(7, TOKENS)),
    ("Cache.find", sc.Invalid, lambda w: w.cache.find(w.ns, np.zeros(4))),
    ("Cache.find", sc.Invalid, lambda w: w.cache.find(w.ns, TOKENS, len_max=-1)),
    ("Cache.find", sc.Invalid, lambda w: w.cache.find(w.ns, TOKENS, history=i32(1))),
    ("Cache.learn", sc.Invalid, lambda w: w.cache.learn(None)),
    ("Cache.learn", sc.Unsupported, lambda w: w.cache.learn(learned(w))),
    ("make_marks", sc.Invalid, lambda w: sc.make_marks([(0, b"short")])),
    ("make_marks", sc.Invalid, lambda w: sc.make_marks([(-1, bytes(16))])),
    ("to_bf16", sc.Invalid, lambda w: sc.to_bf16(["a"])),
    ("from_bf16", sc.Invalid, lambda w: sc.from_bf16(np.zeros(3, np.float32))),
    ("raise_for_status", sc.NoSlot, lambda w: sc.raise_for_status([0, -3])),
    ("reason_text", sc.Invalid, lambda w: sc.reason_text("none")),
]

# What takes no argument that could be bad; `closed` below calls those of them that use the handle.
WITHOUT = {"Schema.presets", "Pool.audit", "Pool.parts", "Cache.room", "Cache.drain", "Cache.stats",
           "Cache.verify", "Step.page_counts", "Tiers.close", "Tiers.stats"}


class World:
    """What the calls are made on: a cache with a lease, a pool without a cache, an ended step."""

    def __init__(self, cache, pool, ns, other):
        self.cache, self.pool, self.ns, self.other = cache, pool, ns, other
        self.schema = pool.schema
        self.lease = cache.acquire_one(ns, TOKENS)
        self.ended = cache.plan(self.lease, 0, 40)
        self.layout = self.ended.layout
        self.ended.abort()

    def picture(self):
        return (self.lease.info, self.cache.stats(), self.cache.room(), self.pool.info,
                self.other.info)


@pytest.fixture
def world(cache, pool, ns, schema):
    with sc.Pool(schema, 4) as other:
        made = World(cache, pool, ns, other)
        yield made
        made.lease.release(keep=False)


@pytest.mark.parametrize("number", range(len(REFUSALS)),
                         ids=[f"{name}-{at}" for at, (name, _, _) in enumerate(REFUSALS)])
def test_refuses(world, number):
    _, error, call = REFUSALS[number]
    before = world.picture()
    with pytest.raises(error) as caught:
        call(world)
    assert type(caught.value) is error and caught.value.text, caught.value
    assert caught.value.status == error.status != 0
    after = world.picture()
    if error in (sc.NoSlot, sc.LimitReached, sc.Stale):  # a refusal is counted
        before[1]["refused"] = after[1]["refused"]
    assert after == before


def public_calls():
    for name in sc.__all__:
        item = getattr(sc, name)
        if inspect.isfunction(item):
            yield name
        elif inspect.isclass(item) and item in (sc.Schema, sc.Pool, sc.Cache, sc.Lease, sc.Step,
                                                sc.Tiers):
            yield name
            for method, member in vars(item).items():
                if not method.startswith("_") and (inspect.isfunction(member) or isinstance(
                        member, (staticmethod, classmethod))):
                    yield f"{name}.{method}"


def test_every_call__has_a_refusal():
    tested = {name for name, _, _ in REFUSALS} | WITHOUT | {"Step"}
    assert set(public_calls()) <= tested, set(public_calls()) - tested


def test_out__too_short_for_a_first_step_takes_it_back(pool):
    with sc.Cache(pool, PAGE) as cache:
        lease = cache.acquire_one(cache.namespace(), TOKENS)
        with pytest.raises(sc.Invalid, match="words"):
            cache.plan(lease, 0, 40, out=np.zeros(4, np.int32))
        assert lease.info.steps_out == 0
        lease.release(keep=False)


CLOSED = [
    ("cache", lambda c, ns: c.namespace()), ("cache", lambda c, ns: c.close_namespace(ns)),
    ("cache", lambda c, ns: c.lookup(ns, TOKENS)), ("cache", lambda c, ns: c.acquire(ns, TOKENS)),
    ("cache", lambda c, ns: c.infos(stale_lease())),
    ("cache", lambda c, ns: c.append(stale_lease(), [[1]])),
    ("cache", lambda c, ns: c.release(stale_lease())),
    ("cache", lambda c, ns: c.plan(stale_lease(), 0, 1)), ("cache", lambda c, ns: c.room()),
    ("cache", lambda c, ns: c.evict(1)), ("cache", lambda c, ns: c.drain()),
    ("cache", lambda c, ns: c.trim()), ("cache", lambda c, ns: c.poll()),
    ("cache", lambda c, ns: c.apply(np.zeros(0, sc.DONE))), ("cache", lambda c, ns: c.stats()),
    ("cache", lambda c, ns: c.find(ns, TOKENS)),
    ("cache", lambda c, ns: c.learn(sc.Found(ns, TOKENS, None, 0, None))),
    ("cache", lambda c, ns: c.verify()), ("cache", lambda c, ns: c.dump(ns)),
    ("cache", lambda c, ns: sc.Lease(c, stale_lease()).info),
    ("cache", lambda c, ns: sc.Lease(c, stale_lease()).history),
    ("cache", lambda c, ns: sc.Lease(c, stale_lease()).release()),
    ("pool", lambda p, ns: p.info), ("pool", lambda p, ns: p.view(0)),
    ("pool", lambda p, ns: p.tensor(0)), ("pool", lambda p, ns: p.parts()),
    ("pool", lambda p, ns: p.needs_gather), ("pool", lambda p, ns: p.alloc(1)),
    ("pool", lambda p, ns: p.audit()), ("pool", lambda p, ns: sc.Cache(p)),
    ("pool", lambda p, ns: p.copy([0], p, [1])),
]


@pytest.mark.parametrize("number", range(len(CLOSED)))
def test_closed__use_is_refused(number):
    kind, call = CLOSED[number]
    pool = sc.Pool(make_schema(), 4)
    cache = sc.Cache(pool)
    ns = cache.namespace()
    cache.close()
    cache.close()
    pool.close()
    with pytest.raises(sc.Invalid, match="closed"):
        call(cache if kind == "cache" else pool, ns)


def test_left_open__nothing_is_freed_that_the_library_has(schema):
    """A cache that is dropped with a lease alive warns; what it borrowed stays."""
    pool = sc.Pool(schema, 4)
    cache = sc.Cache(pool, PAGE)
    lease = cache.acquire(cache.namespace(), TOKENS)
    assert lease[1][0] == 0
    with pytest.warns(ResourceWarning, match="left open"):
        del cache
    assert pool.info.owner_count["working"] == 1
    with pytest.raises(sc.Busy):
        pool.close()


def test_with__what_a_block_raises_is_what_comes_out(schema):
    """A refusal to close is then a warning, and the last user closes what was left open."""
    there = []
    with pytest.warns(ResourceWarning, match="a pool was left open: BUSY: an array"):
        with pytest.raises(KeyError, match="mine"):
            with sc.Pool(schema, 4) as pool:
                view = pool.view(0)
                there.append(weakref.ref(pool))
                raise KeyError("mine")
    view[1] = 3  # it is there
    del pool, view
    gc.collect()
    assert there[0]() is None

    pool, tiers = sc.Pool(schema, 4), sc.Tiers(host=sc.TierConfig(1 << 24))
    cache = sc.Cache(pool, PAGE, tiers=tiers)
    lease = cache.acquire_one(cache.namespace(), TOKENS)
    with pytest.warns(ResourceWarning) as said:
        with pytest.raises(KeyError, match="mine"):
            with pool, tiers, cache:
                raise KeyError("mine")
    assert [str(one.message).split(" left")[0] for one in said] == [
        "a cache was", "tiers were", "a pool was"]
    lease.release(keep=False)
    with pool, tiers, cache:
        pass
    with pytest.raises(sc.Invalid, match="closed"):
        pool.audit()


def test_with__a_filter_that_makes_errors_of_warnings_changes_nothing(schema, monkeypatch):
    def as_error(text, category, **_):
        raise category(text)
    monkeypatch.setattr(warnings, "warn", as_error)
    with pytest.raises(KeyError, match="mine"):
        with sc.Pool(schema, 4) as pool:
            view = pool.view(0)
            raise KeyError("mine")
    del view
    pool.close()


def test_with__without_an_exception_a_refusal_is_raised(schema):
    with pytest.raises(sc.Busy, match="array"):
        with sc.Pool(schema, 4) as pool:
            view = pool.view(0)
    del view
    pool.close()


def test_errors__carry_status_text_and_errno(tmp_path):
    missing = tmp_path / "file"
    missing.write_text("not a folder")
    with pytest.raises(sc.Error) as caught:
        sc.Tiers(disk=sc.TierConfig(1 << 24), folder=missing / "below")
    assert isinstance(caught.value.status, sc.Status) and str(caught.value).startswith(
        caught.value.status.name)
    assert caught.value.system_code != 0


def after_release(w):
    lease = w.cache.acquire_one(w.ns, TOKENS)
    lease.release(keep=False)
    step = w.cache.plan(lease, 0, 40)
    try:
        sc.raise_for_status(step.status)
    finally:
        step.abort()


def refused_row(start, end):
    def call(w):
        step = w.cache.plan(w.lease, start, end)
        try:
            sc.raise_for_status(step.status)
        finally:
            step.abort()
    return call


def other_dtype(w):
    memory = [np.zeros((5, 2, 16, 16), np.float16)]
    sc.Pool(w.schema, 4, memory=memory)


def too_few_slots(w):
    sc.Pool(w.schema, 4, memory=[np.zeros((4, 2, 16, 16), np.float32)])


def twice_in_flight(w):
    step = w.cache.plan(w.lease, 0, 16)
    try:
        w.cache.plan(w.lease, 16, 40)
    finally:
        step.abort()


TEXTS = [
    (lookup(TOKENS.astype(np.int64)), r"int64, int32 is wanted \(\.astype\(np\.int32\)\)"),
    (lookup("tokens"), "tokens: .*not str: tokenize the text first"),
    (lookup(["a", "b"]), "tokens: whole numbers.*not str"),
    (lookup([1.5]), "tokens: whole numbers.*not float"),
    (lookup([1, 2.5]), "tokens: whole numbers.*not float"),
    (lambda w: sc.Client("http://127.0.0.1:7077"), "unix:PATH or tcp:HOST:PORT.*not http://127"),
    (lambda w: sc.Client("unix:/nowhere/socket"), "no statecached listens there"),
    (lambda w: sc.Client("tcp:127.0.0.1:1"), "no statecached listens there"),
    (refused_row(0, 60), "row ends at 60 of 40 tokens"),
    (refused_row(16, 40), "starts at 16, must start at 0"),
    (refused_row(8, 8), "starts at 8|from 8 to 8 has no tokens"),
    (after_release, "released already"),
    (twice_in_flight, "steps in flight: 1, which is depth_max"),
    (other_dtype, "f16, f32 is wanted"),
    (too_few_slots, r"slot_count \+ 1: slot 0 is the null slot"),
    (lambda w: sc.Pool(w.schema, 4, memory=np.zeros(16, np.uint8)), "slot 0 is the null slot"),
    (lambda w: sc.Pool(w.schema, 0), "^INVALID: slot_count 0: must lie between 1"),
    (lambda w: w.pool.view(0, "conv"), "no part of kind conv"),
    (lambda w: sc.Schema.preset("qwen"), "no preset is named 'qwen'; there are .*qwen3-next"),
    (lambda w: make_schema([sc.Part(0, "recurrent", "f32", 16)]), "dims: a tuple.*not 16"),
    (lambda w: w.lease.append(7), r"tokens: a list is wanted: \[7\]"),
    (lambda w: w.lease.append(np.int32(7)), r"tokens: a list is wanted: \[7\]"),
    (lambda w: w.cache.append(w.lease, 7), r"tokens: .*a list is wanted, not int: \[7\]"),
    (lambda w: w.cache.acquire_one(w.ns, []), "tokens: the prompt is empty"),
    (lambda w: w.cache.acquire_one(w.ns, i32()), "tokens: the prompt is empty"),
]


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_text__says_what_to_do(world, number):
    call, text = TEXTS[number]
    with pytest.raises(sc.Error, match=text):
        call(world)

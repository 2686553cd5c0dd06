# SPDX-License-Identifier: Apache-2.0
"""States in PyTorch's tensors: pools over them, copies in PyTorch's streams, the cache on top.

Each test runs on the CPU, and on a CUDA device where PyTorch and the library have one; what is
about streams alone runs there alone. `run.sh python` of ./dev gpu-pack takes this file to such a
machine.

The model is a toy whose state depends on every token and on their order, bit by bit:

    conv       the last three rows of a table, one row for each token
    recurrent  S <- 0.97 S + table[token]
"""
import contextlib
import functools
import gc
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest

import statecache as sc
from statecache import _dlpack
from conftest import PAGE, make_schema

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SLOTS = 8
PARTS = [sc.Part(0, "conv", "bf16", (3, 128)), sc.Part(0, "recurrent", "f32", (2, 16, 16)),
         sc.Part(1, "conv", "bf16", (3, 64)), sc.Part(1, "recurrent", "f16", (2, 8, 16))]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
LONG = 1_000_000_000  # cycles, half a second: longer than a test takes to put all in a stream


def without_cuda():
    """Why nothing can run on a device here; None if it can."""
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    try:
        sc.Pool(make_schema(PARTS), 1, backend="cuda").close()
    except sc.Unsupported as problem:
        return f"the library: {problem.text}"
    return None


class Place:
    """A device and a stream of it that is not the default one. The CPU has no streams: None."""

    def __init__(self, name):
        self.name = name
        self.backend = "cuda" if name == "cuda" else "host"
        self.stream = torch.cuda.Stream() if name == "cuda" else None

    def on(self, stream=None):
        """PyTorch works in the stream."""
        stream = stream or self.stream
        return torch.cuda.stream(stream) if stream else contextlib.nullcontext()

    def sleep(self):
        """A kernel that holds the stream up."""
        if self.stream:
            with self.on():
                torch.cuda._sleep(LONG)

    def nobody_waited(self):
        return self.stream is None or not self.stream.query()

    def wait(self):
        if self.stream:
            self.stream.synchronize()

    def settled(self, tensors):
        """The tensors, once they are there for every stream."""
        if self.stream:
            torch.cuda.synchronize()
        return tensors


def place_of(name):
    reason = without_cuda() if name == "cuda" else None
    if reason:
        pytest.skip(reason)
    if name == "cuda":
        load_kernels()
    return Place(name)


@pytest.fixture(params=["cpu", "cuda"])
def place(request):
    return place_of(request.param)


@pytest.fixture
def cuda():
    return place_of("cuda")


@functools.lru_cache(maxsize=None)
def load_kernels():
    """A kernel is loaded when it is first launched, and that may wait for the device: not in a
    test that looks whether anybody waits."""
    here = Place("cuda")
    state = Model("cuda").cold(range(2))
    for layout in ("page-major", "contiguous"):
        with pool_over(here, layout) as (pool, views):
            slots = pool.alloc(2)
            one, other = slots["id"]
            for arguments in ({}, {"stream": here.stream}, {"stream": here.stream, "beside": True}):
                with here.on():
                    write(views, one, state)
                    spoil(views, other)
                here.settled(None)
                pool.copy(ids(one), pool, ids(other), **arguments)
                pool.join(here.stream)
                here.settled(None)
            assert bits(slot_of(views, other)) == bits(state)
            pool.free(slots)


layouts = pytest.mark.parametrize("layout", ["page-major", "contiguous"])


def tensors_for(schema, device, layout, slots=SLOTS):
    """Memory as an engine has it: one piece, or a tensor for each part."""
    if layout == "page-major":
        return torch.zeros(sc.Pool.memory_bytes(schema, slots), dtype=torch.uint8, device=device)
    return [torch.zeros((slots + 1, *part.dims), dtype=DTYPES[part.dtype], device=device)
            for part in PARTS]


@contextlib.contextmanager
def pool_over(place, layout, memory=None):
    """A pool over tensors of the place, and PyTorch's view of each part of it. At the end all
    slots are free, and the null slot is zero."""
    schema = make_schema(PARTS)
    if memory is None:
        memory = tensors_for(schema, place.name, layout)
    pool = sc.Pool(schema, SLOTS, layout, memory=memory, backend=place.backend)
    views = [torch.from_dlpack(pool.tensor(part.layer, part.kind)) for part in PARTS]
    yield pool, views
    place.wait()
    views.clear()
    gc.collect()
    pool.audit()
    assert pool.info.free_count == SLOTS
    pool.close()


class Model:
    def __init__(self, device):
        self.device = device
        source = torch.Generator().manual_seed(7)
        self.tables = [torch.rand(64, *part.dims, generator=source).to(DTYPES[part.dtype])
                       .to(device) for part in PARTS]

    def advance(self, state, token):
        """`state`: a tensor for each part, in place."""
        for part, one, table in zip(PARTS, state, self.tables):
            row = table[int(token) % 64]
            if part.kind == "conv":
                one.copy_(torch.cat([one[1:], row[:1]]))
            else:
                one.mul_(0.97).add_(row)

    def cold(self, tokens):
        """The state of a text, computed in tensors that no pool knows."""
        state = [torch.zeros_like(table[0]) for table in self.tables]
        for token in tokens:
            self.advance(state, token)
        return state


def bits(tensors):
    return [tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes() for tensor in tensors]


def slot_of(views, slot):
    return [view[int(slot)] for view in views]


def write(views, slot, state):
    for view, one in zip(views, state):
        view[int(slot)].copy_(one)


def spoil(views, slot):
    for view in views:
        view[int(slot)].fill_(-3)


def ids(*slots):
    return np.array(slots, np.int32)


# ------------------------------------------------------------------------------------- the memory


@layouts
def test_pool__lies_in_the_tensors(place, layout):
    schema = make_schema(PARTS)
    memory = tensors_for(schema, place.name, layout)
    with pool_over(place, layout, memory) as (pool, views):
        own = memory if layout == "contiguous" else [memory]
        assert pool.info.base == own[0].data_ptr()
        assert [view.device for view in views] == [own[0].device] * len(PARTS)
        for at, (part, view) in enumerate(zip(PARTS, views)):
            assert view.shape == (SLOTS + 1, *part.dims) and view.dtype == DTYPES[part.dtype]
            if layout == "contiguous":
                assert view.data_ptr() == own[at].data_ptr()
            else:
                end = own[0].data_ptr() + own[0].numel()
                assert own[0].data_ptr() <= view.data_ptr() < end
            view[3] = 1 + at
            view[4] = view[3] * 2
        for at, one in enumerate(memory if layout == "contiguous" else []):
            assert (one[3] == 1 + at).all() and (one[4] == 2 + 2 * at).all()
        if layout == "page-major":
            assert int(memory.count_nonzero()) > 0
        del own, view


@layouts
def test_pool__keeps_the_tensors_and_lets_them_go(place, layout):
    memory = tensors_for(make_schema(PARTS), place.name, layout)
    there = weakref.ref(memory if layout == "page-major" else memory[1])
    with pool_over(place, layout, memory) as (pool, views):
        del memory
        gc.collect()
        assert there() is not None
        with pytest.raises(sc.Busy, match="alive"):
            pool.close()
    gc.collect()
    assert there() is None


def test_pool__the_null_slot_is_cleared_behind_what_wrote_the_tensor(cuda):
    """Adopted without a wait while PyTorch's stream still writes it: DLPack orders the streams."""
    memory = tensors_for(make_schema(PARTS), "cuda", "contiguous")
    cuda.settled(memory)
    cuda.sleep()
    with cuda.on():
        for one in memory:
            one.fill_(5)
        with pool_over(cuda, "contiguous", memory) as (_, views):
            cuda.settled(views)
            assert all((view[0] == 0).all() and (view[1:] == 5).all() for view in views)


# ------------------------------------------------------------------------------------ the streams


@layouts
def test_copy__comes_behind_its_stream(place, layout):
    """Written behind a long kernel, saved, overwritten, restored: all in one stream, and the host
    waits at the end alone."""
    fresh = place.settled(Model(place.name).cold(range(20)))
    with pool_over(place, layout) as (pool, views):
        slots = pool.alloc(3)
        work, saved, other = slots["id"]
        pool.copy(ids(work), pool, ids(other), stream=place.stream)  # kernels are loaded
        place.wait()
        place.sleep()
        with place.on():
            write(views, work, fresh)
        pool.copy(ids(work), pool, ids(saved), stream=place.stream)
        with place.on():
            spoil(views, work)
        pool.copy(ids(saved), pool, ids(other), stream=place.stream)
        assert place.nobody_waited()
        place.wait()
        wanted = bits(fresh)
        assert bits(slot_of(views, other)) == wanted
        assert bits(slot_of(views, saved)) == wanted
        assert bits(slot_of(views, work)) != wanted
        pool.free(slots)


def test_copy__in_another_stream_has_the_old_bytes(cuda):
    """The control of the test above: without its stream, the copy does not come behind it."""
    model = Model("cuda")
    old, fresh = cuda.settled([model.cold(range(9)), model.cold(range(20))])
    beside = torch.cuda.Stream()
    with pool_over(cuda, "contiguous") as (pool, views):
        slots = pool.alloc(3)
        work, first, second = slots["id"]
        write(views, work, old)
        pool.copy(ids(work), pool, ids(first), stream=beside)
        cuda.settled(views)
        cuda.sleep()
        with cuda.on():
            write(views, work, fresh)
        pool.copy(ids(work), pool, ids(first), stream=beside)
        beside.synchronize()
        pool.copy(ids(work), pool, ids(second))  # waits for itself, not for that stream
        with cuda.on(beside):
            found = [tensor.clone() for tensor in (*slot_of(views, first),
                                                   *slot_of(views, second))]
        beside.synchronize()
        assert cuda.nobody_waited()
        cuda.wait()
        assert bits(found) == bits(old) * 2
        assert bits(slot_of(views, work)) == bits(fresh)
        pool.free(slots)


@pytest.mark.parametrize("stream", [None, 0])
def test_copy__comes_behind_the_default_stream(cuda, stream):
    fresh = cuda.settled(Model("cuda").cold(range(20)))
    with pool_over(cuda, "page-major") as (pool, views):
        slots = pool.alloc(2)
        work, saved = slots["id"]
        pool.copy(ids(work), pool, ids(saved))
        torch.cuda._sleep(LONG)
        write(views, work, fresh)
        pool.copy(ids(work), pool, ids(saved), stream=stream)
        spoil(views, work)
        found = slot_of(views, saved)
        assert bits(found) == bits(fresh)
        del found
        pool.free(slots)


@layouts
def test_copy__beside_a_stream_does_not_hold_it_up(cuda, layout):
    """A save beside: behind what is in the stream, before what comes after the join."""
    fresh = cuda.settled(Model("cuda").cold(range(20)))
    with pool_over(cuda, layout) as (pool, views):
        slots = pool.alloc(2)
        work, saved = slots["id"]
        pool.copy(ids(work), pool, ids(saved), stream=cuda.stream, beside=True)
        pool.join(cuda.stream)
        cuda.wait()
        cuda.sleep()
        with cuda.on():
            write(views, work, fresh)
        pool.copy(ids(work), pool, ids(saved), stream=cuda.stream, beside=True)
        pool.join(cuda.stream)
        with cuda.on():
            spoil(views, work)
            found = [tensor.clone() for tensor in slot_of(views, saved)]
        assert cuda.nobody_waited()
        cuda.wait()
        assert bits(found) == bits(fresh)
        pool.free(slots)


@layouts
def test_copy__is_captured_in_a_graph(cuda, layout):
    model = Model("cuda")
    texts = [model.cold(range(count)) for count in (5, 6)]
    with pool_over(cuda, layout) as (pool, views):
        slots = pool.alloc(2)
        work, saved = slots["id"]
        pool.copy(ids(work), pool, ids(saved), stream=cuda.stream)
        cuda.settled(views)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=cuda.stream):
            pool.copy(ids(work), pool, ids(saved), stream=torch.cuda.current_stream())
        for state in texts:
            with cuda.on():
                write(views, work, state)
                graph.replay()
                spoil(views, work)
            cuda.wait()
            assert bits(slot_of(views, saved)) == bits(state)
        del graph
        pool.free(slots)


@layouts
def test_copy__to_a_pool_of_the_host_and_back(place, layout):
    fresh = place.settled(Model(place.name).cold(range(20)))
    with pool_over(place, layout) as (pool, views), sc.Pool(make_schema(PARTS), 2) as below:
        slots = pool.alloc(2)
        work, other = slots["id"]
        kept = below.alloc(1)
        write(views, work, fresh)
        pool.copy(ids(work), below, ids(kept["id"][0]))
        there = [below.view(part.layer, part.kind)[kept["id"][0]].tobytes() for part in PARTS]
        assert there == bits(fresh)
        below.copy(ids(kept["id"][0]), pool, ids(other))
        assert bits(slot_of(views, other)) == bits(fresh)
        below.free(kept)
        pool.free(slots)


# -------------------------------------------------------------------------------------- the cache


class Engine:
    """Serves one request after the other in the stream of its place; the host waits before a commit
    alone, which says that the step has finished."""

    def __init__(self, place, cache, views):
        self.place, self.cache, self.views = place, cache, views
        self.model = Model(place.name)
        place.settled(None)
        self.ns = cache.namespace()
        self.next_page = 100

    def forward(self, step, tokens):
        """One row. A state that is to be saved is copied there in the stream, and then
        overwritten by what the next token makes of the working one."""
        source, dest = step.source[0], step.dest[0]
        assert (step.copy_to < 0).all()
        saves = dict(zip(step.save_position.tolist(), step.save_slot.tolist()))
        self.place.sleep()
        with self.place.on():
            if source != dest:
                write(self.views, dest, slot_of(self.views, source))
            for at in range(step.position[0], step.end[0]):
                self.model.advance(slot_of(self.views, dest), tokens[at])
                if at + 1 in saves:
                    self.cache.pool.copy(ids(dest), self.cache.pool, ids(saves.pop(at + 1)),
                                         stream=self.place.stream)
        assert not saves and self.place.nobody_waited()
        return dest

    def serve(self, tokens, settle=lambda: None, points=None):
        """(tokens resumed, bits of the state at the end)"""
        lease = self.cache.acquire_one(self.ns, tokens)
        settle()
        resumed = lease.info.resume_len
        step = self.cache.plan(lease, resumed, len(tokens), points=points)
        sc.raise_for_status(step.status)
        dest = self.forward(step, tokens)
        self.place.wait()
        state = bits(slot_of(self.views, dest))
        count = int(step.page_counts()[0])
        step.commit(np.arange(self.next_page, self.next_page + count, dtype=np.int32))
        self.next_page += count
        lease.release()
        return resumed, state


def text(start, count):
    return np.arange(start, start + count, dtype=np.int32)


@layouts
def test_cache__a_resumed_state_has_the_bits_of_a_cold_one(place, layout):
    """A prompt that is there whole, one that shares a saved beginning, one that shares nothing."""
    whole = text(0, 3 * PAGE)
    longer = np.concatenate([whole, text(40, 11)])
    branch = np.concatenate([text(0, 2 * PAGE), text(50, 9)])
    with pool_over(place, layout) as (pool, views):
        with sc.Cache(pool, PAGE, row_max=2, save_max=4, lease_max=4) as cache:
            engine = Engine(place, cache, views)
            cold = [bits(engine.model.cold(tokens)) for tokens in (whole, longer, branch)]
            assert engine.serve(whole, points=[[2 * PAGE]]) == (0, cold[0])
            assert engine.serve(longer) == (3 * PAGE, cold[1])
            assert engine.serve(branch) == (2 * PAGE, cold[2])
            for begin in (100, 200, 300, 400, 500, 600):  # others go through the slots
                assert engine.serve(text(begin, PAGE))[0] == 0
            resumed, state = engine.serve(longer)
            assert state == cold[1] and resumed in (0, 2 * PAGE, 3 * PAGE)
            cache.verify()


@layouts
@pytest.mark.parametrize("codec_level", [0, 3])
def test_tiers__a_state_goes_to_host_memory_and_comes_back(place, layout, codec_level):
    tokens = text(0, 2 * PAGE)
    longer = np.concatenate([tokens, text(40, 11)])
    config = sc.TierConfig(1 << 24, write="through", zstd_level=codec_level)
    with pool_over(place, layout) as (pool, views):
        with sc.Tiers(host=config) as tiers, sc.Cache(
                pool, without_kv=True, tiers=tiers, row_max=2, save_max=4) as cache:
            engine = Engine(place, cache, views)
            cold = bits(engine.model.cold(longer))
            engine.serve(tokens)
            settle(cache)
            cache.evict(slots=SLOTS)
            assert pool.info.free_count == SLOTS
            for slot in range(1, SLOTS + 1):
                spoil(views, slot)
            place.settled(views)
            assert cache.lookup(engine.ns, longer)["state_len"][0].tolist()[:2] == [0, 2 * PAGE]
            assert engine.serve(longer, lambda: settle(cache)) == (2 * PAGE, cold)
            settle(cache)
            cache.verify()
            stats = tiers.stats()
            assert stats["stored"][1] >= 1 and stats["restored"][1] == 1


def settle(cache):
    """Applies transfers between tiers until none is left."""
    for _ in range(1000):
        cache.apply(cache.poll())
        if cache.stats()["transfers_alive"] == 0:
            return
        time.sleep(0.01)
    raise AssertionError("transfers did not end in ten seconds")


# ------------------------------------------------------------------------------------ what is bad


def refused(error, text, place, layout, memory):
    before = len(sc.pool._kept)
    with pytest.raises(error, match=text):
        sc.Pool(make_schema(PARTS), SLOTS, layout, memory=memory, backend=place.backend)
    assert len(sc.pool._kept) == before


@layouts
def test_pool__bad_tensors_are_refused(place, layout):
    schema = make_schema(PARTS)
    few = tensors_for(schema, place.name, layout, SLOTS - 1)
    refused(sc.Mismatch, "shape" if layout == "contiguous" else "needed", place, layout, few)
    good = tensors_for(schema, place.name, "contiguous")
    wrong = [good[0].to(torch.float16), *good[1:]]
    refused(sc.Mismatch, "bf16 is wanted", place, "contiguous", wrong)
    refused(sc.Invalid, "contiguous", place, "contiguous",
            [good[0], good[1].transpose(1, 3), *good[2:]])
    refused(sc.Invalid, "grad", place, "page-major",
            torch.zeros(1 << 20, requires_grad=True, device=place.name))


@layouts
def test_pool__tensors_of_another_device_are_refused(cuda, layout):
    schema, cpu = make_schema(PARTS), Place("cpu")
    here = tensors_for(schema, "cpu", layout)
    there = tensors_for(schema, "cuda", layout)
    refused(sc.Invalid, "CUDA device 0 .*backend is host", cpu, layout, there)
    refused(sc.Invalid, "of the CPU .*backend is cuda", cuda, layout, here)
    if layout == "contiguous":
        refused(sc.Invalid, "of the CPU .*backend is cuda", cuda, layout, [*there[:2], *here[2:]])
    if torch.cuda.device_count() > 1:
        other = tensors_for(schema, "cuda:1", layout)
        refused(sc.Invalid, "device", cuda, layout, other)


def test_pool__what_says_to_lie_on_another_device_is_refused(cuda):
    elsewhere = _dlpack.Tensor(np.zeros(1 << 20, np.uint8), "u8", (2, 1))  # CUDA device 1
    refused(sc.Invalid, "CUDA device 1.* works on device 0", cuda, "page-major", elsewhere)


ON_THE_LAST = """
import sys, torch
import statecache as sc
last = torch.cuda.device_count() - 1
torch.cuda.set_device(last)
parts = [sc.Part(0, "recurrent", "f32", (2, 16, 16))]
schema = sc.Schema("toy", "1", [sc.Group("gdn", 16)], parts, 1)
theirs = torch.zeros((9, 2, 16, 16), device="cuda")
for words in ({}, {"memory": [theirs]}):
    pool = sc.Pool(schema, 8, "contiguous", backend="cuda", **words)
    view = torch.from_dlpack(pool.tensor(0))
    assert view.device == theirs.device == torch.device("cuda", last), view.device
    slots = pool.alloc(2)["id"]
    view[int(slots[0])].fill_(5)
    stream = torch.cuda.current_stream()
    pool.copy([int(slots[0])], pool, [int(slots[1])], stream=stream)
    assert (view[int(slots[1])] == 5).all() and (view[0] == 0).all()
"""


def test_pool__lies_on_the_device_that_was_current(cuda):
    """A rank that has selected its device gets the library on it, with memory of either side."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ON_THE_LAST], capture_output=True,
                          text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_view__of_a_device_is_refused(cuda):
    with pool_over(cuda, "contiguous") as (pool, _):
        with pytest.raises(sc.Unsupported, match="Pool.tensor"):
            pool.view(0)


@pytest.mark.parametrize("stream", ["one", 1.5, -1, 1 << 64, object()])
def test_copy__bad_streams_are_refused(place, stream):
    with pool_over(place, "contiguous") as (pool, _):
        with pytest.raises(sc.Invalid, match="stream"):
            pool.copy([0], pool, [1], stream=stream)
        with pytest.raises(sc.Invalid, match="stream"):
            pool.join(stream)
        with pytest.raises(sc.Invalid, match="stream"):
            pool.copy([0], pool, [1], beside=True)
        with pytest.raises(sc.Invalid, match="stream"):
            pool.join(None)

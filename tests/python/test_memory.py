# SPDX-License-Identifier: Apache-2.0
"""Memory in and out without a copy: views, DLPack, pools over memory of the caller."""
import gc
import weakref

import numpy as np
import pytest

import statecache as sc
from conftest import make_schema
from statecache import pool as pool_module

PARTS = [sc.Part(0, "conv", "bf16", (3, 128)), sc.Part(0, "recurrent", "f32", (2, 16, 16)),
         sc.Part(1, "recurrent", "f16", (2, 8, 16))]


def aligned(count, dtype=np.uint8):
    """An array that begins at a multiple of 256 bytes."""
    raw = np.zeros(count * np.dtype(dtype).itemsize + 256, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start:start + count * np.dtype(dtype).itemsize].view(dtype)


@pytest.mark.parametrize("layout", ["page-major", "contiguous"])
def test_view__lies_where_the_library_says(layout):
    with sc.Pool(make_schema(PARTS), 4, layout) as pool:
        layer = sc.ffi.new("sc_layer_view *")
        for part in PARTS:
            view = pool.view(part.layer, part.kind)
            with pool._handle as pointer:
                assert sc.lib.sc_pool_layer_view(
                    pointer, part.layer, {"conv": 1, "recurrent": 2}[part.kind], 0, layer) == 0
            assert view.ctypes.data == layer.base and view.strides[0] == layer.slot_stride
            assert view.shape == (5, *part.dims) and view.flags.writeable
            view[3] = view.dtype.type(7)
            assert (pool.view(part.layer, part.kind)[3] == 7).all()
            del view
        assert pool.needs_gather == (layout == "page-major")
        assert (pool.info.layout, pool.info.slot_count) == (layout, 4)


def test_dlpack__numpy_shares_the_bytes():
    with sc.Pool(make_schema(PARTS), 4) as pool:
        there = np.from_dlpack(pool.tensor(0))
        there[2] = 5
        assert (pool.view(0)[2] == 5).all() and there.ctypes.data == pool.view(0).ctypes.data
        assert pool.tensor(1).shape == (5, 2, 8, 16)
        with pytest.raises(BufferError):
            pool.tensor(0).__dlpack__(copy=True)
        with pytest.raises(BufferError):
            pool.tensor(0).__dlpack__(dl_device=(2, 0))
        del there


def test_dlpack__bf16_is_told_as_bf16():
    from statecache import _dlpack
    with sc.Pool(make_schema(PARTS), 4) as pool:
        tensor = pool.tensor(0, "conv")
        memory = _dlpack.memory_of(tensor, "tensor")
        assert (memory.code, memory.bits, memory.device) == (4, 16, (1, 0))
        assert memory.shape == (5, 3, 128) and pool.view(0, "conv").dtype == np.uint16
        assert memory.address == pool.view(0, "conv").ctypes.data
        del tensor, memory


def test_close__waits_for_views(schema):
    pool = sc.Pool(schema, 4)
    view = pool.view(0)
    half = view[1:3]
    del view
    with pytest.raises(sc.Busy, match="alive"):
        pool.close()
    half[0] = 1
    del half
    pool.close()
    pool.close()


def test_collected__a_view_keeps_the_pool_and_then_lets_it_go(schema):
    pool = sc.Pool(schema, 4)
    view, there = pool.view(0), weakref.ref(pool)
    del pool
    gc.collect()
    view[2] = 3
    assert there() is not None
    del view
    gc.collect()
    assert there() is None


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_foreign__one_range_is_used_in_place_and_kept_alive(dtype):
    schema = make_schema(PARTS)
    count = sc.Pool.memory_bytes(schema, 4) // np.dtype(dtype).itemsize
    memory = aligned(count, dtype)
    memory[:] = 1
    there, base = weakref.ref(memory), memory.ctypes.data
    kept = len(pool_module._kept)
    pool = sc.Pool(schema, 4, memory=memory)
    assert pool.info.base == base and (pool.view(0)[0] == 0).all()
    pool.audit()
    pool.view(0)[2] = 9
    assert (memory.view(np.uint8).view(np.float32)[:] == 9).sum() == 2 * 16 * 16
    del memory
    gc.collect()
    assert there() is not None, "the pool keeps the memory"
    pool.close()
    gc.collect()
    assert there() is None and len(pool_module._kept) == kept


def test_foreign__part_by_part_as_an_engine_has_its_tensors():
    """Tensors with padded strides, of three dtypes; bf16 comes by DLPack from another pool."""
    slots = 4
    with sc.Pool(make_schema(PARTS[:1], "other"), slots, "contiguous") as other:
        wide = np.zeros((slots + 1, 3, 16, 16), np.float32)
        tensors = [other.tensor(0, "conv"), wide[:, :2], np.zeros((slots + 1, 2, 8, 16),
                                                                   np.float16)]
        with sc.Pool(make_schema(PARTS), slots, "contiguous", memory=tensors) as pool:
            assert pool.view(0, "conv").ctypes.data == other.view(0, "conv").ctypes.data
            assert pool.view(0).strides == wide.strides
            pool.view(0)[3] = 4
            assert (wide[3, :2] == 4).all() and (wide[3, 2] == 0).all()
            with sc.Pool(make_schema(PARTS), slots) as page_major:
                pool.audit()
                source, dest = pool.alloc(1), page_major.alloc(1)
                pool.view(0)[source["id"]] = 2.5
                pool.copy(source["id"].astype(np.int32), page_major, dest["id"].astype(np.int32))
                assert (page_major.view(0)[dest["id"]] == 2.5).all()
                pool.free(source)
                page_major.free(dest)
        del tensors


def test_slots__alone_without_a_cache(pool):
    slots = pool.alloc(3, "snapshot")
    assert pool.info.owner_count["snapshot"] == 3 and pool.owner(slots[0]) == "snapshot"
    pool.set_owner(slots[0], "working")
    assert pool.owner(slots[0]) == "working"
    with pytest.raises(sc.NoSlot):
        pool.alloc(6)
    pool.free(slots)
    with pytest.raises(sc.Stale):
        pool.owner(slots[0])


class FromDevice:
    """An exporter of memory that is not on the CPU."""

    def __init__(self, array):
        self.tensor = sc.Tensor(array, "f32", (2, 0))

    def __dlpack__(self, **_):
        return self.tensor.__dlpack__()

    def __dlpack_device__(self):
        return (2, 0)


@pytest.mark.parametrize("memory, error, text", [
    (lambda bytes: aligned(bytes - 16), sc.Mismatch, "."),
    (lambda bytes: aligned(bytes + 16)[4:], sc.Mismatch, "."),
    (lambda bytes: np.zeros((2, bytes), np.uint8)[:, ::2], sc.Invalid, "contiguous"),
    (lambda bytes: np.broadcast_to(np.zeros(1, np.uint8), bytes), sc.Invalid, "."),
    (lambda bytes: np.zeros(bytes, object), sc.Invalid, "."),
    (lambda bytes: bytearray(bytes), sc.Invalid, "__dlpack__"),
    (lambda bytes: [], sc.Invalid, "no tensors"),
    (lambda bytes: FromDevice(np.zeros(bytes // 4, np.float32)), sc.Invalid, "device 2"),
])
def test_foreign__bad_memory_is_refused_and_let_go(schema, memory, error, text):
    bad = memory(sc.Pool.memory_bytes(schema, 4))
    kept = len(pool_module._kept)
    with pytest.raises(error, match=text):
        sc.Pool(schema, 4, memory=bad)
    assert len(pool_module._kept) == kept


def test_foreign__read_only_memory_is_refused(schema):
    memory = aligned(sc.Pool.memory_bytes(schema, 4))
    memory.flags.writeable = False
    with pytest.raises(sc.Invalid):
        sc.Pool(schema, 4, memory=memory)


@pytest.mark.parametrize("tensor, text", [
    (np.zeros((5, 2, 16, 16), np.float16), "f32 is wanted"),
    (np.zeros((5, 2, 16, 16), np.int32), "f32 is wanted"),
    (np.zeros((4, 2, 16, 16), np.float32), "shape"),
    (np.zeros((5, 2, 16, 8), np.float32), "shape"),
    (np.zeros((5, 2, 16, 32), np.float32)[..., ::2], "contiguous"),
    (np.zeros((5, 2, 16, 16), np.float32)[::-1], "contiguous"),
    (np.zeros(5, np.float32), "contiguous"),
])
def test_foreign__bad_parts_are_refused(schema, tensor, text):
    with pytest.raises((sc.Invalid, sc.Mismatch), match=text):
        sc.Pool(schema, 4, "contiguous", memory=[tensor])
    with pytest.raises(sc.Mismatch, match="2 tensors for 1 parts"):
        sc.Pool(schema, 4, "contiguous", memory=[np.zeros((5, 2, 16, 16), np.float32)] * 2)


def test_torch__tensors_both_ways(schema):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    memory = torch.zeros(sc.Pool.memory_bytes(schema, 4) + 64, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 64:][:sc.Pool.memory_bytes(schema, 4)]
    with sc.Pool(schema, 4, memory=memory) as pool:
        assert pool.info.base == memory.data_ptr()
        there = torch.from_dlpack(pool.tensor(0))
        there[2] = 3
        assert (pool.view(0)[2] == 3).all()
        del there
    with sc.Pool(make_schema(PARTS), 4) as pool:
        there = torch.from_dlpack(pool.tensor(0, "conv"))
        assert there.dtype == torch.bfloat16
        there[1] = 1.0
        assert (pool.view(0, "conv")[1] == 0x3f80).all()
        del there
    with pytest.raises(sc.Invalid):
        sc.Pool(schema, 4, memory=torch.zeros(1 << 20, requires_grad=True))


def test_cuda__is_there_or_says_why_not(schema):
    try:
        pool = sc.Pool(schema, 4, backend="cuda")
    except sc.Unsupported as problem:
        pytest.skip(f"CUDA: {problem.text}")
    with pool:
        with pytest.raises(sc.Unsupported, match="Pool.tensor"):
            pool.view(0)
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        there = torch.from_dlpack(pool.tensor(0))
        assert there.is_cuda and there.data_ptr() != 0
        del there


# ------------------------------------------------------------------------------------- bf16 as bits

def test_bf16__conversions_round_as_hardware_does():
    values = np.array([0.0, -0.0, 0.75, 1 + 2 ** -8, 1 + 3 * 2 ** -8, np.inf, -np.inf, 3e38,
                       3.4e38], np.float32)
    bits = sc.to_bf16(values)
    assert bits.tolist() == [0, 0x8000, 0x3f40, 0x3f80, 0x3f82, 0x7f80, 0xff80, 0x7f62, 0x7f80]
    assert np.isnan(sc.from_bf16(sc.to_bf16(np.array([0x7f800001], np.uint32).view(np.float32))))
    every = np.arange(1 << 16, dtype=np.uint16)
    back = sc.to_bf16(sc.from_bf16(every))
    kept = ~np.isnan(sc.from_bf16(every))
    assert (back[kept] == every[kept]).all() and np.isnan(sc.from_bf16(back[~kept])).all()
    assert sc.to_bf16(0.75).shape == () and sc.to_bf16([[1, 2]]).shape == (1, 2)


BAD_WRITES = [
    lambda v: v.__setitem__(1, np.float32(0.75)), lambda v: v.__setitem__(1, 0.75),
    lambda v: v.__setitem__(1, 1), lambda v: v.__setitem__(..., np.ones(128, np.float32)),
    lambda v: v[1].__setitem__(..., np.ones((3, 128))), lambda v: v.__setitem__((1, 0, 0), 0.5),
    lambda v: v.fill(0.5), lambda v: v.put([300], 0.5), lambda v: v.__iadd__(1),
    lambda v: v[1].__imul__(0.5), lambda v: np.add(1.0, 2.0, out=v[1], casting="unsafe"),
    lambda v: np.copyto(v, 0.5),
]
BAD_READS = [
    lambda v: v + 1, lambda v: v * 0.5, lambda v: 1.0 - v, lambda v: v.sum(), lambda v: v.max(),
    lambda v: v.mean(), lambda v: np.sum(v),
    lambda v: v.astype(np.float32), lambda v: v == 0.75, lambda v: v < 3,
    lambda v: np.exp(v), lambda v: np.matmul(v, v.transpose(0, 2, 1)),
]


def check_bits(pool):
    view = pool.view(0, "conv")
    assert isinstance(view, sc.Bf16Bits) and view.dtype == np.uint16
    view[1] = sc.to_bf16(np.full((3, 128), 0.75))
    before = np.asarray(view).copy()
    assert type(before) is np.ndarray and np.shares_memory(np.asarray(view), view)
    for call in BAD_WRITES:
        with pytest.raises((sc.Invalid, TypeError)):
            call(view)
        assert (np.asarray(view) == before).all()
    for call in BAD_READS:
        with pytest.raises(sc.Invalid, match="bf16"):
            call(view)
    assert (sc.from_bf16(view[1]) == 0.75).all() and not view[2].any()
    assert not np.isnan(view).any() and (view == before).all()
    view[2], view[3] = view[1], 0
    view[2] ^= np.uint16(0x8000)
    assert (sc.from_bf16(view[2]) == -0.75).all()
    view[2, 0, 0] = sc.to_bf16(np.nan)
    assert np.flatnonzero(np.isnan(view)).tolist() == [2 * 3 * 128]
    np.testing.assert_array_equal(view, pool.view(0, "conv"))
    assert type(view.astype(np.int64)) is np.ndarray


def test_bf16_view__takes_bits_and_refuses_numbers():
    with sc.Pool(make_schema(PARTS), 4) as pool:
        check_bits(pool)
        gc.collect()  # frames of the exceptions refer to the view

# SPDX-License-Identifier: Apache-2.0
"""Tensors in and out by DLPack, without a copy and without an extension module.

In: the capsule of a producer is read, not consumed; as long as it lives, the memory does.

Out: numpy makes the capsule (its deleter is C code, which may run on any thread and late in the
interpreter's life), and the fields that numpy has no words for are set in it: bf16, the device. The
array that numpy exports from keeps alive what owns the memory.
"""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional

import numpy as np

from ._arrays import Array
from .errors import Invalid

CPU, CUDA, CUDA_HOST = 1, 2, 3
# (DLPack code, bits) and what numpy calls it; bf16 travels as its bits (_bf16)
CODES = {"f32": (2, 32, "<f4"), "bf16": (4, 16, "<u2"), "f16": (2, 16, "<f2"),
         "i32": (0, 32, "<i4"), "u8": (1, 8, "|u1")}


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


# What stands before the tensor in DLManagedTensorVersioned: version, context, deleter, flags.
_VERSIONED_BYTES = 32

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Memory(NamedTuple):
    """A tensor of somebody else. `keep` keeps it alive."""
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    code: int
    bits: int
    device: tuple[int, int]
    keep: Any

    @property
    def bytes(self) -> int:
        """From the first element to behind the last one."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))
        return (last + 1) * self.bits // 8

    def dense_from(self, axis: int) -> bool:
        """Whether the axes from `axis` on lie end to end."""
        step = 1
        for size, stride in zip(self.shape[:axis - 1 if axis else None:-1],
                                self.strides[:axis - 1 if axis else None:-1]):
            if size != 1 and stride != step:
                return False
            step *= size
        return True


def dtype_text(code: int, bits: int) -> str:
    """What a tensor consists of, in words: as this package calls it, else as others do."""
    names = {one[:2]: name for name, one in CODES.items()}
    kinds = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
    return names.get((code, bits), f"{kinds.get(code, f'DLPack type {code} of ')}{bits}")


def device_text(device: tuple[int, int]) -> str:
    """A device in words, and by its number in DLPack."""
    names = {CPU: "the memory of the CPU", CUDA: f"the memory of CUDA device {device[1]}",
             CUDA_HOST: "pinned memory"}
    return f"{names.get(device[0], 'memory')} (DLPack device {device[0]})"


def _export(value: Any) -> Any:
    """A capsule of a tensor. On a device what was written before in the producer's stream then
    comes before what the library's default stream does: that one is ordered with stream 1, CUDA's
    own default."""
    if getattr(value, "__dlpack_device__", lambda: (CPU, 0))()[0] == CUDA:
        return value.__dlpack__(stream=1)
    return value.__dlpack__()


def memory_of(value: Any, name: str) -> Memory:
    """Where a tensor lies: anything with __dlpack__ (numpy, PyTorch). Errors: Invalid, also for
    memory that cannot be written."""
    if not hasattr(value, "__dlpack__"):
        raise Invalid(f"{name}: an array or tensor with __dlpack__ is wanted, not "
                      f"{type(value).__name__}")
    try:
        capsule = _export(value)
        tensor = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    except Exception as problem:  # producers raise what they like: read-only, needs grad, sparse
        raise Invalid(f"{name}: {problem}") from None
    if tensor.lanes != 1:
        raise Invalid(f"{name}: vector types are not taken")
    shape = tuple(tensor.shape[:tensor.ndim])
    if tensor.strides:
        strides = tuple(tensor.strides[:tensor.ndim])
    else:
        strides = tuple(int(np.prod(shape[at + 1:], dtype=np.int64)) for at in range(len(shape)))
    return Memory((tensor.data or 0) + tensor.byte_offset, shape, strides, tensor.code, tensor.bits,
                  (tensor.device_type, tensor.device_id), (value, capsule))


class _Base:
    """What numpy asks for an array over foreign memory, and what it then keeps as its base."""

    def __init__(self, owner: Any, interface: dict[str, Any]) -> None:
        self.owner = owner
        self.__array_interface__ = interface


def array_over(owner: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...],
               dtype: str) -> Array:
    """An array over memory that `owner` keeps alive. Strides in bytes."""
    interface = {"version": 3, "shape": shape, "strides": strides, "typestr": CODES[dtype][2],
                 "data": (address, False)}
    return np.asarray(_Base(owner, interface))


class Tensor:
    """Memory of a pool or a state for another library: `torch.from_dlpack`, `numpy.from_dlpack`.

    The same bytes, no copy; what is made of it keeps the memory. bf16 is bf16 where the other
    library knows it (numpy does not: take `view` there)."""

    def __init__(self, array: Array, dtype: str, device: tuple[int, int],
                 readonly: bool = False) -> None:
        self._array = array
        self._dtype = dtype
        self._device = device
        self._readonly = readonly  # said to who knows the word: the form with a version

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: Any = None, max_version: Optional[tuple[int, int]] = None,
                   dl_device: Optional[tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        """`stream` needs no work: what this package does to a pool's memory has ended when its
        call returns, or is in the stream that the call was given. A copy, or another device, is
        refused (BufferError)."""
        if copy or (dl_device is not None and tuple(dl_device) != self._device):
            raise BufferError("memory of a pool or a state is shared, not copied")
        capsule, tensor = self._capsule(max_version)
        tensor.code, tensor.bits, _ = CODES[self._dtype]
        tensor.device_type, tensor.device_id = self._device
        return capsule

    def _capsule(self, max_version: Optional[tuple[int, int]]) -> tuple[Any, _Tensor]:
        """Of the form with a version, which says that the memory may be written, if both sides
        know it; else of the older one."""
        if max_version is not None and max_version[0] >= 1 and np.lib.NumpyVersion(
                np.__version__) >= "2.1.0":
            array: Any = self._array
            capsule = array.__dlpack__(max_version=(1, 0))
            start = _pointer_of(capsule, b"dltensor_versioned") + _VERSIONED_BYTES
            if self._readonly:
                ctypes.c_uint64.from_address(start - 8).value |= 1  # flags: READ_ONLY
        else:
            capsule = self._array.__dlpack__()
            start = _pointer_of(capsule, b"dltensor")
        return capsule, _Tensor.from_address(start)

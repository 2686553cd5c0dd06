# SPDX-License-Identifier: Apache-2.0
"""Arrays across the C interface, without a Python loop over their items.

An array of structs is a numpy array whose dtype has the struct's own layout, taken from cffi; a
column is filled in one assignment, pointers included: item i of a ragged batch begins at

    address of the flat array + itemsize * offsets[i]
"""
from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from ._native import ffi
from .errors import Invalid

Array = npt.NDArray[Any]
Int32 = npt.NDArray[np.int32]


class Ragged(NamedTuple):
    """Items of different length, end to end: item i is `values[offsets[i]:offsets[i + 1]]`.

    What a scheduler has at hand already (like a query_start_loc) goes to the library as it is."""

    values: Any
    offsets: Any

    @classmethod
    def pack(cls, items: Sequence[Any], dtype: Any = np.int32) -> "Ragged":
        """Copies a list of arrays or lists into one array. For convenience: it is O(items)."""
        parts = [exact(item, dtype, "an item") for item in items]
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([part.size for part in parts], out=offsets[1:])
        return cls(np.concatenate(parts) if parts else np.empty(0, dtype), offsets)


ArrayLike = Union[Sequence[int], Array, Any]
RaggedLike = Union[Ragged, ArrayLike, Sequence[ArrayLike]]


def dtype_of(struct: str) -> np.dtype[Any]:
    """The numpy dtype with the layout of a struct of the headers."""
    layout: np.dtype[Any] = np.dtype(_format(ffi.typeof(struct)))
    return layout


def _format(ctype: Any) -> Any:
    if ctype.kind == "primitive":
        if ctype.cname in ("_Bool", "bool"):
            return "?"
        kind = "f" if ctype.cname in ("float", "double") else (
            "u" if ctype.cname.startswith(("u", "size_t")) else "i")
        return f"{kind}{ffi.sizeof(ctype)}"
    if ctype.kind == "enum":
        return f"{'i' if min(ctype.elements, default=0) < 0 else 'u'}{ffi.sizeof(ctype)}"
    if ctype.kind == "pointer":
        return "u8"
    if ctype.kind == "array":
        return (_format(ctype.item), (ctype.length,))
    return {"names": [name for name, _ in ctype.fields],
            "formats": [_format(field.type) for _, field in ctype.fields],
            "offsets": [field.offset for _, field in ctype.fields],
            "itemsize": ffi.sizeof(ctype)}


def exact(value: Any, dtype: Any, name: str, count: Optional[int] = None,
          ndim: int = 1) -> Array:
    """`value` as a contiguous array of `dtype`.

    Lists are converted. Arrays (numpy, or CPU tensors by DLPack) must have the dtype already and be
    contiguous: a copy that nobody asked for is refused instead of made."""
    wanted = np.dtype(dtype)
    if isinstance(value, (list, tuple, range, int, np.integer)):
        array = _from_list(value, wanted, name)
    else:
        array = _from_array(value, name)
        if array.dtype != wanted:
            hint = f" (.astype(np.{wanted}))" if {array.dtype.kind, wanted.kind} <= {"i", "u"} \
                else ""
            raise Invalid(f"{name}: dtype {array.dtype}, {wanted} is wanted{hint}")
        if not array.flags.c_contiguous:
            raise Invalid(f"{name}: not contiguous")
    if array.ndim == 0 and count is None and ndim == 1:
        raise Invalid(f"{name}: a list is wanted: [{array}]")
    if array.ndim != ndim and not (ndim == 1 and array.ndim == 0 and count is not None):
        raise Invalid(f"{name}: {array.ndim} dimensions, {ndim} wanted")
    if count is not None and array.ndim == 0:
        array = np.full(count, array)
    if count is not None and array.shape[0] != count:
        raise Invalid(f"{name}: {array.shape[0]} items, {count} wanted")
    return array


def _from_list(value: Any, wanted: np.dtype[Any], name: str) -> Array:
    if wanted.kind not in "iu":
        raise Invalid(f"{name}: an array of {wanted} is wanted")
    try:
        array = np.asarray(value)
    except ValueError as problem:
        raise Invalid(f"{name}: {problem}") from None
    if array.size == 0:
        return np.empty(0, wanted)
    if array.dtype.kind not in "iu":
        odd = next((type(one).__name__ for one in np.ravel(np.asarray(value, object))
                    if not isinstance(one, (int, np.integer))), "numbers that large")
        raise Invalid(f"{name}: whole numbers that fit {wanted} are wanted, not {odd}")
    limits = np.iinfo(wanted)
    if int(array.min()) < limits.min or int(array.max()) > limits.max:
        raise Invalid(f"{name}: whole numbers that fit {wanted} are wanted")
    return array.astype(wanted)


def _from_array(value: Any, name: str) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except Exception as problem:  # whatever the exporter raises: not on the CPU, needs grad
            raise Invalid(f"{name}: {problem}") from None
    hint = ": tokenize the text first" if isinstance(value, (str, bytes)) else \
        f": [{value}]" if isinstance(value, (int, np.integer)) else ""
    raise Invalid(f"{name}: an array or a list is wanted, not {type(value).__name__}{hint}")


def ragged(value: RaggedLike, dtype: Any, name: str, count: Optional[int] = None) -> Ragged:
    """A batch of items as flat values and offsets.

    A Ragged is checked; a 2-dimensional array has its rows as items; a 1-dimensional array, or a
    list of numbers, is one item; a list of arrays is packed. An empty list is no item, or, where
    one is wanted, an empty one."""
    if isinstance(value, Ragged):
        values = exact(value.values, dtype, name)
        offsets = _from_array(value.offsets, f"{name} offsets") if not isinstance(
            value.offsets, (list, tuple, range)) else _from_list(
                value.offsets, np.dtype(np.int64), f"{name} offsets")
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or offsets.size < 1:
            raise Invalid(f"{name} offsets: a 1-dimensional array of whole numbers is wanted")
        offsets = offsets.astype(np.int64, copy=False)
        if offsets[0] < 0 or offsets[-1] > values.size or (offsets[1:] < offsets[:-1]).any():
            raise Invalid(f"{name} offsets: must ascend within the {values.size} values")
    elif isinstance(value, (list, tuple)) and not value and count == 1:
        values, offsets = np.empty(0, dtype), np.zeros(2, np.int64)
    elif isinstance(value, (list, tuple)) and (
            len(value) == 0 or not isinstance(value[0], (int, float, str, np.number))):
        values, offsets = Ragged.pack(value, dtype)
    else:
        array = value if isinstance(value, (list, range, tuple)) else _from_array(value, name)
        many = isinstance(array, np.ndarray) and array.ndim == 2
        values = exact(array, dtype, name, ndim=2 if many else 1)
        rows, width = values.shape if many else (1, values.size)
        values, offsets = values.reshape(-1), np.arange(rows + 1, dtype=np.int64) * width
    if count is not None and offsets.size - 1 != count:
        raise Invalid(f"{name}: {offsets.size - 1} items, {count} wanted")
    return Ragged(values, offsets)


def point_to(struct: Array, pointer: str, counter: str, batch: Ragged) -> None:
    """Sets a pointer and its count in each struct of an array; the caller keeps `batch` alive."""
    lengths = np.diff(batch.offsets)
    if lengths.size and int(lengths.max()) > 0xffffffff:
        raise Invalid(f"{counter}: an item has more than 2^32 - 1 values")
    struct[counter] = lengths
    address = batch.values.ctypes.data + batch.offsets[:-1] * batch.values.itemsize
    struct[pointer] = np.where(lengths > 0, address, 0)


def fill(struct: Array, member: str, value: Any, name: Optional[str] = None) -> None:
    """Sets one member of each struct from a number, or an array with one for each."""
    column = struct[member]
    array = np.asarray(value)
    name = name or member
    if column.dtype == np.bool_:
        column[...] = array
        return
    if array.dtype.kind not in "iub" or array.ndim > 1 or (
            array.ndim == 1 and array.shape != column.shape):
        raise Invalid(f"{name}: a whole number, or {column.size} of them, is wanted")
    limits = np.iinfo(column.dtype)
    if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
        raise Invalid(f"{name}: must lie between {limits.min} and {limits.max}")
    column[...] = array


def pointer_to(array: Array, ctype: str) -> Any:
    """The array as a C pointer; the caller keeps the array alive during the call."""
    return ffi.from_buffer(ctype + "[]", array) if array.size else ffi.cast(
        ctype + " *", array.ctypes.data)


def whole(value: Any, name: str, bits: int = 32) -> int:
    """A whole number of so many bits, not negative."""
    try:
        number = value.__index__()
    except AttributeError:
        raise Invalid(f"{name}: a whole number is wanted, not {type(value).__name__}") from None
    if not 0 <= number < 1 << bits:
        raise Invalid(f"{name}: must lie between 0 and 2^{bits} - 1")
    return int(number)


def signed(value: Any, name: str) -> int:
    """A whole number that fits int32."""
    try:
        number = value.__index__()
    except AttributeError:
        raise Invalid(f"{name}: a whole number is wanted, not {type(value).__name__}") from None
    if not -(1 << 31) <= number < 1 << 31:
        raise Invalid(f"{name}: must fit int32")
    return int(number)

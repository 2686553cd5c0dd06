# SPDX-License-Identifier: Apache-2.0
"""bf16 in numpy, which does not have it: arrays of its bits.

A plain uint16 array would take `view[1] = 0.75` without a word and store the bits 0. The array that
`view` gives refuses numbers instead, and arithmetic with them:

    view[1] = sc.to_bf16(values)          floats -> bits
    values = sc.from_bf16(view[1])        bits -> floats (float32)

What stays possible is what has a meaning for bits: copies from uint16 arrays (of such bits), zero,
comparison with other bits, bitwise operations, `numpy.asarray(view)` for the uint16 array itself.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ._arrays import Array
from .errors import Invalid

_BITS = np.dtype(np.uint16)
_ON_BITS = {np.equal, np.not_equal, np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert,
            np.left_shift, np.right_shift, np.logical_and, np.logical_or, np.logical_not}
_BY_VALUE = {np.isnan, np.isinf, np.isfinite}
_HELP = "use sc.to_bf16(values) and sc.from_bf16(view), or tensor()"


def to_bf16(values: Any) -> Array:
    """Numbers as the bits of bf16, in a uint16 array: rounded to nearest, ties to even; NaN stays
    NaN."""
    try:
        floats = np.ascontiguousarray(values, np.float32)
    except (TypeError, ValueError) as problem:
        raise Invalid(f"values: {problem}") from None
    bits = floats.view(np.uint32)
    rounded = bits + (((bits >> 16) & 1) + np.uint32(0x7fff))
    quiet = bits | np.uint32(0x00400000)  # else rounding could make an infinity of a NaN
    out = np.where(np.isnan(floats), quiet, rounded) >> 16
    return out.astype(np.uint16).reshape(np.shape(values))


def from_bf16(bits: Any) -> Array:
    """Bits of bf16 (a uint16 array, as `view` gives) as float32: exact, a copy."""
    plain = np.asarray(bits)
    if plain.dtype != _BITS:
        raise Invalid(f"bits: dtype {plain.dtype}, uint16 is wanted")
    return (plain.astype(np.uint32) << 16).view(np.float32)


class Bf16Bits(np.ndarray):  # type: ignore[type-arg, unused-ignore]
    """The bits of bf16 numbers as uint16: see above. Of another dtype (`.view(np.int16)`) it is an
    array like any other."""

    def __setitem__(self, where: Any, value: Any) -> None:
        super().__setitem__(where, self._checked(value))

    def fill(self, value: Any) -> None:
        super().fill(self._checked(value))

    def put(self, indices: Any, values: Any, mode: Any = "raise") -> None:
        super().put(indices, self._checked(values), mode)

    def astype(self, dtype: Any, *words: Any, **named: Any) -> Any:
        """A plain array; refused for floats, which would be those of the bits' numbers."""
        if self.dtype == _BITS and np.dtype(dtype).kind in "fc":
            raise Invalid(f"these are bits of bf16: {_HELP}")
        return np.asarray(self).astype(dtype, *words, **named)

    def _checked(self, value: Any) -> Any:
        if self.dtype != _BITS:
            return value
        array = np.asarray(value)
        if array.dtype == _BITS or (array.ndim == 0 and array.dtype.kind in "iu" and array == 0):
            return array
        raise Invalid(f"these are bits of bf16, and {array.dtype} is given: {_HELP}")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        out = named.get("out", ())
        of_bits = any(isinstance(one, Bf16Bits) and one.dtype == _BITS for one in (*inputs, *out))
        if of_bits and ufunc not in _ON_BITS and ufunc not in _BY_VALUE:
            raise Invalid(f"these are bits of bf16, not numbers to {ufunc.__name__}: {_HELP}")
        convert = from_bf16 if of_bits and ufunc in _BY_VALUE else np.asarray
        inputs = tuple(convert(one) if isinstance(one, Bf16Bits) else one for one in inputs)
        if of_bits and ufunc in (np.equal, np.not_equal) and any(
                np.asarray(one).dtype.kind in "fc" for one in inputs):
            raise Invalid(f"these are bits of bf16, compared with numbers: {_HELP}")
        if out:
            named["out"] = tuple(np.asarray(one) if isinstance(one, Bf16Bits) else one
                                 for one in out)
        result = getattr(ufunc, method)(*inputs, **named)
        return out[0] if len(out) == 1 else result


def _refusing(name: str) -> Any:
    """A reduction that is refused here already: numpy keeps a reference to the array when
    __array_ufunc__ raises out of one."""
    def method(self: Any, *words: Any, **named: Any) -> Any:
        if self.dtype == _BITS:
            raise Invalid(f"these are bits of bf16, not numbers to {name}: {_HELP}")
        return getattr(np.asarray(self), name)(*words, **named)
    method.__name__ = name
    return method


for _name in ("argmax", "argmin", "argsort", "clip", "cumprod", "cumsum", "dot", "max", "mean",
              "min", "prod", "round", "sort", "std", "sum", "trace", "var"):
    setattr(Bf16Bits, _name, _refusing(_name))


def shown(array: Array, dtype: str) -> Array:
    """An array as `view` gives it: of bf16 the bits, which take no numbers."""
    return array.view(Bf16Bits) if dtype == "bf16" else array

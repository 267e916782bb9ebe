# SPDX-License-Identifier: Apache-2.0
"""Bits of elements: width, order, and exponent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

#: Unsigned integer of numpy that holds the bits of a dtype, by the dtype's safetensors name.
BITS_TYPES: dict[str, str] = {
    "BOOL": "u1",
    "U8": "u1",
    "I8": "u1",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
    "F8_E4M3FNUZ": "u1",
    "F8_E5M2FNUZ": "u1",
    "U16": "u2",
    "I16": "u2",
    "F16": "u2",
    "BF16": "u2",
    "U32": "u4",
    "I32": "u4",
    "F32": "u4",
    "U64": "u8",
    "I64": "u8",
    "F64": "u8",
    "C64": "u8",
}


@dataclass(frozen=True)
class FloatFormat:
    """Format of a float: a sign bit, ``exponent_bits``, ``mantissa_bits``. An exponent field of e means about 2^(e -
    bias).
    """

    exponent_bits: int
    mantissa_bits: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1


FLOATS: dict[str, FloatFormat] = {
    "F8_E4M3": FloatFormat(4, 3),
    "F8_E5M2": FloatFormat(5, 2),
    "F16": FloatFormat(5, 10),
    "BF16": FloatFormat(8, 7),
    "F32": FloatFormat(8, 23),
    "F64": FloatFormat(11, 52),
}


def exponents(bits: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.int64]:
    """Returns the unbiased exponent of each float in ``bits``. Zeros and subnormals have the exponent -bias, because
    their exponent field is 0.
    """
    form = FLOATS[dtype]
    field = (bits >> bits.dtype.type(form.mantissa_bits)) & bits.dtype.type((1 << form.exponent_bits) - 1)
    unbiased: npt.NDArray[np.int64] = field.astype(np.int64) - form.bias
    return unbiased


def ulp_steps(old: npt.NDArray[Any], new: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.int64]:
    """Returns by how many representable values each element moved up from ``old`` to ``new``; -0 is one step below +0.
    For integers this is the difference.

    For 64-bit elements, a difference that needs more than 63 bits wraps around.
    """
    return _rank(new, dtype) - _rank(old, dtype)


def _rank(bits: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.int64]:
    width = 8 * bits.itemsize
    if dtype not in FLOATS:
        kind = "i" if dtype.startswith("I") else "u"
        return bits.view(f"{kind}{bits.itemsize}").astype(np.int64)
    signed = bits.view(f"i{bits.itemsize}").astype(np.int64)
    magnitude = signed & np.int64((1 << (width - 1)) - 1)
    return np.where(signed < 0, -1 - magnitude, magnitude)

# SPDX-License-Identifier: Apache-2.0
"""Describes the memory of arrays of other libraries, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._core import Memory
from .errors import UsageError

if TYPE_CHECKING:
    import torch

#: safetensors name of each supported dtype, by its attribute name in torch.
TORCH_DTYPES: dict[str, str] = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",  # Since torch 2.7.
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "complex64": "C64",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
    "float4_e2m1fn_x2": "F4X2",  # Since torch 2.8. I4X2 has no name there: such tensors are uint8.
}

#: Dtypes of two 4-bit numbers per byte: I4X2 of integers, F4X2 of fp4 e2m1. Their memory is that of U8.
PAIRS = ("I4X2", "F4X2")

#: Last dimension of a tensor of pairs that a checkpoint has as I32: the bytes of a word of eight 4-bit numbers.
WORD_BYTES = 4

#: safetensors name of each supported dtype of ml_dtypes, by its name in numpy.
_NUMPY_DTYPES = {
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "bfloat16": "BF16",
}

#: Integer type, by element size in bytes, that carries the bits of a dtype that DLPack or numpy lacks.
_CARRIERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def dtype_name(dtype: Any) -> str:
    """Returns the safetensors name of a torch dtype ("BF16" for ``torch.bfloat16``). Raises UsageError for a dtype that
    is not supported.
    """
    name = TORCH_DTYPES.get(str(dtype).removeprefix("torch."))
    if name is None:
        raise UsageError(f"tensors of {dtype} are not carried")
    return name


def describe(array: Any, *, dtype: str | None = None) -> Memory:
    """Returns a description of the memory of ``array``: a torch tensor, a numpy array, or any object with DLPack or the
    buffer protocol.

    Copies nothing; the result keeps the array alive. ``dtype`` is the safetensors name of the elements' dtype. It is
    needed only if the type of the array does not tell it (U8 that holds F8_E4M3, or I4X2, which is two 4-bit integers),
    and it must have the same element size. For a torch tensor that requires gradients, the result describes its data.
    Raises UsageError for an object without such memory, and UnsupportedError for dtypes and devices that are not
    supported.
    """
    if isinstance(array, Memory):
        return array
    module = type(array).__module__.partition(".")[0]
    if module == "torch" or hasattr(array, "untyped_storage"):
        return _describe_torch(array, dtype)
    if module in ("numpy", "ml_dtypes"):
        return _describe_numpy(array, dtype)
    try:
        return Memory(array, dtype)
    except TypeError as error:
        raise UsageError(f"{type(array).__name__} has neither DLPack nor the buffer protocol") from error


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of the tensor as integers of the same element size, so that comparisons are bitwise, also for NaNs
    and for the sign of zero.
    """
    import torch

    carrier: torch.dtype = getattr(torch, _CARRIERS[tensor.element_size()])
    return tensor.view(carrier)


def _describe_torch(tensor: torch.Tensor, dtype: str | None) -> Memory:
    import torch

    if type(tensor) is not torch.nn.Parameter and hasattr(tensor, "to_local"):
        raise UsageError("a DTensor has no memory of its own: describe its to_local()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise UsageError(f"tensors on {tensor.device} have no memory that can be read; only cpu and cuda")
    if tensor.layout != torch.strided:
        raise UsageError(f"a tensor of layout {tensor.layout} has no plain memory")
    if tensor.is_conj():
        raise UsageError("memory that holds the conjugates of the tensor's elements: describe its resolve_conj()")
    name = dtype or dtype_name(tensor.dtype)
    return Memory(bits_of(tensor.detach()), name)


def _describe_numpy(array: Any, dtype: str | None) -> Memory:
    name = dtype or _NUMPY_DTYPES.get(array.dtype.name)
    if name is None and not array.dtype.isnative:
        raise UsageError(f"an array of {array.dtype.str} is not in this machine's byte order")
    if name is not None and array.dtype.itemsize in _CARRIERS:
        return Memory(array.view(_CARRIERS[array.dtype.itemsize]), name)
    return Memory(array, name)

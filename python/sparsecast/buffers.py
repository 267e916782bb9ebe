"""Memory of other libraries' arrays, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._core import Memory
from .errors import UsageError

if TYPE_CHECKING:
    import torch

#: What ``torch`` calls each dtype that sparsecast carries, without the module's name.
TORCH_DTYPES: dict[str, str] = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "bool": "BOOL",
}

#: numpy's names (and ml_dtypes') that are not torch's.
_NUMPY_DTYPES = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "bfloat16": "BF16"}

#: An integer of the same size carries the bits of a dtype that DLPack or numpy lacks.
_CARRIERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def dtype_name(dtype: Any) -> str:
    """The safetensors name of a torch dtype ("BF16" for ``torch.bfloat16``). UsageError for one that is not carried."""
    name = TORCH_DTYPES.get(str(dtype).removeprefix("torch."))
    if name is None:
        raise UsageError(f"tensors of {dtype} are not carried")
    return name


def describe(array: Any, *, dtype: str | None = None) -> Memory:
    """The memory of ``array``: a torch tensor, a numpy array, or anything with DLPack or the buffer protocol.

    Nothing is copied; the result keeps the array alive. ``dtype`` says what the elements mean, as safetensors names it,
    where the array's own type does not (U8 that are F8_E4M3, say); it must have the same size. Of a torch tensor that
    requires gradients the data is meant. UsageError for what has no such memory, UnsupportedError for dtypes and
    devices that are not carried.
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
    """The tensor's bits as integers of its element size; a view. NaNs and zeros then compare as what they are."""
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
    name = dtype or dtype_name(tensor.dtype)
    return Memory(bits_of(tensor.detach()), name)


def _describe_numpy(array: Any, dtype: str | None) -> Memory:
    name = dtype or _NUMPY_DTYPES.get(array.dtype.name)
    if name is None and not array.dtype.isnative:
        raise UsageError(f"an array of {array.dtype.str} is not in this machine's byte order")
    if name is not None and array.dtype.itemsize in _CARRIERS:
        return Memory(array.view(_CARRIERS[array.dtype.itemsize]), name)
    return Memory(array, name)

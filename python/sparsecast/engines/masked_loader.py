# SPDX-License-Identifier: Apache-2.0
"""NaN-masked tensors for the loader of an engine: copies and fills that it makes of them skip the NaNs."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsecast.buffers import bits_of
from sparsecast.engines._derived import slots
from sparsecast.engines._dtypes import TORCH_DTYPES
from sparsecast.engines._trace_mode import pools_run_here, storage_key
from sparsecast.engines._watch import Watch
from sparsecast.engines.loader_trace import LoadWeights
from sparsecast.errors import UnsupportedError

aten = torch.ops.aten

_LARGEST: dict[torch.dtype, tuple[int, int]] = {
    torch.bfloat16: (0x7FFF, 0x7F80),
    torch.float16: (0x7FFF, 0x7C00),
    torch.float32: (0x7FFFFFFF, 0x7F800000),
    torch.float64: (0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
    torch.float8_e4m3fn: (0x7F, 0x7E),
    torch.float8_e5m2: (0x7F, 0x7C),
}
"""Mask that takes the sign away, and the largest pattern that is no NaN."""

_COPIES = (aten.clone, aten._to_copy, aten.cat, aten.stack, aten.constant_pad_nd, aten.index, aten.index_select)
_MAKES_NEW = (aten.empty_like, aten.zeros_like, aten.ones_like, aten.full_like, aten.new_empty, aten.new_zeros)


class MaskedLoader:
    """Passes NaN-masked tensors through `load_weights` of an engine, as `Subscriber.apply_nan_masked` wants it.

    `table` lists the canonical tensors as (name, dtype, shape), in the order of the subscriber's table. The loader may
    slice, transpose, pad and concatenate what it gets, and copies it into live tensors at the end; the copies keep the
    live element where there is a NaN. One tensor is in memory at a time.
    """

    def __init__(
        self,
        table: Iterable[tuple[str, str, Sequence[int]]],
        load_weights: LoadWeights,
        device: str | torch.device = "cpu",
    ) -> None:
        self._table = [(name, dtype, tuple(shape)) for name, dtype, shape in table]
        self._load_weights = load_weights
        self._device = torch.device(device)

    def prove(self, model: torch.nn.Module) -> None:
        """Loads a tensor of NaNs alone for each name, which must change no parameter or buffer of `model`, and puts
        back what it did change. Raises UnsupportedError naming a tensor that cannot be NaN-masked: an integer one, or
        one with which the loader computes, or which it does not copy element by element.
        """
        known = {storage_key(slot.data): slot.name for slot in slots(model)}
        for name, dtype, shape in self._table:
            kind = TORCH_DTYPES[dtype]
            if kind not in _LARGEST:
                raise UnsupportedError(f"tensor {name!r} is of {dtype}, which has no NaN to mark what did not change")
            tensor = torch.empty(shape, dtype=kind, device=self._device)
            bits_of(tensor).fill_(_LARGEST[kind][0])
            found = list(slots(model))
            watch = Watch(known)
            try:
                with watch:
                    self._load(name, tensor)
                changed = watch.has_changed() or not all(slot.is_as_found() for slot in found)
            finally:
                for slot in found:
                    slot.put_back()
                watch.undo()
            if changed:
                raise UnsupportedError(f"tensor {name!r}: the loader writes something else than copies of its elements")

    def __call__(self, index: int, address: int, stream: int) -> None:
        """Loads tensor `index` of the table, which lies at `address`; on a device, as work on CUDA stream `stream`."""
        name, dtype, shape = self._table[index]
        tensor = _at(address, TORCH_DTYPES[dtype], shape, self._device)
        with _on_stream(stream, self._device):
            self._load(name, tensor)

    def _load(self, name: str, tensor: torch.Tensor) -> None:
        with torch.no_grad(), pools_run_here(), _MaskedCopies(name, tensor):
            self._load_weights(iter([(name, tensor)]))


class _MaskedCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows a NaN-masked tensor through a loader: what is copied from it carries NaNs, too, until it reaches a tensor
    that was there before.
    """

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name
        self._carrying = {storage_key(tensor)}
        self._made: set[int] = set()
        self._keep_alive: list[torch.Tensor] = []  # A storage that is freed would give its identity to another one.

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if func.is_view:
            return func(*args, **kwargs)
        if packet is aten.copy_:
            return self._copy(args[0], args[1])
        if packet is aten._foreach_copy_:
            return [self._copy(target, source) for target, source in zip(args[0], args[1], strict=True)]
        if packet is aten.fill_:
            return self._fill(func, args[0], args[1])
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        carrying = [t for t in tensors if storage_key(t) in self._carrying]
        if carrying and packet not in (*_COPIES, *_MAKES_NEW, aten._local_scalar_dense):
            self._refuse(f"computes with it ({packet.__name__})")
        result = func(*args, **kwargs)
        before = {storage_key(t) for t in tensors}
        for output in tree_leaves(result):
            if isinstance(output, torch.Tensor) and storage_key(output) not in before:
                self._keep_alive.append(output.detach())
                self._made.add(storage_key(output))
                if carrying and packet in _COPIES:
                    if output.dtype != carrying[0].dtype:
                        self._refuse(f"casts it to {output.dtype}")
                    self._carrying.add(storage_key(output))
        return result

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if storage_key(source) not in self._carrying:
            return target.copy_(source)
        if source.dtype != target.dtype:
            self._refuse(f"casts it to {target.dtype}")
        if storage_key(target) in self._made:
            self._carrying.add(storage_key(target))
            return target.copy_(source)
        if source.dtype not in _LARGEST:
            self._refuse(f"copies its bytes as {source.dtype}")
        bits, live = bits_of(source.expand(target.shape)).to(target.device), bits_of(target)
        unsigned, largest = _LARGEST[source.dtype]
        live.copy_(torch.where((bits & unsigned) > largest, live, bits))
        return target

    def _fill(self, func: Any, target: torch.Tensor, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return self._copy(target, value.expand(target.shape))
        if isinstance(value, float) and value != value and storage_key(target) not in self._made:
            return target
        filled: torch.Tensor = func(target, value)
        return filled

    def _refuse(self, what: str) -> None:
        raise UnsupportedError(f"tensor {self._name!r} cannot be NaN-masked: the loader {what}")


def _at(address: int, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Returns the tensor whose elements lie at an address, without a copy."""
    elements = 1
    for extent in shape:
        elements *= extent
    size = elements * dtype.itemsize
    if size == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    if device.type == "cpu":
        memory = torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
    else:
        memory = torch.as_tensor(_DeviceBytes(address, size), device=device)
    return memory.view(dtype).view(shape)


class _DeviceBytes:
    """Memory of a device for torch, by the CUDA array interface."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


@contextlib.contextmanager
def _on_stream(stream: int, device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):  # type: ignore[no-untyped-call]
        yield

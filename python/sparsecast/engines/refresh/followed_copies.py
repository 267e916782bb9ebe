# SPDX-License-Identifier: Apache-2.0
"""Torch dispatch modes that follow one canonical tensor through a loader that only copies: `MaskedCopies` makes the
copies that reach the model skip NaNs, and `ReadBack` runs the copies backwards to read the tensor out of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsecast.buffers import bits_of
from sparsecast.engines.trace.dispatch_mode import odd_float, storage_elements, storage_key
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
"""By dtype: mask that clears the sign bit of a value's bits, and the largest bits without a sign that are not a NaN."""

_COPIES = (aten.clone, aten._to_copy, aten.cat, aten.stack, aten.constant_pad_nd, aten.index, aten.index_select)
_MAKES_NEW = (aten.empty_like, aten.zeros_like, aten.ones_like, aten.full_like, aten.new_empty, aten.new_zeros)


def has_nans(dtype: torch.dtype) -> bool:
    """Returns whether the dtype has NaNs, which can mark the elements that did not change."""
    return dtype in _LARGEST


def nan_bits(dtype: torch.dtype) -> int:
    """Returns the bits, as an integer, of a quiet NaN of a dtype that has NaNs."""
    return _LARGEST[dtype][0]


def is_nan(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a boolean tensor of the same shape that is True where the tensor has a NaN. NaNs are found by their bits,
    because torch does not have `isnan` for 8-bit floats everywhere. The dtype must have NaNs.
    """
    unsigned, largest = _LARGEST[tensor.dtype]
    return (bits_of(tensor) & unsigned) > largest


class _FollowedCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows `tensor` through a loader that runs under this mode, from copy to copy, until its elements reach a live
    tensor: one that existed before the loader ran. Raises UnsupportedError naming the tensor if the loader computes
    with it or casts it.
    """

    _purpose = ""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name
        self._carrying = {storage_key(tensor)}
        self._made: set[int] = set()
        self._keep_alive: list[torch.Tensor] = []  # A storage that is freed would give its identity to another storage.

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
        if packet is aten._local_scalar_dense and storage_key(args[0]) in self._carrying:
            return self._number(func, args[0])
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        carrying = [t for t in tensors if storage_key(t) in self._carrying]
        if carrying and packet not in (*_COPIES, *_MAKES_NEW):
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
        if carrying and packet in _COPIES:
            self._copied(packet, args, kwargs, result)
        return result

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if storage_key(source) not in self._carrying:
            return target.copy_(source)
        if source.dtype != target.dtype:
            self._refuse(f"casts it to {target.dtype}")
        if storage_key(target) in self._made:
            self._carrying.add(storage_key(target))
            self._passes(source, target)
            return target.copy_(source)
        if source.dtype not in _LARGEST:
            self._refuse(f"copies its bytes as {source.dtype}")
        self._arrives(source.expand(target.shape), target)
        return target

    def _fill(self, func: Any, target: torch.Tensor, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return self._copy(target, value.expand(target.shape))
        filled: torch.Tensor = func(target, value)
        return filled

    def _refuse(self, what: str) -> None:
        raise UnsupportedError(f"tensor {self._name!r} cannot be {self._purpose}: the loader {what}")

    def _arrives(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Called instead of a copy of followed elements (`source`) into a live tensor (`target`) of the same shape."""
        raise NotImplementedError

    def _number(self, func: Any, tensor: torch.Tensor) -> Any:
        """Returns the number that the loader gets when it reads the one element of `tensor` on the host."""
        raise NotImplementedError

    def _passes(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Called before a copy of followed elements into a tensor that the loader has made."""

    def _copied(self, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> None:
        """Called after an operator in `_COPIES` (`packet`, with the arguments `args` and `kwargs`) has made `result`
        from followed elements.
        """


class MaskedCopies(_FollowedCopies):  # type: ignore[no-untyped-call]
    """Makes copies and fills of live tensors skip NaNs: a live element stays as it is where the followed tensor has a
    NaN.
    """

    _purpose = "NaN-masked"

    def _arrives(self, source: torch.Tensor, target: torch.Tensor) -> None:
        bits, live = bits_of(source).to(target.device), bits_of(target)
        unsigned, largest = _LARGEST[source.dtype]
        torch.where((bits & unsigned) > largest, live, bits, out=live)

    def _number(self, func: Any, tensor: torch.Tensor) -> Any:
        return func(tensor)

    def _fill(self, func: Any, target: torch.Tensor, value: Any) -> torch.Tensor:
        if isinstance(value, float) and value != value and storage_key(target) not in self._made:
            return target
        return super()._fill(func, target, value)


class ReadBack(_FollowedCopies):  # type: ignore[no-untyped-call]
    """Runs a loader without writing any live tensor, and notes its copies; `finish`, called afterwards, runs them
    backwards: from the model into the tensor that the loader got.
    """

    _purpose = "read back"

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        super().__init__(name, tensor)
        self.places: list[torch.Tensor] = []
        """Views of live tensors: the places into which the loader would have copied."""
        self._backwards: list[Callable[[], None]] = []
        self._numbers: dict[float, torch.Tensor] = {}
        self._found: dict[int, torch.Tensor] = {}  # By storage: which of its elements come from the model.

    def finish(self) -> None:
        """Copies the tensor's elements from the model into the tensor that the loader got. Elements that the model does
        not have stay as they are.
        """
        for step in reversed(self._backwards):
            step()

    def _pair(self, source: torch.Tensor, target: torch.Tensor) -> None:
        for dim, stride in enumerate(source.stride()):
            if stride == 0 and source.shape[dim] > 1:  # Expanded: its copies are all the same.
                source, target = source.narrow(dim, 0, 1), target.narrow(dim, 0, 1)
        self._backwards.append(lambda: self._copy_back(source, target, ...))

    def _copy_back(self, source: torch.Tensor, target: torch.Tensor, index: Any) -> None:
        """Copies into `source[index]` those elements of `target` that come from the model, and notes in `_found` that
        `source` has them now. `target` is what the loader made of `source[index]`.
        """
        to, bits = bits_of(source), bits_of(target).to(source.device)
        if storage_key(target) not in self._made:
            to[index] = bits
            self._found_in(source)[index] = True
        else:
            found = self._found_in(target).to(source.device)
            to[index] = torch.where(found, bits, to[index])
            self._found_in(source)[index] |= found

    def _found_in(self, view: torch.Tensor) -> torch.Tensor:
        key = storage_key(view)
        if key not in self._found:
            self._found[key] = torch.zeros(storage_elements(view), dtype=torch.bool, device=view.device)
        return self._found[key].as_strided(view.shape, view.stride(), view.storage_offset())

    def _passes(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._pair(source.expand(target.shape), target)

    def _arrives(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.places.append(target.detach())
        self._pair(source, target)

    def _number(self, func: Any, tensor: torch.Tensor) -> Any:
        value = odd_float(len(self._numbers) + 1)  # No loader has this number, so that a fill with it is recognised.
        self._numbers[value] = tensor
        return value

    def _fill(self, func: Any, target: torch.Tensor, value: Any) -> torch.Tensor:
        if isinstance(value, float) and value in self._numbers:
            source = self._numbers[value].reshape((1,) * target.dim())
            return self._copy(target, source.expand(target.shape))
        return super()._fill(func, target, value)

    def _copied(self, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> None:
        source = args[0]
        if packet in (aten.cat, aten.stack):
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            start = 0
            for i, part in enumerate(source):
                if packet is aten.stack:
                    self._pair_if_carrying(part, result.select(dim, i))
                elif tuple(part.shape) != (0,):
                    self._pair_if_carrying(part, result.narrow(dim, start, part.shape[dim]))
                    start += part.shape[dim]
        elif packet is aten.constant_pad_nd:
            if min(args[1]) < 0:
                self._refuse("cuts it by a negative padding")
            for i in range(0, len(args[1]), 2):
                dim = source.dim() - 1 - i // 2
                result = result.narrow(dim, args[1][i], source.shape[dim])
            self._pair(source, result)
        elif packet is aten.index_select:
            before = (slice(None),) * (args[1] % source.dim())
            self._indexed(source, (*before, args[2]), result)
        elif packet is aten.index:
            self._indexed(source, tuple(slice(None) if i is None else i for i in args[1]), result)
        else:
            self._pair(source, result)

    def _pair_if_carrying(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if storage_key(source) in self._carrying:
            self._pair(source, target)

    def _indexed(self, source: torch.Tensor, index: tuple[Any, ...], result: torch.Tensor) -> None:
        self._backwards.append(lambda: self._copy_back(source, result, index))

# SPDX-License-Identifier: Apache-2.0
"""Finds which tensors of a model are made with one value throughout, as buffers for padded weights are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsecast.engines.trace.dispatch_mode import storage_elements, storage_key, written_tensors

_aten = torch.ops.aten
_FILLED = {_aten.zeros: 0.0, _aten.ones: 1.0}


class Constants(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Torch dispatch mode under which a model is made. It remembers the tensors that are made or filled with one value
    throughout, because tensors on the meta device do not show their values.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values: dict[int, tuple[torch.Tensor, float]] = {}  # With the tensor, which keeps its storage alive.

    def value_of(self, tensor: torch.Tensor) -> float | None:
        """Returns the value that all elements of the tensor's storage have; None if they differ, or if their value is
        not known.
        """
        found = self._values.get(storage_key(tensor))
        return None if found is None else found[1]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        for tensor in written_tensors(func, args, kwargs or {}):
            self._values.pop(storage_key(tensor), None)
        if packet in _FILLED:
            self._note(result, _FILLED[packet])
        elif packet is _aten.full:
            self._note(result, args[1])
        elif packet in (_aten.zero_, _aten.fill_) and args[0].numel() == storage_elements(args[0]):
            self._note(args[0], 0.0 if packet is _aten.zero_ else args[1])
        return result

    def _note(self, tensor: torch.Tensor, value: Any) -> None:
        if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value)):
            self._values[storage_key(tensor)] = (tensor.detach(), float(value))

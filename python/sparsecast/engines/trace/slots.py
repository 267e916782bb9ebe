# SPDX-License-Identifier: Apache-2.0
"""Finds every place where the modules of a model keep a tensor, and puts back what was there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_OWNERS = ("impl", "quant_method")  # Objects of a module that keep tensors for it.


@dataclass(frozen=True, eq=False)
class Slot:
    """A place where a module keeps a tensor, and the tensor that it held when the place was found."""

    name: str
    table: dict[str, Any]
    """Dict of the module that holds the tensor under `key`: its parameters, its buffers or its attributes."""
    key: str
    tensor: torch.Tensor
    """Tensor that the place held when it was found."""
    data: torch.Tensor
    """Another tensor over the memory that `tensor` had when it was found; keeps this memory even when `tensor` gets
    other memory.
    """
    registered: bool
    """Whether the tensor is a parameter or a buffer of the module, and not merely an attribute."""

    @property
    def place(self) -> tuple[int, str]:
        """Identity of the place: two slots that were found in the same place have equal identities."""
        return id(self.table), self.key

    def is_as_found(self) -> bool:
        """Returns whether the place still holds the same tensor, with the same memory, dtype, shape and strides."""
        now, data = self.table.get(self.key), self.data
        return (
            now is self.tensor
            and now.data_ptr() == data.data_ptr()
            and (now.dtype, now.shape, now.stride()) == (data.dtype, data.shape, data.stride())
        )

    def put_back(self) -> None:
        """Puts the tensor that was found back into the place, and gives the tensor the memory that it had then. Does
        not restore the bytes in this memory.
        """
        if not self.is_as_found():
            self.tensor.data = self.data
            self.table[self.key] = self.tensor


def slots(module: torch.nn.Module, prefix: str = "") -> Iterator[Slot]:
    """Yields every place where `module`, its submodules, or the objects `impl` and `quant_method` of these modules keep
    a tensor. Names start with `prefix`.
    """
    seen: set[int] = set()
    for module_name, part in module.named_modules(prefix=prefix):
        tables: list[tuple[str, dict[str, Any], bool]] = [("", part._parameters, True), ("", part._buffers, True)]
        tables.append(("", vars(part), False))
        tables += [(f"{owner}.", vars(vars(part)[owner]), False) for owner in _OWNERS if _has_dict(part, owner)]
        for start, table, registered in tables:
            if id(table) in seen:
                continue
            seen.add(id(table))
            for key, value in table.items():
                if isinstance(value, torch.Tensor):
                    name = f"{module_name}.{start}{key}".removeprefix(".")
                    yield Slot(name, table, key, value, value.detach(), registered)


def _has_dict(module: torch.nn.Module, key: str) -> bool:
    return hasattr(vars(module).get(key), "__dict__") and not isinstance(vars(module)[key], torch.nn.Module)

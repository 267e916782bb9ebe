# SPDX-License-Identifier: Apache-2.0
"""Finds the tensors that a module of an engine reaches through its attributes, and restores what was changed there."""

from __future__ import annotations

from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

_OPAQUE = (torch.nn.Module, type, ModuleType, torch.dtype, torch.device, str, bytes, int, float)
_INTERNAL = frozenset(vars(torch.nn.Module()))


class Reached:
    """Finds everything that a module reaches through its attributes, parameters and buffers, but not through
    submodules: `tensors` has the tensors by path ("quant_method.scale"). Also remembers the objects on the way, because
    post-processing changes these as well (methods of quantisation, kernels).
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._tables: list[tuple[Any, Any]] = [(vars(module), dict(vars(module)))]
        attributes = {key: value for key, value in vars(module).items() if key not in _INTERNAL}
        left: list[tuple[str, Any]] = [("", attributes), ("", module._buffers), ("", module._parameters)]
        seen: set[int] = set()
        while left:
            path, value = left.pop()
            if isinstance(value, torch.Tensor):
                if value.layout == torch.strided:
                    self.tensors.setdefault(path, value.detach())
            elif value is not None and not isinstance(value, _OPAQUE) and id(value) not in seen:
                seen.add(id(value))
                left += reversed([(f"{path}.{key}".removeprefix("."), each) for key, each in self._inside(value)])

    def put_back(self) -> None:
        """Restores the contents that every reached object had when this `Reached` was made. Objects with unchanged
        contents are not touched.
        """
        for table, before in self._tables:
            if isinstance(table, list):
                if list(map(id, table)) != list(map(id, before)):
                    table[:] = before
            elif table.keys() != before.keys() or any(table[key] is not value for key, value in before.items()):
                table.clear()
                table.update(before)

    def _inside(self, value: Any) -> list[tuple[object, Any]]:
        """Returns (name, value) of everything that an object holds, and remembers the object's contents for
        `put_back`.
        """
        if isinstance(value, dict):
            self._tables.append((value, dict(value)))
            return list(value.items())
        if isinstance(value, list):
            self._tables.append((value, list(value)))
        if isinstance(value, (list, tuple)):
            return list(enumerate(value))
        if isinstance(value, FunctionType):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            return [(name, cell.cell_contents) for name, cell in cells if not _is_empty(cell)]
        if isinstance(value, MethodType):
            return [("self", value.__self__)]
        if not hasattr(value, "__dict__"):
            return []
        self._tables.append((vars(value), dict(vars(value))))
        return list(vars(value).items())


def _is_empty(cell: CellType) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:
        return True

# SPDX-License-Identifier: Apache-2.0
"""Weights that a framework hands over whole, tensor by tensor, and copies of them that keep their addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from sparsecast.errors import UsageError

Rename = Mapping[str, str | None] | Callable[[str], str | None]
"""Name of a tensor at the engines, or None to leave it out. A dict lists only the names that differ."""

WireDtype = torch.dtype | Callable[[str, torch.Tensor], torch.dtype | None]
"""Dtype in which the engines hold a tensor; None: the dtype that it has."""

_SHOWN = 4


class GatheredWeights:
    """Copies of the weights in host memory, in the dtype of the engines, at addresses that never change.

    A framework yields temporary tensors (a gathered parameter, or an adapter that is merged for a moment), while a
    publisher needs the same memory at every sync. Therefore rank 0 keeps these copies, and the publisher compares them
    with its own copy of what the engines hold.

    wire_dtype   dtype in which the engines hold each tensor (`WireDtype`); None: the dtype that it has.
    rename       name of each tensor at the engines (`Rename`); None: the name that it has.

    The calls of `take` before `seal` define the names, shapes and dtypes; later calls must have the same.
    """

    def __init__(self, wire_dtype: WireDtype | None = None, rename: Rename | None = None) -> None:
        self._wire_dtype = wire_dtype
        self._rename = rename
        self._tensors: dict[str, torch.Tensor] = {}
        self._sealed = False

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The copies, by the name of the tensor at the engines."""
        return self._tensors

    @property
    def sealed(self) -> bool:
        """Whether `seal` was called, so that the names of all tensors are known."""
        return self._sealed

    def seal(self) -> None:
        """Declares that all tensors are known: later calls of `take` cannot add any. Raises UsageError if there are
        none.
        """
        if not self._tensors:
            raise UsageError("there are no weights to send: every parameter is frozen, or left out by rename")
        self._sealed = True

    def take(self, named: Iterable[tuple[str, torch.Tensor]], *, complete: bool = True) -> None:
        """Copies every tensor of `named`.

        complete   whether `named` must contain all tensors; this is checked only after `seal`.

        `named` is read to its end even after an error (`drain`). Raises UsageError for names or shapes that differ from
        those of earlier calls.
        """
        iterator = iter(named)
        try:
            self._copy(iterator, complete)
        finally:
            drain(iterator)

    def _copy(self, named: Iterable[tuple[str, torch.Tensor]], complete: bool) -> None:
        seen: set[str] = set()
        for given, tensor in named:
            name = self._name(given)
            if name is None:
                continue
            if name in seen:
                raise UsageError(f"two tensors are named '{name}'")
            seen.add(name)
            self._write(name, tensor)
        if complete and self._sealed and len(seen) != len(self._tensors):
            raise UsageError(f"tensors of the first sync are missing: {_listed(set(self._tensors) - seen)}")

    def _name(self, given: str) -> str | None:
        if self._rename is None:
            return given
        return self._rename(given) if callable(self._rename) else self._rename.get(given, given)

    def _write(self, name: str, tensor: torch.Tensor) -> None:
        copy = self._tensors.get(name)
        if copy is None:
            if self._sealed:
                raise UsageError(f"the tensor '{name}' was not there at the first sync; make a new trainer")
            copy = torch.empty(tensor.shape, dtype=self._dtype(name, tensor), device="cpu")
            self._tensors[name] = copy
        if copy.shape != tensor.shape:
            raise UsageError(f"the tensor '{name}' has the shape {list(tensor.shape)}, and had {list(copy.shape)}")
        with torch.no_grad():
            copy.copy_(tensor)

    def _dtype(self, name: str, tensor: torch.Tensor) -> torch.dtype:
        dtype = self._wire_dtype(name, tensor) if callable(self._wire_dtype) else self._wire_dtype
        if dtype is None or not (tensor.is_floating_point() and dtype.is_floating_point):
            return tensor.dtype
        return dtype


def drain(named: Iterable[object]) -> None:
    """Reads `named` to its end and drops its items: the other ranks take part in its gathers, and a framework may undo
    the merge of an adapter when the iterator ends.
    """
    for _ in named:
        pass


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:_SHOWN]) + (f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else "")

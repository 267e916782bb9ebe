"""What a step of :class:`Transforms` is."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .._core import Box


@dataclass(frozen=True)
class TensorSpec:
    """A canonical tensor: its name, dtype (as safetensors names it) and whole shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A box of a tensor that this rank holds, and where a step writes what becomes of it."""

    local: torch.Tensor  #: Not to be changed.
    box: Box
    outputs: Sequence[torch.Tensor]  #: Contiguous, of the extents of Transform.boxes.


class Transform(Protocol):
    """A step of :class:`Transforms`."""

    def specs(self, spec: TensorSpec) -> list[TensorSpec] | None:
        """The canonical tensors that this one becomes; None: it is left as it is."""

    def boxes(self, spec: TensorSpec, box: Box) -> list[Box]:
        """Of each of them, what a rank holds that has ``box`` of ``spec``."""

    def run(self, spec: TensorSpec, pieces: Sequence[Piece]) -> None:
        """Writes the outputs of all pieces that this rank has of one tensor; there may be none."""

    def reads_packed(self, spec: TensorSpec) -> bool:
        """The local tensor is the step's own storage, not ``box`` of a tensor of ``spec.dtype``."""


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

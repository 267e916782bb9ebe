# SPDX-License-Identifier: Apache-2.0
"""Interface of a step of :class:`Transforms`."""

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
    """A box of a tensor that this rank holds, and the memory for the results of a step."""

    local: torch.Tensor  #: Not to be changed.
    box: Box
    outputs: Sequence[torch.Tensor]  #: Contiguous, of the extents of Transform.boxes.


class Transform(Protocol):
    """A step of :class:`Transforms`."""

    def specs(self, spec: TensorSpec) -> list[TensorSpec] | None:
        """Returns the canonical tensors that a step makes of this one; None if it does not apply."""

    def boxes(self, spec: TensorSpec, box: Box) -> list[Box]:
        """Returns, for each of them, the box of a rank that holds ``box`` of ``spec``."""

    def run(self, spec: TensorSpec, pieces: Sequence[Piece]) -> None:
        """Writes the outputs of all pieces of one tensor on this rank; there may be none."""

    def reads_packed(self, spec: TensorSpec) -> bool:
        """Whether the local tensor is storage that only this step understands, not ``box`` of a tensor of
        ``spec.dtype``.
        """


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

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
    """A box of a tensor that this rank holds: its elements (``local``), and the memory into which a step writes the
    results.
    """

    local: torch.Tensor  #: Elements of the box; a step must not change them.
    box: Box
    outputs: Sequence[torch.Tensor]  #: Contiguous tensors with the extents that Transform.boxes returns.


class Transform(Protocol):
    """A step of :class:`Transforms`: makes one or more canonical tensors from a canonical tensor."""

    def specs(self, spec: TensorSpec) -> list[TensorSpec] | None:
        """Returns the canonical tensors that this step makes from ``spec``; None if the step does not apply to it."""

    def boxes(self, spec: TensorSpec, box: Box) -> list[Box]:
        """Returns, for each of the tensors of ``specs(spec)``, the box that a rank gets if it holds ``box`` of
        ``spec``.
        """

    def run(self, spec: TensorSpec, pieces: Sequence[Piece]) -> None:
        """Writes the outputs of all pieces that this rank holds of the tensor ``spec``; ``pieces`` may be empty."""

    def reads_packed(self, spec: TensorSpec) -> bool:
        """Returns whether the local tensor is storage that only this step understands, and not the elements of a box in
        ``spec.dtype``.
        """


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Returns whether the name matches one of the patterns (fnmatch, case-sensitive)."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

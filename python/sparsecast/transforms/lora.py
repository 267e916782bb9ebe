# SPDX-License-Identifier: Apache-2.0
"""Merges adapters into their weights: LoRA, and QLoRA over a quantised base."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .._core import Box
from ..errors import UsageError
from .step import Piece, TensorSpec, matches_any

#: Number of elements of a merge that are in fp32 at one time: 64 MiB in addition to the shard.
_MERGE_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class LoraAdapter:
    """One adapter of a weight ``[out, in]``: ``scale * b @ a`` is added to it, with ``a`` ``[rank, in]`` and ``b``
    ``[out, rank]``.

    The tensors are the live ones of the trainer, of any floating dtype, on the device of the weight. A rank may hold
    parts: rows of ``b`` from ``row_offset`` on, columns of ``a`` from ``column_offset`` on; they must include those
    that its shard of the weight needs. ``scale`` is usually ``lora_alpha / rank``.
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float
    row_offset: int = 0
    column_offset: int = 0


class LoraMerge:
    """A step that computes ``W + scale * B @ A``, summed in fp32 over the adapters of a weight in order, and casts it
    to the dtype of W.

    ``adapters`` maps canonical names of matrices to their adapters. The base W is only read. A shard uses the rows of B
    and the columns of A that it needs. The products are those of fp32 matmul in torch: if TF32 is allowed on a device,
    they use TF32. Raises UsageError naming the tensor if shapes do not fit.
    """

    def __init__(self, adapters: Mapping[str, Sequence[LoraAdapter]]) -> None:
        self._adapters = {name: list(of) for name, of in adapters.items()}

    def specs(self, spec: TensorSpec) -> list[TensorSpec] | None:
        adapters = self._adapters.get(spec.name)
        if not adapters:
            return None
        for adapter in adapters:
            self._check(spec, adapter)
        return [spec]

    def boxes(self, spec: TensorSpec, box: Box) -> list[Box]:
        return [box]

    def reads_packed(self, spec: TensorSpec) -> bool:
        return False

    def run(self, spec: TensorSpec, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._merge(spec, piece.local, piece.box, piece.outputs[0])

    def _merge(self, spec: TensorSpec, local: torch.Tensor, box: Box, out: torch.Tensor) -> None:
        parts = [self._part(spec, adapter, box) for adapter in self._adapters.get(spec.name, ())]
        if not parts:
            out.copy_(local)
            return
        columns = box.extent[1]
        step = max(1, _MERGE_ELEMENTS // max(1, columns))
        for begin in range(0, box.extent[0], step):
            rows = slice(begin, begin + step)
            merged = local[rows].to(torch.float32, copy=True)
            for scale, a, b in parts:
                merged.addmm_(b[rows].float(), a, alpha=scale)
            out[rows].copy_(merged)

    def _check(self, spec: TensorSpec, adapter: LoraAdapter) -> None:
        if len(spec.shape) != 2:
            raise UsageError(f"an adapter needs a matrix, not the shape {list(spec.shape)}", f"tensor '{spec.name}'")
        if adapter.a.dim() != 2 or adapter.b.dim() != 2 or adapter.a.shape[0] != adapter.b.shape[1]:
            shapes = f"{list(adapter.a.shape)} and {list(adapter.b.shape)}"
            raise UsageError(f"A and B of shapes {shapes} are not [rank, in] and [out, rank]", f"tensor '{spec.name}'")

    def _part(self, spec: TensorSpec, adapter: LoraAdapter, box: Box) -> tuple[float, torch.Tensor, torch.Tensor]:
        """Returns the scale of an adapter, and the columns of A (as fp32) and rows of B that ``box`` of the weight
        needs. Raises UsageError if this rank does not hold them.
        """
        a_begin = box.offset[1] - adapter.column_offset
        b_begin = box.offset[0] - adapter.row_offset
        a_end, b_end = a_begin + box.extent[1], b_begin + box.extent[0]
        if a_begin < 0 or a_end > adapter.a.shape[1] or b_begin < 0 or b_end > adapter.b.shape[0]:
            raise UsageError(
                f"{box} needs rows and columns that its adapter does not hold here: B {list(adapter.b.shape)} from row "
                f"{adapter.row_offset}, A {list(adapter.a.shape)} from column {adapter.column_offset}",
                f"tensor '{spec.name}'",
            )
        a = adapter.a.detach()[:, a_begin:a_end].float()
        return adapter.scale, a, adapter.b.detach()[b_begin:b_end]


#: Takes a tensor's name, this rank's stored tensor, and the box of the weight for which it stands; returns the elements
#: of the box as a floating tensor.
Dequantize = Callable[[str, torch.Tensor, Box], torch.Tensor]


class DequantizeMerge(LoraMerge):
    """A step for QLoRA: calls the caller's ``dequantize`` on the stored base, then merges as :class:`LoraMerge` does.

    Applies to the tensors whose names match ``patterns`` (fnmatch) or that have adapters. The canonical tensor is the
    *weight* (its real shape, and the dtype that the engine holds). The local tensor is how this rank stores its box of
    the weight: 4-bit blocks in U8, for example. ``dequantize`` returns a floating tensor of the extent of the box.
    """

    def __init__(
        self,
        dequantize: Dequantize,
        adapters: Mapping[str, Sequence[LoraAdapter]],
        patterns: Sequence[str] = (),
    ) -> None:
        super().__init__(adapters)
        self._dequantize = dequantize
        self._patterns = list(patterns)

    def specs(self, spec: TensorSpec) -> list[TensorSpec] | None:
        merged = super().specs(spec)
        return [spec] if merged is None and matches_any(spec.name, self._patterns) else merged

    def reads_packed(self, spec: TensorSpec) -> bool:
        return True

    def _merge(self, spec: TensorSpec, local: torch.Tensor, box: Box, out: torch.Tensor) -> None:
        weight = self._dequantize(spec.name, local, box)
        if tuple(weight.shape) != tuple(box.extent) or not weight.is_floating_point():
            raise UsageError(
                f"dequantize gave {weight.dtype} {list(weight.shape)} for {box}: a floating tensor of its extent is due",
                f"tensor '{spec.name}'",
            )
        super()._merge(spec, weight, box, out)

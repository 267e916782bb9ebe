# SPDX-License-Identifier: Apache-2.0
"""fp8 block quantisation of shards, in the format of DeepSeek's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .. import _core
from .._core import Box
from ..buffers import describe
from ..errors import UsageError
from .step import Piece, TensorSpec, matches_any

#: What checkpoints in DeepSeek's format keep as it is.
KEPT_BY_DEFAULT = ("*embed_tokens*", "*lm_head*", "*norm*", "*.mlp.gate.weight", "*.router.*", "*.bias")


@dataclass(frozen=True)
class Fp8BlockQuantize:
    """Quantises matrices to F8_E4M3 with one fp32 ``<name>_scale_inv`` for each block, as in DeepSeek's checkpoints.

    Applies to every bf16, fp16 or fp32 tensor of two dimensions, or of three (stacked experts, each a matrix), whose
    name matches none of ``skip`` (fnmatch). The arithmetic is that of ``sparsecast/quantize.hpp``. The block grid is
    that of the whole matrix. Without ``group``, the pieces of a tensor on this rank must together hold whole blocks;
    UsageError names a shard that splits one. With ``group``, a ``torch.distributed`` group of all ranks that share the
    tensor, every rank calls for the same tensors in the same order, including those of which it holds nothing, and the
    amax of every block is the maximum over the ranks (one all-reduce of the grid, within the timeout of the group).
    ``threads`` is the number of CPU threads; 0 means all cores.
    """

    skip: Sequence[str] = KEPT_BY_DEFAULT
    block: tuple[int, int] = (128, 128)
    group: torch.distributed.ProcessGroup | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        if len(self.block) != 2 or min(self.block) < 1:
            raise UsageError(f"a block of {self.block}: two positive numbers are due")

    def specs(self, spec: TensorSpec) -> list[TensorSpec] | None:
        if (
            spec.dtype not in ("BF16", "F16", "F32")
            or len(spec.shape) not in (2, 3)
            or matches_any(spec.name, self.skip)
        ):
            return None
        scales = (*spec.shape[:-2], *self._grid(spec.shape[-2:]))
        return [
            TensorSpec(spec.name, "F8_E4M3", spec.shape),
            TensorSpec(f"{spec.name}_scale_inv", "F32", scales),
        ]

    def boxes(self, spec: TensorSpec, box: Box) -> list[Box]:
        if 0 in box.extent:
            return [box, Box((0,) * len(box.offset), (0,) * len(box.extent))]
        offset, extent = list(box.offset), list(box.extent)
        for dim, block in zip((-2, -1), self.block, strict=True):
            first, end = box.offset[dim] // block, -(-(box.offset[dim] + box.extent[dim]) // block)
            offset[dim], extent[dim] = first, end - first
        return [box, Box(offset, extent)]

    def reads_packed(self, spec: TensorSpec) -> bool:
        return False

    def run(self, spec: TensorSpec, pieces: Sequence[Piece]) -> None:
        amax = self._amax(spec, pieces) if self.group is not None or self._joined(spec, pieces) else None
        for piece in pieces:
            if piece.local.numel() == 0:
                continue
            fp8, scales = (_matrices(out) for out in piece.outputs)
            with _on_device(piece.local) as stream:
                for index, matrix in enumerate(_matrices(piece.local)):
                    _core.quantize_blocks(
                        describe(matrix),
                        describe(fp8[index]),
                        describe(scales[index]),
                        None if amax is None else describe(self._of_piece(spec, amax, piece.box, index)),
                        **self._place(spec, piece.box),
                        threads=self.threads,
                        stream=stream,
                    )

    def _grid(self, matrix: Sequence[int]) -> tuple[int, ...]:
        return tuple(-(-extent // block) for extent, block in zip(matrix, self.block, strict=True))

    def _place(self, spec: TensorSpec, box: Box) -> dict[str, Any]:
        offset = (box.offset[-2], box.offset[-1])
        return {"name": f"{spec.name} {box}", "shape": spec.shape[-2:], "offset": offset, "block": self.block}

    def _joined(self, spec: TensorSpec, pieces: Sequence[Piece]) -> bool:
        """Handles pieces that split blocks but hold whole blocks together: heads of one KV group after another."""
        if all(
            _core.block_grid(describe(m), **self._place(spec, p.box))[2] for p in pieces for m in _matrices(p.local)[:1]
        ):
            return False
        matrices = spec.shape[0] if len(spec.shape) == 3 else 1
        held = torch.zeros((matrices, *self._grid(spec.shape[-2:])), dtype=torch.int64)
        for piece in pieces:
            for index in range(len(_matrices(piece.local))):
                rows, columns = (
                    _overlaps(piece.box.offset[d], piece.box.extent[d], b)
                    for d, b in zip((-2, -1), self.block, strict=True)
                )
                self._window(spec, held, piece.box, index).add_(rows[:, None] * columns[None, :])
        rows, columns = (_overlaps(0, n, b) for n, b in zip(spec.shape[-2:], self.block, strict=True))
        return bool(((held == 0) | (held == rows[:, None] * columns[None, :])).all())

    def _of_piece(self, spec: TensorSpec, amax: torch.Tensor, box: Box, index: int) -> torch.Tensor:
        return self._window(spec, amax, box, index).contiguous()

    def _window(self, spec: TensorSpec, amax: torch.Tensor, box: Box, index: int) -> torch.Tensor:
        """Returns the range of blocks of the whole tensor that matrix ``index`` of a box touches."""
        scale_box = self.boxes(spec, box)[1]
        rows, columns = (slice(scale_box.offset[d], scale_box.offset[d] + scale_box.extent[d]) for d in (-2, -1))
        return amax[(box.offset[0] if len(spec.shape) == 3 else 0) + index, rows, columns]

    def _amax(self, spec: TensorSpec, pieces: Sequence[Piece]) -> torch.Tensor:
        """Returns the amax of every block of the whole tensor, [matrices, rows, columns], over all pieces and the
        group.
        """
        matrices = spec.shape[0] if len(spec.shape) == 3 else 1
        amax = torch.zeros((matrices, *self._grid(spec.shape[-2:])), dtype=torch.float32, device=self._device(pieces))
        for piece in pieces:
            if piece.local.numel() == 0:
                continue
            with _on_device(piece.local) as stream:
                for index, matrix in enumerate(_matrices(piece.local)):
                    window = self._window(spec, amax, piece.box, index)
                    own = torch.empty(window.shape, dtype=torch.float32, device=amax.device)
                    place = self._place(spec, piece.box)
                    _core.block_amax(describe(matrix), describe(own), **place, threads=self.threads, stream=stream)
                    torch.maximum(window, own, out=window)
        if self.group is not None:
            torch.distributed.all_reduce(amax, torch.distributed.ReduceOp.MAX, group=self.group)
        return amax

    def _device(self, pieces: Sequence[Piece]) -> torch.device:
        if pieces:
            return pieces[0].local.device
        nccl = self.group is not None and torch.distributed.get_backend(self.group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


def _overlaps(offset: int, extent: int, block: int) -> torch.Tensor:
    """Returns, for each block that elements [offset, offset + extent) touch, how many of them it holds."""
    end = offset + extent
    blocks = range(offset // block, -(-end // block)) if extent else range(0)
    return torch.tensor([min(end, (b + 1) * block) - max(offset, b * block) for b in blocks], dtype=torch.int64)


def _matrices(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Yields a matrix, or each matrix of a stack."""
    return [tensor] if tensor.dim() == 2 else list(tensor)


@contextmanager
def _on_device(tensor: torch.Tensor) -> Iterator[int]:
    """Makes the device of a CUDA tensor current and yields the handle of the current torch stream on it; 0 on the CPU."""
    if not tensor.is_cuda:
        yield 0
        return
    with torch.cuda.device(tensor.device):
        yield int(torch.cuda.current_stream().cuda_stream)

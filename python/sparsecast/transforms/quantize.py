# SPDX-License-Identifier: Apache-2.0
"""Quantisation of shards to the formats of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .. import _core
from .._core import Box
from ..buffers import describe
from ..errors import UsageError
from .formats import QuantFormat, fp8_blocks
from .step import Piece, TensorSpec, matches_any

#: Patterns of the names of tensors that quantised checkpoints keep as they are.
KEPT_BY_DEFAULT = ("*embed_tokens*", "*lm_head*", "*norm*", "*.mlp.gate.weight", "*.router.*", "*.bias")

_ROWS = _core.QuantFormat(block=(1, None))


class Quantize:
    """A step that quantises matrices to ``format``: to a tensor of elements, a tensor of scales, and the further
    tensors of the format.

    Applies to every bf16, fp16 or fp32 tensor of two dimensions, or of three (stacked experts, each a matrix), whose
    name matches none of ``skip`` (fnmatch). The arithmetic is that of ``sparsecast/quantize.hpp``. Blocks are counted
    from the origin of the whole matrix, not of a shard. Raises UsageError naming a matrix whose columns are not whole
    groups of the format.

    Without ``group``, the pieces of a tensor on this rank must together hold whole blocks; UsageError names a shard
    that splits one. With ``group``, a ``torch.distributed`` group of all ranks that share the tensor, every rank must
    call the step for the same tensors in the same order, including tensors of which it holds nothing, and always with
    the same boxes. The first call finds out whether any rank splits a block (an all-reduce of one number, and a wait
    for it); if so, the amax of every block is the maximum over the ranks (one all-reduce of the grid at every call).

    Formats with a global scale (NVFP4) compute it again at every call, over the whole tensor: over the pieces of this
    rank if they hold all of it, or over ``group`` (one all-reduce of one number per matrix). ``global_scales`` has, by
    the name of the weight, fixed global scales that are used instead: a number, or one per matrix of a stack. Weights
    that are too large for a fixed scale saturate. ``threads`` is the number of CPU threads; 0 means all cores.
    """

    def __init__(
        self,
        format: QuantFormat,
        skip: Sequence[str] = KEPT_BY_DEFAULT,
        group: torch.distributed.ProcessGroup | None = None,
        threads: int = 1,
        global_scales: Mapping[str, float | Sequence[float]] | None = None,
    ):
        if any(extent is not None and extent < 1 for extent in format.block):
            raise UsageError(f"a block of {format.block}: two positive numbers are due")
        if global_scales is not None and not format.has_global_scale:
            raise UsageError(f"{format.element} with scales in {format.scale} has no global scale")
        self.format, self.skip, self.group, self.threads = format, skip, group, threads
        self._global_scales = None if global_scales is None else {n: _numbers(n, s) for n, s in global_scales.items()}
        self._splits: dict[str, bool] = {}

    def specs(self, spec: TensorSpec) -> list[TensorSpec] | None:
        if (
            spec.dtype not in ("BF16", "F16", "F32")
            or len(spec.shape) not in (2, 3)
            or matches_any(spec.name, self.skip)
        ):
            return None
        fmt, stack = self.format, spec.shape[:-2]
        rows, columns = spec.shape[-2:]
        group = fmt.block[1]
        if fmt.block[0] == 1 and group is not None and columns % group != 0:
            words = f"{columns} columns are not whole groups of {group}; `skip` leaves a tensor as it is"
            raise UsageError(words, f"tensor '{spec.name}'")
        of_scales = fmt.number_shape if fmt.one_scale else self._grid(spec)
        specs = [
            TensorSpec(
                spec.name + fmt.elements_suffix, fmt.element_dtype, (*stack, rows, columns // fmt.in_one, *fmt.word)
            ),
            TensorSpec(spec.name + fmt.scales_suffix, fmt.scale_dtype, (*stack, *of_scales)),
        ]
        if fmt.has_global_scale:
            specs.append(TensorSpec(spec.name + fmt.global_suffix, "F32", (*stack, *fmt.number_shape)))
        if fmt.has_shape:
            specs.append(TensorSpec(f"{spec.name}_shape", "I64", (len(spec.shape),)))
        return specs

    def boxes(self, spec: TensorSpec, box: Box) -> list[Box]:
        fmt, empty = self.format, 0 in box.extent
        if box.offset[-1] % fmt.in_one or box.extent[-1] % fmt.in_one:
            words = f"{box} does not hold whole numbers of {fmt.in_one} elements along the columns"
            raise UsageError(words, f"tensor '{spec.name}'")
        offset, extent = list(box.offset), list(box.extent)
        offset[-1], extent[-1] = offset[-1] // fmt.in_one, extent[-1] // fmt.in_one
        elements = Box((*offset, *(0 for _ in fmt.word)), (*extent, *fmt.word))
        boxes = [elements]
        if fmt.one_scale:
            boxes.append(self._numbers_box(spec, box))
        else:
            boxes.append(_nothing(len(box.offset)) if empty else self._scales_box(spec, box))
        if fmt.has_global_scale:
            boxes.append(self._numbers_box(spec, box))
        if fmt.has_shape:
            boxes.append(Box((0,), (0 if empty else len(spec.shape),)))
        return boxes

    def _numbers_box(self, spec: TensorSpec, box: Box) -> Box:
        """Returns a box of the tensor that has one number per matrix of the weight: the part for the matrices in
        ``box``, which this rank holds of the weight. The result is empty if ``box`` is. Raises UsageError if that is
        not possible.
        """
        stack, number = len(spec.shape) - 2, self.format.number_shape
        if 0 not in box.extent:
            return Box((*box.offset[:stack], *(0 for _ in number)), (*box.extent[:stack], *number))
        if stack + len(number) == 0:
            words = "a rank that holds nothing of it cannot leave out a scale without dimensions: number_shape=(1,)"
            raise UsageError(words, f"tensor '{spec.name}'")
        return _nothing(stack + len(number))

    def reads_packed(self, spec: TensorSpec) -> bool:
        return False

    def run(self, spec: TensorSpec, pieces: Sequence[Piece]) -> None:
        fmt = self.format
        amax = self._amax(spec, pieces) if not fmt.one_scale and self._exchanges(spec, pieces) else None
        kept = self._kept_global_scales(spec)
        of_matrices = fmt.one_scale or (fmt.has_global_scale and kept is None)
        tensor_amax = self._tensor_amax(spec, pieces) if of_matrices else None
        inverse = self._inverse_scales(kept, tensor_amax, self._device(pieces)) if fmt.inverse_global else None
        for piece in pieces:
            if piece.local.numel() == 0:
                continue
            elements = _matrices(self._numbers_in(piece.outputs[0]))
            scales = self._scale_matrices(piece)
            first = piece.box.offset[0] if len(spec.shape) == 3 else 0
            if self.format.has_shape:
                piece.outputs[-1].copy_(torch.tensor(spec.shape))
            with _on_device(piece.local) as stream:
                for index, matrix in enumerate(_matrices(piece.local)):
                    given: dict[str, Any] = {}
                    if fmt.has_global_scale:
                        global_scale = piece.outputs[2].view(-1)[index : index + 1]
                        given["global_scale"] = describe(global_scale)
                        if inverse is not None:
                            global_scale.copy_(inverse[first + index].reciprocal())
                        elif kept is not None:
                            global_scale.fill_(kept[first + index])
                    if amax is not None:
                        given["amax"] = describe(self._of_piece(spec, amax, piece.box, index))
                    if tensor_amax is not None and inverse is None:
                        of_matrix = tensor_amax[first + index : first + index + 1]
                        if fmt.one_scale:
                            given["amax"] = describe(of_matrix.expand(scales[index].shape).contiguous())
                        else:
                            given["tensor_amax"] = describe(of_matrix)
                    _core.quantize(
                        describe(matrix),
                        describe(elements[index]),
                        describe(scales[index]),
                        self.format.core,
                        **given,
                        **self._place(spec, piece.box),
                        threads=self.threads,
                        stream=stream,
                    )
            if fmt.one_scale:
                piece.outputs[1].view(-1).copy_(torch.stack([rows[0, 0] for rows in scales]))
            if inverse is not None:
                stored = piece.outputs[2].view(-1)
                stored.copy_(inverse[first : first + len(stored)])

    def _inverse_scales(
        self, kept: list[float] | None, tensor_amax: torch.Tensor | None, device: torch.device
    ) -> torch.Tensor:
        """Returns, for formats that store the inverse of the global scale, the stored number of each matrix: the
        inverse of its scale in ``kept``, or else amax / (448 * 6), or 1 for a matrix of zeros. The global scale is the
        reciprocal of the stored number.
        """
        if kept is not None:
            return torch.tensor(kept, device=device).reciprocal()
        assert tensor_amax is not None
        least = torch.finfo(torch.float32).tiny
        return torch.where(tensor_amax > 0, (tensor_amax / (448 * 6)).clamp(min=least), 1.0)

    def _scale_matrices(self, piece: Piece) -> list[torch.Tensor]:
        """Returns the memory into which the scales of each matrix are written; if a matrix has one scale, new memory
        with a scale for each row.
        """
        if not self.format.one_scale:
            return _matrices(piece.outputs[1])
        shape, memory = (piece.box.extent[-2], 1), piece.outputs[1]
        return [memory.new_empty(shape) for _ in _matrices(piece.local)]

    def _numbers_in(self, elements: torch.Tensor) -> torch.Tensor:
        """Returns the tensor of elements in the form that ``_core.quantize`` takes: for INT4, its words as int32."""
        return elements.view(torch.int32).squeeze(-1) if self.format.word else elements

    def _block(self, spec: TensorSpec) -> tuple[int, int]:
        return self.format.block_of(*spec.shape[-2:])

    def _grid(self, spec: TensorSpec) -> tuple[int, ...]:
        return tuple(-(-extent // block) for extent, block in zip(spec.shape[-2:], self._block(spec), strict=True))

    def _scales_box(self, spec: TensorSpec, box: Box) -> Box:
        offset, extent = list(box.offset), list(box.extent)
        for dim, block in zip((-2, -1), self._block(spec), strict=True):
            first, end = box.offset[dim] // block, -(-(box.offset[dim] + box.extent[dim]) // block)
            offset[dim], extent[dim] = first, end - first
        return Box(offset, extent)

    def _place(self, spec: TensorSpec, box: Box) -> dict[str, Any]:
        offset = (box.offset[-2], box.offset[-1])
        return {"name": f"{spec.name} {box}", "shape": spec.shape[-2:], "offset": offset}

    def _kept_global_scales(self, spec: TensorSpec) -> list[float] | None:
        """Returns the global scale that the caller keeps for each matrix of the tensor; None if they are computed at
        each call. Raises UsageError if there are too few or too many.
        """
        if self._global_scales is None:
            return None
        kept = self._global_scales.get(spec.name)
        if kept is None or len(kept) != _matrix_count(spec):
            words = f"`global_scales` has {0 if kept is None else len(kept)} numbers for it, not {_matrix_count(spec)}"
            raise UsageError(words, f"tensor '{spec.name}'")
        return kept

    def _exchanges(self, spec: TensorSpec, pieces: Sequence[Piece]) -> bool:
        """Returns whether the amax of a block must be taken over all pieces and ranks, because some of them hold only
        part of it. With a group, the first call for a tensor is collective.
        """
        if self.group is None:
            return self._splits_blocks(spec, pieces) and self._joined(spec, pieces)
        if spec.name not in self._splits:
            split = torch.tensor([float(self._splits_blocks(spec, pieces))], device=self._device(pieces))
            torch.distributed.all_reduce(split, torch.distributed.ReduceOp.MAX, group=self.group)
            self._splits[spec.name] = bool(split.item())
        return self._splits[spec.name]

    def _splits_blocks(self, spec: TensorSpec, pieces: Sequence[Piece]) -> bool:
        return not all(
            _core.block_grid(describe(m), self.format.core, **self._place(spec, p.box))[2]
            for p in pieces
            for m in _matrices(p.local)[:1]
        )

    def _joined(self, spec: TensorSpec, pieces: Sequence[Piece]) -> bool:
        """Returns whether the pieces, which split blocks, together hold only whole blocks: every element of a block or
        none. Consecutive heads of one KV group are such pieces.
        """
        block = self._block(spec)
        held = torch.zeros((_matrix_count(spec), *self._grid(spec)), dtype=torch.int64)
        for piece in pieces:
            for index in range(len(_matrices(piece.local))):
                rows, columns = (
                    _overlaps(piece.box.offset[d], piece.box.extent[d], b) for d, b in zip((-2, -1), block, strict=True)
                )
                self._window(spec, held, piece.box, index).add_(rows[:, None] * columns[None, :])
        rows, columns = (_overlaps(0, n, b) for n, b in zip(spec.shape[-2:], block, strict=True))
        return bool(((held == 0) | (held == rows[:, None] * columns[None, :])).all())

    def _of_piece(self, spec: TensorSpec, amax: torch.Tensor, box: Box, index: int) -> torch.Tensor:
        return self._window(spec, amax, box, index).contiguous()

    def _window(self, spec: TensorSpec, amax: torch.Tensor, box: Box, index: int) -> torch.Tensor:
        """Returns a view of ``amax``, which has one number for each block of the whole tensor: the part of it for the
        blocks that matrix ``index`` of ``box`` touches.
        """
        scale_box = self._scales_box(spec, box)
        rows, columns = (slice(scale_box.offset[d], scale_box.offset[d] + scale_box.extent[d]) for d in (-2, -1))
        return amax[(box.offset[0] if len(spec.shape) == 3 else 0) + index, rows, columns]

    def _amax(self, spec: TensorSpec, pieces: Sequence[Piece]) -> torch.Tensor:
        """Returns the greatest magnitude in every block of the whole tensor, [matrices, rows, columns] of blocks, over
        all pieces and the ranks of the group.
        """
        shape = (_matrix_count(spec), *self._grid(spec))
        amax = torch.zeros(shape, dtype=torch.float32, device=self._device(pieces))
        for piece in pieces:
            if piece.local.numel() == 0:
                continue
            for index, matrix in enumerate(_matrices(piece.local)):
                window = self._window(spec, amax, piece.box, index)
                own = torch.empty(window.shape, dtype=torch.float32, device=amax.device)
                self._find_amax(spec, piece, matrix, own, self.format.core)
                torch.maximum(window, own, out=window)
        return self._over_group(amax)

    def _tensor_amax(self, spec: TensorSpec, pieces: Sequence[Piece]) -> torch.Tensor:
        """Returns the greatest finite magnitude in every matrix, [matrices], over all pieces and the ranks of the
        group. Raises UsageError if this rank holds only part of a matrix and there is no group.
        """
        amax = torch.zeros(_matrix_count(spec), dtype=torch.float32, device=self._device(pieces))
        held = [0] * len(amax)
        for piece in pieces:
            if piece.local.numel() == 0:
                continue
            first = piece.box.offset[0] if len(spec.shape) == 3 else 0
            for index, matrix in enumerate(_matrices(piece.local), first):
                held[index] += matrix.numel()
                rows = (piece.box.offset[-2], piece.box.extent[-2])
                own = torch.empty((rows[1], 1), dtype=torch.float32, device=amax.device)
                self._find_amax(spec, piece, matrix, own, _ROWS)
                torch.maximum(amax[index], own.max(), out=amax[index])
        if self.group is None and any(0 < n < math.prod(spec.shape[-2:]) for n in held):
            words = "a rank with a part of it cannot know the scale of the whole: give `group` or `global_scales`"
            if self.format.one_scale:
                words = words.removesuffix(" or `global_scales`")
            raise UsageError(words, f"tensor '{spec.name}'")
        return self._over_group(amax)

    def _find_amax(
        self, spec: TensorSpec, piece: Piece, matrix: torch.Tensor, out: torch.Tensor, core: _core.QuantFormat
    ) -> None:
        place = self._place(spec, piece.box)
        with _on_device(matrix) as stream:
            _core.block_amax(describe(matrix), describe(out), core, **place, threads=self.threads, stream=stream)

    def _over_group(self, amax: torch.Tensor) -> torch.Tensor:
        if self.group is not None:
            torch.distributed.all_reduce(amax, torch.distributed.ReduceOp.MAX, group=self.group)
        return amax

    def _device(self, pieces: Sequence[Piece]) -> torch.device:
        if pieces:
            return pieces[0].local.device
        nccl = self.group is not None and torch.distributed.get_backend(self.group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


class Fp8BlockQuantize(Quantize):
    """A step that quantises matrices to F8_E4M3 with one fp32 ``<name>_scale_inv`` for each block, as in DeepSeek's
    checkpoints.
    """

    def __init__(
        self,
        skip: Sequence[str] = KEPT_BY_DEFAULT,
        block: tuple[int, int] = (128, 128),
        group: torch.distributed.ProcessGroup | None = None,
        threads: int = 1,
    ):
        super().__init__(fp8_blocks(block), skip, group, threads)


def _numbers(name: str, scales: float | Sequence[float]) -> list[float]:
    numbers = [float(scale) for scale in (scales if isinstance(scales, Sequence) else [scales])]
    if any(not 0 < scale < math.inf for scale in numbers):
        raise UsageError(f"a global scale of {scales} is not positive and finite", f"tensor '{name}'")
    return numbers


def _nothing(dims: int) -> Box:
    return Box((0,) * dims, (0,) * dims)


def _matrix_count(spec: TensorSpec) -> int:
    return spec.shape[0] if len(spec.shape) == 3 else 1


def _overlaps(offset: int, extent: int, block: int) -> torch.Tensor:
    """Returns, for each block of ``block`` elements that the range [offset, offset + extent) touches, how many elements
    of the range lie in it.
    """
    end = offset + extent
    blocks = range(offset // block, -(-end // block)) if extent else range(0)
    return torch.tensor([min(end, (b + 1) * block) - max(offset, b * block) for b in blocks], dtype=torch.int64)


def _matrices(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the matrices of a tensor: itself, or each matrix of a stack."""
    return [tensor] if tensor.dim() == 2 else list(tensor)


@contextmanager
def _on_device(tensor: torch.Tensor) -> Iterator[int]:
    """Makes the device of a CUDA tensor current while the context lasts, and yields the handle of the current torch
    stream there. Yields 0 on the CPU.
    """
    if not tensor.is_cuda:
        yield 0
        return
    with torch.cuda.device(tensor.device):
        yield int(torch.cuda.current_stream().cuda_stream)

# SPDX-License-Identifier: Apache-2.0
"""Finds the parts of a DTensor that this rank holds, from its mesh and placements alone; nothing is gathered.

No placement is believed: the indices of each dimension, numbered, go through the placements in DTensor's order, as the
elements themselves did, and what is left must have the shape of the local tensor and begin where torch says it does.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .._core import Box
from ..errors import UnsupportedError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

#: Largest number of boxes of one tensor on one rank. Packed weights have one per part, views of heads one per head.
MAX_BOXES = 4096


class Piece(NamedTuple):
    """A box of a canonical tensor, and its place in the local tensor of this rank."""

    box: Box
    at: tuple[int, ...]  # index in the local tensor of the box's first element


def local_pieces(tensor: DTensor, name: str) -> list[Piece] | None:
    """Returns the boxes of the canonical tensor ``name`` that ``tensor.to_local()`` holds; None for a rank outside the
    mesh.

    Placements apply from the first mesh dimension to the last, as in DTensor. A strided placement (``_StridedShard``:
    FSDP2 over a dimension that tensor parallelism has split, packed weights, views of a sharded dimension) cuts each of
    ``split_factor`` parts of its dimension, so that a rank may hold several boxes. A dimension is cut into parts as
    ``torch.chunk`` cuts it: the last part may be smaller, or empty. Raises UnsupportedError naming the tensor for
    partial sums, for placements of other kinds, for a local tensor that does not have the shape that the placements
    leave, and for more than MAX_BOXES boxes.
    """
    from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    context = f"tensor '{name}'"
    cuts: list[list[tuple[int, int, int]]] = [[] for _ in tensor.shape]  # of each dimension: parts, index, split factor
    for mesh_dim, placement in enumerate(tensor.placements):
        if type(placement) not in (Shard, _StridedShard, Replicate):
            raise UnsupportedError(f"its placement {placement} is no shard and no copy", context)
        if type(placement) is not Replicate:
            factor = int(placement.split_factor) if type(placement) is _StridedShard else 1
            cuts[placement.dim % tensor.ndim].append((mesh.size(mesh_dim), coordinate[mesh_dim], factor))  # type: ignore[attr-defined]
    runs = [_runs(_left(length, cut)) for length, cut in zip(tensor.shape, cuts, strict=True)]
    extent = tuple(sum(length for _, length in of_dimension) for of_dimension in runs)
    local = tuple(tensor.to_local().shape)
    where = f"placements {tuple(tensor.placements)} of shape {tuple(tensor.shape)} on a mesh of {tuple(mesh.shape)} leave this rank"
    if local != extent:
        raise UnsupportedError(f"{where} {list(extent)}, but its local tensor is {list(local)}", context)
    if 0 in extent:
        return [Piece(Box([0] * tensor.ndim, list(extent)), (0,) * tensor.ndim)]
    _compare_with_torch(tensor, extent, [of_dimension[0][0] for of_dimension in runs], where, context)
    boxes = 1
    for of_dimension in runs:
        boxes *= len(of_dimension)
    if boxes > MAX_BOXES:
        raise UnsupportedError(f"{where} {boxes} boxes, more than {MAX_BOXES}", context)
    placed = [_placed(of_dimension) for of_dimension in runs]
    return [
        Piece(Box([begin for begin, _, _ in piece], [n for _, n, _ in piece]), tuple(at for _, _, at in piece))
        for piece in itertools.product(*placed)
    ]


def _left(length: int, cuts: list[tuple[int, int, int]]) -> torch.Tensor:
    """Returns the indices of a dimension of ``length`` elements that this rank holds after ``cuts``, in the order in
    which they lie in its local tensor. A cut is (number of parts, index of this rank's part, split factor).
    """
    numbers = torch.arange(length)
    for parts, index, factor in cuts:
        pieces = [_chunk(piece, parts, index) for piece in (_chunk(numbers, factor, i) for i in range(factor))]
        numbers = pieces[0] if factor == 1 else torch.cat(pieces)
    return numbers


def _chunk(numbers: torch.Tensor, parts: int, index: int) -> torch.Tensor:
    """Returns part ``index`` of the parts that torch.chunk makes when it cuts ``numbers`` into ``parts`` parts; empty
    if torch.chunk makes fewer parts.
    """
    begin, length = chunk_of(len(numbers), parts, index)
    return numbers.narrow(0, begin, length)


def chunk_of(length: int, parts: int, index: int) -> tuple[int, int]:
    """Returns (begin, length), in elements, of part ``index`` of the parts that torch.chunk makes when it cuts a
    dimension of ``length`` elements into ``parts`` parts. The length is 0 if torch.chunk makes fewer parts.
    """
    size = -(-length // parts)
    begin = min(size * index, length)
    return begin, min(size, length - begin)


def _runs(numbers: torch.Tensor) -> list[tuple[int, int]]:
    """Cuts a list of indices into runs of consecutive indices. Returns (first index, length) of each run."""
    if not len(numbers):
        return []
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.nonzero(numbers.diff() != 1).view(-1)])
    ends = [*starts[1:].tolist(), len(numbers)]
    return [(int(numbers[at]), end - at) for at, end in zip(starts.tolist(), ends, strict=True)]


def _placed(runs: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Returns (first index, length, begin in the local dimension) of each run. In the local tensor the runs lie one
    after another.
    """
    places = itertools.accumulate((length for _, length in runs), initial=0)
    return [(begin, length, at) for (begin, length), at in zip(runs, places, strict=False)]


def _compare_with_torch(tensor: Any, extent: tuple[int, ...], first: list[int], where: str, context: str) -> None:
    """Raises UnsupportedError unless torch itself computes, for this rank, the shape ``extent`` and the index ``first``
    of the first element. ``where`` and ``context`` are for the message.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(shape) != extent or list(offset) != first:
        words = f"{list(extent)} from element {first} on, but torch says {list(shape)} from {list(offset)} on"
        raise UnsupportedError(f"{where} {words}", context)

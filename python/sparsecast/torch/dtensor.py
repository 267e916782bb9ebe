# SPDX-License-Identifier: Apache-2.0
"""Finds the part of a DTensor that this rank holds, from its mesh and placements alone; nothing is gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core import Box
from ..errors import UnsupportedError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def local_box(tensor: DTensor, name: str) -> Box | None:
    """Returns the box of the canonical tensor that ``tensor.to_local()`` holds; None for a rank outside the mesh.

    Placements apply from the first mesh dimension to the last, as in DTensor, but strided ones (``_StridedShard``:
    FSDP2 over a dimension that tensor parallelism has already split) after the plain ones of their dimension. Parts are
    those of ``torch.chunk``: the last may be smaller, or empty. Raises UnsupportedError naming the tensor for partial
    sums, and for shards that are not one box.
    """
    from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    offset = [0] * tensor.ndim
    extent = list(tensor.shape)
    plain = [(i, p) for i, p in enumerate(tensor.placements) if type(p) is Shard]
    strided = [(i, p) for i, p in enumerate(tensor.placements) if type(p) is _StridedShard]
    for placement in tensor.placements:
        if type(placement) not in (Shard, _StridedShard, Replicate):
            raise UnsupportedError(f"its placement {placement} is no shard and no copy", f"tensor '{name}'")
    for mesh_dim, placement in plain + strided:
        take_chunk(offset, extent, placement.dim % tensor.ndim, mesh.size(mesh_dim), coordinate[mesh_dim])
    local = tuple(tensor.to_local().shape)
    if local != tuple(extent):
        raise UnsupportedError(
            f"placements {tuple(tensor.placements)} of shape {tuple(tensor.shape)} on a mesh of {tuple(mesh.shape)} give "
            f"the box {tuple(extent)}, but the local tensor is {local}",
            f"tensor '{name}'",
        )
    return Box(offset, extent)


def take_chunk(offset: list[int], extent: list[int], dim: int, parts: int, index: int) -> None:
    """Narrows the box (``offset``, ``extent``) to part ``index`` of ``parts`` of one dimension, as torch.chunk cuts."""
    chunk = -(-extent[dim] // parts)
    begin = min(chunk * index, extent[dim])
    end = min(begin + chunk, extent[dim])
    offset[dim] += begin
    extent[dim] = end - begin

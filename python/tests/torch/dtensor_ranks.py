# SPDX-License-Identifier: Apache-2.0
"""One of four gloo ranks: random DTensors of numbered elements, whose pieces are compared with the whole tensor.

Views are those of plain shards on small meshes: torch itself names the elements of a folded strided one wrongly, and
plans views on three mesh dimensions for minutes.

    dtensor_ranks.py RANK PORT SEED CASES

Prints how many DTensors were compared, how many of them have several boxes on this rank, and what was refused.
"""

from __future__ import annotations

import datetime
import os
import random
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from sparsecast.torch.dtensor import local_pieces

RANKS = 4


def random_placements(chosen: random.Random, mesh: DeviceMesh, dims: int) -> list[Placement]:
    def one() -> Placement:
        kind, dim = chosen.random(), chosen.randrange(dims)
        if kind < 0.2:
            return Replicate()
        return Shard(dim) if kind < 0.6 else _StridedShard(dim, split_factor=chosen.choice([1, 2, 3, 4]))

    return [one() for _ in range(mesh.ndim)]


def derived(way: int, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, or a view of it: transposed, flattened, folded."""
    if way == 1:
        return tensor.transpose(0, tensor.ndim - 1)
    if way == 2:
        return tensor.flatten(0, 1) if tensor.ndim > 1 else tensor
    if way == 3 and tensor.shape[0] % 2 == 0:
        return tensor.unflatten(0, (2, -1))
    return tensor


def check(tensor: DTensor, whole: torch.Tensor) -> int:
    """Compares what this rank holds with the whole tensor, and returns its number of boxes."""
    local = tensor.to_local()
    assert tensor.shape == whole.shape
    pieces = local_pieces(tensor, "x")
    assert pieces is not None
    seen = torch.zeros(local.shape, dtype=torch.int32)
    for box, at in pieces:
        there = tuple(slice(begin, begin + n) for begin, n in zip(box.offset, box.extent, strict=True))
        here = tuple(slice(begin, begin + n) for begin, n in zip(at, box.extent, strict=True))
        assert torch.equal(local[here], whole[there]), (tensor.placements, tensor.shape, box, at)
        seen[here] += 1
    assert bool((seen == 1).all()), (tensor.placements, tensor.shape, pieces)
    return len(pieces)


def main() -> None:
    rank, port, seed, cases = (int(word) for word in sys.argv[1:5])
    warnings.filterwarnings("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=60))
    meshes = [init_device_mesh("cpu", shape) for shape in ((4,), (2, 2), (1, 4), (4, 1), (2, 1, 2))]
    chosen = random.Random(seed)  # The same on every rank.
    compared = several = 0
    refused: dict[str, int] = {}
    for _ in range(cases):
        mesh = chosen.choice(meshes)
        shape = [chosen.choice([0, 1, 2, 3, 4, 5, 7, 8, 12, 16]) for _ in range(chosen.randint(1, 3))]
        numbered = torch.arange(torch.Size(shape).numel()).view(shape)
        way, placements = chosen.randrange(4), random_placements(chosen, mesh, len(shape))
        tensor = distribute_tensor(numbered, mesh, placements, src_data_rank=None)
        if 0 not in shape and mesh.ndim < 3 and not any(isinstance(one, _StridedShard) for one in placements):
            try:
                tensor = derived(way, tensor)
            except RuntimeError as error:  # torch does not take a view of these placements.
                refused[type(error).__name__] = refused.get(type(error).__name__, 0) + 1
                continue
            numbered = derived(way, numbered)
        several += check(tensor, numbered) > 1
        compared += 1
    print(f"compared {compared}, of several boxes {several}, refused by torch {refused}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

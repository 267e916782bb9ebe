# SPDX-License-Identifier: Apache-2.0
"""What a rank holds of a DTensor: random meshes and placements over gloo ranks, and what is refused."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from sparsecast_ports import free_port
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from sparsecast import errors
from sparsecast.torch import shards_of

SCRIPT = pathlib.Path(__file__).with_name("dtensor_ranks.py")
CASES = 150


def test_pieces_of_random_placements_are_where_their_numbers_say() -> None:
    seed = int(os.environ.get("SPARSECAST_SEED", "0")) or int.from_bytes(os.urandom(3), "little")
    print(f"SPARSECAST_SEED={seed}")
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(port), str(seed), str(CASES)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        said = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, words in zip(ranks, said, strict=True):
        assert rank.returncode == 0, words
    found = [re.search(r"compared (\d+), of several boxes (\d+)", words) for words in said]
    assert all(one is not None and int(one[1]) > CASES // 2 for one in found)
    assert sum(int(one[2]) for one in found if one is not None) > 0, "no rank held several boxes: the test shows little"


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_local_tensor_that_is_not_what_the_placements_leave_is_refused(mesh: DeviceMesh) -> None:
    liar = DTensor.from_local(torch.zeros(3, 2), mesh, [Shard(0)], shape=torch.Size([4, 2]), stride=(2, 1))
    with pytest.raises(
        errors.UnsupportedError, match=r"'w': .* leave this rank \[4, 2\], but its local tensor is \[3, 2\]"
    ):
        shards_of([("w", liar)])


def test_partial_sums_are_refused(mesh: DeviceMesh) -> None:
    with pytest.raises(errors.UnsupportedError, match="'w': .* is no shard and no copy"):
        shards_of([("w", DTensor.from_local(torch.zeros(3, 2), mesh, [Partial()]))])


def test_a_strided_shard_on_one_rank_is_one_box(mesh: DeviceMesh) -> None:
    whole = DTensor.from_local(torch.arange(12.0).view(6, 2), mesh, [_StridedShard(0, split_factor=3)])
    (shard,) = shards_of([("w", whole)]).layout.ranks[0].shards
    assert shard.box.extent == (6, 2) and shard.first == 0

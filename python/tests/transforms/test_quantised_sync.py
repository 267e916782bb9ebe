# SPDX-License-Identifier: Apache-2.0
"""Two ranks that share a matrix, and an engine that holds it quantised: what arrives is the quantised checkpoint."""

from __future__ import annotations

import secrets
import socket

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
import torch.multiprocessing as mp

from sparsecast import Box, Layout, LocalTensor, RankLayout, Shard, TensorTable
from sparsecast.torch import LocalShards, Publisher, Subscriber, World
from sparsecast.transforms import MXFP4, NVFP4, Quantize, Transforms, int4_groups, transformed

SHAPE = (64, 256)
VERSIONS = 3
FORMATS = {"mxfp4": MXFP4, "nvfp4": NVFP4, "int4": int4_groups(32)}


def version_of(number: int) -> torch.Tensor:
    """Random weights, of which few change from one version to the next; the greatest grows in the last."""
    weight = torch.randn(SHAPE, generator=torch.Generator().manual_seed(11))
    weight.flatten()[:: 97 + number].mul_(1 + 0.1 * number)
    weight[3, 4] = 5.0 if number < VERSIONS else 7.0
    return weight.bfloat16()


def quantised(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors of all formats, each of a weight with its name."""
    results = {}
    for name, fmt in FORMATS.items():
        transforms = Transforms([Quantize(fmt)], [(f"{name}.weight", "BF16", SHAPE)])
        results |= {out: tensor.clone() for out, tensor, _ in transforms(f"{name}.weight", weight)}
    return results


def train(rank: int, port: int, world: World) -> None:
    """Holds two runs of 16 rows of each matrix, in one parameter of a fused layer."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    rows = [slice(16 * rank, 16 * rank + 16), slice(32 + 16 * rank, 48 + 16 * rank)]
    table = TensorTable([(f"{name}.weight", "BF16", SHAPE) for name in FORMATS])
    shards = [
        Shard(index, Box((held.start, 0), (16, SHAPE[1])), index, 16 * SHAPE[1] * place, (SHAPE[1], 1))
        for index in range(len(FORMATS))
        for place, held in enumerate(rows)
    ]
    tensors = [torch.cat([version_of(0)[held] for held in rows]).view(-1) for _ in FORMATS]
    locals_ = [
        LocalTensor(f"{name}.fused", "BF16", tensor.numel()) for name, tensor in zip(FORMATS, tensors, strict=True)
    ]
    own = LocalShards(Layout(table, [RankLayout(locals_, shards)]), tensors, [None] * len(tensors))
    # A step would also take scales of the steps before, which are matrices too.
    steps = [
        Quantize(fmt, skip=[f"{other}.*" for other in FORMATS if other != name], group=dist.group.WORLD)
        for name, fmt in FORMATS.items()
    ]
    publisher = Publisher(transformed(own, steps), transport=world)
    for number in range(1, VERSIONS + 1):
        for tensor in tensors:
            tensor.copy_(torch.cat([version_of(number)[held] for held in rows]).view(-1))
        report = publisher.publish()
        assert report.version == number
        assert (report.changed > 0) == (number > 1), "the first publication seeds the engine"
    dist.destroy_process_group()


def serve(world: World) -> None:
    live = {name: torch.zeros_like(tensor) for name, tensor in quantised(version_of(0)).items()}
    dtypes = {"int4.*_packed": "I4X2", "*_packed": "F4X2"}
    subscriber = Subscriber(live.items(), transport=world, needs_anchor=True, dtypes=dtypes)
    for number in range(1, VERSIONS + 1):
        subscriber.update()
        assert subscriber.version == number
        for name, expected in quantised(version_of(number)).items():
            assert torch.equal(live[name].view(torch.uint8), expected.view(torch.uint8)), f"version {number}, {name}"


def work(rank: int, port: int, meeting: int, secret: str) -> None:
    torch.set_num_threads(1)
    world = World("127.0.0.1", meeting, secret, size=3, rank_offset=0 if rank < 2 else 2, interface="lo")
    if rank < 2:
        train(rank, port, world)
    else:
        serve(world)


def test_an_engine_holds_the_quantised_checkpoint_that_two_ranks_publish_from_their_shards() -> None:
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
    mp.spawn(work, args=(*ports, secrets.token_hex(16)), nprocs=3)

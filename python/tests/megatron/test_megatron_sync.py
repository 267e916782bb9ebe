# SPDX-License-Identifier: Apache-2.0
"""A tensor-parallel Megatron trainer and an engine of whole fp8 tensors: what arrives is the quantised checkpoint."""

from __future__ import annotations

import secrets
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

import torch.distributed as dist
from megatron_scenes import (
    VOCAB,
    Scene,
    build,
    checkpoint,
    configuration,
    fill,
    free_port,
    run_processes,
    stay_on_the_cpu,
)

from sparsecast.megatron import megatron_layout, megatron_tensors
from sparsecast.torch import LocalShards, Publisher, Subscriber, World
from sparsecast.transforms import Fp8BlockQuantize, Transforms, transformed

SCENE = Scene(tp=2, bias=True)
BLOCK = (32, 32)
VERSIONS = 3


def version_of(number: int) -> dict[str, torch.Tensor]:
    """Random weights, of which few change from one version to the next."""
    generator = torch.Generator().manual_seed(11)
    weights = {n: torch.randn(t.shape, generator=generator) for n, t in checkpoint(SCENE).items()}
    for tensor in weights.values():
        tensor.flatten()[:: 7 + number].mul_(1 + number)
    return weights


def quantised(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    steps = Transforms([Fp8BlockQuantize(block=BLOCK)], [(n, "F32", t.shape) for n, t in weights.items()])
    return {name: out for n, tensor in weights.items() for name, out, _ in steps(n, tensor)}


def train(rank: int, port: int, world: World) -> None:
    from megatron.core import parallel_state as ps

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    ps.initialize_model_parallel(tensor_model_parallel_size=2)
    place = {"tp": rank, "pp": 0, "ep": 0, "etp": 0}
    config = configuration(SCENE)
    chunks = build(SCENE, config)
    fill(chunks, SCENE, version_of(0), place)
    own = megatron_layout(chunks, config, vocab_size=VOCAB)
    tensors = [tensor.view(-1) for tensor in megatron_tensors(chunks).values()]
    step = Fp8BlockQuantize(block=BLOCK, group=dist.group.WORLD)
    shards = transformed(LocalShards(own, tensors, [None] * len(tensors)), [step])
    publisher = Publisher(shards, transport=world)
    for number in range(1, VERSIONS + 1):
        fill(chunks, SCENE, version_of(number), place)
        report = publisher.publish()
        assert report.version == number
        # The first publication seeds the engine; nothing has changed since.
        assert (report.changed > 0) == (number > 1)
    dist.destroy_process_group()


def serve(world: World) -> None:
    live = {name: torch.zeros_like(tensor) for name, tensor in quantised(version_of(0)).items()}
    subscriber = Subscriber(live.items(), transport=world, needs_anchor=True)
    for number in range(1, VERSIONS + 1):
        subscriber.update()
        assert subscriber.version == number
        for name, expected in quantised(version_of(number)).items():
            assert torch.equal(live[name].view(torch.uint8), expected.view(torch.uint8)), f"version {number}, {name}"


def work(rank: int, port: int, meeting: int, secret: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    stay_on_the_cpu()
    offset = 0 if rank < 2 else 2
    world = World("127.0.0.1", meeting, secret, size=3, rank_offset=offset, interface="lo")
    if rank < 2:
        train(rank, port, world)
    else:
        serve(world)


def test_an_engine_holds_the_fp8_checkpoint_that_two_tensor_parallel_ranks_publish_from_their_shards() -> None:
    run_processes(work, 3, free_port(), free_port(), secrets.token_hex(16))

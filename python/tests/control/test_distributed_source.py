# SPDX-License-Identifier: Apache-2.0
"""A control plane over a trainer of two ranks, each with its own shards: rank 0 leads, the other follows."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
from sparsecast_ports import free_port

pytest.importorskip("sparsecast._core")
torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from conftest import endpoint_of  # noqa: E402
from stub_engines import running  # noqa: E402
from test_real_ranks import COLUMNS, PATIENT, ROWS, RankServer  # noqa: E402

from sparsecast.control import ControlPlane, DistributedSource, SyncError  # noqa: E402
from sparsecast.errors import PeerFailedError, UsageError  # noqa: E402
from sparsecast.torch import Publisher  # noqa: E402
from sparsecast.transports import World  # noqa: E402


def whole_after(steps: int) -> torch.Tensor:
    weights = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(7)).bfloat16()
    for step in range(steps):
        mask = torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(100 + step)) < 0.01
        weights.view(torch.int16)[mask] ^= 1
    return weights


def lead(source: DistributedSource, port: int, advance: Any) -> None:
    servers = [RankServer("sglang", whole_after(0)), RankServer("vllm", whole_after(0))]
    with running(*servers), ControlPlane(source, host="127.0.0.1", port=port, policy=PATIENT) as plane:
        for server, name in zip(servers, ("sg", "vl"), strict=True):
            plane.add(endpoint_of(server, name))
        with pytest.raises(UsageError, match="do not follow"):
            source.sync(1.0)
        source.run(plane.sync_now)
        for step in range(1, 4):
            advance(step)
            report = source.run(plane.sync_now)
            assert report is not None and report.result == "ok"
            assert report.source["elements"] == ROWS * COLUMNS
            assert 0 < report.source["density"] < 0.03
            for server in servers:
                assert torch.equal(server.weights.view(torch.int16), whole_after(step).view(torch.int16))
        advance(4)
        servers[0].faults["apply"] = 500
        with pytest.raises(SyncError):
            source.run(plane.sync_now)
        servers[0].faults.clear()
        source.run(plane.sync_now)
        for server in servers:
            assert torch.equal(server.weights.view(torch.int16), whole_after(4).view(torch.int16))


def follow(source: DistributedSource, advance: Any) -> None:
    with pytest.raises(UsageError, match="rank 0 gives run"):
        source.run(lambda: None)
    source.run(None)
    for step in range(1, 4):
        advance(step)
        source.run(None)
    advance(4)
    with pytest.raises(PeerFailedError, match="rank 0 of the trainer"):
        source.run(None)
    source.run(None)


def run_rank(rank: int, store: int, port: int, answers: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    try:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{store}", rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        rows = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
        local = whole_after(0)[rows].clone()
        weight = DTensor.from_local(local, mesh, [Shard(0)])
        unused = World("127.0.0.1", port, "replaced-by-the-control-plane", size=4)

        def advance(step: int) -> None:
            local.copy_(whole_after(step)[rows])

        with Publisher([("w", weight)], transport=unused) as publisher:
            source = DistributedSource(publisher, dist.new_group(backend="gloo"))
            if rank == 0:
                lead(source, port, advance)
            else:
                follow(source, advance)
        answers.put((rank, "good"))
    except BaseException as failure:  # noqa: BLE001 - told to the parent
        answers.put((rank, repr(failure)))


def test_two_ranks_publish_their_shards_under_one_control_plane_and_go_on_after_a_failed_sync() -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    store, port = free_port(), free_port()
    ranks = [context.Process(target=run_rank, args=(rank, store, port, answers)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    told = dict(answers.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(30)
    assert told == {0: "good", 1: "good"}

# SPDX-License-Identifier: Apache-2.0
"""A world of two trainer ranks, and a log of what they publish."""

from __future__ import annotations

import dataclasses
import pathlib
import threading

import pytest
import torch
from sparsecast_ports import free_port

import sparsecast as sc
from sparsecast import errors
from sparsecast.relay import LogRelay
from sparsecast.torch import Log, Subscriber, World

ROWS, COLUMNS, TIMEOUT = 96, 40, 30.0
TABLE = [("w", "BF16", (ROWS, COLUMNS)), ("a.bias", "F32", (7,))]


def weights(step: int) -> list[torch.Tensor]:
    """All of both tensors after a step, the same wherever it is computed."""
    full = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)).bfloat16()
    bias = torch.zeros(7)
    for number in range(step):
        mask = torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(10 + number)) < 0.05
        full.view(torch.int16)[mask] ^= 3
        bias[number % 7] -= 1
    return [full, bias]


def trainer_layout() -> sc.Layout:
    half = ROWS // 2
    ranks = []
    for rank in (0, 1):
        local = [sc.LocalTensor("w", "BF16", half * COLUMNS)]
        shards = [sc.Shard(0, sc.Box([rank * half, 0], [half, COLUMNS]), 0, 0, [COLUMNS, 1])]
        if rank == 0:
            local.append(sc.LocalTensor("a.bias", "F32", 7))
            shards.append(sc.Shard(1, sc.Box([0], [7]), 1, 0, [1]))
        ranks.append(sc.RankLayout(local, shards))
    return sc.Layout(sc.TensorTable(TABLE), ranks)


class Trainer:
    """Two ranks in threads, each with its half of the rows."""

    def __init__(self) -> None:
        self.local = [[weights(0)[0][: ROWS // 2].clone(), weights(0)[1].clone()], [weights(0)[0][ROWS // 2 :].clone()]]
        self.publishers = [
            sc.ShardedPublisher(trainer_layout(), rank, [sc.describe(t) for t in self.local[rank]]) for rank in (0, 1)
        ]

    def both(self, action: object) -> threading.Thread:
        def run() -> None:
            threads = [threading.Thread(target=action, args=(rank,)) for rank in (0, 1)]  # type: ignore[arg-type]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(2 * TIMEOUT)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def regroup(self, world: World) -> threading.Thread:
        return self.both(lambda rank: self.publishers[rank].regroup(world.open(rank), timeout=TIMEOUT))

    def sync(self, step: int) -> threading.Thread:
        full, bias = weights(step)
        self.local[0][0].copy_(full[: ROWS // 2])
        self.local[0][1].copy_(bias)
        self.local[1][0].copy_(full[ROWS // 2 :])
        return self.both(lambda rank: self.publishers[rank].sync(TIMEOUT))


def read(log: Log, tmp_path: pathlib.Path, step: int) -> int | None:
    held = [torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16), torch.zeros(7)]
    names = [name for name, _, _ in TABLE]
    reader = Subscriber(
        list(zip(names, held, strict=True)), transport=dataclasses.replace(log, state=str(tmp_path / f"reader{step}"))
    )
    reader.update()
    for mine, theirs in zip(held, weights(step), strict=True):
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
    return reader.version


def test_every_live_version_of_a_sharded_trainer_is_committed_and_a_restarted_relay_goes_on(
    tmp_path: pathlib.Path,
) -> None:
    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"), timeout=TIMEOUT)
    world = World("127.0.0.1", free_port(), "a secret of sixteen or more", size=3, timeout=TIMEOUT)
    trainer = Trainer()
    relay = LogRelay(TABLE, world=dataclasses.replace(world, rank_offset=2), log=log)
    met = trainer.regroup(world)
    relay.regroup()
    met.join(2 * TIMEOUT)
    for step in (1, 2, 3):
        published = trainer.sync(step)
        done = relay.step()
        published.join(2 * TIMEOUT)
        assert done.live_version == step and done.changed > 0
        assert done.digest == trainer.publishers[0].digest
        assert read(log, tmp_path, step) == done.version == relay.version
    relay.close()

    # The trainer has gone on without the relay; the next one commits the difference as one version.
    fresh = dataclasses.replace(world, port=free_port(), generation=1)
    again = LogRelay(TABLE, world=dataclasses.replace(fresh, rank_offset=2), log=log)
    met = trainer.regroup(fresh)
    again.regroup()
    met.join(2 * TIMEOUT)
    published = trainer.sync(5)
    done = again.step()
    published.join(2 * TIMEOUT)
    assert done.live_version == 4
    assert read(log, tmp_path, 5) == done.version
    again.close()


def test_a_relay_without_a_mirror_is_refused(tmp_path: pathlib.Path) -> None:
    world = World("127.0.0.1", free_port(), "a secret of sixteen or more", size=2)
    with pytest.raises(errors.UsageError, match="mirror"):
        LogRelay(TABLE, world=world, log=Log(str(tmp_path / "log")))

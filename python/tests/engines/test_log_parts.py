# SPDX-License-Identifier: Apache-2.0
"""An engine of two ranks follows a log: each has its part of every version, or both stay at the version before."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from test_log_receiver import FIRST, SECONDS, Scene, comes_to

from sparsecast import Box, ControlChannel, Layout, LocalTensor, RankLayout, Shard, TensorTable, describe, meet
from sparsecast.engines.log_receiver import LogReceiver, Ranks
from sparsecast.transports import free_port

TABLE = [("k", "BF16", (32, 64)), ("norm", "F32", (64,)), ("q", "BF16", (96, 64)), ("unused", "BF16", (8,))]
PARTS: list[dict[str, tuple[slice, ...]]] = [
    {"k": (slice(0, 32), slice(0, 24)), "norm": (slice(0, 64),), "q": (slice(0, 40), slice(0, 64))},
    {"k": (slice(0, 32), slice(24, 64)), "q": (slice(40, 96), slice(0, 64)), "unused": (slice(0, 8),)},
]
"""The box of each tensor that a rank holds."""


def layout() -> Layout:
    ranks = []
    for part in PARTS:
        tensors, shards = [], []
        for number, (name, dtype, _) in enumerate(TABLE):
            if name in part:
                offset, extent = [s.start for s in part[name]], [s.stop - s.start for s in part[name]]
                strides = [1] if len(extent) == 1 else [extent[1], 1]
                shards.append(Shard(number, Box(offset, extent), len(tensors), 0, strides))
                tensors.append(LocalTensor(name, dtype, torch.Size(extent).numel()))
        ranks.append(RankLayout(tensors, shards))
    return Layout(TensorTable(TABLE), ranks)


class Rank:
    def __init__(self, scene: Scene, number: int, channel: ControlChannel) -> None:
        self.number = number
        self.tensors = {name: scene.started[name][box].clone() for name, box in PARTS[number].items()}
        self.receiver = LogReceiver(
            scene.log,
            TensorTable(TABLE),
            [describe(tensor) for tensor in self.tensors.values()],
            ranks=Ranks(channel, layout()),
            interval=0.02,
        )

    def holds(self, scene: Scene) -> bool:
        part = PARTS[self.number].items()
        return all(torch.equal(self.tensors[name], getattr(scene.trainer, name)[box]) for name, box in part)


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Scene:
    return Scene(tmp_path, positions=getattr(request, "param", "packed"))


@pytest.fixture
def ranks(scene: Scene) -> Iterator[list[Rank]]:
    port, secret = free_port(), "a secret of this test"
    channels = on_both(lambda rank: meet("127.0.0.1", port, rank=rank, size=2, secret=secret, interface="127.0.0.1"))
    made = [Rank(scene, number, channels[number]) for number in range(2)]
    for rank in made:
        rank.receiver.start()
    assert all(comes_to(rank.receiver, "ready") for rank in made)
    yield made
    on_both(lambda number: made[number].receiver.close(SECONDS))


def on_both(work: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None, None]

    def run(number: int) -> None:
        results[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    return results


def apply(ranks: list[Rank]) -> None:
    assert all(comes_to(rank.receiver, "staged") for rank in ranks)
    assert on_both(lambda number: ranks[number].receiver.apply(SECONDS)) == [True, True]


def test_both_ranks_get_their_parts_of_every_version(scene: Scene, ranks: list[Rank]) -> None:
    for _ in range(3):
        version = scene.publish()
        apply(ranks)
        assert all(rank.holds(scene) for rank in ranks)
        status = [rank.receiver.status() for rank in ranks]
        assert [one["version"] for one in status] == [version, None]
        assert all(one["is_whole"] and one["error"] == "" for one in status)


def test_nothing_is_written_until_both_engines_let_it(scene: Scene, ranks: list[Rank]) -> None:
    before = [{name: tensor.clone() for name, tensor in rank.tensors.items()} for rank in ranks]
    scene.publish()
    assert all(comes_to(rank.receiver, "staged") for rank in ranks)
    first = threading.Thread(target=ranks[0].receiver.apply)
    first.start()
    assert comes_to(ranks[0].receiver, "applying")
    time.sleep(0.1)
    assert all(torch.equal(rank.tensors["q"], old["q"]) for rank, old in zip(ranks, before, strict=True))
    assert ranks[1].receiver.apply(SECONDS)
    first.join(SECONDS)
    assert all(rank.holds(scene) for rank in ranks)


def test_both_drop_what_is_beyond_the_goal_and_come_to_that(scene: Scene, ranks: list[Rank]) -> None:
    before = ranks[0].tensors["q"].clone()
    version = scene.publish()
    for goal in (version - 1, version):
        assert all(comes_to(rank.receiver, "staged") for rank in ranks)
        assert ranks[0].receiver.status()["staged"] == version
        for rank in ranks:
            rank.receiver.aim(goal)
        for rank in ranks:
            rank.receiver.drop()
        assert goal == version or on_both(lambda number: ranks[number].receiver.apply(0.2)) == [False, False]
        assert torch.equal(ranks[0].tensors["q"], before)
        for rank in ranks:
            rank.receiver.aim(None)
    apply(ranks)
    status = [rank.receiver.status() for rank in ranks]
    assert all(rank.holds(scene) for rank in ranks) and [one["version"] for one in status] == [version, None]
    assert all(one["is_whole"] and one["error"] == "" for one in status)


def test_both_stay_at_the_version_before_when_one_comes_out_wrong(scene: Scene, ranks: list[Rank]) -> None:
    before = ranks[0].tensors["q"].clone()
    ranks[1].tensors["q"].view(torch.int16)[2, 0] ^= 5  # Row 42 of the tensor, which every step changes.
    scene.publish()
    apply(ranks)
    assert torch.equal(ranks[0].tensors["q"], before)
    # The audit that follows knows the damage, and both take an anchor.
    apply(ranks)
    while ranks[0].receiver.version == FIRST or not all(comes_to(rank.receiver, "ready") for rank in ranks):
        apply(ranks)
    assert all(rank.holds(scene) for rank in ranks) and ranks[0].receiver.status()["reseeded"] == 1


def test_one_that_ends_ends_the_following_of_the_other_and_names_it(scene: Scene, ranks: list[Rank]) -> None:
    ranks[0].receiver.close(SECONDS)
    assert comes_to(ranks[1].receiver, "broken")
    status = ranks[1].receiver.status()
    assert status["is_whole"] and "rank 0" in status["error"]


@pytest.mark.parametrize("scene", ["auto"], indirect=True)
def test_a_delta_that_a_part_cannot_decode_is_refused_with_the_cure(scene: Scene, ranks: list[Rank]) -> None:
    scene.publish()
    assert comes_to(ranks[0].receiver, "broken")
    assert "publish with `packed` positions" in ranks[0].receiver.status()["error"]

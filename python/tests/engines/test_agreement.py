# SPDX-License-Identifier: Apache-2.0
"""Ranks of an engine whose apply has ended differently: all of them hold the same version afterwards."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch.distributed as dist

from sparsecast.engines.agreement import settle_alike

SECONDS = 60.0


class Rank:
    """A receiver at version 4 after the apply of version 5: `heard` the commit, in `doubt`, or gone `back`."""

    def __init__(self, end: str) -> None:
        self.committed = end == "heard"
        self.in_doubt = 5 if end == "doubt" else 0
        self.holds = 4 if end == "back" else 5

    def settle(self, committed: bool) -> None:
        if self.in_doubt:
            self.holds, self.in_doubt = (5 if committed else 4), 0


def _run(rank: int, ends: tuple[str, ...], meeting: str, results: multiprocessing.Queue[tuple[int, int, int]]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=len(ends))
    receiver = Rank(ends[rank])
    settle_alike(receiver, receiver.committed, dist.group.WORLD)  # type: ignore[arg-type]
    results.put((rank, receiver.holds, receiver.in_doubt))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("ends", "holds", "doubts"),
    [
        (("heard", "doubt"), 5, [0, 0]),
        (("doubt", "back"), 4, [0, 0]),
        (("doubt", "doubt"), 5, [5, 5]),
        (("heard", "heard"), 5, [0, 0]),
        (("back", "back"), 4, [0, 0]),
    ],
)
def test_all_ranks_hold_one_version(ends: tuple[str, ...], holds: int, doubts: list[int], tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[tuple[int, int, int]] = context.Queue()
    arguments = (ends, str(tmp_path / "meeting"), results)
    ranks = [context.Process(target=_run, args=(rank, *arguments)) for rank in range(len(ends))]
    for process in ranks:
        process.start()
    told = sorted(results.get(timeout=SECONDS) for _ in ranks)
    for process in ranks:
        process.join(SECONDS)
    assert told == [(rank, holds, doubts[rank]) for rank in range(len(ends))]

# SPDX-License-Identifier: Apache-2.0
"""Members of the group that come, leave, fail and come back."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed here (python/tests/requirements-verl.txt)")

import verl_package

verl_package.prepare()

import torch
from verl_threads import Threads, healed, random_step, small_tensors

from sparsecast import errors
from sparsecast.integrations.verl import SparsecastCheckpointEngine


def test_a_worker_that_never_comes_ends_the_sync_at_the_deadline(
    random: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = Threads(small_tensors(random), ["a", "b"], monkeypatch, timeout=2.0)
    threads.sync()
    before = threads.copies()
    monkeypatch.setattr(threads, "_take", lambda index, step: None)
    with pytest.raises(errors.DeadlineError):
        threads.sync()
    threads.assert_untouched(before)
    monkeypatch.undo()


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_worker_that_was_restarted_gets_everything_and_all_meet_anew(
    threads: Threads, random: torch.Generator, index: int
) -> None:
    threads.restart(index)
    healed(threads, random)
    assert threads.meetings == 2


def test_a_trainer_that_was_restarted_sends_everything(threads: Threads, random: torch.Generator) -> None:
    threads.sender = type(threads.sender)(is_master=True, **threads.options)
    healed(threads, random)


def test_a_leader_that_leaves_is_replaced_by_its_neighbour_and_a_worker_may_join(
    threads: Threads, random: torch.Generator
) -> None:
    for workers in (threads.receivers, threads.nodes, threads.held, threads.taken):
        del workers[0]
    assert threads.receivers[0]._mirror is None
    healed(threads, random)
    assert threads.receivers[0]._mirror is not None
    threads.receivers.append(type(threads.sender)(**threads.options))
    threads.nodes.append("c")
    threads.held.append({})
    threads.taken.append([])
    healed(threads, random)


def test_only_rank_0_of_the_trainer_is_in_the_group_and_nodes_have_one_leader_each() -> None:
    meeting = {"host": "h", "port": 1, "secret": "s", "token": "t"}
    metadata: list[dict[str, Any]] = [{"node": "x", "member": "", "meeting": None} for _ in range(6)]
    metadata[0]["meeting"] = meeting
    for data, node in zip(metadata[2:], ["b", "a", "b", "a"], strict=True):
        data["node"] = node
    actors, rollouts = SparsecastCheckpointEngine.build_topology(2, 4, metadata)
    assert actors["rank"] == [0, -1] and rollouts["rank"] == [1, 2, 3, 4]
    assert rollouts["leader"] == [True, True, False, False] and rollouts["node"] == [1, 0, 1, 0]
    assert actors["meeting"] == [meeting] * 2 and rollouts["meeting"] == [meeting] * 4
    for rank, data in enumerate([metadata[0], *metadata[2:]]):
        data["member"] = f"t:{rank}:5"
    assert SparsecastCheckpointEngine.build_topology(2, 4, metadata)[1]["meeting"] == [None] * 4
    metadata[3]["member"], metadata[4]["member"] = metadata[4]["member"], metadata[3]["member"]
    assert SparsecastCheckpointEngine.build_topology(2, 4, metadata)[1]["meeting"] == [meeting] * 4


def test_a_rollout_that_fails_in_the_middle_makes_the_next_sync_send_everything(
    threads: Threads, random: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = threads._take

    def fail(index: int, step: int) -> None:
        if index != 1:
            return take(index, step)
        for _ in threads.receivers[1].receive_weights(global_steps=step):
            raise RuntimeError("the server is gone")

    monkeypatch.setattr(threads, "_take", fail)
    random_step(threads.trained.tensors, random, 0.02)
    with pytest.raises((RuntimeError, errors.Error)):
        threads.sync()
    monkeypatch.setattr(threads, "_take", take)
    healed(threads, random)


def test_ranks_at_different_steps_are_told_so(threads: Threads, random: torch.Generator) -> None:
    before = threads.copies()
    with pytest.raises(errors.GroupMismatchError, match="rollout worker 1 was called for step 8, the trainer for 7"):
        threads.sync([7, 7, 8, 7])
    threads.assert_untouched(before)
    healed(threads, random)

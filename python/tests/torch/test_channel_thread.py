# SPDX-License-Identifier: Apache-2.0
"""Publishers over NCCL channels, which belong to one thread of a process. NCCL itself needs GPUs: here the channels are
TCP, with NCCL's rule."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import torch
from sparsecast_ports import free_port
from sparsecast_programs import interrupt

import sparsecast.torch.live
from sparsecast import ShardedPublisher
from sparsecast.errors import UsageError
from sparsecast.torch import Publisher, Subscriber, World

TIMEOUT = 30.0


class OfOneThread:
    """A ShardedPublisher whose channels belong to the thread that has opened them, as those of NCCL do."""

    owners: set[int] = set()  # Of all publishers, which are of one device here.

    def __init__(self, *args: Any, **options: Any) -> None:
        self._publisher = ShardedPublisher(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._publisher, name)

    def _enter(self) -> None:
        self.owners.add(threading.get_ident())
        if len(self.owners) > 1:
            raise UsageError("the NCCL channels of device 0 belong to another thread")

    def regroup(self, world: Any, channels: str, timeout: float) -> None:
        assert channels == "nccl"
        try:
            self._enter()
        except UsageError as error:
            world.abort(str(error))
            raise
        self._publisher.regroup(world, channels="control", timeout=timeout)

    def sync(self, timeout: float) -> Any:
        self._enter()
        return self._publisher.sync(timeout)


class Trained:
    """A model, its publisher over channels of NCCL's rule, and an engine that follows in a thread of its own."""

    def __init__(self, versions: int) -> None:
        self.model = torch.nn.Linear(4, 4)
        world = World("127.0.0.1", free_port(), "a secret of sixteen or more", size=2, timeout=TIMEOUT)
        self.engine = torch.nn.Linear(4, 4)
        subscriber = Subscriber(
            self.engine, transport=dataclasses.replace(world, rank_offset=1), needs_anchor=True, pause=None
        )
        self.publisher = Publisher(self.model, transport=dataclasses.replace(world, channels="nccl"))
        self.world = world
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._follow, args=(subscriber, versions))
        self._thread.start()

    def _follow(self, subscriber: Subscriber, versions: int) -> None:
        try:
            while subscriber.version < versions:
                if subscriber.version == 2:
                    subscriber.regroup()
                subscriber.update()
        except BaseException as failure:  # noqa: BLE001 - for the main thread
            self._failures.append(failure)

    def step(self) -> None:
        with torch.no_grad():
            self.model.weight += 1

    def finish(self) -> None:
        self._thread.join(2 * TIMEOUT)
        assert self._failures == []
        assert torch.equal(self.model.weight, self.engine.weight)


@pytest.fixture
def nccl_rule(monkeypatch: pytest.MonkeyPatch) -> type[OfOneThread]:
    monkeypatch.setattr(sparsecast.torch.live, "ShardedPublisher", OfOneThread)
    OfOneThread.owners.clear()
    return OfOneThread


def test_publications_that_wait_and_that_do_not_and_regroups_use_one_thread(nccl_rule: type[OfOneThread]) -> None:
    trained = Trained(3)
    with trained.publisher as publisher:
        trained.step()
        assert publisher.publish().version == 1
        trained.step()
        assert publisher.publish(wait=False).result(TIMEOUT).version == 2
        publisher.regroup()
        trained.step()
        assert publisher.publish().version == 3
    trained.finish()
    assert threading.get_ident() not in nccl_rule.owners


def test_two_publishers_of_a_device_use_the_same_thread(nccl_rule: type[OfOneThread]) -> None:
    both = [Trained(1), Trained(1)]
    for trained in both:
        trained.step()
        with trained.publisher as publisher:
            publisher.publish()
        trained.finish()
    assert len(nccl_rule.owners) == 1


def test_errors_of_the_channels_reach_the_caller(nccl_rule: type[OfOneThread]) -> None:
    nccl_rule.owners.add(0)  # Another thread, with channels of its own.
    trained = Trained(1)
    with pytest.raises(UsageError, match="belong to another thread"):
        trained.publisher.publish()
    nccl_rule.owners.clear()
    trained.publisher.close()
    trained._thread.join(2 * TIMEOUT)  # Its update has failed with that of the trainer.
    assert trained._failures != []


def test_ctrl_c_ends_a_publication_in_the_thread_of_the_channels() -> None:
    _, printed, err = interrupt(
        """
import torch, sparsecast.torch as st
from sparsecast.torch import channel_thread

event = threading.Event()
print("ready", flush=True)
try:
    channel_thread.run_in_channel_thread(torch.device("cpu"), lambda: event.wait(60), event.set)
except KeyboardInterrupt:
    print("interrupted", event.is_set(), flush=True)
"""
    )
    assert (printed, err) == ("interrupted True\n", "")

# SPDX-License-Identifier: Apache-2.0
"""The receiver's states, against a real publisher in another thread."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sparsecast import Box, Layout, LocalTensor, RankLayout, Shard, ShardedPublisher, TensorTable, describe, meet
from sparsecast.engines.receiver import Held, Receiver
from sparsecast.engines.refresh.recompute import Recomputation, Step
from sparsecast.engines.trace.loader import trace_loader
from sparsecast.errors import DeadlineError, DirtyError, Error, PeerFailedError, UsageError, VersionGapError
from sparsecast.transports import World

SECRET = "a secret of the test"
SHAPE = (64, 32)


def layout() -> Layout:
    elements = SHAPE[0] * SHAPE[1]
    shard = Shard(0, Box((0, 0), SHAPE), 0, 0, (SHAPE[1], 1))
    return Layout(TensorTable([("w", "BF16", SHAPE)]), [RankLayout([LocalTensor("w", "BF16", elements)], [shard])])


class Doubling(torch.nn.Module):
    """An engine's model that computes a tensor from its weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.failure: Exception | None = None
        self.finish()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for _, tensor in weights:
            self.weight.data.copy_(tensor)

    def finish(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.double = self.weight.data * 2


class Pair:
    """A trainer of one rank and an engine of one rank that hold the same tensor."""

    def __init__(self, computes: bool = False) -> None:
        self.trainer_weight = torch.arange(SHAPE[0] * SHAPE[1]).to(torch.bfloat16).view(SHAPE)
        self.engine_weight = self.trainer_weight.clone()
        self.publisher = ShardedPublisher(layout(), 0, [describe(self.trainer_weight)])
        self.model = Doubling(self.engine_weight)
        steps = [Step("", self.model, self.model.finish)] if computes else []
        traced = trace_loader(self.model, [("w", "BF16", SHAPE)], self.model.load_weights)
        recomputation = Recomputation(self.model, steps, traced)
        recomputation.prove(as_loaded=True)
        self.receiver = Receiver("e", layout(), 0, [describe(self.engine_weight)], recomputations=[recomputation])
        self.trainer = ThreadPoolExecutor(1)
        self.generation = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def world(self, rank: int, /, **changes: object) -> World:
        arguments = {"host": "127.0.0.1", "port": self.port, "rank_offset": rank, "size": 2, "secret": SECRET}
        return World(**{**arguments, "generation": self.generation, **changes})  # type: ignore[arg-type]

    def join(self, timeout: float = 20.0) -> None:
        self.generation += 1
        regrouped = self.trainer.submit(self._regroup, self.world(0), timeout)
        self.receiver.join(self.world(1), timeout)
        regrouped.result()

    def _regroup(self, world: World, timeout: float) -> None:
        channel = meet(
            world.host, world.port, rank=0, size=2, secret=world.secret, generation=world.generation, timeout=timeout
        )
        self.publisher.regroup(channel, timeout=timeout)

    def step(self, row: int) -> None:
        self.trainer_weight[row] += 1


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.receiver.close()
    pair.trainer.shutdown()


def test_an_update_changes_nothing_before_apply_and_everything_after(pair: Pair) -> None:
    pair.join()
    before = pair.engine_weight.clone()
    pair.step(3)
    sync = pair.trainer.submit(pair.publisher.sync, 20.0)
    pair.receiver.start_receive(20.0, base_version=0)
    pair.receiver.wait_staged(20.0)
    assert pair.receiver.state == "staged"
    assert torch.equal(pair.engine_weight, before) and pair.receiver.version == 0
    receipt = pair.receiver.apply(20.0)
    assert sync.result().version == 1
    assert torch.equal(pair.engine_weight, pair.trainer_weight)
    assert (receipt.base_version, receipt.version, receipt.elements, receipt.tensors) == (0, 1, SHAPE[1], 1)
    assert pair.receiver.last_receipt == receipt and pair.receiver.state == "ready"
    pair.receiver.audit()


@pytest.fixture
def computing() -> Iterator[Pair]:
    pair = Pair(computes=True)
    yield pair
    pair.receiver.close()
    pair.trainer.shutdown()


def test_what_the_engine_computes_follows_every_write_and_is_part_of_an_audit(computing: Pair) -> None:
    computing.join()
    address = computing.model.double.data_ptr()
    for row in (3, 4):
        computing.step(row)
        sync = computing.trainer.submit(computing.publisher.sync, 20.0)
        receipt = computing.receiver.update(20.0)
        sync.result()
        assert torch.equal(computing.model.double, computing.trainer_weight * 2)
        assert 0 < receipt.recompute_seconds <= receipt.pause_seconds
    assert computing.model.double.data_ptr() == address
    computing.receiver.audit()
    computing.model.double[0, 0] += 1
    with pytest.raises(DirtyError, match="double is not what the engine's post-processing of the model makes"):
        computing.receiver.audit()
    assert computing.receiver.state == "dirty"


def test_a_computation_that_fails_makes_the_engine_dirty_until_it_has_joined_again(computing: Pair) -> None:
    computing.join()
    computing.step(2)
    computing.model.failure = ValueError("no memory left")
    sync = computing.trainer.submit(computing.publisher.sync, 20.0)
    with pytest.raises(DirtyError, match="failed: ValueError: no memory left"):
        computing.receiver.update(20.0)
    sync.result()
    assert computing.receiver.state == "dirty"
    with pytest.raises(DirtyError), computing.receiver.span():
        pass
    computing.model.failure = None
    computing.join()
    assert computing.receiver.state == "ready" and computing.receiver.version == 1
    assert torch.equal(computing.model.double, computing.trainer_weight * 2)


def test_a_generation_knows_whether_an_apply_ran_under_it(pair: Pair) -> None:
    pair.join()
    with pair.receiver.span() as calm:
        pass
    with pair.receiver.span() as torn:
        pair.step(1)
        sync = pair.trainer.submit(pair.publisher.sync, 20.0)
        pair.receiver.update(20.0)
        sync.result()
    assert (calm.start, calm.end, calm.undisturbed) == (0, 0, True)
    assert (torn.start, torn.end, torn.undisturbed) == (0, 1, False)


def test_an_update_from_another_version_is_refused_before_anything_is_awaited(pair: Pair) -> None:
    pair.join()
    with pytest.raises(VersionGapError, match="engine 'e', rank 0, is on version 0, and the update starts from 4"):
        pair.receiver.start_receive(20.0, base_version=4)
    assert pair.receiver.state == "ready"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: r.start_receive(1.0), "start_receive\\(\\) while it is unproven"),
        (lambda r: r.apply(1.0), "no start_receive\\(\\) before"),
        (lambda r: r.wait_staged(1.0), "no start_receive\\(\\) before"),
    ],
)
def test_calls_out_of_order_say_what_is_missing(pair: Pair, call: Callable[[Receiver], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call(pair.receiver)


def test_an_engine_whose_trainer_is_silent_hears_of_it_in_time_and_heals(pair: Pair) -> None:
    pair.join()
    pair.receiver.start_receive(0.5)
    with pytest.raises(Error):
        pair.receiver.wait_staged(20.0)
    assert pair.receiver.state == "broken"
    with pytest.raises(UsageError, match="while it is broken"):
        pair.receiver.start_receive(1.0)
    pair.step(5)
    pair.join()
    sync = pair.trainer.submit(pair.publisher.sync, 20.0)
    pair.receiver.update(20.0)
    sync.result()
    assert torch.equal(pair.engine_weight, pair.trainer_weight)


def test_an_abandoned_update_fails_at_the_trainer_with_the_engines_words(pair: Pair) -> None:
    pair.join()
    before = pair.engine_weight.clone()
    pair.step(7)
    sync = pair.trainer.submit(pair.publisher.sync, 20.0)
    pair.receiver.start_receive(20.0)
    pair.receiver.wait_staged(20.0)
    pair.receiver.abandon("the cat is on the keyboard")
    with pytest.raises(PeerFailedError, match="the cat is on the keyboard"):
        sync.result()
    assert torch.equal(pair.engine_weight, before) and pair.receiver.state == "broken"
    pair.join()
    assert pair.receiver.version == 0


def test_memory_that_is_not_what_its_version_says_is_not_let_in(pair: Pair) -> None:
    pair.engine_weight[0, 0] = -1
    with pytest.raises(Error):
        pair.join()
    assert pair.receiver.state == "unproven"


def test_nobody_there_is_a_deadline(pair: Pair) -> None:
    with pytest.raises(DeadlineError):
        pair.receiver.join(pair.world(1), timeout=0.5)
    assert pair.receiver.state == "unproven"


def test_a_rank_0_that_does_not_listen_is_waited_for_no_longer_than_the_lease(pair: Pair) -> None:
    with pytest.raises(DeadlineError, match=r"rank 0 was not reached within 0\.3 s"):
        pair.receiver.join(pair.world(1, reach_timeout=0.3), timeout=3600)
    assert pair.receiver.held == Held(True, 0)


def test_a_receive_from_a_silent_trainer_ends_when_it_is_abandoned(pair: Pair) -> None:
    pair.join()
    pair.receiver.start_receive(3600)
    pair.receiver.abandon("another trainer comes", 60)
    assert pair.receiver.state == "broken" and pair.receiver.held == Held(True, 0)
    pair.join()


# Contents of the memory before and during seeding.


def empty_receiver(pair: Pair, before: Held | None = None) -> Receiver:
    return Receiver("e", layout(), 0, [describe(pair.engine_weight)], needs_anchor=True, before=before)


@pytest.mark.parametrize("before", [Held(True, 6), Held(True, None), Held(False, 6), None])
def test_a_trainer_that_dies_before_the_first_byte_leaves_what_was_there(pair: Pair, before: Held | None) -> None:
    receiver = empty_receiver(pair, before)
    weight = pair.engine_weight.clone()

    def meet_and_die() -> None:
        world = pair.world(0)
        meet(world.host, world.port, rank=0, size=2, secret=SECRET, timeout=20).abort("killed")

    died = pair.trainer.submit(meet_and_die)
    with pytest.raises(PeerFailedError):
        receiver.join(pair.world(1), 20)
    died.result()
    assert torch.equal(pair.engine_weight, weight)
    assert receiver.held == (before or Held(True, None)) and receiver.state == "unproven"
    receiver.close()
    assert receiver.held == (before or Held(True, None))


def test_an_anchor_whose_group_fails_leaves_nothing_to_serve_until_the_next(pair: Pair) -> None:
    pair.engine_weight.zero_()
    receiver = empty_receiver(pair)
    stale = torch.zeros(SHAPE, dtype=torch.bfloat16)
    other = Receiver("other", layout(), 0, [describe(stale)])  # It holds not what it says: the group fails.
    worlds = [pair.world(rank, size=3) for rank in range(3)]

    def trainer(world: World) -> None:
        channel = meet(world.host, world.port, rank=0, size=3, secret=SECRET, timeout=20)
        pair.publisher.regroup(channel, timeout=20)

    with ThreadPoolExecutor(2) as threads:
        failing = [threads.submit(trainer, worlds[0]), threads.submit(other.join, worlds[2], 20)]
        with pytest.raises(Error):
            receiver.join(worlds[1], 20)
        for each in failing:
            with pytest.raises(Error):
                each.result()
    assert receiver.held.is_whole is False
    other.close()

    pair.receiver.close()
    pair.receiver = receiver
    pair.join()
    assert receiver.held == Held(True, 0) and torch.equal(pair.engine_weight, pair.trainer_weight)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"port": 0}, "port 0"),
        ({"rank_offset": 2}, "rank 2 is not in a world of 2"),
        ({"secret": ""}, "needs a secret"),
        ({"channels": "carrier pigeon"}, "there are no channels 'carrier pigeon'"),
    ],
)
def test_a_world_that_cannot_be_is_refused_by_field(pair: Pair, changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pair.world(1, **changes)  # type: ignore[arg-type]


def test_a_closed_receiver_does_nothing_more(pair: Pair) -> None:
    pair.receiver.close()
    with pytest.raises(UsageError, match="closed"):
        pair.receiver.start_receive(1.0)
    with pytest.raises(UsageError, match="closed"):
        pair.receiver.join(pair.world(1), 1.0)

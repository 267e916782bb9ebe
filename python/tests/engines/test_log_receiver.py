# SPDX-License-Identifier: Apache-2.0
"""A model that fuses and casts follows a log: what is staged waits, what is applied is whole, what is wrong is refused."""

from __future__ import annotations

import dataclasses
import multiprocessing
import pathlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from torch import nn

from sparsecast import TensorTable, describe
from sparsecast.engines.follow_settings import FollowSettings
from sparsecast.engines.log_receiver import LogReceiver
from sparsecast.engines.refresh.recompute import Recomputation, loader_steps
from sparsecast.engines.trace.loader import trace_loader
from sparsecast.engines.trace.whole import cut_tensors, whole_tensors
from sparsecast.errors import DirtyError, UnsupportedError, UsageError
from sparsecast.torch import Log, Publisher

FIRST = 1  # Version 0 is the anchor, and a publisher begins with a version of its own.
TABLE = [("q", "BF16", (96, 64)), ("k", "BF16", (32, 64)), ("norm", "F32", (64,)), ("unused", "BF16", (8,))]
SECONDS = 20.0


class Trainer(nn.Module):
    def __init__(self, seed: int = 1, rows: int = 96) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.q = nn.Parameter(torch.randn(rows, 64, generator=generator).bfloat16(), requires_grad=False)
        self.k = nn.Parameter(torch.randn(32, 64, generator=generator).bfloat16(), requires_grad=False)
        self.norm = nn.Parameter(torch.randn(64, generator=generator), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(8, generator=generator).bfloat16(), requires_grad=False)

    def step(self) -> None:
        self.q[::7] += 1
        self.k[1] -= 1
        self.norm *= 1.5


class Engine(nn.Module):
    """Fuses q and k, transposed; casts the norm; has no use for one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Parameter(torch.zeros(64, 128, dtype=torch.bfloat16), requires_grad=False)
        self.norm = nn.Parameter(torch.zeros(64, dtype=torch.bfloat16), requires_grad=False)
        self.failure: Exception | None = None

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            if self.failure is not None:
                raise self.failure
            place = {"q": self.qk.data[:, :96].t(), "k": self.qk.data[:, 96:].t(), "norm": self.norm.data}.get(name)
            if place is not None:
                place.copy_(tensor)

    def holds(self, trainer: Trainer) -> bool:
        fresh = Engine()
        fresh.load_weights((name, getattr(trainer, name)) for name, _, _ in TABLE)
        return torch.equal(self.qk, fresh.qk) and torch.equal(self.norm, fresh.norm)


class Scene:
    """A trainer that publishes to a log below `directory`."""

    def __init__(self, directory: pathlib.Path, seed: int = 1, rows: int = 96, positions: str = "auto") -> None:
        directory.mkdir(exist_ok=True)
        self.log = Log(directory / "log", mirror=directory / "mirror.safetensors", state=directory / "state")
        self.trainer = Trainer(seed, rows)
        self.started = {name: tensor.clone() for name, tensor in self.trainer.named_parameters()}
        self.publisher = Publisher(self.trainer, transport=self.log, positions=positions)
        self.receivers: list[LogReceiver] = []

    def publish(self, versions: int = 1) -> int:
        for _ in range(versions):
            self.trainer.step()
            self.publisher.publish()
        return self.publisher.version

    def follow(self, guard: Callable[[], None] | None = None, **log: object) -> tuple[Engine, LogReceiver]:
        """An engine that was started from the weights with which the training began."""
        engine = Engine()
        files = [(name, self.started[name]) for name, _, _ in TABLE]
        engine.load_weights(files)
        traced = trace_loader(engine, TABLE, engine.load_weights, modes={})
        assert not traced.differences(traced.filling(files))
        recomputation = Recomputation(engine, loader_steps(engine, engine.load_weights, traced), traced)
        recomputation.prove(as_loaded=True)
        whole, unused = whole_tensors(traced)
        for name, memory in unused.items():
            memory.copy_(self.started[name])
        receiver = LogReceiver(
            dataclasses.replace(self.log, **log),  # type: ignore[arg-type]
            TensorTable([spec for spec, _ in whole]),
            [describe(tensor, dtype=dtype) for (_, dtype, _), tensor in whole],
            interval=0.02,
            recomputations=[recomputation],
            guard=guard,
        )
        self.receivers.append(receiver)
        receiver.start()
        return engine, receiver

    def close(self) -> None:
        for receiver in self.receivers:
            receiver.close(SECONDS)


def comes_to(receiver: LogReceiver, state: str) -> bool:
    """Returns whether the receiver comes to the state in time."""
    end = time.monotonic() + SECONDS
    while receiver.state != state and time.monotonic() < end:
        time.sleep(0.005)
    return receiver.state == state


@pytest.fixture
def scene(tmp_path: pathlib.Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def apply_until(receiver: LogReceiver, version: int) -> None:
    until = time.monotonic() + SECONDS
    while receiver.version != version:
        receiver.apply(0.1)
        assert time.monotonic() < until, receiver.status()


def error_of(receiver: LogReceiver) -> str:
    until = time.monotonic() + SECONDS
    while not (error := receiver.status()["error"]):
        assert time.monotonic() < until, receiver.status()
        time.sleep(0.01)
    return str(error)


def test_a_version_is_staged_and_waits_until_the_engine_applies_it(scene: Scene) -> None:
    engine, receiver = scene.follow()
    assert comes_to(receiver, "ready") and receiver.version == FIRST
    assert not receiver.apply()  # Nothing is staged, so this does not wait.
    before, addresses = engine.qk.clone(), [p.data_ptr() for p in engine.parameters()]
    scene.publish()
    assert comes_to(receiver, "staged")
    time.sleep(0.1)
    assert torch.equal(engine.qk, before)
    status = receiver.status()
    assert (status["state"], status["version"], status["lag"], status["is_whole"]) == ("staged", FIRST, 1, True)
    assert 0.1 <= status["lag_seconds"] < SECONDS
    assert receiver.apply()
    status = receiver.status()
    assert engine.holds(scene.trainer) and [p.data_ptr() for p in engine.parameters()] == addresses
    assert (status["state"], status["version"], status["reseeded"]) == ("ready", FIRST + 1, 0)
    assert 0 < status["pause_seconds"] < SECONDS and status["bytes_read"] > 0
    for _ in range(2):
        apply_until(receiver, scene.publish())
        assert engine.holds(scene.trainer)
    assert comes_to(receiver, "ready") and receiver.status()["lag"] == 0
    while receiver.status()["lag_seconds"] > 0:  # Until the next look.
        time.sleep(0.01)


def test_a_server_sees_in_the_state_directory_when_there_is_something_to_ask(
    scene: Scene, tmp_path: pathlib.Path
) -> None:
    settings = FollowSettings(str(scene.log.location), str(tmp_path / "server"))
    replica = tmp_path / "server" / "replica-0"
    replica.mkdir(parents=True)
    engine, receiver = scene.follow(state=replica)

    def news_begin_with(words: str) -> bool:
        until = time.monotonic() + SECONDS
        while not (seen := settings.news()) or not seen[0].startswith(words):
            assert time.monotonic() < until, seen
            time.sleep(0.005)
        return True

    assert news_begin_with(f"ready {FIRST}")
    scene.publish()
    assert news_begin_with(f"staged {FIRST}") and receiver.apply() and news_begin_with(f"ready {FIRST + 1}")
    shutil.rmtree(str(scene.log.location))
    assert news_begin_with(f"broken {FIRST + 1} ") and error_of(receiver) in settings.news()[0]


def test_the_newest_version_is_seen_while_one_is_staged_and_is_staged_next(scene: Scene) -> None:
    engine, receiver = scene.follow()
    assert comes_to(receiver, "ready")
    scene.publish()
    assert comes_to(receiver, "staged")
    newest = scene.publish(2)
    until = time.monotonic() + SECONDS
    while (status := receiver.status())["head"] != newest:
        assert time.monotonic() < until, status
        time.sleep(0.005)
    assert (status["version"], status["staged"], status["lag"]) == (FIRST, FIRST + 1, 3)
    assert receiver.apply() and receiver.version == FIRST + 1
    apply_until(receiver, newest)
    assert engine.holds(scene.trainer)


def test_nothing_beyond_the_goal_is_fetched_and_what_is_dropped_is_not_written(scene: Scene) -> None:
    first = scene.publish(2)
    engine, receiver = scene.follow()
    receiver.aim(first)
    apply_until(receiver, first)
    assert engine.holds(scene.trainer)
    before = engine.qk.clone()
    newest = scene.publish(3)
    until = time.monotonic() + SECONDS
    while receiver.status()["head"] != newest:
        assert time.monotonic() < until
        time.sleep(0.005)
    assert not receiver.apply(0.1) and receiver.status()["lag"] == 3 and receiver.status()["error"] == ""
    receiver.aim(None)
    assert comes_to(receiver, "staged")
    receiver.aim(first - 1)  # Which is older than the weights: they stay.
    receiver.drop()
    assert not receiver.apply(0.2) and receiver.version == first and torch.equal(engine.qk, before)
    assert receiver.status()["error"] == "" and receiver.status()["staged"] is None
    receiver.aim(first + 1)
    apply_until(receiver, first + 1)
    receiver.aim(None)
    apply_until(receiver, newest)
    assert engine.holds(scene.trainer)


def test_an_engine_that_is_far_behind_catches_up_and_one_that_starts_again_does_so_from_its_files(scene: Scene) -> None:
    version = scene.publish(5)
    engine, receiver = scene.follow()
    apply_until(receiver, version)
    assert engine.holds(scene.trainer)
    receiver.close(SECONDS)
    assert receiver.state == "closed" and receiver.version == version
    version = scene.publish(2)
    engine, receiver = scene.follow()
    apply_until(receiver, version)
    assert engine.holds(scene.trainer)


def test_weights_of_no_version_are_replaced_by_an_anchor(scene: Scene) -> None:
    scene.started["q"][0, 0] += 1
    engine, receiver = scene.follow()
    apply_until(receiver, FIRST)
    assert receiver.status()["reseeded"] == 1 and engine.holds(scene.trainer)
    apply_until(receiver, scene.publish())
    assert engine.holds(scene.trainer)


def test_a_log_that_is_not_there_yet_is_waited_for(scene: Scene, tmp_path: pathlib.Path) -> None:
    engine, receiver = scene.follow(location=str(tmp_path / "later"))
    assert "there is no log here yet" in error_of(receiver) and receiver.state == "unproven"
    shutil.copytree(scene.log.location, tmp_path / "later")
    assert comes_to(receiver, "ready") and receiver.status()["error"] == "" and engine.holds(scene.trainer)


def refused(receiver: LogReceiver, engine: Engine, before: torch.Tensor) -> str:
    assert comes_to(receiver, "broken"), receiver.status()
    assert receiver.status()["is_whole"] and torch.equal(engine.qk, before) and not receiver.apply(0.1)
    return error_of(receiver)


def test_a_log_of_another_run_or_one_that_was_rolled_back_is_refused(scene: Scene, tmp_path: pathlib.Path) -> None:
    shutil.copytree(scene.log.location, tmp_path / "older")
    _, receiver = scene.follow()
    apply_until(receiver, scene.publish())
    receiver.close(SECONDS)
    engine, receiver = scene.follow(location=str(tmp_path / "older"))
    assert "older" in refused(receiver, engine, engine.qk.clone())
    receiver.close(SECONDS)
    other = Scene(tmp_path / "other", seed=2)
    other.publish()
    engine, receiver = scene.follow(location=other.log.location)
    assert "it is of stream" in refused(receiver, engine, engine.qk.clone())


def test_the_log_of_another_model_is_refused_with_the_name_of_a_tensor(scene: Scene, tmp_path: pathlib.Path) -> None:
    other = Scene(tmp_path / "other", rows=95)
    engine, receiver = scene.follow(location=other.log.location)
    assert "'q' is BF16 [96, 64] against BF16 [95, 64]" in refused(receiver, engine, engine.qk.clone())


def test_an_unsigned_log_is_refused_where_keys_are_trusted(scene: Scene) -> None:
    from sparsecast import generate_key

    key = generate_key(pathlib.Path(scene.log.location).parent / "key")
    engine, receiver = scene.follow(trusted_keys=(key,))
    assert "sign" in refused(receiver, engine, engine.qk.clone())


def test_a_damaged_delta_leaves_the_version_before(scene: Scene) -> None:
    engine, receiver = scene.follow()
    assert comes_to(receiver, "ready")
    receiver.close(SECONDS)
    scene.publish()
    for path in pathlib.Path(scene.log.location, "deltas").iterdir():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    engine, receiver = scene.follow()
    assert "hash" in refused(receiver, engine, engine.qk.clone())
    assert receiver.version in (None, FIRST)


def test_closing_while_a_version_is_staged_writes_nothing(scene: Scene) -> None:
    engine, receiver = scene.follow()
    assert comes_to(receiver, "ready")
    scene.publish()
    assert comes_to(receiver, "staged")
    begin = time.monotonic()
    receiver.close(SECONDS)
    assert time.monotonic() - begin < SECONDS / 2 and receiver.state == "closed"
    assert receiver.version == FIRST and not receiver.apply()
    assert torch.equal(engine.qk[:, :96].t(), scene.started["q"])


def _leave_while_staged(directory: pathlib.Path) -> None:
    scene = Scene(directory)
    _, receiver = scene.follow()
    assert comes_to(receiver, "ready")
    scene.publish()
    assert comes_to(receiver, "staged")


def test_a_process_that_ends_while_a_version_is_staged_ends_at_once(tmp_path: pathlib.Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_leave_while_staged, args=(tmp_path,))
    process.start()
    process.join(60)
    hangs = process.is_alive()
    process.kill()
    assert not hangs and process.exitcode == 0


def test_weights_that_have_moved_are_not_written(scene: Scene) -> None:
    def moved() -> None:
        raise UsageError("qk is elsewhere")

    engine, receiver = scene.follow(guard=moved)
    assert comes_to(receiver, "ready")
    before = engine.qk.clone()
    scene.publish()
    with pytest.raises(UsageError, match="qk is elsewhere"):
        receiver.apply(SECONDS)
    assert receiver.state == "broken" and torch.equal(engine.qk, before) and error_of(receiver) == "qk is elsewhere"


def test_a_loader_that_fails_leaves_dirty_weights_and_the_next_version_repairs_them(scene: Scene) -> None:
    engine, receiver = scene.follow()
    assert comes_to(receiver, "ready")
    scene.publish()
    engine.failure = ValueError("no memory left")
    with pytest.raises(DirtyError, match="no memory left"):
        receiver.apply(SECONDS)
    assert comes_to(receiver, "dirty") and not receiver.status()["is_whole"]
    assert "no memory left" in error_of(receiver)
    engine.failure = None
    apply_until(receiver, scene.publish())
    assert comes_to(receiver, "ready") and receiver.status()["is_whole"] and engine.holds(scene.trainer)


def test_a_write_that_fails_leaves_nothing_to_serve_until_an_anchor_has_repaired_it(scene: Scene) -> None:
    engine, receiver = scene.follow()
    assert comes_to(receiver, "ready")
    engine.qk.data[0, 0] += 1  # Of an element that the next version changes.
    started = Engine()
    started.load_weights(scene.started.items())
    version = scene.publish()
    failed = 0
    while receiver.version != version:
        assert receiver.apply(SECONDS)
        status = receiver.status()
        failed += not status["is_whole"]
        if status["is_whole"] and status["version"] != version:
            assert torch.equal(engine.qk, started.qk)
    assert comes_to(receiver, "ready")
    status = receiver.status()
    assert status["is_whole"] and status["reseeded"] == 1 and engine.holds(scene.trainer) and failed <= 1


class Scattered(nn.Module):
    """Keeps every other row of a tensor apart."""

    def __init__(self) -> None:
        super().__init__()
        self.even, self.odd = (nn.Parameter(torch.zeros(4, 4), requires_grad=False) for _ in range(2))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for _, tensor in weights:
            self.even.data.copy_(tensor[::2])
            self.odd.data.copy_(tensor[1::2])


def test_tensors_that_are_cut_are_named_and_can_be_kept_beside_the_model() -> None:
    model = Scattered()
    table = [("w", "F32", (8, 4))]
    traced = trace_loader(model, table, model.load_weights, modes={})
    assert cut_tensors(traced) == ["w"]
    with pytest.raises(UnsupportedError, match="1 tensors lie in several pieces, starting with 'w'"):
        whole_tensors(traced)
    traced = trace_loader(model, table, model.load_weights, modes={"w": "shadow"})
    assert cut_tensors(traced) == [] and whole_tensors(traced)[0][0][1].shape == (8, 4)

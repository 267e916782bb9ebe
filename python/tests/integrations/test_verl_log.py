# SPDX-License-Identifier: Apache-2.0
"""Syncs of verl whose records go through a delta log, and what else reads the log."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed here (python/tests/requirements-verl.txt)")

import verl_package

verl_package.prepare()

import torch
from verl_threads import Threads, healed, random_step, small_tensors

from sparsecast import errors
from sparsecast.buffers import bits_of
from sparsecast.integrations._log_end import LogEnd
from sparsecast.torch import Log, Subscriber

Make = Callable[..., Threads]


@pytest.fixture
def log(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "log"


@pytest.fixture
def make(log: pathlib.Path, random: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a trainer and three rollout workers on two nodes."""

    def build(tensors: dict[str, torch.Tensor] | None = None, **options: Any) -> Threads:
        return Threads(tensors or small_tensors(random), ["a", "a", "b"], monkeypatch, **{"log": str(log), **options})

    return build


class Reader:
    """Somebody who follows the log and knows nothing of verl."""

    def __init__(self, log: pathlib.Path, state: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
        self.held = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        self._subscriber = Subscriber(self.held.items(), transport=Log(log, state=state))

    def update(self) -> int:
        return self._subscriber.update().version


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(bits_of(one[name]), bits_of(other[name])) for name in other)


def test_rollouts_and_every_other_reader_of_the_log_have_the_trainers_bits(
    make: Make, log: pathlib.Path, random: torch.Generator, tmp_path: pathlib.Path
) -> None:
    tensors = small_tensors(random)
    tensors["scalar"] = torch.tensor(0.5, dtype=torch.bfloat16)
    tensors["counts"] = torch.arange(40, dtype=torch.int64)
    threads = make(tensors)
    assert threads.sync()["seed"] == 1
    threads.assert_same()
    reader = Reader(log, tmp_path / "reader", tensors)
    version = reader.update()
    for density in (0.01, 0.0, 0.3, 1.0, 0.001):
        changed = random_step(tensors, random, density)
        figures = threads.sync()
        assert figures["changed_elems"] == changed and figures["seed"] == 0
        assert changed < 1000 or figures["payload_mbytes"] * (1 << 20) < 3 * changed
        threads.assert_same()
        version += 1
        assert reader.update() == version and same(reader.held, tensors)
    assert all(receiver._group._transport is None for receiver in [threads.sender, *threads.receivers])


def test_a_trainer_and_workers_that_were_restarted_go_on_with_the_log(
    make: Make, log: pathlib.Path, random: torch.Generator, tmp_path: pathlib.Path
) -> None:
    threads = make()
    threads.sync()
    reader = Reader(log, tmp_path / "reader", threads.trained.tensors)
    before = reader.update()
    for index in (0, 1, 2):
        threads.restart(index)
        healed(threads, random)
    threads.sender = type(threads.sender)(is_master=True, **threads.options)
    healed(threads, random)
    assert reader.update() >= before + 8 and same(reader.held, threads.trained.tensors)
    again = make(threads.trained.tensors)  # The next job.
    healed(again, random)
    reader.update()
    assert same(reader.held, threads.trained.tensors)


def test_an_object_that_is_torn_is_refused_before_anything_is_handed_over(
    make: Make, log: pathlib.Path, random: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = make()
    threads.sync()
    held = threads.copies()
    objects = set(log.rglob("*.scd"))
    torn: dict[pathlib.Path, bytes] = {}
    publish = LogEnd.publish

    def publish_torn(end: LogEnd, *arguments: Any) -> Any:
        report = publish(end, *arguments)
        for path in set(log.rglob("*.scd")) - objects:
            torn[path] = data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2])
        return report

    random_step(threads.trained.tensors, random, 0.02)
    with monkeypatch.context() as patch:
        patch.setattr(LogEnd, "publish", publish_torn)
        with pytest.raises(errors.Error):
            threads.sync()
    said = [str(error) for error in threads.errors]
    assert all("nothing of this sync was loaded, the next one sends everything" in each for each in said), said
    assert torn and threads.taken == [[], [], []]
    threads.assert_untouched(held)
    for path, data in torn.items():
        path.write_bytes(data)
    healed(threads, random)


def test_a_log_that_cannot_be_written_fails_the_sync_on_all_ranks_and_is_taken_up_later(
    make: Make, log: pathlib.Path, random: torch.Generator
) -> None:
    threads = make()
    threads.sync()
    held = threads.copies()
    away = log.rename(log.with_name("away"))
    log.write_text("a file is here")
    random_step(threads.trained.tensors, random, 0.02)
    with pytest.raises(errors.Error, match=str(log)):
        threads.sync()
    assert all(error is not None for error in threads.errors)
    threads.assert_untouched(held)
    log.unlink()
    away.rename(log)
    healed(threads, random)


def test_a_copy_that_was_altered_is_replaced_from_an_anchor(make: Make, random: torch.Generator) -> None:
    threads = make()
    threads.sync()
    for leader in (0, 2):
        threads.receivers[leader]._mirror.flat_bits("layers.3.weight")[5] ^= 1
    random_step(threads.trained.tensors, random, 0.02)
    assert threads.sync()["seed"] == 0
    threads.assert_same()
    for leader in (0, 2):
        assert same(threads.receivers[leader]._mirror.tensors, threads.trained.tensors)


def test_a_bit_that_flips_in_the_trainers_copy_is_found_before_anything_is_handed_over(
    make: Make, random: torch.Generator
) -> None:
    threads = make()
    threads.sync()
    held = threads.copies()
    threads.sender._mirror.flat_bits("layers.3.weight")[5] ^= 1
    with pytest.raises(errors.DigestMismatchError, match="something else has altered the copy"):
        threads.sync()
    threads.assert_untouched(held)
    healed(threads, random)


def test_a_log_of_another_model_is_refused(make: Make, random: torch.Generator) -> None:
    make().sync()
    other = {f"{name}.other": value for name, value in small_tensors(random).items()}
    with pytest.raises(errors.TableMismatchError):
        make(other).sync()


def test_a_signed_log_is_written_with_a_key_and_read_with_the_other(
    make: Make, log: pathlib.Path, random: torch.Generator, tmp_path: pathlib.Path
) -> None:
    from sparsecast import _core

    public = _core.generate_key(tmp_path / "key")
    options = {"location": str(log), "key": str(tmp_path / "key"), "trusted_keys": [public]}
    threads = make(log=options)
    threads.sync()
    random_step(threads.trained.tensors, random, 0.02)
    threads.sync()
    threads.assert_same()
    stranger = _core.generate_key(tmp_path / "stranger")
    threads.receivers[2] = type(threads.sender)(**{**threads.options, "log": {**options, "trusted_keys": [stranger]}})
    held = threads.copies()
    with pytest.raises(errors.Error):
        threads.sync()
    threads.assert_untouched(held)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"channels": "nccl"}, "delta_sharded.log carries the records"),
        ({"log": {"location": "/x", "place": 1}}, "delta_sharded.log has no field 'place'"),
        ({"log": {"key": "/x"}}, "delta_sharded.log names no location"),
    ],
)
def test_settings_that_are_wrong_are_named(make: Make, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(errors.UsageError, match=sentence):
        make(**options)

# SPDX-License-Identifier: Apache-2.0
"""verl's backend "sparsecast", which hands whole tensors to rollouts that take no deltas: vLLM 0.24, which verl pins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("verl", reason="verl is not installed here (python/tests/requirements-verl.txt)")

import verl_package

verl_package.prepare()

import torch
from verl_threads import Threads, healed, random_step, small_tensors

from sparsecast import errors


@pytest.fixture
def threads(random: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> Threads:
    made = Threads(small_tensors(random), ["a", "a", "b"], monkeypatch, whole=True, bucket_size=16 << 10)
    assert made.sync()["seed"] == 1
    made.assert_same()
    return made


def test_what_changed_travels_and_every_server_is_given_all_tensors(threads: Threads, random: torch.Generator) -> None:
    for _ in range(3):
        changed = random_step(threads.trained.tensors, random, 0.01)
        figures = threads.sync()
        assert figures["seed"] == 0 and figures["changed_elems"] == changed
        threads.assert_same()
        assert [sorted(names) for names in threads.taken] == [sorted(threads.trained.tensors)] * 3
    threads.sync()  # Nothing has changed.
    threads.assert_same()


@pytest.mark.parametrize("taken", [0, 6])  # Before its first tensor, and at its last.
def test_after_a_server_that_fails_the_next_sync_sends_everything(
    threads: Threads, random: torch.Generator, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    receiver = threads.receivers[1]
    receive = receiver.receive_weights

    def fails(global_steps: int) -> Iterator[tuple[str, torch.Tensor]]:
        for number, named in enumerate(receive(global_steps=global_steps)):
            if number == taken:
                raise RuntimeError("the server is gone")
            yield named

    monkeypatch.setattr(receiver, "receive_weights", fails)
    random_step(threads.trained.tensors, random, 0.01)
    with pytest.raises(RuntimeError, match="the server is gone"):
        threads.sync()
    monkeypatch.setattr(receiver, "receive_weights", receive)
    healed(threads, random)


def test_a_copy_that_was_altered_is_refused_before_anything_is_loaded(
    threads: Threads, random: torch.Generator
) -> None:
    mirror = threads.receivers[2]._mirror
    assert mirror is not None
    mirror.flat_bits("layers.3.weight")[7] ^= 1
    copies = threads.copies()
    random_step(threads.trained.tensors, random, 0.01)
    with pytest.raises(errors.Error, match="nothing of this sync was loaded"):
        threads.sync()
    threads.assert_untouched(copies)
    healed(threads, random)


def test_options_are_those_of_the_engine_that_verl_names(
    monkeypatch: pytest.MonkeyPatch, random: torch.Generator
) -> None:
    with pytest.raises(errors.UsageError, match="engine_kwargs.sparsecast.channels"):
        Threads(small_tensors(random), ["a"], monkeypatch, whole=True, channels="pigeons")
    with pytest.raises(TypeError, match="load"):
        Threads(small_tensors(random), ["a"], monkeypatch, whole=True, load="changed")

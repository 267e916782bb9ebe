# SPDX-License-Identifier: Apache-2.0
"""Syncs by NeMo-RL's own synchronizer and workers' mixins, with our checkpoint engine.

NeMo-RL's package is empty: SPARSECAST_NEMO_RL_SOURCE is a checkout (scripts/trainer_sources.sh).
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

SOURCE = os.environ.get("SPARSECAST_NEMO_RL_SOURCE", "")
if not SOURCE:
    pytest.skip("no source of NeMo-RL (SPARSECAST_NEMO_RL_SOURCE)", allow_module_level=True)
sys.path.insert(0, SOURCE)

import torch
from nemo_rl.utils.checkpoint_engines.base import create_checkpoint_engine
from nemo_rl_threads import TRANSPORT, Tensors, Threads, generation_config

from sparsecast import errors
from sparsecast.buffers import bits_of
from sparsecast.integrations import _node_files as files_module
from sparsecast.torch import Log, Subscriber

Make = Callable[..., Threads]


@pytest.fixture
def make(random: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Threads] = []

    def build(nodes: list[str], **options: Any) -> Threads:
        tensors = {f"layers.{i}.weight": torch.randn(501, 257 + i, generator=random) * 0.02 for i in range(12)}
        tensors = {name: value.to(torch.bfloat16) for name, value in tensors.items()}
        tensors["norm.weight"] = torch.ones(257)
        made.append(Threads(tensors, nodes, monkeypatch, **options))
        return made[-1]

    yield build
    for each in made:
        each.close()


def step(tensors: Tensors, generator: torch.Generator) -> int:
    """Moves an element of a hundred of the layers with an even number. Returns how many."""
    changed = 0
    for name, value in tensors.items():
        if not name.startswith("layers.") or int(name.split(".")[1]) % 2:
            continue
        bits = bits_of(value.view(-1))
        chosen = torch.rand(bits.shape, generator=generator) < 0.01
        bits[chosen] += 1
        changed += int(chosen.sum())
    return changed


EVEN = [f"layers.{i}.weight" for i in range(0, 12, 2)]


@pytest.mark.parametrize("nodes", [["a", "a"], ["a", "b"]], ids=["one node", "two nodes"])
def test_every_sync_leaves_every_worker_with_the_policys_bits(
    make: Make, random: torch.Generator, nodes: list[str]
) -> None:
    threads = make(nodes)
    figures = threads.sync()
    assert figures.sent_tensors == figures.tensors == 13
    assert all(len(worker.batches) > 1 for worker in threads.rollouts)
    threads.assert_same()
    for _ in range(3):
        changed = step(threads.tensors, random)
        figures = threads.sync()
        assert figures.changed == changed and figures.sent_tensors == 6
        assert figures.record_bytes < 2 * changed
        assert threads.loaded() == [EVEN] * 4
        threads.assert_same()


def test_a_step_that_changes_nothing_sends_and_loads_nothing(make: Make) -> None:
    threads = make(["a"])
    threads.sync()
    assert threads.sync().record_bytes == 0
    assert threads.loaded() == [[], []]


def test_load_all_hands_over_every_tensor(make: Make, random: torch.Generator) -> None:
    threads = make(["a"], load="all")
    threads.sync()
    step(threads.tensors, random)
    assert threads.sync().sent_tensors == 6
    assert threads.loaded() == [list(threads.tensors)] * 2
    threads.assert_same()


def test_tensors_that_come_later_are_taken(make: Make) -> None:
    threads = make(["a", "b"])
    threads.sync()
    threads.tensors["layers.0.k_scale"] = torch.tensor(0.25)
    assert threads.sync().sent_tensors == 1
    threads.tensors["layers.0.k_scale"] = torch.tensor(0.5)
    assert threads.sync().changed == 1
    assert threads.loaded() == [["layers.0.k_scale"]] * 4
    threads.assert_same()


@pytest.mark.parametrize("nodes", [["a", "a"], ["a", "b"]], ids=["one node", "two nodes"])
def test_the_records_may_go_through_a_log_that_others_read(
    make: Make, random: torch.Generator, nodes: list[str], tmp_path: pathlib.Path
) -> None:
    threads = make(nodes, log=str(tmp_path / "log"), release_after_refit=True)
    assert threads.sync().sent_tensors == 13
    threads.assert_same()
    held = {name: torch.zeros_like(value) for name, value in threads.tensors.items()}
    reader = Subscriber(held.items(), transport=Log(tmp_path / "log", state=tmp_path / "reader"))
    for _ in range(2):
        changed = step(threads.tensors, random)
        figures = threads.sync()
        assert figures.changed == changed and figures.sent_tensors == 6 and figures.record_bytes < 2 * changed
        assert threads.loaded() == [EVEN] * 4
        threads.assert_same()
        reader.update()
        assert all(torch.equal(bits_of(held[name]), bits_of(value)) for name, value in threads.tensors.items())
    threads.tensors["layers.0.k_scale"] = torch.tensor(0.25)
    with pytest.raises(errors.UsageError, match=r"tensor 'layers.0.k_scale': .* a log keeps to the tensors"):
        threads.sync()
    del threads.tensors["layers.0.k_scale"]
    threads.rollouts[-1].fail = True
    with pytest.raises(RuntimeError, match="the loader is broken"):
        threads.sync()
    threads.rollouts[-1].fail = False
    step(threads.tensors, random)
    assert threads.sync().sent_tensors == 13
    threads.assert_same()


def test_a_copy_that_was_altered_is_refused_before_anything_is_loaded_and_the_next_sync_heals_it(
    make: Make, random: torch.Generator
) -> None:
    threads = make(["a", "b"], release_after_refit=True)
    threads.sync()
    held = threads.copies()
    threads.rollouts[2].checkpoint_engine._mirror.flat_bits("layers.4.weight")[7] ^= 1
    step(threads.tensors, random)
    with pytest.raises(errors.Error, match="nothing of this sync was loaded, the next one sends everything"):
        threads.sync()
    assert threads.loaded() == [[]] * 4
    assert all(old[name] is new[name] for old, new in zip(held, threads.copies(), strict=True) for name in old)
    assert threads.sync().sent_tensors == 13
    threads.assert_same()
    step(threads.tensors, random)
    assert threads.sync().sent_tensors == 6
    threads.assert_same()


def test_a_loader_that_fails_raises_in_nemo_rl_and_the_next_sync_sends_everything(
    make: Make, random: torch.Generator
) -> None:
    threads = make(["a", "b"], release_after_refit=True)
    threads.sync()
    threads.rollouts[1].fail = True
    step(threads.tensors, random)
    with pytest.raises(RuntimeError, match="the loader is broken"):
        threads.sync()
    threads.rollouts[1].fail = False
    assert threads.sync().sent_tensors == 13
    threads.assert_same()


def test_a_model_that_changes_its_shape_is_refused_and_without_release_the_next_sync_names_the_cure(make: Make) -> None:
    threads = make(["a"])
    threads.sync()
    threads.tensors["norm.weight"] = torch.ones(3)
    with pytest.raises(errors.UsageError, match=r"tensor 'norm.weight': it has shape \[3\], and had \[257\]"):
        threads.sync()
    with pytest.raises(errors.UsageError, match="release_after_refit: true"):
        threads.sync()


def test_a_name_that_comes_twice_is_refused_after_every_rank_has_exported_to_the_end(make: Make) -> None:
    threads = make(["a"])
    threads.tensors["norm.weight'"] = torch.ones(3)
    threads.tensors["last.weight"] = torch.ones(3)
    with pytest.raises(errors.UsageError, match="tensor 'norm.weight': the policy exports two tensors of this name"):
        threads.sync()
    assert threads.errors[1] is None  # The policy's second rank was not left alone in a gather.


def test_memory_that_workers_cannot_share_is_refused_with_the_cure(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files_module.os, "posix_fallocate", full)
    with pytest.raises(errors.Error, match="No space left on device.*shared_dir.*--shm-size"):
        make(["a"]).sync()


@pytest.mark.parametrize(
    ("options", "sentence"), [({"channels": "mpi"}, "'control' or 'nccl'"), ({"load": "some"}, "'changed' or 'all'")]
)
def test_options_that_do_not_exist_are_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(errors.UsageError, match=sentence):
        create_checkpoint_engine(TRANSPORT, bucket_size_bytes=1 << 20, engine_kwargs=options)
    with pytest.raises(TypeError, match="shard_expert_weights"):
        create_checkpoint_engine(TRANSPORT, bucket_size_bytes=1 << 20, engine_kwargs={"shard_expert_weights": True})


def test_a_worker_that_uses_another_transport_is_found_when_ranks_meet() -> None:
    options = generation_config()["refit_cfg"][TRANSPORT]
    engine = create_checkpoint_engine(TRANSPORT, bucket_size_bytes=1 << 20, engine_kwargs=options)
    with pytest.raises(errors.GroupMismatchError, match="1 of 2 workers use this class"):
        engine.init_rollout_process_group(
            rollout_rank=0, train_world_size=1, rollout_world_size=1, metadata=[{}, engine.prepare()]
        )

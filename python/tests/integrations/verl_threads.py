# SPDX-License-Identifier: Apache-2.0
"""A trainer of one rank and rollout workers as threads, without Ray: for what has to be broken in the middle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl.workers.engine.base import BaseEngine
from verl.workers.engine.spec import ShardSpec
from verl.workers.engine.utils import _hf_entry_identity, hf_delta_export

from sparsecast.buffers import bits_of
from sparsecast.integrations.verl import SparsecastCheckpointEngine, WholeTensorCheckpointEngine, group

Tensors = dict[str, torch.Tensor]


class PlainEngine(BaseEngine):
    """verl's base class with tensors of its own, which nobody shards; snapshots and export are verl's."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    def get_per_tensor_param(self, **_: Any) -> tuple[Iterator[tuple[str, torch.Tensor]], None]:
        return iter(self.tensors.items()), None

    def get_per_tensor_param_shard(self, **_: Any) -> tuple[Iterator[Any], None]:
        return ((name, value.view(-1), ShardSpec.from_param(value)) for name, value in self.tensors.items()), None

    def get_per_tensor_param_delta_shard(self, **_: Any) -> tuple[Iterator[Any], None]:
        return hf_delta_export(self.get_per_tensor_param_shard()[0], self._delta_shard_snap, _hf_entry_identity), None


def write_patch(held: Tensors, named: list[tuple[str, torch.Tensor]]) -> None:
    """Applies a flush by verl's own decoder to tensors by name."""
    from verl.workers.rollout.vllm_rollout import delta_weight_transfer

    delta_weight_transfer._checkpoint_patch_api = lambda: (SimpleNamespace, None)
    for patch in delta_weight_transfer.decode_delta_payload(named)[1]:
        if patch.indices is None:
            held[patch.name] = patch.values.clone().view(patch.shape)
        else:
            held[patch.name].view(-1)[patch.indices.long()] = patch.values


class Threads:
    """`sync()` returns the trainer's figures, or raises; `errors` are what every rank raised (None: nothing)."""

    def __init__(
        self,
        tensors: Tensors,
        nodes: list[str],
        monkeypatch: pytest.MonkeyPatch,
        *,
        whole: bool = False,
        **options: Any,
    ) -> None:
        """With `whole`, the engine is that of whole tensors, which verl hands exported tensors."""
        self.whole = whole
        self.kind = WholeTensorCheckpointEngine if whole else SparsecastCheckpointEngine
        monkeypatch.setattr(group.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
        monkeypatch.setattr(
            group.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "of a thread")
        )
        self.trained = PlainEngine(tensors)
        self.options = {"bucket_size": 1 << 20, "timeout": 10.0, "threads": 1, **options}
        self.sender = self.kind(is_master=True, **self.options)
        self.nodes = nodes
        self.receivers = [self.kind(**self.options) for _ in nodes]
        self.held: list[Tensors] = [{} for _ in nodes]
        self.taken: list[list[Any]] = [[] for _ in nodes]
        self.errors: list[BaseException | None] = []
        self.step = 0
        self.meetings = 0
        self.alter_meeting: Callable[[dict[str, Any]], dict[str, Any]] = dict

    def restart(self, index: int) -> None:
        self.receivers[index] = self.kind(**self.options)
        self.held[index] = {}

    def meet(self) -> None:
        metadata = [self.sender.prepare(), *(receiver.prepare() for receiver in self.receivers)]
        for data, node in zip(metadata[1:], self.nodes, strict=True):
            data["node"] = node
        actors, rollouts = self.kind.build_topology(1, len(self.receivers), metadata)
        self.meetings += actors["meeting"][0] is not None
        calls = [lambda: self.sender.init_process_group(**{name: each[0] for name, each in actors.items()})]
        for index, receiver in enumerate(self.receivers):
            own = {name: each[index] for name, each in rollouts.items()}
            if own["meeting"] is not None:
                own["meeting"] = self.alter_meeting(own["meeting"])
            calls.append(lambda receiver=receiver, own=own: receiver.init_process_group(**own))
        self._run(calls)

    def sync(self, steps: list[int] | None = None) -> dict[str, float]:
        self.step += 1
        steps = steps or [self.step] * (1 + len(self.receivers))
        self.meet()
        weights = self.trained.get_per_tensor_param()[0] if self.whole else self.trained
        calls = [lambda: asyncio.run(self.sender.send_weights(weights, global_steps=steps[0]))]
        for index in range(len(self.receivers)):
            calls.append(lambda index=index: self._take(index, steps[1 + index]))
        figures: dict[str, float] = self._run(calls)[0]
        return {name.removeprefix("checkpoint_engine/"): value for name, value in figures.items()}

    def _take(self, index: int, step: int) -> None:
        self.taken[index].clear()
        if self.whole:
            for name, tensor in self.receivers[index].receive_weights(global_steps=step):
                self.taken[index].append(name)
                self.held[index][name] = tensor
            return
        for named, is_last in self.receivers[index].receive_weights(global_steps=step):
            self.taken[index].append((named, is_last))
            write_patch(self.held[index], named)

    def _run(self, calls: list[Callable[[], Any]]) -> list[Any]:
        results: list[Any] = [None] * len(calls)
        self.errors = [None] * len(calls)

        def run(index: int) -> None:
            try:
                results[index] = calls[index]()
            except BaseException as error:
                self.errors[index] = error

        threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        for error in self.errors:
            if error is not None:
                raise error
        return results

    def assert_same(self) -> None:
        for held in self.held:
            assert held.keys() == self.trained.tensors.keys()
            for name, value in self.trained.tensors.items():
                assert torch.equal(bits_of(held[name]), bits_of(value)), name

    def copies(self) -> list[Tensors]:
        return [{name: value.clone() for name, value in held.items()} for held in self.held]

    def assert_untouched(self, copies: list[Tensors]) -> None:
        for held, copy in zip(self.held, copies, strict=True):
            assert held.keys() == copy.keys()
            assert all(torch.equal(bits_of(held[name]), bits_of(copy[name])) for name in copy)


def random_step(tensors: Tensors, generator: torch.Generator, density: float) -> int:
    """Moves some elements by one or two representable values. Returns how many."""
    changed = 0
    for value in tensors.values():
        bits = bits_of(value.view(-1))
        chosen = torch.rand(bits.shape, generator=generator) < density
        moves = torch.randint(1, 3, (int(chosen.sum()),), generator=generator).to(bits.dtype)
        bits[chosen] += moves
        changed += int(chosen.sum())
    return changed


def small_tensors(generator: torch.Generator) -> Tensors:
    made = {f"layers.{i}.weight": torch.randn(67, 129 + i, generator=generator) * 0.02 for i in range(6)}
    made["norm.weight"] = torch.ones(129)
    return {name: value.to(torch.bfloat16) for name, value in made.items()}


def healed(threads: Threads, random: torch.Generator) -> None:
    random_step(threads.trained.tensors, random, 0.02)
    assert threads.sync()["seed"] == 1
    threads.assert_same()
    random_step(threads.trained.tensors, random, 0.02)
    assert threads.sync()["seed"] == 0
    threads.assert_same()

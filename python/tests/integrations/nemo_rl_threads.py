# SPDX-License-Identifier: Apache-2.0
"""A policy of two ranks and vLLM workers as threads, driven by NeMo-RL's own synchronizer and worker mixins.

Of NeMo-RL: the configuration, the synchronizer, what it calls in policy workers (with the sender's mixins) and in vLLM's
(with the receiver's loop). Ray's calls are threads; the policy has plain tensors, and vLLM's loader writes by name.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nemo_rl.models.generation.vllm import checkpoint_engine as vllm_end
from nemo_rl.models.policy.workers.checkpoint_engine import (
    DTensorCheckpointEngineSendMixin,
    PolicyCheckpointEngineMixin,
)
from nemo_rl.weight_sync import checkpoint_engine_weight_synchronizer as synchronizer_module
from nemo_rl.weight_sync.checkpoint_engine_config import checkpoint_engine_refit_config

from sparsecast.buffers import bits_of
from sparsecast.integrations.nemo_rl import engine as engine_module

TRANSPORT = "sparsecast.integrations.nemo_rl:CheckpointEngine"
POLICY_RANKS = 2
TENSOR_PARALLEL = 2
MEMORY = 20 << 20
"""Of what the workers say that their GPUs have; NeMo-RL takes a twentieth for a batch of weights."""

Tensors = dict[str, torch.Tensor]


def generation_config(**options: Any) -> dict[str, Any]:
    """Returns policy.generation of NeMo-RL's configuration, as far as weights are concerned."""
    return {
        "refit_transport": TRANSPORT,
        "refit_cfg": {TRANSPORT: {"timeout": 20.0, "threads": 1, "host": "127.0.0.1", **options}},
        "vllm_cfg": {"async_engine": False},
    }


class PolicyWorker(DTensorCheckpointEngineSendMixin, PolicyCheckpointEngineMixin):
    """One rank; all ranks have the same tensors, as after a gather, and meet at each of them, as a gather does."""

    cpu_offload = False

    def __init__(self, rank: int, tensors: Tensors, barrier: threading.Barrier) -> None:
        self.rank = rank
        self.tensors = tensors
        self._barrier = barrier

    def _checkpoint_engine_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.tensors.items():
            self._barrier.wait(20)
            yield name.rstrip("'"), tensor.clone()

    def checkpoint_engine_rpc(self, checkpoint_method: str, method_kwargs: Any = None) -> Any:
        if checkpoint_method == "checkpoint_engine_total_memory_bytes":
            return MEMORY  # NeMo-RL asks CUDA.
        return asyncio.run(super().checkpoint_engine_rpc(checkpoint_method, method_kwargs))


class _Loader:
    """vLLM's end: NeMo-RL's worker extension calls its model's load_weights."""

    def _load_hf_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        if self.fail:
            raise RuntimeError("the loader is broken")
        for name, value in weights:
            self.held[name] = value.clone()
            value.fill_(7)  # A loader may do what it likes with what it is given.

    def _load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.batches.append([name for name, _ in weights])
        self._load_hf_weights(weights)

    def _maybe_process_fp8_kv_cache(self) -> None:
        pass


class RolloutWorker(vllm_end.VllmCheckpointEngineMixin, _Loader):
    """One worker of vLLM. `rank` is that in its engine."""

    def __init__(self, rank: int, node: str) -> None:
        self.rank = rank
        self.node = node
        self.held: Tensors = {}
        self.batches: list[list[str]] = []
        self.fail = False

    def checkpoint_engine_total_memory_bytes(self) -> int:
        return MEMORY


class RolloutEngine(vllm_end.VllmCheckpointEngineRpcMixin):
    """A vLLM engine: asks its tensor-parallel workers, each in a thread."""

    def __init__(self, run: Callable[..., list[Any]], workers: list[RolloutWorker]) -> None:
        self.llm = SimpleNamespace(
            collective_rpc=lambda method, args: run([(worker, getattr(worker, method), args) for worker in workers])
        )


class _WorkerGroup:
    def __init__(self, pool: Any, actors: list[Any], workers: list[Any]) -> None:
        self._pool = pool
        self._actors = actors
        self.workers = workers

    def run_all_workers_single_data(self, method: str, run_rank_0_only_axes: Any = None, **kwargs: Any) -> list[Any]:
        return [self._pool.submit(getattr(actor, method), **kwargs) for actor in self._actors]

    def run_all_workers_multiple_data(
        self, method: str, *, method_args: list[Any], run_rank_0_only_axes: Any, common_kwargs: dict[str, Any]
    ) -> list[Any]:
        return [
            self._pool.submit(getattr(actor, method), method_args=each, **common_kwargs)
            for actor, each in zip(self._actors, method_args, strict=True)
        ]


class Threads:
    """Engines of two workers each; `nodes` are where the workers of each say that they are."""

    def __init__(self, tensors: Tensors, nodes: list[str], monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.tensors = tensors
        self._here = threading.local()
        self._pool = concurrent.futures.ThreadPoolExecutor(32)
        self._stand_in(monkeypatch)
        barrier = threading.Barrier(POLICY_RANKS)
        self.policy = [PolicyWorker(rank, tensors, barrier) for rank in range(POLICY_RANKS)]
        engines = [[RolloutWorker(rank, node) for rank in range(TENSOR_PARALLEL)] for node in nodes]
        self.rollouts = [worker for workers in engines for worker in workers]
        config = generation_config(**options)
        self.synchronizer = synchronizer_module.CheckpointEngineWeightSynchronizer(
            SimpleNamespace(worker_group=_WorkerGroup(self._pool, self.policy, self.policy)),
            SimpleNamespace(
                cfg=config,
                dp_size=len(nodes),
                worker_group=_WorkerGroup(
                    self._pool, [RolloutEngine(self._on_workers, workers) for workers in engines], self.rollouts
                ),
            ),
            checkpoint_engine_refit_config(config),
        )

    def _stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replaces Ray, and what of torch needs a GPU or a process of its own."""
        monkeypatch.setattr(synchronizer_module, "ray", SimpleNamespace(get=self._get))
        distributed = SimpleNamespace(
            get_rank=lambda: self._here.worker.rank, get_world_size=lambda: TENSOR_PARALLEL, is_initialized=lambda: True
        )
        cuda = SimpleNamespace(current_stream=lambda: SimpleNamespace(synchronize=lambda: None))
        monkeypatch.setattr(vllm_end, "torch", SimpleNamespace(distributed=distributed, cuda=cuda))
        monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda *_: None)
        monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda *_: None)
        who_shares = engine_module._who_shares

        def node(directory: str) -> str:
            worker = getattr(self._here, "worker", None)
            return who_shares(directory) + (worker.node if worker else "")

        monkeypatch.setattr(engine_module, "_who_shares", node)

    def _get(self, futures: list[Any]) -> list[Any]:
        """As Ray: waits for all, and raises the first error."""
        concurrent.futures.wait(futures, 100)
        self.errors = [future.exception(0) for future in futures]
        return [future.result(0) for future in futures]

    def _on_workers(self, calls: list[Any]) -> list[Any]:
        def call(worker: RolloutWorker, method: Callable[..., Any], arguments: Any) -> Any:
            self._here.worker = worker
            return method(*arguments)

        futures = [self._pool.submit(call, *each) for each in calls]
        concurrent.futures.wait(futures, 100)
        return [future.result(0) for future in futures]

    def sync(self) -> Any:
        """One sync, by NeMo-RL's synchronizer. Returns the figures of the policy's first rank."""
        for worker in self.rollouts:
            worker.batches = []
        self.synchronizer.sync_weights()
        return self.policy[0].checkpoint_engine.figures

    def loaded(self) -> list[list[str]]:
        return [[name for batch in worker.batches for name in batch] for worker in self.rollouts]

    def copies(self) -> list[Tensors]:
        return [dict(worker.held) for worker in self.rollouts]

    def assert_same(self) -> None:
        for worker in self.rollouts:
            assert worker.held.keys() == self.tensors.keys()
            for name, value in self.tensors.items():
                assert torch.equal(bits_of(worker.held[name].reshape(-1)), bits_of(value.reshape(-1))), name

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

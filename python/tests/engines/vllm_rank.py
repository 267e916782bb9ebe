# SPDX-License-Identifier: Apache-2.0
"""One worker of a vLLM server without its scheduler and its kernels: the real worker's weight-transfer methods, driven
by pairs of a method and its arguments, answered by pairs of ("value", value) or (name of an exception, its words).
"""

from __future__ import annotations

import contextlib
import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import vllm_models as models

# isort: split
import vllm_adapters
import vllm_drafts as drafts
import vllm_gpu_kernels
from safetensors.torch import load_file
from vllm.config import WeightTransferConfig, set_current_vllm_config
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.plugins import load_general_plugins
from vllm.v1.worker.gpu_worker import Worker

from sparsecast.engines.vllm import WorkerExtension
from sparsecast.engines.vllm.plugin import register


class Runner:
    """The model runner's part in updates."""

    def __init__(self, draft: torch.nn.Module | None = None) -> None:
        self._draft = draft

    def get_draft_model(self) -> torch.nn.Module | None:
        return self._draft

    def reset_lora_state(self) -> None:
        pass


class ExtendedWorker(Worker, WorkerExtension):  # type: ignore[misc]
    """The worker as vLLM makes it with --worker-extension-cls."""


class Rank:
    """A worker of the server; `open` gives it a model."""

    def __init__(self, rank: int, size: int) -> None:
        load_general_plugins()
        register()  # The entry point does the same where the package is installed; twice does no harm.
        self.rank = rank
        self.size = size
        self.kind = ""
        self.with_experts = False
        self.kernels = contextlib.ExitStack()

    def open(self, kind: str, folder: str, store: str, kernels: str = "") -> None:
        """A new model in the place of the one before, loaded by vLLM's own loader; its checkpoint is in `folder`,
        and `store` is a file that does not exist yet, where the ranks find each other. `kernels` are those of
        `vllm_gpu_kernels`, or "swapped" for experts that are kept in the order of another kernel."""
        self._leave()
        self.with_experts = bool(kernels)
        if kernels == "swapped":
            self.kernels.enter_context(vllm_gpu_kernels.swapped_experts())
        elif kernels:
            self.kernels.enter_context(vllm_gpu_kernels.chosen(kernels))
        self.kind = kind
        self.config = models.config(kind, self.size, Path(folder))
        self.config.weight_transfer_config = WeightTransferConfig(backend="sparsecast")
        models.start(self.config, self.rank, store)
        self.model = models.build(self.config)
        self.load(self.model, seed=1, updates=0)
        self._make_worker(Worker, Runner())

    def open_with_draft(self, folder: str, store: str) -> None:
        """A Llama in `folder` with an EAGLE head, whose files are in the folder `head` there."""
        self._leave()
        self.kind = "llama"
        head = Path(folder) / "head"
        self.config = drafts.config("llama", Path(folder), "eagle", drafts.write_config(head, drafts.EAGLE_CONFIG))
        self.config.weight_transfer_config = WeightTransferConfig(backend="sparsecast")
        models.start(self.config, self.rank, store)
        self.head = drafts.tensors_of(drafts.eagle_shapes(embeddings=True), seed=9)
        self.pair = drafts.build(self.config, self.head)
        self.model = self.pair.target
        self.pair.load(models.checkpoint("llama", seed=1), self.head)
        self._make_worker(ExtendedWorker, Runner(self.pair.draft))

    def open_with_adapters(self, kind: str, folder: str, store: str, fully_sharded: bool) -> None:
        """A model in the place of the one before, in a worker with --enable-lora (vllm_adapters.py)."""
        self._leave()
        self.kind = kind
        self.config = vllm_adapters.with_adapters(
            models.config(kind, self.size, Path(folder)), fully_sharded=fully_sharded
        )
        models.start(self.config, self.rank, store)
        self.worker = vllm_adapters.AdapterRank(self.config)

    def open_with_low_bit_draft(self, folder: str, store: str, form: str) -> None:
        """The same with a head in a format of `low_bit`, loaded from its files."""
        self._leave()
        self.kind = "llama"
        self.kernels.enter_context(vllm_gpu_kernels.chosen())
        self.config, _ = drafts.low_bit_config(Path(folder), form, "eagle")
        self.config.weight_transfer_config = WeightTransferConfig(backend="sparsecast")
        models.start(self.config, self.rank, store)
        self.head = dict(sorted(load_file(Path(folder) / "head" / "model.safetensors").items()))
        self.pair = drafts.loaded(self.config, self._with_head(models.checkpoint("llama", seed=1)), "eagle/")
        self.model = self.pair.target
        self._make_worker(ExtendedWorker, Runner(self.pair.draft))

    def _with_head(self, target: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**target, **{f"eagle/{name}": tensor for name, tensor in self.head.items()}}

    def draft_differing(self, updates: int) -> list[str]:
        """Live tensors of target and draft that are not what fresh loads make after so many updates of both."""
        tensors = self._with_head(models.checkpoint("llama", seed=1))
        for update in range(updates):
            tensors = models.random_updates(tensors, seed=100 + update)
        return self.pair.differing(drafts.loaded(self.config, tensors, "eagle/"))

    def _leave(self) -> None:
        self.kernels.close()
        if self.kind:
            if isinstance(self.worker, Worker):
                self.worker.shutdown_weight_transfer_engine()
            models.stop()

    def _make_worker(self, kind: type[Worker], runner: Runner) -> None:
        self.worker = object.__new__(kind)
        self.worker.vllm_config = self.config
        self.worker.rank = self.rank
        self.worker.model_runner = runner
        self.worker._weight_update_active = False
        self.worker._weight_update_is_draft = False
        self.worker.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
            self.config.weight_transfer_config, self.config, torch.device("cpu"), self.model
        )

    def load(self, model: torch.nn.Module, seed: int, updates: int) -> None:
        tensors = models.checkpoint(self.kind, seed)
        for update in range(updates):
            tensors = models.random_updates(tensors, seed=100 + update)
        if self.kind in {*models.COMPUTED, *models.layouts.CELLS, *models.low_bit.CELLS}:
            models.load(model, self.config, tensors, with_experts=self.with_experts)
            return
        with set_current_vllm_config(self.config):
            model.load_weights(iter(tensors.items()))

    def differing(self, updates: int) -> list[str]:
        """Live tensors that are not what a fresh load of the whole checkpoint makes, bit for bit."""
        fresh = models.build(self.config)
        self.load(fresh, seed=1, updates=updates)
        return models.differing(self.model, fresh)

    def swap_gate_and_up(self) -> None:
        """What kernels do that want [up, gate]: same shape, same parameter, other places."""
        for module in self.model.modules():
            if hasattr(module, "gate_up_proj"):
                weight = module.gate_up_proj.weight.data
                weight.copy_(torch.cat(weight.chunk(2)[::-1]))

    def addresses(self) -> list[int]:
        return [t.data_ptr() for t in (*self.model.parameters(), *self.model.buffers())]

    def status(self) -> dict[str, Any]:
        return dict(self.worker.weight_transfer_engine.status())

    def abandon(self, reason: str) -> None:
        """The worker leaves its group, as after a failure."""
        self.worker.weight_transfer_engine.receiver.abandon(reason)

    def audit(self) -> dict[str, Any]:
        return dict(self.worker.weight_transfer_engine.audit())

    def flip_a_bit_of(self, live: str) -> None:
        tensor = dict(self.model.named_parameters())[live].data
        models.bits_of(tensor)[(0,) * tensor.dim()] ^= 1

    def flip_a_bit(self) -> None:
        models.bits_of(next(iter(self.model.parameters())).data).view(-1)[3] ^= 1

    def flip_a_bit_of_the_draft(self) -> None:
        models.bits_of(self.pair.draft.model.fc.weight.data).view(-1)[3] ^= 1

    def receipt(self) -> dict[str, Any]:
        return dict(vars(self.worker.weight_transfer_engine.last_receipt))

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        return getattr(self if hasattr(self, name) else self.worker, name)(**arguments)


def serve(calls: Connection, rank: int, size: int, environment: dict[str, str]) -> None:
    """Answers calls in a process of its own until it is killed."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    worker = Rank(rank, size)
    calls.send(("value", "ready"))
    while True:
        name, arguments = calls.recv()
        try:
            calls.send(("value", worker.call(name, arguments)))
        except Exception as error:
            calls.send((type(error).__name__, str(error)))

# SPDX-License-Identifier: Apache-2.0
"""One worker of a vLLM server without its scheduler and its kernels: the real worker's weight-transfer methods, driven
by lines of JSON on stdin ({"call": method, "arguments": {...}}), answered by lines that start with "REPLY ".

    python vllm_rank.py '{"rank": 0, "size": 2}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import vllm_models as models
from vllm.config import WeightTransferConfig, set_current_vllm_config
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.plugins import load_general_plugins
from vllm.v1.worker.gpu_worker import Worker

from sparsecast.engines.vllm_plugin import register


class NoLora:
    """The model runner's part in finish_weight_update."""

    def reset_lora_state(self) -> None:
        pass


class Rank:
    """A worker of the server; `open` gives it a model."""

    def __init__(self, rank: int, size: int) -> None:
        load_general_plugins()
        register()  # The entry point does the same where the package is installed; twice does no harm.
        self.rank = rank
        self.size = size
        self.kind = ""

    def open(self, kind: str, folder: str, store: str) -> None:
        """A new model in the place of the one before, loaded by vLLM's own loader; its checkpoint is in `folder`,
        and `store` is a file that does not exist yet, where the ranks find each other."""
        if self.kind:
            self.worker.shutdown_weight_transfer_engine()
            models.stop()
        self.kind = kind
        self.config = models.config(kind, self.size, Path(folder))
        self.config.weight_transfer_config = WeightTransferConfig(backend="sparsecast")
        models.start(self.config, self.rank, store)
        self.model = models.build(self.config)
        self.load(self.model, seed=1, updates=0)
        self.worker = object.__new__(Worker)
        self.worker.vllm_config = self.config
        self.worker.rank = self.rank
        self.worker.model_runner = NoLora()
        self.worker._weight_update_active = False
        self.worker._weight_update_is_draft = False
        self.worker.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
            self.config.weight_transfer_config, self.config, torch.device("cpu"), self.model
        )

    def load(self, model: torch.nn.Module, seed: int, updates: int) -> None:
        tensors = models.checkpoint(self.kind, seed)
        for update in range(updates):
            tensors = models.random_updates(tensors, seed=100 + update)
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

    def status(self) -> dict[str, Any]:
        return dict(self.worker.weight_transfer_engine.status())

    def abandon(self, reason: str) -> None:
        """The worker leaves its group, as after a failure."""
        self.worker.weight_transfer_engine.receiver.abandon(reason)

    def audit(self) -> dict[str, Any]:
        return dict(self.worker.weight_transfer_engine.audit())

    def flip_a_bit(self) -> None:
        models.bits_of(next(iter(self.model.parameters())).data).view(-1)[3] ^= 1

    def receipt(self) -> dict[str, Any]:
        return dict(vars(self.worker.weight_transfer_engine.last_receipt))

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        return getattr(self if hasattr(self, name) else self.worker, name)(**arguments)


def main() -> None:
    rank = Rank(**json.loads(sys.argv[1]))
    print("REPLY " + json.dumps({"value": "ready"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply: dict[str, Any] = {"value": rank.call(request["call"], request["arguments"])}
        except Exception as error:
            reply = {"error": type(error).__name__, "words": str(error)}
        print("REPLY " + json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A stub of a vLLM server for TRL, with one real rank that holds a model's weights."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import torch

import sparsecast
from sparsecast import ShardedSubscriber
from sparsecast.errors import UsageError
from sparsecast.torch import shards_of

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("control", "adapters")]

from adapter_server import AdapterRoutes  # noqa: E402
from stub_engines import StubEngine  # noqa: E402
from stub_source import StubSource  # noqa: E402


class TrlServer(StubEngine):
    """`weights` are its live memory, by name. The rest is what it says of itself."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        *,
        backend: str | None = "sparsecast",
        development: bool = True,
        dtype: str = "bfloat16",
        lora: bool = False,
    ) -> None:
        super().__init__("vllm", StubSource())
        self.weights = {name: tensor.detach().to(getattr(torch, dtype), copy=True) for name, tensor in weights.items()}
        self.backend = backend
        self.development = development
        self.dtype = dtype
        self.lora = lora
        self.lora_updates = True
        self.adapters = AdapterRoutes("vllm", max_rank=16)
        self.anchored: list[bool] = []
        self.subscriber: ShardedSubscriber | None = None
        self._receiving: threading.Thread | None = None
        self._failure: Exception | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def paths(self) -> list[str]:
        """Paths of the calls so far."""
        return [path for _, path, _, _ in self.calls]

    def _vllm_routes(self) -> dict[tuple[str, str], Any]:
        everywhere: dict[tuple[str, str], Any] = {
            ("GET", "/health"): lambda body, query: {},
            ("GET", "/v1/models"): lambda body, query: {"data": [{"id": "m", "max_model_len": 64}]},
        }
        if not self.development:
            return everywhere
        if self.lora and self.lora_updates:
            everywhere.update(self.adapters.routes())
            everywhere["GET", "/v1/load_lora_adapter"] = lambda body, query: {}  # vLLM answers 405.
        return {
            **super()._vllm_routes(),
            **everywhere,
            ("GET", "/server_info"): lambda body, query: {"vllm_config": self._config()},
        }

    def _config(self) -> dict[str, Any]:
        return {
            "weight_transfer_config": {"backend": self.backend} if self.backend else None,
            "lora_config": {"max_lora_rank": 16, "lora_dtype": "torch.bfloat16"} if self.lora else None,
            "model_config": {"dtype": f"torch.{self.dtype}"},
        }

    def _join(self, info: dict[str, Any]) -> dict[str, Any]:
        self.anchored.append(bool(info.get("needs_anchor")))
        for name, _, _ in info["tensors"]:
            if name not in self.weights:
                raise UsageError(f"the engine's model has no place for '{name}'")
        if self.subscriber is None or self.anchored[-1]:
            shards = shards_of(list(self.weights.items()))
            described = [sparsecast.describe(tensor) for tensor in shards.tensors]
            self.subscriber = ShardedSubscriber(
                info["engine"], shards.layout, 0, described, needs_anchor=self.anchored[-1]
            )
        channel = sparsecast.meet(
            info["host"],
            info["port"],
            rank=info["rank_offset"],
            size=info["world_size"],
            secret=info["secret"],
            generation=info["generation"],
            timeout=info["timeout"],
        )
        self.subscriber.regroup(channel, channels=info["channels"], timeout=info["timeout"])
        self.timeout = info["timeout"]
        return {"success": True}

    def _begin(self) -> dict[str, Any]:
        answer = super()._begin()
        subscriber = self.subscriber
        assert subscriber is not None

        def work() -> None:
            try:
                subscriber.receive(self.timeout)
            except sparsecast.Error as error:
                self._failure = error

        self._failure = None
        self._receiving = threading.Thread(target=work, daemon=True)
        self._receiving.start()
        return answer

    def _phase(self, info: dict[str, Any]) -> dict[str, Any]:
        assert info["phase"] == "apply" and self.subscriber is not None and self._receiving is not None
        self._receiving.join(info["timeout"])
        if self._failure is not None:
            raise self._failure
        self.subscriber.apply(info["timeout"])
        return {"success": True, "message": ""}

    def _vllm_update(self, info: dict[str, Any]) -> dict[str, Any]:
        assert self.subscriber is not None
        self.source.version = self.subscriber.version  # what the update starts from, as the base class checks
        return super()._vllm_update(info)

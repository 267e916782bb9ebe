# SPDX-License-Identifier: Apache-2.0
"""A stub of the routes for adapters of vLLM and SGLang servers, which reads every version from its directory."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import torch

from sparsecast.adapters import Adapter
from sparsecast.errors import Error

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "control"))

from stub_engines import StubEngine
from stub_source import StubSource


class AdapterRoutes:
    """Adapters of a server of `kind` by name, and what it has refused to do.

    release   of vLLM. Before 0.33 it keeps `load_inplace` for all later requests, which a caller must not let happen.
    """

    def __init__(self, kind: str, *, release: str = "0.33.0", max_rank: int = 8) -> None:
        self.kind = kind
        self.release = release
        self.max_rank = max_rank
        self.served: dict[str, dict[str, torch.Tensor]] = {}
        self.paths: dict[str, str] = {}
        self.loads: list[str] = []

    def routes(self) -> dict[tuple[str, str], Any]:
        prefix = "/v1" if self.kind == "vllm" else ""
        return {
            ("GET", "/v1/models"): lambda body, query: {"data": self._cards()},
            ("GET", "/version"): lambda body, query: {"version": self.release},
            ("POST", f"{prefix}/load_lora_adapter"): lambda body, query: self._load(body),
            ("POST", f"{prefix}/unload_lora_adapter"): lambda body, query: self._unload(body["lora_name"]),
        }

    def restart(self) -> None:
        """As a server that was started again."""
        self.served, self.paths = {}, {}

    def _cards(self) -> list[dict[str, Any]]:
        base = {"id": "m", "root": "/models/m", "parent": None, "max_model_len": 64}
        return [base] + [{"id": name, "root": path, "parent": "m"} for name, path in self.paths.items()]

    def _load(self, body: dict[str, Any]) -> str:
        name, path, in_place = body["lora_name"], body["lora_path"], body.get("load_inplace", False)
        assert not (in_place and self.release.startswith("0.32")), "vLLM would read it again at every step"
        if name in self.served and not in_place:
            raise ValueError(f"The lora adapter '{name}' has already been loaded")
        assert path not in self.loads, "caches would take it for the version before"
        self.loads.append(path)
        try:
            read = Adapter.from_directory(path, name)
        except Error as error:
            raise ValueError(str(error)) from error
        if read.config["r"] > self.max_rank:
            raise ValueError(f"rank {read.config['r']} is above {self.max_rank}")
        self.served[name], self.paths[name] = dict(read.tensors), path
        return f"Success: LoRA adapter '{name}' added successfully."

    def _unload(self, name: str) -> str:
        if name not in self.served:
            raise ValueError(f"The lora adapter '{name}' cannot be found.")
        del self.served[name], self.paths[name]
        return f"Success: LoRA adapter '{name}' removed successfully."


class AdapterStub(StubEngine):
    """A server with these routes alone."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(kind, StubSource())
        self.adapters = AdapterRoutes(kind, **options)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _vllm_routes(self) -> dict[tuple[str, str], Any]:
        return self.adapters.routes()

    def _sglang_routes(self) -> dict[tuple[str, str], Any]:
        return self.adapters.routes()

# SPDX-License-Identifier: Apache-2.0
"""Small adapters, and an engine that reads each version from its directory, as engines do."""

from __future__ import annotations

import pathlib
from typing import Any

import torch

from sparsecast.adapters import Adapter
from sparsecast.errors import UnsupportedError

SHAPES = {"model.layers.0.self_attn.q_proj": (24, 16), "model.layers.0.mlp.down_proj": (16, 40)}


def make(name: str, seed: int = 0, rank: int = 4, dtype: torch.dtype = torch.bfloat16, **config: Any) -> Adapter:
    """An adapter for the modules of SHAPES, with numbers in B, too."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for module, (rows, columns) in SHAPES.items():
        for side, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            tensors[f"base_model.model.{module}.lora_{side}.weight"] = torch.randn(shape, generator=generator).to(dtype)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], **config}
    return Adapter(name, settings, tensors)


def step(adapter: Adapter, seed: int) -> int:
    """Changes a few elements of every tensor in place; returns how many."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in adapter.tensors.values():
        where = torch.randperm(tensor.numel(), generator=generator)[:3]
        tensor.view(-1)[where] = tensor.view(-1)[where] * 2 + 1
    return 3 * len(adapter.tensors)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n].view(torch.uint8), b[n].view(torch.uint8)) for n in a)


class ReadingEngine:
    """Serves what it has read. Refuses ranks above `max_rank`, and directories that it was given before."""

    def __init__(self, max_rank: int = 8) -> None:
        self.served: dict[str, dict[str, torch.Tensor]] = {}
        self.max_rank = max_rank
        self.paths: list[pathlib.Path] = []

    def load(self, name: str, directory: pathlib.Path, previous: pathlib.Path | None) -> None:
        assert directory not in self.paths, "caches would take it for the version before"
        assert (previous is not None) == (name in self.served)
        assert previous is None or previous.is_dir(), "requests under way still need it"
        self.paths.append(directory)
        read = Adapter.from_directory(directory, name)
        if read.config["r"] > self.max_rank:
            raise UnsupportedError(f"rank {read.config['r']} is above {self.max_rank}", f"adapter '{name}'")
        self.served[name] = dict(read.tensors)

    def unload(self, name: str) -> None:
        del self.served[name]

# SPDX-License-Identifier: Apache-2.0
"""Sources of vLLM's weight transfer, for either version of its interface."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
import vllm_models as models
from vllm.distributed.weight_transfer import base

LOCAL = hasattr(base.WeightSource, "iter_local")  # Since vLLM 0.33.


class Module(torch.nn.Module):
    """Parameters under the dotted names of a checkpoint."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            owner: torch.nn.Module = self
            *path, leaf = name.split(".")
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, torch.nn.Module())
                owner = owner._modules[part]  # type: ignore[assignment]
            owner.register_parameter(leaf, torch.nn.Parameter(tensor.clone(), requires_grad=False))

    def step(self, seed: int) -> None:
        """An optimizer step: some bits of every tensor change in place."""
        tensors = {name: p.data for name, p in self.named_parameters()}
        ordered = {name: tensors[name] for name in sorted(tensors, key=self.order)}
        for name, tensor in models.random_updates(ordered, seed).items():
            models.bits_of(tensors[name]).copy_(models.bits_of(tensor))

    names: list[str] = []

    def order(self, name: str) -> int:
        return self.names.index(name)


def module_of(kind: str) -> Module:
    tensors = models.checkpoint(kind, seed=1)
    module = Module(tensors)
    module.names = list(tensors)
    return module


class Whole(base.WeightSource):
    """Whole tensors, made anew in every pass, for both versions of vLLM."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    if LOCAL:

        @cached_property
        def metadata(self) -> list[Any]:
            return [base.ParamMeta(n, p.dtype, tuple(p.shape)) for n, p in self.module.named_parameters()]

        def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
            for name, parameter in self.module.named_parameters():
                yield name, parameter.detach().clone()

    else:

        def metadata(self) -> list[Any]:
            return [base.ParamMeta(n, p.dtype, tuple(p.shape)) for n, p in self.module.named_parameters()]

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            for name, parameter in self.module.named_parameters():
                yield name, parameter.detach().clone()

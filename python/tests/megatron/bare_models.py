# SPDX-License-Identifier: Apache-2.0
"""Modules that have parameters under Megatron-core's names, and nothing else of it."""

from __future__ import annotations

import torch


def add(model: torch.nn.Module, name: str, tensor: torch.Tensor, buffer: bool = False) -> None:
    """A parameter at this path, with modules on the way."""
    *path, last = name.split(".")
    for part in path:
        if part not in model._modules:
            model.add_module(part, torch.nn.Module())
        model = model.get_submodule(part)
    if buffer:
        model.register_buffer(last, tensor)
    else:
        model.register_parameter(last, torch.nn.Parameter(tensor))


def model_of(parameters: dict[str, torch.Tensor], layer_number: int = 3, **buffers: torch.Tensor) -> torch.nn.Module:
    """A chunk whose one layer is the ``layer_number``-th, counted from 1, of the whole model."""
    model = torch.nn.Module()
    for name, tensor in parameters.items():
        add(model, f"decoder.layers.0.{name}", tensor)
    for name, tensor in buffers.items():
        add(model, f"decoder.layers.0.{name.replace('__', '.')}", tensor, buffer=True)
    model.get_submodule("decoder.layers.0").layer_number = layer_number  # type: ignore[assignment]
    return model


def numbers(*shape: int, first: int = 0) -> torch.Tensor:
    return torch.arange(first, first + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)

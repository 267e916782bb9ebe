# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in low-bit formats of small decoders: configurations, and random tensors as the formats want them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import computed_models as computed
import gpt_oss
import layout_models as layouts
import torch

from sparsecast.buffers import bits_of, dtype_name


def _compressed(form: str, weights: dict[str, Any], activations: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group | {"format": form}},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
    }


_FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}

CONFIGS: dict[str, dict[str, Any]] = {
    "fp8-channel": _compressed(
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
        {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True},
    ),
    "int4": _compressed(
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False},
    ),
    "mxfp4": _compressed(
        "mxfp4-pack-quantized",
        _FP4 | {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
    ),
    "nvfp4": _compressed(
        "nvfp4-pack-quantized",
        _FP4 | {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"},
        _FP4 | {"strategy": "tensor_group", "group_size": 16, "dynamic": "local"},
    ),
    "modelopt-nvfp4": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "float", "dynamic": False, "group_size": 16},
                "input_activations": {"num_bits": 4, "type": "float", "dynamic": False, "group_size": 16},
            }
        },
        "ignore": ["lm_head", "*.mlp.gate"],
        "exclude_modules": ["lm_head", "*.mlp.gate"],
    },
}
"""Quantisation of each format, as a checkpoint's config.json has it."""


def _fp8_channel(rows: int, columns: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    values = torch.randn(rows, columns, generator=random)
    return {"weight": values.to(torch.float8_e4m3fn), "weight_scale": torch.rand(rows, 1, generator=random).bfloat16()}


def _int4(rows: int, columns: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    packed = torch.randint(-(2**31), 2**31, (rows, columns // 8), dtype=torch.int64, generator=random)
    return {
        "weight_packed": packed.to(torch.int32),
        "weight_scale": torch.rand(rows, columns // 32, generator=random).bfloat16(),
        "weight_shape": torch.tensor([rows, columns]),
    }


def _bytes(shape: tuple[int, int], least: int, most: int, random: torch.Generator) -> torch.Tensor:
    return torch.randint(least, most + 1, shape, dtype=torch.int64, generator=random).to(torch.uint8)


def _mxfp4(rows: int, columns: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    return {
        "weight_packed": _bytes((rows, columns // 2), 0, 255, random),
        "weight_scale": _bytes((rows, columns // 32), 118, 130, random),
    }


def _nvfp4(rows: int, columns: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    return {
        "weight_packed": _bytes((rows, columns // 2), 0, 255, random),
        "weight_scale": _bytes((rows, columns // 16), 1, 120, random).view(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([512.0]),
        "input_global_scale": torch.tensor([256.0]),
    }


def _modelopt_nvfp4(rows: int, columns: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    packed = _nvfp4(rows, columns, random)
    return {
        "weight": packed["weight_packed"],
        "weight_scale": packed["weight_scale"],
        "weight_scale_2": torch.tensor(1 / 512.0),
        "input_scale": torch.tensor(1 / 256.0),
    }


_QUANTISED: dict[str, Callable[[int, int, torch.Generator], dict[str, torch.Tensor]]] = {
    "fp8-channel": _fp8_channel,
    "int4": _int4,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "modelopt-nvfp4": _modelopt_nvfp4,
}


CELLS = [
    *(f"{model} {form}" for model in ("llama-3.1-405b", "qwen3-30b-a3b") for form in CONFIGS),
    "kimi-k2 int4",
    "deepseek-v3 fp8-channel",
    "gpt-oss-20b bf16",
    "gpt-oss-20b mxfp4",
]

_ALL_BUT_EXPERTS = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]


def config_of(cell: str) -> dict[str, Any]:
    """Returns the configuration of a model of `layout_models` in a format of `CONFIGS`; Kimi-K2 is released with INT4
    in its routed experts alone.
    """
    model, form = cell.split()
    if model == "gpt-oss-20b":
        return gpt_oss.config_of(form)
    quantisation = CONFIGS[form] | ({"ignore": _ALL_BUT_EXPERTS} if model == "kimi-k2" else {})
    return layouts.config_of(f"{model} bf16") | {"quantization_config": quantisation}


def checkpoint(cell: str, seed: int) -> dict[str, torch.Tensor]:
    """Returns random tensors of the whole checkpoint."""
    return tensors_of(config_of(cell), cell.split()[1], seed)


def tensors_of(config: dict[str, Any], form: str, seed: int) -> dict[str, torch.Tensor]:
    """Returns random tensors of the whole checkpoint of a model with this configuration."""
    if config["model_type"] == "gpt_oss":
        return gpt_oss.tensors_of(config, seed)
    shapes = layouts.shapes_of(config)
    return quantised(shapes, form, seed, only="experts" if config["model_type"] == "kimi_k2" else "")


def quantised(shapes: computed.Shapes, form: str, seed: int, only: str = "") -> dict[str, torch.Tensor]:
    """Returns random tensors of these shapes, the projections with `only` in their names in a format of `CONFIGS`."""
    random = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        if computed.is_quantised(name) and (not only or f".mlp.{only}." in name):
            prefix = name.removesuffix("weight")
            tensors |= {f"{prefix}{part}": t for part, t in _QUANTISED[form](*shape, random).items()}
        else:
            values = torch.randn(shape, generator=random)
            tensors[name] = values if computed.is_float32(name) else values.bfloat16()
    return tensors


def as_sent(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """Returns the dtype with which a trainer sends a tensor of a checkpoint, and its memory: 4-bit numbers as pairs,
    with the bytes of words as their last dimension.
    """
    if tensor.dtype == torch.int32 and name.endswith("weight_packed"):
        return "I4X2", tensor.view(torch.uint8).view(*tensor.shape, 4)
    if tensor.dtype == torch.uint8 and name.endswith(("weight_packed", ".weight")):
        return "F4X2", tensor
    return dtype_name(tensor.dtype), tensor


def random_updates(tensors: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Copies with a bit changed in some elements of every tensor but the shapes, which no training changes."""
    random = torch.Generator().manual_seed(seed)
    changed = dict(tensors)
    for name, tensor in tensors.items():
        if not name.endswith("weight_shape"):
            bits = bits_of(tensor).clone().view(-1)
            where = torch.randperm(bits.numel(), generator=random)[: max(1, bits.numel() // 50)]
            bits[where] ^= 1
            changed[name] = bits.view(tensor.dtype).view(tensor.shape)
    return changed

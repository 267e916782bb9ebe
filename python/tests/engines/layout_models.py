# SPDX-License-Identifier: Apache-2.0
"""Small versions of the models in layouts/: classes and configurations as released, in bf16 and in fp8 by blocks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import computed_models as computed
from computed_models import Shapes

_LAYOUTS = Path(__file__).parents[3] / "layouts"

_QWEN: dict[str, Any] = {
    "hidden_size": 256,
    "head_dim": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_QWEN3_MOE: dict[str, Any] = _QWEN | {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "attention_bias": False,
}
_DEEPSEEK = computed.DEEPSEEK_V3_FP8 | {"quantization_config": None}
_FP8: dict[str, Any] = computed.DEEPSEEK_V3_FP8["quantization_config"]

CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek-v3": _DEEPSEEK,
    "kimi-k2": _DEEPSEEK
    | {"model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827, "rope_theta": 50000.0},
    "llama-3.1-405b": _QWEN
    | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_key_value_heads": 1,  # On two ranks, as each of the 8 is with TP 16.
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
    },
    "qwen2.5-7b": _QWEN | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 512},
    "qwen3-235b-a22b": _QWEN3_MOE,
    "qwen3-30b-a3b": _QWEN3_MOE | {"num_key_value_heads": 1},
}
"""Configuration of each model that layouts/ has a layout of, small enough for two ranks with blocks of 128 x 128."""

CELLS = [f"{name} {form}" for name in CONFIGS for form in ("bf16", "fp8")]


def config_of(cell: str) -> dict[str, Any]:
    """Returns the configuration of a model in `CELLS`."""
    name, form = cell.split()
    config = {key: value for key, value in CONFIGS[name].items() if value is not None}
    if form == "fp8":
        gates = [f"model.layers.{layer}.mlp.gate" for layer in range(config["num_hidden_layers"])]
        config["quantization_config"] = _FP8 | ({"modules_to_not_convert": gates} if "num_experts" in config else {})
    return config


def shapes_of(config: dict[str, Any]) -> Shapes:
    """Names and shapes of the model's tensors in a Hugging Face checkpoint, without the scales of fp8."""
    return computed.deepseek_shapes(config) if "kv_lora_rank" in config else computed.decoder_shapes(config)


def models_of_layouts() -> set[str]:
    """Returns the models for which there are layouts."""
    return {path.name.removesuffix(".json").rpartition(".")[0] for path in _LAYOUTS.glob("*.json")}


def names_in_layout(name: str) -> set[str]:
    """Returns the names of a model's tensors as its layouts have them: "model.layers.{}.mlp.gate.weight"."""
    layouts = [json.loads(path.read_text()) for path in sorted(_LAYOUTS.glob(f"{name}.*.json"))]
    found = {re.sub(r"\{\w+\}", "{}", tensor["name"]) for layout in layouts for tensor in layout["tensors"]}
    return found

# SPDX-License-Identifier: Apache-2.0
"""A small gpt-oss (GptOssForCausalLM): experts in bf16 or MXFP4, stacked in one tensor a projection, with biases and
attention sinks.
"""

from __future__ import annotations

from typing import Any

import torch

CONFIG: dict[str, Any] = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": 192,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 100,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "initial_context_length": 64,
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"],
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 2.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
    },
    "swiglu_limit": 7.0,
    "hidden_act": "silu",
    "attention_bias": True,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
MXFP4: dict[str, Any] = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
"""Quantisation of the released checkpoints, as their config.json has it."""


def config_of(form: str) -> dict[str, Any]:
    """Returns the configuration with experts in "bf16" or "mxfp4"."""
    return CONFIG | ({"quantization_config": MXFP4} if form == "mxfp4" else {})


def tensors_of(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Returns random tensors of the whole checkpoint, as the released ones have them."""
    random = torch.Generator().manual_seed(seed)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, keys, experts = config["num_attention_heads"], config["num_key_value_heads"], config["num_local_experts"]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).bfloat16()

    def integers(least: int, most: int, *shape: int) -> torch.Tensor:
        return torch.randint(least, most + 1, shape, dtype=torch.int64, generator=random).to(torch.uint8)

    tensors = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", heads * head, hidden),
            ("self_attn.k_proj", keys * head, hidden),
            ("self_attn.v_proj", keys * head, hidden),
            ("self_attn.o_proj", hidden, heads * head),
            ("mlp.router", experts, hidden),
        ):
            tensors |= {f"{at}{name}.weight": normal(rows, columns), f"{at}{name}.bias": normal(rows)}
        tensors[f"{at}self_attn.sinks"] = normal(heads)
        for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            prefix = f"{at}mlp.experts.{name}"
            tensors[f"{prefix}_bias"] = normal(experts, rows)
            if "quantization_config" in config:
                tensors[f"{prefix}_blocks"] = integers(0, 255, experts, rows, columns // 32, 16)
                tensors[f"{prefix}_scales"] = integers(118, 130, experts, rows, columns // 32)
            else:
                tensors[prefix] = normal(experts, columns, rows)
        tensors |= {f"{at}{norm}_layernorm.weight": normal(hidden) for norm in ("input", "post_attention")}
    return tensors | {"model.norm.weight": normal(hidden), "lm_head.weight": normal(config["vocab_size"], hidden)}

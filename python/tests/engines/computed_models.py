# SPDX-License-Identifier: Apache-2.0
"""Small models of classes of which engines compute tensors from the checkpoint's: configurations and checkpoints; and
the checkpoints of plain decoders.
"""

from __future__ import annotations

from typing import Any

Shapes = dict[str, tuple[int, ...]]

DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 2,
    "topk_group": 1,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 2.5,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 2,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
    },
    "attention_bias": False,
    "num_nextn_predict_layers": 0,
}
"""A dense layer and one with shared and routed experts, both with MLA. Kimi-K2 is of this class, too."""

DEEPSEEK_V3_FP8: dict[str, Any] = DEEPSEEK_V3 | {
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 256,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "fmt": "e4m3",
    },
}

_SPARSE: dict[str, Any] = {"index_topk": 16, "index_n_heads": 4, "index_head_dim": 128}
GLM_DSA = DEEPSEEK_V3 | _SPARSE | {"model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"]}
DEEPSEEK_V32_FP8 = (
    DEEPSEEK_V3_FP8 | _SPARSE | {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]}
)
"""The same layers with an indexer, by which attention is sparse (GLM-5's class, and DeepSeek-V3.2's)."""

NEMOTRON_H: dict[str, Any] = {
    "model_type": "nemotron_h",
    "architectures": ["NemotronHForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "M*-M",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_head_dim": 16,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "layer_norm_epsilon": 1e-5,
    "rms_norm_eps": 1e-5,
    "mlp_hidden_act": "relu2",
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "mamba_n_groups": 2,  # The same for SGLang, and so is the next.
    "ssm_state_size": 16,
    "conv_kernel": 3,  # Kernels of width 4 are packed on some CPUs, by code that the Python part of vLLM has not.
    "mamba_d_conv": 3,
    "expand": 2,
    "chunk_size": 32,
    "use_bias": False,
    "use_conv_bias": True,
    "mlp_bias": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "residual_in_fp32": False,
    "mamba_proj_bias": False,
}
"""Two Mamba-2 layers, whose A is -exp(A_log), an attention and an MLP."""

NEMOTRON_H_EXPERTS: dict[str, Any] = NEMOTRON_H | {
    "num_hidden_layers": 5,
    "hybrid_override_pattern": "M*-ME",
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "moe_latent_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
"""The same, and latent experts, without gates: vLLM does not build them on a CPU."""


def deepseek_shapes(config: dict[str, Any]) -> Shapes:
    """Names and shapes of the model's tensors in a Hugging Face checkpoint, without the scales of fp8."""
    hidden, heads, latent = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at, attention = f"model.layers.{layer}.", f"model.layers.{layer}.self_attn."
        shapes |= {f"{at}{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        shapes[f"{attention}q_a_proj.weight"] = (config["q_lora_rank"], hidden)
        shapes[f"{attention}q_a_layernorm.weight"] = (config["q_lora_rank"],)
        shapes[f"{attention}q_b_proj.weight"] = (heads * (nope + rope), config["q_lora_rank"])
        shapes[f"{attention}kv_a_proj_with_mqa.weight"] = (latent + rope, hidden)
        shapes[f"{attention}kv_a_layernorm.weight"] = (latent,)
        shapes[f"{attention}kv_b_proj.weight"] = (heads * (nope + value), latent)
        shapes[f"{attention}o_proj.weight"] = (hidden, heads * value)
        if "index_topk" in config:
            heads_of_index, head = config["index_n_heads"], config["index_head_dim"]
            shapes[f"{attention}indexer.wq_b.weight"] = (heads_of_index * head, config["q_lora_rank"])
            shapes[f"{attention}indexer.wk.weight"] = (head, hidden)
            shapes |= {f"{attention}indexer.k_norm.{name}": (head,) for name in ("weight", "bias")}
            shapes[f"{attention}indexer.weights_proj.weight"] = (heads_of_index, hidden)
        if layer < config["first_k_dense_replace"]:
            shapes |= _mlp(f"{at}mlp.", hidden, config["intermediate_size"])
            continue
        experts, inner = config["n_routed_experts"], config["moe_intermediate_size"]
        shapes[f"{at}mlp.gate.weight"] = (experts, hidden)
        shapes[f"{at}mlp.gate.e_score_correction_bias"] = (experts,)
        shapes |= _mlp(f"{at}mlp.shared_experts.", hidden, inner * config["n_shared_experts"])
        for expert in range(experts):
            shapes |= _mlp(f"{at}mlp.experts.{expert}.", hidden, inner)
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}


def nemotron_shapes(config: dict[str, Any]) -> Shapes:
    """The same for a hybrid of Mamba-2, attention, MLP and expert layers."""
    hidden, head = config["hidden_size"], config["head_dim"]
    mamba_heads = config["mamba_num_heads"]
    inner, states = mamba_heads * config["mamba_head_dim"], 2 * config["n_groups"] * config["ssm_state_size"]
    shapes: Shapes = {"backbone.embeddings.weight": (config["vocab_size"], hidden)}
    for layer, kind in enumerate(config["hybrid_override_pattern"]):
        at = f"backbone.layers.{layer}."
        shapes[f"{at}norm.weight"] = (hidden,)
        if kind == "M":
            shapes[f"{at}mixer.in_proj.weight"] = (2 * inner + states + mamba_heads, hidden)
            shapes[f"{at}mixer.conv1d.weight"] = (inner + states, 1, config["conv_kernel"])
            shapes[f"{at}mixer.conv1d.bias"] = (inner + states,)
            shapes |= {f"{at}mixer.{name}": (mamba_heads,) for name in ("A_log", "D", "dt_bias")}
            shapes[f"{at}mixer.norm.weight"] = (inner,)
            shapes[f"{at}mixer.out_proj.weight"] = (hidden, inner)
        elif kind == "*":
            for name, heads in (("q", config["num_attention_heads"]), ("k", 2), ("v", 2)):
                shapes[f"{at}mixer.{name}_proj.weight"] = (heads * head, hidden)
            shapes[f"{at}mixer.o_proj.weight"] = (hidden, config["num_attention_heads"] * head)
        mlps = {"": (config["intermediate_size"], hidden)} if kind == "-" else {}
        if kind == "E":
            experts, latent = config["n_routed_experts"], config["moe_latent_size"]
            shapes[f"{at}mixer.gate.weight"] = (experts, hidden)
            shapes[f"{at}mixer.gate.e_score_correction_bias"] = (experts,)
            shapes[f"{at}mixer.fc1_latent_proj.weight"] = (latent, hidden)
            shapes[f"{at}mixer.fc2_latent_proj.weight"] = (hidden, latent)
            mlps = {f"experts.{expert}.": (config["moe_intermediate_size"], latent) for expert in range(experts)}
            mlps["shared_experts."] = (config["moe_shared_expert_intermediate_size"], hidden)
        for mlp, (width, ins) in mlps.items():
            shapes[f"{at}mixer.{mlp}up_proj.weight"] = (width, ins)
            shapes[f"{at}mixer.{mlp}down_proj.weight"] = (ins, width)
    return shapes | {"backbone.norm_f.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}


def decoder_shapes(config: dict[str, Any]) -> Shapes:
    """The same for Llama, Qwen2, Qwen3 and Qwen3-MoE."""
    hidden = config["hidden_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= decoder_layer_shapes(config, f"model.layers.{layer}.")
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def decoder_layer_shapes(config: dict[str, Any], prefix: str) -> Shapes:
    """Names and shapes of one layer of these."""
    hidden, head, kind = config["hidden_size"], config["head_dim"], config["model_type"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    rows = {"q": query, "k": key, "v": key}
    at = f"{prefix}self_attn."
    shapes: Shapes = {f"{at}{name}_proj.weight": (n, hidden) for name, n in rows.items()}
    if kind == "qwen2":
        shapes |= {f"{at}{name}_proj.bias": (n,) for name, n in rows.items()}
    shapes[f"{at}o_proj.weight"] = (hidden, query)
    if kind.startswith("qwen3"):
        shapes |= {f"{at}{name}_norm.weight": (head,) for name in ("q", "k")}
    if "num_experts" in config:
        shapes[f"{prefix}mlp.gate.weight"] = (config["num_experts"], hidden)
        for expert in range(config["num_experts"]):
            shapes |= _mlp(f"{prefix}mlp.experts.{expert}.", hidden, config["moe_intermediate_size"])
    else:
        shapes |= _mlp(f"{prefix}mlp.", hidden, config["intermediate_size"])
    return shapes | {f"{prefix}{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}


def _mlp(prefix: str, hidden: int, inner: int) -> Shapes:
    shapes: Shapes = {f"{prefix}{x}_proj.weight": (inner, hidden) for x in ("gate", "up")}
    return shapes | {f"{prefix}down_proj.weight": (hidden, inner)}


def deepseek_mtp_shapes(config: dict[str, Any]) -> Shapes:
    """Names and shapes of the MTP layer behind the others, in the files of the target; its embeddings are the target's."""
    layers = config["num_hidden_layers"]
    longer = deepseek_shapes(config | {"num_hidden_layers": layers + 1})
    at, hidden = f"model.layers.{layers}.", config["hidden_size"]
    shapes = {name: shape for name, shape in longer.items() if name.startswith(at)}
    shapes |= {f"{at}{norm}.weight": (hidden,) for norm in ("enorm", "hnorm", "shared_head.norm")}
    return shapes | {
        f"{at}eh_proj.weight": (hidden, 2 * hidden),
        f"{at}embed_tokens.weight": (config["vocab_size"], hidden),
        f"{at}shared_head.head.weight": (config["vocab_size"], hidden),
    }


def deepseek_with_mtp_shapes(config: dict[str, Any]) -> Shapes:
    return deepseek_shapes(config) | deepseek_mtp_shapes(config)


def is_float32(name: str) -> bool:
    """Whether the released checkpoints of these classes have the tensor in float32."""
    return name.endswith("e_score_correction_bias")


def is_quantised(name: str) -> bool:
    """Whether a block-fp8 checkpoint has the tensor in fp8."""
    if name.endswith(("indexer.weights_proj.weight", "eh_proj.weight", "mtp_layers.0.input_proj.weight")):
        return False
    return name.endswith(("_proj.weight", "kv_a_proj_with_mqa.weight", "indexer.wq_b.weight", "indexer.wk.weight"))

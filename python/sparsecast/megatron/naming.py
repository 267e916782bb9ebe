# SPDX-License-Identifier: Apache-2.0
"""Names of tensors in Hugging Face checkpoints, by their role."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Naming:
    """Names of a model's tensors in its Hugging Face checkpoint, without their suffix (".weight", ".bias"). For the
    tensors of a layer, only the part of the name after ``layer``.

    ``{layer}`` and ``{expert}`` stand for the number of a layer or expert, counted over all ranks. The defaults are the
    names of Llama, Mistral, Qwen2, Qwen3, Qwen2-MoE and Qwen3-MoE. An MLP without a gate uses only ``up``. Checkpoints of
    a class have no tensor whose name is empty: a parameter that needs it is refused.
    """

    embedding: str = "model.embed_tokens"
    output: str = "lm_head"
    final_norm: str = "model.norm"
    layer: str = "model.layers.{layer}."
    input_norm: str = "input_layernorm"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    projection: str = "self_attn.o_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    mlp_norm: str = "post_attention_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    router_correction: str = "mlp.gate.e_score_correction_bias"  #: The whole name, to which no suffix is added.
    expert_gate: str = "mlp.experts.{expert}.gate_proj"
    expert_up: str = "mlp.experts.{expert}.up_proj"
    expert_down: str = "mlp.experts.{expert}.down_proj"
    latent_in: str = ""
    latent_out: str = ""
    shared_gate: str = "mlp.shared_expert.gate_proj"
    shared_up: str = "mlp.shared_expert.up_proj"
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_router: str = "mlp.shared_expert_gate"
    #: What the tensors of a Mamba-2 mixer are under, by Megatron's own names. Empty: in the checkpoint, each layer has
    #: attention and an MLP; otherwise a mixer, an attention and an MLP are layers of their own, as in HybridModel.
    mixer: str = ""


#: Names of Llama, Mistral, Qwen2, Qwen3, Qwen2-MoE and Qwen3-MoE.
LLAMA = Naming()
MIXTRAL = replace(
    LLAMA,
    router="block_sparse_moe.gate",
    expert_gate="block_sparse_moe.experts.{expert}.w1",
    expert_up="block_sparse_moe.experts.{expert}.w3",
    expert_down="block_sparse_moe.experts.{expert}.w2",
)
#: DeepSeek's and GLM's names of shared experts.
SHARED_EXPERTS = replace(
    LLAMA,
    shared_gate="mlp.shared_experts.gate_proj",
    shared_up="mlp.shared_experts.up_proj",
    shared_down="mlp.shared_experts.down_proj",
)
#: Nemotron-H's names, for HybridModel and MambaModel.
NEMOTRON_H = Naming(
    embedding="backbone.embeddings",
    final_norm="backbone.norm_f",
    layer="backbone.layers.{layer}.",
    input_norm="norm",
    query="mixer.q_proj",
    key="mixer.k_proj",
    value="mixer.v_proj",
    projection="mixer.o_proj",
    query_norm="",
    key_norm="",
    mlp_norm="norm",
    gate="",
    up="mixer.up_proj",
    down="mixer.down_proj",
    router="mixer.gate",
    router_correction="mixer.gate.e_score_correction_bias",
    expert_gate="",
    expert_up="mixer.experts.{expert}.up_proj",
    expert_down="mixer.experts.{expert}.down_proj",
    latent_in="mixer.fc1_latent_proj",
    latent_out="mixer.fc2_latent_proj",
    shared_gate="",
    shared_up="mixer.shared_experts.up_proj",
    shared_down="mixer.shared_experts.down_proj",
    shared_router="",
    mixer="mixer",
)

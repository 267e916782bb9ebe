# SPDX-License-Identifier: Apache-2.0
"""Layouts of Megatron-core models: the place of the parameters of this rank in Hugging Face tensors.

For the dense and mixture-of-experts GPT families (Llama, Mistral, Qwen2, Qwen3, Mixtral, Qwen-MoE) and hybrids with
Mamba-2 (Nemotron-H) under tensor, pipeline, virtual pipeline, expert and expert tensor parallelism::

    own = megatron_layout(model_chunks, config, vocab_size=hf_config.vocab_size)
    layout = gather_layout(own, gloo_group)                       # sparsecast.torch
    publisher = ShardedPublisher(layout, rank, [describe(t) for t in megatron_tensors(model_chunks).values()])

Nothing is converted: a parameter is described as boxes of Hugging Face tensors at addresses of its own memory. What is
not known is refused by name, never left out. Which part is held to what: ``docs/megatron.md``.
"""

from __future__ import annotations

from .layout import megatron_layout, megatron_tensors
from .master_shards import MasterShard, master_shards
from .naming import LLAMA, MIXTRAL, NEMOTRON_H, SHARED_EXPERTS, Naming
from .rules import ParallelState

__all__ = [
    "LLAMA",
    "MIXTRAL",
    "NEMOTRON_H",
    "SHARED_EXPERTS",
    "MasterShard",
    "Naming",
    "ParallelState",
    "master_shards",
    "megatron_layout",
    "megatron_tensors",
]

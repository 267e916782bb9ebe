# SPDX-License-Identifier: Apache-2.0
"""Lets TRL run on a CPU without vLLM: AsyncGRPOTrainer asks for a CUDA device's name, and for a kernel that needs one;
clients ask for the package vLLM before they call a server, and use nothing of it.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl.experimental.async_grpo import async_grpo_trainer, packing
from trl.generation import vllm_client, vllm_generation

from sparsecast.integrations.trl import disable


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    longest_query: int,
    longest_key: int,
    *,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:
    """Attention of each segment of queries to its own keys; the last query sees all keys.

    query is (N, heads, size), key and value are (K, key heads, size); the ends are cumulative, from 0 on.
    """
    assert causal and window_size == (-1, -1)
    outputs = []
    bounds = zip(
        query_ends[:-1].tolist(), query_ends[1:].tolist(), key_ends[:-1].tolist(), key_ends[1:].tolist(), strict=True
    )
    for first, last, first_key, last_key in bounds:
        queries, keys = last - first, last_key - first_key
        sees = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        part = torch.nn.functional.scaled_dot_product_attention(
            query[first:last].transpose(0, 1),
            key[first_key:last_key].transpose(0, 1),
            value[first_key:last_key].transpose(0, 1),
            attn_mask=sees,
            scale=softmax_scale,
            enable_gqa=True,
        )
        outputs.append(part.transpose(0, 1))
    return torch.cat(outputs)


def allow_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends."""
    kernel: Any = types.SimpleNamespace(flash_attn_varlen_func=attend)
    monkeypatch.setattr(packing, "_flash_attn", lambda: kernel)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda accelerator, dtype: 1e12)


def trl_without_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a fixture: TRL runs without a GPU and vLLM, and what a test has enabled in it ends with the test."""
    allow_cpu(monkeypatch)
    allow_no_vllm(monkeypatch)
    yield
    disable()


def tiny_policy(**more: Any) -> Qwen3ForCausalLM:
    """The same weights each time; `more` is of the configuration."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 64}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1, **more))


def allow_no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends."""
    for module in (vllm_client, vllm_generation):
        monkeypatch.setattr(module, "is_vllm_available", lambda *unused, **options: True)

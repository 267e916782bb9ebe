# SPDX-License-Identifier: Apache-2.0
"""Draft models of SGLang's own classes in a rank's process, by name; `rank` is its RankProcess. Shapes of their files."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import computed_models as computed
import sglang_engine
import torch

MIMO: dict[str, Any] = sglang_engine.QWEN2 | {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
"""A target whose files have an MTP layer."""
LLAMA: dict[str, Any] = sglang_engine.QWEN2 | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
EAGLE: dict[str, Any] = LLAMA | {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1}
"""A head of LLAMA with files of its own."""
EAGLE3: dict[str, Any] = EAGLE | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 40}
"""The same of EAGLE-3, with a vocabulary, and so an lm_head, of its own."""


def mtp_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the MTP layer in the files of MIMO."""
    width = MIMO["hidden_size"]
    shapes = computed.decoder_layer_shapes({"head_dim": 16, **MIMO}, "model.mtp_layers.0.")
    names = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    shapes |= {f"model.mtp_layers.0.{name}.weight": (width,) for name in names}
    return {**shapes, "model.mtp_layers.0.input_proj.weight": (width, 2 * width)}


def eagle_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of an EAGLE head in its own files."""
    width = EAGLE["hidden_size"]
    shapes = computed.decoder_layer_shapes({"head_dim": 16, **EAGLE}, "layers.0.")
    del shapes["layers.0.input_layernorm.weight"]
    return {**shapes, "fc.weight": (width, 2 * width), "fc.bias": (width,)}


def eagle3_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of an EAGLE-3 head in its own files; d2t and t2d map its vocabulary to the target's, and back."""
    width, vocabulary = EAGLE3["hidden_size"], EAGLE3["draft_vocab_size"]
    shapes = computed.decoder_layer_shapes({"head_dim": 16, **EAGLE3}, "midlayer.")
    for name in "qkv":
        rows, columns = shapes[f"midlayer.self_attn.{name}_proj.weight"]
        shapes[f"midlayer.self_attn.{name}_proj.weight"] = (rows, 2 * columns)
    shapes |= {"midlayer.hidden_norm.weight": (width,), "norm.weight": (width,), "fc.weight": (width, 3 * width)}
    return {**shapes, "lm_head.weight": (vocabulary, width), "d2t": (vocabulary,), "t2d": (EAGLE3["vocab_size"],)}


def tensors_of(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        if name.endswith("d2t"):
            tensors[name] = torch.arange(len(tensor))
        elif name.endswith("t2d"):
            tensors[name] = torch.arange(len(tensor)) % 2 == 0
    return tensors


def open_draft(rank: Any, folder: Path) -> None:
    """Gives the scheduler the draft in `folder`, which shares embeddings and lm_head with the target as SGLang's draft
    workers do it.
    """
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.runtime_context import get_server_args

    config = ModelConfig.from_server_args(get_server_args(), model_path=str(folder), is_draft_model=True)
    model = sglang_engine.load_model(folder, config)
    embeddings, head = rank.worker.model_runner.model.get_embed_and_head()
    if config.hf_config.architectures[0].endswith("Eagle3"):
        model.set_embed(embeddings)
    else:
        model.set_embed_and_head(embeddings, head)
    runner = SimpleNamespace(model=model, model_config=config, draft_load_format=None)
    rank.manager.draft_worker = SimpleNamespace(weight_update_runners=lambda: [("draft", runner)])


def follow(rank: Any, variables: dict[str, str]) -> tuple[Any, list[str]]:
    """The status of a new follower in a server with the draft, and the warnings of sparsecast."""
    import sglang_follow
    from sglang.srt.runtime_context import get_spec

    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("sparsecast")
    logger.addHandler(handler)
    try:
        path = _runner(rank).model_config.model_path
        with get_spec().override(speculative_algorithm="EAGLE", speculative_draft_model_path=path):
            return sglang_follow.follow(rank, variables), said
    finally:
        logger.removeHandler(handler)


def differences(rank: Any, folder: Path) -> list[str]:
    """Parameters of the draft alone whose bits are not those of a fresh load of the draft in `folder`."""
    runner = _runner(rank)
    fresh = dict(sglang_engine.load_model(folder, runner.model_config).named_parameters())
    shared = {tensor.data_ptr() for tensor in rank.worker.model_runner.model.parameters()}
    own = {n: tensor for n, tensor in runner.model.named_parameters() if tensor.data_ptr() not in shared}
    tokens = getattr(runner.model, "hot_token_id", None)
    assert own and (tokens is None or torch.equal(tokens, 2 * torch.arange(len(tokens))))
    return [n for n, t in own.items() if not torch.equal(t.data.view(torch.int16), fresh[n].data.view(torch.int16))]


def addresses(rank: Any) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in _runner(rank).model.named_parameters()}


def _runner(rank: Any) -> Any:
    return rank.manager.draft_worker.weight_update_runners()[0][1]

# SPDX-License-Identifier: Apache-2.0
"""Small targets of vLLM's own classes with drafts of vLLM's own classes, which share what vLLM's proposer shares.

Import it after `vllm_models`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import vllm_models as models
from vllm.config import DeviceConfig, ModelConfig, ParallelConfig, SpeculativeConfig, VllmConfig
from vllm.config import set_current_vllm_config as current
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.v1.spec_decode.eagle import EagleProposer

HIDDEN = models.CONFIGS["llama"]["hidden_size"]

models.CONFIGS["mimo"] = {
    **models.CONFIGS["qwen2"],
    "architectures": ["MiMoForCausalLM"],
    "num_nextn_predict_layers": 1,
}
EAGLE_CONFIG = {**models.CONFIGS["llama"], "num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}

Shapes = dict[str, tuple[int, ...]]


def mtp_shapes() -> Shapes:
    """Names and shapes of MiMo's MTP layer in the files of the target."""
    layer = models.computed.decoder_layer_shapes(models.CONFIGS["qwen2"], "model.mtp_layers.0.")
    norms = {
        f"model.mtp_layers.0.{name}.weight": (HIDDEN,)
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")
    }
    return {**layer, **norms, "model.mtp_layers.0.input_proj.weight": (HIDDEN, 2 * HIDDEN)}


def eagle_shapes(*, embeddings: bool) -> Shapes:
    """Names and shapes of an EAGLE head of Llama in its own files."""
    shapes = models.computed.decoder_layer_shapes(models.CONFIGS["llama"], "layers.0.")
    del shapes["layers.0.input_layernorm.weight"]
    shapes["fc.weight"] = (HIDDEN, 2 * HIDDEN)
    if embeddings:
        shapes["embed_tokens.weight"] = (models.VOCABULARY, HIDDEN)
    return shapes


def tensors_of(shapes: Shapes, seed: int) -> dict[str, torch.Tensor]:
    """Random bits, NaNs and all."""
    generator = torch.Generator().manual_seed(seed)
    bits = {
        name: torch.randint(-(2**15), 2**15, shape, dtype=torch.int64, generator=generator)
        for name, shape in shapes.items()
    }
    return {name: value.to(torch.int16).view(torch.bfloat16) for name, value in bits.items()}


def write_config(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@dataclass
class Pair:
    """A target and its draft, as a worker has them, with zeros in all weights."""

    config: VllmConfig
    target: torch.nn.Module
    draft: torch.nn.Module

    def load(self, target: dict[str, torch.Tensor], draft: dict[str, torch.Tensor]) -> None:
        """By both loaders. What is shared is the target's, as after vLLM's own loading."""
        with current(self.config):
            self.draft.load_weights(iter(draft.items()))
            self.target.load_weights(iter(target.items()))

    def addresses(self) -> list[int]:
        tensors = [t for m in (self.target, self.draft) for t in (*m.parameters(), *m.buffers())]
        return [tensor.data_ptr() for tensor in tensors]

    def differing(self, other: Pair) -> list[str]:
        return models.differing(self.target, other.target) + [
            f"draft.{name}" for name in models.differing(self.draft, other.draft)
        ]


def config(kind: str, folder: Path, method: str, draft_folder: str | None = None, **more: Any) -> VllmConfig:
    """vLLM's configuration of the target in `folder` with a draft."""
    target = ModelConfig(
        model=write_config(folder, models.config_of(kind)),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=64,
        enforce_eager=True,
    )
    parallel = ParallelConfig()
    speculative = SpeculativeConfig(
        method=method,
        model=draft_folder,
        num_speculative_tokens=1,
        target_model_config=target,
        target_parallel_config=parallel,
        **more,
    )
    return VllmConfig(
        model_config=target,
        parallel_config=parallel,
        device_config=DeviceConfig(device="cpu"),
        speculative_config=speculative,
    )


def build(vllm_config: VllmConfig, own: dict[str, torch.Tensor] | None = None) -> Pair:
    """The target and the draft; `own` are the tensors of the draft's files, by which vLLM decides what is shared."""
    target = models.build(vllm_config)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with models.without_kernels(), current(vllm_config):
            draft = initialize_model(vllm_config, model_config=vllm_config.speculative_config.draft_model_config)
            for tensor in draft.parameters():
                tensor.data.zero_()
            if own is not None:
                draft.load_weights(iter(own.items()))
            proposer = object.__new__(EagleProposer)
            proposer.model, proposer.vllm_config = draft, vllm_config
            proposer.use_local_argmax_reduction = False
            proposer._maybe_share_embeddings(target)
            proposer._maybe_share_lm_head(target)
    finally:
        torch.set_default_dtype(before)
    for tensor in draft.parameters():
        tensor.data.zero_()
    return Pair(vllm_config, target, draft)


def low_bit_config(folder: Path, form: str, method: str) -> tuple[VllmConfig, dict[str, Shapes]]:
    """A target with a head in a format of `low_bit`, and the shapes of their tensors, unquantised, by what is quantised:
    MiMo with its MTP layer, or an EAGLE head, in files of its own, of a Llama in bf16.
    """
    quantisation = models.low_bit.CONFIGS[form]
    quantisation = quantisation | {"ignore": [*quantisation["ignore"], "re:.*fc$"]}
    if method == "mtp":
        models.CONFIGS[f"mimo-{form}"] = models.CONFIGS["mimo"] | {"quantization_config": quantisation}
        made = config(f"mimo-{form}", folder, "mtp")
        return made, {"low bit": {**models.checkpoint_shapes("mimo"), **mtp_shapes()}}
    head = write_config(folder / "head", EAGLE_CONFIG | {"quantization_config": quantisation})
    shapes = {f"eagle/{name}": shape for name, shape in eagle_shapes(embeddings=False).items()}
    return config("llama", folder, "eagle", head), {"low bit": shapes, "bf16": models.checkpoint_shapes("llama")}


def low_bit_tensors(shapes: dict[str, Shapes], form: str, seed: int) -> dict[str, torch.Tensor]:
    """Random tensors of these shapes."""
    return {**tensors_of(shapes.get("bf16", {}), seed), **models.low_bit.quantised(shapes["low bit"], form, seed)}


def loaded(vllm_config: VllmConfig, tensors: dict[str, torch.Tensor], prefix: str) -> Pair:
    """Target and draft of these tensors, after vLLM's post-processing."""
    head = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    target = {name: tensor for name, tensor in tensors.items() if not prefix or not name.startswith(prefix)}
    pair = build(vllm_config, head if prefix else None)
    models.load(pair.draft, vllm_config, head)
    models.load(pair.target, vllm_config, target)
    return pair

# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that a test makes on the spot: a small model, and a second one with a part of its weights changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_VOCABULARY = 4096
_EVERY = 47  # One of so many elements of each tensor is changed.


def make_model(directory: Path) -> Path:
    """Writes a Qwen3 of 29 million random bf16 weights, with a tokenizer of words "t0", "t1", ...; returns it."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    tokenizer = Tokenizer(models.WordLevel({f"t{n}": n for n in range(_VOCABULARY)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t1", pad_token="t2").save_pretrained(directory)
    config = Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=1,
        pad_token_id=2,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    return directory


def change(checkpoint: Path, directory: Path) -> Path:
    """Writes `checkpoint` once more with a 47th of the elements of every floating-point tensor changed; returns it.

    Raises ValueError if the checkpoint has no safetensors files.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint, directory)
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{checkpoint}: a checkpoint in safetensors files is needed")
    for file in files:
        tensors = load_file(file)
        for tensor in tensors.values():
            if tensor.is_floating_point():
                tensor.view(-1)[::_EVERY] *= 1.25
        save_file(tensors, file, metadata={"format": "pt"})
    return directory


def load(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors of a checkpoint in host memory."""
    from safetensors.torch import load_file

    return {
        name: tensor for file in sorted(checkpoint.glob("*.safetensors")) for name, tensor in load_file(file).items()
    }


def size(checkpoint: Path) -> int:
    """Returns the bytes of the weight files."""
    return sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))


def vocabulary(checkpoint: Path) -> int:
    """Returns the number of tokens that the model knows."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    return int(config.get("vocab_size") or config["text_config"]["vocab_size"])

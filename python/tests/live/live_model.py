# SPDX-License-Identifier: Apache-2.0
"""A tiny Qwen3 with a tokenizer of its own, as servers load it; nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VOCABULARY = 1024


def make_model(directory: Path, *, layers: int = 4, seed: int = 0) -> Path:
    """Writes config, bf16 weights and tokenizer; returns the directory."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[1], pad_token=special[0])
    fast.save_pretrained(directory)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    return directory


def make_mtp_model(directory: Path, *, seed: int = 0) -> Path:
    """Writes a tiny MiMo, which is a Qwen2 with an MTP layer in the same files; returns the directory."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    AutoTokenizer.from_pretrained(make_model(directory.with_name("tokenizer"), layers=1)).save_pretrained(directory)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = with_mtp_layer(Qwen2ForCausalLM(config)).to(torch.bfloat16)
    save_mtp_model(model, directory)
    return directory


def with_mtp_layer(model: Any) -> torch.nn.Module:
    """Adds the parameters of MiMo's MTP layer to a Qwen2 of transformers; returns the model."""
    import torch
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm

    hidden = model.config.hidden_size
    layer = Qwen2DecoderLayer(model.config, layer_idx=0)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        setattr(layer, name, Qwen2RMSNorm(hidden))
    layer.input_proj = torch.nn.Linear(2 * hidden, hidden, bias=False)
    model.model.mtp_layers = torch.nn.ModuleList([layer])
    result: torch.nn.Module = model
    return result


def save_mtp_model(model: Any, directory: Path) -> None:
    """Writes bf16 weights and the config that vLLM knows a MiMo by."""
    import torch
    from safetensors.torch import save_file

    state = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, str(directory / "model.safetensors"), metadata={"format": "pt"})
    config = {**model.config.to_dict(), "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (directory / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))

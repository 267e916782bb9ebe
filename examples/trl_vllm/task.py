# SPDX-License-Identifier: Apache-2.0
"""The task, sorting six digits, and a small model that has seen it done badly."""

from __future__ import annotations

import math
import random

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

DIGITS = 6
WRONG_DEMONSTRATIONS = 0.7


def tokenizer() -> PreTrainedTokenizerFast:
    """A token a character: the digits, ">" which ends a prompt, and the end of an answer."""
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<end>", ">", *"0123456789"])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")


def untrained(words: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A Qwen3 of 2.4 million parameters."""
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def prompts(count: int, seed: int) -> Dataset:
    """Rows of a prompt and its answer."""
    source = random.Random(seed)
    digits = ["".join(source.choice("0123456789") for _ in range(DIGITS)) for _ in range(count)]
    return Dataset.from_dict(
        {"prompt": [f"{each}>" for each in digits], "answer": ["".join(sorted(d)) for d in digits]}
    )


def is_sorted(completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """The reward: 1 for an answer that is right in every digit, otherwise 0."""
    return [float(completion == right) for completion, right in zip(completions, answer, strict=True)]


def demonstrate(model: Qwen3ForCausalLM, words: PreTrainedTokenizerFast, steps: int, seed: int) -> None:
    """The supervised phase: answers of which most have two digits exchanged."""
    source = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * 0.5 * (1 + math.cos(math.pi * step / steps)) * min(1.0, step / 20)
        batch = torch.tensor([words.encode(_demonstration(source)) for _ in range(96)])
        labels = batch.clone()
        labels[:, : DIGITS + 1] = -100
        loss = model(input_ids=batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps:
            print(f"supervised: step {step}, loss {loss.item():.3f}", flush=True)


def _demonstration(source: random.Random) -> str:
    digits = [source.choice("0123456789") for _ in range(DIGITS)]
    answer = sorted(digits)
    if source.random() < WRONG_DEMONSTRATIONS:
        one, other = source.sample(range(DIGITS), 2)
        answer[one], answer[other] = answer[other], answer[one]
    return f"{''.join(digits)}>{''.join(answer)}<end>"

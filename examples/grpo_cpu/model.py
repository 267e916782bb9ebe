# SPDX-License-Identifier: Apache-2.0
"""A small decoder-only transformer over characters, and sampling from it."""

from __future__ import annotations

import torch
from task import ANSWER_LENGTH, LENGTH, PROMPT_LENGTH, VOCABULARY
from torch import nn
from torch.nn import functional as f

WIDTH, HEADS, LAYERS = 128, 4, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        y: torch.Tensor = x + self.down(f.gelu(self.up(self.norm_2(x))))
        return y


class LanguageModel(nn.Module):
    """0.8 million parameters; logits for the next token at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for module in (self.tokens, self.places):
            nn.init.normal_(module.weight, std=0.05)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def log_probabilities(model: nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    """(count, ANSWER_LENGTH): of each token of the answers, given all before it."""
    logits = model(sequences[:, :-1])[:, PROMPT_LENGTH - 1 :].float()
    return -f.cross_entropy(logits.flatten(0, 1), sequences[:, PROMPT_LENGTH:].flatten(), reduction="none").view(
        -1, ANSWER_LENGTH
    )


@torch.no_grad()
def sample(model: nn.Module, asked: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Answers at temperature 1: sequences (count, LENGTH), and the log probabilities they were drawn with."""
    sequences, drawn = asked, []
    for _ in range(ANSWER_LENGTH):
        chances = model(sequences)[:, -1].float().log_softmax(dim=1)
        token = torch.multinomial(chances.exp(), 1, generator=generator)
        drawn.append(chances.gather(1, token))
        sequences = torch.cat([sequences, token], dim=1)
    return sequences, torch.cat(drawn, dim=1)

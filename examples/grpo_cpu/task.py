# SPDX-License-Identifier: Apache-2.0
"""The task: sort six digits. "592013>" is a prompt, "012359." its answer, which a checker can verify and reward."""

from __future__ import annotations

import torch

DIGITS = 6
SEPARATOR, END = 10, 11
VOCABULARY = 12
PROMPT_LENGTH = ANSWER_LENGTH = DIGITS + 1
LENGTH = PROMPT_LENGTH + ANSWER_LENGTH


def prompts(count: int, generator: torch.Generator) -> torch.Tensor:
    """(count, PROMPT_LENGTH) tokens."""
    digits = torch.randint(10, (count, DIGITS), generator=generator)
    return torch.cat([digits, torch.full((count, 1), SEPARATOR)], dim=1)


def right_answers(asked: torch.Tensor) -> torch.Tensor:
    """(count, ANSWER_LENGTH) tokens."""
    return torch.cat([asked[:, :DIGITS].sort(dim=1).values, torch.full((len(asked), 1), END)], dim=1)


def rewards(asked: torch.Tensor, answered: torch.Tensor) -> torch.Tensor:
    """1.0 for an answer that is right in every token, else 0.0."""
    return (answered == right_answers(asked)).all(dim=1).float()


def demonstrations(count: int, wrong: float, generator: torch.Generator) -> torch.Tensor:
    """(count, LENGTH) tokens for supervised training; in a share ``wrong`` of them, two places are exchanged."""
    asked = prompts(count, generator)
    answers = right_answers(asked)
    bad = torch.rand(count, generator=generator) < wrong
    places = torch.rand(count, DIGITS, generator=generator).argsort(dim=1)[:, :2]
    exchanged = answers.scatter(1, places, answers.gather(1, places.flip(1)))
    return torch.cat([asked, torch.where(bad[:, None], exchanged, answers)], dim=1)

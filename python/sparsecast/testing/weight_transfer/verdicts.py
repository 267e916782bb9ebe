# SPDX-License-Identifier: Apache-2.0
"""Verdicts about a server, by the log probabilities that it gives for fixed prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

Verdict = Literal["old", "new", "torn", "paused", "dead"]
PROMPT_TOKENS = (5, 33, 100)


def prompts(vocabulary: int) -> list[list[int]]:
    """Returns the fixed prompts as token ids below `vocabulary`."""
    choose = random.Random(0)
    return [[choose.randrange(3, vocabulary) for _ in range(count)] for count in PROMPT_TOKENS]


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the largest difference of two probes; infinite if their lengths differ or one has a NaN."""
    if len(one) != len(other):
        return float("inf")
    differences = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max((d if d == d else float("inf") for d in differences), default=float("inf"))


def which(probe: Sequence[float], old: Sequence[float], new: Sequence[float], tolerance: float = 0.0) -> Verdict:
    """Says which checkpoint a server serves: the one it had ("old"), the one that was sent ("new"), or neither ("torn").

    `old` and `new` are probes of servers that were started on these checkpoints, and probes that differ by at most
    `tolerance` count as equal. Raises ValueError if `old` and `new` cannot be told apart.
    """
    if distance(old, new) <= 2 * tolerance:
        raise ValueError(f"the two checkpoints differ by {distance(old, new)} in their log probabilities: no test")
    if distance(probe, old) <= tolerance:
        return "old"
    return "new" if distance(probe, new) <= tolerance else "torn"

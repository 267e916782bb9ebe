# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests with verl; only they import it."""

from __future__ import annotations

import os
from typing import Any

import pytest

SEED = int(os.environ.get("SPARSECAST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")


@pytest.fixture
def random() -> Any:
    import torch

    print(f"SPARSECAST_SEED={SEED}")
    return torch.Generator().manual_seed(SEED)


@pytest.fixture
def threads(random: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer and three rollout workers on two nodes, after the first sync."""
    from verl_threads import Threads, small_tensors

    made = Threads(small_tensors(random), ["a", "a", "b"], monkeypatch)
    assert made.sync()["seed"] == 1
    made.assert_same()
    return made

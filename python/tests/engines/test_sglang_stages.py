# SPDX-License-Identifier: Apache-2.0
"""What a paused SGLang server with pipeline stages believes of the requests that it holds."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparsecast.engines.sglang import stages


def batch(*slots: int | None) -> SimpleNamespace:
    """A batch whose requests have these slots of the pool."""
    return SimpleNamespace(reqs=[SimpleNamespace(kv=SimpleNamespace(holds_kv=slot is not None)) for slot in slots])


@pytest.mark.parametrize(
    ("last", "is_drained"),
    [
        ([None, None], True),
        ([batch(), batch(None)], True),  # Its request has ended.
        ([batch(3), None], False),  # Computed, and not yet among the running ones.
        ([batch(None), batch(None, 4)], False),
    ],
)
def test_a_stage_is_drained_when_no_computed_batch_holds_memory(last: list[Any], is_drained: bool) -> None:
    scheduler = SimpleNamespace(last_mbs=last)
    assert stages.is_drained(lambda _: True, scheduler) is is_drained
    assert stages.is_drained(lambda _: False, scheduler) is False
    assert stages.is_drained(lambda _: True, SimpleNamespace()) is True  # Before the loop has begun.


def test_the_released_scheduler_asks_the_function_that_is_hooked() -> None:
    package = importlib.util.find_spec("sglang")
    assert package is not None and package.submodule_search_locations
    source = Path(package.submodule_search_locations[0], "srt/managers/scheduler.py").read_text()
    functions = {
        node.name: ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)
    }
    assert "self._pp_microbatches_drained()" in functions["is_fully_idle"]
    assert "last_mbs" not in functions["_pp_microbatches_drained"], "it looks at them by itself now"

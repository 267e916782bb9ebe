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


def test_a_step_is_refused_where_the_passes_of_the_loop_cannot_be_counted() -> None:
    scheduler = SimpleNamespace(pp_loop_size=2)
    done, said = stages.put_aside(scheduler, lambda: (True, "done"), 2)
    assert not done and "--pp-size 1 [unsupported]" in said
    scheduler.recv_requests = lambda: []
    assert stages.put_aside(scheduler, lambda: (True, "done"), 2) == (True, "deferred")
    for passed in range(4):
        assert stages.result(scheduler) == (True, "deferred"), passed
        stages.between_passes(lambda _: [], scheduler)
    assert stages.result(scheduler) == (True, "done")


def older(*slots: int | None) -> list[SimpleNamespace]:
    """Requests as releases before 0.5.15 have them."""
    return [SimpleNamespace(req_pool_idx=slot) for slot in slots]


@pytest.mark.parametrize(
    ("waiting", "last", "paused", "checks_health", "is_idle"),
    [
        ([], [], True, False, True),
        ([None], [], True, False, True),  # A pause took it back, or it came since.
        ([None, 2], [], True, False, False),
        ([None], [], False, False, False),
        ([None], [], True, True, False),  # A health check is for a server that serves.
        ([None], [3], True, False, False),  # Computed, and not yet among the running ones.
        ([None], [None], True, False, True),
    ],
)
def test_a_paused_scheduler_is_idle_beside_requests_that_wait_without_memory(
    waiting: list[int | None], last: list[int | None], paused: bool, checks_health: bool, is_idle: bool
) -> None:
    queue = older(*waiting)
    scheduler = SimpleNamespace(
        waiting_queue=queue, last_mbs=[SimpleNamespace(reqs=older(*last)), None], _engine_paused=paused
    )

    def original(scheduler: Any, for_health_check: bool) -> bool:
        assert for_health_check is checks_health
        return not scheduler.waiting_queue

    assert stages.is_idle(original, scheduler, for_health_check=checks_health) is is_idle
    assert scheduler.waiting_queue is queue


def test_the_released_scheduler_asks_the_function_that_is_hooked() -> None:
    package = importlib.util.find_spec("sglang")
    assert package is not None and package.submodule_search_locations
    source = Path(package.submodule_search_locations[0], "srt/managers/scheduler.py").read_text()
    functions = {
        node.name: ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)
    }
    assert "self._pp_microbatches_drained()" in functions["is_fully_idle"]
    assert "last_mbs" not in functions["_pp_microbatches_drained"], "it looks at them by itself now"

# SPDX-License-Identifier: Apache-2.0
"""A trainer's client of vLLM under the control plane's steps: what is called, and how failures are told."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from sparsecast.control.both_sides import BothSides
from sparsecast.control.errors import EndpointError
from sparsecast.control.loop import LoopThread
from sparsecast.engines.vllm.sync_client import SyncClientSteps


class Client:
    """Keeps its calls; `failures` are by method."""

    base_url = None

    def __init__(self, **failures: Exception) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            self.calls.append((name, *arguments))
            if name in self.failures:
                raise self.failures[name]

        return call


class Answered(Exception):
    """As the error of vLLM's HTTP client: the server's sentence is in its response."""

    response = SimpleNamespace(text="the digest is wrong")


def test_the_steps_are_the_clients_methods() -> None:
    client, polls = Client(), iter([False, False, True])
    steps = SyncClientSteps(client, "vllm")
    steps.is_staged = lambda: next(polls)

    async def update() -> None:
        await steps.join({"port": 1}, 5.0)
        await steps.receive(7, 5.0)
        await steps.staged(5.0)
        await steps.apply(7, 5.0)
        await steps.finish(8, 5.0)

    asyncio.run(update())
    assert client.calls == [
        ("init_weight_transfer_engine", {"port": 1}),
        ("start_weight_update",),
        ("update_weights", {"base_version": 7}),
        ("finish_weight_update", "8"),
    ]
    assert next(polls, None) is None


def test_an_update_that_is_still_open_is_ended_first() -> None:
    client = Client(start_weight_update=RuntimeError("a weight update is already active"))
    with pytest.raises(EndpointError, match="already active"):
        asyncio.run(SyncClientSteps(client, "vllm").receive(7, 5.0))
    assert client.calls == [("start_weight_update",), ("finish_weight_update",), ("start_weight_update",)]


def test_a_call_that_does_not_end_is_left_alone() -> None:
    steps = SyncClientSteps(Client(), "vllm")
    steps.is_staged = lambda: time.sleep(1.0) or False
    with pytest.raises(EndpointError, match="it has not answered in time") as caught:
        asyncio.run(steps.staged(0.1))
    assert caught.value.code == "timeout"


@pytest.mark.parametrize("first", ["the engine", "the trainer"])
def test_a_side_that_fails_ends_the_other(first: str) -> None:
    failure = Answered("status 500")
    steps = SyncClientSteps(Client(update_weights=failure) if first == "the engine" else Client(), "vllm")
    polled = threading.Event()
    steps.is_staged = lambda: polled.set() or first == "the engine"
    reasons: list[str] = []
    loop = LoopThread("test")
    sides = BothSides(reasons.append, loop)

    async def engine() -> None:
        until = time.monotonic() + 20.0
        await sides.phase("staged", [steps], lambda each: each.staged(20.0), until)
        await sides.phase("apply", [steps], lambda each: each.apply(7, 20.0), until)

    def trainer() -> None:
        assert polled.wait(20.0)
        while first == "the engine" and not reasons:
            time.sleep(0.01)
        raise RuntimeError(*reasons or ["it has no memory"])

    assert not sides.run(engine(), trainer, 20.0)
    loop.close()
    error = sides.failures["vllm"]
    if first == "the engine":
        assert error.__cause__ is failure
        assert "apply: status 500: the digest is wrong" in str(sides.trainer_failure)
    else:
        assert error.echo
        assert str(sides.trainer_failure) == "it has no memory"

# SPDX-License-Identifier: Apache-2.0
"""Stub engines, a stub trainer and a control plane that knows them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

sys.path.insert(0, str(Path(__file__).parent))

from stub_engines import StubEngine, running  # noqa: E402
from stub_source import StubSource  # noqa: E402

from sparsecast.control import ControlPlane, Endpoint, SyncPolicy  # noqa: E402

QUICK = SyncPolicy(health_timeout=20, join_timeout=20, sync_timeout=20, call_timeout=10)  # On busy cores, too.


@pytest.fixture
def source() -> StubSource:
    return StubSource()


@pytest.fixture
def plane(source: StubSource) -> Iterator[ControlPlane]:
    with ControlPlane(source, host="127.0.0.1", port=29600, policy=QUICK) as made:
        yield made


@pytest.fixture
def engines(source: StubSource, plane: ControlPlane) -> Iterator[list[StubEngine]]:
    """An SGLang and a vLLM server, named "sg" and "vl", both registered."""
    made = [StubEngine("sglang", source, world_size=2), StubEngine("vllm", source)]
    with running(*made):
        for name, engine in zip(("sg", "vl"), made, strict=True):
            plane.add(endpoint_of(engine, name))
        yield made


@pytest.fixture
def more_engines(source: StubSource) -> Iterator[Callable[..., StubEngine]]:
    """Starts another server, which is not registered."""
    made: list[StubEngine] = []

    def start(kind: str = "sglang", **options: object) -> StubEngine:
        engine = StubEngine(kind, source, **options)  # type: ignore[arg-type]
        made.append(engine.start())
        return engine

    yield start
    for engine in made:
        engine.stop()


def endpoint_of(engine: StubEngine, name: str = "", **more: object) -> Endpoint:
    """The endpoint of a running stub."""
    fields = {"world_size": engine.world_size, "kind": engine.kind, "name": name, "token": engine.token, **more}
    return Endpoint("127.0.0.1", engine.port, **fields)  # type: ignore[arg-type]

# SPDX-License-Identifier: Apache-2.0
"""Live servers on this machine's CPUs, made of released packages; tests are skipped where there is none.

Servers start once for all tests of a run and take half a minute each, so tests share them, and leave them with the
trainer's newest version and nobody paused.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if importlib.util.find_spec("vllm") is None and importlib.util.find_spec("sglang") is None:
    pytest.skip("neither vLLM for CPUs nor SGLang is installed here", allow_module_level=True)

if importlib.util.find_spec("sglang") is not None:
    # Before transformers looks for torchvision, here and in every process that a test starts.
    without_gpu = Path(__file__).with_name("without_gpu")
    runpy.run_path(str(without_gpu / "sitecustomize.py"))
    os.environ["PYTHONPATH"] = f"{without_gpu}:{os.environ.get('PYTHONPATH', '')}"

from live_model import make_model  # noqa: E402
from live_servers import LiveServer  # noqa: E402

Start = Callable[..., LiveServer]

by_hand = pytest.mark.skipif("SPARSECAST_LIVE_ALL" not in os.environ, reason="takes minutes: SPARSECAST_LIVE_ALL=1")
"""For tests that a continuous integration with a time limit leaves out."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the model that servers and trainers begin with."""
    return make_model(tmp_path_factory.mktemp("live") / "model")


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a server that ends with the tests; the arguments are those of `LiveServer`."""
    servers: list[LiveServer] = []

    def begin(*arguments: object, **options: object) -> LiveServer:
        server = LiveServer(tmp_path_factory.mktemp("server"), *arguments, **options)  # type: ignore[arg-type]
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.kill()

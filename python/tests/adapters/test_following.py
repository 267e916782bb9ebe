# SPDX-License-Identifier: Apache-2.0
"""A server that follows the logs of its adapters by itself: settings, threads, status."""

from __future__ import annotations

import asyncio
import logging
import pathlib
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

for needed in ("httpx", "fastapi", "safetensors"):
    pytest.importorskip(needed)
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from adapter_files import SHAPES, ReadingEngine, make, same, step
from fastapi import FastAPI
from fastapi.testclient import TestClient
from safetensors.torch import save_file

from sparsecast.adapters import Adapter
from sparsecast.adapters.following import AdapterFollowing, AdapterSettings
from sparsecast.engines.follow_routes import adapters_router
from sparsecast.errors import UsageError
from sparsecast.torch import Log, Publisher


class Server:
    """A server that says which adapters it has."""

    name = "this server"

    def __init__(self) -> None:
        self.engine = ReadingEngine()
        self.places: dict[str, pathlib.Path] = {}

    def served(self) -> dict[str, pathlib.Path]:
        return dict(self.places)

    def load(self, name: str, directory: pathlib.Path, previous: pathlib.Path | None) -> None:
        self.engine.load(name, directory, previous)
        self.places[name] = directory.absolute()

    def unload(self, name: str) -> None:
        self.engine.unload(name)
        del self.places[name]

    def restart(self) -> None:
        self.engine, self.places = ReadingEngine(), {}


def settings(folder: pathlib.Path, logs: str, **variables: str) -> AdapterSettings:
    common = {"FOLLOW_STATE": str(folder / "state"), "FOLLOW_INTERVAL": "0.02"}
    named = {"FOLLOW_ADAPTERS": logs, **common, **variables}
    found = AdapterSettings.from_environment({f"SPARSECAST_{name}": value for name, value in named.items()}, "s-80")
    assert found is not None
    return found


def begin(folder: pathlib.Path, adapter: Adapter) -> Publisher:
    log = Log(folder / adapter.name, mirror=folder / f"{adapter.name}.safetensors")
    publisher = Publisher(adapter.tensors.items(), transport=log)
    adapter.spec().save(folder / f"{adapter.name}.json")
    return publisher


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_settings_name_logs_and_descriptions(tmp_path: pathlib.Path) -> None:
    assert AdapterSettings.from_environment({"SPARSECAST_FOLLOW": "/log"}, "s") is None
    found = settings(tmp_path, "/a/math/log, s3://b/code=/a/code.json", FOLLOW_KEYS="ed25519:k")
    assert [stream.log.place for stream in found.streams] == ["/a/math/log", "s3://b/code"]
    assert [str(stream.description) for stream in found.streams] == ["/a/math/log.json", "/a/code.json"]
    assert found.streams[0].log.trusted_keys == ("ed25519:k",) and found.interval == 0.02
    assert found.directory == str(tmp_path / "state" / "adapters")
    with pytest.raises(UsageError, match="SPARSECAST_FOLLOW_ADAPTERS: say where the description of s3://b/code is"):
        settings(tmp_path, "s3://b/code")
    with pytest.raises(UsageError, match="SPARSECAST_FOLLOW_ADAPTERS: /a is named twice"):
        settings(tmp_path, "/a,/a=/b.json")
    with pytest.raises(UsageError, match="SPARSECAST_FOLLOW_INTERVAL"):
        settings(tmp_path, "/a", FOLLOW_INTERVAL="often")


def test_each_adapter_follows_its_log_and_what_is_wrong_with_one_holds_up_no_other(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = tmp_path / "model"
    base.mkdir()
    save_file({f"{module}.weight": torch.zeros(shape) for module, shape in SHAPES.items()}, base / "model.safetensors")
    server = Server()
    logs = ",".join(str(tmp_path / name) for name in ("math", "code", "wide"))
    following = AdapterFollowing(server, settings(tmp_path, logs), str(base), logging.getLogger("test"))
    app = FastAPI()
    app.include_router(adapters_router())
    client = TestClient(app)
    assert client.get("/sparsecast/adapters").status_code == 404
    app.state.sparsecast_adapters = following

    def status(name: str) -> dict[str, Any]:
        shown = client.get("/sparsecast/adapters").json()["adapters"]
        return next(each for each in shown if each["log"].endswith(name))

    following.start()
    try:
        until(lambda: "there is no description yet" in status("math")["error"])
        math, code, wide = make("math", 1), make("code", 2), make("wide", 3, rank=16)
        with begin(tmp_path, math) as math_end, begin(tmp_path, code) as code_end, begin(tmp_path, wide):
            for seed in range(3):
                step(math, seed)
                math_end.publish()
                until(lambda: status("math")["version"] == math_end.version)
                assert same(server.engine.served["math"], dict(math.tensors))
            until(lambda: status("code")["version"] == code_end.version)
            assert same(server.engine.served["code"], dict(code.tensors)) and status("math")["error"] == ""
            until(lambda: "rank 16" in status("wide")["error"])
            assert status("wide")["version"] is None and any("rank 16" in each.message for each in caplog.records)
            server.restart()
            until(lambda: set(server.places) == {"math", "code"})
    finally:
        following.stop()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enable_lora": False}, "start vLLM with --enable-lora"),
        ({"enable_lora": True, "api_server_count": 2}, "--api-server-count 1"),
    ],
)
def test_a_vllm_server_that_could_not_load_adapters_does_not_start(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparsecast.engines.vllm.endpoints import SparsecastEndpoints

    monkeypatch.setenv("SPARSECAST_FOLLOW_ADAPTERS", "/log")
    state: Any = SimpleNamespace()
    client: Any = SimpleNamespace(init_weight_transfer_engine=None)
    args: Any = SimpleNamespace(host=None, port=8000, model="m", **options)
    with pytest.raises(UsageError, match=f"SPARSECAST_FOLLOW_ADAPTERS: .*{words}"):
        asyncio.run(SparsecastEndpoints().init_state(client, state, args))

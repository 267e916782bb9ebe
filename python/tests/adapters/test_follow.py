# SPDX-License-Identifier: Apache-2.0
"""The command that follows adapters beside a server, which is a stub that reads every version."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

for needed in ("torch", "httpx", "uvicorn", "starlette"):
    pytest.importorskip(needed)
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import torch
from adapter_files import make, same, step
from adapter_server import AdapterStub
from sparsecast_ports import free_port

from sparsecast import errors
from sparsecast.adapters import Adapter, AdapterSpec, SglangServer, VllmServer
from sparsecast.adapters.__main__ import main
from sparsecast.adapters.follow import AdapterFollower, AdapterStream
from sparsecast.control import Endpoint
from sparsecast.torch import Log, Publisher

KINDS = [("vllm", "0.33.0"), ("vllm", "0.32.0+cpu"), ("sglang", "")]


@pytest.fixture(params=KINDS, ids=lambda kind: " ".join(kind).strip())
def stub(request: pytest.FixtureRequest) -> Iterator[AdapterStub]:
    kind, release = request.param
    server = AdapterStub(kind, release=release)
    server.start()
    yield server
    server.stop()


def server_of(stub: AdapterStub) -> VllmServer | SglangServer:
    endpoint = Endpoint("127.0.0.1", stub.port, kind=stub.kind)
    return VllmServer(endpoint) if stub.kind == "vllm" else SglangServer(endpoint)


def begin(folder: pathlib.Path, adapter: Adapter) -> Publisher:
    """The trainer's side: log and description where the follower looks."""
    log = Log(str(folder / adapter.name), mirror=str(folder / f"{adapter.name}.safetensors"))
    publisher = Publisher(adapter.tensors.items(), transport=log)
    adapter.spec().save(folder / f"{adapter.name}.json")
    return publisher


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_follower_waits_adds_updates_and_gives_again_what_a_restart_has_lost(
    stub: AdapterStub, tmp_path: pathlib.Path
) -> None:
    said: list[str] = []
    streams = [AdapterStream(Log(str(tmp_path / name)), str(tmp_path / f"{name}.json")) for name in ("math", "code")]
    follower = AdapterFollower(server_of(stub), tmp_path / "served", streams, say=said.append)
    assert follower.step() == [] == follower.step()
    assert len(said) == 2 and "there is no description yet: waiting" in said[0], "said once for each"
    math, code = make("math", 1), make("code", 2)
    with begin(tmp_path, math) as math_end, begin(tmp_path, code):
        assert [update.name for update in follower.step()] == ["math", "code"]
        assert any("goes on" in sentence for sentence in said)
        for seed in range(3):
            step(math, seed)
            math_end.publish()
            assert [update.name for update in follower.step()] == ["math"]
            assert same(stub.adapters.served["math"], dict(math.tensors))
            assert same(stub.adapters.served["code"], dict(code.tensors))
        assert follower.step() == []
        stub.adapters.restart()
        # A path of before may come again, because a server that was started again has forgotten its caches.
        stub.adapters.loads.clear()
        assert follower.step() == []
        assert same(stub.adapters.served["math"], dict(math.tensors)) and len(stub.adapters.served) == 2
        assert sum("the server no longer had it" in sentence for sentence in said) == 2
        port = stub.port
        stub.stop()
        step(math, 8)
        math_end.publish()
        assert follower.step() == [] == follower.step()
        assert sum("waiting" in sentence for sentence in said) == 3
        stub.adapters.restart()
        stub.adapters.loads.clear()
        stub.start(port)
        assert [update.name for update in follower.step()] == ["math"]
        assert same(stub.adapters.served["math"], dict(math.tensors)) and len(stub.adapters.served) == 2


def test_a_follower_that_is_started_again_takes_over_what_the_server_has(
    stub: AdapterStub, tmp_path: pathlib.Path
) -> None:
    math = make("math", 1)
    stream = AdapterStream(Log(str(tmp_path / "math")), str(tmp_path / "math.json"))
    with begin(tmp_path, math) as end:
        for seed in range(3):
            follower = AdapterFollower(server_of(stub), tmp_path / "served", [stream])
            step(math, seed)
            end.publish()
            assert [update.version for update in follower.step()] == [end.version]
            assert same(stub.adapters.served["math"], dict(math.tensors))
            assert len(list((tmp_path / "served" / "math").glob("v*"))) == 1, "what others have left is removed"


def test_what_the_server_refuses_ends_it_and_the_version_before_stands(
    stub: AdapterStub, tmp_path: pathlib.Path
) -> None:
    math, wide = make("math", 1), make("wide", 2, rank=16)
    streams = [AdapterStream(Log(str(tmp_path / name)), str(tmp_path / f"{name}.json")) for name in ("math", "wide")]
    follower = AdapterFollower(server_of(stub), tmp_path / "served", streams)
    with begin(tmp_path, math), begin(tmp_path, wide), pytest.raises(errors.UnsupportedError, match="rank 16 is above"):
        follower.step()
    assert set(stub.adapters.served) == {"math"}
    (tmp_path / "wide.json").write_text('{"name": "wide"}')
    with pytest.raises(errors.UsageError, match="no description of an adapter"):
        AdapterFollower(server_of(stub), tmp_path / "served", streams[1:]).step()


def test_the_command_ends_by_a_signal_and_leaves_the_adapters(tmp_path: pathlib.Path) -> None:
    stub = AdapterStub("vllm")
    port = free_port()
    math = make("math", 1)
    command = [
        sys.executable,
        "-m",
        "sparsecast.adapters",
        "follow",
        f"http://127.0.0.1:{port}",
        str(tmp_path / "math"),
    ]
    command += ["--directory", str(tmp_path / "served"), "--interval", "0.05", "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    try:
        with begin(tmp_path, math) as end:
            stub.start(port)
            until(lambda: "math" in stub.adapters.served)
            step(math, 1)
            end.publish()
            until(lambda: same(stub.adapters.served["math"], dict(math.tensors)))
            version = end.version
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        stub.stop()
    assert process.returncode == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["name"] for line in lines} == {"math"} and lines[-1]["version"] == version
    assert set(stub.adapters.served) == {"math"} and pathlib.Path(stub.adapters.paths["math"]).is_dir()


def test_wrong_use_and_failures_have_their_exit_status(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = AdapterStub("vllm", max_rank=2)
    stub.start()
    directory = ["--directory", str(tmp_path / "served")]
    try:
        for arguments, words in (
            ([f"{stub.url}/v1", "log"], "is not http://HOST:PORT"),
            (["127.0.0.1:80", "log"], "is not http://HOST:PORT"),
            ([stub.url, "s3://bucket/log"], "--description FILE"),
            ([stub.url, "a", "b", "--description", "c"], "2 logs and 1 descriptions"),
            ([stub.url, "a", "a"], "named twice"),
        ):
            assert main(["follow", *arguments, *directory]) == 2
            assert words in capsys.readouterr().err
        assert main(["follow", stub.url, str(tmp_path / "math"), "--once", *directory]) == 1
        assert "there is no description yet" in capsys.readouterr().err
        with begin(tmp_path, make("math", 1)):
            assert main(["follow", stub.url, str(tmp_path / "math"), "--once", *directory]) == 1
            assert "rank 4 is above 2" in capsys.readouterr().err
            stub.adapters.max_rank = 8
            assert main(["follow", stub.url, str(tmp_path / "math"), "--once", *directory]) == 0
            assert "adapter 'math': version " in capsys.readouterr().out
    finally:
        stub.stop()


def test_a_description_survives_its_file(tmp_path: pathlib.Path) -> None:
    spec = make("math", 1, dtype=torch.float32).spec()
    spec.save(tmp_path / "math.json")
    assert AdapterSpec.load(tmp_path / "math.json") == spec and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(errors.CorruptError, match=r"nothing\.json: it holds no description"):
        AdapterSpec.load(tmp_path / "nothing.json")

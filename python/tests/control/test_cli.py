# SPDX-License-Identifier: Apache-2.0
"""The command `sparsecast-control` against a real service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stub_engines import StubEngine

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from sparsecast.control import ControlPlane, ControlService  # noqa: E402
from sparsecast.control.cli import TOKEN_VARIABLE, main  # noqa: E402


@pytest.fixture
def common(plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    path = tmp_path / "token"
    with ControlService(plane, port=0, token_file=path) as service:
        yield ["--url", service.url, "--token-file", str(path)]


def test_endpoints_are_added_synced_and_removed_from_the_shell(
    common: list[str], engines: list[StubEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    port = str(engines[0].port)
    assert main([*common, "remove", "localhost", port]) == 0
    assert main([*common, "add", "localhost", port, "--world-size", "2", "--name", "sg"]) == 0
    assert main([*common, "sync", "--pause", "keep"]) == 0
    assert main([*common, "status", "--probe"]) == 0
    shown = capsys.readouterr().out
    assert "sg added" in shown and "ok: version 1 in" in shown and "density 1.0000%" in shown
    assert "trainer at version 1" in shown and "sg  sglang x2  version 1  ready, answers" in shown
    assert engines[0].pause_modes == ["in_place"]


def test_generation_and_memory_are_commanded_by_name(common: list[str], engines: list[StubEngine]) -> None:
    assert main([*common, "pause", "--mode", "retract", "vl"]) == 0
    assert engines[1].paused and not engines[0].paused
    assert main([*common, "resume"]) == 0 and not engines[1].paused
    assert main([*common, "sleep", "--tag", "kv_cache", "sg"]) == 0 and engines[0].asleep == {"kv_cache"}
    assert main([*common, "wake"]) == 0 and not engines[0].asleep


def test_a_failed_sync_is_exit_1_and_names_the_endpoint(
    common: list[str], engines: list[StubEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    engines[0].faults["join"] = 500
    assert main([*common, "--json", "sync"]) == 1
    shown = capsys.readouterr()
    assert "endpoint sg: join" in shown.err and "[peer_failed]" in shown.err
    assert json.loads(shown.out)["error"]["failures"][0]["endpoint"] == "sg"


def test_a_service_that_is_not_there_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:1", "status"]) == 2
    assert "http://127.0.0.1:1" in capsys.readouterr().err


def test_a_missing_token_is_told(common: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*common[:2], "status"]) == 1
    assert "[unauthenticated]" in capsys.readouterr().err


def test_a_token_file_that_others_can_read_is_refused(
    common: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").chmod(0o644)
    assert main([*common, "status"]) == 2
    assert "can be read by others" in capsys.readouterr().err


def test_the_module_runs_as_a_program(common: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "sparsecast.control", *common, "--json", "status"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["endpoints"] == []

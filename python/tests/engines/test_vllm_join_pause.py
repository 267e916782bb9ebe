# SPDX-License-Identifier: Apache-2.0
"""The pause around a join in vLLM's own trainer interface, by the calls that a server gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from sparsecast.engines.vllm import join_pause
from sparsecast.engines.vllm.join_pause import paused_join
from sparsecast.errors import IoError

BEGIN = [("/sparsecast/lease", 15.0), ("/pause?mode=keep&clear_cache=false", None)]


class Stub(ThreadingHTTPServer):
    """A server whose answers are by path; a path that is not there is answered with 404."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "/is_paused": {"is_paused": False},
            "/collective_rpc": {"results": [{"is_whole": True}]},
            "/sparsecast/lease": {},
            "/pause?mode=keep&clear_cache=false": {},
            "/resume": {},
        }
        self.calls: list[tuple[str, float | None]] = []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def client(self) -> Any:
        return SimpleNamespace(base_url=f"http://127.0.0.1:{self.server_port}")

    @property
    def changes(self) -> list[tuple[str, float | None]]:
        return [call for call in self.calls if call[0] not in ("/is_paused", "/collective_rpc")]


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        self.server.calls.append((self.path, body.get("seconds")))
        answer = self.server.answers.get(self.path)
        raw = json.dumps(answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    yield server
    server.shutdown()
    server.server_close()


def test_a_join_that_succeeds_ends_its_pause_and_its_lease(stub: Stub) -> None:
    with paused_join(stub.client):
        assert stub.changes == BEGIN
    assert stub.changes == [*BEGIN, ("/resume", None), ("/sparsecast/lease", 0)]


def test_a_long_join_renews_its_lease(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_pause, "_RENEW_SECONDS", 0.01)
    with paused_join(stub.client):
        renewed = threading.Event()
        while stub.changes.count(BEGIN[0]) < 3:
            assert not renewed.wait(0.01)


def test_after_a_join_that_fails_the_server_decides_by_itself(stub: Stub) -> None:
    with pytest.raises(ValueError, match="half of the weights"), paused_join(stub.client):
        raise ValueError("half of the weights")
    assert stub.changes == [*BEGIN, ("/sparsecast/lease", 1.0)]


def test_a_server_that_takes_no_lease_is_not_paused(stub: Stub) -> None:
    del stub.answers["/sparsecast/lease"]
    with paused_join(stub.client):
        pass
    assert stub.changes == BEGIN[:1]
    with paused_join(SimpleNamespace(base_url=None)):
        pass


def test_a_pause_of_the_caller_stays(stub: Stub) -> None:
    stub.answers["/is_paused"] = {"is_paused": True}
    with paused_join(stub.client):
        pass
    assert stub.changes == []


def test_a_server_that_an_earlier_join_has_left_half_written_goes_on_after_the_next(stub: Stub) -> None:
    stub.answers["/is_paused"] = {"is_paused": True}
    stub.answers["/collective_rpc"] = {"results": [{"is_whole": True}, {"is_whole": False}]}
    with paused_join(stub.client):
        pass
    assert ("/resume", None) in stub.changes


def test_a_server_that_cannot_be_paused_is_not_joined(stub: Stub) -> None:
    del stub.answers["/pause?mode=keep&clear_cache=false"]
    with pytest.raises(IoError, match="/pause.*404"), paused_join(stub.client):
        raise AssertionError("joined")
    assert stub.changes == [*BEGIN, ("/sparsecast/lease", 1.0)]

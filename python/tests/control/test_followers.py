# SPDX-License-Identifier: Apache-2.0
"""Servers that follow a log take a version together: none before all have staged it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sparsecast.control import Endpoint, EndpointError, take_together

SECONDS = 20.0


class Follower:
    """A server that stages when `may_stage` is set, or `never_stages`, and writes every call into `calls`, which all
    servers share.
    """

    def __init__(self, name: str, calls: list[tuple[str, str, int]]) -> None:
        self.may_stage = threading.Event()
        self.never_stages = False
        follower = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                staging = self.path == "/sparsecast/stage"
                version = body["version" if staging else "at_least"]
                done = not staging or (not follower.never_stages and follower.may_stage.wait(body["timeout"]))
                if done:
                    calls.append((name, self.path.rpartition("/")[2], version))
                answer = {"version": version} if done else {"detail": f"version {version} is not staged"}
                text = json.dumps(answer).encode()
                self.send_response(200 if done else 504)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = Endpoint("127.0.0.1", self.server.server_address[1], kind="vllm", name=name)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def calls() -> list[tuple[str, str, int]]:
    return []


@pytest.fixture
def followers(calls: list[tuple[str, str, int]]) -> Iterator[list[Follower]]:
    made = [Follower(name, calls) for name in ("near", "far")]
    yield made
    for follower in made:
        follower.server.shutdown()
        follower.server.server_close()


def test_no_server_takes_the_version_before_all_have_staged_it(
    followers: list[Follower], calls: list[tuple[str, str, int]]
) -> None:
    near, far = followers
    near.may_stage.set()
    threading.Timer(0.2, far.may_stage.set).start()
    asyncio.run(take_together([near.endpoint, far.endpoint], 7, timeout=SECONDS))
    assert sorted(calls[:2]) == [("far", "stage", 7), ("near", "stage", 7)]
    assert sorted(calls[2:]) == [("far", "version", 7), ("near", "version", 7)]


def test_no_server_takes_the_version_when_one_has_not_staged_it(
    followers: list[Follower], calls: list[tuple[str, str, int]]
) -> None:
    near, far = followers
    near.may_stage.set()
    far.never_stages = True
    with pytest.raises(EndpointError, match="version 7 is not staged") as caught:
        asyncio.run(take_together([near.endpoint, far.endpoint], 7, timeout=SECONDS))
    assert (caught.value.endpoint, caught.value.step) == ("far", "stage")
    assert calls == [("near", "stage", 7)]

# SPDX-License-Identifier: Apache-2.0
"""Requests that name the version of the weights they need, over an application that streams and one that does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sparsecast.engines.request_versions import RequestVersions


class Server:
    """An application whose `version` the tests change."""

    def __init__(self, version: str = "7") -> None:
        self.version = version
        self.asked = self.served = 0
        routes = [
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/stream", self.stream, methods=["POST"]),
            Route("/health", lambda request: Response("ok")),
        ]
        self.app = RequestVersions(Starlette(routes=routes), self.ask)  # type: ignore[arg-type]

    async def ask(self) -> str:
        self.asked += 1
        return self.version

    async def complete(self, request: Request) -> Response:
        self.served += 1
        if request.headers.get("update"):
            self.version = "8"
        return JSONResponse({"text": "hello"})

    async def stream(self, request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            yield "data: one\n\n"
            self.version = "8"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def post(self, path: str = "/v1/completions", **headers: str) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                return await client.post(path, headers=named)

        return asyncio.run(call())


def test_a_response_names_the_versions_at_its_start_and_end() -> None:
    server = Server()
    answer = server.post()
    assert (answer.headers["x-weight-version-start"], answer.headers["x-weight-version-end"]) == ("7", "7")
    answer = server.post(update="1")
    assert (answer.headers["x-weight-version-start"], answer.headers["x-weight-version-end"]) == ("7", "8")
    assert answer.json() == {"text": "hello"}


def test_a_stream_of_events_ends_with_its_version() -> None:
    answer = Server().post("/v1/stream")
    assert answer.headers["x-weight-version-start"] == "7" and "x-weight-version-end" not in answer.headers
    assert answer.text == "data: one\n\ndata: [DONE]\n\n: weight-version-end: 8\n\n"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_weight_version": "7"}, 200),
        ({"x_weight_version": "6"}, 409),
        ({"x_weight_version": "8"}, 409),
        ({"x_weight_version_at_least": "6"}, 200),
        ({"x_weight_version_at_least": "7"}, 200),
        ({"x_weight_version_at_least": "8"}, 409),
        ({"x_weight_version_at_least": "8", "x_weight_version_wait": "0.1"}, 409),
        ({"x_weight_version": "6", "x_weight_version_wait": "600"}, 409),  # It never comes back: nobody waits.
    ],
)
def test_a_request_is_served_with_the_version_it_needs_or_refused(headers: dict[str, str], status: int) -> None:
    server = Server()
    answer = server.post(**headers)
    assert answer.status_code == status
    if status == 409:
        assert server.served == 0
        assert answer.json()["error"]["weight_version"] == 7 and "the server has 7" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["x_weight_version", "x_weight_version_at_least"])
def test_a_request_may_wait_for_its_version(name: str) -> None:
    server = Server()

    async def ask() -> str:
        server.asked += 1
        return "8" if server.asked > 3 else "7"

    server.app._ask = ask
    answer = server.post(**{name: "8", "x_weight_version_wait": "60"})
    assert answer.status_code == 200 and answer.headers["x-weight-version-start"] == "8"


@pytest.mark.parametrize("wrong", ["", "seven", "-1", "1e3", "٧", "9" * 30, "1.5"])
def test_what_is_no_number_is_refused_as_that(wrong: str) -> None:
    server = Server()

    async def call() -> tuple[int, bytes]:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        headers = [(b"x-weight-version", wrong.encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
        await server.app(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]

    status, body = asyncio.run(call())
    assert status == 400 and b"x-weight-version is" in body and server.served == 0


def test_a_server_that_was_never_updated_is_at_version_0() -> None:
    server = Server("default")
    assert server.post(x_weight_version="0").status_code == 200
    assert server.post(x_weight_version_at_least="1").status_code == 409


def test_other_routes_are_left_alone() -> None:
    server = Server()

    async def call() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://server") as client:  # type: ignore[arg-type]
            return await client.get("/health", headers={"x-weight-version": "99"})

    answer = asyncio.run(call())
    assert answer.status_code == 200 and server.asked == 0 and "x-weight-version-start" not in answer.headers

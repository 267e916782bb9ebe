# SPDX-License-Identifier: Apache-2.0
r"""ASGI middleware: requests that name the version of the weights they need, and responses that name theirs.

A request for a generation may carry

    X-Weight-Version: 12             it is generated with version 12, or refused
    X-Weight-Version-At-Least: 12    with version 12 or a newer one
    X-Weight-Version-Wait: 5         seconds to wait for that version; without this header it is refused at once

and is refused with 409 and the version that the server has. Each response names the version at its start
(X-Weight-Version-Start) and at its end: X-Weight-Version-End, or, in a stream of events, a last comment line
": weight-version-end: 12". Where they differ, the weights were updated in between.

Off by default; the variable SPARSECAST_REQUEST_VERSIONS=1 of the server switches it on, in vLLM with
VLLM_PLUGINS=sparsecast (or by `--middleware sparsecast.engines.request_versions.RequestVersions`), in SGLang with the
plug-in. A server that was never updated is at version 0.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

VARIABLE = "SPARSECAST_REQUEST_VERSIONS"
MAX_WAIT_SECONDS = 600.0

_EXACT = b"x-weight-version"
_AT_LEAST = b"x-weight-version-at-least"
_WAIT = b"x-weight-version-wait"
_START = b"x-weight-version-start"
_END = b"x-weight-version-end"
_PATHS = ("/v1/", "/generate", "/inference/")
_POLL_SECONDS = 0.05

Scope = Mapping[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_wanted() -> bool:
    """Returns whether the server's environment switches this middleware on."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


class RequestVersions:
    """ASGI middleware around the application `app`. A request for a generation waits for the version of the weights
    that its headers ask for, or is refused; its response names the versions at its start and its end.

    `ask` returns the name that the engine gives the version of its weights; a name that is not a decimal number counts
    as version 0. If `ask` is None, vLLM's engine client is asked.
    """

    def __init__(self, app: Application, ask: Callable[[], Awaitable[str]] | None = None) -> None:
        self._app = app
        self._ask = ask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request. Waits, as long as the request allows, for the version of the weights that it needs, and
        passes it on; answers 409 if the server does not have that version by then, and 400 if a header is not a number.
        Requests for paths that do not generate are passed on unchanged.
        """
        if scope["type"] != "http" or not scope["path"].startswith(_PATHS):
            await self._app(scope, receive, send)
            return
        try:
            exact, at_least, wait = (_number(scope, name) for name in (_EXACT, _AT_LEAST, _WAIT))
        except ValueError as error:
            await _refuse(send, 400, {"message": str(error)})
            return
        until = time.monotonic() + min(wait or 0.0, MAX_WAIT_SECONDS)
        while True:
            version = await self._version(scope)
            too_new = exact is not None and version > exact
            too_old = (exact is not None and version < exact) or (at_least is not None and version < at_least)
            if not too_new and not too_old:
                break
            if too_new or time.monotonic() >= until:
                needed = f"version {exact:g}" if exact is not None else f"version {at_least:g} or newer"
                words = f"the request needs {needed} of the weights, and the server has {version}"
                await _refuse(send, 409, {"message": words, "weight_version": version})
                return
            await asyncio.sleep(_POLL_SECONDS)
        await self._app(scope, receive, _Stamped(send, version, lambda: self._version(scope)))

    async def _version(self, scope: Scope) -> int:
        name = await (self._ask() if self._ask is not None else scope["app"].state.engine_client.get_weight_version())
        return int(name) if isinstance(name, str) and name.isdecimal() else 0


class _Stamped:
    """An ASGI `send` for one response, which adds the versions of the weights at the start and at the end of the
    response. Holds the head of the response back until the first part of the body comes, because a response of one part
    names both versions in its head.
    """

    def __init__(self, send: Send, start: int, version: Callable[[], Awaitable[int]]) -> None:
        self._send = send
        self._start = start
        self._version = version
        self._head: Message | None = None
        self._is_events = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = dict(message)
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        is_last = not message.get("more_body", False)
        end = await self._version() if is_last else 0
        if self._head is not None:
            head, self._head = self._head, None
            headers = [*head.get("headers", []), (_START, b"%d" % self._start)]
            self._is_events = (b"content-type", b"text/event-stream") in [(k.lower(), v[:17]) for k, v in headers]
            if is_last:
                headers.append((_END, b"%d" % end))
            await self._send({**head, "headers": headers})
        if is_last and self._is_events:
            message = {**message, "body": bytes(message.get("body", b"")) + b": weight-version-end: %d\n\n" % end}
        await self._send(message)


def _number(scope: Scope, name: bytes) -> float | None:
    values = [value for key, value in scope["headers"] if key.lower() == name]
    if not values:
        return None
    text = values[-1].decode("latin-1").strip()
    if len(values) > 1 or len(text) > 18 or not text.replace(".", "", name == _WAIT).isdecimal() or not text.isascii():
        raise ValueError(f"the header {name.decode()} is {text[:40]!r}, not one number")
    return float(text)


async def _refuse(send: Send, status: int, error: dict[str, Any]) -> None:
    body = json.dumps({"error": {"type": "weight_version", "code": status, **error}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

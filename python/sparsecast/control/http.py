# SPDX-License-Identifier: Apache-2.0
"""HTTP calls to engines: one deadline for the whole call, bounded answers, no redirects, no proxies.

A redirect or a proxy from the environment would carry the token, and the secret of the sync group, to another host.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from sparsecast.control.endpoints import Endpoint
from sparsecast.control.errors import ECHO_CODES, EndpointError

MAX_ANSWER_BYTES = 4 << 20  # the longest answer, SGLang's /server_info, has some ten thousand bytes
_SHOWN_CHARACTERS = 600
_CODE = re.compile(r"\[([a-z][a-z_]{2,31})\]")
_ENGINE_CODES = frozenset(
    {
        *("usage", "corrupt", "unsupported", "table_mismatch", "foreign_stream", "stale_version", "version_gap"),
        *("wrong_base", "digest_mismatch", "dirty", "incomplete", "io", "timeout", "peer_failed", "unauthenticated"),
        *("group_mismatch", "device", "fenced", "internal"),
    }
)


@dataclass(frozen=True)
class Answer:
    """A complete HTTP answer with a status below 300. `endpoint` and `step` are the names of the endpoint and of the
    step that made the request, for error messages.
    """

    endpoint: str
    step: str
    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """Returns the body as a JSON object. Raises `EndpointError` (code "corrupt") if the body is not one."""
        try:
            value = json.loads(self.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            shown = self.body[:80].decode("utf-8", "replace")
            raise EndpointError(self.endpoint, self.step, f"the answer is no JSON object: {shown!r}", code="corrupt")
        return value


def engine_error(endpoint: str, step: str, message: str) -> EndpointError:
    """Returns the error for an engine's error message. Its code is the last known code that the message has in square
    brackets ("[digest_mismatch]"), else "peer_failed".
    """
    for found in reversed(_CODE.findall(message)):
        if found in _ENGINE_CODES:
            return EndpointError(endpoint, step, message, code=found, echo=found in ECHO_CODES)
    return EndpointError(endpoint, step, message)


class HttpCaller:
    """Makes HTTP calls to the server of one endpoint. Used and closed on one event loop.

    tls   TLS settings by which https servers are verified; None: the trust store of the system.
    """

    def __init__(self, endpoint: Endpoint, *, tls: ssl.SSLContext | None = None) -> None:
        self.endpoint = endpoint  # may be replaced by the same endpoint with another token
        self._client = httpx.AsyncClient(
            base_url=endpoint.url,
            follow_redirects=False,
            trust_env=False,
            verify=tls if tls is not None else endpoint.scheme == "https",  # reading the trust store takes a while
            # Servers close a connection after an error without saying so: a call on it would fail for no reason.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        step: str,
        timeout: float,
        json: Mapping[str, Any] | None = None,
        params: Sequence[tuple[str, str]] = (),
        hide: Sequence[str] = (),
    ) -> Answer:
        """Sends one request and returns its complete answer. Raises `EndpointError` if there is none within `timeout`
        seconds, or if its status is 300 or above.

        step   name of the step that makes the call, for errors.
        hide   secrets in the request, which are blotted out of errors because servers may repeat them.
        """
        status, body = await self.exchange(method, path, step=step, timeout=timeout, json=json, params=params)
        if status >= 300:
            raise self._error(method, path, step, status, _without(body, [*hide, self.endpoint.token]))
        return Answer(self.endpoint.name, step, status, body)

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        step: str,
        timeout: float,
        json: Mapping[str, Any] | None = None,
        params: Sequence[tuple[str, str]] = (),
    ) -> tuple[int, bytes]:
        """Sends one request and returns (status, body), whatever the status. Raises `EndpointError` for `step` if there
        is no complete answer within `timeout` seconds.
        """
        name = self.endpoint.name
        if timeout <= 0:
            raise EndpointError(name, step, f"no time was left for {method} {path}", code="timeout")
        try:
            return await asyncio.wait_for(self._exchange(method, path, json, params, timeout, step), timeout)
        except (asyncio.TimeoutError, TimeoutError, httpx.TimeoutException):
            message = f"{method} {self.endpoint.url}{path} was not answered within {timeout:.4g} s"
            message += _timeout_hint(self.endpoint.kind, path)
            raise EndpointError(name, step, message, code="timeout") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = str(error) or type(error).__name__
            raise EndpointError(name, step, f"{method} {self.endpoint.url}{path}: {reason}", code="io") from error

    async def _exchange(
        self,
        method: str,
        path: str,
        json: Mapping[str, Any] | None,
        params: Sequence[tuple[str, str]],
        timeout: float,
        step: str,
    ) -> tuple[int, bytes]:
        token = self.endpoint.token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = self._client.build_request(
            method, path, json=json, params=list(params), headers=headers, timeout=timeout
        )
        response = await self._client.send(request, stream=True)
        try:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    message = f"the answer to {method} {path} is longer than {MAX_ANSWER_BYTES} bytes"
                    raise EndpointError(self.endpoint.name, step, message, code="corrupt")
            return response.status_code, bytes(body)
        finally:
            await response.aclose()

    def _error(self, method: str, path: str, step: str, status: int, text: str) -> EndpointError:
        what = f"{method} {self.endpoint.url}{path} was answered with {status}"
        if status < 400:
            message, code = f"{what}, a redirect, which is not followed: is this the engine itself?", "unsupported"
        elif status in (401, 403):
            given = "its token is not accepted" if self.endpoint.token else "it asks for a token and has none here"
            message, code = f"{what}: {given}", "unauthenticated"
        elif status in (404, 405, 501):
            hint = _route_hint(self.endpoint.kind, path)
            message, code = f"{what}: the server has no such route{hint}", "unsupported"
        else:
            return engine_error(self.endpoint.name, step, f"{what}: {text}" if text else what)
        return EndpointError(self.endpoint.name, step, message, code=code)


def _without(body: bytes, secrets: Sequence[str]) -> str:
    text = body.decode("utf-8", "replace")
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    text = " ".join(text.split())
    if len(text) > _SHOWN_CHARACTERS:  # the error code of an engine is at the end
        text = f"{text[: _SHOWN_CHARACTERS // 2]} ... {text[-_SHOWN_CHARACTERS // 2 :]}"
    return text


def _timeout_hint(kind: str, path: str) -> str:
    if kind == "vllm" and path == "/health":
        return ""  # Answered by the process of the HTTP server alone: that one hangs.
    return " (engines answer between two steps of generation: a busy one needs a longer deadline in SyncPolicy)"


def _route_hint(kind: str, path: str) -> str:
    if kind == "vllm" and path.endswith("_lora_adapter"):
        needs = "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        return f" (vLLM has it with {needs}), or does not see the directory, or has no adapter of this name"
    if path.startswith("/sparsecast/"):
        return " (a vLLM server that follows a log has it: SPARSECAST_FOLLOW=LOG VLLM_PLUGINS=sparsecast)"
    if path == "/health":
        return ": is it the engine that answers, or something in front of it?"
    if kind == "vllm":
        return " (vLLM has it in development mode: VLLM_SERVER_DEV_MODE=1, and --weight-transfer-config)"
    return " (another version of SGLang, or a router in front of it?)"

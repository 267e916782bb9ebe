# SPDX-License-Identifier: Apache-2.0
"""Access control of the control service: a bearer token, and a bound on request bodies."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from sparsecast.control.endpoints import normalise_host
from sparsecast.errors import UsageError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/healthz"})
MIN_TOKEN_CHARACTERS = 16
MAX_REQUEST_BYTES = 1 << 20


def new_token() -> str:
    """Returns a new random token of 256 bits, as 43 characters."""
    return secrets.token_urlsafe(32)


def check_token(token: str) -> str:
    """Returns `token` if it is valid: 16 printable ASCII characters or more, without blanks. Raises `UsageError`
    otherwise.
    """
    if len(token) < MIN_TOKEN_CHARACTERS or any(not 33 <= ord(character) <= 126 for character in token):
        raise UsageError(f"a token has {MIN_TOKEN_CHARACTERS} or more printable ASCII characters, and no blanks")
    return token


def token_of_file(path: str | os.PathLike[str]) -> str:
    """Returns the token in a file. Raises `UsageError` naming the file if it cannot be read, if it is not a regular
    file on which only the owner has permissions, or if its token is not valid (`check_token`).
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise UsageError(f"token file {os.fspath(path)!r}: {error.strerror}") from error
    with os.fdopen(descriptor, "r", encoding="ascii", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode) or mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"token file {os.fspath(path)!r} can be read by others: chmod 600 it")
        return check_token(file.read(4096).strip())


def token_file(path: str | os.PathLike[str]) -> str:
    """Returns the token in a file. If there is no such file, creates it with mode 0600 and a new token. Raises
    `UsageError` for a file that `token_of_file` refuses, or that cannot be created.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        return token_of_file(path)
    except OSError as error:
        raise UsageError(f"token file {os.fspath(path)!r}: {error.strerror}") from error
    token = new_token()
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)  # independent of the umask
        file.write(token + "\n")
    return token


def is_loopback(host: str) -> bool:
    """Returns whether `host` is an address of the loopback interface, or "localhost". Raises `UsageError` if it is
    neither a host name nor an address.
    """
    plain = normalise_host(host)
    return plain == "::1" or (plain.startswith("127.") and plain.replace(".", "").isdigit())


class Gatekeeper:
    """ASGI middleware that answers 401 to requests without the bearer token `token`, and 413 to requests whose body has
    more than `max_bytes` bytes. Requests for /healthz need no token.

    If `token` is None, no request needs a token, but only programs on this machine may call, not web pages in a
    browser: a request is answered 403 if it has an Origin header, or if its Host header is not an address of the
    loopback interface (a web page can reach this service under a name that was made to resolve to a loopback address).
    """

    def __init__(self, app: Application, *, token: str | None, max_bytes: int = MAX_REQUEST_BYTES) -> None:
        self._app = app
        self._digest = hashlib.sha256(token.encode()).digest() if token is not None else None
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here: the connection is closed
        headers = {name.lower(): value for name, value in scope["headers"]}
        error = None if scope["path"] in OPEN_PATHS else self._error(headers)
        if error is not None:
            await _answer(send, *error)
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_bytes:
            await _answer(send, 413, "usage", f"a request has at most {self._max_bytes} bytes")
            return
        await self._bounded(scope, receive, send)

    def _error(self, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        if self._digest is None:
            if b"origin" in headers or not _is_loopback_host(headers.get(b"host", b"")):
                return 403, "unauthenticated", "without a token only programs of this machine may call, not web pages"
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        right = hmac.compare_digest(hashlib.sha256(given.strip()).digest(), self._digest)
        if scheme.lower() == b"bearer" and right:
            return None
        return 401, "unauthenticated", "send the header 'Authorization: Bearer TOKEN' with this service's token"

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on to the application. Answers 413 once the body has more than `max_bytes` bytes, even if
        the request has no Content-Length header.
        """
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:
                raise _TooLong
            return message

        async def watched(message: Message) -> None:
            if seen <= self._max_bytes:  # otherwise the application answers our exception
                await send(message)

        with contextlib.suppress(_TooLong):
            await self._app(scope, counted, watched)
        if seen > self._max_bytes:
            await _answer(send, 413, "usage", f"a request has at most {self._max_bytes} bytes")


class _TooLong(Exception):
    pass


def _is_loopback_host(header: bytes) -> bool:
    text = header.decode("latin-1")
    host = text[: text.index("]") + 1] if text.startswith("[") and "]" in text else text.rsplit(":", 1)[0]
    try:
        return is_loopback(host)
    except UsageError:
        return False


async def _answer(send: Send, status: int, code: str, message: str) -> None:
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 413:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

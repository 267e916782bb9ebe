# SPDX-License-Identifier: Apache-2.0
"""A server that answers without an end is given up by the deadline, with what it did."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("httpx", reason="the integrations call servers with httpx")
from sparsecast.control import Endpoint
from sparsecast.errors import DeadlineError
from sparsecast.integrations import _vllm_server

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.fixture
def endless() -> Iterator[Callable[[bytes, bytes, float], Endpoint]]:
    """Returns the endpoint of a server that sends `first`, and then `again` every so many seconds."""
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket, first: bytes, again: bytes, pause: float) -> None:
        with connection:
            try:
                connection.recv(4096)
                connection.sendall(first)
                while not stop.wait(pause):
                    connection.sendall(again)
            except OSError:
                pass

    def serve(first: bytes, again: bytes, pause: float) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection, first, again, pause), daemon=True).start()

    def start(first: bytes, again: bytes, pause: float) -> Endpoint:
        threading.Thread(target=serve, args=(first, again, pause), daemon=True).start()
        return _vllm_server.endpoint_of(f"127.0.0.1:{listener.getsockname()[1]}")

    yield start
    stop.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.parametrize(
    ("first", "again", "pause", "said"),
    [
        (HEAD + b"Content-Length: 100000\r\n\r\n", b"x", 0.02, "was not answered within"),
        (HEAD + b"X-Long: ", b"x", 0.02, "was not answered within"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + bytes(0x10000) + b"\r\n", 0.0, "longer than"),
    ],
)
def test_an_answer_without_an_end_is_given_up(
    endless: Callable[[bytes, bytes, float], Endpoint],
    monkeypatch: pytest.MonkeyPatch,
    first: bytes,
    again: bytes,
    pause: float,
    said: str,
) -> None:
    monkeypatch.setattr(_vllm_server, "_CALL_SECONDS", 0.5 if pause else 20.0)
    endpoint = endless(first, again, pause)
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=rf"{endpoint.url}.*/health.*{said}|{endpoint.url}.*{said}.*/health"):
        _vllm_server.look_at(endpoint, 0.1)
    assert time.monotonic() - began < 30

# SPDX-License-Identifier: Apache-2.0
"""The control plane over HTTP: JSON in and out, a token on everything, metrics, OpenAPI.

    plane = ControlPlane(publisher, host="10.0.0.1", port=29600)
    service = ControlService(plane, token_file="control.token")
    service.start()

runs it in a thread of the trainer's process. `docs/control.md` has the routes with examples.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import Any

import uvicorn
from fastapi import FastAPI

from sparsecast.control.auth import MAX_REQUEST_BYTES, Gatekeeper, check_token, is_loopback, new_token, token_file
from sparsecast.control.metrics import ControlMetrics
from sparsecast.control.plane import ControlPlane
from sparsecast.control.routes import build_app
from sparsecast.errors import DeadlineError, UsageError

DEFAULT_PORT = 29700


class ControlService:
    """Serves the control plane `plane` over HTTP from `start()` to `stop()`, in a thread of its own.

    host, port      where to listen; for port 0 the system chooses a port (`url` has it).
    token           token that callers send as `Authorization: Bearer TOKEN`.
    token_file      path of a file with the token. If there is no such file, it is made (mode 0600, a new token).
                    Without `token` and `token_file` a new token is printed once, to stderr.
    authentication  False: callers need no token. Possible only on a loopback address; requests that web pages can make
                    are refused.
    tls             (certificate file, key file), PEM: serve https. Without it the token crosses the network in the
                    clear.
    max_bytes       largest body of a request, in bytes.

    Requests are served in threads of a pool. Only one operation on engines runs at a time; others are answered 409.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        authentication: bool = True,
        tls: tuple[str, str] | None = None,
        max_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        self.plane = plane
        self.metrics = ControlMetrics(plane)
        self._token = _settle_token(host, token, token_file, authentication)
        self._host = host
        self._tls = tls
        app: FastAPI = build_app(plane, self.metrics)
        app.add_middleware(Gatekeeper, token=self._token, max_bytes=max_bytes)
        self.app = app
        config: dict[str, Any] = {"host": host, "port": port, "log_level": "warning", "access_log": False}
        if tls is not None:
            config.update(ssl_certfile=tls[0], ssl_keyfile=tls[1])
        self._server = uvicorn.Server(
            uvicorn.Config(app, server_header=False, timeout_graceful_shutdown=5, lifespan="off", **config)
        )
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """URL of the running service. Raises `UsageError` before `start()`."""
        if not self._server.started:
            raise UsageError("the service is not running")
        port = self._server.servers[0].sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{port}"

    def start(self, timeout: float = 10.0) -> ControlService:
        """Starts the service and returns it when it listens. Raises `UsageError` if it cannot listen (the port is in
        use), and `DeadlineError` if it does not within `timeout` seconds.
        """
        if self._thread is not None:
            raise UsageError("the service was started already")
        self._thread = threading.Thread(target=self._serve, name="sparsecast-control-http", daemon=True)
        self._thread.start()
        until = time.monotonic() + timeout
        while not self._server.started:
            if not self._thread.is_alive():
                raise UsageError(f"the service cannot listen on {self._host}; its reason is in the log")
            if time.monotonic() > until:
                self._server.should_exit = True
                raise DeadlineError(f"the service did not listen within {timeout:g} s")
            time.sleep(0.01)
        return self

    def _serve(self) -> None:
        try:
            self._server.run()
        except SystemExit:  # uvicorn's way to say that it cannot listen: it must not end a trainer
            return

    def stop(self, timeout: float = 10.0) -> None:
        """Stops the service: gives requests in progress five seconds, then ends them and the thread. Waits up to
        `timeout` seconds for the thread. The control plane stays open.
        """
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout)

    def __enter__(self) -> ControlService:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _settle_token(
    host: str, token: str | None, path: str | os.PathLike[str] | None, authentication: bool
) -> str | None:
    if not authentication:
        if token is not None or path is not None:
            raise UsageError("there is a token, and authentication is switched off: which is meant?")
        if not is_loopback(host):
            raise UsageError(f"authentication can be switched off on a loopback address only, not on {host}")
        return None
    if token is not None and path is not None:
        raise UsageError("token and token_file are both given")
    if token is not None:
        return check_token(token)
    if path is not None:
        return token_file(path)
    made = new_token()
    print(f"sparsecast-control: the token of this run is {made}", file=sys.stderr, flush=True)
    return made

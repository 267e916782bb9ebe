# SPDX-License-Identifier: Apache-2.0
"""What a vLLM server must be for weights or adapters to be sent to it, and a sentence with the cure where it is not."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sparsecast.control import Endpoint
from sparsecast.control.errors import EndpointError
from sparsecast.control.http import HttpCaller
from sparsecast.control.loop import LoopThread
from sparsecast.errors import DeadlineError, PeerFailedError, UnsupportedError, UsageError

_POLL_SECONDS = 0.5
_CALL_SECONDS = 10.0
_INFO_SECONDS = 120.0  # The first /server_info looks for compilers and drivers: half a minute on a busy machine.
_START = (
    "VLLM_SERVER_DEV_MODE=1 VLLM_PLUGINS=sparsecast vllm serve MODEL --weight-transfer-config "
    '\'{"backend": "sparsecast"}\' --worker-extension-cls sparsecast.engines.vllm.WorkerExtension'
)
_START_LORA = (
    "VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --enable-lora --max-lora-rank RANK"
)
_START_FOLLOWER = "SPARSECAST_FOLLOW=LOG VLLM_PLUGINS=sparsecast vllm serve MODEL"
_UNNAMED = ("default", "", "0")  # weight versions of a server that was never updated


@dataclass(frozen=True)
class VllmServer:
    """Facts about a vLLM server, as it reports them.

    world_size  number of ranks that hold weights.
    dtype       dtype of the weights, as torch names it, without "torch.".
    updated     whether weights were sent to the server since it was started.
    """

    url: str
    world_size: int
    dtype: str
    updated: bool


def endpoint_of(url: str, **fields: Any) -> Endpoint:
    """Returns the endpoint of a vLLM server with this base URL; `fields` are further fields of `Endpoint`. The scheme
    may be left out (http), and so may the port (80, or 443 for https). Raises UsageError for a URL without a host, or
    with a path or a query.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        port = None
    if not parts.hostname or port is None or parts.path not in ("", "/") or parts.query:
        raise UsageError(f"'{url}' is not http://HOST:PORT (a path in front of vLLM's routes is not supported)")
    # TRL's default is the address that a server listens on, which is none to connect to.
    host = "127.0.0.1" if parts.hostname == "0.0.0.0" else parts.hostname
    return Endpoint(host, port, kind="vllm", scheme=parts.scheme, **fields)


def look_at(endpoint: Endpoint, wait_seconds: float) -> VllmServer:
    """Waits up to `wait_seconds` until the server answers, and returns the facts that it reports.

    Raises DeadlineError if it does not answer in time, UsageError if it was started without development mode or without
    the weight-transfer backend of sparsecast, and UnsupportedError if it was started with LoRA adapters enabled.
    """
    with _Server(endpoint) as server:
        server.wait(wait_seconds, _START)
        config = server.config(_START)
        backend = (config.get("weight_transfer_config") or {}).get("backend")
        if backend != "sparsecast":
            has = f"the weight-transfer backend '{backend}'" if backend else "no weight-transfer backend"
            raise UsageError(f"the vLLM server at {endpoint.url} has {has}: start it with {_START}")
        if config.get("lora_config"):
            raise UnsupportedError(
                f"the vLLM server at {endpoint.url} was started with --enable-lora, which weights are not sent to: say "
                "enable(adapter=ServedAdapter(...)) to have the adapter sent as it is, or start it without "
                "--enable-lora to have it merged into the weights"
            )
        world_size = server.object("/get_world_size").get("world_size")
        version = server.object("/weight_info").get("weight_version")
    dtype = str((config.get("model_config") or {}).get("dtype", "")).removeprefix("torch.")
    if not isinstance(world_size, int) or not dtype:
        raise PeerFailedError(f"the server at {endpoint.url} does not say its world size and dtype: is it vLLM?")
    return VllmServer(endpoint.url, world_size, dtype, updated=version is not None and str(version) not in _UNNAMED)


@dataclass(frozen=True)
class LoraServer:
    """A vLLM server that takes adapters.

    max_rank    largest rank of an adapter that it takes.
    lora_dtype  dtype in which it keeps adapters, as torch names it, without "torch.".
    """

    url: str
    max_rank: int
    lora_dtype: str


def look_at_lora(endpoint: Endpoint, wait_seconds: float) -> LoraServer:
    """Waits up to `wait_seconds` until the server answers, and returns what it reports about adapters.

    Raises DeadlineError if it does not answer in time, UsageError if it was started without development mode, without
    --enable-lora or without permission to load adapters, and UnsupportedError if it uses data parallelism.
    """
    with _Server(endpoint) as server:
        server.wait(wait_seconds, _START_LORA)
        config = server.config(_START_LORA)
        lora = config.get("lora_config")
        if not lora:
            raise UsageError(f"the vLLM server at {endpoint.url} takes no adapters: start it with {_START_LORA}")
        # There is no GET of this route: 405 says that it is there.
        if server.get("/v1/load_lora_adapter")[0] == 404:
            raise UsageError(
                f"the vLLM server at {endpoint.url} was started without VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, which "
                f"opens the routes for adapters: start it with {_START_LORA}"
            )
    if (config.get("parallel_config") or {}).get("data_parallel_size", 1) > 1:
        raise UnsupportedError(
            f"the vLLM server at {endpoint.url} has --data-parallel-size above 1: a replica alone would get the adapter"
        )
    dtypes = [lora.get("lora_dtype"), (config.get("model_config") or {}).get("dtype")]
    known = [str(each).removeprefix("torch.") for each in dtypes if each not in (None, "auto")]
    rank = lora.get("max_lora_rank")
    if not isinstance(rank, int) or not known:
        raise PeerFailedError(f"the server at {endpoint.url} does not say what adapters it takes: is it vLLM?")
    return LoraServer(endpoint.url, rank, known[0])


def look_at_follower(endpoint: Endpoint, wait_seconds: float) -> None:
    """Waits up to `wait_seconds` until the server answers. Raises DeadlineError if it does not answer in time, and
    UsageError if it follows no log.
    """
    with _Server(endpoint) as server:
        server.wait(wait_seconds, _START_FOLLOWER)
        if server.get("/sparsecast/follow")[0] == 404:
            raise UsageError(f"the server at {endpoint.url} follows no log: start it with {_START_FOLLOWER}")


class _Server:
    """Makes blocking calls to a server. Each call has a deadline for the whole answer, and a limit of its size."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.url = endpoint.url
        self._caller = HttpCaller(endpoint)
        self._loop = LoopThread("sparsecast-vllm-server")

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._caller.close())
        self._loop.close()

    def get(self, path: str, timeout: float | None = None, **query: str) -> tuple[int, bytes]:
        """Sends a GET request and returns the status and body of the answer. Raises EndpointError, a PeerFailedError,
        if there is no answer within `timeout` seconds (None: 10).
        """
        seconds = _CALL_SECONDS if timeout is None else timeout
        call = self._caller.exchange("GET", path, step="look", timeout=seconds, params=list(query.items()))
        return self._loop.run(call)

    def object(self, path: str, timeout: float | None = None, **query: str) -> dict[str, Any]:
        """Sends a GET request and returns the JSON object of the answer. Raises PeerFailedError if the status is not
        200 or the body is no JSON object.
        """
        return self._parsed(path, *self.get(path, timeout, **query))

    def config(self, start: str) -> dict[str, Any]:
        """Returns the object `vllm_config` of /server_info. Raises UsageError, which names the command `start`, if the
        server is not in development mode, and PeerFailedError if it does not answer as vLLM does.
        """
        status, body = self.get("/server_info", _INFO_SECONDS, config_format="json")
        if status == 404:
            raise UsageError(
                f"the vLLM server at {self.url} was started without VLLM_SERVER_DEV_MODE=1, which opens the routes for "
                f"weights: start it with {start}"
            )
        config = self._parsed("/server_info", status, body).get("vllm_config")
        if not isinstance(config, dict):
            raise PeerFailedError(f"/server_info of {self.url} has no vllm_config: is it a vLLM server?")
        return config

    def wait(self, wait_seconds: float, start: str) -> None:
        """Waits up to `wait_seconds` until the server reports that it is healthy. Raises DeadlineError, which names the
        command `start`, if it does not.
        """
        until = time.monotonic() + wait_seconds
        while True:
            try:
                status, _ = self.get("/health")
                if status == 200:
                    return
                last = f"/health answers {status}"
            except EndpointError as error:
                last = error.message
            if time.monotonic() >= until:
                raise DeadlineError(
                    f"no vLLM server answers at {self.url} ({last}): start it with {start}, or mend the URL"
                )
            time.sleep(_POLL_SECONDS)

    def _parsed(self, path: str, status: int, body: bytes) -> dict[str, Any]:
        try:
            value = json.loads(body) if status == 200 else None
        except ValueError:
            value = None
        if not isinstance(value, dict):
            shown = body[:200].decode("utf-8", "replace")
            raise PeerFailedError(f"{self.url}{path} answers {status} {shown!r}")
        return value

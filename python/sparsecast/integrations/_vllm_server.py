# SPDX-License-Identifier: Apache-2.0
"""What a vLLM server must be for weights or adapters to be sent to it, and a sentence with the cure where it is not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from sparsecast.control import Endpoint
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
_UNNAMED = ("default", "", "0")  # weight versions of a server that was never updated


@dataclass(frozen=True)
class VllmServer:
    """A vLLM server as it answered.

    dtype     of its weights, without "torch.".
    updated   somebody has sent it weights since it was started.
    """

    url: str
    world_size: int
    dtype: str
    updated: bool


def endpoint_of(url: str, **fields: Any) -> Endpoint:
    """Returns the endpoint of a vLLM server with this base URL. Raises UsageError for a URL with a path or no port."""
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
    """Waits until the server answers, and returns what it says of itself.

    Raises DeadlineError if it does not answer, UsageError if it was started without development mode or without our
    backend, UnsupportedError for one with LoRA adapters.
    """
    with _client(endpoint) as client:
        _wait_for(client, endpoint.url, wait_seconds, _START)
        config = _config(client, endpoint.url, _START)
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
        world_size = _json(client, "/get_world_size", endpoint.url).get("world_size")
        version = _json(client, "/weight_info", endpoint.url).get("weight_version")
    dtype = str((config.get("model_config") or {}).get("dtype", "")).removeprefix("torch.")
    if not isinstance(world_size, int) or not dtype:
        raise PeerFailedError(f"the server at {endpoint.url} does not say its world size and dtype: is it vLLM?")
    return VllmServer(endpoint.url, world_size, dtype, updated=version is not None and str(version) not in _UNNAMED)


@dataclass(frozen=True)
class LoraServer:
    """A vLLM server that takes adapters.

    lora_dtype  in which it keeps them, without "torch.".
    """

    url: str
    max_rank: int
    lora_dtype: str


def look_at_lora(endpoint: Endpoint, wait_seconds: float) -> LoraServer:
    """Waits until the server answers, and returns what it says of its adapters.

    Raises DeadlineError if it does not answer, UsageError if it was started without development mode, --enable-lora or
    leave to load adapters, UnsupportedError for data parallelism.
    """
    with _client(endpoint) as client:
        _wait_for(client, endpoint.url, wait_seconds, _START_LORA)
        config = _config(client, endpoint.url, _START_LORA)
        lora = config.get("lora_config")
        if not lora:
            raise UsageError(f"the vLLM server at {endpoint.url} takes no adapters: start it with {_START_LORA}")
        # There is no GET of this route: 405 says that it is there.
        if _get(client, "/v1/load_lora_adapter", endpoint.url).status_code == 404:
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


def _client(endpoint: Endpoint) -> httpx.Client:
    headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
    return httpx.Client(base_url=endpoint.url, headers=headers, timeout=_CALL_SECONDS, trust_env=False)


def _wait_for(client: httpx.Client, url: str, wait_seconds: float, start: str) -> None:
    until = time.monotonic() + wait_seconds
    while True:
        try:
            status = client.get("/health").status_code
            if status == 200:
                return
            last = f"/health answers {status}"
        except httpx.HTTPError as error:
            last = str(error) or type(error).__name__
        if time.monotonic() >= until:
            raise DeadlineError(f"no vLLM server answers at {url} ({last}): start it with {start}, or mend the URL")
        time.sleep(_POLL_SECONDS)


def _config(client: httpx.Client, url: str, start: str) -> dict[str, Any]:
    found = _get(client, "/server_info", url, _INFO_SECONDS, config_format="json")
    if found.status_code == 404:
        raise UsageError(
            f"the vLLM server at {url} was started without VLLM_SERVER_DEV_MODE=1, which opens the routes for weights: "
            f"start it with {start}"
        )
    config = _object(found, url).get("vllm_config")
    if not isinstance(config, dict):
        raise PeerFailedError(f"/server_info of {url} has no vllm_config: is it a vLLM server?")
    return config


def _json(client: httpx.Client, path: str, url: str) -> dict[str, Any]:
    return _object(_get(client, path, url), url)


def _get(client: httpx.Client, path: str, url: str, timeout: float | None = None, **query: str) -> httpx.Response:
    try:
        return client.get(path, params=query, timeout=httpx.USE_CLIENT_DEFAULT if timeout is None else timeout)
    except httpx.HTTPError as error:
        raise PeerFailedError(f"{url}{path}: {error or type(error).__name__}") from None


def _object(answer: httpx.Response, url: str) -> dict[str, Any]:
    try:
        value = answer.json() if answer.status_code == 200 else None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise PeerFailedError(f"{answer.request.url} answers {answer.status_code} {answer.text[:200]!r}")
    return value

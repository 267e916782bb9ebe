# SPDX-License-Identifier: Apache-2.0
"""What a vLLM server must be before weights can be sent to it, and a sentence with the cure where it is not."""

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
_START = (
    "VLLM_SERVER_DEV_MODE=1 VLLM_PLUGINS=sparsecast vllm serve MODEL --weight-transfer-config "
    '\'{"backend": "sparsecast"}\' --worker-extension-cls sparsecast.engines.vllm.WorkerExtension'
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
    headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
    with httpx.Client(base_url=endpoint.url, headers=headers, timeout=_CALL_SECONDS, trust_env=False) as client:
        _wait_for(client, endpoint.url, wait_seconds)
        config = _config(client, endpoint.url)
        backend = (config.get("weight_transfer_config") or {}).get("backend")
        if backend != "sparsecast":
            has = f"the weight-transfer backend '{backend}'" if backend else "no weight-transfer backend"
            raise UsageError(f"the vLLM server at {endpoint.url} has {has}: start it with {_START}")
        if config.get("lora_config"):
            raise UnsupportedError(
                f"the vLLM server at {endpoint.url} was started with --enable-lora: sparsecast sends adapters merged "
                "into the weights, so start it without --enable-lora"
            )
        world_size = _json(client, "/get_world_size", endpoint.url).get("world_size")
        version = _json(client, "/weight_info", endpoint.url).get("weight_version")
    dtype = str((config.get("model_config") or {}).get("dtype", "")).removeprefix("torch.")
    if not isinstance(world_size, int) or not dtype:
        raise PeerFailedError(f"the server at {endpoint.url} does not say its world size and dtype: is it vLLM?")
    return VllmServer(endpoint.url, world_size, dtype, updated=version is not None and str(version) not in _UNNAMED)


def _wait_for(client: httpx.Client, url: str, wait_seconds: float) -> None:
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
            raise DeadlineError(f"no vLLM server answers at {url} ({last}): start it with {_START}, or mend the URL")
        time.sleep(_POLL_SECONDS)


def _config(client: httpx.Client, url: str) -> dict[str, Any]:
    found = _get(client, "/server_info", url, config_format="json")
    if found.status_code == 404:
        raise UsageError(
            f"the vLLM server at {url} was started without VLLM_SERVER_DEV_MODE=1, which opens the routes for weights: "
            f"start it with {_START}"
        )
    config = _object(found, url).get("vllm_config")
    if not isinstance(config, dict):
        raise PeerFailedError(f"/server_info of {url} has no vllm_config: is it a vLLM server?")
    return config


def _json(client: httpx.Client, path: str, url: str) -> dict[str, Any]:
    return _object(_get(client, path, url), url)


def _get(client: httpx.Client, path: str, url: str, **query: str) -> httpx.Response:
    try:
        return client.get(path, params=query)
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

# SPDX-License-Identifier: Apache-2.0
"""The adapter interfaces of vLLM and SGLang, over HTTP and within their process."""

from __future__ import annotations

import asyncio
import itertools
import pathlib
import ssl
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import DirtyError, Error, UnsupportedError, UsageError

if TYPE_CHECKING:
    from ..control.endpoints import Endpoint


class AdapterEngine(Protocol):
    """An engine that loads adapters by name from directories of PEFT's form."""

    def load(self, name: str, directory: pathlib.Path, previous: pathlib.Path | None) -> None:
        """Loads the adapter under the name; ``previous`` is the directory of the version that it replaces, None for a
        new one. Raises UnsupportedError with the engine's words if it refuses, and then serves what it served before;
        DirtyError if it cannot go back to that; EndpointError where it is not known what the server has done.
        """

    def unload(self, name: str) -> None:
        """Unloads the adapter. Raises as ``load`` does."""


class VllmEngine:
    """vLLM in this process: anything with ``add_lora`` and ``remove_lora`` (``LLM(...).llm_engine``, a worker).

    Requests take ``request(name)`` as their ``lora_request``. vLLM reads the new version before it lets go of the old
    one, and keeps the adapter's number. Call where these two may be called: between ``generate`` calls.
    """

    def __init__(self, engine: Any, *, first_id: int = 1) -> None:
        self._engine = engine
        self._ids = itertools.count(first_id)
        self._requests: dict[str, Any] = {}

    def request(self, name: str) -> Any:
        """Returns the ``LoRARequest`` of the version that is loaded. Raises UsageError for a name that is not."""
        if name not in self._requests:
            raise UsageError("vLLM has no such adapter", f"adapter '{name}'")
        return self._requests[name]

    def load(self, name: str, directory: pathlib.Path, previous: pathlib.Path | None) -> None:
        from vllm.lora.request import LoRARequest

        known = self._requests.get(name)
        number = known.lora_int_id if known is not None else next(self._ids)
        try:
            self._engine.add_lora(LoRARequest(name, number, str(directory), load_inplace=True))
        except Exception as error:  # vLLM has no class of errors for it.
            raise _refused("vLLM", name, str(error)) from error
        # Requests must not load it again.
        self._requests[name] = LoRARequest(name, number, str(directory))

    def unload(self, name: str) -> None:
        self._engine.remove_lora(self.request(name).lora_int_id)
        del self._requests[name]


class VllmServer:
    """A vLLM server: ``vllm serve --enable-lora``, with ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`` in its environment.

    Requests name the adapter as their model. A version replaces the one before under the same name, also an adapter that
    somebody else has loaded under it. ``timeout`` is in seconds.
    """

    def __init__(self, endpoint: Endpoint, *, timeout: float = 120.0, tls: ssl.SSLContext | None = None) -> None:
        self._endpoint, self._timeout, self._tls = endpoint, timeout, tls

    def load(self, name: str, directory: pathlib.Path, previous: pathlib.Path | None) -> None:
        body = {"lora_name": name, "lora_path": str(directory.absolute()), "load_inplace": True}
        self._post("/v1/load_lora_adapter", name, body)

    def unload(self, name: str) -> None:
        self._post("/v1/unload_lora_adapter", name, {"lora_name": name})

    def _post(self, path: str, name: str, body: dict[str, Any]) -> None:
        _post(self._endpoint, path, name, body, self._timeout, self._tls)


class _Sglang:
    """SGLang loads an adapter beside others and has no replacement: it unloads the name, which waits for its requests
    under way, and loads it again. In between requests with the name are refused by SGLang.
    """

    def load(self, name: str, directory: pathlib.Path, previous: pathlib.Path | None) -> None:
        if previous is None:
            self._load(name, directory)
            return
        self.unload(name)
        try:
            self._load(name, directory)
        except Error as error:
            try:
                self._load(name, previous)
            except Error as second:
                words = f"SGLang has unloaded the version before, and loads neither: {error.message}; {second.message}"
                raise DirtyError(words, f"adapter '{name}'") from error
            raise

    def unload(self, name: str) -> None:
        raise NotImplementedError

    def _load(self, name: str, directory: pathlib.Path) -> None:
        raise NotImplementedError


class SglangEngine(_Sglang):
    """SGLang in this process: ``sglang.Engine(enable_lora=True, ...)``. Requests take the name as ``lora_path``."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def _load(self, name: str, directory: pathlib.Path) -> None:
        self._check(name, self._engine.load_lora_adapter(name, str(directory)))

    def unload(self, name: str) -> None:
        self._check(name, self._engine.unload_lora_adapter(name))

    def _check(self, name: str, result: Any) -> None:
        if not result.success:
            raise _refused("SGLang", name, str(result.error_message))


class SglangServer(_Sglang):
    """An SGLang server, started with ``--enable-lora --max-lora-rank R --lora-target-modules ...`` (or with a first
    adapter) and ``--dp-size 1``. Requests take the name as ``lora_path``. ``timeout`` is in seconds.
    """

    def __init__(self, endpoint: Endpoint, *, timeout: float = 120.0, tls: ssl.SSLContext | None = None) -> None:
        self._endpoint, self._timeout, self._tls = endpoint, timeout, tls

    def _load(self, name: str, directory: pathlib.Path) -> None:
        body = {"lora_name": name, "lora_path": str(directory.absolute())}
        _post(self._endpoint, "/load_lora_adapter", name, body, self._timeout, self._tls)

    def unload(self, name: str) -> None:
        body = {"lora_name": name}
        _post(self._endpoint, "/unload_lora_adapter", name, body, self._timeout, self._tls)


def _post(
    endpoint: Endpoint, path: str, name: str, body: dict[str, Any], timeout: float, tls: ssl.SSLContext | None
) -> None:
    from ..control.errors import EndpointError
    from ..control.http import HttpCaller

    async def call() -> None:
        caller = HttpCaller(endpoint, tls=tls)
        try:
            await caller.call("POST", path, step="adapter", timeout=timeout, json=body)
        finally:
            await caller.close()

    try:
        asyncio.run(call())
    except EndpointError as error:
        if error.code != "peer_failed":  # No answer, no such route, a token: not the adapter's fault.
            raise
        raise _refused(f"endpoint {endpoint.name}", name, error.message) from error


def _refused(engine: str, name: str, words: str) -> UnsupportedError:
    return UnsupportedError(f"{engine} refuses it: {words}", f"adapter '{name}'")

# SPDX-License-Identifier: Apache-2.0
"""The adapter interfaces of vLLM and SGLang, over HTTP and within their process."""

from __future__ import annotations

import asyncio
import itertools
import json
import pathlib
import re
import ssl
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import CorruptError, DirtyError, Error, UnsupportedError, UsageError

if TYPE_CHECKING:
    from ..control.endpoints import Endpoint


class AdapterEngine(Protocol):
    """An engine that loads adapters by name from directories in the form of PEFT's checkpoints."""

    def load(self, name: str, directory: pathlib.Path, previous: pathlib.Path | None) -> None:
        """Loads the adapter in ``directory`` under ``name``. ``previous`` is the directory of the version that it
        replaces; None for a new adapter.

        Raises UnsupportedError with the engine's message if the engine refuses the adapter; the engine then serves the
        previous version as before. Raises DirtyError if the engine cannot load the previous version again, and
        EndpointError if a server does not answer, so that its state is not known.
        """

    def unload(self, name: str) -> None:
        """Unloads the adapter ``name``. Raises the errors that ``load`` raises."""


class AdapterServer(AdapterEngine, Protocol):
    """A server that loads adapters, and says which it has."""

    @property
    def name(self) -> str:
        """Name of the server, for messages."""

    def served(self) -> dict[str, pathlib.Path]:
        """Returns the adapters that the server has loaded: by name, the directory from which it was loaded."""


class VllmEngine:
    """The adapter interface of vLLM in this process. ``engine`` is any object with ``add_lora`` and ``remove_lora``,
    such as ``LLM(...).llm_engine`` or a worker; adapters are numbered from ``first_id`` on.

    Requests take ``request(name)`` as their ``lora_request``. vLLM reads the new version before it drops the old one,
    and the adapter keeps its number. Call the methods only between calls of ``generate``.
    """

    def __init__(self, engine: Any, *, first_id: int = 1) -> None:
        self._engine = engine
        self._ids = itertools.count(first_id)
        self._requests: dict[str, Any] = {}

    def request(self, name: str) -> Any:
        """Returns the ``LoRARequest`` of the version that is loaded under ``name``. Raises UsageError if none is."""
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


class _Replaced:
    """Adapter interface of an engine that cannot replace an adapter under its name: the name is unloaded, and loaded
    again.
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
                words = f"the version before is unloaded, and neither is loaded: {error.message}; {second.message}"
                raise DirtyError(words, f"adapter '{name}'") from error
            raise

    def unload(self, name: str) -> None:
        raise NotImplementedError

    def _load(self, name: str, directory: pathlib.Path) -> None:
        raise NotImplementedError


class _Server(_Replaced):
    """Adapter interface of a server, over its HTTP routes. Each call ends within ``timeout`` seconds; ``tls`` has the
    settings by which an https server is verified (None: the trust store of the system).
    """

    _ROUTES = ""

    def __init__(self, endpoint: Endpoint, *, timeout: float = 120.0, tls: ssl.SSLContext | None = None) -> None:
        self.endpoint = endpoint
        self._timeout, self._tls = timeout, tls

    @property
    def name(self) -> str:
        """Name of the server, for messages."""
        return self.endpoint.name

    def served(self) -> dict[str, pathlib.Path]:
        """Returns the adapters that the server has loaded: by name, the directory from which it was loaded."""
        answer = self._call("GET", "/v1/models")
        try:
            return {str(card["id"]): pathlib.Path(card["root"]) for card in answer["data"] if card.get("parent")}
        except (AttributeError, KeyError, TypeError):
            raise CorruptError("/v1/models is no list of models", f"endpoint {self.endpoint.name}") from None

    def load(self, name: str, directory: pathlib.Path, previous: pathlib.Path | None) -> None:
        # Somebody else may have loaded one under the name, such as this program before it was started again.
        super().load(name, directory, previous or self.served().get(name))

    def unload(self, name: str) -> None:
        self._post(name, "unload", {"lora_name": name})

    def _load(self, name: str, directory: pathlib.Path) -> None:
        self._post(name, "load", {"lora_name": name, "lora_path": str(directory.absolute())})

    def _post(self, name: str, action: str, body: dict[str, Any]) -> None:
        from ..control.errors import EndpointError

        try:
            self._call("POST", f"{self._ROUTES}/{action}_lora_adapter", body)
        except EndpointError as error:
            if error.code != "peer_failed":  # No answer, no such route, a token: not the adapter's fault.
                raise
            raise _refused(f"endpoint {self.endpoint.name}", name, error.message) from error

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        from ..control.http import HttpCaller

        async def call() -> bytes:
            caller = HttpCaller(self.endpoint, tls=self._tls)
            try:
                answer = await caller.call(method, path, step="adapter", timeout=self._timeout, json=body)
                return answer.body
            finally:
                await caller.close()

        answer = asyncio.run(call())
        try:
            value = json.loads(answer)
        except ValueError:
            value = None
        return value if isinstance(value, dict) else {}  # vLLM answers some calls with a sentence.


class VllmServer(_Server):
    """The adapter interface of a vLLM server: ``vllm serve --enable-lora``, with ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``
    in its environment.

    Requests name the adapter as their model. From vLLM 0.33 on, a new version replaces the previous version in place.
    With earlier releases the name is unloaded and loaded again, and in between vLLM answers requests with this name by
    404. In-place loading is not used there, because these releases would then read the adapter from its directory at
    every step of generation, and even an old version for a request that began with it.
    """

    _ROUTES = "/v1"

    def load(self, name: str, directory: pathlib.Path, previous: pathlib.Path | None) -> None:
        if not self._replaces():
            super().load(name, directory, previous)
            return
        body = {"lora_name": name, "lora_path": str(directory.absolute()), "load_inplace": True}
        self._post(name, "load", body)

    def _replaces(self) -> bool:
        return replaces_in_place(str(self._call("GET", "/version").get("version")))


class SglangServer(_Server):
    """The adapter interface of an SGLang server, started with ``--enable-lora --max-lora-rank R --lora-target-modules
    ...`` (or with a first adapter) and ``--dp-size 1``. Requests take the adapter's name as ``lora_path``.

    SGLang cannot replace an adapter in place. Unloading waits for the requests with this name that are in progress, and
    SGLang refuses new requests until the name is loaded again.
    """


class SglangEngine(_Replaced):
    """The adapter interface of SGLang in this process: ``sglang.Engine(enable_lora=True, ...)``. Requests take the
    adapter's name as ``lora_path``.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def _load(self, name: str, directory: pathlib.Path) -> None:
        self._check(name, self._engine.load_lora_adapter(name, str(directory)))

    def unload(self, name: str) -> None:
        self._check(name, self._engine.unload_lora_adapter(name))

    def _check(self, name: str, result: Any) -> None:
        if not result.success:
            raise _refused("SGLang", name, str(result.error_message))


def replaces_in_place(version: str) -> bool:
    """Returns whether vLLM of this version replaces an adapter in place, for good."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= (0, 33)


def _refused(engine: str, name: str, words: str) -> UnsupportedError:
    return UnsupportedError(f"{engine} refuses it: {words}", f"adapter '{name}'")

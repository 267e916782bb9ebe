# SPDX-License-Identifier: Apache-2.0
"""The engines of the registered endpoints: clients, records, and one step on many engines at once."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from sparsecast.control.endpoints import Endpoint, Registry
from sparsecast.control.engine import EngineClient, PauseMode
from sparsecast.control.errors import EndpointError
from sparsecast.control.http import HttpCaller
from sparsecast.control.loop import LoopThread
from sparsecast.control.report import EndpointRecord, State
from sparsecast.control.sglang import SglangClient
from sparsecast.control.vllm import VllmClient
from sparsecast.errors import UsageError

_CLIENTS: dict[str, type[EngineClient]] = {"sglang": SglangClient, "vllm": VllmClient}


class Named(Protocol):
    """A member that a step is run on, such as an engine: an object with a name."""

    @property
    def name(self) -> str:
        """Name of this member in error messages. It is also the key of the member among the tasks and failures of a
        step, so no two members of a step have the same name.
        """


Member = TypeVar("Member", bound=Named)
Step = Callable[[Member], Awaitable[object]]


class Engine:
    """A registered endpoint, with the client of its server and its record. Only the thread of the fleet's loop uses the
    client.
    """

    def __init__(self, endpoint: Endpoint, client: EngineClient, record: EndpointRecord) -> None:
        self.endpoint = endpoint
        self.client = client
        self.record = record

    @property
    def name(self) -> str:
        return self.endpoint.name

    def adopt(self, endpoint: Endpoint, needs_anchor: bool) -> None:
        """Replaces the endpoint by `endpoint`, which is the same but for its token. If `needs_anchor`, also marks the
        engine for seeding at the next sync.
        """
        self.endpoint = self.record.endpoint = self.client.endpoint = self.client.http.endpoint = endpoint
        self.record.needs_anchor = self.record.needs_anchor or needs_anchor


class Fleet:
    """The engines of all registered endpoints, and the loop on which they are called. Membership may change from any
    thread; steps on engines run one operation at a time.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.registry = Registry()
        self.loop = LoopThread("sparsecast-control")
        self._tls = tls
        self._lock = threading.Lock()
        self._engines: dict[tuple[str, int], Engine] = {}

    def add(self, endpoint: Endpoint, *, needs_anchor: bool = False) -> bool:
        """Registers an endpoint; returns False if it is registered already (`Registry.add`). `needs_anchor`: the next
        sync seeds the engine with all weights.
        """
        with self._lock:
            created = self.registry.add(endpoint)
            if created:
                client = _CLIENTS[endpoint.kind](endpoint, HttpCaller(endpoint, tls=self._tls))
                record = EndpointRecord(endpoint, needs_anchor=needs_anchor)
                self._engines[endpoint.key] = Engine(endpoint, client, record)
            else:
                self._engines[endpoint.key].adopt(endpoint, needs_anchor)
        return created

    def remove(self, host: str, port: int) -> Engine:
        """Takes the engine out of the fleet and returns it; the caller closes its client. Raises `UnknownEndpointError`
        if there is none.
        """
        with self._lock:
            endpoint = self.registry.remove(host, port)
            return self._engines.pop(endpoint.key)

    def engines(self, names: Iterable[str] | None = None) -> list[Engine]:
        """Returns the engines with these names, or all engines if None, ordered by (host, port). Raises
        `UnknownEndpointError` for a name that is not registered.
        """
        wanted = None if names is None else {self.registry.find(name).key for name in names}
        with self._lock:
            keys = sorted(self._engines) if wanted is None else sorted(wanted)
            return [self._engines[key] for key in keys if key in self._engines]

    def close(self) -> None:
        """Closes the connections to all engines and ends the loop's thread."""

        async def close_all(clients: list[EngineClient]) -> None:
            await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)

        with self._lock:
            clients = [engine.client for engine in self._engines.values()]
        self.loop.run(asyncio.wait_for(close_all(clients), 5.0))
        self.loop.close()


def refuse_mode(engines: Iterable[Engine], mode: PauseMode) -> None:
    """Raises `UsageError`, naming the engines, if some of `engines` do not support the pause mode."""
    unable = [engine for engine in engines if mode is not PauseMode.NONE and mode not in engine.client.pause_modes]
    if unable:
        names = ", ".join(f"{engine.name} ({engine.endpoint.kind})" for engine in unable)
        modes = ", ".join(sorted(mode.value for mode in unable[0].client.pause_modes))
        raise UsageError(f"{names} cannot pause with '{mode.value}', only with {modes}")


def mark_failed(engine: Engine, error: EndpointError) -> None:
    """Records `error` in the engine's record. The engine's state becomes unhealthy or fenced, unless the error only
    echoes the failure of another engine.
    """
    engine.record.error = str(error)
    engine.record.failures += 1
    if not error.echo:
        engine.record.state = State.FENCED if error.code == "fenced" else State.UNHEALTHY


async def attempt(engine: Member, step: str, action: Step[Member]) -> EndpointError | None:
    """Runs `action`, the step named `step`, on one engine. Returns None if it succeeded, else its exception as an
    `EndpointError`.
    """
    try:
        await action(engine)
    except EndpointError as error:
        return error
    except Exception as error:  # an engine's strange answer must not keep the others from being resumed
        return EndpointError(engine.name, step, f"{type(error).__name__}: {error}")
    return None


async def on_each(engines: Iterable[Engine], step: str, action: Step[Engine]) -> dict[str, EndpointError]:
    """Runs `action`, the step named `step`, on all engines at once, and waits for all. Returns the errors of the
    engines that failed, by the engine's name.
    """
    engines = list(engines)
    errors = await asyncio.gather(*(attempt(engine, step, action) for engine in engines))
    return {engine.name: error for engine, error in zip(engines, errors, strict=True) if error is not None}

# SPDX-License-Identifier: Apache-2.0
"""The control plane of weight syncs: the endpoints, and operations on all of them together."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from sparsecast.alarms import SyncAlarms
from sparsecast.control.endpoints import Endpoint
from sparsecast.control.engine import MEMORY_TAGS, WEIGHTS, PauseMode
from sparsecast.control.errors import BusyError, EndpointError
from sparsecast.control.fleet import Engine, Fleet, Step, attempt, mark_failed, on_each, refuse_mode
from sparsecast.control.group import Group
from sparsecast.control.policy import SyncPolicy
from sparsecast.control.report import State, SyncError, SyncReport
from sparsecast.control.sync_round import SyncRound
from sparsecast.control.world import SyncSource
from sparsecast.errors import UsageError

Observer = Callable[[SyncReport], None]


class ControlPlane:
    """Leads a trainer and its inference servers through syncs.

    source    the trainer's side (`SyncSource`); used from the threads that call `sync_now`.
    host      where engines reach the trainer's rank 0: an address of this machine, not 0.0.0.0.
    port      port on which rank 0 listens while ranks meet.
    channels  transport that carries weights: "nccl", "mpi" or "control" (the rendezvous' own TCP connections).
    policy    how syncs treat requests and caches, with all deadlines (`SyncPolicy`).
    tls       how https engines are verified; None: by the system's trust store.

    All methods may be called from any thread, and block until done or until their deadlines. Operations on engines
    (sync, pause, resume, sleep, wake) exclude each other: a second one raises `BusyError` at once. Their argument `by`
    names the caller in the message of that error. Endpoints may be added and removed at any time; a sync in progress
    keeps the members that it began with.
    """

    def __init__(
        self,
        source: SyncSource,
        *,
        host: str,
        port: int,
        channels: str = "control",
        policy: SyncPolicy | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.policy = policy if policy is not None else SyncPolicy()
        self._source = source
        self._fleet = Fleet(tls)
        self._group = Group(self._fleet.registry, host, port, channels)
        self._observers: list[Observer] = []
        self._gate = threading.Lock()
        self._holder = ""
        self._held_since = 0.0
        self._last: SyncReport | None = None
        self._alarms = SyncAlarms()

    def __enter__(self) -> ControlPlane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections. Engines keep running with the weights that they have."""
        self._fleet.close()

    def observe(self, observer: Observer) -> None:
        """Registers a function that is called with the report of every sync, including failed ones. The function must
        not raise.
        """
        self._observers.append(observer)

    # endpoints

    def add(self, endpoint: Endpoint, *, needs_anchor: bool = False) -> bool:
        """Registers an endpoint for later syncs. Returns False if it is registered already: then its token is replaced.

        needs_anchor   the server holds other weights than version 0 of the trainer (no checkpoint, or another one): the
                       first sync seeds it with all weights. An engine that is at another version than the trainer is
                       seeded in any case.
        """
        return self._fleet.add(endpoint, needs_anchor=needs_anchor)

    def remove(self, host: str, port: int) -> Endpoint:
        """Removes the endpoint and returns it. Its server is told to leave the group, unless an operation is in
        progress; a failure of this call is ignored. Raises `UnknownEndpointError` if the endpoint is not registered.
        """
        engine = self._fleet.remove(host, port)

        async def leave(leaver: Engine) -> None:
            await leaver.client.leave(self.policy.health_timeout)

        async def part() -> None:
            if self._gate.acquire(blocking=False):
                try:
                    await attempt(engine, "leave", leave)
                finally:
                    self._gate.release()
            await engine.client.close()

        self._fleet.loop.run(part())
        return engine.endpoint

    def endpoints(self) -> list[dict[str, Any]]:
        """Returns the records of all endpoints as JSON values. No server is called."""
        return [engine.record.to_dict() for engine in self._fleet.engines()]

    # sync

    def sync_now(self, policy: SyncPolicy | None = None, *, by: str = "the trainer") -> SyncReport:
        """Brings every endpoint to the current weights of the trainer, and returns the report when all have verified
        them. `policy` replaces the policy of the plane for this sync.

        The steps are in `sync_round.py`. Raises `SyncError` if any endpoint or the trainer failed: it names every
        endpoint that failed and the versions of all endpoints, and holds the report. Raises `BusyError` if another
        operation is in progress.
        """
        with self._exclusive("sync", by):
            round_ = SyncRound(self._source, self._fleet, self._group, policy if policy is not None else self.policy)
            try:
                report = round_.run()
            except SyncError as error:
                if error.report is not None:
                    self._publish(error.report)
                raise
            self._publish(report)
            return report

    def _publish(self, report: SyncReport) -> None:
        figures = report.source
        if not report.regrouped and "density" in figures:  # A regroup may seed engines, which takes its own time.
            sent, seconds = int(figures.get("sent_bytes", 0)), float(figures.get("wire_seconds", 0.0))
            report.warnings = self._alarms.warn(report.version, sent, seconds, float(figures["density"]))
        self._last = report
        for observer in self._observers:
            observer(report)

    def meet_at(self, host: str, port: int) -> None:
        """Sets the host and port where ranks meet from the next regroup on. If they differ from the present ones, the
        next sync regroups.
        """
        self._group.meet_at(host, port)

    # generation and memory

    def pause(
        self, mode: PauseMode | str = PauseMode.ABORT, names: Iterable[str] | None = None, *, by: str = "the trainer"
    ) -> None:
        """Stops generation on the endpoints in `names` (None: all) until `resume`; a sync does not resume them. `mode`
        says what happens to requests in flight. Raises `SyncError` if an endpoint failed.
        """
        chosen = _pause_mode(mode)
        names = None if names is None else list(names)
        refuse_mode(self._fleet.engines(names), chosen)

        async def stop(engine: Engine) -> None:
            engine.record.paused = engine.record.held = True
            await engine.client.pause(chosen, self.policy.call_timeout)

        self._on_all("pause", names, stop, by)

    def resume(self, names: Iterable[str] | None = None, *, by: str = "the trainer") -> None:
        """Resumes generation on the endpoints in `names` (None: all), whatever paused them.

        Raises `SyncError` if an endpoint failed. This includes endpoints whose memory is released, and endpoints whose
        weights are not usable before the next sync.
        """

        async def go_on(engine: Engine) -> None:
            record = engine.record
            if record.asleep:
                raise _error(engine, "resume", f"its memory is released ({', '.join(record.asleep)}): wake it first")
            record.held = False
            if record.needs_anchor and record.paused:
                raise _error(engine, "resume", "its weights are of no use yet: the next sync seeds and resumes it")
            await engine.client.resume(self.policy.call_timeout)
            record.paused = False

        self._on_all("resume", names, go_on, by)

    def sleep(
        self, tags: Iterable[str] = MEMORY_TAGS, names: Iterable[str] | None = None, *, by: str = "the trainer"
    ) -> None:
        """Aborts the requests of the endpoints in `names` (None: all), and releases their device memory. Raises
        `SyncError` if an endpoint failed.

        tags   "weights", "kv_cache" or both. vLLM always releases its KV cache together with the weights. An endpoint
               without weights cannot be synced while asleep; the first sync after `wake` seeds it with all weights.
        """
        wanted = _memory_tags(tags)

        async def fall_asleep(engine: Engine) -> None:
            record = engine.record
            released = set(record.asleep) | set(wanted)
            if engine.endpoint.kind == "vllm" and WEIGHTS in wanted:
                released = set(MEMORY_TAGS)
            record.paused = True
            record.needs_anchor = record.needs_anchor or WEIGHTS in released
            await engine.client.sleep(wanted, self.policy.call_timeout)
            record.asleep = tuple(tag for tag in MEMORY_TAGS if tag in released)
            record.state = State.ASLEEP

        self._on_all("sleep", names, fall_asleep, by)

    def wake(
        self, tags: Iterable[str] = MEMORY_TAGS, names: Iterable[str] | None = None, *, by: str = "the trainer"
    ) -> None:
        """Allocates released memory again on the endpoints in `names` (None: all); `tags` names the memory: "weights",
        "kv_cache" or both. Raises `SyncError` if an endpoint failed.

        Weights come back with undefined content: an endpoint whose weights were released stays paused until the next
        sync has seeded it. Waking "weights", syncing, and then waking "kv_cache" keeps the memory of the cache free for
        the sync.
        """
        wanted = _memory_tags(tags)

        async def get_up(engine: Engine) -> None:
            record = engine.record
            waking = tuple(tag for tag in wanted if tag in record.asleep)
            if not waking:
                return
            await engine.client.wake(waking, self.policy.call_timeout)
            record.asleep = tuple(tag for tag in record.asleep if tag not in waking)
            if record.asleep:
                return
            record.state = State.JOINING if record.needs_anchor else State.READY
            if record.needs_anchor or record.held:
                await engine.client.pause(PauseMode.ABORT, self.policy.call_timeout)  # vLLM resumes when fully awake
            else:
                await engine.client.resume(self.policy.call_timeout)
                record.paused = False

        self._on_all("wake", names, get_up, by)

    # status

    def status(self, *, probe: bool = False) -> dict[str, Any]:
        """Returns the version of the trainer, the group, every endpoint and the last sync, as JSON values.

        probe   whether to call every server, within the health deadline. The server's entry then has "answers" and, if
                that is true, "serves" (the version that it reports), else "problem".
        """
        engines = self._fleet.engines()
        entries = {engine.name: engine.record.to_dict() for engine in engines}
        if probe:
            self._fleet.loop.run(self._probe(engines, entries))
        version = self._source.version
        for entry in entries.values():
            entry["lag"] = None if entry["version"] is None else max(0, version - entry["version"])
        return {
            "version": version,
            "generation": self._fleet.registry.generation,
            "group": "stands"
            if not self._group.broken_by
            else f"is made anew by the next sync: {self._group.broken_by}",
            "busy": self._whose(),
            "endpoints": list(entries.values()),
            "last_sync": self._last.to_dict() if self._last is not None else None,
        }

    async def _probe(self, engines: list[Engine], entries: dict[str, dict[str, Any]]) -> None:
        async def ask(engine: Engine) -> None:
            answer = await engine.client.health(self.policy.health_timeout)
            entries[engine.name].update(answers=True, serves=answer.version)

        for name, error in (await on_each(engines, "health", ask)).items():
            entries[name].update(answers=False, problem=error.message)

    # one operation at a time

    @contextmanager
    def _exclusive(self, what: str, by: str) -> Iterator[None]:
        if not self._gate.acquire(blocking=False):
            raise BusyError(self._whose() or "an endpoint is leaving")
        self._holder, self._held_since = f"{what} for {by}", time.monotonic()
        try:
            yield
        finally:
            self._holder = ""
            self._gate.release()

    def _whose(self) -> str:
        holder = self._holder
        return f"{holder}, since {time.monotonic() - self._held_since:.1f} s" if holder else ""

    def _on_all(self, what: str, names: Iterable[str] | None, action: Step[Engine], by: str) -> None:
        with self._exclusive(what, by):
            engines = self._fleet.engines(names)
            errors = self._fleet.loop.run(on_each(engines, what, action))
        for engine in engines:
            if engine.name in errors:
                mark_failed(engine, errors[engine.name])
        if errors:
            done = [engine.name for engine in engines if engine.name not in errors]
            sentences = "; ".join(str(error) for error in errors.values())
            raise SyncError(f"{what} failed: {sentences}. Done: {', '.join(done) or 'nowhere'}", list(errors.values()))


def _error(engine: Engine, step: str, message: str) -> EndpointError:
    return EndpointError(engine.name, step, message, code="usage", echo=True)


def _pause_mode(mode: PauseMode | str) -> PauseMode:
    try:
        chosen = PauseMode(mode)
    except ValueError:
        chosen = PauseMode.NONE
    if chosen is PauseMode.NONE:
        raise UsageError(f"mode is {mode!r}, not one of abort, wait, keep, retract")
    return chosen


def _memory_tags(tags: Iterable[str]) -> tuple[str, ...]:
    wanted = (tags,) if isinstance(tags, str) else tuple(tags)
    unknown = [tag for tag in wanted if tag not in MEMORY_TAGS]
    if unknown or not wanted:
        raise UsageError(f"tags are {list(wanted)!r}; there are: {', '.join(MEMORY_TAGS)}")
    return tuple(tag for tag in MEMORY_TAGS if tag in wanted)

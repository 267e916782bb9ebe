# SPDX-License-Identifier: Apache-2.0
"""A server that follows a delta log in place: what the process of its HTTP server does.

The workers fetch and stage (`WorkerFollower`), and say in the state directory when something has changed. This task
looks there, asks them then what they have, pauses generation when a version is staged, has it written, names it, and
resumes. Nothing connects to the server for that. If weights are of no whole version, the server stays paused until a
later version has repaired them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sparsecast.engines.follow_settings import FollowSettings, FollowStep, When
from sparsecast.errors import UsageError

_SOON_SECONDS = 0.05
_NEWS_SECONDS = 0.25  # Between two looks into the state directory.
_LONGEST_SECONDS = 30.0  # Between two questions to the workers, each of which takes the engine a moment.
_STATUS_SECONDS = 2.0
_log = logging.getLogger("sparsecast")


class LedEngine(Protocol):
    """The calls by which the process of the HTTP server leads the engine of a server that follows a log."""

    async def ask(
        self, step: FollowStep, replicas: Sequence[int] = (), goal: int | None = None
    ) -> list[dict[str, Any]]:
        """Has every worker do one step, and returns `WorkerFollower.status` of each worker. "follow" begins to follow
        the log, and "status" does nothing more; with both, nothing newer than version `goal` is fetched from now on
        (None: all). "apply" writes, and "drop" drops, the staged version on the workers of `replicas`, all of which have
        staged it.
        """

    async def is_paused(self) -> bool:
        """Returns whether generation is paused, no matter who has paused it."""

    async def pause(self, mode: str) -> None:
        """Pauses generation. `mode` says what becomes of requests in flight (keep, retract, wait or abort), as in
        `FollowSettings`.
        """

    async def resume(self) -> None:
        """Ends the pause of generation."""

    async def reset_cache(self, mode: str) -> bool:
        """Drops the cached results of the previous weights, such as the prefix cache; generation is paused with `mode`.
        Returns whether the whole cache was dropped.
        """

    async def name(self, version: str) -> None:
        """Sets the version that the server names as the version of its weights."""


class LogFollowing:
    """Leads the server of `engine` through the versions of a delta log: has each version written in a pause, and named.
    `settings` say which log, and when versions are taken. `log` is a logger that the server shows to its operator. For
    one event loop.
    """

    def __init__(self, engine: LedEngine, settings: FollowSettings, log: logging.Logger = _log) -> None:
        self._engine = engine
        self._settings = settings
        self._log = log
        self._workers: list[dict[str, Any]] = []
        self._paused_at: float | None = None  # When this task paused the engine; None: it has not.
        self._pause_seconds = 0.0
        self._served: int | None = None
        self._at = When.parse(settings.at)
        self._wanted = 0
        self._to_stage: int | None = None  # The highest version that calls of `stage` have asked for.
        self._cache_reset: bool | None = None
        self._error = ""
        self._news: list[str] = []
        self._asked = asyncio.Event()  # Somebody waits for what the workers say.
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None  # Kept, because the event loop keeps no task alive.

    async def run(self) -> None:
        """Follows the log until it is cancelled. No failure ends it: the server goes on with the weights that it has,
        and `status` has the error.
        """
        while True:
            took = False
            looked = False
            self._asked.clear()
            try:
                self._news = await self._read_news()
                took = await self._look()
                looked = True
                self._say("")
            except Exception as error:  # Of the engine, or of the connection to its workers.
                self._say(f"{type(error).__name__}: {error}")
            async with self._changed:
                self._changed.notify_all()
            await self._rest(_SOON_SECONDS if took else _NEWS_SECONDS, until_news=looked and self._is_settled())

    @property
    def location(self) -> str:
        """Location of the log."""
        return self._settings.location

    def begin(self) -> None:
        """Begins to follow the log (`run`), in a task of its own on the running event loop."""
        self._task = asyncio.create_task(self.run())

    async def start(self) -> None:
        """Begins to follow the log, and returns when the workers have answered for the first time.
        Raises UsageError with the reason, and follows nothing, if they cannot follow the log.
        """
        self.begin()
        try:
            await self._next_look()
            self._refuse_if_broken()
            if not self._workers:
                raise UsageError(self._error)
        except BaseException:
            assert self._task is not None
            self._task.cancel()
            raise

    async def ask(self) -> dict[str, Any]:
        """Asks the workers, and returns `status` with their answers; if they take longer than 2 s, with their previous
        answers.
        """
        self._asked.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._next_look(), _STATUS_SECONDS)
        return self.status()

    async def why_not_ready(self, max_lag: int | None) -> str:
        """Returns why no requests should come now; empty if they may. With `max_lag` the server must know that its
        version is at most so many versions behind the log.
        """
        status = await self.ask()
        if any(worker["state"] == "asleep" for worker in self._workers):
            return "the memory of the weights is released"
        if self._served is None or self._paused_at is not None or not self._is_whole():
            return str(status["error"]) or "no version is served yet"
        if max_lag is None:
            return ""
        heads = self._leaders()
        broken = self._broken()
        if broken or any(worker["lag"] is None for worker in heads):
            return broken[0] if broken else "the newest version is not known yet"
        lag = max(int(worker["lag"]) for worker in heads)
        return f"version {self._served} is {lag} versions behind" if lag > max_lag else ""

    async def _next_look(self) -> None:
        async with self._changed:
            await self._changed.wait()

    async def _rest(self, seconds: float, *, until_news: bool) -> None:
        """Waits up to `seconds`, and returns earlier when somebody calls `ask` or `reach`. With `until_news`, goes on
        waiting until the workers have written news, but not much longer than 30 s.
        """
        end = time.monotonic() + _LONGEST_SECONDS
        while not self._asked.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._asked.wait(), min(self._settings.interval, seconds))
            if not until_news or time.monotonic() > end or await self._read_news() != self._news:
                return

    async def _read_news(self) -> list[str]:
        return await asyncio.to_thread(self._settings.news)

    def _is_settled(self) -> bool:
        """Returns whether the workers will announce the next step by news, so that they need not be asked before. False
        for weights that are not whole, for replicas on other hosts, and while a version is due that only some workers
        have staged.
        """
        if not self._is_whole() or len(self._news) < len({worker["replica"] for worker in self._workers}):
            return False
        states = {worker["state"] for worker in self._workers}
        if "staged" not in states or "broken" in states:  # Its other ranks stage no more.
            return True
        return not any(self._is_due(leader) or self._is_too_new(leader) for leader in self._leaders())

    def status(self) -> dict[str, Any]:
        """Returns the state of the following as JSON values. `served` is the version that the server names, `staged`
        the version that all its workers have staged and not yet written (of several replicas the lowest one), and
        `newest` the newest version of the log that was seen; each is None if there is none. `wanted` is the highest
        version that calls of `reach` have asked for. `paused` says whether this task has paused generation, and
        `pause_seconds` is the duration of its last pause. `workers` are the workers' last answers.
        """
        replicas, staged = self._leaders(), self._staged()
        newest = [int(leader["head"]) for leader in replicas if leader.get("head") is not None]
        versions = [leader.get("staged") for leader in replicas if leader["replica"] in staged]
        together = [version for version in versions if version is not None]
        return {
            "location": self._settings.location,
            "at": str(self._at),
            "pause": self._settings.pause,
            "served": self._served,
            "staged": min(together) if together and len(together) == len(replicas) else None,
            "newest": max(newest, default=None),
            "wanted": self._wanted,
            "paused": self._paused_at is not None,
            "pause_seconds": self._pause_seconds,
            "prefix_cache_reset": self._cache_reset,
            "error": self._error,
            "workers": self._workers,
        }

    async def reach(self, version: int, timeout: float) -> int:
        """Waits until the server serves `version` or a newer one, and returns the version that it serves. A server that
        takes versions only when it is told, or when it would be too far behind, is told by this call. Raises
        asyncio.TimeoutError after `timeout` seconds, and UsageError with the reason if a worker follows no more, or if
        the server is pinned at an older version.
        """
        if self._at.kind == "pinned" and self._at.number < version:
            raise UsageError(f"the server is pinned at version {self._at.number}: POST /sparsecast/at unpins it")
        self._wanted = max(self._wanted, version)
        self._asked.set()
        return await asyncio.wait_for(self._reached(version), timeout)

    async def stage(self, version: int, timeout: float) -> int:
        """Waits until the server has staged `version`, which it takes only when it is told (`reach`), and returns
        `version`; if the server serves it already, or a newer one, returns the version that it serves. Versions below it
        that are staged on the way are taken. Raises asyncio.TimeoutError after `timeout` seconds, and UsageError if a
        worker follows no more, or if the server takes versions before it is told.
        """
        if self._at.kind != "told":
            raise UsageError(f"the server takes versions by itself ({self._at}): let SPARSECAST_FOLLOW_AT be told")
        self._to_stage = max(self._to_stage or 0, version)
        self._asked.set()
        return await asyncio.wait_for(self._has_staged(version), timeout)

    async def _has_staged(self, version: int) -> int:
        async with self._changed:
            while True:
                if self._served is not None and self._served >= version:
                    return self._served
                staged = self._staged()
                versions = [
                    leader.get("staged") if leader["replica"] in staged else leader["version"]
                    for leader in self._leaders()
                ]
                if versions and all(reached == version for reached in versions):
                    return version
                self._refuse_if_broken()
                await self._changed.wait()

    def take_at(self, at: When) -> None:
        """Changes when versions are taken from now on. A version that is staged already is taken by the new rule, or
        dropped if it is newer than the one at which the server is pinned.
        """
        self._at = at
        self._asked.set()

    async def _reached(self, version: int) -> int:
        async with self._changed:
            while self._served is None or self._served < version:
                self._refuse_if_broken()
                await self._changed.wait()
            return self._served

    async def _look(self) -> bool:
        """Asks the workers for their status, and has the staged version written if it is due. Returns whether a version
        was written.
        """
        step: FollowStep = "status" if self._workers else "follow"
        self._workers = await self._engine.ask(step, goal=self._goal())
        complete = self._staged()
        leaders = [leader for leader in self._leaders() if leader["replica"] in complete]
        too_new = [int(leader["replica"]) for leader in leaders if self._is_too_new(leader)]
        due = [int(leader["replica"]) for leader in leaders if self._is_due(leader)]
        if too_new:
            self._workers = await self._engine.ask("drop", too_new)
        if due:
            await self._take(due)
        await self._name()
        if not self._is_whole():
            await self._pause()
        elif self._paused_at is not None:
            await self._engine.resume()
            self._pause_seconds = time.monotonic() - self._paused_at
            self._paused_at = None
        return bool(due)

    def _staged(self) -> list[int]:
        """Returns the numbers of the replicas in which every worker has staged a version."""
        waiting = {worker["replica"] for worker in self._workers if worker["state"] != "staged"}
        return sorted({worker["replica"] for worker in self._workers} - waiting)

    def _broken(self) -> list[str]:
        """Returns the reasons of the workers that follow no more."""
        return [str(worker["error"]) for worker in self._workers if worker["state"] == "broken"]

    def _refuse_if_broken(self) -> None:
        if broken := self._broken():
            raise UsageError(f"the server follows no more, and stays at version {self._served}: {broken[0]}")

    def _is_whole(self) -> bool:
        return all(worker["is_whole"] for worker in self._workers)

    def _leaders(self) -> list[dict[str, Any]]:
        """Returns the answers of rank 0 of each replica, which alone knows versions."""
        return [worker for worker in self._workers if worker["rank"] == 0]

    def _goal(self) -> int | None:
        """Returns the version beyond which nothing is fetched; None: the newest."""
        if self._at.kind == "pinned":
            return self._at.number
        if self._at.kind != "told" or self._to_stage is None or max(self._served or 0, self._wanted) > self._to_stage:
            return None
        return self._to_stage if (self._served or 0) < self._to_stage else None

    def _is_too_new(self, leader: dict[str, Any]) -> bool:
        """Returns whether a replica has staged a version that is newer than the server may serve."""
        goal = self._goal()
        staged = leader.get("staged")
        return goal is not None and staged is not None and staged > goal

    def _is_due(self, leader: dict[str, Any]) -> bool:
        """Returns whether the version that a replica stages is to be written as soon as all its workers have it."""
        if self._is_too_new(leader):
            return False
        if self._at.kind in ("once", "pinned") or not self._is_whole():
            return True
        version = leader["version"]
        if (version or 0) < self._wanted:
            return True
        if self._at.kind == "told":
            goal, staged = self._goal(), leader.get("staged")
            return goal is not None and staged is not None and staged < goal  # On the way to what is to be staged.
        return version is None or (leader.get("head") or 0) - version > self._at.number

    async def _take(self, replicas: list[int]) -> None:
        await self._pause()
        self._workers = await self._engine.ask("apply", replicas)
        self._cache_reset = await self._engine.reset_cache(self._settings.pause)

    async def _pause(self) -> None:
        """Pauses generation, unless it is paused. A pause that somebody else has begun is not ended by this task later.
        If somebody else has ended this task's pause, it begins again.
        """
        if not await self._engine.is_paused():
            begin = time.monotonic()
            await self._engine.pause(self._settings.pause)
            self._paused_at = self._paused_at or begin

    async def _name(self) -> None:
        """Makes the server name the version that the replicas hold, if all of them hold the same one. Rank 0 of each
        replica knows its version.
        """
        versions = {worker["version"] for worker in self._workers if worker["is_whole"] and worker["rank"] == 0}
        version = versions.pop() if len(versions) == 1 else None
        if version is not None and version != self._served:
            await self._engine.name(str(version))
            self._served = version
            self._log.info("sparsecast: the server is at version %d of %s", version, self._settings.location)

    def _say(self, error: str) -> None:
        worker = next((str(worker["error"]) for worker in self._workers if worker["error"]), "")
        told = error or worker
        if told and told != self._error:
            self._log.warning("sparsecast: following %s: %s", self._settings.location, told)
        self._error = told


async def follow_when_told(
    state: Any, settings: FollowSettings, engine: Callable[[FollowSettings], LedEngine], log: logging.Logger = _log
) -> None:
    """Makes a server that serves already follow the log of `settings`, and returns when its workers have begun. `state`
    is the state of the server's application, where its `LogFollowing` is kept, and `engine` returns its engine. Does
    nothing if the server follows this log already. Raises UsageError with the reason if it cannot, or follows another.
    """
    known: LogFollowing | None = getattr(state, "sparsecast_following", None)
    if known is None:
        following = LogFollowing(engine(settings), settings, log)
        await following.start()
        state.sparsecast_following = following
    elif known.location != settings.location:
        raise UsageError(f"the server follows {known.location} until it ends")

# SPDX-License-Identifier: Apache-2.0
"""A server that follows a delta log in place: what the process of its HTTP server does, and its routes.

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
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Body, HTTPException, Query, Request, Response

from sparsecast.engines.follow_metrics import metrics_text
from sparsecast.engines.follow_settings import FollowSettings
from sparsecast.errors import UsageError

FOLLOW_ROUTE = "/sparsecast/follow"
VERSION_ROUTE = "/sparsecast/version"
READY_ROUTE = "/sparsecast/ready"
METRICS_ROUTE = "/sparsecast/metrics"
MAX_WAIT_SECONDS = 3600.0

_SOON_SECONDS = 0.05
_NEWS_SECONDS = 0.25  # Between two looks into the state directory.
_LONGEST_SECONDS = 30.0  # Between two questions to the workers, each of which takes the engine a moment.
_STATUS_SECONDS = 2.0
_log = logging.getLogger("sparsecast")


class LedEngine(Protocol):
    """The calls by which the process of the HTTP server leads the engine of a server that follows a log."""

    async def ask(
        self, step: Literal["follow", "status", "apply"], replicas: Sequence[int] = ()
    ) -> list[dict[str, Any]]:
        """Has every worker do one step, and returns `WorkerFollower.status` of each worker. "follow" begins to follow
        the log, "status" does nothing more, and "apply" writes the staged version on the workers of `replicas`, all of
        which have staged it.
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
        self._wanted = 0
        self._cache_reset: bool | None = None
        self._error = ""
        self._news: list[str] = []
        self._asked = asyncio.Event()  # Somebody waits for what the workers say.
        self._changed = asyncio.Condition()

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
        if self._served is None or self._paused_at is not None or not self._is_whole():
            return str(status["error"]) or "no version is served yet"
        if max_lag is None:
            return ""
        heads = [worker for worker in self._workers if worker["rank"] == 0]
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
        return not self._is_due() or "staged" not in states or "broken" in states  # Its other ranks stage no more.

    def status(self) -> dict[str, Any]:
        """Returns the state of the following as JSON values. `served` is the version that the server names, and
        `wanted` the highest version that calls of `reach` have asked for. `paused` says whether this task has paused
        generation, and `pause_seconds` is the duration of its last pause. `workers` are the workers' last answers.
        """
        return {
            "location": self._settings.location,
            "at": self._settings.at,
            "pause": self._settings.pause,
            "served": self._served,
            "wanted": self._wanted,
            "paused": self._paused_at is not None,
            "pause_seconds": self._pause_seconds,
            "prefix_cache_reset": self._cache_reset,
            "error": self._error,
            "workers": self._workers,
        }

    async def reach(self, version: int, timeout: float) -> int:
        """Waits until the server serves `version` or a newer one, and returns the version that it serves. A server that
        takes versions only when it is told is told by this call. Raises asyncio.TimeoutError after `timeout` seconds,
        and UsageError with the reason if a worker follows no more.
        """
        self._wanted = max(self._wanted, version)
        self._asked.set()
        return await asyncio.wait_for(self._reached(version), timeout)

    async def _reached(self, version: int) -> int:
        async with self._changed:
            while self._served is None or self._served < version:
                if broken := self._broken():
                    raise UsageError(f"the server follows no more, and stays at version {self._served}: {broken[0]}")
                await self._changed.wait()
            return self._served

    async def _look(self) -> bool:
        """Asks the workers for their status, and has the staged version written if it is due. Returns whether a version
        was written.
        """
        if not self._workers:
            self._workers = await self._engine.ask("follow")
        else:
            self._workers = await self._engine.ask("status")
        staged = self._staged() if self._is_due() else []
        if staged:
            await self._take(staged)
        await self._name()
        if not self._is_whole():
            await self._pause()
        elif self._paused_at is not None:
            await self._engine.resume()
            self._pause_seconds = time.monotonic() - self._paused_at
            self._paused_at = None
        return bool(staged)

    def _staged(self) -> list[int]:
        """Returns the numbers of the replicas in which every worker has staged a version."""
        waiting = {worker["replica"] for worker in self._workers if worker["state"] != "staged"}
        return sorted({worker["replica"] for worker in self._workers} - waiting)

    def _broken(self) -> list[str]:
        """Returns the reasons of the workers that follow no more."""
        return [str(worker["error"]) for worker in self._workers if worker["state"] == "broken"]

    def _is_whole(self) -> bool:
        return all(worker["is_whole"] for worker in self._workers)

    def _is_due(self) -> bool:
        repairs = not self._is_whole()
        return self._settings.at == "once" or repairs or (self._served or 0) < self._wanted

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


def router() -> APIRouter:
    """Returns the routes of a server that follows a log: for its status, its readiness and its metrics, and one that
    waits for a version. They expect a LogFollowing in `app.state.sparsecast_following`, and answer 404 if there is
    none.
    """
    routes = APIRouter()

    def following(request: Request) -> LogFollowing:
        found: LogFollowing | None = getattr(request.app.state, "sparsecast_following", None)
        if found is None:
            raise HTTPException(404, "this server follows no log")
        return found

    @routes.get(FOLLOW_ROUTE)
    async def look(request: Request) -> dict[str, Any]:
        return await following(request).ask()

    @routes.get(READY_ROUTE)
    async def is_ready(request: Request, max_lag: Annotated[int | None, Query(ge=0)] = None) -> dict[str, Any]:
        reason = await following(request).why_not_ready(max_lag)
        if reason:
            raise HTTPException(503, reason)
        return {"version": following(request).status()["served"]}

    @routes.get(METRICS_ROUTE)
    async def measure(request: Request) -> Response:
        return Response(metrics_text(await following(request).ask()), media_type="text/plain; version=0.0.4")

    @routes.post(VERSION_ROUTE)
    async def reach(
        request: Request,
        at_least: Annotated[int, Body(embed=True, ge=0)],
        timeout: Annotated[float, Body(embed=True, gt=0, le=MAX_WAIT_SECONDS)] = 60.0,
    ) -> dict[str, Any]:
        try:
            return {"version": await following(request).reach(at_least, timeout)}
        except asyncio.TimeoutError:
            status = following(request).status()
            words = f"version {at_least} has not come within {timeout} s: the server is at version {status['served']}"
            raise HTTPException(504, words + (f" ({status['error']})" if status["error"] else "")) from None
        except UsageError as error:
            raise HTTPException(409, str(error)) from error

    return routes

# SPDX-License-Identifier: Apache-2.0
"""Runs a collective step: the trainer blocks in its call while the engines are led through their calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from sparsecast.control.errors import EndpointError
from sparsecast.control.fleet import Member, Step, attempt
from sparsecast.control.loop import LoopThread

_GRACE_SECONDS = 2.0  # in which others may report a failure in their own words before they are cut off
_SLACK_SECONDS = 30.0  # after all deadlines of a coroutine, until it is taken for lost


_Tasks = Mapping[str, "asyncio.Future[EndpointError | None]"]


class Stopped(Exception):
    """Raised to end a step after an engine or the trainer has failed. `BothSides.failures` and
    `BothSides.trainer_failure` hold the errors.
    """


class BothSides:
    """Runs the two sides of a collective step at once, the engines' calls and the trainer's call, and ends both if
    either fails. `failures` holds the errors of engines, by the engine's name; `trainer_failure` holds the trainer's
    exception, or None.

    abort   thread-safe function that makes the trainer's call raise soon, with its argument as the reason. None: the
            call cannot be aborted, and ends at its own deadline.
    """

    def __init__(self, abort: Callable[[str], None] | None, loop: LoopThread) -> None:
        self.failures: dict[str, EndpointError] = {}
        self.trainer_failure: BaseException | None = None
        self._abort = abort
        self._loop = loop
        self._stop: asyncio.Event | None = None

    def run(self, engines_side: Coroutine[Any, Any, None], trainer_side: Callable[[], None], seconds: float) -> bool:
        """Runs `engines_side` on the loop and `trainer_side` in this thread, and returns whether both succeeded.
        `engines_side` must end within `seconds` by its own deadlines; if it is still running 30 seconds after that,
        TimeoutError is raised.
        """
        future = self._loop.submit(self._guarded(engines_side))
        try:
            trainer_side()
        except BaseException as error:
            self.trainer_failure = error
            self._loop.call(self._halt)
        engines_ended = future.result(seconds + _SLACK_SECONDS)
        return engines_ended and self.trainer_failure is None

    async def _guarded(self, engines_side: Coroutine[Any, Any, None]) -> bool:
        self._stop = asyncio.Event()
        if self.trainer_failure is not None:  # it failed before this began
            self._stop.set()
        try:
            await engines_side
        except Stopped:
            return False
        return True

    def _halt(self) -> None:
        if self._stop is not None:
            self._stop.set()

    async def phase(self, step: str, engines: Sequence[Member], action: Step[Member], until: float) -> None:
        """Runs `action`, the step named `step`, on all of `engines` at once. An engine that has not ended at the time
        `until` (of the monotonic clock, in seconds) counts as failed. Once an engine or the trainer has failed, the
        other engines get two seconds more and are then cancelled, and `Stopped` is raised.
        """
        assert self._stop is not None
        if self._stop.is_set():
            raise Stopped
        tasks = {engine.name: asyncio.ensure_future(attempt(engine, step, action)) for engine in engines}
        stop = asyncio.ensure_future(self._stop.wait())
        waiting: set[asyncio.Future[Any]] = {*tasks.values(), stop}
        failed = False
        while not failed and waiting != {stop}:
            patience = max(0.0, until - time.monotonic())
            done, waiting = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            failed = not done or stop in done or any(task.result() is not None for task in done if task is not stop)
        stop.cancel()
        waiting.discard(stop)
        self._abort_for(tasks)
        if failed and waiting:
            await asyncio.wait(waiting, timeout=_GRACE_SECONDS)
        self.failures.update(await _outcomes(step, tasks))
        if failed:
            raise Stopped

    async def last_phase(self, step: str, engines: Sequence[Member], action: Step[Member]) -> None:
        """Runs `action`, the last step, named `step`, on all of `engines` at once, and waits until every engine has
        ended: none is cancelled. Once an engine has failed, the trainer's call is aborted if possible, which makes the
        other engines end soon. Raises `Stopped` if an engine failed.
        """
        tasks = {engine.name: asyncio.ensure_future(attempt(engine, step, action)) for engine in engines}
        for task in asyncio.as_completed(tasks.values()):
            if await task is not None:
                self._abort_for(tasks)
                break
        failures = await _outcomes(step, tasks, wait=True)
        self.failures.update(failures)
        if failures:
            raise Stopped

    def _abort_for(self, tasks: _Tasks) -> None:
        """Makes the trainer's call raise soon, with the error of a failed task as the reason: of several, the first in
        the order of ``tasks``. Does nothing if no task has failed yet, or if the trainer's call cannot be aborted.
        """
        errors = [error for task in tasks.values() if task.done() and (error := task.result()) is not None]
        if errors and self._abort is not None:
            self._abort(str(errors[0]))


async def _outcomes(step: str, tasks: _Tasks, *, wait: bool = False) -> dict[str, EndpointError]:
    """Returns the errors of failed calls, by the engine's name. If `wait`, it waits for the calls that have not ended;
    otherwise it cancels them, and a cancelled call counts as failed.
    """
    errors: dict[str, EndpointError] = {}
    for name, task in tasks.items():
        if wait or task.done():
            error = await task
        else:
            task.cancel()
            error = EndpointError(name, step, "it was given up, because another failed", echo=True)
        if error is not None:
            errors[name] = error
    return errors

# SPDX-License-Identifier: Apache-2.0
"""Receiver of an engine of one rank that follows a delta log: stages in a thread of its own, applies at a boundary.

    unproven --first look--> ready --a version is staged--> staged --apply()--> applying --> ready ...
                               |                               |                   |
                               +------- a final error ---------+-----> broken      +--> dirty: no version is whole, until
    closed: close() was called                    the version before stands             the next version has been applied

The thread fetches, checks and stages while the engine generates, and then waits: the weights are written only while the
engine's own thread is in `apply`. Errors that may pass by themselves, of a store that does not answer,
say, are named in `status`, and the step is tried again after a growing interval.
"""

from __future__ import annotations

import atexit
import pathlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sparsecast.engines.receiver import on_device
from sparsecast.errors import DirtyError, Error, UsageError
from sparsecast.transports import Log

if TYPE_CHECKING:
    from sparsecast import LogFollower, Memory, TensorTable
    from sparsecast.engines.refresh.recompute import Recomputation

State = Literal["unproven", "ready", "staged", "applying", "broken", "dirty", "closed"]

# A later anchor may repair what is dirty.
_TRIED_AGAIN = frozenset({"io", "timeout", "gone", "incomplete", "dirty"})
_LONGEST_INTERVAL = 60.0
_NAME_SECONDS = 1.0  # What `apply` waits for the thread to say which version it was.
_EXIT_SECONDS = 5.0


class LogReceiver:
    """Keeps the live weights of an engine at the versions of a delta log.

    `log.state` is a directory of this receiver alone, for fetched objects and what it has seen of the log. `tensors` are
    whole canonical tensors, parallel to `table`, which may be views; the caller keeps them where they are.
    `recomputations` and `guard` mean what they mean for `Receiver`. The thread begins with `start`, and looks for news
    every `interval` seconds.
    """

    def __init__(
        self,
        log: Log,
        table: TensorTable,
        tensors: Sequence[Memory],
        *,
        interval: float = 1.0,
        recomputations: Sequence[Recomputation] = (),
        guard: Callable[[], None] | None = None,
    ) -> None:
        if not log.state:
            raise UsageError("a reader of a log needs Log(state=...): a directory of its own")
        if interval <= 0:
            raise UsageError(f"an interval of {interval} s is not positive")
        self._log = log
        self._table = table
        self._tensors = list(tensors)
        self._interval = interval
        self._recomputations = tuple(recomputations)
        self._guard = guard or (lambda: None)
        self._follower: LogFollower | None = None
        self._thread = threading.Thread(target=self._run, name="sparsecast-log", daemon=True)
        self._changed = threading.Condition()  # Guards all fields below.
        self._state: State = "unproven"
        self._version: int | None = None
        self._is_whole = True  # False also until it is known that a write which changed no digest has failed well.
        self._not_computed = ""  # Why derived tensors are not those of the weights.
        self._digest: str | None = None  # Before a write that is under way.
        self._writes = 0  # Writes of the weights that have ended.
        self._named = 0  # Number of writes after which `_version` was found.
        self._head: int | None = None
        self._head_seen: float | None = None
        self._bytes_read = 0
        self._reseeded = 0
        self._error = ""
        self._pause_seconds = 0.0

    # -- for any thread ------------------------------------------------------------------------------------------

    @property
    def version(self) -> int | None:
        """Version that the weights are known to hold; None before the log's versions have been looked at."""
        return self._version

    @property
    def state(self) -> State:
        with self._changed:
            return self._told_state()

    def status(self) -> dict[str, Any]:
        """Returns the place of the engine in the log as JSON values.

        `lag` counts versions, up to the newest that was seen `head_age` seconds ago; while a version is staged nothing
        newer is looked for. `error` is the last failure, empty after a success. `reseeded` counts the anchors taken.
        """
        with self._changed:
            lag = self._head - self._version if self._head is not None and self._version is not None else None
            return {
                "state": self._told_state(),
                "version": self._version,
                "head": self._head,
                "lag": max(lag, int(self._state == "staged")) if lag is not None else None,
                "head_age": time.monotonic() - self._head_seen if self._head_seen is not None else None,
                "is_whole": self._is_whole and not self._not_computed and self._state != "applying",
                "bytes_read": self._bytes_read,
                "reseeded": self._reseeded,
                "pause_seconds": self._pause_seconds,
                "error": self._not_computed or self._error,
            }

    # -- for the engine's thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to follow. The thread ends with `close`, or when the interpreter ends."""
        atexit.register(self.close, _EXIT_SECONDS)
        self._thread.start()

    def apply(self, timeout: float = 0.0) -> bool:
        """Runs the pause if a version is staged within `timeout` seconds: writes in place, verifies, and computes again
        what the engine derives from its weights. Nothing may read the weights meanwhile.

        Returns whether the weights were written; `status` tells which version they hold. Raises DirtyError if a derived
        tensor could not be computed, UsageError if the engine has a weight in other memory: the following stops then.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._state == "staged", timeout):
                return False
            try:
                self._guard()
            except UsageError as error:
                self._stop(str(error))
                raise
            begin = time.monotonic()
            before = self._writes
            self._state = "applying"
            self._changed.notify_all()
            # `close` in another thread takes the grant back, unless the write has begun.
            self._changed.wait_for(lambda: self._writes != before or (self._state == "closed" and self._digest is None))
            if self._writes == before:
                return False
        try:
            self._recompute()
        finally:
            with self._changed:
                self._pause_seconds = time.monotonic() - begin
                if self._state == "applying":
                    self._state = "ready"
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._named > before, _NAME_SECONDS)
        return True

    def close(self, timeout: float = 60.0) -> None:
        """Ends the following, within `timeout` seconds. The weights stay at the version that `status` names; a version
        that is staged is dropped.

        A request to a store that is under way when the time is over goes on in the background, and nothing is written
        after it.
        """
        with self._changed:
            self._state = "closed"
            self._changed.notify_all()
        atexit.unregister(self.close)
        if self._follower is not None:
            self._follower.stop()
        if self._thread.is_alive():
            self._thread.join(timeout)

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        device = next((memory.device for memory in self._tensors), "cpu")
        on_device(device, self._follow)

    def _follow(self) -> None:
        wait = self._interval
        while self._state not in ("closed", "broken"):
            try:
                self._step()
                wait = self._interval
            except Exception as error:  # Whatever it is, the server goes on with what it has, and says so.
                with self._changed:
                    is_known = self._take_version()
                    self._is_whole = not isinstance(error, DirtyError) and (is_known or self._is_whole)
                    self._error = str(error)
                    if getattr(error, "code", "") not in _TRIED_AGAIN:
                        self._stop(str(error))
                wait = min(2 * wait, max(_LONGEST_INTERVAL, self._interval))
            with self._changed:
                self._named = self._writes
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._state in ("closed", "broken"), wait)

    def _step(self) -> None:
        if self._follower is None:
            self._follower = self._open()
        report = self._follower.step()
        with self._changed:
            self._version, self._is_whole = report.version, True
            self._head, self._head_seen = report.head, time.monotonic()
            self._bytes_read += report.bytes_read
            self._reseeded += int(report.reseeded)
            self._error = ""
            if self._state == "unproven":
                self._state = "ready"

    def _open(self) -> LogFollower:
        from sparsecast import LogFollower, log_head

        head = log_head(self._log.location, list(self._log.trusted_keys), self._log.timeout)
        with self._changed:
            self._head, self._head_seen = head, time.monotonic()
        scratch = pathlib.Path(self._log.state) / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        return LogFollower(
            self._log.location,
            self._table,
            self._tensors,
            state_path=pathlib.Path(self._log.state) / "follower",
            scratch=scratch,
            trusted_keys=list(self._log.trusted_keys),
            lease=self._log.lease,
            timeout=self._log.timeout,
            pause=self._pause,
        )

    def _pause(self, paused: bool) -> bool:
        """Is called by the follower around each write of the weights. Waits for `apply` before it, and returns whether
        the write was granted.
        """
        with self._changed:
            assert self._follower is not None
            if not paused:
                self._is_whole = self._follower.digest != self._digest
                self._digest = None
                self._writes += 1
                self._changed.notify_all()
                return True
            was_known = self._version is not None
            self._is_whole = self._take_version() or (self._is_whole and not was_known)
            self._named = self._writes
            self._changed.notify_all()
            # The engine's thread may still compute what it derives from the version before.
            self._changed.wait_for(lambda: self._state != "applying")
            if self._state != "closed":
                self._state = "staged"
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._state in ("applying", "closed"))
            if self._state == "closed":
                return False
            self._digest = self._follower.digest
            return True

    # -- inside --------------------------------------------------------------------------------------------------

    def _told_state(self) -> State:
        whole = self._is_whole and not self._not_computed
        return "dirty" if not whole and self._state in ("unproven", "ready", "broken") else self._state

    def _take_version(self) -> bool:
        """Takes the version from the follower, in its thread; returns whether the follower knows it. It does not know the
        version of weights that a failed write has left half-written.
        """
        version = self._follower.version if self._follower is not None else None
        self._version = version if version is not None else self._version
        return version is not None

    def _stop(self, error: str) -> None:
        self._error = error
        if self._state != "closed":
            self._state = "broken"

    def _recompute(self) -> None:
        """Brings what the engine has computed from its weights up to date with them."""
        try:
            for recomputation in self._recomputations:
                recomputation.run()
        except Error as error:
            self._not_computed = str(error)
            raise
        self._not_computed = ""

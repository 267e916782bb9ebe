# SPDX-License-Identifier: Apache-2.0
"""Receiver of a rank of an engine that follows a delta log: stages in a thread of its own, applies at a boundary.

    unproven --first look--> ready --a version is staged--> staged --apply()--> applying --> ready ...
                               |                               |                   |
                               +------- a final error ---------+-----> broken      +--> dirty: no version is whole, until
    closed: close() was called                    the version before stands             the next version has been applied

The thread fetches, checks and stages while the engine generates, and then waits: the weights are written only while the
engine's own thread is in `apply`. Errors that may pass by themselves, of a store that does not answer,
say, are named in `status`, and the step is tried again after a growing interval.

In an engine of several ranks the thread of rank 0 follows the log, and those of the other ranks do as it does
(`EngineRank`): all of them are "staged" at the same version, and write when the engines' threads of all are in `apply`.
"""

from __future__ import annotations

import atexit
import pathlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sparsecast.engines.follow_settings import write_news
from sparsecast.engines.receiver import on_device
from sparsecast.errors import Error, PeerFailedError, StaleVersionError, UsageError
from sparsecast.transports import Log

if TYPE_CHECKING:
    from sparsecast import ControlChannel, EngineRank, FollowReport, Layout, LogFollower, Memory, TensorTable
    from sparsecast.engines.refresh.recompute import Recomputation

State = Literal["unproven", "ready", "staged", "applying", "broken", "dirty", "closed"]

# A later anchor may repair what is dirty.
_TRIED_AGAIN = frozenset({"io", "timeout", "gone", "incomplete", "dirty"})
_LONGEST_INTERVAL = 60.0
_NAME_SECONDS = 1.0  # What `apply` waits for the thread to say which version it was.
_EXIT_SECONDS = 5.0


@dataclass(frozen=True)
class Ranks:
    """The ranks of an engine that follow a log together, each of which holds a part of the tensors."""

    channel: ControlChannel
    """Channel between the ranks, which nothing else uses."""
    layout: Layout
    """Layout of the whole engine, the same on all ranks."""


class LogReceiver:
    """Keeps the live weights of one rank of an engine at the versions of a delta log.

    `log.state` is a directory of this engine alone, which all its ranks can read. It holds fetched objects and what the
    engine has seen of the log, and rank 0 writes there that its state has changed (`write_news`). Without `ranks`,
    `tensors` are whole canonical tensors, parallel to `table`, which may be strided views; with `ranks` they are the
    tensors of this rank in the layout, in its order. The caller must not move them.

    After every write, `recomputations` bring up to date the tensors that the engine computes from its weights. `guard`
    raises UsageError once a weight of the model has moved to other memory; nothing is written then. `is_whole` says
    whether the weights are those of some version before the first look at the log; if not, the server must not generate
    until `status` says that they are. `start` begins the thread that follows the log and looks for news every `interval`
    seconds.
    """

    def __init__(
        self,
        log: Log,
        table: TensorTable,
        tensors: Sequence[Memory],
        *,
        ranks: Ranks | None = None,
        interval: float = 1.0,
        recomputations: Sequence[Recomputation] = (),
        guard: Callable[[], None] | None = None,
        is_whole: bool = True,
    ) -> None:
        if not log.state:
            raise UsageError("a reader of a log needs Log(state=...): a directory of its own")
        if interval <= 0:
            raise UsageError(f"an interval of {interval} s is not positive")
        self._log = log
        self._table = table
        self._tensors = list(tensors)
        self._ranks = ranks
        self._rank = ranks.channel.rank if ranks is not None else 0
        self._interval = interval
        self._recomputations = tuple(recomputations)
        self._guard = guard or (lambda: None)
        self._engine_rank: EngineRank | None = None
        self._follower: LogFollower | None = None
        self._thread = threading.Thread(target=self._run, name="sparsecast-log", daemon=True)
        self._changed = threading.Condition()  # Guards all fields below.
        self._state: State = "unproven"
        self._version: int | None = None
        self._is_whole = is_whole or self._rank > 0  # Rank 0 finds out which version the parts of all ranks are of.
        self._not_computed = ""  # Why derived tensors are not those of the weights.
        self._is_writing = False
        self._writes = 0  # Writes of the weights that have ended.
        self._named = 0  # Number of writes after which `_version` was found.
        self._goal: int | None = None
        self._seen_goal: int | None = None  # The goal of the last look at the log.
        self._staged: int | None = None
        self._before_staged: State = "unproven"
        self._is_dropped = False
        self._watcher: threading.Thread | None = None
        self._head: int | None = None
        self._head_seen: float | None = None
        self._behind_since: float | None = None  # When a version was seen that the weights do not hold yet.
        self._bytes_read = 0
        self._reseeded = 0
        self._error = ""
        self._pause_seconds = 0.0
        self._news = ""

    # -- for any thread ------------------------------------------------------------------------------------------

    @property
    def version(self) -> int | None:
        """Version of the log that the weights hold; None until it has been found out, and on every rank but 0."""
        return self._version

    @property
    def state(self) -> State:
        with self._changed:
            return self._told_state()

    def status(self) -> dict[str, Any]:
        """Returns the place of this rank in the log as JSON values. Thread-safe.

        `lag` is the number of versions up to `head`, the newest version that was seen, `head_age` seconds ago;
        `lag_seconds` is the time for which a newer version has been known. `staged` is the version that waits to be
        written; meanwhile `head` is looked for, and nothing newer is fetched. `error` is the last failure, empty after
        a success. `reseeded` counts the anchors taken. In an engine of several ranks, rank 0 alone has version, staged,
        head, lag and bytes.
        """
        with self._changed:
            lag = self._head - self._version if self._head is not None and self._version is not None else None
            return {
                "rank": self._rank,
                "state": self._told_state(),
                "version": self._version,
                "staged": self._staged if self._state == "staged" else None,
                "head": self._head,
                "lag": max(lag, int(self._state == "staged")) if lag is not None else None,
                "lag_seconds": time.monotonic() - self._behind_since if self._behind_since is not None else 0.0,
                "head_age": time.monotonic() - self._head_seen if self._head_seen is not None else None,
                "is_whole": self._is_whole and not self._not_computed and self._state != "applying",
                "bytes_read": self._bytes_read,
                "reseeded": self._reseeded,
                "pause_seconds": self._pause_seconds,
                "error": self._not_computed or self._error,
            }

    @property
    def is_running(self) -> bool:
        """Whether the thread that follows the log runs. It may read the weights."""
        return self._thread.is_alive()

    # -- for the engine's thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread that follows the log. It ends with `close`, or when the interpreter ends."""
        atexit.register(self.close, _EXIT_SECONDS)
        self._thread.start()

    def apply(self, timeout: float = 0.0) -> bool:
        """Runs the pause, if a version is staged now or within `timeout` seconds: writes the version in place, verifies
        it, and computes again what the engine derives from its weights. Nothing may read the weights meanwhile.

        Returns whether the weights were written; `status` tells which version they hold. Raises DirtyError if a derived
        tensor could not be computed. Raises UsageError if a weight of the model has moved to other memory; the receiver
        is then "broken", and follows no more.
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
            self._changed.wait_for(lambda: self._writes != before or (self._state == "closed" and not self._is_writing))
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

    def aim(self, goal: int | None) -> None:
        """Sets the version beyond which nothing is fetched from now on; None: the newest. A version that is staged stays
        so. Weights of a newer version are left as they are.
        """
        with self._changed:
            self._goal = goal
            self._changed.notify_all()

    def drop(self) -> None:
        """Drops the staged version, if there is one. What is next staged is up to the goal (`aim`). All ranks of an
        engine must drop a version that all of them have staged.
        """
        with self._changed:
            if self._state == "staged":
                self._is_dropped = True
                self._state = self._before_staged
                self._changed.notify_all()

    def close(self, timeout: float = 60.0) -> None:
        """Stops following the log, and waits up to `timeout` seconds for the thread to end. The weights stay at the
        version that `status` names; a staged version is dropped.

        A request to a store that is still running after that time goes on in the background, but nothing is written
        into the weights any more.
        """
        with self._changed:
            self._state = "closed"
            self._changed.notify_all()
        atexit.unregister(self.close)
        if self._follower is not None:
            self._follower.stop()
        if self._ranks is not None and not self._is_writing:
            self._ranks.channel.abort(f"rank {self._rank} of the engine follows the log no more")
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
                    self._look_at_weights()
                    self._error = str(error)
                    if getattr(error, "code", "") not in _TRIED_AGAIN:
                        self._stop(str(error))
                wait = min(2 * wait, max(_LONGEST_INTERVAL, self._interval))
            with self._changed:
                self._named = self._writes
                self._changed.notify_all()
            self._tell()
            with self._changed:
                self._changed.wait_for(
                    lambda: self._state in ("closed", "broken") or self._goal != self._seen_goal, wait
                )

    def _step(self) -> None:
        with self._changed:
            self._seen_goal = self._goal
        if self._ranks is not None and self._engine_rank is None:
            self._engine_rank = self._join(self._ranks)
        if self._engine_rank is not None and self._rank > 0:
            with self._changed:
                self._state = "ready" if self._state == "unproven" else self._state
            self._engine_rank.serve()
            raise PeerFailedError("rank 0 of the engine follows the log no more")
        if self._follower is None:
            self._follower = self._open()
        try:
            report = self._advance(self._follower)
        except Error:
            with self._changed:
                if not self._is_dropped:
                    raise
                self._is_dropped = False
                self._look_at_weights()
            return
        with self._changed:
            if report is None:
                self._look_at_weights()
            else:
                self._version, self._is_whole = report.version, True
                self._see(report.head)
                self._bytes_read += report.bytes_read
                self._reseeded += int(report.reseeded)
            self._error = ""
            if self._state == "unproven":
                self._state = "ready"

    def _advance(self, follower: LogFollower) -> FollowReport | None:
        """Brings the weights to the goal, or as near as the log reaches. Returns None for weights that are of a newer
        version than the goal: they stay.
        """
        goal = self._seen_goal
        if goal is None:
            return follower.step()
        newest = follower.look()
        with self._changed:
            self._see(newest)
        if follower.version is None or follower.version <= goal:
            try:
                return follower.step(min(goal, newest))
            except StaleVersionError:
                if follower.version is None or follower.version <= goal:
                    raise
        return None

    def _see(self, newest: int) -> None:
        """Remembers the newest version of the log, which was seen now. The caller holds the lock."""
        self._head, self._head_seen = newest, time.monotonic()
        if self._version is not None and self._version >= newest:
            self._behind_since = None
        else:
            self._behind_since = self._behind_since or time.monotonic()

    def _join(self, ranks: Ranks) -> EngineRank:
        from sparsecast import EngineRank

        timeout = self._log.timeout
        return EngineRank(ranks.channel, self._table, ranks.layout, self._tensors, pause=self._pause, timeout=timeout)

    def _open(self) -> LogFollower:
        from sparsecast import LogFollower, log_head

        head = log_head(self._log.location, list(self._log.trusted_keys), self._log.timeout)
        with self._changed:
            self._head, self._head_seen = head, time.monotonic()
        state = pathlib.Path(self._log.state)
        scratch = state / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {
            "state_path": state / "follower",
            "scratch": scratch,
            "trusted_keys": list(self._log.trusted_keys),
            "lease": self._log.lease,
            "timeout": self._log.timeout,
        }
        if self._engine_rank is not None:
            return LogFollower(self._log.location, self._engine_rank, **options)
        return LogFollower(self._log.location, self._table, self._tensors, pause=self._pause, **options)

    def _pause(self, paused: bool) -> bool:
        """Called by the follower before each write of the weights (`paused` is True) and after it (False), in the
        thread that follows. The call before the write waits until the engine's thread is in `apply`, and returns
        whether the weights may be written: False after `close`.
        """
        with self._changed:
            self._look_at_weights()
            if not paused:
                self._is_writing = False
                self._writes += 1
                if self._rank > 0:
                    self._named = self._writes  # The version is rank 0's to name.
                self._changed.notify_all()
                return True
            self._named = self._writes
            self._changed.notify_all()
            # The engine's thread may still compute what it derives from the version before.
            self._changed.wait_for(lambda: self._state != "applying")
            self._behind_since = self._behind_since or time.monotonic()
            self._is_dropped = False
            self._staged = self._follower.staged if self._follower is not None else None
            if self._state != "closed":
                self._before_staged = self._state
                self._state = "staged"
            self._changed.notify_all()
        self._tell()
        with self._changed:
            if not self._changed.wait_for(self._is_decided, self._interval):
                self._watch()
                self._changed.wait_for(self._is_decided)
            self._is_writing = self._state != "closed" and not self._is_dropped
            return self._is_writing

    def _is_decided(self) -> bool:
        return self._is_dropped or self._state in ("applying", "closed")

    def _watch(self) -> None:
        """Begins to look for newer versions while a version stays staged, in a thread of its own: a store that does not
        answer must not delay the write. The caller holds the lock.
        """
        follower = self._follower
        if follower is None or (self._watcher is not None and self._watcher.is_alive()):
            return

        def look() -> None:
            while self._state == "staged":
                newest, error = None, ""
                try:
                    newest = follower.look()
                except Exception as failure:  # The next step meets it again, and judges it.
                    error = str(failure)
                with self._changed:
                    if self._state != "staged":
                        return
                    self._error = error
                    if newest is not None:
                        self._see(newest)
                self._tell()
                with self._changed:
                    self._changed.wait_for(lambda: self._state != "staged", self._interval)

        self._watcher = threading.Thread(target=look, name="sparsecast-log-watch", daemon=True)
        self._watcher.start()

    # -- inside --------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Writes this rank's state, version and error into the state directory, for the server to see, if they have
        changed; while a version is staged, also the newest version of the log. Only rank 0 does so, for all ranks.
        """
        newest = f" of {self._head}" if self._state == "staged" else ""
        news = f"{self._told_state()} {self._version}{newest} {self._not_computed or self._error}"
        if self._rank == 0 and news != self._news:
            self._news = news
            write_news(str(self._log.state), news)

    def _told_state(self) -> State:
        whole = self._is_whole and not self._not_computed
        return "dirty" if not whole and self._state in ("unproven", "ready", "broken") else self._state

    def _look_at_weights(self) -> None:
        """Asks the follower which version the weights hold, and whether they are whole, and remembers the answers. For
        the thread that follows.
        """
        follower = self._follower
        writer = follower or self._engine_rank
        if follower is not None and follower.version is not None:
            self._version, self._is_whole = follower.version, not follower.dirty
        elif writer is not None:
            self._is_whole = self._is_whole and not writer.dirty if self._rank == 0 else not writer.dirty

    def _stop(self, error: str) -> None:
        self._error = error
        if self._state != "closed":
            self._state = "broken"

    def _recompute(self) -> None:
        """Computes again, from the weights, the tensors that the engine derives from them. If that fails, the error is
        kept for `status`, and raised.
        """
        try:
            for recomputation in self._recomputations:
                recomputation.run()
        except Error as error:
            self._not_computed = str(error)
            raise
        self._not_computed = ""

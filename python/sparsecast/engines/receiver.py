# SPDX-License-Identifier: Apache-2.0
"""Receiver of one rank of an engine: stages a version during generation, applies it in the pause, verifies it.

    unproven --join()--> ready --start_receive()--> receiving --> staged --apply()--> ready ...
       ^                   ^                            |            |
       |                   +----------- join() ----- broken <--------+   any failure; the version before stands
       +-- join() fails                                 dirty            memory is half-written: join() repairs it

`join` and `apply` are for one thread, the engine's; `version`, `state` and `span` may be used from any thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from sparsecast.errors import DeadlineError, DirtyError, Error, UsageError, VersionGapError
from sparsecast.transports import Channels, World

if TYPE_CHECKING:
    from sparsecast import ControlChannel, Layout, Memory, ShardedReport, ShardedSubscriber
    from sparsecast.engines.refresh.recompute import Recomputation

State = Literal["unproven", "ready", "receiving", "staged", "applying", "broken", "dirty", "closed"]


@dataclass(frozen=True)
class Receipt:
    """Report of one update on this rank. A receipt exists only if every rank of the group has verified the digest of
    the version.
    """

    engine: str
    rank: int
    base_version: int
    version: int
    tensors: int
    """Number of live tensors of the rank, changed or not."""
    elements: int
    """Number of elements that were written."""
    received_bytes: int
    wire_seconds: float
    stage_seconds: float
    pause_seconds: float
    """Seconds in `apply`: for the writes, the digest, the decision of all ranks, and the tensors computed from the
    weights.
    """
    recompute_seconds: float = 0.0
    """Part of `pause_seconds` in which the engine's own code computed tensors from the weights."""


@dataclass(frozen=True)
class Held:
    """The content of a rank's weight memory: its version, and whether all of the memory is of that version."""

    is_whole: bool
    """Whether all of the memory is of one version, so that it may be served."""
    version: int | None
    """Version in the memory; None for the weights of the engine's checkpoint, or of another trainer."""


@dataclass
class VersionSpan:
    """Versions of the weights at the start and at the end of one generation. `end` is -1 until the generation has
    ended.
    """

    start: int
    end: int = -1
    undisturbed: bool = False
    """Whether no apply ran between start and end, not even a failed one; then every token is of version `start`."""


class Receiver:
    """Keeps the live weights of one rank of an engine at the trainer's versions.

    `layout` describes the whole engine and is the same on all its ranks; `tensors[i]` is the memory of
    `layout.ranks[rank].tensors[i]`, contiguous, which the caller must not move. The memory holds `version` now; with
    `needs_anchor` it holds no version, and `join` writes all of it. On a GPU all work is enqueued on the CUDA stream
    with handle `stream` (0: a stream of the receiver's own), and `entry_bytes` is the most bytes of device memory for
    decoded changes between staging and apply (None: a sixteenth of the weights). `threads` is the number of host
    threads (0: all cores). `audit_versions` and `audit_time` have no effect here: they are for an audit in steps, which
    a receiver does not run.

    After every write, `recomputations` bring up to date the tensors that the engine computes from its weights. `guard`
    raises UsageError once a weight of the model has moved to other memory: `join`, `start_receive`, `apply` and `audit`
    call it first, and write nothing if it raises. `before` says what the engine could serve until now, be it of this
    trainer or not; None: `version`, or with `needs_anchor` the engine's checkpoint. Raises what `ShardedSubscriber`
    raises for a layout and memory that do not fit.
    """

    def __init__(
        self,
        engine: str,
        layout: Layout,
        rank: int,
        tensors: Sequence[Memory],
        *,
        version: int = 0,
        needs_anchor: bool = False,
        threads: int = 1,
        audit_versions: int = 64,
        audit_time: float = 0.0,
        stream: int = 0,
        entry_bytes: int | None = None,
        recomputations: Sequence[Recomputation] = (),
        guard: Callable[[], None] | None = None,
        before: Held | None = None,
    ) -> None:
        from sparsecast import ShardedSubscriber

        self.engine = engine
        self.rank = rank
        self._subscriber: ShardedSubscriber = ShardedSubscriber(
            engine,
            layout,
            rank,
            list(tensors),
            version=version,
            needs_anchor=needs_anchor,
            threads=threads,
            audit_versions=audit_versions,
            audit_time=audit_time,
            stream=stream,
            entry_bytes=entry_bytes,
        )
        self._device = next((memory.device for memory in tensors), "cpu")
        self._tensors = len(tensors)
        self._recomputations = tuple(recomputations)
        self._guard = guard or (lambda: None)
        self._before = before or Held(True, None if needs_anchor else version)
        self._version = version
        self._state: State = "unproven"
        self._epoch = 0  # Odd while an apply runs.
        self._lock = threading.Lock()
        self._channel: ControlChannel | None = None
        # One thread for all use of the channels: NCCL's channels want their calls from the thread that made them.
        self._wire = ThreadPoolExecutor(1, thread_name_prefix=f"sparsecast-{engine}-{rank}")
        self._staging: Future[None] | None = None
        self._receipts: list[Receipt] = []

    # -- for any thread ------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Version that was last verified. During an apply this is still the previous version."""
        return self._version

    @property
    def state(self) -> State:
        return self._state

    @property
    def held(self) -> Held:
        """Content of the memory now. It is not whole during an apply and in state "dirty". Until the first `join` has
        succeeded it is the content that the memory had at the start, no longer whole once an anchor has begun to
        overwrite it; after `close` it is the content at that time.
        """
        if self._state in ("unproven", "closed"):
            return Held(self._before.is_whole and not self._subscriber.anchor_begun, self._before.version)
        return Held(self._state not in ("dirty", "applying"), self._version)

    @property
    def in_doubt(self) -> int:
        """Version that this rank has applied without hearing whether the group committed it; 0 if there is none, and in
        any state but "broken". Such weights are whole and of the version in doubt, while `version` is still the
        previous version.
        """
        return self._subscriber.in_doubt if self._state == "broken" else 0

    def status(self) -> dict[str, Any]:
        """Returns the state of this rank, its version, and what its weights hold, as JSON values. Thread-safe."""
        held = self.held
        return {
            "engine": self.engine,
            "rank": self.rank,
            "version": self.version,
            "state": self.state,
            "in_doubt": self.in_doubt,
            "is_whole": held.is_whole,
            "held_version": held.version,
        }

    @property
    def last_receipt(self) -> Receipt | None:
        return self._receipts[-1] if self._receipts else None

    @contextlib.contextmanager
    def span(self) -> Iterator[VersionSpan]:
        """Context manager for one generation: yields a `VersionSpan` with the version of the weights now, and sets the
        version at the end when the context ends. Raises DirtyError if the weights are half-written, and so of no
        version.
        """
        with self._lock:
            self._refuse_dirty()
            span, epoch = VersionSpan(self._version), self._epoch
        try:
            yield span
        finally:
            with self._lock:
                span.end = self._version
                span.undisturbed = epoch == self._epoch and epoch % 2 == 0

    @property
    def has_moved(self) -> bool:
        """Whether a weight of the model has moved to other memory than this receiver writes. The receiver is of no use
        then.
        """
        try:
            self._guard()
        except UsageError:
            return True
        return False

    # -- for the engine's thread ---------------------------------------------------------------------------------

    def join(self, world: World, timeout: float = 60.0) -> None:
        """Meets the trainer and all engines as rank `world.rank_offset` of the world, and verifies that this rank holds
        the trainer's version.

        Collective over the world, within `timeout` seconds. Writes the weights if they hold no version, or another
        version than the trainer's (no generation may run then); otherwise only reads them. Joining again replaces the
        group, whatever its state. Raises UnauthenticatedError for another secret, DeadlineError if not all ranks come,
        DigestMismatchError if the memory differs from its version, GroupMismatchError or WrongBaseError if the ranks do
        not fit together, and UsageError during an update (call `abandon` first).
        """
        self._refuse_closed()
        self._guard()
        if self._state in ("receiving", "staged", "applying"):
            raise UsageError(f"engine {self.engine!r}: join() while it is {self._state}; abandon() that first")
        verified = self._state not in ("unproven", "dirty")
        deadline = time.monotonic() + timeout
        channel = replace(world, timeout=timeout).open(0)
        with self._writing():
            try:
                remaining = max(deadline - time.monotonic(), 0.001)
                self._wire.submit(self._regroup, channel, world.channels, remaining).result()
            except BaseException as error:
                self._state = self._after_failed_join(error, verified)
                if self._state == "broken":
                    self._recompute()
                raise
            self._channel = channel
            self._version = self._subscriber.version
            self._recompute()
            self._state = "ready"

    def start_receive(self, timeout: float = 60.0, *, base_version: int | None = None) -> None:
        """Starts receiving the next version in the background; generation continues. Collective with the trainer's
        sync(). `timeout`, in seconds, is for the receive.

        `base_version` is the version from which the trainer's update starts: VersionGapError is raised if this rank has
        another version. None: it is not checked here.
        """
        self._refuse_closed()
        self._refuse_dirty()
        self._guard()
        if base_version is not None and base_version != self._version:
            raise VersionGapError(
                f"engine {self.engine!r}, rank {self.rank}, is on version {self._version}, and the update starts from "
                f"{base_version}: let it join again, which brings it to the trainer's version"
            )
        if self._state != "ready":
            raise UsageError(f"engine {self.engine!r}: start_receive() while it is {self._state}")
        self._state = "receiving"
        self._staging = self._wire.submit(self._receive, timeout)

    def wait_staged(self, timeout: float = 60.0) -> None:
        """Waits until the next version has arrived and has been checked. Raises the error of the receive if it failed,
        DeadlineError after `timeout` seconds, and UsageError if no receive was started.
        """
        staging = self._staging
        if staging is None:
            raise UsageError(f"engine {self.engine!r}: no start_receive() before")
        if not wait([staging], timeout).done:
            raise DeadlineError(f"engine {self.engine!r}: the next version has not come within {timeout} s")
        staging.result()

    def apply(self, timeout: float = 60.0) -> Receipt:
        """Runs the pause of an update: applies the staged version in place, verifies its digest, and waits for the
        decision of all ranks. `timeout`, in seconds, is for all of it.

        Waits for the staging if it is not done. Nothing may read the weights meanwhile. If it raises, the weights are
        still of the previous version (`state` is "broken": join again), unless the decision of the group was not heard
        (`in_doubt`), or the weights are half-written ("dirty").
        """
        deadline = time.monotonic() + timeout
        self.wait_staged(timeout)
        if self._state != "staged":
            raise UsageError(f"engine {self.engine!r}: apply() while it is {self._state}")
        try:
            self._guard()
        except UsageError as error:
            self.abandon(str(error), timeout)
            raise
        self._staging = None
        with self._writing():
            self._state = "applying"
            begin = time.monotonic()
            try:
                report = self._subscriber.apply(max(deadline - begin, 0.001))
            except BaseException as error:
                self._state = "dirty" if isinstance(error, DirtyError) else "broken"
                if self._state == "broken":
                    self._recompute()  # The weights are whole: of the version before, or of the version in doubt.
                raise
            self._recompute()
            receipt = self._receipt(report, time.monotonic() - begin)
            self._version = report.version
            self._state = "ready"
        self._receipts = [receipt]
        return receipt

    def update(self, timeout: float = 60.0, *, base_version: int | None = None) -> Receipt:
        """Runs start_receive() and then apply(), for a caller that has already paused generation."""
        self.start_receive(timeout, base_version=base_version)
        return self.apply(timeout)

    def abandon(self, reason: str, timeout: float = 60.0) -> None:
        """Leaves the group and drops the version in progress: the other ranks fail with `reason`. Call join() to go on.

        The weights stay as they are. A receive in the background ends at once, because its channel is closed; raises
        DeadlineError if it has not ended within `timeout` seconds.
        """
        if self._channel is not None:
            self._channel.abort(reason)
            self._channel = None
        if self._staging is not None and not wait([self._staging], timeout).done:
            raise DeadlineError(f"engine {self.engine!r}: a receive has not ended within {timeout} s")
        self._staging = None
        if self._state not in ("dirty", "closed", "unproven"):
            self._state = "broken"

    def settle(self, committed: bool) -> None:
        """Decides about the version in doubt without the trainer, which is gone: with `committed` the version in doubt
        stands, otherwise the previous version is restored. Does nothing if no version is in doubt.

        No generation may run. All ranks of an engine must settle alike. Raises DirtyError if the previous version could
        not be restored.
        """
        if self.in_doubt == 0:
            return
        with self._writing():
            try:
                self._subscriber.settle(committed)
            except BaseException:
                self._state = "dirty"
                raise
            self._recompute()
            self._version = self._subscriber.version

    def audit(self) -> None:
        """Reads all weights and compares their digest with the digest of the version; also computes again what the
        engine derives from the weights, and compares. Raises DirtyError naming a tensor that differs; only join()
        repairs the weights then. No generation may run.
        """
        self._refuse_closed()
        self._refuse_dirty()
        self._guard()
        try:
            self._subscriber.audit()
            for recomputation in self._recomputations:
                recomputation.audit()
        except DirtyError:
            self._state = "dirty"
            raise

    def close(self, timeout: float = 60.0) -> None:
        """Leaves the group and ends the receiver; the weights do not change. Ranks that wait for this rank fail at
        once. Raises DeadlineError if a receive in the background has not ended within `timeout` seconds.
        """
        if self._state != "closed":
            self.abandon(f"engine {self.engine!r}, rank {self.rank}, has left", timeout)
            self._before = self.held
            self._wire.shutdown()
            self._state = "closed"

    # -- inside --------------------------------------------------------------------------------------------------

    def _regroup(self, channel: ControlChannel, channels: Channels, timeout: float) -> None:
        on_device(self._device, lambda: self._subscriber.regroup(channel, channels=channels, timeout=timeout))

    def _recompute(self) -> None:
        """Computes again, from the weights, the tensors that the engine derives from them. If that fails, the state is
        "dirty" and the error is raised.
        """
        try:
            for recomputation in self._recomputations:
                recomputation.run()
        except BaseException:
            self._state = "dirty"
            raise

    def _receive(self, timeout: float) -> None:
        try:
            on_device(self._device, lambda: self._subscriber.receive(timeout))
        except BaseException as error:  # Raised again in wait_staged(), to the engine's thread.
            self._state = "dirty" if isinstance(error, DirtyError) else "broken"
            raise
        self._state = "staged"

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            self._epoch += 1
        try:
            yield
        finally:
            with self._lock:
                self._epoch += 1

    def _after_failed_join(self, error: BaseException, verified: bool) -> State:
        """Returns the state after a join that failed with `error`. `verified` says whether the weights were known to be
        whole before the join; if the join has begun to overwrite such weights, an audit tells whether they are "dirty".
        """
        if isinstance(error, DirtyError) or self._state == "dirty":
            return "dirty"
        if not verified:
            return "unproven"
        if not self._subscriber.anchor_begun:
            return "broken"
        try:
            self._subscriber.audit()
        except Error:
            return "dirty"
        return "broken"

    def _receipt(self, report: ShardedReport, pause_seconds: float) -> Receipt:
        return Receipt(
            engine=self.engine,
            rank=self.rank,
            base_version=self._version,
            version=report.version,
            tensors=self._tensors,
            elements=report.applied,
            received_bytes=report.received_bytes,
            wire_seconds=report.wire_seconds,
            stage_seconds=report.stage_seconds,
            pause_seconds=pause_seconds,
            recompute_seconds=sum(recomputation.seconds for recomputation in self._recomputations),
        )

    def _refuse_dirty(self) -> None:
        if self._state == "dirty":
            raise DirtyError(
                f"engine {self.engine!r}, rank {self.rank}: a failure left its weights half-written after version "
                f"{self._version}; they are of no version until join() has repaired them"
            )

    def _refuse_closed(self) -> None:
        if self._state == "closed":
            raise UsageError(f"engine {self.engine!r} has been closed")


def on_device(device: str, work: Callable[[], None]) -> None:
    """Runs `work` in this thread with the CUDA device `device` (such as "cuda:1") as the current one, because a new
    thread does not inherit the current device. For any other device it only runs `work`.
    """
    if not device.startswith("cuda"):
        work()
        return
    import torch

    with torch.cuda.device(device):
        work()

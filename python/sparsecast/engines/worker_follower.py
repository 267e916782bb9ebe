# SPDX-License-Identifier: Apache-2.0
"""The follower of a delta log in a worker of an engine, and what engines do alike to make its receiver."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sparsecast.errors import Error, UsageError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from sparsecast.engines.log_receiver import LogReceiver
    from sparsecast.engines.refresh.recompute import Recomputation
    from sparsecast.engines.trace.loader import TracedLoader
    from sparsecast.transports import Log

Traced = tuple["TracedLoader", list["Recomputation"]]


class WorkerFollower:
    """The follower of a delta log in one worker of an engine, or the reason why the worker cannot follow. For the
    engine's thread.

    The constructor calls `start`, which returns the receiver of the worker's weights and the recomputations that the
    receiver runs after each write. If `start` raises, its exception is the reason. `location` is the location of the
    log, for messages, and `device` the device of the model. `rank` is the number of the worker in its engine, and
    `replica` the number of the engine in its server. `goal` is the version beyond which nothing is fetched
    (`LogReceiver.aim`).
    """

    def __init__(
        self,
        location: str,
        device: torch.device,
        start: Callable[[], tuple[LogReceiver, list[Recomputation]]],
        log: logging.Logger,
        *,
        replica: int = 0,
        rank: int = 0,
        goal: int | None = None,
    ) -> None:
        self.replica = replica
        self._rank = rank
        self._device = device
        self._receiver: LogReceiver | None = None
        self._recomputations: list[Recomputation] = []
        self._refusal = ""
        try:
            self._receiver, self._recomputations = start()
            self._receiver.aim(goal)
            self._receiver.start()
            log.info("sparsecast follows %s", location)
        except Exception as error:  # The engine may raise anything; the server goes on with the weights that it has.
            self._refusal = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            log.error("sparsecast does not follow %s: %s", location, self._refusal)

    def status(self) -> dict[str, Any]:
        """Returns the place of this worker in the log (`LogReceiver.status`), and how its tensors are updated
        (`report`). If the worker cannot follow, its "state" is "broken", and "error" has the reason.
        """
        place = {"replica": self.replica, "rank": self._rank}
        if self._receiver is None:
            return {**place, "state": "broken", "version": None, "is_whole": True, "error": self._refusal}
        from sparsecast.engines.refresh.recompute import report

        return {**place, **self._receiver.status(), **report(self._recomputations)}

    def aim(self, goal: int | None) -> None:
        """Sets the version beyond which nothing is fetched (`LogReceiver.aim`)."""
        if self._receiver is not None:
            self._receiver.aim(goal)

    def drop(self) -> None:
        """Drops the staged version, if there is one (`LogReceiver.drop`)."""
        if self._receiver is not None:
            self._receiver.drop()

    def apply(self, timeout: float = 0.0) -> None:
        """Writes the staged version into the weights; waits for one up to `timeout` seconds. Writes nothing if there is
        none, or if this worker cannot follow. Does not raise errors of this library: `status` has them.
        """
        if self._receiver is None:
            return
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)  # Work that the engine has enqueued still reads the version before.
        with contextlib.suppress(Error):
            self._receiver.apply(timeout)


def lock_state(log: Log) -> int:
    """Locks the state directory of `log` for this process, and creates the directory if it does not exist. The lock
    lasts until the returned file descriptor is closed. Raises UsageError if another process holds the lock.
    """
    state = pathlib.Path(str(log.state))
    state.mkdir(parents=True, exist_ok=True)
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        words = "another server follows a log with it: give each server a SPARSECAST_FOLLOW_STATE of its own"
        raise UsageError(words, str(state)) from None
    return lock


def trace_for_log(
    log: Log, group: ProcessGroup, refuse: Callable[[], None], trace: Callable[[Mapping[str, str]], Traced]
) -> Traced:
    """Traces a model that is to follow `log`, and proves that what the engine computes from its weights can be computed
    again. Returns the address map and the recomputations. Collective over `group`, the workers of the engine: an error
    of one worker is raised on all. Worker 0 locks the state directory of the log.

    `refuse` raises an error if this worker cannot follow any log. `trace` does the tracing; it is given modes (of
    `MODES`) by patterns of names. In an engine of one worker every canonical tensor must lie in one piece: tensors that
    the engine cuts into several pieces get copies outside the model, from which they are loaded again after each write.
    Raises UnsupportedError naming tensors that cannot follow a log.
    """
    import torch.distributed as dist

    from sparsecast.engines.agreement import raise_if_any_failed

    failure: BaseException | None = None
    try:
        refuse()
        if dist.get_rank(group) == 0:
            lock_state(log)
        traced = _trace(trace, whole=dist.get_world_size(group) == 1)
    except BaseException as error:  # Told to the other workers, and raised on all of them.
        failure = error
    raise_if_any_failed(failure, group)
    return traced


def _trace(trace: Callable[[Mapping[str, str]], Traced], *, whole: bool) -> Traced:
    from sparsecast.engines.trace.whole import cut_tensors, refuse_ties

    traced, recomputations = trace({})
    cut = cut_tensors(traced) if whole else []
    if cut:
        traced, recomputations = trace({glob.escape(name): "shadow" for name in cut})
    refuse_ties(traced)
    for recomputation in recomputations:
        recomputation.prove(as_loaded=True)
    traced.require_complete(recomputations[0].derived)
    return traced, recomputations


def receiver_of(
    log: Log,
    traced: TracedLoader,
    recomputations: list[Recomputation],
    files: Callable[[], Iterable[tuple[str, torch.Tensor]]],
    *,
    interval: float,
    guard: Callable[[], None],
    group: ProcessGroup,
) -> LogReceiver:
    """Returns the receiver that lets the model of a worker follow `log`. `group` has the workers of the engine, which
    all call this function (collective).

    `traced` and `recomputations` are the result of `trace_for_log`. `files` yields (name, tensor) pairs of the
    checkpoint, which fill the tensors that the model does not use. `interval` is the time between two looks at the log,
    in seconds. `guard` raises UsageError once a weight of the model has moved to other memory. Raises DeadlineError if
    the workers do not meet within `log.timeout` seconds.
    """
    import torch.distributed as dist

    from sparsecast import TensorTable, describe
    from sparsecast.engines.follow_ranks import followed_part
    from sparsecast.engines.log_receiver import LogReceiver, Ranks
    from sparsecast.engines.trace.whole import whole_tensors

    ranks: Ranks | None = None
    if dist.get_world_size(group) == 1:
        whole, unused = whole_tensors(traced)
        table = [spec for spec, _ in whole]
        tensors = [describe(tensor, dtype=dtype) for (_, dtype, _), tensor in whole]
    else:
        part = followed_part(traced, group, log.timeout)
        table = sorted(traced.table, key=lambda spec: spec[0].encode())  # As a log has it.
        ranks, tensors, unused = part.ranks, part.tensors, part.unused
    if unused:
        for name, tensor in files():
            if name in unused:
                unused[name].copy_(tensor)
    return LogReceiver(
        log,
        TensorTable(table),
        tensors,
        ranks=ranks,
        interval=interval,
        recomputations=recomputations,
        guard=guard,
    )

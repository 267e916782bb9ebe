# SPDX-License-Identifier: Apache-2.0
"""The follower of a delta log in a worker of an engine, and what engines do alike to make its receiver."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import logging
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparsecast.errors import DeadlineError, DirtyError, Error, UsageError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from sparsecast.engines.log_receiver import LogReceiver
    from sparsecast.engines.refresh.recompute import Recomputation
    from sparsecast.engines.trace.loader import TracedLoader
    from sparsecast.transports import Log

Traced = tuple["TracedLoader", list["Recomputation"]]

_CLOSE_SECONDS = 60.0  # In addition to the time that a request to a store may take.
_WAKE_SECONDS = 600.0
_POLL_SECONDS = 0.05


class WorkerFollower:
    """The follower of a delta log in one worker of an engine, or the reason why the worker cannot follow. For the
    engine's thread.

    The constructor calls `start`, which traces the worker's model. If `start` raises, its exception is the reason.
    `location` is the location of the log, for messages, and `device` the device of the model. `rank` is the number of
    the worker in its engine, and `replica` the number of the engine in its server. `goal` is the version beyond which
    nothing is fetched (`LogReceiver.aim`).
    """

    def __init__(
        self,
        location: str,
        device: torch.device,
        start: Callable[[], FollowedModel],
        log: logging.Logger,
        *,
        replica: int = 0,
        rank: int = 0,
        goal: int | None = None,
    ) -> None:
        self.replica = replica
        self._rank = rank
        self._device = device
        self._model: FollowedModel | None = None
        self._receiver: LogReceiver | None = None  # None in a worker that cannot follow, and in one that sleeps.
        self._goal = goal
        self._refusal = ""
        # Version of weights that were lost in a sleep, or not whole before it, until they are there again.
        self._lost: int | None = None
        try:
            self._model = start()
            self._receive(is_whole=True)
            log.info("sparsecast follows %s", location)
        except Exception as error:  # The engine may raise anything; the server goes on with the weights that it has.
            self._model = None
            self._refusal = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            log.error("sparsecast does not follow %s: %s", location, self._refusal)

    def _receive(self, *, is_whole: bool) -> LogReceiver:
        assert self._model is not None
        self._receiver = self._model.receiver(is_whole=is_whole)
        self._receiver.aim(self._goal)
        self._receiver.start()
        return self._receiver

    def status(self) -> dict[str, Any]:
        """Returns the place of this worker in the log (`LogReceiver.status`), and how its tensors are updated
        (`report`). If the worker cannot follow, its "state" is "broken", and "error" has the reason. While it sleeps,
        its "state" is "asleep".
        """
        place = {"replica": self.replica, "rank": self._rank}
        if self._model is None or self._receiver is None:
            state = "broken" if self._model is None else "asleep"
            return {**place, "state": state, "version": None, "is_whole": True, "error": self._refusal}
        from sparsecast.engines.refresh.recompute import report

        return {**place, **self._receiver.status(), **report(self._model.recomputations)}

    def aim(self, goal: int | None) -> None:
        """Sets the version beyond which nothing is fetched (`LogReceiver.aim`)."""
        self._goal = goal
        if self._receiver is not None:
            self._receiver.aim(goal)

    def drop(self) -> None:
        """Drops the staged version, if there is one (`LogReceiver.drop`)."""
        if self._receiver is not None:
            self._receiver.drop()

    def apply(self, timeout: float = 0.0) -> None:
        """Writes the staged version into the weights; waits for one up to `timeout` seconds. Writes nothing if there is
        none, if this worker cannot follow, or while it sleeps. Does not raise errors of this library: `status` has
        them.
        """
        if self._receiver is None:
            return
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)  # Work that the engine has enqueued still reads the version before.
        with contextlib.suppress(Error):
            self._receiver.apply(timeout)

    @property
    def follows(self) -> bool:
        """Whether this worker follows a log; False if it cannot."""
        return self._model is not None

    @property
    def is_asleep(self) -> bool:
        """Whether this worker follows a log, and sleeps now."""
        return self._model is not None and self._receiver is None

    def sleep(self, *, loses_weights: bool) -> None:
        """Stops following the log before the engine releases the memory of its weights, which is neither read nor
        written from now on until `wake`. A staged version is dropped, and the receiver's own memory is released.
        Collective over the workers of the engine. `loses_weights` says whether the memory will come back without its
        content; tensors that the log does not fill are then copied to host memory.

        Raises DeadlineError on all workers, and the engine must not release the memory, if one of them does not stop
        within 60 s after the timeout of a request to the store.
        """
        from sparsecast.engines.agreement import is_so_anywhere, raise_if_any_failed

        if self._model is None or self._receiver is None:
            return
        timeout = self._model.log.timeout + _CLOSE_SECONDS
        before = self._receiver.status()
        self._receiver.close(timeout)
        failure: BaseException | None = None
        if self._receiver.is_running:
            failure = DeadlineError(f"the follower of the log has not stopped within {timeout:.0f} s")
        try:
            raise_if_any_failed(failure, self._model.group)
        except Error:
            self._receiver = None
            self._receive(is_whole=True)
            raise
        self._receiver = None
        if is_so_anywhere(loses_weights or not before["is_whole"], self._model.group):
            self._lost = before["version"] or 0
            self._model.keep_rest()

    def wake(self) -> None:
        """Follows the log again, after the engine has got the memory of its weights back at the same addresses.
        Collective over the workers of the engine. If the weights were lost, returns when they have been fetched, written
        and verified, at the version that they had or a newer one; the engine must not generate before.

        Raises Error with the reason if the log cannot be followed any more, and DeadlineError if the weights are not
        there within 10 minutes. The worker goes on fetching then; its status says that its weights are not whole, and a
        later call waits for them again.
        """
        if self._model is None:
            return
        receiver = self._receiver
        if receiver is None:
            if self._lost is not None:
                self._model.restore_rest()
            receiver = self._receive(is_whole=self._lost is None)
        if self._lost is not None:
            # A server that is pinned comes to that version, even if it had a newer one.
            least = self._lost if self._goal is None else min(self._lost, self._goal)
            self._model.bring_back(receiver, least, _WAKE_SECONDS)
            self._lost = None


class FollowedModel:
    """The traced model of one worker of an engine, and what it takes to follow `log` with it. Collective over `group`,
    the workers of the engine.

    `traced` and `recomputations` are the result of `trace_for_log` for the modules in `models`. `files` yields (name,
    tensor) pairs of the checkpoint, which fill the tensors that the models do not use. `interval` is the time between
    two looks at the log, in seconds. `guard` raises UsageError once a weight of the models has moved to other memory.
    """

    def __init__(
        self,
        log: Log,
        models: Sequence[torch.nn.Module],
        traced: TracedLoader,
        recomputations: list[Recomputation],
        files: Callable[[], Iterable[tuple[str, torch.Tensor]]],
        *,
        interval: float,
        guard: Callable[[], None],
        group: ProcessGroup,
    ) -> None:
        import torch.distributed as dist

        from sparsecast import TensorTable, describe
        from sparsecast.engines.follow_ranks import FollowedPart, followed_part
        from sparsecast.engines.trace.whole import whole_tensors

        self.group = group
        self.recomputations = recomputations
        self.log = log
        self._models = models
        self._traced = traced
        self._interval = interval
        self._guard = guard
        self._rest: list[tuple[torch.Tensor, torch.Tensor]] = []  # Live tensors and their copies, during a sleep.
        self._part: FollowedPart | None = None
        if dist.get_world_size(group) == 1:
            whole, self._unused = whole_tensors(traced)
            table = [spec for spec, _ in whole]
            self._tensors = [describe(tensor, dtype=dtype) for (_, dtype, _), tensor in whole]
        else:
            self._part = followed_part(traced, group)
            table = sorted(traced.table, key=lambda spec: spec[0].encode())  # As a log has it.
            self._tensors, self._unused = self._part.tensors, self._part.unused
        self._table = TensorTable(table)
        if self._unused:
            for name, tensor in files():
                if name in self._unused:
                    self._unused[name].copy_(tensor)

    def receiver(self, *, is_whole: bool) -> LogReceiver:
        """Returns a new receiver, which lets the model follow the log. `is_whole` says whether the weights are those of
        some version (`LogReceiver`). Raises DeadlineError if the workers do not meet within `log.timeout` seconds.
        """
        from sparsecast.engines.follow_ranks import meet_ranks
        from sparsecast.engines.log_receiver import LogReceiver, Ranks

        ranks: Ranks | None = None
        if self._part is not None:
            ranks = Ranks(meet_ranks(self.group, self.log.timeout), self._part.layout)
        return LogReceiver(
            self.log,
            self._table,
            self._tensors,
            ranks=ranks,
            interval=self._interval,
            recomputations=self.recomputations,
            guard=self._guard,
            is_whole=is_whole,
        )

    def keep_rest(self) -> None:
        """Copies to host memory the parameters that neither the log nor a recomputation fills whole."""
        from sparsecast.engines.refresh.recompute import unwritten_parameters

        rest = unwritten_parameters(self._models, self._traced, self.recomputations)
        self._rest = [(tensor, tensor.to("cpu", copy=True)) for tensor in rest]

    def restore_rest(self) -> None:
        """Copies back what `keep_rest` has copied, and forgets it."""
        for tensor, copy in self._rest:
            tensor.copy_(copy)
        self._rest = []

    def bring_back(self, receiver: LogReceiver, version: int, timeout: float) -> None:
        """Has `receiver` write what it stages until the weights of all workers are whole, and at `version` or a newer
        one, for up to `timeout` seconds. Raises DirtyError with the reason if the log cannot be followed any more, and
        else DeadlineError.
        """
        import torch
        import torch.distributed as dist

        until = time.monotonic() + timeout
        size = dist.get_world_size(self.group)
        while True:
            status = receiver.status()
            # Rank 0 alone knows the version of the weights: the other ranks hold only parts of them.
            reached = status["rank"] > 0 or (status["version"] is not None and status["version"] >= version)
            own = (
                status["state"] == "staged",
                status["is_whole"] and reached,
                not receiver.is_running,
                time.monotonic() > until,
            )
            told = torch.tensor(own, dtype=torch.int32)
            dist.all_reduce(told, group=self.group)
            staged, there, ended, late = told.tolist()
            if there == size:
                return
            if ended or late:
                words = "the weights of this server were lost while it slept, and the log does not give them back: "
                failure = DirtyError if ended else DeadlineError
                raise failure(words + (status["error"] or "another worker has the reason"))
            if staged == size:
                with contextlib.suppress(Error):  # It is in the next status.
                    receiver.apply()
            else:
                time.sleep(_POLL_SECONDS)


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

# SPDX-License-Identifier: Apache-2.0
"""What a vLLM worker does to follow a delta log; the general plug-in gives vLLM's workers these three methods.

`sparsecast_follow` traces the loader of the model, as a join to a trainer does, and starts a `LogReceiver`. A version
that it has staged is written in `sparsecast_follow_apply`, which vLLM calls between two steps of the engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import glob
import logging
import os
import pathlib
from typing import TYPE_CHECKING, Any

from sparsecast.errors import Error, UnsupportedError, UsageError

if TYPE_CHECKING:
    from sparsecast.engines.log_receiver import LogReceiver
    from sparsecast.engines.refresh.recompute import Recomputation
    from sparsecast.engines.trace.loader import TracedLoader
    from sparsecast.engines.vllm.live_model import LiveModel
    from sparsecast.transports import Log

METHODS = ("sparsecast_follow", "sparsecast_follow_status", "sparsecast_follow_apply")

_ATTRIBUTE = "_sparsecast_follower"
_log = logging.getLogger("vllm.sparsecast")


def sparsecast_follow(self: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Begins to follow the log of the settings (`FollowSettings.for_worker`), once; returns the status, in which a
    refusal is state "broken" with its reason.
    """
    if getattr(self, _ATTRIBUTE, None) is None:
        setattr(self, _ATTRIBUTE, WorkerFollower(self, settings))
    return sparsecast_follow_status(self)


def sparsecast_follow_status(self: Any) -> dict[str, Any]:
    """Returns the place of this worker in the log (`LogReceiver.status`), and how its tensors are updated."""
    follower: WorkerFollower = getattr(self, _ATTRIBUTE)
    return follower.status()


def sparsecast_follow_apply(self: Any, replicas: list[int]) -> dict[str, Any]:
    """Writes the version that is staged, on the workers of these replicas, all of which have staged it; returns the
    status, also after a failure.
    """
    follower: WorkerFollower = getattr(self, _ATTRIBUTE)
    if follower.replica in replicas:
        follower.apply()
    return follower.status()


class WorkerFollower:
    """The follower of one worker, or the reason why the worker cannot follow. For the engine's thread."""

    def __init__(self, worker: Any, settings: dict[str, Any]) -> None:
        """Collective over the workers of an engine: either all of them follow, or none."""
        from vllm.distributed.parallel_state import get_world_group

        group = get_world_group()
        parallel = worker.vllm_config.parallel_config
        # With expert parallelism the replicas are one engine, whose group has the workers of all of them.
        apart = group.world_size == parallel.world_size
        self.replica = int(parallel.data_parallel_index) if apart else 0
        self._rank = int(group.rank_in_group)
        self._device = worker.device
        self._receiver: LogReceiver | None = None
        self._recomputations: list[Recomputation] = []
        self._refusal = ""
        try:
            self._start(worker, settings, group)
        except Exception as error:  # vLLM's code may raise anything; the server goes on with the weights that it has.
            self._refusal = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            _log.error("sparsecast does not follow %s: %s", settings["location"], self._refusal)

    def status(self) -> dict[str, Any]:
        place = {"replica": self.replica, "rank": self._rank}
        if self._receiver is None:
            return {**place, "state": "broken", "version": None, "is_whole": True, "error": self._refusal}
        from sparsecast.engines.refresh.recompute import report

        return {**place, **self._receiver.status(), **report(self._recomputations)}

    def apply(self) -> None:
        if self._receiver is None:
            return
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)  # Work that vLLM has enqueued still reads the version before.
        with contextlib.suppress(Error):  # The status says so.
            self._receiver.apply()

    def _start(self, worker: Any, settings: dict[str, Any], group: Any) -> None:
        from sparsecast.engines.agreement import raise_if_any_failed
        from sparsecast.engines.follow_settings import log_of_worker
        from sparsecast.engines.vllm.live_model import LiveModel, draft_model
        from sparsecast.engines.vllm.plugin import check_version

        check_version()
        config = worker.vllm_config
        log = log_of_worker(settings, self.replica)
        failure: BaseException | None = None
        try:
            _refuse_what_cannot_follow(config)
            if self._rank == 0:
                self._lock = _lock(pathlib.Path(str(log.state)))
            live = LiveModel(config, worker.get_model())
            live.find_draft = lambda: draft_model(worker)
            traced, recomputations = _trace(live, whole=group.world_size == 1)
            for recomputation in recomputations:
                recomputation.prove(as_loaded=True)
            traced.require_complete(recomputations[0].derived)
        except BaseException as error:  # Told to the other workers, and raised on all of them.
            failure = error
        raise_if_any_failed(failure, group.cpu_group)
        self._recomputations = recomputations
        self._receiver = self._make_receiver(log, live, traced, settings["interval"], group)
        self._receiver.start()
        _log.info("sparsecast follows %s: %d of %d tensors in place", log.location, traced.in_place, len(traced.table))

    def _make_receiver(
        self, log: Log, live: LiveModel, traced: TracedLoader, interval: float, group: Any
    ) -> LogReceiver:
        from sparsecast import TensorTable, describe
        from sparsecast.engines.follow_ranks import followed_part
        from sparsecast.engines.log_receiver import LogReceiver, Ranks
        from sparsecast.engines.trace.whole import whole_tensors
        from sparsecast.engines.vllm.model import checkpoint_tensors

        ranks: Ranks | None = None
        if group.world_size == 1:
            whole, unused = whole_tensors(traced)
            table = [spec for spec, _ in whole]
            tensors = [describe(tensor, dtype=dtype) for (_, dtype, _), tensor in whole]
        else:
            part = followed_part(traced, group.cpu_group, log.timeout)
            table = sorted(traced.table, key=lambda spec: spec[0].encode())  # As a log has it.
            ranks, tensors, unused = part.ranks, part.tensors, part.unused
        if unused:
            for name, tensor in checkpoint_tensors(live.vllm_config, live.vllm_config.model_config, live.model):
                if name in unused:
                    unused[name].copy_(tensor)
        self._kept = (traced, unused)  # Their memory is written as long as the receiver lives.
        return LogReceiver(
            log,
            TensorTable(table),
            tensors,
            ranks=ranks,
            interval=interval,
            recomputations=self._recomputations,
            guard=live.guard(traced, "start the server again"),
        )


def _refuse_what_cannot_follow(config: Any) -> None:
    """Raises UnsupportedError for servers that cannot follow a log."""
    from sparsecast.engines.vllm.model import refuse_moving_experts

    if config.weight_transfer_config is not None:
        raise UnsupportedError(
            "--weight-transfer-config: a server takes its weights from a log or from a trainer, not from both; start vLLM "
            "without it, or without SPARSECAST_FOLLOW"
        )
    refuse_moving_experts(config.parallel_config)
    if config.model_config.enable_sleep_mode:
        raise UnsupportedError(
            "--enable-sleep-mode: a server that sleeps gives the memory of its weights away, into which the follower "
            "writes; start vLLM without it"
        )


def _trace(live: LiveModel, *, whole: bool) -> tuple[TracedLoader, list[Recomputation]]:
    """Returns the map of the tensors in the files that vLLM was started from, which the log has to have, too. With
    `whole`, tensors that are cut into several pieces are kept whole beside the model, and loaded from there after each
    write.
    """
    from sparsecast.buffers import dtype_name
    from sparsecast.engines.trace.whole import cut_tensors, refuse_ties
    from sparsecast.engines.vllm.live_model import TraceRequest
    from sparsecast.engines.vllm.model import checkpoint_tensors, refuse_new_ties

    files = checkpoint_tensors(live.vllm_config, live.vllm_config.model_config, live.model)
    request = TraceRequest([(name, dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in files])
    traced, recomputations = live.trace(request, verify=True)
    cut = cut_tensors(traced) if whole else []
    if cut:
        request = dataclasses.replace(request, modes={glob.escape(name): "shadow" for name in cut})
        traced, recomputations = live.trace(request, verify=True)
    refuse_new_ties(traced, ())
    refuse_ties(traced)
    return traced, recomputations


def _lock(state: pathlib.Path) -> int:
    """Takes the state directory for this process. Raises UsageError if another process has it."""
    state.mkdir(parents=True, exist_ok=True)
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        words = "another server follows a log with it: give each server a SPARSECAST_FOLLOW_STATE of its own"
        raise UsageError(words, str(state)) from None
    return lock

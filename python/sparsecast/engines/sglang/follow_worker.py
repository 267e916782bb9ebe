# SPDX-License-Identifier: Apache-2.0
"""What a SGLang scheduler does to follow a delta log.

    SPARSECAST_FOLLOW=s3://bucket/run python -m sglang.launch_server --model-path MODEL

The HTTP process leads (`led_engine`): its messages come between two passes of the scheduler's loop, and a version that
is staged is written then.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from sparsecast.engines.follow_settings import FollowSettings, log_of_worker
from sparsecast.engines.sglang.messages import TraceRequest
from sparsecast.engines.sglang.weights import checkpoint_tensors, scales_of_caches, trace_and_verify
from sparsecast.engines.worker_follower import Traced, WorkerFollower, lock_state, receiver_of, trace_for_log
from sparsecast.errors import UnsupportedError, UsageError
from sparsecast.torch.owners import guard_of

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

    from sparsecast.engines.log_receiver import LogReceiver
    from sparsecast.engines.refresh.recompute import Recomputation

_log = logging.getLogger("sparsecast")


def follower_of(model_runner: ModelRunner) -> WorkerFollower | None:
    """Returns the follower of this scheduler, which is an attribute of the model runner; None before `follow`."""
    follower: WorkerFollower | None = getattr(model_runner, "_sparsecast_follower", None)
    return follower


def follow(model_runner: ModelRunner, settings: FollowSettings | None, replica: int, workers: int) -> WorkerFollower:
    """Begins to follow a log, once; returns the follower. `replica` is the index of this data-parallel replica,
    `workers` the number of ranks that hold its model together. Raises UsageError without settings.
    """
    follower = follower_of(model_runner)
    if follower is None:
        if settings is None:
            raise UsageError("SPARSECAST_FOLLOW is not in the environment of this scheduler")
        follower = WorkerFollower(
            settings.location,
            torch.device(model_runner.device),
            lambda: _start(model_runner, settings, replica, workers),
            _log,
            replica=replica,
        )
        model_runner._sparsecast_follower = follower
    return follower


def _start(
    runner: ModelRunner, settings: FollowSettings, replica: int, workers: int
) -> tuple[LogReceiver, list[Recomputation]]:
    _refuse_what_cannot_follow(workers)
    log = log_of_worker(settings.for_worker(), replica)
    lock_state(log)
    model, config = runner.model, runner.model_config
    may_miss = scales_of_caches(model)

    def trace(modes: Any) -> Traced:
        traced, recomputation, _ = trace_and_verify(model, config, TraceRequest(may_miss=may_miss, modes=modes))
        return traced, [recomputation]

    traced, recomputations = trace_for_log(trace, whole=True)
    receiver = receiver_of(
        log,
        traced,
        recomputations,
        lambda: checkpoint_tensors(model, config),
        interval=settings.interval,
        guard=guard_of([model], (tensor.memory for tensor in traced.tensors), "start the server again"),
    )
    return receiver, recomputations


def _refuse_what_cannot_follow(workers: int) -> None:
    """Raises UnsupportedError for servers whose schedulers cannot follow a log each by itself."""
    from sglang.srt.runtime_context import get_exec

    if workers != 1:
        raise UnsupportedError(
            f"the engine has {workers} workers, and a log is followed by engines of one: start SGLang without --tp-size "
            "and --pp-size, or send the weights from a trainer (docs/engines-sglang.md)"
        )
    if get_exec().features.enable_memory_saver:
        raise UnsupportedError(
            "--enable-memory-saver: a server that releases the memory of its weights takes it from the follower, which "
            "writes there; start SGLang without it"
        )

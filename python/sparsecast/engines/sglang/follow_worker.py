# SPDX-License-Identifier: Apache-2.0
"""What a SGLang scheduler does to follow a delta log.

    SPARSECAST_FOLLOW=s3://bucket/run python -m sglang.launch_server --model-path MODEL

The HTTP process leads (`led_engine`): its messages come between two passes of the scheduler's loop, and a version that
is staged is written then.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from sglang.srt.runtime_context import get_exec, get_parallel

from sparsecast.engines.follow_settings import FollowSettings, log_of_worker
from sparsecast.engines.sglang.messages import TraceRequest
from sparsecast.engines.sglang.weights import checkpoint_tensors, scales_of_caches, trace_and_verify
from sparsecast.engines.worker_follower import FollowedModel, Traced, WorkerFollower, trace_for_log
from sparsecast.errors import UnsupportedError, UsageError
from sparsecast.torch.layouts import gather_bytes
from sparsecast.torch.owners import guard_of

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner
    from torch.distributed import ProcessGroup

_MOST_STATUS_BYTES = 1 << 20
_log = logging.getLogger("sparsecast")


def follower_of(model_runner: ModelRunner) -> WorkerFollower | None:
    """Returns the follower of this scheduler, which is kept in the model runner; None before `follow` was called."""
    follower: WorkerFollower | None = getattr(model_runner, "_sparsecast_follower", None)
    return follower


def follow(
    model_runner: ModelRunner,
    settings: FollowSettings | None,
    replica: int,
    group: ProcessGroup,
    goal: int | None = None,
) -> WorkerFollower:
    """Begins to follow a log, once, up to version `goal` (None: the newest); returns the follower. `replica` is the
    index of this data-parallel replica, `group` the ranks that hold its model together; collective over it. Raises
    UsageError without settings.
    """
    follower = follower_of(model_runner)
    if follower is None:
        if settings is None:
            raise UsageError("SPARSECAST_FOLLOW is not in the environment of this scheduler")
        follower = WorkerFollower(
            settings.location,
            torch.device(model_runner.device),
            lambda: _start(model_runner, settings, replica, group),
            _log,
            replica=replica,
            rank=dist.get_rank(group),
            goal=goal,
        )
        model_runner._sparsecast_follower = follower
    return follower


def statuses(follower: WorkerFollower, group: ProcessGroup) -> list[dict[str, Any]]:
    """Returns the status of each rank's follower; collective. Rank 0 alone answers SGLang's messages, for all of them."""
    own = json.dumps(follower.status()).encode()
    return [json.loads(each) for each in gather_bytes(own, group, _MOST_STATUS_BYTES, "the status of a follower")]


def _start(runner: ModelRunner, settings: FollowSettings, replica: int, group: ProcessGroup) -> FollowedModel:
    log = log_of_worker(settings.for_worker(), replica)
    model, config = runner.model, runner.model_config

    def trace(modes: Any) -> Traced:
        request = TraceRequest(may_miss=scales_of_caches(model), modes=modes)
        traced, recomputation, _ = trace_and_verify(model, config, request)
        return traced, [recomputation]

    traced, recomputations = trace_for_log(log, group, _refuse_what_cannot_follow, trace)
    return FollowedModel(
        log,
        [model],
        traced,
        recomputations,
        lambda: checkpoint_tensors(model, config),
        interval=settings.interval,
        guard=guard_of([model], (tensor.memory for tensor in traced.tensors), "start the server again"),
        group=group,
    )


def _refuse_what_cannot_follow() -> None:
    """Raises UnsupportedError for servers that cannot follow a log."""
    if get_exec().features.enable_memory_saver and get_parallel().pp_size > 1:
        raise UnsupportedError(
            "--enable-memory-saver with --pp-size: the stages do not release their memory together, and the follower "
            "reads and writes that of all of them; start SGLang without one of the two"
        )

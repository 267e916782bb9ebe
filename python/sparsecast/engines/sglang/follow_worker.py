# SPDX-License-Identifier: Apache-2.0
"""What a SGLang scheduler does to follow a delta log.

    SPARSECAST_FOLLOW=s3://bucket/run python -m sglang.launch_server --model-path MODEL

The HTTP process leads (`led_engine`): its messages come between two passes of the scheduler's loop, and a version that
is staged is written then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from sparsecast.engines.draft import KEEP, without_draft
from sparsecast.engines.follow_settings import log_of_worker
from sparsecast.engines.follow_table import followed_table
from sparsecast.engines.sglang.draft import Drafts
from sparsecast.engines.sglang.installed import check_version, say_what_is_missing
from sparsecast.engines.sglang.messages import TraceRequest
from sparsecast.engines.sglang.weights import (
    checkpoint_table,
    checkpoint_tensors,
    scales_of_caches,
    trace_and_verify,
    trace_weights,
)
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
    settings: Mapping[str, Any] | None,
    replica: int,
    group: ProcessGroup,
    goal: int | None = None,
    draft_worker: Any = None,
) -> WorkerFollower:
    """Begins to follow the log of `settings` (`FollowSettings.for_worker`) unless this scheduler follows one, up to
    version `goal` (None: the newest). Returns the follower; without `settings`, the one that there is. `replica` is the
    index of this data-parallel replica, `group` the ranks that hold its model together; collective over it.
    `draft_worker` is the scheduler's worker of draft models, if it has one. Raises UsageError if there is no follower.
    """
    follower = follower_of(model_runner)
    if settings is None and follower is None:
        raise UsageError("this scheduler follows no log")
    if settings is not None and (follower is None or not follower.follows):
        follower = WorkerFollower(
            settings["location"],
            torch.device(model_runner.device),
            lambda: _start(model_runner, settings, replica, group, draft_worker),
            _log,
            replica=replica,
            rank=dist.get_rank(group),
            goal=goal,
        )
        model_runner._sparsecast_follower = follower
    assert follower is not None
    return follower


def statuses(follower: WorkerFollower, group: ProcessGroup) -> list[dict[str, Any]]:
    """Returns the status of each rank's follower; collective. Rank 0 alone answers SGLang's messages, for all of them."""
    own = json.dumps(follower.status()).encode()
    return [json.loads(each) for each in gather_bytes(own, group, _MOST_STATUS_BYTES, "the status of a follower")]


def _start(
    runner: ModelRunner, settings: Mapping[str, Any], replica: int, group: ProcessGroup, draft_worker: Any
) -> FollowedModel:
    log = log_of_worker(settings, replica)
    model, config = runner.model, runner.model_config

    drafts = Drafts(draft_worker, runner, prefix=settings["draft_prefix"], follow=settings["draft"] == "follow")
    may_miss = scales_of_caches(model)

    def files() -> Iterator[tuple[str, torch.Tensor]]:
        yield from checkpoint_tensors(model, config)
        yield from drafts.files()

    table = followed_table(
        log,
        group,
        lambda: checkpoint_table(model, config),
        drafts.table,
        lambda table: trace_weights(model, config, TraceRequest(tensors=tuple(table), may_miss=may_miss))[0].unused,
    )

    def trace(modes: Mapping[str, str]) -> Traced:
        of_target = tuple(without_draft(table, settings["draft_prefix"]))
        request = TraceRequest(tensors=of_target, may_miss=may_miss, modes=modes)
        traced, recomputation, _ = trace_and_verify(model, config, request)
        traced, of_drafts = drafts.add_to(traced, table, modes)
        wrong = traced.differences(traced.filling(files())) if of_drafts else {}
        if wrong:
            name = next(iter(wrong))
            raise UnsupportedError(f"{name!r} is not in the memory of the draft model as in its files; {KEEP}")
        return traced, [recomputation, *of_drafts]

    traced, recomputations = trace_for_log(log, group, lambda: _refuse_what_cannot_follow(runner), trace)
    return FollowedModel(
        log,
        [model, *drafts.models],
        traced,
        recomputations,
        files,
        interval=settings["interval"],
        guard=guard_of([model, *drafts.models], (tensor.memory for tensor in traced.tensors), "start the server again"),
        group=group,
    )


def _refuse_what_cannot_follow(runner: ModelRunner) -> None:
    """Raises UnsupportedError for servers that cannot follow a log, and UsageError for one that a trainer updates."""
    from sparsecast.engines.sglang.releases import get_exec

    check_version()
    say_what_is_missing()
    if getattr(runner, "_sparsecast_end", None) is not None:
        raise UsageError(
            "a server takes its weights from a log or from a trainer, not from both, and a trainer has joined"
        )
    if get_exec().features.enable_memory_saver and _stages() > 1:
        raise UnsupportedError(
            "--enable-memory-saver with --pp-size: the stages do not release their memory together, and the follower "
            "reads and writes that of all of them; start SGLang without one of the two"
        )


def _stages() -> int:
    """Returns the number of pipeline stages of this server."""
    from sparsecast.engines.sglang.releases import get_parallel

    return int(get_parallel().pp_size)

# SPDX-License-Identifier: Apache-2.0
"""What a vLLM worker does to follow a delta log; the general plug-in gives vLLM's workers these four methods.

`sparsecast_follow` traces the loader of the model, as a join to a trainer does, and starts a `LogReceiver`. A version
that it has staged is written in `sparsecast_follow_apply`, which vLLM calls between two steps of the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparsecast.engines.worker_follower import FollowedModel, WorkerFollower, trace_for_log
from sparsecast.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

    from sparsecast.engines.trace.loader import CanonicalTensor
    from sparsecast.engines.vllm.engine import SparsecastWeightTransferEngine

METHODS = ("sparsecast_follow", "sparsecast_follow_status", "sparsecast_follow_apply", "sparsecast_follow_drop")

_ATTRIBUTE = "_sparsecast_follower"
_log = logging.getLogger("vllm.sparsecast")


def sparsecast_follow(self: Any, settings: dict[str, Any], goal: int | None = None) -> dict[str, Any]:
    """Makes this worker follow the log of `settings` (`FollowSettings.for_worker`), unless it follows one, up to version
    `goal` (None: the newest). Returns the status; if the worker cannot follow, its state is "broken", with the reason.
    """
    known: WorkerFollower | None = getattr(self, _ATTRIBUTE, None)
    if known is None or not known.follows:
        follower = _follower(self, settings, goal)
        setattr(self, _ATTRIBUTE, follower)
        if follower.follows:
            _sleep_with(self, follower)
            if (engine := _transfer_engine(self)) is not None:
                engine.followed = settings["location"]
    return sparsecast_follow_status(self, goal)


def sparsecast_follow_status(self: Any, goal: int | None = None) -> dict[str, Any]:
    """Sets the version beyond which this worker's follower fetches nothing (None: the newest), and returns the
    follower's status: its place in the log (`LogReceiver.status`), and how its tensors are updated.
    """
    follower: WorkerFollower = getattr(self, _ATTRIBUTE)
    follower.aim(goal)
    return follower.status()


def sparsecast_follow_drop(self: Any, replicas: list[int]) -> dict[str, Any]:
    """Drops the staged version if this worker belongs to one of `replicas`, whose workers have all staged it. Returns
    the status.
    """
    follower: WorkerFollower = getattr(self, _ATTRIBUTE)
    if follower.replica in replicas:
        follower.drop()
    return follower.status()


def sparsecast_follow_apply(self: Any, replicas: list[int]) -> dict[str, Any]:
    """Writes the staged version if this worker belongs to one of `replicas`, whose workers have all staged it. Returns
    the status, also after a failure.
    """
    follower: WorkerFollower = getattr(self, _ATTRIBUTE)
    if follower.replica in replicas:
        follower.apply()
    return follower.status()


def _follower(worker: Any, settings: dict[str, Any], goal: int | None) -> WorkerFollower:
    """Returns the follower of this worker, which begins to follow the log. Collective over the workers of an engine:
    either all of them follow, or none.
    """
    from vllm.distributed.parallel_state import get_world_group

    group = get_world_group()
    parallel = worker.vllm_config.parallel_config
    # With expert parallelism the replicas are one engine, whose group has the workers of all of them.
    apart = group.world_size == parallel.world_size
    replica = int(parallel.data_parallel_index) if apart else 0

    def start() -> FollowedModel:
        return _start(worker, settings, replica, group)

    return WorkerFollower(
        settings["location"], worker.device, start, _log, replica=replica, rank=group.rank_in_group, goal=goal
    )


def _sleep_with(worker: Any, follower: WorkerFollower) -> None:
    """Makes `follower` sleep and wake with the worker. The methods are those that vLLM's executor calls by name on all
    workers of an engine, while nothing runs; `wake_up` returns before vLLM generates again.
    """
    sleep, wake_up = worker.sleep, worker.wake_up

    def fall_asleep(level: int = 1) -> None:
        follower.sleep(loses_weights=level >= 2)
        sleep(level)

    def wake(tags: list[str] | None = None) -> None:
        wake_up(tags)
        if tags is None or "weights" in tags:
            follower.wake()

    worker.sleep, worker.wake_up = fall_asleep, wake


def _start(worker: Any, settings: dict[str, Any], replica: int, group: Any) -> FollowedModel:
    from sparsecast.buffers import dtype_name
    from sparsecast.engines.follow_settings import log_of_worker
    from sparsecast.engines.follow_table import followed_table
    from sparsecast.engines.vllm.draft import draft_with_files
    from sparsecast.engines.vllm.live_model import LiveModel, TraceRequest, draft_model
    from sparsecast.engines.vllm.model import checkpoint_tensors

    config = worker.vllm_config
    log = log_of_worker(settings, replica)
    live = LiveModel(config, worker.get_model())
    live.find_draft = lambda: draft_model(worker)

    prefix, follows = settings.get("draft_prefix", ""), settings.get("draft", "follow") == "follow"

    def target_files() -> Iterator[tuple[str, torch.Tensor]]:
        return checkpoint_tensors(config, config.model_config, live.model)

    def draft_files() -> Iterator[tuple[str, torch.Tensor]]:
        draft = draft_with_files(config.speculative_config, config.model_config, draft_model(worker), prefix)
        return draft.checkpoint(config) if draft is not None else iter(())

    def files() -> Iterator[tuple[str, torch.Tensor]]:
        yield from target_files()
        yield from draft_files()

    def table_of(tensors: Iterator[tuple[str, torch.Tensor]]) -> list[CanonicalTensor]:
        return [(name, dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors]

    table = followed_table(
        log,
        group.cpu_group,
        lambda: table_of(target_files()),
        lambda: table_of(draft_files()),
        lambda table: live.trace(TraceRequest(table, follow_draft=False), verify=False)[0].unused,
    )
    traced, recomputations = trace_for_log(
        log,
        group.cpu_group,
        lambda: _refuse_what_cannot_follow(worker),
        lambda modes: live.trace(
            TraceRequest(table, modes=modes, follow_draft=follows, draft_prefix=prefix), verify=True
        ),
    )
    return FollowedModel(
        log,
        [model for model in (live.model, draft_model(worker)) if model is not None],
        traced,
        recomputations,
        files,
        interval=settings["interval"],
        guard=live.guard(traced, "start the server again"),
        group=group.cpu_group,
    )


def _transfer_engine(worker: Any) -> SparsecastWeightTransferEngine | None:
    """Returns the worker's weight-transfer engine of this library; None if it has none, or another."""
    engine = getattr(worker, "weight_transfer_engine", None)
    if engine is None:
        return None
    from sparsecast.engines.vllm.engine import SparsecastWeightTransferEngine

    return engine if isinstance(engine, SparsecastWeightTransferEngine) else None


def _refuse_what_cannot_follow(worker: Any) -> None:
    """Raises UnsupportedError if vLLM's version or the server's options exclude following a log: weights from a
    trainer, or moving experts.
    """
    from sparsecast.engines.vllm.model import refuse_moving_experts
    from sparsecast.engines.vllm.plugin import check_version

    check_version()
    config, engine = worker.vllm_config, _transfer_engine(worker)
    if config.weight_transfer_config is not None and (engine is None or engine.receiver is not None):
        raise UnsupportedError(
            "--weight-transfer-config: a server takes its weights from a log or from a trainer, not from both; start vLLM "
            "without it, or without SPARSECAST_FOLLOW"
        )
    refuse_moving_experts(config.parallel_config)

# SPDX-License-Identifier: Apache-2.0
"""What a vLLM worker does to follow a delta log; the general plug-in gives vLLM's workers these three methods.

`sparsecast_follow` traces the loader of the model, as a join to a trainer does, and starts a `LogReceiver`. A version
that it has staged is written in `sparsecast_follow_apply`, which vLLM calls between two steps of the engine.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from sparsecast.engines.worker_follower import WorkerFollower, lock_state, receiver_of, trace_for_log
from sparsecast.errors import UnsupportedError

if TYPE_CHECKING:
    from sparsecast.engines.log_receiver import LogReceiver
    from sparsecast.engines.refresh.recompute import Recomputation
    from sparsecast.engines.trace.loader import TracedLoader
    from sparsecast.engines.vllm.live_model import LiveModel

METHODS = ("sparsecast_follow", "sparsecast_follow_status", "sparsecast_follow_apply")

_ATTRIBUTE = "_sparsecast_follower"
_log = logging.getLogger("vllm.sparsecast")


def sparsecast_follow(self: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Makes this worker follow the log of `settings` (`FollowSettings.for_worker`), at the first call. Returns the
    status; if the worker cannot follow, its state is "broken", with the reason.
    """
    if getattr(self, _ATTRIBUTE, None) is None:
        setattr(self, _ATTRIBUTE, _follower(self, settings))
    return sparsecast_follow_status(self)


def sparsecast_follow_status(self: Any) -> dict[str, Any]:
    """Returns the status of this worker's follower: its place in the log (`LogReceiver.status`), and how its tensors
    are updated.
    """
    follower: WorkerFollower = getattr(self, _ATTRIBUTE)
    return follower.status()


def sparsecast_follow_apply(self: Any, replicas: list[int]) -> dict[str, Any]:
    """Writes the staged version if this worker belongs to one of `replicas`, whose workers have all staged it. Returns
    the status, also after a failure.
    """
    follower: WorkerFollower = getattr(self, _ATTRIBUTE)
    if follower.replica in replicas:
        follower.apply()
    return follower.status()


def _follower(worker: Any, settings: dict[str, Any]) -> WorkerFollower:
    """Returns the follower of this worker, which begins to follow the log. Collective over the workers of an engine:
    either all of them follow, or none.
    """
    from vllm.distributed.parallel_state import get_world_group

    group = get_world_group()
    parallel = worker.vllm_config.parallel_config
    # With expert parallelism the replicas are one engine, whose group has the workers of all of them.
    apart = group.world_size == parallel.world_size
    replica = int(parallel.data_parallel_index) if apart else 0

    def start() -> tuple[LogReceiver, list[Recomputation]]:
        return _start(worker, settings, replica, group)

    return WorkerFollower(settings["location"], worker.device, start, _log, replica=replica, rank=group.rank_in_group)


def _start(worker: Any, settings: dict[str, Any], replica: int, group: Any) -> tuple[LogReceiver, list[Recomputation]]:
    from sparsecast.engines.agreement import raise_if_any_failed
    from sparsecast.engines.follow_settings import log_of_worker
    from sparsecast.engines.vllm.live_model import LiveModel, draft_model
    from sparsecast.engines.vllm.model import checkpoint_tensors
    from sparsecast.engines.vllm.plugin import check_version

    config = worker.vllm_config
    log = log_of_worker(settings, replica)
    failure: BaseException | None = None
    try:
        check_version()
        _refuse_what_cannot_follow(config)
        if group.rank_in_group == 0:
            lock_state(log)
        live = LiveModel(config, worker.get_model())
        live.find_draft = lambda: draft_model(worker)
        traced, recomputations = _trace(live, whole=group.world_size == 1)
    except BaseException as error:  # Told to the other workers, and raised on all of them.
        failure = error
    raise_if_any_failed(failure, group.cpu_group)
    receiver = receiver_of(
        log,
        traced,
        recomputations,
        lambda: checkpoint_tensors(config, config.model_config, live.model),
        interval=settings["interval"],
        guard=live.guard(traced, "start the server again"),
        group=group.cpu_group if group.world_size > 1 else None,
    )
    return receiver, recomputations


def _refuse_what_cannot_follow(config: Any) -> None:
    """Raises UnsupportedError if the server's options exclude following a log: weights from a trainer, moving experts,
    or sleep mode.
    """
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
    """Returns the address map and the recomputations for the tensors in the files from which vLLM was started; the log
    must have the same tensors. With `whole`, every tensor must lie in one piece, or is kept whole in a copy outside the
    model.
    """
    from sparsecast.buffers import dtype_name
    from sparsecast.engines.vllm.live_model import TraceRequest
    from sparsecast.engines.vllm.model import checkpoint_tensors, refuse_new_ties

    files = checkpoint_tensors(live.vllm_config, live.vllm_config.model_config, live.model)
    table = [(name, dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in files]
    traced, recomputations = trace_for_log(
        lambda modes: live.trace(TraceRequest(table, modes=modes), verify=True), whole=whole
    )
    refuse_new_ties(traced, ())
    return traced, recomputations

# SPDX-License-Identifier: Apache-2.0
"""The entry point of SGLang's plug-in group `sglang.srt.plugins`: hooks sparsecast into SGLang's control messages.

SGLang calls `register` in each of its processes; nothing has to be set. Messages that are not for sparsecast (another
backend, action or group) go where they went before.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparsecast.engines.follow_settings import VARIABLE
from sparsecast.engines.request_versions import is_wanted
from sparsecast.engines.sglang import messages, server, stages
from sparsecast.engines.sglang.installed import Hook, defines, existing
from sparsecast.errors import DirtyError, Error, UsageError

if TYPE_CHECKING:
    from sparsecast.engines.sglang.engine import SglangEnd

_SERVER = "sglang.srt.entrypoints.http_server"
_log = logging.getLogger("sparsecast")
_ADAPTERS = f"{VARIABLE}_ADAPTERS"


def hooks() -> list[Hook]:
    """Returns the hooks of both processes, the scheduler and the HTTP server, for the installed SGLang."""
    managers = "sglang.srt.managers"
    scheduler = f"{managers}.scheduler.Scheduler"

    def has(name: str) -> bool:
        return defines(f"{managers}.scheduler", name)

    def of_weights(name: str) -> str:
        parts = f"{managers}.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
        return existing(
            f"{parts}.{name}", f"{managers}.scheduler_update_weights_mixin.SchedulerUpdateWeightsMixin.{name}"
        )

    def of_tokenizer(name: str) -> str:
        mixin = f"{managers}.tokenizer_control_mixin.TokenizerControlMixin"
        return existing(f"{mixin}.{name}", f"{managers}.tokenizer_communicator_mixin.TokenizerCommunicatorMixin.{name}")

    state = f"{managers}.scheduler_components.internal_state.SchedulerInternalStateController.get_internal_state"
    return [
        Hook(of_weights("init_weights_update_group"), init_group),
        Hook(of_weights("destroy_weights_update_group"), destroy_group),
        Hook(of_weights("check_weights"), check_weights),
        Hook(of_weights("release_memory_occupation"), release_memory),
        Hook(of_weights("resume_memory_occupation"), resume_memory),
        *[Hook(f"{scheduler}.{name}", stages.between_passes) for name in stages.PASSES if has(name)][:1],
        Hook(f"{scheduler}.get_next_batch_to_run", stages.next_batch),
        *(
            [Hook(f"{scheduler}._pp_microbatches_drained", stages.is_drained)]
            if has("_pp_microbatches_drained")
            else []
        ),
        *([] if has(r"is_fully_idle\(.*ignore_waiting") else [Hook(f"{scheduler}.is_fully_idle", stages.is_idle)]),
        Hook(of_tokenizer("init_weights_update_group"), server.init_group),
        Hook(of_tokenizer("destroy_weights_update_group"), server.destroy_group),
        Hook(of_tokenizer("check_weights"), server.check_weights),
        Hook(existing(state, f"{scheduler}.get_internal_state"), add_status, "after"),
        *([Hook(f"{_SERVER}.set_global_state", server.add_request_versions, "after")] if is_wanted() else []),
        Hook(f"{_SERVER}.set_global_state", lead, "after"),
        *([Hook(f"{_SERVER}.set_global_state", follow_adapters, "after")] if os.environ.get(_ADAPTERS) else []),
    ]


def register() -> None:
    """Registers the hooks with SGLang's HookRegistry, which applies them. May be called more than once."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook, kind in hooks():
        if all(hook is not known for _, known, _ in HookRegistry._hooks.get(target, ())):
            HookRegistry.register(target, hook, HookType(kind))


def end_of(model_runner: Any, cpu_group: Any = None) -> SglangEnd | None:
    """Returns the receiver of this rank, which is kept in the model runner. If there is none yet, makes one over
    `cpu_group`; returns None if there is none and `cpu_group` is None.
    """
    from sparsecast.engines.sglang.engine import SglangEnd

    end: SglangEnd | None = getattr(model_runner, "_sparsecast_end", None)
    if end is None and cpu_group is not None:
        end = SglangEnd(model_runner, cpu_group)
        model_runner._sparsecast_end = end
    return end


# -- in the scheduler's process ----------------------------------------------------------------------------------


def init_group(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Handles `/init_weights_update_group` with backend "sparsecast" in the scheduler: this rank joins a group. Hands
    requests for other backends to `original`.
    """
    if request.backend != messages.BACKEND:
        return original(manager, request)
    from sglang.srt.managers.io_struct import InitWeightsUpdateGroupReqOutput

    from sparsecast.engines.sglang.follow_worker import follower_of

    def join() -> str:
        follower = follower_of(manager.tp_worker.model_runner)
        if os.environ.get(VARIABLE) or (follower is not None and follower.follows):
            raise UsageError(
                "a server takes its weights from a log or from a trainer, not from both, and this one follows a log "
                f"until it ends; start SGLang without {VARIABLE}, or leave it to the log"
            )
        info = messages.parse_group(request.group_name)
        offset = request.rank_offset
        replica, replicas, ranks = _replica(manager)
        if replicas > 1:
            info = dataclasses.replace(info, engine=f"{info.engine}/{replica}")
            offset += replica * ranks
        version = _own_end(manager).join(request.master_address, request.master_port, offset, request.world_size, info)
        _stamp(manager, version)
        return f"joined as engine {info.engine!r}, on version {version}"

    return _answer(manager, InitWeightsUpdateGroupReqOutput, join)


def destroy_group(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Handles `/destroy_weights_update_group` for group "sparsecast" in the scheduler: this rank leaves its group.
    Hands requests for other groups to `original`.
    """
    if not messages.is_ours(request.group_name):
        return original(manager, request)
    from sglang.srt.managers.io_struct import DestroyWeightsUpdateGroupReqOutput

    def leave() -> str:
        end = end_of(manager.tp_worker.model_runner)
        if end is None:
            return "there was no group"
        end.leave(server.LEAVE_SECONDS)
        return "left the group"

    return _answer(manager, DestroyWeightsUpdateGroupReqOutput, leave)


def check_weights(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Handles `/weights_checker` with an action "sparsecast:{...}" in the scheduler: does the step of an update, or of
    following a log, that the action names. Hands requests with other actions to `original`.
    """
    if not messages.is_ours(request.action):
        return original(manager, request)
    from sglang.srt.managers.io_struct import CheckWeightsReqOutput

    name = _phase_name(request.action)
    if name == "result":
        success, message = stages.result(_scheduler_of(manager))
        return CheckWeightsReqOutput(success=success, message=message)
    if name in messages.FOLLOW_PHASES:
        return _answer(
            manager, CheckWeightsReqOutput, lambda: _run_follow_phase(manager, messages.parse_phase(request.action))
        )
    return _answer(manager, CheckWeightsReqOutput, lambda: _run_phase(manager, messages.parse_phase(request.action)))


def release_memory(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Handles `/release_memory_occupation` in the scheduler: a follower of a log stops before the memory of the weights
    is released. Without --enable-memory-saver SGLang releases nothing.
    """
    from sparsecast.engines.sglang.follow_worker import follower_of
    from sparsecast.engines.sglang.releases import get_exec

    follower, features = follower_of(manager.tp_worker.model_runner), get_exec().features
    if follower is not None and features.enable_memory_saver and _names_weights(request):
        follower.sleep(loses_weights=not features.enable_weights_cpu_backup)
    return original(manager, request)


def resume_memory(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Handles `/resume_memory_occupation` in the scheduler: a follower of a log brings lost weights back before the
    answer. If it cannot, generation stays paused until it can.
    """
    from sparsecast.engines.sglang.follow_worker import follower_of, statuses

    answer = original(manager, request)
    follower = follower_of(manager.tp_worker.model_runner)
    if follower is not None and follower.is_asleep and _names_weights(request):
        try:
            follower.wake()
            version = statuses(follower, _group_of(manager))[0]["version"]
            if version is not None:
                _stamp(manager, version)
        except Error as error:
            _log.error("sparsecast: %s", error)
            _stop_generation(manager)
    return answer


def _names_weights(request: Any) -> bool:
    """Returns whether a message about memory means the weights: it names them, or nothing in particular."""
    return not request.tags or "weights" in request.tags


def _phase_name(action: str) -> str:
    try:
        return messages.parse_phase(action).phase
    except Error:
        return ""  # The answer to the message says what is wrong.


def _scheduler_of(manager: Any) -> Any:
    """Returns the scheduler; in older releases the manager of its weights is the scheduler itself."""
    return getattr(manager, "scheduler", manager)


def _replica(manager: Any) -> tuple[int, int, int]:
    """Returns the index of this data-parallel replica, the number of replicas, and the number of ranks in each."""
    from sparsecast.engines.sglang.releases import get_parallel

    parallel = get_parallel()
    replica = parallel.dp_rank if hasattr(parallel, "dp_rank") else _scheduler_of(manager).dp_rank
    return replica if replica and parallel.dp_size > 1 else 0, parallel.dp_size, parallel.tp_size * parallel.pp_size


def _group_of(manager: Any) -> Any:
    """Returns the CPU group of all ranks that hold the model together."""
    from sglang.srt.distributed.parallel_state import get_world_group

    from sparsecast.engines.sglang.releases import get_parallel

    return get_world_group().cpu_group if get_parallel().pp_size > 1 else manager.tp_cpu_group


def _own_end(manager: Any) -> SglangEnd:
    """Returns the receiver of this rank."""
    end = end_of(manager.tp_worker.model_runner, _group_of(manager))
    assert end is not None
    return end


def _run_phase(manager: Any, phase: messages.Phase) -> str:
    end = _own_end(manager)
    if phase.phase == "receive":
        end.receive(phase.timeout, phase.base_version)
        return messages.RECEIVING
    if phase.phase == "staged":
        return messages.STAGED if end.staged() else messages.RECEIVING
    if phase.phase == "apply":
        return _apply(manager, end, phase.timeout)
    if phase.phase == "held":
        return json.dumps(end.held())
    if phase.phase == "expire":
        result = end.expire(phase.committed)
        if result["is_whole"]:
            _stamp(manager, result["version"])
        return json.dumps(result)
    if phase.phase == "cancel":
        end.cancel("the update was cancelled", phase.timeout)
    elif phase.phase == "audit":
        end.audit()
    return json.dumps(end.status())


def _run_follow_phase(manager: Any, phase: messages.Phase) -> str:
    from sparsecast.engines.sglang.follow_worker import follow, statuses

    group = _group_of(manager)
    runner, drafts = manager.tp_worker.model_runner, manager.draft_worker
    follower = follow(runner, phase.settings, _replica(manager)[0], group, phase.goal, drafts)
    is_meant = follower.replica in phase.replicas
    if phase.phase == "follow_apply" and is_meant:
        follower.apply(0.0)
    elif phase.phase == "follow_drop" and is_meant:
        follower.drop()
    elif phase.phase == "follow_status":
        follower.aim(phase.goal)
    workers = statuses(follower, group)
    version = workers[0]["version"]  # Which rank 0 knows.
    if not all(worker["is_whole"] for worker in workers):
        _stop_generation(manager)
    elif phase.phase == "follow_apply" and is_meant and version is not None:
        _stamp(manager, version)
    return json.dumps(workers)


def _apply(manager: Any, end: SglangEnd, timeout: float) -> str:
    try:
        receipt = end.apply(timeout)
    except DirtyError:
        _stop_generation(manager)
        raise
    _stamp(manager, receipt.version)
    return json.dumps(dataclasses.asdict(receipt))


def _stamp(manager: Any, version: int) -> None:
    """Makes the scheduler mark everything that it generates from now on with this version
    (`meta_info.weight_versions`).
    """
    if hasattr(manager, "record_weight_version_after_update"):  # Else SGLang stamps nothing.
        manager.record_weight_version_after_update(str(version))


def _stop_generation(manager: Any) -> None:
    """Pauses generation, because half-written weights must not be read. It stays paused until a join has repaired the
    weights and the caller resumes.
    """
    from sglang.srt.managers.io_struct import PauseGenerationReqInput

    _scheduler_of(manager).pause_generation(PauseGenerationReqInput(mode="in_place"))


def _answer(manager: Any, output: Callable[..., Any], work: Callable[[], str]) -> Any:
    """Does the work, and returns an `output` message that says whether it succeeded and has the text of its answer. In
    an engine of several pipeline stages the work is put aside until no batch is on its way in any stage
    (`stages.put_aside`), and the message only says so.
    """
    from sparsecast.engines.sglang.releases import get_parallel

    if get_parallel().pp_size > 1:
        success, message = stages.put_aside(_scheduler_of(manager), lambda: _outcome(work), get_parallel().pp_size)
    else:
        success, message = _outcome(work)
    return output(success=success, message=message)


def _outcome(work: Callable[[], str]) -> tuple[bool, str]:
    """Does the work. Returns (True, the text that it returned), or (False, the error with its code in square brackets).
    Raises nothing, because an exception would end SGLang's scheduler.
    """
    try:
        return True, work()
    except Error as error:
        return False, f"{error} [{error.code}]"
    except Exception as error:
        return False, f"{type(error).__name__}: {error} [internal]"


def add_status(result: Any, controller: Any, request: Any) -> Any:
    """Hook after SGLang's `get_internal_state`: adds the status of this rank's receiver, or of its follower of a log,
    under "sparsecast" to `internal_states` of `/server_info`.
    """
    from sparsecast.engines.sglang.follow_worker import follower_of

    runner = _scheduler_of(controller).tp_worker.model_runner
    known = follower_of(runner) or end_of(runner)
    result.internal_state["sparsecast"] = {"state": "not joined"} if known is None else known.status()
    return result


# -- in the process of the HTTP server ---------------------------------------------------------------------------


def lead(result: Any, state: Any) -> Any:
    """Hook after the function that gives SGLang's HTTP server its tokenizer manager: starts to lead the server through
    the versions of a log, if its environment names one. Returns `result`, the result of the hooked function.
    """
    from sparsecast.engines.sglang.led_engine import lead_server

    lead_server(state.tokenizer_manager)
    return result


def follow_adapters(result: Any, state: Any) -> Any:
    """Hook after the function that gives SGLang's HTTP server its tokenizer manager: starts to follow the logs of
    adapters that the environment names. Returns `result`, the result of the hooked function.
    """
    from sparsecast.adapters.following import AdapterSettings
    from sparsecast.engines.sglang import adapters
    from sparsecast.engines.sglang.releases import get_serving

    settings = AdapterSettings.from_environment(os.environ, f"{get_serving().host}-{get_serving().port}")
    if settings is not None:
        adapters.follow_adapters(state.tokenizer_manager, settings)
    return result

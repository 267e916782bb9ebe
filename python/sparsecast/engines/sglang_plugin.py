# SPDX-License-Identifier: Apache-2.0
"""The entry point of SGLang's plug-in group `sglang.srt.plugins`: hooks sparsecast into SGLang's control messages.

SGLang calls `register` in each of its processes; nothing has to be set. Messages that are not for sparsecast (another
backend, action or group) go where they went before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from sparsecast.engines import _sglang_messages as messages
from sparsecast.engines._lease import PauseLease
from sparsecast.engines.request_versions import RequestVersions, is_wanted
from sparsecast.errors import DirtyError, Error

if TYPE_CHECKING:
    from sparsecast.engines.sglang import SglangEnd

_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_TOKENIZER = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
_STATE = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"
_SERVER = "sglang.srt.entrypoints.http_server"
_LEAVE_SECONDS = 30.0
_POLL_SECONDS = (0.005, 0.1)  # First and longest pause between two questions whether a version is staged.
RECEIVING = "receiving"
STAGED = "staged"


def register() -> None:
    """Registers the hooks with SGLang's HookRegistry, which applies them. May be called more than once."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook, kind in (
        (f"{_MANAGER}.init_weights_update_group", init_group, HookType.AROUND),
        (f"{_MANAGER}.destroy_weights_update_group", destroy_group, HookType.AROUND),
        (f"{_MANAGER}.check_weights", check_weights, HookType.AROUND),
        (f"{_TOKENIZER}.check_weights", wait_staged, HookType.AROUND),
        (f"{_STATE}.get_internal_state", add_status, HookType.AFTER),
        *([(f"{_SERVER}.set_global_state", add_request_versions, HookType.AFTER)] if is_wanted() else []),
    ):
        if all(hook is not known for _, known, _ in HookRegistry._hooks.get(target, ())):
            HookRegistry.register(target, hook, kind)


def end_of(model_runner: Any, cpu_group: Any = None) -> SglangEnd | None:
    """Returns the receiver of this rank, kept beside the model runner; makes one if there is none and `cpu_group` is
    given.
    """
    from sparsecast.engines.sglang import SglangEnd

    end: SglangEnd | None = getattr(model_runner, "_sparsecast_end", None)
    if end is None and cpu_group is not None:
        end = SglangEnd(model_runner, cpu_group)
        model_runner._sparsecast_end = end
    return end


# -- in the scheduler's process ----------------------------------------------------------------------------------


def init_group(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Handles `/init_weights_update_group` with backend "sparsecast": joins a group."""
    if request.backend != messages.BACKEND:
        return original(manager, request)
    from sglang.srt.managers.io_struct import InitWeightsUpdateGroupReqOutput

    def join() -> str:
        info = messages.parse_group(request.group_name)
        end = end_of(manager.tp_worker.model_runner, manager.tp_cpu_group)
        assert end is not None
        version = end.join(request.master_address, request.master_port, request.rank_offset, request.world_size, info)
        _stamp(manager, version)
        return f"joined as engine {info.engine!r}, on version {version}"

    return _answer(InitWeightsUpdateGroupReqOutput, join)


def destroy_group(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Handles `/destroy_weights_update_group` for group "sparsecast": leaves it."""
    if not messages.is_ours(request.group_name):
        return original(manager, request)
    from sglang.srt.managers.io_struct import DestroyWeightsUpdateGroupReqOutput

    def leave() -> str:
        end = end_of(manager.tp_worker.model_runner)
        if end is None:
            return "there was no group"
        end.leave(_LEAVE_SECONDS)
        return "left the group"

    return _answer(DestroyWeightsUpdateGroupReqOutput, leave)


def check_weights(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Handles `/weights_checker` with an action "sparsecast:{...}": a step of an update."""
    if not messages.is_ours(request.action):
        return original(manager, request)
    from sglang.srt.managers.io_struct import CheckWeightsReqOutput

    return _answer(CheckWeightsReqOutput, lambda: _run_phase(manager, messages.parse_phase(request.action)))


def _run_phase(manager: Any, phase: messages.Phase) -> str:
    end = end_of(manager.tp_worker.model_runner, manager.tp_cpu_group)
    assert end is not None
    if phase.phase == "receive":
        end.receive(phase.timeout, phase.base_version)
        return RECEIVING
    if phase.phase == "staged":
        return STAGED if end.staged() else RECEIVING
    if phase.phase == "apply":
        return _apply(manager, end, phase.timeout)
    if phase.phase == "expire":
        result = end.expire()
        if result["is_whole"]:
            _stamp(manager, result["version"])
        return json.dumps(result)
    if phase.phase == "cancel":
        end.cancel("the update was cancelled", phase.timeout)
    elif phase.phase == "audit":
        end.audit()
    return json.dumps(end.status())


def _apply(manager: Any, end: SglangEnd, timeout: float) -> str:
    try:
        receipt = end.apply(timeout)
    except DirtyError:
        _stop_generation(manager)
        raise
    _stamp(manager, receipt.version)
    return json.dumps(dataclasses.asdict(receipt))


def _stamp(manager: Any, version: int) -> None:
    """Makes the scheduler stamp what it generates with this version (`meta_info.weight_versions`)."""
    manager.record_weight_version_after_update(str(version))


def _stop_generation(manager: Any) -> None:
    """Stops generation, because half-written weights must not be read, until a join repairs them and the caller
    resumes.
    """
    from sglang.srt.managers.io_struct import PauseGenerationReqInput

    manager.scheduler.pause_generation(PauseGenerationReqInput(mode="in_place"))


def _answer(output: Callable[..., Any], work: Callable[[], str]) -> Any:
    """Returns the error text, with the code in square brackets; SGLang would end the scheduler for an exception."""
    try:
        return output(success=True, message=work())
    except Error as error:
        return output(success=False, message=f"{error} [{error.code}]")
    except Exception as error:
        return output(success=False, message=f"{type(error).__name__}: {error} [internal]")


def add_status(result: Any, controller: Any, request: Any) -> Any:
    """Adds the version of this engine to `internal_states` of `/server_info`."""
    end = end_of(controller.scheduler.tp_worker.model_runner)
    result.internal_state["sparsecast"] = {"state": "not joined"} if end is None else end.status()
    return result


# -- in the process of the HTTP server ---------------------------------------------------------------------------


async def wait_staged(
    original: Callable[..., Awaitable[tuple[bool, str, Any, Any]]], tokenizer: Any, obj: Any, request: Any = None
) -> tuple[bool, str, Any, Any]:
    """Answers `/weights_checker` for "staged" when the version has arrived, by polling the scheduler.

    The scheduler continues generating; waiting inside it would stop its loop.
    """
    if not messages.is_ours(obj.action):
        return await original(tokenizer, obj, request)
    try:
        phase = messages.parse_phase(obj.action)
    except Error as error:
        return False, f"{error} [{error.code}]", None, None
    if phase.phase == "lease":
        return await _renew_lease(original, tokenizer, phase)
    until = time.monotonic() + phase.timeout
    pause, longest = _POLL_SECONDS
    while True:
        answer = await original(tokenizer, obj, request)
        if phase.phase != "staged" or not answer[0] or answer[1] != RECEIVING:
            return answer
        if time.monotonic() >= until:
            return False, f"the next version has not come within {phase.timeout} s [timeout]", None, None
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def _renew_lease(
    original: Callable[..., Any], tokenizer: Any, phase: messages.Phase
) -> tuple[bool, str, Any, Any]:
    """Renews or ends the lease of this server's pause; it begins with an engine that has joined."""
    lease: PauseLease | None = getattr(tokenizer, "_sparsecast_lease", None)
    if lease is None:
        lease = PauseLease(lambda: _expire(original, tokenizer))
        tokenizer._sparsecast_lease = lease
    if phase.seconds == 0:
        lease.end()
    else:
        lease.renew(phase.seconds)
    return True, lease.last_expiry, None, None


async def _expire(original: Callable[..., Any], tokenizer: Any) -> str:
    """Ends the update of a trainer that is gone, and resumes; returns what was done."""
    from sglang.srt.managers.io_struct import (
        CheckWeightsReqInput,
        ContinueGenerationReqInput,
        UpdateWeightVersionReqInput,
    )

    if not tokenizer.is_pause:
        return "the engine was not paused"
    action = messages.phase_action("expire", _LEAVE_SECONDS)
    success, words, _, _ = await original(tokenizer, CheckWeightsReqInput(action=action))
    result: dict[str, Any] = json.loads(words) if success else {"is_whole": False, "states": [words]}
    if not result["is_whole"]:
        return f"the engine stays paused until a trainer seeds it: {', '.join(result['states'])}"
    if result["version"]:
        stamp = UpdateWeightVersionReqInput(new_version=str(result["version"]), abort_all_requests=False)
        await tokenizer.update_weight_version(stamp)
    await tokenizer.flush_cache()
    await tokenizer.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))
    return f"resumed at version {result['version']}"


def add_request_versions(result: Any, state: Any) -> Any:
    """Adds the middleware `RequestVersions` to SGLang's HTTP server, once its tokenizer manager exists."""
    from sglang.srt.entrypoints.http_server import app

    async def ask() -> str:
        return str(state.tokenizer_manager.config_value("weight_version"))

    app.add_middleware(RequestVersions, ask=ask)
    return result

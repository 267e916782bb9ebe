# SPDX-License-Identifier: Apache-2.0
"""The part of the SGLang plug-in that runs in the process of the HTTP server: hooks around the tokenizer manager's
control calls.

A call goes to the first rank of every data-parallel replica. Each replica is an engine of its own in the sync world, so
all answers count.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from sparsecast.engines.lease import PauseLease
from sparsecast.engines.request_versions import RequestVersions
from sparsecast.engines.sglang import messages
from sparsecast.errors import Error

LEAVE_SECONDS = 30.0
_POLL_SECONDS = (0.005, 0.1)  # First and longest pause between two questions whether a version is staged.
_BETWEEN = " | "  # What SGLang puts between the answers of replicas.

Answer = tuple[bool, str]
Check = Callable[..., Awaitable[tuple[Any, ...]]]


async def init_group(original: Callable[..., Any], tokenizer: Any, obj: Any, request: Any = None) -> tuple[bool, str]:
    """Hands `/init_weights_update_group` with backend "sparsecast" to all data-parallel replicas, because SGLang's own
    method refuses servers with several. Returns whether all replicas succeeded, and their answers. If the group's name
    has a log in its field "follow", the server begins to follow that log instead. Hands requests for other backends to
    `original`.
    """
    if obj.backend != messages.BACKEND:
        success, words = await original(tokenizer, obj, request)
        return success, words
    try:
        log = messages.parse_follow(obj.group_name)
        if log is not None:
            from sparsecast.engines.sglang.led_engine import follow

            return True, await follow(tokenizer, log)
    except Error as error:
        return False, f"{error} [{error.code}]"
    return await _ask_replicas(tokenizer, "init_weights_update_group_communicator", obj)


async def destroy_group(
    original: Callable[..., Any], tokenizer: Any, obj: Any, request: Any = None
) -> tuple[bool, str]:
    """Hands `/destroy_weights_update_group` for group "sparsecast" to all data-parallel replicas. Returns whether all
    succeeded, and their answers. Hands requests for other groups to `original`.
    """
    if not messages.is_ours(obj.group_name):
        success, words = await original(tokenizer, obj, request)
        return success, words
    return await _ask_replicas(tokenizer, "destroy_weights_update_group_communicator", obj)


async def _ask_replicas(tokenizer: Any, communicator: str, obj: Any) -> tuple[bool, str]:
    return _joined(await answers_of_replicas(tokenizer, communicator, obj))


async def answers_of_replicas(tokenizer: Any, communicator: str, obj: Any) -> list[Any]:
    """Sends `obj` to all data-parallel replicas by this communicator of the tokenizer manager; returns the answer of
    each, once steps that its stages have put aside are done.
    """
    from sglang.srt.managers.io_struct import CheckWeightsReqInput

    tokenizer.auto_create_handle_loop()
    answers = await getattr(tokenizer, communicator)(obj)
    ask = CheckWeightsReqInput(action=messages.phase_action("result", LEAVE_SECONDS))
    while any(answer.message == messages.DEFERRED for answer in answers):
        await asyncio.sleep(_POLL_SECONDS[0])
        answers = await tokenizer.check_weights_communicator(ask)
    return list(answers)


def _joined(answers: list[Any]) -> tuple[bool, str]:
    """Returns whether all replicas succeeded, and their answers as one string. If any replica failed, the string has
    only the failures: first those that only say that a peer failed, then those that name the cause.
    """
    failures = [answer.message for answer in answers if not answer.success]
    if failures:
        return False, _BETWEEN.join(sorted(dict.fromkeys(failures), key=lambda words: "[peer_failed]" not in words))
    return True, _BETWEEN.join(answer.message for answer in answers)


async def _ask(tokenizer: Any, obj: Any) -> Answer:
    return await _ask_replicas(tokenizer, "check_weights_communicator", obj)


async def check_weights(original: Check, tokenizer: Any, obj: Any, request: Any = None) -> tuple[Any, ...]:
    """Answers `/weights_checker` with an action of sparsecast; hands other actions to `original`. Phase "staged" is
    answered when the version has arrived, or after the timeout of the phase.
    """
    if not messages.is_ours(obj.action):
        return await original(tokenizer, obj, request)
    # How many values the route takes differs between releases; SGLang's method makes them of a scheduler's answer.
    return await original(_Answered(*await _answer(tokenizer, obj)), obj, request)


class _Answered:
    """A tokenizer manager whose schedulers have answered."""

    def __init__(self, success: bool, words: str) -> None:
        self._answer = (success, words)

    def auto_create_handle_loop(self) -> None:
        """Nothing is left to come."""

    async def check_weights_communicator(self, _: Any) -> list[Any]:
        from sglang.srt.managers.io_struct import CheckWeightsReqOutput

        success, words = self._answer
        return [CheckWeightsReqOutput(success=success, message=words)]


async def _answer(tokenizer: Any, obj: Any) -> Answer:
    """Does the step that the action of `obj` names. For "staged", the scheduler is asked again and again: if it waited
    itself, its loop would stop, and generation with it.
    """
    try:
        phase = messages.parse_phase(obj.action)
    except Error as error:
        return False, f"{error} [{error.code}]"
    if phase.phase in messages.FOLLOW_PHASES:
        return False, f"{phase.phase!r} is a step of the server itself, which follows a log [usage]"
    if phase.phase == "lease":
        return await _renew_lease(tokenizer, phase)
    until = time.monotonic() + phase.timeout
    pause, longest = _POLL_SECONDS
    while True:
        answer = await _ask(tokenizer, obj)
        if phase.phase != "staged" or not answer[0] or messages.RECEIVING not in answer[1].split(_BETWEEN):
            return (True, messages.STAGED) if phase.phase == "staged" and answer[0] else answer
        if time.monotonic() >= until:
            return False, f"the next version has not come within {phase.timeout} s [timeout]"
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def _renew_lease(tokenizer: Any, phase: messages.Phase) -> Answer:
    """Renews the lease of this server's pause for `phase.seconds`, or ends it if that is 0. The answer has the sentence
    about the last lease that ran out.
    """
    lease: PauseLease | None = getattr(tokenizer, "_sparsecast_lease", None)
    if lease is None:
        lease = PauseLease(lambda: _expire(tokenizer))
        tokenizer._sparsecast_lease = lease
    if phase.seconds == 0:
        await lease.end()
    else:
        await lease.renew(phase.seconds)
    return True, lease.last_expiry


async def _expire(tokenizer: Any) -> str:
    """Ends the update of a trainer that is gone, and resumes generation if all replicas hold the same whole version.
    Returns a sentence that says what was done.
    """
    from sglang.srt.managers.io_struct import CheckWeightsReqInput

    from sparsecast.engines.sglang.releases import name_version, resumption

    if not tokenizer.is_pause:
        return "the engine was not paused"

    async def ask(phase: messages.PhaseName, committed: bool | None = None) -> list[dict[str, Any]] | str:
        action = messages.phase_action(phase, LEAVE_SECONDS, committed=committed)
        success, words = await _ask(tokenizer, CheckWeightsReqInput(action=action))
        return [json.loads(said) for said in words.split(_BETWEEN)] if success else words

    held = await ask("held")
    # A rank that has heard the commit settles the doubt for all ranks, also for ranks of other replicas.
    committed = not isinstance(held, str) and _is_committed(held)
    ended = held if isinstance(held, str) else await ask("expire", committed)
    if isinstance(ended, str):
        return f"the engine stays paused until a trainer seeds it: {ended}"
    versions = {one["version"] for one in ended}
    if not all(one["is_whole"] for one in ended) or len(versions) > 1:
        states = sorted({state for one in ended for state in one["states"]})
        return f"the engine stays paused until a trainer seeds it: {', '.join(states)}"
    version = versions.pop()
    if version > 0:
        await name_version(tokenizer, str(version))
    await tokenizer.flush_cache()
    await tokenizer.continue_generation(resumption())
    return f"resumed at version {version}" if version >= 0 else "resumed with the weights that it had"


def _is_committed(held: list[dict[str, Any]]) -> bool:
    attempt = max(one["attempt"] for one in held)
    return attempt != 0 and any(attempt in one["versions"] for one in held)


def add_request_versions(result: Any, state: Any) -> Any:
    """Hook after the function that gives SGLang's HTTP server its tokenizer manager: adds the middleware
    `RequestVersions` to the server. Returns `result`, the result of the hooked function.
    """
    from sglang.srt.entrypoints.http_server import app

    from sparsecast.engines.sglang.releases import named_version

    async def ask() -> str:
        return named_version(state.tokenizer_manager)

    app.add_middleware(RequestVersions, ask=ask)
    return result

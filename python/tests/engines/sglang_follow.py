# SPDX-License-Identifier: Apache-2.0
"""What the tests of a SGLang server that follows a log do in a rank's process, by name; `rank` is its RankProcess."""

from __future__ import annotations

import asyncio
import json
import os
import time
import unittest.mock
from types import SimpleNamespace
from typing import Any

import torch

from sparsecast.engines import worker_follower
from sparsecast.engines.follow_settings import FollowSettings
from sparsecast.engines.sglang import follow_worker, server
from sparsecast.engines.sglang.follow_worker import follower_of
from sparsecast.engines.sglang.led_engine import SglangEngine, lead_server
from sparsecast.engines.trace.slots import slots
from sparsecast.errors import DirtyError, UsageError

SECONDS = 120.0


def workers(rank: Any, phase: str) -> Any:
    """The answer of this rank's scheduler to a step of its HTTP process, for all ranks; the error's words if it fails."""
    more: dict[str, Any] = {"replicas": [0]} if phase == "follow_apply" else {}
    settings = FollowSettings.from_environment(os.environ, "server") if phase == "follow" else None
    if settings is not None:
        more["settings"] = settings.for_worker()
    action = "sparsecast:" + json.dumps({"phase": phase, **more})
    success, message = rank.post("/weights_checker", {"action": action})
    return json.loads(message) if success else message


def step(rank: Any, phase: str) -> Any:
    """What rank 0 is said to hold."""
    answer = workers(rank, phase)
    return answer if isinstance(answer, str) else answer[0]


def follow(rank: Any, variables: dict[str, str], memory_saver: bool = False) -> Any:
    """The status of a new follower of a scheduler with these variables in its environment, in a server with this option
    and two stages; one that there was ends.
    """
    from sglang.srt.runtime_context import get_exec

    end(rank)
    for name in [name for name in os.environ if name.startswith("SPARSECAST_FOLLOW")]:
        del os.environ[name]
    os.environ.update({f"SPARSECAST_{name}": value for name, value in variables.items()})
    with (
        get_exec().features.override(enable_memory_saver=memory_saver),
        unittest.mock.patch.object(follow_worker, "_stages", lambda: 2 if memory_saver else 1),
    ):
        return step(rank, "follow")


def end(rank: Any) -> None:
    follower = follower_of(rank.worker.model_runner)
    if follower is not None:
        follower.sleep(loses_weights=False)
        rank.worker.model_runner._sparsecast_follower = None


def until(rank: Any, state: str) -> dict[str, Any]:
    """The status of rank 0's follower when the followers of all ranks are in this state."""
    last = time.monotonic() + SECONDS
    while True:
        now = workers(rank, "follow_status")
        states = {worker["state"] for worker in now}
        if states == {state}:
            return dict(now[0])
        assert time.monotonic() < last and "broken" not in states, now
        time.sleep(0.01)


def apply(rank: Any) -> dict[str, Any]:
    """The status after the next version has been staged and written."""
    until(rank, "staged")
    return dict(step(rank, "follow_apply"))


class LossyMemory:
    """A memory saver that gives the weights' memory back without its content, nor that of what SGLang has computed."""

    def __init__(self, rank: Any, derived: list[str]) -> None:
        self._model, self._derived = rank.worker.model_runner.model, derived

    def pause(self, tag: str) -> None:
        for slot in slots(self._model):
            if tag == "weights" and (slot.name in self._derived or isinstance(slot.tensor, torch.nn.Parameter)):
                slot.data.untyped_storage().fill_(0x2A)

    def resume(self, tag: str) -> None: ...


def release(rank: Any) -> str:
    """The state of this rank's follower after `/release_memory_occupation`."""
    from sglang.srt.managers.io_struct import ReleaseMemoryOccupationReqInput
    from sglang.srt.runtime_context import get_exec

    follower = follower_of(rank.worker.model_runner)
    rank.scheduler._engine_paused = False  # Of a test before.
    rank.manager.memory_saver_adapter = LossyMemory(rank, follower.status()["derived"])  # type: ignore[union-attr]
    with get_exec().features.override(enable_memory_saver=True):
        rank.manager.release_memory_occupation(ReleaseMemoryOccupationReqInput(tags=["weights"]))
    return str(follower.status()["state"])  # type: ignore[union-attr]


def resume(rank: Any, seconds: float) -> dict[str, Any]:
    """The status after `/resume_memory_occupation`, which gives up after so many seconds."""
    from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

    worker_follower._WAKE_SECONDS = seconds
    rank.manager.resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=["weights"]))
    return dict(follower_of(rank.worker.model_runner).status())  # type: ignore[union-attr]


def fail_to_compute(rank: Any) -> None:
    """The next time that SGLang computes what it derives from its weights fails."""
    recomputation = follower_of(rank.worker.model_runner)._model.recomputations[0]  # type: ignore[union-attr]

    def run() -> None:
        del recomputation.run
        raise DirtyError("no memory left")

    recomputation.run = run  # type: ignore[method-assign]


class Tokenizer:
    """The parts of SGLang's tokenizer manager that pauses, names and messages touch; the methods are the real ones. One
    request is in flight until `finish`. `calls` says what reached the scheduler, and what was asked of the server.
    """

    def __init__(self) -> None:
        from sglang.srt.managers.tokenizer_control_mixin import TokenizerControlMixin
        from sglang.srt.managers.tokenizer_manager import TokenizerManager
        from sglang.srt.utils.aio_rwlock import RWLock

        self.calls: list[str] = []
        self.named = ""
        self.mm_processor = None
        self.is_pause = False
        self.is_pause_cond = asyncio.Condition()
        self.model_update_lock = RWLock()
        self.finish = asyncio.Event()
        self.pause_generation = TokenizerManager.pause_generation.__get__(self)
        self.continue_generation = TokenizerManager.continue_generation.__get__(self)
        self.update_weight_version = TokenizerControlMixin.update_weight_version.__get__(self)
        self._update_weight_version_if_provided = TokenizerControlMixin._update_weight_version_if_provided.__get__(self)
        self.flush_cache = TokenizerControlMixin.flush_cache.__get__(self)

    def auto_create_handle_loop(self) -> None: ...

    async def generate(self) -> None:
        async with self.model_update_lock.reader_lock:
            await self.finish.wait()
            self.calls.append("finished")

    def abort_request(self, abort_all: bool) -> None:
        if not self.finish.is_set():  # SGLang asks again and again until all have ended.
            self.calls.append("abort")
        self.finish.set()

    async def _async_dispatch_to_scheduler(self, message: Any) -> None:
        self.calls.append(getattr(message, "mode", "continue"))

    async def check_weights_communicator(self, request: Any) -> list[Any]:
        phase = json.loads(request.action.removeprefix("sparsecast:"))["phase"]
        self.calls.append(phase)
        return [SimpleNamespace(success=phase != "follow_status", message=json.dumps([{"state": "ready"}]))]

    async def flush_cache_communicator(self, _: Any) -> list[Any]:
        self.calls.append("flush")
        return [SimpleNamespace(success=True)]

    async def update_weight_version_communicator(self, request: Any) -> None:
        self.calls.append(f"name {request.new_version}{' and abort' if request.abort_all_requests else ''}")

    def record_config_updates(self, _: str, weight_version: str) -> None:
        self.named = weight_version


def led(rank: Any, pause: str) -> tuple[list[str], str]:
    """What a pause, a write and a resume do in SGLang's HTTP process while a request is in flight; the version that it
    names then.
    """

    async def scene() -> tuple[list[str], str]:
        tokenizer = Tokenizer()
        engine = SglangEngine(tokenizer, FollowSettings("/log", "/state"))
        request = asyncio.create_task(tokenizer.generate())
        await asyncio.sleep(0)
        if pause != "abort":
            asyncio.get_running_loop().call_later(0.1, tokenizer.finish.set)
        assert not await engine.is_paused()
        await engine.pause(pause)
        assert await engine.is_paused()
        assert await engine.ask("apply") == [{"state": "ready"}]
        assert await engine.reset_cache(pause)
        await engine.name("7")
        await engine.resume()
        assert not await engine.is_paused()
        await request
        return tokenizer.calls, tokenizer.named

    return asyncio.run(asyncio.wait_for(scene(), SECONDS))


class Connected(Tokenizer):
    """A tokenizer manager whose messages reach the scheduler of `rank`."""

    def __init__(self, rank: Any) -> None:
        super().__init__()
        self._rank = rank

    async def check_weights_communicator(self, request: Any) -> list[Any]:
        success, message = self._rank.post("/weights_checker", {"action": request.action})
        return [SimpleNamespace(success=success, message=message)]


def told(rank: Any, *infos: dict[str, Any]) -> list[tuple[bool, str]]:
    """The answers to `/init_weights_update_group` with these objects in `group_name`; no log was followed before."""

    async def scene() -> list[tuple[bool, str]]:
        tokenizer = Connected(rank)
        groups = ("sparsecast:" + json.dumps(info) for info in infos)
        ask = [SimpleNamespace(backend="sparsecast", group_name=group) for group in groups]
        return [await server.init_group(None, tokenizer, each) for each in ask]

    end(rank)
    for name in [name for name in os.environ if name.startswith("SPARSECAST_FOLLOW")]:
        del os.environ[name]
    return asyncio.run(asyncio.wait_for(scene(), SECONDS))


def several_tokenizers(rank: Any) -> str:
    """What is said to a server of two tokenizer processes."""
    from sglang.srt.runtime_context import get_serving

    with get_serving().override(tokenizer_worker_num=2):
        try:
            lead_server(None)
        except UsageError as error:
            return str(error)
    return "taken"

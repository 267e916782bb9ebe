# SPDX-License-Identifier: Apache-2.0
"""The engine of a SGLang server that follows a delta log, as the process of its HTTP server leads it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal, cast

from fastapi.routing import APIRoute

from sparsecast.engines.follow_routes import CHANGING_ROUTES, router
from sparsecast.engines.follow_settings import FollowSettings, FollowStep
from sparsecast.engines.log_following import LogFollowing, follow_when_told
from sparsecast.engines.sglang import messages
from sparsecast.engines.sglang.server import answers_of_replicas
from sparsecast.errors import UsageError


class SglangEngine:
    """Passes the calls of a `LedEngine` on to SGLang's tokenizer manager, which asks the schedulers of all
    data-parallel replicas, so that the server can follow a log.
    """

    def __init__(self, tokenizer: Any, settings: FollowSettings) -> None:
        """Raises UsageError for a server of several tokenizer processes, because each of them would lead the
        schedulers.
        """
        from sparsecast.engines.sglang.releases import get_serving

        processes = get_serving().tokenizer_worker_num
        if processes > 1:
            raise UsageError(
                f"SPARSECAST_FOLLOW: the server has {processes} tokenizer processes, and one leads the schedulers: "
                "start SGLang with --tokenizer-worker-num 1"
            )
        self._tokenizer = tokenizer
        self._settings = settings

    async def ask(
        self, step: FollowStep, replicas: Sequence[int] = (), goal: int | None = None
    ) -> list[dict[str, Any]]:
        """Raises RuntimeError with the message of a scheduler that failed."""
        from sglang.srt.managers.io_struct import CheckWeightsReqInput

        phase: dict[str, Any] = {"phase": step if step == "follow" else f"follow_{step}"}
        if step in ("apply", "drop"):
            phase["replicas"] = list(replicas)
        elif goal is not None:
            phase["goal"] = goal
        if step == "follow":
            phase["settings"] = self._settings.for_worker()
        action = messages.PREFIX + json.dumps(phase)
        request = CheckWeightsReqInput(action=action)
        answers = await answers_of_replicas(self._tokenizer, "check_weights_communicator", request)
        failures = [answer.message for answer in answers if not answer.success]
        if failures:
            raise RuntimeError(failures[0])
        return [worker for answer in answers for worker in json.loads(answer.message)]

    async def is_paused(self) -> bool:
        return bool(self._tokenizer.is_pause)

    async def pause(self, mode: str) -> None:
        from sglang.srt.managers.io_struct import PauseGenerationReqInput

        if mode == "wait":
            async with self._tokenizer.model_update_lock.writer_lock:  # Every request in flight has ended.
                await self._tokenizer.pause_generation(PauseGenerationReqInput(mode="in_place"))
        else:
            chosen = cast(Literal["abort", "retract", "in_place"], "in_place" if mode == "keep" else mode)
            await self._tokenizer.pause_generation(PauseGenerationReqInput(mode=chosen))

    async def resume(self) -> None:
        from sparsecast.engines.sglang.releases import resumption

        await self._tokenizer.continue_generation(resumption())

    async def reset_cache(self, mode: str) -> bool:
        return bool((await self._tokenizer.flush_cache()).success)

    async def name(self, version: str) -> None:
        from sparsecast.engines.sglang.releases import name_version

        await name_version(self._tokenizer, version)


def lead_server(tokenizer: Any) -> None:
    """Adds the routes of a server that follows a log to SGLang's HTTP server, before it serves, and follows a log while
    it serves if the environment names one.

    Raises UsageError naming an environment variable with a wrong value, and for a server of several tokenizer processes
    that is to follow a log.
    """
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.utils.auth import AuthLevel, auth_level

    routes = router()
    for route in routes.routes:
        if isinstance(route, APIRoute) and route.path in CHANGING_ROUTES:
            auth_level(AuthLevel.ADMIN_OPTIONAL)(route.endpoint)  # As SGLang's own routes that change weights.
    app.include_router(routes)
    settings = FollowSettings.from_environment(os.environ, _server())
    if settings is None:
        return
    following = LogFollowing(SglangEngine(tokenizer, settings), settings)
    app.state.sparsecast_following = following

    @contextlib.asynccontextmanager
    async def lead() -> AsyncIterator[None]:
        task = asyncio.create_task(following.run())
        try:
            yield
        finally:
            task.cancel()

    while_serving(app, lead)


def while_serving(app: Any, run: Callable[[], contextlib.AbstractAsyncContextManager[None]]) -> None:
    """Makes SGLang's HTTP server `app`, before it serves, enter what `run` returns while it serves."""
    serve = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(served: Any) -> AsyncIterator[Any]:
        async with serve(served) as found, run():
            yield found

    app.router.lifespan_context = lifespan


async def follow(tokenizer: Any, info: Mapping[str, Any]) -> str:
    """Makes the server follow the log that `info` names (`FollowSettings.from_init_info`), and returns a sentence about
    it when the schedulers have begun. Raises UsageError with the reason if it cannot.
    """
    from sglang.srt.entrypoints.http_server import app

    settings = FollowSettings.from_init_info(info, os.environ, _server())
    assert settings is not None
    await follow_when_told(app.state, settings, lambda one: SglangEngine(tokenizer, one))
    return f"follows {settings.location}"


def _server() -> str:
    """Returns a name that no other server of this machine has."""
    from sparsecast.engines.sglang.releases import get_serving

    return f"{get_serving().host}-{get_serving().port}"

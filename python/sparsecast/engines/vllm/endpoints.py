# SPDX-License-Identifier: Apache-2.0
r"""Endpoint plug-in of a vLLM server: a lease on the pause of an update, which the server itself ends.

    VLLM_PLUGINS=sparsecast VLLM_SERVER_DEV_MODE=1 vllm serve MODEL \
        --weight-transfer-config '{"backend": "sparsecast"}' \
        --worker-extension-cls sparsecast.engines.vllm.WorkerExtension

A trainer that dies between the pause and the resume would leave a server that answers /health and serves nobody. The
control plane therefore takes a lease before it pauses, and renews it until it has resumed. When nobody renews the lease
in time, the server ends the update that is open, names the version that its workers hold, and resumes; it stays paused
only if the workers disagree, or say that their bytes are of no version.

vLLM loads endpoint plug-ins only if VLLM_PLUGINS names them (vllm.plugins.endpoint_plugins), and the route of the lease
exists only in development mode, like all routes that update weights. A server that follows a log by itself is led
through `led_engine`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, FastAPI, HTTPException, Request

from sparsecast.adapters.following import VARIABLE as ADAPTERS_VARIABLE
from sparsecast.adapters.following import AdapterFollowing, AdapterSettings
from sparsecast.adapters.own_server import VllmOwnServer
from sparsecast.engines import follow_routes, log_following, request_versions
from sparsecast.engines.follow_settings import FollowSettings
from sparsecast.engines.lease import MAX_LEASE_SECONDS, PauseLease
from sparsecast.engines.vllm.led_engine import VllmEngine
from sparsecast.engines.vllm.workers import ask_workers
from sparsecast.errors import UsageError

if TYPE_CHECKING:
    from argparse import Namespace

    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient

LEASE_ROUTE = "/sparsecast/lease"
_log = logging.getLogger("vllm.sparsecast")  # vLLM shows what its own loggers say.


class SparsecastEndpoints:
    """vLLM's endpoint plug-in of sparsecast (`vllm.plugins.endpoint_plugins.interface.EndpointPlugin`): adds routes to
    the HTTP server, and leads a server that follows a log.
    """

    name = "sparsecast"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """Adds to the server the route of leases in development mode, the routes of a log that it may follow, and the
        middleware for requests that name versions if the environment switches it on.
        """
        from vllm import envs

        if request_versions.is_wanted():
            app.add_middleware(request_versions.RequestVersions)
        if envs.VLLM_SERVER_DEV_MODE:
            app.include_router(_router())
        app.include_router(follow_routes.router())
        if os.environ.get(ADAPTERS_VARIABLE):
            app.include_router(follow_routes.adapters_router())

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        """Puts the pause of the server's engine into `state`, and starts to follow a log if the environment names one;
        otherwise a call of /init_weight_transfer_engine may do so later. Raises UsageError for wrong settings.
        """
        processes = getattr(args, "api_server_count", None) or 1
        state.sparsecast_pause = VllmPause(engine_client, processes) if engine_client is not None else None
        server = f"{getattr(args, 'host', None) or 'any'}-{getattr(args, 'port', 0)}"
        settings = FollowSettings.from_environment(os.environ, server)
        if engine_client is None:
            return
        if settings is not None:
            engine = VllmEngine(engine_client, settings, processes)
            state.sparsecast_following = log_following.LogFollowing(engine, settings, _log)
            state.sparsecast_following.begin()
        _follow_when_told(engine_client, state, server, processes)
        adapters = AdapterSettings.from_environment(os.environ, server)
        if adapters is not None:
            state.sparsecast_adapters = _follow_adapters(adapters, state, args, processes)


def _follow_when_told(client: EngineClient, state: State, server: str, processes: int) -> None:
    """Makes `client`, the engine of a server, follow a log when the init info of a weight transfer names one in its
    field "follow". `server` is a name that no other server of this machine has.
    """
    join = client.init_weight_transfer_engine

    async def join_or_follow(request: Any) -> None:
        settings = FollowSettings.from_init_info(request.init_info, os.environ, server)
        if settings is None:
            await join(request)
        else:
            await log_following.follow_when_told(state, settings, lambda one: VllmEngine(client, one, processes), _log)

    client.init_weight_transfer_engine = join_or_follow


def _follow_adapters(settings: AdapterSettings, state: State, args: Namespace, processes: int) -> AdapterFollowing:
    """Starts to follow the logs of adapters. Raises UsageError for a server that takes no adapters, or that has several
    API processes, because each of them would load the adapters.
    """
    if not getattr(args, "enable_lora", False):
        raise UsageError(f"{ADAPTERS_VARIABLE}: the server takes no adapters: start vLLM with --enable-lora")
    if processes > 1:
        raise UsageError(
            f"{ADAPTERS_VARIABLE}: the server has {processes} API processes, and each would load the adapters: start "
            "vLLM with --api-server-count 1"
        )
    server = VllmOwnServer(lambda: state.openai_serving_models, asyncio.get_running_loop())
    following = AdapterFollowing(server, settings, str(args.model), _log)
    following.start()
    return following


class VllmPause:
    """The pause of one vLLM engine, and the lease on it. `engine` is vLLM's EngineClient, and `processes` the number of
    API processes of the server, each of which has such a client.
    """

    def __init__(self, engine: Any, processes: int = 1) -> None:
        self._engine = engine
        self._processes = processes
        self.lease = PauseLease(self.expire, _log)

    async def renew(self, seconds: float) -> None:
        """Takes or renews the lease for `seconds`. Raises UsageError if the workers cannot say what they hold, or if
        the server has several API processes, because the next call may reach another process, which knows nothing of
        this lease.
        """
        if self._processes > 1:
            raise UsageError(
                f"there can be no lease: the server has {self._processes} API processes, and each would hold one of its "
                "own; start vLLM with --api-server-count 1"
            )
        if not self.lease.is_held:
            try:
                await self._statuses()
            except Exception as error:
                words = "the workers lack --worker-extension-cls sparsecast.engines.vllm.WorkerExtension"
                raise UsageError(f"there can be no lease: {words} ({error})") from error
        await self.lease.renew(seconds)

    async def expire(self) -> str:
        """Ends the update of a trainer that is gone, and resumes generation if all workers hold the same whole version.
        Returns a sentence that says what was done.
        """
        if not await self._engine.is_paused():
            return "the engine was not paused"
        before = await self._statuses()
        if {status["state"] for status in before} == {"ready"}:
            # The update has landed everywhere, and only its end is missing; or none was begun.
            with contextlib.suppress(Exception):
                await self._engine.finish_weight_update(str(before[0]["version"]))
        else:
            # The first call makes the backend drop what was staged, and the second one closes vLLM's session.
            for _ in range(2):
                with contextlib.suppress(Exception):
                    await self._engine.finish_weight_update()
        now = await self._settled(await self._statuses())
        versions = {status["held_version"] for status in now}
        if not all(status["is_whole"] for status in now) or len(versions) != 1:
            held = ", ".join(f"rank {s.get('rank')} is {s['state']} at version {s.get('version')}" for s in now)
            return f"the engine stays paused until a trainer seeds it: {held}"
        await self._engine.reset_prefix_cache()
        await self._engine.resume_generation()
        version = versions.pop()
        return f"resumed at version {version}" if version is not None else "resumed with the weights that it had"

    async def _settled(self, statuses: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Decides about a version that workers have applied without hearing whether it was committed. If any worker has
        heard of the commit, the version stands on all; otherwise all go back to the previous version, which was
        committed. Returns the statuses of the workers afterwards.
        """
        attempt = max(status.get("in_doubt", 0) for status in statuses)
        if attempt == 0:
            return statuses
        committed = any(status.get("version") == attempt for status in statuses)
        settled: list[dict[str, Any]] = await ask_workers(self._engine, "sparsecast_settle", committed)
        if committed:
            await self._engine.update_weight_version(str(attempt))
        return settled

    async def _statuses(self) -> list[dict[str, Any]]:
        return await ask_workers(self._engine, "sparsecast_status")


def _router() -> APIRouter:
    router = APIRouter()

    def pause_of(request: Request) -> VllmPause:
        pause: VllmPause | None = request.app.state.sparsecast_pause
        if pause is None:
            raise HTTPException(404, "this server has no engine")
        return pause

    @router.get(LEASE_ROUTE)
    async def look(request: Request) -> dict[str, Any]:
        lease = pause_of(request).lease
        return {"held": lease.is_held, "last_expiry": lease.last_expiry}

    @router.post(LEASE_ROUTE)
    async def renew(
        request: Request, seconds: Annotated[float, Body(embed=True, ge=0, le=MAX_LEASE_SECONDS)]
    ) -> dict[str, Any]:
        pause = pause_of(request)
        if seconds == 0:
            await pause.lease.end()
        else:
            try:
                await pause.renew(seconds)
            except UsageError as error:
                raise HTTPException(404, str(error)) from error
        return {"seconds": seconds, "last_expiry": pause.lease.last_expiry}

    return router

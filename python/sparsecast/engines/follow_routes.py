# SPDX-License-Identifier: Apache-2.0
"""The routes of a server that follows a delta log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Query, Request, Response

from sparsecast.engines.follow_metrics import metrics_text
from sparsecast.engines.follow_settings import When
from sparsecast.engines.log_following import LogFollowing
from sparsecast.errors import UsageError

FOLLOW_ROUTE = "/sparsecast/follow"
VERSION_ROUTE = "/sparsecast/version"
STAGE_ROUTE = "/sparsecast/stage"
AT_ROUTE = "/sparsecast/at"
CHANGING_ROUTES = frozenset({VERSION_ROUTE, STAGE_ROUTE, AT_ROUTE})
"""Routes by which callers decide which version is served."""
READY_ROUTE = "/sparsecast/ready"
METRICS_ROUTE = "/sparsecast/metrics"
ADAPTERS_ROUTE = "/sparsecast/adapters"
MAX_WAIT_SECONDS = 3600.0

Timeout = Annotated[float, Body(embed=True, gt=0, le=MAX_WAIT_SECONDS)]
"""Seconds for which a route waits for a version, in the body of the request."""


def router() -> APIRouter:
    """Returns the routes of a server that follows a log: for its status, its readiness and its metrics, and those by
    which callers decide which version is served. They expect a LogFollowing in `app.state.sparsecast_following`, and
    answer 404 if there is none.
    """
    routes = APIRouter()

    def following(request: Request) -> LogFollowing:
        found: LogFollowing | None = getattr(request.app.state, "sparsecast_following", None)
        if found is None:
            raise HTTPException(404, "this server follows no log")
        return found

    @routes.get(FOLLOW_ROUTE)
    async def look(request: Request) -> dict[str, Any]:
        return await following(request).ask()

    @routes.get(READY_ROUTE)
    async def is_ready(request: Request, max_lag: Annotated[int | None, Query(ge=0)] = None) -> dict[str, Any]:
        reason = await following(request).why_not_ready(max_lag)
        if reason:
            raise HTTPException(503, reason)
        return {"version": following(request).status()["served"]}

    @routes.get(METRICS_ROUTE)
    async def measure(request: Request) -> Response:
        return Response(metrics_text(await following(request).ask()), media_type="text/plain; version=0.0.4")

    @routes.post(VERSION_ROUTE)
    async def reach(
        request: Request,
        at_least: Annotated[int, Body(embed=True, ge=0)],
        timeout: Timeout = 60.0,
    ) -> dict[str, Any]:
        found = following(request)
        return await answer(found, found.reach(at_least, timeout), f"version {at_least} has not come", timeout)

    @routes.post(STAGE_ROUTE)
    async def stage(
        request: Request,
        version: Annotated[int, Body(embed=True, ge=0)],
        timeout: Timeout = 60.0,
    ) -> dict[str, Any]:
        found = following(request)
        return await answer(found, found.stage(version, timeout), f"version {version} is not staged", timeout)

    @routes.post(AT_ROUTE)
    async def take_at(request: Request, at: Annotated[str, Body(embed=True)]) -> dict[str, Any]:
        found = following(request)
        try:
            found.take_at(When.parse(at))
        except UsageError as error:
            raise HTTPException(422, str(error)) from error
        return await found.ask()

    async def answer(found: LogFollowing, version: Awaitable[int], late: str, timeout: float) -> dict[str, Any]:
        try:
            return {"version": await version}
        except asyncio.TimeoutError:
            status = found.status()
            words = f"{late} within {timeout} s: the server is at version {status['served']}"
            raise HTTPException(504, words + (f" ({status['error']})" if status["error"] else "")) from None
        except UsageError as error:
            raise HTTPException(409, str(error)) from error

    return routes


def adapters_router() -> APIRouter:
    """Returns the route for the status of a server that follows the logs of adapters. It expects an AdapterFollowing
    (`sparsecast.adapters.following`) in `app.state.sparsecast_adapters`, and answers 404 if there is none.
    """
    routes = APIRouter()

    @routes.get(ADAPTERS_ROUTE)
    async def look(request: Request) -> dict[str, Any]:
        found = getattr(request.app.state, "sparsecast_adapters", None)
        if found is None:
            raise HTTPException(404, "this server follows no adapters")
        return {"adapters": found.status()}

    return routes

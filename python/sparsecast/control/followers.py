# SPDX-License-Identifier: Apache-2.0
"""Servers that follow a delta log, and take a version together although none of them knows the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sparsecast.control.endpoints import Endpoint
from sparsecast.control.http import HttpCaller

_ANSWER_SECONDS = 5.0  # for the way to a server and back, beyond the time that the server itself waits


async def take_together(endpoints: Sequence[Endpoint], version: int, *, timeout: float = 120.0) -> None:
    """Has the servers of all `endpoints` take `version` of the log that they follow, but none before all have staged it.

    The servers must take versions when they are told (SPARSECAST_FOLLOW_AT=told). A server that is further behind takes
    what is below `version` on the way. Raises `EndpointError` naming the first server that has not staged the version
    within `timeout` seconds: no server then takes it, and those that have staged it keep it for the next call. When all
    have staged it, all are told, and the error of one that does not serve the version within `timeout` seconds is
    raised when all have answered; the call may be repeated.
    """
    await ask_followers(endpoints, "/sparsecast/stage", {"version": version}, step="stage", timeout=timeout)
    await ask_followers(endpoints, "/sparsecast/version", {"at_least": version}, step="version", timeout=timeout)


async def ask_followers(
    endpoints: Sequence[Endpoint], path: str, body: Mapping[str, Any], *, step: str, timeout: float
) -> None:
    """Posts `body` to the route `path` of all servers at once, and returns when all have answered. Each server waits for
    at most `timeout` seconds. Raises the `EndpointError` of the first endpoint that failed; `step` names the call there.
    """

    async def ask(endpoint: Endpoint) -> None:
        caller = HttpCaller(endpoint)
        try:
            wanted = {**body, "timeout": timeout}
            await caller.call("POST", path, step=step, timeout=timeout + _ANSWER_SECONDS, json=wanted)
        finally:
            await caller.close()

    for failure in await asyncio.gather(*map(ask, endpoints), return_exceptions=True):
        if failure is not None:
            raise failure

# SPDX-License-Identifier: Apache-2.0
"""Leases on pauses: engines that a sync has paused resume by themselves when the trainer's process is gone."""

from __future__ import annotations

import asyncio
import contextlib

from sparsecast.control.errors import EndpointError
from sparsecast.control.fleet import Engine

_RENEWALS = 3  # within the length of a lease


class LeaseKeeper:
    """Takes and renews the leases on pauses of one sync. Used on one event loop: when the loop ends, renewals end too,
    and the servers resume by themselves.

    seconds       length of a lease; 0: no leases are taken.
    call_timeout  seconds for each call to a server.
    """

    def __init__(self, seconds: float, call_timeout: float) -> None:
        self._seconds = seconds
        self._call_timeout = call_timeout
        self._renewing: dict[str, asyncio.Task[None]] = {}

    async def take(self, engine: Engine) -> bool:
        """Takes a lease on the engine's pause, before the pause, and renews it until `release`. Returns False, without
        a lease, if `seconds` is 0 or the server does not support leases. Raises `EndpointError` if the call fails.
        """
        if self._seconds == 0 or not await engine.client.hold(self._seconds, self._call_timeout):
            return False
        if engine.name not in self._renewing:
            self._renewing[engine.name] = asyncio.create_task(self._renew(engine))
        return True

    async def release(self, engine: Engine) -> None:
        """Ends the lease of an engine that has been resumed, or that is to stay paused. Does nothing if the engine has
        no lease.
        """
        renewing = self._renewing.pop(engine.name, None)
        if renewing is None:
            return
        renewing.cancel()
        with contextlib.suppress(EndpointError):
            await engine.client.hold(0, self._call_timeout)

    def stop(self) -> None:
        """Ends all renewals. Servers that still have a lease resume when it runs out."""
        for renewing in self._renewing.values():
            renewing.cancel()
        self._renewing.clear()

    async def _renew(self, engine: Engine) -> None:
        while True:
            await asyncio.sleep(self._seconds / _RENEWALS)
            with contextlib.suppress(EndpointError):  # The next one may get through.
                await engine.client.hold(self._seconds, min(self._call_timeout, self._seconds))

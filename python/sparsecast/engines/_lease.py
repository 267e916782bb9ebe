# SPDX-License-Identifier: Apache-2.0
"""The lease of a trainer on the pause of a server: what the server does when nobody renews it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

MAX_LEASE_SECONDS = 86400.0
_log = logging.getLogger("sparsecast")


class PauseLease:
    """The right of a trainer to keep an engine paused, until a deadline that it renews. For one event loop.

    expire   ends the update that is open and resumes the engine, or says why not; returns a sentence.
    """

    def __init__(self, expire: Callable[[], Awaitable[str]]) -> None:
        self._expire = expire
        self._until = 0.0
        self._watch: asyncio.Task[None] | None = None
        self.last_expiry = ""
        """What was done when a lease last ran out; empty if none has."""

    @property
    def is_held(self) -> bool:
        return self._watch is not None

    def renew(self, seconds: float) -> None:
        """Lets the pause last `seconds` from now on."""
        self._until = time.monotonic() + seconds
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._expire_in_time())

    def end(self) -> None:
        """Ends the lease; the pause is not touched."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _expire_in_time(self) -> None:
        while (left := self._until - time.monotonic()) > 0:
            await asyncio.sleep(left)
        try:
            self.last_expiry = await self._expire()
        except Exception as error:
            self.last_expiry = f"failed, and the engine stays paused: {error}"
        _log.warning("sparsecast: nobody renewed the lease of a pause: %s", self.last_expiry)
        self._watch = None

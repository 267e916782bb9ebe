# SPDX-License-Identifier: Apache-2.0
"""The lease of a trainer on the pause of a server: what the server does when nobody renews it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

MAX_LEASE_SECONDS = 86400.0
_log = logging.getLogger("sparsecast")


class PauseLease:
    """The right of a trainer to keep an engine paused, until a deadline that the trainer can put off (`renew`). For one
    event loop.

    When the deadline passes, `expire` is called. It ends the update in progress, resumes the engine or leaves it
    paused, and returns a sentence that says what it did, for the logger `log`. An expiry takes several calls of the
    engine. A trainer that renews during an expiry waits until the expiry has ended, so that the expiry cannot end the
    pause that the trainer takes afterwards.
    """

    def __init__(self, expire: Callable[[], Awaitable[str]], log: logging.Logger = _log) -> None:
        self._expire = expire
        self._log = log
        self._watch: asyncio.Task[None] | None = None  # Waits for the deadline; None also during an expiry.
        self._turn = asyncio.Lock()  # Held while a lease is changed, and while one expires.
        self.last_expiry = ""
        """Sentence that says what was done when a lease last ran out; empty if none has."""

    @property
    def is_held(self) -> bool:
        """Whether a trainer has a lease whose deadline is still to come."""
        return self._watch is not None

    async def renew(self, seconds: float) -> None:
        """Takes or renews the lease: the pause may last `seconds` from now on. If an expiry has begun, waits for its
        end first.
        """
        async with self._turn:
            if self._watch is not None:
                self._watch.cancel()
            self._watch = asyncio.get_running_loop().create_task(self._expire_in(seconds))

    async def end(self) -> None:
        """Ends the lease and leaves the engine paused. If an expiry has begun, waits for its end first."""
        async with self._turn:
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

    async def _expire_in(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with self._turn:  # A change of the lease before this point cancels this task.
            self._watch = None
            try:
                self.last_expiry = await self._expire()
            except Exception as error:
                self.last_expiry = f"failed, and the engine stays paused: {error}"
            self._log.warning("sparsecast: nobody renewed the lease of a pause: %s", self.last_expiry)

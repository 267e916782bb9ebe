# SPDX-License-Identifier: Apache-2.0
"""An event loop in a thread of its own, for calls to many engines at once from blocking code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines for other threads. Must not be waited for on its own thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Starts `coroutine`; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Runs `coroutine`, which has deadlines of its own, and returns its result or raises its exception."""
        return self.submit(coroutine).result()

    def call(self, function: Any, *arguments: Any) -> None:
        """Schedules `function` on the loop's thread."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, timeout: float = 5.0) -> None:
        """Ends the thread and cancels coroutines in progress."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)

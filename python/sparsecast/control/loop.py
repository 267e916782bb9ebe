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
    """An event loop in a thread of its own, which runs coroutines for other threads. Code on the loop's own thread must
    not call `run`, which would wait for itself forever.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Starts `coroutine` on the loop and returns a future for its result. Cancelling the future cancels the
        coroutine.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Runs `coroutine` on the loop, and returns its result or raises its exception. Waits without a deadline: the
        coroutine must have its own.
        """
        return self.submit(coroutine).result()

    def call(self, function: Any, *arguments: Any) -> None:
        """Schedules `function(*arguments)` on the loop's thread, and returns at once."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, timeout: float = 5.0) -> None:
        """Ends the loop, with the coroutines in progress, and waits up to `timeout` seconds for its thread."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)

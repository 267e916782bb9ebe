# SPDX-License-Identifier: Apache-2.0
"""What a person who runs the servers sees of them: when each served which version. The trainer knows nothing of it."""

from __future__ import annotations

import dataclasses
import threading
import time

import httpx

POLL_SECONDS = 0.25


@dataclasses.dataclass(frozen=True)
class Look:
    """What one server said of itself. `served` is None while it serves the checkpoint that it was started from."""

    at: float  # time.monotonic()
    served: int | None
    pause_seconds: float  # of its last pause
    bytes_read: int
    error: str


class Watch(threading.Thread):
    """Asks one server over and over what it serves, until `end`. `looks` has the answers; there are none while the
    server is away.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.looks: list[Look] = []
        self._url = url
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            try:
                answer = httpx.get(f"{self._url}/sparsecast/follow", timeout=10).raise_for_status().json()
            except httpx.HTTPError:
                continue
            workers = answer["workers"]
            read = sum(worker["bytes_read"] for worker in workers)
            look = Look(time.monotonic(), answer["served"], answer["pause_seconds"], read, answer["error"])
            self.looks.append(look)

    def end(self) -> None:
        self._ended.set()
        self.join()

    def now(self) -> Look | None:
        """What it said last; None if it does not answer."""
        last = self.looks[-1] if self.looks else None
        return last if last is not None and time.monotonic() - last.at < 10 * POLL_SECONDS else None

    def reached(self, version: int, since: float) -> tuple[float, float] | None:
        """When an answer after `since` first said that it served `version` or a newer one, and the pause for it, which the
        answer after that one has for certain; None if there was no such answer.
        """
        found = (index for index, look in enumerate(self.looks) if look.at >= since and (look.served or 0) >= version)
        index = next(found, None)
        if index is None:
            return None
        return self.looks[index].at, self.looks[min(index + 1, len(self.looks) - 1)].pause_seconds

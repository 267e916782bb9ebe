# SPDX-License-Identifier: Apache-2.0
"""Interface of the control plane to an inference server of any engine."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from sparsecast.control.endpoints import Endpoint, Placement
from sparsecast.control.http import HttpCaller
from sparsecast.control.world import WorldSpec


class PauseMode(str, enum.Enum):
    """What becomes of requests in flight while weights are written. The caller's choice, never ours.

    none     Generation goes on. A request may see weights of both versions in one forward pass.
    abort    Requests in flight are aborted; new ones wait (SGLang) or are refused with 503 (vLLM).
    wait     Requests in flight are finished first, and new ones refused. The pause may last. Not with SGLang.
    keep     Requests stop where they are, and go on with the new weights and their old KV cache.
    retract  The same, but their KV cache is computed anew with the new weights.
    """

    NONE = "none"
    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"
    RETRACT = "retract"


WEIGHTS = "weights"
KV_CACHE = "kv_cache"
MEMORY_TAGS = (WEIGHTS, KV_CACHE)

# Deadlines of the ranks are shorter than those of the calls that wait for them: if one rank is silent, all others have
# the time to say so, and only the server of the silent rank does not answer.
RANKS_SHARE = 0.9


@dataclass(frozen=True)
class EngineStatus:
    """State that a server reports of itself.

    version     None if it holds no version of the trainer (the weights of a checkpoint).
    world_size  ranks that hold weights; None if the server does not report it.
    paused      None if the server does not report it.
    """

    version: int | None
    world_size: int | None = None
    paused: bool | None = None


def parse_version(text: object) -> int | None:
    """Returns the version in the `weight_version` of a server; None if this library did not set it."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return None


class EngineClient(ABC):
    """Client of one server. Every call ends within its `timeout` (seconds), and raises `EndpointError` if it fails."""

    pause_modes: ClassVar[frozenset[PauseMode]]
    """Modes that `pause` supports."""

    def __init__(self, endpoint: Endpoint, http: HttpCaller) -> None:
        self.endpoint = endpoint
        self.http = http

    async def close(self) -> None:
        """Closes the connections."""
        await self.http.close()

    @abstractmethod
    async def health(self, timeout: float) -> EngineStatus:
        """Returns the state that the server reports. Raises if the server or its engine does not answer. Works while
        paused or asleep.
        """

    @abstractmethod
    async def join(self, world: WorldSpec, placement: Placement, timeout: float) -> None:
        """Makes the ranks of the engine join the world and its group; returns when they have. Blocks until all ranks of
        the world have come.
        """

    @abstractmethod
    async def leave(self, timeout: float) -> None:
        """Makes the engine leave its group."""

    @abstractmethod
    async def receive(self, base_version: int, timeout: float) -> None:
        """Makes the engine take part in the next sync of the trainer in the background; returns once it has begun.

        base_version   that the trainer publishes from: an engine at another version fails, here or in `apply`.
        """

    @abstractmethod
    async def staged(self, timeout: float) -> None:
        """Waits until the engine has received and checked the whole version; generation continues meanwhile."""

    @abstractmethod
    async def pause(self, mode: PauseMode, timeout: float) -> None:
        """Stops generation according to `mode`; not called with `PauseMode.NONE`."""

    @abstractmethod
    async def resume(self, timeout: float) -> None:
        """Ends a pause."""

    async def hold(self, seconds: float, timeout: float) -> bool:
        """Takes or renews a lease on the pause: the server resumes by itself when `seconds` pass without a call. 0 ends
        the lease. Returns False, and there is no lease, if the server has no such thing.
        """
        del seconds, timeout
        return False

    @abstractmethod
    async def apply(self, base_version: int, timeout: float) -> None:
        """Writes the received version into the live weights; returns when the whole group has verified it."""

    @abstractmethod
    async def finish(self, version: int, timeout: float) -> None:
        """Ends the update: the server reports `version` in its answers from now on."""

    @abstractmethod
    async def cancel(self, timeout: float) -> None:
        """Ends an update that failed, so that another can begin."""

    @abstractmethod
    async def flush(self, mode: PauseMode, timeout: float) -> None:
        """Drops prefixes of the old weights from the cache. Raises if the server could not."""

    @abstractmethod
    async def sleep(self, tags: tuple[str, ...], timeout: float) -> None:
        """Releases device memory of `tags`, which may be "weights" and "kv_cache"."""

    @abstractmethod
    async def wake(self, tags: tuple[str, ...], timeout: float) -> None:
        """Allocates released memory again. The content of weights is lost. Whether it then generates depends on the
        engine: call pause or resume.
        """

"""What the control plane asks of an inference server, whichever engine it runs."""

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

# The ranks' own deadlines are shorter than those of the calls that wait for them: when one rank is silent, all the
# others have the time to say so, and only the silent one's server does not answer.
RANKS_SHARE = 0.9


@dataclass(frozen=True)
class EngineStatus:
    """What a server says of itself.

    version     None if it holds none of ours (a checkpoint's weights).
    world_size  ranks that hold weights; None if the server does not say.
    paused      None if the server does not say.
    """

    version: int | None
    world_size: int | None = None
    paused: bool | None = None


def parse_version(text: object) -> int | None:
    """The version that a server's `weight_version` names; None for anything that this library has not set."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return None


class EngineClient(ABC):
    """One server. Every call ends within its `timeout` (seconds), and raises `EndpointError` if it fails."""

    pause_modes: ClassVar[frozenset[PauseMode]]
    """What `pause` can do."""

    def __init__(self, endpoint: Endpoint, http: HttpCaller) -> None:
        self.endpoint = endpoint
        self.http = http

    async def close(self) -> None:
        """Closes the connections."""
        await self.http.close()

    @abstractmethod
    async def health(self, timeout: float) -> EngineStatus:
        """Raises if the server or its engine does not answer; works while paused or asleep. What it says of itself."""

    @abstractmethod
    async def join(self, world: WorldSpec, placement: Placement, timeout: float) -> None:
        """Makes the engine's ranks meet the world and its group; returns when they have. Blocks as long as others do
        not come.
        """

    @abstractmethod
    async def leave(self, timeout: float) -> None:
        """Makes the engine leave its group."""

    @abstractmethod
    async def receive(self, base_version: int, timeout: float) -> None:
        """Makes the engine take part in the trainer's next sync in the background; returns once it has begun.

        base_version   that the trainer publishes from: an engine at another one refuses, here or in `apply`.
        """

    @abstractmethod
    async def staged(self, timeout: float) -> None:
        """Returns when the engine has received and checked everything, generation going on meanwhile."""

    @abstractmethod
    async def pause(self, mode: PauseMode, timeout: float) -> None:
        """Stops generation as `mode` says; not called with `PauseMode.NONE`."""

    @abstractmethod
    async def resume(self, timeout: float) -> None:
        """Takes `pause` back."""

    @abstractmethod
    async def apply(self, base_version: int, timeout: float) -> None:
        """Writes what was received into the live weights; returns when all of the group have verified the version."""

    @abstractmethod
    async def finish(self, version: int, timeout: float) -> None:
        """Closes the update: the server names `version` in its answers from now on."""

    @abstractmethod
    async def cancel(self, timeout: float) -> None:
        """Closes an update that failed, so that another can begin."""

    @abstractmethod
    async def flush(self, mode: PauseMode, timeout: float) -> None:
        """Drops cached prefixes of the old weights. Raises if the server could not."""

    @abstractmethod
    async def sleep(self, tags: tuple[str, ...], timeout: float) -> None:
        """Releases device memory: of `tags`, "weights" and "kv_cache"."""

    @abstractmethod
    async def wake(self, tags: tuple[str, ...], timeout: float) -> None:
        """Takes released memory again. The content of weights is lost. Whether it generates then differs: pause or
        resume.
        """

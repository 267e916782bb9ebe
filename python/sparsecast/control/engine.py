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
    """Mode of a pause: what happens to requests in flight while weights are written. The caller chooses it.

    none     There is no pause. A request may see weights of both versions in one forward pass.
    abort    Requests in flight are aborted; new requests wait (SGLang) or are refused with 503 (vLLM).
    wait     Requests in flight are finished first, which may take long; new requests are refused. SGLang does not
             support this mode.
    keep     Requests stop where they are, and go on with the new weights and their old KV cache.
    retract  Requests stop where they are, and go on with a KV cache that is computed again with the new weights.
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
    """Status of an engine, as its server reports it.

    version     version of the trainer's weights; None if the server has only the weights of a checkpoint.
    world_size  number of ranks that hold weights; None if the server does not report it.
    paused      whether generation is paused; None if the server does not report it.
    """

    version: int | None
    world_size: int | None = None
    paused: bool | None = None


def parse_version(text: object) -> int | None:
    """Returns the version number in a server's `weight_version`; None if it is not a number, and so was not set by this
    library.
    """
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return None


class EngineClient(ABC):
    """Client of one inference server. Every call ends within its `timeout` (seconds), and raises `EndpointError` if it
    fails.
    """

    pause_modes: ClassVar[frozenset[PauseMode]]
    """Modes that `pause` supports with this kind of engine."""

    def __init__(self, endpoint: Endpoint, http: HttpCaller) -> None:
        self.endpoint = endpoint
        self.http = http

    async def close(self) -> None:
        """Closes the connections to the server."""
        await self.http.close()

    @abstractmethod
    async def health(self, timeout: float) -> EngineStatus:
        """Returns the status of the engine, as its server reports it. Works also while the engine is paused or asleep.
        Raises `EndpointError` if the server or its engine does not answer.
        """

    @abstractmethod
    async def join(self, world: WorldSpec, placement: Placement, timeout: float) -> None:
        """Makes the ranks of the engine join the world and its group. Returns when all ranks of the world have met."""

    @abstractmethod
    async def leave(self, timeout: float) -> None:
        """Makes the engine leave its group."""

    @abstractmethod
    async def receive(self, base_version: int, timeout: float) -> None:
        """Makes the engine receive the next sync of the trainer in the background. Returns once the engine has begun.

        base_version   version that the trainer updates from: an engine at another version fails, here or in `apply`.
        """

    @abstractmethod
    async def staged(self, timeout: float) -> None:
        """Returns when the engine has received and checked the whole next version; generation goes on meanwhile."""

    @abstractmethod
    async def pause(self, mode: PauseMode, timeout: float) -> None:
        """Stops generation according to `mode`; not called with `PauseMode.NONE`."""

    @abstractmethod
    async def resume(self, timeout: float) -> None:
        """Ends a pause: the engine generates again."""

    async def hold(self, seconds: float, timeout: float) -> bool:
        """Takes or renews a lease on the pause: the server resumes by itself if it gets no call of `hold` for
        `seconds`. 0 ends the lease. Returns False, without a lease, if the server does not support leases.
        """
        del seconds, timeout
        return False

    @abstractmethod
    async def apply(self, base_version: int, timeout: float) -> None:
        """Writes the received version into the live weights. Returns when the whole group has verified the version."""

    @abstractmethod
    async def finish(self, version: int, timeout: float) -> None:
        """Ends the update: the server reports `version` in its answers from now on."""

    @abstractmethod
    async def cancel(self, timeout: float) -> None:
        """Ends an update that failed, so that another update can begin."""

    @abstractmethod
    async def flush(self, mode: PauseMode, timeout: float) -> None:
        """Drops cached prefixes that were computed with the old weights. Raises `EndpointError` if the server could not
        drop them. `mode` is the pause mode of the sync.
        """

    @abstractmethod
    async def sleep(self, tags: tuple[str, ...], timeout: float) -> None:
        """Releases the device memory that `tags` name: "weights", "kv_cache", or both."""

    @abstractmethod
    async def wake(self, tags: tuple[str, ...], timeout: float) -> None:
        """Allocates again the device memory, named by `tags`, that `sleep` has released. Weights come back with
        undefined content. Some kinds of engines then generate again and others do not, so call `pause` or `resume`
        afterwards.
        """

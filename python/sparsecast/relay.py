# SPDX-License-Identifier: Apache-2.0
"""Relays a live world to a delta log: an engine of one rank that writes every version that it receives to the log.

For trainers of several ranks, where no rank holds all shards: they publish to the world, and the relay, on any machine,
commits every version to the log, which other clusters read. It holds all tensors in host memory twice: its own copy,
and the version that the readers of the log have.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from . import _core
from ._core import Box, Layout, LocalTensor, Memory, RankLayout, Shard, ShardedSubscriber, TensorTable
from ._process import ProcessMark
from .buffers import describe
from .errors import UnsupportedError, UsageError
from .transports import Log, Met, Mpi, World

_CARRIERS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
_SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I16": 2, "I32": 4, "I64": 8}  # The others have one byte.


@dataclasses.dataclass(frozen=True)
class Relayed:
    """Report of a version that the relay has received and that is durable in the log."""

    version: int  #: Version in the log.
    live_version: int  #: Version in the world.
    changed: int
    wire_bytes: int  #: Size of the delta's object in the log.
    digest: str


class LogRelay:
    """Receives the versions of a world and commits each to a log. Call from one thread.

    ``tensors`` are the trainer's tensors, as (name, safetensors dtype, shape), without the aliases of tied tensors.
    ``world`` has the rank of the relay as its ``rank_offset``; ``engine`` is the name of the relay there. ``log`` needs
    a mirror. If the log exists, the relay continues it: the next version of the log is the difference between its
    newest version and the world's. ``threads`` is the number of CPU threads.
    """

    def __init__(
        self,
        tensors: Sequence[tuple[str, str, Sequence[int]]],
        *,
        world: World | Mpi | Met,
        log: Log,
        engine: str = "log",
        threads: int = 1,
    ) -> None:
        if not _core.has_log:
            raise UnsupportedError("this build of sparsecast has no delta logs (libsodium was not found)")
        if not log.mirror:
            raise UsageError("a relay needs Log(mirror=...): a path for anchors")
        self._world = world
        self._log = log
        self._threads = threads
        specs = sorted(((n, d, tuple(s)) for n, d, s in tensors), key=lambda spec: spec[0].encode())
        self._table = TensorTable(specs)
        self._memory = [_memory(dtype, shape) for _, dtype, shape in specs]
        self._publisher: _core.LogPublisher | None = None
        if _core.log_head(log.location, list(log.trusted_keys), log.timeout) is not None:
            self._follow_to_head()
            self._publisher = self._open()
        self._subscriber = ShardedSubscriber(
            engine, _whole(self._table, self._memory), 0, self._memory, needs_anchor=True, threads=threads
        )
        self._met = False
        self._process = ProcessMark()

    @property
    def version(self) -> int | None:
        """Newest version of the log; None if there is no log yet, so that this relay has still to create it."""
        return self._publisher.version if self._publisher is not None else None

    @property
    def digest(self) -> str | None:
        """State digest of :attr:`version`; None if there is no log yet."""
        return self._publisher.digest if self._publisher is not None else None

    def regroup(self, world: World | Mpi | Met | None = None) -> None:
        """Meets the other ranks of ``world`` (None: the previous one) again and receives the version that they have. If
        there is no log yet, creates it with this version. step() calls this function when it is needed.
        """
        self._process.require_here()
        self._world = world or self._world
        self._met = False
        channel = self._world.open(0)
        self._subscriber.regroup(channel, channels=self._world.channels, timeout=self._world.timeout)
        self._met = True
        if self._publisher is None:
            _core.create_log(
                self._log.location,
                self._table,
                self._memory,
                anchor_path=self._log.mirror,
                version=self._subscriber.version,
                key=self._log.key,
                threads=self._threads,
                timeout=self._log.timeout,
            )
            self._publisher = self._open()

    def step(self, label: str = "") -> Relayed:
        """Receives the next version of the world, and returns the report when the version is durable in the log.
        ``label`` is text for people that the log stores with the version (empty: the version number in the world).

        After an error of the world, the next step meets the other ranks again. After an error of the log, the version
        of the next step includes the changes that were not committed. FencedError is final: another publisher has taken
        over the log.
        """
        if not self._met:
            self.regroup()
        try:
            live = self._subscriber.sync(self._world.timeout)
        except BaseException:
            self._met = False
            raise
        assert self._publisher is not None
        self._publisher.publish(label or f"live version {live.version}")
        done = self._publisher.wait(self._log.timeout)
        return Relayed(done.version, live.version, done.changed, done.wire_bytes, done.digest)

    def close(self) -> None:
        """Waits until anchors and merged deltas are durable in the log, at most for the timeout of the log, and drops
        the publisher.
        """
        if self._publisher is not None:
            self._publisher.wait_maintenance(self._log.timeout)
            self._publisher = None

    def _open(self) -> _core.LogPublisher:
        return _core.LogPublisher(
            self._log.location,
            self._table,
            self._memory,
            key=self._log.key,
            trusted_keys=list(self._log.trusted_keys),
            mirror=self._log.mirror,
            deadline=self._log.timeout,
            threads=self._threads,
        )

    def _follow_to_head(self) -> None:
        """Fills the memory of this relay with the newest version of the log, from which its publisher starts."""
        state = pathlib.Path(self._log.state or f"{self._log.mirror}.relay")
        (state / "scratch").mkdir(parents=True, exist_ok=True)
        follower = _core.LogFollower(
            self._log.location,
            self._table,
            self._memory,
            state_path=state / "follower",
            scratch=state / "scratch",
            trusted_keys=list(self._log.trusted_keys),
            threads=self._threads,
            timeout=self._log.timeout,
        )
        follower.step()


def _memory(dtype: str, shape: tuple[int, ...]) -> Memory:
    try:
        import numpy as np  # Nothing else of sparsecast.torch needs it.
    except ModuleNotFoundError:
        raise UnsupportedError("a relay keeps its weights in arrays of numpy: pip install numpy") from None
    return describe(np.zeros(shape, dtype=_CARRIERS[_SIZES.get(dtype, 1)]), dtype=dtype)


def _whole(table: TensorTable, memory: Sequence[Memory]) -> Layout:
    """Returns the layout of one rank that holds every tensor of the table whole, in the memory of the same index."""
    local, shards = [], []
    for index, ((name, dtype, shape), one) in enumerate(zip(table, memory, strict=True)):
        local.append(LocalTensor(name, dtype, one.elements))
        if one.elements:
            shards.append(Shard(index, Box([0] * len(shape), shape), index, 0, one.strides))
    return Layout(table, [RankLayout(local, shards)])

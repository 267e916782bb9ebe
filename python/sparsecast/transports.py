"""How a trainer and its engines reach each other: plain descriptions, made before any connection is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from ._core import ControlChannel, meet, mpi_channel
from .errors import UsageError

#: How records travel: over the world's own TCP connections, MPI communicators, or NCCL ones.
Channels = Literal["control", "mpi", "nccl"]
CHANNELS: tuple[str, ...] = get_args(Channels)


@dataclasses.dataclass(frozen=True)
class World:
    """A world of ranks that meets over TCP: all ranks of the trainer and of all engines.

    World rank 0 listens at ``host``:``port``; every rank knows the ``secret`` (at least 16 characters). The trainer's
    ranks come first, from ``rank_offset`` on; each engine's have an offset of their own. ``generation`` tells groups
    apart that meet there one after another: whoever changes the membership counts it up. ``timeout`` in seconds, of
    meeting and of a sync.
    """

    host: str
    port: int
    secret: str = dataclasses.field(repr=False)
    size: int
    rank_offset: int = 0
    generation: int = 0
    channels: Channels = "control"
    interface: str = ""
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise UsageError(f"port {self.port} is not between 1 and 65535")
        if not self.secret:
            raise UsageError("a world needs a secret")
        if self.channels not in CHANNELS:
            raise UsageError(f"there are no channels '{self.channels}': {', '.join(CHANNELS)}")
        if not 0 <= self.rank_offset < self.size:
            raise UsageError(f"rank {self.rank_offset} is not in a world of {self.size}")

    def open(self, rank: int) -> ControlChannel:
        """Meets as rank ``rank_offset + rank``; returns when all are there. See :func:`sparsecast.meet`."""
        return meet(
            self.host,
            self.port,
            rank=self.rank_offset + rank,
            size=self.size,
            secret=self.secret,
            generation=self.generation,
            interface=self.interface,
            timeout=self.timeout,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, the secret among them: for a confidential message only."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> World:
        """Inverse of :meth:`to_json`. UsageError for unknown, missing or mistyped fields."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in fields.items():
            if name not in known:
                raise UsageError(f"a world has no field '{name}'")
            kind: Any = {"float": (int, float), "int": int}.get(str(known[name].type), str)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise UsageError(f"the field '{name}' of a world must be {known[name].type}, not {value!r}")
        missing = [f.name for f in known.values() if f.default is dataclasses.MISSING and f.name not in fields]
        if missing:
            raise UsageError(f"a world lacks {', '.join(missing)}")
        return cls(**fields)


@dataclasses.dataclass(frozen=True)
class Mpi:
    """The ranks of ``MPI_COMM_WORLD``, under one ``mpirun``, in whatever order trainer and engines have there."""

    channels: Channels = "mpi"
    timeout: float = 60.0

    def open(self, rank: int) -> ControlChannel:
        """The control channel; ``rank`` is what MPI says."""
        del rank
        return mpi_channel()


@dataclasses.dataclass(frozen=True)
class Met:
    """A control channel of the caller's own making: ``meet(generation)`` is called for each regroup."""

    meet: Callable[[int], ControlChannel]
    channels: Channels = "control"
    timeout: float = 60.0
    generation: int = 0

    def open(self, rank: int) -> ControlChannel:
        """Calls :attr:`meet`."""
        del rank
        return self.meet(self.generation)


@dataclasses.dataclass(frozen=True)
class Log:
    """A delta log at ``location``: a directory or ``s3://bucket/prefix`` (docs/delta-log.md).

    Publishers: ``key`` is the path of a signing key; ``mirror`` a path (``*.safetensors``) on this machine's disk where
    a checkpoint follows the log, from which anchors and merged deltas are made. Readers: ``trusted_keys`` are public
    keys ("ed25519:..."), ``state`` a directory of their own for what they remember and fetch. ``timeout`` in seconds.
    """

    location: str
    key: str | None = None
    trusted_keys: tuple[str, ...] = ()
    mirror: str = ""
    state: str = ""
    lease: str = ""
    timeout: float = 120.0


Transport = World | Mpi | Met | Log

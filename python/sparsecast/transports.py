# SPDX-License-Identifier: Apache-2.0
"""Descriptions of how a trainer and its engines connect. Plain data; no connection is made before open()."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from ._core import ControlChannel, MeetingCancellation, meet, mpi_channel
from .errors import UsageError
from .stores import Store

#: Type of an argument that is a path.
AnyPath = str | os.PathLike[str]


def path_text(path: AnyPath) -> str:
    """Returns a path as a string, without changing it in any other way. Raises UsageError if it is neither a str nor an
    os.PathLike.
    """
    try:
        return os.fsdecode(path)
    except TypeError:
        raise UsageError(f"{path!r} is not a path: a str or an os.PathLike") from None


def keep_paths(fields: Any, *names: str) -> None:
    """Replaces these fields of a frozen dataclass, which are paths, by strings, so that paths of either type compare
    alike. Fields that are None stay None.

    Raises UsageError naming a field that is not a path.
    """
    for name in names:
        value = getattr(fields, name)
        if value is not None:
            try:
                object.__setattr__(fields, name, path_text(value))
            except UsageError as error:
                raise UsageError(f"{name}: {error}") from None


def address_facing(host: str, port: int) -> str:
    """Returns the address of this machine from which it would send packets to ``host``:``port``. Nothing is sent.

    Raises OSError if the host is not known or cannot be reached.
    """
    kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def free_port() -> int:
    """Returns the number of a TCP port of this machine on which nobody listens at this moment."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


#: Transport of records: the TCP connections of the world, MPI communicators, or NCCL communicators.
Channels = Literal["control", "mpi", "nccl"]
CHANNELS: tuple[str, ...] = get_args(Channels)


@dataclasses.dataclass(frozen=True)
class World:
    """A world of ranks that meets over TCP: all ranks of the trainer and of all engines.

    World rank 0 listens at ``host``:``port``; every rank knows the ``secret`` (at least 16 characters). The ranks of
    the trainer come first; the ranks of each engine follow, from a ``rank_offset`` of their own on. ``generation``
    distinguishes successive groups that meet at the same place: whoever changes the membership increments it.
    ``channels`` is the transport that carries weights, and ``interface`` the network interface of this rank (empty:
    any). ``timeout`` is in seconds, for meeting and for a sync; ``reach_timeout`` is the part of it in which rank 0
    must listen (None: all of it). ``congestion`` is the TCP congestion control of the ranks' sockets, such as "bbr"
    (empty: ``SPARSECAST_CONGESTION`` in the environment, else the system's default).
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
    reach_timeout: float | None = None
    congestion: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise UsageError(f"port {self.port} is not between 1 and 65535")
        if not self.secret:
            raise UsageError("a world needs a secret")
        if self.channels not in CHANNELS:
            raise UsageError(f"there are no channels '{self.channels}': {', '.join(CHANNELS)}")
        if not 0 <= self.rank_offset < self.size:
            raise UsageError(f"rank {self.rank_offset} is not in a world of {self.size}")

    def open(self, rank: int, cancellation: MeetingCancellation | None = None) -> ControlChannel:
        """Meets the other ranks as rank ``rank_offset + rank``. Returns the control channel when all ranks are there.
        See :func:`sparsecast.meet`.
        """
        return meet(
            self.host,
            self.port,
            rank=self.rank_offset + rank,
            size=self.size,
            secret=self.secret,
            generation=self.generation,
            interface=self.interface,
            congestion=self.congestion,
            timeout=self.timeout,
            cancellation=cancellation,
            reach_timeout=self.reach_timeout,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, including the secret: send them only in a confidential message."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> World:
        """Returns the world that :meth:`to_json` has turned into JSON values. Raises UsageError for unknown, missing or
        mistyped fields.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in fields.items():
            if name not in known:
                raise UsageError(f"a world has no field '{name}'")
            kinds = {"float": (int, float), "float | None": (int, float, type(None)), "int": int}
            kind: Any = kinds.get(str(known[name].type), str)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise UsageError(f"the field '{name}' of a world must be {known[name].type}, not {value!r}")
        missing = [f.name for f in known.values() if f.default is dataclasses.MISSING and f.name not in fields]
        if missing:
            raise UsageError(f"a world lacks {', '.join(missing)}")
        return cls(**fields)


@dataclasses.dataclass(frozen=True)
class Mpi:
    """The world of the ranks of ``MPI_COMM_WORLD`` under one ``mpirun``; ranks of the trainer and of engines may be in
    any order. ``channels`` is the transport that carries weights, and ``timeout`` the seconds for a sync.
    """

    channels: Channels = "mpi"
    timeout: float = 60.0

    def open(self, rank: int) -> ControlChannel:
        """Returns the control channel over MPI, which decides the rank of this process; ``rank`` is ignored."""
        del rank
        return mpi_channel()


@dataclasses.dataclass(frozen=True)
class Met:
    """A world whose control channel the caller makes: every regroup calls ``meet(generation)``. ``channels`` is the
    transport that carries weights, and ``timeout`` the seconds for a sync.
    """

    meet: Callable[[int], ControlChannel]
    channels: Channels = "control"
    timeout: float = 60.0
    generation: int = 0

    def open(self, rank: int) -> ControlChannel:
        """Returns the control channel that :attr:`meet` makes; ``rank`` is ignored."""
        del rank
        return self.meet(self.generation)


@dataclasses.dataclass(frozen=True)
class Log:
    """A delta log at ``location``: a directory, ``s3://bucket/prefix`` or a :class:`sparsecast.stores.Store`
    (docs/delta-log.md).

    For publishers, ``key`` is the path of a signing key, and ``mirror`` the path of a checkpoint (``*.safetensors``) on
    the local disk that is kept at the newest version; anchors and merged deltas are made from it. For readers,
    ``trusted_keys`` are public keys ("ed25519:..."), and ``state`` is a directory that no other reader uses; it holds
    fetched objects, and what the reader remembers of the log. ``lease`` is the name of a lease that keeps the objects
    that the reader needs from being removed (empty: none). ``timeout`` is in seconds, for a request to a directory or
    bucket; a ``Store`` has time-outs of its own. Paths may be any ``os.PathLike``; they are kept as strings.
    """

    location: AnyPath | Store
    key: AnyPath | None = None
    trusted_keys: tuple[str, ...] = ()
    mirror: AnyPath = ""
    state: AnyPath = ""
    lease: str = ""
    timeout: float = 120.0

    def __post_init__(self) -> None:
        keep_paths(self, "key", "mirror", "state")
        if not isinstance(self.location, Store):
            keep_paths(self, "location")

    @property
    def place(self) -> str:
        """The location as text, for messages."""
        return self.location.location if isinstance(self.location, Store) else path_text(self.location)


Transport = World | Mpi | Met | Log

# SPDX-License-Identifier: Apache-2.0
"""The group of engines with the trainer, and the next world to meet in."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from sparsecast.control.endpoints import MAX_RANKS, Placement, Registry, normalise_host
from sparsecast.control.fleet import Engine
from sparsecast.control.world import SyncSource, WorldSpec
from sparsecast.engines.fence import new_trainer_name
from sparsecast.errors import UsageError

CHANNELS = ("control", "mpi", "nccl")


class Group:
    """The group that the trainer and its engines made last. It is valid until a member fails or the membership changes.

    host, port   where rank 0 of the trainer listens, as engines reach it.
    channels     transport that carries the weights: "control", "mpi" or "nccl".
    """

    def __init__(self, registry: Registry, host: str, port: int, channels: str) -> None:
        if channels not in CHANNELS:
            raise UsageError(f"channels is {channels!r}, not one of {', '.join(CHANNELS)}")
        self.host, self.port = _meeting_place(host, port)
        self.channels = channels
        self.generation = -1  # that of the last world that ranks tried to meet in
        self.broken_by = "no group was made yet"
        self._registry = registry
        self._trainer = new_trainer_name()
        self._members: tuple[tuple[str, int], ...] = ()

    def world(
        self, source: SyncSource, placements: list[Placement], anchored: frozenset[str], timeout: float, lease: float
    ) -> WorldSpec:
        """Returns the description of a new world for ranks to meet in, with a new generation and a new secret. The
        group is invalid from now on, until `stands` is called. `anchored` names the engines to be seeded, `timeout` is
        for meeting and seeding, and `lease` is the length of leases on pauses, both in seconds; `lease` is 0 if there
        are none.
        """
        size = source.ranks + sum(placement.endpoint.world_size for placement in placements)
        if size > MAX_RANKS:
            raise UsageError(f"the trainer and {len(placements)} endpoints have {size} ranks; {MAX_RANKS} are possible")
        generation = self._registry.generation
        if generation <= self.generation:
            generation = self._registry.renew()
        self.generation = generation
        self.break_up("the group is being made")
        return WorldSpec(
            host=self.host,
            port=self.port,
            size=size,
            trainer_ranks=source.ranks,
            placements=tuple(placements),
            generation=generation,
            trainer=self._trainer,
            secret=secrets.token_hex(32),
            channels=self.channels,
            tensors=tuple(source.tensors),
            ties=tuple(source.ties),
            anchored=anchored,
            timeout=timeout,
            reach_timeout=min(lease, timeout) if lease > 0 else None,
        )

    def stands(self, engines: Iterable[Engine]) -> None:
        """Records that the trainer and all of `engines` have met: the group is valid, with these members."""
        self._members = tuple(engine.endpoint.key for engine in engines)
        self.broken_by = ""

    def meet_at(self, host: str, port: int) -> None:
        """Sets the host and port where ranks meet from the next regroup on. If they differ from the present ones, the
        next sync regroups.
        """
        place = _meeting_place(host, port)
        if place != (self.host, self.port):
            self.host, self.port = place
            self.break_up("ranks meet elsewhere now")

    def break_up(self, reason: str) -> None:
        """Makes the group invalid, for this reason: the next sync regroups."""
        self.broken_by = reason

    def is_of(self, engines: Iterable[Engine]) -> bool:
        """Returns whether the group is valid and has exactly these engines as members, in this order."""
        return not self.broken_by and self._members == tuple(engine.endpoint.key for engine in engines)


def _meeting_place(host: str, port: int) -> tuple[str, int]:
    plain = normalise_host(host)
    if plain in ("0.0.0.0", "::"):
        raise UsageError(f"host is {host}: engines need an address of the trainer's machine that they can connect to")
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise UsageError(f"port is {port!r}, not a whole number from 1 to 65535")
    return plain, port

# SPDX-License-Identifier: Apache-2.0
"""The sync world, and the interface of the control plane to the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparsecast.control.endpoints import Placement
from sparsecast.engines.release import own_release

TensorEntry = tuple[str, str, Sequence[int]]


@dataclass(frozen=True)
class WorldSpec:
    """Everything that a rank must know to meet the others (`sparsecast.meet`).

    host, port     where rank 0, the trainer's first rank, listens.
    size           ranks in the world: the trainer's, then those of `placements`.
    trainer_ranks  how many are the trainer's: ranks 0 to trainer_ranks - 1.
    placements     the engines and their ranks.
    generation     number of this world; no two worlds of a control plane share one.
    trainer        name of this control plane: an engine that has joined a newer one refuses it (`TrainerFence`).
    secret         shared secret by which ranks authenticate one another. New for every world; never shown.
    channels       what bytes travel by: "control", "mpi" or "nccl".
    tensors        the trainer's table: (name, dtype as safetensors names it, shape) each.
    ties           (alias, original): names of one tensor.
    anchored       names of the engines that hold nothing of use and must be seeded with all weights.
    timeout        seconds for meeting, making the group and seeding whoever needs it.
    reach_timeout  seconds in which engines must reach rank 0: one that has died must not block them for longer than
                   their lease. None: `timeout`.
    """

    host: str
    port: int
    size: int
    trainer_ranks: int
    placements: tuple[Placement, ...]
    generation: int
    trainer: str
    secret: str = field(repr=False)
    channels: str
    tensors: tuple[TensorEntry, ...] = field(repr=False)
    ties: tuple[tuple[str, str], ...] = field(repr=False)
    anchored: frozenset[str]
    timeout: float
    reach_timeout: float | None = None


def engine_fields(world: WorldSpec, placement: Placement) -> dict[str, Any]:
    """Returns the fields that engines of both kinds are told, except where they meet; plain JSON."""
    endpoint = placement.endpoint
    return {
        **endpoint.options,
        "release": own_release(),
        "trainer": world.trainer,
        "secret": world.secret,
        "generation": world.generation,
        "channels": world.channels,
        "engine": endpoint.name,
        "timeout": world.timeout,
        **({"reach_timeout": world.reach_timeout} if world.reach_timeout is not None else {}),
        "version": endpoint.start_version,
        "tensors": [[name, dtype, list(shape)] for name, dtype, shape in world.tensors],
        "ties": [list(pair) for pair in world.ties],
    }


class SourceReport(Protocol):
    """Report of the trainer on a sync. Further optional fields: density (changed / all elements), changed, sent_bytes,
    received_bytes, encode_seconds, wire_seconds, apply_seconds, total_seconds, digest.
    """

    @property
    def version(self) -> int:
        """Version that every engine has committed."""


class SyncSource(Protocol):
    """The trainer's side of the control plane. `PublisherSource` makes one of a `sparsecast.torch.Publisher`.

    `regroup` and `sync` are called one at a time, from the thread that called the control plane or from one of the HTTP
    service. A source that trains meanwhile must itself keep the weights unchanged. They end, or raise, within their
    timeout. With several trainer ranks the control plane runs beside rank 0, whose source makes the others follow.

    A source may have a method `abort(reason: str) -> None`, called from another thread: it makes a `regroup` or `sync`
    in progress raise soon, and does nothing otherwise. Without it, the failure of an engine ends the sync at its
    deadline.
    It may have an attribute `met: bool`, whether all ranks of the last regroup have met: before that no engine is
    written to, so that those paused for their seeding can go on with what they have. Without it they stay paused.
    """

    @property
    def ranks(self) -> int:
        """Number of ranks of the trainer in the sync world."""

    @property
    def version(self) -> int:
        """Newest committed version."""

    @property
    def tensors(self) -> Sequence[TensorEntry]:
        """All tensors under the names that engines know: (name, safetensors dtype, shape)."""

    @property
    def ties(self) -> Sequence[tuple[str, str]]:
        """Pairs (alias, original) of names of one tensor."""

    def regroup(self, world: WorldSpec) -> None:
        """Meets the ranks of `world` as its ranks 0 to `ranks - 1` and makes a group, within `world.timeout`."""

    def sync(self, timeout: float) -> SourceReport:
        """Publishes what changed and returns when every engine rank has applied it."""

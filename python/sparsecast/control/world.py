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
    """Everything that a rank must know to meet the other ranks (`sparsecast.meet`).

    host, port     where rank 0, the trainer's first rank, listens.
    size           number of ranks in the world: the trainer's, followed by those of `placements`.
    trainer_ranks  number of the trainer's ranks, which are 0 to trainer_ranks - 1.
    placements     the engines, with their ranks.
    generation     number of this world; no two worlds of a control plane share one.
    trainer        name of this control plane: an engine that has since joined another control plane refuses its calls
                   (`TrainerFence`).
    secret         shared secret by which ranks authenticate one another. New for every world; never shown.
    channels       transport that carries weights: "control", "mpi" or "nccl".
    tensors        all tensors of the trainer: (name, dtype as safetensors names it, shape).
    ties           pairs (alias, original) of names that are one tensor.
    anchored       names of the engines whose weights are not usable, which must be seeded with all weights.
    timeout        seconds for meeting, making the group and seeding the engines in `anchored`.
    reach_timeout  seconds in which engines must reach rank 0: a trainer that has died must not block them for longer
                   than their lease. None: `timeout`.
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
    """Returns, as JSON values, the fields that SGLang and vLLM engines both get when they join: everything but the
    address and ranks of the meeting.
    """
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
    """The trainer's report of one sync. It may have more fields: density (changed / all elements), changed, sent_bytes,
    received_bytes, encode_seconds, wire_seconds, apply_seconds, total_seconds, digest.
    """

    @property
    def version(self) -> int:
        """Version that every engine has committed."""


class SyncSource(Protocol):
    """The trainer's side of the control plane. `PublisherSource` makes one of a `sparsecast.torch.Publisher`.

    `regroup` and `sync` are called one at a time, from the thread that called the control plane or from a thread of the
    HTTP service. They return or raise within their timeout. A source that trains meanwhile must itself keep the weights
    unchanged. With several trainer ranks the control plane runs on rank 0, whose source makes the other ranks follow.

    A source may have a method `abort(reason: str) -> None`, called from another thread. It makes a `regroup` or `sync`
    in progress raise soon, and does nothing if there is none. Without `abort`, the failure of an engine ends the sync
    only at its deadline.

    A source may have an attribute `met: bool`: whether all ranks of the last regroup have met. Before that no engine is
    written to, so that engines that were paused for seeding can go on with the weights that they have. Without `met`
    they stay paused.
    """

    @property
    def ranks(self) -> int:
        """Number of ranks of the trainer in the sync world."""

    @property
    def version(self) -> int:
        """Newest committed version of the weights."""

    @property
    def tensors(self) -> Sequence[TensorEntry]:
        """All tensors under the names that engines know: (name, safetensors dtype, shape)."""

    @property
    def ties(self) -> Sequence[tuple[str, str]]:
        """Pairs (alias, original) of names that are one tensor."""

    def regroup(self, world: WorldSpec) -> None:
        """Meets the other ranks of `world` as ranks 0 to `ranks - 1`, and makes a group, within `world.timeout`
        seconds.
        """

    def sync(self, timeout: float) -> SourceReport:
        """Publishes the changes since the last sync, and returns when every rank of every engine has applied them,
        within `timeout` seconds.
        """

# SPDX-License-Identifier: Apache-2.0
"""`sparsecast.torch.Publisher` as the trainer's side of a control plane."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from sparsecast.control.world import TensorEntry, WorldSpec
from sparsecast.errors import UsageError

if TYPE_CHECKING:
    from sparsecast import ControlChannel
    from sparsecast.torch import Publisher
    from sparsecast.torch.report import PublishReport
    from sparsecast.transports import Channels, Transport, World


@dataclass(frozen=True)
class PublisherReport:
    """The trainer's report of one sync (`SourceReport`).

    version      version that every engine has committed.
    step         optimizer step, if known.
    density      `changed` / `elements`, from 0 to 1.
    elements     number of elements that were compared with the version before. An element that goes to engines with
                 different shards counts once for each. `changed` is the number of those that changed.
    sent_bytes   bytes on the wire; `dense_bytes` is the size of all elements in bytes.
    digest       digest of all tensors at this version, as hexadecimal digits.
    """

    version: int
    step: int | None
    density: float
    elements: int
    changed: int
    sent_bytes: int
    dense_bytes: int
    encode_seconds: float
    wire_seconds: float
    total_seconds: float
    digest: str


class PublishedTable:
    """Base of both kinds of source: holds the publisher and reports its tensors, its version, and whether its ranks
    have met.
    """

    def __init__(self, publisher: Publisher) -> None:
        self.ranks = len(publisher.layout.ranks)
        self._publisher = publisher
        self._tensors = list(publisher.layout.table)
        self._meeting: Meeting | None = None

    @property
    def version(self) -> int:
        """Newest committed version of the weights."""
        return self._publisher.version

    @property
    def tensors(self) -> Sequence[TensorEntry]:
        """All tensors of the publisher's layout: (name, safetensors dtype, shape)."""
        return self._tensors

    @property
    def ties(self) -> Sequence[tuple[str, str]]:
        """Pairs (alias, original) of names that are one tensor in the publisher's layout."""
        return list(self._publisher.layout.ties)

    @property
    def met(self) -> bool:
        """Whether all ranks of the world of the last `regroup` have met."""
        return self._meeting is not None and self._meeting.met

    def abort(self, reason: str) -> None:
        """Makes the `regroup` or `sync` in progress raise soon, here and on every rank that takes part. Thread-safe.

        The group is broken afterwards: `regroup` must follow.
        """
        if self._meeting is not None:
            self._meeting.abort(reason)

    def _meet(self, world: World) -> None:
        self._meeting = Meeting(world)
        self._publisher.regroup(cast("Transport", self._meeting))

    def _met(self) -> Meeting:
        if self._meeting is None:
            raise UsageError("sync() comes after regroup()")
        return self._meeting


class PublisherSource(PublishedTable):
    """The trainer's side of a control plane for a trainer of one rank. `publisher` needs no transport: every regroup
    gives it one.

    The weights must not change while `ControlPlane.sync_now` runs: call it between optimizer steps, or from the HTTP
    service while the trainer waits. Raises `UsageError` for a trainer of several ranks, which must regroup and publish
    together: use `DistributedSource` there.
    """

    def __init__(self, publisher: Publisher) -> None:
        super().__init__(publisher)
        if self.ranks != 1:
            raise UsageError(f"the trainer has {self.ranks} ranks: DistributedSource leads them all")

    def regroup(self, world: WorldSpec) -> None:
        """Meets the engines as rank 0 of `world`, and makes a group with them."""
        self._meet(world_of(world))

    def sync(self, timeout: float) -> PublisherReport:
        """Publishes the changes since the last sync, within `timeout` seconds, and returns the report when every engine
        has applied them.
        """
        self._met().timeout = timeout
        return report_of(self._publisher.publish())  # waits, so it is no future


def world_of(spec: WorldSpec) -> World:
    """Returns the description of the world by which each trainer rank meets the other ranks: rank r of the trainer is
    rank r of the world.
    """
    from sparsecast.transports import World

    return World(
        host=spec.host,
        port=spec.port,
        secret=spec.secret,
        size=spec.size,
        generation=spec.generation,
        channels=cast("Channels", spec.channels),
        timeout=spec.timeout,
    )


class Meeting:
    """Transport for one world. Its attribute `timeout`, in seconds, may be set before each call, and another thread can
    end a wait by `abort`.
    """

    def __init__(self, world: World) -> None:
        from sparsecast import MeetingCancellation

        self.channels = world.channels
        self.timeout = world.timeout
        self._world = world
        self._lock = threading.Lock()  # guards the attributes below
        self._meeting = MeetingCancellation()
        self._channel: ControlChannel | None = None
        self._given_up: str | None = None

    def open(self, rank: int) -> ControlChannel:
        """Meets the other ranks as rank `rank`, and returns the control channel."""
        channel = self._world.open(rank, self._meeting)
        with self._lock:
            self._channel = channel
            reason = self._given_up
        if reason is not None:
            channel.abort(reason)
        return channel

    @property
    def met(self) -> bool:
        """Whether all ranks of the world have met."""
        return self._channel is not None

    def abort(self, reason: str) -> None:
        """Ends the meeting, or the waits in its control channel: they raise with this reason, here and on all ranks
        that have come. Thread-safe.
        """
        with self._lock:
            self._given_up = self._given_up or reason
            channel = self._channel
        self._meeting.cancel(reason)
        if channel is not None:
            channel.abort(reason)


def report_of(report: PublishReport) -> PublisherReport:
    """Returns a publisher's report, converted into the report of a source."""
    elements, changed, sent_bytes, dense_bytes = report.totals()
    return PublisherReport(
        version=report.version,
        step=report.step,
        density=report.density,
        elements=elements,
        changed=changed,
        sent_bytes=sent_bytes,
        dense_bytes=dense_bytes,
        encode_seconds=report.seconds.get("encode", 0.0),
        wire_seconds=report.seconds.get("wire", 0.0),
        total_seconds=report.seconds.get("total", 0.0),
        digest=report.digest,
    )

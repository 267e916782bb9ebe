# SPDX-License-Identifier: Apache-2.0
"""Chunks of a sync: a delta over some tensors each, from the mirror of the sender to those of the rollout workers.

A chunk has tensors that are new, from zeros, or tensors that changed, from the values of the step before. The
`Publisher` and the `Subscriber` made for the chunk hold what they need for as long as the chunk lasts, so that what
stays in host memory between syncs is one copy. They check release, stream, versions and digests by themselves.

If a delta log carries the records, a chunk only names its tensors, and all of them are one version of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from sparsecast import Publisher, Subscriber
from sparsecast.errors import DigestMismatchError, Error, UsageError, WrongBaseError

from ._checkpoint_group import Group, Plan
from ._log_end import LogEnd
from ._mirror import Entry, Mirror

_MOST_TENSORS = 1024
"""Most tensors of one chunk. The message that names them then stays below 1 MiB, the limit of a control channel."""

_MOST_BYTES = 1 << 30
"""Largest size of a chunk before it is sent, in bytes of its tensors; the last tensor may exceed it."""


@dataclass
class Totals:
    """Figures of one sync.

    tensors, elements  numbers of all tensors and all their elements in the export.
    sent_tensors       number of tensors that were sent; `changed` of their elements changed.
    record_bytes       size in bytes of the records that were sent, in `chunks` chunks; anchors of a log do not count.
    """

    tensors: int = 0
    elements: int = 0
    sent_tensors: int = 0
    changed: int = 0
    chunks: int = 0
    record_bytes: int = 0


@dataclass
class _Waiting:
    """Tensors that wait for the next chunk. `changes` has, by tensor name, pairs (positions, new elements) that are to
    be written into the mirror; positions are None for all elements. `nbytes` is the size of these tensors.
    """

    changes: dict[str, list[tuple[torch.Tensor | None, torch.Tensor]]] = field(default_factory=dict)
    nbytes: int = 0


class ChunkWriter:
    """The sender's half of a sync: collects tensors until a chunk is full, and sends it. `log_end` publishes to the log
    that carries the records; None: the group's transport carries them.
    """

    def __init__(
        self, group: Group, mirror: Mirror, plan: Plan, chunk_bytes: int, threads: int, log_end: LogEnd | None = None
    ) -> None:
        self.totals = Totals()
        self.group = group
        self._mirror = mirror
        self._plan = plan
        self._chunk_bytes = min(chunk_bytes, _MOST_BYTES)
        self._threads = threads
        self._log_end = log_end
        self._written = 0  # Number of elements that have changed in the mirror, if there is a log.
        self._new = _Waiting()
        self._changed = _Waiting()

    def add_new(self, entry: Entry, bits: torch.Tensor) -> None:
        """Adds a whole tensor, which must not change until its chunk is sent, to the mirror and to the next chunk. Raises
        UsageError if a log carries the records and has begun without the tensor.
        """
        if self._log_end is not None and not self._plan.seed:
            raise UsageError(
                "it was not in the first sync, and a log keeps to the tensors that it began with: leave out the option "
                "log, or have the first sync export it",
                f"tensor {entry[0]!r}",
            )
        self._mirror.add(entry)
        self._add(self._new, entry[0], None, bits)

    def add_change(self, name: str, bits: torch.Tensor, positions: torch.Tensor | None = None) -> None:
        """Adds new elements `bits` of a tensor of the mirror to the next chunk: the elements at flat `positions`, or
        all elements if None.
        """
        self._add(self._changed, name, positions, bits)

    def flush(self) -> None:
        """Sends the tensors that wait for the next chunk, changed ones and new ones."""
        self._send(self._changed)
        self._send(self._new)

    def finish(self) -> None:
        """Sends the tensors that wait, and returns when every rank has received the whole sync. With a log, this is
        where the version is published. Raises the errors of the log, and DigestMismatchError if the mirror has changes
        that nobody has added.
        """
        self.flush()
        self.group.announce_end()
        if self._log_end is not None:
            report = self._log_end.publish(self._mirror.tensors)
            self._count(report.changed, report.wire_bytes)
            if not self._plan.seed and report.changed != self._written:
                raise DigestMismatchError(
                    f"{report.changed} elements have changed, and the trainer has changed {self._written}: something else "
                    "has altered the copy of the weights in the trainer's memory",
                    f"version {report.version} of the log",
                )
            self.group.announce_version(report.version)
        self.group.vote()

    def _add(self, waiting: _Waiting, name: str, positions: torch.Tensor | None, bits: torch.Tensor) -> None:
        changes = waiting.changes.setdefault(name, [])
        changes.append((positions, bits))
        if len(changes) > 1:
            return
        waiting.nbytes += self._mirror.tensor(name).nbytes
        if waiting.nbytes >= self._chunk_bytes or len(waiting.changes) >= _MOST_TENSORS:
            self._send(waiting)

    def _send(self, waiting: _Waiting) -> None:
        names = list(waiting.changes)
        if not names:
            return
        new = waiting is self._new
        publisher = self._publisher(new, names) if self._log_end is None else None
        for name, changes in waiting.changes.items():
            live = self._mirror.flat_bits(name)
            for positions, bits in changes:
                where = slice(None) if positions is None else positions
                if self._log_end is not None:
                    self._written += int(torch.ne(live[where], bits).sum())
                live[where] = bits
        waiting.changes, waiting.nbytes = {}, 0
        self.group.announce(new, [self._mirror.entry(name) for name in names])
        self.totals.sent_tensors += len(names)
        if publisher is None:
            return
        try:
            report = publisher.sync(self.group.transport, self.group.timeout)
        except Error as error:
            raise type(error)(error.message, f"tensors {names[0]!r} to {names[-1]!r}") from error
        self._count(report.changed, report.wire_bytes)

    def _publisher(self, new: bool, names: Sequence[str]) -> Publisher:
        """Returns a publisher of a chunk, whose base is what the mirror has now."""
        table, memories = self._mirror.described(names)
        return Publisher(
            table,
            memories,
            version=self._plan.base,
            stream_id=self._plan.stream,
            values="raw" if new else "ulp",
            threads=self._threads,
        )

    def _count(self, changed: int, record_bytes: int) -> None:
        self.totals.chunks += 1
        self.totals.changed += changed
        self.totals.record_bytes += record_bytes


class ChunkReader:
    """A rollout worker's half of a sync, up to the vote. `names` has the names of the tensors that were received.
    `log_end` follows the log that carries the records; None: the group's transport carries them.
    """

    def __init__(self, group: Group, mirror: Mirror, plan: Plan, threads: int, log_end: LogEnd | None = None) -> None:
        self.names: list[str] = []
        self._group = group
        self.mirror = mirror
        self._plan = plan
        self._threads = threads
        self._log_end = log_end

    def read(self, new: bool, entries: Sequence[Entry]) -> None:
        """Takes one chunk, whose tensors are `entries`. Adds them to the mirror if they are `new`; otherwise they must
        be in it. On the leader of a node, it then receives the records of the chunk, unless a log has them, and applies
        them to the mirror. Raises UsageError for a tensor that does not fit the mirror, WrongBaseError or
        DigestMismatchError if the mirror differs from the sender's, and the errors of the records.
        """
        if new:
            for entry, memory in zip(entries, self._allocate(entries), strict=True):
                self.mirror.add(entry, memory)
        else:
            for name, code, shape in entries:
                self.mirror.get(name, shape, known=code)
        names = [name for name, _, _ in entries]
        if self._group.leader:
            if not new:
                self._before(names)
            if self._log_end is None:
                self._receive(names)
                self._after()
        self.names += names

    def update(self, version: int) -> None:
        """With a log, on the leader of a node: brings the mirror to this version of the log, which has the tensors of
        all chunks. Raises the errors of the log.
        """
        if self._log_end is not None:
            self._log_end.update(self.mirror.tensors, version)
            self._after()

    def _allocate(self, entries: Sequence[Entry]) -> Sequence[torch.Tensor | None]:
        """Returns the memory, filled with zeros, for each of the new tensors. None stands for new memory of this
        process.
        """
        return [None] * len(entries)

    def _before(self, names: Sequence[str]) -> None:
        """Called on a leader before the tensors of a chunk change in the mirror."""

    def _after(self) -> None:
        """Called on a leader when the tensors of a chunk, or with a log of all chunks, have changed in the mirror."""

    def _receive(self, names: Sequence[str]) -> None:
        table, memories = self.mirror.described(names)
        subscriber = Subscriber(
            table,
            memories,
            version=self._plan.base,
            stream_id=self._plan.stream,
            threads=self._threads,
            audit_versions=1,
        )
        try:
            subscriber.sync(self._group.transport, 0, self._group.timeout)
        except (WrongBaseError, DigestMismatchError) as error:
            raise type(error)(
                f"{error.message}: the copy of the weights in this node's memory is not the sender's",
                f"tensors {names[0]!r} to {names[-1]!r}",
            ) from error

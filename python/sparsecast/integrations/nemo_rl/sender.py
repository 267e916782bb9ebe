# SPDX-License-Identifier: Apache-2.0
"""The sender, on rank 0 of the policy: whole tensors become chunks of records.

A chunk is a delta over tensors that changed, with the values of the mirror before, or over tensors that are new, from
zeros. A `Publisher` made for the chunk holds the old values for as long as the chunk lasts, so that what stays in host
memory between syncs is one copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from sparsecast import Publisher
from sparsecast.buffers import dtype_name
from sparsecast.errors import Error, UsageError

from .._checkpoint_group import Group
from .._mirror import Mirror, as_json, host_bits

MOST_TENSORS = 2048
"""Tensors of one chunk; bounds its message."""


@dataclass
class Totals:
    """Figures of one sync: tensors and elements looked at, tensors sent, elements that changed, bytes of records."""

    tensors: int = 0
    elements: int = 0
    sent_tensors: int = 0
    changed: int = 0
    chunks: int = 0
    record_bytes: int = 0


@dataclass
class _Waiting:
    """Tensors of the next chunk, as bits by name."""

    bits: dict[str, torch.Tensor] = field(default_factory=dict)
    nbytes: int = 0


class WeightWriter:
    """Compares tensors with the mirror, and sends those that are not in it as they are."""

    def __init__(
        self, group: Group, mirror: Mirror, *, stream: str, base: int, chunk_bytes: int, threads: int, timeout: float
    ) -> None:
        self.totals = Totals()
        self._group = group
        self._mirror = mirror
        self._stream = stream
        self._base = base
        self._chunk_bytes = chunk_bytes
        self._threads = threads
        self._timeout = timeout
        self._new = _Waiting()
        self._changed = _Waiting()

    def send(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Sends all of one version, and its end. Raises UsageError for names, shapes or dtypes that do not fit."""
        seen: set[str] = set()
        for name, tensor in weights:
            if name in seen:
                raise UsageError("the policy exports two tensors of this name", f"tensor {name!r}")
            seen.add(name)
            self._take(name, tensor)
        if not seen:
            raise UsageError("the policy exports no tensors")
        self._flush(self._changed)
        self._flush(self._new)
        self._group.say("end", {"chunks": self.totals.chunks})

    def _take(self, name: str, tensor: torch.Tensor) -> None:
        entry = (name, dtype_name(tensor.dtype), tuple(int(extent) for extent in tensor.shape))
        bits = host_bits(tensor)
        self.totals.tensors += 1
        self.totals.elements += bits.numel()
        if name not in self._mirror:
            self._mirror.add(entry)
            waiting = self._new
        else:
            self._mirror.get(name, entry[2], known=entry[1])
            if torch.equal(self._mirror.flat_bits(name), bits):
                return
            waiting = self._changed
        # A tensor in host memory is the policy's own: nothing changes it before the chunk is sent.
        waiting.bits[name] = bits
        waiting.nbytes += bits.nbytes
        if waiting.nbytes >= self._chunk_bytes or len(waiting.bits) >= MOST_TENSORS:
            self._flush(waiting)

    def _flush(self, waiting: _Waiting) -> None:
        names = list(waiting.bits)
        if not names:
            return
        new = waiting is self._new
        table, memories = self._mirror.described(names)
        publisher = Publisher(
            table,
            memories,
            version=self._base,
            stream_id=self._stream,
            values="raw" if new else "ulp",
            threads=self._threads,
        )
        for name, bits in waiting.bits.items():
            self._mirror.flat_bits(name).copy_(bits)
        waiting.bits, waiting.nbytes = {}, 0
        entries = [self._mirror.entry(name) for name in names]
        self._group.say("chunk", {"new": new, "tensors": as_json(entries)})
        try:
            report = publisher.sync(self._group.transport, self._timeout)
        except Error as error:
            raise type(error)(error.message, f"tensors {names[0]!r} to {names[-1]!r}") from error
        self.totals.chunks += 1
        self.totals.sent_tensors += len(names)
        self.totals.changed += report.changed
        self.totals.record_bytes += report.wire_bytes

# SPDX-License-Identifier: Apache-2.0
"""The live transport of a torch publisher: a sharded publisher over a world of ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from .._core import ControlChannel, Layout, ShardedPublisher, ShardedReport
from ..buffers import describe
from ..errors import UsageError
from ..transports import Log, Transport
from .channel_thread import Result, run_in_channel_thread
from .report import PublishReport, TensorReport
from .shards import LocalShards
from .streams import StreamOrder


class LiveEnd:
    """The part of a :class:`Publisher` that publishes to the engines of a world; every rank of the trainer has one."""

    def __init__(
        self,
        transport: Transport | None,
        shards: LocalShards,
        layout: Layout,
        rank: int,
        detector: str,
        version: int,
        encode: dict[str, Any],
        unsent: list[str],
        report_tensors: bool,
    ) -> None:
        if detector not in ("auto", "snapshot", "pinned"):
            raise UsageError(
                f"the detector '{detector}' is for a log: ranks of a world keep a snapshot of their shards"
            )
        self.layout = layout
        self._transport = transport
        self._shards = shards
        self._rank = rank
        self._met = False
        self._world: ControlChannel | None = None
        self._report_tensors = report_tensors
        self.order = StreamOrder(shards.tensors)
        self.publisher = ShardedPublisher(
            layout,
            rank,
            [describe(tensor) for tensor in shards.tensors],
            version=version,
            unsent=unsent,
            report_tensors=report_tensors,
            masters=any(shards.holds_master(local) for local in range(len(shards.tensors))),
            detector="pinned" if detector == "pinned" else "snapshot",
            stream=self.order.number,
            **encode,
        )

    @property
    def version(self) -> int:
        return self.publisher.version

    @property
    def digest(self) -> str:
        return self.publisher.digest

    def regroup(self, transport: Transport | None) -> None:
        self.regroup_behind(transport, self.order.mark())

    def regroup_behind(self, transport: Transport | None, ready: torch.cuda.Event | None) -> None:
        """Meets the engines over the world that ``transport`` describes (None: the previous one). Reads the weights
        after the event ``ready`` in the caller's CUDA stream (None: now).
        """
        if isinstance(transport, Log):
            raise UsageError("a live publisher cannot go on with a log")
        self._transport = transport or self._transport
        self._met = False
        assert not isinstance(self._transport, Log)
        if self._transport is None:
            raise UsageError(
                "the publisher has no transport: give it one (sparsecast.World, ...), or give the publisher to a "
                "PublisherSource of sparsecast.control and call the control plane's sync_now()"
            )
        self._world = self._transport.open(self._rank)
        # The base of the first group is the weights as they are now: engines are compared with them, or seeded.
        self._refresh(ready)
        world, meeting = self._world, self._transport
        self._in_channels(lambda: self.publisher.regroup(world, channels=meeting.channels, timeout=meeting.timeout))
        self._met = True

    def publish(
        self, step: int | None, label: str, ready: torch.cuda.Event | None, weights_read: Callable[[], None]
    ) -> PublishReport:
        del label, weights_read  # What travels is encoded and sent in one call: the weights are read until it ends.
        met = self._met
        if not met:
            self.regroup_behind(None, ready)  # Which prepares the weights, too.
        begin = time.perf_counter()
        if met:
            self._refresh(ready)
        prepared = time.perf_counter()
        assert self._transport is not None
        timeout = self._transport.timeout
        try:
            sent = self._in_channels(lambda: self.publisher.sync(timeout))
        except BaseException:  # KeyboardInterrupt, too, leaves the group broken.
            self._met = False
            raise
        elements, dense = self._extent(sent)
        return PublishReport(
            version=sent.version,
            step=step,
            elements=elements,
            changed=sent.changed,
            wire_bytes=sent.sent_bytes,
            dense_bytes=dense,
            digest=self.publisher.digest,
            seconds={
                "prepare": prepared - begin,
                "encode": sent.encode_seconds,
                "wire": sent.wire_seconds,
                "total": time.perf_counter() - begin,
            },
            tensors=tuple(
                TensorReport(t.name, t.elements, t.changed, t.bytes, t.blocks, t.dense_blocks) for t in sent.tensors
            ),
            codecs={name: count for name, count in sent.blocks_by_codec.items() if count},
        )

    def _in_channels(self, work: Callable[[], Result]) -> Result:
        """Runs ``work``, which uses the channels of the world, and returns its result. With NCCL channels it runs in
        the one thread of the process that may use them, because publish() may be called in any thread.
        """
        world = self._world
        assert self._transport is not None and not isinstance(self._transport, Log) and world is not None
        if self._transport.channels != "nccl":
            return work()
        device = self._shards.tensors[0].device if self._shards.tensors else torch.device("cpu")
        return run_in_channel_thread(device, work, lambda: world.abort("interrupted by a signal"))

    def _refresh(self, ready: torch.cuda.Event | None) -> None:
        """Updates casts and results of transforms on the stream of the publisher, after the event ``ready`` in the
        caller's CUDA stream.

        If that fails, the other ranks are told, so that they do not wait for this rank until their deadline.
        """
        try:
            with self.order.behind(ready):
                self._shards.refresh()
        except Exception as error:
            self._met = False
            if self._world is not None:
                self._world.abort(str(error))
            raise

    def _extent(self, sent: ShardedReport) -> tuple[int, int]:
        """Returns the number of elements that this rank sends if all of them have changed, and the number of their
        bytes. Where several ranks hold copies of an element, the element counts only for the rank that sends it.

        Without ``report_tensors`` it counts everything that this rank holds.
        """
        own = self._shards.layout
        if not self._report_tensors:
            held = [(shard.box.elements, self._shards.wire_bytes(shard.local)) for shard in own.ranks[0].shards]
            return sum(n for n, _ in held), sum(n * size for n, size in held)
        size = {own.table[s.tensor][0]: self._shards.wire_bytes(s.local) for s in own.ranks[0].shards}
        return sum(t.elements for t in sent.tensors), sum(t.elements * size[t.name] for t in sent.tensors)

    def close(self) -> None:
        """Does nothing. The connections of the world close when this object is freed."""

# SPDX-License-Identifier: Apache-2.0
r"""The delta log transport of a torch publisher whose ranks hold parts of the tensors.

The ranks are a world with one engine, a :class:`sparsecast.relay.LogRelay` in a thread of rank 0, which writes the log:

    meet --> each rank compares and sends its shards --> the relay has verified them --> durable in the log
      ^                                    \--error on any rank, or of the log--> all ranks raise it --/
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..errors import PeerFailedError
from ..relay import LogRelay
from ..transports import Log, World
from .layouts import gather_bytes, gather_layout
from .live import LiveEnd
from .log import ToLog
from .meeting_place import meeting_place
from .report import PublishReport
from .shards import LocalShards

Result = TypeVar("Result")

_MOST_BYTES = 1 << 20  # of a message from rank to rank
_LONGEST_WAITS = 4  # of the log's timeout each: for the world, its sync, the log, and the slowest rank before that


def is_parted(shards: LocalShards, process_group: dist.ProcessGroup | None) -> bool:
    """Returns whether several ranks write a log together: ``process_group`` names them, or this rank holds only parts
    of some tensors. Always False without a process group of several ranks.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(process_group) == 1:
        return False
    layout = shards.layout
    held = layout.ranks[0].shards
    aliases = {alias for alias, _ in layout.ties}
    whole = {shard.tensor for shard in held if shard.box.extent == tuple(layout.table[shard.tensor][2])}
    parts = [name for index, (name, _, shape) in enumerate(layout.table) if index not in whole and 0 not in shape]
    return process_group is not None or any(name not in aliases for name in parts)


class RelayedEnd(ToLog):
    """The part of a :class:`Publisher` that publishes to a log together with other ranks; each rank has one. All
    methods but ``close`` are collective, and an error on one rank is raised on all.
    """

    def __init__(
        self,
        log: Log,
        shards: LocalShards,
        process_group: dist.ProcessGroup | None,
        detector: str,
        version: int,
        encode: dict[str, Any],
        report_tensors: bool,
    ) -> None:
        super().__init__(log, version)
        # A group of its own: a thread may use it while the trainer's other collectives go on.
        wait = datetime.timedelta(seconds=_LONGEST_WAITS * log.timeout)
        ranks = dist.get_process_group_ranks(process_group if process_group is not None else dist.group.WORLD)
        self._group = dist.new_group(ranks, timeout=wait, backend="gloo", use_local_synchronization=True)
        self._rank, self._size = dist.get_rank(self._group), len(ranks)
        self.layout = gather_layout(shards.layout, self._group)
        self._relay: LogRelay | None = None
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "sparsecast-relay")
        self._met = False

        def begin() -> None:
            live = LiveEnd(None, shards, self.layout, self._rank, detector, version, encode, [], report_tensors)
            if self._rank == 0:
                aliases = {alias for alias, _ in self.layout.ties}
                tensors = [spec for spec in self.layout.table if spec[0] not in aliases]
                nowhere = World("127.0.0.1", 1, "none", size=self._size + 1)  # Each meeting has a place of its own.
                self._relay = LogRelay(tensors, world=nowhere, log=log, threads=encode["threads"])
            self._live, self.order = live, live.order

        self._together(begin)
        self._meet(self.order.mark())

    def publish(
        self, step: int | None, label: str, ready: torch.cuda.Event | None, weights_read: Callable[[], None]
    ) -> PublishReport:
        if not self._met:
            self._meet(ready)
        begin = time.perf_counter()

        def sync() -> PublishReport:
            words = label or (f"step {step}" if step is not None else "")
            relayed = self._thread.submit(self._relay.step, words) if self._relay is not None else None
            report = self._live.publish(step, label, ready, weights_read)
            weights_read()
            if relayed is not None:
                done = relayed.result()
                self._version, self._digest = done.version, done.digest
            return report

        report = self._together(sync)
        total = {**report.seconds, "total": time.perf_counter() - begin}
        return dataclasses.replace(report, version=self._version, digest=self._digest, seconds=total)

    def close(self) -> None:
        """Closes this rank's part. On rank 0 it first waits until anchors and merged deltas are durable, but not longer
        than the time-out of the log.
        """
        self._live.close()
        self._thread.shutdown(wait=True)
        if self._relay is not None:
            self._relay.close()

    def _meet(self, ready: torch.cuda.Event | None) -> None:
        """Has all ranks and the relay meet at a new place. The relay gets the weights, or its weights are compared with
        those of the ranks.
        """
        chosen = meeting_place(self._group)

        def regroup() -> None:
            world = World(**chosen, size=self._size + 1, timeout=self._log.timeout)
            met = None
            if self._relay is not None:
                met = self._thread.submit(self._relay.regroup, dataclasses.replace(world, rank_offset=self._size))
            self._live.regroup_behind(world, ready)
            if met is not None and self._relay is not None:
                met.result()
                self._version, self._digest = self._relay.version or 0, self._relay.digest or ""

        self._together(regroup)

    def _together(self, work: Callable[[], Result]) -> Result:
        """Runs ``work`` on every rank and returns its result; if it fails on one rank, raises an error on all of them.
        Afterwards all ranks have the version and the digest of rank 0.
        """
        failure: Exception | None = None
        self._met = False
        try:
            result = work()
        except Exception as error:
            failure = error
        said = {"error": str(failure) if failure is not None else "", "version": self._version, "digest": self._digest}
        told = [json.loads(part) for part in self._gather(json.dumps(said).encode())]
        self._version, self._digest = told[0]["version"], told[0]["digest"]
        if failure is not None:
            raise failure
        for rank, answer in enumerate(told):
            if answer["error"]:
                raise PeerFailedError(answer["error"], f"rank {rank}")
        self._met = True
        return result

    def _gather(self, own: bytes) -> list[bytes]:
        return gather_bytes(own, self._group, _MOST_BYTES, "a message")

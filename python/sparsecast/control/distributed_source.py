# SPDX-License-Identifier: Apache-2.0
"""A trainer of several ranks as one side of a control plane: rank 0 has the plane, and the other ranks follow it."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from sparsecast.control.publisher_source import PublishedTable, PublisherReport, report_of, world_of
from sparsecast.control.world import WorldSpec
from sparsecast.errors import Error, PeerFailedError, UsageError
from sparsecast.transports import World

if TYPE_CHECKING:
    from sparsecast.torch import Publisher
    from sparsecast.torch.report import PublishReport

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


class DistributedSource(PublishedTable):
    """The trainer's side of a control plane for a trainer of several ranks (FSDP2, Megatron), with a `publisher` on
    every rank; every regroup gives the publishers a new live transport.

    Between optimizer steps all ranks call `run`, rank 0 with the operation of the control plane:

        source = DistributedSource(publisher, group)
        plane = ControlPlane(source, ...) if rank == 0 else None
        source.run(plane.sync_now if plane else None)

    `group` is a process group on CPUs (gloo) of all trainer ranks, used by nothing else. Over it rank 0 tells the other
    ranks the next operation, and sends them the secret of the world: the network of this group must be private to the
    trainer. A rank that hears nothing from rank 0 within the timeout of the group raises. The counts in reports are
    sums over all ranks; the seconds are the times of rank 0.
    """

    def __init__(self, publisher: Publisher, group: dist.ProcessGroup) -> None:
        super().__init__(publisher)
        if dist.get_world_size(group) != self.ranks:
            raise UsageError(f"a group of {dist.get_world_size(group)} for a trainer of {self.ranks} ranks")
        if "gloo" not in str(dist.get_backend_config(group)):
            raise UsageError("the group of a DistributedSource is on CPUs: dist.new_group(backend='gloo')")
        self._group = group
        self._rank = dist.get_rank(group)
        self._root = dist.get_global_rank(group, 0)
        self._running = False

    def run(self, action: Callable[[], _Result] | None) -> _Result | None:
        """Runs `action` on rank 0 and returns its result, while the other ranks, whose `action` is None, do their part
        and return None. Collective over the trainer.

        If `action` raises on rank 0, the other ranks raise PeerFailedError with the same message.
        """
        if (action is None) != (self._rank != 0):
            raise UsageError("rank 0 gives run() an action, and nobody else does", f"rank {self._rank}")
        if action is None:
            self._follow()
            return None
        self._running = True
        words = "it was interrupted"
        try:
            result = action()
            words = ""
            return result
        except Exception as error:
            words = str(error) or type(error).__name__
            raise
        finally:
            self._running = False
            self._tell({"do": "release", "words": words})

    def regroup(self, world: WorldSpec) -> None:
        """Makes all ranks of the trainer meet the engines, as ranks 0 to `ranks - 1` of `world`. Only rank 0 calls it,
        within run().
        """
        self._require_running()
        place = world_of(world)
        self._tell({"do": "regroup", "world": place.to_json()})
        self._meet(place)

    def sync(self, timeout: float) -> PublisherReport:
        """Publishes with all ranks of the trainer, within `timeout` seconds, and returns the report. Only rank 0 calls
        it, within run().
        """
        self._require_running()
        self._met()
        self._tell({"do": "sync", "timeout": timeout})
        return self._publish(timeout)

    def _require_running(self) -> None:
        if not self._running:
            raise UsageError("the other ranks do not follow: the control plane works within run() of every rank")

    def _publish(self, timeout: float) -> PublisherReport:
        """Publishes the part of this rank and returns a report with the sums over all ranks. A rank that fails raises
        its own error, and every other rank raises PeerFailedError.
        """
        self._met().timeout = timeout
        report: PublishReport | None = None
        failure: Exception | None = None
        try:
            report = self._publisher.publish()
        except Exception as error:
            failure = error
        good = torch.tensor([failure is None], dtype=torch.int64)
        dist.all_reduce(good, op=dist.ReduceOp.MIN, group=self._group)
        if failure is not None:
            raise failure
        assert report is not None
        if not good.item():
            raise PeerFailedError("another rank of the trainer has failed to publish")
        sums = torch.tensor(report.totals(), dtype=torch.int64)
        dist.all_reduce(sums, group=self._group)
        elements, changed, wire_bytes, dense_bytes = (int(n) for n in sums)
        return report_of(
            dataclasses.replace(
                report, elements=elements, changed=changed, wire_bytes=wire_bytes, dense_bytes=dense_bytes
            )
        )

    def _follow(self) -> None:
        """Does what rank 0 tells this rank until rank 0 ends the run. A failure is only logged here: rank 0 fails as
        well, and reports it. Raises PeerFailedError if the action of rank 0 failed.
        """
        while True:
            told = self._hear()
            try:
                if told["do"] == "release":
                    if told["words"]:
                        raise PeerFailedError(told["words"], "rank 0 of the trainer")
                    return
                if told["do"] == "regroup":
                    self._meet(World.from_json(told["world"]))
                else:
                    self._publish(told["timeout"])
            except Error as error:
                if told["do"] == "release":
                    raise
                _log.warning("rank %d: %s failed: %s", self._rank, told["do"], error)

    def _tell(self, message: dict[str, Any]) -> None:
        blob = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        dist.broadcast(torch.tensor([blob.numel()], dtype=torch.int64), self._root, group=self._group)
        dist.broadcast(blob, self._root, group=self._group)

    def _hear(self) -> dict[str, Any]:
        count = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(count, self._root, group=self._group)
        blob = torch.empty(int(count.item()), dtype=torch.uint8)
        dist.broadcast(blob, self._root, group=self._group)
        message: dict[str, Any] = json.loads(blob.numpy().tobytes())
        return message

# SPDX-License-Identifier: Apache-2.0
"""What the checkpoint engines of verl and NeMo-RL have in common: the state of one rank, and the steps of a sync.

The group outlives a sync. The sender sends everything (a seed) when any rollout worker does not hold what the sender
holds: the first time, after a restart, after any failure.

With the option `log` the records go through a delta log, which other readers may follow, too. The group is the same,
and every sync is one version of the log. A seed is the way from the log's newest version to the sender's weights.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import torch

from sparsecast.engines.release import own_release
from sparsecast.errors import Error, UsageError
from sparsecast.torch import Log
from sparsecast.transports import AnyPath

from ._checkpoint_group import Group, Hello, Plan
from ._chunks import ChunkReader
from ._log_end import LogEnd, log_of
from ._mirror import Mirror

Reader = TypeVar("Reader", bound=ChunkReader)


class DeltaEngine(Generic[Reader]):
    """State of one rank of a trainer or rollout: the sender (rank 0 of the group), a rollout worker, or another rank of
    the trainer (rank -1), which is not in the group.
    """

    options_at: ClassVar[str]
    """Where users of the framework write options."""
    without_copy: ClassVar[str]
    """What to do where the weights do not fit into host memory twice."""
    how_to_meet: ClassVar[str]
    """What to do where there is no group, or a broken one."""

    def __init__(
        self,
        bucket_size: int,
        *,
        channels: str = "control",
        timeout: float = 600.0,
        threads: int = 0,
        interface: str = "",
        shared_dir: str = "/dev/shm",
        log: AnyPath | Log | Mapping[str, Any] | None = None,
        positions: str = "packed",
    ) -> None:
        if channels not in ("control", "nccl"):
            raise UsageError(f"{self.options_at}.channels is 'control' or 'nccl', not {channels!r}")
        if log is not None and channels == "nccl":
            raise UsageError(f"{self.options_at}.log carries the records, so that channels carries none: leave one out")
        self.bucket_size = int(bucket_size)
        self._channels = channels
        self._timeout = float(timeout)
        self._threads = int(threads) or min(os.cpu_count() or 1, 8)
        self._interface = interface
        self._shared_dir = shared_dir
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._rank = -1
        self._group: Group | None = None
        self._mirror: Mirror | None = None
        self._stream = ""
        self._version = 0
        self._log = None if log is None else log_of(log, f"{self.options_at}.log")
        self._positions = positions
        self._log_end: LogEnd | None = None

    def _meet(self, meeting: Mapping[str, Any], rank: int, size: int, node: int, leader: bool) -> None:
        """Leaves the previous group, and joins the new group that `meeting` describes, as rank `rank` of `size`. `node`
        is the number of this rank's node, and `leader` says whether this rank is the leader of its node.
        """
        self._group = None  # Closes the connections of the one before.
        self._group = Group(
            meeting,
            rank=rank,
            size=size,
            node=node,
            leader=leader,
            channels=self._channels if self._log is None else None,
            interface=self._interface,
            timeout=self._timeout,
        )

    def _joined(self) -> Group:
        """Returns the group. Raises UsageError if there is no group, or if it is broken."""
        group = self._group
        if group is None or not group.healthy:
            reason = group.reason() if group is not None else ""
            broken = f", or an earlier sync broke it ({reason})" if reason else ""
            raise UsageError(f"there is no group{broken}: {self.how_to_meet}")
        return group

    def _has_copy(self, group: Group) -> bool:
        """Returns whether this rank of `group` keeps a mirror, which is a copy of the weights in host memory."""
        del group
        return True

    def _begin(self, step: int | None = None, verify: bool = False) -> Plan:
        """Begins a sync and returns its plan, which is the same on all ranks. Collective over the group. Until
        `_commit`, this rank counts as holding no weights, so that a sync that fails on any rank makes the next sync
        send everything.
        """
        group = self._joined()
        has_copy = self._has_copy(group)
        stream = "" if has_copy and self._mirror is None else self._stream
        self._stream = ""
        hello = Hello(own_release(), stream, self._version, step, secrets.token_hex(16), verify)
        plan = group.plan(hello)
        if plan.seed:
            self._mirror = None  # The memory of the old one first.
            self._mirror = Mirror(self.without_copy) if has_copy else None
            self._renew_log_end(group)
        if self._log_end is not None and step is not None:
            self._log_end.label = f"step {step}"
        return plan

    def _renew_log_end(self, group: Group) -> None:
        """Makes a new end of the log, if there is one and this rank of `group` is at an end of it. The previous end had
        the tensors of the previous mirror.
        """
        previous, self._log_end = self._log_end, None
        if previous is not None:
            with contextlib.suppress(Error):  # A sync that failed has raised it.
                previous.close()
        if self._log is not None and (group.rank == 0 or group.leader):
            self._log_end = LogEnd(self._log, self._positions, self._threads)

    def _receive(self, step: int | None = None) -> tuple[Plan, Reader | None]:
        """Runs a sync on a rollout worker up to the vote. Returns the plan, and the reader with the chunks that came,
        or None if this rank keeps no mirror.
        """
        try:
            group = self._joined()
            plan = self._begin(step)
            reader = self._reader(group, self._mirror, plan) if self._mirror is not None else None
            while (chunk := group.next_chunk()) is not None:
                if reader is not None:
                    reader.read(*chunk)
            if self._log is not None:
                version = group.next_version()
                if reader is not None:
                    reader.update(version)
            group.vote()
            return plan, reader
        except Exception as error:
            raise self._failed(error) from error

    def _reader(self, group: Group, mirror: Mirror, plan: Plan) -> Reader:
        raise NotImplementedError

    def _commit(self, plan: Plan) -> None:
        """Ends a sync that succeeded: from now on this rank counts as holding the version of `plan`."""
        self._stream, self._version = plan.stream, plan.base + 1

    def _failed(self, error: Exception) -> Exception:
        """Gives up the sync because of `error`: leaves the group, if there is one, and tells the other ranks the
        reason. Returns the exception to raise.
        """
        self._stream = ""
        consequence = "nothing of this sync was loaded, the next one sends everything"
        return error if self._group is None else self._group.fail(error, consequence)

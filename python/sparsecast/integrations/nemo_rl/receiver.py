# SPDX-License-Identifier: Apache-2.0
"""A rollout worker's end: records become tensors in memory that all workers of the node see.

The first worker of a node, its leader, receives, stages and applies the records to that memory, whose digest is verified
before and after. Its neighbours map the same memory, and read it once the whole group has voted. The leader writes
again only in the next sync, which begins when every worker has come back.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from sparsecast import ControlChannel, Subscriber
from sparsecast.errors import CorruptError, DigestMismatchError, IoError, WrongBaseError

from .._checkpoint_group import Group
from .._mirror import Entry, Mirror, parse_entries, torch_dtype

_ALIGNMENT = 64
_MOST_ELEMENTS = 1 << 48
_PREFIX = "sparsecast-"


class NodeMemory:
    """Gives memory for tensors that the rollout workers of one node see; collective over them."""

    def __init__(self, node: ControlChannel, directory: str, timeout: float) -> None:
        self._node = node
        self._directory = os.path.realpath(directory)
        self._timeout = timeout

    def allocate(self, entries: Sequence[Entry], leader: bool) -> list[torch.Tensor | None]:
        """Returns a tensor of zeros for each entry; None where nobody else needs to see it.

        The memory is a file that has no name any more when this returns. Raises IoError, with the cure.
        """
        if self._node.size == 1:
            return [None] * len(entries)
        sizes = [math.prod(shape) * torch_dtype(code).itemsize for _, code, shape in entries]
        places, size = [], 0
        for each in sizes:
            places.append(size)
            size += -(-each // _ALIGNMENT) * _ALIGNMENT
        size = max(size, _ALIGNMENT)
        memory = torch.frombuffer(self._create(size) if leader else self._open(size), dtype=torch.uint8)
        return [
            memory[place : place + each].view(torch_dtype(code)).view(shape)
            for place, each, (_, code, shape) in zip(places, sizes, entries, strict=True)
        ]

    def _create(self, size: int) -> mmap.mmap:
        try:
            handle, path = tempfile.mkstemp(prefix=_PREFIX, dir=self._directory)
        except OSError as error:
            raise self._failed(error, size) from error
        try:
            os.posix_fallocate(handle, 0, size)  # Or a full directory would end the process when it is written to.
            mapped = mmap.mmap(handle, size)
            self._node.broadcast(json.dumps({"file": os.path.basename(path)}).encode(), self._timeout)
            self._node.all_gather(b"", self._timeout)
            return mapped
        except OSError as error:
            raise self._failed(error, size) from error
        finally:
            os.unlink(path)
            os.close(handle)

    def _open(self, size: int) -> mmap.mmap:
        note = _note(self._node.broadcast(b"", self._timeout))
        path = os.path.join(self._directory, note)
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                state = os.fstat(handle)
                if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid() or state.st_size != size:
                    raise CorruptError(f"it is not the leader's file of {size} bytes", path)
                mapped = mmap.mmap(handle, size)
            finally:
                os.close(handle)
        except OSError as error:
            raise self._failed(error, size) from error
        self._node.all_gather(b"", self._timeout)
        return mapped

    def _failed(self, error: OSError, size: int) -> IoError:
        return IoError(
            f"{error.strerror}: the rollout workers of a node share {size >> 20} MiB more of the weights there; name a "
            "directory in memory that all of them see and that has room for all weights, as shared_dir in refit_cfg "
            "(in a container: --shm-size)",
            self._directory,
        )


class WeightReader:
    """One sync on a rollout worker, up to the vote."""

    def __init__(
        self,
        group: Group,
        mirror: Mirror,
        memory: NodeMemory,
        *,
        stream: str,
        base: int,
        threads: int,
        timeout: float,
    ) -> None:
        self.changed: list[str] = []
        self.chunks = 0
        self._group = group
        self._mirror = mirror
        self._memory = memory
        self._stream = stream
        self._base = base
        self._threads = threads
        self._timeout = timeout

    def read(self, message: dict[str, Any]) -> None:
        """Takes a chunk: on the leader, receives its records and applies them to the mirror. Raises what is wrong with
        them, and WrongBaseError for a mirror that is not what the sender has.
        """
        new, entries = message.get("new"), parse_entries(message.get("tensors"), _MOST_ELEMENTS)
        if type(new) is not bool:
            raise CorruptError("it does not say whether its tensors are new", "chunk")
        if new:
            for entry, memory in zip(entries, self._memory.allocate(entries, self._group.leader), strict=True):
                self._mirror.add(entry, memory)
        else:
            for name, code, shape in entries:
                self._mirror.get(name, shape, known=code)
        names = [name for name, _, _ in entries]
        if self._group.leader:
            self._receive(names)
        self.changed += names
        self.chunks += 1

    def _receive(self, names: list[str]) -> None:
        table, memories = self._mirror.described(names)
        subscriber = Subscriber(
            table, memories, version=self._base, stream_id=self._stream, threads=self._threads, audit_versions=1
        )
        try:
            subscriber.sync(self._group.transport, 0, self._timeout)
        except (WrongBaseError, DigestMismatchError) as error:
            raise type(error)(
                f"{error.message}: the copy of the weights in this node's memory is not the sender's",
                f"tensors {names[0]!r} to {names[-1]!r}",
            ) from error


def _note(data: bytes) -> str:
    try:
        name = json.loads(data)["file"]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError("it names no file", "memory of the node") from error
    if not isinstance(name, str) or os.path.basename(name) != name or not name.startswith(_PREFIX):
        raise CorruptError(f"{name!r} is no file of the leader", "memory of the node")
    return name

# SPDX-License-Identifier: Apache-2.0
"""A rollout worker's end: records become tensors in memory that all workers of the node see.

The first worker of a node, its leader, receives, stages and applies the records to that memory, whose digest is
verified before and after. Its neighbours map the same memory, and read it once the whole group has voted. The leader
writes again only in the next sync, which begins when every worker has come back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from sparsecast.errors import CorruptError

from .._checkpoint_group import Group, Plan
from .._chunks import ChunkReader
from .._log_end import LogEnd
from .._mirror import Entry, Mirror, torch_dtype
from .._node_files import NodeFiles

_ALIGNMENT = 64


class SharedReader(ChunkReader):
    """A reader whose mirror is in memory that all rollout workers of the node share through `files`."""

    def __init__(
        self, group: Group, mirror: Mirror, plan: Plan, threads: int, files: NodeFiles, log_end: LogEnd | None
    ) -> None:
        super().__init__(group, mirror, plan, threads, log_end)
        self._files = files

    def _allocate(self, entries: Sequence[Entry]) -> Sequence[torch.Tensor | None]:
        if self._group.node.size == 1:
            return super()._allocate(entries)
        sizes = [math.prod(shape) * torch_dtype(code).itemsize for _, code, shape in entries]
        places, size = [], 0
        for each in sizes:
            places.append(size)
            size += -(-each // _ALIGNMENT) * _ALIGNMENT
        size = max(size, _ALIGNMENT)
        memory = self._files.create(size) if self._group.leader else self._files.open()[0]
        if len(memory) != size:
            raise CorruptError(f"it has {len(memory)} bytes, and the new tensors {size}", "memory of the node")
        view = torch.frombuffer(memory, dtype=torch.uint8)
        return [
            view[place : place + each].view(torch_dtype(code)).view(shape)
            for place, each, (_, code, shape) in zip(places, sizes, entries, strict=True)
        ]

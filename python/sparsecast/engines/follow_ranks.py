# SPDX-License-Identifier: Apache-2.0
"""The ranks of an engine that follow a delta log together: what each of them holds, and how they meet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from sparsecast.engines.trace.dtypes import TORCH_DTYPES
from sparsecast.engines.trace.memory import host_memory, seen_by
from sparsecast.torch.layouts import collective_device, gather_layout
from sparsecast.torch.meeting_place import LOOPBACK, meeting_place

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from sparsecast import ControlChannel, Layout, Memory
    from sparsecast.engines.trace.loader import TracedLoader


@dataclass(frozen=True)
class FollowedPart:
    """One rank's part in following a delta log with the other ranks of its engine."""

    layout: Layout
    """Layout of the whole engine, the same on all ranks."""
    tensors: list[Memory]
    """Memory of the rank's local tensors, in the order of the layout."""
    unused: dict[str, torch.Tensor]
    """Canonical tensors that no rank uses, by name. Rank 0 keeps them in host memory, because the digest of the log
    covers them. They are zeros, for the caller to fill. Empty on the other ranks.
    """


def followed_part(traced: TracedLoader, group: ProcessGroup) -> FollowedPart:
    """Returns this rank's part in following a log: memory for the tensors in `traced`, and the layout of all ranks of
    `group`. Collective over the group, whose ranks must have traced the same table of canonical tensors.
    """
    own, tensors, unused = _with_unused(traced, group)
    return FollowedPart(gather_layout(own, group), tensors, unused)


def _with_unused(traced: TracedLoader, group: ProcessGroup) -> tuple[Layout, list[Memory], dict[str, torch.Tensor]]:
    from sparsecast import Box, Layout, LocalTensor, RankLayout, Shard, describe

    own, tensors = traced.layout(os.uname().nodename), traced.memories()
    used = torch.zeros(len(traced.table), dtype=torch.int32, device=collective_device(group))
    used[[shard.tensor for shard in traced.shards]] = 1
    dist.all_reduce(used, op=dist.ReduceOp.MAX, group=group)
    if dist.get_rank(group) != 0:
        return own, tensors, {}
    device = next((tensor.memory.device for tensor in traced.tensors if tensor.memory.is_cuda), None)
    rank = own.ranks[0]
    locals_, shards = list(rank.tensors), list(rank.shards)
    unused: dict[str, torch.Tensor] = {}
    for index, (name, dtype, shape) in enumerate(traced.table):
        elements = torch.Size(shape).numel()
        if used[index] or elements == 0:
            continue
        memory = host_memory(elements, TORCH_DTYPES[dtype], device or torch.device("cpu")).view(shape)
        unused[name] = memory
        tensors.append(describe(seen_by(device, memory), dtype=dtype))
        shards.append(Shard(index, Box([0] * len(shape), shape), len(locals_), 0, memory.stride()))
        locals_.append(LocalTensor(f"unused.{name}", dtype, elements))
    return Layout(own.table, [RankLayout(locals_, shards, rank.node)], own.ties), tensors, unused


def meet_ranks(group: ProcessGroup, timeout: float) -> ControlChannel:
    """Returns a channel between the ranks of the group, over TCP. Collective over the group. Raises DeadlineError if not all ranks meet within
    `timeout` seconds.
    """
    from sparsecast import meet

    place = meeting_place(group)
    return meet(
        **place,
        rank=dist.get_rank(group),
        size=dist.get_world_size(group),
        interface=LOOPBACK if place["host"] == LOOPBACK else "",
        timeout=timeout,
    )

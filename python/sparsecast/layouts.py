# SPDX-License-Identifier: Apache-2.0
"""Joins layouts of single ranks."""

from __future__ import annotations

from collections.abc import Sequence

from ._core import Layout, RankLayout, Shard, TensorTable
from .errors import UsageError


def join_layouts(layouts: Sequence[Layout]) -> Layout:
    """Returns the layout of a trainer or an engine whose rank ``i`` is the only rank of ``layouts[i]``.

    Tensors are in the order in which ranks first name them. Raises UsageError for a layout of more than one rank, and,
    naming the tensor and the ranks, if two ranks give a tensor different dtypes or shapes, or tie it to different
    originals.
    """
    specs: dict[str, tuple[str, str, tuple[int, ...]]] = {}
    named_by: dict[str, int] = {}
    ties: dict[str, str] = {}
    for rank, layout in enumerate(layouts):
        if len(layout.ranks) != 1:
            raise UsageError(f"a layout of {len(layout.ranks)} ranks where one is due", f"rank {rank}")
        for name, dtype, shape in layout.table:
            known = specs.setdefault(name, (name, dtype, shape))
            first = named_by.setdefault(name, rank)
            if known != (name, dtype, shape):
                raise UsageError(
                    f"rank {first} has it as {known[1]} {list(known[2])}, rank {rank} as {dtype} {list(shape)}",
                    f"tensor '{name}'",
                )
        for alias, original in layout.ties:
            if ties.setdefault(alias, original) != original:
                raise UsageError(f"rank {rank} ties it to '{original}', others to '{ties[alias]}'", f"tensor '{alias}'")
    table = TensorTable(list(specs.values()))
    index = {name: i for i, name in enumerate(specs)}
    ranks = []
    for layout in layouts:
        names = [name for name, _, _ in layout.table]
        own = layout.ranks[0]
        shards = [
            Shard(index[names[shard.tensor]], shard.box, shard.local, shard.first, shard.strides, shard.has_base)
            for shard in own.shards
        ]
        ranks.append(RankLayout(own.tensors, shards, own.node))
    return Layout(table, ranks, list(ties.items()))

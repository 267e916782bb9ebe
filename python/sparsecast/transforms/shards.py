# SPDX-License-Identifier: Apache-2.0
"""Applies transforms between the shards of a trainer and its publisher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .._core import Box, Layout, LocalTensor, RankLayout, Shard, TensorTable
from ..errors import UsageError
from .pipeline import Transforms
from .step import Transform

if TYPE_CHECKING:
    from ..torch.shards import LocalShards


def transformed(shards: LocalShards, transforms: Sequence[Transform]) -> LocalShards:
    """Returns local shards for a Publisher: their tensors are the results of the steps ``transforms`` on the tensors of
    ``shards``.

    The steps run once here, and again before every detection (``prepare``). They run for every tensor of the layout's
    table in order, including tensors of which this rank holds nothing, because steps with a group are collective.
    Tensors to which no step applies stay unchanged. Tied names stay tied; raises UsageError if a step applies to one of
    two tied names and not to the other. Dtypes and shapes of the table are those of the weights, so this function does
    not support bases that are stored in another form (DequantizeMerge).
    """
    with shards.counted():
        return _transformed(shards, transforms)


def _transformed(shards: LocalShards, transforms: Sequence[Transform]) -> LocalShards:
    from ..torch.shards import LocalShards, shard_memory

    layout = shards.layout
    (rank,) = layout.ranks
    for number, local in enumerate(rank.tensors):
        if shards.holds_master(number):
            words = "transforms take what travels, not its master: shards_of(cast=True)"
            raise UsageError(words, f"tensor '{local.name}'")
    pipeline = Transforms(transforms, layout.table)
    names = [name for name, _, _ in layout.table]
    held: dict[str, list[tuple[Shard, torch.Tensor]]] = {name: [] for name in names}
    for shard in rank.shards:
        view = shard_memory(shards.tensors[shard.local], shard)
        held[names[shard.tensor]].append((shard, view))
    taken = {name for name, _, _ in layout.table if pipeline.is_taken(name)}
    aliases = dict(layout.ties)
    active = [name for name in names if name in taken and name not in aliases]

    def run() -> list[tuple[str, torch.Tensor, Box]]:
        results = []
        for name in active:
            results += pipeline.pieces(name, [(view, shard.box) for shard, view in held[name]])
        return results

    def prepare() -> None:
        if shards.prepare is not None:
            shards.prepare()
        run()

    index = {spec.name: i for i, spec in enumerate(pipeline.specs)}
    tensors, masters, locals_, out = list(shards.tensors), list(shards.masters), list(rank.tensors), []
    for name in names:
        if name not in taken:
            out += [
                Shard(index[name], shard.box, shard.local, shard.first, shard.strides, shard.has_base)
                for shard, _ in held[name]
            ]
    for name, tensor, box in run():
        if tensor.numel() == 0:
            continue
        dtype = pipeline.specs[index[name]].dtype
        strides = [int(stride) for stride in tensor.stride()]
        out.append(Shard(index[name], box, len(locals_), 0, strides))
        locals_.append(LocalTensor(f"{name} {box}", dtype, tensor.numel()))
        tensors.append(tensor.view(-1))
        masters.append(None)
    ties = []
    for alias, original in layout.ties:
        results = pipeline.names()
        if len(results[alias]) != len(results[original]):
            raise UsageError(f"a step takes one of it and '{original}', to which it is tied", f"tensor '{alias}'")
        ties += list(zip(results[alias], results[original], strict=True))
    table = TensorTable([(spec.name, spec.dtype, spec.shape) for spec in pipeline.specs])
    made = Layout(table, [RankLayout(locals_, out, rank.node)], ties)

    def look_again() -> None:
        assert shards.look_again is not None
        shards.look_again()
        masters[: len(shards.masters)] = shards.masters

    again = look_again if shards.look_again is not None else None
    return LocalShards(made, tensors, masters, prepare, shards.guard, again, shards.memory)

# SPDX-License-Identifier: Apache-2.0
"""Canonical tensors as views of an engine's live memory, for readers that need each of them whole: delta logs."""

from __future__ import annotations

import torch

from sparsecast.engines.trace.address_map import TracedLoader, TracedShard
from sparsecast.engines.trace.dtypes import TORCH_DTYPES, CanonicalTensor
from sparsecast.engines.trace.memory import host_memory, seen_by
from sparsecast.errors import UnsupportedError

WholeTensor = tuple[CanonicalTensor, torch.Tensor]
"""Name, dtype and shape of a canonical tensor, and its memory, which may have strides."""


def cut_tensors(traced: TracedLoader) -> list[str]:
    """Returns the names of the canonical tensors that do not lie in memory in one piece, so that no strided view shows
    them whole.
    """
    places = _places(traced)
    return [traced.table[i][0] for i, shards in places.items() if not _is_whole(traced, shards)]


def refuse_ties(traced: TracedLoader) -> None:
    """Raises UnsupportedError if two canonical names share memory (a tie), and names the first such pair: a log has a
    tensor for each of the two names.
    """
    if traced.ties:
        alias, original = traced.ties[0]
        raise UnsupportedError(
            f"{alias!r} and {original!r} are one tensor in this engine, and two tensors of the log would be written "
            "into it: publish one of the two names"
        )


def whole_tensors(traced: TracedLoader) -> tuple[list[WholeTensor], dict[str, torch.Tensor]]:
    """Returns two results: all canonical tensors, sorted by the bytes of their names, as a log orders them; and, by
    name, those of them that the engine does not use. The latter are zeros in host memory, for the caller to fill.

    Raises UnsupportedError naming tensors that are cut into pieces, or that share their memory with another name.
    """
    cut = cut_tensors(traced)
    if cut:
        raise UnsupportedError(
            f"{len(cut)} tensors lie in several pieces, starting with {cut[0]!r}, and a log needs each of them whole: "
            "keep them beside the model (mode 'shadow')"
        )
    refuse_ties(traced)
    device = next((tensor.memory.device for tensor in traced.tensors if tensor.memory.is_cuda), None)
    places = _places(traced)
    whole: list[WholeTensor] = []
    unused: dict[str, torch.Tensor] = {}
    for index, (name, dtype, shape) in enumerate(traced.table):
        if index in places:
            shard = places[index][0]
            memory = traced.tensors[shard.local].memory
            view = seen_by(device, memory).as_strided(shape, shard.strides, shard.first)
        else:
            unused[name] = host_memory(_elements(shape), TORCH_DTYPES[dtype], device or torch.device("cpu")).view(shape)
            view = seen_by(device, unused[name])
        whole.append(((name, dtype, shape), view))
    whole.sort(key=lambda entry: entry[0][0].encode())
    return whole, unused


def _places(traced: TracedLoader) -> dict[int, list[TracedShard]]:
    places: dict[int, list[TracedShard]] = {}
    for shard in traced.shards:
        places.setdefault(shard.tensor, []).append(shard)
    return places


def _is_whole(traced: TracedLoader, shards: list[TracedShard]) -> bool:
    return len(shards) == 1 and shards[0].extent == traced.table[shards[0].tensor][2]


def _elements(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()

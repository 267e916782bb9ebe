# SPDX-License-Identifier: Apache-2.0
"""The address map of one rank's live weights, which `loader` finds: which boxes of which canonical tensors lie where,
and which canonical tensors are kept in copies outside the model because they have no such places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from sparsecast.buffers import PAIRS, WORD_BYTES, bits_of
from sparsecast.engines.trace.dtypes import CanonicalTensor
from sparsecast.engines.trace.errors import raise_for
from sparsecast.engines.trace.memory import seen_by
from sparsecast.errors import UnsupportedError

if TYPE_CHECKING:
    from sparsecast import Layout, Memory

MODES = ("in_place", "shadow", "nan_masked", "dense")
"""How updates reach a canonical tensor; docs/engines.md, "Modes"."""


@dataclass(frozen=True)
class TracedTensor:
    """All of the storage of a live tensor of the rank, or the copy of a canonical tensor, as `LocalTensor` wants it."""

    name: str
    dtype: str
    memory: torch.Tensor
    """One dimension, contiguous, sharing the storage; `memory.numel()` elements of `dtype`, or as many words or bytes
    of pairs."""


@dataclass(frozen=True)
class TracedShard:
    """A box of canonical tensor `tensor` where it lies in live tensor `local`; fields as in `sparsecast.Shard`."""

    tensor: int
    offset: tuple[int, ...]
    extent: tuple[int, ...]
    local: int
    first: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class TracedLoader:
    """Result of `trace_loader` on one rank."""

    table: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Canonical tensors in the order of the caller, without those in `refused`, as the engine's checkpoint has them
    (`in_checkpoint`)."""
    tensors: tuple[TracedTensor, ...]
    """Live tensors that hold elements of the table, then the copies of canonical tensors."""
    shards: tuple[TracedShard, ...]
    ties: tuple[tuple[str, str], ...]
    """Pairs (alias, original) of names that are loaded into the same memory."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Canonical tensors without an address map, and the reason: they need the dense loading of the engine."""
    unused: tuple[str, ...] = ()
    """Names of canonical tensors of which this rank holds nothing: experts or stages of other ranks, or names without
    use here.
    """
    missing: Mapping[str, str] = field(default_factory=dict)
    """Live parameters that no canonical tensor fills, and what is missing."""
    shadowed: Mapping[str, str] = field(default_factory=dict)
    """Canonical tensors that are not patched in place, and why: whole in `tensors`, each in a copy of its own."""
    modes: Mapping[str, str] = field(default_factory=dict)
    """Mode of each tensor in `shadowed`; empty for a tensor in `unseen` whose mode is not forced: it becomes
    "nan_masked" if that can be proven, else "dense"."""
    unseen: tuple[str, ...] = ()
    """Canonical tensors in `shadowed` whose loading the trace could not follow: the loader fails without their memory.
    """
    computed: tuple[str, ...] = ()
    """Live tensors that the loader makes from the copies of tensors in `shadowed`, in whole or in part."""
    failed: Mapping[str, Exception] = field(default_factory=dict)
    """Canonical tensors, all in `refused`, on which the loader itself failed."""
    live: tuple[str, ...] = ()
    """Names of the parameters and buffers of the model."""
    untouched: tuple[str, ...] = ()
    """Names of parameters in `missing` of which nothing fills any element: they may be computed after loading."""
    repacked: tuple[str, ...] = ()
    """Names in `tensors` of copies as loaded, from which the engine makes its live parameters (`refresh.repacked`)."""
    pairs: Mapping[str, str] = field(default_factory=dict)
    """Dtypes of the canonical tensors that hold pairs of 4-bit numbers, by name."""

    def require_complete(self, derived: Collection[str] = ()) -> None:
        """Raises UnsupportedError for what is refused, and UsageError for names that the loader does not know and for
        parameters that nothing fills, with the nearest names. `derived` names parameters that are computed after
        loading, which no canonical tensor has to fill.
        """
        missing = {where: what for where, what in self.missing.items() if where not in derived}
        names = [name for name, _, _ in self.table]
        raise_for(failed=self.failed, refused=self.refused, missing=missing, names=names, live=self.live)

    def shadows(self, mode: str | None = None) -> dict[str, torch.Tensor]:
        """Returns the copies of canonical tensors, all or only of tensors in a mode, by name and in their canonical
        shapes; they share the memory of `tensors`.
        """
        memory = {tensor.name: tensor.memory for tensor in self.tensors}
        shapes = {name: shape for name, _, shape in self.table}
        chosen = [name for name in self.shadowed if mode is None or self.modes[name] == mode]
        return {name: memory[f"shadow of {name}"].view(shapes[name]) for name in chosen}

    def may_fill(self) -> set[str]:
        """Returns the names in `missing` that tensors may fill whose loading the trace could not follow."""
        return set(self.missing) if self.unseen else set()

    @property
    def in_place(self) -> int:
        """Number of canonical tensors that are patched where they lie, or in part where they lie."""
        copies = {i for i, tensor in enumerate(self.tensors) if tensor.name in self.repacked}
        into_copies = {shard.tensor for shard in self.shards if shard.local in copies}
        return len(self.table) - len(self.unused) - len(self.shadowed) - len(into_copies)

    def kept(self) -> dict[str, torch.Tensor]:
        """Returns everything that is kept outside the model: the shadows, and the copies of repacked parameters."""
        copies = {tensor.name: tensor.memory for tensor in self.tensors if tensor.name in self.repacked}
        return {**self.shadows(), **{f"{name} as loaded": memory for name, memory in copies.items()}}

    def fill_shadows(self, known: Mapping[str, torch.Tensor]) -> None:
        """Fills the copies in `kept` from `known`, which another map of the same model has kept. Raises
        UnsupportedError for a copy that is not in `known`.
        """
        for name, copy in self.kept().items():
            if name not in known or known[name].shape != copy.shape:
                reason = self.shadowed.get(name, "the engine changes it after loading")
                raise UnsupportedError(
                    f"{name!r} is not patched in place ({reason}), and therefore kept as the checkpoint has "
                    "it: join with proof='checkpoint', or with needs_anchor, so that it is sent"
                )
            copy.copy_(known[name])

    def filling(self, canonical: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields canonical tensors as they come, after copying each into its shadow, if it has one, and into the places
        that it has in copies of repacked parameters. Raises UnsupportedError for a tensor of another dtype or shape
        than in the table.
        """
        shadows = self.shadows()
        places = self._places({tensor.name for tensor in self.tensors} & set(self.repacked))
        for name, tensor in canonical:
            shadow = shadows.get(name)
            if shadow is not None:
                if (tensor.dtype, tensor.shape) != (shadow.dtype, shadow.shape):
                    raise UnsupportedError(
                        f"tensor {name!r} is {tuple(tensor.shape)} of {tensor.dtype} in the engine's checkpoint, and "
                        f"{tuple(shadow.shape)} of {shadow.dtype} at the trainer: join with needs_anchor, so that the "
                        "trainer sends it, or send it as the checkpoint has it"
                    )
                shadow.copy_(tensor)
            for live, box in places.get(name, ()):
                bits_of(live).copy_(bits_of(tensor[box]))
            yield name, tensor

    def layout(self, node: str = "", exclude: Collection[str] = ()) -> Layout:
        """Returns the layout of this rank alone, to be joined with the others (`sparsecast.layouts.join_layouts`).

        `exclude` drops canonical tensors that another rank refuses, so that all ranks have one table.
        """
        from sparsecast import Box, Layout, LocalTensor, RankLayout, Shard, TensorTable

        kept = [i for i, (name, _, _) in enumerate(self.table) if name not in exclude]
        place = {old: new for new, old in enumerate(kept)}

        def shard(s: TracedShard) -> Shard:
            if self._is_words(s.tensor):
                box = Box((*s.offset, 0), (*s.extent, WORD_BYTES))
                strides = (*(n * WORD_BYTES for n in s.strides), 1)
                return Shard(place[s.tensor], box, s.local, s.first * WORD_BYTES, strides)
            return Shard(place[s.tensor], Box(s.offset, s.extent), s.local, s.first, s.strides)

        shards = [shard(s) for s in self.shards if s.tensor in place]
        tensors = [LocalTensor(t.name, t.dtype, _elements(t)) for t in self.tensors]
        ties = [tie for tie in self.ties if not set(tie) & set(exclude)]
        return Layout(TensorTable([self._as_sent(i) for i in kept]), [RankLayout(tensors, shards, node)], ties)

    def _is_words(self, index: int) -> bool:
        name, dtype, _ = self.table[index]
        return name in self.pairs and dtype == "I32"

    def _as_sent(self, index: int) -> CanonicalTensor:
        """Returns a tensor of the table as the trainer has it."""
        name, dtype, shape = self.table[index]
        return name, self.pairs.get(name, dtype), (*shape, WORD_BYTES) if self._is_words(index) else shape

    def memories(self) -> list[Memory]:
        """Returns the memory of `tensors`, in order, for a `Receiver` or a `ShardedSubscriber`. Copies in host memory
        are described as the device of the other tensors reaches them.
        """
        from sparsecast import describe

        device = next((tensor.memory.device for tensor in self.tensors if tensor.memory.is_cuda), None)
        return [describe(_as_sent(t, seen_by(device, t.memory)), dtype=t.dtype) for t in self.tensors]

    def differences(self, canonical: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
        """Compares live memory with canonical tensors (contiguous, any device): elements that differ, by name.

        An empty dict for the whole checkpoint that the engine was started from verifies that the map is right: that
        nothing has repacked a parameter behind its loader. Names that this rank does not hold are passed over.
        """
        places = self._places({tensor.name for tensor in self.tensors})
        found: dict[str, int] = {}
        for name, tensor in canonical:
            for live, box in places.get(name, ()):
                wrong = int((bits_of(live) != bits_of(tensor[box]).to(live.device)).sum())
                if wrong:
                    found[name] = found.get(name, 0) + wrong
        return found

    def modules_of(self, names: Collection[str]) -> set[str]:
        """Returns the names of the modules in whose live tensors some of the canonical tensors in `names` lie."""
        wanted = {i for i, (name, _, _) in enumerate(self.table) if name in names}
        return {self.tensors[s.local].name.rpartition(".")[0] for s in self.shards if s.tensor in wanted}

    def _places(self, names: Collection[str]) -> dict[str, list[tuple[torch.Tensor, tuple[slice, ...]]]]:
        """Returns where canonical tensors lie in the tensors that `names` names: views of memory, and boxes."""
        places: dict[str, list[tuple[torch.Tensor, tuple[slice, ...]]]] = {}
        for shard in self.shards:
            local = self.tensors[shard.local]
            if local.name in names:
                view = local.memory.as_strided(shard.extent, shard.strides, shard.first)
                box = tuple(slice(o, o + n) for o, n in zip(shard.offset, shard.extent, strict=True))
                places.setdefault(self.table[shard.tensor][0], []).append((view, box))
        return places


def _elements(tensor: TracedTensor) -> int:
    """Returns how many elements of its dtype the memory has."""
    return _as_sent(tensor, tensor.memory).numel()


def _as_sent(tensor: TracedTensor, memory: torch.Tensor) -> torch.Tensor:
    return memory.view(torch.uint8) if tensor.dtype in PAIRS else memory

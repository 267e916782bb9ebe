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
"""Ways in which updates reach a canonical tensor; docs/engines.md, "Modes", explains each."""


@dataclass(frozen=True)
class TracedTensor:
    """The whole storage of a live tensor of this rank, or a copy that is kept outside the model. `name` is the name of
    the tensor, and `dtype` its safetensors dtype at the trainer.
    """

    name: str
    dtype: str
    memory: torch.Tensor
    """View of the whole storage, contiguous and of one dimension. Its elements are those of `dtype`; where `dtype` is
    of pairs of 4-bit numbers, they are int32 words or bytes.
    """


@dataclass(frozen=True)
class TracedShard:
    """A box of a canonical tensor, and the place of its elements.

    `tensor` is an index of `TracedLoader.table`; `offset` and `extent` are the box, in elements of that tensor. `local`
    is an index of `TracedLoader.tensors`; `first` is the position there of the box's first element, and `strides` the
    distance between neighbours in each dimension of the box, both in elements.
    """

    tensor: int
    offset: tuple[int, ...]
    extent: tuple[int, ...]
    local: int
    first: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class TracedLoader:
    """Result of `trace_loader` on one rank: the address map, and the canonical tensors that have none."""

    table: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Canonical tensors (name, dtype, shape) as the engine's checkpoint has them (`in_checkpoint`), in the order in
    which the caller listed them; without the tensors in `refused`.
    """
    tensors: tuple[TracedTensor, ...]
    """Live tensors that hold elements of canonical tensors in `table`, followed by the copies that are kept outside the
    model.
    """
    shards: tuple[TracedShard, ...]
    """Boxes of the canonical tensors, each with its place in `tensors`."""
    ties: tuple[tuple[str, str], ...]
    """Pairs (alias, original) of names that are loaded into the same memory."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reason, by name, why a canonical tensor cannot be patched. The engine has to load these tensors whole, in its own
    way.
    """
    unused: tuple[str, ...] = ()
    """Names of canonical tensors of which this rank holds nothing: experts or stages of other ranks, or tensors that
    the model does not use.
    """
    missing: Mapping[str, str] = field(default_factory=dict)
    """What is missing, by name, of each live parameter that canonical tensors do not fill: "4 of 64 elements"."""
    shadowed: Mapping[str, str] = field(default_factory=dict)
    """Reason, by name, why a canonical tensor is not patched in place. Each of these tensors has a copy of its own in
    `tensors`, which holds all of it.
    """
    modes: Mapping[str, str] = field(default_factory=dict)
    """Mode, by name, of each canonical tensor in `shadowed`. It is empty for a tensor in `unseen` whose mode the caller
    did not force: `Recomputation.prove` chooses "nan_masked" if that can be proven, else "dense".
    """
    unseen: tuple[str, ...] = ()
    """Names of canonical tensors in `shadowed` whose loading the trace could not follow: the loader fails on a tensor
    without memory, or replaces the live tensor by another.
    """
    computed: tuple[str, ...] = ()
    """Names of live tensors that the loader computes, in whole or in part, from canonical tensors in `shadowed`."""
    failed: Mapping[str, Exception] = field(default_factory=dict)
    """Exception of the loader, by name, for each canonical tensor in `refused` on which the loader failed."""
    live: tuple[str, ...] = ()
    """Names of the parameters and buffers of the model."""
    untouched: tuple[str, ...] = ()
    """Names of parameters in `missing` that the loader leaves wholly unfilled: the engine may compute them after
    loading.
    """
    repacked: tuple[str, ...] = ()
    """Names in `tensors` of copies of parameters as they were loaded. The engine makes its live parameters from these
    copies (module `refresh.repacked`).
    """
    pairs: Mapping[str, str] = field(default_factory=dict)
    """The trainer's dtype, by name, of each canonical tensor that holds pairs of 4-bit numbers."""

    def require_complete(self, derived: Collection[str] = ()) -> None:
        """Raises UnsupportedError if a tensor is refused, and UsageError, with the nearest names, if the loader does
        not know a name or if nothing fills a parameter. `derived` names parameters that are computed after loading,
        which no canonical tensor has to fill.
        """
        missing = {where: what for where, what in self.missing.items() if where not in derived}
        names = [name for name, _, _ in self.table]
        raise_for(failed=self.failed, refused=self.refused, missing=missing, names=names, live=self.live)

    def shadows(self, mode: str | None = None) -> dict[str, torch.Tensor]:
        """Returns the copies of the canonical tensors in `shadowed` by name, in their canonical shapes: all copies, or
        only those of tensors whose mode is `mode`. The copies share the memory of `tensors`.
        """
        memory = {tensor.name: tensor.memory for tensor in self.tensors}
        shapes = {name: shape for name, _, shape in self.table}
        chosen = [name for name in self.shadowed if mode is None or self.modes[name] == mode]
        return {name: memory[f"shadow of {name}"].view(shapes[name]) for name in chosen}

    def may_fill(self) -> set[str]:
        """Returns the names in `missing` that tensors in `unseen` may fill. These are all names in `missing`, because
        the trace did not see where such tensors go; none if `unseen` is empty.
        """
        return set(self.missing) if self.unseen else set()

    @property
    def in_place(self) -> int:
        """Number of canonical tensors that updates patch in live memory: without tensors that this rank does not hold,
        shadowed tensors, and tensors that are patched in a copy of a repacked parameter.
        """
        copies = {i for i, tensor in enumerate(self.tensors) if tensor.name in self.repacked}
        into_copies = {shard.tensor for shard in self.shards if shard.local in copies}
        return len(self.table) - len(self.unused) - len(self.shadowed) - len(into_copies)

    def kept(self) -> dict[str, torch.Tensor]:
        """Returns everything that is kept outside the model: copies of canonical tensors (shadows) by canonical name,
        and copies of repacked parameters by "NAME as loaded".
        """
        copies = {tensor.name: tensor.memory for tensor in self.tensors if tensor.name in self.repacked}
        return {**self.shadows(), **{f"{name} as loaded": memory for name, memory in copies.items()}}

    def fill_shadows(self, known: Mapping[str, torch.Tensor]) -> None:
        """Fills every tensor of `kept()` from `known`, which is the `kept()` of an earlier map of the same model.
        Raises UnsupportedError for a tensor that is not in `known`, or has another shape there.
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
        """Passes the (name, tensor) pairs of a checkpoint through, and fills what is kept outside the model on the way:
        each tensor is copied into its shadow and into its places in copies of repacked parameters before it is yielded.
        Raises UnsupportedError for a shadowed tensor whose dtype or shape is not the table's.
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
        """Returns the layout of this rank alone, on node `node`, to be joined with the layouts of the other ranks
        (`sparsecast.layouts.join_layouts`).

        `exclude` names canonical tensors that another rank refuses: they are left out, so that all ranks have one
        table.
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
        """Returns name, dtype and shape, as the trainer has them, of the tensor with this index in `table`."""
        name, dtype, shape = self.table[index]
        return name, self.pairs.get(name, dtype), (*shape, WORD_BYTES) if self._is_words(index) else shape

    def memories(self) -> list[Memory]:
        """Returns the addresses and sizes of the memory of `tensors`, in their order, for a `Receiver` or a
        `ShardedSubscriber`. Copies in host memory are described as memory that the device of the other tensors reaches.
        The tensors must outlive the result.
        """
        from sparsecast import describe

        device = next((tensor.memory.device for tensor in self.tensors if tensor.memory.is_cuda), None)
        return [describe(_as_sent(t, seen_by(device, t.memory)), dtype=t.dtype) for t in self.tensors]

    def differences(self, canonical: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
        """Compares canonical tensors (contiguous, on any device) with their places in memory. Returns, by name of each
        tensor that differs, the number of elements whose bits differ.

        An empty dict for the whole checkpoint that the engine was started from proves the map right: nothing has
        repacked a parameter behind its loader. Tensors that this rank does not hold are passed over.
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
        """Returns the names of the modules whose live tensors hold elements of the canonical tensors in `names`."""
        wanted = {i for i, (name, _, _) in enumerate(self.table) if name in names}
        return {self.tensors[s.local].name.rpartition(".")[0] for s in self.shards if s.tensor in wanted}

    def _places(self, names: Collection[str]) -> dict[str, list[tuple[torch.Tensor, tuple[slice, ...]]]]:
        """Returns, by canonical name, where that tensor lies in those of `tensors` whose names are in `names`: pairs of
        a view of their memory and the box of the canonical tensor that the view holds.
        """
        places: dict[str, list[tuple[torch.Tensor, tuple[slice, ...]]]] = {}
        for shard in self.shards:
            local = self.tensors[shard.local]
            if local.name in names:
                view = local.memory.as_strided(shard.extent, shard.strides, shard.first)
                box = tuple(slice(o, o + n) for o, n in zip(shard.offset, shard.extent, strict=True))
                places.setdefault(self.table[shard.tensor][0], []).append((view, box))
        return places


def _elements(tensor: TracedTensor) -> int:
    """Returns the number of elements of `tensor.dtype` in the tensor's memory, where a pair of 4-bit numbers is one
    element.
    """
    return _as_sent(tensor, tensor.memory).numel()


def _as_sent(tensor: TracedTensor, memory: torch.Tensor) -> torch.Tensor:
    return memory.view(torch.uint8) if tensor.dtype in PAIRS else memory

# SPDX-License-Identifier: Apache-2.0
"""The address map of an engine's live weights, found by watching the engine's own loader.

`trace_loader` runs the loader of a model on canonical tensors that have names, dtypes and shapes but no memory, and
sees where each element would be copied to. Fused and stacked parameters, slices of tensor-parallel ranks, padding,
transposes and permutations of rows come out as what they are, strides, with no table a model:

    traced = trace_loader(model, checkpoint_tensors, model.load_weights)
    receiver = Receiver(..., traced.layout(), traced.memories())

The loader is called as for a checkpoint, and nothing is written: neither weights nor the model's attributes change. A
tensor with which the loader computes (a cast, arithmetic, a repack) has no address map: it is refused, with the reason,
or, with `modes`, kept outside the model as the checkpoint has it, and loaded again after each update
(`refresh.recompute`). The same holds for a tensor that the loader takes and the trace cannot follow.

A trace says what the loader would do now. Where a kernel's layout differs from the loader's although the parameter kept
its shape and its loader, only the bytes can tell: `TracedLoader.differences` compares them, and so does the digest
when a `Receiver` joins.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from sparsecast.engines.trace.address_map import MODES, TracedLoader, TracedShard, TracedTensor
from sparsecast.engines.trace.dispatch_mode import LoaderTrace, pools_run_here, storage_elements, storage_key
from sparsecast.engines.trace.dtypes import TORCH_DTYPES, CanonicalTensor, in_checkpoint, pairs_of
from sparsecast.engines.trace.errors import is_unknown_name
from sparsecast.engines.trace.memory import host_memory
from sparsecast.engines.trace.slots import Slot, slots
from sparsecast.engines.trace.strided import (
    Computed,
    Dim,
    Frame,
    Region,
    TooScatteredError,
    TracedMemory,
    cut_into_boxes,
    row_major,
)
from sparsecast.engines.trace.watch import Watch
from sparsecast.errors import UnsupportedError, UsageError

__all__ = ["CanonicalTensor", "LoadWeights", "Modes", "TracedLoader", "TracedShard", "TracedTensor", "trace_loader"]

LoadWeights = Callable[[Iterable[tuple[str, torch.Tensor]]], Any]
"""An engine's loader: takes (name, tensor) pairs of any part of the checkpoint; may be called several times."""

Modes = Mapping[str, str]
"""Modes (of `MODES`) that the caller forces, by pattern (fnmatch) of canonical names; the trace chooses the others."""


def mode_of(name: str, modes: Modes) -> str:
    """Returns the mode of the first pattern in `modes` that fits the canonical name; an empty string if none fits."""
    return next((mode for pattern, mode in modes.items() if fnmatch.fnmatch(name, pattern)), "")


def trace_loader(
    model: torch.nn.Module,
    canonical: Sequence[CanonicalTensor],
    load_weights: LoadWeights,
    *,
    strict: bool = True,
    may_miss: Sequence[str] = (),
    modes: Modes | None = None,
    several: Collection[str] = (),
) -> TracedLoader:
    """Runs `load_weights` over tensors without memory, and returns where it would copy them in the parameters and
    buffers of `model`. Not for use while another thread loads or runs the model.

    `canonical` is the whole checkpoint as the trainer names it, the same on every rank. Pairs of 4-bit numbers (I4X2,
    F4X2) are given to the loader as checkpoints have them: U8, or I32 where the last dimension is its 4 bytes. With
    `strict`, anything that cannot be patched raises UnsupportedError, and names that the loader does not know, or
    parameters that nothing fills, raise UsageError with the nearest names; without `strict` they are in `refused` and
    `missing`. Parameters whose name matches a pattern (fnmatch) in `may_miss` may always stay unfilled.

    With `modes`, tensors with which the loader computes, which it scatters too much, or on which it fails because they
    have no memory are not refused. They get copies, on the device of the model in mode "shadow", else in host memory,
    which have no content until `TracedLoader.filling`. The first pattern (fnmatch) in `modes` that fits a name forces
    its mode (one of `MODES`): "in_place" is refused if there is no map, any other mode is taken even if there is one.
    `several` names parameters in which the loader may write several tensors over the same elements although the tensors
    are not ties; with `modes` these tensors get copies, too.
    """
    for pattern, mode in (modes or {}).items():
        if mode not in MODES:
            raise UsageError(f"modes: {mode!r} of {pattern!r} is none of {', '.join(MODES)}")
    pairs, canonical = pairs_of(canonical), [in_checkpoint(tensor) for tensor in canonical]
    sources = _meta_tensors(canonical)
    live = _live_tensors(model)
    found = list(slots(model))
    failed: dict[str, Exception] = {}
    try:
        trace = _run_loader(live, sources, load_weights, failed)
        replaced = _replaced(found)
    finally:
        for slot in found:
            slot.put_back()
    builder = _MapBuilder(canonical, pairs, live, dict(model.named_parameters(remove_duplicate=False)), trace, failed)
    if modes is not None:
        builder.unseen = _only_want_memory(model, sources, load_weights, failed)
    builder.refuse_clashes(set(several) if modes is not None else set())
    builder.refuse_replaced(replaced)
    builder.collect()
    traced = builder.finish(may_miss, modes)
    if strict:
        traced.require_complete(traced.may_fill())
    return traced


def _meta_tensors(canonical: Sequence[CanonicalTensor]) -> dict[str, torch.Tensor]:
    sources: dict[str, torch.Tensor] = {}
    for name, dtype, shape in canonical:
        if name in sources:
            raise UsageError(f"tensor {name!r} is named twice")
        if dtype not in TORCH_DTYPES:
            raise UnsupportedError(f"tensor {name!r}: dtype {dtype} is not carried")
        sources[name] = torch.empty(tuple(shape), dtype=TORCH_DTYPES[dtype], device="meta")
    return sources


def _live_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named if not tensor.is_meta and tensor.numel()}


def _run_loader(
    live: dict[str, torch.Tensor],
    sources: dict[str, torch.Tensor],
    load_weights: LoadWeights,
    failed: dict[str, Exception],
) -> LoaderTrace:
    """Runs the loader under a trace, and returns the trace. Runs it once for all tensors, as for a checkpoint; if that
    fails, once for each tensor, and puts the exceptions into `failed` by the name of the tensor.
    """
    trace = LoaderTrace(live, sources)
    try:
        with torch.no_grad(), pools_run_here(), trace:
            load_weights(iter(sources.items()))
        return trace
    except Exception:  # The loader is not ours: whatever it raises, one of the tensors is the reason.
        trace = LoaderTrace(live, sources)
    for name, tensor in sources.items():
        try:
            with torch.no_grad(), pools_run_here(), trace:
                load_weights(iter([(name, tensor)]))
        except Exception as error:
            failed[name] = error
    return trace


def _only_want_memory(
    model: torch.nn.Module,
    sources: Mapping[str, torch.Tensor],
    load_weights: LoadWeights,
    failed: Mapping[str, Exception],
) -> set[str]:
    """Returns the names in `failed` of tensors that the loader loads without an error if they have memory. Leaves the
    model as it was. Stops at the first tensor on which the loader still fails, because the model is refused then.
    """
    found = list(slots(model))
    known = {storage_key(slot.data): slot.name for slot in found}
    device = next((slot.data.device for slot in found), torch.device("cpu"))
    loaded: set[str] = set()
    for name, error in failed.items():
        watch = Watch(known)
        try:
            if is_unknown_name(error):
                break
            with torch.no_grad(), pools_run_here(), watch:
                load_weights(iter([(name, torch.ones_like(sources[name], device=device))]))
        except Exception:  # It stays refused, with the words of the trace.
            break
        finally:
            for slot in found:
                slot.put_back()
            watch.undo()
        loaded.add(name)
    return loaded


def _replaced(found: Sequence[Slot]) -> set[int]:
    """Returns the storages that `found` has for parameters and buffers, and that no longer belong to them because the
    loader has replaced them. Each is given by its `storage_key`.
    """
    return {
        storage_key(slot.data)
        for slot in found
        if slot.registered
        and (slot.table.get(slot.key) is not slot.tensor or storage_key(slot.tensor.data) != storage_key(slot.data))
    }


class _MapBuilder:
    """Turns a finished trace into a `TracedLoader`. Its methods must be called in the order in which `trace_loader`
    calls them.
    """

    def __init__(
        self,
        canonical: Sequence[CanonicalTensor],
        pairs: Mapping[str, str],
        live: dict[str, torch.Tensor],
        parameters: dict[str, torch.nn.Parameter],
        trace: LoaderTrace,
        failed: dict[str, Exception],
    ) -> None:
        self.canonical = canonical
        self.frames = {name: row_major(tuple(shape)) for name, _, shape in canonical}
        self.dtypes = {name: dtype for name, dtype, _ in canonical}
        self.sent = {**self.dtypes, **pairs}  # Dtypes of the trainer, by name.
        self.pairs = pairs
        self.live = live
        self.parameters = parameters
        self.trace = trace
        self.failed = failed
        self.refused = {
            name: f"the engine's loader failed: {type(error).__name__}: {error}" for name, error in failed.items()
        }
        self.computed = {name: why for name, why in trace.computed.items() if name not in failed}
        self.unseen: set[str] = set()  # Names in `refused` whose loading the trace could not follow.
        self.ties: dict[str, str] = {}
        self.found: dict[str, list[tuple[str, Region]]] = {}  # By canonical name: live tensor, region in it.

    def memory(self, live_name: str) -> TracedMemory:
        return self.trace.memories[storage_key(self.live[live_name])]

    def refuse_clashes(self, several: Collection[str]) -> None:
        """Handles elements of live tensors into which several canonical tensors were loaded. Two names that were loaded
        into exactly the same elements become a tie. Other tensors that met or were overwritten are refused, except that
        tensors that met in a parameter in `several` go into `computed`.
        """
        for where, clash in self.trace.clashes:
            old = str(clash.old)
            if isinstance(clash.new, str) and where in several:
                for name, other in ((old, clash.new), (clash.new, old)):
                    self.computed.setdefault(name, f"{where} is loaded from it and from {other!r} in one place")
            elif isinstance(clash.new, str) and clash.same and self.frames[old].shape == self.frames[clash.new].shape:
                self.ties.setdefault(clash.new, old)
            elif isinstance(clash.new, str):
                for name, other in ((old, clash.new), (clash.new, old)):
                    self.refused.setdefault(name, f"{where} is loaded from it and from {other!r} in one place")
            elif not (isinstance(clash.new, Computed) and old in clash.new.names):
                self.refused.setdefault(old, f"{where} is written over after it was loaded")

    def refuse_replaced(self, replaced: set[int]) -> None:
        """Refuses the canonical tensors that were loaded into storages in `replaced`, and notes their names in
        `unseen`.
        """
        for where, tensor in self.live.items():
            if storage_key(tensor) in replaced:
                for name in self.memory(where).names() - self.refused.keys():
                    self.refused[name] = f"the loader replaces {where} by another tensor"
                    self.unseen.add(name)

    def collect(self) -> None:
        """Records in `found` where boxes of canonical tensors lie in live memory, and in `computed` the reason for each
        canonical tensor with which the loader does more than copy.
        """
        for where in self.storages():
            memory = self.memory(where)
            for piece in memory.pieces:
                if isinstance(piece.origin, Computed):
                    for name in piece.origin.names:
                        self.computed[name] = f"{where} is no copy of it: {piece.origin.reason}"
                elif isinstance(piece.origin, str):
                    self._add(piece.origin, where, piece.region, memory.frame)
        for name in self.trace.read_on_host - self.found.keys():
            self.computed.setdefault(name, "the loader reads its value on the host")

    def _add(self, name: str, where: str, region: Region, frame: Frame) -> None:
        dims = [Dim(*d) for d in zip(region.extent, region.strides, frame.strides, strict=True)]
        to = sum(o * s for o, s in zip(region.offset, frame.strides, strict=True))
        try:
            boxes = cut_into_boxes(self.frames[name], region.first, dims, to)
        except TooScatteredError as error:
            self.computed.setdefault(name, f"its place in {where} {error}")
            return
        self.found.setdefault(name, []).extend((where, box) for box in boxes)

    def storages(self) -> Iterator[str]:
        """Yields one name for each storage of the live tensors: the name of the first tensor in it."""
        seen: set[int] = set()
        for name, tensor in self.live.items():
            if storage_key(tensor) not in seen:
                seen.add(storage_key(tensor))
                yield name

    def finish(self, may_miss: Sequence[str], modes: Modes | None) -> TracedLoader:
        """Returns the address map. Canonical tensors in `computed` get shadows (copies outside the model) if `modes` is
        given, and are refused otherwise.
        """
        self._find_mixed_dtypes()
        forced = {name: mode_of(name, modes or {}) for name in self.frames}
        for name in self.frames:
            if modes is not None and name in self.unseen and forced[name] != "in_place":
                self.computed[name] = self.refused.pop(name)
            elif forced[name] not in ("", "in_place") and (name in self.found or name in self.computed):
                self.computed.setdefault(name, "so it was asked for")
            elif name in self.computed and (modes is None or forced[name] == "in_place"):
                self.refused.setdefault(name, self.computed[name])
        shadowed = {n: self.computed[n] for n in self.frames if n in self.computed and n not in self.refused}
        chosen = {n: forced[n] or ("" if n in self.unseen else "shadow") for n in shadowed}
        kept = [(name, dtype, tuple(shape)) for name, dtype, shape in self.canonical if name not in self.refused]
        index = {name: i for i, (name, _, _) in enumerate(kept)}
        places = {name: boxes for name, boxes in self.found.items() if name in index and name not in shadowed}
        tensors: dict[str, TracedTensor] = {}
        for name, boxes in places.items():
            for where, _ in boxes:
                if where not in tensors:
                    tensors[where] = TracedTensor(where, self.sent[name], _whole_storage(self.live[where]))
        local = {where: i for i, where in enumerate(tensors)}
        shards = [
            TracedShard(index[name], box.offset, box.extent, local[where], box.first, box.strides)
            for name, boxes in places.items()
            for where, box in boxes
        ]
        for name in shadowed:
            shape = self.frames[name].shape
            shards.append(
                TracedShard(index[name], (0,) * len(shape), shape, len(tensors), 0, self.frames[name].strides)
            )
            tensors[f"shadow of {name}"] = self._shadow(name, chosen[name])
        self._tie_skipped_names(places)
        ties = tuple((a, o) for a, o in self.ties.items() if a in index and o in index)
        missing = self._missing(may_miss)
        used = places.keys() | shadowed.keys() | {alias for alias, _ in ties}
        return TracedLoader(
            tuple(kept),
            tuple(tensors.values()),
            tuple(shards),
            ties,
            self.refused,
            tuple(name for name in index if name not in used),
            missing,
            shadowed,
            chosen,
            tuple(name for name in shadowed if name in self.unseen),
            self._made_of(shadowed),
            {name: error for name, error in self.failed.items() if name in self.refused},
            tuple(self.live),
            tuple(name for name in missing if not self.memory(name).pieces),
            pairs=self.pairs,
        )

    def _made_of(self, shadowed: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(name for name in self.storages() if self.memory(name).names() & shadowed.keys())

    def _shadow(self, name: str, mode: str) -> TracedTensor:
        devices = {tensor.device for tensor in self.live.values()}
        device = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
        elements, dtype = self.frames[name].elements, TORCH_DTYPES[self.dtypes[name]]
        if mode == "shadow":
            memory = torch.zeros(elements, dtype=dtype, device=device)
        else:
            memory = host_memory(elements, dtype, device)
        return TracedTensor(f"shadow of {name}", self.sent[name], memory)

    def _tie_skipped_names(self, places: Mapping[str, list[tuple[str, Region]]]) -> None:
        """Adds to `ties` the canonical names that are further names of a loaded parameter in the model. Loaders skip
        such names, although they name the same tensor.
        """
        for name in self.frames:
            twin = self.parameters.get(name)
            if twin is None or twin.is_meta or name in places or name in self.refused:
                continue
            for other, boxes in places.items():
                same = {storage_key(self.live[where]) for where, _ in boxes} == {storage_key(twin)}
                if same and self.frames[other].shape == self.frames[name].shape and other in self.parameters:
                    self.ties.setdefault(name, other)

    def _find_mixed_dtypes(self) -> None:
        dtype_of: dict[str, tuple[str, str]] = {}
        for name, boxes in self.found.items():
            for where, _ in boxes:
                first, dtype = dtype_of.setdefault(where, (name, self.sent[name]))
                if dtype != self.sent[name]:
                    reason = f"{where} has bits of {first!r} ({dtype}) as well as of it ({self.sent[name]})"
                    self.computed.setdefault(name, reason)

    def _missing(self, may_miss: Sequence[str]) -> dict[str, str]:
        """Returns what is missing of each parameter that is not filled whole, by its name, such as "4 of 64 elements".
        An element is filled if it comes from a canonical tensor or from a constant of the loader. `may_miss` has
        patterns (fnmatch) of names to leave out.
        """
        found: dict[str, str] = {}
        for where in self.storages():
            tensor = self.live[where]
            if where not in self.parameters or any(fnmatch.fnmatch(where, pattern) for pattern in may_miss):
                continue
            filled = sum(piece.region.elements for piece in self.memory(where).pieces)
            if filled < tensor.numel():
                found[where] = f"{tensor.numel() - filled} of {tensor.numel()} elements"
        return found


def _whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), 0, (storage_elements(tensor),), (1,))

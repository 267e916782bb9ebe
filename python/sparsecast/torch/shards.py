# SPDX-License-Identifier: Apache-2.0
"""Describes what this rank holds of a model: local tensors, and the boxes of canonical tensors in them."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from .._core import Box, Layout, LocalTensor, RankLayout, Shard, TensorTable
from ..buffers import PAIRS, WORD_BYTES, dtype_name
from ..errors import UsageError
from .dtensor import Piece, local_pieces

# : Canonical name of a parameter, or None if it is not sent. A dict lists only the names that differ.
Rename = Mapping[str, str | None] | Callable[[str], str | None]

# : Dtype in which a tensor is sent and held by the engines; None for its own.
WireDtype = torch.dtype | Callable[[str, torch.Tensor], torch.dtype | None]

# : What integers hold, by pattern (fnmatch) of canonical names: "I4X2" or "F4X2", 4-bit numbers.
Dtypes = Mapping[str, str]

Source = nn.Module | Iterable[tuple[str, torch.Tensor]]


@dataclasses.dataclass
class LocalShards:
    """Tensors of this rank and their layout (of this rank alone).

    ``tensors[i]`` is the memory of ``layout.ranks[0].tensors[i]``: flat, contiguous, at the same address as long as
    anything publishes it; of that dtype, or fp32 masters of bf16 (:meth:`holds_master`), whose cast a live publisher
    computes. ``masters[i]``, if not None, is the tensor that tensors[i] is cast from, with the same elements.
    ``prepare`` is called before each detection, after the casts: transforms fill their outputs there.
    """

    layout: Layout
    tensors: list[torch.Tensor]
    masters: list[torch.Tensor | None]
    prepare: Callable[[], None] | None = None
    # : Raises if a parameter has been given other memory since.
    guard: Callable[[], None] | None = None

    def holds_master(self, local: int) -> bool:
        """Returns whether tensors[local] is the fp32 master of a tensor that is bf16 in the layout."""
        return self.tensors[local].dtype == torch.float32 and self.layout.ranks[0].tensors[local].dtype == "BF16"

    def wire_bytes(self, local: int) -> int:
        """Returns the bytes of an element of tensors[local] as it is sent."""
        return self.tensors[local].element_size() // (2 if self.holds_master(local) else 1)

    def refresh(self) -> None:
        """Updates the tensors that are casts or results of transforms; the others are the parameters themselves.

        Raises UsageError naming a parameter whose memory is no longer the one that was described.
        """
        if self.guard is not None:
            self.guard()
        with torch.no_grad():
            for tensor, master in zip(self.tensors, self.masters, strict=True):
                if master is not None:
                    tensor.view(master.shape).copy_(master)
        if self.prepare is not None:
            self.prepare()


@dataclasses.dataclass
class _Held:
    """One parameter as this rank holds it."""

    name: str  # canonical
    own_name: str
    shape: tuple[int, ...]
    local: torch.Tensor
    pieces: list[Piece]  # what of the canonical tensor is where in `local`; together all of it
    wire: torch.dtype
    dtype: str  # as it is sent


def named_tensors(source: Source) -> list[tuple[str, torch.Tensor]]:
    """Returns the parameters and persistent buffers of a module under all their names, or the list of the caller."""
    if not isinstance(source, nn.Module):
        return list(source)
    found = dict(source.named_parameters(remove_duplicate=False))
    for prefix, module in source.named_modules(remove_duplicate=False):
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if name not in module._non_persistent_buffers_set:
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return list(found.items())


def _renamed(name: str, rename: Rename | None) -> str | None:
    if rename is None:
        return name
    if callable(rename):
        return rename(name)
    return rename.get(name, name)


def _wire_dtype(name: str, tensor: torch.Tensor, wire: WireDtype | None) -> torch.dtype:
    if wire is None:
        return tensor.dtype
    if isinstance(wire, torch.dtype):
        return wire if tensor.is_floating_point() else tensor.dtype
    return wire(name, tensor) or tensor.dtype


def _hold(
    own_name: str, tensor: torch.Tensor, rename: Rename | None, wire: WireDtype | None, dtypes: Dtypes | None
) -> _Held | None:
    name = _renamed(own_name, rename)
    if name is None:
        return None
    shape = tuple(tensor.shape)
    if hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh"):
        found = local_pieces(tensor, own_name)  # type: ignore[arg-type]
        if found is None:
            return None
        pieces, local = found, tensor.to_local()
    else:
        pieces, local = [Piece(Box([0] * len(shape), list(shape)), (0,) * len(shape))], tensor
    if local.is_meta:
        raise UsageError("it is on the meta device: it has no memory yet", f"tensor '{own_name}'")
    local = local.detach()
    declared = next((dtype for pattern, dtype in (dtypes or {}).items() if fnmatch.fnmatchcase(name, pattern)), None)
    if declared is None:
        wire_dtype = _wire_dtype(own_name, tensor, wire)
        return _Held(name, own_name, shape, local, pieces, wire_dtype, dtype_name(wire_dtype))
    _check_declared(own_name, declared, local)
    if local.dtype == torch.int32:  # Words: their bytes are a last dimension.
        shape = (*shape, WORD_BYTES)
        pieces = [
            Piece(Box((*piece.box.offset, 0), (*piece.box.extent, WORD_BYTES)), (*piece.at, 0)) for piece in pieces
        ]
        strides = (*(WORD_BYTES * n for n in local.stride()), 1)
        local = _flat(local).view(torch.uint8).as_strided((*local.shape, WORD_BYTES), strides)
    local = local.view(torch.uint8)
    return _Held(name, own_name, shape, local, pieces, local.dtype, declared)


def _check_declared(name: str, dtype: str, tensor: torch.Tensor) -> None:
    context = f"tensor '{name}'"
    if dtype not in PAIRS:
        raise UsageError(f"`dtypes` says {dtype}, which is none of {', '.join(PAIRS)}", context)
    if tensor.dtype not in (torch.uint8, torch.int8, torch.int32):
        held = str(tensor.dtype).removeprefix("torch.")
        raise UsageError(f"`dtypes` says {dtype}, which uint8, int8 or int32 hold, and it is {held}", context)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory that the elements span as one contiguous dimension, whatever the strides of the tensor."""
    if any(stride < 0 for stride in tensor.stride()):
        raise UsageError("negative strides")
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return tensor.as_strided((span,), (1,))


def _may_stay_master(local: torch.Tensor, wire: torch.dtype) -> bool:
    """Returns whether a tensor may stay an fp32 master: a publisher can cast it, and a snapshot of the memory that it
    spans, including gaps, is at most twice that of its elements.
    """
    castable = local.dtype == torch.float32 and wire == torch.bfloat16
    return castable and _flat(local).numel() <= 2 * local.numel()


@dataclasses.dataclass
class _Collected:
    cast: bool
    specs: dict[str, tuple[str, str, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    locals: list[LocalTensor] = dataclasses.field(default_factory=list)
    shards: list[Shard] = dataclasses.field(default_factory=list)
    tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)
    masters: list[torch.Tensor | None] = dataclasses.field(default_factory=list)
    ties: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    by_memory: dict[tuple[object, ...], str] = dataclasses.field(default_factory=dict)

    def add(self, held: _Held) -> None:
        if held.name in self.specs:
            raise UsageError(f"'{held.own_name}' has the name of another tensor", f"tensor '{held.name}'")
        self.specs[held.name] = (held.name, held.dtype, held.shape)
        local = held.local
        memory = (local.data_ptr(), tuple(local.shape), local.stride(), local.dtype, held.wire, held.shape)
        if local.numel():
            original = self.by_memory.setdefault(memory, held.name)
            if original != held.name:
                self.ties.append((held.name, original))
                return
        master = None
        if held.wire != local.dtype and (self.cast or not _may_stay_master(local, held.wire)):
            master, local = local, torch.empty(local.shape, dtype=held.wire, device=local.device)
        self.masters.append(master)
        self.tensors.append(_flat(local))
        self.locals.append(LocalTensor(held.own_name, held.dtype, self.tensors[-1].numel()))
        if local.numel():
            strides = list(local.stride())
            for box, at in held.pieces:
                first = sum(i * stride for i, stride in zip(at, strides, strict=True))
                self.shards.append(Shard(len(self.specs) - 1, box, len(self.locals) - 1, first, strides))


def _local_memory(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.data_ptr(), tuple(local.shape), local.stride()


def _guard(source: Source) -> Callable[[], None] | None:
    """Returns a check that parameters still have the memory that was described; offloading, reloading or a new FSDP
    wrap may replace it.
    """
    if not isinstance(source, nn.Module):
        return None
    described = {name: _local_memory(tensor) for name, tensor in named_tensors(source)}

    def check() -> None:
        for name, tensor in named_tensors(source):
            if described.get(name) != _local_memory(tensor):
                raise UsageError(
                    "its memory is not the one that was described: make a new publisher", f"tensor '{name}'"
                )

    return check


def shards_of(
    source: Source | LocalShards,
    *,
    rename: Rename | None = None,
    wire_dtype: WireDtype | None = None,
    dtypes: Dtypes | None = None,
    cast: bool = True,
) -> LocalShards:
    """Describes what this rank holds of a model, or of an iterable of (name, tensor).

    Parameters and persistent buffers; DTensors (FSDP2, 2-D meshes) by their local shards, as the mesh cuts them, others
    whole. ``rename`` maps names to the engine's, a table or a callable; None there leaves a tensor out. Tensors that
    share memory under several names are tied. ``dtypes`` says which integers are 4-bit numbers, by patterns of the
    canonical names: {"*.weight_packed": "I4X2"} (integers; "F4X2": fp4 e2m1), the first that fits. They are sent in
    fewer bytes. Tensors of uint8 or int8 keep their shape; of int32, eight numbers a word, the four bytes become a last
    dimension. Where ``wire_dtype`` differs from the tensor's own, a buffer of that dtype is made, into which
    :meth:`LocalShards.refresh` casts; with ``cast=False`` not for fp32 tensors that travel as bf16, which then stay
    masters, for live publishers (they cast while they compare). UsageError and UnsupportedError name the tensor.
    """
    if isinstance(source, LocalShards):
        if rename is not None or wire_dtype is not None or dtypes is not None:
            raise UsageError("local shards have their names and dtypes already")
        return source
    if not isinstance(source, nn.Module):
        source = list(source)
    collected = _Collected(cast)
    for own_name, tensor in named_tensors(source):
        held = _hold(own_name, tensor, rename, wire_dtype, dtypes)
        if held is not None:
            collected.add(held)
    if not collected.specs:
        raise UsageError("there is nothing to send: no parameters, or all of them are left out")
    rank = RankLayout(collected.locals, collected.shards)
    layout = Layout(TensorTable(list(collected.specs.values())), [rank], collected.ties)
    shards = LocalShards(layout, collected.tensors, collected.masters, guard=_guard(source))
    shards.refresh()
    return shards


@dataclasses.dataclass
class WholeTensors:
    """Canonical tensors that this rank holds whole, ordered by name as a checkpoint's are; tied ones once."""

    specs: list[tuple[str, str, tuple[int, ...]]]
    tensors: list[torch.Tensor]
    masters: list[torch.Tensor | None]


def shard_memory(memory: torch.Tensor, shard: Shard) -> torch.Tensor:
    """Returns the elements of ``shard`` in ``memory``, the local tensor that it lies in, in the shape of its box."""
    return memory.as_strided(shard.box.extent, shard.strides, memory.storage_offset() + shard.first)


def whole_tensors(shards: LocalShards, what: str) -> WholeTensors:
    """The tensors of a rank in their canonical shapes, in host memory.

    UsageError that names the tensor, and says that ``what`` needs it so, for parts, for tensors on a device, and for
    those of the table that the rank holds nothing of, or has twice.
    """
    entries = []
    of_rank = shards.layout.ranks[0].shards
    held = {shard.tensor for shard in of_rank}
    aliases = {alias for alias, _ in shards.layout.ties}
    for index, (name, _, shape) in enumerate(shards.layout.table):
        if index not in held and name not in aliases and 0 not in shape:
            raise UsageError(f"{what} needs it whole, and this rank holds nothing of it", f"tensor '{name}'")
    for shard in of_rank:
        name, dtype, shape = shards.layout.table[shard.tensor]
        if shard.box.extent != tuple(shape):
            words = f"{what} needs it whole, and this rank holds {shard.box}; of a sharded trainer sparsecast.relay writes logs"
            raise UsageError(words, f"tensor '{name}'")
        tensor = shard_memory(shards.tensors[shard.local], shard)
        if tensor.device.type != "cpu":
            raise UsageError(f"{what} needs it in host memory, and it is on {tensor.device}", f"tensor '{name}'")
        if not tensor.is_contiguous():
            raise UsageError(f"{what} needs it contiguous", f"tensor '{name}'")
        master = shards.masters[shard.local]
        if master is not None and tensor.numel() != master.numel():
            if not master.is_contiguous():
                raise UsageError(f"{what} needs what it is cast from contiguous", f"tensor '{name}'")
            master = shard_memory(master, shard)
        entries.append(((name, dtype, tuple(shape)), tensor, master))
    entries.sort(key=lambda entry: entry[0][0].encode())
    return WholeTensors([e[0] for e in entries], [e[1] for e in entries], [e[2] for e in entries])

# SPDX-License-Identifier: Apache-2.0
"""Describes what this rank holds of a model: local tensors, and the boxes of canonical tensors in them."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import nn

from .._core import Box, Layout, LocalTensor, RankLayout, Shard, TensorTable
from ..buffers import PAIRS, WORD_BYTES, dtype_name
from ..errors import UnsupportedError, UsageError
from .dtensor import Piece, local_pieces
from .owners import LiveTensors, MemoryWatch, ModuleWatch, alias_of, local_of, place_of, tensors_and_rest_of, tensors_of

#: Canonical name of a parameter, or None if it is not sent. A dict lists only the names that differ.
Rename = Mapping[str, str | None] | Callable[[str], str | None]

#: Dtype in which a tensor is sent and held by the engines; None for its own.
WireDtype = torch.dtype | Callable[[str, torch.Tensor], torch.dtype | None]

#: What tensors of integers hold, by pattern (fnmatch) of canonical names: "I4X2" or "F4X2", 4-bit numbers.
Dtypes = Mapping[str, str]

Source = nn.Module | Iterable[tuple[str, torch.Tensor]]

_log = logging.getLogger("sparsecast")
_CURE = "make a new publisher or subscriber"


@dataclasses.dataclass
class LocalShards:
    """The local tensors of this rank, and their layout (of this rank alone).

    ``tensors[i]`` is the memory of ``layout.ranks[0].tensors[i]``: one-dimensional, contiguous, and at the same address
    as long as anything publishes it. It has the dtype of the layout, or is an fp32 master of a bf16 tensor
    (:meth:`holds_master`), whose cast a live publisher computes. ``masters[i]``, if not None, is the tensor with the
    same elements from which ``tensors[i]`` is cast. ``prepare`` is called before each detection of changes, after the
    casts; transforms write their results there.
    """

    layout: Layout
    tensors: list[torch.Tensor]
    masters: list[torch.Tensor | None]
    prepare: Callable[[], None] | None = None
    #: Raises UsageError if a tensor has got other memory since it was described, or has no owner any more.
    guard: Callable[[], None] | None = None
    #: Puts into ``masters`` the tensors that the model has now in the place of those in ``reassigned``.
    look_again: Callable[[], None] | None = None
    memory: MemoryWatch | None = None

    def counted(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager: while it lasts, new references to the memory count as the user's
        (:meth:`MemoryWatch.counted`), and not as an owner's.
        """
        return self.memory.counted() if self.memory is not None else contextlib.nullcontext()

    def check(self) -> None:
        """Raises UsageError naming a tensor if its memory has moved since it was described, or has no owner any more."""
        if self.guard is not None:
            self.guard()

    def holds_master(self, local: int) -> bool:
        """Returns whether tensors[local] is the fp32 master of a tensor that is bf16 in the layout."""
        return self.tensors[local].dtype == torch.float32 and self.layout.ranks[0].tensors[local].dtype == "BF16"

    def wire_bytes(self, local: int) -> int:
        """Returns the number of bytes that one element of ``tensors[local]`` has when it is sent."""
        return self.tensors[local].element_size() // (2 if self.holds_master(local) else 1)

    def refresh(self) -> None:
        """Updates the tensors that are casts or results of transforms; the other tensors are the parameters' own
        memory.

        Raises UsageError naming a parameter if its memory is no longer the memory that was described.
        """
        self.check()
        if self.look_again is not None:
            self.look_again()
        with torch.no_grad():
            for tensor, master in zip(self.tensors, self.masters, strict=True):
                if master is not None:
                    tensor.view(master.shape).copy_(master)
        if self.prepare is not None:
            self.prepare()


@dataclasses.dataclass
class _Held:
    """A parameter as this rank holds it: its name and shape, its local memory, and the boxes that lie there."""

    name: str  # canonical name
    own_name: str
    shape: tuple[int, ...]
    local: torch.Tensor
    pieces: list[Piece]  # boxes of the canonical tensor, and their places in `local`; together all of `local`
    wire: torch.dtype
    dtype: str  # safetensors dtype in which it is sent


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
    local = _memory_of(own_name, local_of(tensor))
    shape = tuple(tensor.shape)
    if hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh"):
        found = local_pieces(tensor, own_name)  # type: ignore[arg-type]
        if found is None:
            return None
        pieces = found
    else:
        pieces = [Piece(Box([0] * len(shape), list(shape)), (0,) * len(shape))]
    declared = next((dtype for pattern, dtype in (dtypes or {}).items() if fnmatch.fnmatchcase(name, pattern)), None)
    if declared is None:
        wire_dtype = _wire_dtype(own_name, tensor, wire)
        try:
            carried = dtype_name(wire_dtype)
        except UsageError as error:
            raise UnsupportedError(str(error), f"tensor '{own_name}'") from None
        return _Held(name, own_name, shape, local, pieces, wire_dtype, carried)
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


def _memory_of(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a plain tensor over the memory of ``tensor``, with the same shape and strides, which keeps only that
    memory alive. Raises UsageError naming the tensor if it has no memory now (on the meta device, for example), and
    UnsupportedError if its kind of tensor has no plain memory.
    """
    context = f"tensor '{name}'"
    kind = type(tensor).__name__
    if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
        raise UsageError("it has no memory yet: run a forward of its lazy module first", context)
    if tensor.is_meta:
        raise UsageError("it is on the meta device: it has no memory yet", context)
    if tensor.layout != torch.strided or tensor.is_nested:
        form = "nested" if tensor.is_nested else f"of layout {tensor.layout}"
        raise UnsupportedError(f"a tensor that is {form} has no plain memory", context)
    if tensor.is_neg() or tensor.is_conj():
        raise UnsupportedError("its memory is to be negated or conjugated: take resolve_neg().resolve_conj()", context)
    try:
        end = (tensor.storage_offset() + _span(tensor)) * tensor.element_size() if tensor.numel() else 0
        freed = end > tensor.untyped_storage().nbytes()
        memory = tensor if freed else alias_of(tensor, tensor.shape, tensor.stride())
        missing = memory.numel() > 0 and memory.data_ptr() == 0
    except (NotImplementedError, RuntimeError, TypeError) as error:
        raise UnsupportedError(f"a {kind} has no memory that can be read: {error}", context) from error
    if freed:
        raise UsageError("its memory has been freed (resize_(0) of its storage)", context)
    if missing:
        raise UnsupportedError(
            f"a {kind} has no memory of its own: publish the tensors that it is made of, by name", context
        )
    return memory


def _span(tensor: torch.Tensor) -> int:
    """Returns the number of elements of memory from the first to the last element of a tensor that has elements."""
    if any(stride < 0 for stride in tensor.stride()):
        raise UsageError("negative strides")
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _check_declared(name: str, dtype: str, tensor: torch.Tensor) -> None:
    context = f"tensor '{name}'"
    if dtype not in PAIRS:
        raise UsageError(f"`dtypes` says {dtype}, which is none of {', '.join(PAIRS)}", context)
    if tensor.dtype not in (torch.uint8, torch.int8, torch.int32):
        held = str(tensor.dtype).removeprefix("torch.")
        raise UsageError(f"`dtypes` says {dtype}, which uint8, int8 or int32 hold, and it is {held}", context)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory from the first to the last element of a tensor as one contiguous dimension, whatever its
    strides.
    """
    return alias_of(tensor, (_span(tensor) if tensor.numel() else 0,), (1,))


def _may_stay_master(local: torch.Tensor, wire: torch.dtype) -> bool:
    """Returns whether a tensor may stay an fp32 master: a publisher can cast it to ``wire``, and the memory that it
    spans, including gaps, has at most twice as many elements as the tensor.
    """
    castable = local.dtype == torch.float32 and wire == torch.bfloat16
    return castable and _flat(local).numel() <= 2 * local.numel()


@dataclasses.dataclass
class _Collected:
    """The layout of this rank while it is built. ``cast`` is the argument of :func:`shards_of`: whether fp32 masters
    are cast to bf16 here.
    """

    cast: bool
    specs: dict[str, tuple[str, str, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    locals: list[LocalTensor] = dataclasses.field(default_factory=list)
    shards: list[Shard] = dataclasses.field(default_factory=list)
    tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)
    masters: list[torch.Tensor | None] = dataclasses.field(default_factory=list)
    ties: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    by_memory: dict[tuple[object, ...], str] = dataclasses.field(default_factory=dict)

    def add(self, held: _Held, copied: bool) -> None:
        """Adds a parameter; or a tie, if its memory was added under another name. With ``copied``, the parameter gets a
        buffer, into which :meth:`LocalShards.refresh` copies it. Raises UsageError for a name that was added before.
        """
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
        cast = held.wire != local.dtype and (self.cast or not _may_stay_master(local, held.wire))
        if copied or cast:
            master, local = local, torch.empty(local.shape, dtype=held.wire, device=local.device)
        self.masters.append(master)
        self.tensors.append(_flat(local))
        self.locals.append(LocalTensor(held.own_name, held.dtype, self.tensors[-1].numel()))
        if local.numel():
            strides = list(local.stride())
            for box, at in held.pieces:
                first = sum(i * stride for i, stride in zip(at, strides, strict=True))
                self.shards.append(Shard(len(self.specs) - 1, box, len(self.locals) - 1, first, strides))


def _live(source: Source) -> LiveTensors | None:
    """Returns ``source``, or the mapping to which it belongs as its ``items()``, if that is a :class:`LiveTensors`;
    None for any other source.
    """
    found = getattr(source, "_mapping", source)
    return found if isinstance(found, LiveTensors) else None


def _guard_live(live: LiveTensors) -> Callable[[], None]:
    places = {name: place_of(tensor) for name, tensor in live.now().items()}

    def check() -> None:
        now = live.now()
        for name in places | now:
            if name not in now or places.get(name) != place_of(now[name]):
                raise UsageError(f"the model has another tensor by this name now, or none: {_CURE}", f"tensor '{name}'")

    return check


def _tell_of_what_is_not_sent(unsent: list[str]) -> None:
    if unsent:
        words = "%d entries of the state dict are no parameters or buffers, and are not sent: '%s' is the first"
        _log.warning(words, len(unsent), unsent[0])


def _reassigned_of(module: nn.Module, patterns: Sequence[str], names: Iterable[str]) -> set[str]:
    found = {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    for pattern in patterns:
        if not fnmatch.filter(found, pattern):
            raise UsageError(f"no tensor of the model has the name '{pattern}' of `reassigned`")
    return found


def _look_again(module: nn.Module, masters: list[torch.Tensor | None], where: dict[str, int]) -> Callable[[], None]:
    def look() -> None:
        now = tensors_of(module)
        for name, local in where.items():
            before = masters[local]
            assert before is not None
            tensor = _memory_of(name, local_of(now[name])) if name in now else None
            if tensor is None or place_of(tensor)[1::2] != place_of(before)[1::2]:
                raise UsageError(f"it has another shape or dtype now, or is gone: {_CURE}", f"tensor '{name}'")
            masters[local] = tensor

    return look


def shards_of(
    source: Source | LocalShards,
    *,
    rename: Rename | None = None,
    wire_dtype: WireDtype | None = None,
    dtypes: Dtypes | None = None,
    cast: bool = True,
    reassigned: Sequence[str] = (),
) -> LocalShards:
    """Describes the tensors of a model (parameters and persistent buffers), or of an iterable of (name, tensor), that
    this rank holds.

    DTensors (FSDP2, 2-D meshes) are described by their local shards, as the mesh cuts them; other tensors whole.
    ``rename`` maps names to the engine's names (a dict or a callable; None leaves a tensor out). Tensors that share
    memory under several names are tied.

    ``dtypes`` says which integers are 4-bit numbers, by pattern (fnmatch) of the canonical names; the first pattern
    that fits counts: {"*.weight_packed": "I4X2"} (integers; "F4X2": fp4 e2m1). They are sent in fewer bytes. Tensors of
    uint8 or int8 keep their shape. Tensors of int32, eight numbers per word, get the four bytes of a word as a last
    dimension.

    Where ``wire_dtype`` differs from the tensor's own dtype, a buffer of that dtype is made, into which
    :meth:`LocalShards.refresh` casts. With ``cast=False``, fp32 tensors that travel as bf16 get no buffer: they stay
    masters, for live publishers, which cast while they compare.

    ``reassigned`` has patterns of names of a module's tensors that get other memory at each step (``bias = bias + d``):
    each :meth:`LocalShards.refresh` looks them up and copies them. It raises UsageError if any other tensor has moved,
    or if nothing but these shards holds a tensor's memory any more. UsageError and UnsupportedError name the tensor.
    """
    if isinstance(source, LocalShards):
        if rename is not None or wire_dtype is not None or dtypes is not None:
            raise UsageError("local shards have their names and dtypes already")
        return source
    module = source if isinstance(source, nn.Module) else None
    if module is None and reassigned:
        raise UsageError("`reassigned` are names of a module, in which they are looked up")
    named, rest = tensors_and_rest_of(module) if module is not None else ({}, [])
    copied = _reassigned_of(module, reassigned, named) if module is not None else set()
    collected = _Collected(cast)
    unsent = set()
    for own_name, tensor in named.items() if module is not None else list(source):  # type: ignore[arg-type]
        held = _hold(own_name, tensor, rename, wire_dtype, dtypes)
        if held is not None:
            collected.add(held, own_name in copied)
        else:
            unsent.add(own_name)
    if not collected.specs:
        raise UsageError("there is nothing to send: no parameters, or all of them are left out")
    rank = RankLayout(collected.locals, collected.shards)
    layout = Layout(TensorTable(list(collected.specs.values())), [rank], collected.ties)
    shards = LocalShards(layout, collected.tensors, collected.masters)
    live = _live(source)
    if module is not None:
        _tell_of_what_is_not_sent(rest)
        shards.guard = ModuleWatch(module, _CURE, ignored=unsent | copied, found=named).check
        if copied:
            where = {name: index for index, name in enumerate(t.name for t in collected.locals) if name in copied}
            shards.look_again = _look_again(module, shards.masters, where)
    elif live is not None:
        shards.guard = _guard_live(live)
    else:
        both = zip(collected.locals, collected.masters, collected.tensors, strict=True)
        shards.memory = MemoryWatch(((local.name, t if m is None else m) for local, m, t in both), _CURE)
        shards.guard = shards.memory.check
    shards.refresh()
    return shards


@dataclasses.dataclass
class WholeTensors:
    """Canonical tensors that this rank holds whole, ordered by name as in a checkpoint. Of tied names only one is
    there.
    """

    specs: list[tuple[str, str, tuple[int, ...]]]
    tensors: list[torch.Tensor]
    masters: list[torch.Tensor | None]


def shard_memory(memory: torch.Tensor, shard: Shard) -> torch.Tensor:
    """Returns a view of the elements of ``shard`` in ``memory``, which is the local tensor of the shard, in the shape
    of the shard's box.
    """
    return memory.as_strided(shard.box.extent, shard.strides, memory.storage_offset() + shard.first)


def whole_tensors(shards: LocalShards, what: str) -> WholeTensors:
    """Returns the tensors of this rank in their canonical shapes. Raises UsageError naming a tensor if the rank holds
    only a part of it, nothing of it, or a view that is not contiguous; ``what`` names, in the message, the thing that
    needs whole tensors ("a log").
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
